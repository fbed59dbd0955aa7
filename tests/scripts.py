"""Execution of scripts as `python SCRIPT` executes them, in this process: an interpreter needs 4 s for the imports."""

import contextlib
import io
import runpy
import sys

import pytest

from agilerl_like import registry


@contextlib.contextmanager
def own_registrations():
    """Remove what is registered inside of the block at its end."""
    before = {kind: dict(its._entries) for kind, its in registry._REGISTRIES.items()}
    try:
        yield
    finally:
        for kind, its in registry._REGISTRIES.items():
            its._entries = before.get(kind, {})


def run_script(path, folder, *options):
    """Execute a script in a folder; return what it printed. It must end with exit code 0."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, own_registrations(), contextlib.redirect_stdout(printed):
        patch.chdir(folder)
        patch.setattr(sys, "argv", [str(path), *options])
        patch.setattr(sys, "path", [str(path.parent), *sys.path])
        code = 0
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as end:
            code = end.code
    assert not code, printed.getvalue()
    return printed.getvalue()
