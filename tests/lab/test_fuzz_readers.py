"""What reads text and files: the seeds of the fuzzer, without the fuzzer, and its oracle."""

import sys
import warnings

import pytest
from tools import fuzz_readers


@pytest.mark.parametrize("name", fuzz_readers.TARGETS)
def test_the_seeds_are_read_or_refused_in_one_line(name: str) -> None:
    assert fuzz_readers.replay(name) >= 3


def fail(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "finding"),
    [
        (KeyError("step"), "KeyError: 'step'"),
        (RecursionError("too deep"), "RecursionError: too deep"),
        (ValueError(""), "ValueError with the message ''"),
        (ValueError("two\nlines"), r"ValueError with the message 'two\\nlines'"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"), "UnicodeDecodeError with the message"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_oracle_finds(error: Exception, finding: str) -> None:
    with pytest.raises(fuzz_readers.Finding, match=finding):
        fuzz_readers.check(lambda: fail(error))


def test_the_oracle_finds_warnings_and_long_times(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(fuzz_readers.Finding, match="UserWarning: odd"):
        fuzz_readers.check(lambda: warnings.warn("odd", stacklevel=1))
    monkeypatch.setattr(fuzz_readers, "MAX_SECONDS", -1.0)
    with pytest.raises(fuzz_readers.Finding, match="took"):
        fuzz_readers.check(lambda: None)


def test_errors_in_one_line_are_no_finding() -> None:
    fuzz_readers.check(lambda: fail(ValueError("file.csv: needs numbers, got 'x'.")))


def test_without_the_fuzzer_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "atheris", None)
    assert fuzz_readers.main(["--seconds", "1"]) == 2
    assert capsys.readouterr().out == (
        "fuzz_readers: needs atheris, got none. pip install -c constraints.txt atheris (wheels: Linux on x86-64).\n"
    )
