"""PQN: Q(lambda) on rollouts, without replay or target network (Gallici et al. 2025), as an agent that a user holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from pydantic.dataclasses import dataclass
from tensordict import TensorDict

from agilerl_like.algorithms.epsilon_greedy import EpsilonGreedyAgent, EpsilonGreedyGroup, check_value_head
from agilerl_like.algorithms.off_policy_algorithm import best_values
from agilerl_like.algorithms.population import PopulationConstructor
from agilerl_like.algorithms.ppo_config import Epochs
from agilerl_like.algorithms.rl_algorithm import RLAlgorithm
from agilerl_like.algorithms.rollout_algorithm import RolloutAlgorithm
from agilerl_like.algorithms.rollout_builder import RolloutBuilder
from agilerl_like.algorithms.rollout_learner import RolloutLearner, RolloutLearnerGroup, shuffle_of
from agilerl_like.algorithms.settings import STRICT, Count, NonNegative, Positive, ScheduleOfLR, Share
from agilerl_like.envs.spaces import mask_size
from agilerl_like.errors import ConfigurationError, PopulationDivergedError, check_argument_names
from agilerl_like.hpo import HyperparameterConfig
from agilerl_like.hpo.frozen_mapping import FrozenMapping
from agilerl_like.hpo.schedules import Schedule
from agilerl_like.learning.execution import Precision
from agilerl_like.learning.optimizer import DEFAULT_BETAS, EPSILON, OptimizerName, RowRule
from agilerl_like.learning.pqn_update import HYPERPARAMETERS, METRICS, PQNUpdate
from agilerl_like.learning.rollout_buffer import LastSteps, Rollout
from agilerl_like.networks.action_values import ActionValueNetwork
from agilerl_like.networks.architecture import NetworkSpec, with_layer_norm
from agilerl_like.networks.observation_norm import ObservationNormKind


@dataclass(frozen=True, config=STRICT)
class PQNConfig:
    """PQN's settings; a member's live attributes have the same names. The defaults are those of CleanRL's pqn.py."""

    batch_size: Count = 128
    """Samples in one minibatch. An epoch has samples of the rollout / batch_size minibatches, rounded, at least one;
    all samples are in one, so sizes are nearly equal and may differ from batch_size (structural)."""
    lr: Positive = 2.5e-4
    """The optimizer's learning rate (value)."""
    learn_step: Count = 512
    """Env steps of a member between updates, over all its envs; rounded up to a multiple of num_envs (structural)."""
    gamma: Share = 0.99
    """Discount of the next step's reward (value)."""
    q_lambda: Share = 0.65
    """Share of the next step's target in the target of a step, the rest being its value: 0 is one-step Q-learning, 1
    the return until the end of the rollout (value)."""
    update_epochs: Epochs = 4
    """Passes over a rollout (structural)."""
    max_grad_norm: NonNegative | None = 10.0
    """Largest gradient norm; 0 or None: not clipped (value)."""
    num_steps: Count | None = None
    """Steps of each env between updates, in place of learn_step; None: learn_step / num_envs (structural)."""
    num_minibatches: Count | None = None
    """Minibatches of an epoch, in place of batch_size; all samples are in one, so sizes differ by up to one sample
    (structural)."""
    eps_start: Share = 1.0
    """Probability of a random action at the start of a run (value)."""
    eps_end: Share = 0.05
    """Probability of a random action after `eps_share` of a run (value)."""
    eps_share: Share = 0.5
    """Share of the run's env steps over which the probability falls in a straight line (value)."""
    dueling: bool = False
    """Compute a value and advantages on one encoder; fixed when an agent is made."""
    optimizer: OptimizerName = "adam"
    """Rule of a gradient step, as in torch.optim; one for all members. The paper has RAdam, which is not among them."""
    adam_eps: Positive = EPSILON
    """Epsilon of adam, adamw and rmsprop (value)."""
    weight_decay: NonNegative = 0.0
    """Decay of the weights: added to the gradient, or with adamw subtracted from the weights (value)."""
    normalize_observation: ObservationNormKind = False
    """running (or true): normalise vectors by mean and variance of the member's own observations, clipped to 10;
    bounds: map them from the bounds of their space to [-1, 1]; fixed when an agent is made."""
    normalize_images: bool = True
    """Scale images from their bounds, mostly 0..255, to 0..1; they are stored as bytes."""
    swap_channels: bool | None = None
    """Whether the env's images have their channels last, [H, W, C]; None: inferred from their shapes, True for a small
    last axis. Networks read channels first."""
    precision: Precision = "float32"
    """Type of the networks' products: float32, or bfloat16 by automatic mixed precision; one for all members."""
    per_member: bool = False
    """Compute every member separately, so its bits do not depend on the other members of its process, given equal
    numbers of threads; slower; one for all members."""
    schedules: ScheduleOfLR = FrozenMapping()
    """A factor on lr that depends on the run's progress: {lr: linear}, cosine, or points [[progress, factor], ...]
    joined by lines; in Python any function of progress, too. CleanRL's pqn.py has linear."""


class PQNLearner(RolloutLearner):
    """The action values of one agent."""

    algo = "PQN"

    def build(self, architecture: NetworkSpec) -> ActionValueNetwork:
        space: Any = self.action_space
        norm = self.algorithm.normalize_observation
        return ActionValueNetwork(
            architecture, self.encoding, space, dueling=self.host.dueling, normalize_observation=norm
        )

    def hyperparams(self) -> tuple[float, ...]:
        """Return the numbers of the next update, in the order of `HYPERPARAMETERS`."""
        host = self.host
        lr, limit = host.lr * self.schedule_factor("lr"), host.max_grad_norm or math.inf
        return lr, host.gamma, host.q_lambda, limit, host.epsilon

    @property
    def rule(self) -> RowRule:
        """The numbers of the optimizer besides the learning rate."""
        host = self.host
        return RowRule(*DEFAULT_BETAS[host.optimizer_name], host.adam_eps, host.weight_decay)

    def learn(self, experiences: RolloutBuilder) -> float:
        """Do one update from a hand-written loop's rollout, as `PQN.learn` describes."""
        size = mask_size(self.action_space)
        rollout, _ = experiences.rollout(self.encode, self.raw_actions, self._begin_rollout, size)
        snapshot = self.cohort.snapshot(self.row)
        report = self.cohort.learn([self.row], update_of([self], rollout))
        if not bool(report["healthy"][0]):
            self.cohort.restore(self.row, snapshot)
            raise PopulationDivergedError(f"agent {self.index}: a number is not finite; its weights were restored")
        self.after_rollout(rollout, 0)
        return float(report["loss"][0])

    def after_rollout(self, rollout: Rollout, row: int) -> None:
        """Count a rollout, in which `row` is this learner's."""
        self.env_steps += math.prod(rollout.rewards.shape[1:])
        self.learned_with_masks |= rollout.masks is not None
        self.after_update(rollout.observations[row])


class PQNLearnerGroup(EpsilonGreedyGroup, RolloutLearnerGroup[PQNLearner]):
    """P learners whose members explore each with its own probability, and learn from rollouts."""

    learner_class, metrics = PQNLearner, (*METRICS, "epsilon")
    placeholder_action = gymnasium.spaces.Discrete(2)
    takes_critic_config = False
    stores_next_masks = True
    search_ranges: ClassVar = {
        "q_lambda": {"min": 0.3, "max": 0.95},
        "max_grad_norm": {"min": 1.0, "max": 20.0, "scale": "log"},
    }

    def learn(self, places: Sequence[int], experience: LastSteps) -> dict[int, TensorDict]:
        """Update some members; `experience(places, steps)` returns their rollouts.

        Members with rollouts, minibatches and epochs of equal number learn together; with `per_member` each learns
        separately. Members none of whose rows had an action are not reported.
        """
        reports: dict[int, TensorDict] = {}
        due: dict[tuple[Any, ...], list[int]] = {}
        for place in places:
            learner = self[place]
            host, alone = learner.host, place if self.is_per_member else None
            key = (learner.rollout_steps, learner.batch_size, host.num_minibatches, host.update_epochs, alone)
            due.setdefault(key, []).append(place)
        for (steps, *_), together in due.items():
            learners = [self[place] for place in together]
            rollout = experience(together, steps)
            update = update_of(learners, rollout)
            metrics = self.cohort.learn(together, update).cpu()
            for name in {name for learner in learners for name in learner.scheduled}:
                metrics.set(name, update.hyperparams[name].cpu())  # as scheduled
            has_samples = (rollout.valid > 0).flatten(1).any(1).tolist()
            for i, (place, learner) in enumerate(zip(together, learners, strict=True)):
                learner.after_rollout(rollout, i)
                if has_samples[i]:
                    reports[place] = metrics[i : i + 1]
        return reports


def update_of(learners: Sequence[PQNLearner], rollout: Rollout) -> PQNUpdate:
    """Return the update of learners whose rollouts, minibatches and epochs are equal in number."""
    first, device = learners[0], learners[0].device
    columns = zip(*(learner.hyperparams() for learner in learners), strict=True)
    return PQNUpdate(
        rollout,
        {name: torch.tensor(column, device=device) for name, column in zip(HYPERPARAMETERS, columns, strict=True)},
        [learner.rule for learner in learners],
        batch_size=first.batch_size,
        update_epochs=first.host.update_epochs,
        shuffle=shuffle_of(learners),
        num_minibatches=first.host.num_minibatches,
        optimizer=first.host.optimizer_name,
    )


class PQN(EpsilonGreedyAgent, RolloutAlgorithm, PopulationConstructor, RLAlgorithm[PQNLearner]):
    """A PQN agent whose architecture and hyperparameters can evolve: action values learned from its own rollouts.

    Instead of a replay and a target network it has many envs at once and normalised layers (Gallici et al.,
    "Simplifying Deep Temporal Difference Learning", ICLR 2025; CleanRL's pqn.py). After each rollout the targets are
    Q(lambda) returns, by the values of the network before the update; then the squared error falls in epochs of
    minibatches. The last observation of a truncated episode is bootstrapped. Settings may be set as attributes at any
    time and count from the next update on, except for those that networks are built from, which are an error.
    `PQNConfig` has the meaning, default and range of each.

    Args:
        observation_space: Box (a vector, or an image of three or four dimensions), Discrete, MultiDiscrete,
            MultiBinary, and Dict and Tuple of these.
        action_space: Discrete.
        index: identity of the agent in its population.
        hp_config: which settings may evolve, and in which ranges.
        net_config: as DQN's. `layer_norm` of `encoder_config` and `head_config`, and `output_layernorm` of a vector's
            encoder, are True if they are not given (see `with_layer_norm`). There is no memory.
        mut: label of the last mutation.
        num_envs: envs that this agent acts in at once.
        device: device of all tensors; `accelerator` overrides it.
        seed: names all random streams; drawn from the operating system if left out.
        wrap: accepted for AgileRL's sake.

    Raises:
        ConfigurationError: a value is out of range, a key unknown, or a space not supported.
    """

    algo: ClassVar[str] = "PQN"
    config = PQNConfig
    allowed_actions = "Discrete"
    group_class = PQNLearnerGroup

    gamma: float
    q_lambda: float
    max_grad_norm: float | None
    dueling: bool
    adam_eps: float
    weight_decay: float

    @check_argument_names
    def __init__(
        self,
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        net_config: Mapping[str, Any] | None = None,
        batch_size: int = PQNConfig.batch_size,
        lr: float = PQNConfig.lr,
        learn_step: int = PQNConfig.learn_step,
        gamma: float = PQNConfig.gamma,
        mut: str | None = None,
        normalize_images: bool = PQNConfig.normalize_images,
        update_epochs: int = PQNConfig.update_epochs,
        device: str | torch.device = "cpu",
        accelerator: Any = None,
        wrap: bool = True,
        *,
        q_lambda: float = PQNConfig.q_lambda,
        max_grad_norm: float | None = PQNConfig.max_grad_norm,
        num_steps: int | None = PQNConfig.num_steps,
        num_minibatches: int | None = PQNConfig.num_minibatches,
        eps_start: float = PQNConfig.eps_start,
        eps_end: float = PQNConfig.eps_end,
        eps_share: float = PQNConfig.eps_share,
        dueling: bool = PQNConfig.dueling,
        optimizer: OptimizerName = PQNConfig.optimizer,
        adam_eps: float = PQNConfig.adam_eps,
        weight_decay: float = PQNConfig.weight_decay,
        normalize_observation: ObservationNormKind = PQNConfig.normalize_observation,
        swap_channels: bool | None = PQNConfig.swap_channels,
        precision: Precision = PQNConfig.precision,
        per_member: bool = PQNConfig.per_member,
        schedules: Mapping[str, Schedule] = FrozenMapping(),
        num_envs: int = 1,
        seed: int | None = None,
        **unknown: Any,
    ) -> None:
        self._init_given(locals(), net_config)

    @classmethod
    def supports(cls, action_space: gymnasium.Space) -> bool:
        return isinstance(action_space, gymnasium.spaces.Discrete)

    def _initial_architecture(
        self, net_config: Mapping[str, Any] | None, encoding: Any, action_space: gymnasium.Space, settings: Any
    ) -> NetworkSpec:
        """Return the architecture of a `net_config`, with normalised layers, whose head has the outputs of a value."""
        normed = with_layer_norm(net_config, encoding.policy.leaves)
        architecture = super()._initial_architecture(normed, encoding, action_space, settings)
        check_value_head(self.algo, architecture)
        return architecture

    def value(self, obs: Any, action_masks: np.ndarray | None = None) -> np.ndarray:
        """Return the value `[B]` of the best known action for observations `[B, *shape]`, in units of reward.

        `action_masks` `[B, choices]`: only actions that they allow count.
        """
        return best_values(self.learner, obs, action_masks)

    def learn(self, experiences: RolloutBuilder) -> float:
        """Do one update from the rollout of a hand-written loop, empty the builder, and return the mean loss.

        The loop adds each step with `builder.add`, with the `infos` of `env.step` where the env has action masks: the
        values of the states that steps lead to are those of their legal actions.

        Raises:
            ConfigurationError: there is nothing to learn from, a number or shape does not fit, the masks of the next
                observations are missing, or a setting that was set as an attribute is not legal.
            PopulationDivergedError: the update gave weights that are not finite; they were restored.
        """
        if not isinstance(experiences, RolloutBuilder):
            raise ConfigurationError(f"experiences={experiences!r:.100}; allowed is a RolloutBuilder")
        self.check_settings()
        try:
            loss = self.learner.learn(experiences)
        except BaseException:
            experiences.clear_at_next_step()
            raise
        experiences.empty()
        return loss
