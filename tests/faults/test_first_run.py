"""The first command of the README shows evolution, not one good initial member."""

import json

import pytest

from agilerl_like import PPO
from agilerl_like.cli import main


@pytest.mark.parametrize("seed", range(5))
def test_the_first_run_is_solved_by_evolution(seed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "CartPole-v1", "--seed", str(seed), "--run.name", "first", "--run.plot", "false"]) == 0
    run = tmp_path / "runs" / "first"
    births = [json.loads(line) for line in (run / "lineage.jsonl").read_text().splitlines()]
    winner = PPO.load(run / "best")
    assert winner.fitness[-1] >= 475
    assert len({birth["generation"] for birth in births}) >= 3  # initial members have generation 0
    parents = {birth["uid"]: birth["parent_uid"] for birth in births if birth["uid"] != birth["parent_uid"]}
    assert parents[winner.index] >= 0  # it is offspring: the initial members learn almost nothing
    assert winner.lr > 1e-5
