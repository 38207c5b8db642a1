"""The exchange of moments between processes, with torch.distributed: one collective forward, one backward.

Every message in a group has the same size, that of the widest layer of its models, and begins with what the sender is
doing: forward or backward, which model and layer, which of its calls. So ranks that are at different places always find
out, all of them. On the CPU they say who is where; elsewhere that would wait for the device, so their statistics and
sums become NaN, and running statistics stay as they were. A backend that is given messages of different sizes hangs,
mixes them up, or ends the process: what has another size is announced by a message of this one. That the ranks have the
same layers is checked once for each model, before its first message; then messages may grow, on all ranks at once.

All ranks merge the same tables in the order of ranks, so they get the same bits. Messages are float64: counts up to
2^53 are exact, and the dtype of x does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import Tensor
from torch import distributed as dist
from torch.autograd.function import once_differentiable

from truenorm.torch import _compat
from truenorm.torch._formula import merge_tables, wire_dtype
from truenorm.torch._inputs import values_are_readable
from truenorm.torch._pooled import Exchange

# What a message begins with: a Kind, the model, the layer, its call, whether counts are weights, and whether there will
# be a backward. The first four are a place.
HEADER, PLACE, WEIGHTED, DIFFERENTIABLE = 6, 4, 4, 5
Layers = list[tuple[str, int]]  # name and channels


class Kind(IntEnum):
    """What a rank is doing."""

    FORWARD = 1
    BACKWARD = 2
    FIRST_CALL = 3
    ORDER = 4
    REESTIMATE = 5
    MERGE = 6


ANNOUNCED = {
    Kind.FIRST_CALL: "the first call of a model",
    Kind.ORDER: "reestimate",
    Kind.REESTIMATE: "reestimate",
    Kind.MERGE: "merge_running",
}


@dataclass(eq=False)
class Agreement:
    """What all ranks of a group know alike: the models that have exchanged messages, numbered in this order."""

    width: int = 0  # the channels of a message
    count: int = 0
    models: WeakValueDictionary[int, Processes] = field(default_factory=WeakValueDictionary)

    def add(self, model: Processes) -> int:
        """The number of the model."""
        self.count += 1
        self.models[self.count] = model
        self.width = max(self.width, *(width for _, width in model.layers))
        return self.count


_agreements: WeakKeyDictionary[Any, Agreement] = WeakKeyDictionary()  # by the group


@dataclass(eq=False)
class Processes:
    """The processes of a group, and the layers of one model whose moments they exchange.

    Copies and pickles know the name of the group, and find it again when they are first used.
    """

    layers: Layers
    group_name: str | None = None  # None: all processes
    _group: Any = field(default=None, repr=False)
    _agreement: Agreement | None = field(default=None, repr=False)  # since all ranks have these layers
    _number: int = 0  # of this model in it

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_group": None, "_agreement": None, "_number": 0}

    @property
    def group(self) -> Any:
        if self._group is None and self.group_name is not None:
            self._group = _compat.process_group(self.group_name)
        return self._group

    def size(self) -> int:
        """How many processes there are; 1 if torch.distributed is not in use."""
        return dist.get_world_size(self.group) if dist.is_available() and dist.is_initialized() else 1

    def agreement(self) -> Agreement:
        """Of the group as it is now: a group that was destroyed and made again has another one."""
        group = dist.group.WORLD if self.group is None else self.group
        if (found := _agreements.get(group)) is None:
            found = _agreements[group] = Agreement()
        return found

    def check_layers(self, name: str, like: Tensor) -> None:
        """That all ranks have the same layers: once, as it takes a few messages. like: a tensor where messages are."""
        agreement = self.agreement()
        if self._agreement is agreement:
            return
        self._number = 0
        found = self.gather_objects(Kind.FIRST_CALL, name, self.layers, like)
        for rank, layers in enumerate(found):
            if layers != found[0]:
                raise RuntimeError(
                    f"sync: all ranks must have the same layers, got {_difference(found[0], layers, rank)}. "
                    "Build the same model on all ranks before sync(model)."
                )
        self._agreement, self._number = agreement, agreement.add(self)

    def gather(
        self, kind: Kind, layer: int, number: int, flags: tuple[bool, bool], values: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The values of all ranks (ranks, channels, columns), and their headers (ranks, HEADER)."""
        message = self._message((kind, self._number, layer, number, *flags), values)
        message[HEADER : HEADER + values.numel()] = values.reshape(-1)
        found = self._gather_all(self.layers[layer][0], message)
        headers = found[:, :HEADER]
        if values_are_readable(found):  # elsewhere this would wait for the device: see `nan_if_different`
            self._check_headers(headers.int().tolist())
        return found[:, HEADER : HEADER + values.numel()].reshape(-1, *values.shape), headers

    def gather_objects(self, kind: Kind, name: str, value: Any, like: Tensor) -> list[Any]:
        """The values of all ranks, of any type and size: three collectives."""
        self._announce(kind, name, like)
        found: list[Any] = [None] * self.size()
        with self._naming(name):
            dist.all_gather_object(found, value, group=self.group)
        return found

    def gather_tables(self, kind: Kind, name: str, table: Tensor) -> Tensor:
        """The tables of all ranks, of any but the same size: two collectives."""
        self._announce(kind, name, table)
        return self._gather_all(name, table)

    def _message(self, header: tuple[int, ...], like: Tensor) -> Tensor:
        message = like.new_zeros(HEADER + 3 * self.agreement().width, dtype=wire_dtype(like))
        message[:HEADER] = torch.tensor(header, dtype=message.dtype).to(message.device, non_blocking=True)
        return message

    def _announce(self, kind: Kind, name: str, like: Tensor) -> None:
        message = self._message((kind, self._number, 0, 0, 0, 0), like)
        self._check_headers(self._gather_all(name, message)[:, :HEADER].int().tolist())

    def _gather_all(self, name: str, message: Tensor) -> Tensor:
        """The messages of all ranks, in their order."""
        gathered = [torch.empty_like(message) for _ in range(self.size())]
        with self._naming(name):
            dist.all_gather(gathered, message, group=self.group)
        return torch.stack(gathered)

    def _check_headers(self, headers: list[list[int]]) -> None:
        if any(header[:PLACE] != headers[0][:PLACE] for header in headers):
            several = len({header[1] for header in headers}) > 1
            where = ", ".join(
                f"rank {rank} is in {self._place(header, several)}" for rank, header in enumerate(headers)
            )
            raise RuntimeError(
                f"sync: all ranks must run the same layers in the same order, but {where}. "
                "Run the same model on all ranks, with an empty batch where there is no data."
            )
        if any(header[DIFFERENTIABLE] != headers[0][DIFFERENTIABLE] for header in headers):
            without = ", ".join(f"rank {rank}" for rank, header in enumerate(headers) if not header[DIFFERENTIABLE])
            raise RuntimeError(
                f"sync: all ranks must run a backward, or none, but in {self._place(headers[0])} neither x nor weight "
                f"nor bias requires a gradient on {without}. Set requires_grad alike on all ranks."
            )

    def _place(self, header: list[int], several: bool = False) -> str:
        """several: whether ranks are in different models."""
        kind, model, layer, number = header[:PLACE]
        if kind in ANNOUNCED:
            return ANNOUNCED[Kind(kind)]
        found = self.agreement().models.get(model)
        layers = [] if found is None else found.layers
        name = layers[layer][0] if 0 <= layer < len(layers) else "unknown"
        which = f" of model {model}" if several else ""
        return f"call {number} of {name!r}{which}" + (" (backward)" if kind == Kind.BACKWARD else "")

    @contextmanager
    def _naming(self, name: str) -> Iterator[None]:
        """Errors of torch.distributed get the layer and the rank."""
        try:
            yield
        except RuntimeError as error:
            rank = f"rank {dist.get_rank(self.group)} of {self.size()}"
            raise RuntimeError(
                f"sync: {rank} could not exchange the statistics of {name!r}. "
                f"Another rank has ended, or did not come to this layer in time. {error}"
            ) from error


@dataclass(eq=False)
class ProcessExchange(Exchange):
    """The exchange of one layer."""

    processes: Processes
    layer: int  # which of `processes.layers`
    calls: int = 0

    def is_active(self) -> bool:
        return self.processes.size() > 1

    def pool(self, table: Tensor, weighted: bool, differentiable: bool) -> tuple[Tensor, bool]:
        self.processes.check_layers(self.processes.layers[self.layer][0], table)
        # A rank whose x needs no gradient takes part in the backward too: the others wait for its sums.
        anchor = torch.empty(0, requires_grad=differentiable)
        pooled, headers = pool_processes(table, anchor, self, (weighted, differentiable))
        self.calls += 1  # not if the ranks disagreed: they can skip this batch, and go on
        return pooled, not values_are_readable(headers) or bool(headers[:, WEIGHTED].any())


class PoolProcesses(torch.autograd.Function):
    """Forward: the table of all ranks. Backward: the sums of all ranks."""

    @staticmethod
    def forward(
        ctx: Any, table: Tensor, anchor: Tensor, exchange: ProcessExchange, flags: tuple[bool, bool]
    ) -> tuple[Tensor, Tensor]:
        ctx.exchange, ctx.number, ctx.flags = exchange, exchange.calls + 1, flags
        wide = table.to(wire_dtype(table))
        tables, headers = exchange.processes.gather(Kind.FORWARD, exchange.layer, ctx.number, flags, wide)
        ctx.mark_non_differentiable(headers)
        merged = merge_tables(tables)
        count, others = merged[:, :1], merged[:, 1:]
        # A count of NaN would be one of nothing, and y the bias.
        return torch.cat([nan_if_different(headers, count, 2.0), nan_if_different(headers, others)], 1), headers

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, sums: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        exchange = ctx.exchange
        sums = sums.contiguous()
        found, headers = exchange.processes.gather(Kind.BACKWARD, exchange.layer, ctx.number, ctx.flags, sums)
        return nan_if_different(headers, found.sum(0)), None, None, None


pool_processes: Any = PoolProcesses.apply


def nan_if_different(headers: Tensor, values: Tensor, other: float = torch.nan) -> Tensor:
    """The values, or NaN if the ranks are at different places; what can be read was compared, and has raised."""
    if values_are_readable(headers):
        return values
    equal = headers == headers[:1]
    same = equal[:, :PLACE].all() & equal[:, DIFFERENTIABLE].all()  # weights may be given on some ranks only
    return torch.where(same, values, other)


def _difference(first: Layers, other: Layers, rank: int) -> str:
    for i in range(max(len(first), len(other))):
        pair = [
            f"{layers[i][0]!r} of {layers[i][1]} channels" if i < len(layers) else "no more"
            for layers in (first, other)
        ]
        if pair[0] != pair[1]:
            return f"{pair[0]} on rank 0 and {pair[1]} on rank {rank}"
    raise AssertionError("called with equal layers")
