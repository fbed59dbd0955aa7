"""Workers that fail at random are replaced; a failure that repeats is one error that names env, row and cause."""

import functools
import gc
import math
import re
import subprocess
import sys
import textwrap
import time
import warnings
from contextlib import contextmanager

import flaky_envs
import numpy as np
import pytest
from slowness import slowness
from tiny_runs import Memory, children, descriptors, is_finite, named_memory, population_for, tier, tiny_run

from agilerl_like import EnvStepError, make_vect_envs
from agilerl_like.seeding import Purpose, integers

TIMEOUT = 10.0


class RecordedWarnings(list):
    """Every warning as (when, what)."""

    def hear(self, message, *_args, **_kwargs):
        self.append((time.monotonic(), str(message)))


@contextmanager
def recorded_warnings():
    """Record every warning when it is given."""
    warned = RecordedWarnings()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = warned.hear
        yield warned


@contextmanager
def nothing_left():
    """Assert that no process, file or shared memory is left over."""
    gc.collect()
    before = children(), descriptors(), named_memory()
    yield
    gc.collect()  # the numbers of a closed env live on with it
    assert (children(), descriptors(), named_memory()) == before


def flaky(probability, ways=flaky_envs.BREAKS, **kwargs):
    settings = {"backend": "workers", "num_workers": 4, "step_timeout": TIMEOUT, "num_envs": 8, **kwargs}
    return make_vect_envs(make_env=functools.partial(flaky_envs.Flaky, probability, ways), **settings)


def closes(env):
    start = time.monotonic()
    env.close()
    assert time.monotonic() - start <= 5.0 * slowness()


def test_every_exit_is_detected_at_once_and_ends_only_its_own_episodes():
    with nothing_left(), recorded_warnings() as warned:
        env = flaky(0.02)
        env.reset(seed=integers(8, 0, Purpose.TRAINING_ENVS))
        deaths = tier(100, 300)
        seen = []
        while len(warned) < deaths:
            known, start = len(warned), time.monotonic()
            observation, reward, terminated, truncated, info = env.step(np.zeros(8, int))
            seen += [moment - start for moment, _ in warned[known:]]
            lost = np.zeros(8, bool) | info.get("worker_lost", False)
            # each worker has two envs, and no other episode is affected
            assert lost.sum() == 2 * (len(warned) - known)
            assert (reward == ~lost).all()
            assert truncated[lost].all()
            assert not terminated[lost].any()
            assert np.isfinite(observation).all()
        closes(env)
        del env
    # all were seen by the end of a process and none by its silence; one may be late where the machine is busy
    assert np.median(seen) <= 1.0, f"of {len(warned)} deaths half were seen after {np.median(seen):.3f} s"
    assert not any("gave no answer" in text for _, text in warned)
    assert all(re.search(r"env \d \(seeded with \d+\): worker \d .*" + flaky_envs.ENDS, text) for _, text in warned)


def test_a_hanging_worker_is_not_waited_for():
    with nothing_left(), recorded_warnings() as warned:
        env = flaky(0.01, (flaky_envs.hangs,), num_workers=2, num_envs=4, step_timeout=1.0)
        env.reset(seed=[1, 2, 3, 4])
        while len(warned) < tier(3, 6):
            known, start = len(warned), time.monotonic()
            env.step(np.zeros(4, int))
            assert all(1.0 <= moment - start <= 1.0 + slowness() for moment, _ in warned[known:])
        closes(env)
        del env
    assert all("gave no answer for 1 s (step_timeout) (File" in text for _, text in warned)


FINALLY = {
    flaky_envs.raises: r"it ended with exit code 1. Its last traceback:\n.*ConnectionResetError: the simulator",
    flaky_envs.exits: r"it ended with exit code 3\. It left no traceback\.",
    flaky_envs.is_killed: r"it was killed by SIGKILL\. It left no traceback\.",
}


@pytest.mark.parametrize(("way", "message"), FINALLY.items(), ids=[way.__name__ for way in FINALLY])
def test_a_failure_at_every_step_ends_the_run_with_one_error(way, message):
    """The training envs of the first member break at every step, four times in a row."""
    place = r"Flaky, member 0, env 0 of its own \(seeded with \d+\): worker 0 failed 4 times in a row, the last time: "
    with nothing_left(), recorded_warnings() as warned:
        env = flaky(1.0, (way,), num_envs=2, num_workers=1)
        with pytest.raises(EnvStepError, match=f"(?s){place}{message}"):
            tiny_run(population_for(env), env=env, max_steps=400)
        del env
    assert len(warned) == 3


@pytest.mark.parametrize("way", flaky_envs.DEFECTS, ids=[way.__name__ for way in flaky_envs.DEFECTS])
def test_a_repeated_defect_of_the_environment_ends_the_run(way):
    """It shows once in 50 steps, so that every restarted worker plays on for a while."""
    with nothing_left(), recorded_warnings() as warned:
        env = flaky(0.02, (way,), num_workers=2, num_envs=4)
        with pytest.raises(EnvStepError, match=r"Flaky, member \d, env \d .*worker \d failed again, as before"):
            tiny_run(population_for(env), env=env)
        del env
    assert len(warned) == 1


def test_a_run_with_random_failures_completes():
    """One step in a thousand kills a worker, in training and in evaluation."""
    memory = Memory()
    with nothing_left(), recorded_warnings() as warned:
        env = flaky(1e-3, num_workers=2, num_envs=4)
        population = tiny_run(population_for(env), env=env, generations=tier(2, 6), reporters=[memory])
        del env
    assert len(warned) >= tier(5, 15)
    assert [agent.steps[-1] for agent in population] == [tier(2, 6) * 1024] * 4
    assert all(math.isfinite(agent.fitness[-1]) and is_finite(agent) for agent in population)
    assert not [birth for birth in memory.all_births if birth.reason]


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_standard_stream_may_be_closed(closed, tmp_path):
    """As after `nohup python … <&-`: its number would be that of shared memory, or of the pipe to a worker."""
    (tmp_path / "script.py").write_text(
        textwrap.dedent(
            """
            import os
            from pathlib import Path

            import gymnasium as gym
            import numpy as np

            from agilerl_like import make_vect_envs

            class Talking(gym.Env):
                observation_space, action_space = gym.spaces.Box(-1, 1, (64,)), gym.spaces.Discrete(2)

                def reset(self, *, seed=None, options=None):
                    super().reset(seed=seed)
                    return self.np_random.uniform(-1, 1, 64).astype(np.float32), {}

                def step(self, action):
                    for stream in (1, 2):
                        try:
                            os.write(stream, b"a line of the env\\n" * 40)
                        except OSError:
                            pass
                    return self.np_random.uniform(-1, 1, 64).astype(np.float32), 0.0, False, False, {}

            seen = []
            for backend in ("workers", "sync"):
                env = make_vect_envs(make_env=Talking, num_envs=2, backend=backend)
                first, _ = env.reset(seed=3)
                rows = [np.array(first), *(np.array(env.step(np.zeros(2, int))[0]) for _ in range(3))]
                env.close()
                seen.append(np.stack(rows))
            Path("equal").write_text(str(np.array_equal(*seen)))
            """
        )
    )
    ended = subprocess.run(
        ["sh", "-c", f"exec '{sys.executable}' script.py {closed}"], cwd=tmp_path, check=False, capture_output=True
    )
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "equal").read_text() == "True"
