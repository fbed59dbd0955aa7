import math
import sys

import numpy as np
import pytest
from reporting_examples import a_generation, a_member, a_run

from agilerl_like.errors import ConfigurationError
from agilerl_like.reporting import CsvReporter, figure, fittest, plot_run

pytest.importorskip("matplotlib", reason="an extra")


@pytest.fixture
def run_dir(tmp_path):
    """Three generations: member 1 fails and is replaced by 2, a clone of 0, which ends as the best."""
    folder = tmp_path / "lander"
    reporter = CsvReporter(folder)
    reporter.start(a_run())
    zero = {"lr": 1e-4, "batch_size": 64}
    one = {"lr": 1e-2, "batch_size": 32}
    two = {"lr": 2e-4, "batch_size": 64}
    reporter.generation(
        a_generation(
            a_member(fitness=10.0, hyperparameters=zero), a_member(slot=1, uid=1, fitness=math.nan, hyperparameters=one)
        )
    )
    child = {"slot": 1, "uid": 2, "parent_uid": 0, "hyperparameters": two, "mutation": "lr", "parameters": 20_000}
    reporter.generation(
        a_generation(a_member(fitness=20.0, hyperparameters=zero), a_member(fitness=15.0, **child), number=2)
    )
    reporter.generation(
        a_generation(a_member(fitness=18.0, hyperparameters=zero), a_member(fitness=30.0, **child), number=3)
    )
    return folder


def lineage_of(axes):
    line = next(line for line in axes.lines if line.get_label() == "the best member's lineage")
    return np.column_stack(line.get_data()).tolist()


def test_the_picture_has_a_panel_for_fitness_each_hyperparameter_and_the_size(run_dir):
    drawing = figure(run_dir)
    titles = [axes.get_title(loc="left") for axes in drawing.axes]
    assert titles == ["fitness", "lr", "batch_size", "weights in the network", ""]  # the last is the colour bar
    fitness, lr, batch_size, size, bar = drawing.axes
    assert fitness.get_xlabel() == "env steps of all members"
    assert size.get_xlabel() == "generation"
    assert bar.get_ylabel() == "fitness"
    assert drawing.get_suptitle() == "lander: best fitness 30.0, member 2 in generation 3"
    assert lr.get_yscale() == "log"  # 1e-4 to 1e-2 is more than a factor of 20
    assert batch_size.get_yscale() == "linear"


def test_the_best_members_branch_leaves_its_parent(run_dir):
    fitness, lr, *_ = figure(run_dir).axes
    # member 0 in generation 1, then its clone 2 in generations 2 and 3
    assert lineage_of(fitness) == [[100_000, 10], [200_000, 15], [300_000, 30]]
    assert lineage_of(lr) == [[1, 1e-4], [2, 2e-4], [3, 2e-4]]
    assert [text.get_text() for text in fitness.texts] == ["lr"]


def test_of_equally_fit_members_the_title_names_the_one_that_the_console_names(tmp_path):
    folder = tmp_path / "equals"
    reporter = CsvReporter(folder)
    reporter.start(a_run())
    old, young = a_member(uid=0, fitness=500.0), a_member(slot=1, uid=5, fitness=500.0)
    for number in (1, 2):
        reporter.generation(a_generation(old, young, number=number))
    assert fittest([old, young]).uid == 0
    assert figure(folder).get_suptitle() == "equals: best fitness 500.0, member 0 in generation 2"


def test_best_so_far_and_target_are_drawn(run_dir):
    lines = {line.get_label(): np.asarray(line.get_ydata()).tolist() for line in figure(run_dir).axes[0].lines}
    assert lines["best so far, on fresh episodes"] == [10, 20, 30]
    assert lines["target 200.0"] == [200, 200]


def test_the_file_is_a_picture_of_a_readable_size(run_dir):
    path = plot_run(run_dir)
    assert path == run_dir / "evolution.png"
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = (int.from_bytes(content[i : i + 4], "big") for i in (16, 20))
    assert (width, height) == (12 * 130, round(6.4 * 130))  # inches times dots an inch; one row of small panels
    assert plot_run(run_dir, run_dir / "other.png").read_bytes()[:4] == b"\x89PNG"


def test_drawing_leaves_no_global_state(run_dir):
    before = "matplotlib.pyplot" in sys.modules  # torch's compiler may have loaded it
    figure(run_dir)
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_a_population_of_which_nobody_is_healthy_can_still_be_drawn(tmp_path):
    reporter = CsvReporter(tmp_path)
    reporter.start(a_run())
    reporter.generation(a_generation(a_member(fitness=math.nan), target=None))
    assert plot_run(tmp_path).stat().st_size > 0


def test_a_folder_without_metrics_says_what_to_give(tmp_path):
    with pytest.raises(ConfigurationError, match="give the folder of a run"):
        figure(tmp_path)


def test_without_the_package_the_error_names_the_extra(monkeypatch, run_dir):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'agilerl-like\[plot\]'"):
        figure(run_dir)
