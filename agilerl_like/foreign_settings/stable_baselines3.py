"""Settings of Stable-Baselines3's PPO, and of the hyperparameter files of its zoo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agilerl_like.foreign_settings.rules import (
    BETWEEN,
    COPIES,
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
    changed,
    doubled,
    each,
    flag,
    hidden_layers,
    kept,
    nothing,
    number,
    refused,
    renamed,
    same,
    unused,
    whole,
)


def _scheduled(name: str, schedule: str) -> Convert:
    """Return the conversion of a number, or of the zoo's "lin_3e-4", which falls to 0 in a straight line."""

    def convert(value: Any, given: Given) -> Settings:
        if isinstance(value, str) and value.startswith("lin_"):
            return {f"algorithm.{name}": number(value.removeprefix("lin_")), f"algorithm.{schedule}": "linear"}
        if callable(value):
            raise NotConvertible(f"a function of the remaining progress; give {schedule} a factor by progress")
        return {f"algorithm.{name}": number(value)}

    return convert


def _constant(value: Any) -> float | None:
    """Return a number or None; a schedule has no equivalent."""
    if callable(value) or (isinstance(value, str) and value.startswith("lin_")):
        raise NotConvertible("a schedule; clip_coef_vf is constant here")
    return None if value is None else number(value)


NORMALIZE = ("norm_obs", "norm_reward", "clip_obs", "clip_reward")
"""Arguments of VecNormalize that have an equivalent."""


def _normalize(value: Any, given: Given) -> Settings:
    options = {"norm_obs": True, "norm_reward": True} if value is True else value
    if not options:
        return {}
    if not isinstance(options, Mapping):
        raise NotConvertible("allowed are true, false and a mapping such as {norm_obs: true, norm_reward: false}")
    found: Settings = {"algorithm.normalize_observation": bool(options.get("norm_obs", True))}
    if "clip_obs" in options and options.get("norm_obs", True):
        found["algorithm.observation_clip"] = options["clip_obs"]
    if options.get("norm_reward", True):
        found |= {"algorithm.normalize_reward": True, "algorithm.reward_clip": options.get("clip_reward", 10.0)}
    usual = {"gamma": given.get("gamma", 0.99), "epsilon": 1e-8, "norm_obs_keys": None}  # gamma here is the agent's
    others = [name for name, one in options.items() if name not in NORMALIZE and (name, one) not in usual.items()]
    if others:
        raise NotConvertible(f"{', '.join(others)} has no equivalent", found)
    return found


NATURE_CNN: Settings = {
    "network.encoder_config.channel_size": [32, 64, 64],
    "network.encoder_config.kernel_size": [8, 4, 3],
    "network.encoder_config.stride_size": [4, 2, 1],
    "network.encoder_config.activation": "ReLU",
    "network.latent_dim": 512,
    "network.max_latent_dim": 512,
}
"""The networks of CnnPolicy up to the layers of `net_arch` (Mnih et al. 2015)."""


def _policy(value: Any, given: Given) -> Settings:
    if value in ("MlpLstmPolicy", "CnnLstmPolicy", "MultiInputLstmPolicy"):
        return {"algorithm.recurrent": True}
    if value not in ("MlpPolicy", "CnnPolicy", "MultiInputPolicy"):
        raise NotConvertible("a policy of one's own; give its networks in `network`")
    if value != "CnnPolicy":
        return {}
    options = given.get("policy_kwargs") or {}
    head = {} if "net_arch" in options else {"network.head_config.hidden_size": []}
    return NATURE_CNN | head | {"algorithm.share_encoders": options.get("share_features_extractor", True)}


def _policy_kwargs(value: Any, given: Given) -> Settings:
    if not isinstance(value or {}, Mapping):
        raise NotConvertible("it is not a mapping")
    found: Settings = {}
    unknown: list[str] = []
    policy = str(given.get("policy"))
    has_images, has_memory = policy.startswith(("Cnn", "MultiInput")), "Lstm" in policy
    after_encoder = has_images or has_memory  # net_arch is behind an encoder, or behind the LSTM
    parts = ("head",) if after_encoder else ("encoder", "head")
    for name, one in (value or {}).items():
        if name == "log_std_init":
            found["algorithm.action_std_init"] = one
        elif name == "net_arch":
            found |= _architecture(one, after_encoder=after_encoder)
        elif name == "activation_fn":
            found |= activation(one, parts)
        elif name == "ortho_init":
            found |= {f"network.{part}_config.init_layers": flag(one) for part in ("encoder", "head")}
        elif name == "share_features_extractor" and isinstance(one, bool):
            found["algorithm.share_encoders"] = one and has_images
        elif has_memory and name in SIZES_OF_LSTM:
            found |= _size_of_memory(name, whole(one))
        elif not (has_memory and (name, one) in SEPARATE_LSTMS.items()):
            unknown.append(str(name))
    if "net_arch" in (value or {}):
        found = activation("Tanh", parts) | found
    if unknown:
        raise NotConvertible(f"{', '.join(unknown)} has no equivalent; give the networks in `network`", found)
    return found


SIZES_OF_LSTM = {
    "lstm_hidden_size": ("hidden_state_size", "hidden_state_size", 16, 500),
    "n_lstm_layers": ("num_layers", "layers", 1, 3),
}
"""Sizes of an LSTM -> the setting here, the name of its limits of mutations, and their defaults."""
SEPARATE_LSTMS = {"enable_critic_lstm": True, "shared_lstm": False}
"""Defaults by which actor and critic have an LSTM each, as they have here without `share_encoders`."""


def _size_of_memory(name: str, size: int) -> Settings:
    """Return a size of the memory, and a limit of mutations that allows it, where the default does not."""
    setting, limit, smallest, largest = SIZES_OF_LSTM[name]
    found: Settings = {f"network.memory_config.{setting}": size}
    found |= {f"network.memory_config.max_{limit}": size} if size > largest else {}
    found |= {f"network.memory_config.min_{limit}": size} if size < smallest else {}
    return found


def _architecture(value: Any, *, after_encoder: bool) -> Settings:
    """Convert a net_arch: one list of sizes, or those of actor and critic by name."""
    if isinstance(value, list | tuple) and len(value) == 1 and isinstance(value[0], Mapping):
        value = value[0]  # the form before 1.8
    if isinstance(value, Mapping):
        return hidden_layers(value.get("pi", ()), value.get("vf", ()), after_encoder=after_encoder)
    return hidden_layers(value, after_encoder=after_encoder)


def _wrappers(value: Any, given: Given) -> Settings:
    found = [_wrapper(one) for one in (value if isinstance(value, list | tuple) else [value]) if one]
    return {"environment.wrappers": found + _frame_stack(given.get("frame_stack"))} if found else {}


def _wrapper(one: Any) -> Any:
    path, arguments = next(iter(one.items())) if isinstance(one, Mapping) else (one, {})
    module, _, name = str(path).rpartition(".")
    if not module.startswith(("gym.wrappers", "gymnasium.wrappers")):
        name = f"{module}:{name}"
    elif name == "GrayScaleObservation":  # of gymnasium before 1.0
        name = "GrayscaleObservation"
    elif name == "ResizeObservation" and isinstance(side := arguments.get("shape"), int):
        arguments = {**arguments, "shape": [side, side]}
    return {"name": name, **arguments} if arguments else name


def _frame_stack(count: Any) -> list[Any]:
    """Return the wrappers that do what VecFrameStack does: frames are channels, and zeros precede the first."""
    if not count or count == 1:
        return []
    stack = {"name": "FrameStackObservation", "stack_size": whole(count), "padding_type": "zero"}
    return [stack, "agilerl_like.envs.observation_wrappers:ConcatenateFrames"]


def _only_frame_stack(value: Any, given: Given) -> Settings:
    found = _frame_stack(value)
    return {} if given.get("env_wrapper") or not found else {"environment.wrappers": found}


SB3: Rules = {
    **RUN,
    **kept("algorithm", "batch_size gamma gae_lambda ent_coef max_grad_norm target_kl"),
    **renamed("algorithm", n_steps="num_steps", n_epochs="update_epochs"),
    "learning_rate": Rule("algorithm.lr", "", _scheduled("lr", "lr_schedule")),
    "clip_range": Rule("algorithm.clip_coef", "", _scheduled("clip_coef", "schedules.clip_coef")),
    "clip_range_vf": changed("algorithm.clip_coef_vf", NORMALISED, _constant),
    "normalize_advantage": MINIBATCH_OR_NONE,
    "vf_coef": changed("algorithm.vf_coef", WHOLE_SQUARE, doubled),
    "use_sde": refused("state-dependent exploration noise is absent here", False),
    "sde_sample_freq": Rule("", "it is for use_sde", nothing),
    "policy": Rule("algorithm.recurrent", "is true for LSTMs", _policy),
    "policy_kwargs": Rule("network", f"{NETWORK}; in Python it is net_config", _policy_kwargs),
    **each("rollout_buffer_class rollout_buffer_kwargs", refused("rollouts have one kind of buffer here", {})),
    **each("stats_window_size verbose", unused(NOT_LEARNING)),
    "tensorboard_log": changed("run.tensorboard", "is true or false: curves are in the run's folder", bool),
    **each("total_timesteps n_timesteps", TOTAL_STEPS),
    "n_envs": same("environment.num_envs", COPIES),
    "normalize": Rule("algorithm.normalize_observation", "comes with normalize_reward", _normalize),
    "env_wrapper": Rule("environment.wrappers", "has names of gymnasium.wrappers, or module:Class", _wrappers),
    **each("wrapper_class wrapper_kwargs", refused("give the wrapper in environment.wrappers", {})),
    **each("vec_env_cls vec_env_kwargs", unused("environment.backend chooses the processes of environments")),
    **each("monitor_dir monitor_kwargs start_index", unused(NOT_LEARNING)),
    "frame_stack": Rule("environment.wrappers", "has two wrappers", _only_frame_stack),
    "eval_freq": same("training.evo_steps", BETWEEN),
    "n_eval_episodes": same("training.eval_loop"),
}
