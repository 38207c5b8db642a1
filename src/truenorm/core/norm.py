"""What a normalization is: a set of axes that share one mean and variance.

    y = (x - mean) / sqrt(var + eps) * weight + bias

Batch, layer, instance, group and RMS normalization all compute this line. They differ in which elements are averaged
together, and RMS does not subtract the mean. A pattern names the axes of x; brackets mark those that are averaged over.

    batch     [...] c             one mean and variance for each channel
    layer     ... [c]             one for each position, over its channels
    RMS       ... [c]             the same with mean 0: center=False
    instance  b [...] c           one for each sample and channel
    group     b [...] (g [c])     one for each sample and group of channels

The **channel axis** is the whole axis that is, or contains, ``c``: `weight` and `bias` cover it.
With `activation` y goes through one of `activation.py`, last.
No arrays here: `pattern.py` reads the text, `layout.py` applies a pattern to a shape, `recipes.py` has short names for
the patterns above. Read on in `moments.py`, then `reference.py`. References: [ioffe], [ba], [zhang], [ulyanov], [wu].
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from numbers import Integral
from types import MappingProxyType
from typing import Any, Literal, get_args

from truenorm.core.activation import Activation, check_activation
from truenorm.core.layout import Layout, check_shape, check_sizes, layout_of
from truenorm.core.pattern import PatternAxis, PatternError, parse, parse_affine
from truenorm.core.scalars import plain_float, plain_text

EpsAt = Literal["var", "std"]
CHANNEL = "c"


@dataclass(frozen=True, repr=False)
class Norm:
    """The description of a normalization: a frozen, validated value without arrays.

    Args:
        pattern: the axes of x; brackets mark those that share one mean and variance
        eps: keeps the division finite
        center: whether the mean is subtracted (RMS normalization: False)
        ddof: divide the squared deviations by count - ddof: 0, or 1 for Bessel's correction
        eps_at: "var" divides by sqrt(var + eps), "std" by (std + eps)
        sizes: sizes of named axes; a composed axis such as ``(g [c])`` needs all but one of its pieces
        affine: the axes that weight and bias cover, in the pattern's order; None is the channel axis
        activation: what y goes through last: "relu", "gelu", "silu" or "tanh"; None: nothing

    Examples:
        >>> import truenorm as tn
        >>> tn.Norm("[b t] c")
        Norm('[b t] c')
        >>> tn.Norm("b [t] (g [c])", sizes={"g": 2}).view((8, 5, 6)).statistics
        (8, 2)
        >>> tn.Norm("b [h w c]", affine="h w c").view((8, 5, 6, 3)).weight_shape
        (5, 6, 3)
    """

    pattern: str
    eps: float = 1e-5
    center: bool = True
    ddof: Literal[0, 1] = 0
    eps_at: EpsAt = "var"
    sizes: Mapping[str, int] = field(default_factory=dict, hash=False)
    affine: str | None = None
    activation: Activation | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, str):
            raise TypeError(f"Norm: pattern is text, got {self.pattern!r}. Write it like '[b t] c'.")
        eps = plain_float(self.eps)
        if not 0 <= eps < math.inf:
            raise ValueError(f"Norm: eps is a finite number >= 0, got {self.eps!r}. The usual one is 1e-5.")
        if not isinstance(self.center, bool):
            raise TypeError(f"Norm: center is True or False, got {self.center!r}.")
        check_choice("Norm", "ddof", self.ddof, (0, 1))
        check_choice("Norm", "eps_at", self.eps_at, get_args(EpsAt))
        if not self.center and self.ddof:
            raise ValueError("Norm: ddof=1 corrects for an estimated mean, got center=False. Use ddof=0 with it.")
        if not any(piece.reduced for axis in self.axes for piece in axis.pieces):
            fix = "Put brackets around an axis."
            raise PatternError("nothing is averaged over", self.pattern, 0, len(self.pattern), fix)
        if not isinstance(self.sizes, Mapping):
            raise TypeError(f"Norm: sizes maps names of axes to sizes, got {self.sizes!r}. Write it like {{'g': 8}}.")
        if not (self.affine is None or isinstance(self.affine, str)):
            raise TypeError(f"Norm: affine is text, or None, got {self.affine!r}. Write it like 'h w c'.")
        check_activation("Norm: activation is", self.activation)
        check_sizes(self)
        # Equal norms share what is cached for one of them, so they are also written alike: plain types, and no -0.0.
        sizes = MappingProxyType({plain_text(name): int(size) for name, size in self.sizes.items()})
        affine = None if self.affine is None else plain_text(self.affine)
        activation = None if self.activation is None else plain_text(self.activation)
        texts = {"pattern": plain_text(self.pattern), "eps_at": plain_text(self.eps_at), "affine": affine}
        texts |= {"activation": activation}
        for name, value in ({"eps": eps + 0.0, "ddof": int(self.ddof), "sizes": sizes} | texts).items():
            object.__setattr__(self, name, value)
        _ = self.affine_axes  # raises now if affine cannot be read, not at the first array

    @cached_property
    def axes(self) -> tuple[PatternAxis, ...]:
        """The axes of x as the pattern writes them."""
        return parse(self.pattern)

    @cached_property
    def channel(self) -> PatternAxis | None:
        """The axis that is, or contains, ``c``."""
        return next((axis for axis in self.axes if CHANNEL in axis.names), None)

    @cached_property
    def affine_axes(self) -> tuple[tuple[str, ...], ...]:
        """What weight and bias cover: the names inside each of their axes."""
        if self.affine is None:
            return () if self.channel is None else (self.channel.names,)
        return parse_affine(self.affine, self.axes, self.pattern)

    def view(self, shape: Sequence[int]) -> Layout:
        """This normalization applied to an array of this shape: see `truenorm.core.layout.Layout`.

        Args:
            shape: of x
        """
        sizes = tuple(shape)
        for size in sizes:  # before the cache, in which (2.0, 3.0) is (2, 3)
            if type(size) is not int or size < 0:
                sizes = check_shape(sizes)
        return layout_of(self, sizes)

    def _values(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(self)} | {"sizes": dict(self.sizes)}

    def __repr__(self) -> str:
        default: dict[str, Any] = {one.name: {} if one.name == "sizes" else one.default for one in fields(self)}
        words = [f"{name}={value!r}" for name, value in self._values().items() if value != default[name]]
        return f"Norm({', '.join(words).removeprefix('pattern=')})"

    def __hash__(self) -> int:  # layouts and kernels are looked up by it at every call
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(
            (
                self.pattern,
                self.eps,
                self.center,
                self.ddof,
                self.eps_at,
                frozenset(self.sizes.items()),
                self.affine,
                self.activation,
            )
        )

    def __reduce__(self) -> tuple[Any, ...]:  # a mapping proxy can be neither pickled nor deep-copied
        return Norm, tuple(self._values().values())


def text_of(norm: Norm) -> str:
    """A normalization as one line of text.

    >>> norm_from_text(text_of(Norm("[...] c", eps=1e-3))) == Norm("[...] c", eps=1e-3)
    True
    """
    return json.dumps(norm._values())


@lru_cache(maxsize=512)
def norm_from_text(text: str) -> Norm:
    """The inverse of `text_of`."""
    return Norm(**json.loads(text))


def as_norm(norm: Norm | str) -> Norm:
    """A `Norm`, or a pattern with everything else at its default.

    >>> as_norm("[b t] c")
    Norm('[b t] c')
    """
    if isinstance(norm, Norm):
        return norm
    if isinstance(norm, str):
        return _norm_from_pattern(norm)
    raise TypeError(
        f"norm must be a Norm or a pattern, got {norm!r}. Write '[b t] c', or use a recipe such as tn.batch()."
    )


_norm_from_pattern = lru_cache(maxsize=512)(Norm)


def check_choice(owner: str, name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raises a `ValueError` unless the value is one of these strings or integers."""
    if not isinstance(value, str | Integral) or isinstance(value, bool) or value not in choices:
        raise ValueError(f"{owner}: {name} is {' or '.join(map(repr, choices))}, got {value!r}.")
