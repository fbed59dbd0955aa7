"""The checkpoints of one run, and which of them are kept.

There is no index and no pointer to the newest: a folder is a checkpoint if its digests match, and it holds the
information that retention needs.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from agilerl_like.errors import CheckpointError, ConfigurationError
from agilerl_like.storage import safe_folder
from agilerl_like.storage.durable_io import replace_file
from agilerl_like.storage.validation import Finite, NonNegativeInt, validate_record

KIND = "checkpoint"
INFO_DOCUMENT = "milestone"
"""Name of the document that retention reads."""
FOLDER = re.compile(r"gen-(\d{6,})")
CHECKPOINTS = "checkpoints"
"""The folder of a run's checkpoints."""
HISTORY = "history"
"""The folder of a run's history, and the document of an entry with its generation and env steps."""
HISTORY_ENTRY = re.compile(r"steps-(\d{12,})")
"""Entries are named by the env steps of each member."""
MARKER = ".checkpointed"
"""A file beside the folder of checkpoints; it shows that the run has written one if they were moved away."""
MARKER_TEXT = b"This run has written checkpoints.\n"
FREE_SPACE_FACTOR = 2.5
"""Free disk space below which a warning is given, in checkpoints."""


class Checkpoint(NamedTuple):
    """The state at the end of a generation; documents and tensors are read on access."""

    path: Path
    generation: int
    documents: Mapping[str, Any]
    tensors: Mapping[str, Mapping[str, Tensor]]


@dataclass(frozen=True)
class CheckpointInfo:
    """The facts of a checkpoint that retention depends on."""

    generation: NonNegativeInt
    ordinal: NonNegativeInt
    """Number of checkpoints that the run had written, this one included."""
    score: Finite | None
    """Fitness of the best member; None if it is not finite."""

    @property
    def rank(self) -> tuple[float, int]:
        """Higher is better; of equal scores the first."""
        return -math.inf if self.score is None else self.score, -self.ordinal

    @property
    def is_power_of_two(self) -> bool:
        """Whether this was the first, second, fourth, eighth … checkpoint."""
        return self.ordinal & (self.ordinal - 1) == 0

    @classmethod
    def of(cls, documents: Mapping[str, Any], path: Path) -> CheckpointInfo:
        """Read the info of a checkpoint.

        Raises:
            CheckpointError: it is missing or not valid.
        """
        return validate_record(cls, documents.get(INFO_DOCUMENT), f"path={str(path / f'{INFO_DOCUMENT}.json')!r}")


def read_checkpoint(path: Path) -> Checkpoint:
    """Read one checkpoint's folder.

    Raises:
        CheckpointError: it is missing, damaged, of another kind, or of an unknown schema.
    """
    documents, tensors = safe_folder.read_folder(path, KIND)
    return Checkpoint(path, CheckpointInfo.of(documents, path).generation, documents, tensors)


def has_marker(run_dir: Path) -> bool:
    """Whether the run of this folder has written a checkpoint, even if its checkpoints were moved."""
    try:
        return safe_folder.read_regular(run_dir / MARKER, len(MARKER_TEXT)) == MARKER_TEXT
    except CheckpointError:
        return False


def remove_marker(run_dir: Path) -> None:
    """Remove the marker of an earlier run; another file of that name stays."""
    if has_marker(run_dir):
        (run_dir / MARKER).unlink()


def _generation_of(path: Path) -> int:
    return int(path.name.removeprefix("gen-"))


class Checkpoints:
    """The checkpoints of one run, in folders gen-000010, gen-000020 and so on.

    The last `keep`, the one with the best score, and the first, second, fourth, eighth … are kept.

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
        """Write a checkpoint, then remove those that are not kept; return its folder.

        `score` is the fitness of the best member. A checkpoint of the same generation is replaced. Those of later
        generations, which this run has not reached, and those that hold files of others are set aside and never
        removed.

        Raises:
            CheckpointError: the disk does not take it; earlier checkpoints are untouched.
            OSError: the folder of checkpoints cannot be listed; likewise.
        """
        path = self.folder / f"gen-{generation:06d}"
        ordinal = 1 + max((past.ordinal for past in self._infos() if past.generation < generation), default=0)
        info = CheckpointInfo(generation, ordinal, score if math.isfinite(score) else None)
        if path.is_dir() and not safe_folder.is_replaceable(path):  # damaged, or with files of the user
            self._set_aside(path)
        safe_folder.write_folder(path, KIND, {**documents, INFO_DOCUMENT: asdict(info)}, tensors)
        with contextlib.suppress(OSError):  # the checkpoint is written; what stays is tidied after the next one
            for later in self._folders():
                if _generation_of(later) > generation:
                    self._set_aside(later)
            self._prune(generation)
        return path

    def newest(self, warn: Callable[[str], None]) -> Checkpoint | None:
        """Return the newest intact checkpoint; None if there are no checkpoints.

        If newer ones are damaged, `warn` is called once, with the damage of the newest.

        Raises:
            CheckpointError: none is intact; one is of an unknown schema; or all checkpoints of the run are gone.
        """
        damage: CheckpointError | None = None
        for path in reversed(self._folders()):
            try:
                safe_folder.verify_folder(path, KIND)
                checkpoint = read_checkpoint(path)
            except safe_folder.UnknownSchemaError:  # not damaged: resuming from an older one would lose it
                raise
            except CheckpointError as error:
                damage = damage or error
                continue
            if damage is not None:
                warn(f"{damage}; the run continues from {path.name}, the newest intact checkpoint")
            return checkpoint
        if damage is not None:
            raise CheckpointError(f"path={str(self.folder)!r} has no intact checkpoint; of the newest: {damage}")
        if has_marker(self.folder.parent):
            raise CheckpointError(
                f"path={str(self.folder)!r} has no checkpoint, though this run has written some: it cannot continue; "
                "put them back, or start again with overwrite=True (train, --run.overwrite true) instead of resume"
            )
        return None

    def write_marker(self) -> None:
        """Write `MARKER` durably; CheckpointError if the disk does not take it."""
        marker = self.folder.with_name(MARKER)
        if not os.path.lexists(marker):
            try:
                replace_file(marker, MARKER_TEXT)
            except OSError as error:
                raise CheckpointError(f"path={str(marker)!r} could not be written ({error})") from error

    def warn_if_disk_nearly_full(self, warn: Callable[[str], None]) -> None:
        """Warn, once, if the disk has no space for a few more checkpoints like the last one."""
        folders = self._folders()
        if self._warned or not folders:
            return
        needed = int(FREE_SPACE_FACTOR * sum(file.lstat().st_size for file in folders[-1].iterdir()))
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            self._warned = True
            warn(f"path={str(self.folder)!r}: the next checkpoints need {needed} bytes; the disk has {free} left")

    def _folders(self) -> list[Path]:
        """Return the folders by generation, whatever their content; files, pipes and links are skipped."""
        if not self.folder.is_dir():
            return []
        named = [path for path in self.folder.iterdir() if FOLDER.fullmatch(path.name)]
        return sorted(filter(safe_folder.is_real_folder, named), key=_generation_of)

    def _infos(self) -> dict[CheckpointInfo, Path]:
        """Return the checkpoints that can be read; others are left alone, because a later version may read them."""
        found: dict[CheckpointInfo, Path] = {}
        for path in self._folders():
            with contextlib.suppress(CheckpointError):
                found[CheckpointInfo.of(safe_folder.read_folder(path, KIND)[0], path)] = path
        return found

    def _set_aside(self, path: Path) -> None:
        """Rename a checkpoint that this run does not use."""
        with contextlib.suppress(OSError):  # if it stays, it costs disk space and a warning on resume
            safe_folder.set_aside(path)

    def _prune(self, generation: int) -> None:
        found = self._infos()
        past = sorted((info for info in found if info.generation <= generation), key=lambda info: info.generation)
        kept = {
            *past[-self.keep :],
            *sorted(past, key=lambda info: info.rank)[-1:],  # none, if the disk reads none of them
            *(info for info in past if info.is_power_of_two),
        }
        for info in found.keys() - kept:
            with contextlib.suppress(OSError):  # if it stays, it costs disk space only
                safe_folder.remove_folder(found[info])
        for leftover in filter(safe_folder.is_real_folder, self.folder.glob(".gen-*")):
            shutil.rmtree(leftover, ignore_errors=True)
