"""Writes that survive a power cut and never follow a link.

A file's bytes are on the disk once the file has been fsynced, its name once its folder has been.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import uuid
from pathlib import Path

from agilerl_like.errors import CheckpointError

REGULAR = "allowed is a regular file"
SYNC_UNSUPPORTED = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF, errno.EACCES, errno.EPERM}
"""Errors that mean that the file system does not support syncing folders."""
SAFE_FLAGS = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY", "O_CLOEXEC"))
"""Do not follow a link, do not wait for the other end of a pipe."""


def sync_folder(path: Path) -> None:
    """Sync a folder, so that names created or renamed in it survive a power cut."""
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
    """Make a folder and its parents, and sync each one's parent."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    if missing:
        path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_folder(folder.parent)


def check_regular(path: Path) -> bool:
    """Return whether a file exists.

    Raises:
        CheckpointError: the path is a link, a folder, a pipe or a device.
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
        CheckpointError: the path is a link, a folder, a pipe or a device.
        OSError: as `os.open`.
    """
    check_regular(path)
    handle = os.open(path, flags | SAFE_FLAGS, 0o644)
    if not stat.S_ISREG(os.fstat(handle).st_mode):  # it was replaced after the check
        os.close(handle)
        raise CheckpointError(f"path={str(path)!r} is a folder, a FIFO or a device; {REGULAR}")
    return handle


def write_all(handle: int, data: bytes) -> None:
    """Write all bytes to a descriptor."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically and durably.

    The bytes are written to a temporary file beside it, whose name is not that of a file of a user.

    Raises:
        CheckpointError: the path is not a regular file.
    """
    check_regular(path)
    _remove_temporary_files(path)
    temporary = path.with_name(f".{path.name}.new-{uuid.uuid4().hex}")
    try:
        handle = open_to_write(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            write_all(handle, data)
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(temporary, path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _remove_temporary_files(path: Path) -> None:
    """Remove the temporary files that killed processes left beside a file."""
    name = re.compile(rf"\.{re.escape(path.name)}\.new-[0-9a-f]{{32}}")
    for other in path.parent.iterdir():
        if name.fullmatch(other.name) and other.is_file() and not other.is_symlink():
            other.unlink(missing_ok=True)
