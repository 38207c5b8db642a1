"""Every tail and threshold of the kernels' loops, against the reference on the same numbers."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from kernels import (
    BLOCK,
    BLOCK_ROWS,
    CHUNK_ROWS,
    DTYPES,
    GROUP,
    LANES,
    PIECE_OF_PLANES,
    STREAMED,
    TILE,
    agree,
    around,
    compare,
    draw,
    on,
    scattered,
)
from patterns import (
    Shape,
    assert_same_bits,
    run,
)

import truenorm as tn

pytest.importorskip("truenorm._native", reason="the compiled part was not built")

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parents[1] / "src/truenorm/native"


def test_the_thresholds_are_those_of_the_sources() -> None:
    # Otherwise the sizes below go past them.
    text = "".join(file.read_text("utf-8") for file in sorted(SOURCES.glob("*.[hi]*")))
    for name in ("BLOCK", "TILE", "BLOCK_ROWS", "CHUNK_ROWS", "GROUP", "PIECE_OF_PLANES"):
        found = re.findall(rf"constexpr \S+ {name} = (\d+);", text)
        assert found == [str(globals()[name])], name
    assert re.findall(r"using Many = Lanes<A, (\d+)>", text) == [str(4 * LANES)]
    assert re.findall(r"MOST_CACHED = std::int64_t\{1\} << (\d+);", text) == [str(STREAMED.bit_length() - 1)]


def test_what_is_compared_can_differ() -> None:
    norm, shape = tn.layer(), (3, 4 * LANES + 3)
    x, dy, parameters = draw(norm, shape, np.float32)
    with on("reference"):
        expected = run(x.astype(float), dy.astype(float), norm, **parameters)
    short = x.copy()
    short[:, -1] = 0  # as if a tail had been lost
    for mine in (run(short, dy, norm, **parameters), run(x, np.where(short == 0, 0, dy), norm, **parameters)):
        with pytest.raises(AssertionError, match="off by"):
            compare(mine, expected, x, dy, norm, what="lost", **parameters)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_tail_of_the_lanes(dtype: type, thin: int) -> None:
    # Contiguous elements of one statistic, with one weight and with a weight each; and rows of that many columns.
    for n in range(1, 4 * LANES + 4)[::thin]:
        for norm, shape in (
            (tn.layer(eps=1e-3), (3, n)),
            (tn.rms(), (3, n)),
            (tn.group(2, "second"), (2, 2 * n)),
            (tn.instance("second"), (2, 3, n)),
            (tn.batch("second"), (3, 2, n)),
            (tn.batch(), (3, n)),
        ):
            x, dy, parameters = draw(norm, shape, dtype)
            agree(x, dy, norm, **parameters)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_tail_of_the_lanes_before_padding(dtype: type, thin: int) -> None:
    norm = tn.group(2, "second", eps_at="std")
    for n in range(1, 4 * LANES + 4)[:: 2 * thin]:
        shape = (2, 4, n + 5)
        x, dy, parameters = draw(norm, shape, dtype)
        x[:, :, n:], dy[:, :, n:] = np.nan, np.inf
        lengths = np.array([n, n // 2])
        x[1, :, n // 2 :], dy[1, :, n // 2 :] = np.inf, np.nan
        agree(x, dy, norm, lengths=lengths, **parameters)
        valid = np.arange(n + 5) < lengths[:, None]
        agree(x, dy, norm, valid=valid, sample_weight=np.where(valid, 1.5, 0.0), **parameters)


@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_along_a_contiguous_axis(dtype: type, thin: int) -> None:
    rng = np.random.default_rng(2)
    for n in around(BLOCK, 2 * BLOCK)[::thin]:
        for norm, shape in ((tn.layer(), (2, n)), (tn.rms(), (2, n)), (tn.group(2, "second"), (2, 2 * n))):
            x, dy, parameters = draw(norm, shape, dtype)
            agree(x, dy, norm, **parameters)
            agree(x, dy, norm, valid=np.arange(len(x)) != 1, **parameters)
        for norm in (tn.instance("second"), tn.batch("second"), tn.group(1, "second")):
            x, dy, parameters = draw(norm, (2, 2, n + 9), dtype)
            agree(x[..., 9:], dy[..., 9:], norm, **parameters)
            agree(x, dy, norm, lengths=[n, n % BLOCK], **parameters)
            valid = np.stack([scattered(rng, n, n + 9), np.arange(n + 9) >= 9])
            agree(x, dy, norm, valid=valid, **parameters)
            agree(x, dy, norm, valid=valid, sample_weight=rng.choice([0.0, 0.5, 2.0], valid.shape), **parameters)


@pytest.mark.parametrize("dtype", DTYPES)
def test_pieces_of_planes(dtype: type) -> None:
    # Channels of which just so many, one fewer and one more make a piece, and the last piece is not full.
    rng = np.random.default_rng(6)
    for channels, positions in (
        (GROUP + 1, 3),
        (129, 64),
        (128, 64),
        (127, 64),
        (3 * GROUP - 1, 1000),
        (3, PIECE_OF_PLANES),
    ):
        for norm in (tn.batch("second"), tn.instance("second"), tn.batch("second", ddof=1)):
            x, dy, parameters = draw(norm, (3, channels, positions), dtype)
            agree(x, dy, norm, **parameters)
            agree(x, dy, norm, lengths=[positions, 0, positions // 2], **parameters)
            agree(x, dy, norm, valid=rng.random((3, positions)) < 0.7, **parameters)
    for groups, channels, positions in ((86, 2 * 86, 50), (33, 3 * 33, 100)):
        x, dy, parameters = draw(tn.group(groups, "second"), (2, channels, positions), dtype)
        agree(x, dy, tn.group(groups, "second"), **parameters)
        agree(x, dy, tn.group(groups, "second"), lengths=[positions, 7], **parameters)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tiles_of_columns(dtype: type, thin: int) -> None:
    rng = np.random.default_rng(3)
    for width in around(LANES, 4 * LANES, TILE, 2 * TILE)[::thin]:
        for norm, shape in ((tn.batch(), (3, 5, width)), (tn.instance(), (2, 5, width)), (tn.layer(), (3, 5, width))):
            x, dy, parameters = draw(norm, shape, dtype)
            valid = rng.random(shape[:2]) < 0.6
            agree(x, dy, norm, **parameters)
            agree(x, dy, norm, valid=valid, **parameters)
            agree(x, dy, norm, valid=valid, sample_weight=rng.choice([0.5, 2.0], shape[:2]), **parameters)
    # Groups that end inside a tile, and one that is wider than a tile.
    for groups, width in (
        (1, TILE + 1),
        (2, 2 * TILE),
        (3, 3 * 43),
        (5, TILE + 3),
        (TILE + 1, TILE + 1),
    ):
        norm, shape = tn.group(groups), (2, 5, width)
        x, dy, parameters = draw(norm, shape, dtype)
        agree(x, dy, norm, **parameters)
        agree(x, dy, norm, lengths=[3, 5], **parameters)


@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_and_chunks_of_rows(dtype: type, thin: int) -> None:
    rng = np.random.default_rng(4)
    for number in around(GROUP, BLOCK_ROWS, 2 * BLOCK_ROWS, CHUNK_ROWS, 2 * CHUNK_ROWS)[::thin]:
        for norm, width in (
            (tn.batch(ddof=1), 3),
            (tn.layer(), 5),
            (tn.rms(), 4),
            (tn.Norm("[b] (g [c])", sizes={"g": 2}), 6),
        ):
            x, dy, parameters = draw(norm, (number + 40, width), dtype)
            agree(x[:number], dy[:number], norm, **parameters)
            valid = scattered(rng, number, number + 40)
            x[~valid], dy[~valid] = np.nan, np.nan
            agree(x, dy, norm, valid=valid, **parameters)
            times = np.where(valid, rng.choice([0.0, 0.5, 2.0], number + 40), np.nan)
            agree(x, dy, norm, valid=valid, sample_weight=times, **parameters)
        for norm in (tn.instance(), tn.group(2), tn.batch()):
            x, dy, parameters = draw(norm, (3, number + 7, 4), dtype)
            agree(x, dy, norm, lengths=[number, 0, max(number - BLOCK_ROWS + 2, 1)], **parameters)


@pytest.mark.parametrize("dtype", DTYPES)
def test_many_sequences_that_all_begin_and_end_within_blocks(dtype: type, thin: int) -> None:
    rng = np.random.default_rng(5)
    lengths = rng.integers(0, 40, 90)
    for norm, shape in (
        (tn.batch(), (90, 41, 3)),
        (tn.layer(), (90, 41, 3)),
        (tn.instance(), (90, 41, 3)),
        (tn.batch("second"), (90, 3, 41)),
        (tn.group(3, "second"), (90, 6, 41)),
    ):
        x, dy, parameters = draw(norm, shape, dtype)
        agree(x, dy, norm, lengths=lengths, **parameters)
        agree(x, dy, norm, lengths=lengths, padding="keep", **parameters)


# Sizes that are no multiple of a cache line, so that lines are shared by what threads write.
@pytest.mark.parametrize(
    ("norm", "each"),
    [(tn.batch(), (50, 103)), (tn.layer(), (50, 103)), (tn.instance("second"), (7, 731)), (tn.layer(), (1, 5153))],
)
def test_outputs_that_are_written_past_the_caches(norm: tn.Norm, each: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    # A part of them is not; with the moments and sums of the whole, both have the same bits.
    monkeypatch.setattr(np, "empty_like", lambda like: np.full_like(like, np.nan))  # what is not written shows
    monkeypatch.setattr(
        np, "empty", lambda shape, dtype=float: np.full(shape, np.nan if np.dtype(dtype).kind == "f" else 0, dtype)
    )
    samples = STREAMED // (4 * math.prod(each)) + 1
    x, dy, parameters = draw(norm, (samples, *each), np.float32)
    whole = tn.forward(x, norm, **parameters)
    dx, sums = tn.backward(dy, whole)[0], tn.backward_sums(dy, whole)
    assert whole.y.nbytes > STREAMED
    assert np.isfinite(whole.y).all()
    assert np.isfinite(dx).all()
    for part in (slice(0, 3), slice(samples // 2 - 2, samples // 2 + 9), slice(samples - 5, None)):
        shared = len(whole.moments.shape) == 1  # by all samples: a batch norm
        out = tn.forward(x[part], norm, moments=whole.moments if shared else None, **parameters)
        assert_same_bits(out.y, whole.y[part], f"y of {part}")
        assert_same_bits(tn.backward(dy[part], out, sums=sums if shared else None)[0], dx[part], f"dx of {part}")
