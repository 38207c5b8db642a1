"""LayerNorm and RMSNorm: each position by itself. Their calls also take `residual=`: see `_residual.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

from torch import Tensor, nn

from truenorm.core.activation import Activation
from truenorm.core.inputs import Padding
from truenorm.torch import _norms, _runs
from truenorm.torch._documentation import documented
from truenorm.torch._inputs import Input, LengthsLike, MaskLike, UnpackedInput, VectorLike, WeightLike, unpack
from truenorm.torch._layer_bases import _RaggedLayer
from truenorm.torch._norms import Norms
from truenorm.torch._residual import normalize_sum
from truenorm.torch._traced_call import Proxy, record_call


class _RowNorm(_RaggedLayer):
    """What both share: the call with a residual."""

    normalized_shape: tuple[int, ...]
    eps: Any
    _run: Callable[..., Tensor]

    if TYPE_CHECKING:

        @overload
        def __call__(
            self,
            input: Input,
            valid: MaskLike | None = None,
            lengths: LengthsLike | None = None,
            offsets: VectorLike | None = None,
            segments: VectorLike | None = None,
            sample_weight: WeightLike | None = None,
            *,
            along: int | str | None = None,
            residual: None = None,
        ) -> Input: ...
        @overload
        def __call__(
            self,
            input: Input,
            valid: MaskLike | None = None,
            lengths: LengthsLike | None = None,
            offsets: VectorLike | None = None,
            segments: VectorLike | None = None,
            sample_weight: WeightLike | None = None,
            *,
            along: int | str | None = None,
            residual: Input,
        ) -> tuple[Input, Input]: ...
        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def _normalize_sum(
        self, input: Any, residual: Any, given: tuple[Any, Any, Any, Any, Any], along: int | str | None
    ) -> tuple[Any, Any]:
        def unpacked(x: Any) -> UnpackedInput:
            return unpack(x, *given, along=along, rows_only=True)

        def normalize(x: UnpackedInput) -> Tensor:
            return self._run(x, shape, weight, bias, self.eps, self.padding, self._norms)

        (weight, bias), shape = self._affine(), self.normalized_shape
        norms = self._norms_of(input)
        return normalize_sum(input, residual, unpacked, normalize, norms, weight, bias, self.padding, shape)

    def _norms_of(self, input: Any) -> Norms:
        found: Norms = self._norms
        return found


@documented
class LayerNorm(_RowNorm, nn.LayerNorm):
    """torch's LayerNorm; padding comes out as 0, whatever it holds.

    Args:
        normalized_shape, eps, elementwise_affine, bias, device, dtype: as torch's
        padding, activation: truenorm's own

    Shape: (b, t, c), (..., normalized_shape); packed rows (rows, c); jagged; PackedSequence

    Examples:
        >>> import torch
        >>> import truenorm.torch as tnt
        >>> x = torch.tensor([[[1.0, 3.0], [float("nan"), 0.0]]])  # (b, t, c); the second position is padding
        >>> tnt.LayerNorm(2)(x, lengths=[1]).data
        tensor([[[-1.0000,  1.0000],
                 [ 0.0000,  0.0000]]])
    """

    _run = staticmethod(_runs.run_layer_norm)

    def __init__(
        self, *args: Any, padding: Padding = "zero", activation: Activation | None = None, **kwargs: Any
    ) -> None:
        _runs.check_options(padding, activation=activation)
        super().__init__(*args, **kwargs)
        self.padding, self.activation = padding, activation

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
        residual: Input | None = None,
    ) -> Any:
        """The normalized input, in its own form: a tensor, a jagged tensor or a PackedSequence.

        With a residual: the normalized sum, and the sum.

        Args:
            input: (..., normalized_shape); jagged; PackedSequence
            valid, lengths, offsets, segments, sample_weight, along: which positions are valid
            residual: added to the input before it is normalized; in its form
        """
        given = (valid, lengths, offsets, segments, sample_weight)
        if isinstance(input, Proxy):
            return record_call(self, input, *given, along=along, residual=residual)
        if residual is not None:
            return self._normalize_sum(input, residual, given, along)
        unpacked = unpack(input, *given, along=along, rows_only=True)
        weight, bias = self._affine()
        y: Any = self._run(unpacked, self.normalized_shape, weight, bias, self.eps, self.padding, self._norms)
        return y if unpacked.repack is None else unpacked.repack(y)

    def _make_norms(self) -> Any:
        return _norms.row_norm(len(self.normalized_shape), self.eps, True, self.activation)


@documented
class RMSNorm(_RowNorm, nn.RMSNorm):
    """torch's RMSNorm; padding comes out as 0, whatever it holds.

    Args:
        normalized_shape: the sizes of the last axes, which are averaged over
        eps: added to the mean square; None: torch's choice, which depends on the dtype
        elementwise_affine, device, dtype: as torch's
        padding, activation: truenorm's own

    Shape: (b, t, c), (..., normalized_shape); packed rows (rows, c); jagged; PackedSequence

    Examples:
        >>> import torch
        >>> import truenorm.torch as tnt
        >>> tnt.RMSNorm(2)(torch.tensor([[[3.0, 4.0], [float("nan"), 0.0]]]), lengths=[1]).data
        tensor([[[0.8485, 1.1314],
                 [0.0000, 0.0000]]])
    """

    _run = staticmethod(_runs.run_rms_norm)

    def __init__(
        self, *args: Any, padding: Padding = "zero", activation: Activation | None = None, **kwargs: Any
    ) -> None:
        _runs.check_options(padding, activation=activation)
        super().__init__(*args, **kwargs)
        self.padding, self.activation = padding, activation

    @documented
    def forward(
        self,
        x: Input,
        valid: MaskLike | None = None,
        lengths: LengthsLike | None = None,
        offsets: VectorLike | None = None,
        segments: VectorLike | None = None,
        sample_weight: WeightLike | None = None,
        *,
        along: int | str | None = None,
        residual: Input | None = None,
    ) -> Any:
        """The normalized input, in its own form: a tensor, a jagged tensor or a PackedSequence.

        With a residual: the normalized sum, and the sum.

        Args:
            x: (..., normalized_shape); jagged; PackedSequence
            valid, lengths, offsets, segments, sample_weight, along: which positions are valid
            residual: added to the input before it is normalized; in its form
        """
        given = (valid, lengths, offsets, segments, sample_weight)
        if isinstance(x, Proxy):
            return record_call(self, x, *given, along=along, residual=residual)
        if residual is not None:
            return self._normalize_sum(x, residual, given, along)
        unpacked = unpack(x, *given, along=along, rows_only=True)
        weight, bias = self._affine()
        y: Any = self._run(unpacked, self.normalized_shape, weight, bias, self.eps, self.padding, self._norms)
        return y if unpacked.repack is None else unpacked.repack(y)

    def _make_norms(self) -> Any:
        return _norms.rms_norms(len(self.normalized_shape), self.eps, self.activation)

    def _norms_of(self, input: Any) -> Norms:
        return _runs.rms_norms_of(input, self._norms)
