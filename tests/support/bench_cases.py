"""Small cases that the tests of the benchmarks share."""

from __future__ import annotations

from bench.inputs import Case

CASES = [
    Case("batch", (4, 7, 5), ragged=True),
    Case("batch", (9, 5)),
    Case("layer", (9, 5)),
    Case("rms", (9, 5)),
    Case("instance", (3, 6, 7), channels="second", ragged=True),
    Case("group", (3, 6, 7), channels="second", ragged=True, groups=2),
    Case("group", (3, 6, 7), channels="second", groups=3),
]
