"""Env steps per second beside AgileRL and Stable-Baselines3: all sides in turn, again and again, then one table.

Sides are interleaved (A B C, A B C, …), each run is a process of its own, and a ratio is taken between neighbours of
one round, so that a machine that slows down over minutes slows all sides alike. ``measurement.py`` fixes the work.

    python -m benchmarks.throughput                                   # everything, into benchmarks/README.md
    python -m benchmarks.throughput --cases CartPole-v1:8 --sides agilerl sb3 --repetitions 2 --output -
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from functools import partial
from pathlib import Path

from benchmarks.measurement import ENVS, EPOCHS, MINIBATCH, UPDATE_STEPS, WIDTH, Measurement
from benchmarks.tables import lines_of, machine, replace_section
from benchmarks.venvs import PEERS, ROOT, interpreter

Command = Callable[[str, int, int], list[str]]  # env, members, steps of each member -> what to run

OURS = "ours"
HEADINGS = {"agilerl": "AgileRL", "sb3": "Stable-Baselines3", OURS: "agilerl_like"}
README = ROOT / "benchmarks" / "README.md"
RAW = Path("results") / "throughput.jsonl"  # every single run, beside the Markdown file
BEGIN, END = "<!-- throughput: begin -->", "<!-- throughput: end -->"


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    env: str
    members: int
    sides: tuple[str, ...] = ("agilerl", OURS)

    @classmethod
    def parse(cls, text: str) -> "Case":
        """Read ``ENV:P``; all sides take part."""
        env, _, members = text.partition(":")
        if env not in ENVS or not members.isdigit() or int(members) < 1:
            raise argparse.ArgumentTypeError(f"{text!r} is not ENV:P with ENV one of {', '.join(ENVS)} and P >= 1")
        return cls(env, int(members), tuple(HEADINGS))


CASES = (  # SB3 has no population: it stands beside one agent
    Case("CartPole-v1", 1, ("agilerl", "sb3", OURS)),
    Case("CartPole-v1", 4),
    Case("CartPole-v1", 8),
    Case("CartPole-v1", 16),
    Case("LunarLander-v3", 1, ("agilerl", "sb3", OURS)),
    Case("LunarLander-v3", 4),
    Case("LunarLander-v3", 8),
)

# A round is one run of every side of a case; rounds hold neighbours in time.
Round = Mapping[str, "Run"]
DISTURBED = 0.1  # with so much of the machine taken by others, two torch threads can lose a factor of ten or more


@dataclass(frozen=True)
class Run:
    """A measurement, and the share of all cores that other processes (or other guests) took meanwhile."""

    measurement: Measurement
    others: float


class Bystanders:
    """Watches what share of the machine goes to others than our children; knows nothing (0) outside Linux."""

    def __init__(self) -> None:
        self.machine, self.total, self.children = self._now()

    def share(self) -> float:
        """Return the share since construction."""
        machine, total, children = self._now()
        if total == self.total:
            return 0.0
        return max(0.0, (machine - self.machine - (children - self.children)) / (total - self.total))

    @staticmethod
    def _now() -> tuple[float, float, float]:
        """Return seconds of all cores: working or stolen, altogether, and those of our ended children."""
        lines = lines_of(Path("/proc/stat"))
        if not lines:
            return 0.0, 0.0, 0.0
        user, nice, system, idle, waiting, *rest = (int(word) for word in lines[0].split()[1:9])
        ticks = os.sysconf("SC_CLK_TCK")
        times = os.times()
        working = user + nice + system + sum(rest)
        return (
            working / ticks,
            (working + idle + waiting) / ticks,
            times.children_user + times.children_system,
        )


# ----------------------------------------------------------------------------------------------------------------------
# OUR SIDE. benchmarks/ours_throughput.py takes `measurement.parse_work`'s options and prints `Measurement.to_json()`
# as its last line, as the scripts in peers/ do.
# ----------------------------------------------------------------------------------------------------------------------
def ours(env: str, members: int, steps: int) -> list[str]:
    """Return the command that measures agilerl_like, with this interpreter."""
    return script(sys.executable, "benchmarks.ours_throughput", env, members, steps)


# ----------------------------------------------------------------------------------------------------------------------


def script(python: str | Path, module: str, env: str, members: int, steps: int) -> list[str]:
    """Return the command that runs one throughput script."""
    work = ["--env", env, "--members", str(members), "--steps-per-member", str(steps)]
    return [str(python), "-m", module, *work]


def commands(sides: Iterable[str], pythons: Mapping[str, str | None]) -> dict[str, Command]:
    """Return each side's command; environments of peers are made here, before anything is timed."""
    found: dict[str, Command] = {}
    for side in sides:
        if side == OURS:
            found[side] = ours
        else:
            found[side] = partial(script, interpreter(side, pythons.get(side)), f"benchmarks.peers.{side}_throughput")
    return found


def run(command: Sequence[str], threads: int, seed: int, timeout: float) -> Run:
    """Run one side once in a process of its own and read its last line."""
    bystanders = Bystanders()
    done = subprocess.run(
        [*command, "--threads", str(threads), "--seed", str(seed)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONWARNINGS": "ignore", "TQDM_DISABLE": "1"},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:])} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return Run(Measurement.from_json(done.stdout.strip().splitlines()[-1]), bystanders.share())


def wait_for_quiet(patience: float) -> None:
    """Return when others leave the machine alone for two seconds, or when patience is at its end."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        bystanders = Bystanders()
        time.sleep(2.0)
        if bystanders.share() <= DISTURBED:
            return


def measure(case: Case, sides: Mapping[str, Command], options: argparse.Namespace) -> list[Round]:
    """Run the case's sides in turn, ``repetitions`` times over."""
    rounds = []
    for repetition in range(options.repetitions):
        round_: dict[str, Run] = {}
        for side in case.sides:
            if side not in sides:
                continue
            command = sides[side](case.env, case.members, options.steps_per_member)
            wait_for_quiet(options.patience)
            round_[side] = run(command, options.threads, options.seed + repetition, options.timeout)
            print(
                f"{case.env} P={case.members} round {repetition + 1}/{options.repetitions} "
                f"{HEADINGS[side]}: {round_[side].measurement.steps_per_second:,.0f} steps/s, "
                f"others took {round_[side].others:.0%} of the machine",
                file=sys.stderr,
                flush=True,
            )
        rounds.append(round_)
    return rounds


def spread(values: Sequence[float], form: Callable[[float], str]) -> str:
    """Return median and range as one cell."""
    if len(values) == 1:
        return form(values[0])
    return f"{form(statistics.median(values))} ({form(min(values))} to {form(max(values))})"


def speed(rounds: Sequence[Round], side: str) -> str:
    """Return a side's steps per second, or nothing where it did not run."""
    values = [round_[side].measurement.steps_per_second for round_ in rounds if side in round_]
    return spread(values, lambda value: f"{value:,.0f}") if values else ""


def ratio(rounds: Sequence[Round], above: str, below: str) -> str:
    """Return how many times faster ``above`` is, from ratios within each round."""
    pairs = [
        (round_[above].measurement, round_[below].measurement)
        for round_ in rounds
        if above in round_ and below in round_
    ]
    values = [top.steps_per_second / bottom.steps_per_second for top, bottom in pairs]
    return spread(values, lambda value: f"{value:.2f}x") if values else ""


def growth(results: Mapping[Case, Sequence[Round]], case: Case, side: str) -> str:
    """Return the time of P members over the time of one, same steps a member (rows of one sitting, not neighbours)."""
    times = {
        other.members: statistics.median(round_[side].measurement.seconds for round_ in rounds if side in round_)
        for other, rounds in results.items()
        if other.env == case.env and any(side in round_ for round_ in rounds)
    }
    if case.members == 1 or not {1, case.members} <= times.keys():
        return ""
    return f"{times[case.members] / times[1]:.1f}x"


def table(results: Mapping[Case, Sequence[Round]], sides: Sequence[str]) -> list[str]:
    """Return the lines of the Markdown table."""
    last = sides[-1]  # ours, when it takes part: it is the side that the others are compared with
    others = [side for side in sides if side != last]
    head = [
        "env",
        "P",
        *(HEADINGS[side] for side in sides),
        *(f"{HEADINGS[last]} / {HEADINGS[side]}" for side in others),
        *(f"time of P / time of 1, {HEADINGS[side]}" for side in sides if side != "sb3"),
    ]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for case, rounds in results.items():
        cells = [
            case.env,
            str(case.members),
            *(speed(rounds, side) for side in sides),
            *(ratio(rounds, last, side) for side in others),
            *(growth(results, case, side) for side in sides if side != "sb3"),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def section(
    results: Mapping[Case, Sequence[Round]], sides: Sequence[str], options: argparse.Namespace, load: str
) -> str:
    """Return the whole section: what was done, on what, and the table."""
    runs = [run_ for rounds in results.values() for round_ in rounds for run_ in round_.values()]
    latest = {run_.measurement.peer: run_.measurement for run_ in runs}
    disturbed = sum(run_.others > DISTURBED for run_ in runs)
    versions = [
        f"- {peer} {measurement.version} ({', '.join(f'{k} {v}' for k, v in measurement.versions.items())})"
        for peer, measurement in latest.items()
    ]
    lines = [
        "## Throughput",
        "",
        f"Env steps per second, summed over P members, {options.steps_per_member:,} timed steps a member after one "
        f"warm-up update; PPO with 16 envs a member, {UPDATE_STEPS:,} steps an update, minibatch {MINIBATCH}, "
        f"{EPOCHS} epochs, encoder {WIDTH} + latent {WIDTH} shared by heads of {WIDTH}, ReLU, no LayerNorm; no "
        "evaluation, no evolution. AgileRL's members take turns, as in its own loop. "
        f"Median (minimum to maximum) of {options.repetitions}; ratios are taken within a round.",
        "",
        f"{date.today().isoformat()}, {machine()}, {options.threads} threads, load average {load} before the start. "
        f"Other processes took {statistics.median(run_.others for run_ in runs):.0%} of the machine in the median run; "
        f"in {disturbed} of {len(runs)} runs they took more than {DISTURBED:.0%}, and such runs are not to be trusted.",
        "",
        *versions,
        "",
        *table(results, sides),
        "",
        f"Reproduce: `{reproduction(results, sides, options)}`",
    ]
    return "\n".join(lines)


def reproduction(results: Mapping[Case, Sequence[Round]], sides: Sequence[str], options: argparse.Namespace) -> str:
    """Return the command that makes this table again, without the paths of this machine."""
    words = ["python -m benchmarks.throughput", f"--steps-per-member {options.steps_per_member}"]
    words += [f"--repetitions {options.repetitions}", f"--threads {options.threads}", f"--seed {options.seed}"]
    if tuple(results) != CASES:
        words.append("--cases " + " ".join(f"{case.env}:{case.members}" for case in results))
    if set(sides) != set(HEADINGS):
        words.append("--sides " + " ".join(sides))
    return " ".join(words)


def load_average() -> str:
    """Return the last minute's load: what else the machine was doing."""
    return f"{os.getloadavg()[0]:.2f}" if hasattr(os, "getloadavg") else "unknown"


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=Case.parse, nargs="+", default=list(CASES), metavar="ENV:P")
    parser.add_argument("--sides", choices=HEADINGS, nargs="+", default=list(HEADINGS))
    parser.add_argument("--steps-per-member", type=int, default=10 * UPDATE_STEPS, metavar="N")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=1800, help="seconds that one run may take")
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for a quiet machine before a run")
    parser.add_argument("--output", default=str(README), help="Markdown file to write into, or - for the terminal")
    for peer in PEERS.values():
        parser.add_argument(f"--{peer.name}-python", help=f"an interpreter that has it; also ${peer.override}")
    options = parser.parse_args()
    if options.repetitions < 1:
        parser.error(f"--repetitions is {options.repetitions}, must be at least 1")
    return options


def main() -> None:
    options = parse_options()
    sides = [side for side in HEADINGS if side in options.sides]
    found = commands(sides, {name: getattr(options, f"{name}_python") for name in PEERS})
    load = load_average()
    results = {case: measure(case, found, options) for case in options.cases}
    text = section(results, sides, options, load)
    if options.output == "-":
        print(text)
        return
    raw = Path(options.output).parent / RAW
    raw.parent.mkdir(parents=True, exist_ok=True)
    runs = [asdict(run_) for rounds in results.values() for round_ in rounds for run_ in round_.values()]
    raw.write_text("".join(json.dumps(run_) + "\n" for run_ in runs))
    replace_section(Path(options.output), BEGIN, END, text)


if __name__ == "__main__":
    main()
