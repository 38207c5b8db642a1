"""Claims: intervals are right, verdicts follow the data and not the wish, and measures measure what they say."""

from __future__ import annotations

import math
from typing import Any
from zlib import crc32

import numpy as np
import pytest

from truenorm.lab.claims import CLAIMS
from truenorm.lab.claims.claim import Bounds, Claim, Effects, Statement, TrialResults, combined, exact, headline, judge
from truenorm.lab.claims.training import TARGET, at_best_lr, largest_lr, last_finite, last_useful, steps_to
from truenorm.lab.config import Config, make_config
from truenorm.lab.intervals import t_interval, t_quantile
from truenorm.lab.layers import ForwardContext
from truenorm.lab.measures import Result, _drift, _gradient_shifts, _input_moments, gradients, padding, shift, undo
from truenorm.lab.training import Trainer, prepare
from truenorm.lab.trial import Trial

# ---- intervals and verdicts ----


def test_intervals_are_those_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats", reason="scipy, which comes with scikit-learn, is not installed")
    for freedom in (1, 2, 3, 4, 5, 9, 30, 101):
        for level in (0.5, 0.95, 0.999):
            assert math.isclose(t_quantile(freedom, level), stats.t.ppf((1 + level) / 2, freedom), rel_tol=1e-9)
    values = [0.3, -0.1, 0.7, 0.45, 0.2]
    expected = stats.t.interval(0.95, 4, np.mean(values), stats.sem(values))
    np.testing.assert_allclose(t_interval(values), expected, rtol=1e-12)


def about(mean: float, seeds: int, width: float = 0.0) -> Effects:
    """Effects near a mean; each is known to lie in an interval of this width."""
    values = {seed: mean + 0.01 * (-1) ** seed for seed in range(seeds)}
    return {seed: Bounds(value - width / 2, value + width / 2) for seed, value in values.items()}


def stated(effects: Effects, side: Any = "above", threshold: float = 0.5) -> Statement:
    return Statement("x", lambda found: effects, side, threshold, "")


@pytest.mark.parametrize(
    ("effects", "side", "verdict"),
    [
        (about(1.0, 6), "above", "supported"),
        (about(1.0, 6), "below", "refuted"),
        (about(0.0, 6), "above", "refuted"),  # no effect, measured well
        (about(0.0, 6), "below", "supported"),
        (about(0.5, 6), "above", "undecided"),
        (about(1.0, 6, width=1.2), "above", "undecided"),  # measured too coarsely
        (about(0.0, 6, width=1.2), "above", "undecided"),
        (about(1.0, 4), "above", "undecided"),  # too few seeds
        (about(0.0, 4), "above", "undecided"),
        (about(1.0, 1), "above", "undecided"),
        ({}, "above", "undecided"),
        (exact(dict.fromkeys(range(6), math.nan)), "above", "undecided"),
        (exact(dict.fromkeys(range(6), 0.0)), "above", "undecided"),  # what never varies is no measurement
        (exact(dict.fromkeys(range(6), 1.0)), "above", "undecided"),
        # One seed is known only on one side: only what that side allows.
        ({**about(1.0, 6), 0: Bounds(0.9, math.inf)}, "above", "supported"),
        ({**about(0.0, 6), 0: Bounds(0.1, math.inf)}, "above", "undecided"),
        ({**about(0.0, 6), 0: Bounds(-math.inf, 0.1)}, "above", "refuted"),
        ({**about(1.0, 6), 0: Bounds(-math.inf, 1.0)}, "above", "undecided"),
    ],
)
def test_the_rule_for_a_verdict(effects: Effects, side: Any, verdict: str) -> None:
    finding = judge(stated(effects, side), TrialResults([]))
    assert finding.verdict == verdict
    assert finding.effects == tuple(effects.values())


def test_a_seed_without_an_effect_is_not_left_out() -> None:
    found = TrialResults((Trial("undo", make_config({"seed": seed})), None) for seed in range(7))
    finding = judge(stated(about(1.0, 6)), found)
    assert (finding.verdict, finding.seeds, finding.known) == ("undecided", "6 of 7", 6)
    assert (finding.mean_text, finding.interval_text) == ("unknown", "unbounded")
    whole = judge(stated(about(1.0, 7)), found)
    assert (whole.verdict, whole.seeds, whole.mean_text) == ("supported", "7", "1")


def test_bounds_are_intervals_of_their_own() -> None:
    effects = {seed: Bounds(low, low + 1 + 0.1 * low) for seed, low in enumerate((1.0, 1.3, 0.8, 1.1, 1.2))}
    finding = judge(stated(effects), TrialResults([]))
    assert finding.low == t_interval([one.low for one in effects.values()])[0]
    assert finding.high == t_interval([one.high for one in effects.values()])[1]
    assert finding.mean == pytest.approx(1.08 + 0.5 + 0.054)
    upper = judge(stated({**effects, 0: Bounds(-math.inf, 2.0)}), TrialResults([]))
    assert (upper.low, upper.interval_text) == (-math.inf, f"below {upper.high:.3g}")


def test_a_claim_with_several_statements() -> None:
    """Supported and refuted need all statements; intervals of k statements are wider."""
    means = {"supported": 1.0, "refuted": 0.0, "undecided": 0.5}

    def found_out(*names: str) -> tuple[str, str]:
        statements = tuple(stated(about(means[name], 6)) for name in names)
        findings = Claim("x", "x", "", lambda quick, seeds: [], statements).judge(TrialResults([]))
        assert [one.verdict for one in findings] == list(names)
        for one in findings:
            values = [value.low for value in one.effects]
            assert (one.low, one.high) == t_interval(values, 1 - 0.05 / len(names))
        return combined(findings), headline(findings)

    assert found_out("supported", "supported") == ("supported", "supported")
    assert found_out("refuted", "refuted", "refuted") == ("refuted", "refuted")
    assert found_out("supported", "undecided") == ("undecided", "undecided (1 supported, 1 undecided)")
    assert found_out("refuted", "undecided") == ("undecided", "undecided (1 refuted, 1 undecided)")
    assert found_out("supported", "refuted", "supported") == ("mixed", "mixed (2 supported, 1 refuted)")
    mixed = "mixed (1 supported, 1 refuted, 1 undecided)"
    assert found_out("undecided", "refuted", "supported") == ("mixed", mixed)


# ---- every claim, with invented results ----

# Which labels to exchange: the claim must then be refuted.
SWAPPED: dict[str, dict[str, dict[str, str]]] = {
    "placement": {"norm_at": {"before": "after", "after": "before"}},
    "small-batches": {"norm": {"batch": "layer", "layer": "batch"}},
}
NONE_AND_BATCH = {"norm": {"none": "batch", "batch": "none"}}
WITHOUT_LABELS = {"padding", "layer-norm", "valid-rows", "undo"}  # they compare nothing between norms


def invented(measure: str, config: Config) -> Result:
    """A result of a world where every claim is true."""
    good, noise = config.norm == "batch", crc32(repr(config).encode()) % 11 / 10_000
    match measure:
        case "gradients":
            return {"gradients": [1 + noise if good else 10 ** (-config.depth / 4), 1.0]}
        case "shift":
            return dict.fromkeys(("gradient_shift", "input_drift"), (0.1 if good else 0.3) + noise)
        case "padding":
            false = config.norm == "batch" and config.statistics_over == "all"
            return {"change": (config.max_length or 0) / 100 + noise if false else 1e-9 * (1 + noise)}
        case "repadding":
            return {"same": 0.3, "less": 0.35 + noise}
        case "undo":
            return {"error": 1e-15 + noise * 1e-14}
    usable = config.lr < (100 if good else 5) * (1 + 5 * noise)
    loss = 2.3 + noise + (0 if good else 0.2 * abs(math.log10(config.init_scale)))
    loss += 0.05 * (config.norm_at == "after") + 0.5 / config.batch * good
    gap = (0.1 if good else 0.3) - 0.05 * (config.dropout > 0) + noise
    best_lr = 0.003 if config.task == "table" else 1.0
    reached = ((200 if good else 500) + 1000 * noise) * (1 + abs(math.log2(config.lr / best_lr)))
    loss += 0.1 * abs(math.log10(config.lr / best_lr))
    metrics = {"accuracy": (0.9 if good or config.standardize else 0.5) + noise, "rmse": None}
    return {
        "diverged": None if usable else 3,
        "steps": config.steps,
        "train": {"loss": loss - gap, **metrics} if usable else None,
        "held_out": {"loss": loss, **metrics} if usable else None,
        "baseline": {"loss": 2.8, "beaten": usable},
        "parameters": 1,
        "curve": {"step": [100, reached, 2 * reached], "loss": [3, 2, 2], "held_out": [3.0, TARGET, 2.4]},
    }


def found_in(claim: Claim, labels: dict[str, dict[str, str]], seeds: int = 6) -> dict[str, tuple[Trial, Result | None]]:
    """The invented trials of a claim, if the results of some labels are exchanged."""
    trials: dict[str, tuple[Trial, Result | None]] = {}
    for grid in claim.grids(True, seeds):
        for trial in grid.trials():
            options = trial.config.model_dump()
            exchanged = {name: values.get(options[name], options[name]) for name, values in labels.items()}
            trials[trial.name] = trial, invented(trial.measure, trial.config.model_copy(update=exchanged))
    return trials


def verdict_of(claim: Claim, labels: dict[str, dict[str, str]], seeds: int = 6) -> str:
    return combined(claim.judge(TrialResults(found_in(claim, labels, seeds).values())))


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=lambda claim: claim.name)
def test_a_claim_is_supported_where_it_is_true_and_refuted_where_labels_are_swapped(claim: Claim) -> None:
    assert verdict_of(claim, {}) == "supported"
    assert verdict_of(claim, {}, seeds=4) == "undecided"
    if claim.name not in WITHOUT_LABELS:
        refuted = "mixed" if claim.name == "regularization" else "refuted"  # dropout still regularizes
        assert verdict_of(claim, SWAPPED.get(claim.name, NONE_AND_BATCH)) == refuted


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["initial-weights", "gradients", "regularization", "inputs", "padding", "small-batches"]
)
def test_what_is_compared_shares_what_the_page_says(name: str) -> None:
    """Examples, split, initial weights and batches of one seed, apart from what the claim changes."""
    first: Trainer | None = None
    for trial in {trial.name: trial for grid in CLAIMS[name].grids(True, 1) for trial in grid.trials()}.values():
        one = trial.config
        trainer = Trainer(one, prepare(one))
        first = first or trainer
        for part in ("train", "held_out"):
            np.testing.assert_array_equal(getattr(trainer.data, part).targets, getattr(first.data, part).targets)
        if one.batch == first.config.batch:
            for step in (0, 1, 5000):
                np.testing.assert_array_equal(trainer.batches[step].targets, first.batches[step].targets)
        for key, value in trainer.network.parameters.items():
            layer, kind = key.rsplit(".", 1)
            if layer.startswith("norm") or (layer == "output" and one.depth != first.config.depth):
                continue
            if (other := first.network.parameters.get(key)) is not None:
                rows = min(len(value), len(other))  # of the positions
                scaled = layer.startswith("linear") and kind == "weight"
                factor = one.init_scale / first.config.init_scale if scaled else 1.0
                np.testing.assert_allclose(value[:rows], other[:rows] * factor, rtol=1e-6)
                assert np.ptp(value) > 0 or kind == "bias"


def spoiled(result: Result) -> Result:
    """A training that diverged; another measure with null for every number, as the file of a trial has it for NaN."""
    if "curve" in result:
        return result | {"diverged": 1, "train": None, "held_out": None, "baseline": {"loss": 2.8, "beaten": False}}
    return {key: [None] * len(value) if isinstance(value, list) else None for key, value in result.items()}


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=lambda claim: claim.name)
def test_trials_that_are_missing_or_without_numbers_decide_nothing(claim: Claim) -> None:
    trials = list(found_in(claim, {}).values())
    first = min(trial.config.seed for trial, _ in trials)
    missing = claim.judge(TrialResults((trial, None if trial.config.seed == first else one) for trial, one in trials))
    assert {(finding.verdict, len(finding.effects)) for finding in missing} == {("undecided", 6)}
    known = 0 if claim.name in ("convergence", "placement", "inputs") else 5  # the best rate depends on all seeds
    assert {finding.known for finding in missing} == {known}
    if claim.name != "convergence":  # its curves are those of before the divergence
        useless = claim.judge(TrialResults((trial, spoiled(one)) for trial, one in trials if one is not None))
        assert {finding.verdict for finding in useless} == {"undecided"}


def test_a_failed_trial_is_left_out_and_an_ambiguous_selection_is_an_error() -> None:
    trials = [Trial("train", make_config({"seed": seed, "lr": lr})) for seed in (0, 1) for lr in (0.1, 0.2)]
    found = TrialResults((trial, None if trial is trials[0] else {"number": 1}) for trial in trials)
    assert found.by_seed(lr=0.1) == {1: {"number": 1}}
    assert found.values("lr") == [0.1, 0.2]
    assert found.seeds == {0, 1}
    with pytest.raises(ValueError, match=r"must name one trial for each seed, got several\."):
        found.by_seed()


# ---- convergence and learning rates ----


def test_steps_to_a_loss_are_interpolated_and_limited() -> None:
    curve = {"step": [10, 20, 30], "held_out": [3.0, 2.6, 2.4]}
    assert steps_to({"curve": curve}, 2.5, 99) == (25, 25)
    assert steps_to({"curve": curve}, 3.5, 99) == (10, 10)
    assert steps_to({"curve": curve}, 2.0, 99) == (99, math.inf)
    assert steps_to({"curve": {"step": [10, 20], "held_out": [None, 2.0]}}, 2.5, 99) == (20, 20)


@pytest.mark.parametrize("reach", ["neither", "batch and most without"])
def test_trainings_that_never_reach_the_target_only_give_bounds(reach: str) -> None:
    trials = found_in(claim := CLAIMS["convergence"], {})
    for name, (trial, result) in trials.items():
        assert result is not None
        config = trial.config
        never = reach == "neither" or (config.norm == "none" and config.seed % 6 == 0)
        first = (100 if config.norm == "batch" else 400) * (1 + abs(math.log2(config.lr))) + config.seed % 10
        curve = {"step": [first, config.steps], "loss": [3, 3], "held_out": [3.0, 3.0] if never else [2.4, 2.4]}
        trials[name] = trial, result | {"curve": curve}
    for finding in claim.judge(TrialResults(trials.values())):
        assert finding.verdict == ("undecided" if reach == "neither" else "supported")
        assert finding.high == math.inf
        assert math.isfinite(finding.low) == (reach != "neither")


def trained(lr: float, seed: int, **result: Any) -> tuple[Trial, Result]:
    return Trial("train", make_config({"lr": lr, "seed": seed})), {"diverged": None, "score": 0.0, **result}


def test_the_best_rate_of_a_seed_is_chosen_by_the_others() -> None:
    scores: dict[float, tuple[int, ...]] = {0.1: (9, 9, 9), 0.2: (1, 1, 7), 0.4: (2, 2, 2), 0.8: (9, 9, 9)}

    def best(scores: dict[float, tuple[int, ...]]) -> Effects:
        found = TrialResults(
            trained(lr, seed, score=one) for lr, some in scores.items() for seed, one in enumerate(some)
        )
        return at_best_lr(found, lambda one: one["score"], lambda one: Bounds(one["score"], one["score"]))

    # Seeds 0 and 1 are judged at 0.4, the best of (1, 7) and (2, 2). Seed 2 is judged at 0.2: that is its worst.
    assert best(scores) == {0: (2, 2), 1: (2, 2), 2: (7, 7)}
    del scores[0.8]
    assert best(scores) == {0: (-math.inf, 2), 1: (-math.inf, 2), 2: (7, 7)}  # a larger one may be better
    scores[0.1] = (9, 9)
    assert best(scores) == {}


@pytest.mark.parametrize(
    ("diverged", "losses", "stable", "useful"),
    [
        ("..xx", [2.5, 2.6, 3.0, 3.0], (2, 4), (2, 4)),
        ("....", [2.5, 2.6, 2.6, 3.0], (8, math.inf), (4, 8)),
        ("....", [3.0, 2.6, 2.6, 2.7], (8, math.inf), (8, math.inf)),  # the smallest is too slow to learn anything
        ("xxxx", [3.0, 3.0, 3.0, 3.0], (0, 1), (0, 1)),
        ("..x.", [3.0, 2.6, 3.0, 2.7], (2, 4), (2, 4)),
    ],
)
def test_the_largest_rate_lies_between_two_that_were_tried(
    diverged: str, losses: list[float], stable: tuple[float, float], useful: tuple[float, float]
) -> None:
    results = [
        trained(
            lr,
            3,
            diverged=5 if mark == "x" else None,
            held_out=None if mark == "x" else {"loss": loss},
            baseline={"loss": 2.8, "beaten": mark == "." and loss < 2.8},
        )
        for lr, mark, loss in zip((1.0, 2.0, 4.0, 8.0), diverged, losses, strict=True)
    ]
    for last, (low, high) in ((last_finite, stable), (last_useful, useful)):
        expected = math.log2(low) if low else -math.inf, math.log2(high) if math.isfinite(high) else math.inf
        assert largest_lr(TrialResults(results), "batch", last) == {3: expected}
    assert largest_lr(TrialResults([*results[:3], (results[3][0], None)]), "batch", last_finite) == {}


# ---- measures ----


def test_the_gradient_without_a_norm_scales_with_the_weights() -> None:
    """ReLU is homogeneous: from the last layer to the first, the gradient meets depth - 1 matrices.

    The weights are small: then all logits are nearly 0, and the gradient at the logits is the same for both scales.
    """
    ratios = []
    for scale in (0.02, 0.01):
        config = make_config({"norm": "none", "activation": "relu", "depth": 6, "hidden": 20, "init_scale": scale})
        sizes = gradients(config)["gradients"]
        assert len(sizes) == 6
        ratios.append(sizes[0] / sizes[-1])
    assert math.isclose(ratios[1] / ratios[0], 0.5**5, rel_tol=1e-4)


@pytest.mark.parametrize(
    ("options", "affected"),
    [
        ({"norm": "batch", "statistics_over": "all"}, True),
        ({"norm": "batch", "statistics_over": "valid"}, False),
        ({"norm": "layer", "statistics_over": "all"}, False),
    ],
)
def test_padding_changes_what_batch_norm_over_all_positions_returns(options: dict[str, Any], affected: bool) -> None:
    short, long = (
        padding(make_config({"task": "gender", "max_length": length, **options}))["change"] for length in (11, 44)
    )
    assert (0.1 < short < long) if affected else max(short, long) < 1e-5


def test_the_gradient_shift_is_measured_without_a_trace() -> None:
    trainer = Trainer(config := make_config({"depth": 3, "hidden": 10, "lr": 0.5}), prepare(config))
    for _ in range(3):
        before, batch = trainer.network.flat_parameters.copy(), trainer.batches[trainer.step]
        trainer.train_step()
    arrays = {name: np.copy(value) for name, value in trainer.state()[0].items()}
    moved = _gradient_shifts(trainer, batch, before, ["linear2", "linear3"])
    after = trainer.state()[0]
    assert arrays.keys() == after.keys()
    for name, value in arrays.items():
        np.testing.assert_array_equal(after[name], value)
    assert all(0.001 < one < 2 for one in moved)
    unmoved = _gradient_shifts(trainer, batch, trainer.network.flat_parameters.copy(), ["linear2", "linear3"])
    assert unmoved == [0.0, 0.0]


@pytest.mark.parametrize("norm", ["none", "batch", "layer"])
def test_inputs_that_no_step_moves_do_not_drift(norm: str) -> None:
    """Also with batch norm, whose running statistics are far from those of the batch before the first step."""
    options = {"depth": 3, "hidden": 10, "steps": 20, "norm": norm, "schedule": "constant"}
    assert shift(make_config({**options, "lr": 1e-20}))["input_drift"] < 1e-6
    assert shift(make_config({**options, "lr": 0.3}))["input_drift"] > 1e-3


def test_channels_that_move_apart_do_not_cancel() -> None:
    before = np.array([0.0, 0.0]), np.array([3.0, 4.0])
    size = math.sqrt((9 + 16) / 2)
    assert _drift(before, before) == 0
    assert _drift(before, (np.array([1.0, -1.0]), before[1])) == pytest.approx(1 / size)
    assert _drift(before, (before[0], np.array([4.0, 3.0]))) == pytest.approx(1 / size)


def test_inputs_are_measured_with_batch_statistics_and_without_a_trace() -> None:
    trainer = Trainer(config := make_config({"depth": 2, "hidden": 10}), prepare(config))
    trainer.train_step()
    arrays = {name: np.copy(value) for name, value in trainer.state()[0].items()}
    probe = trainer.data.held_out.select(np.arange(50))
    mean, std = _input_moments(trainer.network, probe)["linear2"]
    for name, value in trainer.state()[0].items():
        np.testing.assert_array_equal(arrays[name], value)
    layers = trainer.network.layers
    z = layers["linear1"].forward(layers["embed"].forward(probe.x, ForwardContext()), ForwardContext())
    weight, bias = (trainer.network.parameters[f"norm1.{one}"] for one in ("weight", "bias"))
    y = np.tanh((z - z.mean(0)) / np.sqrt(z.var(0) + 1e-5) * weight + bias)
    np.testing.assert_allclose(mean, y.mean(0), atol=1e-6)
    np.testing.assert_allclose(std, y.std(0), atol=1e-6)


def test_weight_and_bias_undo_a_normalization() -> None:
    assert 0 < undo(make_config({"seed": 3}))["error"] < 1e-14
