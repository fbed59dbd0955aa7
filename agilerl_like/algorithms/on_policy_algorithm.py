"""What PPO and independent PPO share: PPO's settings as live attributes, and learners that read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm
from agilerl_like.algorithms.learner import WEIGHT_BYTES, Learner, LearnerHost
from agilerl_like.algorithms.ppo_config import (
    SETTINGS,
    PPOConfig,
    check_ranges,
    check_rollout,
    fit_batch_to_rollout,
    validated,
    with_int_dtype,
)
from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo import HyperparameterConfig
from agilerl_like.learning.rollout_buffer import row_bytes
from agilerl_like.resources import check_memory


class OnPolicyAlgorithm(LearnerHost, EvolvableAlgorithm):
    """An algorithm of PPO learners, one for each group of agents."""

    learners: dict[str, Learner]

    def _init_settings(
        self,
        observation_space: Any,
        action_space: Any,
        settings: PPOConfig,
        *,
        index: int,
        hp_config: HyperparameterConfig | None,
        num_envs: int,
        device: str | torch.device,
        seed: int | None,
    ) -> None:
        self._init_state(
            observation_space,
            action_space,
            index=index,
            hp_config=with_int_dtype(hp_config),
            num_envs=num_envs,
            device=device,
            seed=seed,
        )
        for name in SETTINGS:
            setattr(self, name, getattr(settings, name))

    def _arguments(self) -> dict[str, Any]:
        """Return the arguments of `_init_settings` that a copy has in common with this agent."""
        return {
            "settings": PPOConfig(**self.settings()),
            "hp_config": self.hp_config,
            "num_envs": self.num_envs,
            "device": self.device,
        }

    def check(self) -> None:
        settings = self.settings()
        validated(PPOConfig, settings)
        check_ranges(settings, self.hp_config)
        for group, learner in self.learners.items():
            named = f", agents of {group!r} in each: {learner.num_agents}" if group else ""
            check_rollout(settings, self.hp_config, self.num_envs, learner.num_agents, named)
            for name in ("recurrent", "share_encoders"):
                if settings[name] and learner.custom_networks is not None:
                    raise ConfigurationError(
                        f"{name}=True cannot go with actor_network and critic_network; allowed is False"
                    )

    def _check_memory(self) -> None:
        """Raise ConfigurationError unless learning fits in memory, without allocating anything."""
        row = sum(learner.num_agents * row_bytes(learner.encoding) for learner in self.learners.values())
        check_memory(f"num_envs={self.num_envs}", self.num_envs, 2 * row, "envs")
        check_memory(f"learn_step={self.learn_step}", self.learn_step, row, "env steps")
        if "learn_step" in self.hp_config:
            longest = int(self.hp_config["learn_step"].max)
            check_memory(f"hp_config.learn_step.max={longest}", longest, row, "env steps")
        if self.custom_networks is not None:  # which are allocated already
            return
        weights = {group: learner.planned_weights() for group, learner in self.learners.items()}
        sizes = ", ".join(f"{group}: {count}" for group, count in weights.items())
        what = f"the networks of all groups have weights ({sizes})" if "" not in weights else ""
        what = what or f"{self.architecture.describe():.200} has weights={weights['']}"
        check_memory(f"net_config: {what} and", sum(weights.values()), WEIGHT_BYTES, "weights")

    def repair(self, hyperparameters: dict[str, int | float]) -> dict[str, int | float]:
        """Keep a minibatch no larger than the rollout of the smallest group."""
        smallest = min(learner.num_agents for learner in self.learners.values())
        return fit_batch_to_rollout(hyperparameters, self.hp_config, self.num_envs, smallest)

    def _set_hyperparameters(self, hyperparameters: Mapping[str, int | float]) -> None:
        """Set hyperparameters; the learned standard deviation changes by as much as `action_std_init` does."""
        before = self.action_std_init, self.action_std_min, self.action_std_max
        super()._set_hyperparameters(hyperparameters)
        if (self.action_std_init, self.action_std_min, self.action_std_max) != before:
            for learner in self.learners.values():
                learner.bound_std_(self.action_std_init - before[0])
