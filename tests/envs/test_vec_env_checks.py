"""A user's vector env: each defect is one error that names it."""

import warnings

import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.wrappers.vector import DictInfoToList

from agilerl_like import PPO, train_on_policy
from agilerl_like.envs import VecEnvAdapter, make_multi_agent_vect_envs, make_vect_envs
from agilerl_like.envs.env_errors import check_reward
from agilerl_like.envs.envpool import validate_actions
from agilerl_like.errors import ConfigurationError, EnvStepError
from agilerl_like.training.env_setup import SingleAgentEnvSetup

ROWS = 3


class Own(VectorEnv):
    """Three rows of two numbers, endless; the envs below override the part that is wrong."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012
    num_envs = ROWS
    single_observation_space, single_action_space = Box(-1, 1, (2,)), Discrete(2)
    taken = 0

    def reset(self, *, seed=None, options=None):
        return self.see(), {}

    def step(self, actions):
        self.taken += 1
        return self.see(), self.pay(), self.over(), np.zeros(ROWS, bool), self.tell()

    def see(self):
        return np.zeros((ROWS, 2), np.float32)

    def pay(self):
        return np.ones(ROWS)

    def over(self):
        return np.zeros(ROWS, bool)

    def tell(self):
        return {}


def raising(self):
    raise KeyError("goal")


def later(wrong, right):
    """Correct in the first step, wrong from the second on."""
    return lambda self: right if self.taken < 2 else wrong


DEFECTS = {
    "observations of one env": (
        {"see": lambda self: np.zeros(2, np.float32)},
        r"shape \(2,\).* space has shape \(3, 2\)",
    ),
    "observations of more envs": ({"see": lambda self: np.zeros((4, 2), np.float32)}, r"shape \(4, 2\)"),
    "wide observations": ({"see": lambda self: np.zeros((ROWS, 3), np.float32)}, r"shape \(3, 3\)"),
    "observations of objects": ({"see": lambda self: np.array([[{}] * 2] * ROWS)}, "dtype object"),
    "observations of unequal rows": ({"see": lambda self: [[0.0], [0.0, 1.0], [0.0]]}, "rows of unequal shape"),
    "no observations": ({"see": lambda self: None}, r"shape \(\) and dtype object"),
    "complex observations": ({"see": lambda self: np.zeros((ROWS, 2), complex)}, "dtype complex128"),
    "observations without a key": (
        {"single_observation_space": Dict({"x": Box(0, 1, (2,)), "y": Box(0, 1, (2,))}), "see": lambda self: {"x": 0}},
        r"\['x'\]; its space has the keys \['x', 'y'\]",
    ),
    "observations that are no dict": (
        {"single_observation_space": Dict({"x": Box(0, 1, (2,))})},
        r"its space has the keys \['x'\]",
    ),
    "one reward": ({"pay": lambda self: 1.0}, r"rewards have shape \(\)"),
    "a column of rewards": ({"pay": lambda self: np.ones((ROWS, 1))}, r"rewards have shape \(3, 1\).*\(3,\)"),
    "too few rewards": ({"pay": lambda self: np.ones(2)}, r"rewards have shape \(2,\)"),
    "no rewards": ({"pay": lambda self: None}, r"rewards have shape \(\) and dtype object"),
    "complex rewards": ({"pay": lambda self: np.ones(ROWS, complex)}, "dtype complex128"),
    "texts": ({"pay": lambda self: ["a", "b", "c"]}, "rewards have shape .* dtype <U1"),
    "one flag": ({"over": lambda self: False}, r"terminated have shape \(\)"),
    "no flags": ({"over": lambda self: None}, r"terminated have shape \(\) and dtype object"),
    "floats for flags": ({"over": lambda self: np.zeros(ROWS)}, "dtype float64; allowed is .* booleans"),
    "a list of infos": ({"tell": lambda self: [{}] * ROWS}, "the info of step is .*; allowed is one dict"),
    "no info": ({"tell": lambda self: None}, "the info of step is None"),
    "four values": ({"step": lambda self, actions: (self.see(), self.pay(), self.over(), {})}, "a tuple of 4; allowed"),
    "a bare reset": ({"reset": lambda self, **_: self.see()}, "reset returned .*allowed is .observations, info"),
    "an exception": ({"pay": raising}, "step failed with KeyError: 'goal'"),
    "later a column of rewards": ({"pay": later(np.ones((ROWS, 1)), np.ones(ROWS))}, r"have shapes \(3, 1\), \(3,\)"),
    "later one flag": ({"over": later(np.array(True), np.zeros(ROWS, bool))}, r"have shapes \(3,\), \(\)"),
    "later other observations": (
        {"see": later(np.zeros((ROWS, 5), np.float32), np.zeros((ROWS, 2), np.float32))},
        r"shape \(3, 5\)",
    ),
    "mask of another size": ({"tell": lambda self: {"action_mask": np.ones((ROWS, 3), bool)}}, r"has shape \(3, 3\)"),
    "nan": ({"pay": lambda self: np.full(ROWS, np.nan)}, "reward=nan is not finite"),
}


@pytest.mark.parametrize(("wrong", "message"), DEFECTS.values(), ids=DEFECTS)
def test_a_defect_is_one_error_that_names_it(wrong, message):
    env = type("Wrong", (Own,), wrong)()
    spaces = env.single_observation_space, env.single_action_space
    agent = PPO(*spaces, num_envs=ROWS, learn_step=12, batch_size=6, seed=0)
    with pytest.raises((EnvStepError, ConfigurationError), match=message):
        train_on_policy(
            env, pop=agent, eval_env=env, max_steps=24, evo_steps=24, eval_loop=1, eval_steps=3, verbose=False
        )


def test_a_correct_env_is_stepped():
    adapter = VecEnvAdapter(Own())
    adapter.reset(0)
    assert adapter.step(np.zeros(ROWS, np.int64)).reward.tolist() == [1.0] * ROWS


class Duck:
    """Not derived from anything."""

    num_envs, single_observation_space = ROWS, Own.single_observation_space

    def reset(self, seed=None, options=None):
        return np.zeros((ROWS, 2), np.float32), {}


@pytest.mark.parametrize("user", [SingleAgentEnvSetup, VecEnvAdapter])
@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({}, r"has no single_action_space, step\(\); derive it from"),
        ({"single_action_space": Discrete(2), "step": 3}, r"has no step\(\); derive"),
        (
            {"single_action_space": "Discrete(2)", "step": print},
            r"single_action_space='Discrete\(2\)' of env=.*; allowed is one of gymnasium.spaces",
        ),
        (
            {"single_action_space": Discrete(2), "step": print, "num_envs": 2.0},
            "num_envs=2.0 of env=.*; allowed are whole numbers from 1",
        ),
    ],
)
def test_missing_attributes_of_a_duck_typed_env_are_named(user, attributes, message):
    with pytest.raises(ConfigurationError, match=message):
        user(type("LameDuck", (Duck,), attributes)())


@pytest.mark.parametrize(
    ("actions", "space", "message"),
    [
        ([0, 1], Discrete(2), r"actions have shape \(2,\) .* allowed for 3 envs are \(3,\)"),
        ([0, 1, 2], Discrete(2), r"actions=\[0, 1, 2\]; allowed are those of Discrete\(2\)"),
        ([-1, 1, 1], Discrete(2), r"actions=\[-1, 1, 1\]"),
        ([0.5, 0, 1], Discrete(2), "dtype float64; allowed .* int64"),
        ([[0.0]] * 2, Box(-1, 1, (1,)), r"shape \(2, 1\)"),
    ],
)
def test_envpool_actions_are_validated(actions, space, message):
    with pytest.raises(ConfigurationError, match=message):
        validate_actions(actions, space, 3)


def test_envpool_actions_may_be_a_list():
    assert validate_actions([0, 1, 1], Discrete(2), 3).tolist() == [0, 1, 1]
    assert validate_actions([[0.5], [1.0], [0.0]], Box(-1, 1, (1,)), 3).shape == (3, 1)


def failing(size=1):
    if size <= 8:
        raise AssertionError("a board needs more than eight fields")


def test_an_exception_in_a_factory_is_reported_with_its_place():
    where = r'AssertionError: a board needs more than eight fields \(File ".*_checks.py", line \d+, in failing\)'
    with pytest.raises(ConfigurationError, match=f"cannot be made: {where}"):
        make_multi_agent_vect_envs(failing, 2, backend="sync")
    with pytest.raises(ConfigurationError, match=f"env_kwargs=.*'size': 3.* do not suit .*: {where}"):
        make_vect_envs(failing, 2, backend="sync", size=3)


def test_training_with_a_vector_env_factory_named_by_its_path():
    env = make_vect_envs(f"{__name__}:own_vector", ROWS, backend="vector")
    agent = PPO(env.single_observation_space, env.single_action_space, num_envs=ROWS, learn_step=12, batch_size=6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, fitness = train_on_policy(
            env, pop=agent, max_steps=24, evo_steps=24, eval_loop=1, eval_steps=3, verbose=False
        )
    assert fitness == [3.0]


def own_vector(num_envs):
    env = Own()
    env.num_envs = num_envs
    env.see = lambda: np.zeros((num_envs, 2), np.float32)
    env.pay = lambda: np.ones(num_envs)
    env.over = lambda: np.zeros(num_envs, bool)
    env.step = lambda actions: (env.see(), env.pay(), env.over(), np.zeros(num_envs, bool), {})
    return env


class FirstReward(VectorWrapper):
    """Returns the reward of the first row alone."""

    def step(self, actions):
        obs, reward, *rest = self.env.step(actions)
        return obs, reward[:1], *rest


def test_results_of_wrappers_are_checked_like_those_of_a_vector_env():
    with pytest.raises(EnvStepError, match=r"info of reset is \[.*allowed is one dict for all envs"):
        VecEnvAdapter(DictInfoToList(SyncVectorEnv([CartPoleEnv] * 2))).reset([1, 2])
    adapter = VecEnvAdapter(FirstReward(SyncVectorEnv([CartPoleEnv] * 2)))
    adapter.reset([1, 2])
    with pytest.raises(EnvStepError, match=r"rewards have shape \(1,\) .*; allowed is \(2,\) of numbers"):
        adapter.step(np.array([0, 1]))


def test_a_reward_of_many_digits_is_described_in_its_error():
    with pytest.raises(EnvStepError, match="reward=<integer of 5000 digits>; allowed is one real number"):
        check_reward("reward", 10**5000)
