"""What contexts leave behind: copies made inside, contexts that do not nest, other threads and tasks, failures.

A model whose statistics silently stay as they are, or that is normalized with those of somebody else, is the worst of
all: everything here either works or is refused.
"""

import asyncio
import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
from errors import assert_message
from torch_data import normal

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import func  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.nn.utils import parametrize  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import truenorm.torch as tnt  # noqa: E402

nn = torch.nn
X = normal(12, 4)


def make() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), tnt.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4), tnt.BatchNorm1d(4))


def follows_its_data(model: Any) -> bool:
    before = model[1].running_mean.clone()
    model(X + 1)
    return not torch.equal(before, model[1].running_mean)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_made_inside_of_accumulate_is_outside(copied: Callable[[Any], Any]) -> None:
    model = make()
    with tnt.accumulate(model):
        model(X)
        other = copied(model)
        assert follows_its_data(other)
        assert not follows_its_data(model)
    assert follows_its_data(other)
    assert follows_its_data(model)


def test_a_copy_made_inside_of_together_is_outside() -> None:
    model, copies = make(), []

    def forward(model: Any, x: Any) -> Any:
        copies.append(copy.deepcopy(model))
        return model(x)

    tnt.together(model, [X[:6], X[6:]], forward)
    assert all(follows_its_data(one) for one in copies)
    expected = make()(X[:6])
    torch.testing.assert_close(copies[0].load_state_dict(make().state_dict()) and copies[0](X[:6]), expected)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_contexts_of_accumulate_need_not_nest(order: tuple[int, int]) -> None:
    model = make()
    contexts = [tnt.accumulate(model), tnt.accumulate(model)]
    for one in contexts:
        one.__enter__()
    model(X)
    for i in order:
        contexts[i].__exit__(None, None, None)
    assert "_stage" not in vars(model[1])
    assert int(model[1].num_batches_tracked) == 1  # staged by the inner one alone
    assert follows_its_data(model)


def test_accumulate_that_cannot_be_entered_leaves_nothing() -> None:
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def refuse(*_: Any) -> Any:
        raise RuntimeError("no hooks today")

    model[4].bias.register_post_accumulate_grad_hook = refuse
    with pytest.raises(RuntimeError, match="no hooks today"), tnt.accumulate(model, optimizer=optimizer):
        pass
    assert "_stage" not in vars(model[1])
    assert not optimizer._optimizer_step_post_hooks
    assert not model[0].weight._backward_hooks
    assert follows_its_data(model)


def test_accumulate_looks_at_requires_grad_when_it_is_entered() -> None:
    model = make()
    context = tnt.accumulate(model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
    model.requires_grad_(False)
    with context:
        model(X)


def test_a_layer_that_is_frozen_inside_of_accumulate_stays_as_it_is() -> None:
    model = make()
    before = model[1].running_mean.clone()
    with tnt.accumulate(model):
        model(X)
        tnt.freeze(model[1])
    assert torch.equal(before, model[1].running_mean)
    assert int(model[4].num_batches_tracked) == 1


def test_what_a_layer_refuses_is_not_accumulated() -> None:
    layer, expected = tnt.BatchNorm1d(4), tnt.BatchNorm1d(4)
    with tnt.accumulate(layer), tnt.accumulate(expected):
        layer(X)
        expected(X)
        with pytest.raises(ValueError, match="more than 1 value"):
            layer(X[:1] + 5)
    torch.testing.assert_close(layer.running_mean, expected.running_mean, rtol=0, atol=0)


def test_layers_that_lose_their_statistics_inside_of_accumulate_are_left_out() -> None:
    model = make()
    with tnt.accumulate(model):
        model(X)
        model[1].running_mean = model[1].running_var = None
    assert int(model[4].num_batches_tracked) == 1


def test_layers_that_are_reverted_inside_of_accumulate_are_named() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), tnt.BatchNorm1d(4))
    tnt.convert(model)
    context = tnt.accumulate(model)
    with context:
        model(X)
        tnt.revert(model)
        assert_message(
            context.stage.commit,
            RuntimeError,
            "accumulate: layers of truenorm until the moments are used, got BatchNorm1d that was converted or reverted "
            "since its forward. All other layers are up to date.",
        )
        context.stage.discard()
    assert int(model[1].num_batches_tracked) == 1


def test_together_inside_of_together_is_refused() -> None:
    model = make()

    def forward(model: Any, x: Any) -> Any:
        return torch.cat(tnt.together(model, [x[:3], x[3:]]))

    assert_message(
        lambda: tnt.together(model, [X[:6], X[6:]], forward),
        RuntimeError,
        "together: one call at a time for each layer, got '1', which runs micro-batches already.",
    )
    torch.testing.assert_close(torch.cat(tnt.together(model, [X[:5], X[5:]])), make()(X))


def test_sync_inside_of_together_or_before_its_backward_is_refused() -> None:
    def forward(model: Any, x: Any) -> Any:
        tnt.sync(model)
        return model(x)

    with pytest.raises(RuntimeError, match=r"^sync: layers whose micro-batches are done, got '1'\. Call it after"):
        tnt.together(make(), [X[:6], X[6:]], forward)

    def checkpointed(model: Any, x: Any) -> Any:
        return checkpoint(model, x, use_reentrant=False)

    model = make()
    outputs = tnt.together(model, [X[:6], X[6:]], checkpointed)
    with pytest.raises(RuntimeError, match=r"^sync: layers whose micro-batches are done, got '1'\. Call it after"):
        tnt.sync(model)
    torch.cat(outputs).sum().backward()
    del outputs
    tnt.sync(model)


def test_a_forward_of_another_thread_beside_together_is_refused() -> None:
    model, errors = make(), []

    def outside() -> None:
        try:
            model(X)
        except RuntimeError as error:
            errors.append(str(error))

    def forward(model: Any, x: Any) -> Any:
        if not errors:
            other = threading.Thread(target=outside)
            other.start()
            other.join()
        return model(x)

    found = torch.cat(tnt.together(model, [X[:6], X[6:]], forward))
    assert errors == ["together: '1' is called by another thread while micro-batches run. Call it later."]
    torch.testing.assert_close(found, make()(X))


def test_together_inside_of_padded_is_refused() -> None:
    model = nn.Sequential(tnt.BatchNorm1d(4))
    with tnt.padded(lengths=[3, 2]):
        assert_message(
            lambda: tnt.together(model, [normal(2, 4, 3), normal(2, 4, 3)]),
            RuntimeError,
            "together: call it outside of padded, got an active context, which holds for one thread only. Enter padded "
            "in the function that you pass as forward=.",
        )


def test_together_keeps_the_default_device() -> None:
    found: list[Any] = []
    with torch.device("meta"):
        tnt.together(nn.Identity(), [X], lambda model, x: found.append(torch.empty(1).device))
    assert found == [torch.device("meta")]


def test_a_model_is_reestimated_once_at_a_time() -> None:
    model = make()

    def again(model: Any, x: Any) -> Any:
        tnt.reestimate(model, [X])

    before = copy.deepcopy(model.state_dict())
    assert_message(
        lambda: tnt.reestimate(model, [X], again),
        RuntimeError,
        "reestimate: one at a time for each layer, got one that is being measured already.",
    )
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert all(module.training for module in model.modules())
    tnt.reestimate(model, [X])
    assert follows_its_data(model)


def forward_mode(model: Any, x: Any) -> None:
    with forward_ad.dual_level():
        model(forward_ad.make_dual(x, torch.ones_like(x)))


TRANSFORMS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "grad": ("a transform of torch.func", lambda model, x: func.grad(lambda value: model(value).pow(3).sum())(x)),
    "vjp": ("a transform of torch.func", lambda model, x: func.vjp(model, x)),
    "jvp": ("a transform of torch.func", lambda model, x: func.jvp(model, (x,), (x,))),
    "vmap": ("a transform of torch.func", lambda model, x: func.vmap(model)(torch.stack([x, x]))),
    "forward mode": ("forward mode", forward_mode),
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("inside_of", ["accumulate", "reestimate", "together"])
def test_other_derivatives_than_by_backward_are_refused_inside(inside_of: str, name: str) -> None:
    model = make()
    got, transform = TRANSFORMS[name]
    before = copy.deepcopy(model.state_dict())

    def call() -> Any:
        if inside_of == "accumulate":
            with tnt.accumulate(model):
                transform(model, X)
        elif inside_of == "reestimate":
            tnt.reestimate(model, [X], transform)
        else:
            tnt.together(model, [X[:6], X[6:]], transform)

    assert_message(
        call,
        RuntimeError,
        "accumulate, reestimate, together, sync: only derivatives by backward() and torch.autograd.grad inside, got "
        f"{got}. Use it outside.",
    )
    assert all(torch.equal(one, before[key]) for key, one in model.state_dict().items())
    transform(model.eval(), X)  # outside


def test_tangents_of_something_else_are_no_derivatives_inside() -> None:
    model = make()
    with tnt.accumulate(model), forward_ad.dual_level():
        forward_ad.make_dual(X, X)
        model(X).pow(3).sum().backward()
    assert int(model[1].num_batches_tracked) == 1


def test_one_value_is_too_few_to_reestimate() -> None:
    model = make()
    assert_message(
        lambda: tnt.reestimate(model, [X[:1]]),
        ValueError,
        "reestimate: at least two values per channel in all batches, got one at '1'.",
    )
    assert int(model[1].num_batches_tracked) == 0


def test_reestimate_without_a_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", None)
    tnt.reestimate(make(), [X])


class Product(nn.Module):
    def forward(self, one: Any, other: Any) -> Any:
        return one * other

    def right_inverse(self, weight: Any) -> Any:
        return torch.ones_like(weight), weight


def test_thaw_of_a_layer_that_was_parametrized_since_changes_nothing() -> None:
    model = make()
    tnt.freeze(model, weight=True, bias=True)
    parametrize.register_parametrization(model[4], "weight", Product())
    assert_message(
        lambda: tnt.thaw(model),
        ValueError,
        "thaw: the weight of '4' as it was frozen, got one that was parametrized since, or is no longer. Undo this "
        "first.",
    )
    assert not model[1].weight.requires_grad
    parametrize.remove_parametrizations(model[4], "weight")
    tnt.thaw(model)
    assert all(one.requires_grad for one in model.parameters())


def test_tasks_that_interleave_inside_of_padded_are_refused() -> None:
    model = nn.Sequential(nn.Conv1d(4, 4, 3, padding=1), tnt.BatchNorm1d(4))
    refused: list[str] = []

    async def task(lengths: list[int], rounds: int) -> None:
        try:
            with tnt.padded(lengths=lengths):
                x = model[0](normal(2, 4, 9))
                for _ in range(rounds):
                    await asyncio.sleep(0)
                model[1](x)
        except RuntimeError as error:
            refused.append(str(error))

    async def both() -> None:
        await asyncio.gather(task([9, 5], 1), task([3, 9], 3))

    thread = threading.Thread(target=lambda: asyncio.run(both()))  # this one may run a loop of its own
    thread.start()
    thread.join()
    message = (
        "padded: a function of torch is called by another task than the one that entered padded last, got contexts "
        "that do not nest. Leave padded before each await."
    )
    assert message in refused
    with tnt.padded(lengths=[9, 5]) as tracked:
        model(normal(2, 4, 9))
    assert not tracked.report.not_given
