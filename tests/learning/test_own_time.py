"""Advantages of agents that wait, in their own time."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agilerl_like.learning.advantages import AdvantageEstimator
from agilerl_like.learning.gae import gae
from agilerl_like.learning.own_time import own_time
from agilerl_like.learning.rollout_buffer import FinalObservations, Rollout

ACTS, WAITS, DEAD = "aw."
GAMMA, LAMBDA = 0.9, 0.8


def rollout_of(rows, rewards, terminated, truncated, waits):
    """A rollout of one env; `rows` are letters, and `waits` is whether the agent waits after the last of them."""
    column = [float(letter == ACTS) for letter in rows], [float(letter == WAITS) for letter in rows]
    valid, waited = (torch.tensor(flags).view(-1, 1, 1) for flags in column)
    after = torch.cat([waited[1:], torch.full((1, 1, 1), float(waits))])
    died, stopped = (torch.tensor(flags, dtype=torch.float32).view(-1, 1, 1) for flags in (terminated, truncated))
    empty = torch.zeros(len(rows), 1, 1, 0)
    return Rollout.from_steps(
        empty,
        empty,
        torch.tensor(rewards, dtype=torch.float32).view(-1, 1, 1),
        died,
        torch.maximum(died, stopped),
        valid,
        empty[0],
        FinalObservations.none(empty, 1),
        None,
        torch.zeros(1, 1, 0, 0, 0),
        torch.stack([waited, after]),
    )


def advantages_of(rollout, values, next_values, gae_lambda=LAMBDA, n_step=None):
    own = own_time(rollout, torch.tensor(GAMMA))
    found = gae(
        own.rewards,
        values,
        own.at_next_step(next_values),
        terminated=own.terminated,
        ended=own.ended,
        valid=own.valid,
        gamma=torch.tensor(GAMMA),
        gae_lambda=torch.tensor(gae_lambda),
        n_step=None if n_step is None else torch.tensor([[float(n_step)]]),
        waited=own.waited,
    )
    return found.view(-1).tolist(), own.valid.view(-1).tolist()


@st.composite
def lives(draw):
    """Rows, rewards and flags of one agent; a new episode may follow the end of one."""
    rows, terminated, truncated, started, alive = "", [], [], False, True
    for _ in range(draw(st.integers(1, 12))):
        if not alive and draw(st.booleans()):
            started, alive = False, True
        letter = draw(st.sampled_from(ACTS + (WAITS if started else DEAD))) if alive else DEAD
        started |= letter == ACTS
        ends = draw(st.sampled_from(["", "", "terminates", "truncates"])) if alive and started else ""
        alive = alive and not ends
        rows += letter
        terminated.append(ends == "terminates")
        truncated.append(ends == "truncates")
    paid = [
        0.0 if letter == DEAD and not dead_before(rows, terminated, truncated, t) else float(draw(st.integers(-5, 5)))
        for t, letter in enumerate(rows)
    ]
    waits = alive and started and draw(st.booleans())
    values = draw(st.lists(st.integers(-9, 9), min_size=2 * len(rows), max_size=2 * len(rows)))
    return rows, paid, terminated, truncated, waits, values[: len(rows)], values[len(rows) :]


def dead_before(rows, terminated, truncated, t):
    """Whether the agent's last own step before row t is of an episode that has ended."""
    own = [s for s in range(t) if rows[s] == ACTS]
    return bool(own) and any(terminated[s] or truncated[s] for s in range(own[-1], t))


def reference(rows, paid, terminated, truncated, waits, values, next_values, decay=GAMMA * LAMBDA, n_step=None):
    """Advantages of the agent's own steps from up to `n_step` of them, None for a step that is still open."""
    own = [t for t, letter in enumerate(rows) if letter == ACTS]
    found, deltas = {}, []  # of the own steps from here to the end of the episode
    for place in reversed(range(len(own))):
        t, until = own[place], own[place + 1] if place + 1 < len(own) else len(rows)
        end = next((s for s in range(t, until) if terminated[s] or truncated[s]), None)
        last = until - 1 if end is None else end
        if end is None and until == len(rows) and waits:
            found[t] = None
            continue
        reward = sum(paid[t : last + 1])
        if end is None or terminated[end]:  # else the bootstrap value is an estimate of what follows
            reward += sum(GAMMA ** (s - last) * paid[s] for s in range(last + 1, until))
        if end is not None:
            after = 0.0 if terminated[end] else next_values[end]
            deltas = []
        else:
            after = next_values[last]
        deltas = [reward + GAMMA * after - values[t], *deltas]
        found[t] = sum(decay**k * delta for k, delta in enumerate(deltas[:n_step]))
    return found


@pytest.mark.parametrize(("gae_lambda", "n_step"), [(LAMBDA, None), (1.0, 1), (1.0, 2), (1.0, 3), (1.0, 20)])
@settings(max_examples=50, deadline=None)
@given(life=lives())
def test_an_agents_steps_lead_to_its_own_next_steps(gae_lambda, n_step, life):
    rows, paid, terminated, truncated, waits, values, next_values = life
    rollout = rollout_of(rows, paid, terminated, truncated, waits)
    column = [torch.tensor(x, dtype=torch.float32).view(-1, 1, 1) for x in (values, next_values)]
    found, valid = advantages_of(rollout, *column, gae_lambda, n_step)
    for t, expected in reference(*life, GAMMA * gae_lambda, n_step).items():
        if expected is None:
            assert valid[t] == 0
        else:
            assert valid[t] == 1
            assert abs(found[t] - expected) < 1e-3
    assert all(not valid[t] for t, letter in enumerate(rows) if letter != ACTS)


def test_two_players_by_hand():
    """The first player moves in rows 0, 2 and 4 and loses 1 by the second player's move in row 5."""
    rollout = rollout_of("awawaw", [0, 0, 0, 3, 0, -1], [0, 0, 0, 0, 0, 1], [0] * 6, waits=False)
    own = own_time(rollout, torch.tensor(GAMMA))
    assert own.rewards.view(-1)[::2].tolist() == [0, 3, -1]
    assert own.terminated.view(-1)[::2].tolist() == [0, 0, 1]
    values = torch.arange(6.0).view(-1, 1, 1)
    next_values = torch.cat([values[1:], torch.full((1, 1, 1), 99.0)])
    assert own.at_next_step(next_values).view(-1)[:4:2].tolist() == [2, 4]


def test_what_a_team_earns_after_an_end_is_discounted_for_every_env_step():
    own = own_time(rollout_of("aa...", [1, 2, 0, 10, 5], [0, 1, 0, 0, 0], [0] * 5, waits=False), torch.tensor(0.5))
    assert own.rewards.view(-1)[:2].tolist() == [1, 2 + 0.25 * 10 + 0.125 * 5]


def test_a_truncated_agent_is_credited_with_its_bootstrap_value_alone():
    """It stops in row 1, and its team earns 10 and 5 afterwards: 2 + 0.5 x V with V = 8, not 2 + 4 + 2.5 + 0.625."""
    rollout = rollout_of("aa...", [1, 2, 0, 10, 5], [0] * 5, [0, 1, 0, 0, 0], waits=False)
    half, zeros = torch.full((1, 1), 0.5), torch.zeros(5, 1, 1)
    for bootstrap, expected in ((1.0, 2 + 0.5 * 8), (0.0, 2 + 0.25 * 10 + 0.125 * 5)):
        estimator = AdvantageEstimator(half[0], half[0], bootstrap=torch.full((1,), bootstrap))
        found = estimator.advantages(estimator.own_time(rollout), zeros, zeros + 8)
        assert found[1].item() == expected


def test_a_step_without_a_known_outcome_is_not_paid_for_in_the_one_before():
    """The agent of rows 0 and 2 waits in row 3, where an opponent takes over: its step in row 2 does not count."""
    rollout = rollout_of("aw.w..", [1, 2, 4, 8, 0, 0], [0] * 6, [0, 0, 0, 1, 0, 0], waits=False)
    rollout.waiting[0, 1, 2:4, 0] = torch.tensor([1.0, 0.0])
    assert own_time(rollout, torch.tensor(0.5)).rewards[0].item() == 1 + 2


def test_recurrent_state_continues_while_an_agent_waits():
    rollout = rollout_of("awaw.a", [0] * 6, [0, 0, 0, 1, 0, 0], [0] * 6, waits=False)
    assert rollout.starts.view(-1).tolist() == [0, 0, 0, 0, 0, 1]
