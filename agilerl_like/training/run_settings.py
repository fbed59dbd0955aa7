"""The settings of a run as plain data in the shape of a configuration file.

A checkpoint holds those that a run keeps (`run_identity`), so that it cannot be resumed with others without an error,
whether they come from an edited config.yaml, the command line or a script. A script's run writes all of them
(`describe_run`) as its config.yaml.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, cast

import numpy as np
import torch

from agilerl_like.algorithms.agent_groups import death_of
from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm, UnsavedState
from agilerl_like.algorithms.exploration_ranges import with_exploration
from agilerl_like.algorithms.population import BasePopulation, founder_draws
from agilerl_like.algorithms.settings import setting_names, settings_to_json
from agilerl_like.envs.env_errors import env_name_of
from agilerl_like.envs.factory import TENSOR_BACKENDS, VecEnvConfig, env_config_of
from agilerl_like.envs.import_paths import import_path, plain
from agilerl_like.envs.wrapper_specs import to_json as wrapper_to_json
from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo import AUTO, AutoExplorer, AutoSelection, Explorer, Selection
from agilerl_like.networks.multi_agent_spec import MultiAgentSpec
from agilerl_like.registry import registered, settings_of
from agilerl_like.reporting.trackers import TRACKERS, Package
from agilerl_like.training.env_setup import EnvSetup
from agilerl_like.training.run_plan import NO_MUTATION, RunPlan
from agilerl_like.training.training_arguments import OF_SCRIPTS, TrainingArguments

SettingPath = tuple[str, ...]
SELECTION = "selection"
"""Key of the class name of the selection strategy."""
DEVICE = "device"
"""Argument of envs that step tensors, and of members."""
CHANGEABLE = "changeable"
"""Settings of a run that a resumed one may change, in its identity."""
OF_TRAINING = (
    *("max_steps", "evo_steps", "eval_loop", "eval_share", "checkpoint", "history"),
    *("target", "max_updates", "max_seconds"),
)
"""Those of them that are arguments of a run."""
DEFAULTS: Mapping[str, Any] = {
    **{name: getattr(TrainingArguments, name) for name in OF_TRAINING},
    "mutation": None,
    "mutation_hooks": 0,
}
"""Those of them that have a default, which a script that resumes a run may take by mistake."""
OWN_CLASS = "which is a class of the script's own; the file has the default"
"""Note on a strategy that no file can describe."""
MISSING = object()
"""Stands for a setting that is left out."""

# -- the environment


def environment_section(env_setup: EnvSetup) -> dict[str, Any]:
    """Return the section `environment`, without values that a file cannot hold; `name` is for display.

    The device of envs that step tensors is no part of it: a run may be resumed on another.
    """
    section: dict[str, Any] = {"name": env_name_of(env_setup.vec_env)}
    try:
        env_config = env_config_of(env_setup.vec_env)
    except ConfigurationError:  # the env was not made from a config
        return section
    for key, describe in _environment_fields(env_config).items():
        try:
            section[key] = describe()
        except ConfigurationError:  # a function without an import path, or arguments that are not plain data
            continue
    return section


def _environment_fields(env_config: VecEnvConfig) -> dict[str, Callable[[], Any]]:
    kwargs: Mapping[str, Any] = env_config.env_kwargs
    source, wrappers, instances = env_config.env, env_config.wrappers, env_config.instances
    training_wrappers: Sequence[Any] = env_config.training_wrappers
    if env_config.backend in TENSOR_BACKENDS:
        kwargs = {name: value for name, value in kwargs.items() if name != DEVICE}
    if "source" in kwargs and "extra_wrappers" in kwargs:  # made by `multi_agent_env_config`
        source, wrappers, kwargs = kwargs["source"], tuple(kwargs["extra_wrappers"]), kwargs["env_kwargs"]
        instances = tuple(_unpacked_instance(instance, kwargs) for instance in instances)
        training_wrappers = [cast(Any, wrapper)["wrapper"] for wrapper in training_wrappers]
    return {
        "id": lambda: source if isinstance(source, str) else import_path("env_name", source),
        "kwargs": lambda: plain("env_kwargs", dict(kwargs)),
        "wrappers": lambda: [wrapper_to_json(wrapper) for wrapper in wrappers],
        "training_wrappers": lambda: [wrapper_to_json(wrapper) for wrapper in training_wrappers],
        **_differences(env_config, instances),
    }


def _unpacked_instance(instance: Mapping[str, Any], env_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return an instance as it was given to `multi_agent_env_config`, without arguments that all envs have."""
    own = {name: x for name, x in instance["env_kwargs"].items() if x is not env_kwargs.get(name, MISSING)}
    return {**({"id": instance["source"]} if "source" in instance else {}), **own}


DIFFERENCES = {"instances": [], "aggregate": VecEnvConfig.aggregate, "info_keys": {}, "seeds": None}
"""The defaults of the settings of `_differences`, which a run leaves out."""


def _differences(env_config: VecEnvConfig, instances: Sequence[Mapping[str, Any]]) -> dict[str, Callable[[], Any]]:
    """Return the fields of envs that differ from each other, and of seeds and infos, without those at defaults."""
    found: dict[str, Callable[[], Any]] = {}
    if instances:
        found["instances"] = lambda: [plain("instances", dict(one)) for one in instances]
        found["aggregate"] = lambda: env_config.aggregate
    if env_config.info_keys:
        found["info_keys"] = lambda: dict(env_config.info_keys)
    if env_config.seeds is not None:
        found["seeds"] = lambda: env_config.seeds if isinstance(env_config.seeds, int) else list(env_config.seeds or ())
    return found


# -- the members


def _member_sections(population: BasePopulation) -> dict[str, Any]:
    """Return the sections that describe the members; a value that differs is a list with an entry for each member."""
    first: EvolvableAlgorithm = population[0]
    settings = _settings_of_members(population)
    names = dict.fromkeys(name for its in settings for name in its)
    return {
        "algorithm": {
            "name": first.algo,
            **{name: _common([its.get(name) for its in settings]) for name in names},
            **_plain(population.team_settings()),
        },
        "population": {"size": len(population)},
        "hyperparameters": first.hp_config.to_json(),
        "network": _common([_plain(agent.architecture.to_config()) for agent in population]),
        "seed": first.seed,
    }


def _settings_of_members(population: BasePopulation) -> list[dict[str, Any]]:
    return [{name: _plain(value) for name, value in settings_to_json(agent.settings()).items()} for agent in population]


def _common(values: list[Any]) -> Any:
    return values[0] if all(value == values[0] for value in values) else values


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):  # such as a learning rate from np.logspace; YAML has none
        value = value.item()
    if isinstance(value, Mapping):
        return {str(key): _plain(its) for key, its in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(its) for its in value]
    if isinstance(value, Enum):
        return _plain(value.value)
    return value if value is None or isinstance(value, str | int | float) else repr(value)


# -- the settings that a run keeps


def selection_name(selection: Selection | None) -> str:
    """Return the class name of a selection strategy; "none" without one."""
    return "none" if selection is None else type(selection).__qualname__


def run_identity(
    env_setup: EnvSetup,
    population: BasePopulation | None,
    plan: RunPlan,
) -> dict[str, Any]:
    """Return the settings that a run keeps, and those that may change; `population` may be None.

    If members have been trained, only their number, seed and ranges are settings.
    """
    members, training_args = {} if population is None else _member_sections(population), plan.training_args
    if population is not None and any(agent.steps[-1] for agent in population):
        members = {name: members[name] for name in ("population", "hyperparameters", "seed")}
    elif population is not None and UnsavedState.of(population[0]).networks is not None:  # which no file can describe
        del members["network"]
    return {
        "environment": environment_section(env_setup),
        **members,
        "training": {
            "fitness": training_args.fitness,
            "eval_steps": training_args.eval_steps,
            **({} if training_args.opponents == "self" else {"opponents": training_args.opponents}),
        },
        SELECTION: selection_name(plan.selection),
        CHANGEABLE: {
            **{name: getattr(training_args, name) for name in OF_TRAINING},
            DEVICE: None if population is None else str(population.device),
            "mutation": None if plan.explorer == NO_MUTATION else type(plan.explorer).__name__,
            "mutation_hooks": 0 if population is None else len(UnsavedState.of(population[0]).hooks),
        },
    }


def settings_back_at_default(run: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """Return the settings of a resumed run that are back at their default, with both values; "" if there are none."""
    old, new = run.get(CHANGEABLE) or {}, given.get(CHANGEABLE) or {}
    changed = [name for name in DEFAULTS if name in old and old[name] != new.get(name) == DEFAULTS[name]]
    return ", ".join(f"{name}={new[name]} (before: {old[name]})" for name in changed)


def check_identity(run: Mapping[str, Any], given: Mapping[str, Any], where: str, *, seed_is_drawn: bool) -> None:
    """Raise ConfigurationError, with every difference, if settings are not those that a run was started with.

    Sections that one side lacks are not compared, and with `seed_is_drawn` neither are settings that depend on the
    seed. A setting of the algorithm that one side lacks, because an earlier version wrote it, has its default.
    """
    old, new = ({**section, "environment": dict(section["environment"])} for section in (run, given))
    for section in (old, new):
        for name in (SELECTION, CHANGEABLE):
            section.pop(name, None)
    if all("id" in section["environment"] for section in (old, new)):
        for section in (old, new):
            section["environment"] = {**DIFFERENCES, **section["environment"]}
    _drop_unshared(old["environment"], new["environment"])
    for one, other in ((old, new), (new, old)):  # earlier releases stored the device of envs that step tensors
        kwargs = one["environment"].get("kwargs", {})
        if DEVICE in kwargs and DEVICE not in other["environment"].get("kwargs", {}):
            one["environment"]["kwargs"] = {name: value for name, value in kwargs.items() if name != DEVICE}
    if "id" in old["environment"]:  # the name follows from it
        old["environment"].pop("name", None)
        new["environment"].pop("name", None)
    _fill_defaults(old, new)
    if seed_is_drawn:
        new.pop("seed", None)
        for section in (old, new):
            _drop_sampled(section)
    _drop_unshared(old, new)
    before, now = dict(flatten_settings(old)), dict(flatten_settings(new))
    refused = [
        f"{'.'.join(place)}={repr_setting(now, place)} is {repr_setting(before, place)} in this run"
        for place in {**before, **now}
        if before.get(place, MISSING) != now.get(place, MISSING)
    ]
    if refused:
        raise ConfigurationError(
            f"{where}: {'; '.join(refused)}: a run keeps these settings; allowed are those that it was started with, "
            "or a new run in another folder"
        )


def _fill_defaults(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Add the defaults of settings of the algorithm that one of two sections has and the other lacks."""
    sections: list[Any] = [section.get("algorithm") for section in (old, new)]
    if not all(isinstance(section, dict) and "name" in section for section in sections):
        return
    config = getattr(registered("algorithm").get(sections[1]["name"]), "config", None)
    if config is None:
        return
    defaults = settings_to_json({name: getattr(config, name) for name in setting_names(config)})
    lacking = sections[0].keys() ^ sections[1].keys()
    filled = {name: _plain(value) for name, value in defaults.items() if name in lacking}
    old["algorithm"], new["algorithm"] = (
        {**filled, **section, **({"death": death_of(section)} if "rewards" in section else {})} for section in sections
    )


def _drop_unshared(one: dict[str, Any], other: dict[str, Any]) -> None:
    for key in one.keys() ^ other.keys():
        one.pop(key, None)
        other.pop(key, None)


def _drop_sampled(section: dict[str, Any]) -> None:
    """Drop settings in which members differ from the start, because they were sampled."""
    if isinstance(section.get("network"), list):
        del section["network"]
    if "algorithm" in section:
        sampled = section.get("hyperparameters", {})
        section["algorithm"] = {
            name: value
            for name, value in section["algorithm"].items()
            if not (name in sampled and isinstance(value, list))
        }


def repr_setting(settings: Mapping[SettingPath, Any], place: SettingPath) -> str:
    """Return the repr of a setting, or "left out"."""
    return repr(settings[place]) if place in settings else "left out"


def flatten_settings(section: Mapping[str, Any], above: SettingPath = ()) -> Iterator[tuple[SettingPath, Any]]:
    """Yield every setting with its path; an empty mapping is a setting."""
    for name, value in section.items():
        if isinstance(value, Mapping) and value:
            yield from flatten_settings(value, (*above, name))
        else:
            yield (*above, name), value


# -- all settings


@dataclass(frozen=True)
class RunDescription:
    """A run's settings in the shape of a configuration file, and notes on what it cannot hold."""

    settings: dict[str, Any]
    notes: tuple[str, ...]


def describe_run(
    env_setup: EnvSetup,
    population: BasePopulation,
    plan: RunPlan,
    *,
    run: Mapping[str, Any],
    left_out: Sequence[str] = (),
) -> RunDescription:
    """Describe the run of a script; `run` is the section of that name, `left_out` notes what no file can hold.

    Raises:
        ConfigurationError: a tracker in `run` is unknown.
    """
    members = _member_sections(population)
    environment, environment_notes = _environment_of(env_setup, population.device)
    begin = _settings_of_members(population)
    varied = [key for key in members["algorithm"] if any(its.get(key) != begin[0].get(key) for its in begin)]
    is_drawn = bool(varied) and set(varied) <= members["hyperparameters"].keys() and _are_drawn(population)
    algorithm = {
        key: begin[0][key] if key in varied else value
        for key, value in members["algorithm"].items()
        if key not in varied or key in begin[0]
    }
    algorithm_notes = [f"algorithm: members begin with different values of {', '.join(varied)}"]
    network, network_notes = _network_of(members["network"], population)
    choice, selection_notes = _selection_of(plan.selection)
    mutation, mutation_notes = _mutation_of(plan.explorer) if plan.selection is not None else (None, [])
    first, action_space = population[0], env_setup.spaces[-1]
    adds_ranges = with_exploration(first.config, action_space, first.settings(), first.hp_config) != first.hp_config
    if plan.selection == AutoSelection() and plan.explorer == AutoExplorer() and not adds_ranges:
        choice, mutation = {"evolution": AUTO}, {}
    trackers, tracker_notes = _trackers_of(run.get("trackers", ()))
    settings = {
        "environment": environment,
        "algorithm": algorithm,
        "population": {**members["population"], "sample_hyperparameters": is_drawn},
        "hyperparameters": members["hyperparameters"],
        "network": network,
        **choice,
        "mutation": mutation,
        "training": asdict(plan.training_args),
        "run": {**run, "trackers": trackers},
        "seed": first.seed,
    }
    steps = max(agent.steps[-1] for agent in population)
    training_notes = [f"members: they had been trained for {steps} env steps before; this file makes new ones"]
    opponents = plan.training_args.opponents
    opponent_notes = [f"training.opponents={opponents}: the script's own; resume and replay need that script"]
    notes = (
        *environment_notes,
        *(opponent_notes if opponents in OF_SCRIPTS else ()),
        *(training_notes if steps else ()),
        *(algorithm_notes if varied and not is_drawn else ()),
        *network_notes,
        *mutation_notes,
        *selection_notes,
        *tracker_notes,
        *left_out,
    )
    return RunDescription({key: value for key, value in settings.items() if value != {}}, notes)


def _are_drawn(population: BasePopulation) -> bool:
    """Whether all members but the first begin with what `sample_hyperparameters` draws for the seed."""
    first, *others = population
    draws = founder_draws(first.hp_config, len(others), first.seed)
    start = first.genome.hyperparameters
    wanted = [agent.repair({**start, **draw}) for agent, draw in zip(others, draws, strict=True)]
    return all(
        _plain(value) == _plain(its[name])
        for agent, its in zip(others, wanted, strict=True)
        for name, value in agent.hyperparameters.items()
    )


def _environment_of(env_setup: EnvSetup, device: torch.device) -> tuple[dict[str, Any], list[str]]:
    """Return the section `environment` with the envs of each member, or a note on an env that no file can describe."""
    section, vector = environment_section(env_setup), env_setup.vec_env
    name = section.pop("name")
    if {"id", "kwargs", "wrappers"} - section.keys():
        note = (
            f"environment: {name} was made by a function without an import path, or with arguments that cannot be "
            "written; `agilerl-like eval RUN --env ID` names one"
        )
        return {}, [note]
    env_config = env_config_of(vector)
    if env_config.backend in TENSOR_BACKENDS:
        own = torch.device(cast(Any, env_config.env_kwargs).get(DEVICE, "cpu"))
        if (own.type, own.index or 0) != (device.type, device.index or 0):  # else it is that of the run
            section["kwargs"] = {**section["kwargs"], DEVICE: str(own)}
    more = {name: getattr(env_config, name) for name in ("num_workers", "step_timeout", "autoreset")}
    changed = {name: _plain(value) for name, value in more.items() if value != getattr(VecEnvConfig, name)}
    return {**section, "num_envs": vector.num_envs, "backend": _backend_of(vector), **changed}, []


def _network_of(network: Any, population: BasePopulation) -> tuple[dict[str, Any], list[str]]:
    """Return the section `network`, or a note on networks that no file can describe."""
    if not population[0].group_class.has_networks:
        return {}, []
    if isinstance(network, list) or UnsavedState.of(population[0]).networks is not None:
        return {}, ["network: members begin with different architectures, or with networks of the script's own"]
    return {"groups": network} if isinstance(population[0].architecture, MultiAgentSpec) else network, []


def _backend_of(vector: Any) -> str:
    choice, env_config = getattr(vector, "backend_choice", None), env_config_of(vector)
    return getattr(choice, "requested", env_config.backend)


def _selection_of(selection: Selection | None) -> tuple[dict[str, Any], list[str]]:
    """Return the section `selection`, or a note on a strategy of the script's own."""
    if selection is None:
        return {}, []
    described = _strategy_of("selection", selection)
    if described is None:
        return {}, [f"selection: by {type(selection).__name__}, {OWN_CLASS}"]
    return {"selection": described}, []


def _mutation_of(explorer: Explorer) -> tuple[dict[str, Any], list[str]]:
    """Return the section `mutation`, or a note on an explorer of the script's own."""
    described = _strategy_of("explorer", explorer)
    if described is None:
        return {}, [f"mutation: by {type(explorer).__name__}, {OWN_CLASS}"]
    return {key: value for key, value in described.items() if value != "mutations"}, []


def _trackers_of(given: Sequence[str | Mapping[str, Any]]) -> tuple[list[Any], list[str]]:
    """Return `run.trackers`, and a note on each that a script registered, or whose options are no plain data."""
    written, notes = [], []
    for tracker in given:
        name, options = TRACKERS.parse("tracker", tracker)
        try:
            is_known = isinstance(TRACKERS[name], Package)
            written += [{"name": name, **plain("trackers", options)} if options else name] if is_known else ()
            notes += () if is_known else [f"trackers: {name}, which is a class of the script's own"]
        except ConfigurationError:
            notes.append(f"trackers: {name}, whose options cannot be written")
    return written, notes


def _strategy_of(kind: str, strategy: Any) -> dict[str, Any] | None:
    """Return name and settings of a class that any process can name; None for others, which need their script.

    These are the registered classes of this package, and those that an installed package declares as entry points, if
    their settings are plain data. A class of this package that is not registered is its nearest base that is: it adds
    what calls by hand use alone.
    """
    known = registered(kind)
    is_own = type(strategy).__module__.startswith("agilerl_like.")
    bases = type(strategy).__mro__ if is_own else (type(strategy),)
    name_of = known.name_of if is_own else known.installed_name_of
    its_class = next((base for base in bases if name_of(base) is not None), None)
    if its_class is None:
        return None
    omitted = {"seed", "population_size", "rand_seed", "device", "accelerator"}
    settings = {its.name: getattr(strategy, its.name) for its in settings_of(its_class) if its.name not in omitted}
    plain_settings = {key: _plain(value) for key, value in settings.items() if value is not None}
    if not is_own:
        try:
            plain(kind, settings)
        except ConfigurationError:
            return None
    return {"name": known.name_of(its_class), **plain_settings}
