"""Errors that reach users, one class for each way of handling them."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from functools import wraps
from typing import NamedTuple, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
ResultT = TypeVar("ResultT")


class ExitCode(IntEnum):
    """Exit codes of the command: above 63 those of sysexits.h; after a signal 128 + its number (SIGINT 130)."""

    DONE = 0
    PROBE_FAILED = 1
    """A probe was not solved."""
    USAGE = 2
    """The configuration or the arguments are wrong."""
    IOERR = 74
    """A file could not be read or written."""
    TEMPFAIL = 75
    """An environment or process failed, or all members diverged; the run can be resumed."""


class Terminated(SystemExit):
    """A second stop signal ends the process at once; a `sys.exit` of an environment does not raise this."""


class ConfigurationError(ValueError):
    """A setting is wrong: the message names the field, its value and what is allowed (`ExitCode.USAGE`)."""


class EnvStepError(RuntimeError):
    """An environment broke its contract while it ran, for example by returning NaN."""


class CheckpointError(RuntimeError):
    """A checkpoint is missing, damaged, not one of ours or of an unknown version."""


class PopulationDivergedError(RuntimeError):
    """Every member has a fitness, loss or weight that is not finite, so none can be a parent."""


class ForeignSetting(NamedTuple):
    """The setting here (section and name) that another library's setting corresponds to."""

    setting: str
    conversion: str = ""
    """How the value is converted, as the end of "which ..."."""

    @property
    def name(self) -> str:
        """The name without its section, as Python's arguments have it."""
        return self.setting.rpartition(".")[2]


_FOREIGN_NAMES = {
    ("algorithm.lr", ""): "learning_rate learning_rates",
    ("algorithm.learn_step", "counts steps of all environments of a member: {} x num_envs"): ("n_steps rollouts"),
    ("algorithm.batch_size", "counts samples: learn_step / {}"): "n_minibatches mini_batches",
    ("algorithm.batch_size", ""): "minibatch_size sgd_minibatch_size",
    ("algorithm.update_epochs", ""): "n_epochs num_epochs learning_epochs num_sgd_iter",
    ("algorithm.clip_coef", ""): "clip_range clip_param clip_epsilon ratio_clip",
    ("algorithm.clip_coef_vf", "is in units of the normalised value"): "clip_range_vf value_clip",
    ("algorithm.ent_coef", ""): "entropy_coef entropy_coeff entropy_loss_scale",
    ("algorithm.vf_coef", "weighs half the squared error: 2 x {}"): "value_loss_scale value_coef vf_loss_coeff",
    ("algorithm.gae_lambda", ""): "lam lambda_ gae_lam",
    ("algorithm.gamma", ""): "discount discount_factor",
    ("algorithm.max_grad_norm", ""): "grad_norm_clip grad_clip max_grad",
    ("algorithm.target_kl", ""): "desired_kl",
    ("algorithm.action_std_init", "is in half-widths of the action space"): "log_std_init",
    ("training.max_steps", "counts the env steps of one member"): "total_timesteps timesteps total_steps n_timesteps",
    ("training.evo_steps", "counts the env steps of one member between evaluations"): "eval_freq",
    ("training.eval_loop", ""): "n_eval_episodes",
    ("environment.num_envs", "counts the copies of each member"): "n_envs num_vec_envs",
    ("environment.id", ""): "env env_id env_name",
    ("population.size", ""): "pop_size population_size n_agents",
    ("network.encoder_config", "holds them as hidden_size"): "net_arch",
    ("network", "has encoder_config and head_config; in Python it is net_config"): "policy_kwargs",
    ("network", ""): "net_config",
    ("hyperparameters", ""): "hp_config",
    ("run.tensorboard", "is true or false: curves are in the run's folder"): "tensorboard_log",
}
FOREIGN_SETTINGS: Mapping[str, ForeignSetting] = {
    name: ForeignSetting(setting, conversion.format(name))
    for (setting, conversion), names in _FOREIGN_NAMES.items()
    for name in names.split()
}
"""Names of Stable-Baselines3, CleanRL, skrl, RLlib and AgileRL -> the setting here."""


def foreign_setting(name: object) -> ForeignSetting | None:
    """Return the setting here that corresponds to another library's; None if no library is known to have it."""
    return FOREIGN_SETTINGS.get(str(name).lower().replace("-", "_"))


def unknown_name(field: str, value: object, allowed: Iterable[str]) -> ConfigurationError:
    """Build the error for a name that is not in `allowed`; it suggests another library's equivalent or near names."""
    names = {name.lower(): name for name in sorted(allowed)}
    foreign = foreign_setting(value)
    if foreign is not None and {foreign.name, foreign.setting} & {*names}:
        return renamed_error(field, value, foreign.name, foreign)
    near = [names[key] for key in difflib.get_close_matches(str(value).lower(), names, n=3, cutoff=0.5)]
    hint = (
        f"did you mean {' or '.join(map(repr, near))}?" if near else f"allowed are: {', '.join([*names.values()][:40])}"
    )
    return ConfigurationError(f"{field}={value!r} is unknown; {hint}")


def renamed_error(field: str, value: object, here: str, foreign: ForeignSetting) -> ConfigurationError:
    """Build the error for a setting that is called `here` in this library."""
    conversion = f", which {foreign.conversion}" if foreign.conversion else ""
    return ConfigurationError(f"{field}={value!r} is unknown; did you mean {here!r}{conversion}?")


def check_argument_names(function: Callable[Arguments, ResultT]) -> Callable[Arguments, ResultT]:
    """Decorate a function that takes `**settings`: a required argument under another name is a ConfigurationError.

    Python itself would only report a missing argument, because it takes the misnamed one for a setting.
    """
    parameters = inspect.signature(function).parameters
    required = [
        name for name, one in parameters.items() if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD
    ]

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> ResultT:
        for name in (name for name in required[len(args) :] if name not in kwargs):
            others = [given for given in kwargs if given not in parameters]
            foreign = [given for given in others if (known := foreign_setting(given)) and known.name == name]
            for given in foreign or difflib.get_close_matches(name, others, n=1, cutoff=0.8):
                raise renamed_error("argument", given, name, ForeignSetting(name))
        return function(*args, **kwargs)

    return call
