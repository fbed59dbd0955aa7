"""What agents that learn from a replay have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar, cast

import gymnasium
import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from agilerl_like.algorithms.episode_ends import as_numpy
from agilerl_like.algorithms.learner import Learner
from agilerl_like.algorithms.learner_base import RECENT
from agilerl_like.algorithms.off_policy_config import OffPolicyAttributes, check_replay
from agilerl_like.algorithms.off_policy_learner import OffPolicyLearner
from agilerl_like.algorithms.population import PopulationConstructor
from agilerl_like.algorithms.rl_algorithm import RLAlgorithm
from agilerl_like.algorithms.settings import largest
from agilerl_like.envs.spaces import mask_size
from agilerl_like.errors import ConfigurationError, PopulationDivergedError
from agilerl_like.hpo.frozen_mapping import FrozenMapping
from agilerl_like.learning.experience import Update
from agilerl_like.learning.replay_buffer import DRAW_BYTES, Batch, replay_row_bytes, sample_bytes
from agilerl_like.resources import check_memory

LearnerT = TypeVar("LearnerT", bound=OffPolicyLearner)
EXPERIENCE = ("obs", "action", "reward", "next_obs", "done")
"""Keys of the experiences of a hand-written loop, as AgileRL's replay samples them."""
ROUNDING = 1e-4
"""Share of the half-width of a Box by which actions may be beyond its bounds, as float32 rounds them."""


class HandMadeBatch:
    """Stands for a replay in an update from given experiences."""

    def __init__(self, batch: Batch, counted: Tensor) -> None:
        self._batch, self._counted = batch, counted
        self.rows, self.observations = batch.returns.shape[1], batch.observations
        self.steps, self.new_steps = 1, [1]

    def newest_observations(self, *_: Any) -> tuple[Tensor, Tensor]:
        """Return the observations `[1, B, D]`, and 1 for those that the statistics count, `[1, B]`."""
        return self.observations, self._counted

    def sample(self, *_: Any) -> Batch:
        """Return the batch."""
        return self._batch


class OffPolicyAlgorithm(OffPolicyAttributes, PopulationConstructor, RLAlgorithm[LearnerT]):
    """An agent that learns from a replay."""

    net_defaults: ClassVar[Mapping[str, Any]] = FrozenMapping()
    """Entries of `net_config` that are not inferred from the observation space."""

    def _init_off_policy(self, given: Mapping[str, Any]) -> None:
        """Make the agent from the constructor's `locals()`."""
        net_config = {key: value for key, value in (given["net_config"] or {}).items() if value is not None}
        self._init_given(given, {**self.net_defaults, **net_config})

    def value(self, obs: Any, action_masks: np.ndarray | None = None) -> np.ndarray:
        """Return the value `[B]` of the best known action for observations `[B, *shape]`, in units of reward.

        `action_masks` `[B, choices]`: only actions that they allow count.
        """
        return best_values(self.learner, obs, action_masks)

    def check(self) -> None:
        super().check()
        check_replay(self.settings(), self.hp_config)

    def _check_memory(self) -> None:
        """Raise ConfigurationError unless replay and minibatches fit in memory, without allocating anything."""
        settings = self.settings()
        samples, steps = (largest(settings, self.hp_config, name) for name in ("batch_size", "gradient_steps"))
        for learner in self.learners.values():
            each = replay_row_bytes(learner.encoding, 1)
            check_memory(f"memory_size={self.memory_size}", self.memory_size, each, "env steps of a member")
            check_memory(f"batch_size={samples}", samples, sample_bytes(learner.encoding), "samples")
        named = f"gradient_steps={steps} with batch_size={samples}"
        check_memory(named, steps or 1, samples * DRAW_BYTES, "gradient steps")
        super()._check_memory()

    def learn(self, experiences: Mapping[str, Any]) -> float:
        """Do one gradient step on a batch of a hand-written loop, and return the loss.

        `experiences` has `obs`, `action`, `reward`, `next_obs` and `done`, a row for each transition, as AgileRL's
        replay samples them; `done` is 1 where the episode terminated, not at a time limit. `next_action_mask`
        `[B, choices]` may be given, and `is_new` `[B]`: running statistics of observations count the rows where it is
        True, or without it all. A `TransitionBuffer` samples them: `tutorials/hand_written_off_policy_loop.py`. The
        setting `n_step` has no effect here: each transition is one step, so the value of its `next_obs` is discounted
        by `gamma`.

        Raises:
            ConfigurationError: a key or rows are missing, a number is not finite or not allowed, or a setting that was
                set as an attribute is not legal.
            PopulationDivergedError: the step gave weights that are not finite; they were restored.
        """
        self.check()
        learner = self.learner
        batch = batch_of(learner, experiences, self.gamma)
        learner.learned_with_masks |= batch.next_masks is not None
        replay = HandMadeBatch(batch, _counted(experiences, batch.weight))
        update = cast(Any, self.group_class).make_update([learner], [0], replay, 1)
        loss = float(learn_or_restore(learner, update)["loss"][0])
        learner.recent_observations = batch.observations[0, :RECENT].cpu().clone()  # on which mutations are measured
        return loss


def best_values(learner: Learner, obs: Any, action_masks: np.ndarray | None = None) -> np.ndarray:
    """Return the value `[B]` of the best known action for observations `[B, *shape]`, in units of reward.

    Raises:
        ConfigurationError: an observation or mask does not fit, or actions have no masks.
    """
    if action_masks is not None and not mask_size(learner.action_space):
        raise ConfigurationError(f"action_masks is given for {learner.action_space}; allowed is None")
    learner.warn_of_missing_masks("value", action_masks)
    with torch.no_grad():
        x = learner.normalize(obs)
        if action_masks is None:
            return learner.network.value(x).cpu().numpy()
        values, mask = cast(Any, learner.network).q_values(x), cast(Tensor, learner._mask(action_masks, len(x)))
        return values.masked_fill(~mask, -torch.inf).amax(-1).cpu().numpy()


def learn_or_restore(learner: Learner, update: Update) -> TensorDict:
    """Carry out an update of a hand-written loop and return its metrics `[1]`.

    Raises:
        PopulationDivergedError: it gave weights that are not finite; they were restored.
    """
    snapshot = learner.cohort.snapshot(learner.row)
    report = learner.cohort.learn([learner.row], update)
    if not bool(report["healthy"][0]):
        learner.cohort.restore(learner.row, snapshot)
        raise PopulationDivergedError(f"agent {learner.index}: a number is not finite; its weights were restored")
    learner.count_updates(1)
    return report


def batch_of(learner: Learner, experiences: Mapping[str, Any], gamma: float) -> Batch:
    """Return the transitions of a hand-written loop as a minibatch of one member.

    Raises:
        ConfigurationError: a key or rows are missing, or a number is not finite or not allowed.
    """
    if not hasattr(experiences, "keys"):
        raise ConfigurationError(f"experiences={experiences!r:.100}; allowed is a mapping with {', '.join(EXPERIENCE)}")
    missing = [name for name in EXPERIENCE if name not in experiences.keys()]  # noqa: SIM118  # of a TensorDict
    if missing:
        raise ConfigurationError(f"experiences lack {', '.join(missing)}; wanted are {', '.join(EXPERIENCE)}")
    device = learner.device
    obs, next_obs = (learner.encode(_array(experiences[name])) for name in ("obs", "next_obs"))
    rows = len(obs)
    if rows == 0 or len(next_obs) != rows:
        raise ConfigurationError(
            f"experiences: obs has {rows} rows and next_obs has {len(next_obs)}; allowed are as many, at least one"
        )

    def numbers(name: str) -> np.ndarray:
        found = np.asarray(_array(experiences[name]), np.float64).ravel()
        if len(found) != rows:
            raise ConfigurationError(f"experiences: {name} has {len(found)} numbers; allowed are {rows}")
        _check_each(name, found, np.abs(found) <= np.finfo(np.float32).max, "finite numbers")
        return found

    reward, done = (
        torch.tensor(numbers(name)[None], dtype=torch.float32, device=device) for name in ("reward", "done")
    )
    _check_each("done", done, (done == 0) | (done == 1), "0 and 1")
    given = _array(experiences["action"])
    actions = learner.raw_actions("experiences: action", given, rows)
    if isinstance(space := learner.action_space, gymnasium.spaces.Box):
        _check_bounds(np.asarray(given, np.float64).reshape(rows, -1), actions, space)
    mask = experiences.get("next_action_mask", None)
    if mask is not None:
        mask, shape = np.atleast_2d(np.asarray(_array(mask), np.bool_)), (rows, mask_size(learner.action_space))
        if mask.shape != shape:
            raise ConfigurationError(f"experiences: next_action_mask has shape {mask.shape}; allowed is {shape}")
        mask = mask | ~mask.any(1, keepdims=True)  # a row that allows nothing allows everything, as in the replay
    return Batch(
        obs.unsqueeze(0),
        actions.unsqueeze(0),
        reward,
        gamma * (1 - done),
        next_obs.unsqueeze(0),
        None if mask is None else torch.tensor(mask[None], device=device),
        torch.ones_like(reward),
    )


def _counted(experiences: Mapping[str, Any], weight: Tensor) -> Tensor:
    """Return 1 for the rows `[1, B]` that the statistics of observations count: those of `is_new`, or of `weight`."""
    given = experiences.get("is_new", None)
    if given is None:
        return weight
    is_new = np.asarray(_array(given), np.bool_).ravel()
    if len(is_new) != weight.shape[1]:
        raise ConfigurationError(f"experiences: is_new has {len(is_new)} flags; allowed are {weight.shape[1]}")
    return torch.tensor(is_new[None], dtype=weight.dtype, device=weight.device)


def _check_each(name: str, values: Any, legal: Any, allowed: str) -> None:
    """Raise ConfigurationError, with the first value that is not legal, unless all are."""
    if not legal.all():
        raise ConfigurationError(f"experiences: {name}={float(values[~legal][0]):g}; allowed are {allowed}")


def _check_bounds(given: np.ndarray, units: Tensor, space: gymnasium.spaces.Box) -> None:
    """Raise ConfigurationError unless actions `[B, A]`, also given in half-widths, are within the bounds of a Box."""
    beyond = (units.abs() > 1 + ROUNDING).cpu().numpy()
    if beyond.any():
        row, column = np.argwhere(beyond)[0]
        low, high = (bound.ravel()[column] for bound in (space.low, space.high))
        raise ConfigurationError(
            f"experiences: action={given[row, column]:g} is beyond the bounds; allowed is {low:g} to {high:g}, in the "
            "env's units"
        )


def _array(values: Any) -> Any:
    if isinstance(values, Mapping):
        return {name: _array(part) for name, part in values.items()}
    if isinstance(values, tuple):
        return tuple(map(_array, values))
    return as_numpy(values)
