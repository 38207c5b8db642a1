"""The two calls of a cell: torch's own layer, which knows no padding, and ours, on the same tensors.

Training is forward and backward, with the gradients of x, weight and bias; evaluation is forward without a graph. dy
has the memory order of each layer's own y, as an operator behind the layer would give it. Padding is passed as
`lengths` (rank 3), as `lengths` along the first position axis (ranks 4 and 5), or as `valid` (rank 2).

Before anything is timed, `mistakes` compares our results with torch's operators in float64 on the valid values alone:
batch norm on the valid rows, group and instance norm on sequences of the same length without their padding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import truenorm.torch as tnt
from bench.map.cells import BY_POSITION, Cell

# Errors that `mistakes` accepts: in roundings of the dtype of a result, and in roundings of float32 of its terms.
ROUNDINGS, ROUNDINGS_OF_TERMS = 4, 64


@dataclass(frozen=True, eq=False)
class Pair:
    """A cell's tensors and layers.

    lengths   (rows,) of the first position axis; in rank 2 each is 0 or 1. None without padding
    """

    cell: Cell
    x: Tensor
    dy: Tensor
    lengths: Tensor | None
    torchs: nn.Module
    ours: nn.Module

    @property
    def ragged(self) -> dict[str, Any]:
        """The arguments that tell our layer what is valid."""
        if self.lengths is None:
            return {}
        if self.cell.rank == 2:
            return {"valid": self.lengths > 0}
        along = {} if self.cell.rank == 3 else {"along": 1 if self.cell.layer in BY_POSITION else 2}
        return {"lengths": self.lengths, **along}

    @property
    def valid(self) -> Tensor | None:
        """(rows, *positions); None if everything is valid."""
        if self.lengths is None:
            return None
        if self.cell.rank == 2:
            return self.lengths > 0
        first, *others = self.cell.positions
        valid = torch.arange(first) < self.lengths[:, None]
        return valid.reshape(self.cell.rows, first, *[1] * len(others)).expand(-1, -1, *others)

    @property
    def padding(self) -> float:
        """The share of the positions, as it is."""
        return 0.0 if self.valid is None else 1 - float(self.valid.double().mean())

    def calls(self) -> dict[str, Callable[[], Any]]:
        """What is timed; in evaluation within `torch.no_grad`."""
        return {"torch": self._call(self.torchs, {}), "ours": self._call(self.ours, self.ragged)}

    def _call(self, layer: nn.Module, ragged: dict[str, Any]) -> Callable[[], Any]:
        if self.cell.mode == "evaluation":
            return partial(layer, self.x, **ragged)
        y = layer(self.x, **ragged).detach()
        return partial(step, layer, self.x, torch.empty_like(y).copy_(self.dy), ragged)


def step(layer: nn.Module, x: Tensor, dy: Tensor, ragged: dict[str, Any]) -> tuple[Tensor, ...]:
    """Forward and backward: dx, dweight and, unless it is RMS norm, dbias."""
    return torch.autograd.grad(layer(x, **ragged), [x, *layer.parameters()], dy)


def make_pair(cell: Cell, seed: int = 0) -> Pair:
    """Draw the tensors. Weights are irregular and padding is not zero, so that a wrong gradient or mask shows."""
    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, cell.dtype)
    x, dy = (in_order(torch.randn(cell.shape, generator=generator), cell).to(dtype) for _ in range(2))
    torchs, ours = (make_layer(library, cell) for library in (nn, tnt))
    with torch.no_grad():
        for one in (*torchs.parameters(), *(b for b in torchs.buffers() if b.is_floating_point())):
            one.copy_(0.5 + torch.rand(one.shape, generator=generator))
    ours.load_state_dict(torchs.state_dict())
    training = cell.mode == "training"
    for layer in (torchs, ours):
        layer.to(dtype).train(training)
    return Pair(cell, x.requires_grad_(training), dy, padded_lengths(cell), torchs, ours)


def make_layer(library: Any, cell: Cell) -> nn.Module:
    made: nn.Module
    match cell.layer:
        case "GroupNorm":
            made = library.GroupNorm(cell.groups, cell.width)
        case "InstanceNorm":
            made = getattr(library, f"InstanceNorm{cell.rank - 2}d")(cell.width, affine=True)
        case name:
            made = getattr(library, name)(cell.width)
    return made


def in_order(x: Tensor, cell: Cell) -> Tensor:
    """The same values in the memory order of the cell."""
    if cell.order == "contiguous":
        return x
    if cell.rank == 2:
        return x.t().contiguous().t()
    first, last = (-1, 1) if cell.layer in BY_POSITION else (1, -1)
    return x.movedim(first, last).contiguous().movedim(last, first)


def padded_lengths(cell: Cell) -> Tensor | None:
    """Lengths that leave the cell's share of the positions empty, as far as whole positions can; the first is full.

    They fall from full to short as a power, which has the wanted mean.
    """
    if not cell.padding:
        return None
    share = cell.padding / 100
    if cell.rank == 2:
        valid = max(2, round(cell.rows * (1 - share)))
        return (torch.arange(cell.rows) * valid % cell.rows < valid).long()  # spread over the rows
    places = (torch.arange(cell.rows) + 0.5) / cell.rows
    lengths = ((1 - places) ** (share / (1 - share)) * cell.positions[0]).round().clamp(min=1).long()
    lengths[0] = cell.positions[0]
    return lengths


# ---- the check ----


def mistakes(pair: Pair) -> list[str]:
    """What is wrong with our results; an empty list if nothing is."""
    wanted, terms = expected(pair), max(1, pair.x.numel() // pair.cell.width)
    wrong = []
    for name, value in results(pair).items():
        want = wanted[name]
        limit = float(ROUNDINGS * torch.finfo(value.dtype).eps * want.abs().max())
        limit += ROUNDINGS_OF_TERMS * torch.finfo(torch.float32).eps * (terms if name in ("dweight", "dbias") else 1)
        error = float((value.double() - want).abs().max())
        if not error <= limit:  # NaN is wrong too
            wrong.append(f"{name}: at most {limit:.3g} from float64, got {error:.3g}")
    return wrong


def results(pair: Pair) -> dict[str, Tensor]:
    """Ours: y and, in training, the gradients."""
    y = pair.ours(pair.x, **pair.ragged)
    return {"y": y.detach()} | _gradients(pair.cell, y, pair.x, pair.ours, pair.dy)


def expected(pair: Pair) -> dict[str, Tensor]:
    """The same in float64, from torch's operators on the valid values."""
    x = pair.x.detach().double().requires_grad_(pair.x.requires_grad)
    layer = make_layer(nn, pair.cell)
    layer.load_state_dict(pair.ours.state_dict())  # its running statistics are not rounded to bfloat16
    layer.double().train(pair.torchs.training)
    y = _normalize_valid(pair, layer, x)
    return {"y": y.detach()} | _gradients(pair.cell, y, x, layer, pair.dy.double())


def _gradients(cell: Cell, y: Tensor, x: Tensor, layer: nn.Module, dy: Tensor) -> dict[str, Tensor]:
    if cell.mode == "evaluation":
        return {}
    names = ["dx", *(f"d{name}" for name, _ in layer.named_parameters())]
    found = torch.autograd.grad(y, [x, *layer.parameters()], dy)
    return dict(zip(names, found, strict=True))


def _normalize_valid(pair: Pair, layer: Any, x: Tensor) -> Tensor:
    cell, valid = pair.cell, pair.valid
    if valid is None:
        return torch.as_tensor(layer(x))
    y = torch.zeros_like(x)
    if cell.layer.startswith("BatchNorm"):
        rows = x.movedim(1, -1)[valid]
        normalized = layer(rows.reshape(*rows.shape, *[1] * (cell.rank - 2))).reshape(rows.shape)
        return y.movedim(1, -1).clone().index_put((valid,), normalized).movedim(-1, 1)
    if cell.layer in BY_POSITION:
        return torch.where(valid[..., None], layer(x), y)
    return _by_length(pair, layer, x)


def _by_length(pair: Pair, layer: Any, x: Tensor) -> Tensor:
    """Group and instance norm: sequences of the same length at once, without their padding."""
    cell, lengths = pair.cell, pair.lengths
    assert lengths is not None
    parts, order = [], []
    for length in lengths.unique().tolist():
        chosen = (lengths == length).nonzero()[:, 0]
        part = x[chosen] if cell.rank == 2 else x[chosen][:, :, :length]
        normalized = torch.group_norm(part, cell.groups or cell.width, layer.weight, layer.bias, layer.eps)
        if cell.rank == 2:
            normalized = normalized * length  # 0 or 1
        else:
            normalized = nn.functional.pad(normalized, [0, 0] * (cell.rank - 3) + [0, cell.positions[0] - length])
        parts.append(normalized)
        order.append(chosen)
    return torch.cat(parts)[torch.cat(order).argsort()]
