"""Grids: which trials there are, what is refused before anything runs, and how long it takes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_trials import small_grid

from truenorm.cli.compare import _grid
from truenorm.cli.compare import command as compare_command
from truenorm.lab.config import Config, make_config
from truenorm.lab.estimate import estimate_seconds
from truenorm.lab.grid import Grid, make_grid, parse_axis
from truenorm.lab.training import Trainer
from truenorm.lab.trial import Trial


def options(grid: Grid, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(getattr(trial.config, name) for name in names) for trial in grid.trials()]


def test_the_trials_are_the_product_of_the_axes_and_seeds_vary_fastest(words: Path) -> None:
    grid = small_grid(words, norm=("none", "layer"), lr=(0.1, 0.3))
    expected = [(norm, lr, seed) for norm in ("none", "layer") for lr in (0.1, 0.3) for seed in (0, 1)]
    assert options(grid, "norm", "lr", "seed") == expected
    assert len(grid) == 8
    assert grid.varied() == ["norm", "lr"]
    assert len({trial.name for trial in grid.trials()}) == 8


def test_an_option_without_a_meaning_in_a_cell_does_not_double_the_cell(words: Path) -> None:
    grid = small_grid(words, seeds=1, norm=("none", "batch"), norm_at=("after", "before"))
    assert options(grid, "norm", "norm_at") == [("none", "before"), ("batch", "after"), ("batch", "before")]
    optimizers = small_grid(words, seeds=1, optimizer=("sgd", "adam"), momentum=(0.9,), norm=("none",))
    assert options(optimizers, "optimizer", "momentum") == [("sgd", 0.9), ("adam", 0.0)]
    axes = {"task": ("gender",), "norm": ("none", "layer"), "statistics_over": ("all", "valid")}
    padded = make_grid("train", axes)  # an option that depends on two others
    assert options(padded, "norm", "statistics_over") == [("none", "valid"), ("layer", "all"), ("layer", "valid")]


def test_the_name_of_a_trial_is_a_hash_of_all_that_it_depends_on() -> None:
    config = make_config({"steps": 5})
    names = {Trial("train", config).name, Trial("other", config).name}
    names |= {Trial("train", make_config({"steps": 5, **more})).name for more in ({"seed": 1}, {"lr": 0.2})}
    assert len(names) == 4
    assert Trial("train", config).name == Trial("train", make_config({"steps": 5})).name


def test_the_order_of_options_changes_nothing(words: Path) -> None:
    axes = {"norm": ("none", "batch"), "lr": (0.1, 0.3), "seed": (0, 1), "data": (str(words),)}
    one, other = (make_grid("train", dict(items)) for items in (axes.items(), reversed(axes.items())))
    assert list(one.trials()) == list(other.trials())
    assert json.dumps(one.as_dict()) == json.dumps(other.as_dict())
    backwards = one.as_dict() | {"axes": dict(reversed(one.as_dict()["axes"].items()))}
    assert list(Grid.from_dict(backwards).trials()) == list(one.trials())


def test_a_grid_survives_its_json(words: Path) -> None:
    grid = small_grid(words, lr=(0.1, 0.3))
    assert Grid.from_dict(grid.as_dict()) == grid


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"norm": []}, "grid: at least one value of each option, got none."),
        (
            {"seed": list(range(1001)), "lr": [0.1] * 1000},
            "grid: at most 1,000,000 trials, got 1,001,000. Leave out values, or split the grid.",
        ),
    ],
)
def test_a_grid_of_somebody_else_is_checked(axes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Grid.from_dict({"measure": "train", "axes": axes})


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        (
            {"norm": ("none", "batch"), "batch": (1, 32)},
            "impossible cell norm=batch batch=1: --batch: at least 2 with batch norm, got 1. Use --norm layer.",
        ),
        (
            {"norm": ("batch", "group"), "hidden": (8, 10)},
            "impossible cell norm=group hidden=10: groups: must divide the 10 features into groups of two or more, "
            "got 4. Choose another --groups or --hidden.",
        ),
        ({"max_length": (11, 44)}, "--max-length: only with --task gender, got --task words."),
        ({"momentum": (0.5,), "optimizer": ("adam",)}, "--momentum: only with --optimizer sgd, got --optimizer adam."),
        (
            {"hidden": (8, 10**6), "depth": (99,), "norm": ("none",)},
            "impossible cell hidden=1000000: memory: the run must fit into",
        ),
        (
            {"lr": tuple(range(1, 1002)), "init_scale": tuple(range(1, 1001))},
            "grid: at most 1,000,000 trials, got 4,004,000. Leave out values, or split the grid.",
        ),
    ],
)
def test_impossible_grids_are_refused(words: Path, axes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        small_grid(words, **axes)


def test_data_that_is_missing_is_said_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^--data: a file, names, surnames or words, got .*none\.txt, which does not"):
        make_grid("train", {"data": (str(tmp_path / "none.txt"),)})
    with pytest.raises(ValueError, match=r"^impossible cell max_length=3: --max-length: at least 11, "):
        make_grid("train", {"task": ("gender",), "max_length": (11, 3)})


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("lr", "0.1,x", "--lr: a number, got 'x'."),
        ("lr", "0.1,", "--lr: a number, got ''."),
        ("steps", "1e3", "--steps: a whole number, got '1e3'."),
        ("steps", "9" * 5000, "--steps: a whole number, got '9"),
        ("standardize", "maybe", "--standardize: yes or no, got 'maybe'."),
        ("lr", "0.1,0", "--lr: a number > 0, got '0'."),
        ("lr", "0.1,0.10", "--lr: different values, got 0.1 twice. Leave one out."),
        ("norm", "batch,", "--norm: one of 'none', 'batch', 'layer', 'rms' or 'group', got ''."),
        ("norm_at", "in", "--norm-at: one of 'before' or 'after', got 'in'."),
    ],
)
def test_values_of_an_axis_are_checked(name: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        parse_axis(name, text)


def test_values_have_the_types_of_the_options() -> None:
    assert parse_axis("batch", "8, 32") == (8, 32)
    assert parse_axis("standardize", "yes,no") == (True, False)
    assert parse_axis("max_length", "11") == (11,)


def test_the_estimate_is_the_time_of_preparation_steps_and_evaluations(
    words: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock goes on by 1 s for each step and by 10 s for each evaluation, and by nothing else."""
    clock = 0.0

    def passes(seconds: float, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any, **options: Any) -> Any:
            nonlocal clock
            clock += seconds
            return function(*given, **options)

        return timed

    monkeypatch.setattr("truenorm.lab.estimate.time.perf_counter", lambda: clock)
    monkeypatch.setattr(Trainer, "train_step", passes(1.0, Trainer.train_step))
    monkeypatch.setattr(Trainer, "evaluate", passes(10.0, Trainer.evaluate))
    short, long = (list(small_grid(words, seeds=1, norm=("batch",), steps=(n,)).trials()) for n in (100, 1000))
    first, second = estimate_seconds(short, 1), estimate_seconds(long, 1)
    assert 1 + 100 + 50 * 10 < first < 1 + 100 + 50 * 10 + 10 * 20  # and evaluations of all examples at the end
    assert second - first == pytest.approx(900)
    assert estimate_seconds(short * 3 + long, 4) == pytest.approx(3 * first + second)
    assert estimate_seconds(long * 100, 100) == pytest.approx(100 * second)
    assert estimate_seconds([], 0) == 0


@pytest.mark.parametrize("axis", ["depth", "steps", "block"])
@pytest.mark.parametrize("norms", [2, 5])
def test_the_estimate_counts_every_value_of_an_option_that_takes_time(
    norms: int, axis: str, words: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials at equal distances in this grid would all have the first value of the option."""
    clock = 0.0

    def train_step(trainer: Trainer) -> float:
        nonlocal clock
        clock += trainer.config.depth * trainer.config.block
        return 0.0

    monkeypatch.setattr("truenorm.lab.estimate.time.perf_counter", lambda: clock)
    monkeypatch.setattr(Trainer, "train_step", train_step)
    names = ("none", "batch", "layer", "rms", "group")[:norms]
    grid = small_grid(words, seeds=5, **{"steps": (100,), "norm": names, axis: (1, 20)})
    expected = [estimate_seconds([trial], 1) for trial in grid.trials()]
    assert estimate_seconds(grid.trials(), len(grid)) == pytest.approx(sum(expected))
    shard = list(grid.trials())[::2]
    assert estimate_seconds(shard, len(shard)) == pytest.approx(sum(expected[::2]))


def test_the_estimate_draws_from_many_groups(words: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, timed = 0.0, []

    def train_step(trainer: Trainer) -> float:
        nonlocal clock
        clock += 0.1 * trainer.config.hidden
        timed.append(trainer.config)
        return 0.0

    monkeypatch.setattr("truenorm.lab.estimate.time.perf_counter", lambda: clock)
    monkeypatch.setattr(Trainer, "train_step", train_step)
    grid = small_grid(words, norm=("none",), steps=(100,), hidden=tuple(range(1, 201)))
    found = estimate_seconds(grid.trials(), len(grid))
    assert len(set(timed)) == 16
    assert max(config.hidden * 0.1 * timed.count(config) for config in timed) < 45  # a large network takes fewer steps
    assert found == pytest.approx(len(grid) * 101 * 0.1 * 100.5, rel=0.4)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--norm", "none,batch", "--lr", "0.1,1e-05,3", "--seeds", "3"],
        ["--task", "table", "--data", "students", "--standardize", "yes,no", "--seeds", "1"],
        ["--task", "gender", "--statistics-over", "valid,all", "--max-length", "11,44", "--dropout", "0,0.5"],
        ["--data", "surnames", "--momentum", "0.5", "--dtype", "float64", "--batch", "8", "--seeds", "2"],
    ],
)
def test_the_command_line_of_a_grid_makes_it_again(arguments: list[str]) -> None:
    grid = grid_of(arguments)
    line = grid.command_line("a directory")
    assert line is not None
    assert line[:2] == ["truenorm", "compare"]
    assert line[-2:] == ["--out", "a directory"]
    assert grid_of(line[2:-2]) == grid
    assert Grid("train", {"seed": (3, 4)}).command_line("out") is None
    assert Grid("undo", {"seed": (0, 1)}).command_line("out") is None


def grid_of(arguments: list[str]) -> Grid:
    given = compare_command.make_context("compare", list(arguments)).params
    axes = {name: text for name, text in given.items() if name in Config.model_fields and text is not None}
    return _grid(axes, given["seeds"], None)
