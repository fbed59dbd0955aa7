"""A loss of one's own, an attribute of a subclass of PPO or IPPO, and the script `tutorials/own_loss.py`."""

import runpy
from pathlib import Path

import pytest
import torch
from scripts import own_registrations, run_script
from small_runs import SMALL

from agilerl_like import IPPO, PPO, make_multi_agent_vect_envs, make_vect_envs
from agilerl_like.algorithms.population import Population
from agilerl_like.config.run_config import config_class
from agilerl_like.envs.vec_adapter import VecEnvAdapter
from agilerl_like.errors import ConfigurationError
from agilerl_like.learning.ppo_loss import LossCoefs, PolicyEval, Targets, ppo_loss
from agilerl_like.saved_runs import Run
from agilerl_like.training import train_multi_agent_on_policy, train_on_policy
from agilerl_like.training.collector import Collector, PhaseTimer
from agilerl_like.training.multi_agent_env_setup import MultiAgentEnvSetup

SCRIPT = Path(__file__).parents[2] / "tutorials" / "own_loss.py"


@pytest.fixture(autouse=True)
def registrations_end_with_the_test():
    with own_registrations():
        yield


def weights_of(agent):
    return torch.cat([parameter.detach().flatten() for parameter in agent.network.parameters()])


def learned(algorithm, *epochs, learns=2):
    """The agents of a population with these `update_epochs`, after some updates, and the metrics of the last."""
    env = make_vect_envs("CartPole-v1", num_envs=2 * len(epochs), backend="sync")
    spaces = env.single_observation_space, env.single_action_space
    settings = {"net_config": SMALL, "num_envs": 2, "learn_step": 16, "batch_size": 8, "seed": 3, "lr": 1e-2}
    agents = [algorithm(*spaces, index=i, update_epochs=count, **settings) for i, count in enumerate(epochs)]
    collector = Collector(Population(agents), VecEnvAdapter(env), PhaseTimer(("env", "act", "learn")))
    collector.reset(range(len(agents)))
    metrics = {}
    for _ in range(learns):
        collector.collect(8)
        metrics = collector.learn()
    env.close()
    return agents, metrics


def test_ppos_loss_as_an_own_one_gives_the_same_weights_and_metrics():
    class Same(PPO):
        algo = "Same"

        @staticmethod
        def loss(evaluation, targets, coefs):
            return ppo_loss(evaluation, targets, coefs)

    (ours, found), (theirs, wanted) = learned(Same, 1, 3), learned(PPO, 1, 3)
    for agent, other in zip(ours, theirs, strict=True):
        assert torch.equal(weights_of(agent), weights_of(other))
    for index in (0, 1):
        torch.testing.assert_close(found[index]["loss"], wanted[index]["loss"])


def test_it_is_the_loss_of_all_epochs_also_of_members_that_continue_after_others():
    """A constant loss has a gradient of zero, and Adam's first steps from zero moments are zero."""

    class Constant(PPO):
        algo = "Constant"

        @staticmethod
        def loss(evaluation, targets, coefs):
            return 7 * ((1 + 0 * evaluation.values) * targets.share).sum(-1)

    agents, metrics = learned(Constant, 1, 3)
    before, _ = learned(Constant, 1, 3, learns=0)
    for index, (agent, initial) in enumerate(zip(agents, before, strict=True)):
        assert agent.learner.updates == 2
        assert torch.equal(weights_of(agent), weights_of(initial))
        assert float(metrics[index]["loss"]) == pytest.approx(7)  # the shares of a minibatch sum to 1


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (lambda evaluation, targets, coefs: ppo_loss(evaluation, targets, coefs).sum(), r"shape \(\)"),
        (lambda evaluation, targets, coefs: evaluation.values * targets.share, r"shape \(1, 8\)"),
        (lambda evaluation, targets, coefs: None, "None"),
        (lambda evaluation, targets, coefs: targets.returns.sum(-1), r"shape \(1,\), which is constant"),
    ],
)
def test_a_result_that_is_no_loss_is_named(wrong, found):
    class Wrong(PPO):
        algo = "Wrong"
        loss = staticmethod(wrong)

    message = rf"<lambda> returned {found}; allowed is a number for each member, shape \(1,\), that depends on the eval"
    with pytest.raises(ConfigurationError, match=message):
        learned(Wrong, 1)


def test_a_loss_that_takes_other_arguments_is_refused_when_an_agent_is_made():
    class Bound(PPO):
        algo = "Bound"

        def loss(evaluation, targets, coefs):  # noqa: N805  # the decorator is missing
            return ppo_loss(evaluation, targets, coefs)

    with pytest.raises(ConfigurationError, match=r"Bound\.loss cannot be called with .*; allowed is a @staticmethod"):
        learned(Bound, 1)


def test_a_team_has_one_too(tmp_path):
    class Still(IPPO):
        algo = "Still"

        @staticmethod
        def loss(evaluation, targets, coefs):
            return (0 * evaluation.values * targets.share).sum(-1)

    env = make_multi_agent_vect_envs("mpe2.simple_spread_v3", num_envs=2, backend="sync")
    pop = Still.population(
        1, env.single_observation_spaces, env.single_action_spaces, num_envs=2, net_config=SMALL, seed=1
    )
    before = [weights_of(learner) for learner in pop[0].learners.values()]
    run = {"max_steps": 128, "evo_steps": 64, "eval_loop": 1, "eval_steps": 5, "verbose": False}
    pop[0].learn_step, pop[0].batch_size = 32, 32
    pop, _ = train_multi_agent_on_policy(env, pop=pop, run_dir=tmp_path / "run", **run)
    env.close()
    for learner, initial in zip(pop[0].learners.values(), before, strict=True):
        assert learner.updates > 0
        assert torch.equal(weights_of(learner), initial)
    run = Run.open(tmp_path / "run")
    assert type(run.population()[0]) is Still
    env = run.env()
    assert env.single_observation_spaces.keys() == {"agent_0", "agent_1", "agent_2"}
    env.close()


def test_a_team_with_one_is_configured_as_ippo_is():
    class Quiet(IPPO):
        algo = "Quiet"

    configured = config_class("Quiet")
    assert configured.env_setup_class is MultiAgentEnvSetup
    algorithm = {"name": "Quiet", "groups": {"agent_0": "a", "agent_1": "a", "agent_2": "b"}, "batch_size": 64}
    config = configured.model_validate({"environment": {"id": "mpe2.simple_spread_v3"}, "algorithm": algorithm})
    assert config.algorithm_class is Quiet
    assert config.algorithm.groups == algorithm["groups"]


def test_an_algorithm_that_is_defined_again_is_the_one_that_configurations_train():
    """As by a notebook cell that is executed twice, whose class has the same module and name."""

    def defined(coefficient):
        class Again(PPO):
            algo = "Again"

            @staticmethod
            def loss(evaluation, targets, coefs):
                return coefficient * ppo_loss(evaluation, targets, coefs)

        return Again

    for coefficient in (1.0, 2.0):
        again = defined(coefficient)
        assert config_class("Again").algorithm_class is again
        assert config_class("Again") is config_class("Again")


def gradient_by_log_prob(loss, log_ratio, advantage, clip_coef=0.2):
    """The derivative of a loss of one sample by its log-probability."""
    log_probs = torch.tensor([[log_ratio]], requires_grad=True)
    zero, one = torch.zeros(1, 1), torch.ones(1, 1)
    targets = Targets(zero, torch.tensor([[advantage]]), zero, zero, one)
    coefs = LossCoefs(clip_coef * one, torch.inf * one, zero, one, clips_values=False)
    (found,) = torch.autograd.grad(loss(PolicyEval(log_probs, zero, zero), targets, coefs).sum(), log_probs)
    return float(found)


def test_the_scripts_loss_leads_ratios_back():
    """d/dr of |A| (r - 1)^2 / 2c - r A is |A| (r - 1) / c - A, times r by the chain rule: 0 where r = 1 + c sign A."""
    loss = runpy.run_path(str(SCRIPT))["SPO"].loss
    for advantage in (2.0, -2.0):
        sign = advantage / 2
        for ratio in (1.0, 1.2, 1.4, 0.8, 0.6):
            wanted = ratio * (2 * (ratio - 1) / 0.2 - advantage)
            log_ratio = float(torch.tensor(ratio).log())
            assert gradient_by_log_prob(loss, log_ratio, advantage) == pytest.approx(wanted, abs=1e-5)
        beyond = float(torch.tensor(1 + 0.4 * sign).log())
        assert gradient_by_log_prob(loss, beyond, advantage) * sign > 0  # a step of descent goes back
        assert gradient_by_log_prob(ppo_loss, beyond, advantage) == 0


@pytest.mark.slow
def test_the_script_trains_and_loads_its_agent(tmp_path):
    assert run_script(SCRIPT, tmp_path).splitlines()[-1].startswith("SPO(index=")


def test_a_resumed_run_and_a_loaded_agent_have_it(tmp_path):
    class Halved(PPO):
        algo = "Halved"

        @staticmethod
        def loss(evaluation, targets, coefs):
            return 0.5 * ppo_loss(evaluation, targets, coefs)

    env = make_vect_envs("CartPole-v1", num_envs=2, backend="sync")
    spaces = env.single_observation_space, env.single_action_space
    pop = Halved.population(1, *spaces, num_envs=2, net_config=SMALL, learn_step=16, batch_size=16, seed=1)
    run = {"evo_steps": 32, "eval_loop": 1, "eval_steps": 5, "verbose": False}
    train_on_policy(env, pop=pop, run_dir=tmp_path / "run", max_steps=32, **run)
    resumed, _ = train_on_policy(env, resume=tmp_path / "run", max_steps=64, **run)
    env.close()
    assert type(resumed[0]) is Halved
    assert type(Population.load(tmp_path / "run" / "population")[0]) is Halved
