"""R16: two runs cannot share a folder, and a dead one does not keep it."""

import contextlib
import errno
import fcntl
import os
import platform
import shutil
import signal
import tempfile
from typing import NamedTuple

import pytest
from filelock import FileLock

from agilerl_like.errors import CheckpointError, ConfigurationError
from agilerl_like.storage.run_lock import RunLock, describe_place, is_locked

# from 3.12 on forking is warned of where there are threads; these children use none of theirs
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def silent(text):
    raise AssertionError(text)


class Opponent(NamedTuple):
    """Another process that wants the lock."""

    pid: int
    said: str


@pytest.mark.parametrize("path", ["file", "file/run"])
def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path, path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigurationError, match=rf"{path}' is a file or leads through one; allowed is"):
        RunLock(tmp_path / path, warn=silent).__enter__()
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_that_its_owner_removes_just_now_is_made_again(tmp_path):
    lock, acquire, removed = RunLock(tmp_path / "run", warn=silent), FileLock.acquire, []

    def owner_leaves_first(its, *args, **kwargs):
        if not removed:
            removed.append(shutil.rmtree(tmp_path / "run"))
            raise FileNotFoundError(errno.ENOENT, "its folder was removed")
        return acquire(its, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileLock, "acquire", owner_leaves_first)
        with lock:
            assert is_locked(tmp_path / "run")


@contextlib.contextmanager
def rival_for(folder):
    hears, tells = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with RunLock(folder, warn=silent):
                os.write(tells, b"locked")
                signal.pause()
        except ConfigurationError as error:
            os.write(tells, str(error).encode())
        finally:
            os._exit(0)
    os.close(tells)
    try:
        yield Opponent(pid, os.read(hears, 1000).decode())
    finally:
        os.close(hears)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_the_lock_of_a_killed_owner_is_free(tmp_path):
    folder = tmp_path / "runs" / "mine"
    with rival_for(folder) as owner:
        assert owner.said == "locked"
        with pytest.raises(ConfigurationError) as refused, RunLock(folder, warn=silent):
            pass
        assert f"folder={str(folder)!r} is in use by another run" in str(refused.value)
        assert f"process {owner.pid} on {platform.node()}" in str(refused.value)
    with RunLock(folder, warn=silent):  # it was killed, and had no time for anything
        pass


def test_the_error_names_the_owner(tmp_path):
    with RunLock(tmp_path, warn=silent), rival_for(tmp_path) as rival:
        assert f"in use by another run (process {os.getpid()} on {platform.node()})" in rival.said
    with rival_for(tmp_path) as rival:
        assert rival.said == "locked"


def test_a_folder_that_is_no_longer_in_its_place_is_an_error_with_its_new_place(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    with RunLock(here, warn=silent) as lock:
        lock.check_place()
        here.rename(there)
        with pytest.raises(CheckpointError, match=f"folder='{here}' is no longer .*, which is now '{there}'"):
            lock.check_place()
        here.mkdir()
        with pytest.raises(CheckpointError, match=f"which is now '{there}'"):
            lock.check_place()
        here.rmdir()
        here.symlink_to(there)  # leads to the folder itself
        lock.check_place()
        here.unlink()
        shutil.rmtree(there)
        with pytest.raises(CheckpointError, match="which was removed"):
            lock.check_place()


def test_the_lock_of_a_moved_folder_removes_nothing_of_the_folder_in_its_place(tmp_path):
    with RunLock(tmp_path / "run", warn=silent):
        (tmp_path / "run").rename(tmp_path / "moved")
        with rival_for(tmp_path / "run") as rival:
            assert rival.said == "locked"
    assert (tmp_path / "run" / ".lock").exists()


def test_the_description_of_a_place_covers_files_and_locks_and_leaves_nothing(tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    assert describe_place(tmp_path / "runs" / "of mine") == "writable, with locks"
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", unsupported)
        assert describe_place(tmp_path) == "writable, without locks: start no two runs in one folder"
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "mkdtemp", full)
        assert describe_place(tmp_path) == "cannot be written (No space left on device)"
    assert [*tmp_path.iterdir()] == []


def test_the_lock_is_not_reentrant(tmp_path):
    with RunLock(tmp_path, warn=silent):
        with pytest.raises(ConfigurationError, match=f"process {os.getpid()} "), RunLock(tmp_path, warn=silent):
            pass
        with pytest.raises(ConfigurationError), RunLock(tmp_path, warn=silent):  # the refused one took nothing away
            pass
    with RunLock(tmp_path, warn=silent):
        pass


def test_a_forked_child_does_not_keep_the_lock(tmp_path):
    """An env worker that was forked has all of its parent's open files."""
    reading, writing = os.pipe()
    lock = RunLock(tmp_path, warn=silent)
    with lock:
        child = os.fork()
        if child == 0:
            lock.__exit__(None, None, None)  # nor does it sign off for its parent
            os.read(reading, 1)
            os._exit(0)
        with pytest.raises(ConfigurationError, match=f"process {os.getpid()} "), RunLock(tmp_path, warn=silent):
            pass
    with RunLock(tmp_path, warn=silent):
        pass
    os.write(writing, b".")
    assert os.waitpid(child, 0) == (child, 0)
    os.close(reading)
    os.close(writing)


def test_the_lock_is_released_after_an_exception(tmp_path):
    with pytest.raises(ZeroDivisionError), RunLock(tmp_path, warn=silent):
        raise ZeroDivisionError
    with RunLock(tmp_path, warn=silent):
        pass


def test_an_unreadable_owner_is_unknown(tmp_path):
    with RunLock(tmp_path, warn=silent):
        for text in ("", "[", '{"pid": "none"}'):
            (tmp_path / ".lock").write_text(text)
            with pytest.raises(ConfigurationError, match="a process that has just begun"), RunLock(tmp_path):
                pass


def test_a_file_system_without_locks_costs_a_warning(tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    warnings = []
    with RunLock(tmp_path, warn=warnings.append):
        (warning,) = warnings
    assert "cannot be locked ([Errno 37] No locks available): do not start a second run in it" in warning
