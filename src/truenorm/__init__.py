"""Normalization for neural networks that ignores padding.

>>> import numpy as np
>>> import truenorm as tn
>>> x = np.array([[[1.0, 5.0], [3.0, 9.0]], [[5.0, 1.0], [0.0, 0.0]]])  # the last row is padding
>>> out = tn.forward(x, tn.batch(), lengths=[2, 1])
>>> out.moments.mean
array([3., 5.])
>>> dx, dweight, dbias = tn.backward(np.ones_like(x), out)

One definition covers all families, so special cases agree. Layer norm is group norm with one group, if there
is no position axis to average over; instance norm is group norm with as many groups as channels; batch norm
is layer norm of the transpose:

>>> def same(a, b):
...     return bool(np.allclose(a, b, rtol=0, atol=1e-14))
>>> x = np.random.default_rng(0).normal(size=(4, 5, 6))
>>> same(tn.forward(x[0], tn.layer()).y, tn.forward(x[0], tn.group(1)).y)
True
>>> same(tn.forward(x, tn.instance()).y, tn.forward(x, tn.group(6)).y)
True
>>> same(tn.forward(x[0], tn.batch()).y, tn.forward(x[0].T, tn.layer()).y.T)
True
>>> same(tn.forward(x[0][:, :1], tn.batch()).y.T, tn.forward(x[0][:, :1].T, tn.layer()).y)
True

A weight equal to the standard deviation and a bias equal to the mean undo the normalization:

>>> moments = tn.measure(x, tn.batch())
>>> undone = tn.forward(x, tn.batch(), weight=np.sqrt(moments.var() + 1e-5), bias=moments.mean).y
>>> bool(np.allclose(undone, x, rtol=1e-14, atol=1e-14))
True

This is the whole public surface of the NumPy core. It imports only NumPy and its own compiled kernels.
"""

from truenorm.core import running
from truenorm.core.moments import Moments
from truenorm.core.norm import Norm
from truenorm.core.recipes import batch, group, instance, layer, rms
from truenorm.engine import backward, backward_sums, forward, measure, merge
from truenorm.explanation.steps import explain

__version__ = "0.1.0"
__all__ = [
    "Moments",
    "Norm",
    "backward",
    "backward_sums",
    "batch",
    "explain",
    "forward",
    "group",
    "instance",
    "layer",
    "measure",
    "merge",
    "rms",
    "running",
]
