"""What each part of `evolution="auto"` brings in toy problems: the search with it and without it, on the same seeds.

In a toy problem a member's gain in a generation is computed from its hyperparameters, so a search takes a fraction of
a second, and all of them some minutes. Parts that need more than fitness (members that are removed, the falling
learning rate, training returns, constant policies) do nothing there.

    python -m benchmarks.auto_parts  # searches, and replaces the section of benchmarks/README.md
"""

import argparse
import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from agilerl_like.hpo import Explorer, Selection
from agilerl_like.hpo.auto import AutoExplorer
from benchmarks import toy_problems
from benchmarks.search.methods import METHODS
from benchmarks.search.protocol import Case
from benchmarks.tables import README, machine, markdown, replace_section
from benchmarks.toy_problems import Toy, uniform_starts

MEMBERS, SEARCHES = 8, 100


class Problem(NamedTuple):
    """A toy problem, and for how many generations it is searched."""

    toy: Toy
    generations: int
    what: str


PROBLEMS = {
    "moving": Problem(
        toy_problems.moving_optimum(4), 40,
        "the best values of four hyperparameters move across their ranges; 40 can be gained",
    ),
    "moving, noise": Problem(
        toy_problems.moving_optimum(4, noise=1.0), 40,
        "the same; the standard error of fitness is the most that a generation gains",
    ),
    "narrow": Problem(
        toy_problems.narrow(0.5), 21, "most draws of four hyperparameters gain nothing; 21 can be gained"
    ),
    "hasty": Problem(
        toy_problems.hasty(0.01), 21, "what gains most at first lowers what can be reached; 1 can be gained"
    ),
    "patience": Problem(
        toy_problems.patience(True, 21), 21, "the step that gains most now gains least over the whole lineage"
    ),
    "plateau": Problem(toy_problems.plateau(3.0), 40, "fitness shows nothing of what is gained up to 3"),
    "fragile": Problem(toy_problems.fragile(), 21, "members that learn fast lose all at times"),
    "fragile, noise": Problem(toy_problems.fragile(0.5), 21, "the same; the standard error of fitness is 0.5"),
}  # fmt: skip
VARIANTS = (
    "no_evolution",
    "ours",
    "ours_no_warm_up",
    "ours_late_clones",
    "ours_no_second_draw",
    "ours_no_restart",
    "ours_no_return",
    "ours_no_gate",
    "ours_truncation",
    "ours_quarter",
    "ours_gentle",
    "ours_no_redraw",
    "ours_process",
    "ours_bandit",
    "ours_factors",
    "ray_pbt",
)
"""Methods of `benchmarks.search` whose decisions depend on fitness alone."""


def strategy(name: str) -> tuple[Selection | None, Explorer]:
    """Return the selection and the explorer of a method of `benchmarks.search`."""
    method = METHODS[name].make(Case(name, "cartpole", "S2", 0, 0))
    return method.strategy, method.explorer or AutoExplorer()


def found(name: str, problem: str, seed: int) -> float:
    """Return the score of the best agent of a search."""
    toy, generations, _ = PROBLEMS[problem]
    selection, explorer = strategy(name)
    result = toy_problems.search(toy, uniform_starts(toy, MEMBERS, seed), generations, selection, explorer, seed)
    return max(map(max, result.scores))


def cell(values: np.ndarray, of_auto: np.ndarray) -> str:
    """Return the mean, in bold where it differs from that of `auto` by more than two standard errors."""
    differences = values - of_auto
    differs = abs(differences.mean()) > 2 * differences.std(ddof=1) / len(differences) ** 0.5
    text = f"{values.mean():#.3g}"
    return f"**{text}**" if differs else text


def tables(rows: Mapping[str, Sequence[np.ndarray]]) -> list[str]:
    """Return the lines of the section, from the scores of each variant in each problem."""
    return [
        *(f"- *{name}*: {problem.what} ({problem.generations} generations)" for name, problem in PROBLEMS.items()),
        "",
        *markdown(
            ("search", *PROBLEMS),
            [
                (METHODS[name].what, *(cell(*pair) for pair in zip(values, rows["ours"], strict=True)))
                for name, values in rows.items()
            ],
        ),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--searches", type=int, default=SEARCHES, help="with seeds from 0 on, in each problem")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: one for each core)")
    parser.add_argument("--output", default=str(README), help="file with the section to replace, or -")
    options = parser.parse_args(arguments)
    if options.searches < 2:
        parser.error(f"--searches={options.searches}; allowed are at least 2, since one has no standard error")
    rows = {}
    with multiprocessing.get_context("spawn").Pool(options.jobs, torch.set_num_threads, (1,)) as pool:
        for name in VARIANTS:
            rows[name] = [
                np.array(pool.map(partial(found, name, problem), range(options.searches))) for problem in PROBLEMS
            ]
            print(name, *(f"{values.mean():.3f}" for values in rows[name]), file=sys.stderr, flush=True)
    text = "\n".join([*tables(rows), "", f"{MEMBERS} members, mean of {options.searches} searches. {machine()}."])
    if options.output == "-":
        print(text)
    else:
        replace_section(Path(options.output), "auto_parts", text)


if __name__ == "__main__":
    main()
