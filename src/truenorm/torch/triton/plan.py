"""How a normalization becomes tiles: x as sequences x positions x lanes, and what of it is valid.

The canonical form has five groups of axes, outer x reduced x kept x channels x positions (docs/canonical-form.md). The
kernels see three axes, of which the middle one is summed over:

    layout     sequences              positions    lanes             weight for each
    columns    outer, b               the rest     kept, channels    lane
    planes     outer, reduced         positions    kept, channels    lane
    rows       1                      channels     outer             position

A statistic belongs to `shared` sequences in a row and `channels` lanes in a row. Tiles begin where sequences begin, so
padding behind a sequence does not change which elements a tile has. Nothing here reads a value of a tensor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from truenorm.core.layout import Layout, layout_of
from truenorm.core.norm import Norm
from truenorm.core.packed import packed_norm, rows_of
from truenorm.torch._inputs import Ragged, to_mask

Kind = Literal["columns", "planes", "rows"]
Form = Literal["all", "lengths", "valid", "elements", "offsets"]

LANES, POSITIONS = 32, 128  # of a tile
LONG = 64 * POSITIONS  # rows without sequences are cut into so many, which are merged side by side


@dataclass(frozen=True)
class Plan:
    """One layout of x, for all its ragged arguments."""

    layout: Layout
    kind: Kind
    sequences: int
    positions: int
    lanes: int
    kept: int  # statistics of one sequence
    channels: int  # lanes of one statistic
    shared: int  # sequences of one statistic
    repeats: int | None  # sequences of one sample; None if lengths are no beginnings of sequences

    @property
    def statistics(self) -> int:
        return math.prod(self.layout.statistics)

    @property
    def tile(self) -> tuple[int, int]:
        """Lanes and positions of a tile. They depend on the channels, and on nothing that padding changes."""
        positions = min(POSITIONS, _power_above(self.positions)) if self.kind == "rows" else POSITIONS
        return (LANES if self.kind == "rows" else min(LANES, _power_above(self.lanes))), positions


@dataclass(frozen=True, eq=False)
class Valid:
    """What is valid, as the kernels take it."""

    form: Form
    tiles_each: int  # of a sequence; for offsets it is 0
    tiles: int
    ragged: Tensor | None = None
    sequence_of: Tensor | None = None  # (tiles,), for offsets
    first_tile: Tensor | None = None  # (sequences + 1,), for offsets


def find_plan(norm: Norm, shape: tuple[int, ...], ragged: Ragged) -> Plan | str:
    """The plan for x of this shape, contiguous, or the reason why there is none."""
    if ragged.sample_weight is not None:
        return "sample_weight"
    if ragged.offsets is None:
        return _plan(layout_of(norm, shape))
    rows = rows_of(norm)
    if rows is None:  # `check_ragged` raises
        return "the arguments do not fit each other"
    packed = packed_norm(norm, len(shape))
    if rows.alike:
        return _plan(layout_of(packed, shape))
    if not rows.t or not shape[0]:
        return "rows that share statistics with those of other samples" if shape[0] else "x is empty"
    found = _plan(layout_of(packed, (len(ragged.offsets) - 1, 1, *shape[1:])))
    return found if isinstance(found, str) or found.kind == "columns" else "packed rows without channels last"


@lru_cache(maxsize=512)
def _plan(layout: Layout) -> Plan | str:
    if 0 in layout.canonical:
        return "x is empty"
    if layout.transposed:
        return "the order of axes"
    outer, _, kept, channels, _ = layout.canonical
    groups, b, ragged = layout.axis_groups, layout.find("b"), layout.ragged_axis
    if not groups[1] and not groups[4] and kept == 1:
        return Plan(layout, "rows", 1, channels, outer, outer, 1, 1, None)
    if groups[4]:
        kind: Kind = "planes"
        before, along = (*groups[0], *groups[1]), groups[4]
    else:
        kind = "columns"
        cut = 1 if len(groups[1]) > 1 and groups[1][0] == b else 0
        before, along = (*groups[0], *groups[1][:cut]), groups[1][cut:]
    sequences = math.prod(layout.split[i] for i in before)
    positions = math.prod(layout.split[i] for i in along)
    begins = b is not None and before[:1] == (b,) and along == (ragged,)
    repeats = sequences // layout.split[b] if begins and b is not None else None
    return Plan(layout, kind, sequences, positions, kept * channels, kept, channels, sequences // outer, repeats)


def find_valid(plan: Plan, norm: Norm, x: Tensor, ragged: Ragged) -> tuple[Plan, Valid]:
    """What is valid of x, contiguous; and the plan, which has other sequences if rows are cut."""
    valid, lengths, offsets, _ = ragged
    rows = rows_of(norm) if offsets is not None else None
    if offsets is not None and rows is not None and not rows.alike:
        # A packed row has so many positions: one, or one for each head.
        return plan, _packed(plan, offsets * plan.positions, x.shape[0] * plan.positions)
    each = -(-plan.positions // plan.tile[1])
    form: Form = "all"
    found: Tensor | None = None
    if valid is not None or lengths is not None:
        form, found = _mask(plan, norm, x, ragged)
    if form == "all" and plan.kind == "columns" and plan.sequences == 1 and plan.positions > LONG:
        bounds = torch.arange(0, plan.positions + LONG, LONG, device=x.device).clamp(max=plan.positions)
        pieces = len(bounds) - 1
        return replace(plan, sequences=pieces, shared=pieces), _packed(plan, bounds, plan.positions)
    return plan, Valid(form, each, plan.sequences * each, found)


def _mask(plan: Plan, norm: Norm, x: Tensor, ragged: Ragged) -> tuple[Form, Tensor]:
    lengths, layout = ragged.lengths, plan.layout
    if lengths is not None and lengths.dim() == 1 and plan.repeats is not None:
        return "lengths", lengths.repeat_interleave(plan.repeats) if plan.repeats > 1 else lengths
    mask = to_mask(norm, x, ragged).valid
    assert mask is not None
    by_position = all(mask.shape[i] == 1 for i, axis in enumerate(layout.axes) if axis.weighted)
    split = [1 if by_position and axis.weighted else axis.size for axis in layout.axes]
    return "valid" if by_position else "elements", mask.expand(split).to(torch.uint8).contiguous()


def _packed(plan: Plan, offsets: Tensor, rows: int) -> Valid:
    """Tiles of packed sequences. Offsets that are wrong, which nobody has checked, lead to no row outside of x.

    How many tiles there are is a value, so there are as many as there could be: those that are not needed belong to a
    sequence behind the last one, which has no rows.
    """
    positions, sequences = plan.tile[1], len(offsets) - 1
    bounds = offsets.clamp(0, rows).cummax(0).values
    bounds[0], bounds[-1] = 0, rows
    first = torch.zeros_like(bounds)
    first[1:] = torch.cumsum((bounds.diff() + (positions - 1)) // positions, 0)
    tiles = rows // positions + sequences
    sequence_of = torch.searchsorted(first[1:].contiguous(), torch.arange(tiles, device=first.device), right=True)
    return Valid("offsets", 0, tiles, torch.cat([bounds, bounds[-1:]]), sequence_of, first)


def _power_above(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()
