"""R2 and R9: checkpoints are written atomically, damage is detected, and retention keeps the right ones."""

import builtins
import contextlib
import errno
import itertools
import math
import os
import random
import shutil
from pathlib import Path

import pytest
import torch

from agilerl_like.errors import CheckpointError, ConfigurationError
from agilerl_like.storage import safe_folder
from agilerl_like.storage.checkpoint_folder import Checkpoints, read_checkpoint


def silent(text):
    raise AssertionError(text)


def contents(generation):
    """Two documents and two files of tensors that belong to one generation and no other."""
    documents = {"run": {"generation": generation}, "member-000": {"steps": [generation] * 3}}
    weights = torch.arange(50.0) + generation
    return documents, {"member-000": {"w": weights}, "member-001": {"w": -weights, "n": torch.tensor(generation)}}


def write(checkpoints, generation):
    return checkpoints.write(generation, *contents(generation), score=0.0)


def write_scores(checkpoints, scores):
    """Checkpoints of generations 1, 2, … with nothing in them."""
    for generation, score in enumerate(scores, 1):
        checkpoints.write(generation, {}, {}, score=score)


def check(checkpoint, generation):
    documents, tensors = contents(generation)
    assert checkpoint.generation == generation
    assert {name: checkpoint.documents[name] for name in documents} == documents
    assert {name: {k: t.tolist() for k, t in named.items()} for name, named in checkpoint.tensors.items()} == {
        name: {k: t.tolist() for k, t in named.items()} for name, named in tensors.items()
    }


def kept(checkpoints):
    """The generations in the folder, in which nothing else may be."""
    return sorted(int(path.name.removeprefix("gen-")) for path in checkpoints.folder.iterdir())


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path / "run" / "checkpoints")


# -- a disk that is watched, and that stops at the k-th operation


class Crash(BaseException):
    """The process is gone: nothing that it would have done afterwards happens."""


class Disk:
    """Counts what is done to the disk; at operation `stop` it raises `fault`, a Crash from then on always."""

    WATCHED = ("mkdir", "open", "fsync", "replace", "unlink", "rmdir")

    def __init__(self, monkeypatch, stop=-1, fault=None):
        self.log, self.stop, self.fault = [], stop, fault
        self._paths = {}
        for name in self.WATCHED:
            monkeypatch.setattr(os, name, self._watch(name, getattr(os, name)))
        monkeypatch.setattr(safe_folder, "open", self._open, raising=False)

    def _step(self, name, path):
        dead = isinstance(self.fault, Crash) and 0 <= self.stop < len(self.log)
        self.log.append((name, str(path)))
        if dead or len(self.log) - 1 == self.stop:
            raise self.fault

    def _watch(self, name, function):
        def watched(path, *args, **kwargs):
            if name == "open" and not os.path.isdir(path):  # files that are read
                return function(path, *args, **kwargs)
            self._step(name, self._paths.get(path, path))
            result = function(path, *args, **kwargs)
            if name == "open":
                self._paths[result] = path
            return result

        return watched

    def _open(self, path, mode):
        self._step("create", path)
        return Watched(builtins.open(path, mode), self, path)


class Watched:
    """A file whose every write goes to the disk in two halves."""

    def __init__(self, file, disk, path):
        self.file, self.disk, self.path = file, disk, path
        disk._paths[file.fileno()] = path

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def write(self, data):
        self.disk._step("write", self.path)
        self.file.write(data[: len(data) // 2])
        self.file.flush()
        self.disk._step("write", self.path)
        self.file.write(data[len(data) // 2 :])

    def flush(self):
        self.file.flush()

    def fileno(self):
        return self.file.fileno()


BEFORE = {
    "nothing": [],
    "one": [8],
    "so many that one is forgotten": [*range(1, 9)],
    "this one": [8, 9],  # a run resumed from the previous checkpoint reaches it again
}
"""What was written before generation 9 is."""


@pytest.fixture(params=BEFORE)
def before(request, tmp_path):
    return prepared(tmp_path, request.param)


def prepared(tmp_path, case):
    """A function that gives fresh checkpoints, of which some are written."""
    origin, places = Checkpoints(tmp_path / "origin", keep=2), itertools.count()
    origin.folder.mkdir()
    for generation in BEFORE[case]:
        write(origin, generation)
    return lambda: Checkpoints(shutil.copytree(origin.folder, tmp_path / f"copy-{next(places)}"), keep=2)


def operations(before):
    """The disk operations of one more checkpoint."""
    checkpoints = before()
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch)
        write(checkpoints, 9)
    return disk.log, checkpoints.folder


def test_a_crash_at_any_operation_leaves_the_new_or_the_previous_checkpoint(before):
    log, folder = operations(before)
    found = []
    for stop in range(len(log)):
        checkpoints = before()
        last = kept(checkpoints)[-1:]
        with pytest.MonkeyPatch.context() as patch:
            Disk(patch, stop, Crash())
            with pytest.raises(Crash):
                write(checkpoints, 9)
        survivor = Checkpoints(checkpoints.folder).newest(silent)
        found.append(0 if survivor is None else survivor.generation)
        if survivor is not None:
            check(survivor, survivor.generation)
        if stop % 3 == 0:
            write(checkpoints, 9)  # the run continues, and cleans up
            assert kept(checkpoints) == kept(Checkpoints(folder))
            check(checkpoints.newest(silent), 9)
    assert len(found) > 20
    assert found[-1] == 9
    if last == [9]:  # it is there, then aside for a moment, then there again
        assert found.count(8) == 1
    else:
        assert found == sorted(found)
        assert set(found) == {*(last or [0]), 9}


def test_files_are_synced_before_the_rename_and_old_checkpoints_removed_after_it(tmp_path):
    log, checkpoints = operations(prepared(tmp_path, "so many that one is forgotten"))
    aside = next(Path(path) for name, path in log if name == "mkdir")
    assert aside.name.startswith(".gen-000009.tmp-")
    last = {place: i for i, place in enumerate(log)}
    (renamed,) = (i for i, (name, path) in enumerate(log) if name == "replace" and Path(path) == aside)
    files = {path for name, path in log if name == "create"}
    assert {Path(path).name for path in files} == {
        "manifest.json",
        "run.json",
        "member-000.json",
        "milestone.json",
        "member-000.safetensors",
        "member-001.safetensors",
    }
    for file in files:
        assert last["write", file] < last["fsync", file] < last["fsync", str(aside)] < renamed
    assert renamed < last["fsync", str(checkpoints)]
    removed = [i for i, (name, path) in enumerate(log) if "gen-000009" not in path and name in ("replace", "unlink")]
    assert removed
    assert min(removed) > last["fsync", str(checkpoints)]


def test_a_full_disk_at_any_operation_leaves_the_previous_checkpoints(before):
    log, _ = operations(before)
    writing = max(i for i, (name, _) in enumerate(log) if name == "fsync") + 1  # behind it others are forgotten
    for stop in range(writing):
        checkpoints = before()
        former = kept(checkpoints)
        with pytest.MonkeyPatch.context() as patch:
            Disk(patch, stop, OSError(28, "No space left on device"))
            with pytest.raises(
                CheckpointError, match=r"No space left on device: needed are \d+ .*, free are \d+.*untouched"
            ):
                write(checkpoints, 9)
        assert kept(checkpoints) == former  # nothing is left beside them either
        if former:
            check(checkpoints.newest(silent), former[-1])


def test_an_outage_while_the_folder_is_listed_fails_a_save_only_before_it_is_written(checkpoints, monkeypatch):
    """An outage of a moment, as network file systems have: one listing fails."""
    iterdir, listings, failing = Path.iterdir, itertools.count(), -1

    def listed(path):
        if path == checkpoints.folder and next(listings) == failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return iterdir(path)

    monkeypatch.setattr(Path, "iterdir", listed)
    write(checkpoints, 1)
    is_written = []
    for number in range(5):
        listings, failing = itertools.count(), number
        with contextlib.suppress(OSError, CheckpointError):
            write(checkpoints, number + 2)
            check(checkpoints.newest(silent), number + 2)
            is_written.append(number)
    assert is_written == [2, 3, 4]  # before: the ordinals, what killed writers left
    assert kept(checkpoints) == [1, 4, 5, 6]


# -- damage


def test_a_flipped_byte_is_detected_and_the_previous_checkpoint_is_used(checkpoints):
    write(checkpoints, 1)
    newest = write(checkpoints, 2)
    rng = random.Random(0)
    files = sorted(newest.iterdir())
    for _ in range(200):
        file = rng.choice(files)
        whole = file.read_bytes()
        place, bit = rng.randrange(len(whole)), 1 << rng.randrange(8)
        file.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
        warnings = []
        try:
            checkpoint = checkpoints.newest(warnings.append)
        except safe_folder.UnknownSchemaError:  # the flip was in the schema's own name
            assert file.name == "manifest.json"
        else:
            same = file.name == "manifest.json" and not warnings  # a blank became another one
            assert len(warnings) == (not same)
            check(checkpoint, 2 if same else 1)
        file.write_bytes(whole)
    check(checkpoints.newest(silent), 2)


def test_an_unreadable_sector_is_damage_and_ends_no_run(checkpoints, monkeypatch):
    open_regular, damaged = safe_folder.open_regular, {"gen-000001"}

    def fail(*_):
        raise OSError(5, "Input/output error")

    def opened(path, **options):
        file = open_regular(path, **options)
        if Path(path).parent.name in damaged and Path(path).name != "manifest.json":
            file.read = fail
        return file

    monkeypatch.setattr(safe_folder, "open_regular", opened)
    write(checkpoints, 1)
    newest = write(checkpoints, 2)
    damaged.add(newest.name)
    write(checkpoints, 3)
    damaged.add("gen-000003")
    damaged.remove("gen-000001")
    warnings = []
    check(checkpoints.newest(warnings.append), 1)
    (warning,) = warnings
    assert "gen-000003" in warning
    assert "cannot be read: Input/output error; the run continues from gen-000001" in warning
    _, tensors = safe_folder.read_folder(newest, "checkpoint")
    with pytest.raises(CheckpointError, match=r"member-000\.safetensors' cannot be read: Input/output error"):
        safe_folder.tensor_infos(tensors["member-000"])


def test_a_truncated_file_is_detected(checkpoints):
    write(checkpoints, 1)
    newest = write(checkpoints, 2)
    rng = random.Random(1)
    files = sorted(newest.iterdir())
    for _ in range(100):
        file = rng.choice(files)
        whole = file.read_bytes()
        file.write_bytes(whole[: rng.randrange(len(whole))])
        warnings = []
        check(checkpoints.newest(warnings.append), 1)
        (warning,) = warnings
        assert file.name in warning
        assert "continues from gen-000001" in warning
        file.write_bytes(whole)


def test_the_warning_names_the_newest_damaged_checkpoint(checkpoints):
    paths = [write(checkpoints, generation) for generation in (1, 2, 3)]
    (paths[1] / "run.json").unlink()
    shutil.rmtree(paths[2])
    paths[2].mkdir()
    warnings = []
    check(checkpoints.newest(warnings.append), 1)
    assert len(warnings) == 1
    assert "gen-000003" in warnings[0]
    assert "has no manifest.json" in warnings[0]
    write(checkpoints, 3)  # what is left of a checkpoint does not stand in the way
    check(checkpoints.newest(silent), 3)


def test_no_checkpoint_and_no_intact_checkpoint_differ(checkpoints):
    assert checkpoints.newest(silent) is None
    path = write(checkpoints, 1)
    os.truncate(path / "member-000.safetensors", 10)
    with pytest.raises(CheckpointError, match=r"no intact checkpoint; .*member-000.safetensors.* has 10 bytes"):
        checkpoints.newest(silent)


def test_an_unknown_schema_is_an_error(checkpoints):
    write(checkpoints, 1)
    manifest = write(checkpoints, 2) / "manifest.json"
    manifest.write_text(manifest.read_text().replace("agilerl-like/1", "agilerl-like/2"))
    with pytest.raises(CheckpointError, match="has schema 'agilerl-like/2'; this version reads 'agilerl-like/1'"):
        checkpoints.newest(silent)
    for generation in range(3, 9):
        write(checkpoints, generation)
    assert 2 in kept(checkpoints)  # unreadable checkpoints are not removed


def test_a_checkpoint_is_read_from_any_path(checkpoints, tmp_path):
    path = write(checkpoints, 12)
    check(read_checkpoint(path), 12)
    check(read_checkpoint(shutil.copytree(path, tmp_path / "mine")), 12)
    with pytest.raises(CheckpointError, match="holds kind='other'"):
        read_checkpoint(safe_folder.write_folder(tmp_path / "other", "other", {}, {}))
    with pytest.raises(CheckpointError, match=r"milestone\.json': generation=-1: Input should be greater"):
        read_checkpoint(
            safe_folder.write_folder(tmp_path / "bare", "checkpoint", {"milestone": {"generation": -1}}, {})
        )


# -- which are kept


def test_retention_keeps_the_last_the_best_and_powers_of_two(checkpoints):
    for place in range(1, 21):  # the 11th, of generation 110, is the best
        checkpoints.write(10 * place, {}, {}, score=-abs(place - 11))
    assert kept(checkpoints) == [10, 20, 40, 80, 110, 160, 180, 190, 200]


def test_retention_is_the_same_after_a_resume(tmp_path):
    for generation in range(1, 21):  # the 7th is the best; each is written as if by a process of its own
        Checkpoints(tmp_path, keep=2).write(generation, {}, {}, score=-abs(generation - 7))
    assert kept(Checkpoints(tmp_path)) == [1, 2, 4, 7, 8, 16, 19, 20]


def test_a_nan_score_is_the_lowest(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    write_scores(checkpoints, [math.nan, math.inf, -1e9, math.nan, math.nan, math.nan])
    assert kept(checkpoints) == [1, 2, 3, 4, 6]
    assert checkpoints.newest(silent).documents["milestone"] == {"generation": 6, "ordinal": 6, "score": None}


def test_later_generations_are_set_aside_and_not_removed(checkpoints):
    for generation in (5, 10, 15, 20):
        write(checkpoints, generation)
    (checkpoints.folder / "gen-000011").mkdir()
    (checkpoints.folder / "gen-000011" / "mine.txt").write_text("kept")
    write(checkpoints, 11)
    aside = sorted(path for path in checkpoints.folder.iterdir() if path.name.startswith("aside-"))
    assert [path.name.rpartition("-")[0] for path in aside] == [f"aside-gen-0000{n}" for n in (11, 15, 20)]
    assert (aside[0] / "mine.txt").read_text() == "kept"
    check(read_checkpoint(aside[2]), 20)
    assert checkpoints.newest(silent).generation == 11
    for path in aside:
        shutil.rmtree(path)
    assert kept(checkpoints) == [5, 10, 11]
    assert read_checkpoint(checkpoints.folder / "gen-000011").documents["milestone"]["ordinal"] == 3


def test_a_checkpoint_with_files_of_the_user_is_set_aside_where_another_is_removed(checkpoints):
    for generation in range(1, 4):
        write(checkpoints, generation)
    (checkpoints.folder / "gen-000003" / "mine.txt").write_text("kept")
    for generation in range(4, 7):
        write(checkpoints, generation)
    (aside,) = (path for path in checkpoints.folder.iterdir() if not path.name.startswith("gen-"))
    assert aside.name.startswith("aside-gen-000003-")
    assert (aside / "mine.txt").read_text() == "kept"
    check(read_checkpoint(aside), 3)


def test_files_named_like_checkpoints_are_ignored(checkpoints):
    write(checkpoints, 1)
    stray, pipe, link = (checkpoints.folder / f"gen-99999{n}" for n in range(3))
    stray.write_text("stray")
    os.mkfifo(pipe)
    link.symlink_to(checkpoints.folder / "gen-000001")
    write(checkpoints, 2)
    checkpoints.warn_if_disk_nearly_full(silent)
    assert checkpoints.newest(silent).generation == 2
    assert stray.read_text() == "stray"
    assert pipe.is_fifo()
    check(read_checkpoint(checkpoints.folder / "gen-000001"), 1)
    assert link.is_symlink()


def test_keep_must_be_positive(tmp_path):
    with pytest.raises(ConfigurationError, match="keep=0 must be at least 1"):
        Checkpoints(tmp_path, keep=0)


# -- disk space


def test_little_disk_space_is_warned_of_once(checkpoints, monkeypatch):
    usage = shutil.disk_usage(checkpoints.folder.parents[1])
    warnings = []
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free))
    free = 0
    checkpoints.warn_if_disk_nearly_full(warnings.append)
    assert warnings == []  # nothing was written yet
    size = sum(file.stat().st_size for file in write(checkpoints, 1).iterdir())
    free = int(2.5 * size)
    checkpoints.warn_if_disk_nearly_full(warnings.append)
    assert warnings == []
    free -= 1
    for _ in range(2):
        checkpoints.warn_if_disk_nearly_full(warnings.append)
    (warning,) = warnings
    assert f"need {int(2.5 * size)} bytes; the disk has {free} left" in warning
