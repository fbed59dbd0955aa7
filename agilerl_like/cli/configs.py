"""`agilerl-like configs`: the configurations that come with the package."""

from __future__ import annotations

from agilerl_like.cli.output import PROGRAM, write_line
from agilerl_like.config.bundled import bundled_configs
from agilerl_like.errors import ExitCode


def configs() -> int:
    """List the configurations that come with the package: name, environment, purpose."""
    known = bundled_configs()
    names, ids = max(len(one.name) for one in known), max(len(one.environment) for one in known)
    for one in known:
        write_line(f"{one.name:<{names}}  {one.environment:<{ids}}  {one.summary}")
    write_line(f"\n{PROGRAM} train NAME runs one; {PROGRAM} train NAME --print-config prints all of its settings")
    return ExitCode.DONE
