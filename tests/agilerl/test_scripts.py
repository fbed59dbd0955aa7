"""Scripts written for AgileRL 2.58 and older run here after one replacement: `agilerl` by `agilerl_like.agilerl`.

The scripts are in our own words, after the calls of AgileRL's tutorials, demos and documentation for PPO, IPPO,
evolution, modules and buffers. Each asserts what it is about; those in `absent` use what is not available, and must be
reported by name.
"""

import re
from pathlib import Path

import pytest
from slow_cases import slow_if

SCRIPTS = Path(__file__).parent / "scripts"
RUN, ABSENT = sorted(SCRIPTS.glob("*.py")), sorted((SCRIPTS / "absent").glob("*.py"))


def run(script):
    source = re.sub(r"^from agilerl\b", "from agilerl_like.agilerl", script.read_text(), flags=re.MULTILINE)
    exec(compile(source, str(script), "exec"), {"__name__": "__main__"})  # a script of ours, as a script


@pytest.mark.parametrize(
    "script", [pytest.param(one, id=one.stem, marks=slow_if(one.stem == "modules_by_hand")) for one in RUN]
)
def test_a_script_runs_after_the_replacement(script):
    run(script)


@pytest.mark.parametrize("script", ABSENT, ids=[script.stem for script in ABSENT])
def test_what_is_absent_is_named_with_the_reason(script):
    with pytest.raises(ImportError, match=r"agilerl_like\.agilerl\.[\w.]+ is not available: \w+"):
        run(script)


def test_enough_scripts_run():
    assert len(RUN) >= 30
    assert len(RUN) + len(ABSENT) >= 35
    page = (SCRIPTS.parents[2] / "tutorials" / "coming_from_agilerl.md").read_text(encoding="utf-8")
    assert f"holds {len(RUN)} scripts" in page
