"""What more processes bring, and what they cost: steps per second on one and on two, and births across them.

    python -m benchmarks.processes
    python -m benchmarks.processes --parts speed --repetitions 1 --output -

Speed is a run's own, from the end of its first generation to the end of its last, with its evaluations and without
evolution; each process has one thread. A generation's births are a run's own account, on its main process, of the
seconds for which all of them gather what is known, decide, move parents and carry births out.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch

from agilerl_like import PPO, HyperparameterConfig, Mutations, RLParameter, TournamentSelection, make_vect_envs
from agilerl_like.training import train_on_policy
from benchmarks.agilerl_like_setup import Ear
from benchmarks.harness import Run, conditions, interleaved, one, options_of, print_result, publish, ratios, values
from benchmarks.measurement import (
    ENVS_PER_MEMBER,
    EPOCHS,
    GENERATION_STEPS,
    LEARNING_RATE,
    MINIBATCH,
    UPDATE_STEPS,
    WIDTH,
)
from benchmarks.tables import Goal, markdown, median_and_range

FASTER, MILLISECONDS = 1.7, 100.0
SPEED, BIRTHS = "speed", "births"
ALL_KINDS = Mutations(no_mutation=0.2, architecture=0.2, parameters=0.2, activation=0.2, rl_hp=0.2)
RANGES = HyperparameterConfig(lr=RLParameter(1e-4, 1e-2), ent_coef=RLParameter(1e-4, 1e-1))


@dataclass(frozen=True)
class Case:
    """One run: on so many processes, of so many members and generations."""

    part: str
    env: str
    backend: str
    processes: int
    members: int
    generations: int
    generation_steps: int


@dataclass(frozen=True)
class RunSpeed:
    """Speed of a run, and what each of its generations took to evolve, as its records have them."""

    steps_per_second: float
    evolve_milliseconds: Sequence[float]

    @property
    def headline(self) -> str:
        """One line for the terminal."""
        births = statistics.median(self.evolve_milliseconds)
        return f"{self.steps_per_second:,.0f} steps/s, births {births:.1f} ms"


def measure(case: Case, threads: int, seed: int) -> RunSpeed:
    """Do the run and read its records."""
    torch.set_num_threads(threads)
    env = make_vect_envs(case.env, num_envs=ENVS_PER_MEMBER, backend=case.backend)
    layers = {"hidden_size": [WIDTH], "activation": "ReLU"}
    population = PPO.population(
        case.members,
        env.single_observation_space,
        env.single_action_space,
        hp_config=RANGES,
        net_config={"latent_dim": WIDTH, "encoder_config": layers, "head_config": layers},
        share_encoders=True,
        learn_step=min(UPDATE_STEPS, case.generation_steps),
        batch_size=MINIBATCH,
        update_epochs=EPOCHS,
        lr=LEARNING_RATE,
        seed=seed,
    )
    ear = Ear()
    with tempfile.TemporaryDirectory() as folder:
        train_on_policy(
            env,
            pop=population,
            max_steps=case.generations * case.generation_steps,
            evo_steps=case.generation_steps,
            eval_loop=1,
            selection_strategy=TournamentSelection(2) if case.part == BIRTHS else None,
            mutation=ALL_KINDS if case.part == BIRTHS else None,
            processes=case.processes,
            run_dir=Path(folder) / "run",
            verbose=False,
            reporters=[ear],
        )
    env.close()
    steps, seconds = ear.after_first()
    evolve = [record.seconds_by_part["evolve"] for record in ear.heard]
    spent = [1e3 * (after - before) for before, after in pairwise(evolve)]
    return RunSpeed(round(steps / seconds, 1), [round(x, 2) for x in spent])


def faster(runs: Sequence[Run[RunSpeed]], backend: str) -> list[float]:
    """How many times the speed two processes have, round by round."""
    mine = [run for run in runs if run.case == f"{SPEED}, {backend}"]
    return ratios(mine, "2", "1", lambda result: result.steps_per_second)


def births_of(runs: Sequence[Run[RunSpeed]], side: str) -> list[float]:
    """Milliseconds of every generation's births."""
    mine = [run for run in runs if run.case == BIRTHS]
    return [spent for run in mine if run.side == side for spent in run.result.evolve_milliseconds]


def section(runs: Sequence[Run[RunSpeed]], options: argparse.Namespace) -> list[str]:
    """The whole section."""
    speeds = []
    for backend in options.backends:
        mine = [run for run in runs if run.case == f"{SPEED}, {backend}"]
        if mine:
            speed = [
                median_and_range(values(mine, side, lambda result: result.steps_per_second), "{:,.0f}".format)
                for side in "12"
            ]
            speeds.append((backend, *speed, median_and_range(faster(runs, backend), "{:.2f}x".format)))
    spent = [(side, median_and_range(found, "{:.1f} ms".format)) for side in "12" if (found := births_of(runs, side))]
    return [
        "## Two processes",
        "",
        f"{options.env}, P={options.members}, {ENVS_PER_MEMBER} envs a member, generations of "
        f"{options.generation_steps:,} steps a member with one evaluation episode each, no evolution, one thread a "
        f"process. Steps per second of all members together; median (minimum to maximum) of {options.repetitions}.",
        "",
        conditions(runs, options),
        "",
        *markdown(("envs stepped by", "one process", "two processes", "two / one"), speeds),
        "",
        f"Milliseconds of one generation's offspring, CartPole-v1, P={options.births_members}, nets of {WIDTH}, all "
        f"kinds of mutation, median (minimum to maximum) of all generations.",
        "",
        *markdown(("processes", "gather, select, send, mutate"), spent),
    ]


def goals(runs: Sequence[Run[RunSpeed]], options: argparse.Namespace) -> list[Goal]:
    """Return the goals that these runs measured."""
    found = []
    for backend in options.backends:
        if got := faster(runs, backend):
            what = f"two processes against one, {options.env} ({backend}), P={options.members}"
            reached = statistics.median(got) >= FASTER
            found.append(Goal(what, f">= {FASTER:g}x", median_and_range(got, "{:.2f}x".format), reached))
    if spent := births_of(runs, "2"):
        what = f"births across two processes, P={options.births_members}"
        reached = statistics.median(spent) <= MILLISECONDS
        found.append(Goal(what, f"<= {MILLISECONDS:g} ms", median_and_range(spent, "{:.1f} ms".format), reached))
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=(SPEED, BIRTHS), default=[SPEED, BIRTHS])
    parser.add_argument("--env", default="LunarLander-v3")
    parser.add_argument("--backends", nargs="+", default=["sync", "auto"], help="how envs are stepped")
    parser.add_argument("--members", type=int, default=8, metavar="P")
    parser.add_argument("--births-members", type=int, default=16, metavar="P")
    parser.add_argument("--generations", type=int, default=3)
    parser.add_argument("--births-generations", type=int, default=20)
    parser.add_argument("--generation-steps", type=int, default=GENERATION_STEPS)
    quick = {"generations": 2, "births_generations": 3, "members": 2, "births_members": 4, "generation_steps": 512}
    options = options_of(parser, argv, repetitions=3, quick=quick, threads=1)
    if options.one:
        case = Case(**json.loads(options.one))
        print_result(measure(case, options.threads, options.seed))
        return
    runs: list[Run[RunSpeed]] = []
    module = "benchmarks.processes"
    for backend in options.backends if SPEED in options.parts else ():
        size = options.members, options.generations, options.generation_steps
        sides = {str(n): one(module, Case(SPEED, options.env, backend, n, *size)) for n in (1, 2)}
        runs += interleaved(sides, RunSpeed, options, case=f"{SPEED}, {backend}")
    if BIRTHS in options.parts:
        size = options.births_members, options.births_generations, 512
        sides = {str(n): one(module, Case(BIRTHS, "CartPole-v1", "auto", n, *size)) for n in (1, 2)}
        runs += interleaved(sides, RunSpeed, options, case=BIRTHS, repetitions=1)
    publish("processes", section(runs, options), runs, goals(runs, options), options)


if __name__ == "__main__":
    main()
