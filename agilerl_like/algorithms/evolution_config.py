"""The settings of OpenAIES and CMAES."""

from __future__ import annotations

from typing import Literal

from pydantic.dataclasses import dataclass

from agilerl_like.algorithms.settings import STRICT, Betas, Count, NonNegative, Positive, ScheduleOfLR
from agilerl_like.hpo.frozen_mapping import FrozenMapping
from agilerl_like.learning.execution import Precision
from agilerl_like.learning.optimizer import OptimizerName
from agilerl_like.networks.observation_norm import ObservationNormKind

Shaping = Literal["ranks", "standardized"]


@dataclass(frozen=True, config=STRICT)
class EvolutionConfig:
    """What OpenAIES and CMAES have in common; a member's live attributes have the same names."""

    episodes: Count = 1
    """Episodes that every perturbed policy finishes before an update (value)."""
    learn_step: Count | None = None
    """Env steps of a member after which it learns, although some episodes have not ended; such a policy then counts
    with its rewards so far. None: episodes end by themselves (value)."""
    normalize_observation: ObservationNormKind = True
    """Normalise vector observations: true or running: centre and scale them by running statistics, updated with the
    weights; bounds: map the bounds of their space to [-1, 1]; false: not at all."""
    normalize_images: bool = True
    """Scale images from their bounds, mostly 0..255, to 0..1."""
    swap_channels: bool | None = None
    """Whether the env's images have their channels last, [H, W, C]; None: inferred from their shapes, True for a small
    last axis. Networks read channels first."""
    precision: Precision = "float32"
    """Type of the networks' products: float32, or bfloat16 by automatic mixed precision; one for all members."""
    per_member: bool = False
    """Compute every member separately, so its bits do not depend on the other members of its process, given equal
    numbers of threads; slower; one for all members."""


@dataclass(frozen=True, config=STRICT)
class OpenAIESConfig(EvolutionConfig):
    """OpenAIES's settings; a member's live attributes have the same names."""

    sigma: Positive = 0.05
    """Standard deviation of the perturbations of each weight (value)."""
    lr: Positive = 0.02
    """Learning rate of the step along the estimated gradient (value)."""
    weight_decay: NonNegative = 0.0
    """Decay of the weights: added to the gradient, or with adamw subtracted from the weights (value)."""
    optimizer: OptimizerName = "adam"
    """Rule of a gradient step, as in torch.optim; one for all members."""
    betas: Betas | None = None
    """Decay of the mean of gradients (in rmsprop and sgd: momentum), and of the mean of their squares; None: those of
    the optimizer, which are (0.9, 0.999), for rmsprop (0, 0.99), for sgd (0, 0) (value)."""
    shaping: Shaping = "ranks"
    """What a policy's return counts for: its rank among those of the member on the same instance, from -0.5 to 0.5; or
    standardized: its difference from their mean, over their standard deviation."""
    schedules: ScheduleOfLR = FrozenMapping()
    """A factor on lr that depends on the run's progress: {lr: linear}, cosine, or points [[progress, factor], ...]
    joined by lines; in Python any function of progress, too."""


@dataclass(frozen=True, config=STRICT)
class CMAESConfig(EvolutionConfig):
    """CMAES's settings; a member's live attributes have the same names."""

    sigma: Positive = 0.5
    """Standard deviation of the first generation's weights; later ones adapt (value)."""
