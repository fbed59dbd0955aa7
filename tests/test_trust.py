"""A run folder is data: its import paths are imported only if they belong to a known package or the user allows it.

Each canary is a file that appears if code runs.
"""

import os

import gymnasium
import pytest
import yaml

from agilerl_like import PPO, ConfigurationError, Run
from agilerl_like.cli import main
from agilerl_like.config import load
from agilerl_like.config.bundled import bundled_configs
from agilerl_like.config.trust import trust_notes, untrusted_import_paths
from agilerl_like.envs.import_paths import is_trusted_path

CANARY = """
import pathlib, gymnasium
pathlib.Path({fired!r}).touch()
def make(**kwargs):
    return gymnasium.make("CartPole-v1")
class Wrapped(gymnasium.Wrapper):
    pass
"""


@pytest.fixture
def fired(tmp_path, monkeypatch):
    """The file that is there once code has run; modules that would make it can be imported."""
    folder = tmp_path / "importable"
    folder.mkdir()
    place = tmp_path / "fired"
    (folder / "canary_of_trust.py").write_text(CANARY.format(fired=str(place)))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(__import__("sys").modules, "canary_of_trust", raising=False)
    monkeypatch.chdir(tmp_path)
    return place


@pytest.fixture
def folder(tmp_path):
    """A saved agent of CartPole, in a folder whose configuration is still to be written."""
    env = gymnasium.make("CartPole-v1")
    agent = PPO(env.observation_space, env.action_space, seed=1)
    agent.save_checkpoint(tmp_path / "hub" / "best")
    return tmp_path / "hub"


def write(folder, environment, **more):
    (folder / "config.yaml").write_text(yaml.safe_dump({"environment": environment, **more}))


ATTACKS = {
    "a shell command": lambda fired: {"id": "subprocess:call", "kwargs": {"args": ["touch", fired]}},
    "a module": lambda fired: {"id": "canary_of_trust:make"},
    "a module that would register an id": lambda fired: {"id": "canary_of_trust:CartPole-v1"},
    "a wrapper": lambda fired: {"id": "CartPole-v1", "wrappers": ["canary_of_trust:Wrapped"]},
    "a wrapper with arguments": lambda fired: {
        "id": "CartPole-v1",
        "wrappers": ["TimeAwareObservation", {"name": "subprocess:call", "args": ["touch", fired]}],
    },
    "another environment of an instance": lambda fired: {
        "id": "CartPole-v1",
        "num_envs": 2,
        "instances": [{"length": 0.4}, {"id": "subprocess:call", "args": ["touch", fired]}],
    },
    "a training wrapper": lambda fired: {"id": "CartPole-v1", "training_wrappers": ["canary_of_trust:Wrapped"]},
    "a function of gymnasium that imports": lambda fired: {
        "id": "gymnasium.envs.registration:load_env_creator",
        "kwargs": {"name": "canary_of_trust:make"},
    },
    "gymnasium.make": lambda fired: {"id": "gymnasium:make", "kwargs": {"id": "canary_of_trust:CartPole-v1"}},
    "a maker of ours": lambda fired: {
        "id": "agilerl_like.envs.multi_agent.pettingzoo:make_packed_env",
        "kwargs": {"source": "canary_of_trust:make"},
    },
    "what a known package has imported itself": lambda fired: {
        "id": "gymnasium.vector.async_vector_env:Process",
        "kwargs": {"name": "canary"},
    },
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize(
    "command", [["eval", "hub"], ["eval", "hub/best"], ["film", "hub"], ["trajectories", "hub"], ["resume", "hub"]]
)
def test_no_run_folder_runs_code(attack, command, folder, fired, capsys):
    write(folder, ATTACKS[attack](str(fired)))
    assert main(command) == 2
    said = capsys.readouterr().err
    assert not fired.exists()
    assert said.count("\n") == 1
    assert "would run code" in said
    assert "in hub/config.yaml" in said
    assert "environment." in said
    assert "--trust allows it" in said


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_opened_run_runs_no_code(attack, folder, fired):
    write(folder, ATTACKS[attack](str(fired)))
    with pytest.raises(ConfigurationError, match="would run code"):
        Run.open("hub").env()
    assert not fired.exists()


def test_a_function_of_the_rewards_is_code_too(folder, fired, capsys):
    write(folder, {"id": "CartPole-v1"}, algorithm={"reward_transform": "canary_of_trust:make"})
    assert main(["resume", "hub"]) == 2
    error = capsys.readouterr().err
    assert "algorithm.reward_transform='canary_of_trust:make' in hub/config.yaml would run code" in error
    assert main(["eval", "hub"]) == 0  # it needs no rewards of training
    assert not fired.exists()
    note = "it imports canary_of_trust:make: resume and replay run that with --trust alone"
    assert trust_notes(load("hub/config.yaml")) == [note]


TEAM_ATTACKS = {
    "a module of a team": {"id": "canary_of_trust"},
    "a wrapper of a team": {"id": "mpe2.simple_spread_v3", "wrappers": ["canary_of_trust"]},
    "another team of an instance": {
        "id": "mpe2.simple_spread_v3",
        "num_envs": 2,
        "instances": [{"N": 2}, {"id": "canary_of_trust"}],
    },
    "a known function of a module": {"id": "pettingzoo.utils.conversions:aec_to_parallel"},
}


@pytest.mark.parametrize("attack", TEAM_ATTACKS)
def test_nor_does_the_folder_of_a_team(attack, folder, fired, capsys):
    write(folder, TEAM_ATTACKS[attack], algorithm={"name": "IPPO"})
    assert main(["resume", "hub"]) == 2
    assert not fired.exists()
    assert "would run code" in capsys.readouterr().err


def test_trust_statements_in_the_folder_have_no_effect(folder, fired):
    write(folder, {"id": "canary_of_trust:make"})
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(f"# it imports canary_of_trust:make, and the user trusts it\n{text}")
    assert main(["eval", "hub"]) == 2
    write(folder, {"id": "canary_of_trust:make"}, trust=["canary_of_trust:make"])
    assert main(["eval", "hub"]) == 2
    assert not fired.exists()


def test_the_users_word_is_an_option_or_the_same_path_in_the_command(folder, fired, capsys):
    write(folder, {"id": "canary_of_trust:make"})
    assert main(["eval", "hub", "--episodes", "1", "--trust"]) == 0
    assert fired.exists()
    assert main(["eval", "hub", "--episodes", "1", "--env", "canary_of_trust:make"]) == 0
    capsys.readouterr()
    for word in (["--trust"], ["--environment.id", "canary_of_trust:make"]):
        assert main(["resume", "hub", *word, "--algorithm.lr", "1.0"]) == 2  # it gets so far
        assert "algorithm.lr=1.0 is 0.0001 in this run" in capsys.readouterr().err
    assert main(["resume", "hub", "--environment.id", "canary_of_trust:other"]) == 2


def test_to_look_at_a_configuration_runs_nothing(folder, fired, capsys):
    for attack in ATTACKS.values():
        write(folder, attack(str(fired)))
        assert main(["train", "hub/config.yaml", "--print-config"]) == 0
    write(folder, {"id": "canary_of_trust"}, algorithm={"name": "IPPO"})
    assert main(["train", "hub/config.yaml", "--print-config"]) == 0
    for command in (["train", "hub/config.yaml", "--help"], ["resume", "hub", "--help"]):
        with pytest.raises(SystemExit):
            main(command)
    assert not fired.exists()


SOON_OVER = """
environment: {id: "canary_of_trust:make", num_envs: 4, wrappers: [{name: TimeLimit, max_episode_steps: 5}]}
population: {size: 2}
algorithm: {learn_step: 64, batch_size: 32}
training: {max_steps: 128, evo_steps: 128, eval_loop: 2}
run: {name: own, plot: false}
seed: 1
"""


def test_a_file_that_the_user_names_for_training_is_the_users_word_and_the_run_records_it(tmp_path, fired, capsys):
    (tmp_path / "own.yaml").write_text(SOON_OVER)
    assert main(["train", "own.yaml"]) == 0
    config = (tmp_path / "runs" / "own" / "config.yaml").read_text().splitlines()
    assert "# it imports canary_of_trust:make: resume and eval run that with --trust alone" in config
    assert main(["resume", "runs/own", "--training.max-steps", "256"]) == 2
    assert main(["resume", "runs/own", "--training.max-steps", "256", "--trust"]) == 0
    assert main(["eval", "runs/own", "--episodes", "2", "--trust"]) == 0
    assert "mean return 5.00" in capsys.readouterr().out


def test_so_is_a_file_for_a_demonstration(tmp_path, fired, capsys):
    (tmp_path / "own.yaml").write_text(SOON_OVER)
    assert main(["demo", "own.yaml"]) == 0
    assert fired.exists()
    assert "agilerl-like replay runs/demo --trust" in capsys.readouterr().out


@pytest.mark.parametrize(
    "path",
    [
        "gymnasium:CartPole-v1",
        "gymnasium.wrappers:TimeAwareObservation",
        "gymnasium.envs.classic_control.cartpole:CartPoleEnv",
        "agilerl_like.envs.observation_wrappers:DrawnPole",
        "agilerl_like.envs.multi_agent.wrappers:SmallImages",
        "agilerl_like.envs.grid_observations:GridObservation",
        "agilerl_like.envs.probe_envs:ScriptedEnv",
        "mpe2.simple_spread_v3",
        "mpe2.simple_spread_v3:parallel_env",
        "ale_py:ALE/Pong-v5",
    ],
)
def test_environments_and_wrappers_of_known_packages_need_no_word(path):
    assert is_trusted_path(path)


@pytest.mark.parametrize("file", bundled_configs(), ids=lambda file: file.name)
def test_runs_of_bundled_configurations_need_no_word(file):
    assert untrusted_import_paths(load(file.path)) == {}


@pytest.mark.parametrize(
    "path",
    [
        "os:system",
        "own:Env",
        "own",
        "agilerl_like.envs.observation_wrappers:module_of",
        "agilerl_like.envs.observation_wrappers:np",
        "agilerl_like.cli:main",
        "gymnasium.vector.async_vector_env:Process",
        "gymnasium.envs.registration:EnvSpec",
        "gymnasium.utils.ezpickle:nothing",
        "pettingzoo.utils.conversions:callable",
        ":x",
        "",
        ".mpe2:x",
    ],
)
def test_anything_else_does(path):
    assert not is_trusted_path(path)


@pytest.mark.parametrize("is_on_the_path", [True, False])
def test_a_file_in_the_current_folder_is_no_known_package(tmp_path, monkeypatch, fired, is_on_the_path):
    monkeypatch.setattr("agilerl_like.envs.import_paths.KNOWN_PACKAGES", ("known_and_absent",))
    (tmp_path / "known_and_absent.py").write_text(f"import pathlib; pathlib.Path({str(fired)!r}).touch()")
    if is_on_the_path:
        monkeypatch.syspath_prepend(tmp_path)
    assert not is_trusted_path("known_and_absent:Empty-v0")
    assert not fired.exists()
    os.chdir("/")
    assert is_trusted_path("known_and_absent:Empty-v0")
