"""Computes fitness, which selection compares: the mean return without exploration, on equal seeds for all members."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from agilerl_like.algorithms.constant_policies import constant_policies
from agilerl_like.algorithms.episode_guard import never_stop
from agilerl_like.algorithms.episode_summary import (
    Summary,
    deciding_instances,
    each_instance,
    summarise_episodes,
    summarise_instances,
)
from agilerl_like.algorithms.evaluation import Episodes, evaluate
from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm
from agilerl_like.algorithms.population import BasePopulation
from agilerl_like.envs.distinct_envs import num_distinct_envs, num_instances
from agilerl_like.envs.factory import env_config_or_none
from agilerl_like.errors import EnvStepError, short_repr, unknown_name
from agilerl_like.seeding import Purpose, generator
from agilerl_like.training.sharding import ShardedPopulation
from agilerl_like.training.training_arguments import INFO

INITIAL_RATING = 1000.0
"""Rating of the first opponent, a copy of the untrained first member."""
POOL_SIZE = 16
"""Largest number of opponents in the pool."""


class EvalResult(NamedTuple):
    """The evaluation of P members."""

    fitness: list[float]
    spread: list[float]
    """Standard deviation of each member's returns; of a rating, its standard error."""
    errors: list[float]
    """Standard error of each fitness; nan with fewer than two episodes."""
    episodes: int
    """Episodes of each member."""
    steps: list[int]
    """Env steps of each member's evaluation."""
    returns: Sequence[list[float]] = ()
    """Returns of each member's episodes, in the order of the seeds, which are the same for all; nan where an episode
    was lost, or a member did not play a seed. Empty if fitness is not a mean over episodes; if it is info.NAME, these
    are the infos."""
    largest_returns: tuple[float, float] = (math.nan, math.nan)
    """Those of the `Episodes`; nan if fitness is a rating, or only the returns of a side of a game count."""
    instances: int = 1
    """Instances of the env; episode i of a member is of instance i modulo their number."""
    aggregate: str = "mean"
    """How the means on the instances give the fitness."""
    episode_measures: Mapping[str, list[list[float]]] | None = None
    """Further numbers of each member's episodes by name; nan where an episode has none."""
    further_episodes: Sequence[int] = ()
    """Episodes of each member in further rounds of a rating; empty without any."""

    @property
    def measures(self) -> dict[str, list[float]]:
        """The mean of each of `episode_measures` over a member's episodes, by name; nan without a number."""
        measured = self.episode_measures or {}
        return {name: [summarise_episodes(episodes).mean for episodes in members] for name, members in measured.items()}

    @property
    def episodes_by_member(self) -> list[int]:
        """The number of each member's episodes, without those that were lost if the returns are known."""
        if self.returns:
            return [int(np.isfinite(its).sum()) for its in self.returns]
        return [self.episodes + further for further in self.further_episodes or [0] * len(self.fitness)]

    def averaged(self, places: Sequence[int], more: EvalResult) -> EvalResult:
        """Return the ratings after further games of the members at `places`, averaged by the inverse variances."""
        fitness, errors, steps = list(self.fitness), list(self.errors), list(self.steps)
        further = list(self.further_episodes or [0] * len(fitness))
        for place, rating, error, its_steps in zip(places, more.fitness, more.errors, more.steps, strict=True):
            steps[place] += its_steps
            further[place] += more.episodes
            if math.isinf(error):  # no game was new
                continue
            weight = errors[place] ** -2, error**-2
            fitness[place] = (fitness[place] * weight[0] + rating * weight[1]) / sum(weight)
            errors[place] = sum(weight) ** -0.5
        return self._replace(fitness=fitness, spread=list(errors), errors=errors, steps=steps, further_episodes=further)

    def of(self, places: Sequence[int]) -> EvalResult:
        """Return the result of some members."""
        return EvalResult(
            [self.fitness[place] for place in places],
            [self.spread[place] for place in places],
            [self.errors[place] for place in places],
            self.episodes,
            [self.steps[place] for place in places],
            [self.returns[place] for place in places if self.returns],
            self.largest_returns,
            self.instances,
            self.aggregate,
            {name: [values[place] for place in places] for name, values in (self.episode_measures or {}).items()},
            [self.further_episodes[place] for place in places if self.further_episodes],
        )

    def first(self, episodes: int) -> EvalResult:
        """Return the result of the first `episodes` of each member."""
        returns = [its[:episodes] for its in self.returns]
        found = [summarise_episodes(its, self.instances, self.aggregate) for its in returns]
        fitness, spread, errors = ([getattr(one, name) for one in found] for name in Summary._fields)
        return self._replace(fitness=fitness, spread=spread, errors=errors, episodes=episodes, returns=returns)

    def extended(self, places: Sequence[int], more: EvalResult | None, episodes: int) -> EvalResult:
        """Return the result after further `episodes` of the members at `places`, whose result is `more`.

        The others have not played these seeds, so nan fills their columns.
        """
        spread, errors, steps = list(self.spread), list(self.errors), list(self.steps)
        returns = [[*its, *[math.nan] * episodes] for its in self.returns]
        measures = {name: list(values) for name, values in (self.episode_measures or {}).items()}
        further = {} if more is None else more.episode_measures or {}
        played = [] if more is None else zip(places, more.returns, more.steps, strict=True)
        for number, (place, its_returns, its_steps) in enumerate(played):
            for name, values in further.items():
                measures[name][place] = [*measures[name][place], *values[number]]
            returns[place][-episodes:] = its_returns
            found = summarise_episodes(returns[place], self.instances, self.aggregate)
            spread[place], errors[place] = found.spread, found.error
            steps[place] += its_steps
        return self._replace(spread=spread, errors=errors, steps=steps, returns=returns, episode_measures=measures)

    def on_equal_terms(self, effects: np.ndarray) -> EvalResult:
        """Return the result with the fitness that members would have if all seeds were equally difficult.

        `effects` `[K]` are those of the seeds on returns. Without that, members that played further seeds could not be
        compared with those that did not. Spread and errors are those of the returns on the instances that decide.
        """
        equal = without_effects(np.array(self.returns), effects, self.episodes, self.instances).tolist()
        if self.aggregate == "mean" or self.instances == 1:
            return self._replace(fitness=[summarise_episodes(its).mean for its in equal])
        found = []
        for own, its in zip(self.returns, equal, strict=True):
            noise = each_instance(own, self.instances)
            means = [one.mean for one in each_instance(its, self.instances)]
            by_instance = [one._replace(mean=mean) for one, mean in zip(noise, means, strict=True)]
            found.append(summarise_instances(by_instance, self.aggregate))
        fitness, spread, errors = ([getattr(one, name) for one in found] for name in Summary._fields)
        return self._replace(fitness=fitness, spread=spread, errors=errors)


def seed_effects(returns: np.ndarray, instances: int = 1) -> np.ndarray:
    """Return how much each env seed raises the returns `[P, K]`, nan where a member did not play it.

    The least-squares fit of return = member + seed: a seed's effect is found from the members that played it, and each
    of these from all the seeds that it played; nan for a seed without any return. Column i is of instance i modulo
    `instances`. Each instance has a fit of its own, because a member may be strong on one and weak on another.
    """
    if instances > 1:
        effects = np.empty(returns.shape[1])
        for i in range(instances):
            effects[i::instances] = seed_effects(returns[:, i::instances])
        return effects
    members, seeds = returns.shape
    played = np.isfinite(returns)
    rows, columns = np.nonzero(played)
    design = np.zeros((len(rows), members + seeds))
    design[np.arange(len(rows)), rows] = 1
    design[np.arange(len(rows)), members + columns] = 1
    effects = np.linalg.lstsq(design, returns[played], rcond=None)[0][members:]
    return np.where(played.any(axis=0), effects, np.nan)


def without_effects(returns: np.ndarray, effects: np.ndarray, episodes: int, instances: int) -> np.ndarray:
    """Return the returns `[P, K]` as if all seeds were as difficult as the first `episodes`, which all members played.

    `effects` are those of `seed_effects`; the mean difficulty of each instance stays.
    """
    first = np.nanmean(effects[:episodes].reshape(-1, instances), axis=0)
    return returns - (effects - np.resize(first, len(effects)))


def deciding_returns(
    returns: np.ndarray | None, instances: int, aggregate: str, episodes: int = 0
) -> np.ndarray | None:
    """Return the returns `[P, K]` whose mean is the fitness, with nan for those on other instances.

    The noise of a fitness is that of these episodes alone. If only the first `episodes` were played by all members,
    the instances that decide are found as if all seeds were equally difficult, as the fitness is; 0: all of them were.
    """
    if returns is None or aggregate == "mean" or instances == 1:
        return returns
    equal = returns
    if 0 < episodes < returns.shape[1]:
        equal = without_effects(returns, seed_effects(returns, instances), episodes, instances)
    found = np.full_like(returns, np.nan)
    for own, every, its in zip(found, returns, equal, strict=True):
        means = [one.mean for one in each_instance(its.tolist(), instances)]
        for i in deciding_instances(means, aggregate):
            own[i::instances] = every[i::instances]
    return found


def _numbers(played: Episodes, key: str) -> np.ndarray:
    """Return the values `[P, K]` of a key in the infos of the episodes' last steps; nan where it is missing."""
    if played.infos is None:
        return np.full(played.returns.shape, np.nan)
    found = np.array([[_number(info, key) for info in its] for its in played.infos], np.float64)
    return np.where(played.lost, np.nan, found)


def _entry(info: Any, key: str) -> Any:
    """Return an entry of an info; None if it is missing."""
    for part in (key,) if isinstance(info, Mapping) and key in info else key.split("."):
        info = info.get(part) if isinstance(info, Mapping) else None
    return info


def _number(info: Any, key: str) -> float:
    found = _entry(info, key)
    try:
        if found is None:
            return math.nan
        return float(found.item() if hasattr(found, "item") else np.asarray(found).item())  # a tensor may be on a GPU
    except (TypeError, ValueError, RuntimeError) as fault:
        raise EnvStepError(f"info_keys: info[{key!r}]={found!r:.100} is not a number") from fault


def _check_is_found(played: Episodes, key: str) -> None:
    """Raise EnvStepError unless each episode that was not lost has the info that is the fitness.

    The mean over the others would leave out episodes by their outcome, such as those that did not reach the goal.
    """
    infos = [] if played.infos is None else [*played.infos[~played.lost]]
    if lacking := [info for info in infos if _entry(info, key) is None]:
        names = sorted({str(name) for info in lacking if isinstance(info, Mapping) for name in info})
        raise EnvStepError(
            f"info_keys: info[{key!r}], which is the fitness, is missing in {len(lacking)} of {len(infos)} episodes, "
            f"such as those that the time limit or eval_steps cuts; their last infos have {short_repr(names)}; allowed "
            "is an info that every last step has"
        )


class Opponent(NamedTuple):
    """An agent of an earlier generation that members are rated against."""

    player: Any
    rating: float
    generation: int
    games: Sequence[Sequence[float]] = ()
    """One entry for each opponent that this agent was rated against: that opponent's generation, the score against it,
    and the number of games."""


class PoolUpdate(NamedTuple):
    """The cost of adding an opponent to the pool."""

    steps: int
    """Env steps of its games."""
    stop_signal: int
    """The signal that stopped the games, in which case no opponent was added; 0 if none did."""


EvaluateLocally = Callable[[Callable[[Callable[[], bool]], Any]], tuple[Any, int]]
"""Takes a function that evaluates on this process, given `should_stop`; returns its result and 0, or None and the
signal that stopped the evaluation on any process."""


class Evaluator:
    """Computes the mean return of members, or with `fitness="info.NAME"` the mean of an info.

    Evaluations raise EnvStepError where an episode's last step lacks that info.

    Raises:
        ConfigurationError: the env's `info_keys` have no such name.
    """

    is_relative = False
    """Whether fitness depends on the opponents of a generation, so that that of another one does not compare."""

    def __init__(self, env: Any, max_steps: int | None, fitness: str = "return") -> None:
        self.env, self.max_steps = env, max_steps
        config = env_config_or_none(env.env)
        self.info_keys = {} if config is None else dict(config.info_keys)
        """Name -> key of the infos that are reported."""
        self.fitness_info = fitness.removeprefix(INFO) if fitness.startswith(INFO) else ""
        """The name of the info that is the fitness; "" if it is the return."""
        if self.fitness_info and self.fitness_info not in self.info_keys:
            raise unknown_name("fitness", fitness, ["return", *(f"{INFO}{name}" for name in self.info_keys)])
        self.instances = num_instances(env.env)
        self.aggregate = "mean" if config is None else config.aggregate
        self.opponent_pool: list[Opponent] = []
        """Agents that members are rated against, and may train against; the same on all processes."""
        self.keeps_pool = False
        """Whether members train against the best of earlier generations."""

    def evaluate(
        self,
        players: EvolvableAlgorithm | BasePopulation,
        seeds: Sequence[int],
        generation: int,
        *,
        should_stop: Callable[[], bool] = never_stop,
    ) -> EvalResult:
        """Evaluate members, or one; raises EvaluationStopped if `should_stop` returns True."""
        played = players.run_episodes(
            self.env, list(seeds), self.max_steps, with_infos=bool(self.info_keys), should_stop=should_stop
        )
        if self.info_keys or self.instances > 1:
            return self._with_measures(played)
        return EvalResult(
            played.mean.tolist(),
            played.std.tolist(),
            played.standard_errors.tolist(),
            played.returns.shape[1],  # at least as many as seeds, because of whole sets of instances
            played.lengths.sum(axis=1).tolist(),
            np.where(played.lost, np.nan, played.returns).tolist(),
            played.largest_returns,
        )

    def play_constant(
        self,
        population: BasePopulation,
        numbers: Sequence[int],
        seeds: Sequence[int],
        should_stop: Callable[[], bool] = never_stop,
    ) -> tuple[list[float], list[int]]:
        """Return fitness and env steps of a constant policy in the place of each member; raises as `evaluate`."""
        has_measures = bool(self.info_keys) or self.instances > 1
        played = evaluate(
            constant_policies(population, numbers).values(),
            self.env,
            seeds,
            members=len(numbers),
            max_steps=self.max_steps,
            with_infos=bool(self.info_keys),
            should_stop=should_stop,
        )
        fitness = self._with_measures(played, may_lack=True).fitness if has_measures else played.mean.tolist()
        return fitness, played.lengths.sum(axis=1).tolist()

    def _with_measures(self, played: Episodes, *, may_lack: bool = False) -> EvalResult:
        """Return the result of envs with instances or infos; `may_lack`: some may lack that of the fitness."""
        returns = np.where(played.lost, np.nan, played.returns)
        infos = {name: _numbers(played, key) for name, key in self.info_keys.items()}
        if self.fitness_info and not may_lack:
            _check_is_found(played, self.info_keys[self.fitness_info])
        scores = infos.get(self.fitness_info, returns)
        found = [summarise_episodes(its.tolist(), self.instances, self.aggregate) for its in scores]
        measures = {f"info/{name}": values for name, values in infos.items()}
        measures |= {"return": returns} if self.fitness_info else {}
        count = self.instances
        measures |= {f"fitness_by_instance/{i}": scores[:, i::count] for i in range(count) if count > 1}
        return EvalResult(
            [one.mean for one in found],
            [one.spread for one in found],
            [one.error for one in found],
            scores.shape[1],
            played.lengths.sum(axis=1).tolist(),
            scores.tolist(),
            played.largest_returns,
            self.instances,
            self.aggregate,
            {name: values.tolist() for name, values in measures.items()},
        )

    def evaluate_some(
        self,
        population: BasePopulation,
        places: Sequence[int],
        seeds: Sequence[int],
        generation: int,
        *,
        should_stop: Callable[[], bool] = never_stop,
    ) -> EvalResult | None:
        """Evaluate some members of a population; None without any. Raises as `evaluate`."""
        if not places:
            return None
        # members have equally many rows, and all kinds of rows, so the first member is repeated until there are enough
        rows, kinds = self.env.num_envs, max(self.instances, num_distinct_envs(self.env.env))
        counts = (n for n in range(len(places), rows + 1) if rows % n == 0 and rows // n % kinds == 0)
        # with per_member each has as many as in `evaluate`, on any number of processes: another may change last bits
        count = len(population) if population[0].per_member else next(counts, len(population))
        chosen = [*places, *[places[0]] * (count - len(places))]
        copies = type(population)([population[place].clone(index=number) for number, place in enumerate(chosen)])
        found = self.evaluate_further(copies, seeds, generation, should_stop=should_stop)
        return found.of(range(len(places)))

    def evaluate_further(
        self,
        players: EvolvableAlgorithm | BasePopulation,
        seeds: Sequence[int],
        generation: int,
        *,
        should_stop: Callable[[], bool] = never_stop,
    ) -> EvalResult:
        """Evaluate members on other seeds than the last `evaluate`; raises as it does."""
        return self.evaluate(players, seeds, generation, should_stop=should_stop)

    def init_opponent_pool(self, members: ShardedPopulation) -> None:
        """Start the opponent pool from the initial members; collective."""
        if self.keeps_pool:
            self.opponent_pool = first_opponent(members)

    def update_opponent_pool(
        self, members: ShardedPopulation, slot: int, generation: int, evaluate: EvaluateLocally
    ) -> PoolUpdate:
        """Add the best member of a generation, in `slot`, to the opponent pool; collective. Games run by `evaluate`."""
        if self.keeps_pool:
            self.opponent_pool = with_opponent(self.opponent_pool, members, slot, generation)
        return PoolUpdate(0, 0)


def first_opponent(members: ShardedPopulation) -> list[Opponent]:
    """Return a pool of one: a copy of the first member; collective."""
    return with_opponent([], members, slot=0, generation=0)


def with_opponent(
    pool: Sequence[Opponent],
    members: ShardedPopulation,
    slot: int,
    generation: int,
    games: Sequence[Sequence[float]] = (),
) -> list[Opponent]:
    """Return the pool with a copy of the member in `slot`; collective. Of a full pool the first and the newest stay."""
    owner_rank = members.owner_rank(slot)
    own = members.local_members()[slot].clone() if owner_rank == members.process_group.rank else None
    player = members.broadcast_agents(owner_rank, [own])[0]
    found = [*pool, Opponent(player, INITIAL_RATING, generation, games)]
    if len(found) > POOL_SIZE:
        removed = generator(members.first.seed, Purpose.OPPONENTS, generation, 1).integers(1, POOL_SIZE)
        del found[int(removed)]
    return found
