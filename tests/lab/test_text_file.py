"""Reading files that may be anything: bounded, in linear time, with errors that name the file."""

import time
from pathlib import Path

import numpy as np
import pytest

from truenorm.lab import data, table, text_file
from truenorm.lab.data import Alphabet


def test_words_are_encoded_in_linear_time() -> None:
    """A search in a tuple of 20,000 characters took 26 s for 50,000 words; a table of them takes 0.1 s."""
    characters = tuple(chr(0x4E00 + i) for i in range(20_000))
    alphabet = Alphabet(characters)
    start = time.process_time()
    for i in range(0, 100_000, 5):
        alphabet.encode("".join(characters[(i + j) % 20_000] for j in range(5)))
    assert time.process_time() - start < 2
    assert alphabet.encode(characters[-1] + characters[0]) == [20_000, 1]


@pytest.mark.parametrize("characters", [(), ("a", "a"), ("a", ""), ("ab",)])
def test_an_alphabet_holds_different_characters(characters: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="alphabet: one or more different characters, got"):
        Alphabet(characters)


def test_classes_and_column_names_are_checked_in_linear_time(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("a,y\n" + "".join(f"{i},{'xyz'[i % 3]}\n" for i in range(60_000)))
    start = time.process_time()
    assert table.read_csv(path, "y").classes == ("x", "y", "z")
    assert time.process_time() - start < 2  # 0.2 s; 3 s when the share of numbers was computed for every row
    names = [f"c{i}" for i in range(60_000)]
    path.write_text(",".join([*names, "c59999"]) + "\n")
    start = time.process_time()
    with pytest.raises(ValueError, match="column names must be unique, got 'c59999' twice"):
        table.read_csv(path, "c1")
    assert time.process_time() - start < 2  # 0.1 s; 40 s when every name was counted
    with pytest.raises(ValueError, match=r"--target: one of the columns c0, .*, c19, \.\.\., got 'y'\."):
        table.read_csv(path, "y")


def test_files_are_read_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"a\n" * (1 << 20))
    assert len(text_file.read_text(path, 2 << 20)) == 2 << 20
    with pytest.raises(ValueError, match="large: must be at most 1 MiB, got more"):
        text_file.read_text(path, 1 << 20)
    monkeypatch.setattr(text_file.read_text, "__defaults__", (1 << 20,))
    for read in (data.read_words, lambda file: table.read_csv(file, "y")):
        with pytest.raises(ValueError, match=r"/dev/zero: must be at most 1 MiB, got more\."):
            read(Path("/dev/zero"))


def test_files_that_are_not_text(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content, got in ((b"caf\xe9\n", "0xe9 at 3"), (b"a\nb\0c\n", "0x00 at 3"), (b"\xff\xfe\0\1", "0xff at 0")):
        path.write_bytes(content)
        for read in (data.read_words, lambda file: table.read_csv(file, "y")):
            with pytest.raises(ValueError, match=f"file: must be UTF-8 text, got byte {got}"):
                read(path)


def test_words_end_at_every_kind_of_line_break(tmp_path: Path) -> None:
    path = tmp_path / "words"
    path.write_bytes("\ufeffone\rtwo\r\nthree\u2028four\n\n five \x0bsix\x1c".encode())
    assert data.read_words(path) == ["one", "two", "three", "four", "five", "six"]


def test_numbers_whose_squares_overflow_are_refused(tmp_path: Path) -> None:
    """Their std is inf. Divided by it, all of them were 0, and the RMSE was inf."""
    path = tmp_path / "table.csv"
    rows = [f"{i},{i / 7},{i * 1e149}" for i in range(1, 10)]
    for row, column in ((f"1,1e308,{10**150}", "b"), ("1,-1e151,2", "b"), ("-1e308,1,2", "a")):
        path.write_text("\n".join(["a,b,c", *rows, row]))
        with pytest.raises(
            ValueError, match=f"column '{column}' needs numbers from -1e\\+150 to 1e\\+150, got .* in line 11"
        ):
            table.read_csv(path, "b")
    path.write_text("\n".join(["a,b,c", *rows, "1,1,1e150"]))
    read = table.read_csv(path, "c")
    scale = table.Scale.of(read.targets[:, None])
    assert np.isfinite(scale.std).all()
    assert np.isfinite(scale.apply(read.targets[:, None])).all()
