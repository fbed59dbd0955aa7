"""What a saved document must hold: read strictly, for a stranger may have written it.

A file is small and may describe something huge. Within an `MetaBuild` a network is built without memory, so that its
shapes can be compared with those that are stored before anything is made of them.
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
from agilerl_like.envs.spaces import space_from_json
from agilerl_like.storage import safe_folder
from agilerl_like.storage.safe_folder import LazyTensors

MAX_COUNT = 2**128
"""What no counter reaches."""
MAX_SPACE_BYTES = 2**23
"""Bytes of an observation, in float32, of a space that is read from a file: a frame of 1448 x 1448."""
SUBSPACE_BYTES = 4000
"""Bytes that cost as much as one more part of a space."""


def to_builtin(value: Any) -> Any:
    """The same data in Python's own types: scalars of numpy and torch become numbers, arrays and tuples lists."""
    if isinstance(value, Mapping):
        return {key: to_builtin(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_builtin(part) for part in value]
    if isinstance(value, np.generic | np.ndarray | Tensor):
        return value.tolist()
    return value


class MetaBuild(TorchFunctionMode):
    """Within it, tensors that modules are built of have a shape and no memory; ValueError if there are far too many."""

    def __init__(self, expected: int) -> None:
        super().__init__()
        self._left = 100 + 10 * expected

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        self._left -= 1
        if self._left < 0:
            raise ValueError("its architecture has far more layers than its tensors are for")
        return func(*args, **(kwargs | {"device": "meta"} if "device" in kwargs else kwargs))


def read_text(document: Mapping[str, Any], name: str) -> str:
    """A text of a saved document; ValueError if it is something else."""
    if not isinstance(document[name], str):
        raise ValueError(f"{name}={document[name]!r:.100} must be a text")
    return document[name]


def read_flag(document: Mapping[str, Any], name: str, *, older: bool) -> bool:
    """A flag of a saved document, `older` where the file is from before it existed; ValueError if it is no flag."""
    flag = document.get(name, older)
    if not isinstance(flag, bool):
        raise ValueError(f"{name}={flag!r:.100} must be true or false")
    return flag


def read_count(document: Mapping[str, Any], name: str) -> int:
    """A counter of a saved document; ValueError if it is something else."""
    return check_count(name, document[name])


class History(NamedTuple):
    """The history of an agent: its `mut`, and one entry of `fitness`, `scores` and `steps` for each test."""

    mut: str
    fitness: list[Any]
    scores: list[Any]
    steps: list[int]


def read_history(document: Mapping[str, Any]) -> History:
    """Read an agent's past; the same function checks a document before it is written.

    Raises:
        ValueError: an entry is of another type; the message names the field and the value.
    """
    return History(
        mut=read_text(document, "mut"),
        fitness=read_floats(document, "fitness"),  # what selection compares
        scores=read_test_entries(document, "scores"),
        steps=[check_count("steps", entry) for entry in document["steps"]] or [0],
    )


def read_test_entries(document: Mapping[str, Any], name: str) -> list[Any]:
    """A list with a number for each test, or a list of numbers where each group of agents has its own.

    Raises:
        ValueError: an entry is of another type.
    """
    entries = document[name]
    if not isinstance(entries, list):
        raise ValueError(f"{name}={entries!r:.100} must be a list of numbers")
    nested = [entry for entry in entries if isinstance(entry, list)]
    numbers = read_floats({name: [entry for entry in entries if not isinstance(entry, list)]}, name)
    rest, rows = iter(numbers), (read_floats({name: entry}, name) for entry in nested)
    return [next(rows) if isinstance(entry, list) else next(rest) for entry in entries]


def read_floats(document: Mapping[str, Any], name: str) -> list[float]:
    """A list of numbers of a saved document; ValueError if it is something else."""
    entries = document[name]
    if not isinstance(entries, list) or not all(type(entry) in (int, float) for entry in entries):
        raise ValueError(f"{name}={entries!r:.100} must be a list of numbers")
    if any(type(entry) is int and abs(entry) > MAX_COUNT for entry in entries):
        raise ValueError(f"{name} has a number beyond all counting")
    return [float(entry) for entry in entries]


def check_count(name: str, value: Any) -> int:
    """A counter, which is called so; ValueError if it is something else."""
    if type(value) is not int or not 0 <= value < MAX_COUNT:
        raise ValueError(f"{name}={value!r:.100} must be a whole number of at least 0")
    return value


def check_finite(tensors: Mapping[str, Tensor]) -> None:
    """Raise ValueError, with the name, if a stored tensor holds a number that is not finite.

    Tensors in memory are not checked: between processes a member may travel that has diverged and is about to be
    replaced.
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


# -- folders

BEST, POPULATION = "best", "population"
"""Where a run's folder has its best agent and its last population."""


def read_agent(path: str | os.PathLike[str]) -> tuple[Any, Mapping[str, Tensor]]:
    """Return the document and the tensors of a saved agent, or of the best agent of a checkpoint or of a run's folder.

    Raises:
        CheckpointError: as `safe_folder.read_folder`.
    """
    folder, kind = _locate(Path(path), "agent", BEST)
    name = "champion" if kind == "checkpoint" else "agent"
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
    """The folder to be read, and as what: a checkpoint has everything, a run's folder has it at a place of its own."""
    if (path / safe_folder.MANIFEST).exists():
        return path, "checkpoint" if safe_folder.folder_kind(path) == "checkpoint" else kind
    is_run = (path / place).is_dir() or any(path.glob(f".{place}.old-*"))  # which a crash has left
    return (path / place if is_run else path), kind


# -- spaces


def read_space(data: Mapping[str, Any]) -> gymnasium.Space:
    """Read a space, unless it is beyond all learning: a few characters can describe a terabyte."""
    if _space_bytes(data) > MAX_SPACE_BYTES:
        raise ValueError(f"space={str(data)[:100]} is too large; allowed are {MAX_SPACE_BYTES} bytes")
    return space_from_json(data)


def read_spaces(described: Iterable[Mapping[str, Any]]) -> list[gymnasium.Space]:
    """Read the spaces of a team: one and the same where they are alike, and together no larger than one might be."""
    told = [(json.dumps(data, sort_keys=True), data) for data in described]
    distinct = dict(told)
    if _space_bytes({"type": "Tuple", "spaces": [*distinct.values()]}) > MAX_SPACE_BYTES:
        raise ValueError(f"{len(distinct)} spaces are too large together; allowed are {MAX_SPACE_BYTES} bytes")
    read = {text: space_from_json(data) for text, data in distinct.items()}
    return [read[text] for text, _ in told]


def _space_bytes(data: Mapping[str, Any]) -> int:
    """About how many bytes an observation of a described space is, and what its parts take by themselves."""
    if data["type"] in ("Dict", "Tuple"):
        parts = data["spaces"] if data["type"] == "Tuple" else [part for _, part in data["spaces"]]
        return sum(SUBSPACE_BYTES + _space_bytes(part) for part in parts)
    sizes = np.ravel(np.asarray(data.get("shape", data.get("nvec", data.get("n"))), dtype=object)).tolist()
    if not all(type(size) is int for size in sizes):
        raise ValueError(f"space={str(data)[:100]} must have whole numbers for sizes")
    return (sum if "nvec" in data else math.prod)(sizes) * max(4, np.dtype(data.get("dtype")).itemsize)


# -- teams


class StoredGroups(NamedTuple):
    """Who is in a team, and what each of them sees and does."""

    groups: dict[str, tuple[str, ...]]
    observation_spaces: dict[str, gymnasium.Space]
    action_spaces: dict[str, gymnasium.Space]


def read_multi_agent_spec(document: Mapping[str, Any]) -> StoredGroups:
    """The book of a saved team; ValueError if it does not add up."""
    ids, listed, spaces = document["agent_ids"], document["groups"], document["spaces"]
    check_names("agent_ids", ids)
    home = {agent: group for group, members in listed for agent in members}
    if sorted(agent for _, members in listed for agent in members) != sorted(ids):
        raise ValueError("groups do not have each agent of agent_ids once")
    groups = {group: tuple(members) for group, members in listed}
    if not groups.keys() == spaces.keys() == document["learners"].keys():
        raise ValueError("groups are not those that spaces and learners are of")
    pairs = [(sees, does) for sees, does in map(spaces.get, groups)]
    read = iter(read_spaces(chain.from_iterable(pairs)))
    by_group = {group: (next(read), next(read)) for group in groups}
    observed, acted = ({agent: by_group[home[agent]][part] for agent in ids} for part in (0, 1))
    if [*assign_groups(ids, home, observed, acted).items()] != [*groups.items()]:
        raise ValueError("groups are not in the order of their agents")
    return StoredGroups(groups, observed, acted)
