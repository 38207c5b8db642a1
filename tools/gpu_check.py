"""Runs the kernels in Triton on the GPU of this machine, and prints a report to send.

    python -m tools.gpu_check [--quick]

    1. what is here: GPU, driver, versions
    2. the tests of tests/torch/triton, on the GPU
    3. the largest errors of each layer and dtype, against what is valid alone in float64
    4. a small map of times: a training step of a layer with lengths, in Triton, by the formula, and of torch's own
       layer, which counts the padding

Exit 0 if all tests pass, 1 if not, 2 if there is no GPU or no Triton. `--interpreted` runs all of it on the CPU, in
Triton's interpreter, to check this tool; its times mean nothing.
"""

from __future__ import annotations

import itertools
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 20
# Samples, channels, positions: of speech, of a large language model, of images.
SHAPES = ((32, 512, 800), (8, 4096, 1024), (32, 256, 3136))
SMALL = ((2, 4, 40),)


def missing(interpreted: bool) -> str | None:
    """What is not here, in one line."""
    if find_spec("torch") is None or find_spec("triton") is None:
        return (
            "gpu_check: torch and triton are needed, got only one of them or none. "
            "Run pip install truenorm[torch,triton]."
        )
    if interpreted:
        return None
    import torch

    if not torch.cuda.is_available():
        return (
            f"gpu_check: a GPU that torch can use is needed, got none with torch {torch.__version__}. "
            "Run it on another machine."
        )
    return None


def machine(device: str) -> Iterator[str]:
    import torch
    import triton

    import truenorm as tn

    name = platform.processor() or platform.machine()
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        memory = f"{properties.total_memory / 2**30:.0f} GiB"
        name = f"{properties.name}, {memory}, {properties.multi_processor_count} multiprocessors, "
        name += getattr(properties, "gcnArchName", f"sm_{properties.major}{properties.minor}")
    yield f"* device: {name}"
    yield f"* CUDA {torch.version.cuda}, HIP {torch.version.hip}"
    versions = f"python {platform.python_version()}, torch {torch.__version__}, triton {triton.__version__}"
    yield f"* {versions}, truenorm {tn.__version__}"


def run_tests(interpreted: bool, quick: bool) -> tuple[bool, str]:
    """Whether all tests pass, and the end of what pytest prints."""
    environment = os.environ | {"TRUENORM_TRITON": "interpreted" if interpreted else "cuda"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "tests/torch/triton"]
    command += ["-k", "test_powers_of_two_change_no_bit"] if quick else []
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    return done.returncode == 0, "\n".join(
        (done.stdout + done.stderr).strip().splitlines()[-60 if done.returncode else -1 :]
    )


def errors(device: str, quick: bool) -> Iterator[str]:
    """The largest error of each layer and dtype over all forms, of the largest number."""
    sys.path.insert(0, str(ROOT / "tests/support"))
    import triton_cases as cases

    yield "| layer | dtype | y | dx | parameters |"
    yield "|---|---|---:|---:|---:|"
    for name, dtype in itertools.product(cases.LAYERS, list(cases.DTYPES)[: 1 if quick else None]):
        largest: dict[str, float] = {}
        for form in cases.FORMS[: 1 if quick else None]:
            try:
                size = cases.SMALL if quick else cases.LARGE
                found = cases.check(name, form, cases.DTYPES[dtype], device, size)
            except AssertionError as error:
                yield f"| {name} | {dtype} | FAILED: {' '.join(str(error).split())[:200]} | | |"
                continue
            for key, value in found.items():
                kind = key if key in ("y", "dx") else "parameters"
                largest[kind] = max(value, largest.get(kind, 0.0))
        cells = " | ".join(f"{largest.get(kind, 0.0):.1e}" for kind in ("y", "dx", "parameters"))
        yield f"| {name} | {dtype} | {cells} |"


def clock(device: str, layer: Any, x: Any, dy: Any, **arguments: Any) -> float:
    """Seconds of one forward and backward."""
    import torch

    x.grad = None
    if device != "cuda":
        begin = time.perf_counter()
        layer(x, **arguments).backward(dy)
        return time.perf_counter() - begin
    events: Any = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    events[0].record()
    layer(x, **arguments).backward(dy)
    events[1].record()
    torch.cuda.synchronize()
    return float(events[0].elapsed_time(events[1])) / 1e3


def times(device: str, quick: bool) -> Iterator[str]:
    """Medians of interleaved rounds."""
    import torch

    import truenorm.torch as tnt
    from truenorm.torch import triton

    yield "| layer | samples x channels x positions | dtype | Triton, ms | formula, ms | torch without a mask, ms |"
    yield "|---|---|---|---:|---:|---:|"
    makers: dict[str, Callable[[Any, int], Any]] = {
        "BatchNorm1d": lambda kit, c: kit.BatchNorm1d(c),
        "GroupNorm": lambda kit, c: kit.GroupNorm(4, c),
        "InstanceNorm1d": lambda kit, c: kit.InstanceNorm1d(c, affine=True),
        "LayerNorm": lambda kit, c: kit.LayerNorm(c),
    }
    dtypes = (torch.float32, torch.bfloat16)
    first = 1 if quick else 3  # rounds that compile
    for (name, make), (b, c, t), dtype in itertools.product(makers.items(), SMALL if quick else SHAPES, dtypes):
        size = (b, t, c) if name == "LayerNorm" else (b, c, t)
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(size, generator=generator).to(device, dtype).requires_grad_()
        dy = torch.randn(size, generator=generator).to(device, dtype)
        lengths = torch.randint(t // 2, t + 1, (b,), generator=generator).to(device)
        ours, other = (make(kit, c).to(device, dtype) for kit in (tnt, torch.nn))
        rounds = []
        for _ in range(first + (1 if quick else ROUNDS)):
            found = [clock(device, ours, x, dy, lengths=lengths)]
            with patch.object(triton, "applies", lambda x: False):
                found.append(clock(device, ours, x, dy, lengths=lengths))
            rounds.append([*found, clock(device, other, x, dy)])
        cells = " | ".join(f"{1e3 * statistics.median(one):.3f}" for one in zip(*rounds[first:], strict=True))
        yield f"| {name} | {b} x {c} x {t} | {str(dtype).removeprefix('torch.')} | {cells} |"


@click.command()
@click.option("--quick", is_flag=True, help="One test, one form and one small shape of each kind.")
@click.option("--interpreted", is_flag=True, help="On the CPU, in Triton's interpreter: checks this tool.")
def main(quick: bool, interpreted: bool) -> None:
    """Test the kernels in Triton on the GPU of this machine, and print a report to send."""
    if interpreted:  # before Triton is imported
        os.environ |= {"TRITON_INTERPRET": "1", "TRUENORM_TRITON": "interpreted", "TRUENORM_ENGINE": "reference"}
    if (line := missing(interpreted)) is not None:
        click.echo(line, err=True)
        sys.exit(2)
    device = "cpu" if interpreted else "cuda"
    print("# truenorm on a GPU\n" if not interpreted else "# truenorm in Triton's interpreter: times mean nothing\n")
    print("\n".join(machine(device)), flush=True)
    passed, text = run_tests(interpreted, quick)
    print(f"\n## Tests: {'all pass' if passed else 'SOME FAIL'}\n\n{text}", flush=True)
    print("\n## Largest errors, of the largest number\n", flush=True)
    for line in errors(device, quick):
        print(line, flush=True)
    print("\n## Times of a training step, half to all positions valid\n", flush=True)
    for line in times(device, quick):
        print(line, flush=True)
    sys.exit(not passed)


if __name__ == "__main__":
    main()
