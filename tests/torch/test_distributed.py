"""Two processes of DistributedDataParallel train what one process trains, without padding and without truenorm."""

import copy
import doctest
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import distributed_worker as worker  # noqa: E402
from tools.lockstep import run_in_lockstep  # noqa: E402

nn = torch.nn
ROOT = Path(__file__).parents[2]
WORLD = 2

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without torch.distributed"),
]


def recipe() -> str:
    """The function of the page."""
    examples = doctest.DocTestParser().get_examples((ROOT / "docs/cookbook.md").read_text("utf-8"))
    (source,) = [one.source for one in examples if one.source.startswith("def train(")]
    return f"import torch\nfrom torch import nn\nimport truenorm.torch as tnt\n{source}"


def train_in_processes(folder: Path, source: str) -> list[dict[str, Any]]:
    (folder / "recipe.py").write_text(source, "utf-8")
    started = [
        subprocess.Popen([sys.executable, str(worker.__file__), str(rank), str(WORLD), str(folder)])
        for rank in range(WORLD)
    ]
    try:
        assert [one.wait(timeout=240) for one in started] == [0] * WORLD
    finally:
        for one in started:
            one.kill()
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORLD)]


def train_in_one(model: Any) -> list[dict[str, Any]]:
    """The state of each process: sequences one at a time, which only meet in the batch norms of their process."""
    for step in range(len(worker.LENGTHS[0])):
        replicas = [copy.deepcopy(model) for _ in range(WORLD)]  # begin with the buffers of process 0
        for rank, replica in enumerate(replicas):
            parts = [one[None] for one in worker.sequences(rank, step)]
            scores = run_in_lockstep(replica, parts, lambda own, one: own(one).mean(2))
            nn.functional.cross_entropy(torch.cat(scores), torch.arange(len(parts))).backward()
        with torch.no_grad():
            for own in zip(*(one.parameters() for one in replicas), strict=True):
                change = 0.1 * sum(one.grad for one in own) / WORLD
                for one in own:
                    one -= change
        model = copy.deepcopy(replicas[0])
        model.zero_grad()
    return [one.state_dict() for one in replicas]


def test_two_processes_train_as_one_without_padding(tmp_path: Path) -> None:
    found, expected = train_in_processes(tmp_path, recipe()), train_in_one(worker.model())
    for rank in range(WORLD):
        torch.testing.assert_close(found[rank], expected[rank], rtol=1e-10, atol=1e-12)
    assert not torch.equal(found[0]["1.running_mean"], found[1]["1.running_mean"])  # not synchronised
    start = worker.model().state_dict()
    assert not any(torch.equal(found[0][name], start[name]) for name in start if name.endswith("weight"))
