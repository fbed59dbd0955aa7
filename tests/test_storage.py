"""A stored folder is whole or not there, and every damage is one clear error."""

import json
import os
import pickle

import pytest
import torch

from agilerl_like import storage
from agilerl_like.errors import CheckpointError

TENSORS = {"weights": {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor([1, 2])}}
DOCUMENTS = {"facts": {"a": [1, 2.5, None], "b": "text"}}


@pytest.fixture
def folder(tmp_path):
    return storage.write_folder(tmp_path / "thing", "test", DOCUMENTS, TENSORS)


def test_what_is_read_is_what_was_written(folder):
    documents, tensors = storage.read_folder(folder, "test")
    assert documents == DOCUMENTS
    assert torch.equal(tensors["weights"]["w"], TENSORS["weights"]["w"])
    assert tensors["weights"]["n"].dtype == torch.int64
    assert storage.kind_of(folder) == "test"
    assert [p.name for p in folder.parent.iterdir()] == ["thing"]  # nothing is left beside it


def test_a_folder_is_replaced_by_its_successor(folder):
    storage.write_folder(folder, "test", {"facts": 2}, {})
    documents, tensors = storage.read_folder(folder, "test")
    assert (documents, tensors) == ({"facts": 2}, {})
    assert sorted(p.name for p in folder.iterdir()) == ["facts.json", "manifest.json"]


def test_a_full_disk_leaves_the_former_folder(folder, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"No space left on device.*what was saved there before is untouched"):
        storage.write_folder(folder, "test", {"facts": "new"}, {})
    monkeypatch.undo()
    assert storage.read_folder(folder, "test")[0] == DOCUMENTS
    assert [p.name for p in folder.parent.iterdir()] == ["thing"]


def test_foreign_places_are_not_overwritten(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    for name in ("mine", "file"):
        with pytest.raises(CheckpointError, match="is not a checkpoint; it is not overwritten"):
            storage.write_folder(tmp_path / name, "test", DOCUMENTS, TENSORS)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"
    storage.write_folder(tmp_path / "empty", "test", DOCUMENTS, TENSORS)


@pytest.mark.parametrize("name", ["facts.json", "weights.safetensors", "manifest.json"])
def test_every_flipped_byte_and_every_truncation_is_found(folder, name):
    whole = (folder / name).read_bytes()
    for place in range(0, len(whole), 7):
        for damaged in (whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :], whole[:place]):
            (folder / name).write_bytes(damaged)
            try:
                found = storage.read_folder(folder, "test")
            except CheckpointError:
                continue
            # white space in the manifest may change without changing what it says
            assert name == "manifest.json"
            assert found[0] == DOCUMENTS
    (folder / name).write_bytes(whole)
    storage.read_folder(folder, "test")


class Canary:
    def __reduce__(self):
        return (os.mkdir, ("canary-was-executed",))


def manifest_of(folder, **changes):
    manifest = json.loads((folder / "manifest.json").read_text()) | changes
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_hostile_folders_are_refused_and_nothing_is_executed(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    original = (folder / "manifest.json").read_bytes()

    def refused(match):
        with pytest.raises(CheckpointError, match=match):
            storage.read_folder(folder, "test")
        (folder / "manifest.json").write_bytes(original)

    manifest_of(folder, schema="agilerl-like/99")
    refused("schema 'agilerl-like/99'; this version reads 'agilerl-like/1'")
    manifest_of(folder, kind="other")
    refused("holds a 'other'")
    manifest_of(folder, files={"../../etc/passwd.json": {"bytes": 1, "sha256": ""}})
    refused("only plain")
    manifest_of(folder, files={"weights.pkl": {"bytes": 1, "sha256": ""}})
    refused("only plain")
    manifest_of(folder, files=[])
    refused("manifest without files")
    manifest_of(folder, files={"gone.json": {"bytes": 1, "sha256": ""}})
    refused("is missing")
    (folder / "manifest.json").write_text("[" * 100_000)
    refused("not valid JSON")
    (folder / "manifest.json").write_bytes(pickle.dumps(Canary()))
    refused("not valid JSON")
    (folder / "facts.json").unlink()
    (folder / "facts.json").symlink_to("/etc/hostname")
    refused("is missing")
    assert not (tmp_path / "canary-was-executed").exists()


def test_what_is_not_there_is_said_to_be(tmp_path):
    with pytest.raises(CheckpointError, match="does not exist"):
        storage.read_folder(tmp_path / "nothing", "test")
    with pytest.raises(CheckpointError, match=r"not a checkpoint: it has no manifest\.json"):
        storage.read_folder(tmp_path, "test")
