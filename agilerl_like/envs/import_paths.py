"""Import paths "package.module:name" in configurations and files, and plain data for files.

Importing a module runs its code. An import path from a file of unknown origin may therefore only name an environment
or a wrapper of a known package (`is_trusted_path`); every other path needs the user's permission
(`config.trust`).
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import pkgutil
import re
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from agilerl_like.envs.env_errors import describe_exception
from agilerl_like.errors import ConfigurationError, Terminated, unknown_name

KNOWN_PACKAGES = ("ale_py", "gymnasium", "minatar", "minigrid", "mpe2", "pettingzoo")
"""Packages of environments; packages that register with gymnasium's entry points count as well."""
FORMER_MODULES = {
    "agilerl_like.envs.views": "agilerl_like.envs.observation_wrappers",
    "agilerl_like.envs.team_images": "agilerl_like.envs.multi_agent.wrappers",
}
"""Former paths of our wrappers, which configurations may still name -> where they are defined now."""
OWN_MODULES = (
    "agilerl_like.envs.probe_envs",
    "agilerl_like.envs.multi_agent.probe_envs",
    "agilerl_like.envs.memory_tasks",
    "agilerl_like.envs.grid_observations",
    "agilerl_like.envs.episode_wrappers",
    *FORMER_MODULES.values(),
)
"""Our modules whose environments and wrappers a configuration may name."""
GYMNASIUM_ID = re.compile(r"(?:[\w:.-]+/)?[\w:.-]+-v\d+")
PETTINGZOO_FACTORIES = ("parallel_env", "raw_env", "env")
"""The names of the factories in PettingZoo's environment modules."""
EXTRAS = {
    "ale_py": "atari",
    "ALE": "atari",
    "Box2D": "box2d",
    "box2d": "box2d",
    "chess": "games",
    "cv2": "atari",
    "minatar": "minatar",
    "MinAtar": "minatar",
    "minigrid": "minigrid",
    "mujoco": "mujoco",
    "MiniGrid": "minigrid",
    "mpe2": "multi-agent",
    "pygame": "multi-agent",
    "pyspiel": "openspiel",
    "rlcard": "games",
    "shimmy": "openspiel",
}
"""Module, or namespace of environment ids -> the extra of this package that installs it."""


def is_trusted_path(path: str) -> bool:
    """Return whether an import path names an environment or a wrapper of a known package, and nothing else.

    In a known package that is a registered id, one of PettingZoo's factories, or a class of that package with a `step`
    or `reset` method. Other callables are refused, because many modules contain a function that imports, or calls, what
    its arguments name. Only modules of known packages are imported for this check.
    """
    module_name, colon, name = path.rpartition(":")
    module_name = module_name if colon else name  # a module of PettingZoo's kind
    module_name = FORMER_MODULES.get(module_name, module_name)
    if module_name in OWN_MODULES:
        thing = getattr(importlib.import_module(module_name), name, None)
        return callable(thing) and getattr(thing, "__module__", None) == module_name
    if not _is_installed_known_package(module_name.partition(".")[0]):
        return False
    if not colon or name in PETTINGZOO_FACTORIES or GYMNASIUM_ID.fullmatch(name):
        return True
    try:
        thing = getattr(importlib.import_module(module_name), name, None)
    except ImportError:  # raised again, with advice, when the environment is made
        return True
    is_environment = isinstance(thing, type) and (hasattr(thing, "step") or hasattr(thing, "reset"))
    return is_environment and _is_installed_known_package(thing.__module__.partition(".")[0])


def _is_installed_known_package(root: str) -> bool:
    """Return whether this is a known package that is installed, and not a file of that name in the current folder."""
    plugins = entry_points(group="gymnasium.envs")
    if root not in KNOWN_PACKAGES and root not in {entry.module.partition(".")[0] for entry in plugins}:
        return False
    if root in sys.modules:
        return True
    spec = importlib.util.find_spec(root)
    here = Path.cwd()
    if spec is None:  # `import_module_named` would look for it in the current folder
        return not any(path.stem == root for path in here.iterdir())
    places = [spec.origin, *(spec.submodule_search_locations or ())]
    return not any(here in (Path(place).parent, Path(place).parent.parent) for place in places if place)


def check_module_name(field: str, value: str, module_name: str) -> None:
    """Raise ConfigurationError if the module name in a field's value is empty or relative."""
    if not all(module_name.split(".")):
        raise ConfigurationError(f"{field}={value!r}: {module_name!r} is no module's name; allowed is 'package.module'")


def import_module_named(field: str, value: str, module_name: str) -> ModuleType:
    """Import the module that a field's value names; a module that is not installed is searched in the current folder.

    Console scripts do not search the current folder, as `python -m` does. It is appended to `sys.path`, so that no
    file there hides an installed module.

    Raises:
        ConfigurationError: there is no such module, or its import fails.
    """
    check_module_name(field, value, module_name)
    try:
        _search_current_folder_for(module_name.partition(".")[0])
        return importlib.import_module(FORMER_MODULES.get(module_name, module_name))
    except ImportError as fault:
        raise ConfigurationError(
            f"{field}={value!r}: module {module_name!r} cannot be imported: {_import_advice(module_name, fault)}"
        ) from fault
    except (ConfigurationError, Terminated):
        raise
    except (Exception, SystemExit) as fault:
        raise ConfigurationError(
            f"{field}={value!r}: module {module_name!r} cannot be imported: {describe_exception(fault)}"
        ) from fault


def import_function(field: str, path: str) -> Callable[..., Any]:
    """Import the function that an import path "package.module:name" names.

    Raises:
        ConfigurationError: there is no such module, or no such function in it.
    """
    module_name, _, name = path.partition(":")
    found = getattr(import_module_named(field, path, module_name), name, None)
    if not callable(found):
        raise ConfigurationError(f"{field}={path!r}: {module_name} has no function {name!r}")
    return found


def public_callables(module: ModuleType) -> list[str]:
    """Return the module's callables, and names that it imports on first access, without importing them."""
    names, loaded = getattr(module, "__all__", dir(module)), vars(module)
    return [name for name in names if name[0] != "_" and (name not in loaded or callable(loaded[name]))]


def is_module_here(root: str) -> bool:
    """Return whether a module or package of this name is in the current folder."""
    here = Path.cwd()
    return (here / f"{root}.py").is_file() or (here / root / "__init__.py").is_file()


def _search_current_folder_for(root: str) -> None:
    if is_module_here(root) and root not in sys.modules and importlib.util.find_spec(root) is None:
        sys.path.append(str(Path.cwd()))


def _import_advice(module_name: str, fault: ImportError) -> str:
    root, (package, _, name) = module_name.partition(".")[0], module_name.rpartition(".")
    path = getattr(sys.modules.get(package), "__path__", None)
    if path is not None and fault.name == module_name:  # the import of the package before it succeeded
        hint = str(unknown_name("module", name, [module.name for module in pkgutil.iter_modules(path)]))
        return f"{package} has no module {name!r}; {hint.partition('; ')[2]}"
    if root in EXTRAS or fault.name != root:
        return install_hint(missing_module_name(fault), fault)
    return (
        f"it is not installed, and there is no {root}.py in the current folder; allowed is the folder of {root}.py as "
        "the current one, PYTHONPATH=FOLDER, or the module's package installed"
    )


def import_path(field: str, thing: Callable[..., Any]) -> str:
    """Return the import path "package.module:name" of a function or class.

    Raises:
        ConfigurationError: importing that path would not return it.
    """
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
    """Return a value as JSON would restore it; raise ConfigurationError if JSON cannot store it."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as fault:
        raise ConfigurationError(f"{field}={value!r} cannot be written to a file: {fault}") from fault


def install_hint(missing: str, fault: object = "") -> str:
    """Return the command that installs a missing module or namespace and the error; without an extra, the error."""
    extra = EXTRAS.get(missing.partition(".")[0])
    command = f"pip install 'agilerl-like[{extra}]'" if extra else ""
    return f"{command} ({fault})" if command and fault else command or str(fault)


def missing_module_name(fault: BaseException) -> str:
    """Return the name of the module that an import error is about, or "" if neither it nor its causes name one."""
    error: BaseException | None = fault
    while error is not None:
        if isinstance(error, ImportError) and error.name:
            return error.name
        error = error.__cause__ or error.__context__
    return ""
