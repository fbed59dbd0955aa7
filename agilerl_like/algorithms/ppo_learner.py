"""PPO's learners: rollouts, an update from each, and the methods of hand-written loops."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from agilerl_like.algorithms.agilerl_experiences import Experiences, as_rollout
from agilerl_like.algorithms.rollout_builder import LastObservations, RolloutBuilder, with_limits
from agilerl_like.algorithms.rollout_learner import RolloutLearner, RolloutLearnerGroup, shuffle_of
from agilerl_like.algorithms.settings import largest
from agilerl_like.envs.spaces import mask_size
from agilerl_like.errors import ConfigurationError, PopulationDivergedError
from agilerl_like.hpo.schedules import ADAPTIVE, LR_SCHEDULE, factor
from agilerl_like.learning.advantages import Precomputed
from agilerl_like.learning.optimizer import DEFAULT_BETAS
from agilerl_like.learning.own_time import learned_steps
from agilerl_like.learning.ppo_update import DETAILS, HYPERPARAM_NAMES, METRICS, Hyperparams, RolloutUpdate, UpdateModes
from agilerl_like.learning.rewards import CLIP, transformed
from agilerl_like.learning.rollout_buffer import LastSteps, Rollout
from agilerl_like.learning.sequences import SINGLE_STEP, SequenceSplit
from agilerl_like.learning.stacked_networks import StackedNetworks


class PPOLearner(RolloutLearner):
    """The actor and critic of one group of agents, trained by PPO."""

    algo = "PPO"

    def scheduled_values(self) -> dict[str, Any]:
        """Return the values of the next update by name, as schedules set them and without the factors of the group."""
        host, settings = self.algorithm, self.algorithm.settings()
        values = {name: math.inf if settings.get(name) is None else settings[name] for name in HYPERPARAM_NAMES}
        for name in host.active_schedules:
            values[name] *= self.schedule_factor(name)
        if settings["lr_schedule"] not in (None, ADAPTIVE):
            share = factor(LR_SCHEDULE, settings["lr_schedule"], host.progress)
            values["lr"] = settings["lr_end"] + (settings["lr"] - settings["lr_end"]) * share
        return values

    def hyperparams(self) -> tuple[float, ...]:
        """Return the values that enter the computation of an update, in the order of `HYPERPARAM_NAMES`."""
        settings, values = self.algorithm.settings(), self.scheduled_values()
        for name, factor_of_group in self.group.factors.items():
            for scaled in (name, "lr_min", "lr_max") if name == "lr" else (name,):
                values[scaled] *= factor_of_group
        own = settings["lr_critic"]
        values["lr_critic"] = values["lr"] if own is None else own * (values["lr"] / settings["lr"])
        values["max_grad_norm"] = settings["max_grad_norm"] or math.inf
        values["bootstrap"] = settings["bootstrap_truncated"]
        if settings["advantage"] != "gae":
            values["gae_lambda"] = 1.0
        if settings["advantage"] != "n_step":
            values["n_step"] = math.inf
        if settings["lr_schedule"] != ADAPTIVE:
            values["kl_threshold"] = math.inf
        values["beta1"], values["beta2"] = settings["betas"] or DEFAULT_BETAS[settings["optimizer"]]
        return tuple(float(value) for value in values.values())

    @property
    def adapted_lr(self) -> float:
        """The learning rate of the next update where it adapts to the KL."""
        values = dict(zip(HYPERPARAM_NAMES, self.hyperparams(), strict=True))
        return min(max(values["lr"] * float(self.moments.lr_scale[0]), values["lr_min"]), values["lr_max"])

    @property
    def modes(self) -> UpdateModes:
        """The settings of an update that are the same for all members."""
        settings = self.algorithm.settings()
        return UpdateModes(**{name: settings[name] for name in UpdateModes._fields})

    def cut_of(self, steps: int) -> SequenceSplit:
        """Return the sequences into which a rollout of this many steps of each env is split."""
        if not self.recurrent:
            return SINGLE_STEP
        settings = self.settings()
        return SequenceSplit.of_kind(settings["bptt_sequence_type"], settings["max_seq_len"] or steps)

    def check_run(self, max_steps: int, longest_episode: int | None, processes: int) -> None:
        starts = largest(self.algorithm.settings(), self.algorithm.hp_config, "learning_starts")
        rollout = self.longest_rollout * self.algorithm.num_envs
        last = self.env_steps + max(0, max_steps // rollout - 1) * rollout
        if starts > last:
            raise ConfigurationError(
                f"learning_starts={starts} is more than {last}, the env steps before the last rollout of "
                f"max_steps={max_steps}, so that members with it would not learn; allowed are at most {last}"
            )

    # -- acting

    def get_action(
        self,
        obs: Any,
        action_mask: np.ndarray | None = None,
        hidden_state: Mapping[str, Tensor] | None = None,
        *,
        envs: int | None = None,
    ) -> tuple[Any, ...]:
        """Act as `PPO.get_action` describes; `envs` is how many envs the rows are of, where agents are absent."""
        self.warn_of_missing_masks("get_action", action_mask)
        with torch.no_grad():
            x = self.normalize(obs)
            sequence_info = self._one_step(hidden_state, len(x))
            mask = self._mask(action_mask, len(x))
            with self.execution.autocast(self.device):  # as in the update, which compares the log-probabilities
                outputs, values = self.network.evaluate(x, sequence_info)
                after = self.network.step(x, sequence_info.state)[1] if self.recurrent else None
            noise = self.next_noise(len(x)) if self.algorithm.training else None
            if noise is not None and self._draws_uniformly():
                self._random_steps_taken += len(x) // self.num_agents if envs is None else envs
                raw = self.distribution.uniform(noise, mask)
                entropy = self.distribution.evaluate(outputs, raw, mask)[1]
                log_prob = self.distribution.uniform_log_prob(raw, mask)
            else:
                raw = (
                    self.distribution.mode(outputs, mask)
                    if noise is None
                    else self.distribution.sample(outputs, noise, mask)
                )
                log_prob, entropy = self.distribution.evaluate(outputs, raw, mask)
            value = self.network.environment_value(values)
            arrays = log_prob.cpu().numpy(), entropy.cpu().numpy(), value.cpu().numpy()
            result = self.distribution.unbounded(raw), *arrays
            return result if after is None else (*result, self._named(after))

    def _draws_uniformly(self) -> bool:
        """Return whether the next step's actions are uniformly random; it is not one of a rollout that was undone."""
        self._undone_random_steps = 0
        return self.env_steps + self._random_steps_taken < self.algorithm.random_steps

    def evaluate_actions(
        self, obs: Any, actions: np.ndarray, hidden_state: Any = None, action_mask: np.ndarray | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probability, entropy and value `[B]` of given actions, with gradients.

        Raises:
            ConfigurationError: there are more or fewer actions than observations, or one is not of the action space.
        """
        x = self.normalize(obs)
        sequence_info = self._one_step(hidden_state, len(x))
        with self.execution.autocast(self.device):
            outputs, values = self.network.evaluate(x, sequence_info)
        raw = self.raw_actions("actions", actions, len(x))
        log_prob, entropy = self.distribution.evaluate(outputs, raw, self._mask(action_mask, len(x)))
        return log_prob, entropy, self.network.environment_value(values)

    def value(self, obs: Any, hidden_state: Mapping[str, Tensor] | None = None) -> Tensor:
        """Return the critic's value `[B]` of observations."""
        x = self.normalize(obs)
        with self.execution.autocast(self.device):
            return self.network.value(x, self._one_step(hidden_state, len(x)))

    # -- learning

    def learn(
        self,
        experiences: Experiences | RolloutBuilder | None = None,
        action_masks: Sequence[Any] | None = None,
        hidden_state: Mapping[str, Tensor] | None = None,
        acting: Sequence[Any] | None = None,
        last_observations: Sequence[LastObservations] = (),
    ) -> float:
        """Do one PPO update as `PPO.learn` describes; `undone_on_error` restores what an error leaves.

        `last_observations` of the episodes that time limits cut, an entry for each step, may stand beside the tuple.
        """
        size = mask_size(self.action_space)
        if isinstance(experiences, RolloutBuilder):
            _refuse_beside_builder(action_masks, hidden_state, acting)
            rollout, precomputed = experiences.rollout(self.encode, self.raw_actions, self._begin_rollout, size)
        else:
            rollout, precomputed = as_rollout(
                experiences,
                self.encode,
                self.raw_actions,
                hidden_state_before=lambda starts: self._begin_rollout(hidden_state, starts),
                action_masks=action_masks,
                mask_size=size,
                acting=acting,
            )
            rollout = with_limits(rollout, last_observations, self.encode)
        rollout, learns = self._marked_random_steps(learned_rewards([self], rollout)), self.learns
        report = self.cohort.learn([self.row], update_of([self], rollout, precomputed))
        if learns and not bool(report["healthy"][0]):
            raise PopulationDivergedError(
                f"agent {self.index}: {_non_finite(report)} is not finite; its weights were restored"
            )
        self.after_rollout(rollout)
        return float(report["loss"][0])

    def undo(self, before: Mapping[str, Any], snapshot: StackedNetworks) -> None:
        """Restore attributes and weights from before an update; its random steps count if it is repeated."""
        self.cohort.restore(self.row, snapshot)
        vars(self).update(before)
        self._undone_random_steps = self._random_steps_taken or self._undone_random_steps
        self._random_steps_taken = 0

    def _marked_random_steps(self, rollout: Rollout) -> Rollout:
        """Mark the first steps of a hand-written loop's rollout whose actions `get_action` drew uniformly."""
        taken = self._random_steps_taken or self._undone_random_steps
        if not taken:
            return rollout
        uniform = torch.zeros_like(rollout.valid, dtype=torch.bool)
        uniform[:, : -(-taken * self.num_agents // uniform.shape[2])] = True
        return rollout.replace(uniform=uniform)

    def skip_step(self, envs: int) -> None:
        """Count a step of a hand-written loop's `envs` in which no agent of the group acts towards `random_steps`."""
        if self.algorithm.training and self._draws_uniformly():
            self._random_steps_taken += envs

    def skip_rollout(self, rows: int) -> None:
        """Count a hand-written loop's rollout of so many `rows`, in none of which an agent of the group acted."""
        self.env_steps += rows // self.num_agents
        self.forget_random_steps()

    @property
    def learns(self) -> bool:
        """Whether the next rollout changes the weights, and not only the normalisers."""
        return self.env_steps >= self.algorithm.learning_starts

    def after_rollout(self, rollout: Rollout, row: int = 0) -> None:
        """Count a rollout, in which `row` is this learner's, and bound the standard deviation."""
        self.updates_without_learning += not self.learns
        self.env_steps += math.prod(rollout.rewards.shape[1:]) // self.num_agents
        self.forget_random_steps()
        self.distribution.bound_std_(0.0, self.algorithm.action_std_min, self.algorithm.action_std_max)
        self.learned_with_masks |= rollout.masks is not None
        self.after_update(rollout.observations[row], rollout[row : row + 1].starts[0] if self.recurrent else None)


CHANGED_BY_UPDATES = (
    "updates", "env_steps", "updates_without_learning", "return_statistics", "learned_with_masks",
    "recent_observations", "_random_steps_taken", "_undone_random_steps",
)  # fmt: skip
"""Attributes of a learner that an update from a rollout changes, beside its weights, buffers and moments."""


@contextmanager
def undone_on_error(learners: Sequence[PPOLearner]) -> Iterator[None]:
    """Restore all these learners if an error ends their update, so that a hand-written loop can repeat it."""
    before = [{name: vars(learner)[name] for name in CHANGED_BY_UPDATES} for learner in learners]
    snapshots = [learner.cohort.snapshot(learner.row) for learner in learners]
    try:
        yield
    except BaseException:
        for learner, attributes, snapshot in zip(learners, before, snapshots, strict=True):
            learner.undo(attributes, snapshot)
        raise


class PPOLearnerGroup(RolloutLearnerGroup[PPOLearner]):
    """P learners of one group, which act and learn together from rollouts."""

    learner_class = PPOLearner
    metrics = tuple(name for name in METRICS if name != "healthy")
    details = DETAILS
    shares_envs = True

    def learn(self, places: Sequence[int], experience: LastSteps) -> dict[int, TensorDict]:
        """Update some members; `experience(places, steps)` returns their rollouts.

        Members with rollouts and minibatches of equal size learn together; with `per_member` each learns separately.
        Rollouts before `learning_starts` are not reported, nor those without a step that is learned from. Scheduled
        values are reported without the factors of the group, because a team has one report, beside its own values.
        """
        reports: dict[int, TensorDict] = {}
        due: dict[tuple[Any, ...], list[int]] = {}
        for place in places:
            learner = self[place]
            alone = place if self.is_per_member else None
            size = learner.batch_size, learner.algorithm.num_minibatches
            cut = learner.cut_of(learner.rollout_steps)
            key = (learner.rollout_steps, learner.learns, size, cut, learner.network.is_recurrent, alone)
            due.setdefault(key, []).append(place)
        for (steps, learns, *_), together in due.items():
            learners = [self[place] for place in together]
            rollout = learned_rewards(learners, self.gradient_sync.all_gather(experience(together, steps)))
            update = update_of(learners, rollout, detailed=self.detailed)
            rates = {i: its.adapted_lr for i, its in enumerate(learners) if its.algorithm.lr_schedule == ADAPTIVE}
            metrics = self.cohort.learn(together, update).cpu()
            for name in {name for learner in learners for name in learner.scheduled}:
                values = getattr(update.hyperparams, name).cpu()  # as scheduled
                if name in learners[0].group.factors:  # the factor may be 0, so no division
                    values = torch.tensor([float(learner.scheduled_values()[name]) for learner in learners])
                metrics.set(name, values)
            has_samples = learned_steps(rollout).transpose(0, 1).flatten(1).any(1).tolist()
            for i, (place, learner) in enumerate(zip(together, learners, strict=True)):
                learner.after_rollout(rollout, i)
                if i in rates:  # that of the first epoch
                    metrics["lr"][i] = rates[i] / learner.group.factors.get("lr", 1.0)
                if learns and has_samples[i]:
                    reports[place] = metrics[i : i + 1]
        return reports


def update_of(
    learners: Sequence[PPOLearner],
    rollout: Rollout,
    precomputed: Precomputed | None = None,
    *,
    detailed: bool = False,
) -> RolloutUpdate:
    """Return the update of learners whose rollouts and minibatches have equal sizes."""
    first = learners[0]
    return RolloutUpdate(
        rollout,
        hyperparams_of(learners),
        first.batch_size,
        shuffle_of(learners),
        first.cut_of(rollout.rewards.shape[1]),
        precomputed,
        detailed=detailed,
        num_minibatches=first.algorithm.num_minibatches,
        modes=first.modes,
        loss=first.algorithm.loss,
        learns=first.learns,
    )


def learned_rewards(learners: Sequence[PPOLearner], rollout: Rollout) -> Rollout:
    """Return the rollout with its rewards transformed, normalised and clipped by the learners' settings.

    The learners' statistics of returns are updated. Where an agent does not act, what it is paid is transformed, but a
    reward of 0 stays 0: `own_time` adds these rewards to the agent's last step.
    """
    settings = [learner.algorithm for learner in learners]
    if not any(its.reward_transform is not None or its.normalize_reward or its.reward_clip for its in settings):
        return rollout
    rewards = rollout.rewards.clone()
    calls: dict[tuple[int, int, int | None], list[int]] = {}  # rows with one function at one place of the run
    for row, (learner, its) in enumerate(zip(learners, settings, strict=True)):
        limit = learner.max_steps
        steps = learner.env_steps if limit is None else round(its.progress * limit)
        calls.setdefault((id(its.reward_transform), steps, limit), []).append(row)
    for (_, steps, limit), rows in calls.items():
        changed = transformed(rewards[rows].transpose(0, 1), settings[rows[0]].reward_transform, steps, limit)
        raw, acted = rewards[rows], rollout.valid[rows] > 0
        rewards[rows] = torch.where(acted | (raw != 0), changed.transpose(0, 1), 0.0)
    for row, (learner, its) in enumerate(zip(learners, settings, strict=True)):
        own = rewards[row]
        if its.normalize_reward:
            gamma = its.settings()["gamma"]
            continues, counted = rollout.continues[row], rollout.valid[row]
            if rollout.waiting is not None:  # the end of an episode may pay an agent that waits
                counted = counted + rollout.waiting[row, 0] * rollout.ended[row]
            learner.return_statistics = learner.return_statistics.updated(own, continues, counted, gamma)
            own /= learner.return_statistics.scale
        limit = its.reward_clip or (CLIP if its.normalize_reward else None)
        if limit is not None:
            own.clamp_(-limit, limit)
    return rollout.replace(rewards=rewards)


FLOAT64 = ("beta1", "beta2", "adam_eps", "weight_decay")
"""Hyperparameters that are float64, because the optimizer's kernels take Python floats."""


def hyperparams_of(learners: Sequence[PPOLearner]) -> Hyperparams:
    """Return the learners' hyperparameters as tensors `[P]`."""
    columns = list(zip(*(learner.hyperparams() for learner in learners), strict=True))
    rounded = torch.tensor(columns, device=learners[0].device)
    named = dict(zip(HYPERPARAM_NAMES, rounded, strict=True))
    exact = {name: columns[HYPERPARAM_NAMES.index(name)] for name in FLOAT64}
    named |= {name: torch.tensor(x, dtype=torch.float64, device=rounded.device) for name, x in exact.items()}
    return Hyperparams.from_dict(named, batch_size=[len(learners)])


def _refuse_beside_builder(action_masks: Any, hidden_state: Any, acting: Any) -> None:
    """Raise ConfigurationError if an argument of `learn` is given that a `RolloutBuilder` has for each step."""
    for name, given, argument in (
        ("action_masks", action_masks, "action_mask"),
        ("hidden_state", hidden_state, "hidden_state"),
        ("acting", acting, "acting"),
    ):
        if given is not None:
            raise ConfigurationError(
                f"{name}={given!r:.100} is not for a RolloutBuilder; allowed is builder.add(…, {argument}=…)"
            )


def _non_finite(report: TensorDict) -> str:
    """Return name and value of a metric of an update that is not finite, or "a weight"."""
    values = {name: float(report[name][0]) for name in ("loss", "value_loss", "approx_kl", "grad_norm")}
    return next((f"{name}={value}" for name, value in values.items() if not math.isfinite(value)), "a weight")
