"""Replay: the last env steps of a population, from which off-policy algorithms sample minibatches.

The buffer is a ring over vector steps, `[P, T, E, …]`. A next observation is not stored: it is the observation of the
next vector step. Only where an episode is truncated and the env resets in the same step is it missing there, and stored
beside the ring, with its action mask.
Images stay bytes. The subtlety is at the ends: an n-step return stops at the end of an episode, at the newest step, and
before a row without an action, and bootstraps from the observation there, unless the episode terminated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from agilerl_like.envs.array_backend import ArrayBackend
from agilerl_like.envs.pytree import tree_map
from agilerl_like.envs.spaces import ObservationEncoder
from agilerl_like.envs.vec_adapter import Transition
from agilerl_like.errors import EnvStepError
from agilerl_like.resources import check_memory

MemoryKind = Literal["own", "shared"]
"""Whose transitions a member learns from: its own, or those of all members of its process."""
TRIES = 3
"""Candidates drawn for each sample; the first whose row holds an action is used, so the rest stay uniform."""
DRAW_BYTES = 8 * TRIES
"""Bytes of the numbers that choose one sample."""
FLAGS = ("terminated", "truncated", "valid")


class Batch(NamedTuple):
    """Minibatches of Q members; `discounts` are gamma**k after k steps, 0 if the episode terminated.

    No tensorclass: nothing indexes a minibatch, and one is made for every gradient step, where that would take 15 us.
    """

    observations: Tensor  # [Q, B, D], encoded
    actions: Tensor  # [Q, B, A], raw (see networks.distributions)
    returns: Tensor  # [Q, B], discounted rewards of up to n steps
    discounts: Tensor  # [Q, B], factor of the value of the next observation
    next_observations: Tensor  # [Q, B, D]
    next_masks: Tensor | None  # [Q, B, choices], True where an action is legal next
    weight: Tensor  # [Q, B], 0 for rows without an action


def replay_row_bytes(encoding: ObservationEncoder, action_size: int, mask_size: int = 0) -> int:
    """Return the bytes of one env step in a replay, at least: observation, raw action, reward, flags, mask."""
    return encoding.size * encoding.dtype.itemsize + 4 * action_size + 4 + len(FLAGS) + 4 + mask_size


def sample_bytes(encoding: ObservationEncoder) -> int:
    """Return the bytes of one sample of a minibatch, at least: its draws, its observation and the next one."""
    return DRAW_BYTES + 2 * encoding.size * encoding.dtype.itemsize


class ReplayBuffer:
    """The last `capacity` env steps of each of P members with E envs each, on a device.

    Raises:
        ConfigurationError: it does not fit into memory.
    """

    def __init__(
        self,
        capacity: int,
        members: int,
        envs: int,
        *,
        encoding: ObservationEncoder,
        action_size: int,
        action_dtype: torch.dtype,
        mask_size: int,
        device: torch.device,
        arrays: ArrayBackend,
        describe_row: Callable[[int, int], str] = "member {}, env {} of its own".format,
    ) -> None:
        each = members * replay_row_bytes(encoding, action_size)
        check_memory(f"memory_size={capacity}", capacity, each, "env steps of each member")
        self.length = -(-capacity // envs) + 1
        """Vector steps of the ring; one of them holds the observations after the newest step."""
        self.members, self.envs, self.mask_size, self.device = members, envs, mask_size, device
        self.encoding, self.describe_row = encoding, describe_row
        self._encode = arrays.make_encode_fn(encoding)
        shape = members, self.length, envs
        self.storage = TensorDict(
            {
                "observations": torch.zeros(*shape, encoding.size, dtype=encoding.dtype, device=device),
                "actions": torch.zeros(*shape, action_size, dtype=action_dtype, device=device),
                "rewards": torch.zeros(*shape, device=device),
                **{name: torch.zeros(*shape, dtype=torch.bool, device=device) for name in FLAGS},
                "final": torch.full(shape, -1, dtype=torch.int32, device=device),
            },
            batch_size=shape,
        )
        self._bind()
        self.finals = torch.zeros(0, encoding.size, dtype=encoding.dtype, device=device)
        """True last observations of truncated episodes `[F, D]`, where the next row belongs to another episode."""
        self.final_masks = torch.ones(0, mask_size, dtype=torch.bool, device=device)
        """Their action masks `[F, choices]`."""
        self._free: list[int] = []
        self.cursor = self.filled = self.checked = 0
        """Place of the next step; vector steps stored, at most `length`; those of them not yet checked to be finite."""
        self.new_steps = np.zeros(members, np.int64)
        """Vector steps of each member that are not yet in its running statistics of observations, `[P]`."""
        self._finals_total = torch.zeros((), device=device)  # sum of the last observations since that check

    def _bind(self) -> None:
        """Set the fields as attributes: looking one up in a TensorDict takes as long as a small kernel."""
        fields = cast(Mapping[str, Tensor], self.storage)
        self.observations, self.actions, self.rewards = (
            fields[name] for name in ("observations", "actions", "rewards")
        )
        self.terminated, self.truncated, self.valid = (fields[name] for name in FLAGS)
        self.final = fields["final"]
        self.masks: Tensor | None = cast("Tensor | None", self.storage.get("masks", None))

    @property
    def steps(self) -> int:
        """Vector steps that can be sampled."""
        return min(self.filled, self.length - 1)

    def fits(self, capacity: int, members: int, envs: int, device: torch.device) -> bool:
        """Return whether this buffer is what the constructor would make."""
        return (self.length, self.members, self.envs, self.device) == (-(-capacity // envs) + 1, members, envs, device)

    # -- writing

    def begin(self) -> int:
        """Return the place for the next step of all envs; the oldest step is discarded."""
        place, self.cursor = self.cursor, (self.cursor + 1) % self.length
        self.filled, self.checked = min(self.filled + 1, self.length), self.checked + 1
        self.new_steps += 1
        if self.finals.shape[0] > len(self._free):  # some are in use
            old = self.final[:, place]
            self._free += old[old >= 0].tolist()
            old.fill_(-1)
        self.valid[:, place] = False  # until the outcome is known
        return place

    def part(self, columns: slice) -> ReplayPart:
        """Return views of some envs of every member."""
        return ReplayPart(self, columns)

    def reader(self, next_observations: Tensor, state: Tensor) -> ReplayBuffer:
        """Store the observations `[P, E, D]` after the newest step, and return this buffer.

        Raises:
            EnvStepError: an observation, a last one among them, or a reward since the last call is not finite.
        """
        self.observations[:, self.cursor] = next_observations
        self._check_finite()
        return self

    def interrupt(self) -> None:
        """Begin new episodes: the newest step is not sampled if its next observation is not stored."""
        if self.filled:
            last = (self.cursor - 1) % self.length
            self.valid[:, last] &= self.terminated[:, last] | (self.final[:, last] >= 0)

    def store_masks(self, place: int, columns: slice, mask: Tensor | None) -> None:
        """Store action masks `[P, e, choices]`; None allows everything."""
        if self.masks is not None or mask is not None:
            self._allocated_masks()[:, place, columns] = True if mask is None else mask

    def _allocated_masks(self) -> Tensor:
        if self.masks is None:
            shape = *self.rewards.shape, self.mask_size
            self.storage["masks"] = torch.ones(shape, dtype=torch.bool, device=self.device)
            self._bind()
        return cast(Tensor, self.masks)

    def store_finals(self, place: int, columns: slice, transition: Transition) -> None:
        """Store the last observations of truncated episodes of some envs, and their action masks."""
        truncated = torch.as_tensor(transition.truncated & ~transition.terminated)
        rows = truncated.nonzero().squeeze(1)
        if not len(rows):
            return
        at = rows if truncated.device.type != "cpu" or isinstance(transition.reward, Tensor) else rows.numpy()
        successors = self._encode(tree_map(lambda leaf: leaf[at], transition.next_obs)).to(self.device)
        if len(rows) > len(self._free):
            self._grow(len(rows))
        places = torch.tensor([self._free.pop() for _ in rows], device=self.device)
        self.finals[places] = successors
        mask = transition.last_mask
        self.final_masks[places] = True if mask is None else torch.as_tensor(mask[at]).to(self.device)
        self._finals_total += self.encoding.float_columns(successors).sum()
        member, env = rows // (columns.stop - columns.start), rows % (columns.stop - columns.start)
        at_member, at_env = member.to(self.device), (env + columns.start).to(self.device)
        self.final[at_member, place, at_env] = places.to(torch.int32)

    def _grow(self, more: int) -> None:
        """Double the space for last observations, or add `more` rows if that is not enough."""
        size = len(self.finals)
        added = max(more, size, 16)
        self.finals = torch.cat([self.finals, self.finals.new_zeros(added, self.finals.shape[1])])
        self.final_masks = torch.cat([self.final_masks, self.final_masks.new_ones(added, self.mask_size)])
        self._free += reversed(range(size, size + added))  # the lowest first, in a restored buffer too

    # -- sampling

    def sample(self, members: Tensor, draws: Tensor, gamma: Tensor, n_step: int = 1, kind: MemoryKind = "own") -> Batch:
        """Return minibatches of the members in places `members` `[Q]`, or with "shared" of all members.

        `draws` `[Q, B, TRIES]` are uniform in [0, 1), `gamma` is `[Q]`.
        """
        span, ring = self.steps * self.envs, self.length * self.envs
        count = span * (self.members if kind == "shared" else 1)
        index = (draws * count).long().clamp_(max=count - 1)
        if kind == "shared":
            owner = index // span
            index, ring_start = index % span, owner * ring
        else:
            ring_start = (members * ring).view(-1, 1, 1).expand_as(index)
        valid = _rows_of(self.valid, self._rows(ring_start, index))
        first = valid.to(torch.uint8).argmax(-1, keepdim=True)  # the first candidate that is valid
        ring_start, index, valid = (x.gather(-1, first).squeeze(-1) for x in (ring_start, index, valid))
        return self._batch(ring_start, index, valid, gamma.unsqueeze(1), n_step)

    def newest(self, members: Tensor, gamma: Tensor) -> Batch:
        """Return the newest transition of each env of the members in places `members` `[Q]`, env by env: `[Q, E]`."""
        ring_start = (members * (self.length * self.envs)).unsqueeze(1).expand(-1, self.envs)
        index = (self.steps - 1) * self.envs + torch.arange(self.envs, device=self.device).expand_as(ring_start)
        valid = _rows_of(self.valid, self._rows(ring_start, index))
        return self._batch(ring_start, index, valid, gamma.unsqueeze(1), 1)

    def _rows(self, ring_start: Tensor, index: Tensor) -> Tensor:
        """Return the rows of `[P T E]` of env steps that are counted from the oldest one of a member's ring."""
        ring = self.length * self.envs
        oldest = (self.cursor - self.steps) % self.length * self.envs
        return ring_start + (oldest + index) % ring

    def _batch(self, ring_start: Tensor, index: Tensor, valid: Tensor, gamma: Tensor, n_step: int) -> Batch:
        """Return the minibatch of env steps `index` `[Q, B]` of the members whose rings start at `ring_start`."""
        rows, after = self._rows(ring_start, index), self._rows(ring_start, index + self.envs)
        returns, last = _rows_of(self.rewards, rows), rows
        discounts = gamma.expand(returns.shape)
        if n_step > 1:
            newest = (self.steps - 1) * self.envs  # the first env step of the newest vector step
            runs = valid & ~self._ends(rows) & (index < newest)
            for step in range(1, n_step):
                runs = runs & _rows_of(self.valid, after)
                returns = torch.where(runs, torch.addcmul(returns, discounts, _rows_of(self.rewards, after)), returns)
                last = torch.where(runs, after, last)
                discounts = torch.where(runs, discounts * gamma, discounts)
                following = self._rows(ring_start, index + (step + 1) * self.envs)
                ended = self._ends(after) | (index >= newest - step * self.envs)
                runs, after = runs & ~ended, torch.where(runs, following, after)
        both = _rows_of(self.observations, torch.stack([rows, after]))
        next_observations, next_masks = both[1], None if self.masks is None else _rows_of(self.masks, after)
        if len(self.finals) > len(self._free):
            final = self.final.view(-1)[last].long()
            beside, final = (final >= 0).unsqueeze(-1), final.clamp(min=0)
            next_observations = torch.where(beside, self.finals[final], next_observations)
            if next_masks is not None:
                next_masks = torch.where(beside, self.final_masks[final], next_masks)
        if next_masks is not None:  # a row that allows nothing allows everything
            next_masks = next_masks | ~next_masks.any(-1, keepdim=True)
        return Batch(
            both[0],
            _rows_of(self.actions, rows),
            returns,
            torch.where(_rows_of(self.terminated, last), 0.0, discounts),
            next_observations,
            next_masks,
            valid.to(returns.dtype),
        )

    def _ends(self, rows: Tensor) -> Tensor:
        """Return whether episodes end at some rows."""
        return _rows_of(self.terminated, rows) | _rows_of(self.truncated, rows)

    def newest_observations(self, members: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """Return the observations `[Q, N, D]` of the newest `steps` vector steps, and 1 where an action was taken."""
        places = (self.cursor - steps + torch.arange(steps, device=self.device)) % self.length
        at = members.unsqueeze(1), places
        return self.observations[at].flatten(1, 2), self.valid[at].flatten(1, 2).float()

    def latest(self, member: int, count: int) -> Tensor:
        """Return about `count` of the newest observations of a member `[n, D]`."""
        steps = min(self.steps, -(-count // self.envs))
        places = (self.cursor - steps + torch.arange(steps, device=self.device)) % self.length
        return self.observations[member, places].flatten(0, 1)

    def _check_finite(self) -> None:
        """Raise EnvStepError unless observations and rewards since the last check are finite."""
        steps = min(self.checked, self.steps)
        self.checked = 0
        if steps == 1:
            places: Any = slice((self.cursor - 1) % self.length, (self.cursor - 1) % self.length + 1)
        else:
            places = (self.cursor - steps + torch.arange(steps, device=self.device)) % self.length
        observations = self.encoding.float_columns(self.observations[:, places])
        newest = self.encoding.float_columns(self.observations[:, self.cursor])
        rewards, lasts = self.rewards[:, places], self._finals_total
        self._finals_total = torch.zeros_like(lasts)
        if bool(torch.isfinite(rewards.sum() + observations.sum() + newest.sum() + lasts)):
            return
        final = self.final[:, places]
        has_last, last = final >= 0, torch.zeros_like(observations)
        last[has_last] = self.encoding.float_columns(self.finals[final[has_last].long()])
        fields = {
            "observation": observations,
            "reward": rewards,
            "observation ": newest.unsqueeze(1),
            "last observation": last,
        }
        for name, field in fields.items():
            bad = (~torch.isfinite(field)).nonzero()
            if len(bad):
                at = tuple(bad[0].tolist())
                if name != "reward":
                    name = name.strip().replace("observation", self.encoding.float_titles()[at[-1]])
                raise EnvStepError(f"{name}={float(field[at])} is not finite: {self.describe_row(at[0], at[2])}")

    # -- files

    def state_of(self, member: int) -> dict[str, Tensor]:
        """Return everything that is stored of one member, mostly views."""
        used = slice(0, min(self.filled, self.length))
        state = {name: x[member, used] for name, x in self._fields().items() if name != "final"}
        final = self.final[member, used]
        taken = final[final >= 0].long()
        numbers = torch.full_like(final, -1)
        numbers[final >= 0] = torch.arange(len(taken), dtype=torch.int32, device=self.device)
        counters = torch.tensor([self.cursor, self.filled, self.length, self.envs])
        new_steps = torch.tensor([self.new_steps[member]])
        finals = {"final": numbers, "finals": self.finals[taken], "final_masks": self.final_masks[taken]}
        return {**state, **finals, "counters": counters, "new_steps": new_steps}

    def load_state(self, states: list[Mapping[str, Tensor]]) -> None:
        """Become what `state_of` returned of each member; `states` is emptied, to hold one member's files at a time.

        Raises:
            ValueError: it is of another size.
        """
        cursor, filled, length, envs = (int(number) for number in states[0]["counters"])
        if len(states) != self.members or (length, envs) != (self.length, self.envs) or not 0 <= cursor < length:
            raise ValueError(
                f"the memory was saved with {len(states)} members, {length - 1} vector steps and {envs} envs; this run "
                f"has {self.members}, {self.length - 1} and {self.envs}"
            )
        self.cursor, self.filled, self.checked = cursor, filled, 0
        self.final.fill_(-1)
        self.finals, self.final_masks, self._free = self.finals[:0], self.final_masks[:0], []
        for member in range(self.members):
            state, states[member] = states[member], {}
            self.new_steps[member] = int(state.get("new_steps", 0))  # earlier versions did not store it
            if "masks" in state:
                self._allocated_masks()
            for name, field in self._fields().items():
                if name != "final":
                    field[member, : state[name].shape[0]] = state[name].to(self.device)
            rows = len(state["finals"])
            if rows > len(self._free):
                self._grow(rows - len(self._free))
            places = torch.tensor([self._free.pop() for _ in range(rows)], device=self.device, dtype=torch.int64)
            self.finals[places] = state["finals"].to(self.device)
            if "final_masks" in state:  # earlier versions did not store them
                self.final_masks[places] = state["final_masks"].to(self.device)
            own = state["final"].to(self.device)
            target = self.final[member, : len(own)]
            target[own >= 0] = places.to(torch.int32)

    def _fields(self) -> dict[str, Tensor]:
        return cast(dict[str, Tensor], self.storage.to_dict(retain_none=False))


def _rows_of(field: Tensor, rows: Tensor) -> Tensor:
    """Return rows of a field `[P, T, E, …]`, counted over its first three axes, in the shape of `rows`."""
    return field.flatten(0, 2)[rows]


class ReplayPart:
    """Views of a replay's share of some envs of every member."""

    def __init__(self, buffer: ReplayBuffer, columns: slice) -> None:
        self._buffer, self._columns = buffer, columns

    def put_actions(self, place: int, observations: Tensor, actions: Tensor, mask: Tensor | None) -> None:
        """Store observations `[P, e, D]`, raw actions `[P, e, A]` and action masks `[P, e, choices]`."""
        buffer, columns = self._buffer, self._columns
        buffer.observations[:, place, columns] = observations
        buffer.actions[:, place, columns] = actions
        buffer.store_masks(place, columns, mask)

    def put_outcome(self, place: int, transition: Transition) -> None:
        """Store rewards and flags, last observations of truncated episodes, and the masks of the next step."""
        buffer, columns = self._buffer, self._columns
        shape = buffer.members, -1

        def stored(array: Any) -> Tensor:
            return torch.as_tensor(array).reshape(shape)

        buffer.rewards[:, place, columns] = stored(transition.reward)
        buffer.terminated[:, place, columns] = stored(transition.terminated)
        buffer.truncated[:, place, columns] = stored(transition.truncated)
        buffer.valid[:, place, columns] = stored(transition.valid)
        if transition.next_obs is not transition.obs:
            buffer.store_finals(place, columns, transition)
        if transition.action_mask is not None:
            mask = torch.as_tensor(transition.action_mask).to(buffer.device)
            buffer.store_masks((place + 1) % buffer.length, columns, mask.view(*shape, mask.shape[-1]))
