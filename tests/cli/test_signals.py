"""Signals to a run and to trials: what is finished is kept, and nothing that takes long is waited for."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from runs import contents, ignore_report, never, small_config

from truenorm.cli import main
from truenorm.cli.signals import SIGNALS, StopSignals
from truenorm.lab import run


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_interrupts_before_the_first_step_and_stops_after_it(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    inherited = signal.signal(number, signal.default_int_handler)  # nohup ignores SIGHUP
    with StopSignals("") as stop:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        assert not stop.should_stop()
    with StopSignals("") as stop:
        stop.expect_steps("")
        assert not stop.should_stop()
        signal.raise_signal(number)
        assert stop.should_stop()
        signal.raise_signal(number)  # the same Ctrl-C, forwarded by another process
        assert stop.should_stop()
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + 2)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.signal(number, inherited) is signal.default_int_handler


def test_nohup_is_respected() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals("") as stop:
            signal.raise_signal(signal.SIGHUP)
            stop.expect_steps("")
            signal.raise_signal(signal.SIGHUP)
            assert not stop.should_stop()
    finally:
        signal.signal(signal.SIGHUP, before)


# The command is interrupted, and once more while it says so.
TWICE = """
import click, signal, time
from truenorm import cli
from truenorm.cli.signals import StopSignals

def interrupted(*_, **__):
    with StopSignals(""):
        signal.raise_signal(signal.SIGTERM)
        time.sleep(5)

def interrupted_again(*given, **options):
    signal.raise_signal(signal.SIGINT)
    echo(*given, **options)

cli._run = interrupted
echo, click.echo = click.echo, interrupted_again
cli.main([])
"""


def test_a_second_signal_does_not_interrupt_the_handling_of_the_first() -> None:
    done = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "truenorm: interrupted.\n")


# A function in C that computes for minutes, during which Python runs no signal handlers.
LONG = "hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)"


def processor_time(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def stopped(code: str, *arguments: str) -> str:
    """The last line of a command that gets SIGTERM while it computes, in code that defines `compute`."""
    whole = f"""
import hashlib
from truenorm.cli import main
def compute(*_, **__):
    print("computing", flush=True)
    {LONG}
{code}
main()
"""
    with subprocess.Popen(
        [sys.executable, "-c", whole, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert "computing\n" in process.stdout  # reads until then
            before = processor_time(process.pid)
            while processor_time(process.pid) < before + 0.1:  # now it is inside of the function in C
                time.sleep(0.02)
            sent = time.monotonic()
            process.send_signal(signal.SIGTERM)
            _, message = process.communicate(timeout=60)
        finally:
            process.kill()
    assert time.monotonic() - sent < 5  # a second, on a machine that is not busy
    assert process.returncode == 130
    return message.splitlines()[-1]


@pytest.mark.parametrize("slow", ["run.prepare", "Trainer.train_step", "Trainer.evaluate"])
def test_the_reaction_of_a_run_takes_a_second(words: Path, tmp_path: Path, slow: str) -> None:
    out = tmp_path / "run"
    code = f"from truenorm.lab import run; from truenorm.lab.training import Trainer; {slow} = compute"
    last = stopped(code, "train", "--data", str(words), "--steps", "1", "--out", str(out))
    if slow == "run.prepare":
        assert last == "truenorm: interrupted."
        assert not out.exists()
    else:
        again = f"truenorm train --resume --out {out}"
        assert last == f"Stopped within a step. To continue from the last checkpoint: {again}"
        assert run.resume(out, ignore_report, never)["steps"] == 1


# Of two trials of this process, the second computes for minutes.
SECOND_TRIAL = """
from truenorm.lab.measures import MEASURES
for name, measure in list(MEASURES.items()):
    MEASURES[name] = lambda config, measure=measure: compute() if config.seed % 2 else measure(config)
"""


@pytest.mark.parametrize("command", ["compare", "claims"])
def test_the_reaction_of_trials_in_this_process_takes_a_second(command: str, words: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ["--only", "undo"] if command == "claims" else ["--data", str(words), "--hidden", "8", "--steps", "2"]
    last = stopped(SECOND_TRIAL, command, *options, "--seeds", "2", "--workers", "1", "--out", str(out))
    assert last == "Stopped within a trial. " + (
        f"To go on: truenorm compare --out {out} --workers 1"
        if command == "compare"
        else f"Finished trials are in {out}; the same command goes on."
    )
    assert len(list(out.glob("trial-*.json"))) == 1
    with pytest.raises(SystemExit) as done:
        main([command, *options, "--seeds", "2", "--workers", "1", "--out", str(out)])
    assert done.value.code == 0
    assert len(list(out.glob("trial-*.json"))) == 2


@pytest.mark.slow
def test_the_reaction_of_a_plan_takes_a_second(words: Path) -> None:
    code = "from truenorm.lab.training import Trainer; Trainer.train_step = compute"
    assert stopped(code, "compare", "--data", str(words), "--dry-run") == "truenorm: interrupted."


def test_a_run_can_be_stopped_in_its_last_evaluation(words: Path, tmp_path: Path) -> None:
    config = small_config(words, steps=10)
    run.start(tmp_path / "whole", config, ignore_report, never)
    for after in (10, 11):
        out, answers = tmp_path / f"run{after}", iter([False] * after + [True])
        with pytest.raises(run.Stopped, match="stopped and saved after step 10"):
            run.start(out, config, ignore_report, answers.__next__)
        assert not (out / "result.json").exists()
        run.resume(out, ignore_report, never)
        assert contents(out) == contents(tmp_path / "whole")


def test_checkpoints_are_also_saved_between_reports(
    words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "CHECKPOINT_SECONDS", 0)
    monkeypatch.setattr(run, "CHECKPOINT_SHARE", 1e9)

    def crash(_: run.Report) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        run.start(tmp_path / "run", small_config(words, steps=1000), crash, never)
    assert run.load(tmp_path / "run").step == 9
