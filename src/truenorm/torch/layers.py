"""torch's normalization layers with four arguments more: `layer(x, valid=, lengths=, offsets=, sample_weight=)`.

Each subclasses torch's own: constructor, attributes, `repr`, `state_dict` and errors are torch's, and without the four
arguments so are the numbers. What differs, and why, is listed in docs/torch.md.

    padding     what stands where nothing is real: "zero", or "keep" x as it is
    on_single   batch norm in training with one value a channel: torch's "error", or the "running" statistics
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from truenorm.core.inputs import Padding
from truenorm.core.norm import Norm, text_of
from truenorm.torch import _running as statistics
from truenorm.torch import functional
from truenorm.torch._dispatch import normalize
from truenorm.torch._formula import Fixed
from truenorm.torch._inputs import opened
from truenorm.torch.functional import OnSingle

LOW = (torch.float16, torch.bfloat16)


class _Kept:
    """A parameter or buffer, read where torch keeps it.

    torch's own layers look for it in the usual places first, which fails with an error that is thrown away: each time a
    hundredth of a small layer's step or two. What is there by that name all the same, in the layer or in a subclass,
    comes before this.
    """

    def __init__(self, place: str) -> None:
        self.place = place

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, layer: Any, owner: type) -> Any:
        try:
            return layer.__dict__[self.place][self.name]
        except (AttributeError, KeyError):
            raise AttributeError(f"type object {owner.__name__!r} has no attribute {self.name!r}") from None


class _Padded:
    """What all layers share: the options, how they show, and the normalization as text.

    The text is made when an attribute changes that it depends on, not when it is used: a graph that is compiled for
    shapes that change takes numbers for symbols, and text for text.
    """

    weight: Any = _Kept("_parameters")
    bias: Any = _Kept("_parameters")
    padding: Padding
    _norms: Any
    _make_norms: Callable[[], Any]  # each layer has its own

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("padding", "on_single"):
            functional._check_choices(**{name: value})
        super().__setattr__(name, value)
        if name in ("eps", "num_groups", "normalized_shape", "norm"):
            try:
                self.__dict__["_norms"] = self._make_norms()
            except (AttributeError, ValueError):  # not all of them are there yet, or torch will refuse them
                self.__dict__["_norms"] = ("", "")

    def extra_repr(self) -> str:
        """torch's own, and what is not the default."""
        own: str = super().extra_repr()  # type: ignore[misc]
        return own + "".join(
            f", {name}={value!r}"
            for name, default in (("padding", "zero"), ("on_single", "error"))
            if (value := getattr(self, name, default)) != default
        )


class _Tracked(_Padded):
    """Layers that keep running statistics: in at least float32, and never false ones."""

    # Of torch's classes, which come behind this one.
    training: bool
    momentum: float | None
    eps: float
    affine: bool
    track_running_stats: bool
    num_features: int
    running_mean: Any = _Kept("_buffers")
    running_var: Any = _Kept("_buffers")
    num_batches_tracked: Any = _Kept("_buffers")
    _buffers: dict[str, Tensor | None]
    _check_input_dim: Callable[[Tensor], None]

    skipped_batches: int = 0  # whose statistics were not finite, and so were not taken over

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """`.half()` and `.to(bfloat16)` leave the statistics' precision alone: in bfloat16 they would stall."""
        buffers = self._buffers
        before = {name: buffers.get(name) for name in ("running_mean", "running_var")}
        result = super()._apply(fn, recurse)  # type: ignore[misc]
        for name, old in before.items():
            new = buffers.get(name)
            if old is not None and new is not None and new.dtype in LOW and old.dtype not in LOW:
                buffers[name] = old.to(new.device)
        return result

    def _factor(self) -> float | Tensor:
        """The weight of the new batch."""
        if self.momentum is not None:
            return self.momentum
        return 0.0 if self.num_batches_tracked is None else 1.0 / (self.num_batches_tracked.double() + 1.0)

    def _note(self, done: int) -> None:
        if done == statistics.NOT_FINITE:
            self.skipped_batches += 1


class _BatchNorm(_Tracked):
    on_single: OnSingle

    def _make_norms(self) -> Any:
        return functional._batch(self.eps)

    def __init__(self, *args: Any, padding: Padding = "zero", on_single: OnSingle = "error", **kwargs: Any) -> None:
        functional._check_choices(padding, on_single)
        super().__init__(*args, **kwargs)
        self.padding, self.on_single = padding, on_single

    def forward(
        self, input: Any, valid: Any = None, lengths: Any = None, offsets: Any = None, sample_weight: Any = None
    ) -> Any:
        form = opened(input, valid, lengths, offsets, sample_weight, sequences=False)
        self._check_input_dim(form.x)
        mean, var, counter = self.running_mean, self.running_var, self.num_batches_tracked
        batch = self.training or (mean is None and var is None)
        kept = self.track_running_stats or not self.training
        y, done = functional.batch_norm_of(
            form,
            mean if kept else None,
            var if kept else None,
            self.weight,
            self.bias,
            batch,
            self._factor() if self.training else 0.0,
            self.eps,
            self.padding,
            self.on_single,
            counter if self.training and self.track_running_stats else None,
            self._norms,
        )
        self._note(done)
        return form.close(y)


class BatchNorm1d(_BatchNorm, nn.BatchNorm1d):
    """torch's BatchNorm1d over the real values: (b, c), (b, c, t), packed rows, jagged, PackedSequence."""


class BatchNorm2d(_BatchNorm, nn.BatchNorm2d):
    """torch's BatchNorm2d over the real values: (b, c, h, w)."""


class BatchNorm3d(_BatchNorm, nn.BatchNorm3d):
    """torch's BatchNorm3d over the real values: (b, c, d, h, w)."""


class _InstanceNorm(_Tracked):
    _get_no_batch_dim: Callable[[], int]

    def _make_norms(self) -> Any:
        return functional._instance(self.eps), functional._batch(self.eps)

    def __init__(self, *args: Any, padding: Padding = "zero", **kwargs: Any) -> None:
        functional._check_choices(padding)
        super().__init__(*args, **kwargs)
        self.padding = padding

    def forward(
        self, input: Any, valid: Any = None, lengths: Any = None, offsets: Any = None, sample_weight: Any = None
    ) -> Any:
        form = opened(input, valid, lengths, offsets, sample_weight, sequences=True)
        x = form.x
        if form.packed:
            channels = x.shape[-1]
            if channels != self.num_features:
                raise ValueError(
                    f"expected input's size at dim=1 to match num_features ({self.num_features}), but got: {channels}."
                )
            return form.close(self._run(form))
        self._check_input_dim(x)
        feature_dim = x.dim() - self._get_no_batch_dim()
        if x.size(feature_dim) != self.num_features:
            if self.affine:
                raise ValueError(
                    f"expected input's size at dim={feature_dim} to match num_features"
                    f" ({self.num_features}), but got: {x.size(feature_dim)}."
                )
            warnings.warn(
                f"input's size at dim={feature_dim} does not match num_features. "
                "You can silence this warning by not passing in num_features, "
                "which is not used because affine=False",
                stacklevel=2,
            )
        if x.dim() == self._get_no_batch_dim():  # what is told has no axis of samples either
            told = form.told
            form.x = x.unsqueeze(0)
            form.told = {name: one.reshape(-1) if name == "lengths" else one.unsqueeze(0) for name, one in told.items()}
            return self._run(form).squeeze(0)
        return form.close(self._run(form))

    def _run(self, form: Any) -> Tensor:
        use_input = self.training or not self.track_running_stats
        counted = self.training and self.track_running_stats
        y, done = functional.instance_norm_of(
            form,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            use_input,
            self.momentum if self.momentum is not None else 0.0,
            self.eps,
            self.padding,
            *self._norms,
        )
        if counted:
            self._note(done)
        return y


class InstanceNorm1d(_InstanceNorm, nn.InstanceNorm1d):
    """torch's InstanceNorm1d over the real positions: (b, c, t), packed rows, jagged, PackedSequence."""


class InstanceNorm2d(_InstanceNorm, nn.InstanceNorm2d):
    """torch's InstanceNorm2d over the real positions: (b, c, h, w)."""


class InstanceNorm3d(_InstanceNorm, nn.InstanceNorm3d):
    """torch's InstanceNorm3d over the real positions: (b, c, d, h, w)."""


class GroupNorm(_Padded, nn.GroupNorm):
    """torch's GroupNorm over the real positions: (b, c, ...), packed rows, jagged, PackedSequence."""

    def __init__(self, *args: Any, padding: Padding = "zero", **kwargs: Any) -> None:
        functional._check_choices(padding)
        super().__init__(*args, **kwargs)
        self.padding = padding

    def forward(
        self, input: Any, valid: Any = None, lengths: Any = None, offsets: Any = None, sample_weight: Any = None
    ) -> Any:
        form = opened(input, valid, lengths, offsets, sample_weight, sequences=True)
        return functional.group_norm_of(
            form, self.num_groups, self.weight, self.bias, self.eps, self.padding, self._norms
        )

    def _make_norms(self) -> Any:
        return functional._group(self.num_groups, self.eps)


class LayerNorm(_Padded, nn.LayerNorm):
    """torch's LayerNorm; padding comes out as 0, whatever it holds."""

    def __init__(self, *args: Any, padding: Padding = "zero", **kwargs: Any) -> None:
        functional._check_choices(padding)
        super().__init__(*args, **kwargs)
        self.padding = padding

    def forward(
        self, input: Any, valid: Any = None, lengths: Any = None, offsets: Any = None, sample_weight: Any = None
    ) -> Any:
        form = opened(input, valid, lengths, offsets, sample_weight, rows_only=True)
        shape = self.normalized_shape
        return functional.layer_norm_of(form, shape, self.weight, self.bias, self.eps, self.padding, self._norms)

    def _make_norms(self) -> Any:
        return functional._layer(len(self.normalized_shape), self.eps, True)


class RMSNorm(_Padded, nn.RMSNorm):
    """torch's RMSNorm; padding comes out as 0, whatever it holds."""

    def __init__(self, *args: Any, padding: Padding = "zero", **kwargs: Any) -> None:
        functional._check_choices(padding)
        super().__init__(*args, **kwargs)
        self.padding = padding

    def forward(
        self, x: Any, valid: Any = None, lengths: Any = None, offsets: Any = None, sample_weight: Any = None
    ) -> Any:
        form = opened(x, valid, lengths, offsets, sample_weight, rows_only=True)
        shape = self.normalized_shape
        return functional.rms_norm_of(form, shape, self.weight, self.eps, self.padding, self._norms)

    def _make_norms(self) -> Any:
        return None if self.eps is None else functional._layer(len(self.normalized_shape), self.eps, False)


class Normalize(_Tracked, nn.Module):
    """Any normalization as a layer: `Normalize(tn.Norm("b [h w] c"), 64)`.

    norm                  which axes share a mean and a variance
    shape                 of weight and bias: the sizes of the axes that they cover
    track_running_stats   keep running statistics, and use them in evaluation: for norms that keep no other axes

    Packed rows, jagged tensors and PackedSequences have the axes b, t and c: they need a norm of these.
    """

    def __init__(
        self,
        norm: Norm,
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
        if not isinstance(norm, Norm):
            raise TypeError(f"Normalize: a Norm, got {norm!r}. Make one with tn.Norm('[b t] c') or tn.batch().")
        functional._check_choices(padding)
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

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "norm":  # with the eps that it has; `layer.eps = ...` after that changes it
            self.eps = value.eps

    def _make_norms(self) -> Any:
        return text_of(replace(self.norm, eps=self.eps))

    def extra_repr(self) -> str:
        return f"{self.norm!r}, {self.shape}, affine={self.affine}, track_running_stats={self.track_running_stats}"

    def forward(
        self, input: Any, valid: Any = None, lengths: Any = None, offsets: Any = None, sample_weight: Any = None
    ) -> Any:
        form = opened(input, valid, lengths, offsets, sample_weight, sequences=True)
        fixed = None
        if not self.training and self.running_mean is not None and self.running_var is not None:
            fixed = Fixed(self.running_mean, self.running_var)
        y, table = normalize(form.x, self._norms, self.weight, self.bias, form.told, fixed=fixed, padding=self.padding)
        mean, var = self.running_mean, self.running_var
        if table is not None and mean is not None and var is not None and not statistics.recomputing():
            shared = table.reshape(-1, 3)
            self._note(statistics.update(shared, mean, var, self._factor(), self.num_batches_tracked))
        return form.close(y)
