"""PPO's learners: rollouts, an update from each, and the methods of hand-written loops."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from agilerl_like.algorithms.agilerl_experiences import Experiences, as_rollout
from agilerl_like.algorithms.learner import Learner, torch_generator
from agilerl_like.algorithms.learner_group import LearnerGroup
from agilerl_like.algorithms.rollout_builder import RolloutBuilder
from agilerl_like.algorithms.settings import number_range, validated
from agilerl_like.envs.spaces import mask_size
from agilerl_like.envs.vec_adapter import VecEnvAdapterProtocol
from agilerl_like.errors import ConfigurationError, PopulationDivergedError
from agilerl_like.hpo.schedules import factor
from agilerl_like.learning.ppo_update import DETAILS, HYPERPARAM_NAMES, METRICS, Hyperparams, RolloutUpdate
from agilerl_like.learning.rollout_buffer import LastSteps, Rollout, RolloutBuffer
from agilerl_like.learning.sequences import SINGLE_STEP, SequenceSplit
from agilerl_like.seeding import Purpose


class PPOLearner(Learner):
    """The actor and critic of one group of agents, trained by PPO."""

    algo = "PPO"

    def hyperparams(self) -> tuple[float, ...]:
        """Return the values that enter the computation of an update, in the order of `HYPERPARAM_NAMES`."""
        settings = self.algorithm.settings()  # of which clip_coef_vf and target_kl may be None
        values = {name: math.inf if settings[name] is None else float(settings[name]) for name in HYPERPARAM_NAMES}
        for name, schedule in self.algorithm.schedules.items():
            values[name] *= factor(name, schedule, self.algorithm.progress)
        return tuple(values.values())

    @property
    def cut(self) -> SequenceSplit:
        """The sequences into which a rollout is split."""
        if not self.recurrent:
            return SINGLE_STEP
        settings = self.settings()
        return SequenceSplit.of_kind(settings["bptt_sequence_type"], settings["max_seq_len"] or self.rollout_steps)

    # -- acting

    def get_action(
        self, obs: Any, action_mask: np.ndarray | None = None, hidden_state: Mapping[str, Tensor] | None = None
    ) -> tuple[Any, ...]:
        """Act as `PPO.get_action` describes."""
        with torch.no_grad():
            x = self.normalize(obs)
            sequence_info = self._one_step(hidden_state, len(x))
            mask = self._mask(action_mask, len(x))
            outputs, _ = self.network.evaluate(x, sequence_info)
            raw = (
                self.distribution.sample(outputs, self.next_noise(len(x)), mask)
                if self.algorithm.training
                else self.distribution.mode(outputs, mask)
            )
            log_prob, entropy = self.distribution.evaluate(outputs, raw, mask)
            value = self.network.value(x, sequence_info)
            arrays = log_prob.cpu().numpy(), entropy.cpu().numpy(), value.cpu().numpy()
            result = self.distribution.unbounded(raw), *arrays
            return (*result, self._named(self.network.step(x, sequence_info.state)[1])) if self.recurrent else result

    def evaluate_actions(
        self, obs: Any, actions: np.ndarray, hidden_state: Any = None, action_mask: np.ndarray | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probability, entropy and value `[B]` of given actions, with gradients."""
        x = self.normalize(obs)
        sequence_info = self._one_step(hidden_state, len(x))
        outputs, _ = self.network.evaluate(x, sequence_info)
        raw = self.distribution.from_env(np.asarray(actions)).to(self.device)
        log_prob, entropy = self.distribution.evaluate(outputs, raw, self._mask(action_mask, len(x)))
        return log_prob, entropy, self.network.value(x, sequence_info)

    def value(self, obs: Any, hidden_state: Mapping[str, Tensor] | None = None) -> Tensor:
        """Return the critic's value `[B]` of observations."""
        x = self.normalize(obs)
        return self.network.value(x, self._one_step(hidden_state, len(x)))

    # -- learning

    def shuffle(self, epoch: int, samples: int) -> Tensor:
        """Return the order `[samples]` of an epoch's samples in the next update, on the host."""
        stream = torch_generator("cpu", self.seed, Purpose.MINIBATCHES, self.index, self.updates, epoch)
        return torch.randperm(samples, generator=stream)

    def _state_before_rollout(self, hidden_state: Mapping[str, Tensor] | None, starts: Tensor) -> Tensor:
        """Return the hidden state `[E, M, K, H]` before a rollout, zero where `starts` `[E]` is 1."""
        if self.recurrent and hidden_state is None and not bool(starts.all()):
            warnings.warn(
                "this rollout begins in the midst of an episode (dones[0] is 0), and hidden_state is missing: pass "
                "what get_action was given at its first step, or get_initial_hidden_state(…) if that was nothing",
                stacklevel=6,
            )
        state = self._one_step(hidden_state, len(starts)).state.detach()
        if not bool(torch.isfinite(state).all()):
            raise ConfigurationError("hidden_state holds numbers that are not finite; allowed is what get_action gave")
        return state.expand(len(starts), *state.shape[-3:]) * (1 - starts).to(state.dtype).view(-1, 1, 1, 1)

    def learn(
        self,
        experiences: Experiences | RolloutBuilder | None = None,
        action_masks: Sequence[Any] | None = None,
        hidden_state: Mapping[str, Tensor] | None = None,
        acting: Sequence[Any] | None = None,
    ) -> float:
        """Do one PPO update as `PPO.learn` describes."""
        validated(
            self.algorithm.config, self.algorithm.settings()
        )  # any of them may have been set since the last update
        if isinstance(experiences, RolloutBuilder):
            rollout, precomputed = experiences.rollout(self.encode, self.distribution, self._state_before_rollout)
            experiences.clear()
        else:
            rollout, precomputed = as_rollout(
                experiences,
                self.encode,
                self.distribution,
                hidden_state_before=lambda starts: self._state_before_rollout(hidden_state, starts),
                action_masks=action_masks,
                acting=acting,
            )
        snapshot = self.cohort.snapshot(self.row)
        update = RolloutUpdate(
            rollout, hyperparams_of([self]), self.batch_size, shuffle_of([self]), self.cut, precomputed
        )
        report = self.cohort.learn([self.row], update)
        if not bool(report["healthy"][0]):
            self.cohort.restore(self.row, snapshot)
            raise PopulationDivergedError(
                f"agent {self.index}: {_non_finite(report)} is not finite; its weights were put back"
            )
        self.after_rollout(rollout)
        return float(report["loss"][0])

    def after_rollout(self, rollout: Rollout) -> None:
        """Count an update from a rollout `[T, 1, E, …]`."""
        self.distribution.bound_std_(0.0, self.algorithm.action_std_min, self.algorithm.action_std_max)
        self.learned_with_masks |= rollout.masks is not None
        self.after_update(rollout.observations[:, 0], rollout.starts[:, 0] if self.recurrent else None)


class PPOLearnerGroup(LearnerGroup[PPOLearner]):
    """P learners of one group, which act and learn together from rollouts."""

    learner_class = PPOLearner
    metrics = tuple(name for name in METRICS if name != "healthy")
    details = DETAILS

    def make_buffer(
        self, env: VecEnvAdapterProtocol, envs: int, describe_row: Callable[[int, int], str]
    ) -> RolloutBuffer:
        ranges = [number_range(learner.hp_config, "learn_step") for learner in self]
        longest = (
            max(0 if range_ is None else range_.max, learner.learn_step)
            for range_, learner in zip(ranges, self, strict=True)
        )
        steps = [-(-int(rows) // learner.num_envs) for rows, learner in zip(longest, self, strict=True)]
        return RolloutBuffer(
            max(2, *steps),  # an env group may be a step ahead
            len(self),
            envs,
            encoding=self[0].encoding,
            action_size=self[0].distribution.size,
            action_dtype=self[0].distribution.raw_dtype,
            mask_size=mask_size(env.single_action_space),
            device=self.device,
            arrays=env.array_backend,
            describe_row=describe_row,
        )

    def learn(self, places: Sequence[int], experience: LastSteps) -> dict[int, TensorDict]:
        """Update some members; `experience(places, steps)` returns their rollouts.

        Members with rollouts and minibatches of equal size learn together, or each by itself with `per_member`.
        """
        reports: dict[int, TensorDict] = {}
        due: dict[tuple[Any, ...], list[int]] = {}
        for place in places:
            learner = self[place]
            alone = place if self.is_per_member else None
            key = (learner.rollout_steps, learner.batch_size, learner.cut, learner.network.is_recurrent, alone)
            due.setdefault(key, []).append(place)
        for (steps, batch_size, cut, *_), together in due.items():
            learners = [self[place] for place in together]
            rollout = self.gradient_sync.all_gather(experience(together, steps))
            hyperparams = hyperparams_of(learners)
            update = RolloutUpdate(rollout, hyperparams, batch_size, shuffle_of(learners), cut, detailed=self.detailed)
            metrics = self.cohort.learn(together, update).cpu()
            for name in {name for learner in learners for name in learner.algorithm.schedules}:
                metrics.set(name, getattr(hyperparams, name).cpu())  # as scheduled
            for i, (place, learner) in enumerate(zip(together, learners, strict=True)):
                learner.after_rollout(rollout.of_members(torch.tensor([i], device=self.device)))
                reports[place] = metrics[i : i + 1]
        return reports


def shuffle_of(learners: Sequence[PPOLearner]) -> Callable[[int, int], Tensor]:
    """Return a function that draws the order of an epoch's samples from each learner's stream, `[P, samples]`."""
    return lambda epoch, count: torch.stack([x.shuffle(epoch, count) for x in learners]).to(learners[0].device)


def hyperparams_of(learners: Sequence[PPOLearner]) -> Hyperparams:
    """Return the learners' hyperparameters as tensors `[P]`."""
    columns = zip(*(learner.hyperparams() for learner in learners), strict=True)
    tensors = (torch.tensor(column, device=learners[0].device) for column in columns)
    return Hyperparams.from_dict(dict(zip(HYPERPARAM_NAMES, tensors, strict=True)), batch_size=[len(learners)])


def _non_finite(report: TensorDict) -> str:
    """Name a metric of an update that is not finite."""
    values = {name: float(report[name][0]) for name in ("loss", "value_loss", "approx_kl", "grad_norm")}
    return next((f"{name}={value}" for name, value in values.items() if not math.isfinite(value)), "a weight")
