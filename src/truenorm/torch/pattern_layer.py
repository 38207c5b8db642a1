"""`Normalize`: a layer for any pattern, with the arguments and options of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from truenorm.core.inputs import Padding
from truenorm.core.norm import Norm, as_norm, text_of
from truenorm.core.packed import rows_of
from truenorm.torch import _running, _runs
from truenorm.torch._dispatch import run
from truenorm.torch._documentation import documented
from truenorm.torch._formula import FixedStatistics
from truenorm.torch._inputs import Input, LengthsLike, MaskLike, VectorLike, WeightLike, unpack
from truenorm.torch._kernel import table_of
from truenorm.torch._layer_bases import _TrackingLayer
from truenorm.torch._norms import Norms, packed_norms
from truenorm.torch._traced_call import Proxy, record_call


@documented
class Normalize(_TrackingLayer, nn.Module):
    """Any normalization as a layer, written as a pattern.

    Args:
        norm: which axes share a mean and a variance: a pattern, or a `Norm`
        shape: of weight and bias: the sizes of the axes that they cover
        affine: whether there are a weight and a bias
        bias: whether there is a bias if there is a weight
        track_running_stats: keep running statistics, and use them in evaluation: for norms that keep no other axes
        momentum, padding, device, dtype: as for the other layers

    Shape: that of the pattern. Packed rows, jagged tensors and PackedSequences need a norm with the axes b, t and c.
    Other axes stay behind the rows: x is (rows, h, c) for "b [t] h c".

    Examples:
        >>> import torch
        >>> import truenorm.torch as tnt
        >>> x = torch.randn(2, 9, 4, 8)  # (b, t, heads, c)
        >>> layer = tnt.Normalize("b [t] h c", 8)  # each head by itself, over time
        >>> torch.allclose(layer(x, lengths=[9, 5])[1, :5], layer(x[1:, :5])[0], atol=1e-6)
        True
    """

    def __init__(
        self,
        norm: Norm | str,
        shape: int | Sequence[int],
        *,
        affine: bool = True,
        bias: bool = True,
        track_running_stats: bool = False,
        momentum: float | None = 0.1,
        padding: Padding = "zero",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        norm = as_norm(norm)
        _runs.check_options(padding)
        if affine and not norm.affine_axes:
            raise ValueError(f"Normalize: affine=False for a norm without a channel axis, got {norm!r}.")
        super().__init__()
        size = (shape,) if isinstance(shape, int) else tuple(shape)
        self.shape, self.affine = size, affine
        self.norm = norm
        self.momentum, self.track_running_stats, self.padding = momentum, track_running_stats, padding
        self.weight = nn.Parameter(torch.ones(size, device=device, dtype=dtype)) if affine else None
        self.bias = nn.Parameter(torch.zeros(size, device=device, dtype=dtype)) if affine and bias else None
        kept = {piece.name for axis in norm.axes for piece in axis.pieces if not piece.reduced}
        covered = {name for names in norm.affine_axes for name in names}
        if track_running_stats and kept != covered:
            raise ValueError(
                f"Normalize: running statistics for a norm that keeps only the axes of its weight, got {norm!r}, "
                f"which keeps {' '.join(sorted(kept))}. Leave track_running_stats out."
            )
        self.register_buffer("running_mean", torch.zeros(size, device=device) if track_running_stats else None)
        self.register_buffer("running_var", torch.ones(size, device=device) if track_running_stats else None)
        counter = torch.tensor(0, dtype=torch.long, device=device) if track_running_stats else None
        self.register_buffer("num_batches_tracked", counter)
        self._skip_counter()

    def __setattr__(self, name: str, value: Any) -> None:
        value = as_norm(value) if name == "norm" else value
        super().__setattr__(name, value)
        if name == "norm":  # with its own eps and activation; `layer.eps = ...` changes it
            self.eps, self.activation = value.eps, value.activation

    def _make_norms(self) -> Norms:
        return text_of(replace(self.norm, eps=self.eps, activation=self.activation)), None

    def extra_repr(self) -> str:
        """How the layer prints."""
        own = f"{self.norm!r}, {self.shape}, affine={self.affine}, track_running_stats={self.track_running_stats}"
        return f"{own}, frozen=True" if self.frozen else own

    @documented
    def forward(
        self,
        input: Input,
        valid: MaskLike | None = None,
        lengths: LengthsLike | None = None,
        offsets: VectorLike | None = None,
        segments: VectorLike | None = None,
        sample_weight: WeightLike | None = None,
        *,
        along: int | str | None = None,
    ) -> Input:
        """The normalized input, in its own form: a tensor, a jagged tensor or a PackedSequence.

        Args:
            input: of the axes of the pattern; packed rows; jagged; PackedSequence
            valid, lengths, offsets, segments, sample_weight, along: which positions are valid
        """
        if isinstance(input, Proxy):
            return record_call(self, input, valid, lengths, offsets, segments, sample_weight, along=along)
        rows = rows_of(self.norm)
        unpacked = unpack(
            input,
            valid,
            lengths,
            offsets,
            segments,
            sample_weight,
            along,
            sequences=rows is None or not rows.alike,
            row_axes=1 if rows is None else rows.named,
        )
        norms = self._norms
        if unpacked.packed and (unpacked.ragged is None or unpacked.ragged.offsets is None):  # rows that are alike
            norms = packed_norms(norms, unpacked.x.dim())
        weight, bias, mean, var, counter = self._state()
        fixed = None
        if (self.frozen or not self.training) and mean is not None and var is not None:
            fixed = FixedStatistics(mean, var)
        y: Any
        y, moments = run(unpacked, norms, weight, bias, self.padding, self.shape, fixed=fixed)
        if fixed is None and mean is not None and var is not None and not _running.recomputing():
            table = moments.reshape(-1, 3) if isinstance(moments, Tensor) else table_of(moments)
            done = _running.update(table, mean, var, self._weight_of_batch(counter), counter, self._skip_counter())
            if done == _running.NOT_FINITE:
                self.skipped_batches += 1
        found: Input = y if unpacked.repack is None else unpacked.repack(y)
        return found
