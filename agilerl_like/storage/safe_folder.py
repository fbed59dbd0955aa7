"""Folders that are written whole or not at all, and believed only if every byte is as it was written.

A stored folder holds JSON documents, safetensors files and a manifest with the schema and each file's size and
SHA-256. It is written beside its place, synced, and renamed into it. Reading never executes anything: no pickle, no
`torch.load`.

The subtlety is that what a stranger wrote must not cost memory or time before it is judged. So a file is read when it
is asked for, and not before; a tensor's shape can be compared (`tensor_infos`) when only the file's header has been read;
and every reader has a limit. What is handed out lies in this process's memory, whatever becomes of the file.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
import stat
import uuid
from collections.abc import Iterator, Mapping
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

SCHEMA = "agilerl-like/1"
MANIFEST = "manifest.json"

MAX_JSON_BYTES = 8 * 2**20
MAX_JSON_COMMAS = 500_000
MAX_JSON_CONTAINERS = 100_000
MAX_JSON_DEPTH = 64
"""What one document may hold: a few bytes of JSON can become dozens of Python's."""
MAX_HEADER_BYTES = 2**20
"""Of a safetensors file: ten thousand tensors."""
MAX_SIZE = 2**48
"""Of one axis of a tensor."""

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
"""What weights, moments, buffers and observations are made of, by safetensors's names."""

MAX_TEXT_BYTES = 2**28
"""Of a text file that is read line by line: four million rows of metrics.csv would be more than any run writes."""
MAX_LINE_BYTES = 2**20
"""Of one line of such a file."""

CHUNK = 2**20
FILE_NAME = re.compile(r"[\w-]+\.(json|safetensors)")
STRING_LITERALS = re.compile(rb'"[^"]*(?:"|\Z)')
"""Of JSON without escapes. One without an end goes to the last byte: else every quote in it would be tried as a
beginning, in quadratic time."""
NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
BRACKET_DEPTH = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}

NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
READ_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_BINARY", "O_CLOEXEC"))
"""How files are opened for reading: a FIFO must not keep its reader waiting for a writer."""


class UnknownSchemaError(CheckpointError):
    """A folder is of a schema that this version does not read; nothing says that it is damaged."""


class TensorInfo(NamedTuple):
    """What is known of a tensor without reading it."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{list(self.shape)} of {self.dtype}"


# -- writing


def write_folder(
    path: str | os.PathLike[str], kind: str, documents: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]
) -> Path:
    """Write a folder of `kind` and return its path.

    `documents[name]` becomes `name.json` and `tensors[name]` becomes `name.safetensors`.
    A folder that this package wrote before is replaced; until the last moment it stays as it was. What writers that
    were killed have left beside it is removed, so at one place only one may write at a time.

    Raises:
        CheckpointError: something else is at `path`, or the disk does not take it (what was there before is still
            there), or it is more than a reader would accept.
    """
    path = Path(path)
    _check_target(path)
    staging = _sibling(path, "tmp")
    try:
        make_folder(path.parent)
        _remove_leftovers(path, "tmp")
        staging.mkdir()
        files = {name: _write(staging / name, data) for name, data in _encoded_files(documents, tensors)}
        _write(staging / MANIFEST, _to_json(MANIFEST, {"schema": SCHEMA, "kind": kind, "files": files}))
        sync_folder(staging)
        _swap_in(staging, path)
    except OSError as error:
        raise CheckpointError(
            f"path={str(path)!r} could not be written ({error}{_disk_space_hint(error, path, tensors)}); "
            "what was saved there before is untouched"
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    _remove_leftovers(path, "old")
    return path


def remove_folder(path: Path) -> None:
    """Remove a stored folder so that nobody ever finds half of it."""
    staging = _sibling(path, "tmp")
    os.replace(path, staging)
    shutil.rmtree(staging, ignore_errors=True)


def _encoded_files(
    documents: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]
) -> Iterator[tuple[str, bytes]]:
    """The files by name, made one at a time: a population need not lie in memory once more."""
    for name, document in documents.items():
        yield _file_name(f"{name}.json"), _to_json(name, document)
    for name, named in tensors.items():
        plain = {key: tensor.detach().cpu().contiguous() for key, tensor in named.items()}
        for key, tensor in plain.items():
            if tensor.dtype not in DTYPES.values():
                raise ConfigurationError(f"{name}: tensor {key!r} has dtype {tensor.dtype}, which is not saved")
        yield _file_name(f"{name}.safetensors"), _serialised(plain)


def _serialised(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors as the bytes of a safetensors file.

    `safetensors.torch.save` makes a ctypes type for every number of bytes that a tensor has, and ctypes frees none of
    them (6 kB each); it is called for bfloat16 alone, which numpy lacks.
    """
    if any(tensor.dtype is torch.bfloat16 for tensor in tensors.values()):
        return safetensors.torch.save(dict(tensors))
    return safetensors.numpy.save({name: tensor.numpy() for name, tensor in tensors.items()})


def _file_name(name: str) -> str:
    if not FILE_NAME.fullmatch(name) or name == MANIFEST:
        raise ConfigurationError(f"{name!r} cannot name a file of a checkpoint; allowed are letters, digits, _ and -")
    return name


def _write(file: Path, data: bytes) -> dict[str, Any]:
    """Write a file to the disk itself, and return what a manifest says of it."""
    with open(file, "wb") as handle:
        handle.write(data)
        handle.flush()
        os.fsync(handle.fileno())
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _disk_space_hint(error: OSError, path: Path, tensors: Mapping[str, Mapping[str, Tensor]]) -> str:
    """How much room there would have to be, if that is what an error is about."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return ""
    needed = sum(tensor.numel() * tensor.element_size() for named in tensors.values() for tensor in named.values())
    free = shutil.disk_usage(next(folder for folder in path.absolute().parents if folder.exists())).free
    return f": needed are {needed} bytes and a little, free are {free}"


def _check_target(path: Path) -> None:
    if path.name in ("", ".."):  # it may be the folder that this process works in, which nothing can take the place of
        raise CheckpointError(f"path={str(path)!r} does not end in a name; allowed is the name of a folder to make")
    if path.is_symlink() or (
        path.exists() and not (path / MANIFEST).is_file() and not (path.is_dir() and not any(path.iterdir()))
    ):
        raise CheckpointError(f"path={str(path)!r} exists and is not a checkpoint; it is not overwritten")


def _swap_in(staging: Path, path: Path) -> None:
    """Put a folder into its place for good; one that is there steps aside first, for nothing is renamed onto it."""
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


# -- reading


def open_regular(path: str | os.PathLike[str], *, follow_links: bool = False) -> BinaryIO:
    """Open a regular file for reading, and nothing else: a FIFO would block, and a device may have no end.

    A symbolic link is refused as well, unless `follow_links`; then its target must be a regular file.

    Raises:
        CheckpointError: the file is missing, unreadable, or not a regular file.
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
    return os.fdopen(handle, "rb")


def read_regular(path: str | os.PathLike[str], limit: int, *, follow_links: bool = False) -> bytes:
    """Return the bytes of a regular file of at most `limit` bytes; a larger one is refused before it is read.

    Raises:
        CheckpointError: as `open_regular`; or the file is larger.
    """
    with open_regular(path, follow_links=follow_links) as file:
        data = b"" if _size(file) > limit else file.read(limit + 1)
        if max(_size(file), len(data)) > limit:
            raise CheckpointError(f"path={os.fspath(path)!r} has {_size(file)} bytes; allowed are at most {limit}")
    return data


def read_lines(path: str | os.PathLike[str], *, follow_links: bool = True) -> Iterator[str]:
    """Yield the lines of a text file without their newlines; only one line is in memory at a time.

    The last line is left out if it does not end in a newline: the process that wrote it was killed, or the disk was
    full. Bytes that are not UTF-8 become U+FFFD.

    Raises:
        CheckpointError: as `open_regular`; or the file has more than `MAX_TEXT_BYTES`, or a line more than
            `MAX_LINE_BYTES`.
    """
    with open_regular(path, follow_links=follow_links) as file:
        if _size(file) > MAX_TEXT_BYTES:
            raise CheckpointError(
                f"path={os.fspath(path)!r} has {_size(file)} bytes; allowed are at most {MAX_TEXT_BYTES}"
            )
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), start=1):
            if len(line) > MAX_LINE_BYTES:
                raise CheckpointError(
                    f"path={os.fspath(path)!r}: line {number} has more than the {MAX_LINE_BYTES} bytes that are allowed"
                )
            if line.endswith(b"\n"):
                yield line[:-1].decode("utf-8", errors="replace")


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def read_folder(
    path: str | os.PathLike[str], kind: str
) -> tuple[Mapping[str, Any], Mapping[str, Mapping[str, Tensor]]]:
    """Return the documents and the tensors of a folder of `kind`, by name.

    The manifest and the files' sizes are checked now. A document, and all tensors of a file, are read and verified
    when one is first asked for, which then raises CheckpointError too; `tensor_infos` costs a file's header alone. If a
    crash came while the folder was replaced, its predecessor is what is read.

    Raises:
        CheckpointError: the folder is missing, damaged, of another kind, or of a schema that this version does not
            know.
    """
    files = _files(Path(path), kind)
    documents = {file.path.stem: file for file in files if file.path.suffix == ".json"}
    tensors = {file.path.stem: LazyTensors(file) for file in files if file.path.suffix == ".safetensors"}
    return LazyDocuments(documents), tensors


def verify_folder(path: str | os.PathLike[str], kind: str) -> None:
    """Raise CheckpointError unless every byte of a folder of `kind` is as it was written."""
    for file in _files(Path(path), kind):
        file.verify()


def folder_kind(path: str | os.PathLike[str]) -> str:
    """Return what kind of folder lies at a path."""
    return str(_manifest(_locate(Path(path))).get("kind"))


def tensor_infos(tensors: Mapping[str, Tensor]) -> dict[str, TensorInfo]:
    """Return the shape and dtype of each tensor; of tensors that are stored, without reading them."""
    if isinstance(tensors, LazyTensors):
        return tensors.infos
    return {name: TensorInfo(tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}


def with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> Mapping[str, Tensor]:
    """The tensors whose names begin so, by the rest of their names; of those that are stored, without reading them."""
    return LazySection(tensors, prefix) if isinstance(tensors, LazyTensors) else _with_prefix(tensors, prefix)


def _with_prefix(named: Mapping[str, T], prefix: str) -> dict[str, T]:
    return {name.removeprefix(prefix): its for name, its in named.items() if name.startswith(prefix)}


class StoredFile(NamedTuple):
    """A file as the manifest describes it."""

    path: Path
    size: int
    sha256: str

    def read(self) -> bytes:
        """Its bytes, if they are as they were written."""
        if self.path.suffix == ".json" and self.size > MAX_JSON_BYTES:
            raise CheckpointError(f"path={str(self.path)!r} is larger than {MAX_JSON_BYTES} bytes")
        data = read_regular(self.path, self.size)
        self._compare(hashlib.sha256(data).hexdigest())
        return data

    def verify(self) -> None:
        """Raise CheckpointError unless its bytes are as they were written; only a few are in memory at a time."""
        digest = hashlib.sha256()
        with open_regular(self.path) as handle:
            while data := handle.read(CHUNK):
                digest.update(data)
        self._compare(digest.hexdigest())

    def _compare(self, sha256: str) -> None:
        if sha256 != self.sha256:
            raise CheckpointError(f"path={str(self.path)!r} was changed after it was written (its SHA-256 differs)")


class LazyDocuments(Mapping[str, Any]):
    """Documents by name, each read when it is first asked for."""

    def __init__(self, files: Mapping[str, StoredFile]) -> None:
        self._files = files
        self._known: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._known:
            file = self._files[name]
            self._known[name] = parse_json(file.read(), f"path={str(file.path)!r}")
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


class LazyTensors(Mapping[str, Tensor]):
    """The tensors of one file: their names, shapes and dtypes for the price of its header, all else on demand."""

    prefix = ""
    """What stands in front of their names in the file."""

    def __init__(self, file: StoredFile) -> None:
        self._file = file

    @cached_property
    def infos(self) -> dict[str, TensorInfo]:
        """Shape and dtype of each tensor."""
        with open_regular(self._file.path) as handle:
            size = int.from_bytes(handle.read(8), "little")
            if size > min(MAX_HEADER_BYTES, self._file.size - 8):
                raise self._error(f"its header would have {size} bytes")
            header = parse_json(handle.read(size), f"path={str(self._file.path)!r}")
        try:
            return _parse_header(header, self._file.size - 8 - size)
        except ValueError as error:
            raise self._error(str(error)) from None

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

    def _error(self, why: str) -> CheckpointError:
        return CheckpointError(f"path={str(self._file.path)!r} is not a valid safetensors file: {why:.200}")

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __contains__(self, name: object) -> bool:
        return name in self.infos

    def __iter__(self) -> Iterator[str]:
        return iter(self.infos)

    def __len__(self) -> int:
        return len(self.infos)


class LazySection(LazyTensors):
    """Some of the tensors of a file, by the rest of their names; the file is read once for all sections."""

    def __init__(self, whole: LazyTensors, prefix: str) -> None:
        super().__init__(whole._file)
        self._whole, self.prefix = whole, prefix

    @cached_property
    def infos(self) -> dict[str, TensorInfo]:
        return _with_prefix(self._whole.infos, self.prefix)

    @cached_property
    def _tensors(self) -> dict[str, Tensor]:
        return _with_prefix(self._whole._tensors, self.prefix)


def _parse_header(header: Any, size: int) -> dict[str, TensorInfo]:
    """What a header says of each tensor; ValueError unless they fill `size` bytes, one behind the other."""
    if not isinstance(header, dict):
        raise ValueError("its header is no table of tensors")
    infos: dict[str, TensorInfo] = {}
    places: list[tuple[int, int]] = []
    for name, entry in header.items():
        infos[name], place = _parse_entry(entry)
        places.append(place)
    end = 0
    for start, stop in sorted(places):
        if start != end:
            raise ValueError("its tensors overlap, or leave gaps")
        end = stop
    if end != size:
        raise ValueError(f"its tensors have {end} bytes; there are {size}")
    return infos


def _parse_entry(entry: Any) -> tuple[TensorInfo, tuple[int, int]]:
    """One tensor's shape, dtype and place."""
    match entry:
        case {"dtype": str(name), "shape": list(shape), "data_offsets": [int(start), int(stop)]} if name in DTYPES:
            sizes_are_whole = all(type(size) is int and 0 <= size <= MAX_SIZE for size in shape)
            if len(shape) <= 8 and sizes_are_whole:
                dtype = DTYPES[name]
                if stop - start == math.prod(shape) * dtype.itemsize:
                    return TensorInfo(tuple(shape), dtype), (start, stop)
    raise ValueError(f"its header has {entry!r:.100} for a tensor")


def _files(path: Path, kind: str) -> list[StoredFile]:
    """The files of a folder of `kind`, all of which are there in the size that they were written in."""
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
    return [_checked_file(path, name, infos) for name, infos in files.items()]


def _loader_hint(kind: Any) -> str:
    """The functions that read a kind of folder, as the end of an error; empty for an unknown kind."""
    agent = " or ".join(f"{algorithm}.load" for algorithm in registered("algorithm"))
    match kind:
        case "agent":
            return f", which {agent} reads"
        case "population":
            return ", which Population.load (MultiAgentPopulation.load, if it is multi-agent) reads"
        case "checkpoint":
            return f", which train_on_policy(…, resume=…) of its run, {agent} (its best agent) and Population.load read"
        case _:
            return ""


def _checked_file(folder: Path, name: str, infos: Any) -> StoredFile:
    if not FILE_NAME.fullmatch(name):
        raise CheckpointError(
            f"path={str(folder)!r} has a manifest with the file name {name!r:.100}; "
            "only plain .json and .safetensors are read"
        )
    file = folder / name
    with open_regular(file) as handle:
        size = _size(handle)
    match infos:
        case {"bytes": int(written), "sha256": str(sha256)}:
            if size != written:
                raise CheckpointError(f"path={str(file)!r} has {size} bytes; written were {str(written)[:40]}")
            return StoredFile(file, size, sha256)
    raise CheckpointError(f"path={str(folder)!r} has a manifest that does not say what {name!r} is: {infos!r:.100}")


def _manifest(path: Path) -> dict[str, Any]:
    file = path / MANIFEST
    if not os.path.lexists(file):
        raise CheckpointError(f"path={str(path)!r} is not a checkpoint: it has no {MANIFEST}")
    manifest = parse_json(read_regular(file, MAX_JSON_BYTES), f"path={str(file)!r}")
    if not isinstance(manifest, dict):
        raise CheckpointError(f"path={str(file)!r} does not hold a manifest")
    return manifest


def _locate(path: Path) -> Path:
    """Where the folder of a path is: there, or aside, if a crash kept its successor from taking the place."""
    if path.exists():
        return path
    for old in _leftovers(path, "old"):
        return old
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
    """Return what JSON describes, after a check that its size and depth are safe to parse.

    Raises:
        CheckpointError: it is not JSON, too large, nested too deep, or gives a key twice; `where` says whose it is.
    """
    try:
        _check_json_limits(data)
        text = data.decode()
        del data  # so that a large document is not in memory three times
        return json.loads(text, object_pairs_hook=_refuse_duplicate_keys)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where} is not valid JSON: {error!s:.200}") from error


def _check_json_limits(data: bytes) -> None:
    """Raise ValueError unless JSON is of a size that is safe to read."""
    if len(data) > MAX_JSON_BYTES:
        raise ValueError(f"it is larger than {MAX_JSON_BYTES} bytes")
    if data.count(b",") > MAX_JSON_COMMAS or data.count(b"[") + data.count(b"{") > MAX_JSON_CONTAINERS:
        raise ValueError(f"it has more than {MAX_JSON_COMMAS} values, or than {MAX_JSON_CONTAINERS} lists and tables")
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")  # a pattern that knows escapes takes 60 bytes for each
    brackets = STRING_LITERALS.sub(b"", plain).translate(None, NOT_BRACKETS)
    if max(accumulate(map(BRACKET_DEPTH.__getitem__, brackets)), default=0) > MAX_JSON_DEPTH:
        raise ValueError(f"it is nested deeper than {MAX_JSON_DEPTH} levels")


def _refuse_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a key is there twice")
    return table
