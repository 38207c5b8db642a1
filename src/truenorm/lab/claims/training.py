"""Claims about training with batch norm: speed, learning rates, initial weights, regularization, place, batch size."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from truenorm.lab.claims.claim import Claim, Found, Statement, Values, difference
from truenorm.lab.grid import Grid
from truenorm.lab.trial import Result

TARGET = 2.5  # nats, held out: guessing by the frequencies of the characters gives about 2.8
Axes = Mapping[str, Sequence[Any]]  # of a part of a grid
WORDS: Axes = {"hidden": (50,), "embedding": (4,), "schedule": ("constant",)}
SHALLOW, DEEP = 2, 8


def grid(measure: str, seeds: int, *parts: Axes, **axes: Sequence[Any]) -> Grid:
    options = {name: tuple(values) for part in (*parts, axes) for name, values in part.items()}
    return Grid(measure, {**options, "seed": tuple(range(seeds))})


def loss(result: Result) -> float:
    """The final held-out loss; infinite if the training diverged."""
    return math.inf if result["held_out"] is None else float(result["held_out"]["loss"])


def capped_loss(result: Result) -> float:
    """The same, but at most that of a constant prediction: a network can be no more useless than that."""
    return min(loss(result), float(result["baseline"]["loss"]))


def losses(found: Found, **options: Any) -> Values:
    return {seed: loss(result) for seed, result in found.by_seed(**options).items()}


def accuracies(found: Found, **options: Any) -> Values:
    return {
        seed: 0.0 if one["held_out"] is None else one["held_out"]["accuracy"]
        for seed, one in found.by_seed(**options).items()
    }


# ---- faster convergence ----


def steps_to(result: Result, target: float, budget: int) -> float:
    """The steps until the held-out loss reaches the target, interpolated; the budget if it never does."""
    curve = result["curve"]
    before, height = 0, math.inf
    for step, value in zip(curve["step"], curve["held_out"], strict=True):
        if value is not None and value <= target:
            if not math.isfinite(height):
                return float(step)
            return float(before + (step - before) * (height - target) / (height - value))
        before, height = step, math.inf if value is None else value
    return float(budget)


def at_best_lr(found: Found, score: Callable[[Result], float], **options: Any) -> Values:
    """The score at the learning rate whose mean score over the seeds is lowest."""
    by_lr = [
        {seed: score(result) for seed, result in found.by_seed(lr=lr, **options).items()}
        for lr in found.values("lr", **options)
    ]
    filled = [one for one in by_lr if one]
    return min(filled, key=lambda one: statistics.fmean(one.values())) if filled else {}


def speed_up(depth: int) -> Callable[[Found], Values]:
    def effect(found: Found) -> Values:
        budget = max(found.values("steps", depth=depth), default=0)
        steps = {
            norm: at_best_lr(found, lambda one: math.log2(steps_to(one, TARGET, budget)), norm=norm, depth=depth)
            for norm in ("none", "batch")
        }
        return difference(steps["none"], steps["batch"])

    return effect


def convergence_grids(quick: bool, seeds: int) -> list[Grid]:
    lrs, steps = ((0.1, 0.5, 2.0), 600) if quick else ((0.03, 0.1, 0.3, 1.0, 3.0), 2000)
    both: Axes = {"norm": ("none", "batch"), "lr": lrs, "steps": (steps,)}
    return [grid("train", seeds, WORDS, both, depth=(depth,)) for depth in (SHALLOW, DEEP)]


CONVERGENCE = Claim(
    "convergence",
    "Batch norm makes training converge faster.",
    f"Steps until the held-out loss of the character network is {TARGET} nats, each setting at the learning rate "
    "that is best for it. A training that never gets there counts with all its steps. The effect is log2 of the "
    "steps without over the steps with batch norm: 1 is twice as fast. Steps, not seconds: a step with batch norm "
    "takes longer.",
    convergence_grids,
    tuple(
        Statement(
            f"With {depth} hidden layers, batch norm needs at most 1/1.1 of the steps.",
            speed_up(depth),
            "above",
            math.log2(1.1),
            "log2 of the ratio of steps",
        )
        for depth in (SHALLOW, DEEP)
    ),
)


# ---- higher learning rates ----


def largest_lr(found: Found, norm: str) -> Values:
    """log2 of the largest learning rate that ends below the loss of a constant prediction, as all smaller ones do."""
    largest: dict[int, float] = {}
    stopped: set[int] = set()
    for lr in found.values("lr", norm=norm):
        for seed, result in found.by_seed(norm=norm, lr=lr).items():
            if not result["baseline"]["beaten"]:
                stopped.add(seed)
            elif seed not in stopped:
                largest[seed] = math.log2(lr)
    return largest


def lr_grids(quick: bool, seeds: int) -> list[Grid]:
    lrs = [0.125 * 2**power for power in range(13)]
    fixed: Axes = {"depth": (SHALLOW,), "steps": (200 if quick else 500,), "activation": ("relu",)}
    return [grid("train", seeds, WORDS, fixed, norm=("none", "batch"), lr=lrs)]


LEARNING_RATE = Claim(
    "learning-rate",
    "Batch norm allows higher learning rates.",
    "The largest learning rate, among powers of 2, at which a network with ReLU ends with a "
    "held-out loss below that of a constant prediction, as it does at all smaller ones. The effect is log2 of the "
    "ratio; its interval is one step of the rates wider on both sides.",
    lr_grids,
    (
        Statement(
            "The largest usable learning rate with batch norm is more than twice that without.",
            lambda found: difference(largest_lr(found, "batch"), largest_lr(found, "none")),
            "above",
            1.0,
            "log2 of the ratio of learning rates",
            resolution=1.0,
        ),
    ),
)


# ---- initial weights ----


def sensitivity(found: Found, norm: str) -> Values:
    """How much the final loss differs between the scales of the initial weights."""
    by_scale = [found.by_seed(norm=norm, init_scale=scale) for scale in found.values("init_scale", norm=norm)]
    seeds = set.intersection(*(set(one) for one in by_scale)) if by_scale else set()
    return {
        seed: max(capped_loss(one[seed]) for one in by_scale) - min(capped_loss(one[seed]) for one in by_scale)
        for seed in seeds
    }


def scale_grids(quick: bool, seeds: int) -> list[Grid]:
    scales = (0.02, 1.0, 50.0) if quick else (0.02, 0.1, 0.3, 1.0, 3.0, 10.0, 50.0)
    fixed: Axes = {"depth": (SHALLOW,), "steps": (500 if quick else 1500,), "lr": (0.3,)}
    return [grid("train", seeds, WORDS, fixed, norm=("none", "batch"), init_scale=scales)]


INITIAL_WEIGHTS = Claim(
    "initial-weights",
    "Batch norm makes training less sensitive to the initial weights.",
    "The initial weights of the hidden layers are multiplied by 0.02 to 50. The sensitivity is the highest minus the "
    "lowest final held-out loss, in nats; a loss above that of a constant prediction counts as that.",
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


def gap(found: Found, **options: Any) -> Values:
    """The held-out loss minus the training loss."""
    return {
        seed: math.nan if one["held_out"] is None else one["held_out"]["loss"] - one["train"]["loss"]
        for seed, one in found.by_seed(**options).items()
    }


def narrower(than: dict[str, Any], setting: dict[str, Any]) -> Callable[[Found], Values]:
    return lambda found: difference(gap(found, **than), gap(found, **setting))


def regularization_grids(quick: bool, seeds: int) -> list[Grid]:
    fixed: Axes = {"task": ("table",), "data": ("students",), "hidden": (64,), "depth": (2,)}
    steps = (800 if quick else 3000,)
    return [grid("train", seeds, fixed, steps=steps, norm=("none", "batch"), dropout=(0.0, 0.5))]


REGULARIZATION = Claim(
    "regularization",
    "Batch norm regularizes, as dropout does.",
    "The gap: held-out loss minus training loss, both in evaluation mode, of a network with two layers of 64 units, "
    "for the table students (240 rows to train on). The effect is by how much the gap is narrower, in nats.",
    regularization_grids,
    (
        Statement(
            "Batch norm alone narrows the gap by more than 0.02 nats.",
            narrower({"norm": "none", "dropout": 0.0}, {"norm": "batch", "dropout": 0.0}),
            "above",
            0.02,
            "nats",
        ),
        Statement(
            "Dropout alone narrows it by more than 0.02 nats.",
            narrower({"norm": "none", "dropout": 0.0}, {"norm": "none", "dropout": 0.5}),
            "above",
            0.02,
            "nats",
        ),
        Statement(
            "Batch norm narrows it by more than 0.02 nats beside dropout, too.",
            narrower({"norm": "none", "dropout": 0.5}, {"norm": "batch", "dropout": 0.5}),
            "above",
            0.02,
            "nats",
        ),
    ),
)


# ---- inputs ----


def input_grids(quick: bool, seeds: int) -> list[Grid]:
    fixed: Axes = {"task": ("table",), "data": ("students",), "steps": (400 if quick else 2000,)}
    return [grid("train", seeds, fixed, standardize=(True, False), norm=("none", "batch"))]


def more_accurate(one: dict[str, Any], other: dict[str, Any]) -> Callable[[Found], Values]:
    return lambda found: difference(accuracies(found, **one), accuracies(found, **other))


INPUTS = Claim(
    "inputs",
    "Networks learn better from standardized inputs, and batch norm makes up for raw ones.",
    "Held-out accuracy for the table students, whose columns are around 7 and around 100. The effect is a difference "
    "of accuracies.",
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


def harm(batch: int) -> Callable[[Found], Values]:
    """How much more a small batch raises the loss with batch norm than with layer norm."""

    def effect(found: Found) -> Values:
        raised = {
            norm: difference(losses(found, norm=norm, batch=batch), losses(found, norm=norm, batch=LARGE))
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
    "layer norm, which does not depend on the batch: small batches also mean noisier gradients and fewer examples.",
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


def placement(found: Found) -> Values:
    best = {at: at_best_lr(found, capped_loss, norm_at=at) for at in ("before", "after")}
    return difference(best["after"], best["before"])


def placement_grids(quick: bool, seeds: int) -> list[Grid]:
    lrs, steps = ((0.1, 0.5, 2.0), 600) if quick else ((0.03, 0.1, 0.3, 1.0, 3.0), 2000)
    fixed: Axes = {"depth": (SHALLOW,), "lr": lrs, "steps": (steps,)}
    return [grid("train", seeds, WORDS, fixed, norm=("batch",), norm_at=("before", "after"))]


PLACEMENT = Claim(
    "placement",
    "Batch norm belongs before the activation, not after it.",
    "Final held-out loss of the character network with tanh, each place at its own best learning rate. The effect is "
    "the loss with the norm after minus before the activation.",
    placement_grids,
    (Statement("The norm before the activation gives a loss lower by 0.01 nats.", placement, "above", 0.01, "nats"),),
)
