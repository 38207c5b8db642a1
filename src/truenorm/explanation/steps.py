"""`explain`: forward and backward step by step, every intermediate with its name, formula and values.

An `Explanation` is a list of `Step`s, and `as_dict` turns it into plain data.
`reference.py` computes dx in one line; here each of its three paths is a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from truenorm.core.arrays import Floats
from truenorm.core.documentation import RAGGED, described_by
from truenorm.core.inputs import Normalized
from truenorm.core.layout import Layout
from truenorm.core.lengths import LengthsLike
from truenorm.core.moments import Moments, ignore_floating_point_errors, tree_sum
from truenorm.core.norm import Norm, as_norm
from truenorm.core.reference import forward, rstd_of
from truenorm.explanation.cells import INVALID
from truenorm.explanation.step import Part, Step, StepByStep
from truenorm.explanation.symbols import in_symbols, with_name


@dataclass(frozen=True, eq=False)
class Explanation(StepByStep):
    """All steps of one normalization. Index it by name: `explanation["mean"]`."""

    norm: Norm
    shape: tuple[int, ...]
    averaged: tuple[str, ...]  # the axes that share a statistic
    kept: tuple[str, ...]  # the axes that have one statistic for each index
    elements: int
    invalid: tuple[tuple[int, ...], ...]  # indices of x; without the channel axis if all channels are alike
    steps: tuple[Step, ...]
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by axis, or by several axes such as "b t"

    @property
    def headline(self) -> str:
        """Which axes share a statistic."""
        over = " and ".join(self.averaged)
        each = f"one for each {' and '.join(self.kept)}" if self.kept else "one for all"
        what = "mean and variance" if self.norm.center else "mean square"
        return f"{self.norm!r} of {' x '.join(map(str, self.shape))} values: a {what} over {over}, {each}"

    @property
    def summary(self) -> str:
        """Which positions are not valid."""
        if not self.invalid:
            return f"All {self.elements} elements are valid."
        shown = ", ".join(str(list(index)) for index in self.invalid[:12]) + (", …" if len(self.invalid) > 12 else "")
        count = "1 position is" if len(self.invalid) == 1 else f"{len(self.invalid)} positions are"
        return f"{count} not valid and ignored (shown as {INVALID}): {shown}."

    def written(self, step: Step) -> tuple[str, str]:
        """Name and formula in symbols. `as_dict`, and an index, use the names of the code."""
        return with_name(step.name), in_symbols(step.formula)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {
            "norm": repr(self.norm),
            "shape": list(self.shape),
            "averaged_over": list(self.averaged),
            "one_for_each": list(self.kept),
            "invalid": [list(index) for index in self.invalid],
            "steps": [step.as_dict() for step in self.steps],
        }


@described_by(RAGGED)
@ignore_floating_point_errors
def explain(
    x: ArrayLike,
    norm: Norm | str,
    *,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    valid: ArrayLike | None = None,
    lengths: LengthsLike | None = None,
    offsets: ArrayLike | None = None,
    segments: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    along: int | str | None = None,
    moments: Moments | None = None,
    dy: ArrayLike | None = None,
) -> Explanation:
    """Every intermediate of `forward` and, with `dy`, of `backward`.

    Args:
        x: numbers of any shape that the pattern fits
        norm: a `Norm`, or its pattern
        weight: usually (c,)
        bias: the same
        valid, lengths, offsets, segments, sample_weight, along: which elements are valid
        moments: used instead of those of x, as constants
        dy: the gradient of the loss at y; None: forward only

    Returns:
        `Explanation`: it prints as aligned tables, shows as HTML in notebooks, and is indexed by the names of its steps

    Examples:
        >>> import truenorm as tn
        >>> explanation = tn.explain([[1.0], [2.0], [6.0]], tn.batch(eps=0), dy=[[1.0], [0.0], [0.0]])
        >>> explanation["mean"], explanation["dx"].ravel().round(3)
        (array([3.]), array([ 0.176, -0.22 ,  0.044]))
        >>> [step.name for step in explanation.steps][:5]
        ['x', 'count', 'mean', 'x - mean', 'var']
    """
    norm = as_norm(norm)
    if norm.activation is not None:
        raise ValueError(f"explain: a norm without activation, got {norm.activation!r}. Leave it out.")
    out = forward(
        x,
        norm,
        weight=weight,
        bias=bias,
        valid=valid,
        lengths=lengths,
        offsets=offsets,
        segments=segments,
        sample_weight=sample_weight,
        along=along,
        moments=moments,
    )
    # With along= the axis that lengths run along has the name t inside; people read the names of their pattern.
    layout = out.masked.layout if along is None else out.norm.view(out.y.shape)
    recorder = _Recorder(out, layout)
    _forward_steps(recorder)
    if dy is not None:
        _backward_steps(recorder, dy)
    return Explanation(
        norm=out.norm,
        shape=out.y.shape,
        averaged=tuple(axis.name for axis in layout.axes if axis.reduced),
        kept=tuple(axis.name for axis in layout.axes if not axis.reduced),
        elements=out.y.size,
        invalid=() if recorder.invalid is None else _positions(recorder.invalid, layout.channel),
        steps=tuple(recorder.steps),
    )


class _Recorder:
    """Collects steps. Their values have one of three shapes: that of x, of the statistics, or of the weight."""

    def __init__(self, out: Normalized, layout: Layout) -> None:
        self.out = out
        self.layout = layout
        self.masked = replace(out.masked, dtype=np.dtype(np.float64))
        self.steps: list[Step] = []
        valid = self.masked.valid
        self.invalid: NDArray[np.bool_] | None = None
        if valid is not None and self.masked.rows is None:
            self.invalid = ~np.broadcast_to(valid, self.layout.split).reshape(self.masked.source.shape)

    def elements(self, part: Part, name: str, formula: str, values: Floats, *, result: bool = False) -> None:
        """Add a step with one value for each element of x. A result also has values where x is not valid: 0."""
        axes = self._axis_names(range(len(self.layout.axes)))
        if self.masked.rows is not None:
            axes = ("row", *axes[2:])
            axes = ("b", *axes) if self.masked.source.ndim > len(axes) else axes
        values = self.masked.restore(np.broadcast_to(values, self.layout.split))
        self.steps.append(Step(part, name, formula, values, axes, None if result else self.invalid))

    def statistics(self, part: Part, name: str, formula: str, values: NDArray[Any]) -> None:
        """Add a step with one value for each statistic."""
        names = tuple(axis.name for axis in self.layout.axes if not axis.reduced)
        self.steps.append(Step(part, name, formula, values.reshape(self.layout.statistics), names))

    def weights(self, part: Part, name: str, formula: str, values: NDArray[Any]) -> None:
        """Add a step with one value for each weight."""
        names = self._axis_names([i for i, axis in enumerate(self.layout.axes) if axis.weighted])
        self.steps.append(Step(part, name, formula, values.reshape(self.layout.weight_shape or ()), names))

    def _axis_names(self, axes: Sequence[int]) -> tuple[str, ...]:
        """The names of the axes of x. An axis that the pattern splits is named "(g c)"."""
        names: dict[int, list[str]] = {}
        for i in axes:
            names.setdefault(self.layout.axes[i].source, []).append(self.layout.axes[i].name)
        return tuple(one[0] if len(one) == 1 else f"({' '.join(one)})" for one in names.values())


def _forward_steps(recorder: _Recorder) -> None:
    out, norm = recorder.out, recorder.out.norm
    s = "" if out.masked.sample_weight is None else "s · "
    x, mean, rstd = (
        out.masked.x,
        _split(out, out.moments.mean),
        _split(out, rstd_of(out.moments, norm)),
    )

    def unless_given(formula: str) -> str:
        return formula if out.given is None else "given"

    recorder.elements("forward", "x", "the input", x)
    if out.masked.sample_weight is not None:
        recorder.elements("forward", "s", "the sample weights", out.masked.sample_weight)
    if out.given is None:
        recorder.statistics("forward", "count", "Σ s" if s else "number of valid elements", out.moments.count)
    if norm.center:
        recorder.statistics("forward", "mean", unless_given(f"Σ {s}x / count"), out.moments.mean)
        recorder.elements("forward", "x - mean", "each element minus its mean", x - mean)
    recorder.statistics(
        "forward", "var", unless_given(f"Σ {s}{_square(norm)} / {_degrees(norm)}"), out.moments.var(norm.ddof)
    )
    recorder.statistics("forward", "rstd", f"1 / {_deviation(norm)}", rstd)
    recorder.elements("forward", "xhat", f"{_centered(norm)} · rstd", (x - mean) * rstd)
    for name, parameter in (("weight", out.weight), ("bias", out.bias)):
        if parameter is not None:
            recorder.weights("forward", name, "given", parameter)
    formula = "xhat" + (" · weight" if out.weight is not None else "") + (" + bias" if out.bias is not None else "")
    recorder.elements("forward", "y", formula, _affine(out, (x - mean) * rstd), result=True)


def _backward_steps(recorder: _Recorder, dy: ArrayLike) -> None:
    out, norm, layout, masked = recorder.out, recorder.out.norm, recorder.layout, recorder.masked
    dy = out.masked.arrange(dy)
    s = 1.0 if masked.sample_weight is None else masked.sample_weight
    times_s = "" if masked.sample_weight is None else "s · "
    centered = masked.x - _split(out, out.moments.mean)
    if masked.valid is not None:
        centered = np.where(masked.valid, centered, 0.0)
    rstd = _split(out, rstd_of(out.moments, norm))
    count, degrees = _split(out, out.moments.count), _split(out, out.moments.count - norm.ddof)

    recorder.elements("backward", "dy", "the gradient of the loss with respect to y", dy)
    if out.bias is not None:
        recorder.weights("backward", "dbias", "Σ dy", tree_sum(dy, layout.unweighted))
    dxhat = dy
    if out.weight is not None:
        recorder.weights("backward", "dweight", "Σ dy · xhat", tree_sum(dy * centered * rstd, layout.unweighted))
        dxhat = dy * out.weight.reshape(layout.weight_split)
        recorder.elements("backward", "dxhat", "dy · weight", dxhat)
    else:
        recorder.elements("backward", "dxhat", "dy", dxhat)
    direct = dxhat * rstd
    recorder.elements("backward", "dx (through xhat)", "dxhat · rstd", direct)
    if out.given is not None:
        recorder.elements("backward", "dx", "the given statistics do not depend on x", direct, result=True)
        return

    std = _split(out, np.sqrt(out.moments.var(norm.ddof)))
    drstd_dvar = -0.5 * rstd**3 if norm.eps_at == "var" else -(rstd**2) * _over(0.5, std)
    drstd_dvar_formula = "(-1/2) · rstd³" if norm.eps_at == "var" else "(-1/2) · rstd² / sqrt(var)"
    dvar = tree_sum(dxhat * centered, layout.reduced) * drstd_dvar
    through_var = dvar * s * 2 * centered * _over(1, degrees)
    recorder.statistics("backward", "dvar", f"Σ dxhat · {_centered(norm)} · {drstd_dvar_formula}", dvar)
    dx = direct + through_var
    paths = "dx (through xhat) + dx (through var)"
    if norm.center:
        by_xhat = -rstd * tree_sum(dxhat, layout.reduced)
        by_var = dvar * tree_sum(s * -2 * centered, layout.reduced) * _over(1, degrees)
        dmean = by_xhat + by_var
        through_mean = s * dmean * _over(1, count)
        dx = dx + through_mean
        paths += " + dx (through mean)"
        recorder.statistics("backward", "dmean (through xhat)", "-Σ dxhat · rstd", by_xhat)
        formula = f"dvar · Σ {times_s}(-2) · (x - mean) / {_degrees(norm)}, 0 but for rounding"
        recorder.statistics("backward", "dmean (through var)", formula, by_var)
        recorder.statistics("backward", "dmean", "both paths", dmean)
    formula = f"dvar · 2 · {times_s}{_centered(norm)} / {_degrees(norm)}"
    recorder.elements("backward", "dx (through var)", formula, through_var)
    if norm.center:
        recorder.elements("backward", "dx (through mean)", f"{times_s}dmean / count", through_mean)
    recorder.elements("backward", "dx", paths, dx, result=True)


def _split(out: Normalized, statistic: NDArray[Any]) -> NDArray[Any]:
    return statistic.reshape(out.masked.layout.statistics_split)


def _affine(out: Normalized, y: Floats) -> Floats:
    y = y if out.weight is None else y * out.weight.reshape(out.masked.layout.weight_split)
    return y if out.bias is None else y + out.bias.reshape(out.masked.layout.weight_split)


def _over(above: float, below: NDArray[Any]) -> Floats:
    """above / below; 0 where below is not positive: too few elements, or a variance of 0."""
    ratio: Floats = np.divide(above, below, out=np.zeros(below.shape), where=below > 0)
    return ratio


def _positions(invalid: NDArray[np.bool_], channel: int | None) -> tuple[tuple[int, ...], ...]:
    """The positions that are not valid; where channels differ, the elements."""
    if channel is not None and invalid.shape[channel] and invalid.ndim > 1:
        first = invalid.take([0], channel)
        if (invalid == first).all():
            invalid = first.squeeze(channel)
    return tuple(tuple(int(i) for i in index) for index in np.argwhere(invalid))


def _centered(norm: Norm) -> str:
    return "(x - mean)" if norm.center else "x"


def _square(norm: Norm) -> str:
    return f"{_centered(norm)}²"


def _degrees(norm: Norm) -> str:
    return "(count - 1)" if norm.ddof else "count"


def _deviation(norm: Norm) -> str:
    return f"sqrt(var + {norm.eps:g})" if norm.eps_at == "var" else f"(sqrt(var) + {norm.eps:g})"
