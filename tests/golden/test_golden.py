"""The golden record: digests of short runs, which a change that only moves or renames code leaves equal to the bit.

golden.json holds the digests and the processor and torch version on which they were recorded; elsewhere rounding may
differ, so only the runs whose digests must equal one another are made. After a change of rounding, record again:
`python tests/golden/test_golden.py`.
"""

import json
import platform
import tempfile
from functools import cache
from pathlib import Path

import pytest
import torch
from golden_runs import NAMES, VARIANTS, digest_of

RECORD = Path(__file__).parent / "golden.json"


def machine():
    """Processor and torch version: what rounding depends on, with one thread."""
    info = Path("/proc/cpuinfo")
    models = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    name = models[0].partition(":")[2].strip() if models else platform.processor()
    return f"{name}, torch {torch.__version__.partition('+')[0]}"


@pytest.fixture(autouse=True, scope="module")
def fresh_episodes_are_few():
    """They are as many as in runs of users."""


@pytest.fixture(scope="module")
def digest(tmp_path_factory):
    """A function that returns the digest of a run, which is made once in each process of the tests."""
    return cache(lambda name: digest_of(name, tmp_path_factory.mktemp("golden")))


@pytest.mark.parametrize("name", VARIANTS)
def test_resumed_and_distributed_runs_equal_the_plain_ones(name, digest):
    assert digest(name) == digest(name.partition(", ")[0])


@pytest.mark.parametrize("name", NAMES)
def test_runs_equal_the_record(name, digest):
    record = json.loads(RECORD.read_text())
    if machine() != record["machine"]:
        pytest.skip(f"recorded on {record['machine']}; rounding differs on {machine()}")
    assert digest(name) == record["digests"][name]


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        digests = {name: digest_of(name, Path(folder) / name) for name in NAMES}
    found = {"machine": machine(), "digests": digests}
    RECORD.write_text(json.dumps(found, indent=2) + "\n")
