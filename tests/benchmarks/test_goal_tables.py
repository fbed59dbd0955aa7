"""The page's table of goals is made from what all scripts wrote."""

import json
import re
from pathlib import Path

from benchmarks import tables
from benchmarks.tables import SCRIPTS, Goal, keep_goals

FOLDER = Path(tables.__file__).parent


def test_every_script_that_publishes_has_a_place_in_the_order():
    names = {name for file in FOLDER.glob("*.py") for name in re.findall(r'publish\(\s*"(\w+)"', file.read_text())}
    assert len(names) > 15
    assert names <= {*SCRIPTS}


def test_a_script_replaces_its_own_goals_alone(tmp_path):
    path = tmp_path / "goals.jsonl"
    path.write_text((FOLDER / "results" / "goals.jsonl").read_text())
    before = [json.loads(line) for line in path.read_text().splitlines()]
    goal = Goal("updates", "at least 5", "6", met=True)
    assert any("updates" in line for line in keep_goals(path, "gpu", [goal]))
    after = [json.loads(line) for line in path.read_text().splitlines()]
    assert [entry for entry in after if entry["script"] != "gpu"] == [e for e in before if e["script"] != "gpu"]
    assert [entry["what"] for entry in after if entry["script"] == "gpu"] == ["updates"]
