"""Gymnax's JAX environments as vector envs of torch tensors (the extra `gymnax`; only this file imports it and JAX).

A step is one compiled JAX function for all copies. Observations, rewards, flags and actions are exchanged through
DLPack: torch and JAX read the same memory of the device, without a copy. Paper: Lange 2022, "gymnax: A JAX-based
Reinforcement Learning Environment Library".
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

from agilerl_like.envs.array_backend import resolve_device
from agilerl_like.envs.env_ids import configuration_errors
from agilerl_like.envs.pytree import Tree, tree_map
from agilerl_like.errors import ConfigurationError, unknown_name
from agilerl_like.seeding import fresh_seed, seed_per_env


class GymnaxVectorEnv(VectorEnv[Tree, Tensor, Tensor]):
    """`num_envs` copies of one of gymnax's environments; its autoreset mode is NEXT_STEP.

    `reset(seed=…)` takes one seed for each copy, or the first of consecutive seeds; the episodes of a copy depend on
    its own seed and actions only. `env_kwargs` are arguments of the environment.

    Raises:
        ConfigurationError: gymnax is not installed, the id is unknown, or JAX or torch lacks the device.
    """

    def __init__(
        self,
        env_id: str,
        num_envs: int = 1,
        *,
        device: str | torch.device = "cpu",
        max_episode_steps: int | None = None,
        **env_kwargs: Any,
    ) -> None:
        if importlib.util.find_spec("gymnax") is None:
            raise ConfigurationError("backend='gymnax' needs a package: pip install 'agilerl-like[gymnax]'")
        gymnax, self._jax = importlib.import_module("gymnax"), importlib.import_module("jax")
        if env_id not in gymnax.registered_envs:
            raise unknown_name("env_name (of gymnax)", env_id, gymnax.registered_envs)
        self.device, self.num_envs = resolve_device(device), num_envs
        self._jax_device = _jax_device(self._jax, self.device)
        env, params = gymnax.make(env_id, **env_kwargs)
        if max_episode_steps is not None:
            params = params.replace(max_steps_in_episode=max_episode_steps)
        to_gymnasium = importlib.import_module("gymnax.environments.spaces").gymnax_space_to_gym_space
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space = to_gymnasium(env.observation_space(params))
        self.single_action_space = to_gymnasium(env.action_space(params))
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._action_dtype = torch.int32 if isinstance(self.single_action_space, Discrete) else torch.float32
        self._reset_all, self._step_all = _compiled(self._jax, env, params)
        self._keys: Any = None
        self._state: Any = None
        self._ended: Any = None

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Tree, dict[str, Any]]:
        """Start a new episode in every copy."""
        if seed is None and self._keys is None:
            seed = fresh_seed()
        if seed is not None:
            each = seed_per_env(seed, self.num_envs)
            words = np.array([[one >> 32 & 0xFFFFFFFF, one & 0xFFFFFFFF] for one in each], np.uint32)
            self._keys = self._jax.device_put(self._jax.random.wrap_key_data(words), self._jax_device)
        self._keys, self._state, observations = self._reset_all(self._keys)
        self._ended = self._jax.device_put(np.zeros(self.num_envs, np.bool_), self._jax_device)
        return tree_map(torch.from_dlpack, observations), {}

    def step(self, actions: Tensor) -> tuple[Tree, Tensor, Tensor, Tensor, dict[str, Any]]:
        """Take an action in each copy; a copy whose episode has ended starts the next one instead."""
        given = self._jax.dlpack.from_dlpack(actions.to(self._action_dtype).contiguous())
        self._keys, self._state, self._ended, results = self._step_all(self._keys, self._state, self._ended, given)
        observations, reward, terminated, truncated = tree_map(torch.from_dlpack, results)
        return observations, reward, terminated, truncated, {}


def _compiled(jax: ModuleType, env: Any, params: Any) -> tuple[Any, Any]:
    """Return compiled functions that reset and step all copies of a gymnax environment."""

    def reset(key: Any) -> tuple[Any, Any, Any]:
        key, key_of_reset = jax.random.split(key)
        observation, state = env.reset_env(key_of_reset, params)
        return key, state, observation

    def step(key: Any, state: Any, begins: Any, action: Any) -> tuple[Any, Any, Any, tuple[Any, ...]]:
        key, key_of_step, key_of_reset = jax.random.split(key, 3)
        observation, after, reward, terminated, _ = env.step_env(key_of_step, state, action, params)
        first, start = env.reset_env(key_of_reset, params)
        observation, after = jax.tree.map(
            lambda new, old: jax.numpy.where(begins, new, old), (first, start), (observation, after)
        )
        terminated, truncated = terminated & ~begins, env.is_truncated(after, params) & ~begins
        reward = jax.numpy.where(begins, 0.0, reward).astype(jax.numpy.float32)
        return key, after, terminated | truncated, (observation, reward, terminated, truncated)

    return jax.jit(jax.vmap(reset)), jax.jit(jax.vmap(step))


def _jax_device(jax: ModuleType, device: torch.device) -> Any:
    try:
        return jax.devices(device.type)[device.index or 0]
    except (RuntimeError, IndexError) as fault:
        raise ConfigurationError(
            f"device={str(device)!r} is unknown to JAX; allowed here: {', '.join(map(str, jax.devices()))}, and "
            "NVIDIA's GPUs after pip install 'jax[cuda12]'"
        ) from fault


def make_env(config: Any) -> VectorEnv:
    """Make the env of a `VecEnvConfig` with backend "gymnax".

    Raises:
        ConfigurationError: a factory in place of an id, or as `GymnaxVectorEnv`.
    """
    if not isinstance(config.env, str):
        raise ConfigurationError(f"env_name={config.env!r} is a factory; backend='gymnax' needs an id")
    with configuration_errors(config.env, config.env_kwargs):
        return GymnaxVectorEnv(config.env, config.num_envs, **config.env_kwargs)
