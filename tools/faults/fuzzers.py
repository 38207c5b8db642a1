"""The fuzzers whose counts stand beside those of the attacks: each is a command, and its output holds the counts."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

CASES = r"([\d,]+) (?:cases|calls|inputs)\b"
FINDINGS = r"(\d+) failures|(FINDING)"
SHOWN = 20_000  # characters of the output of a fuzzer


class Fuzzer(NamedTuple):
    """`python -m MODULE OPTIONS` prints "9 cases", "9 calls" or "9 inputs", and "0 failures" or "FINDING"."""

    title: str
    module: str
    options: Sequence[str]


class Fuzzed(NamedTuple):
    cases: int
    findings: int


FUZZERS = {
    "results": Fuzzer("reference, kernels and torch layers against each other", "tools.fuzz", ("--cases", "50000")),
    "calls": Fuzzer("wrong calls of the kernels", "tools.fuzz", ("--kind", "calls", "--cases", "50000")),
    "commands": Fuzzer("hostile command lines", "tools.fuzz_commands", ("--cases", "5000", "--seconds", "3600")),
    "readers": Fuzzer("hostile text and files, coverage-guided", "tools.fuzz_readers", ("--seconds", "600")),
}


def run(name: str, seed: int) -> Fuzzed | None:
    """The counts of one fuzzer; None if it is not there or cannot run."""
    title, module, options = FUZZERS[name]
    if importlib.util.find_spec(module) is None:
        return None
    command = [sys.executable, "-m", module, *options, "--seed", str(seed)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, errors="replace", check=False)
    counts = read_counts(done.stdout)
    if counts.findings:  # with the commands that repeat them
        print(f"{title}:\n{done.stdout[-SHOWN:]}", file=sys.stderr)
    elif not counts.cases or done.returncode:
        print(f"{title}: not counted, exit code {done.returncode}:\n{done.stdout[-SHOWN:]}", file=sys.stderr)
    return counts if counts.cases else None


def read_counts(text: str) -> Fuzzed:
    """The sums of all counts in the output of a fuzzer.

    >>> read_counts("words    12,345 inputs, 10 of them new, no finding\\ntable 5 inputs, 0 of them new, FINDING: ...")
    Fuzzed(cases=12350, findings=1)
    >>> read_counts("50000 cases, 1234 computed, 2 failures")
    Fuzzed(cases=50000, findings=2)
    """
    cases = sum(int(number.replace(",", "")) for number in re.findall(CASES, text))
    return Fuzzed(cases, sum(int(number or 1) for number, _ in re.findall(FINDINGS, text)))
