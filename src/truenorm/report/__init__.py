"""A report about training runs: one HTML file that needs no network and no JavaScript.

    runs.py       read the runs, and give each a name and a colour
    tables.py     their numbers as tables, which become CSV files
    charts.py     one Altair chart for each picture
    figures.py    which pictures a report has, from the tables
    images.py     charts as SVG and PNG, by vl-convert
    document.py   the HTML: report.html.jinja and style.css, filled in

Charts are drawn when the report is written, so the file holds SVG only. Colours are fixed in the charts; style.css
replaces each by its counterpart for dark screens. The same runs give the same bytes.
"""
