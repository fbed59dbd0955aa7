"""Trajectories as a Minari dataset (extra `minari`), the format that offline reinforcement learning reads."""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.envs.registration import EnvSpec

from agilerl_like.errors import ConfigurationError

ROOT = "MINARI_DATASETS_PATH"
"""Environment variable with the folder of all datasets."""


def check_minari() -> None:
    """Raise ConfigurationError if Minari is not installed."""
    if importlib.util.find_spec("minari") is None or importlib.util.find_spec("h5py") is None:
        raise ConfigurationError("format='minari' needs more packages: pip install 'agilerl-like[minari]'")


def write_minari(path: Path, trajectories: Sequence[Any], spec: EnvSpec | None, agent: Any) -> None:
    """Write trajectories as the dataset `path.name` in the folder `path.parent`.

    Log-probability, value, agent, generation and, of an env with instances, their number are infos of each step; the
    seed belongs to the episode. `spec` describes the env, from which `recover_environment` makes it.

    Raises:
        ConfigurationError: the name is not one of a dataset, or the dataset exists.
    """
    import minari
    from minari.data_collector import EpisodeBuffer

    episodes = [
        EpisodeBuffer(
            id=number,
            seed=one.seed,
            observations=one.observations,
            actions=one.actions,
            rewards=list(one.rewards),
            terminations=list(one.terminated),
            truncations=list(one.truncated),
            infos={
                "log_prob": one.log_probs,
                "value": one.values,
                "agent": np.full(len(one), one.agent),
                "generation": np.full(len(one), one.generation),
                **({} if one.instance is None else {"instance": np.full(len(one), one.instance)}),
            },
        )
        for number, one in enumerate(trajectories)
    ]
    path = path.absolute()
    before = os.environ.get(ROOT)
    os.environ[ROOT] = str(path.parent)
    try:
        with warnings.catch_warnings(action="ignore"):  # on metadata that are optional
            minari.create_dataset_from_buffers(
                path.name,
                episodes,
                env=spec,
                observation_space=agent.observation_space,
                action_space=agent.action_space,
                algorithm_name=f"{agent.algo}, agilerl-like",
                data_format="hdf5",
                jpeg_encoding=False,
            )
    except (ValueError, AssertionError) as error:
        raise ConfigurationError(
            f"path={str(path)!r}: {error!s:.300}; allowed is a new name such as evolved-v0"
        ) from error
    finally:
        os.environ.pop(ROOT)
        if before is not None:
            os.environ[ROOT] = before
