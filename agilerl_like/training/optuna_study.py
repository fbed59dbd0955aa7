"""Members of a run as trials in a study of Optuna, in whose storage `optuna-dashboard` finds them.

Needs the extra `optuna`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from agilerl_like.errors import ConfigurationError, unknown_name
from agilerl_like.hpo import HyperparameterConfig
from agilerl_like.hpo.optuna_steps import as_trial, distribution, from_optuna, label, library
from agilerl_like.reporting.callback import Callback, RunContext
from agilerl_like.reporting.records import GenerationRecord, MemberRecord, SummaryRecord
from agilerl_like.reporting.run_history import RUN_DOCUMENT, run_document

optuna = library()


@dataclass
class _Observed:
    """A member of the current generation: when it began to train, and its record and the end of each generation."""

    start: datetime
    generations: dict[int, tuple[MemberRecord, datetime]] = field(default_factory=dict)


class StudyCallback(Callback):
    """Adds a trial for each member, with its fitness by generation, to a study when it is replaced or the run ends.

    The `optuna.Study` must maximize; `hp_config` are the ranges of the population. A trial's value is the member's last
    fitness, because the highest of many noisy ones is too high; its intermediate values are all of them. The best trial
    is therefore not always the best agent of the run, which is confirmed on fresh episodes. A clone's trial begins with
    its birth, and its weights with its parent's, so its value is not that of its hyperparameters alone.

    A run that was stopped and can be resumed adds its members when the resumed run ends, so that none is added twice.
    With the same callback the trials are those of an uninterrupted run. A new one has neither the fitness before the
    stop nor members that the resumed run replaces at once. A run that continues from a checkpoint discards what
    followed it, but trials that were added since stay, because Optuna removes none.
    """

    def __init__(self, study: Any, hp_config: HyperparameterConfig) -> None:
        if not isinstance(study, optuna.Study) or not isinstance(hp_config, HyperparameterConfig):
            raise ConfigurationError(
                f"study={study!r:.100} and hp_config={hp_config!r:.100}; allowed are a study of Optuna and a "
                "HyperparameterConfig"
            )
        if study.directions != [optuna.study.StudyDirection.MAXIMIZE]:
            directions = [direction.name.lower() for direction in study.directions]
            raise ConfigurationError(
                f"study.directions={directions}; allowed is ['maximize'], because a member has one fitness, which is "
                "maximized"
            )
        wanted = {label(name, parameter): distribution(parameter) for name, parameter in hp_config.items()}
        for trial in study.get_trials(deepcopy=False):
            for name, own in trial.distributions.items():
                if name in wanted and own != wanted[name]:
                    raise ConfigurationError(
                        f"study {study.study_name!r} has {name}={own}, and hp_config {wanted[name]}; allowed are equal "
                        "ranges, or another study"
                    )
        self.study, self.hp_config = study, hp_config
        self._alive: dict[int, _Observed] = {}
        self._generation_start = datetime.now()
        self._folder: str | None = None
        """Absolute path of the run's folder, because an environment may change the working directory."""

    def settings(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the params of a trial as settings of the algorithm: `1 - gamma` as gamma, `log2 batch_size` likewise.

        Settings that the trial does not have, since their condition did not hold, are left out.
        """
        labels = {label(name, its): (name, its) for name, its in self.hp_config.items()}
        for name in params:
            if name not in labels:
                raise unknown_name("params", name, labels)
        return {labels[name][0]: from_optuna(labels[name][1], value) for name, value in params.items()}

    def on_run_begin(self, run: RunContext) -> None:
        """Begin, and discard what an abandoned attempt, or another run, has observed after `run.generation`.

        Raises:
            ConfigurationError: `hp_config` has ranges that members lack, whose values no trial could have.
        """
        evolving = run.population[0].hp_config
        if missing := [name for name in self.hp_config if name not in evolving]:
            raise ConfigurationError(
                f"hp_config of StudyCallback has {', '.join(missing)}, which members do not evolve; allowed are ranges "
                f"of theirs: {', '.join(evolving) or 'none'}"
            )
        for uid, observed in [*self._alive.items()]:
            for number in [number for number in observed.generations if number > run.generation]:
                del observed.generations[number]
            if not observed.generations:
                del self._alive[uid]
        self._generation_start = datetime.now()
        self._folder = None if run.record.run_dir is None else str(run.record.run_dir.resolve())

    def on_generation(self, run: RunContext, record: GenerationRecord) -> None:
        present = {member.uid for member in record.members}
        for uid in [uid for uid in self._alive if uid not in present]:
            self._add(run, self._alive.pop(uid))
        now = datetime.now()
        for member in record.members:
            observed = self._alive.setdefault(member.uid, _Observed(self._generation_start))
            observed.generations[record.generation] = member, now
        self._generation_start = now

    def on_run_end(self, run: RunContext, summary: SummaryRecord) -> None:
        if summary.resume:
            return
        for observed in self._alive.values():
            self._add(run, observed)
        self._alive.clear()

    def _add(self, run: RunContext, observed: _Observed) -> None:
        """Add a member's trial, unless it was added before the run was stopped, after its last checkpoint.

        A resumed run has the folder of the run that was stopped, and the time at which it began, which another run in
        that folder does not have. A run without a folder cannot be resumed. After all members had diverged, the same
        member has another fitness than before the restart, and is added again, with its fitness since then.
        """
        (member, end), folder = observed.generations[max(observed.generations)], self._folder
        begun = None if folder is None else run_document(Path(folder) / RUN_DOCUMENT).get("begun")
        origin = {"run": run.record.name, "run_dir": folder, "begun": begun, "seed": run.record.seed, "uid": member.uid}
        facts = {**origin, "env": run.record.env, "parent_uid": member.parent_uid}
        facts |= {"architecture": member.architecture, "mutation": member.mutation}
        scores = {number: one.fitness for number, (one, _) in observed.generations.items()}
        trial = as_trial(
            self.hp_config,
            member.hyperparameters,
            member.fitness,
            intermediate_values={number: score for number, score in scores.items() if math.isfinite(score)},
            user_attrs=facts,
        )
        if folder is not None and any(
            origin.items() <= its.user_attrs.items() and (its.last_step, its.value) == (trial.last_step, trial.value)
            for its in self.study.get_trials(deepcopy=False)
        ):
            return
        trial.datetime_start, trial.datetime_complete = observed.start, end
        self.study.add_trial(trial)
