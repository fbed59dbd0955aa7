"""Saving and restoring a replay takes little memory beside it: peaks of processes of their own, in bytes."""

import json
import subprocess
import sys

import pytest

MEMBER = 2**26 + 2**24
"""Bytes of one member's images: beyond those that are serialized as a whole."""
MEMBERS, ENVS, PIXELS = 2, 4, 2**14
SCRIPT = f"""
import json, resource, sys
import gymnasium, numpy as np, torch
from pathlib import Path
from agilerl_like.envs.array_backend import NumpyBackend
from agilerl_like.envs.spaces import ObservationEncoder
from agilerl_like.learning.replay_buffer import ReplayBuffer
from agilerl_like.storage import safe_folder

space = gymnasium.spaces.Box(0, 255, (1, 128, {PIXELS} // 128), np.uint8)
buffer = ReplayBuffer(
    {MEMBER} // {PIXELS} - {ENVS}, {MEMBERS}, {ENVS}, encoding=ObservationEncoder(space), action_size=1,
    action_dtype=torch.int64, mask_size=0, device=torch.device("cpu"), arrays=NumpyBackend(),
)
peak = lambda: 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
folder = Path(sys.argv[2])
if sys.argv[1] == "save":
    buffer.observations.copy_(torch.arange({PIXELS}).to(torch.uint8))
    buffer.filled = buffer.length
    before = peak()
    tensors = {{f"memory-{{place:03d}}": buffer.state_of(place) for place in range({MEMBERS})}}
    safe_folder.write_folder(folder, "checkpoint", {{}}, tensors)
else:
    before = peak()
    _, tensors = safe_folder.read_folder(folder, "checkpoint")
    buffer.load_state([tensors[f"memory-{{place:03d}}"] for place in range({MEMBERS})])
    assert (buffer.observations[{MEMBERS - 1}, -1, 0] == torch.arange({PIXELS}).to(torch.uint8)).all()
print(json.dumps(peak() - before))
"""


def growth(what, folder):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, what, str(folder)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.skipif(sys.platform != "linux", reason="the unit of a process's peak differs")
def test_a_replay_is_saved_and_restored_without_a_second_one_in_memory(tmp_path):
    saving, restoring = growth("save", tmp_path / "run"), growth("restore", tmp_path / "run")
    assert saving < MEMBER / 4, f"saving {MEMBERS * MEMBER:,} bytes took {saving:,}"
    # the pages of the new replay itself, and the file of one member
    assert restoring < (MEMBERS + 1.5) * MEMBER, f"restoring {MEMBERS * MEMBER:,} bytes took {restoring:,}"
