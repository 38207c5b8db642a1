"""Training: networks learn, diagnostics describe them, words are generated, and a useless result is noticed."""

from pathlib import Path

import numpy as np
import pytest
from runs import WORDS, ignore_report, never, small_config, trained

from truenorm.lab import run
from truenorm.lab.config import Config, make_config
from truenorm.lab.networks import NormName
from truenorm.lab.sampling import generate, reestimate
from truenorm.lab.training import Trainer, prepare

# ---- learning ----


@pytest.mark.parametrize("norm", ["none", "batch", "layer", "rms", "group"])
def test_a_network_learns_a_few_words_by_heart(words: Path, norm: NormName) -> None:
    config = small_config(words, norm=norm, steps=1500, hidden=32, embedding=8, dropout=0.0, lr=0.01, block=4)
    trainer = Trainer(config, prepare(config))
    before = trainer.evaluate(trainer.data.train).loss
    for _ in range(config.steps):
        trainer.train_step()
    assert before > 2.0
    assert trainer.evaluate(trainer.data.train).loss < 0.45  # not 0, as the first letter cannot be predicted


def test_the_gender_of_names_is_learned_better_than_by_guessing() -> None:
    config = Config(task="gender", embedding=8, hidden=16, steps=600, optimizer="adam", lr=0.01)
    trainer = trained(config)
    share = trainer.data.held_out.targets.mean()
    guessing = -share * np.log(share) - (1 - share) * np.log(1 - share)
    assert trainer.evaluate(trainer.data.held_out).loss < 0.9 * guessing


def test_tables_of_classes_and_of_numbers(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal([100.0, 0.001], [50.0, 0.002], (300, 2))
    big = np.where(x[:, 0] / 50 + x[:, 1] / 0.002 > 2.5, "big", "small")
    for name, target in (("classes", big), ("numbers", x[:, 0] / 50 - x[:, 1] / 0.002)):
        path = tmp_path / f"{name}.csv"
        rows = [f"{a},{t},{b}" for (a, b), t in zip(x, target, strict=True)]
        path.write_text("\n".join(["a,y,b", *rows]), "utf-8")
        config = Config(task="table", data=str(path), target="y", hidden=16, steps=800, lr=0.05)
        trainer = trained(config)
        metrics = trainer.evaluate(trainer.data.held_out)
        if name == "classes":
            assert trainer.data.class_names == ("big", "small")
            assert metrics.accuracy is not None
            assert metrics.accuracy > 0.9
        else:
            assert metrics.accuracy is None
            assert metrics.loss < 0.2  # of the variance
            assert trainer.data.columns is not None
            assert metrics.rmse == pytest.approx(np.sqrt(metrics.loss) * trainer.data.columns.target_std)


def test_students_need_a_scale_or_a_norm() -> None:
    accuracy = {}
    for norm, standardize in (("none", False), ("batch", False), ("none", True)):
        given = {"task": "table", "data": "students", "norm": norm, "standardize": standardize, "steps": 600}
        trainer = trained(make_config(given))
        assert trainer.config.target == "placed"
        assert trainer.data.class_names == ("no", "yes")
        accuracy[norm, standardize] = trainer.evaluate(trainer.data.held_out).accuracy or 0.0
    assert accuracy["none", False] < 0.65
    assert min(accuracy["batch", False], accuracy["none", True]) > 0.85
    assert make_config({"task": "table", "data": "students", "target": "iq"}).target == "iq"


def test_numbers_of_any_size_are_learned(tmp_path: Path) -> None:
    rng, path = np.random.default_rng(2), tmp_path / "houses.csv"
    size = rng.uniform(30, 300, 300)
    rows = [f"{one:.1f},{2000 * one + rng.normal(0, 9000):.0f}" for one in size]
    path.write_text("\n".join(["sqm,price", *rows]), "utf-8")
    config = make_config({"task": "table", "data": str(path), "target": "price", "steps": 500})
    trainer = trained(config)
    metrics = trainer.evaluate(trainer.data.held_out)
    assert metrics.loss < 0.05
    assert metrics.rmse is not None
    assert 5_000 < metrics.rmse < 25_000  # in the unit of the price


def test_raw_columns_of_different_sizes_need_a_norm(tmp_path: Path) -> None:
    datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn is not installed")
    wine, path = datasets.load_wine(), tmp_path / "wine.csv"
    rows = [[*map(repr, map(float, x)), wine.target_names[y]] for x, y in zip(wine.data, wine.target, strict=True)]
    header = [name.replace("/", " of ") for name in wine.feature_names]
    path.write_text("\n".join(",".join(row) for row in ([*header, "class"], *rows)), "utf-8")
    accuracy = {}
    for norm, standardize in (("none", False), ("batch", False), ("none", True)):
        config = make_config(
            {
                "task": "table",
                "data": str(path),
                "target": "class",
                "norm": norm,
                "standardize": standardize,
                "steps": 400,
            }
        )
        trainer = trained(config)
        accuracy[norm, standardize] = trainer.evaluate(trainer.data.held_out).accuracy or 0
    assert trainer.data.class_names == ("class_0", "class_1", "class_2")
    assert accuracy["none", False] < 0.8
    assert min(accuracy["batch", False], accuracy["none", True]) > 0.9


# ---- worse than guessing ----


def test_the_baseline_predicts_the_class_frequencies_of_the_training_set(words: Path) -> None:
    data = prepare(small_config(words))
    counts = np.ones(len(data.alphabet or ()))
    for target in data.train.targets:
        counts[target] += 1
    expected = np.mean([-np.log(counts[target] / counts.sum()) for target in data.held_out.targets])
    assert data.baseline_loss() == pytest.approx(expected, rel=1e-12)


def test_the_baseline_of_a_regression_predicts_the_mean(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    rng = np.random.default_rng(1)
    path.write_text("\n".join(["x,y", *(f"{a},{b}" for a, b in rng.normal(50, 9, (100, 2)))]), "utf-8")
    data = prepare(make_config({"task": "table", "data": str(path), "target": "y"}))
    assert data.train.targets.mean() == pytest.approx(0, abs=1e-12)
    assert data.baseline_loss() == pytest.approx((data.held_out.targets**2).mean(), rel=1e-12)


def test_the_result_says_whether_the_network_is_better_than_guessing(tmp_path: Path) -> None:
    useless, good = make_config({"norm": "none", "lr": 50.0, "steps": 20}), make_config({"steps": 300})
    for name, config, beaten in (("useless", useless, False), ("good", good, True)):
        result = run.start(tmp_path / name, config, ignore_report, never)
        assert result["baseline"] == {"loss": prepare(config).baseline_loss(), "beaten": beaten}
        assert (result["held_out"]["loss"] < result["baseline"]["loss"]) is beaten


# ---- diagnostics and sampling ----


def test_diagnostics_show_saturation_updates_drift_and_the_lag_of_running_statistics(words: Path) -> None:
    config = small_config(words, dropout=0.0, optimizer="sgd", lr=0.1)
    trainer = Trainer(config, prepare(config))
    trainer.train_step()
    first = trainer.diagnostics()
    assert set(first["drift"].values()) == {0.0}
    assert sum(first["layers"]["act1"]["histogram"]) == len(trainer.data.held_out) * 8
    assert 0 <= first["layers"]["act1"]["saturated"] < 1
    gradient = trainer.network.gradients["output.weight"]
    weight = trainer.network.parameters["output.weight"]
    assert first["updates"]["output.weight"]["update"] == pytest.approx(0.1 * gradient.std() / weight.std(), rel=1e-5)
    assert first["running_lag"]["norm1"] > 0.1  # running statistics start at 0 and 1
    trainer.network.parameters["norm1.weight"] *= 50
    for _ in range(60):
        trainer.train_step()
    later = trainer.diagnostics()
    assert later["layers"]["act1"]["saturated"] > 0.5
    assert later["drift"]["output"] > 0.1
    assert later["running_lag"]["norm1"] < first["running_lag"]["norm1"]


def test_words_are_generated_from_running_and_from_reestimated_statistics(words: Path) -> None:
    config = small_config(words, steps=800, hidden=32, embedding=8, dropout=0.0, block=4)
    trainer = trained(config)
    alphabet = trainer.data.alphabet
    assert alphabet is not None

    def draw(seed: int, temperature: float) -> list[str]:
        rng = np.random.default_rng(seed)
        return generate(trainer.network, alphabet, 4, rng, count=50, temperature=temperature)

    assert draw(0, 1.0) == draw(0, 1.0) != draw(1, 1.0)
    assert len(set(draw(0, 0.0))) == 1
    assert len(set(draw(0, 1.0)) & set(WORDS)) > 3
    reestimate(trainer.network, trainer.data.train)
    assert len(set(draw(0, 1.0)) & set(WORDS)) > 3
