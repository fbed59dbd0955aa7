import dataclasses
import io
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from reporting_examples import a_birth, a_founder, a_generation, a_member, a_run, a_summary
from rich.cells import cell_len
from rich.console import Console

import agilerl_like
from agilerl_like.reporting import CallbackList, ConsoleReporter, RunContext
from agilerl_like.reporting.members_table import members_table
from agilerl_like.reporting.notebook import make_canvas
from agilerl_like.reporting.summary import summary_facts


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class TerminalStream(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def a_console(*, terminal: bool, width: int = 120, height: int = 40, encoding: str = "utf-8") -> Console:
    stream = TerminalStream if terminal else io.TextIOWrapper
    file = stream(io.BytesIO(), encoding=encoding, newline="\n", write_through=True)
    environment = {"TERM": "xterm"}  # and no COLUMNS, NO_COLOR, … of the machine that runs the tests
    return Console(
        file=file, force_terminal=terminal, width=width, height=height, color_system=None, _environ=environment
    )


def written(console: Console) -> str:
    return console.file.buffer.getvalue().decode(console.encoding)


def table(record, previous, clones_of_best=None, *, width, height=100) -> list[str]:
    console = a_console(terminal=False, width=width)
    console.print(members_table(record, previous, clones_of_best or {}, width=width, height=height))
    return [line.rstrip() for line in written(console).splitlines()]


def two_members():
    old = a_member(slot=0, uid=0, fitness=90.0, mutation="None")
    new = a_member(
        slot=1, uid=2, parent_uid=0, fitness=120.0, mutation="lr", hyperparameters={"lr": 0.0012, "batch_size": 64}
    )
    return a_generation(old, new, number=2)


def test_members_with_other_hyperparameters_have_empty_cells():
    first = a_member(fitness=120.0, hyperparameters={"lr": 0.03})
    second = a_member(slot=1, uid=1, fitness=110.0, hyperparameters={"gamma": 0.9})
    header, *rows = table(a_generation(first, second), {}, width=200)
    assert header.index("lr") < header.index("gamma")
    assert [("0.03" in row, "0.9" in row) for row in rows] == [(True, False), (False, True)]


def eight_members(hyperparameters: int):
    names = ("lr", "ent_coef", "clip_coef", "batch_size", "learn_step", "update_epochs", "gae_lambda", "max_grad_norm")
    values = (3.2e-4, 1.2e-2, 0.204, 1024, 2048, 10, 0.9876, 0.512)
    chosen = dict(zip(names[:hyperparameters], values[:hyperparameters], strict=True))
    members = [
        a_member(
            slot=i,
            uid=100 + i,
            parent_uid=90 + i,
            fitness=-200.0 + 31.0 * i,
            hyperparameters=chosen,
            architecture="enc 64 | latent 64 | head 64 Tanh",
            mutation="encoder.add_node",
        )
        for i in range(8)
    ]
    return a_generation(*members, number=5)


def test_table_is_sorted_by_fitness_and_compares_offspring_with_parents():
    assert table(two_members(), {0: 100.0, 1: 50.0}, width=120) == [
        "slot  member  fitness     ±  change      lr  batch_size  weights  architecture           last mutation",
        "   1  2 ← 0     120.0  10.0   +20.0  1.2e-3          64    12.3k  enc 64 | head 64 Tanh  lr",
        "   0  0          90.0  10.0   -10.0    1e-3          64    12.3k  enc 64 | head 64 Tanh  -",
    ]


def test_a_fresh_member_has_no_parent_in_the_table():
    assert table(a_generation(a_member(uid=9), number=2), {0: 100.0}, width=120)[1].split()[:3] == ["0", "9", "100.0"]


def test_offspring_of_a_clone_of_the_best_agent_are_compared_with_that_agent_too():
    """Members 2 and 3 have taken their slots in one generation."""
    members = a_member(uid=2, parent_uid=0, fitness=195.0), a_member(slot=1, uid=3, parent_uid=2, fitness=190.0)
    first, second = table(a_generation(*members, number=3), {0: 90.0, 1: 50.0}, {2: 200.0}, width=120)[1:]
    assert first.split()[:6] == ["0", "2", "←", "0", "195.0", "10.0"]
    assert (first.split()[6], second.split()[6]) == ("-5.0", "-10.0")


def test_narrow_window_splits_the_table():
    assert table(two_members(), {0: 100.0, 1: 50.0}, width=50) == [
        "                                             batch",
        "slot  member  fitness     ±  change      lr   size",
        "   1  2 ← 0     120.0  10.0   +20.0  1.2e-3     64",
        "   0  0          90.0  10.0   -10.0    1e-3     64",
        "",
        "                                        last",
        "member  weights  architecture           mutation",
        "2 ← 0     12.3k  enc 64 | head 64 Tanh  lr",
        "0         12.3k  enc 64 | head 64 Tanh  -",
    ]


@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("hyperparameters", [4, 8])
def test_eight_members_fit_into_usual_windows(width, hyperparameters):
    record = eight_members(hyperparameters)
    lines = table(record, {100 + i: -220.0 for i in range(4)}, width=width)
    text = "\n".join(lines)
    assert max(map(cell_len, lines)) <= width
    assert "…" not in text
    for value in ("3.2e-4", "0.204", "1024", "2048", "0.9876", "0.512")[: 3 if hyperparameters == 4 else 6]:
        assert text.count(value) == 8
    assert text.count("enc 64 | latent 64 | head 64 Tanh") == 8
    assert text.count("encoder.add_node") == 8
    assert text.index("107") < text.index("106") < text.index("100")


def test_columns_and_members_that_do_not_fit_are_listed():
    lines = table(eight_members(8), {}, width=44, height=9)
    assert lines[-1].startswith("… ")
    assert "more members" in lines[-1]
    assert len(lines) <= 9
    lines = table(eight_members(8), {}, width=60)
    assert lines[-1] == "… not shown: gae_lambda, max_grad_norm"


def test_member_without_fitness_is_last_and_shows_nan():
    record = a_generation(a_member(fitness=math.nan, fitness_std=math.nan), a_member(slot=1, uid=1, fitness=-500.0))
    lines = table(record, {}, width=120)
    assert lines[1].split()[:4] == ["1", "1", "-500.0", "10.0"]
    assert lines[2].split()[:3] == ["0", "0", "nan"]


def test_one_plain_line_per_generation_without_a_terminal():
    console, clock = a_console(terminal=False, width=80), Clock()
    reporter = ConsoleReporter(console, clock=clock)
    reporter.start(a_run())
    reporter.progress(0)
    clock.now = 10.0
    reporter.generation(two_members())
    # 200k of 1M steps in 10 s: 800k more take 40 s.
    assert written(console).splitlines() == [
        "PPO on LunarLander-v3: 2 members with 16 envs each, 1M steps (500k each)  seed 7",
        "gen    2   200k/1M steps  9.88k/s  0:10  ETA  0:40  best   120.0  median   105.0  "
        "member 2: lr 1.2e-3, batch_size 64; enc 64 | head 64 Tanh",
    ]


def test_legend_of_architectures_is_printed_once():
    console = a_console(terminal=False, width=80)
    reporter = ConsoleReporter(console)
    reporter.start(a_run())
    member = a_member(hyperparameters={}, architecture="64 | 64 | 64 ReLU", legend="encoder | latent | head activation")
    for number in (1, 2):
        reporter.generation(a_generation(member, number=number))
    _, legend, *generations = written(console).splitlines()
    assert legend == "architectures: encoder | latent | head activation"
    assert [line.partition("member ")[2] for line in generations] == ["0: 64 | 64 | 64 ReLU"] * 2


def test_title_has_the_number_of_processes_if_above_one():
    console = a_console(terminal=False, width=80)
    ConsoleReporter(console).start(replace(a_run(), processes=3))
    assert written(console).strip() == (
        "PPO on LunarLander-v3: 2 members with 16 envs each on 3 processes, 1M steps (500k each)  seed 7"
    )


def test_the_head_has_the_hyperparameters_that_all_members_begin_with():
    equal = replace(a_run(), equal_start={"lr": 1e-4, "batch_size": 64})
    for run, generation, count in ((equal, 0, 1), (equal, 3, 0), (a_run(), 0, 0)):
        console = a_console(terminal=False, width=100)
        ConsoleReporter(console).on_run_begin(RunContext(run, generation=generation))
        line = "all members begin with lr 1e-4, batch_size 64; sample_hyperparameters=True draws them from their ranges"
        assert written(console).splitlines().count(line) == count


def test_the_head_has_the_env_steps_that_members_had_trained_for_before():
    trained = replace(a_run(), steps_before=40_000)
    for run, generation, count in ((trained, 0, 1), (trained, 3, 0), (a_run(), 0, 0)):
        console = a_console(terminal=False, width=100)
        ConsoleReporter(console).on_run_begin(RunContext(run, generation=generation))
        line = "members have trained 40k env steps before: they train on"
        assert written(console).splitlines().count(line) == count


@pytest.mark.parametrize("terminal", [False, True])
def test_the_summary_of_an_interrupted_run_ends_with_what_follows(terminal):
    for reason, count in (("interrupted", 1), ("budget spent", 0)):
        console = a_console(terminal=terminal, width=100)
        reporter = ConsoleReporter(console, after_interrupt="the script continues")
        reporter.start(a_run())
        reporter.finish(a_summary(reason=reason))
        assert written(console).splitlines()[-1:].count("the script continues") == count


def test_members_that_were_removed_are_reported():
    console = a_console(terminal=False)
    reporter = ConsoleReporter(console, clock=Clock())
    reporter.start(a_run())
    reporter.generation(two_members())
    reporter.generation(a_generation(a_member(slot=0, uid=2), number=3))
    lines = written(console).splitlines()
    assert lines[-2] == "1 of 2 members removed, the others train longer"
    assert lines[-1].startswith("gen    3")


def test_clones_of_the_best_agent_are_reported():
    console = a_console(terminal=False, width=100)
    reporter = ConsoleReporter(console, clock=Clock())
    reporter.start(a_run())
    reporter.offspring((a_birth(generation=5, parent_generation=3), a_birth()))
    assert written(console).splitlines()[-1] == (
        "generation 5, slot 1: a clone of the run's best agent (member 0 of generation 3), which is ahead of all"
    )


def test_a_clone_of_the_best_agent_is_compared_with_that_agent():
    """Its parent had earned 90 after the generation that it was cloned from."""
    console = a_console(terminal=True, width=100)
    reporter = ConsoleReporter(console, clock=Clock())
    reporter.start(a_run())
    others = [a_member(slot=1, uid=1, fitness=50.0) for _ in range(2)]
    reporter.generation(a_generation(a_member(fitness=200.0), others[0]))
    reporter.generation(a_generation(a_member(fitness=90.0), others[1], number=2))
    reporter.offspring((a_birth(generation=2, uid=2, parent_uid=0, parent_generation=1),))
    clone = a_member(slot=1, uid=2, parent_uid=0, fitness=195.0)
    reporter.generation(a_generation(a_member(fitness=80.0), clone, number=3))
    last = written(console).split("generation 3")[-1]
    assert re.search(r"2 ← 0 +195\.0 +10\.0 +-5\.0 ", last)
    reporter.generation(a_generation(a_member(fitness=80.0), replace(clone, fitness=210.0), number=4))
    assert re.search(r" 2 +210\.0 +10\.0 +\+15\.0 ", written(console).split("generation 4")[-1])
    reporter.close()


def test_progress_line_every_ten_seconds_without_a_terminal():
    console, clock = a_console(terminal=False), Clock()
    reporter = ConsoleReporter(console, clock=clock)
    reporter.start(a_run())
    for second in range(25):
        clock.now = float(second)
        reporter.progress(1000 * second)
    lines = written(console).splitlines()[1:]
    assert [line.split()[0] for line in lines] == ["10k/1M", "20k/1M"]
    assert "1k/s" in lines[0]
    # 990k steps at 1k a second
    assert lines[0].endswith("0:10  ETA 16:30")


def test_resumed_run_measures_speed_from_its_first_count():
    console, clock = a_console(terminal=False), Clock()
    reporter = ConsoleReporter(console, clock=clock)
    reporter.start(a_run())
    reporter.progress(800_000)
    clock.now = 20.0
    reporter.progress(810_000)
    # 10k in 20 s: 500 a second, 190k left
    assert written(console).splitlines()[1].split() == ["810k/1M", "steps", "500/s", "0:20", "ETA", "6:20"]


def simulate(durations, *, first_step=0, evaluation_share=0.3, each=4):
    """Run generations of 1,000 steps that take so many seconds; return generation, ETA and truth at each report."""
    console, clock = a_console(terminal=False), Clock()
    reporter = ConsoleReporter(console, clock=clock)
    total = first_step + 1000 * len(durations)
    reporter.start(a_run(max_env_steps=total, generation_env_steps=1000))
    ends = [sum(durations[: number + 1]) for number in range(len(durations))]
    found = []

    def report(number):
        found.append((number, reporter._remaining(reporter._run, clock.now), ends[-1] - clock.now))

    for number, seconds in enumerate(durations):
        begin = clock.now
        for update in range(1, each + 1):
            clock.now = begin + seconds * (1 - evaluation_share) * update / each
            reporter.progress(first_step + 1000 * number + 1000 * update // each)
            report(number)
        clock.now = begin + seconds
        reporter.generation(a_generation(a_member(), number=number + 1, env_steps=first_step + 1000 * (number + 1)))
        report(number + 1)
    return found


@pytest.mark.parametrize("evaluation_share", [0.0, 0.3, 0.7])
@pytest.mark.parametrize(
    ("durations", "first_step"),
    [
        ([60] * 8, 0),
        ([300] + [60] * 11, 0),  # compiled, and workers started, in the first generation
        ([60, 66, 54] * 4, 0),
        ([200] + [60] * 9, 5000),  # resumed
    ],
)
def test_remaining_time_is_within_a_fifth_after_the_second_generation(durations, first_step, evaluation_share):
    found = simulate(durations, first_step=first_step, evaluation_share=evaluation_share)
    later = [(eta, true) for number, eta, true in found if number >= 2]
    assert len(later) > 20
    for eta, true in later:
        assert abs(eta - true) <= max(0.2 * true, 0.2 * 60)  # of the last generation's end a fifth of a generation


@pytest.mark.parametrize("terminal", [False, True])
def test_what_callbacks_track_is_shown(terminal):
    console = a_console(terminal=terminal)
    reporter = ConsoleReporter(console)
    reporter.start(a_run())
    reporter.generation(replace(two_members(), tracked={"tokens": 12_345.678, "cost": 0.5}))
    reporter.close()
    assert "tokens 1.235e+04, cost 0.5" in written(console)


def test_progress_within_a_generation():
    """Generations of 300k steps of 1M: the fourth has 100k."""
    console, clock = a_console(terminal=False), Clock()
    reporter = ConsoleReporter(console, clock=clock)
    reporter.start(a_run(generation_env_steps=300_000))
    shown = []
    for steps in (30_000, 300_000, 450_000, 900_000, 950_000):
        if steps in (450_000, 950_000):
            reporter.generation(a_generation(a_member(), number=steps // 300_000, env_steps=steps // 300_000 * 300_000))
        clock.now += 10.0
        reporter.progress(steps)
        shown.append(written(console).splitlines()[-1].split("  ")[-1])
    assert shown == ["gen 1: 10%", "gen 1: evaluates", "gen 2: 50%", "gen 2: evaluates", "gen 4: 50%"]


def test_a_resumed_run_knows_its_generation():
    """Five generations of 120k steps came before, and others may follow with another evo_steps."""
    console, clock = a_console(terminal=True, width=80), Clock()
    reporter = ConsoleReporter(console, clock=clock)
    reporter.on_run_begin(RunContext(a_run(generation_env_steps=300_000), generation=5, env_steps=600_000))
    assert "gen 6: 0%" in written(console)
    clock.now = 1.0
    reporter.progress(750_000)
    assert "gen 6: 50%" in written(console)
    reporter.close()


@pytest.mark.parametrize("width", [80, 100, 140, 200])
@pytest.mark.parametrize("terminal", [True, False])
def test_every_line_fits_the_window(width, terminal):
    """Of a pipe only the title and the table are bound to the window: lines of logs are not broken."""
    console, clock = a_console(terminal=terminal, width=width), Clock()
    reporter = ConsoleReporter(console, clock=clock)
    reporter.start(a_run(max_env_steps=10_000_000_000, generation_env_steps=1_000_000))
    for number in (1, 2, 3):
        clock.now += 3600.0
        reporter.progress(number * 1_000_000 - 500_000)
        reporter.generation(dataclasses.replace(eight_members(8), generation=number, env_steps=number * 1_000_000))
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written(console))
    lines = [line for line in re.split(r"[\r\n]+", text) if terminal or not line.startswith("gen ")]
    assert max(map(cell_len, lines)) <= width
    assert ("gen 3: 50%" in text) or ("gen 2: 50%" in text)
    reporter.close()


class Notebook:
    """A module like IPython in a kernel; `shown` has the content of each output by its id."""

    def __init__(self):
        self.display, self.shown, self.calls = self, {}, 0

    def get_ipython(self):
        return type("Shell", (), {"kernel": object()})()

    def __getattr__(self, name):
        raise AttributeError(name)

    def show(self, data, *, raw, display_id, update):
        assert raw
        assert update == (display_id in self.shown)
        self.shown[display_id], self.calls = data, self.calls + 1


def test_a_notebook_has_one_output_that_is_replaced(monkeypatch, capsys):
    notebook = Notebook()
    notebook.display = type("Display", (), {"display": staticmethod(notebook.show)})
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    clock = Clock()
    reporter = ConsoleReporter(clock=clock)
    reporter.start(a_run(generation_env_steps=100_000))
    for number in range(1, 6):
        for steps in (25_000, 50_000, 100_000):
            clock.now += 0.6
            reporter.progress((number - 1) * 100_000 + steps)
        reporter.generation(dataclasses.replace(two_members(), generation=number, env_steps=number * 100_000))
        (data,) = notebook.shown.values()
        assert f"generation {number}" in data["text/plain"]
        assert data["text/plain"].count("enc 64 | head 64 Tanh") == 2
        assert data["text/html"].startswith("<pre")
        assert "\x1b" not in data["text/plain"] + data["text/html"]
    assert notebook.calls <= 1 + 5 + 9  # at most one a second, and one for each generation
    reporter.warning("a worker was restarted")
    reporter.finish(a_summary())
    reporter.close()
    (data,) = notebook.shown.values()
    assert "generation 5" in data["text/plain"]
    assert "ETA" not in data["text/plain"]
    printed = capsys.readouterr().out
    assert printed.splitlines()[0].startswith("PPO on LunarLander-v3")
    assert "warning: a worker was restarted\n\ntarget reached\n  best fitness" in printed
    assert "gen " not in printed.partition("lineage")[0]
    assert "\x1b" not in printed


def test_a_terminal_of_ipython_is_no_notebook(monkeypatch):
    shell = type("Shell", (), {})()
    monkeypatch.setitem(sys.modules, "IPython", type("Module", (), {"get_ipython": staticmethod(lambda: shell)}))
    assert not ConsoleReporter()._in_notebook


def test_terminal_is_redrawn_at_most_four_times_a_second():
    console, clock = a_console(terminal=True), Clock()
    reporter = ConsoleReporter(console, clock=clock)
    reporter.start(a_run())
    reporter.progress(1)
    before = len(written(console))
    clock.now = 0.1
    reporter.progress(2)
    assert len(written(console)) == before
    clock.now = 0.25
    reporter.progress(250_000)
    assert "25%" in written(console)[before:]
    reporter.close()


def test_terminal_keeps_last_table_and_summary_and_restores_the_cursor():
    console = a_console(terminal=True, width=100)
    reporter = ConsoleReporter(console, clock=Clock())
    reporter.start(a_run())
    reporter.generation(a_generation(a_member(), number=1))
    reporter.generation(two_members())
    drawn = written(console)
    assert "best 120.0   ever 120.0   target 200.0   ▁█" in drawn
    reporter.finish(a_summary())
    reporter.close()
    text = written(console)
    hide, show = "\x1b[?25l", "\x1b[?25h"
    assert text.count(hide) == text.count(show) == 1
    last = text[text.rindex("generation 2") :]
    assert last.index("2 ← 0") < last.index("target reached") < last.index("best fitness")
    assert "ever 120.0" not in last


def test_summary_has_fitness_genome_lineage_and_path(tmp_path):
    console = a_console(terminal=False, width=80)
    reporter = ConsoleReporter(console, clock=Clock())
    grown = a_birth(
        generation=12,
        uid=9,
        parent_uid=2,
        mutations=({"kind": "architecture", "operator": "encoder.add_node", "details": {"layer": 0, "nodes": 32}},),
        parent_fitness=-50.0,
    )
    same = a_birth(generation=13, uid=11, parent_uid=9, mutations=(), parent_fitness=150.0)
    reporter.finish(a_summary(ancestry=(a_founder(), a_birth(), grown, same), saved_to=tmp_path))
    assert written(console).splitlines() == [
        "",
        "target reached",
        "  best fitness    205.0 ± 2.0 (standard error) over 20 fresh episodes  (member 2, generation 1)",
        "  hyperparameters lr 1.2e-3, batch_size 64",
        "  architecture    enc 64 | head 64 Tanh  (12,345 weights)",
        "  lineage         gen   0  member 0                 initial member",
        "                  gen   1  member 2 ← 0   at 100.0  lr 1e-3 → 1.2e-3",
        "                  gen  12  member 9 ← 2   at -50.0  encoder.add_node (layer 0, nodes 32)",
        "                  gen  13  member 11 ← 9  at 150.0  copied unchanged",
        "  steps           200k of training, 4k of evaluation, 10k steps/s",
        "  time            0:20 · learn 60% · env 40%",
        f"  saved to        {tmp_path}",
    ]


def test_the_summary_has_what_a_schedule_made_of_a_hyperparameter():
    best = dataclasses.replace(a_summary().best, losses={"lr": 3e-4, "batch_size": 64.0, "value_loss": 0.5})
    assert summary_facts(a_summary(best=best))["hyperparameters"] == [
        "lr 1.2e-3, batch_size 64",
        "by a schedule, in generation 1: lr 3e-4 (factor 0.25)",
    ]
    assert summary_facts(a_summary())["hyperparameters"] == ["lr 1.2e-3, batch_size 64"]


def test_an_evaluation_within_the_error_of_the_confirmed_fitness_needs_no_note():
    console = a_console(terminal=False, width=100)
    reporter = ConsoleReporter(console, clock=Clock())
    reporter.start(a_run())
    reporter.generation(a_generation(a_member(fitness=206.9)))
    reporter.finish(a_summary())  # 205, with a standard error of 2
    assert "confirmed" not in written(console)


def test_the_best_agent_is_not_noted_as_unconfirmed_itself():
    """Its evaluation was lucky, and its fitness on fresh episodes is what the summary has."""
    console = a_console(terminal=False, width=100)
    reporter = ConsoleReporter(console, clock=Clock())
    reporter.start(a_run())
    reporter.generation(a_generation(a_member(uid=2, fitness=300.0), number=1))
    reporter.finish(a_summary())  # member 2 of generation 1
    assert "confirmed" not in written(console)


def test_after_an_interrupt_the_last_evaluation_has_played_no_fresh_episodes():
    console = a_console(terminal=False, width=100)
    reporter = ConsoleReporter(console, clock=Clock())
    reporter.start(a_run())
    for number, fitness in enumerate((205.0, 300.0), 1):
        reporter.generation(a_generation(a_member(uid=2, fitness=fitness), number=number))
    reporter.finish(a_summary(reason="interrupted"))
    assert "(300.0 of generation 2 has played no fresh episodes)" in written(console)


def test_the_error_of_the_best_fitness_is_the_standard_error_whatever_the_deviation():
    """Also where every episode has the same return, so that both are 0, and for a rating, where both are equal."""
    for deviation, error in ((0.0, 0.0), (2.0, 2.0), (10.0, 2.0)):
        best = dataclasses.replace(a_summary().best, fitness_std=deviation, standard_error=error)
        text = summary_facts(a_summary(best=best))["best fitness"][0]
        assert text.startswith(f"205.0 ± {error:.1f} (standard error) over 20 fresh episodes")
    best = dataclasses.replace(a_summary().best, standard_error=math.nan, episodes=5)
    assert summary_facts(a_summary(best=best))["best fitness"][0].startswith("205.0 over 5 episodes")


def test_the_summary_explains_an_evaluation_above_the_confirmed_fitness():
    console = a_console(terminal=False, width=80)
    reporter = ConsoleReporter(console, clock=Clock())
    reporter.start(a_run())
    for number, fitness in enumerate((100.0, 300.0, 200.0), 1):
        reporter.generation(a_generation(a_member(fitness=fitness), number=number))
    best = dataclasses.replace(a_summary().best, hyperparameters={})
    reporter.finish(a_summary(best=best, reason="max_seconds over"))
    lines = written(console).splitlines()
    assert "time limit reached" in lines
    assert lines[lines.index("time limit reached") + 2].strip() == (
        "(300.0 of generation 2 was not confirmed on fresh episodes)"
    )
    assert not [line for line in lines if "hyperparameters" in line]


def test_the_remaining_time_ends_at_the_time_limit():
    console, clock = a_console(terminal=False, width=80), Clock()
    reporter = ConsoleReporter(console, clock=clock)
    reporter.start(a_run(max_seconds=30.0))
    reporter.progress(0)
    clock.now = 10.0
    reporter.generation(dataclasses.replace(two_members(), seconds=12.0))
    assert "0:10  ETA  0:18" in written(console)


@pytest.mark.parametrize("terminal", [False, True])
def test_the_remaining_time_and_the_bar_end_at_max_updates(terminal):
    """Ten of 20 updates are made in two generations of 100k steps: the run ends after 400k of its million steps."""
    console, clock = a_console(terminal=terminal), Clock()
    reporter = ConsoleReporter(console, clock=clock)
    reporter.start(a_run(max_updates=20))
    reporter.progress(0)
    clock.now = 10.0
    reporter.progress(50_000)
    assert "0:10  ETA  -:--" in written(console)
    for number in (1, 2):
        clock.now = 20.0 * number
        reporter.generation(a_generation(a_member(), number=number, most_updates=5 * number))
    assert "0:40  ETA  0:40" in written(console)
    assert ("50%" in written(console)) == terminal


def test_a_lineage_may_begin_with_a_fresh_member():
    console = a_console(terminal=False)
    ConsoleReporter(console).finish(a_summary(ancestry=(a_birth(generation=7, uid=9, parent_uid=-1),)))
    (lineage,) = [line for line in written(console).splitlines() if "gen " in line]
    assert "gen   7  member 9 " in lineage
    assert "fresh member: lr 1e-3 → 1.2e-3" in lineage


def test_long_lineage_keeps_first_and_last_entries():
    console = a_console(terminal=False)
    births = [a_birth(generation=g, uid=g + 1, parent_uid=g) for g in range(1, 30)]
    ConsoleReporter(console).finish(a_summary(ancestry=(a_founder(), *births)))
    lineage = [line for line in written(console).splitlines() if "gen " in line or "…" in line]
    assert len(lineage) == 12
    assert "initial member" in lineage[0]
    assert "19 births more, in lineage.jsonl" in lineage[1]  # 30 in all, of which 1 + 10 are shown
    assert "gen  20" in lineage[2]
    assert "gen  29" in lineage[-1]


@pytest.mark.parametrize("force", [{"environ": {"FORCE_COLOR": "1", "TERM": "xterm"}}, {"terminal": True}])
def test_plain_lines_without_a_terminal_even_if_colour_is_forced(force):
    """ipykernel and CI services set FORCE_COLOR, which rich takes for a terminal."""
    file = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="\n", write_through=True)
    console = Console(file=file, width=100, force_terminal=force.get("terminal"), _environ=force.get("environ", {}))
    assert console.is_terminal
    reporter = ConsoleReporter(console, clock=Clock())
    reporter.start(a_run())
    reporter.generation(a_generation(a_member(), number=1))
    reporter.generation(two_members())
    reporter.finish(a_summary())
    assert [line.split()[:2] for line in written(console).splitlines() if line.startswith("gen ")] == [
        ["gen", "1"],
        ["gen", "2"],
    ]
    assert re.findall(r"\x1b\[[0-9;?]*[A-HJKSTfhl]", written(console)) == []  # moves and erasures


def test_verbose_false_prints_warnings_only():
    console = a_console(terminal=True)
    reporter = ConsoleReporter(console, verbose=False, clock=Clock())
    reporter.start(a_run())
    reporter.progress(100)
    reporter.generation(two_members())
    reporter.warning("something [odd]")
    reporter.offspring((a_birth(parent_generation=1), a_birth(reason="replaced: fitness is nan")))
    reporter.finish(a_summary())
    reporter.close()
    assert written(console) == ("warning: something [odd]\nwarning: generation 1, slot 1: replaced: fitness is nan\n")


def test_ascii_console_gets_ascii_arrows():
    console = a_console(terminal=True, encoding="ascii")
    reporter = ConsoleReporter(console, clock=Clock())
    reporter.start(a_run(env="Käse-v0"))
    reporter.generation(two_members())
    reporter.finish(a_summary())
    text = written(console)
    assert "PPO on K?se-v0" in text
    assert "lr 1e-3 -> 1.2e-3" in text
    assert "205.0 +- 2.0 (standard error) over 20 fresh episodes" in text


def test_console_is_dropped_if_it_cannot_write():
    class FullFile(io.StringIO):
        def write(self, text):
            raise OSError(28, "No space left on device")

    reporters = CallbackList([ConsoleReporter(Console(file=FullFile()))])
    reporters.on_run_begin(RunContext(a_run()))
    assert not [*reporters]


@pytest.mark.slow
def test_broken_pipe_does_not_end_the_process():
    code = (
        "from agilerl_like.reporting import ConsoleReporter\n"
        "import sys\n"
        "reporter = ConsoleReporter()\n"
        "reporter.warning('first'); sys.stdout.flush(); sys.stdin.readline()\n"
        "for _ in range(3): reporter.warning('without a reader'); sys.stdout.flush()\n"
        "print('trained on', file=sys.stderr)"
    )
    root = Path(agilerl_like.__file__).parents[1]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], cwd=root, text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "warning: first\n"
        process.stdout.close()
        process.stdout = None
        _, errors = process.communicate("\n")
    assert (process.returncode, errors) == (0, "trained on\n")


def test_summary_of_one_episode_has_no_deviation_and_no_claim_of_fresh_episodes():
    console = a_console(terminal=False)
    best = dataclasses.replace(a_summary().best, episodes=1, standard_error=math.nan)
    ConsoleReporter(console).finish(a_summary(best=best, ancestry=()))
    assert "  best fitness    205.0  (member 2, generation 1)\n" in written(console)
    assert "member 2 is an initial member" in written(console)


def test_names_of_the_user_are_neither_markup_nor_emoji():
    for console in (ConsoleReporter().console, make_canvas()):
        assert console.render_str("own:Robot: [red]").plain == "own:Robot: [red]"
