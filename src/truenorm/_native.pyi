"""Compiled part of truenorm; absent if it could not be built."""

from enum import Enum
from typing import Any

from numpy.typing import NDArray

# A contiguous array, of the buffer protocol; None: not given.
Flat = NDArray[Any] | None

# The dtypes of the kernels, by their letters in the buffer protocol. NumPy has no bfloat16: H is its bits.
FORMATS: dict[str, str]

def build_info() -> dict[str, str]:
    """How this module was built, and the loops in use."""

def set_threads(count: int) -> None:
    """How many threads a call may use."""

def get_threads() -> int:
    """How many threads a call may use."""

def use_openmp(use: bool, /) -> bool:
    """Whether to use OpenMP's threads from now on; False if they are not used, as this process has none."""

def select_loops(name: str) -> bool:
    """Use the loops of this name, "" for the best; False if this processor cannot run them."""

def ema_update(moments: Flat, mean: Flat, var: Flat, momentum: float, ddof: int, next: Flat, /) -> bool:
    """Running mean and variance after one more batch; False if a channel has too few elements or is not finite."""

def update_running(moments: Flat, mean: Flat, var: Flat, momentum: float, ddof: int, counter: Flat, /) -> int:
    """Update a running mean and variance in place, and count it; 1: updated, 0: too few elements, -1: not finite."""

def cross_entropy(logits: Flat, targets: Flat, dlogits: Flat, /) -> float:
    """The mean of -log softmax(logits)[target]; writes its gradient."""

def add_rows(numbers: Flat, rows: Flat, table: Flat, /) -> None:
    """table = 0, then table[numbers[i]] += rows[i]."""

def register_torch(exchange: Any, tensor: type, parameter: type, /) -> bool:
    """How to read torch's tensors, from their `__dlpack_c_exchange_api__`; False if its version is not known."""

def can_read(tensor: Any, /) -> bool:
    """Whether this is a tensor of torch that can be read in place, whatever its strides."""

class Plan:
    """The sizes and conventions of one normalization. All arrays are contiguous; None: not given."""

    def __init__(
        self,
        layout: str,
        runs: list[int],
        sequences: int,
        extent: int,
        dtype: str,
        *,
        center: bool,
        ddof: int,
        eps: float,
        eps_outside: bool,
        activation: str = "",
    ) -> None: ...
    def measure(
        self,
        x: Flat,
        moments: Flat,
        *,
        lengths: Flat = None,
        starts: Flat = None,
        valid: Flat = None,
        sample_weight: Flat = None,
    ) -> None:
        """Writes count, mean and m2 of each statistic."""

    def forward(
        self,
        x: Flat,
        y: Flat,
        moments: Flat,
        *,
        weight: Flat = None,
        bias: Flat = None,
        lengths: Flat = None,
        starts: Flat = None,
        valid: Flat = None,
        sample_weight: Flat = None,
        keep_padding: bool = False,
        given: bool = False,
    ) -> None:
        """Writes y, and the moments unless they are given."""

    def backward(
        self,
        x: Flat,
        dy: Flat,
        dx: Flat,
        moments: Flat,
        *,
        sums: Flat,
        weight: Flat = None,
        bias: Flat = None,
        dweight: Flat = None,
        dbias: Flat = None,
        lengths: Flat = None,
        starts: Flat = None,
        valid: Flat = None,
        sample_weight: Flat = None,
        keep_padding: bool = False,
        given: bool = False,
        constant: bool = False,
    ) -> None:
        """Writes dx; also sums, dweight and dbias unless the sums are given. constant: moments do not depend on x."""

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
        channels_last: bool,
        /,
    ) -> None: ...
    def fix(self, mean: Any, var: Any, /) -> bool:
        """Use copies of these statistics, whatever x is; False if they do not fit or cannot be read in place."""

    def forward(self, x: Any, y: Any, weight: Any, bias: Any, residual: Any = None, total: Any = None, /) -> bool:
        """False, and nothing done, if a tensor does not fit or cannot be read in place. With a residual the sum
        x + residual is normalized, and written to total."""

    def backward(
        self, x: Any, dy: Any, weight: Any, bias: Any, dx: Any, dweight: Any, dbias: Any, dtotal: Any = None, /
    ) -> bool:
        """The same; None for a gradient that is not needed. bias: only used if there is an activation; dtotal: added
        to dx."""

    def update_running(self, mean: Any, var: Any, momentum: float, ddof: int, counter: Any, /) -> int:
        """The function of this name with the moments of this call; 2: these cannot be written in place."""

    def get_valid(self) -> bytes:
        """Which rows are valid, as booleans; empty if `PlanCache.find` was given neither lengths nor valid."""

    def get_moments(self) -> bytes:
        """count, mean and m2 of each statistic, as doubles."""

    def set_moments(self, moments: Flat, /) -> None: ...
    @property
    def channels_last(self) -> bool:
        """The memory order of x, y and their gradients."""

    @property
    def max_count(self) -> int:
        """The number of valid elements of the statistic that has most of them."""

    @property
    def large(self) -> bool:
        """Whether it is worth sharing among threads."""

class Miss(Enum):
    """Why `PlanCache.find` found no plan."""

    unknown_shape = ...
    """No plan yet for the shape, dtype and memory order of x."""
    x_strided = ...
    """x can be read, but its memory order has no plan: copy it."""
    x_unreadable = ...
    """x cannot be read in place."""
    parameters = ...
    """weight or bias do not fit x, or cannot be read in place."""
    ragged = ...
    """lengths or valid do not fit x, or cannot be read in place."""

class PlanCache:
    """The plans of one normalization, for the shapes that were seen last."""

    def __init__(self, channels_last: bool, /) -> None:
        """channels_last: whether there are plans for this memory order too."""

    def find(
        self, x: Any, weight: Any, bias: Any, lengths: Any, valid: Any, keep_padding: bool, /
    ) -> tuple[Call, Any] | Miss:
        """A new call, and the `owner` that was added with its plan."""

    def add(
        self,
        plan: Plan,
        channels_last: bool,
        shape: tuple[int, ...],
        weight_shape: tuple[int, ...],
        repeats: int,
        steps: int,
        mask_shapes: list[tuple[int, ...]],
        owner: Any,
        /,
    ) -> None:
        """
        repeats, steps: for how many sequences in a row each sample's length holds, and how many rows a position is; 0
        if this norm takes no lengths. mask_shapes: those in which `valid` has one element for each row, in their order.
        """
