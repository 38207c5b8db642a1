"""Exported programs need nobody: only torch's or ONNX's own operators, for all sizes, run where truenorm is not.

Batch and time are dynamic axes, and `lengths` or `valid` inputs of the program. The expected values are those of eager
mode, at other sizes than the program was exported with.
"""

import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch_data import normal

torch = pytest.importorskip("torch", reason="torch is not installed")

import truenorm.torch as tnt  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
# The layer, and whether channels come second.
LAYERS: dict[str, tuple[Callable[[], Any], bool]] = {
    "batch": (lambda: tnt.BatchNorm1d(4), True),
    "group": (lambda: tnt.GroupNorm(2, 4), True),
    "instance": (lambda: tnt.InstanceNorm1d(4, affine=True, padding="keep"), True),
    "layer": (lambda: tnt.LayerNorm(4), False),
    "rms": (lambda: tnt.RMSNorm(4), False),
    "pattern": (lambda: tnt.Normalize("b [t] c", 4), False),
}
CASES = [(name, ragged) for name in LAYERS for ragged in ("lengths", "valid")]
QUICK = [("group", "lengths"), ("batch", "valid")]

# Loads and runs programs in a process that has no truenorm.
RUN = """
import sys
import torch
import torch._inductor.codecache  # torch.export of 2.10 needs it, and does not import it
folder, kind = sys.argv[1:]
for path in sorted(__import__("pathlib").Path(folder).glob("*." + kind)):
    program = torch.export.load(path).module() if kind == "pt2" else torch._inductor.aoti_load_package(str(path))
    inputs = torch.load(path.with_suffix(".inputs"))
    torch.save(program(*inputs), path.with_suffix(".output"))
assert "truenorm" not in sys.modules
"""


class WithMask(torch.nn.Module):
    """A layer between others, with a mask as an input."""

    def __init__(self, name: str, ragged: str) -> None:
        super().__init__()
        self.layer, self.ragged = LAYERS[name][0](), ragged
        with torch.no_grad():
            for i, one in enumerate(self.layer.parameters()):
                one.copy_(torch.linspace(0.5, 1.5 + i, one.numel()))
        if name == "batch":
            self.layer.running_mean.copy_(torch.tensor([0.1, -0.2, 0.3, 0.4]))

    def forward(self, x: Any, mask: Any) -> Any:
        return torch.tanh(self.layer(x * 2 + 1, **{self.ragged: mask}))


def inputs(name: str, ragged: str, batch: int, time: int, junk: float = 0.0) -> tuple[Any, Any]:
    second = LAYERS[name][1]
    x = normal(*((batch, 4, time) if second else (batch, time, 4)), seed=batch) + 0.3
    lengths = (torch.arange(batch) * 3 + 1) % time + 1
    valid = torch.arange(time) < lengths[:, None]
    if name != "instance":  # which keeps its padding
        x = torch.where(valid[:, None] if second else valid[..., None], x, junk)
    return x, lengths if ragged == "lengths" else valid


def dynamic(name: str, ragged: str) -> tuple[dict[int, Any], dict[int, Any]]:
    batch, time = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("time", min=2, max=512)
    return {0: batch, 2 if LAYERS[name][1] else 1: time}, {0: batch} if ragged == "lengths" else {0: batch, 1: time}


def exported(name: str, ragged: str) -> tuple[Any, Any]:
    model = WithMask(name, ragged).eval()
    return model, torch.export.export(model, inputs(name, ragged, 3, 7), dynamic_shapes=dynamic(name, ragged))


def targets(program: Any) -> set[str]:
    return {str(node.target) for node in program.graph.nodes if node.op == "call_function"}


@pytest.mark.parametrize(("name", "ragged"), QUICK)
def test_a_program_has_torchs_operators_only_and_takes_all_sizes(name: str, ragged: str) -> None:
    model, program = exported(name, ragged)
    assert not [one for one in targets(program) if "truenorm" in one]
    for batch, time in ((5, 11), (2, 3)):
        given = inputs(name, ragged, batch, time, junk=torch.nan)
        torch.testing.assert_close(program.module()(*given), model(*given), **CLOSE)


def test_without_a_mask_a_program_has_torchs_own_normalizations() -> None:
    model = torch.nn.Sequential(tnt.BatchNorm1d(4), tnt.GroupNorm(2, 4)).eval()
    found = targets(torch.export.export(model, (normal(3, 4, 7),)))
    assert {"aten.group_norm.default"} < found
    assert not [one for one in found if "truenorm" in one]


@pytest.mark.slow
def test_programs_run_where_truenorm_is_not(tmp_path: Path) -> None:
    expected = {}
    for name, ragged in CASES:
        model, program = exported(name, ragged)
        program = program.run_decompositions()
        assert not [one for one in targets(program) if not one.startswith(("aten.", "<built-in", "_operator"))]
        path, given = tmp_path / f"{name}-{ragged}.pt2", inputs(name, ragged, 5, 11, junk=torch.nan)
        torch.export.save(program, path)
        torch.save(given, path.with_suffix(".inputs"))
        expected[path] = model(*given)
    run_elsewhere(tmp_path, "pt2", expected)


@pytest.mark.slow
def test_aot_inductor(tmp_path: Path) -> None:
    expected = {}
    for name, ragged in QUICK:
        model, program = exported(name, ragged)
        path, given = tmp_path / f"{name}.aot.pt2", inputs(name, ragged, 5, 11, junk=torch.nan)
        torch._inductor.aoti_compile_and_package(program, package_path=str(path))
        torch.save(given, path.with_suffix(".inputs"))
        expected[path] = model(*given)
    run_elsewhere(tmp_path, "aot.pt2", expected)


def run_elsewhere(folder: Path, kind: str, expected: dict[Path, Any]) -> None:
    done = subprocess.run([sys.executable, "-c", RUN, str(folder), kind], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for path, one in expected.items():
        torch.testing.assert_close(torch.load(path.with_suffix(".output")), one, **CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ragged"), CASES)
def test_onnx_runtime_takes_all_sizes(name: str, ragged: str) -> None:
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    model = WithMask(name, ragged).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model, inputs(name, ragged, 3, 7), dynamo=True, verbose=False, dynamic_shapes=dynamic(name, ragged)
        )
    proto = program.model_proto
    assert {node.domain for node in proto.graph.node} <= {"", "ai.onnx"}
    session = runtime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for batch, time in ((5, 11), (2, 3)):
        given = inputs(name, ragged, batch, time)
        feed = {one.name: value.numpy() for one, value in zip(session.get_inputs(), given, strict=True)}
        torch.testing.assert_close(torch.from_numpy(session.run(None, feed)[0]), model(*given).detach(), **CLOSE)


# ---- TorchScript ----


@pytest.mark.parametrize("layer", [tnt.BatchNorm1d(4), tnt.LayerNorm(4)], ids=["batch", "layer"])
def test_script_is_refused_with_a_sentence(layer: Any) -> None:
    with pytest.raises(
        RuntimeError, match=rf"^torch\.jit\.script: layers of torch, got {layer._get_name()}, .* revert"
    ):
        torch.jit.script(torch.nn.Sequential(layer))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # sizes become constants, which the message says
def test_trace_records_torchs_operators_and_refuses_masks() -> None:
    x = normal(3, 4, 7)
    model = torch.nn.Sequential(tnt.BatchNorm1d(4), tnt.GroupNorm(2, 4)).eval()
    torch.testing.assert_close(torch.jit.trace(model, x)(x), model(x), **CLOSE)
    for name, ragged in QUICK:
        with pytest.raises(
            RuntimeError, match=r"^torch\.jit\.trace: .* got a mask .* Use torch\.export\.export, whose"
        ):
            torch.jit.trace(WithMask(name, ragged).eval(), inputs(name, ragged, 3, 7))
    with pytest.raises(RuntimeError, match=r"^torch\.jit\.trace: .* or a pattern"):
        torch.jit.trace(tnt.Normalize("b [t] c", 7), x)
