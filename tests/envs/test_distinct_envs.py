"""Counting distinct envs in a vector env: by their attributes, not by the functions that made them."""

from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from pettingzoo.utils import BaseWrapper
from pettingzoo.utils.conversions import parallel_to_aec
from steady_teams import Louder, Steady

from agilerl_like.envs import make_vect_envs, with_num_envs
from agilerl_like.envs.distinct_envs import num_distinct_envs, round_up_to_sets
from agilerl_like.envs.env_errors import env_name_of
from agilerl_like.envs.multi_agent.pettingzoo import MultiAgentVectorEnv, make_packed_env


class Level(gym.Env):
    observation_space, action_space = Box(0, 1, (1,)), Discrete(2)

    def __init__(self, level=0, walls=(), task=None):
        self.level, self.walls, self.task = level, np.array(walls), task
        self.noise = np.random.Generator(np.random.PCG64(level))


class Task:
    def __init__(self, goal):
        self.goal = goal


class Adapter(Level):
    """Adapts an env, or a simulator, without being a wrapper of gymnasium."""

    def __init__(self, env):
        super().__init__()
        self.env = env


def thunk(env_id, row, limit):
    def make():
        env = gym.make(env_id)
        return gym.wrappers.TimeLimit(env, limit) if row == 0 else gym.wrappers.TimeLimit(env, 5)

    return make


def scaled(by):
    return lambda: gym.wrappers.TransformReward(Level(), lambda reward: by * reward)


@pytest.mark.parametrize(
    ("functions", "instances"),
    [
        ([Level] * 3, 1),
        ([lambda: Level() for _ in range(3)], 1),
        ([thunk("CartPole-v1", row, 5) for row in range(3)], 1),
        ([thunk("CartPole-v1", row, 9) for row in range(3)], 3),
        ([partial(Level, level) for level in range(3)], 3),
        ([partial(Level, level) for level in (0, 1, 0, 1)], 2),
        ([partial(Level, level) for level in (0, 1, 0)], 3),
        ([partial(Level, walls=walls) for walls in ((0, 1), (1, 0))], 2),
        ([partial(Level, task=Task(goal)) for goal in (1, 1)], 1),
        ([partial(Level, task=Task(goal)) for goal in (1, 2)], 2),
        ([scaled(2), scaled(2)], 1),
        ([scaled(2), scaled(3)], 2),
        ([partial(gym.make, "Pendulum-v1", g=g) for g in (9.0, 10.0)], 2),
        *(([partial(Adapter, kind(goal)) for goal in (1, 2, 3)], 3) for kind in (Level, Task)),
        *(([partial(Adapter, kind(goal)) for goal in (1, 1)], 1) for kind in (Level, Task)),
    ],
)
def test_rows_are_distinct_if_their_envs_differ(functions, instances):
    env = SyncVectorEnv(functions)
    assert num_distinct_envs(env) == instances
    assert num_distinct_envs(with_num_envs(env, 2 * instances)) == instances


class Slotted:
    __slots__ = ("goal",)

    def __init__(self, goal):
        self.goal = goal


class Handle:
    """Has no attributes, and compares identities, as handles to C++ objects do."""

    __slots__ = ()

    def __init__(self, _):
        pass

    def __eq__(self, other):
        return self is other

    __hash__ = None


def ragged(goal):
    array = np.empty(2, object)
    array[:] = [np.zeros(3), np.full(2, goal)]
    return array


KINDS = [
    *(lambda goal: {goal}, lambda goal: deque([goal]), lambda goal: frozenset({(goal, 1)}), bytearray, range),
    *(lambda goal: Path(str(goal)), Decimal, Slotted, ragged, lambda goal: partial(Task, goal), timedelta),
    *(torch.tensor, lambda goal: torch.nn.Parameter(torch.full((3,), float(goal)))),
    *(np.float32, lambda goal: np.array([np.nan, goal]), lambda goal: goal * float("nan") if goal == 1 else 0.0),
]


@pytest.mark.parametrize("kind", KINDS)
def test_attributes_are_compared_by_value(kind):
    for goals, instances in (((1, 1, 1), 1), ((1, 2, 3), 3)):
        env = SyncVectorEnv([partial(Level, task=kind(goal)) for goal in goals])
        assert num_distinct_envs(env) == instances


def nan_tensor(_):
    return torch.tensor([float("nan"), 1.0])


class Ball:
    """Has no `__eq__`: two of them are equal only if they are the same."""

    def __init__(self, _):
        pass


@pytest.mark.parametrize("kind", [Handle, np.random.default_rng, nan_tensor, lambda _: {Ball(0), Ball(0)}])
def test_attributes_without_a_comparable_value_are_equal(kind):
    assert num_distinct_envs(SyncVectorEnv([partial(Level, task=kind(goal)) for goal in (1, 2)])) == 1


@pytest.mark.parametrize("tensor", [torch.empty(2, device="meta"), torch.eye(2).to_sparse()], ids=["meta", "sparse"])
def test_tensors_whose_values_cannot_be_compared_are_distinct(tensor):
    envs = SyncVectorEnv([partial(Level, task=tensor.clone()), partial(Level, task=tensor.clone())])
    assert num_distinct_envs(envs) == 2


@dataclass
class Maker:
    """Cannot be hashed, as any dataclass that is not frozen."""

    level: int

    def __call__(self):
        return Level(self.level)


def test_functions_that_cannot_be_hashed_are_compared_by_their_envs():
    assert num_distinct_envs(SyncVectorEnv([Maker(1), Maker(1)])) == 1
    assert num_distinct_envs(SyncVectorEnv([Maker(1), Maker(2)])) == 2


def test_copies_from_a_config_are_equal_and_new_envs_are_compared():
    assert num_distinct_envs(make_vect_envs("Pendulum-v1", 3, backend="sync")) == 1
    env = SyncVectorEnv([lambda: gym.make("CartPole-v1") for _ in range(2)])
    env.reset(seed=[1, 2])
    assert num_distinct_envs(env) == 1


class Configured(Level):
    """Has a config of its own, as RLlib's envs do."""

    def __init__(self, level=0):
        super().__init__(level)
        self.env_config = {"env_kwargs": {}, "level": level}


class ConfiguredVectorEnv(SyncVectorEnv):
    """A vector env with a config of its own."""

    def __init__(self, env_fns):
        super().__init__(env_fns)
        self.env_config = {"env_kwargs": {}}


@pytest.mark.parametrize("kind", [SyncVectorEnv, ConfiguredVectorEnv])
def test_an_env_may_have_an_env_config_of_its_own(kind):
    env = kind([partial(Configured, level) for level in range(2)])
    assert num_distinct_envs(env) == 2
    assert [env_name_of(one) for one in (env, env.envs[0])] == ["Configured"] * 2


class Simulator(Level):
    is_open = True

    def close(self):
        self.is_open = False


def test_envs_that_the_functions_already_hold_stay_open():
    made = []

    def new():
        made.append(Simulator(2))
        return made[-1]

    one, other = Simulator(0), Simulator(1)
    assert num_distinct_envs(SyncVectorEnv([lambda: one, lambda: other, new])) == 3
    assert one.is_open
    assert other.is_open
    assert [its.is_open for its in made] == [True, False]  # the row's own, and the one for the comparison


class Scattered(Level):
    """Begins at a random place until it is seeded."""

    def __init__(self, level=0):
        super().__init__(level)
        self.place = np.random.default_rng().random()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.random()
        return np.zeros(1), {}


def test_random_numbers_before_the_first_reset_make_no_envs_distinct():
    assert num_distinct_envs(SyncVectorEnv([lambda: Scattered() for _ in range(2)])) == 1
    assert num_distinct_envs(SyncVectorEnv([partial(Scattered, level) for level in range(2)])) == 2


class Team(Steady):
    is_open = True

    def close(self):
        self.is_open = False


def by_turns(steps):
    return BaseWrapper(BaseWrapper(parallel_to_aec(Team(steps))))


def team_env(*makes):
    makes = [partial(make_packed_env, make) for make in makes]
    return MultiAgentVectorEnv(SyncVectorEnv(makes, autoreset_mode=AutoresetMode.SAME_STEP))


def test_rows_of_teams_are_distinct_if_their_envs_differ():
    assert num_distinct_envs(team_env(Team, Team)) == 1
    assert num_distinct_envs(team_env(partial(Team, steps=2), partial(Team, steps=3))) == 2
    assert num_distinct_envs(team_env(partial(Team, steps=2), lambda: Louder(Team(steps=2)))) == 2
    assert num_distinct_envs(team_env(*["classic/tictactoe-v3"] * 2)) == 1
    assert num_distinct_envs(team_env(*(partial(by_turns, steps) for steps in (2, 3)))) == 2
    one, other = Team(), Team(steps=2)
    assert num_distinct_envs(team_env(lambda: one, lambda: other)) == 2
    assert one.is_open
    assert other.is_open


def test_round_up_to_sets():
    assert [round_up_to_sets(count, 3) for count in (1, 3, 4, 7)] == [3, 3, 6, 9]
