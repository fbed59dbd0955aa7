"""The command line trains, resumes, evaluates and draws teams as it does agents."""

import csv
import json
import re
import shutil

import pytest

from agilerl_like import IPPO, MultiAgentPopulation, make_multi_agent_vect_envs
from agilerl_like.cli import main
from agilerl_like.config import MultiAgentConfig, load

SOON_OVER = """
environment: {id: "steady_teams:Steady", num_envs: 2, backend: sync}
population: {size: 2}
algorithm: {name: IPPO, learn_step: 32, batch_size: 32, per_member: true}
hyperparameters: {lr: {min: 1e-5, max: 1e-2}}
network: {encoder_config: {hidden_size: [16]}, head_config: {hidden_size: [16]}, latent_dim: 8}
training: {max_steps: 128, evo_steps: 64, eval_loop: 2, checkpoint: 64}
run: {name: first, plot: false}
seed: 3
"""
RETURN = 3 * (1 + 2 + 2)  # three steps, and what the three agents earn in each


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A run that takes a moment, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "soon_over.yaml"
    path.write_text(SOON_OVER)
    return str(path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a finished run, which tests copy."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "soon_over.yaml").write_text(SOON_OVER)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", str(folder / "soon_over.yaml")]) == 0
    return folder / "runs" / "first"


@pytest.fixture
def run(trained, file, tmp_path):
    """The folder of a finished run, in a folder of its own."""
    return shutil.copytree(trained, tmp_path / "runs" / "first")


def metrics(folder):
    with (folder / "metrics.csv").open() as table:
        return [
            {name: value for name, value in row.items() if not name.startswith("time/")}
            for row in csv.DictReader(table)
        ]


def lineage(folder):
    return [json.loads(line) for line in (folder / "lineage.jsonl").read_text().splitlines()]


def test_train_leaves_all_there_is_to_know(run, file):
    assert load(run / "config.yaml") == load(file)
    assert {row["eval/mean_reward"] for row in metrics(run)} == {str(float(RETURN))}
    team = IPPO.load(run / "best")
    assert {group: list(ids) for group, ids in team.groups.items()} == {
        "speaker": ["speaker_0"],
        "listener": ["listener_0", "listener_1"],
    }
    assert len(MultiAgentPopulation.load(run / "population")) == 2


@pytest.mark.slow
def test_resumed_run_equals_the_uninterrupted_one(file, tmp_path, capsys):
    for name, steps in (("whole", "192"), ("parts", "128")):
        assert main(["train", file, "--run.name", name, "--training.max-steps", steps]) == 0
    whole, parts = (tmp_path / "runs" / name for name in ("whole", "parts"))
    assert main(["resume", str(parts), "--trust"]) == 0
    assert "to continue it needs a larger --training.max-steps\n" in capsys.readouterr().out
    assert main(["resume", str(parts), "--trust", "--training.max-steps", "192"]) == 0
    assert metrics(parts) == metrics(whole)
    assert lineage(parts) == lineage(whole)


def test_eval_plays_the_best_team(run, capsys):
    assert main(["eval", str(run), "--episodes", "40", "--seed", "1", "--trust"]) == 0
    said = capsys.readouterr().out
    assert f"mean return {RETURN}.00 ± 0.00 (standard deviation) over 40 episodes" in said
    assert "\nspeaker_0: 3.00, listener_0: 6.00, listener_1: 6.00\n" in said
    assert main(["eval", str(run / "best"), "--episodes", "2", "--env", "steady_teams:Steady"]) == 0
    assert "3 steps on average" in capsys.readouterr().out
    assert main(["eval", str(run), "--env", "mpe2.simple_spread_v3"]) == 2
    assert "the agent was made for" in capsys.readouterr().err


def test_eval_of_a_zero_sum_game_names_opponents_and_plays_against_them(tmp_path, capsys):
    env = make_multi_agent_vect_envs("game_envs:Nim", 1)
    for seed in (0, 1):
        team = IPPO(env.single_observation_spaces, env.single_action_spaces, seed=seed)
        team.save_checkpoint(tmp_path / f"team-{seed}")
    command = ["eval", str(tmp_path / "team-0"), "--env", "game_envs:Nim", "--episodes", "20", "--seed", "1"]
    assert main(command) == 0
    assert "the returns of all agents add up to 0 in every episode" in capsys.readouterr().err
    assert main([*command, "--opponent", "random"]) == 0
    played = capsys.readouterr()
    first, second = played.out.splitlines()
    assert re.fullmatch(r"as player_0: mean return -?\d\.\d\d, won \d+% and drawn 0% of 20 games \(seed 1\)", first)
    assert second.startswith("as player_1: mean return ")
    assert played.err == ""
    assert main([*command, "--opponent", str(tmp_path / "team-1")]) == 0
    assert "as player_0: mean return" in capsys.readouterr().out
    assert main([*command, "--opponent", "random", "--sampling", "sample"]) == 2
    assert "opponent='random' excludes --display and --sampling" in capsys.readouterr().err


@pytest.mark.slow
def test_plot_draws_the_run(run, capsys):
    capsys.readouterr()
    assert main(["plot", str(run)]) == 0
    assert (run / "evolution.png").read_bytes().startswith(b"\x89PNG")


def test_help_lists_the_settings_of_the_kind(file, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        main(["train", file, "--help"])
    page = capsys.readouterr().out
    names = [f"{section}.{name}" for section in ("environment", "network") for name in
             MultiAgentConfig.model_fields[section].annotation.model_fields]  # fmt: skip
    names += ["algorithm.rewards", "algorithm.agent_id_one_hot", "algorithm.lr", "training.max_steps"]
    nested = {"environment.kwargs", "environment.instances", "network.critic_config", "network.encoder_config",
              "network.memory_config", "network.head_config", "network.groups"}  # fmt: skip
    assert [name for name in names if name not in nested and f"--{name.replace('_', '-')} " not in page] == []
    assert "the sum of all agents' rewards" in page


def test_usage_errors_are_one_line(file, tmp_path, capsys):
    assert main(["train", file, "--algorithm.rewards", "all", "--algorithm.lt", "1"]) == 2
    said = capsys.readouterr().err
    assert "algorithm.rewards='all' is unknown; allowed are: individual, mean, sum" in said
    assert "did you mean 'lr'" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_an_unknown_opponent_is_an_error_that_lists_those_of_files(file, capsys):
    assert main(["train", file, "--training.opponents", "random"]) == 2
    assert "training.opponents='random' is unknown; allowed are: past, population, self (" in capsys.readouterr().err
