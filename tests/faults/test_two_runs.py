"""R16: a second run in a folder is refused, and the error names the owner."""

import signal

from whole_runs import Command, at_once, run, state, training, undisturbed

from agilerl_like.errors import ExitCode


def everything(folder):
    """All files in a folder, byte by byte."""
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_second_run_in_a_folder_is_refused_with_the_owners_pid(tmp_path):
    first = training(tmp_path)
    with Command(first, faults="tick:5:stop;report+:2:stop") as command:
        for processes in (1, 2):  # before it has written any metrics, and after
            command.wait_until_it_stops()
            before = everything(tmp_path)
            more = "--run.processes", processes
            seconds = [*first, "--seed", 99, *more], ["resume", tmp_path / "run", "--training.max-steps", 9999, *more]
            for ended in at_once(run, seconds):
                assert ended.code == ExitCode.USAGE, ended
                assert f"is in use by another run (process {command.process.pid} on " in ended.said
                assert not ended.left
            assert everything(tmp_path) == before
            command.process.send_signal(signal.SIGCONT)
        assert command.ended().code == 0
    assert state(tmp_path) == undisturbed()
