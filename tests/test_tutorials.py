"""The tutorials run as they stand, with small budgets."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from scripts import run_script

from agilerl_like.cli import main
from agilerl_like.registry import registered
from agilerl_like.reporting import read_lineage
from agilerl_like.reporting.run_history import CONFIG

TUTORIALS = Path(__file__).parents[1] / "tutorials"
ENVIRONMENT = {**os.environ, "TUTORIAL_STEPS": "1024", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}


@pytest.mark.slow
@pytest.mark.skipif(find_spec("Box2D") is None, reason="LunarLander is in the extra `box2d`")
def test_the_hand_written_loop(tmp_path):
    budget = ["--max-steps", "4096", "--evo-steps", "2048", "--population", "2"]
    printed = run_script(TUTORIALS / "hand_written_loop.py", tmp_path, *budget)
    assert "4096 steps each" in printed
    assert "best: lr" in printed
    assert "loaded again it scores" in printed.splitlines()[-1]


def test_the_hand_written_loop_with_a_replay(tmp_path):
    budget = ["--max-steps", "68", "--random-steps", "60"]
    printed = run_script(TUTORIALS / "hand_written_off_policy_loop.py", tmp_path, *budget)
    assert printed.startswith("8 gradient steps; saved to")
    assert "loaded again it scores" in printed.splitlines()[-1]


@pytest.mark.slow
def test_a_selection_of_a_script_is_named_in_yaml(tmp_path, monkeypatch):
    budget = {"training.max-steps": 1536, "training.evo-steps": 512, "training.eval-loop": 2, "run.plot": "false"}
    budget |= {"algorithm.learn-step": 512, "algorithm.batch-size": 64}
    run_script(
        TUTORIALS / "own_selection.py",
        tmp_path,
        *(text for name, its in budget.items() for text in (f"--{name}", str(its))),
    )
    written = yaml.safe_load((tmp_path / "runs" / "ranks" / CONFIG).read_text(encoding="utf-8"))
    assert written["selection"]["name"] == "rank"
    assert written["selection"]["decay"] == 0.3
    monkeypatch.chdir(tmp_path)
    assert "rank" not in registered("selection")
    assert main(["eval", "runs/ranks/best", "--episodes", "2"]) == 0
    births = read_lineage(tmp_path / "runs" / "ranks")
    assert {birth.generation for birth in births} == {0, 1, 2}


def test_an_encoder_of_a_script_is_named_in_net_config(tmp_path):
    loaded = run_script(TUTORIALS / "own_encoder.py", tmp_path).splitlines()[-1]
    assert loaded.startswith("PPO(index=")


@pytest.mark.slow
def test_a_memory_of_a_script_is_named_in_memory_config(tmp_path):
    loaded = run_script(TUTORIALS / "own_memory.py", tmp_path).splitlines()[-1]
    assert "trace 48" in loaded


@pytest.mark.skipif(find_spec("nbclient") is None, reason="notebooks are executed with the extra `notebook`")
@pytest.mark.slow
def test_a_notebook_shows_one_table_of_each_run_and_its_plot(tmp_path):
    """It runs in a kernel; test_pages.py executes the others, in its own process."""
    path = TUTORIALS / "evolve_cartpole.ipynb"
    script = (
        "import re, sys, nbformat, nbclient\n"
        "book = nbformat.read(sys.argv[1], as_version=4)\n"
        "nbclient.NotebookClient(book, timeout=None, kernel_name='python3').execute()\n"
        "outputs = [o for cell in book.cells for o in cell.get('outputs', ())]\n"
        "print(sum('image/png' in o.get('data', {}) for o in outputs))\n"
        "text = ''.join(o.get('text', '') for o in outputs)\n"
        "print(len(re.findall(r'\\x1b\\[[0-9;?]*[A-HJKSTfhl]', text)))\n"
        "tables = [o['data']['text/plain'] for o in outputs if '<pre' in o.get('data', {}).get('text/html', '')]\n"
        "print(len(tables), sum('generation' in table for table in tables))\n"
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
    plots, moves, tables, drawn = map(int, done.stdout.split())
    assert (plots, moves) == (1, 0)  # nothing moves a cursor
    assert tables == drawn >= 1  # one output for each run, which has its last table
