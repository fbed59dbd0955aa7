"""Other systems' rules against what the originals decided (recorded by benchmarks/search/record_decisions.py)."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from agilerl_like.hpo import PopulationView, RLParameter
from benchmarks.search import protocol
from benchmarks.search.rules import (
    AgileRLMutations,
    AgileRLTournament,
    AshaBracket,
    RayExplore,
    RayPBT,
    agilerl_step,
    agilerl_tournament,
    ray_explore,
    ray_quantiles,
)

RECORDED = json.loads((Path(__file__).parent / "recorded_decisions.json").read_text())
RAY, AGILERL = RECORDED["ray"], RECORDED["agilerl"]


def test_ray_explore():
    space = {
        "lr": RLParameter(1e-5, 1e-2, scale="log"),
        "clip_coef": RLParameter(0.05, 0.4, scale="linear"),
        "update_epochs": RLParameter(1, 20, scale="linear"),
        **RAY["lists"],
    }
    for seed, answer in enumerate(RAY["explored"]):
        assert ray_explore(RAY["values"], space, random.Random(seed)) == pytest.approx(answer, rel=1e-12)


@pytest.mark.parametrize(("scores", "bottom", "top"), RAY["quantiles"])
def test_ray_quantiles(scores, bottom, top):
    assert ray_quantiles(scores) == (bottom, top)


def test_asha_stops_what_ray_stops():
    bracket = AshaBracket(1, 20, 3)
    decided = [bracket.stops(trial, resource, score) for trial, resource, score, _ in RAY["asha"]]
    assert decided == [stops for *_, stops in RAY["asha"]]
    assert any(decided)


def test_agilerl_tournaments():
    assert [agilerl_tournament(fitness, drawn) for fitness, drawn, _ in AGILERL["tournaments"]] == [
        winner for *_, winner in AGILERL["tournaments"]
    ]


@pytest.mark.parametrize(("low", "high", "dtype", "value", "draw", "answer"), AGILERL["steps"])
def test_agilerl_steps(low, high, dtype, value, draw, answer):
    moved = agilerl_step(value, RLParameter(low, high, dtype=dtype, scale="linear"), draw)
    assert moved == pytest.approx(answer, rel=1e-12)
    assert type(moved) is type(answer)


@pytest.mark.parametrize(("name", "value"), [("gamma", 0.84), ("gamma", 0.99), ("gae_lambda", 0.84)])
def test_agilerl_grows_gamma_and_gae_lambda_to_the_end_of_their_range(name, value):
    """The page of the benchmark states it, because the other methods that multiply move 1 - value."""
    range_ = protocol.RANGES[name]
    assert agilerl_step(value, range_, draw=0.9) == range_.max
    if name == "gamma":
        assert agilerl_step(value, range_, draw=0.1) == range_.min


def _view(fitness):
    return PopulationView(np.array(fitness), range(len(fitness)), (), 1)


def test_ray_pbt_replaces_the_bottom_quarter_from_the_top_quarter():
    plan = RayPBT().plan(_view([3.0, 1.0, 4.0, 1.5, 9.0, 2.0, 6.0, np.nan]), np.random.default_rng(0))
    clones = {slot: row.weights_from for slot, row in enumerate(plan) if row.weights_from != slot}
    assert set(clones) == {1, 7}
    assert set(clones.values()) <= {4, 6}
    assert all(row.explore == (slot in clones) for slot, row in enumerate(plan))


def test_agilerl_mutates_all_and_keeps_the_best():
    for seed in range(20):
        plan = AgileRLTournament().plan(_view([3.0, 1.0, 4.0, 1.5]), np.random.default_rng(seed))
        assert all(row.explore for row in plan)
        assert plan[2].weights_from == 2


@pytest.mark.parametrize(
    "explorer", [RayExplore(), AgileRLMutations(rl_hp=1.0, no_mutation=0.0, architecture=0.0, parameters=0.0)]
)
def test_explorers_stay_in_the_space(explorer):
    from agilerl_like.hpo import Genome, History

    hp_config = protocol.hp_config("S2")
    if isinstance(explorer, AgileRLMutations):
        whole = {
            n: RLParameter(r.min, r.max, dtype=int, scale="linear") for n, r in hp_config.items() if r.dtype is int
        }
        hp_config = type(hp_config)(**{**hp_config, **whole})
    rng = np.random.default_rng(0)
    genome = Genome(hp_config.sample(rng), None)  # pyright: ignore[reportArgumentType]  # no networks
    changed = set()
    for _ in range(200):
        child, _ = explorer.propose(genome, History(), rng, hp_config=hp_config)
        hp_config.check(child.hyperparameters)
        moved = {name for name in hp_config if child.hyperparameters[name] != genome.hyperparameters[name]}
        assert len(moved) <= 1 or isinstance(explorer, RayExplore)
        changed |= moved
        genome = child
    assert changed == set(hp_config)
