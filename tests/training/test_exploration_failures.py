"""What constant policies earn, measured in runs, and the ranges that `evolution: auto` adds for continuous actions."""

import json
import os
from dataclasses import dataclass
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from duel_envs import Duel
from small_runs import SMALL, Records
from steady_teams import Steady

from agilerl_like import IPPO, PPO, make_multi_agent_vect_envs, make_vect_envs, train_multi_agent_on_policy
from agilerl_like.algorithms.constant_policies import constant_action, constant_policies
from agilerl_like.algorithms.evaluation import evaluate
from agilerl_like.cli import main
from agilerl_like.config import build, load
from agilerl_like.envs.vec_adapter import VecEnvAdapter
from agilerl_like.hpo import GaussianSteps, Selection

RUN = """
environment: {id: MountainCarContinuous-v0, num_envs: 2, backend: sync}
algorithm: {learn_step: 32, batch_size: 32}
population: {size: 4}
hyperparameters: {lr: {min: 1e-5, max: 1e-2}}
evolution: auto
training: {max_steps: 256, evo_steps: 64, checkpoint: 64, eval_loop: 2, eval_steps: 10}
run: {name: run, threads: 1, processes: 1, plot: false, report: false}
seed: 1
"""


@pytest.mark.parametrize(
    ("env_id", "returns"),
    [("MountainCarContinuous-v0", [0.0, -99.9, -99.9, 0.0]), ("Acrobot-v1", [-500.0] * 4)],
)
def test_constant_policies_earn_what_the_env_pays_for_one_action(env_id, returns):
    env = make_vect_envs(env_id, num_envs=4, backend="sync")
    population = PPO.population(4, env.single_observation_space, env.single_action_space, num_envs=1, seed=0)
    played = evaluate(constant_policies(population, range(4)).values(), VecEnvAdapter(env), [3], members=4)
    env.close()
    assert np.allclose(played.mean, returns, atol=1e-4)


def baseline(folder):
    newest = max((folder / "checkpoints").glob("*/run.json"), key=lambda path: path.parent.name)
    return json.loads(newest.read_text())["search"]["state"].get("baseline")


@pytest.mark.slow
def test_a_run_measures_the_baseline_once_and_a_resumed_one_has_it(tmp_path):
    # the end of the warm-up depends on the budget, but members that draw others after generation 1 stay for four more;
    # the learning rate would depend on it, too
    (tmp_path / "run.yaml").write_text(RUN.replace("{size: 4}", "{size: 4, sample_hyperparameters: false}"))
    options = ["--run.dir", str(tmp_path), "--algorithm.schedules.lr", "constant"]
    assert main(["train", str(tmp_path / "run.yaml"), *options, "--training.max-steps", "128"]) == 0
    assert baseline(tmp_path / "run") is None  # two generations
    assert main(["resume", str(tmp_path / "run"), "--training.max-steps", "256"]) == 0
    assert baseline(tmp_path / "run") == pytest.approx([0.0, 1.0])  # ten steps of force 1 cost 1
    whole = ["--run.name", "whole", *options]
    assert main(["train", str(tmp_path / "run.yaml"), *whole]) == 0
    names = ("lineage.jsonl",)
    assert all((tmp_path / "run" / n).read_bytes() == (tmp_path / "whole" / n).read_bytes() for n in names)


def test_noise_of_continuous_actions_evolves_with_auto_alone(tmp_path):
    noise = {"action_std_init", "action_noise_correlation"}
    for options, has_noise in (
        ([], True),
        (["--evolution", "none"], False),
        (["--environment.id", "CartPole-v1"], False),
    ):
        (tmp_path / "run.yaml").write_text(RUN)
        experiment = build(load(tmp_path / "run.yaml", options))
        experiment.env.close()
        first, *others = experiment.population
        assert (noise <= first.hp_config.keys()) == has_noise
        assert (first.action_std_init, first.action_noise_correlation) == (0.0, 0.0)  # the values given
        assert any(other.action_noise_correlation > 0 for other in others) == has_noise


@pytest.mark.parametrize("squash", [False, True])
def test_constant_actions_are_the_centre_and_two_corners(squash):
    space = gymnasium.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
    agent = PPO(gymnasium.spaces.Box(-1.0, 1.0, (3,)), space, seed=0, squash_output=squash)
    distribution = agent.learner.distribution
    found = distribution.to_env(torch.stack([constant_action(distribution, number) for number in range(3)]))
    np.testing.assert_allclose(found, [[0.0, 5.0], [2.0, 10.0], [-2.0, 0.0]], atol=1e-5)


@dataclass(frozen=True)
class NotesBaseline(Selection):
    """Every member stays; what constant policies earn is noted in each generation."""

    noted: ClassVar[list] = []
    needs_baseline = True

    def parents(self, fitness, rng, uids=None):
        return np.arange(len(fitness))

    def plan(self, view, rng):
        self.noted.append(view.state.get("baseline"))
        return super().plan(view, rng)


class WithMasks(Steady):
    """One agent has a mask."""

    def reset(self, seed=None, options=None):
        seen, infos = super().reset(seed, options)
        return seen, {**infos, "speaker_0": {"action_mask": np.array([1, 0], np.int8)}}


@pytest.mark.parametrize(("team", "measured"), [(Steady, [15.0, 0.0]), (WithMasks, None), (Duel, None)])
def test_constant_policies_are_measured_for_teams_without_masks(team, measured):
    """All agents together earn 5 in each of three steps; what they earn in a duel is 0, whatever they do."""
    env = make_multi_agent_vect_envs(team, 2, backend="sync")
    spaces = env.single_observation_spaces, env.single_action_spaces
    pop = IPPO.population(2, *spaces, num_envs=2, learn_step=12, batch_size=12, net_config=SMALL, seed=1)
    options = {"max_steps": 48, "evo_steps": 12, "eval_loop": 1, "verbose": False}
    NotesBaseline.noted.clear()
    train_multi_agent_on_policy(env, pop=pop, selection_strategy=NotesBaseline(), mutation=GaussianSteps(), **options)
    env.close()
    assert NotesBaseline.noted == [None, None, measured]


class WithHits(Duel):
    """Counts the colours that red names in an episode."""

    def reset(self, seed=None, options=None):
        self.hits = 0
        return super().reset(seed, options)

    def step(self, actions):
        self.hits += int(actions["red_0"] == self.colour)
        *parts, infos = super().step(actions)
        return *parts, {agent: {"hits": self.hits} for agent in infos}


def test_constant_policies_are_measured_in_a_zero_sum_game_whose_fitness_is_an_info(capsys):
    env = make_multi_agent_vect_envs(WithHits, 2, backend="sync", info_keys={"hits": "red_0.hits"})
    spaces = env.single_observation_spaces, env.single_action_spaces
    pop = IPPO.population(2, *spaces, num_envs=2, learn_step=16, batch_size=16, net_config=SMALL, seed=1)
    options = {"max_steps": 64, "evo_steps": 16, "eval_loop": 1, "verbose": False, "fitness": "info.hits"}
    NotesBaseline.noted.clear()
    train_multi_agent_on_policy(env, pop=pop, selection_strategy=NotesBaseline(), mutation=GaussianSteps(), **options)
    env.close()
    assert "fitness='return'" not in capsys.readouterr().out
    highest, spread = NotesBaseline.noted[2]
    assert 0 <= spread <= highest <= 4


class PaysOnTheSecondProcess(Duel):
    """A duel whose rewards sum to 0 on the first process of a run alone, as if its members had played so."""

    def step(self, actions):
        observations, rewards, *rest = super().step(actions)
        extra = float(os.environ.get("RANK", "0"))
        return observations, {agent: paid + extra for agent, paid in rewards.items()}, *rest


def test_a_game_is_zero_sum_only_if_it_is_for_the_members_of_all_processes():
    """As in one process, so that the warning and the baseline do not depend on the number of processes."""
    env = make_multi_agent_vect_envs(PaysOnTheSecondProcess, 2, backend="sync")
    spaces = env.single_observation_spaces, env.single_action_spaces
    pop = IPPO.population(2, *spaces, num_envs=2, learn_step=16, batch_size=16, net_config=SMALL, seed=1)
    options = {"max_steps": 64, "evo_steps": 16, "eval_loop": 1, "verbose": False, "processes": 2}
    records = Records()
    NotesBaseline.noted.clear()
    train_multi_agent_on_policy(
        env, pop=pop, selection_strategy=NotesBaseline(), mutation=GaussianSteps(), reporters=[records], **options
    )
    env.close()
    assert not [text for text in records.warnings if "fitness='return'" in text]
    assert NotesBaseline.noted[2] is not None
