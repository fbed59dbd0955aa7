"""The population's observations, actions and rewards, stored until its members learn.

The buffer is a ring over time, shared by all members because their envs step together; a member with a shorter rollout
reads fewer steps of it. Values and log-probabilities are not stored: they are computed in one batch before an update,
with the weights that acted, which makes each env step cheaper.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from tensordict import TensorClass
from torch import Tensor

from agilerl_like.envs.array_backend import Array, ArrayBackend, NumpyBackend
from agilerl_like.envs.critic_observation import AsymmetricEncoder
from agilerl_like.envs.pytree import Tree, tree_map
from agilerl_like.envs.spaces import ObservationEncoder
from agilerl_like.envs.vec_adapter import Transition
from agilerl_like.errors import ConfigurationError, EnvStepError
from agilerl_like.resources import check_memory


class FinalObservations(TensorClass):
    """Final observations of truncated episodes, where the next row of the rollout belongs to another episode, `[P]`."""

    time: Tensor  # [P, K], -1 behind a member's last one
    env: Tensor  # [P, K]
    observations: Tensor  # [P, K, D]

    @classmethod
    def of(cls, time: Tensor, member: Tensor, env: Tensor, observations: Tensor, *, members: int) -> FinalObservations:
        """Return those at n steps `[n]`, with `observations` `[n, D]`, padded to the largest number of any member."""
        order = torch.argsort(member, stable=True)
        time, member, env, rows = (column[order] for column in (time, member, env, observations))
        counts = torch.bincount(member, minlength=members)
        place = torch.arange(len(order), device=order.device) - (counts.cumsum(0) - counts)[member]
        shape = members, int(counts.max()) if len(order) else 0
        found = cls(
            time=time.new_full(shape, -1),
            env=env.new_zeros(shape),
            observations=rows.new_zeros(*shape, rows.shape[-1]),
            batch_size=[members],
        )
        found.time[member, place], found.env[member, place] = time, env
        found.observations[member, place] = rows
        return found

    @property
    def places(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Member, place among the member's K, time and env `[n]` of each of them."""
        member, place = (self.time >= 0).nonzero().unbind(1)
        return member, place, self.time[member, place], self.env[member, place]

    @classmethod
    def none(cls, like: Tensor, members: int) -> FinalObservations:
        """Return no final observations, of the width, dtype and device of `like` `[…, D]`."""
        index = torch.zeros(members, 0, dtype=torch.int64, device=like.device)
        return cls(time=index, env=index, observations=like.new_zeros(members, 0, like.shape[-1]), batch_size=[members])


class Rollout(TensorClass):
    """T steps of P members with E envs each, `[P]`; flags are 0 or 1 as float32."""

    observations: Tensor  # [P, T, E, D], encoded, not normalised
    actions: Tensor  # [P, T, E, A], raw (see networks.distributions)
    rewards: Tensor  # [P, T, E]
    terminated: Tensor  # [P, T, E]
    ended: Tensor  # [P, T, E], terminated or truncated
    valid: Tensor  # [P, T, E], 0 for rows without an action (next-step autoreset, agents that wait or have ended)
    next_observations: Tensor  # [P, E, D], after the last step
    final_observations: FinalObservations
    masks: Tensor | None  # [P, T, E, choices], True where an action was legal
    state: Tensor  # [P, E, M, K, H], hidden state before the first step
    waiting: Tensor | None = None  # [P, 2, T, E], see `own_time`; None if no agent waited or was paid without acting
    uniform: Tensor | None = None  # [P, T, E], True where the action was drawn uniformly and not by the policy
    next_masks: Tensor | None = None  # [P, T, E, choices], of the true next state; see `RolloutBuffer`

    @classmethod
    def from_steps(
        cls,
        observations: Tensor,
        actions: Tensor,
        rewards: Tensor,
        terminated: Tensor,
        ended: Tensor,
        valid: Tensor,
        next_observations: Tensor,
        final_observations: FinalObservations,
        masks: Tensor | None,
        state: Tensor,
        waiting: Tensor | None = None,
        uniform: Tensor | None = None,
        next_masks: Tensor | None = None,
    ) -> Rollout:
        """Return a rollout of steps in the order of time: `[T, P, E, …]`, and `[2, T, P, E]` for `waiting`."""
        return cls(
            observations=observations.transpose(0, 1),
            actions=actions.transpose(0, 1),
            rewards=rewards.transpose(0, 1),
            terminated=terminated.transpose(0, 1),
            ended=ended.transpose(0, 1),
            valid=valid.transpose(0, 1),
            next_observations=next_observations,
            final_observations=final_observations,
            masks=None if masks is None else masks.transpose(0, 1),
            state=state,
            waiting=None if waiting is None else waiting.permute(2, 0, 1, 3),
            uniform=None if uniform is None else uniform.transpose(0, 1),
            next_masks=None if next_masks is None else next_masks.transpose(0, 1),
            batch_size=state.shape[:1],
        )

    @property
    def continues(self) -> Tensor:
        """1 where the next step belongs to the same episode, `[P, T, E]`."""
        return (1 - self.ended) * self._inside

    @property
    def _inside(self) -> Tensor:
        """1 where an agent acted, or waited within its episode, `[P, T, E]`."""
        return self.valid if self.waiting is None else self.valid + self.waiting[:, 0]

    @property
    def starts(self) -> Tensor:
        """1 where the hidden state resets, `[P, T, E]`; for the first step `state` already accounts for it.

        A row without an action begins no episode: it holds the next observation of the row before, whose value is
        computed with that episode's hidden state.
        """
        later = (1 - self.continues[:, :-1]) * self._inside[:, 1:]
        return torch.cat([torch.zeros_like(self.ended[:, :1]), later], 1)


STEP_FIELDS = ("observations", "actions", "rewards", "terminated", "ended", "valid", "masks", "uniform")
"""The fields of a `Rollout` that are `[P, T, E, …]`, of algorithms whose envs processes may share."""
LastSteps = Callable[[list[int], int], Rollout]
"""(members, length) -> the last steps of these members."""


def row_bytes(encoding: ObservationEncoder | AsymmetricEncoder) -> int:
    """Return a lower bound of the bytes of one env step in a buffer: observation, one action, reward and flags."""
    return encoding.size * encoding.dtype.itemsize + 4 + 4 * 4


class RolloutBuffer:
    """A ring of `length` steps of P members with E envs each.

    Observations and actions are stored on the device. Rewards and flags stay with the env's arrays until an update,
    which for numpy takes four cheap copies per step and one transfer per rollout. With `stores_next_masks` the action
    masks of the state that each step leads to are stored, too, for updates that choose the best legal action there; at
    the end of an episode that is its last state, and not the first one of the next episode.
    """

    def __init__(
        self,
        length: int,
        members: int,
        envs: int,
        *,
        encoding: ObservationEncoder | AsymmetricEncoder,
        action_size: int,
        action_dtype: torch.dtype,
        mask_size: int,
        device: torch.device,
        arrays: ArrayBackend,
        describe_row: Callable[[int, int], str] = "member {}, env {} of its own".format,
        stores_next_masks: bool = False,
    ) -> None:
        _check_memory(length, members, envs, encoding)
        self.stores_next_masks = stores_next_masks
        self.describe_row = describe_row
        """Describes a member's env in error messages."""
        self.length, self.members, self.envs, self.mask_size, self.device = length, members, envs, mask_size, device
        self.encoding = encoding
        self.observations = torch.zeros(length, members, envs, encoding.size, dtype=encoding.dtype, device=device)
        self.actions = torch.zeros(length, members, envs, action_size, dtype=action_dtype, device=device)
        self.masks: Tensor | None = None
        self.next_masks: Tensor | None = None
        self.waiting: Tensor | None = None  # [length, P, 2, E]
        self.uniform: Tensor | None = None
        self.outcomes: Array = arrays.zeros(length, members, 4, envs, dtype=np.float32)  # as in `Rollout`
        kind = SparseFinalObs if isinstance(arrays, NumpyBackend) else DenseFinalObs
        self.successors = kind(self.observations, arrays.make_encode_fn(encoding))
        self.cursor = 0

    def begin(self) -> int:
        """Return the place for the next step of all envs; the oldest step is discarded."""
        place, self.cursor = self.cursor, (self.cursor + 1) % self.length
        self.successors.forget(place)
        return place

    def enlarge(self, length: int) -> None:
        """Enlarge the ring to `length` steps and keep those that are stored; parts made before view the old memory."""
        _check_memory(length, self.members, self.envs, self.encoding)
        by_age, more = (self.cursor + np.arange(self.length)) % self.length, length - self.length
        for name in ("observations", "actions", "masks", "next_masks", "waiting", "uniform", "outcomes"):
            if (ring := getattr(self, name)) is not None:
                setattr(self, name, _enlarged(ring, by_age, more))
        self.successors.enlarge(by_age, self.observations)
        self.length, self.cursor = length, self.length

    def end_rows(self, rows: np.ndarray, never_bootstraps: np.ndarray) -> None:
        """End the rollout of some rows `[E]` bool of all members with the last step, because others act in them now.

        Where an agent waits there, the outcome of its last own step will not be known, so that step becomes invalid. So
        does the last step of the members `never_bootstraps` `[P]` bool, for whom the end would be a termination.
        """
        last = (self.cursor - 1) % self.length
        if self.waiting is not None:
            by_age = (last - np.arange(self.length)) % self.length
            for member, env in np.argwhere(self.waiting[last, :, 1].numpy() * rows):
                valid = self.outcomes[by_age, member, 3, env]
                self.outcomes[by_age[np.argmax(valid)], member, 3, env] = 0.0
            self.waiting[last, :, 1, torch.from_numpy(rows)] = 0.0
        ended, valid = self.outcomes[last, :, 2], self.outcomes[last, :, 3]  # [P, E]
        valid[np.outer(never_bootstraps, rows) & (ended == 0)] = 0.0
        ended[:, rows] = 1.0

    def all_legal(self) -> Tensor:
        """Return action masks of all steps that allow everything, `[length, P, E, choices]`."""
        shape = (self.length, self.members, self.envs, self.mask_size)
        return torch.ones(shape, dtype=torch.bool, device=self.device)

    def part(self, columns: slice) -> BufferPart:
        """Return views of some envs of every member."""
        return BufferPart(self, columns)

    def reader(self, next_observations: Tensor, state: Tensor) -> LastSteps:
        """Return a function of members and a length that returns their `last_steps`."""
        return lambda members, length: self.last_steps(members, length, next_observations, state)

    def last_steps(self, members: list[int], length: int, next_observations: Tensor, state: Tensor) -> Rollout:
        """Return the last `length` steps of some members.

        `next_observations` `[P, E, D]` are those after the last step, `state` `[P, E, M, K, H]` is the hidden state
        before the first.

        Raises:
            ConfigurationError: more steps than are stored.
            EnvStepError: an observation or a reward is not finite.
        """
        if length > self.length:
            raise ConfigurationError(
                f"length={length} is more than the {self.length} steps stored; allowed is a LearnerGroup whose "
                "make_buffer or enlarge_buffer makes it as long as its longest rollout"
            )
        places = (self.cursor - length + np.arange(length)) % self.length
        all_members = members == list(range(self.members))

        def pick(ring: Tensor) -> Tensor:
            if places[-1] - places[0] == length - 1:
                steps = ring[int(places[0]) : int(places[-1]) + 1]
            else:
                steps = ring[torch.from_numpy(places).to(ring.device)]
            return steps if all_members else steps[:, torch.tensor(members, device=ring.device)]

        rewards, terminated, ended, valid = pick(torch.as_tensor(self.outcomes)).to(self.device).unbind(2)
        rollout = Rollout.from_steps(
            pick(self.observations),
            pick(self.actions),
            rewards,
            terminated,
            ended,
            valid,
            next_observations[members],
            self.successors.after(places, members, ended > terminated),
            None if self.masks is None else pick(self.masks),
            state[members],
            None if self.waiting is None else pick(self.waiting).to(self.device).permute(2, 0, 1, 3),
            None if self.uniform is None else pick(self.uniform),
            None if self.next_masks is None else pick(self.next_masks),
        )
        _check_finite(rollout, self.encoding, lambda member, env: self.describe_row(members[member], env))
        return rollout


def _check_memory(length: int, members: int, envs: int, encoding: ObservationEncoder | AsymmetricEncoder) -> None:
    """Raise ConfigurationError unless a buffer fits in memory."""
    check_memory(
        f"learn_step={length * envs} in {envs} envs", length, members * envs * row_bytes(encoding), "steps of all envs"
    )


def _enlarged(ring: Array, by_age: np.ndarray, more: int) -> Array:
    """Return a ring `[length + more, …]` with the steps of another one from the oldest to the newest, then zeros."""
    if isinstance(ring, Tensor):
        kept = ring[torch.from_numpy(by_age).to(ring.device)]
        return torch.cat([kept, kept.new_zeros(more, *kept.shape[1:])])
    return np.concatenate([ring[by_age], np.zeros((more, *ring.shape[1:]), ring.dtype)])


class BufferPart:
    """Views of a buffer's share of some envs of every member."""

    def __init__(self, buffer: RolloutBuffer, columns: slice) -> None:
        self._buffer, self._columns = buffer, columns
        self._observations = buffer.observations[:, :, columns]  # [length, P, e, D]
        self._actions = buffer.actions[:, :, columns]
        self._outcomes = buffer.outcomes[..., columns]  # [length, P, 4, e]

    def put_actions(self, place: int, observations: Tensor, actions: Tensor, mask: Tensor | None) -> None:
        """Store observations `[P, e, D]`, raw actions `[P, e, A]` and action masks `[P, e, M]`."""
        self._observations[place] = observations
        self._actions[place] = actions
        buffer = self._buffer
        if mask is not None and buffer.masks is None:
            buffer.masks = buffer.all_legal()
        if buffer.masks is not None:
            buffer.masks[place, :, self._columns] = True if mask is None else mask

    def put_uniform(self, place: int, members: Tensor | None) -> None:
        """Store flags `[P]` of the members whose actions in a step were drawn uniformly; None: no member's."""
        buffer = self._buffer
        if members is not None and buffer.uniform is None:
            buffer.uniform = torch.zeros(
                buffer.length, buffer.members, buffer.envs, dtype=torch.bool, device=buffer.device
            )
        if buffer.uniform is not None:
            buffer.uniform[place, :, self._columns] = False if members is None else members.unsqueeze(1)

    def put_outcome(self, place: int, transition: Transition) -> None:
        """Store rewards and flags, and the next observations where they are needed."""
        outcome = self._outcomes[place]
        shape = outcome[:, 0].shape
        outcome[:, 0] = transition.reward.reshape(shape)
        outcome[:, 1] = transition.terminated.reshape(shape)
        outcome[:, 2] = transition.ended.reshape(shape)
        outcome[:, 3] = transition.valid.reshape(shape)
        if transition.next_obs is not transition.obs:
            self._buffer.successors.put(place, self._columns, transition)
        if self._buffer.stores_next_masks:
            self._put_next_masks(place, transition)
        self._put_waiting(place, transition)

    def _put_next_masks(self, place: int, transition: Transition) -> None:
        """Store the masks of the states that a step led to; memory is allocated when the first mask comes."""
        buffer, mask, last = self._buffer, transition.action_mask, transition.last_mask
        if buffer.next_masks is None:
            if mask is None and last is None:
                return
            buffer.next_masks = buffer.all_legal()
        here = buffer.next_masks[place, :, self._columns]
        here[:] = True if mask is None else torch.as_tensor(mask).to(buffer.device).view(here.shape)
        if transition.next_obs is not transition.obs:
            ended = torch.as_tensor(transition.ended).to(buffer.device).view(here.shape[:2])
            here[ended] = True if last is None else torch.as_tensor(last).to(buffer.device).view(here.shape)[ended]

    def _put_waiting(self, place: int, transition: Transition) -> None:
        """Store which agents waited and will wait; memory is allocated when the first one does."""
        buffer, waited, waits = self._buffer, transition.waited, transition.waits
        if waited is None or waits is None:
            return
        if buffer.waiting is None:
            if not (waits.any() or waited.any() or transition.reward[~transition.valid].any()):
                return
            buffer.waiting = torch.zeros(buffer.length, buffer.members, 2, buffer.envs)
        its = buffer.waiting[place, :, :, self._columns]
        shape = its[:, 0].shape
        its[:, 0] = torch.as_tensor(waited).reshape(shape)
        its[:, 1] = torch.as_tensor(waits).reshape(shape)


class SparseFinalObs:
    """Final observations of truncated steps only: with numpy flags their indices need no device sync."""

    def __init__(self, observations: Tensor, encode: Callable[[Tree], Tensor]) -> None:
        length, self._members, _, size = observations.shape
        self._empty, self._encode = observations.new_zeros(0, size), encode
        self._at: list[list[tuple[np.ndarray, Tensor]]] = [[] for _ in range(length)]  # member and env [2, K], [K, D]

    def forget(self, place: int) -> None:
        """Discard a step."""
        self._at[place] = []

    def enlarge(self, by_age: np.ndarray, observations: Tensor) -> None:
        """Enlarge to as many steps as `observations` has, the stored ones first, in the order `by_age`."""
        self._at = [self._at[place] for place in by_age] + [[] for _ in range(len(observations) - len(by_age))]

    def put(self, place: int, columns: slice, transition: Transition) -> None:
        """Store the next observations of a step of some envs of every member."""
        rows = np.flatnonzero(transition.truncated & ~transition.terminated)
        if len(rows):
            member, env = np.divmod(rows, columns.stop - columns.start)
            successors = self._encode(tree_map(lambda leaf: leaf[rows], transition.next_obs))
            self._at[place].append((np.stack([member, env + columns.start]), successors))

    def after(self, places: np.ndarray, members: list[int], truncated: Tensor) -> FinalObservations:
        """Return those of some members at some places, where `truncated` `[T, P, E]` is True."""
        found = [(time, *entry) for time, place in enumerate(places) for entry in self._at[place]]
        if not found:
            return FinalObservations.none(self._empty, len(members))
        index = np.concatenate([np.insert(where, 0, time, axis=0) for time, where, _ in found], axis=1)  # [3, K]
        position = np.full(self._members, -1)
        position[members] = np.arange(len(members))
        index[1] = position[index[1]]
        order = np.lexsort(index[::-1])
        order = order[index[1, order] >= 0]
        observations = torch.cat([successors for *_, successors in found])[torch.from_numpy(order)]
        time, member, env = torch.from_numpy(index[:, order]).to(truncated.device)
        return FinalObservations.of(time, member, env, observations.to(truncated.device), members=len(members))


class DenseFinalObs:
    """Next observations of all steps: storing them costs less than a device sync for the indices of truncated steps."""

    def __init__(self, observations: Tensor, encode: Callable[[Tree], Tensor]) -> None:
        self._observations, self._encode = observations, encode
        self._ring: Tensor | None = None

    def forget(self, place: int) -> None:
        """Do nothing: every step is overwritten."""

    def enlarge(self, by_age: np.ndarray, observations: Tensor) -> None:
        """Enlarge to as many steps as `observations` has, the stored ones first, in the order `by_age`."""
        self._observations = observations
        if self._ring is not None:
            self._ring = _enlarged(self._ring, by_age, len(observations) - len(by_age))

    def put(self, place: int, columns: slice, transition: Transition) -> None:
        """Store the next observations of a step of some envs of every member."""
        if self._ring is None:
            self._ring = torch.zeros_like(self._observations)
        here = self._ring[place, :, columns]
        here.copy_(self._encode(transition.next_obs).view(here.shape))

    def after(self, places: np.ndarray, members: list[int], truncated: Tensor) -> FinalObservations:
        """Return those of some members at some places, where `truncated` `[T, P, E]` is True."""
        if self._ring is None:
            return FinalObservations.none(self._observations, len(members))
        time, member, env = truncated.nonzero().unbind(1)
        place, row = torch.from_numpy(places).to(truncated.device), torch.tensor(members, device=truncated.device)
        rows = self._ring[place[time], row[member], env]
        return FinalObservations.of(time, member, env, rows, members=len(members))


def _check_finite(
    rollout: Rollout, encoding: ObservationEncoder | AsymmetricEncoder, describe_row: Callable[[int, int], str]
) -> None:
    """Raise EnvStepError unless all fields are finite; one sum per field is tested first, because it is fast."""
    last = rollout.final_observations
    fields = {
        "observation": encoding.float_columns(rollout.observations.transpose(0, 1)),
        "reward": rollout.rewards.transpose(0, 1),
        "observation ": encoding.float_columns(rollout.next_observations[None]),
        "last observation": encoding.float_columns(last.observations),
    }
    if bool(torch.isfinite(torch.stack([field.sum() for field in fields.values()])).all()):
        return
    for name, field in fields.items():
        bad = (~torch.isfinite(field)).nonzero()
        if len(bad):
            place = tuple(int(i) for i in bad[0])
            step, member, env = place[:3]
            if name == "observation ":  # after the last step
                step = rollout.rewards.shape[1]
            if name == "last observation":
                member, which = place[:2]
                step, env = int(last.time[member, which]), int(last.env[member, which])
            if name != "reward":
                name = name.strip().replace("observation", encoding.float_titles()[place[-1]])
            raise EnvStepError(
                f"{name}={float(field[place])} is not finite: {describe_row(member, env)}, step {step} of the rollout"
            )
