"""Which figures a report has. Each shows a part of the tables; what no run recorded is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from truenorm.lab.history import Diagnostics, Report
from truenorm.report import charts
from truenorm.report.charts import Chart, Colored
from truenorm.report.runs import ReportedRun
from truenorm.report.tables import Row, Table, thinned

MAX_PANELS = 12  # small charts in a figure
MAX_HISTOGRAMS = 48  # charts of histograms in a report
UNITS = {"words": "loss, nats per character", "gender": "loss, nats", "table": "loss"}


@dataclass(frozen=True)
class Picture:
    """One chart. `only`: the screens that show it, "wide" or "narrow"; all if it is empty."""

    name: str
    chart: Chart
    description: str
    only: str = ""


@dataclass(frozen=True)
class Figure:
    """Charts with a common heading. `table`: where their numbers are."""

    title: str
    text: str
    table: str
    pictures: list[Picture]
    run: ReportedRun | None = None  # if all charts are about one run
    keyed: bool = True  # whether the colours of the runs are explained above
    lines: Sequence[Colored] = ()  # what the colours mean, in the report of a comparison


def figures_of(runs: Sequence[ReportedRun], tables: dict[str, Table]) -> list[Figure]:
    """All figures in the order of the report."""
    found = [
        *_losses(runs, tables),
        *_held_out(runs, tables, "accuracy", "Accuracy", "Share of held-out examples whose class is predicted."),
        *_held_out(runs, tables, "rmse", "RMSE", "Root mean squared error of held-out examples, in the target's unit."),
        *_histograms(runs),
        *_small(
            runs,
            tables["layers"].rows,
            "layer",
            "saturated",
            "Saturated units",
            "Share of an activation's outputs where its gradient vanishes: |tanh| > 0.97, sigmoid within 0.015 of 0 or "
            "1, ReLU and GELU at 0.",
            "layers",
        ),
        *_small(
            runs,
            _weights(tables["parameters"].rows),
            "parameter",
            "gradient_norm",
            "Gradient norms",
            "Euclidean norm of the gradient of each parameter, in the last step before a report.",
            "parameters",
        ),
        *_small(
            runs,
            _weights(tables["parameters"].rows),
            "parameter",
            "update",
            "Update ratios",
            "Learning rate times std of the gradient, divided by the std of the parameter. About 0.001, the dashed "
            "line, is healthy. For Adam, which rescales gradients, this is not the size of its steps.",
            "parameters",
            reference=1e-3,
        ),
        *_small(
            runs,
            tables["inputs"].rows,
            "layer",
            "drift",
            "Drift of the inputs",
            "How far mean and std of the inputs of each linear layer have moved since the first report, in units of "
            "the first std. This is what “internal covariate shift” is about.",
            "inputs",
        ),
        *_running(runs),
        *_small(
            runs,
            [row for row in tables["running"].rows if row["channel"] == 1],
            "layer",
            "lag",
            "Lag of the running means",
            "Mean distance, over all channels, of the running means from the means of the last batch, in running stds.",
            "running",
        ),
    ]
    return [figure for figure in found if figure.pictures]


def _losses(runs: Sequence[ReportedRun], tables: dict[str, Table]) -> Iterator[Figure]:
    rows = [row for row in tables["losses"].rows if row["loss"] is not None or row["held_out"] is not None]
    if not rows:
        return
    finals = [
        {"run": one.name, "step": one.history.step, "value": one.history.result["held_out"]["loss"]}
        for one in runs
        if one.history.result is not None
    ]
    counts = {report.held_out_examples for one in runs for report in one.history.reports[-1:]}
    sampled = [count for count in counts if count is not None and count[0] < count[1]]
    over = "all held-out examples"
    if sampled:
        over = " or ".join(
            f"a sample of {few:,} of the {all_of:,} held-out examples" for few, all_of in sorted(sampled)
        )
    text = (
        f"Thick: held-out loss over {over}, in evaluation mode. Thin: training loss, the mean over the batches since "
        "the last report, in training mode. Dots: final loss over all held-out examples."
    )
    most = charts.most_shown(rows)
    if any(value > most for row in rows for value in (row["loss"], row["held_out"]) if value is not None):
        text += " Losses beyond the upper edge are drawn on it."
    unit = UNITS[runs[0].history.config.task]
    said = f"Line chart of losses over steps. {_ends(runs)}"
    yield Figure(
        "Losses",
        text,
        "losses",
        [
            Picture("losses", charts.losses(rows, finals, runs, charts.WIDE, unit), said, "wide"),
            Picture("losses-narrow", charts.losses(rows, finals, runs, charts.NARROW, unit), said, "narrow"),
        ],
    )


def _ends(runs: Sequence[ReportedRun]) -> str:
    ends = [
        f"{one.name}: {one.history.reports[-1].held_out:.4g}"
        for one in runs
        if one.history.reports and one.history.reports[-1].held_out is not None
    ]
    return f"Held out at the end: {', '.join(ends)}." if ends else ""


def _held_out(
    runs: Sequence[ReportedRun], tables: dict[str, Table], column: str, title: str, text: str
) -> Iterator[Figure]:
    rows = _values(tables["losses"].rows, column)
    if rows:
        yield Figure(
            title, text, "losses", [Picture(column, charts.lines(rows, runs, "held out"), f"{title} over steps.")]
        )


def _values(rows: Sequence[Row], column: str) -> list[Row]:
    return [{"run": row["run"], "step": row["step"], "value": row[column]} for row in rows if row[column] is not None]


def _weights(rows: Sequence[Row]) -> list[Row]:
    """The rows of weights and tables. Biases are in the CSV file."""
    return [row for row in rows if not row["parameter"].endswith("bias")]


def _small(
    runs: Sequence[ReportedRun],
    rows: Sequence[Row],
    by: str,
    column: str,
    title: str,
    text: str,
    table: str,
    reference: float | None = None,
) -> Iterator[Figure]:
    """A small chart for each layer or parameter."""
    names = list(dict.fromkeys(row[by] for row in rows if row[column] is not None))
    shown = evenly(names)
    if len(shown) < len(names):
        text += f" Shown are {len(shown)} of {len(names)}; the table has all."
    panels = []
    for name in shown:
        values = _values([row for row in rows if row[by] == name], column)
        if any(row["value"] for row in values):  # a gradient that is 0 throughout shows nothing
            chart = charts.lines(values, runs, name, reference=reference)
            panels.append(Picture(f"{column}-{name}", chart, f"{title}, {name}, over steps."))
    yield Figure(title, text, table, panels)


def evenly(items: Sequence[str], most: int = MAX_PANELS) -> list[str]:
    """At most so many items: the first, the last and evenly spaced ones between them."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def _recorded(
    runs: Sequence[ReportedRun], names: Callable[[Diagnostics], Sequence[str]]
) -> Iterator[tuple[ReportedRun, list[Report], list[str]]]:
    """Each run with the layers that it recorded, and the reports that have all of them."""
    for one in runs:
        reports = thinned(one.history.reports)
        found = list(names(reports[-1].diagnostics)) if reports else []
        yield one, [report for report in reports if set(found) <= set(names(report.diagnostics))], found


def _histograms(runs: Sequence[ReportedRun]) -> Iterator[Figure]:
    for i, (one, reports, layers) in enumerate(_recorded(runs, lambda found: list(found.layers))):
        shown = evenly(layers, MAX_HISTOGRAMS // len(runs))
        pictures = [
            Picture(
                f"histograms-{i + 1}-{layer}",
                charts.histograms(
                    [{"step": report.step, "counts": report.diagnostics.layers[layer].histogram} for report in reports],
                    one.color,
                    layer,
                ),
                f"Histograms of the output of {layer} in run {one.name}, from step {reports[0].step} to "
                f"{reports[-1].step}.",
            )
            for layer in shown
        ]
        text = (
            "Histograms of each layer's output for held-out examples, from the first report (top) to the last. Values "
            "beyond ±3 are counted in the outermost bins."
        )
        if len(shown) < len(layers):
            text += f" Shown are {len(shown)} of {len(layers)} layers; the table has all."
        yield Figure("Layer outputs", text, "layers", pictures, one, keyed=False)


def _running(runs: Sequence[ReportedRun]) -> Iterator[Figure]:
    for i, (one, reports, layers) in enumerate(_recorded(runs, lambda found: list(found.running))):
        pictures = []
        for layer in evenly(layers, 2):
            for statistic in ("mean", "std"):
                rows = []
                for report in reports:
                    found = report.diagnostics.running[layer]
                    batch, running = getattr(found, f"batch_{statistic}"), getattr(found, f"running_{statistic}")
                    if batch and running:
                        rows.append({"step": report.step, "batch": batch[0], "running": running[0]})
                chart = charts.batch_and_running(rows, one.color, f"{layer}: {statistic} of channel 1")
                said = f"{statistic} of the first channel of {layer} in run {one.name}: batches and running."
                pictures.append(Picture(f"running-{i + 1}-{layer}-{statistic}", chart, said))
        text = (
            "Dots: the statistic of a training batch. Line: the running statistic, which is used in evaluation. The "
            "closer the dots are to the line, the more alike are training and evaluation."
        )
        yield Figure("Batch against running statistics", text, "running", pictures, one, keyed=False)
