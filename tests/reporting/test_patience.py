import pytest
from reporting_examples import a_best, a_generation, a_member, a_run

from agilerl_like.cli import main
from agilerl_like.errors import ConfigurationError
from agilerl_like.reporting import Patience, RunContext
from agilerl_like.training.checkpoint_manager import Progress

RUN = """
environment: {id: CartPole-v1, num_envs: 4, kwargs: {max_episode_steps: 5}}
algorithm: {learn_step: 32, batch_size: 16}
population: {size: 2}
training: {max_steps: 640, evo_steps: 64, eval_loop: 1}
run: {name: one, plot: false, callbacks: [{name: patience, generations: 2}]}
"""


@pytest.mark.parametrize(("found", "reason"), [(1, "no better agent for 3 generations"), (2, None)])
def test_stops_when_the_best_agent_is_that_old(found, reason):
    run = RunContext(a_run())
    for number in range(1, 5):
        best = a_best(generation=min(found, number))
        Patience(3).on_generation(run, a_generation(a_member(), number=number, best=best))
        assert run.stop_reason == (reason if number == 4 else None)


@pytest.mark.parametrize("generations", [0, -1, 2.0, True, "5"])
def test_refuses_others(generations):
    with pytest.raises(ConfigurationError, match="of patience must be a whole number of at least 1"):
        Patience(generations)


def test_a_solved_environment_ends_early(tmp_path, monkeypatch, capsys):
    """No pole falls within five steps, so no agent is better than the first one; the budget is ten generations."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(RUN)
    assert main(["train", "run.yaml"]) == 0
    assert "stopped: no better agent for 2 generations" in capsys.readouterr().out
    rows = (tmp_path / "runs" / "one" / "metrics.csv").read_text().splitlines()[1:]
    assert [row.split(",")[0] for row in rows] == ["1", "1", "2", "2", "3", "3"]


def test_a_command_that_finds_a_stopped_run_leaves_it_as_it_is_and_resume_continues_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(RUN)
    metrics = tmp_path / "runs" / "job" / "metrics.csv"
    found = []
    for _ in range(2):
        assert main(["train", "run.yaml", "--run.name", "job", "--resume-existing"]) == 0
        found.append(metrics.read_text())
    assert found[0] == found[1]
    reason, command = "stopped: no better agent for 2 generations", "agilerl-like resume runs/job"
    assert f"runs/job has ended: {reason}; to continue: {command}" in " ".join(capsys.readouterr().out.split())
    assert main(["resume", "runs/job"]) == 0
    assert metrics.read_text().startswith(found[0])
    assert metrics.read_text() != found[0]


@pytest.mark.parametrize(
    ("outcome", "is_stopped"),
    [("stopped", True), ("stopped: why", True), ("stopped: a callback failed", False), ("budget spent", False)],
)
def test_a_run_whose_callback_failed_was_not_stopped_by_it(outcome, is_stopped):
    assert Progress(next_uid=0, outcome=outcome).is_stopped == is_stopped
