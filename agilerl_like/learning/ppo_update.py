"""One PPO update of all members at once: advantages of their rollouts, then epochs of minibatch steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple, cast

import torch
from tensordict import TensorClass, TensorDict
from torch import Tensor

from agilerl_like.learning.advantages import (
    AdvantageEstimator,
    Precomputed,
    TrainingBatch,
    compute_advantages,
    standardised,
)
from agilerl_like.learning.execution import Execution
from agilerl_like.learning.gradient_sync import NO_SYNC, GradientSync
from agilerl_like.learning.minibatches import Minibatches, reordered
from agilerl_like.learning.optimizer import AdamStep, OptimizerName, RowRule, StepRule, clip_scales
from agilerl_like.learning.ppo_gradient import PPOGradient
from agilerl_like.learning.ppo_loss import LossCoefs, PolicyEval, PPOLoss, Targets, ppo_loss, ppo_metrics
from agilerl_like.learning.rollout_buffer import Rollout
from agilerl_like.learning.sequences import SINGLE_STEP, SequenceSplit
from agilerl_like.learning.stacked_networks import StackedNetworks
from agilerl_like.networks.recurrent_state import resize_hidden

FADE_UPDATES = 4
"""Updates over which a mutation is blended in: about one generation."""

Shuffle = Callable[[int, int], Tensor]
"""(epoch, count) -> a permutation of each member's sequences, `[P, count]`."""


class Hyperparams(TensorClass):
    """Hyperparameters of the update, one value per member, all `[P]`."""

    lr: Tensor
    """As scheduled."""
    lr_critic: Tensor
    gamma: Tensor
    gae_lambda: Tensor
    """1 where advantages are not GAE's."""
    n_step: Tensor
    """Steps over which rewards are summed; infinite where that is the whole episode."""
    bootstrap: Tensor
    """0 where truncation is treated as termination."""
    clip_coef: Tensor
    clip_coef_vf: Tensor
    """Infinite where the value is not clipped."""
    ent_coef: Tensor
    vf_coef: Tensor
    max_grad_norm: Tensor
    """Infinite where gradients are not clipped."""
    target_kl: Tensor
    """Infinite where epochs are not stopped early."""
    update_epochs: Tensor
    kl_threshold: Tensor
    """Infinite where the learning rate does not adapt to the KL."""
    kl_factor: Tensor
    lr_factor: Tensor
    lr_min: Tensor
    lr_max: Tensor
    beta1: Tensor  # float64, as the three below
    beta2: Tensor
    adam_eps: Tensor
    weight_decay: Tensor


class UpdateModes(NamedTuple):
    """Choices of an update that all members have in common; `PPOConfig` has their meanings."""

    optimizer: OptimizerName = "adam"
    clip_grads: Literal["apart", "together"] = "apart"
    kl_stop: Literal["epoch", "minibatch", "update"] = "epoch"
    value_clip_mode: Literal["max", "clipped"] = "max"
    normalize_advantage: Literal["rollout", "minibatch", "none"] = "rollout"
    advantage_ddof: int = 0


DEFAULT_MODES = UpdateModes()
SB3_KL_MARGIN = 1.5
"""An update stops before a step if the KL is above this multiple of `target_kl`, as in SB3."""


HYPERPARAM_NAMES = tuple(field.name for field in fields(cast(Any, Hyperparams)))
"""Names of the fields of `Hyperparams`."""

METRICS = (
    "loss",
    "policy_gradient_loss",
    "value_loss",
    "entropy_loss",
    "approx_kl",
    "clip_fraction",
    "explained_variance",
    "grad_norm",
    "epochs",
    "healthy",
)
"""Metrics of a PPO update, `[P]` each; `healthy` is 1 if loss, gradients and weights are finite."""


DETAILS = (
    "actor_grad_norm",
    "critic_grad_norm",
    "actor_grad_norm_clipped",
    "critic_grad_norm_clipped",
    "gradient_steps",
)
"""Further metrics of a detailed update, `[P]` each: mean norms of the gradients' halves before and after the clip."""


class PPOUpdate:
    """The gradient steps of one PPO update of stacked networks; with `detailed` its metrics include `DETAILS`."""

    def __init__(
        self,
        stacked: StackedNetworks,
        hyperparams: Hyperparams,
        execution: Execution,
        gradient_sync: GradientSync = NO_SYNC,
        modes: UpdateModes = DEFAULT_MODES,
        loss: PPOLoss = ppo_loss,
        *,
        detailed: bool = False,
    ) -> None:
        self.stacked, self.hyperparams, self.execution = stacked, hyperparams, execution
        self.gradient_sync, self.modes, self.loss, self.detailed = gradient_sync, modes, loss, detailed
        coefs = (hyperparams.clip_coef, hyperparams.clip_coef_vf, hyperparams.ent_coef, hyperparams.vf_coef)
        self.coefs = LossCoefs(
            *(coef.unsqueeze(1) for coef in coefs),
            clips_values=bool(torch.isfinite(hyperparams.clip_coef_vf).any()),
            value_clip_mode=modes.value_clip_mode,
        )
        self.gradient, self.write_gradient_ = PPOGradient.of(
            stacked,
            loss,
            self.coefs,
            hyperparams.max_grad_norm,
            clip_together=modes.clip_grads == "together",
            execution=execution,
            gradient_sync=gradient_sync,
        )
        self.is_adaptive = torch.isfinite(hyperparams.kl_threshold)
        """Flags `[P]` of the members whose learning rate adapts to the KL."""
        self.any_adaptive = bool(self.is_adaptive.any())
        self.kl_limit = hyperparams.target_kl * (SB3_KL_MARGIN if modes.kl_stop == "update" else 1.0)
        self.any_kl_limit = bool(torch.isfinite(hyperparams.target_kl).any())
        rows = torch.stack([hyperparams.beta1, hyperparams.beta2, hyperparams.adam_eps, hyperparams.weight_decay])
        self.row_rules = [RowRule(*row) for row in rows.T.tolist()]
        self.has_lr_critic = bool((hyperparams.lr_critic != hyperparams.lr).any())

    def healthy(self, metrics: Mapping[str, Tensor], has_samples: Tensor) -> Tensor:
        """Return whether metrics and weights are finite, `[P]`; members without a sample have no metrics."""
        values = torch.stack([*metrics.values()])
        return (torch.isfinite(values).all(0) | ~has_samples) & self.stacked.is_finite

    def compute_advantages(
        self, rollout: Rollout, cut: SequenceSplit, precomputed: Precomputed | None
    ) -> tuple[TrainingBatch, Tensor]:
        """Return the rollout as samples, computed stack by stack, and the explained variance `[P]` of the critics.

        Normalisers are updated.
        """
        batches, explained, parts, its = [], [], self.stacked.parts, self.hyperparams
        estimator = AdvantageEstimator(
            its.gamma,
            its.gae_lambda,
            n_step=its.n_step if bool(torch.isfinite(its.n_step).any()) else None,
            bootstrap=None if bool(its.bootstrap.all()) else its.bootstrap,
            standardise=self.modes.normalize_advantage == "rollout",
            ddof=self.modes.advantage_ddof,
        )
        for rows, stack in parts:
            indices = torch.arange(rows.start, rows.stop, device=rollout.rewards.device)
            with self.execution.autocast(indices.device):
                batch, explained_variance = compute_advantages(
                    stack.module,
                    rollout if len(parts) == 1 else rollout[indices],
                    estimator.of_rows(rows),
                    cut=cut,
                    precomputed=None if precomputed is None else precomputed[rows],
                )
            batches.append(batch)
            explained.append(explained_variance)
        batch = batches[0] if len(batches) == 1 else cast(TrainingBatch, torch.cat(batches))
        return batch, torch.cat(explained)

    def epochs(
        self, batch: TrainingBatch, minibatches: Minibatches, shuffle: Shuffle, *, first: int = 0
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Run the epochs from `first` on; return the sums of their metrics, and the number of epochs `[P]`.

        Members stop at different epochs, by `update_epochs` or by `target_kl`. The rows of those that continue are
        copied, trained and written back.
        """
        total: dict[str, Tensor] = {}
        count = torch.zeros_like(self.hyperparams.update_epochs)
        stop_at_once = self._stop_at_once()
        for epoch in range(first, int(self.hyperparams.update_epochs.max())):
            metrics, completed = self.epoch(batch, minibatches, shuffle(epoch, minibatches.sequences))
            total = {name: total[name] + x for name, x in metrics.items()} if total else metrics
            count += 1
            if self.any_adaptive:
                self.adapt_lr_(metrics["approx_kl"])
            if stop_at_once:
                continue
            continues = self._continue_after(epoch, metrics["approx_kl"], completed)
            if bool(continues.all()):
                continue
            rows = continues.nonzero().squeeze(1)
            if len(rows):
                update, its = self._copy_of_rows(rows), batch[rows]
                more, epochs = update.epochs(
                    its,
                    minibatches._replace(used=its.used),
                    lambda epoch, count, rows=rows: shuffle(epoch, count)[rows],
                    first=epoch + 1,
                )
                self.stacked.put(rows, update.stacked)
                for name, x in more.items():
                    total[name][rows] += x
                count[rows] += epochs
            break
        return total, count

    def _stop_at_once(self) -> bool:
        """Whether all members have the same number of epochs, whatever their KL."""
        has_equal_counts = len(set(self.hyperparams.update_epochs.tolist())) == 1
        return has_equal_counts and (self.modes.kl_stop == "minibatch" or not self.any_kl_limit)

    def _continue_after(self, epoch: int, kl: Tensor, completed: Tensor) -> Tensor:
        """Return flags `[P]` of the members with a further epoch, given the KL of this one and `epoch`'s flags."""
        continues = epoch + 1 < self.hyperparams.update_epochs
        if self.modes.kl_stop != "minibatch":
            continues &= kl <= self.hyperparams.target_kl if self.modes.kl_stop == "epoch" else completed
        return continues

    def _copy_of_rows(self, rows: Tensor) -> PPOUpdate:
        """Return the update of copies of some members."""
        return PPOUpdate(
            self.stacked.take(rows),
            self.hyperparams[rows],
            self.execution,
            self.gradient_sync,
            self.modes,
            self.loss,
            detailed=self.detailed,
        )

    def adapt_lr_(self, kl: Tensor) -> None:
        """Change the members' factors of the learning rate by the KL `[P]` of an epoch.

        Above `kl_threshold` x `kl_factor` the rate is divided by `lr_factor`, below `kl_threshold` / `kl_factor`
        multiplied, within `lr_min` and `lr_max` (skrl's KLAdaptiveLR). A KL of exactly 0 changes nothing.
        """
        its, adam = self.hyperparams, self.stacked.optimizer
        rate = self.adapted_lr
        lower = torch.maximum(rate / its.lr_factor, its.lr_min)
        higher = torch.minimum(rate * its.lr_factor, its.lr_max)
        rate = torch.where(kl > its.kl_threshold * its.kl_factor, lower, rate)
        rate = torch.where((kl > 0) & (kl < its.kl_threshold / its.kl_factor), higher, rate)
        adam.lr_scale.copy_(torch.where(self.is_adaptive, rate / its.lr, adam.lr_scale))

    @property
    def adapted_lr(self) -> Tensor:
        """The learning rates `[P]`, with the factors of those that adapt."""
        its = self.hyperparams
        adapted = (its.lr * self.stacked.optimizer.lr_scale).clamp(its.lr_min, its.lr_max)
        return torch.where(self.is_adaptive, adapted, its.lr)

    def prepare_steps(self, count: int, taken: Tensor | None = None) -> list[AdamStep]:
        """Return the next `count` steps of the optimizer, of which members take those `taken` `[count, P]`."""
        lr, lr_critic, stacked = self.hyperparams.lr, self.hyperparams.lr_critic, self.stacked
        if self.any_adaptive:
            adapted = lr_critic * (self.adapted_lr / lr)
            lr, lr_critic = self.adapted_lr, torch.where(self.is_adaptive, adapted, lr_critic)  # a fixed lr may be 0
        rule = StepRule(
            self.row_rules,
            self.modes.optimizer,
            lr_critic if self.has_lr_critic else None,
            stacked.critic_at,
        )
        return stacked.optimizer.prepare_steps(lr, count, rule, taken)

    def epoch(self, batch: TrainingBatch, minibatches: Minibatches, order: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Take a step on every minibatch of the sequences in an order `[P, S]` in which a member has samples.

        Returns the mean of each metric, and flags `[P]` of the members that took all of their steps. The metrics of
        members without samples are nan.
        """
        slices, samples, targets, has_samples = self._shuffled(batch, minibatches, order)
        taken, done = StepsTaken([], [], [], []), []
        learns, optimizer = torch.ones_like(self.hyperparams.lr, dtype=torch.bool), self.stacked.optimizer
        stops_between_steps = self.any_kl_limit and self.modes.kl_stop != "epoch"
        all_have_samples, steps_before = bool(has_samples.all()), optimizer.steps.clone()
        adam_steps = self.prepare_steps(len(slices), None if all_have_samples else has_samples)
        for minibatch, here, adam_step in zip(slices, has_samples, adam_steps, strict=True):
            own = self.gradient_sync.local_slice(minibatch)
            its_targets = targets[:, :, own].flatten(2)
            evaluation, norms = self.write_gradient_(
                self.gradient, [x if x is None else x[:, own] for x in samples], its_targets
            )
            taken.add(its_targets, evaluation, norms)
            if all_have_samples and not stops_between_steps:
                self.stacked.step_(self.gradient.flat, adam_step)
                continue
            taken.counts.append(learns & here)
            if stops_between_steps:
                learns = learns & self._is_near(evaluation, its_targets)
            done.append(learns & here)
            self.stacked.step_(self.gradient.flat, adam_step, done[-1])
            if not bool(learns.any()):
                break
        if done:
            optimizer.steps.copy_(steps_before + torch.stack(done).sum(0))
        return self._metrics(taken), learns

    def _shuffled(
        self, batch: TrainingBatch, minibatches: Minibatches, order: Tensor
    ) -> tuple[list[slice], list[Tensor | None], Tensor, Tensor]:
        """Return the columns of each minibatch, and `Samples` and `Targets` `[5, P, S, L]` of all, in this order.

        They are plain tensors, since TensorClasses would take 5 % of the time with small networks. The last result has
        flags `[minibatches, P]` of the members with samples in a minibatch.
        """
        targets = torch.stack(
            [batch.old_log_probs, batch.advantages, batch.returns, batch.old_values, batch.weight], -1
        )
        columns = (targets, batch.observations, batch.actions, batch.masks, batch.starts, batch.state)
        slices, order, padding = minibatches.of(order)
        targets, *samples = (x if x is None else reordered(x, order) for x in columns)
        if padding is not None:
            cast(Tensor, targets)[..., -1].masked_fill_(padding.unsqueeze(-1), 0.0)
        ddof = self.modes.advantage_ddof if self.modes.normalize_advantage == "minibatch" else None
        return slices, samples, *_with_shares(cast(Tensor, targets), slices, ddof)

    def _metrics(self, steps: StepsTaken) -> dict[str, Tensor]:
        """Return the mean of each metric over the steps of an epoch, `[P]`."""
        targets, norms, taken = steps.targets, steps.norms, len(steps.norms)
        # minibatches without a step of a member do not count, unless its KL stopped it there
        if counts := steps.counts:
            for target, counted in zip(targets, counts, strict=True):
                target[-1].mul_(counted.unsqueeze(1))
            norms = [norm * counted for norm, counted in zip(norms, counts, strict=True)]
            taken = torch.stack(counts).sum(0)
        evaluated = PolicyEval(*(torch.cat(columns, 1) for columns in zip(*steps.evaluations, strict=True)))
        all_targets = Targets(*torch.cat(targets, 2))
        metrics = ppo_metrics(evaluated, all_targets, self.coefs)  # once, of all minibatches
        if self.loss is not ppo_loss:
            metrics["loss"] = self.loss(evaluated, all_targets, self.coefs)
        sums = self.gradient_sync.all_reduce_(torch.stack([*metrics.values()]))
        found = dict(zip(metrics, sums / taken, strict=True))
        norm = torch.stack(norms).sum(1)  # of the gradient of all processes
        found["grad_norm"] = norm.sum(0) / taken if counts else norm.mean(0)
        return found | self.gradient_norms(torch.stack(norms), taken) if self.detailed else found

    def gradient_norms(self, norms: Tensor, taken: Tensor | int) -> dict[str, Tensor]:
        """Return the mean of the steps' norms `[steps, 2, P]` of actor and critic, before and after the clip.

        `taken` is the number of steps, or of each member's `[P]`; norms of steps that were not taken are 0.
        """
        together = self.modes.clip_grads == "together"
        clipped = norms * clip_scales(norms, self.hyperparams.max_grad_norm, together=together)
        (actor, critic), (actor_clipped, critic_clipped) = norms.sum(0) / taken, clipped.sum(0) / taken
        return dict(zip(DETAILS, (actor, critic, actor_clipped, critic_clipped), strict=False))

    def _is_near(self, evaluation: Sequence[Tensor], targets: Tensor) -> Tensor:
        """Return flags `[P]` of the members whose KL on a minibatch is within its limit."""
        kl = ppo_metrics(PolicyEval(*evaluation), Targets(*targets.unbind()), self.coefs)["approx_kl"]
        return self.gradient_sync.all_reduce_(kl) <= self.kl_limit


class StepsTaken(NamedTuple):
    """The steps of an epoch, for its metrics: one entry of each list for each minibatch."""

    targets: list[Tensor]
    """`Targets` `[5, P, B]`."""
    evaluations: list[list[Tensor]]
    """The fields of `PolicyEval`."""
    norms: list[Tensor]
    """Norms `[2, P]` of the gradient's halves before the clip."""
    counts: list[Tensor]
    """Flags `[P]` of the members with samples that had not stopped before; empty if all members take all steps."""

    def add(self, targets: Tensor, evaluation: list[Tensor], norms: Tensor) -> None:
        """Add a step."""
        self.targets.append(targets)
        self.evaluations.append(evaluation)
        self.norms.append(norms)


def _with_shares(targets: Tensor, minibatches: Sequence[slice], ddof: int | None = None) -> tuple[Tensor, Tensor]:
    """Return `Targets` `[5, P, S, L]` of targets `[P, S, L, 5]`, and flags `[minibatches, P]`.

    The weights of each minibatch sum to 1, or to 0 for members without samples in it, whose flag is False. `ddof` is
    that of the standard deviation by which the advantages of each minibatch are normalised; None: they are not.
    """
    columns = targets.movedim(-1, 0).contiguous()
    weight, sums = columns[-1], []
    for minibatch in minibatches:
        if ddof is not None:
            advantages = columns[1, :, minibatch]
            flat = advantages.flatten(1), weight[:, minibatch].flatten(1)
            advantages.copy_(standardised(*flat, ddof).view_as(advantages))
        its = weight[:, minibatch]
        sums.append(its.sum((1, 2), keepdim=True))
        its.div_(sums[-1].clamp(min=1.0))
    return columns, torch.stack(sums).flatten(1) > 0


@dataclass(frozen=True)
class RolloutUpdate:
    """A PPO update of some members, each from its rollout; `cut` applies to recurrent networks."""

    rollout: Rollout
    hyperparams: Hyperparams
    batch_size: int
    shuffle: Shuffle
    cut: SequenceSplit = SINGLE_STEP
    precomputed: Precomputed | None = None
    detailed: bool = False
    num_minibatches: int | None = None
    """In place of `batch_size`."""
    modes: UpdateModes = DEFAULT_MODES
    loss: PPOLoss = ppo_loss
    learns: bool = True
    """Whether weights change, or the normalisers alone."""

    def of_members(self, members: Tensor) -> RolloutUpdate:
        """Return the update of some members, in this order."""
        return replace(
            self,
            rollout=self.rollout[members],
            hyperparams=self.hyperparams[members],
            shuffle=lambda epoch, count: self.shuffle(epoch, count)[members],
            precomputed=None if self.precomputed is None else self.precomputed[members],
        )

    def alone(self, member: int, state_shape: tuple[int, int, int]) -> RolloutUpdate:
        """Return the update of one member, with its hidden state in the layout of a population of one."""
        own = self.of_members(torch.tensor([member], device=self.rollout.rewards.device))
        state = resize_hidden(own.rollout.state, state_shape).clone(memory_format=torch.contiguous_format)
        return replace(own, rollout=own.rollout.replace(state=state))

    def run(self, stacked: StackedNetworks, execution: Execution, gradient_sync: GradientSync) -> TensorDict:
        """Estimate advantages, take epochs of minibatch steps, and return `METRICS` `[P]`.

        Weights, moments and normalisers change in place. Without `learns` only the normalisers do, and all metrics but
        the explained variance are nan; so it is with members none of whose agents acted.
        """
        update = PPOUpdate(
            stacked, self.hyperparams, execution, gradient_sync, self.modes, self.loss, detailed=self.detailed
        )
        batch, explained_variance = update.compute_advantages(self.rollout, self.cut, self.precomputed)
        if not self.learns:
            metrics = {name: torch.full_like(explained_variance, torch.nan) for name in METRICS}
            metrics["explained_variance"] = explained_variance
            return TensorDict(metrics, batch_size=explained_variance.shape)
        _, sequences, length, _ = batch.observations.shape
        minibatches = Minibatches.of_size(self.batch_size, self.num_minibatches, sequences, length, batch.used)
        steps_before = stacked.optimizer.steps.clone()
        total, epochs = update.epochs(batch, minibatches, self.shuffle)
        for _, stack in stacked.parts:
            stack.module.advance_fades_(1 / FADE_UPDATES)
        metrics = {name: sums / epochs for name, sums in total.items()}
        metrics |= {
            "healthy": update.healthy(metrics, (batch.weight > 0).flatten(1).any(1)).float(),
            "entropy_loss": -metrics["entropy"],
            "explained_variance": explained_variance,
            "epochs": epochs,
            "gradient_steps": stacked.optimizer.steps - steps_before,
        }
        names = (*METRICS, *DETAILS) if self.detailed else METRICS
        return TensorDict({name: metrics[name] for name in names}, batch_size=explained_variance.shape)
