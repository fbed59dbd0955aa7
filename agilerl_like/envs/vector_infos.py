"""One environment's info, taken out of the infos that a vector environment merges into arrays.

gymnasium merges the infos of its environments key by key, with a flag array `_key` that says which of them gave the
key, and moves the info of an episode's last step to `final_info` where the next episode began in the same step. See
https://gymnasium.farama.org/api/vector/.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

FINAL = ("final_info", "final_obs", "final_observation")


def info_of_env(infos: Mapping[str, Any], row: int, *, ended: bool = False) -> dict[str, Any]:
    """Return what one environment gave; of an episode that `ended` in this step, what its last step gave."""
    final = infos.get("final_info") if ended and _gave(infos, "final_info", row) else None
    if final is not None:
        return info_of_env(final, row) if isinstance(final, Mapping) else dict(final[row] or {})
    return {
        key: _entry(value, row)
        for key, value in infos.items()
        if key not in FINAL and not _is_flag(infos, key) and _gave(infos, key, row)
    }


def _is_flag(infos: Mapping[str, Any], key: str) -> bool:
    return key.startswith("_") and key[1:] in infos


def _gave(infos: Mapping[str, Any], key: str, row: int) -> bool:
    flags = infos.get(f"_{key}")
    return flags is None or bool(flags[row])


def _entry(value: Any, row: int) -> Any:
    if isinstance(value, Mapping):
        return info_of_env(value, row)
    if isinstance(value, str) or not hasattr(value, "__getitem__") or np.ndim(value) == 0:
        return value  # one for all environments
    entry = value[row]
    return entry.item() if isinstance(entry, np.generic) else entry
