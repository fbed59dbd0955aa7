import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict

from agilerl_like.envs.array_backend import NumpyBackend, TorchBackend
from agilerl_like.envs.spaces import ObservationEncoder
from agilerl_like.envs.vec_adapter import Transition
from agilerl_like.errors import ConfigurationError, EnvStepError
from agilerl_like.learning.rollout_buffer import RolloutBuffer

MEMBERS, ENVS = 3, 2
ROWS = MEMBERS * ENVS
SPACE = Box(-np.inf, np.inf, (1,))
NOTHING = torch.zeros(MEMBERS, ENVS, 2, 0, 0)


def buffer_of(length, arrays=None, space=SPACE):
    return RolloutBuffer(
        length,
        MEMBERS,
        ENVS,
        encoding=ObservationEncoder(space),
        action_size=1,
        action_dtype=torch.int64,
        mask_size=2,
        device=torch.device("cpu"),
        arrays=arrays or NumpyBackend(),
    )


def fill(buffer, steps, *, start=0, truncated_at=(), mask=None, as_array=np.array):
    """Step t sees 100 t + row, pays t + row / 10; an episode that is cut at (t, row) last saw -(100 t + row)."""
    whole = buffer.part(slice(0, ENVS))
    for t in range(start, start + steps):
        seen = 100.0 * t + torch.arange(ROWS).reshape(MEMBERS, ENVS, 1)
        truncated = np.array([(t, row) in truncated_at for row in range(ROWS)])
        obs = as_array(np.zeros((ROWS, 1), np.float32))
        transition = Transition(
            obs,
            as_array((t + np.arange(ROWS) / 10).astype(np.float32)),
            as_array(np.zeros(ROWS, bool)),
            as_array(truncated),
            as_array(-seen.numpy().reshape(ROWS, 1)) if truncated.any() else obs,
            as_array(np.ones(ROWS, bool)),
            None,
        )
        place = buffer.begin()
        whole.put_actions(place, seen, torch.full((MEMBERS, ENVS, 1), t), mask)
        whole.put_outcome(place, transition)


NOW = torch.full((MEMBERS, ENVS, 1), 7.0)


@pytest.mark.parametrize("steps", [4, 6, 11])  # full, wrapped once, wrapped twice
def test_last_steps_are_the_latest_in_order(steps):
    buffer = buffer_of(4)
    fill(buffer, steps)
    for length in (1, 3, 4):
        rollout = buffer.last_steps([0, 1, 2], length, NOW, NOTHING)
        times = np.arange(steps - length, steps)
        assert rollout.observations[2, :, 1, 0].tolist() == [100.0 * t + 5 for t in times]
        assert rollout.actions[0, :, 0, 0].tolist() == times.tolist()
        np.testing.assert_allclose(rollout.rewards[1, :, 0], times + 0.2, rtol=1e-6)


def test_more_steps_than_are_stored_are_an_error():
    buffer = buffer_of(4)
    fill(buffer, 9)
    with pytest.raises(ConfigurationError, match=r"length=7 is more than the 4 steps stored; allowed is .*enlarge_buf"):
        buffer.last_steps([0, 1, 2], 7, NOW, NOTHING)


@pytest.mark.parametrize("arrays", [NumpyBackend(), TorchBackend(torch.device("cpu"))])
@pytest.mark.parametrize("before", [0, 3, 4, 6])
def test_an_enlarged_buffer_has_the_steps_stored_before_and_after(before, arrays):
    as_array = torch.from_numpy if isinstance(arrays, TorchBackend) else np.array
    buffer, mask = buffer_of(4, arrays), torch.tensor([True, False])
    cut = [(1, 0), (before - 1, 3), (before + 1, 5)]
    fill(buffer, before, truncated_at=cut, mask=mask, as_array=as_array)
    buffer.enlarge(7)
    fill(buffer, 3, start=before, truncated_at=cut, mask=mask, as_array=as_array)
    steps = before + 3
    length = min(7, steps)
    whole = buffer_of(7, arrays)  # from the beginning
    fill(whole, steps, truncated_at=cut, mask=mask, as_array=as_array)
    found, expected = (its.last_steps([0, 1, 2], length, NOW, NOTHING) for its in (buffer, whole))
    assert found.observations[2, :, 1, 0].tolist() == [100.0 * t + 5 for t in range(steps - length, steps)]
    assert (found == expected).all()


def test_last_steps_of_some_members_have_their_rows():
    buffer = buffer_of(4)
    fill(buffer, 5)
    rollout = buffer.last_steps([2, 0], 2, NOW, NOTHING)
    assert rollout.observations[:, 0, :, 0].tolist() == [[304.0, 305.0], [300.0, 301.0]]
    np.testing.assert_allclose(rollout.rewards[:, 0], [[3.4, 3.5], [3.0, 3.1]], rtol=1e-6)


def test_final_observations_are_stored_for_truncated_episodes():
    buffer = buffer_of(4)
    fill(buffer, 6, truncated_at={(1, 0), (3, 5), (4, 1), (5, 4)})  # step 1 has left a window of 4
    last = buffer.last_steps([0, 2], 4, NOW, NOTHING).final_observations
    found = {
        (int(last.time[m, k]), m, int(last.env[m, k])): float(last.observations[m, k, 0])
        for m, k in (last.time >= 0).nonzero().tolist()
    }
    assert last.time.shape == (2, 2)  # member 0 has one of them, member 2 two
    # row 5 is member 2 (second of the two) env 1, row 1 is member 0 env 1, row 4 is member 2 env 0;
    # times count from step 2
    assert found == {(1, 1, 1): -305.0, (2, 0, 1): -401.0, (3, 1, 0): -504.0}


def test_final_observations_of_overwritten_steps_are_discarded():
    buffer = buffer_of(2)
    fill(buffer, 1, truncated_at={(0, 0)})
    fill(buffer, 2, start=1)
    assert len(buffer.last_steps([0, 1, 2], 2, NOW, NOTHING).final_observations.time[0]) == 0


def test_action_masks_are_stored_if_the_env_has_them():
    buffer = buffer_of(2)
    mask = torch.tensor([True, False]).expand(MEMBERS, ENVS, 2)
    fill(buffer, 2, mask=mask)
    masks = buffer.last_steps([1], 2, NOW, NOTHING).masks
    assert masks is not None
    assert masks.shape == (1, 2, ENVS, 2)
    assert not masks[..., 1].any()
    assert masks[..., 0].all()
    fresh = buffer_of(2)
    fill(fresh, 2)
    assert fresh.last_steps([0], 2, NOW, NOTHING).masks is None


def test_a_non_finite_entry_of_a_dict_is_named():
    buffer = buffer_of(3, space=Dict(speed=SPACE))
    fill(buffer, 2)
    buffer.observations[1, 2, 1, 0] = torch.nan
    with pytest.raises(EnvStepError, match=r"^observation\.speed=nan is not finite: member 2, env 1"):
        buffer.last_steps([2], 2, NOW, NOTHING)


def test_a_non_finite_observation_after_the_last_step_has_the_number_of_the_next_step():
    buffer, following = buffer_of(3), NOW.clone()
    fill(buffer, 2)
    following[2, 1, 0] = torch.nan
    with pytest.raises(EnvStepError, match="observation=nan is not finite: member 2, env 1 of its own, step 2 of the"):
        buffer.last_steps([2], 2, following, NOTHING)


def test_non_finite_values_raise_with_their_place():
    buffer = buffer_of(3)
    fill(buffer, 2)
    buffer.observations[1, 2, 1, 0] = torch.nan
    with pytest.raises(
        EnvStepError, match=r"observation=nan is not finite: member 2, env 1 of its own, step 1 of the rollout"
    ):
        buffer.last_steps([2], 2, NOW, NOTHING)
    buffer.last_steps([0, 1], 2, NOW, NOTHING)  # the others are not harmed
    buffer.outcomes[0, 0, 0, 1] = np.inf
    with pytest.raises(EnvStepError, match=r"reward=inf is not finite: member 0, env 1 of its own, step 0"):
        buffer.last_steps([0], 2, NOW, NOTHING)
