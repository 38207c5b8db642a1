"""Same data, same bits: whatever the padding after a sequence holds, and whichever samples share the batch."""

from dataclasses import replace

import numpy as np
import pytest
from patterns import (
    Array,
    assert_same_bits,
    assert_same_moments,
    assert_same_results,
    odd,
    offset_data,
    run,
)
from workloads import SEQUENCES, lengths_of, work

import truenorm as tn
from truenorm import engine

_native = pytest.importorskip("truenorm._native", reason="the compiled part was not built")
pytestmark = pytest.mark.usefixtures("on_pool")


@pytest.mark.parametrize("name", SEQUENCES)
def test_padding_after_a_sequence_changes_no_bit(name: str) -> None:
    pattern, rng = SEQUENCES[name], np.random.default_rng(3)
    lengths, parameters = lengths_of(pattern, rng), pattern.parameters(rng)
    extent = pattern.positions[1]
    axis = next(i for i, word in enumerate(pattern.words) if word[0][0] == "t")
    x, dy = (draw(rng, pattern.shape).astype(np.float32) for draw in (offset_data, odd))
    times = rng.choice([0.0, 0.5, 2.0], pattern.positions)
    statistics = "t" in [piece[0] for piece in pattern.pieces if not piece[2]]
    for weighted in (False, True):
        expected = None
        for more, content in ((0, 0.0), (0, np.nan), (1, 1e38), (7, np.inf), (64, np.nan), (2100, -1e38)):
            padding = np.arange(extent + more) >= lengths[:, None]
            hidden = np.expand_dims(padding, 3 - axis)

            def padded(array: Array, axis: int, hidden: Array, more: int = more, content: float = content) -> Array:
                widths = [(0, more if i == axis else 0) for i in range(array.ndim)]
                return np.where(hidden, array.dtype.type(content), np.pad(array, widths))

            options = {"sample_weight": padded(times, 1, padding)} if weighted else {}
            found = run(
                padded(x, axis, hidden),
                padded(dy, axis, hidden),
                pattern.norm,
                lengths=lengths,
                **options,
                **parameters,
            )
            what = f"{name}, {more} more positions of {content}" + ", weighted" * weighted
            for one in (found.y, found.dx):
                assert not one[np.broadcast_to(hidden, one.shape)].any(), what
            moments = (found.moments.count, found.moments.mean, found.moments.m2)
            found = replace(
                found,
                y=found.y.take(range(extent), axis),
                dx=found.dx.take(range(extent), axis),
                moments=tn.Moments(*(one[:, :extent] for one in moments)) if statistics else found.moments,
            )
            expected = expected or found
            assert_same_results(found, expected, what)


@pytest.mark.parametrize("channels", [2, 6])
def test_short_planes_fill_blocks_together_whatever_their_padding(channels: int) -> None:
    # Whole planes are read in place, padded ones are gathered; the first block ends inside a plane.
    rng, lengths = np.random.default_rng(8), np.array([700, 31, 700])
    x, dy = (rng.standard_normal((3, 2 * channels, 700)).astype(np.float32) for _ in range(2))
    expected = [run(x[i : i + 1, :, :n], dy[i : i + 1, :, :n], tn.group(2, "second")) for i, n in enumerate(lengths)]
    for more in (0, 9):
        padded, dy_padded = (np.pad(one, ((0, 0), (0, 0), (0, more))) for one in (x, dy))
        found = run(padded, dy_padded, tn.group(2, "second"), lengths=lengths)
        for i, n in enumerate(lengths):
            assert_same_bits(found.y[i, :, :n], expected[i].y[0], f"y of sample {i}, {more} more")
            assert_same_bits(found.dx[i, :, :n], expected[i].dx[0], f"dx of sample {i}, {more} more")


MATES = {
    "layer": (tn.layer(), (37, 12)),
    "layer, long": (tn.layer(), (3, 2100)),
    "rms": (tn.rms(), (37, 12)),
    "instance": (tn.instance(), (37, 12)),
    "instance, wide": (tn.instance(), (5, 520)),
    "instance, long": (tn.instance(), (1100, 3)),
    "instance, many elements": (tn.instance(), (150, 32)),
    "instance second": (tn.instance("second"), (12, 37)),
    "instance second, long": (tn.instance("second"), (2, 2100)),
    "group": (tn.group(3), (37, 12)),
    "group, many elements": (tn.group(4), (130, 32)),  # some samples at a time, not all
    "group second": (tn.group(3, "second"), (12, 37)),
    "group of channels alone": (tn.group(3, "second"), (12,)),
}


@pytest.mark.parametrize("name", MATES)
def test_batch_mates_change_no_bit(name: str) -> None:
    norm, each = MATES[name]
    rng, samples = np.random.default_rng(4), 300
    shape = (samples, *each)
    layout = norm.view(shape)
    weights = layout.weight_shape or ()
    parameters = {"weight": odd(rng, weights), "bias": odd(rng, weights)}
    x, dy = offset_data(rng, shape).astype(np.float32), odd(rng, shape).astype(np.float32)
    assert x.size > 2**16 or len(each) == 1
    valid = rng.random(layout.positions) < 0.8
    ways: list[dict[str, Array]] = [{}, {"valid": valid}, {"sample_weight": rng.choice([0.5, 2.0], layout.positions)}]
    if len(each) == 2:
        ways.append({"lengths": rng.integers(0, layout.positions[1] + 1, samples)})
    for options in ways:
        engine.set_threads(3)
        together = run(x, dy, norm, **options, **parameters)
        for mates in ([0], [299], [7, 7], [200, 7], list(range(140, 147)), list(range(299, -1, -1))):
            engine.set_threads(1 + len(mates) % 4)
            some = {name: value[mates] for name, value in options.items()}
            found = run(x[mates], dy[mates], norm, **some, **parameters)
            what = f"{name}, {list(options)}, samples {mates[:3]} of {len(mates)}"
            assert_same_bits(found.y, together.y[mates], f"{what}: y")
            assert_same_bits(found.dx, together.dx[mates], f"{what}: dx")
            moments = (together.moments.count, together.moments.mean, together.moments.m2)
            assert_same_moments(found.moments, tn.Moments(*(one[mates] for one in moments)), what)


@pytest.mark.parametrize("norm", [tn.batch("second"), tn.instance("second"), tn.group(10, "second")], ids=str)
def test_channels_beyond_float32_change_no_bit_of_others(norm: tn.Norm) -> None:
    # Their planes are computed in double, and those beside them in float.
    rng = np.random.default_rng(6)
    x, dy = (rng.standard_normal((3, 20, 37)).astype(np.float32) for _ in range(2))
    large = x.copy()
    large[:, 6:8] *= np.float32(1e35)
    others = [c for c in range(20) if c not in (6, 7)]
    parameters = {"weight": odd(rng, (20,)), "bias": odd(rng, (20,))}
    for options in ({}, {"lengths": [37, 5, 20]}):
        found, expected = (run(one, dy, norm, **options, **parameters) for one in (large, x))
        for name in ("y", "dx"):
            mine, wanted = getattr(found, name), getattr(expected, name)
            assert_same_bits(mine[:, others], wanted[:, others], f"{name}, {list(options)}")
            assert not np.array_equal(mine[:, 6:8], wanted[:, 6:8])


def test_rows_alone_have_the_bits_they_have_among_others() -> None:
    rng = np.random.default_rng(5)
    for norm, n in ((tn.layer(), 65), (tn.rms(), 65), (tn.layer(), 2049)):
        x, dy = offset_data(rng, (2, 150, n)).astype(np.float32), odd(rng, (2, 150, n)).astype(np.float32)
        together = run(x, dy, norm)
        for b, t in ((0, 0), (0, 149), (1, 63), (1, 64)):
            alone = run(x[b, t], dy[b, t], norm)
            assert_same_bits(alone.y, together.y[b, t], f"{norm}: y")
            assert_same_bits(alone.dx, together.dx[b, t], f"{norm}: dx")
            assert_same_bits(alone.moments.m2, together.moments.m2[b, t], f"{norm}: m2")


def test_a_bit_that_changes_is_noticed() -> None:
    _, call = work("instance second")[0]
    expected = call()
    found = replace(expected, dx=expected.dx.copy())
    found.dx.view(np.uint32)[3, 5, 7] ^= 1
    with pytest.raises(AssertionError, match="dx: other bits"):
        assert_same_results(found, expected, "one bit")
