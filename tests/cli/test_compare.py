"""`truenorm compare`: plan, run, stop, go on, merge; bad input in one line."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from truenorm.cli import main
from truenorm.lab.executors import Workers, in_process
from truenorm.lab.grid import Grid
from truenorm.lab.results import Results, make_plan


def called(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["compare", *arguments])
    printed = capsys.readouterr()
    return int(stop.value.code or 0), printed.out, printed.err


def small(words: Path, *more: str) -> list[str]:
    return ["--data", str(words), "--hidden", "8", "--steps", "20", "--norm", "none,batch", "--seeds", "2", *more]


def contents(directory: Path) -> dict[str, bytes]:
    """All files that do not depend on the machine."""
    return {file.name: file.read_bytes() for file in directory.iterdir() if file.name not in ("machine.json", "lock")}


def run_whole(words: Path, out: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, bytes]:
    code, _, _ = called(capsys, *small(words, *more), "--workers", "1", "--out", str(out))
    assert code == 0
    return contents(out)


def test_a_dry_run_shows_the_grid_and_a_time_and_writes_nothing(
    words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = called(capsys, *small(words), "--lr", "0.1,0.3,1", "--dry-run", "--workers", "2")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert "            norm  none, batch" in lines
    assert "              lr  0.1, 0.3, 1.0" in lines
    assert "            seed  0 to 1" in lines
    assert lines[-1].startswith("12 trials; about ")
    assert lines[-1].endswith(" s with 2 workers of this machine.")
    assert {file.name for file in tmp_path.iterdir()} == {"words.txt"}


def test_more_workers_than_processors_are_not_faster(
    words: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("truenorm.cli.compare.estimate_seconds", lambda trials, count: 60.0 * len(list(trials)))
    monkeypatch.setattr("truenorm.cli.compare.default_workers", lambda: 2)
    for workers, seconds in (("1", "40 min"), ("2", "20 min"), ("1000", "20 min")):
        arguments = small(words, "--seeds", "20", "--dry-run", "--workers", workers)
        out = called(capsys, *arguments)[1]
        assert f"40 trials; about {seconds} with {workers} worker" in out


def test_the_cells_are_shown_best_first_and_written_as_csv(
    words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, table = tmp_path / "out", tmp_path / "trials.csv"
    arguments = [*small(words, "--lr", "0.1,1e30", "--activation", "relu"), "--workers", "1", "--out", str(out)]
    code, shown, err = called(capsys, *arguments, "--csv", str(table))
    assert code == 0
    assert "8 of 8 trials\n" in err
    header, *rows = (line.split() for line in shown.splitlines()[:5])
    assert header == ["norm", "lr", "held-out", "loss", "accuracy", "trials", "diverged"]
    assert [row[0] for row in rows if row[1] == "0.1"] == [row[0] for row in rows[:2]]
    assert [row[-2:] for row in rows if row[:2] == ["none", "1e+30"]] == [["2", "2"]]
    assert shown.endswith(f"Saved in {out}. To see more: truenorm report {out}\n")
    with table.open(encoding="utf-8", newline="") as file:
        written = list(csv.DictReader(file))
    assert len(written) == 8
    means = {}
    for row in rows[:2]:
        losses = [float(one["held_out_loss"]) for one in written if (one["norm"], one["lr"]) == (row[0], "0.1")]
        means[row[0]] = sum(losses) / 2
        assert row[2] == f"{means[row[0]]:.3f}"
    assert list(means.values()) == sorted(means.values())
    assert {one["held_out_loss"] for one in written if one["diverged"]} == {""}


@pytest.mark.parametrize("source", ["words", "surnames"])
def test_a_list_of_the_lab_is_no_file(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--data", source, "--norm", "none", "--hidden", "4", "--steps", "2", "--seeds", "1", "--workers", "1"]
    code, _, err = called(capsys, *options, "--out", "out")
    assert (code, err) == (0, "1 of 1 trials\n")
    assert list(json.loads(Path("out/grid.json").read_text())["data"]) == [f"words {source}"]


def test_shards_that_are_merged_equal_the_whole(
    words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = run_whole(words, tmp_path / "whole", capsys)
    assert len(whole) == 5
    for number in (1, 2):
        shard = ["--shard", f"{number}/2", "--workers", "1", "--out", str(tmp_path / f"part{number}")]
        code, out, _ = called(capsys, *small(words), *shard)
        assert code == 0
        assert out.startswith(f"Shard {number}/2: 2 of 2 trials are done.\n")
    first, both = str(tmp_path / "part1"), ["--merge", str(tmp_path / "part1"), "--merge", str(tmp_path / "part2")]
    code, out, err = called(capsys, "--merge", first, "--out", str(tmp_path / "half"))
    assert code == 0
    assert err == f"{first}: 2 new trials.\n"
    assert f"2 of 4 trials are missing. To run them: truenorm compare --out {tmp_path}/half\n" in out
    code, _, _ = called(capsys, *both, "--out", str(tmp_path / "merged"))
    assert code == 0
    assert contents(tmp_path / "merged") == whole
    code, _, err = called(capsys, "--out", str(tmp_path / "half"), "--workers", "1")
    assert (code, contents(tmp_path / "half")) == (0, whole)
    assert err.startswith("2 of 4 trials are there already.\n")


def test_failed_trials_are_listed_and_tried_again(
    words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fake_trials import fail_for_seed_1, fake_work

    out = tmp_path / "out"
    arguments = [*small(words), "--workers", "1", "--out", str(out)]
    monkeypatch.setattr("truenorm.lab.dispatch.run_all.__defaults__", (fail_for_seed_1,))
    code, _, err = called(capsys, *arguments)
    assert code == 3
    *failures, last = err.splitlines()[-3:]
    assert [line.split(": ", 2)[2] for line in failures] == ["seed: not 1, got 1."] * 2
    assert last == (
        f"2 of 4 trials failed. All are listed in {out}/machine.json. "
        f"To try them again: truenorm compare --out {out} --workers 1"
    )
    machine = json.loads((out / "machine.json").read_text())
    assert len(machine["failed"]) == 2
    assert [(one["trials"], one["workers"]) for one in machine["sessions"]] == [(2, 1)]
    monkeypatch.setattr("truenorm.lab.dispatch.run_all.__defaults__", (fake_work,))
    assert called(capsys, *arguments)[0] == 0
    machine = json.loads((out / "machine.json").read_text())
    assert machine["failed"] == {}
    assert [one["trials"] for one in machine["sessions"]] == [2, 2]


def test_what_depends_on_the_machine_is_written_now_and_then(
    words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed writes nothing at its end."""
    monkeypatch.setattr("truenorm.cli.trials.WRITE_SECONDS", -1.0)
    monkeypatch.setattr(Results, "__exit__", lambda results, *_: results._files.__exit__(None, None, None))
    run_whole(words, tmp_path / "out", capsys)
    machine = json.loads((tmp_path / "out/machine.json").read_text())
    assert (len(machine["seconds"]), machine["sessions"][0]["trials"]) == (4, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--out: needs the directory of the results, got none. Or use --dry-run. See 'truenorm compare --help'."),
        (
            ["--norm", "none,batch", "--batch", "1,8", "--out", "new"],
            "impossible cell norm=batch batch=1: --batch: at least 2 with batch norm, got 1. Use --norm layer.",
        ),
        (
            ["--data", "", "--out", "new"],
            "--data: must be the name of a file, names, surnames, words or students, got ''.",
        ),
        (
            ["--norm", "batsh", "--out", "new"],
            "--norm: one of 'none', 'batch', 'layer', 'rms' or 'group', got 'batsh'.",
        ),
        (
            ["--norm", "none", "--csv", "none/trials.csv", "--out", "new"],
            "--csv: a file in a directory that exists, got none/trials.csv.",
        ),
        (
            ["--norm", "none", "--csv", "/dev/null", "--out", "new"],
            "--csv: an ordinary file or a new one, got /dev/null.",
        ),
        (
            ["--merge", ".", "--dry-run"],
            "--merge: needs --out, and takes no --dry-run. See 'truenorm compare --help'.",
        ),
        (
            ["--norm", "none", "--shard", "3/2", "--out", "new"],
            "Invalid value for '--shard': must be I/N with I from 1 to N, such as 1/2, got '3/2'. "
            "See 'truenorm compare --help'.",
        ),
        (
            ["--norm", "none", "--dask", "127.0.0.1:1", "--out", "new"],
            "--dask: the address of a running scheduler, such as tcp://host:8786, got 127.0.0.1:1, which cannot be "
            "reached ([Errno 111] Connection refused). Start one: dask scheduler",
        ),
        (
            ["--norm", "none", "--dask", "127.0.0.1:1", "--workers", "2", "--out", "new"],
            "--workers: not with --dask, whose workers are started by dask worker. See 'truenorm compare --help'.",
        ),
        (
            ["--task", "words,gender", "--out", "new"],
            "--task: one value, as losses of different tasks cannot be compared, got words, gender.",
        ),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert called(capsys, *arguments) == (2, "", f"truenorm: {message}\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("precious", ["words.txt", "out/grid.json"])
def test_csv_replaces_only_a_table_of_trials(
    precious: str, words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    again = ("--out", "out", "--workers", "1")
    assert called(capsys, *small(words), *again, "--csv", "trials.csv")[0] == 0
    assert called(capsys, *again, "--csv", "trials.csv")[0] == 0
    before = Path(precious).read_bytes()
    problem = f"truenorm: {precious}: exists and is not a table of trials. Choose another name, or remove it.\n"
    assert called(capsys, *again, "--csv", precious) == (2, "", problem)
    assert called(capsys, "--merge", "out", "--out", "all", "--csv", precious) == (2, "", problem)
    assert Path(precious).read_bytes() == before
    assert not Path("all").exists()


def test_a_mistyped_directory_starts_nothing(
    words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_whole(words, tmp_path / "part", capsys, "--seeds", "1")
    monkeypatch.chdir(tmp_path)
    Path("none").mkdir()
    before = sorted(tmp_path.rglob("*"))
    assert called(capsys, "--out", "prt") == (2, "", "truenorm: prt: not a results directory, it does not exist.\n")
    problem = "truenorm: none: not a results directory, it has no grid.json.\n"
    assert called(capsys, "--out", "none") == (2, "", problem)
    for others in (["none", "part"], ["part", "none"]):
        merged = [word for other in others for word in ("--merge", other)]
        assert called(capsys, *merged, "--out", "new") == (2, "", problem)
    assert sorted(tmp_path.rglob("*")) == before
    words.unlink()
    assert called(capsys, "--merge", "part", "--out", "new")[0] == 0


def test_the_results_of_claims_are_no_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Results(Path("claims"), make_plan([Grid("undo", {"seed": (0, 1)})])):
        pass
    message = "truenorm: claims: holds the results of truenorm claims, not of a comparison. Choose another.\n"
    assert called(capsys, "--out", "claims") == (2, "", message)
    assert called(capsys, "--merge", "claims", "--out", "new") == (2, "", message)


def test_results_of_another_version_are_refused(
    words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_whole(words, tmp_path / "out", capsys)
    plan = json.loads((tmp_path / "out/grid.json").read_text())
    (tmp_path / "out/grid.json").write_text(json.dumps(plan | {"format": "truenorm-results-0"}))
    message = f"truenorm: {tmp_path}/out: the results are of another version of truenorm. Choose another directory.\n"
    for arguments in ([], small(words)):
        assert called(capsys, *arguments, "--out", str(tmp_path / "out")) == (2, "", message)


def test_a_cluster_is_left_when_the_directory_cannot_be_used(
    words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []
    pool = Workers(1, 0, in_process().open, close=lambda: closed.append(True))
    monkeypatch.setattr("truenorm.cli.trials.cluster", lambda address: pool)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/precious.txt").touch()
    code, _, err = called(capsys, *small(words), "--out", str(tmp_path / "out"), "--dask", "x:1")
    assert (code, closed) == (2, [True])
    assert "a new or empty directory, got one with precious.txt" in err


def test_seeds_can_be_added(words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = run_whole(words, tmp_path / "whole", capsys, "--seeds", "3")
    run_whole(words, tmp_path / "out", capsys)
    code, _, err = called(capsys, *small(words, "--seeds", "3"), "--workers", "1", "--out", str(tmp_path / "out"))
    assert code == 0
    assert err.startswith("4 of 6 trials are there already.\n")
    assert contents(tmp_path / "out") == whole


# ---- a cluster ----


@pytest.mark.slow
def test_a_cluster_gives_the_same_bytes_and_a_killed_worker_is_replaced(
    words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = run_whole(words, tmp_path / "whole", capsys, "--seeds", "4")
    code = (
        "from distributed import LocalCluster\n"
        "cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)\n"
        "print(cluster.scheduler_address, *[one.pid for one in cluster.workers.values()], flush=True)\n"
        "input()"  # until it is killed
    )
    guarded = f"if __name__ == '__main__':\n  exec({code!r})"
    with subprocess.Popen(
        [sys.executable, "-c", guarded], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as cluster:
        assert cluster.stdout is not None
        address, *pids = cluster.stdout.readline().split()
        assert called(capsys, *small(words, "--seeds", "4"), "--out", str(tmp_path / "out"), "--dask", address)[0] == 0
        assert contents(tmp_path / "out") == whole
        arguments = small(words, "--seeds", "4", "--steps", "2000", "--dask", address)
        process = start_and_wait_for_a_trial(arguments, tmp_path / "long")
        os.kill(int(pids[0]), signal.SIGKILL)
        process.communicate(timeout=300)
        assert process.returncode == 0
        assert len(contents(tmp_path / "long")) == 9
        (event,) = json.loads((tmp_path / "long/machine.json").read_text())["events"]
        assert event.startswith(f"{address} lost the worker tcp://")
        gone = start_and_wait_for_a_trial([*arguments, "--lr", "0.2"], tmp_path / "gone")
        cluster.kill()
        _, err = gone.communicate(timeout=120)
    assert gone.returncode == 2
    assert [line for line in err.splitlines() if not re.match(r"\d+ of \d+ trials|tcp://", line)] == [
        "truenorm: the scheduler of the cluster is gone. Finished trials are saved; the same command goes on with the "
        "others."
    ]


# ---- interruptions, in processes ----

LIMITED = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500)); "
MAIN = "import sys; from truenorm.cli import main; main(sys.argv[1:])"


def test_a_full_disk_is_one_line(words: Path, tmp_path: Path) -> None:
    code = "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); " + LIMITED + MAIN
    command = [sys.executable, "-c", code, "compare", *small(words), "--workers", "1", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"truenorm: {tmp_path}/out/trial-")
    assert done.stderr.endswith(".json: File too large.\n")
    assert [file.name for file in (tmp_path / "out").iterdir() if file.name.startswith((".", "trial"))] == []


def start_and_wait_for_a_trial(arguments: list[str], out: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "truenorm", "compare", *arguments, "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until = time.monotonic() + 60
    while not list(out.glob("trial-*")):
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)
    return process


@pytest.mark.slow
def test_ctrl_c_while_the_workers_start_is_one_line(words: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "truenorm", "compare", *small(words, "--workers", "2"), "--out", str(out)]
    command += ["--steps", "100000"]
    stopped = f"Stopped after 0 of 4 trials. To go on: truenorm compare --out {out} --workers 2"
    for delay in (0.0, 0.1, 0.2, 0.4):
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
            while not (out / "grid.json").exists():
                time.sleep(0.01)
            time.sleep(delay)
            os.killpg(process.pid, signal.SIGINT)
            _, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert err.strip() in (stopped, "truenorm: interrupted.")
        for file in out.iterdir():
            file.unlink()


@pytest.mark.parametrize(
    ("number", "workers"),
    [
        (signal.SIGINT, "1"),
        pytest.param(signal.SIGINT, "2", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, "2", marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, "2", marks=pytest.mark.slow),
    ],
)
def test_what_is_finished_stays_and_the_same_command_goes_on(
    number: signal.Signals, workers: str, words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    process = start_and_wait_for_a_trial(small(words, "--steps", "400", "--seeds", "6", "--workers", workers), out)
    os.killpg(process.pid, number) if number != signal.SIGKILL else process.kill()
    _, err = process.communicate(timeout=60)
    done = len(list(out.glob("trial-*")))
    assert 0 < done < 12
    if number == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
    else:
        assert process.returncode == 130
        again = f"truenorm compare --out {out} --workers {workers}"
        assert err.splitlines()[-1] == f"Stopped after {done} of 12 trials. To go on: {again}"
        assert "Traceback" not in err
    before = contents(out)
    assert called(capsys, "--out", str(out), "--workers", "1")[0] == 0
    whole = run_whole(words, tmp_path / "whole", capsys, "--steps", "400", "--seeds", "6")
    assert contents(out) == whole
    assert before.items() <= whole.items()
