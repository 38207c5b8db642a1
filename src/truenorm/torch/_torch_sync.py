"""`torch.nn.SyncBatchNorm.convert_sync_batchnorm` ends in an error at truenorm's layers, instead of replacing them.

They are instances of torch's batch norm, so it would make torch's SyncBatchNorm of them, which counts padding, takes no
lengths and refuses the CPU; `sync_batchnorm=True` of Lightning calls it too. It asks each batch norm for one attribute
that a batch norm does not have by itself, `qconfig` of torch's quantization, and that is where the error is raised: for
this one caller. For all others the attribute is what it always was: there if it was set, absent if not.
"""

from __future__ import annotations

import sys
from typing import Any

from torch import nn


class RefusesTorchSync:
    """A batch norm that torch does not convert."""

    @property
    def qconfig(self) -> Any:
        _refuse_conversion(sys._getframe(1), type(self).__name__)
        try:
            return vars(self)["qconfig"]
        except KeyError:
            raise AttributeError("qconfig") from None  # nn.Module says it in its own words

    @qconfig.setter
    def qconfig(self, value: Any) -> None:
        vars(self)["qconfig"] = value

    @qconfig.deleter
    def qconfig(self) -> None:
        try:
            del vars(self)["qconfig"]
        except KeyError:
            raise AttributeError("qconfig") from None


def _refuse_conversion(caller: Any, name: str) -> None:
    converter: Any = nn.SyncBatchNorm.convert_sync_batchnorm
    if caller.f_code is converter.__func__.__code__:
        raise TypeError(
            f"convert_sync_batchnorm: layers of torch.nn, got truenorm.{name}: torch's SyncBatchNorm counts padding. "
            "Call truenorm.torch.sync(model) instead, in Lightning too, without sync_batchnorm=True."
        )
