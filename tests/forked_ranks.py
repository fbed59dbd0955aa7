"""Processes that are forked from one that has imported the package, because a new interpreter imports for 4 s.

Targets and arguments are pickled as for a new interpreter, and the environment variables are those at the start.
"""

import contextlib
import multiprocessing
import os
import sys
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import NamedTuple

from agilerl_like.distributed import launcher
from agilerl_like.training import loop_evaluation

IMPORTED = ["agilerl_like.cli", "agilerl_like.training.session", "torch.distributed", "pettingzoo", "yaml"]


class ForkedRank(ForkServerProcess):
    """A process with the environment variables of its parent, which it takes for the one that it was forked from."""

    def start(self):
        self._environment = dict(os.environ)
        self._fresh_episodes = loop_evaluation.CONFIRMATION_EPISODES
        super().start()

    def run(self):
        os.environ.clear()
        os.environ.update(self._environment)
        loop_evaluation.CONFIRMATION_EPISODES = self._fresh_episodes
        parent = multiprocessing.parent_process()
        assert parent is not None
        os.getppid = lambda: parent.pid
        super().run()


class ForkedRanks(ForkServerContext):
    Process = ForkedRank


FORKED = ForkedRanks()
FORKED.set_forkserver_preload(IMPORTED)


@contextlib.contextmanager
def forked_ranks():
    """Fork the ranks of runs inside of the block."""
    before, launcher._CONTEXT = launcher._CONTEXT, FORKED
    try:
        yield
    finally:
        launcher._CONTEXT = before


class Ended(NamedTuple):
    """A process that has ended, and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


def run_forked(target, *arguments, folder, **environment):
    """Call a function of a file in a process of its own, in a folder; its result is the exit code, None for 0.

    Keywords are environment variables. The folder holds what the process wrote, too.
    """
    process = FORKED.Process(target=_call, args=(folder, environment, target, arguments))
    process.start()
    process.join()
    return Ended(process.exitcode, *((folder / name).read_text(encoding="utf-8") for name in STREAMS))


STREAMS = ("stdout.txt", "stderr.txt")


def _call(folder, environment, target, arguments):
    os.chdir(folder)
    os.environ.update(environment)
    for descriptor, name in enumerate(STREAMS, 1):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    sys.exit(target(*arguments))
