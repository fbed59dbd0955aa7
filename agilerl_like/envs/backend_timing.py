"""Is an env slow enough to be worth worker processes? It is timed for a moment, for nothing else can tell.

The answer changes speed alone: workers give `SyncVectorEnv`'s results bit for bit.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from statistics import median
from time import perf_counter

import gymnasium as gym

from agilerl_like.envs.random_actions import sample_legal_action
from agilerl_like.envs.subproc.vec_env import unsupported_reason

# Seconds a step in which actions go to workers and observations come back. Measured with envs that do nothing, 2 to 64
# of them in 1 or 2 workers: 0.3 to 0.5 ms on a virtual machine, of which waking cores that sleep is more than a third.
ROUND_TRIP = 400e-6
MAX_TIME_RATIO = 0.8  # workers must promise less than this share of the time: they cost memory, a start, and cores
STEPS = 256
BLOCK = 16
SECONDS = 0.2


def prefer_workers(make: Callable[[], gym.Env], *, num_envs: int, num_workers: int) -> tuple[bool, str]:
    """Say whether workers would step so many envs clearly faster than one process, and why."""
    if num_workers < 2:
        return False, "there is no second env or core for a second process"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is wrong with the env is said when it is used
        env = make()
        if obstacle := unsupported_reason(make, env.observation_space, env.action_space):
            env.close()
            return False, obstacle
        try:
            one = mean_step_seconds(env)
        except Exception as fault:
            return False, f"random actions could not be timed: {fault!r}"
        finally:
            env.close()
    alone = num_envs * one
    shared = -(-num_envs // num_workers) * one + ROUND_TRIP
    times = (
        f"a step of {num_envs} envs takes {1e3 * alone:.2g} ms, in {num_workers} workers about {1e3 * shared:.2g} ms"
    )
    return shared < MAX_TIME_RATIO * alone, times


def mean_step_seconds(env: gym.Env) -> float:
    """Return how long a step takes with random actions that the env allows, new episodes included.

    It is the median over blocks of steps, for on a busy machine somebody else may have the core in some of them.
    """
    env.action_space.seed(0)
    _, info = env.reset(seed=0)
    info = env.step(sample_legal_action(env, info))[-1]  # which may still load something
    _, info = env.reset(seed=0)
    found: list[float] = []
    block = total = 0.0
    for step in range(1, STEPS + 1):
        action = sample_legal_action(env, info)
        start = perf_counter()
        _, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            _, info = env.reset()
        block += perf_counter() - start
        if step % BLOCK == 0:
            found.append(block / BLOCK)
            total, block = total + block, 0.0
        if total + block > SECONDS:
            return median(found) if found else (total + block) / step
    return median(found)
