"""The commands: what they print, and how they fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from browser import PARTS
from numpy.testing import assert_allclose

import truenorm as tn
from truenorm import engine
from truenorm.cli import COMMANDS, main
from truenorm.explanation import examples


def run(*arguments: str, stdin: str | bytes = "") -> subprocess.CompletedProcess[str]:
    data = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run([sys.executable, "-m", "truenorm", *arguments], input=data, capture_output=True)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def in_process(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    printed = capsys.readouterr()
    return int(stop.value.code or 0), printed.out, printed.err


def explained(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, np.ndarray]:
    code, out, err = in_process(capsys, "explain", *arguments, "--json")
    assert (code, err) == (0, "")
    return {step["name"]: np.array(step["values"], float) for step in json.loads(out)["steps"]}


def test_given_statistics_are_used_instead_of_those_of_the_rows(capsys: pytest.CaptureFixture[str]) -> None:
    found = explained(capsys, "--example", "table", "--mean", "4,4,4", "--var", "2,2,2", "--eps", "0", "--ddof", "1")
    assert "count" not in found
    assert_allclose(found["var"], [2, 2, 2])
    assert_allclose(found["y"], (examples.TABLE - 4) / np.sqrt(2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mean", "1,2,3"], "Give --mean and --var, or neither. See 'truenorm explain --help'."),
        (["--var", "1,2,3"], "Give --mean and --var, or neither. See 'truenorm explain --help'."),
        (
            ["--mean", "1,2,3", "--var", "1,2"],
            "--var: as many numbers as --mean, 3, got 2. See 'truenorm explain --help'.",
        ),
        (
            ["--mean", "1,2,3", "--var", "1,2,-3"],
            "--var: numbers >= 0, got 1,2,-3. See 'truenorm explain --help'.",
        ),
        (["--mean", "1,2", "--var", "1,2"], "moments must have the shape (3,) for this x, got (2,)."),
    ],
)
def test_wrong_given_statistics(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert in_process(capsys, "explain", "--example", "table", *arguments) == (2, "", f"truenorm: {message}\n")


FILES: dict[str, str | bytes] = {
    "words.csv": "1,2,3\n4,five,6\n",
    "gap.csv": "1,2,3\n4,,6\n",
    "ragged.csv": "1,2,3\n\n4,5\n",
    "empty.csv": "",
    "blank.csv": "\n  \n",
    "names.csv": "a,b\n",
    "half.csv": "a,2\n3,4\n",
    "latin.csv": b"caf\xe9,2\n",
    "zero.csv": b"1,2\n\0,3\n",
    "wide.csv": "1,2\n" + "3" * 140_000 + ",4\n",
    "fine.csv": "1,2,3\n4,5,6\n7,8,8\n",
}

ERRORS = [
    (["words.csv"], "words.csv, line 2, column 2: needs a number, got 'five'. Only the first line may hold names."),
    (["gap.csv"], "gap.csv, line 2, column 2: needs a number, got ''. Only the first line may hold names."),
    (["half.csv"], "half.csv, line 1, column 1: needs a number, got 'a'. Only the first line may hold names."),
    (["ragged.csv"], "ragged.csv, line 3: needs 3 columns as in line 1, got 2."),
    (["empty.csv"], "empty.csv: needs at least one line of numbers, got none. Separate the numbers by commas."),
    (["blank.csv"], "blank.csv: needs at least one line of numbers, got none. Separate the numbers by commas."),
    (["names.csv"], "names.csv: needs lines of numbers below the column names a, b, got none."),
    (["latin.csv"], "latin.csv: must be UTF-8 text, got byte 0xe9 at 3."),
    (["zero.csv"], "zero.csv: must be UTF-8 text, got byte 0x00 at 4."),
    (["wide.csv"], "wide.csv, line 2: cannot be read as CSV (field larger than field limit (131072))."),
    (["missing.csv"], "missing.csv: No such file or directory."),
    (["."], ".: Is a directory."),
    (["fine.csv", "--example", "table"], "Give a file or --example, not both. See 'truenorm explain --help'."),
    (["fine.csv", "--pattern", "[b c"], "Norm: '[' is never closed, got pattern '[b c'. Close it with ']'."),
    (
        ["fine.csv", "--pattern", "[b] (g c)"],
        "Norm: only one piece of a composed axis may have no size, not g and c, got pattern '[b] (g c)'. "
        "Give the sizes of the others, such as sizes={'g': 8}.",
    ),
    (
        ["fine.csv", "--pattern", "[b] t c"],
        "Norm: '[b] t c' names 3 axes, got shape (3, 3) with 2. Name every axis of x once; "
        "'...' stands for any number.",
    ),
    (
        ["fine.csv", "--norm", "layer", "--pattern", "[b] c"],
        "Give --norm or --pattern, not both. See 'truenorm explain --help'.",
    ),
    (
        ["fine.csv", "--norm", "middle"],
        "Invalid value for '--norm': 'middle' is not one of 'batch', 'layer', 'instance', 'group', 'rms'. "
        "See 'truenorm explain --help'.",
    ),
    (
        ["fine.csv", "--norm", "group", "--groups", "2"],
        "Norm: an axis of size 3 does not fit g=2, got pattern 'b [...] (g [c])'. Change the size, or the shape of x.",
    ),
    (
        ["fine.csv", "--groups", "3"],
        "--groups: only with --norm group, or with a --pattern that has an axis g. See 'truenorm explain --help'.",
    ),
    (
        ["fine.csv", "--norm", "instance"],
        "--norm instance: averages over the positions of a sequence, but the rows are examples. "
        "Give --lengths 3 to make them one sequence. See 'truenorm explain --help'.",
    ),
    (
        ["fine.csv", "--lengths", "2,4"],
        "--lengths: 3 rows in the input cannot be split into 2 padded sequences of the same size. Pad the shorter "
        "sequences with rows of zeros. See 'truenorm explain --help'.",
    ),
    (
        ["fine.csv", "--lengths", "4"],
        "lengths must be from 0 to 3, the size of axis t, got 4 at index 0. "
        "If x was cropped or strided, pass the lengths after that.",
    ),
    (["fine.csv", "--lengths", "1.5"], "--lengths: needs integers separated by commas, got '1.5'."),
    (["fine.csv", "--lengths", "1e30"], "--lengths: needs integers separated by commas, got '1e30'."),
    (["fine.csv", "--lengths", "nan"], "--lengths: needs integers separated by commas, got 'nan'."),
    (["fine.csv", "--weight", "1,x"], "--weight: needs numbers separated by commas, got 'x' as number 2."),
    (["fine.csv", "--weight", "1,2"], "weight must have the shape (3,) for this x, got (2,)."),
    (["fine.csv", "--dy", "1,0"], "dy must have the shape of x, (3, 3), got (1, 2)."),
    (["fine.csv", "--dy", "missing.csv"], "missing.csv: No such file or directory."),
    (["fine.csv", "--eps", "-1"], "Norm: eps is a finite number >= 0, got -1.0. The usual one is 1e-5."),
    (["fine.csv", "--ddof", "2"], "Norm: ddof is 0 or 1, got 2."),
    (
        ["fine.csv", "--norm", "rms", "--ddof", "1"],
        "Norm: ddof=1 corrects for an estimated mean, got center=False. Use ddof=0 with it.",
    ),
    (["fine.csv", "--lengths", ""], "--lengths: needs numbers separated by commas, got '' as number 1."),
    (["-", "--dy", "-"], "Standard input can hold the input or --dy, not both. See 'truenorm explain --help'."),
    (["fine.csv", "--bogus"], "No such option '--bogus'. See 'truenorm explain --help'."),
]


@pytest.mark.parametrize(("arguments", "message"), ERRORS, ids=[" ".join(words) for words, _ in ERRORS])
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())
    code, out, err = in_process(capsys, "explain", *arguments)
    assert code == 2
    assert out == ""
    hints = " (Did you mean"
    assert (
        err.split(hints)[0].removesuffix(".") in f"truenorm: {message}\n"
        if hints in err
        else err == f"truenorm: {message}\n"
    )
    assert err.count("\n") == 1


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = run("explain", str(tmp_path / "none.csv"), "--debug")
    assert done.returncode != 0
    assert "Traceback" in done.stderr
    assert "FileNotFoundError" in done.stderr


def test_an_unknown_command_is_one_line() -> None:
    done = run("explan")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("truenorm: No such command 'explan'.")


def test_no_command_shows_the_help() -> None:
    done = run()
    assert done.returncode == 0
    for name, line in COMMANDS.items():
        assert f"{name} " in done.stdout
        assert line in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name: str) -> None:
    done = run(name, "--help")
    assert done.returncode == 0
    assert "Example" in done.stdout
    assert f"truenorm {name}" in done.stdout.split("Example")[1]


def test_standard_input_and_a_file_are_read_alike(tmp_path: Path) -> None:
    text = "\ufeffz1;z2\n1;2\n3;5\n"
    file = tmp_path / "data.csv"
    file.write_text(text, "utf-8")
    by_file, by_dash, by_pipe = run("explain", str(file)), run("explain", "-", stdin=text), run("explain", stdin=text)
    assert by_file.returncode == 0
    assert by_file.stdout == by_dash.stdout == by_pipe.stdout
    assert "z1" in by_file.stdout
    assert "\ufeff" not in by_file.stdout
    assert run("explain", stdin="z1\tz2\n1\t2\n3\t5\n").stdout == by_file.stdout


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m truenorm explain --example table | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "0"


def test_options_reach_the_computation(capsys: pytest.CaptureFixture[str]) -> None:
    got = explained(
        capsys,
        *["--example", "table", "--norm", "group", "--groups", "3", "--eps", "0.5", "--eps-at", "std"],
        *["--weight", "1,2,3", "--bias", "0,1,-1", "--dy", "1,0,0;0,2,0;0,0,3;1,1,1;0,0,0"],
    )
    dy = [[1, 0, 0], [0, 2, 0], [0, 0, 3], [1, 1, 1], [0, 0, 0]]
    norm = tn.group(3, eps=0.5, eps_at="std")
    out = tn.forward(examples.TABLE, norm, weight=[1, 2, 3], bias=[0, 1, -1])
    assert_allclose(got["y"], out.y)
    assert_allclose(got["dx"], tn.backward(dy, out)[0], atol=1e-15)
    got = explained(capsys, "--example", "table", "--pattern", "[b] c", "--ddof", "1")
    assert_allclose(got["var"], examples.TABLE.var(0, ddof=1))


def test_lengths_make_the_rows_sequences(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "padded.csv"
    np.savetxt(file, examples.SENTENCES.reshape(-1, 3), delimiter=",")
    got = explained(capsys, str(file), "--lengths", "2,4", "--norm", "instance")
    assert_allclose(got["y"], tn.forward(examples.SENTENCES, tn.instance(), lengths=[2, 4]).y)
    got = explained(capsys, "--example", "sentences", "--norm", "batch")
    assert_allclose(got["mean"], tn.measure(examples.SENTENCES, tn.batch(), lengths=[2, 4]).mean)


def test_the_sentences_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = in_process(capsys, "explain", "--example", "sentences")
    assert code == 0
    assert "How     7.50 9.20 1.50   1.06  2.12 -0.74   0.78  1.83 -1.42   0.43  0.95 -1.38" in out
    assert "batch norm, all rows     0.670699    1.18967    3.00722    6.33152" in out
    assert max(map(len, out.splitlines())) <= 80
    code, out, _ = in_process(capsys, "explain", "--example", "sentences", "--json")
    change = [method["change_of_how_by_padding_rows"]["2"] for method in json.loads(out)["methods"]]
    assert change[0] > 0.67
    assert change[1:] == [0.0, 0.0]


def test_a_report_that_the_demo_cannot_write_is_said_before_it_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("precious.html").write_text("<p>Mine</p>")
    message = "truenorm: --report: a file in a directory that exists, got none/demo.html.\n"
    assert in_process(capsys, "demo", "--report", "none/demo.html") == (2, "", message)
    message = "truenorm: precious.html: exists and is not a report. Choose another name, or remove it.\n"
    assert in_process(capsys, "demo", "--report", "precious.html") == (2, "", message)


def test_demo_shows_both_examples_training_and_what_to_do_next(tmp_path: Path) -> None:
    done = run("demo", "--report", str(tmp_path / "demo.html"))
    assert done.returncode == 0
    assert done.stderr == ""
    for text in (
        "1.18585",
        "-1.42",
        "50 times too small",
        "Names generated by the second network: ",
        "truenorm explain",
        "truenorm env",
    ):
        assert text in done.stdout
    assert max(map(len, done.stdout.replace(str(tmp_path), "").splitlines())) <= 80
    text = (tmp_path / "demo.html").read_text("utf-8")
    assert "truenorm train --norm none --init-scale 0.02 --out repeated/none-small\n" in text
    assert str(tmp_path.parent) not in text
    for part in PARTS:
        assert f"#part={part} " in done.stdout


def test_env_names_versions_engine_threads_and_what_is_missing() -> None:
    info = json.loads(run("env", "--json").stdout)
    assert info["truenorm"] == tn.__version__
    assert info["numpy"] == np.__version__
    assert info["engine"] in ("reference", "native")
    assert info["threads"] == len(os.sched_getaffinity(0))
    text = run("env").stdout
    for name, value in info.items():
        if name not in ("native", "optional", "tensors"):
            assert f"{name:18} {value}\n" in text
    for package, found in info["optional"].items():
        assert f"{package:18} {found or 'not installed: pip install '}" in text


def test_a_terminal_without_greek_letters_gets_names() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "truenorm", "explain", "--example", "table"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0
    assert b"mean = ? x / count   (shape 3)\n    z1       z2       z3\n" in done.stdout


def test_numbers_may_be_separated_by_spaces(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "spaces.txt"
    file.write_text("1  2 \n 3 5\n")
    assert_allclose(explained(capsys, str(file))["x"], [[1, 2], [3, 5]])


def test_lines_may_end_with_carriage_returns(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "returns.csv"
    file.write_bytes(b"a,b\r1,2\r3,5\r")
    assert_allclose(explained(capsys, str(file))["x"], [[1, 2], [3, 5]])


def test_a_gradient_may_be_longer_than_a_file_name(capsys: pytest.CaptureFixture[str]) -> None:
    zeros = ",".join(["0." + "0" * 100] * 3)
    gradient = f"1,0,0;{zeros};{zeros};{zeros};0,0,1"
    short = explained(capsys, "--example", "table", "--dy", "1,0,0;0,0,0;0,0,0;0,0,0;0,0,1")
    assert_allclose(explained(capsys, "--example", "table", "--dy", gradient)["dx"], short["dx"])


def test_env_says_so_where_the_native_part_was_not_built(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("truenorm.engine.native_build", lambda: None)
    code, out, _ = in_process(capsys, "env")
    assert code == 0
    assert "not built: no C++ compiler was found at install; NumPy is used instead" in out


def test_env_says_whether_kernels_read_the_tensors_of_torch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tnt = pytest.importorskip("truenorm.torch", reason="needs torch: pip install -e '.[torch]'")
    if engine.compiled() is None:
        assert (
            "tensors            computed by torch operations: the compiled kernels are not"
            in in_process(capsys, "env")[1]
        )
        return
    assert "tensors            read by the kernels\nautograd           in " in in_process(capsys, "env")[1]
    for nodes, expected in ((None, "in Python: docs/torch.md says how to build the part in C++"), (object(), "in C++")):
        monkeypatch.setattr("truenorm.torch._kernel.nodes", nodes)
        assert f"autograd           {expected}\n" in in_process(capsys, "env")[1]
    monkeypatch.setattr(tnt, "kernels_read_tensors", lambda: False)
    expected = (
        "tensors            computed by torch operations: the kernels cannot read the tensors of this torch version\n"
    )
    assert expected in in_process(capsys, "env")[1]


def test_env_says_so_where_torch_is_broken(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="needs torch: pip install -e '.[torch]'")
    monkeypatch.setitem(sys.modules, "truenorm.torch", None)
    code, out, _ = in_process(capsys, "env")
    assert code == 0
    assert "tensors            torch cannot be imported: " in out
