"""MLPSpec: what it accepts, and its mutations within limits."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agilerl_like.errors import ConfigurationError
from agilerl_like.modules import MLPSpec
from agilerl_like.modules.layers import ACTIVATIONS, SKIP

NAMES = st.sampled_from(sorted(ACTIVATIONS))


@st.composite
def specs(draw):
    low_nodes, low_layers = draw(st.integers(2, 20)), draw(st.integers(1, 2))
    high_nodes, high_layers = draw(st.integers(low_nodes, 150)), draw(st.integers(low_layers, 4))
    widths = st.integers(low_nodes, high_nodes)
    return MLPSpec(
        hidden_size=tuple(draw(st.lists(widths, min_size=low_layers, max_size=high_layers))),
        activation=draw(NAMES),
        output_activation=draw(NAMES),
        min_hidden_layers=low_layers,
        max_hidden_layers=high_layers,
        min_mlp_nodes=low_nodes,
        max_mlp_nodes=high_nodes,
        layer_norm=draw(st.booleans()),
        output_layernorm=draw(st.booleans()),
        output_vanish=draw(st.booleans()),
        init_layers=draw(st.booleans()),
        noisy=draw(st.booleans()),
        noise_std=draw(st.floats(1e-3, 2.0)),
    )


@given(spec=specs(), seed=st.integers(0, 2**31))
def test_mutations_stay_within_limits(spec, seed):
    rng = np.random.default_rng(seed)
    for _ in range(12):
        legal = [name for kind in ("layer", "node", "activation") for name in spec.operators(kind)]
        if not legal or (spec.fading and rng.random() < 0.5):
            spec = spec.without_fading()
            continue
        child, drawn = spec.mutate(str(rng.choice(legal)), rng, activations=("ReLU", "Tanh", "GELU"))
        assert spec.min_hidden_layers <= len(child.hidden_size) <= spec.max_hidden_layers
        assert all(spec.min_mlp_nodes <= width <= spec.max_mlp_nodes for width in child.hidden_size)
        assert all(type(value) in (int, str) for value in drawn.values())
        assert (child == spec) == (drawn == {})
        spec = child


def test_without_hidden_layers_none_is_added():
    spec = MLPSpec(hidden_size=())
    assert [name for kind in ("layer", "node", "activation") for name in spec.operators(kind)] == ["change_activation"]
    assert spec.apply("change_activation", activation="Tanh") == MLPSpec(hidden_size=(), activation="Tanh")
    assert MLPSpec(hidden_size=(), output_activation="ReLU").apply("change_activation", activation="Tanh").fading == (
        "ReLU",
    )
    assert MLPSpec(hidden_size=(8,), min_mlp_nodes=8).operators("layer") == ("add_layer",)  # the last one stays
    assert spec.stack_key() != MLPSpec().stack_key()


@given(spec=specs(), data=st.data())
def test_operators_change_only_their_field(spec, data):
    def rest(s):
        changing = ("hidden_size", "fading", "activation", "output_activation")
        return {key: value for key, value in s.to_config().items() if key not in changing}

    operators = [name for kind in ("layer", "node") for name in spec.operators(kind)]
    if not operators:
        return
    operator = data.draw(st.sampled_from(operators))
    drawn = data.draw(st.sampled_from(spec.choices(operator)))
    child, at = spec.apply(operator, **drawn), drawn["layer"]
    old = list(spec.hidden_size)
    expected = {
        "add_layer": [*old[: at + 1], old[at], *old[at + 1 :]],
        "remove_layer": old[:at] + old[at + 1 :],
        "add_node": [*old[:at], old[at] + drawn.get("nodes", 0), *old[at + 1 :]],
        "remove_node": [*old[:at], old[at] - drawn.get("nodes", 0), *old[at + 1 :]],
    }
    assert list(child.hidden_size) == expected[operator]
    assert rest(child) == rest(spec)


@given(spec=specs(), seed=st.integers(0, 2**31))
def test_spec_round_trips_through_json(spec, seed):
    rng = np.random.default_rng(seed)
    for operator in ("change_activation", "add_layer"):
        if spec.choices(operator):
            mutated, _ = spec.mutate(operator, rng, activations=tuple(ACTIVATIONS))
            assert MLPSpec.from_config("x", json.loads(json.dumps(mutated.to_config()))) == mutated
    assert MLPSpec.from_config("x", json.loads(json.dumps(spec.to_config()))) == spec


def test_node_steps_stop_at_the_limits():
    spec = MLPSpec(hidden_size=(90,), min_mlp_nodes=80, max_mlp_nodes=120)
    # steps of 16, 32, 64 with 30 to go up and 10 to go down
    assert spec.choices("add_node") == ({"layer": 0, "nodes": 16}, {"layer": 0, "nodes": 30})
    assert spec.choices("remove_node") == ({"layer": 0, "nodes": 10},)
    assert MLPSpec(hidden_size=(16,), min_mlp_nodes=16, max_mlp_nodes=16).operators("node") == ()


def test_layers_after_idempotent_activations_do_not_fade_in():
    # relu(I relu(x)) = relu(x), but tanh(I tanh(x)) is not tanh(x), and a normalisation of relu(x) is not relu(x)
    assert MLPSpec(hidden_size=(16, 32)).apply("add_layer", layer=1).fading == ()
    for spec in (MLPSpec(hidden_size=(16, 32), activation="Tanh"), MLPSpec(hidden_size=(16, 32), layer_norm=True)):
        child = spec.apply("add_layer", layer=0)
        assert child.hidden_size == (16, 16, 32)
        assert child.fading == ("", SKIP, "", "")
        assert child.operators("layer") == child.operators("node") == child.operators("activation") == ()
        assert child.without_fading().fading == ()


def test_output_activation_changes_with_the_hidden_one_if_equal():
    follows = MLPSpec(activation="Tanh", output_activation="Tanh").apply("change_activation", activation="ELU")
    assert (follows.output_activation, follows.fading) == ("ELU", ("Tanh", "Tanh"))
    stays = MLPSpec(activation="Tanh").apply("change_activation", activation="ELU")
    assert (stays.output_activation, stays.fading) == ("Identity", ("Tanh", ""))


def test_change_to_the_only_allowed_activation_changes_nothing():
    spec, rng = MLPSpec(activation="ReLU"), np.random.default_rng(0)
    assert spec.mutate("change_activation", rng, activations=("ReLU",)) == (spec, {})


def test_arguments_are_drawn_uniformly_from_the_legal_ones():
    spec, rng = MLPSpec(hidden_size=(100, 100)), np.random.default_rng(0)
    choices = [(layer, nodes) for layer in (0, 1) for nodes in (16, 32, 64)]
    draws = [tuple(spec.mutate("add_node", rng)[1].values()) for _ in range(3000)]
    # a count is binomial(3000, 1/6): mean 500, deviation 20.4; 5 deviations are a chance of 6e-7 each
    assert sorted(set(draws)) == choices
    assert all(abs(draws.count(choice) - 500) < 5 * 20.4 for choice in choices)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"hiden_size": [64]}, "enc key='hiden_size' is unknown; did you mean 'hidden_size'"),
        ({"hidden_size": 64}, "hidden_size=64 must be a list of integers"),
        ({"hidden_size": [64.0]}, r"hidden_size=\(64.0,\) must be a list of integers"),
        ({"hidden_size": [True]}, r"hidden_size=\(True,\) must be a list of integers"),
        ({"hidden_size": ["a"]}, r"hidden_size=\('a',\) must be a list of integers"),
        ({"hidden_size": [8]}, r"hidden_size entry=8 is outside its range \[16, 500\]"),
        ({"hidden_size": [64] * 4}, r"hidden_size=4 is outside its range \[1, 3\]"),
        ({"activation": "Rulu"}, "activation='Rulu' is unknown; did you mean 'ReLU'"),
        ({"activation": ["ReLU"]}, r"activation=\('ReLU',\) must be a name"),
        ({"activation": {}}, "activation={} must be a name"),
        ({"output_activation": "Soft"}, "output_activation='Soft' is unknown; did you mean 'Soft"),
        (
            {"min_mlp_nodes": 40, "max_mlp_nodes": 30},
            "min_mlp_nodes=40 must be at least 1 and at most max_mlp_nodes=30",
        ),
        ({"min_hidden_layers": 0}, "min_hidden_layers=0 must be at least 1 and at most max_hidden_layers=3"),
        ({"max_mlp_nodes": "500"}, "max_mlp_nodes='500' must be an integer"),
        ({"max_mlp_nodes": 100.5}, "max_mlp_nodes=100.5 must be an integer"),
        ({"layer_norm": "yes"}, "layer_norm='yes' must be True or False"),
        ({"layer_norm": 1}, "layer_norm=1 must be True or False"),
        ({"min_mlp_nodes": 1, "layer_norm": True}, "min_mlp_nodes=1 is too few for layer_norm=True"),
        ({"noise_std": 0.0}, "noise_std=0.0 must be positive and finite"),
        ({"noise_std": float("nan")}, "noise_std=nan must be positive and finite"),
        ({"fading": ["Tanh"]}, "must be empty or have 2 entries"),
        ({"fading": ["Skip", ""]}, "only a layer as wide as the one before can be skipped"),
        ({"hidden_size": [16, 32], "fading": ["", "Skip", ""]}, "only a layer as wide as the one before"),
        ({"fading": ["Tahn", ""]}, "fading='Tahn' is unknown; did you mean 'Tanh'"),
        ([64], r"enc=\[64\] must be a mapping"),
    ],
)
def test_invalid_configs_raise_errors_that_name_the_field(config, message):
    with pytest.raises(ConfigurationError, match=message):
        MLPSpec.from_config("enc", config)


def test_none_means_the_default():
    assert MLPSpec.from_config("enc", {"output_activation": None, "hidden_size": [32]}) == MLPSpec(hidden_size=(32,))


def test_unknown_and_illegal_operators_raise_errors():
    rng = np.random.default_rng(0)
    with pytest.raises(ConfigurationError, match="operator='add_nodes' is unknown; did you mean 'add_node'"):
        MLPSpec().mutate("add_nodes", rng)
    with pytest.raises(ConfigurationError, match="operator='remove_layer' is not legal"):
        MLPSpec().mutate("remove_layer", rng)
    with pytest.raises(ConfigurationError, match="activation_selection entry='Relu' is unknown"):
        MLPSpec().mutate("change_activation", rng, activations=("Relu",))
