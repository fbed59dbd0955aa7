"""A learner's random streams, actions, action masks and hidden states."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl_like.algorithms.learner_base import LearnerBase, torch_generator
from agilerl_like.envs.action_masks import mask_slices
from agilerl_like.envs.critic_observation import AsymmetricEncoder
from agilerl_like.envs.spaces import ObservationEncoder, legal_actions, mask_size
from agilerl_like.errors import ConfigurationError, EnvStepError
from agilerl_like.modules.weight_transfer import MODE_LOCK, in_eval_mode
from agilerl_like.networks.recurrent_state import NO_SEQUENCE, SequenceInfo
from agilerl_like.seeding import Purpose

RNG_STRIDE = 2**32
"""Upper bound of the draws between two checkpoints."""


class ActingLearner(LearnerBase):
    """A learner's random streams, actions and hidden states."""

    # -- random streams

    def noise(self, shape: tuple[int, ...]) -> Tensor:
        """Draw action noise `[*shape, …]`; every call uses a stream of its own."""
        self.draws += 1
        stream = torch_generator(self.device, self.seed, Purpose.ACTION_NOISE, self.index, self.draws)
        return self.distribution.noise(shape, stream)

    def correlate(self, noise: Tensor, before: Tensor | None) -> Tensor:
        """Correlate the noise of neighbouring steps `[T, …]` by `action_noise_correlation`."""
        return self.distribution.correlated(noise, before, self.algorithm.action_noise_correlation)

    def next_noise(self, envs: int) -> Tensor:
        """Return action noise `[envs, …]` for the next step of a hand-written loop, correlated with the last step's."""
        before = self._last_noise
        continues = before is not None and len(before) == envs
        self._last_noise = self.correlate(self.noise((1, envs)), before if continues else None)[0]
        return self._last_noise

    def advance_rng(self) -> None:
        """Skip action noise, so that a run that restarts from a checkpoint draws other noise than before."""
        self.draws += RNG_STRIDE

    # -- acting

    def encode(self, observation: Any) -> Tensor:
        """Encode observations as a rollout's rows `[B, D]` on the device; a single one becomes a batch of one."""
        return self._rows(observation, self.rollout_encoding)[0]

    def normalize(self, observation: Any) -> Tensor:
        """Encode and normalize observations `[B, *shape]` or a single one: `[B, D]` on the device."""
        return self.network.observation_norm(self.encode(observation))

    def _rows(self, observation: Any, encoding: ObservationEncoder | AsymmetricEncoder) -> tuple[Tensor, bool]:
        """Return encoded observations, and whether a single one was given."""
        batch, single = encoding.as_batch(observation)
        try:
            found = encoding.encode(batch)
        except EnvStepError as error:  # the observation is the caller's, and no env's
            raise ConfigurationError(str(error)) from error
        rows = torch.empty(found.shape, dtype=encoding.dtype)
        rows.numpy()[...] = found  # `from_numpy` rejects negative strides, and some of empty arrays
        columns = encoding.float_columns(rows)
        if len(wrong := (~torch.isfinite(columns)).nonzero()):
            (row, column), titles = wrong[0].tolist(), encoding.float_titles()
            of_entry = [place for place, title in enumerate(titles) if title == titles[column]]
            raise ConfigurationError(f"{titles[column]}={columns[row, of_entry].tolist()} is not finite")
        return rows.to(self.device), single

    def raw_actions(self, name: str, actions: Any, rows: int, acting: np.ndarray | None = None) -> Tensor:
        """Convert the environment's actions of `rows` rows to raw ones `[rows, size]`, 0 where `acting` is False.

        Raises:
            ConfigurationError: there are more or fewer, or one is not of the action space; it names them `name`.
        """
        size = self.distribution.size
        given = np.array(actions, np.float64).ravel()
        if len(given) != rows * size:
            each = f", {size} for each row" if size > 1 else ""
            raise ConfigurationError(f"{name} has {len(given)} numbers; allowed are {rows * size}{each}")
        given = given.reshape(rows, size)
        absent = np.zeros(rows, np.bool_) if acting is None else ~acting
        given[absent] = 0
        legal, allowed = legal_actions(self.action_space, given)
        if not legal[~absent].all():
            raise ConfigurationError(f"{name}={given[~legal & ~absent[:, None]][0]:g}; allowed are {allowed}")
        raw = self.distribution.from_env(given)
        raw[torch.from_numpy(absent)] = 0
        return raw.to(self.device)

    def warn_of_missing_masks(self, method: str, action_masks: Any, stacklevel: int = 4) -> None:
        """Warn once if an agent that learned with action masks is used without them; `stacklevel` as in `warn`."""
        if action_masks is not None or not self.learned_with_masks or self._warned_of_masks:
            return
        self._warned_of_masks = True
        effect = "may return the value of an illegal action" if method == "value" else "may choose illegal actions"
        warnings.warn(
            f"agent {self.index} learned with action masks, and {method} was called without them: it {effect}; "
            "pass the environment's masks (info['action_mask'])",
            stacklevel=stacklevel,
        )

    def predict(
        self,
        obs: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, Any]:
        """Act as `PPO.predict` describes."""
        self.warn_of_missing_masks("predict", action_masks)
        if not self.architecture.has_noise:
            mode = nullcontext()
        else:
            mode = in_eval_mode(self.network) if deterministic else MODE_LOCK
        with torch.no_grad(), mode:
            encoded, single = self._rows(obs, self.encoding)
            x = self.network.observation_norm(encoded)
            before = self._one_step(state, len(x), "state").state
            if self.recurrent and episode_start is not None:
                starts = torch.as_tensor(np.array(episode_start, ndmin=1), device=self.device).to(before.dtype)
                if starts.shape != (len(x),):
                    raise ConfigurationError(
                        f"episode_start has shape {tuple(starts.shape)}; allowed is {(len(x),)}, one for each episode"
                    )
                before = before * (1 - starts).view(-1, 1, 1, 1)
            outputs, after = self.network.step(x, before)
            mask = self._mask(action_masks, len(x))
            raw = (
                self.distribution.mode(outputs, mask)
                if deterministic
                else self.distribution.sample(outputs, self.noise((len(x),)), mask)
            )
            action = self.distribution.to_env(raw)
        return (action[0] if single else action), self._named(after) if self.recurrent else state

    @torch.no_grad()
    def best_actions(self, encoded: Tensor, mask: Tensor | None, state: Tensor) -> tuple[np.ndarray, Tensor]:
        """Return the env's actions for encoded observations `[N, D]` without exploration, and the next hidden state.

        `state` is the hidden state `[N, M, K, H]`.
        """
        if self.algorithm.per_member and len(encoded) > 1:  # the number of rows of a product may change its last bits
            rows = [slice(row, row + 1) for row in range(len(encoded))]
            masks = [None if mask is None else mask[row].clone() for row in rows]
            one_by_one = [
                self.best_actions(encoded[row].clone(), its_mask, state[row].clone())
                for row, its_mask in zip(rows, masks, strict=True)
            ]
            actions, states = zip(*one_by_one, strict=True)
            return np.concatenate(actions), torch.cat(states)
        outputs, after = self.network.step(self.network.observation_norm(encoded), state)
        return self.distribution.to_env(self.distribution.mode(outputs, mask)), after

    def _mask(self, action_mask: Any, batch: int) -> Tensor | None:
        if action_mask is None:
            return None
        mask = np.array(action_mask, dtype=bool)  # a copy, because torch rejects negative strides
        size = mask_size(self.action_space)
        mask = mask[None] if mask.ndim == 1 else mask
        if mask.shape != (batch, size):
            raise ConfigurationError(f"action_mask has shape {mask.shape}; allowed is {(batch, size)}")
        for choice in mask_slices(self.action_space):
            stuck = ~mask[:, choice].any(1)
            if stuck.any():
                raise ConfigurationError(f"action_mask={mask[stuck][0].astype(int).tolist()} allows no action")
        return torch.from_numpy(mask).to(self.device)

    # -- hidden state

    @property
    def initial_hidden_state(self) -> Tensor:
        """The hidden state at the start of an episode: zeros `[M, K, H]`."""
        return torch.zeros(self.network.state_shape, dtype=self.network.dtype, device=self.device)

    def get_initial_hidden_state(self, num_envs: int = 1) -> dict[str, Tensor]:
        """Return zeros `[num_envs, K, H]` for each recurrent network, by name; none if not recurrent."""
        return self._named(self.initial_hidden_state.repeat(num_envs, 1, 1, 1)) if self.recurrent else {}

    @property
    def hidden_state_names(self) -> tuple[str, ...]:
        """The names of the recurrent networks."""
        return ("shared",) if self.algorithm.share_encoders else ("actor", "critic")

    def _named(self, state: Tensor) -> dict[str, Tensor]:
        return dict(zip(self.hidden_state_names, state.unbind(1), strict=True))

    def _one_step(
        self, hidden_state: Mapping[str, Tensor] | None, batch: int, argument: str = "hidden_state"
    ) -> SequenceInfo:
        """Return the info of one step of each episode of a batch, with the hidden state before it.

        `argument` is the name of the hidden state in errors.
        """
        given = {} if hidden_state is None else hidden_state
        if not isinstance(given, Mapping):
            raise ConfigurationError(
                f"{argument} is a {type(given).__name__}; allowed is a mapping as get_initial_hidden_state gives it"
            )
        if given and not self.recurrent:
            raise ConfigurationError(f"{argument} is given, but this agent is not recurrent; allowed is None")
        if not self.recurrent:
            return NO_SEQUENCE._replace(state=self.initial_hidden_state)
        shape = (batch, *self.network.state_shape[1:])
        named = {
            name: torch.as_tensor(state) for name, state in (given or self.get_initial_hidden_state(batch)).items()
        }
        shapes = {name: tuple(named[name].shape) if name in named else None for name in self.hidden_state_names}
        if set(shapes.values()) != {shape}:
            raise ConfigurationError(f"{argument} has shapes {shapes}; allowed is {shape} for each")
        state = torch.stack([named[name] for name in self.hidden_state_names], 1).to(self.device, self.network.dtype)
        if given and not bool(torch.isfinite(state).all()):
            raise ConfigurationError(
                f"{argument} holds numbers that are not finite; allowed is what the agent returned"
            )
        return SequenceInfo(state.new_zeros(batch, 1), state)

    def transfer_state(self, state: Tensor) -> Tensor:
        """Convert the hidden state `[…, M, K, H]` of running episodes to the units after the last mutations.

        New units start at zero. To be called once after a mutation.
        """
        changes, self._memory_changes = self._memory_changes, []
        specs = [*(before.memory for before, _ in changes), self.architecture.memory]
        for (old, new), (_, maps) in zip(pairwise(specs), changes, strict=True):
            state = self.network.transfer_state(state, old, new, maps)
        return state
