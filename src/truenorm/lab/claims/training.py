"""Claims about training with batch norm: speed, learning rates, initial weights, regularization, place, batch size."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from truenorm.lab.claims.claim import UNKNOWN, Bounds, Claim, Effects, Statement, TrialResults, difference, exact
from truenorm.lab.grid import Grid
from truenorm.lab.measures import Result

FIRST_SEED = 1000  # results of smaller seeds were seen while the claims were written
TARGET = 2.5  # nats, held out: guessing by the frequencies of the characters gives about 2.8
Axes = Mapping[str, Sequence[Any]]  # of a part of a grid
WORDS: Axes = {"hidden": (50,), "embedding": (4,), "schedule": ("constant",)}
SHALLOW, DEEP = 2, 8


def grid(measure: str, seeds: int, *parts: Axes, **axes: Sequence[Any]) -> Grid:
    options = {name: tuple(values) for part in (*parts, axes) for name, values in part.items()}
    return Grid(measure, {**options, "seed": tuple(range(FIRST_SEED, FIRST_SEED + seeds))})


def capped_loss(result: Result) -> float:
    """The final held-out loss, but at most that of a constant prediction, also if the training diverged.

    A network can be no more useless than that.
    """
    baseline = float(result["baseline"]["loss"])
    return baseline if result["held_out"] is None else min(float(result["held_out"]["loss"]), baseline)


CAPPED = "A loss above that of a constant prediction, or of a training that diverged, counts as that."


def capped_losses(found: TrialResults, **options: Any) -> Effects:
    return exact({seed: capped_loss(result) for seed, result in found.by_seed(**options).items()})


# ---- faster convergence ----


def steps_to(result: Result, target: float, budget: int) -> Bounds:
    """The steps until the held-out loss reaches the target, interpolated; more than the budget if it never does."""
    curve = result["curve"]
    before, height = 0, math.inf
    for step, value in zip(curve["step"], curve["held_out"], strict=True):
        if value is not None and value <= target:
            reached = float(step)
            if math.isfinite(height):
                reached = float(before + (step - before) * (height - target) / (height - value))
            return Bounds(reached, reached)
        before, height = step, math.inf if value is None else value
    return Bounds(float(budget), math.inf)


def at_best_lr(
    found: TrialResults, rank: Callable[[Result], float], value: Callable[[Result], Bounds], **options: Any
) -> Effects:
    """The value at the learning rate with the lowest mean rank.

    The rate of a seed is the one that is best for the other seeds, so that no seed gains from the choice. If it is the
    smallest or the largest, a better one may lie beyond it: then the value, of which less is better, is only an upper
    bound.
    """
    lrs: list[float] = found.values("lr", **options)
    by_lr = [found.by_seed(lr=lr, **options) for lr in lrs]
    if any(results.keys() != found.seeds for results in by_lr):
        return {}  # trials are missing: which rate is best is not known
    chosen: dict[int, Bounds] = {}
    for seed in found.seeds if len(found.seeds) > 1 else ():
        means = [statistics.fmean(rank(results[other]) for other in found.seeds - {seed}) for results in by_lr]
        best = means.index(min(means))
        low, high = value(by_lr[best][seed])
        chosen[seed] = Bounds(low if 0 < best < len(lrs) - 1 else -math.inf, high)
    return chosen


BEST_RATE = (
    "each at the learning rate that is best for it: for each seed, the rate with the best mean of the other seeds. If "
    "that is the smallest or the largest rate that was tried, a better one may lie beyond it, and the result is only a "
    "bound"
)


def speed_up(depth: int) -> Callable[[TrialResults], Effects]:
    def effect(found: TrialResults) -> Effects:
        budget = max(found.values("steps", depth=depth), default=0)

        def steps(result: Result) -> Bounds:
            low, high = steps_to(result, TARGET, budget)
            return Bounds(math.log2(low), math.log2(high))

        without, normalized = (
            at_best_lr(found, lambda one: steps(one).low, steps, norm=norm, depth=depth) for norm in ("none", "batch")
        )
        return difference(without, normalized)

    return effect


def convergence_grids(quick: bool, seeds: int) -> list[Grid]:
    lrs, steps = ((0.1, 0.3, 1.0, 3.0), 600) if quick else ((0.03, 0.1, 0.3, 1.0, 3.0), 2000)
    both: Axes = {"norm": ("none", "batch"), "lr": lrs, "steps": (steps,)}
    return [grid("train", seeds, WORDS, both, depth=(depth,)) for depth in (SHALLOW, DEEP)]


CONVERGENCE = Claim(
    "convergence",
    "Batch norm makes training converge faster.",
    f"Steps until the held-out loss (of 1,024 examples) of the character network is {TARGET} nats, without and with "
    f"batch norm, {BEST_RATE}. Of a training that never gets there it is only known that it needs more steps than it "
    "had. The effect is log2 of the steps without over the steps with batch norm: 1 is twice as fast. Steps, not "
    "seconds: a step with batch norm takes longer.",
    convergence_grids,
    tuple(
        Statement(
            f"With {depth} hidden layers, training without batch norm needs more than 1.1 times the steps.",
            speed_up(depth),
            "above",
            math.log2(1.1),
            "log2 of the ratio of steps",
        )
        for depth in (SHALLOW, DEEP)
    ),
)


# ---- higher learning rates ----


def largest_lr(found: TrialResults, norm: str, last: Callable[[Sequence[Result]], int]) -> Effects:
    """log2 of the largest learning rate for which something holds: it lies between two of the rates that were tried.

    last   the results at all rates, from the smallest -> the index of the last for which it holds, or -1
    """
    lrs = found.values("lr", norm=norm)
    by_lr = [found.by_seed(norm=norm, lr=lr) for lr in lrs]
    limits = [-math.inf, *map(math.log2, lrs), math.inf]
    largest: dict[int, Bounds] = {}
    for seed in found.seeds:
        if all(seed in results for results in by_lr):
            index = last([results[seed] for results in by_lr])
            largest[seed] = Bounds(limits[index + 1], limits[index + 2])
    return largest


def last_finite(results: Sequence[Result]) -> int:
    """The last rate before the first at which the training diverges."""
    return next((index for index, one in enumerate(results) if one["diverged"] is not None), len(results)) - 1


def last_useful(results: Sequence[Result]) -> int:
    """From the best rate upwards, the last before the first at which the network ends no better than a constant."""
    losses = [capped_loss(one) for one in results]
    index = losses.index(min(losses))
    if not results[index]["baseline"]["beaten"]:
        return -1
    while index + 1 < len(results) and results[index + 1]["baseline"]["beaten"]:
        index += 1
    return index


def higher_lr(last: Callable[[Sequence[Result]], int]) -> Callable[[TrialResults], Effects]:
    return lambda found: difference(largest_lr(found, "batch", last), largest_lr(found, "none", last))


def lr_grids(quick: bool, seeds: int) -> list[Grid]:
    lrs = [2.0 ** (power / 2) for power in range(-2, 17)]
    fixed: Axes = {"depth": (SHALLOW,), "steps": (200 if quick else 500,), "activation": ("relu",)}
    return [grid("train", seeds, WORDS, fixed, norm=("none", "batch"), lr=lrs)]


LEARNING_RATE = Claim(
    "learning-rate",
    "Batch norm allows higher learning rates.",
    "Two limits of the learning rate of a network with ReLU (with tanh a training hardly ever diverges). The training "
    "does not diverge: its loss stays finite, as it does at all smaller rates. It still learns: from the best rate "
    "upwards, it ends with a held-out loss below that of a constant prediction. The effect is log2 of the ratio of "
    "the limits. A limit lies between two of the rates that were tried, so each effect is only known within bounds.",
    lr_grids,
    (
        Statement(
            "The largest rate that does not diverge is more than twice as high with batch norm.",
            higher_lr(last_finite),
            "above",
            1.0,
            "log2 of the ratio of learning rates",
        ),
        Statement(
            "The largest rate that still learns is more than twice as high with batch norm.",
            higher_lr(last_useful),
            "above",
            1.0,
            "log2 of the ratio of learning rates",
        ),
    ),
)


# ---- initial weights ----


def sensitivity(found: TrialResults, norm: str) -> Effects:
    """How much the final loss differs between the scales of the initial weights; unknown if no scale learns."""
    by_scale = [found.by_seed(norm=norm, init_scale=scale) for scale in found.values("init_scale", norm=norm)]
    spread: dict[int, float | None] = {}
    for seed in found.seeds:
        if all(seed in results for results in by_scale):
            results = [one[seed] for one in by_scale]
            losses = [capped_loss(one) for one in results]
            spread[seed] = max(losses) - min(losses) if any(one["baseline"]["beaten"] for one in results) else None
    return exact(spread)


def scale_grids(quick: bool, seeds: int) -> list[Grid]:
    scales = (0.02, 1.0, 50.0) if quick else (0.02, 0.1, 0.3, 1.0, 3.0, 10.0, 50.0)
    fixed: Axes = {"depth": (SHALLOW,), "steps": (500 if quick else 1500,), "lr": (0.3,)}
    return [grid("train", seeds, WORDS, fixed, norm=("none", "batch"), init_scale=scales)]


INITIAL_WEIGHTS = Claim(
    "initial-weights",
    "Batch norm makes training less sensitive to the initial weights.",
    "The initial weights of the hidden layers are multiplied by 0.02 to 50. The sensitivity is the highest minus the "
    f"lowest final held-out loss, in nats. {CAPPED} A seed for which a setting learns at no scale has no effect. The "
    "learning rate is always 0.3: of those that the claim convergence tries, it gave both settings their lowest mean "
    "final loss with weights of the usual size.",
    scale_grids,
    (
        Statement(
            "The sensitivity with batch norm is lower by more than 0.05 nats.",
            lambda found: difference(sensitivity(found, "none"), sensitivity(found, "batch")),
            "above",
            0.05,
            "nats",
        ),
    ),
)


# ---- regularization ----


def gap(found: TrialResults, **options: Any) -> Effects:
    """The held-out loss minus the training loss; a training that diverged has none."""
    return exact(
        {
            seed: None if one["held_out"] is None else one["held_out"]["loss"] - one["train"]["loss"]
            for seed, one in found.by_seed(**options).items()
        }
    )


def narrower(than: dict[str, Any], setting: dict[str, Any]) -> Callable[[TrialResults], Effects]:
    return lambda found: difference(gap(found, **than), gap(found, **setting))


def lower(than: dict[str, Any], setting: dict[str, Any]) -> Callable[[TrialResults], Effects]:
    return lambda found: difference(capped_losses(found, **than), capped_losses(found, **setting))


def regularization_grids(quick: bool, seeds: int) -> list[Grid]:
    fixed: Axes = {"task": ("table",), "data": ("students",), "hidden": (64,), "depth": (2,)}
    steps = (800 if quick else 3000,)
    return [grid("train", seeds, fixed, steps=steps, norm=("none", "batch"), dropout=(0.0, 0.5))]


NOTHING, BATCH_NORM, DROPOUT, BOTH = (
    {"norm": norm, "dropout": dropout} for dropout in (0.0, 0.5) for norm in ("none", "batch")
)

REGULARIZATION = Claim(
    "regularization",
    "Batch norm regularizes, as dropout does.",
    "The gap: held-out loss minus training loss, both in evaluation mode, of a network with two layers of 64 units, "
    "for the table students (240 rows to train on). The effect is by how much the gap is narrower, in nats. A gap also "
    "narrows if a network only fits worse: the effect of the last five statements is by how much the held-out loss is "
    f"lower. {CAPPED}",
    regularization_grids,
    (
        *(
            Statement(text, narrower(*compared), "above", threshold, "nats")
            for text, compared, threshold in (
                ("Batch norm alone narrows the gap by more than 0.02 nats.", (NOTHING, BATCH_NORM), 0.02),
                ("Dropout alone narrows it by more than 0.02 nats.", (NOTHING, DROPOUT), 0.02),
                ("Batch norm narrows it by more than 0.02 nats beside dropout, too.", (DROPOUT, BOTH), 0.02),
                ("Dropout narrows it by more than 0.02 nats beside batch norm, too.", (BATCH_NORM, BOTH), 0.02),
                (
                    "Batch norm alone narrows it as much as dropout alone, or less by not more than 0.02 nats.",
                    (DROPOUT, BATCH_NORM),
                    -0.02,
                ),
            )
        ),
        *(
            Statement(text, lower(*compared), "above", -0.02, "nats")
            for text, compared in (
                ("Batch norm alone does not raise the held-out loss by more than 0.02 nats.", (NOTHING, BATCH_NORM)),
                ("Dropout alone does not raise it by more than 0.02 nats.", (NOTHING, DROPOUT)),
                ("Batch norm does not raise it by more than 0.02 nats beside dropout.", (DROPOUT, BOTH)),
                ("Dropout does not raise it by more than 0.02 nats beside batch norm.", (BATCH_NORM, BOTH)),
                (
                    "With batch norm alone it is not higher than with dropout alone by more than 0.02 nats.",
                    (DROPOUT, BATCH_NORM),
                ),
            )
        ),
    ),
)


# ---- inputs ----


def input_grids(quick: bool, seeds: int) -> list[Grid]:
    lrs, steps = ((0.0003, 0.003, 0.03, 0.3), 400) if quick else ((0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3), 2000)
    fixed: Axes = {"task": ("table",), "data": ("students",), "lr": lrs, "steps": (steps,)}
    return [grid("train", seeds, fixed, standardize=(True, False), norm=("none", "batch"))]


def errors(result: Result) -> Bounds:
    """The share of held-out examples that are classified wrongly; unknown if the training diverged."""
    share = None if result["held_out"] is None else 1 - result["held_out"]["accuracy"]
    return UNKNOWN if share is None else Bounds(share, share)


def more_accurate(one: dict[str, Any], other: dict[str, Any]) -> Callable[[TrialResults], Effects]:
    return lambda found: difference(*(at_best_lr(found, capped_loss, errors, **options) for options in (other, one)))


INPUTS = Claim(
    "inputs",
    "Networks learn better from standardized inputs, and batch norm makes up for raw ones.",
    "Held-out accuracy for the table students, whose columns are around 7 and around 100. Four settings, with raw and "
    f"standardized inputs, without and with batch norm, {BEST_RATE}; the best rate is that with the lowest held-out "
    "loss. The effect is a difference of accuracies. A training that diverges has no accuracy.",
    input_grids,
    (
        Statement(
            "Without a norm, standardized inputs give an accuracy that is higher by more than 5 points.",
            more_accurate({"standardize": True, "norm": "none"}, {"standardize": False, "norm": "none"}),
            "above",
            0.05,
            "accuracy",
        ),
        Statement(
            "With raw inputs, batch norm gives an accuracy that is higher by more than 5 points.",
            more_accurate({"standardize": False, "norm": "batch"}, {"standardize": False, "norm": "none"}),
            "above",
            0.05,
            "accuracy",
        ),
    ),
)


# ---- small batches ----

BATCHES = (1, 2, 4, 8)
LARGE = 32


def harm(batch: int) -> Callable[[TrialResults], Effects]:
    """How much more a small batch raises the loss with batch norm than with layer norm."""

    def effect(found: TrialResults) -> Effects:
        raised = {
            norm: difference(capped_losses(found, norm=norm, batch=batch), capped_losses(found, norm=norm, batch=LARGE))
            for norm in ("batch", "layer")
        }
        return difference(raised["batch"], raised["layer"])

    return effect


def batch_grids(quick: bool, seeds: int) -> list[Grid]:
    fixed: Axes = {"task": ("gender",), "steps": (300 if quick else 1000,)}
    return [grid("train", seeds, fixed, norm=("batch", "layer"), batch=(*BATCHES, LARGE))]


SMALL_BATCHES = Claim(
    "small-batches",
    "Small batches hurt batch norm.",
    "Held-out loss of the network that tells the gender of names, whose statistics are over the valid characters of "
    f"a batch. The effect is the rise of the loss from batches of {LARGE} to small ones, minus the same rise with "
    "layer norm, which does not depend on the batch: small batches also mean noisier gradients and fewer examples. "
    f"{CAPPED}",
    batch_grids,
    tuple(
        Statement(
            f"Batches of {batch} raise the loss by more than 0.01 nats more than with layer norm.",
            harm(batch),
            "above",
            0.01,
            "nats",
        )
        for batch in BATCHES
    ),
)


# ---- before or after the activation ----


def placement(found: TrialResults) -> Effects:
    def loss(result: Result) -> Bounds:
        return Bounds(capped_loss(result), capped_loss(result))

    before, after = (at_best_lr(found, capped_loss, loss, norm_at=at) for at in ("before", "after"))
    return difference(after, before)


def placement_grids(quick: bool, seeds: int) -> list[Grid]:
    lrs, steps = ((0.1, 0.3, 1.0, 3.0), 600) if quick else ((0.03, 0.1, 0.3, 1.0, 3.0), 2000)
    fixed: Axes = {"depth": (SHALLOW,), "lr": lrs, "steps": (steps,)}
    return [grid("train", seeds, WORDS, fixed, norm=("batch",), norm_at=("before", "after"))]


PLACEMENT = Claim(
    "placement",
    "Batch norm belongs before the activation, not after it.",
    "Final held-out loss of the character network with tanh, with the norm before and after the activation, "
    f"{BEST_RATE}. {CAPPED} The effect is the loss with the norm after minus that with the norm before the activation.",
    placement_grids,
    (Statement("The norm before the activation gives a loss lower by 0.01 nats.", placement, "above", 0.01, "nats"),),
)
