"""`fold` on models that take another way for other arguments, in training, or through other methods."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from batch_norms import fill, norm
from fingerprint import fingerprint
from torch import Tensor, nn

import truenorm.torch as tnt

X = torch.randn(3, 4, 9)
ENDS = "; its output goes to the output of the model"


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(4, 4, 3), norm(1, 4)
        self.body = nn.Sequential(nn.Conv1d(4, 4, 3), norm(1, 4), nn.ReLU(), nn.Conv1d(4, 4, 1), norm(1, 4))


class Raw(Base):
    def forward(self, x: Tensor, raw: bool = False) -> Any:
        return self.conv(x) if raw else self.norm(self.conv(x))


class Optional(Base):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        y = self.conv(x)
        return self.norm(y) if mask is None else y * mask


class Required(Base):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        y = self.conv(x)
        return y if mask is None else self.norm(y) * mask


class InTraining(Base):
    def forward(self, x: Tensor) -> Any:
        y = self.conv(x)
        return (self.norm(y), y) if self.training else self.norm(y)


class Stores(Base):
    def forward(self, x: Tensor) -> Any:
        self.features = self.conv(x)
        return self.norm(self.features)


class Collects(Base):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Any:
        y = self.conv(x)
        self.seen.append(y)
        return self.norm(y)


class Method(Base):
    def forward(self, x: Tensor) -> Any:
        return self.norm(self.conv(x))

    def features(self, x: Tensor) -> Any:
        return self.conv(x)


class Loop(Base):
    def forward(self, x: Tensor) -> Any:
        return self.body(x)

    def first_layers(self, x: Tensor, count: int) -> Any:
        for i, layer in enumerate(self.body):
            if i < count:
                x = layer(x)
        return x


class Mode(Base):
    def forward(self, x: Tensor, mode: str = "full") -> Any:
        y = self.conv(x)
        if mode == "raw":
            return y
        if mode != "full":
            raise ValueError(mode)
        return self.norm(y)


class Depth(Base):
    def forward(self, x: Tensor, depth: int = 5) -> Any:
        for layer in list(self.body)[:depth]:
            x = layer(x)
        return x


class Both(Base):
    def forward(self, x: Tensor, one: bool = False, other: bool = False) -> Any:
        y = self.conv(x)
        return y if one and other else self.norm(y)


class Lengths(Base):
    def __init__(self) -> None:
        super().__init__()
        self.norm = norm(1, 4, own=True)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Any:
        y = self.conv(x)
        return self.norm(y) if lengths is None else self.norm(y, lengths=lengths)


class Explicit(Lengths):
    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Any:
        return self.norm(self.conv(x), lengths=lengths)


class Many(Base):
    def forward(self, x: Tensor, number: int = 0) -> Any:
        for i in range(20):
            x = x + 1 if number > i else x
        return self.norm(self.conv(x))


REFUSED: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "a flag": (Raw, X, f"Conv1d 'conv' is called without it, for another 'raw'{ENDS}"),
    "a flag that is given": (Raw, (X, False), f"Conv1d 'conv' is called without it, for another 'raw'{ENDS}"),
    "an optional tensor": (Optional, X, f"Conv1d 'conv' is called without it, for another 'mask'{ENDS}"),
    "a tensor that may be left out": (
        Required, (X, torch.ones(7)), "Conv1d 'conv' is called without it, without 'mask'; its output goes to mul"),
    "training": (
        InTraining, X,
        f"the output of Conv1d 'conv' also goes to the output of the model, in the other training mode{ENDS}"),
    "a stored output": (Stores, X, f"the output of Conv1d 'conv' also goes to the attribute 'features'{ENDS}"),
    "a list of outputs": (Collects, X, f"the output of Conv1d 'conv' also goes to the attribute 'seen'{ENDS}"),
    "a method": (Method, X, f"Conv1d 'conv' is also called by Method.features, which the forward does not use{ENDS}"),
    "a word": (Mode, X, f"Conv1d 'conv' is called without it, for another 'mode'{ENDS}"),
    "two flags": (Both, X, f"Conv1d 'conv' is called without it, for other 'one', 'other'{ENDS}"),
    "lengths that may be given": (
        Lengths, X, "called with lengths: a folded layer does not set padding to 0, for another 'lengths'" + ENDS),
    "lengths that are None": (Explicit, X, "called with lengths: a folded layer does not set padding to 0"),
    "many paths": (
        Many, X,
        "Many.forward cannot be traced: TraceError: it has more than 16 conditions, for another 'number'" + ENDS),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_another_path_would_lose_the_norm(case: str) -> None:
    make, example, reason = REFUSED[case]
    model = fill(make())
    before = fingerprint(model)
    report = tnt.fold(model, example)
    assert report.folded == ()
    assert report.left[0].outcome == reason
    assert fingerprint(model) == before
    assert getattr(model, "seen", []) == []


def test_a_depth_is_no_symbol() -> None:
    """What cannot be followed is refused: the first layers of a list, for another number of them."""
    report = tnt.fold(fill(Depth()), X)
    assert report.folded == ()
    assert report.left[1].outcome.startswith("Depth.forward cannot be traced: ")
    assert report.left[1].outcome.endswith(", for another 'depth'; its output goes to ReLU 'body.2'")


def test_a_method_that_calls_layers_in_a_loop() -> None:
    model = fill(Loop())
    report = tnt.fold(model, X)
    assert [one.name for one in report.left] == ["norm", "body.1", "body.4"]
    assert report.left[1].outcome == (
        "Conv1d 'body.0' is also called by Loop.first_layers, which the forward does not use; "
        "its output goes to ReLU 'body.2'"
    )


class Harmless(Base):
    """Other paths and methods on which the pairs stay together."""

    def forward(
        self, x: Tensor, mask: Tensor | None = None, scale: float = 1.0, mode: str = "a", twice: bool = False
    ) -> Any:
        if mask is not None:
            x = x * mask
        if mode not in ("a", "b"):
            raise ValueError(f"mode: a or b, got {mode}")
        y = self.encode(x) * scale
        if twice:
            y = self.encode(x.flip(2)) + y
        if self.training:
            y = nn.functional.dropout(y, 0.5)
        self.last = y
        return y if mode == "a" else (y, y.sum())

    def encode(self, x: Tensor) -> Any:
        return self.norm(self.conv(x))

    def predict(self, x: Tensor) -> Any:
        return self(x).argmax(1)

    def whole_body(self, x: Tensor) -> Any:
        return self.body(x)

    def freeze(self) -> None:
        for layer in self.body:
            layer.requires_grad_(False)
        self.conv.weight.requires_grad_(False)
        self.conv.requires_grad_(False)


def test_other_paths_that_keep_the_norm_are_no_obstacle() -> None:
    model = fill(Harmless()).double()
    original, x = copy.deepcopy(model), X.double()
    report = tnt.fold(model, x)
    assert [(one.name, one.into) for one in report.folded] == [("norm", "conv")], report
    for given in ({}, {"mask": x > 0}, {"scale": 3.0}, {"mode": "b"}, {"twice": True}):
        found, expected = model(x, **given), original(x, **given)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(model.predict(x), original.predict(x))


def test_a_forward_that_fixes_the_flag_is_folded() -> None:
    """What to do: the model that is deployed says which way it takes."""

    class Fixed(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Any:
            return self.inner(x, raw=False)

    model = fill(Fixed(Raw()))
    assert [one.name for one in tnt.fold(model, X).folded] == ["inner.norm"]


def test_inside_padded_it_is_refused_at_once() -> None:
    model = fill(Base().body)
    before = fingerprint(model)
    message = r"^fold: call it outside of padded, got an active context\. A folded layer does not set padding to 0\.$"
    with tnt.padded(lengths=[9, 5, 7]), pytest.raises(RuntimeError, match=message):
        tnt.fold(model, X)
    assert fingerprint(model) == before
    assert len(tnt.fold(model, X).folded) == 2
