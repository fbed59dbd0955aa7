import math

import torch
from hypothesis import given
from hypothesis.strategies import floats

from agilerl_like.learning.ppo_loss import LossCoefs, PolicyEval, Targets, ppo_loss, ppo_metrics


def one(x):
    return torch.tensor([[x]], dtype=torch.float64)


def loss_of(
    ratio, advantage, *, value=0.0, ret=0.0, old_value=0.0, entropy=0.0, clip=0.2, clip_vf=math.inf, ent=0.0, vf=0.0
):
    targets = Targets(one(0.0), one(advantage), one(ret), one(old_value), one(1.0))
    arguments = (
        PolicyEval(one(math.log(ratio)), one(entropy), one(value)),
        targets,
        LossCoefs(*map(one, (clip, clip_vf, ent, vf)), clips_values=clip_vf < math.inf),
    )
    metrics = ppo_metrics(*arguments)
    torch.testing.assert_close(metrics["loss"], ppo_loss(*arguments), rtol=0, atol=1e-14)
    return ppo_loss(*arguments).item(), {name: metric.item() for name, metric in metrics.items()}


def close(a, b):
    return math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-12)


def test_clipped_surrogate_takes_the_minimum():
    assert close(loss_of(1.1, 2.0)[0], -2.2)  # inside the clip: -r A
    assert close(loss_of(1.5, 2.0)[0], -2.4)  # gain is cut at 1.2 A
    assert close(loss_of(1.5, -2.0)[0], 3.0)  # a loss is not cut
    assert close(loss_of(0.5, -2.0)[0], 1.6)  # -0.8 A
    assert close(loss_of(0.5, 2.0)[0], -1.0)


def test_value_loss_has_the_half_and_entropy_is_a_bonus():
    # 0.5 * (3 - 1)^2 * 0.7 - 0.1 * 2 = 1.4 - 0.2
    total, report = loss_of(1.0, 0.0, value=3.0, ret=1.0, entropy=2.0, vf=0.7, ent=0.1)
    assert close(total, 1.2)
    assert close(report["value_loss"], 2.0)
    assert close(report["entropy"], 2.0)


def test_a_clipped_value_takes_the_larger_error():
    # the value went from 0 to 1 towards 2, clipped to 0.2: max(0.5 (1-2)^2, 0.5 (0.2-2)^2) = 1.62
    assert close(loss_of(1.0, 0.0, value=1.0, ret=2.0, clip_vf=0.2, vf=1.0)[0], 1.62)
    assert close(loss_of(1.0, 0.0, value=1.0, ret=2.0, vf=1.0)[0], 0.5)


def test_kl_estimate_is_k3():
    # r = e: (e - 1) - 1
    assert close(loss_of(math.e, 0.0)[1]["approx_kl"], math.e - 2)
    assert loss_of(math.e, 0.0)[1]["clip_fraction"] == 1.0
    assert loss_of(1.1, 0.0)[1]["clip_fraction"] == 0.0


@given(ratio=floats(0.1, 3.0), advantage=floats(-5.0, 5.0), clip=floats(0.01, 0.9))
def test_surrogate_equals_that_of_the_paper(ratio, advantage, clip):
    clipped = min(max(ratio, 1 - clip), 1 + clip)
    expected = -min(ratio * advantage, clipped * advantage)
    assert math.isclose(loss_of(ratio, advantage, clip=clip)[0], expected, rel_tol=1e-12, abs_tol=1e-12)


def test_samples_of_weight_zero_do_not_affect_loss_or_gradient():
    generator = torch.Generator().manual_seed(0)
    logp, entropy, value, old, adv, ret = torch.randn(6, 1, 4, generator=generator)
    share = torch.tensor([[0.5, 0.0, 0.5, 0.0]])
    coefs = LossCoefs(*(torch.tensor([[x]]) for x in (0.2, math.inf, 0.01, 0.5)), clips_values=False)
    targets = Targets(old, adv, ret, value, share)
    inputs = [x.clone().requires_grad_() for x in (logp, entropy, value)]
    loss = ppo_loss(PolicyEval(*inputs), targets, coefs)
    for gradient in torch.autograd.grad(loss.sum(), inputs):
        assert gradient[:, [1, 3]].count_nonzero() == 0
        assert gradient[:, [0, 2]].count_nonzero() > 0
    evaluation = PolicyEval(logp, entropy, value)
    part = [type(both)(*(x[:, [0, 2]] for x in both)) for both in (evaluation, targets)]
    torch.testing.assert_close(loss.detach(), ppo_loss(*part, coefs))
    torch.testing.assert_close(ppo_metrics(evaluation, targets, coefs), ppo_metrics(*part, coefs))


def test_the_summed_loss_gives_each_member_its_own_gradient():
    generator = torch.Generator().manual_seed(0)
    logp, entropy, value, old, adv, ret, old_value = torch.randn(7, 3, 20, dtype=torch.float64, generator=generator)
    share = torch.full((3, 20), 1 / 20, dtype=torch.float64)
    column = [torch.tensor(x).double().unsqueeze(1) for x in ([0.1, 0.2, 0.3], [0.3] * 3, [0.0, 0.1, 1.0], [0.5, 1, 2])]

    def gradients(rows):
        inputs = [x[rows].clone().requires_grad_() for x in (logp, entropy, value)]
        targets = Targets(*(x[rows] for x in (old, adv, ret, old_value, share)))
        arguments = PolicyEval(*inputs), targets, LossCoefs(*(x[rows] for x in column), clips_values=True)
        loss = ppo_loss(*arguments)
        assert not any(metric.requires_grad for metric in ppo_metrics(*arguments).values())
        return torch.stack(torch.autograd.grad(loss.sum(), inputs))

    alone = torch.cat([gradients(slice(row, row + 1)) for row in range(3)], 1)
    torch.testing.assert_close(gradients(slice(0, 3)), alone, rtol=0, atol=1e-15)
