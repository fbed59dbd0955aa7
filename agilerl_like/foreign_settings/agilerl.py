"""Settings of AgileRL: arguments of PPO, the dictionaries INIT_HP, MUTATION_PARAMS and NET_CONFIG, and manifests."""

from __future__ import annotations

import re
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
CONFIGS = ("encoder_config", "head_config")
PARTS_OF_ENCODERS = {"mlp_config", "cnn_config", "lstm_config", "extractors"}
"""Sections of an `encoder_config`; others in one are those of agents."""
ENCODERS = ("mlp", "cnn", "composed", "multiinput", "lstm", "cnn_lstm", "simba")
"""Values of `arch`; all but simba follow from the observations and `recurrent`, here and there."""
LATENT_DIM, LATENT_DIM_OF_ARCH = 32, 128
"""AgileRL's default in the section `network` of a manifest, and there with `arch`; else it is that of this package."""
LEARN_STEP = 2048
"""AgileRL's rollout in `create_population` without LEARN_STEP; its classes have 4096."""
RECURRENT = ("RecurrentPPO", "Recurrent PPO")
MUTATES = "no_mut arch_mut new_layer params_mut act_mut rl_hp_mut mutation_sd rand_seed rl_hp_selection"
"""Settings in the section `mutation` of a manifest, without which nothing is mutated."""
SELECTS = "tournament_size elitism strategy selection_strategy.name tournament_selection.name"
SIZES = {"hidden_size": ("mlp_nodes", 16, 500, 3), "channel_size": ("channel_size", 8, 256, 6)}
"""Sizes of layers; the name of their limits, and this package's limits where a file has none, of the number too."""
PROBABILITIES: Settings = {
    "mutation.no_mutation": 0.4,
    "mutation.architecture": 0.2,
    "mutation.new_layer_prob": 0.2,
    "mutation.parameters": 0.2,
    "mutation.activation": 0.0,
    "mutation.rl_hp": 0.2,
}
POPULATIONS = ("population()", "create_population()", "ppo()")
TRAINING: Mapping[str, Settings] = {
    "train_on_policy()": {"training.max_steps": 1_000_000, "training.evo_steps": 10_000, "training.eval_loop": 1},
    "train_multi_agent_on_policy()": {"training.max_steps": 50_000, "training.evo_steps": 25, "training.eval_loop": 1},
}
"""Calls that train, and the defaults of their arguments."""
CALLS = (*POPULATIONS, *TRAINING)
"""Calls of a script, which have these names among the sections that are read from it."""
FLAT = ("hidden_size", "min_hidden_layers", "max_hidden_layers", "min_mlp_nodes", "max_mlp_nodes", "activation")
"""Keys of the flat NET_CONFIG of early releases, which are those of an encoder."""
EVOLVED = "lr batch_size learn_step ent_coef clip_coef vf_coef gamma gae_lambda max_grad_norm update_epochs"
"""Hyperparameters that may have ranges such as MIN_LR and MAX_LR."""
EQUAL_STARTS: Settings = {"population.sample_hyperparameters": False}
"""All members of AgileRL begin with the same hyperparameters; here ranges draw others by default."""


def _networks(value: Any, given: Given) -> Settings:
    """Convert a NET_CONFIG, whose keys are those of `network`, or the flat one of early releases."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise NotConvertible("it is not a mapping")
    found: Settings = {}
    unknown: list[str] = []
    is_team = "IPPO" in (given.get("algorithm.name"), given.get("algo"), given.get("algorithm"))
    for name, one in value.items():
        if name in CONFIGS and isinstance(one, Mapping):
            found |= _by_group(name, one) if is_team else entries(f"network.{name}", one)
        elif name in PARTS:
            found |= entries(f"network.{name}", one)
        elif name == "squash_output":
            found["algorithm.squash_output"] = one
        elif name in FLAT:
            found[f"network.encoder_config.{name}"] = one
        elif name == "mlp_activation":
            found["network.encoder_config.activation"] = one
        elif name == "arch" and one in ENCODERS:
            continue  # see below
        elif is_team and isinstance(one, Mapping):
            its = {path.removeprefix("network."): leaf for path, leaf in _networks(one, {}).items()}
            found |= {f"network.groups.{_group(name)}.{path}": leaf for path, leaf in its.items()}
        elif name != "has_evolvable_encoder":
            unknown.append(str(name))
    arch = found.pop("network.encoder_config.arch", value.get("arch"))
    if arch == "simba":
        found["network.simba"] = True
    if value is given.get("network"):  # of a manifest
        found.setdefault("network.latent_dim", LATENT_DIM if arch is None else LATENT_DIM_OF_ARCH)
    found = {path: one for path, one in found.items() if one is not None and not path.endswith(".arch")}
    unread = "network.encoder_config.mlp_config"
    if any(path.startswith(unread) for path in found) and not found.get("network.encoder_config.vector_space_mlp"):
        found = {path: one for path, one in found.items() if not path.startswith(unread)}
        unknown.append("mlp_config without vector_space_mlp")
    found |= _limits(found) | ({} if value.keys() & {*FLAT} else _normalised(found))
    if unknown:
        raise NotConvertible(f"{', '.join(unknown)} has no equivalent", found)
    return found


def _by_group(name: str, config: Mapping[str, Any]) -> Settings:
    """Return the entries of an encoder's or a head's settings, which may be by agent."""
    if not config or not all(isinstance(one, Mapping) for one in config.values()) or config.keys() & PARTS_OF_ENCODERS:
        return entries(f"network.{name}", config)
    by_agent = [entries(f"network.groups.{_group(agent)}.{name}", one) for agent, one in config.items()]
    return {path: leaf for its in by_agent for path, leaf in its.items()}


def _group(agent: object) -> str:
    """Return the group of an agent: its id without the number at the end."""
    return re.sub(r"_\d+$", "", str(agent))


def _limits(found: Settings) -> Settings:
    """Return limits of mutations that allow the given layers, as AgileRL does, where those of the file do not."""
    limits: Settings = {}
    for path, sizes in found.items():
        section, _, name = path.rpartition(".")
        its = sizes if isinstance(sizes, list | tuple) else [sizes]
        if name not in SIZES or not its or not all(isinstance(size, int) for size in its):
            continue
        limit, smallest, largest, most = SIZES[name]
        wanted = (
            (f"{section}.min_{limit}", smallest, min(its), min),
            (f"{section}.max_{limit}", largest, max(its), max),
            (f"{section}.max_hidden_layers", most, len(its), max),
        )
        for where, default, needed, wider in wanted:
            usual = found.get(where, default)
            if isinstance(usual, int) and wider(usual, needed) != usual:
                limits[where] = needed
    return limits


def _normalised(found: Settings) -> Settings:
    """Return `layer_norm`, AgileRL's default, of layers that do not set it."""
    layers = [path.rpartition(".")[0] for path, one in found.items() if path.endswith(".hidden_size")]
    simba = "network.encoder_config" if "network.encoder_config.num_blocks" in found else None
    names = [f"{section}.layer_norm" for section in layers if section != simba]
    return {name: True for name in names if name not in found}


def _network_limits(value: Any, given: Given) -> Settings:
    """Convert the limits in the section `mutation`, which those of the network itself replace."""
    network = given.get("network")
    if not isinstance(network, Mapping):
        raise NotConvertible("it has no effect without network")
    names = {"encoder": "encoder_config", "head_net": "head_config"}
    own = entries("network", network)
    found = {
        path: one
        for name, its in value.items()
        for path, one in entries(f"network.{names.get(name, name)}", its).items()
    }
    return {path: one for path, one in found.items() if path not in own and one is not None}


def complete(found: Settings, given: Given) -> Settings:
    """Return the converted settings of a file, with AgileRL's default networks, and its other defaults.

    Those are the defaults of a manifest, or of the calls of a script. A single member does not evolve here.
    """
    result = _default_networks(found) | found
    result = (
        _with_manifests_defaults(result, given) if "algorithm.name" in given else _with_calls_defaults(result, given)
    )
    if result.get("population.size") == 1:
        result["mutation"] = None
    if "mutation" in result:
        result = {path: one for path, one in result.items() if not path.startswith(("mutation.", "selection."))}
    return result


def _with_manifests_defaults(found: Settings, given: Given) -> Settings:
    """Return the settings of a manifest with its defaults."""
    found = {"population.size": 1, **_training("train_on_policy()", found, given), **found}
    mutates = {*MUTATES.split(), "mutation.name", "mutation.network"} & given.keys()
    evolves = given.get("hpo") or (mutates and {*SELECTS.split()} & given.keys())
    absent = PROBABILITIES | _default_ranges(found) if evolves else {"mutation": None}
    return ({} if "mutation" in found else absent) | found


def _with_calls_defaults(found: Settings, given: Given) -> Settings:
    """Return the settings of a script with the defaults of its calls; those with `**` may have arguments in a mapping.

    AgileRL evolves if the call that trains has a selection and a mutation.
    """
    calls = {name: call for name in CALLS if isinstance(call := given.get(name), Mapping) and "**" not in call}
    if isinstance(calls.get("create_population()", {}).get("INIT_HP"), Mapping) and "learn_step" not in given:
        found = {"algorithm.learn_step": LEARN_STEP} | found
    for name in TRAINING.keys() & calls.keys():
        found = _training(name, found, given) | found
        selects = any(calls[name].get(argument) is not None for argument in ("tournament", "selection_strategy"))
        if not selects or calls[name].get("mutation") is None:
            found["mutation"] = None
        elif {*POPULATIONS} & calls.keys() and given.get("hp_config") is None:
            found = _default_ranges(found) | found
    return found


def _training(call: str, found: Settings, given: Given) -> Settings:
    """Return the defaults of a call that trains, of the settings that a file does not give."""
    names = {AGILERL[name].setting for name in given if name in AGILERL}
    steps = found.get("training.max_steps", TRAINING[call]["training.max_steps"])
    defaults = TRAINING[call] | {"training.evo_steps": min(TRAINING[call]["training.evo_steps"], steps)}
    return {path: value for path, value in defaults.items() if path not in names}


def _default_networks(found: Settings) -> Settings:
    """Return the networks for vectors of AgileRL's agents if they are given none; images have others."""
    env_id = str(found.get("environment.id", ""))
    parts = {path.split(".")[1] for path in found if path.startswith("network.")}
    if (
        found.get("algorithm.swap_channels")
        or env_id.startswith("ALE/")
        or "NoFrameskip" in env_id
        or "groups" in parts
    ):
        return {}
    encoder: Settings = {"hidden_size": [64, 64], "layer_norm": True}
    if found.get("algorithm.recurrent"):
        encoder = {"hidden_state_size": 128, "num_layers": 2}
    head: Settings = {"network.head_config.hidden_size": [64], "network.head_config.layer_norm": True}
    if found.get("algorithm.share_encoders") is False and found.get("algorithm.name") != "IPPO":
        head["network.critic_config.head_config.hidden_size"] = [16]
    has_encoder = parts & {"encoder_config", "encoder", "simba"}
    absent = {} if has_encoder else {f"network.encoder_config.{name}": one for name, one in encoder.items()}
    return absent | ({} if "head_config" in parts else head)


def _default_ranges(found: Settings) -> Settings:
    """Return the ranges that AgileRL's agents have if they are given none."""
    if any(path.startswith("hyperparameters.") for path in found):
        return {}
    ranges: Settings = {}
    for name, usual in {"lr": 1e-4, "batch_size": 64, "learn_step": 4096}.items():
        value = found.get(f"algorithm.{name}", usual)
        if isinstance(value, int | float):
            parts = default_range(value).items()
            ranges |= {f"hyperparameters.{name}.{part}": _rounded(number) for part, number in parts}
    return ranges | EQUAL_STARTS


def default_range(value: float) -> dict[str, Any]:
    """Return AgileRL's default range of a hyperparameter: from a tenth to ten times a float.

    Of a whole number it is from a quarter to four times, with larger steps.
    """
    if isinstance(value, int):
        return {"min": max(1, value // 4), "max": 4 * value, "shrink_factor": 0.75, "grow_factor": 1.5}
    return {"min": value / 10, "max": 10 * value}


def _rounded(value: float) -> float:
    """Return a number without the rounding errors of a product, which a file would show."""
    return value if isinstance(value, int) else float(f"{value:.12g}")


def _ranges(value: Any, given: Given) -> Settings:
    """Convert the ranges of a manifest; those of a list of names are MIN_LR, MAX_LR and so on."""
    if not isinstance(value, Mapping):
        return {}
    for name, one in value.items():
        if not isinstance(one, Mapping):
            raise NotConvertible(f"{name}={one!r:.40}, and a range is {{min: …, max: …}}")
    return {**entries("hyperparameters", value), **EQUAL_STARTS}


def _range_end(name: str, end: str) -> Rule:
    """Return the rule for one end of a hyperparameter's range, which a list of names may leave out."""
    setting = f"hyperparameters.{name}.{end}"

    def convert(value: Any, given: Given) -> Settings:
        names = given.get("rl_hp_selection")
        is_left_out = isinstance(names, list | tuple) and name not in [str(one).lower() for one in names]
        return {} if is_left_out else {setting: value, **EQUAL_STARTS}

    return Rule(setting, "", convert)


def _algorithm(value: Any, given: Given) -> Settings:
    if value in RECURRENT:
        own: Settings = {"learn_step": 8192, "bptt_sequence_type": "chunked"}
        absent = {f"algorithm.{name}": one for name, one in own.items() if given.get(name) is None}
        return {"algorithm.recurrent": True, **absent}
    if value not in ("PPO", "IPPO"):
        raise NotConvertible("allowed are PPO, RecurrentPPO and IPPO")
    return {"algorithm.name": value} if value != "PPO" else {}


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
    "env_config": RUN["env_kwargs"],
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
    "mutation.network": Rule("network", "has the limits of mutations beside the sizes", _network_limits),
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
