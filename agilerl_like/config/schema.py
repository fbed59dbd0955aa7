"""The sections of a run's configuration: frozen models, each with its settings, their defaults and what they mean.

Every default is read from the one place that defines it, and what a section can judge by itself it judges when it is
read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import pydantic.dataclasses
import torch
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    create_model,
    model_validator,
)

from agilerl_like.algorithms.ppo_config import NUMERIC, Count, Positive, PPOConfig
from agilerl_like.envs.factory import Backend, VecEnvConfig
from agilerl_like.errors import ConfigurationError, unknown_name
from agilerl_like.hpo import Mutations, RLParameter, Selection, TournamentSelection, TruncationSelection
from agilerl_like.hpo.hyperparameters import Scale
from agilerl_like.modules.layers import check_activation
from agilerl_like.modules.mlp import MLPSpec
from agilerl_like.networks.architecture import NetworkSpec, check_encoder, split_recurrent
from agilerl_like.registry import registered
from agilerl_like.reporting.trackers import TRACKERS
from agilerl_like.training.training_arguments import TrainingArguments

AUTO = "auto"
"""The name of whichever device this machine has."""
MAX_THREADS = 1024
"""More than any machine has work for; where there is no room for more, they end the process without a word."""
STRICT = ConfigDict(extra="forbid", use_attribute_docstrings=True, ser_json_inf_nan="constants")


class Section(BaseModel):
    """A part of the configuration: unknown keys are errors, and nothing changes once it is read."""

    model_config = STRICT | {"frozen": True}


@pydantic.dataclasses.dataclass(frozen=True, config=STRICT)
class AlgorithmConfig(PPOConfig):
    """What is trained, and its settings; those in `hyperparameters` evolve from here."""

    name: Literal["PPO"] = "PPO"
    """The algorithm."""

    def settings(self) -> dict[str, Any]:
        """The settings alone."""
        return {known.name: getattr(self, known.name) for known in fields(self) if known.name != "name"}


class EnvironmentConfig(Section):
    """Where members train and are tested."""

    id: str
    """Gymnasium's id ("CartPole-v1", "package:Env-v0") or an import path ("package.module:factory")."""
    num_envs: Count = VecEnvConfig.num_envs
    """Copies of the env for each member."""
    backend: Backend = VecEnvConfig.backend
    """Who steps them: gymnasium's native vector env, one process (sync), one for each env (async), many envs in each of
    a few (workers), or EnvPool; auto: the quickest that runs the env unchanged."""
    num_workers: Count | None = VecEnvConfig.num_workers
    """Processes of the workers backend; one for each core if left out."""
    step_timeout: Positive = VecEnvConfig.step_timeout
    """Seconds after which a worker that does not answer counts as dead."""
    wrappers: tuple[str | dict[str, Any], ...] = ()
    """Around each env: names from gymnasium.wrappers, import paths, or {name: ..., its arguments}."""
    training_wrappers: tuple[str | dict[str, Any], ...] = ()
    """Around those in training alone, such as NormalizeReward: fitness, target and eval go by the environment's own
    reward. They keep the spaces."""
    kwargs: dict[str, Any] = {}
    """Arguments of the env itself."""

    @property
    def env_config(self) -> VecEnvConfig:
        """How the envs are made."""
        return VecEnvConfig(
            self.id,
            self.num_envs,
            self.backend,
            self.wrappers,
            env_kwargs=self.kwargs,
            num_workers=self.num_workers,
            step_timeout=self.step_timeout,
            training_wrappers=self.training_wrappers,
        )

    @model_validator(mode="after")
    def _check(self) -> EnvironmentConfig:
        _ = self.env_config  # nothing is imported for it
        return self

    @classmethod
    def import_paths(cls, written: Mapping[str, Any]) -> dict[str, str]:
        """The import paths among the settings of this section, by field: what is imported when the envs are made."""
        named = {"id": written.get("id")}
        for key in ("wrappers", "training_wrappers"):
            listed = written.get(key) or ()
            for number, wrapper in enumerate(listed if isinstance(listed, list | tuple) else (listed,)):
                named[f"{key}.{number}"] = wrapper.get("name") if isinstance(wrapper, Mapping) else wrapper
        return {field: text for field, text in named.items() if isinstance(text, str) and cls._is_import(field, text)}

    @staticmethod
    def _is_import(field: str, text: str) -> bool:
        return ":" in text


class PopulationConfig(Section):
    """The members at the start."""

    size: Count = 4
    """How many members there are, always."""
    sample_hyperparameters: bool = True
    """Draw the first `hyperparameters` of every member but the first from their ranges; the first keeps the settings of
    `algorithm`. Without ranges nothing is drawn; false: all members start from the same settings."""
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


def check_evolvable(name: str) -> str:
    """The name of a setting that evolution may change; ConfigurationError if it is none."""
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
    simba: bool = False
    """Use the encoder simba where no `encoder` is named: AgileRL's way to say so."""
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

    def net_config(self, *, without_env: bool = False) -> dict[str, Any]:
        """The `net_config` of the algorithm; `without_env`: one for any observations, before the environment's are known."""
        memory = split_recurrent(self.encoder_config)[1]
        return self.model_dump() | ({"encoder": "mlp", "encoder_config": memory} if without_env else {})

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        said = {key: value for key, value in given.items() if value is not None}
        if "head_config" in said:
            said["head_config"] = MLPSpec.from_config("head_config", said["head_config"]).to_config()
        check_encoder(said.get("encoder"), said.get("encoder_config", {}))
        return said

    @model_validator(mode="after")
    def _check(self) -> NetworkConfig:
        known_early = {"head_config", "latent_dim", "min_latent_dim", "max_latent_dim"}  # before any env is
        NetworkSpec.from_net_config(self.model_dump(include=known_early))
        return self


def strategy_fields(strategies: Iterable[type[Selection]]) -> dict[str, Any]:
    """The settings of selection strategies in the form that pydantic takes: name -> (type, default)."""
    left_out = {*(known.name for known in fields(Selection)), "population_size"}
    return {
        known.name: (get_type_hints(strategy)[known.name], ... if known.default is MISSING else known.default)
        for strategy in strategies
        for known in fields(strategy)
        if known.name not in left_out
    }


class SelectionConfig(Section):
    """Selection of parents. A strategy that is registered has its own fields as further settings."""

    name: str = "tournament"
    """tournament: each parent is the best of a few drawn at random; truncation: the best replace the worst; or the name
    of a registered strategy."""
    tournament_size: int = TournamentSelection.tournament_size
    """Members drawn for each tournament (tournament)."""
    elitism: bool = TournamentSelection.elitism
    """The best member always lives on (tournament)."""
    fraction: float = TruncationSelection.fraction
    """Share of the members that is replaced, and of those that replace them (truncation)."""

    @property
    def strategy(self) -> Selection:
        """The strategy with these settings."""
        kind = registered("selection")[self.name]
        known = {known.name for known in fields(kind)}
        return kind(**{name: value for name, value in self if name in known})

    @model_validator(mode="wrap")
    @classmethod
    def _with_fields_of_strategy(
        cls, given: Any, handler: ModelWrapValidatorHandler[SelectionConfig]
    ) -> SelectionConfig:
        if not isinstance(given, Mapping):
            return handler(given)
        strategies = registered("selection")
        strategy = strategies.find("name", given.get("name", cls.model_fields["name"].default))
        wanted = ({*strategy_fields([strategy])} | given.keys()) - cls.model_fields.keys()
        own = {name: its for name, its in strategy_fields(strategies.values()).items() if name in wanted}
        return create_model(cls.__name__, __base__=cls, **own).model_validate(given) if own else handler(given)

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
    mutation_kl: float = Mutations.mutation_kl
    """How far the noise moves the policy: mean KL(parent || child) in nats, over states of the last rollout."""
    mutation_sd: float = Mutations.mutation_sd
    """Largest standard deviation of the noise, relative to that of each weight matrix; no matrix is turned to a cosine
    below 0.9, whatever this is."""
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
class TrainingConfig(TrainingArguments):
    """How long a run trains, and when it looks. Steps are env steps of one member."""


class RunConfig(Section):
    """What a run leaves behind, and where."""

    name: Annotated[str, BeforeValidator(lambda name: "" if name is None else name)] = ""
    """Folder of this run; empty or none: a new one, named after env, algorithm and time."""
    dir: Path = Path("runs")
    """Where the folders of runs are."""
    overwrite: bool = False
    """Remove the files of an earlier run in the folder of that name first; else such a folder is refused."""
    tensorboard: bool = False
    """Write curves for TensorBoard."""
    wandb: bool = False
    """Send curves to Weights & Biases."""
    trackers: tuple[str | dict[str, Any], ...] = ()
    """Further trackers: aim, clearml, comet_ml, dvclive, mlflow, swanlab, trackio, or registered ones; {name: ..., its
    options} gives options."""
    plot: bool = True
    """Draw the run as evolution.png at its end, if matplotlib is installed."""
    device: str = "cpu"
    """Where networks are computed: cpu, cuda, cuda:1, ..., or auto: cuda where there is one, else cpu. With several
    processes, cuda means one GPU for each of them."""
    threads: Annotated[Count, Field(le=MAX_THREADS)] = 1
    """Threads of torch in each process; nets of this size are slower on more."""
    processes: Count = 1
    """Processes on this machine among which the members are divided; not for `accelerate launch`, which says it."""

    @property
    def torch_device(self) -> torch.device:
        """The device, with "auto" resolved on this machine; whether it can be used is found out by `build`."""
        if self.device == AUTO:
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return torch.device(self.device)

    @model_validator(mode="after")
    def _check(self) -> RunConfig:
        try:
            _ = self.torch_device
        except RuntimeError as error:
            raise ConfigurationError(
                f"device={self.device!r}; allowed are 'cpu', 'cuda', 'cuda:1', ..., and 'auto'"
            ) from error
        for tracker in self.trackers:
            TRACKERS.find("trackers entry", tracker if isinstance(tracker, str) else tracker.get("name"))
        path = Path(self.name)
        if self.name and (path.is_absolute() or ".." in path.parts or not path.parts):
            raise ConfigurationError(
                f"name={self.name!r} leads out of run.dir; allowed is a name, or a path below run.dir"
            )
        return self
