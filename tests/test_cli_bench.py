"""`agilerl-like bench` and `agilerl-like doctor`."""

import csv
import json

import pytest
import torch

from agilerl_like.cli import bench, main
from agilerl_like.training import process_choice
from agilerl_like.training.process_choice import Layout

QUICK = ("--seconds", "0.001", "--num-envs", "64")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_bench_writes_the_table_that_it_prints(folder, capsys, monkeypatch):
    monkeypatch.setattr(bench, "PATIENCE", 1e9)
    assert main(["bench", "--population", "2,1", *QUICK, "--output", "speeds"]) == 0
    printed = capsys.readouterr().out
    with (folder / "speeds.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["members"] for row in rows] == ["1", "2"]
    for row in rows:
        assert f"{float(row['steps_per_second']):,.0f}" in printed
        # an update is 2048 env steps of each member
        steps = int(row["members"]) * 2048
        assert steps / float(row["update_seconds"]) == pytest.approx(float(row["steps_per_second"]), rel=0.01)
        assert 0.5 < sum(float(row[part]) for part in ("env", "act", "learn")) <= 1.001
    ratio = 2 / float(rows[1]["steps_per_second"]) * float(rows[0]["steps_per_second"])
    assert float(rows[1]["growth"]) == pytest.approx(ratio, abs=0.006)
    assert (folder / "speeds.md").read_text(encoding="utf-8").count("\n| ") == 2


def test_bench_stops_where_time_or_memory_end(folder, capsys, monkeypatch):
    taken = iter([1.0, 5.0])

    def measure(env, device, members, *_, **__):
        if members == 64:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return bench.Row(members, 1000.0, 1.0, 1.0, 0.1, 0.1, 0.8), next(taken)

    monkeypatch.setattr(bench, "_measure", measure)
    assert main(["bench", "--population", "1,8,64", "--seconds", "5"]) == 0
    assert "P=64 and more left out: they do not fit into the memory of cpu" in capsys.readouterr().out
    taken = iter([1.0, 5.0])
    assert main(["bench", "--population", "1,8,256", "--seconds", "5"]) == 0
    assert "P=256 and more left out: one update could take over 50 s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--population", "1,x"], "population='1,x'; allowed are whole numbers from 1"),
        (["--population", "0"], "population='0'; allowed are whole numbers from 1"),
        (["--seconds", "0"], "seconds=0.0 must be finite and above 0"),
        (["--seconds", "inf"], "seconds=inf must be finite and above 0"),
        (["--output", "."], "output='.' has no name; allowed is the path of a file"),
        (["--threads", "0"], "threads=0; allowed are 1 to 1024"),
        (["--threads", "1025"], "threads=1025; allowed are 1 to 1024"),
        (["--device", "cuda:77"], "device='cuda:77' cannot be used"),
        (["--device", "tpu"], "device='tpu' cannot be used"),
        (["--env", "CartPol-v1"], "did you mean 'CartPole-v1'"),
    ],
)
def test_bench_refuses_in_one_line(folder, capsys, arguments, message):
    assert main(["bench", *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert list(folder.iterdir()) == []


def test_doctor_reports_machine_and_choice(folder, capsys, monkeypatch):
    rates = {Layout(1, 1): 3000.0, Layout(1, 2): 2000.0, Layout(2, 1): 6000.0}
    monkeypatch.setattr(process_choice, "available_cores", lambda: 2)
    monkeypatch.setattr(process_choice, "measure", lambda *_: (rates, 0.0))
    arguments = ["cartpole"]
    assert main(["doctor", *arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["versions"].keys() >= {"python", "agilerl-like", "torch", "gymnasium"}
    run = report["run"]
    # six members of 100,000 steps with a target, so a quarter of them: 50 s in one process, 4 s + 25 s in two
    assert (run["processes"], run["threads"]) == (2, 1)
    assert run["why"].startswith("measured 6,000 steps/s, 3,000 in 1 process with 1 thread")
    assert run["measured"]["1 process with 2 threads"] == 2000
    assert run["backend"].startswith("vector, because")
    assert main(["doctor", *arguments]) == 0
    text = capsys.readouterr().out
    assert "choice       2 processes, 1 thread, on cpu: measured 6,000 steps/s" in text
    assert "folders      runs: writable, with locks; " in text
    assert text.endswith(" s, without the imports\n")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", ["frozen_lake", "cartpole_openaies", "cartpole_dqn"])
def test_doctor_measures_every_algorithm(folder, capsys, monkeypatch, name):
    monkeypatch.setattr(process_choice, "SAMPLE_SECONDS", 0.01)
    monkeypatch.setattr(process_choice, "measure", lambda *_: ({Layout(1, 1): 3000.0}, 0.0))
    assert main(["doctor", name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"]["env_steps_per_second_one_process"] > 0


def test_doctor_reports_processes_and_threads_that_are_set(folder, capsys, monkeypatch):
    monkeypatch.setattr(process_choice, "SAMPLE_SECONDS", 0.01)
    (folder / "set.yaml").write_text("environment: {id: CartPole-v1}\nrun: {processes: 2, threads: 1}\n")
    assert main(["doctor", str(folder / "set.yaml"), "--json"]) == 0
    run = json.loads(capsys.readouterr().out)["run"]
    assert (run["processes"], run["threads"], run["why"]) == (2, 1, "as set")


def test_doctor_refuses_an_unknown_run(folder, capsys):
    assert main(["doctor", "CartPol-v1"]) == 2
    said = capsys.readouterr().err
    assert "did you mean" in said
    assert said.count("\n") == 1
