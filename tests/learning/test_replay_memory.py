"""Saving and restoring a replay takes little memory beside it: peaks of processes of their own, in bytes."""

import subprocess
import sys

import pytest

MEMBER = 2**26 + 2**24
"""Bytes of one member's images: beyond those that are serialized as a whole."""
MEMBERS, ENVS, PIXELS = 2, 4, 2**14
SCRIPT = f"""
import os, resource, sys
import gymnasium, numpy as np, torch
from pathlib import Path
from agilerl_like.envs.array_backend import NumpyBackend
from agilerl_like.envs.spaces import ObservationEncoder
from agilerl_like.learning.replay_buffer import ReplayBuffer
from agilerl_like.storage import safe_folder

torch.set_num_threads(1)
folder = Path(sys.argv[1])

def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

def empty():
    space = gymnasium.spaces.Box(0, 255, (1, 128, {PIXELS} // 128), np.uint8)
    return ReplayBuffer(
        {MEMBER} // {PIXELS} - {ENVS}, {MEMBERS}, {ENVS}, encoding=ObservationEncoder(space), action_size=1,
        action_dtype=torch.int64, mask_size=0, device=torch.device("cpu"), arrays=NumpyBackend(),
    )

def save():
    buffer = empty()
    buffer.observations.copy_(torch.arange({PIXELS}).to(torch.uint8))
    buffer.filled = buffer.length
    before = peak()
    tensors = {{f"memory-{{place:03d}}": buffer.state_of(place) for place in range({MEMBERS})}}
    safe_folder.write_folder(folder, "checkpoint", {{}}, tensors)
    return before

def restore():
    buffer = empty()
    before = peak()
    _, tensors = safe_folder.read_folder(folder, "checkpoint")
    buffer.load_state([tensors[f"memory-{{place:03d}}"] for place in range({MEMBERS})])
    assert (buffer.observations[{MEMBERS - 1}, -1, 0] == torch.arange({PIXELS}).to(torch.uint8)).all()
    return before

for step in (save, restore):
    if (child := os.fork()) == 0:  # with a peak of its own, and the imports of both
        print(-step() + peak(), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the unit of a process's peak differs")
def test_a_replay_is_saved_and_restored_without_a_second_one_in_memory(tmp_path):
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    saving, restoring = map(int, done.stdout.split())
    assert saving < MEMBER / 4, f"saving {MEMBERS * MEMBER:,} bytes took {saving:,}"
    # the pages of the new replay itself, and the file of one member
    assert MEMBERS * MEMBER < restoring < (MEMBERS + 1.5) * MEMBER, f"restoring took {restoring:,} bytes"
