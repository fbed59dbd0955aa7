"""Types and validation of algorithms' settings, and the rules for which of them may evolve.

An algorithm's settings are a frozen pydantic dataclass (`STRICT`) with a default for each. Python, YAML files, the
command line and the documentation all read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from enum import Enum
from functools import cache
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from pydantic import AfterValidator, ConfigDict, Field, PlainSerializer, PlainValidator, TypeAdapter, ValidationError

from agilerl_like.errors import ConfigurationError, foreign_setting, unknown_name
from agilerl_like.foreign_settings import SYSTEMS
from agilerl_like.hpo import Choice, HyperparameterConfig, NumberArray, Parameter, RLParameter
from agilerl_like.hpo.schedules import (
    Schedule,
    check_lr_schedule,
    check_schedule_of_lr,
    check_schedules,
    schedule_to_json,
    schedules_to_json,
)
from agilerl_like.learning.rewards import RewardFunction, check_reward_transform, reward_transform_to_json
from agilerl_like.modules.cnn import CNNSpec
from agilerl_like.modules.mlp import MLPSpec
from agilerl_like.modules.recurrent import LSTMSpec
from agilerl_like.modules.resnet import ResNetSpec
from agilerl_like.modules.simba import SimBaSpec
from agilerl_like.networks.architecture import NET_CONFIG_KEYS, NetworkSpec
from agilerl_like.networks.distributions import LOG_STD_RANGE
from agilerl_like.registry import registered

STRICT = ConfigDict(extra="forbid", use_attribute_docstrings=True)
"""The `config` of the dataclasses."""
LARGEST = 1e38
"""Upper bound of float settings: the largest float32 is 3.4e38."""
Positive = Annotated[float, Field(gt=0, le=LARGEST, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
NonNegative = Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False)]
LogStd = Annotated[float, Field(ge=LOG_STD_RANGE[0], le=LOG_STD_RANGE[1])]
Count = Annotated[int, Field(ge=1, le=2**40)]
"""Bounded by the bytes of a large machine's memory."""
Steps = Annotated[int, Field(ge=0, le=2**40)]
AtLeastOne = Annotated[float, Field(ge=1, le=LARGEST, allow_inf_nan=False)]
Betas = tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]]

Schedules = Annotated[
    Mapping[str, Schedule], PlainValidator(check_schedules), PlainSerializer(schedules_to_json, when_used="json")
]

ScheduleOfLR = Annotated[
    Mapping[str, Schedule], PlainValidator(check_schedule_of_lr), PlainSerializer(schedules_to_json, when_used="json")
]
"""Of algorithms that schedule lr alone."""

LRSchedule = Annotated[
    Schedule | None, PlainValidator(check_lr_schedule), PlainSerializer(schedule_to_json, when_used="json")
]
RewardTransform = Annotated[
    Mapping[str, float | None] | RewardFunction | str | None,
    PlainValidator(check_reward_transform),
    PlainSerializer(reward_transform_to_json, when_used="json"),
]
NO_FLAG = "input should be a number, not a flag"
"""What an error states of a flag that pydantic accepts as a number."""
DEFAULT_PRESET = "agilerl_like"
"""The preset of this package's own defaults."""


def check_preset(name: Any) -> str:
    """Return the name of a preset.

    Raises:
        ConfigurationError: there is none of that name; near ones are named.
    """
    known = (DEFAULT_PRESET, *SYSTEMS)
    if not isinstance(name, str) or name not in known:
        raise unknown_name("preset", name, known)
    return name


PresetName = Annotated[str, AfterValidator(check_preset)]

SettingsT = TypeVar("SettingsT")

COMMON = (
    "normalize_images",
    "swap_channels",
    "squash_output",
    "compile",
    "precision",
    "per_member",
    "critic_observation",
    "memory",
    "memory_size",
    "save_memory",
    "dueling",
    "clip_grads",
    "kl_stop",
    "value_clip_mode",
    "normalize_advantage",
    "advantage_ddof",
    "optimizer",
    "twin_q",
)
"""Settings that are equal for all members of a population: they do not evolve, because one computation serves all."""
NOT_EVOLVABLE = (
    "max_seq_len",
    "swap_channels",
    "schedules",
    "preset",
    "observation_clip",
    "observation_eps",
    "gradient_steps",
    "memory_size",
    "advantage_ddof",
    "betas",
    "lr_schedule",
    "reward_transform",
    "initial_value",
)
"""Settings that are neither flags nor strings and still cannot have a range."""
OF_NETWORKS = (
    "share_encoders",
    "recurrent",
    "normalize_observation",
    "normalize_value",
    "observation_clip",
    "observation_eps",
    "state_dependent_std",
)
"""Settings that networks are built from: a clone, which inherits its parent's weights, cannot have another value."""
SIZES = {
    each.name for spec in (NetworkSpec, MLPSpec, CNNSpec, ResNetSpec, SimBaSpec, LSTMSpec) for each in fields(spec)
}
"""Parts of networks that mutations of the architecture change, and their limits."""
OF_ENCODERS = ("normalize_images", "swap_channels", "critic_observation")
"""Settings that the encoder of observations is built from."""
FIXED = (*OF_NETWORKS, *OF_ENCODERS, "squash_output", "dueling", "twin_q")
"""Settings that cannot be set after an agent was made: its networks would not have the saved shape, inputs or outputs.
"""
ALWAYS_STORED = {
    *("batch_size", "lr", "learn_step", "gamma", "gae_lambda", "clip_coef", "clip_coef_vf", "ent_coef", "vf_coef"),
    *("action_std_init", "action_std_min", "action_std_max", "action_noise_correlation", "squash_output"),
    *("max_grad_norm", "target_kl", "update_epochs", "share_encoders", "normalize_observation", "normalize_value"),
    *("normalize_images", "swap_channels", "recurrent", "max_seq_len", "bptt_sequence_type"),
    *("compile", "precision", "per_member"),
}
"""Settings that every document of an agent has. The others are left out where they have their default, so that earlier
versions can read the document."""


def settings_to_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with schedules and functions as plain data, and without `schedules` if there are none."""
    plain = dict(settings)
    for name, convert in (("lr_schedule", schedule_to_json), ("reward_transform", reward_transform_to_json)):
        if name in plain:
            plain[name] = convert(plain[name])
    schedules = schedules_to_json(check_schedules(plain.pop("schedules", None)))
    return {**plain, "schedules": schedules} if schedules else plain


def stored_settings(config: type[Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an agent's document, as JSON data."""
    return {
        name: value
        for name, value in settings_to_json(settings).items()
        if name in ALWAYS_STORED or settings[name] != getattr(config, name)
    }


@cache
def setting_names(config: type[Any]) -> tuple[str, ...]:
    """Return the names of all settings."""
    return tuple(config.__dataclass_fields__)


@cache
def evolvable_settings(config: type[Any]) -> tuple[str, ...]:
    """Return the names of the settings that may evolve."""
    names = config.__dataclass_fields__
    return tuple(n for n in names if not isinstance(getattr(config, n), bool | str) and n not in NOT_EVOLVABLE)


@cache
def choosable_settings(config: type[Any]) -> tuple[str, ...]:
    """Return the names of the settings that may be a `Choice`, because members may differ in them."""
    of_all = {*COMMON, *OF_NETWORKS, *NOT_EVOLVABLE} - {"max_seq_len", "betas", "lr_schedule"}
    return tuple(name for name in config.__dataclass_fields__ if name not in of_all)


@cache
def _adapter(model: type[SettingsT]) -> TypeAdapter[SettingsT]:
    return TypeAdapter(model)


def validated(model: type[SettingsT], settings: dict[str, Any], *, named: str = "") -> SettingsT:
    """Build a settings object; `named` replaces the field's name in messages.

    Raises:
        ConfigurationError: one message with every wrong field: its name, its value, and what is allowed.
    """
    try:
        found: Any = _adapter(model).validate_python(settings)
    except ValidationError as error:
        raise configuration_error(error, known=tuple(getattr(model, "__dataclass_fields__", ())), named=named) from None
    flags = [f"{named or '.'.join(path)}={flag!r}: {NO_FLAG}" for path, flag in flags_as_numbers(settings, vars(found))]
    if flags:
        raise ConfigurationError("; ".join(flags))
    return found


def flags_as_numbers(given: Any, stored: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yield the flags that pydantic stored as numbers, because True == 1, and the keys that lead to them."""
    if isinstance(given, bool) and type(stored) in (int, float):
        yield path, given
    elif isinstance(given, Mapping) and isinstance(stored, Mapping):
        for name in (name for name in given if name in stored):
            yield from flags_as_numbers(given[name], stored[name], (*path, str(name)))
    elif isinstance(given, list | tuple) and isinstance(stored, list | tuple):
        for place, (one, result) in enumerate(zip(given, stored, strict=False)):
            yield from flags_as_numbers(one, result, (*path, str(place)))


def check_values(config: type[Any], values: Mapping[str, Any]) -> None:
    """Raise ConfigurationError unless each value is legal for its setting, whatever the other settings are."""
    try:
        _adapter(config).validate_python(dict(values))
    except ValidationError as error:
        if any(found["loc"] for found in error.errors(include_url=False)):  # else it is of settings together
            raise configuration_error(error) from None


def configuration_error(error: ValidationError, *, known: tuple[str, ...] = (), named: str = "") -> ConfigurationError:
    """Return pydantic's findings as one error of this package."""
    problems = []
    for found in error.errors(include_url=False):
        field = named or ".".join(str(part) for part in found["loc"] if not str(part).startswith("function-"))
        own = found.get("ctx", {}).get("error")
        if isinstance(own, ConfigurationError):
            problems.append(str(own))
        elif found["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
            problems.append(str(unknown_setting("setting", str(found["loc"][-1]), known or ("(see --help)",))))
        else:
            problems.append(f"{field}={found['input']!r}: {found['msg'][0].lower()}{found['msg'][1:]}")
    return ConfigurationError("; ".join(problems))


def unknown_setting(field: str, name: str, allowed: Iterable[str]) -> ConfigurationError:
    """Build the error for a setting that is not in `allowed`; it names `net_config`, or the algorithms that have it."""
    allowed = tuple(allowed)
    if name in NET_CONFIG_KEYS and "net_config" in allowed:
        here = f"net_config={{{name!r}: …}}"
        return ConfigurationError(f"{field}={name!r} is unknown; it is a key of net_config: {here}")
    foreign = foreign_setting(name, allowed)
    own = name if foreign is None else foreign.name
    owners = [
        algorithm
        for algorithm, kind in registered("algorithm").items()
        if own in getattr(getattr(kind, "config", None), "__dataclass_fields__", ())
    ]
    if own in allowed or not owners:
        return unknown_name(field, name, allowed)
    called = "" if own == name else f"{own!r}, "
    return ConfigurationError(f"{field}={name!r} is unknown here; it is {called}a setting of {', '.join(owners)}")


def check_is_config(hp_config: Any) -> None:
    """Raise ConfigurationError unless ranges that were set by hand are a `HyperparameterConfig`."""
    if not isinstance(hp_config, HyperparameterConfig):
        raise ConfigurationError(f"hp_config={hp_config!r:.100}; allowed is a HyperparameterConfig")


def check_ranges(
    config: type[Any], settings: Mapping[str, Any], hp_config: HyperparameterConfig, algorithm: str
) -> None:
    """Raise ConfigurationError unless all ranges are of settings that may evolve, with legal bounds, and hold these."""
    check_bounds(config, settings, hp_config, algorithm)
    hp_config.check({name: settings[name] for name in hp_config})


def check_bounds(
    config: type[Any], settings: Mapping[str, Any], hp_config: Mapping[str, Parameter], algorithm: str
) -> None:
    """Raise ConfigurationError unless all ranges are of settings that may evolve, with legal bounds."""
    for name, parameter in hp_config.items():
        check_can_evolve(config, name, parameter, algorithm)
        for label, value in parameter.legal_values().items():
            validated(config, {**settings, name: value}, named=f"hp_config.{name}.{label}")


def check_can_evolve(config: type[Any], name: str, parameter: Parameter, algorithm: str) -> None:
    """Raise ConfigurationError unless evolution can change a setting as a parameter describes."""
    known, choosable, evolvable = config.__dataclass_fields__, choosable_settings(config), evolvable_settings(config)
    allowed = evolvable if isinstance(parameter, RLParameter) else choosable
    if name in SIZES - {*known, "activation"}:
        raise ConfigurationError(
            f"hp_config.{name}: it belongs to the networks, which mutations of the architecture change within the "
            "limits of net_config (min_latent_dim, max_latent_dim; in encoder_config and head_config min_mlp_nodes, "
            f"max_mlp_nodes, min_hidden_layers, max_hidden_layers); allowed are {', '.join(allowed)}"
        )
    if isinstance(parameter, RLParameter) and name not in evolvable:
        raise ConfigurationError(
            f"hp_config {name!r} is not a number of {algorithm} that can evolve; allowed are {', '.join(evolvable)}"
        )
    if isinstance(parameter, RLParameter) or name in choosable:
        return
    reason = f"it is not a setting of {algorithm}"
    if name == "activation":
        reason = (
            "it belongs to the networks, whose weights fit one activation, and cannot be a choice; mutation.activation "
            "blends from one to another"
        )
    elif name in OF_NETWORKS:
        reason = "it belongs to the networks, which a clone inherits, and cannot be a choice"
    elif name in known:
        reason = "it is equal for all members, which are computed together, and cannot be a choice"
    raise ConfigurationError(f"hp_config.{name}: {reason}; allowed are {', '.join(choosable)}")


def number_range(hp_config: Mapping[str, Parameter], name: str) -> RLParameter | Choice | None:
    """Return the range of a number, or the choice among numbers; None if evolution does not change it."""
    parameter = hp_config.get(name)
    return parameter if isinstance(parameter, RLParameter | Choice) and parameter.is_numeric else None


def largest(settings: Mapping[str, Any], hp_config: Mapping[str, Parameter], name: str) -> int:
    """Return the largest value that a count may have as it evolves."""
    range_ = number_range(hp_config, name)
    return settings[name] if range_ is None else int(range_.max)


LIMITS = ("max_grad_norm", "clip_coef_vf", "target_kl", "reward_clip")
"""Limits, which None turns off, and 0 where a setting allows it; the nearest value of a range is the largest."""


def with_types(config: type[Any], hp_config: HyperparameterConfig | None) -> HyperparameterConfig:
    """Return the ranges with dtype int for settings that are integers, and choices with values of the setting's type.

    A value that the setting does not allow is not changed; `check_ranges` reports it.

    Raises:
        ConfigurationError: `hp_config` is no mapping.
    """
    if not isinstance(hp_config or {}, Mapping):
        raise ConfigurationError(f"hp_config={hp_config!r:.100}; allowed are None and a HyperparameterConfig")
    typed = dict(hp_config or {})
    for name, parameter in typed.items():
        if isinstance(parameter, Choice) and name in config.__dataclass_fields__:
            typed[name] = parameter.with_values(_converted(config, name, value) for value in parameter.values)
        elif isinstance(parameter, RLParameter) and name in evolvable_settings(config) and is_whole(config, name):
            typed[name] = replace(parameter, dtype=int)
    return HyperparameterConfig(**typed)


def _converted(config: type[Any], name: str, value: Any) -> Any:
    """Return a value as a setting stores it: an int as a float, for example."""
    try:
        stored = getattr(validated(config, {name: value}), name)
    except ConfigurationError:
        return value
    return stored.value if isinstance(stored, Enum) else stored


@cache
def is_whole(config: type[Any], name: str) -> bool:
    """Return whether a setting is an integer."""
    if getattr(config, name) is not None:
        return isinstance(getattr(config, name), int)
    return int in (get_args(get_type_hints(config)[name]) or (None,))


def start_in(parameter: Parameter, name: str, value: Any) -> Any:
    """Return the value in a range that is nearest to `value`; for None, any. Values of other types are returned."""
    if isinstance(parameter, Choice):
        return value if parameter.matches(value, parameter.values) else parameter.values[0]
    if isinstance(parameter, NumberArray):
        return parameter.sampled_at([0.5] * parameter.size) if value is None else value
    if not value and name in LIMITS:
        return parameter.max
    if value is None:
        return parameter.min
    return parameter.clip(value) if isinstance(value, int | float) else value
