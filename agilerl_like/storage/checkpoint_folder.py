"""The checkpoints of one run: folders from which it goes on as if nothing had happened, few of which are kept.

There is no pointer to the newest and no index: a folder is a checkpoint if all of it is as it was written, and what
decides whether it is kept stands in itself.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from agilerl_like.errors import CheckpointError, ConfigurationError
from agilerl_like.storage import safe_folder
from agilerl_like.storage.durable_io import replace_file
from agilerl_like.storage.validation import Finite, NonNegativeInt, validate_record

KIND = "checkpoint"
INFO_DOCUMENT = "milestone"
"""Name of the document that says what a checkpoint is among the others."""
FOLDER = re.compile(r"gen-(\d{6,})")
SET_ASIDE = "aside-"
"""Prefix of the name of a folder that is kept and not used: a run went back behind it, or it lacks its manifest."""
MARKER = ".checkpointed"
"""A file beside the folder of checkpoints: the run has written one. It stays where the checkpoints are moved away."""
MARKER_TEXT = b"This run has written checkpoints.\n"
FREE_SPACE_FACTOR = 2.5
"""Free space that a run should have, in checkpoints."""


class Checkpoint(NamedTuple):
    """What was written at the end of a generation; read when it is asked for (see `safe_folder.read_folder`)."""

    path: Path
    generation: int
    documents: Mapping[str, Any]
    tensors: Mapping[str, Mapping[str, Tensor]]


class CheckpointInfo(NamedTuple):
    """What decides whether a checkpoint is kept."""

    generation: int
    ordinal: int
    """How many checkpoints the run had written with this one."""
    score: float | None
    """Fitness of its best member; None if that is no number."""

    @property
    def rank(self) -> tuple[float, int]:
        """Higher is better; of equal ones the first."""
        return -math.inf if self.score is None else self.score, -self.ordinal

    @property
    def is_power_of_two(self) -> bool:
        """Whether it is the first, second, fourth, eighth and so on."""
        return self.ordinal & (self.ordinal - 1) == 0

    @classmethod
    def of(cls, documents: Mapping[str, Any], path: Path) -> CheckpointInfo:
        """Read a checkpoint's own.

        Raises:
            CheckpointError: there is none.
        """
        where = f"path={str(path / f'{INFO_DOCUMENT}.json')!r}"
        told = validate_record(_InfoDocument, documents.get(INFO_DOCUMENT), where)
        return cls(told.generation, told.ordinal, told.score)


@dataclass(frozen=True)
class _InfoDocument:
    """What the document of a milestone must be."""

    generation: NonNegativeInt
    ordinal: NonNegativeInt
    score: Finite | None


def read_checkpoint(path: Path) -> Checkpoint:
    """Read one checkpoint's folder, wherever it lies.

    Raises:
        CheckpointError: it is missing, damaged, foreign, or of a schema that this version does not read.
    """
    documents, tensors = safe_folder.read_folder(path, KIND)
    return Checkpoint(path, CheckpointInfo.of(documents, path).generation, documents, tensors)


def has_marker(run_dir: Path) -> bool:
    """Return whether the run of this folder has written a checkpoint, wherever its checkpoints are now."""
    marker = run_dir / MARKER
    return marker.is_file() and not marker.is_symlink() and marker.read_bytes() == MARKER_TEXT


def remove_marker(run_dir: Path) -> None:
    """Remove the mark of an earlier run; a file of that name which no run has written stays."""
    if has_marker(run_dir):
        (run_dir / MARKER).unlink()


def _generation_of(path: Path) -> int:
    return int(path.name.removeprefix("gen-"))


class Checkpoints:
    """The checkpoints of one run, in folders gen-000010, gen-000020 and so on.

    Kept are the last `keep`, the one with the best score, and the first, second, fourth, eighth … that was written.

    Raises:
        ConfigurationError: `keep` is below 1.
    """

    def __init__(self, folder: Path, *, keep: int = 3) -> None:
        if keep < 1:
            raise ConfigurationError(f"keep={keep!r} must be at least 1")
        self.folder, self.keep = folder, keep
        self._warned = False

    def write(
        self,
        generation: int,
        documents: Mapping[str, Any],
        tensors: Mapping[str, Mapping[str, Tensor]],
        *,
        score: float,
    ) -> Path:
        """Write a checkpoint and, once it is safe, remove those that need not be kept; return its folder.

        `score` is the fitness of the best member. A checkpoint of the same generation is replaced. Those of later
        generations, which this run has not reached, are renamed (`SET_ASIDE`): `newest` no longer finds them, and nothing
        removes them.

        Raises:
            CheckpointError: the disk does not take it; all former checkpoints are as they were.
        """
        path = self.folder / f"gen-{generation:06d}"
        ordinal = 1 + max((its.ordinal for its in self._infos() if its.generation < generation), default=0)
        info = CheckpointInfo(generation, ordinal, score if math.isfinite(score) else None)
        if path.is_dir() and not (path / safe_folder.MANIFEST).is_file():  # what is left of one, which cannot be read
            self._set_aside(path)
        safe_folder.write_folder(path, KIND, {**documents, INFO_DOCUMENT: info._asdict()}, tensors)
        for later in self._folders():
            if _generation_of(later) > generation:
                self._set_aside(later)
        self._prune(generation)
        return path

    def newest(self, warn: Callable[[str], None]) -> Checkpoint | None:
        """The newest checkpoint of which every byte is as it was written; None if there are no checkpoints.

        If newer ones are not, `warn` is told once, with what is wrong with the newest.

        Raises:
            CheckpointError: there are some, and none is whole; one is of a schema that this version does not read; or
                the run has written some, and all are gone.
        """
        damage: CheckpointError | None = None
        for path in reversed(self._folders()):
            try:
                safe_folder.verify_folder(path, KIND)
                checkpoint = read_checkpoint(path)
            except safe_folder.UnknownSchemaError:  # it is not damaged, and to go on from an older one would waste it
                raise
            except CheckpointError as error:
                damage = damage or error
                continue
            if damage is not None:
                warn(f"{damage}; the run goes on from {path.name}, the newest checkpoint that is whole")
            return checkpoint
        if damage is not None:
            raise CheckpointError(f"path={str(self.folder)!r} has no checkpoint that is whole; of the newest: {damage}")
        if has_marker(self.folder.parent):
            raise CheckpointError(
                f"path={str(self.folder)!r} has no checkpoint, though this run has written some, so it cannot go on; "
                "put them back, or begin afresh with overwrite=True (train, --run.overwrite true) instead of resume"
            )
        return None

    def write_marker(self) -> None:
        """Note durably that the run has written a checkpoint (see `MARKER`).

        Raises:
            CheckpointError: the disk does not take it.
        """
        marker = self.folder.with_name(MARKER)
        if not os.path.lexists(marker):
            try:
                replace_file(marker, MARKER_TEXT)
            except OSError as error:
                raise CheckpointError(f"path={str(marker)!r} could not be written ({error})") from error

    def warn_if_disk_nearly_full(self, warn: Callable[[str], None]) -> None:
        """Warn, once, if the disk has not room for a few more checkpoints like the last one."""
        folders = self._folders()
        if self._warned or not folders:
            return
        needed = int(FREE_SPACE_FACTOR * sum(file.lstat().st_size for file in folders[-1].iterdir()))
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            self._warned = True
            warn(f"path={str(self.folder)!r}: the next checkpoints need {needed} bytes; the disk has {free} left")

    def _folders(self) -> list[Path]:
        """The folders by generation, whatever is in them; files, pipes and links of such a name are none."""
        if not self.folder.is_dir():
            return []
        named = [path for path in self.folder.iterdir() if FOLDER.fullmatch(path.name)]
        return sorted((path for path in named if path.is_dir() and not path.is_symlink()), key=_generation_of)

    def _infos(self) -> dict[CheckpointInfo, Path]:
        """Those that can be read; what cannot is left alone, for it might be readable another day."""
        found: dict[CheckpointInfo, Path] = {}
        for path in self._folders():
            with contextlib.suppress(CheckpointError):
                found[CheckpointInfo.of(safe_folder.read_folder(path, KIND)[0], path)] = path
        return found

    def _set_aside(self, path: Path) -> None:
        """Rename a checkpoint that this run does not count on."""
        with contextlib.suppress(OSError):  # one that stays costs disk space, and a warning when the run is resumed
            path.rename(path.with_name(f"{SET_ASIDE}{path.name}-{uuid.uuid4().hex[:8]}"))

    def _prune(self, generation: int) -> None:
        found = self._infos()
        past = sorted(its for its in found if its.generation <= generation)
        kept = {*past[-self.keep :], max(past, key=lambda its: its.rank), *(its for its in past if its.is_power_of_two)}
        for its in found.keys() - kept:
            with contextlib.suppress(OSError):  # what cannot be removed costs room, and nothing else
                safe_folder.remove_folder(found[its])
        for leftover in filter(safe_folder.is_real_folder, self.folder.glob(".gen-*")):
            shutil.rmtree(leftover, ignore_errors=True)
