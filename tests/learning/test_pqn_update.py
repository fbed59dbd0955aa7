"""Q(lambda) targets by hand, and the steps of an update: one by a formula, and of members with unequal numbers."""

import copy

import gymnasium
import numpy as np
import pytest
import torch
from small_runs import SMALL
from torch.nn import functional as F

from agilerl_like import PQN
from agilerl_like.algorithms.pqn import update_of
from agilerl_like.hpo import Mutation
from agilerl_like.learning.pqn_update import q_samples
from agilerl_like.learning.rollout_buffer import FinalObservations, Rollout
from agilerl_like.networks.observation_norm import NoNorm

OBS, ACTIONS = gymnasium.spaces.Box(-1.0, 1.0, (4,)), gymnasium.spaces.Discrete(3)
GAMMA = 0.5


class Table:
    """The best action is worth 1, 2, 3 and 4 in states 0 to 3, 10 in state 4 and 20 in state 5; the other 8 less."""

    observation_norm = NoNorm()

    def q_values(self, x):
        best = torch.tensor([1.0, 2.0, 3.0, 4.0, 10.0, 20.0])[x.squeeze(-1).long()]
        return torch.stack([best, best - 8], -1)


def steps(states=(0, 1, 2, 3), ended=(), terminated=(), invalid=(), last=(), masks=None, next_masks=None):
    """Four steps of one env that pay 1, 2, 3, 4 and lead to state 4; `last` has time and state of last observations."""

    def column(values):
        return torch.tensor(values, dtype=torch.float32).view(-1, 1, 1)

    def flags(places):
        return column([float(t in places) for t in range(4)])

    time, state = (torch.tensor(x, dtype=torch.int64) for x in (zip(*last, strict=True) if last else ((), ())))
    return Rollout.from_steps(
        observations=column(states).unsqueeze(-1),
        actions=torch.zeros(4, 1, 1, 1, dtype=torch.int64),
        rewards=column((1.0, 2.0, 3.0, 4.0)),
        terminated=flags(terminated),
        ended=flags(ended),
        valid=1 - flags(invalid),
        next_observations=torch.full((1, 1, 1), 4.0),
        final_observations=FinalObservations.of(time, time * 0, time * 0, state.float().unsqueeze(-1), members=1),
        masks=None if masks is None else torch.tensor(masks).view(4, 1, 1, 2),
        state=torch.zeros(1, 1, 0, 0, 0),
        next_masks=None if next_masks is None else torch.tensor(next_masks).view(4, 1, 1, 2),
    )


def targets(q_lambda, **given):
    _, _, found, weight = q_samples(Table(), steps(**given), torch.tensor([GAMMA]), torch.tensor([q_lambda]))
    return found[0].tolist(), weight[0].tolist()


def test_with_lambda_0_targets_are_those_of_one_step_q_learning():
    # r + V / 2: 1 + 1, 2 + 1.5, 3 + 2, 4 + 5
    assert targets(0.0)[0] == pytest.approx([2.0, 3.5, 5.0, 9.0])


def test_with_lambda_1_targets_are_discounted_returns_with_the_value_after_the_rollout():
    # from the end: 4 + 10 / 2 = 9, 3 + 9 / 2 = 7.5, 2 + 7.5 / 2 = 5.75, 1 + 5.75 / 2 = 3.875
    assert targets(1.0)[0] == pytest.approx([3.875, 5.75, 7.5, 9.0])


def test_between_them_targets_mix_the_next_value_and_the_next_target():
    # 9, 3 + (4 + 9) / 4 = 6.25, 2 + (3 + 6.25) / 4 = 4.3125, 1 + (2 + 4.3125) / 4 = 2.578125
    assert targets(0.5)[0] == pytest.approx([2.578125, 4.3125, 6.25, 9.0])


def test_nothing_follows_a_termination():
    # step 1 ends the episode: 2; step 0: 1 + (2 + 2) / 4
    assert targets(0.5, terminated=(1,), ended=(1,))[0] == pytest.approx([2.0, 2.0, 6.25, 9.0])


def test_a_truncated_step_is_bootstrapped_with_its_last_observation():
    # step 1 leads to state 5, whose value is 20: 2 + 20 / 2 = 12; step 0: 1 + (2 + 12) / 4
    assert targets(0.5, ended=(1,), last=[(1, 5)])[0] == pytest.approx([4.5, 12.0, 6.25, 9.0])


def test_a_row_without_an_action_has_no_weight_and_gives_its_state_to_the_step_before():
    """With next-step autoreset the row behind a truncated step holds its last observation, here state 5."""
    found, weight = targets(0.5, states=(0, 1, 5, 3), ended=(1,), invalid=(2,))
    assert weight == [1.0, 1.0, 0.0, 1.0]
    assert [found[i] for i in (0, 1, 3)] == pytest.approx([4.5, 12.0, 9.0])


def test_only_legal_actions_count_in_the_value_of_the_next_state():
    """The best action is illegal in state 2, after the rollout, and in the last observation of the episode of step 0.

    Values are 3 - 8 = -5, 10 - 8 = 2 and 20 - 8 = 12, so targets 3 + 4 / 2 = 5 and 4 + 2 / 2 = 5 at the end, with
    lambda 1/2: 3 + (4 + 5) / 4 = 5.25, 2 + (-5 + 5.25) / 4 = 2.0625, and 1 + 12 / 2 = 7.
    """
    both, second, none = (True, True), (False, True), (False, False)
    masks = (both, both, second, none)  # a row that allows nothing allows everything
    found, _ = targets(0.5, ended=(0,), last=[(0, 5)], masks=masks, next_masks=(second, second, both, second))
    assert found == pytest.approx([7.0, 2.0625, 5.25, 5.0])


# -- steps


def random_rollout(members, length=8, envs=2, seed=0):
    stream = torch.Generator().manual_seed(seed)
    shape = length, members, envs
    ended = (torch.rand(shape, generator=stream) < 0.2).float()
    return Rollout.from_steps(
        observations=torch.randn(*shape, 4, generator=stream),
        actions=torch.randint(3, (*shape, 1), generator=stream),
        rewards=torch.randn(shape, generator=stream),
        terminated=ended,
        ended=ended,
        valid=torch.ones(shape),
        next_observations=torch.randn(members, envs, 4, generator=stream),
        final_observations=FinalObservations.none(torch.zeros(1, 4), members),
        masks=None,
        state=torch.zeros(members, envs, 0, 0, 0),
    )


def agent(**settings):
    given = {"net_config": SMALL, "learn_step": 16, "batch_size": 16, "num_envs": 2, "seed": 1}
    return PQN(OBS, ACTIONS, **{**given, **settings})


def learned(member, rollout):
    return member.learner.cohort.learn([member.learner.row], update_of([member.learner], rollout))


@pytest.mark.parametrize("dueling", [False, True])
def test_a_step_is_that_of_the_formula(dueling):
    """One minibatch of the whole rollout, by torch's Adam: mean squared error, clipped by the norm over all weights."""
    member, rollout = agent(dueling=dueling, lr=1e-2, max_grad_norm=0.1, update_epochs=3), random_rollout(1)
    q = copy.deepcopy(member.network)
    with torch.no_grad():
        x, actions, goal, _ = q_samples(q, rollout, torch.tensor([0.99]), torch.tensor([0.65]))
    optimizer = torch.optim.Adam(q.parameters(), lr=1e-2, eps=1e-5)
    losses, norms = [], []
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.mse_loss(q.q_values(x[0]).gather(1, actions[0]).squeeze(1), goal[0])
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(q.parameters(), 0.1)))
        optimizer.step()
        losses.append(loss.item())
    report = learned(member, rollout)
    assert float(report["loss"]) == pytest.approx(np.mean(losses), rel=1e-4)
    assert float(report["grad_norm"]) == pytest.approx(np.mean(norms), rel=1e-4)
    for own, expected in zip(member.network.parameters(), q.parameters(), strict=True):
        torch.testing.assert_close(own, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("optimizer", ["adamw", "rmsprop", "sgd"])
def test_other_optimizers_step_as_torch_does(optimizer):
    own = {"adamw": torch.optim.AdamW, "rmsprop": torch.optim.RMSprop, "sgd": torch.optim.SGD}[optimizer]
    member = agent(optimizer=optimizer, weight_decay=0.1, lr=1e-2, update_epochs=1, max_grad_norm=None)
    q, rollout = copy.deepcopy(member.network), random_rollout(1)
    with torch.no_grad():
        x, actions, goal, _ = q_samples(q, rollout, torch.tensor([0.99]), torch.tensor([0.65]))
    settings = {} if optimizer == "sgd" else {"eps": 1e-5}
    steps_by_torch = own(q.parameters(), lr=1e-2, weight_decay=0.1, **settings)
    F.mse_loss(q.q_values(x[0]).gather(1, actions[0]).squeeze(1), goal[0]).backward()
    steps_by_torch.step()
    learned(member, rollout)
    for mine, expected in zip(member.network.parameters(), q.parameters(), strict=True):
        torch.testing.assert_close(mine, expected, atol=1e-5, rtol=0)


def varied(size):
    pop = PQN.population(
        size, OBS, ACTIONS, net_config=SMALL, learn_step=16, batch_size=4, num_envs=2, seed=5, update_epochs=2
    )
    for place, member in enumerate(pop):
        member.lr, member.gamma, member.q_lambda = 1e-3 * (place + 1), 0.9 + 0.03 * place, 0.3 * place
        member.max_grad_norm, member.update_epochs = (0.5, None, 10.0)[place], (2, 2, 3)[place]
    choice = dict(pop[1].architecture.choices("encoder.add_node")[-1])
    pop[1].apply_genome(pop[1].genome, (Mutation("architecture", "encoder.add_node", choice),))
    return pop


@pytest.mark.parametrize("per_member", [False, True])
def test_members_learn_together_as_alone(per_member):
    together, alone, rollout = varied(3), varied(3), random_rollout(3)
    for member in together:
        member.per_member = per_member
    reports = together.learners.learn([2, 0, 1], lambda places, _: rollout[torch.tensor(places)])
    for place, member in enumerate(alone):
        single = type(together)([member])
        (own,) = single.learners.learn([0], lambda *_, place=place: rollout[place : place + 1]).values()
        for mine, expected in zip(together[place].network.parameters(), member.network.parameters(), strict=True):
            torch.testing.assert_close(mine, expected, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(reports[place]["loss"], own["loss"], atol=1e-6, rtol=1e-5)
        assert together[place].learner.optimizer.steps.item() == 4 * member.update_epochs
        assert together[place].learner.env_steps == 16


def test_minibatches_without_an_action_of_a_member_leave_its_weights_and_moments():
    """Its sixteen rows have one action; of the four minibatches of each of two epochs one has it."""
    pop, rollout = varied(2), random_rollout(2)
    rollout.valid[0] = 0.0
    rollout.valid[0, 3, 1] = 1.0
    pop.learners.learn([0, 1], lambda *_: rollout)
    assert [member.learner.optimizer.steps.item() for member in pop] == [2.0, 8.0]
    rollout.valid[0] = 0.0
    before = [weight.clone() for weight in pop[0].network.parameters()]
    assert [*pop.learners.learn([0, 1], lambda *_: rollout)] == [1]
    assert all(map(torch.equal, before, pop[0].network.parameters()))


def test_a_schedule_is_a_factor_on_the_rate_of_the_update():
    member, rollout = agent(schedules={"lr": "linear"}), random_rollout(1)
    group = type(PQN.population(1, OBS, ACTIONS))([member])
    member.progress = 0.75
    (report,) = group.learners.learn([0], lambda *_: rollout).values()
    assert float(report["lr"]) == pytest.approx(0.25 * member.lr)
    assert float(report["epsilon"]) == pytest.approx(0.05)
