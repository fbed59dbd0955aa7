"""The folder of a run: the files that a run writes, and the conditions under which another run may use it.

A run starts in a folder without files of a run, or removes an earlier run's files first if `overwrite` is true. Files
that no run has written are never removed: a folder of an agent or a population that holds one is set aside.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path

from agilerl_like.errors import CheckpointError, ConfigurationError
from agilerl_like.reporting.callback import Reporter
from agilerl_like.reporting.files import (
    LINEAGE,
    METRICS,
    UPDATES,
    CsvReporter,
    LineageReporter,
    UpdatesReporter,
    begins_as_metrics,
    begins_as_updates,
)
from agilerl_like.reporting.plot import PLOT
from agilerl_like.reporting.records import RunRecord
from agilerl_like.reporting.report import REPORT, HtmlReporter
from agilerl_like.reporting.run_history import CONFIG, RUN_DOCUMENT, run_document
from agilerl_like.reporting.trackers import TENSORBOARD_FOLDER, WANDB_ID
from agilerl_like.storage import safe_folder
from agilerl_like.storage.checkpoint_folder import CHECKPOINTS, FOLDER, HISTORY, HISTORY_ENTRY, KIND, remove_marker
from agilerl_like.storage.durable_io import check_regular, make_folder, replace_file, sync_folder
from agilerl_like.storage.run_lock import LOCK, RunLock
from agilerl_like.storage.run_names import BEST, POPULATION
from agilerl_like.training.provenance import ProvenanceReporter, is_run_document, provenance
from agilerl_like.training.training_arguments import OutputPaths, TrainingArguments
from agilerl_like.yaml_writer import to_yaml

EVENTS = "tensorboard"
FOUND = "found.yaml"
"""A search writes what it has found to this file in the folder of its run."""
FOUND_HEAD, SEARCH_HEAD = "Found by `agilerl-like tune`", "The search has not ended"
"""First words of the comment at the beginning of `FOUND` after the search, and until then."""
HEADER = "# agilerl-like "
"""First characters of every config.yaml that a run has written."""
REMEDY = f"if a run has written {CONFIG} and its first line was removed, begin it with {f'{HEADER}run'!r}"
"""Advice about a config.yaml without them."""


class RunFolderExistsError(ConfigurationError):
    """The folder of a new run holds an earlier one."""

    def __init__(self, folder: Path, existing: Sequence[str]) -> None:
        super().__init__(
            f"run_dir={str(folder)!r} holds an earlier run ({', '.join(existing)}); allowed is another folder, "
            "resume= to continue that run, or overwrite=True to remove its files and start again"
        )
        self.existing = tuple(existing)


def check_unused(folder: Path, *, overwrite: bool = False) -> None:
    """Raise unless a run may start in a folder; nothing is changed.

    Raises:
        RunFolderExistsError: the folder holds files of an earlier run, and `overwrite` is false.
        ConfigurationError: another process has a run in it; or a file has the name of a run's but is not one.
    """
    if _existing_files(folder) and (folder / LOCK).is_file():
        with RunLock(folder):  # a run that is still active is reported first
            pass
    _check_target(folder, overwrite=overwrite)


def check_output_paths(output_paths: OutputPaths) -> None:
    """Raise ConfigurationError if the elite or the populations cannot be saved to their paths; nothing is changed.

    A save replaces a folder as a whole, so it may hold neither files of others nor the other paths.
    """
    folders = {"run_dir": output_paths.run_dir, "elite_path": output_paths.elite_path}
    if output_paths.checkpoint_path is not None:
        folders["checkpoint_path"] = output_paths.populations(0, last=False)[0]
    paths = {name: path for name, path in folders.items() if path is not None}
    for name, path in paths.items():
        if name == "run_dir":
            continue
        for other, place in paths.items():
            if other != name and path.resolve() in (place.resolve(), *place.resolve().parents):
                raise ConfigurationError(
                    f"{name}={str(path)!r} is or holds {other}={str(place)!r}; allowed is a folder of its own, because "
                    "each save replaces it as a whole"
                )
        run_dir = output_paths.run_dir
        reserved = [] if run_dir is None else [run_dir.resolve() / file for file in RUN_FILES if file != BEST]
        if any(place in (path.resolve(), *path.resolve().parents) for place in reserved):
            raise ConfigurationError(
                f"{name}={str(path)!r} is a place of the run's own files; allowed is another folder"
            )
        try:
            safe_folder.check_target(path)
        except CheckpointError as error:
            raise ConfigurationError(
                f"{name}: {error}; allowed is a new folder, or one that an earlier run saved there"
            ) from error


def prepare_folder(folder: Path, *, overwrite: bool = False) -> None:
    """Prepare a folder for a new run: with `overwrite`, remove the files of an earlier run, and no others.

    If the earlier run was a search, what it has found is removed too. The caller holds the folder's lock.

    Raises:
        ConfigurationError: as `check_unused`.
        CheckpointError: a file could not be removed.
    """
    _check_target(folder, overwrite=overwrite)
    try:
        remove_marker(folder)
        existing = {name: RUN_FILES[name] for name in _existing_files(folder)}
        if existing and is_search(folder):
            existing = {FOUND: FOUND_FILE, **existing}  # first: without the others it would not be removed later
        for name, entry in existing.items():
            entry.remove(folder / name)
            sync_folder(folder)
    except OSError as error:
        raise CheckpointError(f"path={str(folder)!r}: an earlier run could not be removed ({error})") from error


def is_search(folder: Path) -> bool:
    """Whether a folder has the run of a search, and the file of what it has found.

    The file may also be a copy beside the run that trains it; that run has `mutation: null`, which a search has only if
    it was resumed without evolution. Until a search has ended, its file has another first line than such a copy.
    """
    config, found = folder / CONFIG, folder / FOUND
    settings = _text(config).splitlines() if config.is_file() else []
    if not FOUND_FILE.is_written_by_run(found):
        return False
    return _first_line(found).startswith(f"# {SEARCH_HEAD}") or "mutation: null" not in settings


def _check_target(folder: Path, *, overwrite: bool) -> None:
    existing = _existing_files(folder)
    if existing and not overwrite:
        raise RunFolderExistsError(folder, existing)
    check_foreign_files(folder)


def check_foreign_files(folder: Path) -> None:
    """Raise ConfigurationError if a folder has files with the names of a run's that no run has written."""
    foreign = [name for name in _existing_files(folder) if not RUN_FILES[name].is_written_by_run(folder / name)]
    if foreign:
        raise ConfigurationError(
            f"run_dir={str(folder)!r} has {', '.join(foreign)}, which no run has written; allowed "
            f"is another folder, or this one after it was moved away{f'; {REMEDY}' if CONFIG in foreign else ''}"
        )


def check_links(folder: Path) -> None:
    """Raise ConfigurationError if a file or stored folder that a run replaces is a link.

    A shared folder may be one, to another disk.
    """
    linked = [
        name
        for name, entry in RUN_FILES.items()
        if not isinstance(entry, SharedFolder) and (folder / name).is_symlink()
    ]
    if linked:
        raise ConfigurationError(
            f"run_dir={str(folder)!r}: {', '.join(linked)} is a link, which a run does not replace; allowed is a "
            "file or folder that the run has written"
        )


def _existing_files(folder: Path) -> list[str]:
    """Return the names of a run's files that exist in a folder."""
    return [name for name, entry in RUN_FILES.items() if entry.exists(folder / name)]


def _is_occupied(path: Path) -> bool:
    if path.is_dir() and not path.is_symlink():
        return any(path.iterdir())
    return path.exists() or path.is_symlink()


# -- the files of a run


class RunFile:
    """A file that a run writes to its folder."""

    def __init__(self, recognises: Callable[[Path], bool]) -> None:
        self._recognises = recognises

    def exists(self, path: Path) -> bool:
        """Whether the file, or anything else of its name but an empty folder, exists."""
        return _is_occupied(path)

    def is_written_by_run(self, path: Path) -> bool:
        """Whether a run has written the file."""
        try:
            return check_regular(path) and self._recognises(path)
        except (CheckpointError, ConfigurationError, OSError, ValueError):
            return False

    def remove(self, path: Path) -> None:
        """Remove the file."""
        path.unlink()


class StoredFolder(RunFile):
    """A stored folder of one kind; what a killed writer left beside it is a part of it, because it can be loaded."""

    def __init__(self, kind: str) -> None:
        super().__init__(lambda path: safe_folder.folder_kind(path) == kind)

    def exists(self, path: Path) -> bool:
        return _is_occupied(path) or safe_folder.has_leftovers(path)

    def is_written_by_run(self, path: Path) -> bool:
        try:
            return not path.is_symlink() and (not _is_occupied(path) or self._recognises(path))
        except CheckpointError:
            return False

    def remove(self, path: Path) -> None:
        safe_folder.remove_folder(path)


class SharedFolder(RunFile):
    """A folder with entries of a run and others, which are not removed."""

    def is_written_by_run(self, path: Path) -> bool:
        return path.is_dir() and not path.is_symlink()

    def remove(self, path: Path) -> None:
        for entry in sorted(filter(self._recognises, path.iterdir())):  # first, by their ".", what killed writers left
            if not safe_folder.is_real_folder(entry):
                entry.unlink()
            elif entry.name.startswith("."):
                shutil.rmtree(entry)
            else:
                safe_folder.remove_folder(entry)
        if not any(path.iterdir()):
            path.rmdir()


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8-sig", errors="replace")  # some editors write a byte-order mark


def _first_line(path: Path) -> str:
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        return file.readline(10_000)


def _is_birth(path: Path) -> bool:
    line = _first_line(path)
    if not line.endswith("\n"):
        return True
    birth = json.loads(line)
    return isinstance(birth, dict) and {"generation", "uid", "parent_uid"} <= birth.keys()


def _is_stored(path: Path, pattern: re.Pattern[str], kind: str) -> bool:
    """Return whether a path is a stored folder of this kind and name pattern, or the leftover of one."""
    plain = path.is_dir() and not path.is_symlink()
    if not plain or not pattern.fullmatch(path.name.removeprefix(".").partition(".")[0]):
        return False
    try:
        return path.name.startswith(".") or safe_folder.folder_kind(path) == kind
    except CheckpointError:
        return False


NOT_IN_FILE = "not in this file: "
"""Beginning of a note in the head of a configuration on what it cannot hold."""
AS_FAR = ", as far as a file can describe it"
REPORT_HEAD = b'<meta name="generator" content="agilerl-like">'
"""A line in the first 2,000 bytes of every report."""


RUN_FILES: Mapping[str, RunFile] = {
    CONFIG: RunFile(lambda path: _first_line(path).startswith(HEADER)),
    METRICS: RunFile(begins_as_metrics),
    LINEAGE: RunFile(_is_birth),
    UPDATES: RunFile(begins_as_updates),
    CHECKPOINTS: SharedFolder(lambda path: _is_stored(path, FOLDER, KIND)),
    HISTORY: SharedFolder(lambda path: _is_stored(path, HISTORY_ENTRY, "population")),
    BEST: StoredFolder("agent"),
    POPULATION: StoredFolder("population"),
    PLOT: RunFile(lambda path: path.read_bytes()[:4] == b"\x89PNG"),
    REPORT: RunFile(lambda path: REPORT_HEAD in path.read_bytes()[:2000]),
    RUN_DOCUMENT: RunFile(lambda path: is_run_document(run_document(path))),
    EVENTS: SharedFolder(lambda path: "tfevents" in path.name and not path.is_dir()),
    WANDB_ID: RunFile(lambda path: path.stat().st_size < 100),
    TENSORBOARD_FOLDER: RunFile(lambda path: path.stat().st_size < 1000),
}
"""The files of a run, by name."""
FOUND_FILE = RunFile(lambda path: _first_line(path).startswith((f"# {FOUND_HEAD}", f"# {SEARCH_HEAD}")))
"""What a search has found. It is not in `RUN_FILES`, since it may be copied to the folder of a new run."""


def run_folder_reporters(run_dir: Path, *, updates: bool, report: bool = True) -> Iterator[Reporter]:
    """Yield the reporters that write into a run folder; with `updates` also each update, with `report` its page."""
    yield CsvReporter(run_dir)
    yield LineageReporter(run_dir)
    if updates:
        yield UpdatesReporter(run_dir)
    yield ProvenanceReporter(run_dir)
    if report:
        yield HtmlReporter(run_dir)


def not_in_file(config: Path) -> list[str]:
    """Return the notes in the head of a run's configuration on what it cannot hold."""
    head = _head(_text(config))
    return [line.removeprefix(f"# {NOT_IN_FILE}") for line in head if line.startswith(f"# {NOT_IN_FILE}")]


TRAINING = re.compile(r"^training:.*\n?(?:(?:#.*\n|\n)*[ \t].*\n?)*", re.MULTILINE)
"""The section `training` of a configuration: its first line and the indented ones below, with comments between them."""


class ConfigReporter(Reporter):
    """Writes `config.yaml` when a run begins; until then the folder may be another run's."""

    def __init__(
        self, run_dir: Path, settings: str, *, again: str, notes: Sequence[str] = (), replaces: bool = True
    ) -> None:
        """Write `settings`, which are YAML, below a head of comments.

        `again` is how to repeat the run, for the first line, and `notes` are further lines of the head. Without
        `replaces` an existing file of this run stays.
        """
        self.path = run_dir.absolute() / CONFIG
        self._again, self._settings, self._notes, self._replaces = again, settings, tuple(notes), replaces

    def start(self, run: RunRecord) -> None:
        """Write the file durably, unless it has the same content already.

        Raises:
            ConfigurationError: there is a file that no run has written.
            CheckpointError: the file could not be written; without it the run could not be resumed.
        """
        text = ""
        try:
            if check_regular(self.path):
                text = _text(self.path)
                if _without_head(text) == self._settings:
                    return
                if text.startswith(HEADER) and not self._replaces:
                    return
                if not text.startswith(HEADER):
                    raise ConfigurationError(
                        f"run_dir={str(self.path.parent)!r} has a {CONFIG} that does not begin with {HEADER!r}, as "
                        f"that of a run does; it is not overwritten: {REMEDY}; else take another folder, or move it "
                        "away"
                    )
            notes = [f"# {note}" for note in self._notes]
            before = [line for line in _head(text)[1:] if line not in notes]
            now = [f"# {line}" for line in provenance("changed" if before else "begun")]
            lacks = any(line.startswith(f"# {NOT_IN_FILE}") for line in (*notes, *before))
            head = [f"{HEADER}{self._again}{AS_FAR if lacks else ''}", *notes, *before, *now]
            make_folder(self.path.parent)
            replace_file(self.path, "\n".join((*head, self._settings)).encode())
        except OSError as error:
            raise CheckpointError(f"path={str(self.path)!r} could not be written ({error})") from error


class TrainingReporter(Reporter):
    """Writes the training arguments of a script to the `config.yaml` of the run that it resumes, whose rest stays.

    `agilerl-like resume` and a replay take the arguments from this file.
    """

    def __init__(self, run_dir: Path, training_args: TrainingArguments) -> None:
        self.path = run_dir.absolute() / CONFIG
        self._section = to_yaml({"training": asdict(training_args)})

    def start(self, run: RunRecord) -> None:
        """Replace the section `training` durably, unless it has the same content already, or no run has the file.

        Raises:
            CheckpointError: the file could not be written.
        """
        try:
            text = _text(self.path) if check_regular(self.path) else ""
            before = _without_head(text)
            settings = TRAINING.sub(lambda _: self._section, before, count=1)
            if settings != before and text.startswith(HEADER):
                head = [*_head(text), *(f"# {line}" for line in provenance("changed"))]
                replace_file(self.path, "\n".join((*head, settings)).encode())
        except OSError as error:
            raise CheckpointError(f"path={str(self.path)!r} could not be written ({error})") from error


def _without_head(text: str) -> str:
    """Return a text without the comments at its beginning."""
    return "".join(text.splitlines(keepends=True)[len(_head(text)) :])


def _head(text: str) -> list[str]:
    return [*takewhile(lambda line: line.startswith("#"), text.splitlines())]
