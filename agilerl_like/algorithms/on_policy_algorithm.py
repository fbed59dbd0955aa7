"""What PPO and independent PPO share: PPO's settings as live attributes, and the sizes of their rollouts."""

from __future__ import annotations

from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm
from agilerl_like.algorithms.ppo_config import (
    PPOAttributes,
    PPOConfig,
    check_rollout,
    check_std_range,
    fit_batch_to_rollout,
)
from agilerl_like.algorithms.ppo_learner import PPOLearner, PPOLearnerGroup
from agilerl_like.algorithms.settings import number_range
from agilerl_like.errors import ConfigurationError
from agilerl_like.learning.rollout_buffer import row_bytes
from agilerl_like.resources import check_memory


class OnPolicyAlgorithm(PPOAttributes, EvolvableAlgorithm):
    """An algorithm of PPO learners, one for each group of agents."""

    config = PPOConfig
    group_class = PPOLearnerGroup
    learners: dict[str, PPOLearner]

    def check(self) -> None:
        super().check()
        settings = self.settings()
        check_std_range(settings, self.hp_config)
        for group, learner in self.learners.items():
            named = f", agents of {group!r} in each: {learner.num_agents}" if group else ""
            check_rollout(settings, self.hp_config, self.num_envs, learner.num_agents, named)
            if settings["share_encoders"] and learner.architecture.critic is not None:
                raise ConfigurationError("share_encoders=True cannot go with a critic_config; allowed is False")
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
        lengths = number_range(self.hp_config, "learn_step")
        if lengths is not None:
            longest = int(lengths.max)
            check_memory(f"hp_config.learn_step.max={longest}", longest, row, "env steps")
        super()._check_memory()

    def repair(self, hyperparameters: dict[str, int | float]) -> dict[str, int | float]:
        """Keep a minibatch no larger than the rollout of the smallest group."""
        smallest = min(learner.num_agents for learner in self.learners.values())
        return fit_batch_to_rollout(hyperparameters, self.hp_config, self.num_envs, smallest)
