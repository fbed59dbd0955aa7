import csv
import json
import math
import sys

import numpy as np
import pytest
from reporting_examples import a_birth, a_generation, a_member, a_run

from agilerl_like.errors import ConfigurationError
from agilerl_like.reporting import CsvReporter, LineageReporter, figure, figure_of_runs, fittest, plot_run, plot_runs

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


def test_figure_has_panels_for_fitness_hyperparameters_and_size(run_dir):
    drawing = figure(run_dir)
    titles = [axes.get_title(loc="left") for axes in drawing.axes]
    # the last is the colour bar
    assert titles == ["fitness", "lr", "batch_size", "weights in the network", "value loss", ""]
    fitness, lr, batch_size, size, loss, bar = drawing.axes
    assert fitness.get_xlabel() == "env steps of all members"
    assert size.get_xlabel() == loss.get_xlabel() == "generation"
    assert bar.get_ylabel() == "fitness"
    assert drawing.get_suptitle() == "lander: best fitness 30.0, member 2 in generation 3"
    assert lr.get_yscale() == "log"  # 1e-4 to 1e-2 is more than a factor of 20
    assert batch_size.get_yscale() == "linear"


def test_branch_of_the_best_member_starts_at_its_parent(run_dir):
    fitness, lr, *_ = figure(run_dir).axes
    # member 0 in generation 1, then its clone 2 in generations 2 and 3
    assert lineage_of(fitness) == [[100_000, 10], [200_000, 15], [300_000, 30]]
    assert lineage_of(lr) == [[1, 1e-4], [2, 2e-4], [3, 2e-4]]
    assert [text.get_text() for text in fitness.texts] == ["lr"]


def test_metrics_of_learning_have_panels(tmp_path):
    # generations 1 and 2: entropy 0.69 and 0.5 (the column has minus that), KL 0.002 and 0.01; no update in the third
    reporter = CsvReporter(tmp_path)
    reporter.start(a_run())
    for number, (entropy, kl) in enumerate([(0.69, 0.002), (0.5, 0.01), (math.nan, math.nan)], 1):
        losses = {"approx_kl": kl, "entropy_loss": -entropy, "value_loss": math.nan, "clip_fraction": 0.1}
        reporter.generation(a_generation(a_member(losses=losses), number=number))
    panels = {axes.get_title(loc="left"): axes for axes in figure(tmp_path).axes[1:-1]}
    assert [*panels][-3:] == ["weights in the network", "entropy of the policy", "approximate KL of an update"]
    assert lineage_of(panels["entropy of the policy"])[:2] == [[1, 0.69], [2, 0.5]]
    assert lineage_of(panels["approximate KL of an update"])[:2] == [[1, 0.002], [2, 0.01]]


def test_band_is_the_standard_deviation_of_the_best_members_episodes(run_dir):
    # its fitness is 10, 15 and 30, and the standard deviation 10 in each generation
    axes = figure(run_dir).axes[0]
    (band,) = (one for one in axes.collections if one.get_label() == "± standard deviation of its episodes")
    corners = {tuple(corner) for corner in band.get_paths()[0].vertices.tolist()}
    steps, low, high = (100_000, 200_000, 300_000), (0, 5, 20), (20, 25, 40)
    assert corners == {*zip(steps, low, strict=True), *zip(steps, high, strict=True)}


def test_a_clone_of_the_best_agent_starts_where_that_agent_was_and_the_band_of_a_rating_is_its_error(run_dir):
    lineage = LineageReporter(run_dir)
    lineage.offspring((a_birth(generation=2, uid=3, parent_uid=0, parent_generation=1),))
    metrics = run_dir / "metrics.csv"
    last = metrics.read_text().splitlines()[-1]
    clone = last.replace("3,1,2,0,", "3,1,3,0,").replace(",2,3,200.0,", ",3,3,200.0,")  # it is the best member
    metrics.write_text(metrics.read_text().replace(last, clone))
    (run_dir / "config.yaml").write_text("training:\n  fitness: rating\n")
    axes = figure(run_dir).axes[0]
    assert lineage_of(axes) == [[100_000, 10], [300_000, 30]]
    assert "± standard error of its rating" in [one.get_label() for one in axes.collections]


SEVEN = "gae_lambda,gamma,lr,update_epochs,clip_coef,vf_coef,ent_coef"


def a_lineage(folder, fitnesses, mutation=SEVEN, **changes):
    """A run in which each generation's member is a changed clone of the one before."""
    reporter = CsvReporter(folder)
    reporter.start(a_run(population_size=1))
    for number, fitness in enumerate(fitnesses, 1):
        member = a_member(uid=number - 1, parent_uid=number - 2, fitness=fitness, mutation=mutation, **changes)
        reporter.generation(a_generation(member, number=number, target=None))
    return figure(folder)


@pytest.mark.parametrize(
    "fitnesses",
    [[0, 5, 40, 60, 80, 100, 100, 100, 50, 90, 10, 99, 0, 101], [0, 100, 95, 60, 40, 5, 0, 0, 0, 50, 10, 60, 0, 101]],
    ids=["rises", "falls"],
)
@pytest.mark.parametrize("mutation", [SEVEN, "extractors.camera.encoder.remove_channel", "action_noise_correlation"])
def test_labels_of_mutations_stay_inside_the_axes(tmp_path, mutation, fitnesses):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    drawing = a_lineage(tmp_path, fitnesses, mutation)
    FigureCanvasAgg(drawing).draw()
    fitness = drawing.axes[0]
    inside = fitness.get_window_extent()
    assert len(fitness.texts) == 13
    for text in fitness.texts:
        extent = text.get_window_extent()
        assert inside.x0 <= extent.x0 < extent.x1 <= inside.x1, (text.xy, extent, inside)
        assert inside.y0 <= extent.y0 < extent.y1 <= inside.y1, (text.xy, extent, inside)


@pytest.mark.parametrize(
    ("mutation", "label"),
    [
        ("lr,gamma", "lr,gamma"),
        ("encoder.remove_layer", "encoder.remove_layer"),
        ("clip_coef,lr,update_epochs", "3 hyperparameters"),
        ("extractors.camera.encoder.add_node", "…encoder.add_node"),
        ("encoder.cnn.remove_channel", "…cnn.remove_channel"),
        ("action_noise_correlation", "action_noise_correl…"),
    ],
)
def test_labels_of_mutations_are_at_most_20_characters(tmp_path, mutation, label):
    drawing = a_lineage(tmp_path, [10, 20], mutation)
    assert [text.get_text() for text in drawing.axes[0].texts] == [label]


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [
        (1e-3, 0.9e-3, 1.1e-3),  # 10 % on both sides
        (-2.0, -2.2, -1.8),
        (0.0, -0.1, 0.1),
        (0.99, 0.98, 1.0),  # a discount, which counts by what it lacks of 1
        (1.0, 0.9, 1.1),
        (4, 3.6, 4.4),
    ],
)
def test_axis_of_a_constant_has_a_minimum_height(tmp_path, value, low, high):
    axes = a_lineage(tmp_path, [10, 20], hyperparameters={"x": value}).axes[1]
    assert axes.get_ylim() == pytest.approx((low, high))


def test_axis_of_almost_equal_values_has_a_minimum_height(tmp_path):
    # fitness 499 to 501 about 500: 10 % of the largest, 50.1, on both sides; weights 990 to 1010: 101 about 1000
    reporter = CsvReporter(tmp_path)
    reporter.start(a_run())
    for number, (fitness, parameters) in enumerate([(499, 990), (501, 1010)], 1):
        member = a_member(fitness=fitness, parameters=parameters, hyperparameters={"lr": 10.0**-number})
        reporter.generation(a_generation(member, number=number, target=None))
    fitness, lr, size, *_ = figure(tmp_path).axes
    assert fitness.get_ylim() == pytest.approx((449.9, 550.1))
    assert size.get_ylim() == pytest.approx((899, 1101))
    assert lr.get_ylim() == pytest.approx((0.0055, 0.1045))  # 0.01 to 0.1 and a margin of 5 %


def test_title_and_console_break_ties_alike(tmp_path):
    folder = tmp_path / "equals"
    reporter = CsvReporter(folder)
    reporter.start(a_run())
    old, young = a_member(uid=0, fitness=500.0), a_member(slot=1, uid=5, fitness=500.0)
    for number in (1, 2):
        reporter.generation(a_generation(old, young, number=number))
    assert fittest([old, young]).uid == 0
    assert figure(folder).get_suptitle() == "equals: best fitness 500.0, member 0 in generation 2"


def test_best_so_far_and_target_are_plotted(run_dir):
    lines = {line.get_label(): np.asarray(line.get_ydata()).tolist() for line in figure(run_dir).axes[0].lines}
    assert lines["best so far, confirmed"] == [10, 20, 30]
    assert lines["target 200.0"] == [200, 200]


def test_png_has_the_documented_size(run_dir):
    path = plot_run(run_dir)
    assert path == run_dir / "evolution.png"
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = (int.from_bytes(content[i : i + 4], "big") for i in (16, 20))
    assert (width, height) == (12 * 130, round(6.4 * 130))  # inches times dots an inch; one row of small panels
    assert plot_run(run_dir, run_dir / "other.png").read_bytes()[:4] == b"\x89PNG"


def test_plotting_leaves_no_global_state(run_dir):
    before = "matplotlib.pyplot" in sys.modules  # torch's compiler may have loaded it
    figure(run_dir)
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_diverged_population_can_be_plotted(tmp_path):
    reporter = CsvReporter(tmp_path)
    reporter.start(a_run())
    reporter.generation(a_generation(a_member(fitness=math.nan), target=None))
    assert plot_run(tmp_path).stat().st_size > 0


@pytest.fixture
def three_runs(tmp_path):
    """Runs whose best fitness so far is 10, 20, 60 after 100k env steps, and ten more after 200k."""
    for number, fitness in enumerate((10.0, 20.0, 60.0)):
        folder = tmp_path / f"seed{number}"
        reporter = CsvReporter(folder)
        reporter.start(a_run())
        for generation in (1, 2):
            member = a_member(fitness=fitness + 10 * (generation - 1))
            reporter.generation(a_generation(member, number=generation))
        (folder / "run.json").write_text(json.dumps({"env": "LunarLander-v3"}))
    return [tmp_path / f"seed{number}" for number in range(3)]


def test_several_runs_have_a_line_each_and_their_mean(three_runs):
    (axes,) = figure_of_runs(three_runs).axes
    lines = {line.get_label(): np.column_stack(line.get_data()).tolist() for line in axes.lines}
    assert lines["seed1"] == [[100_000, 20], [200_000, 30]]
    mean = lines["mean of 3 runs"]  # of three values no quarter is left out: 30, then 40
    assert (mean[0], mean[-1]) == ([100_000, pytest.approx(30)], [200_000, pytest.approx(40)])
    assert not axes.collections  # three runs have no interval
    (axes,) = figure_of_runs(three_runs * 2).axes
    (band,) = axes.collections
    low, high = band.get_datalim(axes.transData).intervaly
    assert 10 < low < 20 < 50 < high < 70
    assert axes.get_title(loc="left") == "LunarLander-v3"
    assert band.get_label() == "rough 95 % interval of the mean"


def test_runs_of_several_methods_have_a_colour_and_a_mean_by_method(three_runs):
    (axes,) = figure_of_runs(three_runs, methods=["lr 1", "lr 2", "lr 1"]).axes
    _, labels = axes.get_legend_handles_labels()
    assert sorted(labels) == ["lr 1: mean of 2 runs", "lr 2"]
    colours = [line.get_color() for line in axes.lines]
    assert colours == ["C0", "C1", "C0", "C0"]
    assert axes.lines[-1].get_ydata()[-1] == 45  # of 20 and 70


def test_names_of_runs_are_in_the_legend_as_they_are(three_runs):
    folders = [folder.rename(folder.with_name(name)) for folder, name in zip(three_runs, ("_old", "$a$"), strict=False)]
    (axes,) = figure_of_runs(folders).axes
    texts = axes.get_legend().get_texts()
    assert [text.get_text().strip() for text in texts][:2] == ["_old", "$a$"]
    assert not any(text.get_parse_math() for text in texts)


def test_runs_without_common_steps_have_no_mean(tmp_path):
    for name, steps in (("short", 100_000), ("long", 200_000)):
        reporter = CsvReporter(tmp_path / name)
        reporter.start(a_run())
        reporter.generation(a_generation(a_member(), env_steps=steps))
    (axes,) = figure_of_runs([tmp_path / "short", tmp_path / "long"]).axes
    assert [line.get_label() for line in axes.lines] == ["short", "long"]
    assert not axes.collections


def test_more_than_ten_runs_have_no_names(three_runs):
    (axes,) = figure_of_runs(three_runs * 4).axes
    _, labels = axes.get_legend_handles_labels()
    assert sorted(labels) == ["95 % interval of the mean", "a run", "interquartile mean of 12 runs"]
    assert len(axes.lines) == 13


@pytest.mark.parametrize(("name", "begins"), [("a.png", b"\x89PNG"), ("a.pdf", b"%PDF"), ("a.svg", b"<?xml")])
def test_formats_for_papers(three_runs, tmp_path, name, begins):
    assert plot_runs(three_runs, tmp_path / name).read_bytes().startswith(begins)
    assert plot_run(three_runs[0], tmp_path / f"one-{name}").read_bytes().startswith(begins)


def test_other_formats_and_runs_of_several_envs_are_refused(three_runs, tmp_path):
    with pytest.raises(ConfigurationError, match=r"file='a.jpg'; allowed is a name that ends in .png, .pdf, .svg"):
        plot_runs(three_runs, "a.jpg")
    (three_runs[1] / "config.yaml").write_text("training:\n  fitness: info.angle\n")
    with pytest.raises(ConfigurationError, match=r"have different fitness: info\.angle, return; allowed"):
        plot_runs(three_runs, tmp_path / "a.png")
    (three_runs[0] / "run.json").write_text(json.dumps({"env": "CartPole-v1"}))
    with pytest.raises(ConfigurationError, match="have different envs: CartPole-v1, LunarLander-v3; allowed"):
        plot_runs(three_runs, tmp_path / "a.png")


def test_a_run_of_an_older_version_is_plotted_without_what_it_lacks(run_dir):
    file = run_dir / "metrics.csv"
    head, *rows = csv.reader(file.read_text().splitlines())
    kept = [place for place, name in enumerate(head) if not name.startswith(("population/", "time/"))]
    file.write_text("".join(",".join(row[place] for place in kept) + "\n" for row in (head, *rows)))
    drawing = figure(run_dir)
    assert drawing.get_suptitle() == "lander: best fitness -, member 2 in generation 3"
    assert not [line for line in drawing.axes[0].lines if line.get_label().startswith("target")]


def test_folder_without_metrics_is_an_error(tmp_path):
    with pytest.raises(ConfigurationError, match=r"it is no folder of a run, which has config\.yaml and metrics\.csv"):
        figure(tmp_path)


def test_missing_matplotlib_names_the_extra(monkeypatch, run_dir):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'agilerl-like\[plot\]'"):
        figure(run_dir)
