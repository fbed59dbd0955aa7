"""Rules: how one setting of another system is converted to settings here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Given: TypeAlias = Mapping[str, Any]
"""All settings of a configuration by their names in lower case, because some depend on others; and "num_envs"."""
Settings: TypeAlias = dict[str, Any]
"""Values by the paths of settings here: "algorithm.lr", "training.max_steps"."""
Convert: TypeAlias = Callable[[Any, Given], Settings]
Rules: TypeAlias = Mapping[str, "Rule"]
"""Rules by the names of settings in another system, in lower case."""


class NotConvertible(ValueError):
    """A value of another system has no equivalent here; the message has the reason.

    `converted` are the settings of the parts of it that have one.
    """

    def __init__(self, reason: str, converted: Settings | None = None) -> None:
        super().__init__(reason)
        self.converted: Settings = converted or {}


@dataclass(frozen=True)
class Rule:
    """How one setting of another system is converted."""

    setting: str
    """The path of the setting here that corresponds to it; empty if none does."""
    meaning: str
    """How the value is converted, as the end of "which ..."; {} is the name there."""
    convert: Convert


def same(setting: str, meaning: str = "") -> Rule:
    """Return the rule for a setting that has the same value here."""
    return Rule(setting, meaning, lambda value, given: {setting: value})


def changed(setting: str, meaning: str, change: Callable[[Any], Any]) -> Rule:
    """Return the rule for a setting whose value is converted by itself."""
    return Rule(setting, meaning, lambda value, given: {setting: change(value)})


def unused(reason: str) -> Rule:
    """Return the rule for a setting that is left out, because it does not change what is learned."""
    return Rule("", reason, lambda value, given: {})


def refused(reason: str, *harmless: Any) -> Rule:
    """Return the rule for a setting without an equivalent, whose `harmless` values need none."""

    def convert(value: Any, given: Given) -> Settings:
        if value not in (None, *harmless):
            raise NotConvertible(reason)
        return {}

    return Rule("", reason, convert)


def renamed(section: str, **settings: str) -> Rules:
    """Return rules for settings of one section that have the same values here: their names there, and here."""
    return {name: same(f"{section}.{here}") for name, here in settings.items()}


def kept(section: str, names: str) -> Rules:
    """Return rules for settings of one section that have the same names and values here."""
    return renamed(section, **{name: name for name in names.split()})


def each(names: str, rule: Rule) -> Rules:
    """Return one rule for several settings."""
    return dict.fromkeys(names.split(), rule)


# -- values


def number(value: Any) -> float:
    """Return a number; the text of one is accepted, since YAML 1.1 reads 1e-4 as text."""
    if isinstance(value, bool):
        raise NotConvertible("it is not a number")
    try:
        return value if isinstance(value, int | float) else float(value)
    except (TypeError, ValueError):
        raise NotConvertible("it is not a number") from None


def whole(value: Any) -> int:
    """Return a whole number."""
    found = number(value)
    if not math.isfinite(found) or found != int(found):
        raise NotConvertible("it is not a whole number")
    return int(found)


def doubled(value: Any) -> float:
    """Return the weight of half the squared error that is that of the whole one."""
    return 2 * number(value)


def off_at_zero(value: Any) -> Any:
    """Return None for numbers that are not positive, which turn a limit off."""
    return None if value is None or number(value) <= 0 else value


def off_at_infinity(value: Any) -> Any:
    """Return None for infinity."""
    return None if value is None or math.isinf(number(value)) else value


def flag(value: Any) -> bool:
    """Return True or False."""
    if not isinstance(value, bool):
        raise NotConvertible("it is not true or false")
    return value


def class_name(value: Any) -> str | None:
    """Return the name of a class, which may be given as text."""
    return value if value is None or isinstance(value, str) else getattr(value, "__name__", str(value))


# -- rules that several systems have


def nothing(value: Any, given: Given) -> Settings:
    """Convert a setting that is read together with another one."""
    return {}


def rates(value: Any, given: Given) -> Settings:
    """Convert a learning rate, or those of actor and critic."""
    each_rate = list(value) if isinstance(value, list | tuple) else [value]
    if len(each_rate) not in (1, 2):
        raise NotConvertible("allowed are one rate, or that of the actor and that of the critic")
    return {f"algorithm.{name}": rate for name, rate in zip(("lr", "lr_critic"), each_rate, strict=False)}


def annealing(value: Any, given: Given) -> Settings:
    """Convert a flag by which the learning rate falls to 0 in a straight line."""
    return {"algorithm.lr_schedule": "linear" if flag(value) else None}


def clip_also_of_values(flag_name: str = "") -> Convert:
    """Return the conversion of a clip range that also clips the values, unless a flag, true by default, is false."""

    def convert(value: Any, given: Given) -> Settings:
        return {"algorithm.clip_coef": value, "algorithm.clip_coef_vf": value if given.get(flag_name, True) else None}

    return convert


def clips_values(value: Any, given: Given) -> Settings:
    """Convert a flag without which the values are not clipped."""
    return {} if flag(value) else {"algorithm.clip_coef_vf": None}


def of_all_envs(setting: str, *, factor: Callable[[Given], float] = lambda given: 1) -> Convert:
    """Return the conversion of a number of steps of each environment to env steps of a member."""

    def convert(value: Any, given: Given) -> Settings:
        steps = whole(value)
        if steps and not given.get("num_envs"):
            raise NotConvertible("it counts steps of the vector environment, and num_envs is not given")
        return {setting: whole(steps * factor(given) * whole(given["num_envs"])) if steps else 0}

    return convert


def scale_of_reward(value: Any, given: Given) -> Settings:
    """Convert a factor on rewards."""
    return {} if number(value) == 1 else {"algorithm.reward_transform": {"scale": number(value)}}


def entries(path: str, value: Any) -> Settings:
    """Return the leaves of a mapping by their paths."""
    if not isinstance(value, Mapping):
        return {path: value}
    return {inner: leaf for name, one in value.items() for inner, leaf in entries(f"{path}.{name}", one).items()}


WHOLE_SQUARE = "weighs half the squared error: 2 x {}"
NOT_LEARNING = "it concerns the output of the other system alone"
COMPUTED = "the other system computes it"
TOTAL = "counts the env steps of one member"
BETWEEN = "counts the env steps of one member between evaluations"
COPIES = "counts the copies of each member"
VECTOR_STEPS = "counts env steps: {} x num_envs"
FALLS = "is linear for true, and none for false"
CLIPS_BOTH = "comes with clip_coef_vf, of the same value"
NORMALISED = "is in units of the normalised value"
NETWORK = "has encoder_config and head_config"


def _device(value: Any, given: Given) -> Settings:
    return {"run.device": {True: "auto", False: "cpu"}[value] if isinstance(value, bool) else value}


TOTAL_STEPS = changed("training.max_steps", TOTAL, whole)
MINIBATCH_OR_NONE = changed(
    "algorithm.normalize_advantage",
    'is "minibatch" for true and "none" for false',
    lambda value: "minibatch" if flag(value) else "none",
)
ADAM_IN_LOWER_CASE = changed("algorithm.optimizer", "is in lower case", lambda value: str(value).lower())
RUN: Rules = {
    "seed": same("seed"),
    "device": Rule("run.device", "", _device),
    "num_envs": same("environment.num_envs", COPIES),
    "env_id": same("environment.id"),
    "env_kwargs": Rule("environment.kwargs", "", lambda value, given: entries("environment.kwargs", value or {})),
}
"""Names that most systems share."""


# -- networks


def hidden_layers(sizes: Any, critic: Any = None, *, after_encoder: bool = False) -> Settings:
    """Return an architecture with these hidden layers, of the critic with others if they differ.

    The last layer is the head's, and the one before it the latent layer; of fewer than three layers the last one is the
    latent layer, and the head is the output layer alone. With `after_encoder`, for images and memories, all are the
    head's.
    """
    layers = _head if after_encoder else _layers
    found = layers(sizes, "network")
    of_critic = {} if critic is None else layers(critic, "network.critic_config")
    return found if critic is None or [*critic] == [*sizes] else found | of_critic


def _layers(sizes: Any, section: str) -> Settings:
    _check_sizes(sizes)
    if not sizes:
        raise NotConvertible("it has no hidden layers, and a network here has one at least, the latent layer")
    *encoder, latent, head = sizes if len(sizes) > 2 else (*sizes, None)
    found: Settings = {
        f"{section}.encoder_config.hidden_size": encoder,
        f"{section}.latent_dim": latent,
        f"{section}.head_config.hidden_size": [head] if head else [],
    }
    if latent > 128:  # limits of mutations, beyond which their defaults do not reach
        found[f"{section}.max_latent_dim"] = latent
    if latent < 8:
        found[f"{section}.min_latent_dim"] = latent
    parts = {"encoder": encoder, "head": [head] if head else []}
    return found | {name: one for part, widths in parts.items() for name, one in _limits(section, part, widths).items()}


def _head(sizes: Any, section: str) -> Settings:
    _check_sizes(sizes)
    return {f"{section}.head_config.hidden_size": [*sizes]} | _limits(section, "head", sizes)


def _limits(section: str, part: str, widths: Sequence[int]) -> Settings:
    """Return limits of mutations that allow these layers, where the defaults do not."""
    found: Settings = {}
    found |= {f"{section}.{part}_config.max_mlp_nodes": max(widths)} if max(widths, default=0) > 500 else {}
    found |= {f"{section}.{part}_config.min_mlp_nodes": min(widths)} if min(widths, default=16) < 16 else {}
    found |= {f"{section}.{part}_config.max_hidden_layers": len(widths)} if len(widths) > 3 else {}
    return found


def _check_sizes(sizes: Any) -> None:
    if not isinstance(sizes, list | tuple) or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise NotConvertible(f"{sizes!r} is not a list of the sizes of hidden layers")


ACTIVATIONS = {name.lower(): name for name in ("ReLU", "ELU", "GELU", "SiLU", "Tanh", "Sigmoid", "Softplus")}


def activation(value: Any, parts: Sequence[str] = ("encoder", "head")) -> Settings:
    """Return networks whose `parts` have an activation, which is a class or its name."""
    name = str(getattr(value, "__name__", value)).rpartition(".")[2].lower().replace("_", "")
    if name not in ACTIVATIONS:
        raise NotConvertible(f"activation {value!r} has no equivalent; allowed are {', '.join(ACTIVATIONS.values())}")
    return {f"network.{part}_config.activation": ACTIVATIONS[name] for part in parts}
