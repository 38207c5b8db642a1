"""What is trained, and how: `Config`, checked; what suits a task; and which options a task does not have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from truenorm.lab.networks import ActivationName, Body, NormAt, NormName, Padding
from truenorm.lab.optimizers import OptimizerName, Schedule

Task = Literal["words", "gender", "table"]
MOST = 10**6  # of any size


class Config(BaseModel):
    """A run. The defaults are those of the character network; `suited` has those of the other tasks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: Task = "words"
    data: str = "names"
    target: str | None = None
    standardize: bool = True
    norm: NormName = "batch"
    norm_at: NormAt = "before"
    padding: Padding = "valid"
    groups: int = Field(4, ge=1, le=MOST)
    ddof: Literal[0, 1] = 0
    batch: int = Field(32, ge=1, le=MOST)
    block: int = Field(3, ge=1, le=MOST)
    extent: int | None = Field(None, ge=1, le=MOST)
    embedding: int = Field(2, ge=1, le=MOST)
    heads: int = Field(1, ge=1, le=MOST)
    hidden: int = Field(100, ge=1, le=MOST)
    depth: int = Field(1, ge=1, le=MOST)
    activation: ActivationName = "tanh"
    dropout: float = Field(0.0, ge=0, lt=1)
    gain: float = Field(1.0, gt=0, allow_inf_nan=False)
    optimizer: OptimizerName = "sgd"
    momentum: float = Field(0.0, ge=0, lt=1)
    rate: float = Field(0.1, gt=0, allow_inf_nan=False)
    schedule: Schedule = "step"
    steps: int = Field(10_000, ge=1, le=10**12)
    seed: int = Field(0, ge=0, lt=2**63)
    dtype: Literal["float32", "float64"] = "float32"

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.norm == "batch" and self.batch == 1 and self.task != "gender":
            raise ValueError("--batch: at least 2 with batch norm, got 1. One value has no variance: use --norm layer.")
        if self.task == "table" and self.data == "names":
            raise ValueError("--data: a CSV file with a header, got none.")
        if self.task == "table" and self.target is None:
            raise ValueError("--target: the column to predict, got none.")
        if self.task == "gender" and self.data != "names":
            raise ValueError(f"--data: names, for --task gender, got {self.data!r}.")
        if self.task == "gender" and self.embedding % self.heads:
            raise ValueError(f"--heads: divides the {self.embedding} of --embedding, got {self.heads}.")
        return self

    def body(self) -> Body:
        shared = {name: getattr(self, name) for name in Body.__dataclass_fields__}
        return Body(**shared)


# What suits a task, where it differs from the character network.
SUITED: dict[Task, dict[str, Any]] = {
    "words": {},
    "gender": {
        "embedding": 16,
        "heads": 2,
        "hidden": 64,
        "batch": 64,
        "optimizer": "adam",
        "rate": 0.01,
        "schedule": "cosine",
        "steps": 1000,
    },
    "table": {"hidden": 32, "optimizer": "adam", "rate": 0.01, "schedule": "cosine", "steps": 2000},
}

# Options that mean something only beside certain values of another: they are refused elsewhere, not ignored.
ONLY_WITH: dict[str, tuple[str, tuple[str, ...]]] = {
    "target": ("task", ("table",)),
    "standardize": ("task", ("table",)),
    "padding": ("task", ("gender",)),
    "extent": ("task", ("gender",)),
    "heads": ("task", ("gender",)),
    "block": ("task", ("words",)),
    "embedding": ("task", ("words", "gender")),
    "depth": ("task", ("words", "table")),
    "momentum": ("optimizer", ("sgd",)),
    "groups": ("norm", ("group",)),
    "ddof": ("norm", ("batch", "layer", "group")),
    "norm_at": ("norm", ("batch", "layer", "rms", "group")),
}


def suited(given: Mapping[str, Any]) -> Config:
    """The task's defaults and what was given; the first thing that is wrong, named as the option of the command."""
    task = given.get("task", "words")
    try:
        config = Config(**SUITED.get(task, {}) | dict(given))
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "value_error":
            raise ValueError(str(first["ctx"]["error"])) from None
        raise ValueError(f"{option(first['loc'][0])}: {_wanted(first)}, got {first['input']!r}.") from None
    for name in given:
        if name in ONLY_WITH:
            other, values = ONLY_WITH[name]
            if (found := getattr(config, other)) not in values:
                raise ValueError(
                    f"{option(name)}: only with {option(other)} {_or(values)}, got {option(other)} {found}."
                )
    return config


def option(name: object) -> str:
    """As the command has it."""
    return "--" + str(name).replace("_", "-")


def _or(values: Iterable[str]) -> str:
    *others, last = values
    return f"{', '.join(others)} or {last}" if others else last


def _wanted(error: Mapping[str, Any]) -> str:
    """What an option takes, in our words."""
    limits = error.get("ctx", {})
    match error["type"]:
        case "greater_than_equal":
            return f"a number >= {limits['ge']:g}"
        case "greater_than":
            return f"a number > {limits['gt']:g}"
        case "less_than_equal":
            return f"a number <= {limits['le']:g}"
        case "less_than":
            return f"a number < {limits['lt']:g}"
        case "finite_number":
            return "a finite number"
        case "literal_error":
            return f"one of {limits['expected']}"
        case _:
            return str(error["msg"])
