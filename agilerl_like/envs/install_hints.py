"""Which extra of this package installs a package that is missing."""

from __future__ import annotations

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
