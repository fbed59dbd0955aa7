"""Finds infos that are so large that they slow every step down: they are copied, and sent by worker processes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from agilerl_like.envs.env_errors import env_name_of
from agilerl_like.resources import format_bytes

LARGE = 2**23
"""Bytes of all infos of a step from which a warning is given."""
_NEEDED = ("final_obs", "_final_obs", "final_observation", "_final_observation")


class InfoSizeMonitor:
    """Measures the infos of steps 1, 2, 4, 8, … of a vector environment, and warns once if they are large."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self._steps, self._next = 0, 1

    def check(self, info: Mapping[str, Any]) -> None:
        """Take the infos of one step."""
        self._steps += 1
        if self._steps != self._next:
            return
        self._next *= 2
        sizes = {key: approx_bytes(value) for key, value in info.items() if key not in _NEEDED}
        if (size := sum(sizes.values())) >= LARGE:
            self._next = 0  # no step has this number: once is enough
            largest = max(sizes, key=sizes.__getitem__)
            warnings.warn(
                f"{env_name_of(self._env)}: the infos of a step take {format_bytes(size)}, of which {largest!r} takes "
                f"{format_bytes(sizes[largest])}. They are copied at every step; leave out of info what nothing reads, "
                "for example with a wrapper around the environment",
                RuntimeWarning,
                stacklevel=4,
            )


def approx_bytes(value: Any) -> int:
    """Return about how many bytes a tree of arrays and texts takes; what else is in it counts as a number."""
    if isinstance(value, Mapping):
        return sum(map(approx_bytes, value.values()))
    if isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.dtype == object):
        return sum(approx_bytes(part) for part in value)
    if isinstance(value, (str, bytes, bytearray)):
        return len(value)
    return int(getattr(value, "nbytes", 8))
