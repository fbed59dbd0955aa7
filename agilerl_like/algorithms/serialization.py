"""Strict readers for the documents of saved agents and populations, which may come from an untrusted source.

A small file can describe a huge network. Within `MetaBuild` a network is built without memory, so its shapes are
compared with the stored ones before anything is allocated.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from agilerl_like.algorithms.agent_groups import assign_groups, check_names
from agilerl_like.envs.spaces import space_from_json, space_to_json
from agilerl_like.errors import ConfigurationError
from agilerl_like.storage import safe_folder
from agilerl_like.storage.run_names import BEST, BEST_DOCUMENT, POPULATION
from agilerl_like.storage.safe_folder import LazyTensors

MAX_COUNT = 2**128
"""Upper bound of counters."""
MAX_SPACE_BYTES = 2**27
"""Upper bound of an observation's bytes as float32, of a space in a file: four color frames of 1920 x 1080 fit, and
reading it takes less than a gigabyte."""
MAX_SUBSPACES = 2048
"""Upper bound of the parts of a space in a file, and of the distinct spaces of a team: 20,000 take seconds to read."""


def to_builtin(value: Any) -> Any:
    """Return data with scalars of numpy and torch as numbers, and arrays and tuples as lists."""
    if isinstance(value, Mapping):
        return {key: to_builtin(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_builtin(part) for part in value]
    if isinstance(value, np.generic | np.ndarray | Tensor):
        return value.tolist()
    return value


class MetaBuild(TorchFunctionMode):
    """Context in which tensors of modules have no memory; ValueError if there are far more than expected."""

    def __init__(self, expected: int) -> None:
        super().__init__()
        self._left = 100 + 10 * expected

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        self._left -= 1
        if self._left < 0:
            raise ValueError("its architecture has far more layers than its tensors are of")
        return func(*args, **(kwargs | {"device": "meta"} if "device" in kwargs else kwargs))


def read_text(document: Mapping[str, Any], name: str) -> str:
    """Return a string; ValueError if the entry is none."""
    if not isinstance(document[name], str):
        raise ValueError(f"{name}={document[name]!r:.100} must be a string")
    return document[name]


def read_flag(document: Mapping[str, Any], name: str) -> bool:
    """Return a flag, False if an earlier version wrote the file without it; ValueError if it is no flag."""
    flag = document.get(name, False)
    if not isinstance(flag, bool):
        raise ValueError(f"{name}={flag!r:.100} must be true or false")
    return flag


def read_count(document: Mapping[str, Any], name: str) -> int:
    """Return a counter; ValueError if it is none."""
    return check_count(name, document[name])


class TrainingRecord(NamedTuple):
    """An agent's training so far: `mut`, `progress`, and one entry of `fitness`, `scores` and `steps` for each test."""

    mut: str
    fitness: list[Any]
    scores: list[Any]
    steps: list[int]
    progress: float


def read_training_record(document: Mapping[str, Any]) -> TrainingRecord:
    """Read the record of an agent's training; the same function checks a document before it is written.

    Raises:
        ValueError: an entry is of another type; the message names the field and the value.
    """
    return TrainingRecord(
        mut=read_text(document, "mut"),
        fitness=read_floats(document, "fitness"),  # what selection compares
        scores=read_test_entries(document, "scores"),
        steps=[check_count("steps", entry) for entry in document["steps"]] or [0],
        progress=read_progress(document),
    )


def read_progress(document: Mapping[str, Any]) -> float:
    """Return the share of a run, on which schedules depend; 0 if an earlier version wrote the file without it."""
    progress = document.get("progress", 0.0)
    if type(progress) not in (int, float) or not 0 <= progress < MAX_COUNT:
        raise ValueError(f"progress={progress!r:.100} must be a finite number of at least 0")
    return float(progress)


def read_test_entries(document: Mapping[str, Any], name: str) -> list[Any]:
    """Return a list with an entry for each test: a number, or a list with one for each group; ValueError for others."""
    entries = document[name]
    if not isinstance(entries, list):
        raise ValueError(f"{name}={entries!r:.100} must be a list of numbers")
    nested = [entry for entry in entries if isinstance(entry, list)]
    numbers = read_floats({name: [entry for entry in entries if not isinstance(entry, list)]}, name)
    rest, rows = iter(numbers), (read_floats({name: entry}, name) for entry in nested)
    return [next(rows) if isinstance(entry, list) else next(rest) for entry in entries]


def read_floats(document: Mapping[str, Any], name: str) -> list[float]:
    """Return a list of numbers; ValueError if it is none."""
    entries = document[name]
    if not isinstance(entries, list) or not all(type(entry) in (int, float) for entry in entries):
        raise ValueError(f"{name}={entries!r:.100} must be a list of numbers")
    if any(type(entry) is int and abs(entry) > MAX_COUNT for entry in entries):
        raise ValueError(f"{name} has an integer above 2**128")
    return [float(entry) for entry in entries]


def check_count(name: str, value: Any) -> int:
    """Return a counter, called `name` in messages; ValueError if it is none."""
    if type(value) is not int or not 0 <= value < MAX_COUNT:
        raise ValueError(f"{name}={value!r:.100} must be a whole number of at least 0")
    return value


def check_finite(tensors: Mapping[str, Tensor]) -> None:
    """Raise ValueError, with the name, if a stored tensor holds a number that is not finite.

    Tensors in memory are not checked, because a diverged member may be sent between processes before it is replaced.
    """
    if not isinstance(tensors, LazyTensors):
        return
    for name, tensor in tensors.items():
        finite = torch.isfinite(tensor)
        if not bool(finite.all()):
            wrong = tensor[~finite]
            raise ValueError(
                f"{tensors.prefix}{name} holds {float(wrong[0])} in {wrong.numel()} of {tensor.numel()} places; "
                "allowed are finite numbers"
            )


# -- weights without the state of learning

WEIGHTS_ONLY = "weights_only"
"""Key of a flag in a learner's document: only the tensors that acting needs are stored."""
ADAM, REWARD_NORM, SEARCH, OWN, RECENT_OBSERVATIONS = "adam.", "reward_norm.", "cma.", "own.", "recent_observations"
LEARNING_STATE = (ADAM, REWARD_NORM, SEARCH, OWN, RECENT_OBSERVATIONS)
"""Beginnings of the names of a learner's tensors that learning needs and acting does not."""


def without_learning_state(
    document: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return an agent's document and tensors without the state of learning, for an agent that only acts."""
    flagged = {**document, WEIGHTS_ONLY: True}
    own_names = {name: name for name in tensors}  # as its learner gives them
    if "learners" in document:
        flagged["learners"] = {group: {**one, WEIGHTS_ONLY: True} for group, one in document["learners"].items()}
        own_names = {name: name.partition("/")[2] for name in tensors}  # behind the name of the group
    return flagged, {name: x for name, x in tensors.items() if not own_names[name].startswith(LEARNING_STATE)}


# -- folders


def read_agent(path: str | os.PathLike[str]) -> tuple[Any, Mapping[str, Tensor]]:
    """Return the document and the tensors of a saved agent, or of the best agent of a checkpoint or of a run's folder.

    Raises:
        CheckpointError: as `safe_folder.read_folder`.
    """
    folder, kind = _locate(Path(path), "agent", BEST)
    name = BEST_DOCUMENT if kind == "checkpoint" else "agent"
    documents, tensors = safe_folder.read_folder(folder, kind)
    return documents.get(name), tensors.get(name, {})


def read_population(
    path: str | os.PathLike[str],
) -> tuple[Mapping[str, Any], Mapping[str, Mapping[str, Tensor]]]:
    """Return the documents and the tensors of a saved population, of a checkpoint, or of the last one of a run.

    Raises:
        CheckpointError: as `safe_folder.read_folder`.
    """
    return safe_folder.read_folder(*_locate(Path(path), "population", POPULATION))


def _locate(path: Path, kind: str, place: str) -> tuple[Path, str]:
    """Return the folder to read and its kind; a run's folder has agents and populations in the subfolder `place`.

    `os.path` finds nothing where `pathlib` raises OSError, such as for a name that is too long; the reader names that.
    """
    if os.path.exists(path / safe_folder.MANIFEST):
        return path, "checkpoint" if safe_folder.folder_kind(path) == "checkpoint" else kind
    left_by_crash = f".{place}.old-*"
    is_run = os.path.isdir(path / place) or (os.path.isdir(path) and any(path.glob(left_by_crash)))
    return (path / place if is_run else path), kind


# -- spaces


def read_space(data: Mapping[str, Any]) -> gymnasium.Space:
    """Return a space; ValueError if its observations are too large, since a short text can describe a terabyte."""
    if excess := _excess(data):
        raise ValueError(f"space={str(data)[:100]} {excess}")
    return space_from_json(data)


def check_space_sizes(name: str, spaces: Iterable[gymnasium.Space]) -> None:
    """Raise ConfigurationError, with the argument `name`, if `read_spaces` would refuse these spaces."""
    distinct: list[gymnasium.Space] = []
    for space in spaces:
        if space not in distinct:
            distinct.append(space)
    if excess := _excess({"type": "Tuple", "spaces": [*map(_outline, distinct)]}):
        raise ConfigurationError(
            f"{name}={'; '.join(map(str, distinct)):.200} {excess}; a saved agent could not be loaded"
        )


def _outline(space: gymnasium.Space) -> dict[str, Any]:
    """Describe a space as `space_to_json` does, but a Box without its bounds, which may be millions of numbers."""
    if isinstance(space, gymnasium.spaces.Box):
        return {"type": "Box", "dtype": str(space.dtype), "shape": list(space.shape)}
    if isinstance(space, gymnasium.spaces.Dict):
        return {"type": "Dict", "spaces": [[str(key), _outline(child)] for key, child in space.spaces.items()]}
    if isinstance(space, gymnasium.spaces.Tuple):
        return {"type": "Tuple", "spaces": [_outline(child) for child in space.spaces]}
    return space_to_json(space)


def read_spaces(described: Iterable[Mapping[str, Any]]) -> list[gymnasium.Space]:
    """Return the spaces of a team, equal ones as one object; ValueError if they are too large together."""
    texts = [(json.dumps(data, sort_keys=True), data) for data in described]
    distinct = dict(texts)
    together = {"type": "Tuple", "spaces": [*distinct.values()]}
    if excess := _excess(together):
        raise ValueError(f"spaces={str(together)[:100]} {excess}")
    read = {text: space_from_json(data) for text, data in distinct.items()}
    return [read[text] for text, _ in texts]


def _excess(data: Mapping[str, Any]) -> str:
    """Say which limit a described space exceeds; empty if it exceeds none."""
    size, count = _space_size(data)
    if count > MAX_SUBSPACES:
        return f"has {count} parts; allowed are {MAX_SUBSPACES}"
    return f"needs {size} bytes as float32; allowed are {MAX_SPACE_BYTES}" if size > MAX_SPACE_BYTES else ""


def _space_size(data: Mapping[str, Any]) -> tuple[int, int]:
    """Return the bytes of an observation of a described space as float32, and the number of its parts."""
    if data["type"] in ("Dict", "Tuple"):
        parts = data["spaces"] if data["type"] == "Tuple" else [part for _, part in data["spaces"]]
        sizes = [_space_size(part) for part in parts]
        return sum(size for size, _ in sizes), len(parts) + sum(count for _, count in sizes)
    sizes = np.ravel(np.asarray(data.get("shape", data.get("nvec", data.get("n"))), dtype=object)).tolist()
    if not all(type(size) is int for size in sizes):
        raise ValueError(f"space={str(data)[:100]} must have whole numbers for sizes")
    return (sum if "nvec" in data else math.prod)(sizes) * max(4, np.dtype(data.get("dtype")).itemsize), 0


# -- teams


class StoredGroups(NamedTuple):
    """The groups of a team, and each agent's spaces."""

    groups: dict[str, tuple[str, ...]]
    observation_spaces: dict[str, gymnasium.Space]
    action_spaces: dict[str, gymnasium.Space]


def read_multi_agent_spec(document: Mapping[str, Any]) -> StoredGroups:
    """Return the groups of a saved team; ValueError if they are inconsistent."""
    ids, listed, spaces = document["agent_ids"], document["groups"], document["spaces"]
    check_names("agent_ids", ids)
    group_of_agent = {agent: group for group, members in listed for agent in members}
    if sorted(agent for _, members in listed for agent in members) != sorted(ids):
        raise ValueError("groups must have each agent of agent_ids exactly once")
    groups = {group: tuple(members) for group, members in listed}
    if not groups.keys() == spaces.keys() == document["learners"].keys():
        raise ValueError("groups, spaces and learners must have the same names")
    pairs = [(observed, acted) for observed, acted in map(spaces.get, groups)]
    read = iter(read_spaces(chain.from_iterable(pairs)))
    by_group = {group: (next(read), next(read)) for group in groups}
    observed, acted = ({agent: by_group[group_of_agent[agent]][part] for agent in ids} for part in (0, 1))
    if [*assign_groups(ids, group_of_agent, observed, acted).items()] != [*groups.items()]:
        raise ValueError("groups must be in the order of their agents")
    return StoredGroups(groups, observed, acted)
