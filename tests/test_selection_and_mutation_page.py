"""The statements of tutorials/selection_and_mutation.md hold."""

import math
import re
from dataclasses import dataclass
from inspect import signature
from math import comb, log
from pathlib import Path

import numpy as np
import pytest
import yaml
from scripts import run_script

from agilerl_like import PPO, HyperparameterConfig, Mutations, RLParameter, TournamentSelection, hpo
from agilerl_like.config.bundled import find_config
from agilerl_like.networks import NetworkSpec
from agilerl_like.reporting.run_history import CONFIG

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "tutorials" / "selection_and_mutation.md").read_text(encoding="utf-8")
CLONES = re.findall(r"^\| (\d+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \|$", PAGE, flags=re.MULTILINE)


def expected_clones(size, tournament_size):
    """The number of members that win no tournament; rank r wins one with probability C(size-1-r, k-1) / C(size, k)."""
    wins = [comb(size - 1 - r, tournament_size - 1) / comb(size, tournament_size) for r in range(1, size)]
    return sum((1 - win) ** (size - 1) for win in wins)


def test_the_weights_are_those_of_mutations():
    weights = dict(re.findall(r"^\| [\w ]+ \| `(\w+)=([\d.]+)` \|", PAGE, flags=re.MULTILINE))
    kinds = {"no_mutation" if kind == "none" else kind: weight for kind, weight in Mutations().weights.items()}
    assert {name: float(weight) for name, weight in weights.items()} == kinds
    assert sum(kinds.values()) == pytest.approx(1)  # so a weight is a share


@pytest.mark.parametrize("name", ["new_layer_prob", "mutation_kl", "mutation_sd"])
def test_defaults_of_mutations(name):
    assert f"`{name}={getattr(Mutations, name)}`" in PAGE


@pytest.mark.parametrize("name", ["shrink_factor", "grow_factor", "resample"])
def test_defaults_of_ranges(name):
    assert f"`{name}={getattr(RLParameter, name)}`" in PAGE


@pytest.mark.parametrize("name", ["action_std_init", "action_std_min", "action_std_max", "action_noise_correlation"])
def test_defaults_of_exploration(name):
    (stated,) = re.findall(rf"`{name}=(-?[\d.]+)`", PAGE)
    assert float(stated) == signature(PPO).parameters[name].default


def test_the_expected_numbers_of_clones_follow_from_tournaments():
    assert len(CLONES) == 5
    for size, tournament_size, clones, changed in CLONES:
        expected = expected_clones(int(size), int(tournament_size))
        assert (float(clones), float(changed)) == (round(expected, 1), round(0.6 * expected, 1))
    assert round(14 * expected_clones(8, 2)) == 50
    assert round(2 * expected_clones(8, 2)) == 7  # three generations
    assert 25 < log(100) / log(1.2) < 26  # moves for a factor of 100


def test_tournaments_make_the_expected_number_of_clones():
    rng, selection = np.random.default_rng(1), TournamentSelection(2)
    fitness = np.arange(8.0)
    clones = [8 - len(set(selection.parents(fitness, rng).tolist())) for _ in range(4000)]
    assert np.mean(clones) == pytest.approx(expected_clones(8, 2), abs=0.06)  # over three standard errors


def test_ranges_of_an_environment_without_a_configuration():
    config = find_config("Taxi-v3").validate()
    assert config.population.sample_hyperparameters
    ranges = {name: (range_.min, range_.max) for name, range_ in config.hyperparameters.items()}
    assert ranges == {"lr": (1e-5, 1e-2), "ent_coef": (1e-4, 1e-1)}


def test_the_plan_and_the_explorer_of_the_page():
    names = {"dataclass": dataclass, "math": math, **vars(hpo)}
    for code in re.findall(r"```py\n(.*?)```", PAGE, flags=re.DOTALL):
        exec(code, names)
    unchanged = {"generation": 1, "parent_uid": -1, "architecture": "", "mutation": "None", "env_steps": 1}
    fitness, rates = [5.0, math.nan, 7.0, 6.0], [1e-3, 9e-2, 2e-3, 3e-3]
    trials = [
        hpo.Trial(uid=uid, hyperparameters={"lr": rates[uid]}, fitness_before=0.0, fitness=fitness[uid], **unchanged)
        for uid in range(4)
    ]
    genomes = [hpo.Genome({"lr": lr}, NetworkSpec()) for lr in rates]
    view = hpo.PopulationView(np.array([5.0, 4.0, 7.0, 6.0]), range(4), genomes, 1, hpo.History().extended(trials))
    config = HyperparameterConfig(lr=RLParameter(1e-5, 1e-1))
    options = {
        "selection": names["WorstLearnsFromBest"](),
        "explorer": names["NearTheBest"](),
        "seed": 1,
        "next_uid": 9,
    }
    offspring = hpo.next_generation(view, [config] * 4, **options)
    assert all(child.survives for child in offspring)
    # the worst, slot 1, takes over 2e-3 and steps from the best trial with a finite fitness, which had 2e-3, too
    rates[1] = offspring[1].genome.hyperparameters["lr"]
    assert [child.genome.hyperparameters["lr"] for child in offspring] == rates
    assert rates[1] in (2e-3 * 0.8, 2e-3 * 1.2)


@pytest.mark.slow
def test_the_script_runs_as_it_stands(tmp_path):
    code = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)[-1]
    script = tmp_path / "ranks.py"
    script.write_text(code, encoding="utf-8")
    assert re.fullmatch(r"\d+ clones: Counter\(.*\)", run_script(script, tmp_path).splitlines()[-1])
    assert "selection" not in yaml.safe_load((tmp_path / "runs" / "ranks" / CONFIG).read_text(encoding="utf-8"))
