"""Folders that are written whole or not at all, and believed only if every byte is as it was written.

A stored folder holds JSON documents, safetensors files and a manifest with the schema and each file's size and
SHA-256. It is written beside its place, synced, and renamed into it. Reading never executes anything: no pickle, no
`torch.load`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from agilerl_like.errors import CheckpointError

SCHEMA = "agilerl-like/1"
MANIFEST = "manifest.json"
MAX_JSON_BYTES = 64 * 2**20


def write_folder(
    path: str | os.PathLike[str], kind: str, documents: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]
) -> Path:
    """Write a folder of `kind` and return its path.

    `documents[name]` becomes `name.json` and `tensors[name]` becomes `name.safetensors`.
    A folder that this package wrote before is replaced; until the last moment it stays as it was.

    Raises:
        CheckpointError: something else is at `path`, or the disk does not take it (what was there before is still
            there).
    """
    path = Path(path)
    _check_place(path)
    aside = path.with_name(f".{path.name}.tmp-{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.mkdir()
        contents = {f"{name}.json": _to_json(document) for name, document in documents.items()}
        for name, named in tensors.items():
            contents[f"{name}.safetensors"] = safetensors.torch.save(
                {k: t.detach().cpu().contiguous() for k, t in named.items()}
            )
        files = {
            name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in contents.items()
        }
        contents[MANIFEST] = _to_json({"schema": SCHEMA, "kind": kind, "files": files})
        for name, data in contents.items():
            with open(aside / name, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        _sync_folder(aside)
        _swap(aside, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise CheckpointError(
            f"path={str(path)!r} could not be written ({error}); what was saved there before is untouched"
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return path


def read_folder(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
    """Return the documents and the tensors of a folder of `kind`, by name.

    Raises:
        CheckpointError: the folder is missing, damaged, of another kind, or of a schema that this version does not
            know.
    """
    path = Path(path)
    manifest = _manifest(path)
    if manifest.get("schema") != SCHEMA:
        raise CheckpointError(
            f"path={str(path)!r} has schema {manifest.get('schema')!r}; this version reads {SCHEMA!r}"
        )
    if manifest.get("kind") != kind:
        raise CheckpointError(f"path={str(path)!r} holds a {manifest.get('kind')!r}; what is wanted is a {kind!r}")
    documents: dict[str, Any] = {}
    tensors: dict[str, dict[str, Tensor]] = {}
    files = manifest.get("files")
    if not isinstance(files, dict):
        raise CheckpointError(f"path={str(path)!r} has a manifest without files")
    for name, facts in files.items():
        data = _verified(path, name, facts)
        if name.endswith(".json"):
            documents[name.removesuffix(".json")] = _from_json(path / name, data)
            continue
        try:
            tensors[name.removesuffix(".safetensors")] = safetensors.torch.load(data)
        except safetensors.SafetensorError as error:
            raise CheckpointError(f"path={str(path / name)!r} is not a valid safetensors file: {error}") from error
    return documents, tensors


def kind_of(path: str | os.PathLike[str]) -> str:
    """Return what kind of folder lies at a path."""
    return str(_manifest(Path(path)).get("kind"))


def _manifest(path: Path) -> dict[str, Any]:
    file = path / MANIFEST
    if not path.exists():
        raise CheckpointError(f"path={str(path)!r} does not exist")
    if not file.is_file():
        raise CheckpointError(f"path={str(path)!r} is not a checkpoint: it has no {MANIFEST}")
    if file.stat().st_size > MAX_JSON_BYTES:
        raise CheckpointError(f"path={str(file)!r} is larger than {MAX_JSON_BYTES} bytes")
    manifest = _from_json(file, file.read_bytes())
    if not isinstance(manifest, dict):
        raise CheckpointError(f"path={str(file)!r} does not hold a manifest")
    return manifest


def _verified(folder: Path, name: str, facts: Any) -> bytes:
    file = folder / name
    if Path(name).name != name or not name.endswith((".json", ".safetensors")) or not isinstance(facts, dict):
        raise CheckpointError(
            f"path={str(folder)!r} has a manifest with the file name {name!r}; "
            "only plain .json and .safetensors are read"
        )
    if file.is_symlink() or not file.is_file():
        raise CheckpointError(f"path={str(file)!r} is missing")
    if file.stat().st_size != facts.get("bytes"):
        raise CheckpointError(f"path={str(file)!r} has {file.stat().st_size} bytes; written were {facts.get('bytes')}")
    data = file.read_bytes()
    if hashlib.sha256(data).hexdigest() != facts.get("sha256"):
        raise CheckpointError(f"path={str(file)!r} was changed after it was written (its SHA-256 differs)")
    return data


def _check_place(path: Path) -> None:
    if path.is_symlink() or (
        path.exists() and not (path / MANIFEST).is_file() and not (path.is_dir() and not any(path.iterdir()))
    ):
        raise CheckpointError(f"path={str(path)!r} exists and is not a checkpoint; it is not overwritten")


def _swap(aside: Path, path: Path) -> None:
    """Put a folder into its place; a folder cannot be renamed onto a full one, so the old one steps aside first."""
    if not path.exists():
        os.replace(aside, path)
        return
    old = path.with_name(f".{path.name}.old-{uuid.uuid4().hex}")
    os.replace(path, old)
    try:
        os.replace(aside, path)
    except OSError:
        os.replace(old, path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _sync_folder(path: Path) -> None:
    with contextlib.suppress(OSError):  # not every file system lets a folder be synced
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _to_json(document: Any) -> bytes:
    return json.dumps(document, indent=1, sort_keys=True).encode()


def _from_json(file: Path, data: bytes) -> Any:
    if len(data) > MAX_JSON_BYTES:
        raise CheckpointError(f"path={str(file)!r} is larger than {MAX_JSON_BYTES} bytes")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"path={str(file)!r} is not valid JSON: {type(error).__name__}") from error
