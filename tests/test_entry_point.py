"""The entry point of the command, and of the package."""

import importlib.util
import sys

import pytest

import agilerl_like
from agilerl_like.__main__ import main


def test_ctrl_c_while_the_package_is_imported_ends_the_command_without_a_traceback(monkeypatch, capsys):
    def interrupted(name):
        raise KeyboardInterrupt

    monkeypatch.setattr("importlib.import_module", interrupted)
    assert main() == 130
    assert capsys.readouterr() == ("", "")


def test_the_import_on_windows_is_an_error_with_the_systems_that_are_allowed(monkeypatch):
    spec = importlib.util.spec_from_file_location("of_windows", agilerl_like.__file__)
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ImportError, match="agilerl-like needs Linux or macOS; on Windows use WSL"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
