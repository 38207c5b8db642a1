"""One case computed by every engine: the reference in float64, the compiled kernels, and torch layers in two ways.

Forward, backward, statistics and running statistics are compared, over patterns, layouts, activations, dtypes, values
from subnormal to the end of the range, inf and NaN, and every form of ragged data. Padding holds anything. Norms over
the last axis are layer and RMS norms of torch too, of a sum x + residual.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

import truenorm as tn
from tools.fuzz.tolerances import NARROW, WIDE, Array, Bounds, bounds, compare, greatest, spacing
from truenorm import engine
from truenorm.core.activation import ACTIVATIONS
from truenorm.core.inputs import Normalized
from truenorm.core.running import Convention, Running

torch: Any
tnt: Any
try:
    import torch

    import truenorm.torch as tnt
except ImportError:
    torch = tnt = None

DTYPES = ("float16", "float32", "float64", "bfloat16")
GARBAGE = (np.nan, np.inf, -np.inf, 6e4, -0.0, 5e-324, -1e300)
MOST = 6_000  # elements of x
# Each pattern with the sizes that are not free, and the options that it needs.
PATTERNS: tuple[tuple[str, dict[str, int], str | None], ...] = (
    ("[b t] c", {}, None),
    ("[b] c", {}, None),
    ("[b] c [t]", {}, None),
    ("b t [c]", {}, None),
    ("b [c]", {}, None),
    ("b [t] c", {}, None),
    ("b c [t]", {}, None),
    ("b [t] (g [c])", {"g": 2}, None),
    ("b (g [c]) [t]", {"g": 2}, None),
    ("[b] c [h w]", {}, None),
    ("b c [h w]", {}, None),
    ("b [h w] c", {}, None),
    ("[b] t c", {}, None),
    ("b [t c]", {}, None),
    ("b [c] t", {}, None),
    ("[b t c]", {}, None),
    ("b [t]", {}, None),
    ("c [h] b [w]", {}, None),
    ("[b n] c", {}, None),
    ("b [t] h c", {}, None),
    ("b [t h] (g [c])", {"g": 2}, None),
    ("[b] (t c)", {"t": 3}, None),
    ("b ([g] c) [t]", {"g": 2}, None),
    ("b [h c]", {}, "h c"),
    ("[h] b c", {}, "h c"),
    ("b [t] c", {}, "b"),
    ("b [t] (g [c])", {"g": 2}, "g"),
)
ROWS = ("b t [c]", "b [c]")  # layer and RMS norm of torch
ROWS_TAKE = {"lengths", "valid", "along"}
VALUES = (
    "normal",
    "offset",
    "constant",
    "scaled",
    "scaled",
    "mixed",
    "integers",
    "spike",
    "zeros",
    "inf",
    "nan",
    "top",
)
Form = Literal["array", "nested", "packed sequence"]


@dataclass
class Case:
    """Arguments of one forward and backward. x and dy hold numbers of `dtype`, in float64.

    residual   what is added to the input of a layer or RMS norm, and the gradient at their sum; x is this sum. Or None
    """

    norm: tn.Norm
    dtype: str
    values: str
    x: Array
    dy: Array
    ragged: dict[str, Any]
    parameters: dict[str, Array]
    padding: Any
    given: tn.Moments | None
    order: str  # of x in memory
    form: Form
    momentum: Any
    residual: tuple[Array, Array, Array] | None  # the input, what is added to it, and the gradient at x
    counts: list[int] = field(default_factory=lambda: [0, 0, 0])

    def __str__(self) -> str:
        ragged = ", ".join(f"{name}={list(np.shape(one)) or one}" for name, one in self.ragged.items())
        return (
            f"{self.norm!r} of {self.dtype}{list(self.x.shape)}, values {self.values}, {self.order}, {self.form}, "
            f"ragged ({ragged}), parameters ({', '.join(self.parameters)}), padding={self.padding!r}, "
            f"given={self.given is not None}, momentum={self.momentum}, residual={self.residual is not None}"
        )

    def check(self) -> tuple[int, int, int]:
        with using("reference"):
            expected = tn.forward(self.x, self.norm, **self.arguments())
            gradients = tn.backward(self.dy, expected)
        unit = WIDE if self.dtype == "float64" else NARROW
        allowed = bounds(expected, self.dy, unit, self.dtype)
        if self.dtype != "bfloat16":
            for name in engine.available():
                with using(name):
                    self.with_numpy(name, expected, gradients, allowed)
        if torch is not None and self.given is None:
            for name in engine.available():
                with using(name):
                    self.with_torch(f"torch, {name}", expected, gradients, allowed)
                    if self.residual is not None:
                        self.with_residual(f"residual, {name}", expected, gradients, allowed)
        return self.counts[0], self.counts[1], self.counts[2]

    def arguments(self) -> dict[str, Any]:
        return {**self.ragged, **self.parameters, "padding": self.padding, "moments": self.given}

    # -- engines --

    def with_numpy(self, name: str, expected: Normalized, gradients: Any, allowed: Bounds) -> None:
        x, dy = in_order(self.x.astype(self.dtype), self.order), in_order(self.dy.astype(self.dtype), self.order)
        before = x.tobytes(), dy.tobytes()
        out = tn.forward(x, self.norm, **self.arguments())
        found = tn.backward(dy, out)
        assert before == (x.tobytes(), dy.tobytes()), f"{name}: an input was modified"
        assert out.y.dtype == found[0].dtype == x.dtype, f"{name}: y is {out.y.dtype}, dx is {found[0].dtype}"
        self.compare(f"{name}: ", (out.y, *found), (expected.y, *gradients), allowed)
        moments = tn.measure(x, self.norm, **self.ragged) if self.given is None else out.moments
        self.statistics(f"{name}: ", moments, expected.moments, allowed)
        if self.given is None:
            self.running(f"{name}: ", out.moments, expected.moments, allowed)

    def with_torch(self, name: str, expected: Normalized, gradients: Any, allowed: Bounds) -> None:
        dtype = getattr(torch, self.dtype)
        x = in_order(torch.tensor(self.x).to(dtype), self.order).requires_grad_()
        layer = tnt.Normalize(self.norm, self.shape_of_weight(), affine=False, padding=self.padding)
        for key in ("weight", "bias"):
            if key in self.parameters:
                setattr(layer, key, torch.nn.Parameter(torch.tensor(self.parameters[key])))
        ragged = {key: as_tensors(one) for key, one in self.ragged.items()}
        input, rows, dy = x, None, torch.tensor(self.dy).to(dtype)
        if self.form == "nested":
            input = torch.nested.nested_tensor_from_jagged(x, ragged.pop("offsets"))
        elif self.form == "packed sequence":
            lengths = ragged.pop("offsets").diff()
            input, rows = packed_sequence(x, lengths)
        y = layer(input, **ragged)
        if self.form == "nested":
            y = y.values()
        elif rows is not None:
            y = torch.empty_like(y.data).index_copy(0, rows, y.data)
        y.backward(dy)
        self.compare_torch(name, layer, y, x.grad, expected, gradients, allowed)

    def with_residual(self, name: str, expected: Normalized, gradients: Any, allowed: Bounds) -> None:
        """The layer or RMS norm of torch, of the input and what is added to it."""
        assert self.residual is not None
        dtype, norm = getattr(torch, self.dtype), self.norm
        kind = tnt.LayerNorm if norm.center else tnt.RMSNorm
        layer = kind(self.x.shape[-1], eps=norm.eps, activation=norm.activation, padding=self.padding)
        for key in ("weight", "bias") if norm.center else ("weight",):
            given = self.parameters.get(key)
            setattr(layer, key, None if given is None else torch.nn.Parameter(torch.tensor(given)))
        x, residual, dtotal = (in_order(torch.tensor(one).to(dtype), self.order) for one in self.residual)
        ragged = {key: as_tensors(one) for key, one in self.ragged.items()}
        y, total = layer(x.requires_grad_(), residual=residual.requires_grad_(), **ragged)
        torch.autograd.backward([y, total], [torch.tensor(self.dy).to(dtype), dtotal])
        assert torch.equal(x.grad.nan_to_num(), residual.grad.nan_to_num()), f"{name}: two gradients of one sum"
        self.close(total.detach().double().numpy(), self.x, np.asarray(0.0), self.dtype, f"{name}: total")
        with np.errstate(all="ignore"):
            dx = gradients[0] + self.residual[2]
            twice = allowed._replace(dx=allowed.dx + spacing(gradients[0], self.dtype) + spacing(dx, self.dtype))
        self.compare_torch(name, layer, y, x.grad, expected, (dx, *gradients[1:]), twice)

    def compare_torch(
        self, name: str, layer: Any, y: Any, dx: Any, expected: Normalized, gradients: Any, allowed: Bounds
    ) -> None:
        parameters = (getattr(layer, key, None) for key in ("weight", "bias"))
        found = [y.detach(), dx, *(None if one is None else one.grad for one in parameters)]
        arrays = [None if one is None else one.double().numpy() for one in found]
        # The dispatcher may have chosen the formula. The kernels are compared without torch, too.
        allowed = allowed._replace(dx=np.where(allowed.autograd_overflows, np.inf, allowed.dx))
        if allowed.dweight is not None and allowed.torch_sums is not None:
            allowed = allowed._replace(dweight=allowed.dweight + allowed.torch_sums)
        self.compare(f"{name}: ", tuple(arrays), (expected.y, *gradients), allowed)

    # -- comparisons --

    def compare(self, name: str, found: tuple[Any, ...], expected: tuple[Any, ...], allowed: Bounds) -> None:
        self.counts[0] += 1
        for key, one, two in zip(("y", "dx", "dweight", "dbias"), found, expected, strict=True):
            assert (one is None) == (two is None), f"{name}{key} is {one}"
            if two is not None:
                dtype = self.dtype if key in ("y", "dx") else str(self.parameters[key[1:]].dtype)
                self.close(one, two, getattr(allowed, key), dtype, name + key)

    def close(self, found: Array, expected: Array, bound: Array, dtype: str, name: str) -> None:
        compared, undetermined = compare(found, expected, bound, dtype, name)
        self.counts[1] += compared
        self.counts[2] += undetermined

    def statistics(self, name: str, found: tn.Moments, expected: tn.Moments, allowed: Bounds) -> None:
        size = np.abs(expected.count).max(initial=0.0)
        self.close(found.count, expected.count, np.asarray(self.x.size * WIDE * size), "float64", name + "count")
        self.close(found.mean, expected.mean, allowed.mean, "float64", name + "mean")
        self.close(found.m2, expected.m2, allowed.m2, "float64", name + "m2")

    def running(self, name: str, found: tn.Moments, expected: tn.Moments, allowed: Bounds) -> None:
        """After one batch the statistics have moved by `momentum` of the way, at most all of it."""
        if not np.isfinite(allowed.m2).all() or (expected.m2 > 1e300).any():
            return  # whether this batch counts may depend on rounding
        start = Running.start(expected.shape, Convention(self.momentum, ddof=1))
        one, two = start.update(found), start.update(expected)
        assert (one.batches, one.skipped) == (two.batches, two.skipped), f"{name}running: {one}, not {two}"
        count = np.asarray(expected.count, float)
        freedom = np.maximum(count - 1, 1e-300)
        with np.errstate(all="ignore"):
            new = expected.m2 / freedom
            off = allowed.m2 + new * self.x.size * WIDE * count
            var = np.where(freedom > 1e-3, off / freedom, np.inf) + 8 * WIDE * np.maximum(new, 1.0)
        mean = allowed.mean + 8 * WIDE * np.abs(expected.mean)
        self.close(one.mean, two.mean, mean, "float64", name + "running mean")
        self.close(one.var, two.var, var, "float64", name + "running var")

    def shape_of_weight(self) -> Any:
        return next(iter(self.parameters.values())).shape if self.parameters else (1,)


def as_tensors(value: Any) -> Any:
    """Arrays as tensors, also in a tuple."""
    if isinstance(value, tuple):
        return tuple(map(as_tensors, value))
    return torch.tensor(value) if isinstance(value, np.ndarray) else value


@contextlib.contextmanager
def using(name: Any) -> Iterator[None]:
    before = engine.engine()
    engine.use(name)
    try:
        yield
    finally:
        engine.use(before)


def in_order(values: Any, order: str) -> Any:
    """The same numbers, otherwise in memory: a NumPy array or a tensor."""
    if order == "transposed" and values.ndim > 1:
        axes = tuple(reversed(range(values.ndim)))
        turned = values.permute(axes).contiguous() if hasattr(values, "permute") else values.transpose(axes).copy()
        return turned.permute(axes) if hasattr(values, "permute") else turned.transpose(axes)
    if order == "strided" and values.ndim:
        both = torch.stack([values, values], -1) if hasattr(values, "permute") else np.stack([values, values], -1)
        return both[..., 0]
    if order == "other byte order" and isinstance(values, np.ndarray):
        return values.astype(values.dtype.newbyteorder())
    return values


def packed_sequence(x: Any, lengths: Any) -> tuple[Any, Any]:
    """A PackedSequence of packed rows, and where each of its rows was."""
    order = torch.argsort(lengths, descending=True, stable=True)
    begins = torch.cumsum(lengths, 0) - lengths
    steps = range(int(lengths.max()))
    rows = torch.cat([torch.stack([begins[i] + t for i in order if lengths[i] > t]) for t in steps])
    sizes = torch.tensor([int((lengths > t).sum()) for t in steps])
    return torch.nn.utils.rnn.PackedSequence(x[rows], sizes), rows


# ---- drawing a case ----


def make(seed: int, number: int) -> Case:
    rng = np.random.default_rng([seed, number])
    pattern, sizes, affine = PATTERNS[rng.integers(len(PATTERNS))]
    center = bool(rng.random() < 0.8)
    norm = tn.Norm(
        pattern,
        eps=float(rng.choice([1e-5, 1e-5, 0.0, 1e-12, 1.0])),
        center=center,
        ddof=int(rng.integers(2)) if center else 0,  # type: ignore[arg-type]
        eps_at=str(rng.choice(["var", "var", "std"])),  # type: ignore[arg-type]
        sizes=sizes,
        affine=affine,
        activation=str(rng.choice(ACTIVATIONS)) if rng.random() < 0.4 else None,  # type: ignore[arg-type]
    )
    dtype = str(rng.choice(DTYPES))
    shape = random_shape(rng, norm)
    ragged, form = random_ragged(rng, norm, shape)
    packed = "offsets" in ragged or "segments" in ragged
    channels = shape[-1]
    if packed:
        rows = int(ragged["offsets"][-1]) if "offsets" in ragged else len(ragged["segments"])
        shape = (rows, *shape[2:])
        if form == "array" and rng.random() < 0.3:
            shape = (1, *shape)
            ragged |= {key: one[None] for key, one in ragged.items() if key == "sample_weight"}
    layout = norm.view(shape) if not packed else tn.Norm("... [c]").view(shape)
    values = str(rng.choice(VALUES))
    x = rounded(random_values(rng, values, shape, dtype), dtype)
    dy = rounded(rng.normal(0.3, 1.0, shape) * 10.0 ** rng.integers(-3, 4), dtype)
    valid = valid_elements(norm, shape, ragged)
    garbage = rounded(rng.choice(GARBAGE, shape), dtype)
    x, dy = np.where(valid, x, garbage), np.where(valid, dy, rng.permuted(garbage))
    residual = None
    if norm.pattern in ROWS and norm.eps_at == "var" and norm.ddof == 0 and ROWS_TAKE.issuperset(ragged):
        input, more = x, rounded(random_values(rng, values, shape, dtype), dtype)
        with np.errstate(all="ignore"):
            more = np.where(np.abs(input + more) > greatest(dtype), 0.0, more)
            x = rounded(input + more, dtype)
        residual = input, more, rounded(rng.normal(0, 1, shape), dtype)
    parameters: dict[str, Array] = {}
    covered = layout.weight_shape if not packed else (channels,)
    for name in ("weight", "bias"):
        if covered is not None and rng.random() < 0.6:
            size = rng.uniform(0.4, 2.3, covered) * rng.choice([-1.0, 1.0, 1.0, 0.0, 1e-3, 1e3], covered)
            parameters[name] = size.astype(rng.choice(["float32", "float64"]))
    given = None
    if not packed and rng.random() < 0.1:
        var = rng.uniform(0.2, 3.0, layout.statistics)
        given = tn.Moments.from_variance(rng.normal(0, center, layout.statistics), var, count=rng.integers(1, 9) + 1)
    return Case(
        norm,
        dtype,
        values,
        x,
        dy,
        ragged,
        parameters,
        padding=str(rng.choice(["zero", "keep"])),
        given=given,
        order=str(rng.choice(["contiguous", "contiguous", "transposed", "strided", "other byte order"])),
        form=form,
        momentum=[0.1, 1.0, None, "pooled"][rng.integers(4)],
        residual=residual if given is None and (norm.center or "bias" not in parameters) else None,
    )


def random_shape(rng: np.random.Generator, norm: tn.Norm) -> tuple[int, ...]:
    """Small sizes; now and then one that fills several blocks of a kernel."""
    while True:
        shape = []
        for axis in norm.axes:
            size = int(rng.choice([33, 65, 130, 520, 1030, 2050]) if rng.random() < 0.08 else rng.integers(1, 7))
            shape.append(size * int(np.prod([norm.sizes[name] for name in axis.names if name in norm.sizes])))
        if np.prod(shape) <= MOST:
            return tuple(shape)


def random_ragged(rng: np.random.Generator, norm: tn.Norm, shape: tuple[int, ...]) -> tuple[dict[str, Any], Form]:
    layout, form = norm.view(shape), "array"
    ragged: dict[str, Any] = {}
    names = {axis.name: axis.size for axis in layout.axes}
    kinds = ["nothing", "nothing", "valid", "valid by element", "lengths", "along", "each axis", "offsets", "segments"]
    kind = str(rng.choice(kinds))
    last = len(shape) - 1
    plain = norm.affine is None and set(names) <= {"b", "t", "h", "g", "c"} and last > 1 and layout.channel == last
    if kind == "segments" and {"b", "t"} <= set(names) and plain:
        rows = int(rng.integers(0, names["b"] * names["t"] + 1))
        ids = rng.integers(-3, 40, names["b"])[rng.integers(0, names["b"], rows)]
        ragged["segments"] = np.sort(ids) if rng.random() < 0.3 else ids
        if rng.random() < 0.3:
            ragged["sample_weight"] = random_weights(rng, (rows, *shape[2:-1]))
        return ragged, "array"
    if kind == "offsets" and {"b", "t"} <= set(names) and plain:
        lengths = rng.integers(0, names["t"] + 1, names["b"])
        form = str(rng.choice(["array", "nested", "packed sequence"])) if len(shape) == 3 else "array"
        if form == "packed sequence":
            lengths = np.maximum(lengths, 1)
        ragged["offsets"] = np.concatenate([[0], np.cumsum(lengths)])
        if rng.random() < 0.3:
            ragged["sample_weight"] = random_weights(rng, (int(lengths.sum()), *shape[2:-1]))
            form = "array" if form == "packed sequence" else form
        return ragged, form  # type: ignore[return-value]
    sizes = [layout.split[i] for i in layout.position_axes]
    if kind == "lengths" and layout.ragged_axis is not None and "b" in names:
        ragged["lengths"] = rng.integers(0, layout.split[layout.ragged_axis] + 1, names["b"])
    elif kind == "along" and sizes and "b" in names:
        axis = layout.axes[int(rng.choice(layout.position_axes))]
        ragged["lengths"] = rng.integers(0, axis.size + 1, names["b"])
        ragged["along"] = axis.name if rng.random() < 0.5 else axis.source
    elif kind == "each axis" and sizes and "b" in names:
        ragged["lengths"] = tuple(rng.integers(0, size + 1, names["b"]) for size in sizes)
    elif kind == "valid":
        ragged["valid"] = rng.random(layout.positions) < rng.choice([0.3, 0.8])
    elif kind == "valid by element":
        ragged["valid"] = rng.random(shape) < 0.7
    if rng.random() < 0.25:
        ragged["sample_weight"] = random_weights(rng, layout.positions)
    return ragged, form  # type: ignore[return-value]


def random_weights(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.choice([0.0, 0.5, 1.0, 1.25, 2.0, 1e-3, 1e3], shape)


def valid_elements(norm: tn.Norm, shape: tuple[int, ...], ragged: dict[str, Any]) -> Array:
    """Which elements of x are valid. All packed rows are."""
    if "offsets" in ragged or "segments" in ragged:
        return np.ones(shape, bool)
    only: dict[str, Any] = {name: ragged[name] for name in ("valid", "lengths", "along") if name in ragged}
    with using("reference"):
        kept = tn.forward(np.zeros(shape), norm, padding="keep", bias=None, **only)
    mask = kept.masked.valid
    return np.ones(shape, bool) if mask is None else np.broadcast_to(mask, kept.masked.layout.split).reshape(shape)


def random_values(rng: np.random.Generator, kind: str, shape: tuple[int, ...], dtype: str) -> Array:
    top = np.log10(greatest(dtype))
    bottom = {"float16": -7, "bfloat16": -40, "float32": -44, "float64": -323}[dtype]
    plain = rng.normal(0, 1, shape)
    if kind == "offset":
        return np.asarray(10.0 ** rng.uniform(0, min(top, 9)) * rng.choice([-1, 1]) + plain)
    if kind == "constant":
        return np.full(shape, float(rng.choice([-1, 1]) * 10.0 ** rng.uniform(bottom, top)))
    if kind == "scaled":  # from subnormal to the end of the range
        return np.asarray(plain * 10.0 ** rng.uniform(bottom, top))
    if kind == "mixed":
        return np.asarray(np.sign(plain) * 10.0 ** rng.uniform(bottom, top, shape))
    if kind == "integers":
        return np.asarray(rng.integers(-3, 4, shape), float)
    if kind == "spike":
        return np.where(rng.random(shape) < 0.1, 10.0 ** rng.uniform(0, top), plain)
    if kind == "zeros":
        return np.zeros(shape)
    if kind in ("inf", "nan"):
        wrong = rng.choice([np.inf, -np.inf] if kind == "inf" else [np.nan], shape)
        return np.where(rng.random(shape) < 0.1, wrong, plain)
    if kind == "top":
        return np.asarray(rng.uniform(-1, 1, shape) * greatest(dtype))
    return np.asarray(3.0 + 1.5 * plain)


def rounded(values: Array, dtype: str) -> Array:
    """The nearest numbers of the dtype, in float64; finite ones stay finite."""
    most = greatest(dtype)
    values = np.where(np.isfinite(values), np.clip(values, -most, most), values)
    if dtype != "bfloat16":
        return values.astype(dtype).astype(float)
    step = spacing(values, dtype)
    with np.errstate(all="ignore"):
        return np.where(np.isfinite(values), np.round(values / step) * step, values)
