import json
import math
import re
from html.parser import HTMLParser
from time import process_time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reporting_examples import a_birth, a_founder, a_generation, a_member, a_run

from agilerl_like.errors import ConfigurationError
from agilerl_like.reporting import CsvReporter, LineageReporter
from agilerl_like.reporting.estimates import bootstrap, interquartile_mean, operator_gains, pooled
from agilerl_like.reporting.family_tree import lines_of
from agilerl_like.reporting.report import lineage_rows, report_html, report_run
from agilerl_like.reporting.run_history import read_history
from agilerl_like.reporting.svg import RAMP, Scale, ramp_index

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


def test_report_is_one_file_without_scripts_and_addresses(run_dir):
    path = report_run(run_dir)
    page = path.read_text(encoding="utf-8")
    assert path == run_dir / "report.html"
    found = Checker(page)
    assert {tag for tag, _ in found.tags}.isdisjoint({"script", "iframe", "img", "object"})
    assert {attributes["href"] for _, attributes in found.tags if "href" in attributes} == {"data:,"}
    assert not re.search(r"https?://|url\(|@import", page)
    headings = (
        "Family tree|How the best agent came about|Fitness|Hyperparameters|Architecture|What each mutation brought"
    )
    for heading in (*headings.split("|"), "Time by part", "Provenance and configuration"):
        assert f"<h2>{heading}</h2>" in page
    assert "clone of member 0: lr 1e-3 → 1.2e-3" in found.text


def test_lineage_names_births_with_their_gain(run_dir):
    first, birth = lineage_rows(read_history(run_dir))
    assert first == ["1", "0", "initial member", "", "10.0", ""]
    assert birth == ["2", "2 ← 0", "lr 1e-3 → 1.2e-3", "10.0", "15.0", "+5.00"]


def test_gains_by_operator(run_dir):
    assert operator_gains(read_history(run_dir)) == {"lr": [5.0]}


def test_members_keep_their_line_and_survivors_lead_to_the_end(run_dir):
    history = read_history(run_dir)
    assert lines_of(history) == [0, 1, 0, 1, 0, 1]
    assert history.surviving == [True, False, True, True, True, True]
    assert history.before == [-1, -1, 0, 0, 2, 3]


def test_names_are_escaped(tmp_path):
    page = report_html([read_history(write_run(tmp_path / "<script>alert(1)</script>".replace("/", "_")))])
    assert "<script" not in page
    Checker(page)


def test_runs_side_by_side_have_a_mean_if_their_env_is_equal(tmp_path):
    folders = [write_run(tmp_path / f"run{n}", last) for n, last in enumerate((30.0, 40.0, 50.0))]
    page = report_html([read_history(folder) for folder in folders])
    assert "Black: interquartile mean" in page
    assert page.count("<details><summary><h2") == 3
    (folders[0] / "run.json").write_text('{"env": "Other-v0"}')
    assert "have different envs" in report_html([read_history(folder) for folder in folders])


def test_pooled_runs_end_with_the_interquartile_mean(tmp_path):
    histories = [read_history(write_run(tmp_path / str(n), 30.0 + 10 * n)) for n in range(5)]
    grid, estimates = pooled(histories)
    assert (grid[0], grid[-1]) == (100_000, 300_000)
    assert estimates[-1].value == 50.0  # of 30, 40, 50, 60, 70 without the lowest and the highest
    assert estimates[-1].low <= 50.0 <= estimates[-1].high


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
    assert bootstrap([2.0, math.nan])[:1] == (2.0,)
    assert bootstrap([])[-1] == 0


@given(st.floats(-1e12, 1e12), st.floats(-1e12, 1e12), st.booleans())
def test_ticks_lie_on_the_axis(a, b, may_be_log):
    scale = Scale.of(np.array([a, b]), 50, 700, may_be_log=may_be_log)
    for tick in scale.ticks():
        assert 49.9 <= scale(tick) <= 700.1
    assert 50 <= scale(a) <= 700


def test_colours():
    assert [ramp_index(value, 0, 1) for value in (-5, 0, 0.5, 1, 7, math.nan)] == [0, 0, 4, len(RAMP) - 1, 8, -1]


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
                slot=n, uid=uids[n], parent_uid=parents[n], fitness=rng.normal(), hyperparameters={"lr": rng.random()}
            )
            for n in range(size)
        ]
        metrics.generation(a_generation(*members, number=number))


def test_large_run_is_small_and_fast(tmp_path):
    write_large_run(tmp_path / "large", size=64, generations=200)
    start = process_time()
    report = report_run(tmp_path / "large")
    assert process_time() - start < 5
    assert report.stat().st_size < 5_000_000
