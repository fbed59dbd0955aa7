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
from slow_cases import with_slow

RECORD = Path(__file__).parent / "golden.json"
OFTEN = ("mlp discrete", "lstm apart", "team")
"""Runs that are compared with the record by `make test`, too: of one agent, with a memory, and of a team."""


def machine():
    """Processor and torch version: what rounding depends on, with one thread.

    One name stands for several generations of a processor, with and without AVX-512; family and model differ.
    """
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    known = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    name = known.get("model name", platform.processor())
    generation = f"family {known.get('cpu family')}, model {known.get('model')}"
    version = torch.__version__.partition("+")[0]
    return f"{name}, {generation}, {torch.backends.cpu.get_cpu_capability()}, torch {version}"


@pytest.fixture(autouse=True, scope="module")
def fresh_episodes_are_few():
    """They are as many as in runs of users."""


@pytest.fixture(scope="module")
def digest(tmp_path_factory):
    """A function that returns the digest of a run, which is made once in each process of the tests."""
    return cache(lambda name: digest_of(name, tmp_path_factory.mktemp("golden")))


@pytest.mark.parametrize("name", with_slow(VARIANTS, "mlp per member, two processes"))
def test_resumed_and_distributed_runs_equal_the_plain_ones(name, digest):
    assert digest(name) == digest(name.partition(", ")[0])


@pytest.mark.parametrize("name", with_slow(NAMES, *({*NAMES} - {*OFTEN})))
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
