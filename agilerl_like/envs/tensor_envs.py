"""Vector envs of torch tensors: gymnasium's CartPole and Pendulum, and a base class for others.

All copies are stepped by the same few operations on one device, and nothing reads a value on the host, so that a
rollout on an accelerator needs no transfer. The k-th episode of a copy starts in a state that depends on its seed and k
alone: it is the same on every device, and whatever the other copies do.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

from agilerl_like.envs.array_backend import Array, resolve_device
from agilerl_like.envs.env_ids import TIME_LIMIT, configuration_errors, resolve_source, with_valid_time_limit
from agilerl_like.errors import unknown_name
from agilerl_like.seeding import fresh_seed, seed_per_env


class TensorVectorEnv(VectorEnv[Tensor, Tensor, Tensor], ABC):
    """`num_envs` copies of an env whose states are the columns of one tensor `[S, N]`.

    A subclass defines the spaces of one copy, `state_size` (S), `time_limit`, and three functions of tensors. Its
    autoreset mode is NEXT_STEP: a step that ends an episode returns the episode's last observation, and the next one
    ignores the action and returns the first of the next episode.

    `reset(seed=…)` takes one seed for each copy, or the first of consecutive seeds. Without a seed every copy begins
    its next episode.

    Raises:
        ConfigurationError: the device does not exist, or a time limit is no whole number from 1.
    """

    state_size: ClassVar[int]
    time_limit: ClassVar[int]
    """Steps after which an episode is truncated, unless `max_episode_steps` is given."""

    def __init__(
        self, num_envs: int = 1, *, device: str | torch.device = "cpu", max_episode_steps: int | None = None
    ) -> None:
        given = with_valid_time_limit({TIME_LIMIT: max_episode_steps}, single_envs=False)
        self.max_episode_steps = given.get(TIME_LIMIT, self.time_limit)
        self.device, self.num_envs = resolve_device(device), num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._free_reads = self.device.type == "cpu"  # elsewhere a read waits for all work queued before it
        self._seeds = torch.zeros(num_envs, dtype=torch.int64, device=self.device)  # hashed
        self._seeded = False
        self._components = torch.arange(self.state_size, device=self.device).view(-1, 1)
        self._episodes = torch.zeros(num_envs, dtype=torch.int64, device=self.device)  # that each copy has started
        self._ended = torch.zeros(num_envs, dtype=torch.bool, device=self.device)
        self._steps = torch.zeros(num_envs, device=self.device)  # of the current episodes
        self._state = torch.zeros(self.state_size, num_envs, device=self.device)

    @abstractmethod
    def initial_state(self, uniform: Tensor) -> Tensor:
        """Return start states from numbers that are uniform in [0, 1), both `[S, K]`.

        K is the number of copies that begin an episode, or of all, whose other start states are not used.
        """

    @abstractmethod
    def transition(self, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the next states `[S, N]`, in new memory, rewards `[N]` and terminations `[N]`."""

    @abstractmethod
    def observe(self, state: Tensor) -> Tensor:
        """Return the observations `[N, …]` of states, which share no memory with them."""

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Start a new episode in every copy."""
        if seed is None and not self._seeded:
            seed = fresh_seed()
        if seed is not None:
            seeds = [one % 2**63 for one in seed_per_env(seed, self.num_envs)]
            self._seeds = hashed(torch.tensor(seeds, device=self.device))
            self._episodes, self._seeded = torch.zeros_like(self._episodes), True
        self._state = self._with_starts(self._state.clone(), torch.ones_like(self._ended))
        self._steps, self._ended = torch.zeros_like(self._steps), torch.zeros_like(self._ended)
        return self.observe(self._state), {}

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        """Take an action in each copy; a copy whose episode has ended starts the next one instead."""
        state, reward, terminated = self.transition(self._state, actions)
        begins, acted = self._ended, ~self._ended
        self._state = self._with_starts(state, begins)
        self._steps = (self._steps + 1) * acted
        terminated = terminated & acted
        truncated = self._steps >= self.max_episode_steps
        self._ended = terminated | truncated
        return self.observe(self._state), reward * acted, terminated, truncated, {}

    def _with_starts(self, state: Tensor, begins: Tensor) -> Tensor:
        """Return the states `[S, N]`, those of copies that begin an episode replaced by its start."""
        if not self._free_reads:
            uniform = uniform_of(self._seeds, self._episodes, self._components)
            state = torch.where(begins, self.initial_state(uniform), state)
        elif len(rows := begins.numpy().nonzero()[0]):  # by numpy, whose operations on a few numbers are faster
            seeds, episodes = (array.numpy()[rows] for array in (self._seeds, self._episodes))
            uniform = torch.from_numpy(uniform_of(seeds, episodes, self._components.numpy()).astype(np.float32))
            state.numpy()[:, rows] = self.initial_state(uniform).numpy()
        else:
            return state
        self._episodes = self._episodes + begins
        return state


def uniform_of(seeds: Array, episodes: Array, components: Array) -> Array:
    """Return numbers `[S, N]`, uniform in [0, 1), from hashed seeds `[N]`, episodes `[N]` and components `[S, 1]`.

    Arrays are int64, of numpy or torch, and give equal numbers on every device; they have 24 bits, as float32 has.
    """
    return (hashed(seeds + (episodes * len(components) + components) * _GOLDEN_RATIO) & 0xFFFFFF) * 2.0**-24


def hashed(x: Array) -> Array:
    """Hash int64 numbers, of numpy or torch: SplitMix64 (Steele, Lea, Flood 2014), but for the sign of its shifts."""
    for shift, factor in ((30, _FIRST_FACTOR), (27, _SECOND_FACTOR)):
        x = (x ^ (x >> shift)) * factor
    return x ^ (x >> 31)


_GOLDEN_RATIO, _FIRST_FACTOR, _SECOND_FACTOR = (
    factor - 2**64 for factor in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)  # as signed integers; products wrap around


class TensorCartPole(TensorVectorEnv):
    """Gymnasium's CartPole; states are position, velocity, angle [rad] and angular velocity (Barto et al. 1983)."""

    state_size, time_limit = 4, 500
    _limits = np.array([4.8, np.inf, math.radians(24), np.inf], np.float32)
    single_observation_space = Box(-_limits, _limits, dtype=np.float32)
    single_action_space = Discrete(2)

    def __init__(self, num_envs: int = 1, **options: Any) -> None:
        super().__init__(num_envs, **options)
        self._forces = torch.tensor([-10.0, 10.0], device=self.device) / 1.1  # over the total mass
        self._bounds = torch.tensor([[2.4], [math.radians(12)]], device=self.device)
        self._rewards = torch.ones(num_envs, device=self.device)

    def initial_state(self, uniform: Tensor) -> Tensor:
        return uniform * 0.1 - 0.05

    def transition(self, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        _, velocity, angle, turning = state.unbind()
        sin, cos = angle.sin(), angle.cos()
        push = torch.addcmul(self._forces[actions], turning * turning, sin, value=0.05 / 1.1)
        angular = (9.8 * sin - cos * push) / (2 / 3 - cos * cos * (0.05 / 1.1))
        linear = torch.addcmul(push, angular, cos, value=-0.05 / 1.1)
        moved = state.add(torch.stack([velocity, linear, turning, angular]), alpha=0.02)
        return moved, self._rewards, (moved[::2].abs() > self._bounds).any(0)

    def observe(self, state: Tensor) -> Tensor:
        return state.T.clone(memory_format=torch.contiguous_format)  # `contiguous` does not copy the row of one env


class TensorPendulum(TensorVectorEnv):
    """Gymnasium's Pendulum under gravity `g`; states are the angle from upright [rad] and the angular velocity."""

    state_size, time_limit = 2, 200
    _limits = np.array([1.0, 1.0, 8.0], np.float32)
    single_observation_space = Box(-_limits, _limits, dtype=np.float32)
    single_action_space = Box(-2.0, 2.0, (1,))

    def __init__(self, num_envs: int = 1, *, g: float = 10.0, **options: Any) -> None:
        super().__init__(num_envs, **options)
        self._gravity = float(g)
        self._widest = torch.tensor([[math.pi], [1.0]], device=self.device)
        self._never = torch.zeros(num_envs, dtype=torch.bool, device=self.device)

    def initial_state(self, uniform: Tensor) -> Tensor:
        return (uniform * 2 - 1) * self._widest

    def transition(self, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        angle, speed = state.unbind()
        angle = (angle + math.pi) % (2 * math.pi) - math.pi
        torque = actions[:, 0].clamp(-2.0, 2.0)
        cost = angle.square() + 0.1 * speed.square() + 0.001 * torque.square()
        speed = (speed + (1.5 * self._gravity * angle.sin() + 3.0 * torque) * 0.05).clamp(-8.0, 8.0)
        return torch.stack([angle + speed * 0.05, speed]), -cost, self._never

    def observe(self, state: Tensor) -> Tensor:
        angle, speed = state.unbind()
        return torch.stack([angle.cos(), angle.sin(), speed], 1)


TENSOR_ENVS: Mapping[str, type[TensorVectorEnv]] = {"CartPole-v1": TensorCartPole, "Pendulum-v1": TensorPendulum}
"""By gymnasium's ids, whose dynamics, spaces and time limits they have."""


def make_env(config: Any) -> VectorEnv:
    """Make the env of a `VecEnvConfig` with backend "torch": one of `TENSOR_ENVS`, or a factory's TensorVectorEnv.

    Raises:
        ConfigurationError: an unknown id, or arguments that do not suit the env.
    """
    source: Any = resolve_source(config.env) if ":" in str(config.env) else config.env
    if isinstance(source, str) and source not in TENSOR_ENVS:
        raise unknown_name("env_name (of backend='torch')", source, TENSOR_ENVS)
    make: Callable[..., VectorEnv] = TENSOR_ENVS[source] if isinstance(source, str) else source
    with configuration_errors(source, config.env_kwargs):
        return make(num_envs=config.num_envs, **config.env_kwargs)
