"""PyTorch normalization layers that ignore padding: `import truenorm.torch as tnt`."""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("truenorm.torch: PyTorch is not installed. Install it: pip install 'truenorm[torch]'.") from error

from truenorm.torch import functional
from truenorm.torch._kernel import autograd_in_cpp, kernels_read_tensors
from truenorm.torch.accumulation import accumulate
from truenorm.torch.conversion import convert, revert
from truenorm.torch.folding import FoldingReport, fold
from truenorm.torch.freezing import freeze, thaw
from truenorm.torch.interchange import ForeignLayer, from_flax, from_keras, to_flax, to_keras
from truenorm.torch.layers import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
)
from truenorm.torch.lazy import (
    LazyBatchNorm1d,
    LazyBatchNorm2d,
    LazyBatchNorm3d,
    LazyInstanceNorm1d,
    LazyInstanceNorm2d,
    LazyInstanceNorm3d,
)
from truenorm.torch.microbatches import together
from truenorm.torch.pattern_layer import Normalize
from truenorm.torch.reestimation import reestimate
from truenorm.torch.replacement import FrozenBatchNorm1d, FrozenBatchNorm2d, FrozenBatchNorm3d
from truenorm.torch.reports import ConversionReport
from truenorm.torch.row_layers import LayerNorm, RMSNorm
from truenorm.torch.synchronization import merge_running, sync, unsync
from truenorm.torch.tracking import PaddedReport, PaddingWarning, padded

__all__ = [
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "ConversionReport",
    "FoldingReport",
    "ForeignLayer",
    "FrozenBatchNorm1d",
    "FrozenBatchNorm2d",
    "FrozenBatchNorm3d",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "LazyBatchNorm1d",
    "LazyBatchNorm2d",
    "LazyBatchNorm3d",
    "LazyInstanceNorm1d",
    "LazyInstanceNorm2d",
    "LazyInstanceNorm3d",
    "Normalize",
    "PaddedReport",
    "PaddingWarning",
    "RMSNorm",
    "accumulate",
    "autograd_in_cpp",
    "convert",
    "fold",
    "freeze",
    "from_flax",
    "from_keras",
    "functional",
    "kernels_read_tensors",
    "merge_running",
    "padded",
    "reestimate",
    "revert",
    "sync",
    "thaw",
    "to_flax",
    "to_keras",
    "together",
    "unsync",
]
