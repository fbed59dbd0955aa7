"""The work that every throughput script does, the options it takes and the one line of JSON it answers with.

Peers run in virtual environments of their own, so this file needs the standard library alone.
"""

import argparse
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata

ENVS_PER_MEMBER = 16
UPDATE_STEPS = 2048  # env steps of one member between two updates
MINIBATCH = 128
EPOCHS = 4
WIDTH = 64  # encoder, latent and heads alike
GENERATION_STEPS = 10_240  # how long a member trains before its neighbour's turn: AgileRL's evo_steps
LEARNING_RATE = 1e-3
GAMMA = 0.99
GAE_LAMBDA = 0.95
CLIP = 0.2
ENTROPY = 0.01
VALUE = 0.5
GRADIENT_NORM = 0.5

ENVS = ("CartPole-v1", "LunarLander-v3")

POSITIONS = "CartPole-v1 without velocities"
BREAKOUT = "MinAtar/Breakout-v1"
NETWORK_ENVS = (POSITIONS, BREAKOUT)
"""Environments for networks with memory and for images (see ``envs.py``)."""
SEQUENCE = 16  # steps through which gradients flow back
CHANNELS = (16, 32)  # of convolutions of 3 by 3, stride 1
IMAGE_LATENT = 128
RECURRENT_LATENT = 16  # of ours, before its LSTM: with it both sides have 30,000 weights


@dataclass(frozen=True)
class Work:
    """One measurement to make: ``members`` agents that train ``steps_per_member`` env steps each."""

    env: str
    members: int
    steps_per_member: int
    threads: int
    seed: int
    processes: int = 1
    compile: bool = False

    @property
    def updates_per_member(self) -> int:
        """Learning phases of one member."""
        return self.steps_per_member // UPDATE_STEPS

    @property
    def turns(self) -> list[int]:
        """Updates of a member in each of its turns; between them the other members have theirs."""
        longest = GENERATION_STEPS // UPDATE_STEPS
        full, rest = divmod(self.updates_per_member, longest)
        return [longest] * full + [rest] * (rest > 0)


@dataclass(frozen=True)
class Measurement:
    """What one run of one side took; only the loop is timed, after a warm-up update of every member."""

    peer: str
    version: str
    env: str
    members: int
    threads: int
    env_steps: int
    seconds: float
    steps_per_second: float
    versions: Mapping[str, str] = field(default_factory=dict)
    network: Sequence[str] = ()

    @classmethod
    def of(cls, peer: str, distribution: str, work: Work, seconds: float, network: Sequence[str]) -> "Measurement":
        """Build a measurement; ``network`` lists the layers that were built."""
        env_steps = work.members * work.steps_per_member
        return cls(
            peer=peer,
            version=metadata.version(distribution),
            env=work.env,
            members=work.members,
            threads=work.threads,
            env_steps=env_steps,
            seconds=round(seconds, 4),
            steps_per_second=round(env_steps / seconds, 1),
            versions=versions(),
            network=tuple(network),
        )

    @property
    def headline(self) -> str:
        """One line for the terminal."""
        return f"{self.steps_per_second:,.0f} steps/s"

    def to_json(self) -> str:
        """Return one line."""
        return json.dumps(asdict(self))


def parse_work(
    description: str,
    argv: Sequence[str] | None = None,
    *,
    envs: Sequence[str] = ENVS,
    spreads: bool = False,
    compiles: bool = False,
) -> Work:
    """Read the options that all throughput scripts share, and those of a script that ``spreads`` or ``compiles``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--env", choices=envs, default=envs[0])
    parser.add_argument("--members", type=int, default=1, metavar="P", help="agents in the population")
    parser.add_argument(
        "--steps-per-member",
        type=int,
        default=10 * UPDATE_STEPS,
        metavar="N",
        help=f"timed env steps of each member, a multiple of {UPDATE_STEPS} (default: %(default)s)",
    )
    parser.add_argument("--threads", type=int, default=2, help="torch's threads (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    if spreads:
        parser.add_argument("--processes", type=int, default=1, help="that share the members (default: %(default)s)")
    if compiles:
        parser.add_argument("--compile", action="store_true", help="train with compile=True")
    options = parser.parse_args(argv)
    if options.members < 1:
        parser.error(f"--members is {options.members}, must be at least 1")
    if options.steps_per_member < UPDATE_STEPS or options.steps_per_member % UPDATE_STEPS:
        parser.error(f"--steps-per-member is {options.steps_per_member}, must be a multiple of {UPDATE_STEPS}")
    return Work(**vars(options))


def versions() -> dict[str, str]:
    """Return the versions that decide a run's speed, of those packages that are installed."""
    found = {"python": platform.python_version()}
    for package in ("torch", "gymnasium", "numpy", "tensordict", "envpool"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
