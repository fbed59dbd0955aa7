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
from agilerl_like.hpo import Explorer, History, Offspring, PopulationView, Selection, Trial, next_generation
from agilerl_like.learning.update import Report
from agilerl_like.reporting.callback import CallbackList
from agilerl_like.reporting.records import (
    BestRecord,
    GenerationRecord,
    MemberRecord,
    OffspringRecord,
    SummaryRecord,
    fittest,
)
from agilerl_like.resources import release_free_memory
from agilerl_like.seeding import Purpose, integers
from agilerl_like.training.best_agent import (
    CONFIRMATION_EPISODES,
    BestAgent,
    confirmed_record,
    may_surpass,
    surpasses,
    unconfirmed_record,
)
from agilerl_like.training.checkpoint_manager import (
    INTERRUPTED,
    MAX_FAILED_SAVES,
    CheckpointManager,
    Progress,
    RunState,
)
from agilerl_like.training.collector import PhaseTimer
from agilerl_like.training.env_setup import EnvSetup
from agilerl_like.training.evaluator import EvalResult, Evaluator, Opponent
from agilerl_like.training.lineage import Lineage, initial_member, offspring_record
from agilerl_like.training.sharding import MemberInfo, ShardedPopulation
from agilerl_like.training.training_arguments import TrainingArguments

UNFINISHED = (INTERRUPTED, "disk full")
TIMED_PHASES = ("env", "act", "learn", "evaluate", "evolve", "report")


class RunResult(NamedTuple):
    """How a run ended."""

    population: BasePopulation
    fitness: list[float]
    summary: SummaryRecord
    signal: int
    """What interrupted it: SIGINT or SIGTERM, 0 if nothing did."""
    unsaved: int
    """How many of the last saves failed: 0 if everything that was asked for is on the disk."""


class TrainingLoop:
    """One run from its first step, or from a checkpoint, to its summary."""

    def __init__(
        self,
        members: ShardedPopulation,
        env_setup: EnvSetup,
        env: Any,
        evaluator: Evaluator,
        *,
        training_args: TrainingArguments,
        selection: Selection | None,
        mutations: Explorer,
        checkpoint_manager: CheckpointManager,
        reporters: CallbackList,
    ) -> None:
        self.members, self.evaluator, self.training_args = members, evaluator, training_args
        self.selection, self.mutations, self.checkpoint_manager, self.reporters = (
            selection,
            mutations,
            checkpoint_manager,
            reporters,
        )
        self.timer = PhaseTimer(TIMED_PHASES)
        self.collector = env_setup.make_collector(members.population, env, self.timer)
        self.lineage = Lineage()
        self.best: BestAgent | None = None
        """None before the first evaluation."""
        self.uids = members.all_gather_by_slot([agent.index for agent in members.population], encode=int, decode=int)
        """Who lives in each slot."""
        self.progress = Progress(next_uid=1 + max(self.uids))
        self.fitness: list[float] = []
        """The last of each member, slot by slot; empty before the first."""
        self.history = History()
        """What each member trained with in each generation, for selection and exploration."""
        self.reports: dict[int, list[Report]] = {}
        """Of this generation's updates, by slot."""
        self.replacements: list[OffspringRecord] = []
        """Births of this generation on this process, in the place of members that were not finite any more."""
        self.unreplaced: set[int] = set()
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
        self, saved_run: Mapping[str, Any], best: EvolvableAlgorithm | None, opponent_pool: Sequence[SerializedAgent]
    ) -> None:
        """Continue from what `Archive` wrote; the main process has the best agent and the rivals, too."""
        self.progress, self.fitness = Progress.from_json(saved_run["progress"]), list(saved_run["fitness"])
        self.progress.outcome = ""
        self.history = History.from_json(saved_run.get("history", []))
        self.timer.seconds.update(self.progress.seconds_by_part)
        self.lineage.add(map(OffspringRecord.from_json, saved_run["births"]), self.uids)
        self.population.fitness = [self.fitness[slot] for slot in self.members.shard.slots]
        self.best = BestAgent.from_json(saved_run["best"], best)
        told = saved_run["rivals"]
        players = self.members.broadcast_agents(
            0, [*map(self.members.deserialize, opponent_pool)] or [None] * len(told)
        )
        self.evaluator.opponent_pool = [Opponent(player, *facts) for player, facts in zip(players, told, strict=True)]
        self.started -= self.progress.seconds

    def advance_rng(self) -> None:
        """Let what comes differ from what followed the checkpoint before: episodes, noise and births."""
        self.progress.restorations += 1
        self.progress.next_uid += self.members.size
        for agent in self.population:
            agent.advance_rng()

    def run(self, stop_requests: StopRequests) -> RunResult:
        """Run generations until the budget is spent, the target reached or somebody interrupts."""
        interrupted = 0
        if self.progress.generation == 0:
            self._warn_if_no_update()
            self._record_initial_members()
        elif not self.progress.evolved:  # the run had ended, and has a larger budget or another target now
            self._reset_envs()
            interrupted = self._advance_generation(stop_requests)
            self.progress.saved_at = self.steps
        self._reset_envs()
        self.reporters.progress(self.steps * self.members.size)
        while not interrupted:
            self._train(stop_requests)
            interrupted = self._sync(stop_requests)
            records, stopped = self._evaluate(StopRequests() if interrupted else stop_requests)
            interrupted = interrupted or stopped
            best = self.best
            if best is None or not stopped:
                best, stopped = self._update_best(fittest(records), stop_requests, interrupted=bool(interrupted))
                self.best, interrupted = best, interrupted or stopped
            self._report(records, best.record)
            self.progress.outcome = self._reason_to_stop(bool(interrupted), best.record)
            if self.progress.outcome:
                break
            interrupted = self._advance_generation(stop_requests)
            if not interrupted:
                self._checkpoint()
        self._save(last=True)
        best = self._known_best()
        summary = self._summary(best)
        self.reporters.finish(summary)
        population = self.members.gather_all()
        population.fitness = list(self.fitness)
        population.best_of_run = self.members.broadcast_agents(best.rank, [best.agent])[0]
        return RunResult(population, list(self.fitness), summary, interrupted, self.checkpoint_manager.failures)

    def _reset_envs(self) -> None:
        keys = [self.progress.generation, self.progress.restorations]
        while keys and not keys[-1]:
            del keys[-1]
        self.collector.reset(self.members.shard.slots, *keys)

    # -- a generation

    def _warn_if_no_update(self) -> None:
        """Say so if a generation is shorter than somebody's rollout."""
        name = "evo_steps" if self.training_args.evo_steps <= self.training_args.max_steps else "max_steps"
        steps, envs = getattr(self.training_args, name), self.members.first.num_envs
        slow = max(self.population, key=lambda agent: agent.learn_step)
        if -(-steps // envs) < -(-slow.learn_step // envs):
            self.reporters.warning(
                f"{name}={steps} is less than learn_step={slow.learn_step} of member {slow.index}: it will be judged "
                "after generations in which it has learned nothing"
            )

    def _record_initial_members(self) -> None:
        self.evaluator.init_opponent_pool(self.members)
        own = [initial_member(slot, agent) for slot, agent in self.members.local_members().items()]
        self._record_offspring(
            self.members.all_gather_by_slot(own, encode=OffspringRecord.to_json, decode=OffspringRecord.from_json)
        )

    def _train(self, stop_requests: StopRequests) -> None:
        progress, collector = self.progress, self.collector
        self._began, self._steps_before = perf_counter(), self.steps
        progress.generation += 1
        progress.evolved = False
        self.reports = {slot: [] for slot in self.members.shard.slots}
        self.replacements, self.unreplaced = [], set()
        envs = self.members.first.num_envs
        last = progress.ticks + max(1, min(-(-self.training_args.evo_steps // envs), self._vector_steps_left()))
        while progress.ticks < last and not stop_requests.asked:
            vector_steps = min(collector.vector_steps_until_update, last - progress.ticks)
            progress.ticks += collector.collect(vector_steps, should_stop=lambda: stop_requests.asked)
            self._set_progress()
            reports = collector.learn()
            for place, report in reports.items():
                self.reports[self.members.shard.slots[place]].append(report)
            if reports:
                self._replace_diverged(dict(reports))
                with self.timer("report"):
                    self.reporters.progress(self.steps * self.members.size)
        for agent in self.population:
            agent.steps.append(agent.steps[-1] + self.steps - self._steps_before)  # of all its runs

    def _set_progress(self) -> None:
        """Set each member's progress where the rollout began that it may be about to learn from."""
        envs, max_steps = self.members.first.num_envs, self.training_args.max_steps
        for agent in self.population:
            start = self.progress.ticks - math.ceil(agent.learn_step / envs)
            agent.progress = max(0, start) * envs / max_steps

    def _vector_steps_left(self) -> int:
        return self.training_args.vector_steps(self.members.first.num_envs) - self.progress.ticks

    def _replace_diverged(self, reports: Mapping[int, Report]) -> None:
        """Replace those that are not finite any more at once, by the best that is here."""
        slots, size = self.members.shard.slots, self.members.size
        diverged = [place for place, report in reports.items() if not bool(report.healthy[0])]
        if len(diverged) == len(slots) < size:  # another process has healthy ones: they have children at the births
            for place in diverged:
                self.population[place].reinitialize()
            self.unreplaced |= {slots[place] for place in diverged}
            return
        first = self.progress.next_uid + size * len(self.replacements)  # nobody else's, on whichever process
        for place, parent_place in replace_diverged(
            self.population, diverged, [first + slots[place] for place in diverged]
        ):
            replacement, parent = self.population[place], self.population[parent_place]
            self.collector.reset_member(place)
            self.reports[slots[place]].clear()
            birth = Offspring(
                self.progress.generation,
                slots[place],
                replacement.index,
                parent.index,
                slots[parent_place],
                replacement.genome,
            )
            self.replacements.append(
                offspring_record(birth, MemberInfo.of(parent), "replaced: loss or weights are not finite")
            )

    def _sync(self, stop_requests: StopRequests) -> int:
        """Wait for the other processes and tell who was replaced; return the signal that interrupts the run, if any."""
        own = {"signal": stop_requests.signal, "mended": [birth.to_json() for birth in self.replacements]}
        told = self.members.process_group.all_gather(own)
        births = [OffspringRecord.from_json(birth) for one in told for birth in one["mended"]]
        self._record_offspring(births)
        self.progress.next_uid = max(self.progress.next_uid, *(birth.uid + 1 for birth in births), 0)
        return max(one["signal"] for one in told)

    def _evaluate(self, stop_requests: StopRequests) -> tuple[list[MemberRecord], int]:
        """EvaluateLocally all members and return their records, and the signal that stopped the evaluation, 0 if none did."""
        progress, members = self.progress, self.members
        with self.timer("evaluate"):
            seeds = integers(
                self.training_args.eval_loop, members.first.seed, Purpose.EVALUATION_ENVS, progress.generation
            )
            result, stopped = self._evaluate_until_stopped(
                stop_requests,
                lambda asked: self.evaluator.evaluate(self.population, seeds, progress.generation, should_stop=asked),
            )
            result = result or _unfinished_result(self.population)
            own = [
                score if agent.is_finite and slot not in self.unreplaced else math.nan
                for (slot, agent), score in zip(members.local_members().items(), result.fitness, strict=True)
            ]
            self.population.fitness = own
            training = self.collector.pop_scores()
            for agent, score, training_score in zip(self.population, own, training, strict=True):
                agent.fitness.append(score)
                agent.scores.append(training_score)
        records = members.all_gather_by_slot(
            self._records(result), encode=asdict, decode=lambda data: MemberRecord(**data)
        )
        before = self.fitness or [math.nan] * len(records)
        self.history = self.history.extended(
            _trial(record, progress.generation, score, self.steps - self._steps_before)
            for record, score in zip(records, before, strict=True)
        )
        self.fitness = [record.fitness for record in records]
        progress.evaluation_steps += sum(record.evaluation_steps for record in records)
        return records, stopped

    def _evaluate_until_stopped(
        self, stop_requests: StopRequests, evaluate: Callable[[Callable[[], bool]], EvalResult | None]
    ) -> tuple[EvalResult | None, int]:
        """EvaluateLocally on this process; if a signal stops any process, return None and the signal."""
        result, signal = None, 0
        try:
            result = evaluate(lambda: stop_requests.asked)
        except EvaluationStopped:
            signal = stop_requests.signal
        signal = max(self.members.process_group.all_gather(signal))
        return None if signal else result, signal

    def _update_best(
        self, candidate: MemberRecord, stop_requests: StopRequests, *, interrupted: bool
    ) -> tuple[BestAgent, int]:
        """The best agent so far: the fittest member of this generation if fresh episodes confirm it, else as before.

        A run that was interrupted ends without playing them. Also returns the signal that stopped them, 0 if none did.
        """
        best, target, stopped = self.best, self.training_args.target, 0
        if best is not None and not may_surpass(candidate, best.record, target):
            return best, stopped
        found = unconfirmed_record(candidate, self.progress.generation)
        if not interrupted and math.isfinite(candidate.fitness):
            fresh, stopped = self._confirm(candidate.slot, stop_requests)
            found = found if fresh is None else confirmed_record(candidate, self.progress.generation, fresh)
        if best is not None and not surpasses(found, best.record, target):
            return best, stopped
        owner_rank, agent = self.members.owner_rank(candidate.slot), None
        if owner_rank == self.members.process_group.rank:
            agent = self.members.local_members()[candidate.slot].clone()
            agent.fitness[-1] = found.fitness
        return BestAgent(found, self.lineage.ancestry(candidate.uid), owner_rank, agent), stopped

    def _confirm(self, slot: int, stop_requests: StopRequests) -> tuple[EvalResult | None, int]:
        """Play a member on episodes that it was not chosen by; all processes learn the result, or what stopped it."""
        members, generation = self.members, self.progress.generation
        player = members.local_members().get(slot)
        with self.timer("evaluate"):
            episodes = max(self.training_args.eval_loop, CONFIRMATION_EPISODES)
            seeds = integers(episodes, members.first.seed, Purpose.CONFIRMATION_ENVS, generation)
            own, stopped = self._evaluate_until_stopped(
                stop_requests,
                lambda asked: player and self.evaluator.evaluate(player, seeds, generation, should_stop=asked),
            )
            found = next(filter(None, members.process_group.all_gather(None if own is None else list(own))), None)
        if found is None:
            return None, stopped
        fresh = EvalResult(*found)
        self.progress.evaluation_steps += sum(fresh.steps)
        return fresh, stopped

    def _reason_to_stop(self, interrupted: bool, best: BestRecord) -> str:
        if interrupted:
            return INTERRUPTED
        if self.training_args.target is not None and best.is_confirmed and best.fitness >= self.training_args.target:
            return "target reached"
        if self.checkpoint_manager.failures >= MAX_FAILED_SAVES:
            return "disk full"
        return "budget spent" if self._vector_steps_left() <= 0 else ""

    def _advance_generation(self, stop_requests: StopRequests) -> int:
        """Crown the best member, and have the next generation born; a signal that stops the crowning is returned."""
        stopped = self._update_opponents(stop_requests)
        if stopped:
            self.progress.outcome = INTERRUPTED
        else:
            self._evolve()
        return stopped

    def _update_opponents(self, stop_requests: StopRequests) -> int:
        """Let the judge remember the best member; return the signal that stopped its games, 0 if none did."""
        slot = max(range(self.members.size), key=lambda slot: (sortable_fitness(self.fitness[slot]), -slot))
        if not math.isfinite(self.fitness[slot]):
            return 0
        with self.timer("evaluate"):
            evaluate = partial(self._evaluate_until_stopped, stop_requests)
            steps, stopped = self.evaluator.update_opponent_pool(self.members, slot, self.progress.generation, evaluate)
        self.progress.evaluation_steps += steps
        return stopped

    def _evolve(self) -> None:
        self.progress.evolved = True
        if self.selection is None:
            return
        members, fitness = self.members, self.fitness
        with self.timer("evolve"):
            for agent in self.population:
                agent.finish_blend()
            member_infos = members.member_infos()
            births = members.evolve(
                next_generation(
                    PopulationView(
                        np.array(fitness),
                        [card.uid for card in member_infos],
                        [card.genome for card in member_infos],
                        self.progress.generation,
                        self.history,
                    ),
                    [card.hp_config for card in member_infos],
                    selection=self.selection,
                    explorer=self.mutations,
                    seed=members.first.seed,
                    next_uid=self.progress.next_uid,
                    repair=self.population.repair,
                )
            )
            self.progress.next_uid = max(self.progress.next_uid, *(birth.uid + 1 for birth in births))
            for place, slot in enumerate(members.shard.slots):
                if not births[slot].survives:
                    self.collector.reset_member(place)
            release_free_memory()
        self.fitness = [fitness[birth.parent_slot] for birth in births]
        self.population.fitness = [self.fitness[slot] for slot in members.shard.slots]
        reasons = ["" if math.isfinite(score) else f"replaced: fitness is {score}" for score in fitness]
        self._record_offspring(
            [
                offspring_record(birth, member_infos[birth.parent_slot], reason)
                for birth, reason in zip(births, reasons, strict=True)
            ]
        )

    def _checkpoint(self) -> None:
        """Begin all episodes anew where a checkpoint is due, and write it; or where the tests were their end."""
        progress = self.progress
        if self.steps - progress.saved_at >= self.training_args.checkpoint_every:
            progress.saved_at = self.steps
            self._save(last=False)
            self.members.rebalance()
            self._reset_envs()
        elif self.evaluator.env.env is self.collector.env.env:  # there is no second one
            self._reset_envs()

    def _save(self, *, last: bool) -> None:
        with self.timer("report"):
            self.progress.seconds = self._seconds()
            self.progress.seconds_by_part = dict(self.timer.seconds)
            best, births = self._known_best(), self.lineage.births
            self.checkpoint_manager.save(
                RunState(self.progress, best, births, self.fitness, self.evaluator.opponent_pool, self.history),
                last=last,
            )

    def _known_best(self) -> BestAgent:
        if self.best is None:
            raise RuntimeError("the best agent of a run is not known before its first evaluation")
        return self.best

    def _seconds(self) -> float:
        return perf_counter() - self.started

    # -- records

    def _record_offspring(self, births: Sequence[OffspringRecord]) -> None:
        for birth in births:
            self.uids[birth.slot] = birth.uid
        self.lineage.add(births, self.uids)
        with self.timer("report"):
            self.reporters.offspring(tuple(births))

    def _records(self, result: EvalResult) -> list[MemberRecord]:
        return [
            MemberRecord(
                slot=slot,
                uid=agent.index,
                parent_uid=self.lineage.parent(agent.index),
                env_steps=self.steps,
                fitness=agent.fitness[-1],
                fitness_std=spread,
                episodes=result.episodes,
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
                self.members.local_members().items(), result.spread, result.steps, strict=True
            )
        ]

    def _report(self, records: Sequence[MemberRecord], best: BestRecord) -> None:
        progress, members = self.progress, len(records)
        seconds = self._seconds()
        with self.timer("report"):
            self.reporters.generation(
                GenerationRecord(
                    generation=progress.generation,
                    env_steps=self.steps * members,
                    evaluation_steps=progress.evaluation_steps,
                    max_env_steps=self.training_args.max_steps * members,
                    seconds=seconds,
                    steps_per_second=(self.steps - self._steps_before) * members / (perf_counter() - self._began),
                    seconds_by_part=dict(self.timer.seconds),
                    members=tuple(records),
                    best=best,
                    target=self.training_args.target,
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
            seconds_by_part=dict(self.timer.seconds),
            saved_to=self.checkpoint_manager.output_paths.display_path if self.checkpoint_manager.saves else None,
            resume=self.checkpoint_manager.resume if reason in UNFINISHED else "",
        )


def _unfinished_result(population: BasePopulation) -> EvalResult:
    """Return the judgement of an evaluation that did not end: the last fitness of each member, nan if it has none."""
    members = len(population)
    unknown = [math.nan] * members
    last = [agent.fitness[-1] if agent.fitness else math.nan for agent in population]
    return EvalResult(last, unknown, unknown, 0, [0] * members)


def _trial(record: MemberRecord, generation: int, fitness_before: float, env_steps: int) -> Trial:
    """Return what the history keeps of one member's generation."""
    return Trial(
        generation=generation,
        uid=record.uid,
        parent_uid=record.parent_uid,
        hyperparameters=record.hyperparameters,
        architecture=record.architecture,
        mutation=record.mutation,
        fitness_before=fitness_before,
        fitness=record.fitness,
        env_steps=env_steps,
    )


def _means(reports: list[Report]) -> dict[str, float]:
    """Mean of each number over a generation's updates, in Stable-Baselines3's names."""
    names = [name for name in Report._fields if name != "healthy"]
    if not reports:
        return dict.fromkeys(names, math.nan)
    return {name: float(np.mean([float(getattr(report, name)[0]) for report in reports])) for name in names}
