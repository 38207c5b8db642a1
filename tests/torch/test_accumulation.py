"""`accumulate`: one update of the running statistics for several forwards, as for one batch."""

import itertools
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
X, LENGTHS = normal(6, 3, 5, dtype=torch.float64) + 2.0, torch.tensor([5, 2, 0, 3, 1, 4])


def make(**options: Any) -> Any:
    layer = tnt.BatchNorm1d(3, **{"momentum": 0.3, **options}).double()
    layer.running_mean.fill_(0.5)
    return layer


def assert_same_buffers(found: Any, expected: Any, what: str = "") -> None:
    for name, one in expected.named_buffers():
        torch.testing.assert_close(dict(found.named_buffers())[name], one, msg=f"{name} {what}")


@pytest.mark.parametrize("momentum", [0.3, None])
def test_46_every_split_updates_as_the_whole_batch(momentum: float | None) -> None:
    expected = make(momentum=momentum)
    for _ in range(2):
        expected(X, lengths=LENGTHS)
    for cuts in itertools.product([False, True], repeat=5):
        ends = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), 6]
        layer = make(momentum=momentum, on_single="running")
        for _ in range(2):
            with tnt.accumulate(layer):
                for a, b in itertools.pairwise(ends):
                    layer(X[a:b], lengths=LENGTHS[a:b])
        assert_same_buffers(layer, expected, str(ends))


def test_forwards_are_normalized_with_their_own_statistics() -> None:
    plain, layer = make(), make()
    x = X.clone().requires_grad_()
    with tnt.accumulate(layer):
        y = layer(x)
    other = X.clone().requires_grad_()
    torch.testing.assert_close(y, plain(other), rtol=0, atol=0)
    dy = normal(6, 3, 5, seed=1, dtype=torch.float64)
    y.backward(dy)
    plain(other).backward(dy)
    torch.testing.assert_close(x.grad, other.grad)


def test_who_computes_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    layer, found = make(), []
    engine: Any
    for engine in (["native"] if "native" in tn.engine.available() else []) + ["reference"]:
        tn.engine.use(engine)
        try:
            with caplog.at_level("DEBUG", "truenorm.torch"), tnt.accumulate(layer):
                layer(X)
        finally:
            tn.engine.use("native" if "native" in tn.engine.available() else "reference")
        found.append(caplog.messages[-1])
    assert found[-1] == "operations: the reference engine is chosen"
    assert found[:-1] in ([], ["kernel: (6, 3, 5), a part of a batch"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_memory_can_be_freed_as_fsdp_does_it(dtype: Any) -> None:
    layer, x = make().to(dtype), X.to(dtype, copy=True).requires_grad_()
    with tnt.accumulate(layer):
        y = layer(x)
    dy = torch.randn_like(y)
    y.backward(dy)
    for one in (x, y, dy, x.grad, layer.weight, layer.weight.grad, layer.bias):
        assert one.untyped_storage().resizable()


@pytest.mark.parametrize("reentrant", [False, True])
def test_50_a_checkpointed_forward_counts_once(reentrant: bool) -> None:
    expected, layer = make(), make()
    expected(X)
    with tnt.accumulate(layer):
        for part in X.split(2):
            y: Any = checkpoint(layer, part.clone().requires_grad_(), use_reentrant=reentrant)
            y.backward(torch.randn_like(y))
    assert_same_buffers(layer, expected)


def test_an_exception_discards() -> None:
    model = nn.Sequential(make(), make())
    before = fingerprint(model)

    def fail() -> None:
        with tnt.accumulate(model):
            model(X)
            raise KeyError("a mistake")

    assert_message(fail, KeyError, "'a mistake'")
    assert fingerprint(model) == before


def test_22_a_batch_that_is_not_finite_is_counted_and_left_out() -> None:
    layer = make()
    with tnt.accumulate(layer):
        layer(X)
        layer(X * torch.inf)
    assert (layer.skipped_batches, int(layer.num_batches_tracked)) == (1, 0)
    assert float(layer.running_mean[0]) == 0.5


class Skipping:
    """What a gradient scaler does with a step whose gradients are not finite: nothing."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def step(self, skip: bool) -> None:
        if not skip:
            self.optimizer.step()


@pytest.mark.parametrize("zero_first", [True, False], ids=["zero_grad before forward", "zero_grad before backward"])
def test_a_skipped_step_is_discarded(zero_first: bool) -> None:
    batches = [X + i for i in range(4)]
    expected, layer = make(), make()
    for i in (0, 2, 3):
        expected(batches[i])
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.0)
    scaler = Skipping(optimizer)
    with tnt.accumulate(layer, optimizer=optimizer):
        for i, batch in enumerate(batches):
            parts = batch.split([2, 4])
            for number, part in enumerate(parts):
                if zero_first and number == 0:
                    optimizer.zero_grad()
                y = layer(part)
                if not zero_first and number == 0:
                    optimizer.zero_grad()
                y.backward(torch.randn_like(y))
            scaler.step(skip=i == 1)
    assert_same_buffers(layer, expected)


def test_a_real_gradient_scaler_skips_and_nothing_counts() -> None:
    expected, layer = tnt.BatchNorm1d(3), tnt.BatchNorm1d(3)
    optimizer, scaler = torch.optim.SGD(layer.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    with tnt.accumulate(layer, optimizer=optimizer):
        for number, scale in enumerate((1.0, torch.inf, 1.0)):
            x = X.float() + number
            optimizer.zero_grad()
            scaler.scale(layer(x).square().mean() * scale).backward()
            scaler.step(optimizer)
            scaler.update()
            if scale == 1.0:
                expected(x)
    assert_same_buffers(layer, expected)


def test_with_an_optimizer_each_step_counts_and_the_rest_does_not() -> None:
    expected, layer = make(), make()
    expected(X)
    expected(X + 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.0)
    with tnt.accumulate(layer, optimizer=optimizer):
        for batch in (X, X + 1):
            for part in batch.split(3):
                y = layer(part)
                y.backward(torch.randn_like(y))
            optimizer.step()
        layer(X + 9)
    assert_same_buffers(layer, expected)
    layer(X)  # the context is over
    optimizer.step()
    assert int(layer.num_batches_tracked) == 3


class Branches(nn.Module):
    """Two layers, of which a micro-batch reaches one or both."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = make(), make()

    def forward(self, x: Any, both: bool) -> Any:
        y = self.one(x)
        return y + self.two(x) if both else y


@pytest.mark.parametrize("skipped", [False, True])
def test_a_layer_that_the_first_microbatch_does_not_reach(skipped: bool) -> None:
    """Its gradient is None in the second backward, although no step was skipped; or one was."""
    expected, model = Branches(), Branches()
    expected.two(X[3:])
    expected.one(X[3:] if skipped else X)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with tnt.accumulate(model, optimizer=optimizer):
        model(X[:3], False).square().sum().backward()
        if skipped:
            optimizer.zero_grad()
        model(X[3:], True).square().sum().backward()
        optimizer.step()
    assert_same_buffers(model, expected)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_skipped_step_of_a_checkpointed_layer_without_parameters(reentrant: bool) -> None:
    model = nn.Sequential(make(affine=False), nn.Linear(5, 5).double())
    expected = make(affine=False)
    expected(X + 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with tnt.accumulate(model, optimizer=optimizer):
        for batch in (X, X + 1):
            optimizer.zero_grad()
            y: Any = checkpoint(model, batch.clone().requires_grad_(), use_reentrant=reentrant)
            y.square().sum().backward()
        optimizer.step()
    assert_same_buffers(model[0], expected)


def test_parameters_without_gradients_between_backwards() -> None:
    """As sharded parameters: autograd accumulates elsewhere, so gradients that are None say nothing."""
    expected, layer, elsewhere = make(), make(), nn.Parameter(torch.zeros(3))
    expected(X)
    optimizer = torch.optim.SGD([elsewhere], lr=0.0)
    with tnt.accumulate(layer, optimizer=optimizer):
        for part in X.split(2):
            layer(part).square().sum().backward()
            layer.zero_grad()  # what it has gathered is elsewhere
        optimizer.step()
    assert_same_buffers(layer, expected)


def test_together_and_sync_inside() -> None:
    expected, layer = make(), make()
    expected(X)
    expected(X + 1)
    tnt.sync(layer)
    for batch in (X, X + 1):
        with tnt.accumulate(layer):
            assert len(tnt.unsync(layer).changed) == 1
            tnt.together(layer, list(batch.split(2)))
            tnt.sync(layer)
        assert layer._exchange is not None  # as `sync` left it
    assert_same_buffers(layer, expected)
    with tnt.accumulate(layer):
        tnt.unsync(layer)
    assert layer._exchange is None


def test_the_layers_are_as_before() -> None:
    model = nn.Sequential(tnt.BatchNorm1d(3), tnt.BatchNorm1d(3, track_running_stats=False), nn.ReLU())
    tnt.sync(model)
    before = fingerprint(model)
    with tnt.accumulate(model) as context:
        text = "accumulate: one context at a time, got one that is entered already. Make a new one."
        assert_message(context.__enter__, RuntimeError, text)
    assert fingerprint(model) == before
    text = "accumulate: layers of truenorm, got torch.nn.BatchNorm1d at ''. Call convert(model) first."
    assert_message(lambda: tnt.accumulate(nn.BatchNorm1d(3)), ValueError, text)
    wrong: Any = [model]
    assert_message(lambda: tnt.accumulate(wrong), TypeError, "accumulate: model must be a torch.nn.Module, got list.")


@pytest.mark.slow
def test_a_whole_graph_is_refused_with_the_reason() -> None:
    layer = tnt.BatchNorm1d(3)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    text = "accumulate, reestimate, together, sync: their layers break graphs. Compile with fullgraph=False."
    with tnt.accumulate(layer), pytest.raises(torch._dynamo.exc.Unsupported, match=text):
        compiled(X.float())
