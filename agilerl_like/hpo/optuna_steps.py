"""Optuna's samplers as an explorer.

The explorer builds a study from the run's history before each proposal, so a resumed run proposes the same as an
uninterrupted one, on every process. Needs the extra `optuna`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from agilerl_like.errors import ConfigurationError, check_init_names, unknown_name
from agilerl_like.hpo.choice import Choice, plain
from agilerl_like.hpo.explorer import Explorer, Repair, unchanged, with_hyperparameters
from agilerl_like.hpo.genome import Genome, Mutation
from agilerl_like.hpo.history import History
from agilerl_like.hpo.hyperparameters import HyperparameterConfig, NumberArray, Parameter, RLParameter
from agilerl_like.hpo.pb2 import last_measured
from agilerl_like.registry import register

SAMPLERS = ("TPESampler", "RandomSampler", "GPSampler")
STATEFUL = ("QMCSampler", "CmaEsSampler", "NSGAIISampler", "NSGAIIISampler")
"""Samplers that propose by what they noted of their own earlier suggestions, which trials of members do not hold."""
MAX_TRIALS = 200
"""Number of the history's last trials that a study is built from."""


def library() -> Any:
    """Return the package `optuna`.

    Raises:
        ConfigurationError: it is not installed.
    """
    try:
        import optuna  # pyright: ignore[reportMissingImports]  # an extra
    except ImportError as error:
        raise ConfigurationError("Optuna needs one more package: pip install 'agilerl-like[optuna]'") from error
    return optuna


def distribution(parameter: Parameter) -> Any:
    """Return the values that Optuna samples for one hyperparameter, as `to_optuna` returns them.

    Raises:
        ConfigurationError: it is a list of numbers.
    """
    if isinstance(parameter, NumberArray):
        raise ConfigurationError("Optuna samples single values: a NumberArray cannot be part of its study")
    kinds = library().distributions
    if isinstance(parameter, Choice):
        return kinds.CategoricalDistribution([_text(value) for value in parameter.values])
    low, high = (float(to_optuna(parameter, bound)) for bound in (parameter.min, parameter.max))
    low, high = min(low, high), max(low, high)
    if parameter.dtype is int:
        return kinds.IntDistribution(int(low), int(high), log=parameter.scale == "log")
    return kinds.FloatDistribution(low, high, log=parameter.scale in ("log", "log_complement"))


def label(name: str, parameter: Parameter) -> str:
    """Return a hyperparameter's name in a study: `1 - gamma` on the scale one_minus, `log2 batch_size` of powers."""
    scale = parameter.scale if isinstance(parameter, RLParameter) else ""
    return {"log_complement": f"1 - {name}", "power_of_two": f"log2 {name}"}.get(scale, name)


def to_optuna(parameter: Parameter, value: Any) -> Any:
    """Return the value in a study for a value of a hyperparameter."""
    if isinstance(parameter, Choice):
        return _text(value)
    scale = parameter.scale if isinstance(parameter, RLParameter) else ""
    return {"log_complement": lambda: 1 - value, "power_of_two": lambda: round(math.log2(value))}.get(
        scale, lambda: value
    )()


def from_optuna(parameter: Parameter, value: Any) -> Any:
    """Return the legal value of a hyperparameter for a value in a study; ConfigurationError for a list of numbers."""
    if isinstance(parameter, Choice):
        return next(own for own in parameter.values if _text(own) == value)
    if not isinstance(parameter, RLParameter):
        raise ConfigurationError("a NumberArray cannot be part of a study")
    value = (
        1 - value if parameter.scale == "log_complement" else 2**value if parameter.scale == "power_of_two" else value
    )
    return parameter.clip(value)


def _text(value: Any) -> Any:
    """Return a value that Optuna allows as a choice: lists become strings."""
    return str(plain(value)) if isinstance(value, list | tuple) else value


def as_trial(hp_config: HyperparameterConfig, values: Mapping[str, Any], value: float | None, **more: Any) -> Any:
    """Return a trial of a member's active hyperparameters; it has failed if `value` is not finite."""
    active = hp_config.active(values)
    distributions = {label(name, its): distribution(its) for name, its in active.items()}
    params = {label(name, its): _within(its, values[name]) for name, its in active.items()}
    is_known = value is not None and math.isfinite(value)
    trials = library().trial
    state = trials.TrialState.COMPLETE if is_known else trials.TrialState.FAIL
    return trials.create_trial(
        state=state, value=value if is_known else None, params=params, distributions=distributions, **more
    )


def _within(parameter: Parameter, value: Any) -> Any:
    """Return the value in a study, clamped to bounds that a member with other ranges, or rounding, may have crossed."""
    found, its = to_optuna(parameter, value), distribution(parameter)
    return found if isinstance(parameter, Choice) else min(max(found, its.low), its.high)


def _suggested(suggestion: Any, name: str, parameter: Parameter) -> Any:
    its, kinds = distribution(parameter), library().distributions
    if isinstance(its, kinds.CategoricalDistribution):
        return suggestion.suggest_categorical(name, its.choices)
    if isinstance(its, kinds.IntDistribution):
        return suggestion.suggest_int(name, its.low, its.high, log=its.log)
    return suggestion.suggest_float(name, its.low, its.high, log=its.log)


@register("explorer", "optuna")
@check_init_names
@dataclass(frozen=True)
class OptunaExplorer(Explorer):
    """Proposes the suggestions of an Optuna sampler, given each member's gain in fitness in each generation.

    `sampler` names one of `SAMPLERS`, classes of `optuna.samplers`. To `GPSampler` the proposals made earlier in the
    same generation are trials of mean gain, because it would otherwise propose the same for all clones. Clones keep
    their parent's weights and architecture.
    """

    sampler: str = "TPESampler"

    def __post_init__(self) -> None:
        library()
        if not isinstance(self.sampler, str):
            raise ConfigurationError(
                f"sampler={self.sampler!r:.100} is an object; allowed is a name, of which a sampler is made for each "
                f"proposal, with a seed of the run: {', '.join(map(repr, SAMPLERS))}"
            )
        if self.sampler in STATEFUL:
            raise ConfigurationError(
                f"sampler={self.sampler!r} proposes by its own earlier suggestions, and not by the gains of members; "
                f"allowed are {', '.join(SAMPLERS)}"
            )
        if self.sampler not in SAMPLERS:
            raise unknown_name("sampler", self.sampler, SAMPLERS)

    def check_ranges(self, hp_config: HyperparameterConfig) -> None:
        """Raise `ConfigurationError` if a hyperparameter is a list of numbers."""
        for name, parameter in hp_config.items():
            if isinstance(parameter, NumberArray):
                raise ConfigurationError(
                    f"hp_config.{name}={parameter!r:.200} is a list of numbers, which Optuna does not sample; allowed "
                    "are RLParameter and Choice"
                )

    def propose(
        self,
        genome: Genome,
        history: History,
        rng: np.random.Generator,
        *,
        hp_config: HyperparameterConfig,
        repair: Repair = unchanged,
        pre_training: bool = False,
    ) -> tuple[Genome, tuple[Mutation, ...]]:
        """Return the genome with the hyperparameters that the sampler proposes."""
        suggestion = self.study(history, hp_config, seed=int(rng.integers(2**31))).ask()
        proposed: dict[str, Any] = {}
        for name in hp_config.parents_first:
            if hp_config.is_active(name, {**genome.hyperparameters, **proposed}):
                parameter = hp_config[name]
                proposed[name] = from_optuna(parameter, _suggested(suggestion, label(name, parameter), parameter))
        changed = hp_config.resolve(genome.hyperparameters, proposed, rng)
        child, record = with_hyperparameters(genome, changed, repair, operator="optuna")
        return child, (record,)

    draw = propose  # pyright: ignore[reportAssignmentType]  # of a fresh member too

    def study(self, history: History, hp_config: HyperparameterConfig, seed: int) -> Any:
        """Return an `optuna.Study` in memory with the gains of the history."""
        optuna = library()
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            sampler = getattr(optuna.samplers, self.sampler)(seed=seed)
            study = optuna.create_study(direction="maximize", sampler=sampler)
        finally:
            optuna.logging.set_verbosity(verbosity)
        measured = last_measured(history, hp_config, MAX_TRIALS)
        gains = [trial.fitness - trial.fitness_before for trial in measured]
        for trial, gain in zip(measured, gains, strict=True):
            study.add_trial(as_trial(hp_config, trial.hyperparameters, gain))
        pending = [trial for trial in history.pending if hp_config.covers(trial.hyperparameters)]
        for trial in pending if gains and self.sampler == "GPSampler" else ():
            study.add_trial(as_trial(hp_config, trial.hyperparameters, float(np.mean(gains))))
        return study
