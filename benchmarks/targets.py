"""Returns to reach, and what a run that stopped there took. Peers run this: it needs the standard library alone."""

import argparse
from dataclasses import dataclass

TARGETS = {"CartPole-v1": 475.0, "LunarLander-v3": 200.0}
BUDGETS = {"CartPole-v1": 2_000_000, "LunarLander-v3": 3_000_000}
"""Env steps of all members after which a side gives up."""
EPISODES = 20
"""Fresh episodes that confirm a return."""
TEST_SEED = 1_000_000


@dataclass(frozen=True)
class Reached:
    """How long one run took; without `reached` it spent its budget."""

    peer: str
    env: str
    members: int
    seconds: float
    cpu_seconds: float
    env_steps: int
    score: float
    reached: bool

    @property
    def headline(self) -> str:
        """One line for the terminal."""
        return f"{self.score:.0f} after {self.cpu_seconds:.1f} CPU s, {self.env_steps:,} steps"


def parse_options(description: str) -> argparse.Namespace:
    """Read the options of a peer's script."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--env", choices=TARGETS, default="CartPole-v1")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()
