"""Envs whose `close` fails leave a run's result or its error."""

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
