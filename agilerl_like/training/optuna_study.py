"""Optuna's samplers as an explorer, and trials of a run for its dashboard.

`OptunaExplorer` builds a study from the run's history before each proposal, so a resumed run proposes the same as an
uninterrupted one, on every process. `StudyCallback` adds a trial for each member to a study of the user's, in whose
storage `optuna-dashboard` finds it. Needs the extra `optuna`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from agilerl_like.errors import ConfigurationError, unknown_name
from agilerl_like.hpo import (
    Choice,
    Explorer,
    Genome,
    History,
    HyperparameterConfig,
    Mutation,
    NumberArray,
    Parameter,
    RLParameter,
    Trial,
)
from agilerl_like.hpo.choice import plain
from agilerl_like.hpo.explorer import Repair, unchanged, with_hyperparameters
from agilerl_like.reporting.callback import Callback, RunContext
from agilerl_like.reporting.records import GenerationRecord, MemberRecord, SummaryRecord

try:
    import optuna  # pyright: ignore[reportMissingImports]  # an extra
    from optuna.distributions import (  # pyright: ignore[reportMissingImports]
        BaseDistribution,
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )
    from optuna.trial import FrozenTrial, TrialState, create_trial  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise ConfigurationError(
        "agilerl_like.training.optuna_study needs one more package: pip install 'agilerl-like[optuna]'"
    ) from error

Distribution: TypeAlias = CategoricalDistribution | FloatDistribution | IntDistribution
SAMPLERS = ("TPESampler", "RandomSampler", "QMCSampler", "CmaEsSampler", "GPSampler", "NSGAIISampler")
MAX_TRIALS = 200
"""Number of the history's last trials that a study is built from."""


def distribution(parameter: Parameter) -> Distribution:
    """Return the values that Optuna samples for one hyperparameter, as `to_optuna` returns them.

    Raises:
        ConfigurationError: it is a list of numbers.
    """
    if isinstance(parameter, NumberArray):
        raise ConfigurationError("Optuna samples single values: a NumberArray cannot be part of its study")
    if isinstance(parameter, Choice):
        return CategoricalDistribution([_text(value) for value in parameter.values])
    low, high = (float(to_optuna(parameter, bound)) for bound in (parameter.min, parameter.max))
    low, high = min(low, high), max(low, high)
    if parameter.dtype is int:
        return IntDistribution(int(low), int(high), log=parameter.scale == "log")
    return FloatDistribution(low, high, log=parameter.scale in ("log", "log_complement"))


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


def as_trial(
    hp_config: HyperparameterConfig, values: Mapping[str, Any], value: float | None, **more: Any
) -> FrozenTrial:
    """Return a trial of a member's active hyperparameters; it has failed if `value` is not finite."""
    active = hp_config.active(values)
    distributions: dict[str, BaseDistribution] = {label(name, its): distribution(its) for name, its in active.items()}
    params = {label(name, its): _within(its, values[name]) for name, its in active.items()}
    is_known = value is not None and math.isfinite(value)
    state = TrialState.COMPLETE if is_known else TrialState.FAIL
    return create_trial(
        state=state, value=value if is_known else None, params=params, distributions=distributions, **more
    )


def _within(parameter: Parameter, value: Any) -> Any:
    """Return the value in a study, clamped to bounds that rounding of the scale may have crossed."""
    found, its = to_optuna(parameter, value), distribution(parameter)
    return min(max(found, its.low), its.high) if isinstance(its, FloatDistribution) else found


def _suggested(suggestion: optuna.Trial, name: str, parameter: Parameter) -> Any:
    its = distribution(parameter)
    if isinstance(its, CategoricalDistribution):
        return suggestion.suggest_categorical(name, its.choices)
    if isinstance(its, IntDistribution):
        return suggestion.suggest_int(name, its.low, its.high, log=its.log)
    return suggestion.suggest_float(name, its.low, its.high, log=its.log)


@dataclass(frozen=True)
class OptunaExplorer(Explorer):
    """Proposes the suggestions of an Optuna sampler, given each member's gain in fitness in each generation.

    `sampler` names a class of `optuna.samplers`. Clones keep their parent's weights and architecture.
    """

    sampler: str = "TPESampler"

    def __post_init__(self) -> None:
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

    def study(self, history: History, hp_config: HyperparameterConfig, seed: int) -> optuna.Study:
        """Return a study in memory with the gains of the history."""
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            sampler = getattr(optuna.samplers, self.sampler)(seed=seed)
            study = optuna.create_study(direction="maximize", sampler=sampler)
        finally:
            optuna.logging.set_verbosity(verbosity)
        for trial in _measured(history.trials)[-MAX_TRIALS:]:
            study.add_trial(as_trial(hp_config, trial.hyperparameters, trial.fitness - trial.fitness_before))
        return study


def _measured(trials: Sequence[Trial]) -> list[Trial]:
    return [trial for trial in trials if math.isfinite(trial.fitness - trial.fitness_before)]


class StudyCallback(Callback):
    """Adds a trial for each member, with its fitness by generation, to a study when it is replaced or the run ends.

    The study must maximize; `hp_config` are the ranges of the population.
    """

    def __init__(self, study: optuna.Study, hp_config: HyperparameterConfig) -> None:
        if not isinstance(study, optuna.Study) or not isinstance(hp_config, HyperparameterConfig):
            raise ConfigurationError(
                f"study={study!r:.100} and hp_config={hp_config!r:.100}; allowed are a study of Optuna and a "
                "HyperparameterConfig"
            )
        if study.direction != optuna.study.StudyDirection.MAXIMIZE:
            raise ConfigurationError("study.direction must be maximize, because fitness is")
        wanted = {label(name, parameter): distribution(parameter) for name, parameter in hp_config.items()}
        for trial in study.trials:
            for name, own in trial.distributions.items():
                if name in wanted and own != wanted[name]:
                    raise ConfigurationError(
                        f"study {study.study_name!r} has {name}={own}, and hp_config {wanted[name]}; allowed are equal "
                        "ranges, or another study"
                    )
        self.study, self.hp_config = study, hp_config
        self._alive: dict[int, tuple[MemberRecord, dict[int, float]]] = {}

    def on_generation(self, run: RunContext, record: GenerationRecord) -> None:
        present = {member.uid for member in record.members}
        for uid in [uid for uid in self._alive if uid not in present]:
            self._add(run, *self._alive.pop(uid))
        for member in record.members:
            scores = self._alive[member.uid][1] if member.uid in self._alive else {}
            known = {record.generation: member.fitness} if math.isfinite(member.fitness) else {}
            self._alive[member.uid] = (member, {**scores, **known})

    def on_run_end(self, run: RunContext, summary: SummaryRecord) -> None:
        for member, scores in self._alive.values():
            self._add(run, member, scores)
        self._alive.clear()

    def _add(self, run: RunContext, member: MemberRecord, scores: dict[int, float]) -> None:
        facts = {"run": run.record.name, "env": run.record.env, "uid": member.uid, "parent_uid": member.parent_uid}
        facts |= {"architecture": member.architecture, "mutation": member.mutation}
        self.study.add_trial(
            as_trial(
                self.hp_config, member.hyperparameters, member.fitness, intermediate_values=scores, user_attrs=facts
            )
        )
