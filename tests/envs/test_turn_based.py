"""Environments whose agents take turns."""

import math
from functools import partial
from importlib import import_module
from importlib.util import find_spec

import game_envs as games
import numpy as np
import pytest
from pettingzoo.utils.conversions import turn_based_aec_to_parallel
from pettingzoo.utils.wrappers import BaseParallelWrapper

from agilerl_like import ConfigurationError, EnvStepError, make_multi_agent_vect_envs
from agilerl_like.envs.multi_agent import openspiel
from agilerl_like.envs.multi_agent.pettingzoo import is_multi_agent, make_packed_env
from agilerl_like.envs.multi_agent.vec_adapter import MultiAgentVecEnvAdapter

PLAYERS = ("player_0", "player_1")


def adapter(source, num_envs=1, **more):
    return MultiAgentVecEnvAdapter(make_multi_agent_vect_envs(source, num_envs, **{"backend": "sync", **more}))


def converted(stones=7):
    return turn_based_aec_to_parallel(games.Nim(stones, bonus=0.1))


def wrapped(stones=7):
    """A conversion that cannot be recognised by its type."""
    return BaseParallelWrapper(turn_based_aec_to_parallel(games.Nim(stones, bonus=0.1)))


def played(env, *moves):
    """Play numbers of stones in turn, in env 0; the other agent's action is ignored."""
    return [env.step({agent: np.array([move - 1]) for agent in PLAYERS}) for move in moves]


@pytest.mark.parametrize(
    "source",
    [partial(games.Nim, bonus=0.1), converted, wrapped, games.ListsTheActing],
    ids=["AEC", "PettingZoo's", "wrapped", "listing"],
)
def test_agents_act_in_turn_and_what_each_is_paid_arrives_in_its_episode(source):
    env = adapter(source)
    env.reset([0])
    assert [env.acting[agent].item() for agent in PLAYERS] == [True, False]
    steps = played(env, 3, 2, 2)
    assert [[step.valid[agent].item() for agent in PLAYERS] for step in steps] == [
        [True, False],
        [False, True],
        [True, False],
    ]
    assert [[step.waited[agent].item() for agent in PLAYERS] for step in steps] == [
        [False] * 2,
        [True, False],
        [False, True],
    ]
    assert [[step.waits[agent].item() for agent in PLAYERS] for step in steps] == [
        [True, False],
        [False, True],
        [False] * 2,
    ]
    totals = {agent: sum(step.reward[agent].item() for step in steps) for agent in PLAYERS}
    assert totals == {"player_0": pytest.approx(1.3), "player_1": pytest.approx(-1.3)}
    assert [step.ended.item() for step in steps] == [False, False, True]
    assert [steps[-1].terminated[agent].item() for agent in PLAYERS] == [True, True]
    assert not any(step.truncated[agent].any() for step in steps for agent in PLAYERS)
    assert [env.acting[agent].item() for agent in PLAYERS] == [True, False]  # the next episode has begun


def test_masks_are_those_of_the_agent_whose_turn_it_is():
    env = adapter(partial(games.Nim, 4))
    env.reset([0])
    (step,) = played(env, 3)
    assert step.action_mask["player_1"].tolist() == [[True, False, False]]
    assert step.action_mask["player_0"].tolist() == [[True, True, True]]  # it waits


def test_an_illegal_action_without_masks_is_named():
    env = adapter(partial(games.Nim, 4, masks=False))
    env.reset([0])
    played(env, 3)
    with pytest.raises(
        EnvStepError,
        match=r"nim.*: action 1 of agent 'player_1' failed with ValueError: 2 of 1 stones.*; without action_mask",
    ):
        played(env, 2)


def test_workers_equal_one_process():
    rng = np.random.default_rng(0)
    one, other = adapter(games.Nim, 4), adapter(games.Nim, 4, backend="workers", num_workers=2)
    one.reset([0] * 4), other.reset([0] * 4)
    for _ in range(30):
        actions = {agent: rng.integers(0, 1, 4) for agent in PLAYERS}
        mine, theirs = one.step(actions), other.step(actions)
        for agent in PLAYERS:
            np.testing.assert_array_equal(mine.reward[agent], theirs.reward[agent])
            np.testing.assert_array_equal(mine.waits[agent], theirs.waits[agent])
    other.close()


class Limited(games.Nim):
    """A game with a time limit."""

    max_cycles = 4


@pytest.mark.parametrize("source", [Limited, lambda: BaseParallelWrapper(turn_based_aec_to_parallel(Limited()))])
def test_the_time_limit_of_agents_that_take_turns_has_a_step_of_each_agent_in_a_cycle(source):
    assert make_packed_env(source).max_episode_steps == 8


def test_ids_and_modules_of_pettingzoo_are_served():
    pytest.importorskip("pygame")
    for source in (
        "classic/tictactoe-v3",
        "pettingzoo.classic.tictactoe_v3",
        "pettingzoo.classic.tictactoe_v3:raw_env",
    ):
        assert is_multi_agent(source) is True
        env = adapter(source)
        env.reset([0])
        for move in (0, 3, 1, 4, 2):  # a row of three for the first player
            step = env.step({agent: np.array([move]) for agent in env.agent_ids})
        assert [step.reward[agent].item() for agent in env.agent_ids] == [1.0, -1.0]
        assert step.ended.item()


def test_a_module_itself_is_served():
    pytest.importorskip("pygame")
    env = make_multi_agent_vect_envs(import_module("pettingzoo.classic.tictactoe_v3"), backend="sync")
    assert env.agent_ids == ("player_1", "player_2")
    with pytest.raises(ConfigurationError, match=r"in math.*'parallel_env' is unknown"):
        make_multi_agent_vect_envs(math, backend="sync")


def test_an_id_whose_package_is_missing_names_it():
    if find_spec("pyspiel") is None:
        with pytest.raises(ConfigurationError, match=r"classic/hanabi-v5.*needs a package"):
            make_multi_agent_vect_envs("classic/hanabi-v5")
    with pytest.raises(ConfigurationError, match="did you mean 'classic/tictactoe-v3'"):
        make_multi_agent_vect_envs("classic/tictactoe-v4")


@pytest.mark.parametrize(
    ("name", "moves", "paid"),
    [
        ("tic_tac_toe", [0, 3, 1, 4, 2], [1.0, -1.0]),  # a row of three for the first player
        ("kuhn_poker", [0, 1, 0], [-1.0, 1.0]),  # pass, bet, pass: the ante goes to the second player
    ],
)
def test_games_of_openspiel_are_served(name, moves, paid):
    pytest.importorskip("pyspiel")
    pytest.importorskip("shimmy")
    assert is_multi_agent(f"openspiel/{name}") is True
    env = adapter(f"openspiel/{name}")
    env.reset([0])
    total = dict.fromkeys(env.agent_ids, 0.0)
    for number, move in enumerate(moves):
        actor = env.agent_ids[number % 2]
        assert env.acting[actor].item()
        assert env.action_mask[actor][0, move]
        step = env.step({agent: np.array([move]) for agent in env.agent_ids})
        for agent in env.agent_ids:
            total[agent] += step.reward[agent].item()
    assert step.ended.item()
    assert [*total.values()] == paid
    with pytest.raises(ConfigurationError, match="did you mean 'openspiel/kuhn_poker'"):
        make_multi_agent_vect_envs("openspiel/kun_poker")
    with pytest.raises(ConfigurationError, match=r"openspiel/kuhn_poker' with \{'cards': 9\} cannot be made"):
        make_multi_agent_vect_envs("openspiel/kuhn_poker", env_kwargs={"cards": 9})


def test_without_openspiel_the_extra_is_named(monkeypatch):
    def missing(module):
        raise ModuleNotFoundError(f"No module named {module!r}", name=module.partition(".")[0])

    monkeypatch.setattr(openspiel, "import_module", missing)
    with pytest.raises(ConfigurationError, match=r"openspiel/kuhn_poker'.*agilerl-like\[openspiel\]"):
        make_multi_agent_vect_envs("openspiel/kuhn_poker")


class Uncertain(games.PaysAll):
    def __init__(self):
        super().__init__(a="o")

    def observation_space(self, agent):
        raise AssertionError("no space before a reset")


def test_an_error_in_a_users_environment_is_given_as_it_is():
    with pytest.raises(
        ConfigurationError, match=r"env=<class .*Uncertain'> cannot be used: AssertionError: no space before"
    ):
        make_multi_agent_vect_envs(Uncertain, backend="sync")


@pytest.mark.parametrize("source", ["classic/texas_holdem-v4", "classic/leduc_holdem-v4", "classic/chess-v6"])
def test_card_games_and_chess_are_served(source):
    pytest.importorskip("rlcard" if "holdem" in source else "chess")
    env = adapter(source)
    env.reset([3])
    paid = dict.fromkeys(env.agent_ids, 0.0)
    for _ in range(300 if "holdem" in source else 10):
        masks = {agent: mask for agent, mask in env.action_mask.items() if mask is not None}
        step = env.step({a: np.array([int(masks[a][0].argmax()) if a in masks else 0]) for a in env.agent_ids})
        assert sum(step.valid[agent].item() for agent in env.agent_ids) == 1
        for agent in env.agent_ids:
            paid[agent] += step.reward[agent].item()
    assert sum(paid.values()) == pytest.approx(0.0)
    assert any(paid.values()) == ("holdem" in source)


class WrongPay(games.Nim):
    """Pays player_1 something that is no finite number for the second step; it arrives after its next turn's."""

    def __init__(self, pay):
        super().__init__()
        self.pay = pay

    def _accumulate_rewards(self):
        if self.agent_selection == "player_0":
            self.rewards["player_1"] = self.pay
        super()._accumulate_rewards()


@pytest.mark.parametrize(
    ("pay", "step", "fault"),
    [
        (math.nan, 3, "=nan is not finite"),
        (np.ones(1), 3, r"=array\(\[1\.\]\) of shape \(1,\); allowed is one real number"),
        (None, 2, "=None; allowed is one real number"),  # the env fails to add it up
    ],
    ids=["nan", "array", "none"],
)
def test_a_wrong_reward_is_an_error_that_names_agent_env_and_step(pay, step, fault):
    env = adapter(partial(WrongPay, pay))
    env.reset([0])
    with pytest.raises(EnvStepError, match=f"nim.*step {step} of the episode: the reward of agent 'player_1'{fault}"):
        played(env, 1, 1, 1)
