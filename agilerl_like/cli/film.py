"""`agilerl-like film`: write episodes of a run's agents as video files."""

from __future__ import annotations

import contextlib
from itertools import groupby
from pathlib import Path

from tyro.conf import FlagCreatePairsOff, Positional

from agilerl_like.cli.output import checked_file, checked_seed, write_line
from agilerl_like.cli.players import config_of, players_of
from agilerl_like.errors import ExitCode
from agilerl_like.evaluation.film import MAX_STEPS, record_film
from agilerl_like.reporting.trackers import wandb_films
from agilerl_like.saved_runs import Run
from agilerl_like.seeding import fresh_seed


def film(
    run: Positional[Path],
    file: Path | None = None,
    /,
    grid: FlagCreatePairsOff[bool] = False,
    history: FlagCreatePairsOff[bool] = False,
    checkpoint: int | None = None,
    sampling: str = "greedy",
    max_steps: int = MAX_STEPS,
    seed: int | None = None,
    env: str = "",
    wandb: FlagCreatePairsOff[bool] = False,
    trust: FlagCreatePairsOff[bool] = False,
) -> int:
    """Write an episode of a run's best agent to an .mp4 file (needs the extra `video`).

    The environment needs the rendering mode rgb_array.

    Args:
        run: Folder of a run or of a saved agent.
        file: The file, by default the run's name with .mp4.
        grid: Show all members of the last generation as tiles; the tile of a finished episode keeps its last frame.
        history: Write a film for each entry of the run's history, with its share of the budget and its generation in
            the name; of the fittest member, or of all members with --grid.
        checkpoint: Show the best agent of the checkpoint of this generation.
        sampling: How actions are drawn: greedy (no exploration), sample, temperature(t), top_k(k) or bottom_k(k).
        max_steps: Steps after which a film ends if the episode does not.
        seed: Seed of the episode; left out: a random one.
        env: Another env than the run's, as in `environment.id`.
        wandb: Add the film to the W&B run of the run, which must have ended.
        trust: Import what `environment` of the run names (`id`, `instances`, `wrappers`, `training_wrappers`) although
            it belongs to no known package.
    """
    path = checked_file("file", file or Path(f"{run.resolve().name}.mp4"))
    folder = path.absolute().parent  # the env may change the directory
    trackers = Run.open(run).config.get("run", {}).get("trackers", ()) if wandb else ()
    upload = wandb_films(run.absolute(), trackers) if wandb else contextlib.nullcontext()
    players = players_of(run, checkpoint=checkpoint, history=history, population=grid)
    config = config_of(run, env, players[0].agent, trust=trust)
    seed = fresh_seed() if seed is None else checked_seed(seed)
    env_setup = config.env_setup(num_envs=1)
    with contextlib.closing(env_setup.env), upload as add_to_wandb:
        for (share, generation), together in groupby(players, key=lambda player: (player.share, player.generation)):
            moment = f"{round(100 * share):03d}-gen-{generation:06d}"
            its_path = path.with_name(f"{path.stem}-{moment}{path.suffix}") if history else path
            agents = [player.agent for player in together]
            its_file = folder / its_path.name
            record_film(agents, env_setup, its_file, seed=seed, sampling=sampling, max_steps=max_steps)
            write_line(str(its_path))
            if add_to_wandb:
                add_to_wandb(its_file)
    return ExitCode.DONE
