"""EvolvableMultiInput: its forward pass, stacks, and mutations of its extractors."""

import copy
import json

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from hypothesis import given, settings
from hypothesis import strategies as st
from module_checks import advance_unequally, check_stack

from agilerl_like.envs import ObservationEncoder
from agilerl_like.errors import ConfigurationError
from agilerl_like.modules.cnn import CNNSpec
from agilerl_like.modules.history_lstm import HistoryLSTMSpec
from agilerl_like.modules.inplace_mutation import mutate_
from agilerl_like.modules.layers import Activation
from agilerl_like.modules.mlp import MLPSpec
from agilerl_like.modules.multi_input import EvolvableMultiInput, MultiInputSpec
from agilerl_like.modules.resnet import ResNetSpec
from agilerl_like.modules.weight_transfer import transfer_weights_

WORLD = Dict(
    {
        "body": Tuple([Box(-1, 1, (3,)), Discrete(4)]),
        "eye": Box(0, 255, (6, 5, 2), np.uint8),
        "map": Box(-1, 1, (1, 4, 4)),
        "past": Box(-1, 1, (3, 2)),
    }
)
ENCODING = ObservationEncoder(WORLD)
LEAVES = ENCODING.leaves  # body.0, body.1, eye, map, past
OUTPUTS = 7

CNN = {"channel_size": [3], "kernel_size": [2], "min_channel_size": 2, "max_channel_size": 20}
MLP = {"hidden_size": [5], "min_mlp_nodes": 3, "max_mlp_nodes": 20, "max_hidden_layers": 2}
LSTM = {"hidden_state_size": 4, "min_hidden_state_size": 2, "max_hidden_state_size": 12, "max_layers": 2}
CONFIG = {
    "latent_dim": 8, "min_latent_dim": 4, "max_latent_dim": 20, "cnn_config": CNN, "mlp_config": MLP,
    "vector_space_mlp": False,
}  # fmt: skip


def spec_of(**changes):
    return MultiInputSpec.from_config("encoder_config", {**CONFIG, **changes}, LEAVES)


SPECS = {
    "raw vectors": spec_of(),
    "every part by itself": spec_of(vector_space_mlp=True, output_activation="ReLU"),
    "with a memory": spec_of(lstm_config=LSTM),
    "another kind": spec_of(
        activation="Tanh",
        output_activation="Tanh",
        extractors={
            "body.0": MLP,
            "map": {"encoder": "resnet", "channel_size": 4, "min_channel_size": 2, "scale_factor": 2, "kernel_size": 3},
        },
    ),
}


def made(spec, seed=0, gain=1.0):
    module = EvolvableMultiInput(spec, LEAVES, OUTPUTS)
    module.reset_(torch.Generator().manual_seed(seed), output_gain=gain)
    return module.double()


def rows(*batch, seed=0):
    count = int(np.prod(batch))
    return ENCODING.random_rows(count, torch.Generator().manual_seed(seed)).view(*batch, -1)


def spread_(module, seed=0):
    """Weights of any size, biases too."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.4, generator=generator)
    return module


# ---- what it computes


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_fusion_equals_one_linear_map_of_concatenated_features(spec):
    module, x = spread_(made(spec)), rows(9)
    features = []
    for place, leaf in enumerate(LEAVES):
        seen = leaf.read(x).double()
        name = str(place)
        features.append((name, module.extractors[name](seen) if name in module.extractors else seen))
    raw = [name for name, _ in features if name not in module.fusion]
    linears = {**dict(module.fusion.items()), **({"raw": module.fusion["raw"]} if raw else {})}
    weight = torch.cat([linears[name].weight for name, _ in features if name not in raw], 1)
    inputs = torch.cat([feature for name, feature in features if name not in raw], 1)
    if raw:  # in the order of the leaves, behind the extractors
        weight = torch.cat([weight, linears["raw"].weight], 1)
        inputs = torch.cat([inputs, *(feature for name, feature in features if name in raw)], 1)
    y = inputs @ weight.T + sum(linear.bias for linear in linears.values())
    expected = {"Identity": lambda y: y, "ReLU": torch.relu, "Tanh": torch.tanh}[spec.output_activation](y)
    torch.testing.assert_close(module(x), expected, rtol=0, atol=1e-12)


def test_parts_get_the_configured_extractors():
    def kinds(name):
        return {part: type(spec) for part, spec in SPECS[name].extractors}

    assert kinds("raw vectors") == {"eye": CNNSpec, "map": CNNSpec}
    assert kinds("every part by itself") == {
        "body.0": MLPSpec,
        "body.1": MLPSpec,
        "eye": CNNSpec,
        "map": CNNSpec,
        "past": MLPSpec,
    }
    assert kinds("with a memory") == {"eye": CNNSpec, "map": CNNSpec, "past": HistoryLSTMSpec}
    assert kinds("another kind") == {"body.0": MLPSpec, "eye": CNNSpec, "map": ResNetSpec}
    specs = dict(SPECS["another kind"].extractors)
    assert {spec.activation for spec in specs.values()} == {"Tanh"}
    assert {spec.output_activation for spec in specs.values()} == {"Tanh"}
    assert specs["body.0"].hidden_size == (5,)


@pytest.mark.parametrize("gain", [0.1, 1.5])
def test_fusion_is_initialised_as_one_orthogonal_matrix(gain):
    module = made(SPECS["raw vectors"], gain=gain)
    whole = torch.cat([linear.weight for linear in module.fusion.values()], 1)  # 7 outputs of 8 + 8 + 13 inputs
    torch.testing.assert_close(whole @ whole.T, gain**2 * torch.eye(OUTPUTS, dtype=torch.float64), rtol=1e-5, atol=1e-6)
    uniform = made(spec_of(init_layers=False), gain=0.1)
    largest = max(float(linear.weight.detach().abs().max()) for linear in uniform.fusion.values())
    bound = 0.1 / 29**0.5  # of 203 draws, none above 0.9 of the bound has a chance of 5e-10
    assert 0.9 * bound < largest <= bound * (1 + 1e-6)


def test_each_fusion_map_reads_only_its_part():
    module, x = spread_(made(SPECS["every part by itself"])), rows(2)
    other = x.clone()
    eye = LEAVES[2]
    other[:, eye.columns] = rows(2, seed=1)[:, eye.columns]
    before, after = ({name: module.layer_input(f"fusion.{name}", r) for name in module.fusion} for r in (x, other))
    assert [name for name in before if not before[name].equal(after[name])] == ["2"]


def test_finish_fading_changes_no_output():
    spec = SPECS["another kind"].apply("change_activation", activation="ReLU")
    assert spec.is_fading
    module = spread_(made(spec))
    for layer in module.modules():
        if isinstance(layer, Activation):
            layer.advance_(1.0)
    before = module(rows(5))
    module.finish_fading_()
    assert not module.spec.is_fading
    assert module.spec.output_activation == "ReLU"
    assert torch.equal(module(rows(5)), before)


def test_windows_are_read_step_by_step():
    module, x = spread_(made(SPECS["with a memory"])), rows(2, 3)
    memory, past = module.extractors["4"], LEAVES[4].read(x).double()
    state = torch.zeros(6, *memory.state_shape, dtype=torch.float64)
    for step in past.view(6, 3, 2).unbind(1):
        outputs, state = memory.step(step, state)
    torch.testing.assert_close(memory(past), outputs.view(2, 3, 4), rtol=0, atol=1e-12)


# ---- the spec


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_spec_round_trips_through_json(spec):
    for one in (spec, spec.apply("change_activation", activation="GELU"), spec.apply("eye.add_layer", layer=0)):
        config = json.loads(json.dumps(one.to_config()))
        assert MultiInputSpec.from_config("encoder_config", config) == one
        assert MultiInputSpec.from_config("encoder_config", config, LEAVES) == one
        hash(one)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"latent": 8}, "encoder_config key='latent' is unknown; did you mean 'latent_dim'"),
        ({"latent_dim": 3}, r"latent_dim=3 is outside its range \[4, 20\]"),
        ({"min_latent_dim": 0}, "min_latent_dim=0 must be at least 1"),
        (
            {"min_latent_dim": 1, "vector_space_mlp": True, "mlp_config": MLP | {"output_layernorm": True}},
            "min_latent_dim=1 is too few for output_layernorm=True, which maps a single node to a constant",
        ),
        ({"vector_space_mlp": 1}, "vector_space_mlp=1 must be True or False"),
        ({"extractors": {"eyes": {}}}, "extractors key='eyes' is unknown; did you mean 'eye'"),
        ({"extractors": {"eye": {"encoder": "cmm"}}}, r"\['eye'\]: encoder='cmm' is unknown; allowed are: cnn"),
        ({"extractors": {"eye": {"hidden_size": [5]}}}, r"extractors\['eye'\] key='hidden_size' is unknown"),
        ({"extractors": [1]}, r"encoder_config.extractors=\[1\] must be a mapping"),
        ({"cnn_config": {"channel_size": "x"}}, r"extractors\['eye'\]: channel_size='x' must be"),
        ({"mlp_config": {"hiden_size": [5]}}, "mlp_config key='hiden_size' is unknown; did you mean 'hidden_size'"),
        ({"lstm_config": {"layers": 1}, "extractors": {"past": {}}}, "lstm_config key='layers' is unknown"),
        ({"vector_space_mlp": None}, r"mlp_config={.* has no effect without vector_space_mlp; allowed is"),
        ({"activation": "Rulu"}, "activation='Rulu' is unknown; did you mean 'ReLU'"),
        ({"output_activation": "Rulu"}, "output_activation='Rulu' is unknown"),
    ],
)
def test_invalid_configs_raise_errors_that_name_the_field(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        spec_of(**changes)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (MultiInputSpec(), "extractors has no entry for 'eye', which is an image"),
        (
            spec_of(extractors={"eye": {"encoder": "lstm"}}),
            r"\['eye'\]=HistoryLSTMSpec does not suit .*allowed.* mlp, cnn",
        ),
        (
            spec_of(extractors={"body.0": {"encoder": "cnn"}}),
            r"\['body.0'\]=CNNSpec does not suit .*allowed.* mlp, simba$",
        ),
        (
            spec_of(extractors={"body.0": {"encoder": "lstm"}}),
            r"\['body.0'\]=HistoryLSTMSpec does not suit .*allowed.* mlp, simba$",
        ),
        (spec_of(extractors={"map": {"kernel_size": [5], "channel_size": [16]}}), r"\['map'\]: kernel_size entry=5"),
        (spec_of().evolve(extractors=(("ear", MLPSpec()),)), "extractors key='ear' is unknown"),
    ],
)
def test_unsuitable_extractors_raise_errors(spec, message):
    with pytest.raises(ConfigurationError, match=message):
        EvolvableMultiInput(spec, LEAVES, OUTPUTS)


def test_specs_of_other_kinds_raise_errors():
    with pytest.raises(ConfigurationError, match=r"extractors\['eye'\]=.* is no extractor; allowed are MLPSpec"):
        MultiInputSpec(extractors=(("eye", MultiInputSpec()),))


def test_common_settings_are_defaults_of_extractors():
    spec = spec_of(
        init_layers=False,
        activation="ELU",
        extractors={"map": {"init_layers": True, "activation": "GELU", "channel_size": [20]}},
    )
    found = {name: (inner.init_layers, inner.activation, inner.output_activation) for name, inner in spec.extractors}
    assert found == {"eye": (False, "ELU", "ELU"), "map": (True, "GELU", "GELU")}


def test_spaces_without_parts_raise_errors():
    with pytest.raises(ConfigurationError, match="allowed are Dict and Tuple"):
        EvolvableMultiInput(MultiInputSpec(), ObservationEncoder(Box(-1, 1, (3,))).leaves, OUTPUTS)


def test_operators_are_prefixed_and_change_only_their_part():
    spec = SPECS["every part by itself"]
    assert set(spec.operators("node")) == {
        "body.0.add_node",
        "body.0.remove_node",
        "body.1.add_node",
        "body.1.remove_node",
        "past.add_node",
        "past.remove_node",
        "eye.add_channel",
        "eye.remove_channel",
        "eye.change_kernel",
        "map.add_channel",
        "map.remove_channel",
        "map.change_kernel",
        "add_latent_node",
        "remove_latent_node",
    }
    child = spec.apply("eye.add_channel", layer=0, channels=8)
    changed = [
        name for (name, before), (_, after) in zip(spec.extractors, child.extractors, strict=True) if before != after
    ]
    assert changed == ["eye"]
    assert dict(child.extractors)["eye"].channel_size == (11,)
    assert child.evolve(extractors=spec.extractors) == spec
    # steps of 8, 16, 32 with 12 to go up and 4 to go down
    assert spec.choices("add_latent_node") == ({"nodes": 8}, {"nodes": 12})
    assert spec.choices("remove_latent_node") == ({"nodes": 4},)
    assert spec.apply("remove_latent_node", nodes=4).latent_dim == 4
    with pytest.raises(
        ConfigurationError, match=r"operator='eye\.add_chanel' is unknown; did you mean 'eye\.add_channel'"
    ):
        spec.apply("eye.add_chanel")


def test_change_activation_changes_every_part_that_can():
    spec = SPECS["another kind"].apply("change_activation", activation="ELU")
    assert (spec.activation, spec.output_activation, spec.fading) == ("ELU", "ELU", "Tanh")
    assert {inner.activation for _, inner in spec.extractors} == {"ELU"}
    assert spec.choices("change_activation") == spec.choices("add_latent_node") == ()  # one at a time
    assert not spec.without_fading().is_fading
    stays = SPECS["raw vectors"].apply("change_activation", activation="ELU")
    assert (stays.output_activation, stays.fading) == ("Identity", "")


@settings(max_examples=30)
@given(name=st.sampled_from(sorted(SPECS)), seed=st.integers(0, 2**31))
def test_mutations_stay_within_limits(name, seed):
    spec, rng = SPECS[name], np.random.default_rng(seed)
    for _ in range(10):
        legal = [operator for kind in ("layer", "node") for operator in spec.operators(kind)]
        if spec.is_fading:
            spec = spec.without_fading()
            continue
        spec, _ = spec.mutate(str(rng.choice(legal)), rng)
        assert 4 <= spec.latent_dim <= 20
        assert [part for part, _ in spec.extractors] == [part for part, _ in SPECS[name].extractors]


def test_multiply_adds_count_all_extractors():
    spec = SPECS["raw vectors"]
    # eye: kernel 2x2 on 6x5x2 (channels last: 2 of 6x5): 3 * 2*4 * (5*4) + 3*5*4 * 8; map: 3 * 1*4 * (3*3) + 3*9 * 8
    eye, map_ = 3 * 2 * 4 * 20 + 60 * 8, 3 * 4 * 9 + 27 * 8
    assert spec.multiply_adds(spec, LEAVES, OUTPUTS) == eye + map_ + (8 + 8 + 3 + 4 + 6) * OUTPUTS
    recurrent = SPECS["with a memory"]
    past = 3 * 4 * 4 * (2 + 4)  # 3 steps of 4 gates of 4 units, each from 2 inputs and 4 units
    assert recurrent.multiply_adds(recurrent, LEAVES, OUTPUTS) == eye + map_ + past + (8 + 8 + 3 + 4 + 4) * OUTPUTS


# ---- in a stack


def mutated(spec, seed, steps=4):
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        legal = [name for name in spec.operators("node") if "kernel" not in name]
        spec, _ = spec.mutate(str(rng.choice(legal)), rng)
    return spec


def cases():
    for name, spec in SPECS.items():
        yield pytest.param([spec] * 3, id=f"{name}, equal")
        yield pytest.param([spec, mutated(spec, 1), mutated(spec, 2)], id=f"{name}, unequal")
    spec = SPECS["another kind"]
    yield pytest.param([spec.apply("change_activation", activation="ELU")] * 3, id="fading")


@pytest.mark.parametrize("specs", list(cases()))
def test_stack_rows_equal_single_members(specs):
    assert len({spec.stack_key() for spec in specs}) == 1
    members = [spread_(made(spec), seed) for seed, spec in enumerate(specs)]
    advance_unequally(members)
    check_stack(members, made(MultiInputSpec.padded_union(specs)), rows(3, 6))


def test_members_may_have_unequal_latent_widths():
    spec = spec_of(output_activation="Sigmoid")  # which is not 0 where nothing is
    sizes = (7, 4, 9)
    members = [spread_(EvolvableMultiInput(spec, LEAVES, size).double(), size) for size in sizes]
    check_stack(members, EvolvableMultiInput(spec, LEAVES, 9).double(), rows(3, 6))


def test_different_kinds_have_different_stack_keys():
    assert len({spec.stack_key() for spec in SPECS.values()}) == len(SPECS)


# ---- mutations


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_unit_axes_name_every_axis_with_one_width(spec):
    module = made(spec)
    unit_axes, widths = module.unit_axes(), {}
    for name, tensor in module.named_parameters():
        assert len(unit_axes[name]) == tensor.dim(), name
        for group, size in zip(unit_axes[name], tensor.shape, strict=True):
            assert not group or widths.setdefault(group, size) == size
    assert widths["out"] == OUTPUTS
    recurrent = {"4"} if "past" in dict(spec.extractors) and spec is SPECS["with a memory"] else set()
    assert {place: widths[f"extractors.{place}.out"] for place in module.extractors} == {
        place: 4 if place in recurrent else 8 for place in module.extractors
    }


def child_of(parent, operator, arguments, x, seed=0):
    child = EvolvableMultiInput(parent.spec.apply(operator, **arguments), LEAVES, OUTPUTS).double()
    generator = torch.Generator().manual_seed(seed)
    transfer_weights_(child, parent, operator, arguments, states=x, generator=generator)
    return child


GROWING = ("add_layer", "add_node", "add_channel", "add_block", "add_latent_node", "change_activation")


@settings(max_examples=25, deadline=None)
@given(name=st.sampled_from(sorted(SPECS)), seed=st.integers(0, 2**31))
def test_growth_changes_no_output(name, seed):
    module, x, rng = spread_(made(SPECS[name]), seed=seed % 100), rows(20), np.random.default_rng(seed)
    module.eval()
    expected = module(x)
    for _ in range(8):
        if module.spec.is_fading:
            break
        legal = [
            (operator, choice)
            for operator in module.spec.operator_kinds
            for choice in module.spec.choices(operator)
            if operator.endswith(GROWING) or int(choice.get("by", 0)) > 0
        ]
        operator, arguments = legal[rng.integers(len(legal))]
        module = child_of(module, operator, arguments, x, seed)
        torch.testing.assert_close(module(x), expected, rtol=1e-12, atol=1e-12)


def test_growth_in_place_needs_no_states():
    module, x = made(SPECS["every part by itself"]).double(), rows(6)
    before = module(x)
    assert module.add_latent_node(nodes=8) == {"nodes": 8}
    mutate_(module, "body.0.add_node")
    torch.testing.assert_close(module(x), before)
    with pytest.raises(ConfigurationError, match="states=None, but EvolvableMultiInput reads rows of observations"):
        module.remove_latent_node(nodes=8)


def test_a_fade_lasts_through_mutations_of_other_parts_and_is_completed_by_those_of_its_own():
    deep = {**MLP, "hidden_size": [5, 5]}  # of at most two layers
    module = made(spec_of(activation="Tanh", extractors={"body.0": deep, "past": {**MLP, "encoder": "mlp"}}))
    x = rows(6)
    mutate_(module, "past.add_layer", layer=0)
    module.advance_fades_(0.25)
    before = module(x)
    mutate_(module, "body.0.add_node")
    assert module.fade_left() == 0.75
    torch.testing.assert_close(module(x), before)
    with pytest.raises(ConfigurationError, match=r"allowed are none, since it would leave its limits"):
        mutate_(module, "body.0.add_layer")
    assert module.fade_left() == 0.75  # a mutation that is refused changes nothing
    completed = copy.deepcopy(module)
    completed.advance_fades_()
    mutate_(module, "past.add_node")
    torch.testing.assert_close(module(x), completed(x))


@torch.no_grad()
def error(module, x, expected):
    return float((module(x) - expected).square().mean() / expected.var())


@pytest.mark.parametrize(
    "operator", ["remove_latent_node", "eye.remove_channel", "body.0.remove_node", "past.remove_node"]
)
def test_removal_of_what_growth_added_is_nearly_exact(operator):
    # the new units have no consumer, so they are removed first
    module, x = spread_(made(SPECS["with a memory" if "past" in operator else "another kind"])), rows(400)
    expected = module(x)
    add = {"channels": 8} if "channel" in operator else {"nodes": 8}
    add = add if operator.startswith(("remove", "past")) else {"layer": 0, **add}
    grown = child_of(module, operator.replace("remove", "add"), add, x)
    shrunk = child_of(grown, operator, add, x)
    assert shrunk.spec == module.spec
    assert error(shrunk, x, expected) < 1e-6


def test_removal_is_refitted():
    module, x = spread_(made(SPECS["every part by itself"])), rows(400)
    expected = module(x)
    shrunk = child_of(module, "remove_latent_node", {"nodes": 4}, x)
    cut = EvolvableMultiInput(shrunk.spec, LEAVES, OUTPUTS).double()  # the last nodes dropped, nothing refitted
    corners = dict(module.named_parameters())
    with torch.no_grad():
        for name, parameter in cut.named_parameters():
            parameter.copy_(corners[name][tuple(slice(size) for size in parameter.shape)])
    assert error(shrunk, x, expected) < error(cut, x, expected) / 2


def test_removing_a_layer_merges_it():
    spec = SPECS["every part by itself"].apply("body.0.add_layer", layer=0)
    module, x = spread_(made(spec)), rows(400)
    expected = module(x)
    shrunk = child_of(module, "body.0.remove_layer", {"layer": 0}, x)
    fresh = EvolvableMultiInput(shrunk.spec, LEAVES, OUTPUTS).double()
    fresh.load_state_dict(
        {**shrunk.state_dict(), **{k: v for k, v in made(shrunk.spec).state_dict().items() if "extractors.0" in k}}
    )
    assert error(shrunk, x, expected) < error(fresh, x, expected)
