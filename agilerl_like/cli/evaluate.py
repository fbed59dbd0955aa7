"""`agilerl-like eval`: run fresh episodes with a saved agent."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from tyro.conf import FlagCreatePairsOff, Positional

from agilerl_like.algorithms.evaluation import Episodes
from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm
from agilerl_like.algorithms.ippo import IPPO
from agilerl_like.cli.output import checked_seed, write_line, write_note
from agilerl_like.cli.players import config_file_of, config_of, players_of
from agilerl_like.envs.multi_agent.scripted import random_moves
from agilerl_like.errors import ConfigurationError, EnvStepError, ExitCode
from agilerl_like.evaluation.eval_envs import check_spaces
from agilerl_like.evaluation.film import display_episodes
from agilerl_like.evaluation.games import Games, Player, play_games
from agilerl_like.evaluation.returns import evaluate as evaluate_agents
from agilerl_like.networks.sampling import Sampling
from agilerl_like.reporting import formatting
from agilerl_like.resources import check_memory
from agilerl_like.saved_runs.run import eval_steps_of
from agilerl_like.seeding import fresh_seed
from agilerl_like.storage.durable_io import make_folder, replace_file

RANDOM = "random"
COLUMNS = ("generation", "member", "seed", "return", "length")
"""Columns of the file of `--out`."""
EPISODE = 64
"""Least memory of an episode in bytes: seed, return and length, and their copies."""


def evaluate(
    run: Positional[Path],
    /,
    episodes: int = 100,
    seed: int | None = None,
    env: str = "",
    sampling: str = "greedy",
    checkpoint: int | None = None,
    history: FlagCreatePairsOff[bool] = False,
    display: FlagCreatePairsOff[bool] = False,
    opponent: str = "",
    out: Path | None = None,
    trust: FlagCreatePairsOff[bool] = False,
) -> int:
    """Run fresh episodes with the best agent of a run.

    The return of a multi-agent episode is the sum over its agents; the returns of each agent are printed below it.

    Args:
        run: Folder of a run or of a saved agent.
        episodes: Number of episodes; of an env with instances on each of them.
        seed: Seed of the episodes; left out: a random one.
        env: Another env than the run's, as in `environment.id`.
        sampling: How actions are drawn: greedy (no exploration), sample (the policy), temperature(t), top_k(k) or
            bottom_k(k), the policy among the k most or least likely actions.
        checkpoint: Evaluate the best agent of the checkpoint of this generation.
        history: Evaluate the fittest member of each entry of the run's history; of the initial members the first.
        display: Show the episodes in a window, in the env's rendering mode "human", before the result is printed. With
            the backends torch, gymnax and envpool the window has gymnasium's single env, and so other episodes.
        opponent: Play games of a team against another player, as many from each side: the folder of a run or of a
            saved team, or "random" for legal actions of equal probability, which needs action masks. Teams do not
            explore.
        out: A CSV file for a row of each episode: generation of the agent (with --history), its member, seed, return,
            length; games have none.
        trust: Import what `environment` of the run names (`id`, `instances`, `wrappers`, `training_wrappers`) although
            it belongs to no known package.
    """
    if episodes < 1:
        raise ConfigurationError(f"episodes={episodes!r} must be at least 1")
    check_memory(f"episodes={episodes}", episodes, EPISODE, "episodes")
    rule, is_zero_sum = Sampling.parse(sampling), False
    seed = fresh_seed() if seed is None else checked_seed(seed)
    players = players_of(run, checkpoint=checkpoint, history=history)
    agent = players[0].agent
    other = _opponent_of(opponent, agent, rule, display=display) if opponent else None
    if out is not None and other is not None:
        raise ConfigurationError(f"out={str(out)!r} excludes --opponent; allowed is one of them without it")
    file_of_rows = None if out is None else out.absolute()  # the env may change the directory
    rows: list[tuple[Any, ...]] = []
    config = config_of(run, env, agent, trust=trust)
    file = config_file_of(run)
    max_steps = None if file is None else eval_steps_of(file)
    if file_of_rows is not None:
        make_folder(file_of_rows.parent)  # before the episodes, whose rows would be lost otherwise
    env_setup = config.env_setup(num_envs=1)
    with contextlib.closing(env_setup.env):
        check_spaces(env_setup, agent, name=config.environment.id)
        for player, generation, share in players:
            label = f"{share:>4.0%}  generation {generation:>4}  member {player.index}  " if history else ""
            if other is not None:
                games = play_games(cast(IPPO, player), other, env_setup.env, episodes, seed, max_steps=max_steps)
                _write_games(label, games, seed)
                continue
            if display:
                display_episodes(player, env_setup, episodes, seed, rule, max_steps=max_steps)
            played = evaluate_agents(player, env_setup, episodes, seed, rule, max_steps=max_steps)
            _write_result(label, played, seed)
            rows += _rows(played, generation, player.index)
            if isinstance(agent, IPPO):
                _write_returns_by_agent(played)
            is_zero_sum |= played.is_zero_sum
    if file_of_rows is not None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([COLUMNS, *rows])
        replace_file(file_of_rows, text.getvalue().encode())
        write_line(formatting.printable(str(out)))
    if is_zero_sum:
        write_note(
            "the returns of all agents add up to 0 in every episode, whatever the team does; --opponent random or "
            "--opponent RUN plays the team against another player"
        )
    return ExitCode.DONE


def _rows(played: Episodes, generation: int, member: int) -> Iterator[tuple[Any, ...]]:
    """Yield the values of `COLUMNS` of each episode of one agent that was not lost."""
    returns, lengths, lost = played.returns[0], played.lengths[0], played.lost[0]
    seeds = [""] * len(returns) if played.seeds is None else played.seeds[0].tolist()
    for own_seed, own, length, is_lost in zip(seeds, returns.tolist(), lengths.tolist(), lost, strict=True):
        if not is_lost:
            yield "" if generation < 0 else generation, member, own_seed, own, length


def _opponent_of(opponent: str, agent: EvolvableAlgorithm, sampling: Sampling, *, display: bool) -> Player:
    if not isinstance(agent, IPPO):
        raise ConfigurationError(f"opponent={opponent!r} is for teams; the agent is one of {agent.algo}")
    if display or not sampling.is_greedy:
        raise ConfigurationError(
            f"opponent={opponent!r} excludes --display and --sampling; allowed is one of them without it"
        )
    return random_moves if opponent == RANDOM else cast(IPPO, players_of(Path(opponent))[0].agent)


def _write_games(label: str, games: Games, seed: int) -> None:
    columns = games.sides, games.mean, games.share(1), games.share(0.5), (~games.lost).sum(axis=1)
    for agents, mean, won, drawn, count in zip(*columns, strict=True):
        write_line(
            f"{label}as {'+'.join(agents)}: mean return {mean:.2f}, won {won:.0%} and drawn {drawn:.0%} of {count} "
            f"games (seed {seed})"
        )


def _write_result(label: str, played: Episodes, seed: int) -> None:
    counts = ~played.lost[0]
    if not counts.any():
        raise EnvStepError(f"all {counts.size} episodes were lost with their worker processes; the environment fails")
    scores, lost = played.returns[0][counts], int(played.lost[0].sum())
    deviation = f" ± {scores.std():.2f} (standard deviation)" if len(scores) > 1 else ""
    write_line(
        f"{label}mean return {scores.mean():.2f}{deviation} over {formatting.number_of(len(scores), 'episode')} "
        f"(from {scores.min():.2f} to {scores.max():.2f}, {played.lengths[0][counts].mean():.0f} steps on average, "
        f"seed {seed}{f', {lost} more were lost with their worker processes' if lost else ''})"
    )


def _write_returns_by_agent(played: Episodes) -> None:
    counts = ~played.lost
    write_line(", ".join(f"{name}: {its[counts].mean():.2f}" for name, its in played.returns_by_agent.items()))
