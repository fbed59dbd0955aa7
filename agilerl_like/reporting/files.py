"""The two files of every run: `metrics.csv` (a row per member) and `lineage.jsonl` (a line per offspring).

Both are complete after every generation, and synced to the disk before a checkpoint is saved. A resumed run replaces
what an earlier process wrote about later generations, and removes lines that a crash or power cut damaged, with a
warning. Records that cannot be written (full disk) stay in memory until they can.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Generic, NamedTuple, TypeVar

from agilerl_like.errors import CheckpointError, ConfigurationError
from agilerl_like.reporting.callback import DurableReporter, RunContext
from agilerl_like.reporting.metrics import member_metrics, population_metrics
from agilerl_like.reporting.records import GenerationRecord, MemberRecord, OffspringRecord, RunRecord
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
UPDATES = "updates.csv"
LINEAGE = "lineage.jsonl"
DAMAGED = ".damaged"
"""Suffix of the copy of a file from which damaged lines were removed."""
MAX_DAMAGED_LINES = 1000
"""Damaged lines after which the rest of a file counts as damaged: parsing 100,000 empty lines takes 0.7 CPU-seconds."""
_IDENTITY = ("generation", "slot", "uid", "parent_uid", "env_steps", "mutation", "architecture", "parameters")
_UPDATE_IDENTITY = ("generation", "slot", "uid", "update", "env_steps")
_TEXT = frozenset({"mutation", "architecture"})
_WHOLE = frozenset((*_IDENTITY, *_UPDATE_IDENTITY)) - _TEXT
MAX_COLUMNS = 1000
"""Most columns of `metrics.csv`."""


class RecordFile:
    """A text file that grows by whole lines."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        """Absolute, because an environment may change the working directory."""
        self._complete_bytes = -1
        """Size without the partial line that a failed write may have left; -1 if no write has failed."""
        self._name_is_synced = False
        self.warnings: list[str] = []

    def prepare(self) -> None:
        """Make the folder.

        Raises:
            CheckpointError: the path exists and is not a regular file.
        """
        make_folder(self.path.parent)
        check_regular(self.path)
        self._complete_bytes, self._name_is_synced = -1, False

    def append(self, text: str) -> None:
        """Append lines; if that fails, the next call first removes the partial line."""
        handle = open_to_write(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            if self._complete_bytes >= 0:
                os.ftruncate(handle, self._complete_bytes)
            self._complete_bytes = os.fstat(handle).st_size
            write_all(handle, text.encode())
        finally:
            os.close(handle)  # NFS reports a full disk here
        self._complete_bytes = -1

    def replace(self, text: str) -> None:
        """Replace all lines, durably."""
        replace_file(self.path, text.encode())
        self._complete_bytes, self._name_is_synced = -1, True

    def keep(self, spans: Sequence[tuple[int, int]], *, skip: int) -> None:
        """Remove all lines but the first `skip` and those in `spans` of bytes, durably.

        A file whose kept lines are its beginning is truncated, since it may be large; another one is written again.
        """
        with safe_folder.open_regular(self.path) as file:
            spans = [(0, sum(len(file.readline()) for _ in range(skip))), *spans]
            is_beginning = all(before[1] == after[0] for before, after in pairwise(spans))
            file.seek(0)
            content = b"" if is_beginning else file.read()
        if not is_beginning:
            replace_file(self.path, b"".join(content[start:end] for start, end in spans))
            self._name_is_synced = True
        else:
            handle = open_to_write(self.path, os.O_WRONLY)
            try:
                os.ftruncate(handle, spans[-1][1])
                os.fsync(handle)
            finally:
                os.close(handle)
        self._complete_bytes = -1

    def sync(self) -> None:
        """Sync content and name to the disk."""
        if not check_regular(self.path):
            return
        handle = open_to_write(self.path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        if not self._name_is_synced:
            sync_folder(self.path.parent)
            self._name_is_synced = True

    def back_up(self, damaged: Sequence[int]) -> None:
        """Copy the file, and warn that the lines with these numbers are about to be removed from it."""
        copy = self.path.with_name(self.path.name + DAMAGED)
        replace_file(copy, self.path.read_bytes())
        rest = " and all after it" if len(damaged) == MAX_DAMAGED_LINES else ""
        several = f"lines {', '.join(map(str, damaged[:5]))}{f' … {damaged[-1]}{rest}' if damaged[5:] else ''} are"
        self.warnings.append(
            f"path={str(self.path)!r}: {several if damaged[1:] else f'line {damaged[0]} is'} damaged and removed; "
            f"the file as it was is in {copy.name}"
        )


class FileReporter(DurableReporter, Generic[T]):
    """Writes records to one file of a run's folder; those that the disk refuses are written with the next ones."""

    file_name: ClassVar[str]

    def __init__(self, run_dir: Path | str):
        self._file = RecordFile(Path(run_dir) / self.file_name)
        self._pending: list[T] = []

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    def start(self, run: RunRecord) -> None:
        """Make the folder."""
        self._file.prepare()
        self._pending = []

    def finish(self, summary: Any) -> None:
        self._write()

    def close(self) -> None:
        self._write()

    def sync(self) -> None:
        self._write()
        self._file.sync()

    def pop_warnings(self) -> list[str]:
        taken, self._file.warnings = self._file.warnings, []
        return taken

    def _write(self) -> None:
        """Write the pending records; OSError if that fails."""
        raise NotImplementedError


class CsvReporter(FileReporter[dict[str, Any]]):
    """Writes `metrics.csv`.

    Columns: `generation, slot, uid, parent_uid, env_steps, mutation, architecture, parameters`, `eval/…`, `rollout/…`,
    `hp/…`, `train/…`, then the columns that are equal in all rows of a generation: `population/…` and `time/…` (seconds
    since the start of the run), and `callback/…`, which callbacks track. Columns that appear later are added on the
    right; missing values are empty fields.
    """

    file_name = METRICS
    identity: ClassVar[tuple[str, ...]] = _IDENTITY
    """The first columns."""

    def __init__(self, run_dir: Path | str):
        super().__init__(run_dir)
        self._columns: tuple[str, ...] = ()
        self._first_generation: int | None = None
        """The first generation since the start: rows from it on are those of an attempt that was discarded."""

    def start(self, run: RunRecord) -> None:
        """Make the folder; ConfigurationError if it holds another file of that name."""
        super().start(run)
        self._columns, self._first_generation = (), None
        if self.path.is_file() and not _begins_with(self.path, self.identity):
            raise ConfigurationError(
                f"{self.path} is in the way: it begins with {', '.join(_header(self.path)[:8])} and not "
                f"{', '.join(self.identity)}"
            )

    def generation(self, record: GenerationRecord) -> None:
        """Append the rows of a generation."""
        if self._first_generation is None:
            self._first_generation = record.generation
        self._pending += self._rows(record)
        self._write()

    def _rows(self, record: GenerationRecord) -> list[dict[str, Any]]:
        """Return one row per member."""
        return [_row(record, member) for member in record.members]

    def _write(self) -> None:
        if self._first_generation is not None and not self._columns:
            self._resume_at(self._first_generation)  # also without rows: none may follow
        rows = self._pending
        if not rows:
            return
        wanted = tuple(dict.fromkeys((*self._columns, *(name for row in rows for name in row))))
        if wanted == self._columns:
            self._file.append(_csv(wanted, rows))
        elif self._columns:
            self._file.append("")  # removes what a failed write left of `rows`
            self._rewrite(wanted, [*_table(self.path, self._columns).records, *rows])
        else:
            self._rewrite(wanted, rows)
        self._columns, self._pending = wanted, []

    def _resume_at(self, generation: int) -> None:
        columns = _header(self.path) if self.path.is_file() else ()
        if not columns:
            return
        found = _parse_lines(self.path, lambda line, _: _read_row(columns, _fields(line))["generation"], skip=1)
        if found.damaged:
            self._file.back_up(found.damaged)
        earlier = [span for its, span in zip(found.records, found.spans, strict=True) if its < generation]
        if len(earlier) < len(found.records) or not found.is_intact:
            self._file.keep(skip=1, spans=earlier)
        self._columns = columns

    def _rewrite(self, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
        self._file.replace(_csv(columns, [dict(zip(columns, columns, strict=True)), *rows]))


class UpdatesReporter(CsvReporter):
    """Writes `updates.csv`: the updates of a generation after its end, one row for each member and update.

    Columns: `generation, slot, uid, update, env_steps`, `rollout/ep_rew_mean` (of the episodes since the last update),
    and the metrics of the update as `train/…`.
    """

    file_name = UPDATES
    identity = _UPDATE_IDENTITY

    def _rows(self, record: GenerationRecord) -> list[dict[str, Any]]:
        """Return one row per update."""
        rows = []
        for update in record.updates:
            values = record.generation, update.slot, update.uid, update.number, update.env_steps
            row = {**dict(zip(self.identity, values, strict=True)), "rollout/ep_rew_mean": update.train_return}
            rows.append(row | {f"train/{name}": value for name, value in update.metrics.items()})
        return rows


class LineageReporter(FileReporter[OffspringRecord]):
    """Writes `lineage.jsonl`: every `OffspringRecord` as one JSON object; a number that is not finite is null."""

    file_name = LINEAGE
    _is_new = False
    """Whether the run has begun and has written nothing."""
    _resumed_at = 0
    """The last generation of the checkpoint that the run continues from."""

    def on_run_begin(self, run: RunContext) -> None:
        """Begin at the generation of the checkpoint, or at 0."""
        self._resumed_at = run.generation
        super().on_run_begin(run)

    def start(self, run: RunRecord) -> None:
        super().start(run)
        self._is_new = True

    def offspring(self, births: tuple[OffspringRecord, ...]) -> None:
        """Append one line per offspring."""
        self._pending += births
        self._write()

    def _write(self) -> None:
        if self._is_new and self.path.is_file():
            self._resume_at(self._pending)
        self._is_new = False
        if self._pending:
            self._file.append("".join(map(_line, self._pending)))
            self._pending = []

    def _resume_at(self, births: Sequence[OffspringRecord]) -> None:
        """Remove what a killed or diverged attempt wrote after the checkpoint that the run continues from.

        A run that ended was saved before its last generation evolved, but after members that diverged in it had been
        replaced: those births have smaller uids than the new ones. Without selection there may be no new births.
        """
        found = _parse_lines(self.path, _read_place)
        if found.damaged:
            self._file.back_up(found.damaged)
        generation = min([self._resumed_at + 1, *(birth.generation for birth in births)])
        new = [birth.uid for birth in births if not birth.survives]
        first_uid = min(new, default=1 + max((birth.uid for birth in births), default=0))
        replaced_at = self._resumed_at if self._resumed_at == generation else -1
        earlier = [
            span
            for (its, survives, uid), span in zip(found.records, found.spans, strict=True)
            if its < generation or (its == replaced_at and not survives and uid < first_uid)
        ]
        if len(earlier) < len(found.records) or not found.is_intact:
            self._file.keep(earlier, skip=0)


def read_metrics(run_dir: Path | str) -> list[dict[str, Any]]:
    """Return the rows of a run's `metrics.csv`: the first columns as whole numbers or text, others as float (or nan).

    A hyperparameter that is a choice, and no number, is text.

    Raises:
        ConfigurationError: there is no such file, or it is not a metrics file.
        CheckpointError: the file is damaged; names the line, the column, the value and what is allowed.
    """
    return _read_table(_existing(Path(run_dir) / METRICS), _IDENTITY)


def read_updates(run_dir: Path | str) -> list[dict[str, Any]]:
    """Return the rows of a run's `updates.csv`: the first columns as whole numbers, others as float (or nan).

    Raises:
        ConfigurationError: there is no such file, because the run did not log its updates; or it is another file.
        CheckpointError: as `read_metrics`.
    """
    path = Path(run_dir) / UPDATES
    if not path.exists():
        raise ConfigurationError(f"{path} does not exist: only a run with run.log_every: update writes it")
    return _read_table(path, _UPDATE_IDENTITY)


def _read_table(path: Path, identity: tuple[str, ...]) -> list[dict[str, Any]]:
    table = csv.reader(safe_folder.read_lines(path))
    try:
        columns = tuple(next(table, ()))
        if columns[: len(identity)] == identity and len(set(columns)) == len(columns) <= MAX_COLUMNS:
            rows: list[dict[str, Any]] = []
            first_known: dict[str, Any] = {}
            for fields in table:
                rows.append(_read_row(columns, fields))
                _check_kinds(first_known, rows[-1])
            return rows
    except (csv.Error, ValueError) as error:
        raise CheckpointError(f"path={str(path)!r}, line {table.line_num}: {error!s:.300}") from error
    raise ConfigurationError(
        f"{path} is no metrics file of a run: its first columns must be {', '.join(identity)}, and its columns at "
        f"most {MAX_COLUMNS} different ones"
    )


def read_lineage(run_dir: Path | str) -> tuple[OffspringRecord, ...]:
    """Return the records of a run's `lineage.jsonl`, oldest first.

    Raises:
        ConfigurationError: there is no such file.
        CheckpointError: the file is damaged; names the line, the field, the value and what is allowed.
    """
    path = _existing(Path(run_dir) / LINEAGE)
    lines = enumerate(safe_folder.read_lines(path), start=1)
    return tuple(read_birth(line, f"path={str(path)!r}, line {n}") for n, line in lines)


def read_birth(line: str, where: str) -> OffspringRecord:
    """Parse a line of `lineage.jsonl`; `where` names the line in a CheckpointError."""
    return OffspringRecord.from_json(safe_folder.parse_json(line.encode(), where), where)


def _read_place(line: str, where: str) -> tuple[int, bool, int]:
    """Return the numbers of a valid line of `lineage.jsonl` by which a resumed run keeps it, as records take memory."""
    birth = read_birth(line, where)
    return birth.generation, birth.survives, birth.uid


def begins_as_metrics(path: Path) -> bool:
    """Return whether a file is empty or begins as `metrics.csv` does."""
    return _begins_with(path, _IDENTITY)


def begins_as_updates(path: Path) -> bool:
    """Return whether a file is empty or begins as `updates.csv` does."""
    return _begins_with(path, _UPDATE_IDENTITY)


def _begins_with(path: Path, identity: tuple[str, ...]) -> bool:
    columns = _header(path)
    return not columns or columns[: len(identity)] == identity


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


class ParsedLines(NamedTuple, Generic[T]):
    """The content of a file that a resumed run continues."""

    records: list[T]
    spans: list[tuple[int, int]]
    """Where each record's line begins and ends in the file, in bytes."""
    damaged: list[int]
    """Numbers of the lines that are not records."""
    is_intact: bool
    """Whether every byte of the file is part of a record."""


def _parse_lines(path: Path, parse: Callable[[str, str], T], *, skip: int = 0) -> ParsedLines[T]:
    """Parse each line of a file but the first `skip`, and leave out damaged ones.

    Parsing stops after `MAX_DAMAGED_LINES` of them and leaves out the rest, which the copy of the file has. A killed
    process and a full disk leave a partial last line, a power cut leaves NUL bytes at the end. Neither was written
    completely, so neither counts as damage.

    Raises:
        CheckpointError: the file is missing, or has more than `MAX_CONTINUED_BYTES`.
    """
    found: ParsedLines[T] = ParsedLines([], [], [], is_intact=True)
    with safe_folder.open_regular(path, limit=safe_folder.MAX_CONTINUED_BYTES) as file:
        start = 0
        for number, line in enumerate(_whole_lines(file), start=1):
            if not line.endswith(b"\n"):
                return found._replace(is_intact=False)
            span, start = (start, file.tell()), file.tell()
            if number <= skip:
                continue
            try:
                text = line[:-1].decode("utf-8", errors="replace")
                found.records.append(parse(text, f"path={str(path)!r}, line {number}"))
                found.spans.append(span)
            except (CheckpointError, ValueError):
                found.damaged.append(number)
                if len(found.damaged) == MAX_DAMAGED_LINES:
                    break
    return found if not found.damaged else found._replace(is_intact=False)


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file, and one without content for a line that is too long to be a record."""
    while line := file.readline(safe_folder.MAX_LINE_BYTES):
        while len(line) == safe_folder.MAX_LINE_BYTES and not line.endswith(b"\n"):
            rest = file.readline(safe_folder.MAX_LINE_BYTES)
            line = b"\n" if rest.endswith(b"\n") else rest
        yield line


def _table(path: Path, columns: tuple[str, ...]) -> ParsedLines[dict[str, str]]:
    """The rows of `metrics.csv` as text."""

    def parse(line: str, where: str) -> dict[str, str]:
        fields = _fields(line)
        _read_row(columns, fields)
        return dict(zip(columns, fields, strict=True))

    return _parse_lines(path, parse, skip=1)


def _fields(line: str) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error:  # NUL bytes, or a field that is too long
        return []


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
    """Parse a row of `metrics.csv`; ValueError names the field that is wrong."""
    if len(fields) != len(columns):
        raise ValueError(f"it has {len(fields)} fields; allowed is one for each of {len(columns)} columns")
    row: dict[str, Any] = {
        name: text if name in _TEXT else _number(name, text) for name, text in zip(columns, fields, strict=True)
    }
    for name in _WHOLE & row.keys():
        if not row[name].is_integer():
            raise ValueError(f"{name}={row[name]!r}; allowed are whole numbers")
        row[name] = int(row[name])
    return row


def _check_kinds(first_known: dict[str, Any], row: Mapping[str, Any]) -> None:
    """Raise ValueError for text in a column that begins with numbers; a choice may be among numbers and none.

    `first_known` receives the first value of each hyperparameter; a member without it has an empty field.
    """
    for name, value in row.items():
        if not name.startswith("hp/") or (isinstance(value, float) and math.isnan(value)):
            continue
        first = first_known.setdefault(name, value)
        if isinstance(value, str) and value != "none" and not isinstance(first, str):
            raise ValueError(f"{name}={value!r:.100}; allowed are numbers")


def _number(name: str, text: str) -> float | str:
    try:
        return float(text) if text else math.nan
    except ValueError:
        if name.startswith("hp/") and text.isprintable():
            return text
        raise ValueError(f"{name}={text!r:.100}; allowed are numbers") from None
