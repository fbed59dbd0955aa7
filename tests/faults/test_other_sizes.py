"""R12: a run resumes with any number of processes; in per-member mode the results are bit-identical."""

from tiny_runs import NIGHTLY
from whole_runs import APART, at_once, resume_run, saved, state, undisturbed

SIZES = [(2, 1, 2, 4, 3)]
"""Processes of each of a run's lives."""
MORE = [(2, 1), (1, 2), (2, 4), (4, 3), (1, 4, 1, 3)]


def test_a_run_resumed_with_other_numbers_of_processes_is_the_same(tmp_path):
    def equals(sizes):
        folder = tmp_path / "-".join(map(str, sizes))
        for life, processes in enumerate(sizes[:-1]):
            ended = resume_run(folder, *APART, "--run.processes", processes, faults="deal:1:kill-all")
            assert ended.code == -9, (sizes, ended)
            assert saved(folder)[-1] == life + 1
        ended = resume_run(folder, *APART, "--run.processes", sizes[-1])
        assert ended.code == 0, (sizes, ended.said)
        return state(folder) == undisturbed(*APART)

    undisturbed(*APART)
    assert all(at_once(equals, SIZES + MORE if NIGHTLY else SIZES))
