"""The recipes of docs/cookbook.md for trainers, with the trainers themselves."""

import doctest
import warnings
from pathlib import Path
from typing import Any

import pytest
from torch_data import normal

torch = pytest.importorskip("torch", reason="torch is not installed")

import truenorm.torch as tnt  # noqa: E402

nn = torch.nn
PAGE = Path(__file__).parents[2] / "docs/cookbook.md"
LENGTHS = [40, 15, 33, 9]

pytestmark = pytest.mark.slow


def recipe(name: str) -> str:
    """The source of a class on the page."""
    examples = doctest.DocTestParser().get_examples(PAGE.read_text("utf-8"))
    (source,) = [one.source for one in examples if one.source.startswith(f"class {name}")]
    return source


def imported(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name, reason=f"{name} is not installed")


class Recordings(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return len(LENGTHS)

    def __getitem__(self, i: int) -> Any:
        return {"x": normal(3, LENGTHS[i], seed=i), "labels": i % 2}


def collate(items: list[Any], extra: int = 0) -> dict[str, Any]:
    """Padded with a number that no layer could overlook."""
    lengths = torch.tensor([one["x"].shape[1] for one in items])
    size = int(lengths.max()) + extra
    x = torch.stack([nn.functional.pad(one["x"], (0, size - one["x"].shape[1]), value=50.0) for one in items])
    mask = (torch.arange(size) < lengths[:, None]).long()
    return {"x": x, "attention_mask": mask, "labels": torch.tensor([one["labels"] for one in items])}


class Classifier(torch.nn.Module):
    """A model as those of transformers: it returns the loss with its outputs, and ignores the mask."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.body = nn.Sequential(
            nn.Conv1d(3, 8, 3, stride=2, padding=1), nn.BatchNorm1d(8), nn.ReLU(), nn.Conv1d(8, 8, 3, padding=1),
            nn.GroupNorm(2, 8), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 2),
        )  # fmt: skip

    def forward(self, x: Any, attention_mask: Any = None, labels: Any = None) -> Any:
        logits = self.body(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def test_the_trainer_of_transformers_trains_the_same_with_more_padding(tmp_path: Path) -> None:
    transformers = imported("transformers")
    imported("accelerate")
    names: dict[str, Any] = {"tnt": tnt}
    exec(recipe("PaddedLoss"), names)
    trainer_class = type("PaddedTrainer", (names["PaddedLoss"], transformers.Trainer), {})

    def run(trainer: Any, extra: int) -> tuple[dict[str, Any], float]:
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path), per_device_train_batch_size=2, num_train_epochs=2, report_to=[], use_cpu=True,
            save_strategy="no", logging_strategy="no", disable_tqdm=True, remove_unused_columns=False, seed=5,
        )  # fmt: skip
        model = Classifier()
        if trainer is trainer_class:
            tnt.convert(model)
        data = {"train_dataset": Recordings(), "eval_dataset": Recordings()}
        made = trainer(model=model, args=arguments, data_collator=lambda items: collate(items, extra), **data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made.train()
            return model.state_dict(), made.evaluate()["eval_loss"]

    (short, loss), (long, same) = run(trainer_class, 0), run(trainer_class, 30)
    for key, value in short.items():
        torch.testing.assert_close(long[key], value, rtol=1e-4, atol=1e-5, msg=key)
    assert abs(loss - same) < 1e-5
    plain, plain_long = run(transformers.Trainer, 0)[0], run(transformers.Trainer, 30)[0]
    assert (plain["body.1.running_mean"] - plain_long["body.1.running_mean"]).abs().max() > 1


def test_lightning_trains_the_same_with_more_padding(tmp_path: Path) -> None:
    lightning = imported("lightning")
    names: dict[str, Any] = {"tnt": tnt, "torch": torch, "nn": nn, "lightning": lightning}
    exec(recipe("Recognizer").replace("(nn.Module):", "(lightning.LightningModule):"), names)
    recognizer: Any = names["Recognizer"]

    class Trained(recognizer):
        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def run(extra: int) -> dict[str, Any]:
        torch.manual_seed(3)
        module = Trained(nn.Sequential(nn.Conv1d(3, 4, 3, padding=1), nn.BatchNorm1d(4), nn.Tanh()))
        padded = collate(list(Recordings()), extra)
        batch = {"x": padded["x"], "lengths": padded["attention_mask"].sum(1)}
        batch["target"] = torch.zeros(4, 4, padded["x"].shape[-1])
        trainer = lightning.Trainer(
            max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=tmp_path,
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.fit(module, torch.utils.data.DataLoader([batch], batch_size=None))
        return module.state_dict()

    short, long = run(0), run(30)
    assert int(short["model.1.num_batches_tracked"]) == 3
    for key, value in short.items():
        torch.testing.assert_close(long[key], value, rtol=1e-4, atol=1e-5, msg=key)
