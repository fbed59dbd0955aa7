"""`report.html` in a real browser: no error in its console, and readable on a screen and on a telephone."""

import json

import pytest
from browser import PROGRAM, Browser
from test_report import write_large_run, write_run

from agilerl_like.reporting.report import report_run, write_report
from agilerl_like.reporting.run_history import read_history

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium or Chrome was found on the path")
SMALLEST_TEXT = 9  # pixels of the font, after an SVG was scaled to its place
SIZES = """
[...document.querySelectorAll("body *")].filter(its => its.checkVisibility() && [...its.childNodes].some(
    child => child.nodeType === Node.TEXT_NODE && child.textContent.trim())).map(its => {
    const scale = its.ownerSVGElement ? its.getScreenCTM().a : 1;
    return [its.tagName, its.textContent.slice(0, 30), scale * parseFloat(getComputedStyle(its).fontSize)];
})
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


@pytest.fixture(scope="module")
def browser():
    with Browser() as opened:
        yield opened


def check(browser, report, width, headings):
    browser.open(report.as_uri(), width)
    assert browser.console == []
    inner, content = browser.evaluate("[innerWidth, document.documentElement.scrollWidth]")
    assert inner == width
    assert content <= width
    assert browser.evaluate(CUT_OFF) == []  # what is wider than the window can be scrolled
    sizes = browser.evaluate(SIZES)
    assert len(sizes) > 40
    assert [found for found in sizes if found[2] < SMALLEST_TEXT] == []
    assert set(headings) <= {*browser.evaluate("[...document.querySelectorAll('h2')].map(its => its.textContent)")}


@pytest.mark.parametrize("width", [1280, 400])
class TestReport:
    def test_of_one_run(self, browser, tmp_path, width):
        folder = write_run(tmp_path / "lander")
        (folder / "run.json").write_text(json.dumps({"command": "/a/long/path" * 20, "versions": {"torch": "2.13.0"}}))
        (folder / "config.yaml").write_text("environment: {id: LunarLander-v3}\n")
        headings = ["Family tree", "Fitness", "Hyperparameters", "What each mutation brought", "Time by part"]
        check(browser, report_run(folder), width, [*headings, "Provenance and configuration"])

    def test_of_several_runs(self, browser, tmp_path, width):
        folders = [write_run(tmp_path / f"run{n}", 30.0 + n) for n in range(3)]
        report = write_report([read_history(folder) for folder in folders], tmp_path / "all.html")
        check(browser, report, width, ["Runs side by side"])

    def test_of_many_members(self, browser, tmp_path, width):
        write_large_run(tmp_path / "large", size=32, generations=30)
        check(browser, report_run(tmp_path / "large"), width, ["Family tree"])


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
