"""The sections of a run's configuration: frozen models with the defaults and descriptions of all settings.

Every default is read from the class that defines it. A section validates everything that does not depend on others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, cast, get_type_hints

import pydantic.dataclasses
import torch
from gymnasium.vector import AutoresetMode
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    ModelWrapValidatorHandler,
    SerializerFunctionWrapHandler,
    Tag,
    create_model,
    model_serializer,
    model_validator,
)
from pydantic_core import ArgsKwargs

from agilerl_like.algorithms.ppo_config import PPOConfig
from agilerl_like.algorithms.presets import preset_values
from agilerl_like.algorithms.settings import Count, Positive, choosable_settings, evolvable_settings, is_whole
from agilerl_like.envs.factory import (
    Aggregate,
    Backend,
    VecEnvConfig,
    check_instances,
    episode_wrappers,
    plain_info_keys,
)
from agilerl_like.errors import ConfigurationError, unknown_name
from agilerl_like.hpo import (
    Choice,
    Explorer,
    Mutations,
    NumberArray,
    Parameter,
    RLParameter,
    Selection,
    TournamentSelection,
    TruncationSelection,
)
from agilerl_like.hpo.hyperparameters import Scale, parameter_from_json
from agilerl_like.modules.mlp import MLPSpec
from agilerl_like.networks.architecture import NetworkSpec, check_encoder, named_encoder, split_recurrent
from agilerl_like.registry import registered, settings_of
from agilerl_like.training.training_arguments import LogEvery, TrainingArguments

ENCODER_KEYS = ("encoder", "simba", "encoder_config")
"""The keys of an encoder in a `net_config`."""
AUTO = "auto"
"""The device that stands for cuda if there is one, else cpu; processes and threads that are chosen by measuring."""
DEVICES = ("cpu", "cuda", "meta")
"""The types of devices that networks can be on; "meta" has shapes alone, without values."""
COUNT = "count"
"""Stands for the other kind of value of such a setting in pydantic's errors."""
MAX_THREADS = 1024
"""More than any machine can use; too many threads end the process without an error message."""
STRICT = ConfigDict(extra="forbid", use_attribute_docstrings=True, ser_json_inf_nan="constants")


class Section(BaseModel, frozen=True):
    """A part of the configuration: unknown keys are errors, and instances are immutable."""

    model_config = STRICT


class AlgorithmSection:
    """An algorithm's name and settings."""

    def settings(self) -> dict[str, Any]:
        """Return the settings without the name."""
        return {known.name: getattr(self, known.name) for known in fields(cast(Any, self)) if known.name != "name"}


@pydantic.dataclasses.dataclass(frozen=True, config=STRICT)
class AlgorithmConfig(AlgorithmSection, PPOConfig):
    """The algorithm and its settings; settings in `hyperparameters` evolve from these values."""

    name: Literal["PPO"] = "PPO"
    """The algorithm."""

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, given: Any) -> Any:
        settings = given.kwargs if isinstance(given, ArgsKwargs) else given
        if not isinstance(settings, Mapping) or "preset" not in settings:
            return given
        filled = preset_values(settings["preset"], settings, algorithm=str(getattr(cls, "name", "PPO")))
        return {**filled, **settings}


class EnvironmentConfig(Section, frozen=True):
    """The environment for training and evaluation."""

    id: str
    """Gymnasium's id ("CartPole-v1", "package:Env-v0") or an import path ("package.module:factory")."""
    num_envs: Count = VecEnvConfig.num_envs
    """Copies of the env for each member."""
    backend: Backend | str = VecEnvConfig.backend
    """Execution of the envs: gymnasium's native vector env (vector), in this process (sync), in one process for each
    env (async), in a few processes with many envs each (workers), by EnvPool, or as tensors on the run's device
    (torch: CartPole and Pendulum; gymnax: JAX environments); auto: the fastest of the others that suits the env."""
    num_workers: Count | None = VecEnvConfig.num_workers
    """Processes of the workers backend; none: one for each core."""
    step_timeout: Positive = VecEnvConfig.step_timeout
    """Seconds that an env may take for a step or a reset before its worker is restarted."""
    autoreset: Literal["SameStep", "NextStep", "Disabled"] = VecEnvConfig.autoreset.value
    """Start of the next episode with sync, async and workers: in the step that ends one (SameStep), in the step after
    it (NextStep), or by a reset of the rows that ended (Disabled)."""
    wrappers: tuple[str | dict[str, Any], ...] = ()
    """Wrappers of each env: names from gymnasium.wrappers, import paths, or {name: ..., its arguments}."""
    training_wrappers: tuple[str | dict[str, Any], ...] = ()
    """Further wrappers for training only, such as NormalizeReward, which keep the spaces: fitness, target and eval use
    the environment's own reward."""
    kwargs: dict[str, Any] = {}
    """Arguments of the env."""
    instances: tuple[dict[str, Any], ...] = ()
    """Environments that differ: the arguments of each, and its id if it is another. All members meet all equally often
    and are evaluated on each with the same seeds."""
    aggregate: Aggregate = VecEnvConfig.aggregate
    """Fitness from the mean returns on the instances: mean, min or median."""
    info_keys: dict[str, str] = {}
    """Name -> key of the info of an episode's last step, reported as eval/info/NAME; env.KEY is an attribute of the
    env. training.fitness: info.NAME selects by it."""
    seeds: int | tuple[int, ...] | None = None
    """Seeds of each member's training envs: one for each env, or the first of a range; none: from the run's seed."""
    max_total_reward: float | None = None
    """Return at which an episode ends."""

    @property
    def env_config(self) -> VecEnvConfig:
        """The arguments of `make_vect_envs`."""
        return VecEnvConfig(
            self.id,
            self.num_envs,
            self.backend,
            (*self.wrappers, *episode_wrappers(self.max_total_reward, self.info_keys)),
            env_kwargs=self.kwargs,
            num_workers=self.num_workers,
            step_timeout=self.step_timeout,
            autoreset=AutoresetMode(self.autoreset),
            training_wrappers=self.training_wrappers,
            **self._differences,
        )

    @property
    def _differences(self) -> dict[str, Any]:
        """The arguments of `VecEnvConfig` about envs that differ and what is reported of them."""
        return {
            "instances": self.instances,
            "aggregate": self.aggregate,
            "info_keys": plain_info_keys(self.info_keys),
            "seeds": self.seeds,
        }

    @model_validator(mode="after")
    def _check(self) -> EnvironmentConfig:
        _ = self.env_config  # imports nothing
        check_instances(self.env_config, self.num_envs)
        return self

    @classmethod
    def import_paths(cls, written: Mapping[str, Any]) -> dict[str, str]:
        """Return the import paths among the settings of this section, by field."""
        named = {"id": written.get("id")}
        for key in ("wrappers", "training_wrappers"):
            listed = written.get(key) or ()
            for number, wrapper in enumerate(listed if isinstance(listed, list | tuple) else (listed,)):
                named[f"{key}.{number}"] = wrapper.get("name") if isinstance(wrapper, Mapping) else wrapper
        instances = written.get("instances")
        for number, instance in enumerate(instances if isinstance(instances, list | tuple) else ()):
            named[f"instances.{number}.id"] = instance.get("id") if isinstance(instance, Mapping) else None
        return {field: text for field, text in named.items() if isinstance(text, str) and cls._is_import(field, text)}

    @staticmethod
    def _is_import(field: str, text: str) -> bool:
        """Whether the text of a field (id, instances.N.id, wrappers.N, training_wrappers.N) is an import path."""
        return ":" in text


class PopulationConfig(Section, frozen=True):
    """The initial population."""

    size: Count = 4
    """Number of members at the beginning; `evolution: auto` removes half of them in runs of at least ten generations,
    unless they learn from a replay."""
    sample_hyperparameters: bool = True
    """Draw the initial `hyperparameters` of all members except the first from their ranges; the first has the settings
    of `algorithm`, moved into the ranges. false: all members start with the settings of `algorithm`."""
    pre_training_mutation: bool = False
    """Mutate every member once before the first generation."""


class ParameterConfig(Section, frozen=True):
    """What evolution may do with one hyperparameter."""

    when: dict[str, Any] = {}
    """Choices on which the hyperparameter depends, and their values: it is changed only where these are met."""

    @property
    def parameter(self) -> Parameter:
        """The range or choice as `HyperparameterConfig` takes it."""
        return parameter_from_json({name: value for name, value in self if name != "when" or value})

    @model_validator(mode="after")
    def _check(self) -> ParameterConfig:
        _ = self.parameter
        return self

    @model_serializer(mode="wrap")
    def _without_condition(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave `when` out where there is none."""
        return {name: value for name, value in handler(self).items() if name != "when" or value}


class RangeConfig(ParameterConfig, frozen=True):
    """Range and mutation of one hyperparameter."""

    min: int | float
    """Smallest value."""
    max: int | float
    """Largest value."""
    scale: Scale = RLParameter.scale
    """Scale for sampling; auto: log if the range is positive and spans a factor of ten, else linear."""
    dtype: Literal["int", "float"] = "float"
    """Type of the values; left out: that of the setting."""
    shrink_factor: float = RLParameter.shrink_factor
    """Factor of a step down."""
    grow_factor: float = RLParameter.grow_factor
    """Factor of a step up."""
    resample: float = RLParameter.resample
    """Probability that a mutation samples the whole range instead of taking a step."""


class ChoiceConfig(ParameterConfig, frozen=True):
    """A hyperparameter that has one of some values."""

    choices: list[Any]
    """The values."""
    ordered: bool = Choice.ordered
    """Whether neighbours in the list are alike: a mutation then moves to a neighbour, or draws."""
    resample: float = Choice.resample
    """Probability that a mutation of an ordered choice draws."""


class NumberArrayConfig(ParameterConfig, frozen=True):
    """A hyperparameter that is a list of numbers."""

    each: list[RangeConfig]
    """The range of each number."""

    @property
    def parameter(self) -> Parameter:
        """The ranges as `HyperparameterConfig` takes them."""
        return NumberArray(tuple(cast(RLParameter, one.parameter) for one in self.each), when=self.when)


PARAMETER_KINDS: dict[str, type[ParameterConfig]] = {
    "range": RangeConfig,
    "choice": ChoiceConfig,
    "array": NumberArrayConfig,
}


def _kind_of_parameter(data: Any) -> str:
    """Return which of `PARAMETER_KINDS` describes a section; a range if it has the keys of none."""
    given = data if isinstance(data, Mapping) else vars(data) if isinstance(data, ParameterConfig) else {}
    return "choice" if "choices" in given else "array" if "each" in given else "range"


AnyParameterConfig = Annotated[
    Annotated[RangeConfig, Tag("range")]
    | Annotated[ChoiceConfig, Tag("choice")]
    | Annotated[NumberArrayConfig, Tag("array")],
    Discriminator(_kind_of_parameter),
]


def ranges_of(config: type[Any]) -> Any:
    """Return the type of the ranges and choices of an algorithm's settings that may evolve."""
    names = (*evolvable_settings(config), *choosable_settings(config))

    def check(name: str) -> str:
        if name not in (*config.__dataclass_fields__, "activation"):  # the algorithm has the error for those
            raise unknown_name("key", name, dict.fromkeys(names))
        return name

    def infer_dtypes(ranges: Any) -> Any:
        if not isinstance(ranges, Mapping):
            return ranges
        whole = {name for name in config.__dataclass_fields__ if is_whole(config, name)}
        return {name: completed(range_, "int" if name in whole else "float") for name, range_ in ranges.items()}

    def completed(section: Any, dtype: str) -> Any:
        """Return a section with the setting's type; a list is short for choices."""
        if isinstance(section, list | tuple):
            return {"choices": [*section]}
        is_range = isinstance(section, Mapping) and _kind_of_parameter(section) == "range"
        return {"dtype": dtype, **section} if is_range else section

    return Annotated[dict[Annotated[str, AfterValidator(check)], AnyParameterConfig], BeforeValidator(infer_dtypes)]


@pydantic.dataclasses.dataclass(frozen=True, config=STRICT)
class MLPConfig(MLPSpec):
    """A multi-layer perceptron."""


class NetworkConfig(Section, frozen=True):
    """The initial architecture of actor and critic: AgileRL's `net_config`."""

    encoder: str | None = None
    """mlp, simba, cnn, resnet, multi_input or a registered encoder; none: the default for the observations."""
    simba: bool = False
    """Use the encoder simba (AgileRL's key); another `encoder` beside it is an error."""
    encoder_config: dict[str, Any] = {}
    """Settings of the encoder, from the observation to the latent layer, that differ from its defaults."""
    memory_config: dict[str, Any] = {}
    """Settings of the recurrent layer behind it that differ from its defaults (recurrent: true)."""
    head_config: MLPConfig = MLPConfig(**asdict(NetworkSpec().head))
    """Settings of the head, from the latent layer to the outputs."""
    latent_dim: int = NetworkSpec.latent_dim
    """Width of the latent layer."""
    min_latent_dim: int = NetworkSpec.min_latent_dim
    """Smallest width that mutations can reach."""
    max_latent_dim: int = NetworkSpec.max_latent_dim
    """Largest width that mutations can reach."""
    critic_config: dict[str, Any] = {}
    """Settings that differ for the critic, and evolves: alike (a mutation changes actor and critic in the same way) or
    apart (it changes one of them)."""

    def net_config(self, *, without_env: bool = False) -> dict[str, Any]:
        """Return the `net_config`; `without_env`: one for any observations, before the env's are known."""
        memory = split_recurrent(self.encoder_config)[1]
        if not without_env:
            return self.model_dump()
        critic = self._critic_without_encoder()
        plain = {"encoder": "mlp", "simba": False, "encoder_config": memory, "critic_config": critic}
        return self.model_dump() | plain

    def _critic_without_encoder(self) -> dict[str, Any]:
        """Return the critic's settings without those of its encoder, whose kind may depend on the environment."""
        return {key: value for key, value in self.critic_config.items() if key not in ENCODER_KEYS}

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        config = {key: value for key, value in given.items() if value is not None}
        if "head_config" in config:
            config["head_config"] = MLPSpec.from_config("head_config", config["head_config"]).to_config()
        check_encoder(config.get("encoder"), config.get("encoder_config", {}))
        return config

    @model_validator(mode="after")
    def _check(self) -> NetworkConfig:
        known_early = {"head_config", "latent_dim", "min_latent_dim", "max_latent_dim"}  # before there is an env
        named_encoder({"encoder": self.encoder, "simba": self.simba})
        if self.critic_config:
            of_critic = named_encoder(self.critic_config, "critic_config: ")
            check_encoder(of_critic, self.critic_config.get("encoder_config") or {})
        NetworkSpec.from_net_config(
            self.model_dump(include=known_early) | {"critic_config": self._critic_without_encoder()}
        )
        return self


NOT_SETTINGS = {"seed", "rand_seed", "population_size", "device", "accelerator"}
"""Fields of strategies that a run sets itself."""


def strategy_fields(strategies: Iterable[type]) -> dict[str, Any]:
    """The settings of selection strategies or explorers in the form that pydantic takes: name -> (type, default)."""
    return {
        known.name: (get_type_hints(strategy)[known.name], _default_of(known))
        for strategy in strategies
        for known in settings_of(strategy)
        if known.name not in NOT_SETTINGS
    }


def _default_of(known: Any) -> Any:
    """Return the default of a dataclass's field, also from its factory; `...` if it has none, as pydantic takes it."""
    if known.default_factory is not MISSING:
        return known.default_factory()
    return ... if known.default is MISSING else known.default


class StrategySection(Section, frozen=True):
    """A section whose name chooses a registered class, and whose other settings are the fields of that class."""

    KIND: ClassVar[str]
    name: str
    """Name of the registered class."""

    def build(self) -> Any:
        """Return the class with these settings."""
        strategy = registered(self.KIND)[self.name]
        known = {known.name for known in settings_of(strategy)}
        return strategy(**{name: value for name, value in self if name in known})

    @model_validator(mode="wrap")
    @classmethod
    def _with_fields_of_strategy(cls, given: Any, handler: ModelWrapValidatorHandler[Any]) -> Any:
        if not isinstance(given, Mapping):
            return handler(given)
        strategies = registered(cls.KIND)
        strategy = strategies.find("name", given.get("name", cls.model_fields["name"].default))
        defaults = {name: ... if its.is_required() else its.default for name, its in cls.model_fields.items()}
        own = {
            name: its
            for name, its in strategy_fields([strategy]).items()
            if name not in defaults or its[1] != defaults[name]
        }
        others = strategy_fields(strategies.values())
        own |= {name: its for name, its in others.items() if name in given.keys() - defaults.keys() - own.keys()}
        return create_model(cls.__name__, __base__=cls, **own).model_validate(given) if own else handler(given)

    @model_validator(mode="after")
    def _check_strategy(self) -> StrategySection:
        used = {"name", *(used.name for used in settings_of(type(self.build())))}
        of_all = [known for strategy in registered(self.KIND).values() for known in settings_of(strategy)]
        for name, value in self:
            is_default = any(known.name == name and _default_of(known) == value for known in of_all)
            if name not in used and not is_default:
                raise ConfigurationError(f"{name}={value!r} has no meaning for name={self.name!r}; leave it out")
        return self


class SelectionConfig(StrategySection, frozen=True):
    """Selection of parents; the fields of a registered strategy are further settings."""

    KIND = "selection"
    name: str = "tournament"
    """tournament: each parent is the best of a few random members; truncation: the best replace the worst; gated,
    mf_pbt, hyperband, ipbt, auto, or another registered strategy, whose fields are further settings."""
    tournament_size: int = TournamentSelection.tournament_size
    """Members in each tournament (tournament)."""
    elitism: bool = TournamentSelection.elitism
    """The best member always survives (tournament)."""
    fraction: float = TruncationSelection.fraction
    """Share of the members that is replaced, and share that the parents come from (truncation)."""

    @property
    def strategy(self) -> Selection:
        """The strategy with these settings."""
        return self.build()


class MutationConfig(StrategySection, frozen=True):
    """Mutation of offspring: relative weights of the kinds of mutation, and their sizes; or a registered explorer."""

    KIND = "explorer"
    name: str = "mutations"
    """mutations: one kind of mutation is drawn for each offspring, as set here; or a registered explorer, whose fields
    are further settings."""
    no_mutation: float = Mutations.no_mutation
    """Weight of no mutation."""
    architecture: float = Mutations.architecture
    """Weight of adding or removing a layer or nodes."""
    new_layer_prob: float = Mutations.new_layer_prob
    """Probability that an architecture mutation changes a layer and not nodes."""
    parameters: float = Mutations.parameters
    """Weight of noise on the weights of the network."""
    activation: float = Mutations.activation
    """Weight of a change of the activation function."""
    rl_hp: float = Mutations.rl_hp
    """Weight of a change of some `hyperparameters`."""
    mutation_kl: float = Mutations.mutation_kl
    """Size of the noise: mean KL(parent || offspring) in nats over states of the last rollout."""
    mutation_sd: float = Mutations.mutation_sd
    """Largest standard deviation of the noise relative to that of each weight matrix; the cosine with the parent's
    matrix is at least 0.9 in any case."""
    activation_selection: tuple[str, ...] = Mutations.activation_selection
    """Activations to choose from."""
    mutate_elite: bool = Mutations.mutate_elite
    """Whether the best member is mutated too."""
    mutate_survivors: bool = Mutations.mutate_survivors
    """Whether other survivors are mutated too."""

    @property
    def explorer(self) -> Explorer:
        """The explorer with these settings."""
        return self.build()


@pydantic.dataclasses.dataclass(frozen=True, config=STRICT)
class TrainingConfig(TrainingArguments):
    """Length of the run, and evaluations. Steps are env steps of one member."""


def _kind_of_count(value: Any) -> str:
    return AUTO if value == AUTO else COUNT


AutoTag: TypeAlias = Annotated[Literal["auto"], Tag(AUTO)]
Processes: TypeAlias = Annotated[AutoTag | Annotated[Count, Tag(COUNT)], Discriminator(_kind_of_count)]
"""A count or "auto"; its errors are those of the count."""
Threads: TypeAlias = Annotated[
    AutoTag | Annotated[Count, Field(le=MAX_THREADS), Tag(COUNT)], Discriminator(_kind_of_count)
]


def _not_empty(path: Any) -> Any:
    """Return a path; ConfigurationError for an empty one, which `Path` takes for the current folder."""
    if path == "":
        raise ConfigurationError("dir='' is no path; allowed is a path ('.' for the current folder)")
    return path


class RunConfig(Section, frozen=True):
    """Output and execution of a run."""

    name: Annotated[str, BeforeValidator(lambda name: "" if name is None else name)] = ""
    """Folder of this run in `dir`; none: a new one, named after env, algorithm and time."""
    dir: Annotated[Path, BeforeValidator(_not_empty)] = Path("runs")
    """Parent folder of all runs."""
    overwrite: bool = False
    """Remove the files of an earlier run in this folder; false: such a folder is an error."""
    tensorboard: bool = False
    """Log to TensorBoard."""
    wandb: bool = False
    """Log to Weights & Biases."""
    trackers: tuple[str | dict[str, Any], ...] = ()
    """Further trackers: aim, clearml, comet_ml, dvclive, mlflow, swanlab, trackio, or registered ones; {name: ..., its
    options} gives options."""
    callbacks: tuple[str | dict[str, Any], ...] = ()
    """Registered callbacks, by name or as {name: ..., its arguments}."""
    log_every: LogEvery = "generation"
    """update: write updates.csv too, with gradient norms, KL, entropy and return of every update of every member."""
    plot: bool = True
    """Plot the run to evolution.png at its end, if matplotlib is installed."""
    report: bool = True
    """Write report.html at the end of the run: family tree, fitness, schedules, mutations."""
    device: str = "cpu"
    """Device of the networks: cpu, cuda, cuda:1, ..., or auto (cuda if there is one, else cpu). With several processes,
    cuda means one GPU for each."""
    threads: Threads = AUTO
    """torch threads in each process; auto: chosen together with auto processes, else 1: small networks are slower with
    more."""
    processes: Processes = AUTO
    """Processes on this machine that share the members; auto: one, or several if a few hundred milliseconds of
    measuring show that the run ends sooner with them; with `accelerate launch` leave it at auto or 1."""

    @property
    def torch_device(self) -> torch.device:
        """The device, with "auto" resolved on this machine; `build` checks that it exists."""
        if self.device == AUTO:
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return torch.device(self.device)

    @model_validator(mode="after")
    def _check(self) -> RunConfig:
        try:
            kind = self.torch_device.type
        except RuntimeError:
            kind = ""
        if kind not in DEVICES:
            raise ConfigurationError(f"device={self.device!r}; allowed are 'cpu', 'cuda', 'cuda:1', ..., and 'auto'")
        for kind in ("trackers", "callbacks"):
            for number, entry in enumerate(getattr(self, kind)):
                registered(kind.removesuffix("s")).parse(f"{kind}.{number}", entry)
        for key, text in (("name", self.name), ("dir", str(self.dir))):
            if "\0" in text:
                raise ConfigurationError(f"{key}={text!r} has a null character, which paths cannot have")
        path = Path(self.name)
        if self.name and (path.is_absolute() or ".." in path.parts or not path.parts):
            raise ConfigurationError(
                f"name={self.name!r} leads out of run.dir; allowed is a name, or a path below run.dir"
            )
        return self
