"""The code and its documentation use the terms of `tests/data/retired_words.txt`."""

import io
import json
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
CHECKED = (
    "agilerl_like/**/*.py",
    "benchmarks/*.py",
    "benchmarks/peers/*.py",
    "benchmarks/search/*.py",
    "benchmarks/search.md",
    "benchmarks/README.md",
    "configs/**/*.yaml",
    "tests/**/*.py",
    "tutorials/*.md",
    "tutorials/*.py",
    "tutorials/*.ipynb",
    "*.md",
)
FILES = sorted(path for pattern in CHECKED for path in ROOT.glob(pattern) if path.name != Path(__file__).name)
RULES = [
    [part.strip() for part in line.split(" | ")]
    for line in (ROOT / "tests" / "data" / "retired_words.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]
IDENTIFIERS = {word: instead for kind, word, instead in RULES if kind == "identifier"}
PROSE = [
    (re.compile(rf"(?<!\w)(?:{word[1:-1] if word.startswith('/') else re.escape(word)})(?!\w)", re.I), instead)
    for kind, word, instead in RULES
    if kind == "prose"
]
ANY_PROSE = re.compile("|".join(pattern.pattern for pattern, _ in PROSE), re.I)
STRINGS = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


def names_and_prose(path):
    """Yield (line, name, prose) of a file: either may be empty; lines of a notebook are those of its cells together."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        before = 0
        for cell in json.loads(text)["cells"]:
            source = "".join(cell["source"])
            found = [(1, "", source)] if cell["cell_type"] == "markdown" else python_parts(source, is_package=False)
            yield from ((before + number, name, prose) for number, name, prose in found)
            before += source.count("\n") + 1
        return
    if path.suffix in (".md", ".yaml"):
        behind = "#" if path.suffix == ".yaml" else ""  # YAML has prose in comments
        yield from (
            (number, "", line[line.find(behind) :] if behind in line else "")
            for number, line in enumerate(text.splitlines(), 1)
        )
        return
    yield 0, path.stem, ""
    yield from python_parts(text, is_package=path.parts[-2] == "agilerl_like")


def python_parts(text, *, is_package):
    """Yield (line, name, prose) of Python code; names of tests are prose."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        line = token.start[0]
        if token.type == tokenize.NAME:
            is_test = not is_package and token.string.startswith("test_")
            yield line, token.string, token.string.replace("_", " ") if is_test else ""
        elif token.type == tokenize.COMMENT or (token.type in STRINGS and re.search(r'\s|"""', token.string)):
            yield line, "", token.string


def problems_in(path):
    for line, name, prose in names_and_prose(path):
        if name in IDENTIFIERS:
            yield f"{path.relative_to(ROOT)}:{line}: {name} is now {IDENTIFIERS[name]}"
        text = re.sub(r"`[^`]*`", "``", prose)
        for pattern, instead in PROSE if ANY_PROSE.search(text) else ():
            for found in pattern.finditer(text):
                inside = line + text[: found.start()].count("\n")
                yield f"{path.relative_to(ROOT)}:{inside}: {found.group()!r}; use: {instead}"


def test_no_retired_words():
    problems = [problem for path in FILES for problem in problems_in(path)]
    assert not problems, "\n".join(problems)


def test_every_rule_has_a_kind_a_word_and_a_replacement():
    assert all(len(rule) == 3 and rule[0] in ("identifier", "prose") and all(rule) for rule in RULES)
    assert FILES


def test_the_check_finds_prose_and_comments_in_notebooks(tmp_path, monkeypatch):
    monkeypatch.setattr("test_plain_language.ROOT", tmp_path)
    cells = [
        {"cell_type": "markdown", "source": ["# A title\n", "\n", "The run goes on."]},
        {"cell_type": "code", "source": ["told = 1\n", "Crew()  # nobody waits"]},
    ]
    file = tmp_path / "example.ipynb"
    file.write_text(json.dumps({"cells": cells}))
    found = [problem.partition(";")[0] for problem in problems_in(file)]
    assert found == [
        "example.ipynb:3: 'goes on'",
        "example.ipynb:5: Crew is now WorkerHandles",
        "example.ipynb:5: 'nobody'",
    ]


def test_the_check_finds_names_docstrings_comments_messages_and_test_names(tmp_path, monkeypatch):
    monkeypatch.setattr("test_plain_language.ROOT", tmp_path)
    file = tmp_path / "example.py"
    file.write_text(
        '"""Somebody."""\n\n\ndef test_nobody_trains(bear):\n    raise ValueError("it goes on")  # told `nobody`\n'
    )
    found = list(problems_in(file))
    assert [problem.partition(";")[0] for problem in found] == [
        "example.py:1: 'Somebody'",
        "example.py:4: 'nobody'",
        "example.py:4: bear is now make_offspring",
        "example.py:5: 'goes on'",
        "example.py:5: 'told'",
    ]
