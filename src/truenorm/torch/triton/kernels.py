# ruff: noqa: N803, RUF059, SIM108, SIM300 - Triton's language: constants in capitals, branches when compiled
"""Six kernels in Triton: measure, merge, apply; sums, add, gradient.

x is seen as sequences x positions x lanes (see `plan`). A program works on one tile: POSITIONS positions of LANES lanes
of one sequence. Sums run along positions.

    measure    tile      -> count, mean, m2 of each lane of the tile      (tiles, lanes, 3)
    merge      tiles     -> those of each sequence and lane; once more for those of each statistic
    apply      x, table  -> y
    sums       tile      -> Σ dy and Σ dy · xhat of each lane of the tile (tiles, lanes, 2)
    add        tiles     -> those of each sequence and lane
    gradient   x, dy     -> dx

Tables are float64 and tiles are merged in a fixed order without atomics: the same call gives the same bits. Elements
that are not valid are never read into arithmetic. Tiles are computed in float32 (float64 for float64): they are first
scaled by a power of two, so that squares of 1e30 and of 1e-30 fit. The mean is kept in two parts, `hi` and `lo`.

FORM, what is valid: "all"; "lengths" of sequences; "valid", a mask of positions (of lanes for rows); "elements", a mask
of the shape of x; "offsets", packed sequences. LAYOUT: "columns" and "planes" have a weight for each lane, "rows" for
each position; lanes are next to each other in memory in columns, positions in the others.
"""

import triton
import triton.language as tl

# Powers of two between which a tile is scaled. Their squares fit float64.
LEAST = tl.constexpr(2.0**-120)
MOST = tl.constexpr(2.0**120)
LEAST_WIDE = tl.constexpr(2.0**-500)
MOST_WIDE = tl.constexpr(2.0**500)


# ---- what the kernels share ----


@triton.jit
def _power_of_two(size, TYPE: tl.constexpr):
    """The power of two at or below each size >= 0, within limits."""
    if TYPE == tl.float64:
        bits = size.to(tl.int64, bitcast=True) & 0x7FF0000000000000
        power = bits.to(tl.float64, bitcast=True)
        return tl.minimum(tl.maximum(power, LEAST_WIDE), MOST_WIDE)
    else:
        bits = size.to(tl.int32, bitcast=True) & 0x7F800000
        power = bits.to(tl.float32, bitcast=True)
        return tl.minimum(tl.maximum(power, LEAST), MOST)


@triton.jit
def _place(
    ragged,  # lengths (sequences,), a mask, or offsets (sequences + 2,), the last one twice
    sequence_of,  # (tiles,) for offsets: `sequences`, which has no rows, for tiles that are not needed
    first_tile,  # (sequences + 1,) for offsets
    positions,
    lanes,
    tiles_each,  # of a sequence
    FORM: tl.constexpr,
    LAYOUT: tl.constexpr,
    LANES: tl.constexpr,
    POSITIONS: tl.constexpr,
):
    """Where this program works.

    tile, sequence, positions (POSITIONS,), lanes (LANES,), which lanes exist, where the elements of the tile are in x,
    which of them exist, and which of those are valid
    """
    blocks = (lanes + LANES - 1) // LANES
    tile = tl.program_id(0) // blocks
    j = tl.program_id(0) % blocks * LANES + tl.arange(0, LANES)
    live = j < lanes
    if FORM == "offsets":
        s = tl.load(sequence_of + tile)
        i = (tile - tl.load(first_tile + s)) * POSITIONS + tl.arange(0, POSITIONS)
        row = tl.load(ragged + s)
        extent = tl.load(ragged + s + 1) - row
        begin = row * lanes
        live = live & (extent > 0)
    else:
        s = tile // tiles_each
        i = tile % tiles_each * POSITIONS + tl.arange(0, POSITIONS)
        extent = positions
        begin = s.to(tl.int64) * positions * lanes
    if LAYOUT == "columns":
        at = begin + i[None, :].to(tl.int64) * lanes + j[:, None]
    else:
        at = begin + j[:, None].to(tl.int64) * positions + i[None, :]
    inside = live[:, None] & (i < extent)[None, :]
    ok = inside
    if FORM == "lengths":
        ok = inside & (i < tl.load(ragged + s))[None, :]
    elif FORM == "elements":
        ok = inside & (tl.load(ragged + at, mask=inside, other=0) != 0)
    elif FORM == "valid":
        if LAYOUT == "rows":
            ok = inside & (tl.load(ragged + j, mask=live, other=0) != 0)[:, None]
        else:
            ok = inside & (tl.load(ragged + s.to(tl.int64) * positions + i, mask=i < extent, other=0) != 0)[None, :]
    return tile, s, i, j, live, at, inside, ok


@triton.jit
def _statistic(
    table,  # (statistics, 3)
    s,
    j,
    live,
    kept,
    channels,
    shared,
    EPS: tl.constexpr,
    DDOF: tl.constexpr,
    EPS_OUTSIDE: tl.constexpr,
    TYPE: tl.constexpr,
):
    """The statistic of each lane: xhat = (x · scale - hi - lo) · factor. The one place where eps and ddof are applied.

    its index, scale, hi, lo and factor; in float64 rstd, count, count - ddof and the deviation without eps
    """
    index = (s // shared).to(tl.int64) * kept + j // channels
    count = tl.load(table + index * 3, mask=live, other=0.0)
    mean = tl.load(table + index * 3 + 1, mask=live, other=0.0)
    m2 = tl.load(table + index * 3 + 2, mask=live, other=0.0)
    free = count - DDOF
    known = free > 0
    var = tl.where(known, m2, 0.0) / tl.where(known, free, 1.0)
    std = tl.sqrt(var)
    if EPS_OUTSIDE:
        deviation = std + EPS
    else:
        deviation = tl.sqrt(var + EPS)
    known = known & (deviation != 0)
    rstd = tl.where(known, 1.0 / tl.where(known, deviation, 1.0), 0.0)
    # Without a deviation every finite x gives exactly the bias.
    center = tl.where(rstd == 0, 0.0, mean)
    # Never up: the values of a channel may be large and their deviation small.
    scale = tl.minimum(_power_of_two(rstd.to(TYPE), TYPE), 1.0)
    wide = scale.to(tl.float64)
    hi = (center * wide).to(TYPE)
    lo = (center * wide - hi.to(tl.float64)).to(TYPE)
    factor = (rstd / wide).to(TYPE)
    return index, scale, hi, lo, factor, rstd, count, free, std


@triton.jit
def _xhat(v, ok, scale, hi, lo, factor):
    return tl.where(ok, ((v * scale[:, None] - hi[:, None]) - lo[:, None]) * factor[:, None], 0.0)


@triton.jit
def _parameter(values, i, j, positions, lanes, LAYOUT: tl.constexpr, TYPE: tl.constexpr):
    """weight or bias, as it broadcasts against a tile."""
    if LAYOUT == "rows":
        return tl.load(values + i, mask=i < positions, other=0.0).to(TYPE)[None, :]
    else:
        return tl.load(values + j, mask=j < lanes, other=0.0).to(TYPE)[:, None]


# ---- forward ----


@triton.jit
def measure(
    x,
    parts,  # (tiles, lanes, 3)
    ragged,
    sequence_of,
    first_tile,
    positions,
    lanes,
    tiles_each,
    FORM: tl.constexpr,
    LAYOUT: tl.constexpr,
    CENTER: tl.constexpr,
    TYPE: tl.constexpr,
    LANES: tl.constexpr,
    POSITIONS: tl.constexpr,
):
    tile, s, i, j, live, at, inside, ok = _place(
        ragged, sequence_of, first_tile, positions, lanes, tiles_each, FORM, LAYOUT, LANES, POSITIONS
    )
    v = tl.load(x + at, mask=ok, other=0.0).to(TYPE)
    count = tl.sum(ok.to(tl.int32), 1).to(tl.float64)
    some = tl.where(count > 0, count, 1.0)
    power = _power_of_two(tl.max(tl.abs(v), 1), TYPE).to(tl.float64)
    v = v * (1.0 / power).to(TYPE)[:, None]  # exact
    if CENTER:
        # From the largest value on: the mean of equal values is exactly their value.
        origin = tl.where(count > 0, tl.max(tl.where(ok, v, -float("inf")), 1), 0.0)
        shift = tl.sum(tl.where(ok, v - origin[:, None], 0.0), 1).to(tl.float64) / some
        origin = (origin.to(tl.float64) + shift).to(TYPE)
        d = tl.where(ok, v - origin[:, None], 0.0)
        rest = tl.sum(d, 1).to(tl.float64) / some  # what rounding has left over
        d = tl.where(ok, d - rest.to(TYPE)[:, None], 0.0)
        mean = (origin.to(tl.float64) + rest) * power
    else:
        d = v
        mean = power * 0.0
    m2 = tl.sum(d * d, 1).to(tl.float64) * power * power
    to = parts + (tile.to(tl.int64) * lanes + j) * 3
    tl.store(to, count, mask=j < lanes)
    tl.store(to + 1, mean, mask=j < lanes)
    tl.store(to + 2, m2, mask=j < lanes)


@triton.jit
def merge(
    parts,  # (rows, kept · channels, 3)
    table,  # (groups, kept, 3)
    first,  # (groups + 1,) for offsets: the rows of each group
    rows_each,  # of a group, otherwise
    kept,
    channels,
    CENTER: tl.constexpr,
    LANES: tl.constexpr,
    ITEMS: tl.constexpr,
):
    """The moments of all rows of a group and all channels of a lane. Empty parts change no bit."""
    blocks = (kept + LANES - 1) // LANES
    group = tl.program_id(0) // blocks
    k = tl.program_id(0) % blocks * LANES + tl.arange(0, LANES)
    if first is None:
        begin = group.to(tl.int64) * rows_each
        end = begin + rows_each
    else:
        begin = tl.load(first + group)
        end = tl.load(first + group + 1)
    items = (end - begin) * channels
    count = tl.full([LANES], 0.0, tl.float64)
    mean = tl.full([LANES], 0.0, tl.float64)
    m2 = tl.full([LANES], 0.0, tl.float64)
    for item in range(0, items, ITEMS):
        q = item + tl.arange(0, ITEMS)
        ok = (k < kept)[:, None] & (q < items)[None, :]
        at = (((begin + q // channels)[None, :] * kept + k[:, None]) * channels + (q % channels)[None, :]) * 3
        counts = tl.load(parts + at, mask=ok, other=0.0)
        means = tl.load(parts + at + 1, mask=ok, other=0.0)
        within = tl.sum(tl.load(parts + at + 2, mask=ok, other=0.0), 1)
        total = tl.sum(counts, 1)
        center = tl.full([LANES], 0.0, tl.float64)
        if CENTER:  # moments of the means, each as often as it counts; a single one is exactly itself
            some = tl.where(total > 0, total, 1.0)
            center = tl.where(total > 0, tl.max(tl.where(counts > 0, means, -float("inf")), 1), 0.0)
            for _ in tl.static_range(2):
                center += tl.sum(tl.where(counts > 0, counts * (means - center[:, None]), 0.0), 1) / some
            apart = tl.where(counts > 0, means - center[:, None], 0.0)
            within += tl.sum(counts * apart * apart, 1)
        # With what came before.
        both = count + total
        share = total / tl.where(both > 0, both, 1.0)
        apart = center - mean
        m2 += within + apart * apart * (count * share)
        mean += apart * share
        count = both
    to = table + (group.to(tl.int64) * kept + k) * 3
    tl.store(to, count, mask=k < kept)
    tl.store(to + 1, mean, mask=k < kept)
    tl.store(to + 2, m2, mask=k < kept)


@triton.jit
def apply(
    x,
    y,
    weight,
    bias,
    table,
    ragged,
    sequence_of,
    first_tile,
    positions,
    lanes,
    tiles_each,
    kept,
    channels,
    shared,
    FORM: tl.constexpr,
    LAYOUT: tl.constexpr,
    KEEP: tl.constexpr,
    EPS: tl.constexpr,
    DDOF: tl.constexpr,
    EPS_OUTSIDE: tl.constexpr,
    TYPE: tl.constexpr,
    LANES: tl.constexpr,
    POSITIONS: tl.constexpr,
):
    """y = xhat · weight + bias; 0, or x, where not valid."""
    tile, s, i, j, live, at, inside, ok = _place(
        ragged, sequence_of, first_tile, positions, lanes, tiles_each, FORM, LAYOUT, LANES, POSITIONS
    )
    index, scale, hi, lo, factor, rstd, count, free, std = _statistic(
        table, s, j, live, kept, channels, shared, EPS, DDOF, EPS_OUTSIDE, TYPE
    )
    given = tl.load(x + at, mask=inside if KEEP else ok, other=0.0)
    found = _xhat(given.to(TYPE), ok, scale, hi, lo, factor)
    if weight is not None:
        found = found * _parameter(weight, i, j, positions, lanes, LAYOUT, TYPE)
    if bias is not None:
        found = found + _parameter(bias, i, j, positions, lanes, LAYOUT, TYPE)
    tl.store(y + at, tl.where(ok, found.to(y.dtype.element_ty), given if KEEP else 0.0), mask=inside)


# ---- backward ----


@triton.jit
def sums(
    x,
    dy,
    weight,
    table,
    parts,  # (tiles, lanes, 2)
    by_position,  # (blocks of lanes, positions, 2) for rows, whose weight has one number for each position
    ragged,
    sequence_of,
    first_tile,
    positions,
    lanes,
    tiles_each,
    kept,
    channels,
    shared,
    FORM: tl.constexpr,
    LAYOUT: tl.constexpr,
    EPS: tl.constexpr,
    DDOF: tl.constexpr,
    EPS_OUTSIDE: tl.constexpr,
    TYPE: tl.constexpr,
    LANES: tl.constexpr,
    POSITIONS: tl.constexpr,
):
    """Σ dy and Σ dy · xhat. For rows, Σ dxhat and Σ dxhat · xhat, with dxhat = dy · weight."""
    tile, s, i, j, live, at, inside, ok = _place(
        ragged, sequence_of, first_tile, positions, lanes, tiles_each, FORM, LAYOUT, LANES, POSITIONS
    )
    index, scale, hi, lo, factor, rstd, count, free, std = _statistic(
        table, s, j, live, kept, channels, shared, EPS, DDOF, EPS_OUTSIDE, TYPE
    )
    xhat = _xhat(tl.load(x + at, mask=ok, other=0.0).to(TYPE), ok, scale, hi, lo, factor)
    g = tl.load(dy + at, mask=ok, other=0.0).to(TYPE)
    if LAYOUT == "rows":
        if by_position is not None:
            block = tl.program_id(0) % ((lanes + LANES - 1) // LANES)
            to = by_position + (block.to(tl.int64) * positions + i) * 2
            tl.store(to, tl.sum(g, 0).to(tl.float64), mask=i < positions)
            tl.store(to + 1, tl.sum(g * xhat, 0).to(tl.float64), mask=i < positions)
        if weight is not None:
            g = g * _parameter(weight, i, j, positions, lanes, LAYOUT, TYPE)
    to = parts + (tile.to(tl.int64) * lanes + j) * 2
    tl.store(to, tl.sum(g, 1).to(tl.float64), mask=j < lanes)
    tl.store(to + 1, tl.sum(g * xhat, 1).to(tl.float64), mask=j < lanes)


@triton.jit
def add(
    parts,  # (rows, width)
    totals,  # (groups, width)
    first,  # (groups + 1,) for offsets: the rows of each group
    rows,
    rows_each,  # of a group, otherwise; the last one may have fewer
    width,
    LANES: tl.constexpr,
    ITEMS: tl.constexpr,
):
    blocks = (width + LANES - 1) // LANES
    group = tl.program_id(0) // blocks
    k = tl.program_id(0) % blocks * LANES + tl.arange(0, LANES)
    if first is None:
        begin = group.to(tl.int64) * rows_each
        end = tl.minimum(begin + rows_each, rows)
    else:
        begin = tl.load(first + group)
        end = tl.load(first + group + 1)
    total = tl.full([LANES], 0.0, tl.float64)
    for row in range(begin, end, ITEMS):
        q = row + tl.arange(0, ITEMS)
        ok = (k < width)[:, None] & (q < end)[None, :]
        total += tl.sum(tl.load(parts + q[None, :] * width + k[:, None], mask=ok, other=0.0), 1)
    tl.store(totals + group.to(tl.int64) * width + k, total, mask=k < width)


@triton.jit
def gradient(
    x,
    dy,
    dx,
    weight,
    table,
    sums,  # (statistics, 2): Σ dxhat and Σ dxhat · xhat; None if the statistics are fixed
    ragged,
    sequence_of,
    first_tile,
    positions,
    lanes,
    tiles_each,
    kept,
    channels,
    shared,
    FORM: tl.constexpr,
    LAYOUT: tl.constexpr,
    KEEP: tl.constexpr,
    CENTER: tl.constexpr,
    EPS: tl.constexpr,
    DDOF: tl.constexpr,
    EPS_OUTSIDE: tl.constexpr,
    TYPE: tl.constexpr,
    LANES: tl.constexpr,
    POSITIONS: tl.constexpr,
):
    """dx = rstd · (dxhat - Σ dxhat / n - xhat · Σ (dxhat · xhat) / (n - ddof)); 0, or dy, where not valid."""
    tile, s, i, j, live, at, inside, ok = _place(
        ragged, sequence_of, first_tile, positions, lanes, tiles_each, FORM, LAYOUT, LANES, POSITIONS
    )
    index, scale, hi, lo, factor, rstd, count, free, std = _statistic(
        table, s, j, live, kept, channels, shared, EPS, DDOF, EPS_OUTSIDE, TYPE
    )
    given = tl.load(dy + at, mask=inside if KEEP else ok, other=0.0)
    d = tl.where(ok, given.to(TYPE), 0.0)
    if weight is not None:
        d = d * _parameter(weight, i, j, positions, lanes, LAYOUT, TYPE)
    if sums is not None:
        xhat = _xhat(tl.load(x + at, mask=ok, other=0.0).to(TYPE), ok, scale, hi, lo, factor)
        inner = tl.load(sums + index * 2 + 1, mask=live, other=0.0) / tl.where(free > 0, free, 1.0)
        if EPS_OUTSIDE:  # the deviation, not its square, is what eps was added to
            inner = inner * tl.where(std > 0, 1.0 + EPS / tl.where(std > 0, std, 1.0), 0.0)
        if CENTER:
            outer = tl.load(sums + index * 2, mask=live, other=0.0) / tl.where(count > 0, count, 1.0)
            d = d - outer.to(TYPE)[:, None]
        d = d - xhat * tl.where(free > 0, inner, 0.0).to(TYPE)[:, None]
    d = d * rstd.to(TYPE)[:, None]
    tl.store(dx + at, tl.where(ok, d.to(dx.dtype.element_ty), given if KEEP else 0.0), mask=inside)
