"""Measure in processes of their own, alternating sides, while the machine is quiet.

Sides are interleaved (A B C, A B C, …) and a ratio is taken between neighbours of one round, so that a machine that
slows down over minutes slows all sides equally. A process prints its result as JSON in its last line. With `--rows
FILE` a benchmark that was killed continues with the same command, and runs of several commands are published together.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from benchmarks.machine_load import BUSY_SHARE, OtherProcessLoad, load_average, wait_for_quiet
from benchmarks.measurement import Measurement
from benchmarks.tables import README, ROOT, Goal, goal_table, keep_goals, machine, replace_section, versions


class Result(Protocol):
    """What one process measured: a dataclass of plain data."""

    @property
    def headline(self) -> str:
        """One line for the terminal."""
        ...


ResultT = TypeVar("ResultT", bound=Result)

ROWS_HELP = "a row is appended here when a run ends; a run whose command has a row is not repeated"


@dataclass(frozen=True)
class Run(Generic[ResultT]):
    """One process: whose turn it was, and the share of all cores that others took meanwhile."""

    case: str
    side: str
    round: int
    seed: int
    threads: int
    others: float
    result: ResultT


def options_of(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    *,
    repetitions: int,
    quick: Mapping[str, Any],
    threads: int = 2,
    timeout: float = 1800,
) -> argparse.Namespace:
    """Read a script's options and those that all of them share; `quick` are the defaults of a smoke run."""
    parser.add_argument("--repetitions", type=int, default=repetitions, help="rounds (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=threads, help="torch's threads (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first round; each has its own")
    parser.add_argument("--timeout", type=float, default=timeout, help="seconds that one run may take")
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for a quiet machine before a run")
    parser.add_argument("--output", default=str(README), help="page to write into, or - for the terminal")
    parser.add_argument("--rows", type=Path, metavar="FILE", help=ROWS_HELP)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to the terminal: does everything still run?")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # a single measurement, answered by a line of JSON
    argv = sys.argv[1:] if argv is None else argv
    if "--quick" in argv:
        parser.set_defaults(repetitions=1, patience=0.0, output="-", **quick)
    options = parser.parse_args(argv)
    if options.repetitions < 1:
        parser.error(f"--repetitions is {options.repetitions}, must be at least 1")
    options.load = load_average()
    return options


def one(module: str, case: Any) -> list[str]:
    """Return the command by which a script measures one case, a dataclass, with this interpreter."""
    return [sys.executable, "-m", module, "--one", json.dumps(asdict(case))]


def print_result(result: Any) -> None:
    """Print the result as the last line of the process."""
    print(json.dumps(asdict(result)))


def interleaved(
    sides: Mapping[str, Sequence[str]],
    decode: Callable[..., ResultT],
    options: argparse.Namespace,
    *,
    case: str = "",
    repetitions: int | None = None,
) -> list[Run[ResultT]]:
    """Run the sides' commands alternately, `repetitions` times or as in the options, with threads and seed added.

    Runs that `options.rows` has are taken from there.
    """
    runs, rounds = [], repetitions or options.repetitions
    measured = _rows_by_command(options.rows)
    for round_ in range(rounds):
        for side, alone in sides.items():
            seed = options.seed + round_
            command = [*alone, "--threads", str(options.threads), "--seed", str(seed)]
            row = measured.get(tuple(command[1:]))
            if row is not None:
                runs.append(Run(**{**row, "round": round_, "result": decode(**row["result"])}))
                continue
            wait_for_quiet(options.patience)
            bystanders = OtherProcessLoad()
            result = decode(**_last_line(command, options))
            run = Run(case, side, round_, seed, options.threads, round(bystanders.share(), 4), result)
            runs.append(run)
            if options.rows is not None:
                with options.rows.open("a") as file:
                    file.write(json.dumps({"command": command[1:], **asdict(run)}) + "\n")
            print(
                f"{' '.join(filter(None, (case, side)))}, round {round_ + 1}/{rounds}: "
                f"{result.headline}; others took {run.others:.0%} of the machine",
                file=sys.stderr,
                flush=True,
            )
    return runs


def _rows_by_command(path: Path | None) -> dict[tuple[str, ...], dict[str, Any]]:
    """Return the rows that `--rows` wrote, by the command of each run without its interpreter."""
    if path is None or not path.exists():
        return {}
    return {tuple(row.pop("command")): row for row in map(json.loads, path.read_text().splitlines())}


def _last_line(command: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": str(options.threads), "PYTHONWARNINGS": "ignore", "TQDM_DISABLE": "1"},
        capture_output=True,
        text=True,
        timeout=options.timeout,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:])} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def earlier_runs(
    script: str, decode: Callable[..., ResultT], runs: Sequence[Run[ResultT]], options: argparse.Namespace
) -> list[Run[ResultT]]:
    """Return what was published before of cases and sides that `runs` are not of."""
    measured = {(run.case, run.side) for run in runs}
    published = Path(options.output).parent / "results" / f"{script}.jsonl"
    rows = map(json.loads, published.read_text().splitlines() if published.exists() else ())
    runs_before = [Run(**{**row, "result": decode(**row["result"])}) for row in rows]
    return [run for run in runs_before if (run.case, run.side) not in measured]


def values(runs: Sequence[Run[ResultT]], side: str, of: Callable[[ResultT], float]) -> list[float]:
    """Return one number of each run of a side."""
    return [of(run.result) for run in runs if run.side == side]


def ratios(runs: Sequence[Run[ResultT]], above: str, below: str, of: Callable[[ResultT], float]) -> list[float]:
    """Return the ratio of two sides in each round; runs are those of one case."""
    tops, bottoms = ({run.round: of(run.result) for run in runs if run.side == side} for side in (above, below))
    return [tops[round_] / bottoms[round_] for round_ in tops if round_ in bottoms]


def conditions(runs: Sequence[Run[Any]], options: argparse.Namespace, *, timed: bool = True) -> str:
    """Return when and where it was measured, and how undisturbed, if anything was timed."""
    where = f"{date.today().isoformat()}, {machine()}, threads: {options.threads}"
    what = versions("agilerl-like", "torch", "gymnasium", "numpy", "envpool")
    if not timed:
        return f"{where}; {what}."
    others = [run.others for run in runs]
    disturbed = sum(share > BUSY_SHARE for share in others)
    return (
        f"{where}; {what}; load average {options.load} before the start. "
        f"Other processes took {statistics.median(others):.0%} of the machine in the median run; in {disturbed} "
        f"of {len(runs)} runs they took more than {BUSY_SHARE:.0%}, and such runs are unreliable."
    )


def steps_per_second(measurement: Measurement) -> float:
    """What most sides are compared by."""
    return measurement.steps_per_second


def libraries(runs: Iterable[Run[Any]]) -> list[str]:
    """Return a line for each library that was measured: its version, and those of what it stands on."""
    latest = {run.result.peer: run.result for run in runs}
    return [
        f"- {peer} {measurement.version} ({', '.join(f'{k} {v}' for k, v in measurement.versions.items())})"
        for peer, measurement in latest.items()
    ]


def publish(
    script: str, lines: Sequence[str], runs: Sequence[Run[Any]], goals: Sequence[Goal], options: argparse.Namespace
) -> None:
    """Write a script's section and raw runs and bring the page's goals up to date, or print section and goals."""
    if options.output == "-":
        print("\n".join((*lines, "", *(goal_table([(script, goals)]) if goals else ()))))
        return
    page = Path(options.output)
    folder = page.parent / "results"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{script}.jsonl").write_text("".join(json.dumps(asdict(run)) + "\n" for run in runs))
    replace_section(page, script, "\n".join(lines))
    replace_section(page, "goals", "\n".join(keep_goals(folder / "goals.jsonl", script, goals)))
