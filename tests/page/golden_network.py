"""Golden vectors for the page's network and random numbers: what NumPy and the lab compute.

`python tests/page/golden_network.py` writes golden_network.json anew; `test_assembly.py` fails where it is not what
this script makes. Long results are kept as a few of their numbers, in full, and as sums that every number moves.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import truenorm as tn
from truenorm.core.running import Convention, Running
from truenorm.lab.config import make_config
from truenorm.lab.layers import Dropout, ForwardContext, Normalize, cross_entropy
from truenorm.lab.networks import ModelConfig, character_mlp
from truenorm.lab.sampling import generate
from truenorm.lab.training import Trainer, prepare

FILE = Path(__file__).with_name("golden_network.json")
SEEDS = ([0], [0, 1], [5, 3, 1], [2**31, 4, 17, 1, 2], [2**40 + 17, 1, 2, 3, 4, 5])

Case = dict[str, Any]


def random_numbers() -> Iterator[Case]:
    """The first numbers of each kind, and the sums of many: of normal numbers by the bit, as an exclusive or."""
    for seed in SEEDS:
        normal = np.random.default_rng(seed).standard_normal(100_000)
        yield {
            "seed": seed,
            "random": np.random.default_rng(seed).random(5).tolist(),
            "normal": normal[:5].tolist(),
            "normal_bits": [int(half) for half in np.bitwise_xor.reduce(normal.view(np.uint32).reshape(-1, 2))],
            "largest": float(np.abs(normal).max()),
            "integers": [np.random.default_rng(seed).integers(0, n, 6).tolist() for n in (1, 2, 27, 28_817, 2**31 + 1)],
            "integer_sum": int(np.random.default_rng(seed).integers(0, 3_000_000_000, 2000).sum()),
            "permutation": np.random.default_rng(seed).permutation(40).tolist(),
            "gumbel": np.random.default_rng(seed).gumbel(size=5).tolist(),
        }


def networks() -> Iterator[Case]:
    """Small networks of every kind: parameters, forward, all gradients, and the forward of evaluation afterwards."""
    base = {"vocabSize": 5, "block": 2, "embedding": 2, "hidden": 4}
    notes = {"norm": "batch", "ddof": 1}
    options: list[Case] = [base | notes]
    options += [base | {"norm": norm, "normAt": at} for norm in ("batch", "layer", "rms") for at in ("before", "after")]
    options += [base | {"norm": "none", "depth": 3, "initScale": 0.3}, base | notes | {"depth": 2, "dropout": 0.25}]
    options += [base | {"norm": "layer", "ddof": 1, "activation": name} for name in ("relu", "sigmoid", "gelu")]
    for seed, one in enumerate(options):
        yield network_case(seed, one, examples=6, digest=False)
    yield network_case(7, notes, examples=32, digest=True)  # the network of the notes, with 3,681 parameters
    yield network_case(8, {"norm": "batch", "depth": 4, "hidden": 60, "dropout": 0.1}, examples=32, digest=True)


def network_case(seed: int, options: Case, *, examples: int, digest: bool) -> Case:
    """What the lab computes for these options, whose names are those of the page."""
    sizes = {
        "vocab_size": options.get("vocabSize", 27), "block": options.get("block", 3),
        "embedding": options.get("embedding", 2),
    }  # fmt: skip
    names = {"normAt": "norm_at", "initScale": "init_scale"}
    config = ModelConfig(
        **{
            names.get(key, key): value
            for key, value in options.items()
            if key not in ("vocabSize", "block", "embedding")
        },
        dtype="float64",
    )
    network = character_mlp(config, np.random.default_rng([seed, 2]), **sizes)
    rng = np.random.default_rng([seed, 99])
    x = rng.integers(0, sizes["vocab_size"], (examples, sizes["block"]))
    targets = rng.integers(0, sizes["vocab_size"], examples)
    initial = network.flat_parameters.copy()
    # Another affine part than ones and zeros, and a running mean that is not 0.
    network.flat_parameters += 0.01 * np.sin(np.arange(initial.size))
    ctx = ForwardContext(training=True, rng=np.random.default_rng([seed, 4, 0]) if config.dropout else None)
    logits = network.forward(x, ctx)
    loss, dlogits = cross_entropy(logits, targets)
    gradients = network.backward(dlogits)
    want: Case = {"loss": loss, "logits": logits, "dlogits": dlogits}
    want |= {f"d {name}": value for name, value in gradients.items()}
    want |= {f"y {name}": layer_output(network, name) for name in network.layers if name.startswith("norm")}
    want["evaluated"] = network.forward(x, ForwardContext())
    dropped = [layer for layer in network.layers.values() if isinstance(layer, Dropout)]
    assert len(dropped) == (config.depth if config.dropout else 0)
    keep = digested if digest else plain
    return {
        "seed": seed, "options": options, "x": x.tolist(), "targets": targets.tolist(), "size": initial.size,
        "initial_bits": [int(half) for half in np.bitwise_xor.reduce(initial.view(np.uint32).reshape(-1, 2))],
        "want": {name: keep(np.asarray(value)) for name, value in want.items()},
    }  # fmt: skip


def layer_output(network: Any, name: str) -> np.ndarray:
    layer = network.layers[name]
    assert isinstance(layer, Normalize)
    return np.asarray(layer.out.y)


def plain(values: np.ndarray) -> list[float]:
    """13 digits: ten times finer than the agreement that is asked for."""
    return [float(f"{value:.13g}") for value in values.reshape(-1)]


def digested(values: np.ndarray) -> list[float]:
    """Sums of the numbers times cos(i), cos(2 i), cos(3 i): one that is wrong, or in the wrong place, moves them."""
    flat = values.reshape(-1)
    if flat.size <= 3:
        return plain(flat)
    places = np.arange(flat.size)
    return plain(np.array([float((flat * np.cos(k * places)).sum()) for k in (1, 2, 3)]))


def running() -> Iterator[Case]:
    """Running statistics over batches: momenta, a batch that is too small, one that is not finite."""
    rng = np.random.default_rng(6)
    batches = [(rng.normal(3, 2, (rows, 2))).round(3).tolist() for rows in (4, 1, 3, 5)]
    for momentum, ddof in ((0.1, 1), (0.01, 0), (None, 1), ("pooled", 0), ("pooled", 1)):
        for extra in ([], [[[1.0, float("inf")], [2.0, 1.0]]]):
            statistics = Running.start((2,), Convention(momentum, ddof=ddof))  # type: ignore[arg-type]
            for batch in (*batches[:2], *extra, *batches[2:]):
                statistics = statistics.update(tn.measure(np.array(batch), tn.batch()))
            yield {
                "convention": {"momentum": momentum, "ddof": ddof}, "infinite": bool(extra), "batches": batches,
                "want": {
                    "mean": plain(statistics.mean), "var": plain(statistics.var), "count": statistics.count.tolist(),
                    "batches": statistics.batches, "skipped": statistics.skipped,
                },
            }  # fmt: skip


NAMES = (
    "emma olivia ava isabella sophia charlotte mia amelia harper evelyn abigail emily elizabeth mila ella avery sofia "
    "camila aria scarlett victoria madison luna grace chloe penelope layla riley zoey nora lily eleanor hannah lillian "
    "addison aubrey ellie stella natalie zoe leah hazel violet aurora savannah audrey Łucja renée 😀ab"
)
WORDS = NAMES.split(" ")


def training() -> Iterator[Case]:
    """The first 50 losses of `truenorm train --dtype float64`, the held-out loss after them, and words."""
    settings: tuple[Case, ...] = (
        {"norm": "batch", "ddof": 1, "lr": 0.1, "seed": 0, "batch": 32},
        {"norm": "none", "lr": 1.0, "seed": 3, "batch": 50, "initScale": 2.0},
        {
            "norm": "layer",
            "normAt": "after",
            "depth": 2,
            "hidden": 30,
            "dropout": 0.2,
            "lr": 0.3,
            "seed": 1,
            "batch": 16,
        },
        {"norm": "rms", "depth": 3, "hidden": 20, "lr": 0.3, "seed": 2**33 + 5, "batch": 8},
    )
    with TemporaryDirectory() as folder:
        path = Path(folder) / "words.txt"
        path.write_text("\n".join([*WORDS, "emma", ""]), "utf-8")
        for options in settings:
            given = {"normAt": "norm_at", "initScale": "init_scale"}
            config = make_config(
                {given.get(key, key): value for key, value in options.items()}
                | {"data": str(path), "dtype": "float64", "schedule": "constant"}
            )
            data = prepare(config)
            trainer = Trainer(config, data)
            losses = [trainer.train_step() for _ in range(50)]
            held_out = trainer.evaluate(data.held_out).loss
            assert data.alphabet is not None
            rng = np.random.default_rng([config.seed, 5, 50])
            words = generate(trainer.network, data.alphabet, config.block, rng, count=4)
            yield {
                "options": options, "words": WORDS,
                "want": {
                    "characters": "".join(data.alphabet.characters), "train": len(data.train),
                    "losses": losses, "held_out": held_out, "sampled": words,
                },
            }  # fmt: skip


def as_text() -> str:
    """One case a line, so that a change is seen where it is."""
    kinds = []
    for kind in (random_numbers, networks, running, training):
        lines = ",\n".join(json.dumps(case, separators=(",", ":"), allow_nan=False) for case in kind())
        kinds.append(f'"{kind.__name__}": [\n{lines}\n]')
    return "{\n" + ",\n".join(kinds) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(as_text(), "utf-8", newline="\n")
