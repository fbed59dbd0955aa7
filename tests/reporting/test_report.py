import json
import math
import re
import tracemalloc
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reporting_examples import a_birth, a_founder, a_generation, a_member, a_run, report_of

from agilerl_like.cli import demo, main
from agilerl_like.errors import ConfigurationError
from agilerl_like.reporting import CsvReporter, LineageReporter, charts
from agilerl_like.reporting.estimates import (
    Estimate,
    bootstrap,
    bootstrap_difference,
    interquartile_mean,
    operator_gains,
    pooled,
    pooled_by_method,
    probability_of_improvement,
)
from agilerl_like.reporting.report import PAGE, HtmlReporter, lineage_rows, report_html
from agilerl_like.reporting.run_history import RunHistory, read_history
from agilerl_like.reporting.vega_scripts import vega_scripts
from agilerl_like.storage import safe_folder

VOID = {"meta", "link", "br"}


class Checker(HTMLParser):
    """Collects the tags and the text of a page, and checks that its elements are nested."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.words = [], [], []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(self.words)


def write_run(folder, last=30.0):
    """Three generations: member 1 fails, and 2, a clone of 0 with another lr, takes its slot and ends as the best."""
    metrics, lineage = CsvReporter(folder), LineageReporter(folder)
    for reporter in (metrics, lineage):
        reporter.start(a_run())
    child = {"slot": 1, "uid": 2, "parent_uid": 0, "mutation": "lr"}
    lineage.offspring((a_founder(0), a_founder(1)))
    metrics.generation(a_generation(a_member(fitness=10.0), a_member(slot=1, uid=1, fitness=math.nan)))
    lineage.offspring((a_birth(),))
    metrics.generation(a_generation(a_member(fitness=20.0), a_member(fitness=15.0, **child), number=2))
    metrics.generation(a_generation(a_member(fitness=18.0), a_member(fitness=last, **child), number=3))
    return folder


@pytest.fixture
def run_dir(tmp_path):
    return write_run(tmp_path / "lander")


def without_scripts(page):
    """Return the page without Vega and the script that draws, and check that it has no other script."""
    for script in (f"(() => {{{vega_scripts()}}})();", (PAGE / "draw.js").read_text(encoding="utf-8")):
        script = f"<script>{script}</script>"
        assert page.count(script) == 1
        page = page.replace(script, "")
    types = [attributes.get("type") for tag, attributes in Checker(page).tags if tag == "script"]
    assert types == ["application/json"] * len(types)
    return page


def json_of(page):
    """Return the charts' specifications and the tables of a page."""
    found = re.findall(r'<script type="application/json" class="(\w*)">(.*?)</script>', page)
    return [json.loads(text) for name, text in found if not name], [json.loads(text) for name, text in found if name]


def test_report_is_one_file_that_loads_nothing(run_dir):
    path = report_of(run_dir)
    page = without_scripts(path.read_text(encoding="utf-8"))
    assert path == run_dir / "report.html"
    found = Checker(page)
    assert {tag for tag, _ in found.tags}.isdisjoint({"iframe", "img", "object"})
    assert [attributes for _, attributes in found.tags if "src" in attributes] == []
    assert {attributes["href"] for _, attributes in found.tags if "href" in attributes} == {"data:,"}
    assert not re.search(r"https?://|url\(|@import", page)
    assert "default-src 'none'" in page
    headings = (
        "Family tree|How the best agent came about|Fitness|Hyperparameters|Architecture|What each mutation brought"
    )
    for heading in (*headings.split("|"), "Time by part", "Provenance and configuration"):
        assert f"<h2>{heading}</h2>" in page


def test_charts_of_a_run_share_one_table(run_dir):
    specs, (table,) = json_of(report_of(run_dir).read_text(encoding="utf-8"))
    # a tree, a fan, two hyperparameters and the weights; gains and times have numbers of their own
    assert sum(spec["data"] == {"name": "rows"} for spec in specs) == 5
    assert len(specs) == 7
    birth = "clone of member 0: lr 1e-3 → 1.2e-3"
    assert table == {
        "generation": [1, 1, 2, 2, 3, 3],
        "member": [0, 1, 0, 2, 0, 2],
        "fitness": [10, None, 20, 15, 18, 30],
        "best": [10, 10, 20, 20, 30, 30],
        "line": [0, 1, 0, 1, 0, 1],
        "since": [None, None, 1, 1, 2, 2],
        "origin": [None, None, 0, 0, 0, 1],
        "kept": [1, 0, 1, 1, 1, 1],
        "lineage": [1, 0, 0, 1, 0, 1],
        "birth": ["", "", "", birth, "", ""],
        "weights": [12_345] * 6,
        "h0": [0.001] * 6,
        "h1": [64] * 6,
    }


def test_a_hyperparameter_that_a_schedule_changed_has_a_second_panel(tmp_path):
    metrics = CsvReporter(tmp_path)
    metrics.start(a_run())
    for number, factor in enumerate((1.0, 0.5), 1):
        member = a_member(fitness=10.0 * number, losses={"lr": 1e-3 * factor, "batch_size": 64.0})
        metrics.generation(a_generation(member, number=number))
    page = report_of(tmp_path).read_text(encoding="utf-8")
    specs, (table,) = json_of(page)
    assert (table["h0"], table["h1"], table["h2"]) == ([1e-3, 1e-3], [64, 64], [1e-3, 5e-4])
    assert "train/lr" in [spec["title"]["text"] for spec in specs if isinstance(spec.get("title"), dict)]
    assert "train/lr: what a schedule made of the values. In the best agent&#x27;s generation, 2: lr 5e-4" in page


def test_a_metric_with_the_name_of_a_hyperparameter_has_no_panel_of_a_schedule():
    row = {"hp/lr": 1e-3, "train/lr": 5e-4, "hp/sigma": 0.5, "train/sigma": 0.31}  # sigma of CMAES adapts
    assert RunHistory(Path(), [row]).scheduled == ["train/lr"]


def test_lineage_names_births_with_their_gain(run_dir):
    first, birth = lineage_rows(read_history(run_dir))
    assert first == ["1", "0", "initial member", "", "10.0", ""]
    assert birth == ["2", "2 ← 0", "lr 1e-3 → 1.2e-3", "10.0", "15.0", "+5.00"]


def test_a_lineage_that_begins_with_a_fresh_member_has_its_generation(run_dir):
    path = run_dir / "metrics.csv"
    text = path.read_text()
    assert "\n2,1,2,0," in text
    path.write_text(text.replace("\n2,1,2,0,", "\n2,1,2,-1,"))  # generation, slot, uid, parent_uid
    assert lineage_rows(read_history(run_dir)) == [["2", "2", "fresh member", "", "15.0", ""]]


def test_gains_by_operator(run_dir):
    assert operator_gains(read_history(run_dir)) == {"lr": [5.0]}


def test_members_keep_their_line_and_survivors_lead_to_the_end(run_dir):
    history = read_history(run_dir)
    assert charts.lines_of(history) == [0, 1, 0, 1, 0, 1]
    assert history.surviving == [True, False, True, True, True, True]
    assert history.before == [-1, -1, 0, 0, 2, 3]


HOSTILE = "</script><img src=x onerror=console.error(1)><!--<script>"


def write_hostile_run(folder):
    """A name of a run, a hyperparameter, its choices and mutations that would be elements if they were not escaped."""
    metrics, lineage = CsvReporter(folder), LineageReporter(folder)
    for reporter in (metrics, lineage):
        reporter.start(a_run())
    lineage.offspring((a_founder(0), a_founder(1)))
    members = [a_member(slot=n, uid=n, hyperparameters={HOSTILE: HOSTILE + str(n)}) for n in range(2)]
    metrics.generation(a_generation(*members))
    lineage.offspring((a_birth(mutations=({"kind": "architecture", "operator": HOSTILE, "details": {}},)),))
    child = a_member(slot=1, uid=2, parent_uid=0, mutation=HOSTILE, architecture=HOSTILE, fitness=200.0)
    metrics.generation(a_generation(members[0], replace(child, hyperparameters={HOSTILE: HOSTILE + "2"}), number=2))
    return folder


def test_names_are_escaped(tmp_path):
    folder = write_hostile_run(tmp_path / HOSTILE.replace("/", "_"))
    page = without_scripts(report_html([read_history(folder)]))
    assert Checker(page).tags.count(("img", {"src": "x", "onerror": "console.error(1)"})) == 0
    assert HOSTILE not in page
    specs, (table,) = json_of(page)
    assert table["h0"] == [HOSTILE + "0", HOSTILE + "1", HOSTILE + "0", HOSTILE + "2"]
    assert HOSTILE in [spec.get("title", {}).get("text") for spec in specs]


def test_runs_side_by_side_have_a_mean_if_their_env_is_equal(tmp_path):
    folders = [write_run(tmp_path / f"run{n}", last) for n, last in enumerate((30.0, 40.0, 50.0))]
    page = report_html([read_history(folder) for folder in folders])
    assert "Black: mean over the runs, up to" in page
    assert page.count("<details><summary><h2") == 3
    (folders[0] / "run.json").write_text('{"env": "Other-v0"}')
    histories = [read_history(folder) for folder in folders]
    curves = charts.comparison(histories)["layer"][0]["data"]["values"]
    assert curves[:3] == [
        {"run": "run0", "steps": 100_000 * n, "best": best} for n, best in ((1, 10), (2, 20), (3, 30))
    ]
    assert "have different envs" in report_html([read_history(folder) for folder in folders])


def test_the_mean_of_runs_steps_where_a_run_does(tmp_path):
    histories = [read_history(write_run(tmp_path / str(n), 30.0 + n)) for n in range(2)]
    assert pooled(histories).env_steps.tolist() == [100_000, 200_000, 300_000]
    assert pooled(histories, points=2).env_steps.tolist() == [100_000, 300_000]


def test_pooled_runs_end_with_the_interquartile_mean(tmp_path):
    histories = [read_history(write_run(tmp_path / str(n), 30.0 + 10 * n)) for n in range(5)]
    grid, estimates, num_runs = pooled(histories)
    assert (grid[0], grid[-1], num_runs) == (100_000, 300_000, 5)
    assert estimates[-1].value == 50.0  # of 30, 40, 50, 60, 70 without the lowest and the highest
    assert estimates[-1].low <= 50.0 <= estimates[-1].high


def test_compare_has_a_mean_where_all_runs_have_a_fitness_in_one_env(tmp_path, capsys):
    for name, ends, fitness in (("a", (100_000, 200_000), 10.0), ("b", (150_000, 200_000), 30.0)):
        reporter = CsvReporter(tmp_path / name)
        reporter.start(a_run())
        for number, env_steps in enumerate(ends, start=1):
            member = a_member(fitness=fitness + 10 * (number - 1))
            reporter.generation(a_generation(member, number=number, env_steps=env_steps))
        (tmp_path / name / "run.json").write_text(json.dumps({"env": "LunarLander-v3"}))
    folders = [str(tmp_path / name) for name in ("a", "b")]
    assert main(["compare", *folders]) == 0
    rows = [re.split(" {2,}", line.strip()) for line in capsys.readouterr().out.splitlines()]
    wanted = [
        ["run", "50k", "100k", "150k", "200k"],
        ["a", "-", "10.0", "10.0", "20.0"],
        ["b", "-", "-", "30.0", "40.0"],
        ["mean of 2 runs", "-", "-", "20.0", "30.0"],
    ]
    head = next(row for row in rows if "training steps" in row)
    assert {"evaluation steps", "training steps"} < {*head}
    begin = rows.index(wanted[0])
    assert rows[begin : begin + 4] == wanted
    (tmp_path / "b" / "run.json").write_text(json.dumps({"env": "CartPole-v1"}))
    assert main(["compare", *folders]) == 0
    out = capsys.readouterr().out
    assert "no mean over the runs, because they have different envs: CartPole-v1, LunarLander-v3" in out
    assert "interval" not in out


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"a": "info.angle", "b": "return"}, "they have different fitness: info.angle, return"),
        ({"a": "rating"}, "their fitness is a rating, which depends on the opponents of each run"),
    ],
)
def test_fitness_of_different_kinds_has_no_mean_and_no_difference(tmp_path, capsys, settings, reason):
    texts = {name: f"training:\n  fitness: {fitness}" for name, fitness in settings.items()}
    folders = [*write_methods(tmp_path, texts)]
    assert main(["compare", *map(str, folders)]) == 0
    out = capsys.readouterr().out
    assert f"no mean over the runs, because {reason}" in out
    assert "less" not in out
    page = report_html([read_history(folder) for folder in folders])
    assert f"No mean over the runs, because {reason}." in page


def write_methods(folder, settings):
    """Write a run for each seed 1, 2 of each method, whose settings are in `settings`; the second earns 30 more."""
    for number, (name, setting) in enumerate(settings.items()):
        for seed in (1, 2):
            run = write_run(folder / f"{name}-{seed}", 30.0 * (number + 1) + seed)
            (run / "config.yaml").write_text(f"{setting}\nseed: {seed}\nrun: {{name: {name}-{seed}}}\n")
            yield run


def test_compare_has_a_mean_for_each_method_and_their_difference(tmp_path, capsys):
    folders = [
        *write_methods(
            tmp_path,
            {
                "a": "evolution: auto\nselection: {name: tournament}",
                "b": "evolution: null\nselection: {name: tournament}",
            },
        )
    ]
    assert main(["compare", *map(str, folders)]) == 0
    rows = [re.split(" {2,}", line.strip()) for line in capsys.readouterr().out.splitlines()]
    last = {row[0]: row[-1] for row in rows}
    assert last["evolution auto: mean of 2 runs"] == "31.5"
    assert "selection tournament: rough 95 % interval" not in last
    assert ["evolution auto less selection tournament", "-30.0", "-", "0%"] in rows
    assert "mean of 4 runs" not in last
    assert main(["compare", str(folders[0]), str(folders[2])]) == 0
    out = capsys.readouterr().out
    assert "interval" not in out  # of one run each
    assert "without a mean, because of one run each: evolution auto; selection tournament" in out
    assert "equal training steps (up to 300k)" in out


def write_run_of_conditions(folder, **changes):
    """Write a run of two members, of which the second meets the conditions of all hyperparameters."""
    reporter = CsvReporter(folder)
    reporter.start(a_run())
    values = {"lr": 1e-3, "kl_threshold": 0.01, "target_kl": 0.02}
    second = a_member(slot=1, uid=1, fitness=50.0, hyperparameters=values)
    reporter.generation(a_generation(a_member(hyperparameters=values, **changes), second))
    return folder


def test_compare_leaves_out_hyperparameters_whose_condition_is_not_met(tmp_path, capsys):
    first = write_run_of_conditions(tmp_path / "a", inactive=["kl_threshold", "target_kl"])
    second = write_run_of_conditions(tmp_path / "b", inactive=["target_kl"])
    assert main(["compare", str(first), str(second)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    begin = rows.index(["best", "agent", "a", "b"])
    assert rows[begin + 1 : begin + 3] == [["lr", "1e-3", "1e-3"], ["kl_threshold", "-", "0.01"]]
    assert rows[begin + 3][0] == "architecture"


def test_what_a_demonstration_found_has_no_hyperparameter_whose_condition_is_not_met(tmp_path, capsys, monkeypatch):
    write_run_of_conditions(tmp_path / "demo", inactive=["kl_threshold"])
    monkeypatch.setattr(demo, "train_config", lambda config: 0)
    monkeypatch.setattr(demo, "train_initial_members", lambda run, **options: [10.0])
    assert main(["demo", "--dir", str(tmp_path)]) == 0
    found = "found            lr 1e-3, target_kl 0.02; architecture enc 64 | head 64 Tanh\n"
    assert found in capsys.readouterr().out


def test_compare_names_the_run_that_ends_the_comparison(tmp_path, capsys):
    for name, generations in (("short", 1), ("long", 2), ("longest", 3)):
        reporter = CsvReporter(tmp_path / name)
        reporter.start(a_run())
        for number in range(1, generations + 1):
            reporter.generation(a_generation(a_member(), number=number))
        outcome = "interrupted" if name == "short" else "budget spent"
        (tmp_path / name / "run.json").write_text(json.dumps({"env": "LunarLander-v3", "outcome": outcome}))
    assert main(["compare", *(str(tmp_path / name) for name in ("short", "long", "longest"))]) == 0
    expected = "(up to 100k, the end of short, interrupted; left out or resumed, it would be up to 200k)"
    assert f"best fitness so far at equal training steps {expected}\n" in capsys.readouterr().out


def test_runs_side_by_side_have_a_mean_for_each_method(tmp_path):
    histories = [read_history(run) for run in write_methods(tmp_path, {"a": "", "b": ""})]
    page = report_html(histories, ["A", "A", "B", "B"])
    assert "Thick lines: mean over the runs of a method" in page
    spec = charts.comparison(histories, pooled_by_method(histories, "AABB"), "AABB")
    curves, *means = spec["layer"]
    assert curves["encoding"]["color"]["scale"]["domain"] == ["A", "B"]
    assert [layer["data"]["values"][-1]["mean"] for layer in means] == [31.5, 61.5]


def test_a_first_value_is_above_a_second_one_with_a_probability():
    assert probability_of_improvement([1, 3], [2, 3]) == (0 + 0 + 1 + 0.5) / 4
    assert math.isnan(probability_of_improvement([], [1]))


def test_a_run_whose_records_cannot_be_read_ends_with_a_warning(tmp_path, run_dir, monkeypatch):
    monkeypatch.setattr(safe_folder, "MAX_TEXT_BYTES", 1000)
    with pytest.warns(UserWarning, match=r"the run has no report\.html: path='.*metrics\.csv' has .* at most 1000"):
        HtmlReporter(run_dir).finish(None)
    HtmlReporter(tmp_path).finish(None)  # no generation has ended
    assert not any(folder.joinpath("report.html").exists() for folder in (run_dir, tmp_path))


def test_the_fitness_of_a_run_is_that_of_its_section_training():
    texts = [
        "environment:\n  kwargs:\n    fitness: rating\ntraining:\n  max_steps: 100\n  fitness: info.angle\n",
        "environment:\n  kwargs:\n    fitness: rating\ntraining:\n  max_steps: 100\nmine:\n  fitness: rating\n",
    ]
    assert [RunHistory(Path("run"), [], config=text).fitness for text in texts] == ["info.angle", "return"]


def test_the_number_of_members_is_that_of_the_first_and_the_last_generation():
    rows = [{"generation": 1}, {"generation": 1}, {"generation": 2}]
    assert [RunHistory(Path("run"), its).sizes for its in (rows, rows[:2])] == ["2 to 1", "2"]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_interquartile_mean_is_the_mean_of_the_middle(values):
    ordered = sorted(values)
    cut = len(values) // 4
    middle = ordered[cut : len(values) - cut]
    assert interquartile_mean(np.array(values)) == pytest.approx(sum(middle) / len(middle), abs=1e-6)


def test_interval_holds_the_mean_and_narrows_with_more_values():
    rng = np.random.default_rng(1)
    few, many = bootstrap(rng.normal(3, 1, 10)), bootstrap(rng.normal(3, 1, 1000))
    assert few.low < few.value < few.high
    assert many.high - many.low < 0.2 < few.high - few.low
    assert bootstrap([])[-1] == 0


def test_an_interval_of_many_values_takes_little_memory():
    """All 2,000 resamples together would take 32 kB for each value; 5,000 values are drawn in three parts."""
    found = bootstrap(np.sin(np.arange(5000.0)), interquartile_mean)
    assert found[1:3] == pytest.approx((-0.03120687933963475, 0.03141682661648868), rel=1e-12)
    tracemalloc.start()
    try:
        bootstrap(np.arange(40_000.0))
        assert tracemalloc.get_traced_memory()[1] < 200e6
    finally:
        tracemalloc.stop()


def test_an_interval_needs_four_values_and_is_rough_below_eight():
    """Percentile intervals of normal values hold the mean in 50, 76, 88 and 93 % of cases for 2, 3, 4 and 8 values."""
    values = [1.0, 4.0, 2.0, 8.0, 5.0, 7.0, 3.0, 6.0]
    found = [bootstrap(values[:size]) for size in range(1, 9)]
    assert [math.isfinite(its.low) for its in found] == [False] * 3 + [True] * 5
    assert [its.is_rough for its in found] == [False] * 3 + [True] * 4 + [False]
    assert found[2].text(signed=True) == "+2.33"
    assert found[3].text().endswith("] rough")
    assert found[7].text().endswith("]")


@pytest.mark.parametrize("values", [[500.0, math.nan], [-math.inf, 1.0], [500.0, None]])
def test_values_of_failed_runs_are_refused(values):
    """Left out without an error, they would make the runs look better."""
    for call in (lambda: bootstrap(values), lambda: probability_of_improvement([1.0], values)):
        with pytest.raises(ConfigurationError, match="1 of them are not finite; allowed are finite numbers"):
            call()


def test_values_of_several_dimensions_and_statistics_of_the_whole_array_are_refused():
    """The episodes of a run are no independent runs; a statistic of all resamples has an interval of width 0."""
    with pytest.raises(ConfigurationError, match=r"values have the shape \(3, 100\); allowed is one number for each"):
        bootstrap(np.zeros((3, 100)))
    values = [1.0, 2.0, 3.0, 4.0]
    for call in (lambda: bootstrap(values, np.mean), lambda: bootstrap_difference(values, values, np.mean)):
        with pytest.raises(ConfigurationError, match=r"statistic returns the shape \(\) for .* reduces the last axis"):
            call()


def test_a_mean_of_runs_needs_the_value_of_each(tmp_path):
    histories = [read_history(write_run(tmp_path / str(n), 30.0 + 10 * n)) for n in range(2)]
    for row in histories[0].rows[:2]:
        row["population/best_ever"] = math.nan
    assert [math.isfinite(its.value) for its in pooled(histories, points=2).estimates] == [False, True]


def test_a_difference_needs_four_of_each_for_an_interval():
    found = bootstrap_difference([3.0, 5.0, 3.0, 5.0], [1.0] * 4, interquartile_mean)
    assert (found.value, found.num_values) == (3.0, 4)  # 4 less 1
    assert 2.0 <= found.low <= found.high <= 4.0
    one = bootstrap_difference([3.0], [1.0, 2.0], interquartile_mean)
    assert (one.value, one.num_values) == (1.5, 1)
    assert all(map(math.isnan, one[1:3]))
    assert math.isnan(bootstrap_difference([], [1.0, 2.0], interquartile_mean).value)


def axis_of(run_dir, values):
    run = read_history(run_dir)
    for row, value in zip(run.rows, values, strict=True):
        row["hp/lr"] = value
    return charts.schedule(run, "hp/lr", "h0", "lr")["encoding"]["y"]


def test_an_axis_of_magnitudes_is_logarithmic(run_dir):
    axis = axis_of(run_dir, [1e-5, 1e-4, 1e-3, 1e-2, 1e-2, 1e-2])
    assert axis["scale"] == {"type": "log", "domain": [1e-5, 1e-2], "nice": False}
    assert axis["axis"]["format"] == "~e"
    assert "type" not in axis_of(run_dir, [1, 2, 3, 4, 5, 20])["scale"]  # 20 times is not more than 20 times
    assert "type" not in axis_of(run_dir, [0, 2, 3, 4, 5, 2000])["scale"]


def test_an_axis_of_equal_values_is_wider_than_these(run_dir):
    assert axis_of(run_dir, [10.0] * 6)["scale"]["domain"] == [9, 11]
    assert axis_of(run_dir, [0.995] * 6)["scale"]["domain"] == pytest.approx([0.99, 1])
    assert axis_of(run_dir, [0.0] * 6)["scale"]["domain"] == [-0.1, 0.1]


@given(st.lists(st.floats(), min_size=1))
def test_axes_hold_all_values_that_can_be_drawn(values):
    run = RunHistory(Path("run"), [{"generation": 1, "parameters": value} for value in values])
    low, high = charts.schedule(run, "parameters", "weights", "weights")["encoding"]["y"]["scale"]["domain"]
    assert low < high
    assert all(low <= value <= high for value in values if abs(value) < charts.LARGEST)


def test_an_axis_of_generations_has_whole_numbers(run_dir):
    run = read_history(run_dir)
    assert charts.fitness_fan(run)["encoding"]["x"]["axis"]["values"] == [1, 2, 3]
    run.rows[-1]["generation"] = 48
    assert charts.fitness_fan(run)["encoding"]["x"]["axis"]["values"] == [*range(5, 49, 5)]


def test_choices_are_an_axis_of_their_names(run_dir):
    axis = axis_of(run_dir, ["b", 2, "b", "a", math.nan, 2])
    assert (axis["type"], axis["sort"]) == ("nominal", ["2", "a", "b"])
    run = read_history(run_dir)
    for row, value in zip(run.rows, ["b", 2, "b", "a", math.nan, 2], strict=True):
        row["hp/lr"] = value
    assert charts.table_of(run)["h0"] == ["b", "2", "b", "a", None, "2"]


def test_numbers_that_cannot_be_drawn_are_left_out():
    assert charts.numbers([math.nan, math.inf, -math.inf, 1e300, 1.23456789, 64]) == [None] * 4 + [1.23457, 64]


def test_colours_end_at_the_best_and_leave_out_the_worst_tenth():
    assert charts.fitness_range(np.array([-1e6, *range(1, 11), math.nan])) == (1, 10)
    assert charts.fitness_range(np.array([math.nan])) == (0, 1)


def test_intervals_reach_from_zero_to_all_ends():
    spec = charts.intervals({"a": Estimate(2, 1, 3, 5), "b": Estimate(-4, math.nan, math.nan, 1)})
    assert spec["data"]["values"][1] == {"name": "b", "value": -4, "low": None, "high": None}
    assert spec["encoding"]["x"]["scale"]["domain"] == [-4, 3]


def test_equal_names_of_runs_get_numbers():
    assert charts.distinct_names(["x", "x", "y"]) == ["x (1)", "x (2)", "y"]


class TestIncompleteFolders:
    def test_folder_that_is_no_run(self, tmp_path):
        with pytest.raises(ConfigurationError, match=r"has no metrics.csv: it is no folder of a run"):
            read_history(tmp_path)
        with pytest.raises(ConfigurationError, match="does not exist"):
            read_history(tmp_path / "missing")

    def test_run_without_records(self, tmp_path):
        (tmp_path / "config.yaml").write_text("seed: 1\n")
        with pytest.raises(ConfigurationError, match=r"has no metrics.csv: no generation of it has ended"):
            read_history(tmp_path)
        with pytest.raises(ConfigurationError, match="still in its first generation"):
            read_history(tmp_path, is_running=True)

    def test_running_run_is_drawn_with_a_note(self, run_dir):
        with (run_dir / "metrics.csv").open("a") as file:
            file.write("4,0,0")  # a row that is being written
        history = read_history(run_dir, is_running=True)
        page = report_html([history])
        assert history.outcome == "running"
        assert "The run is still running" in page
        assert len(history.generations) == 3

    def test_older_schema_is_drawn_without_what_it_lacks(self, run_dir):
        path = run_dir / "metrics.csv"
        lines = [line.split(",") for line in path.read_text().splitlines()]
        kept = [n for n, name in enumerate(lines[0]) if not name.startswith(("population/", "time/"))]
        path.write_text("".join(",".join(line[n] for n in kept) + "\n" for line in lines))
        (run_dir / "lineage.jsonl").write_text('{"uid": 1}\n')
        history = read_history(run_dir)
        page = report_html([history])
        Checker(page)
        assert "older schema without population/best_ever, population/target" in page
        assert "mutations are known by name only" in page
        assert lineage_rows(history)[-1][2] == "lr"  # the label of metrics.csv

    def test_deep_levels_of_the_run_document_are_left_out(self, run_dir):
        (run_dir / "run.json").write_text('{"deep": ["near", ' + "[" * 700 + "1" + "]" * 700 + "]}")
        assert "near, …" in report_of(run_dir).read_text(encoding="utf-8")

    def test_damaged_run_document_counts_as_missing(self, run_dir):
        for text in ("{", "[1]", "[" * 10_000, "\0"):
            (run_dir / "run.json").write_text(text)
            assert read_history(run_dir).document == {}
        (run_dir / "run.json").write_text(json.dumps({"outcome": "budget spent"}))
        assert read_history(run_dir).outcome == "budget spent"


def write_large_run(folder, size, generations):
    """Half of the members are replaced in each generation, by clones of the oldest one."""
    metrics = CsvReporter(folder)
    metrics.start(a_run())
    rng = np.random.default_rng(0)
    uids = list(range(size))
    for number in range(1, generations + 1):
        parents = [-1] * size
        if number > 1:
            for slot in rng.choice(size, size // 2, replace=False):
                parents[slot], uids[slot] = min(uids), max(uids) + 1
        members = [
            a_member(
                slot=n,
                uid=uids[n],
                parent_uid=parents[n],
                fitness=rng.normal(),
                hyperparameters=dict(zip("abcde", rng.random(5).tolist(), strict=True)),
            )
            for n in range(size)
        ]
        metrics.generation(a_generation(*members, number=number))
