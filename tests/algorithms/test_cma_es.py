"""CMAES: the package's search in the engine: samples, updates, files to the bit, mutations, errors."""

import copy
import sys

import gymnasium
import numpy as np
import pytest
import torch

from agilerl_like import CMAES, make_vect_envs
from agilerl_like.algorithms.population import Population
from agilerl_like.envs.vec_adapter import VecEnvAdapter
from agilerl_like.errors import CheckpointError, ConfigurationError
from agilerl_like.hpo import Mutation
from agilerl_like.learning.covariance_search import CovarianceSearch
from agilerl_like.learning.perturbations import ReturnsUpdate
from agilerl_like.training.collector import Collector, PhaseTimer

OBS, ACTIONS = gymnasium.spaces.Box(-1.0, 1.0, (4,)), gymnasium.spaces.Discrete(2)


def agent(obs=OBS, actions=ACTIONS, **changed):
    return CMAES(obs, actions, **{"seed": 1, "num_envs": 6, "learn_step": 240, **changed})


def flat(member):
    return torch.cat([parameter.detach().flatten() for parameter in member.network.parameters()])


def collected(pop, steps):
    env = make_vect_envs("CartPole-v1", num_envs=len(pop) * pop[0].num_envs, backend="torch")
    collector = Collector(pop, VecEnvAdapter(env), PhaseTimer(("env", "act", "learn")))
    collector.reset(range(len(pop)))
    while steps > 0:
        steps -= collector.collect(min(steps, collector.vector_steps_until_update))
        collector.learn()
    env.close()


def cartpole(**changed):
    env = make_vect_envs("CartPole-v1", num_envs=1)
    return agent(env.single_observation_space, env.single_action_space, **changed)


def test_the_search_finds_the_minimum_of_an_ellipsoid():
    centre, scales = np.array([1.0, -2.0, 0.5, 3.0]), np.array([1.0, 10.0, 100.0, 1000.0])
    search = CovarianceSearch(np.zeros(4, np.float32), 0.5, 12, given_sigma=0.5)
    for generation in range(200):
        samples = search._cma.mean + search.offsets(generation)
        search.learn(generation, -(scales * (samples - centre) ** 2).sum(1))
    np.testing.assert_allclose(search.weights, centre, atol=1e-4)


def test_samples_have_the_covariance_of_the_search():
    search = CovarianceSearch(np.zeros(3, np.float32), 0.5, 4_000, given_sigma=0.5)
    covariance = np.array([[4.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 9.0]])
    search._cma._C, search._cma._B, search._cma._D = covariance, None, None
    search._cma._eigen_decomposition()
    found = np.cov(search.offsets(3).T)
    np.testing.assert_allclose(
        found, 0.25 * covariance, atol=0.15
    )  # standard errors are below 0.25 * 9 * sqrt(2 / 4000)
    assert np.array_equal(search.offsets(3), search.offsets(3))


def test_an_axis_of_zero_gets_the_least_length():
    search = CovarianceSearch(np.zeros(3, np.float32), 0.5, 6, given_sigma=0.5)
    search._cma._C, search._cma._B, search._cma._D = np.diag([4.0, 0.0, 9.0]), None, None
    search._decompose()
    np.testing.assert_allclose(search._cma._D, [1e-4, 2.0, 3.0])
    search.learn(1, np.arange(6.0))
    search = CovarianceSearch.from_tensors(search.tensors(), 6)  # which refuses axes of 0
    assert np.isfinite([*search.weights, search.sigma]).all()


def test_an_update_is_the_package_s():
    from cmaes import CMA

    member = agent()
    learner, before = member.learner, flat(member).double().numpy()
    offsets = learner.offsets(learner.sigma).double().numpy()
    assert offsets.shape == (6, member.parameter_count)
    theirs = CMA(before, 0.5, population_size=6)
    returns = np.array([3.0, 1.0, 2.0, 5.0, 4.0, 0.0])
    theirs.tell([(before + its, -score) for its, score in zip(offsets, returns, strict=True)])
    search = learner.search
    search.learn(learner.perturbation_seed, returns)
    np.testing.assert_allclose(search._cma.mean, theirs.mean, atol=1e-6)
    assert search.sigma == pytest.approx(theirs._sigma, rel=1e-6)


def learned(one, other):
    """The weights after one update from the returns of samples on one instance and on another, which alternate."""
    pop = Population([agent(num_envs=8)])
    returns = torch.tensor([one, other]).T.reshape(1, 8)
    data = ReturnsUpdate(returns, torch.zeros(1, 2, 4), torch.zeros(1, 2), instances=2)
    pop.learners.cohort.learn([0], pop.learners.make_update([*pop.learners], data, [pop[0].sigma]))
    return flat(pop[0])


def test_samples_are_compared_within_their_instance():
    found = learned([1.0, 4.0, 2.0, 6.0], [3.0, 8.0, 5.0, 7.0])
    assert torch.equal(found, learned([1.0, 4.0, 2.0, 6.0], [1_003.0, 1_008.0, 1_005.0, 1_007.0]))
    other = learned([6.0, 2.0, 4.0, 1.0], [1_003.0, 1_008.0, 1_005.0, 1_007.0])
    assert not torch.allclose(found, other, atol=1e-3)  # although every return on the other instance is higher


def test_equal_scores_count_in_the_order_of_the_samples():
    searches = [CovarianceSearch(np.zeros(3, np.float32), 0.5, 4, given_sigma=0.5) for _ in range(2)]
    searches[0].learn(1, np.zeros(4), first=1)
    searches[1].learn(1, np.array([0.0, 3.0, 2.0, 1.0]))
    assert np.array_equal(searches[0].weights, searches[1].weights)
    assert [search.generation for search in searches] == [1, 1]


def test_copies_and_files_continue_to_the_bit(tmp_path):
    member = cartpole()
    collected(Population([member]), 100)
    assert member.learner.updates > 1
    member.save_checkpoint(tmp_path / "agent")
    copies = [member.clone(), copy.deepcopy(member), CMAES.load(tmp_path / "agent")]
    for one in (member, *copies):
        collected(Population([one]), 100)
    for one in copies:
        assert torch.equal(flat(one), flat(member))
        for name, tensor in member.learner.search.tensors().items():
            assert torch.equal(one.learner.search.tensors()[name], tensor)


def test_members_together_search_as_they_do_alone():
    members = [cartpole(index=index) for index in range(2)]
    together = Population([member.clone() for member in members])
    collected(together, 100)
    alone = Population([members[0].clone()])
    collected(alone, 100)
    assert alone[0].learner.updates == together[0].learner.updates > 1
    torch.testing.assert_close(flat(alone[0]), flat(together[0]), rtol=1e-4, atol=1e-5)


def test_a_mutation_begins_the_covariance_again_and_keeps_the_step_size():
    member = agent()
    member.learner.search.learn(3, np.arange(6.0))
    with torch.no_grad():
        for parameter, its in zip(
            member.network.parameters(),
            torch.from_numpy(member.learner.search.weights).split([p.numel() for p in member.network.parameters()]),
            strict=True,
        ):
            parameter.copy_(its.view(parameter.shape))
    before = member.learner.search
    assert before is member.learner.search
    step = before.sigma
    assert step != 0.5
    done = member.learner.mutate(Mutation("architecture", "add_latent_node", {"nodes": 4}))
    assert done.kind == "architecture"
    assert member.learner.search._cma.dim == member.parameter_count
    assert member.learner.search.sigma == step
    member.sigma = 0.25
    assert member.learner.search.sigma == 0.25


def test_returns_of_samples_that_another_step_size_drew_do_not_count():
    pop = Population([cartpole(sigma=0.05)])
    env = make_vect_envs("CartPole-v1", num_envs=6, backend="torch")
    collector = Collector(pop, VecEnvAdapter(env), PhaseTimer(("env", "act", "learn")))
    collector.reset([0])
    collector.collect(8)  # the samples of the first generation act
    before, pop[0].sigma = flat(pop[0]), 0.5
    while pop[0].learner.updates == 0:
        collector.learn()
        collector.collect(collector.vector_steps_until_update)
    torch.testing.assert_close(flat(pop[0]), before, rtol=0, atol=0)
    while pop[0].learner.updates == 1:
        collector.learn()
        collector.collect(collector.vector_steps_until_update)
    assert not torch.equal(flat(pop[0]), before)
    env.close()


def test_a_network_does_not_grow_beyond_the_limit():
    part = {"hidden_size": [36], "min_mlp_nodes": 4}
    member = agent(net_config={"latent_dim": 16, "encoder_config": part, "head_config": part})
    before = member.parameter_count
    done = member.learner.mutate(Mutation("architecture", "add_latent_node", {"nodes": 16}))
    assert done.kind == "none"
    assert "weights" in done.details["refused"]
    assert member.parameter_count == before


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_envs": 3}, r"num_envs=3 is too few .* allowed are 4 and more"),
        ({"net_config": {"encoder_config": {"hidden_size": [64, 64]}}}, r"weights=\d+; CMAES allows at most 2000"),
        ({"obs": gymnasium.spaces.Box(0, 255, (3, 12, 12), np.uint8)}, r"weights=\d+; CMAES allows at most 2000"),
        ({"sigma": -1.0}, r"sigma=-1\.0"),
        ({"lr": 0.1}, "'lr' is unknown"),
    ],
)
def test_bad_input(changed, message):
    with pytest.raises(ConfigurationError, match=message):
        agent(**changed)


def test_a_missing_package_is_one_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "cmaes", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'agilerl-like\[cmaes\]'"):
        agent()


def test_a_file_with_another_covariance_is_refused(tmp_path):
    member = agent()
    document, tensors = member.to_documents()
    for change in ({"cma.C": torch.zeros(2, 2, dtype=torch.float64)}, {"cma.D": -tensors["cma.D"]}):
        with pytest.raises(CheckpointError, match=r"cma\."):
            CMAES.from_documents(document, {**tensors, **change}, device="cpu", where="here")
