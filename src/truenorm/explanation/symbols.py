"""The symbols of lecture notes and papers for names that are spelled out in code: μ for mean, γ for weight."""

from __future__ import annotations

import re

SYMBOLS = {"mean": "μ", "var": "σ²", "xhat": "x̂", "weight": "γ", "bias": "β"}
_NAME = re.compile(rf"\b(d?)({'|'.join(SYMBOLS)})\b")


def in_symbols(text: str) -> str:
    """A formula with symbols instead of names; `d` + name is a gradient.

    >>> print(in_symbols("dxhat = dy · weight"))
    dx̂ = dy · γ
    >>> print(in_symbols("rstd = 1 / sqrt(var + 1e-05)"))
    rstd = 1 / √(σ² + 1e-05)
    """
    return _NAME.sub(lambda found: found[1] + SYMBOLS[found[2]], text).replace("sqrt(", "√(")


def with_name(name: str) -> str:
    """The symbol of a step, and beside it the name by which the code finds the step.

    >>> print(with_name("mean"), with_name("weight"), with_name("dx (through var)"), with_name("y"), sep=", ")
    μ (mean), γ (weight in PyTorch), dx (through σ²), y
    """
    symbol = in_symbols(name)
    if name in ("weight", "bias"):
        return f"{symbol} ({name} in PyTorch)"
    return f"{symbol} ({name})" if _NAME.fullmatch(name) else symbol
