"""`truenorm explain --example network`: one training step of a small network."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from truenorm.cli import main
from truenorm.cli.explain_network import DEFAULTS, explain_training_step
from truenorm.lab.config import make_config
from truenorm.lab.explanation import PARAMETERS
from truenorm.lab.training import Trainer, prepare


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["explain", *arguments])
    printed = capsys.readouterr()
    return int(stop.value.code or 0), printed.out, printed.err


def test_it_is_the_first_step_of_training(tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("anna\nemma\nian\nmia\nnina\nana\nmina\n")
    options = {"data": str(words), "hidden": 6, "batch": 4, "seed": 3, "lr": 0.2}
    explained = explain_training_step(options)
    config = make_config(DEFAULTS | options)
    trainer = Trainer(config, prepare(config))
    assert trainer.train_step() == explained.loss
    for name, own in PARAMETERS.items():
        np.testing.assert_array_equal(explained[f"new {name}"], trainer.network.parameters[own])


def test_examples_are_named_by_their_characters(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--example", "network", "--words", "ab, ba", "--batch", "3")
    assert (code, err) == (0, "")
    assert out.startswith("One training step: 3 examples of 3 characters, 3 characters with 2 numbers each")
    assert len(set(re.findall("[.ab]{3}→[.ab]", out))) in (2, 3)


def test_seed_hidden_and_batch_choose_the_network(capsys: pytest.CaptureFixture[str]) -> None:
    losses = set()
    for options in ([], ["--seed", "1"], ["--hidden", "5"], ["--batch", "7"], ["--words", "otto"]):
        code, out, _ = run(capsys, "--example", "network", "--json", *options)
        assert code == 0
        losses.add(json.loads(out)["loss"])
    assert len(losses) == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--example", "network", "--norm", "layer"],
            "--norm: not with --example network. See 'truenorm explain --help'.",
        ),
        (
            ["--example", "network", "data.csv"],
            "file: not with --example network. See 'truenorm explain --help'.",
        ),
        (["--words", "a"], "--words: only with --example network. See 'truenorm explain --help'."),
        (
            ["--example", "table", "--seed", "1"],
            "--seed: only with --example network. See 'truenorm explain --help'.",
        ),
        (["--example", "network", "--words", " , "], "--words: words with commas between them, got ' , '."),
        (
            ["--example", "network", "--words", "a", "--data", "names"],
            "--words: not beside --data, which has words of its own. Leave one of them out.",
        ),
        (
            ["--example", "network", "--batch", "1"],
            "--batch: at least 2, as batch norm needs more than one value, got 1.",
        ),
        (["--example", "network", "--hidden", "0"], "--hidden: a number >= 1, got 0."),
        (["--example", "network", "--lr", "inf"], "--lr: a finite number, got inf."),
        (
            ["--example", "network", "--data", "students"],
            "--data: needs words, but students is a table. Give a file with one word per line, or names.",
        ),
        (
            ["--example", "network", "--data", "missing.txt"],
            "--data: a file, names, surnames or words, got missing.txt, which does not exist.",
        ),
    ],
)
def test_wrong_options_end_in_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert run(capsys, *arguments) == (2, "", f"truenorm: {message}\n")
