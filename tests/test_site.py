"""The documentation site builds without warnings and without a network, and its API reference has every public name."""

import gc
import importlib
import pkgutil
import re
import zlib
from html import unescape
from importlib.util import find_spec
from pathlib import Path

import pytest
from forked_ranks import run_forked

import agilerl_like

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "tutorials"
NOT_DOCUMENTED = {"agilerl_like.agilerl"}
"""AgileRL's module paths: `coming_from_agilerl.md` has what they adapt."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("sphinx") is None, reason="the site is built with the extra `docs`"),
]


def build(*options):
    """Build the site. Its nodes form cycles, and live until the end: collecting garbage takes a fifth of the time."""
    from sphinx.cmd.build import main

    gc.disable()
    return main(["-q", "-W", "--keep-going", "-b", "html", str(PAGES), *map(str, options)])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    nowhere = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")  # nothing answers there
    done = run_forked(build, folder / "html", "-d", folder / "doctrees", folder=folder, **nowhere)
    assert done.returncode == 0, done.stderr[-5000:]  # -W: a broken internal link is an error
    return folder / "html"


def public_packages():
    found = [agilerl_like.__name__]
    for module in pkgutil.iter_modules(agilerl_like.__path__, "agilerl_like."):
        if module.ispkg and module.name not in NOT_DOCUMENTED:
            found.append(module.name)
    return [name for name in found if getattr(importlib.import_module(name), "__all__", None)]


def test_the_api_reference_has_every_public_name(site):
    _, _, _, _, packed = (site / "objects.inv").read_bytes().split(b"\n", 4)
    described = {line.split(" ")[0] for line in zlib.decompress(packed).decode().splitlines() if " py:" in line}
    packages = public_packages()
    assert len(packages) >= 10
    objects = {id(getattr(importlib.import_module(p), n)) for p, _, n in (d.rpartition(".") for d in described)
               if p in packages and hasattr(importlib.import_module(p), n)}  # fmt: skip
    public = [(package, name) for package in packages for name in importlib.import_module(package).__all__]
    missing = [
        f"{package}.{name}"
        for package, name in public
        if f"{package}.{name}" not in described and id(getattr(importlib.import_module(package), name)) not in objects
    ]
    assert missing == []


def test_every_public_class_and_function_has_a_docstring():
    for package in public_packages():
        for name in importlib.import_module(package).__all__:
            own = getattr(importlib.import_module(package), name)
            if callable(own) and hasattr(own, "__name__"):
                assert own.__doc__, f"{package}.{name}"


def test_settings_have_a_default_and_a_description(site):
    page = (site / "settings.html").read_text(encoding="utf-8")
    rows = re.findall(r"<tr.*?</tr>", page, re.DOTALL)
    cells = [[unescape(re.sub(r"<[^>]+>", "", cell)).strip() for cell in re.findall(r"<td>(.*?)</td>", row, re.DOTALL)]
             for row in rows]  # fmt: skip
    settings = {row[0]: row for row in cells if row}
    assert settings["lr"][1:3] == ["0.0001", "> 0"]
    assert settings["action_std_init"][1:3] == ["0.0", "≥ -20, ≤ 2"]
    assert [name for name, row in settings.items() if not row[3]] == []


def test_options_of_commands_are_named_as_they_are_typed(site):
    page = (site / "commands.html").read_text(encoding="utf-8")
    typed = {unescape(name) for name in re.findall(r'<span class="pre">(--[\w-]+|[A-Z]+)</span>', page)}
    assert {"RUN", "--from", "--json", "--num-envs", "--max-steps", "--print-config", "--trust"} <= typed


def test_no_page_loads_anything_from_elsewhere(site):
    for page in site.glob("**/*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe|link)[^>]*?(?:src|href)=\"(https?:[^\"]*)", text)
        assert loaded == [], page.name


def test_every_page_is_in_the_table_of_contents(site):
    index = (site / "index.html").read_text(encoding="utf-8")
    for page in [*PAGES.glob("*.md"), *PAGES.glob("*.ipynb")]:
        assert page.stem == "index" or f'href="{page.stem}.html"' in index, page.name
