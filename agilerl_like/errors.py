"""Errors that reach users, one class for each way of handling them."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from enum import IntEnum
from functools import wraps
from numbers import Integral, Real
from typing import Any, NamedTuple, ParamSpec, TypeVar

from agilerl_like.foreign_settings import FOREIGN_NAMES, canonical

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
    otherwise: str = ""
    """The setting where there is no such one; empty: none."""

    @property
    def name(self) -> str:
        """The name without its section, as Python's arguments have it."""
        return self.setting.rpartition(".")[2]


_MORE_FOREIGN_NAMES = {
    ("algorithm.num_minibatches", ""): "n_minibatches",
    ("algorithm.batch_size", ""): "minibatch_size sgd_minibatch_size",
    ("algorithm.update_epochs", ""): "num_epochs num_sgd_iter",
    ("algorithm.clip_coef", ""): "clip_epsilon",
    ("algorithm.ent_coef", ""): "entropy_coeff",
    ("algorithm.vf_coef", "weighs half the squared error: 2 x {}"): "value_coef vf_loss_coeff",
    ("algorithm.gae_lambda", ""): "lambda_ gae_lam",
    ("algorithm.max_grad_norm", ""): "grad_clip max_grad",
    ("algorithm.action_std_init", "is in half-widths of the action space"): "log_std_init",
    ("algorithm.memory_size", ""): "buffer_size replay_size replay_buffer_size",
    ("algorithm.learn_step", "counts env steps; {} counts steps of all envs at once"): "train_freq train_frequency",
    ("algorithm.target_update_interval", "counts gradient steps; {} counts env steps"): "target_network_frequency",
    ("algorithm.tau", "is 1 - {}"): "polyak",
    ("algorithm.learning_starts", ""): "start_steps update_after",
    ("algorithm.lr", ""): "lr_critic",
    ("algorithm.lr_actor", ""): "policy_lr actor_lr actor_learning_rate",
    ("algorithm.eps_start", ""): "exploration_initial_eps start_e initial_epsilon",
    ("algorithm.eps_end", ""): "exploration_final_eps end_e final_epsilon",
    ("algorithm.eps_share", ""): "exploration_fraction",
    ("algorithm.expl_noise", "is in half-widths of the action space"): "exploration_noise action_noise",
    ("algorithm.target_noise", "is in half-widths of the action space"): "target_policy_noise policy_noise",
    ("algorithm.noise_clip", "is in half-widths of the action space"): "target_noise_clip",
    ("algorithm.policy_delay", ""): "policy_frequency policy_freq",
    ("algorithm.target_entropy_scale", "is -{} divided by the number of action dimensions"): "target_entropy",
    (
        "algorithm.critic_observation",
        "is 'state' (env.state()) or 'joint' (all agents' observations) for the central critic of a team",
    ): "centralized_critic centralised_critic central_critic use_centralized_critic",
    ("algorithm.groups", "maps each agent to its group, which has one policy"): "policies policy_mapping_fn",
    ("algorithm.frozen_groups", "lists the groups that do not learn"): "policies_to_train",
    ("algorithm.rewards", "is 'sum' or 'mean' for a shared reward"): "common_reward share_reward shared_reward",
    ("algorithm.agent_id_one_hot", ""): "obs_agent_id",
    (
        "algorithm.target_entropy_scale",
        "is the target of the temperature; it is always learned, and {} has no equivalent",
    ): "alpha autotune alpha_lr",
    ("training.max_steps", "counts the env steps of one member"): "timesteps total_steps",
    ("training.max_seconds", ""): "time_budget_s",
    ("training.evo_steps", "counts the env steps of one member"): "perturbation_interval",
    ("environment.num_envs", "counts the copies of each member"): "num_vec_envs",
    ("environment.id", ""): "env",
    ("population.size", ""): "n_agents",
    ("network.encoder_config", "holds them as hidden_size"): "net_arch",
    ("network", ""): "net_config",
    ("hyperparameters", ""): "hp_config",
}
"""Names of RLlib, EPyMARL, PureJaxRL and others, of which there are no presets, and names inside of other settings."""
FOREIGN_SETTINGS: Mapping[str, ForeignSetting] = {
    **{
        name: ForeignSetting(setting, conversion.format(name))
        for (setting, conversion), names in _MORE_FOREIGN_NAMES.items()
        for name in names.split()
    },
    **{
        name: ForeignSetting("algorithm.lr_critic", otherwise="algorithm.lr")
        for name in (
            "critic_lr",
            "critic_learning_rate",
            "learning_rate_critic",
            "q_lr",
            "qf_learning_rate",
            "value_lr",
            "vf_lr",
        )
    },
    **{name: ForeignSetting(*known) for name, known in FOREIGN_NAMES.items()},
}
"""Names of other systems -> the setting here."""


_OF_OTHER_ALGORITHMS: Mapping[str, ForeignSetting] = {
    "ent_coef": FOREIGN_SETTINGS["alpha"]._replace(
        conversion=FOREIGN_SETTINGS["alpha"].conversion.replace("alpha", "ent_coef")
    ),
    "n_steps": ForeignSetting("algorithm.n_step"),
    "alpha": ForeignSetting("algorithm.lr"),
}
"""Names -> the setting here of algorithms that lack the one in `FOREIGN_SETTINGS`, or that have no such name."""


def foreign_setting(name: object, allowed: Iterable[str] = ()) -> ForeignSetting | None:
    """Return the setting here that corresponds to another library's; None if no library is known to have it.

    `allowed` are the names here, which decide where algorithms have different settings for it.
    """
    found, names = FOREIGN_SETTINGS.get(canonical(name)), {*allowed}
    for known in (found, _OF_OTHER_ALGORITHMS.get(canonical(name))):
        if known is not None and {known.name, known.setting} & names:
            return known
    return found if found is None or not found.otherwise else found._replace(setting=found.otherwise)


def short_repr(value: Any) -> str:
    """Return a `repr` of one line and at most 80 characters; of a large array, its shape and dtype.

    An integer of many digits is described, and a value that contains one by its type, because their `repr` may raise.
    """
    if hasattr(type(value), "__array__") and hasattr(value, "dtype") and math.prod(value.shape) > 4:
        return f"an array of shape {tuple(value.shape)} and dtype {value.dtype}"
    if isinstance(value, int) and abs(value) >= 2**64:
        return f"<integer of {int(math.log10(2) * value.bit_length())} digits>"
    try:
        text = " ".join(repr(value).split())
    except (ValueError, RecursionError):
        return f"<{type(value).__name__}>"
    return text if len(text) <= 80 else f"{text[:77]}..."


SHOWN_NAMES = 40
"""Names that an error lists if none is near."""


def unknown_name(field: str, value: object, allowed: Iterable[str]) -> ConfigurationError:
    """Build the error for a name that is not in `allowed`; it suggests another library's equivalent or near names."""
    names = {name.lower(): name for name in sorted(allowed)}
    foreign = foreign_setting(value, names.values())
    if foreign is not None and {foreign.name, foreign.setting} & {*names}:
        return renamed_error(field, value, foreign.name, foreign)
    if foreign is not None and "net_config" in names:  # arguments in Python
        if foreign.setting == "network":
            hint = '; like="sb3" takes it as it is' if value == "policy_kwargs" and "preset" in names else ""
            known = foreign._replace(conversion=foreign.conversion.partition("; in Python")[0])
            return ConfigurationError(f"{renamed_error(field, value, 'net_config', known)}{hint}")
        if foreign.setting.startswith("training.") or foreign.setting == "run.tensorboard":
            return renamed_error(field, value, f"{foreign.name} of train_on_policy", foreign)
    near = [names[key] for key in difflib.get_close_matches(str(value).lower(), names, n=3, cutoff=0.5)]
    hint = (
        f"did you mean {' or '.join(map(repr, near))}?"
        if near
        else f"allowed are: {', '.join([*names.values()][:SHOWN_NAMES])}{', …' * (len(names) > SHOWN_NAMES)}"
    )
    of_agent = "; settings of the algorithm are arguments of its `population`" if "pop" in names else ""
    return ConfigurationError(f"{field}={value!r} is unknown; {hint}{of_agent}")


def renamed_error(field: str, value: object, here: str, foreign: ForeignSetting) -> ConfigurationError:
    """Build the error for a setting that is called `here` in this library."""
    conversion = f", which {foreign.conversion}" if foreign.conversion else ""
    return ConfigurationError(f"{field}={value!r} is unknown; did you mean {here!r}{conversion}?")


def check_argument_names(function: Callable[Arguments, ResultT]) -> Callable[Arguments, ResultT]:
    """Decorate a function: an argument under another name is a ConfigurationError that names the right one.

    Where the function takes `**settings`, that holds for required arguments. Python itself would only report a missing
    argument, because it takes the misnamed one for a setting.
    """
    parameters = inspect.signature(function).parameters
    takes_settings = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
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
        for name in () if takes_settings else (name for name in kwargs if name not in parameters):
            raise unknown_name("argument", name, parameters.keys() - {"self"})
        return function(*args, **kwargs)

    return call


def check_init_names(cls: type[ResultT]) -> type[ResultT]:
    """Decorate a class: its constructor has the errors of `check_argument_names`."""
    cls.__init__ = check_argument_names(cls.__init__)
    return cls


def check_mapping(field: str, value: object) -> None:
    """Raise ConfigurationError unless a value maps names to settings."""
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{field}={value!r:.100} must be a mapping from names to values")


def tuple_of(field: str, given: Any, allowed: str) -> tuple[Any, ...]:
    """Return the entries of an argument; ConfigurationError, with what is `allowed`, if it has none to iterate over."""
    if not isinstance(given, Iterable):
        raise ConfigurationError(f"{field}={given!r:.100}; allowed is {allowed}")
    return tuple(given)


def is_count(value: object, least: int = 1) -> bool:
    """Return whether a value is a whole number from `least` on, of Python or numpy; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def set_count_field(record: Any, name: str, least: int = 1) -> None:
    """Replace the whole number in a field of a frozen dataclass by an `int`, which a file can store.

    Raises:
        ConfigurationError: the value is no whole number of at least `least`.
    """
    value = getattr(record, name)
    if not is_count(value, least):
        raise ConfigurationError(f"{name}={value!r:.100} must be a whole number of at least {least}")
    object.__setattr__(record, name, int(value))


def set_tuple_field(record: Any, name: str) -> None:
    """Replace the list in a field of a frozen dataclass by a tuple.

    Raises:
        ConfigurationError: the value is neither a list nor a tuple.
    """
    value = getattr(record, name)
    if not isinstance(value, list | tuple):
        raise ConfigurationError(f"{name}={value!r:.100}; allowed is a list")
    object.__setattr__(record, name, tuple(value))


def check_scalar_fields(record: Any) -> None:
    """Raise ConfigurationError if a field of a dataclass that is declared as a number or a bool is something else."""
    for each in fields(record):
        kinds, value = str(each.type).split(" | "), getattr(record, each.name)
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        if kinds[0] in ("int", "float") and not is_number and not (value is None and "None" in kinds):
            allowed = "a number or None" if "None" in kinds else "a number"
            raise ConfigurationError(f"{each.name}={value!r:.100} must be {allowed}")
        if kinds[0] == "int" and value is not None and not isinstance(value, Integral):
            raise ConfigurationError(f"{each.name}={value!r:.100} must be a whole number")
        if each.type == "bool" and not isinstance(value, bool):
            raise ConfigurationError(f"{each.name}={value!r:.100} must be True or False")
