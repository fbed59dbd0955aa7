"""What a space means to a network: how wide an observation is as numbers, and how a space is written to a file.

Everything that asks "which kind of space is this?" asks it here, so that a new kind (images, dicts) has one place.
A category is written as a one-hot row, never as a number: action 3 is not three times action 1. `Discrete(n, start)`
counts from `start`, so the start is taken away first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from agilerl_like.errors import ConfigurationError, EnvironmentFault

Tree = Any  # one array, or a dict or tuple of trees


def tree_map(fn: Callable[..., Any], *trees: Tree) -> Tree:
    """Apply `fn` to the arrays that stand at the same place in trees of dicts and tuples; a lone array is a tree."""
    first = trees[0]
    if isinstance(first, Mapping):
        return {key: tree_map(fn, *(tree[key] for tree in trees)) for key in first}
    if isinstance(first, tuple):
        return tuple(tree_map(fn, *branches) for branches in zip(*trees, strict=True))
    return fn(*trees)


def check_observation_space(space: Space) -> None:
    """Raise ConfigurationError unless agents can observe this space."""
    if isinstance(space, Box) and (len(space.shape) > 1 or math.prod(space.shape) == 0):
        raise ConfigurationError(
            f"observation_space={space} has shape {space.shape}; allowed are vectors with at least one number "
            "(wrappers=['FlattenObservation'] makes one of it)"
        )
    if not isinstance(space, (Box, Discrete, MultiDiscrete, MultiBinary)):
        raise ConfigurationError(
            f"observation_space={space} is a {type(space).__name__}; allowed are Box (a vector), Discrete, "
            "MultiDiscrete and MultiBinary (wrappers=['FlattenObservation'] makes a vector of dicts and tuples)"
        )


def check_action_space(space: Space) -> None:
    """Raise ConfigurationError unless agents can act in this space."""
    allowed = "allowed are Discrete, MultiDiscrete (one-dimensional), MultiBinary and Box of floats"
    if isinstance(space, Box):
        if not np.issubdtype(space.dtype, np.floating):
            raise ConfigurationError(f"action_space={space} is a Box of {space.dtype}; {allowed}")
        if math.prod(space.shape) == 0:
            raise ConfigurationError(f"action_space={space} has no numbers to choose; {allowed}")
    elif isinstance(space, MultiDiscrete):
        if space.nvec.ndim != 1:
            raise ConfigurationError(f"action_space={space} has {space.nvec.ndim} dimensions; {allowed}")
    elif not isinstance(space, (Discrete, MultiBinary)):
        raise ConfigurationError(f"action_space={space} is a {type(space).__name__}; {allowed}")


def mask_size(space: Space) -> int:
    """Return how many booleans an action mask of this space has; 0 where actions cannot be masked.

    Discrete(n): n, one for each action. MultiDiscrete: sum(nvec), one for each choice, side by side. MultiBinary(n): n,
    False where the bit must stay 0.
    """
    if isinstance(space, Discrete):
        return int(space.n)
    if isinstance(space, MultiDiscrete):
        return int(space.nvec.sum())
    if isinstance(space, MultiBinary):
        return math.prod(space.shape)
    return 0


class ObservationEncoding:
    """Turns observations of one space into float32 rows; `size` is the width of a row.

    Of the categories of a space `counts` says how many values each has, `starts` the first of them, and `columns` where
    its one-hot begins; all three are empty where observations are numbers already.
    """

    def __init__(self, space: Space) -> None:
        check_observation_space(space)
        self.space = space
        self.event_dims = len(space.shape or ())
        if isinstance(space, Discrete):
            counts, starts = np.array([space.n]), np.array([space.start])
        elif isinstance(space, MultiDiscrete):
            counts, starts = space.nvec.ravel(), space.start.ravel()
        else:
            counts, starts = np.empty(0, np.int64), np.empty(0, np.int64)
        self.counts = counts.astype(np.int64)
        self.starts = starts.astype(np.int64)
        self.columns = np.cumsum(self.counts) - self.counts
        self.size: int = int(self.counts.sum()) if self.counts.size else math.prod(space.shape or ())

    def encode(self, observation: np.ndarray) -> np.ndarray:
        """Return float32 [..., size] for observations [..., *space.shape]; may be the very array that came in.

        Raises:
            EnvironmentFault: a category lies outside the space.
        """
        batch = observation.shape[: observation.ndim - self.event_dims]
        if not self.counts.size:
            return observation.astype(np.float32, copy=False).reshape(*batch, self.size)
        categories = observation.reshape(-1, self.counts.size) - self.starts  # [B, categories]
        if not ((categories >= 0) & (categories < self.counts)).all():
            raise EnvironmentFault(f"observation {observation} lies outside {self.space}")
        rows = np.zeros((len(categories), self.size), dtype=np.float32)
        rows[np.arange(len(categories))[:, None], categories + self.columns] = 1.0
        return rows.reshape(*batch, self.size)


def flat_size(space: Space) -> int:
    """Return how many numbers one observation of this space is to a network."""
    return ObservationEncoding(space).size


def encode(space: Space, observation: np.ndarray) -> np.ndarray:
    """Encode once; who encodes often keeps an `ObservationEncoding`."""
    return ObservationEncoding(space).encode(observation)


def space_to_json(space: Space) -> dict[str, Any]:
    """Describe a space in plain data, exactly: bounds keep every bit, infinities are the strings "inf" and "-inf"."""
    if isinstance(space, Box):
        return {
            "type": "Box",
            "dtype": str(space.dtype),
            "shape": list(space.shape),
            "low": _bounds_to_json(space.low),
            "high": _bounds_to_json(space.high),
        }
    if isinstance(space, Discrete):
        return {"type": "Discrete", "dtype": str(space.dtype), "n": int(space.n), "start": int(space.start)}
    if isinstance(space, MultiDiscrete):
        return {
            "type": "MultiDiscrete",
            "dtype": str(space.dtype),
            "nvec": space.nvec.tolist(),
            "start": space.start.tolist(),
        }
    if isinstance(space, MultiBinary):
        return {"type": "MultiBinary", "n": space.n if isinstance(space.n, int) else [int(n) for n in space.shape]}
    if isinstance(space, Dict) and all(isinstance(key, str) for key in space.spaces):
        return {"type": "Dict", "spaces": [[key, space_to_json(part)] for key, part in space.spaces.items()]}
    if isinstance(space, Tuple):
        return {"type": "Tuple", "spaces": [space_to_json(part) for part in space.spaces]}
    raise ConfigurationError(
        f"space={space} cannot be written to a file; allowed are Box, Discrete, MultiDiscrete, MultiBinary, and Dict "
        "(with strings for keys) and Tuple of these"
    )


def space_from_json(data: Mapping[str, Any]) -> Space:
    """Read what `space_to_json` wrote.

    Raises:
        ConfigurationError: the data does not describe a space.
    """
    try:
        return _SPACES[data["type"]](data)
    except (KeyError, TypeError, ValueError, AssertionError, OverflowError) as fault:
        raise ConfigurationError(
            f"space={data!r} is not a description of a space ({fault!r}); allowed types are {', '.join(_SPACES)}"
        ) from fault


def _bounds_to_json(bounds: np.ndarray) -> Any:
    """Write one number if all are the same, else the flat list of all."""
    numbers = [("inf" if b > 0 else "-inf") if math.isinf(b) else b for b in bounds.ravel().tolist()]
    return numbers[0] if numbers and len(set(numbers)) == 1 else numbers


def _bounds_from_json(bounds: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    numbers = bounds if isinstance(bounds, list) else [bounds] * math.prod(shape)
    values = [float(number) if isinstance(number, str) else number for number in numbers]
    return np.array(values, dtype=dtype).reshape(shape)


def _box(data: Mapping[str, Any]) -> Space:
    shape, dtype = tuple(data["shape"]), np.dtype(data["dtype"])
    low, high = (_bounds_from_json(data[side], shape, dtype) for side in ("low", "high"))
    return Box(low, high, shape=shape, dtype=dtype.type)


def _discrete(data: Mapping[str, Any]) -> Space:
    # gymnasium below 1.2 has no dtype here, so it is only named where it is not the default
    dtype: dict[str, Any] = {} if data["dtype"] == "int64" else {"dtype": np.dtype(data["dtype"]).type}
    return Discrete(data["n"], start=data["start"], **dtype)


def _multi_discrete(data: Mapping[str, Any]) -> Space:
    dtype = np.dtype(data["dtype"])
    return MultiDiscrete(np.array(data["nvec"], dtype), dtype=dtype.type, start=np.array(data["start"], dtype))


_SPACES: dict[str, Callable[[Mapping[str, Any]], Space]] = {
    "Box": _box,
    "Discrete": _discrete,
    "MultiDiscrete": _multi_discrete,
    "MultiBinary": lambda data: MultiBinary(data["n"]),
    "Dict": lambda data: Dict([(key, space_from_json(part)) for key, part in data["spaces"]]),
    "Tuple": lambda data: Tuple([space_from_json(part) for part in data["spaces"]]),
}
