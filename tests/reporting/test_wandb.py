import json
import sys

import pytest
from reporting_examples import a_generation, a_member, a_run, a_summary

from agilerl_like.errors import ConfigurationError
from agilerl_like.reporting import WandbReporter

# The package needs an account, so a stand-in with its few functions writes down what it is asked.
STAND_IN = """
import json, pathlib
def note(*what):
    with pathlib.Path(__file__).with_name("heard.jsonl").open("a") as file:
        file.write(json.dumps(what) + "\\n")
class Summary:
    def update(self, values): note("summary", values)
class Run:
    summary = Summary()
    def log(self, values, step): note("log", values, step)
    def finish(self): note("finish")
def init(**kwargs):
    note("init", kwargs)
    return Run()
"""


def test_a_run_is_logged_over_env_steps_and_finished_once(monkeypatch, tmp_path):
    (tmp_path / "wandb.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    reporter = WandbReporter(project="mine")
    reporter.start(a_run())
    reporter.generation(a_generation(a_member()))
    reporter.finish(a_summary())
    reporter.close()
    reporter.close()
    sys.modules.pop("wandb")
    heard = [json.loads(line) for line in (tmp_path / "heard.jsonl").read_text().splitlines()]
    assert [entry[0] for entry in heard] == ["init", "log", "summary", "finish"]
    settings = {"project": "mine", "name": "lander", "config": {"lr": 0.001}, "tags": ["PPO", "LunarLander-v3"]}
    assert heard[0][1] == settings
    assert heard[1][1]["member/0/eval/mean_reward"] == 100.0
    assert heard[1][2] == 100_000
    logged = heard[2][1]
    assert logged["best/hp/lr"] == 0.0012
    assert (logged["best/uid"], logged["best/generation"], logged["best/fitness"]) == (2, 1, 205.0)


def test_a_run_with_a_folder_goes_on_where_it_was(monkeypatch, tmp_path):
    (tmp_path / "wandb.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    folders = [tmp_path / name for name in ("a", "a", "b")]
    for folder in folders:
        folder.mkdir(exist_ok=True)
        reporter = WandbReporter()
        reporter.start(a_run(run_dir=folder))
        reporter.close()
    sys.modules.pop("wandb")
    heard = [json.loads(line) for line in (tmp_path / "heard.jsonl").read_text().splitlines()]
    begun = [entry[1] for entry in heard if entry[0] == "init"]
    assert [(entry["dir"], entry["resume"]) for entry in begun] == [(str(folder), "allow") for folder in folders]
    assert begun[0]["id"] == begun[1]["id"] != begun[2]["id"]


def test_without_the_package_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'agilerl-like\[wandb\]'"):
        WandbReporter()
