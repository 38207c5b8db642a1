"""Failures of masked statistics in other libraries, by their numbers in the list of known failures; here they hold."""

from functools import reduce
from operator import add

import numpy as np
import pytest
from patterns import ULP, Array, assert_close, assert_same_bits, odd, offset_data

import truenorm as tn
from truenorm.core.running import Convention, Running

SHAPE = (12, 5, 3)


def split_ways() -> list[list[Array]]:
    """The 12 samples in 1, 2, 3, 5 and 12 parts of unequal sizes, some of them empty."""
    cuts: tuple[list[int], ...] = ([], [5], [1, 9], [0, 1, 6, 6], list(range(1, 12)))
    return [np.split(np.arange(12), cut) for cut in cuts]


@pytest.mark.parametrize("norm", [tn.batch(), tn.Norm("[b t c]")], ids=str)
def test_42_shards_with_unequal_valid_counts_give_the_statistics_of_the_whole(norm: tn.Norm) -> None:
    # google/flax#2417: a mean of means, and NaN for everybody from a shard without a valid element.
    rng = np.random.default_rng(42)
    x, dy, valid = offset_data(rng, SHAPE), odd(rng, SHAPE), rng.random(SHAPE[:2]) < 0.5
    valid[5:9] = False  # a whole shard of two of the partitions
    x = np.where(valid[..., None], x, np.nan)
    out = tn.forward(x, norm, valid=valid)
    dx = tn.backward(dy, out)[0]
    for parts in split_ways():
        moments = tn.merge(*(tn.measure(x[part], norm, valid=valid[part]) for part in parts))
        assert_same_bits(moments.count, out.moments.count, "count")
        assert_close(moments.mean, out.moments.mean, 16 * ULP * 10, f"{len(parts)} shards: mean")
        assert_close(moments.m2, out.moments.m2, 64 * ULP * out.moments.m2.max(), f"{len(parts)} shards: m2")
        outs = [tn.forward(x[part], norm, valid=valid[part], moments=moments) for part in parts]
        sums = reduce(add, [tn.backward_sums(dy[part], one) for part, one in zip(parts, outs, strict=True)])
        found = [tn.backward(dy[part], one, sums=sums)[0] for part, one in zip(parts, outs, strict=True)]
        assert_close(np.concatenate(found), dx, 256 * ULP * 10, f"{len(parts)} shards: dx")


def test_46_micro_batches_move_the_running_statistics_once_and_as_one_batch() -> None:
    # pytorch/pytorch#46516: with accumulated gradients every micro-batch had statistics of its own.
    rng = np.random.default_rng(46)
    x, lengths = offset_data(rng, SHAPE), rng.integers(0, 6, 12)
    start = Running.start((3,), Convention(0.3, ddof=1))
    whole = start.update(tn.measure(x, tn.batch(), lengths=lengths))
    for parts in split_ways():
        merged = tn.merge(*(tn.measure(x[part], tn.batch(), lengths=lengths[part]) for part in parts))
        found = start.update(merged)
        assert (found.batches, found.skipped) == (whole.batches, whole.skipped) == (1, 0)
        assert_close(found.mean, whole.mean, 16 * ULP * 10, f"{len(parts)} micro-batches: mean")
        assert_close(found.var, whole.var, 64 * ULP * whole.var.max(), f"{len(parts)} micro-batches: var")


def test_44_a_comparison_with_nan_on_both_sides_fails() -> None:
    # flax compared masked results that were NaN with NaN, and found them equal.
    nan = np.array([np.nan, 1.0])
    with pytest.raises(AssertionError, match="not finite"):
        assert_close(nan, nan, 1.0, "both")
