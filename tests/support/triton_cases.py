"""Layers x forms x dtypes for the kernels in Triton, and the oracle: what is valid alone, in float64.

LARGE has a sequence of two tiles (a tile has 128 positions of 32 channels), one of none and one of a single position;
its channels are no power of two. SMALL takes a third of the time. NaN is wherever nothing is valid, in x and in dy.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

import truenorm.torch as tnt

GROUPS, EPS = 4, 1e-3
NAN = float("nan")
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Largest error that is allowed, of the largest number: a few roundings of what is computed in, and one of the dtype.
# Triton's interpreter does not round to bfloat16, it cuts: 2⁻⁷.
BOUNDS = {torch.float32: 6e-7, torch.float64: 2e-15, torch.bfloat16: 8e-3, torch.float16: 6e-4}


class Size(NamedTuple):
    channels: int
    lengths: tuple[int, ...]


SMALL, LARGE = Size(12, (5, 0, 1)), Size(36, (131, 0, 1))
LAYERS: dict[str, Callable[[int], Any]] = {
    "batch": lambda channels: tnt.BatchNorm1d(channels, eps=EPS, momentum=0.3),
    "batch, evaluation": lambda channels: tnt.BatchNorm1d(channels, eps=EPS).eval(),
    "group": lambda channels: tnt.GroupNorm(GROUPS, channels, eps=EPS),
    "instance": lambda channels: tnt.InstanceNorm1d(channels, eps=EPS, affine=True),
    "layer": lambda channels: tnt.LayerNorm(channels, eps=EPS),
    "rms": lambda channels: tnt.RMSNorm(channels, eps=EPS),
}
FORMS = (
    "lengths, channels second",
    "lengths, channels last",
    "valid, channels second",
    "valid, channels last",
    "valid of elements",
    "offsets",
    "segments",
)
PACKED = ("offsets", "segments")


def made(name: str, size: Size, dtype: torch.dtype, device: str) -> Any:
    return filled(LAYERS[name](size.channels), dtype, device)


def filled(layer: Any, dtype: torch.dtype, device: str) -> Any:
    """Weights, biases and running statistics that hide no error."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, one in [*layer.named_parameters(), *layer.named_buffers()]:
            if one.is_floating_point():
                new = torch.rand(one.shape, generator=generator) * 1.6 + 0.3
                one.copy_(new if name in ("running_var", "running_mean") else new * torch.where(new > 1.1, -1, 1))
    return layer.to(dtype).to(device)


def sequences(dtype: torch.dtype, size: Size, offset: float = 2.0) -> list[tuple[Any, Any]]:
    """x and dy of each sequence (positions, channels), already rounded."""
    generator = torch.Generator().manual_seed(5)
    found = []
    for n in size.lengths:
        x = torch.randn(n, size.channels, generator=generator, dtype=torch.float64) * 1.3 + offset
        found.append((x.to(dtype), torch.randn(n, size.channels, generator=generator, dtype=torch.float64).to(dtype)))
    return found


def alone(name: str, layer: Any, parts: list[tuple[Any, Any]]) -> dict[str, Any]:
    """y and dx of each sequence without any padding, the gradients of parameters, and running statistics: float64."""
    leaves = [x.double().cpu().requires_grad_() for x, _ in parts]
    parameters = {key: value.detach().double().cpu().requires_grad_() for key, value in layer.named_parameters()}
    buffers = {key: value.double().cpu() for key, value in layer.named_buffers()}
    channels = leaves[0].shape[1]
    if name.startswith("batch"):
        rows = torch.cat(leaves)
        mean, var = rows.mean(0), rows.var(0, unbiased=False)
        if name == "batch":
            found = {"running_mean": 0.7 * buffers["running_mean"] + 0.3 * mean.detach()}
            found["running_var"] = 0.7 * buffers["running_var"] + 0.3 * rows.detach().var(0)
        else:
            found = {key: buffers[key] for key in ("running_mean", "running_var")}
            mean, var = found["running_mean"], found["running_var"]
        hats = [(x - mean) / torch.sqrt(var + EPS) for x in leaves]
    else:
        found = {}
        split = {"group": (GROUPS, channels // GROUPS), "instance": (channels, 1)}.get(name, (1, channels))
        axes = (0, 2) if name in ("group", "instance") else (2,)
        hats = []
        for x in leaves:
            grouped = x.reshape(len(x), *split)
            mean = grouped.mean(axes, keepdim=True) if len(x) and name != "rms" else torch.zeros(())
            var = ((grouped - mean) ** 2).mean(axes, keepdim=True) if len(x) else torch.ones(())
            hats.append(((grouped - mean) / torch.sqrt(var + EPS)).reshape(x.shape))
    outputs = [hat * parameters["weight"] + parameters.get("bias", 0.0) for hat in hats]
    loss = sum((y * dy.double().cpu()).sum() for y, (_, dy) in zip(outputs, parts, strict=True))
    gradients = torch.autograd.grad(loss, [*leaves, *parameters.values()])
    found |= {f"d{key}": one for key, one in zip(parameters, gradients[len(leaves) :], strict=True)}
    return found | {"y": torch.cat(outputs).detach(), "dx": torch.cat(gradients[: len(leaves)])}


@dataclass
class Formed:
    """Sequences in one form: x and dy as the layer takes them, its arguments, and how rows come back."""

    x: Any
    dy: Any
    arguments: dict[str, Any]
    rows: Callable[[Any], Any]  # of a tensor like x: the valid ones, (rows, channels), sequence by sequence
    outside: Callable[[Any], Any]  # all others


def formed(name: str, form: str, parts: list[tuple[Any, Any]], device: str, more: int = 9, junk: float = NAN) -> Formed:
    """more: positions behind the longest sequence; junk: what they hold."""
    lengths = [len(x) for x, _ in parts]
    if form in PACKED:
        x, dy = (torch.cat([pair[i] for pair in parts]).to(device) for i in (0, 1))
        ids = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
        if form == "offsets":
            bounds = torch.cat([torch.zeros(1, dtype=torch.int64), torch.tensor(lengths).cumsum(0)])
            return Formed(x, dy, {"offsets": bounds.to(device)}, lambda like: like, lambda like: like[:0])
        order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(2)).to(device)
        back = torch.argsort(order)
        # The order of rows within a segment is that of x: which of them comes first does not matter to the oracle.
        return Formed(
            x[order],
            dy[order],
            {"segments": 3 * ids.to(device)[order] - 4},
            lambda like: like[back],
            lambda like: like[:0],
        )
    extent = max(lengths) + more
    valid = torch.zeros(len(parts), extent, dtype=torch.bool)
    for i, n in enumerate(lengths):
        if form.startswith("lengths"):
            valid[i, :n] = True
        else:  # gaps in between, and padding in front
            places = torch.randperm(extent, generator=torch.Generator().manual_seed(i))[:n]
            valid[i, places] = True
    padded = []
    for i in (0, 1):
        full = torch.full((len(parts), extent, parts[0][0].shape[1]), junk, dtype=parts[0][0].dtype)
        full[valid] = torch.cat([pair[i] for pair in parts])
        padded.append(full.to(device))
    valid = valid.to(device)
    second = name not in ("layer", "rms")
    if second:  # (b, c, t), in memory as the form says
        padded = [one.transpose(1, 2) for one in padded]
        if form != "lengths, channels last" and form != "valid, channels last":
            padded = [one.contiguous() for one in padded]
    arguments: dict[str, Any] = (
        {"lengths": torch.tensor(lengths).to(device)} if form.startswith("lengths") else {"valid": valid}
    )
    if form == "valid of elements":
        arguments = {"valid": valid[:, None] if second else valid[:, :, None]}
        arguments["valid"] = arguments["valid"].expand(padded[0].shape)

    def by_row(like: Any) -> Any:
        return like.transpose(1, 2) if second else like

    return Formed(padded[0], padded[1], arguments, lambda like: by_row(like)[valid], lambda like: by_row(like)[~valid])


def computed(layer: Any, given: Formed, dtype: torch.dtype) -> dict[str, Any]:
    """What `alone` returns, of a layer with ragged arguments."""
    x = given.x.detach().requires_grad_()
    y = layer(x, **given.arguments)
    y.backward(given.dy)
    assert y.dtype == x.grad.dtype == dtype
    assert not given.outside(y).any()
    assert not given.outside(x.grad).any()
    found = {"y": given.rows(y.detach()), "dx": given.rows(x.grad)}
    found |= {f"d{key}": value.grad for key, value in layer.named_parameters()}
    return found | {key: one for key, one in layer.named_buffers() if key.startswith("running")}


def largest_errors(found: dict[str, Any], expected: dict[str, Any]) -> dict[str, float]:
    """The largest error of each result, of its largest number. Everything must be finite."""
    assert found.keys() == expected.keys()
    errors = {}
    for key, value in expected.items():
        one = found[key].double().cpu()
        assert one.shape == value.shape, key
        assert torch.isfinite(one).all(), f"{key} is not finite"
        errors[key] = float((one - value).abs().max() / value.abs().max().clamp(min=1.0))
    return errors


def check(name: str, form: str, dtype: torch.dtype, device: str, size: Size = LARGE) -> dict[str, float]:
    """One layer, form and dtype against the oracle; the errors."""
    parts = sequences(dtype, size)
    layer = made(name, size, dtype, device)
    expected = alone(name, layer, parts)
    errors = largest_errors(computed(layer, formed(name, form, parts, device), dtype), expected)
    for key, error in errors.items():
        # Running statistics are kept in float32.
        bound = BOUNDS[torch.float32] if key.startswith("running") and dtype != torch.float64 else BOUNDS[dtype]
        assert error <= bound, f"{name}, {form}, {dtype}: {key} is off by {error:.2g}, allowed {bound:.2g}"
    return errors
