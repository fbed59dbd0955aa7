import contextlib
import dataclasses
import errno
import json
import math
import os
import resource
import tracemalloc
from unittest.mock import Mock

import numpy as np
import pytest
from reporting_examples import a_birth, a_founder, a_generation, a_member, a_run

from agilerl_like.errors import CheckpointError, ConfigurationError
from agilerl_like.reporting import (
    CallbackList,
    CsvReporter,
    LineageReporter,
    Reporter,
    RunContext,
    UpdateRecord,
    UpdatesReporter,
    files,
    read_lineage,
    read_metrics,
    read_updates,
)
from agilerl_like.reporting.files import MAX_DAMAGED_LINES
from agilerl_like.reporting.metrics import scalars
from agilerl_like.reporting.run_history import split_arrays
from agilerl_like.storage import safe_folder


class Warnings(Reporter):
    def __init__(self):
        self.texts: list[str] = []

    def warning(self, text):
        self.texts.append(text)


RUN = RunContext(a_run())
HEADER = (
    "generation,slot,uid,parent_uid,env_steps,mutation,architecture,parameters,"
    "eval/mean_reward,eval/std_reward,eval/episodes,rollout/ep_rew_mean,hp/lr,hp/batch_size,train/value_loss,"
    "population/best,population/median,population/worst,population/best_ever,"
    "population/best_ever_standard_error,population/best_ever_uid,population/best_ever_generation,population/target,"
    "time/total_timesteps,time/evaluation_timesteps,time/time_elapsed,time/fps,time/env,time/learn\n"
)
FIRST = (
    "1,0,0,-1,50000,None,enc 64 | head 64 Tanh,12345,100.0,10.0,5,90.0,0.001,64,0.5,"
    "100.0,80.0,60.0,100.0,2.0,0,1,200.0,100000,2000,10.0,9876.0,4.0,6.0\n"
    '1,1,1,-1,50000,"lr,ent_coef",enc 64 | head 64 Tanh,12345,60.0,10.0,5,nan,0.001,64,0.5,'
    "100.0,80.0,60.0,100.0,2.0,0,1,200.0,100000,2000,10.0,9876.0,4.0,6.0\n"
)


def first_generation():
    second = a_member(slot=1, uid=1, fitness=60.0, train_return=math.nan, mutation="lr,ent_coef")
    return a_generation(a_member(), second)


def write(run_dir, *records):
    reporter = CsvReporter(run_dir)
    reporter.start(a_run())
    for record in records:
        reporter.generation(record)
    reporter.close()


def test_metrics_have_one_row_per_member_in_documented_order(tmp_path):
    write(tmp_path / "run", first_generation())
    assert (tmp_path / "run" / "metrics.csv").read_text() == HEADER + FIRST


def test_numpy_scalars_are_written_as_numbers(tmp_path):
    member = a_member(fitness=np.float64(100.0), hyperparameters={"lr": np.float64(0.001), "batch_size": np.int64(64)})
    write(tmp_path, a_generation(member))
    assert ",100.0,10.0,5,90.0,0.001,64,0.5," in (tmp_path / "metrics.csv").read_text()


def test_numbers_of_an_array_keep_all_their_digits(tmp_path):
    betas = (0.87654, 0.99996)
    record = a_generation(a_member(hyperparameters={"betas": betas, "sizes": [3, None]}))
    write(tmp_path, record)
    (row,) = rows = read_metrics(tmp_path)
    assert (row["hp/betas"], row["hp/sizes"]) == ("[0.87654, 0.99996]", "[3, none]")
    (row,), tags = split_arrays(rows), scalars(record)
    assert (row["hp/betas[0]"], row["hp/betas[1]"]) == betas
    assert (tags["member/0/hp/betas[0]"], tags["member/0/hp/betas[1]"]) == betas
    assert [tag for tag in tags if "/sizes" in tag] == ["member/0/hp/sizes[0]"]


def test_hyperparameters_whose_condition_is_not_met_are_left_out(tmp_path):
    values = {"lr": 1e-3, "gamma": 0.9, "betas": (0.9, 0.99)}
    record = a_generation(
        a_member(hyperparameters=values), a_member(slot=1, hyperparameters=values, inactive=["lr", "betas"])
    )
    write(tmp_path, record)
    first, second = read_metrics(tmp_path)
    assert (first["hp/lr"], second["hp/gamma"], second["hp/betas"]) == (1e-3, 0.9, pytest.approx(math.nan, nan_ok=True))
    assert math.isnan(second["hp/lr"])
    assert [tag for tag in scalars(record) if "hp/" in tag and tag.startswith("member/1")] == ["member/1/hp/gamma"]


def test_later_columns_are_added_on_the_right(tmp_path):
    later = a_generation(a_member(losses={"value_loss": 0.4, "approx_kl": 0.01}), number=2)
    write(tmp_path, first_generation(), later)
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert lines[0] == HEADER.rstrip() + ",train/approx_kl"
    assert lines[1:3] == [line + "," for line in FIRST.splitlines()]
    assert [row["train/approx_kl"] for row in read_metrics(tmp_path)][-1] == 0.01
    assert [row["train/value_loss"] for row in read_metrics(tmp_path)] == [0.5, 0.5, 0.4]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.csv"]


def test_resumed_run_replaces_metrics_after_its_checkpoint(tmp_path):
    write(tmp_path, first_generation(), a_generation(a_member(fitness=1.0), number=2))
    write(tmp_path, a_generation(a_member(fitness=2.0), number=2), a_generation(a_member(fitness=3.0), number=3))
    rows = read_metrics(tmp_path)
    assert {type(rows[0][name]) for name in ("generation", "slot", "uid", "env_steps")} == {int}
    assert [(row["generation"], row["eval/mean_reward"]) for row in rows] == [(1, 100), (1, 60), (2, 2), (3, 3)]


def test_partial_line_is_removed_on_resume(tmp_path):
    write(tmp_path, first_generation())
    path = tmp_path / "metrics.csv"
    path.write_text(path.read_text() + "2,0,0,-1,500")
    write(tmp_path, a_generation(a_member(), number=2))
    assert path.read_text().startswith(HEADER + FIRST + "2,0,0,-1,50000,None,")
    assert len(read_metrics(tmp_path)) == 3


def test_foreign_metrics_file_is_an_error_and_unchanged(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("epoch,loss\n1,2\n")
    with pytest.raises(ConfigurationError, match=r"metrics\.csv is in the way: it begins with epoch, loss"):
        write(tmp_path, first_generation())
    with pytest.raises(ConfigurationError, match=r"metrics\.csv is no metrics file"):
        read_metrics(tmp_path)
    assert path.read_text() == "epoch,loss\n1,2\n"


@contextlib.contextmanager
def a_disk_of(size):
    """Limit the size of files that this process writes: a write beyond it is partial."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def report(reporters, numbers):
    for number in numbers:
        reporters.on_generation(RUN, a_generation(a_member(), number=number))
        reporters.on_offspring(RUN, (a_birth(generation=number, uid=number),))


def test_records_of_a_full_disk_are_written_when_space_is_free_again(tmp_path):
    calls = Warnings()
    for folder in (tmp_path / "roomy", tmp_path / "full"):
        reporters = CallbackList([CsvReporter(folder), LineageReporter(folder), calls])
        reporters.on_run_begin(RUN)
        report(reporters, [1])
        sizes = [(folder / name).stat().st_size for name in ("metrics.csv", "lineage.jsonl")]
        with contextlib.nullcontext() if folder.name == "roomy" else a_disk_of(min(sizes) + 10):
            report(reporters, [2, 3])
            reporters.sync()
        if folder.name == "full":
            assert (folder / "metrics.csv").read_bytes()[:-1].count(
                b"\n"
            ) == 1  # the header and one row, or a part more
        report(reporters, [4])
        reporters.close()
    for name in ("metrics.csv", "lineage.jsonl"):
        assert (tmp_path / "full" / name).read_text() == (tmp_path / "roomy" / name).read_text()
    text = (
        "cannot write: [Errno 27] File too large. "
        "Its records stay in memory and are written when the disk accepts them."
    )
    assert calls.texts == [f"CsvReporter {text}", f"LineageReporter {text}"]


def test_rows_of_which_a_full_disk_took_a_part_are_written_once_beside_a_new_column(tmp_path):
    reporters = CallbackList([CsvReporter(tmp_path), Warnings()])
    reporters.on_run_begin(RUN)
    members = [a_member(), a_member(slot=1, uid=1)]
    reporters.on_generation(RUN, a_generation(*members, number=1))
    header, row, _ = (tmp_path / "metrics.csv").read_text().splitlines(keepends=True)
    with a_disk_of(len(header) + 3 * len(row) + 50):
        reporters.on_generation(RUN, a_generation(*members, number=2))
    RUN.track("x", 1.0)
    reporters.on_generation(RUN, a_generation(*members, number=3))
    written = [(row["generation"], row["slot"]) for row in read_metrics(tmp_path)]
    assert written == [(number, slot) for number in (1, 2, 3) for slot in (0, 1)]


def test_rows_of_a_disk_that_is_full_when_the_file_is_closed_are_written_once(tmp_path, monkeypatch):
    """NFS reports a full disk when a file is closed."""
    reporters = CallbackList([CsvReporter(tmp_path), Warnings()])
    reporters.on_run_begin(RUN)
    report(reporters, [1])
    close, errors = os.close, [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))]

    def closed(handle):
        is_metrics = os.path.samestat(os.fstat(handle), os.stat(tmp_path / "metrics.csv"))
        close(handle)
        if is_metrics and errors:
            raise errors.pop()

    monkeypatch.setattr(os, "close", closed)
    report(reporters, [2, 3])
    assert errors == []
    assert [row["generation"] for row in read_metrics(tmp_path)] == [1, 2, 3]


@pytest.mark.parametrize("sink", [CsvReporter, LineageReporter])
def test_link_or_pipe_in_place_of_a_file_is_an_error_and_its_target_unchanged(tmp_path, sink):
    target = tmp_path / "mine.txt"
    target.write_text("mine")
    reporter = sink(tmp_path / "run")
    (tmp_path / "run").mkdir()
    reporter.path.symlink_to(target)
    with pytest.raises(CheckpointError, match=rf"{reporter.path.name}' is a link to '.*mine\.txt'.*move it away"):
        reporter.start(a_run())
    assert target.read_text() == "mine"
    reporter.path.unlink()
    os.mkfifo(reporter.path)
    with pytest.raises(CheckpointError, match="is a folder, a FIFO or a device; allowed is a regular file"):
        reporter.start(a_run())


def test_a_replaced_file_leaves_those_of_the_user_beside_it(tmp_path):
    """Of what has the name of a temporary file, the files alone are removed: killed processes left them."""
    mine = ("metrics.csv.new", ".metrics.csv.new", ".metrics.csv.new-notes", f".updates.csv.new-{'0' * 32}")
    for name in mine:
        (tmp_path / name).write_text("mine")
    leftover, link = (tmp_path / f".metrics.csv.new-{digit * 32}" for digit in "01")
    leftover.write_text("generation,")
    link.symlink_to(tmp_path / mine[0])
    write(tmp_path, first_generation())
    assert [(tmp_path / name).read_text() for name in mine] == ["mine"] * len(mine)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["metrics.csv", link.name, *mine])


@pytest.mark.parametrize("damage", ["2,0,0,-1,5#", "\0" * 50, '2,"', "a" * 200_000, "2,0,0,x" + ",1" * 23])
def test_damaged_row_is_removed_with_one_warning_and_a_copy(tmp_path, damage):
    write(tmp_path, first_generation(), a_generation(a_member(), number=2))
    path = tmp_path / "metrics.csv"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:2], damage + "\n", *lines[2:]]))
    before = path.read_bytes()
    calls = Warnings()
    with pytest.raises(CheckpointError, match=r"metrics\.csv', line \d"):
        read_metrics(tmp_path)
    with contextlib.closing(CallbackList([CsvReporter(tmp_path), calls])) as reporters:
        reporters.on_run_begin(RUN)
        reporters.on_generation(RUN, a_generation(a_member(), number=3))
    assert [row["generation"] for row in read_metrics(tmp_path)] == [1, 1, 2, 3]
    (warning,) = calls.texts
    assert "metrics.csv': line 3 is damaged and removed; the file as it was is in metrics.csv.damaged" in warning
    assert (tmp_path / "metrics.csv.damaged").read_bytes() == before


def test_parsing_stops_after_a_thousand_damaged_rows(tmp_path, monkeypatch):
    write(tmp_path, first_generation())
    path = tmp_path / "metrics.csv"
    damaged = MAX_DAMAGED_LINES + 10
    path.write_text(path.read_text() + "\n" * damaged)
    before = path.read_bytes()
    rows = Mock(wraps=files._read_row)
    monkeypatch.setattr(files, "_read_row", rows)
    calls = Warnings()
    with contextlib.closing(CallbackList([CsvReporter(tmp_path), calls])) as reporters:
        reporters.on_run_begin(RUN)
        reporters.on_generation(RUN, a_generation(a_member(), number=2))
    assert rows.call_count == 2 + MAX_DAMAGED_LINES
    (warning,) = calls.texts
    # a head and two members stand before them
    assert f"lines 4, 5, 6, 7, 8 … {3 + MAX_DAMAGED_LINES} and all after it are damaged and removed" in warning
    assert (tmp_path / "metrics.csv.damaged").read_bytes() == before
    assert [row["generation"] for row in read_metrics(tmp_path)] == [1, 1, 2]


@pytest.mark.parametrize("tail", ["\0" * 4096, "2,0,0,-1,500" + "\0" * 100, "2,0,0"])
def test_bytes_behind_the_last_row_are_removed(tmp_path, tail):
    write(tmp_path, first_generation())
    path = tmp_path / "metrics.csv"
    path.write_text(path.read_text() + tail)
    assert len(read_metrics(tmp_path)) == 2
    write(tmp_path, a_generation(a_member(), number=2))
    assert path.read_text().startswith(HEADER + FIRST + "2,0,0,-1,50000,None,")
    assert len(read_metrics(tmp_path)) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.csv"]


DEEP = "[" * 100_000
"""Nested deeper than Python's parser allows."""


@pytest.mark.parametrize("damage", ["{", "[]", "3", '{"generation": 1}', "\0" * 50, DEEP])
def test_damaged_lineage_line_is_removed_with_one_warning(tmp_path, damage):
    reporter = LineageReporter(tmp_path)
    reporter.start(a_run())
    reporter.offspring((a_founder(),))
    path = tmp_path / "lineage.jsonl"
    whole = path.read_text()
    path.write_text(f"{damage}\n{whole}")
    calls = Warnings()
    with pytest.raises(CheckpointError, match=r"lineage\.jsonl', line 1"):
        read_lineage(tmp_path)
    with contextlib.closing(CallbackList([LineageReporter(tmp_path), calls])) as reporters:
        reporters.on_run_begin(RUN)
        reporters.on_offspring(RUN, (a_birth(generation=1, uid=9),))
    assert [birth.uid for birth in read_lineage(tmp_path)] == [0, 9]
    (warning,) = calls.texts
    assert "line 1 is damaged and removed" in warning


def test_lineage_has_one_line_per_offspring_and_null_for_nan(tmp_path):
    reporter = LineageReporter(tmp_path / "run")
    reporter.start(a_run())
    reporter.offspring((a_founder(),))
    reporter.offspring((a_birth(reason="replaced: fitness is nan"),))
    lines = (tmp_path / "run" / "lineage.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["parent_fitness"] is None
    assert json.loads(lines[1]) == {
        "generation": 1,
        "slot": 1,
        "uid": 2,
        "parent_uid": 0,
        "survives": False,
        "mutations": [{"kind": "rl_hp", "operator": "", "details": {"lr": [0.001, 0.0012]}}],
        "hyperparameters": {"lr": 0.0012, "batch_size": 64},
        "architecture": "enc 64 | head 64 Tanh",
        "parent_hyperparameters": {"lr": 0.001, "batch_size": 64},
        "parent_architecture": "enc 64 | head 64 Tanh",
        "parent_fitness": 100.0,
        "reason": "replaced: fitness is nan",
        "parent_generation": None,
    }


def test_lineage_round_trip(tmp_path):
    births = (a_founder(), a_founder(1), a_birth(), a_birth(slot=0, uid=0, survives=True, mutations=()))
    numpy_birth = dataclasses.replace(births[2], hyperparameters={"lr": np.float32(0.5), "batch_size": np.int64(64)})
    reporter = LineageReporter(tmp_path)
    reporter.start(a_run())
    reporter.offspring(births[:2])
    reporter.offspring((numpy_birth, births[3]))
    back = read_lineage(tmp_path)
    assert back[2].hyperparameters == {"lr": 0.5, "batch_size": 64}
    assert math.isnan(back[0].parent_fitness)
    assert back[3] == births[3]


def test_resumed_run_replaces_lineage_after_its_checkpoint(tmp_path):
    first, second = LineageReporter(tmp_path), LineageReporter(tmp_path)
    first.start(a_run())
    first.offspring((a_founder(),))
    first.offspring((a_birth(generation=1, uid=2),))
    first.offspring((a_birth(generation=2, uid=3),))
    path = tmp_path / "lineage.jsonl"
    path.write_text(path.read_text() + '{"generation": 3, "sl')
    second.on_run_begin(RunContext(a_run(), generation=1))
    second.offspring((a_birth(generation=2, uid=3, slot=0),))
    second.offspring((a_birth(generation=3, uid=4, slot=0),))
    assert [(birth.uid, birth.slot) for birth in read_lineage(tmp_path)] == [(0, 0), (2, 1), (3, 0), (4, 0)]


def test_births_of_an_attempt_that_diverged_are_removed_where_the_run_restarts(tmp_path):
    """The restart skips the uids of as many births as there are members: theirs are smaller than the new ones."""
    reporter = LineageReporter(tmp_path)
    reporter.on_run_begin(RunContext(a_run()))
    reporter.offspring((a_founder(0), a_founder(1)))
    reporter.offspring((a_birth(generation=1, uid=2),))  # then a checkpoint
    reporter.offspring((a_birth(generation=2, uid=3),))  # then all members diverge
    reporter.on_run_begin(RunContext(a_run(), generation=1))
    reporter.offspring((a_birth(generation=2, uid=5),))
    assert [(birth.generation, birth.uid) for birth in read_lineage(tmp_path)] == [(0, 0), (0, 1), (1, 2), (2, 5)]


@pytest.mark.parametrize("births", [(), ((),), ((a_birth(generation=5, uid=6),),)])
def test_births_of_an_abandoned_attempt_are_removed_although_none_follow_soon(tmp_path, births):
    """Without selection the births are those of diverged members alone."""
    first, second = LineageReporter(tmp_path), LineageReporter(tmp_path)
    first.start(a_run())
    first.offspring((a_founder(0), a_founder(1)))
    first.offspring((a_birth(generation=2, uid=2),))
    first.offspring((a_birth(generation=3, uid=3),))
    second.on_run_begin(RunContext(a_run(), generation=2))
    for one in births:
        second.offspring(one)
    second.finish(None)
    new = [(5, 6)] if births and births[0] else []
    assert [(birth.generation, birth.uid) for birth in read_lineage(tmp_path)] == [(0, 0), (0, 1), (2, 2), *new]


def test_resuming_a_long_lineage_takes_little_memory(tmp_path):
    """Records of all births took 11 MB here; of each line its place, generation and uid are kept."""
    first, second = LineageReporter(tmp_path), LineageReporter(tmp_path)
    first.start(a_run())
    births = (a_birth(generation=1 + uid // 4, uid=uid) for uid in range(2, 5000))
    first.offspring((a_founder(0), a_founder(1), *births))
    second.on_run_begin(RunContext(a_run(), generation=1200))
    tracemalloc.start()
    try:
        second.offspring((a_birth(generation=1201, uid=6000),))
        assert tracemalloc.get_traced_memory()[1] < 5e6
    finally:
        tracemalloc.stop()
    assert [birth.uid for birth in read_lineage(tmp_path)] == [*range(4800), 6000]


@pytest.mark.parametrize("later", [(4,), ()])
def test_updates_of_an_abandoned_attempt_are_removed_although_none_follow_soon(tmp_path, later):
    """The second attempt continues after generation 2, and `later` are its generations in which a member learns."""

    def generation(number, *, learns):
        update = UpdateRecord(slot=0, uid=0, number=number, env_steps=100, train_return=1.0, metrics={"loss": 0.5})
        return a_generation(a_member(), number=number, updates=(update,) if learns else ())

    first, second = UpdatesReporter(tmp_path), UpdatesReporter(tmp_path)
    first.start(a_run())
    for number in (1, 2, 3):
        first.generation(generation(number, learns=True))
    second.start(a_run())
    for number in (3, 4):
        second.generation(generation(number, learns=number in later))
    second.close()
    assert [row["generation"] for row in read_updates(tmp_path)] == [1, 2, *later]


def test_a_lineage_reporter_that_has_not_begun_changes_no_file(tmp_path):
    first = LineageReporter(tmp_path)
    first.start(a_run())
    first.offspring((a_founder(0), a_birth(generation=1, uid=2)))
    LineageReporter(tmp_path).close()
    assert [birth.uid for birth in read_lineage(tmp_path)] == [0, 2]


@pytest.mark.parametrize("late", [False, True])
def test_a_file_that_is_too_large_to_be_read_is_continued(tmp_path, monkeypatch, late):
    """Rows of later generations are cut off; where earlier rows are behind them, the others are written again."""
    monkeypatch.setattr(safe_folder, "MAX_TEXT_BYTES", 10)
    second, third = (a_generation(a_member(), number=number) for number in (2, 3))
    write(tmp_path, first_generation(), *([third, second] if late else [second, third]))
    write(tmp_path, third)  # resumes
    monkeypatch.undo()
    assert [row["generation"] for row in read_metrics(tmp_path)] == [1, 1, 2, 3]


def test_a_line_that_is_too_long_is_damage_and_a_long_tail_is_not(tmp_path, monkeypatch):
    write(tmp_path, first_generation())
    path = tmp_path / "metrics.csv"
    monkeypatch.setattr(safe_folder, "MAX_LINE_BYTES", 1000)
    path.write_text(path.read_text() + "x" * 2500 + "\n" + "\0" * 2500)
    calls = Warnings()
    with contextlib.closing(CallbackList([CsvReporter(tmp_path), calls])) as reporters:
        reporters.on_run_begin(RUN)
        reporters.on_generation(RUN, a_generation(a_member(), number=2))
    (warning,) = calls.texts
    assert "line 4 is damaged and removed" in warning
    assert [row["generation"] for row in read_metrics(tmp_path)] == [1, 1, 2]


def test_members_that_were_replaced_before_the_run_ended_keep_their_lineage(tmp_path):
    """A run that has ended is saved before its last generation evolves, as generation 2 here."""
    first, second = LineageReporter(tmp_path), LineageReporter(tmp_path)
    first.start(a_run())
    first.offspring((a_founder(),))
    first.offspring((a_birth(generation=2, uid=2, reason="replaced: loss or weights are not finite"),))
    second.on_run_begin(RunContext(a_run(), generation=2))
    second.offspring((a_birth(generation=2, slot=0, uid=3), a_birth(generation=2, uid=2, parent_uid=2, survives=True)))
    assert [(birth.uid, birth.survives) for birth in read_lineage(tmp_path)] == [
        (0, False),
        (2, False),
        (3, False),
        (2, True),
    ]


def test_a_replaced_member_keeps_its_birth_where_all_survive_the_selection_after_it(tmp_path):
    first, second = LineageReporter(tmp_path), LineageReporter(tmp_path)
    first.start(a_run())
    first.offspring((a_founder(0), a_founder(1)))
    first.offspring((a_birth(generation=2, uid=2, reason="replaced: loss or weights are not finite"),))
    second.on_run_begin(RunContext(a_run(), generation=2))
    survivals = (
        a_birth(generation=2, slot=slot, uid=uid, parent_uid=uid, survives=True) for slot, uid in ((0, 0), (1, 2))
    )
    second.offspring(tuple(survivals))
    assert [(birth.uid, birth.survives) for birth in read_lineage(tmp_path)] == [
        (0, False),
        (1, False),
        (2, False),
        (0, True),
        (2, True),
    ]


def test_folder_without_files_is_an_error(tmp_path):
    with pytest.raises(ConfigurationError, match=r"metrics\.csv does not exist; give the folder of a run"):
        read_metrics(tmp_path)
    with pytest.raises(ConfigurationError, match=r"lineage\.jsonl does not exist"):
        read_lineage(tmp_path)


def test_scalars_have_tags_by_slot_and_are_finite():
    record = a_generation(a_member(slot=3, train_return=math.nan), a_member(slot=1, fitness=math.nan))
    tags = scalars(record)
    assert tags["member/3/eval/mean_reward"] == 100.0
    assert tags["member/3/hp/lr"] == 0.001
    assert tags["member/1/train/value_loss"] == 0.5
    assert tags["population/best"] == tags["population/median"] == 100.0
    assert tags["time/fps"] == 9876.0
    assert "member/1/eval/mean_reward" not in tags
    assert "member/3/rollout/ep_rew_mean" not in tags


NARROW = (
    "generation,slot,uid,parent_uid,env_steps,mutation,architecture,parameters,hp/lr\n1,0,0,-1,64,None,64,100,1e-3\n"
)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("nan,0,0,-1,64,None,64,100,1e-3", r"line 3: generation=nan; allowed are whole numbers"),
        ("1,0,0,-1,64,None,64,100,high", r"line 3: hp/lr='high'; allowed are numbers"),
        ("1,0,0,-1,64,None,64,100,1\0", r"line 3: "),
        ("1,0,0,-1,64", r"line 3: it has 5 fields; allowed is one for each of 9 columns"),
        ("x" * 2**18, r"line 3: field larger than field limit"),
        ("x" * 2**21, r"line 3 has more than the 1048576 bytes"),
        ("\0" * 100, r"line 3: "),
    ],
)
def test_error_names_the_damaged_row_of_metrics(tmp_path, row, message):
    (tmp_path / "metrics.csv").write_text(f"{NARROW}{row}\n")
    with pytest.raises(CheckpointError, match=message):
        read_metrics(tmp_path)


def test_a_choice_that_the_first_member_does_not_have_is_read(tmp_path):
    second = {"slot": 1, "uid": 1, "hyperparameters": {"lr": 1e-3, "lr_schedule": "kl"}}
    write(tmp_path, a_generation(a_member(), a_member(**second)))
    assert [row["hp/lr_schedule"] for row in read_metrics(tmp_path)] == [pytest.approx(math.nan, nan_ok=True), "kl"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"generation": -1}, "generation=-1: Input should be greater than or equal to 0"),
        ({"uid": "1"}, "uid='1': Input should be a valid integer"),
        ({"mutations": None}, "mutations=None: Input should be a valid tuple"),
        ({"mutations": [1]}, "mutations.0=1: Input should be a valid dictionary"),
        ({"mutations": [{}]}, r"mutations.0=\{\}: .*allowed is a mapping of kind"),
        ({"parent_uid": 7}, r"parent_uid=7 of uid=\d+; allowed is a smaller one"),
        ({"parent_generation": 2}, r"parent_generation=2; allowed are null and generations up to this record's 1"),
        ({"colour": 1}, "'colour' is unknown; allowed are generation, slot, uid"),
    ],
)
def test_error_names_the_damaged_line_of_lineage(tmp_path, change, message):
    reporter = LineageReporter(tmp_path)
    reporter.offspring((a_birth(uid=5, parent_uid=2),))
    line = json.loads((tmp_path / "lineage.jsonl").read_text())
    (tmp_path / "lineage.jsonl").write_text(json.dumps(line | change) + "\n")
    with pytest.raises(CheckpointError, match=f"lineage.jsonl', line 1: {message}"):
        read_lineage(tmp_path)


@pytest.mark.parametrize("text", ["[" * 10**5, "\0\0", "\x80", "[]", '{"a": 1}', "x" * 2**21])
def test_invalid_lineage_lines_are_errors(tmp_path, text):
    (tmp_path / "lineage.jsonl").write_text(text + "\n")
    with pytest.raises(CheckpointError, match=r"line 1"):
        read_lineage(tmp_path)


@pytest.mark.parametrize("sink", [CsvReporter, LineageReporter])
def test_fifo_in_place_of_a_file_is_an_error_without_blocking(tmp_path, sink):
    reporter = sink(tmp_path)
    os.mkfifo(reporter.path)
    with pytest.raises(CheckpointError, match="is a folder, a FIFO or a device; allowed is a regular file"):
        reporter.start(a_run())
