import math

import pytest
import torch

from agilerl_like.learning.ppo_loss import REPORT, Coefficients, Opinion, Targets, Weights, ppo_loss, slopes


def one(x):
    return torch.tensor([[x]], dtype=torch.float64)


def loss_of(
    ratio, advantage, *, value=0.0, ret=0.0, old_value=0.0, entropy=0.0, clip=0.2, clip_vf=math.inf, ent=0.0, vf=0.0
):
    targets = Targets(one(0.0), one(advantage), one(ret), one(old_value), one(1.0))
    found = ppo_loss(
        Opinion(one(math.log(ratio)), one(entropy), one(value)),
        targets,
        Coefficients(*map(one, (clip, clip_vf, ent, vf)), clips_values=clip_vf < math.inf),
    )
    return found.total.item(), dict(zip(REPORT, found.report[0].tolist(), strict=True))


def close(a, b):
    return math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-12)


def test_the_surrogate_is_the_pessimistic_one():
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


def test_samples_without_weight_play_no_part():
    generator = torch.Generator().manual_seed(0)
    logp, entropy, value, old, adv, ret = torch.randn(6, 1, 4, generator=generator)
    share = torch.tensor([[0.5, 0.0, 0.5, 0.0]])
    coefficients = Coefficients(*(torch.tensor([[x]]) for x in (0.2, math.inf, 0.01, 0.5)), clips_values=False)
    opinion, targets = Opinion(logp, entropy, value), Targets(old, adv, ret, value, share)
    whole = ppo_loss(opinion, targets, coefficients)
    part = ppo_loss(*(type(both)(*(x[:, [0, 2]] for x in both)) for both in (opinion, targets)), coefficients)
    for slope in slopes(opinion, Weights.of(targets, coefficients), coefficients):
        assert slope[:, [1, 3]].count_nonzero() == 0
        assert slope[:, [0, 2]].count_nonzero() > 0
    torch.testing.assert_close(whole.total, part.total)
    torch.testing.assert_close(whole.report, part.report)


@pytest.mark.parametrize("clip_vf", [math.inf, 0.3])
def test_the_written_gradient_is_the_traced_one(clip_vf):
    """Against autograd through the plain formula, on samples on every side of both clips."""
    generator = torch.Generator().manual_seed(0)
    names = torch.randn(7, 3, 200, dtype=torch.float64, generator=generator) * 0.5
    logp, entropy, value, old, advantage, ret, old_value = names
    share = torch.rand(3, 200, dtype=torch.float64, generator=generator)
    share = share / share.sum(-1, keepdim=True)
    column = [
        torch.tensor(x, dtype=torch.float64).unsqueeze(1)
        for x in ([0.1, 0.2, 0.3], [clip_vf] * 3, [0.0, 0.1, 1.0], [0.5, 1.0, 2.0])
    ]
    clip, limit, ent, vf = column

    def plain(logp, entropy, value):
        ratio = (logp - old).exp()
        policy = -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
        near = old_value + (value - old_value).clamp(-limit, limit)
        error = 0.5 * torch.maximum((value - ret) ** 2, (near - ret) ** 2)
        return ((policy + vf * error - ent * entropy) * share).sum(-1)

    inputs = [x.clone().requires_grad_() for x in (logp, entropy, value)]
    expected = torch.autograd.grad(plain(*inputs).sum(), inputs)
    opinion, targets = Opinion(logp, entropy, value), Targets(old, advantage, ret, old_value, share)
    coefficients = Coefficients(*column, clip_vf < math.inf)
    torch.testing.assert_close(ppo_loss(opinion, targets, coefficients).total, plain(*inputs))
    for ours, theirs in zip(slopes(opinion, Weights.of(targets, coefficients), coefficients), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
