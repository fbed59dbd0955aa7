"""Files and folders that survive a power cut, and that are never written through a link.

A file's bytes are on the disk once the file has been fsynced, its name once its folder has been; a rename replaces one
whole file by another. Nothing here knows what the files are for.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from agilerl_like.errors import CheckpointError

REGULAR = "allowed is a regular file"
SYNC_UNSUPPORTED = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF, errno.EACCES, errno.EPERM}
"""Errors that say that this file system does not sync folders, rather than that syncing one has failed."""
SAFE_FLAGS = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY", "O_CLOEXEC"))
"""Flags for opening: not through a link, without waiting for the other end of a pipe."""


def sync_folder(path: Path) -> None:
    """Sync a folder, so that a power cut does not take the names of what was made or renamed in it."""
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in SYNC_UNSUPPORTED:
            raise


def make_folder(path: Path) -> None:
    """Make a folder and those above it, each synced into the one that holds it."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    if missing:
        path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_folder(folder.parent)


def check_regular(path: Path) -> bool:
    """Return whether a file is there.

    Raises:
        CheckpointError: what is there is a link, a folder, a pipe or a device.
    """
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(mode):
        kind = f"a link to {os.readlink(path)!r}" if stat.S_ISLNK(mode) else "a folder, a FIFO or a device"
        raise CheckpointError(f"path={str(path)!r} is {kind}; {REGULAR}: move it away")
    return True


def open_to_write(path: Path, flags: int) -> int:
    """Open a regular file and return its descriptor; `flags` are those of `os.open`.

    Raises:
        CheckpointError: what is there is a link, a folder, a pipe or a device.
        OSError: as `os.open`.
    """
    check_regular(path)
    handle = os.open(path, flags | SAFE_FLAGS, 0o644)
    if not stat.S_ISREG(os.fstat(handle).st_mode):  # it was exchanged after the check
        os.close(handle)
        raise CheckpointError(f"path={str(path)!r} is a folder, a FIFO or a device; {REGULAR}")
    return handle


def write_all(handle: int, data: bytes) -> None:
    """Write bytes to a descriptor, in as many pieces as the system takes them."""
    left = memoryview(data)
    while left:
        left = left[os.write(handle, left) :]


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file durably: after a power cut all of its old content is there, or all of the new.

    Raises:
        CheckpointError: the path, or the file beside it that is written first, is no regular file.
    """
    beside = path.with_name(path.name + ".new")
    check_regular(path)
    if check_regular(beside):  # left behind by a process that was killed
        beside.unlink()
    try:
        handle = open_to_write(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            write_all(handle, data)
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(beside, path)
        sync_folder(path.parent)
    finally:
        beside.unlink(missing_ok=True)
