"""Memory: the estimates are of the right size, and what does not fit is refused before anything is allocated."""

import resource
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs import ignore_report, never

from truenorm.lab import memory, run
from truenorm.lab.config import make_config
from truenorm.lab.networks import (
    ModelConfig,
    _normal,
    character_mlp,
    character_size,
    sequence_classifier,
    sequence_size,
    table_network,
    table_size,
)


@pytest.mark.parametrize(
    "config",
    [
        ModelConfig(),
        ModelConfig(hidden=7, depth=3, norm="none"),
        ModelConfig(hidden=8, depth=2, norm="group", dtype="float64"),
        ModelConfig(norm="rms", dropout=0.5),
    ],
)
def test_the_number_of_parameters_is_exact(config: ModelConfig) -> None:
    rng = np.random.default_rng(0)
    sizes: dict[str, int] = {"vocab_size": 11, "block": 5, "embedding": 3}
    made = character_mlp(config, rng, **sizes)
    assert character_size(config, **sizes).parameters == made.flat_parameters.size
    sizes = {"features": 13, "outputs": 4}
    assert table_size(config, **sizes).parameters == table_network(config, rng, **sizes).flat_parameters.size
    if config.depth == 1:
        sizes = {"vocab_size": 11, "classes": 2, "max_length": 9, "embedding": 6, "heads": 2}
        made = sequence_classifier(config, rng, **sizes)
        assert sequence_size(config, **sizes).parameters == made.flat_parameters.size


@pytest.mark.parametrize(
    "options",
    [
        {"hidden": 700, "depth": 2, "optimizer": "adam"},
        {"block": 1000},
        {"hidden": 200, "batch": 8_000},
        {"task": "gender", "max_length": 30, "hidden": 16},
    ],
)
def test_the_estimate_is_of_the_right_size(
    options: dict[str, Any], words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimates = []
    monkeypatch.setattr(memory, "require", lambda advice, **parts: estimates.append(sum(parts.values())))
    given = {"steps": 1, "data": str(words)} if "task" not in options else {"steps": 1}
    config = make_config(given | options)
    tracemalloc.start()
    try:
        run.start(tmp_path / "run", config, ignore_report, never)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak / 2.5 < estimates[0] < 2.5 * peak


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"block": 10**6}, "--block, --embedding, --hidden, --depth or --batch"),
        ({"hidden": 10**6, "depth": 2}, "--block, --embedding, --hidden, --depth or --batch"),
        ({"hidden": 5000, "depth": 1000}, "--block, --embedding, --hidden, --depth or --batch"),
        ({"embedding": 10**6, "block": 1000}, "--block, --embedding, --hidden, --depth or --batch"),
        ({"batch": 10**6, "hidden": 10_000}, "--block, --embedding, --hidden, --depth or --batch"),
        ({"task": "gender", "max_length": 10**4}, "--max-length, --embedding, --hidden, --heads or --batch"),
        ({"task": "gender", "max_length": 10**6}, "--max-length, --embedding, --hidden, --heads or --batch"),
        (
            {"task": "gender", "batch": 10**6, "hidden": 10**4},
            "--max-length, --embedding, --hidden, --heads or --batch",
        ),
        ({"task": "table", "target": "a", "hidden": 10**6, "depth": 3}, "--hidden, --depth or --batch"),
        ({"task": "table", "target": "a", "batch": 10**6, "hidden": 10**4}, "--hidden, --depth or --batch"),
    ],
)
def test_what_does_not_fit_is_refused_before_it_is_allocated(
    options: dict[str, Any], advice: str, words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 8 * 10**9)
    table = tmp_path / "table.csv"
    table.write_text("a,b\n" + "1.5,2\n3,4\n5,7\n" * 5)
    if options.get("task") != "gender":
        options = {"data": str(table if "task" in options else words)} | options
    tracemalloc.start()
    start = time.process_time()
    try:
        with pytest.raises(
            ValueError, match=r"memory: the run must fit into 8\.0 GB, which are free, got about"
        ) as got:
            run.start(tmp_path / "run", make_config(options), ignore_report, never)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert str(got.value).endswith(f"). Choose a smaller {advice}.")
    assert peak < 20e6
    assert time.process_time() - start < 3
    assert not (tmp_path / "run").exists()


def test_the_whole_message(words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 8 * 10**9)
    with pytest.raises(ValueError, match="memory") as got:
        run.start(tmp_path / "run", make_config({"data": str(words), "block": 10**6}), ignore_report, never)
    assert str(got.value) == (
        "memory: the run must fit into 8.0 GB, which are free, got about 43 GB (data 712 MB, network 8.0 GB, batches "
        "34 GB). Choose a smaller --block, --embedding, --hidden, --depth or --batch."
    )


def test_a_run_of_somebody_else_is_refused_too(words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sample` makes the network before it looks at the arrays of the checkpoint."""
    monkeypatch.setattr(memory, "free_memory", lambda: 8 * 10**9)
    config = ModelConfig(hidden=10**6, depth=1000)
    with pytest.raises(ValueError, match=r"got about .* GB \(network .* GB\)\. Choose a smaller --block"):
        character_mlp(config, np.random.default_rng(0))


def test_free_memory_is_that_of_the_smallest_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"/proc/meminfo": ["MemTotal: 9000 kB", "MemAvailable: 5000 kB"]}
    monkeypatch.setattr(memory, "_lines", lambda path: files.get(path, []))
    assert memory.free_memory() == 5000 * 1024
    files |= {"/sys/fs/cgroup/memory.max": ["3000"], "/sys/fs/cgroup/memory.current": ["1000"]}
    assert memory.free_memory() == 2000
    files["/sys/fs/cgroup/memory.max"] = ["max"]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4000, 4000))
    assert memory.free_memory() == 4000
    files.clear()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert memory.free_memory() > 10**8


def test_initial_weights_do_not_depend_on_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = [_normal(np.random.default_rng(3), (37, 11), 0.3, "float32")]
    monkeypatch.setattr("truenorm.lab.networks.NORMAL_PART", 50)
    drawn.append(_normal(np.random.default_rng(3), (37, 11), 0.3, "float32"))
    expected = (np.random.default_rng(3).standard_normal((37, 11)) * 0.3).astype("float32")
    for one in drawn:
        np.testing.assert_array_equal(one, expected)
