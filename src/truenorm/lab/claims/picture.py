"""The picture of docs/claims.md: for each statement its interval, its mean effect and its threshold, as SVG.

Effects have different units, so each statement has an axis of its own, which holds 0, the threshold and the interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from truenorm.lab.claims.claim import Claim, Finding, combined

WIDTH, LEFT, RIGHT = 760, 16, 640  # of the picture; where axes begin and end
HEAD, ROW = 34, 48  # heights
TITLE = "The interval of each statement, its mean effect (dot), 0 (line) and the threshold (dashed line)"
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1b1f24; }
.head { font-weight: 600; font-size: 13px; }
.small { font-size: 10px; fill: #59636e; }
.axis { stroke: #b7bec6; }
.zero { stroke: #59636e; }
.threshold { stroke: #1b1f24; stroke-dasharray: 3 2; }
.paper { fill: #ffffff; }
.supported { fill: #1a7f37; } .refuted { fill: #b3261e; } .undecided, .mixed { fill: #7d5700; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6e9ed; } .small { fill: #a0a8b0; } .axis { stroke: #4a525b; } .zero { stroke: #a0a8b0; }
  .threshold { stroke: #e6e9ed; } .paper { fill: #14181d; }
  .supported { fill: #57c272; } .refuted { fill: #ff8a80; } .undecided, .mixed { fill: #e0b040; }
}
"""


def picture(claims: Sequence[Claim], findings: Mapping[str, Sequence[Finding]]) -> str:
    """All statements with their intervals, as the text of an SVG file."""
    parts: list[str] = []
    y = 24
    for claim in claims:
        parts.append(
            f'<text class="head" x="{LEFT}" y="{y}">{escape(claim.text)} '
            f'<tspan class="{combined(findings[claim.name])}">{combined(findings[claim.name])}</tspan></text>'
        )
        y += HEAD - 14
        for finding in findings[claim.name]:
            parts += _row(finding, y)
            y += ROW
        y += 14
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" role="img" aria-label="{TITLE}">\n'
        f"<style>{STYLE}</style>\n"
        f'<rect class="paper" width="{WIDTH}" height="{y}"/>\n{body}\n</svg>\n'
    )


def _row(finding: Finding, y: int) -> list[str]:
    statement = finding.statement
    bounds = [value for value in (finding.low, finding.high) if math.isfinite(value)]
    dots = [middle for one in finding.effects if math.isfinite(middle := (one.low + one.high) / 2)]
    values = [0.0, statement.threshold, *bounds, *dots]
    low, high = min(values), max(values)
    margin = 0.04 * (high - low) or 1.0
    low, high = low - margin, high + margin

    def at(value: float) -> str:
        return f"{LEFT + (value - low) / (high - low) * (RIGHT - LEFT):.1f}"

    middle = y + 16
    row = [
        f'<text x="{LEFT}" y="{y + 4}">{escape(statement.text)}</text>',
        f'<line class="axis" x1="{LEFT}" x2="{RIGHT}" y1="{middle}" y2="{middle}"/>',
        f'<line class="zero" x1="{at(0)}" x2="{at(0)}" y1="{middle - 4}" y2="{middle + 4}"/>',
    ]
    for effect in dots:
        row.append(f'<circle class="{finding.verdict}" cx="{at(effect)}" cy="{middle}" r="1.6" opacity="0.6"/>')
    if bounds:
        left = at(finding.low) if math.isfinite(finding.low) else f"{LEFT:.1f}"  # no limit: to the end of the axis
        right = at(finding.high) if math.isfinite(finding.high) else f"{RIGHT:.1f}"
        width = float(right) - float(left)
        row.append(
            f'<rect class="{finding.verdict}" x="{left}" y="{middle - 4}" width="{max(width, 1):.1f}" '
            'height="8" rx="3" opacity="0.45"/>'
        )
    if math.isfinite(finding.mean):
        row.append(f'<circle class="{finding.verdict}" cx="{at(finding.mean)}" cy="{middle}" r="4"/>')
    row += [
        f'<line class="threshold" x1="{at(statement.threshold)}" x2="{at(statement.threshold)}" y1="{middle - 7}" '
        f'y2="{middle + 6}"/>',
        f'<text class="{finding.verdict}" x="{RIGHT + 12}" y="{middle + 4}">{finding.verdict}</text>',
        f'<text class="small" x="{LEFT}" y="{middle + 17}">{finding.mean_text} '
        f"({finding.interval_text}) {escape(statement.unit)}; holds if {statement.holds_if}; seeds: {finding.seeds}"
        "</text>",
    ]
    return row
