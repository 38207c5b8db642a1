"""Random calls of the compiled array entry, most of them wrong: each must compute or raise.

A failure is a call that ends the process or hangs; that touches a byte of an input or beside an output; that had
written before it raised; whose results depend on what the outputs held; or that raises though all of it is right.
"""

import os
import resource
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tools.native_calls import RAGGED, STORED, Array, Sizes, arguments, columns, outputs, planes, rows
from truenorm import _native

REFUSED = (ValueError, TypeError, MemoryError)
MEMORY = 8 << 30
MOST = 60_000  # elements of x: enough for the pool of threads


# ---- cases ----


@dataclass
class Case:
    """A call. `right`: nothing was made wrong on purpose."""

    plan: dict[str, Any]
    verb: str
    taken: dict[str, Any]
    right: bool

    def check(self) -> tuple[int, int, int]:
        limit_memory()
        return int(check(self)), 0, 0

    def __str__(self) -> str:
        def show(value: Any) -> str:
            if not isinstance(value, np.ndarray):
                return repr(value)[:60]
            flags = "" if value.flags.c_contiguous else " strided"
            flags += "" if value.flags.writeable else " read-only"
            flags += "" if value.flags.aligned else " unaligned"
            few = f" {value.tolist()}" if value.dtype.kind in "biu" and value.size <= 8 else ""
            return f"{value.dtype.str}{list(value.shape)}{flags}{few}"

        words = ", ".join(f"{name}={show(value)}" for name, value in self.taken.items())
        return f"Plan(**{self.plan}).{self.verb}({words})"


def make(seed: int, number: int, fence: int) -> Case:
    rng = np.random.default_rng([seed, number])
    sizes = random_sizes(rng)
    dtype = str(rng.choice(list(STORED)))
    verb = str(rng.choice(["measure", "forward", "backward"]))
    plan = {
        "layout": sizes.layout,
        "runs": list(sizes.runs),
        "sequences": sizes.sequences,
        "extent": sizes.extent,
        "dtype": dtype,
        "center": bool(rng.random() < 0.7),
        "ddof": int(rng.integers(2)),
        "eps": float(rng.choice([0.0, 1e-5])),
        "eps_outside": bool(rng.random() < 0.3),
    }
    packed = sizes.layout == "columns" and sizes.width > 0 and rng.random() < 0.2
    taken = arguments(verb, sizes, dtype, rng, rows=sizes.rows + int(rng.integers(4)) if packed else None)
    taken |= random_ragged(rng, sizes, taken["x"], packed)
    for name in ("keep_padding", "given", "constant"):
        if name in taken:
            taken[name] = bool(rng.random() < 0.3)
    for name in ("weight", "bias"):
        if name in taken and rng.random() < 0.3:
            taken[name] = None
    for name in ("y", "moments", "dx", "sums", "dweight", "dbias"):
        if name in taken:
            taken[name] = fenced(taken[name], fence)
    if verb == "backward" and rng.random() < 0.2 and not taken["given"]:
        taken["dx"] = None  # only the sums
    case = Case(plan, verb, taken, right=True)
    while rng.random() < 0.5:
        case.right = False
        spoil(case, rng)
    return case


def random_sizes(rng: np.random.Generator) -> Sizes:
    def size(most: int = 5) -> int:
        return int(rng.choice([33, 65, 130, 520, 1030, 2050] if rng.random() < 0.1 else range(1, most + 1)))

    while True:
        kind = rng.integers(3)
        if kind == 0:
            sizes = columns(size(3), size(3), size(), size(), size(3))
        elif kind == 1:
            sizes = rows(size(), size(), size(), size(3))
        else:
            sizes = planes(size(3), size(3), size(3), size(3), size())
        if sizes.rows * sizes.width <= MOST:
            return sizes


def random_ragged(rng: np.random.Generator, sizes: Sizes, x: Array, packed: bool) -> dict[str, Any]:
    found: dict[str, Any] = dict.fromkeys(RAGGED)
    total, kind = sizes.rows, rng.integers(3)
    if packed:
        total = len(x) // sizes.width
        ends = np.sort(rng.integers(0, total + 1, 2 * sizes.sequences))
        found["starts"], found["lengths"] = ends[::2].copy(), ends[1::2] - ends[::2]
    elif kind == 0:
        found["lengths"] = rng.integers(0, sizes.extent + 1, sizes.sequences)
    elif kind == 1:
        found["valid"] = (rng.random(total) < 0.7).astype(rng.choice(["?", "u1"]))
    if rng.random() < 0.3:
        found["sample_weight"] = rng.choice([0.0, 0.5, 2.0], total)
    return found


def fenced(array: Array, fence: int) -> Array:
    """The same numbers between two zones that nothing may touch."""
    memory = np.full(array.nbytes + 2 * fence, 0xCA, np.uint8)
    inside = memory[fence : fence + array.nbytes].view(array.dtype)
    inside[:] = array
    return inside


# ---- what can be wrong ----

NUMBERS = (-1, 0, 1, 2, 7, 2**31 - 1, 2**31, 2**32 + 1, 2**62, 2**63 - 1, -(2**63), 2**64, (2**64 + 2) // 3)
OTHERS = (
    3,
    2.5,
    "text",
    b"bytes",
    [1.0, 2.0],
    object(),
    np.float32(1.0),
    True,
    range(3),
    np.zeros(3, []),
    np.zeros(4, "V4"),
)


def numeric(value: Any) -> bool:
    """Whether it is an array whose elements are something."""
    return isinstance(value, np.ndarray) and value.dtype.kind != "V"


def spoil(case: Case, rng: np.random.Generator) -> None:
    """Makes one thing wrong; now and then it is right all the same."""
    if rng.random() < 0.2:
        spoil_plan(case, rng)
        return
    name = str(rng.choice(list(case.taken)))
    value = case.taken[name]
    if not numeric(value):
        others = [one for one in case.taken.values() if numeric(one)]
        choices = [None, *OTHERS, *others, np.zeros(int(rng.integers(5)), rng.choice(["q", "d", "?", "f"]))]
        case.taken[name] = choices[rng.integers(len(choices))]
        return
    changes = list(CHANGES)
    change = changes[rng.integers(len(changes))]
    case.taken[name] = change(value, case, rng)


def spoil_plan(case: Case, rng: np.random.Generator) -> None:
    number = NUMBERS[rng.integers(len(NUMBERS))]
    place = rng.integers(9)
    if place == 0:
        case.plan["layout"] = rng.choice(["columns", "rows", "planes", "", "text"])
    elif place <= 4 and isinstance(case.plan["runs"], list):
        runs = list(case.plan["runs"])
        if rng.random() < 0.2:
            runs = runs[: rng.integers(5)]
        for i in range(len(runs)):
            if rng.random() < 0.4:
                runs[i] = NUMBERS[rng.integers(len(NUMBERS))]
        case.plan["runs"] = runs
        if rng.random() < 0.7 and len(runs) == 5:  # often the rest fits, so that they get past the plan's own check
            case.plan["sequences"] = runs[0] * (1 if case.plan["layout"] == "rows" else runs[1])
            case.plan["extent"] = runs[4] if case.plan["layout"] == "planes" else 1
    elif place == 5:
        case.plan["sequences"] = number
    elif place == 6:
        case.plan["extent"] = number
    elif place == 7:
        case.plan["dtype"] = rng.choice([*STORED, "int8", ""])
    else:
        name = ("center", "ddof", "eps", "eps_outside")[rng.integers(4)]
        case.plan[name] = [True, 0, 1, 2, -1.0, np.nan, np.inf, None, "x"][rng.integers(9)]


def other_numbers(value: Array, case: Case, rng: np.random.Generator) -> Array:
    value = value.copy()
    if value.size:
        choices = [np.nan, np.inf, -1.0, 1e300, -0.0]
        if value.dtype.kind in "iu":
            choices = [
                max(number, np.iinfo(value.dtype).min) % (int(np.iinfo(value.dtype).max) + 1) for number in NUMBERS
            ]
            choices += [-1] if value.dtype.kind == "i" else []
        value.flat[rng.integers(value.size)] = choices[rng.integers(len(choices))]
    return value


def from_another(value: Array, case: Case, rng: np.random.Generator) -> Any:
    """Memory of another argument, as this one's dtype where that is possible."""
    others = [one for one in case.taken.values() if numeric(one) and one is not value]
    if not others:
        return None
    other = others[rng.integers(len(others))]
    if not other.flags.c_contiguous or "O" in (value.dtype.kind, other.dtype.kind):
        return other
    flat = other.reshape(-1).view(np.uint8)
    flat = flat[: len(flat) // value.itemsize * value.itemsize].view(value.dtype)
    return flat[: value.size] if flat.size >= value.size else flat


def unaligned(value: Array, case: Case, rng: np.random.Generator) -> Array:
    if value.dtype == object:
        return value
    memory = np.zeros(value.nbytes + 1, np.uint8)
    memory[1:] = np.frombuffer(value.tobytes(), np.uint8)
    return memory[1:].view(value.dtype).reshape(value.shape)


def read_only(value: Array, case: Case, rng: np.random.Generator) -> Array:
    value = value.copy()
    value.flags.writeable = False
    return value


def other_dtype(value: Array, case: Case, rng: np.random.Generator) -> Array:
    plain = value.astype(float) if value.dtype == object else value  # Python's -1 fits no unsigned dtype
    with np.errstate(all="ignore"):
        return plain.astype(rng.choice(["f2", "f4", "f8", ">f4", ">f8", "i4", "i8", ">i8", "u1", "?", "u2", "c8", "O"]))


Change = Callable[[Array, Case, np.random.Generator], Any]
CHANGES: tuple[Change, ...] = (
    other_numbers,
    from_another,
    unaligned,
    read_only,
    other_dtype,
    lambda value, case, rng: None,
    lambda value, case, rng: OTHERS[rng.integers(len(OTHERS))],
    lambda value, case, rng: value[:-1],
    lambda value, case, rng: value[:0],
    lambda value, case, rng: np.append(value, value[:1]),
    lambda value, case, rng: np.repeat(value, 2)[::2],
    lambda value, case, rng: value[::-1],
    lambda value, case, rng: np.stack([value, value]).T[:, 0],
    lambda value, case, rng: np.broadcast_to(value[:1], value.shape) if value.size else value,
    lambda value, case, rng: value.reshape(1, -1),
    lambda value, case, rng: value.data if value.dtype.kind != "O" else value,
    lambda value, case, rng: value.tolist(),
)


# ---- running them ----


def root(array: Array) -> Array:
    """All of the memory that an array is a part of, as bytes."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.reshape(-1).view(np.uint8)


def own_bytes(array: Array) -> slice:
    """Where an array lies in its memory."""
    begin = array.ctypes.data - root(array).ctypes.data
    return slice(begin, begin + array.nbytes)


def attempt(case: Case, fill: int) -> list[bytes] | None:
    """One call: its outputs, None where it was refused. Asserts that nothing but outputs was written."""
    arrays = {
        name: value
        for name, value in case.taken.items()
        if numeric(value) and value.dtype.kind != "O" and value.flags.c_contiguous
    }
    written = [arrays[name] for name in outputs(case.verb, case.taken) if name in arrays]
    written = [array for array in written if array.flags.writeable]
    for array in written:
        root(array)[own_bytes(array)] = fill
    before = {name: root(array).copy() for name, array in arrays.items()}
    refused = ""
    try:
        getattr(_native.Plan(**case.plan), case.verb)(**case.taken)
    except REFUSED as error:
        refused = f"{type(error).__name__}: {error}"
    if refused:
        for name, array in arrays.items():
            assert np.array_equal(root(array), before[name]), f"{name} was written before {refused}"
        assert not case.right, f"refused, though nothing is wrong: {refused}"
        return None
    for name, array in arrays.items():
        changed = root(array) != before[name]
        for output in written:
            if root(output).ctypes.data == root(array).ctypes.data:
                changed[own_bytes(output)] = False
        assert not changed.any(), f"{name}: {changed.sum()} bytes were changed that are no output's"
    return [array.tobytes() for array in written]


def check(case: Case) -> bool:
    """Whether it computed. Asserts all that this file is for."""
    one = attempt(case, 0xA5)
    if one is None:
        return False
    assert attempt(case, 0x5A) == one, "the results depend on what the outputs held"
    return True


def limit_memory() -> None:
    """What is too large shall fail, and not take the machine's memory. A sanitizer's shadow is beyond any limit."""
    if "san.so" not in os.environ.get("LD_PRELOAD", ""):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
