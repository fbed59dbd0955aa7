"""Trees of arrays: observations and actions of Dict and Tuple spaces. Worker processes import this without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Tree = Any  # one array, or a dict or tuple of trees


def tree_map(fn: Callable[..., Any], *trees: Tree) -> Tree:
    """Apply `fn` to the arrays at the same position of trees of dicts and tuples; a single array is a tree."""
    first = trees[0]
    if isinstance(first, Mapping):
        return {key: tree_map(fn, *(tree[key] for tree in trees)) for key in first}
    if isinstance(first, tuple):
        return tuple(tree_map(fn, *branches) for branches in zip(*trees, strict=True))
    return fn(*trees)
