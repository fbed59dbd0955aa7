"""The errors a user can meet, one class for each thing a caller may want to do about it."""

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
    """How the command ends; after a signal it is 128 + its number (SIGINT 130, SIGPIPE 141, SIGTERM 143).

    The numbers above 63 are those of sysexits.h.
    """

    DONE = 0
    PROBE_FAILED = 1
    """A probe was not solved."""
    USAGE = 2
    """The configuration or the arguments are wrong."""
    IOERR = 74
    """Something could not be read or written."""
    TEMPFAIL = 75
    """The run broke off, and may be resumed: an env, a process of it, or the numbers of all members failed."""


class Terminated(SystemExit):
    """The process ends at once because it was asked to twice; `sys.exit` in an environment is another matter."""


class ConfigurationError(ValueError):
    """A setting is wrong: the message names the field, its value and what is allowed (`ExitCode.USAGE`)."""


class EnvStepError(RuntimeError):
    """An environment broke its contract while it ran, for example by returning NaN."""


class CheckpointError(RuntimeError):
    """A checkpoint is missing, damaged, foreign or of an unknown version."""


class PopulationDivergedError(RuntimeError):
    """Every member of a population has a fitness, loss or weight that is not finite, so nobody can be a parent."""


class ForeignSetting(NamedTuple):
    """What a setting of another library is here: section and name, and how its value is converted."""

    setting: str
    conversion: str = ""

    @property
    def name(self) -> str:
        """The name alone, as Python's arguments have it."""
        return self.setting.rpartition(".")[2]


_STEPS_OF_ALL = "counts steps of all environments of a member: {} x num_envs"
FOREIGN_SETTINGS: Mapping[str, ForeignSetting] = {
    **dict.fromkeys(("learning_rate", "learning_rates"), ForeignSetting("algorithm.lr")),
    **{
        name: ForeignSetting("algorithm.learn_step", _STEPS_OF_ALL.format(name))
        for name in ("n_steps", "num_steps", "rollouts")
    },
    **{
        name: ForeignSetting("algorithm.batch_size", f"counts samples: learn_step / {name}")
        for name in ("n_minibatches", "num_minibatches", "mini_batches")
    },
    **dict.fromkeys(("minibatch_size", "sgd_minibatch_size"), ForeignSetting("algorithm.batch_size")),
    **dict.fromkeys(
        ("n_epochs", "num_epochs", "learning_epochs", "num_sgd_iter"), ForeignSetting("algorithm.update_epochs")
    ),
    **dict.fromkeys(("clip_range", "clip_param", "clip_epsilon", "ratio_clip"), ForeignSetting("algorithm.clip_coef")),
    "clip_range_vf": ForeignSetting("algorithm.clip_coef_vf", "is in units of the normalised value"),
    "value_clip": ForeignSetting("algorithm.clip_coef_vf", "is in units of the normalised value"),
    **dict.fromkeys(("entropy_coef", "entropy_coeff", "entropy_loss_scale"), ForeignSetting("algorithm.ent_coef")),
    **{
        name: ForeignSetting("algorithm.vf_coef", f"weighs half the squared error: 2 x {name}")
        for name in ("value_loss_scale", "value_coef", "vf_loss_coeff")
    },
    **dict.fromkeys(("lam", "lambda_", "gae_lam"), ForeignSetting("algorithm.gae_lambda")),
    **dict.fromkeys(("discount", "discount_factor"), ForeignSetting("algorithm.gamma")),
    **dict.fromkeys(("grad_norm_clip", "grad_clip", "max_grad"), ForeignSetting("algorithm.max_grad_norm")),
    **dict.fromkeys(("kl_threshold", "desired_kl"), ForeignSetting("algorithm.target_kl")),
    "log_std_init": ForeignSetting("algorithm.action_std_init", "is in half-widths of the action space"),
    **{
        name: ForeignSetting("training.max_steps", "counts the env steps of one member")
        for name in ("total_timesteps", "timesteps", "total_steps", "n_timesteps")
    },
    "eval_freq": ForeignSetting("training.evo_steps", "counts the env steps of one member between evaluations"),
    "n_eval_episodes": ForeignSetting("training.eval_loop"),
    **dict.fromkeys(
        ("n_envs", "num_vec_envs"), ForeignSetting("environment.num_envs", "counts the copies of each member")
    ),
    **dict.fromkeys(("env", "env_id", "env_name"), ForeignSetting("environment.id")),
    **dict.fromkeys(("pop_size", "population_size", "n_agents"), ForeignSetting("population.size")),
    "net_arch": ForeignSetting("network.encoder_config", "holds them as hidden_size"),
    "policy_kwargs": ForeignSetting("network", "has encoder_config and head_config; in Python it is net_config"),
    "net_config": ForeignSetting("network"),
    "hp_config": ForeignSetting("hyperparameters"),
    "tensorboard_log": ForeignSetting("run.tensorboard", "is true or false: curves are in the run's folder"),
}
"""Names of Stable-Baselines3, CleanRL, skrl, RLlib and AgileRL -> the setting here."""


def foreign_setting(name: object) -> ForeignSetting | None:
    """Return what another library's setting is here; None if no library is known to have it."""
    return FOREIGN_SETTINGS.get(str(name).lower().replace("-", "_"))


def unknown_name(field: str, value: object, allowed: Iterable[str]) -> ConfigurationError:
    """Build the error for a name that is not among `allowed`: its name here, or the nearest names."""
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
    """Build the error for a setting that has another name here."""
    conversion = f", which {foreign.conversion}" if foreign.conversion else ""
    return ConfigurationError(f"{field}={value!r} is unknown; did you mean {here!r}{conversion}?")


def check_argument_names(function: Callable[Arguments, ResultT]) -> Callable[Arguments, ResultT]:
    """Decorate a function that takes `**settings`: a required argument under another name is a ConfigurationError.

    Python itself says only that an argument is missing, for it takes the name given for one of the settings.
    """
    parameters = inspect.signature(function).parameters
    required = [
        name for name, one in parameters.items() if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD
    ]

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> ResultT:
        missing = [name for name in required[len(args) :] if name not in kwargs]
        for name in missing:
            others = [given for given in kwargs if given not in parameters]
            foreign = [given for given in others if (meant := foreign_setting(given)) and meant.name == name]
            for given in foreign or difflib.get_close_matches(name, others, n=1, cutoff=0.8):
                raise renamed_error("argument", given, name, ForeignSetting(name))
        return function(*args, **kwargs)

    return call
