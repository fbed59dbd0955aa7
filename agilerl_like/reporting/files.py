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

from agilerl_like.errors import ConfigurationError
from agilerl_like.reporting.measures import member_measures, population_measures
from agilerl_like.reporting.records import BirthRecord, GenerationRecord, MemberRecord, RunRecord
from agilerl_like.reporting.reporter import Reporter

METRICS = "metrics.csv"
LINEAGE = "lineage.jsonl"
_IDENTITY = ("generation", "slot", "uid", "parent_uid", "env_steps", "mutation", "architecture", "parameters")
_TEXT = frozenset({"mutation", "architecture"})


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
    """Return the rows of a run's `metrics.csv`: `mutation` and `architecture` as text, all else as float (or nan)."""
    path = _existing(Path(run_dir) / METRICS)
    if _header(path)[: len(_IDENTITY)] != _IDENTITY:
        raise ConfigurationError(
            f"{path} is no metrics file of a run: its first columns must be {', '.join(_IDENTITY)}"
        )
    return [{name: text if name in _TEXT else _number(text) for name, text in row.items()} for row in _rows(path)]


def read_lineage(run_dir: Path | str) -> tuple[BirthRecord, ...]:
    """Return the births of a run's `lineage.jsonl`, oldest first."""
    return tuple(BirthRecord.from_json(json.loads(line)) for line in _lines(_existing(Path(run_dir) / LINEAGE)))


def _existing(path: Path) -> Path:
    if not path.is_file():
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


def _lines(path: Path) -> list[str]:
    # A process that is killed, or a disk that fills, leaves a last line without its end: that line was never written.
    return path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]


def _ends_with_newline(path: Path) -> bool:
    return path.read_bytes()[-1:] in (b"", b"\n")


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


def _number(text: str | None) -> float:
    return float(text) if text else math.nan
