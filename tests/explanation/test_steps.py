"""An explanation shows what is computed: its steps agree with `forward` and `backward`, and with each other."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import truenorm as tn
from truenorm.explanation import examples
from truenorm.explanation.cells import fitting_cells
from truenorm.explanation.steps import Explanation

RNG = np.random.default_rng(30)
X = RNG.normal(3.0, 2.0, size=(3, 5, 4))
NORMS: dict[str, Callable[..., tn.Norm]] = {
    "batch": tn.batch,
    "layer": tn.layer,
    "rms": tn.rms,
    "instance": tn.instance,
    "group": lambda **options: tn.group(2, **options),
}
RAGGED: dict[str, dict[str, Any]] = {
    "nothing": {},
    "lengths": {"lengths": [5, 1, 3]},
    "valid": {"valid": RNG.random((3, 5)) < 0.6},
    "weights": {"sample_weight": RNG.integers(0, 3, (3, 5)).astype(float)},
}


# A statistic spread out over the elements of X that share it.
ALONG: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "batch": lambda one: one,
    "layer": lambda one: one[..., None],
    "rms": lambda one: one[..., None],
    "instance": lambda one: one[:, None],
    "group": lambda one: np.repeat(one, 2, axis=1)[:, None],
}


def steps_of(shown: Explanation) -> list[str]:
    return [step.name for step in shown.steps]


@pytest.mark.parametrize(("kind", "ragged", "eps_at"), list(product(NORMS, RAGGED, ["var", "std"])))
def test_every_step_agrees_with_forward_and_backward(kind: str, ragged: str, eps_at: str) -> None:
    for ddof, affine in product([0] if kind == "rms" else [0, 1], [True, False]):
        norm = NORMS[kind](eps_at=eps_at, eps=0.03, **({"ddof": ddof} if ddof else {}))
        parameters: dict[str, Any] = {"weight": RNG.normal(size=4), "bias": RNG.normal(size=4)} if affine else {}
        dy = RNG.normal(size=X.shape)
        out = tn.forward(X, norm, **parameters, **RAGGED[ragged])
        dx, dweight, dbias = tn.backward(dy, out)
        shown = tn.explain(X, norm, dy=dy, **parameters, **RAGGED[ragged])
        assert_allclose(shown["y"], out.y, rtol=1e-12, atol=1e-14)
        assert_allclose(shown["dx"], dx, rtol=1e-10, atol=1e-13)
        assert_array_equal(shown["count"], out.moments.count)
        xhat = tn.forward(X, norm, **RAGGED[ragged]).y
        assert_allclose(shown["xhat"], xhat, rtol=1e-12, atol=1e-14)
        valid = np.ones(X.shape, bool) if shown.steps[0].invalid is None else ~shown.steps[0].invalid
        assert_array_equal(shown["x"], np.where(valid, X, 0.0))
        spread = ALONG[kind](shown["rstd"])
        if kind != "rms":
            assert_allclose(shown["x - mean"], np.where(valid, X - ALONG[kind](shown["mean"]), 0.0), rtol=1e-12)
            assert_allclose(np.where(valid, shown["x - mean"] * spread, 0.0), xhat, rtol=1e-10, atol=1e-12)
        assert_allclose(shown["dxhat"], np.where(valid, dy * parameters.get("weight", 1.0), 0.0), rtol=1e-14)
        paths = [step.values for step in shown.steps if step.name.startswith("dx (")]
        assert len(paths) == (2 if kind == "rms" else 3)
        assert_allclose(sum(paths), shown["dx"], rtol=1e-12, atol=1e-14)
        assert_allclose(paths[0], shown["dxhat"] * spread, rtol=1e-12)
        if affine:
            assert dweight is not None
            assert dbias is not None
            assert_allclose(shown["dweight"], dweight, rtol=1e-12, atol=1e-14)
            assert_allclose(shown["dbias"], dbias, rtol=1e-12, atol=1e-14)
        if kind != "rms":
            assert_allclose(shown["mean"], out.moments.mean, rtol=1e-14)
            assert_allclose(shown["dmean"], shown["dmean (through xhat)"], rtol=1e-9, atol=1e-12)


def test_formulas_say_what_was_computed() -> None:
    def formulas(norm: tn.Norm, **arguments: Any) -> dict[str, str]:
        return {step.name: step.formula for step in tn.explain(X, norm, dy=X, **arguments).steps}

    plain = formulas(tn.batch())
    assert plain["count"] == "number of valid elements"
    assert plain["mean"] == "Σ x / count"
    assert plain["var"] == "Σ (x - mean)² / count"
    assert plain["y"] == "xhat"
    assert plain["dxhat"] == "dy"
    weighted = formulas(tn.batch(ddof=1), sample_weight=np.ones((3, 5)), weight=np.ones(4), bias=np.ones(4))
    assert weighted["count"] == "Σ s"
    assert weighted["mean"] == "Σ s · x / count"
    assert weighted["var"] == "Σ s · (x - mean)² / (count - 1)"
    assert weighted["y"] == "xhat · weight + bias"
    assert weighted["dx (through mean)"] == "s · dmean / count"
    assert weighted["dx (through var)"] == "dvar · 2 · s · (x - mean) / (count - 1)"
    about_zero = formulas(tn.rms(eps_at="std", eps=0.5), bias=np.ones(4))
    assert about_zero["var"] == "Σ x² / count"
    assert about_zero["rstd"] == "1 / (sqrt(var) + 0.5)"
    assert about_zero["xhat"] == "x · rstd"
    assert about_zero["y"] == "xhat + bias"
    assert about_zero["dvar"] == "Σ dxhat · x · (-1/2) · rstd² / sqrt(var)"
    assert "mean" not in about_zero


def test_a_composed_axis_is_named_whole() -> None:
    shown = tn.explain(X, tn.group(2), weight=np.ones(4))
    axes = {step.name: step.axes for step in shown.steps}
    assert axes["x"] == ("b", "t", "(g c)")
    assert axes["mean"] == ("b", "g")
    assert axes["weight"] == ("(g c)",)
    assert "a mean and variance over t and c, one for each b and g" in str(shown)
    assert "a mean square over c, one for each b and t" in str(tn.explain(X, tn.rms()))


def test_packed_rows_are_explained_row_by_row() -> None:
    packed = X.reshape(15, 4)[:9]
    shown = tn.explain(packed, tn.instance(), offsets=[0, 4, 9], dy=np.cos(packed))
    assert shown["mean"].shape == (2, 4)
    assert shown["dx"].shape == packed.shape
    assert shown.steps[0].axes == ("row", "c")
    assert_allclose(shown["y"], tn.forward(packed, tn.instance(), offsets=[0, 4, 9]).y, rtol=1e-12, atol=1e-14)


def test_every_form_of_rows_is_explained_in_the_order_of_x() -> None:
    packed, ids = X.reshape(15, 4)[:9], [7, 2, 2, 7, 7, 2, 7, 2, 2]
    for x, axes in (
        (packed, ("row", "c")),
        (packed[None], ("b", "row", "c")),
        (packed.reshape(9, 2, 2), ("row", "p0", "c")),
    ):
        shown = tn.explain(x, tn.instance(), segments=ids, dy=np.cos(x))
        out = tn.forward(x, tn.instance(), segments=ids)
        assert shown.steps[0].axes == axes
        assert_allclose(shown["x"], x)
        assert_allclose(shown["y"], out.y, rtol=1e-12, atol=1e-14)
        assert_allclose(shown["dx"], tn.backward(np.cos(x), out)[0], rtol=1e-9, atol=1e-12)


def test_the_axes_of_an_image_keep_their_names() -> None:
    x = RNG.normal(size=(2, 3, 4, 2))
    for told in ({"lengths": [2, 4], "along": "w"}, {"lengths": ([3, 3], [2, 4])}):
        shown = tn.explain(x, "b [h w] c", **told)
        assert shown.steps[0].axes == ("b", "h", "w", "c")
        assert (shown.averaged, shown.kept) == (("h", "w"), ("b", "c"))
        assert shown["count"].tolist() == [[6, 6], [12, 12]]
        assert shown.invalid == tuple((0, h, w) for h in range(3) for w in (2, 3))


def test_given_moments_are_said_to_be_given() -> None:
    moments = tn.measure(X, tn.batch())
    shown = tn.explain(X + 1, tn.batch(), moments=moments, dy=np.cos(X))
    assert {step.formula for step in shown.steps if step.name in ("count", "mean", "var")} == {"given"}
    assert "dvar" not in steps_of(shown)
    out = tn.forward(X + 1, tn.batch(), moments=moments)
    assert_allclose(shown["dx"], tn.backward(np.cos(X), out)[0], rtol=1e-14)


def test_the_backward_takes_the_steps_of_the_derivation() -> None:
    shown = tn.explain(examples.TABLE, tn.batch(), weight=[1, 2, 3], bias=[0, 0, 1], dy=np.eye(5, 3))
    backward = [step.name for step in shown.steps if step.part == "backward"]
    assert backward == [
        "dy",
        "dbias",
        "dweight",
        "dxhat",
        "dx (through xhat)",
        "dvar",
        "dmean (through xhat)",
        "dmean (through var)",
        "dmean",
        "dx (through var)",
        "dx (through mean)",
        "dx",
    ]


def test_positions_that_are_not_valid_are_listed_and_their_values_hidden() -> None:
    shown = tn.explain(examples.SENTENCES, tn.batch(), lengths=examples.LENGTHS)
    assert shown.invalid == ((0, 2), (0, 3))
    text = str(shown)
    assert "2 positions are not valid and ignored (shown as ·): [0, 2], [0, 3]." in text
    assert shown.as_dict()["steps"][0]["values"][0][2] == [None, None, None]


def test_all_elements_valid() -> None:
    assert "All 15 elements are valid." in str(tn.explain(examples.TABLE, tn.batch()))


def test_one_position_keeps_all_its_axes() -> None:
    shown = tn.explain(np.ones((1, 3, 2)), tn.batch(), lengths=[2])
    assert shown.invalid == ((0, 2),)
    assert "1 position is not valid and ignored (shown as ·): [0, 2]." in str(shown)
    whole = tn.explain(np.ones((2, 2, 2)), tn.batch(), lengths=[0, 2])
    assert whole.invalid == ((0, 0), (0, 1))


def test_text_is_aligned_and_carries_the_formulas() -> None:
    text = str(tn.explain(examples.TABLE, tn.batch(ddof=1, eps_at="std", eps=0.5)))
    assert "μ (mean) = Σ x / count   (shape 3)\n    c0       c1       c2\n     4  3.60000  4.20000\n" in text
    assert "σ² (var) = Σ (x - μ)² / (count - 1)" in text
    assert "rstd = 1 / (√(σ²) + 0.5)" in text
    assert "x̂ (xhat) = (x - μ) · rstd" in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_names_are_shown_as_they_are() -> None:
    shown = replace(tn.explain(examples.TABLE, tn.batch()), labels={"c": ["[red]a", "[/]", "c"]})
    assert "[red]a  [/]  c" in str(shown)


def test_no_number_is_rounded_away_or_cut_off() -> None:
    x = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 7.0], [-1.0, 0.5, 2e3]])
    text = str(tn.explain(x, tn.batch()))
    assert "4.22222  3.50000  884453" in text
    assert "0.486664  0.534522  0.00106332" in text
    wide = tn.explain(np.full((2, 12), 1.2345e-30) * np.arange(1, 13), tn.batch())
    for width in (20, 40, 60, 80, 120):
        cells = fitting_cells(wide.steps[0], {}, width)
        assert cells.width <= max(width, 34)
        assert all(word in ("…", "b0", "b1") or float(word) for row in cells.rows for word in row)


def test_large_arrays_are_shown_by_their_edges() -> None:
    text = str(tn.explain(RNG.normal(size=(200, 30)), tn.batch()))
    assert "15 of 200 rows, 7 of 30 columns are shown" in text
    assert len(text.splitlines()) < 120


class Tags(HTMLParser):
    """Checks that tags close in order, and collects the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_notebooks_get_well_formed_escaped_html() -> None:
    shown = replace(tn.explain(examples.TABLE, tn.batch()), labels={"c": ["<script>", "b&b", "c"]})
    html = shown._repr_html_()
    tags = Tags()
    tags.feed(html)
    assert tags.open == []
    assert "<script>" not in html
    assert "<script>" in tags.text
    assert "1.18585" in tags.text


def test_json_is_plain_data_even_with_nan() -> None:
    x = np.array([[1.0, np.nan], [2.0, 3.0]])
    data = json.loads(json.dumps(tn.explain(x, tn.batch(), dy=x).as_dict(), allow_nan=False))
    assert data["steps"][0]["values"] == [[1.0, None], [2.0, 3.0]]
    assert data["averaged_over"] == ["b"]
    assert data["one_for_each"] == ["c"]


def test_an_unknown_step_names_the_known_ones() -> None:
    with pytest.raises(KeyError, match="no step 'median', only x, count, mean"):
        tn.explain(examples.TABLE, tn.batch())["median"]


def test_padding_changes_the_sentences_by_known_amounts() -> None:
    all_rows, valid, layer = examples.methods()
    assert_allclose(all_rows.normalize()[examples.HOW], [1.056139, 2.119239, -0.744357], atol=5e-7)
    assert_allclose(valid.normalize()[examples.HOW], [0.778462, 1.831817, -1.415055], atol=5e-7)
    assert [method.change(32) for method in (valid, layer)] == [0.0, 0.0]
    assert all_rows.normalize(32)[examples.HOW][2] > 0 > valid.normalize(32)[examples.HOW][2]


def test_an_activation_is_refused() -> None:
    with pytest.raises(ValueError, match="explain: a norm without activation, got 'relu'"):
        tn.explain([[1.0], [2.0]], tn.batch(activation="relu"))
