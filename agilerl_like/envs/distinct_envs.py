"""Instances: the unlike envs of one vector env, such as a `SyncVectorEnv` of three levels of a game.

A test is fair if every member plays every instance equally often, so episodes are counted in whole sets of instances.
Copies of one env are no instances, though each may come from a function of its own
(`[lambda: gym.make(…) for _ in range(8)]`), so freshly made envs are compared and not their functions. Envs that say by
an attribute which row they stand in count as unlike; then a test has more episodes than it needs, and stays fair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from agilerl_like.envs.subproc.vec_env import SubprocVectorEnv

BUILT_FROM_ENV_FNS = (SyncVectorEnv, AsyncVectorEnv, SubprocVectorEnv)
"""Vector envs that are made of one function for each row."""

DEPTH = 8
"""How deep attributes of attributes are compared."""


def num_distinct_envs(env: Any) -> int:
    """Return how many unlike envs the rows of a vector env repeat, in order; 1 if all rows are alike.

    The answer is stored on the env, because envs are made once to find it.
    """
    core = getattr(env, "unwrapped", env)
    known = vars(core)
    if not isinstance(core, BUILT_FROM_ENV_FNS) or "env_config" in known:
        return 1
    if "instances" not in known:
        known["instances"] = 1 if _are_equal(known["env_fns"]) else core.num_envs
    return known["instances"]


def set_num_distinct_envs(env: VectorEnv, instances: int) -> None:
    """Store on a vector env how many unlike envs its rows repeat."""
    vars(env)["instances"] = instances


def round_up_to_sets(count: int, instances: int) -> int:
    """Return the smallest number of episodes from `count` on that has every instance equally often."""
    return -(-count // instances) * instances


def _are_equal(functions: Sequence[Callable[[], gym.Env]]) -> bool:
    first, *others = dict.fromkeys(functions)  # without those that stand there twice
    if not others:
        return True
    envs = [function() for function in (first, *others)]
    try:
        return all(_equal(_layers(envs[0]), _layers(env)) for env in envs[1:])
    finally:
        for env in envs:
            env.close()


def _layers(env: gym.Env) -> list[Any]:
    """Return the type and the attributes of an env and of each wrapper around it."""
    layers: list[Any] = []
    while True:
        attributes = {name: value for name, value in vars(env).items() if name not in ("env", "_np_random_seed")}
        layers.append((type(env), attributes))
        if not isinstance(env, gym.Wrapper):
            return layers
        env = env.env


def _equal(one: Any, other: Any, depth: int = DEPTH) -> bool:
    """Compare attributes of two fresh envs; of what has no value to compare, such as a generator, the type alone."""
    if one is other or depth == 0:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_equal(one[key], other[key], depth - 1) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(_equal(*pair, depth - 1) for pair in zip(one, other, strict=True))
    if isinstance(one, FunctionType):
        return one.__code__ is other.__code__ and _equal(_captured(one), _captured(other), depth - 1)
    if isinstance(one, (int, float, complex, str, bytes, type, np.generic, gym.Space)):
        return bool(one == other)
    return not hasattr(one, "__dict__") or _equal(vars(one), vars(other), depth - 1)


def _captured(function: FunctionType) -> tuple[Any, ...]:
    return tuple(cell.cell_contents for cell in function.__closure__ or ()), function.__defaults__
