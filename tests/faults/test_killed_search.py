"""SIGTERM of the search benchmark ends its runs, so that none keeps a core."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]


def test_sigterm_ends_the_runs_too(tmp_path):
    rows = tmp_path / "rows.jsonl"
    options = ["--methods", "ours", "--envs", "cartpole", "--seeds", "0", "--jobs", "1", "--rows", str(rows)]
    benchmark = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.search", *options], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    try:
        while not (runs := psutil.Process(benchmark.pid).children()):
            assert benchmark.poll() is None
            time.sleep(0.05)
        benchmark.send_signal(signal.SIGTERM)
        assert benchmark.wait() == 128 + signal.SIGTERM
        _, alive = psutil.wait_procs(runs, 600)  # they have imported everything before they look
        assert alive == []
    finally:
        benchmark.kill()
    assert not rows.exists()
