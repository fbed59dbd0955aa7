"""The replay buffer against a list of transitions, in both autoreset modes, over wrap-arounds and interruptions."""

import math

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agilerl_like.envs.array_backend import NumpyBackend
from agilerl_like.envs.spaces import ObservationEncoder
from agilerl_like.envs.vec_adapter import Transition
from agilerl_like.errors import ConfigurationError, EnvStepError
from agilerl_like.learning.replay_buffer import TRIES, ReplayBuffer

MEMBERS, ENVS = 2, 3
CHOICES = 3
ROWS = MEMBERS * ENVS
ENV_GROUPS = slice(0, 1), slice(1, ENVS)
SPACE = gymnasium.spaces.Box(-1e6, 1e6, (1,))
GAMMA = 0.5


def make(capacity, *, space=SPACE, mask_size=CHOICES):
    return ReplayBuffer(
        capacity,
        MEMBERS,
        ENVS,
        encoding=ObservationEncoder(space),
        action_size=1,
        action_dtype=torch.int64,
        mask_size=mask_size,
        device=torch.device("cpu"),
        arrays=NumpyBackend(),
    )


def masks_of(obs):
    """Return an action mask for each observation [N, 1]; that of a multiple of 8 allows nothing."""
    return (np.nan_to_num(obs, posinf=0).astype(int) >> np.arange(CHOICES) & 1).astype(bool)


class Feeder:
    """Feeds a buffer with observations 1, 2, 3, … and keeps every episode as a list of (obs, reward) and its end."""

    def __init__(self, buffer, *, same_step):
        self.buffer, self.same_step = buffer, same_step
        self.numbers = iter(range(1, 10**6))
        self.obs = self._fresh()
        self.resets = np.zeros(ROWS, bool)  # rows whose next step ignores the action
        self.log = []  # (observations, actions, rewards, terminated, truncated, valid, next observations), one a step

    def _fresh(self):
        return np.array([[next(self.numbers)] for _ in range(ROWS)], np.float32)

    def step(self, terminated, truncated):
        buffer, valid = self.buffer, ~self.resets
        terminated, truncated = terminated & valid, truncated & valid
        actions = np.array([[next(self.numbers)] for _ in range(ROWS)])
        rewards = np.where(valid, actions[:, 0] % 7, 0).astype(np.float32)
        ended, last = terminated | truncated, self._fresh()
        new = np.where(ended[:, None], self._fresh(), last) if self.same_step else last
        place = buffer.begin()
        for columns in ENV_GROUPS:
            part, rows = buffer.part(columns), np.arange(ROWS).reshape(MEMBERS, ENVS)[:, columns].ravel()
            seen, raw = (torch.tensor(its[rows]).view(MEMBERS, -1, 1) for its in (self.obs, actions))
            part.put_actions(place, seen, raw, torch.tensor(masks_of(self.obs[rows])).view(MEMBERS, -1, CHOICES))
            obs, reward, *flags = (its[rows] for its in (new, rewards, terminated, truncated))
            next_obs, last_mask = obs, None
            if self.same_step and ended[rows].any():
                next_obs, last_mask = last[rows], masks_of(last[rows])
            step = Transition(obs, reward, *flags, next_obs, valid[rows], masks_of(obs), last_mask=last_mask)
            part.put_outcome(place, step)
        self.log.append([self.obs, actions, rewards, terminated, truncated, valid.copy(), last])
        self.obs, self.resets = new, ended if not self.same_step else self.resets
        buffer.reader(torch.tensor(new).view(MEMBERS, ENVS, 1), torch.zeros(0))

    def interrupt(self):
        self.buffer.interrupt()
        *_, terminated, truncated, valid, _ = self.log[-1]
        known = terminated | (truncated if self.same_step else False)
        self.log[-1][5] = valid & known
        self.obs, self.resets = self._fresh(), np.zeros(ROWS, bool)

    def expected(self, age, row, n_step):
        """Return, observation by observation, what a sample of the step `age` from the oldest must be."""
        stored = self.log[-self.buffer.steps :]
        total, discount, at = 0.0, 1.0, age
        while True:
            _, _, rewards, terminated, truncated, _, last = (column[row] for column in stored[at])
            total, discount, at = total + discount * rewards, discount * GAMMA, at + 1
            if terminated:
                return total, 0.0, None
            if truncated or at == len(stored) or at - age == n_step or not stored[at][5][row]:
                return total, discount, last[0]


def draws_of_all(buffer, member_count=1):
    """Return draws `[1, span, TRIES]` that visit every stored row once, as each of the candidates."""
    span = buffer.steps * ENVS * member_count
    return ((torch.arange(span, dtype=torch.float64) + 0.5) / span).view(1, -1, 1).repeat(1, 1, TRIES)


@settings(max_examples=60)
@given(
    same_step=st.booleans(),
    capacity=st.integers(4, 30),
    n_step=st.integers(1, 4),
    steps=st.lists(st.tuples(st.integers(0, 2**ROWS - 1), st.integers(0, 2**ROWS - 1), st.booleans()), min_size=1),
)
def test_samples_are_the_transitions(same_step, capacity, n_step, steps):
    buffer = make(capacity)
    feeder = Feeder(buffer, same_step=same_step)
    for terminated, truncated, interrupts in steps:
        bits = [np.array([bool(number >> row & 1) for row in range(ROWS)]) for number in (terminated, truncated)]
        feeder.step(bits[0] & bits[1], bits[1] & (np.arange(ROWS) % 2 == 0))
        if interrupts:
            feeder.interrupt()
    assert buffer.steps == min(len(steps), -(-capacity // ENVS))
    for member in range(MEMBERS):
        batch = buffer.sample(torch.tensor([member]), draws_of_all(buffer), torch.tensor([GAMMA]), n_step)
        for index in range(buffer.steps * ENVS):
            age, row = index // ENVS, member * ENVS + index % ENVS
            obs, actions, _, _, _, valid, _ = (column[row] for column in feeder.log[-buffer.steps :][age])
            assert batch.weight[0, index] == valid
            if not valid:
                continue
            assert batch.observations[0, index] == obs[0]
            assert batch.actions[0, index] == actions[0]
            returns, discount, successor = feeder.expected(age, row, n_step)
            assert batch.returns[0, index] == pytest.approx(returns)
            assert batch.discounts[0, index] == discount
            if successor is not None:
                assert batch.next_observations[0, index] == successor
                mask = masks_of(np.array([[successor]]))[0]
                assert batch.next_masks[0, index].tolist() == (mask | ~mask.any()).tolist()


def never():
    return np.zeros(ROWS, bool)


def test_shared_samples_come_from_all_members_alike():
    feeder = Feeder(make(12), same_step=True)
    for _ in range(4):
        feeder.step(never(), never())
    buffer = feeder.buffer
    batch = buffer.sample(torch.tensor([1]), draws_of_all(buffer, MEMBERS), torch.tensor([GAMMA]), kind="shared")
    stored = np.concatenate([columns[0][:, 0] for columns in feeder.log])
    assert sorted(batch.observations.flatten().tolist()) == sorted(stored)


def test_rows_without_an_action_are_drawn_again():
    feeder = Feeder(make(12), same_step=False)
    feeder.step(~never(), never())
    feeder.step(never(), never())  # in which all envs are reset
    span = 2 * ENVS
    draws = torch.tensor([[[(ENVS + 0.5) / span, 0.5 / span, 1.5 / span]]], dtype=torch.float64)
    batch = feeder.buffer.sample(torch.tensor([0]), draws, torch.tensor([GAMMA]))
    assert batch.observations[0, 0] == feeder.log[0][0][0]  # the second candidate
    assert batch.weight[0, 0] == 1
    assert batch.discounts[0, 0] == 0


def test_masks_of_the_next_step_follow_the_next_observation():
    buffer = make(12, mask_size=2)
    part, masks = buffer.part(slice(0, ENVS)), np.tile([True, False], (ROWS, 1))
    obs, zeros = np.zeros((ROWS, 1), np.float32), np.zeros(ROWS, np.float32)
    observations = torch.zeros(MEMBERS, ENVS, 1)
    for step in range(3):
        place = buffer.begin()
        part.put_actions(place, observations, observations.long(), torch.tensor(masks).view(MEMBERS, ENVS, 2))
        masks = ~masks
        part.put_outcome(place, Transition(obs, zeros, zeros > 0, zeros > 0, obs, zeros == 0, masks))
        buffer.reader(observations, torch.zeros(0))
        batch = buffer.sample(torch.tensor([0]), draws_of_all(buffer), torch.tensor([GAMMA]))
        legal = [[step % 2 == 1, step % 2 == 0] for step in range(step + 1) for _ in range(ENVS)]
        assert batch.next_masks[0].tolist() == legal


def test_images_are_stored_once_as_bytes():
    image = gymnasium.spaces.Box(0, 255, (3, 8, 8), np.uint8)
    buffer = make(300, space=image)
    assert buffer.observations.dtype is torch.uint8
    pixels = 3 * 8 * 8 * MEMBERS * (300 + ENVS)
    total = sum(x.numel() * x.element_size() for x in buffer.storage.values())
    assert pixels <= total < 1.15 * pixels  # actions, rewards and flags take the rest


def fill(capacity, steps, *, same_step=True):
    feeder = Feeder(make(capacity), same_step=same_step)
    rng = np.random.default_rng(0)
    for _ in range(steps):
        feeder.step(rng.random(ROWS) < 0.1, rng.random(ROWS) < 0.3)
    return feeder


@pytest.mark.parametrize("same_step", [True, False])
@pytest.mark.parametrize("steps", [3, 11])  # before and after the ring is full
def test_a_restored_buffer_gives_the_same_samples(steps, same_step):
    feeder = fill(15, steps, same_step=same_step)
    restored = make(15)
    restored.load_state([feeder.buffer.state_of(member) for member in range(MEMBERS)])
    draws = torch.rand(MEMBERS, 50, TRIES, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    members, gamma = torch.arange(MEMBERS), torch.full((MEMBERS,), GAMMA)
    continued = Feeder(restored, same_step=same_step)
    for one in (feeder, continued):
        one.buffer.interrupt()  # a checkpoint, at which the envs are reset
        one.numbers, one.resets = iter(range(10**5, 10**6)), never()
        one.obs = one._fresh()
    for _ in range(4):
        for one in (feeder, continued):
            one.step(never(), np.arange(ROWS) % 2 == 0)
        columns = zip(*(buffer.sample(members, draws, gamma, 3) for buffer in (feeder.buffer, restored)), strict=True)
        assert all(one is other is None or torch.equal(one, other) for one, other in columns)


def test_a_buffer_saved_without_the_masks_of_last_observations_allows_everything_there():
    saved, restored = fill(15, 11).buffer, make(15)
    states = [saved.state_of(member) for member in range(MEMBERS)]
    assert not torch.cat([state.pop("final_masks") for state in states]).all()
    restored.load_state(states)
    draws, gamma = draws_of_all(saved), torch.tensor([GAMMA])
    before, after = (buffer.sample(torch.tensor([0]), draws, gamma) for buffer in (saved, restored))
    last = saved.final[0, [(saved.cursor - saved.steps + step) % saved.length for step in range(saved.steps)]]
    assert torch.equal(after.next_masks, before.next_masks | (last.flatten() >= 0).unsqueeze(-1))


def test_a_buffer_of_another_size_is_refused():
    with pytest.raises(ValueError, match="5 vector steps and 3 envs; this run has 2, 10 and 3"):
        make(30).load_state([fill(15, 3).buffer.state_of(member) for member in range(MEMBERS)])


def test_last_observations_do_not_accumulate():
    feeder = fill(9, 200)
    assert len(feeder.buffer.finals) <= 32  # at most 3 steps of 6 envs are stored


def test_too_large_a_memory_names_the_largest():
    with pytest.raises(ConfigurationError, match=r"memory_size=10{14}\b.*allowed are at most \d+ env steps"):
        make(10**14)


def test_numbers_that_are_not_finite_name_their_env():
    feeder = fill(9, 2)
    feeder.obs[4] = np.nan
    with pytest.raises(EnvStepError, match=r"^observation=nan is not finite: member 1, env 1 of its own"):
        feeder.step(never(), never())


def test_a_non_finite_entry_of_a_dict_is_named():
    feeder = Feeder(make(9, space=gymnasium.spaces.Dict(speed=SPACE)), same_step=False)
    feeder.step(never(), never())
    feeder.obs[4] = np.nan
    with pytest.raises(EnvStepError, match=r"^observation\.speed=nan is not finite: member 1, env 1 of its own"):
        feeder.step(never(), never())


def test_a_last_observation_that_is_not_finite_names_its_env():
    feeder = fill(9, 2)
    lasts = [0, 0, 0, 0, math.inf, 0]
    feeder.numbers = iter([*range(ROWS), *lasts, *range(ROWS)])  # actions, last observations, those after the resets
    with pytest.raises(EnvStepError, match=r"^last observation=inf is not finite: member 1, env 1 of its own"):
        feeder.step(never(), ~never())
