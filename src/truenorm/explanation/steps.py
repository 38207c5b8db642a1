"""The same computation, step by step: every intermediate with its name, formula and values.

`explain` returns an `Explanation`: a list of `Step`s that prints as aligned tables, shows in notebooks, and turns
into plain data with `as_dict`. Where `reference.py` adds the three paths of dx up to one line, each stands alone here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from truenorm.core.inputs import Normalized
from truenorm.core.mask import Floats
from truenorm.core.moments import Moments, ignore_floating_point_errors, tree_sum
from truenorm.core.norm import Norm
from truenorm.core.reference import forward, rstd_of

Part = Literal["forward", "backward"]


@dataclass(frozen=True, eq=False)
class Step:
    """One line of the computation."""

    part: Part
    name: str
    formula: str
    values: NDArray[Any]
    axes: tuple[str, ...]  # a name for each axis of values
    left_out: NDArray[np.bool_] | None = None  # which of the values are not real

    def as_dict(self) -> dict[str, Any]:
        """Plain data; null where nothing is valid or no number is finite."""
        shown = np.isfinite(self.values)
        if self.left_out is not None:
            shown &= ~self.left_out
        values = self.values.astype(object)
        values[~shown] = None
        return {
            "part": self.part,
            "name": self.name,
            "formula": self.formula,
            "axes": list(self.axes),
            "shape": list(self.values.shape),
            "values": values.tolist(),
        }


@dataclass(frozen=True, eq=False)
class Explanation:
    """All steps of one normalization. Index it by name: `explanation["mean"]`."""

    norm: Norm
    shape: tuple[int, ...]
    averaged: tuple[str, ...]  # the axes that share one statistic
    kept: tuple[str, ...]  # the axes that have one each
    elements: int
    left_out: tuple[tuple[int, ...], ...]  # what is not valid: indices of x, without the channel if all are alike
    steps: tuple[Step, ...]
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)  # names along an axis, or along "b t"

    def __getitem__(self, name: str) -> NDArray[Any]:
        for step in self.steps:
            if step.name == name:
                return step.values
        raise KeyError(f"explain: no step {name!r}, only {', '.join(step.name for step in self.steps)}.")

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {
            "norm": repr(self.norm),
            "shape": list(self.shape),
            "averaged_over": list(self.averaged),
            "one_for_each": list(self.kept),
            "left_out": [list(index) for index in self.left_out],
            "steps": [step.as_dict() for step in self.steps],
        }

    def __str__(self) -> str:
        from truenorm.explanation.text import as_text  # rich is slow to load, and most never print

        return as_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from truenorm.explanation.html import as_html

        return as_html(self)


@ignore_floating_point_errors
def explain(
    x: ArrayLike,
    norm: Norm | str,
    *,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    valid: ArrayLike | None = None,
    lengths: ArrayLike | None = None,
    offsets: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    moments: Moments | None = None,
    dy: ArrayLike | None = None,
) -> Explanation:
    """Every intermediate of `forward` and, with `dy`, of `backward`. The arguments are theirs.

    >>> import truenorm as tn
    >>> shown = tn.explain([[1.0], [2.0], [6.0]], tn.batch(eps=0), dy=[[1.0], [0.0], [0.0]])
    >>> shown["mean"], shown["dx"].ravel().round(3)
    (array([3.]), array([ 0.176, -0.22 ,  0.044]))
    >>> [step.name for step in shown.steps][:5]
    ['x', 'count', 'mean', 'x - mean', 'var']
    """
    out = forward(
        x,
        norm,
        weight=weight,
        bias=bias,
        valid=valid,
        lengths=lengths,
        offsets=offsets,
        sample_weight=sample_weight,
        moments=moments,
    )
    notebook = _Notebook(out)
    _forward_steps(notebook)
    if dy is not None:
        _backward_steps(notebook, dy)
    layout = out.masked.layout
    left_out = notebook.left_out
    return Explanation(
        norm=out.norm,
        shape=out.y.shape,
        averaged=tuple(axis.name for axis in layout.axes if axis.reduced),
        kept=tuple(axis.name for axis in layout.axes if not axis.reduced),
        elements=out.y.size,
        left_out=() if left_out is None else _places(left_out, layout.channel),
        steps=tuple(notebook.steps),
    )


class _Notebook:
    """Collects steps, and knows the three shapes that values come in: x's, the statistics' and the weight's."""

    def __init__(self, out: Normalized) -> None:
        self.out = out
        self.layout = out.masked.layout
        self.form = replace(out.masked, dtype=np.dtype(np.float64))
        self.steps: list[Step] = []
        valid = self.form.valid
        self.left_out: NDArray[np.bool_] | None = None
        if valid is not None and self.form.rows is None:
            self.left_out = ~np.broadcast_to(valid, self.layout.split).reshape(self.form.source.shape)

    def elements(self, part: Part, name: str, formula: str, values: Floats, *, result: bool = False) -> None:
        """A step with one value for each element of x; a result has a value where nothing is valid, too: 0."""
        axes = self._joined(range(len(self.layout.axes)))
        if self.form.rows is not None:
            axes = ("row", axes[-1])
        values = self.form.restore(np.broadcast_to(values, self.layout.split))
        self.steps.append(Step(part, name, formula, values, axes, None if result else self.left_out))

    def statistics(self, part: Part, name: str, formula: str, values: NDArray[Any]) -> None:
        """A step with one value for each statistic."""
        names = tuple(axis.name for axis in self.layout.axes if not axis.reduced)
        self.steps.append(Step(part, name, formula, values.reshape(self.layout.statistics), names))

    def weights(self, part: Part, name: str, formula: str, values: NDArray[Any]) -> None:
        """A step with one value for each weight."""
        names = self._joined([i for i, axis in enumerate(self.layout.axes) if axis.weighted])
        self.steps.append(Step(part, name, formula, values.reshape(self.layout.weight_shape or ()), names))

    def _joined(self, axes: Sequence[int]) -> tuple[str, ...]:
        """Names of whole axes of x: pieces of one axis stand together."""
        names: dict[int, list[str]] = {}
        for i in axes:
            names.setdefault(self.layout.axes[i].source, []).append(self.layout.axes[i].name)
        return tuple(one[0] if len(one) == 1 else f"({' '.join(one)})" for one in names.values())


def _forward_steps(notebook: _Notebook) -> None:
    out, norm = notebook.out, notebook.out.norm
    s = "" if out.masked.sample_weight is None else "s · "
    x, mean, rstd = (
        out.masked.x,
        _split(out, out.moments.mean),
        _split(out, rstd_of(out.moments, norm)),
    )
    how: Callable[[str], str] = (lambda _: "given") if out.given is not None else (lambda formula: formula)

    notebook.elements("forward", "x", "the input", x)
    if out.masked.sample_weight is not None:
        notebook.elements("forward", "s", "the sample weights", out.masked.sample_weight)
    notebook.statistics("forward", "count", how("Σ s" if s else "how many elements"), out.moments.count)
    if norm.center:
        notebook.statistics("forward", "mean", how(f"Σ {s}x / count"), out.moments.mean)
        notebook.elements("forward", "x - mean", "each element minus its mean", x - mean)
    notebook.statistics("forward", "var", how(f"Σ {s}{_square(norm)} / {_degrees(norm)}"), out.moments.var(norm.ddof))
    notebook.statistics("forward", "rstd", f"1 / {_deviation(norm)}", rstd)
    notebook.elements("forward", "xhat", f"{_centered(norm)} · rstd", (x - mean) * rstd)
    for name, parameter in (("weight", out.weight), ("bias", out.bias)):
        if parameter is not None:
            notebook.weights("forward", name, "given", parameter)
    formula = "xhat" + (" · weight" if out.weight is not None else "") + (" + bias" if out.bias is not None else "")
    notebook.elements("forward", "y", formula, _affine(out, (x - mean) * rstd), result=True)


def _backward_steps(notebook: _Notebook, dy: ArrayLike) -> None:
    out, norm, layout, form = notebook.out, notebook.out.norm, notebook.layout, notebook.form
    dy = out.masked.arrange(dy)
    s = 1.0 if form.sample_weight is None else form.sample_weight
    times = "" if form.sample_weight is None else "s · "
    centered = form.x - _split(out, out.moments.mean)
    if form.valid is not None:
        centered = np.where(form.valid, centered, 0.0)
    rstd = _split(out, rstd_of(out.moments, norm))
    count, degrees = _split(out, out.moments.count), _split(out, out.moments.count - norm.ddof)

    notebook.elements("backward", "dy", "the gradient that comes in", dy)
    if out.bias is not None:
        notebook.weights("backward", "dbias", "Σ dy", tree_sum(dy, layout.unweighted))
    dxhat = dy
    if out.weight is not None:
        notebook.weights("backward", "dweight", "Σ dy · xhat", tree_sum(dy * centered * rstd, layout.unweighted))
        dxhat = dy * out.weight.reshape(layout.weight_split)
        notebook.elements("backward", "dxhat", "dy · weight", dxhat)
    else:
        notebook.elements("backward", "dxhat", "dy", dxhat)
    direct = dxhat * rstd
    notebook.elements("backward", "dx (through xhat)", "dxhat · rstd", direct)
    if out.given is not None:
        notebook.elements("backward", "dx", "the given mean and variance do not depend on x", direct, result=True)
        return

    std = _split(out, np.sqrt(out.moments.var(norm.ddof)))
    slope = -0.5 * rstd**3 if norm.eps_at == "var" else -(rstd**2) * _over(0.5, std)
    in_words = "(-1/2) · rstd³" if norm.eps_at == "var" else "(-1/2) · rstd² / sqrt(var)"
    dvar = tree_sum(dxhat * centered, layout.reduced) * slope
    through_var = dvar * s * 2 * centered * _over(1, degrees)
    notebook.statistics("backward", "dvar", f"Σ dxhat · {_centered(norm)} · {in_words}", dvar)
    dx = direct + through_var
    paths = "dx (through xhat) + dx (through var)"
    if norm.center:
        by_xhat = -rstd * tree_sum(dxhat, layout.reduced)
        by_var = dvar * tree_sum(s * -2 * centered, layout.reduced) * _over(1, degrees)
        dmean = by_xhat + by_var
        through_mean = s * dmean * _over(1, count)
        dx = dx + through_mean
        paths += " + dx (through mean)"
        notebook.statistics("backward", "dmean (through xhat)", "-Σ dxhat · rstd", by_xhat)
        formula = f"dvar · Σ {times}(-2) · (x - mean) / {_degrees(norm)}, 0 but for rounding"
        notebook.statistics("backward", "dmean (through var)", formula, by_var)
        notebook.statistics("backward", "dmean", "both paths", dmean)
    formula = f"dvar · 2 · {times}{_centered(norm)} / {_degrees(norm)}"
    notebook.elements("backward", "dx (through var)", formula, through_var)
    if norm.center:
        notebook.elements("backward", "dx (through mean)", f"{times}dmean / count", through_mean)
    notebook.elements("backward", "dx", paths, dx, result=True)


def _split(out: Normalized, statistic: NDArray[Any]) -> NDArray[Any]:
    return statistic.reshape(out.masked.layout.statistics_split)


def _affine(out: Normalized, y: Floats) -> Floats:
    y = y if out.weight is None else y * out.weight.reshape(out.masked.layout.weight_split)
    return y if out.bias is None else y + out.bias.reshape(out.masked.layout.weight_split)


def _over(above: float, below: NDArray[Any]) -> Floats:
    """above / below; 0 where there is nothing to divide by: too few elements, or no spread."""
    ratio: Floats = np.divide(above, below, out=np.zeros(below.shape), where=below > 0)
    return ratio


def _places(left_out: NDArray[np.bool_], channel: int | None) -> tuple[tuple[int, ...], ...]:
    """The positions that are left out, or the elements where channels differ."""
    if channel is not None and left_out.shape[channel] and left_out.ndim > 1:
        first = left_out.take([0], channel)
        if (left_out == first).all():
            left_out = first.squeeze(channel)
    return tuple(tuple(int(i) for i in index) for index in np.argwhere(left_out))


def _centered(norm: Norm) -> str:
    return "(x - mean)" if norm.center else "x"


def _square(norm: Norm) -> str:
    return f"{_centered(norm)}²"


def _degrees(norm: Norm) -> str:
    return "(count - 1)" if norm.ddof else "count"


def _deviation(norm: Norm) -> str:
    return f"sqrt(var + {norm.eps:g})" if norm.eps_at == "var" else f"(sqrt(var) + {norm.eps:g})"
