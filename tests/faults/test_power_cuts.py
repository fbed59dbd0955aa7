"""A run on a real ext4 in a file, cut off from its power at many moments: what is on the disk then is resumed.

A process that is stopped writes nothing, and the file that holds the file system has what was synced (and what the
kernel has written back by itself). A copy of that file is what a power cut would have left; mounting it replays the
journal. That takes root and a loop device.
"""

import contextlib
import os
import shutil
import signal
import subprocess

import pytest
from tiny_runs import digest, tier
from whole_runs import Command, last_recorded_generation, resume_run, saved, training, undisturbed

MEGABYTES = 48
CUTS = [
    "fsync:2:stop",  # config.yaml has no name yet
    "replace+:1:stop",  # config.yaml has its name
    "report:1:stop",
    "put:1:stop",  # before the first checkpoint has its place
    "put+:2:stop",
    "report:3:stop",
    "save+:2:stop",
    "fsync:40:stop",
    "births+:4:stop",
    "put+:7:stop",
    "replace:5:stop",
    "write:30:stop",
    "deal+:1:stop",
    "deal+:3:stop",
    "report+:4:stop",
    "report+:6:stop",
    "forget:4:stop",
    "fsync+:90:stop",
    "put+:12:stop",
    "finish:1:stop",
]
"""In what order they come is for the run to say."""


def command(*words):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)


@contextlib.contextmanager
def mounted(image, place):
    place.mkdir(exist_ok=True)
    done = command("mount", "-o", "loop", image, place)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        command("umount", place)


@pytest.fixture
def image(tmp_path):
    if shutil.which("mkfs.ext4") is None or os.geteuid() != 0:
        pytest.skip("it takes root, and mkfs.ext4")
    image = tmp_path / "disk.img"
    with image.open("wb") as file:
        file.truncate(MEGABYTES * 2**20)
    made = command("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", image)
    if made.returncode:
        pytest.skip(f"no ext4 can be made here: {made.stderr.strip()}")
    return image


@pytest.mark.timeout(900)
def test_a_run_resumed_after_a_power_cut_equals_an_uninterrupted_one(image, tmp_path):
    cuts = CUTS[:: len(CUTS) // tier(4, len(CUTS))]
    with mounted(image, tmp_path / "disk") as disk, Command(training(disk), faults=";".join(cuts)) as run:
        for number in range(len(cuts)):
            run.wait_until_it_stops()
            shutil.copyfile(image, tmp_path / f"cut-{number}.img")
            run.process.send_signal(signal.SIGCONT)
        assert run.ended().code == 0
    wanted = undisturbed()[0]
    found = []
    for number in range(len(cuts)):
        folder = tmp_path / f"cut-{number}"
        with mounted(tmp_path / f"cut-{number}.img", tmp_path / "disk") as disk:
            shutil.copytree(disk, folder, ignore=shutil.ignore_patterns("lost+found"))
        assert last_recorded_generation(folder) >= max(
            saved(folder), default=0
        )  # no checkpoint is of a generation that has no records
        assert (folder / "run" / "config.yaml").is_file() or not saved(folder)
        ended = resume_run(folder)
        assert ended.code == 0, (cuts, number, ended.said)
        assert "damaged" not in ended.said
        found.append(digest(folder / "run") == wanted)
    assert found == [True] * len(cuts)
