"""What learners of the replay, evolution strategies and tables are compared by, and the line of JSON of each run.

Peers run in virtual environments of their own, so this file needs the standard library alone.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

LANDER, LANDER_STEPS = "LunarLander-v3", 800_000
"""The environment of the comparison with peers, and the env steps that each side may take in training."""
EPISODES = 100
TEST_SEED = 1_000_000


@dataclass(frozen=True)
class Learned:
    """What one run came to: mean and standard error of the return of its agent in fresh episodes."""

    peer: str
    members: int
    env_steps: int
    cpu_seconds: float
    score: float
    error: float

    @classmethod
    def of(cls, peer: str, members: int, env_steps: int, cpu_seconds: float, returns: Sequence[float]) -> "Learned":
        """Build a result from the returns of the fresh episodes."""
        mean = sum(returns) / len(returns)
        variance = sum((its - mean) ** 2 for its in returns) / (len(returns) - 1)
        error = (variance / len(returns)) ** 0.5
        return cls(peer, members, env_steps, round(cpu_seconds, 1), round(mean, 3), round(error, 3))

    @property
    def headline(self) -> str:
        """One line for the terminal."""
        return f"{self.score:.2f} after {self.env_steps:,} steps, {self.cpu_seconds:.0f} CPU s"

    def to_json(self) -> str:
        """Return one line."""
        return json.dumps(asdict(self))


def parse_options(description: str) -> argparse.Namespace:
    """Read the options of a peer's script."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=int, default=LANDER_STEPS, help="env steps in training")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()
