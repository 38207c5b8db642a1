"""A Linear, Conv or ConvTranspose with fixed batch norms folded in: its parameters, when that is exact, and a bound.

All three are sums of products, and their weight has one form, (groups, out / groups, in / groups, taps), in which
output channels are the axes 0 and 1, and input channels 0 and 2. With the norm as s · x + t,

    after the layer    weight' = s_out · weight    bias' = s_out · bias + t_out          always exact
    before the layer   weight' = s_in · weight     bias' = bias + Σ t_in · weight        if every output sums over the
                                                                                         same taps, or t = 0

A layer that pads with zeros sums over fewer taps at the borders, as the zeros are not normalized. Padding by
reflection, replication or around the end copies values that are. A transposed convolution sums over the same taps
everywhere only if it has one tap, stride 1 and no output padding. Everything is computed in float64, and rounded once
at the end.

The bound (`relative_bound`). Let u be the unit roundoff and γ(n) = n·u / (1 - n·u). A sum of K products is off by at
most γ(K + 1) times the sum of their absolute values, in any order of summation; a norm by at most γ(8) times
|s|·(|x| + |mean|) + |bias|. Let A be the folded layer of |x|, with absolute values of all parameters and of all terms
of the bias. Then the original with j norms is off by at most γ(K + 1 + 8j)·A, and the folded layer, with the rounding
of its parameters, by at most γ(2K + 2 + 8j)·A. They differ by at most γ(3K + 4 + 16j)·A. Sums of float16 and bfloat16
are in float32; only outputs and parameters are rounded to them, at most 2j + 4 times. Parameters below the smallest
normal number are off by less than u times that number, which is why A has it added. The bound does not hold for
Winograd's algorithm.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from truenorm.core import recipes
from truenorm.torch._formula import FixedStatistics, slope_and_offset
from truenorm.torch._layer_bases import _RaggedLayer

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
LAYERS = (nn.Linear, *CONVOLUTIONS, *TRANSPOSED)
REDUCED_PRECISION = {"highest": 0.0, "high": 2.0**-11, "medium": 2.0**-8}  # of float32 products: TF32, bfloat16


def wide(tensor: Tensor) -> Tensor:
    """In float64, on the CPU: some devices do not have it."""
    return tensor.detach().to("cpu", torch.float64)


class FoldedLayer:
    """The layer with norms folded in; the layer itself stays as it is."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        self.before: list[Any] = []  # the norms, in the order in which they are called
        self.after: list[Any] = []
        self.transposed = isinstance(layer, TRANSPOSED)
        self.weight = self._by_channels(wide(layer.weight))
        channels = self.weight.shape[0] * self.weight.shape[1]
        self.bias = torch.zeros(channels, dtype=torch.float64) if layer.bias is None else wide(layer.bias)
        self.terms = self.bias.abs()  # the sum of the absolute values of all that was added to make the bias

    def fold_after(self, norm: Any) -> str | None:
        """Returns why not, if the result is not finite."""
        slope, offset, terms = _affine(norm)
        groups, out = self.weight.shape[:2]
        weight = self.weight * slope.reshape(groups, out, 1, 1)
        bias = slope * self.bias + offset
        if (reason := self._take(weight, bias, slope.abs() * self.terms + terms)) is None:
            self.after.append(norm)
        return reason

    def fold_before(self, norm: Any) -> str | None:
        """Returns why not, if it is not exact or the result is not finite."""
        slope, offset, terms = _affine(norm)
        if bool(offset.any()) and (reason := _uneven_taps(self.layer)) is not None:
            return reason
        groups, _, inputs = self.weight.shape[:3]
        slope, offset, terms = (one.reshape(groups, 1, inputs, 1) for one in (slope, offset, terms))
        bias = self.bias + (self.weight * offset).sum((2, 3)).flatten()
        all_terms = self.terms + (self.weight.abs() * terms).sum((2, 3)).flatten()
        if (reason := self._take(self.weight * slope, bias, all_terms)) is None:
            self.before.insert(0, norm)
        return reason

    def _take(self, weight: Tensor, bias: Tensor, terms: Tensor) -> str | None:
        dtype = self.layer.weight.dtype
        if not all(bool(one.to(dtype).isfinite().all()) for one in (weight, bias)):
            return f"the folded parameters are not finite in {str(dtype).removeprefix('torch.')}"
        self.weight, self.bias, self.terms = weight, bias, terms
        return None

    def _by_channels(self, weight: Tensor) -> Tensor:
        """(groups, out / groups, in / groups, taps)."""
        groups = getattr(self.layer, "groups", 1)
        split = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
        return split.transpose(1, 2) if self.transposed else split

    def _as_in_layer(self, weight: Tensor) -> Tensor:
        split = weight.transpose(1, 2) if self.transposed else weight
        return split.reshape(self.layer.weight.shape)

    def rounded(self) -> tuple[nn.Parameter, nn.Parameter]:
        """weight and bias as the layer stores them: dtype, device, memory format, requires_grad."""
        old, like = self.layer.weight, self.layer.weight if self.layer.bias is None else self.layer.bias
        weight = torch.empty_like(old, requires_grad=False).copy_(self._as_in_layer(self.weight))
        bias = torch.empty(self.bias.shape, dtype=like.dtype, device=like.device).copy_(self.bias)
        return nn.Parameter(weight, old.requires_grad), nn.Parameter(bias, like.requires_grad)

    # ---- the bound ----

    def original(self) -> nn.Module:
        """Norms and layer as they are, in float64 on the CPU."""
        parts = [copy.deepcopy(one) for one in (*self.before, self.layer, *self.after)]
        return nn.Sequential(*parts).to("cpu", torch.float64).requires_grad_(False)

    def exact(self) -> Any:
        """The folded layer in float64 on the CPU, its parameters not rounded."""
        return self._with(self._as_in_layer(self.weight), self.bias)

    def magnitude(self) -> Any:
        """A layer that makes A of |x|: see the top of this file."""
        tiny = torch.finfo(self.layer.weight.dtype).smallest_normal
        return self._with(self._as_in_layer(self.weight).abs() + tiny, self.terms + tiny)

    def _with(self, weight: Tensor, bias: Tensor) -> Any:
        layer = copy.deepcopy(self.layer).to("cpu", torch.float64)
        layer.weight, layer.bias = nn.Parameter(weight, False), nn.Parameter(bias, False)
        return layer

    def relative_bound(self, dtype: torch.dtype, sums: float) -> float:
        """What A is multiplied by, for outputs in this dtype and sums with this unit roundoff."""
        products = self.weight.shape[2] * self.weight.shape[3]
        norms = len(self.before) + len(self.after)
        summing = _gamma(3 * products + 4 + 16 * norms, sums)
        storing = _gamma(2 * norms + 4, torch.finfo(dtype).eps / 2)
        return (1 + summing) * (1 + storing) - 1


def _gamma(count: int, roundoff: float) -> float:
    return count * roundoff / (1 - count * roundoff) if count * roundoff < 1 else math.inf


def roundoff_of_sums(dtype: torch.dtype, device: torch.device) -> float:
    """Of products and sums in this dtype: those of float16 and bfloat16 are in float32, which may itself be reduced."""
    if dtype == torch.float64:
        return torch.finfo(dtype).eps / 2
    reduced = REDUCED_PRECISION.get(torch.get_float32_matmul_precision(), 2.0**-8)
    if device.type != "cpu":  # convolutions there use TF32 unless that is turned off
        reduced = max(reduced, 2.0**-11)
    return max(reduced, torch.finfo(torch.float32).eps / 2)


def affine_is_defined(norm: Any) -> bool:
    """Whether the norm gives numbers. Without a deviation torch's gives NaN, and truenorm's the bias."""
    return isinstance(norm, _RaggedLayer) or bool((wide(norm.running_var) + norm.eps > 0).all())


def _affine(norm: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Slope and offset of a norm, and the sum of the absolute values of the terms of the offset."""
    weight, bias = (None if one is None else wide(one) for one in (norm.weight, norm.bias))
    fixed = FixedStatistics(wide(norm.running_mean), wide(norm.running_var))
    recipe = recipes.batch("second", eps=norm.eps)
    slope, offset = slope_and_offset(fixed, recipe, weight, bias)
    mean = slope_and_offset(fixed, recipe, weight, None)[1]
    return slope, offset, mean.abs() if bias is None else mean.abs() + bias.abs()


def _uneven_taps(layer: Any) -> str | None:
    """Why a constant input does not give a constant output."""
    if isinstance(layer, TRANSPOSED):
        even = all(one == 1 for one in (*layer.kernel_size, *layer.stride)) and not any(layer.output_padding)
        return None if even else "is transposed: its outputs have different numbers of inputs"
    if isinstance(layer, CONVOLUTIONS) and layer.padding_mode == "zeros" and any(map(sum, _padding(layer))):
        return "pads with zeros, which are not normalized: the borders would differ"
    return None


def _padding(layer: Any) -> list[tuple[int, int]]:
    """Of a convolution, along each axis: before and after."""
    if layer.padding == "same":
        totals = [reach * (size - 1) for reach, size in zip(layer.dilation, layer.kernel_size, strict=True)]
        return [(total // 2, total - total // 2) for total in totals]
    if layer.padding == "valid":
        return [(0, 0)] * len(layer.kernel_size)
    return [(size, size) for size in layer.padding]


def border_inputs(layer: Any) -> Iterator[Tensor]:
    """Inputs as small as the layer takes, and larger ones: random, and constant, for which only borders differ."""
    generator = torch.Generator().manual_seed(0)
    if isinstance(layer, nn.Linear):
        shapes = [(3, layer.in_features)]
    else:
        smallest = _smallest_sizes(layer)
        shapes = [(2, layer.in_channels, *(size + more for size in smallest)) for more in (0, 1, 4)]
    for shape in shapes:
        yield 3 + 2 * torch.randn(shape, generator=generator, dtype=torch.float64)
        yield torch.ones(shape, dtype=torch.float64)


def _smallest_sizes(layer: Any) -> list[int]:
    reach: Any = [d * (k - 1) + 1 for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
    if isinstance(layer, TRANSPOSED):
        sizes: Any = zip(layer.padding, layer.output_padding, layer.stride, reach, strict=True)
        return [max(1, 1 - (far + more - 2 * cut - 1) // stride) for cut, more, stride, far in sizes]
    copied = layer.padding_mode != "zeros"  # there must be enough to copy
    return [max(1, far - sum(pad), copied * (1 + max(pad))) for far, pad in zip(reach, _padding(layer), strict=True)]
