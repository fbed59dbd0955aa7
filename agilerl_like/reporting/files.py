"""The two files that every run leaves: `metrics.csv`, a row a member, and `lineage.jsonl`, a line a birth.

Both are complete after every generation, whatever happens next, and can be gone on with: a run that is resumed from
generation 10 replaces what an earlier process had written of later generations, and a line that was cut off is dropped.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from pathlib import Path
from typing import Any

from agilerl_like import storage
from agilerl_like.errors import CheckpointError, ConfigurationError
from agilerl_like.reporting.measures import member_measures, population_measures
from agilerl_like.reporting.records import BirthRecord, GenerationRecord, MemberRecord, RunRecord
from agilerl_like.reporting.reporter import Reporter

METRICS = "metrics.csv"
LINEAGE = "lineage.jsonl"
_IDENTITY = ("generation", "slot", "uid", "parent_uid", "env_steps", "mutation", "architecture", "parameters")
_TEXT = frozenset({"mutation", "architecture"})
_WHOLE = tuple(name for name in _IDENTITY if name not in _TEXT)
MAX_COLUMNS = 1000
"""Of `metrics.csv`."""


class CsvReporter(Reporter):
    """Writes `metrics.csv`.

    Columns: what the member is (`generation, slot, uid, parent_uid, env_steps, mutation, architecture, parameters`),
    `eval/…`, `rollout/…`, `hp/…`, `train/…`, then what is the same in all rows of a generation: `population/…` and
    `time/…` (seconds are since the start of the run). A column that appears later is added on the right; where a member
    has no such number the field is empty.
    """

    def __init__(self, run_dir: Path | str):
        self.path = Path(run_dir) / METRICS
        self._columns: tuple[str, ...] = ()

    def start(self, run: RunRecord) -> None:
        """Make the folder; refuse a file of that name that is not one of ours."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._columns = ()
        _refuse_irregular(self.path)
        if self.path.is_file():
            header = _header(self.path)
            if header and header[: len(_IDENTITY)] != _IDENTITY:
                raise ConfigurationError(
                    f"{self.path} is in the way: it begins with {', '.join(header[:8])} and not {', '.join(_IDENTITY)}"
                )

    def generation(self, record: GenerationRecord) -> None:
        """Append one row a member."""
        rows = [_row(record, member) for member in record.members]
        if not self._columns:
            self._resume_at(record.generation)
        wanted = tuple(dict.fromkeys((*self._columns, *(name for row in rows for name in row))))
        if wanted == self._columns:
            with self.path.open("a", encoding="utf-8", newline="") as file:
                file.write(_csv(wanted, rows))
        elif self._columns:
            self._rewrite(wanted, [*_rows(self.path), *rows])
        else:
            with self.path.open("w", encoding="utf-8", newline="") as file:
                file.write(_csv(wanted, [dict(zip(wanted, wanted, strict=True)), *rows]))
        self._columns = wanted

    def _resume_at(self, generation: int) -> None:
        if not self.path.is_file():
            return
        self._columns = _header(self.path)
        if not self._columns:
            return
        rows = _rows(self.path)
        kept = [row for row in rows if int(row["generation"]) < generation]
        if len(kept) < len(rows) or not _ends_with_newline(self.path):
            self._rewrite(self._columns, kept)

    def _rewrite(self, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
        replace_text(self.path, _csv(columns, [dict(zip(columns, columns, strict=True)), *rows]))


class LineageReporter(Reporter):
    """Writes `lineage.jsonl`: every `BirthRecord` as one JSON object; a number that is not finite is null."""

    def __init__(self, run_dir: Path | str):
        self.path = Path(run_dir) / LINEAGE
        self._fresh = True

    def start(self, run: RunRecord) -> None:
        """Make the folder."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _refuse_irregular(self.path)
        self._fresh = True

    def births(self, births: tuple[BirthRecord, ...]) -> None:
        """Append one line a birth."""
        if not births:
            return
        if self._fresh and self.path.is_file():
            self._resume_at(min(birth.generation for birth in births))
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(_line(birth) for birth in births))
        self._fresh = False

    def _resume_at(self, generation: int) -> None:
        lines = _lines(self.path)
        kept = [line for line in lines if json.loads(line)["generation"] < generation]
        if len(kept) < len(lines) or not _ends_with_newline(self.path):
            replace_text(self.path, "".join(line + "\n" for line in kept))


def read_metrics(run_dir: Path | str) -> list[dict[str, Any]]:
    """Return the rows of a run's `metrics.csv`: `mutation` and `architecture` as text, all else as float (or nan).

    Raises:
        ConfigurationError: there is no such file, or it is not that of a run.
        CheckpointError: the file is damaged: names the line, the column, the value and what is allowed.
    """
    path = _existing(Path(run_dir) / METRICS)
    table = csv.reader(storage.read_lines(path))
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


def read_lineage(run_dir: Path | str) -> tuple[BirthRecord, ...]:
    """Return the births of a run's `lineage.jsonl`, oldest first.

    Raises:
        ConfigurationError: there is no such file.
        CheckpointError: the file is damaged: names the line, the field, the value and what is allowed.
    """
    path = _existing(Path(run_dir) / LINEAGE)
    return tuple(read_birth(line, f"path={str(path)!r}, line {n}") for n, line in enumerate(_lines(path), start=1))


def read_birth(line: str, where: str) -> BirthRecord:
    """Return the birth that a line of `lineage.jsonl` describes; `where` is what a CheckpointError calls the line."""
    return BirthRecord.from_json(storage.parse_json(line.encode(), where), where)


def _existing(path: Path) -> Path:
    if not path.exists():
        raise ConfigurationError(
            f"{path} does not exist; give the folder of a run, which holds {METRICS} and {LINEAGE}"
        )
    return path


def _row(record: GenerationRecord, member: MemberRecord) -> dict[str, Any]:
    identity = {"generation": record.generation} | {name: getattr(member, name) for name in _IDENTITY[1:]}
    return {**identity, **member_measures(member), **population_measures(record)}


def _csv(columns: tuple[str, ...], rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    csv.DictWriter(text, columns, restval="", lineterminator="\n").writerows(rows)
    return text.getvalue()


def _header(path: Path) -> tuple[str, ...]:
    lines = _lines(path)
    return tuple(next(csv.reader(lines[:1]), ()))


def _rows(path: Path) -> list[dict[str, Any]]:
    return list(csv.DictReader(_lines(path)))


def _refuse_irregular(path: Path) -> None:
    """Raise CheckpointError if a folder or a FIFO is where a file is to be written: to open a FIFO would block."""
    if path.is_dir() or path.is_fifo():
        raise CheckpointError(f"path={str(path)!r} is a folder or a FIFO; {storage.REGULAR}")


def _lines(path: Path) -> list[str]:
    # A process that is killed, or a disk that fills, leaves a last line without its end: that line was never written.
    return [*storage.read_lines(path)]


def _ends_with_newline(path: Path) -> bool:
    with storage.open_regular(path, follow_links=True) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 1))
        return file.read(1) in (b"", b"\n")


def replace_text(path: Path, text: str) -> None:
    """Write a file anew, so that whoever reads it finds all of the old text or all of the new."""
    beside = path.with_name(path.name + ".new")
    try:
        beside.write_text(text, encoding="utf-8", newline="\n")
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def _line(birth: BirthRecord) -> str:
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
