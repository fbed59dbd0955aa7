"""The golden record: digests of short runs, which a change that only moves or renames code leaves equal to the bit.

golden.json holds the digests and the processor and torch version on which they were recorded; elsewhere rounding may
differ, so only the digests that must equal one another are compared. After a change of rounding, record again:
`python tests/golden/test_golden.py`.
"""

import json
import platform
import tempfile
from pathlib import Path

import pytest
import torch
from golden_runs import run_all

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


def test_runs_equal_the_record_and_resumed_or_distributed_ones_the_plain_ones(tmp_path):
    digests = run_all(tmp_path)
    for name in ("mlp discrete, resumed", "team, resumed", "mlp per member, two processes"):
        assert digests[name] == digests[name.rpartition(", ")[0]]
    record = json.loads(RECORD.read_text())
    if machine() != record["machine"]:
        pytest.skip(f"recorded on {record['machine']}; rounding differs on {machine()}")
    assert digests == record["digests"]


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        found = {"machine": machine(), "digests": run_all(Path(folder))}
    RECORD.write_text(json.dumps(found, indent=2) + "\n")
