"""Settings in which runs differ, and the runs whose settings are equal, such as the seeds of one method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agilerl_like.errors import CheckpointError, ConfigurationError
from agilerl_like.reporting.charts import distinct_names
from agilerl_like.reporting.run_history import CONFIG
from agilerl_like.saved_runs.run import Run

SHOWN = 2
"""Entries that are shown of a mapping that another run does not have."""
LABELLED = 3
"""Settings that differ in the name of a method; one that differs in more has the name of its first run: "as NAME"."""
MISSING = "-"
"""The value of a setting that a run does not have."""


def configs_of(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the settings of runs with all defaults; those of their files where one cannot be validated."""
    try:
        return [run.validated_config(trust=True).to_json() for run in runs]  # which imports nothing
    except (ConfigurationError, CheckpointError):
        return [run.config if (run.folder / CONFIG).is_file() else {} for run in runs]


def methods_of(runs: Sequence[Run]) -> list[str]:
    """Return the name of each run's method; runs of one method differ in seed and in section `run` alone.

    Those that differ in `run.callbacks` are of several methods, because a callback may steer a run. The name has the
    settings that differ between the methods, without those that a method does not have: `evolution auto`,
    `mutation mutations, selection tournament`. All names are "" if there is one method.
    """
    configs = [_of_method(config) for config in configs_of(runs)]
    firsts = [configs.index(config) for config in configs]
    methods = list(dict.fromkeys(firsts))
    if len(methods) == 1:
        return [""] * len(runs)
    rows = list(differing_settings([configs[first] for first in methods]))
    names = [f"{'as ' if firsts.count(first) > 1 else ''}{runs[first].name}" for first in methods]
    if len(rows) <= LABELLED:
        settings = [row[0] for row in rows]
        for number, column in enumerate(zip(*(row[1:] for row in rows), strict=True)):
            own = [f"{name} {its}" for name, its in zip(settings, column, strict=True) if its != MISSING]
            names[number] = ", ".join(own) or names[number]
    known = dict(zip(methods, distinct_names(names), strict=True))
    return [known[first] for first in firsts]


def runs_of_equal_seeds(runs: Sequence[Run], methods: Sequence[str]) -> list[tuple[int, list[str]]]:
    """Return each seed that several runs of one method have, with the names of these runs."""
    names_of: dict[tuple[str, int], list[str]] = {}
    for run, method in zip(runs, methods, strict=True):
        seed = run.records.document.get("seed")
        if isinstance(seed, int):
            names_of.setdefault((method, seed), []).append(run.name)
    return [(seed, names) for (_, seed), names in names_of.items() if len(names) > 1]


def _of_method(config: Mapping[str, Any]) -> dict[str, Any]:
    unused = ("selection", "mutation") if config.get("evolution") else ("evolution",)  # auto replaces both
    kept = {name: its for name, its in config.items() if name not in ("seed", "run", *unused)}
    run = config.get("run")
    callbacks = run.get("callbacks") if isinstance(run, Mapping) else None
    return kept | ({"run.callbacks": callbacks} if callbacks else {})


def differing_settings(values: Sequence[Any], name: str = "") -> Iterator[list[str]]:
    """Yield the name of each setting that differs, and its value in each run: `algorithm.lr`, 0.001, 0.002."""
    if all(value == values[0] for value in values):
        return
    mappings = [value for value in values if isinstance(value, Mapping)]
    texts = [_text(value) for value in values]
    is_absent = name not in ("", "hyperparameters") and (len(mappings) < len(values) or not all(mappings))  # in a run
    if not mappings or (all(map(_is_range, mappings)) and len({*texts}) > 1) or (is_absent and len({*texts}) > 1):
        yield [name, *texts]
        return
    for key in sorted({key for its in mappings for key in its}, key=str):
        theirs = [value.get(key, MISSING) if isinstance(value, Mapping) else MISSING for value in values]
        yield from differing_settings(theirs, f"{name}.{key}" if name else key)


def _is_range(value: Mapping[str, Any]) -> bool:
    return {"min", "max"} <= {*value}


def _text(value: Any) -> str:
    if isinstance(value, Mapping) and _is_range(value):
        return f"{value['min']} to {value['max']}, {value.get('scale', 'auto')}"
    if isinstance(value, Mapping) and "name" in value:  # a strategy
        return str(value["name"])
    if isinstance(value, Mapping):
        entries = [f"{name} {its}" for name, its in value.items()]
        return ", ".join(entries[:SHOWN] + ["…"] * (len(entries) > SHOWN)) or MISSING
    return "none" if value is None else str(value)
