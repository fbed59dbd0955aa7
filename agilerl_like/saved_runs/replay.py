"""Trains agents with the schedule that evolution found, and the initial members without evolution.

A replay shows whether a find transfers: agents start from new weights on new seeds, and receive at the end of every
generation the hyperparameters and architecture mutations of the best agent's lineage. Noise on weights is not part of
the schedule. As many agents keep the lineage's initial settings; they train in the same population, as one batch.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from agilerl_like.algorithms.population import BasePopulation
from agilerl_like.config import Config, build
from agilerl_like.config.run_config import Experiment
from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo import Explorer, Genome, History, HyperparameterConfig, Mutation, PopulationView, Selection
from agilerl_like.hpo.explorer import Repair, unchanged, with_hyperparameters
from agilerl_like.hpo.schedules import Schedule
from agilerl_like.hpo.selection import SlotPlan
from agilerl_like.networks.multi_agent_spec import MultiAgentSpec, split_operator
from agilerl_like.networks.network_mutation import UNIT_COUNT_ARGUMENTS, UNLIMITED
from agilerl_like.reporting.callback import Callback, CallbackList
from agilerl_like.reporting.estimates import (
    LEAST,
    Estimate,
    best_so_far,
    bootstrap,
    bootstrap_difference,
    interquartile_mean,
)
from agilerl_like.reporting.records import OffspringRecord
from agilerl_like.saved_runs.run import Run
from agilerl_like.seeding import Purpose, fresh_seed, integers
from agilerl_like.training.lineage import steps_before
from agilerl_like.training.run_plan import NO_MUTATION, RunPlan
from agilerl_like.training.session import train_population
from agilerl_like.training.training_arguments import OutputPaths

EPISODES = 20
"""Fresh episodes of each agent."""


@dataclass(frozen=True)
class Replay:
    """The result of a replay: fitness on fresh episodes, one for each seed."""

    generations: int
    changes: int
    """Records of the lineage that change hyperparameters or architecture (`Run.num_changes`)."""
    found: float
    """Fitness of the best agent of the run on fresh episodes."""
    standard_error: float
    """Its standard error; nan if it is not known."""
    replayed: list[float]
    """Fitness of the replayed agents, as in `unchanged` nan for one that diverged."""
    unchanged: list[float]
    """Fitness of the agents that kept the initial settings."""
    hyperparameters: Mapping[str, float]
    """Of the replayed agents at the end."""
    architecture: str

    @cached_property
    def estimate(self) -> Estimate:
        """The interquartile mean of the replayed agents with its interval."""
        return bootstrap(self._scores(self.replayed), interquartile_mean)

    @cached_property
    def baseline(self) -> Estimate:
        """The interquartile mean of the agents with the initial settings."""
        return bootstrap(self._scores(self.unchanged), interquartile_mean)

    @cached_property
    def difference(self) -> Estimate:
        """How much better the replayed agents are than those with the initial settings."""
        return bootstrap_difference(self._scores(self.replayed), self._scores(self.unchanged), interquartile_mean)

    def _scores(self, fitness: Sequence[float]) -> list[float]:
        """Return the fitness of agents; one that diverged has failed, and counts as the lowest of all agents."""
        finite = [its for its in (*self.replayed, *self.unchanged) if math.isfinite(its)]
        return [its if math.isfinite(its) else min(finite) for its in fitness] if finite else []

    @property
    def diverged(self) -> str:
        """How many agents diverged, and what they count as; "" if none did."""
        groups = {"replayed": self.replayed, "unchanged": self.unchanged}
        lost = {name: sum(not math.isfinite(value) for value in its) for name, its in groups.items()}
        if not any(lost.values()):
            return ""
        counts = " and ".join(f"{lost[name]} of {len(its)} {name}" for name, its in groups.items() if lost[name])
        return f"{counts} agents diverged, and count as the lowest fitness of all agents"

    @property
    def verdict(self) -> str:
        """Whether the find transfers to new seeds: better than the initial settings; and whether it reaches the best.

        The first shows that the schedule matters, and not one good draw or the luck of the best agent's weights. The
        second is known where the interval lies on one side of the best agent, less two of its standard errors.
        """
        if not self.changes:
            both = bootstrap(self._scores([*self.replayed, *self.unchanged]), interquartile_mean)
            reaches = f"on new seeds {self._reaches(both)}"
            return f"the find is one setting without changes, so there is no schedule to test: {reaches}"
        if self.difference.num_values < LEAST:
            return f"the find is not shown to transfer: an interval needs {LEAST} agents of each kind"
        rough = " (by a rough interval)" if self.difference.is_rough else ""
        if self.difference.high < 0:
            transfers = f"the find does not transfer: the replayed agents are worse than the initial settings{rough}"
        elif self.difference.low <= 0:
            transfers = (
                "the find is not shown to transfer: the difference from the initial settings is within the noise"
            )
        else:
            transfers = f"the find transfers: better than the initial settings{rough}"
        return f"{transfers}; {self._reaches(self.estimate)}"

    def _reaches(self, estimate: Estimate) -> str:
        """Return whether agents with the settings of the find reach the best agent of the run."""
        level = self.found - (2 * self.standard_error if self.standard_error >= 0 else 0.0)
        if estimate.num_values < LEAST:
            return f"whether it reaches the best agent of the run is not shown: an interval needs {LEAST} agents"
        if estimate.low >= level:
            return "it reaches the best agent of the run"
        if estimate.high < level:
            return "it does not reach the best agent of the run"
        return "whether it reaches the best agent of the run is within the noise"


@dataclass(frozen=True)
class AllSurvive(Selection):
    """Keeps every member in its slot; the first `explored` are changed by the explorer."""

    explored: int = 0
    given_schedules: Mapping[str, Schedule] = field(default_factory=dict)
    """The schedules of the selection strategy whose run is replayed."""

    def schedules(self) -> Mapping[str, Schedule]:
        """Return the schedules of the run."""
        return self.given_schedules

    def plan(self, view: PopulationView, rng: np.random.Generator) -> Sequence[SlotPlan]:
        # not explored: the clone of another agent, with a uid of its own, that has replaced a diverged one
        return [
            SlotPlan(slot, slot, explore=slot < self.explored and uid == slot) for slot, uid in enumerate(view.uids)
        ]


@dataclass(frozen=True)
class ScheduleExplorer(Explorer):
    """Applies the changes of a lineage at the end of the same generations."""

    births: Mapping[int, Sequence[OffspringRecord]] = field(default_factory=dict)
    """By generation."""

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
        """Return the genome as the lineage had it after this generation."""
        changes: list[Mutation] = []
        for birth in self.births.get(history.trials[-1].generation, ()):
            genome, change = with_hyperparameters(genome, birth.hyperparameters, repair, operator="replay")
            changes += [change] if change.kind != "none" else []
            for mutation in birth.mutations:
                if mutation["kind"] in ("architecture", "activation"):
                    architecture = with_mutation(genome.architecture, mutation["operator"], mutation["details"])
                    genome = genome.replace(architecture=architecture)
                    details = {**mutation["details"], UNLIMITED: True}
                    changes.append(Mutation.from_json({**mutation, "details": details}))
            if genome.architecture.describe() != birth.architecture:
                raise ConfigurationError(
                    f"generation {birth.generation} cannot be replayed: its architecture is {birth.architecture!r}, "
                    f"and the replayed one {genome.architecture.describe()!r}"
                )
        return genome, tuple(changes) or (Mutation("none"),)


def with_mutation(architecture: Any, operator: str, details: Mapping[str, Any]) -> Any:
    """Return an architecture after a recorded mutation, whose details hold measurements besides its arguments."""
    if isinstance(architecture, MultiAgentSpec):
        group, inner = split_operator(operator)
        return architecture.replace(group, with_mutation(architecture.of(group), inner, details))
    for arguments in architecture.choices(operator):
        if all(_matches(name, value, details.get(name)) for name, value in arguments.items()):
            return architecture.apply(operator, **{name: details[name] for name in arguments})
    raise ConfigurationError(f"operator={operator!r} with {dict(details)} is not legal for {architecture.describe()}")


def _matches(name: str, legal: Any, recorded: Any) -> bool:
    """Whether a recorded argument is a legal one, or fewer units: removals may be smaller than they were drawn."""
    if name in UNIT_COUNT_ARGUMENTS and isinstance(recorded, int):
        return 1 <= recorded <= legal
    return recorded == legal


def check_comparable(config: Config, name: str) -> None:
    """Raise ConfigurationError if fitness is a rating, by which agents of two runs do not compare; `name` is the run.

    A rating depends on the opponents of the run.
    """
    if (fitness := config.training.fitness) == "rating":
        raise ConfigurationError(
            f"{name} has training.fitness={fitness!r}, which depends on the opponents of the run; a replay, and a "
            "training without evolution, allows 'return' and info.NAME"
        )


def replay_run(
    run: Run, *, seeds: int = 5, seed: int | None = None, trust: bool = False, callbacks: Sequence[Callback] = ()
) -> Replay:
    """Train agents from new weights with the schedule of a run's best agent, and as many without it.

    Both follow the schedules of the settings, and those that the selection gives, such as that of lr in
    `evolution="auto"`, up to the share of the budget at which the best agent was found. With the run's own seed, an
    initial member that became the best agent without a change is that agent again in its slot: to the bit, where matrix
    products round equally (always with `per_member`) and nothing has a schedule.

    Raises:
        ConfigurationError: `seeds` is below 1, the run's folder lacks what a replay needs, or its fitness is a rating,
            which depends on the opponents of the run.
    """
    if seeds < 1:
        raise ConfigurationError(f"seeds={seeds!r} must be at least 1")
    check_comparable(run.validated_config(trust=trust), f"run={str(run.display_path)!r}")
    best, ancestry = run.records.rows[run.records.best_row], run.ancestry()
    if not ancestry:
        raise ConfigurationError(
            f"run={str(run.display_path)!r}: its lineage does not name the best agent; nothing to replay"
        )
    initial, config = ancestry[0], _settings(run.validated_config(trust=trust), ancestry[0], seed)
    steps_after = {0: 0} | {int(row["generation"]): int(row["env_steps"]) for row in run.records.rows}
    length = min(config.training.generation_steps(config.environment.num_envs), steps_after[1])  # it may have grown
    trained = steps_before(ancestry, steps_after)
    share_of_budget = min(1.0, _steps_of_each(run, best) / config.training.max_steps)
    steps = trained[-1] + steps_after[int(best["generation"])] - steps_after[ancestry[-1].generation]
    generations = -(-steps // length)
    births: dict[int, list[OffspringRecord]] = {}
    for birth, before in zip(ancestry[1:], trained[1:], strict=True):  # where members were removed, generations were
        number = min(-(-before // length), generations - 1)  # longer than those of a replay; the last does not evolve
        births.setdefault(number, []).append(birth)
    members = {"size": 2 * seeds, "sample_hyperparameters": False, "pre_training_mutation": False}
    config = config.model_copy(
        update={
            "population": config.population.model_copy(update=members),
            "training": _training(config, steps, evo_steps=length),
        }
    )
    experiment = build(config, evolves_noise=config.evolves_noise(initial.hyperparameters))
    with contextlib.closing(experiment.env):
        shown = experiment.population[0].architecture.describe()
        if shown != initial.architecture:
            why = (
                f"a replay needs a lineage whose first member, which started again in generation {initial.generation}, "
                "has the initial architecture"
                if initial.generation
                else "a replay needs a run without population.pre_training_mutation"
            )
            raise ConfigurationError(
                f"run={str(run.display_path)!r}: its lineage begins with the architecture {initial.architecture!r} "
                f"and its configuration with {shown!r}; {why}"
            )
        given = {} if experiment.selection is None else experiment.selection.schedules()
        plan = RunPlan(
            config.training,
            AllSurvive(seeds, given),
            ScheduleExplorer(births),
            name=f"replay of {run.name}",
            schedule_steps=round(steps / share_of_budget),
            searches=False,
        )
        population, returns = _trained(experiment, config, plan, callbacks)
    return Replay(
        generations=generations,
        changes=run.num_changes,
        found=float(best_so_far(run.records)[-1]),
        standard_error=float(run.records.rows[-1].get("population/best_ever_standard_error", np.nan)),
        replayed=returns[:seeds],
        unchanged=returns[seeds:],
        hyperparameters=population[0].hyperparameters,
        architecture=population[0].architecture.describe(),
    )


def train_initial_members(run: Run, *, trust: bool = False, callbacks: Sequence[Callback] = ()) -> list[float]:
    """Train the initial members of a run without evolution for its steps.

    Return their fitness on fresh episodes, nan for a member that diverged.

    Raises:
        ConfigurationError: the run's folder lacks what this needs, or its fitness is a rating.
    """
    config = run.validated_config(trust=trust)
    check_comparable(config, f"run={str(run.display_path)!r}")
    steps, whole_run = _steps_of_each(run, run.records.rows[-1]), config.training.max_steps
    config = config.model_copy(update={"training": _training(config, steps)})
    evolves_noise = any(config.evolves_noise(birth.hyperparameters) for birth in run.lineage())
    experiment = build(config, evolves_noise=evolves_noise)
    with contextlib.closing(experiment.env):
        name = f"{run.name} without evolution"
        plan = RunPlan(config.training, None, NO_MUTATION, name=name, schedule_steps=whole_run)
        return _trained(experiment, config, plan, callbacks)[1]


def _settings(config: Config, initial: OffspringRecord, seed: int | None) -> Config:
    """The configuration with the hyperparameters of an initial member and another seed."""
    values = {name: value for name, value in initial.hyperparameters.items() if hasattr(config.algorithm, name)}
    data = config.to_json()
    data["algorithm"] |= values
    return type(config).model_validate(data | {"seed": fresh_seed() if seed is None else seed})


def _steps_of_each(run: Run, row: Mapping[str, Any]) -> int:
    """Return the env steps of a run up to the generation of a row, for each of the members that it began with."""
    start, stop = run.records.generations[0]
    return round(row["time/total_timesteps"] / (stop - start))


def _training(config: Config, steps: int, **changed: Any) -> Any:
    """The training settings for so many env steps of each member, without other limits."""
    limits = {"max_steps": steps, "target": None, "max_seconds": None, "max_updates": None}
    return type(config.training)(**{**vars(config.training), **limits, **changed})


def _trained(
    experiment: Experiment, config: Config, plan: RunPlan, callbacks: Sequence[Callback]
) -> tuple[BasePopulation, list[float]]:
    """Train a population; return it and the fitness of each member on fresh episodes, as the run measures it.

    It is nan for a member that diverged and was replaced by the clone of another.
    """
    result = train_population(
        experiment.env_setup,
        experiment.population,
        plan,
        output_paths=OutputPaths(),
        callbacks=CallbackList(callbacks),
    )
    result.raise_if_interrupted()
    population, env_setup, training = result.population, experiment.env_setup, config.training
    with contextlib.closing(env_setup.make_eval_env(len(population) * env_setup.num_eval_episodes(EPISODES))) as env:
        evaluator = env_setup.make_evaluator(training.fitness, env_setup.adapt(env), training.eval_steps)
        seeds = integers(EPISODES, config.seed or 0, Purpose.CONFIRMATION_ENVS)
        fitness = evaluator.evaluate(population, seeds, 0).fitness
    return population, [
        its if agent.index == slot else math.nan
        for slot, (agent, its) in enumerate(zip(population, fitness, strict=True))
    ]
