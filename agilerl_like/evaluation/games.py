"""Games between players of a multi-agent env: teams, and functions that act for agents.

A game is played for each side that a player can control and each seed. Where nothing else is random, because both
players are teams that do not explore and the env has no chance, games begin with random openings (see
`algorithms.openings`), games with equal openings count once, and those that end within their opening
not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple, cast

import numpy as np

from agilerl_like.algorithms.evaluation import EvalEnv, HasActor, eval_mode
from agilerl_like.algorithms.ippo import IPPO
from agilerl_like.algorithms.openings import Openings, has_chance
from agilerl_like.envs.multi_agent.pettingzoo import MultiAgentVectorEnv
from agilerl_like.envs.multi_agent.scripted import ScriptedPolicy
from agilerl_like.envs.multi_agent.vec_adapter import MultiAgentVecEnvAdapter
from agilerl_like.errors import ConfigurationError, EnvStepError
from agilerl_like.evaluation.eval_envs import check_spaces
from agilerl_like.evaluation.returns import count_of, seed_of
from agilerl_like.seeding import Purpose, integers
from agilerl_like.training.elo_evaluator import INITIAL_RATING, fit_bradley_terry, independent_prior, rating_errors
from agilerl_like.training.multi_agent_env_setup import MultiAgentEnvSetup
from agilerl_like.training.opponents import Scripts, own_sides
from agilerl_like.training.sides import group_parts, play_sides, player_sides, scores_of, scripted_agents

Player = IPPO | ScriptedPolicy
"""A team, or a function of an agent's observation, its action mask and a numpy generator that returns its action."""
ENVS = 32
"""Games that are played at once."""


class Games(NamedTuple):
    """Results of K games for each of S sides of the first player; of I instances game i is in number i % I.

    A game whose worker process died has no score, and counts in no share.
    """

    sides: Sequence[Sequence[str]]
    """The agents of each side."""
    returns: np.ndarray  # [S, K]: the total return of the first player's agents
    others: np.ndarray  # [S, K]: that of all other agents
    steps: np.ndarray  # [S, K]: lengths in env steps
    lost: np.ndarray  # [S, K] bool: the worker process died during the game

    @property
    def scores(self) -> np.ndarray:
        """1 for a win of the first player, 0.5 for a draw, 0 for a defeat, nan for a game in `lost`; `[S, K]`."""
        return scores_of(self.returns, self.others, self.lost)

    @property
    def scores_of_seeds(self) -> np.ndarray:
        """Scores by the returns over all sides, so that none has an advantage; nan if a game is lost, `[K]`."""
        return scores_of(self.returns.sum(axis=0), self.others.sum(axis=0), self.lost.any(axis=0))

    def share(self, result: float) -> np.ndarray:
        """Share of the games of each side that ended with a score of 1, 0.5 or 0, `[S]`; nan if all are `lost`."""
        return self._per_game((self.scores == result).sum(axis=1))

    @property
    def mean(self) -> np.ndarray:
        """Mean return of the first player from each side, `[S]`; nan if all games are `lost`."""
        return self._per_game(np.where(self.lost, 0.0, self.returns).sum(axis=1))

    def _per_game(self, totals: np.ndarray) -> np.ndarray:
        count = (~self.lost).sum(axis=1)
        return np.divide(totals, count, out=np.full(len(count), np.nan), where=count > 0)

    def __repr__(self) -> str:
        columns = self.sides, self.mean, self.share(1), self.share(0.5)
        sides = [
            f"{'+'.join(agents)}: mean return {mean:.2f}, won {won:.0%}, drawn {drawn:.0%}"
            for agents, mean, won, drawn in zip(*columns, strict=True)
        ]
        return f"Games({self.returns.shape[1]} from each side; {'; '.join(sides)})"


class Rating(NamedTuple):
    """A player's strength in units of Elo."""

    rating: float
    error: float
    """Standard error."""
    score: float
    """Mean over the seeds of its games with each player, see `rate_players`."""
    games: int
    """Games on these seeds, from all sides."""


def play_games(
    first: Player,
    second: Player | Scripts,
    env: MultiAgentVectorEnv,
    games: int = 100,
    seed: int | None = None,
    *,
    max_steps: int | None = None,
) -> Games:
    """Let two players play `games` games for each side of the first one; `seed` names all random numbers.

    In an env with instances they play as many in each, on the same seeds. Teams do not explore. `env` is copied without
    its training wrappers. A function plays for any agent that the other player does not control. With functions by
    group as `second`, such as the `opponents` of a run, the first player is a team and has one side, its other groups.
    `max_steps` ends longer games.

    Raises:
        ConfigurationError: `games` or `max_steps` is below 1, a player is neither a team nor a function, a team was
            made for other spaces or groups, there are no two sides, or functions by group leave none to a team.
        EnvStepError: all games were lost with their worker processes.
    """
    players: list[Any] = [first] if isinstance(second, Mapping) else [first, second]
    return _Table(players, env, seed).play(first, second, games, max_steps)


def rate_players(
    players: Mapping[str, Player], env: MultiAgentVectorEnv, games: int = 50, seed: int | None = None
) -> dict[str, Rating]:
    """Return the ratings of players, by name, from `games` games for each side of each pair of them.

    They are those of Bradley and Terry (1952), with a normal prior around 1000. All pairs play on the same seeds. On a
    seed the player wins that earns more in the games from all sides together; equal returns are half a win.

    A seed does not count if one of its games was lost with its worker process. In an env without chance all games of a
    team and a function that draws no numbers are the same one, and count as often as they are played: with `games=1`
    its rating and error are those of one game.

    Raises:
        ConfigurationError: fewer than two players, or as `play_games`.
        EnvStepError: on all seeds of a pair games were lost with their worker processes.
    """
    if not isinstance(players, Mapping) or len(players) < 2:
        raise ConfigurationError(f"players={[*players]}; allowed are two or more, by name")
    names, table = [*players], _Table([*players.values()], env, seed)
    wins, counts, totals = (np.zeros((len(names), len(names))) for _ in range(3))
    for one, other in combinations(range(len(names)), 2):
        played = table.play(players[names[one]], players[names[other]], games)
        scores = played.scores_of_seeds
        scores = scores[~np.isnan(scores)]
        if not scores.size:
            raise EnvStepError(
                f"games of {names[one]!r} and {names[other]!r} were lost on all seeds: see the warnings above"
            )
        wins[one, other], wins[other, one] = scores.sum(), (1 - scores).sum()
        counts[one, other] = counts[other, one] = scores.size
        totals[one, other] = totals[other, one] = scores.size * len(played.sides)
    prior = independent_prior(len(names))
    ratings = fit_bradley_terry(wins, counts, prior)
    errors = rating_errors(ratings, counts, prior)
    ratings += INITIAL_RATING - ratings.mean()
    return {
        name: Rating(float(ratings[i]), float(errors[i]), float(wins[i].sum() / counts[i].sum()), int(totals[i].sum()))
        for i, name in enumerate(names)
    }


class _Table:
    """Where some players play."""

    def __init__(self, players: Sequence[Player], env: MultiAgentVectorEnv, seed: int | None) -> None:
        self._setup = MultiAgentEnvSetup(env)
        self._seed = seed_of(seed)
        teams = [player for player in players if isinstance(player, IPPO)]
        for player in players:
            if not isinstance(player, IPPO) and not callable(player):
                raise ConfigurationError(
                    f"player={player!r:.100}; allowed are a team (an IPPO agent), and a function of observation, mask "
                    "and rng"
                )
        self._groups: Mapping[str, Sequence[str]] = teams[0].groups if teams else {"": env.agent_ids}
        for team in teams:
            check_spaces(self._setup, team)
            if team.groups != self._groups:
                raise ConfigurationError(f"the teams have different groups: {dict(self._groups)}, {dict(team.groups)}")
        if len(player_sides(self._groups)) < 2:
            raise ConfigurationError(f"the groups are {dict(self._groups)}; allowed in games are two sides or more")
        self._spaces = env.single_action_spaces
        self._has_chance: bool | None = None
        """None before the first game between teams."""

    def play(self, first: Player, second: Player | Scripts, games: int, max_steps: int | None = None) -> Games:
        games = count_of("games", games)
        max_steps = None if max_steps is None else count_of("max_steps", max_steps)
        seeds = integers(games, self._seed, Purpose.CONFIRMATION_ENVS)
        sides = _sides(first, second, self._groups)
        with ExitStack() as stack:
            made = self._setup.make_eval_env(self._setup.num_eval_episodes(min(games, ENVS)))
            stack.callback(made.close)
            env = self._setup.adapt(made)
            for player in (first, second):
                if isinstance(player, IPPO):
                    stack.enter_context(eval_mode(player))
            played = play_sides(
                sides,
                partial(self._policies, first),
                partial(self._policies, second),
                cast(EvalEnv, env),
                seeds,
                max_steps=max_steps,
                openings=self._openings(first, second, env, seeds),
            )
            most = self._setup.num_eval_episodes(games)
        mine, others, lengths, lost = (
            x[:, 0, :most] for x in (played.mine, played.others, played.lengths, played.lost)
        )
        if lost.all():
            raise EnvStepError("all games were lost with their worker processes: see the warnings above")
        return Games([sorted(side) for side in sides], mine, others, lengths, lost)

    def _policies(self, player: Player | Scripts, agents: Collection[str]) -> Sequence[HasActor]:
        if isinstance(player, IPPO):
            return group_parts(self._groups, player.group_policies, agents)
        return [scripted_agents(player, self._groups, self._spaces).part(agents)]

    def _openings(
        self, first: Player, second: Player | Scripts, env: MultiAgentVecEnvAdapter, seeds: Sequence[int]
    ) -> Openings | None:
        if not (isinstance(first, IPPO) and isinstance(second, IPPO)):
            return None
        if self._has_chance is None:
            self._has_chance = has_chance(env, self._seed)
        return None if self._has_chance else Openings(seeds, env.single_action_spaces)


def _sides(first: Player, second: Player | Scripts, groups: Mapping[str, Sequence[str]]) -> Sequence[Collection[str]]:
    """Return the sets of agents that the first player controls; ConfigurationError if functions by group leave none."""
    if not isinstance(second, Mapping):
        return player_sides(groups)
    if not isinstance(first, IPPO):
        raise ConfigurationError(f"player={first!r:.100}; allowed with functions by group is a team (an IPPO agent)")
    sides = own_sides(second, first)
    if not all(sides):
        raise ConfigurationError(f"player={[*second]} are all groups; allowed are functions for some of {[*groups]}")
    return sides
