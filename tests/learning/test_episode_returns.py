"""Which episodes count for the policies of a member, written down step by step."""

import math

import gymnasium
import numpy as np
import pytest
import torch

from agilerl_like.envs.spaces import ObservationEncoder
from agilerl_like.envs.vec_adapter import Transition
from agilerl_like.errors import EnvStepError
from agilerl_like.learning.episode_returns import EpisodeReturns

ENCODING = ObservationEncoder(gymnasium.spaces.Box(-1.0, 1.0, (2,)))


def record(members=1, envs=1, **changed):
    arguments = {"encoding": ENCODING, "device": torch.device("cpu"), "recent": 2}
    return EpisodeReturns(members, envs, **{**arguments, **changed})


def step(its, rewards, ended="", valid="", observations=None, columns=slice(None)):
    """`ended` and `valid` have a letter for each row: x is true; all rows are valid if left out."""
    flags = [np.array([letter == "x" for letter in text]) for text in (ended or "." * len(rewards), valid)]
    ended, valid = flags[0], flags[1] if valid else np.ones(len(rewards), bool)
    obs = np.zeros((len(rewards), 2), np.float32)
    transition = Transition(obs, np.array(rewards, np.float32), ended, np.zeros_like(ended), obs, valid, None)
    here, part = its.begin(), its.part(columns)
    rows = (
        torch.zeros(its.sums.shape[0], len(rewards) // its.sums.shape[0], 2) if observations is None else observations
    )
    part.put_actions(here, rows, torch.zeros(0), None)
    part.put_outcome(here, transition)


def test_the_mean_of_whole_episodes():
    its = record(envs=2)
    step(its, [1, 10])
    step(its, [2, 20], ended="x.")
    step(its, [4, 40])
    step(its, [8, 80], ended="xx")
    assert its.returns.tolist() == [[(3 + 12) / 2, 150]]
    assert its.counts.tolist() == [[2, 1]]
    step(its, [100, 100])  # an episode that has not ended counts for nothing
    assert its.returns.tolist() == [[7.5, 150]]


def test_an_episode_that_began_under_other_policies_does_not_count():
    its = record(envs=3)
    step(its, [1, 1, 1], ended=".x.")
    its.restart(0)
    assert its.returns.tolist() == [[0, 0, 0]]
    step(its, [2, 2, 2], ended="x..")  # the first env's episode is the old one, the second env's is new
    step(its, [4, 4, 4], ended="xxx")
    assert its.counts.tolist() == [[1, 1, 0]]
    assert its.returns.tolist() == [[4, 6, 0]]
    step(its, [8, 8, 8], ended="xxx")
    assert its.returns.tolist() == [[6, 7, 8]]


def test_the_rewards_so_far_where_no_episode_has_ended():
    its = record(envs=2)
    step(its, [1, 1])
    its.restart(0)
    step(its, [2, 3])
    step(its, [2, 4])
    assert its.returns.tolist() == [[4, 7]]


def test_an_ignored_action_neither_begins_nor_ends_an_episode():
    its = record(envs=1)
    step(its, [1], ended="x")
    step(its, [0], valid=".")  # the env resets
    its.restart(0)  # between the reset and the first step
    step(its, [5], ended="x")
    assert its.returns.tolist() == [[5]]


def test_an_episode_whose_worker_was_lost_has_no_return():
    its = record(envs=1)
    step(its, [3])
    step(its, [0], ended="x", valid=".")
    assert its.counts.tolist() == [[0]]
    step(its, [7], ended="x")
    assert its.returns.tolist() == [[7]]


def test_members_and_env_groups_are_apart():
    its = record(members=2, envs=2)
    step(its, [1, 2], ended="xx", columns=slice(0, 1))  # the first env of both members
    step(its, [3, 4], ended="xx", columns=slice(1, 2))
    assert its.returns.tolist() == [[1, 3], [2, 4]]
    its.restart(1)
    assert its.returns.tolist() == [[1, 3], [0, 0]]


def test_moments_and_recent_observations():
    its = record(envs=2)
    seen = torch.tensor([[[1.0, 2.0], [3.0, 6.0]]])
    step(its, [0, 0], observations=seen)
    step(its, [0, 0], valid="x.", observations=seen + 4)  # (5, 6) counts, (7, 10) does not
    rows, weights = its.moments.as_rows()
    assert weights.tolist() == [[1.5, 1.5]]
    column = torch.tensor([[1.0, 3.0, 5.0], [2.0, 6.0, 6.0]])
    torch.testing.assert_close(rows.mean(1)[0], column.mean(1))
    torch.testing.assert_close((rows[:, 1] - rows[:, 0])[0] / 2, column.std(1, unbiased=False))
    assert torch.equal(its.recent(0), torch.cat([seen, seen + 4]))
    its.restart(0)
    assert its.moments.rows.tolist() == [0]


def test_numbers_that_are_not_finite_name_their_env():
    of_reward, of_observation = record(members=2, envs=2), record(members=2, envs=2)
    step(of_reward, [1e38, 1e38, 1e38, 1e38])
    step(of_reward, [1e38, 1e38, 3e38, 3e38])  # the sums are finite, though not in float32
    assert of_reward.reader(torch.zeros(0), torch.zeros(0)) is of_reward
    step(of_reward, [0, math.inf, 0, 0])
    with pytest.raises(EnvStepError, match=r"^reward=inf is not finite: member 0, env 1 of its own"):
        of_reward.reader(torch.zeros(0), torch.zeros(0))
    seen = torch.zeros(2, 2, 2)
    seen[1, 0, 1] = math.nan
    step(of_observation, [0, 0, 0, 0], observations=seen)
    for _ in range(3):  # more than are stored
        step(of_observation, [0, 0, 0, 0])
    with pytest.raises(EnvStepError, match=r"^observation=nan is not finite: member 1, env 0 of its own"):
        of_observation.reader(torch.zeros(0), torch.zeros(0))
