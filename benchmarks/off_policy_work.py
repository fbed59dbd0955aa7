"""Gradient steps from a replay: the work, the options and the line of JSON of each side.

Peers run in virtual environments of their own, so this file needs the standard library alone.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata

from benchmarks.measurement import versions

ENVS = {"DQN": "CartPole-v1", "TD3": "Pendulum-v1"}
WIDTH = 64
"""Units of encoder, latent layer and heads."""
BATCH = 64
STORED = 2_048
"""Env steps in the replay of each member."""
LEARNING_RATE, GAMMA, TAU, POLICY_DELAY = 1e-3, 0.99, 0.005, 2


@dataclass(frozen=True)
class Updates:
    """What one run took: `updates` gradient steps of all members together, each with a minibatch of its own."""

    peer: str
    version: str
    algorithm: str
    members: int
    at_once: int
    updates: int
    cpu_seconds: float
    per_second: float
    versions: Mapping[str, str] = field(default_factory=dict)
    network: Sequence[str] = ()

    @classmethod
    def of(
        cls, peer: str, distribution: str, options: argparse.Namespace, seconds: float, network: Sequence[str]
    ) -> "Updates":
        """Build a result; `network` lists the layers that were built."""
        updates = options.members * options.updates
        return cls(
            peer,
            metadata.version(distribution),
            options.algorithm,
            options.members,
            options.at_once,
            updates,
            round(seconds, 3),
            round(updates / seconds, 1),
            versions(),
            tuple(network),
        )

    @property
    def headline(self) -> str:
        """One line for the terminal."""
        return f"{self.per_second:,.0f} updates per CPU second"

    def to_json(self) -> str:
        """Return one line."""
        return json.dumps(asdict(self))


def parse_options(description: str) -> argparse.Namespace:
    """Read the options of one side's script."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--algorithm", choices=ENVS, default="DQN")
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--updates", type=int, default=1_000, help="gradient steps of each member")
    parser.add_argument("--at-once", type=int, default=1, help="gradient steps of a member in one call")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.updates % options.at_once:
        parser.error(f"--updates {options.updates}; allowed are multiples of --at-once {options.at_once}")
    return options
