"""Law 2 where members differ in architecture: computed together or alone, they learn the same."""

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from learner_examples import (
    BOX,
    DIFFERENT,
    DISCRETE,
    STATE,
    builder,
    member,
    only,
    pick,
    rollout_of,
    shuffle_of,
    values_of,
)

from agilerl_like.learning.population_learner import PopulationLearner
from agilerl_like.learning.ppo_update import RolloutUpdate
from agilerl_like.learning.stack_planner import FIXED_WORK, PlannedMember, plan_stacks
from agilerl_like.modules import CNNSpec, LSTMSpec, MLPSpec, MultiInputSpec, ResNetSpec, SimBaSpec, TransformerSpec
from agilerl_like.modules.layers import ACTIVATIONS
from agilerl_like.networks.architecture import NetworkSpec

NAMES = sorted(ACTIVATIONS)
PLAIN = ("ReLU", "Tanh")  # activations with f(0) = 0
STACKS = st.sampled_from(["few", "some"])


@st.composite
def mlp_specs(draw, stack_key, plain):
    layers = draw(st.integers(0, 3))
    name, output = (plain, plain) if plain else (draw(st.sampled_from(NAMES)) for _ in range(2))
    spec = MLPSpec(
        hidden_size=tuple(draw(st.integers(2, 9)) for _ in range(layers)),
        activation=name,
        output_activation=output,
        min_mlp_nodes=2,
        **stack_key,
    )
    operators = [name for name in ("add_layer", "change_activation") if not plain and spec.choices(name)]
    change = draw(st.sampled_from(["none", *operators]))
    return spec if change == "none" else spec.apply(change, **draw(st.sampled_from(spec.choices(change))))


@st.composite
def populations(draw):
    """A few random specs of one structure; every other time of one plain activation, with nothing else."""
    plain = draw(st.sampled_from(["", "", *PLAIN]))
    flags = st.just(False) if plain else st.booleans()
    stack_key = {
        "encoder": {"layer_norm": draw(flags), "noisy": draw(flags)},
        "head": {"layer_norm": draw(flags)},
    }
    return [
        NetworkSpec(
            encoder=draw(mlp_specs(stack_key["encoder"], plain)),
            head=draw(mlp_specs(stack_key["head"], plain)),
            latent_dim=draw(st.integers(2, 9)),
            min_latent_dim=2,
        )
        for _ in range(draw(st.integers(2, 4)))
    ]


def born(seed, spec, action_space, dtype, *, share):
    """A member with fades in progress, padded units, and drawn noise."""
    network, adam = member(seed, action_space, dtype, share=share, spec=spec)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in network.modules():
            if hasattr(layer, "resample_"):
                layer.resample_(generator)
            if hasattr(layer, "counted") and len(layer.counted) > 2:
                layer.counted[seed % len(layer.counted)] = 0.0
                layer.update_count_flags()
        network.advance_fades_(0.2 * seed)
        for moment in (adam.exp_avg, adam.exp_avg_sq):  # it has learned before
            moment.copy_(1e-3 * torch.rand(moment.shape, generator=generator))
        adam.steps += 10 * seed
    return network, adam


def cohort_of(members, action_space, *, share, stacks):
    """A cohort that is made to put its members into few stacks, or into as many as it finds best for large batches."""
    return PopulationLearner(
        *zip(*members, strict=True),
        build=lambda _, spec: builder(action_space, share=share)(spec),
        batch_size={"few": 1e-6, "some": FIXED_WORK["cpu"] / 100}[stacks],
    )


def check_together_equals_alone(specs, action_space, dtype, tolerance, *, share, stacks):
    members = [born(i, spec, action_space, dtype, share=share) for i, spec in enumerate(specs)]
    count = len(members)
    rollout = rollout_of(count, action_space, dtype, invalid=True)
    numbers = {name: (column * 2)[:count] for name, column in DIFFERENT.items()}
    numbers["target_kl"] = [math.inf] * count  # a KL at its limit may fall to either side
    values = values_of(count, dtype, **numbers)
    together = cohort_of(members, action_space, share=share, stacks=stacks)
    report = together.learn(
        range(count), RolloutUpdate(rollout, values, batch_size=10, shuffle=shuffle_of(range(count)))
    )
    for i, spec in enumerate(specs):
        network, adam = born(i, spec, action_space, dtype, share=share)
        alone = PopulationLearner([network], [adam])
        its_report = alone.learn(
            [0], RolloutUpdate(only(rollout, i), pick(values, i), batch_size=10, shuffle=shuffle_of([i]))
        )
        close = {"rtol": tolerance, "atol": tolerance}
        for name, tensor in network.state_dict().items():
            torch.testing.assert_close(members[i][0].state_dict()[name], tensor, **close)
        for mine, its in zip(vars(together.moments(i)).values(), vars(alone.moments(0)).values(), strict=True):
            torch.testing.assert_close(mine, its, **close)
        for name, its in its_report.items():
            torch.testing.assert_close(
                report[name][i : i + 1],
                its,
                rtol=100 * tolerance,
                atol=100 * tolerance,
                equal_nan=True,
                msg=f"{name} of {i}",
            )


@settings(max_examples=12)
@given(populations(), st.sampled_from([DISCRETE, BOX]), st.booleans(), STACKS)
def test_unequal_members_learn_together_what_they_learn_alone(specs, action_space, share, stacks):
    check_together_equals_alone(specs, action_space, torch.float64, 1e-10, share=share, stacks=stacks)


def plain_spec(encoder, head, latent=5):
    sizes = {"min_mlp_nodes": 2, "output_activation": "ReLU"}
    return NetworkSpec(
        encoder=MLPSpec(hidden_size=encoder, **sizes),
        head=MLPSpec(hidden_size=head, **sizes),
        latent_dim=latent,
        min_latent_dim=2,
    )


LAYERS_THAT_SOME_LACK = {
    "narrower than what passes by": [plain_spec((9,), (8,)), plain_spec((3, 4), (2, 3)), plain_spec((7,), (3, 2))],
    "between those who have it": [plain_spec((3, 3), (3,)), plain_spec((8,), (9,)), plain_spec((4, 2), (2, 2))],
    "two of them": [plain_spec((4,), (3,)), plain_spec((2, 3, 4), (5, 5, 2)), plain_spec((6, 3), (2,))],
}


@pytest.mark.parametrize("share", [True, False], ids=["shared", "apart"])
@pytest.mark.parametrize("name", LAYERS_THAT_SOME_LACK)
def test_members_that_lack_a_layer_learn_as_alone(name, share):
    specs = LAYERS_THAT_SOME_LACK[name]
    members = [born(i, spec, DISCRETE, torch.float64, share=share) for i, spec in enumerate(specs)]
    ((_, stack),) = cohort_of(members, DISCRETE, share=share, stacks="few").stacked.parts
    assert any(linear.active_block is not None for linear in stack.module.actor.encoder.linears)
    check_together_equals_alone(specs, DISCRETE, torch.float64, 1e-10, share=share, stacks="few")


@pytest.mark.slow
@settings(max_examples=10)
@given(populations())
def test_unequal_members_learn_as_alone_in_float32(specs):
    # normalising two nearly equal units multiplies rounding by up to 1 / (2 sqrt(1e-5)) = 158
    assume(not any(part.layer_norm for spec in specs for part in (spec.encoder, spec.head)))
    check_together_equals_alone(specs, DISCRETE, torch.float32, 1e-4, share=True, stacks="few")


@pytest.mark.slow
@settings(max_examples=20)
@given(populations(), st.booleans())
def test_padding_stays_exactly_zero(specs, share):
    members = [born(i, spec, DISCRETE, torch.float64, share=share) for i, spec in enumerate(specs)]
    cohort = cohort_of(members, DISCRETE, share=share, stacks="few")
    rows = range(len(specs))
    cohort.learn(
        rows, RolloutUpdate(rollout_of(len(specs)), values_of(len(specs)), batch_size=10, shuffle=shuffle_of(rows))
    )
    adam, its = cohort.stacked.optimizer, [(cohort._row[place], cohort._columns(place)) for place in rows]
    for network, (row, places) in zip(cohort.networks, its, strict=True):
        alone = torch.cat([parameter.detach().reshape(-1) for parameter in network.parameters()])
        assert torch.equal(cohort.stacked.flat[row, places], alone)
    for numbers in (cohort.stacked.flat, adam.exp_avg, adam.exp_avg_sq):
        rest = numbers.clone()
        for row, places in its:
            rest[row, places] = 0.0
        assert torch.equal(rest, torch.zeros_like(rest))


@settings(max_examples=20)
@given(populations(), STACKS)
def test_unequal_members_act_together_as_alone(specs, stacks):
    members = [born(i, spec, BOX, torch.float64, share=False) for i, spec in enumerate(specs)]
    x = torch.randn(len(specs), 6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        alone = [network.actor(network.observation_norm(x[i])) for i, (network, _) in enumerate(members)]
        nothing = torch.zeros(len(specs), 6, *STATE)
        together, _ = cohort_of(members, BOX, share=False, stacks=stacks).act(x, nothing, None, None)
        for i, (network, _) in enumerate(members):
            torch.testing.assert_close(together[i], alone[i], rtol=0, atol=1e-12)
            again = network.actor(network.observation_norm(x[i]))  # now that its weights are views
            torch.testing.assert_close(again, alone[i], rtol=0, atol=1e-12)


# -- who is computed with whom


def spec_of(*hidden, head=(64,), latent=64, **encoder):
    return NetworkSpec(
        encoder=MLPSpec(hidden_size=hidden, output_activation="ReLU", **encoder),
        head=MLPSpec(hidden_size=head),
        latent_dim=latent,
    )


def places_of(*specs):
    return plan_stacks([PlannedMember(spec.stack_key(), spec) for spec in specs], 8, 4, batch_size=128, device="cpu")


def test_similar_members_share_a_stack_and_a_large_one_does_not():
    assert places_of(spec_of(64), spec_of(72), spec_of(64, latent=56), spec_of(48)) == [[0, 1, 2, 3]]
    giant = spec_of(500, 500, 500)
    assert places_of(giant, spec_of(64), spec_of(72), giant) == [[0, 3], [1, 2]]


def test_deep_encoders_come_first_and_deep_heads_last():
    shapes = [((16,), (16,)), ((16,), (16, 16)), ((16, 16), (16,))]
    deep = [spec_of(*encoder, head=head, latent=16) for encoder, head in shapes]
    assert places_of(*deep) == [[2, 0, 1]]


def test_members_with_different_stack_keys_never_share_a_stack():
    assert places_of(spec_of(64), spec_of(64, layer_norm=True), spec_of(64)) == [[0, 2], [1]]


@pytest.mark.parametrize("kind", [MLPSpec, CNNSpec, ResNetSpec, SimBaSpec, MultiInputSpec, LSTMSpec, TransformerSpec])
def test_members_that_differ_in_a_field_that_a_subclass_adds_are_stacked_apart(kind):
    added = {"__annotations__": {"sharp": "int", "most": "int"}, "sharp": 1, "most": 8}
    own = dataclass(frozen=True)(type("OwnSpec", (kind,), added))
    assert own().stack_key() != own(sharp=2).stack_key()
    assert own().stack_key() != own(most=9).stack_key()
    padded = type("PaddedSpec", (own,), {"UNION_FIELDS": (*kind.UNION_FIELDS, "sharp")})
    assert padded().stack_key() == padded(sharp=2).stack_key()
    covered = type("CoveredSpec", (own,), {"STACK_FIELDS": (*kind.STACK_FIELDS, "sharp")})
    assert covered().stack_key() != covered(sharp=2).stack_key()
    assert covered().stack_key() == covered(most=9).stack_key()


def test_extractors_that_differ_in_padded_fields_are_stacked_together():
    assert MultiInputSpec().stack_key() == MultiInputSpec(latent_dim=40, min_latent_dim=16).stack_key()


def test_members_with_equal_activations_are_contiguous():
    assert places_of(*(spec_of(64, activation=name) for name in ("Tanh", "ReLU", "Tanh", "ELU"))) == [[3, 1, 0, 2]]
