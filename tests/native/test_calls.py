"""Wrong calls of the compiled kernels are refused with a reason and do no harm. `test_fuzz.py` draws random ones."""

import itertools
import os
import signal
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import pytest
from patterns import (
    Array,
)

_native = pytest.importorskip("truenorm._native", reason="the compiled part was not built")
from tools.fuzz.calls import limit_memory  # noqa: E402
from tools.fuzz.driver import HANGS  # noqa: E402
from tools.native_calls import Sizes, arguments, columns, planes, rows  # noqa: E402


def isolated(function: Callable[[], Any]) -> str:
    """What a call raises, from a process of its own: a signal is an answer, not an end."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads; the kernels' are made for it
        child = os.fork()
    if not child:
        signal.alarm(HANGS)
        limit_memory()
        text = "nothing"
        try:
            function()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        text = stream.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return f"signal {os.WTERMSIG(status)}"
    return text or f"exit code {os.WEXITSTATUS(status)}"


LAYOUTS = {"columns": columns(1, 2, 3, 4), "rows": rows(2, 3, 4), "planes": planes(2, 1, 4, 1, 3)}
Change = Callable[[dict[str, Any], Sizes], dict[str, Any]]


def every_second(array: Array) -> Array:
    return np.repeat(array, 2)[::2]


def frozen(array: Array) -> Array:
    array = array.copy()
    array.flags.writeable = False
    return array


def unaligned(array: Array) -> Array:
    return np.frombuffer(bytearray(b"?" + array.tobytes()), np.uint8)[1:].view(array.dtype)


def overlapping(n: int, one: int, other: int, dtype: type = np.float32) -> tuple[Array, Array]:
    """Two arrays of n elements that begin at these places of the same memory."""
    memory: Array = np.zeros(2 * n, dtype)
    return memory[one : one + n], memory[other : other + n]


def both(names: str, pair: tuple[Array, Array]) -> dict[str, Array]:
    return dict(zip(names.split(), pair, strict=True))


def replaced(name: str, how: Callable[[Any], Any]) -> Change:
    return lambda taken, sizes: {name: how(taken[name])}


def instead(**values: Any) -> Change:
    return lambda taken, sizes: values


SHARED = "ValueError: an output must not share memory with another array."
# The verb, what is wrong, and the message. {size} and the like are numbers of the layout.
REFUSALS: list[tuple[str, Change, str]] = [
    ("measure", instead(x=None), "ValueError: x must be an array, got None."),
    ("measure", instead(moments=None), "ValueError: moments must be an array, got None."),
    ("forward", instead(x=None), "ValueError: x must be an array, got None."),
    ("forward", instead(y=None), "ValueError: y must be an array, got None."),
    ("forward", instead(moments=None), "ValueError: moments must be an array, got None."),
    ("forward", instead(moments=None, given=True), "ValueError: moments must be an array, got None."),
    ("backward", instead(x=None), "ValueError: x must be an array, got None."),
    ("backward", instead(dy=None), "ValueError: dy must be an array, got None."),
    ("backward", instead(moments=None), "ValueError: moments must be an array, got None."),
    ("backward", instead(sums=None), "ValueError: sums must be an array, got None."),
    ("backward", instead(sums=None, given=True), "ValueError: sums must be an array, got None."),
    ("backward", instead(dx=None, given=True), "ValueError: dx must be an array if sums are given, got None."),
    # What they are made of.
    ("measure", replaced("x", lambda x: x.astype(float)), "TypeError: x must hold elements of format f, got d."),
    ("measure", replaced("x", lambda x: x.astype(">f4")), "TypeError: x must hold elements of format f, got >f."),
    ("measure", replaced("x", lambda x: x.astype(np.int32)), "TypeError: x must hold elements of format f, got i."),
    (
        "measure",
        replaced("x", lambda x: x.astype(np.complex64)),
        "TypeError: x must hold elements of format f, got Zf.",
    ),
    ("measure", replaced("x", lambda x: x.tolist()), "ValueError: x must be a contiguous array."),
    ("measure", instead(x=3), "ValueError: x must be a contiguous array."),
    ("measure", instead(x=(4096, 24, "f")), "ValueError: x must be a contiguous array."),  # not an address
    ("measure", instead(x="text"), "ValueError: x must be a contiguous array."),
    ("measure", instead(x=b"bytes"), "TypeError: x must hold elements of format f, got B."),
    ("measure", instead(x=np.zeros(24, [])), "TypeError: x must hold elements of format f, got T{{}}."),  # 0 bytes each
    ("measure", instead(x=np.zeros(24, "V4")), "TypeError: x must hold elements of format f, got 4x."),
    ("measure", replaced("x", every_second), "ValueError: x must be a contiguous array."),
    ("measure", replaced("x", lambda x: x[::-1]), "ValueError: x must be a contiguous array."),
    ("measure", replaced("x", lambda x: np.broadcast_to(x[:1], x.shape)), "ValueError: x must be a contiguous array."),
    ("measure", replaced("x", lambda x: x.reshape(2, -1).T), "ValueError: x must be a contiguous array."),
    ("measure", replaced("x", unaligned), "ValueError: x must be an aligned array."),
    ("measure", replaced("moments", unaligned), "ValueError: moments must be an aligned array."),
    ("measure", replaced("moments", frozen), "ValueError: moments must be a contiguous writable array."),
    (
        "measure",
        replaced("moments", lambda moments: moments.astype(np.float32)),
        "TypeError: moments must hold elements of format d, got f.",
    ),
    ("forward", replaced("y", lambda y: y.astype(np.float16)), "TypeError: y must hold elements of format f, got e."),
    ("forward", replaced("y", frozen), "ValueError: y must be a contiguous writable array."),
    ("forward", replaced("y", every_second), "ValueError: y must be a contiguous writable array."),
    ("forward", replaced("y", unaligned), "ValueError: y must be an aligned array."),
    (
        "forward",
        replaced("weight", lambda weight: weight.astype(int)),
        "TypeError: weight must hold elements of format dfeH, got l.",
    ),
    ("forward", replaced("weight", every_second), "ValueError: weight must be a contiguous array."),
    ("forward", replaced("bias", unaligned), "ValueError: bias must be an aligned array."),
    ("backward", replaced("dy", lambda dy: dy.astype(float)), "TypeError: dy must hold elements of format f, got d."),
    ("backward", replaced("dx", frozen), "ValueError: dx must be a contiguous writable array."),
    ("backward", replaced("sums", frozen), "ValueError: sums must be a contiguous writable array."),
    ("backward", replaced("dweight", frozen), "ValueError: dweight must be a contiguous writable array."),
    (
        "backward",
        replaced("dbias", lambda dbias: dbias.astype(np.int64)),
        "TypeError: dbias must hold elements of format dfeH, got l.",
    ),
    # How many.
    ("measure", replaced("x", lambda x: x[:-1]), "ValueError: x must have {size} elements, got 23."),
    ("measure", replaced("x", lambda x: x[:0]), "ValueError: x must have {size} elements, got 0."),
    ("measure", replaced("x", lambda x: np.append(x, x)), "ValueError: x must have {size} elements, got 48."),
    (
        "measure",
        replaced("moments", lambda moments: moments[:-1]),
        "ValueError: moments must have {moments} elements, got {fewer}.",
    ),
    ("forward", replaced("y", lambda y: y[:-1]), "ValueError: y must have {size} elements, got 23."),
    ("forward", instead(moments=np.zeros(5)), "ValueError: moments must have {moments} elements, got 5."),
    ("forward", instead(weight=np.ones(3)), "ValueError: weight must have 4 elements, got 3."),
    ("forward", instead(bias=np.ones(0)), "ValueError: bias must have 4 elements, got 0."),
    ("backward", replaced("dy", lambda dy: dy[:-1]), "ValueError: dy must have {size} elements, got 23."),
    ("backward", replaced("dx", lambda dx: dx[:-1]), "ValueError: dx must have {size} elements, got 23."),
    ("backward", instead(moments=np.zeros(5)), "ValueError: moments must have {moments} elements, got 5."),
    ("backward", instead(sums=np.zeros(5)), "ValueError: sums must have {sums} elements, got 5."),
    ("backward", instead(weight=np.ones(5)), "ValueError: weight must have 4 elements, got 5."),
    ("backward", instead(dweight=np.ones(5)), "ValueError: dweight must have 4 elements, got 5."),
    ("backward", instead(dbias=np.ones(5)), "ValueError: dbias must have 4 elements, got 5."),
    # What is valid.
    ("forward", instead(lengths=np.array([3])), "ValueError: lengths must have 2 elements, got 1."),
    ("forward", instead(lengths=np.array([3, 4])), "ValueError: lengths must be from 0 to 3, got 4."),
    ("forward", instead(lengths=np.array([-1, 3])), "ValueError: lengths must be from 0 to 3, got -1."),
    (
        "forward",
        instead(lengths=np.array([2**62, 3])),
        "ValueError: lengths must be from 0 to 3, got 4611686018427387904.",
    ),
    (
        "forward",
        instead(lengths=np.array([-(2**63), 3])),
        "ValueError: lengths must be from 0 to 3, got -9223372036854775808.",
    ),
    ("forward", instead(lengths=np.array([1.0, 2.0])), "TypeError: lengths must hold elements of format lq, got d."),
    (
        "forward",
        instead(lengths=np.array([1, 2], np.int32)),
        "TypeError: lengths must hold elements of format lq, got i.",
    ),
    ("forward", instead(lengths=[1, 2]), "ValueError: lengths must be a contiguous array."),
    ("forward", instead(lengths=unaligned(np.array([1, 2]))), "ValueError: lengths must be an aligned array."),
    ("forward", instead(valid=np.ones(5, bool)), "ValueError: valid must have 6 elements, got 5."),
    ("forward", instead(valid=np.ones(24, bool)), "ValueError: valid must have 6 elements, got 24."),
    ("forward", instead(valid=np.ones(6, np.int64)), "TypeError: valid must hold elements of format ?B, got l."),
    (
        "forward",
        instead(valid=np.ones(6, bool), lengths=np.array([1, 2])),
        "ValueError: valid and lengths must not both be given.",
    ),
    ("forward", instead(sample_weight=np.ones(5)), "ValueError: sample_weight must have 6 elements, got 5."),
    (
        "forward",
        instead(sample_weight=np.ones(6, np.float32)),
        "TypeError: sample_weight must hold elements of format d, got f.",
    ),
    *(
        (
            verb,
            instead(sample_weight=np.array([1, 1, 1, 1, 1, bad])),
            f"ValueError: sample_weight must be finite and >= 0, got {bad}.",
        )
        for verb in ("measure", "forward", "backward")
        for bad in (np.nan, -1.0, np.inf, -np.inf)
    ),
    (
        "forward",
        instead(starts=np.array([0, 3])),
        "ValueError: starts need lengths, and a plan whose layout is columns.",
    ),
    # What lies where.
    ("measure", lambda taken, sizes: {"x": taken["moments"].view(np.float32)[:24]}, SHARED),
    ("measure", lambda taken, sizes: {"sample_weight": taken["moments"][:6]}, SHARED),
    ("measure", lambda taken, sizes: {"lengths": taken["moments"].view(int)[:2] * 0 + 1}, "nothing"),
    ("forward", lambda taken, sizes: {"y": taken["x"]}, SHARED),
    ("forward", lambda taken, sizes: both("x y", overlapping(24, 0, 23)), SHARED),
    ("forward", lambda taken, sizes: both("x y", overlapping(24, 23, 0)), SHARED),
    ("forward", lambda taken, sizes: both("x y", overlapping(24, 0, 24)), "nothing"),
    ("forward", lambda taken, sizes: {"weight": taken["moments"][:4]}, SHARED),
    ("forward", lambda taken, sizes: {"bias": taken["y"][-4:]}, SHARED),
    ("forward", lambda taken, sizes: {"valid": taken["y"].view(np.uint8)[:6]}, SHARED),
    ("forward", lambda taken, sizes: {"sample_weight": taken["moments"][:6]}, SHARED),
    ("backward", lambda taken, sizes: {"dx": taken["dy"]}, SHARED),
    ("backward", lambda taken, sizes: {"dx": taken["x"]}, SHARED),
    ("backward", lambda taken, sizes: {"dx": taken["x"], "given": True}, SHARED),
    ("backward", lambda taken, sizes: {"dy": taken["x"]}, "nothing"),
    ("backward", lambda taken, sizes: {"dbias": taken["dweight"]}, SHARED),
    ("backward", lambda taken, sizes: {"dweight": taken["weight"]}, SHARED),
    ("backward", lambda taken, sizes: {"sums": taken["moments"][: 2 * sizes.statistics]}, SHARED),
    ("backward", lambda taken, sizes: {"dbias": taken["sums"][:4]}, SHARED),
    ("backward", lambda taken, sizes: {"dbias": taken["sums"][:4], "given": True}, SHARED),
]


def differences(table: Iterable[tuple[Callable[[], Any], str, str]]) -> list[str]:
    """What does not say what it should: (call, text, how to name the call)."""
    answers = [(isolated(call), text, what) for call, text, what in table]
    return [f"{what}: {found!r}, not {text!r}" for found, text, what in answers if not found.startswith(text)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_wrong_is_refused(layout: str) -> None:
    sizes, table = LAYOUTS[layout], []
    moments = 3 * sizes.statistics
    for number, (verb, change, message) in enumerate(REFUSALS):
        taken = arguments(verb, sizes)
        changed = change(taken, sizes)
        call = partial(getattr(sizes.plan(), verb), **(taken | changed))
        text = message.format(size=24, moments=moments, fewer=moments - 1, sums=2 * sizes.statistics)
        table.append((call, text, f"{number}, {verb} with other {', '.join(changed)}"))
    assert differences(table) == []


PACKED_REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"starts": np.array([0, 3])}, "ValueError: starts need lengths, and a plan whose layout is columns."),
    (
        {"starts": np.array([3, 0]), "lengths": np.array([2, 3])},
        "ValueError: starts and lengths must ascend within the rows, got (0, 3).",
    ),
    (
        {"starts": np.array([0, 1]), "lengths": np.array([2, 3])},
        "ValueError: starts and lengths must ascend within the rows, got (1, 3).",
    ),
    (
        {"starts": np.array([-1, 3]), "lengths": np.array([2, 3])},
        "ValueError: starts and lengths must ascend within the rows, got (-1, 2).",
    ),
    (
        {"starts": np.array([0, 3]), "lengths": np.array([2, 5])},
        "ValueError: starts and lengths must ascend within the rows, got (3, 5).",
    ),
    (
        {"starts": np.array([0, 3]), "lengths": np.array([2, -1])},
        "ValueError: starts and lengths must ascend within the rows, got (3, -1).",
    ),
    (
        {"starts": np.array([0, 2**63 - 1]), "lengths": np.array([2, 2**63 - 1])},
        "ValueError: starts and lengths must ascend within the rows, got (9223372036854775807, 9223372036854775807).",
    ),
    ({"starts": np.array([0]), "lengths": np.array([2, 3])}, "ValueError: starts must have 2 elements, got 1."),
    ({"starts": np.array([0, 3]), "lengths": np.array([2])}, "ValueError: lengths must have 2 elements, got 1."),
    (
        {"x": np.zeros(27, np.float32), "starts": np.array([0, 3]), "lengths": np.array([2, 3])},
        "ValueError: x must have 24 elements, got 27.",
    ),
    ({"starts": np.array([0, 3]), "lengths": np.array([3, 4])}, "nothing"),
    ({"starts": np.array([2, 7]), "lengths": np.array([5, 0])}, "nothing"),
]


def test_packed_rows_that_do_not_fit_are_refused() -> None:
    sizes, table = columns(2, 1, 1, 4), []
    for change, message in PACKED_REFUSALS:
        taken = arguments("measure", sizes, rows=7) | change
        table.append((partial(sizes.plan().measure, **taken), message, str(change)))
    assert differences(table) == []


THIRD = (2**64 + 2) // 3  # three of these are 2, in 64 bits
GOOD = {
    "layout": "columns",
    "runs": [1, 6, 4, 1, 1],
    "sequences": 2,
    "extent": 3,
    "dtype": "float32",
    "center": True,
    "ddof": 0,
    "eps": 1e-5,
    "eps_outside": False,
}
PLANS: list[tuple[dict[str, Any], str]] = [
    ({"layout": "text"}, "ValueError: layout must be 'columns', 'rows' or 'planes', got 'text'."),
    ({"layout": ""}, "ValueError: layout must be 'columns', 'rows' or 'planes', got ''."),
    ({"runs": [1, 6, 4, 1]}, "ValueError: runs must be five sizes, got 4."),
    ({"runs": []}, "ValueError: runs must be five sizes, got 0."),
    ({"runs": [1, 6, 4, 1, 1, 1]}, "ValueError: runs must be five sizes, got 6."),
    ({"runs": [1, -6, 4, 1, 1]}, "ValueError: runs must be >= 1, got -6."),
    ({"runs": [1, 6, 0, 1, 1]}, "ValueError: runs must be >= 1, got 0."),
    ({"runs": [1, 6, 4, 0, 1]}, "ValueError: runs must be >= 1, got 0."),
    ({"runs": [2**32, 2**31, 4, 1, 1]}, "ValueError: runs must have a product of at most 2^56."),
    ({"runs": [2**62, 6, 4, 1, 1]}, "ValueError: runs must have a product of at most 2^56."),
    ({"runs": [THIRD, 1, 1, 1, 1], "sequences": 0}, "ValueError: runs must have a product of at most 2^56."),
    ({"runs": [1, 6, 4, 1, 2]}, "ValueError: runs must fit the layout, sequences and extent."),
    ({"runs": [4, 6, 4, 1, 1]}, "ValueError: runs must fit the layout, sequences and extent."),
    ({"layout": "rows"}, "ValueError: runs must fit the layout, sequences and extent."),
    (
        {"layout": "rows", "runs": [5, 1, 4, 1, 1]},
        "ValueError: runs must fit the layout, sequences and extent.",
    ),
    ({"layout": "planes"}, "ValueError: runs must fit the layout, sequences and extent."),
    (
        {"layout": "planes", "runs": [1, 2, 4, 1, 5]},
        "ValueError: runs must fit the layout, sequences and extent.",
    ),
    ({"sequences": -1}, "ValueError: sequences and extent must be >= 1, got -1."),
    ({"extent": -1}, "ValueError: sequences and extent must be >= 1, got -1."),
    ({"sequences": 2**32, "extent": 2**32}, "ValueError: sequences and extent must have a product below 2^63."),
    ({"dtype": "int8"}, "ValueError: dtype must be float32, float64, float16 or bfloat16, got 'int8'."),
    ({"ddof": 2}, "ValueError: ddof must be 0 or 1, got 2."),
    ({"ddof": -1}, "ValueError: ddof must be 0 or 1, got -1."),
    ({"eps": -1e-5}, "ValueError: eps must be finite and >= 0, got -1e-05."),
    ({"eps": float("nan")}, "ValueError: eps must be finite and >= 0, got nan."),
    ({"eps": float("inf")}, "ValueError: eps must be finite and >= 0, got inf."),
    *(
        ({place: value}, "TypeError: __init__(): incompatible function arguments.")
        for place, value in (
            *(("layout", None), ("runs", 3), ("runs", [2**64, 1, 1, 1, 1]), ("sequences", 2**63), ("sequences", None)),
            *(("sequences", 1.5), ("dtype", 1), ("center", "x"), ("ddof", 2**40), ("eps", "x"), ("eps_outside", None)),
        )
    ),
]


def test_plans_that_make_no_sense_are_refused() -> None:
    table = [(partial(_native.Plan, **GOOD), "nothing", "as it should be")]
    for change, message in PLANS:
        table.append((partial(_native.Plan, **GOOD | change), message, str(change)))
    assert differences(table) == []


HUGE: list[Callable[[int], tuple[Any, ...]]] = [
    lambda n: ("columns", [n, 1, 1, 1, 1], 0, 1),
    lambda n: ("columns", [1, 1, 0, 1, 1], n, 1),
    lambda n: ("columns", [1, 1, 1, 1, 1], n, 0),
    lambda n: ("rows", [n, 1, 0, 1, 1], n, 1),
    lambda n: ("rows", [n, 1, 1, 0, 1], n, 1),
    lambda n: ("planes", [n, 1, 0, 1, 0], n, 0),
    lambda n: ("planes", [1, n, 1, 1, 0], n, 0),
]


@pytest.mark.parametrize("number", range(len(HUGE)))
def test_huge_sizes_of_nothing_are_refused_or_done_at_once(number: int) -> None:
    # No array has an element, so nothing but the plan itself says how much there is to do.
    for size, elements in itertools.product((2**31, 2**40, 2**62, 2**63 - 1, THIRD), (0, 2, 3)):
        options = HUGE[number](size)

        def call(options: Any = options, elements: int = elements) -> None:
            plan = _native.Plan(*options, "float32", center=True, ddof=0, eps=1e-5, eps_outside=False)
            plan.measure(np.zeros(0, np.float32), np.zeros(elements))

        answer = isolated(call)
        assert answer.startswith(("nothing", "ValueError: ", "MemoryError: ")), f"{options}: {answer}"


SMALL: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "cross_entropy": (_native.cross_entropy, (np.zeros((2, 3)), np.array([0, 2]), np.zeros((2, 3)))),
    "add_rows": (_native.add_rows, (np.array([0, 2]), np.zeros((2, 4)), np.zeros((3, 4)))),
    "ema_update": (_native.ema_update, (np.ones((2, 3)), np.zeros(2), np.ones(2), 0.1, 0, np.zeros((2, 2)))),
}


@pytest.mark.parametrize("name", SMALL)
def test_wrong_calls_of_the_small_loops_are_refused(name: str) -> None:
    function, good = SMALL[name]
    function(*good)
    for i, value in enumerate(good):
        if not isinstance(value, np.ndarray):
            continue
        other_kind = value.astype(np.float16)
        for wrong in (None, np.append(value.reshape(-1), value.flat[0]), every_second(value), other_kind):
            with pytest.raises((ValueError, TypeError, IndexError)):
                function(*good[:i], wrong, *good[i + 1 :])
    for i, value in enumerate(good[:-1]):
        if isinstance(value, np.ndarray) and value.dtype == good[-1].dtype and value.size <= good[-1].size:
            with pytest.raises(ValueError, match="share memory"):
                function(*good[:i], good[-1].reshape(-1)[: value.size].reshape(value.shape), *good[i + 1 :])
    with pytest.raises(ValueError, match="writable"):
        function(*good[:-1], frozen(good[-1]))


@pytest.mark.parametrize("place", [0, 1, 2, 5])
def test_an_address_is_not_an_array(place: int) -> None:
    good: list[Any] = [np.ones((2, 3)), np.zeros(2), np.ones(2), 0.1, 0, np.array(3)]
    assert _native.update_running(*good) == 1
    array = good[place]
    wrong = [*good[:place], (array.ctypes.data, array.size, array.dtype.char), *good[place + 1 :]]
    with pytest.raises(ValueError, match="contiguous"):
        _native.update_running(*wrong)


@pytest.mark.parametrize("wrong", [-1, 3, 2**62])
def test_numbers_of_rows_and_classes_that_are_not_there_are_refused(wrong: int) -> None:
    with pytest.raises(IndexError):
        _native.cross_entropy(np.zeros((2, 3)), np.array([0, wrong]), np.zeros((2, 3)))
    with pytest.raises(IndexError):
        _native.add_rows(np.array([wrong, 0]), np.zeros((2, 4)), np.zeros((3, 4)))


def test_settings_that_make_no_sense_are_refused() -> None:
    assert _native.select_loops("text") is False
    for function, value in ((_native.select_loops, None), (_native.set_threads, "2"), (_native.set_threads, 2**40)):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            function(value)
    for count in (-3, 0):
        assert isolated(partial(_native.set_threads, count)) == "nothing"
