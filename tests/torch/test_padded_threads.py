"""`padded` in several threads: a context is left in the thread that entered it, also if several share it."""

import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack
from torch_data import normal

import truenorm.torch as tnt
from truenorm.torch.tracking import activation


def test_a_context_is_left_in_the_thread_that_entered_it() -> None:
    context, raised = tnt.padded(lengths=[2]), list[object]()
    context.__enter__()

    def leave() -> None:
        with pytest.raises(RuntimeError, match=r"^padded: left in another thread") as error:
            context.__exit__(None, None, None)
        raised.append(error)

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    assert len(raised) == 1
    context.__exit__(None, None, None)  # it can still be left where it was entered
    assert not activation.active.trackers
    assert not activation._contexts


def test_threads_share_a_context_and_leave_it_in_the_order_in_which_they_came() -> None:
    context, entered, left = tnt.padded(lengths=[2]), threading.Event(), threading.Event()
    problems: list[BaseException] = []

    def first() -> None:
        try:
            with context:
                entered.set()
                assert left.wait(30)
            assert not [*activation.active.trackers, *_get_current_function_mode_stack()]
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    assert entered.wait(30)
    context.__enter__()
    left.set()
    thread.join(1)
    context.__exit__(None, None, None)
    thread.join()
    assert not problems, problems
    assert not activation.active.trackers
    assert not activation._contexts


@pytest.mark.filterwarnings("ignore:Using `torch.compile")
def test_compiled_models_in_two_threads() -> None:
    """torch.compile has one stance for all threads: the first context to end must not end it for the other."""
    model: Any = nn.Sequential(nn.Conv1d(3, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Conv1d(4, 2, 3, padding=1))
    tnt.convert(model)
    x = normal(2, 3, 9)
    compiled = torch.compile(model, backend="eager")
    without = compiled(x)
    with tnt.padded(lengths=[9, 4]):
        expected = model(x)
    entered, leave = threading.Event(), threading.Event()

    def work() -> None:
        with tnt.padded(lengths=[9, 4]):
            entered.set()
            leave.wait(60)

    other = threading.Thread(target=work)
    other.start()
    assert entered.wait(60)
    with tnt.padded(lengths=[9, 4]):
        leave.set()
        other.join(60)
        assert torch.equal(compiled(x), expected)
    assert torch.equal(compiled(x), without)
    assert torch._dynamo.eval_frame._stance.stance == "default"
