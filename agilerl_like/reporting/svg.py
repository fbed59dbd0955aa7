"""Charts as SVG text: axes, lines, bands and points, drawn without a plotting package and without a script.

Numbers are in pixels of the chart's own system, which a browser scales to the width of the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

import numpy as np

DARK, BLUE, GREY, RED = "#14213d", "#2a6f97", "#9aa5b1", "#d1495b"
RAMP = ("#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725")
"""Nine colours of the map viridis, from low to high."""
LOG_RANGE = 20.0
"""An axis of positive values that spans a larger factor is logarithmic."""
Format: TypeAlias = Callable[[float], str]
LARGEST = 1e100
"""Larger numbers are left out, because axis arithmetic would overflow."""


def text(x: float, y: float, label: str, *, anchor: str = "start", size: int = 11, colour: str = "#52606d") -> str:
    """Return a text."""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} font-size="{size}" fill="{colour}">{escape(label)}</text>'


def path(points: Iterable[Sequence[float]], *, colour: str, width: float = 1.0, extra: str = "") -> str:
    """Return a line through points; it has a gap at a point that is not finite."""
    parts, pen = [], "M"
    for x, y in points:
        if math.isfinite(x) and math.isfinite(y):
            parts.append(f"{pen}{x:.1f} {y:.1f}")
            pen = "L"
        else:
            pen = "M"
    data = "".join(parts)
    return f'<path d="{data}" fill="none" stroke="{colour}" stroke-width="{width}" {extra}/>' if data else ""


def segments(lines: Iterable[Sequence[float]], *, colour: str, width: float = 1.0, extra: str = "") -> str:
    """Return lines from (x0, y0) to (x1, y1), given as (x0, y0, x1, y1), as one element."""
    data = "".join(f"M{a:.1f} {b:.1f}L{c:.1f} {d:.1f}" for a, b, c, d in lines if math.isfinite(a + b + c + d))
    return f'<path d="{data}" fill="none" stroke="{colour}" stroke-width="{width}" {extra}/>' if data else ""


def dots(points: Iterable[Sequence[float]], *, colour: str, radius: float = 2.0, extra: str = "") -> str:
    """Return points as one element: lines of no length with round ends."""
    data = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in points if math.isfinite(x) and math.isfinite(y))
    style = f'stroke="{colour}" stroke-width="{2 * radius}" stroke-linecap="round"'
    return f'<path d="{data}" fill="none" {style} {extra}/>' if data else ""


def ramp_index(value: float, low: float, high: float) -> int:
    """Return the place in `RAMP` of a value between `low` and `high`; -1 if it is not finite."""
    if not math.isfinite(value):
        return -1
    share = (value - low) / (high - low) if high > low else 1.0
    return min(len(RAMP) - 1, max(0, int(share * len(RAMP))))


@dataclass(frozen=True)
class Scale:
    """One axis: from values to pixels."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    @classmethod
    def of(cls, values: np.ndarray, start: float, stop: float, *, may_be_log: bool = False) -> Scale:
        """Return the scale of all finite values, a little wider than these if they are equal."""
        finite = values[np.isfinite(values) & (np.abs(values) < LARGEST)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
        log = may_be_log and low > 1 / LARGEST and high / low > LOG_RANGE
        if not log and high - low <= 0.02 * max(abs(low), abs(high)):
            margin = 0.1 * (max(abs(low), abs(high)) or 1.0)
            if low >= 0.9 and high < 1:  # discounts differ in their distance from 1
                margin = min(margin, 1 - high)
            low, high = low - margin, high + margin
        return cls(low, high, start, stop, log)

    def __call__(self, value: float) -> float:
        """Return the pixel of a value; nan if it cannot be drawn."""
        if not abs(value) < LARGEST or (self.log and value <= 0):
            return math.nan
        low, high, value = (
            (math.log(x) for x in (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        )
        return self.start + (value - low) / (high - low) * (self.stop - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        """Return round values within the axis."""
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            digits = (1, 2, 5) if last - first < 3 else (1,)
            round_values = [n * 10.0**e for e in range(first, last + 1, max(1, (last - first) // most)) for n in digits]
            return [tick for tick in round_values if self.low <= tick <= self.high]
        rough = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * n for n in (1, 2, 5, 10) if power * n >= rough * 0.999)
        return [n * step for n in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]


@dataclass(frozen=True)
class Chart:
    """A chart of a fixed size with two axes."""

    width: int
    height: int
    x: Scale
    y: Scale

    @classmethod
    def of(
        cls, xs: np.ndarray, ys: np.ndarray, *, width: int = 720, height: int = 300, may_be_log: bool = False
    ) -> Chart:
        """Return the chart whose axes hold all values."""
        return cls(width, height, Scale.of(xs, 52, width - 12), Scale.of(ys, height - 32, 12, may_be_log=may_be_log))

    def points(self, xs: Iterable[float], ys: Iterable[float]) -> list[tuple[float, float]]:
        """Return values as pixels."""
        return [(self.x(x), self.y(y)) for x, y in zip(xs, ys, strict=True)]

    def band(self, xs: Sequence[float], low: Sequence[float], high: Sequence[float], *, colour: str) -> str:
        """Return the area between two lines."""
        upper, lower = self.points(xs, high), self.points(xs, low)
        whole = [p for pair in zip(upper, lower, strict=True) if np.isfinite(pair).all() for p in [pair]]
        if len(whole) < 2:
            return ""
        outline = [top for top, _ in whole] + [bottom for _, bottom in reversed(whole)]
        data = " ".join(f"{x:.1f},{y:.1f}" for x, y in outline)
        return f'<polygon points="{data}" fill="{colour}" fill-opacity="0.18"/>'

    def drawn(self, *marks: str, x_label: str, x_format: Format = str, y_format: Format = str, label: str = "") -> str:
        """Return the SVG with axes below the marks; `label` describes it to screen readers."""
        axes = []
        for tick in self.y.ticks():
            y = self.y(tick)
            axes.append(f'<path d="M{self.x.start} {y:.1f}H{self.x.stop}" stroke="#e4e7eb"/>')
            axes.append(text(self.x.start - 6, y + 4, y_format(tick), anchor="end"))
        for tick in self.x.ticks(max(3, self.width // 110)):
            axes.append(text(self.x(tick), self.y.start + 15, x_format(tick), anchor="middle"))
        axes.append(text(self.x.stop, self.height - 3, x_label, anchor="end"))
        return canvas(self.width, self.height, *axes, *marks, label=label)


def canvas(width: float, height: float, *marks: str, label: str = "") -> str:
    """Return an SVG element."""
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    return f'<svg {size} role="img" aria-label="{escape(label)}">{"".join(marks)}</svg>'
