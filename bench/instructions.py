"""How many instructions a layer takes on a small x: the call overhead, without the noise of a clock.

    python -m bench.instructions           print the counts beside the stored ones
    python -m bench.instructions --write   store them in bench/instructions.json

valgrind's callgrind counts them in a process of its own, which imports everything uncounted, warms up, and then counts
forward and backward of each layer on 32 x 100 values, and for some an evaluation with a mask, and a step without the
nodes in C++: within half a percent in each run, on a busy machine too.
The counts depend on the versions of Python and torch, which are stored with them, and hardly on anything else:
callgrind shows every program the same processor, without AVX-512. It can be told what to count only by its own headers,
so a library of two functions is compiled first.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import click

SHAPE = (32, 100)
LAYERS = ("BatchNorm1d", "LayerNorm", "GroupNorm", "RMSNorm", "InstanceNorm1d")
EVALUATED = ", evaluation with valid"
IN_PYTHON = ", autograd in Python"
CASES = (*LAYERS, *(name + also for also in (EVALUATED, IN_PYTHON) for name in ("BatchNorm1d", "LayerNorm")))
CALLS = 8  # most of the time goes into importing torch: more would not make it more precise
MARGIN = 1.05
FILE = Path(__file__).with_name("instructions.json")
ROOT = Path(__file__).resolve().parents[1]
SWITCH = """
#include <valgrind/callgrind.h>
void start(void) { CALLGRIND_START_INSTRUMENTATION; }
void stop(void) { CALLGRIND_STOP_INSTRUMENTATION; CALLGRIND_DUMP_STATS; }
"""


@click.command()
@click.option("--write", is_flag=True, help="Store the counts.")
@click.option("--child", "switch", hidden=True, help="Run the layers, and turn callgrind on and off by this library.")
def main(write: bool, switch: str | None) -> None:
    """Count the instructions of small calls."""
    if switch is not None:
        run_layers(ctypes.CDLL(switch))
        return
    if reason := why_not():
        raise click.ClickException(reason)
    found = count()
    stored = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {"instructions": {}}
    for name, number in found.items():
        before = stored["instructions"].get(name)
        click.echo(f"{name:36} {number:9,}" + (f"  {number / before - 1:+.1%}" if before else ""))
    if write:
        FILE.write_text(json.dumps({"versions": versions(), "instructions": found}, indent=1) + "\n", "utf-8")


def why_not() -> str | None:
    """Why instructions cannot be counted here; None if they can."""
    missing = [name for name in ("valgrind", "cc") if shutil.which(name) is None]
    return f"{' and '.join(missing)}: not installed, so that instructions cannot be counted." if missing else None


def versions() -> dict[str, str]:
    """What the counts depend on."""
    import torch

    from truenorm.torch import autograd_in_cpp

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "autograd": "C++" if autograd_in_cpp() else "Python",
    }


def exceeded(found: dict[str, int], stored: dict[str, int]) -> list[str]:
    """The cases that take more instructions than are stored for them, beyond the margin."""
    return [
        f"{name}: at most {MARGIN:.2f} x {stored[name]:,} instructions, got {number:,}"
        for name, number in found.items()
        if number > MARGIN * stored[name]
    ]


def count(timeout: float | None = None) -> dict[str, int]:
    """Instructions of one call of each case."""
    with tempfile.TemporaryDirectory() as folder:
        switch = f"{folder}/switch.so"
        subprocess.run(["cc", "-x", "c", "-shared", "-fPIC", "-o", switch, "-"], input=SWITCH, text=True, check=True)
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/out"]
        fixed = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONMALLOC": "pymalloc"}
        done = subprocess.run(
            [*command, sys.executable, "-m", "bench.instructions", "--child", switch],
            cwd=ROOT,
            env=os.environ | fixed,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if done.returncode:
            raise RuntimeError(f"bench.instructions: valgrind must end with 0, got {done.returncode}.\n{done.stderr}")
        files = sorted(Path(folder).glob("out.*"), key=lambda file: int(file.suffix[1:]))
        totals = [int(found[1]) for file in files if (found := re.search(r"^totals: (\d+)", file.read_text(), re.M))]
    return {name: round(total / CALLS) for name, total in zip(CASES, totals[: len(CASES)], strict=True)}


def run_layers(switch: Any) -> None:
    """Under callgrind: dump the count of each case's calls."""
    import gc

    import torch

    from bench.map.pair import step
    from truenorm.torch import _kernel

    torch.set_num_threads(1)
    torch.manual_seed(0)
    gc.disable()
    valid, nodes = torch.arange(SHAPE[0]) % 2 == 0, _kernel.nodes
    for name in CASES:
        layer = make_layer(name.split(",")[0])
        _kernel.nodes = None if name.endswith(IN_PYTHON) else nodes
        x, dy = torch.randn(SHAPE).requires_grad_(), torch.randn(SHAPE)
        evaluated = name.endswith(EVALUATED)
        call: Any = partial(layer.eval(), x, valid=valid) if evaluated else partial(step, layer, x, dy, {})
        with torch.set_grad_enabled(not evaluated):
            for _ in range(CALLS):  # plans, caches, and the interpreter's specialised instructions
                call()
            switch.start()
            for _ in range(CALLS):
                call()
            switch.stop()


def make_layer(name: str) -> Any:
    import truenorm.torch as tnt

    match name:
        case "GroupNorm":
            return tnt.GroupNorm(4, SHAPE[1])
        case "InstanceNorm1d":
            return tnt.InstanceNorm1d(SHAPE[0], affine=True)  # one sample: channels x positions
        case _:
            return getattr(tnt, name)(SHAPE[1])


if __name__ == "__main__":
    main()
