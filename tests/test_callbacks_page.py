"""The script of tutorials/callbacks.md stops a run that does not improve any more."""

import csv
import re
from pathlib import Path

import pytest
from scripts import run_script

from agilerl_like.reporting import Callback

PAGE = (Path(__file__).parents[1] / "tutorials" / "callbacks.md").read_text(encoding="utf-8")


def test_every_event_is_listed():
    listed = {*re.findall(r"^\| `(\w+)\(", PAGE, flags=re.MULTILINE)}
    assert listed == {name for name in vars(Callback) if name.startswith("on_")}


@pytest.mark.slow
def test_the_script_stops_after_five_generations_without_improvement(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    code = code.replace("num_envs=16)\n    pop", "num_envs=16, max_episode_steps=40)\n    pop")  # a plateau soon
    assert "max_episode_steps" in code
    script = tmp_path / "patience.py"
    script.write_text(code, encoding="utf-8")
    assert "no improvement for 5 generations" in run_script(script, tmp_path)
    with (tmp_path / "runs" / "patience" / "metrics.csv").open(newline="") as table:
        rows = list(csv.DictReader(table))
    assert (
        6 <= len(rows) // 2 < 100
    )  # two members; the first generation always improves, and 100 would spend the budget
    waited = [float(row["callback/generations without improvement"]) for row in rows[::2]]
    assert waited[0] == 0
    assert waited[-6:] == [0, 1, 2, 3, 4, 5]
