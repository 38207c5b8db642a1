"""Options in named groups, for commands with so many that one list would not be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from truenorm.cli import Command


class _Option(click.Option):
    """An option that belongs to a group."""

    def __init__(self, *arguments: Any, group: str, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.group = group


class GroupedCommand(Command):
    """Lists its options group by group, in the order in which the groups first appear; --debug and --help last."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx)
            if record is not None:
                groups.setdefault(option.group if isinstance(option, _Option) else "Other", []).append(record)
        for name, records in groups.items():
            with formatter.section(name):
                formatter.write_dl(records)


def group_of_options(group: str) -> Callable[..., Callable[[Any], Any]]:
    """`click.option` for the options of one group."""

    def option(*names: str, **settings: Any) -> Callable[[Any], Any]:
        return click.option(*names, cls=_Option, group=group, **settings)

    return option
