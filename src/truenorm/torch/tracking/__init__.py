"""`padded`: a context that follows the lengths of sequences through a model and keeps padding out of it."""

from truenorm.torch.tracking import (  # noqa: F401 - each registers its rules
    assignment,
    attention,
    convolution,
    counts,
    elementwise,
    indexing,
    losses,
    normalization,
    order,
    outside,
    pooling,
    positions,
    products,
    recurrent,
    reduction,
    shapes,
    spectra,
)
from truenorm.torch.tracking.context import padded
from truenorm.torch.tracking.registry import rule
from truenorm.torch.tracking.report import PaddedReport, PaddingWarning
from truenorm.torch.tracking.tracker import Tracker

assignment.follow_writes()

__all__ = ["PaddedReport", "PaddingWarning", "Tracker", "padded", "rule"]
