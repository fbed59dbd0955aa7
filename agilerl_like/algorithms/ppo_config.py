"""The definition of PPO's settings: names, defaults, ranges and meanings.

Settings marked *value* may differ between members that are computed together; *structural* ones determine shapes or
counts.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from agilerl_like.algorithms.settings import (
    STRICT,
    Count,
    LogStd,
    NonNegative,
    Positive,
    Schedules,
    Share,
    number_range,
)
from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo import HyperparameterConfig
from agilerl_like.hpo.frozen_mapping import FrozenMapping
from agilerl_like.learning.execution import Precision
from agilerl_like.learning.sequences import BPTTSequenceType
from agilerl_like.networks.distributions import LOG_STD_RANGE
from agilerl_like.networks.observation_norm import OBSERVATION_CLIP, OBSERVATION_EPS, ObservationNormKind

Epochs = Annotated[int, Field(ge=1, le=10_000)]
"""An update's time is proportional to it."""


@dataclass(frozen=True, config=STRICT)
class PPOConfig:
    """PPO's settings; a member's live attributes have the same names."""

    batch_size: Count = 64
    """Samples in one minibatch (structural)."""
    lr: Positive = 1e-4
    """Adam's learning rate (value)."""
    learn_step: Count = 2048
    """Env steps of a member between updates, over all its envs; rounded up to a multiple of num_envs (structural)."""
    gamma: Share = 0.99
    """Discount of the next step's reward (value)."""
    gae_lambda: Share = 0.95
    """Decay of generalised advantage estimation: 0 trusts the critic, 1 the returns (value)."""
    action_std_init: LogStd = 0.0
    """Initial log of the standard deviation of continuous actions, in half-widths of the action space; if evolution
    changes it, the child's learned one changes by as much (value)."""
    action_std_min: LogStd = LOG_STD_RANGE[0]
    """Smallest log of the standard deviation of continuous actions; it is clamped after each update (value)."""
    action_std_max: LogStd = LOG_STD_RANGE[1]
    """Largest log of the standard deviation of continuous actions (value)."""
    action_noise_correlation: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Correlation of the exploration noise of neighbouring steps, for continuous actions in training: at 0.9 noise
    lasts about ten steps, which moves systems with inertia. The update treats actions as independent (value)."""
    clip_coef: Positive = 0.2
    """Clip range of the probability ratio (value)."""
    clip_coef_vf: Positive | None = None
    """Clip range of the value in its normalized units; None: not clipped (value)."""
    ent_coef: NonNegative = 0.01
    """Weight of the entropy bonus (value)."""
    vf_coef: NonNegative = 0.5
    """Weight of the value loss, which is half the squared error (value)."""
    max_grad_norm: Positive = 0.5
    """Largest gradient norm, of actor and critic separately (value)."""
    target_kl: Positive | None = None
    """Mean KL after an epoch beyond which the remaining epochs are skipped; None: never (value)."""
    update_epochs: Epochs = 4
    """Passes over a rollout (structural)."""
    share_encoders: bool = False
    """Let the critic use the actor's encoder."""
    normalize_observation: ObservationNormKind = True
    """Normalise vector observations: true or running: centre and scale them by running statistics, frozen in
    evaluation; bounds: map the bounds of their space to [-1, 1]; false: not at all."""
    observation_clip: Positive = OBSERVATION_CLIP
    """Limit of normalised observations, in standard deviations (running) or half-widths of the space (bounds)."""
    observation_eps: Positive = OBSERVATION_EPS
    """Summand of the running variance of observations."""
    normalize_value: bool = True
    """Learn values in units of their running standard deviation and mean, so the scale of rewards does not matter."""
    normalize_images: bool = True
    """Scale images from their bounds, mostly 0..255, to 0..1; they are stored as bytes."""
    swap_channels: bool | None = None
    """Whether the env's images have their channels last, [H, W, C]; None: inferred from their shapes, True for a small
    last axis. Networks read channels first."""
    recurrent: bool = False
    """Put a recurrent network behind the encoder, for partially observable environments."""
    max_seq_len: Count | None = None
    """Steps of truncated backpropagation through time; None: the whole rollout, within episodes."""
    bptt_sequence_type: BPTTSequenceType = BPTTSequenceType.CHUNKED
    """How a rollout is split into sequences."""
    squash_output: bool = False
    """Send continuous actions through tanh instead of clipping them at the border."""
    compile: bool = False
    """Compile forward pass and loss of a minibatch with torch.compile, for every kind of network. 10 to 30 s for every
    new shape, so for long runs of fixed architectures; one for all members."""
    precision: Precision = "float32"
    """Type of the networks' products: float32, or bfloat16 by automatic mixed precision; one for all members."""
    schedules: Schedules = FrozenMapping()
    """Factors on lr, ent_coef, clip_coef or vf_coef that depend on the run's progress: {lr: linear}, {ent_coef: cosine}
    or points [[progress, factor], ...] joined by lines; in Python any function of progress, too. The value itself stays
    the member's own and evolves."""
    per_member: bool = False
    """Compute every member separately, so its bits do not depend on the other members of its process, given equal
    numbers of threads; slower; one for all members."""


class PPOAttributes:
    """The settings of `PPOConfig` that `LearnerHost` does not declare."""

    gamma: float
    gae_lambda: float
    clip_coef: float
    clip_coef_vf: float | None
    ent_coef: float
    vf_coef: float
    max_grad_norm: float
    target_kl: float | None
    update_epochs: int
    bptt_sequence_type: BPTTSequenceType


def check_std_range(settings: dict[str, Any], hp_config: HyperparameterConfig) -> None:
    """Raise ConfigurationError unless the smallest standard deviation can never be above the largest."""
    lowest, highest = number_range(hp_config, "action_std_min"), number_range(hp_config, "action_std_max")
    low = settings["action_std_min"] if lowest is None else lowest.max
    high = settings["action_std_max"] if highest is None else highest.min
    if low > high:
        raise ConfigurationError(f"action_std_min={low} must not be greater than action_std_max={high}")


def check_rollout(
    settings: dict[str, Any], hp_config: HyperparameterConfig, num_envs: int, agents: int = 1, named: str = ""
) -> None:
    """Raise ConfigurationError unless a minibatch is no larger than a rollout, and can stay so.

    There are `agents` in each env; `named` describes them in a message.
    """
    if not isinstance(num_envs, int) or num_envs < 1:
        raise ConfigurationError(f"num_envs={num_envs!r} must be a positive integer")
    learn_step, batch_size = settings["learn_step"], settings["batch_size"]
    steps = math.ceil(learn_step / num_envs)
    most = steps * num_envs * agents
    if batch_size > most:
        raise ConfigurationError(
            f"batch_size={batch_size} is larger than the rollout of learn_step={learn_step} "
            f"({steps} steps of num_envs={num_envs}{named}): allowed are at most {most}"
        )
    sizes, lengths = number_range(hp_config, "batch_size"), number_range(hp_config, "learn_step")
    smallest = batch_size if sizes is None else sizes.min
    longest = learn_step if lengths is None else lengths.max
    if smallest > math.ceil(longest / num_envs) * num_envs * agents:
        raise ConfigurationError(f"batch_size={smallest} never fits into learn_step={longest}{named}")


def fit_batch_to_rollout(
    hyperparameters: dict[str, int | float], hp_config: HyperparameterConfig, num_envs: int, agents: int = 1
) -> dict[str, int | float]:
    """Return hyperparameters whose minibatch is no larger than the rollout of `num_envs` envs of `agents` agents.

    The minibatch shrinks if it may evolve, else the rollout grows; both stay in their ranges, in which `check_rollout`
    has made sure of a solution.
    """
    values = dict(hyperparameters)
    rollout = math.ceil(values["learn_step"] / num_envs) * num_envs * agents
    if values["batch_size"] <= rollout:
        return values
    sizes, lengths = number_range(hp_config, "batch_size"), number_range(hp_config, "learn_step")
    if sizes is not None:
        values["batch_size"] = sizes.at_most(rollout)
    if lengths is not None and values["batch_size"] > rollout:
        # which is rounded up to a whole step of every env
        values["learn_step"] = lengths.at_least(math.ceil(values["batch_size"] / agents))
    return values
