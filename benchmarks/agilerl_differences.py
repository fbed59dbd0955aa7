"""The tables of differences in tutorials/coming_from_agilerl.md, from one file and from what AgileRL was seen to do.

The rows are in `benchmarks/peers/agilerl_differences.yaml`. Those that can be run have a function in
`benchmarks/peers/agilerl_facts.py`, which runs in AgileRL's environment; tests/agilerl/test_differences.py runs the
same here.

    python -m benchmarks.agilerl_differences          # runs AgileRL, keeps what it did, writes the tables
    python -m benchmarks.agilerl_differences --again  # writes the tables alone
"""

import argparse
import json
import subprocess
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

import yaml

from benchmarks import venvs
from benchmarks.tables import ROOT, markdown, replace_section

ROWS = ROOT / "benchmarks" / "peers" / "agilerl_differences.yaml"
FACTS = ROOT / "benchmarks" / "results" / "agilerl_facts.json"
PAGE = ROOT / "tutorials" / "coming_from_agilerl.md"
HEADS = {
    "silent": {
        "subject": "subject",
        "agilerl": "AgileRL {version}",
        "room": "`agilerl_like.agilerl`",
        "here": "`agilerl_like`",
    },
    "reasons": {"subject": "subject", "agilerl": "AgileRL {version}", "here": "here"},
}
"""Each table's columns: the key of a row, and the head of the column."""


def section(name: str) -> str:
    """Return the name of a table's section in the page."""
    return f"differences_{name}"


def read_rows() -> dict[str, list[Mapping[str, str]]]:
    """Return the rows of each table."""
    return yaml.safe_load(ROWS.read_text(encoding="utf-8"))


def read_facts() -> dict[str, Any]:
    """Return what AgileRL did: its version, the date, and a value for each subject."""
    return json.loads(FACTS.read_text(encoding="utf-8"))


def tables(rows: Mapping[str, Sequence[Mapping[str, str]]], facts: Mapping[str, Any]) -> dict[str, str]:
    """Return each table as Markdown; a subject that was measured has an asterisk."""
    found = {}
    for name, head in HEADS.items():
        cells = [[row[key] + (" \\*" if key == "subject" and row[key] in facts["facts"] else "") for key in head]
                 for row in rows[name]]  # fmt: skip
        note = (
            f"\\*: measured on AgileRL {facts['version']} ({facts['date']}) by "
            "`python -m benchmarks.agilerl_differences`, and here by `tests/agilerl/test_differences.py`. "
            "The other rows were read in the code of that version."
        )
        columns = [text.format(version=facts["version"]) for text in head.values()]
        found[name] = "\n".join(("", *markdown(columns, cells), "", note, ""))
    return found


def run_agilerl() -> None:
    """Run the functions in AgileRL's environment, and keep what they returned."""
    program = ROOT / "benchmarks" / "peers" / "agilerl_facts.py"
    done = subprocess.run([venvs.interpreter("agilerl"), program], cwd=ROOT, capture_output=True, text=True, check=True)
    facts = json.loads(done.stdout.splitlines()[-1])
    FACTS.write_text(json.dumps({"date": date.today().isoformat(), **facts}, indent=1) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--again", action="store_true", help="write the tables from what was kept")
    if not parser.parse_args(arguments).again:
        run_agilerl()
    for name, text in tables(read_rows(), read_facts()).items():
        replace_section(PAGE, section(name), text)


if __name__ == "__main__":
    main()
