"""Folders that are written whole or not at all, and rejected if any byte has changed since.

A stored folder holds JSON documents, safetensors files and a manifest with the schema and each file's size and SHA-256.
It is written beside its place, synced, and renamed into it. Reading executes nothing: no pickle, no `torch.load`.

Folders from untrusted sources must not cost memory or time before they are validated. So files are read on demand, a
tensor's shape can be checked (`tensor_infos`) when only its file's header has been read, and every reader has a limit.
Tensors are copied into memory, so later changes of a file do not affect them.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import stat
import uuid
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from torch import Tensor

from agilerl_like.errors import CheckpointError, ConfigurationError
from agilerl_like.registry import registered
from agilerl_like.storage.durable_io import REGULAR, make_folder, sync_folder

T = TypeVar("T")
PathLike = str | os.PathLike[str]

SCHEMA = "agilerl-like/1"
MANIFEST = "manifest.json"

MAX_JSON_BYTES = 8 * 2**20
MAX_JSON_COMMAS = 500_000
MAX_JSON_CONTAINERS = 100_000
MAX_JSON_DEPTH = 64
"""Limits of one document: a few bytes of JSON can become dozens of bytes of Python objects."""
MAX_HEADER_BYTES = 2**20
"""Of a safetensors file: ten thousand tensors. safetensors itself allows 100 MB."""
MAX_AXES = 8
MAX_TEXT_BYTES = 2**28
"""Of a text file that is read line by line: some 500,000 rows of metrics.csv, which take six times as much memory."""
MAX_CONTINUED_BYTES = 2**31
"""Of a text file that a resumed run continues: of each line a few numbers are kept in memory, of metrics.csv all text
if columns are added."""
MAX_LINE_BYTES = 2**20

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""The dtypes that are stored, by safetensors' names."""

DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
CHUNK = 2**20
STREAMED_BYTES = 2**26
"""Tensors of a file beyond which they are written one after the other and not serialized as a whole."""
FILE_NAME = re.compile(r"[\w-]+\.(json|safetensors)")
SYSTEM_FILES = (".DS_Store", "Thumbs.db")
"""Files that a file manager writes into each folder that it displays; they are removed with a folder's former files."""
SET_ASIDE = "aside-"
"""Prefix of a folder that is neither used nor removed: the run restarted before it, it lacks its manifest, or it has
files of others."""
STRING_LITERALS = re.compile(rb'"[^"]*(?:"|\Z)')
"""Of JSON without escapes. One without an end extends to the last byte: else every quote in it would be tried as a
beginning, in quadratic time."""
NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
BRACKET_DEPTH = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}

NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
READ_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_BINARY", "O_CLOEXEC"))
"""O_NONBLOCK: opening a FIFO would wait for a writer."""


class UnknownSchemaError(CheckpointError):
    """A folder has a schema that this version does not read; it may be intact."""


class TensorInfo(NamedTuple):
    """Shape and dtype of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{list(self.shape)} of {self.dtype}"


# -- writing


def write_folder(
    path: PathLike, kind: str, documents: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]
) -> Path:
    """Write a folder of `kind` and return its path.

    `documents[name]` becomes `name.json` and `tensors[name]` becomes `name.safetensors`. A folder that this package
    wrote before is replaced atomically. Leftovers of killed writers are removed, so only one process may write to a
    path at a time.

    Raises:
        CheckpointError: `path` exists and is no folder that this package wrote; writing failed, for example on a full
            disk (what was there is kept); or the data exceeds a limit of reading.
    """
    path = Path(path)
    check_target(path)
    staging = _sibling(path, "tmp")
    try:
        make_folder(path.parent)
        _remove_leftovers(path, "tmp")
        staging.mkdir()
        files = {name: _write(staging / name, data) for name, data in _encoded_files(documents, tensors)}
        _write(staging / MANIFEST, [_to_json(MANIFEST, {"schema": SCHEMA, "kind": kind, "files": files})])
        sync_folder(staging)
        _swap_in(staging, path)
    except OSError as error:
        raise CheckpointError(
            f"path={str(path)!r} could not be written ({error}{_disk_space_hint(error, path, tensors)}); "
            "what was saved there before is untouched"
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    with contextlib.suppress(OSError):  # the folder is written; if its predecessor stays, it costs disk space only
        _remove_leftovers(path, "old")
    return path


def remove_folder(path: Path) -> None:
    """Remove a stored folder atomically, and what killed writers of it left: a reader finds all of it or nothing.

    A folder that `write_folder` would not replace, because it holds files of others, is set aside instead.
    """
    if is_real_folder(path) and not is_replaceable(path):
        set_aside(path)
    for folder in (*_leftovers(path, "old"), *filter(is_real_folder, [path])):
        os.replace(folder, _sibling(path, "tmp"))
    _remove_leftovers(path, "tmp")


def set_aside(path: Path) -> None:
    """Rename a folder, with all that it holds, so that it is neither used nor removed (`SET_ASIDE`)."""
    path.rename(path.with_name(f"{SET_ASIDE}{path.name}-{uuid.uuid4().hex[:8]}"))


def has_leftovers(path: Path) -> bool:
    """Return whether a killed writer of a stored folder left its predecessor, or a part of the folder, beside it."""
    return bool(_leftovers(path, "old") or _leftovers(path, "tmp"))


def tensor_chunks(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a safetensors file, whose tensors are copied to the host one at a time if at all.

    A replay may fill most of the memory, and `serialize_tensors` needs as much again.
    """
    text = _header(tensors)
    yield len(text).to_bytes(8, "little")
    yield text
    for tensor in tensors.values():
        yield from _chunks_of(tensor.detach().cpu().contiguous())


def _header(tensors: Mapping[str, Tensor]) -> bytes:
    """Return the header of a safetensors file: the type, shape and place of each tensor."""
    header: dict[str, Any] = {}
    start = 0
    for name, tensor in tensors.items():
        stop = start + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPE_NAMES[tensor.dtype], "shape": [*tensor.shape], "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)


def _chunks_of(tensor: Tensor) -> Iterator[memoryview]:
    array: Any = tensor.view(-1).view(torch.uint8).numpy() if tensor.numel() else b""
    data = memoryview(array)
    for start in range(0, len(data), CHUNK):
        yield data[start : start + CHUNK]


def serialize_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Return tensors as the bytes of a safetensors file.

    `safetensors.torch.save` creates a ctypes type for every tensor size, and ctypes frees none of them (6 kB each); it
    is called for bfloat16 only, which numpy lacks.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    if any(tensor.dtype is torch.bfloat16 for tensor in plain.values()):
        return safetensors.torch.save(plain)
    return safetensors.numpy.save({name: tensor.numpy() for name, tensor in plain.items()})


def _encoded_files(
    documents: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]
) -> Iterator[tuple[str, Iterable[bytes | memoryview]]]:
    """Yield name and bytes of one file at a time, so that a population is not in memory twice."""
    for name, document in documents.items():
        yield _file_name(f"{name}.json"), [_to_json(name, document)]
    for name, named in tensors.items():
        for key, tensor in named.items():
            if tensor.dtype not in DTYPES.values():
                raise ConfigurationError(f"{name}: tensor {key!r} has dtype {tensor.dtype}, which is not saved")
            if tensor.dim() > MAX_AXES:
                raise CheckpointError(f"{name}: tensor {key!r} has {tensor.dim()} axes; allowed are at most {MAX_AXES}")
        if (header := len(_header(named))) > MAX_HEADER_BYTES:
            raise CheckpointError(
                f"{name}: names and shapes of {len(named)} tensors take {header} bytes; allowed are {MAX_HEADER_BYTES}"
            )
        size = sum(tensor.numel() * tensor.element_size() for tensor in named.values())
        chunks = tensor_chunks(named) if size > STREAMED_BYTES else [serialize_tensors(named)]
        yield _file_name(f"{name}.safetensors"), chunks


def _file_name(name: str) -> str:
    if not FILE_NAME.fullmatch(name) or name == MANIFEST:
        raise ConfigurationError(f"{name!r} cannot name a file of a checkpoint; allowed are letters, digits, _ and -")
    return name


def _write(file: Path, chunks: Iterable[bytes | memoryview]) -> dict[str, Any]:
    """Write and sync a file; return its entry of the manifest."""
    size, digest = 0, hashlib.sha256()
    with open(file, "wb") as handle:
        for chunk in chunks:
            handle.write(chunk)
            digest.update(chunk)
            size += len(chunk)
        handle.flush()
        os.fsync(handle.fileno())
    return {"bytes": size, "sha256": digest.hexdigest()}


def _disk_space_hint(error: OSError, path: Path, tensors: Mapping[str, Mapping[str, Tensor]]) -> str:
    """Say how much space is needed and free, if the error is that there is too little."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return ""
    needed = sum(tensor.numel() * tensor.element_size() for named in tensors.values() for tensor in named.values())
    free = shutil.disk_usage(next(folder for folder in path.absolute().parents if folder.exists())).free
    return f": needed are {needed} bytes and a little, free are {free}"


def check_target(path: Path) -> None:
    """Raise CheckpointError if a path is something that `write_folder` does not replace; nothing is changed."""
    if "\0" in str(path):
        raise CheckpointError(f"path={str(path)!r} holds a NUL byte; allowed is the name of a folder to make")
    if path.name in ("", ".."):  # possibly this process's working directory, which cannot be replaced
        raise CheckpointError(f"path={str(path)!r} does not end in a name; allowed is the name of a folder to make")
    try:
        _check_replaceable(path)
    except OSError as error:
        raise CheckpointError(
            f"path={str(path)!r} cannot be written: {error.strerror}; allowed is the name of a folder to make"
        ) from error


def _check_replaceable(path: Path) -> None:
    """As `check_target`; OSError if the file system refuses the path, or the longer one of the folder beside it."""
    with contextlib.suppress(FileNotFoundError):
        os.lstat(_sibling(path, "tmp"))
    if path.is_symlink():
        raise CheckpointError(
            f"path={str(path)!r} is a symbolic link, which is not replaced; allowed is a folder, such as the one to "
            "which it leads"
        )
    if not os.path.lexists(path) or (is_real_folder(path) and not any(path.iterdir())):
        return
    if not is_real_folder(path) or not (path / MANIFEST).is_file():
        raise CheckpointError(f"path={str(path)!r} exists and is not a checkpoint; it is not overwritten")
    if others := _other_files(path):
        raise CheckpointError(
            f"path={str(path)!r} holds {others[0]!r}, which is no file of a checkpoint; it is not overwritten: move "
            "what is yours out of it, or save to another folder"
        )


def _other_files(path: Path) -> list[str]:
    """Return what a folder with a manifest holds beside the files of `write_folder`; all, if the manifest is no ours.

    A manifest that cannot be read counts as a damaged one of ours.
    """
    names = sorted(entry.name for entry in path.iterdir() if entry.name not in SYSTEM_FILES)
    try:
        manifest = _manifest(path)
    except CheckpointError:
        return [name for name in names if not FILE_NAME.fullmatch(name)]
    if not str(manifest.get("schema")).startswith(SCHEMA.partition("/")[0] + "/"):
        return names
    files = manifest.get("files")
    return [name for name in names if name != MANIFEST and not (isinstance(files, dict) and name in files)]


def is_replaceable(path: Path) -> bool:
    """Return whether `write_folder` would replace what is at a path, or there is nothing."""
    try:
        check_target(path)
    except CheckpointError:
        return False
    return True


def _swap_in(staging: Path, path: Path) -> None:
    """Rename a folder to its place; an earlier one is moved away first, because no folder is renamed onto another."""
    old = _sibling(path, "old")
    if replaces := path.exists():
        os.replace(path, old)
    try:
        os.replace(staging, path)
        sync_folder(path.parent)
    except OSError:
        if path.exists():
            os.replace(path, staging)
        if replaces:
            os.replace(old, path)
        raise


def _sibling(path: Path, role: str) -> Path:
    return path.with_name(f".{path.name}.{role}-{uuid.uuid4().hex}")


def _leftovers(path: Path, role: str) -> list[Path]:
    if not path.parent.is_dir():
        return []
    named = (other for other in path.parent.iterdir() if other.name.startswith(f".{path.name}.{role}-"))
    return sorted(filter(is_real_folder, named))


def is_real_folder(path: Path) -> bool:
    """Whether a path is a folder and no link to one: shutil.rmtree opens anything else, and a FIFO would block."""
    return path.is_dir() and not path.is_symlink()


def _remove_leftovers(path: Path, role: str) -> None:
    for other in _leftovers(path, role):
        shutil.rmtree(other, ignore_errors=True)


# -- reading single files


def open_regular(path: PathLike, *, follow_links: bool = False, limit: int | None = None) -> BinaryIO:
    """Open a regular file for reading: a FIFO would block, and a device may have no end.

    A symbolic link is refused, unless `follow_links`; then its target must be a regular file.

    Raises:
        CheckpointError: the file is missing, unreadable, not a regular file, or has more than `limit` bytes.
    """
    try:
        handle = os.open(path, READ_FLAGS | (0 if follow_links else NOFOLLOW))
    except (OSError, ValueError) as error:  # ValueError: the path holds a NUL byte
        if getattr(error, "errno", None) == errno.ELOOP:
            raise CheckpointError(f"path={os.fspath(path)!r} is a symbolic link; {REGULAR}") from error
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(f"path={os.fspath(path)!r} is missing, or cannot be read: {reason}") from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise CheckpointError(f"path={os.fspath(path)!r} is a folder, a FIFO or a device; {REGULAR}")
    file = os.fdopen(handle, "rb")
    size = _size(file)
    if limit is not None and size > limit:
        file.close()
        raise CheckpointError(f"path={os.fspath(path)!r} has {size} bytes; allowed are at most {limit}")
    return file


@contextlib.contextmanager
def _reading(path: PathLike) -> Iterator[None]:
    """Raise CheckpointError if an open file cannot be read, for example because the disk has an unreadable sector."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"path={os.fspath(path)!r} cannot be read: {error.strerror or error}") from error


def read_regular(path: PathLike, limit: int, *, follow_links: bool = False) -> bytes:
    """Return the bytes of a regular file of at most `limit` bytes; a larger one is refused before it is read.

    Raises:
        CheckpointError: as `open_regular`; or the file is larger, or the disk cannot read it.
    """
    with open_regular(path, follow_links=follow_links) as file, _reading(path):
        data = b"" if _size(file) > limit else file.read(limit + 1)
        if max(_size(file), len(data)) > limit:
            raise CheckpointError(f"path={os.fspath(path)!r} has {_size(file)} bytes; allowed are at most {limit}")
    return data


def read_lines(path: PathLike) -> Iterator[str]:
    """Yield the lines of a text file without their newlines, with one line in memory at a time.

    A last line without a newline is left out: its writer was killed, or the disk was full. Bytes that are not UTF-8
    become U+FFFD.

    Raises:
        CheckpointError: as `open_regular`; or the file has more than `MAX_TEXT_BYTES`, or a line more than
            `MAX_LINE_BYTES`, or the disk cannot read it.
    """
    with open_regular(path, limit=MAX_TEXT_BYTES) as file, _reading(path):
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), start=1):
            if len(line) > MAX_LINE_BYTES:
                raise CheckpointError(
                    f"path={os.fspath(path)!r}: line {number} has more than the {MAX_LINE_BYTES} bytes that are allowed"
                )
            if line.endswith(b"\n"):
                yield line[:-1].decode("utf-8", errors="replace")


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


# -- reading stored folders


def read_folder(path: PathLike, kind: str) -> tuple[Mapping[str, Any], Mapping[str, Mapping[str, Tensor]]]:
    """Return the documents and the tensors of a folder of `kind`, by name.

    The manifest and the files' sizes are checked now. A document, and all tensors of a file, are read and verified on
    first access, which may raise CheckpointError too; `tensor_infos` reads a file's header only. If a crash came while
    the folder was replaced, its predecessor is read.

    Raises:
        CheckpointError: the folder is missing, damaged, of another kind, or of an unknown schema.
    """
    files = _files(Path(path), kind)
    documents = {file.path.stem: file for file in files if file.path.suffix == ".json"}
    tensors = {file.path.stem: LazyTensors(file) for file in files if file.path.suffix == ".safetensors"}
    return LazyDocuments(documents), tensors


def verify_folder(path: PathLike, kind: str) -> None:
    """Raise CheckpointError unless every byte of a folder of `kind` is as it was written."""
    for file in _files(Path(path), kind):
        file.verify()


def folder_kind(path: PathLike) -> str:
    """Return the kind of a stored folder."""
    return str(_manifest(_locate(Path(path))).get("kind"))


def tensor_infos(tensors: Mapping[str, Tensor]) -> dict[str, TensorInfo]:
    """Return the shape and dtype of each tensor, for stored ones without reading them."""
    if isinstance(tensors, LazyTensors):
        return tensors.infos
    return {name: TensorInfo(tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}


def with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> Mapping[str, Tensor]:
    """Return the tensors whose names start with a prefix, by the rest of their names; stored ones stay unread."""
    return LazySection(tensors, prefix) if isinstance(tensors, LazyTensors) else _with_prefix(tensors, prefix)


def _with_prefix(named: Mapping[str, T], prefix: str) -> dict[str, T]:
    return {name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)}


class StoredFile(NamedTuple):
    """A file as the manifest describes it."""

    path: Path
    size: int
    sha256: str

    def read(self) -> bytes:
        """Return the file's bytes; CheckpointError if they have changed."""
        if self.path.suffix == ".json" and self.size > MAX_JSON_BYTES:
            raise CheckpointError(f"path={str(self.path)!r} is larger than {MAX_JSON_BYTES} bytes")
        data = read_regular(self.path, self.size)
        self._compare(hashlib.sha256(data).hexdigest())
        return data

    def verify(self) -> None:
        """Raise CheckpointError if the file's bytes have changed; only a chunk is in memory at a time."""
        digest = hashlib.sha256()
        with open_regular(self.path) as handle, _reading(self.path):
            while data := handle.read(CHUNK):
                digest.update(data)
        self._compare(digest.hexdigest())

    def _compare(self, sha256: str) -> None:
        if sha256 != self.sha256:
            raise CheckpointError(
                f"path={str(self.path)!r} was changed after it was written (its SHA-256 differs), or a run saved the "
                "folder again while it was read; reading it again shows which"
            )


class LazyDocuments(Mapping[str, Any]):
    """Documents by name, each read on first access."""

    def __init__(self, files: Mapping[str, StoredFile]) -> None:
        self._files = files
        self._cache: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._cache:
            file = self._files[name]
            self._cache[name] = parse_json(file.read(), f"path={str(file.path)!r}")
        return self._cache[name]

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


class LazyTensors(Mapping[str, Tensor]):
    """The tensors of one file: names, shapes and dtypes come from its header, all data is read on first access."""

    prefix = ""
    """The beginning of their names in the file."""

    def __init__(self, file: StoredFile) -> None:
        self._file = file

    @cached_property
    def infos(self) -> dict[str, TensorInfo]:
        """Shape and dtype of each tensor."""
        path = self._file.path
        with open_regular(path) as handle, _reading(path):
            size = int.from_bytes(handle.read(8), "little")
        if size > min(MAX_HEADER_BYTES, self._file.size - 8):
            raise self._error(f"its header would have {size} bytes")
        try:
            with safetensors.safe_open(path, framework="np") as file:
                if file.metadata():
                    raise ValueError("it has metadata, which is never written")
                return {name: _tensor_info(name, file.get_slice(name)) for name in file.keys()}  # noqa: SIM118  # it has no __iter__
        except (safetensors.SafetensorError, OSError, ValueError, OverflowError) as error:
            raise self._error(str(error)) from error

    @cached_property
    def _tensors(self) -> dict[str, Tensor]:
        infos = self.infos
        try:
            tensors = safetensors.torch.load(self._file.read())
        except (safetensors.SafetensorError, ValueError, KeyError) as error:
            raise self._error(str(error)) from error
        if tensor_infos(tensors) != infos:
            raise self._error("it was exchanged while it was read")
        return tensors

    def _error(self, reason: str) -> CheckpointError:
        return CheckpointError(f"path={str(self._file.path)!r} is not a valid safetensors file: {reason:.200}")

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __contains__(self, name: object) -> bool:
        return name in self.infos

    def __iter__(self) -> Iterator[str]:
        return iter(self.infos)

    def __len__(self) -> int:
        return len(self.infos)


class LazySection(LazyTensors):
    """The tensors of a file with a prefix, by the rest of their names; the file is read once for all sections."""

    def __init__(self, whole: LazyTensors, prefix: str) -> None:
        super().__init__(whole._file)
        self._whole, self.prefix = whole, prefix

    @cached_property
    def infos(self) -> dict[str, TensorInfo]:
        return _with_prefix(self._whole.infos, self.prefix)

    @cached_property
    def _tensors(self) -> dict[str, Tensor]:
        return _with_prefix(self._whole._tensors, self.prefix)


def _tensor_info(name: str, stored: Any) -> TensorInfo:
    """Return the shape and dtype of a tensor of an open safetensors file; ValueError if they are not allowed."""
    shape, dtype = tuple(stored.get_shape()), stored.get_dtype()
    if dtype not in DTYPES or len(shape) > MAX_AXES:
        raise ValueError(f"tensor {name!r:.100} has dtype {dtype} and {len(shape)} axes")
    return TensorInfo(shape, DTYPES[dtype])


def _files(path: Path, kind: str) -> list[StoredFile]:
    """Return the files of a folder of `kind`; all exist and have the size that was written."""
    path = _locate(path)
    manifest = _manifest(path)
    if manifest.get("schema") != SCHEMA:
        raise UnknownSchemaError(
            f"path={str(path)!r} has schema {manifest.get('schema')!r:.100}; this version reads {SCHEMA!r}: read it "
            "with the version of agilerl-like that wrote it, or with a newer one"
        )
    if manifest.get("kind") != kind:
        found = manifest.get("kind")
        hint = _loader_hint(found)
        raise CheckpointError(f"path={str(path)!r} holds kind={found!r:.100}{hint}; what is wanted is {kind!r}")
    files = manifest.get("files")
    if not isinstance(files, dict):
        raise CheckpointError(f"path={str(path)!r} has a manifest without files")
    return [_checked_file(path, name, entry) for name, entry in files.items()]


def _loader_hint(kind: Any) -> str:
    """Return which functions read a kind of folder, as the end of an error; "" for an unknown kind."""
    agent = " or ".join(f"{algorithm}.load" for algorithm in registered("algorithm"))
    match kind:
        case "agent":
            return f", which {agent} reads"
        case "population":
            return ", which Population.load (MultiAgentPopulation.load, if it is multi-agent) reads"
        case "checkpoint":
            return (
                ", which train_on_policy(…, resume=…) of its run (train_multi_agent_on_policy, if it is multi-agent), "
                f"{agent} (its best agent) and Population.load read"
            )
        case _:
            return ""


def _checked_file(folder: Path, name: str, entry: Any) -> StoredFile:
    if not FILE_NAME.fullmatch(name):
        raise CheckpointError(
            f"path={str(folder)!r} has a manifest with the file name {name!r:.100}; "
            "only plain .json and .safetensors are read"
        )
    file = folder / name
    with open_regular(file) as handle:
        size = _size(handle)
    match entry:
        case {"bytes": int(written), "sha256": str(sha256)}:
            if size != written:
                raise CheckpointError(f"path={str(file)!r} has {size} bytes; written were {str(written)[:40]}")
            return StoredFile(file, size, sha256)
    raise CheckpointError(f"path={str(folder)!r} has a manifest that does not say what {name!r} is: {entry!r:.100}")


def _manifest(path: Path) -> dict[str, Any]:
    file = path / MANIFEST
    if not os.path.lexists(file):
        raise CheckpointError(f"path={str(path)!r} is not a checkpoint: it has no {MANIFEST}")
    manifest = parse_json(read_regular(file, MAX_JSON_BYTES), f"path={str(file)!r}")
    if not isinstance(manifest, dict):
        raise CheckpointError(f"path={str(file)!r} does not hold a manifest")
    return manifest


def _locate(path: Path) -> Path:
    """Return a folder's path, or that of its predecessor if a crash interrupted the replacement."""
    try:
        if path.exists():
            return path
        for old in _leftovers(path, "old"):
            return old
    except OSError as error:
        raise CheckpointError(f"path={str(path)!r} cannot be read: {error.strerror}") from error
    raise CheckpointError(f"path={str(path)!r} does not exist")


# -- JSON


def _to_json(name: str, document: Any) -> bytes:
    data = json.dumps(document, indent=1, sort_keys=True).encode()
    try:
        _check_json_limits(data)
    except ValueError as error:
        raise CheckpointError(f"{name}={document!r:.100} could not be read again: {error}") from None
    return data


def parse_json(data: bytes, where: str) -> Any:
    """Return parsed JSON, after a check that its size and depth are safe to parse.

    Raises:
        CheckpointError: it is not JSON, too large, nested too deeply, or has a duplicate key; `where` names the source.
    """
    try:
        _check_json_limits(data)
        text = data.decode()
        del data  # so that a large document is not in memory three times
        return json.loads(text, object_pairs_hook=_refuse_duplicate_keys)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where} is not valid JSON: {error!s:.200}") from error


def _check_json_limits(data: bytes) -> None:
    """Raise ValueError unless JSON is safe to parse."""
    if len(data) > MAX_JSON_BYTES:
        raise ValueError(f"it is larger than {MAX_JSON_BYTES} bytes")
    if data.count(b",") > MAX_JSON_COMMAS or data.count(b"[") + data.count(b"{") > MAX_JSON_CONTAINERS:
        raise ValueError(f"it has more than {MAX_JSON_COMMAS} values, or than {MAX_JSON_CONTAINERS} lists and tables")
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")  # a pattern that matches escapes takes 60 bytes for each
    brackets = STRING_LITERALS.sub(b"", plain).translate(None, NOT_BRACKETS)
    if max(accumulate(map(BRACKET_DEPTH.__getitem__, brackets)), default=0) > MAX_JSON_DEPTH:
        raise ValueError(f"it is nested deeper than {MAX_JSON_DEPTH} levels")


def _refuse_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a key is there twice")
    return table
