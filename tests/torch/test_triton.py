"""The kernels in Triton: who chooses them, their plans, and, in processes of their own, everything else.

The tests in tests/torch/triton need Triton's interpreter, which has to be chosen before Triton is imported.
"""

import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from torch_data import normal

torch = pytest.importorskip("torch", reason="torch is not installed")

import truenorm as tn  # noqa: E402
import truenorm.torch as tnt  # noqa: E402
from truenorm import engine  # noqa: E402
from truenorm.torch import triton  # noqa: E402
from truenorm.torch._inputs import Ragged  # noqa: E402
from truenorm.torch.triton.plan import find_plan, find_valid  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
needs_triton = pytest.mark.skipif(not triton.is_installed(), reason="triton is not installed")


# ---- the choice ----


def test_the_cpu_is_never_triton() -> None:
    assert not triton.applies(torch.ones(3, 4))
    assert not triton.applies(torch.ones(3, 4, device="meta"))
    tnt.BatchNorm1d(2)(normal(3, 2, 4), lengths=[4, 2, 1])
    assert "truenorm.torch.triton.kernels" not in sys.modules  # Triton is imported when it is needed


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Any:
    """As if x were on a GPU: Triton applies, and its answer is the one that a test sets."""
    caplog.set_level(logging.DEBUG, logger="truenorm.torch")
    monkeypatch.setattr(triton, "applies", lambda x: True)

    def answer(call: Any, verbs: Any = "no reason") -> pytest.LogCaptureFixture:
        monkeypatch.setattr(triton, "find_call", lambda *arguments: call)
        monkeypatch.setattr(triton, "find_verbs", lambda *arguments: verbs)
        caplog.clear()
        return caplog

    before = engine.engine()
    engine.use("reference")
    yield answer
    engine.use(before)


def test_the_dispatcher_asks_triton_before_the_formula(on_a_gpu: Any) -> None:
    layer, x, lengths = tnt.InstanceNorm1d(4), normal(3, 4, 5), torch.tensor([5, 2, 3])
    logged = on_a_gpu("no kernel in Triton for a reason")
    torch.testing.assert_close(layer(x, lengths=lengths)[:1], torch.nn.functional.instance_norm(x[:1]))
    assert logged.messages == ["operations: no kernel in Triton for a reason"]
    logged = on_a_gpu(SimpleNamespace(run=lambda weight, bias: (x + 1, None)))
    assert torch.equal(layer(x, lengths=lengths), x + 1)
    assert logged.messages == ["triton: (3, 4, 5)"]


def test_a_part_of_a_batch_asks_triton(on_a_gpu: Any) -> None:
    layer, x = tnt.BatchNorm1d(4), normal(6, 4)
    logged = on_a_gpu("", "no kernel in Triton for a reason")
    tnt.together(layer, [x[:4], x[4:]])
    assert set(logged.messages) == {"operations: no kernel in Triton for a reason"}


# ---- plans ----

# kind, sequences, positions, lanes, kept, channels, shared and repeats of x.
PLANS: dict[str, tuple[Any, tuple[int, ...], Any]] = {
    "batch, channels last": (tn.batch(), (8, 100, 12), ("columns", 8, 100, 12, 12, 1, 8, 1)),
    "batch of rows": (tn.batch(), (100, 12), ("columns", 1, 100, 12, 12, 1, 1, None)),
    "batch, channels second": (tn.batch("second"), (8, 12, 100), ("planes", 8, 100, 12, 12, 1, 8, 1)),
    "group, channels last": (tn.group(4), (8, 100, 12), ("columns", 8, 100, 12, 4, 3, 1, 1)),
    "group, channels second": (tn.group(4, "second"), (8, 12, 100), ("planes", 8, 100, 12, 4, 3, 1, 1)),
    "group of rows": (tn.group(4), (8, 12), ("columns", 8, 1, 12, 4, 3, 1, None)),
    "instance": (tn.instance(), (8, 100, 12), ("columns", 8, 100, 12, 12, 1, 1, 1)),
    "layer": (tn.layer(), (8, 100, 12), ("rows", 1, 12, 800, 800, 1, 1, None)),
    "images": (tn.batch("second"), (8, 12, 5, 7), ("planes", 8, 35, 12, 12, 1, 8, None)),
    "spectrograms": (tn.Norm("[b] c f [t]"), (8, 12, 5, 7), "the order of axes"),
    "without channels": (tn.Norm("b [t]"), (8, 100), ("planes", 8, 100, 1, 1, 1, 1, 1)),
    "a transposed pattern": (tn.Norm("b [c] t"), (8, 12, 100), "the order of axes"),
    "nothing": (tn.batch(), (0, 100, 12), "x is empty"),
}


@pytest.mark.parametrize("name", PLANS)
def test_plans(name: str) -> None:
    norm, shape, expected = PLANS[name]
    found = find_plan(norm, shape, Ragged())
    if isinstance(found, str):
        assert found == expected
        return
    numbers = (found.sequences, found.positions, found.lanes, found.kept, found.channels, found.shared, found.repeats)
    assert (found.kind, *numbers) == expected
    assert found.sequences * found.positions * found.lanes == torch.Size(shape).numel()


def test_what_has_no_plan() -> None:
    rows, weights = torch.tensor([0, 3, 8]), torch.ones(8)
    assert find_plan(tn.batch(), (8, 3), Ragged(sample_weight=weights)) == "sample_weight"
    reason = "rows that share statistics with those of other samples"
    assert find_plan(tn.Norm("[b] t c"), (8, 3), Ragged(offsets=rows)) == reason


def test_tiles_do_not_depend_on_padding() -> None:
    for make in (tn.batch, tn.instance):
        for extent in (3, 100, 5000):
            for norm, shape in ((make("second"), (2, 6, extent)), (make("last"), (2, extent, 6))):
                plan = find_plan(norm, shape, Ragged())
                assert not isinstance(plan, str)
                assert plan.tile == (8, 128)


def test_tiles_of_packed_sequences() -> None:
    # Lengths 130, 0, 1 and 129: two tiles, none, one and two; five of the five that there could be at most.
    norm, ragged = tn.instance(), Ragged(offsets=torch.tensor([0, 130, 130, 131, 260]))
    plan = find_plan(norm, (260, 6), ragged)
    assert not isinstance(plan, str)
    _, valid = find_valid(plan, norm, torch.zeros(260, 6), ragged)
    assert (valid.form, valid.tiles) == ("offsets", 6)
    assert valid.first_tile is not None
    assert valid.first_tile.tolist() == [0, 2, 2, 3, 5]
    assert valid.sequence_of is not None
    assert valid.sequence_of.tolist() == [0, 0, 2, 3, 3, 4]  # 4 is behind the last one, and has no rows
    assert valid.ragged is not None
    assert valid.ragged.tolist() == [0, 130, 130, 131, 260, 260]


@pytest.mark.parametrize(
    ("norm", "shape", "ragged", "form", "elements"),
    [
        (tn.batch("second"), (3, 4, 5), {"lengths": torch.tensor([5, 2, 3])}, "lengths", 3),
        (tn.layer(), (3, 5, 4), {"lengths": torch.tensor([5, 2, 3])}, "valid", 15),
        (tn.batch("second"), (3, 4, 5), {"valid": torch.ones(3, 5, dtype=torch.bool)}, "valid", 15),
        (tn.batch("second"), (3, 4, 5), {"valid": torch.ones(3, 4, 5, dtype=torch.bool)}, "elements", 60),
        (tn.batch("second"), (3, 4, 2, 5), {"lengths": torch.tensor([[2, 1, 0], [5, 4, 3]])}, "valid", 30),
    ],
)
def test_forms(norm: Any, shape: tuple[int, ...], ragged: dict[str, Any], form: str, elements: int) -> None:
    plan = find_plan(norm, shape, Ragged(**ragged))
    assert not isinstance(plan, str)
    _, valid = find_valid(plan, norm, torch.zeros(shape), Ragged(**ragged))
    assert valid.form == form
    assert valid.ragged is not None
    assert valid.ragged.numel() == elements


# ---- tools ----


def test_gpu_check_says_that_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from tools import gpu_check

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(gpu_check, "find_spec", lambda name: True)
    done = CliRunner().invoke(gpu_check.main)
    assert done.exit_code == 2
    assert done.output == (
        f"gpu_check: a GPU that torch can use is needed, got none with torch {torch.__version__}. "
        "Run it on another machine.\n"
    )
    monkeypatch.setattr(gpu_check, "find_spec", lambda name: None)
    done = CliRunner().invoke(gpu_check.main)
    assert done.exit_code == 2
    assert done.output == (
        "gpu_check: torch and triton are needed, got only one of them or none. "
        "Run pip install truenorm[torch,triton].\n"
    )


# ---- in processes of their own ----


def run_python(*arguments: str, cache: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("TRITON", "TRUENORM"))}
    variables |= {"TRITON_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"} | environment
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, env=variables, capture_output=True, text=True)


@pytest.mark.slow
@needs_triton
def test_in_the_interpreter(tmp_path: Path) -> None:
    command = ["-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "tests/torch/triton"]
    done = run_python(*command, cache=tmp_path, TRITON_INTERPRET="1", TRUENORM_TRITON="interpreted")
    assert done.returncode == 0, done.stdout
    assert re.search(r"\d+ passed", done.stdout)
    assert "skipped" not in done.stdout


@pytest.mark.slow
@needs_triton
def test_compiled_ahead_of_time_without_spills(tmp_path: Path) -> None:
    done = run_python("-m", "tools.triton_resources", "--some", cache=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for target in ("sm_80", "sm_90", "sm_100", "gfx942"):
        assert done.stdout.count(f"| {target} |") == 12


@pytest.mark.slow
@needs_triton
def test_the_gate_can_fail(tmp_path: Path) -> None:
    wrong = ["--some", "--target", "sm_80", "--kernel", "gradient", "--lanes", "128", "--fusion"]
    done = run_python("-m", "tools.triton_resources", *wrong, cache=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    for what in (r"\d+ registers", r"\d+ spilled"):
        assert re.search(rf"{what}, fused operations \|", done.stdout)


@pytest.mark.slow
@needs_triton
def test_gpu_check_in_the_interpreter(tmp_path: Path) -> None:
    done = run_python("-m", "tools.gpu_check", "--interpreted", "--quick", cache=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "## Tests: all pass" in done.stdout
    assert "FAILED" not in done.stdout
    assert "| GroupNorm | 2 x 4 x 40 | bfloat16 |" in done.stdout
