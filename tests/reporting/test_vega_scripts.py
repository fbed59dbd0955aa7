"""Where the JavaScript of a report comes from, and what happens without it."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from reporting_examples import a_founder, a_generation, a_member

from agilerl_like.errors import ConfigurationError
from agilerl_like.reporting import CsvReporter, vega_scripts
from agilerl_like.reporting.report import HtmlReporter
from agilerl_like.reporting.vega_scripts import cache_folder


@pytest.fixture
def bundles(monkeypatch, tmp_path):
    """Count the bundlings, which are not done, and use an empty folder of caches."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    commands = []

    def run(command, **_):
        commands.append(command)
        return SimpleNamespace(stdout=b"vegaEmbed")

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_scripts_are_bundled_once(bundles):
    assert [vega_scripts.vega_scripts() for _ in range(2)] == ["vegaEmbed"] * 2
    assert len(bundles) == 1
    (cached,) = cache_folder().iterdir()
    assert cached.read_text() == "vegaEmbed"


def test_scripts_are_bundled_each_time_without_a_folder_to_write_to(bundles, tmp_path):
    (tmp_path / "cache").write_text("a file in the place of the folder")
    assert [vega_scripts.vega_scripts() for _ in range(2)] == ["vegaEmbed"] * 2
    assert len(bundles) == 2


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(vega_scripts, "PACKAGE", "vl-convert-that-is-not-installed")
    with pytest.raises(ConfigurationError, match="needs one more package: pip install vl-convert-that-is-not-inst"):
        vega_scripts.vega_scripts()


def test_scripts_are_bundled_for_a_user_without_a_home_folder(bundles, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")

    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    assert vega_scripts.vega_scripts() == "vegaEmbed"
    assert len(bundles) == 1


def test_a_run_without_scripts_ends_with_a_warning(monkeypatch, tmp_path):
    def fail(command, **_):
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(ConfigurationError, match=r"vl-convert-python .* could not bundle Vega-Lite"):
        vega_scripts.vega_scripts()
    metrics = CsvReporter(tmp_path)
    metrics.start([a_founder()])
    metrics.generation(a_generation(a_member(fitness=1.0)))
    with pytest.warns(UserWarning, match=r"the run has no report\.html: vl-convert-python"):
        HtmlReporter(tmp_path).finish(None)
    assert not (tmp_path / "report.html").exists()
