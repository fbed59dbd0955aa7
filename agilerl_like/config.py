"""A run's whole configuration: one frozen model that YAML files and the command line fill, and what is built from it.

Every default is read from the one place that defines it. What a person wrote is judged at once and as a whole, with the
place where it was written, and an agent is built once for nobody, so that contradictions are heard of before any
environment is made.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import gymnasium
import pydantic.dataclasses
import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from agilerl_like.algorithms.population import Population
from agilerl_like.algorithms.ppo import PPO
from agilerl_like.algorithms.settings import NUMERIC, Count, Positive, PPOSettings
from agilerl_like.envs.vector import Backend, EnvRecipe
from agilerl_like.errors import ConfigurationError, unknown_name
from agilerl_like.hpo import (
    HyperparameterConfig,
    Mutations,
    RLParameter,
    Selection,
    TournamentSelection,
    TruncationSelection,
)
from agilerl_like.hpo.hyperparameters import Scale
from agilerl_like.modules.base import check_mapping
from agilerl_like.modules.layers import check_activation
from agilerl_like.modules.mlp import MLPSpec
from agilerl_like.networks.architecture import NetworkSpec, check_encoder
from agilerl_like.seeding import fresh_seed
from agilerl_like.training.conduct import STILL, Plan
from agilerl_like.training.schedule import Schedule

STRICT = ConfigDict(extra="forbid", use_attribute_docstrings=True, coerce_numbers_to_str=True)


class Section(BaseModel):
    """A part of the configuration: unknown keys are errors, and nothing changes once it is read."""

    model_config = STRICT | {"frozen": True}


@pydantic.dataclasses.dataclass(frozen=True, config=STRICT)
class AlgorithmConfig(PPOSettings):
    """What is trained, and its settings; those in `hyperparameters` evolve from here."""

    name: Literal["PPO"] = "PPO"
    """The algorithm."""

    def settings(self) -> dict[str, Any]:
        """The settings alone."""
        return {name: getattr(self, name) for name in PPOSettings.__dataclass_fields__}


class EnvironmentConfig(Section):
    """Where members train and are tested."""

    id: str
    """Gymnasium's id ("CartPole-v1", "package:Env-v0") or an import path ("package.module:factory")."""
    num_envs: Count = EnvRecipe.num_envs
    """Copies of the env for each member."""
    backend: Backend = EnvRecipe.backend
    """Who steps them: gymnasium's native vector env, one process (sync), one for each env (async), many envs in each of
    a few (workers), or EnvPool; auto: the quickest that runs the env unchanged."""
    num_workers: Count | None = EnvRecipe.num_workers
    """Processes of the workers backend; one for each core if left out."""
    step_timeout: Positive = EnvRecipe.step_timeout
    """Seconds after which a worker that does not answer counts as dead."""
    wrappers: tuple[str | dict[str, Any], ...] = ()
    """Around each env: names from gymnasium.wrappers, import paths, or {name: ..., its arguments}."""
    kwargs: dict[str, Any] = {}
    """Arguments of the env itself."""

    @property
    def recipe(self) -> EnvRecipe:
        """How the envs are made."""
        return EnvRecipe(
            self.id,
            self.num_envs,
            self.backend,
            self.wrappers,
            env_kwargs=self.kwargs,
            num_workers=self.num_workers,
            step_timeout=self.step_timeout,
        )

    @model_validator(mode="after")
    def _check(self) -> EnvironmentConfig:
        _ = self.recipe
        return self


class PopulationConfig(Section):
    """The members at the start."""

    size: Count = 4
    """How many members there are, always."""
    sample_hyperparameters: bool = False
    """Start each member at a draw from the ranges, not at the algorithm's settings."""
    pre_training_mutation: bool = False
    """Mutate every member once before the first generation."""


class RangeConfig(Section):
    """The range of one hyperparameter and how it moves in it."""

    min: int | float
    """Smallest value."""
    max: int | float
    """Largest value."""
    scale: Scale = RLParameter.scale
    """How the range is sampled; auto: log where it is positive and spans a factor of ten, else linear."""
    dtype: Literal["int", "float"] = "float"
    """Kind of number; left out: that of the setting."""
    shrink_factor: float = RLParameter.shrink_factor
    """A step down multiplies by this."""
    grow_factor: float = RLParameter.grow_factor
    """A step up multiplies by this."""
    resample: float = RLParameter.resample
    """Probability that a mutation draws from the whole range instead of taking a step."""

    @property
    def parameter(self) -> RLParameter:
        """The range as evolution knows it."""
        return RLParameter(**dict(self))

    @model_validator(mode="after")
    def _check(self) -> RangeConfig:
        _ = self.parameter
        return self


def _evolvable(name: str) -> str:
    if name not in NUMERIC:
        raise unknown_name("key", name, NUMERIC)
    return name


@pydantic.dataclasses.dataclass(frozen=True, config=STRICT)
class MLPConfig(MLPSpec):
    """A multi-layer perceptron."""


class NetworkConfig(Section):
    """The first architecture of actor and critic: AgileRL's `net_config`."""

    encoder: str | None = None
    """Kind of encoder: mlp, simba, cnn, resnet or multi_input; none: the one that suits the observations."""
    encoder_config: dict[str, Any] = {}
    """From the observation to the latent layer: what is not as its kind has it by default."""
    memory_config: dict[str, Any] = {}
    """What is remembered of the latent layer over an episode (recurrent): what is not as it is by default."""
    head_config: MLPConfig = MLPConfig(**asdict(NetworkSpec().head))
    """From there to the outputs."""
    latent_dim: int = NetworkSpec.latent_dim
    """Width of the latent layer."""
    min_latent_dim: int = NetworkSpec.min_latent_dim
    """Smallest width that mutations may give it."""
    max_latent_dim: int = NetworkSpec.max_latent_dim
    """Largest width that mutations may give it."""

    @model_validator(mode="after")
    def _check(self) -> NetworkConfig:
        known_early = {"head_config", "latent_dim", "min_latent_dim", "max_latent_dim"}  # before any env is
        NetworkSpec.from_net_config(self.model_dump(include=known_early))
        return self


class SelectionConfig(Section):
    """Who becomes a parent."""

    STRATEGIES: ClassVar[Mapping[str, type[Selection]]] = {
        "tournament": TournamentSelection,
        "truncation": TruncationSelection,
    }

    name: Literal["tournament", "truncation"] = "tournament"
    """tournament: each parent is the best of a few drawn at random; truncation: the best replace the worst."""
    tournament_size: int = TournamentSelection.tournament_size
    """Members drawn for each tournament (tournament)."""
    elitism: bool = TournamentSelection.elitism
    """The best member always lives on (tournament)."""
    fraction: float = TruncationSelection.fraction
    """Share of the members that is replaced, and of those that replace them (truncation)."""

    @property
    def strategy(self) -> Selection:
        """The strategy itself."""
        kind = self.STRATEGIES[self.name]
        known = {known.name for known in fields(kind)}
        return kind(**{name: value for name, value in self if name in known})

    @model_validator(mode="after")
    def _check(self) -> SelectionConfig:
        used = {"name", *(used.name for used in fields(self.strategy))}
        for name, value in self:
            if name not in used and value != type(self).model_fields[name].default:
                raise ConfigurationError(f"{name}={value!r} has no meaning for name={self.name!r}; leave it out")
        return self


class MutationConfig(Section):
    """How children differ from their parents: relative weights of the kinds of change, and their sizes."""

    no_mutation: float = Mutations.no_mutation
    """Weight of no change."""
    architecture: float = Mutations.architecture
    """Weight of one layer or a few nodes more or less."""
    new_layer_prob: float = Mutations.new_layer_prob
    """Probability that such a change is of a layer and not of nodes."""
    parameters: float = Mutations.parameters
    """Weight of noise on the network's weights."""
    activation: float = Mutations.activation
    """Weight of another activation."""
    rl_hp: float = Mutations.rl_hp
    """Weight of a step of some of the `hyperparameters`."""
    mutation_sd: float = Mutations.mutation_sd
    """Size of the noise."""
    activation_selection: tuple[str, ...] = Mutations.activation_selection
    """Activations to choose from."""
    mutate_elite: bool = Mutations.mutate_elite
    """Whether the best member may change too."""
    mutate_survivors: bool = Mutations.mutate_survivors
    """Whether others that keep their place may change too."""

    @property
    def mutations(self) -> Mutations:
        """The mutations themselves."""
        return Mutations(**dict(self))

    @model_validator(mode="after")
    def _check(self) -> MutationConfig:
        for name in self.activation_selection:
            check_activation("activation_selection", name)
        _ = self.mutations
        return self


@pydantic.dataclasses.dataclass(frozen=True, config=STRICT)
class TrainingConfig(Schedule):
    """How long a run trains, and when it looks. Steps are env steps of one member."""


class RunConfig(Section):
    """What a run leaves behind, and where."""

    name: str = ""
    """Folder of this run; empty: a new one, named after env, algorithm and time."""
    dir: Path = Path("runs")
    """Where the folders of runs are."""
    tensorboard: bool = False
    """Write curves for TensorBoard."""
    wandb: bool = False
    """Send curves to Weights & Biases."""
    plot: bool = True
    """Draw the run as evolution.png at its end, if matplotlib is installed."""
    threads: Count = 1
    """Threads of torch in each process; nets of this size are slower on more."""
    processes: Count = 1
    """Processes on this machine among which the members are divided; not for `accelerate launch`, which says it."""


class Contradictions(ConfigurationError):
    """Settings of which each is legal by itself, and which do not go together."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class Config(Section):
    """Everything about a run. A file need only say what differs from the defaults."""

    environment: EnvironmentConfig
    algorithm: AlgorithmConfig = AlgorithmConfig()
    population: PopulationConfig = PopulationConfig()
    hyperparameters: dict[Annotated[str, AfterValidator(_evolvable)], RangeConfig] = {}
    """What evolution may change, and in which range: name -> {min, max, ...}."""
    network: NetworkConfig = NetworkConfig()
    selection: SelectionConfig = SelectionConfig()
    mutation: MutationConfig | None = MutationConfig()
    """none: no evolution; members train side by side."""
    training: TrainingConfig = TrainingConfig()
    run: RunConfig = RunConfig()
    seed: Annotated[int, Field(ge=0)] | None = None
    """Names all random streams of the run; none: one is drawn, and written into the run's config.yaml."""

    @field_validator("hyperparameters", mode="before")
    @classmethod
    def _infer_dtypes(cls, ranges: Any) -> Any:
        if not isinstance(ranges, Mapping):
            return ranges
        whole = {name: isinstance(known.default, int) for name, known in PPOSettings.__dataclass_fields__.items()}
        return {
            name: {"dtype": "int" if whole.get(name) else "float", **range_} if isinstance(range_, Mapping) else range_
            for name, range_ in ranges.items()
        }

    @field_validator("network", mode="before")
    @classmethod
    def _complete_network(cls, net_config: Any) -> Any:
        check_mapping("net_config", net_config)
        given = {key: value for key, value in net_config.items() if value is not None}
        if "head_config" in given:
            given["head_config"] = MLPSpec.from_config("head_config", given["head_config"]).to_config()
        check_encoder(given.get("encoder"), given.get("encoder_config", {}))
        return given

    @model_validator(mode="after")
    def _fit_together(self) -> Config:
        problems = []
        for check in (self._check_selection, self._check_agent):
            try:
                check()
            except ConfigurationError as error:
                problems.append(str(error))
        if problems:
            raise Contradictions(problems)
        return self

    def _check_selection(self) -> None:
        if self.mutation is not None:
            self.selection.strategy.validate(self.population.size)

    def _check_agent(self) -> None:
        anything = gymnasium.spaces.Box(-1.0, 1.0, (1,))
        arguments = self.agent_arguments()
        net_config = {**arguments["net_config"], "encoder": "mlp", "encoder_config": {}}  # what is seen is unknown yet
        PPO(anything, anything, **{**arguments, "net_config": net_config})

    def agent_arguments(self) -> dict[str, Any]:
        """The arguments of `PPO` besides its spaces."""
        ranges = {name: range_.parameter for name, range_ in self.hyperparameters.items()}
        return {
            **self.algorithm.settings(),
            "hp_config": HyperparameterConfig(**ranges),
            "net_config": self.network.model_dump(),
            "num_envs": self.environment.num_envs,
            "seed": self.seed,
        }

    def seeded(self, seed: int | None = None) -> Config:
        """This configuration with a seed: its own, else the one given, else a new one."""
        new = fresh_seed() if seed is None else seed
        return self if self.seed is not None else self.model_copy(update={"seed": new})

    def to_json(self) -> dict[str, Any]:
        """Plain data, with every default."""
        return self.model_dump(mode="json")

    def to_yaml(self) -> str:
        """The file that would give this configuration, with every default."""
        return yaml.dump(self.to_json(), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


class Setup(NamedTuple):
    """What a configuration describes."""

    env: gymnasium.vector.VectorEnv
    population: Population
    schedule: Schedule
    selection: Selection | None
    mutations: Mutations | None
    settings: Mapping[str, Any]

    def plan(self, *, name: str = "", resume: str = "") -> Plan:
        """What to do with them."""
        return Plan(self.schedule, self.selection, self.mutations or STILL, name, self.settings, resume)


def build(config: Config) -> Setup:
    """Make the envs and the population that a configuration describes; the caller closes `env`.

    Raises:
        ConfigurationError: the env is unknown or lacks a package, or its spaces do not suit the algorithm.
    """
    config = config.seeded()
    try:
        env = config.environment.recipe.make()
    except ConfigurationError as error:
        raise ConfigurationError(f"environment: {error}") from error
    try:
        spaces = env.single_observation_space, env.single_action_space
        start = config.population
        population = PPO.population(
            start.size, *spaces, sample_hyperparameters=start.sample_hyperparameters, **config.agent_arguments()
        )
        if config.mutation is None:
            return Setup(env, population, config.training, None, None, config.to_json())
        mutations = config.mutation.mutations
        if start.pre_training_mutation:
            population.mutate(mutations, pre_training=True)
        return Setup(env, population, config.training, config.selection.strategy, mutations, config.to_json())
    except BaseException:
        env.close()
        raise


def load(path: Path | str, overrides: Sequence[str] = ()) -> Config:
    """Read a YAML file, then options such as `--training.max-steps 1e5`, whose values are YAML too.

    Raises:
        ConfigurationError: with every mistake that can be seen, each with its place.
    """
    return Draft.read(path).override(overrides).judge()


@dataclass(frozen=True)
class Draft:
    """What somebody wrote, not yet judged, and where each piece of it stands."""

    data: dict[str, Any]
    places: dict[tuple[str, ...], str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path | str) -> Draft:
        """Read a YAML file; a key with nothing behind it says nothing."""
        try:
            loader = _Loader(Path(path).read_text(encoding="utf-8"))
            node = loader.get_single_node()
            places = {place: f"{path}, line {line}" for place, line in _lines(node, path)}
            data = {} if node is None else loader.construct_document(node)
        except OSError as error:
            raise ConfigurationError(f"config={str(path)!r} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"config={str(path)!r} is no text in UTF-8; allowed is a YAML file") from error
        except (yaml.YAMLError, RecursionError) as error:
            raise ConfigurationError(f"{path}{_explain(error)}") from error
        if not isinstance(data, dict):
            raise ConfigurationError(f"{path} holds {data!r:.40}; allowed are settings by name, such as 'seed: 1'")
        return cls(data, places)

    def override(self, arguments: Sequence[str]) -> Draft:
        """Write options over it: `--algorithm.clip-coef 0.1` is what `algorithm: {clip_coef: 0.1}` is in a file."""
        data, places = copy.deepcopy(self.data), dict(self.places)
        for option, texts in _options(arguments):
            path = tuple(option.removeprefix("--").replace("-", "_").split("."))
            section = data
            for part in path[:-1]:
                if not isinstance(section.get(part), dict):
                    section[part] = {}
                section = section[part]
            section[path[-1]] = _value(option, texts)
            places[path] = option
        return Draft(data, places)

    def judge(self) -> Config:
        """Return the configuration, or raise ConfigurationError with every problem."""
        try:
            config, problems = Config.model_validate(self.data), []
        except ValidationError as error:
            config, problems = None, [self._problem(found) for found in error.errors(include_url=False)]
        if config is None or (problems := [*self._flags_for_numbers(config)]):
            raise ConfigurationError("; ".join(problems))
        return config

    def _flags_for_numbers(self, config: Config) -> Iterator[str]:
        """What pydantic lets pass, for to Python true is 1."""
        read = config.to_json()
        for path in self.places:
            written, understood = (reduce(_entry, path, data) for data in (self.data, read))
            if isinstance(written, bool) and type(understood) in (int, float):
                yield f"{'.'.join(path)}={written!r}: input should be a number, not a flag{self._place(path)}"

    def _problem(self, found: Any) -> str:
        """Say in this project's words what pydantic found."""
        loc = tuple(str(part) for part in found["loc"])
        own = found.get("ctx", {}).get("error")
        if isinstance(own, Contradictions):
            return "; ".join(self._own_problem(loc, problem) for problem in own.problems)
        if isinstance(own, ConfigurationError):
            return self._own_problem(loc, str(own))
        name, value = ".".join(loc), found["input"]
        if found["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            text = str(unknown_name(f"{'.'.join(loc[:-1]) or 'config'} key", loc[-1], _near(loc)))
        elif found["type"] == "literal_error":
            text = str(unknown_name(name, value, re.findall(r"'([^']*)'", found["ctx"]["expected"])))
        elif found["type"] == "missing":
            text = f"{name} is missing"
        else:
            text = f"{name}={value!r}: {found['msg'][0].lower()}{found['msg'][1:]}"
        return text + self._place(loc)

    def _own_problem(self, loc: tuple[str, ...], text: str) -> str:
        """Put the section in front of one of our own errors, which begin with the setting that is wrong."""
        if loc[-1:] == ("[key]",):
            return f"{'.'.join(loc[:-2])} {text}{self._place(loc[:-1])}"
        text = text.replace("hp_config.", "hyperparameters.")  # its name in Python
        name = text.partition("=")[0]
        path = (*loc, *name.split("."))
        if len(path) == 1:
            path = (*_sections_with(name)[:1], name)
        if all(map(str.isidentifier, path)):
            return f"{'.'.join(path)}{text.removeprefix(name)}{self._place(path)}"
        return ": ".join(filter(None, (".".join(loc), text))) + self._place(loc)

    def _place(self, loc: tuple[str, ...]) -> str:
        nearest = next((loc[:end] for end in range(len(loc), 0, -1) if loc[:end] in self.places), None)
        return "" if nearest is None else f" ({self.places[nearest]})"


class _Loader(yaml.SafeLoader):
    """Safe YAML in which 1e5 is a number, as in YAML 1.2 and everywhere else, and None is null."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9_]+|[0-9][0-9_]*(\.[0-9_]*)?)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^[nN]one$"), list("nN"))


class _Dumper(yaml.SafeDumper):
    """YAML with its lists in brackets."""


_Dumper.add_representer(
    list, lambda dumper, data: dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)
)


def _lines(
    node: yaml.Node | None, file: Path | str, above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], int]]:
    """The line of every key; a key that is there twice is an error, one with nothing behind it is taken out."""
    if not isinstance(node, yaml.MappingNode):
        return
    node.value = [pair for pair in node.value if not _says_nothing(pair[1])]
    seen: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if str(key.value) in seen:
            place = ".".join((*above, str(key.value)))
            raise ConfigurationError(f"{file}, line {line}: {place} is already given in line {seen[key.value]}")
        seen[str(key.value)] = line
        yield (*above, str(key.value)), line
        yield from _lines(value, file, (*above, str(key.value)))


def _says_nothing(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.value == "" and node.style is None


def _explain(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    where = "" if mark is None else f", line {mark.line + 1}"
    return f"{where}: this is no YAML: {getattr(error, 'problem', None) or type(error).__name__}"


def _options(arguments: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Split `--a 1 --b=2 --c 3 4` into options and what follows each."""
    rest = list(arguments)
    while rest:
        option, equals, value = rest.pop(0).partition("=")
        if not option.startswith("--"):
            raise ConfigurationError(f"argument={option!r} belongs to no option; allowed is --section.name VALUE")
        texts = [value] if equals else []
        while rest and not rest[0].startswith("--"):
            texts.append(rest.pop(0))
        if not texts:
            raise ConfigurationError(f"option={option!r} lacks its value, as in {option} true")
        yield option, texts


def _value(option: str, texts: list[str]) -> Any:
    """The value of an option: a list where several things follow it."""
    try:
        values = [_Loader(text).get_single_data() for text in texts]
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigurationError(f"{option}={' '.join(texts)!r}{_explain(error)}") from error
    return values[0] if len(values) == 1 else values


def _entry(section: Any, name: str) -> Any:
    return section.get(name) if isinstance(section, Mapping) else None


def _near(loc: tuple[str, ...]) -> list[str]:
    """What could have been meant by an unknown key: what its section holds, and where other sections hold that name."""
    elsewhere = [f"{section}.{loc[-1]}" for section in _sections_with(loc[-1])]
    if len(loc) == 1:
        return [*Config.model_fields, *elsewhere]
    return [*(RangeConfig.model_fields if loc[0] == "hyperparameters" else _names(loc[0])), *elsewhere]


def _sections_with(name: str) -> list[str]:
    return [section for section in Config.model_fields if name in _names(section)]


def _names(section: str) -> tuple[str, ...]:
    kind: Any = Config.model_fields[section].annotation
    kind = MutationConfig if section == "mutation" else kind
    return tuple(getattr(kind, "model_fields", getattr(kind, "__dataclass_fields__", ())))
