"""The settings that off-policy algorithms have in common, and DQN's."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from agilerl_like.algorithms.settings import (
    STRICT,
    Count,
    NonNegative,
    Positive,
    ScheduleOfLR,
    Share,
    Steps,
    largest,
)
from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo import HyperparameterConfig
from agilerl_like.hpo.frozen_mapping import FrozenMapping
from agilerl_like.learning.execution import Precision
from agilerl_like.learning.replay_buffer import MemoryKind
from agilerl_like.networks.observation_norm import ObservationNormKind

Tau = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True, config=STRICT)
class OffPolicyConfig:
    """What every algorithm that learns from a replay has; a member's live attributes have the same names."""

    batch_size: Count = 64
    """Samples in one minibatch (structural)."""
    lr: Positive = 1e-4
    """Adam's learning rate (value)."""
    learn_step: Count = 5
    """Env steps of a member for each gradient step; if a member has more envs than that, several gradient steps follow
    each step of all envs. Their number is rounded, unless learn_step divides the number of envs or is a multiple of it
    (structural)."""
    gradient_steps: Count | None = None
    """Gradient steps of each call of learn, which comes every `learn_step` env steps, or after each step of all envs if
    a member has more envs than that; None: as many as `learn_step` describes (structural)."""
    gamma: Share = 0.99
    """Discount of the next step's reward (value)."""
    tau: Tau = 1e-3
    """Share by which the target networks move towards the networks at each of their updates; 1: they are copies
    (value)."""
    target_update_interval: Count = 1
    """Gradient steps between two updates of the target networks (value)."""
    n_step: Count = 1
    """Rewards in a return before the target's value; they end with the episode (structural)."""
    memory_size: Count = 100_000
    """Env steps of each member that the replay holds."""
    memory: MemoryKind = "own"
    """own: a member learns from the transitions of its place in the population, of which an offspring takes over those
    of the member that it replaces; shared: from those of all members; one for all members."""
    learning_starts: Steps = 1_000
    """Env steps of a member in the replay before it learns (value)."""
    save_memory: bool = False
    """Save the replay with checkpoints, so that a resumed run is the same; else it refills before members learn; one
    for all members."""
    max_grad_norm: Positive = 10.0
    """Largest gradient norm (value)."""
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
    joined by lines; in Python any function of progress, too."""


@dataclass(frozen=True, config=STRICT)
class DQNConfig(OffPolicyConfig):
    """DQN's settings; a member's live attributes have the same names."""

    double: bool = True
    """Let the network choose the next action and the target value it, so that noise is not maximised."""
    dueling: bool = False
    """Compute a value and advantages on one encoder; fixed when an agent is made."""
    eps_start: Share = 1.0
    """Probability of a random action at the start of a run (value)."""
    eps_end: Share = 0.05
    """Probability of a random action after `eps_share` of a run (value)."""
    eps_share: Share = 0.1
    """Share of the run's env steps over which the probability falls in a straight line (value)."""


@dataclass(frozen=True, config=STRICT)
class ContinuousConfig(OffPolicyConfig):
    """What TD3, DDPG and SAC have in common."""

    lr: Positive = 1e-3
    """Adam's learning rate of the critics (value)."""
    lr_actor: Positive | None = None
    """Adam's learning rate of the actor; None: that of the critics. A schedule of lr scales both (value)."""
    tau: Tau = 0.005
    """Share by which the target networks move towards the networks at each of their updates (value)."""
    twin_q: bool = True
    """Learn two critics and use the smaller of their values; fixed when an agent is made."""


@dataclass(frozen=True, config=STRICT)
class TD3Config(ContinuousConfig):
    """TD3's settings; a member's live attributes have the same names."""

    expl_noise: NonNegative = 0.1
    """Standard deviation of the noise on actions in training, in half-widths of the action space (value)."""
    target_noise: NonNegative = 0.2
    """Standard deviation of the noise on the next actions that the critics learn from, likewise (value)."""
    noise_clip: NonNegative = 0.5
    """Largest magnitude of that noise (value)."""
    policy_delay: Count = 2
    """Gradient steps of the critics for each of the actor (structural)."""
    target_update_interval: Count = 2
    """Gradient steps of the critics between two updates of the target networks (value)."""


@dataclass(frozen=True, config=STRICT)
class DDPGConfig(TD3Config):
    """DDPG's settings: TD3's with one critic, no delay and no noise on next actions."""

    twin_q: bool = False
    """Learn two critics and use the smaller of their values; fixed when an agent is made."""
    target_noise: NonNegative = 0.0
    """Standard deviation of the noise on the next actions that the critic learns from (value)."""
    policy_delay: Count = 1
    """Gradient steps of the critic for each of the actor (structural)."""
    target_update_interval: Count = 1
    """Gradient steps of the critic between two updates of the target networks (value)."""


@dataclass(frozen=True, config=STRICT)
class SACConfig(ContinuousConfig):
    """SAC's settings; a member's live attributes have the same names."""

    target_entropy_scale: NonNegative = 1.0
    """The temperature adapts until the entropy is minus this, in nats for each dimension of an action (value)."""


class OffPolicyAttributes:
    """The settings of `OffPolicyConfig` that `LearnerHost` does not declare."""

    gradient_steps: int | None
    gamma: float
    tau: float
    target_update_interval: int
    n_step: int
    memory_size: int
    memory: MemoryKind
    save_memory: bool
    max_grad_norm: float


def check_replay(settings: dict[str, Any], hp_config: HyperparameterConfig) -> None:
    """Raise ConfigurationError unless the replay can hold what learning needs, whatever evolves."""
    size = settings["memory_size"]
    for name in ("learning_starts", "n_step"):
        if (most := largest(settings, hp_config, name)) > size:
            raise ConfigurationError(f"{name}={most} is more than memory_size={size}; allowed are at most {size}")


def check_members_learn(
    settings: dict[str, Any],
    hp_config: HyperparameterConfig,
    num_envs: int,
    max_steps: int,
    longest_episode: int | None,
) -> None:
    """Raise ConfigurationError if members may never learn in `max_steps` env steps of each, or not n steps."""
    names = "learning_starts", "n_step", "learn_step"
    starts, steps, learn_step = (largest(settings, hp_config, name) for name in names)
    rollout = -(-learn_step // num_envs) * num_envs
    last = max_steps // rollout * rollout
    if starts > last:
        raise ConfigurationError(
            f"learning_starts={starts} is more than {last}, the env steps at the last update of max_steps={max_steps} "
            f"with num_envs={num_envs} and learn_step={learn_step}, so that members with it would not learn; allowed "
            f"are at most {last}"
        )
    if longest_episode is not None and steps > longest_episode:
        raise ConfigurationError(
            f"n_step={steps} is longer than an episode, which has at most {longest_episode} steps; "
            f"allowed are at most {longest_episode}"
        )
