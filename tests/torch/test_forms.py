"""Images, heads and graphs: `lengths` for several axes, `along`, `offsets` and `segments` beyond (rows, c).

The expected values are those of torch's layers, in float64, on what is valid alone: each image cropped, each sequence
or graph by itself, or for batch norm all valid values together.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from torch_data import normal

torch = pytest.importorskip("torch", reason="torch is not installed")

import truenorm as tn  # noqa: E402
import truenorm.torch as tnt  # noqa: E402
from truenorm import engine  # noqa: E402

nn = torch.nn
Make = Callable[[Any], Any]
HEIGHTS, WIDTHS = (3, 1, 4), (2, 5, 3)
CLOSE = {
    torch.float64: {"rtol": 1e-9, "atol": 1e-11},
    torch.float32: {"rtol": 3e-5, "atol": 3e-5},
    torch.bfloat16: {"rtol": 3e-2, "atol": 6e-2},
}
JUNK = (float("nan"), float("inf"), 1e30)


def filled(layer: Any) -> Any:
    with torch.no_grad():
        for i, one in enumerate([*layer.parameters(), *(b for b in layer.buffers() if b.is_floating_point())]):
            one.copy_(one + torch.linspace(0.1, 0.9 + 0.1 * i, one.numel()).reshape(one.shape))
    return layer


def images(dtype: Any) -> list[Any]:
    """(c, h, w), of as many sizes."""
    sizes = zip(HEIGHTS, WIDTHS, strict=True)
    return [(normal(6, h, w, seed=i, dtype=torch.float64) * 1.3 + 0.7).to(dtype) for i, (h, w) in enumerate(sizes)]


def padded(parts: list[Any], size: tuple[int, ...], junk: float) -> Any:
    """(b, c, ...) with junk behind each axis. Differentiable."""
    found = []
    for part in parts:
        missing = [(0, most - n) for n, most in zip(part.shape[1:], size, strict=True)]
        found.append(nn.functional.pad(part, [n for pair in reversed(missing) for n in pair], value=junk))
    return torch.stack(found)


def cropped(y: Any, parts: list[Any]) -> list[Any]:
    return [one[tuple(slice(n) for n in part.shape)] for one, part in zip(y, parts, strict=True)]


# Layers of (b, c, h, w), and what torch has for one image, or for the rows of all.
IMAGE_LAYERS: dict[str, tuple[Make, Make | None]] = {
    "batch": (lambda kit: kit.BatchNorm2d(6, momentum=0.3), None),
    "group": (lambda kit: kit.GroupNorm(3, 6), lambda kit: kit.GroupNorm(3, 6)),
    "instance": (
        lambda kit: kit.InstanceNorm2d(6, affine=True),
        lambda kit: kit.InstanceNorm2d(6, affine=True),
    ),
    "pattern": (lambda kit: tnt.Normalize("b c [h w]", 6), lambda kit: kit.InstanceNorm2d(6, affine=True)),
}


def gradients(outputs: list[Any], leaves: list[Any], layer: Any) -> list[Any]:
    loss = sum((one.double() * torch.cos(1.7 * one.detach().double() + i)).sum() for i, one in enumerate(outputs))
    return list(torch.autograd.grad(loss, [*leaves, *layer.parameters()]))


def of_images(layer: Any, dtype: Any, junk: float = 0.0, size: tuple[int, int] = (5, 7), **ragged: Any) -> list[Any]:
    """Outputs, gradients and running statistics."""
    leaves = [one.requires_grad_() for one in images(dtype)]
    ragged = ragged or {"lengths": (torch.tensor(HEIGHTS), torch.tensor(WIDTHS))}
    y = layer(padded(leaves, size, junk), **ragged)
    outside = torch.ones_like(y, dtype=torch.bool)
    for one in cropped(outside, leaves):
        one.fill_(False)
    assert not y[outside].any()
    outputs = cropped(y, leaves)
    buffers = [one.clone() for one in layer.buffers()]
    return [*outputs, *gradients(outputs, leaves, layer), *buffers]


def of_images_alone(name: str, training: bool) -> list[Any]:
    leaves = [one.requires_grad_() for one in images(torch.float64)]
    make = IMAGE_LAYERS[name][1]
    if make is not None:
        layer = filled(make(nn).double())
        outputs = [layer(one[None])[0] for one in leaves]
    else:
        layer = filled(nn.BatchNorm1d(6, momentum=0.3).double().train(training))
        rows = layer(torch.cat([one.flatten(1).T for one in leaves]))
        pieces = rows.split([h * w for h, w in zip(HEIGHTS, WIDTHS, strict=True)])
        outputs = [piece.T.reshape(one.shape) for piece, one in zip(pieces, leaves, strict=True)]
    return [*outputs, *gradients(outputs, leaves, layer), *layer.buffers()]


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("name", IMAGE_LAYERS)
def test_images_of_several_sizes_are_normalized_as_alone(name: str, training: bool, dtype: Any) -> None:
    expected = of_images_alone(name, training)
    for junk in JUNK:
        layer = filled(IMAGE_LAYERS[name][0](tnt).to(dtype).train(training))
        found = of_images(layer, dtype, junk)
        assert len(found) == len(expected)
        for one, two in zip(found, expected, strict=True):
            torch.testing.assert_close(one.to(two.dtype), two, **CLOSE[dtype])


@pytest.mark.parametrize("name", IMAGE_LAYERS)
def test_the_padding_of_images_changes_nothing_but_rounding(name: str) -> None:
    for training in (True, False):
        made = [filled(IMAGE_LAYERS[name][0](tnt).double().train(training)) for _ in range(3)]
        usual = of_images(made[0], torch.float64, 0.0, (4, 5))
        for layer, junk, size in ((made[1], JUNK[0], (5, 7)), (made[2], JUNK[2], (4, 40))):
            for one, two in zip(of_images(layer, torch.float64, junk, size), usual, strict=True):
                torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("channels_last", [False, True], ids=["contiguous", "channels last"])
@pytest.mark.parametrize("name", IMAGE_LAYERS)
def test_35_along_one_axis_the_padding_changes_no_bit(name: str, channels_last: bool) -> None:
    # One ragged axis with padding behind. Spectrograms: all samples have the same frequencies.
    lengths, order = torch.tensor([5, 2, 4]), torch.channels_last if channels_last else torch.contiguous_format
    for axis in (2, 3):
        found = []
        for junk, extent in ((0.0, 5), (JUNK[0], 7), (1e30, 50)):
            layer = filled(IMAGE_LAYERS[name][0](tnt))
            x = torch.full((3, 6, extent, 4), junk)
            for i, n in enumerate(lengths.tolist()):
                x[i, :, :n] = normal(6, n, 4, seed=i)
            x = (x if axis == 2 else x.transpose(2, 3)).contiguous(memory_format=order).requires_grad_()
            along = axis if extent != 7 else axis - 4
            y = layer(x, lengths=lengths, along="hw"[axis - 2] if name == "pattern" else along)
            dy = torch.cos(y.detach())
            y.backward(dy)
            parts = [(one if axis == 2 else one.transpose(2, 3))[:, :, :5] for one in (y.detach(), x.grad)]
            found.append([*parts, *(one.grad for one in layer.parameters()), *layer.buffers()])
        for other in found[1:]:
            for one, two in zip(found[0], other, strict=True):
                assert torch.equal(one, two)


def test_along_gives_what_one_vector_for_each_axis_gives() -> None:
    x, lengths = normal(2, 4, 3, 5, 7, dtype=torch.float64), torch.tensor([2, 3])
    whole = [torch.full((2,), n) for n in (3, 5, 7)]
    for axis in (2, 3, 4):
        chosen = [*whole]
        chosen[axis - 2] = lengths
        for layer in (tnt.BatchNorm3d(4), tnt.GroupNorm(2, 4), tnt.InstanceNorm3d(4)):
            one, two = layer.double(), copy.deepcopy(layer)
            y = one(x, lengths=lengths, along=axis)
            torch.testing.assert_close(y, two(x, lengths=tuple(chosen)), rtol=1e-12, atol=1e-13)
            valid = torch.arange(x.shape[axis]) < lengths[:, None]
            mask = valid.reshape(2, *(-1 if i == axis else 1 for i in (2, 3, 4))).expand(2, 3, 5, 7)
            torch.testing.assert_close(y, two(x, valid=mask), rtol=1e-12, atol=1e-13)
    free = tnt.Normalize("[b d h w] c", 4).double()
    last = x.movedim(1, -1).contiguous()
    for name, axis in (("d", 1), ("h", 2), ("w", -2)):
        assert torch.equal(free(last, lengths=lengths, along=name), free(last, lengths=lengths, along=axis))
    named = tnt.Normalize("[b t h f] c", 4).double()  # lengths run along t unless along= says otherwise
    for name, axis in (("t", 1), ("f", 3)):
        assert torch.equal(named(last, lengths=lengths, along=name), free(last, lengths=lengths, along=axis))
    assert torch.equal(named(last, lengths=lengths), free(last, lengths=lengths, along="d"))
    with pytest.raises(ValueError, match=r"by number \(1, 2, 3\) or by its name in the pattern \(d, h, w\), got 'c'"):
        free(last, lengths=lengths, along="c")


def test_volumes_and_single_images_take_one_vector_for_each_axis() -> None:
    layer = tnt.InstanceNorm3d(2).double()
    x = normal(1, 2, 4, 5, 6, dtype=torch.float64)
    y = layer(x, lengths=([3], [2], [6]))
    torch.testing.assert_close(y[:, :, :3, :2], layer(x[:, :, :3, :2]))
    assert not y[:, :, 3:].any()
    single = tnt.InstanceNorm2d(2).double()
    torch.testing.assert_close(single(x[0, :, 0], lengths=([3], [4])), single(x[:, :, 0], lengths=([3], [4]))[0])
    torch.testing.assert_close(single(x[0, :, 0], lengths=[4], along=2), single(x[:, :, 0], lengths=[4], along=3)[0])


def test_lengths_run_along_the_only_position_axis_whatever_its_name() -> None:
    x, lengths = normal(3, 5, 4), torch.tensor([5, 1, 3])
    for name in ("[b {}] c", "b [{}] c", "b [{}] (g [c])", "b {} [c]"):
        norms = [tn.Norm(name.format(axis), sizes={"g": 2} if "g" in name else {}) for axis in "tn"]
        one, two = (tnt.Normalize(norm, 4) for norm in norms)
        assert torch.equal(one(x, lengths=lengths), two(x, lengths=lengths))
        rows, offsets = x.reshape(15, 4), torch.tensor([0, 5, 6, 15])
        assert torch.equal(one(rows, offsets=offsets), two(rows, offsets=offsets))


@pytest.mark.parametrize("name", ["layer", "rms"])
def test_norms_of_a_position_only_set_the_padding_to_zero(name: str) -> None:
    layer = tnt.LayerNorm(6) if name == "layer" else tnt.RMSNorm(6)
    x = normal(3, 4, 5, 6)
    plain = layer(x)
    rows, columns = (torch.arange(n) < torch.tensor(one)[:, None] for n, one in ((4, HEIGHTS), (5, WIDTHS)))
    told: Any
    for told, valid in (
        ({"lengths": (HEIGHTS, WIDTHS)}, rows[:, :, None] & columns[:, None]),
        ({"lengths": WIDTHS, "along": 2}, columns[:, None].expand(3, 4, 5)),
    ):
        y = layer(torch.where(valid[..., None], x, torch.nan), **told)
        torch.testing.assert_close(y, torch.where(valid[..., None], plain, 0.0))
    for told in ({"segments": [5, 1, 1]}, {"offsets": [0, 1, 3]}):  # (rows, heads, heads, c)
        assert torch.equal(layer(x, **told), plain)
    # A single packed row with heads, as in decoding, and the rows behind an axis of size 1.
    assert torch.equal(layer(x[:1, 0], offsets=[0, 1]), plain[:1, 0])
    assert torch.equal(layer(x[:1, 0], offsets=[0, 2, 5]), plain[:1, 0])


# ---- packed rows with heads, and graphs ----

LENGTHS = (4, 1, 3)
HEADS = 2
ROW_LAYERS: dict[str, Make] = {
    "instance": lambda kit: kit.InstanceNorm1d(6, affine=True, track_running_stats=True),
    "group": lambda kit: kit.GroupNorm(3, 6),
    "batch": lambda kit: kit.BatchNorm1d(6),
}


def sequences(dtype: Any) -> list[Any]:
    return [(normal(n, HEADS, 6, seed=i, dtype=torch.float64) + 0.7).to(dtype) for i, n in enumerate(LENGTHS)]


def of_sequences_alone(name: str) -> list[Any]:
    leaves = [one.requires_grad_() for one in sequences(torch.float64)]
    layer = filled(ROW_LAYERS[name](nn).double())
    if name == "batch":
        joined = layer(torch.cat(leaves).flatten(0, 1)).unflatten(0, (-1, HEADS))
        outputs = list(joined.split(LENGTHS))
        return [*outputs, *gradients(outputs, leaves, layer), *list(layer.buffers())[:2]]
    outputs, buffers = [], []
    start = [one.clone() for one in layer.buffers()]
    for one in leaves:
        for buffer, value in zip(layer.buffers(), start, strict=True):
            buffer.copy_(value)
        outputs.append(layer(one.flatten(0, 1).T[None])[0].T.unflatten(0, (-1, HEADS)))
        buffers.append([buffer.clone() for buffer in list(layer.buffers())[:2]])
    return [
        *outputs,
        *gradients(outputs, leaves, layer),
        *(torch.stack(one).mean(0) for one in zip(*buffers, strict=True)),
    ]


@pytest.mark.parametrize("leading", [False, True], ids=["(rows, heads, c)", "(1, rows, heads, c)"])
@pytest.mark.parametrize("form", ["offsets", "segments"])
@pytest.mark.parametrize("name", ROW_LAYERS)
def test_packed_rows_with_heads_are_normalized_as_alone(name: str, form: str, leading: bool) -> None:
    expected = of_sequences_alone(name)
    ids = torch.tensor([9, 0, 4]).repeat_interleave(torch.tensor(LENGTHS))
    mixed = torch.randperm(len(ids), generator=torch.Generator().manual_seed(1))
    for dtype in CLOSE:
        layer = filled(ROW_LAYERS[name](tnt).to(dtype))
        leaves = [one.requires_grad_() for one in sequences(dtype)]
        x = torch.cat(leaves)
        ragged = {"offsets": torch.tensor([0, 4, 5, 8])}
        if form == "segments":
            x, ragged = x[mixed], {"segments": ids[mixed]}
        y = layer(x[None] if leading else x, **ragged)
        y = y[0] if leading else y
        outputs = list((y if form == "offsets" else y[torch.argsort(mixed)]).split(LENGTHS))
        found = [*outputs, *gradients(outputs, leaves, layer), *list(layer.buffers())[:2]]
        assert len(found) == len(expected)
        for one, two in zip(found, expected, strict=True):
            torch.testing.assert_close(one.double(), two, **CLOSE[dtype])


@pytest.mark.parametrize("norm", ["b [t] h c", "b [t h] c", "b [t] h (g [c])", "[b] t h c", "[b t] h c", "b [t c] h"])
def test_other_axes_of_a_pattern_stay_behind_the_rows(norm: str) -> None:
    sizes = {"g": 3} if "g" in norm else {}
    layer = filled(tnt.Normalize(tn.Norm(norm, sizes=sizes), 6).double())
    x = padded([one.permute(1, 0, 2) for one in sequences(torch.float64)], (4, 6), 0.0).permute(0, 2, 1, 3)
    x = x if norm[-1] != "h" else x.transpose(2, 3)
    lengths = torch.tensor(LENGTHS)
    expected = layer(x, lengths=lengths, along="t")
    valid = torch.arange(4) < lengths[:, None]
    rows, offsets = x[valid], torch.tensor([0, 4, 5, 8])
    ids = torch.tensor([2, 3, 8]).repeat_interleave(lengths)
    for given, ragged in ((rows, {"offsets": offsets}), (rows, {"segments": ids}), (rows[None], {"offsets": offsets})):
        y = layer(given, **ragged)
        assert y.shape == given.shape
        torch.testing.assert_close(y.reshape(rows.shape), expected[valid], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", ROW_LAYERS)
def test_sample_weights_follow_their_rows(name: str) -> None:
    x, weight = torch.cat(sequences(torch.float64)), normal(8, HEADS).exp()
    offsets, ids = torch.tensor([0, 4, 5, 8]), torch.tensor([5, 5, 5, 5, 0, 7, 7, 7])
    mixed = torch.randperm(8, generator=torch.Generator().manual_seed(2))
    layer = ROW_LAYERS[name](tnt).double()
    for one in (weight, weight[:, :1]):
        expected = layer(x, offsets=offsets, sample_weight=one)
        y = layer(x[mixed], segments=ids[mixed], sample_weight=one[mixed])
        torch.testing.assert_close(y, expected[mixed], rtol=1e-12, atol=1e-13)
        y = layer(x[None], segments=ids, sample_weight=one[None])
        torch.testing.assert_close(y, expected[None], rtol=1e-12, atol=1e-13)
        assert not torch.allclose(expected, layer(x, offsets=offsets))
    if name != "batch":
        with pytest.raises(
            ValueError, match=r"sample_weight: the shape \(1, 8, 2\), x without its channel axis, got \(8, 2\)"
        ):
            layer(x[None], segments=ids, sample_weight=weight)


@pytest.mark.parametrize("name", ["instance", "group"])
def test_48_graphs_do_not_depend_on_the_others_of_the_batch(name: str) -> None:
    x, ids = torch.cat(sequences(torch.float32))[:, 0], torch.tensor([3, 0, 3, 3, 8, 0, 3, 8])
    layer = ROW_LAYERS[name](tnt)
    y = layer(x, segments=ids)
    for graph in (0, 3, 8):
        mine = ids == graph
        assert torch.equal(layer(x[mine], segments=ids[mine]), y[mine])  # without the others
        mixed = torch.cat([torch.where(~mine)[0].flip(0), torch.where(mine)[0]])  # after the others
        assert torch.equal(layer(x[mixed], segments=ids[mixed])[-int(mine.sum()) :], y[mine])
    for other in (ids * 1000 - 5, -ids, ids.to(torch.uint8)):  # what the ids are does not matter, only which are equal
        assert torch.equal(layer(x, segments=other), y)


# ---- autograd, transforms, graphs, devices ----

CALLS: dict[str, tuple[Make, tuple[int, ...], dict[str, Any]]] = {
    "images": (lambda _: tnt.BatchNorm2d(3), (2, 3, 2, 3), {"lengths": (torch.tensor([1, 2]), torch.tensor([3, 2]))}),
    "along": (lambda _: tnt.GroupNorm(3, 3), (2, 3, 2, 3), {"lengths": torch.tensor([1, 3]), "along": -1}),
    "heads": (lambda _: tnt.GroupNorm(1, 3), (5, 2, 3), {"offsets": torch.tensor([0, 2, 5])}),
    "leading": (lambda _: tnt.InstanceNorm1d(3), (1, 5, 3), {"offsets": torch.tensor([0, 2, 5])}),
    "graphs": (lambda _: tnt.InstanceNorm1d(3, affine=True), (6, 3), {"segments": torch.tensor([4, 1, 4, 4, 1, 1])}),
    "rows": (lambda _: tnt.BatchNorm1d(3), (6, 3), {"segments": torch.tensor([4, 1, 4, 4, 1, 1])}),
}


# What takes seconds for each form runs for one of them among the quick tests.
QUICK = [name if name == "graphs" else pytest.param(name, marks=pytest.mark.slow) for name in CALLS]


@pytest.mark.parametrize("name", QUICK)
def test_derivatives_of_every_order_and_under_transforms(name: str) -> None:
    make, shape, ragged = CALLS[name]
    layer, x = filled(make(None).double()), normal(*shape, dtype=torch.float64).requires_grad_()
    layer.track_running_stats = False
    parameters = list(layer.parameters())

    def call(x: Any, *_: Any) -> Any:
        return layer(x, **ragged)

    assert torch.autograd.gradcheck(call, (x, *parameters))
    assert torch.autograd.gradgradcheck(call, (x, *parameters))
    y = call(x).detach()
    many = torch.func.vmap(call)(torch.stack([x.detach(), 2 * x.detach()]))
    torch.testing.assert_close(many[0], y, rtol=1e-10, atol=1e-12)
    reverse = torch.func.jacrev(call)(x.detach())
    torch.testing.assert_close(reverse, torch.func.jacfwd(call)(x.detach()), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", QUICK)
def test_compiled_and_exported_it_is_the_same(name: str) -> None:
    make, shape, ragged = CALLS[name]
    layer, x = filled(make(None)), normal(*shape)
    other = copy.deepcopy(layer)
    compiled = torch.compile(other, fullgraph=True, backend="aot_eager")
    one, two = (x.clone().requires_grad_() for _ in range(2))
    y, found = layer(one, **ragged), compiled(two, **ragged)
    torch.testing.assert_close(found, y)
    dy = torch.cos(y.detach())
    y.backward(dy)
    found.backward(dy)
    torch.testing.assert_close(two.grad, one.grad)
    for mine, theirs in zip(layer.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(theirs, mine)
    program = torch.export.export(layer, (x,), ragged).module()
    torch.testing.assert_close(program(x, **ragged), layer(x, **ragged))


@pytest.mark.parametrize("name", CALLS)
def test_no_value_is_read_where_that_would_wait_for_the_device(name: str) -> None:
    # Tensors of the device "meta" have no values at all.
    make, shape, ragged = CALLS[name]

    def there(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(there, value))
        return value.to("meta") if isinstance(value, torch.Tensor) else value

    x = torch.empty(shape, device="meta", requires_grad=True)
    y = make(None).to("meta")(x, **{key: there(value) for key, value in ragged.items()})
    assert (y.shape, y.device.type) == (torch.Size(shape), "meta")
    y.sum().backward()
    assert x.grad is not None


def test_the_formula_and_the_kernels_agree_where_the_number_of_segments_is_unknown() -> None:
    # A graph makes room for as many segments as there are rows. Those that do not exist count nowhere.
    x, ids = normal(6, 4, dtype=torch.float64), torch.tensor([4, 1, 4, 4, 1, 1])
    layer = tnt.InstanceNorm1d(4, track_running_stats=True).double()
    other = copy.deepcopy(layer)
    torch.testing.assert_close(torch.compile(other, backend="aot_eager")(x, segments=ids), layer(x, segments=ids))
    torch.testing.assert_close(other.running_mean, layer.running_mean)
    torch.testing.assert_close(other.running_var, layer.running_var)


@pytest.mark.parametrize("name", CALLS)
def test_the_formula_gives_what_the_kernels_give(name: str) -> None:
    make, shape, ragged = CALLS[name]
    layer, x, before = filled(make(None).double()), normal(*shape, dtype=torch.float64), engine.engine()
    found = []
    for one in engine.available():
        engine.use(one)
        given = x.clone().requires_grad_()
        y = layer(given, **ragged)
        found.append((y.detach(), *torch.autograd.grad(y, given, torch.cos(y.detach()))))
    engine.use(before)
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", CALLS)
def test_autocast_changes_nothing(name: str) -> None:
    make, shape, ragged = CALLS[name]
    layer, x = filled(make(None)), normal(*shape).bfloat16()
    expected = copy.deepcopy(layer)(x, **ragged)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x, **ragged)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, expected)


def test_forms_without_rows() -> None:
    for layer in (tnt.InstanceNorm1d(3), tnt.GroupNorm(3, 3), tnt.BatchNorm1d(3)):
        for shape in ((0, 3), (0, 2, 3), (1, 0, 3)):
            assert layer(torch.zeros(shape), segments=torch.zeros(0, dtype=torch.int64)).shape == shape
