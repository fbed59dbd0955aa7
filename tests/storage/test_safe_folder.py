"""A stored folder is whole or not there, and every damage is one clear error."""

import contextlib
import errno
import json
import os
import resource
import shutil
import stat
import sys
import time
import tracemalloc
from contextlib import contextmanager

import pytest
import torch

from agilerl_like.errors import CheckpointError, ConfigurationError
from agilerl_like.storage import safe_folder

TENSORS = {"weights": {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor([1, 2])}}
DOCUMENTS = {"facts": {"a": [1, 2.5, None], "b": "text"}}


@pytest.fixture
def folder(tmp_path):
    return safe_folder.write_folder(tmp_path / "thing", "test", DOCUMENTS, TENSORS)


def everything(path, kind="test"):
    documents, tensors = safe_folder.read_folder(path, kind)
    return dict(documents), {name: dict(named) for name, named in tensors.items()}


def names_in(path):
    return sorted(entry.name for entry in path.iterdir())


def test_what_is_read_is_what_was_written(folder):
    documents, tensors = everything(folder)
    assert documents == DOCUMENTS
    assert torch.equal(tensors["weights"]["w"], TENSORS["weights"]["w"])
    assert tensors["weights"]["n"].dtype == torch.int64
    assert safe_folder.folder_kind(folder) == "test"
    assert names_in(folder.parent) == ["thing"]  # nothing is left beside it


@pytest.mark.parametrize("dtype", safe_folder.DTYPES.values())
def test_every_dtype_comes_back(tmp_path, dtype):
    tensor = torch.tensor([[1, 0, 1]]).to(dtype)
    _, tensors = everything(
        safe_folder.write_folder(tmp_path / "x", "test", {}, {"t": {"x": tensor, "y": tensor[:, :0]}})
    )
    assert tensors["t"]["x"].dtype == tensors["t"]["y"].dtype == dtype
    assert torch.equal(tensors["t"]["x"], tensor)
    assert tensors["t"]["y"].shape == (1, 0)


def test_what_a_reader_would_refuse_is_not_written(folder):
    deep = []
    for _ in range(safe_folder.MAX_JSON_DEPTH):
        deep = [deep]
    refused = [
        (CheckpointError, {"facts": deep}, {}),
        (CheckpointError, {"facts": list(range(safe_folder.MAX_JSON_COMMAS + 2))}, {}),
        (CheckpointError, {"facts": "x" * safe_folder.MAX_JSON_BYTES}, {}),
        (ConfigurationError, {"manifest": 1}, {}),
        (ConfigurationError, {"../facts": 1}, {}),
        (ConfigurationError, {}, {"weights": {"w": torch.zeros(1, dtype=torch.complex64)}}),
    ]
    for error, documents, tensors in refused:
        with pytest.raises(error):
            safe_folder.write_folder(folder, "test", documents, tensors)
    assert everything(folder)[0] == DOCUMENTS
    assert names_in(folder.parent) == ["thing"]


def test_brackets_and_commas_in_texts_are_only_text(tmp_path):
    documents = {"text": ["[" * 1000 + '"\\' + "}" * 1000, "\\", "{" * 1000]}
    assert everything(safe_folder.write_folder(tmp_path / "x", "test", documents, {})) == (documents, {})


def test_a_folder_is_replaced_by_its_successor(folder):
    safe_folder.write_folder(folder, "test", {"facts": 2}, {})
    assert everything(folder) == ({"facts": 2}, {})
    assert names_in(folder) == ["facts.json", "manifest.json"]


def test_foreign_places_are_not_overwritten(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    for name in ("mine", "file"):
        with pytest.raises(CheckpointError, match="is not a checkpoint; it is not overwritten"):
            safe_folder.write_folder(tmp_path / name, "test", DOCUMENTS, TENSORS)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"
    safe_folder.write_folder(tmp_path / "empty", "test", DOCUMENTS, TENSORS)


def test_a_place_without_a_name_is_refused_and_left_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (".", "..", "", "inner/..", "/"):
        with pytest.raises(CheckpointError, match="does not end in a name"):
            safe_folder.write_folder(path, "test", DOCUMENTS, TENSORS)
    assert list(tmp_path.iterdir()) == []


# -- a disk that fails


def limited(size):
    """Files of at most so many bytes: what the kernel itself says of a quota that is used up."""

    @contextmanager
    def limit():
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limit()


@pytest.mark.parametrize("size", [0, 50, 3000])
def test_a_disk_that_takes_no_more_leaves_the_former_folder(folder, size):
    with limited(size), pytest.raises(CheckpointError, match=r"File too large.*was saved there before is untouched"):
        safe_folder.write_folder(folder, "test", {"facts": "new"}, {"weights": {"w": torch.zeros(1000)}})
    assert everything(folder)[0] == DOCUMENTS
    assert names_in(folder.parent) == ["thing"]


def test_a_folder_that_cannot_be_synced_is_not_taken_for_a_failing_disk(folder, monkeypatch):
    sync = os.fsync

    def without_folders(handle, *, says):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(says, os.strerror(says))
        sync(handle)

    monkeypatch.setattr(os, "fsync", lambda handle: without_folders(handle, says=errno.EINVAL))
    safe_folder.write_folder(folder, "test", {"facts": "new"}, {})
    monkeypatch.setattr(os, "fsync", lambda handle: without_folders(handle, says=errno.EIO))
    with pytest.raises(CheckpointError, match="Input/output error"):
        safe_folder.write_folder(folder, "test", {"facts": "newer"}, {})
    monkeypatch.undo()
    assert everything(folder)[0] == {"facts": "new"}


# -- what killed writers leave


def test_leftovers_of_killed_writers_are_removed_when_the_place_is_written_next(folder):
    shutil.copytree(folder, folder.parent / ".thing.tmp-1")
    shutil.copytree(folder, folder.parent / ".thing.old-1")
    shutil.copytree(folder, folder.parent / ".thing.else")
    shutil.copytree(folder, folder.parent / ".thing2.tmp-1")
    safe_folder.write_folder(folder, "test", {"facts": 2}, {})
    assert names_in(folder.parent) == [".thing.else", ".thing2.tmp-1", "thing"]


def test_a_predecessor_that_stepped_aside_is_found_until_there_is_a_successor(folder):
    folder.rename(folder.parent / ".thing.old-1")
    assert everything(folder)[0] == DOCUMENTS
    assert safe_folder.folder_kind(folder) == "test"
    with limited(0), pytest.raises(CheckpointError):
        safe_folder.write_folder(folder, "test", {"facts": 2}, {})
    assert everything(folder)[0] == DOCUMENTS
    safe_folder.write_folder(folder, "test", {"facts": 2}, {})
    assert everything(folder)[0] == {"facts": 2}
    assert names_in(folder.parent) == ["thing"]


def test_a_removed_folder_is_gone(folder):
    safe_folder.remove_folder(folder)
    assert names_in(folder.parent) == []


# -- reading


def test_shapes_are_known_without_reading(folder):
    file = folder / "weights.safetensors"
    _, tensors = safe_folder.read_folder(folder, "test")
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + b"\1")  # the last byte of the largest number
    facts = safe_folder.tensor_infos(tensors["weights"])
    assert (
        facts
        == safe_folder.tensor_infos(TENSORS["weights"])
        == {"w": ((2, 3), torch.float32), "n": ((2,), torch.int64)}
    )
    with pytest.raises(CheckpointError, match="its SHA-256 differs"):
        tensors["weights"]["w"]
    with pytest.raises(CheckpointError, match="its SHA-256 differs"):
        safe_folder.verify_folder(folder, "test")


def test_tensors_that_were_handed_out_outlive_their_file(folder):
    _, tensors = safe_folder.read_folder(folder, "test")
    w, n = tensors["weights"]["w"], tensors["weights"]["n"]
    os.truncate(folder / "weights.safetensors", 0)
    shutil.rmtree(folder)
    assert torch.equal(w, TENSORS["weights"]["w"])
    assert torch.equal(n, TENSORS["weights"]["n"])
    assert torch.equal(tensors["weights"]["w"], w)


def test_what_vanishes_before_it_was_read_is_said_to_be_missing(folder):
    documents, tensors = safe_folder.read_folder(folder, "test")
    shutil.rmtree(folder)
    for read in (lambda: documents["facts"], lambda: tensors["weights"]["w"], lambda: list(tensors["weights"])):
        with pytest.raises(CheckpointError, match="is missing"):
            read()


@pytest.mark.parametrize("name", ["facts.json", "weights.safetensors", "manifest.json"])
def test_every_flipped_byte_and_every_truncation_is_found(folder, name):
    whole = (folder / name).read_bytes()
    for place in range(0, len(whole), 7):
        for damaged in (whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :], whole[:place]):
            (folder / name).write_bytes(damaged)
            try:
                found = everything(folder)
            except CheckpointError:
                with pytest.raises(CheckpointError):
                    safe_folder.verify_folder(folder, "test")
                continue
            # white space in the manifest may change without changing what it says
            assert name == "manifest.json"
            assert found[0] == DOCUMENTS
    (folder / name).write_bytes(whole)
    everything(folder)


def test_another_schema_is_refused_with_both_named(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"schema": "agilerl-like/99"}))
    with pytest.raises(
        safe_folder.UnknownSchemaError,
        match=r"schema 'agilerl-like/99'; this version reads 'agilerl-like/1'.*with the version .* that wrote it",
    ):
        safe_folder.read_folder(folder, "test")


def test_another_kind_is_refused_with_both_named(folder):
    with pytest.raises(CheckpointError, match="holds kind='test'; what is wanted is 'agent'"):
        safe_folder.read_folder(folder, "agent")


def test_what_is_not_there_is_said_to_be(tmp_path):
    with pytest.raises(CheckpointError, match="does not exist"):
        safe_folder.read_folder(tmp_path / "nothing", "test")
    with pytest.raises(CheckpointError, match="does not exist"):
        safe_folder.read_folder(tmp_path / "no" / "thing", "test")
    with pytest.raises(CheckpointError, match=r"not a checkpoint: it has no manifest\.json"):
        safe_folder.read_folder(tmp_path, "test")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b'"' + b'\\"' * 2**19, "is not valid JSON"),  # no end, and half a million places to look for a beginning
        (b'["' + b'\\"' * 2**19 + b"\\", "is not valid JSON"),
        (b'{"a": "' + b"[" * 100, "is not valid JSON: (?!it is nested)"),  # those stand in a string
        (b'"\\\\"' + b"[" * 100, "is nested deeper"),  # those do not: what is escaped is the backslash
    ],
)
def test_strings_without_an_end_are_refused_in_no_time(folder, text, fault):
    (folder / "manifest.json").write_bytes(text)
    start = time.process_time()
    with pytest.raises(CheckpointError, match=fault):
        safe_folder.read_folder(folder, "test")
    assert time.process_time() - start < 1


# -- single files


def peak_of(function):
    """Megabytes that Python allocated at most while a function ran, and what it returned or raised."""
    tracemalloc.start()
    try:
        with contextlib.suppress(CheckpointError):
            function()
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: os.mkfifo(path), "is a folder, a FIFO or a device; allowed is a regular file"),
        (lambda path: path.mkdir(), "is a folder, a FIFO or a device"),
        (lambda path: path.symlink_to("/dev/zero"), "is a symbolic link; allowed is a regular file"),
        (lambda path: path.symlink_to("nowhere"), "is a symbolic link"),
        (lambda path: None, "is missing, or cannot be read: No such file"),
    ],
)
def test_only_regular_files_are_opened_and_nothing_blocks(tmp_path, make, said):
    make(tmp_path / "thing")
    with pytest.raises(CheckpointError, match=said):
        safe_folder.open_regular(tmp_path / "thing")


def test_a_link_is_followed_where_it_is_allowed_and_its_target_must_be_regular(tmp_path):
    (tmp_path / "target").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("target")
    assert safe_folder.read_regular(tmp_path / "link", 5, follow_links=True) == b"12345"
    with pytest.raises(CheckpointError, match="has 5 bytes; allowed are at most 4"):
        safe_folder.read_regular(tmp_path / "target", 4)
    (tmp_path / "zero").symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match="is a folder, a FIFO or a device"):
        safe_folder.read_regular(tmp_path / "zero", 5, follow_links=True)


def test_lines_are_read_one_at_a_time_and_the_last_one_only_if_it_is_whole(tmp_path):
    (tmp_path / "text").write_bytes(b"a\n\xff\n\nlost")
    assert [*safe_folder.read_lines(tmp_path / "text")] == ["a", "\ufffd", ""]
    (tmp_path / "long").write_bytes(b"a\n")
    os.truncate(tmp_path / "long", 2**27)  # 128 MB of NUL bytes without a newline
    assert peak_of(lambda: [*safe_folder.read_lines(tmp_path / "long")]) < 4
    with pytest.raises(CheckpointError, match="line 2 has more than the 1048576 bytes"):
        list(safe_folder.read_lines(tmp_path / "long"))
    os.truncate(tmp_path / "long", safe_folder.MAX_TEXT_BYTES + 1)
    with pytest.raises(CheckpointError, match="allowed are at most 268435456"):
        list(safe_folder.read_lines(tmp_path / "long"))


def test_backslashes_cost_no_more_memory_than_other_bytes():
    data = b'"' + b"\\" * (safe_folder.MAX_JSON_BYTES - 1)
    assert peak_of(lambda: safe_folder.parse_json(data, "it")) < 33  # it was 495


def test_a_fifo_among_leftovers_is_left_alone_and_does_not_block(folder):
    """shutil.rmtree would open it, and wait for a writer."""
    os.mkfifo(folder.parent / ".thing.tmp-fifo")
    safe_folder.write_folder(folder, "test", DOCUMENTS, TENSORS)
    assert names_in(folder.parent) == [".thing.tmp-fifo", "thing"]


def test_sizes_that_were_written_leave_nothing_in_memory(tmp_path):
    def written(sizes):
        safe_folder.write_folder(tmp_path / "thing", "test", {}, {"w": {f"{n}": torch.zeros(n) for n in sizes}})
        return sys.getallocatedblocks()

    written(range(1, 50))
    before = written(range(100, 150))
    assert written(range(3000, 3300)) - before < 1000  # a ctypes type for each size took 33 blocks each


def test_bfloat16_is_stored(tmp_path):
    tensors = {"w": {"half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16), "whole": torch.tensor(3)}}
    _, found = everything(safe_folder.write_folder(tmp_path / "thing", "test", {}, tensors))
    assert found["w"]["half"].dtype == torch.bfloat16
    assert found["w"]["half"].tolist() == [1.5, -2.0]
    assert found["w"]["whole"].item() == 3
