"""An immutable mapping that members of a population can share.

Its names are in alphabetical order, so that equal mappings are iterated, hashed and sampled from in the same order.
(The standard library's `MappingProxyType` can be neither hashed nor copied nor pickled.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

V_co = TypeVar("V_co", covariant=True)


class FrozenMapping(Mapping[str, V_co]):
    """An immutable, hashable mapping from names to values, which are stored as `frozen` returns them."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Mapping[str, V_co] | None = None) -> None:
        self._entries: dict[str, Any] = {name: frozen(value) for name, value in sorted((entries or {}).items())}

    def __getitem__(self, name: str) -> V_co:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __hash__(self) -> int:
        return hash(tuple(self._entries.items()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.items())})"


def frozen(value: Any) -> Any:
    """Return lists as tuples, scalars of numpy as numbers, and arrays as tuples of numbers: JSON and hashes need it."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    return tuple(map(frozen, value)) if isinstance(value, list) or type(value) is tuple else value
