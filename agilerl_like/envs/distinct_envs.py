"""Counts the distinct envs in one vector env, such as a `SyncVectorEnv` of three levels of a game.

Evaluation is fair only if every member plays every distinct env equally often, so episodes are counted in whole sets.
Copies of one env are not distinct, even if each has its own function (`[lambda: gym.make(…) for _ in range(8)]`), so
newly made envs are compared and not their functions. Envs that store their row number in an attribute count as
distinct; evaluation then has more episodes than necessary, but stays fair.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence, Set
from datetime import date, timedelta
from functools import partial
from numbers import Number
from pathlib import PurePath
from types import FunctionType
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv, VectorWrapper

from agilerl_like.envs.env_errors import BaseEnvConfig
from agilerl_like.envs.subproc.vec_env import SubprocVectorEnv

BUILT_FROM_ENV_FNS = (SyncVectorEnv, AsyncVectorEnv, SubprocVectorEnv)
"""Vector envs that are made from one function per row."""

OF_SINGLE_ENVS = ("sync", "async", "workers")
"""Backends by which rows are copies of one single env, or of the instances in turn."""

WRAPPED = ("env", "aec_env")
"""Attributes that have the env inside a wrapper."""

DEPTH = 8
"""How deep attributes of attributes are compared."""


def num_distinct_envs(env: Any) -> int:
    """Return how many distinct envs the rows of a vector env, or of a team's, repeat in order; 1 if all are equal.

    The result is stored on the env, because computing it makes each of its envs once, and may reset them.
    """
    core = _core(env)
    if not hasattr(core, "num_distinct_envs"):
        if env_config_inside(core) is not None or not isinstance(core, BUILT_FROM_ENV_FNS):
            return 1
        set_num_distinct_envs(core, _count_distinct(core))
    return cast(Any, core).num_distinct_envs


def compare_new_rows(env: VectorEnv) -> None:
    """Store how many distinct envs the rows of a factory's vector env repeat, while they are new.

    None is made for it, because a second one may want the same port or licence; rows in other processes count as equal.
    """
    core = _core(env)
    if isinstance(core, SyncVectorEnv):
        set_num_distinct_envs(core, _period(core.envs))


def num_instances(env: Any) -> int:
    """Return how many instances the rows of a vector env, or of a team's, repeat in order; 1 if it has none."""
    return max(1, len(getattr(env_config_inside(env), "instances", ())))


def env_config_inside(env: Any) -> Any:
    """Return the configuration of a vector env, or of a team's, or of the env inside its wrappers; None without one."""
    core = getattr(env, "vector", env)
    while not isinstance(found := getattr(core, "env_config", None), BaseEnvConfig):
        if not isinstance(core, VectorWrapper):
            return None
        core = core.env
    return found


def set_num_distinct_envs(env: VectorEnv, count: int) -> None:
    """Store on a vector env, inside its wrappers, how many distinct envs its rows repeat."""
    _core(env).num_distinct_envs = count


def num_episodes(count: int, env: Any, envs: int) -> int:
    """Return how many episodes a member with so many `envs` plays for `count`: whole sets if it has every kind."""
    distinct = num_distinct_envs(env)
    return count if envs % distinct else round_up_to_sets(count, distinct)


def round_up_to_sets(count: int, num_distinct: int) -> int:
    """Return the smallest number of episodes >= `count` that has every distinct env equally often."""
    return -(-count // num_distinct) * num_distinct


def _core(env: Any) -> Any:
    """Return the vector env inside the wrappers of one, or of a team's."""
    vector = getattr(env, "vector", env)
    return getattr(vector, "unwrapped", vector)


def _count_distinct(vector_env: Any) -> int:
    """Return how many envs the rows repeat in order: new envs of these rows are equal, or after a reset with one seed.

    Envs that are no new ones, but the rows' own, stay open, and are not reset.
    """
    distinct = {id(function): function for function in vector_env.env_fns}  # not by value: some cannot be hashed
    if len(distinct) <= 1:  # none are left of a generator
        return 1
    made = {number: function() for number, function in distinct.items()}
    rows = [made[id(function)] for function in vector_env.env_fns]
    live = {id(_chain(env)[-1]) for env in getattr(vector_env, "envs", ())}
    new = [env for env in made.values() if id(_chain(env)[-1]) not in live]
    try:
        count = _period(rows)
        if count == 1 or len(new) < len(made):
            return count
        for env in new:  # some have random numbers until then
            env.reset(seed=0)
        return min(count, _period(rows))
    finally:
        for env in new:
            env.close()


def _period(rows: Sequence[gym.Env]) -> int:
    """Return the smallest divisor of the number of rows by which each row equals the one that many rows before."""
    layers = [_layers(env) for env in rows]
    divisors = (width for width in range(1, len(rows)) if len(rows) % width == 0)
    repeats = (all(map(equal_values, layers, layers[width:])) and width for width in divisors)
    return next(filter(None, repeats), len(rows))


def _chain(env: Any) -> list[Any]:
    """Return an env, and the envs inside it; those of gymnasium, of PettingZoo, and others that have a `reset`."""
    chain = [env]
    while (inner := _inner(chain[-1])) is not None:
        chain.append(inner)
    return chain


def _inner(env: Any) -> Any:
    """Return the env that another one wraps; None without one."""
    found = (vars(env).get(name) for name in WRAPPED)
    return next((inner for inner in found if hasattr(inner, "reset") and hasattr(inner, "__dict__")), None)


def _layers(env: gym.Env) -> list[Any]:
    """Return the type and the attributes of an env and of each wrapper around it."""
    chain = _chain(env)
    inside = {id(layer) for layer in chain}
    return [
        (
            type(layer),
            {
                name: value
                for name, value in vars(layer).items()
                if id(value) not in inside and name != "_np_random_seed"
            },
        )
        for layer in chain
    ]


_VALUES = (Number, str, bytes, bytearray, range, Set, PurePath, date, timedelta, type, gym.Space)
"""Types whose `==` compares values. That of others may compare identities, as that of handles to C++ objects does."""


def equal_values(one: Any, other: Any, depth: int = DEPTH) -> bool:
    """Compare attributes of two new envs, or arguments of two envs.

    Objects without a comparable value, such as generators, are compared by type alone.
    """
    if one is other or depth == 0:
        return True
    if type(one) is not type(other):
        return False
    is_array = hasattr(type(one), "__array__")
    if is_array and hasattr(one, "equal"):  # a tensor of torch; workers import this module, so it does not import torch
        return _equal_tensors(one, other)
    if is_array or isinstance(one, float):
        return _equal_arrays(np.asarray(one), np.asarray(other), depth)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(equal_values(one[key], other[key], depth - 1) for key in one)
    if isinstance(one, (list, tuple, deque)):
        return len(one) == len(other) and all(equal_values(*pair, depth - 1) for pair in zip(one, other, strict=True))
    if isinstance(one, FunctionType):
        return one.__code__ is other.__code__ and equal_values(_captured(one), _captured(other), depth - 1)
    if isinstance(one, partial):
        return all(
            equal_values(getattr(one, name), getattr(other, name), depth - 1) for name in ("func", "args", "keywords")
        )
    if isinstance(one, Set) and any(type(item).__eq__ is object.__eq__ for item in one):
        return len(one) == len(other)  # its items compare identities
    if isinstance(one, _VALUES):
        return bool(one == other)
    attributes, others = object.__getstate__(one), object.__getstate__(other)  # also those in slots
    return equal_values(attributes, others, depth - 1)


def _equal_tensors(one: Any, other: Any) -> bool:
    """Compare tensors, in which NaN equals NaN; those whose values cannot be read differ."""
    try:
        are_equal = (one == other) | ((one != one) & (other != other))
        return one.shape == other.shape and bool(are_equal.all())
    except RuntimeError:  # of sparse tensors, those without data, and shapes that cannot be compared
        return False


def _equal_arrays(one: np.ndarray, other: np.ndarray, depth: int) -> bool:
    """Compare arrays, in which NaN equals NaN; arrays of objects element by element."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype == object:
        return equal_values(one.ravel().tolist(), other.ravel().tolist(), depth)
    return np.array_equal(one, other, equal_nan=one.dtype.kind in "fcmM")


def _captured(function: FunctionType) -> tuple[Any, ...]:
    return tuple(cell.cell_contents for cell in function.__closure__ or ()), function.__defaults__
