"""What fitness is made of: the environment's own reward, and the same environments for every member."""

import math
import os
from functools import partial
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import steady_teams
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorWrapper
from small_runs import Records

from agilerl_like import (
    IPPO,
    PPO,
    ConfigurationError,
    make_vect_envs,
    play_games,
    train_multi_agent_on_policy,
    train_on_policy,
)
from agilerl_like.algorithms.episode_summary import summarise_episodes
from agilerl_like.algorithms.evaluation import Episodes
from agilerl_like.envs import SubprocVectorEnv, VecEnvAdapter, make_multi_agent_vect_envs
from agilerl_like.envs.evaluation_envs import make_eval_env
from agilerl_like.envs.multi_agent.pettingzoo import MultiAgentVectorEnv, make_packed_env
from agilerl_like.errors import EnvStepError
from agilerl_like.hpo.auto import AutoSelection
from agilerl_like.hpo.selection import PopulationView
from agilerl_like.seeding import Purpose, integers
from agilerl_like.training.env_setup import SingleAgentEnvSetup
from agilerl_like.training.evaluator import (
    EvalResult,
    Evaluator,
    _number,
    deciding_returns,
    seed_effects,
)

TINY = {
    "net_config": {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}, "latent_dim": 8},
    "learn_step": 32,
    "batch_size": 16,
    "seed": 1,
}


def population_of(env, size=2):
    spaces = env.single_observation_space, env.single_action_space
    return PPO.population(size, *spaces, num_envs=env.num_envs, **TINY)


def test_an_episode_that_was_lost_with_its_process_counts_in_no_result():
    returns, lost = np.array([[100.0, 100.0, 100.0, 3.0]]), np.array([[False, False, False, True]])
    played = Episodes(returns, np.full((1, 4), 10), lost)
    evaluator = Evaluator(VecEnvAdapter(make_eval_env(make_vect_envs("CartPole-v1", backend="sync"), 4)), None)
    result = evaluator.evaluate(SimpleNamespace(run_episodes=lambda *given, **more: played), range(4), 1)
    assert (result.fitness, result.spread, result.errors) == ([100.0], [0.0], [0.0])


# ---- training wrappers


@pytest.mark.parametrize("backend", ["auto", "sync"])
def test_fitness_is_the_return_of_the_env_without_its_training_wrappers(backend):
    env = make_vect_envs("Pendulum-v1", 2, backend=backend, training_wrappers=["NormalizeReward"])
    population, fitness = train_on_policy(
        env, pop=population_of(env), max_steps=128, evo_steps=64, eval_loop=2, verbose=False
    )
    bare = VecEnvAdapter(make_eval_env(make_vect_envs("Pendulum-v1", backend="sync"), 4))
    played = population.run_episodes(bare, integers(2, 1, Purpose.EVALUATION_ENVS, 2))
    np.testing.assert_allclose(fitness, played.mean, rtol=1e-5)
    assert max(fitness) < -500  # a normalised return is above -200: 200 steps of about -1
    env.close()


class Fixed(gymnasium.Env):
    """Five steps, each of which pays the same."""

    observation_space, action_space = Box(0, 5, (1,)), Discrete(2)

    def __init__(self, pays=1.0):
        self.pays = pays

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 5
        return np.full(1, self.left, np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.full(1, self.left, np.float32), self.pays, self.left == 0, False, {}


class Tenfold(gymnasium.RewardWrapper):
    def reward(self, reward):
        return 10.0 * float(reward)


def test_training_scores_use_wrapped_rewards_and_fitness_does_not():
    env = make_vect_envs(Fixed, 2, backend="sync", wrappers=[Tenfold], training_wrappers=Tenfold)
    population, fitness = train_on_policy(env, pop=population_of(env), max_steps=64, evo_steps=64, verbose=False)
    assert fitness == [50.0, 50.0]
    assert [agent.scores[-1] for agent in population] == [500.0, 500.0]


def test_a_teams_training_wrappers_do_not_change_its_fitness():
    env = make_multi_agent_vect_envs(
        "steady_teams:Steady", 2, backend="sync", training_wrappers={"name": "steady_teams:Louder", "by": 10.0}
    )
    spaces = env.single_observation_spaces, env.single_action_spaces
    teams = IPPO.population(2, *spaces, num_envs=2, **TINY)
    teams, fitness = train_multi_agent_on_policy(env, pop=teams, max_steps=64, evo_steps=64, verbose=False)
    earned = 3 * sum(steady_teams.EARNED.values())
    assert fitness == [earned, earned]
    assert [team.scores[-1] for team in teams] == [10 * earned, 10 * earned]


@pytest.mark.parametrize(
    ("env_id", "wrapper", "space"),
    [
        ("Blackjack-v1", "FlattenObservation", "observation_space from Tuple"),
        (
            "Pendulum-v1",
            ("RescaleAction", {"min_action": np.float32(-1), "max_action": np.float32(1)}),
            "action_space from Box",
        ),
    ],
)
def test_a_training_wrapper_that_changes_a_space_is_refused(env_id, wrapper, space):
    with pytest.raises(ConfigurationError, match=f"training_wrappers: .* changes the {space}"):
        make_vect_envs(env_id, backend="sync", training_wrappers=[wrapper])


# ---- instances


def unlike():
    return in_turn(3, 3)


def in_turn(kinds, num_envs):
    return SyncVectorEnv([partial(Fixed, 1.0 + row % kinds) for row in range(num_envs)])


def unlike_by_factory():
    return make_vect_envs(partial(in_turn, 3), 3, backend="vector")


def unlike_in_a_wrapper_by_factory():
    return make_vect_envs(lambda num_envs: VectorWrapper(in_turn(3, num_envs)), 3, backend="vector")


@pytest.mark.parametrize("make", [unlike, unlike_by_factory, unlike_in_a_wrapper_by_factory])
@pytest.mark.parametrize("eval_loop", range(1, 8))
def test_equal_members_have_equal_fitness_in_distinct_envs(eval_loop, make):
    env, records = make(), Records()
    _, fitness = train_on_policy(
        env,
        pop=population_of(env),
        max_steps=30,
        evo_steps=30,
        eval_loop=eval_loop,
        verbose=False,
        reporters=[records],
    )
    assert fitness == [10.0, 10.0]  # the mean of 5, 10 and 15
    assert [member.episodes for member in records.members] == [3 * -(-eval_loop // 3)] * 2


def test_a_warning_names_an_env_of_which_members_share_unequal_rows():
    settings = {"max_steps": 30, "evo_steps": 30, "eval_loop": 1, "verbose": False}
    few = VectorWrapper(in_turn(4, 4))
    with pytest.warns(UserWarning, match=r"has 4 environments .*, and each of 2 members has 2 of its") as warned:
        train_on_policy(few, pop=population_of(few), eval_env=few, **settings)
    assert [str(one.message).split("=")[0] for one in warned] == ["env", "eval_env"]
    env = make_vect_envs(Fixed, 2, backend="sync")
    with pytest.warns(UserWarning, match=r"^eval_env=.* has 4 environments .*let the rows repeat them for each member"):
        train_on_policy(env, pop=population_of(env), eval_env=few, **settings)
    twice = VectorWrapper(in_turn(4, 8))
    _, fitness = train_on_policy(twice, pop=population_of(twice), eval_env=twice, **settings)
    assert fitness == [12.5, 12.5]  # the mean of 5, 10, 15 and 20


class OfPort(Fixed):
    """Has the port of its server."""

    def __init__(self, port):
        super().__init__()
        self.port = port


@pytest.mark.parametrize("eval_loop", [1, 5])
def test_the_best_agent_is_compared_on_the_seeds_of_members_that_share_unequal_rows(eval_loop, monkeypatch):
    """Eight rows differ in an attribute. Each of two members has four of them; the best agent, alone, plays all."""
    few, records = VectorWrapper(SyncVectorEnv([partial(OfPort, port) for port in range(8)])), Records()
    population, seeds_of_best, slot_for_best = population_of(few), [], AutoSelection.slot_for_best

    def noted(self, view):
        seeds_of_best.append(None if view.best_returns is None else len(view.best_returns))
        return slot_for_best(self, view)

    monkeypatch.setattr(AutoSelection, "slot_for_best", noted)
    with pytest.warns(UserWarning, match="each of 2 members has 4 of its"):
        train_on_policy(
            few, pop=population, eval_env=few, max_steps=120, evo_steps=30, eval_loop=eval_loop, evolution="auto",
            verbose=False, reporters=[records],
        )  # fmt: skip
    assert len(records.generations) == 4
    assert seeds_of_best == [None, *[eval_loop] * 2]  # in the first generation a member is the best agent
    assert {member.episodes for member in records.members} == {eval_loop}


def test_the_first_episodes_of_a_result_have_fitness_and_errors_of_their_own():
    whole = EvalResult([25.0], [9.0], [9.0], 4, [9], [[10.0, 14.0, 0.0, 76.0]])
    assert whole.first(4).fitness == [25.0]
    first = whole.first(2)
    assert (first.fitness, first.spread, first.errors, first.returns) == ([12.0], [2.0], [2.0], [[10.0, 14.0]])


class Generous(steady_teams.Steady):
    """Pays each agent nine in its only step."""

    pays = 9.0

    def __init__(self):
        super().__init__(steps=1, agents=["listener_0", "listener_1"])

    def step(self, actions):
        observations, _, *rest = super().step(actions)
        return observations, dict.fromkeys(actions, self.pays), *rest


class Mean(Generous):
    """The same, but pays one."""

    pays = 1.0


def unlike_teams():
    makes = [partial(make_packed_env, kind) for kind in (Mean, Generous)]
    return MultiAgentVectorEnv(SyncVectorEnv(makes, autoreset_mode=AutoresetMode.SAME_STEP))


@pytest.mark.parametrize("eval_loop", range(1, 4))
def test_equal_teams_have_equal_fitness_in_distinct_envs(eval_loop):
    env, records = unlike_teams(), Records()
    spaces = env.single_observation_spaces, env.single_action_spaces
    teams = IPPO.population(2, *spaces, num_envs=2, **TINY)
    _, fitness = train_multi_agent_on_policy(
        env, pop=teams, max_steps=32, evo_steps=32, eval_loop=eval_loop, verbose=False, reporters=[records]
    )
    assert fitness == [10.0, 10.0]  # the mean of 2 and 18
    assert [member.episodes for member in records.members] == [2 * -(-eval_loop // 2)] * 2


@pytest.mark.parametrize("games", range(1, 4))
def test_games_in_distinct_envs_are_rounded_up_to_whole_sets(games):
    def first(observation, mask, rng):
        return 0

    played = play_games(first, first, unlike_teams(), games=games, seed=1)
    assert played.returns.tolist() == [[1.0, 9.0] * -(-games // 2)] * 2


def test_evaluation_rounds_up_to_whole_sets_of_envs():
    env = unlike()
    agent = population_of(env, 1)[0]
    heard = []
    assert agent.test(env, loop=4, callback=lambda score, info: heard.append(score)) == 10.0
    assert heard == [5.0, 10.0, 15.0] * 2


def test_an_info_may_be_a_tensor_of_a_device_that_numpy_cannot_read():
    class OnDevice:
        def __array__(self, *given, **named):
            raise TypeError("can't convert cuda:0 device type tensor to numpy")

        def item(self):
            return 2.5

    assert _number({"cost": OnDevice()}, "cost") == 2.5
    with pytest.raises(EnvStepError, match=r"info\['cost'\]=tensor.* is not a number"):
        _number({"cost": torch.ones(2)}, "cost")


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_replicas_train_in_distinct_envs(kind):
    env_setup = SingleAgentEnvSetup(kind([partial(Fixed, float(pays)) for pays in range(4)]))
    for part, pays in ((0, (0.0, 1.0)), (1, (2.0, 3.0))):
        env = env_setup.make_training_env(1, 2, part)
        assert isinstance(env, (SyncVectorEnv, AsyncVectorEnv))
        assert env.call("pays") == pays
        env.close()
    env_setup.env.close()


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        *((SyncVectorEnv, mode) for mode in AutoresetMode),
        (AsyncVectorEnv, AutoresetMode.NEXT_STEP),
        (SubprocVectorEnv, AutoresetMode.NEXT_STEP),
    ],
)
def test_members_of_a_users_env_have_its_autoreset_mode_however_many_a_process_has(kind, mode):
    env_setup = SingleAgentEnvSetup(kind([partial(Fixed, 1.0)] * 2, autoreset_mode=mode))
    made = [env_setup.make_training_env(*shares) for shares in ((1, 1), (2, 1), (1, 2, 1))]
    assert [(env.num_envs, env_setup.adapt(env).autoreset_mode) for env in made] == [(2, mode), (4, mode), (1, mode)]
    for env in made:
        env.close()


def test_one_of_several_processes_steps_in_workers_for_its_share_of_the_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4)), raising=False)
    env = SubprocVectorEnv([partial(Fixed, 1.0)] * 4)
    env_setup = SingleAgentEnvSetup(env)
    assert env_setup.make_training_env(1, 1) is env
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    made = env_setup.make_training_env(1, 1)
    assert isinstance(made, SubprocVectorEnv)
    assert (env.num_workers, made.num_workers) == (4, 2)


@pytest.mark.parametrize(
    ("aggregate", "means", "wanted"),
    [("mean", (0.0, 1.0), [0, 1]), ("min", (3.0, 1.0, 2.0), [1]), ("median", (3.0, 1.0, 2.0), [2])],
)
def test_the_noise_of_a_fitness_is_that_of_the_instances_which_decide(aggregate, means, wanted):
    """Instance i adds its mean to every episode; of 4 episodes on each, those on the deciding instances are left."""
    noise = np.array([1.0, -1.0, 2.0, -2.0])
    returns = (noise[:, None] + np.array(means)).reshape(1, -1)
    found = deciding_returns(returns, len(means), aggregate).reshape(4, -1)
    assert np.flatnonzero(np.isfinite(found).all(0)).tolist() == wanted
    view = PopulationView(np.zeros(1), [0], (), 1, returns=found.reshape(1, -1))
    its = summarise_episodes(returns[0].tolist(), len(means), aggregate)
    assert np.nanmean(found) == its.mean
    assert view.own_error(0) == pytest.approx(its.error)


def test_members_with_different_worst_instances_differ_by_the_errors_of_both():
    """Two instances of 4 episodes; the first member is worse on the one and the second on the other."""
    noise = np.array([1.0, -1.0, 2.0, -2.0])
    returns = np.stack([np.stack([noise, noise + 10], 1).ravel(), np.stack([3 * noise + 10, 3 * noise], 1).ravel()])
    view = PopulationView(np.zeros(2), [0, 1], (), 1, returns=deciding_returns(returns, 2, "min"))
    own = math.sqrt(10 / 3 / 4)  # squares 1 + 1 + 4 + 4, of three degrees of freedom, in four episodes
    assert view.standard_error(0, 1) == pytest.approx(math.hypot(own, 3 * own))


@pytest.mark.parametrize("aggregate", ["min", "median"])
def test_the_noise_after_further_episodes_is_that_of_the_instance_which_is_the_fitness(aggregate):
    """Two members play two seeds, and two further ones, which are harder on instance 0 alone.

    Without the effects of the seeds, the first member earns 10 on instance 0, less than 11 on instance 1. On the first
    seeds it earns 12, so that instance 1 is its lowest, and of three instances, of which the last is worse by 10, the
    median.
    """
    first = np.array([[12.0, 12, 8, 8], [10, 12, 11, 11]]), np.array([[20.0, 20, 16, 16], [12.5, 11.5, 12, 12]])
    members = [np.concatenate([its, its[1:] - 10]) if aggregate == "median" else its for its in first]
    count = len(members[0])
    returns = np.stack([its.T.ravel() for its in members])
    result = EvalResult(
        [0.0] * 2, [0.0] * 2, [0.0] * 2, 2 * count, [1] * 2, returns.tolist(), instances=count, aggregate=aggregate
    )
    result = result.on_equal_terms(seed_effects(returns, count))
    wanted = [summarise_episodes(its[1].tolist()) for its in members]
    np.testing.assert_allclose(result.fitness, [11.0, 12.0])
    np.testing.assert_allclose(result.spread, [one.spread for one in wanted])
    np.testing.assert_allclose(result.errors, [one.error for one in wanted])
    found = deciding_returns(returns, count, aggregate, episodes=2 * count)
    np.testing.assert_array_equal(found[:, 1::count], returns[:, 1::count])
    assert np.isfinite(found).sum() == 2 * 4
    view = PopulationView(np.array(result.fitness), [0, 1], (), 1, returns=found)
    assert view.standard_error(0, 1) == pytest.approx(math.sqrt(1.5 / 4))  # differences -2.5, 0.5, -1, -1


# ---- members that played different seeds


def test_effects_of_seeds_are_found_from_the_members_that_played_them():
    members, seeds = np.array([3.0, 1.0, -2.0]), np.array([10.0, -5.0, 40.0, 7.0, -80.0])
    returns = members[:, None] + seeds
    returns[0, 3:] = returns[1, 2] = np.nan
    effects = seed_effects(returns)
    np.testing.assert_allclose(effects - effects[0], seeds - seeds[0], atol=1e-9)


def test_a_member_that_is_strong_on_one_instance_does_not_make_its_seeds_easy():
    """All seeds are equally difficult; the first two members, of which `min` is 10, played further ones."""
    returns = np.array([[1000.0, 10.0] * 3, [900.0, 10.0] * 3, [100.0, 12.0] * 3])
    returns[2, 2:] = np.nan
    result = EvalResult([0.0] * 3, [0.0] * 3, [0.0] * 3, 2, [1] * 3, returns.tolist(), instances=2, aggregate="min")
    np.testing.assert_allclose(result.on_equal_terms(seed_effects(returns, 2)).fitness, [10.0, 10.0, 12.0])


def test_a_seed_without_any_return_has_no_effect():
    returns = np.full((3, 6), 1000.0)
    returns[:, 1] = returns[0, 4:] = np.nan
    effects = seed_effects(returns)
    assert np.isnan(effects[1])
    result = EvalResult([0.0] * 3, [0.0] * 3, [0.0] * 3, 4, [1] * 3, returns.tolist())
    np.testing.assert_allclose(result.on_equal_terms(effects).fitness, 1000.0)


@pytest.mark.parametrize("instances", [1, 2])
def test_on_equal_terms_fitness_is_that_of_the_seeds_which_all_played(instances):
    members, seeds = np.array([3.0, 1.0]), np.array([10.0, -6.0, 40.0, 8.0, -80.0, 2.0])
    returns = members[:, None] + seeds
    returns[0, 4:] = np.nan
    result = EvalResult([0.0] * 2, [0.0] * 2, [0.0] * 2, 4, [1] * 2, returns.tolist(), instances=instances)
    found = result._replace(aggregate="min" if instances > 1 else "mean").on_equal_terms(
        seed_effects(returns, instances)
    )
    first = seeds[:4].mean() if instances == 1 else min(seeds[:4:2].mean(), seeds[1:4:2].mean())
    np.testing.assert_allclose(found.fitness, members + first)


def test_measures_are_means_over_further_episodes_too():
    nan = math.nan
    first = EvalResult([2.0, 5.0], [0.0] * 2, [0.0] * 2, 2, [9, 9], [[1.0, 3.0], [5.0, nan]])
    first = first._replace(
        episode_measures={"info/right": [[1.0, 3.0], [5.0, nan]], "return": [[nan, nan], [7.0, nan]]}
    )
    assert first.measures == {"info/right": [2.0, 5.0], "return": [pytest.approx(nan, nan_ok=True), 7.0]}
    further = {"info/right": [[8.0, 8.0]], "return": [[1.0, 1.0]]}
    more = EvalResult([8.0], [0.0], [0.0], 2, [9], [[8.0, 8.0]], episode_measures=further)
    assert first.extended([1], more, 2).measures == {
        "info/right": [2.0, 7.0],
        "return": [pytest.approx(nan, nan_ok=True), 3.0],
    }
    assert first.extended([], None, 2).measures["info/right"] == [2.0, 5.0]  # of another process's members


def test_a_measure_that_some_episodes_lack_is_the_mean_over_those_that_have_it():
    """One of four episodes has the info, and then all of four further ones: (10 + 4 * 30) / 5."""
    nan = math.nan
    some = {"info/cost": [[10.0, nan, nan, nan]]}
    first = EvalResult([1.0], [0.0], [0.0], 4, [9], [[1.0] * 4], episode_measures=some)
    more = first._replace(episode_measures={"info/cost": [[30.0] * 4]})
    assert first.extended([0], more, 4).measures == {"info/cost": [26.0]}


def test_members_in_doubt_play_every_kind_of_env_equally_often():
    """Two levels pay 0 and 20 in an episode; four of six members play on as many envs as all six have."""
    fns = [partial(Fixed, pays=pays) for pays in (0.0, 4.0)]
    env = SyncVectorEnv(fns)
    setup = SingleAgentEnvSetup(env)
    population = population_of(env, 6)
    rows = setup.make_eval_env(12)
    evaluator = setup.make_evaluator("return", setup.adapt(rows), None)
    found = evaluator.evaluate_some(population, [0, 1, 2, 3], [1, 2, 3, 4, 5], 1)
    assert [its == found.returns[0] for its in found.returns] == [True] * 4
    assert found.fitness == [10.0] * 4
    rows.close()
    env.close()
