"""The shift of relative attention: scores of each distance become scores of each key, by a view.

    p = pad(p, (1, 0))                    (..., t, k), a column for each distance, the first one 0
    p = p.view(..., k, t)[..., 1:, :]
    p = p.view(..., t, k - 1)             row i is shifted by i: it begins at column t - i of p's row i
    p = p[..., :t]                        its other columns may come from row i + 1

The view in the middle has no positions of its own. But a column j < k - t of the last view comes from the same row, so
after the last step each position is computed by itself. The steps are noted here (`Shift`), and what the views
between have reported is taken back at the last one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from truenorm.torch.tracking.tag import Factor, Padding, Tag, has_role
from truenorm.torch.tracking.tracker import Tracker

WHOLE = slice(None)


@dataclass(frozen=True)
class Shift:
    """A tensor between the first and the last step."""

    tag: Tag  # of p
    step: int
    notes: frozenset[Any] = frozenset()  # what was reported since


def after_view(tracker: Tracker, x: Tensor, found: Any, result: Tensor, noted: int) -> None:
    """A view was made of x. `noted`: how much was reported before."""
    if x.dim() < 3 or result.dim() != x.dim() or result.shape[:-2] != x.shape[:-2]:
        return
    notes = frozenset(list(tracker.notes.mixed)[noted:])
    shift = tracker.shifts.get(x)
    if shift is not None and shift.step == 2 and result.shape[-2] == x.shape[-1]:
        tracker.put_beside(tracker.shifts, result, replace(shift, step=3, notes=shift.notes | notes))
    elif (
        isinstance(found, Tag)
        and x.shape[-2] < x.shape[-1]
        and result.shape[-2:] == (x.shape[-1], x.shape[-2])
        and x.dim() - 2 in found.lengths
        and not has_role(found.axes[-1])
    ):
        tracker.put_beside(tracker.shifts, result, Shift(found, 1, notes))


def after_index(tracker: Tracker, x: Tensor, full: list[Any] | None, result: Tensor, noted: int) -> None:
    """x[full] was made."""
    shift = tracker.shifts.get(x)
    if shift is None or full is None or len(full) != x.dim() or any(one != WHOLE for one in full[:-2]):
        return
    rows, columns = full[-2:]
    notes = shift.notes | {*list(tracker.notes.mixed)[noted:]}
    if shift.step == 1 and columns == WHOLE and rows in (slice(1, None), slice(1, x.shape[-2])):
        tracker.put_beside(tracker.shifts, result, replace(shift, step=2, notes=notes))
    elif shift.step == 3 and rows == WHOLE and _keeps_rows(columns, x.shape[-1] + 1 - x.shape[-2]):
        for note in notes:
            tracker.notes.mixed.pop(note, None)
        axes = (*shift.tag.axes[:-1], (Factor(result.shape[-1]),))
        tracker.states[result] = Tag(axes, min(shift.tag.padding, Padding.FINITE))


def _keeps_rows(columns: Any, most: int) -> bool:
    """Whether a slice takes the first columns, which are of the row itself."""
    is_first = isinstance(columns, slice) and not columns.start and columns.step in (None, 1)
    return is_first and columns.stop is not None and 0 < columns.stop <= most
