"""Comparison of an environment's spaces with those that an agent was made for."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

from gymnasium import Space
from gymnasium.spaces import Box, Dict, Tuple

from agilerl_like.envs.spaces import Path, children
from agilerl_like.errors import ConfigurationError

Spaces = tuple[Space, Space]
"""The spaces of observations and actions."""


def check_spaces_match(
    env: str, found: Spaces, owner: str, expected: Spaces, *, reads_bounds: Callable[[Path], bool]
) -> None:
    """Raise ConfigurationError unless an env, which messages call `env`, has the spaces that `owner` was made for.

    Bounds of observations may differ where networks do not read them, as `reads_bounds` returns for the path of an
    entry: a warning names these entries.
    """
    if found[1] != expected[1]:
        raise ConfigurationError(
            f"{env} has action_space={found[1]}; {owner} was made for {expected[1]}: allowed is an env with this "
            "space, or a new agent"
        )
    others = []
    for path, own, wanted in _differences(found[0], expected[0], ()):
        title = ".".join(map(str, ("observation", *path)))
        if own is None or wanted is None or not _differ_in_bounds(own, wanted):
            own, wanted = (one or "no such entry" for one in (own, wanted))
            raise ConfigurationError(
                f"{env} has {title}={own}; {owner} was made for {wanted}: allowed is an env with this space, which a "
                "wrapper can have, or a new agent"
            )
        if reads_bounds(path):
            raise ConfigurationError(
                f"{env} has {title}={own}; {owner} was made for {wanted}, whose bounds scale the values that its "
                "networks read: allowed is an env with these bounds, which a wrapper can have, or a new agent"
            )
        others.append(f"{title}={own} in place of {wanted}")
    if others:
        warnings.warn(
            f"{env} has other bounds than {owner} was made for, which its networks do not read: {', '.join(others)}",
            stacklevel=2,
        )


def _differences(found: Space, expected: Space, path: Path) -> Iterator[tuple[Path, Space | None, Space | None]]:
    """Yield the path and both spaces of every part that differs; None where one has no such part."""
    if any(isinstance(found, kind) and isinstance(expected, kind) for kind in (Dict, Tuple)):
        ours, theirs = dict(children(found)), dict(children(expected))
        for key in {**theirs, **ours}:
            if key in ours and key in theirs:
                yield from _differences(ours[key], theirs[key], (*path, key))
            else:
                yield (*path, key), ours.get(key), theirs.get(key)
    elif found != expected:
        yield path, found, expected


def _differ_in_bounds(found: Space, expected: Space) -> bool:
    """Whether two different spaces are equal but for bounds."""
    if not isinstance(found, Box) or not isinstance(expected, Box):
        return False
    return (found.shape, found.dtype) == (expected.shape, expected.dtype)
