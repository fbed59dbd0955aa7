"""Ranks that are forked from a process that has imported the package, because a new interpreter imports for 4 s.

Targets and arguments are pickled as for a new interpreter, and the environment variables are those at the start.
"""

import contextlib
import multiprocessing
import os
from multiprocessing.context import ForkServerContext, ForkServerProcess

from agilerl_like.distributed import launcher

IMPORTED = ["agilerl_like.cli", "agilerl_like.training.session", "torch.distributed", "pettingzoo", "yaml"]


class ForkedRank(ForkServerProcess):
    """A process with the environment variables of its parent, which it takes for the one that it was forked from."""

    def start(self):
        self._environment = dict(os.environ)
        super().start()

    def run(self):
        os.environ.clear()
        os.environ.update(self._environment)
        parent = multiprocessing.parent_process()
        assert parent is not None
        os.getppid = lambda: parent.pid
        super().run()


class ForkedRanks(ForkServerContext):
    Process = ForkedRank


@contextlib.contextmanager
def forked_ranks():
    """Fork the ranks of runs inside of the block."""
    forked = ForkedRanks()
    forked.set_forkserver_preload(IMPORTED)
    before, launcher._CONTEXT = launcher._CONTEXT, forked
    try:
        yield
    finally:
        launcher._CONTEXT = before
