"""A results directory: the same bytes however it was made, resumed, merged, and never trusted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from fake_trials import fake_work, small_grid
from runs import ignore_report, never

from truenorm.lab import checkpoint, run
from truenorm.lab import results as store
from truenorm.lab.config import make_config
from truenorm.lab.grid import Grid
from truenorm.lab.results import Results, make_plan
from truenorm.lab.summary import summarize
from truenorm.lab.trial import Trial, run_trial


def filled(directory: Path, grid: Grid, trials: Iterable[Trial] | None = None) -> None:
    with Results(directory, make_plan([grid])) as results:
        for trial in grid.trials() if trials is None else trials:
            results.add(trial, *fake_work(trial))


def contents(directory: Path) -> dict[str, bytes]:
    """All files that do not depend on the machine."""
    return {file.name: file.read_bytes() for file in directory.iterdir() if file.name not in ("machine.json", "lock")}


# ---- trials ----


def test_a_trial_ends_with_the_numbers_of_truenorm_train(words: Path, tmp_path: Path) -> None:
    config = make_config({"data": str(words), "hidden": 8, "steps": 60, "dropout": 0.1})
    trial = Trial("train", config)
    result = trial.decode(run_trial(trial))
    assert result is not None
    trained = run.start(tmp_path / "run", config, ignore_report, never)
    assert {name: result[name] for name in trained} == trained
    assert result["diverged"] is None
    assert result["curve"]["step"] == list(range(1, 61))
    reports = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert result["curve"]["loss"] == [report["loss"] for report in reports]
    assert result["curve"]["held_out"] == [report["held_out"] for report in reports]


def test_every_configuration_is_read_back() -> None:
    """A tuple comes back from JSON as a list."""
    config = make_config({"steps": 5})
    for trial in (Trial("undo", config), Trial("undo", config.extended(3))):
        assert trial.decode(trial.encode({"error": 1.5})) == {"error": 1.5}
    assert Trial("train", config).name != Trial("train", config.extended(3)).name


def test_a_trial_that_diverges_has_a_result(words: Path) -> None:
    config = make_config({"data": str(words), "norm": "none", "activation": "relu", "lr": 1e30, "steps": 100})
    trial = Trial("train", config)
    result = trial.decode(run_trial(trial))
    assert result is not None
    assert 1 <= result["diverged"] == result["steps"] < 100
    assert (result["train"], result["held_out"], result["baseline"]["beaten"]) == (None, None, False)


# ---- resuming and merging ----


def test_a_directory_has_the_same_bytes_in_whatever_order_and_parts_it_was_filled(words: Path, tmp_path: Path) -> None:
    grid = small_grid(words, seeds=3)
    trials = list(grid.trials())
    filled(tmp_path / "whole", grid)
    filled(tmp_path / "backwards", grid, trials[::-1])
    filled(tmp_path / "part1", grid, trials[::2])
    filled(tmp_path / "part2", grid, trials[1::2])
    filled(tmp_path / "part1", grid, trials[1:2])  # opened again
    with Results(tmp_path / "merged", make_plan([grid])) as merged:
        assert merged.merge(tmp_path / "part1") == 4
        assert merged.merge(tmp_path / "part2") == 2
        assert merged.merge(tmp_path / "part2") == 0
    expected = contents(tmp_path / "whole")
    assert len(expected) == 7
    assert contents(tmp_path / "backwards") == contents(tmp_path / "merged") == expected


def test_finished_trials_are_known_and_read_in_the_order_of_the_grid(words: Path, tmp_path: Path) -> None:
    grid = small_grid(words)
    trials = list(grid.trials())
    filled(tmp_path / "out", grid, [trials[2], trials[0]])
    with Results(tmp_path / "out", make_plan([grid])) as results:
        assert results.finished() == {trials[0].name, trials[2].name}
    grids, found = store.read(tmp_path / "out")
    assert grids == [grid]
    read = list(found)
    assert [trial for trial, _ in read] == trials
    assert [result is not None for _, result in read] == [True, False, True, False]
    assert read[2][1] == trials[2].decode(fake_work(trials[2])[0])


def damage(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b'"loss"', b'"lost"', 1))


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def swap(file: Path) -> None:
    other = next(one for one in sorted(file.parent.glob("trial-*")) if one != file)
    file.write_bytes(other.read_bytes())


def empty(file: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.parametrize("spoil", [damage, cut, swap, empty])
def test_a_damaged_trial_counts_as_missing(words: Path, tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    grid = small_grid(words)
    filled(tmp_path / "out", grid)
    first = next(grid.trials())
    before = contents(tmp_path / "out")
    spoil(tmp_path / f"out/trial-{first.name}.json")
    with Results(tmp_path / "out", make_plan([grid])) as results:
        finished = results.finished()
        assert finished == {trial.name for trial in grid.trials()} - {first.name}
        results.add(first, *fake_work(first))
    assert contents(tmp_path / "out") == before


def test_an_option_without_a_meaning_is_an_empty_cell(words: Path) -> None:
    grid = small_grid(words, seeds=1, norm_at=("before", "after"))
    trials = [(trial, trial.decode(fake_work(trial)[0])) for trial in grid.trials()]
    cells = summarize(trials, grid.varied())
    assert [cell.options for cell in cells] == [
        {"norm": "none", "norm_at": ""},
        {"norm": "batch", "norm_at": "before"},
        {"norm": "batch", "norm_at": "after"},
    ]


# ---- refused directories ----


def test_another_grid_is_refused_unless_it_may_be_replaced(words: Path, tmp_path: Path) -> None:
    filled(tmp_path / "out", small_grid(words))
    other = make_plan([small_grid(words, seeds=1, lr=(0.1, 0.2))])  # a seed less
    message = re.escape(f"{tmp_path}/out: holds the results of another grid")
    with pytest.raises(ValueError, match=rf"^{message}\. Choose another --out\.$"):
        Results(tmp_path / "out", other)
    with Results(tmp_path / "out", other, replace=True) as results:
        assert len(results.finished()) == 2  # lr 0.1 is the default
    with (
        Results(tmp_path / "new", make_plan([small_grid(words)])) as results,
        pytest.raises(ValueError, match=rf"^{message}, so it cannot be merged\.$"),
    ):
        results.merge(tmp_path / "out")


def test_values_and_seeds_can_be_added(words: Path, tmp_path: Path) -> None:
    filled(tmp_path / "out", small_grid(words))
    larger = small_grid(words, seeds=3, lr=(0.1, 0.2))
    with Results(tmp_path / "out", make_plan([larger])) as results:
        assert len(results.finished()) == 4
        finished = results.finished()
        for trial in larger.trials():
            if trial.name not in finished:
                results.add(trial, *fake_work(trial))
    filled(tmp_path / "whole", larger)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    "change",
    [
        lambda result: result.clear(),
        lambda result: result.pop("curve"),
        lambda result: result["held_out"].pop("loss"),
        lambda result: result.update(held_out=None),  # without `train` it must be null, too
        lambda result: result["held_out"].update(loss="low"),
        lambda result: result["held_out"].update(loss=float("nan")),
        lambda result: result["curve"]["loss"].pop(),
        lambda result: result.update(steps=None),
    ],
)
def test_a_result_of_another_form_counts_as_missing(
    words: Path, tmp_path: Path, change: Callable[[dict[str, Any]], Any]
) -> None:
    """Its digest is right: it is no secret, and a shard may come from somebody else."""
    trial = next(small_grid(words).trials())
    result = json.loads(fake_work(trial)[0])["result"]
    assert trial.decode(trial.encode(result)) == result
    change(result)
    content = {"digest": checkpoint.NO_DIGEST, "measure": "train", "config": trial.config.saved(), "result": result}
    assert trial.decode(checkpoint.seal(json.dumps(content).encode())) is None


def test_data_that_changed_is_noticed(words: Path, tmp_path: Path) -> None:
    filled(tmp_path / "out", small_grid(words))
    words.write_text(words.read_text() + "zoe\n")
    with pytest.raises(ValueError, match=r"the data 'words .*words\.txt' changed since these results\. Choose"):
        Results(tmp_path / "out", make_plan([small_grid(words)]))


def test_data_of_an_earlier_plan_is_checked_when_it_is_used_again(words: Path, tmp_path: Path) -> None:
    first, second = make_plan([small_grid(words)]), make_plan([Grid("undo", {"seed": (0,)})])
    for plan in (first, second):
        with Results(tmp_path / "out", plan, replace=True):
            pass
    words.write_text(words.read_text() + "zoe\n")
    with pytest.raises(ValueError, match=r"changed since these results\."):
        Results(tmp_path / "out", make_plan([small_grid(words)]), replace=True)


def change_plan(directory: Path, **entries: object) -> None:
    plan = json.loads((directory / "grid.json").read_text())
    (directory / "grid.json").write_text(json.dumps(plan | entries))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"format": "truenorm-results-0"}, "the results are of another version of truenorm. Choose another directory."),
        ({"truenorm": "0.0.1"}, "the results are of truenorm 0.0.1, not of {version}. Choose another directory."),
        ({"grids": [{"measure": "train", "axes": {"no_option": [1]}}]}, "grid.json is damaged or of another version"),
        ({"grids": [{"measure": "nothing", "axes": {}}]}, "grid.json is damaged or of another version of truenorm."),
        ({"grids": 3}, "grid.json is damaged or of another version of truenorm."),
        ({"data": 3}, "grid.json is damaged or of another version of truenorm."),
    ],
)
def test_other_versions_are_refused(words: Path, tmp_path: Path, entries: dict[str, object], message: str) -> None:
    plan = make_plan([small_grid(words)])
    filled(tmp_path / "out", small_grid(words))
    change_plan(tmp_path / "out", **entries)
    expected = re.escape(f"{tmp_path}/out: " + message.format(version=plan["truenorm"]))
    with pytest.raises(ValueError, match=f"^{expected}"):
        Results(tmp_path / "out", plan)


def test_a_directory_with_other_files_is_refused_and_left_alone(words: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/precious.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"out: a new or empty directory, got one with precious\.txt\. Choose"):
        Results(tmp_path / "out", make_plan([small_grid(words)]))
    with pytest.raises(ValueError, match=r"out: not a results directory, it has no grid\.json\."):
        store.read(tmp_path / "out")
    with pytest.raises(ValueError, match=r"none: not a results directory, it does not exist\."):
        store.read(tmp_path / "none")

    assert {file.name for file in (tmp_path / "out").iterdir()} == {"precious.txt"}  # no lock either


def test_a_directory_whose_first_write_was_killed_is_used(words: Path, tmp_path: Path) -> None:
    grid = small_grid(words)
    filled(tmp_path / "whole", grid)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/lock").touch()
    (tmp_path / "out/.grid.json.part").write_bytes(b'{"format": ')
    filled(tmp_path / "out", grid)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_merging_takes_over_what_is_damaged_and_what_is_known_about_the_machine(words: Path, tmp_path: Path) -> None:
    grid = small_grid(words)
    first, second, third, _ = grid.trials()
    filled(tmp_path / "out", grid, [first, second])
    damage(tmp_path / f"out/trial-{first.name}.json")
    filled(tmp_path / "part", grid, [first, third])
    with Results(tmp_path / "part", make_plan([grid])) as part:
        part.events.append("a worker ended")
        part.failed |= {second.name: "no memory", "other": "is not in the plan"}
        part.seconds[third.name] = 1.5
    words.unlink()  # merging needs no data
    with Results(tmp_path / "out", store.read_plan(tmp_path / "part")) as out:
        assert out.merge(tmp_path / "part") == 2
        assert out.finished() == {first.name, second.name, third.name}
        assert (out.events, out.failed, out.seconds[third.name]) == (["a worker ended"], {}, 1.5)
    with Results(tmp_path / "new", store.read_plan(tmp_path / "part")) as new:
        new.merge(tmp_path / "part")
        assert new.failed == {second.name: "no memory"}
    with Results(tmp_path / "new", store.read_plan(tmp_path / "part")) as again:
        assert again.failed == {second.name: "no memory"}


@pytest.mark.parametrize("number", ["Infinity", "NaN", "9" * 400, '"x"', "null"])
def test_no_result_depends_on_what_is_said_about_the_machine(words: Path, tmp_path: Path, number: str) -> None:
    grid = small_grid(words)
    filled(tmp_path / "out", grid)
    file = tmp_path / "out/machine.json"
    session = f'{{"trials": {number}, "workers": 1, "seconds": {number}}}'
    file.write_text(file.read_text().replace('"sessions": []', f'"sessions": [{session}]'))
    assert session in file.read_text()
    with Results(tmp_path / "out", make_plan([grid])) as results:
        assert len(results.finished()) == len(grid)


def test_two_processes_cannot_write_the_same_directory(words: Path, tmp_path: Path) -> None:
    plan = make_plan([small_grid(words)])
    with (
        Results(tmp_path / "out", plan),
        pytest.raises(ValueError, match=r"another process works on this run\. Wait for it, or choose another --out\."),
    ):
        Results(tmp_path / "out", plan)


def test_a_trial_that_is_a_link_is_refused(words: Path, tmp_path: Path) -> None:
    grid = small_grid(words)
    filled(tmp_path / "out", grid)
    file = tmp_path / f"out/trial-{next(grid.trials()).name}.json"
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with (
        Results(tmp_path / "out", make_plan([grid])) as results,
        pytest.raises(ValueError, match=r"must be an ordinary file, got a symbolic link\. Remove it\."),
    ):
        results.finished()
