"""The recipes of docs/retrofit.md: a trainer gives the same parameters, however much padding its collator makes."""

import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("lightning")

import truenorm.torch as tnt  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
ROOT = Path(__file__).resolve().parents[2]
LENGTHS = (700, 420, 555, 610)


def recipes() -> dict[str, Any]:
    """The classes of the page, as it shows them."""
    text = (ROOT / "docs/retrofit.md").read_text("utf-8").split("## In a trainer")[1].split("\n## ")[0]
    (block,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"tnt": tnt, "torch": torch, "nn": torch.nn}
    exec("\n".join(line[4:] for line in block.splitlines()), names)
    return names


def sequences() -> list[Any]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(n, generator=generator) for n in LENGTHS]


def collate(parts: list[dict[str, Any]], more: int) -> dict[str, Any]:
    """Padded to the longest, and `more` behind it, with ones."""
    x = torch.nn.utils.rnn.pad_sequence([part["x"] for part in parts], batch_first=True)
    lengths = torch.tensor([len(part["x"]) for part in parts])
    x = torch.cat([x, x.new_zeros(len(x), more)], 1)
    valid = torch.arange(x.shape[1]) < lengths[:, None]
    labels = torch.tensor([part["label"] for part in parts])
    return {"x": x.masked_fill(~valid, 1.0), "valid": valid.long(), "lengths": lengths, "labels": labels}


DATA = [{"x": x, "label": i % 2} for i, x in enumerate(sequences())]


def trained_by_transformers(more: int, folder: Path, convert: bool = True) -> dict[str, Any]:
    from tools.retrofit_models import SPEECH
    from transformers import Trainer, TrainingArguments, Wav2Vec2Config, Wav2Vec2ForSequenceClassification

    torch.manual_seed(0)
    model = Wav2Vec2ForSequenceClassification(Wav2Vec2Config(**{**SPEECH, "num_labels": 2, "classifier_proj_size": 8}))
    if convert:
        tnt.convert(model)

    def collator(parts: list[dict[str, Any]]) -> dict[str, Any]:
        made = collate(parts, more)
        return {"input_values": made["x"], "attention_mask": made["valid"], "labels": made["labels"]}

    # Not Adam: the gradient of k_proj.bias is 0 but for rounding, which Adam makes a step of full size.
    arguments = TrainingArguments(
        str(folder), max_steps=3, per_device_train_batch_size=2, learning_rate=1e-2, report_to=[], use_cpu=True,
        optim="sgd", save_strategy="no", remove_unused_columns=False, disable_tqdm=True,
    )  # fmt: skip
    cls = recipes()["PaddedTrainer"] if convert else Trainer
    cls(model, arguments, train_dataset=DATA, data_collator=collator).train()
    return {name: value.clone() for name, value in model.state_dict().items()}


def trained_by_lightning(more: int, folder: Path, convert: bool = True) -> dict[str, Any]:
    import lightning
    from tools.retrofit_training import network

    class Model(recipes()["Classifier"]):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.model = network(4)
            if convert:
                tnt.convert(self.model)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

        if not convert:

            def training_step(self, batch: Any, index: int) -> Any:
                return torch.nn.functional.cross_entropy(self.model(batch["x"]), batch["labels"])

    def collator(parts: list[dict[str, Any]]) -> dict[str, Any]:
        made = collate(parts, more)
        return made | {"x": made["x"][:, None]}

    loader = torch.utils.data.DataLoader(DATA, batch_size=2, collate_fn=collator)
    model = Model()
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(model, loader)
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("train", [trained_by_transformers, trained_by_lightning])
def test_the_amount_of_padding_does_not_change_what_is_learned(train: Any, tmp_path: Path) -> None:
    short, long = train(0, tmp_path), train(333, tmp_path)
    torch.testing.assert_close(short, long, rtol=1e-4, atol=1e-5)
    with_padding_counted = train(0, tmp_path, convert=False), train(333, tmp_path, convert=False)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(*with_padding_counted, rtol=1e-4, atol=1e-5)
