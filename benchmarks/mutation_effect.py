"""What each kind of mutation brings: gain in fitness by operator, from the lineage of real runs.

Populations of 16 start from the bundled configuration of an environment, with every kind of mutation drawn about
equally often, so that each one is counted. Two measures, both of a member's first generation: its gain, which is its
fitness less its parent's one generation before and holds a generation of training, and its fitness less that of its
parent in the same generation, where the parent survived. The intervals resample the births, four or more.

    python -m benchmarks.mutation_effect                                     # all, into benchmarks/README.md
    python -m benchmarks.mutation_effect --cases cartpole --seeds 1 2        # these alone; others keep their results
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from agilerl_like.cli.train import train
from agilerl_like.reporting.estimates import Estimate, bootstrap, operator_effects, operator_gains
from agilerl_like.reporting.run_history import read_history
from benchmarks.tables import ROOT, lines_of, machine, markdown, replace_section, versions

RAW = ROOT / "benchmarks" / "results" / "mutation_effect.jsonl"
MEMBERS = 16
GENERATIONS = 16
UNCHANGED = "clone, unchanged"
WEIGHTS = {"no_mutation": 1, "architecture": 4, "new_layer_prob": 0.4, "parameters": 1, "activation": 1, "rl_hp": 2}


@dataclass(frozen=True)
class Case:
    """A bundled configuration and the env steps of a member's generation."""

    config: str
    evo_steps: int
    eval_loop: int


CASES = {
    "cartpole": Case("cartpole", 2_048, 10),
    "acrobot": Case("acrobot", 4_096, 10),
    "lunar_lander": Case("lunar_lander", 8_192, 6),
}


@dataclass(frozen=True)
class Births:
    """The gains of one operator's members in one run, and their fitness less that of their surviving parents."""

    case: str
    seed: int
    operator: str
    gains: list[float]
    beside_parent: list[float]


def measure(name: str, seed: int) -> list[Births]:
    """Train one population, and return what its lineage holds of each operator."""
    case = CASES[name]
    options = {
        "seed": seed,
        "population.size": MEMBERS,
        "training.evo-steps": case.evo_steps,
        "training.max-steps": case.evo_steps * GENERATIONS,
        "training.eval-loop": case.eval_loop,
        "training.target": "none",
        "run.name": "run",
        "run.plot": "false",
        "run.processes": 1,
        **{f"mutation.{key.replace('_', '-')}": value for key, value in WEIGHTS.items()},
    }
    with tempfile.TemporaryDirectory() as folder:
        options["run.dir"] = folder
        code = train(
            [case.config, "--quiet", *(text for key, value in options.items() for text in (f"--{key}", str(value)))]
        )
        if code:
            raise RuntimeError(f"the run of {name} with seed {seed} ended with exit code {code}")
        history = read_history(Path(folder) / "run")
    effects = operator_effects(history)
    return [
        Births(
            name, seed, operator, [round(gain, 3) for gain in gains], [round(x, 3) for x in effects.get(operator, ())]
        )
        for operator, gains in operator_gains(history).items()
    ]


def group(operator: str) -> str:
    """Return the row of the table that an operator belongs to: `head.add_layer` is "a layer more"."""
    last = operator.rpartition(".")[2]
    for verb, of_units, of_layers in (
        ("add", "units added", "a layer added"),
        ("remove", "units removed", "a layer removed"),
    ):
        if last.startswith(verb):
            return of_layers if last.endswith("_layer") else of_units
    return {"change_activation": "activation", "several hyperparameters": "several of them"}.get(last, operator)


def table(births: Iterable[Births]) -> list[str]:
    """Return a table of each environment as Markdown: unchanged clones first, then by number of births."""
    lines: list[str] = []
    births = list(births)
    for name in CASES:
        own = [b for b in births if b.case == name]
        if not own:
            continue
        gains: dict[str, list[float]] = {}
        beside: dict[str, list[float]] = {}
        for b in own:
            gains.setdefault(group(b.operator), []).extend(b.gains)
            beside.setdefault(group(b.operator), []).extend(b.beside_parent)
        order = sorted(gains, key=lambda row: (row != UNCHANGED, -len(gains[row])))
        rows = [(row, *cells(bootstrap(gains[row])), *cells(bootstrap(beside[row]))) for row in order]
        case, seeds = CASES[name], sorted({b.seed for b in own})
        lines += [
            f"**{name}**, seeds {', '.join(map(str, seeds))}: {MEMBERS} members, {GENERATIONS} generations of "
            f"{case.evo_steps:,} steps a member, {case.eval_loop} evaluation episodes",
            "",
            *markdown(("mutation", "births", "gain [95 %]", "with their parent", "beside the parent [95 %]"), rows),
            "",
        ]
    return lines[:-1]


def cells(estimate: Estimate) -> tuple[str, str]:
    """Return the number of values and the mean with its interval."""
    return str(estimate.num_values), estimate.text(signed=True) if estimate.num_values else ""


def read_results() -> list[Births]:
    """Return the results of former runs of this script."""
    return [Births(**json.loads(line)) for line in lines_of(RAW)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--cases", nargs="*", choices=CASES, default=list(CASES), help="none: only write the table again"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--output", default="benchmarks/README.md", help="file with the section to replace, or -")
    options = parser.parse_args(arguments)
    for name in options.cases:
        for seed in options.seeds:
            former = [b for b in read_results() if (b.case, b.seed) != (name, seed)]
            births = sorted([*former, *measure(name, seed)], key=lambda b: (list(CASES).index(b.case), b.seed))
            RAW.write_text("".join(json.dumps(asdict(b)) + "\n" for b in births))
            print(f"{name}, seed {seed}: measured", file=sys.stderr, flush=True)
    text = "\n".join((f"{machine()}; {versions('torch', 'gymnasium')}.", "", *table(read_results())))
    if options.output == "-":
        print(text)
    else:
        replace_section(Path(options.output), "mutation_effect", text)


if __name__ == "__main__":
    main()
