"""The launches of the kernels, verb by verb: measure, forward, backward_sums, backward.

These are what `_pooled` calls for a part of a batch, and the autograd function for a whole one. Tables and sums are
float64, with a row for each statistic. Nothing waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from truenorm.core.norm import Norm
from truenorm.torch._kernel import in_order
from truenorm.torch.triton import kernels
from truenorm.torch.triton.plan import Plan, Valid

# Multiplications and additions are not fused: an operation has the same bits wherever it is compiled.
SWEEP: dict[str, Any] = {"num_warps": 8, "enable_fp_fusion": False}
REDUCTION: dict[str, Any] = {"num_warps": 4, "enable_fp_fusion": False}
on_device_of: Any = torch.cuda.device_of  # Triton launches on the current device
LANES, ITEMS = 32, 16  # of a block of parts
GROUP = 64  # blocks of rows whose gradients of weight are added by one program


@dataclass(eq=False)
class TritonVerbs:
    """What computes one x, or a part of a batch."""

    norm: Norm
    plan: Plan
    valid: Valid
    channels_last: bool  # whether axis 1 of x is the last one in memory
    keep_padding: bool

    def measure(self, x: Tensor) -> Tensor:
        """(statistics, 3)"""
        plan, valid, x = self.plan, self.valid, in_order(x, self.channels_last)
        parts = _empty(x, valid.tiles, plan.lanes, 3)
        with on_device_of(x):
            self._sweep(kernels.measure, x, parts, CENTER=self.norm.center)
            table = self._merge(parts, valid.first_tile, plan.sequences, valid.tiles_each, plan.lanes, 1)
            if plan.shared > 1 or plan.channels > 1:
                table = self._merge(table, None, plan.sequences // plan.shared, plan.shared, plan.kept, plan.channels)
        return table.reshape(-1, 3)

    def forward(self, x: Tensor, table: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        x = in_order(x, self.channels_last)
        y = torch.empty_like(x)
        with on_device_of(x):
            self._sweep_statistics(
                kernels.apply, x, y, _flat(weight), _flat(bias), _table(table), KEEP=self.keep_padding
            )
        return y

    def backward_sums(
        self, dy: Tensor, x: Tensor, table: Tensor, weight: Tensor | None, bias: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Σ dxhat and Σ dxhat · xhat (statistics, 2), dweight and dbias."""
        plan, valid, x = self.plan, self.valid, in_order(x, self.channels_last)
        dy = _as_in_memory(dy, x)
        parts = _empty(x, valid.tiles, plan.lanes, 2)
        by_position = None
        blocks = -(-plan.lanes // plan.tile[0])
        if plan.kind == "rows" and (weight is not None or bias is not None):
            by_position = _empty(x, blocks, plan.positions, 2)
        with on_device_of(x):
            self._sweep_statistics(kernels.sums, x, dy, _flat(weight), _table(table), parts, by_position)
            lanes = self._add(parts, valid.first_tile, plan.sequences, valid.tiles_each, valid.tiles)
            if by_position is not None:
                by_position = self._add(by_position, None, -(-blocks // GROUP), GROUP, blocks)
        if plan.kind == "rows":
            found, sums = by_position, lanes
        else:
            found = lanes
            if weight is not None:
                lanes = lanes * weight.detach().reshape(-1, 1)
            sums = lanes.reshape(-1, plan.shared, plan.kept, plan.channels, 2).sum((1, 3))
        dweight = dbias = None
        if found is not None:
            dbias, dweight = found.sum(0).unbind(-1)
        return sums.reshape(-1, 2), _as_like(dweight, weight), _as_like(dbias, bias)

    @property
    def keeps_bias(self) -> bool:
        return False  # there are no activations

    def backward(
        self,
        dy: Tensor,
        x: Tensor,
        table: Tensor,
        sums: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """sums: of the statistics, None if these are fixed."""
        x = in_order(x, self.channels_last)
        dx, dy = torch.empty_like(x), _as_in_memory(dy, x)
        total = None if sums is None else _table(sums)
        with on_device_of(x):
            self._sweep_statistics(
                kernels.gradient,
                x,
                dy,
                dx,
                _flat(weight),
                _table(table),
                total,
                KEEP=self.keep_padding,
                CENTER=self.norm.center,
            )
        return dx

    def _sweep(self, kernel: Any, x: Tensor, *others: Any, **constants: Any) -> None:
        """A kernel with one program for each tile."""
        plan, valid = self.plan, self.valid
        lanes, positions = plan.tile
        sizes = [plan.positions, plan.lanes, valid.tiles_each]
        if kernel is not kernels.measure:
            sizes += [plan.kept, plan.channels, plan.shared]
        kernel[(valid.tiles * -(-plan.lanes // lanes),)](
            x,
            *others,
            valid.ragged,
            valid.sequence_of,
            valid.first_tile,
            *sizes,
            FORM=valid.form,
            LAYOUT=plan.kind,
            TYPE=tl.float64 if x.dtype == torch.float64 else tl.float32,
            LANES=lanes,
            POSITIONS=positions,
            **constants,
            **SWEEP,
        )

    def _sweep_statistics(self, kernel: Any, *others: Any, **constants: Any) -> None:
        """A kernel that reads the table."""
        norm = self.norm
        self._sweep(kernel, *others, EPS=norm.eps, DDOF=norm.ddof, EPS_OUTSIDE=norm.eps_at == "std", **constants)

    def _merge(
        self, parts: Tensor, first: Tensor | None, groups: int, rows_each: int, kept: int, channels: int
    ) -> Tensor:
        table = _empty(parts, groups, kept, 3)
        constants = {"CENTER": self.norm.center, "LANES": LANES, "ITEMS": ITEMS}
        grid = (groups * -(-kept // LANES),)
        kernels.merge[grid](parts, table, first, rows_each, kept, channels, **constants, **REDUCTION)
        return table

    @staticmethod
    def _add(parts: Tensor, first: Tensor | None, groups: int, rows_each: int, rows: int) -> Tensor:
        """(rows, lanes, 2) -> (groups, lanes, 2)"""
        width = parts.shape[1] * 2
        totals = _empty(parts, groups, parts.shape[1], 2)
        constants = {"LANES": LANES, "ITEMS": ITEMS}
        grid = (groups * -(-width // LANES),)
        kernels.add[grid](parts, totals, first, rows, rows_each, width, **constants, **REDUCTION)
        return totals


def _as_in_memory(dy: Tensor, x: Tensor) -> Tensor:
    """dy as x lies in memory, copied if necessary."""
    same = dy.stride() == x.stride() and dy.dtype == x.dtype and not dy.is_neg()
    return dy if same else torch.empty_like(x).copy_(dy)


def _empty(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float64, device=like.device)


def _table(values: Tensor) -> Tensor:
    return values.detach().to(torch.float64).contiguous()


def _flat(values: Tensor | None) -> Tensor | None:
    """weight or bias, whose order in memory is that of the lanes or positions."""
    return None if values is None else values.detach().contiguous()


def _as_like(values: Tensor | None, like: Tensor | None) -> Tensor | None:
    return None if values is None or like is None else values.reshape(like.shape).to(like.dtype)
