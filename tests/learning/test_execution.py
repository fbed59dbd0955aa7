"""Compiled or in mixed precision, members learn what they learn otherwise."""

import shutil

import pytest
import torch
from cohort_examples import BOX, DISCRETE, member, rollout_of, shuffle_of, values_of

from agilerl_like.learning import execution
from agilerl_like.learning.cohort import Cohort
from agilerl_like.learning.execution import Execution


def learned(action_space, how, dtype=torch.float32, members=2, *, share=True):
    together = zip(*(member(i, action_space, dtype, share=share) for i in range(members)), strict=True)
    cohort = Cohort(*together, execution=how)
    rows = range(members)
    rollout, values = rollout_of(members, action_space, dtype), values_of(members, dtype)
    report = cohort.learn(rows, rollout, values, batch_size=12, shuffle=shuffle_of(rows))
    return cohort.ensemble.flat, report


@pytest.fixture
def whole_graphs(monkeypatch):
    """Compile without a C++ compiler, and insist that a step is one graph: what fuses it can then see all of it."""
    compiled = []

    def capture(function, device):
        compiled.append(device)
        return torch.compile(function, backend="eager", fullgraph=True, dynamic=False)

    monkeypatch.setattr(execution, "_compiled", capture)
    return compiled


@pytest.mark.parametrize("share", [True, False], ids=["shared", "apart"])
@pytest.mark.parametrize("action_space", [DISCRETE, BOX], ids=["discrete", "box"])
def test_a_captured_step_learns_the_same(action_space, share, whole_graphs):
    plain, _ = learned(action_space, Execution(), share=share)
    captured, _ = learned(action_space, Execution(compile=True), share=share)
    assert whole_graphs
    torch.testing.assert_close(captured, plain, rtol=1e-4, atol=1e-5)  # Adam is written in another way


@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler on a CPU")
@pytest.mark.filterwarnings(
    "ignore:.torch.jit.script_method.:DeprecationWarning"
)  # the compiler imports a module of its own
def test_a_compiled_step_learns_the_same():
    plain, _ = learned(DISCRETE, Execution())
    compiled, _ = learned(DISCRETE, Execution(compile=True))
    torch.testing.assert_close(compiled, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("action_space", [DISCRETE, BOX], ids=["discrete", "box"])
def test_bfloat16_is_near_and_weights_stay_float32(action_space):
    plain, report = learned(action_space, Execution())
    mixed, mixed_report = learned(action_space, Execution(precision="bfloat16"))
    assert mixed.dtype == torch.float32
    assert not torch.equal(plain, mixed)
    # 8 bits of mantissa: products are off by 0.4 %, and Adam's first steps are of size lr = 0.01 whatever the gradient
    assert float((mixed - plain).abs().mean()) < 0.01
    torch.testing.assert_close(mixed_report.value_loss, report.value_loss, rtol=0.1, atol=0.02)
