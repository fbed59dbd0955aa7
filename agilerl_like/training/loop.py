"""One run: a generation of training, an evaluation, births, again.

Every member does the same number of env steps in a generation, whatever its learn_step, and episodes go on across
generations. Members are judged in envs of their own, without exploration, all on the same seeds. Evolution comes
between two generations and never after the last, so what a run returns is exactly what was evaluated.

A run may be spread over processes, of which each steps, trains and tests its own members; what is decided is decided
by all of them alike. Where a checkpoint is due the envs begin anew, whether or not anybody ever goes on from there, so
that to go on is the same as never to have stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from agilerl_like.algorithms.episode_guard import EvaluationStopped
from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm
from agilerl_like.algorithms.individuals import BasePopulation, replace_diverged, sortable_fitness
from agilerl_like.distributed.process_group import SerializedAgent
from agilerl_like.distributed.signals import StopRequests
from agilerl_like.hpo import Mutations, Offspring, Selection, next_generation
from agilerl_like.learning.update import Report
from agilerl_like.reporting.records import (
    BestRecord,
    BirthRecord,
    GenerationRecord,
    MemberRecord,
    SummaryRecord,
    fittest,
)
from agilerl_like.reporting.reporter import Reporters
from agilerl_like.seeding import Purpose, integers
from agilerl_like.training.best_agent import (
    CONFIRMING_EPISODES,
    BestAgent,
    confirmed,
    may_surpass,
    surpasses,
    unconfirmed,
)
from agilerl_like.training.checkpoint_manager import INTERRUPTED, PATIENCE, Account, Archive, Progress
from agilerl_like.training.collector import Clock
from agilerl_like.training.env_setup import Stage
from agilerl_like.training.evaluator import Judge, Judgement, Opponent
from agilerl_like.training.lineage import Chronicle, initial_member, record_of
from agilerl_like.training.sharding import Card, Members
from agilerl_like.training.training_config import Schedule

UNFINISHED = (INTERRUPTED, "disk full")
PARTS = ("env", "act", "learn", "evaluate", "evolve", "report")


class Outcome(NamedTuple):
    """How a run ended."""

    population: BasePopulation
    fitness: list[float]
    summary: SummaryRecord
    signal: int
    """What interrupted it: SIGINT or SIGTERM, 0 if nothing did."""
    unsaved: int
    """How many of the last saves failed: 0 if everything that was asked for is on the disk."""


class Run:
    """One run from its first step, or from a checkpoint, to its summary."""

    def __init__(
        self,
        members: Members,
        stage: Stage,
        env: Any,
        judge: Judge,
        *,
        schedule: Schedule,
        selection: Selection | None,
        mutations: Mutations,
        archive: Archive,
        reporters: Reporters,
    ) -> None:
        self.members, self.judge, self.schedule = members, judge, schedule
        self.selection, self.mutations, self.archive, self.reporters = selection, mutations, archive, reporters
        self.clock = Clock(PARTS)
        self.collector = stage.collector(members.population, env, self.clock)
        self.chronicle = Chronicle()
        self.best: BestAgent | None = None
        """None before the first evaluation."""
        self.uids = members.tell([agent.index for agent in members.population], encode=int, decode=int)
        """Who lives in each slot."""
        self.progress = Progress(next_uid=1 + max(self.uids))
        self.fitness: list[float] = []
        """The last of each member, slot by slot; empty before the first."""
        self.reports: dict[int, list[Report]] = {}
        """Of this generation's updates, by slot."""
        self.mended: list[BirthRecord] = []
        """Births of this generation on this process, in the place of members that were not finite any more."""
        self.lost: set[int] = set()
        """Slots of those that were not finite and that nobody here could replace."""
        self.started = self._began = perf_counter()
        self._steps_before = 0

    @property
    def population(self) -> BasePopulation:
        """The members that this process has."""
        return self.members.population

    @property
    def steps(self) -> int:
        """Env steps of each member so far."""
        return self.progress.ticks * self.members.first.num_envs

    def restore(
        self, memory: Mapping[str, Any], best: EvolvableAlgorithm | None, opponent_pool: Sequence[SerializedAgent]
    ) -> None:
        """Continue from what `Archive` wrote; the main process has the best agent and the rivals, too."""
        self.progress, self.fitness = Progress.from_json(memory["progress"]), list(memory["fitness"])
        self.progress.outcome = ""
        self.clock.seconds.update(self.progress.seconds_by_part)
        self.chronicle.add(map(BirthRecord.from_json, memory["births"]), self.uids)
        self.population.fitness = [self.fitness[slot] for slot in self.members.share.slots]
        self.best = BestAgent.from_json(memory["best"], best)
        told = memory["rivals"]
        players = self.members.spread(0, [*map(self.members.unpack, opponent_pool)] or [None] * len(told))
        self.judge.opponent_pool = [Opponent(player, *facts) for player, facts in zip(players, told, strict=True)]
        self.started -= self.progress.seconds

    def advance_rng(self) -> None:
        """Let what comes differ from what followed the checkpoint before: episodes, noise and births."""
        self.progress.restorations += 1
        self.progress.next_uid += self.members.size
        for agent in self.population:
            agent.advance_rng()

    def go(self, stop_requests: StopRequests) -> Outcome:
        """Run generations until the budget is spent, the target reached or somebody interrupts."""
        interrupted = 0
        if self.progress.generation == 0:
            self._warn_of_idle()
            self._found()
        elif not self.progress.evolved:  # the run had ended, and has a larger budget or another target now
            self._begin_episodes()
            interrupted = self._succeed(stop_requests)
            self.progress.saved_at = self.steps
        self._begin_episodes()
        self.reporters.progress(self.steps * self.members.size)
        while not interrupted:
            self._train(stop_requests)
            interrupted = self._meet(stop_requests)
            records, stopped = self._judge(StopRequests() if interrupted else stop_requests)
            interrupted = interrupted or stopped
            best = self.best
            if best is None or not stopped:
                best, stopped = self._best(fittest(records), stop_requests, interrupted=bool(interrupted))
                self.best, interrupted = best, interrupted or stopped
            self._report(records, best.record)
            self.progress.outcome = self._reason_to_stop(bool(interrupted), best.record)
            if self.progress.outcome:
                break
            interrupted = self._succeed(stop_requests)
            if not interrupted:
                self._checkpoint()
        self._save(last=True)
        best = self._known_best()
        summary = self._summary(best)
        self.reporters.finish(summary)
        population = self.members.everybody()
        population.fitness = list(self.fitness)
        population.best_of_run = self.members.spread(best.rank, [best.agent])[0]
        return Outcome(population, list(self.fitness), summary, interrupted, self.archive.failures)

    def _begin_episodes(self) -> None:
        keys = [self.progress.generation, self.progress.restorations]
        while keys and not keys[-1]:
            del keys[-1]
        self.collector.reset(self.members.share.slots, *keys)

    # -- a generation

    def _warn_of_idle(self) -> None:
        """Say so if a generation is shorter than somebody's rollout."""
        name = "evo_steps" if self.schedule.evo_steps <= self.schedule.max_steps else "max_steps"
        steps, envs = getattr(self.schedule, name), self.members.first.num_envs
        slow = max(self.population, key=lambda agent: agent.learn_step)
        if -(-steps // envs) < -(-slow.learn_step // envs):
            self.reporters.warning(
                f"{name}={steps} is less than learn_step={slow.learn_step} of member {slow.index}: it will be judged "
                "after generations in which it has learned nothing"
            )

    def _found(self) -> None:
        self.judge.begin(self.members)
        own = [initial_member(slot, agent) for slot, agent in self.members.here().items()]
        self._tell(self.members.tell(own, encode=BirthRecord.to_json, decode=BirthRecord.from_json))

    def _train(self, stop_requests: StopRequests) -> None:
        progress, collector = self.progress, self.collector
        self._began, self._steps_before = perf_counter(), self.steps
        progress.generation += 1
        progress.evolved = False
        self.reports = {slot: [] for slot in self.members.share.slots}
        self.mended, self.lost = [], set()
        envs = self.members.first.num_envs
        last = progress.ticks + max(1, min(-(-self.schedule.evo_steps // envs), self._ticks_left()))
        while progress.ticks < last and not stop_requests.asked:
            ticks = min(collector.ticks_until_due, last - progress.ticks)
            progress.ticks += collector.collect(ticks, asked_to_stop=lambda: stop_requests.asked)
            reports = collector.learn()
            for place, report in reports.items():
                self.reports[self.members.share.slots[place]].append(report)
            if reports:
                self._mend(dict(reports))
                with self.clock("report"):
                    self.reporters.progress(self.steps * self.members.size)
        for agent in self.population:
            agent.steps.append(agent.steps[-1] + self.steps - self._steps_before)  # of all its runs

    def _ticks_left(self) -> int:
        return self.schedule.ticks(self.members.first.num_envs) - self.progress.ticks

    def _mend(self, reports: Mapping[int, Report]) -> None:
        """Replace those that are not finite any more at once, by the best that is here."""
        slots, size = self.members.share.slots, self.members.size
        sick = [place for place, report in reports.items() if not bool(report.healthy[0])]
        if len(sick) == len(slots) < size:  # another process has healthy ones: they have children at the births
            for place in sick:
                self.population[place].reinitialize()
            self.lost |= {slots[place] for place in sick}
            return
        first = self.progress.next_uid + size * len(self.mended)  # nobody else's, on whichever process
        for place, parent_place in replace_diverged(self.population, sick, [first + slots[place] for place in sick]):
            heir, parent = self.population[place], self.population[parent_place]
            self.collector.welcome(place)
            self.reports[slots[place]].clear()
            birth = Offspring(
                self.progress.generation, slots[place], heir.index, parent.index, slots[parent_place], heir.genome
            )
            self.mended.append(record_of(birth, Card.of(parent), "replaced: loss or weights are not finite"))

    def _meet(self, stop_requests: StopRequests) -> int:
        """Wait for the other processes and tell who was replaced; return the signal that interrupts the run, if any."""
        own = {"signal": stop_requests.signal, "mended": [birth.to_json() for birth in self.mended]}
        told = self.members.process_group.all_gather(own)
        births = [BirthRecord.from_json(birth) for one in told for birth in one["mended"]]
        self._tell(births)
        self.progress.next_uid = max(self.progress.next_uid, *(birth.uid + 1 for birth in births), 0)
        return max(one["signal"] for one in told)

    def _judge(self, stop_requests: StopRequests) -> tuple[list[MemberRecord], int]:
        """Evaluate all members and return their records, and the signal that stopped the evaluation, 0 if none did."""
        progress, members = self.progress, self.members
        with self.clock("evaluate"):
            seeds = integers(self.schedule.eval_loop, members.first.seed, Purpose.EVALUATION_ENVS, progress.generation)
            judgement, stopped = self._unless_stopped(
                stop_requests,
                lambda asked: self.judge.judge(self.population, seeds, progress.generation, asked_to_stop=asked),
            )
            judgement = judgement or _unfinished(self.population)
            own = [
                score if agent.is_finite and slot not in self.lost else math.nan
                for (slot, agent), score in zip(members.here().items(), judgement.fitness, strict=True)
            ]
            self.population.fitness = own
            training = self.collector.take_scores()
            for agent, score, training_score in zip(self.population, own, training, strict=True):
                agent.fitness.append(score)
                agent.scores.append(training_score)
        records = members.tell(self._records(judgement), encode=asdict, decode=lambda data: MemberRecord(**data))
        self.fitness = [record.fitness for record in records]
        progress.evaluation_steps += sum(record.evaluation_steps for record in records)
        return records, stopped

    def _unless_stopped(
        self, stop_requests: StopRequests, evaluate: Callable[[Callable[[], bool]], Judgement | None]
    ) -> tuple[Judgement | None, int]:
        """Evaluate on this process; if a signal stops any process, return None and the signal."""
        judgement, signal = None, 0
        try:
            judgement = evaluate(lambda: stop_requests.asked)
        except EvaluationStopped:
            signal = stop_requests.signal
        signal = max(self.members.process_group.all_gather(signal))
        return None if signal else judgement, signal

    def _best(
        self, candidate: MemberRecord, stop_requests: StopRequests, *, interrupted: bool
    ) -> tuple[BestAgent, int]:
        """The best agent so far: the fittest member of this generation if fresh episodes confirm it, else as before.

        A run that was interrupted ends without playing them. Also returns the signal that stopped them, 0 if none did.
        """
        best, target, stopped = self.best, self.schedule.target, 0
        if best is not None and not may_surpass(candidate, best.record, target):
            return best, stopped
        found = unconfirmed(candidate, self.progress.generation)
        if not interrupted and math.isfinite(candidate.fitness):
            fresh, stopped = self._fresh_evaluation(candidate.slot, stop_requests)
            found = found if fresh is None else confirmed(candidate, self.progress.generation, fresh)
        if best is not None and not surpasses(found, best.record, target):
            return best, stopped
        holder, agent = self.members.holder(candidate.slot), None
        if holder == self.members.process_group.rank:
            agent = self.members.here()[candidate.slot].clone()
            agent.fitness[-1] = found.fitness
        return BestAgent(found, self.chronicle.ancestry(candidate.uid), holder, agent), stopped

    def _fresh_evaluation(self, slot: int, stop_requests: StopRequests) -> tuple[Judgement | None, int]:
        """Play a member on episodes that it was not chosen by; all processes learn the result, or what stopped it."""
        members, generation = self.members, self.progress.generation
        player = members.here().get(slot)
        with self.clock("evaluate"):
            episodes = max(self.schedule.eval_loop, CONFIRMING_EPISODES)
            seeds = integers(episodes, members.first.seed, Purpose.CONFIRMATION_ENVS, generation)
            own, stopped = self._unless_stopped(
                stop_requests,
                lambda asked: player and self.judge.judge(player, seeds, generation, asked_to_stop=asked),
            )
            found = next(filter(None, members.process_group.all_gather(None if own is None else list(own))), None)
        if found is None:
            return None, stopped
        fresh = Judgement(*found)
        self.progress.evaluation_steps += sum(fresh.steps)
        return fresh, stopped

    def _reason_to_stop(self, interrupted: bool, best: BestRecord) -> str:
        if interrupted:
            return INTERRUPTED
        if self.schedule.target is not None and best.is_confirmed and best.fitness >= self.schedule.target:
            return "target reached"
        if self.archive.failures >= PATIENCE:
            return "disk full"
        return "budget spent" if self._ticks_left() <= 0 else ""

    def _succeed(self, stop_requests: StopRequests) -> int:
        """Crown the best member, and have the next generation born; a signal that stops the crowning is returned."""
        stopped = self._crown(stop_requests)
        if stopped:
            self.progress.outcome = INTERRUPTED
        else:
            self._evolve()
        return stopped

    def _crown(self, stop_requests: StopRequests) -> int:
        """Let the judge remember the best member; return the signal that stopped its games, 0 if none did."""
        slot = max(range(self.members.size), key=lambda slot: (sortable_fitness(self.fitness[slot]), -slot))
        if not math.isfinite(self.fitness[slot]):
            return 0
        with self.clock("evaluate"):
            evaluate = partial(self._unless_stopped, stop_requests)
            steps, stopped = self.judge.update_opponent_pool(self.members, slot, self.progress.generation, evaluate)
        self.progress.evaluation_steps += steps
        return stopped

    def _evolve(self) -> None:
        self.progress.evolved = True
        if self.selection is None:
            return
        members, fitness = self.members, self.fitness
        with self.clock("evolve"):
            for agent in self.population:
                agent.finish_blend()
            cards = members.cards()
            births = members.evolve(
                next_generation(
                    [card.genome for card in cards],
                    fitness,
                    [card.uid for card in cards],
                    [card.hp_config for card in cards],
                    selection=self.selection,
                    mutations=self.mutations,
                    seed=members.first.seed,
                    generation=self.progress.generation,
                    next_uid=self.progress.next_uid,
                    repair=self.population.repair,
                )
            )
            self.progress.next_uid = max(self.progress.next_uid, *(birth.uid + 1 for birth in births))
            for place, slot in enumerate(members.share.slots):
                if not births[slot].survives:
                    self.collector.welcome(place)
        self.fitness = [fitness[birth.parent_slot] for birth in births]
        self.population.fitness = [self.fitness[slot] for slot in members.share.slots]
        reasons = ["" if math.isfinite(score) else f"replaced: fitness is {score}" for score in fitness]
        self._tell(
            [record_of(birth, cards[birth.parent_slot], reason) for birth, reason in zip(births, reasons, strict=True)]
        )

    def _checkpoint(self) -> None:
        """Begin all episodes anew where a checkpoint is due, and write it; or where the tests were their end."""
        progress = self.progress
        if self.steps - progress.saved_at >= self.schedule.checkpoint_every:
            progress.saved_at = self.steps
            self._save(last=False)
            self.members.deal_again()
            self._begin_episodes()
        elif self.judge.env.env is self.collector.env.env:  # there is no second one
            self._begin_episodes()

    def _save(self, *, last: bool) -> None:
        with self.clock("report"):
            self.progress.seconds = self._seconds()
            self.progress.seconds_by_part = dict(self.clock.seconds)
            best, births = self._known_best(), self.chronicle.births
            self.archive.save(Account(self.progress, best, births, self.fitness, self.judge.opponent_pool), last=last)

    def _known_best(self) -> BestAgent:
        if self.best is None:
            raise RuntimeError("the best agent of a run is not known before its first evaluation")
        return self.best

    def _seconds(self) -> float:
        return perf_counter() - self.started

    # -- records

    def _tell(self, births: Sequence[BirthRecord]) -> None:
        for birth in births:
            self.uids[birth.slot] = birth.uid
        self.chronicle.add(births, self.uids)
        with self.clock("report"):
            self.reporters.births(tuple(births))

    def _records(self, judgement: Judgement) -> list[MemberRecord]:
        return [
            MemberRecord(
                slot=slot,
                uid=agent.index,
                parent_uid=self.chronicle.parent(agent.index),
                env_steps=self.steps,
                fitness=agent.fitness[-1],
                fitness_std=spread,
                episodes=judgement.episodes,
                evaluation_steps=steps,
                train_return=agent.scores[-1],
                hyperparameters=agent.hyperparameters,
                architecture=agent.architecture.describe(),
                legend=agent.architecture.legend(),
                parameters=agent.parameter_count,
                mutation=agent.mut,
                losses=_means(self.reports[slot]),
            )
            for (slot, agent), spread, steps in zip(
                self.members.here().items(), judgement.spread, judgement.steps, strict=True
            )
        ]

    def _report(self, records: Sequence[MemberRecord], best: BestRecord) -> None:
        progress, members = self.progress, len(records)
        seconds = self._seconds()
        with self.clock("report"):
            self.reporters.generation(
                GenerationRecord(
                    generation=progress.generation,
                    env_steps=self.steps * members,
                    evaluation_steps=progress.evaluation_steps,
                    max_env_steps=self.schedule.max_steps * members,
                    seconds=seconds,
                    steps_per_second=(self.steps - self._steps_before) * members / (perf_counter() - self._began),
                    seconds_by_part=dict(self.clock.seconds),
                    members=tuple(records),
                    best=best,
                    target=self.schedule.target,
                )
            )

    def _summary(self, best: BestAgent) -> SummaryRecord:
        reason = self.progress.outcome
        return SummaryRecord(
            reason=reason,
            best=best.record,
            ancestry=best.ancestry,
            env_steps=self.steps * self.members.size,
            evaluation_steps=self.progress.evaluation_steps,
            seconds=self._seconds(),
            seconds_by_part=dict(self.clock.seconds),
            saved_to=self.archive.places.shown if self.archive.saves else None,
            resume=self.archive.resume if reason in UNFINISHED else "",
        )


def _unfinished(population: BasePopulation) -> Judgement:
    """Return the judgement of an evaluation that did not end: the last fitness of each member, nan if it has none."""
    members = len(population)
    unknown = [math.nan] * members
    last = [agent.fitness[-1] if agent.fitness else math.nan for agent in population]
    return Judgement(last, unknown, unknown, 0, [0] * members)


def _means(reports: list[Report]) -> dict[str, float]:
    """Mean of each number over a generation's updates, in Stable-Baselines3's names."""
    names = [name for name in Report._fields if name != "healthy"]
    if not reports:
        return dict.fromkeys(names, math.nan)
    return {name: float(np.mean([float(getattr(report, name)[0]) for report in reports])) for name in names}
