"""Games by self-play: results against scripted players, and whether the ratings of a run order its agents correctly.

Each game trains by its bundled configuration. The best agent then plays fresh games without exploration, equally many
from each side, against players that move at random and against the untrained agent, which also plays the games against
scripted players. In connect_four there are two more: one that looks a move ahead completes a line if it can, and one
that looks two moves ahead otherwise prevents the opponent's line; else both move at random. In texas_holdem there are
one that always calls and one that always raises: random moves fold a third of the time, and a player that never does
earns from that. Both seats play the same deals. Ratings: those of the best agents of all generations but the last, to
which the run has fitted all games between them, beside their mean scores in a round robin; and, beside the same scores,
their fitness when they were selected, which is the highest of several uncertain ratings by the games of one generation.

    python -m benchmarks.games
    python -m benchmarks.games --games connect_four --repetitions 1 --seed 1 --output -
    python -m benchmarks.games --seed 1 --rows games.jsonl  # a run that ended is not repeated by the same command
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agilerl_like import IPPO, Run, play_games
from agilerl_like.cli.train import train_config
from agilerl_like.config import build, load
from agilerl_like.envs.multi_agent.scripted import random_moves
from benchmarks.game_players import call, complete_line, complete_or_prevent, raise_
from benchmarks.harness import Run as Round
from benchmarks.harness import conditions, interleaved, one, options_of, print_result, publish
from benchmarks.tables import ROOT, Goal, markdown

ROUND_ROBIN_GAMES = 500  # of each player


@dataclass(frozen=True)
class Case:
    """A game, and how many fresh games are played from each side against each opponent."""

    game: str
    games: int
    settings: Sequence[str]


@dataclass(frozen=True)
class Played:
    """Results of one seed; by opponent and side."""

    game: str
    seed: int
    env_steps: int
    seconds: float
    won: Mapping[str, Sequence[float]]
    lost: Mapping[str, Sequence[float]]
    winnings: Mapping[str, Sequence[float]]
    """Mean return of each side, by opponent."""
    winnings_error: Mapping[str, float]
    """Standard error of the mean over sides."""
    untrained: Mapping[str, Mapping[str, float]]
    """Winnings of the first untrained agent: mean over sides and standard error, by opponent."""
    spearman: float | None
    """Of ratings and mean scores."""
    spearman_of_fitness: float | None = None
    ratings: Sequence[Sequence[float]] = field(default_factory=list)
    """Rating, fitness when selected, and mean score in the round robin, of the best agent of each generation."""
    found: str = ""

    @property
    def headline(self) -> str:
        """One line for the terminal."""
        shares = [f"{name}: won {percents(its)}, lost {percents(self.lost[name])}" for name, its in self.won.items()]
        return f"{'; '.join(shares)}; Spearman {self.spearman}; {self.env_steps:,} steps, {self.seconds:.0f} s"


OPPONENTS: Mapping[str, dict[str, Callable[..., int]]] = {
    "tictactoe": {"random": random_moves},
    "connect_four": {"random": random_moves, "one move ahead": complete_line, "two moves ahead": complete_or_prevent},
    "texas_holdem": {"random": random_moves, "calls": call, "raises": raise_},
}
RATED = ("connect_four",)
GAMES = {"tictactoe": 200, "connect_four": 1000, "texas_holdem": 2000}


def percents(shares: Sequence[float]) -> str:
    """Write shares of the sides, the first player's first."""
    return " and ".join(f"{share:.1%}" for share in shares)


def interval(mean: float, error: float) -> str:
    """Write a mean with its 95 % interval."""
    return f"{mean:+.2f} ± {1.96 * error:.2f}"


def ranks(numbers: Sequence[float]) -> np.ndarray:
    """Return ranks from 0; equal numbers have their mean rank."""
    values = np.asarray(numbers)
    return np.array([((values < value).sum() + (values <= value).sum() - 1) / 2 for value in values])


def spearman(one_: Sequence[float], other: Sequence[float]) -> float:
    """Return the rank correlation."""
    return float(np.corrcoef(ranks(one_), ranks(other))[0, 1])


def round_robin(players: Sequence[IPPO], env: Any, seed: int) -> list[float]:
    """Return the mean score of each player against all others, in about `ROUND_ROBIN_GAMES` games."""
    each = -(-ROUND_ROBIN_GAMES // (2 * (len(players) - 1)))
    scores: list[list[float]] = [[] for _ in players]
    for i, first in enumerate(players):
        for j in range(i + 1, len(players)):
            found = play_games(first, players[j], env, each, seed).scores.ravel().tolist()
            scores[i] += found
            scores[j] += [1 - score for score in found]
    return [statistics.mean(its) for its in scores]


def measure(case: Case, seed: int) -> Played:
    """Train one seed with the bundled configuration, and let its best agent play."""
    with tempfile.TemporaryDirectory() as folder:
        own = ["--seed", str(seed), "--run.dir", folder, "--run.processes", "1"]
        config = load(ROOT / "configs" / "ippo" / f"{case.game}.yaml", [*own, *case.settings])
        setup = build(config)
        untrained: IPPO = setup.population[0].clone()
        start = time.perf_counter()
        train_config(config, quiet=True)
        seconds = time.perf_counter() - start
        run = Run.open(next(Path(folder).iterdir()))
        pool = run.opponent_pool()[1:] if case.game in RATED else ()
        best: Any = run.best()
        env_steps = int(run.metrics()[-1]["time/total_timesteps"])
    opponents = {**OPPONENTS[case.game], "untrained": untrained}
    games = {name: play_games(best, other, setup.env, case.games, seed) for name, other in opponents.items()}
    before = {
        name: play_games(untrained, other, setup.env, case.games, seed).returns
        for name, other in OPPONENTS[case.game].items()
    }
    scores = round_robin([one.player for one in pool], setup.env, seed) if len(pool) > 1 else []
    ratings, fitness = [one.rating for one in pool], [one.player.fitness[-1] for one in pool]
    return Played(
        game=case.game,
        seed=seed,
        env_steps=env_steps,
        seconds=round(seconds, 1),
        won={name: (its.returns > its.others).mean(1).tolist() for name, its in games.items()},
        lost={name: (its.returns < its.others).mean(1).tolist() for name, its in games.items()},
        winnings={name: its.returns.mean(1).tolist() for name, its in games.items()},
        winnings_error={name: error(its.returns) for name, its in games.items()},
        untrained={name: {"mean": float(its.mean()), "error": error(its)} for name, its in before.items()},
        spearman=round(spearman(ratings, scores), 3) if scores else None,
        spearman_of_fitness=round(spearman(fitness, scores), 3) if scores else None,
        ratings=[
            [round(rating, 1), round(its_fitness, 1), round(score, 4)]
            for rating, its_fitness, score in zip(ratings, fitness, scores, strict=bool(scores))
        ],
        found=best.architecture.describe(),
    )


def error(returns: np.ndarray) -> float:
    """Return the standard error of the mean over sides of returns `[S, K]`, whose seeds are shared by the sides."""
    by_seed = returns.mean(axis=0)
    return float(by_seed.std(ddof=1) / np.sqrt(len(by_seed)))


def correlations(played: Played) -> str:
    """Write the rank correlations of ratings and, in brackets, of fitness; empty without ratings."""
    found = ["-" if one is None else f"{one:.2f}" for one in (played.spearman, played.spearman_of_fitness)]
    return f"{found[0]} ({found[1]})" if played.ratings else ""


def section(runs: Sequence[Round[Played]], options: argparse.Namespace) -> list[str]:
    """Return the whole section."""
    rows = [
        (
            run.result.game,
            str(run.seed),
            f"{run.result.env_steps:,}",
            name,
            percents(run.result.won[name]),
            percents(run.result.lost[name]),
            interval(statistics.mean(run.result.winnings[name]), run.result.winnings_error[name]),
            interval(**run.result.untrained[name]) if name in run.result.untrained else "",
            correlations(run.result) if name == "random" else "",
            f"{run.result.seconds:,.0f}",
        )
        for run in runs
        for name in run.result.won
    ]
    counts = ", ".join(f"{game} {options.fresh_games or GAMES[game]}" for game in options.games)
    return [
        "## Games by self-play",
        "",
        "Training by the bundled configurations; then fresh games of the best agent without exploration, from each "
        f"side ({counts}). Shares are those as first and as second player. An opponent that looks one move ahead "
        "completes a line if it can; two moves ahead, it otherwise prevents the opponent's; else both move at random. "
        "In texas_holdem one always calls and one always raises. "
        "Winnings are returns with a 95 % interval; both sides play the same seeds. "
        "Spearman: ratings of the best agents of all generations but the last, to which the run has fitted all games "
        f"between them, and their mean scores in a round robin of {ROUND_ROBIN_GAMES} games of each; in brackets "
        "their fitness when they were selected, instead of the ratings. Env steps are those of all members.",
        "",
        conditions(runs, options, timed=False),
        "",
        *markdown(
            (
                "game",
                "seed",
                "env steps",
                "opponent",
                "won",
                "lost",
                "winnings",
                "of the untrained agent",
                "Spearman",
                "seconds",
            ),
            rows,
        ),
    ]


def goals(runs: Sequence[Round[Played]]) -> list[Goal]:
    """Return the goals that these runs measured."""
    by_game: dict[str, list[Played]] = {}
    for run in runs:
        by_game.setdefault(run.result.game, []).append(run.result)
    found = []

    def goal(what: str, target: str, values: Sequence[str], flags: Sequence[bool]) -> None:
        found.append(Goal(what, f"{target}, {len(flags)} of {len(flags)} seeds", "; ".join(values), all(flags)))

    if its := by_game.get("connect_four", []):
        for name, share in (("random", 0.95), ("one move ahead", 0.6)):
            values = [percents(one_.won[name]) for one_ in its]
            flags = [min(one_.won[name]) >= share for one_ in its]
            goal(f"connect_four, won against {name}", f">= {share:.0%}", values, flags)
        if ranked := [one_.spearman for one_ in its if one_.spearman is not None]:
            flags = [x >= 0.9 for x in ranked]
            goal("connect_four, ratings and round robin", "Spearman >= 0.9", [f"{x:.2f}" for x in ranked], flags)
    if its := by_game.get("tictactoe", []):
        values = [percents(one_.lost["random"]) for one_ in its]
        flags = [one_.lost["random"][0] == 0 and one_.lost["random"][1] <= 0.05 for one_ in its]
        goal("tictactoe, lost against random", "0% as first, <= 5% as second", values, flags)
    for name in ("random", "calls", "untrained"):
        if its := by_game.get("texas_holdem", []):
            means = [(statistics.mean(one_.winnings[name]), one_.winnings_error[name]) for one_ in its]
            flags = [mean - 1.96 * error > 0 for mean, error in means]
            goal(f"texas_holdem, winnings against {name}", "interval above 0", [interval(*m) for m in means], flags)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", nargs="+", choices=GAMES, default=list(GAMES), metavar="GAME")
    parser.add_argument("--fresh-games", type=int, metavar="N", help="from each side; by default depends on the game")
    parser.add_argument("--settings", nargs="*", default=[], metavar="WORD", help="as of `agilerl-like train`")
    quick = {"settings": ["--training.max-steps=8192", "--training.evo-steps=8192"], "fresh_games": 10}
    options = options_of(parser, argv, repetitions=3, quick=quick, threads=1, timeout=3 * 3600)
    if options.one:
        torch.set_num_threads(options.threads)
        print_result(measure(Case(**json.loads(options.one)), options.seed))
        return
    runs = [
        run
        for game in options.games
        for run in interleaved(
            {"ours": one("benchmarks.games", Case(game, options.fresh_games or GAMES[game], options.settings))},
            Played,
            options,
            case=game,
        )
    ]
    publish("games", section(runs, options), runs, goals(runs), options)


if __name__ == "__main__":
    main()
