import pytest
from tiny_runs import NIGHTLY

HOURS = 6 * 3600


def pytest_collection_modifyitems(items):
    """By night everything may take its time."""
    for item in items if NIGHTLY else ():
        item.add_marker(pytest.mark.timeout(HOURS), append=False)
