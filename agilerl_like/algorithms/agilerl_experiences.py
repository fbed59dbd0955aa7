"""Converts the experiences of a hand-written loop, in AgileRL's tuple, to a rollout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl_like.envs.pytree import tree_map
from agilerl_like.errors import ConfigurationError
from agilerl_like.learning.advantages import Precomputed
from agilerl_like.learning.rollout_buffer import FinalObservations, Rollout

NAMES = ("states", "actions", "log_probs", "rewards", "dones", "values", "next_state", "next_done")
Experiences = tuple[Sequence[Any], Sequence[Any], Sequence[Any], Sequence[Any], Sequence[Any], Sequence[Any], Any, Any]
"""`NAMES`, in this order: the first six are lists over time of arrays `[E, …]`."""
RawActions = Callable[[str, Any, int, np.ndarray | None], Tensor]
"""`Learner.raw_actions`."""


def as_rollout(
    experiences: Experiences | None,
    encode: Callable[[Any], Tensor],
    raw_actions: RawActions,
    *,
    hidden_state_before: Callable[[Tensor], Tensor],
    action_masks: Sequence[Any] | None = None,
    mask_size: int = 0,
    acting: Sequence[Any] | None = None,
) -> tuple[Rollout, Precomputed]:
    """Return the rollout of one agent, and the log-probabilities and values that its loop computed.

    `dones[t]` is 1 if step t *starts* an episode, so step t - 1 ended one. One flag does not distinguish time limits
    from terminations, so every end counts as a termination. `hidden_state_before` returns the hidden state
    `[E, M, K, H]` before the first step, given `dones[0]` `[E]`. `raw_actions` is that of the learner. Masks have
    `mask_size` flags in each row; 0: any number, because such actions are not masked. `acting` is a list over time of
    flags `[E]`: rows where it is False took no action, are excluded from the update, and may hold NaN; the agent waits
    there, unless its episode ended with the step before.

    Raises:
        ConfigurationError: a part is missing, is not as long or as wide as the others, or holds NaN or infinity; or an
            action is not of the action space.
    """
    if not isinstance(experiences, Sequence) or len(experiences) != len(NAMES):
        raise ConfigurationError(f"experiences must be ({', '.join(NAMES)}); train_on_policy needs none")
    states, actions, log_probs, rewards, dones, values, next_state, next_done = experiences
    steps = len(states)
    _check_lengths(
        steps, {**dict(zip(NAMES, experiences, strict=True)), "action_masks": action_masks, "acting": acting}
    )
    present = None if acting is None else _acting_flags(acting, (steps, np.size(rewards[0])))
    if acting is not None:
        states = [_zero_absent_rows(state, flags) for state, flags in zip(states, acting, strict=True)]
        next_state = tree_map(np.nan_to_num, next_state)
    observations = torch.stack([encode(state) for state in states]).unsqueeze(1)  # [T, 1, E, D]
    shape, device = (steps, observations.shape[2]), observations.device

    def numbers(name: str, part: Sequence[Any]) -> Tensor:
        return torch.from_numpy(_float_array(name, part, shape, present)).to(device).unsqueeze(1)  # [T, 1, E]

    if len(shapes := {np.shape(row) for row in actions}) > 1:
        raise ConfigurationError(f"experiences: actions has steps of shapes {sorted(shapes)}; allowed is one shape")
    raw = raw_actions(
        "experiences: actions", np.stack(actions), steps * shape[1], None if present is None else present.ravel()
    )
    ended = numbers("dones", [*dones[1:], next_done])
    valid = torch.ones_like(ended) if present is None else torch.from_numpy(present).to(ended).unsqueeze(1)
    its_present = None if present is None else present[:1]
    begins = torch.from_numpy(_float_array("dones", dones[:1], (1, shape[1]), its_present)[0]).to(device)
    state = hidden_state_before(begins)
    waiting = _waiting(valid, ended, state)
    total_rewards = numbers("rewards", rewards)
    if waiting is not None:  # rewards while an agent waits are added to its last step
        meanwhile = _float_array("rewards", [np.nan_to_num(np.asarray(row, np.float32)) for row in rewards], shape)
        total_rewards = total_rewards + waiting[0] * torch.from_numpy(meanwhile).to(total_rewards).unsqueeze(1)
    rollout = Rollout.from_steps(
        observations=observations,
        actions=raw.unflatten(0, (steps, 1, shape[1])),
        rewards=total_rewards,
        terminated=ended,
        ended=ended,
        valid=valid,
        next_observations=encode(next_state).unsqueeze(0),
        final_observations=FinalObservations.none(observations, 1),
        masks=None if action_masks is None else _mask_tensor(action_masks, shape, mask_size).to(device).unsqueeze(1),
        state=state.unsqueeze(0),
        waiting=waiting,
    )
    precomputed = Precomputed(
        old_log_probs=numbers("log_probs", log_probs).transpose(0, 1),
        old_values=numbers("values", values).transpose(0, 1),
        batch_size=[1],
    )
    return rollout, precomputed


def copied_state(hidden_state: Any) -> Any:
    """Return a copy of a hidden state, which a loop may overwrite; what is no mapping stays, and `learn` refuses it."""
    if not isinstance(hidden_state, Mapping):
        return hidden_state
    return {name: torch.as_tensor(its).clone() for name, its in hidden_state.items()}


def _check_lengths(steps: int, parts: Mapping[str, Any]) -> None:
    """Raise ConfigurationError unless all lists over time have as many steps as `states`, and at least one."""
    for name, part in parts.items():
        if name not in ("next_state", "next_done") and part is not None and len(part) != steps:
            raise ConfigurationError(f"experiences: {name} has {len(part)} steps; states has {steps}")
    if steps == 0:
        raise ConfigurationError("experiences: states has no steps; at least one is needed")


def _waiting(valid: Tensor, ended: Tensor, state: Tensor) -> Tensor | None:
    """Return `waiting` `[2, T, 1, E]` of a rollout whose agents act where `valid` `[T, 1, E]`; None if none waits.

    An agent waits between two of its own steps, unless it ended in between: its step leads to its next own step. Where
    its hidden state `[E, M, K, H]` before the rollout is not zero, it acted before in its episode, too.
    """
    started, waited = state.flatten(1).any(1).to(valid).expand_as(valid[0]), torch.zeros_like(valid)
    for step in range(len(valid)):
        waited[step] = started * (1 - valid[step])
        started = torch.maximum(started, valid[step]) * (1 - ended[step])
    if not bool(waited.any()):
        return None
    return torch.stack([waited, torch.cat([waited[1:], torch.zeros_like(waited[:1])])])


def _acting_flags(acting: Sequence[Any], shape: tuple[int, int]) -> np.ndarray:
    array = np.stack([np.asarray(row, dtype=np.bool_).reshape(-1) for row in acting])
    if array.shape != shape:
        raise ConfigurationError(f"experiences: acting has shape {array.shape}; allowed is {shape}")
    if not array.any():
        raise ConfigurationError("experiences: acting is False everywhere; at least one step must have been taken")
    return array


def _zero_absent_rows(rows: Any, acting: Any) -> Any:
    """Return a tree of arrays `[E, …]` with 0 for NaN in the rows that did not act."""
    absent = ~np.asarray(acting, dtype=np.bool_).reshape(-1)

    def cleaned(part: Any) -> np.ndarray:
        array = np.array(part)
        if absent.all():  # one env may come without its axis
            return np.nan_to_num(array)
        if absent.any():
            array[absent] = np.nan_to_num(array[absent])
        return array

    return tree_map(cleaned, rows)


def _mask_tensor(masks: Sequence[Any], shape: tuple[int, int], size: int) -> Tensor:
    array = np.stack([np.asarray(row, dtype=np.bool_) for row in masks])
    if array.ndim != 3 or array.shape[:2] != shape or size not in (0, array.shape[2]):
        allowed = (*shape, size or "choices")
        raise ConfigurationError(f"experiences: action_masks has shape {array.shape}; allowed is {allowed}")
    return torch.from_numpy(array)


def _float_array(
    name: str, part: Sequence[Any], shape: tuple[int, int], present: np.ndarray | None = None
) -> np.ndarray:
    array = np.stack([np.asarray(row, dtype=np.float32).reshape(-1) for row in part])
    if array.shape != shape:
        raise ConfigurationError(f"experiences: {name} has shape {array.shape}; allowed is {shape}")
    if present is not None:  # a step's done flag belongs to the step before, in which the agent may have acted
        array = np.nan_to_num(array) if name == "dones" else np.where(present, array, np.float32(0))
    if not np.isfinite(array).all():
        found = array[~np.isfinite(array)][0]
        raise ConfigurationError(f"experiences: {name} holds {found}; allowed are finite numbers")
    if name == "dones" and (others := array[(array != 0) & (array != 1)]).size:
        raise ConfigurationError(f"experiences: dones or next_done holds {others[0]:g}; allowed are 0 and 1")
    return array
