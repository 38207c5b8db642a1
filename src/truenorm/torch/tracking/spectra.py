"""Rules for short-time spectra: `stft`, `istft`, and Fourier transforms of each position by itself.

A frame that lies inside a sequence reads no padding, so there are as many valid frames as a sequence alone has:

    floor((length - n_fft) / hop) + 1

With center=True each sequence is extended at both ends first, by the rule of `pad`. A Fourier transform along
positions mixes all of them, and depends on their number: it is not followed.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from truenorm.torch.tracking.inputs import Fresh
from truenorm.torch.tracking.numbers import of_sequence
from truenorm.torch.tracking.registry import rule
from truenorm.torch.tracking.tag import BATCH, Axis, Factor, Padding, Tag, has_role, make_tag
from truenorm.torch.tracking.tracker import Tracker


@cache
def _signature() -> inspect.Signature:
    return inspect.signature(torch.stft)


@rule(torch.stft, Tensor.stft, reads_inputs=True)
def stft(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """x (b, samples): an input of the model has its positions on the last axis."""
    bound = _signature().bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    x: Tensor = given.pop("input")
    if isinstance(tracker.look(x), Fresh) and x.dim() == 2:
        tracker.positions(x, (1,), func)
    found = tracker.look(x)
    is_batch = isinstance(found, Tag) and found.is_ragged and found.batch == 0 and set(found.lengths) == {1}
    if not isinstance(found, Tag) or not is_batch or given["align_to_window"]:
        return tracker.call_unknown(func, (x,), given)
    size = given["n_fft"]
    if given.pop("center"):
        x = tracker.call(functional.pad, (x, (size // 2, size // 2), given["pad_mode"]), {})
        found = tracker.tag(x) or found
    given["center"] = False
    x, found = tracker.fill_unless_finite(x, found)
    result = func(x, **given)
    hop = given["hop_length"] or size // 4
    frames = tuple(max(0, (n - size) // hop + 1) for n in found.lengths[1])
    axes: list[Axis] = [(Factor(n),) for n in result.shape]
    axes[0], axes[2] = (Factor(len(x), BATCH),), (Factor(result.shape[2], frames),)
    tracker.set(result, Tag(tuple(axes), Padding.FINITE))
    return result


ISTFT_NAMES = (
    "input", "n_fft", "hop_length", "win_length", "window", "center", "normalized", "onesided", "length",
    "return_complex",
)  # fmt: skip


@rule(torch.istft, Tensor.istft)
def istft(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """x (b, bins, frames): each sequence alone, since its last samples depend on where its frames end."""
    given = {**dict(zip(ISTFT_NAMES, args, strict=False)), **kwargs}
    x: Tensor = given.pop("input")
    found = tracker.look(x)
    if not isinstance(found, Tag) or found.batch != 0 or set(found.extents) != {2} or 2 not in found.lengths:
        return tracker.call_unknown(func, args, kwargs)
    frames = found.lengths[2]
    parts = [func(x[row : row + 1, :, : n or 1], **of_sequence(given, row)) for row, n in enumerate(frames)]
    samples = tuple(part.shape[1] if n else 0 for part, n in zip(parts, frames, strict=True))
    size = max(part.shape[1] for part in parts)
    if given.get("length") is None:  # as without `padded`: other branches have this size
        hop = given.get("hop_length") or given["n_fft"] // 4
        size = parts[0].shape[1] + hop * (x.shape[2] - (frames[0] or 1))
    parts = [functional.pad(part[:, :n], (0, size - n)) for part, n in zip(parts, samples, strict=True)]
    result = torch.cat(parts)
    tracker.set(result, make_tag(result.shape, 0, {1: samples}, Padding.ZERO))
    return result


ONE_AXIS = (torch.fft.fft, torch.fft.ifft, torch.fft.rfft, torch.fft.irfft, torch.fft.hfft, torch.fft.ihfft)


@rule(*ONE_AXIS, reads_inputs=True)
def transform(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Along an axis without positions: each position by itself."""
    given = {**dict(zip(("input", "n", "dim", "norm"), args, strict=False)), **of_sequence(kwargs, None)}
    x = given.pop("input")
    found, axis = tracker.look(x), given.get("dim", -1) % x.dim()
    if not isinstance(found, Tag) or has_role(found.axes[axis]):
        return tracker.call_unknown(func, (x,), given)
    x, found = tracker.fill_unless_finite(x, found)
    result = func(x, **given)
    tracker.set(result, found.with_axis(axis, result.shape[axis]))
    return result
