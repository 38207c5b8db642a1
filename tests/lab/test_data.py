"""Training data: words, batches, the census lists, and tables with errors that name the line."""

from pathlib import Path

import numpy as np
import pytest
from tools import students, words

from truenorm.lab import data, table
from truenorm.lab.data import Alphabet, Batches, Examples


def test_examples_of_any_alphabet() -> None:
    alphabet = Alphabet.of(["zoë", "東京"])
    found = data.next_character_examples(["zoë", "東京"], alphabet, 3)
    assert len(found) == 4 + 3
    assert [alphabet.decode([n for n in row if n]) for row in found.x] == ["", "z", "zo", "zoë", "", "東", "東京"]


def test_the_census_lists() -> None:
    names, genders = data.first_names()
    assert len(names) == len(set(names)) == 5163
    assert [genders[names.index(name)] for name in ("mary", "john", "kim", "robin", "leslie")] == [0, 1, 0, 0, 0]
    assert len(data.surnames()) == 88799
    assert data.surnames()[0] == "smith"


def test_the_words_are_a_list_for_the_character_network() -> None:
    found = data.read_words(data.WORDS_FILE)
    assert found == sorted(set(found))
    assert len(found) > 4000
    assert data.Alphabet.of(found).characters == tuple("abcdefghijklmnopqrstuvwxyz")
    assert {"and", "the", "sequence"} <= set(found)
    some = words.words("arg*.py")
    assert len(set(found) & set(some)) > 0.8 * len(some) > 0  # every version of Python has other docstrings


def test_the_tool_makes_the_students_again() -> None:
    rows = students.students()
    assert students.CSV.read_text("utf-8") == students.as_csv(rows)
    assert students.PAGE.read_text("utf-8") == students.as_module(rows)
    read = table.read_csv(table.STUDENTS_FILE, "placed")
    assert (read.columns, read.classes) == (("cgpa", "iq"), ("no", "yes"))
    (cgpa, iq) = read.features.T
    assert 0 <= cgpa.min() < 5 < 9 < cgpa.max() <= 10
    assert 70 <= iq.min() < 80 < 130 < iq.max() <= 140


def test_batches_depend_only_on_the_seed_and_the_step() -> None:
    x = np.arange(20_000)[:, None]
    batches, again = (Batches(Examples(x, x[:, 0]), 32, seed=5) for _ in range(2))
    steps = [0, 1, batches.steps - 1, batches.steps, 3 * batches.steps + 7]
    found = {step: batches[step].x.copy() for step in steps}
    for step in reversed(steps):
        np.testing.assert_array_equal(again[step].x, found[step])
        np.testing.assert_array_equal(again[step].x[:, 0], again[step].targets)
    assert len({value.tobytes() for value in found.values()}) == len(steps)
    assert not np.array_equal(Batches(Examples(x, x[:, 0]), 32, seed=6)[0].x, found[0])
    seen = np.unique(np.concatenate([batches[step].x for step in range(40 * batches.steps)]))
    assert len(seen) > 0.99 * len(x)


def test_inputs_are_standardized_over_the_training_set_alone() -> None:
    train, other = np.random.default_rng(1).normal(7, 3, (2500, 4)), np.full((3, 4), 7.0)
    scale = table.Scale.of(train)
    scaled, scaled_other = scale.apply(train), scale.apply(other)
    np.testing.assert_allclose(scaled.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(scaled.std(0), 1, rtol=1e-12)
    np.testing.assert_allclose(scaled_other, (other - train.mean(0)) / train.std(0), rtol=1e-12)
    assert not table.Scale.of(np.full((5, 1), 3.0)).apply(np.full((5, 1), 3.0)).any()


def test_errors_in_a_table_name_the_line(tmp_path: Path) -> None:
    rows = "\n".join(f"{i},{i % 2},{i / 7}" for i in range(50))
    for content, text in (
        ("", "needs a header and rows, got an empty file"),
        ("a,y,b\n", "needs at least four rows below the header, got 0"),
        ("a,y,a\n" + rows, "column names must be unique, got 'a' twice"),
        ("y\n1\n2\n3\n4\n", "needs at least one column beside 'y', got none"),
        ("a,y,b\n\n\n" + rows + "\n1,1\n", "each row needs 3 cells, got 2 in line 54"),
        ("a,y,b\n\n" + rows + "\n1,1,x\n", "column 'b' needs finite numbers, got 'x' in line 53"),
        ("a,y,b\n" + rows + "\n1,,1\n", "column 'y' needs a class or a number in every row, got '' in line 52"),
        ("a,y,b\n" + rows + "\n1,one,1\n", "column 'y' needs finite numbers, as in most rows, got 'one' in line 52"),
        ("a,y,b\n" + "1,2,3\n" * 9, "needs at least two classes, got only '2'"),
        ("a,y,b\n" + "1" * 200_000 + ",2,3\n", "cannot be read as CSV"),
    ):
        path = tmp_path / "table.csv"
        path.write_text(content, "utf-8")
        with pytest.raises(ValueError, match=text):
            table.read_csv(path, "y")
    path.write_text("a,y\n1,1\n2,1.0\n3,2\n4,2\n", "utf-8")
    assert table.read_csv(path, "y").classes == ("1", "2")
