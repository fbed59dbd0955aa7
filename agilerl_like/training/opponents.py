"""Opponents in training: frozen teams that control a side of some envs, sampled again in each generation.

With "self" the groups of a team, or the agents of its single group, play each other. With "past" and "population" they
do so in every other env; in the rest a member controls one side, each side equally often, and an opponent all others.
With a team of the user's, that team is the opponent in all envs. Opponents explore, and learn nothing: their rows are
not valid. All members' opponents act in one batched computation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm
from agilerl_like.algorithms.ippo import IPPO, MultiAgentPopulation
from agilerl_like.errors import ConfigurationError
from agilerl_like.seeding import Purpose, generator
from agilerl_like.training.evaluator import Opponent
from agilerl_like.training.sharding import ShardedPopulation
from agilerl_like.training.sides import player_sides

NEWEST_SHARE = 0.5
"""Probability that a sampled opponent of the past is the newest."""
FIRST_INDEX = 1_000_000_000
"""Opponents have indices from here on, so that their action noise is not that of members."""


def sample_opponents(
    kind: str, members: ShardedPopulation, pool: Sequence[Opponent], generation: int, team: IPPO | None = None
) -> MultiAgentPopulation:
    """Return a clone of an opponent for each member of this process; collective.

    `kind` is "past" (of the pool), "population" (another member as it is now) or "team".
    """
    everyone: Sequence[EvolvableAlgorithm] = list(members.gather_all()) if kind == "population" else ()
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
        clone = cast(IPPO, player).clone(index=FIRST_INDEX + generation * members.size + slot)
        clone.set_training_mode(True)
        chosen.append(clone)
    return MultiAgentPopulation(chosen)


def opponent_rows(team: IPPO, envs: int, *, everywhere: bool, columns: slice = slice(None)) -> dict[str, np.ndarray]:
    """Return which rows of each group `[envs A]` an opponent controls, the same for all members.

    `columns` are the envs of a member that this process steps, of all its `envs`.
    """
    sides = player_sides(team.groups)
    rows = {group: np.zeros((envs, len(ids)), np.bool_) for group, ids in team.groups.items()}
    for env in range(envs):
        if not everywhere and env % 2 == 0 and envs > 1:
            continue
        side = sides[(env if everywhere else env // 2) % len(sides)]
        for group, ids in team.groups.items():
            rows[group][env] = [agent not in side for agent in ids]
    return {group: flags[columns].ravel() for group, flags in rows.items()}


def check_opponent(team: IPPO, first: IPPO) -> None:
    """Raise ConfigurationError unless a team of the user's can play against members like `first`."""
    if not isinstance(team, IPPO):
        raise ConfigurationError(
            f"opponents={team!r:.200}; allowed are 'self', 'past', 'population' and a team (an IPPO agent)"
        )
    found, wanted = (
        {
            "groups": dict(one.groups),
            "observation spaces": one.possible_observation_spaces,
            "action spaces": one.possible_action_spaces,
            "normalize_images": one.normalize_images,
            "agent_id_one_hot": one.agent_id_one_hot,
        }
        for one in (team, first)
    )
    for name, value in found.items():
        if value != wanted[name]:
            raise ConfigurationError(f"opponents: the team has {name} {value}; that of the members is {wanted[name]}")
