"""The whole configuration of a run, and the environments and population that are built from it.

Validation builds one agent with placeholder spaces, so that inconsistent settings are reported before any environment
is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

import gymnasium
import torch
from pydantic import Field, SerializeAsAny, create_model, model_validator
from pydantic.dataclasses import dataclass as pydantic_dataclass

from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm
from agilerl_like.algorithms.exploration_ranges import EXPLORATION, with_exploration
from agilerl_like.algorithms.population import BasePopulation, check_members_fit, in_ranges
from agilerl_like.algorithms.ppo import PPO
from agilerl_like.algorithms.settings import check_bounds
from agilerl_like.config.presets import with_preset
from agilerl_like.config.schema import (
    AUTO,
    STRICT,
    AlgorithmConfig,
    AlgorithmSection,
    EnvironmentConfig,
    MutationConfig,
    NetworkConfig,
    ParameterConfig,
    PopulationConfig,
    RunConfig,
    Section,
    SelectionConfig,
    TrainingConfig,
    ranges_of,
)
from agilerl_like.distributed.process_group import check_shared_device
from agilerl_like.envs.array_backend import resolve_device
from agilerl_like.envs.critic_observation import POLICY
from agilerl_like.envs.factory import BYTES_PER_ENV, VecEnvConfig
from agilerl_like.envs.import_paths import import_function
from agilerl_like.errors import ConfigurationError, unknown_name
from agilerl_like.hpo import AutoExplorer, AutoSelection, Explorer, HyperparameterConfig, Selection
from agilerl_like.registry import register, registered
from agilerl_like.resources import check_memory
from agilerl_like.seeding import fresh_seed
from agilerl_like.training.env_setup import EnvSetup, SingleAgentEnvSetup
from agilerl_like.training.run_plan import NO_MUTATION, RunPlan
from agilerl_like.training.session import check_processes
from agilerl_like.training.training_arguments import INFO, OF_SCRIPTS, TrainingArguments
from agilerl_like.yaml_writer import to_yaml

PLACEHOLDER_SPACE = gymnasium.spaces.Box(-1.0, 1.0, (1,))
"""Observation and action space before the environment exists."""


class InconsistentSettings(ConfigurationError):
    """Settings that are valid each by itself but not together."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


if TYPE_CHECKING:
    PPORanges = dict[str, ParameterConfig]
else:
    PPORanges = ranges_of(PPO.config)


@register("config", PPO.algo)
class Config(Section, frozen=True):
    """The settings of a run; a file needs only those that differ from the defaults."""

    algorithm_class: ClassVar[type[Any]] = PPO
    """The class of the agents."""
    env_setup_class: ClassVar[type[EnvSetup]] = SingleAgentEnvSetup
    """How its environments are made."""
    fitness_kinds: ClassVar[tuple[str, ...]] = ("return",)
    """Allowed values of `training.fitness`."""
    opponent_kinds: ClassVar[tuple[str, ...]] = ("self",)
    """Allowed values of `training.opponents`."""

    environment: EnvironmentConfig
    algorithm: AlgorithmConfig = AlgorithmConfig()
    population: PopulationConfig = PopulationConfig()
    hyperparameters: PPORanges = Field(default_factory=dict)
    """Hyperparameters that evolve, with their ranges or choices: name -> {min, max, ...}, {choices: [...]} or [...]."""
    network: NetworkConfig = NetworkConfig()
    evolution: Literal["auto"] | None = None
    """auto: selection and mutation that adapt to population and budget, and need no settings; the noise of continuous
    actions evolves too. none: as set in `selection` and `mutation`, which may be {name: auto} with settings."""
    selection: SerializeAsAny[SelectionConfig] = SelectionConfig()
    mutation: SerializeAsAny[MutationConfig] | None = MutationConfig()
    """none: no evolution; the members train independently."""
    training: TrainingConfig = TrainingConfig()
    run: RunConfig = RunConfig()
    seed: Annotated[int, Field(ge=0)] | None = None
    """Seed of all random streams; none: a random one, which is written to the run's config.yaml."""

    @model_validator(mode="before")
    @classmethod
    def _read_preset(cls, given: Any) -> Any:
        section: Any = cls.model_fields["algorithm"].annotation
        return with_preset(given, section.__dataclass_fields__)

    @model_validator(mode="before")
    @classmethod
    def _read_default_network(cls, given: Any) -> Any:
        """Complete `network` by the default `net_config` of an evolution strategy, as its constructor does."""
        completed = getattr(cls.algorithm_class, "completed_net_config", None)
        if completed is None or not isinstance(given, Mapping):
            return given
        network = given.get("network", {})
        return {**given, "network": completed(network)} if isinstance(network, Mapping) else given

    @model_validator(mode="after")
    def _check_consistency(self) -> Config:
        problems = []
        for check in (
            self._check_selection,
            self._check_fitness,
            self._check_agent,
            self._check_episodes,
            self._check_processes,
        ):
            try:
                check()
            except ConfigurationError as error:
                problems.append(str(error))
        if problems:
            raise InconsistentSettings(problems)
        return self

    def _check_selection(self) -> None:
        if self.mutation is None:
            if self.evolution is not None:
                raise ConfigurationError(
                    f"mutation=None has no meaning with evolution={self.evolution!r}; set evolution: null too, which "
                    "trains without evolution, or leave mutation out"
                )
            if self.population.pre_training_mutation:
                raise ConfigurationError(
                    "population.pre_training_mutation=True has no effect with mutation: null; leave one of them out"
                )
            return
        if self.evolution is not None:
            self._check_auto()
        self.strategy.validate(self.population.size)
        self.explorer.validate(self.population.size)
        self.training.check_budget(self.strategy, self.environment.num_envs)

    def _check_auto(self) -> None:
        """Raise ConfigurationError if `selection` or `mutation` is set although `evolution` replaces both."""
        for name, default in (("selection", SelectionConfig()), ("mutation", MutationConfig())):
            given = getattr(self, name)
            changed = [key for key, value in given if value != getattr(default, key, None)]
            if changed:
                raise ConfigurationError(
                    f"{name}.{changed[0]}={getattr(given, changed[0])!r} has no meaning with "
                    f"evolution={self.evolution!r}; leave it out, or name the parts of auto, which have settings, in "
                    "place of evolution: selection: {name: auto}, mutation: {name: auto} (without these, evolution: "
                    "null stands for tournament and mutations)"
                )

    def _check_fitness(self) -> None:
        fitness, known = self.training.fitness, self.environment.info_keys
        if fitness.startswith(INFO):
            if fitness.removeprefix(INFO) not in known:
                raise unknown_name("fitness", fitness, [*self.fitness_kinds, *(f"{INFO}{name}" for name in known)])
        elif fitness not in self.fitness_kinds:
            raise ConfigurationError(
                f"fitness={fitness!r} is for multi-agent runs; allowed are 'return', and info.NAME of an entry of "
                "environment.info_keys"
            )
        if (found := self.training.opponents) not in (allowed := self.opponent_kinds):
            own = ", a script's own, which needs that script: pass them to train_multi_agent_on_policy(…, opponents=…)"
            raise ConfigurationError(
                f"opponents={found!r}{own if found in OF_SCRIPTS else ''}; allowed here: "
                f"{', '.join(map(repr, allowed))}"
            )

    def _check_agent(self) -> None:
        size = self.population.size
        agent = self._agent_without_env()
        check_members_fit("population.size", size, agent)
        processes = 1 if self.run.processes == AUTO else self.run.processes
        for learner in agent.learners.values():
            learner.check_run(self.training.max_steps, None, processes)

    def _check_episodes(self) -> None:
        episodes = self.training.eval_loop
        check_memory(f"training.eval_loop={episodes}", episodes, BYTES_PER_ENV * self.population.size, "episodes")

    def _check_processes(self) -> None:
        try:
            if self.run.processes == AUTO:
                return
            check_processes(self.run.processes, self.population.size, self.environment.num_envs)
            if self.run.processes > 1:
                check_shared_device(self.run.torch_device)
        except ConfigurationError as error:
            raise ConfigurationError(f"run.{error}") from error

    def _agent_without_env(self) -> EvolvableAlgorithm:
        """An agent with the smallest spaces: a lower bound of the memory of any."""
        group = self.algorithm_class.group_class
        spaces = group.placeholder_observation, group.placeholder_action
        return self.algorithm_class(*spaces, **self._first_arguments())

    def _first_arguments(self) -> dict[str, Any]:
        """Return the arguments of the first member before the spaces are known."""
        arguments = self.agent_arguments(without_env=True)
        if not self.population.sample_hyperparameters:
            return arguments
        algorithm = self.algorithm_class
        check_bounds(algorithm.config, {}, arguments["hp_config"], algorithm.algo)  # before values are moved into them
        return in_ranges(arguments, algorithm.config)

    def agent_arguments(self, *, without_env: bool = False) -> dict[str, Any]:
        """Return the algorithm's arguments except the spaces; `without_env`: before the spaces are known."""
        ranges = {name: range_.parameter for name, range_ in self.hyperparameters.items()}
        settings = self.algorithm.settings()
        transform = settings.get("reward_transform")
        if isinstance(transform, str):  # whose module is imported for a run alone
            settings["reward_transform"] = None if without_env else import_function("reward_transform", transform)
        if without_env and "critic_observation" in settings:
            settings["critic_observation"] = POLICY
        return {
            **settings,
            "hp_config": HyperparameterConfig(**ranges),
            "net_config": self._net_config(without_env=without_env),
            "num_envs": self.environment.num_envs,
            "seed": self.seed,
        }

    def _net_config(self, *, without_env: bool) -> dict[str, Any] | None:
        """Return the `net_config`; what was set of it, for an algorithm without networks, which refuses it."""
        algorithm = self.algorithm_class
        if algorithm.group_class.has_networks:
            algorithm.group_class.check_critic_config(algorithm.algo, self.network.critic_config)
            return self.network.net_config(without_env=without_env)
        if self.network != NetworkConfig():
            raise ConfigurationError(f"network: {algorithm.algo} has no networks; leave it out")
        return None

    @property
    def strategy(self) -> Selection:
        """The selection strategy."""
        return self.selection.strategy if self.evolution is None else AutoSelection()

    @property
    def explorer(self) -> Explorer:
        """The explorer."""
        if self.evolution is None and self.mutation is not None:
            return self.mutation.explorer
        return AutoExplorer()

    def evolves_noise(self, names: Iterable[str]) -> bool:
        """Whether the evolving hyperparameters `names` of a run include noise of actions that has no range here.

        Such noise has its range from `evolution: auto`; a resumed run keeps its ranges, whatever `evolution` is then.
        """
        return not {*EXPLORATION}.isdisjoint({*names} - {*self.hyperparameters})

    @property
    def env_config(self) -> VecEnvConfig:
        """The environment's config, with what the algorithm needs of it."""
        return self.environment.env_config

    def env_setup(self, num_envs: int | None = None, device: torch.device | str = "cpu") -> EnvSetup:
        """Make the environments, with `num_envs` copies if it is given, and on a device if they step tensors."""
        env_config = self.env_config.on_device(str(device))
        return self.env_setup_class.from_config(
            env_config if num_envs is None else replace(env_config, num_envs=num_envs)
        )

    def with_seed(self, seed: int | None = None) -> Config:
        """Return this configuration with a seed: its own, else the given one, else a random one."""
        new = fresh_seed() if seed is None else seed
        return self if self.seed is not None else self.model_copy(update={"seed": new})

    def of_seed(self, seed: int, name: str) -> Config:
        """Return this configuration with a seed, for a run whose name ends with it."""
        run = self.run.model_copy(update={"name": f"{name}-seed-{seed}"})
        return self.model_copy(update={"seed": seed, "run": run})

    def with_layout(self, processes: int, threads: int) -> Config:
        """Return this configuration with the processes and threads of the run, so that repeating it repeats these."""
        return self.model_copy(update={"run": self.run.model_copy(update={"processes": processes, "threads": threads})})

    def continuing(self, stored: Config) -> Config:
        """Return this configuration for the folder of `stored`, with its seed and layout where this one has none."""
        layout = {name: getattr(stored.run, name) for name in ("processes", "threads")}
        chosen = {name: value for name, value in layout.items() if getattr(self.run, name) == AUTO}
        place = {name: getattr(stored.run, name) for name in ("name", "dir")}
        run = self.run.model_copy(update={**chosen, **place})
        return self.with_seed(stored.seed).model_copy(update={"run": run})

    def without_overwrite(self) -> Config:
        """Return this configuration for the run's folder: to use it again must not remove that run."""
        return self.model_copy(update={"run": self.run.model_copy(update={"overwrite": False})})

    def to_json(self) -> dict[str, Any]:
        """Return plain data, including all defaults."""
        return self.model_dump(mode="json")

    def to_yaml(self) -> str:
        """Return the YAML of this configuration, including all defaults."""
        return to_yaml(self.to_json())

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the settings by name: classes that are made for an algorithm or a strategy have no place to import."""
        is_made = config_class(self.algorithm.name) is type(self)
        return _from_settings, (None if is_made else type(self), self.model_dump())


def config_class(algorithm: str) -> type[Config]:
    """Return the class of configurations of a registered algorithm; PPO's if there is no such algorithm.

    It is derived from the algorithm's settings, unless a class of its own is registered as `config`. That of a subclass
    of PPO or IPPO is derived from theirs.
    """
    configs, algorithms = registered("config"), registered("algorithm")
    if algorithm in configs or algorithm not in algorithms:
        return configs.get(algorithm, Config)
    return _derived_config(algorithm, algorithms[algorithm])


@cache
def _derived_config(algorithm: str, kind: type[Any]) -> type[Config]:
    """Return the configurations of `kind`; of an algorithm that is defined again, the class is another."""
    configs = registered("config")
    names = [vars(base).get("algo", "") for base in kind.__mro__]
    its_base = next((configs[name] for name in names if name in configs), None)
    base = Config if its_base is None else its_base
    settings: Any = AlgorithmSection if its_base is None else base.model_fields["algorithm"].annotation
    section = pydantic_dataclass(frozen=True, config=STRICT)(
        type(
            f"{algorithm}Settings",
            (settings,) if issubclass(settings, kind.config) else (kind.config, settings),
            {"__annotations__": {"name": Literal[algorithm]}, "name": algorithm, "__doc__": kind.config.__doc__},
        )
    )
    found = create_model(
        f"{algorithm}Config",
        __base__=base,
        algorithm=(section, section()),
        hyperparameters=(ranges_of(kind.config), Field(default_factory=dict)),
    )
    found.algorithm_class = kind
    return found


def _from_settings(kind: type[Config] | None, settings: dict[str, Any]) -> Config:
    """Return the configuration that was pickled as these settings; `kind` is None if its algorithm names its class."""
    return (kind or config_class(settings["algorithm"]["name"])).model_validate(settings)


class Experiment(NamedTuple):
    """Environments, population and training settings that were built from a configuration."""

    env_setup: EnvSetup
    population: BasePopulation
    training_args: TrainingArguments
    selection: Selection | None
    explorer: Explorer | None
    settings: Mapping[str, Any]

    @property
    def env(self) -> Any:
        """The training env."""
        return self.env_setup.env

    def plan(self, *, name: str = "", resume: str = "") -> RunPlan:
        """Return the arguments of the training loop."""
        return RunPlan(self.training_args, self.selection, self.explorer or NO_MUTATION, name, self.settings, resume)


def build(config: Config, device: torch.device | None = None, *, evolves_noise: bool | None = None) -> Experiment:
    """Make the envs and the population that a configuration describes; the caller closes `env`.

    The population is on `device`, by default that of `run.device`. `evolves_noise`: whether the noise of continuous
    actions evolves although it has no range in `hyperparameters`; by default with `evolution: auto`.

    Raises:
        ConfigurationError: the device does not exist, the env is unknown or lacks a package, or the algorithm does not
            support its spaces.
    """
    config = config.with_seed()
    device = _resolve_device(config.run.torch_device if device is None else device)
    try:
        env_setup = config.env_setup(device=device)
    except ConfigurationError as error:
        raise ConfigurationError(f"environment: {error}") from error
    try:
        start, arguments = config.population, config.agent_arguments()
        if evolves_noise is None:
            evolves_noise = config.evolution is not None
        if evolves_noise:
            spaces, its_class = env_setup.spaces, config.algorithm_class.config
            arguments["hp_config"] = with_exploration(its_class, spaces[-1], arguments, arguments["hp_config"])
        population = config.algorithm_class.population(
            start.size,
            *env_setup.spaces,
            sample_hyperparameters=start.sample_hyperparameters and bool(arguments["hp_config"]),
            device=device,
            **arguments,
            **env_setup.agent_arguments,
        )
        if config.mutation is None:
            return Experiment(env_setup, population, config.training, None, None, config.to_json())
        explorer = config.explorer
        if start.pre_training_mutation:
            population.mutate(explorer, pre_training=True)
        return Experiment(env_setup, population, config.training, config.strategy, explorer, config.to_json())
    except BaseException:
        env_setup.env.close()
        raise


def _resolve_device(device: torch.device) -> torch.device:
    try:
        return resolve_device(device)
    except ConfigurationError as error:
        raise ConfigurationError(f"run.{error}") from error
