"""Environments that differ, infos as results and as fitness, seeds, limits of return, updates and time."""

import csv
import json
import math
from dataclasses import asdict, dataclass
from functools import partial
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from gymnasium import RewardWrapper
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorWrapper
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from paying_envs import Paid
from small_runs import Records

from agilerl_like import (
    PPO,
    ConfigurationError,
    EnvStepError,
    Population,
    evaluate,
    make_multi_agent_vect_envs,
    make_vect_envs,
    train_on_policy,
)
from agilerl_like.algorithms.episode_summary import summarise_episodes
from agilerl_like.cli.train import BEYOND
from agilerl_like.config import Config, build
from agilerl_like.distributed.process_group import Shard, SingleProcess
from agilerl_like.envs.distinct_envs import num_distinct_envs
from agilerl_like.envs.episode_wrappers import InfoObservation, MaxTotalReward
from agilerl_like.envs.factory import VecEnvConfig, have_equal_episodes
from agilerl_like.envs.vec_adapter import VecEnvAdapter
from agilerl_like.hpo import Selection, SlotPlan
from agilerl_like.hpo.gated_selection import GatedSelection
from agilerl_like.training.checkpoint_manager import Progress, RunFinished, newest_checkpoint
from agilerl_like.training.collector import Collector, PhaseTimer
from agilerl_like.training.env_setup import SingleAgentEnvSetup
from agilerl_like.training.evaluator import Evaluator
from agilerl_like.training.run_plan import NO_MUTATION, RunPlan
from agilerl_like.training.session import ProcessRun, limits_reached, longest_episode
from agilerl_like.training.sharding import ShardedPopulation
from agilerl_like.training.training_arguments import OutputPaths, TrainingArguments


class Wide(Paid):
    observation_space = Box(0, 1, (2,))


SOURCES = [partial(Paid, pay) for pay in (1.0, 2.0, 3.0)]
PAYS = [{"pay": 1.0}, {"pay": 2.0}, {"pay": 3.0}]
INFOS = {"cost": "cost", "success": "nested.success"}


def members(count, env, **kwargs):
    settings = {"seed": 0, "num_envs": env.num_envs, "learn_step": 30, "batch_size": 30, **kwargs}
    return PPO.population(count, env.single_observation_space, env.single_action_space, **settings)


def evaluated(count=2, episodes=2, backend="sync", aggregate="mean", fitness="return", envs=None, **kwargs):
    env = make_vect_envs(Paid, num_envs=3, backend=backend, instances=PAYS, info_keys=INFOS, aggregate=aggregate)
    wide = make_vect_envs(
        Paid, num_envs=envs or 3 * count * episodes, backend=backend, instances=PAYS, info_keys=INFOS,
        aggregate=aggregate, **kwargs
    )  # fmt: skip
    evaluator = Evaluator(VecEnvAdapter(wide), None, fitness)
    return evaluator.evaluate(members(count, env), range(episodes), 0)


@pytest.mark.parametrize(
    ("backend", "aggregate", "fitness"),
    [("sync", "mean", 10.0), ("sync", "median", 10.0), ("workers", "min", 5.0)],
)
def test_every_member_plays_every_instance_on_the_same_seeds(backend, aggregate, fitness):
    result = evaluated(backend=backend, aggregate=aggregate)
    assert result.fitness == [fitness] * 2
    assert result.returns == [[5.0, 10.0, 15.0] * 2] * 2
    assert result.measures["info/cost"] == [5.0] * 2
    assert [result.measures[f"fitness_by_instance/{i}"] for i in range(3)] == [[5.0] * 2, [10.0] * 2, [15.0] * 2]


@pytest.mark.parametrize(("aggregate", "fitness"), [("mean", 10.0), ("median", 10.0), ("min", 5.0)])
def test_a_test_by_hand_has_the_aggregate_too(aggregate, fitness):
    env = make_vect_envs(Paid, num_envs=3, backend="sync", instances=PAYS, aggregate=aggregate)
    (agent,) = members(1, env)
    heard = []
    assert agent.test(env, loop=2, callback=lambda score, info: heard.append(score)) == fitness
    assert heard == [5.0, 10.0, 15.0] * 2


class Plain(VectorWrapper):
    """Changes nothing."""


@pytest.mark.parametrize("layers", [[Plain], [RecordEpisodeStatistics, Plain]])
def test_instances_and_aggregate_of_an_env_inside_vector_wrappers_have_their_effect(layers):
    env = make_vect_envs(Paid, num_envs=3, backend="sync", instances=PAYS, aggregate="min")
    for layer in layers:
        env = layer(env)
    (agent,) = members(1, env)
    assert evaluate(agent, env, 2).returns.tolist() == [[5.0, 10.0, 15.0] * 2]
    assert agent.test(env, loop=1) == 5.0


def test_fewer_envs_than_episodes_play_in_rounds():
    assert evaluated(episodes=4, envs=6).returns == [[5.0, 10.0, 15.0] * 4] * 2


def test_all_instances_start_from_the_same_seeds():
    seen = []

    class Spy(Paid):
        def reset(self, *, seed=None, options=None):
            found = super().reset(seed=seed, options=options)
            if seed is not None:
                seen.append((self.pay, seed))
            return found

    env = make_vect_envs(Spy, num_envs=12, backend="sync", instances=PAYS)
    seen.clear()
    Evaluator(VecEnvAdapter(env), None).evaluate(members(2, env, num_envs=3), [7, 8], 0)
    assert seen == [(pay, seed) for seed in (7, 8) for pay in (1.0, 2.0, 3.0)] * 2


@pytest.mark.parametrize(
    ("scores", "aggregate", "wanted"),
    [
        ([1, 5, 3, 7], "mean", (4.0, math.sqrt(5))),
        ([1, 5, 3, 7], "min", (2.0, 1.0)),  # instance 0: 1, 3
        ([1, 5, 3, 7], "median", (4.0, 1.0)),  # of 2 and 6
        ([1, math.nan, 3, 7], "min", (2.0, 1.0)),
        ([1, math.nan, 3, math.nan], "min", (math.nan, math.nan)),
    ],
)
def test_aggregates_are_over_the_means_of_instances(scores, aggregate, wanted):
    found = summarise_episodes(scores, 2, aggregate)
    assert (found.mean, found.spread) == pytest.approx(wanted, nan_ok=True)


class Lucky(Paid):
    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward * self.np_random.random(), *rest


def test_the_standard_error_of_a_trial_is_that_of_its_fitness(tmp_path):
    """The smallest of three means has the error of one instance's episodes, and a mean of one episode no known one."""
    for episodes, folder in ((4, tmp_path / "four"), (1, tmp_path / "one")):
        env = make_vect_envs(Lucky, num_envs=3, backend="sync", instances=PAYS, aggregate="min")
        trained(env, members(2, env), eval_loop=episodes, run_dir=folder)
        run = newest_checkpoint(OutputPaths(run_dir=folder), pytest.fail).documents["run"]
        found = [trial["standard_error"] for trial in run["history"][-2:]]
        errors = [summarise_episodes(returns, 3, "min").error for returns in run["search"]["returns"]]
        assert found == pytest.approx(errors if episodes > 1 else [math.nan] * 2, nan_ok=True)


class Seen(GatedSelection):
    """Stores what it plans by."""

    views: ClassVar[list] = []

    def plan(self, view, rng):
        self.views.append(view)
        return super().plan(view, rng)

    def in_doubt(self, view):
        self.views.append(view)
        return super().in_doubt(view)


def test_selection_sees_the_returns_of_the_instances_that_decide():
    """The worst instance of all members is the one that pays 1, so four of their twelve returns are left."""
    env = make_vect_envs(Lucky, num_envs=3, backend="sync", instances=PAYS, aggregate="min")
    trained(env, members(4, env), eval_loop=4, selection_strategy=Seen())
    assert {np.isfinite(view.returns).sum() for view in Seen.views} == {4 * 4}


def test_envs_with_arrays_as_arguments_are_compared_by_their_values():
    """An array has no single truth value, and a second env has another array of the same numbers."""
    envs = [
        SimpleNamespace(env_config=VecEnvConfig(Paid, num_envs=count, env_kwargs={"field": np.array(field)}))
        for count, field in ((1, [0, 1]), (2, [0, 1]), (1, [1, 1]))
    ]
    assert [have_equal_episodes(envs[0], env) for env in envs] == [True, True, False]


class Tenfold(RewardWrapper):
    def reward(self, reward):
        return 10 * reward


@pytest.mark.parametrize(
    ("made", "fitness", "is_known"),
    [
        ({}, "return", True),
        ({"instances": PAYS}, "return", True),
        ({"instances": PAYS, "aggregate": "min"}, "return", False),
        ({"info_keys": INFOS}, "info.cost", False),
        ({"training_wrappers": [Tenfold]}, "return", False),
        ({"eval_env": {}}, "return", True),
        ({"eval_env": {"wrappers": [Tenfold]}}, "return", False),
        ({"eval_steps": 1}, "return", False),
    ],
)
def test_selection_sees_training_returns_only_where_fitness_is_the_same_measure(made, fitness, is_known):
    made = dict(made)
    run = {name: made.pop(name) for name in ("eval_env", "eval_steps") if name in made}
    env = make_vect_envs(Lucky, num_envs=3, backend="sync", **made)
    if "eval_env" in run:
        run["eval_env"] = make_vect_envs(Lucky, num_envs=3, backend="sync", **run["eval_env"])
    Seen.views.clear()
    trained(env, members(4, env), eval_loop=4, fitness=fitness, selection_strategy=Seen(), **run)
    assert {view.train_returns is not None for view in Seen.views} == {is_known}
    for view in Seen.views:
        np.testing.assert_allclose(np.nanmean(view.returns, axis=1), view.fitness)
    assert len(Seen.views) > 1


@pytest.mark.parametrize(
    ("env_id", "backend"),
    [
        *(("Acrobot-v1", backend) for backend in ("sync", "workers", "async")),
        *(("CartPole-v1", backend) for backend in ("vector", "torch")),
    ],
)
def test_the_time_limit_of_an_env_is_known_with_every_backend(env_id, backend):
    env = make_vect_envs(env_id, num_envs=2, backend=backend, max_episode_steps=7)
    assert longest_episode(env) == 7
    env.close()


def test_the_time_limit_of_another_native_vector_env_is_that_of_its_spec(monkeypatch):
    env = make_vect_envs("CartPole-v1", num_envs=2, backend="vector", max_episode_steps=7)
    monkeypatch.delattr(env, "max_episode_steps")
    assert longest_episode(env) == 7
    monkeypatch.delitem(env.spec.kwargs, "max_episode_steps")
    assert longest_episode(env) == 500
    env.close()


@pytest.mark.parametrize("backend", ["sync", "workers", "async"])
def test_an_env_without_a_time_limit_has_none_with_every_backend(backend):
    endless = make_vect_envs(Paid, num_envs=2, backend=backend)
    assert longest_episode(endless) is None
    endless.close()


@pytest.mark.parametrize("backend", ["sync", "workers"])
def test_the_time_limit_of_a_team_is_known_with_every_backend(backend):
    pytest.importorskip("mpe2")
    env = make_multi_agent_vect_envs("mpe2.simple_spread_v3", 2, backend=backend, max_cycles=7)
    assert longest_episode(env.vector) == 7
    env.close()


@pytest.mark.parametrize("backend", ["sync", "workers"])
def test_selection_sees_training_returns_where_evaluation_is_cut_at_the_time_limit(backend):
    env = make_vect_envs("Acrobot-v1", num_envs=2, backend=backend, num_workers=1, max_episode_steps=5)
    Seen.views.clear()
    trained(env, members(2, env), eval_loop=2, eval_steps=5, selection_strategy=Seen())
    env.close()
    assert {view.train_returns is not None for view in Seen.views} == {True}


def test_selection_sees_no_training_returns_where_evaluation_is_cut_before_a_given_time_limit():
    env = make_vect_envs("CartPole-v1", num_envs=2, backend="vector", max_episode_steps=2000)
    Seen.views.clear()
    trained(env, members(2, env), eval_loop=2, eval_steps=500, selection_strategy=Seen())
    env.close()
    assert {view.train_returns for view in Seen.views} == {None}


def test_a_member_that_is_better_on_one_instance_ranks_first_only_under_the_mean():
    plain, better = [5.0, 10.0, 15.0], [4.0, 20.0, 15.0]
    first = {
        name: summarise_episodes(better, 3, name).mean > summarise_episodes(plain, 3, name).mean
        for name in ("mean", "min")
    }
    assert first == {"mean": True, "min": False}


def test_an_episode_that_another_member_began_is_not_one_of_its_successor():
    env = make_vect_envs(Paid, num_envs=2, backend="sync")  # episodes of five steps, each of which pays 1
    collector = Collector(members(2, env, num_envs=1), VecEnvAdapter(env), PhaseTimer(("env", "act", "learn")))
    collector.reset([0, 1])
    collector.collect(3)
    collector.reset_member(0)
    collector.collect(2)
    assert np.isnan(collector.scores()[0])
    assert collector.scores()[1] == 5.0
    collector.collect(5)
    assert collector.pop_scores() == [5.0, 5.0]


@pytest.mark.parametrize(
    ("mode", "before", "after"),
    [
        (AutoresetMode.SAME_STEP, 5, 5),
        (AutoresetMode.NEXT_STEP, 5, 6),  # the first step after the end only resets
        (AutoresetMode.NEXT_STEP, 6, 5),
        (AutoresetMode.DISABLED, 5, 5),
    ],
)
def test_a_successor_has_the_first_episode_of_an_env_whose_last_one_had_ended(mode, before, after):
    env = SyncVectorEnv([Paid, Paid], autoreset_mode=mode)
    collector = Collector(members(2, env, num_envs=1), VecEnvAdapter(env), PhaseTimer(("env", "act", "learn")))
    collector.reset([0, 1])
    collector.collect(before)
    assert collector.pop_scores() == [5.0, 5.0]
    collector.reset_member(0)
    collector.collect(after)
    assert collector.pop_scores() == [5.0, 5.0]


def test_training_meets_all_instances_equally_often():
    env = make_vect_envs(SOURCES, num_envs=6, backend="sync")
    wide = make_vect_envs(SOURCES, num_envs=12, backend="sync")
    assert [single.unwrapped.pay for single in wide.envs] == [1.0, 2.0, 3.0] * 4
    collector = Collector(members(2, env, num_envs=6), VecEnvAdapter(wide), PhaseTimer(("env", "act", "learn")))
    collector.reset([0, 1])
    collector.collect(10)
    assert collector.pop_scores() == [10.0, 10.0]


class Fragile(Paid):
    def __init__(self, pay=1.0):
        super().__init__(pay)
        if pay == 2.0:
            raise RuntimeError("no such level")


@pytest.mark.parametrize("backend", ["sync", "workers"])
def test_an_exception_of_a_constructor_names_the_instance_and_the_line(backend):
    message = r"^Fragile: construction of instance 1 failed with RuntimeError: no such level \(File .*, in __init__\)"
    with pytest.raises(EnvStepError, match=message):
        make_vect_envs(Fragile, num_envs=3, backend=backend, instances=PAYS)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_envs": 4}, "num_envs=4; allowed with 3 instances are multiples of 3"),
        ({"backend": "vector"}, "backend='vector' cannot run different envs"),
        ({"instances": [{"pay": 1.0}, {"id": Wide}, {"pay": 3.0}]}, r"instances: number 1 has Box.*allowed are equal"),
        ({"instances": [{"pay": 1.0, "nope": 2}]}, "nope"),
        ({"aggregate": "max"}, "aggregate='max' is unknown"),
        ({"seeds": np.array([0.5])}, r"seeds=array\(\[0.5\]\); allowed are whole numbers from 0"),
        ({"seeds": []}, r"seeds=\[\]; allowed are whole numbers from 0"),
        ({"seeds": [0, -1, 2]}, r"seeds=\[0, -1, 2\]; allowed are whole numbers from 0"),
        ({"info_keys": ["cost"]}, r"info_keys=\['cost'\]; allowed are names with keys of the info"),
        ({"info_keys": {"cost": 3}}, r"info_keys=\{'cost': 3\}; allowed are names with keys of the info"),
        (
            {"info_keys": {"a": "env.score", "b": "score"}},
            "the attribute 'env.score' would hide 'score' of the info; allowed is one of the two",
        ),
        ({"seeds": [1]}, "seeds has 1 entries; allowed is one for each of 3 envs"),
        ({"max_total_reward": math.inf}, "max_total_reward=inf; allowed are finite numbers"),
    ],
)
def test_errors(kwargs, message):
    def run():
        env = make_vect_envs(Paid, **{"num_envs": 3, "backend": "sync", "instances": PAYS, **kwargs})
        trained(env)

    with pytest.raises(ConfigurationError, match=message):
        run()


def trained(env, pop=None, **kwargs):
    pop = members(2, env) if pop is None else pop
    return train_on_policy(env, "Paid", "PPO", pop, **{"max_steps": 60, "evo_steps": 30, "verbose": False, **kwargs})


def rows_of(folder):
    with (folder / "metrics.csv").open(newline="") as table:
        return list(csv.DictReader(table))


def test_a_run_reports_instances_and_infos(tmp_path):
    env = make_vect_envs(Paid, num_envs=3, backend="sync", instances=PAYS, info_keys={**INFOS, "fes": "env.fes"})
    _, fitness = trained(env, run_dir=tmp_path / "run", eval_loop=2, fitness="info.cost")
    assert fitness == [5.0, 5.0]
    for row in rows_of(tmp_path / "run"):
        assert float(row["eval/mean_reward"]) == float(row["eval/info/cost"]) == float(row["eval/info/fes"]) == 5.0
        assert float(row["eval/return"]) == 10.0
        assert row["eval/episodes"] == "6"
        assert [float(row[f"eval/fitness_by_instance/{i}"]) for i in range(3)] == [5.0] * 3


def test_fitness_may_be_success_and_not_the_return():
    """Action 0 pays twice as much, action 1 succeeds."""
    env = make_vect_envs(partial(Paid, 1.0, (2.0, 1.0)), num_envs=2, backend="sync", info_keys=INFOS)
    population = members(2, env)
    for agent, choice in zip(population, (0, 1), strict=True):
        agent.network.actor.head.linears[-1].bias.data.view(-1)[choice] = 100.0
    wide = make_vect_envs(partial(Paid, 1.0, (2.0, 1.0)), num_envs=4, backend="sync", info_keys=INFOS)
    by_return = Evaluator(VecEnvAdapter(wide), None).evaluate(population, [0, 1], 0)
    by_success = Evaluator(VecEnvAdapter(wide), None, "info.success").evaluate(population, [0, 1], 0)
    assert by_return.fitness == [10.0, 5.0]
    assert by_success.fitness == [0.0, 1.0]
    assert by_success.measures["return"] == [10.0, 5.0]
    with pytest.raises(ConfigurationError, match=r"fitness='info.wins' is unknown"):
        Evaluator(VecEnvAdapter(wide), None, "info.wins")


def test_a_fitness_that_no_info_has_is_an_error_that_names_those_it_has():
    env = make_vect_envs(Paid, num_envs=2, backend="sync", info_keys={"won": "nested.won", "cost": "cost"})
    population = members(2, env)
    message = r"info\['nested.won'\], which is the fitness, is missing in 2 of 2 episodes, .*'cost'"
    with pytest.raises(EnvStepError, match=message):
        Evaluator(VecEnvAdapter(env), None, "info.won").evaluate(population, [0], 0)
    assert np.isnan(Evaluator(VecEnvAdapter(env), None).evaluate(population, [0], 0).measures["info/won"]).all()


class ScoredAtGoal(Paid):
    """Has a score only where action 1 in the first step leads to the goal; action 0 runs into the time limit."""

    def step(self, action):
        observation, reward, _, _, info = super().step(action)
        done = bool(action == 1)
        return observation, reward, done, not done, {**info, "score": 7.0} if done else info


def test_a_fitness_that_some_episodes_lack_is_an_error():
    """The mean over the others would be that of the episodes that reached the goal, whatever their share is."""
    env = make_vect_envs(ScoredAtGoal, num_envs=2, backend="sync", info_keys={"score": "score"})
    population = members(2, env)
    for agent, choice in zip(population, (0, 1), strict=True):
        agent.network.actor.head.linears[-1].bias.data.view(-1)[choice] = 100.0
    message = (
        r"info\['score'\], which is the fitness, is missing in 1 of 2 episodes, such as those that the time limit or "
        "eval_steps cuts; .*'cost'.*; allowed is an info that every last step has"
    )
    by_score = Evaluator(VecEnvAdapter(env), None, "info.score")
    with pytest.raises(EnvStepError, match=message):
        by_score.evaluate(population, [0], 0)
    fitness, _ = by_score.play_constant(population, [0, 1], [0])  # none of the run's members
    np.testing.assert_array_equal(fitness, [math.nan, 7.0])
    by_return = Evaluator(VecEnvAdapter(env), None)
    np.testing.assert_array_equal(by_return.evaluate(population, [0], 0).measures["info/score"], [math.nan, 7.0])
    result = by_score.evaluate(population[1], [0, 1, 2], 0)
    assert (result.fitness, result.returns) == ([7.0], [[7.0, 7.0, 7.0]])


@pytest.mark.parametrize(("seeds", "equal"), [([7, 7], True), ([7, 8], False), (7, False)])
def test_seeds_are_those_of_each_env(seeds, equal):
    env = make_vect_envs(Paid, num_envs=2, backend="sync", seeds=seeds)
    collector = Collector(members(1, env), VecEnvAdapter(env), PhaseTimer(("env", "act", "learn")))
    for _ in range(2):
        collector.reset([0])
        rows = collector.groups[""].observations[0]
        assert bool((rows[0] == rows[1]).all()) == equal
        wanted = np.random.Generator(np.random.PCG64(np.random.SeedSequence(7))).random(1).astype(np.float32)
        assert rows[0].numpy() == wanted


def test_seeds_of_an_env_inside_vector_wrappers_are_those_of_each_members_rows():
    env = RecordEpisodeStatistics(make_vect_envs(Paid, num_envs=6, backend="sync", instances=PAYS, seeds=[7, 7, 8]))
    setup, population = SingleAgentEnvSetup(env), members(2, env, num_envs=3)
    assert setup.make_training_env(2, 1) is env  # the members share its rows
    collector = Collector(population, setup.adapt(env), PhaseTimer(("env", "act", "learn")))
    collector.reset([0, 1])
    one, other = (rows[:, 0].tolist() for rows in collector.groups[""].observations)
    assert one == other
    assert one[0] == one[1] != one[2]


def test_rows_that_members_share_have_whole_sets_of_instances():
    env = Plain(make_vect_envs(Paid, num_envs=6, backend="sync", instances=PAYS))
    with pytest.raises(ConfigurationError, match="num_envs=2; allowed with 3 instances are multiples of 3"):
        SingleAgentEnvSetup(env).make_training_env(3, 1)


def test_a_limit_of_the_return_ends_the_episode():
    env = make_vect_envs("CartPole-v1", num_envs=2, max_total_reward=10, backend="sync")
    agent = PPO(env.single_observation_space, env.single_action_space, num_envs=2, seed=0)
    returns = []
    assert agent.test(env, loop=2, callback=lambda score, info: returns.append((score, info["episode_length"]))) <= 10.0
    for score, length in returns:
        assert score == min(10.0, length)
    limited = make_vect_envs(Paid, num_envs=1, pay=4.0, max_total_reward=10, backend="sync").envs[0]
    limited.reset(seed=0)
    assert [limited.step(0)[1:3] for _ in range(3)] == [(4.0, False), (4.0, False), (2.0, True)]


@pytest.mark.parametrize("limit", [{"max_updates": 2}, {"max_seconds": 1e-9}])
def test_a_run_ends_at_a_limit(limit, tmp_path):
    env = make_vect_envs(Paid, num_envs=3, backend="sync")
    population, _ = trained(env, members(2, env), max_steps=300, run_dir=tmp_path / "run", **limit)
    generations = 2 if "max_updates" in limit else 1
    assert population[0].learner.updates == generations
    assert {row["generation"] for row in rows_of(tmp_path / "run")} == {str(i + 1) for i in range(generations)}


def test_updates_before_the_run_do_not_count(tmp_path):
    """A resumed run counts from its own beginning, too."""
    env = make_vect_envs(Paid, num_envs=3, backend="sync")
    population, _ = trained(env, members(2, env), max_steps=60)
    options = {"max_steps": 300, "checkpoint": 30}
    population, _ = trained(env, population, max_updates=2, run_dir=tmp_path / "run", **options)
    assert [agent.learner.updates for agent in population] == [4, 4]
    population, _ = trained(env, population, max_updates=3, resume=tmp_path / "run", **options)
    assert [agent.learner.updates for agent in population] == [5, 5]
    own = ShardedPopulation(SingleProcess(), [Shard((0, 1))], population, None)
    saved_run = newest_checkpoint(OutputPaths(run_dir=tmp_path / "run"), pytest.fail).documents["run"]
    assert limits_reached(saved_run, TrainingArguments(max_updates=3, max_steps=300), own) == ["max_updates"]
    assert limits_reached(saved_run, TrainingArguments(max_updates=4, max_steps=300), own) == []


@dataclass(frozen=True)
class Second(Selection):
    """Clones of the second member fill all slots but its own."""

    def plan(self, view, rng):
        return [SlotPlan(1, 1, explore=False) for _ in view.fitness]


def test_updates_count_from_the_beginning_of_each_lineage(tmp_path):
    """The first member has made more updates before the run than the second, whose clone replaces it."""
    env = make_vect_envs(Paid, num_envs=3, backend="sync")
    population = members(2, env)
    population[0].learner.updates = 100
    options = {"max_steps": 300, "checkpoint": 30, "selection_strategy": Second()}
    population, _ = trained(env, population, max_updates=3, run_dir=tmp_path / "run", **options)
    assert population.outcome == "max_updates reached"
    assert [agent.learner.updates for agent in population] == [3, 3]
    population, _ = trained(env, population, max_updates=5, resume=tmp_path / "run", **options)
    assert population.outcome == "max_updates reached"
    assert [agent.learner.updates for agent in population] == [5, 5]


def test_the_updates_before_a_run_are_in_the_files_of_its_members(tmp_path):
    env = make_vect_envs(Paid, num_envs=3, backend="sync")
    population, _ = trained(env, members(2, env), max_steps=60)
    assert [agent.learner.updates_before for agent in population] == [0, 0]
    population, _ = trained(env, population, max_steps=30)
    stored = PPO.from_documents(*population[0].to_documents(), device="cpu", where="memory")
    for agent in (population[0], population[0].clone(), stored):
        assert (agent.learner.updates_before, agent.learner.updates_of_run) == (2, 1)


def test_all_processes_find_the_same_limits_of_a_run_that_has_ended():
    """The member with the most updates is another process's, so this one has to ask."""

    class Two(SingleProcess):
        size = 2

        def all_gather(self, document):
            return [document, 4]

    env = make_vect_envs(Paid, num_envs=3, backend="sync")
    own = ShardedPopulation(Two(), [Shard((0,)), Shard((1,))], members(1, env), None)
    record = {"slot": 1, "uid": 1, "parent_uid": -1, "env_steps": 0, "fitness": 1.0, "fitness_std": 0.0, "episodes": 1}
    record |= {"train_return": 1.0, "hyperparameters": {}, "architecture": "", "parameters": 1, "mutation": "None"}
    best = {"record": {**record, "losses": {}, "generation": 1}, "ancestry": []}
    saved_run = {"progress": asdict(Progress(2, outcome="max_updates reached")), "best": best, "fitness": [0.5, 1.0]}
    assert limits_reached(saved_run, TrainingArguments(max_updates=4), own) == ["max_updates"]
    assert limits_reached(saved_run, TrainingArguments(max_updates=5), own) == []
    own.gather_all, own.broadcast_agents = lambda: members(2, env), lambda rank, agents: agents
    run = SimpleNamespace(plan=RunPlan(TrainingArguments(max_updates=4), None, NO_MUTATION), output_paths=OutputPaths())
    with pytest.raises(RunFinished) as end:
        ProcessRun._check_unfinished(run, saved_run, own, None)
    assert end.value.population.fitness == [0.5, 1.0]  # of members that arrive without one


def test_how_to_continue_is_known_for_each_limit():
    limits = {"max_updates": 1, "max_seconds": 1e-9, "target": 0.0}
    env = make_vect_envs(Paid, num_envs=3, backend="sync")
    own = ShardedPopulation(SingleProcess(), [Shard((0,))], members(1, env), None)
    record = {"slot": 0, "uid": 0, "parent_uid": -1, "env_steps": 0, "fitness": 1.0, "fitness_std": 0.0, "episodes": 1}
    record |= {"train_return": 1.0, "hyperparameters": {}, "architecture": "", "parameters": 1, "mutation": "None"}
    best = {"record": {**record, "losses": {}, "generation": 1, "standard_error": 0.1}, "ancestry": []}
    own.population[0].learner.updates = 1
    saved_run = {
        "progress": asdict(Progress(1, ticks=10**9, seconds=1.0, outcome="ended")),
        "best": best,
        "fitness": [1.0],
    }
    assert {*limits_reached(saved_run, TrainingArguments(**limits), own)} == {*BEYOND}


def test_limits_must_be_positive():
    env = make_vect_envs(Paid, num_envs=3, backend="sync")
    for limit, message in (
        ({"max_updates": 0}, "max_updates=0 must be a positive integer"),
        ({"max_seconds": -1.0}, r"max_seconds=-1\.0 must be positive and finite"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            trained(env, **limit)


def test_an_info_becomes_the_critics_observation():
    env = make_vect_envs(Stated, num_envs=2, backend="sync", wrappers=[InfoObservation])
    agents = members(1, env, critic_observation="state")
    collector = Collector(agents, VecEnvAdapter(env), PhaseTimer(("env", "act", "learn")))
    collector.reset([0])
    collector.collect(3)
    encoding = agents[0].learner.rollout_encoding
    assert encoding.critic_rows(collector.groups[""].observations)[0].tolist() == [[3.0], [3.0]]
    with pytest.raises(ConfigurationError, match="key='state' is not in the info"):
        InfoObservation(Paid())
    with pytest.raises(ConfigurationError, match="key='policy' is the name of the observation"):
        InfoObservation(Stated(), key="policy")


@pytest.mark.parametrize("limit", [-10.0, 0.0, float("nan")])
def test_a_largest_return_is_above_the_return_at_the_start(limit):
    with pytest.raises(ConfigurationError, match=f"limit={limit!r} must be greater than 0"):
        MaxTotalReward(Paid(), limit=limit)


class Stated(Paid):
    def reset(self, *, seed=None, options=None):
        observation, _ = super().reset(seed=seed, options=options)
        self.first = float(observation[0])
        return observation, {"state": np.float32([0])}


def test_copies_with_an_info_in_the_observation_play_different_episodes_until_they_are_seeded():
    env = SyncVectorEnv([lambda: InfoObservation(Stated())] * 2)
    first, second = env.reset()[0]["policy"].ravel()
    assert first != second
    np.testing.assert_array_equal(env.reset(seed=7)[0]["policy"][0], Stated().reset(seed=7)[0])
    assert num_distinct_envs(SyncVectorEnv([lambda: InfoObservation(Stated()) for _ in range(2)])) == 1


@pytest.mark.parametrize(
    ("seeds", "stored"), [(np.arange(3), (0, 1, 2)), ([np.int64(4)] * 3, (4, 4, 4)), (np.int64(3), 3), (None, None)]
)
def test_numbers_of_numpy_are_stored_as_plain_numbers(seeds, stored):
    env_config = make_vect_envs(Paid, num_envs=np.int64(3), backend="sync", seeds=seeds).env_config
    assert (env_config.seeds, env_config.num_envs) == (stored, 3)
    json.dumps((env_config.seeds, env_config.num_envs))  # an error for numpy's


def test_a_file_has_the_keys():
    config = Config.model_validate(
        {
            "environment": {
                "id": "training.test_instances:Paid",
                "num_envs": 3,
                "instances": PAYS,
                "aggregate": "min",
                "info_keys": {"cost": "cost", "fes": "env.fes"},
                "seeds": [1, 2, 3],
                "max_total_reward": 8,
                "backend": "sync",
            },
            "algorithm": {"learn_step": 30, "batch_size": 30},
            "training": {"fitness": "info.cost", "max_updates": 3, "max_seconds": 60.0},
        }
    )
    env = build(config).env
    assert (env.env_config.aggregate, env.env_config.seeds) == ("min", (1, 2, 3))
    assert env.env_config.info_keys == {"cost": "cost", "fes": "fes"}
    env.close()
    with pytest.raises(ValueError, match=r"fitness='info.wins' is unknown"):
        Config.model_validate({"environment": {"id": "CartPole-v1"}, "training": {"fitness": "info.wins"}})


def test_populations_of_more_members_than_places_keep_whole_sets():
    env = make_vect_envs(Paid, num_envs=3, backend="sync", instances=PAYS)
    evaluator = Evaluator(VecEnvAdapter(make_vect_envs(Paid, num_envs=18, backend="sync", instances=PAYS)), None)
    found = evaluator.evaluate_some(members(6, env), [0, 1, 2, 3], [5], 0)
    assert found.returns == [[5.0, 10.0, 15.0]] * 4
    assert isinstance(members(2, env), Population)


class AlwaysInDoubt(GatedSelection):
    def in_doubt(self, view):
        return range(len(view))


@pytest.mark.parametrize(("share", "episodes"), [(0.9, 3), (1.0, 6)])
def test_further_episodes_on_all_instances_stay_within_their_share(share, episodes):
    """Two members take 60 env steps; a seed of both is played on three instances, which takes 30."""
    env, records = make_vect_envs(Paid, num_envs=3, backend="sync", instances=PAYS), Records()
    selection = {"selection_strategy": AlwaysInDoubt(), "eval_loop": 1, "eval_share": share}
    trained(env, reporters=[records], **selection)
    env.close()
    assert [member.evaluation_steps for member in records.members] == [5 * episodes] * 4
