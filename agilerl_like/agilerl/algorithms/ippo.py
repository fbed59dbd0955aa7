"""IPPO with AgileRL 2.58's signature and defaults."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch

from agilerl_like.agilerl.absent import absent_from
from agilerl_like.agilerl.algorithms.core.base import (
    EvolvableAlgorithm,
    default_ranges,
    fitting_batch,
    settings_from,
    wrapped,
)
from agilerl_like.algorithms import ippo
from agilerl_like.algorithms.agent_groups import Spaces, agent_ids_of, split_by_group
from agilerl_like.algorithms.evaluation import EpisodeCallback
from agilerl_like.hpo import HyperparameterConfig

__getattr__ = absent_from(__name__)

WITHOUT_EFFECT = ("mut", "action_batch_size", "torch_compiler", "wrap")
"""Arguments that are not forwarded."""


class IPPO(EvolvableAlgorithm, ippo.IPPO, same_algorithm=True):
    """This package's IPPO, called as AgileRL's.

    Agents whose ids are equal up to the last underscore are a group, as in AgileRL, unless `groups` has others.
    `net_config` may be by agent: agents of a group have one network, so what one of them has counts for its group.
    `lr` may be by group, as in `agilerl_like.IPPO`. `action_batch_size`, `torch_compiler` and `wrap` are accepted and
    have nothing to do. `more` are keywords of `agilerl_like.IPPO`, such as `groups` and `seed`.

    Raises:
        ConfigurationError: as `agilerl_like.IPPO`.
    """

    def __init__(
        self,
        observation_spaces: Spaces,
        action_spaces: Spaces,
        agent_ids: Sequence[str] | None = None,
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        net_config: Mapping[str, Any] | None = None,
        batch_size: int = 64,
        lr: float | Mapping[str, float] = 1e-4,
        learn_step: int = 4096,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        mut: str | None = None,
        action_std_init: float = 0.6,
        clip_coef: float = 0.2,
        ent_coef: float = 0.01,
        vf_coef: float = 0.5,
        max_grad_norm: float = 0.5,
        target_kl: float | None = None,
        normalize_images: bool = True,
        update_epochs: int = 4,
        actor_networks: Any = None,
        critic_networks: Any = None,
        action_batch_size: int | None = None,
        device: str | torch.device = "cpu",
        accelerator: Any = None,
        torch_compiler: str | None = None,
        wrap: bool = True,
        *,
        num_envs: int = 1,
        **more: Any,
    ) -> None:
        agent_ids = tuple(agent_ids if agent_ids is not None else agent_ids_of(observation_spaces))
        groups = {agent: agent.rsplit("_", 1)[0] for agent in agent_ids} | (more.pop("groups", None) or {})
        sizes = Counter(groups[agent] for agent in agent_ids)
        smallest = min(sizes.values(), default=1)
        batch_size = fitting_batch(batch_size, smallest * learn_step, smallest * num_envs)
        single = split_by_group({"lr": lr}, {}, sizes, hp_config)[0]["lr"]  # with lr by group, the value that evolves
        hp_config = default_ranges(hp_config, single, batch_size, learn_step)
        net_config = by_group(net_config, groups)
        super().__init__(**settings_from(locals(), without=(*WITHOUT_EFFECT, "sizes", "smallest", "single")))
        self.mut = mut or "None"

    @classmethod
    def population(  # pyright: ignore[reportIncompatibleMethodOverride]  # AgileRL's is a list
        cls,
        size: int,
        observation_space: Spaces | None = None,
        action_space: Spaces | None = None,
        device: str | torch.device = "cpu",
        wrapper_cls: Callable[..., Any] | None = None,
        wrapper_kwargs: Mapping[str, Any] | None = None,
        resume_from_checkpoint: str | os.PathLike[str] | None = None,
        *,
        observation_spaces: Spaces | None = None,
        action_spaces: Spaces | None = None,
        **kwargs: Any,
    ) -> list[Any]:
        """A list of `size` teams of one run seed, each in `wrapper_cls` if it is given."""
        observed: Any = observation_space if observation_spaces is None else observation_spaces
        acted: Any = action_space if action_spaces is None else action_spaces
        teams = list(super().population(size, observed, acted, device=device, **kwargs))
        for team in teams if resume_from_checkpoint is not None else ():
            team.load_checkpoint(resume_from_checkpoint or "")
        return wrapped(teams, wrapper_cls, wrapper_kwargs)

    def get_network_id(self, agent_id: str) -> str:
        """The name of an agent's network: its group."""
        return self.get_group_id(agent_id)

    @property
    def unique_observation_spaces(self) -> dict[str, gymnasium.Space]:
        """What the agents of each group observe."""
        return {group: self.possible_observation_spaces[ids[0]] for group, ids in self.groups.items()}

    @property
    def unique_action_spaces(self) -> dict[str, gymnasium.Space]:
        """What the agents of each group do."""
        return {group: self.possible_action_spaces[ids[0]] for group, ids in self.groups.items()}

    def test(  # pyright: ignore[reportIncompatibleMethodOverride]  # AgileRL's order
        self,
        env: Any,
        max_steps: int | None = None,
        loop: int = 3,
        sum_scores: bool = True,
        *,
        swap_channels: bool = False,
        callback: EpisodeCallback | None = None,
    ) -> float | np.ndarray:
        """As `agilerl_like.IPPO.test`, in AgileRL's order."""
        return super().test(env, swap_channels, max_steps, loop, sum_scores, callback)


def by_group(net_config: Mapping[str, Any] | None, groups: Mapping[str, str]) -> Any:
    """A `net_config` by agent as one by group; what is not named by an agent stays."""
    if net_config is None:
        return None
    return {groups.get(key, key): value for key, value in net_config.items()}
