"""Arguments and results: the checked arguments of `forward`, its result, and the sums of `backward_sums`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from numpy.typing import ArrayLike, NDArray

from truenorm.core.arrays import Floats, as_array, float_dtype
from truenorm.core.mask import MaskedInput
from truenorm.core.moments import Moments
from truenorm.core.norm import Norm, as_norm

Padding = Literal["zero", "keep"]
PADDINGS: tuple[Padding, ...] = get_args(Padding)


@dataclass(eq=False, kw_only=True)  # frozen would cost a microsecond a call
class Inputs:
    """The arguments of `forward`, checked."""

    norm: Norm
    masked: MaskedInput
    weight: NDArray[Any] | None
    bias: NDArray[Any] | None
    given: Moments | None  # moments that do not depend on x
    padding: Padding


@dataclass(eq=False, kw_only=True)
class Normalized(Inputs):
    """What `forward` returns: `y`, the `moments` that it used, and the inputs, which `backward` needs."""

    y: NDArray[Any]
    moments: Moments

    @classmethod
    def of(cls, inputs: Inputs, y: NDArray[Any], moments: Moments) -> Normalized:
        """The result for these inputs. They are checked already, so `__init__` is skipped."""
        out = object.__new__(cls)
        values = out.__dict__
        values.update(inputs.__dict__)
        values["y"], values["moments"] = y, moments
        return out

    def __repr__(self) -> str:
        return f"Normalized(y={self.y!r}, moments={self.moments!r})"


@dataclass(frozen=True, eq=False)
class BackwardSums:
    """Σ dxhat and Σ dxhat · xhat for each statistic, and the gradients of weight and bias.

    Parts that share their statistics add them: `backward_sums(dy1, out1) + backward_sums(dy2, out2)`.
    """

    dxhat: Floats
    dxhat_xhat: Floats
    dweight: Floats | None
    dbias: Floats | None

    def __add__(self, other: BackwardSums) -> BackwardSums:
        if (self.dweight is None, self.dbias is None) != (other.dweight is None, other.dbias is None):
            raise ValueError(
                "BackwardSums: either all parts have a weight or none, and the same for bias, got parts that differ. "
                "Pass the same weight and bias to every forward."
            )
        return BackwardSums(
            self.dxhat + other.dxhat,
            self.dxhat_xhat + other.dxhat_xhat,
            None if self.dweight is None or other.dweight is None else self.dweight + other.dweight,
            None if self.dbias is None or other.dbias is None else self.dbias + other.dbias,
        )


def check_inputs(
    masked: MaskedInput,
    norm: Norm | str,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    moments: Moments | None = None,
    padding: Padding = "zero",
) -> Inputs:
    """The other arguments of `forward`, checked against the masked input."""
    norm = as_norm(norm)
    if padding not in PADDINGS:
        raise ValueError(f"padding must be {' or '.join(map(repr, PADDINGS))}, got {padding!r}.")
    if not (moments is None or isinstance(moments, Moments)):
        raise TypeError(
            f"moments must be a Moments, got {type(moments).__name__}. "
            "Make one with measure(x, norm) or Moments.from_variance(mean, var)."
        )
    if moments is not None and moments.shape != masked.layout.statistics:
        raise ValueError(f"moments must have the shape {masked.layout.statistics} for this x, got {moments.shape}.")
    if moments is not None and not norm.center and moments.mean.any():
        raise ValueError(
            f"moments must have mean 0 if center=False, got {moments.mean.flat[0]:g} as the first. "
            "Measure them with the same norm."
        )
    return Inputs(
        norm=norm,
        masked=masked,
        weight=_parameter(masked, weight, "weight"),
        bias=_parameter(masked, bias, "bias"),
        given=moments,
        padding=padding,
    )


def _parameter(masked: MaskedInput, values: ArrayLike | None, name: str) -> NDArray[Any] | None:
    if values is None:
        return None
    array, shape = as_array(values, name), masked.layout.weight_shape
    if (dtype := float_dtype(array, name)) is not array.dtype:
        array = array.astype(dtype)
    if shape is None:
        raise ValueError(f"{name} needs an axis c in the pattern, got shape {array.shape}. Name its axes with affine=.")
    if array.shape != shape:
        raise ValueError(f"{name} must have the shape {shape} for this x, got {array.shape}.")
    return array
