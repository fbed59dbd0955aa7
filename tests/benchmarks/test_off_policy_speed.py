"""Gradient steps are counted as they were taken."""

import sys

import pytest

from benchmarks.off_policy_work import parse_options


def test_calls_that_cannot_take_all_gradient_steps_are_refused(monkeypatch, capsys):
    """Calls of eight steps would take 296 of 300, and count as 300."""
    monkeypatch.setattr(sys, "argv", ["off_policy", "--updates", "300", "--at-once", "8"])
    with pytest.raises(SystemExit):
        parse_options("")
    assert "--updates 300; allowed are multiples of --at-once 8" in capsys.readouterr().err
