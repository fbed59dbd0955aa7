"""`report.html` in a real browser: no error in its console, and readable on a screen and on a telephone."""

import json
from time import process_time

import pytest
from browser import PROGRAM, Browser
from reporting_examples import report_of
from test_report import HOSTILE, write_hostile_run, write_large_run, write_run

from agilerl_like.reporting.report import write_report
from agilerl_like.reporting.run_history import read_history

SMALLEST_TEXT = 9  # pixels of the font
SIZES = """
[...document.querySelectorAll("body *")].filter(its => its.checkVisibility() && [...its.childNodes].some(
    child => child.nodeType === Node.TEXT_NODE && child.textContent.trim())).map(
    its => [its.tagName, its.textContent.slice(0, 30), parseFloat(getComputedStyle(its).fontSize)])
"""
CUT_OFF = """
SCROLLS = ["auto", "scroll", "hidden"];
[...document.querySelectorAll("body *")].filter(its => {
    if (its.ownerSVGElement || its.getBoundingClientRect().right <= innerWidth + 1) return false;
    for (let outer = its; outer; outer = outer.parentElement)
        if (outer !== document.body && SCROLLS.includes(getComputedStyle(outer).overflowX)) return false;
    return true;
}).map(its => its.outerHTML.slice(0, 80))
"""


BLANK = """
[...document.querySelectorAll(".chart")].filter(its => its.checkVisibility()).filter(chart => {
    const canvas = chart.querySelector("canvas");
    if (!canvas) return true;
    const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", {willReadFrequently: true});
    copy.drawImage(canvas, 0, 0);
    return copy.getImageData(0, 0, canvas.width, canvas.height).data.every(value => value === 0);
}).length
"""
NEXT_FRAME = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))"
"""Observers and listeners of the window's size have been called when the second frame begins."""
WIDTHS = """
[...document.querySelectorAll(".chart")].filter(its => its.checkVisibility()).map(
    its => [its.clientWidth, its.querySelector("canvas").clientWidth])
"""


@pytest.fixture(scope="module")
def browser():
    if PROGRAM is None:
        pytest.skip("no Chromium or Chrome was found on the path")
    with Browser() as opened:
        yield opened


def draw_all(browser):
    browser.evaluate("drawAll().then(views => views.length)")


def check(browser, width, headings):
    assert browser.console == []
    inner, content = browser.evaluate("[innerWidth, document.documentElement.scrollWidth]")
    assert inner == width
    assert content <= width
    assert browser.evaluate(CUT_OFF) == []  # what is wider than the window can be scrolled
    assert browser.evaluate(BLANK) == 0
    # a canvas fills its place but for the menu beside it
    assert all(place - 60 < canvas <= place for place, canvas in browser.evaluate(WIDTHS))
    sizes = browser.evaluate(SIZES)
    assert len(sizes) > 30
    assert [found for found in sizes if found[2] < SMALLEST_TEXT] == []
    assert set(headings) <= {*browser.evaluate("[...document.querySelectorAll('h2')].map(its => its.textContent)")}


@pytest.mark.parametrize("width", [1280, 400])
class TestReport:
    def test_of_one_run(self, browser, tmp_path, width):
        folder = write_run(tmp_path / "lander")
        (folder / "run.json").write_text(json.dumps({"command": "/a/long/path" * 20, "versions": {"torch": "2.13.0"}}))
        (folder / "config.yaml").write_text("environment: {id: LunarLander-v3}\n")
        headings = ["Family tree", "Fitness", "Hyperparameters", "What each mutation brought", "Time by part"]
        browser.open(report_of(folder).as_uri(), width)
        draw_all(browser)
        check(browser, width, [*headings, "Provenance and configuration"])
        places = browser.evaluate(WIDTHS)
        assert len(places) == 7
        assert all(place <= width for place, _ in places)  # nothing is scrolled

    def test_of_several_runs(self, browser, tmp_path, width):
        folders = [write_run(tmp_path / f"run{n}", 30.0 + n) for n in range(3)]
        report = write_report([read_history(folder) for folder in folders], tmp_path / "all.html")
        browser.open(report.as_uri(), width)
        draw_all(browser)
        check(browser, width, ["Runs side by side"])
        assert browser.evaluate("document.querySelectorAll('canvas').length") == 1  # details are closed
        browser.evaluate("document.querySelector('body > details').open = true")
        draw_all(browser)
        assert browser.evaluate(BLANK) == 0
        assert browser.evaluate("document.querySelectorAll('canvas').length") == 8
        assert browser.console == []


def test_large_report_is_small_and_fast(browser, tmp_path):
    write_large_run(tmp_path / "large", size=64, generations=200)
    start = process_time()
    report = report_of(tmp_path / "large")
    assert process_time() - start < 5
    assert report.stat().st_size < 5_000_000
    browser.call("Performance.enable", timeDomain="threadTicks")
    browser.open(report.as_uri(), 1280)
    draw_all(browser)
    metrics = {its["name"]: its["value"] for its in browser.call("Performance.getMetrics")["metrics"]}
    assert metrics["TaskDuration"] < 5  # CPU-seconds of the page
    check(browser, 1280, ["Family tree"])
    browser.resize(400)  # charts follow the width of the window
    browser.evaluate(NEXT_FRAME)
    check(browser, 400, ["Family tree"])


def test_charts_are_drawn_when_they_come_near(browser, tmp_path):
    browser.open(report_of(write_run(tmp_path / "lander")).as_uri(), 1280, height=300)
    assert browser.evaluate("drawn.has(document.querySelectorAll('.chart')[6])") is False
    browser.evaluate(f"scrollTo(0, 9999), {NEXT_FRAME}")
    assert browser.evaluate("drawn.has(document.querySelectorAll('.chart')[6])") is True


def test_pointer_over_a_member_shows_its_fitness_and_birth(browser, tmp_path):
    browser.open(report_of(write_run(tmp_path / "lander")).as_uri(), 1280)
    draw_all(browser)
    # the place of member 2 in generation 2, line 1, from the scales of the tree's view
    x, y = browser.evaluate("""drawn.get(document.querySelector(".chart")).then(({view}) => {
        const box = view.container().querySelector("canvas").getBoundingClientRect(), [left, top] = view.origin();
        return [box.left + left + view.scale("x")(2), box.top + top + view.scale("y")(1)];
    })""")
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    shown = browser.evaluate("document.getElementById('vg-tooltip-element').innerText")
    assert " ".join(shown.split()) == "member 2 generation 2 fitness 15 birth clone of member 0: lr 1e-3 → 1.2e-3"


def test_hostile_names_are_text(browser, tmp_path):
    report = report_of(write_hostile_run(tmp_path / HOSTILE.replace("/", "_")))
    browser.open(report.as_uri(), 1280)
    draw_all(browser)
    assert browser.console == []  # an element <img src=x> would be a failed request
    assert browser.evaluate("document.images.length") == 0
    shown = browser.evaluate(
        "drawn.get(document.querySelectorAll('.chart')[2]).then(({view}) => view.scale('y').domain())"
    )
    assert shown == [HOSTILE + str(n) for n in range(3)]


def test_an_error_in_the_console_and_a_request_are_found(browser, tmp_path):
    page = tmp_path / "bad.html"
    page.write_text('<script>nothing.at.all</script><img src="http://127.0.0.1:9/a.png">')
    browser.open(page.as_uri(), 1280)
    assert any("nothing is not defined" in text for text in browser.console)
    assert "request of http://127.0.0.1:9/a.png" in browser.console


def test_text_that_is_cut_off_is_found(browser, tmp_path):
    page = tmp_path / "wide.html"
    page.write_text('<div style="width:2000px">wide</div>')
    browser.open(page.as_uri(), 400)
    assert len(browser.evaluate(CUT_OFF)) == 1
