"""The training loop: a generation of training, an evaluation, evolution, and again.

In a generation every member takes the same number of env steps, whatever its learn_step, and episodes continue across
generations. Members are evaluated in envs of their own, without exploration, all on the same seeds. Evolution comes
between two generations and never after the last, so the returned population is exactly the one that was evaluated.

A run may be spread over processes, each of which trains and evaluates its own members; every process makes the same
decisions. The envs are reset where a checkpoint is due, in interrupted and uninterrupted runs alike, so that a resumed
run is bit-identical to one that was never stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from tensordict import TensorDict

from agilerl_like.algorithms.episode_guard import EvaluationStopped
from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm
from agilerl_like.algorithms.population import BasePopulation, replace_diverged, sortable_fitness
from agilerl_like.distributed.process_group import SerializedAgent
from agilerl_like.distributed.signals import StopRequests, first_signal
from agilerl_like.hpo import Explorer, History, Offspring, PopulationView, Selection, Trial, next_generation
from agilerl_like.hpo.selection import BASELINE_GENERATION
from agilerl_like.reporting.callback import CallbackList, RunContext
from agilerl_like.reporting.records import (
    BestRecord,
    GenerationRecord,
    MemberRecord,
    OffspringRecord,
    RunRecord,
    SummaryRecord,
    UpdateRecord,
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
    SearchState,
)
from agilerl_like.training.collector import PhaseTimer
from agilerl_like.training.env_setup import EnvSetup
from agilerl_like.training.evaluator import EvalResult, Evaluator, Opponent
from agilerl_like.training.lineage import Lineage, initial_member, offspring_record
from agilerl_like.training.run_settings import selection_name
from agilerl_like.training.sharding import MemberInfo, ShardedPopulation
from agilerl_like.training.training_arguments import TrainingArguments

T = TypeVar("T")

MAX_EVALUATION_ROUNDS = 3
"""Rounds of further evaluation episodes in a generation: at most eight times `eval_loop` episodes of a member."""
TARGET_REACHED = "target reached"
"""Outcome of a run whose best agent reached the target."""
UPDATES_REACHED, TIME_OVER = "max_updates reached", "max_seconds over"
"""Outcomes of runs that reached the limit of updates or of time."""
EQUAL_RATINGS = 1e-6
"""Ratings that differ by less are equal."""
TIMED_PHASES = ("env", "act", "learn", "evaluate", "evolve", "report")


class RunResult(NamedTuple):
    """How a run ended."""

    population: BasePopulation
    fitness: list[float]
    summary: SummaryRecord
    signal: int
    """The signal that interrupted it, SIGINT or SIGTERM; 0 if none did."""
    unsaved: int
    """How many of the last saves failed; 0 if everything is on the disk."""


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
        callbacks: CallbackList,
        record: RunRecord,
        logs_updates: bool = False,
    ) -> None:
        self.members, self.evaluator, self.training_args = members, evaluator, training_args
        self.selection, self.mutations = selection, mutations
        self.checkpoint_manager, self.callbacks = checkpoint_manager, callbacks
        self.context = RunContext(record, members.population)
        self._calls_on_step = callbacks.overrides("on_step")
        self.timer = PhaseTimer(TIMED_PHASES)
        self.collector = env_setup.make_collector(members.population, env, self.timer)
        env_setup.check_opponents(training_args.opponents, members.population)
        self.env_setup = env_setup
        evaluator.keeps_pool = training_args.opponents == "past"
        self.lineage = Lineage()
        self.best: BestAgent | None = None
        """None before the first evaluation."""
        self.uids = members.all_gather_by_slot([agent.index for agent in members.population], encode=int, decode=int)
        self.progress = Progress(next_uid=1 + max(self.uids))
        self.fitness: list[float] = []
        """The last fitness of each member, by slot; empty before the first evaluation."""
        self.history = History()
        """What each member trained with in each generation, for selection and exploration."""
        self.search = SearchState(selection_name(selection))
        """What selection knows besides the history."""
        self.metrics: dict[int, list[dict[str, float]]] = {}
        """Metrics of this generation's updates on this process, by slot."""
        self.updates: dict[int, list[UpdateRecord]] | None = {} if logs_updates else None
        """This generation's updates on this process, by slot; None if they are not logged."""
        for group in self.population.by_group.values():
            group.detailed = logs_updates
        self.replacements: list[OffspringRecord] = []
        """Replacements of diverged members in this generation, on this process."""
        self.unreplaced: set[int] = set()
        """Slots of diverged members that no member of this process could replace."""
        self.stop_requests = StopRequests()
        self.started = self._generation_started = perf_counter()
        self._steps_before = 0

    @property
    def population(self) -> BasePopulation:
        """The members of this process."""
        return self.members.population

    @property
    def steps(self) -> int:
        """Env steps of each member so far."""
        return self.progress.ticks * self.members.first.num_envs

    def restore(
        self, saved_run: Mapping[str, Any], best: EvolvableAlgorithm | None, opponent_pool: Sequence[SerializedAgent]
    ) -> None:
        """Continue from a checkpoint; the main process passes the best agent and the opponents, too."""
        self.progress, self.fitness = Progress.from_json(saved_run["progress"]), list(saved_run["fitness"])
        self.progress.outcome = ""
        self.history = History.from_json(saved_run.get("history", []))
        self.search = SearchState.from_json(saved_run.get("search")).for_selection(selection_name(self.selection))
        self.timer.seconds.update(self.progress.seconds_by_part)
        self.lineage.add(map(OffspringRecord.from_json, saved_run["births"]), self.uids)
        self.population.fitness = [self.fitness[slot] for slot in self.members.shard.slots]
        self.best = BestAgent.from_json(saved_run["best"], best)
        ratings = saved_run["rivals"]
        players = self.members.broadcast_agents(
            0, [*map(self.members.deserialize, opponent_pool)] or [None] * len(ratings)
        )
        self.evaluator.opponent_pool = [
            Opponent(player, *rating) for player, rating in zip(players, ratings, strict=True)
        ]
        self.started -= self.progress.seconds

    def advance_rng(self) -> None:
        """Use other episodes, noise and mutations than those that followed the checkpoint before."""
        self.progress.restorations += 1
        self.progress.next_uid += self.members.size
        for agent in self.population:
            agent.advance_rng()

    def run(self, stop_requests: StopRequests) -> RunResult:
        """Run generations until the budget is spent, the target is reached, or a signal or callback ends the run."""
        self.stop_requests = stop_requests
        self.callbacks.on_run_begin(self._update_context())
        stopped = self._start()
        while not stopped:
            self._train()
            stopped = self._sync()
            records, evaluation_stopped = self._evaluate(StopRequests() if stopped else stop_requests)
            stopped = stopped or evaluation_stopped
            if self.best is None or not evaluation_stopped:
                self.best, confirmation_stopped = self._update_best(fittest(records), stopped=bool(stopped))
                stopped = stopped or confirmation_stopped
            self._report(records, self.best.record)
            self.progress.outcome = self._outcome(stopped, self.best.record)
            if not stopped and self._is_history_due():
                self._save_history()
            if self.progress.outcome:
                break
            stopped = self._advance_generation()
            if not stopped:
                self._checkpoint()
        return self._finish(stopped)

    def _start(self) -> int:
        """Record the initial members, or carry out the evolution that a run with a larger budget or target missed."""
        stopped = 0
        if self.progress.generation == 0:
            self._warn_if_no_update()
            self._record_initial_members()
            if self.training_args.history:
                self._save_history()
        elif not self.progress.evolved:
            self._reset_envs()
            stopped = self._advance_generation()
            self.progress.saved_at = self.steps
        self._reset_envs()
        return stopped

    def _finish(self, stopped: int) -> RunResult:
        self._save(last=True, is_complete=not stopped)
        if stopped and not self.progress.saved_at and self.checkpoint_manager.checkpoints is not None:
            self.callbacks.on_warning(
                f"the run ended before its first checkpoint, which is due after {self.training_args.checkpoint_every} "
                "env steps of each member: to resume it starts again, with the same result. A smaller "
                "training.checkpoint comes earlier; population/ has the members as they are now"
            )
        best = self._known_best()
        summary = self._summary(best, resumes=bool(stopped))
        self.callbacks.on_run_end(self.context, summary)
        population = self.members.gather_all()
        population.fitness = list(self.fitness)
        population.best_of_run = self.members.broadcast_agents(best.rank, [best.agent])[0]
        return RunResult(population, list(self.fitness), summary, max(stopped, 0), self.checkpoint_manager.failures)

    def _reset_envs(self) -> None:
        keys = [self.progress.generation, self.progress.restorations]
        while keys and not keys[-1]:
            del keys[-1]
        self.collector.reset(self.members.shard.slots, *keys)

    def _update_context(self) -> RunContext:
        self.context.generation = self.progress.generation
        self.context.env_steps = self.steps * self.members.size
        self.context.population = self.population
        return self.context

    # -- training

    def _warn_if_no_update(self) -> None:
        """Warn if a generation is shorter than a member's rollout."""
        name = "evo_steps" if self.training_args.evo_steps <= self.training_args.max_steps else "max_steps"
        steps, envs = getattr(self.training_args, name), self.members.first.num_envs
        slow = max(self.population, key=lambda agent: agent.rollout_length)
        if -(-steps // envs) < -(-slow.rollout_length // envs):
            self.callbacks.on_warning(
                f"{name}={steps} is less than learn_step={slow.rollout_length} of member {slow.index}: it will be "
                "evaluated after generations without an update"
            )

    def _record_initial_members(self) -> None:
        self.evaluator.init_opponent_pool(self.members)
        own = [initial_member(slot, agent) for slot, agent in self.members.local_members().items()]
        self._record_offspring(
            self.members.all_gather_by_slot(own, encode=OffspringRecord.to_json, decode=OffspringRecord.from_json)
        )

    def _train(self) -> None:
        progress, collector = self.progress, self.collector
        self._generation_started, self._steps_before = perf_counter(), self.steps
        progress.generation += 1
        progress.evolved = False
        self._set_progress()  # agents of a checkpoint, or of another process, lack it
        self.metrics = {slot: [] for slot in self.members.shard.slots}
        self.updates = None if self.updates is None else {slot: [] for slot in self.members.shard.slots}
        self.replacements, self.unreplaced = [], set()
        self._sample_opponents()
        envs = self.members.first.num_envs
        last = progress.ticks + max(1, min(-(-self.training_args.evo_steps // envs), self._vector_steps_left()))
        while progress.ticks < last and not self._replicas_stop():
            vector_steps = min(collector.vector_steps_until_update, last - progress.ticks)
            progress.ticks += collector.collect(vector_steps, should_stop=self._after_step)
            self._set_progress()
            if reports := collector.learn():
                self._record_update(dict(reports))
        for agent in self.population:
            agent.steps.append(agent.steps[-1] + self.steps - self._steps_before)  # of all its runs

    def _sample_opponents(self) -> None:
        """Choose whom each member plays against in this generation."""
        kind, progress = self.training_args.opponents, self.progress
        if kind != "self":
            pool = self.evaluator.opponent_pool
            opponents = self.env_setup.sample_opponents(kind, self.members, pool, progress.generation)
            self.collector.set_opponents(opponents, everywhere=kind == "team")

    def _after_step(self) -> bool:
        """Call the callbacks after a vector step; return whether a stop is requested."""
        if self._calls_on_step:
            self.context.env_steps += self.members.first.num_envs * self.members.size
            self.callbacks.on_step(self.context)
        return self.population.gradient_sync.num_ranks == 1 and self._stop_requested()

    def _stop_requested(self) -> bool:
        """Whether a signal or a callback requests a stop; a callback's request is passed on to the other ranks."""
        if self.context.stop_reason is not None or self.callbacks.failure is not None:
            self.stop_requests.request()
        return self.stop_requests.asked

    def _replicas_stop(self) -> bool:
        """Whether to stop training; replicas of one member stop at the same step, because they learn together."""
        stop, group = self._stop_requested(), self.population.gradient_sync
        return stop if group.num_ranks == 1 else bool(group.all_reduce_(torch.tensor([float(stop)])).item())

    def _set_progress(self) -> None:
        """Set each member's progress where the rollout began that it may be about to learn from."""
        envs, max_steps = self.members.first.num_envs, self.training_args.max_steps
        for agent in self.population:
            start = self.progress.ticks - math.ceil(agent.rollout_length / envs)
            agent.progress, agent.max_steps = max(0, start) * envs / max_steps, max_steps

    def _vector_steps_left(self) -> int:
        return self.training_args.vector_steps(self.members.first.num_envs) - self.progress.ticks

    def _record_update(self, reports: Mapping[int, TensorDict]) -> None:
        slots = self.members.shard.slots
        metrics = {
            slots[place]: {name: float(report[name][0]) for name in _reported(self.population[place])}
            for place, report in reports.items()
        }
        for slot, of_member in metrics.items():
            self.metrics[slot].append(of_member)
        if self.updates is not None:
            self._log_updates(self.updates, reports)
        self._replace_diverged([place for place, report in reports.items() if not bool(report["healthy"][0])])
        with self.timer("report"):
            self.callbacks.on_update(self._update_context(), metrics)

    def _log_updates(self, updates: dict[int, list[UpdateRecord]], reports: Mapping[int, TensorDict]) -> None:
        """Record an update of some members with all its metrics."""
        for (place, report), train_return in zip(
            reports.items(), self.collector.returns_since([*reports]), strict=True
        ):
            agent, slot = self.population[place], self.members.shard.slots[place]
            names = (*_reported(agent), *agent.group_class.details)
            record = UpdateRecord(
                slot=slot,
                uid=agent.index,
                number=next(iter(agent.learners.values())).updates,
                env_steps=self.steps,
                train_return=train_return,
                metrics={name: float(report[name][0]) for name in names},
            )
            updates[slot].append(record)

    def _all_updates(self) -> tuple[UpdateRecord, ...]:
        """Return this generation's updates of all members, if they are logged."""
        if self.updates is None:
            return ()
        of_slot = self.members.all_gather_by_slot(
            self.updates.values(),
            encode=lambda its: [asdict(one) for one in its],
            decode=lambda its: [UpdateRecord(**one) for one in its],
        )
        return tuple(sorted((one for its in of_slot for one in its), key=lambda one: (one.env_steps, one.slot)))

    def _replace_diverged(self, diverged: Sequence[int]) -> None:
        """Replace members whose loss or weights are not finite by clones of the best members of this process."""
        slots, size = self.members.shard.slots, self.members.size
        if len(diverged) == len(slots) < size:  # their slots get offspring of other processes' members after evaluation
            for place in diverged:
                self.population[place].reinitialize()
            self.unreplaced |= {slots[place] for place in diverged}
            return
        first_uid = self.progress.next_uid + size * len(self.replacements)  # unique among all processes
        uids = [first_uid + slots[place] for place in diverged]
        for place, parent_place in replace_diverged(self.population, diverged, uids):
            new, parent = self.population[place], self.population[parent_place]
            self.collector.reset_member(place)
            self.metrics[slots[place]].clear()
            offspring = Offspring(
                self.progress.generation, slots[place], new.index, parent.index, slots[parent_place], new.genome
            )
            reason = "replaced: loss or weights are not finite"
            self.replacements.append(offspring_record(offspring, MemberInfo.of(parent), reason))

    def _sync(self) -> int:
        """Exchange replacements with the other processes; return the signal that stops the run, 0 if none does."""
        own = {"signal": self.stop_requests.signal, "replacements": [one.to_json() for one in self.replacements]}
        gathered = self.members.process_group.all_gather(own)
        offspring = [OffspringRecord.from_json(one) for data in gathered for one in data["replacements"]]
        self._record_offspring(offspring)
        self.progress.next_uid = max(self.progress.next_uid, *(one.uid + 1 for one in offspring), 0)
        return first_signal(data["signal"] for data in gathered)

    # -- evaluation

    def _evaluate(self, stop_requests: StopRequests) -> tuple[list[MemberRecord], int]:
        """Evaluate all members; return their records, and the signal that stopped the evaluation, 0 if none did."""
        progress, members = self.progress, self.members
        with self.timer("evaluate"):
            num_seeds = self.training_args.eval_loop
            seeds = integers(num_seeds, members.first.seed, Purpose.EVALUATION_ENVS, progress.generation)
            result, stopped = self._evaluate_until_stopped(
                lambda asked: self.evaluator.evaluate(self.population, seeds, progress.generation, should_stop=asked),
                stop_requests,
            )
            if result is not None:
                if result.is_zero_sum and progress.generation == 1:
                    self.callbacks.on_warning(
                        "fitness='return' sums the rewards of all agents, and in this environment that is 0 in every "
                        "episode, whatever a member does; fitness='rating' compares members by games"
                    )
                result, stopped = self._evaluate_further(result, stop_requests)
            result = result or _unfinished_result(self.population)
            fitness = [
                score if agent.is_finite and slot not in self.unreplaced else math.nan
                for (slot, agent), score in zip(members.local_members().items(), result.fitness, strict=True)
            ]
            self.population.fitness = fitness
            for agent, score, train_return in zip(self.population, fitness, self.collector.pop_scores(), strict=True):
                agent.fitness.append(score)
                agent.scores.append(train_return)
        records = members.all_gather_by_slot(
            self._records(result), encode=asdict, decode=lambda data: MemberRecord(**data)
        )
        before = self.fitness or [math.nan] * len(records)
        own_returns = result.returns or [[]] * len(members.population)
        self.search.returns = members.all_gather_by_slot(own_returns, encode=list, decode=list)
        self.history = self.history.extended(
            _trial(
                record,
                progress.generation,
                score,
                self.steps - self._steps_before,
                self.lineage.operators(record.uid, progress.generation - 1),
                is_mean=any(self.search.returns),
            )
            for record, score in zip(records, before, strict=True)
        )
        self.fitness = [record.fitness for record in records]
        progress.evaluation_steps += sum(record.evaluation_steps for record in records)
        return records, stopped or self._measure_baseline(stop_requests)

    def _measure_baseline(self, stop_requests: StopRequests) -> int:
        """Play constant policies for a selection that needs their returns; return the signal that stopped it, or 0."""
        selection, members = self.selection, self.members
        if selection is None or not selection.needs_baseline or "baseline" in self.search.state:
            return 0
        is_masked = self.evaluator.env.action_mask is not None  # a constant action may be illegal
        if self.progress.generation < BASELINE_GENERATION or is_masked or not any(self.search.returns):
            return 0
        seeds = integers(1, members.first.seed, Purpose.EVALUATION_ENVS, self.progress.generation, 1000)
        with self.timer("evaluate"):
            played, signal = self._evaluate_until_stopped(
                lambda asked: self.evaluator.play_constant(self.population, members.shard.slots, seeds, asked),
                stop_requests,
            )
            own = [[math.nan, 0]] * len(self.population) if played is None else [*zip(*played, strict=True)]
            gathered = members.all_gather_by_slot(own, encode=list, decode=list)
        returns = [score for score, _ in gathered if math.isfinite(score)]
        self.progress.evaluation_steps += sum(steps for _, steps in gathered)
        if returns and not signal:
            self.search.state["baseline"] = [max(returns), max(returns) - min(returns)]
        return signal

    def _evaluate_further(self, result: EvalResult, stop_requests: StopRequests) -> tuple[EvalResult, int]:
        """Return the result after further episodes of the members whose selection is in doubt, and the signal.

        The number of episodes doubles from round to round for those that are still in doubt, within `eval_share`.
        """
        progress, members, args, episodes = (
            self.progress,
            self.members,
            self.training_args,
            self.training_args.eval_loop,
        )
        allowed = args.eval_share * (self.steps - self._steps_before) * members.size
        if not result.returns:
            return self._separate_equals(result, stop_requests)
        if self.selection is None or type(self.selection).in_doubt is Selection.in_doubt:
            return result, 0
        for turn in range(1, 1 + MAX_EVALUATION_ROUNDS):
            fitness, steps, returns = zip(
                *members.all_gather_by_slot(
                    zip(result.fitness, result.steps, result.returns, strict=True), encode=list, decode=tuple
                ),
                strict=True,
            )
            if not np.isfinite(fitness).any():
                break
            view = PopulationView(
                np.array(fitness),
                self.uids,
                (),
                progress.generation,
                self.history,
                returns=SearchState(returns=list(returns)).paired_returns(),
                generations=args.generations(members.first.num_envs),
            )
            doubtful = self.selection.in_doubt(view)
            cost = sum(episodes * steps[slot] / len(returns[slot]) for slot in doubtful)
            if not doubtful or sum(steps) + cost > allowed:
                break
            own = [place for place, slot in enumerate(members.shard.slots) if slot in doubtful]
            seeds = integers(episodes, members.first.seed, Purpose.EVALUATION_ENVS, progress.generation, turn)
            more, signal = self._evaluate_until_stopped(
                lambda asked, own=own, seeds=seeds: self.evaluator.evaluate_some(
                    self.population, own, seeds, progress.generation, should_stop=asked
                ),
                stop_requests,
            )
            if signal:
                return result, signal
            result = result if more is None else result.extended(own, more)
            episodes *= 2
        return result, 0

    def _separate_equals(self, result: EvalResult, stop_requests: StopRequests) -> tuple[EvalResult, int]:
        """Return the ratings after further games of the members whose ratings are equal, and the signal.

        They play at most `MAX_EVALUATION_ROUNDS` rounds of as many games as before, on other seeds.
        """
        members, generation = self.members, self.progress.generation
        for turn in range(1, 1 + MAX_EVALUATION_ROUNDS):
            ratings = np.array(members.all_gather_by_slot(result.fitness, encode=float, decode=float))
            equal = [slot for slot, one in enumerate(ratings) if (np.abs(ratings - one) < EQUAL_RATINGS).sum() > 1]
            if self.selection is None or not equal:
                break
            own = [place for place, slot in enumerate(members.shard.slots) if slot in equal]
            seeds = integers(
                self.training_args.eval_loop, members.first.seed, Purpose.EVALUATION_ENVS, generation, turn
            )
            more, signal = self._evaluate_until_stopped(
                lambda asked, own=own, seeds=seeds: self.evaluator.evaluate_some(
                    self.population, own, seeds, generation, should_stop=asked
                ),
                stop_requests,
            )
            if signal:
                return result, signal
            result = result if more is None else result.averaged(own, more)
        return result, 0

    def _evaluate_until_stopped(
        self,
        evaluate: Callable[[Callable[[], bool]], T | None],
        stop_requests: StopRequests | None = None,
    ) -> tuple[T | None, int]:
        """Evaluate on this process; if a signal stops any process, return None and the signal."""
        requests = stop_requests or self.stop_requests
        result, signal = None, 0
        try:
            result = evaluate(lambda: requests.asked)
        except EvaluationStopped:
            signal = requests.signal
        signal = first_signal(self.members.process_group.all_gather(signal))
        return None if signal else result, signal

    def _update_best(self, candidate: MemberRecord, *, stopped: bool) -> tuple[BestAgent, int]:
        """Return the best agent so far, and the signal that stopped the confirmation, 0 if none did.

        It is the fittest member of this generation if fresh episodes confirm it, else the one before. A run that was
        stopped ends without them.
        """
        best, target, signal = self.best, self.training_args.target, 0
        if best is not None and not may_surpass(candidate, best.record, target):
            return best, signal
        found = unconfirmed_record(candidate, self.progress.generation)
        if not stopped and math.isfinite(candidate.fitness):
            fresh, signal = self._confirm(candidate.slot)
            found = found if fresh is None else confirmed_record(candidate, self.progress.generation, fresh)
        if best is not None and not surpasses(found, best.record, target):
            return best, signal
        owner_rank, agent = self.members.owner_rank(candidate.slot), None
        if owner_rank == self.members.process_group.rank:
            agent = self.members.local_members()[candidate.slot].clone()
            agent.fitness[-1] = found.fitness
        return BestAgent(found, self.lineage.ancestry(candidate.uid), owner_rank, agent), signal

    def _confirm(self, slot: int) -> tuple[EvalResult | None, int]:
        """Evaluate a member on fresh episodes; all processes return the result, or the signal that stopped it."""
        members, generation = self.members, self.progress.generation
        player = members.local_members().get(slot)
        with self.timer("evaluate"):
            episodes = max(self.training_args.eval_loop, CONFIRMATION_EPISODES)
            seeds = integers(episodes, members.first.seed, Purpose.CONFIRMATION_ENVS, generation)
            own, signal = self._evaluate_until_stopped(
                lambda asked: player and self.evaluator.evaluate(player, seeds, generation, should_stop=asked)
            )
            found = next(filter(None, members.process_group.all_gather(None if own is None else list(own))), None)
        if found is None:
            return None, signal
        fresh = EvalResult(*found)
        self.progress.evaluation_steps += sum(fresh.steps)
        return fresh, signal

    def _outcome(self, stopped: int, best: BestRecord) -> str:
        """Return why the run ends after this generation; "" if it does not."""
        reason = "a callback failed" if self.callbacks.failure is not None else self.context.stop_reason
        reason = self.members.process_group.broadcast(reason)
        if stopped > 0:
            return INTERRUPTED
        if not stopped:
            target = self.training_args.target
            if target is not None and best.is_confirmed and best.fitness >= target:
                return TARGET_REACHED
            if self.checkpoint_manager.failures >= MAX_FAILED_SAVES:
                return "disk full"
            if self._vector_steps_left() <= 0:
                return "budget spent"
            if self._updates_reached():
                return UPDATES_REACHED
            if self._seconds_reached():
                return TIME_OVER
        if reason is None:
            return INTERRUPTED if stopped else ""
        return f"stopped: {reason:.200}" if reason else "stopped"

    def _updates_reached(self) -> bool:
        """Whether a member of any process has made the largest number of updates; collective if there is a limit."""
        limit = self.training_args.max_updates
        if limit is None:
            return False
        most = max(learner.updates for agent in self.population for learner in agent.learners.values())
        return max(self.members.process_group.all_gather(most)) >= limit

    def _seconds_reached(self) -> bool:
        """Whether the main process has run for the largest number of seconds; collective if there is a limit."""
        limit = self.training_args.max_seconds
        return limit is not None and self.members.process_group.broadcast(self._seconds()) >= limit

    # -- evolution

    def _advance_generation(self) -> int:
        """Update the opponent pool and evolve the population; return the signal that stopped the games, 0 if none."""
        stopped = self._update_opponents()
        if stopped:
            self.progress.outcome = INTERRUPTED
        else:
            self._evolve()
        return stopped

    def _update_opponents(self) -> int:
        """Add the best member to the opponent pool; return the signal that stopped its games, 0 if none did."""
        slot = max(range(self.members.size), key=lambda slot: (sortable_fitness(self.fitness[slot]), -slot))
        if not math.isfinite(self.fitness[slot]):
            return 0
        with self.timer("evaluate"):
            steps, stopped = self.evaluator.update_opponent_pool(
                self.members, slot, self.progress.generation, self._evaluate_until_stopped
            )
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
            infos = members.member_infos()
            uids, genomes = [info.uid for info in infos], [info.genome for info in infos]
            offspring = members.evolve(
                next_generation(
                    PopulationView(
                        np.array(fitness),
                        uids,
                        genomes,
                        self.progress.generation,
                        self.history,
                        returns=self.search.paired_returns(),
                        generations=self.training_args.generations(members.first.num_envs),
                        train_returns=np.array([info.train_return for info in infos]),
                        state=self.search.state,
                    ),
                    [info.hp_config for info in infos],
                    selection=self.selection,
                    explorer=self.mutations,
                    seed=members.first.seed,
                    next_uid=self.progress.next_uid,
                    repair=self.population.repair,
                )
            )
            self.progress.next_uid = max(self.progress.next_uid, *(one.uid + 1 for one in offspring))
            for place, slot in enumerate(members.shard.slots):
                if not offspring[slot].survives:
                    self.collector.reset_member(place)
            release_free_memory()
        self.fitness = [fitness[one.parent_slot] if one.start is None else math.nan for one in offspring]
        self.population.fitness = [self.fitness[slot] for slot in members.shard.slots]
        reasons = ["" if math.isfinite(score) else f"replaced: fitness is {score}" for score in fitness]
        self._record_offspring(
            [
                offspring_record(one, infos[one.parent_slot], reason)
                for one, reason in zip(offspring, reasons, strict=True)
            ]
        )

    # -- saving

    def _checkpoint(self) -> None:
        """Write a checkpoint and reset the envs if one is due; reset them too if the evaluation used the same env."""
        progress = self.progress
        if self.steps - progress.saved_at >= self.training_args.checkpoint_every:
            progress.saved_at = self.steps
            self._save(last=False, is_complete=True)
            if not self.population.keeps_experience:
                self.members.rebalance()
            self._reset_envs()
        elif self.evaluator.env.env is self.collector.env.env:
            self._reset_envs()

    def _is_history_due(self) -> bool:
        """Whether this generation is in the history; the last one is if the run has reached its target."""
        args, envs = self.training_args, self.members.first.num_envs
        has_ended = self.progress.outcome == TARGET_REACHED and args.history > 0
        return has_ended or args.is_history_due(self._steps_before // envs, self.progress.ticks, envs)

    def _save_history(self) -> None:
        with self.timer("report"):
            self.checkpoint_manager.save_history(
                self.progress, self.fitness, steps=self.steps, max_steps=self.training_args.max_steps
            )

    def _save(self, *, last: bool, is_complete: bool) -> None:
        with self.timer("report"):
            self.progress.seconds = self._seconds()
            self.progress.seconds_by_part = dict(self.timer.seconds)
            best, births = self._known_best(), self.lineage.births
            self.checkpoint_manager.save(
                RunState(
                    self.progress,
                    best,
                    births,
                    self.fitness,
                    self.evaluator.opponent_pool,
                    self.history,
                    self.search,
                    self.population.experience_state(),
                ),
                last=last,
                is_complete=is_complete,
            )

    def _known_best(self) -> BestAgent:
        if self.best is None:
            raise RuntimeError("the best agent of a run is not known before its first evaluation")
        return self.best

    def _seconds(self) -> float:
        return perf_counter() - self.started

    # -- records

    def _record_offspring(self, offspring: Sequence[OffspringRecord]) -> None:
        for one in offspring:
            self.uids[one.slot] = one.uid
        self.lineage.add(offspring, self.uids)
        with self.timer("report"):
            self.callbacks.on_offspring(self._update_context(), tuple(offspring))

    def _records(self, result: EvalResult) -> list[MemberRecord]:
        return [
            MemberRecord(
                slot=slot,
                uid=agent.index,
                parent_uid=self.lineage.parent(agent.index),
                env_steps=self.steps,
                fitness=agent.fitness[-1],
                fitness_std=std,
                episodes=len(result.returns[place]) if result.returns else result.episodes,
                evaluation_steps=steps,
                train_return=agent.scores[-1],
                hyperparameters=agent.hyperparameters,
                architecture=agent.architecture.describe(),
                legend=agent.architecture.legend(),
                parameters=agent.parameter_count,
                mutation=agent.mut,
                losses=_means(self.metrics[slot], _reported(agent)),
                measures={name: values[place] for name, values in (result.measures or {}).items()},
            )
            for place, ((slot, agent), std, steps) in enumerate(
                zip(self.members.local_members().items(), result.spread, result.steps, strict=True)
            )
        ]

    def _report(self, records: Sequence[MemberRecord], best: BestRecord) -> None:
        progress, members, updates = self.progress, len(records), self._all_updates()
        now = perf_counter()
        with self.timer("report"):
            record = GenerationRecord(
                generation=progress.generation,
                env_steps=self.steps * members,
                evaluation_steps=progress.evaluation_steps,
                max_env_steps=self.training_args.max_steps * members,
                seconds=now - self.started,
                steps_per_second=(self.steps - self._steps_before) * members / (now - self._generation_started),
                seconds_by_part=dict(self.timer.seconds),
                members=tuple(records),
                best=best,
                target=self.training_args.target,
                updates=updates,
            )
            self.callbacks.on_generation(self._update_context(), record)

    def _summary(self, best: BestAgent, *, resumes: bool) -> SummaryRecord:
        reason, manager = self.progress.outcome, self.checkpoint_manager
        resumes = resumes or reason == "disk full" or reason.startswith("stopped")
        return SummaryRecord(
            reason=reason,
            best=best.record,
            ancestry=best.ancestry,
            env_steps=self.steps * self.members.size,
            evaluation_steps=self.progress.evaluation_steps,
            seconds=self._seconds(),
            seconds_by_part=dict(self.timer.seconds),
            saved_to=manager.output_paths.display_path if manager.saves else None,
            resume=manager.resume if resumes else "",
        )


def _unfinished_result(population: BasePopulation) -> EvalResult:
    """Return the result of an evaluation that was stopped: the last fitness of each member, nan if it has none."""
    members = len(population)
    unknown = [math.nan] * members
    last = [agent.fitness[-1] if agent.fitness else math.nan for agent in population]
    return EvalResult(last, unknown, unknown, 0, [0] * members)


def _trial(
    record: MemberRecord, generation: int, fitness_before: float, env_steps: int, operators: str, *, is_mean: bool
) -> Trial:
    """Return what the history keeps of one member's generation; `is_mean`: fitness is a mean return, not a rating."""
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
        operators=operators,
        standard_error=record.fitness_std / (math.sqrt(max(1, record.episodes - 1)) if is_mean else 1.0),
    )


def _reported(agent: EvolvableAlgorithm) -> tuple[str, ...]:
    """Return the names of the metrics of an update, and of the hyperparameters that had a scheduled value in it."""
    return (*agent.group_class.metrics, *agent.scheduled)


def _means(metrics: Sequence[Mapping[str, float]], names: Sequence[str]) -> dict[str, float]:
    """Return the mean of each metric over a generation's updates; nan without an update."""
    return {name: float(np.mean([one[name] for one in metrics])) if metrics else math.nan for name in names}
