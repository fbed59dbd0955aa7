import pytest
from reporting_examples import a_best, a_generation, a_member, a_run

from agilerl_like.cli import main
from agilerl_like.errors import ConfigurationError
from agilerl_like.reporting import Patience, RunContext

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
