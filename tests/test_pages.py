"""Every code block of the README and of the pages in `tutorials/` is executed with small budgets; links are checked.

A block whose first line is `# not run in the tests: REASON` needs what is not here (a GPU, another library); it is
parsed. Commands start in an empty folder that is common to a page's blocks, as the reader's do.
"""

import ast
import glob
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from types import ModuleType

import gymnasium
import pytest
import yaml

import agilerl_like
from agilerl_like import registry
from agilerl_like.cli import COMMANDS, main
from agilerl_like.cli.train import RESUME_EXISTING, _without_flag, _without_seeds
from agilerl_like.config import Config, Draft
from agilerl_like.config.bundled import find_config
from agilerl_like.hpo import Mutations
from agilerl_like.networks.network_mutation import KL_LIMIT, MIN_COSINE, VALUE_LIMIT
from agilerl_like.reporting import OffspringRecord, files
from agilerl_like.training.process_choice import SHORT_RUN, TARGET_DIVISOR

ROOT = Path(__file__).parents[1]
TUTORIALS = ROOT / "tutorials"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(TUTORIALS.glob("**/*.md"))]
FENCE = re.compile(r"^( *)(`{3,})([^\n`]*)\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
EXTERNAL = re.compile(r"https://[a-z0-9-]+(\.[a-z0-9-]+)+(/[\w.~%+@,/?&=-]*)?")
NOT_RUN = re.compile(r"# not run in the tests: \w+")
STEMS = {page.stem for page in PAGES}
OWN_TESTS = {"callbacks.md", "distributed.md", "selection_and_mutation.md"}
"""Pages whose scripts are run as they stand by a test of their own."""
TRAIN = ("train_on_policy", "train_multi_agent_on_policy", "train_off_policy")
SMALL = {
    "--training.max-steps": "512",
    "--training.evo-steps": "256",
    "--training.eval-loop": "1",
    "--training.target": "none",
    "--population.size": "2",
    "--algorithm.learn-step": "256",
    "--algorithm.batch-size": "64",
    "--run.plot": "false",
    "--run.threads": "1",
    "--run.processes": "1",
}
SMALL_DEMO = """
environment: {id: CartPole-v1, num_envs: 16}
population: {size: 2}
hyperparameters: {lr: {min: 1e-4, max: 1e-2}}
algorithm: {learn_step: 256}
training: {max_steps: 1_024, evo_steps: 512}
run: {threads: 1, processes: 1}
"""


def blocks_of(page):
    """Return (language, code) of a page's blocks, in order."""
    return [(found[3].strip(), found[4]) for found in FENCE.finditer(page.read_text(encoding="utf-8"))]


NOTEBOOKS = [
    TUTORIALS / f"{name}.ipynb"
    for name in (
        "bad_start",
        "connect_four",
        "decision_transformer",
        "images",
        "learners",
        "memory",
        "reading_a_report",
        "replay",
        "teams",
    )
]


def with_few_games(train):
    """Return a function that trains two generations with two episodes in each evaluation."""

    def cut(*args, max_steps, evo_steps, **options):
        options["eval_loop"] = min(2, options.get("eval_loop", 2))
        return train(*args, max_steps=max_steps, evo_steps=max(evo_steps, max_steps // 2), **options)

    return cut


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.slow
def test_notebooks_run(path, monkeypatch, tmp_path):
    """Cells run in this process, which is faster than a kernel; test_tutorials.py has a notebook in a kernel."""
    if path.stem == "images" and find_spec("minatar") is None:
        pytest.skip("its environment is in the extra `minatar`")
    if path.stem == "teams" and find_spec("mpe2") is None:
        pytest.skip("its environments are in the extra `multi-agent`")
    if path.stem == "connect_four" and find_spec("pygame") is None:
        pytest.skip("its environment is in the extra `games`")
    answers = cycle(["9", "four", *"4352617"])  # of a person who plays against the agent
    monkeypatch.setattr("builtins.input", lambda prompt: next(answers))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TUTORIAL_STEPS", "1024")
    for name in TRAIN:
        monkeypatch.setattr(agilerl_like, name, with_few_games(getattr(agilerl_like, name)))
    namespace = {"__name__": path.stem}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            execute("".join(cell["source"]), namespace, f"{path.name}, {cell['id']}")


def pages_with(*languages):
    found = [page for page in PAGES if any(language in languages for language, _ in blocks_of(page))]
    return pytest.mark.parametrize("page", found, ids=[str(page.relative_to(ROOT)) for page in found])


@pytest.fixture
def small_budgets(monkeypatch, tmp_path):
    """Training calls take two generations; classes that a page registers are removed afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TUTORIAL_STEPS", "2048")
    for name in TRAIN:
        train = getattr(agilerl_like, name)

        def cut(*args, train=train, name=name, max_steps, evo_steps, **more):
            steps = min(evo_steps, 128 if name.startswith("train_multi") else 512)
            few = {"eval_loop": min(2, more.get("eval_loop", 2)), "verbose": False}
            return train(*args, max_steps=min(max_steps, 2 * steps), evo_steps=steps, **{**more, **few})

        monkeypatch.setattr(agilerl_like, name, cut)
    yield
    sys.modules.pop("own", None)
    for its in registry._REGISTRIES.values():
        for name in [name for name, entry in its._entries.items() if getattr(entry, "__module__", None) in STEMS]:
            del its._entries[name]


def commands_of(code):
    """Return the commands of a block as words, without comments; lines that end in a backslash are joined."""
    lines = (line.strip() for line in code.replace("\\\n", " ").splitlines())
    return [shlex.split(line, comments=True) for line in lines if line and not line.startswith("#")]


def with_small_budgets(words):
    """Return a command of `agilerl-like` with small budgets in place of its own, and with paths for patterns."""
    if words[0] == "demo":
        Path("demo.yaml").write_text(SMALL_DEMO)
        return [*words, "demo.yaml"]
    if words[0] == "train":
        options = dict(zip(words[2::2], words[3::2], strict=True))
        return [*words[:2], *(text for option in {**options, **SMALL}.items() for text in option)]
    return [path for word in words for path in (sorted(glob.glob(word)) if "*" in word else [word])]


def execute(code, namespace, name):
    exec(compile(code, name, "exec"), namespace)


@pytest.mark.slow
@pages_with("python", "py", "sh")
def test_blocks_run(page, small_budgets, capsys, monkeypatch):
    if page.stem == "reading_a_run" and find_spec("minari") is None:
        pytest.skip("its dataset is in the extra `minari`")
    module = ModuleType(page.stem)  # classes that a page defines are pickled by reference
    monkeypatch.setitem(sys.modules, page.stem, module)
    namespace = vars(module)
    for number, (language, code) in enumerate(blocks_of(page)):
        where = f"{page.name}, block {number}"
        if language in ("python", "py"):
            ast.parse(code, where)
            if not NOT_RUN.match(code) and page.name not in OWN_TESTS:
                if name := re.match(r"# (\w+\.py)\n", code):
                    Path(name[1]).write_text(code)
                execute(code, namespace, where)
        elif language == "sh" and not NOT_RUN.match(code):
            for words in commands_of(code):
                if words[0] == "agilerl-like":
                    assert main(with_small_budgets(words[1:])) == 0, (where, words, capsys.readouterr())
                else:
                    assert words[0] in ("pip", "make", "sed", ".venv/bin/python"), where


@pages_with("sh")
def test_commands_that_are_not_run_name_verbs_and_settings_that_exist(page):
    for language, code in blocks_of(page):
        for words in commands_of(code) if language == "sh" and NOT_RUN.match(code) else ():
            if "agilerl-like" in words:
                verb, *rest = words[words.index("agilerl-like") + 1 :]
                assert verb in COMMANDS, words
                if verb == "train" and not rest[0].isupper():
                    draft = Draft.read(ROOT / rest[0]) if rest[0].endswith(".yaml") else find_config(rest[0])
                    draft.override(_without_flag(_without_seeds(rest[1:])[0], RESUME_EXISTING)[0]).validate()


@pages_with("yaml")
def test_configurations_are_valid(page):
    for language, code in blocks_of(page):
        if language == "yaml":
            written = yaml.safe_load(code)
            Draft({"environment": {"id": "CartPole-v1"}, **written}).validate()


def anchors_of(page):
    """Return the anchors of a page's headings, as GitHub and MyST make them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.replace("`", "")).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page):
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text(encoding="utf-8")))
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", text):
        if target.startswith("http"):
            assert EXTERNAL.fullmatch(target), f"{page.name}: {target}"
        else:
            path = (page.parent / target) if target else page
            assert path.exists(), f"{page.name}: {target}"
            if anchor and path.suffix == ".md":
                # a page of the site may be a file of another folder
                found = re.search(r"\{include\} (\S+)", path.read_text(encoding="utf-8"))
                source = path.parent / found[1] if found and len(path.read_text()) < 200 else path
                assert anchor in anchors_of(source), f"{page.name}: {target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_of_the_repository_that_a_page_names_exist(page):
    named = re.findall(
        r"`((?:agilerl_like|benchmarks|configs|tests|tutorials)/[\w/.-]*)`", page.read_text(encoding="utf-8")
    )
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_readme_is_short_and_begins_with_picture_installation_and_limits():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120
    screen = "\n".join(lines[:24])
    assert "family_tree.png" in screen
    assert "pip install" in screen
    assert "It has no " in screen


def test_limits_of_mutations_are_those_of_the_code():
    page = (TUTORIALS / "mutations.md").read_text(encoding="utf-8")
    assert f"mean KL at most {KL_LIMIT} nats, root mean square change of the value at most {VALUE_LIMIT}" in page
    assert f"mean KL of `mutation_kl={Mutations.mutation_kl}` nats" in page
    assert f"cosine at least {MIN_COSINE:.1f}" in page


def test_every_kind_of_column_of_metrics_is_explained():
    page = (TUTORIALS / "reading_a_run.md").read_text(encoding="utf-8")
    kinds = ("eval/mean_reward", "eval/std_reward", "eval/episodes", "rollout/ep_rew_mean", "population/best_ever")
    groups = ("hp/", "train/", "population/", "time/", "callback/")
    assert [name for name in (*files._IDENTITY, *kinds, *groups) if f"`{name}" not in page] == []


def test_every_field_of_a_lineage_is_explained():
    page = (TUTORIALS / "reading_a_lineage.md").read_text(encoding="utf-8")
    first = re.findall(r"^\| (`[^|]*) \|", page, re.MULTILINE)
    assert {*re.findall(r"`(\w+)`", " ".join(first))} == {field.name for field in fields(OffspringRecord)}


def test_pages_have_names_and_numbers_of_the_code():
    settings, contributing, readme, report, processes = (
        (ROOT / path).read_text(encoding="utf-8")
        for path in (
            "tutorials/settings.md",
            "CONTRIBUTING.md",
            "README.md",
            "tutorials/reading_a_report.ipynb",
            "tutorials/distributed.md",
        )
    )
    assert [name for name in Config.model_fields if f"## {name}\n" not in settings and f"`{name}" not in settings] == []
    spaces = gymnasium.spaces.Box(-1, 1, (1,)), gymnasium.spaces.Discrete(2)
    agent = agilerl_like.PPO(*spaces)
    public = {name for name in dir(agent) if not name.startswith("_")} - agent.settings().keys()
    assert f"`PPO` has {len(public - {*agilerl_like.PPO.config.__dataclass_fields__})} public names" in contributing
    assert [path.name for path in TUTORIALS.glob("*.ipynb") if f"tutorials/{path.name}" not in readme] == []
    assert "*clone, unchanged*" in report  # the name in `operator_gains`
    assert f"({SHORT_RUN:,} steps of all members; {SHORT_RUN * TARGET_DIVISOR:,} with a target" in processes


def test_pictures_are_those_that_the_script_draws(tmp_path):
    subprocess.run([sys.executable, TUTORIALS / "draw_pictures.py", tmp_path], check=True, env=dict(os.environ))
    drawn = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert drawn == {path.name: path.read_text() for path in (TUTORIALS / "pictures").iterdir()}


def test_a_marker_needs_a_reason():
    assert NOT_RUN.match("# not run in the tests: a GPU\nf()")
    assert not NOT_RUN.match("# not run in the tests:\nf()")
