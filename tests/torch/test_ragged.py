"""Ragged data in every form, on every layer: what torch's layers give for the real values alone.

A form writes the same sequences as padded + `lengths`, padded + `valid`, packed + `offsets` or `segments`, jagged, or a
PackedSequence. Padding holds NaN, and the cotangent there is odd: neither may reach anything.
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import truenorm.torch as tnt  # noqa: E402
from truenorm.torch._inputs import order_by_sequence  # noqa: E402

nn = torch.nn
LENGTHS = (5, 2, 4, 3)
CHANNELS = 6
JUNK = (float("nan"), 1e30, -float("inf"))

LAYERS: dict[str, tuple[Callable[[Any], Any], bool]] = {  # and whether each sequence has statistics of its own
    "batch": (lambda kit: kit.BatchNorm1d(CHANNELS, eps=1e-3, momentum=0.3), False),
    "batch, no affine": (lambda kit: kit.BatchNorm1d(CHANNELS, affine=False), False),
    "batch, cumulative": (lambda kit: kit.BatchNorm1d(CHANNELS, momentum=None), False),
    "batch, nothing tracked": (lambda kit: kit.BatchNorm1d(CHANNELS, track_running_stats=False), False),
    "instance": (lambda kit: kit.InstanceNorm1d(CHANNELS, affine=True), True),
    "instance, tracked": (lambda kit: kit.InstanceNorm1d(CHANNELS, track_running_stats=True, momentum=0.3), True),
    "group": (lambda kit: kit.GroupNorm(3, CHANNELS, eps=1e-3), True),
    "group of all": (lambda kit: kit.GroupNorm(1, CHANNELS, affine=False), True),
    "layer": (lambda kit: kit.LayerNorm(CHANNELS, eps=1e-3), False),
    "layer, no affine": (lambda kit: kit.LayerNorm(CHANNELS, elementwise_affine=False), False),
    "rms": (lambda kit: kit.RMSNorm(CHANNELS, eps=1e-3), False),
}
LAST = ("layer", "layer, no affine", "rms")  # their channels come last, padded or not


def sequences(dtype: Any, seed: int = 0) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(n, CHANNELS, generator=generator, dtype=torch.float64) * 1.3 + 0.7).to(dtype) for n in LENGTHS]


def padded(parts: list[Any], junk: Any, extent: int = 7) -> Any:
    """(b, t, c), with junk behind."""
    behind = torch.tensor([junk[i % len(junk)] for i in range(extent)], dtype=parts[0].dtype)[:, None].expand(
        -1, CHANNELS
    )
    return torch.stack([torch.cat([part, behind[len(part) :]]) for part in parts])


def cut(x: Any) -> list[Any]:
    return [row[:n] for row, n in zip(x, LENGTHS, strict=True)]


class Form:
    """A way of writing sequences down: `write` to a leaf and the arguments, `read` what came out back to sequences."""

    def __init__(self, name: str, last: bool) -> None:
        self.name, self.last = name, last
        self.offsets = torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0)])
        self.order = torch.argsort(torch.tensor(LENGTHS), descending=True)
        # Ids with gaps, in no order, and the rows of all sequences mixed.
        self.mixed = torch.randperm(sum(LENGTHS), generator=torch.Generator().manual_seed(3))
        self.ids = torch.tensor([7, -2, 40, 3]).repeat_interleave(torch.tensor(LENGTHS))

    def write(self, parts: list[Any], junk: Any = JUNK, extent: int = 7) -> tuple[Any, dict[str, Any]]:
        match self.name:
            case "lengths" | "one vector of lengths" | "valid" | "valid of full rank" | "left padding":
                x = padded(parts, junk, extent)
                valid = torch.arange(extent) < torch.tensor(LENGTHS)[:, None]
                if self.name == "left padding":
                    x = torch.stack([one.roll(extent - n, 0) for one, n in zip(x, LENGTHS, strict=True)])
                    valid = valid.flip(1)
                x = x if self.last else x.transpose(1, 2).contiguous()
                if self.name == "valid of full rank":
                    return x, {"valid": valid[:, :, None] if self.last else valid[:, None, :]}
                if self.name == "one vector of lengths":  # for each of the position axes, of which there is one
                    return x, {"lengths": (torch.tensor(LENGTHS),)}
                return x, {"lengths": torch.tensor(LENGTHS)} if self.name == "lengths" else {"valid": valid}
            case "offsets":
                return torch.cat(parts), {"offsets": self.offsets}
            case "offsets, (1, rows, c)":
                return torch.cat(parts)[None], {"offsets": self.offsets}
            case "segments":
                return torch.cat(parts)[self.mixed], {"segments": self.ids[self.mixed]}
            case "segments, sorted":
                return torch.cat(parts), {"segments": torch.arange(4).repeat_interleave(torch.tensor(LENGTHS))}
            case "segments, (1, rows, c)":
                return torch.cat(parts)[self.mixed][None], {"segments": self.ids[self.mixed].int()}
            case "jagged":
                return torch.nested.as_nested_tensor(parts, layout=torch.jagged), {}
            case "jagged, channels second":
                return torch.nested.as_nested_tensor(parts, layout=torch.jagged).transpose(1, 2), {}
            case _:
                return nn.utils.rnn.pack_sequence(parts, enforce_sorted=False), {}

    def read(self, y: Any) -> list[Any]:
        match self.name:
            case "lengths" | "one vector of lengths" | "valid" | "valid of full rank":
                return cut(y if self.last else y.transpose(1, 2))
            case "left padding":
                y = y if self.last else y.transpose(1, 2)
                return [one[len(one) - n :] for one, n in zip(y, LENGTHS, strict=True)]
            case "offsets" | "segments, sorted":
                return list(y.split(LENGTHS))
            case "offsets, (1, rows, c)":
                return list(y[0].split(LENGTHS))
            case "segments" | "segments, (1, rows, c)":
                rows = y.reshape(-1, CHANNELS)
                return list(rows[torch.argsort(self.mixed)].split(LENGTHS))
            case "jagged":
                return list(y.unbind())
            case "jagged, channels second":
                return [one.transpose(0, 1) for one in y.unbind()]
            case _:
                filled, lengths = nn.utils.rnn.pad_packed_sequence(y, batch_first=True)
                assert lengths.tolist() == list(LENGTHS)
                return cut(filled)


FORMS = (
    "lengths",
    "one vector of lengths",
    "valid",
    "valid of full rank",
    "left padding",
    "offsets",
    "offsets, (1, rows, c)",
    "segments",
    "segments, sorted",
    "segments, (1, rows, c)",
    "jagged",
    "jagged, channels second",
    "packed sequence",
)


def made(name: str, dtype: Any, training: bool, kit: Any = tnt) -> Any:
    layer = LAYERS[name][0](kit).to(dtype).train(training)
    with torch.no_grad():
        for i, one in enumerate([*layer.parameters(), *(b for b in layer.buffers() if b.is_floating_point())]):
            one.copy_(one + torch.linspace(0.1, 0.9 + 0.1 * i, one.numel()).reshape(one.shape))
    return layer


def cotangents(parts: list[Any]) -> list[Any]:
    return [torch.cos(1.7 * one.detach().double() + i).to(one.dtype) for i, one in enumerate(parts)]


def ours(
    name: str, form: Form, dtype: Any, training: bool, **how: Any
) -> tuple[list[Any], list[Any], dict[str, Any], Any]:
    """Outputs and gradients of the sequences, gradients of the parameters, and the layer."""
    layer = made(name, dtype, training)
    leaves = [part.requires_grad_() for part in sequences(dtype)]
    x, told = form.write(leaves, **how)
    y = layer(x, **told)
    assert type(y) is type(x)
    outputs = form.read(y)
    loss = sum((one.double() * dy.double()).sum() for one, dy in zip(outputs, cotangents(outputs), strict=True))
    loss.backward()
    gradients = {name: one.grad for name, one in layer.named_parameters()}
    return [one.detach() for one in outputs], [leaf.grad for leaf in leaves], gradients, layer


def theirs(name: str, training: bool) -> tuple[list[Any], list[Any], dict[str, Any], Any]:
    """torch's own layer in float64 on the real values alone: all rows together, or sequence by sequence."""
    layer = made(name, torch.float64, training, nn)
    leaves = [part.requires_grad_() for part in sequences(torch.float64)]
    if LAYERS[name][1]:
        before = {key: value for key, value in layer.named_buffers() if value.is_floating_point()}
        outputs, after = [], []
        for leaf in leaves:
            for key, value in before.items():
                setattr(layer, key, value.clone())
            outputs.append(layer(leaf.T[None])[0].T)
            after.append({key: getattr(layer, key) for key in before})
        for key in before:  # torch stores the mean over samples
            setattr(layer, key, torch.stack([one[key] for one in after]).mean(0))
    else:
        outputs = list(layer(torch.cat(leaves)).split(LENGTHS))
    loss = sum((one * dy).sum() for one, dy in zip(outputs, cotangents(outputs), strict=True))
    loss.backward()
    return (
        [one.detach() for one in outputs],
        [leaf.grad for leaf in leaves],
        {name: one.grad for name, one in layer.named_parameters()},
        layer,
    )


TOLERANCES = {
    torch.float64: {"rtol": 1e-9, "atol": 1e-11},
    torch.float32: {"rtol": 3e-5, "atol": 3e-5},
    torch.bfloat16: {"rtol": 3e-2, "atol": 4e-2},
    torch.float16: {"rtol": 4e-3, "atol": 6e-3},
}


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", LAYERS)
def test_every_form_gives_what_torch_gives_for_the_real_values(name: str, form: str, training: bool) -> None:
    expected = theirs(name, training)
    for dtype in (torch.float64, torch.float32):
        found = ours(name, Form(form, name in LAST), dtype, training)
        close = TOLERANCES[dtype]
        for what, one, two in (
            *(("y", *pair) for pair in zip(found[0], expected[0], strict=True)),
            *(("dx", *pair) for pair in zip(found[1], expected[1], strict=True)),
            *((key, found[2][key], expected[2][key]) for key in expected[2]),
        ):
            torch.testing.assert_close(one.double(), two, msg=lambda text: f"{what}: {text}", **close)  # noqa: B023
        state = found[3].state_dict()
        for key, value in expected[3].state_dict().items():
            if value.is_floating_point():
                torch.testing.assert_close(state[key].double(), value, msg=lambda text: f"{key}: {text}", **close)  # noqa: B023
            else:
                assert state[key] == value, key


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_low_precision_is_right_to_its_rounding(name: str, dtype: Any) -> None:
    rounded = [part.to(dtype).double() for part in sequences(torch.float64)]
    for form in ("lengths", "offsets", "segments"):
        layer, wide = made(name, dtype, True), made(name, torch.float64, True)
        kept = Form(form, name in LAST)
        x, told = kept.write([part.to(dtype) for part in rounded])
        exact, _ = kept.write(rounded)
        with torch.no_grad():
            for one, two in zip(wide.parameters(), layer.parameters(), strict=True):
                one.copy_(two)
        for one, two in zip(kept.read(layer(x, **told)), kept.read(wide(exact, **told)), strict=True):
            assert one.dtype == dtype
            torch.testing.assert_close(one.double(), two, **TOLERANCES[dtype])


@pytest.mark.parametrize("name", LAYERS)
def test_35_what_padding_holds_and_how_much_there_is_changes_no_bit(name: str) -> None:
    for form, training in product(("lengths", "valid"), (True, False)):
        kept = Form(form, name in LAST)
        usual = ours(name, kept, torch.float32, training, junk=(0.0,), extent=5)
        for junk, extent in ((JUNK, 7), ((1e30,), 50)):
            found = ours(name, kept, torch.float32, training, junk=junk, extent=extent)
            for one, two in zip((*usual[0], *usual[1]), (*found[0], *found[1]), strict=True):
                assert torch.equal(one, two), (form, training, junk, extent)
            for key in usual[2]:
                assert torch.equal(usual[2][key], found[2][key]), key
            for key, value in usual[3].state_dict().items():
                assert torch.equal(found[3].state_dict()[key], value), key


@pytest.mark.parametrize("name", LAYERS)
def test_padding_comes_out_as_0_or_as_it_was(name: str) -> None:
    form = Form("lengths", name in LAST)
    x, told = form.write(sequences(torch.float32), junk=(3.0,))
    outside = ~(torch.arange(7) < torch.tensor(LENGTHS)[:, None])
    for padding, expected in (("zero", 0.0), ("keep", 3.0)):
        layer = made(name, torch.float32, True)
        layer.padding = padding
        leaf = x.clone().requires_grad_()
        y = layer(leaf, **told)
        (dx,) = torch.autograd.grad(y, leaf, torch.full_like(y, 2.0))
        y, dx = (one if form.last else one.transpose(1, 2) for one in (y, dx))
        assert (y[outside] == expected).all()
        assert (dx[outside] == (2.0 if padding == "keep" else 0.0)).all()


def test_sample_weights_count_positions_as_often_as_they_say() -> None:
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    times = torch.tensor([[1.0, 2.0, 0.0, 1.0], [3.0, 1.0, 1.0, 0.0]])
    layer = tnt.BatchNorm1d(3).double()
    y = layer(x, sample_weight=times)
    repeated = torch.cat([x[b, :, t][None].repeat(int(times[b, t]), 1) for b in range(2) for t in range(4)])
    mean, var = repeated.mean(0), repeated.var(0, correction=0)
    torch.testing.assert_close(y, (x - mean[:, None]) / torch.sqrt(var + 1e-5)[:, None])


def test_order_by_sequence_finds_the_rows_of_a_packed_sequence() -> None:
    parts = sequences(torch.float32)
    packed = nn.utils.rnn.pack_sequence(parts, enforce_sorted=False)
    order, offsets = order_by_sequence(packed.batch_sizes)
    sorted_parts = [parts[i] for i in packed.sorted_indices]
    assert torch.equal(packed.data[order], torch.cat(sorted_parts))
    assert offsets.tolist() == [0, *torch.tensor([len(one) for one in sorted_parts]).cumsum(0).tolist()]
