"""Compiled part of truenorm; absent where it could not be built."""

from typing import Any

from numpy.typing import NDArray

# A contiguous array, or (address, count, format) of one; None is: not given.
Flat = NDArray[Any] | tuple[int, int, str] | None

def build_info() -> dict[str, str]:
    """How this module was built, and the loops in use."""

def set_threads(count: int) -> None:
    """How many threads a call may use."""

def get_threads() -> int:
    """How many threads a call may use."""

def join_openmp(join: bool, /) -> bool:
    """Whether to use OpenMP's threads from now on; False where they are not used, as this process has none."""

def select_loops(name: str) -> bool:
    """Use the loops of this name, "" for the best; False where this processor has none."""

def blend_running(moments: Flat, mean: Flat, var: Flat, momentum: float, ddof: int, next: Flat, /) -> bool:
    """Running mean and variance after one more batch; False where a channel needs care."""

def update_running(moments: Flat, mean: Flat, var: Flat, momentum: float, ddof: int, counter: Flat, /) -> int:
    """Move a running mean and variance in place, and count it; 1: moved, 0: nothing to move by, -1: not finite."""

def cross_entropy(logits: Flat, targets: Flat, dlogits: Flat, /) -> float:
    """The mean of -log softmax(logits)[target]; writes its gradient."""

def add_rows(numbers: Flat, rows: Flat, table: Flat, /) -> None:
    """table = 0, then table[numbers[i]] += rows[i]."""

def understand_tensors(exchange: Any, tensor: type, parameter: type, /) -> bool:
    """How to read torch's tensors, from their `__dlpack_c_exchange_api__`; False where this is not known."""

class Plan:
    """The sizes and conventions of one normalization. All arrays are contiguous; None is: not given."""

    def __init__(
        self,
        layout: str,
        runs: list[int],
        sequences: int,
        extent: int,
        dtype: str,
        center: bool,
        ddof: int,
        eps: float,
        eps_outside: bool,
        /,
    ) -> None: ...
    def measure(
        self, x: Flat, moments: Flat, lengths: Flat, starts: Flat, valid: Flat, sample_weight: Flat, /
    ) -> None: ...
    def forward(
        self,
        x: Flat,
        y: Flat,
        moments: Flat,
        weight: Flat,
        bias: Flat,
        lengths: Flat,
        starts: Flat,
        valid: Flat,
        sample_weight: Flat,
        keep_padding: bool,
        given: bool,
        /,
    ) -> None: ...
    def backward(
        self,
        x: Flat,
        dy: Flat,
        dx: Flat,
        moments: Flat,
        weight: Flat,
        sums: Flat,
        dweight: Flat,
        dbias: Flat,
        lengths: Flat,
        starts: Flat,
        valid: Flat,
        sample_weight: Flat,
        keep_padding: bool,
        given: bool,
        constant: bool,
        /,
    ) -> None: ...

class Call:
    """One normalization of torch's tensors, forward and then backward."""

    def __init__(
        self,
        plan: Plan,
        elements: int,
        lengths: Flat,
        starts: Flat,
        valid: Flat,
        sample_weight: Flat,
        keep_padding: bool,
        /,
    ) -> None: ...
    def fix(self, mean: Any, var: Any, /) -> None:
        """Use these statistics, whatever x is."""

    def forward(self, x: Any, y: Any, weight: Any, bias: Any, /) -> bool:
        """False, and nothing done, where a tensor does not fit or cannot be read where it is."""

    def backward(self, x: Any, dy: Any, weight: Any, dx: Any, dweight: Any, dbias: Any, /) -> bool:
        """The same; None where a gradient is not asked for."""

    def update_running(self, mean: Any, var: Any, momentum: float, ddof: int, counter: Any, /) -> int:
        """The function of this name with the moments of this call; 2: these cannot be written where they are."""

    def get_lengths(self) -> bytes:
        """Of all sequences; empty where none were given to `Usual.call`."""

    def get_moments(self) -> bytes:
        """count, mean and m2 of each statistic."""

    def set_moments(self, moments: Flat, /) -> None: ...
    @property
    def real_elements(self) -> int:
        """How many elements are real."""

    @property
    def large(self) -> bool:
        """Whether it is worth sharing among threads."""

class Usual:
    """Calls of one normalization where all of x is real, or the first so many steps of each sample, for the shapes that
    were seen last."""

    def call(self, x: Any, weight: Any, bias: Any, lengths: Any, keep_padding: bool, /) -> tuple[Call, Any] | None:
        """The call, and what `add` was given with its plan. None where there is no plan for this x yet, where a tensor
        cannot be read where it is, or where something does not fit."""

    def add(
        self, plan: Plan, shape: tuple[int, ...], weight_shape: tuple[int, ...], repeats: int, kernel: Any, /
    ) -> None:
        """repeats: how often each sample's length stands in a row, one for each sequence; 0 where there are none."""
