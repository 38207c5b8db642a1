"""Somebody else's assertions about padding: they pass on a network of our layers, and fail on the same of torch's."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
invariance = pytest.importorskip("pytest_torch.invariance", reason="pytest-torch is not installed")

import truenorm.torch as tnt  # noqa: E402

nn = torch.nn


class Tagger(nn.Module):
    """Embedding, group norm over time, a tag for each token. `told`: whether the norm is told what is real."""

    def __init__(self, kit: Any, told: bool) -> None:
        super().__init__()
        self.embed, self.norm, self.out, self.told = nn.Embedding(20, 8), kit.GroupNorm(2, 8), nn.Linear(8, 3), told

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        x = self.embed(input_ids).transpose(1, 2)
        x = self.norm(x, valid=attention_mask) if self.told else self.norm(x)
        return self.out(x.transpose(1, 2))


def batch() -> dict[str, Any]:
    torch.manual_seed(0)
    mask = torch.arange(6) < torch.tensor([6, 3, 4])[:, None]
    return {"input_ids": torch.randint(1, 20, (3, 6)), "attention_mask": mask.long()}


def test_padding_and_its_content_do_not_matter_to_ours() -> None:
    model = Tagger(tnt, told=True)
    invariance.assert_padding_invariant(model, batch(), extra=7)
    invariance.assert_mask_invariant(model, batch())


def test_they_matter_to_torchs() -> None:
    model = Tagger(nn, told=False)
    with pytest.raises(AssertionError, match="Padding invariance violated"):
        invariance.assert_padding_invariant(model, batch(), extra=7)
    with pytest.raises(AssertionError, match="Mask invariance violated"):
        invariance.assert_mask_invariant(model, batch())
