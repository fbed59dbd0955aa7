"""The state of a training loop on one process, and the records that it reports."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from time import perf_counter
from typing import Any

import numpy as np
from tensordict import TensorDict

from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm
from agilerl_like.algorithms.population import BasePopulation
from agilerl_like.distributed.process_group import SerializedAgent
from agilerl_like.distributed.signals import StopRequests
from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo import History
from agilerl_like.hpo.frozen_mapping import FrozenMapping
from agilerl_like.hpo.schedules import Schedule, check_schedules
from agilerl_like.reporting.callback import CallbackList, RunContext
from agilerl_like.reporting.records import (
    TIMED_PHASES,
    BestRecord,
    GenerationRecord,
    MemberRecord,
    OffspringRecord,
    RunRecord,
    SummaryRecord,
    UpdateRecord,
)
from agilerl_like.training.best_agent import BestAgent
from agilerl_like.training.checkpoint_manager import STOPPED, CheckpointManager, Progress, SearchState
from agilerl_like.training.collector import PhaseTimer
from agilerl_like.training.env_setup import EnvSetup
from agilerl_like.training.evaluator import EvalResult, Evaluator, Opponent
from agilerl_like.training.lineage import Lineage
from agilerl_like.training.run_plan import RunPlan
from agilerl_like.training.run_settings import selection_name
from agilerl_like.training.sharding import ShardedPopulation


class LoopState:
    """Members, envs, evaluator, progress, history and records of a run."""

    def __init__(
        self,
        members: ShardedPopulation,
        env_setup: EnvSetup,
        env: Any,
        evaluator: Evaluator,
        plan: RunPlan,
        *,
        checkpoint_manager: CheckpointManager,
        callbacks: CallbackList,
        record: RunRecord,
        remake_envs: Callable[[], tuple[Any, Evaluator]] | None,
        evaluates_training_episodes: bool,
    ) -> None:
        """`remake_envs` makes env and evaluator again for the members that are left; None if it cannot.

        `evaluates_training_episodes` is whether an evaluation plays whole episodes of the training env.
        """
        self.members, self.evaluator, self.env_setup = members, evaluator, env_setup
        self.training_args, self.selection, self.explorer = plan.training_args, plan.selection, plan.explorer
        self.schedule_steps = plan.schedule_steps or plan.training_args.max_steps
        self.checkpoint_manager, self.callbacks = checkpoint_manager, callbacks
        self.context, self._remake_envs = RunContext(record, members.population), remake_envs
        self._evaluates_training_episodes = evaluates_training_episodes
        self.run_schedules: FrozenMapping[Schedule] = FrozenMapping()
        """Schedules for hyperparameters of members that have none of their own."""
        if plan.selection is not None and not members.population.keeps_experience:
            self.run_schedules = check_schedules(plan.selection.schedules())
        self._calls_on_step = callbacks.overrides("on_step")
        self.timer = PhaseTimer(TIMED_PHASES)
        self.collector = env_setup.make_collector(members.population, env, self.timer)
        args, logs_updates = plan.training_args, plan.log_every == "update"
        env_setup.check_opponents(args.opponents, members.population, args.fitness)
        evaluator.keeps_pool = args.opponents == "past"
        self.lineage = Lineage()
        self.best: BestAgent | None = None
        """None before the first evaluation."""
        self.uids = members.all_gather_by_slot([agent.index for agent in members.population], encode=int, decode=int)
        self.progress = Progress(next_uid=1 + max(self.uids))
        self.fitness: list[float] = []
        """The last fitness of each member, by slot; empty before the first evaluation."""
        self.history = History()
        """Each member's hyperparameters and fitness in each generation, for selection and exploration."""
        self.search = SearchState(selection_name(plan.selection))
        """The state of the selection strategy besides the history."""
        self.metrics: dict[int, list[dict[str, float]]] = {}
        """Metrics of this generation's updates on this process, by slot."""
        self.updates: dict[int, list[UpdateRecord]] | None = {} if logs_updates else None
        """This generation's updates on this process, by slot; None if they are not logged."""
        for group in self.population.by_group.values():
            group.detailed = logs_updates
        self.replacements: list[OffspringRecord] = []
        """Replacements of diverged members in this generation, on this process."""
        self.unreplaced: set[int] = set()
        """Slots of members that diverged in this generation while their process had no healthy member to clone: those
        of this process, and after `_sync` those of all."""
        self.checkpoint_every = 0
        """Env steps of each member between checkpoints, which by default depend on the present members."""
        self._has_reset = self._warned_of_resets = False  # for warnings that envs are reset before members learn
        self.stop_requests = StopRequests()
        self.started = self._generation_started = perf_counter()
        self._steps_before = self._total_before = 0

    @property
    def population(self) -> BasePopulation:
        """The members of this process."""
        return self.members.population

    @property
    def steps(self) -> int:
        """Env steps of each member so far."""
        return self.progress.ticks * self.members.first.num_envs

    @property
    def total_steps(self) -> int:
        """Env steps of all members so far, with those that have left the population."""
        return self.progress.vector_steps_of_all(self.members.size) * self.members.first.num_envs

    @property
    def initial_size(self) -> int:
        """The members at the beginning: those that have left the population are counted."""
        return self.members.size + self.progress.removed

    def restore(
        self, saved_run: Mapping[str, Any], best: EvolvableAlgorithm | None, opponent_pool: Sequence[SerializedAgent]
    ) -> None:
        """Restore the state of a checkpoint; only the main process has the best agent and the opponents."""
        self.progress, self.fitness = Progress.from_json(saved_run["progress"]), list(saved_run["fitness"])
        self.progress.outcome, self.checkpoint_manager.saved_generation = "", self.progress.generation
        self.unreplaced = {*self.progress.unreplaced}
        self.context.restore_tracked(self.progress.tracked)
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
        """Advance the random streams, so that a restarted run has other episodes, noise and mutations than before."""
        self.progress.restorations += 1
        self.progress.next_uid += self.members.size
        for learner in self.population.all_learners():
            learner.advance_rng()

    def _reset_envs(self) -> None:
        """Start new episodes in all envs, with seeds of the generation, the restarts and the members' earlier updates.

        Without the latter a second run of the same members would train in the episodes of the first.
        """
        keys = [self.progress.generation, self.progress.restorations, self.progress.updates_before]
        while keys and not keys[-1]:
            del keys[-1]
        self.collector.reset(self.members.shard.slots, *keys)

    def _update_context(self) -> RunContext:
        self.context.generation = self.progress.generation
        self.context.env_steps = self.total_steps
        self.context.population = self.population
        return self.context

    def _stop_requested(self) -> bool:
        """Return whether a signal or a callback requests a stop; a callback's request is sent to the other ranks."""
        if self.context.stop_reason is not None or self.callbacks.failure is not None:
            self.stop_requests.request()
        return self.stop_requests.asked

    def _vector_steps_left(self) -> int:
        vector_steps = self.training_args.vector_steps(self.members.first.num_envs)
        return self.progress.vector_steps_left(self.members.size, vector_steps)

    def _expected_generations(self) -> int:
        """Return the number of generations of the whole run; collective if `max_updates` or `max_seconds` is set.

        Those may end a run long before `max_steps`, so the share of them that is spent predicts the number.
        """
        args, generation = self.training_args, self.progress.generation
        found = args.generations(self.members.first.num_envs)
        if args.max_updates is not None and (updates := self.members.most_updates()) > 0:
            found = min(found, math.ceil(generation * args.max_updates / updates))
        if args.max_seconds is not None:
            found = min(found, math.ceil(generation * args.max_seconds / self._main_seconds()))
        return max(found, generation)

    def _main_seconds(self) -> float:
        """Return for how many seconds the run has lasted on the main process; collective."""
        return self.members.process_group.broadcast(self._seconds())

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

    def _known_best(self) -> BestAgent:
        if self.best is None:
            raise RuntimeError("a run has no best agent before its first evaluation")
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
        measures, episodes = result.measures, result.episodes_by_member
        return [
            MemberRecord(
                slot=slot,
                uid=agent.index,
                parent_uid=self.lineage.parent(agent.index),
                env_steps=self.steps,
                fitness=agent.fitness[-1],
                fitness_std=std,
                standard_error=error,
                episodes=episodes[place],
                evaluation_steps=steps,
                train_return=agent.scores[-1],
                hyperparameters=agent.hyperparameters,
                inactive=sorted(agent.hp_config.keys() - agent.hp_config.active(agent.hyperparameters).keys()),
                architecture=agent.architecture.describe(),
                legend=agent.architecture.legend(),
                parameters=agent.parameter_count,
                mutation=agent.mut,
                losses=_means(self.metrics[slot], reported_metrics(agent)),
                measures={name: values[place] for name, values in measures.items()},
            )
            for place, ((slot, agent), std, error, steps) in enumerate(
                zip(self.members.local_members().items(), result.spread, result.errors, result.steps, strict=True)
            )
        ]

    def _report(self, records: Sequence[MemberRecord], best: BestRecord) -> None:
        progress, members = self.progress, len(records)
        updates, most_updates = self._all_updates(), self.members.most_updates()
        now = perf_counter()
        with self.timer("report"):
            record = GenerationRecord(
                generation=progress.generation,
                env_steps=self.total_steps,
                evaluation_steps=progress.evaluation_steps,
                max_env_steps=self.training_args.max_steps * self.initial_size,
                seconds=now - self.started,
                steps_per_second=(self.steps - self._steps_before) * members / (now - self._generation_started),
                seconds_by_part=dict(self.timer.seconds),
                members=tuple(records),
                best=best,
                target=self.training_args.target,
                updates=updates,
                most_updates=most_updates,
            )
            self.callbacks.on_generation(self._update_context(), record)

    def _summary(self, best: BestAgent, *, resumes: bool) -> SummaryRecord:
        reason, manager = self.progress.outcome, self.checkpoint_manager
        resume = manager.resume if manager.saved_generation else manager.restart
        resumes = resumes or reason == "disk full" or reason.startswith(STOPPED)
        return SummaryRecord(
            reason=reason,
            best=best.record,
            ancestry=best.ancestry,
            env_steps=self.total_steps,
            evaluation_steps=self.progress.evaluation_steps,
            seconds=self._seconds(),
            seconds_by_part=dict(self.timer.seconds),
            saved_to=manager.output_paths.saved_to(self.steps) if manager.saves else None,
            resume=resume if resumes else "",
        )


def reported_metrics(agent: EvolvableAlgorithm) -> tuple[str, ...]:
    """Return the names of an update's metrics, and of the hyperparameters that are scheduled."""
    return (*agent.group_class.metrics, *next(iter(agent.learners.values())).scheduled)


def metrics_of(agent: EvolvableAlgorithm, report: TensorDict, names: Sequence[str]) -> dict[str, float]:
    """Return metrics of an update from what `LearnerGroup.learn` returned for a member.

    Raises:
        ConfigurationError: the report lacks one, or `healthy`.
    """
    found = set(map(str, report.keys()))
    missing = [name for name in (*names, "healthy") if name not in found]
    if missing:
        scheduled = next(iter(agent.learners.values())).scheduled
        reason = "which is scheduled" if missing[0] in scheduled else "which every report needs"
        raise ConfigurationError(
            f"{agent.group_class.__name__}.learn: the report lacks {missing[0]!r}, {reason}; it has "
            f"{', '.join(sorted(found))}"
        )
    return {name: float(report[name][0]) for name in names}


def _means(metrics: Sequence[Mapping[str, float]], names: Sequence[str]) -> dict[str, float]:
    """Return the mean of each metric over a generation's updates in which it is a number; nan without one.

    A schedule that a callback begins during a generation has no value in the updates before.
    """
    known = {name: [one[name] for one in metrics if not math.isnan(one.get(name, math.nan))] for name in names}
    return {name: float(np.mean(values)) if values else math.nan for name, values in known.items()}
