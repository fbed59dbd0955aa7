"""The loop: a generation of training, an evaluation, births, again.

Every member does the same number of env steps in a generation, whatever its learn_step; episodes go on across
generations. Members are judged in envs of their own, without exploration, all on the same seeds. Evolution comes
between two generations and never after the last, so what is returned is exactly what was evaluated.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from agilerl_like.algorithms.population import Population, mend
from agilerl_like.algorithms.ppo import PPO, parameter_count
from agilerl_like.envs.transitions import TransitionEnv
from agilerl_like.envs.vector import evaluation_env, widen
from agilerl_like.errors import CheckpointError, ConfigurationError
from agilerl_like.hpo import Birth, Mutations, Selection, next_generation
from agilerl_like.learning.cohort import Report
from agilerl_like.reporting.console import ConsoleReporter
from agilerl_like.reporting.files import CsvReporter, LineageReporter
from agilerl_like.reporting.records import (
    FOUNDER,
    BirthRecord,
    GenerationRecord,
    MemberRecord,
    RunRecord,
    SummaryRecord,
)
from agilerl_like.reporting.reporter import Reporter, Reporters
from agilerl_like.reporting.tensorboard import TensorBoardReporter
from agilerl_like.reporting.wandb import WandbReporter
from agilerl_like.seeding import Purpose, integers
from agilerl_like.training.collector import Clock, Collector

PARTS = ("env", "act", "learn", "evaluate", "evolve", "report")
CONFIRMING_EPISODES = 20
"""Fresh episodes on which a reached target must hold."""


@dataclass(frozen=True)
class Schedule:
    """How long a run trains, and when it looks. Steps are env steps of one member."""

    max_steps: int = 1_000_000
    """Env steps of each member in the whole run."""
    evo_steps: int = 10_000
    """Env steps of each member between evaluations, and so in one generation."""
    eval_loop: int = 5
    """Evaluation episodes of each member at the end of a generation."""
    eval_steps: int | None = None
    """Longest evaluation episode; None: as long as the env lets it."""
    target: float | None = None
    """Stop when the best member's mean return reaches this, on its evaluation and then on fresh episodes."""
    checkpoint: int | None = None
    """Env steps of each member between checkpoints; None: only at the end."""

    def __post_init__(self) -> None:
        for name in ("max_steps", "evo_steps", "eval_loop", "eval_steps", "checkpoint"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ConfigurationError(f"{name}={value!r} must be a positive integer")
        if self.target is not None and not math.isfinite(self.target):
            raise ConfigurationError(f"target={self.target!r} must be a finite number")


@dataclass(frozen=True)
class Places:
    """Where a run writes; None: not at all."""

    run_dir: Path | None = None
    """metrics.csv, lineage.jsonl, the last population (`population/`) and the best agent ever (`best/`)."""
    checkpoint_path: Path | None = None
    """Where populations are saved besides."""
    overwrite_checkpoints: bool = False
    """Keep only the newest of those."""
    elite_path: Path | None = None
    """Where the best agent ever is saved besides."""


class Outcome(NamedTuple):
    """How a run ended."""

    population: Population
    fitness: list[float]
    summary: SummaryRecord


@dataclass
class Champion:
    """The best agent that was ever evaluated, as it was then."""

    agent: PPO | None = None
    fitness: float = -math.inf


def train_on_policy(
    env: gymnasium.vector.VectorEnv,
    env_name: str | None = None,
    algo: str | None = None,
    pop: Population | Iterable[PPO] | None = None,
    *,
    init_hp: Mapping[str, Any] | None = None,
    mut_p: Mapping[str, Any] | None = None,
    swap_channels: bool = False,
    max_steps: int = Schedule.max_steps,
    evo_steps: int = Schedule.evo_steps,
    eval_steps: int | None = Schedule.eval_steps,
    eval_loop: int = Schedule.eval_loop,
    target: float | None = Schedule.target,
    selection_strategy: Selection | None = None,
    tournament: Selection | None = None,
    mutation: Mutations | None = None,
    checkpoint: int | None = None,
    checkpoint_path: str | os.PathLike[str] | None = None,
    overwrite_checkpoints: bool = False,
    save_elite: bool = False,
    elite_path: str | os.PathLike[str] | None = None,
    wb: bool = False,
    tensorboard: bool = False,
    tensorboard_log_dir: str | os.PathLike[str] | None = None,
    verbose: bool = True,
    accelerator: Any = None,
    wandb_kwargs: Mapping[str, Any] | None = None,
    eval_env: gymnasium.vector.VectorEnv | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    reporters: Iterable[Reporter] = (),
) -> tuple[Population, list[float]]:
    """Train a population, and evolve it if a selection strategy is given; return it and the fitness of its members.

    The names are AgileRL's. `max_steps`, `evo_steps` and `checkpoint` are env steps of each member (see `Schedule`).
    Without `mutation` the selected are cloned as they are; without `selection_strategy` (or `tournament`, the same)
    nobody is selected.

    `env` is where members train: one that can be made again (of `make_vect_envs`, `gymnasium.make_vec`, or a plain
    sync or async vector env) is copied to as many rows for each member; the rows of any other are divided among the
    members, and `eval_env` must say where they are tested. `pop` is a population, or a list of agents of one run
    seed.

    `run_dir` is a folder for metrics.csv, lineage.jsonl, the last population and the best agent; without it nothing
    is written but what `checkpoint_path` and `save_elite` ask for. `env_name` and `algo` are labels and inferred when
    left out; `init_hp` and `mut_p` are AgileRL's dictionaries for its logs, recorded with the run's settings.
    `reporters` are more sinks for what happens. `swap_channels` is for images, which are not there yet; `accelerator`
    is where the population's device came from and needs nothing more here.

    Raises:
        ConfigurationError: before anything is trained.
        EnvironmentFault: the env returned a number that is not finite.
        NoHealthyMember: no member is left whose loss, weights and fitness are finite.
    """
    if pop is None:
        raise ConfigurationError("pop is missing: pass PPO.population(size=…, …)")
    if selection_strategy is not None and tournament is not None:
        raise ConfigurationError("selection_strategy and tournament mean the same; pass one of them")
    population = pop if isinstance(pop, Population) else Population(pop)
    run_dir = None if run_dir is None else Path(run_dir)
    name = env_name or _name_of(env)
    sinks: list[Reporter] = [*reporters, ConsoleReporter(verbose=verbose)]
    if run_dir is not None:
        sinks += [CsvReporter(run_dir), LineageReporter(run_dir)]
    if tensorboard:
        sinks.append(TensorBoardReporter(Path(tensorboard_log_dir or (run_dir or Path("runs") / name) / "tensorboard")))
    if wb:
        sinks.append(WandbReporter(**(wandb_kwargs or {})))
    outcome = evolve_on_policy(
        env,
        population,
        schedule=Schedule(max_steps, evo_steps, eval_loop, eval_steps, target, checkpoint),
        selection=selection_strategy or tournament,
        mutations=mutation,
        places=Places(
            run_dir,
            None if checkpoint_path is None else Path(checkpoint_path),
            overwrite_checkpoints,
            Path(elite_path or f"{name}-elite") if save_elite else None,
        ),
        reporters=Reporters(sinks),
        eval_env=eval_env,
        name=name,
        settings={"algo": algo or population[0].algo, "init_hp": dict(init_hp or {}), "mut_p": dict(mut_p or {})},
    )
    return outcome.population, outcome.fitness


def evolve_on_policy(
    env: gymnasium.vector.VectorEnv,
    population: Population,
    *,
    schedule: Schedule,
    selection: Selection | None,
    mutations: Mutations | None,
    places: Places,
    reporters: Reporters,
    eval_env: gymnasium.vector.VectorEnv | None = None,
    name: str = "",
    settings: Mapping[str, Any] | None = None,
) -> Outcome:
    """Do what `train_on_policy` describes; the arguments are checked before anything is trained."""
    if selection is not None:
        selection.validate(len(population))
    with contextlib.ExitStack() as stack:
        training_env = _training_env(env, len(population))
        if training_env is not env:
            stack.callback(training_env.close)
        if eval_env is None:
            eval_env = evaluation_env(env, len(population) * schedule.eval_loop)
            stack.callback(eval_env.close)
        run = Run(
            population,
            TransitionEnv(training_env),
            TransitionEnv(eval_env),
            schedule,
            selection,
            mutations,
            places,
            reporters,
        )
        stack.callback(reporters.close)
        reporters.start(
            RunRecord(
                name=name or _name_of(env),
                env=_name_of(env),
                algorithm=population[0].algo,
                population_size=len(population),
                num_envs=run.collector.envs,
                seed=population.seed,
                max_env_steps=schedule.max_steps * len(population),
                target=schedule.target,
                run_dir=places.run_dir,
                settings=settings or {},
            )
        )
        with Interrupts() as interrupts:
            return run.go(interrupts)


class Run:
    """One run from its first step to its summary."""

    def __init__(
        self,
        population: Population,
        env: TransitionEnv,
        eval_env: TransitionEnv,
        schedule: Schedule,
        selection: Selection | None,
        mutations: Mutations | None,
        places: Places,
        reporters: Reporters,
    ) -> None:
        self.population, self.schedule, self.selection, self.places, self.reporters = (
            population,
            schedule,
            selection,
            places,
            reporters,
        )
        self.mutations = mutations or Mutations(no_mutation=1, architecture=0, parameters=0, rl_hp=0)
        self.eval_env = eval_env
        self.clock = Clock(PARTS)
        self.collector = Collector(population, env, self.clock)
        self.champion = Champion()
        self.generation = 0
        self.ticks = 0
        self.evaluation_steps = 0
        self.next_index = 1 + max(agent.index for agent in population)
        self.parents: dict[int, int] = {}
        self.births: dict[int, list[BirthRecord]] = {}
        self.reports: dict[int, list[Report]] = {}
        self.saved_at = 0
        self.saved_to: Path | None = None
        self.failed_saves = 0

    @property
    def steps(self) -> int:
        """Env steps of each member so far."""
        return self.ticks * self.collector.envs

    def go(self, interrupts: Interrupts) -> Outcome:
        """Run generations until the budget is spent, the target reached or somebody interrupts."""
        start = perf_counter()
        self._tell_births(tuple(self._founder(place) for place in range(len(self.population))))
        self.collector.reset()
        self.reporters.progress(0)
        reason, members, confirmed = "budget spent", (), math.nan
        while True:
            began, before = perf_counter(), self.ticks
            self._train(interrupts)
            if self.ticks > before:
                self.generation += 1
                members = self._judge()
                speed = (self.ticks - before) * self.collector.env.num_envs / (perf_counter() - began)
                with self.clock("report"):
                    self.reporters.generation(self._record(members, perf_counter() - start, speed))
            if interrupts.asked:
                reason = "interrupted"
                break
            confirmed = self._confirmed()
            if not math.isnan(confirmed):
                reason = "target reached"
                break
            if self._ticks_left() <= 0:
                break
            self._evolve()
            if self.schedule.checkpoint is not None and self.steps - self.saved_at >= self.schedule.checkpoint:
                self._save()
        self._save()
        with self.clock("report"):
            best = max(members, key=lambda m: (m.fitness if math.isfinite(m.fitness) else -math.inf, -m.uid))
            summary = SummaryRecord(
                reason=reason,
                best=best,
                ancestry=self._ancestry(best.uid),
                env_steps=self.steps * len(self.population),
                evaluation_steps=self.evaluation_steps,
                seconds=perf_counter() - start,
                seconds_by_part=dict(self.clock.seconds),
                saved_to=self.saved_to,
                confirmed_fitness=confirmed,
            )
            self.reporters.finish(summary)
        return Outcome(self.population, list(self.population.fitness), summary)

    # -- a generation

    def _ticks_left(self) -> int:
        return self.schedule.max_steps // self.collector.envs - self.ticks

    def _train(self, interrupts: Interrupts) -> None:
        envs = self.collector.envs
        self.reports = {place: [] for place in range(len(self.population))}
        for _ in range(min(-(-self.schedule.evo_steps // envs), max(self._ticks_left(), 1))):
            self.collector.tick()
            self.ticks += 1
            reports = self.collector.learn()
            if reports:
                for place, report in reports.items():
                    self.reports[place].append(report)
                self._mend(dict(reports))
                with self.clock("report"):
                    self.reporters.progress(self.steps * len(self.population))
            if interrupts.asked:
                break
        for agent in self.population:
            agent.steps.append(self.steps)

    def _mend(self, reports: dict[int, Report]) -> None:
        for place, parent in mend(self.population, reports, self.next_index):
            heir = self.population[place]
            self.next_index = max(self.next_index, heir.index + 1)
            self.parents[heir.index] = self.population[parent].index
            self.collector.forget(place)
            birth = Birth(self.generation + 1, place, heir.index, self.population[parent].index, parent, heir.genome)
            self._tell_births(
                (self._birth_record(birth, self.population[parent], "replaced: loss or weights are not finite"),)
            )

    def _judge(self) -> tuple[MemberRecord, ...]:
        """Evaluate everybody and say what became of them."""
        with self.clock("evaluate"):
            seeds = integers(self.schedule.eval_loop, self.population.seed, Purpose.EVALUATION_ENVS, self.generation)
            episodes = self.population.play(self.eval_env, seeds, self.schedule.eval_steps)
        self.evaluation_steps += episodes.steps
        fitness = [float(x) for x in episodes.returns.mean(axis=1)]
        self.population.fitness = fitness
        trained = self.collector.take_returns()
        for agent, score, returns in zip(self.population, fitness, trained, strict=True):
            agent.fitness.append(score)
            agent.scores.append(float(np.mean(returns)) if returns else math.nan)
        best = int(np.argmax([x if math.isfinite(x) else -math.inf for x in fitness]))
        if fitness[best] > self.champion.fitness:
            self.champion = Champion(self.population[best].clone(), fitness[best])
        return tuple(
            MemberRecord(
                slot=place,
                uid=agent.index,
                parent_uid=self.parents.get(agent.index, FOUNDER),
                env_steps=self.steps,
                fitness=fitness[place],
                fitness_std=float(episodes.returns[place].std()),
                episodes=len(seeds),
                train_return=agent.scores[-1],
                hyperparameters=agent.hyperparameters,
                architecture=agent.architecture.describe(),
                parameters=parameter_count(agent),
                mutation=agent.mut,
                losses=_means(self.reports[place]),
            )
            for place, agent in enumerate(self.population)
        )

    def _confirmed(self) -> float:
        """The best member's mean return on fresh episodes if it has reached the target there too, else nan."""
        target, best = self.schedule.target, self.population.best
        if target is None or not best.fitness or not best.fitness[-1] >= target:
            return math.nan
        with self.clock("evaluate"):
            episodes = max(self.schedule.eval_loop, CONFIRMING_EPISODES)
            seeds = integers(episodes, self.population.seed, Purpose.CONFIRMATION_ENVS, self.generation)
            played = best.play(self.eval_env, seeds, self.schedule.eval_steps)
            self.evaluation_steps += played.steps
            mean = float(played.returns.mean())
        return mean if mean >= target else math.nan

    def _evolve(self) -> None:
        if self.selection is None:
            return
        population = self.population
        with self.clock("evolve"):
            before = list(population)
            for agent in before:
                agent.settle()
            births = next_generation(
                [agent.genome for agent in before],
                population.fitness,
                [agent.index for agent in before],
                [agent.hp_config for agent in before],
                selection=self.selection,
                mutations=self.mutations,
                seed=population.seed,
                generation=self.generation,
                next_uid=self.next_index,
                repair=population.repair,
            )
            reasons = [
                f"replaced: fitness is {fitness}" if not math.isfinite(fitness) else ""
                for fitness in population.fitness
            ]
            births = population.evolve(births)
            population.fitness = [population.fitness[birth.parent_slot] for birth in births]
            for birth in births:
                self.next_index = max(self.next_index, birth.uid + 1)
                if not birth.survives:
                    self.parents[birth.uid] = birth.parent_uid
                    self.collector.forget(birth.slot)
        self._tell_births(
            tuple(
                self._birth_record(birth, before[birth.parent_slot], reason)
                for birth, reason in zip(births, reasons, strict=True)
            )
        )

    # -- records

    def _founder(self, place: int) -> BirthRecord:
        agent = self.population[place]
        return BirthRecord(
            generation=0,
            slot=place,
            uid=agent.index,
            parent_uid=FOUNDER,
            survives=False,
            mutations=(),
            hyperparameters=agent.hyperparameters,
            architecture=agent.architecture.describe(),
            parent_hyperparameters={},
            parent_architecture="",
            parent_fitness=math.nan,
        )

    def _birth_record(self, birth: Birth, parent: PPO, reason: str) -> BirthRecord:
        names = parent.hp_config
        return BirthRecord(
            generation=birth.generation,
            slot=birth.slot,
            uid=birth.uid,
            parent_uid=birth.parent_uid,
            survives=birth.survives,
            mutations=tuple(change.to_json() for change in birth.mutations),
            hyperparameters={name: birth.genome.hyperparameters[name] for name in names},
            architecture=birth.genome.architecture.describe(),
            parent_hyperparameters=parent.hyperparameters,
            parent_architecture=parent.architecture.describe(),
            parent_fitness=parent.fitness[-1] if parent.fitness else math.nan,
            reason=reason,
        )

    def _tell_births(self, births: tuple[BirthRecord, ...]) -> None:
        for birth in births:
            self.births.setdefault(birth.uid, []).append(birth)
        with self.clock("report"):
            self.reporters.births(births)

    def _ancestry(self, uid: int) -> tuple[BirthRecord, ...]:
        """The births that led to a member, oldest first, without uneventful survivals."""
        chain: list[BirthRecord] = []
        horizon = math.inf
        while uid in self.births:
            own = [birth for birth in self.births[uid] if birth.generation <= horizon]
            eventful = [b for b in own if not b.survives or any(change["kind"] != "none" for change in b.mutations)]
            chain = eventful + chain
            if not eventful or eventful[0].parent_uid == uid:
                break
            uid, horizon = eventful[0].parent_uid, eventful[0].generation
        return tuple(chain)

    def _record(self, members: tuple[MemberRecord, ...], seconds: float, speed: float) -> GenerationRecord:
        return GenerationRecord(
            generation=self.generation,
            env_steps=self.steps * len(self.population),
            evaluation_steps=self.evaluation_steps,
            max_env_steps=self.schedule.max_steps * len(self.population),
            seconds=seconds,
            steps_per_second=speed,
            seconds_by_part=dict(self.clock.seconds),
            members=members,
            best_fitness_ever=self.champion.fitness,
            target=self.schedule.target,
        )

    # -- saving

    def _save(self) -> None:
        """Save what was asked for; a disk that is full costs a warning and nothing that was saved before."""
        self.saved_at = self.steps
        places = self.places
        targets: list[tuple[Path, Any]] = []
        if places.run_dir is not None:
            targets += [
                (places.run_dir / "population", self.population),
                (places.run_dir / "best", self.champion.agent),
            ]
        if places.checkpoint_path is not None:
            suffix = "" if places.overwrite_checkpoints else f"-{self.steps}"
            targets.append((places.checkpoint_path.with_name(places.checkpoint_path.name + suffix), self.population))
        if places.elite_path is not None:
            targets.append((places.elite_path, self.champion.agent))
        with self.clock("report"):
            for path, what in targets:
                if what is None:
                    continue
                try:
                    what.save_checkpoint(path)
                    self.saved_to = places.run_dir or path
                except CheckpointError as error:
                    self.failed_saves += 1
                    self.reporters.warning(str(error))


@dataclass
class Interrupts:
    """Turns Ctrl-C and SIGTERM into a wish to stop after the current step; a second one stops at once."""

    asked: bool = False
    signal: int = 0
    _previous: dict[int, Any] = field(default_factory=dict)

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _hear(self, number: int, _frame: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked, self.signal = True, number


def _training_env(env: gymnasium.vector.VectorEnv, members: int) -> gymnasium.vector.VectorEnv:
    if members == 1:
        return env
    try:
        return widen(env, env.num_envs * members)
    except ConfigurationError:
        if env.num_envs % members:
            raise
        return env


def _name_of(env: gymnasium.vector.VectorEnv) -> str:
    recipe = getattr(env, "recipe", None)
    if recipe is not None:
        return recipe.env if isinstance(recipe.env, str) else getattr(recipe.env, "__name__", type(recipe.env).__name__)
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__


def _means(reports: list[Report]) -> dict[str, float]:
    """Mean of each number over a generation's updates, in Stable-Baselines3's names."""
    names = [name for name in Report._fields if name != "healthy"]
    return {
        name: float(np.mean([float(getattr(report, name)[0]) for report in reports])) if reports else math.nan
        for name in names
    }
