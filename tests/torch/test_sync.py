"""`sync`: statistics over processes are those of one process that has all the data."""

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from errors import assert_message
from fingerprint import fingerprint

torch = pytest.importorskip("torch", reason="torch is not installed")

import rank_cases as cases  # noqa: E402
import rank_faults as faults  # noqa: E402
from rank_assignments import CROSS, assignments, assignments_equal_one_process  # noqa: E402
from ranks import Ranks, check  # noqa: E402

import truenorm as tn  # noqa: E402
import truenorm.torch as tnt  # noqa: E402
from truenorm.torch import _formula, _processes  # noqa: E402
from truenorm.torch._formula import merge_tables  # noqa: E402

nn = torch.nn
WORLD = 4


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    started = Ranks(WORLD)
    yield started
    started.close()


def test_42_64_76_77_85_any_split_over_ranks_equals_one_process(ranks: Ranks) -> None:
    """Some of the partitions, each with another dtype, lengths or affine."""
    for world, step in ((3, 8), (4, 12)):
        chosen = [(one, i % len(CROSS)) for i, one in enumerate(assignments(world)[::step])]
        assert {i for _, i in chosen} == set(range(len(CROSS)))
        check(ranks.run(world, assignments_equal_one_process, chosen))


def test_42_the_assignments_are_all_but_for_the_names_of_ranks() -> None:
    for world, count in ((1, 1), (2, 32), (3, 122), (4, 187)):
        owners = itertools.product(range(world), repeat=cases.SAMPLES)
        every = {
            frozenset(frozenset(i for i, o in enumerate(own) if o == rank) for rank in range(world)) - {frozenset()}
            for own in owners
        }
        found = {frozenset(map(frozenset, one)) - {frozenset()} for one in assignments(world)}
        assert (len(found), found) == (count, every)
        for rank in range(world):  # each rank is empty at times, and has samples at times
            assert world < 3 or {len(one[rank]) > 0 for one in assignments(world)} == {True, False}


@pytest.mark.slow
def test_42_all_assignments_of_samples_to_ranks(ranks: Ranks) -> None:
    """On 1 and 2 ranks each with all of CROSS; on 3 and 4 with each dtype once, and each of lengths and affine once.

    Some hundreds at a time: a test does not wait for ever.
    """
    for world in (1, 2, 3, 4):
        chosen = list(itertools.product(assignments(world), range(len(CROSS))))
        if world > 2:
            rows = enumerate(assignments(world))
            chosen = [(one, 4 * dtype + (i + dtype) % 4) for i, one in rows for dtype in range(4)]
        for first in range(0, len(chosen), 400):
            part = chosen[first : first + 400]
            assert check(ranks.run(world, assignments_equal_one_process, part)) == [len(part)] * world


@pytest.mark.parametrize("engine", ["native", "reference"])
def test_40_masks_weights_and_layouts(ranks: Ranks, engine: str) -> None:
    check(ranks.run(2, cases.every_form_equals_one_process, engine))


@pytest.mark.parametrize("optimizer", ["SGD", pytest.param("Adam", marks=pytest.mark.slow)])
def test_74_82_training_on_three_ranks_equals_one_process(ranks: Ranks, optimizer: str) -> None:
    check(ranks.run(3, cases.training_equals_one_process, optimizer, 20, 1))


def test_two_forwards_before_one_backward(ranks: Ranks) -> None:
    check(ranks.run(2, cases.training_equals_one_process, "SGD", 3, 2))


def test_50_a_checkpointed_forward_counts_once_on_all_ranks(ranks: Ranks) -> None:
    check(ranks.run(2, cases.checkpointing_counts_once))


def test_80_evaluation_and_frozen_statistics_exchange_nothing(ranks: Ranks) -> None:
    check(ranks.run(2, cases.evaluation_exchanges_nothing, timeout=20.0))


def test_31_one_value_is_refused_by_the_count_of_all_ranks(ranks: Ranks) -> None:
    zero, one = check(ranks.run(2, cases.one_value_on_all_ranks_is_refused))
    text = "Expected more than 1 value per channel when training, got input size torch.Size([{}, 3, 1])"
    text += " and 1 value in all parts together"
    assert (zero[0], one[0]) == (text.format(1), text.format(0))
    assert zero[2].shape == (1, 3, 1)  # on_single="running"
    assert one[2].shape == (0, 3, 1)
    assert bool(zero[4].isfinite().all())
    assert bool(one[4].isfinite().all())
    assert [zero[i] for i in (1, 3, 5, 7)] == [one[i] for i in (1, 3, 5, 7)] == [0, 0, 1, 0]


def test_22_one_rank_with_inf_changes_no_rank(ranks: Ranks) -> None:
    for skipped, count, mean in check(ranks.run(2, cases.a_value_that_is_not_finite_on_one_rank)):
        assert (skipped, count, mean.tolist()) == (1, 0, [0.0, 0.0, 0.0])


def test_89_copies_and_pickles_find_their_group(ranks: Ranks) -> None:
    check(ranks.run(4, cases.copies_and_pickles_find_their_group))


def test_61_84_running_statistics_of_unsynchronized_ranks_are_merged(ranks: Ranks) -> None:
    check(ranks.run(4, cases.running_statistics_are_merged))


def test_61_running_statistics_with_a_half_life_are_merged(ranks: Ranks) -> None:
    check(ranks.run(4, cases.running_statistics_with_a_half_life_are_merged))


def test_82_branches_at_different_speeds(ranks: Ranks) -> None:
    check(ranks.run(2, cases.branches_at_different_speeds, timeout=20.0))


def test_88_the_cpu_is_enough(ranks: Ranks) -> None:
    found = check(ranks.run(2, cases.torch_refuses_the_cpu_and_we_do_not))
    assert all(one.startswith("SyncBatchNorm expected input tensor to be on GPU") for one in found)


def test_57_reestimation_over_ranks_with_loaders_of_different_lengths(ranks: Ranks) -> None:
    check(ranks.run(3, cases.reestimation_equals_one_process))


def test_57_ranks_without_a_batch_send_the_same_dtype_as_on_a_gpu(ranks: Ranks) -> None:
    check(ranks.run(3, cases.reestimation_equals_one_process, True))


def test_79_ranks_that_disagreed_can_skip_a_batch_and_go_on(ranks: Ranks) -> None:
    check(ranks.run(2, faults.a_step_after_a_disagreement, timeout=20.0))


def test_78_one_rank_needs_no_gradient_of_x(ranks: Ranks) -> None:
    check(ranks.run(2, faults.one_rank_needs_no_gradient_of_x, timeout=20.0))


SAME_ORDER = "Run the same model on all ranks, with an empty batch where there is no data."
DISAGREEMENTS = {
    "skips": "sync: all ranks must run the same layers in the same order, but rank 0 is in call 1 of 'first', "
    f"rank 1 is in call 1 of 'second'. {SAME_ORDER}",
    "again": "sync: all ranks must run the same layers in the same order, but rank 0 is in call 1 of 'second', "
    f"rank 1 is in call 2 of 'first'. {SAME_ORDER}",
    "backward": "sync: all ranks must run the same layers in the same order, but rank 0 is in call 1 of 'second', "
    f"rank 1 is in call 1 of 'first' (backward). {SAME_ORDER}",
    "width": "sync: all ranks must have the same layers, got 'second' of 6 channels on rank 0 and 'second' of 7 "
    "channels on rank 1. Build the same model on all ranks before sync(model).",
    "gradient": "sync: all ranks must run a backward, or none, but in call 1 of 'first' neither x nor weight nor bias "
    "requires a gradient on rank 1. Set requires_grad alike on all ranks.",
}


@pytest.mark.parametrize("what", DISAGREEMENTS)
def test_79_ranks_that_disagree_are_named_on_all_ranks(ranks: Ranks, what: str) -> None:
    found = check(ranks.run(2, faults.ranks_at_different_layers, what, timeout=20.0))
    assert found == [DISAGREEMENTS[what]] * 2


@pytest.mark.parametrize(
    ("what", "where"),
    [
        ("second call", "call 2 of '' of model 2"),
        ("first call", "the first call of a model"),
        ("reestimate", "reestimate"),
        ("merge_running", "the first call of a model"),
    ],
)
def test_79_ranks_in_different_models_are_named_and_go_on(ranks: Ranks, what: str, where: str) -> None:
    found = check(ranks.run(2, faults.ranks_in_different_models, what, timeout=20.0))
    model = "" if what == "reestimate" else " of model 1"
    text = f"sync: all ranks must run the same layers in the same order, but rank 0 is in call 2 of ''{model}"
    assert found == [f"{text}, rank 1 is in {where}. {SAME_ORDER}"] * 2


def test_a_rank_that_ends_fails_its_own_test_alone(ranks: Ranks) -> None:
    with pytest.raises(AssertionError, match="rank 1 has ended"):
        ranks.run(2, faults.a_rank_is_lost, signal.SIGKILL, "forward", timeout=20.0)
    check(ranks.run(2, cases.evaluation_exchanges_nothing))


def test_a_group_that_is_made_again(ranks: Ranks, tmp_path: Path) -> None:
    check(ranks.run(2, faults.a_group_is_made_again, str(tmp_path / "store"), timeout=20.0))


@pytest.mark.slow
@pytest.mark.parametrize("lose", [faults.a_rank_is_lost, faults.a_rank_is_lost_inside], ids=["before", "inside"])
@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_79_a_rank_that_is_lost_is_an_error_on_the_others(number: int, where: str, lose: Any) -> None:
    few = Ranks(2)
    try:
        (found, _) = few.run(2, lose, number, where, timeout=3.0, lost=(1,))
    finally:
        few.close()
    assert isinstance(found, str), found
    assert found.startswith(
        "sync: rank 0 of 2 could not exchange the statistics of 'norm'. "
        "Another rank has ended, or did not come to this layer in time. "
    )


@pytest.mark.slow
@pytest.mark.parametrize("how", ["compile", "fully_shard"])
def test_90_compiled_and_sharded_models(ranks: Ranks, how: str) -> None:
    check(ranks.run(2, cases.wrapped_models_equal_eager, how))


@pytest.mark.slow
def test_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import rank_cases, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "rank_cases.training_equals_one_process(dist.get_rank(), dist.get_world_size(), 'SGD', 3, 1)\n"
        "dist.destroy_process_group()\n"
    )
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(script)]
    paths = os.pathsep.join([str(Path(cases.__file__).parent), *sys.path])
    environment = os.environ | {"PYTHONPATH": paths, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *run], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("option", [True, False], ids=["sync_batchnorm", "sync"])
def test_lightning(option: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its option ends in our error; `sync(model)` in `configure_model` is what to call."""
    lightning: Any = pytest.importorskip("lightning")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")

    class Model(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm = tnt.BatchNorm1d(3)

        def configure_model(self) -> None:
            if not option:
                tnt.sync(self)

        def training_step(self, batch: Any, _: int) -> Any:
            return self.norm(batch).square().mean() + self.norm.weight.sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", devices=1, strategy="ddp", sync_batchnorm=option, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    model, loader = Model(), torch.utils.data.DataLoader(cases.normal(8, 3, dtype=torch.float32), batch_size=4)
    try:
        if option:
            with pytest.raises(TypeError, match=r"Call truenorm\.torch\.sync\(model\) instead, in Lightning too"):
                trainer.fit(model, loader)
        else:
            trainer.fit(model, loader)
            assert isinstance(model.norm._exchange, _processes.ProcessExchange)
            assert int(model.norm.num_batches_tracked) == 2
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


# ---- in one process ----


def test_without_a_process_group_nothing_changes() -> None:
    model, plain = cases.make_network(), cases.make_network()
    before = fingerprint(model)
    assert str(tnt.sync(model)).splitlines()[:2] == [
        "3 normalization layers synchronized",
        "  norm        truenorm.BatchNorm1d  over all processes",
    ]
    x = cases.normal(4, 2, 6)
    assert torch.equal(model(x), plain(x))
    tnt.unsync(model)
    model.load_state_dict(cases.make_network().state_dict())
    assert fingerprint(model) == before


def test_synchronized_layers_keep_their_kind_until_unsync() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4))
    before = fingerprint(model)
    tnt.convert(model)
    tnt.sync(model)
    for report in (tnt.revert(model), tnt.convert(model, to="group")):
        assert [change.outcome for change in report.left] == ["synchronized: call unsync(model) first"]
    tnt.unsync(model)
    tnt.revert(model)
    assert fingerprint(model) == before


def test_other_layers_are_refused() -> None:
    text = "sync: layers of truenorm, got torch.nn.SyncBatchNorm at '1'. Call convert(model) first."
    model = nn.Sequential(tnt.BatchNorm1d(4), nn.SyncBatchNorm(4))
    assert_message(lambda: tnt.sync(model), ValueError, text)
    assert model[0]._exchange is None
    text = "sync: the channels of LazyBatchNorm1d at '' are not known yet. Run the model once before."
    assert_message(lambda: tnt.sync(tnt.LazyBatchNorm1d()), ValueError, text)


@pytest.mark.parametrize("same", [True, False])
def test_79_ranks_that_disagree_get_nan_where_values_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    """As on a GPU, with a second rank that does the same, or runs another call of the layer."""

    def gather_all(self: Any, name: str, message: Any) -> Any:
        other = message.clone()
        other[3] += 0 if same else 1
        return torch.stack([message, other])

    layer = tnt.BatchNorm1d(3)
    tnt.sync(layer)
    monkeypatch.setattr(_processes.Processes, "size", lambda self: 2)
    monkeypatch.setattr(_processes.Processes, "check_layers", lambda self, name, like: None)
    monkeypatch.setattr(_processes.Processes, "agreement", lambda self: _processes.Agreement(width=3))
    monkeypatch.setattr(_processes.Processes, "_gather_all", gather_all)
    monkeypatch.setattr(_processes, "values_are_readable", lambda values: False)
    x = cases.normal(4, 3, dtype=torch.float32).requires_grad_()
    y = layer(x)
    y.square().sum().backward()
    assert bool(y.isnan().all()) != same
    assert bool(x.grad.isnan().all()) != same
    assert bool(x.grad.isfinite().all()) == same
    assert bool(layer.running_mean.eq(0).all()) != same
    assert int(layer.num_batches_tracked) == same


@pytest.mark.parametrize("count", [2**24 + 1, 2**31, 2**40])
def test_23_87_counts_are_exact(count: int) -> None:
    tables = torch.tensor([[[count, 2.0, 3.0]], [[1, 2.0, 0.0]], [[0, torch.nan, torch.nan]]], dtype=torch.float64)
    assert merge_tables(tables).tolist() == [[count + 1, 2.0, 3.0]]


def test_23_counts_are_exact_where_the_formula_computes_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU."""
    monkeypatch.setattr(_formula, "working_dtype", lambda x: torch.float32)
    layer, x = tnt.BatchNorm1d(1), torch.tensor([[1.0], [2.0]])
    tn.engine.use("reference")
    try:
        with tnt.accumulate(layer) as context:
            for _ in range(2):
                layer(x, sample_weight=torch.tensor([2.0**24, 1.0]))
            ((_, found),) = context.stage.tables().items()
    finally:
        tn.engine.use("native" if "native" in tn.engine.available() else "reference")
    assert (found.dtype, float(found[0, 0])) == (torch.float64, 2.0**25 + 2)
    narrow = torch.tensor([[[2.0**24, 2.0, 3.0]], [[1, 2.0, 0.0]]])
    assert merge_tables(narrow).tolist() == [[2**24 + 1, 2.0, 3.0]]


@pytest.mark.parametrize("engine", ["native", "reference"])
def test_a_batch_without_any_weight_gives_the_bias(engine: Any) -> None:
    layer = tnt.BatchNorm1d(3)
    torch.nn.init.constant_(layer.bias, 0.5)
    tn.engine.use(engine)
    try:
        with tnt.accumulate(layer):
            y = layer(cases.normal(4, 3, dtype=torch.float32), sample_weight=torch.zeros(4))
    finally:
        tn.engine.use("native" if "native" in tn.engine.available() else "reference")
    assert torch.equal(y, torch.full((4, 3), 0.5))
    assert int(layer.num_batches_tracked) == 0


def test_tables_merge_as_moments_do() -> None:
    generator = np.random.default_rng(0)
    for scale in (1.0, 1e-200, 1e300):
        counts, means = generator.integers(0, 5, (4, 6)), generator.normal(size=(4, 6)) * scale
        squares = generator.random((4, 6)) * np.minimum(scale, 1e150) ** 2
        expected = tn.merge(*(tn.Moments(*part) for part in zip(counts, means, squares, strict=True)))
        found = merge_tables(torch.from_numpy(np.stack([counts, means, squares], -1)))
        for i, name in enumerate(("count", "mean", "m2")):
            np.testing.assert_allclose(found[:, i].numpy(), getattr(expected, name), rtol=1e-14)
