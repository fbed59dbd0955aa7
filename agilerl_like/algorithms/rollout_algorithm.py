"""The base of algorithms that learn from rollouts in epochs of minibatches: the checks of their sizes."""

from __future__ import annotations

from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm
from agilerl_like.algorithms.ppo_config import (
    check_combinations,
    check_rollout,
    fit_batch_to_rollout,
    unused_batch_sizes,
)
from agilerl_like.algorithms.settings import number_range
from agilerl_like.hpo import HyperparameterConfig
from agilerl_like.learning.rollout_buffer import row_bytes
from agilerl_like.resources import check_memory


class RolloutAlgorithm(EvolvableAlgorithm):
    """An algorithm whose members learn from rollouts of `learn_step` env steps in minibatches of `batch_size`.

    The settings `learn_step`, `num_steps`, `batch_size` and `num_minibatches` have PPO's meanings.
    """

    update_epochs: int

    def check_settings(self) -> None:
        super().check_settings()
        self._check_combinations()

    def _check_combinations(self) -> None:
        """Raise ConfigurationError if settings contradict each other."""
        check_combinations(self.config, self.settings(), self.hp_config)

    def check(self) -> None:
        super().check()
        self._check_combinations()
        for group, learner in self.learners.items():
            named = f", agents of {group!r} in each: {learner.num_agents}" if group else ""
            check_rollout(self.settings(), self.hp_config, self.num_envs, learner.num_agents, named)

    def _check_memory(self) -> None:
        """Raise ConfigurationError unless learning fits in memory, without allocating anything."""
        row = sum(learner.num_agents * row_bytes(learner.rollout_encoding) for learner in self.learners.values())
        check_memory(f"num_envs={self.num_envs}", self.num_envs, 2 * row, "envs")
        name = "learn_step" if self.num_steps is None else "num_steps"
        length = next(iter(self.learners.values())).rollout_length
        envs = 1 if self.num_steps is None else self.num_envs
        check_memory(f"{name}={length // envs}", length, row, "env steps")
        lengths = number_range(self.hp_config, name)
        if lengths is not None:
            longest = int(lengths.max)
            check_memory(f"hp_config.{name}.max={longest}", longest * envs, row, "env steps")
        super()._check_memory()

    def repair(
        self, hyperparameters: dict[str, int | float], hp_config: HyperparameterConfig | None = None
    ) -> dict[str, int | float]:
        """Keep a minibatch no larger than the rollout of the smallest group."""
        ranges = self.hp_config if hp_config is None else hp_config
        return fit_batch_to_rollout(hyperparameters, ranges, self.num_envs, self._smallest_group)

    def unused_ranges(self) -> str:
        """Return what remains of a range that `repair` cuts off; "" if all of it is used."""
        return unused_batch_sizes(self.settings(), self.hp_config, self.num_envs, self._smallest_group)

    @property
    def _smallest_group(self) -> int:
        return min(learner.num_agents for learner in self.learners.values())
