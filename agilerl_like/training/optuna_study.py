"""Members of a run as trials in a study of Optuna, in whose storage `optuna-dashboard` finds them.

Needs the extra `optuna`.
"""

from __future__ import annotations

import math
from typing import Any

from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo import HyperparameterConfig
from agilerl_like.hpo.optuna_steps import as_trial, distribution, label, library
from agilerl_like.reporting.callback import Callback, RunContext
from agilerl_like.reporting.records import GenerationRecord, MemberRecord, SummaryRecord

optuna = library()


class StudyCallback(Callback):
    """Adds a trial for each member, with its fitness by generation, to a study when it is replaced or the run ends.

    The `optuna.Study` must maximize; `hp_config` are the ranges of the population. A run that was stopped and can be
    resumed adds its members when the resumed run ends, so that none is added twice. With the same callback the trials
    are those of an uninterrupted run. A new one does not know the fitness before the stop, nor members that the resumed
    run replaces at once.
    """

    def __init__(self, study: Any, hp_config: HyperparameterConfig) -> None:
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
        self._folder: str | None = None
        """Absolute path of the run's folder, because an environment may change the working directory."""

    def on_run_begin(self, run: RunContext) -> None:
        self._folder = None if run.record.run_dir is None else str(run.record.run_dir.resolve())

    def on_generation(self, run: RunContext, record: GenerationRecord) -> None:
        present = {member.uid for member in record.members}
        for uid in [uid for uid in self._alive if uid not in present]:
            self._add(run, *self._alive.pop(uid))
        for member in record.members:
            scores = self._alive[member.uid][1] if member.uid in self._alive else {}
            known = {record.generation: member.fitness} if math.isfinite(member.fitness) else {}
            self._alive[member.uid] = (member, {**scores, **known})

    def on_run_end(self, run: RunContext, summary: SummaryRecord) -> None:
        if summary.resume:
            return
        for member, scores in self._alive.values():
            self._add(run, member, scores)
        self._alive.clear()

    def _add(self, run: RunContext, member: MemberRecord, scores: dict[int, float]) -> None:
        """Add a member's trial, unless it was added before the run was stopped, after its last checkpoint.

        A resumed run has the folder of the run that was stopped, which several runs of one name do not share. A run
        without a folder cannot be resumed.
        """
        origin = {"run": run.record.name, "run_dir": self._folder, "seed": run.record.seed, "uid": member.uid}
        if self._folder is not None and any(origin.items() <= trial.user_attrs.items() for trial in self.study.trials):
            return
        facts = {**origin, "env": run.record.env, "parent_uid": member.parent_uid}
        facts |= {"architecture": member.architecture, "mutation": member.mutation}
        self.study.add_trial(
            as_trial(
                self.hp_config, member.hyperparameters, member.fitness, intermediate_values=scores, user_attrs=facts
            )
        )
