"""The infos of a vector environment: merging, reading the info of one row, and a warning about large ones.

gymnasium merges the infos of its environments key by key into arrays, with a flag array `_key` that marks the rows
which gave the key. Where the next episode started in the same step, the info of the last step is in `final_info`. See
https://gymnasium.farama.org/api/vector/. Its own code casts all values to the type of the first one; `add_info` merges
into the same layout without that.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np

from agilerl_like.envs.env_errors import env_name_of
from agilerl_like.resources import format_bytes

FINAL = ("final_info", "final_obs", "final_observation")
LARGE = 2**23
"""Bytes of all infos of a step from which a warning is given."""
_REQUIRED = ("final_obs", "_final_obs", "final_observation", "_final_observation")


def add_info(vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int, num_envs: int) -> dict[str, Any]:
    """Add the info of one env to merged infos, and return these; the arguments are those of gymnasium's method.

    Arrays of numbers have a type that holds the numbers of all rows. Values of unequal shape or kind are objects.
    """
    for key, value in env_info.items():
        flag, merged = f"_{key}", vector_infos.get(key)
        if isinstance(value, dict) and key != "final_obs" and (merged is None or isinstance(merged, dict)):
            merged = add_info({} if merged is None else merged, value, env_num, num_envs)
        else:
            dtype, shape = (_OBJECT, ()) if key == "final_obs" else _array_type(value)
            if merged is None:
                merged = np.full(num_envs, None) if dtype is _OBJECT else np.zeros((num_envs, *shape), dtype)
            elif not _holds(merged, dtype, shape):
                merged = _widened(merged, vector_infos[flag], dtype, shape)
            merged[env_num] = value
        vector_infos[key] = merged
        if flag not in vector_infos:
            vector_infos[flag] = np.zeros(num_envs, dtype=np.bool_)
        vector_infos[flag][env_num] = True
    return vector_infos


_OBJECT = np.dtype(object)


def _array_type(value: Any) -> tuple[np.dtype, tuple[int, ...]]:
    """Return the dtype and shape of a row of an array of such values."""
    if type(value) in (int, float, bool) or isinstance(value, np.number):
        return np.asarray(value).dtype, ()
    if isinstance(value, np.ndarray) and value.dtype != _OBJECT:
        return value.dtype, value.shape
    return _OBJECT, ()


def _holds(merged: Any, dtype: np.dtype, shape: tuple[int, ...]) -> bool:
    """Return whether merged values are an array for values of this type, or one of objects."""
    if not isinstance(merged, np.ndarray):
        return False
    return merged.dtype == _OBJECT or (merged.dtype == dtype and merged.shape[1:] == shape)


def _widened(merged: Any, flags: np.ndarray, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Return merged values as an array that also holds a value of this type."""
    if isinstance(merged, np.ndarray) and merged.shape[1:] == shape and {merged.dtype.kind, dtype.kind} <= _NUMBERS:
        return merged.astype(np.result_type(merged.dtype, dtype))
    objects = np.full(len(flags), None)
    for row in np.flatnonzero(flags).tolist():
        objects[row] = _entry(merged, row, len(flags))
    return objects


_NUMBERS = set("biufc")
"""Kinds of dtypes."""


def copy_info(info: Any) -> Any:
    """Return a copy of an info, whose lists, arrays and tensors its env may change later.

    A value that cannot be copied is shared.
    """
    if type(info) is dict:
        return {key: copy_info(value) for key, value in info.items()}
    try:  # a deepcopy of one row of a tensor would copy the memory of all rows
        return info.clone() if callable(getattr(info, "clone", None)) else deepcopy(info)
    except Exception:  # of an object such as a lock
        return info


def info_of_env(
    infos: Mapping[str, Any], row: int, *, ended: bool = False, num_envs: int | None = None
) -> dict[str, Any]:
    """Return the info of one row; if this step `ended` its episode, the info of the episode's last step.

    A list, tuple or array that has not `num_envs` entries is one for all rows; None: each of them has one for each row.
    """
    final = infos.get("final_info") if ended and _has_entry(infos, "final_info", row) else None
    if final is not None:
        is_merged = isinstance(final, Mapping)
        last = info_of_env(final, row, num_envs=num_envs) if is_merged else dict(final[row] or {})
        return {**_episode_statistics(infos, row), **last}
    flags = {f"_{key}" for key in infos}
    return {
        key: _entry(value, row, num_envs)
        for key, value in infos.items()
        if key not in FINAL and key not in flags and _has_entry(infos, key, row)
    }


def _episode_statistics(infos: Mapping[str, Any], row: int) -> dict[str, Any]:
    """Return the entry that gymnasium's vector RecordEpisodeStatistics puts beside `final_info`; {} without one."""
    found = infos.get("episode")
    if not isinstance(found, Mapping) or not {"r", "l", "t"} <= found.keys():
        return {}  # an entry of another form is of the next episode
    return {"episode": info_of_env(found, row)} if _has_entry(infos, "episode", row) else {}


def _has_entry(infos: Mapping[Any, Any], key: Any, row: int) -> bool:
    flags = infos.get(f"_{key}")
    return flags is None or bool(flags[row])


def _entry(value: Any, row: int, num_envs: int | None) -> Any:
    if isinstance(value, Mapping):
        return info_of_env(value, row, num_envs=num_envs)
    is_list = isinstance(value, (list, tuple))  # perhaps of lists of unequal lengths, which numpy refuses
    if isinstance(value, str) or not hasattr(value, "__getitem__") or (not is_list and np.ndim(value) == 0):
        return value  # one for all environments
    if num_envs is not None and len(value) != num_envs:
        return value
    entry = value[row]
    return entry.item() if isinstance(entry, np.generic) else entry


class InfoSizeMonitor:
    """Measures the infos of steps 1, 2, 4, 8, … of a vector environment, and warns once if they are large.

    Large infos slow down every step, because they are copied and sent by worker processes.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self._steps, self._next = 0, 1

    def check(self, info: Mapping[str, Any]) -> None:
        """Count one step, and measure its infos if it is one of those steps."""
        self._steps += 1
        if self._steps != self._next:
            return
        self._next *= 2
        sizes = {key: approx_bytes(value) for key, value in info.items() if key not in _REQUIRED}
        if (size := sum(sizes.values())) >= LARGE:
            self._next = 0  # no step has this number, so there is no second warning
            largest = max(sizes, key=sizes.__getitem__)
            warnings.warn(
                f"{env_name_of(self._env)}: the infos of a step take {format_bytes(size)}, of which {largest!r} takes "
                f"{format_bytes(sizes[largest])}. They are copied at every step; leave out of info what nothing reads, "
                "for example with a wrapper around the environment",
                RuntimeWarning,
                stacklevel=4,
            )


def approx_bytes(value: Any) -> int:
    """Return the approximate size of a tree of arrays and strings; any other object counts 8 bytes."""
    if isinstance(value, Mapping):
        return sum(map(approx_bytes, value.values()))
    if isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.dtype == object):
        return sum(approx_bytes(entry) for entry in value)
    if isinstance(value, (str, bytes, bytearray)):
        return len(value)
    return int(getattr(value, "nbytes", 8))
