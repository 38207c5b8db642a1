"""Small training runs of the lab, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from truenorm.lab.config import Config, make_config
from truenorm.lab.training import Trainer, prepare

WORDS = ["anna", "bob", "carla", "dave", "eve", "frank", "grace", "heidi", "ivan", "judy", "olivia", "peggy"]
FILES = ("config.json", "metrics.jsonl", "checkpoint.safetensors", "result.json")


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """A file with a few words."""
    path = tmp_path / "words.txt"
    path.write_text("\n".join(WORDS) + "\n", "utf-8")
    return path


def small_config(words: Path, **options: Any) -> Config:
    """A run of a second on the words of a file."""
    return make_config(
        {"data": str(words), "hidden": 8, "steps": 60, "dropout": 0.1, "optimizer": "adam", "lr": 0.01} | options
    )


def trained(config: Config) -> Trainer:
    """A trainer after all steps of its configuration."""
    trainer = Trainer(config, prepare(config))
    for _ in range(config.steps):
        trainer.train_step()
    return trainer


def ignore_report(_: Any) -> None:
    pass


def never() -> bool:
    return False


def always() -> bool:
    return True


def contents(directory: Path) -> dict[str, bytes]:
    """The files of a complete run."""
    return {name: (directory / name).read_bytes() for name in FILES}
