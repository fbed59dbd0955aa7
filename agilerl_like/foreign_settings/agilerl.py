"""Settings of AgileRL: arguments of PPO, the dictionaries INIT_HP, MUTATION_PARAMS and NET_CONFIG, and manifests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agilerl_like.foreign_settings.rules import (
    BETWEEN,
    CLIPS_BOTH,
    NOT_LEARNING,
    RUN,
    TOTAL_STEPS,
    Given,
    NotConvertible,
    Rule,
    Rules,
    Settings,
    changed,
    clip_also_of_values,
    each,
    entries,
    flag,
    kept,
    refused,
    renamed,
    same,
    unused,
    whole,
)

PARTS = ("latent_dim", "min_latent_dim", "max_latent_dim", "encoder_config", "head_config", "simba", "encoder")
FLAT = ("hidden_size", "min_hidden_layers", "max_hidden_layers", "min_mlp_nodes", "max_mlp_nodes", "activation")
"""Keys of the flat NET_CONFIG of early releases, which are those of an encoder."""
EVOLVED = "lr batch_size learn_step ent_coef clip_coef vf_coef gamma gae_lambda max_grad_norm update_epochs"
"""Hyperparameters that may have ranges such as MIN_LR and MAX_LR."""
EQUAL_STARTS: Settings = {"population.sample_hyperparameters": False}
"""All members of AgileRL begin with the same hyperparameters; here ranges draw others by default."""


def _networks(value: Any, given: Given) -> Settings:
    """Convert a NET_CONFIG, whose keys are those of `network`, or the flat one of early releases."""
    if not isinstance(value, Mapping):
        raise NotConvertible("it is not a mapping")
    found: Settings = {}
    for name, one in value.items():
        if name in PARTS:
            found |= entries(f"network.{name}", one)
        elif name == "squash_output":
            found["algorithm.squash_output"] = one
        elif name in FLAT:
            found[f"network.encoder_config.{name}"] = one
        elif name == "mlp_activation":
            found["network.encoder_config.activation"] = one
        elif name != "arch" or one not in ("mlp", "cnn", "composed"):
            raise NotConvertible(f"{name} has no equivalent")
    return {path: one for path, one in found.items() if one is not None}


def _ranges(value: Any, given: Given) -> Settings:
    """Convert the ranges of a manifest; those of a list of names are MIN_LR, MAX_LR and so on."""
    if not isinstance(value, Mapping):
        return {}
    for name, one in value.items():
        if not isinstance(one, Mapping):
            raise NotConvertible(f"{name}={one!r:.40}, and a range is {{min: …, max: …}}")
    return {**entries("hyperparameters", value), **EQUAL_STARTS}


def _range_end(name: str, end: str) -> Rule:
    """Return the rule for one end of a hyperparameter's range."""
    setting = f"hyperparameters.{name}.{end}"
    return Rule(setting, "", lambda value, given: {setting: value, **EQUAL_STARTS})


def _algorithm(value: Any, given: Given) -> Settings:
    name = "PPO" if value == "Recurrent PPO" else value
    if name not in ("PPO", "IPPO"):
        raise NotConvertible("allowed are PPO and IPPO")
    recurrent: Settings = {"algorithm.recurrent": True} if name != value else {}
    return recurrent | ({"algorithm.name": name} if name != "PPO" else {})


def _mutates(value: Any, given: Given) -> Settings:
    return {} if flag(value) else {"mutation": None}


AGILERL: Rules = {
    **RUN,
    **kept("algorithm", "batch_size lr learn_step gamma gae_lambda ent_coef vf_coef max_grad_norm target_kl"),
    **kept("algorithm", "update_epochs share_encoders normalize_images recurrent max_seq_len bptt_sequence_type"),
    **kept("algorithm", "action_std_init swap_channels"),
    "channels_last": same("algorithm.swap_channels"),
    "clip_coef": Rule("algorithm.clip_coef", CLIPS_BOTH, clip_also_of_values()),
    **each("algo algorithm.name", Rule("algorithm.name", "is PPO or IPPO", _algorithm)),
    **renamed("environment", env_name="id"),
    "environment.name": same("environment.id"),
    "environment.version": refused("the id of an environment has its version"),
    "env_config": Rule("environment.kwargs", "", lambda value, given: entries("environment.kwargs", value or {})),
    "max_steps": TOTAL_STEPS,
    **each("evo_steps metrics_interval", changed("training.evo_steps", BETWEEN, whole)),
    **kept("training", "eval_steps eval_loop"),
    **renamed("training", target_score="target", checkpoint_steps="checkpoint"),
    **renamed("population", pop_size="size", population_size="size"),
    **kept("selection", "tournament_size elitism"),
    **renamed("selection", tourn_size="tournament_size"),
    "strategy": refused("give selection", "tournament"),
    "hpo": Rule("mutation", "is none for false", _mutates),
    **renamed("mutation", no_mut="no_mutation", arch_mut="architecture", new_layer="new_layer_prob"),
    **renamed("mutation", params_mut="parameters", act_mut="activation", rl_hp_mut="rl_hp", mut_sd="mutation_sd"),
    **kept("mutation", "mutation_sd"),
    "rand_seed": same("seed"),
    "rl_hp_selection": Rule("hyperparameters", "has {{min: …, max: …}} by name", _ranges),
    **{f"{end}_{name}": _range_end(name, end) for name in EVOLVED.split() for end in ("min", "max")},
    **each("net_config network", Rule("network", "", _networks)),
    "wandb": same("run.wandb"),
    "rollout_buffer_config": refused("rollouts have one kind of buffer here", {}),
    "use_rollout_buffer": unused("rollouts are always buffered"),
    "discrete_actions": unused("it follows from the action space"),
    "episodes": refused("runs are as long as training.max_steps, in env steps"),
    "evo_epochs": refused("generations are as long as training.evo_steps, in env steps"),
    "dormant_threshold": refused("dormant units are not reset here"),
    **each(
        "checkpoint_path overwrite_checkpoints verbose api_version apiversion env_type training.name mutation.name "
        "selection_strategy.name tournament_selection.name",
        unused(NOT_LEARNING),
    ),
}
