"""One run: a generation of training, an evaluation, births, again.

Every member does the same number of env steps in a generation, whatever its learn_step, and episodes go on across
generations. Members are judged in envs of their own, without exploration, all on the same seeds. Evolution comes
between two generations and never after the last, so what a run returns is exactly what was evaluated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np

from agilerl_like.algorithms.agent import Agent
from agilerl_like.algorithms.evaluation import Episodes
from agilerl_like.algorithms.population import Population, mend
from agilerl_like.envs.transitions import TransitionEnv
from agilerl_like.errors import CheckpointError
from agilerl_like.hpo import Birth, Mutations, Selection, next_generation
from agilerl_like.learning.update import Report
from agilerl_like.reporting.records import BirthRecord, GenerationRecord, MemberRecord, SummaryRecord
from agilerl_like.reporting.reporter import Reporters
from agilerl_like.seeding import Purpose, integers
from agilerl_like.training.chronicle import Chronicle, founder, record_of
from agilerl_like.training.collector import Clock, Collector
from agilerl_like.training.interrupts import Interrupts
from agilerl_like.training.schedule import Places, Schedule

PARTS = ("env", "act", "learn", "evaluate", "evolve", "report")
CONFIRMING_EPISODES = 20
"""Fresh episodes on which a reached target must hold."""


class Outcome(NamedTuple):
    """How a run ended."""

    population: Population
    fitness: list[float]
    summary: SummaryRecord
    signal: int
    """What interrupted it: SIGINT or SIGTERM, 0 if nothing did."""
    unsaved: int
    """How many of the last saves failed: 0 if everything that was asked for is on the disk."""


@dataclass
class Champion:
    """The best agent that was ever evaluated, as it was then."""

    agent: Agent | None = None
    fitness: float = -math.inf


class Run:
    """One run from its first step to its summary."""

    def __init__(
        self,
        population: Population,
        env: TransitionEnv,
        eval_env: TransitionEnv,
        *,
        schedule: Schedule,
        selection: Selection | None,
        mutations: Mutations,
        places: Places,
        reporters: Reporters,
    ) -> None:
        self.population, self.eval_env, self.schedule = population, eval_env, schedule
        self.selection, self.mutations, self.places, self.reporters = selection, mutations, places, reporters
        self.clock = Clock(PARTS)
        self.collector = Collector(population, env, self.clock)
        self.chronicle = Chronicle()
        self.champion = Champion()
        self.generation = 0
        self.ticks = 0
        self.evaluation_steps = 0
        self.next_index = 1 + max(agent.index for agent in population)
        self.reports: list[list[Report]] = [[] for _ in population]
        self.saved_at = 0
        self.saves = 0

    @property
    def steps(self) -> int:
        """Env steps of each member so far."""
        return self.ticks * self.collector.envs

    def go(self, interrupts: Interrupts) -> Outcome:
        """Run generations until the budget is spent, the target reached or somebody interrupts."""
        start = perf_counter()
        self._tell(tuple(founder(slot, agent) for slot, agent in enumerate(self.population)))
        self.collector.reset()
        self.reporters.progress(0)
        while True:
            began, before = perf_counter(), self.ticks
            self._train(interrupts)
            members = self._judge()
            speed = (self.ticks - before) * self.collector.env.num_envs / (perf_counter() - began)
            with self.clock("report"):
                self.reporters.generation(self._record(members, perf_counter() - start, speed))
            confirmed = math.nan if interrupts.asked else self._confirm()
            reason = self._reason_to_stop(interrupts, confirmed)
            if reason:
                break
            self._evolve()
            if self.eval_env.env is self.collector.env.env:  # there is no second one: training episodes were cut off
                self.collector.reset(self.generation)
            if self.schedule.checkpoint is not None and self.steps - self.saved_at >= self.schedule.checkpoint:
                self._save()
        unsaved = self._save()
        summary = self._summary(reason, members, confirmed, perf_counter() - start)
        self.reporters.finish(summary)
        return Outcome(self.population, list(self.population.fitness), summary, interrupts.signal, unsaved)

    # -- a generation

    def _train(self, interrupts: Interrupts) -> None:
        self.generation += 1
        self.reports = [[] for _ in self.population]
        collector = self.collector
        last = self.ticks + max(1, min(-(-self.schedule.evo_steps // collector.envs), self._ticks_left()))
        while self.ticks < last and not interrupts.asked:
            ticks = min(collector.ticks_until_due, last - self.ticks)
            self.ticks += collector.collect(ticks, asked_to_stop=lambda: interrupts.asked)
            reports = collector.learn()
            for place, report in reports.items():
                self.reports[place].append(report)
            if reports:
                self._mend(dict(reports))
                with self.clock("report"):
                    self.reporters.progress(self.steps * len(self.population))
        for agent in self.population:
            agent.steps.append(self.steps)

    def _ticks_left(self) -> int:
        return self.schedule.max_steps // self.collector.envs - self.ticks

    def _mend(self, reports: dict[int, Report]) -> None:
        for place, parent_place in mend(self.population, reports, self.next_index):
            heir, parent = self.population[place], self.population[parent_place]
            self.next_index = heir.index + 1
            self.collector.welcome(place)
            self.reports[place].clear()
            birth = Birth(self.generation, place, heir.index, parent.index, parent_place, heir.genome)
            self._tell((record_of(birth, parent, "replaced: loss or weights are not finite"),))

    def _judge(self) -> tuple[MemberRecord, ...]:
        """Evaluate everybody, keep the best ever, and say what became of each."""
        with self.clock("evaluate"):
            seeds = integers(self.schedule.eval_loop, self.population.seed, Purpose.EVALUATION_ENVS, self.generation)
            episodes = self.population.play(self.eval_env, seeds, self.schedule.eval_steps)
            self.evaluation_steps += episodes.steps
            self.population.fitness = [float(score) for score in episodes.returns.mean(axis=1)]
            training = self.collector.take_scores()
            for agent, score, training_score in zip(self.population, self.population.fitness, training, strict=True):
                agent.fitness.append(score)
                agent.scores.append(training_score)
            best = self.population.best
            if best.fitness[-1] > self.champion.fitness:
                self.champion = Champion(best.clone(), best.fitness[-1])
        return tuple(self._member(slot, agent, episodes) for slot, agent in enumerate(self.population))

    def _confirm(self) -> float:
        """The best member's mean return on fresh episodes if it has reached the target there too, else nan."""
        target, best = self.schedule.target, self.population.best
        if target is None or not best.fitness[-1] >= target:
            return math.nan
        with self.clock("evaluate"):
            episodes = max(self.schedule.eval_loop, CONFIRMING_EPISODES)
            seeds = integers(episodes, self.population.seed, Purpose.CONFIRMATION_ENVS, self.generation)
            played = best.play(self.eval_env, seeds, self.schedule.eval_steps)
            self.evaluation_steps += played.steps
            mean = float(played.returns.mean())
        return mean if mean >= target else math.nan

    def _reason_to_stop(self, interrupts: Interrupts, confirmed: float) -> str:
        if interrupts.asked:
            return "interrupted"
        if not math.isnan(confirmed):
            return "target reached"
        return "budget spent" if self._ticks_left() <= 0 else ""

    def _evolve(self) -> None:
        if self.selection is None:
            return
        population, before = self.population, list(self.population)
        with self.clock("evolve"):
            for agent in before:
                agent.settle()
            births = population.evolve(
                next_generation(
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
            )
            self.next_index = max(self.next_index, *(birth.uid + 1 for birth in births))
            for birth in births:
                if not birth.survives:
                    self.collector.welcome(birth.slot)
        reasons = ["" if math.isfinite(score) else f"replaced: fitness is {score}" for score in population.fitness]
        population.fitness = [population.fitness[birth.parent_slot] for birth in births]
        self._tell(
            tuple(
                record_of(birth, before[birth.parent_slot], reason)
                for birth, reason in zip(births, reasons, strict=True)
            )
        )

    # -- records

    def _tell(self, births: tuple[BirthRecord, ...]) -> None:
        self.chronicle.add(births, [agent.index for agent in self.population])
        with self.clock("report"):
            self.reporters.births(births)

    def _member(self, slot: int, agent: Agent, episodes: Episodes) -> MemberRecord:
        return MemberRecord(
            slot=slot,
            uid=agent.index,
            parent_uid=self.chronicle.parent(agent.index),
            env_steps=self.steps,
            fitness=agent.fitness[-1],
            fitness_std=float(episodes.returns[slot].std()),
            episodes=episodes.returns.shape[1],
            train_return=agent.scores[-1],
            hyperparameters=agent.hyperparameters,
            architecture=agent.architecture.describe(),
            parameters=agent.parameter_count,
            mutation=agent.mut,
            losses=_means(self.reports[slot]),
        )

    def _record(self, members: tuple[MemberRecord, ...], seconds: float, speed: float) -> GenerationRecord:
        return GenerationRecord(
            generation=self.generation,
            env_steps=self.steps * len(members),
            evaluation_steps=self.evaluation_steps,
            max_env_steps=self.schedule.max_steps * len(members),
            seconds=seconds,
            steps_per_second=speed,
            seconds_by_part=dict(self.clock.seconds),
            members=members,
            best_fitness_ever=self.champion.fitness,
            target=self.schedule.target,
        )

    def _summary(
        self, reason: str, members: tuple[MemberRecord, ...], confirmed: float, seconds: float
    ) -> SummaryRecord:
        (best,) = (member for member in members if member.uid == self.population.best.index)
        return SummaryRecord(
            reason=reason,
            best=best,
            ancestry=self.chronicle.ancestry(best.uid),
            env_steps=self.steps * len(members),
            evaluation_steps=self.evaluation_steps,
            seconds=seconds,
            seconds_by_part=dict(self.clock.seconds),
            saved_to=self.places.shown if self.saves else None,
            confirmed_fitness=confirmed,
        )

    # -- saving

    def _save(self) -> int:
        """Save what was asked for; return how much of it failed.

        A disk that is full costs a warning and nothing that was saved before.
        """
        self.saved_at = self.steps
        failed = sum(not self._is_saved(self.population, path) for path in self.places.populations(self.steps))
        if self.champion.agent is not None:
            failed += sum(not self._is_saved(self.champion.agent, path) for path in self.places.champions())
        return failed

    def _is_saved(self, what: Population | Agent, path: Path) -> bool:
        with self.clock("report"):
            try:
                what.save_checkpoint(path)
            except CheckpointError as error:
                self.reporters.warning(str(error))
                return False
        self.saves += 1
        return True


def _means(reports: list[Report]) -> dict[str, float]:
    """Mean of each number over a generation's updates, in Stable-Baselines3's names."""
    names = [name for name in Report._fields if name != "healthy"]
    if not reports:
        return dict.fromkeys(names, math.nan)
    return {name: float(np.mean([float(getattr(report, name)[0]) for report in reports])) for name in names}
