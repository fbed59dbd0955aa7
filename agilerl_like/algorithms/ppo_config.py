"""The definition of PPO's settings: names, defaults, ranges and meanings.

Python, YAML files, the command line and the documentation all read it. Settings marked *value* may differ between
members that are computed together; *structural* ones determine shapes or counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, PlainSerializer, PlainValidator, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from agilerl_like.errors import ConfigurationError, unknown_name
from agilerl_like.hpo import HyperparameterConfig
from agilerl_like.hpo.frozen_mapping import FrozenMapping
from agilerl_like.hpo.schedules import Schedule, check_schedules, schedules_to_json
from agilerl_like.learning.execution import Precision
from agilerl_like.learning.sequences import BPTTSequenceType
from agilerl_like.networks.distributions import LOG_STD_RANGE

LARGEST = 1e38
"""Upper bound of float settings: the largest float32 is 3.4e38."""
Positive = Annotated[float, Field(gt=0, le=LARGEST, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
NonNegative = Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False)]
LogStd = Annotated[float, Field(ge=LOG_STD_RANGE[0], le=LOG_STD_RANGE[1])]
Epochs = Annotated[int, Field(ge=1, le=10_000)]
"""An update's time is proportional to it."""
Count = Annotated[int, Field(ge=1, le=2**40)]
"""Bounded by the bytes of a large machine's memory."""

Schedules = Annotated[
    Mapping[str, Schedule], PlainValidator(check_schedules), PlainSerializer(schedules_to_json, when_used="json")
]

SettingsT = TypeVar("SettingsT")


@dataclass(frozen=True, config=ConfigDict(extra="forbid", use_attribute_docstrings=True))
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
    normalize_observation: bool = True
    """Centre and scale vector observations by running statistics, frozen in evaluation."""
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


SETTINGS = tuple(PPOConfig.__dataclass_fields__)
"""The names of all settings."""

NUMERIC = tuple(
    name
    for name in SETTINGS
    if not isinstance(getattr(PPOConfig, name), bool | str)
    and name not in ("max_seq_len", "swap_channels", "schedules")
)
"""Settings that may evolve."""

COMMON = (
    "normalize_images",
    "swap_channels",
    "squash_output",
    "compile",
    "precision",
    "per_member",
)
"""Settings that are equal for all members of a population: they do not evolve, because one computation serves all."""


class PPOAttributes:
    """The settings of `PPOConfig` as attributes of an algorithm; a value that is set counts from the next update."""

    batch_size: int
    lr: float
    learn_step: int
    gamma: float
    gae_lambda: float
    action_std_init: float
    action_std_min: float
    action_std_max: float
    action_noise_correlation: float
    clip_coef: float
    clip_coef_vf: float | None
    ent_coef: float
    vf_coef: float
    max_grad_norm: float
    target_kl: float | None
    update_epochs: int
    share_encoders: bool
    normalize_observation: bool
    normalize_value: bool
    normalize_images: bool
    swap_channels: bool | None
    recurrent: bool
    max_seq_len: int | None
    bptt_sequence_type: BPTTSequenceType
    squash_output: bool
    compile: bool
    precision: Precision
    schedules: Mapping[str, Schedule]
    per_member: bool


@cache
def _adapter(model: type[SettingsT]) -> TypeAdapter[SettingsT]:
    return TypeAdapter(model)


def validated(model: type[SettingsT], settings: dict[str, Any], *, named: str = "") -> SettingsT:
    """Build a settings object; `named` replaces the field's name in messages.

    Raises:
        ConfigurationError: one message with every wrong field: its name, its value, and what is allowed.
    """
    try:
        return _adapter(model).validate_python(settings)
    except ValidationError as error:
        raise configuration_error(error, known=tuple(getattr(model, "__dataclass_fields__", ())), named=named) from None


def configuration_error(error: ValidationError, *, known: tuple[str, ...] = (), named: str = "") -> ConfigurationError:
    """Return pydantic's findings as one error of this package."""
    problems = []
    for found in error.errors(include_url=False):
        field = named or ".".join(str(part) for part in found["loc"] if not str(part).startswith("function-"))
        own = found.get("ctx", {}).get("error")
        if isinstance(own, ConfigurationError):
            problems.append(str(own))
        elif found["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
            problems.append(str(unknown_name("setting", found["loc"][-1], known or ("(see --help)",))))
        else:
            problems.append(f"{field}={found['input']!r}: {found['msg'][0].lower()}{found['msg'][1:]}")
    return ConfigurationError("; ".join(problems))


def check_ranges(settings: dict[str, Any], hp_config: HyperparameterConfig) -> None:
    """Raise ConfigurationError unless the ranges are those of settings that may evolve, and their bounds are legal."""
    for name in hp_config:
        if name not in NUMERIC:
            raise ConfigurationError(
                f"hp_config {name!r} is not a number of PPO that can evolve; allowed are {', '.join(NUMERIC)}"
            )
        for bound in ("min", "max"):
            changed = {**settings, name: getattr(hp_config[name], bound)}
            validated(PPOConfig, changed, named=f"hp_config.{name}.{bound}")
    hp_config.check({name: settings[name] for name in hp_config})
    low = hp_config["action_std_min"].max if "action_std_min" in hp_config else settings["action_std_min"]
    high = hp_config["action_std_max"].min if "action_std_max" in hp_config else settings["action_std_max"]
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
    smallest = hp_config["batch_size"].min if "batch_size" in hp_config else batch_size
    longest = hp_config["learn_step"].max if "learn_step" in hp_config else learn_step
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
    sizes, lengths = hp_config.get("batch_size"), hp_config.get("learn_step")
    if sizes is not None:
        largest = 2 ** (rollout.bit_length() - 1) if sizes.scale == "power_of_two" else rollout
        values["batch_size"] = sizes.clip(largest)
    if lengths is not None and values["batch_size"] > rollout:
        needed = math.ceil(values["batch_size"] / agents)
        if lengths.scale == "power_of_two":
            needed = 2 ** (needed - 1).bit_length()
        values["learn_step"] = lengths.clip(needed)  # which is rounded up to a whole step of every env
    return values


def with_int_dtype(hp_config: HyperparameterConfig | None) -> HyperparameterConfig:
    """Return the ranges with dtype int for settings that are integers, whatever dtype they were given."""
    ranges = dict(hp_config or {})
    counts = [name for name in ranges if name in NUMERIC and isinstance(getattr(PPOConfig, name), int)]
    return HyperparameterConfig(**{**ranges, **{name: replace(ranges[name], dtype=int) for name in counts}})
