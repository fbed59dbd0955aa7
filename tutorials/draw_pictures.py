"""Draws the pictures of concepts.md into `pictures/`: `python tutorials/draw_pictures.py [FOLDER]`."""

import sys
from pathlib import Path

BLUE, GREEN, ORANGE, RED, PURPLE, BROWN = "#2a6f97", "#3c887e", "#d98e04", "#d1495b", "#7b5ea7", "#8d6346"
DARK, GREY, LIGHT = "#1f2933", "#9aa5b1", "#e4e7eb"


def text(x, y, words, size=14, colour=DARK, anchor="start", weight="normal"):
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" text-anchor="{anchor}" font-weight="{weight}">'
        f"{words}</text>"
    )


def box(x, y, width, height, colour, words="", opacity=1.0, dash=""):
    label = text(x + width / 2, y + height / 2 + 5, words, anchor="middle", colour="#fff") if words else ""
    style = f' stroke="{GREY}" stroke-dasharray="{dash}" fill="none"' if dash else f' fill="{colour}"'
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" opacity="{opacity}"{style}/>{label}'


def line(x1, y1, x2, y2, colour=DARK, width=1.5, dash="", arrow=False):
    end = ' marker-end="url(#arrow)"' if arrow else ""
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{colour}" stroke-width="{width}"{dashes}{end}/>'
    )


def circle(x, y, radius, colour):
    return f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" fill="{colour}"/>'


def picture(width, height, title, *marks):
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'font-family="system-ui, sans-serif"><title>{title}</title>'
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0L8 4L0 8z" fill="{DARK}"/></marker></defs>'
        f'<rect width="{width}" height="{height}" fill="#fff" rx="8"/>{"".join(marks)}</svg>\n'
    )


def generations():
    """Three generations of four slots: which member is in a slot, and from which parent a clone comes."""
    colours = {0: BLUE, 1: GREEN, 2: ORANGE, 3: RED, 4: PURPLE, 5: BROWN, 6: DARK}
    slots = [[0, 0, 6], [1, 4, 4], [2, 2, 2], [3, 5, 5]]
    fitness = [[12, 30, 66], [5, 41, 70], [20, 33, 36], [9, 28, 44]]
    left, wide, gap, high, top = 70, 180, 60, 40, 62
    marks = [text(20, 28, "Each row is a slot. A member keeps its slot until it is replaced by a clone.", 15)]
    births = [(1, 1, 0, "lr × 1.2"), (1, 3, 2, "+16 nodes"), (2, 0, 1, "new lr")]
    for slot in range(4):
        y = top + slot * (high + 22)
        marks.append(text(16, y + 25, f"slot {slot}"))
        for generation in range(3):
            uid = slots[slot][generation]
            x = left + generation * (wide + gap)
            marks.append(box(x, y, wide, high, colours[uid], f"member {uid}"))
            marks.append(text(x + wide - 4, y + high + 15, f"fitness {fitness[slot][generation]}", 12, anchor="end"))
    for generation, slot, parent, change in births:
        x = left + generation * (wide + gap)
        y_from, y_to = top + parent * (high + 22) + high / 2, top + slot * (high + 22) + high / 2
        marks.append(line(x - gap + 2, y_from, x - 3, y_to, arrow=True))
        marks.append(text(x - gap / 2, (y_from + y_to) / 2 - 8, change, 12, anchor="middle"))
    for generation in range(3):
        x = left + generation * (wide + gap)
        marks.append(text(x + wide / 2, 322, f"generation {generation + 1}", anchor="middle", weight="bold"))
        marks.append(text(x + wide / 2, 340, "evo_steps env steps each", 12, anchor="middle"))
    for generation in (1, 2):
        x = left + generation * (wide + gap) - gap / 2
        marks.append(line(x, 52, x, 300, GREY, 1, "4 4"))
        marks.append(text(x, 362, "evaluate, select, mutate", 12, anchor="middle"))
    return picture(790, 376, "Three generations of a population of four members", *marks)


def selection():
    """Tournament selection of six members: members that are drawn survive, the others are replaced."""
    fitness = [55, 20, 80, 35, 62, 10]
    drawn = [2, 2, 4, 0, 2, 0]
    marks = [text(20, 28, "fitness of the generation, and how often each member was drawn as a parent", 15)]
    for slot, value in enumerate(fitness):
        x, times = 60 + slot * 110, drawn.count(slot)
        colour = BLUE if times else GREY
        marks.append(box(x, 150 - value, 60, value, colour))
        marks.append(text(x + 30, 143 - value, str(value), 13, anchor="middle"))
        marks.append(text(x + 30, 168, f"member {slot}", 13, anchor="middle"))
        marks.append(text(x + 30, 186, f"drawn {times}×" if times else "not drawn", 12, anchor="middle"))
    marks.append(text(20, 224, "the next generation", 15))
    children = {1: 2, 3: 2, 5: 0}
    for slot in range(6):
        x = 60 + slot * 110
        if slot in children:
            marks.append(box(x - 14, 240, 88, 34, ORANGE, f"clone of {children[slot]}"))
            marks.append(text(x + 30, 292, "is mutated", 12, anchor="middle"))
        else:
            marks.append(box(x - 14, 240, 88, 34, BLUE, f"member {slot}"))
            marks.append(text(x + 30, 292, "unchanged", 12, anchor="middle"))
    return picture(720, 310, "Tournament selection", *marks)


def network(x, y, hidden, new=-1):
    """Two inputs, a hidden layer, one output; the outgoing weight of the unit `new` is zero."""
    inputs, output = [(x, y + 40), (x, y + 110)], (x + 200, y + 75)
    units = [(x + 100, y + 150 * (n + 0.5) / hidden) for n in range(hidden)]
    marks = []
    for n, unit in enumerate(units):
        colour = ORANGE if n == new else GREY
        marks += [line(*source, *unit, colour=colour) for source in inputs]
        marks.append(line(*unit, *output, colour=colour, dash="3 4" if n == new else ""))
        if n == new:
            marks.append(text((unit[0] + output[0]) / 2 + 4, (unit[1] + output[1]) / 2 + 18, "0", 15, ORANGE))
    dots = [*inputs, output, *units]
    marks += [circle(*dot, 11, ORANGE if new >= 0 and dot == units[new] else BLUE) for dot in dots]
    return marks


def growth():
    """A layer that gains a unit: outputs stay equal, because the unit's outgoing weight starts at zero."""
    marks = [
        text(60, 28, "before", 15, weight="bold"),
        *network(60, 40, 3),
        text(340, 120, "add_node", 14, anchor="middle"),
        line(300, 132, 380, 132, arrow=True),
        text(430, 28, "after: the same outputs", 15, weight="bold"),
        *network(430, 40, 4, new=3),
        text(60, 220, "The new unit has fresh input weights; its output weight is zero until it has learned.", 13),
        text(60, 240, "Adam's moments of the other weights stay as they are.", 13),
    ]
    return picture(720, 258, "Growth of a layer leaves the outputs unchanged", *marks)


def cohort():
    """Weights of unequal members as one padded stack."""
    cell, sizes, colours = 16, [(4, 6), (6, 4), (5, 5)], [BLUE, GREEN, ORANGE]
    marks = [text(20, 28, "weights of three members of different widths", 15)]
    for n, ((rows, columns), colour) in enumerate(zip(sizes, colours, strict=True)):
        x = 40 + n * 130
        marks.append(text(x, 52, f"member {n}: {rows} × {columns}", 13))
        marks += [
            box(x + c * cell, 60 + r * cell, cell - 2, cell - 2, colour) for r in range(rows) for c in range(columns)
        ]
    marks.append(line(430, 110, 480, 110, arrow=True))
    for n, ((rows, columns), colour) in reversed([*enumerate(zip(sizes, colours, strict=True))]):
        x, y = 510 + n * 26, 90 - n * 22
        marks.append(box(x - 4, y - 4, 6 * cell + 6, 6 * cell + 6, "#fff"))
        for r in range(6):
            for c in range(6):
                inside = r < rows and c < columns
                marks.append(box(x + c * cell, y + r * cell, cell - 2, cell - 2, colour if inside else LIGHT))
    marks.append(text(510, 212, "one tensor [P, 6, 6]; grey: zeros", 13))
    marks.append(text(20, 212, "One batched matrix product serves all members. The zeros stay zeros.", 13))
    return picture(720, 230, "Members of different widths are one padded stack", *marks)


PICTURES = {"generations": generations, "selection": selection, "growth": growth, "cohort": cohort}

if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "pictures"
    for name, draw in PICTURES.items():
        (folder / f"{name}.svg").write_text(draw(), encoding="utf-8")
