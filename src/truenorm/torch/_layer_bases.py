"""What all layers share: options, how they print, the normalization as text; and, for some, running statistics.

`layers.py` has the layers.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Signature
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from truenorm.core.activation import Activation
from truenorm.core.inputs import Padding
from truenorm.torch import _compat, _runs
from truenorm.torch._documentation import signature_of
from truenorm.torch._half_life import VALUES
from truenorm.torch._inputs import Input, LengthsLike, MaskLike, VectorLike, WeightLike

LOW = (torch.float16, torch.bfloat16)
TENSORS = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
_DEFAULTS: tuple[tuple[str, Any], ...] = (
    ("padding", "zero"),
    ("on_single", "error"),
    ("activation", None),
    ("frozen", False),
)
State = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]  # of these names


class _RaggedLayer:
    """All layers: the options, how they print, and the normalization as text.

    The text is made when an attribute changes on which it depends, not when it is used: a graph compiled for changing
    shapes makes symbols of numbers, but not of text.
    """

    padding: Padding = "zero"
    activation: Activation | None = None
    _norms: Any
    _make_norms: Callable[[], Any]  # each layer has its own
    _parameters: dict[str, Any]
    _has_properties: ClassVar[bool] = False  # whether a subclass computes one of TENSORS
    __signature__: ClassVar[Signature]

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
        cls.__signature__ = signature_of(cls)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("padding", "on_single", "activation"):
            _runs.check_options(**{name: value})
        super().__setattr__(name, value)
        if name in ("eps", "num_groups", "normalized_shape", "norm", "activation"):
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
            f", {name}={value!r}" for name, default in _DEFAULTS if (value := getattr(self, name, default)) != default
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
