"""AgileRL's autoreset wrapper, which vector environments of this package do without."""

from __future__ import annotations

from typing import Any

from agilerl_like.agilerl.absent import absent_from

__getattr__ = absent_from(__name__)


def PettingZooAutoResetParallelWrapper(env: Any) -> Any:  # noqa: N802  # AgileRL's name
    """Return the environment itself: a vector environment resets it."""
    return env
