"""Rules for functions that compute each element by itself, and for those that compute each position by itself.

There is no general rule such as "same shape, so elementwise": each function is listed. What the padding holds
afterwards follows from the list that it is in:

    KEEPS_ZERO      f(0) = 0, and finite for finite x: zeros stay zeros
    KEEPS_FINITE    finite for finite x
    KEEPS_ONLY_ZERO f(0) = 0, but not finite everywhere: the root of a negative number
    KEEPS_NOTHING   anything may come out: log(0), 1 / 0
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from truenorm.torch._inputs import values_are_readable
from truenorm.torch.tracking.calls import name_of, tensors_in
from truenorm.torch.tracking.counts import note_counts, note_places, of_scalars, per_sequence, take_counts, with_scalars
from truenorm.torch.tracking.inputs import Fresh, join_inputs
from truenorm.torch.tracking.numbers import DIFFERS, NUMBERS, has_count, of_sequence
from truenorm.torch.tracking.registry import attribute, named, rule
from truenorm.torch.tracking.states import MADE
from truenorm.torch.tracking.tag import (
    Factor,
    Lost,
    Padding,
    Tag,
    broadcast,
    has_role,
    make_tag,
    padding_in,
    size_of,
)
from truenorm.torch.tracking.tracker import Tracker

ANY, FINITE, ZERO = Padding.ANY, Padding.FINITE, Padding.ZERO

KEEPS_ZERO = named(
    """
    relu relu6 leaky_relu elu selu gelu silu mish tanh hardswish hardshrink softshrink tanhshrink softsign rrelu
    prelu celu dropout dropout1d dropout2d dropout3d feature_dropout neg
    negative positive abs absolute sign sgn sin atan arctan asinh arcsinh erf square trunc floor ceil round fix frac
    nan_to_num real conj resolve_conj resolve_neg zeros_like
    relu_ relu6_ leaky_relu_ elu_ selu_ silu_ tanh_ hardswish_ rrelu_ celu_ mish_ dropout_ feature_dropout_
    neg_ abs_ square_ sign_ sin_ floor_ round_ ceil_ trunc_ nan_to_num_ zero_
    clone contiguous detach detach_ requires_grad_ to cpu cuda float double half bfloat16 int long bool short byte char
    type type_as
    """
)
KEEPS_FINITE = named(
    """
    sigmoid sigmoid_ hardsigmoid hardsigmoid_ logsigmoid softplus threshold threshold_ cos cos_ erfc clamp clamp_ clip
    clip_ clamp_min clamp_max clamp_min_ clamp_max_ gt ge lt le eq ne greater greater_equal less less_equal not_equal
    isnan isinf isfinite isposinf isneginf signbit logical_not logical_not_ logical_and logical_or logical_xor
    bitwise_and bitwise_or bitwise_not bitwise_xor __and__ __or__ __xor__ __invert__ bernoulli ones_like rand_like
    randn_like hardtanh hardtanh_ alpha_dropout alpha_dropout_ feature_alpha_dropout
    """
)
KEEPS_ONLY_ZERO = set(named("sqrt sqrt_ asin arcsin log1p log1p_ expm1 sinh"))
KEEPS_NOTHING = named(
    """
    log log_ log2 log10 exp exp_ exp2 rsqrt rsqrt_ reciprocal reciprocal_ tan cosh acos acosh atanh arccos arctanh logit
    div div_ divide divide_ true_divide true_divide_ floor_divide remainder fmod pow pow_ __pow__ __rpow__ __rdiv__
    __rtruediv__ __truediv__ float_power xlogy atan2 hypot lgamma digamma erfinv full_like empty_like fill_ fmax fmin
    lerp lerp_ addcmul addcmul_ addcdiv addcdiv_ where masked_fill masked_fill_ copy_ heaviside copysign
    """
)
SUMS = set(named("add add_ sub sub_ subtract subtract_ rsub __radd__ __rsub__ __add__ __sub__ maximum minimum"))
PRODUCTS = set(named("mul mul_ multiply multiply_ __mul__ __rmul__"))
DIVISIONS = set(named("div div_ divide divide_ true_divide true_divide_ __truediv__ floor_divide __floordiv__"))
OF_NUMBERS = SUMS | PRODUCTS | DIVISIONS | set(named("remainder pow __pow__ gt ge lt le __rdiv__ __rtruediv__"))
VIEWS = (attribute("data"), attribute("real"))
POWERS = set(named("pow __pow__ float_power"))
POLES = (
    POWERS | DIVISIONS | set(named("sqrt log log2 log10 log1p rsqrt reciprocal asin acos arcsin arccos atanh arctanh"))
)
POLES |= set(named("logit erfinv __rdiv__ __rtruediv__ sqrt_ log_ rsqrt_ reciprocal_ log1p_ pow_"))
# The gradient of one argument is a product with another.
SCALES = (
    PRODUCTS | DIVISIONS | POWERS | set(named("prelu __rpow__ __rdiv__ __rtruediv__ pow_ lerp lerp_ addcmul addcmul_"))
)
SCALES |= set(named("addcdiv addcdiv_ atan2 hypot xlogy fmod remainder logaddexp logaddexp2 copysign"))
OF_TYPE = set(named("type_as to"))  # another tensor only gives its dtype and device

SIMPLE = {int, float, bool, str, type(None), torch.dtype, torch.device, torch.memory_format, torch.layout}

KEEPS: dict[Any, Padding] = dict.fromkeys(KEEPS_NOTHING, ANY)
KEEPS.update(dict.fromkeys(KEEPS_FINITE, FINITE))
KEEPS.update(dict.fromkeys([*KEEPS_ZERO, *KEEPS_ONLY_ZERO, *VIEWS], ZERO))
KEEPS.update(dict.fromkeys([*SUMS, *PRODUCTS], ANY))


@rule(*KEEPS, reads_inputs=True, repeats=True)
def elementwise(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function of one element of each argument, broadcast."""
    if args and func not in POLES and not tracker.has_scalars and SIMPLE.issuperset(map(type, kwargs.values())):
        done = _of_known(tracker, func, args, kwargs)
        if done is not None:
            return done
    if tracker.has_scalars or (len(args) > 1 and type(args[1]) in NUMBERS) or (kwargs and has_count(kwargs)):
        scalar = of_scalars(tracker, func, args, kwargs)
        if scalar is not None:
            return scalar
        args, kwargs = _with_counts(tracker, func, args, kwargs)
    if torch.is_grad_enabled():
        if len(args) > 1 and func in SCALES:
            args = _without_nan(tracker, func, args)
        if func in POLES:
            args = _away_from_poles(tracker, func, args)
    first: Any = args[0] if args else None
    before = tracker.look(first) if isinstance(first, Tensor) else MADE
    result = func(*args, **kwargs)
    if not isinstance(result, Tensor):
        return result
    if func in OF_TYPE and not isinstance(before, Tag):
        tracker.states[result] = before
        return result
    alone = func in OF_TYPE or not tensors_in((args[1:], kwargs))
    if isinstance(before, Tag) and alone and result.shape == first.shape:
        tracker.states[result] = before.having(_padding_after(func, [before.padding]))
        return result
    states = [
        before if one is first else tracker.look(one)
        for one in tensors_in((args, kwargs))
        if one is not result or one is first
    ]
    tracker.states[result] = join(tracker, func, states, result, args, kwargs)
    return result


def _of_known(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The usual cases, quickly: one tensor and plain numbers, or two tensors with the same positions; else None."""
    x, *rest = args
    if not isinstance(x, Tensor):
        return None
    states = [tracker.look(x)]
    if len(rest) == 1 and isinstance(rest[0], Tensor) and func not in OF_TYPE:
        states.append(tracker.look(rest[0]))
    elif not SIMPLE.issuperset(map(type, rest)):
        return None
    tags: list[Tag] = []
    for one in states:
        if type(one) is Tag and not one.has_crop and (not tags or one.axes == tags[0].axes):
            tags.append(one)
        elif one is not MADE:
            return None
    if tags and len(tags) < len(states):
        return None
    reaches_others = len(tags) > 1 and func in SCALES and ANY in (tags[0].padding, tags[1].padding)
    if reaches_others and tags[0].has_padding and torch.is_grad_enabled():
        return None
    result: Tensor = func(*args, **kwargs)
    if isinstance(result, Tensor):  # x.type() is a name
        after = tags and tags[0].having(_padding_after(func, [one.padding for one in tags]))
        tracker.states[result] = after or MADE
    return result


def join(tracker: Tracker, func: Any, states: list[Any], result: Tensor, args: Any, kwargs: Any) -> Any:
    """The state of an elementwise result."""
    tags = [one for one in states if isinstance(one, Tag)]
    lost = next((one for one in states if isinstance(one, Lost)), None)
    inputs = [one for one in states if isinstance(one, Fresh)]
    if lost is not None and not tags:
        return lost
    if inputs and not any(tag.is_ragged for tag in tags):
        is_mask = not any(one.source.has_values for one in inputs)
        if not (is_mask and any(len(tag.axes) == result.dim() for tag in tags)):
            return join_inputs(inputs, result.shape) or tracker.unknown(func, inputs[0])
    if not tags:
        return MADE
    axes = broadcast(tags, result.shape)
    if axes is None:
        if not any(tag.is_ragged for tag in tags):
            return MADE
        tracker.lose(result, func, "arguments with different lengths")
        return tracker.look(result)
    if lost is not None and not lost.is_mask:
        tracker.notes.lost(f"{lost.where}, then {getattr(func, '__name__', func)}", tracker.module, "")
    others = [one for one in tensors_in((args, kwargs)) if not isinstance(tracker.states.get(one), Tag)]
    note_places(tracker, func, axes, others)
    plain = all(isinstance(one, nn.Parameter) for one in others)
    tag = Tag(axes, _padding_after(func, [padding_in(one, axes) for one in tags]) if plain else ANY)
    if tag.is_ragged or any(len(one.axes) == result.dim() and one.axes == axes for one in tags):
        return tag
    widest = max(tags, key=lambda one: len(one.axes))
    return tracker.states.reopen(tag, [size_of(axis) for axis in widest.axes])


def _padding_after(func: Any, paddings: list[Padding]) -> Padding:
    """What the padding holds after a function of tensors whose padding holds this, and of numbers and parameters."""
    least = min(paddings)
    if func in SUMS:
        return least if len(paddings) > 1 else min(least, FINITE)
    if func in PRODUCTS:
        return ZERO if ZERO in paddings and least >= FINITE else least
    if func in KEEPS_ONLY_ZERO:
        return ZERO if least is ZERO else ANY
    return min(least, KEEPS[func])


def _without_nan(tracker: Tracker, func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """For x * weight: the gradient of the weight sums over padding, where 0 * NaN is NaN."""
    new = list(args)
    for i, one in enumerate(args):
        if not isinstance(one, Tensor) or not one.is_floating_point():
            continue
        if not any(isinstance(other, Tensor) and other.requires_grad for other in (*args[:i], *args[i + 1 :])):
            continue
        found = tracker.look(one)
        if isinstance(found, Fresh):
            _check_finite(tracker, func, one, found)
        elif isinstance(found, Tag) and found.has_padding and not found.has_open and found.padding is ANY:
            if i == 0 and _is_in_place(func):  # it is changed in any case
                tracker.acts += 1
                one.masked_fill_(tracker.mask(found, one.device), 0)
                tracker.states[one] = found.having(ZERO)
                continue
            new[i], filled = tracker.fill_unless_finite(one, found)
            tracker.states[new[i]] = filled
    return tuple(new)


def _is_in_place(func: Any) -> bool:
    return func.__name__.endswith("_") and not func.__name__.startswith("_")


def _check_finite(tracker: Tracker, func: Any, x: Tensor, found: Fresh) -> None:
    """An input may be scaled by parameters before its positions are known, unless NaN would reach their gradients."""
    if found.source.tag is None and tracker.batch_axes(found) and values_are_readable(x) and not x.isfinite().all():
        where = tracker.notes.describe(name_of(func), tracker.module, "it holds NaN or inf")
        raise tracker.unknown_error(found, where)


def _away_from_poles(tracker: Tracker, func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """For functions with an infinite slope somewhere, mostly at 0, where padding often is: 0 times inf is NaN.

    The padding is set to 1/2, which is in the domain of all of them. In a division it is that of the divisor.
    """
    place = 1 if func in DIVISIONS else 0
    x: Any = args[place] if len(args) > place else None
    tag = tracker.tag(x)
    if tag is None or not tag.has_padding or tag.has_open or not x.requires_grad:
        return args
    if func in POWERS and isinstance(args[1], (int, float)) and args[1] >= 1:
        return args
    if place == 0 and _is_in_place(func):  # it is changed in any case
        tracker.acts += 1
        x.masked_fill_(tracker.mask(tag, x.device), 0.5)
        tracker.states[x] = tag.having(FINITE)
        return args
    new = tracker.fill(x, tag, 0.5)
    tracker.states[new] = tag.having(FINITE)
    return (*args[:place], new, *args[place + 1 :])


def _with_counts(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The arguments with numbers of positions as tensors: a value for each sequence."""
    if len(tracker.scalars):
        args = with_scalars(tracker, args)
    x: Any = args[0] if args else None
    tag = tracker.tag(x)
    per_position = tag is None and isinstance(x, Tensor) and x.dim() == 1
    if not (take_counts(tracker, func, (args[1:], kwargs)) if tag is not None else has_count((args[1:], kwargs))):
        if tag is None and (func in DIVISIONS or func not in OF_NUMBERS or per_position):
            note_counts(tracker, name_of(func), (args[1:], kwargs))
        return of_sequence(args, None), of_sequence(kwargs, None)
    if func in OF_NUMBERS and tag is not None and type(args[1]) in NUMBERS:
        values = per_sequence(tracker, args[1], x, tag, func in DIVISIONS)
        if values is not None:
            tracker.states[values] = make_tag(values.shape, tag.batch or 0, {}, FINITE)
            return (x, values, *args[2:]), of_sequence(kwargs, None)
    per_position = per_position and len(x) in tracker.states.sizes
    if func in DIVISIONS or func not in OF_NUMBERS or per_position:  # but not of pairs, as t - 1 + i - j
        tracker.notes.lost(name_of(func), tracker.module, DIFFERS)
    return of_sequence(args, None), of_sequence(kwargs, None)


# ---- each position by itself ----


@rule(functional.linear, reads_inputs=True, repeats=True)
def linear(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """(b, ..., c): an input of the model has positions on the axes between."""
    x = args[0]
    found = tracker.read_rows(x, x.dim() - 1, func)
    if not isinstance(found, Tag):
        result = func(*args, **kwargs)
        tracker.set(result, found)
        return result
    if has_role(found.axes[-1]):
        return tracker.lose(func(*args, **kwargs), func, "it mixes positions")
    x, tag = tracker.fill_unless_finite(x, found)
    result = func(x, *args[1:], **kwargs)
    has_bias = (args[2] if len(args) > 2 else kwargs.get("bias")) is not None
    padding = tag.padding if tag.padding < FINITE or not has_bias else FINITE
    channels = result.shape[-1]
    tracker.states[result] = Tag((*tag.axes[:-1], (Factor(channels),)), padding)
    return result


@rule(functional.embedding, torch.embedding, reads_inputs=True, repeats=True)
def embedding(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """(b, t) indices: an input of the model has positions on axis 1."""
    indices = args[1] if func is torch.embedding else args[0]
    found = tracker.read_rows(indices, indices.dim(), func)
    if isinstance(found, Lost):
        raise tracker.lost_error(indices, found, func)
    result = func(*args, **kwargs)
    if isinstance(found, Tag):
        found = Tag((*found.axes, (Factor(result.shape[-1]),)), FINITE)
    tracker.set(result, found)
    return result


@rule(functional.one_hot, reads_inputs=True)
def one_hot(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A new axis behind the others: which of them has the positions need not be known."""
    indices = args[0] if args else kwargs["input"]
    found = tracker.look(indices)
    result = func(*args, **kwargs)
    if isinstance(found, (Tag, Fresh)):
        found = found.with_axes((*found.axes, (Factor(result.shape[-1]),)))
    tracker.set(result, found.having(FINITE) if isinstance(found, Tag) else found)
    return result


@rule(functional.embedding_bag, reads_inputs=True)
def embedding_bag(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """(b, t) indices: one sum, mean or maximum for each sequence, of its valid positions only."""
    given = {**dict(zip(("input", "weight", "offsets"), args, strict=False)), **kwargs}
    indices: Tensor = given["input"]
    found = tracker.read_rows(indices, indices.dim(), func)
    if isinstance(found, Lost):
        raise tracker.lost_error(indices, found, func)
    if not isinstance(found, Tag) or not found.is_ragged:
        return tracker.call_unknown(func, args, kwargs)
    if len(args) > 3 or found.batch != 0 or set(found.lengths) != {1}:
        return tracker.lose(func(*args, **kwargs), func, "not a batch of sequences with the valid positions first")
    lengths, size = found.lengths[1], indices.shape[1]
    rows = torch.tensor([row * size + i for row, n in enumerate(lengths) for i in range(n)], device=indices.device)
    begins = torch.tensor([sum(lengths[:row]) for row in range(len(lengths))], device=indices.device)
    given |= {"input": indices.flatten()[rows], "offsets": begins}
    if given.get("per_sample_weights") is not None:
        given["per_sample_weights"] = given["per_sample_weights"].flatten()[rows]
    result = func(**given)
    tracker.set(result, make_tag(result.shape, 0, {}))
    return result


@rule(functional.normalize)
def normalize(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """x divided by its norm: by the rules of `norm`, `clamp_min` and `div`."""
    given = {"p": 2.0, "dim": 1, "eps": 1e-12, **dict(zip(("input", "p", "dim", "eps", "out"), args, strict=False))}
    given |= kwargs
    if given.pop("out", None) is not None:
        return tracker.call_unknown(func, args, kwargs)
    length = tracker.call(Tensor.norm, (given["input"], given["p"], given["dim"]), {"keepdim": True})
    length = tracker.call(Tensor.clamp_min, (length, given["eps"]), {})
    return tracker.call(torch.div, (given["input"], length), {})


@rule(*named("glu"), repeats=True)
def glu(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Half of the channels times a sigmoid of the others."""
    x = args[0]
    found = tracker.look(x)
    result = func(*args, **kwargs)
    if isinstance(found, Tag):
        axis = (args[1] if len(args) > 1 else kwargs.get("dim", -1)) % x.dim()
        if has_role(found.axes[axis]):
            return tracker.lose(result, func, "halves of the batch, or of positions")
        found = found.with_axis(axis, result.shape[axis])
    tracker.set(result, found)
    return result
