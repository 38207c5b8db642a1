"""Claims about what layers compute: gradients, covariate shift, padding, and what weight and bias can do."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

from truenorm.lab.claims.claim import Bounds, Claim, Effects, Statement, TrialResults, difference, exact, log
from truenorm.lab.claims.training import WORDS, Axes, grid
from truenorm.lab.grid import Grid

# ---- gradients through many layers ----

FEW, DEPTH = 5, 20  # hidden layers


def decades(found: TrialResults, norm: str, init_scale: float, depth: int) -> Effects:
    """How many powers of ten the gradient grows or shrinks by, from the last hidden layer to the first."""
    trials = found.by_seed("gradients", norm=norm, init_scale=init_scale, depth=depth)
    return exact(
        {
            seed: abs(log(one["gradients"][0], 10, 1e-300) - log(one["gradients"][-1], 10, 1e-300))
            for seed, one in trials.items()
        }
    )


def steadier(init_scale: float, depth: int = DEPTH) -> Callable[[TrialResults], Effects]:
    return lambda found: difference(*(decades(found, norm, init_scale, depth) for norm in ("none", "batch")))


def growth(init_scale: float) -> Callable[[TrialResults], Effects]:
    """How much more batch norm does in a deep network than in one of few layers."""
    return lambda found: difference(steadier(init_scale, DEPTH)(found), steadier(init_scale, FEW)(found))


def gradient_grids(quick: bool, seeds: int) -> list[Grid]:
    fixed: Axes = {"depth": (FEW, DEPTH), "activation": ("relu",), "steps": (1,)}
    return [grid("gradients", seeds, WORDS, fixed, norm=("none", "batch"), init_scale=(0.5, 1.0, 2.0))]


GRADIENTS = Claim(
    "gradients",
    "Batch norm keeps gradients from vanishing and exploding.",
    f"The gradient of the loss at the first of {DEPTH} hidden layers with ReLU, divided by that at the last, before "
    "the first step. (Tanh would make large gradients small again, as it saturates.) The effect is by how many powers "
    "of ten this ratio is closer to 1 with batch norm; of the "
    f"statements about depth, how much larger that is than with {FEW} layers.",
    gradient_grids,
    (
        Statement(
            "Initial weights half as large as they should be: closer to 1 by more than a power of ten.",
            steadier(0.5),
            "above",
            1.0,
            "powers of ten",
        ),
        Statement(
            "Initial weights twice as large as they should be: closer to 1 by more than a power of ten.",
            steadier(2.0),
            "above",
            1.0,
            "powers of ten",
        ),
        *(
            Statement(
                f"Initial weights {size} as large: with {DEPTH} layers, the effect is larger than with {FEW} by more "
                "than a power of ten.",
                growth(scale),
                "above",
                1.0,
                "powers of ten",
            )
            for size, scale in (("half", 0.5), ("twice", 2.0))
        ),
        Statement(
            "Initial weights of the right size: not farther from 1 by more than a power of ten.",
            steadier(1.0),
            "above",
            -1.0,
            "powers of ten",
        ),
    ),
    "Yang et al. (2019) proved that at initialization batch norm itself makes gradients grow exponentially with "
    "depth, by about 1.2 for each layer with ReLU.",
)


# ---- internal covariate shift ----


def lower_shift(kind: str) -> Callable[[TrialResults], Effects]:
    def effect(found: TrialResults) -> Effects:
        without, normalized = (
            exact({seed: log(one[kind], 2, 1e-30) for seed, one in found.by_seed("shift", norm=norm).items()})
            for norm in ("none", "batch")
        )
        return difference(without, normalized)

    return effect


def shift_grids(quick: bool, seeds: int) -> list[Grid]:
    fixed: Axes = {"depth": (4,), "lr": (0.3,), "steps": (300 if quick else 2000,)}
    return [grid("shift", seeds, WORDS, fixed, norm=("none", "batch"))]


COVARIATE_SHIFT = Claim(
    "covariate-shift",
    "Batch norm reduces internal covariate shift.",
    "Two measures, over a training of the character network with four hidden layers, for the inputs of the second, "
    "third and fourth. The input drift: how far mean and std of each input channel have moved since the start, for the "
    "same batch and as in training, so with the statistics of the batch; as a root mean square over the channels, "
    "relative to the std at the start. The gradient shift: how far the gradient of a layer changes, relative to its "
    "size, when the layers before it take their step and it does not. The effect is log2 of the ratio of the shift "
    "without and with batch norm: above 0, batch norm reduces it. Both trainings have the same learning rate.",
    shift_grids,
    (
        Statement(
            "The inputs of the layers drift less, by a factor of more than 1.1.",
            lower_shift("input_drift"),
            "above",
            math.log2(1.1),
            "log2 of the ratio",
        ),
        Statement(
            "The gradients of the layers shift less, by a factor of more than 1.1.",
            lower_shift("gradient_shift"),
            "above",
            math.log2(1.1),
            "log2 of the ratio",
        ),
    ),
    "Ioffe and Szegedy (2015) explained batch norm by less covariate shift. Santurkar et al. (2018) proposed the "
    "gradient shift as its measure, found that batch norm does not reduce it, and explained batch norm by a "
    "smoother loss.",
)


# ---- padding ----

PADDED = (11, 22, 44, 100)  # 11 characters: the longest name


def change(found: TrialResults, norm: str, over: str, length: int) -> Effects:
    """log10 of how far padding moves the normalized valid values, relative to their size; -20 for not at all."""
    trials = found.by_seed("padding", norm=norm, statistics_over=over, max_length=length)
    return exact({seed: log(one["change"], 10, 1e-20) for seed, one in trials.items()})


def least_growth(found: TrialResults) -> Effects:
    """The smallest growth of the change from one length to the next."""
    growths = [
        difference(change(found, "batch", "all", longer), change(found, "batch", "all", shorter))
        for shorter, longer in pairwise(PADDED)
    ]
    return {
        seed: Bounds(min(one[seed].low for one in growths), min(one[seed].high for one in growths))
        for seed in found.seeds
        if all(seed in one for one in growths)
    }


def padding_grid(seeds: int, norm: str, over: str) -> Grid:
    fixed: Axes = {"task": ("gender",), "norm": (norm,), "statistics_over": (over,)}
    return grid("padding", seeds, fixed, max_length=PADDED)


def lost_by_less_padding(found: TrialResults) -> Effects:
    trials = found.by_seed("repadding", statistics_over="all")
    return difference(*(exact({seed: one[key] for seed, one in trials.items()}) for key in ("less", "same")))


def padding_grids(quick: bool, seeds: int) -> list[Grid]:
    fixed: Axes = {
        "task": ("gender",),
        "statistics_over": ("all",),
        "max_length": (44,),
        "steps": (200 if quick else 1000,),
    }
    return [padding_grid(seeds, "batch", "all"), grid("repadding", seeds, fixed)]


NAMES = (
    f"Names are padded to {', '.join(map(str, PADDED[:-1]))} and {PADDED[-1]} characters. The change is how far the "
    "normalized values of the characters are from those of the same norm over the characters alone, relative to "
    "their size, on the first batch. The effect is its log10: -2 is 1%."
)

PADDING = Claim(
    "padding",
    "Padding falsifies batch norm, and more padding does so more.",
    f"{NAMES} The last statement trains with names padded to 44, takes away the padding beyond the longest name, "
    "re-estimates the statistics, and measures by how much the held-out loss rises, in nats.",
    padding_grids,
    (
        Statement(
            "Names padded to 44: the change is more than 10%.",
            lambda found: change(found, "batch", "all", 44),
            "above",
            -1.0,
            "log10 of the change",
        ),
        Statement(
            "From each length to the next, the change grows.",
            least_growth,
            "above",
            0.0,
            "log10 of the growth",
        ),
        Statement(
            "After training with padding, the loss with less padding is higher by more than 0.01 nats.",
            lost_by_less_padding,
            "above",
            0.01,
            "nats",
        ),
    ),
)


def unaffected(norm: str, over: str) -> tuple[Statement, ...]:
    return (
        Statement(
            f"Names padded to {PADDED[-1]}: the change is below 0.001%, the size of rounding errors.",
            lambda found: change(found, norm, over, PADDED[-1]),
            "below",
            -5.0,
            "log10 of the change",
        ),
    )


LAYER_NORM = Claim(
    "layer-norm",
    "Padding does not affect layer norm.",
    NAMES,
    lambda quick, seeds: [padding_grid(seeds, "layer", "all")],
    unaffected("layer", "all"),
)

VALID_ROWS = Claim(
    "valid-rows",
    "Padding does not affect batch norm over the valid rows.",
    NAMES,
    lambda quick, seeds: [padding_grid(seeds, "batch", "valid")],
    unaffected("batch", "valid"),
)


# ---- weight and bias ----


def undo_error(found: TrialResults) -> Effects:
    return exact({seed: log(one["error"], 10, 1e-20) for seed, one in found.by_seed("undo").items()})


UNDO = Claim(
    "undo",
    "Weight and bias can undo the normalization.",
    "Batch norm in float64 of random columns with means between about -10 and 10, whose weight is the standard "
    "deviation (with eps) and whose bias is the mean. The effect is log10 of the largest error, relative to the "
    "largest value.",
    lambda quick, seeds: [grid("undo", seeds)],
    (Statement("The error is below 1e-12.", undo_error, "below", -12.0, "log10 of the error"),),
)
