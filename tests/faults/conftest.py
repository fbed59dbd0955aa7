import os

for variable in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(variable, "8")
# oneDNN caches compiled convolutions, 64 of them by default (see learning/execution.py). As mutations change shapes,
# the cache fills over hundreds of generations. With 8 entries it is full before test_growth.py measures, which then
# sees growth alone (multi_input, 850 generations: 2.1 kB a generation with 64 entries, less than 1 with 8).

import pytest  # noqa: E402  # before anything imports torch's convolutions
from tiny_runs import NIGHTLY  # noqa: E402  # likewise

HOURS = 6 * 3600


@pytest.fixture(autouse=True, scope="module")
def fresh_episodes_are_few():
    """They are as many as in runs of users."""


@pytest.fixture(autouse=True, scope="module")
def ranks_are_forked():
    """They are new interpreters here, as users have them."""


def pytest_collection_modifyitems(items):
    """By night everything may take its time."""
    for item in items if NIGHTLY else ():
        item.add_marker(pytest.mark.timeout(HOURS), append=False)
