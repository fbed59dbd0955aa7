"""The base of PPO and independent PPO: PPO's settings as attributes, and their checks."""

from __future__ import annotations

import warnings
from functools import cache
from inspect import signature

import gymnasium

from agilerl_like.algorithms.ppo_config import (
    PPOAttributes,
    PPOConfig,
    check_lr_schedule,
    check_std_range,
)
from agilerl_like.algorithms.ppo_learner import PPOLearner, PPOLearnerGroup
from agilerl_like.algorithms.rollout_algorithm import RolloutAlgorithm
from agilerl_like.algorithms.settings import number_range
from agilerl_like.envs.random_actions import is_bounded
from agilerl_like.errors import ConfigurationError
from agilerl_like.learning.ppo_loss import ppo_loss


class OnPolicyAlgorithm(PPOAttributes, RolloutAlgorithm):
    """An algorithm of PPO learners, one for each group of agents."""

    config = PPOConfig
    group_class = PPOLearnerGroup
    learners: dict[str, PPOLearner]
    loss = staticmethod(ppo_loss)
    """The loss of an update; a subclass may have one of its own (see `tutorials/own_loss.py`)."""

    def _check_combinations(self) -> None:
        super()._check_combinations()
        settings = self.settings()
        check_lr_schedule(settings, self.hp_config)
        check_std_range(settings, self.hp_config)

    def check(self) -> None:
        super().check()
        self._check_loss()
        settings = self.settings()
        if not self.bootstrap_truncated:
            warn_of_unbootstrapped()
        for group, learner in self.learners.items():
            names = settings["critic_observation"]
            if settings["share_encoders"] and learner.rollout_encoding.is_asymmetric:
                raise ConfigurationError(
                    f"share_encoders=True and critic_observation={names!r}; allowed is one of them"
                )
            if settings["share_encoders"] and learner.architecture.critic is not None:
                raise ConfigurationError("share_encoders=True cannot go with a critic_config; allowed is False")
            self._check_random_steps(learner)
            for name in ("recurrent", "share_encoders"):
                if settings[name] and learner.custom_networks is not None:
                    own = "actor_networks and critic_networks" if group else "actor_network and critic_network"
                    instead = "; a memory goes behind an encoder of your own (tutorials/own_encoder.py)"
                    raise ConfigurationError(
                        f"{name}=True cannot go with {own}; allowed is False{instead * (name == 'recurrent')}"
                    )

    def _check_loss(self) -> None:
        """Raise ConfigurationError unless the loss, which a subclass may define, can be called as an update does."""
        try:
            signature(self.loss).bind(None, None, None)
        except TypeError as error:
            raise ConfigurationError(
                f"{type(self).__name__}.loss cannot be called with (evaluation, targets, coefs): {error}; allowed is a "
                "@staticmethod of these three"
            ) from error
        except ValueError:  # a compiled function may have no signature
            return

    def _check_random_steps(self, learner: PPOLearner) -> None:
        space, steps = learner.action_space, number_range(self.hp_config, "random_steps")
        most = self.random_steps if steps is None else int(steps.max)
        if most and isinstance(space, gymnasium.spaces.Box) and not is_bounded(space):
            raise ConfigurationError(
                f"random_steps={most} needs actions with finite bounds; action_space={space} allows 0"
            )


@cache
def warn_of_unbootstrapped() -> None:
    """Warn once in a process that time limits are not bootstrapped."""
    warnings.warn(
        "bootstrap_truncated=False treats time limits as terminations, as AgileRL and skrl do: values of states before "
        "a limit are too low; it is for comparisons",
        stacklevel=4,
    )
