"""ONNX: graphs in evaluation, run by ONNX's own reference, give the numbers of the layers."""

import warnings
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")
reference = pytest.importorskip("onnx.reference", reason="onnx is not installed")

import truenorm.torch as tnt  # noqa: E402

nn = torch.nn


class WithLengths(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.group, self.batch = tnt.GroupNorm(2, 4), tnt.BatchNorm1d(4, eps=1e-3)

    def forward(self, x: Any, lengths: Any) -> Any:
        return self.batch(self.group(x, lengths=lengths), lengths=lengths)


def exported(model: Any, *inputs: Any) -> tuple[Any, list[str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(model, inputs, dynamo=True, verbose=False)
    proto = program.model_proto
    names = [one.name for one in proto.graph.input]
    found = reference.ReferenceEvaluator(proto).run(None, {n: i.numpy() for n, i in zip(names, inputs, strict=True)})
    return found[0], [node.op_type for node in proto.graph.node]


def test_layers_become_onnxs_own_nodes() -> None:
    model = nn.Sequential(nn.ReLU(), tnt.BatchNorm1d(4), nn.ReLU(), tnt.LayerNorm(9)).eval()
    with torch.no_grad():
        model[1].running_mean.copy_(torch.tensor([0.1, -0.2, 0.3, 0.4]))
    x = torch.randn(2, 4, 9)
    found, nodes = exported(model, x)
    np.testing.assert_allclose(found, model(x).detach().numpy(), rtol=1e-4, atol=1e-5)
    assert {"BatchNormalization", "LayerNormalization"} <= set(nodes)


@pytest.mark.slow
def test_lengths_stay_an_input_of_the_graph() -> None:
    model, x, lengths = WithLengths().eval(), torch.randn(3, 4, 7), torch.tensor([7, 2, 5])
    found, _ = exported(model, x, lengths)
    np.testing.assert_allclose(found, model(x, lengths).detach().numpy(), rtol=1e-5, atol=1e-6)
