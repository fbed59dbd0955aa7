"""Classes that configurations, checkpoints and the command line refer to by name.

Built-in classes are registered where they are defined, a script adds its own with `register`, and an installed package
declares an entry point in the group `agilerl_like.<kinds>` (`agilerl_like.selections`, `agilerl_like.memories`), which
is imported when its name is used.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, fields, is_dataclass
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from agilerl_like.errors import ConfigurationError, unknown_name

T = TypeVar("T")

NETWORKS: Mapping[str, str] = {
    "encoder": 'networks.EncoderKind(SPEC, MODULE, "vectors")',
    "extractor": 'modules.multi_input.ExtractorKind(SPEC, MODULE, "vector")',
    "memory": "modules.MemoryKind(SPEC, MODULE)",
}
"""Kinds of networks, and what is registered for them."""


class Registry(Mapping[str, T], Generic[T]):
    """The entries of one kind by name, entry points included; iterating over names imports nothing."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name not in self._entries and name in self._entry_points:
            self.add(name, self._load(self._entry_points[name]))
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._entries, **self._entry_points})

    def __len__(self) -> int:
        return len({*self._entries, *self._entry_points})

    def add(self, name: str, entry: T) -> None:
        """Add an entry. A class that is defined again (by a notebook cell that is executed twice) replaces the old one.

        Raises:
            ConfigurationError: the name belongs to another entry, or the spec to another kind of network, which would
                be built in place of this one, since kinds are found by the class of a spec; or the entry of a kind of
                network is no spec with its module.
        """
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"{self.kind} name={name!r}; allowed is text that is not empty")
        if self.kind in NETWORKS and not (isinstance(entry, tuple) and hasattr(_spec_of(entry), "from_config")):
            shown = getattr(entry, "__name__", repr(entry))
            raise ConfigurationError(
                f"{self.kind}={name!r} is {shown:.200}; allowed is {NETWORKS[self.kind]}, with a subclass of a spec "
                "such as modules.MLPSpec, and the evolvable module that is built from it"
            )
        if name in self._entries and _origin(self._entries[name]) != _origin(entry):
            raise ConfigurationError(
                f"{self.kind}={name!r} is already registered as {self._entries[name]!r}; allowed is another name"
            )
        spec = _spec_of(entry)
        for known, other in self._entries.items():
            if known != name and spec is not None and spec is _spec_of(other) and _origin(entry) != _origin(other):
                raise ConfigurationError(
                    f"{self.kind}={name!r} has the spec {spec.__name__} of {known!r}; allowed is a subclass of its own"
                )
        self._entries[name] = entry

    def find(self, field: str, name: object) -> T:
        """Return the entry with this name; `field` is the setting that holds it.

        Raises:
            ConfigurationError: there is none; near names are suggested.
        """
        if not isinstance(name, str) or name not in self:
            raise unknown_name(field, name, self)
        return self[name]

    def parse(self, field: str, given: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return name and options of an entry that a configuration gives as "name" or {name: ..., its options}.

        Raises:
            ConfigurationError: the name is missing or unknown.
        """
        options = dict(given) if isinstance(given, Mapping) else {"name": given}
        if "name" not in options:
            raise ConfigurationError(f"{field}={options!r} lacks its name; allowed are {', '.join(sorted(self))}")
        name = options.pop("name")
        if not isinstance(name, str) or name not in self:
            raise unknown_name(field, name, self)
        return name, options

    def build(self, field: str, given: str | Mapping[str, Any]) -> Any:
        """Call the entry that `parse` finds with its options.

        Raises:
            ConfigurationError: the name is missing or unknown, or the options do not fit.
        """
        name, options = self.parse(field, given)
        entry: Any = self[name]
        try:
            inspect.signature(entry).bind(**options)
        except TypeError as error:
            raise ConfigurationError(f"{field}={given!r}: {error}") from error
        return entry(**options)

    def name_of(self, entry: object) -> str | None:
        """Return the name of an entry, None if it is not registered."""
        return next((name for name, known in self.items() if known is entry), None)

    def installed_name_of(self, entry: object) -> str | None:
        """Return the name that an installed package gives to an entry, which any process can use; None without one."""
        name = self.name_of(entry)
        return name if name in self._entry_points else None

    @cached_property
    def _entry_points(self) -> dict[str, EntryPoint]:
        found: dict[str, EntryPoint] = {}
        plural = f"{self.kind[:-1]}ies" if self.kind.endswith("y") else f"{self.kind}s"
        for point in entry_points(group=f"agilerl_like.{plural}"):
            known: Any = found.get(point.name) or self._entries.get(point.name)
            if known is not None and not _is_of(known, point):
                raise ConfigurationError(
                    f"{self.kind}={point.name!r} of the entry point {point.value!r} is already registered as "
                    f"{known!r}; uninstall one of the packages"
                )
            found[point.name] = point
        return found

    def _load(self, point: EntryPoint) -> Any:
        try:
            return point.load()
        except Exception as error:
            raise ConfigurationError(
                f"{self.kind}={point.name!r}: the entry point {point.value!r} cannot be imported: {error!r}"
            ) from error


_REGISTRIES: dict[str, Registry[Any]] = {
    kind: Registry(kind)
    for kind in (
        "algorithm",
        "callback",
        "config",
        "encoder",
        "env_backend",
        "explorer",
        "extractor",
        "memory",
        "schedule",
        "selection",
        "tracker",
    )
}


def registered(kind: str, built_in: Mapping[str, Any] | None = None) -> Registry[Any]:
    """Return the registry of a kind, after adding `built_in` entries to it."""
    if kind not in _REGISTRIES:
        raise unknown_name("kind", kind, _REGISTRIES)
    registry = _REGISTRIES[kind]
    for name, entry in (built_in or {}).items():
        registry.add(name, entry)
    return registry


def register(kind: str, name: str, entry: T | None = None) -> Callable[[T], T]:
    """Register an entry under a name: `register("selection", "rank", RankSelection)`, or as a class decorator.

    Kinds are algorithm, callback, config, encoder, env_backend, explorer, extractor, memory, schedule, selection and
    tracker.

    Raises:
        ConfigurationError: the kind is unknown, or the name or the spec belongs to another entry.
    """
    registry = registered(kind)

    def add(entry: T) -> T:
        registry.add(name, entry)
        return entry

    if entry is not None:
        add(entry)
    return add


def settings_of(strategy: type) -> list[Field[Any]]:
    """Return the settings of a selection or explorer: the fields that its constructor takes; none if no dataclass."""
    return [known for known in fields(strategy) if known.init] if is_dataclass(strategy) else []


def function_name(function: Callable[..., Any]) -> str:
    """Return "module:name" of a function, by which files refer to it; other callable objects have that of their class.

    A script is `__main__` in the processes that it starts, too, where multiprocessing calls it `__mp_main__`.
    """
    module = "__main__" if function.__module__ == "__mp_main__" else function.__module__
    return f"{module}:{getattr(function, '__qualname__', type(function).__qualname__)}"


def _spec_of(entry: Any) -> Any:
    """Return the spec's class of a kind of network; None of other entries."""
    return getattr(entry, "spec", None) if isinstance(entry, tuple) else None


def _is_of(entry: Any, point: EntryPoint) -> bool:
    """Return whether an entry, whose module registered it when it was imported, is what an entry point names."""
    if isinstance(entry, EntryPoint):
        return False
    named = getattr(sys.modules.get(point.module), point.attr, None)  # of a package that imports it
    return entry is named or _origin(entry) == (point.module, point.attr)


def _origin(entry: Any) -> Any:
    """Module and name, which are the same when a class is defined again; of a record those of its fields."""
    if isinstance(entry, tuple):
        return tuple(map(_origin, entry))
    return (entry.__module__, entry.__qualname__) if hasattr(entry, "__qualname__") else entry
