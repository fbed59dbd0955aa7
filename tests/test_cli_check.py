"""`agilerl-like check`: a line for each finding, an exit code, and a configuration that trains."""

import pytest
import yaml

from agilerl_like.cli import main
from agilerl_like.config import load

PAYS_ARRAYS = """
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv

class Wrong(CartPoleEnv):
    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, np.array([reward]), *rest

class Robot(CartPoleEnv):
    pass

class Endless(CartPoleEnv):
    def step(self, action):
        self.reset()
        return *super().step(action)[:2], False, False, {}
"""

TEAM = """
import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

class Team(ParallelEnv):
    metadata = {"name": "team"}
    possible_agents = ["a_0", "a_1"]
    pay = {"a_0": 1.0, "a_1": 1.0}

    def observation_space(self, agent):
        return Box(0, 1, (1,), np.float32)

    def action_space(self, agent):
        return Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents, self.time = [*self.possible_agents], 0
        return self.of_all(np.zeros(1, np.float32)), self.of_all({})

    def step(self, actions):
        self.time += 1
        ends = self.of_all(self.time == 5)
        found = self.of_all(np.zeros(1, np.float32)), self.pay, ends, self.of_all(False), self.of_all({})
        self.agents = [] if self.time == 5 else self.agents
        return found

    def of_all(self, value):
        return dict.fromkeys(self.agents, value)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "envs_to_check.py").write_text(PAYS_ARRAYS)
    return "envs_to_check"


def test_a_sound_env_gets_a_configuration_that_can_be_read(own, tmp_path, capsys):
    assert main(["check", "Taxi-v4", "--write", "taxi.yaml"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Taxi-v4: 0 errors, 0 warnings; ")
    assert "with action masks" in out
    assert load("taxi.yaml").environment.id == "Taxi-v4"
    assert main(["check", "Taxi-v4", "--write", "taxi.yaml"]) == 2
    assert "exists; allowed is a new file" in capsys.readouterr().err
    assert main(["check", "taxi.yaml"]) == 0


@pytest.mark.parametrize("env", ["envs_to_check:Endless", "CartPole-v1"])
def test_the_configuration_that_is_written_is_the_one_of_the_environments_id(own, capsys, env):
    assert main(["check", env, "--write", "new.yaml"]) == 0
    shown = []
    for config in ("new.yaml", env):
        capsys.readouterr()
        assert main(["train", config, "--seed", "1", "--print-config"]) == 0
        shown.append(yaml.safe_load(capsys.readouterr().out))
    written, known = shown
    assert written["training"].pop("eval_steps") in (1000, known["training"]["eval_steps"])
    assert known["training"].pop("eval_steps") is None
    assert written == known


@pytest.mark.parametrize("algorithm", ["DQN", "OpenAIES", "PPO"])
def test_the_environment_and_the_algorithm_of_a_file_are_written(own, tmp_path, algorithm):
    settings = "{id: CartPole-v1, max_total_reward: 50, training_wrappers: [NormalizeReward], num_envs: 4}"
    (tmp_path / "mine.yaml").write_text(f"environment: {settings}\nalgorithm: {{name: {algorithm}}}\n")
    assert main(["check", "mine.yaml", "--write", "new.yaml"]) == 0
    mine, new = load("mine.yaml"), load("new.yaml")
    assert (new.environment, new.algorithm.name) == (mine.environment, algorithm)
    assert ("ent_coef" in new.hyperparameters) == (algorithm == "PPO")


def test_a_team_is_checked_with_the_state_that_the_algorithm_needs(own, tmp_path, capsys):
    (tmp_path / "own_team.py").write_text(TEAM)
    for critic, code in (("policy", 0), ("state", 2)):
        (tmp_path / "team.yaml").write_text(
            f"environment: {{id: own_team:Team}}\nalgorithm: {{name: IPPO, critic_observation: {critic}}}\n"
        )
        assert main(["check", "team.yaml"]) == code
    assert "with_state=True needs an env with a state_space" in capsys.readouterr().err


def test_teams_whose_rewards_sum_to_zero_get_ratings_as_fitness(own, tmp_path):
    (tmp_path / "own_game.py").write_text(TEAM + "\n\nclass Game(Team):\n    pay = {'a_0': 1.0, 'a_1': -1.0}\n")
    for env, fitness in (("Team", "return"), ("Game", "rating")):
        assert main(["check", f"own_game:{env}", "--write", f"{env}.yaml"]) == 0
        assert load(f"{env}.yaml").training.fitness == fitness


def test_text_that_looks_like_null_stays_text(own, tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text(
        "environment: {id: FrozenLake-v1, kwargs: {map_name: 'none', desc: [SF, FG]}}\n"
    )
    assert main(["check", "mine.yaml", "--write", "new file.yaml"]) == 0
    assert load("new file.yaml").environment.kwargs == {"map_name": "none", "desc": ["SF", "FG"]}
    assert capsys.readouterr().out.endswith("agilerl-like train 'new file.yaml'\n")


def test_names_between_colons_are_no_emoji(own, capsys):
    assert main(["check", f"{own}:Robot"]) == 0
    assert capsys.readouterr().out.startswith(f"{own}:Robot: 0 errors")


def test_an_error_is_a_line_and_exit_code_2(own, capsys):
    assert main(["check", f"{own}:Wrong", "--write", "wrong.yaml"]) == 2
    finding, summary = capsys.readouterr().out.splitlines()
    assert finding == "error: step() returned the reward array([1.]); return one float"
    assert summary.startswith(f"{own}:Wrong: 1 error, 0 warnings; ")


def test_a_name_that_is_missing_is_compared_with_classes_and_functions(own, capsys):
    assert main(["check", f"{own}:Np"]) == 2
    error = capsys.readouterr().err
    assert "'Np' is unknown" in error
    assert "'np'" not in error


def test_a_module_without_the_name_of_an_environment_is_named(own, capsys):
    assert main(["check", own]) == 2
    assert f"env_name='{own}' is a module in the current folder; allowed is '{own}:NAME'" in capsys.readouterr().err


def test_every_instance_is_checked(own, tmp_path, capsys):
    (tmp_path / "levels.yaml").write_text(
        f"environment: {{id: CartPole-v1, num_envs: 2, instances: [{{}}, {{id: '{own}:Wrong'}}]}}"
    )
    assert main(["check", "levels.yaml"]) == 2
    finding = capsys.readouterr().out.splitlines()[0]
    assert finding == "error: instance 1: step() returned the reward array([1.]); return one float"


def test_tests_are_cut_where_episodes_do_not_end(own, tmp_path, capsys):
    assert main(["check", f"{own}:Endless", "--write", "endless.yaml"]) == 0
    assert "warning: no episode ended in 300 random steps" in capsys.readouterr().out
    assert yaml.safe_load((tmp_path / "endless.yaml").read_text())["training"]["eval_steps"] == 1000


@pytest.mark.parametrize(
    "name", ["classic/rps-v2", "pettingzoo.classic.rps_v2", "pettingzoo.classic.rps_v2:parallel_env"]
)
def test_a_teams_env_is_known_by_its_name(own, name, capsys):
    pytest.importorskip("pettingzoo.classic.rps_v2")
    assert main(["check", name, "--write", "team.yaml"]) == 0
    assert load("team.yaml").algorithm.name == "IPPO"
