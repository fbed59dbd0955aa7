"""Configuration of the documentation site: `make docs` builds `tutorials/` into `build/docs`, without a network.

Three things are generated from the code, so that they cannot differ from it: the tables of settings, the texts of the
commands, and the API reference, which has every name in `__all__` of every package.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser
from pydantic_core import PydanticUndefined
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective
from tyro.conf import Positional

from agilerl_like.yaml_writer import to_yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a checkout that is not installed is documented, too

project = "agilerl_like"
html_title = "agilerl_like"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown", ".ipynb": "notebook"}
exclude_patterns = ["_static"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_show_copyright = False
default_role = "code"
smartquotes = False  # "--run.name" keeps its hyphens
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
toc_object_entries = False
napoleon_numpy_docstring = False
napoleon_use_rtype = False
suppress_warnings = ["misc.highlighting_failure"]  # "…" stands for arguments that are left out


PACKAGES = (
    "agilerl_like",
    "agilerl_like.algorithms",
    "agilerl_like.training",
    "agilerl_like.hpo",
    "agilerl_like.envs",
    "agilerl_like.networks",
    "agilerl_like.modules",
    "agilerl_like.reporting",
    "agilerl_like.saved_runs",
    "agilerl_like.export",
    "agilerl_like.config",
    "agilerl_like.errors",
    "agilerl_like.registry",
)
"""Packages of the API reference; a name that several of them have is described in the first."""
FOREIGN = "str, BaseException, Sequence"
"""Base classes whose members are left out."""
INHERITING = ("agilerl_like", "agilerl_like.algorithms")
"""Packages whose classes are described with what they inherit; elsewhere the base class is on the same page."""


def public_names(package: str) -> list[str]:
    """Return the public names of a module: `__all__`, or without one what it defines without an underscore."""
    module = import_module(package)
    defined = (name for name, its in vars(module).items() if getattr(its, "__module__", None) == package)
    return sorted(getattr(module, "__all__", None) or (name for name in defined if not name.startswith("_")))


class PublicNames(SphinxDirective):
    """`{public-names} PACKAGE`: the docstring of every public name of a package; a name is described once."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        package = self.arguments[0]
        lines, elsewhere = [], []
        for name in public_names(package):
            own = getattr(import_module(package), name)
            first = next(
                p for p in PACKAGES if getattr(import_module(p), name, None) is own and name in public_names(p)
            )
            if first != package:
                elsewhere.append(f"{{py:obj}}`{first}.{name}`")
                continue
            if isinstance(own, type):
                kind = "autoexception" if issubclass(own, Exception) else "autoclass"
            else:
                kind = "autofunction" if callable(own) and hasattr(own, "__name__") else "autodata"
            options = [f"   :inherited-members: {FOREIGN}"] if package in INHERITING and kind == "autoclass" else []
            options += ["   :no-value:"] if kind == "autodata" else []
            settings = fields_of(own) if kind == "autoclass" else {}
            options += [f"   :exclude-members: {', '.join(settings)}"] if settings else []  # a table has them
            lines += [f"## {name}", "````{eval-rst}", f".. {kind}:: {package}.{name}", *options, "````", ""]
            lines += [*Settings.table(own), ""] if settings and package != "agilerl_like.config" else []
        also = f"Described elsewhere: {', '.join(elsewhere)}." if elsewhere else ""
        return self.parse_text_to_nodes("\n".join([*lines, also]), allow_section_headings=True)


def fields_of(section: Any) -> dict[str, Any]:
    """Return pydantic's fields of a section of the configuration."""
    return getattr(section, "__pydantic_fields__", {})


def description(section: type, name: str) -> str:
    """Return the docstring of a setting, from the class that defines it, in one line."""
    for owner in section.__mro__:
        if name in vars(owner).get("__annotations__", ()):
            documented = ModuleAnalyzer.for_module(owner.__module__).find_attr_docs()
            return " ".join(" ".join(documented.get((owner.__name__, name), ())).split()).replace("|", "\\|")
    return ""


def bounds(type_: Any) -> Iterator[str]:
    """Yield the bounds of a type or of the alternatives in it, as text."""
    if hasattr(type_, "__metadata__"):
        for found in type_.__metadata__:
            yield from bounds_of(found)
    for inner in get_args(type_):
        yield from bounds(inner)


def bounds_of(found: Any) -> Iterator[str]:
    """Yield the bounds in an annotation of pydantic or in a field, without those that stand for the largest number."""
    for inner in getattr(found, "metadata", ()):
        yield from bounds_of(inner)
    for name, sign in {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}.items():
        bound = getattr(found, name, None)
        if bound is not None and abs(bound) not in (1e38, 2**40):
            yield f"{sign} {bound:g}"


def allowed(field: Any) -> str:
    """Return the range, or the choices, of a setting as text."""
    if get_origin(field.annotation) is Literal:
        return ", ".join(map(str, get_args(field.annotation)))
    return ", ".join(dict.fromkeys([*bounds_of(field), *bounds(field.annotation)]))


def default_of(field: Any) -> str:
    """Return the default of a setting as YAML would have it."""
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required"
    if hasattr(value, "__pydantic_fields__"):
        return f"its own, `{type(value).__name__}`"
    value = value.value if isinstance(value, Enum) else value
    if value is None:
        return "`none`"
    if isinstance(value, str | bool | int | float):
        return f"`{to_yaml(value).split()[0]}`" if value != "" else "empty"
    return "empty" if isinstance(value, tuple | Mapping) and not value else f"`{value}`"


class Settings(SphinxDirective):
    """`{settings} CLASS`: a table of the settings in a class of `agilerl_like.config`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        from agilerl_like import config

        return self.parse_text_to_nodes("\n".join(self.table(getattr(config, self.arguments[0]))))

    @staticmethod
    def table(section: type) -> list[str]:
        """Return the table as Markdown."""
        rows = [
            f"| `{name}` | {default_of(field)} | {allowed(field)} | {description(section, name)} |"
            for name, field in fields_of(section).items()
        ]
        return ["| setting | default | allowed | |", "|---|---|---|---|", *rows]


class AlgorithmSettings(SphinxDirective):
    """`{algorithm-settings}`: a heading and a table for each registered algorithm."""

    def run(self) -> list[nodes.Node]:
        from agilerl_like.config.run_config import config_class
        from agilerl_like.registry import registered

        lines = []
        for name in registered("algorithm"):
            section = config_class(name).model_fields["algorithm"].annotation
            lines += [f"### algorithm: {name}", "", *Settings.table(section), ""]
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


class ForeignSettings(SphinxDirective):
    """`{foreign-settings}`: other libraries' names for settings, from the table behind the errors."""

    def run(self) -> list[nodes.Node]:
        from agilerl_like.errors import FOREIGN_SETTINGS

        names: dict[Any, list[str]] = {}
        for name, known in FOREIGN_SETTINGS.items():
            names.setdefault(known, []).append(f"`{name}`")
        rows = [f"| {', '.join(own)} | `{known.setting}` | {known.conversion} |" for known, own in names.items()]
        return self.parse_text_to_nodes("\n".join(["| there | here | which |", "|---|---|---|", *rows]))


class Commands(SphinxDirective):
    """`{commands}`: every command with its docstring."""

    def run(self) -> list[nodes.Node]:
        from agilerl_like.cli import COMMANDS

        lines = []
        for name, command in COMMANDS.items():
            text = (inspect.getdoc(command.documented) or "").partition("\nArgs:\n")[0]
            lines += [f"## {name}", "", text, "", *self.entries(command.documented), ""]
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)

    @staticmethod
    def entries(documented: Any) -> list[str]:
        """Return a line for each argument and option of a command, as they are typed."""
        arguments = (inspect.getdoc(documented) or "").partition("\nArgs:\n")[2]
        rows = re.split(r"\n(?=\S)", inspect.cleandoc(arguments))  # a further line of an entry is indented
        texts = dict(" ".join(row.split()).split(": ", 1) for row in rows if row)
        hints = get_type_hints(documented, include_extras=True)
        found = []
        for name, parameter in inspect.signature(documented).parameters.items():
            marks = getattr(hints[name], "__metadata__", ())
            option = next((mark.name for mark in marks if getattr(mark, "name", None) is not None), name)
            is_positional = parameter.kind is parameter.POSITIONAL_ONLY or get_args(Positional[Any])[1] in marks
            typed = name.upper() if is_positional else f"--{option.replace('_', '-')}"
            if option:  # that of the settings is empty
                found.append(f"- `{typed}`: {texts.get(name) or description(documented, name)}")
        return found


class NotebookParser(MystParser):
    """Reads a notebook as Markdown: its cells in order, without outputs."""

    supported = ("notebook",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        cells = (("".join(cell["source"]), cell["cell_type"]) for cell in json.loads(inputstring)["cells"])
        pages = [text if kind == "markdown" else f"```python\n{text}\n```" for text, kind in cells]
        super().parse("\n\n".join(pages), document)


COLON = "\ue000"
"""Stands for a colon while napoleon reads the docstring of an attribute: it takes what precedes one for a type."""


def escape_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Escape what reStructuredText would read as markup in a docstring, except in backticks."""
    for number, line in enumerate(lines):
        parts = re.split(r"(`[^`]*`)", line)
        parts[::2] = [re.sub(r"(\*|\||(?<=\w)_(?!\w))", r"\\\1", part) for part in parts[::2]]
        text = "".join(parts)
        lines[number] = text.replace(":", COLON) if what in ("attribute", "data", "property") else text


def restore_colons(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Put the colons back."""
    lines[:] = [line.replace(COLON, ":") for line in lines]


def unlink_folders(app: Sphinx, text: str, base: Path) -> str:
    """Return Markdown in which links to folders of the repository are plain text: a site has no listing of them."""

    def plain(found: re.Match[str]) -> str:
        return found[1] if (base / found[2]).is_dir() else found[0]

    return re.sub(r"\[([^\]]*)\]\(([\w./-]+)\)", plain, text)


def read_page(app: Sphinx, page: str, content: list[str]) -> None:
    """Prepare the source of a page."""
    content[0] = unlink_folders(app, content[0], Path(app.env.doc2path(page)).parent)


def read_included(app: Sphinx, path: Path, page: str, content: list[str]) -> None:
    """Prepare the source of an included file."""
    text = unlink_folders(app, content[0], (ROOT / "tutorials" / path).parent)
    content[0] = text.replace("](search.md)", "](benchmarks_search.md)")  # the site has a search page of its own


def setup(app: Sphinx) -> None:
    """Register what this file defines."""
    app.add_source_parser(NotebookParser)
    app.connect("autodoc-process-docstring", escape_docstring, priority=400)  # before napoleon
    app.connect("autodoc-process-docstring", restore_colons, priority=600)
    app.connect("source-read", read_page)
    app.connect("include-read", read_included)
    directives = {
        "public-names": PublicNames,
        "settings": Settings,
        "algorithm-settings": AlgorithmSettings,
        "foreign-settings": ForeignSettings,
        "commands": Commands,
    }
    for name, directive in directives.items():
        app.add_directive(name, directive)
