"""torch's normalization layers with these arguments more: `layer(x, valid, lengths, offsets, segments, sample_weight)`.

Each subclasses torch's own: constructor, attributes, `state_dict` and errors are torch's, and without the new
arguments so are the numbers. `truenorm.torch.functional` says what they mean. The differences, and the reasons for
them, are listed in docs/torch.md.

    padding     the output where nothing is valid: "zero", or "keep" x as it is
    on_single   batch norm in training with one value a channel: torch's "error", or the "running" statistics
    half_life   batch norm: instead of momentum, in valid values per channel: see `_half_life.py`
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from truenorm.core.inputs import Padding
from truenorm.torch import _compat, _norms, _running, functional
from truenorm.torch._half_life import VALUES, HalfLifeOption
from truenorm.torch._inputs import Input, LengthsLike, MaskLike, VectorLike, WeightLike, unpack, with_batch_axis
from truenorm.torch._norms import NormPair
from truenorm.torch._pooled import Exchange
from truenorm.torch._torch_sync import RefusesTorchSync
from truenorm.torch._traced_call import Proxy, record_call
from truenorm.torch.functional import OnSingle

LOW = (torch.float16, torch.bfloat16)
TENSORS = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
State = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]  # of these names


class _RaggedLayer:
    """What all layers share: the options, how they print, and the normalization as text.

    The text is made when an attribute changes on which it depends, not when it is used: a graph compiled for changing
    shapes makes symbols of numbers, but not of text.
    """

    padding: Padding = "zero"
    _norms: Any
    _make_norms: Callable[[], Any]  # each layer has its own
    _parameters: dict[str, Any]
    _has_properties: ClassVar[bool] = False  # whether a subclass computes one of TENSORS

    if TYPE_CHECKING:

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
        ) -> Input: ...

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._has_properties = any(hasattr(cls, name) for name in TENSORS)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("padding", "on_single"):
            functional.check_options(**{name: value})
        super().__setattr__(name, value)
        if name in ("eps", "num_groups", "normalized_shape", "norm"):
            try:
                self.__dict__["_norms"] = self._make_norms()
            except AttributeError:  # not all of them are set yet
                self.__dict__["_norms"] = None

    def __prepare_scriptable__(self) -> None:
        """Called by torch.jit.script."""
        raise RuntimeError(
            f"torch.jit.script: layers of torch, got {self._get_name()}, which takes masks of many forms. "
            "Use torch.export, or torch.jit.trace, or call revert(model) first."
        )

    def _affine(self) -> tuple[Tensor | None, Tensor | None]:
        """weight and bias. `self.weight` takes ten times as long as torch's dictionary in which it ends up."""
        if not self._has_properties:
            parameters = self._parameters
            try:
                return parameters["weight"], parameters.get("bias")
            except KeyError:  # a parametrization, or a plain attribute
                pass
        layer: Any = self
        return layer.weight, getattr(layer, "bias", None)

    def _get_name(self) -> str:
        return f"truenorm.{type(self).__name__}"

    def extra_repr(self) -> str:
        """torch's own, and the options that are not the default."""
        layer: Any = super()
        own: str = layer.extra_repr()
        return own + "".join(
            f", {name}={value!r}"
            for name, default in (("padding", "zero"), ("on_single", "error"), ("frozen", False))
            if (value := getattr(self, name, default)) != default
        )


class _TrackingLayer(_RaggedLayer):
    """Layers with running statistics: in at least float32, and never from a batch that is not finite."""

    # Of torch's classes, which follow this one in the order of inheritance.
    training: bool
    momentum: float | None
    eps: float
    affine: bool
    track_running_stats: bool
    num_features: int
    _buffers: dict[str, Tensor | None]
    _check_input_dim: Callable[[Tensor], None]

    _skipped: Tensor | None = None  # no buffer: torch's layers have none of this name
    frozen: bool = False  # whether `freeze` has made the running statistics constants, also in training

    @property
    def skipped_batches(self) -> int:
        """How many batches, as theirs were not finite, left the running statistics. Reading it waits for the device."""
        return 0 if self._skipped is None or self._skipped.is_meta else int(self._skipped)

    @skipped_batches.setter
    def skipped_batches(self, value: int) -> None:
        mean = self._buffers.get("running_mean")
        self._skipped = torch.tensor(value, device=None if mean is None else mean.device)

    def _skip_counter(self) -> Tensor | None:
        """What skipped batches are counted in, on the device of the running statistics; None if there are none."""
        mean = self._buffers.get("running_mean")
        if mean is None or _compat.is_exporting():  # a program has no place for it
            return None
        if self._skipped is None or self._skipped.device != mean.device:
            self.skipped_batches = self.skipped_batches
        return self._skipped

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """`.half()` and `.to(bfloat16)` do not change the precision of the statistics: in bfloat16 they would stall."""
        buffers = self._buffers
        before = {name: buffers.get(name) for name in ("running_mean", "running_var", VALUES)}
        module: Any = super()
        result = module._apply(fn, recurse)
        for name, old in before.items():
            new = buffers.get(name)
            if old is not None and new is not None and new.dtype in LOW and old.dtype not in LOW:
                buffers[name] = old.to(new.device)
        self._skip_counter()
        return result

    def reset_running_stats(self) -> None:
        """As torch's layers do. Frozen statistics stay: `torch.optim.swa_utils.update_bn` resets all batch norms."""
        if self.frozen or not self.track_running_stats:
            return
        for name, value in (("running_mean", 0), ("running_var", 1), ("num_batches_tracked", 0)):
            buffer = getattr(self, name)
            buffer.fill_(value)
        if (values := self._buffers.get(VALUES)) is not None:
            values.zero_()

    def _state(self) -> State:
        """weight, bias, running_mean, running_var and num_batches_tracked: see `_affine`."""
        if not self._has_properties:
            parameters, buffers = self._parameters, self._buffers
            try:
                return (
                    parameters["weight"],
                    parameters["bias"],
                    buffers["running_mean"],
                    buffers["running_var"],
                    buffers["num_batches_tracked"],
                )
            except KeyError:
                pass
        layer: Any = self
        return layer.weight, layer.bias, layer.running_mean, layer.running_var, layer.num_batches_tracked

    def _weight_of_batch(self, counter: Tensor | None) -> float | Tensor:
        """`momentum`; None is a cumulative average."""
        if self.momentum is not None:
            return self.momentum
        return 0.0 if counter is None else 1.0 / (counter.double() + 1.0)


class _BatchNorm(RefusesTorchSync, HalfLifeOption, _TrackingLayer):
    on_single: OnSingle = "error"
    _exchange: Exchange | None = None  # how `sync` and `together` share the statistics
    _stage: Exchange | None = None  # how `accumulate` and `reestimate` collect them, after that

    def _make_norms(self) -> NormPair:
        return _norms.batch_norms(self.eps)

    def __init__(self, *args: Any, padding: Padding = "zero", on_single: OnSingle = "error", **kwargs: Any) -> None:
        functional.check_options(padding, on_single)
        super().__init__(*args, **kwargs)
        self.padding, self.on_single = padding, on_single
        self._skip_counter()

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
        if isinstance(input, Proxy):
            return record_call(self, input, valid, lengths, offsets, segments, sample_weight, along=along)
        unpacked = unpack(input, valid, lengths, offsets, segments, sample_weight, along)
        if not unpacked.packed:
            self._check_input_dim(unpacked.x)
        weight, bias, mean, var, counter = self._state()
        training, tracking = self.training and not self.frozen, self.track_running_stats
        used = tracking or not training
        y: Any
        y, done = functional.run_batch_norm(
            unpacked,
            mean if used else None,
            var if used else None,
            weight,
            bias,
            training or (mean is None and var is None),
            0.0
            if not training
            else self.momentum
            if self.momentum is not None and self.half_life is None
            else self._weight_of_batch(counter),
            self.eps,
            self.padding,
            self.on_single,
            counter if training and tracking else None,
            self._norms,
            None
            if not training or (exchange := self._stage or self._exchange) is None or not exchange.is_active()
            else exchange,
            self._skip_counter if training and tracking else None,
        )
        if done == _running.NOT_FINITE:
            self.skipped_batches += 1
        found: Input = y if unpacked.repack is None else unpacked.repack(y)
        return found


class BatchNorm1d(_BatchNorm, nn.BatchNorm1d):
    """torch's BatchNorm1d over the valid values: (b, c), (b, c, t), packed rows, jagged, PackedSequence."""


class BatchNorm2d(_BatchNorm, nn.BatchNorm2d):
    """torch's BatchNorm2d over the valid values: (b, c, h, w)."""


class BatchNorm3d(_BatchNorm, nn.BatchNorm3d):
    """torch's BatchNorm3d over the valid values: (b, c, d, h, w)."""


class _InstanceNorm(_TrackingLayer):
    _get_no_batch_dim: Callable[[], int]

    def _make_norms(self) -> Any:
        return _norms.instance_norms(self.eps), _norms.batch_norms(self.eps)

    def __init__(self, *args: Any, padding: Padding = "zero", **kwargs: Any) -> None:
        functional.check_options(padding)
        super().__init__(*args, **kwargs)
        self.padding = padding
        self._skip_counter()

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
        if isinstance(input, Proxy):
            return record_call(self, input, valid, lengths, offsets, segments, sample_weight, along=along)
        unpacked = unpack(input, valid, lengths, offsets, segments, sample_weight, along, sequences=True)
        x, unbatched = unpacked.x, False
        if unpacked.packed:
            if x.shape[-1] != self.num_features:
                raise ValueError(
                    f"expected input's size at dim=1 to match num_features"
                    f" ({self.num_features}), but got: {x.shape[-1]}."
                )
        else:
            self._check_input_dim(x)
            axis = x.dim() - self._get_no_batch_dim()
            unbatched = axis == 0
            if x.size(axis) != self.num_features:
                self._refuse_features(x, axis)
        if unbatched:
            unpacked = with_batch_axis(unpacked)
        weight, bias, mean, var, _ = self._state()
        training = self.training and not self.frozen
        norms, fixed_norms = self._norms
        y: Any
        y, done = functional.run_instance_norm(
            unpacked,
            mean,
            var,
            weight,
            bias,
            training or not self.track_running_stats,
            self.momentum if self.momentum is not None else 0.0,
            self.eps,
            self.padding,
            norms,
            fixed_norms,
            self._skip_counter if training and self.track_running_stats else None,
        )
        if done == _running.NOT_FINITE and training and self.track_running_stats:
            self.skipped_batches += 1
        if unbatched:
            y = y.squeeze(0)
        found: Input = y if unpacked.repack is None else unpacked.repack(y)
        return found

    def _refuse_features(self, x: Tensor, axis: int) -> None:
        """As torch's layers do."""
        if self.affine:
            raise ValueError(
                f"expected input's size at dim={axis} to match num_features"
                f" ({self.num_features}), but got: {x.size(axis)}."
            )
        warnings.warn(
            f"input's size at dim={axis} does not match num_features. "
            "You can silence this warning by not passing in num_features, "
            "which is not used because affine=False",
            stacklevel=3,
        )


class InstanceNorm1d(_InstanceNorm, nn.InstanceNorm1d):
    """torch's InstanceNorm1d over the valid positions: (b, c, t), packed rows, jagged, PackedSequence."""


class InstanceNorm2d(_InstanceNorm, nn.InstanceNorm2d):
    """torch's InstanceNorm2d over the valid positions: (b, c, h, w)."""


class InstanceNorm3d(_InstanceNorm, nn.InstanceNorm3d):
    """torch's InstanceNorm3d over the valid positions: (b, c, d, h, w)."""


class GroupNorm(_RaggedLayer, nn.GroupNorm):
    """torch's GroupNorm over the valid positions: (b, c, ...), packed rows, jagged, PackedSequence."""

    def __init__(self, *args: Any, padding: Padding = "zero", **kwargs: Any) -> None:
        functional.check_options(padding)
        super().__init__(*args, **kwargs)
        self.padding = padding

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
        if isinstance(input, Proxy):
            return record_call(self, input, valid, lengths, offsets, segments, sample_weight, along=along)
        unpacked = unpack(input, valid, lengths, offsets, segments, sample_weight, along, sequences=True)
        weight, bias = self._affine()
        y: Any = functional.run_group_norm(unpacked, self.num_groups, weight, bias, self.eps, self.padding, self._norms)
        found: Input = y if unpacked.repack is None else unpacked.repack(y)
        return found

    def _make_norms(self) -> Any:
        return _norms.group_norms(self.num_groups, self.eps)


class LayerNorm(_RaggedLayer, nn.LayerNorm):
    """torch's LayerNorm; padding comes out as 0, whatever it holds."""

    def __init__(self, *args: Any, padding: Padding = "zero", **kwargs: Any) -> None:
        functional.check_options(padding)
        super().__init__(*args, **kwargs)
        self.padding = padding

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
        if isinstance(input, Proxy):
            return record_call(self, input, valid, lengths, offsets, segments, sample_weight, along=along)
        unpacked = unpack(input, valid, lengths, offsets, segments, sample_weight, along, rows_only=True)
        weight, bias = self._affine()
        shape = self.normalized_shape
        y: Any = functional.run_layer_norm(unpacked, shape, weight, bias, self.eps, self.padding, self._norms)
        found: Input = y if unpacked.repack is None else unpacked.repack(y)
        return found

    def _make_norms(self) -> Any:
        return _norms.row_norm(len(self.normalized_shape), self.eps, True)


class RMSNorm(_RaggedLayer, nn.RMSNorm):
    """torch's RMSNorm; padding comes out as 0, whatever it holds."""

    def __init__(self, *args: Any, padding: Padding = "zero", **kwargs: Any) -> None:
        functional.check_options(padding)
        super().__init__(*args, **kwargs)
        self.padding = padding

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
    ) -> Input:
        if isinstance(x, Proxy):
            return record_call(self, x, valid, lengths, offsets, segments, sample_weight, along=along)
        unpacked = unpack(x, valid, lengths, offsets, segments, sample_weight, along, rows_only=True)
        weight, _ = self._affine()
        y: Any = functional.run_rms_norm(unpacked, self.normalized_shape, weight, self.eps, self.padding, self._norms)
        found: Input = y if unpacked.repack is None else unpacked.repack(y)
        return found

    def _make_norms(self) -> Any:
        return _norms.rms_norms(len(self.normalized_shape), self.eps)
