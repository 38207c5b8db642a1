"""Kernels in Triton, for CUDA and HIP: `pip install truenorm[triton]`. `_dispatch` asks `find_call` and `find_verbs`.

    plan.py      x as sequences x positions x lanes, and what of it is valid
    kernels.py   measure, merge, apply; sums, add, gradient
    verbs.py     their launches
    function.py  the autograd function

They were interpreted and compiled, but not yet run on a GPU: see docs/accelerators.md. Without Triton the formula does
the work. Triton is imported when the first tensor asks for it.
"""

from __future__ import annotations

import os
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from truenorm.core.inputs import Padding
from truenorm.core.norm import norm_from_text
from truenorm.torch import _compat
from truenorm.torch._formula import FixedStatistics
from truenorm.torch._inputs import Ragged, check_ragged
from truenorm.torch._kernel import ORDINARY, in_order, is_channels_last
from truenorm.torch._norms import Norms

if TYPE_CHECKING:
    from truenorm.torch.triton.function import TritonCall
    from truenorm.torch.triton.verbs import TritonVerbs

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# For tests: on the CPU too, in Triton's interpreter. TRITON_INTERPRET=1 must be set before Triton is imported.
INTERPRETED = os.environ.get("TRUENORM_TRITON") == "interpreted"


def applies(x: Tensor) -> bool:
    """Whether the kernels in Triton are the ones for x: a plain tensor of a GPU, or of the CPU in their tests."""
    return (
        (x.is_cuda or (INTERPRETED and x.is_cpu))
        and type(x) in ORDINARY
        and x.layout == torch.strided
        and x.dtype in DTYPES
        and is_installed()
        and _compat.in_plain_eager_mode()
    )


@lru_cache(maxsize=1)
def is_installed() -> bool:
    return find_spec("triton") is not None


def find_call(
    x: Tensor,
    norms: Norms,
    weight: Tensor | None,
    bias: Tensor | None,
    ragged: Ragged | None,
    fixed: FixedStatistics | None,
    padding: Padding,
) -> TritonCall | str:
    """The call that normalizes x, to which `applies` applies, or the reason why there is none."""
    if fixed is not None and (fixed.mean.requires_grad or fixed.var.requires_grad) and torch.is_grad_enabled():
        return "the statistics need a gradient"
    found = find_verbs(x, norms, ragged or Ragged(), padding)
    if isinstance(found, str):
        return found
    x, verbs, copies = found
    layout = verbs.plan.layout
    fits = all(
        one is None or (one.shape == layout.weight_shape and one.device == x.device and type(one) in ORDINARY)
        for one in (weight, bias)
    )
    if not fits or (fixed is not None and fixed.mean.numel() != verbs.plan.statistics):
        return "the arguments do not fit each other"
    from truenorm.torch.triton.function import TritonCall

    if fixed is not None:  # running statistics may have changed until backward
        fixed = FixedStatistics(fixed.mean.detach().clone(), fixed.var.detach().clone())
    return TritonCall(x, verbs, norm_from_text(norms[0]), copies, fixed, padding)


def find_verbs(
    x: Tensor, norms: Norms, ragged: Ragged, padding: Padding
) -> tuple[Tensor, TritonVerbs, Ragged | None] | str:
    """x as the kernels read it, their launches, and copies of ragged; or the reason why there are none."""
    norm = norm_from_text(norms[0])
    check_ragged(norm, x.shape, ragged)
    if norm.activation is not None:
        return "no kernel in Triton for an activation"
    from truenorm.torch.triton.plan import find_plan, find_valid
    from truenorm.torch.triton.verbs import TritonVerbs

    channels_last = norms[1] is not None and is_channels_last(x)
    x = in_order(x, channels_last)
    ragged = ragged.change(torch.clone)  # the caller may change them before backward
    inner, moved = x, ragged
    if channels_last and norms[1] is not None:
        norm, inner = norm_from_text(norms[1]), x.detach().movedim(1, -1)
        moved = ragged.change(lambda one: one.movedim(1, -1) if one.dim() == x.dim() else one)
    plan = find_plan(norm, tuple(inner.shape), moved)
    if isinstance(plan, str):
        return f"no kernel in Triton for {plan}" if plan != "the arguments do not fit each other" else plan
    plan, valid = find_valid(plan, norm, inner, moved)
    verbs = TritonVerbs(norm, plan, valid, channels_last, padding == "keep")
    return x, verbs, None if all(one is None for one in ragged) else ragged
