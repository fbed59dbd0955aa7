"""Optimizers, schedules and modes of an update, each against a number that is derived above the assert, or torch's."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from learner_examples import member, only, pick, rollout_of, shuffle_of, values_of

from agilerl_like.learning.advantages import standardised
from agilerl_like.learning.gae import gae
from agilerl_like.learning.minibatches import Minibatches
from agilerl_like.learning.optimizer import DEFAULT_BETAS, Adam, RowRule, StepRule, clip_
from agilerl_like.learning.population_learner import PopulationLearner
from agilerl_like.learning.ppo_loss import LossCoefs, PolicyEval, Targets, ppo_loss
from agilerl_like.learning.ppo_update import PPOUpdate, RolloutUpdate, UpdateModes, _with_shares
from agilerl_like.learning.sequences import SINGLE_STEP

TORCH = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "sgd": torch.optim.SGD,
}
OURS = {"betas": (0.8, 0.95), "eps": 1e-4, "momentum": 0.8, "alpha": 0.95, "weight_decay": 0.1}
ARGUMENTS = {
    "adam": ("betas", "eps", "weight_decay"),
    "adamw": ("betas", "eps", "weight_decay"),
    "rmsprop": ("momentum", "alpha", "eps", "weight_decay"),
    "sgd": ("momentum", "weight_decay"),
}


@pytest.mark.parametrize("name", TORCH)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("compiling", [False, True], ids=["by row", "all rows"])
def test_optimizers_with_a_rate_for_the_critic_are_torchs(name, dtype, compiling, monkeypatch):
    """Two rows of 3 columns, of which the last is the critic's, against four optimizers of torch.optim."""
    generator = torch.Generator().manual_seed(0)
    flat = torch.randn(2, 3, dtype=dtype, generator=generator)
    rates, critic_rates = torch.tensor([1e-2, 3e-2], dtype=dtype), torch.tensor([1e-1, 2e-1], dtype=dtype)
    adam = Adam.fresh(flat)
    rule = StepRule([RowRule(0.8, 0.95, 1e-4, 0.1), RowRule(0.8, 0.95, 1e-4, 0.1)], name, critic_rates, 2)
    given = {argument: OURS[argument] for argument in ARGUMENTS[name]}
    theirs = [[torch.nn.Parameter(row[:2].clone()), torch.nn.Parameter(row[2:].clone())] for row in flat]
    optimizers = []
    for row, (actor, critic) in enumerate(theirs):
        groups = ({"params": [actor], "lr": rates[row].item()}, {"params": [critic], "lr": critic_rates[row].item()})
        optimizers.append(TORCH[name](groups, **given))
    for count in (1, 3):
        for adam_step in adam.prepare_steps(rates, count, rule):
            gradient = torch.randn(2, 3, dtype=dtype, generator=generator)
            for row, (parts, optimizer) in enumerate(zip(theirs, optimizers, strict=True)):
                parts[0].grad, parts[1].grad = gradient[row, :2].clone(), gradient[row, 2:].clone()
                optimizer.step()
            with monkeypatch.context() as patch:  # torch's optimizers ask for it, too
                patch.setattr(torch.compiler, "is_compiling", lambda: compiling)
                adam.step_(flat, gradient, adam_step)
    expected = torch.stack([torch.cat([part.detach() for part in parts]) for parts in theirs])
    tolerance = 1e-6 if dtype is torch.float32 else 1e-10
    torch.testing.assert_close(flat, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", TORCH)
def test_default_betas_are_torchs(name):
    parameter = torch.nn.Parameter(torch.zeros(1))
    group = TORCH[name]([parameter], lr=0.1).param_groups[0]
    theirs = group.get("betas") or (group["momentum"], group.get("alpha", 0.0))
    assert DEFAULT_BETAS[name] == tuple(theirs)


def test_first_adam_step_of_the_critic_has_its_own_rate():
    # m^ / sqrt(v^) = +-1 at the first step: no weight moves by more than its rate
    network = member(0)
    cohort = PopulationLearner(*zip(network, strict=True))
    before = cohort.stacked.flat.clone()
    values = values_of(1, lr=[1e-3], lr_critic=[1e-2], update_epochs=[1], adam_eps=[1e-12])
    cohort.learn([0], RolloutUpdate(rollout_of(1), values, batch_size=1000, shuffle=shuffle_of([0])))
    moved = (cohort.stacked.flat - before).abs()
    at = cohort.stacked.critic_at
    assert moved[:, :at].max().item() == pytest.approx(1e-3, rel=0.01)
    assert moved[:, at:].max().item() == pytest.approx(1e-2, rel=0.01)


def test_gradients_are_clipped_together_as_torch_does():
    gradient = torch.tensor([[3.0, 4.0, 12.0]])  # norms 5 and 12, together 13
    norms = clip_((gradient[:, :2], gradient[:, 2:]), torch.tensor([1.3]), together=True)
    assert norms.squeeze(1).tolist() == [5.0, 12.0]
    torch.testing.assert_close(gradient, torch.tensor([[0.3, 0.4, 1.2]]), rtol=1e-5, atol=1e-6)


def test_an_infinite_norm_clips_nothing():
    gradient = torch.tensor([[3e15, 4e10, 0.0]])
    before = gradient.clone()
    clip_((gradient[:, :2], gradient[:, 2:]), torch.tensor([math.inf]))
    assert torch.equal(gradient, before)


@pytest.mark.parametrize(("mode", "loss", "slope"), [("max", 0.405, 0.9), ("clipped", 0.005, 0.0)])
def test_value_clip_modes(mode, loss, slope):
    # value 0 -> 1, target .1, clip .2: clipped to .2, errors .1² and .9², half of them .005 and .405
    value = torch.tensor([[1.0]], requires_grad=True)
    zero, one = torch.zeros(1, 1), torch.ones(1, 1)
    targets = Targets(zero, zero, torch.tensor([[0.1]]), zero, one)
    coefs = LossCoefs(one, 0.2 * one, zero, one, clips_values=True, value_clip_mode=mode)
    found = ppo_loss(PolicyEval(zero, zero, value), targets, coefs)
    found.sum().backward()
    assert (found.item(), value.grad.item()) == (pytest.approx(loss), pytest.approx(slope))


def test_a_value_that_is_not_clipped_has_its_own_error_in_both_modes():
    value, zero, one = torch.tensor([[1.0], [1.0]]), torch.zeros(2, 1), torch.ones(2, 1)
    targets, clip = Targets(zero, zero, 0.1 * one, zero, one), torch.tensor([[0.2], [math.inf]])
    found = [
        ppo_loss(PolicyEval(zero, zero, value), targets, LossCoefs(one, clip, zero, one, True, mode)).tolist()
        for mode in ("max", "clipped")
    ]
    assert found == [pytest.approx([0.405, 0.405]), pytest.approx([0.005, 0.405])]


def returns_of(rewards, gamma, gae_lambda=1.0, n_step=None, ends=()):
    """Advantages of one env whose values are 0."""
    rewards = torch.tensor(rewards, dtype=torch.float64).view(-1, 1, 1)
    ended = torch.zeros_like(rewards)
    ended[list(ends)] = 1.0
    numbers = {"gamma": torch.full((1, 1), gamma), "gae_lambda": torch.full((1, 1), gae_lambda)}
    window = None if n_step is None else torch.tensor([[float(n_step)]])
    flags = {"terminated": ended, "ended": ended, "valid": torch.ones_like(rewards)}
    zero = torch.zeros_like(rewards)
    return gae(rewards, zero, zero, **flags, **numbers, n_step=window).flatten().tolist()


def test_n_step_and_monte_carlo_returns():
    # 1 + .5 = 1.5; 1 + .5 + .25 + .125 = 1.875
    assert returns_of([1, 1, 1, 1], 0.5, n_step=2) == [1.5, 1.5, 1.5, 1]
    assert returns_of([1, 1, 1, 1], 0.5) == [1.875, 1.75, 1.5, 1]
    assert returns_of([1, 1, 1, 1], 0.5, n_step=3, ends=[1]) == [1.5, 1, 1.5, 1]


@given(
    rewards=st.lists(st.integers(-4, 4), min_size=1, max_size=12),
    n_step=st.integers(1, 20),
    gamma=st.sampled_from([0.0, 0.5, 1.0]),
    data=st.data(),
)
def test_n_step_returns_are_sums_over_n_steps_of_an_episode(rewards, n_step, gamma, data):
    ends = data.draw(st.sets(st.integers(0, len(rewards) - 1)))
    expected = []
    for t in range(len(rewards)):
        total = 0.0
        for k in range(t, min(t + n_step, len(rewards))):
            total += gamma ** (k - t) * rewards[k]
            if k in ends:
                break
        expected.append(total)
    assert returns_of(rewards, gamma, n_step=n_step, ends=ends) == pytest.approx(expected)


def test_advantages_are_normalised_over_the_minibatch_or_the_rollout():
    advantages = torch.tensor([[0.0, 2.0, 10.0, 14.0]])
    # mean 6.5, standard deviation sqrt(131 / 4) = 5.723; with ddof 1 sqrt(131 / 3) = 6.608
    ours = standardised(advantages, torch.ones(1, 4))[0].tolist()
    assert ours == pytest.approx([-1.136, -0.786, 0.612, 1.311], abs=1e-3)
    theirs = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    torch.testing.assert_close(standardised(advantages, torch.ones(1, 4), ddof=1), theirs)
    targets = torch.zeros(1, 4, 1, 5)  # [P, S, L, 5]
    targets[..., 1], targets[..., 4] = advantages.unsqueeze(-1), 1.0
    for ddof, size in ((0, 1.0), (1, math.sqrt(0.5))):
        found = _with_shares(targets, [slice(0, 2), slice(2, 4)], ddof)[0][1].flatten().tolist()
        assert found == pytest.approx([-size, size, -size, size])


def kl_steps(kl_stop, epochs=4):
    """Optimizer steps of an update whose KL is over the limit in minibatch 3 of epoch 2, of 4 minibatches an epoch."""
    taken = []

    def scripted(gradient, samples, targets):
        gradient.flat.fill_(1.0)
        far = 1.0 if len(taken) == 6 else 1e-4  # of log-probabilities that differ by 1: KL e - 1 - 1 = .72
        log_probs = targets[0] + far
        taken.append(log_probs)
        return [log_probs, torch.zeros_like(log_probs), torch.zeros_like(log_probs)], torch.ones(2, 1)

    cohort = PopulationLearner(*zip(member(0), strict=True))
    values = values_of(1, update_epochs=[epochs], target_kl=[0.1])
    update = PPOUpdate(cohort.stacked, values, cohort.execution, modes=UpdateModes(kl_stop=kl_stop))
    update.write_gradient_ = scripted
    batch, _ = update.compute_advantages(rollout_of(1), SINGLE_STEP, None)
    minibatches = Minibatches(4, batch.observations.shape[1])
    _, epochs_done = update.epochs(batch, minibatches, shuffle_of([0]))
    return int(cohort.stacked.optimizer.steps[0]), int(epochs_done[0])


def test_where_the_kl_limit_stops():
    # the mean KL of epoch 2 is about .72 / 4 = .18 > .1; before a step 2 of 4 steps are taken
    assert kl_steps("epoch") == (8, 2)
    assert kl_steps("update") == (6, 2)
    assert kl_steps("minibatch") == (6 + 2 * 4, 4)


@pytest.mark.parametrize("kl_stop", ["minibatch", "update"])
def test_members_that_stop_within_an_epoch_learn_as_alone(kl_stop):
    rollout, modes = rollout_of(3), UpdateModes(kl_stop=kl_stop)
    values = values_of(3, target_kl=[1e-3, math.inf, 1e-5], lr=[3e-2, 1e-2, 3e-2])
    together = PopulationLearner(*zip(*(member(i) for i in range(3)), strict=True))
    update = RolloutUpdate(rollout, values, 10, shuffle_of(range(3)), modes=modes)
    report = together.learn(range(3), update)
    steps = together.stacked.optimizer.steps.tolist()
    assert steps[1] == 3 * 5
    assert steps[2] < 15
    for i in range(3):
        alone = PopulationLearner(*zip(member(i), strict=True))
        its = RolloutUpdate(only(rollout, i), pick(values, i), 10, shuffle_of([i]), modes=modes)
        its_report = alone.learn([0], its)
        assert alone.stacked.optimizer.steps.item() == steps[i]
        torch.testing.assert_close(together.stacked.flat[i], alone.stacked.flat[0], rtol=1e-10, atol=1e-10)
        for name in ("loss", "approx_kl", "grad_norm", "epochs"):
            torch.testing.assert_close(report[name][i : i + 1], its_report[name], rtol=1e-9, atol=1e-9)


def adaptive(lr, kls, **changed):
    """Learning rates of a member after epochs of such KLs, and of one that does not adapt."""
    cohort = PopulationLearner(*zip(member(0), member(1), strict=True))
    values = values_of(2, lr=[lr, lr], kl_threshold=[0.008, math.inf], lr_max=[1e-2, 1e-2], **changed)
    update, rates = PPOUpdate(cohort.stacked, values, cohort.execution), []
    for kl in kls:
        update.adapt_lr_(torch.tensor([kl, kl], dtype=torch.float64))
        rates.append(update.adapted_lr.tolist())
    return [rate for rate, _ in rates], [other for _, other in rates]


def test_the_learning_rate_adapts_to_the_kl():
    # .02 > 2 x .008: / 1.5; .003 < .008 / 2: x 1.5; .008 is between; 0 leaves it
    rates, others = adaptive(1e-3, [0.02, 0.003, 0.008, 0.0])
    assert rates == pytest.approx([1e-3 / 1.5, 1e-3, 1e-3, 1e-3])
    assert others == [1e-3] * 4


def test_the_adapted_rate_stays_within_its_bounds():
    # from .008: x 1.5 = .012 > .01; then 40 times / 1.5, far below 1e-6
    assert adaptive(8e-3, [0.001, 0.001])[0] == pytest.approx([1e-2, 1e-2])
    assert adaptive(1e-3, [1.0] * 40)[0][-1] == pytest.approx(1e-6)


def test_the_critics_rate_adapts_by_the_same_factor():
    cohort = PopulationLearner(*zip(member(0), strict=True))
    values = values_of(1, lr=[1e-3], lr_critic=[3e-3], kl_threshold=[0.008])
    update = PPOUpdate(cohort.stacked, values, cohort.execution)
    update.adapt_lr_(torch.tensor([0.1], dtype=torch.float64))
    (step,) = update.prepare_steps(1)
    assert [rate.item() for _, rate, _ in step.blocks] == pytest.approx([1e-3 / 1.5, 3e-3 / 1.5])


def test_a_fixed_rate_of_zero_beside_an_adaptive_one_leaves_the_critics():
    cohort = PopulationLearner(*zip(member(0), member(1), strict=True))
    values = values_of(2, lr=[1e-3, 0.0], lr_critic=[3e-3, 2e-3], kl_threshold=[0.008, math.inf])
    (step,) = PPOUpdate(cohort.stacked, values, cohort.execution).prepare_steps(1)
    (_, actor, _), (_, critic, _) = step.blocks
    assert actor.flatten().tolist() == pytest.approx([1e-3, 0.0])
    assert critic.flatten().tolist() == pytest.approx([3e-3, 2e-3])  # not 2e-3 * 0 / 0
