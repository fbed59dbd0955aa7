"""What DQN, PQN, TD3, SAC, evolution strategies and Q-learning reach with the bundled configurations, five seeds each.

A run trains the configuration as it is shipped, so it ends at its target or with its budget; then its best agent has
fresh episodes without exploration. DQN on LunarLander has AgileRL and Stable-Baselines3 beside it, SAC on HalfCheetah
Stable-Baselines3, with as many env steps. A run of this script replaces the rows of its cases and keeps those of the
others.

    python -m benchmarks.learner_returns
    python -m benchmarks.learner_returns --cases taxi frozen_lake --output -
"""

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from benchmarks.agilerl_like_setup import train_bundled
from benchmarks.harness import (
    Run,
    conditions,
    earlier_runs,
    interleaved,
    one,
    options_of,
    print_result,
    publish,
)
from benchmarks.learner_work import CHEETAH, EPISODES, LANDER, Learned, Work
from benchmarks.tables import Goal, markdown, median_and_range
from benchmarks.venvs import interpreter

OURS = "agilerl_like"
PEERS = {"sb3": "Stable-Baselines3", "agilerl": "AgileRL"}
SEEDS = 5


@dataclass(frozen=True)
class Comparison:
    """What peers train beside a configuration, and which of them do; `settings` give our side as many env steps."""

    work: Work
    peers: Sequence[str]
    settings: Sequence[str] = ()


COMPARISONS: Mapping[str, Comparison] = {
    "lunar_lander_dqn": Comparison(LANDER, ("sb3", "agilerl")),
    "half_cheetah_sac": Comparison(
        CHEETAH,
        ("sb3",),
        (f"--training.max-steps={CHEETAH.steps // 4}", f"--training.evo-steps={CHEETAH.steps // 40}"),
    ),
}


@dataclass(frozen=True)
class Wanted:
    """What a configuration should reach: a return in so many of five seeds, in so many CPU seconds.

    Without a `score` it is the mean of Stable-Baselines3's runs, for the mean of ours.
    """

    name: str
    score: float | None = None
    seeds: int = SEEDS
    cpu_seconds: float | None = None
    episodes: int = EPISODES

    def is_met(self, result: Learned) -> bool:
        """Whether a run reached it."""
        in_time = self.cpu_seconds is None or result.cpu_seconds <= self.cpu_seconds
        return self.score is not None and result.score >= self.score and in_time

    def __str__(self) -> str:
        if self.score is None:
            return f">= {PEERS['sb3']}"
        in_time = "" if self.cpu_seconds is None else f" in {self.cpu_seconds:g} CPU s"
        return f">= {self.score:g}{in_time}, {self.seeds} of {SEEDS}"


CASES: Mapping[str, Wanted] = {
    "cartpole_dqn": Wanted("DQN, CartPole-v1", 475.0),
    "cartpole_pqn": Wanted("PQN, CartPole-v1", 475.0, seeds=4),
    "lunar_lander_dqn": Wanted("DQN, LunarLander-v3", 200.0, seeds=4),
    "pendulum_td3": Wanted("TD3, Pendulum-v1", -180.0),
    "pendulum_sac": Wanted("SAC, Pendulum-v1", -180.0),
    "cartpole_openaies": Wanted("OpenAIES, CartPole-v1", 500.0, cpu_seconds=60.0),
    "lunar_lander_continuous_openaies": Wanted("OpenAIES, LunarLanderContinuous-v3", 200.0, seeds=4),
    "half_cheetah_sac": Wanted("SAC, HalfCheetah-v5", seeds=2, episodes=CHEETAH.episodes),
    "taxi": Wanted("Q-learning, Taxi-v4", 7.5, episodes=500),
    "frozen_lake": Wanted("Q-learning, FrozenLake-v1, slippery", 0.70, episodes=1000),
}


@dataclass(frozen=True)
class Case:
    """What one process of ours trains."""

    config: str
    episodes: int


def measure(case: Case, seed: int) -> Learned:
    """Train a bundled configuration, and play fresh episodes with its best agent."""
    comparison = COMPARISONS.get(case.config)
    settings = comparison.settings if comparison else ()
    run = train_bundled(case.config, ["--seed", str(seed), *settings], episodes=case.episodes)
    members, steps = len(run.result.population), run.result.summary.env_steps
    return Learned.of(OURS, members, steps, run.cpu_seconds, run.fresh_returns)


def commands(name: str, sides: Sequence[str]) -> dict[str, list[str]]:
    """Return the commands of a case by side, of those in `sides` that it has."""
    comparison = COMPARISONS.get(name)
    found = {}
    for side in sides:
        if side == OURS:
            found[side] = one("benchmarks.learner_returns", Case(name, CASES[name].episodes))
        elif comparison and side in comparison.peers:
            script = f"benchmarks.peers.{side}_learners"
            found[PEERS[side]] = [str(interpreter(side)), "-m", script, "--env", comparison.work.env]
    return found


def section(runs: Sequence[Run[Learned]], options: argparse.Namespace) -> list[str]:
    """Return the whole section."""
    rows = []
    for name, wanted in CASES.items():
        for side in (OURS, *PEERS.values()):
            mine = [run.result for run in runs if run.case == name and run.side == side]
            if not mine:
                continue
            rows.append(
                (
                    wanted.name,
                    side,
                    str(mine[0].members),
                    ", ".join(f"{its.score:.4g} ± {its.error:.2g}" for its in mine),
                    str(wanted),
                    median_and_range([its.env_steps for its in mine], "{:,.0f}".format),
                    median_and_range([its.cpu_seconds for its in mine], "{:,.0f}".format),
                )
            )
    head = ("learner, environment", "by", "members", "return and its standard error, seed by seed", "wanted")
    return [
        "## Returns of the other learners",
        "",
        "The bundled configurations as they are shipped: a run ends at its target, which fresh episodes "
        "confirm (as many as an evaluation has, at least 20), or with its budget. "
        f"Then {EPISODES} fresh episodes of its best agent without exploration (500 of Taxi, 1,000 of "
        f"FrozenLake, {CHEETAH.episodes} of HalfCheetah). Env steps are those of all members: on LunarLander peers "
        f"have {LANDER.steps:,}, on HalfCheetah both sides have {CHEETAH.steps:,}. Stable-Baselines3 trains one agent "
        "with the hyperparameters that rl-zoo tuned (DQN's agent is the best of rl-zoo's evaluations, SAC's the last), "
        "AgileRL four members in its own `train_off_policy`, with the hyperparameters of its `dqn.yaml`. "
        "On HalfCheetah each of our four members takes a gradient step for each of its own env steps: a quarter of the "
        "gradient steps of Stable-Baselines3's agent, and all four as many. CPU seconds include those of env workers. "
        "The date is that of the last run, which keeps the rows that it did not measure.",
        "",
        conditions(runs, options, timed=False),
        "",
        *markdown((*head, "env steps of all members", "CPU seconds"), rows),
    ]


def goals(runs: Sequence[Run[Learned]]) -> list[Goal]:
    """Return the goals of the cases of which enough seeds were run."""
    found = []
    for name, wanted in CASES.items():
        mine, theirs = (
            [run.result for run in runs if run.case == name and run.side == side] for side in (OURS, PEERS["sb3"])
        )
        if wanted.score is None:
            if min(len(mine), len(theirs)) >= wanted.seeds:
                ours, peer = (statistics.mean(its.score for its in results) for results in (mine, theirs))
                found.append(Goal(wanted.name, str(wanted), f"{ours:.4g} against {peer:.4g}", ours >= peer))
        elif len(mine) >= SEEDS:
            met = sum(map(wanted.is_met, mine))
            found.append(Goal(wanted.name, str(wanted), f"{met} of {len(mine)}", met >= wanted.seeds))
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--sides", nargs="+", choices=[OURS, *PEERS], default=[OURS, *PEERS])
    options = options_of(parser, argv, repetitions=SEEDS, threads=1, timeout=7200, quick={"cases": ["taxi"]})
    torch.set_num_threads(options.threads)
    if options.one:
        print_result(measure(Case(**json.loads(options.one)), options.seed))
        return
    runs: list[Run[Learned]] = []
    for name in options.cases:
        runs += interleaved(commands(name, options.sides), Learned, options, case=name)
    if options.output != "-":
        runs += earlier_runs("learner_returns", Learned, runs, options)
    publish("learner_returns", section(runs, options), runs, goals(runs), options)


if __name__ == "__main__":
    main()
