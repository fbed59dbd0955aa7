import gc
import os
import signal
from pathlib import Path

import pytest
import torch
from forked_ranks import forked_ranks
from hypothesis import settings

from agilerl_like.training import loop_evaluation

# small nets: a second thread costs more than it brings, and on a busy machine far more
torch.set_num_threads(1)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a shell, and so in all that tests start
    signal.signal(signal.SIGINT, signal.default_int_handler)

# the same examples in each run; hypothesis' own number of them is for the nightly run
EXAMPLES = 100 if os.environ.get("RELIABILITY_TIER") == "nightly" else 25
settings.register_profile("project", deadline=None, derandomize=True, max_examples=EXAMPLES)
settings.load_profile("project")


def pytest_collection_finish():
    """Exclude modules and collected tests from garbage collections, which took 6.5 % of the tests' time."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def empty_folder(tmp_path, monkeypatch):
    """Change into an empty folder: runs without a folder save checkpoints in the working directory, as AgileRL's do."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True, scope="module")
def no_checkpoint_is_left_in_the_working_directory():
    """Fail where runs without a folder of their own leave checkpoints, `NAME-EvoHPO-ALGO-DATE-STEPS`, beside the tests.

    Where several processes run tests, it may be a file that another one runs.
    """
    root = Path.cwd()
    before = {*root.glob("*-EvoHPO-*")}
    yield
    left = sorted(path.name for path in {*root.glob("*-EvoHPO-*")} - before)
    assert not left, f"a test left {left} in {root}: pass run_dir or checkpoint_path, or no checkpoint"


@pytest.fixture(autouse=True, scope="module")
def fresh_episodes_are_few():
    """Runs confirm their best agent in 4 fresh episodes instead of 20, which took a tenth of the runs' time.

    Tests of that number, and the golden record, have a fixture of this name that does nothing.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop_evaluation, "CONFIRMATION_EPISODES", 4)
        yield


@pytest.fixture(autouse=True, scope="module")
def ranks_are_forked():
    """Runs in several processes fork them, because a new interpreter imports for 4 s.

    Tests of how processes start and end have a fixture of this name that does nothing.
    """
    with forked_ranks():
        yield
