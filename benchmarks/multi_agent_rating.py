"""Whether evolution means something where rewards sum to zero: a chase, and games against the first generation.

On a square without exits a chaser has half a minute to touch a runner who is a little slower; who wins earns 1, who
loses -1, and nothing else is ever earned. The subtlety: what a team of both earns together is always 0, so fitness is a
rating from games against opponents of the population's past.

    python -m benchmarks.multi_agent_rating
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

from agilerl_like import (
    IPPO,
    HyperparameterConfig,
    Mutations,
    RLParameter,
    TournamentSelection,
    make_multi_agent_vect_envs,
    train_multi_agent_on_policy,
)
from agilerl_like.algorithms.ippo import MultiAgentPopulation
from agilerl_like.envs.multi_agent.pettingzoo import MultiAgentVectorEnv
from benchmarks import multi_agent_envs as w
from benchmarks.agilerl_like_multi_agent import Curve, best_actions, described
from benchmarks.harness import Run, conditions, interleaved, one, options_of, print_result, publish
from benchmarks.tables import Goal, markdown, median_and_range

CHASER, RUNNER = "chaser_0", "runner_0"
LIMIT = 30  # steps until the runner has won
REACH = 0.15
APART = 0.7  # how far they are at first, at least
SPEEDS = {CHASER: 0.12, RUNNER: 0.1}
DIRECTIONS = ((0.0, 0.0), (-1.0, 0.0), (1.0, 0.0), (0.0, -1.0), (0.0, 1.0))
GAMES, WINS = 200, 0.8
EVALUATIONS = 20
RANGES = HyperparameterConfig(lr=RLParameter(1e-4, 3e-3), ent_coef=RLParameter(1e-3, 5e-2))
SETTINGS: Mapping[str, Any] = {
    "num_envs": 32,
    "learn_step": 2048,
    "batch_size": 512,
    "update_epochs": 6,
    "lr": 1e-3,
    "gamma": 0.98,
    "ent_coef": 0.01,
    "net_config": {"latent_dim": 64, "encoder_config": {"hidden_size": [64]}, "head_config": {"hidden_size": [64]}},
}


class Chase(ParallelEnv[str, np.ndarray, Any]):
    """The chase; everybody sees where both are, relative to the square and to each other, and the time that is left."""

    def __init__(self) -> None:
        self.metadata = {"name": "chase_v0", "render_modes": []}
        self.render_mode = None
        self.possible_agents = [CHASER, RUNNER]
        self.agents: list[str] = []
        self._seen = {agent: Box(-2, 2, (5,), np.float32) for agent in self.possible_agents}
        self._acts = {agent: Discrete(len(DIRECTIONS)) for agent in self.possible_agents}
        self._rng = np.random.default_rng()

    def observation_space(self, agent: str) -> Box:
        return self._seen[agent]

    def action_space(self, agent: str) -> Discrete:
        return self._acts[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, dict[str, Any]]]:
        """Put both anywhere, but not close to each other."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents, self._left = list(self.possible_agents), LIMIT
        self._at = {CHASER: (0.0, 0.0), RUNNER: (0.0, 0.0)}
        while self._distance < APART:
            x, y, other_x, other_y = self._rng.uniform(-1, 1, 4).tolist()
            self._at = {CHASER: (x, y), RUNNER: (other_x, other_y)}
        return self._observations(), {agent: {} for agent in self.agents}

    def step(
        self, actions: dict[str, int]
    ) -> tuple[dict[str, np.ndarray], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """Move both at once."""
        for agent, (x, y) in self._at.items():
            (right, up), speed = DIRECTIONS[actions[agent]], SPEEDS[agent]
            self._at[agent] = (min(1.0, max(-1.0, x + speed * right)), min(1.0, max(-1.0, y + speed * up)))
        self._left -= 1
        caught = self._distance < REACH
        over = caught or self._left == 0
        gain = (1.0 if caught else -1.0) if over else 0.0
        self.agents = [] if over else self.agents
        both = self.possible_agents
        return (
            self._observations(),
            {CHASER: gain, RUNNER: -gain},
            dict.fromkeys(both, over),
            dict.fromkeys(both, False),
            {agent: {} for agent in both},
        )

    @property
    def _distance(self) -> float:
        return math.dist(self._at[CHASER], self._at[RUNNER])

    def _observations(self) -> dict[str, np.ndarray]:
        time_left = self._left / LIMIT
        found = {}
        for agent, other in ((CHASER, RUNNER), (RUNNER, CHASER)):
            (x, y), (other_x, other_y) = self._at[agent], self._at[other]
            found[agent] = np.array([x, y, other_x - x, other_y - y, time_left], np.float32)
        return found


@dataclass(frozen=True)
class Case:
    """How long a population evolves; steps are those of one member."""

    generations: int
    generation_steps: int


@dataclass(frozen=True)
class Won:
    """Shares of games that the last generation's best won, by the side that it played."""

    env_steps: int
    seconds: float
    against_initial: Mapping[str, float]
    against_first: Mapping[str, float]
    found: str

    @property
    def headline(self) -> str:
        """One line for the terminal."""
        first, initial = overall(self.against_first), overall(self.against_initial)
        wins = f"wins {first:.0%} against the first generation, {initial:.0%} against initial members"
        return f"{wins}, {self.seconds:.0f} s"


def overall(won: Mapping[str, float]) -> float:
    """Return the share of all games; there are as many of either side."""
    return statistics.mean(won.values())


def games(best: IPPO, opponents: Sequence[IPPO], each: int) -> dict[str, float]:
    """Let a team play `each` games on either side against each opponent, on equal seeds; return the shares it won."""
    won: dict[str, list[bool]] = {CHASER: [], RUNNER: []}
    for place, opponent in enumerate(opponents):
        seeds = range(w.FRESH_SEED + place * each, w.FRESH_SEED + (place + 1) * each)
        for side, other in ((CHASER, RUNNER), (RUNNER, CHASER)):
            earned = w.play(Chase, best_actions({side: best, other: opponent}), seeds)
            won[side] += (earned[side] > 0).tolist()
    return {side: float(np.mean(mine)) for side, mine in won.items()}


def initial(env: MultiAgentVectorEnv, seed: int) -> MultiAgentPopulation:
    """Make the teams that a run of this seed begins with."""
    return IPPO.population(
        w.MEMBERS,
        env.single_observation_spaces,
        env.single_action_spaces,
        hp_config=RANGES,
        seed=seed,
        **SETTINGS,
    )


def evolved(
    env: MultiAgentVectorEnv, seed: int, generations: int, generation_steps: int
) -> tuple[MultiAgentPopulation, int]:
    """Evolve the initial members for some generations; return the population and all env steps."""
    curve = Curve()
    teams, _ = train_multi_agent_on_policy(
        env,
        pop=initial(env, seed),
        max_steps=generations * generation_steps,
        evo_steps=generation_steps,
        eval_loop=EVALUATIONS,
        selection_strategy=TournamentSelection(2),
        mutation=Mutations(no_mutation=0.4, architecture=0.2, parameters=0.0, activation=0.0, rl_hp=0.4),
        verbose=False,
        reporters=[curve],
        fitness="rating",
    )
    return teams, curve.points[-1][0]


def duel(case: Case, seed: int) -> Won:
    """Evolve, and let the best play against members of the first generation: untrained ones, and trained ones."""
    env = make_multi_agent_vect_envs(Chase, num_envs=SETTINGS["num_envs"])
    start = time.perf_counter()
    teams, env_steps = evolved(env, seed, case.generations, case.generation_steps)
    seconds = time.perf_counter() - start
    first, _ = evolved(env, seed, 1, case.generation_steps)  # bit for bit what the run was after its first generation
    each = GAMES // 2 // w.MEMBERS
    against_initial, against_first = (games(teams.fittest, others, each) for others in (initial(env, seed), first))
    env.close()
    return Won(
        env_steps=env_steps,
        seconds=round(seconds, 1),
        against_initial=against_initial,
        against_first=against_first,
        found=described(teams.fittest),
    )


def section(runs: Sequence[Run[Won]], options: argparse.Namespace) -> list[str]:
    """Return the whole section."""
    rows = [
        (
            str(run.seed),
            f"{run.result.env_steps:,}",
            *(
                f"{overall(won):.1%} ({won[CHASER]:.0%}, {won[RUNNER]:.0%})"
                for won in (run.result.against_initial, run.result.against_first)
            ),
            f"{run.result.seconds:,.0f}",
        )
        for run in runs
    ]
    return [
        "## Teams in zero-sum games",
        "",
        f"A chase on a square whose rewards sum to zero: the runner has to stay out of reach for {LIMIT} steps, the "
        f"chaser is a little faster. {w.MEMBERS} members, {options.generations} generations of "
        f"{options.generation_steps:,} env steps of each; then {GAMES} games of the last generation's best against all "
        "members of the first generation, half of them as the chaser (first number in brackets) and half as the runner "
        "(second), on equal seeds, without exploration. Initial members are untrained; the first "
        "generation is taken at its first evaluation, after training.",
        "",
        conditions(runs, options),
        "",
        *markdown(
            ("seed", "env steps", "wins against initial members", "wins against the first generation", "seconds"), rows
        ),
    ]


def goals(runs: Sequence[Run[Won]]) -> list[Goal]:
    """Return the goals that these runs measured."""
    got = [overall(run.result.against_first) for run in runs]
    what = f"zero-sum chase, evolved against the first generation, {GAMES} games"
    return [Goal(what, f">= {WINS:.0%} won", median_and_range(got, "{:.1%}".format), statistics.median(got) >= WINS)]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generations", type=int, default=8)
    parser.add_argument("--generation-steps", type=int, default=10_240, metavar="N", help="of each member")
    options = options_of(parser, argv, repetitions=3, quick={"generations": 2, "generation_steps": 2048}, threads=1)
    if options.one:
        torch.set_num_threads(options.threads)
        print_result(duel(Case(**json.loads(options.one)), options.seed))
        return
    sides = {"ours": one("benchmarks.multi_agent_rating", Case(options.generations, options.generation_steps))}
    runs = interleaved(sides, Won, options, case="chase")
    publish("multi_agent_rating", section(runs, options), runs, goals(runs), options)


if __name__ == "__main__":
    main()
