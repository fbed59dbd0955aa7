"""What agents of bounded continuous actions that learn from a replay have in common: TD3, DDPG and SAC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import gymnasium
import numpy as np
import torch
from torch import Tensor

from agilerl_like.algorithms.learner_base import torch_generator
from agilerl_like.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from agilerl_like.algorithms.off_policy_learner import OffPolicyLearner, OffPolicyLearnerGroup, update_arguments
from agilerl_like.algorithms.serialization import WEIGHTS_ONLY, read_flag
from agilerl_like.envs.random_actions import is_bounded
from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo.frozen_mapping import FrozenMapping
from agilerl_like.learning.continuous_update import METRICS, ContinuousUpdate
from agilerl_like.networks.architecture import NetworkSpec
from agilerl_like.networks.target_networks import ContinuousNetwork
from agilerl_like.seeding import Purpose

UNIFORM = -1.0
"""The size of exploration noise that stands for uniform actions."""


class ContinuousLearner(OffPolicyLearner):
    """An actor and its critics."""

    network: ContinuousNetwork  # pyright: ignore[reportIncompatibleVariableOverride]  # only `build` makes one
    is_stochastic: ClassVar[bool] = False

    def build(self, architecture: NetworkSpec) -> ContinuousNetwork:
        space: Any = self.action_space
        return ContinuousNetwork(
            architecture,
            self.encoding,
            space,
            twin=getattr(self.algorithm, "twin_q", True),
            stochastic=self.is_stochastic,
            normalize_observation=self.algorithm.normalize_observation,
        )

    def hyperparam(self, name: str, value: Any) -> float:
        return float(self.host.lr if name == "lr_actor" and value is None else value)

    def mix_initial_weights(self, own: float, initial: float) -> None:
        super().mix_initial_weights(own, initial)
        self.network.actor_steps.zero_()  # a buffer that belongs to the moments

    def load_state(self, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        super().load_state(document, tensors)
        if read_flag(document, WEIGHTS_ONLY):
            self.network.actor_steps.zero_()  # a file of weights alone has no moments either

    def action_noise(self, steps: int, rows: int) -> Tensor:
        """Return the noise of next actions and of actions in the next gradient steps, `[steps, 2, rows, A]`."""
        stream = torch_generator("cpu", self.seed, Purpose.MINIBATCHES, self.index, self.updates, 1)
        return torch.randn(steps, 2, rows, self.distribution.size, generator=stream)


class ContinuousLearnerGroup(OffPolicyLearnerGroup[ContinuousLearner]):
    """P learners that act uniformly for the first `learning_starts` env steps before any update, then with noise."""

    metrics = METRICS
    update_class: ClassVar[type[ContinuousUpdate]]

    def next_noise(self, envs: int) -> Tensor:
        noise = super().next_noise(envs).clone()
        stored = 0 if self.replay is None else self.replay.steps * self.replay.envs
        sizes = [
            UNIFORM if learner.updates == 0 and stored < learner.host.learning_starts else learner.host.noise_size
            for learner in self
        ]
        noise[..., 0] = torch.tensor(sizes, device=noise.device).unsqueeze(1)
        return noise

    def kind_of(self, learner: ContinuousLearner) -> tuple[Any, ...]:
        delay = learner.host.delay
        return delay, learner.updates % delay

    @classmethod
    def make_update(
        cls, learners: Sequence[ContinuousLearner], places: Sequence[int], replay: Any, steps: int
    ) -> ContinuousUpdate:
        rows = getattr(replay, "rows", learners[0].batch_size)  # of experiences that a hand-written loop passes
        noise = torch.stack([learner.action_noise(steps, rows) for learner in learners]).to(learners[0].device)
        delay = learners[0].host.delay
        return cls.update_class(**update_arguments(learners, places, replay, steps), noise=noise, policy_delay=delay)


class ContinuousAlgorithm(OffPolicyAlgorithm[ContinuousLearner]):
    """An agent of bounded continuous actions that learns from a replay."""

    allowed_actions = "a Box of finite bounds"
    net_defaults = FrozenMapping({"encoder": "mlp"})

    lr_actor: float | None
    twin_q: bool

    @property
    def noise_size(self) -> float:
        """The size of the exploration noise, in half-widths of the action space."""
        return 0.0

    @property
    def delay(self) -> int:
        """Gradient steps of the critics for each of the actor."""
        return 1

    @classmethod
    def supports(cls, action_space: gymnasium.Space) -> bool:
        return isinstance(action_space, gymnasium.spaces.Box) and is_bounded(action_space)

    def check(self) -> None:
        super().check()
        for learner in self.learners.values():
            if any(leaf.kind == "image" for leaf in learner.encoding.leaves):
                raise ConfigurationError(
                    f"observation_space={learner.observation_space} has an image; {self.algo} allows vectors and "
                    "categories, and Dict and Tuple of these"
                )

    def get_action(self, obs: Any, infos: Any = None) -> np.ndarray:
        """Return actions for observations `[B, *shape]`, in the env's units: in training mode with exploration.

        `predict(obs, deterministic=True)` returns the best actions in both modes. `infos` has no effect, as agents of
        Box actions have no masks; AgileRL has it.
        """
        learner = self.learner
        network = cast(ContinuousNetwork, learner.network)
        with torch.no_grad():
            outputs = network.outputs(learner.normalize(obs))
            noise = learner.noise((len(outputs),))
            noise[..., 0] = self.noise_size
            distribution = learner.distribution
            raw = distribution.sample(outputs, noise) if self.training else distribution.mode(outputs)
            return distribution.to_env(raw)
