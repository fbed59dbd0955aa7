"""Presets: the defaults of other systems, in settings of this package.

`PPO(…, preset="sb3")` has SB3's defaults for all settings that are not given. Values are converted where a setting has
another meaning there: half or the whole squared error, steps of one or of all environments, the size or the number of
minibatches, the epsilon of Adam. `foreign_settings` converts single names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

from gymnasium.spaces import Dict, Tuple

from agilerl_like.algorithms.ppo_config import NEEDED, PPOConfig
from agilerl_like.algorithms.settings import DEFAULT_PRESET, check_preset
from agilerl_like.errors import ConfigurationError, unknown_name
from agilerl_like.foreign_settings import SYSTEMS, Conversion, canonical, convert
from agilerl_like.foreign_settings.rules import NotConvertible, activation, hidden_layers, whole
from agilerl_like.registry import registered

Arguments = ParamSpec("Arguments")
ResultT = TypeVar("ResultT")


class Value(NamedTuple):
    """The default of a system in a setting of this package."""

    value: Any
    source: str
    """The setting of the system that it comes from, or what the system's code does."""


@dataclass(frozen=True)
class Preset:
    """The defaults of a system."""

    system: str
    """The system, its version, and where the values are defined."""
    settings: Mapping[str, Value] = field(default_factory=dict)
    network: str = "the default for the observations"
    """Description of the system's networks, which a preset does not set."""
    architecture: Mapping[str, Any] = field(default_factory=dict)
    """Settings of its networks for vectors, which a converted file has if it sets no others."""
    differences: tuple[str, ...] = ()
    """Differences from the system that no setting removes."""
    variants: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    """Values that differ, by the name of an algorithm ("IPPO"), or for agents with a memory ("recurrent")."""

    def values(self, *variants: str) -> dict[str, Any]:
        """Return the values of the settings, with those of some variants in their place."""
        found = dict(self.settings)
        for variant in variants:
            found |= self.variants.get(variant, {})
        return {name: one.value for name, one in found.items()}


TANH = "two layers of 64, tanh, for actor and critic each"
TWO_LAYERS = hidden_layers([64, 64]) | activation("Tanh")
HALF_WIDTHS = "continuous actions, and action_std_init, are in units of the action space, not in half-widths of it"
LEAK = "where a time limit ends an episode, advantages leak into it from the next one; here the episode ends"

_CLEANRL = {
    "lr": Value(2.5e-4, "learning_rate=2.5e-4"),
    "lr_schedule": Value("linear", "anneal_lr=True"),
    "num_steps": Value(128, "num_steps=128"),
    "num_minibatches": Value(4, "num_minibatches=4"),
    "update_epochs": Value(4, "update_epochs=4"),
    "gamma": Value(0.99, "gamma=0.99"),
    "gae_lambda": Value(0.95, "gae_lambda=0.95"),
    "clip_coef": Value(0.2, "clip_coef=0.2"),
    "clip_coef_vf": Value(0.2, "clip_vloss=True, by clip_coef"),
    "value_clip_mode": Value("max", "the larger of both squared errors"),
    "ent_coef": Value(0.01, "ent_coef=0.01"),
    "vf_coef": Value(0.5, "vf_coef=0.5, of half the squared error"),
    "max_grad_norm": Value(0.5, "max_grad_norm=0.5"),
    "clip_grads": Value("together", "one norm over all parameters"),
    "target_kl": Value(None, "target_kl=None"),
    "kl_stop": Value("epoch", "tested after each epoch"),
    "normalize_advantage": Value("minibatch", "norm_adv=True"),
    "advantage_ddof": Value(1, "torch.std"),
    "bootstrap_truncated": Value(False, "done = terminated or truncated"),
    "adam_eps": Value(1e-5, "Adam(eps=1e-5)"),
    "normalize_observation": Value(False, "no wrapper"),
    "normalize_value": Value(False, "values are learned in units of the return"),
    "action_std_init": Value(0.0, "actor_logstd = 0"),
    "share_encoders": Value(False, "two networks"),
}

PRESETS: Mapping[str, Preset] = {
    DEFAULT_PRESET: Preset("the defaults of this package"),
    "sb3": Preset(
        "Stable-Baselines3 2.9.2: arguments of PPO",
        {
            "lr": Value(3e-4, "learning_rate=3e-4"),
            "num_steps": Value(2048, "n_steps=2048, of each environment"),
            "batch_size": Value(64, "batch_size=64"),
            "update_epochs": Value(10, "n_epochs=10"),
            "gamma": Value(0.99, "gamma=0.99"),
            "gae_lambda": Value(0.95, "gae_lambda=0.95"),
            "clip_coef": Value(0.2, "clip_range=0.2"),
            "clip_coef_vf": Value(None, "clip_range_vf=None"),
            "value_clip_mode": Value(
                "clipped", "if clip_range_vf is given: the squared error of the clipped value alone"
            ),
            "ent_coef": Value(0.0, "ent_coef=0.0"),
            "vf_coef": Value(1.0, "vf_coef=0.5, of the whole squared error"),
            "max_grad_norm": Value(0.5, "max_grad_norm=0.5"),
            "clip_grads": Value("together", "one norm over all parameters"),
            "target_kl": Value(None, "target_kl=None"),
            "kl_stop": Value("update", "tested before each step, at 1.5 x target_kl"),
            "normalize_advantage": Value("minibatch", "normalize_advantage=True"),
            "advantage_ddof": Value(1, "torch.std"),
            "bootstrap_truncated": Value(True, "gamma V(terminal_observation) is added to the reward"),
            "adam_eps": Value(1e-5, "optimizer_kwargs: eps=1e-5"),
            "normalize_observation": Value(False, "no VecNormalize"),
            "normalize_value": Value(False, "values are learned in units of the return"),
            "action_std_init": Value(0.0, "log_std_init=0.0"),
            "share_encoders": Value(False, "MlpPolicy"),
        },
        network=TANH,
        architecture=TWO_LAYERS,
        differences=(
            HALF_WIDTHS,
            "CnnPolicy shares the convolutions: share_encoders: true",
            "schedules count the rollout that an update learns from as done, so that a linear learning_rate is below "
            "its start in the first update; here they are a rollout later, as in CleanRL",
        ),
        variants={
            "recurrent": {
                "num_steps": Value(128, "RecurrentPPO of sb3-contrib: n_steps=128"),
                "batch_size": Value(128, "RecurrentPPO of sb3-contrib: batch_size=128"),
            }
        },
    ),
    "cleanrl": Preset(
        "CleanRL 1.0: arguments of ppo.py",
        _CLEANRL,
        network=TANH,
        architecture=TWO_LAYERS,
        differences=(
            HALF_WIDTHS,
            "target_kl is compared with the KL of an epoch's last minibatch, here with the mean of all",
            "ppo_continuous_action.py has lr 3e-4, num_steps 2048, num_minibatches 32, update_epochs 10, ent_coef 0, "
            "and normalises observations and rewards: normalize_observation, normalize_reward",
        ),
    ),
    "skrl": Preset(
        "skrl 2.1.1: PPO_CFG",
        {
            "lr": Value(1e-3, "learning_rate=1e-3"),
            "num_steps": Value(16, "rollouts=16"),
            "num_minibatches": Value(2, "mini_batches=2"),
            "update_epochs": Value(8, "learning_epochs=8"),
            "gamma": Value(0.99, "discount_factor=0.99"),
            "gae_lambda": Value(0.95, "gae_lambda=0.95"),
            "clip_coef": Value(0.2, "ratio_clip=0.2"),
            "clip_coef_vf": Value(0.2, "value_clip=0.2"),
            "value_clip_mode": Value("clipped", "the squared error of the clipped value alone"),
            "ent_coef": Value(0.0, "entropy_loss_scale=0.0"),
            "vf_coef": Value(5.0, "value_loss_scale=2.5, of the whole squared error"),
            "max_grad_norm": Value(0.5, "grad_norm_clip=0.5"),
            "clip_grads": Value("together", "one norm over policy and value"),
            "target_kl": Value(None, "kl_threshold=0.0"),
            "kl_stop": Value("minibatch", "tested before each step, ends the epoch"),
            "normalize_advantage": Value("rollout", "compute_gae"),
            "advantage_ddof": Value(1, "torch.std"),
            "bootstrap_truncated": Value(False, "time_limit_bootstrap=False"),
            "adam_eps": Value(1e-8, "torch.optim.Adam"),
            "random_steps": Value(0, "random_timesteps=0 (2.0)"),
            "learning_starts": Value(0, "learning_starts=0 (2.0)"),
            "normalize_observation": Value(False, "observation_preprocessor=None"),
            "observation_clip": Value(5.0, "RunningStandardScaler: clip_threshold=5.0"),
            "normalize_value": Value(False, "value_preprocessor=None"),
            "action_std_init": Value(0.0, "initial_log_std=0"),
            "share_encoders": Value(False, "models of their own"),
        },
        network="models of one's own",
        differences=(
            HALF_WIDTHS,
            LEAK,
            "RandomMemory draws with replacement unless replacement=False; here each sample is used once an epoch",
            "clip_actions: continuous actions reach the environment as they are, or are clipped before their "
            "log-probability is computed; here the environment alone has clipped ones",
        ),
    ),
    "agilerl": Preset(
        "AgileRL 2.58.0: arguments of PPO",
        {
            "lr": Value(1e-4, "lr=1e-4"),
            "learn_step": Value(4096, "learn_step=4096, of all environments"),
            "batch_size": Value(64, "batch_size=64"),
            "update_epochs": Value(4, "update_epochs=4"),
            "gamma": Value(0.99, "gamma=0.99"),
            "gae_lambda": Value(0.95, "gae_lambda=0.95"),
            "clip_coef": Value(0.2, "clip_coef=0.2"),
            "clip_coef_vf": Value(0.2, "values are always clipped by clip_coef"),
            "value_clip_mode": Value("max", "the larger of both squared errors"),
            "ent_coef": Value(0.01, "ent_coef=0.01"),
            "vf_coef": Value(0.5, "vf_coef=0.5, of half the squared error"),
            "max_grad_norm": Value(0.5, "max_grad_norm=0.5"),
            "clip_grads": Value("apart", "actor and critic separately"),
            "target_kl": Value(None, "target_kl=None"),
            "kl_stop": Value("epoch", "tested after each epoch"),
            "normalize_advantage": Value("rollout", "over all samples"),
            "advantage_ddof": Value(1, "torch.std"),
            "bootstrap_truncated": Value(False, "done = terminated or truncated"),
            "adam_eps": Value(1e-8, "torch.optim.Adam"),
            "normalize_observation": Value(False, "no RSNorm"),
            "normalize_value": Value(False, "values are learned in units of the return"),
            "action_std_init": Value(0.6, "action_std_init=0.6, a logarithm there, too"),
            "share_encoders": Value(True, "share_encoders=True"),
        },
        network="two layers of 64, latent layer of 64, head of 64 (of PPO's critic 16, here only without "
        "share_encoders), ReLU, with layer_norm; recurrent: two LSTM layers of 128 in place of the two of 64",
        differences=(
            HALF_WIDTHS,
            "advantages are shifted by a step where episodes end, and steps that autoreset inserts are learned from",
            "recurrent agents learn from the whole squared error of the value: vf_coef: 1.0",
            "batch_size of recurrent agents counts sequences, here samples: multiply it by their length",
        ),
        variants={
            "IPPO": {
                "normalize_advantage": Value("minibatch", "IPPO: in each minibatch"),
                "share_encoders": Value(False, "IPPO: two networks"),
            }
        },
    ),
    "rlib": Preset(
        "rlib: arguments of PPO",
        {
            "lr": Value(3e-4, "learning_rate=3e-4"),
            "lr_schedule": Value("linear", "lr_annealing=True"),
            "num_steps": Value(2048, "num_steps_per_iter=2048, of each environment"),
            "batch_size": Value(64, "batch_size=64"),
            "update_epochs": Value(10, "num_updates_per_iter=10"),
            "gamma": Value(0.99, "discount=0.99"),
            "gae_lambda": Value(0.95, "lambda_gae=0.95"),
            "clip_coef": Value(0.2, "policy_loss_clip=0.2"),
            "clip_coef_vf": Value(0.2, "clip_value_loss=True, value_loss_clip=0.2"),
            "value_clip_mode": Value("max", "the larger of both squared errors"),
            "ent_coef": Value(0.01, "entropy_loss_coef=0.01"),
            "vf_coef": Value(0.5, "value_loss_coef=0.5, of half the squared error"),
            "max_grad_norm": Value(0.5, "max_grad_norm=0.5"),
            "clip_grads": Value("together", "one norm over all parameters"),
            "target_kl": Value(None, "the KL is only logged"),
            "normalize_advantage": Value("minibatch", "norm_advantages=True"),
            "advantage_ddof": Value(1, "torch.std"),
            "bootstrap_truncated": Value(False, "done = terminated"),
            "adam_eps": Value(1e-5, "Adam(eps=1e-5)"),
            "normalize_observation": Value(False, "normalize_observation=False"),
            "normalize_value": Value(False, "values are learned in units of the return"),
            "share_encoders": Value(False, "actor_kwargs, critic_kwargs"),
        },
        network=TANH,
        architecture=TWO_LAYERS,
        differences=(
            LEAK,
            "environments are reset at each rollout, and wrappers clip and normalise observations and rewards of "
            "continuous ones: normalize_observation, normalize_reward",
        ),
    ),
    "dti": Preset(
        "DecisionTransformerInterpretability: OnlineTrainConfig",
        {
            "lr": Value(2.5e-4, "learning_rate=2.5e-4"),
            "num_steps": Value(128, "num_steps=128"),
            "num_minibatches": Value(4, "num_minibatches=4"),
            "update_epochs": Value(4, "update_epochs=4"),
            "gamma": Value(0.99, "gamma=0.99"),
            "gae_lambda": Value(0.95, "gae_lambda=0.95"),
            "clip_coef": Value(0.4, "clip_coef=0.4"),
            "clip_coef_vf": Value(None, "values are not clipped"),
            "ent_coef": Value(0.2, "ent_coef=0.2"),
            "vf_coef": Value(0.5, "vf_coef=0.5, of half the squared error"),
            "max_grad_norm": Value(2.0, "max_grad_norm=2"),
            "clip_grads": Value("together", "one norm over all parameters"),
            "target_kl": Value(None, "the KL is only logged"),
            "normalize_advantage": Value("minibatch", "in each minibatch"),
            "advantage_ddof": Value(1, "torch.std"),
            "bootstrap_truncated": Value(False, "done = terminated"),
            "adam_eps": Value(1e-5, "Adam(eps=1e-5)"),
            "normalize_observation": Value(False, "none"),
            "normalize_value": Value(False, "values are learned in units of the return"),
            "share_encoders": Value(False, "FCAgent"),
        },
        network=TANH,
        architecture=TWO_LAYERS,
        differences=(LEAK,),
    ),
    "metabox": Preset(
        "MetaBox: PPO_Agent with the configuration of RLEPSO",
        {
            "lr": Value(1e-5, "lr=1e-5"),
            "advantage": Value("n_step", "returns of the rewards to the end of the rollout, and the value after it"),
            "n_step": Value(10, "n_step=10"),
            "num_steps": Value(10, "n_step=10"),
            "num_minibatches": Value(1, "the whole rollout"),
            "update_epochs": Value(3, "K_epochs=3"),
            "gamma": Value(0.999, "gamma=0.999"),
            "clip_coef": Value(0.1, "eps_clip=0.1"),
            "clip_coef_vf": Value(0.1, "eps_clip=0.1"),
            "value_clip_mode": Value("max", "the larger of both squared errors"),
            "ent_coef": Value(0.0, "no entropy bonus"),
            "vf_coef": Value(2.0, "the loss has the whole squared error"),
            "max_grad_norm": Value(None, "max_grad_norm=inf"),
            "clip_grads": Value("apart", "each parameter group by itself"),
            "target_kl": Value(None, "the KL is only logged"),
            "normalize_advantage": Value("none", "advantages as they are"),
            "adam_eps": Value(1e-8, "torch.optim.Adam"),
            "normalize_observation": Value(False, "none"),
            "normalize_value": Value(False, "values are learned in units of the return"),
            "share_encoders": Value(False, "actor, critic"),
        },
        network="networks of one's own",
        differences=(
            "rollouts ignore the end of episodes, since all problems of a batch end together",
            "advantages are computed again in every epoch, here once an update",
        ),
    ),
    "brax": Preset(
        "Brax: arguments of brax.training.agents.ppo.train",
        {
            "lr": Value(1e-4, "learning_rate=1e-4"),
            "kl_threshold": Value(0.01, "desired_kl=0.01"),
            "lr_min": Value(1e-5, "learning_rate_schedule_min_lr=1e-5"),
            "lr_max": Value(1e-2, "learning_rate_schedule_max_lr=1e-2"),
            "learn_step": Value(5120, "batch_size=32 x num_minibatches=16 x unroll_length=10"),
            "num_minibatches": Value(16, "num_minibatches=16"),
            "update_epochs": Value(2, "num_updates_per_batch=2"),
            "gamma": Value(0.9, "discounting=0.9"),
            "gae_lambda": Value(0.95, "gae_lambda=0.95"),
            "clip_coef": Value(0.3, "clipping_epsilon=0.3"),
            "clip_coef_vf": Value(None, "values are not clipped"),
            "ent_coef": Value(1e-4, "entropy_cost=1e-4"),
            "vf_coef": Value(0.5, "vf_coefficient=0.5, of half the squared error"),
            "max_grad_norm": Value(None, "max_grad_norm=None"),
            "target_kl": Value(None, "none"),
            "normalize_advantage": Value("minibatch", "normalize_advantage=True"),
            "advantage_ddof": Value(0, "jnp.std"),
            "bootstrap_truncated": Value(True, "bootstrap_on_timeout=False: truncated steps have no advantage"),
            "adam_eps": Value(1e-8, "optax.adam"),
            "normalize_observation": Value(False, "normalize_observations=False"),
            "normalize_value": Value(False, "values are learned in units of the return"),
            "share_encoders": Value(False, "two networks"),
        },
        network="actor four layers of 32, critic five of 256, swish",
        architecture=hidden_layers([32] * 4, [256] * 5) | activation("SiLU"),
        differences=(
            "advantages are computed again in every minibatch, from unrolls of 10 steps that are bootstrapped each; "
            "here once an update over the whole rollout",
            "bootstrap_on_timeout=False leaves steps that a time limit truncates without an advantage; here, and with "
            "bootstrap_on_timeout=True, they are bootstrapped",
            "continuous actions pass through tanh: squash_output: true",
            "the standard deviation depends on the observation: state_dependent_std: true",
        ),
    ),
    "isaaclab": Preset(
        "Isaac Lab 2: rsl_rl's PPO, with the configuration of its locomotion tasks (ANYmal-D)",
        {
            "lr": Value(1e-3, "learning_rate=1e-3"),
            "lr_schedule": Value("kl", 'schedule="adaptive"'),
            "kl_threshold": Value(0.01, "desired_kl=0.01"),
            "lr_min": Value(1e-5, "max(1e-5, lr / 1.5)"),
            "lr_max": Value(1e-2, "min(1e-2, lr x 1.5)"),
            "num_steps": Value(24, "num_steps_per_env=24"),
            "num_minibatches": Value(4, "num_mini_batches=4"),
            "update_epochs": Value(5, "num_learning_epochs=5"),
            "gamma": Value(0.99, "gamma=0.99"),
            "gae_lambda": Value(0.95, "lam=0.95"),
            "clip_coef": Value(0.2, "clip_param=0.2"),
            "clip_coef_vf": Value(0.2, "use_clipped_value_loss=True, by clip_param"),
            "value_clip_mode": Value("max", "the larger of both squared errors"),
            "ent_coef": Value(0.005, "entropy_coef=0.005"),
            "vf_coef": Value(2.0, "value_loss_coef=1.0, of the whole squared error"),
            "max_grad_norm": Value(1.0, "max_grad_norm=1.0"),
            "clip_grads": Value("together", "one norm over all parameters"),
            "target_kl": Value(None, "the KL adapts the rate"),
            "normalize_advantage": Value("rollout", "normalize_advantage_per_mini_batch=False"),
            "advantage_ddof": Value(1, "torch.std"),
            "bootstrap_truncated": Value(True, "gamma V(s) is added to the reward at time_outs"),
            "adam_eps": Value(1e-8, "torch.optim.Adam"),
            "normalize_observation": Value(False, "actor_obs_normalization=False"),
            "normalize_value": Value(False, "values are learned in units of the return"),
            "action_std_init": Value(0.0, "init_noise_std=1.0"),
            "share_encoders": Value(False, "two networks"),
        },
        network="three layers of 512, 256, 128, elu",
        architecture=hidden_layers([512, 256, 128]) | activation("ELU"),
        differences=(
            "the rate is adapted after every minibatch, here after every epoch",
            "a time limit is bootstrapped by the value of the last state but one, here by that of the last observation",
        ),
    ),
}
"""The presets by name."""


def preset_values(
    name: str, given: Mapping[str, Any], *, num_envs: int = 1, evolving: Collection[str] = (), algorithm: str = "PPO"
) -> dict[str, Any]:
    """Return the values of a preset for settings of an algorithm that are not given.

    A setting that is given, or evolves, replaces an alternative to it, such as `num_steps` in place of `learn_step`;
    one that evolves starts from the preset's value, converted for `num_envs` environments. Values that have no effect
    with the other settings are left out.
    """
    names = _with_bases(algorithm)
    values = PRESETS[check_preset(name)].values(*names, *(("recurrent",) if given.get("recurrent") is True else ()))
    schedules = given.get("schedules")
    names_given = {*given, *(f"schedules.{name}" for name in (schedules if isinstance(schedules, Mapping) else ()))}
    for one, other in (("num_steps", "learn_step"), ("num_minibatches", "batch_size"), ("lr_schedule", "schedules.lr")):
        if {one, other} & names_given:
            values.pop(one, None)
            values.pop(other, None)
    num_envs = _count(num_envs) or 1
    steps = _steps_of_update({**values, **given}, num_envs)
    if "PPO" in names and "batch_size" in values:  # as the systems do with a rollout that is smaller
        values["batch_size"] = min(values["batch_size"], -(-steps // num_envs) * num_envs)
    if "learn_step" in evolving and "num_steps" in values:
        values["learn_step"] = num_envs * values.pop("num_steps")
    if "num_steps" in evolving and "learn_step" in values:
        values["num_steps"] = max(1, values.pop("learn_step") // num_envs)
    if "batch_size" in evolving and "num_minibatches" in values:
        values["batch_size"] = max(1, steps // values.pop("num_minibatches"))
    if "num_minibatches" in evolving and "batch_size" in values:
        values["num_minibatches"] = max(1, steps // values.pop("batch_size"))
    filled = {setting: value for setting, value in values.items() if setting not in given}
    for names, other, _, is_allowed in NEEDED:
        value = {**filled, **given}.get(other, getattr(PPOConfig, other))
        if other not in evolving and not is_allowed(value):
            filled = {setting: one for setting, one in filled.items() if setting not in names}
    return filled


def _with_bases(algorithm: str) -> list[str]:
    """Return the names of the algorithms that a registered one is a subclass of, and its own, which is the last."""
    bases: Any = getattr(registered("algorithm").get(algorithm), "__mro__", ())
    names = [name for base in reversed(bases) if isinstance(name := getattr(base, "algo", None), str)]
    return [*dict.fromkeys([*names, algorithm])]


def _steps_of_update(settings: Mapping[str, Any], num_envs: int) -> int:
    """Return the env steps of an update; the default for a value that is not legal, which its own check refuses."""
    per_env, of_all_envs = settings.get("num_steps"), settings.get("learn_step")
    steps = _count(of_all_envs) if per_env is None else num_envs * _count(per_env)
    return steps or PPOConfig.learn_step


def _count(value: Any) -> int:
    """Return a positive whole number, 0 for any other value."""
    try:
        return max(0, whole(value))
    except NotConvertible:
        return 0


ARGUMENTS = {"environment.num_envs": "num_envs", "run.device": "device", "seed": "seed"}
"""Settings of other sections of a configuration that are arguments of an agent."""
ELSEWHERE = {"environment": "make_vect_envs", "population": "population()"}
"""The function that takes the settings of a section as arguments."""


def take_foreign(
    given: Mapping[str, Any], own: Collection[str], *, num_envs: int | None = None
) -> tuple[dict[str, Any], Conversion]:
    """Return the settings that have names of this package, and those of another system, converted.

    `like: sb3` reads every setting as SB3 does, with SB3's defaults for the others. With `preset: sb3` names of this
    package keep their meaning, and names that only SB3 has are converted.

    Raises:
        ConfigurationError: the system is unknown, or a setting has no equivalent, is ambiguous, or is not one of PPO.
    """
    rest = dict(given)
    like = rest.pop("like", None)
    if like is not None:
        if like not in SYSTEMS:
            raise unknown_name("like", like, SYSTEMS)
        if rest.setdefault("preset", like) != like:
            raise ConfigurationError(f"preset={rest['preset']!r} contradicts like={like!r}; leave one of them out")
    system = check_preset(rest.get("preset", DEFAULT_PRESET))
    rules = SYSTEMS.get(system, {})
    names = [name for name in rest if canonical(name) in rules and (like is not None or name not in own)]
    if like is None and names:
        _check_unambiguous(rest, own, system, names[0])
    found = convert(system, {name: rest.pop(name) for name in names}, num_envs=num_envs) if names else Conversion()
    if found.refused:
        raise ConfigurationError("; ".join(f"{name} of {system}: {why}" for name, why in found.refused.items()))
    if found.settings.get("algorithm.name") == "OpenAIES":
        raise ConfigurationError(
            f"{found.comments['algorithm.name']} is a setting of the evolution strategy of {system}; allowed are those "
            "of PPO, and for the strategy name: OpenAIES without a preset, as agilerl-like convert writes it"
        )
    return rest, found


def _check_unambiguous(given: Mapping[str, Any], own: Collection[str], system: str, foreign: str) -> None:
    """Raise ConfigurationError if a setting has a meaning of its own in a system of which another setting is given."""
    for name, value in given.items():
        rule = SYSTEMS[system].get(name)
        if name not in own or rule is None or ARGUMENTS.get(rule.setting) == name:
            continue
        if rule.meaning or rule.setting != f"algorithm.{name}":
            raise ConfigurationError(
                f"{name}={value!r} is ambiguous beside {foreign}: in {system}, {name} "
                f"{rule.meaning.format(name) or f'is {rule.setting}'}; allowed are like: {system}, which reads all "
                f"settings as {system} does, and names of this package alone"
            )


def as_arguments(found: Conversion, algorithm: str) -> dict[str, Any]:
    """Return converted settings as arguments of an agent.

    Raises:
        ConfigurationError: a setting is an argument of another function.
    """
    arguments: dict[str, Any] = {}
    for path, value in found.settings.items():
        section, _, name = path.partition(".")
        if path in ARGUMENTS:
            arguments[ARGUMENTS[path]] = value
        elif section in ("algorithm", "network"):
            keys = name.split(".") if section == "algorithm" else ["net_config", *name.split(".")]
            set_entry(arguments, keys, value)
        else:
            function = ELSEWHERE.get(section, "train_on_policy")
            raise ConfigurationError(
                f"{found.comments[path].partition(';')[0] or path} is {path} here, an argument of {function} and not "
                f"of {algorithm}; leave it out"
            )
    return arguments


def set_entry(data: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    """Set an entry of nested mappings, which are made where they are absent."""
    for key in keys[:-1]:
        if not isinstance(data.get(key), dict):
            data[key] = {}
        data = data[key]
    data[keys[-1]] = value


def _has_encoder(space: Any) -> bool:
    """Whether the layers of SB3's `net_arch` stand behind an encoder of observations: of images and several parts."""
    return isinstance(space, Dict | Tuple) or len(getattr(space, "shape", None) or ()) > 2


def reads_presets(function: Callable[Arguments, ResultT]) -> Callable[Arguments, ResultT]:
    """Decorate a constructor or `population`: a preset gives the settings that the call does not.

    Settings of the preset's system are converted; see `take_foreign`. Algorithms without the setting `preset` are not
    affected.
    """
    parameters = inspect.signature(function).parameters
    positional = [name for name, one in parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD]

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> ResultT:
        cls: Any = args[0] if isinstance(args[0], type) else type(args[0])
        settings = cls.config.__dataclass_fields__
        if "preset" not in settings or ("preset" not in kwargs and "like" not in kwargs):
            return function(*args, **kwargs)
        by_place = dict(zip(positional, args, strict=False))
        named: dict[str, Any] = dict(kwargs)
        space = {**by_place, **named}.get("observation_space")
        if named.get("like") == "sb3" and "policy_kwargs" in named and _has_encoder(space):
            named.setdefault("policy", "MultiInputPolicy")
        own = {*inspect.signature(cls.__init__).parameters, *settings, *parameters}
        rest, found = take_foreign(named, own, num_envs=cast(Any, {**by_place, **kwargs}.get("num_envs")))
        converted = as_arguments(found, cls.__name__)
        for name in converted.keys() & {*rest, *by_place}:
            raise ConfigurationError(f"{name} is given twice: by this name and by another one of {rest['preset']}")
        given = {**converted, **rest}
        filled = preset_values(
            given["preset"],
            {**by_place, **given},
            num_envs=cast(Any, {**by_place, **given}.get("num_envs")) or 1,
            evolving={**by_place, **given}.get("hp_config") or (),
            algorithm=cls.algo,
        )
        return function(*args, **{**given, **filled})  # pyright: ignore[reportCallIssue]

    return call
