"""The evaluations of a training loop: of all members, of members in doubt again, and the confirmation of the best."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar

import numpy as np

from agilerl_like.algorithms.episode_guard import EvaluationStopped
from agilerl_like.algorithms.evaluation import is_zero_sum
from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm
from agilerl_like.algorithms.population import BasePopulation
from agilerl_like.distributed.signals import first_signal
from agilerl_like.envs.factory import env_config_or_none
from agilerl_like.hpo import PopulationView, Selection, Trial
from agilerl_like.hpo.selection import BASELINE_GENERATION, check_slots, saved_form
from agilerl_like.reporting.records import MemberRecord
from agilerl_like.seeding import Purpose, integers
from agilerl_like.storage.validation import validate_record
from agilerl_like.training.best_agent import (
    CONFIRMATION_EPISODES,
    BestAgent,
    confirmed_record,
    difference_error,
    may_surpass,
    surpasses,
    unconfirmed_record,
)
from agilerl_like.training.checkpoint_manager import SearchState
from agilerl_like.training.evaluator import EvalResult, deciding_returns, seed_effects
from agilerl_like.training.loop_state import LoopState
from agilerl_like.training.sharding import MemberInfo

T = TypeVar("T")

MAX_EVALUATION_ROUNDS = 3
"""Rounds of further evaluation episodes in a generation: at most eight times `eval_loop` episodes of a member."""
EQUAL_RATINGS = 1e-6
"""Ratings that differ by less are equal."""


class LoopEvaluation(LoopState):
    """A training loop's evaluation of its members, and of the best one on fresh episodes."""

    def _evaluate(self) -> tuple[list[MemberRecord], int]:
        """Evaluate all members; return their records, and the signal that stopped the evaluation, 0 if none did."""
        progress, members = self.progress, self.members
        with self.timer("evaluate"):
            result, stop_signal = self._evaluate_members()
            self._score_members(result.fitness)
        records = members.all_gather_by_slot(
            self._records(result),
            encode=asdict,
            decode=lambda data: validate_record(MemberRecord, data, "record"),  # JSON's lists become tuples
        )
        own_returns = result.returns or [[]] * len(members.population)
        self.search.returns = members.all_gather_by_slot(own_returns, encode=list, decode=list)
        self.search.episodes = min(members.process_group.all_gather(result.episodes))
        self._extend_history(records)
        self.fitness = [record.fitness for record in records]
        progress.evaluation_steps += sum(record.evaluation_steps for record in records)
        return records, stop_signal or self._measure_baseline(result)

    def _evaluate_members(self) -> tuple[EvalResult, int]:
        """Return the result of this process's members, with those in doubt, and the signal that stopped it, or 0."""
        generation = self.progress.generation
        seeds = integers(self.training_args.eval_loop, self.members.first.seed, Purpose.EVALUATION_ENVS, generation)
        result, stop_signal = self._evaluate_until_stopped(
            lambda asked: self.evaluator.evaluate(self.population, seeds, generation, should_stop=asked)
        )
        if result is None:
            return _unfinished_result(self.population), stop_signal
        if generation == 1 and self._is_zero_sum(result):
            self.callbacks.on_warning(
                "fitness='return' sums the rewards of all agents, and in this environment that is 0 in every "
                "episode, whatever a member does; fitness='rating' compares members by games"
            )
        return self._evaluate_further(result)

    def _score_members(self, scores: Sequence[float]) -> None:
        """Add the scores of this process's members to their histories; nan for members that have diverged."""
        self.population.fitness = [
            score if _is_finite(agent) and slot not in self.unreplaced else math.nan
            for (slot, agent), score in zip(self.members.local_members().items(), scores, strict=True)
        ]
        train_returns = self.collector.pop_scores()
        for agent, score, train_return in zip(self.population, self.population.fitness, train_returns, strict=True):
            agent.fitness.append(score)
            agent.scores.append(train_return)

    def _extend_history(self, records: Sequence[MemberRecord]) -> None:
        """Add a trial of each member to the history."""
        generation = self.progress.generation
        self.history = self.history.extended(
            _trial(
                record,
                generation,
                fitness_before,
                record.env_steps - self._steps_before,  # a signal stops processes at different steps
                self.lineage.operators(record.uid, generation - 1),
            )
            for record, fitness_before in zip(records, self.fitness or [math.nan] * len(records), strict=True)
        )

    def _is_zero_sum(self, result: EvalResult) -> bool:
        """Whether fitness is the return, and the returns of all members sum to 0 over the agents; collective.

        `result` is that of the members of this process.
        """
        if self.training_args.fitness != "return":
            return False
        gathered = self.members.process_group.all_gather([*result.largest_returns])
        return is_zero_sum(*np.max(gathered, axis=0).tolist())

    def _measure_baseline(self, result: EvalResult) -> int:
        """Play constant policies for a selection that needs their returns; return the signal that stopped it, or 0.

        They are not played where a constant action may be illegal, nor where the fitness of all is 0.
        """
        selection, members = self.selection, self.members
        if selection is None or not selection.needs_baseline or "baseline" in self.search.state:
            return 0
        if self.progress.generation < BASELINE_GENERATION or not any(self.search.returns):
            return 0
        mask = self.evaluator.env.action_mask
        by_agent = mask.values() if isinstance(mask, Mapping) else (mask,)
        has_masks = any(its is not None for its in by_agent)
        # gathered, because the envs of processes may differ
        if any(members.process_group.all_gather(has_masks)) or self._is_zero_sum(result):
            return 0
        seeds = integers(1, members.first.seed, Purpose.EVALUATION_ENVS, self.progress.generation, 1000)
        with self.timer("evaluate"):
            played, stop_signal = self._evaluate_until_stopped(
                lambda asked: self.evaluator.play_constant(self.population, members.shard.slots, seeds, asked)
            )
            own = [[math.nan, 0]] * len(self.population) if played is None else [*zip(*played, strict=True)]
            gathered = members.all_gather_by_slot(own, encode=list, decode=list)
        returns = [score for score, _ in gathered if math.isfinite(score)]
        self.progress.evaluation_steps += sum(steps for _, steps in gathered)
        if returns and not stop_signal:
            self.search.state["baseline"] = [max(returns), max(returns) - min(returns)]
        return stop_signal

    def _evaluate_further(self, result: EvalResult) -> tuple[EvalResult, int]:
        """Return the result after further episodes of the members whose selection is in doubt, and the signal.

        The number of episodes doubles from round to round for those that are still in doubt, within `eval_share`. The
        fitness of all is then compared on equal terms, as if all had played the seeds of the first round.
        """
        if not result.returns:
            return self._separate_equals(result)
        if self.selection is None or type(self.selection).in_doubt is Selection.in_doubt:
            return result, 0
        episodes, infos = self.training_args.eval_loop, self.members.member_infos()
        for turn in range(1, 1 + MAX_EVALUATION_ROUNDS):
            doubtful = self._slots_in_doubt(self.selection, result, episodes, infos)
            if not doubtful:
                break
            own = [place for place, slot in enumerate(self.members.shard.slots) if slot in doubtful]
            more, stop_signal = self._evaluate_some(own, episodes, turn)
            if stop_signal:
                return result, stop_signal
            played = max(self.members.process_group.all_gather(0 if more is None else more.episodes))
            result = result.extended(own, more, played)
            returns = self.members.all_gather_by_slot(result.returns, encode=list, decode=list)
            result = result.on_equal_terms(seed_effects(np.array(returns), result.instances))
            episodes *= 2
        return result, 0

    def _slots_in_doubt(
        self, selection: Selection, result: EvalResult, episodes: int, infos: Sequence[MemberInfo]
    ) -> Sequence[int]:
        """Return the slots whose selection is in doubt, given the result of this process's members; collective.

        There are none if further `episodes` of each would exceed `eval_share`.
        """
        members, args = self.members, self.training_args
        own = zip(result.fitness, result.steps, result.returns, self.collector.scores(), strict=True)
        gathered = members.all_gather_by_slot(own, encode=list, decode=tuple)
        fitness, steps, returns, train_returns = zip(*gathered, strict=True)
        if not np.isfinite(fitness).any():
            return ()
        search = SearchState(returns=list(returns), episodes=result.episodes)
        view = self._view_of(infos, fitness, search, train_returns)
        doubtful = check_slots(f"{type(selection).__name__}.in_doubt", selection.in_doubt(view), members.size)
        # a seed is played on each instance, on each kind of env, and from each side where those are apart
        played = episodes * (result.episodes / args.eval_loop)
        cost = sum(played * steps[slot] / max(1, np.isfinite(returns[slot]).sum()) for slot in doubtful)
        # a signal stops processes at different steps, and all must choose the same slots
        trained = min(members.process_group.all_gather(self.steps - self._steps_before))
        allowed = args.eval_share * trained * members.size
        return doubtful if sum(steps) + cost <= allowed else ()

    def _view_of(
        self,
        infos: Sequence[MemberInfo],
        fitness: Sequence[float],
        search: SearchState,
        train_returns: Sequence[float],
    ) -> PopulationView:
        """Return what a selection strategy reads of all members; `search` has the returns of their evaluation."""
        return PopulationView(
            np.array(fitness),
            [info.uid for info in infos],
            [info.genome for info in infos],
            self.progress.generation,
            self.history,
            returns=self._returns_for_selection(search),
            generations=self._expected_generations(),
            hp_configs=[info.hp_config for info in infos],
            train_returns=self._train_returns_for_selection(train_returns),
            state=self._selection_state(),
            trained_before=self.progress.updates_before > 0,
        )

    def _selection_state(self) -> dict[str, Any]:
        """Return the state that the selection strategy reads and writes, in the form that a checkpoint returns."""
        self.search.state = saved_form(self.search.state)
        return self.search.state

    def _returns_for_selection(self, search: SearchState) -> np.ndarray | None:
        """Return the returns `[P, K]` that the members' fitness is the mean of; None if it is not a mean return."""
        instances, aggregate = self.evaluator.instances, self.evaluator.aggregate
        return deciding_returns(search.paired_returns(), instances, aggregate, search.episodes)

    def _train_returns_for_selection(self, train_returns: Sequence[float]) -> np.ndarray | None:
        """Return the members' training returns; None where fitness is another measure, so that they do not compare."""
        config, evaluator = env_config_or_none(self.env_setup.vec_env), self.evaluator
        is_wrapped = config is not None and len(config.training_wrappers) > 0
        args = self.training_args  # where members play opponents, the evaluation has other games than training
        is_return = args.fitness == "return" and args.opponents == "self" and not is_wrapped
        is_mean = evaluator.aggregate == "mean" or evaluator.instances == 1
        is_comparable = is_return and is_mean and self._evaluates_training_episodes
        return np.array(train_returns) if is_comparable else None

    def _separate_equals(self, result: EvalResult) -> tuple[EvalResult, int]:
        """Return the ratings after further games of the members whose ratings are equal, and the signal.

        They play at most `MAX_EVALUATION_ROUNDS` rounds of as many games as before, on other seeds.
        """
        members = self.members
        for turn in range(1, 1 + MAX_EVALUATION_ROUNDS):
            ratings = np.array(members.all_gather_by_slot(result.fitness, encode=float, decode=float))
            equal = [slot for slot, one in enumerate(ratings) if (np.abs(ratings - one) < EQUAL_RATINGS).sum() > 1]
            if self.selection is None or not equal:
                break
            own = [place for place, slot in enumerate(members.shard.slots) if slot in equal]
            more, stop_signal = self._evaluate_some(own, self.training_args.eval_loop, turn)
            if stop_signal:
                return result, stop_signal
            result = result if more is None else result.averaged(own, more)
        return result, 0

    def _evaluate_some(self, places: Sequence[int], episodes: int, turn: int) -> tuple[EvalResult | None, int]:
        """Evaluate some members on this generation's seeds of a further round; return the result and the signal."""
        generation = self.progress.generation
        seeds = integers(episodes, self.members.first.seed, Purpose.EVALUATION_ENVS, generation, turn)
        return self._evaluate_until_stopped(
            lambda asked: self.evaluator.evaluate_some(self.population, places, seeds, generation, should_stop=asked)
        )

    def _evaluate_until_stopped(self, evaluate: Callable[[Callable[[], bool]], T | None]) -> tuple[T | None, int]:
        """Evaluate on this process; if a signal stops any process, return None and the signal."""
        requests = self.stop_requests
        result, stop_signal = None, 0
        try:
            result = evaluate(lambda: requests.asked)
        except EvaluationStopped:
            stop_signal = requests.stop_signal
        stop_signal = first_signal(self.members.process_group.all_gather(stop_signal))
        return None if stop_signal else result, stop_signal

    def _update_best(self, candidate: MemberRecord, *, has_stop_signal: bool) -> tuple[BestAgent, int]:
        """Return the best agent so far, and the signal that stopped the confirmation, 0 if none did.

        It is the fittest member of this generation if its mean on fresh episodes is higher than that of the previous
        best, which plays the same ones; otherwise the previous best, whose fitness is then their mean. A run that was
        stopped plays no fresh episodes. Where fitness depends on the opponents, the previous best is evaluated in each
        generation, because its fitness was measured against other opponents.
        """
        best, target = self.best, self.training_args.target
        self.search.best_returns = []
        fresh_of_best, stop_signal, error = None, 0, math.nan
        has_confirmation = not has_stop_signal and math.isfinite(candidate.fitness)
        if best is not None and has_confirmation and self.evaluator.is_relative:
            best, fresh_of_best, stop_signal = self._measured_again(best)
        leads = best is None or (not stop_signal and may_surpass(candidate, best.record, target))
        if best is not None and not leads and has_confirmation and not stop_signal:
            leads, stop_signal = self._leads_on_equal_seeds(candidate, best)
        if best is not None and not leads:
            return best, stop_signal
        found = unconfirmed_record(candidate, self.progress.generation)
        owner_rank, agent = self.members.owner_rank(candidate.slot), self.members.local_members().get(candidate.slot)
        if has_confirmation:
            fresh, stop_signal = self._confirm(agent)
            is_compared = best is not None and best.record.is_confirmed
            if best is not None and is_compared and fresh is not None and fresh_of_best is None:
                best, fresh_of_best, stop_signal = self._measured_again(best)
            if fresh is not None and (fresh_of_best is not None or not is_compared):
                found = confirmed_record(candidate, self.progress.generation, fresh)
                error = math.nan if fresh_of_best is None else difference_error(fresh, fresh_of_best)
        if best is not None and not surpasses(found, best.record, target, error):
            return best, stop_signal
        if agent is not None:
            agent = agent.clone()
            agent.fitness[-1] = found.fitness
        self.search.best_returns = []  # they were those of the previous best agent
        return BestAgent(found, self.lineage.ancestry(candidate.uid), owner_rank, agent), stop_signal

    def _leads_on_equal_seeds(self, candidate: MemberRecord, best: BestAgent) -> tuple[bool, int]:
        """Return whether a member leads the best agent in this generation's evaluation, and the signal that stopped it.

        The best agent plays the same seeds for it, unless it has just been measured against the same opponents. Of a
        shared env it has all rows, and plays whole sets of those that differ; the further seeds do not count.
        """
        if self.evaluator.is_relative:
            return False, 0
        played, stop_signal = self._play(best.agent, self.training_args.eval_loop, Purpose.EVALUATION_ENVS)
        if played is None:
            return False, stop_signal
        of_best = played.first(self.search.episodes)
        of_member = played._replace(returns=[self.search.returns[candidate.slot]]).first(self.search.episodes)
        self.search.best_returns = of_best.returns[0]
        error = difference_error(of_member, of_best)
        return of_member.fitness[0] - of_best.fitness[0] > (error if math.isfinite(error) else 0.0), 0

    def _measured_again(self, best: BestAgent) -> tuple[BestAgent, EvalResult | None, int]:
        """Return the best agent with its fitness on this generation's fresh episodes, their result, and the signal."""
        fresh, stop_signal = self._confirm(best.agent)
        if fresh is None:
            return best, None, stop_signal
        record = confirmed_record(best.record, best.record.generation, fresh)
        if not record.is_confirmed:  # its episodes were lost
            return best, None, stop_signal
        if best.agent is not None:
            best.agent.fitness[-1] = record.fitness
        return replace(best, record=record), fresh, stop_signal

    def _confirm(self, player: EvolvableAlgorithm | None) -> tuple[EvalResult | None, int]:
        """Evaluate an agent on fresh episodes; see `_play`."""
        episodes = max(self.training_args.eval_loop, CONFIRMATION_EPISODES)
        return self._play(player, episodes, Purpose.CONFIRMATION_ENVS)

    def _play(
        self, player: EvolvableAlgorithm | None, episodes: int, purpose: Purpose
    ) -> tuple[EvalResult | None, int]:
        """Evaluate an agent on the process that has it, where the others pass None.

        All processes return the result, None if a signal stopped the evaluation, and the signal. The seeds are those of
        `purpose` in this generation.
        """
        members, generation = self.members, self.progress.generation
        with self.timer("evaluate"):
            seeds = integers(episodes, members.first.seed, purpose, generation)
            own, stop_signal = self._evaluate_until_stopped(
                lambda asked: player and self.evaluator.evaluate(player, seeds, generation, should_stop=asked)
            )
            found = next(filter(None, members.process_group.all_gather(None if own is None else list(own))), None)
        if found is None:
            return None, stop_signal
        result = EvalResult(*found)
        self.progress.evaluation_steps += sum(result.steps)
        return result, stop_signal


def _unfinished_result(population: BasePopulation) -> EvalResult:
    """Return the result of an evaluation that was stopped: the last fitness of each member, nan if it has none."""
    members = len(population)
    unknown = [math.nan] * members
    last = [agent.fitness[-1] if agent.fitness else math.nan for agent in population]
    return EvalResult(last, unknown, unknown, 0, [0] * members)


def _trial(record: MemberRecord, generation: int, fitness_before: float, env_steps: int, operators: str) -> Trial:
    """Return the history's entry for a member in one generation."""
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
        standard_error=record.standard_error,
    )


def _is_finite(agent: EvolvableAlgorithm) -> bool:
    """Whether all weights and statistics are finite."""
    return all(learner.is_finite for learner in agent.learners.values())
