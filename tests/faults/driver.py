"""The command `agilerl-like` with faults in it, started in its place: the program itself has no hooks for them.

`FAULTS` lists them, parted by ";": "place:n:action" lets the process do it when it comes to the place for the n-th
time ("n+": and whenever it comes there again), "place:n:action:seconds" so much later. They befall rank 0, or the rank
that a "1/" before them names. The place "byte" is the n-th byte of whatever file is written, where the action is one of
the system's own: the process is killed, or the write fails, with half of what was to be written in the file.
"""

import errno
import functools
import importlib
import os
import resource
import signal
import sys
import threading
import time
from itertools import count

import agilerl_like.cli

PLACES = {
    "settings": "agilerl_like.cli.train:build",
    "join": "agilerl_like.training.session:init_process_group",
    "begin": "agilerl_like.training.collector:GroupCollector.start",
    "tick": "agilerl_like.training.collector:GroupCollector.step",
    "epoch": "agilerl_like.learning.ppo_update:PPOUpdate.epoch",
    "minibatch": "agilerl_like.learning.optimizer:Adam.step_",
    "store": "agilerl_like.learning.replay_buffer:ReplayBuffer.begin",
    "sample": "agilerl_like.learning.replay_buffer:ReplayBuffer.sample",
    "target": "agilerl_like.learning.off_policy_update:OffPolicyUpdate.move_targets_",
    "play": "agilerl_like.algorithms.population:Population.run_episodes",
    "play-teams": "agilerl_like.algorithms.ippo:MultiAgentPopulation.run_episodes",
    "report": "agilerl_like.reporting.files:CsvReporter.generation",
    "record": "agilerl_like.reporting.files:RecordFile.append",
    "select": "agilerl_like.training.loop:next_generation",
    "evolve": "agilerl_like.training.sharding:ShardedPopulation.evolve",
    "bear": "agilerl_like.algorithms.ppo:PPO.make_offspring",
    "bear-team": "agilerl_like.algorithms.ippo:IPPO.make_offspring",
    "vary": "agilerl_like.algorithms.learner:mutate_network",
    "births": "agilerl_like.reporting.files:LineageReporter.offspring",
    "save": "agilerl_like.training.checkpoint_manager:CheckpointManager.save",
    "write": "agilerl_like.storage.safe_folder:_write",
    "fsync": "os:fsync",
    "put": "agilerl_like.storage.safe_folder:_swap_in",
    "replace": "os:replace",
    "forget": "agilerl_like.storage.checkpoint_folder:Checkpoints._prune",
    "remove": "agilerl_like.storage.safe_folder:remove_folder",
    "deal": "agilerl_like.training.sharding:ShardedPopulation.rebalance",
    "finish": "agilerl_like.reporting.callback:CallbackList.on_run_end",
    "plot": "agilerl_like.cli.train:_exit_code",
}
"""Where a fault can be; with "+" behind the name it comes when that is done."""


def full():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


ACTIONS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "kill-all": lambda: os.killpg(0, signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "interrupt": lambda: os.kill(os.getpid(), signal.SIGINT),
    "terminate": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "full": full,
}


def arm(fault):
    rank, place, nth, action, *delay = (
        ["0", *fault.split(":")] if "/" not in fault else fault.replace("/", ":").split(":")
    )
    if rank != os.environ.get("RANK", "0"):
        return
    if place == "byte":
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(nth), resource.RLIM_INFINITY))
        if action == "kill":
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        return
    act = announced(ACTIONS[action])
    if delay:
        act = later(act, float(delay[0]))
    plant(place, lambda call: call == int(nth.rstrip("+")) or (nth.endswith("+") and call > int(nth[:-1])), act)


def announced(act):
    """Print the time when the action is done."""

    def announce():
        os.write(2, f"\nfault at {time.time()}\n".encode())
        act()

    return announce


def later(act, seconds):
    def start():
        timer = threading.Timer(seconds, act)
        timer.daemon = True
        timer.start()

    return start


def plant(place, is_due, act):
    module, path = PLACES[place.rstrip("+")].split(":")
    *owners, name = path.split(".")
    owner = functools.reduce(getattr, owners, importlib.import_module(module))
    whole = getattr(owner, name)
    calls = count(1)

    @functools.wraps(whole)
    def faulty(*args, **kwargs):
        due = is_due(next(calls))
        if due and not place.endswith("+"):
            act()
        result = whole(*args, **kwargs)
        if due and place.endswith("+"):
            act()
        return result

    setattr(owner, name, faulty)


if __name__ in ("__main__", "__mp_main__"):  # the second in a process that the first has started
    for one in filter(None, os.environ.get("FAULTS", "").split(";")):
        arm(one)

if __name__ == "__main__":
    sys.exit(agilerl_like.cli.main())
