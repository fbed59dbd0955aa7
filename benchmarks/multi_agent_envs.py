"""Multi-agent environments of ``benchmarks.multi_agent_returns``, the work of a side, and how its result is evaluated.

A team's fitness is its share of the way from agents that act at random to scripted greedy ones, all three on the same
episodes. The subtlety is in the greedy ones: agents have inertia, so they aim from where they would come to
rest. Peers run in virtual environments of their own, so this file needs numpy, PettingZoo and mpe2 alone.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import permutations
from typing import NamedTuple, cast

import numpy as np
from gymnasium.spaces import Discrete
from mpe2 import simple_speaker_listener_v4, simple_spread_v3
from pettingzoo import ParallelEnv

from benchmarks.measurement import UPDATE_STEPS

CYCLES = 25  # steps of an episode
MEMBERS = 4
FRESH_EPISODES = 200  # of the last evaluation
FRESH_SEED = 1_000_000_000  # of the first of them: no run trains or evaluates with such seeds
AT_ONCE = 50  # episodes in parallel: an mpe2 env allocates two megabytes for rendering
PUSH = 0.2  # how far an agent that rests is carried by one action: the push of 0.5, coasting 0.1 + 0.075 + …
COASTING = 0.4  # how far it is carried by a speed of 1

Observations = Mapping[str, np.ndarray]  # by agent, [N, …]
Actions = Mapping[str, np.ndarray]  # by agent, [N]
Act = Callable[[Observations], Actions]


class BenchmarkEnv(NamedTuple):
    """An environment with discrete actions and no agent deaths, and a policy that plays it well."""

    factory: Callable[..., ParallelEnv]
    greedy: Act

    def make(self) -> ParallelEnv:
        """Make one copy."""
        return self.factory(max_cycles=CYCLES)


def play(make: Callable[[], ParallelEnv], act: Act, seeds: Sequence[int]) -> dict[str, np.ndarray]:
    """Play one episode of each seed; return what each agent earned in it, [N]."""
    rounds = [_play_at_once(make, act, seeds[i : i + AT_ONCE]) for i in range(0, len(seeds), AT_ONCE)]
    return {agent: np.concatenate([earned[agent] for earned in rounds]) for agent in rounds[0]}


def _play_at_once(make: Callable[[], ParallelEnv], act: Act, seeds: Sequence[int]) -> dict[str, np.ndarray]:
    envs = [make() for _ in seeds]
    seen = [env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=True)]
    earned = {agent: np.zeros(len(envs)) for agent in seen[0]}
    running = list(range(len(envs)))
    while running:
        actions = act({agent: np.stack([one[agent] for one in seen]) for agent in earned})
        for i in running:
            seen[i], rewards, *_ = envs[i].step({agent: int(actions[agent][i]) for agent in earned})
            for agent, reward in rewards.items():
                earned[agent][i] += reward
        running = [i for i in running if envs[i].agents]
    for env in envs:
        env.close()
    return earned


def mean_return(env: BenchmarkEnv, act: Act, episodes: int = FRESH_EPISODES) -> float:
    """Return what a team earns in an episode, all agents together, on average over the fresh ones."""
    earned = play(env.make, act, range(FRESH_SEED, FRESH_SEED + episodes))
    return float(np.sum(list(earned.values()), axis=0).mean())


def at_random(env: BenchmarkEnv, seed: int) -> Act:
    """Return agents that draw any action as often as any other."""
    rng, one = np.random.default_rng(seed), env.make()
    choices = {agent: cast(Discrete, one.action_space(agent)).n for agent in one.possible_agents}
    one.close()
    return lambda seen: {agent: rng.integers(choices[agent], size=len(obs)) for agent, obs in seen.items()}


def steer(gap: np.ndarray, velocity: np.ndarray) -> np.ndarray:
    """Return the actions [N] that bring agents closer to what lies `gap` [N, 2] away: stay, left, right, down, up."""
    missing = gap - COASTING * velocity
    axis = np.abs(missing).argmax(1)
    along = np.take_along_axis(missing, axis[:, None], 1)[:, 0]
    return np.where(np.abs(along) < PUSH / 2, 0, 1 + 2 * axis + (along > 0))


def speak_and_go(seen: Observations) -> Actions:
    """The speaker sends the goal's index, the listener moves to that landmark and waits until it receives a word."""
    spoken = seen["speaker_0"].argmax(1)  # the goal's colour has its own channel
    velocity, landmarks, heard = np.split(seen["listener_0"], [2, 8], axis=1)
    goal = landmarks.reshape(-1, 3, 2)[np.arange(len(heard)), heard.argmax(1)]
    return {"speaker_0": spoken, "listener_0": np.where(heard.any(1), steer(goal, velocity), 0)}


def spread_out(seen: Observations) -> Actions:
    """Go to a landmark of one's own, dealt so that the ways are shortest together."""
    gaps = np.stack([obs[:, 4:10].reshape(-1, 3, 2) for obs in seen.values()], 1)  # [N, agent, landmark, 2]
    ways = np.linalg.norm(gaps, axis=-1)
    agents, deals = np.arange(3), np.array(list(permutations(range(3))))
    best = deals[ways[:, agents, deals].sum(-1).argmin(1)]  # [N, agent]: its landmark
    own = np.take_along_axis(gaps, best[:, :, None, None], 2)[:, :, 0]
    return {agent: steer(own[:, i], obs[:, :2]) for i, (agent, obs) in enumerate(seen.items())}


ENVS = {
    "simple_speaker_listener_v4": BenchmarkEnv(simple_speaker_listener_v4.parallel_env, speak_and_go),
    "simple_spread_v3": BenchmarkEnv(simple_spread_v3.parallel_env, spread_out),
}


class Yardstick(NamedTuple):
    """Returns of a random and a greedy policy, between which other returns are placed."""

    random: float
    greedy: float

    @classmethod
    def of(cls, env: BenchmarkEnv, episodes: int = FRESH_EPISODES) -> "Yardstick":
        """Play the fresh episodes with both."""
        return cls(*(mean_return(env, act, episodes) for act in (at_random(env, FRESH_SEED), env.greedy)))

    def share(self, earned: float) -> float:
        """Return the share of the distance from the random to the greedy return."""
        return round((earned - self.random) / (self.greedy - self.random), 4)


LEARN, SPEED = "learn", "speed"


@dataclass(frozen=True)
class Task:
    """The work of one side's script; steps are env steps of one member, in each of which all its agents act."""

    part: str
    env_name: str
    steps_per_member: int
    threads: int
    seed: int
    processes: int = 1
    critic: str = "policy"

    def words(self) -> list[str]:
        """Return the options that `parse_task` reads, but for threads and seed, which the harness adds."""
        numbers = ["--steps-per-member", str(self.steps_per_member), "--processes", str(self.processes)]
        critic = [] if self.critic == "policy" else ["--critic", self.critic]
        return ["--part", self.part, "--env", self.env_name, *numbers, *critic]


def parse_task(description: str, argv: Sequence[str] | None = None) -> Task:
    """Read the options of a side's script."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--part", choices=(LEARN, SPEED), default=LEARN)
    parser.add_argument("--env", dest="env_name", choices=ENVS, default=next(iter(ENVS)))
    parser.add_argument("--steps-per-member", type=int, default=10 * UPDATE_STEPS, metavar="N")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1, help="over which members are spread (ours alone can)")
    parser.add_argument("--critic", default="policy", help="critic_observation (ours alone can)")
    return Task(**vars(parser.parse_args(argv)))


@dataclass(frozen=True)
class Learned:
    """The result of one run, as shares of the distance from random to greedy.

    `curve` is after each generation the env steps of all members so far, and the best member's share by its own
    evaluation; `share` is that of the last best member on the fresh episodes without exploration, and `drawn` with
    actions drawn, where that was measured too.
    """

    peer: str
    env_name: str
    seed: int
    env_steps: int
    seconds: float
    random: float
    greedy: float
    share: float
    curve: Sequence[tuple[int, float]]
    found: str = ""
    drawn: float | None = None

    @classmethod
    def of(
        cls,
        peer: str,
        task: Task,
        seconds: float,
        curve: Sequence[tuple[int, float]],
        earned: float,
        found: str,
        *,
        drawn: float | None = None,
    ) -> "Learned":
        """Build a result from returns, converted to shares."""
        yardstick = Yardstick.of(ENVS[task.env_name])
        return cls(
            peer=peer,
            env_name=task.env_name,
            seed=task.seed,
            env_steps=curve[-1][0],
            seconds=round(seconds, 1),
            random=round(yardstick.random, 2),
            greedy=round(yardstick.greedy, 2),
            share=yardstick.share(earned),
            curve=[(steps, yardstick.share(fitness)) for steps, fitness in curve],
            found=found,
            drawn=None if drawn is None else yardstick.share(drawn),
        )

    @property
    def headline(self) -> str:
        """One line for the terminal."""
        return f"{self.share:.0%} of the way after {self.env_steps:,} steps in {self.seconds:.0f} s"

    def after(self, env_steps: int) -> float:
        """Return the curve's height there: that of the last generation until then."""
        heights = [height for steps, height in self.curve if steps <= env_steps]
        return heights[-1] if heights else 0.0

    def to_json(self) -> str:
        """Return one line."""
        return json.dumps(asdict(self))
