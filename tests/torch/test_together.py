"""`together`: micro-batches that are normalized as the batch that they are parts of."""

import copy
import gc
import itertools
import pickle
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from errors import assert_message
from fingerprint import fingerprint
from torch_data import normal

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.utils.checkpoint import checkpoint  # noqa: E402

import truenorm as tn  # noqa: E402
import truenorm.torch as tnt  # noqa: E402

nn = torch.nn
SAMPLES = 5
LENGTHS = torch.tensor([6, 2, 5, 3, 4])


class Network(nn.Module):
    """Three batch norms, attention, and lengths."""

    def __init__(self, checkpointed: bool | None = None) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv1d(3, 4, 1), tnt.BatchNorm1d(4, momentum=0.3)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.second, self.third = tnt.BatchNorm1d(4, eps=3e-3), tnt.BatchNorm1d(2, momentum=None)
        self.last = nn.Linear(4, 2)
        self.reentrant = checkpointed

    def forward(self, x: Any, lengths: Any) -> Any:
        x = self.norm(self.first(x), lengths=lengths).tanh()
        if self.reentrant is not None:
            x = checkpoint(self.middle, x, lengths, use_reentrant=self.reentrant)
        else:
            x = self.middle(x, lengths)
        return self.third(x)

    def middle(self, x: Any, lengths: Any) -> Any:
        padding = torch.arange(x.shape[2]) >= lengths[:, None]
        mixed = self.attention(*[x.transpose(1, 2)] * 3, key_padding_mask=padding, need_weights=False)[0]
        x = self.second(x + mixed.transpose(1, 2), lengths=lengths)
        return self.last(x.sum(2))


def make(**options: Any) -> Any:
    torch.manual_seed(3)
    return Network(**options).double()


def splits(count: int) -> list[list[slice]]:
    """All ways to cut a batch into parts that are not empty."""
    found = []
    for cuts in itertools.product([False, True], repeat=count - 1):
        ends = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), count]
        found.append([slice(a, b) for a, b in itertools.pairwise(ends)])
    return found


X, DY = normal(SAMPLES, 3, 6, dtype=torch.float64), normal(SAMPLES, 2, seed=1, dtype=torch.float64)
call: Callable[[Any, Any], Any] = lambda model, batch: model(*batch)  # noqa: E731


def parts_of(x: Any, parts: list[slice], short: bool) -> list[Any]:
    """Micro-batches; short: each without the padding that only other ones need."""
    return [(x[one][:, :, : int(LENGTHS[one].max()) if short else 6], LENGTHS[one]) for one in parts]


def results(model: Any, run: Callable[[Any, Any], list[Any]]) -> dict[str, Any]:
    x = X.clone().requires_grad_()
    y = torch.cat(run(model, x))
    y.backward(DY)
    gradients = {f"d{name}": one.grad for name, one in model.named_parameters()}
    return {"y": y.detach(), "dx": x.grad, **gradients, **dict(model.named_buffers())}


def assert_same(found: dict[str, Any], expected: dict[str, Any], what: str) -> None:
    assert found.keys() == expected.keys()
    for name, one in expected.items():
        assert bool(one.isfinite().all())
        tolerance = 1e-6 if one.dtype == torch.float32 else 1e-11
        torch.testing.assert_close(found[name], one, rtol=tolerance, atol=tolerance, msg=f"{name} of {what}")


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_46_every_split_equals_the_whole_batch(step: int) -> None:
    """Micro-batches are padded alike, or of different shapes, in turn. step: of how many splits one is taken."""
    expected = results(make(), lambda model, x: [model(x, LENGTHS)])
    for number, parts in enumerate(splits(SAMPLES)[::step]):

        def run(model: Any, x: Any, parts: Any = parts, short: bool = number % 2 == 0) -> Any:
            return tnt.together(model, parts_of(x, parts, short), call)

        assert_same(results(make(), run), expected, str(parts))


def test_46_microbatches_without_it_are_not_the_whole_batch() -> None:
    whole, parts = make(), [slice(0, 2), slice(2, 5)]
    expected = whole(X, LENGTHS)
    found = torch.cat([call(make(), one) for one in parts_of(X, parts, True)])
    assert (found - expected).abs().max() > 0.1


def test_50_a_checkpoint_finds_the_statistics_of_the_whole() -> None:
    expected = results(make(), lambda model, x: [model(x, LENGTHS)])
    parts = [slice(0, 2), slice(2, 3), slice(3, 5)]
    found = results(make(checkpointed=False), lambda model, x: tnt.together(model, parts_of(x, parts, True), call))
    assert_same(found, expected, "checkpoint")


def test_save_on_cpu_inside_of_forward() -> None:
    expected = results(make(), lambda model, x: [model(x, LENGTHS)])

    def forward(model: Any, batch: Any) -> Any:
        with torch.autograd.graph.save_on_cpu():
            return model(*batch)

    parts = [slice(0, 2), slice(2, 5)]
    assert_same(results(make(), lambda model, x: tnt.together(model, parts_of(x, parts, True), forward)), expected, "")


def test_a_second_backward_gives_the_same_bits() -> None:
    x = X.clone().requires_grad_()
    y = torch.cat(tnt.together(make(), parts_of(x, [slice(0, 2), slice(2, 5)], True), call))
    one, two = (torch.autograd.grad(y, x, DY, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(one, two)


def test_one_microbatch_needs_no_gradient() -> None:
    layer, whole = tnt.BatchNorm1d(3), tnt.BatchNorm1d(3)
    x, dy = normal(4, 3), normal(4, 3, seed=1)
    expected = x.clone().requires_grad_()
    whole(expected).backward(dy)
    first = x[:2].clone().requires_grad_()
    torch.cat(tnt.together(layer, [first, x[2:]])).backward(dy)
    torch.testing.assert_close(first.grad, expected.grad[:2])
    torch.testing.assert_close(layer.weight.grad, whole.weight.grad)


@pytest.mark.parametrize("engine", ["native", "reference"])
def test_a_loss_on_one_output_alone(engine: Any) -> None:
    """The other micro-batch is in the statistics, so it has a gradient too."""
    x, dy = normal(4, 3, dtype=torch.float64), normal(2, 3, seed=1, dtype=torch.float64)
    whole, expected = tnt.BatchNorm1d(3).double(), x.clone().requires_grad_()
    whole(expected)[:2].backward(dy)
    tn.engine.use(engine)
    try:
        layer, parts = tnt.BatchNorm1d(3).double(), [x[:2].clone().requires_grad_(), x[2:].clone().requires_grad_()]
        outputs = tnt.together(layer, parts)
        # A gradient of the parameters alone must leave nothing behind for the next pass.
        torch.autograd.grad(outputs[1].square().sum(), layer.weight, retain_graph=True)
        outputs[0].backward(dy)
    finally:
        tn.engine.use("native" if "native" in tn.engine.available() else "reference")
    torch.testing.assert_close(torch.cat([one.grad for one in parts]), expected.grad)
    torch.testing.assert_close(layer.weight.grad, whole.weight.grad)
    assert float(parts[1].grad.abs().max()) > 1e-3


def test_x_is_saved_once() -> None:
    saved: list[int] = []

    def pack(one: Any) -> Any:
        saved.append(one.numel())
        return one

    def forward(model: Any, x: Any) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one):
            return model(x)

    tnt.together(tnt.BatchNorm1d(3), [normal(5, 3).requires_grad_(), normal(7, 3)], forward)
    assert sorted(saved) == [3, 3, 15, 21]


def test_forms_of_microbatches() -> None:
    layer, x = tnt.BatchNorm1d(3), normal(4, 3)
    expected = tnt.BatchNorm1d(3)(x)
    for batches in ([x[:2], x[2:]], [(x[:2], 1), [x[2:]]], [{"input": x[:2]}, {"input": x[2:]}]):
        torch.testing.assert_close(torch.cat(tnt.together(layer, batches)), expected)
    sequences = [nn.utils.rnn.pack_sequence([one]) for one in (x[:2], x[2:])]  # tuples, for Python
    found = tnt.together(layer, sequences)
    assert all(isinstance(one, nn.utils.rnn.PackedSequence) for one in found)
    torch.testing.assert_close(torch.cat([one.data for one in found]), expected)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_threads_have_the_modes_of_the_caller(mode: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 4), tnt.BatchNorm1d(4))
    with mode():
        expected = copy.deepcopy(model)(normal(4, 3))
        found = torch.cat(tnt.together(model, [normal(4, 3)[:1], normal(4, 3)[1:]]))
    assert (found.dtype, found.requires_grad) == (expected.dtype, expected.requires_grad)
    assert found.is_inference() == expected.is_inference()
    torch.testing.assert_close(found, expected)


def test_random_numbers_are_drawn_in_the_same_order_each_time() -> None:
    model = nn.Sequential(nn.Dropout(), tnt.BatchNorm1d(4), nn.Dropout())
    found = []
    for _ in range(3):
        torch.manual_seed(5)
        found.append(torch.cat(tnt.together(copy.deepcopy(model), list(normal(6, 4).split(2)))))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


# ---- what goes wrong ----


class Odd(nn.Module):
    """Runs its layers in an order that depends on the input."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = tnt.BatchNorm1d(3), tnt.BatchNorm1d(3)

    def forward(self, x: Any) -> Any:
        kind = int(x[0, 0])
        if kind == 9:
            raise KeyError("a mistake")
        order = {0: (self.one, self.two), 1: (self.two, self.one), 2: (self.one,)}[kind]
        for layer in order:
            x = layer(x)
        return x


def batches_of(*kinds: int) -> list[Any]:
    return [torch.full((2, 3), float(kind)) + torch.rand(2, 3) / 2 for kind in kinds]


SAME = "together: all micro-batches must run the same layers in the same order, but one came to"


@pytest.mark.parametrize(
    ("kinds", "kind", "text"),
    [
        ((0, 1, 0), RuntimeError, f"{SAME} 'two' when another was at 'one'."),
        ((0, 0, 2), RuntimeError, f"{SAME} 'two' when another had ended."),
        ((2, 0, 0), RuntimeError, f"{SAME} 'two' when another had ended."),
        ((0, 9, 0), KeyError, "'a mistake'"),
        ((0, 0, 9), KeyError, "'a mistake'"),
    ],
)
def test_one_error_ends_all(kinds: tuple[int, ...], kind: Any, text: str) -> None:
    model = Odd()
    assert_message(lambda: tnt.together(model, batches_of(*kinds)), kind, text)
    torch.testing.assert_close(
        torch.cat(tnt.together(Odd(), batches_of(0, 0))).mean(), torch.tensor(0.0), atol=1e-6, rtol=0
    )


def test_a_reentrant_checkpoint_is_refused() -> None:
    model = make(checkpointed=True)
    parts = parts_of(X.clone().requires_grad_(), [slice(0, 2), slice(2, 5)], True)
    text = "together: 'second' is in a checkpoint with use_reentrant=True. Use use_reentrant=False."
    assert_message(lambda: tnt.together(model, parts, call), RuntimeError, text)


def test_other_mistakes() -> None:
    layer = tnt.BatchNorm1d(3)
    assert_message(lambda: tnt.together(layer, []), ValueError, "together: at least one micro-batch, got none.")
    tnt.sync(layer)
    text = "together: layers of truenorm, got torch.nn.BatchNorm1d at ''. Call convert(model) first."
    assert_message(lambda: tnt.together(nn.BatchNorm1d(3), [normal(4, 3)]), ValueError, text)
    text = "together: layers that are not synchronized, got ''. Call unsync(model) first."
    assert_message(lambda: tnt.together(layer, [normal(4, 3)]), ValueError, text)


def checkpointed_step(model: Any, x: Any) -> list[Any]:
    x = x.clone().requires_grad_()
    checkpoint(model, x, use_reentrant=False).square().sum().backward()
    return [x.grad, *model.buffers()]


@pytest.mark.parametrize("before", ["no_grad", "checkpoint", "checkpoint without a backward"])
def test_a_plain_checkpointed_step_afterwards(before: str) -> None:
    """As the short last group of an accumulation. What `together` ran may still be recomputed after it."""
    model, plain = (nn.Sequential(tnt.BatchNorm1d(3), nn.Tanh(), tnt.BatchNorm1d(3)) for _ in range(2))
    parts = [normal(4, 3, seed=i).requires_grad_() for i in range(2)]
    outputs = []
    for one in (model, plain):
        with torch.set_grad_enabled(before != "no_grad"):
            forward = (lambda of, x: checkpoint(of, x, use_reentrant=False)) if one is model else None
            outputs.append(torch.cat(tnt.together(one, parts, forward)))
    if before == "checkpoint":
        outputs[0].sum().backward()
    torch.testing.assert_close(checkpointed_step(model, normal(5, 3) * 3), checkpointed_step(plain, normal(5, 3) * 3))
    if before == "checkpoint without a backward":
        found, expected = (torch.autograd.grad(one.square().sum(), parts) for one in outputs)
        torch.testing.assert_close(found, expected)


def test_a_layer_that_is_called_twice_in_a_checkpoint_of_every_microbatch() -> None:
    class Twice(nn.Module):
        def __init__(self, checkpointed: bool) -> None:
            super().__init__()
            self.norm, self.checkpointed = tnt.BatchNorm1d(3), checkpointed

        def both(self, x: Any) -> Any:
            return self.norm(self.norm(x).exp())

        def forward(self, x: Any) -> Any:
            x = checkpoint(self.both, x, use_reentrant=False) if self.checkpointed else self.both(x)
            return checkpoint(self.both, x.sin(), use_reentrant=False) if self.checkpointed else self.both(x.sin())

    found = []
    for checkpointed in (False, True):
        model, parts = Twice(checkpointed).double(), [normal(i + 2, 3, seed=i, dtype=torch.float64) for i in range(3)]
        leaves = [part.requires_grad_() for part in parts]
        y = torch.cat(tnt.together(model, leaves)).pow(3).sum()
        for _ in range(2):  # again, with retain_graph
            found.append([*torch.autograd.grad(y, [*leaves, model.norm.weight], retain_graph=True), *model.buffers()])
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])


@pytest.mark.parametrize("preserve", [True, False])
def test_dropout_behind_a_batch_norm_in_a_checkpoint(preserve: bool) -> None:
    """While one micro-batch waits at the batch norm, others draw random numbers: recomputed, dropout is the same."""
    norm, states = tnt.BatchNorm1d(3), []

    def forward(model: Any, x: Any) -> Any:
        y: Any = checkpoint(model, x, use_reentrant=False, preserve_rng_state=preserve)
        states.append(torch.get_rng_state())
        return y

    parts = [normal(4, 3).requires_grad_(), normal(9, 3, seed=1).requires_grad_()]
    y = torch.cat(tnt.together(nn.Sequential(nn.Dropout(0.1), norm, nn.Dropout()), parts, forward))
    dy = normal(13, 3, seed=2)
    y.backward(dy)
    if preserve:
        torch.testing.assert_close(norm.bias.grad, (2.0 * dy * (y != 0)).sum(0))
    # What backward leaves to the next step was drawn before only if checkpoints restore the state.
    assert any(torch.equal(torch.get_rng_state(), one) for one in states) == preserve


def test_nested_checkpoints_are_refused() -> None:
    layer = tnt.BatchNorm1d(3)

    def forward(model: Any, x: Any) -> Any:
        inner: Any = lambda x: checkpoint(model, x, use_reentrant=False)  # noqa: E731
        return checkpoint(inner, x, use_reentrant=False)

    text = "together: '' is in a checkpoint inside another one. Use one of them, not both."
    assert_message(lambda: tnt.together(layer, [normal(4, 3).requires_grad_()], forward), RuntimeError, text)


def test_the_model_is_as_before() -> None:
    gc.collect()  # what other tests may still recompute
    model = Odd()
    model.eval()
    before = fingerprint(model)
    tnt.together(model, batches_of(0, 1))  # in evaluation they need not meet
    assert fingerprint(model) == before
    with torch.no_grad():
        tnt.together(model.train(), batches_of(0, 0))
    assert [vars(layer).get("_exchange") for layer in (model.one, model.two)] == [None, None]
    forward: Any = lambda model, x: checkpoint(model, x.requires_grad_(), use_reentrant=False)  # noqa: E731
    y = tnt.together(model, batches_of(0, 0), forward)
    assert model.one._exchange is not None  # for the recomputation
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        x = batches_of(0)[0]
        torch.testing.assert_close(copied(x), copy.deepcopy(model)(x))
    torch.cat(y).sum().backward()
    tnt.together(model, batches_of(0, 0))
    assert [vars(layer).get("_exchange") for layer in (model.one, model.two)] == [None, None]


# ---- threads that have to end ----


def test_an_interrupt_ends_all_threads() -> None:
    model, count = nn.Sequential(tnt.BatchNorm1d(3), tnt.BatchNorm1d(3)), threading.active_count()

    def forward(model: Any, x: Any) -> Any:
        x = model[0](x)
        if len(x) == 2:  # the second micro-batch
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            time.sleep(0.3)  # the main thread has it now
        return model[1](x)

    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored in the background of a shell
    try:
        with pytest.raises(KeyboardInterrupt):
            tnt.together(model, [normal(3, 3), normal(2, 3), normal(4, 3)], forward)
    finally:
        signal.signal(signal.SIGINT, inherited)
    assert threading.active_count() == count
    assert [int(layer.num_batches_tracked) for layer in model] == [1, 0]
    assert [vars(layer).get("_exchange") for layer in model] == [None, None]


def test_a_thread_that_cannot_be_started_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    start, count = threading.Thread.start, threading.active_count()
    started: list[Any] = []

    def fail_at_second(thread: Any) -> None:
        started.append(thread)
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail_at_second)
    text = "can't start new thread"
    assert_message(lambda: tnt.together(tnt.BatchNorm1d(3), [normal(3, 3)] * 3), RuntimeError, text)
    assert threading.active_count() == count


class Catching(Odd):
    def forward(self, x: Any) -> Any:
        for _ in range(2):
            try:
                x = super().forward(x)
            except Exception:
                if x[0, 0] > 8:
                    raise
        return x


@pytest.mark.parametrize(
    ("kinds", "kind", "text"),
    [
        ((0, 9, 0), KeyError, "'a mistake'"),
        ((0, 1, 0), RuntimeError, f"{SAME} 'two' when another was at 'one'."),
    ],
)
def test_a_model_that_catches_exceptions_does_not_hang(kinds: tuple[int, ...], kind: Any, text: str) -> None:
    assert_message(lambda: tnt.together(Catching(), batches_of(*kinds)), kind, text)
