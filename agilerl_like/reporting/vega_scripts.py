"""Vega, Vega-Lite and Vega-Embed as one JavaScript, which every report contains, because it needs no network."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from agilerl_like.errors import ConfigurationError
from agilerl_like.storage.durable_io import replace_file

PACKAGE = "vl-convert-python"
"""The package that has the scripts; it bundles them with a JavaScript engine."""
BUNDLE = "import sys, vl_convert; sys.stdout.buffer.write(vl_convert.javascript_bundle().encode())"
SECONDS = 300
"""Limit of a bundling, which takes two seconds of a core."""


def vega_scripts() -> str:
    """Return a script that defines `vegaEmbed`.

    It is bundled once for each version of the package and user, and kept in the user's folder of caches, because a
    bundling takes 2 CPU-seconds: `agilerl-like report` takes 5 instead of 7 with the cache. The JavaScript engine runs
    in a process of its own, so that its threads do not meet those of a training process.

    Raises:
        ConfigurationError: the package is missing, or failed.
    """
    try:
        name = f"vega-{version(PACKAGE)}.js"
    except PackageNotFoundError as error:
        raise ConfigurationError(f"a report needs one more package: pip install {PACKAGE}") from error
    with contextlib.suppress(OSError, RuntimeError):
        return (cache_folder() / name).read_text(encoding="utf-8")
    command = [sys.executable, "-c", BUNDLE]
    try:
        bundled = subprocess.run(command, capture_output=True, check=True, timeout=SECONDS).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigurationError(f"{PACKAGE} {version(PACKAGE)} could not bundle Vega-Lite: {error}") from error
    with contextlib.suppress(OSError, RuntimeError):  # without a folder to write to, the next report bundles again
        cache_folder().mkdir(parents=True, exist_ok=True)
        replace_file(cache_folder() / name, bundled)
    return bundled.decode("utf-8")


def cache_folder() -> Path:
    """Return the user's folder for what can be made again: `$XDG_CACHE_HOME/agilerl_like`, or it in `~/.cache`.

    Raises:
        RuntimeError: the user has no home folder.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agilerl_like"
