"""A batch norm under every order of calls that change which values its statistics describe.

`hypothesis` draws the orders. The layer is compared after each call with a mirror in plain Python that shares no code
with it: running statistics, counters, outputs, flags and keys.
"""

import copy
import itertools
import math
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from torch_data import normal

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import distributed as dist  # noqa: E402

import truenorm.torch as tnt  # noqa: E402
from truenorm.torch._processes import ProcessExchange  # noqa: E402

nn = torch.nn
EPS = 3e-3
LENGTHS = torch.tensor([3, 0, 2])
BATCHES = [normal(3, 2, 4, seed=i, dtype=torch.float64) * (i + 1) + i for i in range(3)]
KEYS = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
Channels = list[list[float]]  # the valid values of each channel


def valid_values(number: int, ragged: bool) -> Channels:
    lengths = LENGTHS.tolist() if ragged else [4] * 3
    x = BATCHES[number].tolist()
    return [[value for i, n in enumerate(lengths) for value in x[i][channel][:n]] for channel in range(2)]


@dataclass
class Mirror:
    """What the layer should hold."""

    mean: list[float] = field(default_factory=lambda: [0.0, 0.0])
    var: list[float] = field(default_factory=lambda: [1.0, 1.0])
    weight: list[float] = field(default_factory=lambda: [1.0, 1.0])
    bias: list[float] = field(default_factory=lambda: [0.0, 0.0])
    batches: int = 0
    values: float = 0.0  # only with a half-life
    momentum: float | None = 0.3
    half_life: float | None = None
    ours: bool = False
    training: bool = True
    frozen: bool = False
    synced: bool = False
    skipped: int = 0
    trained: tuple[bool, bool] = (True, True)  # weight, bias
    before: tuple[bool | None, bool | None] = (None, None)  # their flags before they were frozen

    def measures(self) -> bool:
        """Whether a forward uses and tracks the statistics of its batch."""
        return self.training and not self.frozen

    def normalize(self, number: int, ragged: bool) -> list[float]:
        """The valid values of the output, channel by channel."""
        found = []
        for channel, values in enumerate(valid_values(number, ragged)):
            mean, var = (self.mean[channel], self.var[channel])
            if self.measures():
                mean = math.fsum(values) / len(values)
                var = math.fsum((one - mean) ** 2 for one in values) / len(values)
            scale = self.weight[channel] / math.sqrt(var + EPS)
            found += [(one - mean) * scale + self.bias[channel] for one in values]
        return found

    def update(self, batch: Channels) -> None:
        count = len(batch[0])
        if self.half_life is not None:
            self.values += count
            weight = (1 - 2 ** (-count / self.half_life)) / (1 - 2 ** (-self.values / self.half_life))
        else:
            weight = self.momentum if self.momentum is not None else 1 / (self.batches + 1)
        for channel, (mean, var) in enumerate(statistics(batch)):
            self.mean[channel] += weight * (mean - self.mean[channel])
            self.var[channel] += weight * (var - self.var[channel])
        self.batches += 1


def statistics(batch: Channels) -> list[tuple[float, float]]:
    """Mean, and variance with n - 1, of each channel."""
    found = []
    for values in batch:
        mean = math.fsum(values) / len(values)
        found.append((mean, math.fsum((one - mean) ** 2 for one in values) / (len(values) - 1)))
    return found


class BatchNormMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model: Any = nn.Sequential(nn.BatchNorm1d(2, eps=EPS, momentum=0.3)).double()
        self.mirror = Mirror()
        self.saved: list[tuple[dict[str, Any], Mirror]] = []

    @property
    def layer(self) -> Any:
        return self.model[0]

    def is_ours(self) -> bool:
        return self.mirror.ours

    @initialize(ours=st.sampled_from([True, True, False]), momentum=st.sampled_from([0.3, None]))
    def begin(self, ours: bool, momentum: float | None) -> None:
        """With a layer that has seen a batch, and is mostly ours: few orders come to the calls that need one."""
        self.set_momentum(momentum)
        if ours:
            self.convert()
        self.forward(0, False)

    # ---- running it ----

    @rule(mode=st.booleans())
    def train_or_eval(self, mode: bool) -> None:
        self.model.train(mode)
        self.mirror.training = mode

    @rule(number=st.sampled_from(range(3)), ragged=st.booleans())
    def forward(self, number: int, ragged: bool) -> None:
        ragged = ragged and self.mirror.ours
        y = self.layer(BATCHES[number], lengths=LENGTHS) if ragged else self.model(BATCHES[number])
        rows = torch.arange(4) < (LENGTHS if ragged else torch.full((3,), 4))[:, None]
        found = [value for channel in range(2) for value in y[:, channel][rows].tolist()]
        torch.testing.assert_close(found, self.mirror.normalize(number, ragged), rtol=1e-9, atol=1e-9)
        assert y.requires_grad == any(self.mirror.trained)
        if self.mirror.measures():
            self.mirror.update(valid_values(number, ragged))

    @precondition(is_ours)
    @rule()
    def forward_that_is_not_finite(self) -> None:
        self.model(torch.where(torch.arange(4) == 1, torch.inf, BATCHES[0]))
        self.mirror.skipped += self.mirror.measures()

    @precondition(is_ours)
    @rule(first=st.sampled_from(range(3)), second=st.sampled_from(range(3)))
    def accumulate(self, first: int, second: int) -> None:
        with tnt.accumulate(self.model):
            self.layer(BATCHES[first], lengths=LENGTHS)
            self.model(BATCHES[second])
        if self.mirror.measures():
            pair = valid_values(first, True), valid_values(second, False)
            self.mirror.update([one + other for one, other in zip(*pair, strict=True)])

    @rule(first=st.sampled_from(range(3)), second=st.sampled_from(range(3)))
    def reestimate(self, first: int, second: int) -> None:
        batches = [BATCHES[first], BATCHES[second]]
        if not self.mirror.ours or self.mirror.frozen:
            with pytest.raises(ValueError, match="reestimate"):
                tnt.reestimate(self.model, batches)
            return
        tnt.reestimate(self.model, batches)
        pair = valid_values(first, False), valid_values(second, False)
        both = [one + other for one, other in zip(*pair, strict=True)]
        self.mirror.mean, self.mirror.var = map(list, zip(*statistics(both), strict=True))
        self.mirror.batches, self.mirror.values = 2, float(len(both[0]))

    # ---- settings ----

    @rule(weight=st.booleans(), bias=st.booleans(), fixed=st.sampled_from([True, True, False]))
    def freeze(self, weight: bool, bias: bool, fixed: bool) -> None:
        if not self.mirror.ours:
            with pytest.raises(ValueError, match="freeze"):
                tnt.freeze(self.model, fixed, weight, bias)
            return
        tnt.freeze(self.model, fixed, weight, bias)
        mirror, wanted = self.mirror, (weight, bias)
        mirror.frozen = mirror.frozen or fixed
        known = zip(wanted, mirror.before, mirror.trained, strict=True)
        mirror.before = tuple(now if want and old is None else old for want, old, now in known)  # type: ignore[assignment]
        mirror.trained = tuple(now and not want for want, now in zip(wanted, mirror.trained, strict=True))  # type: ignore[assignment]

    @rule()
    def thaw(self) -> None:
        tnt.thaw(self.model)
        mirror = self.mirror
        known = zip(mirror.before, mirror.trained, strict=True)
        mirror.trained = tuple(now if old is None else old for old, now in known)  # type: ignore[assignment]
        mirror.frozen, mirror.before = False, (None, None)

    @rule()
    def sync(self) -> None:
        if not self.mirror.ours:
            with pytest.raises(ValueError, match="sync"):
                tnt.sync(self.model)
            return
        tnt.sync(self.model)
        self.mirror.synced = True

    @rule()
    def unsync(self) -> None:
        tnt.unsync(self.model)
        self.mirror.synced = False

    @rule()
    def convert(self) -> None:
        tnt.convert(self.model)
        self.mirror.ours = True

    @rule()
    def revert(self) -> None:
        report = tnt.revert(self.model)
        kept = self.mirror.frozen or self.mirror.synced
        assert len(report.left) == (self.mirror.ours and kept)
        if self.mirror.ours and not kept:
            self.mirror.ours, self.mirror.half_life, self.mirror.skipped = False, None, 0

    @rule(momentum=st.sampled_from([0.3, 1.0, 0.0, None]))
    def set_momentum(self, momentum: float | None) -> None:
        self.layer.momentum = momentum
        self.mirror.momentum = momentum

    @precondition(is_ours)
    @rule(half_life=st.sampled_from([None, 7.0, 100.0]))
    def set_half_life(self, half_life: float | None) -> None:
        self.layer.half_life = half_life
        if self.mirror.half_life is None:
            self.mirror.values = math.inf if self.mirror.batches else 0.0
        self.mirror.half_life = half_life

    @rule(weight=st.sampled_from([-1.5, 0.25, 2.0]), bias=st.sampled_from([-0.5, 1.0]))
    def set_parameters(self, weight: float, bias: float) -> None:
        with torch.no_grad():
            self.layer.weight.copy_(torch.tensor([weight, 1.0]))
            self.layer.bias.copy_(torch.tensor([bias, 0.5]))
        self.mirror.weight, self.mirror.bias = [weight, 1.0], [bias, 0.5]

    # ---- state ----

    @rule(pickled=st.booleans())
    def copy(self, pickled: bool) -> None:
        self.model = pickle.loads(pickle.dumps(self.model)) if pickled else copy.deepcopy(self.model)

    @rule()
    def save(self) -> None:
        self.saved.append((copy.deepcopy(self.model.state_dict()), copy.deepcopy(self.mirror)))

    @precondition(lambda self: self.saved)
    @rule(data=st.data())
    def load(self, data: Any) -> None:
        state, then = data.draw(st.sampled_from(self.saved), label="saved")
        too_many = then.half_life is not None and self.mirror.half_life is None
        self.model.load_state_dict(state, strict=not too_many)
        values = then.values if then.half_life is not None else math.inf if then.batches else 0.0
        names = ("mean", "var", "weight", "bias", "batches")
        found = {name: copy.deepcopy(getattr(then, name)) for name in names}
        self.mirror = replace(self.mirror, values=values, **found)

    @rule()
    def reset(self) -> None:
        self.layer.reset_running_stats()
        if not self.mirror.frozen:
            self.mirror = replace(self.mirror, mean=[0.0, 0.0], var=[1.0, 1.0], batches=0, values=0.0)

    # ---- what always holds ----

    @invariant()
    def statistics_and_parameters(self) -> None:
        layer, mirror = self.layer, self.mirror
        for name in ("mean", "var"):
            expected = getattr(mirror, name)
            torch.testing.assert_close(getattr(layer, f"running_{name}").tolist(), expected, rtol=1e-9, atol=1e-9)
        assert (layer.weight.tolist(), layer.bias.tolist()) == (mirror.weight, mirror.bias)
        assert int(layer.num_batches_tracked) == mirror.batches
        if mirror.half_life is not None:
            assert layer.num_values_tracked.tolist() == [mirror.values] * 2

    @invariant()
    def flags_and_keys(self) -> None:
        layer, mirror = self.layer, self.mirror
        assert type(layer) is (tnt.BatchNorm1d if mirror.ours else nn.BatchNorm1d)
        assert (self.model.training, layer.training) == (mirror.training, mirror.training)
        assert (layer.weight.requires_grad, layer.bias.requires_grad) == mirror.trained
        assert ("frozen" in vars(layer)) == mirror.frozen
        assert isinstance(vars(layer).get("_exchange"), ProcessExchange) == mirror.synced
        assert (layer.momentum, getattr(layer, "half_life", None)) == (mirror.momentum, mirror.half_life)
        assert getattr(layer, "skipped_batches", 0) == mirror.skipped
        more = [] if mirror.half_life is None else ["num_values_tracked"]
        assert list(layer.state_dict()) == [*KEYS, *more]
        assert "_stage" not in vars(layer)


@pytest.fixture
def group_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process group of this process, whose messages are really sent: with one rank `sync` would send none."""
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    monkeypatch.setattr(ProcessExchange, "is_active", lambda self: dist.is_initialized())
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("examples", "steps"), [(12, 20), pytest.param(100, 60, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_63_invariants_hold_in_every_order(group_of_one: None, examples: int, steps: int) -> None:
    chosen = settings(settings.get_profile("all"), max_examples=examples, stateful_step_count=steps)
    run_state_machine_as_test(BatchNormMachine, settings=chosen)


ACTIONS: dict[str, Callable[[BatchNormMachine], object]] = {
    "train": lambda machine: machine.train_or_eval(True),
    "eval": lambda machine: machine.train_or_eval(False),
    "forward": lambda machine: machine.forward(1, True),
    "not finite": lambda machine: machine.mirror.ours and machine.forward_that_is_not_finite(),
    "accumulate": lambda machine: machine.mirror.ours and machine.accumulate(1, 2),
    "reestimate": lambda machine: machine.reestimate(1, 2),
    "freeze": lambda machine: machine.freeze(True, False, True),
    "thaw": lambda machine: machine.thaw(),
    "sync": lambda machine: machine.sync(),
    "unsync": lambda machine: machine.unsync(),
    "convert": lambda machine: machine.convert(),
    "revert": lambda machine: machine.revert(),
    "momentum": lambda machine: machine.set_momentum(None),
    "half_life": lambda machine: machine.mirror.ours and machine.set_half_life(7.0),
    "deepcopy": lambda machine: machine.copy(False),
    "pickle": lambda machine: machine.copy(True),
    "save": lambda machine: machine.save(),
    "reset": lambda machine: machine.reset(),
}


def test_63_every_pair_of_calls(group_of_one: None) -> None:
    """Each call after each other one: what `hypothesis` draws in a few seconds may leave some out."""
    for one, other in itertools.product(ACTIONS, repeat=2):
        machine = BatchNormMachine()
        machine.begin(True, 0.3)
        for action in (one, other, "forward"):
            ACTIONS[action](machine)
            try:
                machine.statistics_and_parameters()
                machine.flags_and_keys()
            except AssertionError as error:
                raise AssertionError(f"{action} of {one}, {other}, forward") from error
