"""Activation checkpoints: the recomputation in the backward uses the lengths of the forward.

A checkpoint calls the same functions in the same order again, with tensors that the tracker has not seen. So the
forward writes down the states of all tensors that come from outside of the checkpoint, in the order in which they are
first read, and the recomputation reads them in that order.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from truenorm.torch._compat import backward_pass
from truenorm.torch.tracking.activation import Activation
from truenorm.torch.tracking.states import State, States
from truenorm.torch.tracking.tracker import Tracker


class Recording:
    """The forward of a checkpoint: notes the states of the tensors that come from outside, in their order."""

    def __init__(self, tracker: Tracker, states: list[State]) -> None:
        self.tracker, self.states = tracker, states

    def __enter__(self) -> None:
        tracker, states = self.tracker, self.states
        outside, self._outside = tracker.states, (tracker.states, tracker.first_look, tracker.recording)
        first_look = tracker.first_look

        def look(x: Tensor) -> State:
            found: State | None = outside.get(x)
            states.append(first_look(x) if found is None else found)
            return states[-1]

        tracker.states, tracker.recording = States(tracker.repeats.tags), True
        tracker.first_look = look

    def __exit__(self, *error: Any) -> None:
        tracker, inside = self.tracker, self.tracker.states
        tracker.states, tracker.first_look, tracker.recording = self._outside
        tracker.states.update(inside)


class Replaying:
    """The recomputation: the same functions in the same order, so the same states."""

    def __init__(self, tracker: Tracker, states: list[State]) -> None:
        self.tracker, self.states = tracker, states

    def __enter__(self) -> None:
        tracker = self.tracker.copy()
        left = iter(self.states)
        tracker.first_look = lambda x: next(left)
        tracker.recording, tracker.backward_pass = True, backward_pass()
        self._activation = Activation(tracker)
        self._activation.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._activation.__exit__(*error)
