"""The script `tutorials/own_algorithm.py`: its A2C learns as PPO's first epoch does, evolves, and is named in YAML."""

import runpy
from pathlib import Path

import pytest
import torch
import yaml
from gymnasium.spaces import Box, Discrete
from scripts import own_registrations
from small_runs import SMALL

from agilerl_like import PPO, make_vect_envs, train_on_policy
from agilerl_like.algorithms.population import Population
from agilerl_like.algorithms.serialization import without_learning_state
from agilerl_like.cli import main
from agilerl_like.envs.vec_adapter import VecEnvAdapter
from agilerl_like.errors import CheckpointError, ConfigurationError
from agilerl_like.hpo import HyperparameterConfig, Mutations, RLParameter, TournamentSelection
from agilerl_like.training.collector import Collector, PhaseTimer


@pytest.fixture(scope="module")
def script():
    """The names that the script defines; "A2C" is registered for the tests of this file."""
    with own_registrations():
        yield runpy.run_path(str(Path(__file__).parents[2] / "tutorials" / "own_algorithm.py"))


def cartpole(envs):
    return make_vect_envs("CartPole-v1", num_envs=envs, backend="sync")


def learned(algorithm, **settings):
    """The weights of two members after rollouts of 4 and of 8 steps of 2 envs."""
    env = cartpole(4)
    spaces = env.single_observation_space, env.single_action_space
    agents = [
        algorithm(*spaces, index=i, net_config=SMALL, num_envs=2, learn_step=steps, seed=3, **settings)
        for i, steps in enumerate((8, 16))
    ]
    agents[0].lr, agents[1].ent_coef = 1e-3, 1e-2
    collector = Collector(population := Population(agents), VecEnvAdapter(env), PhaseTimer(("env", "act", "learn")))
    collector.reset(range(2))
    for _ in range(4):
        collector.collect(4)
        collector.learn()
    env.close()
    assert [agent.learner.updates for agent in population] == [4, 2]
    assert [agent.learner.env_steps for agent in population] == [32, 32]
    return [torch.cat([parameter.detach().flatten() for parameter in agent.network.parameters()]) for agent in agents]


def test_an_update_is_that_of_ppo_with_one_epoch_of_the_whole_rollout(script):
    """At the policy that acted the ratio is 1, so PPO's gradient is that of log-probability times advantage."""
    as_a2c = {"update_epochs": 1, "num_minibatches": 1, "normalize_advantage": "none", "clip_grads": "together"}
    as_a2c |= {"gae_lambda": 1.0, "vf_coef": 0.5, "max_grad_norm": 0.5, "gamma": 0.99, "lr": 2e-3}
    as_a2c |= {"normalize_observation": False, "normalize_value": False, "ent_coef": 0.0}
    for ours, theirs in zip(learned(script["A2C"]), learned(PPO, **as_a2c), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_it_evolves_predicts_and_is_loaded(script, tmp_path):
    a2c, env = script["A2C"], cartpole(4)
    spaces = env.single_observation_space, env.single_action_space
    ranges = HyperparameterConfig(learn_step=RLParameter(8, 64), lr=RLParameter(1e-4, 1e-2))
    pop = a2c.population(2, *spaces, net_config=SMALL, num_envs=2, learn_step=8, hp_config=ranges, seed=1)
    search = {"selection_strategy": TournamentSelection(), "mutation": Mutations(rl_hp=0.5, architecture=0.5)}
    run = {"max_steps": 192, "evo_steps": 64, "eval_loop": 1, "eval_steps": 20, "verbose": False}
    pop, _ = train_on_policy(env, pop=pop, run_dir=tmp_path / "run", **run, **search)
    env.close()
    loaded = a2c.load(tmp_path / "run" / "best")
    observation = env.single_observation_space.sample()
    assert loaded.predict(observation)[0] in (0, 1)
    for name, found in (("clip_coef", "it is a setting of PPO"), ("gama", "did you mean 'gamma'")):
        with pytest.raises(ConfigurationError, match=f"setting='{name}' is unknown.*{found}"):
            a2c(*spaces, **{name: 0.2})


def test_clones_and_files_contain_the_own_state_of_a_learner(script, tmp_path):
    class Learner(script["A2CLearner"]):
        """Has a baseline, too."""

        algo = "WithBaseline"

        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.baseline = torch.zeros(2)

        def own_state(self):
            return {"baseline": self.baseline}

        def load_own_state(self, state):
            self.baseline = state["baseline"]

    class Group(script["A2CGroup"]):
        learner_class = Learner

    class WithBaseline(script["A2C"]):
        algo, group_class = "WithBaseline", Group

    space = Box(-1.0, 1.0, (4,))
    agent = WithBaseline(space, Discrete(2), net_config=SMALL, seed=1)
    agent.learner.baseline = torch.tensor([2.0, 3.0])
    clone = agent.clone()
    agent.save_checkpoint(tmp_path / "agent")
    agent.learner.baseline += 1  # of the agent alone
    for other in (clone, WithBaseline.load(tmp_path / "agent")):
        assert other.learner.baseline.tolist() == [2.0, 3.0]
    acting = WithBaseline.from_documents(*without_learning_state(*agent.to_documents()), device="cpu", where="here")
    assert acting.learner.baseline.tolist() == [0.0, 0.0]
    document, tensors = agent.to_documents()
    with pytest.raises(CheckpointError, match=r"tensors \['baseline'\] of own_state are too many: A2CLearner has none"):
        script["A2C"].from_documents({**document, "algorithm": "A2C"}, tensors, device="cpu", where="here")


def test_its_configuration_trains_through_the_command(script, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small = {"training": {"max_steps": 512, "evo_steps": 512, "eval_loop": 1, "eval_steps": 8}, "run": {"plot": False}}
    config = yaml.safe_load(script["CONFIG"])
    config["population"]["size"], config["algorithm"]["max_grad_norm"] = 1, 0.25
    Path("a2c.yaml").write_text(yaml.safe_dump({**config, **small}))
    assert main(["train", "a2c.yaml", "--run.name", "one", "--mutation", "none"]) == 0, capsys.readouterr().err
    assert script["A2C"].load("runs/one/best").max_grad_norm == 0.25
