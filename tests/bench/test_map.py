"""The speed map: which cells it has, that it times the right thing, that it can be interrupted, what it says."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from bench.map.cells import AXES, BYTES, SIZES, Cell, Coverage, equal_factors, indices_of, possible_cells, sample
from bench.map.results import Results, append, newest, read
from bench.map.summary import limits, render, render_limits, render_rows, worst
from click.testing import CliRunner

torch = pytest.importorskip("torch", reason="torch is not installed")

from bench.map import __main__ as command  # noqa: E402
from bench.map import measure as measuring  # noqa: E402
from bench.map import results as storage  # noqa: E402
from bench.map.pair import Pair, make_pair, mistakes, results  # noqa: E402

TINY = Cell("BatchNorm1d", 3, 8, 16, 7, 0, "float32", "contiguous", 50, "training")


# ---- the cells ----


def test_every_possible_pair_of_values_is_covered_and_sizes_are_even() -> None:
    cells = sample()
    assert len({cell.name for cell in cells}) == len(cells) >= 250
    coverage = Coverage(possible_cells())
    for cell in cells:
        coverage.add(indices_of(cell))
    assert coverage.missing() == 0
    for axis in ("layer", "dtype", "order", "padding", "mode", "rank"):
        counts = Counter(getattr(cell, axis) for cell in cells)
        assert set(counts) == set(AXES[axis])
        assert min(counts.values()) * len(counts) > len(cells) / 2, counts  # none is less than half as frequent
    for some in (cells[:60], cells):
        counts = Counter(cell.size for cell in some)
        assert max(counts[size] for size in SIZES) - min(counts[size] for size in SIZES) <= 1
    assert all(BYTES[0] <= cell.bytes <= BYTES[1] for cell in cells)
    assert Coverage(possible_cells()).missing() > 1000  # the count above is not 0 by itself


def test_the_sample_is_the_same_everywhere_and_begins_the_same() -> None:
    assert sample(20) == sample()[:20]
    assert sample(20, seed=1) != sample(20)
    shapes = [equal_factors(196, 2), equal_factors(500, 3), equal_factors(7, 3), equal_factors(1, 0)]
    assert shapes == [(14, 14), (10, 10, 5), (7, 1, 1), ()]


# ---- the two calls ----

KINDS = [
    TINY,
    replace(TINY, layer="BatchNorm2d", rank=4, plane=20, order="channels_last", dtype="bfloat16", padding=30),
    replace(TINY, layer="BatchNorm3d", rank=5, plane=20, padding=90, mode="evaluation"),
    replace(TINY, rank=2, rows=32, plane=1, order="transposed"),
    replace(TINY, layer="LayerNorm", order="transposed", dtype="float16"),
    replace(TINY, layer="LayerNorm", rank=2, rows=32, plane=1),
    replace(TINY, layer="RMSNorm", rank=4, plane=20, padding=90),
    replace(TINY, layer="GroupNorm", groups=4, order="transposed", mode="evaluation"),
    replace(TINY, layer="GroupNorm", groups=4, rank=2, rows=32, plane=1),
    replace(TINY, layer="InstanceNorm", rank=5, plane=20, order="channels_last"),
    replace(TINY, layer="InstanceNorm", padding=0, rows=2),
]


@pytest.mark.parametrize("cell", KINDS, ids=lambda cell: cell.name)
def test_both_layers_compute_the_cell(cell: Cell) -> None:
    with torch.set_grad_enabled(cell.mode == "training"):
        pair = make_pair(cell)
        assert mistakes(pair) == []
        assert tuple(pair.x.shape) == cell.shape
        assert pair.x.dtype == getattr(torch, cell.dtype)
        assert pair.x.is_contiguous() == (cell.order == "contiguous")
        assert (pair.x.nbytes, pair.x.requires_grad) == (cell.bytes, cell.mode == "training")
        most = 1 / (cell.positions[0] if cell.positions else cell.rows)  # a position more or less in each sample
        assert abs(pair.padding - cell.padding / 100) <= most + 1e-9
        calls = pair.calls()
        if cell.mode == "training":
            dx = results(pair)["dx"]
            torch.testing.assert_close(calls["ours"]()[0], dx, rtol=0, atol=0)
            assert calls["torch"]()[0].shape == dx.shape
        else:
            torch.testing.assert_close(calls["ours"](), results(pair)["y"], rtol=0, atol=0)
        if cell.padding and "Norm1d" in cell.layer and cell.mode == "training":
            assert not torch.equal(calls["torch"]()[0], calls["ours"]()[0])  # torch's counts the padding


def test_a_wrong_result_is_found_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = make_pair(TINY)
    for broken in (replace_lengths(pair, 1), replace_eps(make_pair(TINY))):
        assert [text.split(":")[0] for text in mistakes(broken)][:2] == ["y", "dx"]
    monkeypatch.setattr(measuring, "make_pair", lambda cell: replace_eps(make_pair(cell)))
    row = measuring.measure(TINY, seconds=0, patience=0)
    assert row["status"].startswith("wrong: y: at most ")
    assert "ratio" not in row

    def fail(cell: Cell) -> Pair:
        raise RuntimeError("/a/path")

    monkeypatch.setattr(measuring, "make_pair", fail)
    assert measuring.measure(TINY, seconds=0, patience=0)["status"] == "failed: RuntimeError"


def replace_lengths(pair: Pair, more: int) -> Pair:
    """A pair whose layer is given other lengths than the check."""

    class Longer(Pair):
        @property
        def ragged(self) -> dict[str, Any]:
            return {"lengths": (super().ragged["lengths"] + more).clamp(max=7)}

    return Longer(pair.cell, pair.x, pair.dy, pair.lengths, pair.torchs, pair.ours)


def replace_eps(pair: Pair) -> Pair:
    layer: Any = pair.ours
    layer.eps = 1e-3
    return pair


def test_a_tiny_cell_is_measured() -> None:
    row = measuring.measure(TINY, seconds=0.0, patience=0.0)
    assert (row["status"], row["bytes"], row["padding"]) == ("ok", TINY.bytes, round(make_pair(TINY).padding, 4))
    assert 0 < row["ratio"]["low"] <= row["ratio"]["median"] <= row["ratio"]["high"]
    assert row["rounds"]["total"] >= measuring.ROUNDS[0]
    assert json.loads(json.dumps(row)) == row
    assert Cell(**row["cell"]) == TINY


# ---- the file ----


def row_of(cell: Cell, ratio: float = 1.5, *, disturbed: bool = False, seconds: float = 1e-3) -> dict[str, Any]:
    times = {"median": seconds, "low": seconds, "high": seconds}
    return {
        "name": cell.name,
        "cell": asdict(cell),
        "bytes": cell.bytes,
        "status": "ok",
        "torch": times,
        "ours": {key: value / ratio for key, value in times.items()},
        "ratio": {"median": ratio, "low": ratio - 0.1, "high": ratio + 0.1},
        "small": seconds < 100e-6,
        "rounds": {"total": 9, "quiet": 9, "disturbed": disturbed},
    }


def session_of(code: str, date: str = "2026-01-02", revision: str = "one") -> dict[str, Any]:
    versions = {"python": "3.11", "truenorm": "0.1", "torch": "2.13"}
    machine = {"cpu": "A processor", "system": "Linux x86_64", "versions": versions, "revision": revision}
    return {"machine": machine, "code": code, "settings": {"threads": 2}, "date": date}


class Recording:
    """`python -m bench.map` with made-up times, in an empty folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file, self.measured, self.busy, self.stop_at = folder / "map.jsonl", list[str](), set[str](), ""
        self.code = "a"
        monkeypatch.setattr(command, "enter", lambda allocator: None)
        monkeypatch.setattr("bench.map.measure.measure", self.measure)
        monkeypatch.setattr(storage, "facts", lambda: session_of("")["machine"])
        monkeypatch.setattr(storage, "code_version", lambda: self.code)

    def measure(self, cell: Cell, **_: Any) -> dict[str, Any]:
        if cell.name == self.stop_at:
            raise KeyboardInterrupt
        self.measured.append(cell.name)
        return row_of(cell, disturbed=cell.name in self.busy)

    def run(self, *arguments: str) -> Any:
        self.measured.clear()
        return CliRunner().invoke(command.main, [*arguments, "--out", str(self.file)])


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recording:
    return Recording(tmp_path, monkeypatch)


NAMES = [cell.name for cell in sample()]


def test_an_interrupted_map_continues_and_disturbed_cells_are_measured_again(recording: Recording) -> None:
    recording.stop_at, recording.busy = NAMES[4], {NAMES[1]}
    assert recording.run("--cells", "6").exit_code == 1
    assert recording.measured == NAMES[:4]
    with recording.file.open("a") as file:
        file.write('{"name": "a line that was cut')
    recording.stop_at, recording.busy = "", set()
    done = recording.run("--cells", "6")
    assert done.exit_code == 0
    assert "3 of 6 cells were measured before." in done.stderr
    assert recording.measured == [NAMES[1], *NAMES[4:6]]
    assert set(newest(recording.file).rows) == set(NAMES[:6])
    assert recording.run("--cells", "6").exit_code == 0
    assert recording.measured == []
    recording.code = "b"  # other kernels
    recording.run("--cells", "2")
    assert recording.measured == NAMES[:2]
    assert [len(one.rows) for one in read(recording.file)] == [6, 2]
    recording.code = "a"
    recording.run("--cells", "6")
    assert (recording.measured, len(newest(recording.file).rows)) == ([], 6)


def test_the_bounds_and_the_selection(recording: Recording) -> None:
    assert recording.run("--seconds", "0").exit_code == 0
    assert recording.measured == []
    recording.run("--only", "layer=GroupNorm,RMSNorm", "--only", "padding=50")
    cells = [cell for cell in sample() if cell.layer in ("GroupNorm", "RMSNorm") and cell.padding == 50]
    assert recording.measured == [cell.name for cell in cells]
    for wrong, text in (
        ("shape=3", "AXIS=VALUE with one of layer, rank, rows, width, plane, groups, dtype, order, padding, mode, got"),
        ("mode=test", "mode is one of training, evaluation; got 'test'."),
    ):
        done = recording.run("--only", wrong)
        assert (done.exit_code, text in " ".join(done.stderr.split())) == (2, True), done.stderr
    listed = recording.run("--list").stdout.splitlines()
    assert [line[2:] for line in listed if line[0] == "x"] == [cell.name for cell in cells]
    before = recording.file.read_bytes()
    assert recording.run("--quick").exit_code == 0
    assert recording.measured == NAMES[: command.QUICK]
    assert recording.file.read_bytes() == before


# ---- what it says ----


def some_results() -> Results:
    cells = [replace(TINY, padding=padding, mode=mode) for padding in (0, 50) for mode in AXES["mode"]]
    ratios = (0.93, 1.5, 1.7, 0.85)
    rows = [row_of(cell, ratio) for cell, ratio in zip(cells, ratios, strict=True)]
    rows[3] |= {"small": True}
    rows.append(row_of(replace(TINY, padding=90), 0.2, disturbed=True))
    return Results(session_of("a"), {row["name"]: row for row in rows})


def test_limits_are_numbers_of_the_results() -> None:
    found = limits(some_results().reliable())
    assert [(one.value, one.cells, one.breaking, one.kept) for one in found] == [
        (0.93, 3, 1, False),
        (0.85, 1, 1, False),
        (0.5, 4, 2, False),
        (1.215, 2, 1, True),
        (1.275, 2, 1, False),
        (0.85, 2, 1, False),
    ]
    assert [one.kept for one in limits([])] == [None] * 6
    text = render_limits(some_results().reliable())
    assert "share below 1.0                      50.0%   <= 10%      4       2  NO" in text


def test_the_section_names_the_slowest_cells_the_machine_and_the_date() -> None:
    found = some_results()
    text = render(found, 384)
    assert "| all | 4 | 1.22 | 0.91 to 1.55 | 50% | 0.85 |" in text
    assert text.index("| `BatchNorm1d 8x16x7 float32 contiguous 50% evaluation` | 0.85 (0.75 to 0.95) |") > 0
    assert "4 of 384 cells, 1 disturbed by other processes; medians of 9 to 9 interleaved rounds. 2026-01-02; " in text
    assert "90% training" not in text
    assert render_rows(worst(found.reliable(), 1)).endswith(
        "BatchNorm1d 8x16x7 float32 contiguous 50% evaluation  under 100 us"
    )


@pytest.mark.slow
def test_pictures_and_section_are_written(tmp_path: Path) -> None:
    pytest.importorskip("altair", reason="altair is not installed")
    from bench.map.pictures import EXTREME, LAYER, PADDING, PICTURES, fields, links

    page, file = tmp_path / "speed.md", tmp_path / "map.jsonl"
    page.write_text("before <!-- map --> old <!-- /map --> after")
    arguments = ["--draw", "--out", str(file), "--page", str(page)]
    done = CliRunner().invoke(command.main, arguments)
    assert done.stderr == "Error: map.jsonl has no cell that was measured undisturbed. Run python -m bench.map.\n"
    found = some_results()
    append(file, {"session": found.session})
    for row in found.rows.values():
        append(file, row)
    assert CliRunner().invoke(command.main, arguments, catch_exceptions=False).exit_code == 0
    assert page.read_text() == f"before <!-- map -->\n{render(found, len(sample()))}\n\n{links()}\n<!-- /map --> after"
    written = sorted(one.name for one in (tmp_path / "speed").iterdir())
    assert written == sorted(f"{name}.{suffix}" for name in PICTURES for suffix in ("svg", "png"))
    svg = (tmp_path / "speed" / "size.svg").read_text()
    assert "0.93" in svg  # the lowest
    shown = {one["x"]: one for one in fields(found.reliable(), PADDING, LAYER)}
    assert (shown["0 %"]["median"], shown["0 %"]["lowest"]) == ("1.22", "0.93")
    (extreme,) = fields([row_of(TINY, 50.0)], PADDING, LAYER)
    assert (extreme["value"], extreme["median"], extreme["lowest"]) == (EXTREME, "50.00", "1 cell")
