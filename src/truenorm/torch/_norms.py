"""The normalizations of torch's layers, written as text: compiled graphs take text as a constant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, ParamSpec, TypeVar

import torch

from truenorm.core import recipes
from truenorm.core.activation import Activation
from truenorm.core.lengths import norm_along
from truenorm.core.norm import Norm, norm_from_text, text_of
from truenorm.core.packed import packed_norm

# As `text_of` writes it: of x as it is given, and of x with its axis 1 moved to the end (None if there is no such).
# Empty if the arguments make no sense, such as an eps below 0.
Norms = tuple[str, str | None]
# Of x (b, c, ...), and of packed rows (rows, c).
NormPair = tuple[Norms, Norms]
P = ParamSpec("P")
R = TypeVar("R")


def _constant(make: Callable[P, R]) -> Callable[P, R]:
    """Made once for the same arguments; a compiled graph takes the result as a constant.

    typed: 2.0 and True are refused, and must not be found for 2 and 1.
    """
    cached: Any = lru_cache(maxsize=256, typed=True)(make)

    def constant(*args: P.args, **kwargs: P.kwargs) -> R:
        found: R = cached(*args, **kwargs)
        return found

    mark: Any = torch.compiler.assume_constant_result
    marked: Callable[P, R] = mark(constant)
    return marked


def _pair(make: Callable[[recipes.Channels], Norm], activation: Activation | None) -> NormPair:
    """Empty if the arguments make no sense: torch's operator, which has no activation, raises the error."""
    try:
        second, last = text_of(make("second")), text_of(make("last"))
    except ValueError:
        if activation is not None:
            raise
        second, last = "", ""
    return (second, last), (last, None)


@_constant
def batch_norms(eps: float, activation: Activation | None = None) -> NormPair:
    return _pair(lambda channels: recipes.batch(channels, eps=eps, activation=activation), activation)


@_constant
def instance_norms(eps: float, activation: Activation | None = None) -> NormPair:
    return _pair(lambda channels: recipes.instance(channels, eps=eps, activation=activation), activation)


@_constant
def group_norms(groups: int, eps: float, activation: Activation | None = None) -> NormPair:
    return _pair(lambda channels: recipes.group(groups, channels, eps=eps, activation=activation), activation)


@_constant
def row_norm(axes: int, eps: float, center: bool, activation: Activation | None = None) -> Norms:
    """Over the last so many axes, with a weight for each of their elements."""
    names = " ".join([*(f"n{i}" for i in range(1, axes)), "c"])
    try:
        affine = None if axes == 1 else names
        norm = Norm(f"... [{names}]", eps=eps, center=center, affine=affine, activation=activation)
    except ValueError:
        if activation is not None:
            raise
        return "", None
    return text_of(norm) if axes else "", None


@_constant
def norms_along(norms: Norms, rank: int, along: int | str) -> Norms:
    """The same for x of this rank, with lengths along this axis."""
    if not norms[0]:
        return norms
    first = norm_along(norm_from_text(norms[0]), rank, along)
    if norms[1] is None:
        return text_of(first), None
    axis = along % rank if isinstance(along, int) else next(i for i, one in enumerate(first.axes) if "t" in one.names)
    return text_of(first), text_of(norm_along(norm_from_text(norms[1]), rank, axis - 1))


@_constant
def packed_norms(norms: Norms, rank: int) -> Norms:
    """The same for packed rows that are alike, x of this rank."""
    return (text_of(packed_norm(norm_from_text(norms[0]), rank)), None) if norms[0] else norms


@_constant
def without_activation(norms: Norms) -> tuple[Norms, Activation | None]:
    """The same without its activation, and this."""
    found = [None if text is None else norm_from_text(text) for text in norms]
    first, second = (None if norm is None else text_of(replace(norm, activation=None)) for norm in found)
    return (first or "", second), None if found[0] is None else found[0].activation


def rms_norms(axes: int, eps: float | None, activation: Activation | None = None) -> tuple[Norms, Norms]:
    """Of float32 and of float64. Without eps it is torch's choice: half and bfloat16 are summed in float32."""
    if eps is not None:
        norm = row_norm(axes, eps, False, activation)
        return norm, norm
    narrow, wide = (float(torch.finfo(dtype).eps) for dtype in (torch.float32, torch.float64))
    return row_norm(axes, narrow, False, activation), row_norm(axes, wide, False, activation)
