"""Stored folders that were tampered with, and the cost of refusing them."""

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
import safetensors.torch

from agilerl_like.errors import CheckpointError

SECONDS = 3.0  # of the processor; 1,024 groups take 1.5 on a slow one
MEGABYTES = 64


class Carrier(NamedTuple):
    """A stored folder, the name of an agent's files in it, and how it is loaded."""

    folder: Path
    member: str
    load: Callable[[Path], Any]

    @property
    def document(self):
        return self.folder / f"{self.member}.json"

    @property
    def weights(self):
        return self.folder / f"{self.member}.safetensors"

    @property
    def manifest(self):
        return self.folder / "manifest.json"

    def admit(self, file, size=None, sha256=None):
        """Let the manifest say that a file is as it should be."""
        manifest = json.loads(self.manifest.read_text())
        digest = hashlib.sha256(file.read_bytes()).hexdigest() if sha256 is None else sha256
        manifest["files"][file.name] = {"bytes": file.stat().st_size if size is None else size, "sha256": digest}
        self.manifest.write_text(json.dumps(manifest))

    def put(self, file, data):
        file.write_bytes(data)
        self.admit(file)

    def say(self, **changes):
        """Change the agent's document."""
        self.put(self.document, json.dumps(json.loads(self.document.read_text()) | changes).encode())

    def set(self, part, **changes):
        """Change one table of the agent's document."""
        self.say(**{part: json.loads(self.document.read_text())[part] | changes})

    def build(self, **changes):
        """Change the configuration of the encoder."""
        encoder = json.loads(self.document.read_text())["architecture"]["encoder_config"]
        self.set("architecture", encoder_config=encoder | changes)

    def fill(self, **changes):
        """Change tensors; None takes one away."""
        tensors = safetensors.torch.load_file(self.weights) | changes
        self.put(self.weights, safetensors.torch.save({k: t for k, t in tensors.items() if t is not None}))

    def head(self, change):
        """Change the header of the tensors' file."""
        data = self.weights.read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        found = change(header)
        text = found if isinstance(found, bytes) else json.dumps(header if found is None else found).encode()
        self.put(self.weights, len(text).to_bytes(8, "little") + text + data[8 + size :])


def assert_refused(carrier):
    """Assert that it is refused by one short error, quickly, with little memory; return the message."""
    forget_peak()
    before, start, worked = peak(), time.perf_counter(), time.process_time()
    with pytest.raises(CheckpointError) as refused:
        carrier.load(carrier.folder)
    worked, waited = time.process_time() - worked, time.perf_counter() - start
    assert peak() - before <= MEGABYTES
    assert worked <= SECONDS
    assert waited <= 10 * SECONDS  # of a machine that has other things to do
    assert len(str(refused.value)) < 2000
    return str(refused.value)


def peak():
    """Most megabytes that were in memory since `forget_peak`, where the system can tell; else those that are."""
    try:
        (found,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        return int(found) / 1024
    except OSError:
        return psutil.Process().memory_info().rss / 2**20


def forget_peak():
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def sparse(place, size):
    def forge(c):
        file = getattr(c, place)
        os.truncate(file, size)
        if place != "manifest":
            c.admit(file, sha256="0" * 64)

    return forge


def nested(depth):
    data = {"type": "Discrete", "dtype": "int64", "n": 2, "start": 0}
    for _ in range(depth):
        data = {"type": "Tuple", "spaces": [data]}
    return data
