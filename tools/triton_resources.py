"""Compiles the kernels in Triton for GPUs that are not here, and reads what they need.

    python -m tools.triton_resources [--some] [--lanes 32] [--positions 128]

For each kernel, layout, form, dtype and target: registers, spills, shared memory. Exit 1 if a kernel spills, needs more
than MOST_REGISTERS, or fuses a multiplication with an addition. No GPU is needed: Triton's wheel has all compilers.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from truenorm.torch.triton import kernels, verbs
from truenorm.torch.triton.plan import LANES, POSITIONS

MOST_REGISTERS = 168  # of a thread, which may have 255
TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
# Every layout and every form, and every dtype with at least one.
CASES = (
    ("columns", "lengths", "fp32"),
    ("columns", "offsets", "bf16"),
    ("planes", "lengths", "bf16"),
    ("planes", "elements", "fp64"),
    ("rows", "valid", "fp16"),
)
SWEEPS = ("measure", "apply", "sums", "gradient")
REDUCTIONS = ("merge", "add")
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


@dataclass(frozen=True)
class Compilation:
    """One kernel, ready to be compiled for any target."""

    name: str
    what: str
    signature: dict[str, str]
    constants: dict[str, Any]
    options: dict[str, Any]

    def compile(self, target: GPUTarget) -> Any:
        names = list(self.signature)
        # As the launcher would specialize it: aligned memory, sizes that are multiples of 16.
        aligned = [
            i
            for i, (name, kind) in enumerate(self.signature.items())
            if kind[0] == "*" or name in ("lanes", "positions")
        ]
        source = ASTSource(
            fn=getattr(kernels, self.name),
            signature=self.signature,
            constexprs={(names.index(name),): value for name, value in self.constants.items()},
            attrs={(i,): [["tt.divisibility", 16]] for i in aligned},
        )
        return triton.compile(source, target=target, options=self.options)


@dataclass(frozen=True)
class Resources:
    registers: int
    spilled: int  # bytes, or registers of AMD
    shared: int  # bytes
    fused: bool  # whether a multiplication was fused with an addition

    @property
    def wrong(self) -> list[str]:
        found = [f"{self.registers} registers"] if self.registers > MOST_REGISTERS else []
        found += [f"{self.spilled} spilled"] if self.spilled else []
        return found + ["fused operations"] * self.fused


def compilations(lanes: int = LANES, positions: int = POSITIONS) -> Iterator[Compilation]:
    tile = {"LANES": lanes, "POSITIONS": positions}
    for layout, form, dtype in CASES:
        ragged = "*u8" if form in ("valid", "elements") else "*i64"
        pointers = dict.fromkeys(("x", "y", "dy", "dx"), f"*{dtype}")
        pointers |= {"weight": "*fp32", "bias": "*fp32", "ragged": ragged}
        wide = tl.float64 if dtype == "fp64" else tl.float32
        constants = {"FORM": form, "LAYOUT": layout, "TYPE": wide, "CENTER": True, "KEEP": False, **tile}
        constants |= {"EPS": 1e-5, "DDOF": 0, "EPS_OUTSIDE": False}
        constants |= {} if form == "offsets" else {"sequence_of": None, "first_tile": None}
        constants |= {} if layout == "rows" else {"by_position": None}
        for name in SWEEPS:
            yield _compilation(name, f"{layout}, {form}, {dtype}", pointers, constants, verbs.SWEEP)
    for name in REDUCTIONS:
        for packed in (False, True):
            constants = {"CENTER": True, "LANES": verbs.LANES, "ITEMS": verbs.ITEMS} | (
                {} if packed else {"first": None}
            )
            yield _compilation(name, "packed" if packed else "padded", {}, constants, verbs.REDUCTION)


def _compilation(
    name: str, what: str, pointers: dict[str, str], constants: dict[str, Any], options: dict[str, Any]
) -> Compilation:
    types = dict.fromkeys(("table", "parts", "by_position", "totals", "sums"), "*fp64")
    types |= dict.fromkeys(("sequence_of", "first_tile", "first"), "*i64") | pointers
    arguments = getattr(kernels, name).arg_names
    signature = {key: "constexpr" if key in constants else types.get(key, "i32") for key in arguments}
    return Compilation(name, what, signature, {key: constants[key] for key in arguments if key in constants}, options)


def resources_of(compiled: Any, target: GPUTarget) -> Resources:
    shared = int(compiled.metadata.shared)
    if target.backend == "hip":
        text = compiled.asm["amdgcn"]
        numbers = {
            key: int(value) for key, value in re.findall(r"\.(\w+_count|private_segment_fixed_size):\s+(\d+)", text)
        }
        spilled = numbers["vgpr_spill_count"] + numbers["sgpr_spill_count"] + numbers["private_segment_fixed_size"]
        # Divisions of float32 are made of fused operations, too: kernels that have one cannot be judged by this.
        fused = re.search(r"\bv_(fma|fmac|pk_fma)_f32\b", text) is not None and "v_div_fmas_f32" not in text
        return Resources(numbers["vgpr_count"], spilled, shared, fused)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [str(CUOBJDUMP), "-res-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    numbers = {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}
    fused = re.search(r"\b(fma|mad)\.r[nzmp]\S*\.f(32|64)\b", compiled.asm["ptx"]) is not None
    return Resources(numbers["REG"], numbers["STACK"] + numbers["LOCAL"], shared, fused)


@click.command()
@click.option("--lanes", default=LANES, show_default=True, help="Lanes of a tile.")
@click.option("--positions", default=POSITIONS, show_default=True, help="Positions of a tile.")
@click.option("--target", "targets", multiple=True, type=click.Choice(list(TARGETS)), help="Only these.")
@click.option("--some", is_flag=True, help="Every other one for each target, so that each kernel is compiled for two.")
@click.option("--kernel", "names", multiple=True, type=click.Choice([*SWEEPS, *REDUCTIONS]), help="Only these.")
@click.option("--fusion", is_flag=True, help="Let the compilers fuse operations: shows that this is noticed.")
def main(
    lanes: int, positions: int, targets: tuple[str, ...], some: bool, names: tuple[str, ...], fusion: bool
) -> None:
    """Registers and spills of every kernel, without a GPU."""
    bad = 0
    for options in (verbs.SWEEP, verbs.REDUCTION):
        options["enable_fp_fusion"] = fusion
    print("| kernel | of | target | registers | spilled | shared memory | |\n|---|---|---|---:|---:|---:|---|")
    for number, one in enumerate(compilations(lanes, positions)):
        for name in targets or TARGETS:
            if names and one.name not in names:
                continue
            if some and (number + number // 4 + list(TARGETS).index(name)) % 2:
                continue
            found = resources_of(one.compile(TARGETS[name]), TARGETS[name])
            bad += bool(found.wrong)
            cells = (one.name, one.what, name, found.registers, found.spilled, found.shared, ", ".join(found.wrong))
            print(f"| {' | '.join(map(str, cells))} |")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
