"""What a population saw and did, kept until its members learn from it.

The buffer is a ring over time that all members share, for their envs step together; a member whose rollout is shorter
than another's reads a shorter stretch of it. Values and log-probabilities are not stored: they are computed in one
batch when a member learns, by the very weights that acted, which makes a step cheaper and needs no memory for them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from agilerl_like.envs.transitions import Transition
from agilerl_like.errors import EnvironmentFault


class LastObservations(NamedTuple):
    """True last observations of truncated episodes, where the next observation in the rollout is another episode's."""

    time: Tensor  # [K]
    member: Tensor  # [K]
    env: Tensor  # [K]
    observations: Tensor  # [K, D]

    @classmethod
    def none(cls, like: Tensor) -> LastObservations:
        """No such episode; `like` `[…, D]` says where and how wide."""
        nowhere = torch.zeros(0, dtype=torch.int64, device=like.device)
        return cls(nowhere, nowhere, nowhere, like.new_zeros(0, like.shape[-1]))


class Rollout(NamedTuple):
    """T steps of P members with E envs each; flags are 0 or 1 as float32."""

    observations: Tensor  # [T, P, E, D], encoded, not normalised
    actions: Tensor  # [T, P, E, A], raw (see networks.distributions)
    rewards: Tensor  # [T, P, E]
    terminated: Tensor  # [T, P, E]
    ended: Tensor  # [T, P, E], terminated or truncated
    valid: Tensor  # [T, P, E], 0 for rows in which nobody acted
    next_observations: Tensor  # [P, E, D], after the last step
    last_observations: LastObservations
    masks: Tensor | None  # [T, P, E, M], True where an action was legal


class RolloutBuffer:
    """A ring of `length` steps of P members with E envs each."""

    def __init__(
        self,
        length: int,
        members: int,
        envs: int,
        *,
        observation_size: int,
        action_size: int,
        action_dtype: torch.dtype,
        mask_size: int,
        device: torch.device,
    ) -> None:
        self.length, self.members, self.envs, self.device = length, members, envs, device
        self.observations = torch.zeros(length, members, envs, observation_size, device=device)
        self.actions = torch.zeros(length, members, envs, action_size, dtype=action_dtype, device=device)
        self.masks: Tensor | None = None
        self.mask_size = mask_size
        rows = members * envs
        # rewards and flags stay on the host until somebody learns: four cheap copies a step, one transfer a rollout
        self.host = np.zeros((length, 4, rows), dtype=np.float32)
        self.last: list[tuple[np.ndarray, np.ndarray] | None] = [None] * length
        self.cursor = 0

    def add(
        self,
        observations: Tensor,
        actions: Tensor,
        transition: Transition,
        successors: np.ndarray | None,
        mask: Tensor | None,
    ) -> None:
        """Store one step: what was seen `[P, E, D]`, the raw actions `[P, E, A]`, and what came of it.

        `successors` `[K, D]` are the encoded true last observations of the rows that `truncated_at_once` names.
        """
        place = self.cursor
        self.observations[place] = observations
        self.actions[place] = actions
        if mask is not None:
            if self.masks is None:
                self.masks = torch.ones(
                    self.length, self.members, self.envs, self.mask_size, dtype=torch.bool, device=self.device
                )
            self.masks[place] = mask
        host = self.host[place]
        host[0] = transition.reward
        host[1] = transition.terminated
        np.logical_or(transition.terminated, transition.truncated, out=host[2], casting="unsafe")
        host[3] = transition.valid
        self.last[place] = None if successors is None else (truncated_at_once(transition), successors)
        self.cursor = (place + 1) % self.length

    def window(self, members: list[int], length: int, next_observations: Tensor) -> Rollout:
        """The last `length` steps of some members; `next_observations` `[P, E, D]` are what they see now.

        Raises:
            EnvironmentFault: an observation or a reward is not finite.
        """
        places = (self.cursor - length + np.arange(length)) % self.length
        at = torch.from_numpy(places).to(self.device)
        rows = torch.tensor(members, device=self.device)
        whole = len(members) == self.members
        contiguous = places[-1] - places[0] == length - 1

        def pick(ring: Tensor) -> Tensor:
            steps = ring[int(places[0]) : int(places[-1]) + 1] if contiguous else ring[at]
            return steps if whole else steps[:, rows]

        host = self.host[places].reshape(length, 4, self.members, self.envs)[:, :, members]
        flags = torch.from_numpy(np.ascontiguousarray(host.transpose(1, 0, 2, 3))).to(self.device)
        rollout = Rollout(
            pick(self.observations),
            pick(self.actions),
            flags[0],
            flags[1],
            flags[2],
            flags[3],
            next_observations[rows],
            self._last_observations(places, members),
            None if self.masks is None else pick(self.masks),
        )
        _check_finite(rollout, members)
        return rollout

    def _last_observations(self, places: np.ndarray, members: list[int]) -> LastObservations:
        position = {member: i for i, member in enumerate(members)}
        found: list[tuple[int, int, int, np.ndarray]] = []
        for time, place in enumerate(places):
            entry = self.last[place]
            for row, observation in zip(*entry, strict=True) if entry is not None else ():
                member, env = divmod(int(row), self.envs)
                if member in position:
                    found.append((time, position[member], env, observation))
        size = self.observations.shape[-1]
        observations = np.stack([entry[3] for entry in found]) if found else np.zeros((0, size), np.float32)
        index = torch.tensor([entry[:3] for entry in found], dtype=torch.int64, device=self.device).reshape(-1, 3)
        return LastObservations(index[:, 0], index[:, 1], index[:, 2], torch.from_numpy(observations).to(self.device))


def truncated_at_once(transition: Transition) -> np.ndarray:
    """Rows whose episode was cut by a time limit and whose env was reset already: their true successor is needed."""
    if transition.next_obs is transition.obs:
        return np.empty(0, dtype=np.int64)
    return np.flatnonzero(transition.truncated & ~transition.terminated)


def _check_finite(rollout: Rollout, members: list[int]) -> None:
    """One sum tells whether anything is wrong; only then is it looked for."""
    fields = {
        "observation": rollout.observations,
        "reward": rollout.rewards,
        "observation ": rollout.next_observations[None],
    }
    if bool(torch.isfinite(torch.stack([field.sum() for field in fields.values()])).all()):
        return
    for name, field in fields.items():
        bad = (~torch.isfinite(field)).nonzero()
        if len(bad):
            place = tuple(int(i) for i in bad[0])
            raise EnvironmentFault(
                f"{name.strip()}={float(field[place])} is not finite: "
                f"member {members[place[1]]}, env {place[2]} of its own, "
                f"step {place[0]} of the rollout"
            )
