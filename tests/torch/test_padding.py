"""Somebody else's assertions about padding: they pass on a network of our layers, and fail on the same of torch's."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
invariance = pytest.importorskip("pytest_torch.invariance", reason="pytest-torch is not installed")
torchtest = pytest.importorskip("torchtest2", reason="torchtest2 is not installed")

import truenorm.torch as tnt  # noqa: E402

nn = torch.nn


class Tagger(torch.nn.Module):
    """Embedding, group norm over time, a tag for each token. `masked`: whether the norm is given the mask."""

    def __init__(self, kit: Any, masked: bool) -> None:
        super().__init__()
        self.embed, self.norm, self.out, self.masked = nn.Embedding(20, 8), kit.GroupNorm(2, 8), nn.Linear(8, 3), masked

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        x = self.embed(input_ids).transpose(1, 2)
        x = self.norm(x, valid=attention_mask) if self.masked else self.norm(x)
        return self.out(x.transpose(1, 2))


def batch() -> dict[str, Any]:
    torch.manual_seed(0)
    mask = torch.arange(6) < torch.tensor([6, 3, 4])[:, None]
    return {"input_ids": torch.randint(1, 20, (3, 6)), "attention_mask": mask.long()}


def test_padding_and_its_content_do_not_matter_to_ours() -> None:
    model = Tagger(tnt, masked=True)
    invariance.assert_padding_invariant(model, batch(), extra=7)
    invariance.assert_mask_invariant(model, batch())


def test_they_matter_to_torchs() -> None:
    model = Tagger(nn, masked=False)
    with pytest.raises(AssertionError, match="Padding invariance violated"):
        invariance.assert_padding_invariant(model, batch(), extra=7)
    with pytest.raises(AssertionError, match="Mask invariance violated"):
        invariance.assert_mask_invariant(model, batch())


# torchtest2 has no assertion of that name; its invariance takes any change that must not matter, and one of its checks
# looks for masks that are ignored.


def more_padding(inputs: dict[str, Any]) -> dict[str, Any]:
    """The same tokens, four more positions that are not real, and other content in all of those."""
    mask = nn.functional.pad(inputs["attention_mask"], (0, 4))
    ids = nn.functional.pad(inputs["input_ids"], (0, 4))
    return {"input_ids": torch.where(mask.bool(), ids, 19), "attention_mask": mask}


def real_tags(tags: Any) -> Any:
    mask = batch()["attention_mask"].bool()
    return torch.where(mask[..., None], tags[:, : mask.shape[1]], 0.0)


def test_torchtest_finds_ours_invariant_and_torchs_not() -> None:
    torchtest.assert_invariance(Tagger(tnt, masked=True), batch(), more_padding, output_fn=real_tags)
    with pytest.raises(torchtest.TorchTestError, match="the output changed under the perturbation for 3/3"):
        torchtest.assert_invariance(Tagger(nn, masked=False), batch(), more_padding, output_fn=real_tags)


def test_torchtest_finds_that_torchs_ignore_the_mask_and_ours_do_not() -> None:
    others = [name for name in torchtest.CHECKS if name not in ("forward", "input_dependency")]
    for kit, masked in ((tnt, True), (nn, False)):
        report = torchtest.check_model(Tagger(kit, masked), batch(), skip=others)
        found = report["input_dependency"]
        assert report.ok == masked, found
        assert masked or "inputs['attention_mask'] has no influence on the output" in found.message
