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


class Fuzzer(NamedTuple):
    """`python -m MODULE OPTIONS` prints "9 cases", "9 calls" or "9 inputs", and "0 failures" or "FINDING"."""

    module: str
    options: Sequence[str]


class Fuzzed(NamedTuple):
    cases: int
    findings: int


FUZZERS = {
    "reference, kernels and torch layers against each other": Fuzzer("tools.fuzz", ("--cases", "50000")),
    "wrong calls of the kernels": Fuzzer("tools.fuzz", ("--kind", "calls", "--cases", "50000")),
    "hostile command lines": Fuzzer("tools.fuzz_commands", ("--cases", "5000", "--seconds", "3600")),
    "hostile text and files, coverage-guided": Fuzzer("tools.fuzz_readers", ("--seconds", "600")),
}


def run(seed: int) -> dict[str, Fuzzed]:
    """The counts of the fuzzers that are there and can run."""
    found = {}
    for name, fuzzer in FUZZERS.items():
        if importlib.util.find_spec(fuzzer.module) is None:
            continue
        command = [sys.executable, "-m", fuzzer.module, *fuzzer.options, "--seed", str(seed)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, errors="replace", check=False)
        counts = read_counts(done.stdout)
        if not counts.cases or (done.returncode and not counts.findings):
            print(f"{name}: not counted, exit code {done.returncode}: {done.stdout[-500:]}", file=sys.stderr)
        if counts.cases:
            found[name] = counts
    return found


def read_counts(text: str) -> Fuzzed:
    """The sums of all counts in the output of a fuzzer.

    >>> read_counts("words    12,345 inputs, 10 of them new, no finding\\ntable 5 inputs, 0 of them new, FINDING: ...")
    Fuzzed(cases=12350, findings=1)
    >>> read_counts("50000 cases, 1234 computed, 2 failures")
    Fuzzed(cases=50000, findings=2)
    """
    cases = sum(int(number.replace(",", "")) for number in re.findall(CASES, text))
    return Fuzzed(cases, sum(int(number or 1) for number, _ in re.findall(FINDINGS, text)))
