"""What can be written to a file and found again: import paths of functions, and plain data.

To import a module is to run it. So an import path that stands in a file of unknown origin may only name an environment
or a wrapper of a known package (`is_trusted_path`); everything else takes the user's word, which `config.trust` asks for.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from agilerl_like.errors import ConfigurationError

KNOWN_PACKAGES = ("ale_py", "gymnasium", "minatar", "minigrid", "mpe2", "pettingzoo")
"""Packages of environments; those that register with gymnasium's entry points count as well."""
FORMER_MODULES = {
    "agilerl_like.envs.views": "agilerl_like.envs.observation_wrappers",
    "agilerl_like.envs.team_images": "agilerl_like.envs.multi_agent.wrappers",
}
"""Former paths of our wrappers, which configurations may still name -> where they are defined now."""
OWN_MODULES = ("agilerl_like.envs.probe_envs", "agilerl_like.envs.multi_agent.probe_envs", *FORMER_MODULES.values())
"""Our modules whose environments and wrappers a configuration may name."""
GYMNASIUM_ID = re.compile(r"(?:[\w:.-]+/)?[\w:.-]+-v\d+")
PETTINGZOO_FACTORIES = ("parallel_env", "raw_env", "env")
"""What the modules of PettingZoo's environments call their factories."""

EXTRAS = {
    "ale_py": "atari",
    "ALE": "atari",
    "Box2D": "box2d",
    "box2d": "box2d",
    "cv2": "atari",
    "minatar": "minatar",
    "MinAtar": "minatar",
    "minigrid": "minigrid",
    "MiniGrid": "minigrid",
    "mpe2": "multi-agent",
    "pygame": "multi-agent",
}
"""Module, or namespace of environments' ids -> extra."""


def is_trusted_path(path: str) -> bool:
    """Whether an import path names an environment or a wrapper of a known package, and nothing else.

    In a known package that is a registered id, one of PettingZoo's factories, or a class of that package that steps or
    resets. Other callables are not: many modules hold a function that imports, or calls, what its arguments name. Only
    modules of known packages are imported to find out.
    """
    module_name, colon, name = path.rpartition(":")
    module_name = module_name if colon else name  # a module of PettingZoo's kind
    module_name = FORMER_MODULES.get(module_name, module_name)
    if module_name in OWN_MODULES:
        thing = getattr(importlib.import_module(module_name), name, None)
        return callable(thing) and getattr(thing, "__module__", None) == module_name
    if not _is_package(module_name.partition(".")[0]):
        return False
    if not colon or name in PETTINGZOO_FACTORIES or GYMNASIUM_ID.fullmatch(name):
        return True
    try:
        thing = getattr(importlib.import_module(module_name), name, None)
    except ImportError:  # whoever makes the environment will say so
        return True
    is_environment = isinstance(thing, type) and (hasattr(thing, "step") or hasattr(thing, "reset"))
    return is_environment and _is_package(thing.__module__.partition(".")[0])


def _is_package(root: str) -> bool:
    """Whether it is a known package that is installed, rather than a file of that name in the current folder."""
    if root not in KNOWN_PACKAGES and root not in {entry.module.partition(".")[0] for entry in _plugins()}:
        return False
    if root in sys.modules:
        return True
    spec = importlib.util.find_spec(root)
    here = Path.cwd()
    if spec is None:  # it would be looked for in the current folder
        return not any(path.stem == root for path in here.iterdir())
    places = [spec.origin, *(spec.submodule_search_locations or ())]
    return not any(here in (Path(place).parent, Path(place).parent.parent) for place in places if place)


def _plugins() -> Any:
    return entry_points(group="gymnasium.envs")


def check_module_name(field: str, value: str, module_name: str) -> None:
    """Raise ConfigurationError if a field's value names a module relative to nothing."""
    if not all(module_name.split(".")):
        raise ConfigurationError(f"{field}={value!r}: {module_name!r} is no module's name; allowed is 'package.module'")


def import_module_named(field: str, value: str, module_name: str) -> ModuleType:
    """Import the module that a field's value names; one that is nowhere else may stand in the current folder.

    Console scripts do not search the current folder, as `python -m` does. It is put at the end of the path, so that no
    file there takes the place of an installed module.

    Raises:
        ConfigurationError: there is no such module, or its import fails.
    """
    check_module_name(field, value, module_name)
    try:
        _find_in_current_folder(module_name.partition(".")[0])
        return importlib.import_module(FORMER_MODULES.get(module_name, module_name))
    except ImportError as fault:
        raise ConfigurationError(
            f"{field}={value!r}: module {module_name!r} cannot be imported: {_import_advice(module_name, fault)}"
        ) from fault


def _find_in_current_folder(root: str) -> None:
    here = Path.cwd()
    is_there = (here / f"{root}.py").is_file() or (here / root / "__init__.py").is_file()
    if is_there and root not in sys.modules and importlib.util.find_spec(root) is None:
        sys.path.append(str(here))


def _import_advice(module_name: str, fault: ImportError) -> str:
    root = module_name.partition(".")[0]
    if root in EXTRAS or fault.name != root:
        return install_hint(missing_module_name(fault), fault)
    return (
        f"it is not installed, and there is no {root}.py in the current folder; allowed is the folder of {root}.py as "
        "the current one, PYTHONPATH=FOLDER, or the module's package installed"
    )


def import_path(field: str, thing: Callable[..., Any]) -> str:
    """Return "package.module:function", if that leads back to a thing; a ConfigurationError says if it does not."""
    module_name = getattr(thing, "__module__", None) or "__main__"
    attribute = getattr(thing, "__qualname__", "")
    found = None
    if module_name != "__main__" and attribute.isidentifier():
        found = getattr(importlib.import_module(module_name), attribute, None)
    if found is not thing:
        raise ConfigurationError(
            f"{field}={thing!r} cannot be written to a file; allowed are ids and functions at the top of a module that "
            "can be imported ('package.module:function')"
        )
    return f"{module_name}:{attribute}"


def plain(field: str, value: Any) -> Any:
    """Return a value as JSON would give it back; a ConfigurationError says if it cannot be written."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as fault:
        raise ConfigurationError(f"{field}={value!r} cannot be written to a file: {fault}") from fault


def install_hint(missing: str, fault: object = "") -> str:
    """The command that installs a missing module or namespace, and the fault; without an extra, the fault alone."""
    extra = EXTRAS.get(missing.partition(".")[0])
    command = f"pip install 'agilerl-like[{extra}]'" if extra else ""
    return f"{command} ({fault})" if command and fault else command or str(fault)


def missing_module_name(fault: BaseException) -> str:
    """The name of the module that an error of an import is about; "" if it does not tell."""
    seen: BaseException | None = fault
    while seen is not None:
        if isinstance(seen, ImportError) and seen.name:
            return seen.name
        seen = seen.__cause__ or seen.__context__
    return ""
