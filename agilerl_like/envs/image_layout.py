"""Which axis of an image has its channels. Worker processes, whose wrappers need it, import this without torch."""

from __future__ import annotations

from typing import Literal

Layout = Literal["first", "last", "ambiguous"]
MAX_COLOR_CHANNELS = 4
"""Of a picture on a screen: red, green, blue, alpha."""


def channel_layout(shape: tuple[int, ...]) -> Layout:
    """Return which axis of an image of three or four axes has the channels, as its shape shows.

    In a square image it is the one axis of another length; otherwise it is the first or last axis if that is the
    smallest, the last one only with at most four channels. Anything else is ambiguous.
    """
    first, *between, last = shape
    if len(shape) == 3 and len({*shape}) == 2 and between[0] > 1 and first != last:
        return "last" if first == between[0] else "first"
    if last < min(first, *between) and last <= MAX_COLOR_CHANNELS:
        return "last"
    return "first" if first < min(last, *between) else "ambiguous"
