"""What `padded` costs: calls of Python, and garbage."""

import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor, nn, no_grad
from torch.nn import functional
from torch_data import normal
from tracked import count_calls

import truenorm.torch as tnt

LENGTHS = [9, 4]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = tnt.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = [one(self.norm(x)).view(b, t, 4, 4).transpose(1, 2) for one in (self.out, self.out, self.out)]
        y = functional.scaled_dot_product_attention(q, k, v)
        x = x + functional.dropout(self.out(y.transpose(1, 2).reshape(b, t, 16)), 0.1)
        return x + functional.dropout(self.second(functional.gelu(self.first(self.norm(x)))), 0.1)


def calls(run: Callable[[], Any]) -> int:
    """How many functions Python calls, its own and those of C: the same number on every machine."""
    found = 0

    def count(frame: Any, event: str, arg: Any) -> None:
        nonlocal found
        found += event in ("call", "c_call")

    gc.collect()
    gc.disable()
    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
        gc.enable()
    return found


@pytest.mark.parametrize(("lengths", "most"), [([8, 3], 58), (LENGTHS, 54)], ids=["other lengths", "the same"])
def test_calls_of_python_for_each_function_of_torch(lengths: list[int], most: int) -> None:
    """Those that `padded` adds, hooks and the context included, of Python and of C. They are what it costs."""
    model, x = nn.Sequential(*[Layer() for _ in range(6)]), normal(2, 9, 16)

    def padded(lengths: list[int]) -> None:
        with tnt.padded(lengths=lengths):
            model(x)

    padded(LENGTHS)
    functions = count_calls("call", lambda: padded(LENGTHS))
    model(x)
    added = calls(lambda: padded(lengths)) - calls(lambda: model(x))
    assert added / functions < most


def test_a_context_leaves_no_cycles() -> None:
    """They would wait for the garbage collector, and make it run in each training step."""
    model, x = nn.Sequential(*[Layer() for _ in range(3)]), normal(2, 9, 16)
    for n in (9, 8):
        gc.collect()
        with no_grad(), tnt.padded(lengths=[n, 3]):
            model(x)
        left = gc.collect()
    assert left < 60, left
