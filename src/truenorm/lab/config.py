"""The configuration of a training run: `Config`, the defaults of each task, and which options go together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from truenorm.lab.layers import StatisticsOver
from truenorm.lab.networks import ActivationName, DTypeName, ModelConfig, NormAt, NormName
from truenorm.lab.optimizers import OptimizerName, Schedule

Task = Literal["words", "gender", "table"]
STUDENTS = "students"  # the table that comes with the lab
LISTS = ("names", "surnames", "words")  # the lists of words that come with it
MAX_SIZE = 10**6  # what fits into memory is estimated for all sizes together, see `lab.memory`
MAX_DEPTH = 1000  # with more layers a report would take seconds

_Steps = Annotated[int, Field(ge=1, le=10**12)]


class Config(BaseModel):
    """The options of a run. The defaults are those of --task words; `make_config` knows those of the other tasks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: Task = "words"
    data: str = "names"
    target: str | None = None
    standardize: bool = True
    norm: NormName = "batch"
    norm_at: NormAt = "before"
    statistics_over: StatisticsOver = "valid"
    groups: int = Field(default=4, ge=1, le=MAX_SIZE)
    ddof: Literal[0, 1] = 0
    batch: int = Field(default=32, ge=1, le=MAX_SIZE)
    block: int = Field(default=3, ge=1, le=MAX_SIZE)
    max_length: int | None = Field(default=None, ge=1, le=MAX_SIZE)
    embedding: int = Field(default=2, ge=1, le=MAX_SIZE)
    heads: int = Field(default=1, ge=1, le=MAX_SIZE)
    hidden: int = Field(default=100, ge=1, le=MAX_SIZE)
    depth: int = Field(default=1, ge=1, le=MAX_DEPTH)
    activation: ActivationName = "tanh"
    dropout: float = Field(default=0.0, ge=0, lt=1)
    init_scale: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    optimizer: OptimizerName = "sgd"
    momentum: float = Field(default=0.0, ge=0, lt=1)
    lr: float = Field(default=0.1, gt=0, allow_inf_nan=False)
    schedule: Schedule = "step"
    steps: _Steps = 10_000
    seed: int = Field(default=0, ge=0, lt=2**63)
    dtype: DTypeName = "float32"
    extended_at: tuple[_Steps, ...] = ()  # the numbers of steps that the run had before it was extended

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.norm == "batch" and self.batch == 1 and self.task != "gender":
            raise ValueError("--batch: at least 2 with batch norm, got 1. Use --norm layer.")
        if self.task == "table" and self.data == "names":
            raise ValueError("--data: --task table needs a CSV file with a header, or students, got none.")
        if self.task == "words" and self.data == STUDENTS:
            raise ValueError("--data: students is a table, got --task words. Use --task table.")
        if self.task == "table" and self.target is None:
            raise ValueError(f"--target: --task table needs the column of {self.data} to predict, got none.")
        if self.task == "gender" and self.data != "names":
            raise ValueError(f"--data: --task gender has its own data, got {self.data!r}. Leave --data out.")
        if self.task == "gender" and self.embedding % self.heads:
            raise ValueError(f"--heads: must divide --embedding {self.embedding}, got {self.heads}.")
        if [*self.extended_at, self.steps] != sorted({*self.extended_at, self.steps}):
            raise ValueError(f"extended_at: increasing numbers below the {self.steps} steps, got {self.extended_at}.")
        return self

    def extended(self, steps: int) -> Config:
        """The same run with more steps."""
        try:
            return Config(
                **self.model_dump() | {"steps": self.steps + steps, "extended_at": (*self.extended_at, self.steps)}
            )
        except ValidationError:
            raise ValueError(f"--extend: a number of steps from 1 to {10**12 - self.steps}, got {steps}.") from None

    def saved(self) -> dict[str, Any]:
        """What the files of a run hold. A run that was never extended holds no `extended_at`, as older ones do not."""
        options = self.model_dump(mode="json")  # lists and not tuples: equal to what is read back
        return options if self.extended_at else {name: options[name] for name in options if name != "extended_at"}

    def for_network(self) -> ModelConfig:
        """The options that describe the network."""
        return ModelConfig(**{name: getattr(self, name) for name in ModelConfig.__dataclass_fields__})


# The defaults of a task, where they differ from those of `Config`.
TASK_DEFAULTS: dict[Task, dict[str, Any]] = {
    "words": {},
    "gender": {
        "embedding": 16,
        "heads": 2,
        "hidden": 64,
        "batch": 64,
        "optimizer": "adam",
        "lr": 0.01,
        "schedule": "cosine",
        "steps": 1000,
    },
    "table": {"hidden": 32, "optimizer": "adam", "lr": 0.01, "schedule": "cosine", "steps": 2000},
}

_NORMS = ("batch", "layer", "rms", "group")

# Options that have a meaning only with certain values of others: otherwise they are refused, not ignored.
ONLY_WITH: dict[str, dict[str, tuple[str, ...]]] = {
    "target": {"task": ("table",)},
    "standardize": {"task": ("table",)},
    "statistics_over": {"task": ("gender",), "norm": _NORMS},
    "max_length": {"task": ("gender",)},
    "heads": {"task": ("gender",)},
    "block": {"task": ("words",)},
    "embedding": {"task": ("words", "gender")},
    "depth": {"task": ("words", "table")},
    "momentum": {"optimizer": ("sgd",)},
    "groups": {"norm": ("group",)},
    "ddof": {"norm": ("batch", "layer", "group")},
    "norm_at": {"norm": _NORMS},
}


def make_config(given: Mapping[str, Any]) -> Config:
    """The given options over the task's defaults. An error names the first wrong option as on the command line."""
    defaults = _defaults(given.get("task", "words"), given.get("data"))
    for name, value in given.items():
        if isinstance(value, str) and _is_not_unicode(value):
            raise ValueError(f"{_option(name)}: a name in UTF-8, got {value}. Rename it.")
    try:
        config = Config(**defaults | dict(given))
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "value_error":
            raise ValueError(str(first["ctx"]["error"])) from None
        raise ValueError(f"{_option(first['loc'][0])}: {_expected(first)}, got {first['input']!r}.") from None
    for name in given:
        for other, values in ONLY_WITH.get(name, {}).items():
            if (value := getattr(config, other)) not in values:
                raise ValueError(
                    f"{_option(name)}: only with {_option(other)} {_or(values)}, got {_option(other)} {value}."
                )
    return config


def data_source(text: str) -> str:
    """--data as a configuration holds it: a list or table of the lab, or an absolute path.

    So a run can be resumed from another directory.
    """
    if text == "":
        raise ValueError("--data: must be the name of a file, names, surnames, words or students, got ''.")
    return text if text in (*LISTS, STUDENTS) else str(Path(text).absolute())


def parse_option(name: str, value: Any) -> Any:
    """One option in its type, as `make_config` reads it. An error names the option as on the command line."""
    try:
        return _adapter(name).validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{_option(name)}: {_expected(first)}, got {first['input']!r}.") from None


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    """Reads the values of one option. To make it takes much longer than to use it."""
    field = Config.model_fields[name]
    kind: Any = field.annotation
    for limit in field.metadata:
        kind = Annotated[kind, limit]
    return TypeAdapter(kind)


def applies(name: str, given: Mapping[str, Any]) -> bool:
    """Whether an option has a meaning together with these; the defaults of their task are in effect, too."""
    if name not in ONLY_WITH:
        return True
    defaults = _defaults(given.get("task", "words"), given.get("data"))
    return all(
        given.get(other, defaults.get(other, Config.model_fields[other].default)) in values
        for other, values in ONLY_WITH[name].items()
    )


def _defaults(task: Any, data: Any) -> dict[str, Any]:
    """The defaults of a task that differ from those of `Config`."""
    target = {"target": "placed"} if task == "table" and data == STUDENTS else {}
    return TASK_DEFAULTS.get(task, {}) | target


def options_of(config: Config) -> dict[str, str]:
    """The options of a run that have a meaning for it, as on the command line: name -> value."""
    return {
        _option(name): str(value)
        for name, value in config.model_dump(exclude={"extended_at"}).items()
        if value is not None and applies(name, config.model_dump())
    }


def command_lines(config: Config, out: str) -> list[list[str]]:
    """The commands that repeat a run in another directory: how it was started, and each time that it was extended.

    >>> for words in command_lines(make_config({"norm": "layer", "steps": 500}).extended(100), "runs/layer"):
    ...     print(*words)
    truenorm train --norm layer --steps 500 --out runs/layer
    truenorm train --extend 100 --out runs/layer
    """
    lengths = [*config.extended_at, config.steps]
    options = config.model_dump(exclude={"extended_at"}) | {"steps": lengths[0]}
    defaults = {name: field.default for name, field in Config.model_fields.items()}
    defaults |= _defaults(config.task, config.data)
    start = ["truenorm", "train"]
    for name, value in options.items():
        if name == "standardize" and not value:
            start.append("--raw")
        elif value != defaults[name]:
            start += [_option(name), str(value)]
    more = [["truenorm", "train", "--extend", str(b - a)] for a, b in pairwise(lengths)]
    return [[*line, "--out", out] for line in (start, *more)]


def _is_not_unicode(name: str) -> bool:
    """Whether a name has bytes that are not UTF-8. JSON cannot hold them, so no run could be resumed."""
    return any("\ud800" <= character <= "\udfff" for character in name)


def _option(name: object) -> str:
    """The name as on the command line."""
    return "--" + str(name).replace("_", "-")


def _or(values: Iterable[str]) -> str:
    *others, last = values
    return f"{', '.join(others)} or {last}" if others else last


def _expected(error: Mapping[str, Any]) -> str:
    """What the option takes."""
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
        case "float_parsing" | "float_type":
            return "a number"
        case "int_parsing" | "int_type" | "int_from_float" | "int_parsing_size":
            return "a whole number"
        case "bool_parsing" | "bool_type":
            return "yes or no"
        case "literal_error":
            return f"one of {limits['expected']}"
        case _:
            return str(error["msg"])
