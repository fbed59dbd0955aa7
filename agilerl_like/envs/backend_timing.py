"""Decides by timing whether an env is slow enough for worker processes.

The decision changes speed only: workers return the same bits as `SyncVectorEnv`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from statistics import median
from time import perf_counter

import gymnasium as gym

from agilerl_like.envs.random_actions import sample_legal_action
from agilerl_like.envs.subproc.vec_env import unsendable_reason, unsupported_reason

# Seconds per step for sending actions to workers and returning observations. Measured with envs that do nothing, 2 to
# 64 of them in 1 or 2 workers: 0.3 to 0.5 ms on a virtual machine, of which waking idle cores is more than a third.
ROUND_TRIP = 400e-6
MAX_TIME_RATIO = 0.8  # of workers' to one process's predicted time: workers cost memory, start-up time and cores
STEPS = 256
BLOCK = 16
SECONDS = 0.2


def prefer_workers(make: Callable[[], gym.Env], *, num_envs: int, num_workers: int) -> tuple[bool, str]:
    """Return whether workers would step `num_envs` envs clearly faster than one process, and why."""
    if num_workers < 2:
        return False, "there is no second env or core for a second process"
    with warnings.catch_warnings(action="ignore"):  # the env's warnings appear when it is used
        env = make()
        if reason := unsupported_reason(make, env.observation_space, env.action_space):
            env.close()
            return False, reason
        try:
            if reason := unsendable_reason(_first_infos(env)):
                return False, reason
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


def _first_infos(env: gym.Env) -> list[dict]:
    """Return the infos of a reset and of one step, of the same action in every call."""
    env.action_space.seed(0)
    _, first = env.reset(seed=0)
    return [first, env.step(sample_legal_action(env, first))[-1]]


def mean_step_seconds(env: gym.Env) -> float:
    """Return the mean time of a step with random legal actions, resets included.

    It is the median over blocks of steps, because other processes may use the core during some of them.
    """
    env.action_space.seed(0)
    _, info = env.reset(seed=0)
    info = env.step(sample_legal_action(env, info))[-1]  # the first step may load files
    _, info = env.reset(seed=0)
    means: list[float] = []
    block = total = 0.0
    for step in range(1, STEPS + 1):
        action = sample_legal_action(env, info)
        start = perf_counter()
        _, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            _, info = env.reset()
        block += perf_counter() - start
        if step % BLOCK == 0:
            means.append(block / BLOCK)
            total, block = total + block, 0.0
        if total + block > SECONDS:
            return median(means) if means else (total + block) / step
    return median(means)
