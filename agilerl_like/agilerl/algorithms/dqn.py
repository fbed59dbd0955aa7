"""DQN with AgileRL 2.58's signature and defaults."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import torch

from agilerl_like.agilerl.absent import absent_from
from agilerl_like.agilerl.algorithms.core.base import EvolvableAlgorithm, default_ranges, settings_from, wrapped
from agilerl_like.agilerl.components.data import observation_of
from agilerl_like.agilerl.components.replay_buffer import OBSERVATIONS
from agilerl_like.agilerl.wrappers.agent import RSNorm
from agilerl_like.algorithms import dqn
from agilerl_like.algorithms.evaluation import EpisodeCallback
from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo import HyperparameterConfig

__getattr__ = absent_from(__name__)


class DQN(EvolvableAlgorithm, dqn.DQN, same_algorithm=True):
    """This package's DQN, called as AgileRL's; `more` are keywords of `agilerl_like.DQN`, such as `seed`."""

    def __init__(
        self,
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        net_config: Mapping[str, Any] | None = None,
        batch_size: int = 64,
        lr: float = 1e-4,
        learn_step: int = 5,
        gamma: float = 0.99,
        tau: float = 1e-3,
        mut: str | None = None,
        double: bool = False,
        normalize_images: bool = True,
        actor_network: Any = None,
        device: str | torch.device = "cpu",
        accelerator: Any = None,
        cudagraphs: bool = False,
        wrap: bool = True,
        num_envs: int | None = None,
        **more: Any,
    ) -> None:
        if actor_network is not None:
            raise ConfigurationError("actor_network is given; DQN has net_config instead: allowed is None")
        hp_config = default_ranges(hp_config, lr, batch_size, learn_step)
        num_envs, more = num_envs or 1, {"learning_starts": 0, **more}
        super().__init__(**settings_from(locals(), without=("actor_network",)))

    @classmethod
    def population(  # pyright: ignore[reportIncompatibleMethodOverride]  # AgileRL's is a list
        cls,
        size: int,
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
        device: str | torch.device = "cpu",
        wrapper_cls: Callable[..., Any] | None = None,
        wrapper_kwargs: Mapping[str, Any] | None = None,
        resume_from_checkpoint: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> list[Any]:
        """A list of `size` agents of one run seed, each in `wrapper_cls` if it is given.

        With `resume_from_checkpoint` each of them begins as the agent that was saved there. `RSNorm` as `wrapper_cls`
        makes them normalise observations.
        """
        if wrapper_cls is RSNorm:
            kwargs = {"normalize_observation": True, **kwargs}
        agents = list(super().population(size, observation_space, action_space, device=device, **kwargs))
        for agent in agents if resume_from_checkpoint is not None else ():
            agent.load_checkpoint(resume_from_checkpoint or "")
        return wrapped(agents, wrapper_cls, wrapper_kwargs)

    def learn(self, experiences: Mapping[str, Any]) -> float:
        """As `agilerl_like.DQN.learn`; observations that are tuples may have the names of `Transition`."""
        if isinstance(experiences, Mapping):
            experiences = dict(experiences.items())
            for name in {*OBSERVATIONS} & {*experiences}:
                experiences[name] = observation_of(self.observation_space, experiences[name])
        return super().learn(experiences)

    def test(  # pyright: ignore[reportIncompatibleMethodOverride]  # AgileRL's order
        self,
        env: gymnasium.vector.VectorEnv | gymnasium.Env,
        max_steps: int | None = None,
        loop: int = 1,
        vectorized: bool = True,
        callback: EpisodeCallback | None = None,
        *,
        swap_channels: bool = False,
    ) -> float:
        """As `agilerl_like.DQN.test`, in AgileRL's order, with its one episode by default."""
        return super().test(env, swap_channels, max_steps, loop, vectorized, callback)
