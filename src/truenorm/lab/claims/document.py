"""The page docs/claims.md: what is claimed, what was measured, and the verdicts. Written as a whole by one command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from truenorm.lab.claims.claim import MIN_SEEDS, Claim, Finding, headline
from truenorm.lab.grid import Grid

HEADING = "# Claims about normalization, as experiments"


def document(
    claims: Sequence[Claim],
    findings: Mapping[str, Sequence[Finding]],
    grids: Mapping[str, Sequence[Grid]],
    command: str,
    machine: str,
    picture: str,
) -> str:
    """The page as Markdown.

    command   repeats it
    machine   where it was made, and how long that took
    picture   the file name of the picture
    """
    parts = [
        HEADING,
        "This page was written by one command. If it is interrupted and started again, it gives the same numbers.",
        f"    {command}",
        machine,
        "Every statement has one effect for each seed; each claim says what it is: most are differences between "
        "trainings, some are sizes. What is compared for a seed has the same examples, the same split into training "
        "and held-out set, the same initial weights and the same batches, apart from what the claim changes: the size "
        "of the batches, the number of layers, the scale of the weights (which multiplies them), the padding or the "
        "scale of the inputs. The interval is a confidence interval of the mean effect, by Student's t. Its level is "
        "95% for a claim with one statement and 1 - 0.05 / k for each of k statements, so that all intervals of a "
        "claim are right together in 95% of such experiments. A statement is *supported* if the whole interval is "
        "where the statement says, *refuted* if the whole interval is elsewhere, and *undecided* otherwise, or with "
        f"fewer than {MIN_SEEDS} seeds.",
        "Some effects are known only within bounds, such as the steps of a training that never reached the loss. Then "
        "the interval goes from the lower end of the interval of the lower bounds to the upper end of that of the "
        "upper bounds. A seed without an effect is not left out: its bounds are infinite, and so is the interval. "
        "The column seeds counts those whose effect has two finite bounds.",
        "A claim is *supported* if all its statements are, *refuted* if all are, *mixed* if some are supported and "
        "others refuted, and otherwise *undecided*. Which statements stand for a claim, and the smallest effect that "
        "counts, are a choice; some were changed after earlier trials had been seen. The networks are small: "
        "a verdict is about these networks and these data.",
        _table(
            ["claim", "verdict"],
            [[f"[{claim.text}](#{claim.name})", headline(findings[claim.name])] for claim in claims],
        ),
        f"![The interval of each statement, its mean effect and its threshold]({picture})",
        "Each statement: its interval (bar), the mean (large dot), every seed (small dots), 0 (short line), and "
        "the threshold (dashed line).",
    ]
    for claim in claims:
        parts += [
            f"## {claim.name}",
            f"{claim.text} **{headline(findings[claim.name]).capitalize()}.**",
            claim.measured,
        ]
        rows = [
            [
                *(finding.statement.text, finding.statement.unit, finding.mean_text, finding.interval_text),
                *(finding.seeds, finding.statement.holds_if, finding.verdict),
            ]
            for finding in findings[claim.name]
        ]
        level = f"{findings[claim.name][0].level:.4g}"
        heads = ["statement", "unit of the effect", "mean", f"interval (level {level})", "seeds", "holds if", "verdict"]
        parts.append(_table(heads, rows))
        if claim.remark:
            parts.append(claim.remark)
        parts.append("\n".join(_settings(grid) for grid in grids[claim.name]))
    return "\n\n".join(parts) + "\n"


def _settings(grid: Grid) -> str:
    """A grid in one line of code."""
    axes = {name: map(_value, values) for name, values in grid.axes.items() if name != "seed"}
    options = " ".join(f"{name}={','.join(values)}" for name, values in axes.items())
    return f"    {grid.measure}: {options}".rstrip()


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
