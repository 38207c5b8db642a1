"""Rules for recurrent layers: sequences are packed, so that no step reads padding.

Outputs of a layer in one direction would be right without it. Those of the other direction, and the last states, would
not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from truenorm.torch.tracking.convolution import where
from truenorm.torch.tracking.inputs import Fresh
from truenorm.torch.tracking.registry import named, rule
from truenorm.torch.tracking.states import MADE
from truenorm.torch.tracking.tag import Lost, Padding, Tag, make_tag
from truenorm.torch.tracking.tracker import Tracker


@rule(torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu, reads_inputs=True)
def recurrent(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """(x, states, weights, bias, layers, dropout, training, bidirectional, batch_first)"""
    x = args[0]
    packed_already = len(args) > 1 and isinstance(args[1], Tensor) and not args[1].is_floating_point()
    if len(args) != 9 or kwargs or packed_already:
        return tracker.call_unknown(func, args, kwargs)
    batch_first = args[8]
    batch, axis = (0, 1) if batch_first else (1, 0)
    if isinstance(tracker.look(x), Fresh):
        tracker.positions(x, (axis,), func, batch)
    found = tracker.look(x)
    if isinstance(found, Lost):
        raise tracker.lost_error(x, found, func)
    if not isinstance(found, Tag) or not found.is_ragged:
        result = func(*args)
        tracker.set(result, MADE)
        return result
    if found.batch != batch or set(found.lengths) != {axis}:
        raise ValueError(
            f"padded: {tracker.place(func)} reads {'(b, t, c)' if batch_first else '(t, b, c)'} with the valid "
            f"positions first, got {tuple(x.shape)} with {where(found)}."
        )
    lengths = found.lengths[axis]
    # A packed sequence has at least one step: an empty one reads a zero, and its output is padding.
    steps = torch.tensor([max(1, one) for one in lengths])
    packed = pack_padded_sequence(tracker.fill(x, found), steps, batch_first=batch_first, enforce_sorted=False)
    states = args[1] if isinstance(args[1], (tuple, list)) else (args[1],)
    order, back = packed.sorted_indices, packed.unsorted_indices
    sorted_states: Any = [one.index_select(1, order) for one in states]
    data, *last = func(
        packed.data,
        packed.batch_sizes,
        sorted_states if isinstance(args[1], (tuple, list)) else sorted_states[0],
        *args[2:8],
    )
    repacked = PackedSequence(data, packed.batch_sizes, order, back)
    output: Tensor = pad_packed_sequence(repacked, batch_first=batch_first, total_length=x.shape[axis])[0]
    last = [one.index_select(1, back) for one in last]
    padding = Padding.ZERO if min(lengths, default=0) > 0 else Padding.FINITE
    tracker.set(output, make_tag(output.shape, batch, {axis: lengths}, padding))
    for one in last:
        tracker.set(one, make_tag(one.shape, 1, {}))
    return (output, *last)


# ---- models that pack sequences themselves ----


@rule(*named("_pack_padded_sequence"))
def pack(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """(x, lengths, batch_first): the values of a packed sequence are all valid if its lengths are at most ours."""
    x, lengths, batch_first = args
    found = tracker.look(x)
    result = func(*args, **kwargs)
    tracker.set(result, found if isinstance(found, Lost) else MADE)
    if isinstance(found, Tag) and found.is_ragged:
        valid = found.lengths.get(1 if batch_first else 0)
        if found.batch != (0 if batch_first else 1) or valid is None or len(found.extents) > 1:
            return tracker.lose(result, func, "not a batch of sequences with the valid positions first")
        if any(one > n for one, n in zip(lengths.tolist(), valid, strict=True)):
            return tracker.lose(result, func, "its lengths are longer than the sequences")
    return result


@rule(*named("_pad_packed_sequence"))
def unpack(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """(values, batch_sizes, batch_first, padding_value, total_length): a packed sequence has lengths of its own."""
    found = tracker.look(args[0])
    result, lengths = func(*args, **kwargs)
    batch, axis = (0, 1) if args[2] else (1, 0)
    padding = Padding.ZERO if args[3] == 0 else Padding.ANY
    tag = make_tag(result.shape, batch, {axis: tuple(lengths.tolist())}, padding)
    tracker.set(result, found if isinstance(found, Lost) else tag)
    tracker.set(lengths, MADE)
    return result, lengths
