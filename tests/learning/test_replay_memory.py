"""Saving and restoring a replay takes little memory beside it: peaks of processes of their own, in bytes."""

import os
import resource
import sys

import gymnasium
import numpy as np
import pytest
import torch
from forked_ranks import run_forked

from agilerl_like.envs.array_backend import NumpyBackend
from agilerl_like.envs.spaces import ObservationEncoder
from agilerl_like.learning.replay_buffer import ReplayBuffer
from agilerl_like.storage import safe_folder

MEMBER = 2**26 + 2**24
"""Bytes of one member's images: beyond those that are serialized as a whole."""
MEMBERS, ENVS, PIXELS = 2, 4, 2**14
IMAGE = torch.arange(PIXELS).to(torch.uint8)


def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def empty():
    return ReplayBuffer(
        MEMBER // PIXELS - ENVS,
        MEMBERS,
        ENVS,
        encoding=ObservationEncoder(gymnasium.spaces.Box(0, 255, (1, 128, PIXELS // 128), np.uint8)),
        action_size=1,
        action_dtype=torch.int64,
        mask_size=0,
        device=torch.device("cpu"),
        arrays=NumpyBackend(),
    )


def save(folder):
    buffer = empty()
    buffer.observations.copy_(IMAGE)
    buffer.filled = buffer.length
    before = peak()
    tensors = {f"memory-{place:03d}": buffer.state_of(place) for place in range(MEMBERS)}
    safe_folder.write_folder(folder, "checkpoint", {}, tensors)
    return before


def restore(folder):
    buffer = empty()
    before = peak()
    _, tensors = safe_folder.read_folder(folder, "checkpoint")
    buffer.load_state([tensors[f"memory-{place:03d}"] for place in range(MEMBERS)])
    assert (buffer.observations[MEMBERS - 1, -1, 0] == IMAGE).all()
    return before


def print_peaks(folder):
    for step in (save, restore):
        if (child := os.fork()) == 0:  # with a peak of its own, and the imports of both
            sys.stdout.write(f"{-step(folder) + peak()}\n")
            sys.stdout.flush()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(sys.platform != "linux", reason="the unit of a process's peak differs")
def test_a_replay_is_saved_and_restored_without_a_second_one_in_memory(tmp_path):
    done = run_forked(print_peaks, tmp_path / "run", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    saving, restoring = map(int, done.stdout.split())
    assert saving < MEMBER / 4, f"saving {MEMBERS * MEMBER:,} bytes took {saving:,}"
    # the pages of the new replay itself, and the file of one member
    assert MEMBERS * MEMBER < restoring < (MEMBERS + 1.5) * MEMBER, f"restoring took {restoring:,} bytes"
