"""Parts of the benchmark page: the machine's description, tables, goals, and sections that scripts rewrite."""

import json
import os
import platform
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "benchmarks" / "README.md"

SCRIPTS = (
    "throughput",
    "scaling",
    "unequal_members",
    "roofline",
    "evolution_cost",
    "memory",
    "processes",
    "network_speed",
    "memory_speed",
    "memory_tasks",
    "mutation_cost",
    "gpu",
    "jax_program",
    "tensor_envs",
    "time_to_target",
    "network_returns",
    "learner_returns",
    "multi_agent_returns",
    "multi_agent_speed",
    "multi_agent_rating",
    "games",
    "off_policy_speed",
    "shared_memory",
)
"""The order in which goals are listed."""


@dataclass(frozen=True)
class Goal:
    """One promise and what was measured of it; `met` is None where nothing was."""

    what: str
    wanted: str
    measured: str
    met: bool | None


def machine() -> str:
    """Return processor, cores and system."""
    cpuinfo = Path("/proc/cpuinfo")
    models = [line.partition(":")[2].strip() for line in lines_of(cpuinfo) if line.startswith("model name")]
    processor = models[0] if models else platform.processor() or platform.machine()
    return f"{processor}, {os.cpu_count()} cores, {platform.system()}"


def lines_of(path: Path) -> list[str]:
    """Return a file's lines, none where there is no such file."""
    return path.read_text().splitlines() if path.is_file() else []


def versions(*packages: str) -> str:
    """Return Python's version and those of the packages that are installed."""
    found = [f"Python {platform.python_version()}"]
    for package in packages:
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def median_and_range(values: Sequence[float], form: Callable[[float], str]) -> str:
    """Return median and range as one cell; a range that is none is left out, and nothing gives nothing."""
    if len(set(values)) < 2:
        return form(values[0]) if values else ""
    return f"{form(statistics.median(values))} ({form(min(values))} to {form(max(values))})"


def quantile_90(values: Sequence[float]) -> float:
    """Return what nine in ten values do not exceed."""
    return statistics.quantiles(values, n=10, method="inclusive")[-1] if len(values) > 1 else values[0]


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def replace_section(path: Path, name: str, text: str) -> None:
    """Put a text between a section's two markers; the rest of the page stays."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    page = path.read_text() if path.is_file() else "# Benchmarks\n"
    if begin not in page or end not in page:
        page = f"{page.rstrip()}\n\n{begin}\n{end}\n"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def keep_goals(path: Path, script: str, goals: Sequence[Goal]) -> list[str]:
    """Put a script's goals in the place of its former ones in a file; return the table of all scripts' goals."""
    kept = {name: [] for name in SCRIPTS}
    for entry in map(json.loads, lines_of(path)):
        kept[entry.pop("script")].append(Goal(**entry))
    kept[script] = list(goals)
    lines = [json.dumps({"script": name, **asdict(goal)}) for name, group in kept.items() for goal in group]
    path.write_text("".join(f"{line}\n" for line in lines))
    return goal_table(kept.items())


def goal_table(goals: Iterable[tuple[str, Sequence[Goal]]]) -> list[str]:
    """Return what was promised beside what was measured."""
    verdicts = {True: "yes", False: "**no**", None: "not measured"}
    return markdown(
        ("subject", "goal", "measured", "reached", "command"),
        [
            (goal.what, goal.wanted, goal.measured, verdicts[goal.met], f"`python -m benchmarks.{script}`")
            for script, group in goals
            for goal in group
        ],
    )
