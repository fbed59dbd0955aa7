"""Envs whose `close` fails, and processes of envs that end by themselves, leave a run's result or its error."""

import contextlib
import multiprocessing
import os

import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from small_runs import SMALL

from agilerl_like import PPO, EnvStepError, make_vect_envs, train_on_policy
from agilerl_like.envs.env_errors import close_quietly

CLOSE_FAILED = r"Unclosable: close failed with OSError: the licence server does not answer \(File .*, in close\); its "


class Unclosable(CartPoleEnv):
    """One of them fails to close once a run has begun; all fail to step after `limit` steps."""

    steps, limit, closes = 0, 10**9, True

    def step(self, action):
        Unclosable.steps += 1
        if Unclosable.steps > Unclosable.limit:
            raise ValueError("the pole is gone")
        return super().step(action)

    def close(self):
        super().close()
        if not Unclosable.closes and Unclosable.steps >= 100:  # more than the checks take, which close an env, too
            Unclosable.closes = True
            raise OSError("the licence server does not answer")


def train(env):
    pop = PPO.population(
        2,
        env.single_observation_space,
        env.single_action_space,
        seed=0,
        net_config=SMALL,
        num_envs=env.num_envs,
        learn_step=64,
        batch_size=32,
    )
    return train_on_policy(env, pop=pop, max_steps=400, evo_steps=200, eval_loop=1, verbose=False)


@pytest.fixture
def unclosable(monkeypatch):
    env = make_vect_envs(Unclosable, 4, backend="sync")
    monkeypatch.setattr(Unclosable, "steps", 0)
    monkeypatch.setattr(Unclosable, "closes", False)
    return env


def test_an_exception_of_close_is_a_warning_and_the_population_is_returned(unclosable):
    with pytest.warns(RuntimeWarning, match=CLOSE_FAILED) as warned:
        population, fitness = train(unclosable)
    assert len(population) == len(fitness) == 2
    assert len(warned) == 1


def test_an_exception_of_close_does_not_replace_the_error_of_a_step(unclosable, monkeypatch):
    monkeypatch.setattr(Unclosable, "limit", 300)
    with (
        pytest.warns(RuntimeWarning, match=CLOSE_FAILED),
        pytest.raises(EnvStepError, match="step failed with ValueError: the pole is gone"),
    ):
        train(unclosable)


def test_what_ends_the_process_is_no_failure_to_close():
    class Interrupted(CartPoleEnv):
        def close(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        close_quietly(Interrupted())


class Exits(CartPoleEnv):
    """Ends its worker process in step number `at`; never if that is 0."""

    def __init__(self, at=0):
        super().__init__()
        self.steps, self.at = 0, at

    def step(self, action):
        self.steps += 1
        if self.steps == self.at and multiprocessing.parent_process() is not None:
            os._exit(3)
        return super().step(action)


def test_the_process_of_one_env_that_exits_ends_the_run_in_an_error_and_the_processes_of_the_others():
    """Row 0 has replied to the step in which row 1 exits; `close` must not wait for its reply again."""
    env = make_vect_envs(Exits, 2, backend="async", instances=[{"at": 0}, {"at": 20}])
    with contextlib.closing(env):
        before = {process.pid for process in multiprocessing.active_children()}
        with pytest.raises(EnvStepError, match="step failed with"):
            train(env)
        assert {process.pid for process in multiprocessing.active_children()} == before
