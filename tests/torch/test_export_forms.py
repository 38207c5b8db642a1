"""Exported programs with every form of ragged arguments, with activations and residuals, and in bfloat16.

Sizes are dynamic axes. `test_export` has the same for all layers with lengths and masks.
"""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from torch_data import normal

torch = pytest.importorskip("torch", reason="torch is not installed")

import truenorm.torch as tnt  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
BATCH, TIME = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("time", min=2, max=512)
BATCH_FIRST = {0: BATCH, 2: TIME}, {0: BATCH}
ROWS = {0: TIME}, {0: torch.export.Dim("cuts", min=3, max=65)}


def lengths_of(batch: int, time: int) -> Any:
    return (torch.arange(batch) * 3 + 1) % time + 1


def padded(batch: int, time: int) -> tuple[Any, Any]:
    return normal(batch, 4, time, seed=batch), lengths_of(batch, time)


def padded_rows(batch: int, time: int) -> tuple[Any, Any]:
    return normal(batch, time, 4, seed=batch), lengths_of(batch, time)


def images(batch: int, time: int) -> tuple[Any, Any]:
    return normal(batch, 4, 9, time, seed=batch), lengths_of(batch, time)


def cut(batch: int, time: int) -> tuple[Any, Any]:
    return normal(time, 4, seed=batch), torch.linspace(0, time, batch + 1).long()


def labeled(batch: int, time: int) -> tuple[Any, Any]:
    return normal(time, 4, seed=batch), torch.arange(time) * 5 % 3


class Model(torch.nn.Module):
    """One call of a layer, with inputs of the program."""

    def __init__(self, layer: Callable[[], Any], call: Callable[..., Any]) -> None:
        super().__init__()
        self.layer, self.call = layer(), call

    def forward(self, x: Any, given: Any) -> Any:
        return self.call(self.layer, x, given)


def with_lengths(layer: Any, x: Any, given: Any) -> Any:
    return layer(x, lengths=given)


def with_residual(layer: Any, x: Any, given: Any) -> Any:
    y, total = layer(x, residual=x / 2, lengths=given)
    return y + total


CASES: dict[str, tuple[Callable[[], Any], Callable[..., Any], Callable[..., Any], Any]] = {
    "activation": (lambda: tnt.GroupNorm(2, 4, activation="silu"), with_lengths, padded, BATCH_FIRST),
    "residual": (lambda: tnt.LayerNorm(4), with_residual, padded_rows, ({0: BATCH, 1: TIME}, {0: BATCH})),
    "along": (
        lambda: tnt.BatchNorm2d(4),
        lambda layer, x, given: layer(x, lengths=given, along=3),
        images,
        ({0: BATCH, 3: TIME}, {0: BATCH}),
    ),
    "both axes": (
        lambda: tnt.GroupNorm(2, 4),
        lambda layer, x, given: layer(x, lengths=(given.clamp(max=9), given)),
        images,
        ({0: BATCH, 3: TIME}, {0: BATCH}),
    ),
    "offsets": (lambda: tnt.GroupNorm(2, 4), lambda layer, x, given: layer(x, offsets=given), cut, ROWS),
    "segments": (
        lambda: tnt.GroupNorm(2, 4),
        lambda layer, x, given: layer(x, segments=given),
        labeled,
        ({0: TIME}, {0: TIME}),
    ),
    "bfloat16, batch": (lambda: tnt.BatchNorm1d(4).bfloat16(), with_lengths, padded, BATCH_FIRST),
    "bfloat16, layer": (
        lambda: tnt.LayerNorm(4).bfloat16(),
        with_lengths,
        padded_rows,
        ({0: BATCH, 1: TIME}, {0: BATCH}),
    ),
}


def inputs(name: str, batch: int, time: int) -> tuple[Any, Any]:
    x, given = CASES[name][2](batch, time)
    return x.bfloat16() if "bfloat16" in name else x, given


@pytest.mark.parametrize("name", CASES)
def test_programs_take_all_sizes(name: str) -> None:
    model = Model(*CASES[name][:2]).eval()
    program = torch.export.export(model, inputs(name, 3, 7), dynamic_shapes=CASES[name][3])
    assert not [node for node in program.graph.nodes if "truenorm" in str(node.target)]
    for sizes in ((5, 11), (2, 3)):
        given = inputs(name, *sizes)
        close = {"rtol": 1e-2, "atol": 1e-2} if "bfloat16" in name else CLOSE
        torch.testing.assert_close(program.module()(*given), model(*given), **close)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_onnx_runtime_takes_them(name: str) -> None:
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    model = Model(*CASES[name][:2]).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model, inputs(name, 3, 7), dynamo=True, verbose=False, dynamic_shapes=CASES[name][3]
        )
    # A session of bfloat16 can be made, but NumPy has no arrays to feed it with.
    session = runtime.InferenceSession(program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for sizes in () if "bfloat16" in name else ((5, 11), (2, 3)):
        given = inputs(name, *sizes)
        feed = {one.name: value.numpy() for one, value in zip(session.get_inputs(), given, strict=True)}
        torch.testing.assert_close(torch.from_numpy(session.run(None, feed)[0]), model(*given).detach(), **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "make", [lambda: tnt.BatchNorm1d(4), lambda: tnt.InstanceNorm1d(4, affine=True, track_running_stats=True)]
)
def test_torchs_operator_with_running_statistics_in_float32(make: Callable[[], Any], dtype: Any) -> None:
    """Without a mask, in a program and off the CPU: torch refuses weights in half precision beside them."""
    layer, x = make().to(dtype).eval(), normal(3, 4, 7).to(dtype)
    assert layer.running_mean.dtype == torch.float32
    y = torch.export.export(layer, (x,)).module()(x)
    torch.testing.assert_close(y, layer(x), rtol=1e-2, atol=1e-2)
