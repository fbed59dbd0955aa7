"""The console output of a run: a progress bar, a table of members that is redrawn in place, and a summary.

In a notebook the table is one output that is replaced. If the stream is neither (a log file, a pipe), it is plain
lines, one per generation. There is no refresh thread: the table is drawn when the run reports, which leaves the cores
to training and is safe with forked environment processes.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from typing import IO, NamedTuple

from rich.console import Console, ConsoleDimensions, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.segment import Segments
from rich.table import Table
from rich.text import Text

from agilerl_like.reporting import formatting
from agilerl_like.reporting.callback import Reporter, RunContext
from agilerl_like.reporting.members_table import members_table
from agilerl_like.reporting.metrics import population_metrics
from agilerl_like.reporting.notebook import NotebookDisplay, is_notebook, make_canvas
from agilerl_like.reporting.records import GenerationRecord, OffspringRecord, RunRecord, SummaryRecord, fittest
from agilerl_like.reporting.summary import summary_facts, summary_panel

_REDRAW_SECONDS, _NOTEBOOK_SECONDS = 0.25, 1.0
_LINE_SECONDS = 10.0
_RECENT = 5
"""Generations whose speed the remaining time is computed from."""
_SPARKS = 24
_ASCII = str.maketrans({"±": "+-", "→": "->", "←": "<-", "·": "|", "…": "..."})


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Stop printing where rich would exit the process: the run continues without a reader."""
        with contextlib.suppress(SystemExit):
            super().on_broken_pipe()


def is_terminal(stream: IO[str]) -> bool:
    """Return whether a stream is a terminal, not a file, a pipe or the output of a notebook."""
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # an object that only writes; a stream that was closed
        return False


class ConsoleReporter(Reporter):
    """Shows a run on a `rich` console; with `verbose=False` only warnings."""

    def __init__(
        self,
        console: Console | None = None,
        *,
        verbose: bool = True,
        clock: Callable[[], float] = time.monotonic,
        after_interrupt: str = "",
    ):
        """`after_interrupt` is the last line of the summary of a run that was interrupted."""
        # rich itself would print every line as a block of HTML in notebooks, and names of the user as markup
        self.console = _Console(force_jupyter=False, markup=False, emoji=False) if console is None else console
        self._in_notebook = console is None and is_notebook()
        self._canvas = make_canvas() if self._in_notebook else self.console
        self.verbose = verbose
        self._clock = clock
        self._after_interrupt = after_interrupt
        self._live: Live | NotebookDisplay | None = None
        self._run: RunRecord | None = None
        self._generations_before = self._steps_before = 0
        """What a resumed run had behind it when this process began."""
        self._clear()

    def _clear(self) -> None:
        self._record: GenerationRecord | None = None
        self._previous: dict[int, float] = {}
        self._clones_of_best: dict[int, float] = {}
        """The best agent's fitness in its generation, by the uid of its clone; nan if this process has not seen it."""
        self._tops: list[_Top] = []
        self._env_steps = 0
        self._rendered = _RenderedMembers(None, self._canvas.size, Segments([]))
        self._started = self._last_output = self._clock()
        self._first_count: _StepCount | None = None
        """The first count of this process, which is not 0 in a resumed run."""
        self._ends: list[_StepCount] = []

    def _count_steps(self, env_steps: int) -> None:
        self._first_count = self._first_count or _StepCount(self._clock(), env_steps)
        self._env_steps = env_steps

    @property
    def redraws(self) -> bool:
        """Whether the console is a terminal on which the cursor can be moved back.

        rich alone does not suffice: it takes `FORCE_COLOR`, which notebooks and CI services set, for a terminal.
        """
        console = self.console
        is_capable = console.is_terminal and not console.is_dumb_terminal and console.encoding.startswith("utf")
        return is_capable and is_terminal(console.file)

    def on_run_begin(self, run: RunContext) -> None:
        self._generations_before, self._steps_before = run.generation, run.env_steps
        super().on_run_begin(run)

    def start(self, run: RunRecord) -> None:
        """Print the title and start the live display."""
        self.close()
        self._run = run
        self._clear()
        if not self.verbose:
            return
        self._print(Text.assemble((_title(run), "bold"), (f"  seed {run.seed}", "dim")))
        if run.backend:
            self._print(Text(f"envs: {run.backend}", style="dim"))
        if run.layout:
            self._print(Text(run.layout, style="dim"))
        if run.run_dir is not None:
            self._print(Text(f"writes to {run.run_dir}", style="dim"))
        if run.equal_start and not self._generations_before:
            self._print(Text(_equal_start(run), style="dim"))
        if run.steps_before and not self._generations_before:
            count = formatting.count(run.steps_before)
            self._print(Text(f"members have trained {count} env steps before: they train on", style="dim"))
        if self.redraws or self._in_notebook:
            self._live = NotebookDisplay() if self._in_notebook else Live(console=self.console, auto_refresh=False)
            self._live.start()
            self._draw()

    def progress(self, env_steps: int) -> None:
        """Move the bar at most four times a second (in notebooks once); else print a line at most every ten seconds."""
        self._count_steps(env_steps)
        if not self.verbose or self._run is None:
            return
        waited = self._clock() - self._last_output
        if self._live is not None and waited >= (_NOTEBOOK_SECONDS if self._in_notebook else _REDRAW_SECONDS):
            self._draw()
        elif self._live is None and waited >= _LINE_SECONDS:
            self._last_output = self._clock()
            self._print(Text(f"         {self._pace(self._run)}  {self._generation(self._run)}".rstrip()))

    def generation(self, record: GenerationRecord) -> None:
        """Show the members, or the best one in one line; before the first generation the legend of architectures."""
        is_first, best = self._record is None, fittest(record.members)
        if self._record is not None:
            self._previous = {member.uid: member.fitness for member in self._record.members}
            self._report_removed(len(self._record.members), len(record.members))
        self._record = record
        self._count_steps(record.env_steps)
        self._ends.append(_StepCount(self._clock(), record.env_steps))
        self._tops.append(_Top(best.fitness, best.uid, record.generation))
        if not self.verbose or self._run is None:
            return
        if is_first and best.legend:
            self._print(Text(f"architectures: {best.legend}", style="dim"))
        if self._live is not None:
            self._draw()
        else:
            self._last_output = self._clock()
            self._print(Text(f"gen {record.generation:>4}  {self._pace(self._run)}  {_line(record)}"))

    def _report_removed(self, before: int, after: int) -> None:
        """Print that the selection has removed members, as otherwise only shorter tables would show it."""
        if self.verbose and after < before:
            self._print(Text(f"{before - after} of {before} members removed, the others train longer", style="dim"))

    def offspring(self, births: tuple[OffspringRecord, ...]) -> None:
        """Warn of members that had to be replaced, and print clones of the best agent; others appear in the table."""
        for birth in births:
            place = f"generation {birth.generation}, slot {birth.slot}"
            if birth.reason:
                self.warning(f"{place}: {birth.reason}")
            elif birth.parent_generation is not None:
                best = birth.parent_uid, birth.parent_generation
                known = (top.fitness for top in self._tops if (top.uid, top.generation) == best)
                self._clones_of_best[birth.uid] = next(known, math.nan)
                parent = f"member {birth.parent_uid} of generation {birth.parent_generation}"
                if self.verbose:
                    self._print(
                        Text(f"{place}: a clone of the run's best agent ({parent}), which is ahead of all", style="dim")
                    )

    def warning(self, text: str) -> None:
        """Print a warning above the live display."""
        self._print(Text.assemble(("warning: ", "bold yellow"), text))

    def finish(self, summary: SummaryRecord) -> None:
        """Leave the last table on the screen and print the summary."""
        if not self.verbose:
            return
        if self._live is not None:
            self._live.update(Group(self._members(), ""), refresh=True)
        self.close()
        if self.redraws:
            self.console.print(summary_panel(summary, self._unconfirmed(summary)))
        else:
            self._print(Text(f"\n{formatting.outcome(summary.reason)}"))
            for label, lines in summary_facts(summary, self._unconfirmed(summary)).items():
                for number, line in enumerate(lines):
                    self._print(Text(f"  {label if number == 0 else '':<16}{line}"))
        if summary.reason == "interrupted" and self._after_interrupt:
            self._print(Text(self._after_interrupt))

    def _unconfirmed(self, summary: SummaryRecord) -> str:
        """Return the best evaluation of another agent, if the best one's fresh episodes are below it by their error."""
        known, best = [top for top in self._tops if not math.isnan(top.fitness)], summary.best
        if self._record is None or not best.is_confirmed or not known:
            return ""
        top = max(known, key=lambda its: its.fitness)
        is_best = (top.uid, top.generation) == (best.uid, best.generation)
        if is_best or top.fitness <= best.fitness + best.standard_error:
            return ""
        printed, confirmed = formatting.returns([top.fitness, best.fitness])
        is_last = summary.reason == "interrupted" and top.generation == self._record.generation
        verdict = "has played no fresh episodes" if is_last else "was not confirmed on fresh episodes"
        return "" if printed == confirmed else f"{printed} of generation {top.generation} {verdict}"

    def close(self) -> None:
        """Stop the live display."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _print(self, text: Text) -> None:
        if self.redraws:
            self.console.print(text)
        else:
            self.console.print(Text(_encodable(text.plain, self.console.encoding)), soft_wrap=True)

    def _draw(self) -> None:
        if self._live is not None and self._run is not None:
            self._last_output = self._clock()
            shown = [self._members(), "", self._bar(self._run), self._best(self._run)]
            if self._record is not None and self._record.tracked:
                shown.append(Text(_tracked(self._record), style="dim", no_wrap=True, overflow="ellipsis"))
            self._live.update(Group(*shown), refresh=True)

    def _members(self) -> RenderableType:
        if self._record is None:
            return Text("training the first generation", style="dim")
        size = self._canvas.size
        if self._rendered.record is not self._record or self._rendered.size != size:
            title = Rule(f"generation {self._record.generation}", align="left", style="dim")
            table = members_table(
                self._record,
                self._previous,
                self._clones_of_best,
                width=size.width,
                height=size.height - 5 - bool(self._record.tracked),
            )
            self._rendered = _RenderedMembers(
                self._record, size, Segments(list(self._canvas.render(Group(title, table))))
            )
        return self._rendered.segments

    def _bar(self, run: RunRecord) -> RenderableType:
        grid = Table.grid(padding=(0, 2), expand=True)
        grid.add_column(justify="right", no_wrap=True)
        grid.add_column(ratio=1)
        grid.add_column(no_wrap=True, style="dim")
        expected = self._expected_steps(run)
        done = min(self._env_steps, expected)
        bar = ProgressBar(total=expected, completed=done, complete_style="cyan", finished_style="green")
        grid.add_row(f"{done / expected:.0%}", bar, self._pace(run))
        if generation := self._generation(run):
            grid.add_row("", Text(generation, style="dim"), "")
        return grid

    def _best(self, run: RunRecord) -> RenderableType:
        if self._record is None:
            goal = "" if run.target is None else f"target {formatting.fitness(run.target)}"
            return Text(goal, style="dim")
        record = self._record
        reached = record.target is not None and record.best.fitness >= record.target
        ever = formatting.fitness(record.best.fitness)
        text = Text.assemble("best ", (formatting.fitness(self._tops[-1].fitness), "bold green" if reached else "bold"))
        text.append(
            f"   ever {ever}" + ("" if record.target is None else f"   target {formatting.fitness(record.target)}")
        )
        return text.append(f"   {formatting.sparkline([top.fitness for top in self._tops], _SPARKS)}", style="cyan")

    def _expected_steps(self, run: RunRecord) -> float:
        """Return the env steps with which the run is expected to end; infinite if unknown.

        `max_updates` may end it long before `max_env_steps`, so the share of the updates that is spent predicts the
        number of generations.
        """
        if run.max_updates is None:
            return run.max_env_steps
        record = self._record
        if record is None or not record.most_updates:
            return math.inf
        generations = math.ceil(record.generation * run.max_updates / record.most_updates)
        return min(run.max_env_steps, record.env_steps * generations / record.generation)

    def _generation(self, run: RunRecord) -> str:
        """Return how far the current generation is; "" if its length is unknown."""
        length = run.generation_env_steps
        if not length:
            return ""
        ended, start = self._generations_before, self._steps_before
        if self._record is not None:
            ended, start = self._record.generation, self._record.env_steps
        left = min(length, run.max_env_steps - start)
        share = min(1.0, max(0, self._env_steps - start) / left) if left > 0 else 1.0
        phase = "evaluates" if share == 1.0 else f"{share:.0%}"
        return "" if left <= 0 else f"gen {ended + 1}: {phase}"

    def _pace(self, run: RunRecord) -> str:
        """Return steps, speed of the last generation, time and remaining time."""
        now = self._clock()
        speed = self._rate(now) if self._record is None else self._record.steps_per_second
        steps = f"{formatting.count(self._env_steps):>5}/{formatting.count(run.max_env_steps)} steps"
        eta = formatting.duration(self._remaining(run, now))
        return f"{steps}  {formatting.count(speed):>5}/s  {formatting.duration(now - self._started)}  ETA {eta:>5}"

    def _rate(self, now: float) -> float:
        """Return env steps per second of the last whole generations, or since the start before there is one.

        A generation includes its evaluation and evolution. The first is left out once there is another, because
        compilation, caches and workers make it slower.
        """
        first = self._first_count or _StepCount(self._started, 0)
        counts = [first, *self._ends] if self._ends else [first, _StepCount(now, self._env_steps)]
        begin, end = counts[1:][-1 - _RECENT :][0] if len(counts) > 2 else counts[0], counts[-1]
        return (end.env_steps - begin.env_steps) / (end.seconds - begin.seconds) if end.seconds > begin.seconds else 0.0

    def _remaining(self, run: RunRecord, now: float) -> float:
        """Return the remaining seconds, nan if unknown; the steps of a generation include its evaluation."""
        rate = self._rate(now)
        if rate <= 0:
            return math.nan
        expected = self._expected_steps(run)
        left = max(0, expected - self._env_steps) / rate
        if self._ends:
            end = self._ends[-1]
            left = max(left, max(0, expected - end.env_steps) / rate - (now - end.seconds))
        return left if run.max_seconds is None else min(left, max(0.0, run.max_seconds - self._run_seconds(now)))

    def _run_seconds(self, now: float) -> float:
        """Return the time since the start of the run, which a process that resumed it knows from its first record."""
        if self._record is None:
            return now - self._started
        return self._record.seconds + now - self._ends[-1].seconds


class _RenderedMembers(NamedTuple):
    """The rendered table of a generation, cached because its layout costs more than the rest of a redraw."""

    record: GenerationRecord | None
    size: ConsoleDimensions
    segments: Segments


class _Top(NamedTuple):
    """The highest fitness of a generation."""

    fitness: float
    uid: int
    generation: int


class _StepCount(NamedTuple):
    """The env steps of all members at a time of the clock."""

    seconds: float
    env_steps: int


def _title(run: RunRecord) -> str:
    members, envs = formatting.number_of(run.population_size, "member"), formatting.number_of(run.num_envs, "env")
    processes = f" on {run.processes} processes" if run.processes > 1 else ""
    steps = f"{formatting.count(run.max_env_steps)} steps"
    if run.population_size > 1:
        steps += f" ({formatting.count(run.max_env_steps / run.population_size)} each)"
    return f"{run.algorithm} on {run.env}: {members} with {envs} each{processes}, {steps}"


def _equal_start(run: RunRecord) -> str:
    values = ", ".join(f"{name} {formatting.hyperparameter(value)}" for name, value in run.equal_start.items())
    return f"all members begin with {values}; sample_hyperparameters=True draws them from their ranges"


def _line(record: GenerationRecord) -> str:
    best = fittest(record.members)
    fitness = formatting.returns([best.fitness, population_metrics(record)["population/median"]])
    top, median = (text or "nan" for text in fitness)
    values = ", ".join(f"{name} {formatting.hyperparameter(value)}" for name, value in best.hyperparameters.items())
    member = "; ".join(filter(None, (values, best.architecture)))
    return "  ".join(
        filter(None, (f"best {top:>7}  median {median:>7}  member {best.uid}: {member}", _tracked(record)))
    )


def _tracked(record: GenerationRecord) -> str:
    return ", ".join(f"{tag} {value:.4g}" for tag, value in record.tracked.items())


def _encodable(text: str, encoding: str) -> str:
    if encoding.startswith("utf"):
        return text
    plain = text.translate(_ASCII)
    return plain.encode(encoding, errors="replace").decode(encoding)
