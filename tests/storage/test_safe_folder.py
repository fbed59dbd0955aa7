"""Stored folders are written atomically, and every damage is one clear error."""

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


def test_round_trip(folder):
    documents, tensors = everything(folder)
    assert documents == DOCUMENTS
    assert torch.equal(tensors["weights"]["w"], TENSORS["weights"]["w"])
    assert tensors["weights"]["n"].dtype == torch.int64
    assert safe_folder.folder_kind(folder) == "test"
    assert names_in(folder.parent) == ["thing"]  # nothing is left beside it


@pytest.mark.parametrize("dtype", safe_folder.DTYPES.values())
def test_every_dtype_round_trips(tmp_path, dtype):
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


def test_a_symbolic_link_to_a_folder_is_named_and_not_replaced(folder):
    link = folder.parent / "link"
    link.symlink_to(folder)
    with pytest.raises(CheckpointError, match=r"link' is a symbolic link, which is not replaced; allowed is a folder"):
        safe_folder.write_folder(link, "test", {"facts": 2}, {})
    assert link.is_symlink()
    assert everything(folder)[0] == DOCUMENTS


def test_a_path_with_a_nul_byte_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"x00thing' holds a NUL byte; allowed is"):
        safe_folder.write_folder(tmp_path / "a\0thing", "test", {"facts": 2}, {})
    assert names_in(tmp_path) == []


def test_a_path_that_the_file_system_refuses_is_one_error_of_writing_and_of_reading(tmp_path):
    (tmp_path / "file").write_text("mine")
    for path, reason in ((tmp_path / ("x" * 300), "File name too long"), (tmp_path / "file" / "x", "Not a directory")):
        with pytest.raises(CheckpointError, match=f"x' cannot be written: {reason}; allowed is the name of a folder"):
            safe_folder.write_folder(path, "test", {"facts": 2}, {})
        with pytest.raises(CheckpointError, match=r"x' (cannot be read: File name too long|does not exist)"):
            safe_folder.read_folder(path, "test")
    assert names_in(tmp_path) == ["file"]


def test_brackets_and_commas_in_strings_do_not_count(tmp_path):
    documents = {"text": ["[" * 1000 + '"\\' + "}" * 1000, "\\", "{" * 1000]}
    assert everything(safe_folder.write_folder(tmp_path / "x", "test", documents, {})) == (documents, {})


def test_an_existing_folder_is_replaced(folder):
    safe_folder.write_folder(folder, "test", {"facts": 2}, {})
    assert everything(folder) == ({"facts": 2}, {})
    assert names_in(folder) == ["facts.json", "manifest.json"]


@pytest.mark.parametrize(
    ("name", "text"), [("notes.md", "mine"), (".git/HEAD", "ref"), ("more.json", "{}"), ("videos/best.mp4", "")]
)
def test_a_folder_with_further_files_is_not_replaced(folder, name, text):
    before = everything(folder)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    with pytest.raises(CheckpointError, match=f"holds '{name.partition('/')[0]}', which is no file of a checkpoint"):
        safe_folder.write_folder(folder, "test", {"facts": 2}, {})
    assert (folder / name).read_text() == text
    assert str(everything(folder)) == str(before)


@pytest.mark.parametrize(
    "manifest", ['{"name": "My app", "icons": []}', "[]", '{"schema": "app/1", "files": {"a": 1}}']
)
def test_a_folder_with_the_manifest_of_another_program_is_not_replaced(tmp_path, manifest):
    for name, text in {"manifest.json": manifest, "index.html": "<html>"}.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(CheckpointError, match="which is no file of a checkpoint; it is not overwritten: move what is"):
        safe_folder.write_folder(tmp_path, "test", {"facts": 2}, {})
    assert (tmp_path / "index.html").read_text() == "<html>"


@pytest.mark.parametrize("damage", ["", "{", '{"schema": "agilerl-like/0"}'])
def test_a_damaged_folder_and_files_of_a_file_manager_are_replaced(tmp_path, damage):
    path = tmp_path / "agent"
    safe_folder.write_folder(path, "test", {}, {})
    (path / "manifest.json").write_text(damage)
    (path / ".DS_Store").touch()
    safe_folder.write_folder(path, "test", {"facts": 2}, {})
    assert names_in(path) == ["facts.json", "manifest.json"]


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"deep": torch.zeros((1,) * 9)}, "tensor 'deep' has 9 axes; allowed are at most 8"),
        ({f"{'x' * 200}{n}": torch.zeros(1) for n in range(4000)}, "names and shapes of 4000 tensors take 1"),
    ],
)
def test_tensors_that_could_not_be_read_again_are_not_written(tmp_path, tensors, message):
    with pytest.raises(CheckpointError, match=message):
        safe_folder.write_folder(tmp_path / "agent", "test", {}, {"weights": tensors})
    assert names_in(tmp_path) == []


def test_other_files_and_folders_are_not_overwritten(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    for name in ("mine", "file"):
        with pytest.raises(CheckpointError, match="is not a checkpoint; it is not overwritten"):
            safe_folder.write_folder(tmp_path / name, "test", DOCUMENTS, TENSORS)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"
    safe_folder.write_folder(tmp_path / "empty", "test", DOCUMENTS, TENSORS)


def test_a_path_without_a_name_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (".", "..", "", "inner/..", "/"):
        with pytest.raises(CheckpointError, match="does not end in a name"):
            safe_folder.write_folder(path, "test", DOCUMENTS, TENSORS)
    assert list(tmp_path.iterdir()) == []


# -- a disk that fails


def limited(size):
    """Limit file sizes, so that the kernel raises the error of an exceeded quota."""

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
def test_a_full_disk_leaves_the_previous_folder(folder, size):
    with limited(size), pytest.raises(CheckpointError, match=r"File too large.*was saved there before is untouched"):
        safe_folder.write_folder(folder, "test", {"facts": "new"}, {"weights": {"w": torch.zeros(1000)}})
    assert everything(folder)[0] == DOCUMENTS
    assert names_in(folder.parent) == ["thing"]


def test_file_systems_that_cannot_sync_folders_are_supported(folder, monkeypatch):
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


def test_leftovers_of_killed_writers_are_removed_by_the_next_write(folder):
    shutil.copytree(folder, folder.parent / ".thing.tmp-1")
    shutil.copytree(folder, folder.parent / ".thing.old-1")
    shutil.copytree(folder, folder.parent / ".thing.else")
    shutil.copytree(folder, folder.parent / ".thing2.tmp-1")
    safe_folder.write_folder(folder, "test", {"facts": 2}, {})
    assert names_in(folder.parent) == [".thing.else", ".thing2.tmp-1", "thing"]


def test_the_previous_folder_is_read_after_an_interrupted_replacement(folder):
    folder.rename(folder.parent / ".thing.old-1")
    assert everything(folder)[0] == DOCUMENTS
    assert safe_folder.folder_kind(folder) == "test"
    with limited(0), pytest.raises(CheckpointError):
        safe_folder.write_folder(folder, "test", {"facts": 2}, {})
    assert everything(folder)[0] == DOCUMENTS
    safe_folder.write_folder(folder, "test", {"facts": 2}, {})
    assert everything(folder)[0] == {"facts": 2}
    assert names_in(folder.parent) == ["thing"]


def test_remove_folder(folder):
    safe_folder.remove_folder(folder)
    assert names_in(folder.parent) == []


# -- reading


def test_shapes_are_read_from_the_header_only(folder):
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


def test_loaded_tensors_outlive_their_file(folder):
    _, tensors = safe_folder.read_folder(folder, "test")
    w, n = tensors["weights"]["w"], tensors["weights"]["n"]
    os.truncate(folder / "weights.safetensors", 0)
    shutil.rmtree(folder)
    assert torch.equal(w, TENSORS["weights"]["w"])
    assert torch.equal(n, TENSORS["weights"]["n"])
    assert torch.equal(tensors["weights"]["w"], w)


def test_files_that_vanish_before_they_are_read_are_missing(folder):
    documents, tensors = safe_folder.read_folder(folder, "test")
    shutil.rmtree(folder)
    for read in (lambda: documents["facts"], lambda: tensors["weights"]["w"], lambda: list(tensors["weights"])):
        with pytest.raises(CheckpointError, match="is missing"):
            read()


@pytest.mark.parametrize("name", ["facts.json", "weights.safetensors", "manifest.json"])
def test_every_flipped_byte_and_truncation_is_detected(folder, name):
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
            # white space in the manifest may change without changing its content
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


def test_a_missing_folder_and_a_missing_manifest_are_errors(tmp_path):
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
def test_unterminated_strings_are_refused_in_linear_time(folder, text, fault):
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


def test_read_lines_skips_an_incomplete_last_line(tmp_path):
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


def test_json_of_backslashes_is_refused_with_little_memory():
    data = b'"' + b"\\" * (safe_folder.MAX_JSON_BYTES - 1)
    assert peak_of(lambda: safe_folder.parse_json(data, "it")) < 33  # it was 495


def test_a_fifo_among_leftovers_does_not_block(folder):
    """shutil.rmtree would open it, and wait for a writer."""
    os.mkfifo(folder.parent / ".thing.tmp-fifo")
    safe_folder.write_folder(folder, "test", DOCUMENTS, TENSORS)
    assert names_in(folder.parent) == [".thing.tmp-fifo", "thing"]


def test_tensor_sizes_leak_no_ctypes_types(tmp_path):
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


def test_large_tensors_are_written_one_after_the_other(tmp_path, monkeypatch):
    tensors = {
        "bytes": torch.arange(7, dtype=torch.uint8),
        "floats": torch.linspace(0, 1, 3 * 5).view(3, 5)[:, 1:4],  # not contiguous
        "empty": torch.zeros(0, 2),
        "flags": torch.tensor([True, False]),
        "number": torch.tensor(2**40),
    }
    monkeypatch.setattr(safe_folder, "STREAMED_BYTES", 0)
    monkeypatch.setattr(safe_folder, "CHUNK", 5)
    monkeypatch.setattr(safe_folder, "serialize_tensors", None)  # is not called
    path = safe_folder.write_folder(tmp_path / "large", "agent", {"agent": {}}, {"memory": tensors})
    safe_folder.verify_folder(path, "agent")
    found = safe_folder.read_folder(path, "agent")[1]["memory"]
    assert {*found} == {*tensors}
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
