"""The kernels in Triton against what is valid alone, in float64, and against the oracle of the core."""

import itertools
import logging
import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from oracle import oracle_backward, oracle_forward
from patterns import PATTERNS, every, odd, offset_data
from triton_cases import DTYPES, FORMS, LARGE, LAYERS, SMALL, check
from ways import ways

import truenorm.torch as tnt
from truenorm.torch._inputs import Ragged
from truenorm.torch.triton.plan import find_plan

# The largest numbers of a dtype overflow where they should, which NumPy, and so the interpreter, warns of.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
# On a GPU all combinations are run. The interpreter takes half a second for a small one: each dtype meets every layer
# and every form, and each layout and packed rows meet a large one.
ON_GPU = os.environ.get("TRUENORM_TRITON") == "cuda"
CASES = [
    (name, form, dtype, "small")
    for i, name in enumerate(LAYERS)
    for j, form in enumerate(FORMS)
    for k, dtype in enumerate(DTYPES)
    # There are six layers and seven forms: the last condition is for the form that the second one leaves out.
    if ON_GPU or (i + j + 2 * k) % 7 == 0 or (i == 0 and (j + 2 * k) % 7 == 1)
]
LARGE_CASES = [
    ("batch", "lengths, channels second"),
    ("group", "lengths, channels last"),
    ("layer", "valid, channels second"),
    ("instance", "offsets"),
]
CASES += [
    (name, form, dtype, "large")
    for name, form, dtype in itertools.product(LAYERS, FORMS, DTYPES)
    if ON_GPU or ((name, form) in LARGE_CASES and dtype == "float32")
]


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Its messages say who computed."""
    caplog.set_level(logging.DEBUG, logger="truenorm.torch")
    return caplog


@pytest.mark.parametrize(("name", "form", "dtype", "size"), CASES)
def test_agrees_with_what_is_valid_alone(name: str, form: str, dtype: str, size: str, device: str, logged: Any) -> None:
    check(name, form, DTYPES[dtype], device, SMALL if size == "small" else LARGE)
    assert logged.messages
    assert all(message.startswith("triton: ") for message in logged.messages)


def test_each_dtype_meets_every_layer_and_every_form() -> None:
    for dtype in DTYPES:
        assert {name for name, _, other, _ in CASES if other == dtype} == set(LAYERS)
        assert {form for _, form, other, _ in CASES if other == dtype} == set(FORMS)


# ---- every pattern ----

CONVENTIONS: list[dict[str, Any]] = [
    {"eps": 0.3, "center": center, "ddof": ddof, "eps_at": eps_at}
    for center, ddof, eps_at in itertools.product((True, False), (0, 1), ("var", "std"))
    if center or not ddof
]
AFFINE = [("weight", "bias"), ("weight",), ()]
REFUSED = (
    "formula: no kernel in Triton for the order of axes",
    "formula: no kernel in Triton for rows that share statistics with those of other samples",
    "formula: no kernel in Triton for sample_weight",
)

TRANSPOSED = {
    "b [c] t",
    "[b] t c",
    "b (g [c]) t",
    "b ([g] c) [t]",
    "[h] b c, affine h c",
    "b [t] c, affine b",
    "c [h] b [w]",
    "c [h] b [w] d",
    "[h] (g [c]) e [d]",
}


def in_torch(value: Any, device: str) -> Any:
    return tuple(in_torch(one, device) for one in value) if isinstance(value, tuple) else torch.tensor(value).to(device)


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns_agree_with_the_oracle(name: str, device: str, logged: Any) -> None:
    pattern, rng = PATTERNS[name], np.random.default_rng(7)
    x, dy = offset_data(rng, pattern.split), odd(rng, pattern.split)
    unweighted = ((kind, way) for kind, way in ways(pattern, rng) if way.sample_weight is None)
    crossed = enumerate(itertools.product(unweighted, CONVENTIONS, AFFINE))
    split = tuple(pattern.split[axis] for axis in pattern.weight_axes)
    for number, ((kind, way), conventions, affine) in every(
        crossed, 7 if ON_GPU else 113, 29 * list(PATTERNS).index(name)
    ):
        norm = replace(pattern.norm, **conventions)
        padding: Any = "keep" if number % 2 else "zero"
        parameters = pattern.parameters(rng, affine) if pattern.weight_shape is not None else {}
        options: dict[str, Any] = {"valid": way.valid, "padding": padding}
        options |= {key: value.reshape(split) for key, value in parameters.items()}
        y, found = oracle_forward(x, pattern.case(norm), **options)
        gradients = oracle_backward(dy, x, pattern.case(norm), moments=found, **options)
        shape = pattern.weight_shape or ()
        layer = tnt.Normalize(norm, shape, affine=bool(parameters), bias="bias" in parameters, padding=padding)
        layer = layer.double().to(device)
        with torch.no_grad():
            for key, value in parameters.items():
                getattr(layer, key).copy_(torch.from_numpy(value))
        given = torch.from_numpy(way.form(x)).to(device).requires_grad_()
        logged.clear()
        mine = layer(given, **{key: in_torch(value, device) for key, value in way.arguments.items()})
        mine.backward(torch.from_numpy(way.form(dy)).to(device))
        assert len(logged.messages) == 1
        assert logged.messages[0].startswith("triton: ") or logged.messages[0] in REFUSED, logged.messages
        wanted = [way.form(y), way.form(gradients[0])]
        wanted += [
            one.reshape(shape) for one, key in zip(gradients[1:], ("weight", "bias"), strict=True) if key in parameters
        ]
        results = [mine.detach(), given.grad, *(getattr(layer, key).grad for key in parameters)]
        for one, two in zip(results, wanted, strict=True):
            message = f"{norm}, {kind}, {affine}, {padding}"
            torch.testing.assert_close(
                one.cpu(), torch.from_numpy(np.ascontiguousarray(two)), rtol=1e-11, atol=1e-11, msg=message
            )


def test_most_patterns_have_a_kernel() -> None:
    found = {name: find_plan(pattern.norm, pattern.shape, Ragged()) for name, pattern in PATTERNS.items()}
    without = {name for name, plan in found.items() if plan == "the order of axes"}
    assert without == TRANSPOSED
