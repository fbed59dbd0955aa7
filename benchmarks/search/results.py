"""The rows of finished runs, one line of JSON each, in a file that several benchmarks may write at once."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.search.runner import Row

FOLDER = Path(__file__).resolve().parents[1] / "results"
ROWS = FOLDER / "search.jsonl"
REPLAYS = FOLDER / "search_replays.jsonl"  # beside the rows, as `--rows` places them


def append(path: Path, line: str) -> None:
    """Add one line, whole or not at all: what a killed writer left of a line is cut off first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        whole = file.read().rfind(b"\n") + 1
        file.truncate(whole)
        file.write(line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def lines(path: Path) -> Iterable[str]:
    """Return the whole lines of a file, none where there is no such file."""
    text = path.read_text() if path.is_file() else ""
    return text[: text.rfind("\n") + 1].splitlines()


def rows(path: Path = ROWS) -> list[Row]:
    """Return all rows that count: of a case that ran twice, the one of the later version, or the later one."""
    found = sorted((row for row in map(Row.from_json, lines(path)) if row.counts), key=lambda row: row.method_version)
    return list({row.key: row for row in found}.values())


def replays(rows: Iterable[Row], path: Path = REPLAYS) -> dict[str, dict[str, Any]]:
    """Return the replays of these runs by the key of the run, without those of earlier runs of the same case.

    The version and the result identify a run of a case; a replay without a version is of an early one.
    """
    found_by_key = {row.key: (row.method_version, row.test_return) for row in rows}
    every = {json.dumps(its["case"], sort_keys=True): its for its in map(json.loads, lines(path))}
    return {key: its for key, its in every.items() if (its.get("version"), its["found"]) == found_by_key.get(key)}
