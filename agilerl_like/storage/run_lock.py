"""A lock that keeps two runs out of one folder.

The kernel holds it and releases it when its owner dies, whatever way, so nothing that is left behind can block. The
subtlety is that a child process inherits the lock with its parent's open files, and a worker that outlives a killed
run would keep the folder locked; so children let go of it as soon as they are forked.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import warnings
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from agilerl_like.errors import ConfigurationError
from agilerl_like.storage.durable_io import make_folder, open_to_write

try:
    import fcntl
except ImportError:  # there is none on Windows
    fcntl = None

LOCK = ".lock"
TAKEN = {errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES}
_held: set[int] = set()


class RunLock:
    """Keeps a run's folder for one process: `with RunLock(folder): …`.

    Where the file system knows no locks, `warn` is told so and the run goes on without one.
    """

    def __init__(self, folder: Path, *, warn: Callable[[str], None] = warnings.warn) -> None:
        self.folder, self._warn = folder, warn
        self._handle, self._is_new = -1, not folder.exists()

    def __enter__(self) -> RunLock:
        """Take the lock.

        Raises:
            ConfigurationError: another run has it.
            CheckpointError: the lock's file is a link, a folder or a pipe.
        """
        handle = self._open()
        while not _is_at(self.folder / LOCK, handle):  # its owner has removed it with the folder meanwhile
            os.close(handle)
            handle = self._open()
        _sign(handle)
        self._handle = handle
        _held.add(handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handle in _held:  # and not in a child, which has let go of it
            _held.remove(self._handle)
            os.ftruncate(self._handle, 0)
            self._remove_if_unused()
            if fcntl is not None:  # a child just forked may not have let go yet, and closing here would not free it
                with contextlib.suppress(OSError):  # where it could not be locked
                    fcntl.flock(self._handle, fcntl.LOCK_UN)
            os.close(self._handle)

    def _open(self) -> int:
        """Open the file and lock it."""
        make_folder(self.folder)
        handle = open_to_write(self.folder / LOCK, os.O_RDWR | os.O_CREAT)
        try:
            self._lock(handle)
        except BaseException:
            os.close(handle)
            raise
        return handle

    def _remove_if_unused(self) -> None:
        """Remove the file while it is locked, and a folder that was made for it, if nothing else is in it."""
        with contextlib.suppress(OSError):
            if os.listdir(self.folder) == [LOCK]:
                os.unlink(self.folder / LOCK)
                if self._is_new:
                    os.rmdir(self.folder)

    def _lock(self, handle: int) -> None:
        try:
            if fcntl is None:
                raise OSError(errno.ENOSYS, "this system has no fcntl")
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in TAKEN:
                raise ConfigurationError(
                    f"folder={str(self.folder)!r} is in use by another run ({_owner(handle)}); "
                    "allowed is a folder of its own, or to wait until that run has ended"
                ) from None
            self._warn(f"folder={str(self.folder)!r} cannot be locked ({error}): do not start a second run in it")


def _is_at(path: Path, handle: int) -> bool:
    """Whether an open file still has its name."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(handle))


def _sign(handle: int) -> None:
    """Write into a locked file who has locked it."""
    os.ftruncate(handle, 0)
    os.write(handle, json.dumps({"pid": os.getpid(), "host": platform.node()}).encode())


def _owner(handle: int) -> str:
    """Who has signed a file."""
    match _signature(handle):
        case {"pid": int(pid), "host": str(host)}:
            return f"process {pid} on {host}"
    return "a process that has just begun"


def _signature(handle: int) -> object:
    try:
        return json.loads(os.read(handle, 1024))
    except ValueError:
        return None


def _let_go() -> None:
    for handle in _held:
        os.close(handle)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
