"""What networks with memory, for images and for several inputs reach: return on 100 fresh episodes, seed by seed.

The shipped configurations are trained with their whole budget (and without their target, if they have one), and beside
them what ought to fail: an MLP where memory is needed, and a network that sees one part of two.

    python -m benchmarks.network_returns                                   # about two hours on one core
    python -m benchmarks.network_returns --parts dict --repetitions 1 --output -
"""

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from time import perf_counter

import torch

from agilerl_like.config import build, load
from agilerl_like.envs import VecEnvAdapter, evaluation_env
from agilerl_like.reporting import CallbackList
from agilerl_like.seeding import Purpose, integers
from agilerl_like.training.env_setup import SingleAgentEnvSetup
from agilerl_like.training.session import train_population
from agilerl_like.training.training_arguments import OutputPaths
from benchmarks.harness import Run, conditions, interleaved, one, options_of, print_result, publish, values
from benchmarks.tables import ROOT, Goal, markdown
from benchmarks.venvs import interpreter, is_ready

EPISODES = 100
SB3 = "Stable-Baselines3, one agent"
ENTRIES = "agilerl_like.envs.observation_wrappers:SelectEntries"
DRAWN = "agilerl_like.envs.observation_wrappers:DrawnPole"


@dataclass(frozen=True)
class Lesson:
    """A configuration, and what is changed of it."""

    config: str
    overrides: Sequence[str] = ()


@dataclass(frozen=True)
class Learned:
    """What one run came to; `drawn` is the return with drawn actions, where that was measured too."""

    learner: str
    env_name: str
    seed: int
    env_steps: int
    seconds: float
    mean: float
    found: str
    drawn: float | None = None

    @property
    def headline(self) -> str:
        """One line for the terminal."""
        return f"{self.mean:.1f} after {self.env_steps:,} steps in {self.seconds:.0f} s"


@dataclass(frozen=True)
class Part:
    """Learners of one environment, and its maximum number of seeds."""

    title: str
    lessons: Mapping[str, Lesson]
    seeds: int


def _only(part: str) -> tuple[str, ...]:
    return "--environment.wrappers", f"[{DRAWN}, {{name: '{ENTRIES}', entries: [{part}]}}]"


MEMORY = "configs/ppo/cartpole_memory.yaml"
DICT = "configs/ppo/cartpole_dict.yaml"
PARTS = {
    "memory": Part(
        "CartPole-v1 without velocities",
        {
            "LSTM": Lesson(MEMORY),
            "MLP": Lesson(MEMORY, ("--algorithm.recurrent", "false", "--algorithm.max-seq-len", "none")),
        },
        5,
    ),
    "breakout": Part("MinAtar's Breakout", {"CNN": Lesson("configs/ppo/minatar_breakout.yaml")}, 3),
    "dict": Part(
        "CartPole-v1, cart as numbers and pole as a picture",
        {"both": Lesson(DICT), "cart alone": Lesson(DICT, _only("cart")), "pole alone": Lesson(DICT, _only("pole"))},
        3,
    ),
}


def learn(lesson: Lesson, seed: int, threads: int) -> Learned:
    """Train one seed with the whole budget and test the member that its own evaluation calls the best."""
    torch.set_num_threads(threads)
    config = load(ROOT / lesson.config, [*lesson.overrides, "--seed", str(seed), "--training.target", "null"])
    setup = build(config)
    start = perf_counter()
    outcome = train_population(
        SingleAgentEnvSetup(setup.env),
        setup.population,
        setup.plan(),
        output_paths=OutputPaths(),
        callbacks=CallbackList([]),
    )
    seconds, best = perf_counter() - start, outcome.population.best
    with closing(evaluation_env(setup.env, EPISODES)) as env:
        fresh = best.run_episodes(VecEnvAdapter(env), integers(EPISODES, seed, Purpose.MANUAL, EPISODES))
    setup.env.close()
    return Learned(
        learner="agilerl_like",
        env_name=config.environment.id,
        seed=seed,
        env_steps=outcome.summary.env_steps,
        seconds=round(seconds, 1),
        mean=round(float(fresh.returns.mean()), 2),
        found=f"{best.architecture.describe()}; " + ", ".join(f"{k}={v:.3g}" for k, v in best.hyperparameters.items()),
    )


def commands(name: str, options: argparse.Namespace) -> dict[str, list[str]]:
    """Return how each learner of a part is run."""
    shorter = []
    if options.steps:
        steps = str(options.steps)
        shorter = ["--training.max-steps", steps, "--training.evo-steps", steps, "--training.eval-loop", "1"]
    found = {
        learner: one("benchmarks.network_returns", Lesson(lesson.config, (*lesson.overrides, *shorter)))
        for learner, lesson in PARTS[name].lessons.items()
    }
    if name == "breakout" and options.sb3:
        budget = load(ROOT / PARTS[name].lessons["CNN"].config)
        steps = (options.steps or budget.training.max_steps) * budget.population.size
        script = [str(interpreter("sb3")), "-m", "benchmarks.peers.sb3_breakout"]
        found[SB3] = [*script, "--total-steps", str(steps)]
    return found


def means(runs: Sequence[Run[Learned]], part: str, learner: str) -> list[float]:
    """Return the returns of a learner, seed by seed."""
    return values([run for run in runs if run.case == part], learner, lambda learned: learned.mean)


def table(runs: Sequence[Run[Learned]]) -> list[str]:
    """Return the lines of the table."""
    rows = []
    for part, learner in dict.fromkeys((run.case, run.side) for run in runs):
        mine = [run.result for run in runs if (run.case, run.side) == (part, learner)]
        drawn = [learned.drawn for learned in mine if learned.drawn is not None]
        rows.append(
            (
                PARTS[part].title,
                learner,
                f"{statistics.median(learned.env_steps for learned in mine):,.0f}",
                ", ".join(f"{learned.mean:.4g}" for learned in mine)
                + (f" (drawn actions: {', '.join(f'{mean:.4g}' for mean in drawn)})" if drawn else ""),
                f"{statistics.median(learned.seconds for learned in mine):.0f}",
            )
        )
    return markdown(("env", "learner", "env steps, all members", "return on 100 fresh episodes", "seconds"), rows)


def section(runs: Sequence[Run[Learned]], options: argparse.Namespace) -> list[str]:
    """Return the whole section."""
    return [
        "## Returns with memory and images",
        "",
        "Whole budgets of the shipped configurations, best member by its own evaluation, 100 fresh episodes without "
        "exploration, one number a seed; seconds are medians. Stable-Baselines3 trains one agent with the steps that "
        "all members have together, with our network and the settings that ours start with.",
        "",
        conditions(runs, options),
        "",
        *table(runs),
    ]


def _goal(what: str, wanted: str, got: Sequence[float], met: bool) -> list[Goal]:
    return [Goal(what, wanted, ", ".join(f"{mean:.4g}" for mean in got), met)] if got else []


def goals(runs: Sequence[Run[Learned]]) -> list[Goal]:
    """Return the goals that these runs measured."""
    lstm, mlp = means(runs, "memory", "LSTM"), means(runs, "memory", "MLP")
    cnn, both = means(runs, "breakout", "CNN"), means(runs, "dict", "both")
    enough = sum(mean >= 450 for mean in lstm) >= 0.8 * len(lstm)
    found = _goal("CartPole-v1 without velocities, LSTM", ">= 450 for 4 of 5", lstm, enough)
    found += _goal("CartPole-v1 without velocities, MLP", "< 450", mlp, all(mean < 450 for mean in mlp))
    found += _goal("MinAtar's Breakout, CNN", ">= 8", cnn, bool(cnn) and statistics.median(cnn) >= 8)
    found += _goal("CartPole-v1, cart vector and pole image", ">= 475", both, all(mean >= 475 for mean in both))
    for part in ("cart", "pole"):
        alone = means(runs, "dict", f"{part} alone")
        found += _goal(f"CartPole-v1, {part} alone", "< 200", alone, all(mean < 200 for mean in alone))
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--steps", type=int, help="of each member; left out: as each configuration has it")
    parser.add_argument("--sb3", action=argparse.BooleanOptionalAction, default=True, help="Breakout beside SB3")
    options = options_of(parser, argv, repetitions=5, quick={"steps": 4096, "sb3": is_ready("sb3")})
    if options.one:
        print_result(learn(Lesson(**json.loads(options.one)), options.seed, options.threads))
        return
    runs: list[Run[Learned]] = []
    for name in options.parts:
        seeds = min(options.repetitions, PARTS[name].seeds)
        runs += interleaved(commands(name, options), Learned, options, case=name, repetitions=seeds)
    publish("network_returns", section(runs, options), runs, goals(runs), options)


if __name__ == "__main__":
    main()
