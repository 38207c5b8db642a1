"""The page docs/claims.md: what is claimed, what was measured, and the verdicts. Written as a whole by one command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from truenorm.lab.claims.claim import MIN_SEEDS, Claim, Finding, combined
from truenorm.lab.grid import Grid


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
    seeds = max(len(grid.axes["seed"]) for grid in chain.from_iterable(grids.values()))
    parts = [
        "# Claims about normalization, as experiments",
        "This page was written by one command. Killed and started again, it gives the same numbers.",
        f"    {command}",
        machine,
        f"Every statement has one effect for each of {seeds} seeds: a difference between trainings that have the "
        f"same data, "
        "initial weights and batches. The interval is the 95% confidence interval of the mean effect, by Student's "
        "t. A "
        "statement is *supported* if the whole interval is where the statement says, *refuted* if the whole "
        "interval is "
        f"elsewhere, and *undecided* otherwise, or with fewer than {MIN_SEEDS} seeds. Thresholds were chosen before "
        f"the "
        "trials ran. A claim is supported if all its statements are, and refuted if one is. The networks are small: a "
        "verdict is about these networks and these data.",
        _table(
            ["claim", "verdict"],
            [[f"[{claim.text}](#{claim.name})", combined(findings[claim.name])] for claim in claims],
        ),
        f"![The interval of each statement, its mean effect and its threshold]({picture})",
        "Each statement: its 95% interval (bar), the mean (large dot), every seed (small dots), 0 (short line), and "
        "the threshold (dashed line).",
    ]
    for claim in claims:
        parts += [
            f"## {claim.name}",
            f"{claim.text} **{combined(findings[claim.name]).capitalize()}.**",
            claim.measured,
        ]
        rows = [
            [
                *(finding.statement.text, _number(finding.mean), _interval(finding), finding.statement.unit),
                *(_holds(finding), finding.verdict),
            ]
            for finding in findings[claim.name]
        ]
        parts.append(_table(["statement", "mean effect", "95% interval", "unit", "holds", "verdict"], rows))
        if claim.remark:
            parts.append(claim.remark)
        parts.append("\n".join(_settings(grid) for grid in grids[claim.name]))
    return "\n\n".join(parts) + "\n"


def _settings(grid: Grid) -> str:
    """A grid in one line of code."""
    options = " ".join(f"{name}={','.join(map(str, values))}" for name, values in grid.axes.items() if name != "seed")
    return f"    {grid.measure}: {options}".rstrip()


def _interval(finding: Finding) -> str:
    return f"{_number(finding.low)} to {_number(finding.high)}"


def _holds(finding: Finding) -> str:
    return f"{finding.statement.side} {_number(finding.statement.threshold)}"


def _number(value: float) -> str:
    return f"{value:.3g}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
