"""Openings: random legal first moves, which make games differ in environments without chance.

In an environment without chance, agents that do not explore repeat the same game on every seed. An opening depends on
the seed of a game only, so all members, and both sides of a pair of games, play the same openings.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Discrete, MultiDiscrete

from agilerl_like.envs.action_masks import mask_slices
from agilerl_like.envs.pytree import Tree, tree_map
from agilerl_like.seeding import Purpose, integers

LONGEST = 4
"""Env steps of the longest opening."""
TRIALS = 4
"""Episodes that are compared to detect whether an environment has chance."""
TRIAL_STEPS = 200
"""Env steps of the longest of them."""


class Openings:
    """The openings of games on some seeds, of 0 to `LONGEST` env steps.

    The first game has none, unless games are further to earlier ones, whose openings are `seen`.
    """

    def __init__(
        self,
        seeds: Sequence[int],
        spaces: Mapping[str, Space],
        longest: int = LONGEST,
        seen: Collection[str] = (),
    ) -> None:
        self._spaces, self._seen = spaces, frozenset(seen)
        self._lengths = {seed: 1 + (place - 1) % longest if place or seen else 0 for place, seed in enumerate(seeds)}
        self._draws = {
            seed: np.random.default_rng(seed).random((length, len(spaces))) for seed, length in self._lengths.items()
        }
        self._moves: dict[int, list[Any]] = {seed: [] for seed in seeds}

    @property
    def longest(self) -> int:
        """Env steps of the longest opening."""
        return max(self._lengths.values(), default=0)

    def replace(
        self, step: int, actions: Mapping[str, np.ndarray], env: Any, row_seeds: Sequence[int]
    ) -> dict[str, np.ndarray]:
        """Return the actions by agent `[N, …]` of env step `step` (from 0), with those of openings in their rows."""
        found = {agent: np.array(its) for agent, its in actions.items()}
        first_row = {seed: row for row, seed in reversed([*enumerate(row_seeds)])}
        for row, seed in enumerate(row_seeds):
            if step >= self._lengths.get(seed, 0):
                continue
            for number, (agent, space) in enumerate(self._spaces.items()):
                mask = None if env.action_mask[agent] is None else env.action_mask[agent][row]
                draw = self._draws[seed][step, number]
                if env.acting[agent][row] and (move := _legal_move(space, mask, draw)) is not None:
                    found[agent][row] = move
                    if first_row[seed] == row:
                        self._moves[seed].append((step, number, np.asarray(move).tolist()))
        return found

    @property
    def played(self) -> set[str]:
        """The openings of the games that have been played, and those that were seen before."""
        return {*self._seen, *map(repr, self._moves.values())}

    def are_new(self, seeds: Sequence[int], lengths: np.ndarray) -> np.ndarray:
        """Return which seeds count `[K]`, given the lengths of their games in I instances `[K, I]`.

        A seed does not count if its opening is that of an earlier one, or may have lasted until the end of a game,
        because the players have decided nothing then.
        """
        seen = set(self._seen)
        flags = []
        for seed in seeds:
            moves = repr(self._moves[seed])
            flags.append(moves not in seen)
            seen.add(moves)
        of_openings = np.array([self._lengths[seed] for seed in seeds])
        return np.array(flags) & (lengths > of_openings[:, None]).all(axis=1)


def _legal_move(space: Space, mask: np.ndarray | None, draw: float) -> Any:
    """Return a legal action, for a draw from [0, 1); None if the space has no finite choices."""
    if isinstance(space, Discrete):
        legal = np.arange(space.n) if mask is None else np.flatnonzero(mask)
        return legal[int(draw * len(legal))] + space.start
    if isinstance(space, MultiDiscrete) and space.nvec.ndim == 1:
        counts = space.nvec.tolist()
        allowed = np.ones(sum(counts), np.bool_) if mask is None else mask
        choices = [np.flatnonzero(allowed[columns]) for columns in mask_slices(space)]
        return np.array([legal[int(draw * len(legal))] for legal in choices]) + space.start
    return None


def has_chance(env: Any, seed: int) -> bool:
    """Return whether `TRIALS` episodes of equal random moves differ by their seeds."""
    draws = np.random.default_rng(seed).random((TRIAL_STEPS, len(env.agent_ids)))
    episodes = [_episode(env, trial, draws) for trial in integers(TRIALS, seed, Purpose.OPPONENTS, 0, 2)]
    return any(len(other) != len(episodes[0]) or not _equal(tuple(other), tuple(episodes[0])) for other in episodes)


def _episode(env: Any, seed: int, draws: np.ndarray) -> list[Tree]:
    """Play random legal moves in the first row of an env; return all agents' observations and rewards of each step.

    If a space has no finite choices, only the seed is returned.
    """
    observations, found = env.reset([seed] * env.num_envs), []
    for draw in draws:
        found.append(tree_map(lambda leaf: np.array(leaf[0]), observations))
        actions = {}
        for number, (agent, space) in enumerate(env.single_action_spaces.items()):
            mask = env.action_mask[agent]
            move = _legal_move(space, None if mask is None else mask[0], draw[number])
            if move is None:
                return [np.array(seed)]
            actions[agent] = np.stack([np.asarray(move)] * env.num_envs)
        transition = env.step(actions)
        observations = transition.next_obs
        found.append({agent: reward[:1] for agent, reward in transition.reward.items()})
        if transition.ended[0]:
            break
    return [*found, tree_map(lambda leaf: np.array(leaf[0]), observations)]


def _equal(one: Tree, other: Tree) -> bool:
    if isinstance(one, Mapping):
        return all(_equal(part, other[key]) for key, part in one.items())
    if isinstance(one, tuple):
        return all(map(_equal, one, other))
    return np.array_equal(one, other)
