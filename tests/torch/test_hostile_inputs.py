"""Unusual tensors: fake, sparse, wrapped by a transform, and a PackedSequence whose sizes do not add up."""

from functools import partial
from typing import Any

import pytest
from errors import assert_message
from torch_data import normal

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.nn.utils.rnn import PackedSequence  # noqa: E402

import truenorm.torch as tnt  # noqa: E402

nn = torch.nn
BY_CHANNEL: list[Any] = [tnt.BatchNorm1d(4), tnt.GroupNorm(2, 4), tnt.InstanceNorm1d(4, track_running_stats=True)]


# ---- fake tensors: shapes without values ----


@pytest.mark.parametrize("layer", BY_CHANNEL, ids=str)
def test_fake_tensors_have_the_shape_of_the_result(layer: Any) -> None:
    with FakeTensorMode() as mode:
        fake = mode.from_tensor
        for arguments in (
            {"lengths": torch.tensor([1, 3])},
            {"lengths": [1, 3]},
            {"valid": torch.ones(2, 3, dtype=torch.bool)},
            {"valid": torch.ones(2, 3, dtype=torch.int32)},
            {"sample_weight": torch.ones(2, 3)},
        ):
            x = fake(normal(2, 4, 3).requires_grad_())
            y = type(layer)(*_arguments_of(layer))(x, **arguments)
            y.sum().backward()
            assert y.shape == x.grad.shape == (2, 4, 3)
        rows = type(layer)(*_arguments_of(layer))(torch.ones(5, 4), offsets=torch.tensor([0, 2, 5]))
        assert rows.shape == (5, 4)
        with pytest.raises(ValueError, match=r"lengths must have the shape \(2,\)"):
            type(layer)(*_arguments_of(layer))(torch.ones(2, 4, 3), lengths=torch.tensor([1, 2, 3]))


def _arguments_of(layer: Any) -> tuple[int, ...]:
    return (2, 4) if isinstance(layer, tnt.GroupNorm) else (4,)


# ---- PackedSequence ----


@pytest.mark.parametrize("layer", [*BY_CHANNEL, tnt.LayerNorm(4), tnt.RMSNorm(4)], ids=str)
def test_a_packed_sequence_must_add_up(layer: Any) -> None:
    def call(rows: int, sizes: list[int]) -> Any:
        return layer(PackedSequence(normal(rows, 4), torch.tensor(sizes)))

    assert call(6, [3, 2, 1]).data.shape == (6, 4)
    for rows, sizes in ((9, [3, 2, 1]), (4, [3, 2, 1]), (6, [1, 2, 3]), (6, [7, -1])):
        text = (
            f"x must have batch_sizes that do not rise and add up to its {rows} rows, got {sizes}. "
            "Make it with torch.nn.utils.rnn.pack_padded_sequence."
        )
        assert_message(partial(call, rows, sizes), ValueError, text)


# ---- sparse ----


def test_sparse_tensors_are_refused_in_words() -> None:
    x, c, lengths = normal(2, 4, 3), torch.ones(4), torch.tensor([2, 3])
    sparse = c.to_sparse()
    function = tnt.functional
    for name, call in (
        ("weight", lambda: function.batch_norm(x, None, None, sparse, training=True)),
        ("weight", lambda: function.batch_norm(x, None, None, sparse, training=True, lengths=lengths)),
        ("weight", lambda: function.group_norm(x, 2, sparse)),
        ("weight", lambda: function.layer_norm(x, (3,), torch.ones(3).to_sparse())),
        ("bias", lambda: function.batch_norm(x, None, None, c, sparse, training=True, lengths=lengths)),
        ("running_mean", lambda: function.batch_norm(x, sparse, c, lengths=lengths)),
        ("running_var", lambda: function.batch_norm(x, c, sparse, lengths=lengths)),
        ("x", lambda: function.batch_norm(x.to_sparse(), None, None, training=True, lengths=lengths)),
        ("lengths", lambda: function.batch_norm(x, None, None, training=True, lengths=lengths.to_sparse())),
        ("valid", lambda: function.batch_norm(x, None, None, training=True, valid=torch.ones(2, 3).bool().to_sparse())),
    ):
        text = f"{name} must be a dense tensor, got the layout torch.sparse_coo. Convert it: {name}.to_dense()."
        assert_message(call, TypeError, text)


# ---- torch.func ----


@pytest.mark.parametrize("momentum", [0.1, None])
def test_a_derivative_by_torch_func_updates_captured_buffers(momentum: float | None) -> None:
    x = normal(2, 3, 4)
    layers: list[Any] = [
        tnt.InstanceNorm1d(3, affine=True, track_running_stats=True, momentum=momentum),
        tnt.BatchNorm1d(3, momentum=momentum),
        tnt.Normalize("[b] c [t]", 3, track_running_stats=True, momentum=momentum),
    ]
    for layer in layers:
        parameters, buffers = dict(layer.named_parameters()), dict(layer.named_buffers())
        expected = {name: value.clone() for name, value in buffers.items()}

        def loss(parameters: Any, buffers: Any, layer: Any = layer) -> Any:
            return torch.func.functional_call(layer, (parameters, buffers), (x,)).pow(3).sum()

        leaves = {name: value.detach().clone().requires_grad_() for name, value in parameters.items()}
        loss(leaves, expected).backward()
        found = torch.func.grad(lambda p, buffers=buffers: loss(p, buffers))(parameters)
        for name, value in leaves.items():
            torch.testing.assert_close(found[name], value.grad, msg=f"{layer}: {name}")
        for name, value in expected.items():
            torch.testing.assert_close(buffers[name], value, msg=f"{layer}: {name}")


def test_instance_norm_computes_what_torch_does_under_torch_func() -> None:
    x, found = normal(2, 3, 4), []
    for kit in (nn, tnt):
        layer = kit.InstanceNorm1d(3, affine=True, track_running_stats=True)
        parameters, buffers = dict(layer.named_parameters()), dict(layer.named_buffers())
        gradient = torch.func.grad(
            lambda p, layer=layer, b=buffers: torch.func.functional_call(layer, (p, b), (x,)).pow(3).sum()
        )(parameters)
        found.append((gradient, buffers))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)


# ---- messages ----


def test_running_statistics_come_in_pairs() -> None:
    x, c, lengths = normal(2, 4, 3), torch.ones(4), torch.tensor([2, 3])
    text = "running_mean and running_var must both be given, or neither, got one of them. Pass both."
    assert_message(lambda: tnt.functional.batch_norm(x, c, None, lengths=lengths), ValueError, text)
    text = "running_mean and running_var must be given unless training, got None. Pass both, or training=True."
    assert_message(lambda: tnt.functional.batch_norm(x, None, None, lengths=lengths), ValueError, text)
