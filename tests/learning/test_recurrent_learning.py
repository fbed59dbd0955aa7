"""Recurrent learning: a rollout gives the values of its single episodes, members together those of each alone."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learner_examples import (
    BOX,
    DIFFERENT,
    DISCRETE,
    ENVS,
    STATE,
    builder,
    member,
    only,
    pick,
    rollout_of,
    shuffle_of,
    values_of,
)
from recurrent_examples import judge, network_of, spec_of, walk, world_of

from agilerl_like.learning.advantages import AdvantageEstimator, compute_advantages
from agilerl_like.learning.optimizer import Adam
from agilerl_like.learning.population_learner import PopulationLearner
from agilerl_like.learning.ppo_update import RolloutUpdate
from agilerl_like.learning.sequences import BPTTSequenceType, SequenceSplit
from agilerl_like.modules.param_stack import ParamStack
from agilerl_like.networks.recurrent_state import resize_hidden

EXACT = {"rtol": 1e-10, "atol": 1e-10}
MODES = st.sampled_from(["same step", "next step"])
CELLS = st.sampled_from(["LSTM", "GRU", "minGRU", "transformer"])
KINDS = st.sampled_from(list(BPTTSequenceType))
GAMMA, LAMBDA = 0.9, 0.8


# -- values of a rollout


def digested(networks, rollout, cut):
    gamma, gae_lambda = (torch.full((len(networks),), number, dtype=torch.float64) for number in (GAMMA, LAMBDA))
    estimator = AdvantageEstimator(gamma, gae_lambda)
    return compute_advantages(ParamStack.of(networks).module, rollout, estimator, cut=cut)[0]


def by_hand(networks, world):
    """Reference values of each member's rows, `[P][E][T]`; before it is stacked."""
    state = world.rollout.state
    with torch.no_grad():
        return [
            [walk(network, rows, state[p, e]) for e, rows in enumerate(world.rows[p])]
            for p, network in enumerate(networks)
        ]


def returns_by_hand(rows, remembered, rewards):
    """Value targets of one env's rows: sums over what followed in the episode, to its end or that of the rollout."""
    found = []
    for start in range(len(rows)):
        total, weight = remembered[start].thought.value.item(), 1.0
        for row, its, reward in zip(rows[start:], remembered[start:], rewards[start:], strict=True):
            if not row.valid:  # no action was taken
                break
            successor = 0.0 if row.end == "terminated" else its.next_value.item()
            total += weight * (reward + GAMMA * successor - its.thought.value.item())
            weight *= GAMMA * LAMBDA
            if row.end:
                break
        found.append(total)
    return torch.tensor(found, dtype=torch.float64)


@settings(max_examples=30)
@given(st.integers(0, 2**31), st.integers(1, 12), MODES, CELLS, st.integers(1, 2), st.booleans())
def test_recurrent_rollout_is_evaluated_as_each_episode_alone(seed, steps, mode, cell, layers, share):
    networks = [network_of(spec_of(cell, layers=layers), i, share=share) for i in range(2)]
    world = world_of(seed, 2, 2, steps, mode, networks[0].state_shape)
    expected = by_hand(networks, world)
    batch = digested(networks, world.rollout, SequenceSplit(steps, steps))  # [P, E, T]
    for p, e in ((0, 0), (0, 1), (1, 0), (1, 1)):
        rows, its = world.rows[p][e], expected[p][e]
        valid = torch.tensor([row.valid for row in rows])
        actions = world.rollout.actions[p, :, e, 0]
        log_probs = [
            judge(networks[p], one.thought.outputs, action)[0] for one, action in zip(its, actions, strict=True)
        ]
        row = batch[p, e]
        log_prob, returns, values, weight = row.old_log_probs, row.returns, row.old_values, row.weight
        assert weight.tolist() == valid.tolist()
        torch.testing.assert_close(log_prob[valid], torch.stack(log_probs)[valid], **EXACT)
        torch.testing.assert_close(values[valid], torch.stack([one.thought.value for one in its])[valid], **EXACT)
        targets = returns_by_hand(rows, its, world.rollout.rewards[p, :, e].tolist())
        torch.testing.assert_close(returns[valid], targets[valid], **EXACT)


@settings(max_examples=20)
@given(st.integers(0, 2**31), st.integers(1, 10), st.integers(1, 11), KINDS, MODES, CELLS, st.booleans())
def test_sequences_begin_with_their_hidden_state(seed, steps, length, kind, mode, cell, share):
    networks = [network_of(spec_of(cell, layers=2), i, share=share) for i in range(2)]
    world, cut = world_of(seed, 2, 2, steps, mode, networks[0].state_shape), SequenceSplit.of_kind(kind, length)
    expected = by_hand(networks, world)
    batch = digested(networks, world.rollout, cut)
    starts, state = batch.starts, batch.state
    counts = state * (1 - starts[..., 0].view(*starts.shape[:2], 1, 1, 1))  # nothing of it where an episode begins
    before = torch.stack([torch.stack([torch.stack([x.before for x in env]) for env in its], 1) for its in expected])
    begins = cut.begins(steps)
    acted = world.rollout.valid[:, begins].flatten(1, 2) > 0
    torch.testing.assert_close(counts[acted], before[:, begins].flatten(1, 2)[acted], **EXACT)


def test_rollouts_of_networks_without_recurrence_are_not_split():
    flats = []
    for cut in (None, SequenceSplit(5, 5), SequenceSplit(4, 2)):
        cohort = PopulationLearner(*zip(*(member(i) for i in range(2)), strict=True))
        asked = {} if cut is None else {"cut": cut}
        rollout = rollout_of(2, invalid=True)
        cohort.learn(
            range(2), RolloutUpdate(rollout, values_of(2), batch_size=10, shuffle=shuffle_of(range(2)), **asked)
        )
        flats.append(cohort.stacked.flat)
    assert torch.equal(flats[0], flats[1])
    assert torch.equal(flats[0], flats[2])


# -- members together


@st.composite
def populations(draw):
    """A few random specs, which differ in kind and size of their memories too."""
    dropout = draw(st.sampled_from([0.0, 0.4]))
    sizes = st.integers(2, 6)
    return [
        spec_of(draw(CELLS), draw(sizes), draw(st.integers(1, 2)), draw(sizes), draw(sizes), dropout=dropout)
        for _ in range(draw(st.integers(2, 3)))
    ]


def born(seed, spec, action_space, *, share):
    """A member that has learned before, some of whose outputs are silent."""
    network = network_of(spec, seed, action_space, share=share, normalised=True)
    generator = torch.Generator().manual_seed(seed)
    for layer in network.modules():
        if hasattr(layer, "resample_"):
            layer.resample_(generator)
    moments = 1e-3 * torch.rand(2, 1, sum(p.numel() for p in network.parameters()), generator=generator).double()
    return network, Adam(*moments, torch.tensor([10.0 * seed], dtype=torch.float64))


def remembered(networks, room):
    """Random hidden states, each in the leading corner of the padded state `[P, E, M, K, H]`."""
    states = torch.randn(len(networks), ENVS, *room, generator=torch.Generator().manual_seed(4)).double()
    corners = [resize_hidden(state, network.state_shape) for state, network in zip(states, networks, strict=True)]
    return torch.stack([resize_hidden(corner, room) for corner in corners])


def cohort_of(members, action_space, *, share, batch_size):
    build = builder(action_space, share=share)
    return PopulationLearner(
        *zip(*members, strict=True), build=lambda _, spec: build(spec).double(), batch_size=batch_size
    )


FEW, SOME = 1e-6, 4e4  # samples in a minibatch: the fewer, the more members share a stack
STACKS = st.sampled_from([FEW, SOME])


@settings(max_examples=8)
@given(populations(), st.sampled_from([DISCRETE, BOX]), STACKS, st.booleans(), KINDS, st.integers(1, 12))
def test_members_learn_together_what_they_learn_alone(specs, action_space, stacks, share, kind, length):
    count, cut = len(specs), SequenceSplit.of_kind(kind, length)
    members = [born(i, spec, action_space, share=share) for i, spec in enumerate(specs)]
    together = cohort_of(members, action_space, share=share, batch_size=stacks)
    state = remembered([network for network, _ in members], together.state_shape)
    rollout = rollout_of(count, action_space, invalid=True).replace(state=state)
    numbers = {name: column[:count] for name, column in DIFFERENT.items()}
    values = values_of(
        count, **{**numbers, "target_kl": [math.inf] * count}
    )  # a KL at its limit may fall to either side
    report = together.learn(
        range(count), RolloutUpdate(rollout, values, batch_size=24, shuffle=shuffle_of(range(count)), cut=cut)
    )
    for i, spec in enumerate(specs):
        network, adam = born(i, spec, action_space, share=share)
        alone, mine = PopulationLearner([network], [adam]), only(rollout, i)
        mine = mine.replace(state=resize_hidden(mine.state, network.state_shape))
        its_report = alone.learn(
            [0], RolloutUpdate(mine, pick(values, i), batch_size=24, shuffle=shuffle_of([i]), cut=cut)
        )
        for name, tensor in network.state_dict().items():
            torch.testing.assert_close(members[i][0].state_dict()[name], tensor, **EXACT)
        for moment, its in zip(vars(together.moments(i)).values(), vars(alone.moments(0)).values(), strict=True):
            torch.testing.assert_close(moment, its, **EXACT)
        for name, its in its_report.items():
            torch.testing.assert_close(report[name][i : i + 1], its, rtol=1e-8, atol=1e-8, equal_nan=True, msg=name)


@settings(max_examples=15)
@given(populations(), STACKS, st.booleans(), st.booleans())
def test_members_act_together_as_they_act_alone(specs, stacks, share, training):
    members = [born(i, spec, BOX, share=share) for i, spec in enumerate(specs)]
    networks = [network for network, _ in members]
    cohort = cohort_of(members, BOX, share=share, batch_size=stacks)
    cohort.train(training)
    state = remembered(networks, cohort.state_shape)
    x = torch.randn(2, len(specs), ENVS, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for seen in x:
        actions, after = cohort.act(seen, state, None, None)
        with torch.no_grad():
            for network, action, now, before, then in zip(networks, actions, seen, state, after, strict=True):
                alone = network.train(training)
                outputs, its_state = alone.step(alone.observation_norm(now), resize_hidden(before, alone.state_shape))
                torch.testing.assert_close(action, outputs, rtol=0, atol=1e-12)
                torch.testing.assert_close(then, resize_hidden(its_state, cohort.state_shape), rtol=0, atol=1e-12)
        state = after


def test_permuting_members_permutes_results():
    specs, order = [spec_of(units=3), spec_of("GRU", units=6), spec_of(units=5, layers=2)], [2, 0, 1]
    values, found = values_of(3, **{**DIFFERENT, "target_kl": [math.inf] * 3}), []
    for places in ([0, 1, 2], order):
        members = [born(i, specs[i], DISCRETE, share=False) for i in places]
        cohort = cohort_of(members, DISCRETE, share=False, batch_size=FEW)
        rollout = rollout_of(3).replace(state=torch.zeros(3, ENVS, *cohort.state_shape, dtype=torch.float64))
        mine = rollout[torch.tensor(places)]
        its_values = values[places]
        cohort.learn(
            range(3),
            RolloutUpdate(mine, its_values, batch_size=24, shuffle=shuffle_of(places), cut=SequenceSplit(5, 5)),
        )
        found.append([torch.cat([p.flatten() for p in network.parameters()]) for network, _ in members])
    for place, i in enumerate(order):
        torch.testing.assert_close(found[1][place], found[0][i], **EXACT)


@pytest.mark.parametrize("share", [False, True])
def test_recurrent_and_feedforward_members_act_together(share):
    networks = [born(0, spec_of("GRU"), BOX, share=share), member(1, BOX, share=share)]
    cohort = cohort_of(networks, BOX, share=share, batch_size=FEW)
    x = torch.randn(2, ENVS, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    state = remembered([network for network, _ in networks], cohort.state_shape)
    actions, after = cohort.act(x, state, None, None)
    assert not after[1].any()
    assert STATE[1:] == (0, 0)
    with torch.no_grad():
        for network, action, seen, its in zip((n for n, _ in networks), actions, x, state, strict=True):
            outputs, _ = network.step(network.observation_norm(seen), resize_hidden(its, network.state_shape))
            torch.testing.assert_close(action, outputs, rtol=0, atol=1e-12)
