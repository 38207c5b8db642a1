"""The tables of docs/retrofit.md have the rows that their commands make."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tools import retrofit_models, retrofit_training

PAGE = (Path(__file__).resolve().parents[2] / "docs/retrofit.md").read_text("utf-8")


def rows(text: str) -> list[list[str]]:
    """The cells of a table, its header first."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in (lines[0], *lines[2:])]


def between(name: str) -> str:
    return PAGE.split(f"<!-- {name} -->")[1].split(f"<!-- /{name} -->")[0]


def test_the_table_of_models_has_a_row_for_each() -> None:
    header, *found = rows(between("retrofit-models"))
    assert header == retrofit_models.HEADER
    assert [[row[0], row[1]] for row in found] == [[one.name, one.norms] for one in retrofit_models.CASES.values()]
    for name, _, *numbers in found:
        assert max(map(float, numbers[:3])) > 1e-2, name
        assert max(map(float, numbers[3:])) <= 1e-5, name


def test_the_table_of_training_has_the_rows_of_its_command() -> None:
    """With next to no training: it is the form that is compared."""
    tiny = retrofit_training.Size(seeds=2, steps=2, batch=3, held_out=3, channels=2)
    header, *found = rows(retrofit_training.table(tiny))
    assert header == retrofit_training.HEADER
    written = rows(between("retrofit-training"))
    assert [row[:2] for row in written] == [row[:2] for row in (header, *found)]
    assert len(found) == len(retrofit_training.AROUND) * len(retrofit_training.WAYS)


def test_masking_by_hand_is_right_where_there_are_no_statistics() -> None:
    """Otherwise the comparison would not be one of statistics: in evaluation all three ways agree on a padded batch."""
    import torch

    import truenorm.torch as tnt

    torch.manual_seed(0)
    model = retrofit_training.network(4).eval()
    parts = list(retrofit_training.signals(5, 2.0, torch.Generator().manual_seed(3)))
    x, lengths, _ = retrofit_training.padded_batch(parts)
    with torch.no_grad():
        alone = torch.cat([model(signal[None, None]) for signal, _ in parts])
        by_hand = retrofit_training.masked_by_hand(model, x, lengths)
        tnt.convert(model)
        ours = retrofit_training.with_truenorm(model, x, lengths)
    torch.testing.assert_close(by_hand, alone, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours, alone, rtol=1e-5, atol=1e-6)
