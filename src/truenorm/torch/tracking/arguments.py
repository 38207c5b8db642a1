"""The arguments of `padded`: lengths or a mask, checked, as values that tags hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from truenorm.core.lengths import is_one_for_each_axis
from truenorm.torch.tracking.tag import Extent, Gaps, Lengths

LengthsLike = Tensor | Sequence[int]


def extents_of(
    lengths: LengthsLike | tuple[LengthsLike, ...] | None, valid: Tensor | None
) -> tuple[tuple[Extent, ...], int]:
    """The valid positions of each position axis, and the batch size. Values are read here, and only here."""
    if (lengths is None) == (valid is None):
        raise ValueError(f"padded: either lengths or valid, got {'neither' if lengths is None else 'both'}. Pass one.")
    if valid is not None:
        return _from_mask(valid)
    try:
        vectors: Any = lengths if is_one_for_each_axis(lengths) else (lengths,)
    except ValueError as error:
        raise ValueError(f"padded: {error}") from None
    found = tuple(map(_read, vectors))
    if len({len(one) for one in found}) > 1:
        raise ValueError(f"padded: one length for each sequence, got {', '.join(str(len(one)) for one in found)}.")
    return found, len(found[0])


def _read(lengths: Any) -> Lengths:
    try:
        values = torch.as_tensor(lengths)
    except (TypeError, ValueError, RuntimeError) as error:
        if str(error).startswith("padded: "):  # of a context that this one is inside of
            raise
        raise TypeError(f"padded: lengths are a vector of whole numbers, got {lengths!r}.") from None
    values = values if values.numel() else values.long()
    if values.dim() != 1:
        raise ValueError(f"padded: lengths of shape (b,), got {tuple(values.shape)}.")
    if values.dtype == torch.bool:
        raise TypeError("padded: lengths are whole numbers, got booleans. A mask goes into valid=.")
    if values.is_floating_point() or values.is_complex():
        relative = not values.is_complex() and bool(((values >= 0) & (values <= 1)).all())
        fix = "Multiply relative lengths by the number of positions" if relative else "Pass lengths.long()"
        raise TypeError(
            f"padded: lengths are whole numbers, got {values.dtype}. {fix}{', and round them' if relative else ''}."
        )
    found = tuple(values.tolist())
    if any(one < 0 for one in found):
        raise ValueError(f"padded: lengths >= 0, got {min(found)}.")
    return found


def _from_mask(valid: Any) -> tuple[tuple[Extent, ...], int]:
    """A mask (b, t). If its valid positions are the first ones, it is the same as lengths."""
    mask = torch.as_tensor(valid)
    if mask.dim() != 2:
        raise ValueError(f"padded: valid of shape (b, t), got {tuple(mask.shape)}.")
    if mask.dtype != torch.bool:
        if mask.is_floating_point() or bool(((mask != 0) & (mask != 1)).any()):
            raise TypeError(
                f"padded: valid holds booleans, or the integers 0 and 1, got {mask.dtype}. Pass valid.bool()."
            )
        mask = mask.bool()
    counts = mask.sum(1)
    first = torch.arange(mask.shape[1], device=mask.device) < counts[:, None]
    if bool((first == mask).all()):
        return (tuple(counts.tolist()),), len(mask)
    with torch.inference_mode(False):  # a mask of inference mode may be used with gradients too
        return (Gaps(mask.clone()),), len(mask)


def axes_of(who: str, along: int | Sequence[int] | None, ndim: int | None, count: int) -> tuple[int, ...]:
    """The axes that `along` names: one for each vector of lengths."""
    axes = (along,) if isinstance(along, int) else tuple(along or ())
    if len(axes) != count or not all(isinstance(axis, int) for axis in axes):
        raise ValueError(f"{who}: along names one axis for each vector of lengths, {count}, got {along!r}.")
    if ndim is not None:
        axes = tuple(axis + ndim if axis < 0 else axis for axis in axes)
        if len(set(axes)) < count or not all(0 < axis < ndim for axis in axes):
            raise ValueError(
                f"{who}: along names axes behind the batch axis of a tensor with {ndim} axes, got {along!r}."
            )
    return axes
