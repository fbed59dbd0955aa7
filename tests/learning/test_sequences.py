"""Sequences: no step is lost, what fills them up does not count, and gradients flow as far as they should."""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from learner_examples import values_of
from recurrent_examples import judge, network_of, spec_of, think, walk, world_of

from agilerl_like.learning.execution import Execution
from agilerl_like.learning.minibatches import Minibatches
from agilerl_like.learning.ppo_update import PPOUpdate
from agilerl_like.learning.sequences import SINGLE_STEP, BPTTSequenceType, SequenceSplit
from agilerl_like.learning.stacked_networks import StackedNetworks

KINDS = st.sampled_from(list(BPTTSequenceType))
LENGTHS = st.integers(1, 50)
CLIP, ENTROPY, VALUE = 0.2, 0.1, 0.5


def steps_of(kind, length, steps):
    """By hand: the steps of each sequence, until one has reached the end."""
    stride = {"chunked": length, "maximum": 1, "fifty_percent_overlap": max(1, length // 2)}[kind.value]
    found, begin = [], 0
    while not found or found[-1][-1] < steps - 1:
        found.append(range(begin, min(begin + length, steps)))
        begin += stride
    return found


# -- which steps


@given(st.integers(1, 40), LENGTHS, KINDS)
def test_every_step_is_in_a_sequence_and_in_one_chunk(steps, length, kind):
    cut = SequenceSplit.of_kind(kind, length)
    rows = torch.arange(2 * steps).view(1, -1, 1)  # of two envs: time 0 of both, then time 1
    found, inside = cut.of(rows, steps)[0, ..., 0], cut.inside(steps, rows.device).repeat_interleave(2, 0) > 0
    sequences = [row[here].tolist() for row, here in zip(found, inside, strict=True)]
    assert sequences == [[2 * step + env for step in its] for its in steps_of(kind, length, steps) for env in (0, 1)]
    seen = sorted(number for sequence in sequences for number in sequence)
    assert sorted(set(seen)) == [*range(2 * steps)]
    assert kind is not BPTTSequenceType.CHUNKED or seen == [*range(2 * steps)]
    assert kind is not BPTTSequenceType.MAXIMUM or inside.all()


@given(st.integers(1, 40), LENGTHS, KINDS)
def test_begins_are_the_first_steps_of_the_sequences(steps, length, kind):
    begins = SequenceSplit.of_kind(kind, length).begins(steps)
    assert begins == [its[0] for its in steps_of(kind, length, steps)]
    assert begins[0] == 0


@pytest.mark.parametrize("kind", BPTTSequenceType)
def test_a_kind_may_be_given_by_its_name(kind):
    assert SequenceSplit.of_kind(kind.value, 6) == SequenceSplit.of_kind(kind, 6)
    with pytest.raises(ValueError, match="half"):
        SequenceSplit.of_kind("half", 6)


@given(st.integers(1, 10))
def test_sequences_of_one_step_are_the_rows(steps):
    rows = torch.randn(2, 3 * steps, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(SINGLE_STEP.of(rows, steps), rows.unsqueeze(2))
    assert all(SequenceSplit.of_kind(kind, 1) == SINGLE_STEP for kind in BPTTSequenceType)


# -- how far gradients flow


def update_of(networks):
    count = len(networks)
    values = values_of(
        count,
        clip_coef=[CLIP] * count,
        ent_coef=[ENTROPY] * count,
        vf_coef=[VALUE] * count,
        max_grad_norm=[math.inf] * count,
    )
    return PPOUpdate(StackedNetworks.of([(networks, networks[0])], 1e-5), values, Execution())


def gradients_of(update, batch):
    """Those of each member's parameters, by name, in a minibatch of everything."""
    (part,) = update.stacked.parts
    step_of(update, batch)
    return [part.stack.member_views(update.gradient.flat, row) for row in range(len(update.gradient.flat))]


@torch.no_grad()
def step_of(update, batch):
    everything = torch.arange(batch.observations.shape[1]).expand(len(batch.observations), -1)
    return update.epoch(batch, Minibatches(1, batch.observations.shape[1]), everything)[0]


def loss_by_hand(network, rows, state, steps, numbers, actions):
    """The summed loss of a sequence of one env, from the hidden state before it, and how many steps count."""
    total, count = torch.zeros(()).double(), 0
    for step in steps:
        row, (then, advantage, target) = rows[step], numbers[step]
        thought = think(network, row.observation, torch.zeros_like(state) if row.begins else state)
        state = thought.state
        if row.valid:
            log_prob, entropy = judge(network, thought.outputs, actions[step])
            ratio = (log_prob - then).exp()
            gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
            total = total - gain - ENTROPY * entropy + VALUE * 0.5 * (thought.value - target) ** 2
            count += 1
    return total, count


def gradients_by_hand(network, rows, states, steps_of_sequences, numbers, actions):
    """Those of the mean loss over the sequences of all of a member's envs."""
    total, count = torch.zeros(()).double(), 0
    for env, its_rows in enumerate(rows):
        with torch.no_grad():
            remembered = [its.before for its in walk(network, its_rows, states[env])]
        for steps in steps_of_sequences:
            loss, counted = loss_by_hand(
                network, its_rows, remembered[steps[0]], steps, numbers[env], actions[:, env, 0]
            )
            total, count = total + loss, count + counted
    parameters = dict(network.named_parameters())
    if not count:
        return {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    found = torch.autograd.grad(total / count, list(parameters.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(parameters, found, strict=True))


@pytest.mark.slow
@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**31),
    steps=st.integers(1, 12),
    length=st.integers(1, 13),
    kind=KINDS,
    mode=st.sampled_from(["same step", "next step"]),
    cell=st.sampled_from(["LSTM", "GRU"]),
    layers=st.integers(1, 2),
    members=st.integers(1, 2),
    share=st.booleans(),
)
@example(0, 12, 12, BPTTSequenceType.CHUNKED, "same step", "LSTM", 2, 1, True)  # the whole rollout
@example(1, 12, 5, BPTTSequenceType.CHUNKED, "next step", "LSTM", 1, 2, False)
def test_gradients_equal_autograd_from_stored_hidden_states(
    seed, steps, length, kind, mode, cell, layers, members, share
):
    networks = [network_of(spec_of(cell, layers=layers), i, share=share) for i in range(members)]
    world, update = world_of(seed, members, 2, steps, mode, networks[0].state_shape), update_of(networks)
    # what the policy was is made up, so that some ratios are far from 1
    shift = 0.3 * torch.randn(members, 2 * steps, generator=torch.Generator().manual_seed(seed)).double()
    whole, _ = update.compute_advantages(world.rollout, SequenceSplit(steps, steps), None)
    numbers = torch.stack([whole.old_log_probs, whole.advantages, whole.returns], -1)  # [P, E, T, 3]
    numbers[..., 0] += shift.unflatten(1, (steps, 2)).transpose(1, 2)
    expected = [
        gradients_by_hand(
            network,
            world.rows[p],
            world.rollout.state[p],
            steps_of(kind, length, steps),
            numbers[p],
            world.rollout.actions[p],
        )
        for p, network in enumerate(networks)
    ]
    cut = SequenceSplit.of_kind(kind, length)
    batch, _ = update.compute_advantages(world.rollout, cut, None)
    batch.old_log_probs += cut.of(shift, steps)
    for found, its in zip(gradients_of(update, batch), expected, strict=True):
        assert found.keys() == its.keys()
        for name, gradient in its.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-10, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")


def test_padding_of_sequences_does_not_affect_loss_or_gradient():
    """10 steps in chunks of 4 leave 2 places; whatever stands there, loss and gradient are the same bits."""
    world = world_of(3, 1, 2, 10, "same step", (2, 2, 5))
    found = []
    for filling in (None, 50.0):
        network = network_of(spec_of(), 0)
        update = update_of([network])
        batch, _ = update.compute_advantages(world.rollout, SequenceSplit(4, 4), None)
        beyond = SequenceSplit(4, 4).inside(10, batch.weight.device).repeat_interleave(2, 0)[None] == 0  # [1, S, L]
        assert beyond.sum() == 4  # two of each env's
        assert not batch.weight[beyond].any()
        if filling is not None:
            for target in (batch.old_log_probs, batch.advantages, batch.returns, batch.old_values):
                target[beyond] = filling
            batch.observations[beyond] = filling
            batch.starts[beyond] = 1.0
        found.append((*step_of(update, batch).values(), update.gradient.flat.clone()))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
