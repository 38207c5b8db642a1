"""Claims: intervals are right, verdicts follow the data and not the wish, and measures measure what they say."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from truenorm.lab.claims import CLAIMS
from truenorm.lab.claims.claim import Claim, Found, Statement, combined, judge
from truenorm.lab.claims.training import TARGET, steps_to
from truenorm.lab.config import Config, make_config
from truenorm.lab.intervals import t_interval, t_quantile
from truenorm.lab.measures import _gradient_shifts, gradients, padding, undo
from truenorm.lab.training import Trainer, prepare
from truenorm.lab.trial import Result, Trial

# ---- intervals and verdicts ----


def test_intervals_are_those_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    for freedom in (1, 2, 3, 4, 5, 9, 30, 101):
        for level in (0.5, 0.95, 0.999):
            assert math.isclose(t_quantile(freedom, level), stats.t.ppf((1 + level) / 2, freedom), rel_tol=1e-9)
    values = [0.3, -0.1, 0.7, 0.45, 0.2]
    expected = stats.t.interval(0.95, 4, np.mean(values), stats.sem(values))
    np.testing.assert_allclose(t_interval(values), expected, rtol=1e-12)


def about(mean: float, seeds: int) -> dict[int, float]:
    return {seed: mean + 0.01 * (-1) ** seed for seed in range(seeds)}


@pytest.mark.parametrize(
    ("mean", "seeds", "side", "threshold", "resolution", "verdict"),
    [
        (1.0, 6, "above", 0.5, 0.0, "supported"),
        (1.0, 6, "below", 0.5, 0.0, "refuted"),
        (0.0, 6, "above", 0.5, 0.0, "refuted"),  # no effect, measured well
        (0.0, 6, "below", 0.5, 0.0, "supported"),
        (0.5, 6, "above", 0.5, 0.0, "undecided"),
        (1.0, 6, "above", 0.5, 0.6, "undecided"),  # measured too coarsely
        (0.0, 6, "above", 0.5, 0.6, "undecided"),
        (1.0, 4, "above", 0.5, 0.0, "undecided"),  # too few seeds
        (0.0, 4, "above", 0.5, 0.0, "undecided"),
        (1.0, 1, "above", 0.5, 0.0, "undecided"),
        (1.0, 0, "above", 0.5, 0.0, "undecided"),
        (math.nan, 6, "above", 0.5, 0.0, "undecided"),
    ],
)
def test_the_rule_for_a_verdict(
    mean: float, seeds: int, side: Any, threshold: float, resolution: float, verdict: str
) -> None:
    statement = Statement("x", lambda found: about(mean, seeds), side, threshold, "", resolution)
    finding = judge(statement, Found([]))
    assert finding.verdict == verdict
    assert len(finding.effects) == (0 if math.isnan(mean) else seeds)


def test_a_claim_is_as_good_as_its_weakest_statement() -> None:
    means = {"supported": 1.0, "refuted": 0.0, "undecided": 0.5}

    def statement(mean: float) -> Statement:
        return Statement("x", lambda found: about(mean, 6), "above", 0.5, "")

    def verdict(*names: str) -> str:
        return combined([judge(statement(means[name]), Found([])) for name in names])

    assert verdict("supported", "supported") == "supported"
    assert verdict("supported", "undecided") == "undecided"
    assert verdict("undecided", "refuted", "supported") == "refuted"


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
    good, noise = config.norm == "batch", (config.seed * 37 % 11) / 1000
    match measure:
        case "gradients":
            return {"gradients": [1.0 if good else 1e-5 * (1 + noise), 1.0]}
        case "shift":
            return dict.fromkeys(("gradient_shift", "input_drift"), (0.1 if good else 0.3) + noise)
        case "padding":
            false = config.norm == "batch" and config.statistics_over == "all"
            return {"change": (config.max_length or 0) / 100 + noise if false else 1e-9}
        case "repadding":
            return {"same": 0.3, "less": 0.35 + noise}
        case "undo":
            return {"error": 1e-15 + noise * 1e-14}
    usable = config.lr < (100 if good else 5)
    loss = 2.3 + noise + (0 if good else 0.2 * abs(math.log10(config.init_scale)))
    loss += 0.05 * (config.norm_at == "after") + 0.5 / config.batch * good
    gap = (0.1 if good else 0.3) - 0.05 * (config.dropout > 0)
    reached = (200 if good else 500) + 1000 * noise
    metrics = {"accuracy": 0.9 if good or config.standardize else 0.5, "rmse": None}
    return {
        "diverged": None if usable else 3,
        "steps": config.steps,
        "train": {"loss": loss - gap, **metrics} if usable else None,
        "held_out": {"loss": loss, **metrics} if usable else None,
        "baseline": {"loss": 2.8, "beaten": usable},
        "parameters": 1,
        "curve": {"step": [100, reached, 2 * reached], "loss": [3, 2, 2], "held_out": [3.0, TARGET, 2.4]},
    }


def findings_of(claim: Claim, labels: dict[str, dict[str, str]], seeds: int = 6) -> str:
    """The verdict, if the results of some labels are exchanged."""
    trials: dict[str, tuple[Trial, Result]] = {}
    for grid in claim.grids(True, seeds):
        for trial in grid.trials():
            options = trial.config.model_dump()
            exchanged = {name: values.get(options[name], options[name]) for name, values in labels.items()}
            trials[trial.name] = trial, invented(trial.measure, trial.config.model_copy(update=exchanged))
    return combined(claim.judge(Found(trials.values())))


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=lambda claim: claim.name)
def test_a_claim_is_supported_where_it_is_true_and_refuted_where_labels_are_swapped(claim: Claim) -> None:
    assert findings_of(claim, {}) == "supported"
    assert findings_of(claim, {}, seeds=4) == "undecided"
    if claim.name not in WITHOUT_LABELS:
        assert findings_of(claim, SWAPPED.get(claim.name, NONE_AND_BATCH)) == "refuted"


def test_a_failed_trial_is_left_out_and_an_ambiguous_selection_is_an_error() -> None:
    trials = [Trial("train", make_config({"seed": seed, "lr": lr})) for seed in (0, 1) for lr in (0.1, 0.2)]
    found = Found((trial, None if trial is trials[0] else {"number": 1}) for trial in trials)
    assert found.by_seed(lr=0.1) == {1: {"number": 1}}
    assert found.values("lr") == [0.1, 0.2]
    with pytest.raises(ValueError, match=r"must name one trial for each seed, got several\."):
        found.by_seed()


def test_steps_to_a_loss_are_interpolated_and_limited() -> None:
    curve = {"step": [10, 20, 30], "held_out": [3.0, 2.6, 2.4]}
    assert steps_to({"curve": curve}, 2.5, 99) == 25
    assert steps_to({"curve": curve}, 3.5, 99) == 10
    assert steps_to({"curve": curve}, 2.0, 99) == 99
    assert steps_to({"curve": {"step": [10, 20], "held_out": [None, 2.0]}}, 2.5, 99) == 20


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


def test_weight_and_bias_undo_a_normalization() -> None:
    assert 0 < undo(make_config({"seed": 3}))["error"] < 1e-14
