"""How much longer everything takes on this machine now than when it has nothing else to do.

Tests that must wait, or that say how soon something has to happen, multiply their seconds by it.
"""

import os

MOST = 20.0


def slowness():
    """Return how many processes want each core, at least 1 and at most MOST."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(max(1.0, os.getloadavg()[0] / cores), MOST)
