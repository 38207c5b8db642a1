"""Ranks that disagree, and ranks that are lost: what the others say, and what has changed."""

from __future__ import annotations

import os
import threading
from typing import Any

import torch
from rank_cases import CHANNELS, normal, odd_layer
from torch import distributed as dist
from torch import nn

import truenorm.torch as tnt

WIDE = 2**21  # channels: a message of 50 MB


def ranks_at_different_layers(rank: int, world: int, what: str) -> str:
    """The error of each rank, and a check that no buffer has changed."""
    widths = (4, 7) if what == "width" and rank == 1 else (4, 6)
    model: Any = nn.ModuleDict({"first": tnt.BatchNorm1d(widths[0]), "second": tnt.BatchNorm1d(widths[1])})
    tnt.sync(model)
    first, second = normal(3, widths[0], dtype=torch.float32), normal(3, widths[1], dtype=torch.float32)
    before = {name: one.clone() for name, one in model["second"].named_buffers()}
    try:
        if what == "gradient":
            model["first"].requires_grad_(rank == 0)
            model["first"](first)
        elif what == "backward" and rank == 1:
            model["first"](first.requires_grad_()).sum().backward()
        else:
            if not (what == "skips" and rank == 1):
                model["first"](first)
            if what == "again" and rank == 1:
                model["first"](first)
            model["second"](second)
    except RuntimeError as error:
        buffers = model["second"].named_buffers()
        assert all(torch.equal(one, before[name]) for name, one in buffers), "half an update"
        return str(error)
    return "no error"


def a_step_after_a_disagreement(rank: int, world: int) -> None:
    """The ranks skip the batch at which they disagreed; the next one is as if nothing had been."""
    model: Any = nn.ModuleDict({"first": tnt.BatchNorm1d(3), "second": tnt.BatchNorm1d(3)}).double()
    tnt.sync(model)
    x = normal(4, 3)
    try:
        model["first" if rank == 0 else "second"](x)
        raise AssertionError("no error")
    except RuntimeError:
        pass
    oracle = tnt.BatchNorm1d(3).double()
    part = x[:1] if rank == 0 else x[1:]
    torch.testing.assert_close(model["first"](part), oracle(x)[:1] if rank == 0 else oracle(x)[1:])


def ranks_in_different_models(rank: int, world: int, what: str) -> str:
    """Of models of other widths, rank 1 is in another one, or exchanges something else. Then all go on."""
    widths = (3, 40, 2)
    models = [tnt.BatchNorm1d(width).double() for width in widths]
    oracles = [tnt.BatchNorm1d(width).double() for width in widths]
    for model in models:
        tnt.sync(model)

    def step(number: int) -> None:
        x, dy = normal(4, widths[number]), normal(4, widths[number], seed=1)
        mine = slice(0, 1) if rank == 0 else slice(1, 4)
        whole, part = x.clone().requires_grad_(), x[mine].clone().requires_grad_()
        oracles[number](whole).backward(dy)
        models[number](part).backward(dy[mine])
        torch.testing.assert_close(part.grad, whole.grad[mine])
        for one, other in zip(models[number].buffers(), oracles[number].buffers(), strict=True):
            torch.testing.assert_close(one, other)

    step(0)
    if what == "second call":
        step(1)
    found = "no error"
    try:
        if rank == 0:
            models[0](normal(4, 3))
        elif what == "reestimate":
            tnt.reestimate(models[0], [normal(4, 3)])
        elif what == "merge_running":
            tnt.merge_running(models[1])
        else:
            models[1](normal(4, 40))
    except RuntimeError as error:
        found = str(error)
    for number in (0, 1, 2, 1, 0):
        step(number)
    return found


def a_group_is_made_again(rank: int, world: int, store: str) -> None:
    """Messages begin small again: the ranks of a new group may have been in no group before."""
    x, oracle, layer = normal(4, CHANNELS), odd_layer(torch.float64), odd_layer(torch.float64)
    tnt.sync(layer)
    mine = slice(2 * rank, 2 * rank + 2)
    torch.testing.assert_close(layer(x[mine]), oracle(x)[mine])
    dist.destroy_process_group()
    assert torch.equal(layer.eval()(x), layer(x))
    files = torch.distributed.FileStore(store, world)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=files, rank=rank, world_size=world)
    if rank == 1:
        layer = odd_layer(torch.float64)
        tnt.sync(layer)
        layer._exchange.calls = 1  # as that of rank 0
    torch.testing.assert_close(layer.train()(x[mine]), oracle(x)[mine])


def one_rank_needs_no_gradient_of_x(rank: int, world: int) -> None:
    """pytorch's SyncBatchNorm exchanges in backward only where x needs a gradient, and waits for ever."""
    x, dy = normal(4, CHANNELS), normal(4, CHANNELS, seed=1)
    oracle, layer = odd_layer(torch.float64), odd_layer(torch.float64)
    tnt.sync(layer)
    whole = x.clone().requires_grad_()
    oracle(whole).backward(dy)
    mine = slice(2 * rank, 2 * rank + 2)
    part = x[mine].clone().requires_grad_(rank == 0)
    layer(part).backward(dy[mine])
    if rank == 0:
        torch.testing.assert_close(part.grad, whole.grad[mine])


def a_rank_is_lost(rank: int, world: int, signal_number: int, where: str) -> str:
    """Rank 1 kills or stops itself at this place; what do the others say?"""
    layer: Any = nn.ModuleDict({"norm": odd_layer(torch.float64)})
    tnt.sync(layer)
    layer = layer["norm"]
    x = normal(4, CHANNELS).requires_grad_()
    y = layer(x)
    if where == "forward":
        if rank == 1:
            os.kill(os.getpid(), signal_number)
        before = {name: one.clone() for name, one in layer.named_buffers()}
        try:
            layer(x)
        except RuntimeError as error:
            assert all(torch.equal(one, before[name]) for name, one in layer.named_buffers()), "half an update"
            return str(error)
        return "no error"
    if rank == 1:
        os.kill(os.getpid(), signal_number)
    try:
        y.backward(normal(4, CHANNELS))
    except RuntimeError as error:
        return str(error)
    return "no error"


def a_rank_is_lost_inside(rank: int, world: int, signal_number: int, where: str) -> str:
    """Rank 1 kills or stops itself while it exchanges a message that takes some time; what do the others say?"""
    layer: Any = nn.ModuleDict({"norm": tnt.BatchNorm1d(WIDE)})
    tnt.sync(layer)
    layer = layer["norm"]
    x, dy = torch.rand(2, WIDE, requires_grad=True), torch.rand(2, WIDE)
    layer(x[:, :1].expand(2, WIDE))  # what takes messages of its own, once
    y = layer(x) if where == "backward" else None
    before = {name: one.clone() for name, one in layer.named_buffers()}
    if rank == 1:
        gather = dist.all_gather

        def lost(*args: Any, **kwargs: Any) -> Any:
            threading.Timer(0.002, os.kill, (os.getpid(), signal_number)).start()
            return gather(*args, **kwargs)

        dist.all_gather = lost
    try:
        layer(x) if y is None else y.backward(dy)
    except RuntimeError as error:
        assert all(torch.equal(one, before[name]) for name, one in layer.named_buffers()), "half an update"
        return str(error)
    return "no error"
