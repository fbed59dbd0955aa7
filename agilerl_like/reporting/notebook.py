"""One output of a notebook cell that is replaced on every update, in the place of a terminal's live display."""

from __future__ import annotations

import io
import sys
import uuid
from typing import Any

from rich.console import Console, RenderableType

WIDTH, HEIGHT = 100, 60
"""Columns and lines of the output."""
HTML = '<pre style="line-height: 1.2; font-family: Menlo, Consolas, monospace">{code}</pre>'


def is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")  # a terminal's IPython has none


class NotebookDisplay:
    """Shows what a terminal's `rich.live.Live` would redraw in place; `IPython` has been imported by the kernel."""

    def __init__(self) -> None:
        self._id = uuid.uuid4().hex
        self._is_shown = False

    def start(self) -> None:
        """Do nothing: the output appears with its first content."""

    def update(self, content: RenderableType, *, refresh: bool = True) -> None:
        """Replace the output."""
        console = make_canvas(record=True)
        console.print(content)
        html = console.export_html(inline_styles=True, code_format=HTML, clear=False)
        data = {"text/html": html, "text/plain": console.export_text()}
        display: Any = sys.modules["IPython"].display.display
        display(data, raw=True, display_id=self._id, update=self._is_shown)
        self._is_shown = True

    def stop(self) -> None:
        """Keep the last content."""


def make_canvas(*, record: bool = False) -> Console:
    """Return a console that renders for the output and writes nowhere."""
    return Console(
        file=io.StringIO(),
        record=record,
        width=WIDTH,
        height=HEIGHT,
        force_terminal=True,
        force_jupyter=False,
        markup=False,
        emoji=False,
        color_system="standard",
        _environ={},
    )
