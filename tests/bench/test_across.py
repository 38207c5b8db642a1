"""What `bench.ranks` computes about the exchange between processes."""

from pathlib import Path
from typing import Any

import pytest
from bench.ranks import loopback_bytes, message_bytes, ring_bytes, simulate


@pytest.mark.parametrize("world", [2, 3, 8, 100])
def test_a_ring_takes_a_round_for_each_other_rank(world: int) -> None:
    assert simulate(world, 0.5, world) == pytest.approx((world - 1) * 0.5)
    assert ring_bytes(world, 1000) == (world - 1) * 1000


@pytest.mark.parametrize("world", [2, 3, 4, 8])
def test_ranks_that_share_processors_wait_for_them(world: int) -> None:
    """One processor does all messages of all ranks, one after the other; two need half of that, but for odd rounds."""
    messages = world * (world - 1)
    assert simulate(world, 0.5, 1) == pytest.approx(messages * 0.5)
    assert messages * 0.25 <= simulate(world, 0.5, 2) <= (messages + world) * 0.25


def test_messages_are_as_large_as_those_that_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    torch: Any = pytest.importorskip("torch", reason="torch is not installed")

    import truenorm.torch as tnt
    from truenorm.torch import _processes

    sent = []

    def gather_all(self: Any, name: str, message: Any) -> Any:
        sent.append(message.numel() * message.element_size())
        return torch.stack([message, message])

    monkeypatch.setattr(_processes.Processes, "size", lambda self: 2)
    monkeypatch.setattr(_processes.Processes, "check_layers", lambda self, name, like: None)
    monkeypatch.setattr(_processes.Processes, "agreement", lambda self: _processes.Agreement(width=7))
    monkeypatch.setattr(_processes.Processes, "_gather_all", gather_all)
    layer = tnt.BatchNorm1d(7)
    tnt.sync(layer)
    layer(torch.randn(4, 7)).sum().backward()
    assert sent == [message_bytes(7)] * 2  # one collective forward, one backward


def test_bytes_of_the_loopback_device(tmp_path: Path) -> None:
    file = tmp_path / "dev"
    file.write_text("Inter-| Receive\n face |bytes packets\n eth0: 5 1\n    lo: 1234 7 0 0\n")
    assert loopback_bytes(file) == 1234
