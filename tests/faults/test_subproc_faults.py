"""R4: env workers that die at random are replaced, and what cannot be mended is one error that names everything."""

import functools
import gc
import math
import re
import time
import warnings
from contextlib import contextmanager

import flaky_envs as worlds
import numpy as np
import pytest
from slowness import slowness
from tiny_runs import Memory, children, descriptors, is_finite, named_memory, population_for, tier, tiny_run

from agilerl_like import EnvStepError, make_vect_envs
from agilerl_like.seeding import Purpose, integers

TIMEOUT = 10.0


class Told(list):
    """Every warning as (when, what)."""

    def hear(self, message, *_args, **_kwargs):
        self.append((time.monotonic(), str(message)))


@contextmanager
def told():
    """Hear of every warning at the moment at which it is given."""
    heard = Told()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = heard.hear
        yield heard


@contextmanager
def nothing_left():
    """Assert that no process, file or shared memory is left over."""
    gc.collect()
    before = children(), descriptors(), named_memory()
    yield
    gc.collect()  # the numbers of a closed env live on with it
    assert (children(), descriptors(), named_memory()) == before


def flaky(probability, ways=worlds.BREAKS, **kwargs):
    settings = {"backend": "workers", "num_workers": 4, "step_timeout": TIMEOUT, "num_envs": 8, **kwargs}
    return make_vect_envs(make_env=functools.partial(worlds.Flaky, probability, ways), **settings)


def closes(env):
    start = time.monotonic()
    env.close()
    assert time.monotonic() - start <= 5.0 * slowness()


def test_every_death_is_seen_at_once_and_costs_only_its_own_episodes():
    with nothing_left(), told() as heard:
        env = flaky(0.02)
        env.reset(seed=integers(8, 0, Purpose.TRAINING_ENVS))
        deaths = tier(100, 300)
        seen = []
        while len(heard) < deaths:
            known, start = len(heard), time.monotonic()
            observation, reward, terminated, truncated, info = env.step(np.zeros(8, int))
            seen += [moment - start for moment, _ in heard[known:]]
            lost = np.zeros(8, bool) | info.get("worker_lost", False)
            # each worker has two envs, and nobody else's episode is touched
            assert lost.sum() == 2 * (len(heard) - known)
            assert (reward == ~lost).all()
            assert truncated[lost].all()
            assert not terminated[lost].any()
            assert np.isfinite(observation).all()
        closes(env)
        del env
    # all were seen by the end of a process and none by its silence; one may be late where the machine is busy
    assert np.median(seen) <= 1.0, f"of {len(heard)} deaths half were seen after {np.median(seen):.3f} s"
    assert not any("gave no answer" in text for _, text in heard)
    assert all(re.search(r"env \d \(seeded with \d+\): worker \d .*" + worlds.ENDS, text) for _, text in heard)


def test_who_hangs_is_not_waited_for():
    with nothing_left(), told() as heard:
        env = flaky(0.01, (worlds.hangs,), num_workers=2, num_envs=4, step_timeout=1.0)
        env.reset(seed=[1, 2, 3, 4])
        while len(heard) < tier(3, 6):
            known, start = len(heard), time.monotonic()
            env.step(np.zeros(4, int))
            assert all(1.0 <= moment - start <= 1.0 + slowness() for moment, _ in heard[known:])
        closes(env)
        del env
    assert all("gave no answer for 1 s (File" in text for _, text in heard)


FINALLY = {
    worlds.raises: r"it ended with exit code 1. Its last traceback:\n.*ConnectionResetError: the simulator",
    worlds.exits: r"it ended with exit code 3\. It left no traceback\.",
    worlds.is_killed: r"it was killed by SIGKILL\. It left no traceback\.",
}


@pytest.mark.parametrize(("way", "message"), FINALLY.items(), ids=[way.__name__ for way in FINALLY])
def test_what_breaks_every_time_ends_the_run_with_one_error(way, message):
    """The training envs of the first member break at every step, four times in a row."""
    place = r"Flaky, member 0, env 0 of its own \(seeded with \d+\): worker 0 failed 4 times in a row, the last time: "
    with nothing_left(), told() as heard:
        env = flaky(1.0, (way,), num_envs=2, num_workers=1)
        with pytest.raises(EnvStepError, match=f"(?s){place}{message}"):
            tiny_run(population_for(env), env=env, max_steps=400)
        del env
    assert len(heard) == 3


@pytest.mark.parametrize("way", worlds.DEFECTS, ids=[way.__name__ for way in worlds.DEFECTS])
def test_a_defect_of_the_environment_ends_the_run_when_it_is_seen_again(way):
    """It shows once in 50 steps, so that every restarted worker plays on for a while."""
    with nothing_left(), told() as heard:
        env = flaky(0.02, (way,), num_workers=2, num_envs=4)
        with pytest.raises(EnvStepError, match=r"Flaky, member \d, env \d .*worker \d failed again, as before"):
            tiny_run(population_for(env), env=env)
        del env
    assert len(heard) == 1


def test_a_run_among_faults_reaches_its_end_and_blames_nobody():
    """One step in a thousand kills a worker, in training and in evaluation."""
    memory = Memory()
    with nothing_left(), told() as heard:
        env = flaky(1e-3, num_workers=2, num_envs=4)
        population = tiny_run(population_for(env), env=env, generations=tier(2, 6), reporters=[memory])
        del env
    assert len(heard) >= tier(5, 15)
    assert [agent.steps[-1] for agent in population] == [tier(2, 6) * 1024] * 4
    assert all(math.isfinite(agent.fitness[-1]) and is_finite(agent) for agent in population)
    assert not [birth for birth in memory.all_births if birth.reason]
