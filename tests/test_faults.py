"""The fault suite: a short run of every attack, and that the attacks detect what they look for."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tools.faults import fuzzers
from tools.faults.command import Ended
from tools.faults.report import Counts, attacks_table, write_attacks, write_fuzzer

ROOT = Path(__file__).resolve().parents[1]
ATTACKS = ("kills", "signals", "disks", "outputs", "tampering", "races")


def attack(*options: str) -> dict[str, list[int]]:
    """The counts of each attack. Nothing may be lost."""
    command = [sys.executable, "-m", "tools.faults", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    rows = re.findall(r"^\| (\w+) ((?:\| [\d,]+ )+)\|$", done.stdout, re.MULTILINE)
    return {name: [int(cell.replace(",", "")) for cell in cells.split("|")[1:]] for name, cells in rows}


def check(counts: dict[str, list[int]]) -> None:
    assert tuple(counts) == ATTACKS
    for attempts, survived, *problems in counts.values():
        assert attempts == survived > 0
        assert not any(problems)


def test_nothing_is_lost_in_a_short_run_of_every_attack() -> None:
    counts = {"kills": 3, "signals": 3, "disks": 2, "outputs": 2, "tampering": 6, "races": 3}
    check(attack(*(f"--{name}={count}" for name, count in counts.items())))


@pytest.mark.slow
def test_nothing_is_lost_in_a_long_run_of_every_attack() -> None:
    check(attack("--seconds", "90", "--seed", "1"))


SABOTAGE = """
import os, sys, time
from tools.faults import command, driver, interruptions, tampering
from tools.faults.laboratory import Attempt
from truenorm import cli
from truenorm.lab import training

def resume_wrong(self, *state):
    restore(self, *state)
    self.network.flat_parameters[0] += 1e-6

def write_outside(arguments):
    run = arguments[arguments.index("--out") + 1] if "--out" in arguments else arguments[1]
    with open(os.path.join(os.path.dirname(run), "victim"), "a") as file:
        file.write("changed")
    main(arguments)

def raise_error(arguments):
    raise KeyError("a fault")

def hang(arguments):
    time.sleep(60)

def exit_otherwise(arguments):
    print("Something is wrong.", file=sys.stderr)
    sys.exit(3)

def kinds(name, attack, number):
    attempt = Attempt(lab, name, number, 0)
    attack(attempt)
    attempt.clean()
    return {kind for kind, _ in attempt.problems}

def show(name, found):
    print(name, *sorted(found))

restore, main = training.Trainer.restore, cli.main
with driver.laboratory() as lab:
    tampering.prepare(lab)
    show("nothing", kinds("kills", interruptions.kill, 0) | kinds("tampering", tampering.tamper, 0))
    training.Trainer.restore = resume_wrong
    show("resume_wrong", set().union(*(kinds("kills", interruptions.kill, number) for number in range(4))))
    training.Trainer.restore = restore
    for replacement in (write_outside, raise_error, exit_otherwise, hang):
        command.HANG = 0.3 if replacement is hang else 20.0
        cli.main = replacement
        show(replacement.__name__, kinds("tampering", tampering.tamper, 0))
"""


def test_faults_are_detected() -> None:
    done = subprocess.run([sys.executable, "-c", SABOTAGE], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = {name: set(kinds) for name, *kinds in map(str.split, done.stdout.splitlines())}
    assert found["nothing"] == set()
    assert found["resume_wrong"] == {"lost"}
    assert found["write_outside"] == {"outside"}
    assert found["raise_error"] == {"tracebacks", "exits"}
    assert found["exit_otherwise"] == {"exits"}
    assert found["hang"] == {"hangs", "exits"}


def ended(code: int, err: str) -> Ended:
    return Ended(code, "", err, hung=False, seconds=0.1, cpu_seconds=0.1, calls=0)


def test_a_refusal_is_one_line_and_exit_code_2() -> None:
    assert ended(2, "step 1 of 8: loss 2.7\ntruenorm: run: damaged.\n").refused
    assert not ended(1, "truenorm: run: damaged.\n").refused
    assert not ended(2, "").refused
    assert not ended(2, "truenorm: one.\ntruenorm: two.\n").refused
    assert not ended(2, "truenorm: one.\nand more\n").refused


def test_tracebacks_are_noticed_also_after_the_end() -> None:
    assert ended(1, "Traceback (most recent call last):\nKeyError: 1\n").has_traceback
    assert ended(120, "Exception ignored in: <_io.TextIOWrapper name='<stdout>'>\nBrokenPipeError\n").has_traceback
    assert not ended(2, "truenorm: run: damaged.\n").has_traceback


def test_the_counts_are_written_into_a_page(tmp_path: Path) -> None:
    counts = {"kills": Counts(attempts=1500, failed=1), "races": Counts()}
    counts["kills"].problems["lost"] = 1
    attacks = attacks_table(counts)
    assert attacks.splitlines() == [
        "| attack | attempts | survived | lost | outside | tracebacks | hangs | exits |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| kills | 1,500 | 1,499 | 1 | 0 | 0 | 0 | 0 |",
    ]
    assert attacks_table({"races": Counts()}) == ""
    page = tmp_path / "page.md"
    heads = "| fuzzer | cases | findings | seed | revision |\n| --- | ---: | ---: | ---: | ---: |\n"
    lines, calls = "| hostile command lines | 9 | 2 | 0 | 1a |\n", "| wrong calls | 7 | 0 | 0 | 1a |\n"
    start = f"<!-- attacks -->\nold\n<!-- /attacks -->\n<!-- fuzzers -->\n{heads}"
    page.write_text(f"{start}{lines}{calls}<!-- /fuzzers -->\nafter\n")
    write_fuzzer(page, ["hostile command lines", "2,000", "3", "4", "2b"])
    assert (
        page.read_text() == f"{start}| hostile command lines | 2,000 | 3 | 4 | 2b |\n{calls}<!-- /fuzzers -->\nafter\n"
    )
    write_attacks(page, attacks, "Seed 0.")
    assert page.read_text().startswith(f"<!-- attacks -->\n{attacks}\n\nSeed 0.\n<!-- /attacks -->\n<!-- fuzzers -->\n")


def test_a_fuzzer_that_does_not_exist_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzers, "FUZZERS", {"missing": fuzzers.Fuzzer("missing", "tools.fuzz_missing", ())})
    assert fuzzers.run("missing", 0) is None


def test_the_output_of_a_fuzzer_is_counted() -> None:
    assert fuzzers.read_counts("120 calls (train 2: 3), 0 failures\n") == (120, 0)
    assert fuzzers.read_counts("50000 cases, 1234 computed, 2 failures, 9 numbers compared") == (50000, 2)
    assert fuzzers.read_counts("words  1,200 inputs, no finding\ntable  34 inputs, FINDING: KeyError\n") == (1234, 1)
    assert fuzzers.read_counts("fuzz_readers: needs atheris, got none.") == (0, 0)


RUNS_CODE = {"pickle", "marshal", "shelve", "dill", "joblib", "eval", "exec", "allow_pickle"}


def code_runners(text: str) -> set[str]:
    """Modules, functions and arguments that can run code from a file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import():
                found |= {one.name.split(".")[0] for one in node.names}
            case ast.ImportFrom():
                found.add((node.module or "").split(".")[0])
            case ast.Call(func=ast.Name(id=name)):
                found.add(name)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="load")):
                found.add("torch.load")
            case ast.keyword(arg=str(name)):
                found.add(name)
    return found & (RUNS_CODE | {"torch.load"})


def test_nothing_that_is_loaded_can_run_code() -> None:
    for file in sorted((ROOT / "src").rglob("*.py")):
        assert code_runners(file.read_text("utf-8")) == set(), file
    for text in (
        "import pickle",
        "from marshal import loads",
        "np.load(f, allow_pickle=True)",
        "torch.load(f)",
        "eval(x)",
    ):
        assert code_runners(text), text
