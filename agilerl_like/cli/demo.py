"""`agilerl-like demo`: a run in which evolution does the work, and what it brought."""

from __future__ import annotations

import json
import math
import shlex
import statistics
from pathlib import Path

from tyro.conf import Positional

from agilerl_like.cli.output import PROGRAM, write_line, write_table
from agilerl_like.cli.train import train_config
from agilerl_like.config import trust_option
from agilerl_like.config.bundled import find_config
from agilerl_like.errors import ExitCode
from agilerl_like.reporting import formatting
from agilerl_like.reporting.console import ConsoleReporter
from agilerl_like.reporting.report import REPORT, lineage_rows
from agilerl_like.saved_runs import Run, train_initial_members
from agilerl_like.saved_runs.replay import check_comparable

CONFIG = "cartpole_evolution"


def demo(config: Positional[str] = CONFIG, /, dir: Path = Path("runs"), seed: int = 1) -> int:
    """Evolve a population from draws over wide ranges, and compare it with the same members without evolution.

    At the end: what was found, the births that led to it, how much better it is on fresh episodes than the median
    initial member that trained for the same steps without evolution, and where the report is. The folder `demo` of an
    earlier demonstration is replaced.

    Args:
        config: A configuration, as in `train`.
        dir: Parent folder of the run.
        seed: Seed of the run.
    """
    folder = json.dumps(str(dir), ensure_ascii=False)  # quoted, since options are YAML
    options = {"run.dir": folder, "run.name": "demo", "run.overwrite": "true", "run.plot": "false", "seed": seed}
    overrides = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    settings = find_config(config, overrides).override(overrides).validate()
    check_comparable(settings, f"config={config!r}")
    code = train_config(settings)
    if code != ExitCode.DONE:
        return code
    run = Run.open(dir / "demo")
    replay = f"{PROGRAM} replay {shlex.quote(str(run.display_path))}{trust_option(settings)}"
    write_line("\nThe same initial members for the same steps, without evolution:")
    returns = train_initial_members(run, trust=True, callbacks=[ConsoleReporter(verbose=False)])
    records = run.records
    best, last = records.rows[records.best_row], records.rows[-1]
    returns = sorted(-math.inf if math.isnan(its) else its for its in returns)
    shown = ["diverged" if its == -math.inf else formatting.fitness(its) for its in returns]
    write_line(f"  returns on fresh episodes: {', '.join(shown)}")
    write_line("\nHow the best agent came about")
    write_table(("generation", "member", "mutation", "parent", "member's", "gain"), lineage_rows(records))
    values = records.active_hyperparameters(records.best_row)
    found = [f"{name} {formatting.hyperparameter(value)}" for name, value in values.items()]
    median = statistics.median(returns)
    write_line(f"\nfound            {', '.join(found)}; architecture {best['architecture']}")
    error = formatting.fitness(last["population/best_ever_standard_error"])
    confirmed = f"{formatting.fitness(last['population/best_ever'])} ± {error} (standard error)"
    write_line(f"best agent       {confirmed} on fresh episodes")
    write_line(f"without evolution {formatting.fitness(median)}, the median initial member after the same steps")
    write_line(f"report           {run.display_path / REPORT} (open it in a browser)")
    write_line(f"next             {replay}: does the find transfer to new seeds?")
    return ExitCode.DONE
