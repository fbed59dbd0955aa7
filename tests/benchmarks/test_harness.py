"""Runs that the harness measures in processes of their own, and their rows."""

import argparse
import json
import sys
from dataclasses import dataclass

import pytest

from benchmarks.harness import interleaved, options_of


@dataclass(frozen=True)
class Count:
    """How often the script had been run before."""

    before: int
    seed: int

    @property
    def headline(self) -> str:
        return str(self.before)


SCRIPT = """
import json, pathlib, sys
log, seed = pathlib.Path(sys.argv[1]), sys.argv[-1]
before = log.read_text().count("x") if log.exists() else 0
log.write_text("x" * (before + 1))
if log.with_name("broken").exists() and seed == "8":
    sys.exit(1)
print(json.dumps({"before": before, "seed": int(seed)}))
"""


def measured(folder, *argv):
    options = options_of(argparse.ArgumentParser(), ["--patience", "0", *argv], repetitions=2, threads=1, quick={})
    sides = {"script": [sys.executable, "-c", SCRIPT, str(folder / "log")]}
    return [(run.seed, run.round, run.result) for run in interleaved(sides, Count, options, case="count")]


def test_a_benchmark_that_failed_continues_with_the_runs_that_it_has_no_rows_of(tmp_path):
    rows = ["--seed", "7", "--rows", str(tmp_path / "rows.jsonl")]
    (tmp_path / "broken").touch()
    with pytest.raises(RuntimeError, match="ended with 1"):
        measured(tmp_path, *rows)
    (tmp_path / "broken").unlink()
    assert measured(tmp_path, *rows) == [(7, 0, Count(0, 7)), (8, 1, Count(2, 8))]
    assert measured(tmp_path, *rows) == [(7, 0, Count(0, 7)), (8, 1, Count(2, 8))]
    assert measured(tmp_path, "--seed", "8", *rows[2:], "--repetitions", "1") == [(8, 0, Count(2, 8))]


def test_a_run_is_repeated_without_rows_and_with_another_number_of_threads(tmp_path):
    rows = ["--repetitions", "1", "--rows", str(tmp_path / "rows.jsonl")]
    assert measured(tmp_path, *rows)[0][2].before == 0
    assert measured(tmp_path, *rows[:2])[0][2].before == 1
    assert measured(tmp_path, *rows, "--threads", "2")[0][2].before == 2
    commands = [json.loads(line)["command"] for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [command[3:] for command in commands] == [["--threads", t, "--seed", "0"] for t in ("1", "2")]
    assert sys.executable not in (tmp_path / "rows.jsonl").read_text()
