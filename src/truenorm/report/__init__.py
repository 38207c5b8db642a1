"""A report about training runs, or about a comparison: one HTML file that needs no network and no JavaScript.

    kinds.py        which of the two some directories get
    runs.py         read the runs, and give each a name and a colour
    tables.py       their numbers as tables, which become CSV files
    charts.py       one Altair chart for each picture
    figures.py      which pictures a report of runs has, from the tables
    images.py       charts as SVG and PNG, by vl-convert
    html.py         what all reports share: templates, charts and tables in the page
    document.py     the report of runs: report.html.jinja, filled in
    settings.py     read the results of a comparison: settings with intervals, and curves
    comparison.py   the report of a comparison: its figures and tables, and comparison.html.jinja, filled in

Charts are drawn when the report is written, so the file holds SVG only. Colours are fixed in the charts; style.css
replaces each by its counterpart for dark screens. The same runs give the same bytes.
"""

TITLE = "report · truenorm</title>"  # ends the title of every report
