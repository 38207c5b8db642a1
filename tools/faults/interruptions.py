"""Kills and signals: whatever was saved stays, and the resumed run ends with the same bits."""

from __future__ import annotations

import signal
import time

from tools.faults.command import Ended, kill_me, signal_me
from tools.faults.laboratory import SAVED, Attempt, steps_shown

REACTION = 1.0  # seconds of processor time from a signal to the exit
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
STOPPED = 130  # the exit code of a run that was stopped and saved
WITHIN = "Stopped within a step."  # a step that takes too long, as on a very busy machine, is not waited for


def kill(attempt: Attempt) -> None:
    """SIGKILL once or several times, at file operations or at any time, then resume."""
    rng, attempt.attacks, saved = attempt.rng, 0, 0
    before = attempt.snapshot()
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if rng.random() < 0.7:
            end = attempt.begin(moment=attempt.some_call(kill_me)).wait()
        else:
            child, seconds = attempt.begin(new=attempt.is_new()), attempt.some_time()
            time.sleep(seconds)
            child.signal(signal.SIGKILL)
            end = child.wait()
            attempt.done.append(f"after {seconds:.3f} s")
        attempt.attacks += end.code == -signal.SIGKILL
        attempt.check_end(end)
        saved = _check_saved(attempt, end, saved)
    attempt.check_finishes()
    attempt.check_outside(before)


def _check_saved(attempt: Attempt, end: Ended, before: int) -> int:
    """Checkpoints never go back, and hold all but the last of the reported steps."""
    step = attempt.saved_step()
    # A report is shown just before its save.
    shown = max(steps_shown(end)[:-1], default=0)
    if step < max(before, shown):
        attempt.problem("lost", f"step {max(before, shown)} was saved, the checkpoint holds step {step}")
    return step


def send_signals(attempt: Attempt) -> None:
    """One signal or two, at a file operation or at any time; then resume."""
    rng, before = attempt.rng, attempt.snapshot()
    numbers = [rng.choice((*STOPS, signal.SIGPIPE))]
    if rng.random() < 0.4:
        numbers.append(rng.choice(STOPS))
    attempt.done.append(" and ".join(number.name for number in numbers))
    if rng.random() < 0.5:
        moment = attempt.some_call(signal_me(*numbers))
        end = attempt.begin(moment=moment).wait()
        attempt.attacks = 0 if 0 < end.calls < moment.call else len(numbers)
    else:
        child, seconds = attempt.begin(new=attempt.is_new()), attempt.some_time()
        attempt.done.append(f"after {seconds:.3f} s")
        attempt.attacks = 0
        child.await_command()
        time.sleep(seconds)
        for number in numbers:
            attempt.attacks += child.signal(number)
            time.sleep(rng.choice((0.0, 0.001)))
        end = child.wait()
        attempt.slowest = end.seconds if attempt.attacks else 0.0
    _check_stopped(attempt, end)
    attempt.check_finishes()
    attempt.check_outside(before)


def _check_stopped(attempt: Attempt, end: Ended) -> None:
    """Stopped, with everything saved, and a message and an exit code that say so."""
    attempt.check_end(end)
    if attempt.slowest and end.cpu_seconds > REACTION:
        attempt.problem("hangs", f"{end.cpu_seconds:.1f} s from the signal to the exit")
    shown, step = max(steps_shown(end), default=0), attempt.saved_step()
    complete = (attempt.directory / "result.json").exists()
    if WITHIN in end.err:
        shown -= 1  # it may have been shown, but not yet saved
    if step < shown:
        attempt.problem("lost", f"step {shown} was reported, the checkpoint holds step {step}: {end}")
    if complete or shown <= 0:  # the signal came after the last step, or before the first
        return
    saved = SAVED.search(end.err)
    if end.code != STOPPED:
        attempt.problem("exits", f"expected exit code {STOPPED}: {end}")
    elif not saved and WITHIN not in end.err:
        attempt.problem("exits", f"expected the step that was saved: {end}")
    elif saved and int(saved[1]) != step:
        attempt.problem("lost", f"step {saved[1]} was reported as saved, the checkpoint holds step {step}")
