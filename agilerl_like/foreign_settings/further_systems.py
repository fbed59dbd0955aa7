"""Settings of rlib, MetaBox, Brax and Isaac Lab, whose PPO is that of rsl_rl."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from agilerl_like.foreign_settings.rules import (
    ADAM_IN_LOWER_CASE,
    BETWEEN,
    CLIPS_BOTH,
    COPIES,
    FALLS,
    MINIBATCH_OR_NONE,
    NETWORK,
    NORMALISED,
    NOT_LEARNING,
    RUN,
    TOTAL_STEPS,
    WHOLE_SQUARE,
    Convert,
    Given,
    NotConvertible,
    Rule,
    Rules,
    Settings,
    activation,
    annealing,
    changed,
    clip_also_of_values,
    clips_values,
    doubled,
    each,
    flag,
    hidden_layers,
    kept,
    number,
    of_all_envs,
    off_at_infinity,
    rates,
    refused,
    renamed,
    same,
    scale_of_reward,
    unused,
    whole,
)

# -- rlib


def _without_gae(value: Any, given: Given) -> Settings:
    return {} if flag(value) else {"algorithm.advantage": "mc"}


def _rlib_value_clip(value: Any, given: Given) -> Settings:
    return {"algorithm.clip_coef_vf": value if given.get("clip_value_loss", True) else None}


def _env_kwargs(value: Any, given: Given) -> Settings:
    if not isinstance(value, Mapping) or "id" not in value:
        raise NotConvertible("it has no id")
    rest = {name: one for name, one in value.items() if name not in ("id", "render_mode")}
    return {"environment.id": value["id"], **{f"environment.kwargs.{name}": one for name, one in rest.items()}}


def _rlib_networks(value: Any, given: Given) -> Settings:
    actor, critic = ({**(given.get(name) or {})} for name in ("actor_kwargs", "critic_kwargs"))
    kinds = [network.pop("activation", "Tanh") for network in (actor, critic)]
    sizes = [network.pop("hidden_sizes", None) for network in (actor, critic)]
    for name in (*actor, *critic):
        raise NotConvertible(f"{name} has no equivalent; give `network`")
    if kinds[0] != kinds[1] or (sizes[0] is None) != (sizes[1] is None):
        raise NotConvertible("actor_kwargs and critic_kwargs differ; give `network`")
    return activation(kinds[0]) | (hidden_layers(*sizes) if sizes[0] is not None else {}) if value else {}


def _of_strategy(setting: str) -> Convert:
    """Return the conversion of a setting that EvolutionStrategy has, and PPO lacks."""
    return lambda value, given: {"algorithm.name": "OpenAIES", setting: value}


STRATEGY: Settings = {
    "environment.num_envs": 30,
    "algorithm.sigma": 0.1,
    "algorithm.lr": 0.03,
    "algorithm.optimizer": "sgd",
    "algorithm.shaping": "standardized",
    "algorithm.normalize_observation": False,
}
"""The defaults of rlib's EvolutionStrategy, which steps along the gradient itself, of standardised returns."""


def complete_strategy(found: Settings, given: Given) -> Settings:
    """Return the converted settings of a file; those of an evolution strategy with rlib's defaults."""
    if found.get("algorithm.name") != "OpenAIES":
        return found
    return found | {path: value for path, value in STRATEGY.items() if path not in found}


NO_LIMIT = -1


def _return_limit(value: Any, given: Given) -> Settings:
    return {} if value in (None, NO_LIMIT) else {"environment.max_total_reward": value}


def _rlib_test_every(value: Any, given: Given) -> Settings:
    if {"num_agents", "sigma"} & given.keys():
        raise NotConvertible("it counts updates, which end with episodes; give training.evo_steps, in env steps")
    return {"training.evo_steps": whole(value)}


RLIB: Rules = {
    **RUN,
    "env_kwargs": Rule("environment.id", "has the id, environment.kwargs the rest", _env_kwargs),
    **renamed(
        "algorithm",
        num_steps_per_iter="num_steps",
        num_updates_per_iter="update_epochs",
        discount="gamma",
        lambda_gae="gae_lambda",
        policy_loss_clip="clip_coef",
        value_loss_coef="vf_coef",
        entropy_loss_coef="ent_coef",
        learning_rate="lr",
    ),
    **kept("algorithm", "batch_size max_grad_norm target_kl"),
    "total_timesteps": TOTAL_STEPS,
    "test_every": Rule("training.evo_steps", BETWEEN, _rlib_test_every),
    "num_agents": Rule(
        "environment.num_envs", "is the number of perturbed policies", _of_strategy("environment.num_envs")
    ),
    "sigma": Rule("algorithm.sigma", "comes with name: OpenAIES", _of_strategy("algorithm.sigma")),
    **kept("algorithm", "lr"),
    "num_iterations": same("training.max_updates", "ends the run, unless training.max_steps does before"),
    **renamed("training", num_test_agents="eval_loop", num_test_episodes="eval_loop", stop_max_score="target"),
    "use_gae": Rule("algorithm.advantage", 'is "mc" for false', _without_gae),
    "clip_value_loss": Rule("algorithm.clip_coef_vf", "is none for false", clips_values),
    "value_loss_clip": Rule("algorithm.clip_coef_vf", NORMALISED, _rlib_value_clip),
    "lr_annealing": Rule("algorithm.lr_schedule", FALLS, annealing),
    "norm_advantages": MINIBATCH_OR_NONE,
    "normalize_observation": changed(
        "algorithm.normalize_observation", 'is "bounds" for true', lambda value: "bounds" if flag(value) else False
    ),
    "max_episode_length": refused("give TimeLimit in environment.wrappers", NO_LIMIT),
    "max_total_reward": Rule(
        "environment.max_total_reward", "lowers the last reward, so that the return is the limit", _return_limit
    ),
    "envs_wrappers": refused("classes; give their names or import paths in environment.wrappers", []),
    "use_norm_wrappers": refused("give ClipAction, and normalize_observation, normalize_reward, reward_clip", False),
    **each("actor_kwargs critic_kwargs", Rule("network", NETWORK, _rlib_networks)),
    **renamed("run", save_folder="dir"),
    "verbose": unused(NOT_LEARNING),
}


# -- MetaBox


def _horizon(value: Any, given: Given) -> Settings:
    return {"algorithm.num_steps": value, "algorithm.n_step": value}


METABOX: Rules = {
    **{name: RUN[name] for name in ("seed", "device")},
    **kept("algorithm", "gamma lr lr_critic"),
    **renamed("algorithm", k_epochs="update_epochs", lr_model="lr", lr_actor="lr"),
    "n_step": Rule("algorithm.n_step", "comes with num_steps, of the same value", _horizon),
    "eps_clip": Rule("algorithm.clip_coef", CLIPS_BOTH, clip_also_of_values()),
    "max_grad_norm": changed("algorithm.max_grad_norm", "is none for infinity", off_at_infinity),
    "optimizer": ADAM_IN_LOWER_CASE,
    "learning_rates": Rule("algorithm.lr", "comes with lr_critic for a list", rates),
    "lr_decay": refused("it multiplies the rate each episode; give lr_schedule a factor by the run's progress", 1, 1.0),
    "max_learning_step": refused("it counts gradient steps: training.max_steps = it / K_epochs x n_step x num_envs"),
    "max_epoch": refused("runs are as long as training.max_steps, in env steps"),
    "end_mode": unused("runs end after training.max_steps"),
    "train_batch_size": same("environment.num_envs", COPIES),
    **each("agent_save_dir log_dir save_interval n_checkpoint no_tb train_name", unused(NOT_LEARNING)),
}


# -- Brax


def _brax_rollout(value: Any, given: Given) -> Settings:
    """Convert the number of env steps of an update, a product of three settings."""
    factors = {"batch_size": 32, "num_minibatches": 16, "unroll_length": 10}  # defaults of brax's train()
    sizes = {name: whole(given.get(name, default)) for name, default in factors.items()}
    return {"algorithm.learn_step": math.prod(sizes.values()), "algorithm.num_minibatches": sizes["num_minibatches"]}


def _brax_schedule(value: Any, given: Given) -> Settings:
    name = str(getattr(value, "name", value)).upper()
    if name not in ("NONE", "ADAPTIVE_KL"):
        raise NotConvertible("allowed are NONE and ADAPTIVE_KL")
    return {"algorithm.lr_schedule": "kl" if name == "ADAPTIVE_KL" else None}


def _brax_kl(setting: str) -> Rule:
    """Return the rule for a setting that has an effect with ADAPTIVE_KL alone."""

    def convert(value: Any, given: Given) -> Settings:
        adapts = _brax_schedule(given.get("learning_rate_schedule"), given)["algorithm.lr_schedule"]
        return {setting: value} if adapts else {}

    return Rule(setting, "needs lr_schedule: kl", convert)


def _brax_time_limits(value: Any, given: Given) -> Settings:
    """Convert a flag of which neither value makes time limits terminations: false masks the truncated step there."""
    flag(value)
    return {"algorithm.bootstrap_truncated": True}


UNROLLS = "counts env steps: batch_size x num_minibatches x unroll_length"
BRAX: Rules = {
    **RUN,
    **each("batch_size num_minibatches unroll_length", Rule("algorithm.learn_step", UNROLLS, _brax_rollout)),
    **renamed(
        "algorithm",
        num_updates_per_batch="update_epochs",
        learning_rate="lr",
        entropy_cost="ent_coef",
        discounting="gamma",
        clipping_epsilon="clip_coef",
        vf_loss_coefficient="vf_coef",
        vf_coefficient="vf_coef",
        normalize_observations="normalize_observation",
    ),
    "bootstrap_on_timeout": Rule(
        "algorithm.bootstrap_truncated",
        "is true for both values: in Brax, false leaves truncated steps without an advantage",
        _brax_time_limits,
    ),
    **kept("algorithm", "gae_lambda max_grad_norm"),
    "num_timesteps": TOTAL_STEPS,
    "clipping_epsilon_value": same("algorithm.clip_coef_vf", NORMALISED),
    "normalize_advantage": MINIBATCH_OR_NONE,
    "reward_scaling": Rule("algorithm.reward_transform", "has {{scale: {}}}", scale_of_reward),
    "num_eval_envs": same("training.eval_loop"),
    "num_evals": refused("evaluations are training.evo_steps env steps apart"),
    "episode_length": refused("give TimeLimit in environment.wrappers"),
    "action_repeat": refused("give a wrapper of the environment", 1),
    "desired_kl": _brax_kl("algorithm.kl_threshold"),
    "learning_rate_schedule_min_lr": _brax_kl("algorithm.lr_min"),
    "learning_rate_schedule_max_lr": _brax_kl("algorithm.lr_max"),
    "learning_rate_schedule": Rule("algorithm.lr_schedule", 'is "kl" for ADAPTIVE_KL', _brax_schedule),
    **each("environment progress_fn network_factory max_devices_per_host", unused(NOT_LEARNING)),
}


# -- Isaac Lab


def _rsl_schedule(value: Any, given: Given) -> Settings:
    if value not in ("adaptive", "fixed"):
        raise NotConvertible("allowed are adaptive and fixed")
    adaptive: Settings = {"algorithm.lr_schedule": "kl", "algorithm.lr_min": 1e-5, "algorithm.lr_max": 1e-2}
    return adaptive if value == "adaptive" else {"algorithm.lr_schedule": None}


def _rsl_kl(value: Any, given: Given) -> Settings:
    return {} if given.get("schedule") == "fixed" else {"algorithm.kl_threshold": value}


def _rsl_network(value: Any, given: Given) -> Settings:
    return hidden_layers(given.get("actor_hidden_dims", value), given.get("critic_hidden_dims", value))


def _log(value: Any) -> float:
    if number(value) <= 0:
        raise NotConvertible("it is not positive")
    return round(math.log(number(value)), 12)


NORMALIZES = ("actor_obs_normalization", "critic_obs_normalization", "obs_normalization")
"""Flags for the observations of a network."""


def _normalizes(value: Any, given: Given) -> Settings:
    if any(given.get(name, value) != value for name in NORMALIZES):
        raise NotConvertible("actor and critic are normalised alike here")
    return {"algorithm.normalize_observation": value}


def _normalizes_by_default(value: Any, given: Given) -> Settings:
    """Convert the deprecated flag, which is null, or counts without `NORMALIZES`."""
    return {} if value is None or given.keys() & set(NORMALIZES) else {"algorithm.normalize_observation": value}


ISAACLAB: Rules = {
    **RUN,
    **renamed(
        "algorithm",
        num_steps_per_env="num_steps",
        num_learning_epochs="update_epochs",
        num_mini_batches="num_minibatches",
        learning_rate="lr",
        lam="gae_lambda",
        entropy_coef="ent_coef",
        share_cnn_encoders="share_encoders",
    ),
    **kept("algorithm", "gamma max_grad_norm state_dependent_std"),
    **each(" ".join(NORMALIZES), Rule("algorithm.normalize_observation", "is one for actor and critic", _normalizes)),
    "empirical_normalization": Rule(
        "algorithm.normalize_observation", "counts without a flag of a network", _normalizes_by_default
    ),
    "schedule": Rule("algorithm.lr_schedule", 'is "kl" for adaptive', _rsl_schedule),
    "desired_kl": Rule("algorithm.kl_threshold", "needs lr_schedule: kl", _rsl_kl),
    "optimizer": ADAM_IN_LOWER_CASE,
    "value_loss_coef": changed("algorithm.vf_coef", WHOLE_SQUARE, doubled),
    "clip_param": Rule("algorithm.clip_coef", CLIPS_BOTH, clip_also_of_values("use_clipped_value_loss")),
    "use_clipped_value_loss": Rule("algorithm.clip_coef_vf", "is none for false", clips_values),
    "normalize_advantage_per_mini_batch": changed(
        "algorithm.normalize_advantage",
        'is "minibatch" for true and "rollout" for false',
        lambda value: "minibatch" if flag(value) else "rollout",
    ),
    **each("init_noise_std init_std", changed("algorithm.action_std_init", "is its natural logarithm", _log)),
    **each("actor_hidden_dims critic_hidden_dims hidden_dims", Rule("network", NETWORK, _rsl_network)),
    "activation": Rule("network.encoder_config", "has activation", lambda value, given: activation(value)),
    "max_iterations": Rule(
        "training.max_steps",
        "counts env steps: {} x num_steps_per_env x num_envs",
        of_all_envs("training.max_steps", factor=lambda given: whole(given.get("num_steps_per_env", 24))),
    ),
    **each("noise_std_type std_type", unused("the logarithm is learned")),
    "class_name": unused("the algorithm is PPO"),
    "rnd_cfg": refused("random network distillation is absent here"),
    "symmetry_cfg": refused("data augmentation by symmetry is absent here"),
    "obs_groups": refused("observations of the critic alone are critic_observation"),
    "clip_actions": refused("continuous actions are clipped to the bounds of the space"),
    **each(
        "save_interval experiment_name run_name logger neptune_project wandb_project resume load_run load_checkpoint",
        unused(NOT_LEARNING),
    ),
}
