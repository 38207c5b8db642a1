"""Rules for attention and softmax.

Softmax over positions gives padding the weight 0. A sequence without any valid position gets zeros. Padding that
survives on other axes only has to be finite, as in `products.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from truenorm.torch._compat import version_of
from truenorm.torch._inputs import values_are_readable
from truenorm.torch.tracking.calls import name_of
from truenorm.torch.tracking.counts import OF_POSITIONS, note_counts
from truenorm.torch.tracking.inputs import Fresh
from truenorm.torch.tracking.registry import named, rule
from truenorm.torch.tracking.states import MADE
from truenorm.torch.tracking.tag import (
    BATCH,
    Axis,
    Factor,
    Gaps,
    Lost,
    Padding,
    Tag,
    has_role,
)
from truenorm.torch.tracking.tracker import Tracker

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


def _has_positions_only(axis: Axis) -> bool:
    """Whether a mask says what of this axis is valid: not if it has the batch, or may be positions."""
    return all(factor.role is None or isinstance(factor.role, (tuple, Gaps)) for factor in axis)


# ---- softmax ----


@rule(*named("softmax log_softmax softmin gumbel_softmax"), repeats=True)
def softmax(tracker: Tracker, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Over positions: padding gets the weight 0. Over anything else: each position by itself."""
    x, *rest = args
    found = tracker.look(x)
    given_dim = rest[0] if rest else kwargs.get("dim")
    if isinstance(found, Tag) and given_dim is None:
        return tracker.lose(func(x, *rest, **kwargs), func, "without dim")
    if not isinstance(found, Tag):
        result = func(x, *rest, **kwargs)
        open_size = given_dim is not None and x.dim() > 0 and x.shape[given_dim] in tracker.states.sizes
        if found is MADE and open_size and not tracker.is_constant(x):
            return tracker.lose(result, func, OF_POSITIONS)
        tracker.set(result, found)
        return result
    dim = given_dim % x.dim()
    logarithm = func.__name__ == "log_softmax"
    x, tag = tracker.fill_unless_finite(x, found)
    if not has_role(tag.axes[dim]):
        result = func(x, *rest, **kwargs)
        tracker.set(result, tag.having(min(tag.padding, Padding.FINITE)))
        return result
    if not _has_positions_only(tag.axes[dim]) or func.__name__ in ("softmin", "gumbel_softmax"):
        return tracker.lose(func(x, *rest, **kwargs), func, "it mixes positions")
    keys = along_only(tag, dim)
    if not keys.has_padding:
        result = func(x, *rest, **kwargs)
        tracker.set(result, tag.having(min(tag.padding, Padding.FINITE)))
        return result
    tracker.acts += 1
    padding = tracker.mask(keys, x.device)
    # Not the smallest number: for a sequence without valid positions the weights are set to 0 below.
    result = func(
        x.masked_fill(padding, torch.finfo(x.dtype).min if tag.may_be_empty(dim) else -torch.inf), *rest, **kwargs
    )
    if logarithm or tag.may_be_empty(dim):
        result = result.masked_fill(padding, 0)
    tracker.set(result, tag.having(Padding.FINITE))
    return result


def along_only(tag: Tag, axis: int) -> Tag:
    """The same tag as if only this axis had padding: its mask is smaller, and leaves other padding alone."""
    axes = tuple(
        tuple(factor if factor.role is BATCH else Factor(factor.size) for factor in one) if i != axis else one
        for i, one in enumerate(tag.axes)
    )
    return Tag(axes, tag.padding)


# ---- attention ----


OPERANDS = ("query", "key", "value")


@dataclass(frozen=True)
class KeptAttention:
    """The last call of attention that left out keys in the padding: the next layer mostly has the same mask.

    own    the mask of the caller, so that no other tensor gets its id, which is in the key
    mask   the mask without the keys in the padding
    """

    key: tuple[Any, ...]
    own: Tensor | None
    mask: Tensor
    tag: Tag


@rule(functional.scaled_dot_product_attention, reads_inputs=True, repeats=True)
def scaled_dot_product_attention(tracker: Tracker, func: Any, args: Args, kwargs: Kwargs) -> Any:
    given = {**dict(zip((*OPERANDS, "attn_mask", "dropout_p", "is_causal"), args, strict=False)), **kwargs}
    note_counts(tracker, name_of(func), [given.get("scale")])
    operands = [given[name] for name in OPERANDS]
    states = [tracker.look(one) for one in operands]
    own: Tensor | None = given.get("attn_mask")
    sizes = [one.shape for one in operands]
    mask = None if own is None else (id(own), version_of(own), own.requires_grad)
    key = (*states, *sizes, mask, bool(given.get("is_causal")))
    kept: KeptAttention | None = tracker.attention
    if kept is not None and kept.key == key:
        given["attn_mask"], given["is_causal"] = kept.mask, False
        tracker.acts += 1
    else:
        kept = _find_keys(tracker, func, given, key)
        if not isinstance(kept, KeptAttention):
            return kept
    result = func(**given)
    tracker.states[result] = kept.tag
    return result


def _find_keys(tracker: Tracker, func: Any, given: Kwargs, kept_as: tuple[Any, ...]) -> Any:
    """Change the arguments so that no query reads padding. Returns what is kept, or the result if nothing changes."""
    for name in OPERANDS:
        if isinstance(tracker.look(given[name]), Fresh):
            tracker.positions(given[name], (given[name].dim() - 2,), func)
    states = [tracker.look(given[name]) for name in OPERANDS]
    lost = next((state for state in states if isinstance(state, Lost)), None)
    tags = [state if isinstance(state, Tag) and state.is_ragged else None for state in states]
    if lost is not None or tags == [None, None, None]:
        result = func(**given)
        tracker.set(result, lost or _without_positions(tracker, states, result))
        return result
    before = tracker.acts
    for name, tag in zip(OPERANDS, tags, strict=True):
        if tag is not None:
            given[name], _ = tracker.fill_unless_finite(given[name], tag)
    query, key, value = tags
    own, ndim, device = given.get("attn_mask"), given["query"].dim(), given["key"].device
    reads = _keys(key, value, ndim)
    same_rank = all(given[name].dim() == ndim for name in OPERANDS)
    if reads is None or not same_rank or any(tag is not None and has_role(tag.axes[-1]) for tag in tags):
        return tracker.lose(
            func(**given), func, "its arguments differ in length or rank, or have channels that are positions"
        )
    rows = query.axes if query is not None else (*reads.axes[:-2], (Factor(given["query"].shape[-2]),), reads.axes[-1])
    axes = (*rows[:-1], (Factor(given["value"].shape[-1]),))
    # A mask of the caller may leave nothing to a query, whose result is then NaN.
    if not reads.has_padding:
        result = func(**given)
        tracker.set(result, Tag(axes, Padding.FINITE if own is None else Padding.ANY))
        return result
    padding = tracker.mask(reads, device)
    if reads.may_be_empty(ndim - 2):
        tracker.acts += 1
        given["value"] = given["value"].masked_fill(padding, 0)
        padding = _with_one_key(padding, -2)
    given["attn_mask"] = mask = _attention_mask(given, padding.mT)
    given["is_causal"] = False
    is_finite = own is None
    if own is not None and mask.dtype == torch.bool and values_are_readable(mask):
        is_finite = bool(mask.any(-1).all())
    kept = KeptAttention(kept_as, own, mask, Tag(axes, Padding.FINITE if is_finite else Padding.ANY))
    if tracker.acts == before and (own is None or (version_of(own) >= 0 and not own.requires_grad)):
        tracker.attention = kept
    tracker.acts += 1
    return kept


def _without_positions(tracker: Tracker, states: list[Any], result: Tensor) -> Any:
    """The state of attention over tensors without padding."""
    tag = next((state for state in states if isinstance(state, Tag)), None)
    if tag is not None:
        return (
            Tag((*tag.axes[:-1], (Factor(result.shape[-1]),)), tag.padding) if len(tag.axes) == result.dim() else MADE
        )
    return MADE


def _keys(key: Tag | None, value: Tag | None, ndim: int) -> Tag | None:
    """The tag of the keys, with the positions that are read; None if keys and values contradict each other."""
    if key is not None and value is not None and key.axes[:-1] != value.axes[:-1]:
        return None
    found = key or value
    if found is None:
        return Tag(tuple((Factor(1),) for _ in range(ndim)))
    if not _has_positions_only(found.axes[ndim - 2]):
        return None
    return along_only(found, ndim - 2)


def _with_one_key(padding: Tensor, axis: int) -> Tensor:
    """The first key is read where there is no valid one: its value is 0, and so is the result."""
    padding = padding.clone()
    padding.select(axis, 0).logical_and_(~padding.all(axis))
    return padding


def _attention_mask(given: Kwargs, padding: Tensor) -> Tensor:
    """The mask of the call, without the keys in the padding. `padding` is (..., 1, keys)."""
    mask: Tensor | None = given.get("attn_mask")
    rows, columns = given["query"].shape[-2], given["key"].shape[-2]
    if given.get("is_causal"):
        mask = torch.ones((rows, columns), dtype=torch.bool, device=padding.device).tril()
    if mask is None:
        return ~padding
    if mask.dtype == torch.bool:
        return mask & ~padding
    return mask.masked_fill(padding, -torch.inf)


@rule(functional.multi_head_attention_forward, reads_inputs=True)
def multi_head_attention_forward(tracker: Tracker, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """query, key and value are (t, b, c), as nn.MultiheadAttention passes them on."""
    given = {**dict(zip(("query", "key", "value"), args, strict=False)), **kwargs}
    rest = args[3:]
    query, key, value = (given.pop(name) for name in ("query", "key", "value"))
    for one in (query, key, value):
        if isinstance(tracker.look(one), Fresh) and one.dim() == 3:
            tracker.positions(one, (0,), func, batch=1)
    states = [tracker.look(one) for one in (query, key, value)]
    if not any(isinstance(state, (Tag, Lost)) for state in states):
        return tracker.call_unknown(func, args, kwargs)
    lost = next((state for state in states if isinstance(state, Lost)), None)
    asked = states[0] if isinstance(states[0], Tag) else None
    read = next((state for state in states[1:] if isinstance(state, Tag)), None)
    layouts = [tag for tag in (asked, read) if tag is not None]
    if lost is None and any(
        query.dim() != 3 or tag.batch != 1 or tag.has_open or has_role(tag.axes[2]) for tag in layouts
    ):
        return tracker.lose(func(*args, **kwargs), func, "its arguments are not (t, b, c)")
    if lost is not None:
        result = func(*args, **kwargs)
        tracker.set(result, lost)
        return result
    changed = [
        tracker.fill_unless_finite(one, state)[0] if isinstance(state, Tag) else one
        for one, state in zip((query, key, value), states, strict=True)
    ]
    own_mask = given.get("attn_mask")
    if read is not None and read.has_padding:
        padding = tracker.mask(read, key.device)[..., 0]  # (t, b)
        if read.may_be_empty(0):
            changed[2] = changed[2].masked_fill(padding[..., None], 0)
            padding = _with_one_key(padding, 0)
        given["key_padding_mask"] = _key_padding_mask(padding.T, given)
    result, weights = func(*changed, *rest, **given)
    batch = layouts[0].axes[1]
    if isinstance(states[0], Fresh):
        return tracker.lose((result, weights), func, "a query whose positions are not known: pass along= to padded")
    # Learned queries have no padding.
    rows: Axis = (Factor(len(query)),) if asked is None else asked.axes[0]
    padding_after = Padding.FINITE if own_mask is None else Padding.ANY  # as above
    tracker.set(result, Tag((rows, batch, (Factor(result.shape[2]),)), padding_after))
    if isinstance(weights, Tensor):  # (b, t, keys), or (b, heads, t, keys)
        axes: list[Axis] = [(Factor(size),) for size in weights.shape]
        axes[0], axes[-2] = batch, rows
        if read is not None:
            axes[-1] = _with_more_keys(tracker, read, weights.shape[-1], key)
        tracker.set(weights, Tag(tuple(axes), Padding.ANY))
    return result, weights


def _with_more_keys(tracker: Tracker, read: Tag, size: int, key: Tensor) -> Axis:
    """The keys of the weights: add_bias_kv and add_zero_attn put valid ones behind the padding."""
    if size == len(key) or not read.is_ragged:
        return read.axes[0] if size == len(key) else (Factor(size),)
    valid = ~tracker.mask(read, key.device)[..., 0].T
    return (Factor(size, Gaps(functional.pad(valid, (0, size - len(key)), value=True))),)


def _key_padding_mask(padding: Tensor, kwargs: Kwargs) -> Tensor:
    """The mask of the call, (b, t) with True at keys that are not read, and ours. torch wants attn_mask's dtype."""
    own: Tensor | None = kwargs.get("key_padding_mask")
    other: Tensor | None = kwargs.get("attn_mask")
    if own is not None and own.dtype == torch.bool:
        padding, own = padding | own, None
    if own is None and (other is None or other.dtype == torch.bool):
        return padding
    if own is None:
        own = torch.zeros(padding.shape, dtype=None if other is None else other.dtype, device=padding.device)
    return own.masked_fill(padding, -torch.inf)
