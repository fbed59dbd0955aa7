"""Settings of skrl's PPO: its configuration class or dictionary, and the YAML files of its runner."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from agilerl_like.foreign_settings.rules import (
    NETWORK,
    NORMALISED,
    NOT_LEARNING,
    RUN,
    VECTOR_STEPS,
    WHOLE_SQUARE,
    Convert,
    Given,
    NotConvertible,
    Rule,
    Rules,
    Settings,
    activation,
    changed,
    class_name,
    clips_values,
    doubled,
    each,
    flag,
    hidden_layers,
    kept,
    nothing,
    number,
    of_all_envs,
    off_at_zero,
    rates,
    refused,
    renamed,
    same,
    scale_of_reward,
    unused,
)

KL_OPTIONS = {
    "kl_threshold": "kl_threshold",
    "min_lr": "lr_min",
    "max_lr": "lr_max",
    "kl_factor": "kl_factor",
    "lr_factor": "lr_factor",
}
"""Arguments of KLAdaptiveLR, and the settings here."""

PARTS = (
    *("class", "network", "clip_actions", "initial_log_std", "min_log_std", "max_log_std", "clip_log_std"),
    "fixed_log_std",
)
"""Parts of a model that are converted, follow from the spaces, or are among the differences of the preset."""
HARMLESS = {"output": ("ACTIONS", "ONE"), "reduction": ("sum",)}
"""Values of parts of a model that need no conversion."""


def _of_both(value: Any) -> Any:
    """Return what a pair for policy and value has twice, and any other value as it is."""
    pair = [one or None for one in value] if isinstance(value, list | tuple) else [value]
    if any(one != pair[0] for one in pair):
        raise NotConvertible("actor and critic have one schedule here")
    return pair[0]


def _scheduler(value: Any, given: Given) -> Settings:
    name = class_name(_of_both(value))
    if name is None:
        return {}
    if name not in ("KLAdaptiveLR", "KLAdaptiveRL"):
        raise NotConvertible(
            f"{name} counts epochs, of which skrl makes learning_epochs an update; give lr_schedule a factor by the "
            "run's progress: linear, cosine or [[progress, factor], …]"
        )
    options = _of_both(given.get("learning_rate_scheduler_kwargs") or {}) or {}
    for option in options:
        if option not in KL_OPTIONS:
            raise NotConvertible(f"{option} has no equivalent")
    return {"algorithm.lr_schedule": "kl"} | {f"algorithm.{KL_OPTIONS[key]}": one for key, one in options.items()}


def _preprocessor(setting: str) -> Convert:
    def convert(value: Any, given: Given) -> Settings:
        name = class_name(value)
        if name not in (None, "RunningStandardScaler"):
            raise NotConvertible(f"{name} has no equivalent; allowed are RunningStandardScaler and none")
        return {setting: name is not None}

    return convert


def _state_preprocessor(value: Any, given: Given) -> Settings:
    """Convert the preprocessor of observations before skrl 2.0, since then that of the critic's own observations."""
    is_of_critic = "observation_preprocessor" in given
    return {} if is_of_critic else _preprocessor("algorithm.normalize_observation")(value, given)


def _scaler(value: Any, given: Given) -> Settings:
    """Convert the arguments of the scaler of observations; its size and device follow from the agent."""
    if class_name(given.get("observation_preprocessor", given.get("state_preprocessor"))) is None:
        return {}
    options = {name: one for name, one in (value or {}).items() if name not in ("size", "device")}
    found: Settings = {}
    if "clip_threshold" in options:
        found["algorithm.observation_clip"] = options.pop("clip_threshold")
    if "epsilon" in options:  # it is added to the standard deviation there, and to the variance here
        found["algorithm.observation_eps"] = number(options.pop("epsilon")) ** 2
    if options:
        raise NotConvertible(f"{', '.join(options)} has no equivalent", found)
    return found


def _state_scaler(value: Any, given: Given) -> Settings:
    return {} if "observation_preprocessor" in given else _scaler(value, given)


def _value_clip(value: Any, given: Given) -> Settings:
    return {"algorithm.clip_coef_vf": off_at_zero(value) if given.get("clip_predicted_values", True) else None}


AGENTS: Mapping[str, Settings] = {
    "PPO": {},
    "PPO_RNN": {"algorithm.recurrent": True},
    "IPPO": {"algorithm.name": "IPPO"},
    "MAPPO": {"algorithm.name": "IPPO", "algorithm.critic_observation": "state"},
}
"""Settings of skrl's classes of agents."""


def _agent(value: Any, given: Given) -> Settings:
    name = class_name(value) or ""
    if name not in AGENTS:
        raise NotConvertible(f"allowed are {', '.join(AGENTS)}")
    return dict(AGENTS[name])


def _models(value: Any, given: Given) -> Settings:
    """Convert the models of a YAML file, if both networks are lists of linear layers with one activation."""
    parts = [value.get(name) or {} for name in ("policy", "value")] if isinstance(value, Mapping) else [value]
    if not all(isinstance(part, Mapping) for part in parts):
        raise NotConvertible("it is not the section of a YAML file; give `network`")
    policy, critic = parts
    found: Settings = {"algorithm.share_encoders": not value.get("separate", True)}
    found |= _deviation(policy)
    networks = [policy.get("network") or [], critic.get("network") or []]
    if any(len(network) != 1 for network in networks):
        raise NotConvertible("a network has several parts; give `network`")
    kinds = {str(name) for network in networks for name in _names(network[0].get("activations"))}
    if len(kinds) != 1:
        raise NotConvertible("its layers have several activations; give `network`")
    found |= hidden_layers(*(network[0].get("layers") for network in networks)) | activation(kinds.pop())
    if unknown := _without_equivalent(policy=policy, value=critic):
        raise NotConvertible(f"{', '.join(unknown)} has no equivalent", found)
    return found


def _deviation(policy: Given) -> Settings:
    """Convert the standard deviation of a policy; one that is fixed is between equal bounds here."""
    ends = ("min", "max") if flag(policy.get("clip_log_std", True)) else ()
    found = {end: number(policy[f"{end}_log_std"]) for end in ends if f"{end}_log_std" in policy}
    fixed = flag(policy.get("fixed_log_std", False))
    if fixed or "initial_log_std" in policy:
        found["init"] = number(policy.get("initial_log_std", 0.0))
    if fixed:
        clipped = min(max(found["init"], found.get("min", -math.inf)), found.get("max", math.inf))
        found = dict.fromkeys(("init", "min", "max"), clipped)
    return {f"algorithm.action_std_{end}": one for end, one in found.items()}


def _without_equivalent(**models: Given) -> list[str]:
    """Return the parts of models that are not converted and have no harmless value."""
    return [
        f"{name}.{part}={value!r}"
        for name, model in models.items()
        for part, value in model.items()
        if part not in PARTS and value not in HARMLESS.get(part, ())
    ]


def _names(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _experiment(value: Any, given: Given) -> Settings:
    if not isinstance(value, Mapping):
        return {}
    parts = {"dir": value.get("directory"), "name": value.get("experiment_name"), "wandb": value.get("wandb")}
    return {f"run.{name}": one for name, one in parts.items() if one}


SCALER = "is clip_threshold, and observation_eps the square of epsilon"
SKRL: Rules = {
    **RUN,
    "class": Rule("algorithm.name", "is PPO, or IPPO for teams", _agent),
    "trainer.class": unused("there is one training loop"),
    **renamed(
        "algorithm",
        rollouts="num_steps",
        learning_epochs="update_epochs",
        mini_batches="num_minibatches",
        discount_factor="gamma",
        ratio_clip="clip_coef",
        entropy_loss_scale="ent_coef",
        time_limit_bootstrap="bootstrap_truncated",
    ),
    **kept("algorithm", "gae_lambda"),
    "lambda": same("algorithm.gae_lambda"),
    "learning_rate": Rule("algorithm.lr", "", rates),
    "learning_rate_scheduler": Rule("algorithm.lr_schedule", 'is "kl" for KLAdaptiveLR', _scheduler),
    "learning_rate_scheduler_kwargs": Rule("", "it is read with learning_rate_scheduler", nothing),
    "observation_preprocessor": Rule(
        "algorithm.normalize_observation", "is true or false", _preprocessor("algorithm.normalize_observation")
    ),
    "state_preprocessor": Rule("algorithm.normalize_observation", "is true or false", _state_preprocessor),
    "value_preprocessor": Rule(
        "algorithm.normalize_value", "is true or false", _preprocessor("algorithm.normalize_value")
    ),
    "observation_preprocessor_kwargs": Rule("algorithm.observation_clip", SCALER, _scaler),
    "state_preprocessor_kwargs": Rule("algorithm.observation_clip", SCALER, _state_scaler),
    "value_preprocessor_kwargs": unused("sizes follow from the spaces; normalised values are not clipped here"),
    "random_timesteps": Rule("algorithm.random_steps", VECTOR_STEPS, of_all_envs("algorithm.random_steps")),
    "learning_starts": Rule("algorithm.learning_starts", VECTOR_STEPS, of_all_envs("algorithm.learning_starts")),
    "grad_norm_clip": changed("algorithm.max_grad_norm", "is none for 0", off_at_zero),
    "value_clip": Rule("algorithm.clip_coef_vf", f"{NORMALISED}, and none for 0", _value_clip),
    "clip_predicted_values": Rule("algorithm.clip_coef_vf", "is none for false", clips_values),
    "value_loss_scale": changed("algorithm.vf_coef", WHOLE_SQUARE, doubled),
    "kl_threshold": changed("algorithm.target_kl", "is none for 0", off_at_zero),
    "rewards_shaper": refused("a function; give reward_transform an import path, or a scale"),
    "rewards_shaper_scale": Rule("algorithm.reward_transform", "has {{scale: {}}}", scale_of_reward),
    "mixed_precision": changed(
        "algorithm.precision", "is bfloat16 for true", lambda value: "bfloat16" if flag(value) else "float32"
    ),
    "experiment": Rule(
        "run.dir", "is its directory; its intervals are training.checkpoint and run.log_every", _experiment
    ),
    "models": Rule("network", NETWORK, _models),
    "memory": unused("a rollout is as long as num_steps"),
    "timesteps": Rule("training.max_steps", VECTOR_STEPS, of_all_envs("training.max_steps")),
    **each(
        "environment_info headless disable_progressbar close_environment_at_exit stochastic_evaluation",
        unused(NOT_LEARNING),
    ),
}
