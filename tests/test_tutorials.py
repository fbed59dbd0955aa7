"""The tutorials run as they stand, with small budgets."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

TUTORIALS = Path(__file__).parents[1] / "tutorials"
ENVIRONMENT = {**os.environ, "TUTORIAL_STEPS": "2048", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}


@pytest.mark.skipif(find_spec("Box2D") is None, reason="LunarLander is in the extra `box2d`")
def test_the_hand_written_loop(tmp_path):
    budget = ["--max-steps", "4096", "--evo-steps", "2048", "--population", "2"]
    command = [sys.executable, TUTORIALS / "hand_written_loop.py", *budget]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "4096 steps each" in done.stdout
    assert "best: lr" in done.stdout
    assert "loaded again it scores" in done.stdout.splitlines()[-1]


@pytest.mark.skipif(find_spec("nbclient") is None, reason="notebooks are executed with the extra `notebook`")
@pytest.mark.parametrize("path", sorted(TUTORIALS.glob("*.ipynb")), ids=lambda p: p.stem)
def test_notebooks(path, tmp_path):
    if path.stem == "teams" and find_spec("mpe2") is None:
        pytest.skip("its worlds are in the extra `multi-agent`")
    script = (
        "import re, sys, nbformat, nbclient\n"
        "book = nbformat.read(sys.argv[1], as_version=4)\n"
        "nbclient.NotebookClient(book, timeout=None, kernel_name='python3').execute()\n"
        "outputs = [o for cell in book.cells for o in cell.get('outputs', ())]\n"
        "print(sum('image/png' in o.get('data', {}) for o in outputs))\n"
        "text = ''.join(o.get('text', '') for o in outputs)\n"
        "print(len(re.findall(r'\\x1b\\[[0-9;?]*[A-HJKSTfhl]', text)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, path],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["1", "0"]  # the plot; and nothing that moves a cursor
