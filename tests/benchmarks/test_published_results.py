"""Published rows stay readable: `earlier_runs` merges them with new ones."""

import importlib
import json
from pathlib import Path

import pytest

from benchmarks import tables
from benchmarks.harness import Run
from benchmarks.learner_work import Learned
from benchmarks.measurement import Measurement
from benchmarks.multi_agent_envs import Learned as LearnedTeams
from benchmarks.off_policy_work import Updates
from benchmarks.search import report, results
from benchmarks.search.methods import METHODS
from benchmarks.search.protocol import FIRST_REPORT_SEED
from benchmarks.targets import Reached

RESULTS = Path(tables.__file__).parent / "results"
DECODERS = {
    "games": "Played",
    "jax_program": Measurement,
    "learner_returns": Learned,
    "memory": "Result",
    "memory_speed": "Speed",
    "memory_tasks": "Score",
    "multi_agent_rating": "Won",
    "multi_agent_returns": LearnedTeams,
    "multi_agent_speed": Measurement,
    "mutation_cost": "Births",
    "network_speed": Measurement,
    "off_policy_speed": Updates,
    "processes": "RunSpeed",
    "roofline": "Result",
    "scaling": Measurement,
    "shared_memory": "Reward",
    "tensor_envs": "Result",
    "throughput": Measurement,
    "time_to_target": Reached,
    "unequal_members": "Result",
}
"""The class of a script's results: in the script itself, or imported."""


def published(script):
    decoder = DECODERS[script]
    decode = getattr(importlib.import_module(f"benchmarks.{script}"), decoder) if isinstance(decoder, str) else decoder
    rows = map(json.loads, (RESULTS / f"{script}.jsonl").read_text().splitlines())
    return [Run(**{**row, "result": decode(**row["result"])}) for row in rows]


@pytest.mark.parametrize("script", DECODERS)
def test_published_rows_are_those_of_the_script(script):
    assert all(run.result.headline for run in published(script))


def test_off_policy_rows_count_whole_calls_of_each_member():
    counted = [run.result for run in published("off_policy_speed")]
    assert all(its.updates % (its.members * its.at_once) == 0 for its in counted)


def test_the_search_page_names_the_runs_that_decide_and_the_earlier_versions_that_count():
    page = report.PAGE.read_text()
    assert report.RUNS_THAT_DECIDE in page
    rows = [row for row in results.rows() if row.case["seed"] >= FIRST_REPORT_SEED and not row.is_current]
    for method, version in sorted({(row.case["method"], row.method_version) for row in rows}):
        current = METHODS[method]
        assert f"`{method}` are of version {version} instead of {current.version}" in page
        assert f"in version {version} {current.also_counts[version]}." in page
