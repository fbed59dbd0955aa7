"""One PPO update of all members at once: advantages of their rollouts, then epochs of minibatch steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple, cast

import torch
from tensordict import TensorClass, TensorDict
from torch import Tensor

from agilerl_like.learning.advantages import Precomputed, TrainingBatch, compute_advantages, standardised
from agilerl_like.learning.execution import Execution
from agilerl_like.learning.gradient_sync import NO_SYNC, GradientSync
from agilerl_like.learning.minibatches import Minibatches
from agilerl_like.learning.optimizer import AdamStep, OptimizerName, RowRule, StepRule, clip_, clip_scales
from agilerl_like.learning.ppo_loss import LossCoefs, PolicyEval, Targets, ppo_loss, ppo_metrics
from agilerl_like.learning.rollout_buffer import Rollout
from agilerl_like.learning.sequences import SINGLE_STEP, SequenceSplit
from agilerl_like.learning.stacked_networks import StackedNetworks
from agilerl_like.networks.actor_critic import ActorCritic
from agilerl_like.networks.recurrent_state import NO_SEQUENCE, SequenceInfo, resize_hidden

FADE_UPDATES = 4
"""Updates over which a mutation fades in: about one generation."""

Shuffle = Callable[[int, int], Tensor]
"""(epoch, count) -> a permutation of each member's sequences, `[P, count]`."""


Samples = Sequence[Tensor | None]
"""Observations, actions, masks, starts and state of a minibatch, `[P, S, L, …]` each (the state `[P, S, …]`)."""


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
    beta1: Tensor  # these four are float64
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
"""Times `target_kl` at which an update stops before a step, in SB3 and here."""


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
    """One PPO update of stacked networks; with `detailed` its metrics include `DETAILS`."""

    def __init__(
        self,
        stacked: StackedNetworks,
        hyperparams: Hyperparams,
        execution: Execution,
        gradient_sync: GradientSync = NO_SYNC,
        modes: UpdateModes = DEFAULT_MODES,
        *,
        detailed: bool = False,
    ) -> None:
        self.stacked, self.hyperparams, self.execution, self.gradient_sync = (
            stacked,
            hyperparams,
            execution,
            gradient_sync,
        )
        self.modes, self.detailed = modes, detailed
        coefs = (hyperparams.clip_coef, hyperparams.clip_coef_vf, hyperparams.ent_coef, hyperparams.vf_coef)
        self.coefs = LossCoefs(
            *(coef.unsqueeze(1) for coef in coefs),
            clips_values=bool(torch.isfinite(hyperparams.clip_coef_vf).any()),
            value_clip_mode=modes.value_clip_mode,
        )
        self.is_adaptive = torch.isfinite(hyperparams.kl_threshold)
        """Whose learning rate adapts to the KL."""
        self.any_adaptive = bool(self.is_adaptive.any())
        self.kl_limit = hyperparams.target_kl * (SB3_KL_MARGIN if modes.kl_stop == "update" else 1.0)
        self.any_kl_limit = bool(torch.isfinite(hyperparams.target_kl).any())
        numbers = (hyperparams.beta1, hyperparams.beta2, hyperparams.adam_eps, hyperparams.weight_decay)
        stacked_numbers = torch.stack(numbers)
        self.row_rules = [RowRule(*row) for row in stacked_numbers.T.tolist()]
        self.row_numbers = stacked_numbers.to(hyperparams.lr.dtype)
        self.has_lr_critic = bool((hyperparams.lr_critic != hyperparams.lr).any())
        self.gradient = Gradient.of(stacked)
        self.ones = torch.ones_like(hyperparams.lr)
        device = stacked.flat.device
        self.compute, self.write = minibatch_gradient, clipped_gradient_
        if gradient_sync.num_ranks == 1 and device.type == "cpu":
            self.write = execution.compiled(clipped_gradient_, device)
        else:  # a graph has no exchange between processes, and a CUDA graph writes into no argument
            self.compute = execution.compiled(minibatch_gradient, device)

    def run(
        self,
        rollout: Rollout,
        batch_size: int,
        cut: SequenceSplit,
        shuffle: Shuffle,
        precomputed: Precomputed | None,
        num_minibatches: int | None = None,
    ) -> TensorDict:
        """Estimate advantages, take epochs of minibatch steps, and return `METRICS`. Normalisers are updated too."""
        batch, explained_variance = self.compute_advantages(rollout, cut, precomputed)
        _, sequences, length, _ = batch.observations.shape
        count = min(sequences, num_minibatches or max(1, round(sequences * length / batch_size)))
        minibatches = Minibatches(count, sequences, batch.used)
        steps_before = self.stacked.optimizer.steps.clone()
        total, epochs = self.epochs(batch, minibatches, shuffle, first=0)
        for _, stack in self.stacked.parts:
            stack.module.advance_fades_(1 / FADE_UPDATES)
        metrics = {name: sums / epochs for name, sums in total.items()}
        healthy = self.healthy(metrics)
        metrics["entropy_loss"] = -metrics["entropy"]
        metrics |= {"explained_variance": explained_variance, "epochs": epochs, "healthy": healthy.float()}
        if self.detailed:
            metrics["gradient_steps"] = self.stacked.optimizer.steps - steps_before
        names = (*METRICS, *DETAILS) if self.detailed else METRICS
        return TensorDict({name: metrics[name] for name in names}, batch_size=[len(epochs)])

    def healthy(self, metrics: Mapping[str, Tensor]) -> Tensor:
        """Return whether metrics and weights are finite, `[P]`."""
        return torch.isfinite(torch.stack([*metrics.values()])).all(0) & self.stacked.is_finite

    def compute_advantages(
        self, rollout: Rollout, cut: SequenceSplit, precomputed: Precomputed | None
    ) -> tuple[TrainingBatch, Tensor]:
        """Return the rollout as samples, computed stack by stack, and the explained variance `[P]` of the critics."""
        batches, explained, hyperparams, modes = [], [], self.hyperparams, self.modes
        windows = hyperparams.n_step if bool(torch.isfinite(hyperparams.n_step).any()) else None
        bootstrap = None if bool(hyperparams.bootstrap.all()) else hyperparams.bootstrap
        for rows, stack in self.stacked.parts:
            is_only = len(self.stacked.parts) == 1
            its_rows = torch.arange(rows.start, rows.stop, device=rollout.rewards.device)
            with self.execution.autocast(its_rows.device):
                batch, explained_variance = compute_advantages(
                    stack.module,
                    rollout if is_only else rollout[its_rows],
                    cut=cut,
                    gamma=hyperparams.gamma[rows],
                    gae_lambda=hyperparams.gae_lambda[rows],
                    n_step=None if windows is None else windows[rows],
                    bootstrap=None if bootstrap is None else bootstrap[rows],
                    standardise=modes.normalize_advantage == "rollout",
                    ddof=modes.advantage_ddof,
                    precomputed=None if precomputed is None else precomputed[rows],
                )
            batches.append(batch)
            explained.append(explained_variance)
        batch = batches[0] if len(batches) == 1 else cast(TrainingBatch, torch.cat(batches))
        return batch, torch.cat(explained)

    def epochs(
        self, batch: TrainingBatch, minibatches: Minibatches, shuffle: Shuffle, *, first: int
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Run the epochs from `first` on; return the sums of their metrics, and the number of epochs `[P]`.

        Members stop at different epochs, by `update_epochs` or by `target_kl`. The rows of those that continue are
        copied, trained and written back.
        """
        planned, limits, kl_stop = self.hyperparams.update_epochs, self.hyperparams.target_kl, self.modes.kl_stop
        end_together = len(set(planned.tolist())) == 1 and (kl_stop == "minibatch" or not self.any_kl_limit)
        total: dict[str, Tensor] = {}
        count = torch.zeros_like(planned)
        for epoch in range(first, int(planned.max())):
            metrics, completed = self.epoch(batch, minibatches, shuffle(epoch, minibatches.sequences))
            total = {name: total[name] + x for name, x in metrics.items()} if total else metrics
            count += 1
            if self.any_adaptive:
                self.adapt_lr_(metrics["approx_kl"])
            if end_together:
                continue
            continues = epoch + 1 < planned
            if kl_stop != "minibatch":
                continues &= metrics["approx_kl"] <= limits if kl_stop == "epoch" else completed
            if bool(continues.all()):
                continue
            rows = continues.nonzero().squeeze(1)
            if len(rows):
                part = self.stacked.take(rows)
                update = PPOUpdate(
                    part,
                    self.hyperparams[rows],
                    self.execution,
                    self.gradient_sync,
                    self.modes,
                    detailed=self.detailed,
                )
                its = batch[rows]
                more, epochs = update.epochs(
                    its,
                    minibatches._replace(used=its.used),
                    lambda epoch, count, rows=rows: shuffle(epoch, count)[rows],
                    first=epoch + 1,
                )
                self.stacked.put(rows, part)
                for name, x in more.items():
                    total[name][rows] += x
                count[rows] += epochs
            break
        return total, count

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

    def prepare_steps(self, count: int) -> list[AdamStep]:
        """Return the next `count` steps of the optimizer."""
        lr, lr_critic, stacked = self.hyperparams.lr, self.hyperparams.lr_critic, self.stacked
        if self.any_adaptive:
            lr, lr_critic = self.adapted_lr, lr_critic * (self.adapted_lr / lr)
        rule = StepRule(
            self.row_rules,
            self.modes.optimizer,
            lr_critic if self.has_lr_critic else None,
            stacked.critic_at,
            self.row_numbers,
        )
        return stacked.optimizer.prepare_steps(lr, count, rule)

    def epoch(self, batch: TrainingBatch, minibatches: Minibatches, order: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Take a step on every minibatch of the sequences in an order `[P, S]`.

        Returns the mean of each metric, and whether each member took all of its steps, `[P]`. Minibatches are plain
        tensors, since TensorClasses would take 5 % of the time with small networks.
        """
        targets = torch.stack(
            [batch.old_log_probs, batch.advantages, batch.returns, batch.old_values, batch.weight], -1
        )
        columns = (targets, batch.observations, batch.actions, batch.masks, batch.starts, batch.state)
        slices, order, padding = minibatches.of(order)
        targets, *samples = (x if x is None else _reordered(x, order) for x in columns)
        if padding is not None:
            cast(Tensor, targets)[..., -1].masked_fill_(padding.unsqueeze(-1), 0.0)
        ddof = self.modes.advantage_ddof if self.modes.normalize_advantage == "minibatch" else None
        targets = _with_shares(cast(Tensor, targets), slices, ddof)
        its_targets, evaluations, norms = [], [], []
        learns, counts = self.ones > 0, []
        for minibatch, adam_step in zip(slices, self.prepare_steps(len(slices)), strict=True):
            own = self.gradient_sync.local_slice(minibatch)
            its = [x if x is None else x[:, own] for x in samples]
            its_targets.append(targets[:, :, own].flatten(2))
            if self.modes.kl_stop == "epoch" or not self.any_kl_limit:
                evaluation, norm = self.step(its, its_targets[-1], adam_step)
            else:
                counts.append(learns)
                evaluation, norm, learns = self.step_while_near(its, its_targets[-1], adam_step, learns)
            evaluations.append(evaluation)
            norms.append(norm)
            if counts and not bool(learns.any()):
                self.stacked.optimizer.steps -= len(slices) - len(counts)
                break
        taken = len(evaluations)
        if counts:  # minibatches that a member was evaluated on after it had stopped do not count
            for target, counted in zip(its_targets, counts, strict=True):
                target[-1].mul_(counted.unsqueeze(1))
            norms = [norm * counted for norm, counted in zip(norms, counts, strict=True)]
            taken = torch.stack(counts).sum(0)
        evaluated = PolicyEval(*(torch.cat(columns, 1) for columns in zip(*evaluations, strict=True)))
        metrics = ppo_metrics(evaluated, Targets(*torch.cat(its_targets, 2)), self.coefs)  # once, of all minibatches
        sums = self.gradient_sync.all_reduce_(torch.stack([*metrics.values()]))
        found = dict(zip(metrics, sums / taken, strict=True))
        norm = torch.stack(norms).sum(1)  # of the gradient of all processes
        found["grad_norm"] = norm.sum(0) / taken if counts else norm.mean(0)
        return found | self.gradient_norms(torch.stack(norms), taken) if self.detailed else found, learns

    def gradient_norms(self, norms: Tensor, taken: Tensor | int) -> dict[str, Tensor]:
        """Return the mean of the steps' norms `[steps, 2, P]` of actor and critic, before and after the clip.

        `taken` is the number of steps, or of each member's `[P]`; norms of steps that were not taken are 0.
        """
        together = self.modes.clip_grads == "together"
        clipped = norms * clip_scales(norms, self.hyperparams.max_grad_norm, together=together)
        (actor, critic), (actor_clipped, critic_clipped) = norms.sum(0) / taken, clipped.sum(0) / taken
        return dict(zip(DETAILS, (actor, critic, actor_clipped, critic_clipped), strict=False))

    def step(self, samples: Samples, targets: Tensor, adam_step: AdamStep) -> tuple[list[Tensor], Tensor]:
        """Take one gradient step on a minibatch with `Targets` `[5, P, S L]`.

        Returns the fields of `PolicyEval`, detached, and the norms of the gradient's halves `[2, P]`.
        """
        evaluation, norms = self.compute_gradient_(samples, targets)
        self.stacked.optimizer.step_(self.stacked.flat, self.gradient.flat, adam_step)
        return evaluation, norms

    def step_while_near(
        self, samples: Samples, targets: Tensor, adam_step: AdamStep, learns: Tensor
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        """Take a step with those members that have not stopped and whose KL on this minibatch is within its limit.

        `learns` `[P]` is False for members that have stopped; returned are the same as by `step`, and `learns`.
        """
        evaluation, norms = self.compute_gradient_(samples, targets)
        kl = ppo_metrics(PolicyEval(*evaluation), Targets(*targets.unbind()), self.coefs)["approx_kl"]
        learns = learns & (self.gradient_sync.all_reduce_(kl) <= self.kl_limit)
        adam, stopped = self.stacked.optimizer, (~learns).nonzero().squeeze(1)
        before = [x[stopped] for x in (self.stacked.flat, adam.exp_avg, adam.exp_avg_sq)]
        adam.step_(self.stacked.flat, self.gradient.flat, adam_step)
        for rows, its in zip((self.stacked.flat, adam.exp_avg, adam.exp_avg_sq), before, strict=True):
            rows[stopped] = its
        adam.steps[stopped] -= 1
        return evaluation, norms, learns

    def compute_gradient_(self, samples: Samples, targets: Tensor) -> tuple[list[Tensor], Tensor]:
        """Compute the clipped gradient of a minibatch in all processes; see `clipped_gradient_`."""
        return self.write(
            self.compute,
            self.stacked,
            samples,
            targets,
            self.coefs,
            self.execution,
            self.gradient,
            self.ones,
            self.hyperparams.max_grad_norm,
            self.modes.clip_grads == "together",
            self.gradient_sync,
        )


def _reordered(x: Tensor, order: Tensor) -> Tensor:
    """Return each member's sequences `[P, S, …]` in an order `[P, S']` of its own."""
    members, count = x.shape[:2]
    rows = order + count * torch.arange(members, device=order.device).unsqueeze(1)
    return x.flatten(0, 1).index_select(0, rows.flatten()).unflatten(0, order.shape)


def _with_shares(targets: Tensor, minibatches: Sequence[slice], ddof: int | None = None) -> Tensor:
    """Return `Targets` `[5, P, S, L]` of targets `[P, S, L, 5]`; the weights of each minibatch sum to 1.

    `ddof` is that of the standard deviation by which the advantages of each minibatch are normalised; None: they are
    not.
    """
    columns = targets.movedim(-1, 0).contiguous()
    weight = columns[-1]
    for minibatch in minibatches:
        if ddof is not None:
            advantages = columns[1, :, minibatch]
            flat = advantages.flatten(1), weight[:, minibatch].flatten(1)
            advantages.copy_(standardised(*flat, ddof).view_as(advantages))
        its = weight[:, minibatch]
        its.div_(its.sum((1, 2), keepdim=True).clamp_(min=1.0))
    return columns


class Gradient(NamedTuple):
    """The gradient of a minibatch, written in place."""

    flat: Tensor
    """`[P, N]`, laid out as the weights."""
    halves: tuple[Tensor, ...]
    """Views of the columns of the policy, and of the value function."""
    parameters: list[Tensor]
    """Those that learn."""
    places: list[Tensor]
    """Views of `flat` in the parameters' shapes."""

    @classmethod
    def of(cls, stacked: StackedNetworks) -> Gradient:
        """Return a gradient of zeros."""
        flat = torch.zeros_like(stacked.flat)
        pairs = [pair for pair in stacked.with_gradients(flat) if pair[0].requires_grad]
        halves = flat.tensor_split((stacked.critic_at,), 1)
        return cls(flat, halves, [parameter for parameter, _ in pairs], [place for _, place in pairs])


def clipped_gradient_(
    compute: Callable[..., tuple[Sequence[Tensor | None], list[Tensor]]],
    stacked: StackedNetworks,
    samples: Samples,
    targets: Tensor,
    coefs: LossCoefs,
    execution: Execution,
    gradient: Gradient,
    ones: Tensor,
    max_grad_norm: Tensor,
    together: bool,
    gradient_sync: GradientSync,
) -> tuple[list[Tensor], Tensor]:
    """Write the gradient of a minibatch in all processes, clipped as by `clip_`; `compute` is `minibatch_gradient`.

    Returns the fields of `PolicyEval`, detached, and the norms of the gradient's halves before the clip, `[2, P]`.
    """
    found, evaluation = compute(stacked, samples, targets, coefs, execution, gradient.parameters, ones)
    for place, its in zip(gradient.places, found, strict=True):
        if its is not None:  # an unused parameter has none, and its place holds zeros
            place.copy_(its)
    gradient_sync.all_reduce_(gradient.flat)
    return evaluation, clip_(gradient.halves, max_grad_norm, together=together)


def minibatch_gradient(
    stacked: StackedNetworks,
    samples: Samples,
    targets: Tensor,
    coefs: LossCoefs,
    execution: Execution,
    parameters: Sequence[Tensor],
    ones: Tensor,
) -> tuple[Sequence[Tensor | None], list[Tensor]]:
    """Return the gradients of the loss of a minibatch with `Targets` `[5, P, S L]`, and the policy evaluated on it.

    `ones` `[P]` is the gradient of the sum of the members' losses. A parameter that is not used has no gradient. The
    fields of `PolicyEval` are detached.
    """
    observations, actions, masks, starts, state = samples
    flat = [x if x is None else x.flatten(1, 2) for x in (observations, actions, masks)]
    with torch.enable_grad():
        with execution.autocast(targets.device):
            evaluation = PolicyEval(*stacked.over(_evaluate, *flat, starts, state))
        loss = ppo_loss(evaluation, Targets(*targets.unbind()), coefs)
        found = torch.autograd.grad(loss, parameters, ones, allow_unused=True)
    return found, [x.detach() for x in evaluation]


def _evaluate(
    network: ActorCritic, x: Tensor, actions: Tensor, masks: Tensor | None, starts: Any, state: Any
) -> tuple[Tensor, ...]:
    sequence_info = NO_SEQUENCE if starts is None else SequenceInfo(starts, resize_hidden(state, network.state_shape))
    return network.evaluate_actions(x, sequence_info, actions, masks)


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
        """Return the update of one member, with its hidden state in the layout that it has without the others."""
        own = self.of_members(torch.tensor([member], device=self.rollout.rewards.device))
        state = resize_hidden(own.rollout.state, state_shape).clone(memory_format=torch.contiguous_format)
        return replace(own, rollout=own.rollout.replace(state=state))

    def run(self, stacked: StackedNetworks, execution: Execution, gradient_sync: GradientSync) -> TensorDict:
        """Update weights, moments and normalisers in place; return `METRICS`."""
        update = PPOUpdate(stacked, self.hyperparams, execution, gradient_sync, self.modes, detailed=self.detailed)
        if not self.learns:
            explained_variance = update.compute_advantages(self.rollout, self.cut, self.precomputed)[1]
            metrics = {name: torch.full_like(explained_variance, torch.nan) for name in METRICS}
            return TensorDict(
                {**metrics, "explained_variance": explained_variance}, batch_size=explained_variance.shape
            )
        return update.run(self.rollout, self.batch_size, self.cut, self.shuffle, self.precomputed, self.num_minibatches)
