"""The two files that every run leaves: `metrics.csv`, a row a member, and `lineage.jsonl`, a line a birth.

Both are complete after every generation, and on the disk itself before a checkpoint counts on them. A resumed run
continues them: what an earlier process has written of later generations is replaced, and a line that a crash or a power
cut has damaged is removed with a warning. Records that the disk does not take stay in memory until it does.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from agilerl_like.errors import CheckpointError, ConfigurationError
from agilerl_like.reporting.metrics import member_metrics, population_metrics
from agilerl_like.reporting.records import GenerationRecord, MemberRecord, OffspringRecord, RunRecord
from agilerl_like.reporting.reporter import DurableReporter
from agilerl_like.storage import safe_folder
from agilerl_like.storage.durable_io import (
    check_regular,
    make_folder,
    open_to_write,
    replace_file,
    sync_folder,
    write_all,
)

T = TypeVar("T")

METRICS = "metrics.csv"
LINEAGE = "lineage.jsonl"
DAMAGED = ".damaged"
"""What is behind the name of a copy of a file of which damaged lines were removed."""
_IDENTITY = ("generation", "slot", "uid", "parent_uid", "env_steps", "mutation", "architecture", "parameters")
_TEXT = frozenset({"mutation", "architecture"})
_WHOLE = tuple(name for name in _IDENTITY if name not in _TEXT)
MAX_COLUMNS = 1000
"""Of `metrics.csv`."""


class RecordFile:
    """A text file that grows by whole lines."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        """Absolute, because an environment may change the working directory."""
        self._size = -1
        """Bytes of the whole lines, where a write has failed and may have left part of a line behind them."""
        self._is_named = False
        """Whether its name is known to be on the disk."""
        self.warnings: list[str] = []

    def prepare(self) -> None:
        """Make the folder.

        Raises:
            CheckpointError: what is there is not a regular file.
        """
        make_folder(self.path.parent)
        check_regular(self.path)
        self._size, self._is_named = -1, False

    def append(self, text: str) -> None:
        """Write lines behind the others; if that fails, the next call first removes what it has left."""
        handle = open_to_write(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            if self._size >= 0:
                os.ftruncate(handle, self._size)
            self._size = os.fstat(handle).st_size
            write_all(handle, text.encode())
            self._size = -1
        finally:
            os.close(handle)

    def replace(self, text: str) -> None:
        """Replace all lines, durably."""
        replace_file(self.path, text.encode())
        self._size, self._is_named = -1, True

    def sync(self) -> None:
        """Write it to the disk itself."""
        if not check_regular(self.path):
            return
        handle = open_to_write(self.path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        if not self._is_named:
            sync_folder(self.path.parent)
            self._is_named = True

    def repair(self, damaged: Sequence[int]) -> None:
        """Copy the file aside, and warn, because these lines of it are about to be removed."""
        copy = self.path.with_name(self.path.name + DAMAGED)
        replace_file(copy, self.path.read_bytes())
        several = f"lines {', '.join(map(str, damaged[:5]))}{' …' if damaged[5:] else ''} are"
        self.warnings.append(
            f"path={str(self.path)!r}: {several if damaged[1:] else f'line {damaged[0]} is'} damaged and removed; "
            f"the file as it was is in {copy.name}"
        )

    def pop_warnings(self) -> list[str]:
        """Return the warnings since the last call."""
        taken, self.warnings = self.warnings, []
        return taken


class CsvReporter(DurableReporter):
    """Writes `metrics.csv`.

    Columns: what the member is (`generation, slot, uid, parent_uid, env_steps, mutation, architecture, parameters`),
    `eval/…`, `rollout/…`, `hp/…`, `train/…`, then what is the same in all rows of a generation: `population/…` and
    `time/…` (seconds are since the start of the run). A column that appears later is added on the right; where a member
    has no such number the field is empty.
    """

    def __init__(self, run_dir: Path | str):
        self._file = RecordFile(Path(run_dir) / METRICS)
        self._columns: tuple[str, ...] = ()
        self._rows: list[dict[str, Any]] = []
        """Those that are not in the file yet."""

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    def start(self, run: RunRecord) -> None:
        """Make the folder; refuse a file of that name that is not one of ours."""
        self._file.prepare()
        self._columns, self._rows = (), []
        if self.path.is_file() and not begins_as_metrics(self.path):
            raise ConfigurationError(
                f"{self.path} is in the way: it begins with {', '.join(_header(self.path)[:8])} and not "
                f"{', '.join(_IDENTITY)}"
            )

    def generation(self, record: GenerationRecord) -> None:
        """Append one row a member.

        Raises:
            OSError: the disk does not take them; they are written with the next ones.
        """
        self._rows += [_row(record, member) for member in record.members]
        self._write()

    def finish(self, summary: Any) -> None:
        """Write what is not written yet."""
        self._write()

    def close(self) -> None:
        """Write what is not written yet."""
        self._write()

    def sync(self) -> None:
        """Write all rows to the disk itself."""
        self._write()
        self._file.sync()

    def pop_warnings(self) -> list[str]:
        """Return what was repaired."""
        return self._file.pop_warnings()

    def _write(self) -> None:
        rows = self._rows
        if not rows:
            return
        if not self._columns:
            self._resume_at(rows[0]["generation"])
        wanted = tuple(dict.fromkeys((*self._columns, *(name for row in rows for name in row))))
        if wanted == self._columns:
            self._file.append(_csv(wanted, rows))
        elif self._columns:
            self._rewrite(wanted, [*_table(self.path, self._columns).records, *rows])
        else:
            self._rewrite(wanted, rows)
        self._columns, self._rows = wanted, []

    def _resume_at(self, generation: int) -> None:
        if not self.path.is_file():
            return
        columns = _header(self.path)
        if not columns:
            return
        found = _table(self.path, columns)
        if found.damaged:
            self._file.repair(found.damaged)
        kept = [row for row in found.records if float(row["generation"]) < generation]
        if len(kept) < len(found.records) or not found.is_whole:
            self._rewrite(columns, kept)
        self._columns = columns

    def _rewrite(self, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
        self._file.replace(_csv(columns, [dict(zip(columns, columns, strict=True)), *rows]))


class LineageReporter(DurableReporter):
    """Writes `lineage.jsonl`: every `OffspringRecord` as one JSON object; a number that is not finite is null."""

    def __init__(self, run_dir: Path | str):
        self._file = RecordFile(Path(run_dir) / LINEAGE)
        self._fresh = True
        self._births: list[OffspringRecord] = []
        """Those that are not in the file yet."""

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    def start(self, run: RunRecord) -> None:
        """Make the folder."""
        self._file.prepare()
        self._fresh, self._births = True, []

    def offspring(self, births: tuple[OffspringRecord, ...]) -> None:
        """Append one line a birth.

        Raises:
            OSError: the disk does not take them; they are written with the next ones.
        """
        self._births += births
        self._write()

    def finish(self, summary: Any) -> None:
        """Write what is not written yet."""
        self._write()

    def close(self) -> None:
        """Write what is not written yet."""
        self._write()

    def sync(self) -> None:
        """Write all births to the disk itself."""
        self._write()
        self._file.sync()

    def pop_warnings(self) -> list[str]:
        """Return what was repaired."""
        return self._file.pop_warnings()

    def _write(self) -> None:
        if not self._births:
            return
        if self._fresh and self.path.is_file():
            self._resume_at(min(birth.generation for birth in self._births))
        self._fresh = False
        self._file.append("".join(map(_line, self._births)))
        self._births = []

    def _resume_at(self, generation: int) -> None:
        found = _found(self.path, read_birth)
        if found.damaged:
            self._file.repair(found.damaged)
        kept = [birth for birth in found.records if birth.generation < generation]
        if len(kept) < len(found.records) or not found.is_whole:
            self._file.replace("".join(map(_line, kept)))


def read_metrics(run_dir: Path | str) -> list[dict[str, Any]]:
    """Return the rows of a run's `metrics.csv`: `mutation` and `architecture` as text, all else as float (or nan).

    Raises:
        ConfigurationError: there is no such file, or it is not that of a run.
        CheckpointError: the file is damaged: names the line, the column, the value and what is allowed.
    """
    path = _existing(Path(run_dir) / METRICS)
    table = csv.reader(safe_folder.read_lines(path))
    try:
        columns = tuple(next(table, ()))
        if columns[: len(_IDENTITY)] == _IDENTITY and len(set(columns)) == len(columns) <= MAX_COLUMNS:
            return [_read_row(columns, fields) for fields in table]
    except (csv.Error, ValueError) as error:
        raise CheckpointError(f"path={str(path)!r}, line {table.line_num}: {error!s:.300}") from error
    raise ConfigurationError(
        f"{path} is no metrics file of a run: its first columns must be {', '.join(_IDENTITY)}, and its columns at "
        f"most {MAX_COLUMNS} different ones"
    )


def read_lineage(run_dir: Path | str) -> tuple[OffspringRecord, ...]:
    """Return the births of a run's `lineage.jsonl`, oldest first.

    Raises:
        ConfigurationError: there is no such file.
        CheckpointError: the file is damaged: names the line, the field, the value and what is allowed.
    """
    path = _existing(Path(run_dir) / LINEAGE)
    lines = enumerate(safe_folder.read_lines(path), start=1)
    return tuple(read_birth(line, f"path={str(path)!r}, line {n}") for n, line in lines)


def read_birth(line: str, where: str) -> OffspringRecord:
    """Return the birth that a line of `lineage.jsonl` describes; `where` is what a CheckpointError calls the line."""
    return OffspringRecord.from_json(safe_folder.parse_json(line.encode(), where), where)


def begins_as_metrics(path: Path) -> bool:
    """Whether a file begins as `metrics.csv` does; an empty one does."""
    columns = _header(path)
    return not columns or columns[: len(_IDENTITY)] == _IDENTITY


def _header(path: Path) -> tuple[str, ...]:
    with safe_folder.open_regular(path) as file:
        line = file.readline(safe_folder.MAX_LINE_BYTES)
    return tuple(_fields(line[:-1].decode("utf-8", errors="replace"))) if line.endswith(b"\n") else ()


def _existing(path: Path) -> Path:
    if not path.exists():
        raise ConfigurationError(
            f"{path} does not exist; give the folder of a run, which holds {METRICS} and {LINEAGE}"
        )
    return path


# -- what a resumed run finds


class Found(NamedTuple, Generic[T]):
    """What is left in a file that a resumed run continues."""

    records: list[T]
    damaged: list[int]
    """Numbers of the lines that are no records."""
    is_whole: bool
    """Whether every byte of the file is part of a record."""


def _found(path: Path, parse: Callable[[str, str], T], *, skip: int = 0) -> Found[T]:
    """Parse each line of a file but the first few, and leave out those that are damaged.

    A process that is killed, and a disk that is full, leave a last line without its end; a power cut leaves NUL bytes
    where lines were. Neither was ever written as a whole, so neither counts as damage.
    """
    data = safe_folder.read_regular(path, safe_folder.MAX_TEXT_BYTES)
    texts = data.rstrip(b"\0").decode("utf-8", errors="replace").split("\n")
    found: Found[T] = Found([], [], not texts[-1] and not data.endswith(b"\0"))
    for number, text in enumerate(texts[skip:-1], 1 + skip):
        try:
            found.records.append(parse(text, f"path={str(path)!r}, line {number}"))
        except (CheckpointError, ValueError):
            found.damaged.append(number)
    return found if not found.damaged else found._replace(is_whole=False)


def _table(path: Path, columns: tuple[str, ...]) -> Found[dict[str, str]]:
    """The rows of `metrics.csv`, as they are written there."""

    def parse(line: str, where: str) -> dict[str, str]:
        fields = _fields(line)
        _read_row(columns, fields)
        return dict(zip(columns, fields, strict=True))

    return _found(path, parse, skip=1)


def _fields(line: str) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error:  # NUL bytes, or a field that is too long
        return []


# -- writing


def _row(record: GenerationRecord, member: MemberRecord) -> dict[str, Any]:
    identity = {"generation": record.generation} | {name: getattr(member, name) for name in _IDENTITY[1:]}
    return {**identity, **member_metrics(member), **population_metrics(record)}


def _csv(columns: tuple[str, ...], rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    csv.DictWriter(text, columns, restval="", lineterminator="\n").writerows(rows)
    return text.getvalue()


def _line(birth: OffspringRecord) -> str:
    return json.dumps(birth.to_json(), ensure_ascii=False, allow_nan=False) + "\n"


def _read_row(columns: tuple[str, ...], fields: list[str]) -> dict[str, Any]:
    """A row of `metrics.csv` by column; ValueError says which field cannot be one."""
    if len(fields) != len(columns):
        raise ValueError(f"it has {len(fields)} fields; allowed is one for each of {len(columns)} columns")
    row: dict[str, Any] = {
        name: text if name in _TEXT else _number(name, text) for name, text in zip(columns, fields, strict=True)
    }
    for name in _WHOLE:
        if not row[name].is_integer():
            raise ValueError(f"{name}={row[name]!r}; allowed are whole numbers")
    return row


def _number(name: str, text: str) -> float:
    try:
        return float(text) if text else math.nan
    except ValueError:
        raise ValueError(f"{name}={text!r:.100}; allowed are numbers") from None
