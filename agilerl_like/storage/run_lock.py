"""A lock that keeps two runs out of one folder: filelock's, with the owner's pid in the error.

While a run has the lock, it can check that the folder is still in its place.
The kernel releases the lock when its owner dies, so nothing that is left behind blocks a later run. filelock closes
it in forked children too: an env worker that outlives a killed run must not keep the folder locked.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType

from filelock import FileLock, Timeout

from agilerl_like.errors import CheckpointError, ConfigurationError
from agilerl_like.storage.durable_io import make_folder, open_to_write

LOCK = ".lock"
RETRY_SECONDS = 0.2
"""The owner may be removing the file just now, because no other process needs it."""
ATTEMPTS = 5
"""Attempts to make the folder and lock it: one fails if an owner removes the unused folder between the two."""


class RunLock:
    """Locks a run's folder for one process: `with RunLock(folder): …`.

    Where the file system has no locks, `warn` is called and the run continues without one.
    """

    def __init__(self, folder: Path, *, warn: Callable[[str], None] = warnings.warn) -> None:
        self.folder, self._warn = folder, warn
        self._is_new = not folder.exists()
        self._lock = FileLock(folder / LOCK, fallback_to_soft=False, on_acquired=_write_owner)

    def __enter__(self) -> RunLock:
        """Take the lock.

        Raises:
            ConfigurationError: another run has it, or the folder's path is a file or leads through one.
            CheckpointError: the lock's file is a link, a folder or a pipe.
        """
        for _ in range(ATTEMPTS):
            try:
                self._acquire()
                self._open_folder()
                return self
            except FileNotFoundError:
                continue
            except (FileExistsError, NotADirectoryError) as error:
                raise ConfigurationError(
                    f"folder={str(self.folder)!r} is a file or leads through one; allowed is the path of a folder"
                ) from error
        raise ConfigurationError(
            f"folder={str(self.folder)!r} is removed by other runs again and again; allowed is another"
        )

    def _open_folder(self) -> None:
        """Open the locked folder, so that no other one gets its inode; FileNotFoundError as `_acquire`."""
        try:
            self._handle = os.open(self.folder, os.O_RDONLY)
        except OSError:
            self._lock.release()
            raise
        self._locked = os.fstat(self._handle)

    def _acquire(self) -> None:
        """Make the folder and lock it; FileNotFoundError if an owner removes it in between, unused, as its run ends."""
        make_folder(self.folder)
        os.close(open_to_write(self.folder / LOCK, os.O_RDWR | os.O_CREAT))
        try:
            self._lock.acquire(timeout=RETRY_SECONDS)
        except Timeout:
            raise ConfigurationError(
                f"folder={str(self.folder)!r} is in use by another run ({_owner(self.folder / LOCK)}); "
                "allowed is a folder of its own, or to wait until that run has ended"
            ) from None
        except FileNotFoundError:
            raise
        except OSError as error:
            self._warn(f"folder={str(self.folder)!r} cannot be locked ({error}): do not start a second run in it")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock.is_locked:  # which it is not in a child process
            if self._is_in_place():
                self._remove_if_unused()
            self._lock.release()
        os.close(self._handle)

    def check_place(self) -> None:
        """Check that the folder was not moved, replaced or removed since it was locked.

        Raises:
            CheckpointError: it was; what is written to its path now would be a second folder with a part of the run.
        """
        if not self._is_in_place():
            raise CheckpointError(
                f"folder={str(self.folder)!r} is no longer the folder that this run has locked, {self._place()}: the "
                "run ends and writes nothing more; allowed is to move a folder after its run has ended. To continue "
                "from the newest checkpoint, resume the folder where it is now"
            )

    def _is_in_place(self) -> bool:
        try:
            return os.path.samestat(os.stat(self.folder), self._locked)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # a file system that is out of reach for a moment shows nothing
            return True

    def _place(self) -> str:
        """Return where the locked folder is now, as far as the system has it."""
        with contextlib.suppress(OSError):
            if os.fstat(self._handle).st_nlink == 0:
                return "which was removed"
            return f"which is now {os.readlink(f'/proc/self/fd/{self._handle}')!r}"
        return "which was moved or removed"

    def _remove_if_unused(self) -> None:
        """Remove the file while it is locked, and a folder that was made for it, if nothing else is in it."""
        with contextlib.suppress(OSError):
            if os.listdir(self.folder) == [LOCK]:
                os.unlink(self.folder / LOCK)
                if self._is_new:
                    os.rmdir(self.folder)


def _write_owner(handle: int) -> None:
    os.ftruncate(handle, 0)
    os.write(handle, json.dumps({"pid": os.getpid(), "host": platform.node()}).encode())


def _owner(path: Path) -> str:
    """Describe the process that has locked a file."""
    with contextlib.suppress(OSError, ValueError), os.fdopen(open_to_write(path, os.O_RDONLY)) as file:
        match json.loads(file.read(1024)):
            case {"pid": int(pid), "host": str(host)}:
                return f"process {pid} on {host}"
    return "a process that has just begun"


def describe_place(parent: Path) -> str:
    """Return whether run folders can be made and locked in a folder, which may not exist yet; nothing stays in it."""
    existing = next(path for path in (parent.absolute(), *parent.absolute().parents) if path.is_dir())
    warnings: list[str] = []
    try:
        with TemporaryDirectory(dir=existing) as folder, RunLock(Path(folder), warn=warnings.append):
            pass
    except OSError as error:
        return f"cannot be written ({error.strerror})"
    return "writable, without locks: start no two runs in one folder" if warnings else "writable, with locks"


def is_locked(folder: Path) -> bool:
    """Return whether a run is using a folder now; nothing is written."""
    try:
        handle = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(handle, fcntl.LOCK_UN)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(handle)
    return False
