"""Run the search benchmark: method x environment x start x seed, a process for each run, as many as there are cores.

A row is written when a run ends, and a run whose row exists is not repeated: a benchmark that was killed continues with
the same command. Methods and environments whose packages are absent are skipped with one line. `--report` writes
benchmarks/search.md from the rows and trains nothing.

    python -m benchmarks.search --tier smoke                      # 6 minutes on two quiet cores
    python -m benchmarks.search --tier main --seeds 1000 1001
    python -m benchmarks.search --methods ours ours_no_gate --envs cartpole --seeds 0 1 2    # tuning: seeds below 100
    python -m benchmarks.search --replay --methods ours           # what was found, on ten new seeds each
    python -m benchmarks.search --report
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from benchmarks.search import report, results
from benchmarks.search.methods import METHODS
from benchmarks.search.protocol import ENVS, FIRST_REPORT_SEED, STARTS, TIERS, TUNING_ENVS, TUNING_SEEDS, Case, Tier
from benchmarks.search.runner import Row, replay, run

ROOT = Path(__file__).resolve().parents[2]
SET_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of prctl(2)."""
STARTED_BY = "SEARCH_BENCHMARK_PID"
"""The environment variable of a run's process with the number of the process that started it."""


def main(argv: Sequence[str] | None = None) -> int:
    options = _options(argv)
    if options.one or options.replay_one:
        _end_with_parent()
        with os.fdopen(os.dup(1), "w") as answer:  # what a library prints goes elsewhere
            os.dup2(2, 1)
            line = run(Case(**json.loads(options.one))).to_json() if options.one else _replayed(options.replay_one)
            answer.write(line + "\n")
        return 0
    replays = options.rows.with_name(f"{options.rows.stem}_replays{options.rows.suffix}")
    if options.report:
        rows = results.rows(options.rows)
        report.write(Path(options.output), rows, results.replays(rows, replays))
        return 0
    if options.replay:
        rows = [row for row in results.rows(options.rows) if _is_named(row, options)]
        known = results.replays(rows, replays)
        found = [row for row in rows if row.key not in known and row.lineage_steps and not row.failure]
        tasks = [(row.key, "--replay-one", row.to_json()) for row in found]
        return _in_processes(tasks, options.jobs, lambda line: results.append(replays, line))
    done = {row.key for row in results.rows(options.rows) if row.is_current}
    cases = [case for case in available(selected(options)) if case.key not in done]
    print(f"{len(cases)} runs to do, {len(done)} rows exist", file=sys.stderr, flush=True)
    tasks = [(f"{case.method} {case.env} {case.start} {case.seed}", "--one", case.key) for case in cases]
    return _in_processes(tasks, options.jobs, lambda line: results.append(options.rows, line))


def selected(options: argparse.Namespace) -> list[Case]:
    """Return the cases of the tier, or of what was named in place of its methods, environments, starts and seeds."""
    tier: Tier = TIERS[options.tier]
    budgets = (
        tier.envs if options.envs is None else {name: tier.envs.get(name, ENVS[name].budget) for name in options.envs}
    )
    tier = replace(
        tier,
        envs=budgets,
        methods=tuple(options.methods or tier.methods),
        starts=tuple(options.starts or tier.starts),
        seeds=1 if options.seeds else tier.seeds,
    )
    cases = tier.cases()
    return [replace(case, seed=seed) for seed in options.seeds for case in cases] if options.seeds else cases


def _is_named(row: Row, options: argparse.Namespace) -> bool:
    """Return whether a row's method, environment, start and seed are among those named, where any are."""
    named = (options.methods, "method"), (options.envs, "env"), (options.starts, "start"), (options.seeds, "seed")
    return all(not its or row.case[key] in its for its, key in named)


def available(cases: Iterable[Case]) -> list[Case]:
    """Return the cases that can run here, and print one line for each method or environment that cannot."""
    cases = list(cases)
    absent = {name: METHODS[name].missing() for name in dict.fromkeys(case.method for case in cases)}
    for name in dict.fromkeys(case.env for case in cases):
        absent[name] = "" if ENVS[name].is_available else f"package {ENVS[name].package} is not installed"
    for name, why in absent.items():
        if why:
            print(f"skipped: {name}: {why}", file=sys.stderr)
    return [case for case in cases if not absent[case.method] and not absent[case.env]]


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.search", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tier", choices=TIERS, default="smoke")
    parser.add_argument("--methods", nargs="+", choices=METHODS, metavar="METHOD", help=f"of {', '.join(METHODS)}")
    parser.add_argument("--envs", nargs="+", choices=ENVS, metavar="ENV", help=f"of {', '.join(ENVS)}")
    parser.add_argument("--starts", nargs="+", choices=STARTS, help="default: those of the tier")
    parser.add_argument("--seeds", nargs="+", type=int, help="default: those of the tier, from 1000 on")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at once (default: one for each core)")
    parser.add_argument("--rows", type=Path, default=results.ROWS, help="file of rows (default: benchmarks/results)")
    parser.add_argument("--report", action="store_true", help="write the page from the rows")
    parser.add_argument("--replay", action="store_true", help="train ten new seeds by what each run found")
    parser.add_argument("--output", default=str(report.PAGE), help="page of --report")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--replay-one", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs}; allowed are whole numbers from 1")
    if options.report and not options.rows.is_file():
        parser.error(f"--rows {options.rows} does not exist; --report needs a file of rows")
    wrong = [seed for seed in options.seeds or () if seed not in TUNING_SEEDS and seed < FIRST_REPORT_SEED]
    if wrong:
        parser.error(
            f"--seeds {wrong[0]}; allowed are 0 to {TUNING_SEEDS[-1]} to tune, and from {FIRST_REPORT_SEED} on"
        )
    tunes = any(seed in TUNING_SEEDS for seed in options.seeds or ())
    if tunes and not set(options.envs or TIERS[options.tier].envs) <= set(TUNING_ENVS):
        parser.error(f"seeds below {len(TUNING_SEEDS)} are for tuning, on {' and '.join(TUNING_ENVS)} only (--envs)")
    return options


def _end_with_parent() -> None:
    """Let Linux kill this process when its parent ends, even if that was killed: its result would be lost."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, signal.SIGKILL)
        if os.environ.get(STARTED_BY, str(os.getppid())) != str(os.getppid()):  # it ended before this call
            os._exit(1)


def _replayed(line: str) -> str:
    return json.dumps(replay(Row.from_json(line)))


def _in_processes(tasks: Sequence[tuple[str, str, str]], jobs: int, keep: Callable[[str], None]) -> int:
    """Carry out tasks (name, flag, value) in processes of their own, and keep the last line that each prints.

    SIGTERM ends these processes, too, which would otherwise keep their cores busy until their runs have ended.
    """
    start, own = time.monotonic(), {STARTED_BY: str(os.getpid()), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    environment = {**os.environ, **own}
    lost = []
    running: set[subprocess.Popen[str]] = set()

    def end(number: int, _: object) -> None:
        for process in list(running):
            process.terminate()
        os._exit(128 + number)  # the threads of the pool wait for processes

    def carry_out(task: tuple[str, str, str]) -> None:
        name, flag, value = task
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.search", flag, value],
            cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        running.add(process)
        printed, errors = process.communicate()
        running.discard(process)
        if process.returncode:
            lost.append(name)
            print(f"{name}: the process ended with {process.returncode}:\n{errors[-500:]}", file=sys.stderr, flush=True)
            return
        line = printed.strip().splitlines()[-1]
        keep(line)
        kept = json.loads(line)
        shown = kept.get("failure") or f"{kept.get('test_return', kept.get('returns'))}"
        print(f"{(time.monotonic() - start) / 60:.1f} min: {name}: {shown}", file=sys.stderr, flush=True)

    signal.signal(signal.SIGTERM, end)
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(carry_out, tasks))
    if lost:
        print(f"without a row: {len(lost)} of {len(tasks)} runs; the same command repeats them", file=sys.stderr)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
