"""Opponents in training: frozen teams that control a side of some envs, sampled again in each generation.

With "self" the groups of a team, or the agents of its single group, play each other. With "past" and "population" they
do so in every other env, unless a member has one env alone; in the rest a member controls one side, and an opponent all
others. With a team or a function of the user's, that is the opponent in all envs. The envs with opponents take the
sides in turn, and each generation continues where the last one ended, so that a member plays each side equally often.
Where an env has `instances`, a set of all of them takes the place of one env. Functions by group control these groups,
in all envs, and the members the others. Opponents explore, and learn nothing: their rows are not valid. All members'
opponents act in one batched computation; functions act in one env after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from agilerl_like.algorithms.constant_policies import constant_policies
from agilerl_like.algorithms.episode_guard import never_stop
from agilerl_like.algorithms.evaluation import Episodes, GroupPolicy, eval_mode
from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm, UnsavedState
from agilerl_like.algorithms.ippo import IPPO, MultiAgentPopulation
from agilerl_like.algorithms.population import BasePopulation
from agilerl_like.distributed.process_group import SerializedAgent
from agilerl_like.envs.multi_agent.scripted import ScriptedPolicy, ScriptedRows
from agilerl_like.envs.multi_agent.vec_adapter import MultiAgentVecEnvAdapter
from agilerl_like.errors import ConfigurationError
from agilerl_like.seeding import Purpose, generator
from agilerl_like.training.evaluator import EvalResult, Evaluator, Opponent
from agilerl_like.training.sharding import ShardedPopulation, deserialize
from agilerl_like.training.sides import group_parts, play_sides, player_sides, scripted_agents

NEWEST_SHARE = 0.5
"""Probability that a sampled opponent of the past is the newest."""
FIRST_INDEX = 1_000_000_000
"""Opponents have indices from here on, so that their action noise is not that of members."""
SCRIPTED_DRAWS = 3
"""Key of the streams that functions draw from; 2 is that of sampled opponents."""

Scripts = ScriptedPolicy | Mapping[str, ScriptedPolicy]
"""A function for whichever agents are opponents, or one for each of some groups."""


def sample_opponents(
    kind: str,
    members: ShardedPopulation,
    pool: Sequence[Opponent],
    generation: int,
    initial_size: int,
    team: IPPO | None = None,
) -> MultiAgentPopulation:
    """Return a clone of an opponent for each member of this process; collective.

    `kind` is "past" (of the pool), "population" (another member as it is now) or "team". No two clones of a run, which
    began with `initial_size` members, have the same index, and so the same action noise.
    """
    everyone: Sequence[EvolvableAlgorithm] = list(members.gather_all()) if kind == "population" else ()
    device = members.first.device
    if team is not None and team.device != device:
        moved = deserialize(SerializedAgent(*team.to_documents()), device, UnsavedState.of(team))
        team = cast(IPPO, moved)
    chosen = []
    for slot in members.shard.slots:
        rng = generator(members.first.seed, Purpose.OPPONENTS, generation, 2, slot)
        if kind == "team":
            player = team
        elif kind == "population":
            others = [agent for place, agent in enumerate(everyone) if place != slot] or everyone
            player = others[int(rng.integers(len(others)))]
        else:
            newest = rng.random() < NEWEST_SHARE
            player = pool[-1 if newest else int(rng.integers(len(pool)))].player
        clone = cast(IPPO, player).clone(index=FIRST_INDEX + generation * initial_size + slot)
        clone.set_training_mode(True)
        chosen.append(clone)
    return MultiAgentPopulation(chosen)


def opponent_rows(
    team: IPPO,
    envs: int,
    generation: int,
    *,
    everywhere: bool,
    instances: int = 1,
    columns: slice = slice(None),
) -> dict[str, np.ndarray]:
    """Return which rows of each group `[envs A]` an opponent controls in a generation, the same for all members.

    Env i of a member is of instance i modulo `instances`. All envs of a set of instances have the same side, so that a
    member plays each side of each instance equally often. `columns` are the envs of a member that this process steps,
    of all its `envs`.
    """
    sides, sets = player_sides(team.groups), envs // instances
    rows = {group: np.zeros((sets, instances, len(ids)), np.bool_) for group, ids in team.groups.items()}
    with_opponent = range(sets) if everywhere or sets == 1 else range(1, sets, 2)
    for turn, place in enumerate(with_opponent, start=generation * len(with_opponent)):
        side = sides[turn % len(sides)]
        for group, ids in team.groups.items():
            rows[group][place] = [agent not in side for agent in ids]
    return {group: flags.reshape(envs, -1)[columns].ravel() for group, flags in rows.items()}


def scripted_rows(
    scripts: Scripts, first: IPPO, slots: Sequence[int], generation: int, columns: slice, *, instances: int = 1
) -> tuple[ScriptedRows, dict[str, np.ndarray]]:
    """Return what controls the opponents' agents in a generation, and the rows of each group `[E A]` that it controls.

    `slots` are those of the members of this process, whose envs are the `columns` of each one's; `instances` are as in
    `opponent_rows`.
    """
    agents, count = scripted_agents(scripts, first.groups, first.possible_action_spaces), first.num_envs
    if isinstance(scripts, Mapping):
        envs = len(range(count)[columns])
        rows = {group: np.full(envs * len(ids), group in scripts) for group, ids in first.groups.items()}
    else:
        rows = opponent_rows(first, count, generation, everywhere=True, instances=instances, columns=columns)
    by_agent = {
        agent: np.tile(rows[group].reshape(-1, len(ids))[:, place], len(slots))
        for group, ids in first.groups.items()
        for place, agent in enumerate(ids)
    }
    generators = [
        generator(first.seed, Purpose.OPPONENTS, generation, SCRIPTED_DRAWS, slot, env)
        for slot in slots
        for env in range(count)[columns]
    ]
    return ScriptedRows(agents, by_agent, generators), rows


class ScriptedOpponentEvaluator(Evaluator):
    """Computes the mean return of a member's own agents in games against functions, from each side equally often.

    With `fitness="info.NAME"` it is the mean of an info in these games.
    """

    def __init__(
        self, env: MultiAgentVecEnvAdapter, max_steps: int | None, scripts: Scripts, fitness: str = "return"
    ) -> None:
        super().__init__(env, max_steps, fitness)
        self._scripts = scripts

    def evaluate(
        self,
        players: EvolvableAlgorithm | BasePopulation,
        seeds: Sequence[int],
        generation: int,
        *,
        should_stop: Callable[[], bool] = never_stop,
    ) -> EvalResult:
        members = len(players) if isinstance(players, MultiAgentPopulation) else 1
        first = cast(IPPO, players[0] if isinstance(players, MultiAgentPopulation) else players)
        with eval_mode(players):
            return self._play(first, cast(Any, players).group_policies, members, seeds, should_stop)

    def play_constant(
        self,
        population: BasePopulation,
        numbers: Sequence[int],
        seeds: Sequence[int],
        should_stop: Callable[[], bool] = never_stop,
    ) -> tuple[list[float], list[int]]:
        policies = constant_policies(population, numbers)
        result = self._play(cast(IPPO, population[0]), policies, len(numbers), seeds, should_stop, may_lack=True)
        return result.fitness, result.steps

    def _play(
        self,
        first: IPPO,
        policies: Mapping[str, GroupPolicy],
        members: int,
        seeds: Sequence[int],
        should_stop: Callable[[], bool],
        *,
        may_lack: bool = False,
    ) -> EvalResult:
        """Return the result of the policies of each group, in the place of members like `first`."""
        sides = own_sides(self._scripts, first)
        scripts = scripted_agents(self._scripts, first.groups, first.possible_action_spaces)
        played = play_sides(
            sides,
            lambda agents: group_parts(first.groups, policies, agents),
            lambda agents: [scripts.part(agents)],
            self.env,
            seeds,
            members=members,
            max_steps=self.max_steps,
            should_stop=should_stop,
            with_infos=bool(self.info_keys),
        )
        if self.info_keys or self.instances > 1:
            returns, lengths, lost = (np.concatenate(its, axis=1) for its in (played.mine, played.lengths, played.lost))
            infos = None if played.infos is None else np.concatenate(played.infos, axis=1)
            return self._with_measures(Episodes(returns, lengths, lost, infos), may_lack=may_lack)
        returns = np.where(played.lost.any(axis=0), np.nan, played.mine.mean(axis=0))
        counts = (~np.isnan(returns)).sum(axis=1)
        spread = [float(np.nanstd(its)) if count > 1 else np.nan for its, count in zip(returns, counts, strict=True)]
        return EvalResult(
            [float(np.nanmean(its)) if count else np.nan for its, count in zip(returns, counts, strict=True)],
            spread,
            [std / np.sqrt(count - 1) if count > 1 else np.nan for std, count in zip(spread, counts, strict=True)],
            returns.shape[1],
            played.steps.tolist(),
            returns.tolist(),
        )


def own_sides(scripts: Scripts, first: IPPO) -> list[frozenset[str]]:
    """Return the sets of agents that a member controls in its games against functions."""
    if isinstance(scripts, Mapping):
        return [frozenset(agent for group, ids in first.groups.items() if group not in scripts for agent in ids)]
    return player_sides(first.groups)


def check_scripts(scripts: Scripts, first: IPPO, fitness: str) -> None:
    """Raise ConfigurationError unless functions can be the opponents of members like `first`."""
    scripted_agents(scripts, first.groups, first.possible_action_spaces)
    if not isinstance(scripts, Mapping):
        return
    if {*scripts} == {*first.groups}:
        raise ConfigurationError(f"opponents={[*scripts]} are all groups, so that nothing would learn")
    if trained := [group for group in scripts if group not in first.frozen_groups]:
        raise ConfigurationError(
            f"opponents: {trained[0]!r} acts by a function, and cannot mutate; allowed is frozen_groups={[*scripts]}"
        )
    if fitness == "rating":
        raise ConfigurationError("fitness='rating' with opponents by group; allowed is 'return', of the other groups")


def opponents_error(given: Any) -> ConfigurationError:
    """Return the error for opponents of no allowed kind."""
    return ConfigurationError(
        f"opponents={given!r:.200}; allowed are 'self', 'past', 'population', a team (an IPPO agent), a function of "
        "observation, mask and rng, and a mapping of groups to functions"
    )


def check_opponent(team: IPPO, first: IPPO) -> None:
    """Raise ConfigurationError unless a team of the user's can play against members like `first`."""
    found, wanted = (
        {
            "groups": dict(one.groups),
            "observation spaces": one.possible_observation_spaces,
            "action spaces": one.possible_action_spaces,
            "normalize_images": one.normalize_images,
            "agent_id_one_hot": one.agent_id_one_hot,
            "critic_observation": one.critic_observation,
        }
        for one in (team, first)
    )
    for name, value in found.items():
        if value != wanted[name]:
            raise ConfigurationError(f"opponents: the team has {name} {value}; that of the members is {wanted[name]}")
