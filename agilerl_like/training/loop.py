"""The training loop: training, evaluation and evolution, generation by generation.

In a generation every member takes the same number of env steps, whatever its learn_step, and episodes continue across
generations. Members are evaluated in separate envs, without exploration, all on the same seeds. Evolution takes place
between two generations and not after the last, so the returned population is exactly the one that was evaluated.

A run may be distributed over processes, each of which trains and evaluates its own members; every process makes the
same decisions. The envs are reset at every checkpoint, so that a resumed run is bit-identical to an uninterrupted one.
"""

from __future__ import annotations

import contextlib
import math
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from time import perf_counter
from typing import NamedTuple

import torch
from tensordict import TensorDict

from agilerl_like.algorithms.episode_summary import summarise_episodes
from agilerl_like.algorithms.population import ALL_DIVERGED, BasePopulation, replace_diverged, sortable_fitness
from agilerl_like.distributed.signals import BY_CALLBACK, StopRequests, first_signal
from agilerl_like.errors import CheckpointError, ConfigurationError, PopulationDivergedError
from agilerl_like.hpo import Explorer, Offspring, PopulationView, Selection, clone_of_best, next_generation
from agilerl_like.hpo.selection import check_removed, check_slot_for_best
from agilerl_like.reporting.records import (
    BestRecord,
    OffspringRecord,
    SummaryRecord,
    UpdateRecord,
    fittest,
)
from agilerl_like.resources import release_free_memory
from agilerl_like.training.checkpoint_manager import (
    CALLBACK_FAILED,
    INTERRUPTED,
    MAX_FAILED_SAVES,
    STOPPED,
    RunState,
    SearchState,
)
from agilerl_like.training.lineage import initial_member, offspring_record
from agilerl_like.training.loop_evaluation import LoopEvaluation
from agilerl_like.training.loop_state import metrics_of, reported_metrics
from agilerl_like.training.settings_guard import settings_guard
from agilerl_like.training.sharding import MemberInfo
from agilerl_like.training.training_arguments import OF_SCRIPTS

TARGET_REACHED = "target reached"
"""Outcome of a run whose best agent reached the target."""
UPDATES_REACHED, TIME_OVER = "max_updates reached", "max_seconds over"
"""Outcomes of runs that reached the limit of updates or of time."""


class RunResult(NamedTuple):
    """How a run ended."""

    population: BasePopulation
    fitness: list[float]
    summary: SummaryRecord
    signal: int
    """The first signal that it received, SIGINT or SIGTERM, even if the run had ended for another reason; else 0."""
    unsaved: int
    """The number of consecutive failed saves at the end; 0 if everything was written."""

    def raise_if_interrupted(self) -> None:
        """Raise what the signal would have raised outside of a run: KeyboardInterrupt, or SystemExit with its code."""
        if self.signal == signal.SIGINT:
            raise KeyboardInterrupt
        if self.signal:
            raise SystemExit(128 + self.signal)


class TrainingLoop(LoopEvaluation):
    """One run from its first step, or from a checkpoint, to its summary.

    `LoopState.__init__` in `loop_state.py` sets the attributes, and `LoopEvaluation` in `loop_evaluation.py` has the
    evaluation, so that this file has the order of a generation, evolution and saving.
    """

    def run(self, stop_requests: StopRequests) -> RunResult:
        """Run generations until the budget is spent, the target is reached, or a signal or callback ends the run."""
        self.callbacks.guard = lambda: settings_guard(self.population, self.members.process_group.size)
        try:
            self.stop_requests = stop_requests
            self.callbacks.on_run_begin(self._update_context())
            return self._run()
        finally:
            self.callbacks.guard = contextlib.nullcontext  # which does not refer to this loop
            self.population.discard_experience()  # which holds the replay and the envs
            for agent in self.population:
                agent.leave_run()

    def _run(self) -> RunResult:
        try:
            return self._run_generations()
        except PopulationDivergedError:  # the run restarts from its checkpoint
            raise
        except Exception:
            with contextlib.suppress(CheckpointError, ConfigurationError):  # which would replace the cause
                self._save_best_after_error()
            raise

    def _run_generations(self) -> RunResult:
        """Train, evaluate and evolve until the run ends; return its result.

        `stop_signal`, which is equal on all processes, is the reason why a generation ends early: SIGINT or SIGTERM, if
        a process received it, `BY_CALLBACK`, if only a callback requested to stop, and 0 as long as the run continues.
        """
        stop_signal = self._start()
        while not stop_signal:
            self._train()
            stop_signal = self._sync()
            if stop_signal == BY_CALLBACK:
                self.stop_requests.ignore_callbacks()  # a first signal still stops this evaluation
            elif stop_signal:
                self.stop_requests = StopRequests()  # the signal that ended training does not stop this evaluation
            records, evaluation_signal = self._evaluate()
            stop_signal = stop_signal or evaluation_signal
            if self.best is None or not evaluation_signal:
                self.best, confirmation_signal = self._update_best(fittest(records), has_stop_signal=bool(stop_signal))
                stop_signal = stop_signal or confirmation_signal
            self._report(records, self.best.record)
            self.progress.outcome = self._outcome(stop_signal, self.best.record)
            if not stop_signal and self._is_weights_entry_due():
                self._save_weights_entry()
            if self.progress.outcome:
                break
            stop_signal = self._advance_generation()
            if not stop_signal:
                self._checkpoint()
        return self._finish(stop_signal)

    def _start(self) -> int:
        """Record the initial members; in a resumed run that had ended, carry out the evolution that is still due."""
        stop_signal = 0
        self._set_checkpoint_distance()
        if self.progress.generation == 0:
            self.progress.updates_before = self.members.start_counting_updates()
            self._warn_if_no_update()
            self._record_initial_members()
            if self.training_args.history:
                self._save_weights_entry()
        elif not self.progress.evolved:
            self._reset_envs()
            stop_signal = self._advance_generation()
            self.progress.saved_at = self.steps
            if not stop_signal:
                self._rebalance()
        self._reset_envs()
        return stop_signal

    def _finish(self, stop_signal: int) -> RunResult:
        """Save the run, report its summary and return its result."""
        self._save(last=True, is_complete=not stop_signal)
        manager, best = self.checkpoint_manager, self._known_best()
        summary = self._summary(best, resumes=bool(stop_signal))
        if summary.resume and not manager.saved_generation and manager.checkpoints is not None:
            same = "with the same result"
            if self.context.record.steps_before:
                same = "for which it needs the members as they were before it, since these had been trained"
            reason, advice = "the run has no checkpoint, since none could be written", ""
            if stop_signal and not self.progress.saved_at:
                distance = f"{self.checkpoint_every} env steps of each member"
                reason = f"the run ended before its first checkpoint, which is due after {distance}"
                advice = ". A smaller training.checkpoint comes earlier; population/ has the members as they are now"
            self.callbacks.on_warning(f"{reason}: resume starts it from the beginning, {same}{advice}")
        self.callbacks.on_run_end(self.context, summary)
        population = self.members.gather_all()
        population.fitness, population.outcome = list(self.fitness), summary.reason
        population.best_of_run = self.members.broadcast_agents(best.rank, [best.agent])[0]
        signal_number = 0 if stop_signal == BY_CALLBACK else stop_signal
        return RunResult(population, list(self.fitness), summary, signal_number, manager.failures)

    # -- training

    def _warn_if_no_update(self) -> None:
        """Warn if a member's rollout is longer than a generation, or than all steps until a reset; collective."""
        args, envs = self.training_args, self.members.first.num_envs
        total = max(1, args.vector_steps(envs))
        generation = min(args.generation_steps(envs) // envs, total)
        own = [
            [int(agent.rollout_steps), next(iter(agent.learners.values())).rollout_setting, agent.index]
            for agent in self.population
        ]
        everyone = [one for members in self.members.process_group.all_gather(own) for one in members]
        rollout_steps, setting, index = max(everyone, key=lambda one: one[0])
        if rollout_steps <= generation:
            return
        until_checkpoint = -(-self.checkpoint_every // (generation * envs)) * generation
        uninterrupted = min(total, generation if self._evaluates_in_training_env else until_checkpoint)
        if rollout_steps <= uninterrupted:
            self.callbacks.on_warning(
                f"evo_steps={args.evo_steps} is less than {setting} of member {index}: it will be "
                f"evaluated after generations without an update{_discarding_mutations(self.explorer)}"
            )
            return
        reason, allowed = self._reset_reason()
        if uninterrupted == total:
            reason = f"the run ends (max_steps={args.max_steps}, num_envs={envs})"
            allowed = "a larger max_steps"
        self.callbacks.on_warning(
            f"{setting} of member {index} is more than the {uninterrupted * envs} env steps after which "
            f"{reason}: it will never learn; allowed is {allowed}, or a smaller {setting.partition('=')[0]}"
        )
        self._warned_of_resets = True

    @property
    def _evaluates_in_training_env(self) -> bool:
        return self.evaluator.env.env is self.collector.env.env

    def _reset_reason(self) -> tuple[str, str]:
        """Return what resets the envs, as part of a warning, and what to set for a later reset."""
        if self._evaluates_in_training_env:
            return "the evaluation resets the env, which it shares with training", "an eval_env of its own"
        return f"checkpoint={self.checkpoint_every} resets the envs", "a larger checkpoint"

    def _warn_if_reset_too_early(self) -> None:
        """Warn if the first reset of the envs comes before any update, as the next ones then will; collective."""
        if self._has_reset or self.population.keeps_experience:
            return
        self._has_reset = True
        if self.members.most_updates() == 0 and not self._warned_of_resets:
            reason, allowed = self._reset_reason()
            self.callbacks.on_warning(
                f"no member has learned in {self.steps} env steps, after which {reason}: what members have collected "
                f"is discarded each time, so none will ever learn; allowed is {allowed}, or shorter episodes"
            )

    def _record_initial_members(self) -> None:
        self.evaluator.init_opponent_pool(self.members)
        own = [initial_member(slot, agent) for slot, agent in self.members.local_members().items()]
        self._record_offspring(
            self.members.all_gather_by_slot(own, encode=OffspringRecord.to_json, decode=OffspringRecord.from_json)
        )

    def _train(self) -> None:
        """Train all members for a generation, or until a stop is requested."""
        progress, collector = self.progress, self.collector
        self._generation_started, self._steps_before = perf_counter(), self.steps
        self._total_before = self.total_steps
        progress.generation += 1
        progress.evolved = False
        self._update_context()
        self._set_progress(range(len(self.population)))
        self.metrics = {slot: [] for slot in self.members.shard.slots}
        self.updates = None if self.updates is None else {slot: [] for slot in self.members.shard.slots}
        self.replacements, self.unreplaced = [], set()
        self._sample_opponents()
        envs = self.members.first.num_envs
        vector_steps_of_all = self.training_args.generation_steps(envs) // envs * self.initial_size
        length = -(-vector_steps_of_all // self.members.size)  # the steps of removed members are shared, rounded up
        last = progress.ticks + max(1, min(length, self._vector_steps_left()))
        while progress.ticks < last and not self._replicas_stop():
            vector_steps = min(collector.vector_steps_until_update, last - progress.ticks)
            progress.ticks += collector.collect(vector_steps, should_stop=self._after_step)
            self._set_progress(collector.due())
            if reports := collector.learn():
                self._record_update(dict(reports))
        for agent in self.population:
            agent.steps.append(agent.steps[-1] + self.steps - self._steps_before)

    def _sample_opponents(self) -> None:
        """Choose each member's opponents in this generation."""
        kind, progress = self.training_args.opponents, self.progress
        if kind != "self":
            pool = self.evaluator.opponent_pool
            opponents = self.env_setup.sample_opponents(
                kind, self.members, pool, progress.generation, self.initial_size
            )
            self.collector.set_opponents(opponents, progress.generation, everywhere=kind in OF_SCRIPTS)

    def _after_step(self) -> bool:
        """Call the callbacks after a vector step; return whether a stop is requested."""
        if self._calls_on_step:
            self.context.env_steps += self.members.first.num_envs * self.members.size
            self.callbacks.on_step(self.context)
        return self.population.gradient_sync.num_ranks == 1 and self._stop_requested()

    def _replicas_stop(self) -> bool:
        """Return whether to stop training; replicas of a member stop at the same step, because they learn together."""
        stop, group = self._stop_requested(), self.population.gradient_sync
        return stop if group.num_ranks == 1 else bool(group.all_reduce_(torch.tensor([float(stop)])).item())

    def _set_progress(self, places: Iterable[int]) -> None:
        """Set some members' progress to that at the beginning of their next update's rollout, and the run's schedules.

        Agents that were loaded or received from another process have neither, and clones have no schedules. Between
        its updates, the progress of a member is constant: exploration would else depend on the updates of others.
        """
        envs, size = self.members.first.num_envs, self.members.size
        for agent in (self.population[place] for place in places):
            vector_steps = max(0, self.progress.ticks - agent.rollout_steps) * size + self.progress.ticks_of_removed
            agent.progress = vector_steps * envs / (self.schedule_steps * self.initial_size)
            agent.run_schedules = self.run_schedules
            for learner in agent.learners.values():
                learner.max_steps = self.schedule_steps

    def _record_update(self, reports: Mapping[int, TensorDict]) -> None:
        """Record the metrics of an update of some members, replace those that diverged, and call the callbacks."""
        slots = self.members.shard.slots
        metrics = {
            slots[place]: metrics_of(agent := self.population[place], report, reported_metrics(agent))
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
            names = (*reported_metrics(agent), *agent.group_class.details)
            record = UpdateRecord(
                slot=slot,
                uid=agent.index,
                number=max(learner.updates for learner in agent.trained_learners.values()),
                env_steps=self.steps,
                train_return=train_return,
                metrics=metrics_of(agent, report, names),
            )
            updates[slot].append(record)

    def _replace_diverged(self, diverged: Sequence[int]) -> None:
        """Replace members whose loss or weights are not finite by clones of the best members of this process."""
        slots, size = self.members.shard.slots, self.members.size
        if len(diverged) == len(slots) < size:  # `_evolve` fills their slots with offspring from other processes
            for place in diverged:
                for group, learner in self.population[place].learners.items():
                    if self.collector.groups[group].learns:
                        learner.reinitialize()
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
        """Exchange replacements with the other processes; return the signal that stops the run, 0 if none does.

        Raises:
            PopulationDivergedError: all members have diverged, each alone on its process.
        """
        own = {
            "replacements": [one.to_json() for one in self.replacements],
            "unreplaced": [*self.unreplaced],
        }
        gathered = self.members.process_group.all_gather(own)
        self.unreplaced = {slot for data in gathered for slot in data["unreplaced"]}
        if len(self.unreplaced) == self.members.size:
            raise PopulationDivergedError(ALL_DIVERGED)
        offspring = [OffspringRecord.from_json(one) for data in gathered for one in data["replacements"]]
        if self.fitness:
            scores = dict(zip(self.uids, self.fitness, strict=True))
            for one in offspring:  # the fitness of the weights that a replaced member has trained from
                scores[one.uid] = self.fitness[one.slot] = scores[one.parent_uid]
        self._record_offspring(offspring)
        self.progress.next_uid = max(self.progress.next_uid, *(one.uid + 1 for one in offspring), 0)
        self._stop_requested()  # by a callback since the last step: in on_update, or in on_offspring just now
        return first_signal(self.members.process_group.all_gather(self.stop_requests.stop_signal))

    def _outcome(self, stop_signal: int, best: BestRecord) -> str:
        """Return why the run ends after this generation; "" if it does not."""
        reason = CALLBACK_FAILED if self.callbacks.failure is not None else self.context.stop_reason
        reason = self.members.process_group.broadcast(reason)
        if stop_signal not in (0, BY_CALLBACK):
            return INTERRUPTED
        if not stop_signal:
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
            return INTERRUPTED if stop_signal else ""
        return f"{STOPPED}: {reason:.200}" if reason else STOPPED

    def _updates_reached(self) -> bool:
        """Return whether a member of any process has made `max_updates` updates; collective if there is a limit."""
        limit = self.training_args.max_updates
        return limit is not None and self.members.most_updates() >= limit

    def _seconds_reached(self) -> bool:
        """Return whether the main process has run for `max_seconds`; collective if there is a limit."""
        limit = self.training_args.max_seconds
        return limit is not None and self._main_seconds() >= limit

    # -- evolution

    def _advance_generation(self) -> int:
        """Update the opponent pool and evolve the population; return the signal that stopped the games, 0 if none."""
        stop_signal = self._update_opponents()
        if stop_signal:
            self.progress.outcome = INTERRUPTED
        else:
            self._return_best_agent()
            self._remove_members()
            self._evolve()
        return stop_signal

    def _update_opponents(self) -> int:
        """Add the best member to the opponent pool; return the signal that stopped its games, 0 if none did."""
        slot = max(range(self.members.size), key=lambda slot: (sortable_fitness(self.fitness[slot]), -slot))
        if not math.isfinite(self.fitness[slot]):
            return 0
        with self.timer("evaluate"):
            steps, stop_signal = self.evaluator.update_opponent_pool(
                self.members, slot, self.progress.generation, self._evaluate_until_stopped
            )
        self.progress.evaluation_steps += steps
        return stop_signal

    def _return_best_agent(self) -> None:
        """Replace the member that the selection strategy names, if any, by a clone of the best agent of the run.

        The clone has the fitness and the returns of the best agent on the seeds of this generation.
        """
        selection, members, best = self.selection, self.members, self._known_best()
        if selection is None or type(selection).slot_for_best is Selection.slot_for_best:
            return
        if self.population.keeps_experience:
            return
        view = self._population_view(members.member_infos())
        row = selection.slot_for_best(view)
        if row is None:
            return
        check_slot_for_best(row, view, selection)
        with self.timer("evolve"):
            (parent,) = members.broadcast_agents(best.rank, [best.agent])
            planned = clone_of_best(
                row,
                best.record.uid,
                parent.genome,
                parent.hp_config,
                view=view,
                explorer=self.explorer,
                seed=members.first.seed,
                uid=self.progress.next_uid,
                repair=self.population.repair,
                check=self.population.check_hyperparameters,
            )
            clone, mutations = parent.make_offspring(planned)
            offspring, slot = replace(planned, genome=clone.genome, mutations=mutations), planned.slot
            evaluated = summarise_episodes(self.search.best_returns, self.evaluator.instances, self.evaluator.aggregate)
            clone.fitness.append(evaluated.mean)
            clone.scores.append(math.nan)
            clone.steps.append(clone.steps[-1])
            members.put(slot, clone)
            if slot in members.shard.slots:
                self.collector.reset_member(members.shard.slots.index(slot))
            self.progress.next_uid += 1
            self.fitness[slot], self.search.returns[slot] = evaluated.mean, list(self.search.best_returns)
            self.population.fitness = [self.fitness[slot] for slot in members.shard.slots]
            self.unreplaced.discard(slot)
        self.lineage.restore(best.ancestry)
        record = offspring_record(offspring, MemberInfo.of(parent), parent_generation=best.record.generation)
        self._record_offspring([record])

    def _remove_members(self) -> None:
        """Remove the members that the selection strategy names, and make the envs again for the others.

        The env steps that are left are divided among those, so generations get longer, and as many follow as before.
        """
        selection, members = self.selection, self.members
        if selection is None or type(selection).removed is Selection.removed:
            return
        view = self._population_view(members.member_infos())
        removed = check_removed(selection.removed(view), view, selection)
        if not removed or self._remake_envs is None:
            return
        kept = [slot for slot in range(members.size) if slot not in removed]
        with self.timer("evolve"):
            self.progress.removed += len(removed)
            self.progress.ticks_of_removed += len(removed) * self.progress.ticks
            members.keep(kept)
            self.uids, self.fitness = [self.uids[slot] for slot in kept], [self.fitness[slot] for slot in kept]
            self.search.returns = [self.search.returns[slot] for slot in kept]
            self.unreplaced = {place for place, slot in enumerate(kept) if slot in self.unreplaced}
            self.lineage.add((), self.uids)
            before = self.evaluator
            env, self.evaluator = self._remake_envs()
            self.evaluator.opponent_pool, self.evaluator.keeps_pool = before.opponent_pool, before.keeps_pool
            self.collector = self.env_setup.make_collector(members.population, env, self.timer)
            self._reset_envs()
            release_free_memory()

    def _evolve(self) -> None:
        """Replace the members by their offspring; without a selection strategy only those that are still diverged."""
        self.progress.evolved = True
        if self.selection is None and not self.unreplaced:
            return
        members, fitness = self.members, self.fitness
        with self.timer("evolve"):
            self.population.finish_blends()
            infos = members.member_infos()
            offspring = members.evolve(
                self._plan_replacements(infos)
                if self.selection is None
                else self._plan_offspring(self.selection, infos)
            )
            self.progress.next_uid = max(self.progress.next_uid, *(one.uid + 1 for one in offspring))
            for place, slot in enumerate(members.shard.slots):
                if not offspring[slot].survives:
                    self.collector.reset_member(place)
                elif any(change.changes_policy for change in offspring[slot].mutations):
                    self.collector.discard_rollout(place)
            release_free_memory()
        self.fitness = [fitness[one.parent_slot] if one.start is None else math.nan for one in offspring]
        self.population.fitness = [self.fitness[slot] for slot in members.shard.slots]
        reasons = ["" if math.isfinite(score) else f"replaced: fitness is {score}" for score in fitness]
        self._record_offspring(
            [
                offspring_record(one, infos[one.parent_slot], "" if one.survives else reason)
                for one, reason in zip(offspring, reasons, strict=True)
            ]
        )

    def _plan_replacements(self, infos: Sequence[MemberInfo]) -> Sequence[Offspring]:
        """Return the offspring without selection: clones of the best member fill the slots of diverged ones."""
        healthy = [slot for slot in range(self.members.size) if slot not in self.unreplaced]
        best = max(healthy, key=lambda slot: (sortable_fitness(self.fitness[slot]), -infos[slot].uid))
        new_uids = count(self.progress.next_uid)
        found = []
        for slot in range(self.members.size):
            source = slot if slot in healthy else best
            uid = infos[slot].uid if slot in healthy else next(new_uids)
            found.append(
                Offspring(self.progress.generation, slot, uid, infos[source].uid, source, infos[source].genome)
            )
        return found

    def _plan_offspring(self, selection: Selection, infos: Sequence[MemberInfo]) -> Sequence[Offspring]:
        """Return the offspring of the next generation, one per slot, for the members that `infos` describe."""
        planned = next_generation(
            self._population_view(infos),
            [info.hp_config for info in infos],
            selection=selection,
            explorer=self.explorer,
            seed=self.members.first.seed,
            next_uid=self.progress.next_uid,
            repair=self.population.repair,
            check=self.population.check_hyperparameters,
        )
        self._check_equal_plans(selection, planned)
        return planned

    def _check_equal_plans(self, selection: Selection, planned: Sequence[Offspring]) -> None:
        """Raise ConfigurationError unless all processes have planned the same parents; collective."""
        own = [[one.uid, one.parent_slot, one.start is not None] for one in planned]
        for rank, other in enumerate(self.members.process_group.all_gather(own)):
            for slot, (here, there) in enumerate(zip(own, other, strict=True)):
                if here != there:
                    mine = self.members.process_group.rank
                    raise ConfigurationError(
                        f"{type(selection).__name__} fills slot {slot} from slot {here[1]} in process {mine} and from "
                        f"slot {there[1]} in process {rank}; allowed is a plan that depends on view and rng alone, "
                        "because every process makes it, and the main process alone has callbacks"
                    )

    def _population_view(self, infos: Sequence[MemberInfo]) -> PopulationView:
        """Return what the selection strategy reads of the members that `infos` describe."""
        best_returns = self._returns_for_selection(SearchState(returns=[self.search.best_returns]))
        view = self._view_of(infos, self.fitness, self.search, [info.train_return for info in infos])
        return replace(
            view,
            least_members=self._least_members(),
            best_returns=None if best_returns is None else best_returns[0],
        )

    def _least_members(self) -> int:
        """Return the number of members that must stay: one for each process.

        All must stay where their envs cannot be made again, where they keep experience, where several processes share
        one, and where `max_updates` limits each member, so that none can take the env steps of others.
        """
        members, is_limited = self.members, self.training_args.max_updates is not None
        is_fixed = self._remake_envs is None or members.population.keeps_experience or is_limited
        return members.size if is_fixed else min(members.size, members.process_group.size)

    # -- saving

    def _set_checkpoint_distance(self) -> None:
        """Set `checkpoint_every` for the present members; collective."""
        own = max((agent.rollout_steps for agent in self.population), default=0)
        longest = max(map(int, self.members.process_group.all_gather(int(own))))
        self.checkpoint_every = self.training_args.checkpoint_every(longest * self.members.first.num_envs)

    def _checkpoint(self) -> None:
        """Write a checkpoint and reset the envs if one is due; reset them too if the evaluation used the same env."""
        progress = self.progress
        self._set_checkpoint_distance()
        is_due = self.steps - progress.saved_at >= self.checkpoint_every
        if is_due or self._evaluates_in_training_env:
            self._warn_if_reset_too_early()
        if is_due:
            progress.saved_at = self.steps
            self._save(last=False, is_complete=True)
            self._rebalance()
            self._reset_envs()
        elif self._evaluates_in_training_env:
            self._reset_envs()

    def _rebalance(self) -> None:
        """Shard the members again after evolution; the envs must be reset afterwards."""
        if not self.population.keeps_experience:
            self.members.rebalance()

    def _is_weights_entry_due(self) -> bool:
        """Return whether this generation's weights are saved; those of the last generation of a limited run are."""
        args, envs = self.training_args, self.members.first.num_envs
        has_ended = self.progress.outcome in (TARGET_REACHED, UPDATES_REACHED, TIME_OVER) and args.history > 0
        before, now = (total // envs // self.initial_size for total in (self._total_before, self.total_steps))
        if self._vector_steps_left() <= 0:  # after members were removed, the last steps may not be enough for all
            now = max(now, args.vector_steps(envs))
        return has_ended or args.is_weights_entry_due(before, now, envs)

    def _save_weights_entry(self) -> None:
        with self.timer("report"):
            self.checkpoint_manager.save_weights_entry(
                self.progress, self.fitness, max_steps=self.training_args.max_steps
            )

    def _save_best_after_error(self) -> None:
        """Save the best agent, and warn which generations a resumed run repeats.

        The members are not saved: a checkpoint resets the envs, so one that is not due would change the results.
        """
        manager, generation = self.checkpoint_manager, self.progress.generation
        paths = [] if self.best is None else manager.save_best_after_error(self.best)
        if manager.checkpoints is None or generation == 0:
            return
        first = manager.saved_generation + 1
        lost = f"generation {first}" if first >= generation else f"generations {first} to {generation}"
        start = f"the checkpoint of generation {first - 1}" if manager.saved_generation else "the beginning"
        saved = f"{paths[0].name}/ has the best agent so far" if paths else "no best agent was saved"
        self.callbacks.on_warning(
            f"the run broke off in generation {generation}: {saved}, and members are saved in checkpoints alone, which "
            f"are due every {self.checkpoint_every} env steps of each member. A resumed run repeats "
            f"{lost}, from {start}"
        )

    def _save(self, *, last: bool, is_complete: bool) -> None:
        with self.timer("report"):
            self.progress.unreplaced = [] if self.progress.evolved else sorted(self.unreplaced)
            self.progress.tracked = self.context.tracked
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


def _discarding_mutations(explorer: Explorer) -> str:
    """Return the part of a warning that names mutations by which survivors lose the steps of an open rollout."""
    own = [name for name in ("mutate_survivors", "mutate_elite") if getattr(explorer, name)]
    return f", and with {' and '.join(own)} a mutation of its policy discards what it has collected" * bool(own)
