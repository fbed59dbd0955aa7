"""The records of a run folder together: rows of metrics.csv, lineage.jsonl, config.yaml and run.json.

A run that is still running, was killed, or was written by an older version is read as far as its files go; what is
missing is a note.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from agilerl_like.errors import CheckpointError, ConfigurationError
from agilerl_like.hpo.schedules import SCHEDULED
from agilerl_like.reporting import formatting
from agilerl_like.reporting.files import LINEAGE, METRICS, read_lineage, read_metrics
from agilerl_like.reporting.metrics import entries
from agilerl_like.reporting.records import NO_PARENT, OffspringRecord, rank
from agilerl_like.storage import safe_folder

CONFIG, RUN_DOCUMENT = "config.yaml", "run.json"
BROKEN_OFF = "broken off"
"""Outcome of a run that an error or a lost rank has ended."""
FITNESS = "eval/mean_reward"
EXPECTED = ("population/best_ever", "population/target", "time/total_timesteps", "time/time_elapsed")
"""Columns of today's metrics.csv that figures use; without one, they leave that part out."""


@dataclass(frozen=True)
class RunHistory:
    """The rows of a run's members, their order of descent, and the other records of its folder."""

    folder: Path
    rows: list[dict[str, Any]]
    births: tuple[OffspringRecord, ...] = ()
    config: str = ""
    """The text of config.yaml."""
    document: dict[str, Any] = field(default_factory=dict)
    """The content of run.json."""
    notes: tuple[str, ...] = ()
    """What the folder lacks, or why it could not be read."""
    is_running: bool = False
    """Whether the run was still running when its files were read."""

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.folder.resolve().name

    @cached_property
    def generations(self) -> list[tuple[int, int]]:
        """First row and row behind the last of each generation."""
        rows = self.rows
        starts = [i for i, row in enumerate(rows) if i == 0 or row["generation"] != rows[i - 1]["generation"]]
        return list(zip(starts, [*starts[1:], len(rows)], strict=True))

    @cached_property
    def before(self) -> list[int]:
        """For each row the row of the same member, or else of its parent, in the generation before; -1: none.

        The row before that of a clone of the best agent is that agent's, of an earlier generation. A parent without a
        row before, which took its slot in the generation in which it was cloned, has that of its own parent.
        """
        last_seen: dict[float, int] = {}
        before: list[int] = []
        row_of = {(row["generation"], row["uid"]): number for number, row in enumerate(self.rows)}
        for start, stop in self.generations:
            # parents are looked up before the new members of their slots are added
            own = self.rows[start:stop]
            before += [self._row_before(row, last_seen, row_of) for row in own]
            last_seen.update((row["uid"], index) for index, row in enumerate(own, start))
        return before

    def _row_before(
        self, row: dict[str, Any], last_seen: dict[float, int], row_of: dict[tuple[float, float], int]
    ) -> int:
        uid, parent = row["uid"], row["parent_uid"]
        while uid not in last_seen and uid != NO_PARENT:
            birth = self._births_by_uid.get(uid)
            if birth is not None and birth.parent_generation is not None:
                return row_of.get((birth.parent_generation, birth.parent_uid), -1)
            uid = parent
            parent = self._births_by_uid[uid].parent_uid if uid in self._births_by_uid else NO_PARENT
        return last_seen.get(uid, -1)

    @property
    def sizes(self) -> str:
        """The number of members, `8`; `8 to 4` if members were removed in the course of the run."""
        first, last = (stop - start for start, stop in (self.generations[0], self.generations[-1]))
        return f"{first}" if first == last else f"{first} to {last}"

    @property
    def is_rated(self) -> bool:
        """Whether the fitness is a rating, of which `eval/std_reward` is the standard error."""
        return self.fitness == "rating"

    @property
    def fitness(self) -> str:
        """The setting `training.fitness`."""
        found = re.search(r"^training:\n(?: .*\n)*?  fitness: (\S+)$", self.config, re.MULTILINE)
        return found[1] if found else "return"

    def is_birth(self, row: int) -> bool:
        """Whether a row is the first of a member that has a parent."""
        return self.before[row] >= 0 and self.rows[self.before[row]]["uid"] != self.rows[row]["uid"]

    @cached_property
    def _births_by_uid(self) -> dict[float, OffspringRecord]:
        return {birth.uid: birth for birth in self.births if not birth.survives}

    def births_of(self, row: int) -> list[OffspringRecord]:
        """Return the records of a birth, oldest first: of ancestors without a row, then of the row's member.

        It is empty without records, and for a row that is no birth.
        """
        found: list[OffspringRecord] = []
        uid, origin = self.rows[row]["uid"], self.rows[self.before[row]]["uid"]
        while self.is_birth(row) and uid != origin and uid in self._births_by_uid:
            found.insert(0, self._births_by_uid[uid])
            uid = found[0].parent_uid
        return found

    def mutations_of(self, row: int) -> str:
        """Return the mutations of the row's member at its birth as text; without its record, their names."""
        births, name = self.births_of(row), self.rows[row]["mutation"]
        if not births:
            return "" if name == "None" else name
        return ", ".join(filter(None, (formatting.mutation(its) for birth in births for its in birth.mutations)))

    @cached_property
    def best_row(self) -> int:
        """The row of the best agent; without the columns that name it, the row of the highest fitness."""
        last = self.rows[-1]
        best = last.get("population/best_ever_uid"), last.get("population/best_ever_generation")
        for number, row in enumerate(self.rows):
            if (row["uid"], row["generation"]) == best:
                return number
        ranks = [rank(row.get(FITNESS, math.nan), row["uid"], row["generation"]) for row in self.rows]
        return ranks.index(max(ranks))

    @property
    def best_is_confirmed(self) -> bool:
        """Whether the best agent has played fresh episodes, without which its fitness is that which selected it."""
        return math.isfinite(self.rows[-1].get("population/best_ever_standard_error", math.nan))

    @cached_property
    def lineage(self) -> list[int]:
        """The rows that lead to the best agent, oldest first."""
        lineage = [self.best_row]
        while self.before[lineage[-1]] >= 0:
            lineage.append(self.before[lineage[-1]])
        return lineage[::-1]

    @cached_property
    def surviving(self) -> list[bool]:
        """Whether each row leads to a member of the last generation."""
        kept = [False] * len(self.rows)
        for start in range(*self.generations[-1]):
            while start >= 0 and not kept[start]:
                kept[start], start = True, self.before[start]
        return kept

    @property
    def hyperparameters(self) -> list[str]:
        """The columns of hyperparameters."""
        return [name for name in self.rows[0] if name.startswith("hp/")]

    def active_hyperparameters(self, row: int) -> dict[str, Any]:
        """Return the hyperparameters of a row by name, without those whose condition (`when`) is not met."""
        values = {name.removeprefix("hp/"): self.rows[row][name] for name in self.hyperparameters}
        return {name: value for name, value in values.items() if isinstance(value, str) or math.isfinite(value)}

    @cached_property
    def scheduled(self) -> list[str]:
        """The columns of hyperparameters that a schedule changed, which are means over each member's updates."""
        numbers = [name for name in self.hyperparameters if name[3:] in SCHEDULED and not self.categories(name)]
        pairs = [(name, f"train/{name[3:]}") for name in numbers]
        columns = [(self.column(own), self.column(trained), trained) for own, trained in pairs]
        return [name for own, trained, name in columns if any(map(formatting.is_scheduled, own, trained))]

    def categories(self, name: str) -> list[Any]:
        """Return the different values of a hyperparameter that is a choice, numbers first; [] if all are numbers."""
        values = {row.get(name, math.nan) for row in self.rows}
        if not any(isinstance(value, str) for value in values):
            return []
        known = [value for value in values if isinstance(value, str) or math.isfinite(value)]
        return sorted(known, key=lambda value: (isinstance(value, str), value))

    def column(self, name: str) -> np.ndarray:
        """Return a number of every row; nan without the column. For a choice it is the place among `categories`."""
        values = [row.get(name, math.nan) for row in self.rows]
        places = {value: place for place, value in enumerate(self.categories(name))}
        return np.array([places.get(value, math.nan) for value in values] if places else values, dtype=float)

    def per_generation(self, name: str) -> np.ndarray:
        """Return a number that is equal in all rows of a generation, by generation."""
        return self.column(name)[[start for start, _ in self.generations]]

    @property
    def outcome(self) -> str:
        """Why the run ended; "running", "killed" or "unknown" if run.json does not have it."""
        state = "running" if self.is_running else "killed" if self.document else "unknown"
        return state if self.is_running else str(self.document.get("outcome") or state)


def read_history(run_dir: Path | str, *, is_running: bool = False) -> RunHistory:
    """Read the records of a run folder.

    Raises:
        ConfigurationError: the folder is no run's, or no generation of it has ended.
        CheckpointError: metrics.csv is damaged.
    """
    folder = Path(run_dir)
    if not folder.is_dir():
        raise ConfigurationError(f"run={str(folder)!r} does not exist; allowed is the folder of a run")
    if not (folder / METRICS).exists():
        state = "the run is still in its first generation" if is_running else "no generation of it has ended"
        if not (folder / CONFIG).exists():
            state = f"it is no folder of a run, which has {CONFIG} and {METRICS}"
        raise ConfigurationError(f"run={str(folder)!r} has no {METRICS}: {state}")
    rows = read_metrics(folder)
    if not rows:
        raise ConfigurationError(f"{folder / METRICS} has no rows yet: they are written after each generation")
    notes = ["The run is still running: this is what it has written so far."] if is_running else []
    if missing := [name for name in EXPECTED if name not in rows[0]]:
        notes.append(f"{METRICS} has an older schema without {', '.join(missing)}; parts that need them are left out.")
    births: Sequence[OffspringRecord] = ()
    try:
        births = read_lineage(folder)
    except (ConfigurationError, CheckpointError) as error:
        notes.append(f"{LINEAGE} is missing or has another schema; mutations are known by name only ({error}).")
    config = _text(folder / CONFIG)
    if not config:
        notes.append(f"{CONFIG} is missing: the settings of the run are not known.")
    document = run_document(folder / RUN_DOCUMENT)
    if not document:
        notes.append(
            f"{RUN_DOCUMENT} is missing (runs of older versions have none): command and versions are not known."
        )
    return RunHistory(folder, split_arrays(rows), tuple(births), config, document, tuple(notes), is_running)


def split_arrays(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with a column for each number of a hyperparameter that is an array: `hp/betas[0]`, `hp/betas[1]`.

    As text, such as "[0.9, 0.999]", it would be a choice with as many values as the run has tried.
    """
    sizes: dict[str, int] = {}
    for name in (name for name in rows[0] if name.startswith("hp/")):
        values = {row[name] for row in rows}
        lengths = {len(_numbers_of(value)) for value in values if isinstance(value, str) and value != "none"}
        if len(lengths) == 1:
            sizes[name] = max(lengths)
    if not any(sizes.values()):
        return rows
    return [
        {column: its for name, value in row.items() for column, its in _split(name, value, sizes.get(name, 0)).items()}
        for row in rows
    ]


def _split(name: str, value: Any, size: int) -> dict[str, Any]:
    """Return the numbers of an array of `size` numbers by column, nan if it is inactive; another value as it is."""
    if not size:
        return {name: value}
    return entries(name, _numbers_of(value) or [math.nan] * size)


def _numbers_of(value: Any) -> list[float]:
    """Return the numbers of an array that was written as text; [] for any other value."""
    if not (isinstance(value, str) and value.startswith("[") and value.endswith("]")):
        return []
    try:
        return [*map(float, value[1:-1].split(", "))]
    except ValueError:
        return []


def _text(path: Path) -> str:
    try:
        return safe_folder.read_regular(path, safe_folder.MAX_TEXT_BYTES).decode("utf-8", errors="replace")
    except (CheckpointError, OSError):
        return ""


def run_document(path: Path) -> dict[str, Any]:
    """Return the content of run.json; {} if it is missing or damaged."""
    try:
        document = json.loads(_text(path) or "{}")
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
