"""Compiled or in mixed precision, members learn what they learn otherwise."""

import shutil

import pytest
import torch
from gymnasium.spaces import MultiBinary, MultiDiscrete
from learner_examples import BOX, DISCRETE, SPEC, builder, member, rollout_of, shuffle_of, values_of

from agilerl_like.learning import execution
from agilerl_like.learning.execution import Execution
from agilerl_like.learning.population_learner import PopulationLearner
from agilerl_like.learning.ppo_gradient import clipped_gradient_
from agilerl_like.learning.ppo_update import RolloutUpdate
from agilerl_like.modules import MLPSpec, layers
from agilerl_like.networks.architecture import NetworkSpec


def learned(action_space, how, dtype=torch.float32, specs=(SPEC, SPEC), *, share=True):
    """The weights of members who learned in one stack, and their report."""
    together = [member(i, action_space, dtype, share=share, spec=spec) for i, spec in enumerate(specs)]
    build = builder(action_space, share=share)
    cohort = PopulationLearner(
        *zip(*together, strict=True), build=lambda _, spec: build(spec).to(dtype), batch_size=1e-6, execution=how
    )
    assert len(cohort.stacks) == 1
    members = len(specs)
    rows = range(members)
    rollout, values = rollout_of(members, action_space, dtype), values_of(members, dtype)
    report = cohort.learn(rows, RolloutUpdate(rollout, values, batch_size=12, shuffle=shuffle_of(rows)))
    return cohort.stacked.flat, report


@pytest.fixture
def whole_graphs(monkeypatch):
    """Compile without a C++ compiler, and insist that a step is one graph: what fuses it can then see all of it."""
    compiled = []

    def capture(function, device):
        compiled.append(device)
        return torch.compile(function, backend="eager", fullgraph=True, dynamic=False)

    torch.compiler.reset()  # what was compiled before counts towards a limit
    execution.trace_autograd()
    monkeypatch.setattr(execution, "_compiled", capture)
    return compiled


ACTIONS = {"discrete": DISCRETE, "box": BOX, "multi-discrete": MultiDiscrete([2, 3]), "bits": MultiBinary(2)}


@pytest.mark.parametrize(
    ("action_space", "share"), [*zip(ACTIONS.values(), [True, False, False, True], strict=True)], ids=ACTIONS
)
def test_captured_gradient_gives_equal_updates(action_space, share, whole_graphs):
    plain, _ = learned(action_space, Execution(), share=share)
    captured, _ = learned(action_space, Execution(compile=True), share=share)
    assert whole_graphs
    torch.testing.assert_close(captured, plain, rtol=1e-4, atol=1e-5)


def spec_of(encoder=(8,), head=(6,), latent=5, **encoder_config):
    return NetworkSpec(
        encoder=MLPSpec(hidden_size=encoder, min_mlp_nodes=2, **encoder_config),
        head=MLPSpec(hidden_size=head, min_mlp_nodes=2),
        latent_dim=latent,
        min_latent_dim=2,
    )


UNEQUAL = (spec_of(), spec_of((7, 9), (6, 4), 8), spec_of((4, 5, 6), (9,), 3))


@pytest.mark.parametrize("share", [True, False], ids=["shared", "apart"])
def test_captured_gradient_of_unequal_members_gives_equal_updates(share, whole_graphs):
    plain, _ = learned(DISCRETE, Execution(), torch.float64, UNEQUAL, share=share)
    captured, _ = learned(DISCRETE, Execution(compile=True), torch.float64, UNEQUAL, share=share)
    assert whole_graphs
    torch.testing.assert_close(captured, plain, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "specs",
    [
        (spec_of(activation="ReLU"), spec_of(activation="Tanh")),
        (spec_of(activation="GELU"),) * 2,
        (spec_of(layer_norm=True),) * 2,
        (spec_of(noisy=True),) * 2,
        (spec_of(activation="Tanh").apply("encoder.add_layer", layer=0),) * 2,  # fades in
    ],
    ids=["two activations", "GELU", "normalised", "noisy", "fading"],
)
def test_every_kind_of_mlp_is_captured_as_one_graph(specs, whole_graphs):
    plain, _ = learned(DISCRETE, Execution(), torch.float64, specs, share=False)
    captured, _ = learned(DISCRETE, Execution(compile=True), torch.float64, specs, share=False)
    assert whole_graphs
    torch.testing.assert_close(captured, plain, rtol=0, atol=1e-12)


@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler on a CPU")
@pytest.mark.filterwarnings(
    "ignore:.torch.jit.script_method.:DeprecationWarning"
)  # the compiler imports a module of its own
@pytest.mark.slow
def test_compiled_gradient_gives_equal_updates():
    torch.compiler.reset()
    plain, _ = learned(DISCRETE, Execution())
    compiled, _ = learned(DISCRETE, Execution(compile=True))
    torch.testing.assert_close(compiled, plain, rtol=1e-4, atol=1e-5)


def test_exhausted_memory_is_no_failure_of_the_compiler(monkeypatch):
    def exhausted(*tensors):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "compile", lambda function, **_: exhausted)
    execution._compiled.cache_clear()
    with pytest.raises(torch.OutOfMemoryError):
        learned(DISCRETE, Execution(compile=True))
    execution._compiled.cache_clear()


def test_compiler_failure_warns_and_runs_uncompiled(monkeypatch):
    def broken(graph, inputs):
        raise OSError("no compiler here")

    plain, _ = learned(DISCRETE, Execution())
    compiler = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **_: compiler(function, backend=broken))
    execution._compiled.cache_clear()
    with pytest.warns(UserWarning, match="compile=True has no effect, because torch.compile failed.*no compiler here"):
        found, _ = learned(DISCRETE, Execution(compile=True))
    execution._compiled.cache_clear()
    assert torch.equal(found, plain)


@pytest.mark.filterwarnings(
    "ignore:.torch.jit.script_method.:DeprecationWarning"
)  # the compiler imports a module of its own
@pytest.mark.slow
def test_without_a_cpp_compiler_one_warning_names_what_to_install(monkeypatch):
    torch.compiler.reset()
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", ("no-such-compiler",))
    monkeypatch.setattr("torch._inductor.config.fx_graph_cache", False)  # a cached kernel needs no compiler
    execution._compiled.cache_clear()
    plain, _ = learned(DISCRETE, Execution())
    with pytest.warns(UserWarning, match=r"compile=True has no effect.*no C\+\+ compiler; install g\+\+") as warned:
        found, _ = learned(DISCRETE, Execution(compile=True))
    execution._compiled.cache_clear()
    assert sum("compile=True" in str(its.message) for its in warned) == 1
    assert torch.equal(found, plain)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.slow
def test_a_compiled_network_with_a_graph_break_has_the_same_gradient(monkeypatch):
    torch.compiler.reset()
    execution.trace_autograd()
    compiled = torch.compile(clipped_gradient_, backend="aot_eager", dynamic=False)
    monkeypatch.setattr(execution, "_compiled", lambda function, device: compiled)
    affine = layers.affine

    def breaking(*args):
        torch._dynamo.graph_break()
        return affine(*args)

    plain, _ = learned(DISCRETE, Execution())
    monkeypatch.setattr(layers, "affine", breaking)
    found, _ = learned(DISCRETE, Execution(compile=True))
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("action_space", [DISCRETE, BOX], ids=["discrete", "box"])
def test_bfloat16_updates_are_close_and_weights_stay_float32(action_space):
    plain, report = learned(action_space, Execution())
    mixed, mixed_report = learned(action_space, Execution(precision="bfloat16"))
    assert mixed.dtype == torch.float32
    assert not torch.equal(plain, mixed)
    # 8 bits of mantissa: products are off by 0.4 %, and Adam's first steps are of size lr = 0.01 whatever the gradient
    assert float((mixed - plain).abs().mean()) < 0.01
    torch.testing.assert_close(mixed_report["value_loss"], report["value_loss"], rtol=0.1, atol=0.02)
