"""The table of a population, one row per member, fittest first, in a layout that fits the window.

In a narrow window headers are broken into lines, then text columns (architecture, mutation) move into a second table,
then the least informative columns are left out. A note below the table names everything that is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import repeat
from typing import Literal, NamedTuple

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from agilerl_like.reporting import formatting
from agilerl_like.reporting.records import NO_PARENT, GenerationRecord, MemberRecord, fitness_order

_GAP = 2
_ARCHITECTURE_WIDTH = 40  # least width beside numbers; it grows into free space
_ARCHITECTURE_WIDTH_ALONE = 12  # least width in the second table


def members_table(
    record: GenerationRecord,
    previous: Mapping[int, float],
    clones_of_best: Mapping[int, float],
    *,
    width: int,
    height: int = 10_000,
) -> RenderableType:
    """Return a generation's members in one or two tables of at most `width` columns and about `height` lines.

    `previous` is the fitness of the previous generation by uid; offspring are compared with their parent. Clones of the
    run's best agent, and their offspring of the same generation, are compared with that agent, whose fitness
    `clones_of_best` has by the clone's uid.
    """
    members = sorted(record.members, key=fitness_order, reverse=True)
    identity = _identity(members, previous, clones_of_best, math.inf if record.target is None else record.target)
    names = dict.fromkeys(name for m in members for name in m.hyperparameters)  # members may have other ranges
    hyperparameters = [
        _column(name, formatting.hyperparameters([m.hyperparameters.get(name, "") for m in members])) for name in names
    ]
    tables, left_out = _arrange(identity, hyperparameters, _texts(members), width)
    parts: list[RenderableType] = []
    rows = len(members)
    for table in tables:
        fitting = height - 1 - _header_height(table)  # one line for the note
        rows = min(rows, fitting if parts else max(1, fitting))
        if rows < 1:
            break
        parts += [_render(table, rows, width), ""]
        height -= _header_height(table) + rows + 1
    hidden = len(members) - rows
    notes = [formatting.number_of(hidden, "more member")] if hidden else []
    notes += [f"not shown: {', '.join(left_out)}"] if left_out else []
    if notes:
        parts[-1] = Text(f"… {'; '.join(notes)}", style="dim", overflow="ellipsis", no_wrap=True)
    return Group(*(parts if notes else parts[:-1]))


class _Column(NamedTuple):
    header: str
    cells: list[Text]
    justify: Literal["left", "right"] = "right"
    min_width: int = 0  # 0: as wide as its cells; else elastic

    @property
    def full_width(self) -> int:
        return max(map(cell_len, (*self.header.split("\n"), *(cell.plain for cell in self.cells))))

    @property
    def width(self) -> int:
        return min(self.full_width, self.min_width or self.full_width)

    def broken(self) -> _Column:
        return self._replace(header=self.header.replace("_", "\n").replace(" ", "\n"))


class _Layout(NamedTuple):
    """An arrangement of columns; `_LAYOUTS` are ordered from wide to narrow."""

    stacked: bool = False
    broken: bool = False
    without: tuple[str, ...] = ()


_LAYOUTS = (
    _Layout(),
    _Layout(broken=True),
    _Layout(broken=True, without=("weights",)),
    _Layout(broken=True, without=("weights", "slot")),
    _Layout(stacked=True),
    _Layout(stacked=True, broken=True),
    _Layout(stacked=True, broken=True, without=("slot",)),
    _Layout(stacked=True, broken=True, without=("slot", "±")),
    _Layout(stacked=True, broken=True, without=("slot", "±", "change")),
)


def _arrange(
    identity: list[_Column], hyperparameters: list[_Column], texts: list[_Column], width: int
) -> tuple[list[list[_Column]], list[str]]:
    """The columns of one or two tables that fit the width, and the headers of hyperparameters that do not."""
    tables: list[list[_Column]] = []
    for shown in range(len(hyperparameters), -1, -1):
        for layout in _LAYOUTS:
            tables = _tables(layout, [*identity, *hyperparameters[:shown]], texts)
            if all(_width(table) <= width for table in tables):
                return tables, [column.header for column in hyperparameters[shown:]]
    return tables, [column.header for column in hyperparameters]


def _tables(layout: _Layout, numbers: list[_Column], texts: list[_Column]) -> list[list[_Column]]:
    numbers, texts = (
        [column.broken() if layout.broken else column for column in columns if column.header not in layout.without]
        for columns in (numbers, texts)
    )
    if not layout.stacked:
        return [[*numbers, *texts]]
    member = next(column for column in numbers if column.header == "member")
    narrow = [column._replace(min_width=column.min_width and _ARCHITECTURE_WIDTH_ALONE) for column in texts]
    return [numbers, [member, *narrow]]


def _header_height(table: list[_Column]) -> int:
    return max(column.header.count("\n") for column in table) + 1


def _width(table: list[_Column]) -> int:
    return sum(column.width for column in table) + _GAP * (len(table) - 1)


def _column(header: str, cells: Iterable[str], styles: Iterable[str] | str = "") -> _Column:
    each = repeat(styles) if isinstance(styles, str) else styles
    return _Column(header, [Text(cell, style=style) for cell, style in zip(cells, each, strict=False)])


def _identity(
    members: list[MemberRecord], previous: Mapping[int, float], clones_of_best: Mapping[int, float], target: float
) -> list[_Column]:
    fitness, known = [m.fitness for m in members], {**clones_of_best, **previous}
    changes = [m.fitness - known.get(m.uid, known.get(m.parent_uid, math.nan)) for m in members]
    is_new = [bool(previous) and m.uid not in previous for m in members]
    has_parent = [new and m.parent_uid != NO_PARENT for m, new in zip(members, is_new, strict=True)]
    names = [f"{m.uid} ← {m.parent_uid}" if its else str(m.uid) for m, its in zip(members, has_parent, strict=True)]
    return [
        _column("slot", (str(m.slot) for m in members), "dim"),
        _column("member", names, ("cyan" if new else "" for new in is_new))._replace(justify="left"),
        _column(
            "fitness",
            (text or "nan" for text in formatting.returns(fitness)),
            ("green" if value >= target else "" if math.isfinite(value) else "red" for value in fitness),
        ),
        _column("±", formatting.returns([m.fitness_std for m in members]), "dim"),
        _column(
            "change",
            formatting.returns(changes, signed=True),
            ("green" if change > 0 else "red" if change < 0 else "dim" for change in changes),
        ),
    ]


def _texts(members: list[MemberRecord]) -> list[_Column]:
    mutations = ["-" if m.mutation in ("None", "") else m.mutation for m in members]
    architecture = _column("architecture", (m.architecture for m in members))
    return [
        _column("weights", (formatting.count(m.parameters) for m in members), "dim"),
        architecture._replace(justify="left", min_width=_ARCHITECTURE_WIDTH),
        _column("last mutation", mutations, ("dim" if m == "-" else "magenta" for m in mutations))._replace(
            justify="left"
        ),
    ]


def _render(columns: list[_Column], rows: int, width: int) -> Table:
    spare, height = width - _width(columns), _header_height(columns)
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="dim")
    for column in columns:
        column_width = min(column.full_width, column.width + spare) if column.min_width else column.width
        header = "\n" * (height - 1 - column.header.count("\n")) + column.header
        table.add_column(header, justify=column.justify, width=column_width, no_wrap=True, overflow="ellipsis")
    for row in range(rows):
        table.add_row(*(column.cells[row] for column in columns), style="bold" if row == 0 else "")
    return table
