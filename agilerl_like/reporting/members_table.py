"""The table of a population that fits the window: the fittest on top, a row a member.

Where the window is narrow the headers are broken, then the words (architecture, mutation) move into a second table,
then the least telling columns go. What is left out for want of room is named below the table, never dropped in silence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from agilerl_like.reporting import formatting
from agilerl_like.reporting.records import GenerationRecord, MemberRecord, fitness_order

_GAP = 2
_ARCHITECTURE = 40  # what it may claim beside numbers; where there is room it takes more
_ARCHITECTURE_ALONE = 12  # what it must have in a table of words, whose width shall not cost a number


def members_table(
    record: GenerationRecord, previous: Mapping[int, float], *, width: int, height: int = 10_000
) -> RenderableType:
    """Return a generation's members in one table or two, of at most `width` columns and about `height` lines.

    `previous` holds the fitness of the generation before by uid; a newborn is compared with its parent.
    """
    members = sorted(record.members, key=fitness_order, reverse=True)
    facts = _facts(members, previous, math.inf if record.target is None else record.target)
    numbers = [_numbers(name, members) for name in members[0].hyperparameters]
    words = _words(members)
    tables, left_out = _arrange(facts, numbers, words, width)
    parts: list[RenderableType] = []
    rows = len(members)
    for table in tables:
        room = height - 1 - _height(table)  # a line for the note
        rows = min(rows, room if parts else max(1, room))
        if rows < 1:
            break
        parts += [_render([column.top(rows) for column in table], width), ""]
        height -= _height(table) + rows + 1
    unseen = len(members) - rows
    notes = [f"{unseen} more {'member' if unseen == 1 else 'members'}"] if unseen else []
    notes += [f"not shown: {', '.join(left_out)}"] if left_out else []
    if notes:
        parts[-1] = Text(f"… {'; '.join(notes)}", style="dim", overflow="ellipsis", no_wrap=True)
    return Group(*(parts if notes else parts[:-1]))


@dataclass(frozen=True)
class _Column:
    header: str
    cells: tuple[str, ...]
    styles: tuple[str, ...]
    justify: Literal["left", "right"] = "right"
    claim: int = 0  # of an elastic column: the width it insists on

    @property
    def width(self) -> int:
        return min(self.full_width, self.claim or self.full_width)

    @property
    def full_width(self) -> int:
        return max(map(cell_len, (*self.header.split("\n"), *self.cells)))

    def broken(self) -> _Column:
        return replace(self, header=self.header.replace("_", "\n").replace(" ", "\n"))

    def top(self, rows: int) -> _Column:
        return replace(self, cells=self.cells[:rows], styles=self.styles[:rows])


@dataclass(frozen=True)
class _Layout:
    """How columns are shown; `_LAYOUTS` go from roomy to tight."""

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
    facts: list[_Column], numbers: list[_Column], words: list[_Column], width: int
) -> tuple[list[list[_Column]], list[str]]:
    tables: list[list[_Column]] = []
    for shown in range(len(numbers), -1, -1):
        for layout in _LAYOUTS:
            tables = _tables(layout, facts, numbers[:shown], words)
            if all(_width(table) <= width for table in tables):
                return tables, [column.header for column in numbers[shown:]]
    return tables, [column.header for column in numbers]


def _tables(layout: _Layout, facts: list[_Column], numbers: list[_Column], words: list[_Column]) -> list[list[_Column]]:
    facts, numbers, words = (
        [column.broken() if layout.broken else column for column in columns if column.header not in layout.without]
        for columns in (facts, numbers, words)
    )
    if not layout.stacked:
        return [[*facts, *numbers, *words]]
    name = next(column for column in facts if column.header == "member")
    return [[*facts, *numbers], [name, *(replace(c, claim=c.claim and _ARCHITECTURE_ALONE) for c in words)]]


def _height(table: list[_Column]) -> int:
    return max(column.header.count("\n") for column in table) + 1


def _width(table: list[_Column]) -> int:
    return sum(column.width for column in table) + _GAP * (len(table) - 1)


def _facts(members: list[MemberRecord], previous: Mapping[int, float], goal: float) -> list[_Column]:
    fitness = [m.fitness for m in members]
    changes = [m.fitness - previous.get(m.uid, previous.get(m.parent_uid, math.nan)) for m in members]
    newborn = [bool(previous) and m.uid not in previous for m in members]
    names = tuple(f"{m.uid} ← {m.parent_uid}" if new else str(m.uid) for m, new in zip(members, newborn, strict=True))
    quiet = ("dim",) * len(members)
    return [
        _Column("slot", tuple(str(m.slot) for m in members), quiet),
        _Column("member", names, tuple("cyan" if new else "" for new in newborn), "left"),
        _Column(
            "fitness",
            tuple(text or "nan" for text in formatting.returns(fitness)),
            tuple("green" if value >= goal else "" if math.isfinite(value) else "red" for value in fitness),
        ),
        _Column("±", tuple(formatting.returns([m.fitness_std for m in members])), quiet),
        _Column(
            "change",
            tuple(formatting.returns(changes, signed=True)),
            tuple("green" if change > 0 else "red" if change < 0 else "dim" for change in changes),
        ),
    ]


def _numbers(name: str, members: list[MemberRecord]) -> _Column:
    values = [m.hyperparameters[name] for m in members]
    return _Column(name, tuple(formatting.hyperparameters(values)), ("",) * len(members))


def _words(members: list[MemberRecord]) -> list[_Column]:
    quiet = ("dim",) * len(members)
    mutations = tuple("-" if m.mutation in ("None", "") else m.mutation for m in members)
    return [
        _Column("weights", tuple(formatting.count(m.parameters) for m in members), quiet),
        _Column(
            "architecture", tuple(m.architecture for m in members), ("",) * len(members), "left", claim=_ARCHITECTURE
        ),
        _Column("last mutation", mutations, tuple("dim" if m == "-" else "magenta" for m in mutations), "left"),
    ]


def _render(columns: Sequence[_Column], width: int) -> Table:
    spare = width - _width(list(columns))
    tall = _height(list(columns))
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="dim")
    for column in columns:
        room = min(column.full_width, column.width + spare) if column.claim else column.width
        header = "\n" * (tall - 1 - column.header.count("\n")) + column.header
        table.add_column(header, justify=column.justify, width=room, no_wrap=True, overflow="ellipsis")
    for row in range(len(columns[0].cells)):
        cells = [Text(column.cells[row], style=column.styles[row]) for column in columns]
        table.add_row(*cells, style="bold" if row == 0 else "")
    return table
