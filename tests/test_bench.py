"""The benchmark's own logic, with made-up implementations: no torch, and hardly any time."""

from __future__ import annotations

import dataclasses
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench import timing  # noqa: E402
from bench.__main__ import unreached  # noqa: E402
from bench.cases import SUITES  # noqa: E402
from bench.machine import facts  # noqa: E402
from bench.measure import measure  # noqa: E402
from bench.oracle import solve  # noqa: E402
from bench.peers import NUMPY, TRUENORM, numpy_plain, truenorm_numpy  # noqa: E402
from bench.peers.copy import copier, copier_in_threads  # noqa: E402
from bench.problem import Array, Case, Problem  # noqa: E402
from bench.process import some_processors, variables  # noqa: E402
from bench.suite import Implementation, Run, Suite, validate  # noqa: E402
from bench.table import main as table  # noqa: E402
from bench.table import render, replace  # noqa: E402
from bench.timing import interleave, ratio, rotate, spread  # noqa: E402

CASES = [
    Case("batch", (4, 7, 5), ragged=True),
    Case("batch", (9, 5)),
    Case("layer", (9, 5)),
    Case("rms", (9, 5)),
    Case("instance", (3, 6, 7), channels="second", ragged=True),
    Case("group", (3, 6, 7), channels="second", ragged=True, groups=2),
    Case("group", (3, 6, 7), channels="second", groups=3),
]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}-{case.shape}")


# --- the oracle and the validator ---


@every_case
def test_the_oracle_agrees_with_finite_differences(case: Case) -> None:
    problem = case.problem()
    wide = {
        field: getattr(problem, field).astype(np.float64)
        for field in ("x", "dy", "weight", "bias")
        if getattr(problem, field) is not None
    }

    def loss(**changed: Array) -> float:
        y = solve(dataclasses.replace(problem, **(wide | changed)))["y"].value
        return float(np.sum(y * wide["dy"]))

    solved = solve(problem)
    assert ("dbias" in solved) == (case.kind != "rms")
    for field in wide.keys() - {"dy"}:
        found = np.zeros(wide[field].shape)
        for at in np.ndindex(found.shape):
            step = np.zeros(found.shape)
            step[at] = 1e-5
            found[at] = (loss(**{field: wide[field] + step}) - loss(**{field: wide[field] - step})) / 2e-5
        np.testing.assert_allclose(solved[f"d{field}"].value, found, rtol=1e-6, atol=1e-6)


def test_the_oracle_never_looks_at_padding() -> None:
    problem = CASES[0].problem()
    assert problem.mask is not None
    spoilt = dataclasses.replace(problem, x=np.where(problem.mask, problem.x, np.float32(np.nan)))
    for name, expected in solve(problem).items():
        np.testing.assert_array_equal(solve(spoilt)[name].value, expected.value)
    assert np.all(solve(problem)["y"].value[np.broadcast_to(~problem.mask, problem.x.shape)] == 0)
    assert np.any(solve(problem, masked=False)["y"].value[np.broadcast_to(~problem.mask, problem.x.shape)] != 0)


@every_case
@pytest.mark.parametrize("peer", [truenorm_numpy, numpy_plain], ids=["truenorm", "numpy"])
def test_right_implementations_pass(case: Case, peer: Any) -> None:
    problem = case.problem()
    assert validate(peer.bind(problem), solve(problem)) == []


Results = tuple[Any, Any, Any, Any]
WRONG: dict[str, tuple[Callable[[Results], Results], str]] = {
    "y is off": (lambda r: (r[0] * np.float32(1.0001), *r[1:]), "y: at most"),
    "one element is NaN": (lambda r: (r[0], np.where(r[1] == r[1].max(), np.float32("nan"), r[1]), *r[2:]), "dx: at"),
    "a gradient is dropped": (lambda r: (*r[:3], None), "dbias: missing"),
    "float64 comes back": (lambda r: (r[0], r[1].astype(np.float64), *r[2:]), "dx: float32 (4, 7, 5), got float64"),
    "dweight is summed twice": (lambda r: (*r[:2], 2 * r[2], r[3]), "dweight: at most 64 roundings"),
    "padding has a gradient": (lambda r: (r[0], np.where(r[1] == 0, np.float32(0.1), r[1]), *r[2:]), "dx: at most"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_implementation_is_caught(mistake: str) -> None:
    problem = CASES[0].problem()
    right = numpy_plain.bind(problem)
    spoil, message = WRONG[mistake]
    wrong = validate(Run(right.forward, lambda: spoil(right.both())), solve(problem))
    assert len(wrong) == 1
    assert wrong[0].startswith(message)


def test_a_wrong_forward_is_caught_though_forward_and_backward_are_right() -> None:
    problem = CASES[0].problem()
    right = numpy_plain.bind(problem)
    (wrong,) = validate(Run(lambda: right.forward() + np.float32(0.01), right.both), solve(problem))
    assert wrong.startswith("y of forward alone: at most")


def test_averaging_padding_in_is_caught_unless_that_is_what_is_claimed() -> None:
    problem = CASES[0].problem()
    unmasked = numpy_plain.bind(dataclasses.replace(problem, lengths=None))
    assert validate(unmasked, solve(problem))
    assert validate(unmasked, solve(problem, masked=False)) == []


def test_a_wrong_divisor_on_32768_rows_is_caught() -> None:
    problem = Case("batch", (32768, 3)).problem()
    expected = solve(problem)
    y = expected["y"].value - problem.bias
    off = (y * np.sqrt(32767 / 32768) + problem.bias).astype(np.float32)
    right = truenorm_numpy.bind(problem)
    assert validate(right, expected) == []
    assert validate(Run(lambda: off, right.both), expected)


# --- time ---


def fake_clock(costs: dict[str, float]) -> tuple[Callable[[], float], dict[str, Callable[[], None]], list[str]]:
    """A clock that only calls move, the calls, and the order they came in."""
    now, order = [0.0], []

    def call(name: str) -> None:
        now[0] += costs[name]
        order.append(name)

    return lambda: now[0], {name: (lambda name=name: call(name)) for name in costs}, order


def test_every_round_runs_everyone_once_in_rotated_order() -> None:
    clock, calls, order = fake_clock({"a": 1.0, "b": 2.0, "c": 3.0})
    found = interleave(calls, seconds=0, rounds=(4, 9), pause=0, clock=clock, others=lambda: 0.0)
    turns = order[3 * 3 :]  # after three calls each to find out how long they take
    assert "".join(turns) == "aabbcc" + "bbccaa" + "ccaabb" + "aabbcc"  # untimed, then timed
    assert [found.seconds(name) for name in "abc"] == [[1.0] * 4, [2.0] * 4, [3.0] * 4]
    assert rotate("abc", 5) == ["c", "a", "b"]


def test_short_calls_are_repeated_and_long_budgets_used() -> None:
    clock, calls, _ = fake_clock({"short": 0.001, "long": 0.5})
    found = interleave(calls, seconds=10, rounds=(2, 100), pause=0, turn=0.0079, clock=clock, others=lambda: 0.0)
    assert (found.samples["short"].calls, found.samples["long"].calls) == (8, 1)
    assert len(found.others) == 10  # rounds of 1.016 s
    np.testing.assert_allclose(found.seconds("short"), 0.001)


def test_rounds_that_others_disturbed_do_not_count() -> None:
    clock, calls, _ = fake_clock({"a": 1.0})
    busy = iter([0.0, 0.0, 0.0, 2.0, 2.0, 2.0, 2.0, 2.0])  # read before and after each round: the second is disturbed
    found = interleave(calls, seconds=6, rounds=(3, 9), pause=0, clock=clock, others=lambda: next(busy))
    assert (len(found.others), found.quiet()) == (4, [0, 2, 3])
    assert not found.disturbed()
    assert found.seconds("a") == [1.0] * 3


def test_too_few_quiet_rounds_are_told() -> None:
    clock, calls, _ = fake_clock({"a": 1.0})
    found = interleave(calls, seconds=10, rounds=(3, 99), pause=0, clock=clock, others=clock)  # others never rest
    assert found.disturbed()
    assert (len(found.others), found.quiet()) == (10, [])  # twice the 10 s, 2 s each round
    assert len(found.seconds("a")) == 10


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    # The machine was 10 times slower in the last two rounds: medians of times would give 20 / 1.
    assert ratio([2.0, 2.0, 20.0, 20.0, 40.0], [1.0, 1.0, 1.0, 10.0, 10.0]) == {"median": 2.0, "low": 2.0, "high": 4.0}
    assert spread([3.0, 1.0, 2.0]) == {"median": 2.0, "low": 1.5, "high": 2.5}
    assert spread([3.0]) == {"median": 3.0, "low": 3.0, "high": 3.0}
    with pytest.raises(ValueError, match="shorter"):
        ratio([1.0, 2.0], [1.0])


# --- suites ---


def broken(problem: Problem) -> Run:
    raise RuntimeError("no compiler in /some/where")


def missing(problem: Problem) -> Run:
    import a_library_that_is_not_there  # noqa: F401

    raise AssertionError


def wrong(problem: Problem) -> Run:
    right = numpy_plain.bind(problem)
    return Run(lambda: right.forward() * np.float32(2), right.both)


def small_suite(*others: Implementation, **changes: Any) -> Suite:
    fields = {
        "name": "small",
        "title": "batch norm, 4x7x5",
        "case": CASES[0],
        "implementations": (TRUENORM, NUMPY, *others),
        "baseline": NUMPY.name,
        "targets": {NUMPY.name: 1e-9},
    }
    return Suite(**(fields | changes))


@pytest.fixture
def run_small(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[dict[str, Any], list[str]]]:
    """Measures a small suite; how busy the machine is does not decide whether tests pass."""
    monkeypatch.setattr(timing, "seconds_of_others", lambda: 0.0)

    def run(*others: Implementation, **changes: Any) -> tuple[dict[str, Any], list[str]]:
        said: list[str] = []
        return measure(small_suite(*others, **changes), seconds=0, patience=0, say=said.append), said

    return run


def test_who_is_wrong_broken_or_missing_is_named_and_not_timed(run_small: Any) -> None:
    found, said = run_small(
        Implementation("wrong", wrong), Implementation("broken", broken), Implementation("missing", missing)
    )
    status = {one["name"]: one["status"] for one in found["implementations"]}
    assert status["truenorm"] == status["numpy"] == "ok"
    assert status["wrong"].startswith("failed: y of forward alone: at most 64 roundings")
    assert status["broken"] == "failed: RuntimeError"
    assert status["missing"] == "missing: a_library_that_is_not_there"
    assert {one["name"] for one in found["implementations"] if "both" in one} == {"truenorm", "numpy"}
    assert "    broken: no compiler in /some/where" in said
    assert "/some/where" not in json.dumps(found)


def test_targets_are_judged_and_those_not_measured_are_not_reached(run_small: Any) -> None:
    found, _ = run_small(Implementation("broken", broken), targets={NUMPY.name: 1e-9, "broken": 1e-9})
    against = {target["against"]: target for target in found["targets"]}
    assert against["numpy"]["reached"]
    assert against["broken"]["ratio"] is None
    assert set(against) == {"numpy", "broken", "copy"}
    assert "small against broken" in unreached({"suites": [found]})
    assert "small against numpy" not in unreached({"suites": [found]})
    baseline = next(one for one in found["implementations"] if one["name"] == "numpy")
    assert baseline["both"]["speed"] == {"median": 1.0, "low": 1.0, "high": 1.0}


def test_nothing_is_reached_while_others_are_busy(run_small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "seconds_of_others", lambda: 10 * time.perf_counter())
    found, _ = run_small()
    assert found["rounds"]["disturbed"]
    assert found["targets"][0]["ratio"]["median"] > found["targets"][0]["required"]
    assert unreached({"suites": [found]}) == ["small against numpy", "small against copy"]


def test_a_suite_needs_truenorm_its_baseline_and_the_peers_of_its_targets() -> None:
    message = r"Suite small: each name once, and \['jax jit'\] among them, got \['truenorm', 'numpy'\]\."
    with pytest.raises(ValueError, match=message):
        small_suite(targets={"jax jit": 2.0})


def test_quick_suites_keep_only_those_who_are_named() -> None:
    kept = small_suite(Implementation("broken", broken)).named_only()
    assert [one.name for one in kept.implementations] == ["truenorm", "numpy"]


def test_the_suites_have_distinct_names_and_targets() -> None:
    assert len({suite.name for suite in SUITES}) == len(SUITES) == 11
    assert all(suite.targets for suite in SUITES)


def test_a_forward_is_charged_for_each_pass_it_needs() -> None:
    ragged = CASES[0].problem()
    assert ragged.lengths is not None
    assert ragged.valid_bytes == ragged.lengths.sum() * 5 * 4
    assert ragged.needed_bytes == ragged.x.nbytes + 2 * ragged.valid_bytes  # batch: all rows before the first output
    group = CASES[5].problem()
    assert group.lengths is not None
    assert group.valid_bytes == group.lengths.sum() * 6 * 4
    assert group.needed_bytes == group.x.nbytes + group.valid_bytes


def test_the_same_case_gives_the_same_arrays() -> None:
    one, two = (CASES[0].problem() for _ in range(2))
    for field in ("x", "dy", "weight", "bias", "lengths"):
        np.testing.assert_array_equal(getattr(one, field), getattr(two, field))
    assert one.x.dtype == one.dy.dtype == one.weight.dtype == np.float32


@pytest.mark.parametrize("copier", [copier, copier_in_threads])
def test_a_copy_copies(copier: Callable[[Array, Array], tuple[str, Callable[[], object]]]) -> None:
    for rows in (5, 50001):
        source, target = np.arange(rows * 7, dtype=np.float32).reshape(rows, 7), np.zeros((rows, 7), np.float32)
        _, copy = copier(source, target)
        copy()
        np.testing.assert_array_equal(target, source)


# --- the process and the machine ---


def test_processors_are_taken_from_different_cores_first(tmp_path: Path) -> None:
    for number, siblings in enumerate(("0,1", "0,1", "2,3", "2,3")):
        (tmp_path / f"cpu{number}/topology").mkdir(parents=True)
        (tmp_path / f"cpu{number}/topology/thread_siblings_list").write_text(f"{siblings}\n")
    assert some_processors(2, [0, 1, 2, 3], tmp_path) == [0, 2]
    assert some_processors(3, [0, 1, 2, 3], tmp_path) == [0, 2, 1]
    assert some_processors(2, [5, 7], tmp_path / "nothing") == [5, 7]


def test_the_allocator_and_the_threads_are_stated() -> None:
    assert variables("system") == dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "2")
    assert variables("reuse")["MALLOC_MMAP_MAX_"] == "0"


def test_facts_name_neither_host_nor_path() -> None:
    found = json.dumps(facts())
    assert platform.node() == "" or f'"{platform.node()}' not in found
    assert str(ROOT) not in found
    assert str(Path.home()) + "/" not in found
    assert json.loads(found)["versions"]["numpy"] == np.__version__


# --- tables ---


def made_up(**rounds: Any) -> dict[str, Any]:
    def times(median: float) -> dict[str, Any]:
        return {"seconds": {"median": median, "low": median, "high": median}, "speed": {"median": 2.0}}

    return {
        "machine": {
            "cpu": "A processor",
            "system": "Linux x86_64",
            "engine": "native",
            "versions": {"python": "3.11.0", "jax": None},
            "revision": None,
        },
        "settings": {"threads": 2, "allocator": "reuse"},
        "suites": [
            {
                "name": "small",
                "title": "batch norm, 4x7x5",
                "baseline": "peer",
                "rounds": {"total": 12, "quiet": 11, "disturbed": False} | rounds,
                "copy": {"seconds": {"median": 2e-6}},
                "implementations": [
                    {"name": "truenorm", "status": "ok", "both": times(0.0052), "forward": times(2.5e-5)},
                    {"name": "peer", "status": "ok", "both": times(1.25), "forward": times(0.5)},
                    {"name": "other", "status": "missing: other"},
                ],
                "targets": [
                    {
                        "against": "peer",
                        "part": "both",
                        "required": 3.5,
                        "ratio": {"median": 4.0, "low": 3.9, "high": 4.126},
                        "reached": True,
                    },
                    {"against": "other", "part": "both", "required": 2.0, "ratio": None, "reached": False},
                    {
                        "against": "copy",
                        "part": "forward",
                        "required": 0.7,
                        "ratio": {"median": 0.08, "low": 0.07, "high": 0.09},
                        "reached": False,
                    },
                ],
            }
        ],
    }


BEGIN, END = "<!-- bench -->", "<!-- /bench -->"
TABLE = """\
| forward + backward | against | truenorm | peer | times faster | to reach |
| --- | --- | ---: | ---: | ---: | ---: |
| batch norm, 4x7x5 | peer | 5.2 ms | 1.25 s | **4.00** (3.90 to 4.13) | 3.5 |
|  | other | 5.2 ms | missing | not measured | 2 |

| forward | truenorm | copy | of a copy's bytes/s | to reach |
| --- | --- | ---: | ---: | ---: |
| batch norm, 4x7x5 | 25 us | 2 us | 8% (7% to 9%) | 70% |

Medians of 11 interleaved rounds, quartiles in brackets; float32; freed memory is reused, by all alike (first \
touches of fresh memory are not measured). A processor, 2 threads, Linux x86_64; engine native; python 3.11.0; \
revision unknown.
"""


def test_the_table_is_made_from_the_json_alone() -> None:
    assert render(json.loads(json.dumps(made_up()))) == TABLE


def test_every_implementation_can_be_shown() -> None:
    shown = render(made_up(), every=True)
    assert "| batch norm, 4x7x5 | truenorm | 5.2 ms | 25 us | 2.00 |" in shown
    assert "|  | peer (baseline) | 1.25 s | 500 ms | 2.00 |" in shown
    assert "|  | other | missing | missing |  |" in shown


def test_the_table_says_that_others_were_busy() -> None:
    assert "**Other processes were busy during small: do not trust.**" in render(made_up(disturbed=True))


def test_the_table_is_put_between_its_markers_and_nothing_else_changes() -> None:
    page = f"before\n\n{BEGIN}\nold\n{END}\n\nafter\n"
    once = replace(page, "new\n")
    assert once == f"before\n\n{BEGIN}\nnew\n{END}\n\nafter\n"
    assert replace(once, "new\n") == once


@pytest.mark.parametrize("page", ["", BEGIN, f"{END}{BEGIN}", f"{BEGIN}{BEGIN}{END}"])
def test_a_page_without_the_two_markers_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match=f"bench.table: the text needs {BEGIN} and then {END}, once each."):
        replace(page, "new")


def test_results_measured_beside_busy_processes_are_not_written(tmp_path: Path) -> None:
    page, results = tmp_path / "page.md", tmp_path / "results.json"
    page.write_text(f"{BEGIN}{END}", "utf-8")
    for busy, code in ((True, 1), (False, 0)):
        results.write_text(json.dumps(made_up(disturbed=busy)), "utf-8")
        done = CliRunner().invoke(table, [str(results), "--write", str(page)])
        assert done.exit_code == code
        assert ("other processes were busy during small. Measure again, alone." in done.output) == busy
    assert page.read_text("utf-8") == f"{BEGIN}\n{TABLE}{END}"


def test_the_readme_shows_the_results_that_are_kept() -> None:
    kept, readme = ROOT / "bench/results.json", (ROOT / "README.md").read_text("utf-8")
    assert replace(readme, render(json.loads(kept.read_text("utf-8")))) == readme


# --- the command ---


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "bench", *arguments], cwd=ROOT, capture_output=True, text=True)


def test_the_command_lists_its_suites() -> None:
    done = bench("--list")
    assert done.stdout.split() == [suite.name for suite in SUITES], done.stderr


def test_an_unknown_suite_is_refused() -> None:
    done = bench("--suite", "nothing")
    assert done.returncode == 2
    assert "--suite: one of batch-ragged, " in done.stderr


def test_the_command_measures_writes_json_and_checks(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    done = bench("--suite", "batch-32x100", "--quick", "--seconds", "0.1", "--patience", "0", "--check", "--json", path)
    results = json.loads(path.read_text("utf-8"))
    assert done.returncode == (1 if unreached(results) else 0), done.stderr
    assert done.stdout == render(results, every=True)
    assert results["settings"]["variables"]["MALLOC_MMAP_MAX_"] == "0"
    (suite,) = results["suites"]
    assert suite["implementations"][0]["status"] == "ok"


def test_lengths_of_a_block_leave_the_share_of_padding_that_was_asked_for() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from bench.layers import padded_lengths

    for share in (0.0, 0.3, 0.5):
        lengths = padded_lengths(16, 200, share)
        assert int(lengths.max()) == 200
        assert abs(1 - float(lengths.sum()) / (16 * 200) - share) < 0.01
