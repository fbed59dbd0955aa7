"""What learners of the replay, evolution strategies and tables are compared by, and the line of JSON of each run.

Peers run in virtual environments of their own, so this file needs the standard library alone.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

EPISODES = 100
TEST_SEED = 1_000_000


@dataclass(frozen=True)
class Work:
    """An environment in which peers train too, with the env steps and the fresh episodes of each side."""

    env: str
    steps: int
    episodes: int = EPISODES


LANDER = Work("LunarLander-v3", 800_000)
CHEETAH = Work("HalfCheetah-v5", 200_000, episodes=20)
"""A fifth of rl-zoo's: a gradient step of our four members takes 62 ms of one core, a million env steps four hours."""


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


def parse_options(description: str | None, works: Sequence[Work]) -> tuple[argparse.Namespace, Work]:
    """Read the options of a peer's script, and return its work in the environment that they name."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--env", choices=[work.env for work in works], default=works[0].env)
    parser.add_argument("--steps", type=int, help="env steps in training, if not those of the comparison")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    return options, next(work for work in works if work.env == options.env)
