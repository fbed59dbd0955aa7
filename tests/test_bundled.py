"""Configurations that come with the package, and what a name stands for."""

import json
import os
import re
from pathlib import Path

import pytest

from agilerl_like.cli import main
from agilerl_like.config.bundled import bundled_configs, find_config
from agilerl_like.errors import ConfigurationError

CONFIGS = Path(__file__).parents[1] / "configs"
RESULTS = CONFIGS.parent / "benchmarks" / "results" / "learner_returns.jsonl"


def test_every_file_has_a_name_an_environment_and_a_summary(capsys):
    assert main(["configs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for path in CONFIGS.glob("*/*.yaml"):
        name = f"{path.parent.name}/{path.stem}"
        (line,) = (line for line in lines if line.split()[:1] == [name])
        assert line.endswith(".")
        assert path.read_text().splitlines()[0] == f"# {line.split(maxsplit=2)[2]}"
        assert find_config(line.split()[1]).validate().environment.id == line.split()[1]


def test_the_readme_has_an_environment_without_a_configuration_as_any_other():
    readme = (CONFIGS.parent / "README.md").read_text(encoding="utf-8")
    name = re.search(r"Any other environment is trained by its id \(`train ([\w-]+)`\)", readme)[1]
    assert name not in {config.environment for config in bundled_configs()}
    assert find_config(name).validate().evolution == "auto"


@pytest.mark.parametrize(
    ("name", "digits"),
    [
        ("dqn/lunar_lander_dqn", 0),
        ("openaies/lunar_lander_continuous_openaies", 0),
        ("qlearning/frozen_lake", 2),
        ("qlearning/taxi", 2),
        ("sac/pendulum_sac", 0),
        ("td3/pendulum_td3", 0),
    ],
)
def test_returns_in_a_comment_are_those_of_the_benchmark(name, digits):
    runs = map(json.loads, RESULTS.read_text().splitlines())
    case = name.partition("/")[2]
    scores = [run["result"]["score"] for run in runs if (run["case"], run["side"]) == (case, "agilerl_like")]
    assert len(scores) == 5
    text = (CONFIGS / f"{name}.yaml").read_text()
    comment = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    assert [end for end in (min(scores), max(scores)) if f"{end:.{digits}f}" not in comment] == []


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("cartpole", "ppo/cartpole.yaml"),
        ("ppo/cartpole", "ppo/cartpole.yaml"),
        ("CartPole-v1", "ppo/cartpole.yaml"),  # of four with that environment, one that changes nothing about it
        ("simple_spread", "ippo/simple_spread.yaml"),
        ("mpe2.simple_spread_v3", "ippo/simple_spread.yaml"),
        ("butterfly/cooperative_pong-v6", "ippo/cooperative_pong.yaml"),
        ("MinAtar/Breakout-v1", "ppo/minatar_breakout.yaml"),
        ("MiniGrid-Empty-5x5-v0", "ppo/minigrid_empty.yaml"),
    ],
)
def test_a_name_or_an_environment_stands_for_a_file(name, file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_config(name).data == find_config(str(CONFIGS / file)).data


def test_a_file_of_the_users_own_comes_before_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cartpole").write_text("environment: {id: Acrobot-v1}")
    assert find_config("cartpole").data == {"environment": {"id": "Acrobot-v1"}}


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [
        ("MountainCar-v0", "PPO"),
        ("MountainCar", "PPO"),
        ("gymnasium.envs.classic_control:CartPoleEnv", "PPO"),
        ("agilerl_like.envs.multi_agent.probe_envs:MultiAgentProbeEnv", "IPPO"),
        ("ALE/Breakout-v5", "PPO"),
        ("mpe2.simple_tag_v3", "IPPO"),
        ("sisl/pursuit-v5", "IPPO"),
        ("openspiel/tic_tac_toe", "IPPO"),
    ],
)
def test_any_other_environment_starts_from_wide_ranges_with_the_algorithm_of_its_kind(name, algorithm):
    config = find_config(name).override(["--training.max-steps", "1e4"]).validate()
    assert (config.environment.id, config.algorithm.name) == (name, algorithm)
    assert config.training.max_steps == 10_000
    assert {"lr", "ent_coef"} <= set(config.hyperparameters)
    assert config.population.sample_hyperparameters


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cartpol", "did you mean 'cartpole'"),
        ("nothing like it", "is no file, no configuration of `agilerl-like configs` and no environment's id"),
        ("nowhere.yaml", "config='nowhere.yaml' cannot be read"),
    ],
)
def test_a_name_that_stands_for_nothing_is_refused(name, message):
    with pytest.raises(ConfigurationError, match=message):
        find_config(name)


def test_a_pipe_from_the_shell_is_a_file():
    reader, writer = os.pipe()
    os.write(writer, b"environment: {id: CartPole-v1}\nseed: 3\n")
    os.close(writer)
    assert find_config(f"/dev/fd/{reader}").validate().seed == 3
    os.close(reader)


def test_no_two_files_have_one_name():
    assert len({one.stem for one in bundled_configs()}) == len(bundled_configs())


@pytest.mark.parametrize(
    ("environment", "algorithm", "wrappers"),
    [("CartPole-v1", "DQN", 0), ("Acrobot-v1", "DQN", 0), ("Pendulum-v1", "SAC", 0), ("own:Env", "TD3", 0),
     ("CartPole-v1", "PQN", 0), ("Acrobot-v1", "PQN", 0), ("MiniGrid-Empty-5x5-v0", "DQN", 1),
     ("Blackjack-v1", "QLearning", 0), ("Acrobot-v1", "OpenAIES", 0),
     ("Pendulum-v1", "CMAES", 0)],
)  # fmt: skip
def test_another_algorithm_has_its_own_settings(environment, algorithm, wrappers):
    options = ["--algorithm.name", algorithm, "--training.max-steps", "20_000"]
    config = find_config(environment, options).override(options).validate()
    assert config.algorithm.name == algorithm
    assert config.environment.id.endswith(environment)
    assert len(config.environment.wrappers) == wrappers
    assert "ent_coef" not in config.hyperparameters


@pytest.mark.parametrize(
    "options", [["--algorithm.name=DQN"], ["--algorithm", "{name: DQN}"], ["--algorithm.name", '"DQN"']], ids=" ".join
)
def test_the_algorithm_of_options_counts_in_every_form(options):
    config = find_config("CartPole-v1", options).override(options).validate()
    assert (config.algorithm.name, "ent_coef" in config.hyperparameters) == ("DQN", False)


def test_an_unknown_algorithm_is_refused_with_near_names():
    options = ["--algorithm.name", "DQM"]
    with pytest.raises(ConfigurationError, match=r"DQM.*did you mean 'DQN'"):
        find_config("Acrobot-v1", options).override(options).validate()
