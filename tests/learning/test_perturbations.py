"""Perturbations, rank shaping, the estimated gradient and the step along it, against values by hand."""

import copy
from dataclasses import replace

import gymnasium
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agilerl_like import OpenAIES, Population
from agilerl_like.hpo import Mutation
from agilerl_like.learning.perturbations import (
    GradientUpdate,
    antithetic_pairs,
    centred_ranks,
    estimated_gradient,
    standardized,
    within_instances,
)

SMALL = {
    "latent_dim": 8,
    "encoder_config": {"hidden_size": [8], "min_mlp_nodes": 4},
    "head_config": {"hidden_size": [8], "min_mlp_nodes": 4},
}
SPACES = gymnasium.spaces.Box(-1.0, 1.0, (3,)), gymnasium.spaces.Discrete(2)


def test_pairs_are_opposite_and_drawn_from_their_seed_alone():
    first, again, other = antithetic_pairs(5, 4, 100), antithetic_pairs(5, 4, 100), antithetic_pairs(6, 4, 100)
    assert torch.equal(first[::2], -first[1::2])
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    many = antithetic_pairs(1, 500, 200)
    assert abs(float(many.std()) - 1) < 0.02
    assert not torch.equal(many[0], many[2])


def test_both_of_a_pair_play_the_same_instance():
    rows = antithetic_pairs(5, 4, 3, instances=2)  # instances 0 1 0 1 0 1 0 1
    for one, other in ((0, 2), (1, 3), (4, 6), (5, 7)):
        assert torch.equal(rows[one], -rows[other])
    assert torch.equal(rows[[0, 1, 4, 5]], antithetic_pairs(5, 4, 3)[::2])  # the same draws as of one instance


@pytest.mark.parametrize(
    ("returns", "ranks"),
    [
        ([3.0, 1.0, 2.0], [0.5, -0.5, 0.0]),
        ([5.0, 5.0, 1.0, 9.0], [0.0, 0.0, -0.5, 0.5]),  # places 1 and 2 of 0 to 3: 1.5 / 3 - 0.5
        ([7.0, 7.0, 7.0, 7.0], [0.0, 0.0, 0.0, 0.0]),
        ([-1e9, 0.0, 1.0, 1.0, 1e9], [-0.5, -0.25, 0.125, 0.125, 0.5]),
    ],
)
def test_ranks(returns, ranks):
    assert centred_ranks(torch.tensor(returns)).tolist() == ranks


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=30))
@settings(deadline=None)
def test_ranks_sum_to_zero_and_ignore_scale(returns):
    ranks = centred_ranks(torch.tensor(returns).double())
    assert abs(float(ranks.sum())) < 1e-9
    assert torch.equal(ranks, centred_ranks(3.0 * torch.tensor(returns).double() + 7.0))
    assert torch.equal(ranks.argsort(stable=True), torch.tensor(returns).argsort(stable=True))


def test_standardized_returns():
    # mean 3, standard deviation sqrt((4 + 0 + 4) / 3)
    expected = torch.tensor([-2.0, 0.0, 2.0]) / (8 / 3) ** 0.5
    torch.testing.assert_close(standardized(torch.tensor([1.0, 3.0, 5.0])), expected)
    for equal in (0.0, 0.1, 4.0, 1e8):
        assert standardized(torch.full((5,), equal)).tolist() == [0.0] * 5


@pytest.mark.parametrize("scale", [1e-12, 1e-7, 1e7])
def test_standardized_returns_do_not_depend_on_the_unit_of_rewards(scale):
    returns = torch.tensor([1.0, 2.0, 3.0, 4.0])
    torch.testing.assert_close(standardized(scale * returns), standardized(returns))


def test_returns_are_compared_within_their_instance():
    returns = torch.tensor([10.0, 100.0, 9.0, 90.0])  # 10 and 9 of one instance, 100 and 90 of the other
    assert within_instances(centred_ranks, returns, 2).tolist() == [0.5, 0.5, -0.5, -0.5]
    # means 9.5 and 95, standard deviations 0.5 and 5
    assert within_instances(standardized, returns, 2).tolist() == [1.0, 1.0, -1.0, -1.0]
    many = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    for shaping in (centred_ranks, standardized):
        assert torch.equal(within_instances(shaping, many, 1), shaping(many))


def test_the_gradient_of_a_quadratic():
    size, sigma = 6, 0.3
    stream = torch.Generator().manual_seed(0)
    factor, centre, at = (torch.randn(*shape, generator=stream).double() for shape in ((size, size), (size,), (size,)))
    curvature = factor @ factor.T

    def f(w):
        return -0.5 * ((w - centre) @ curvature * (w - centre)).sum(-1)

    analytic = -curvature @ (at - centre)
    pairs = antithetic_pairs(3, 20_000, size).double()
    estimate = estimated_gradient(f(at + sigma * pairs), pairs, sigma)
    # f(w + s e) - f(w - s e) = 2 s e'g exactly, so the estimate is the mean of e e'g over the pairs
    half = pairs[::2]
    torch.testing.assert_close(estimate, (half.T @ (half @ analytic)) / len(half))
    # whose standard error in a component is below |g| sqrt(2 / pairs): 1% of |g|
    assert float((estimate - analytic).norm()) < 0.05 * float(analytic.norm())
    one_sided = half
    biased = estimated_gradient(f(at + sigma * one_sided), one_sided, sigma)
    assert float((biased - analytic).norm()) > float((estimate - analytic).norm())


@pytest.mark.parametrize(("lr", "updates", "limit"), [(0.03, 50, 0.45), (0.003, 300, 0.1)])
def test_rlibs_defaults_approach_the_optimum_of_a_quadratic(lr, updates, limit):
    sigma = 0.1
    for seed in range(5):
        at = torch.randn(20, generator=torch.Generator().manual_seed(seed))
        at *= 2 / at.norm()
        for update in range(updates):
            pairs = antithetic_pairs(1000 * seed + update, 15, 20)
            utilities = standardized(-(at + sigma * pairs).square().sum(1))
            at += lr * estimated_gradient(utilities, pairs, sigma)
        assert float(at.norm()) <= limit


def member(**changed):
    return OpenAIES(*SPACES, net_config=SMALL, num_envs=4, seed=1, **changed)


def flat(agent):
    return torch.cat([x.detach().flatten() for x in agent.network.parameters()])


def update_of(agent, returns, **changed):
    data = {
        "returns": torch.tensor([returns]),
        "observations": torch.zeros(1, 2, 3),
        "counts": torch.zeros(1, 2),
        "seeds": [7],
        "sigma": torch.tensor([0.5]),
        "lr": torch.tensor([0.1]),
        "weight_decay": torch.tensor([0.25]),
        "shaping": ["ranks"],
        "optimizer": "adam",
        "betas": [None],
    }
    return GradientUpdate(**{**data, **changed})


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_step_is_that_of_torch(optimizer):
    agent = member()
    before = copy.deepcopy([*agent.network.parameters()])
    kinds = {"adam": lambda its: torch.optim.Adam(its, 0.1, eps=1e-5, weight_decay=0.25)}
    kinds["sgd"] = lambda its: torch.optim.SGD(its, 0.1, momentum=0.9, weight_decay=0.25)
    theirs = kinds[optimizer](before)
    betas = None if optimizer == "adam" else (0.9, 0.0)
    pairs = antithetic_pairs(7, 2, agent.parameter_count)
    utilities = torch.tensor([0.5, -0.5, 1 / 6, -1 / 6])  # the ranks of 9, 1, 5, 3
    gradient = utilities @ pairs / (4 * 0.5)
    for _ in range(3):
        agent.learner.cohort.learn([0], update_of(agent, [9.0, 1.0, 5.0, 3.0], optimizer=optimizer, betas=[betas]))
        start = 0
        for parameter in before:
            parameter.grad = -gradient[start : start + parameter.numel()].view(parameter.shape)
            start += parameter.numel()
        theirs.step()
    for ours, expected in zip(agent.network.parameters(), before, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)


def test_a_step_compares_policies_within_their_instance():
    agent = member()
    before = torch.cat([x.detach().flatten().clone() for x in agent.network.parameters()])
    without_decay = {"optimizer": "sgd", "weight_decay": torch.tensor([0.0])}
    report = agent.learner.cohort.learn([0], update_of(agent, [10.0, 100.0, 9.0, 90.0], instances=2, **without_decay))
    after = torch.cat([x.detach().flatten() for x in agent.network.parameters()])
    first, second = antithetic_pairs(7, 2, agent.parameter_count)[::2]
    # the ranks 0.5 and -0.5 of both opposite pairs, over 4 envs and sigma 0.5; lr is 0.1
    torch.testing.assert_close(after - before, 0.1 * (first + second) / (4 * 0.5), rtol=1e-4, atol=1e-6)
    assert float(report["return_mean"]) == 52.25  # of the returns themselves


def test_statistics_of_observations_follow_from_two_rows():
    agent = member(normalize_observation=True)
    mean, std = torch.tensor([1.0, -2.0, 3.0]), torch.tensor([0.5, 1.0, 2.0])
    rows = torch.stack([mean - std, mean + std])[None]
    agent.learner.cohort.learn(
        [0], update_of(agent, [0.0, 0.0, 0.0, 0.0], observations=rows, counts=torch.full((1, 2), 50.0))
    )
    norm = agent.network.observation_norm
    torch.testing.assert_close(norm.mean, mean)
    torch.testing.assert_close(norm.var, std.square())
    assert norm.count.item() == 100


def state_of(agent):
    moments = agent.optimizer
    return [flat(agent), *(x.clone() for x in (moments.exp_avg, moments.exp_avg_sq, moments.steps))]


@pytest.mark.parametrize("shaping", ["ranks", "standardized"])
@pytest.mark.parametrize(
    ("optimizer", "betas"), [("adam", None), ("adamw", None), ("rmsprop", None), ("sgd", (0.9, 0.0)), ("sgd", None)]
)
def test_equal_returns_move_nothing_but_the_decay(optimizer, betas, shaping):
    agent = member()
    given = {"optimizer": optimizer, "betas": [betas], "shaping": [shaping]}
    without_decay = {**given, "weight_decay": torch.tensor([0.0])}
    agent.learner.cohort.learn([0], update_of(agent, [9.0, 1.0, 5.0, 3.0], **without_decay))
    before = state_of(agent)  # with momentum, where the optimizer has it
    agent.learner.cohort.learn([0], update_of(agent, [2.0, 2.0, 2.0, 2.0], **without_decay))
    assert all(map(torch.equal, before, state_of(agent)))
    agent.learner.cohort.learn([0], update_of(agent, [2.0, 2.0, 2.0, 2.0], **given))
    assert not torch.equal(before[0], state_of(agent)[0])


def test_of_several_members_those_with_equal_returns_stay():
    pop = Population([member(), member(index=1)])
    both = {"observations": torch.zeros(2, 2, 3), "counts": torch.zeros(2, 2), "seeds": [7, 8]}
    both |= {name: torch.full((2,), value) for name, value in (("sigma", 0.5), ("lr", 0.1), ("weight_decay", 0.0))}
    both |= {"shaping": ["ranks"] * 2, "betas": [None] * 2}
    informative, equal, moved = [9.0, 1.0, 5.0, 3.0], [2.0, 2.0, 2.0, 2.0], []
    for returns in ([informative, informative], [equal, informative]):
        before = [flat(agent) for agent in pop]
        pop.learners.cohort.learn([0, 1], replace(update_of(pop[0], equal, **both), returns=torch.tensor(returns)))
        moved.append([not torch.equal(old, flat(agent)) for old, agent in zip(before, pop, strict=True)])
    assert moved == [[True, True], [False, True]]
    assert [agent.optimizer.steps.item() for agent in pop] == [1.0, 2.0]


def test_an_activation_fades_in_over_four_updates():
    agent = member()
    agent.learner.mutate(Mutation("activation", "change_activation", {"activation": "GELU"}))
    left = [agent.network.fade_left()]
    for _ in range(4):
        agent.learner.cohort.learn([0], update_of(agent, [9.0, 1.0, 5.0, 3.0]))
        left.append(agent.network.fade_left())
    assert left == [1.0, 0.75, 0.5, 0.25, 0.0]
