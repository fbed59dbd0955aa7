"""Named random streams: each is derived from its purpose, so no generator state has to be saved or shared.

A stream is named by the run's seed, a purpose and counters (generation, member, …). Streams with different names are
independent, and a name gives the same stream on every process, in whatever order streams are requested. The package
neither reads nor seeds a global generator.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np

from agilerl_like.errors import ConfigurationError


class Purpose(IntEnum):
    """The purposes of random streams. The numbers determine every seeded result: append new ones, never renumber."""

    INITIAL_WEIGHTS = 0
    INITIAL_HYPERPARAMETERS = 1
    ACTION_NOISE = 2
    MINIBATCHES = 3
    TRAINING_ENVS = 4
    EVALUATION_ENVS = 5
    CONFIRMATION_ENVS = 6
    SELECTION = 7
    MUTATION = 8
    WEIGHT_TRANSFER = 9
    MANUAL = 10
    WEIGHT_NOISE = 11
    GROUP = 12
    OPPONENTS = 13
    POOL_UPDATE = 14
    PERTURBATIONS = 15


def seed_sequence(seed: int, purpose: Purpose, *keys: int) -> np.random.SeedSequence:
    """Return the seed sequence of one named stream; `seed` and `keys` are non-negative."""
    return np.random.SeedSequence(entropy=seed, spawn_key=(int(purpose), *keys))


def generator(seed: int, purpose: Purpose, *keys: int) -> np.random.Generator:
    """Return a numpy generator for one named stream."""
    return np.random.Generator(np.random.Philox(seed_sequence(seed, purpose, *keys)))


def integer(seed: int, purpose: Purpose, *keys: int) -> int:
    """Return one integer in [0, 2**63), for generators that are seeded with an integer."""
    return int(seed_sequence(seed, purpose, *keys).generate_state(1, np.uint64)[0] >> np.uint64(1))


def integers(count: int, seed: int, purpose: Purpose, *keys: int) -> list[int]:
    """Return `count` seeds in [0, 2**31), as `env.reset(seed=…)` takes them."""
    return [int(word >> 1) for word in seed_sequence(seed, purpose, *keys).generate_state(count, np.uint32)]


def fresh_seed() -> int:
    """Return a seed from the operating system's entropy, for runs without one; the run records it."""
    return int(np.random.SeedSequence().generate_state(1, np.uint32)[0])


def seed_per_env(seed: int | Sequence[int], num_envs: int) -> list[int]:
    """Return one seed for each env: those given, or consecutive ones from a single seed.

    Raises:
        ConfigurationError: another number of seeds than envs.
    """
    if isinstance(seed, (int, np.integer)):
        return [int(seed) + row for row in range(num_envs)]
    if len(seed) != num_envs:
        raise ConfigurationError(f"seed has {len(seed)} entries; allowed is one for each of {num_envs} envs")
    return [int(one) for one in seed]
