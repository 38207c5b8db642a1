"""What the tests of statistics across processes run on each rank.

Every rank has the data of all, and the oracle: torch's own batch norm in float64, in this process, over the valid
values of all ranks and nothing else.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from errors import assert_message
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import truenorm.torch as tnt

SAMPLES, CHANNELS, STEPS = 6, 3, 5
LENGTHS = (4, 0, 5, 1, 3, 2)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
TOLERANCE = {torch.float32: 3e-6, torch.float64: 1e-13, torch.bfloat16: 3e-2, torch.float16: 4e-3}


def normal(*shape: int, seed: int = 0, dtype: Any = None) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype or torch.float64)


def odd_layer(dtype: Any = torch.float32, affine: bool = True, kind: Any = tnt.BatchNorm1d, **options: Any) -> Any:
    layer = kind(CHANNELS, affine=affine, eps=3e-3, momentum=0.3, **options)
    if affine:
        with torch.no_grad():
            layer.weight.copy_(torch.tensor([-1.5, 0.7, 2.0]))
            layer.bias.copy_(torch.tensor([0.3, -2.0, 0.1]))
    return layer.to(dtype)


def gathered(one: Any) -> list[Any]:
    found = [torch.empty_like(one) for _ in range(dist.get_world_size())]
    dist.all_gather(found, one.contiguous())
    return found


def assert_equal_on_all_ranks(model: Any) -> None:
    for name, one in model.named_buffers():
        assert all(torch.equal(other, one) for other in gathered(one)), f"{name} differs between ranks"


def assert_close(found: Any, expected: Any, dtype: Any, what: str) -> None:
    assert bool(found.isfinite().all()), what
    assert found.shape == expected.shape, what
    if not found.numel():
        return
    error = (found.double() - expected.double()).abs().max().item()
    assert error <= TOLERANCE[dtype] * max(1.0, expected.abs().max().item()), f"{what}: off by {error}"


def every_form_equals_one_process(rank: int, world: int, engine_name: str) -> None:
    """Masks, weights, packed rows, images and memory orders: the layer in one process is the oracle here."""
    from truenorm import engine

    engine.use("native" if engine_name == "native" else "reference")
    x, dy = normal(SAMPLES, CHANNELS, 4, 5) + 3.0, normal(SAMPLES, CHANNELS, 4, 5, seed=1)
    mask = normal(SAMPLES, 4, 5, seed=2) > 0
    whole_mask = normal(SAMPLES, CHANNELS, 4, 5, seed=3) > 0
    weight = normal(SAMPLES, 4, 5, seed=4).abs()
    weight[1] = 0.0
    forms: list[tuple[Any, dict[str, Any]]] = [
        (tnt.BatchNorm2d, {}),
        (tnt.BatchNorm2d, {"valid": mask}),
        (tnt.BatchNorm2d, {"valid": whole_mask}),
        (tnt.BatchNorm2d, {"sample_weight": weight}),
        (tnt.BatchNorm2d, {"lengths": (torch.tensor([4, 1, 0, 3, 2, 4]), torch.tensor([5, 2, 1, 0, 5, 3]))}),
        (tnt.BatchNorm2d, {"lengths": torch.tensor(LENGTHS), "along": 3}),
        (tnt.BatchNorm1d, {}),
    ]
    mine = slice(0, 1) if rank == 0 else slice(1, SAMPLES)
    for (kind, given), last, padding in itertools.product(forms, (False, True), ("zero", "keep")):
        dims = 4 if kind is tnt.BatchNorm2d else 2
        values, gradient = (one if dims == 4 else one[:, :, 0, 0] for one in (x, dy))
        if last and dims == 4:
            values = values.contiguous(memory_format=torch.channels_last)
        oracle, layer = (odd_layer(torch.float64, kind=kind, padding=padding) for _ in range(2))
        tnt.sync(layer)
        whole, part = values.clone().requires_grad_(), values[mine].clone().requires_grad_()
        y = oracle(whole, **given)
        y.backward(gradient)
        found = layer(part, **{name: _part(one, mine) for name, one in given.items()})
        found.backward(gradient[mine].transpose(0, 1).contiguous().transpose(0, 1))  # of other strides
        what = f"{kind.__name__}, {sorted(given)}, channels last {last}, {padding}, {engine_name}"
        assert_close(found.detach(), y.detach()[mine], torch.float64, f"y of {what}")
        assert_close(part.grad, whole.grad[mine], torch.float64, f"dx of {what}")
        for name, parameter in oracle.named_parameters():
            total = getattr(layer, name).grad
            dist.all_reduce(total)
            assert_close(total, parameter.grad, torch.float64, f"d{name} of {what}")
        for name, buffer in oracle.named_buffers():
            assert_close(getattr(layer, name), buffer, torch.float32, f"{name} of {what}")
    engine.use("native" if "native" in engine.available() else "reference")


def _part(given: Any, mine: slice) -> Any:
    if isinstance(given, tuple):
        return tuple(one[mine] for one in given)
    return given if isinstance(given, int) else given[mine]


# ---- training ----


class Network(nn.Module):
    """Three batch norms, two of them in parallel branches, of different widths.

    No bias before a batch norm: its gradient is 0 but for rounding, of which Adam makes whole steps.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv1d(2, 4, 3, padding=1, bias=False), tnt.BatchNorm1d(4)
        self.left, self.left_norm = nn.Conv1d(4, 3, 1, bias=False), tnt.BatchNorm1d(3)
        self.right, self.right_norm = nn.Conv1d(4, 5, 1, bias=False), tnt.BatchNorm1d(5)
        self.last = nn.Linear(8, 2)

    def forward(self, x: Any) -> Any:
        x = self.norm(self.first(x)).relu()
        left, right = self.left_norm(self.left(x)), self.right_norm(self.right(x))
        return self.last(torch.cat([left, right], 1).tanh().mean(2))


def make_network() -> Any:
    torch.manual_seed(7)
    return Network().double()


def training_equals_one_process(rank: int, world: int, optimizer: str, steps: int, forwards: int) -> None:
    """DistributedDataParallel with `sync`; `forwards` before each backward."""
    oracle, model = make_network(), make_network()
    tnt.sync(model)
    wrapped = DistributedDataParallel(model)
    make: Any = {
        "SGD": lambda of: torch.optim.SGD(of, 0.1, momentum=0.9),
        "Adam": lambda of: torch.optim.Adam(of, 1e-2),
    }
    optimizers = [make[optimizer](one.parameters()) for one in (oracle, model)]
    sizes = [rank + 2 for rank in range(world)]
    start, total = sum(sizes[:rank]), sum(sizes)
    for step in range(steps):
        for one in optimizers:
            one.zero_grad()
        losses: list[Any] = [0.0, 0.0]
        for number in range(forwards):
            x, target = normal(total, 2, 6, seed=10 * step + number), normal(total, 2, seed=10 * step + number + 5000)
            mine = slice(start, start + sizes[rank])
            losses[0] = losses[0] + ((oracle(x) - target) ** 2).sum() / total
            losses[1] = losses[1] + ((wrapped(x[mine]) - target[mine]) ** 2).sum() * world / total
        for loss, one in zip(losses, optimizers, strict=True):
            loss.backward()
            one.step()
    for (name, one), other in zip(model.state_dict().items(), oracle.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9, msg=name)
    assert_equal_on_all_ranks(model)


def checkpointing_counts_once(rank: int, world: int) -> None:
    from torch.utils.checkpoint import checkpoint

    for reentrant in (False, True):
        found = []
        for checkpointed in (False, True):
            model = make_network()
            tnt.sync(model)
            x = normal(rank + 2, 2, 6, seed=rank).requires_grad_()
            y: Any = checkpoint(model, x, use_reentrant=reentrant) if checkpointed else model(x)
            y.backward(normal(rank + 2, 2, seed=3))
            found.append([x.grad, *(one.grad for one in model.parameters()), *model.buffers()])
        for one, other in zip(*found, strict=True):
            assert torch.equal(one, other)


def wrapped_models_equal_eager(rank: int, world: int, how: str) -> None:
    """A compiled model, or one that FSDP2 has sharded, learns what the model learns under DistributedDataParallel."""
    found = []
    for wrapped in (False, True):
        model: Any = make_network()
        tnt.sync(model)
        called: Any = model
        if wrapped and how == "fully_shard":
            from torch.distributed.fsdp import fully_shard

            fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (world,)))
        else:
            compiled: Any = torch.compile(model, backend="eager") if wrapped else model
            called = DistributedDataParallel(compiled)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(2):
            optimizer.zero_grad()
            x = normal(rank + 2, 2, 6, seed=rank + 10 * step).requires_grad_()
            y = called(x)
            y.backward(normal(rank + 2, 2, seed=3))
            optimizer.step()
        parameters = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in model.parameters()]
        found.append([y.detach(), x.grad, *(one.detach() for one in parameters), *model.buffers()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


# ---- edges ----


def evaluation_exchanges_nothing(rank: int, world: int) -> None:
    model = make_network()
    tnt.sync(model)
    before = {name: one.clone() for name, one in model.named_buffers()}
    model.eval()
    untracked = tnt.BatchNorm1d(3, track_running_stats=False).eval()  # normalizes with the batch that it gets
    tnt.sync(untracked)
    if rank == 0:  # the others would never answer
        model(normal(3, 2, 6))
        untracked(normal(4, 3, dtype=torch.float32))
    tnt.freeze(model.train())
    if rank == 0:
        model(normal(3, 2, 6)).backward(normal(3, 2))
    assert all(torch.equal(one, before[name]) for name, one in model.named_buffers())


def one_value_on_all_ranks_is_refused(rank: int, world: int) -> list[Any]:
    found: list[Any] = []
    for counts, on_single in (((1, 0), "error"), ((1, 0), "running"), ((1, 1), "error"), ((0, 0), "error")):
        layer = odd_layer(torch.float64, on_single=on_single)
        tnt.sync(layer)
        x = normal(counts[rank], CHANNELS, 1)
        try:
            found.append(layer(x).detach())
        except ValueError as error:
            found.append(str(error))
        found.append(int(layer.num_batches_tracked))
    return found


def a_value_that_is_not_finite_on_one_rank(rank: int, world: int) -> tuple[int, int, Any]:
    layer = odd_layer()
    tnt.sync(layer)
    x = normal(4, CHANNELS, 2, dtype=torch.float32)
    x[0, 1] = torch.inf if rank == 1 else x[0, 1]
    layer(x)
    return layer.skipped_batches, int(layer.num_batches_tracked), layer.running_mean


def copies_and_pickles_find_their_group(rank: int, world: int) -> None:
    import copy
    import pickle

    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    layer = odd_layer(torch.float64)
    tnt.sync(layer, pairs[rank // 2])
    x = normal(world, 2, CHANNELS, 3)
    start = rank // 2 * 2
    expected = odd_layer(torch.float64)
    y = expected(x[start : start + 2].flatten(0, 1)).detach()
    for one in (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        found = one(x[rank]).detach()
        torch.testing.assert_close(found, y[2 * (rank - start) : 2 * (rank - start) + 2])
        torch.testing.assert_close(one.running_mean, expected.running_mean)
    text = "sync: process_group must be a group that this process is in, got -100. Pass the group of this rank."
    assert_message(lambda: tnt.sync(layer, pairs[1 - rank // 2]), ValueError, text)


def running_statistics_are_merged(rank: int, world: int) -> None:
    """Batches of equal size, momentum None: the ranks' statistics taken together are those of all batches."""
    counts = [3, 1, 0, 2][:world]
    layers = [odd_layer(torch.float64) for _ in range(world)]
    tables = []
    for other, layer in enumerate(layers):
        layer.momentum = None
        for number in range(counts[other]):
            layer(normal(50, CHANNELS, seed=10 * other + number) * (other + 1) + other)
        tables.append((counts[other], layer.running_mean.clone(), layer.running_var.clone()))
    total = sum(count for count, _, _ in tables)
    mean = sum(count * mean for count, mean, _ in tables) / total
    var = sum(count * (var + (one - mean) ** 2) for count, one, var in tables) / total
    frozen: Any = tnt.BatchNorm1d(2)
    frozen.num_batches_tracked.fill_(5)
    tnt.freeze(frozen)
    model: Any = nn.Sequential(layers[rank], tnt.BatchNorm1d(2, track_running_stats=False), tnt.BatchNorm1d(2), frozen)
    tnt.merge_running(model)
    assert int(frozen.num_batches_tracked) == 5
    torch.testing.assert_close(layers[rank].running_mean, mean)
    torch.testing.assert_close(layers[rank].running_var, var)
    assert int(layers[rank].num_batches_tracked) == total
    assert torch.equal(model[2].running_var, torch.ones(2))  # nobody has seen a batch
    assert_equal_on_all_ranks(model)


def running_statistics_with_a_half_life_are_merged(rank: int, world: int) -> None:
    """Each rank counts as many values as its statistics describe: at most half_life / ln 2."""
    counts = [40, 7, 0, 1000][:world]
    half_life = 20.0
    layers: list[Any] = []
    for other, count in enumerate(counts):
        layer = tnt.BatchNorm1d(CHANNELS, half_life=half_life).double()
        if count:
            layer(normal(count, CHANNELS, seed=other) * (other + 1) + other)
        layers.append(layer)
    weights = [1 - 2.0 ** (-count / half_life) for count in counts]
    total = sum(weights)
    mean = sum(weight * one.running_mean for weight, one in zip(weights, layers, strict=True)) / total
    pairs = list(zip(weights, layers, strict=True))
    var = sum(weight * (one.running_var + (one.running_mean - mean) ** 2) for weight, one in pairs) / total
    tnt.merge_running(layers[rank])
    torch.testing.assert_close(layers[rank].running_mean, mean)
    torch.testing.assert_close(layers[rank].running_var, var)
    assert layers[rank].num_values_tracked.tolist() == [float(sum(counts))] * CHANNELS
    assert int(layers[rank].num_batches_tracked) == 3
    assert_equal_on_all_ranks(layers[rank])


def torch_refuses_the_cpu_and_we_do_not(rank: int, world: int) -> str:
    x = normal(4, CHANNELS)
    whole, layer = odd_layer(torch.float64), odd_layer(torch.float64)
    tnt.sync(layer)
    torch.testing.assert_close(layer(x[2 * rank : 2 * rank + 2]), whole(x)[2 * rank : 2 * rank + 2])
    try:
        nn.SyncBatchNorm(CHANNELS).double()(x)
    except ValueError as error:
        return str(error)
    return "no error"


def branches_at_different_speeds(rank: int, world: int) -> None:
    """Backwards of two branches, each slow on another rank; collectives must keep their order."""
    import time

    oracle, model = make_network(), make_network()
    tnt.sync(model)
    slow: Any = model.left_norm if rank == 0 else model.right_norm

    def sleep(*_: Any) -> None:
        time.sleep(0.03)

    slow.register_full_backward_hook(sleep)
    slow.register_full_backward_pre_hook(sleep)
    slow.register_forward_hook(sleep)
    x, dy = normal(5, 2, 6), normal(5, 2, seed=1)
    mine = slice(0, 2) if rank == 0 else slice(2, 5)
    whole, part = x.clone().requires_grad_(), x[mine].clone().requires_grad_()
    oracle(whole).backward(dy)
    model(part).backward(dy[mine])
    torch.testing.assert_close(part.grad, whole.grad[mine])


def reestimation_equals_one_process(rank: int, world: int, as_on_a_gpu: bool = False) -> None:
    """Ranks have three, one and no batches. as_on_a_gpu: the formula computes, in float32."""
    if as_on_a_gpu:
        from truenorm import engine
        from truenorm.torch import _formula

        before, _formula.working_dtype = _formula.working_dtype, lambda x: torch.float32
        engine.use("reference")
        try:
            reestimation_equals_one_process(rank, world)
        finally:
            _formula.working_dtype = before
            engine.use("native" if "native" in engine.available() else "reference")
        return
    batches = [normal(i + 1, 2, 6, seed=i) + i for i in range(4)]
    mine = [batches[:3], batches[3:], []][rank]
    for exact in (False, True):
        oracle, model = make_network(), make_network()
        tnt.reestimate(oracle, batches, exact=exact)
        tnt.sync(model)
        wrapped = DistributedDataParallel(model)
        tnt.reestimate(wrapped, mine, exact=exact)
        for name, one in model.named_buffers():
            expected = dict(oracle.named_buffers())[name]
            torch.testing.assert_close(one, expected, rtol=1e-5, atol=1e-6, msg=name)
        assert_equal_on_all_ranks(model)
