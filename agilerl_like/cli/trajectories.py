"""`agilerl-like trajectories`: write episodes of a run's agents as a dataset."""

from __future__ import annotations

import contextlib
from pathlib import Path

from tyro.conf import FlagCreatePairsOff, Positional

from agilerl_like.cli.output import checked_seed, write_line
from agilerl_like.cli.players import best_generation, config_of, players_of
from agilerl_like.errors import ExitCode
from agilerl_like.evaluation.trajectories import Format, export_trajectories


def trajectories(
    run: Positional[Path],
    file: Path | None = None,
    /,
    steps: int = 2000,
    num_envs: int = 1,
    sampling: str = "sample",
    format: Format = "npz",
    population: FlagCreatePairsOff[bool] = False,
    history: FlagCreatePairsOff[bool] = False,
    checkpoint: int | None = None,
    seed: int | None = None,
    env: str = "",
    trust: FlagCreatePairsOff[bool] = False,
) -> int:
    """Write whole episodes of a run's best agent as a dataset for offline reinforcement learning.

    It has observations, actions, rewards, ends, log-probabilities, values, and each episode's seed.

    Args:
        run: Folder of a run or of a saved agent.
        file: The file, by default the run's name with .npz; of Minari a folder of datasets and a dataset's name, by
            default RUN-v0 in the current folder.
        steps: Least number of steps of each agent.
        num_envs: Envs at once.
        sampling: How actions are drawn: sample (the policy), greedy, temperature(t), top_k(k) or bottom_k(k).
        format: npz (numpy arrays) or minari (needs the extra `minari`).
        population: Write episodes of all members instead of the best agent.
        history: Write episodes of the fittest member of each entry of the run's history (of all members with
            --population).
        checkpoint: Write episodes of the best agent of the checkpoint of this generation.
        seed: Seed of the episodes; left out: a random one.
        env: Another env than the run's, as in `environment.id`.
        trust: Import what `environment` of the run names (`id`, `instances`, `wrappers`, `training_wrappers`) although
            it belongs to no known package.
    """
    players = players_of(run, checkpoint=checkpoint, history=history, population=population)
    is_best = not (history or population or checkpoint is not None)
    config = config_of(run, env, players[0].agent, trust=trust)
    name = run.resolve().name
    path = file or Path(f"{name}.npz" if format == "npz" else f"{name}-v0")
    absolute = path.absolute()  # the env may change the directory
    generation = [best_generation(run)] if is_best else [player.generation for player in players]
    env_setup = config.env_setup(num_envs=1)
    with contextlib.closing(env_setup.env):
        export_trajectories(
            [player.agent for player in players],
            env_setup,
            absolute,
            steps,
            num_envs,
            sampling,
            format,
            seed=None if seed is None else checked_seed(seed),
            generation=generation,
        )
    write_line(str(path))
    return ExitCode.DONE
