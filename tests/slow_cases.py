"""Marks for the cases of a test that `make test` leaves out, because they take long and others of the test do not."""

from collections.abc import Collection

import pytest


def slow_if(is_slow: bool) -> list:
    """Return the marks of a case."""
    return [pytest.mark.slow] if is_slow else []


def with_slow(names: Collection[str], *slow: str) -> list:
    """Return the cases of a test by their names, those in `slow` marked as such."""
    assert {*slow} <= {*names}, f"no case is named {sorted({*slow} - {*names})}"
    return [pytest.param(name, id=name, marks=slow_if(name in slow)) for name in names]
