"""What an engine implements: the verbs, with every argument given. `truenorm.engine` chooses among them."""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypedDict, Unpack

from numpy.typing import ArrayLike, NDArray

from truenorm.core import reference
from truenorm.core.inputs import BackwardSums, Normalized, Padding
from truenorm.core.lengths import LengthsLike
from truenorm.core.moments import Moments, measure
from truenorm.core.norm import Norm

Engine = Literal["native", "reference"]
Gradients = tuple[NDArray[Any], NDArray[Any] | None, NDArray[Any] | None]  # dx, dweight, dbias


class RaggedArguments(TypedDict):
    """Which elements are valid, as users say it."""

    valid: ArrayLike | None
    lengths: LengthsLike | None
    offsets: ArrayLike | None
    segments: ArrayLike | None
    sample_weight: ArrayLike | None
    along: int | str | None


class ForwardArguments(RaggedArguments):
    """The options of `forward`."""

    weight: ArrayLike | None
    bias: ArrayLike | None
    moments: Moments | None
    padding: Padding


class Backend(Protocol):
    """The verbs of `truenorm`. Their meaning is documented in `truenorm.core`; a pattern has become a Norm."""

    def measure(self, x: ArrayLike, norm: Norm, **ragged: Unpack[RaggedArguments]) -> Moments: ...

    def forward(self, x: ArrayLike, norm: Norm, **arguments: Unpack[ForwardArguments]) -> Normalized: ...

    def backward_sums(self, dy: ArrayLike, out: Normalized) -> BackwardSums: ...

    def backward(self, dy: ArrayLike, out: Normalized, *, sums: BackwardSums | None) -> Gradients: ...


class ReferenceBackend:
    """The definition in NumPy."""

    measure = staticmethod(measure)
    forward = staticmethod(reference.forward)
    backward_sums = staticmethod(reference.backward_sums)
    backward = staticmethod(reference.backward)
