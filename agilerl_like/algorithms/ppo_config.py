"""The definition of PPO's settings: names, defaults, ranges and meanings.

Settings marked *value* may differ between members that are computed together; *structural* ones determine shapes or
counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass

from agilerl_like.algorithms.settings import (
    DEFAULT_PRESET,
    STRICT,
    AtLeastOne,
    Betas,
    Count,
    LogStd,
    LRSchedule,
    NonNegative,
    Positive,
    PresetName,
    RewardTransform,
    Schedules,
    Share,
    Steps,
    number_range,
)
from agilerl_like.envs.critic_observation import POLICY
from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo import Choice, HyperparameterConfig, Parameter
from agilerl_like.hpo.frozen_mapping import FrozenMapping
from agilerl_like.hpo.schedules import ADAPTIVE, LR_SCHEDULE
from agilerl_like.learning.execution import Precision
from agilerl_like.learning.optimizer import EPSILON, OptimizerName
from agilerl_like.learning.sequences import BPTTSequenceType
from agilerl_like.networks.distributions import LOG_STD_RANGE
from agilerl_like.networks.observation_norm import OBSERVATION_CLIP, OBSERVATION_EPS, ObservationNormKind

NormalizeAdvantage = Annotated[
    Literal["rollout", "minibatch", "none"], BeforeValidator(lambda value: "none" if value is None else value)
]
"""YAML reads an unquoted none as None."""
Epochs = Annotated[int, Field(ge=1, le=10_000)]
"""An update's time is proportional to it."""


@dataclass(frozen=True, config=STRICT)
class PPOConfig:
    """PPO's settings; a member's live attributes have the same names."""

    batch_size: Count = 64
    """Samples in one minibatch. An epoch has samples of the rollout / batch_size minibatches, rounded, at least one;
    all samples are in one, so sizes are nearly equal and may differ from batch_size (structural)."""
    lr: Positive = 1e-4
    """The optimizer's learning rate (value)."""
    learn_step: Count = 2048
    """Env steps of a member between updates, over all its envs; rounded up to a multiple of num_envs (structural)."""
    gamma: Share = 0.99
    """Discount of the next step's reward (value)."""
    gae_lambda: Share = 0.95
    """Decay of generalised advantage estimation: 0 trusts the critic, 1 the returns (value)."""
    action_std_init: LogStd = 0.0
    """Initial log of the standard deviation of continuous actions, in half-widths of the action space; if evolution
    changes it, the child's learned one changes by as much, and it cannot be set as an attribute (value)."""
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
    max_grad_norm: NonNegative | None = 0.5
    """Largest gradient norm; 0 or None: not clipped (value)."""
    clip_grads: Literal["apart", "together"] = "apart"
    """Whether the gradient norms of actor and critic are clipped separately, or one norm over both, as in SB3, CleanRL
    and skrl; one for all members."""
    target_kl: Positive | None = None
    """Mean KL beyond which the remaining steps of `kl_stop` are skipped; None: never (value)."""
    kl_stop: Literal["epoch", "minibatch", "update"] = "epoch"
    """When target_kl counts. epoch: after an epoch, which ends the update; minibatch: before a step, which ends the
    epoch (skrl); update: before a step and at 1.5 x target_kl, which ends the update (SB3); one for all members."""
    value_clip_mode: Literal["max", "clipped"] = "max"
    """Loss of a clipped value: the larger of the errors with and without the clip (CleanRL), or the error of the
    clipped value alone (SB3, skrl); one for all members."""
    normalize_advantage: NormalizeAdvantage = "rollout"
    """Centre and scale advantages over the rollout, over each minibatch (SB3, CleanRL), or not at all; one for all
    members."""
    advantage_ddof: Literal[0, 1] = 0
    """Delta degrees of freedom of the standard deviation of advantages; 1 as in `torch.std`, and so in SB3, CleanRL and
    skrl; one for all members."""
    advantage: Literal["gae", "n_step", "mc"] = "gae"
    """Estimate of the return: generalised advantage estimation; n_step: the rewards of `n_step` steps and the value
    after them; mc: the rewards to the end of the episode. All are bootstrapped at the end of the rollout (value)."""
    n_step: Count = 10
    """Steps of advantage: n_step; steps in which an agent waits for others do not count (value)."""
    bootstrap_truncated: bool = True
    """Add the value of the last observation where a time limit ends an episode. False treats it as termination, as in
    AgileRL and skrl: values are wrong then, so this is for comparisons (value)."""
    optimizer: OptimizerName = "adam"
    """Rule of a gradient step, as in torch.optim; one for all members."""
    adam_eps: Positive = EPSILON
    """Epsilon of adam, adamw and rmsprop; skrl, AgileRL and torch have 1e-8 (value)."""
    betas: Betas | None = None
    """Decay of the mean of gradients (in rmsprop and sgd: momentum), and of the mean of their squares; None: those of
    the optimizer, which are (0.9, 0.999), for rmsprop (0, 0.99), for sgd (0, 0) (value)."""
    weight_decay: NonNegative = 0.0
    """Decay of the weights: added to the gradient, or with adamw subtracted from the weights (value)."""
    lr_critic: Positive | None = None
    """Learning rate of the critic; None: lr. Encoders that are shared learn by lr (value)."""
    lr_schedule: LRSchedule = None
    """Schedule of lr and lr_critic: linear, cosine, points [[progress, factor], ...] or a function of progress, as in
    `schedules`; kl: a factor of the member's own that adapts to the KL of each epoch (skrl's KLAdaptiveLR) (value)."""
    lr_end: NonNegative = 0.0
    """Learning rate where the factor of lr_schedule is 0 (value)."""
    kl_threshold: Positive = 0.008
    """KL of an epoch that lr_schedule: kl aims at (value)."""
    kl_factor: AtLeastOne = 2.0
    """The rate is lowered above kl_threshold x kl_factor, and raised below kl_threshold / kl_factor (value)."""
    lr_factor: AtLeastOne = 1.5
    """Factor by which lr_schedule: kl changes the rate (value)."""
    lr_min: Positive = 1e-6
    """Lowest rate of lr_schedule: kl; times the factor of lr of a group (value)."""
    lr_max: Positive = 1e-2
    """Highest rate of lr_schedule: kl; times the factor of lr of a group (value)."""
    num_steps: Count | None = None
    """Steps of each env between updates, in place of learn_step; None: learn_step / num_envs (structural)."""
    num_minibatches: Count | None = None
    """Minibatches of an epoch, in place of batch_size; all samples are in one, so sizes differ by up to one sample.
    With recurrent they hold whole sequences: sizes differ by one, and there are no more than sequences (structural)."""
    random_steps: Steps = 0
    """Env steps of a member at its beginning with uniformly random actions (value)."""
    learning_starts: Steps = 0
    """Env steps of a member before the first rollout that is learned from (value)."""
    normalize_reward: bool = False
    """Divide rewards by the running standard deviation of the discounted return, in training only (SB3's VecNormalize);
    rarely needed with normalize_value."""
    reward_clip: Positive | None = None
    """Limit of the magnitude of rewards in training, after normalize_reward; None: 10 with normalize_reward, else no
    limit (value)."""
    reward_transform: RewardTransform = None
    """Change of rewards in training, before normalize_reward: {scale: 1, shift: 0, clip: null}, which is clip(reward x
    scale + shift), or a function (rewards [T, P, E], steps, max_steps), in YAML as "module:function" (value)."""
    state_dependent_std: bool = False
    """Let the actor's network output the log of the standard deviation of continuous actions, too: it is added to the
    learned one, and clamped to action_std_min and action_std_max."""
    update_epochs: Epochs = 4
    """Passes over a rollout (structural)."""
    share_encoders: bool = False
    """Let the critic use the actor's encoder."""
    critic_observation: str | tuple[str, ...] = POLICY
    """What the critic observes: policy (what the policy observes), a key of Dict observations, or a list of these. The
    policy observes what is not named, and needs nothing else to act; one for all members."""
    normalize_observation: ObservationNormKind = True
    """Normalise vector observations: true or running: centre and scale them by running statistics, frozen in
    evaluation; bounds: map the bounds of their space to [-1, 1]; false: not at all."""
    observation_clip: Positive = OBSERVATION_CLIP
    """Limit of normalised observations, in standard deviations (running) or half-widths of the space (bounds)."""
    observation_eps: Positive = OBSERVATION_EPS
    """Summand of the running variance of observations."""
    normalize_value: bool = True
    """Learn values in units of their running standard deviation and mean, so the scale of rewards does not matter for
    returns with a standard deviation well above 1e-4 (1e-8 is added to the variance)."""
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
    """Compile the gradient of a minibatch with torch.compile, for every kind of network. 5 to 25 s for every new
    shape, so for long runs of fixed architectures; one for all members."""
    precision: Precision = "float32"
    """Type of the networks' products: float32, or bfloat16 by automatic mixed precision; one for all members. On GPUs
    since Ampere torch computes float32 convolutions in TF32, unless `torch.backends.cudnn.allow_tf32` is False."""
    schedules: Schedules = FrozenMapping()
    """Factors on lr, ent_coef, clip_coef or vf_coef that depend on the run's progress: {lr: linear}, {ent_coef: cosine}
    or points [[progress, factor], ...] joined by lines; in Python any function of progress, too. The value itself stays
    the member's own and evolves."""
    per_member: bool = False
    """Compute every member separately, so its bits do not depend on the other members of its process, given equal
    numbers of threads; slower; one for all members."""
    preset: PresetName = DEFAULT_PRESET
    """The system whose defaults the settings have that are not given: sb3, cleanrl, skrl, agilerl, rlib, dti, metabox,
    brax or isaaclab; `agilerl-like presets` prints them. It is a record afterwards: every setting has a value."""


class PPOAttributes:
    """The settings of `PPOConfig` that `LearnerHost` does not declare."""

    gamma: float
    gae_lambda: float
    clip_coef: float
    clip_coef_vf: float | None
    value_clip_mode: Literal["max", "clipped"]
    ent_coef: float
    vf_coef: float
    max_grad_norm: float | None
    clip_grads: Literal["apart", "together"]
    target_kl: float | None
    kl_stop: Literal["epoch", "minibatch", "update"]
    normalize_advantage: Literal["rollout", "minibatch", "none"]
    advantage_ddof: Literal[0, 1]
    advantage: Literal["gae", "n_step", "mc"]
    n_step: int
    bootstrap_truncated: bool
    adam_eps: float
    betas: tuple[float, float] | None
    weight_decay: float
    lr_critic: float | None
    lr_end: float
    kl_threshold: float
    kl_factor: float
    lr_factor: float
    lr_min: float
    lr_max: float
    update_epochs: int
    bptt_sequence_type: BPTTSequenceType


NEEDED = (
    (("lr_min", "lr_max", "kl_threshold", "kl_factor", "lr_factor"), "lr_schedule", "'kl'", lambda x: x == ADAPTIVE),
    (("lr_end",), "lr_schedule", "one that depends on progress", lambda x: x not in (None, ADAPTIVE)),
    (("n_step",), "advantage", "'n_step'", lambda x: x == "n_step"),
    (("gae_lambda",), "advantage", "'gae'", lambda x: x == "gae"),
    (("value_clip_mode",), "clip_coef_vf", "a number", lambda x: x is not None),
    (("kl_stop",), "target_kl", "a number", lambda x: x is not None),
    (("clip_grads",), "max_grad_norm", "a number above 0", bool),
    (("advantage_ddof",), "normalize_advantage", "'rollout' or 'minibatch'", lambda x: x != "none"),
    (("adam_eps",), "optimizer", "'adam', 'adamw' or 'rmsprop'", lambda x: x != "sgd"),
    (("learn_step",), "num_steps", "None", lambda x: x is None),
    (("batch_size",), "num_minibatches", "None", lambda x: x is None),
    (("max_seq_len", "bptt_sequence_type"), "recurrent", "True", bool),
    (("observation_clip",), "normalize_observation", "True or 'bounds'", bool),
    (("observation_eps",), "normalize_observation", "True", lambda x: x in (True, "running")),
)
"""Settings that have an effect only for some values of another one: their names, the other's name, those values."""


class WithoutEffect(NamedTuple):
    """A setting that has no effect because of another one."""

    name: str
    other: str
    needed: str
    """Values of the other one with which it has an effect."""


def settings_without_effect(
    settings: Mapping[str, Any], hp_config: Mapping[str, Parameter] = FrozenMapping()
) -> Iterator[WithoutEffect]:
    """Yield the settings that have no effect with the others, whichever of its values a choice has."""
    for names, other, needed, is_allowed in NEEDED:
        if other not in settings:  # of another algorithm
            continue
        choice = hp_config.get(other)
        if not any(map(is_allowed, choice.values if isinstance(choice, Choice) else [settings[other]])):
            yield from (WithoutEffect(name, other, needed) for name in names if name in settings)


def check_combinations(config: type[Any], settings: dict[str, Any], hp_config: HyperparameterConfig) -> None:
    """Raise ConfigurationError if a setting that has no effect with the others is given or evolves.

    `config` has the defaults.
    """
    for name, other, needed in settings_without_effect(settings, hp_config):
        evolves = name in hp_config
        if evolves or settings[name] != getattr(config, name):
            what = f"hp_config.{name}" if evolves else f"{name}={settings[name]!r}"
            raise ConfigurationError(
                f"{what}: has no meaning with {other}={settings[other]!r}; needed is {other}={needed}"
            )


def check_lr_schedule(settings: dict[str, Any], hp_config: HyperparameterConfig) -> None:
    """Raise ConfigurationError if lr has two schedules, or one that adapts it beyond its limits."""
    choice = hp_config.get(LR_SCHEDULE)
    schedules = choice.values if isinstance(choice, Choice) else (settings[LR_SCHEDULE],)
    own = [schedule for schedule in schedules if schedule is not None]
    if own and "lr" in settings["schedules"]:
        raise ConfigurationError(
            f"lr_schedule={own[0]!r} and schedules.lr={settings['schedules']['lr']!r} are two names of one schedule; "
            "give one of them"
        )
    if ADAPTIVE in own:
        _check_adaptive_range(settings, hp_config)


def _check_adaptive_range(settings: dict[str, Any], hp_config: HyperparameterConfig) -> None:
    lows, highs, rates = (number_range(hp_config, name) for name in ("lr_min", "lr_max", "lr"))
    low = settings["lr_min"] if lows is None else lows.max
    high = settings["lr_max"] if highs is None else highs.min
    if low > high:
        raise ConfigurationError(f"lr_min={low} must not be greater than lr_max={high}")
    lowest, highest = (settings["lr"],) * 2 if rates is None else (rates.min, rates.max)
    if lowest < low or highest > high:
        raise ConfigurationError(
            f"{'lr' if rates is None else 'hp_config.lr'}={lowest if lowest < low else highest}: is outside of "
            f"lr_min={low} and lr_max={high}, between which lr_schedule='kl' keeps it"
        )


def check_std_range(settings: dict[str, Any], hp_config: HyperparameterConfig) -> None:
    """Raise ConfigurationError if the bounds of the standard deviation may contradict each other as they evolve."""
    lowest, highest = number_range(hp_config, "action_std_min"), number_range(hp_config, "action_std_max")
    low = settings["action_std_min"] if lowest is None else lowest.max
    high = settings["action_std_max"] if highest is None else highest.min
    if low > high:
        raise ConfigurationError(f"action_std_min={low} must not be greater than action_std_max={high}")


def longest_rollout(settings: Mapping[str, Any], hp_config: Mapping[str, Parameter], num_envs: int) -> int:
    """Return the env steps of the longest rollout with these settings as they evolve."""
    lengths = {name: number_range(hp_config, name) for name in ("learn_step", "num_steps")}
    longest = {name: its.max for name, its in lengths.items() if its is not None}
    return rollout_steps({**settings, **longest}, num_envs) * num_envs


def unused_batch_sizes(
    settings: Mapping[str, Any], hp_config: Mapping[str, Parameter], num_envs: int, agents: int = 1
) -> str:
    """Return what remains of a range of `batch_size` that no rollout of so many agents can hold whole, else ""."""
    sizes = number_range(hp_config, "batch_size")
    most = longest_rollout(settings, hp_config, num_envs) * agents
    if sizes is None or sizes.max <= most:
        return ""
    return (
        f"hp_config.batch_size is {sizes.min} to {sizes.max}, and the longest rollout has {most} samples: larger "
        f"values are lowered to what fits, so {sizes.min} to {sizes.at_most(most)} remain"
    )


def check_rollout(
    settings: dict[str, Any], hp_config: Mapping[str, Parameter], num_envs: int, agents: int = 1, named: str = ""
) -> None:
    """Raise ConfigurationError unless a minibatch fits into a rollout, or can be made to fit as both evolve.

    There are `agents` in each env; `named` describes them in messages.
    """
    if not isinstance(num_envs, int) or num_envs < 1:
        raise ConfigurationError(f"num_envs={num_envs!r} must be a positive integer")
    sizes = number_range(hp_config, "batch_size")
    smallest = settings["batch_size"] if sizes is None else sizes.min
    for name in ("num_steps", "num_minibatches"):
        choice = hp_config.get(name)
        if isinstance(choice, Choice) and not choice.is_numeric:  # with None, for which other settings count
            rest = {other: parameter for other, parameter in hp_config.items() if other != name}
            for value in choice.values:
                changed = {} if value == settings[name] else {name: value, "batch_size": smallest}
                check_rollout(settings | changed, rest, num_envs, agents, named)
            return
    name = "learn_step" if settings["num_steps"] is None else "num_steps"
    length, batch_size = settings[name], settings["batch_size"]
    most = rollout_steps(settings, num_envs) * num_envs * agents
    rollout = f"the rollout of {name}={length} ({most // num_envs // agents} steps of num_envs={num_envs}{named})"
    lengths = number_range(hp_config, name)
    longest, shortest = ({}, {}) if lengths is None else ({name: lengths.max}, {name: lengths.min})
    count = settings["num_minibatches"]
    if count is not None:
        counts = number_range(hp_config, "num_minibatches")
        fewest = count if counts is None else counts.min
        if count > most or fewest > rollout_steps(settings | shortest, num_envs) * num_envs * agents:
            raise ConfigurationError(
                f"num_minibatches={count} is more than the samples of {rollout}, or of a shorter one that may evolve"
            )
        return
    if batch_size > most:
        raise ConfigurationError(f"batch_size={batch_size} is larger than {rollout}: allowed are at most {most}")
    if smallest > rollout_steps(settings | longest, num_envs) * num_envs * agents:
        raise ConfigurationError(f"batch_size={smallest} never fits into {name}={longest.get(name, length)}{named}")


def rollout_steps(settings: Mapping[str, Any], num_envs: int) -> int:
    """Return the steps of each env in a rollout."""
    steps = settings.get("num_steps")
    return math.ceil(settings["learn_step"] / num_envs) if steps is None else steps


def fit_batch_to_rollout(
    hyperparameters: dict[str, int | float], hp_config: HyperparameterConfig, num_envs: int, agents: int = 1
) -> dict[str, int | float]:
    """Return hyperparameters whose minibatches fit into the rollout of `num_envs` envs of `agents` agents.

    The minibatch shrinks if it may evolve, otherwise the rollout grows. Both stay in their ranges, where
    `check_rollout` has ensured that a solution exists.
    """
    values = dict(hyperparameters)
    rollout = rollout_steps(values, num_envs) * num_envs * agents
    if values.get("num_minibatches") is not None:
        counts = number_range(hp_config, "num_minibatches")
        if counts is not None and values["num_minibatches"] > rollout:
            values["num_minibatches"] = counts.at_most(rollout)
        return values
    if values["batch_size"] <= rollout:
        return values
    name = "learn_step" if values.get("num_steps") is None else "num_steps"
    sizes, lengths = number_range(hp_config, "batch_size"), number_range(hp_config, name)
    if sizes is not None:
        values["batch_size"] = sizes.at_most(rollout)
    if lengths is not None and values["batch_size"] > rollout:
        # learn_step is rounded up to a whole step of every env
        values[name] = lengths.at_least(
            math.ceil(values["batch_size"] / agents / (num_envs if name == "num_steps" else 1))
        )
    return values
