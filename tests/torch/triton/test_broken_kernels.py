"""Kernels that were broken on purpose are noticed: each change of one line makes a check fail."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from triton_cases import EPS, LARGE, SMALL, Size, check

import truenorm.torch as tnt
from truenorm.torch.triton import kernels, verbs

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
SOURCE = Path(kernels.__file__).read_text("utf-8")
Check = Callable[[str], Any]


def layer(name: str, form: str, size: Size = SMALL) -> Check:
    return lambda device: check(name, form, torch.float32, device, size)


def many_tiles(device: str) -> None:
    """18 tiles of one sequence, more than are merged at once, with a trend from tile to tile."""
    n, most = 2300, 2310
    x = torch.randn(1, 3, most, generator=torch.Generator().manual_seed(4)) + torch.linspace(0, 9, most)
    x = x.to(device).requires_grad_()
    dy = torch.randn(1, 3, most, generator=torch.Generator().manual_seed(6)).to(device)
    y = tnt.InstanceNorm1d(3, eps=EPS)(x, lengths=torch.tensor([n], device=device))
    y.backward(dy)
    wide = x.detach()[..., :n].double().requires_grad_()
    other = torch.nn.functional.instance_norm(wide, eps=EPS)
    other.backward(dy[..., :n].double())
    torch.testing.assert_close(y[..., :n].double(), other, rtol=0, atol=2e-6)
    torch.testing.assert_close(x.grad[..., :n].double(), wide.grad, rtol=0, atol=2e-6)


def large_mean(device: str) -> None:
    x = (torch.randn(2, 3, 40, generator=torch.Generator().manual_seed(1)) + 1e4).to(device)
    y = tnt.InstanceNorm1d(3, eps=EPS)(x, lengths=torch.tensor([40, 9], device=device))
    other = torch.nn.functional.instance_norm(x[1:, :, :9].double(), eps=EPS)
    assert (y[1:, :, :9] - other).abs().max() < 1e-6


def large_values(device: str) -> None:
    x = (torch.randn(2, 3, 40, generator=torch.Generator().manual_seed(1)) * 1e25).to(device)
    y = tnt.InstanceNorm1d(3, eps=EPS)(x, lengths=torch.tensor([40, 9], device=device))
    other = torch.nn.functional.instance_norm(x[1:, :, :9].double(), eps=EPS)
    assert (y[1:, :, :9] - other).abs().max() < 1e-6


BATCH, GROUP = layer("batch", "lengths, channels second"), layer("group", "lengths, channels last")
TILES = layer("instance", "lengths, channels last", LARGE)
ROWS, PACKED = layer("layer", "valid, channels second"), layer("instance", "offsets")
# What is broken: the line, the broken line, and the check that fails.
BROKEN: dict[str, tuple[str, str, Check]] = {
    "the mask of lengths": ("ok = inside & (i < tl.load(ragged + s))[None, :]", "ok = inside", BATCH),
    "lengths that are one longer": ("(i < tl.load(ragged + s))", "(i <= tl.load(ragged + s))", GROUP),
    "the mask of rows": (
        "tl.load(ragged + j, mask=live, other=0) != 0",
        "tl.load(ragged + j, mask=live, other=0) >= 0",
        ROWS,
    ),
    "the mask of positions": (
        "mask=i < extent, other=0) != 0",
        "mask=i < extent, other=0) >= 0",
        layer("batch", "valid, channels last"),
    ),
    "the mask of elements": (
        "tl.load(ragged + at, mask=inside, other=0) != 0",
        "tl.load(ragged + at, mask=inside, other=0) >= 0",
        layer("instance", "valid of elements"),
    ),
    "the end of packed sequences": (
        "extent = tl.load(ragged + s + 1) - row",
        "extent = tl.load(ragged + s + 1) - row - 1",
        PACKED,
    ),
    "the last tile": ("(i < extent)[None, :]", "(i < POSITIONS)[None, :]", TILES),
    "the last lanes": ("live = j < lanes\n", "live = j < lanes - 4\n", GROUP),
    "lanes of a later block": (
        "% blocks * LANES + tl.arange(0, LANES)\n    live",
        "% 1 * LANES + tl.arange(0, LANES)\n    live",
        TILES,
    ),
    "the second pass of the mean": (
        "d = tl.where(ok, d - rest.to(TYPE)[:, None], 0.0)\n        mean = (origin.to(tl.float64) + rest)",
        "mean = (origin.to(tl.float64))",
        large_mean,
    ),
    "the scale of a tile": ("v = v * (1.0 / power).to(TYPE)[:, None]", "power = power * 0 + 1", large_values),
    "means that are apart, in a merge": ("within += tl.sum(counts * apart * apart, 1)", "within += 0.0", BATCH),
    "the counts in a merge": ("counts * (means - center[:, None])", "(means - center[:, None])", BATCH),
    "the blocks of a merge": ("apart * apart * (count * share)", "apart * apart * 0.0", many_tiles),
    "the mean of blocks": ("mean += apart * share", "mean += apart", many_tiles),
    "the channels of a group": ("* channels + (q % channels)[None, :]) * 3", "* channels) * 3", GROUP),
    "the mean in two parts": ("lo = (center * wide - hi.to(tl.float64)).to(TYPE)", "lo = hi * 0", large_mean),
    "eps": ("deviation = tl.sqrt(var + EPS)", "deviation = tl.sqrt(var)", BATCH),
    "the weight of rows": (
        "tl.load(values + i, mask=i < positions",
        "tl.load(values + i * 0, mask=i < positions",
        ROWS,
    ),
    "the sum of dy": ("d = d - outer.to(TYPE)[:, None]", "d = d", BATCH),
    "the sum of dy · xhat": ("d = d - xhat * tl.where(free > 0, inner, 0.0).to(TYPE)[:, None]", "d = d", GROUP),
    "weight in the sums of rows": ("g = g * _parameter(", "g = g + 0 * _parameter(", ROWS),
    "the last rows of a sum": ("(q < end)[None, :]", "(q < end - 1)[None, :]", BATCH),
    "the blocks of a sum": ("total += tl.sum(", "total = tl.sum(", many_tiles),
}


def module_of(source: str, folder: Path) -> Any:
    """Triton reads the source of a kernel from its file."""
    file = folder / "broken.py"
    file.write_text(source, "utf-8")
    spec = importlib.util.spec_from_file_location("broken", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_kernel_is_noticed(name: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after, fails = BROKEN[name]
    assert before in SOURCE
    monkeypatch.setattr(verbs, "kernels", module_of(SOURCE.replace(before, after), tmp_path))
    with pytest.raises(AssertionError):
        fails(device)


@pytest.mark.parametrize("fails", [many_tiles, large_mean, large_values])
def test_the_check_passes_otherwise(fails: Check, device: str) -> None:
    fails(device)
