"""The claims that people make about normalization, as experiments.

claim.py      what a claim is, and the rule for its verdict
training.py   claims about training
layers.py     claims about what layers compute
"""

from __future__ import annotations

from truenorm.lab.claims import layers, training
from truenorm.lab.claims.claim import Claim

CLAIMS: dict[str, Claim] = {
    claim.name: claim
    for claim in (
        training.CONVERGENCE,
        training.LEARNING_RATE,
        training.INITIAL_WEIGHTS,
        training.REGULARIZATION,
        layers.COVARIATE_SHIFT,
        layers.GRADIENTS,
        training.INPUTS,
        layers.PADDING,
        layers.LAYER_NORM,
        layers.VALID_ROWS,
        training.SMALL_BATCHES,
        layers.UNDO,
        training.PLACEMENT,
    )
}
