"""Actor and critic: AgileRL's net_config, legal specs under any mutations, and what the pair computes."""

import json
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from network_examples import BOX, builder, outputs_of, random_parent, states, stream

from agilerl_like.envs.spaces import ObservationEncoder
from agilerl_like.errors import ConfigurationError
from agilerl_like.modules import MLPSpec, ParamStack
from agilerl_like.modules.layers import ACTIVATIONS
from agilerl_like.modules.spec import Spec
from agilerl_like.networks.actor_critic import ActorCritic, NoNorm
from agilerl_like.networks.architecture import NetworkSpec
from agilerl_like.networks.multi_agent_spec import MultiAgentSpec
from agilerl_like.networks.network_mutation import mutate_network

NAMES = st.sampled_from(sorted(ACTIVATIONS))
PART = st.fixed_dictionaries(
    {},
    optional={
        "hidden_size": st.lists(st.integers(16, 100), min_size=1, max_size=3),
        "activation": NAMES,
        "output_activation": NAMES,
        "max_mlp_nodes": st.integers(100, 200),
        "layer_norm": st.booleans(),
        "output_vanish": st.booleans(),
        "noisy": st.booleans(),
    },
)
NET_CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "encoder_config": PART,
        "head_config": PART,
        "latent_dim": st.integers(16, 64),
        "min_latent_dim": st.integers(2, 16),
        "max_latent_dim": st.integers(64, 90),
    },
)


@given(config=NET_CONFIGS, seed=st.integers(0, 2**31))
def test_mutated_specs_stay_legal_and_round_trip_through_json(config, seed):
    spec, rng = NetworkSpec.from_net_config(config), np.random.default_rng(seed)
    for _ in range(10):
        legal = [name for kind in ("layer", "node", "activation") for name in spec.operators(kind)]
        if not legal or (spec.is_fading and rng.random() < 0.5):
            spec = spec.without_fading()
            continue
        spec, _ = spec.mutate(str(rng.choice(legal)), rng, activations=("ReLU", "ELU", "GELU"))
        assert spec.min_latent_dim <= spec.latent_dim <= spec.max_latent_dim
        for part in (spec.encoder, spec.head):
            assert part.min_hidden_layers <= len(part.hidden_size) <= part.max_hidden_layers
            assert all(part.min_mlp_nodes <= width <= part.max_mlp_nodes for width in part.hidden_size)
        assert NetworkSpec.from_net_config(json.loads(json.dumps(spec.to_config()))) == spec
        assert hash(NetworkSpec.from_net_config(spec.to_config())) == hash(spec)


def test_the_encoders_output_activation_defaults_to_its_hidden_one():
    spec = NetworkSpec.from_net_config({"encoder_config": {"activation": "Tanh"}})
    assert (spec.encoder.output_activation, spec.head.output_activation) == ("Tanh", "Identity")
    spec = NetworkSpec.from_net_config({"encoder_config": {"activation": "Tanh", "output_activation": None}})
    assert spec.encoder.output_activation == "Tanh"
    spec = NetworkSpec.from_net_config({"encoder_config": {"output_activation": "Identity"}})
    assert spec.encoder.output_activation == "Identity"
    assert NetworkSpec.from_net_config(None) == NetworkSpec.from_net_config({"encoder_config": None}) == NetworkSpec()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"encodr": {}}, "net_config key='encodr' is unknown; did you mean 'encoder'"),
        ({"encoder_config": {"hidden": [8]}}, "encoder_config key='hidden' is unknown; did you mean 'hidden_size'"),
        ({"head_config": {"activation": "relu"}}, "head_config: activation='relu' is unknown; did you mean 'ReLU'"),
        ({"encoder_config": [64]}, r"encoder_config=\[64\] must be a mapping"),
        ({"head_config": 64}, "head_config=64 must be a mapping"),
        ("big", "net_config='big' must be a mapping"),
        ({"latent_dim": 4}, r"latent_dim=4 is outside its range \[8, 128\]"),
        ({"memory_config": {"hidden_state_size": 32}}, "memory_config=.* has no meaning without recurrent=True"),
        ({"latent_dim": 32.5}, "latent_dim=32.5 must be an integer"),
        ({"min_latent_dim": 0}, "min_latent_dim=0 must be at least 1 and at most max_latent_dim=128"),
        ({"min_latent_dim": 200}, "min_latent_dim=200 must be at least 1 and at most max_latent_dim=128"),
        ({"min_latent_dim": 1, "encoder_config": {"output_layernorm": True}}, "min_latent_dim=1 is too few"),
    ],
)
def test_an_invalid_net_config_is_refused_by_key(config, message):
    with pytest.raises(ConfigurationError, match=message):
        NetworkSpec.from_net_config(config)


def test_an_activation_can_be_reached_from_a_pair_of_different_ones():
    # encoder ReLU, head Tanh: a change to ReLU changes only the head, and only the head blends
    spec = NetworkSpec.from_net_config({"head_config": {"activation": "Tanh"}})
    assert {"activation": "ReLU"} in spec.choices("change_activation")
    child = spec.apply("change_activation", activation="ReLU")
    assert (child.encoder.fading, child.head.fading) == ((), ("Tanh", ""))
    assert {"activation": "ReLU"} not in child.without_fading().choices("change_activation")


def test_an_unknown_operator_is_refused_with_near_names():
    with pytest.raises(
        ConfigurationError, match=r"operator='encoder.add_nod' is unknown; did you mean 'encoder.add_node'"
    ):
        NetworkSpec().apply("encoder.add_nod", layer=0, nodes=16)
    with pytest.raises(ConfigurationError, match="operator='add_latent' is unknown"):
        NetworkSpec().mutate("add_latent", np.random.default_rng(0))


def test_describe_lists_all_widths_and_activations():
    config = {"encoder_config": {"hidden_size": [32, 16]}, "latent_dim": 24}
    assert NetworkSpec.from_net_config(config).describe() == "32-16 | 24 | 64 ReLU"
    config["head_config"] = {"activation": "Tanh"}
    assert NetworkSpec.from_net_config(config).describe() == "32-16 | 24 | 64 ReLU/Tanh"
    assert NetworkSpec.from_net_config(config).legend() == "encoder | latent | head activation"
    recurrent = NetworkSpec.from_net_config(config, recurrent=True)
    assert recurrent.legend() == "encoder | latent | memory | head activation"
    assert recurrent.describe().count(" | ") == 3
    assert MultiAgentSpec.by_group({"a": recurrent, "b": recurrent}).legend() == f"group {recurrent.legend()}"


@pytest.mark.parametrize(
    ("encoder", "head", "description", "legend"),
    [
        ({"output_activation": "Identity"}, {"activation": "Tanh"}, "8", "latent"),
        ({"activation": "ELU"}, {}, "8 ELU", "latent activation"),  # the latent layer's
        ({"output_activation": "Identity"}, {"output_activation": "Tanh"}, "8 Tanh", "latent activation"),
        ({"hidden_size": [16], "activation": "ELU"}, {}, "16 | 8 ELU", "encoder | latent activation"),
    ],
)
def test_describe_lists_no_activation_of_layers_that_are_not_there(encoder, head, description, legend):
    parts = {"encoder_config": {"hidden_size": []} | encoder, "head_config": {"hidden_size": []} | head}
    spec = NetworkSpec.from_net_config({**parts, "latent_dim": 8})
    assert (spec.describe(), spec.legend()) == (description, legend)


# -- the pair


@pytest.mark.parametrize("share", [False, True])
def test_evaluate_returns_policy_outputs_and_value(share):
    network = random_parent(builder(BOX, share=share), NetworkSpec()).network
    network.value_norm.update_(5 * states(30)[:, :1] + 3, torch.ones(30, dtype=torch.float64))
    x = states(16)
    critic_encoder = network.actor.encoder if share else network.critic.encoder
    policy = network.actor.head(network.actor.encoder(x))
    value = network.critic.head(critic_encoder(x))[:, 0]
    torch.testing.assert_close(outputs_of(network, x), torch.cat([policy, value.unsqueeze(1)], 1))
    # in the environment's units: times the standard deviation of the returns, plus their mean
    seen = 5 * states(30)[:, 0] + 3
    units = value * (seen.var(unbiased=False) + 1e-8).sqrt() + seen.mean()
    torch.testing.assert_close(network.value(x), units)


def test_a_shared_encoder_is_one_module_and_counted_once():
    apart, shared = (builder(share=share)(NetworkSpec()) for share in (False, True))
    encoder = sum(p.numel() for p in apart.actor.encoder.parameters())
    count = [sum(p.numel() for p in network.parameters()) for network in (apart, shared)]
    assert count[0] - count[1] == encoder


def test_the_actors_parameters_come_first():
    # separate gradient norms of actor and critic rely on this order
    names = [name for name, _ in builder(BOX)(NetworkSpec()).named_parameters()]
    assert names == sorted(names, key=lambda name: not name.startswith("actor."))


def test_the_value_head_has_no_output_activation_or_normalization():
    config = {"head_config": {"output_activation": "Tanh", "activation": "Tanh", "output_layernorm": True}}
    build = builder()
    network = random_parent(build, NetworkSpec.from_net_config(config)).network
    hidden = network.critic.head.layer_input("linears.1", network.critic.encoder(states(16)))
    raw = network.critic.head.linear(1)(hidden)
    torch.testing.assert_close(network.critic(states(16)), raw)
    assert float(network.actor(states(16)).abs().max().detach()) <= 1.0
    assert network.critic.head.spec.output_activation == "Identity"


def test_the_policys_output_activation_may_blend_while_the_value_has_none():
    config = {"head_config": {"output_activation": "Tanh", "activation": "Tanh"}}
    build = builder()
    parent = random_parent(build, NetworkSpec.from_net_config(config))
    child = mutate_network(parent, "change_activation", {"activation": "ELU"}, stream()).network
    x = states(16)
    torch.testing.assert_close(outputs_of(child, x), outputs_of(parent.network, x), rtol=0, atol=1e-12)
    child.advance_fades_(1.0)
    assert child.fade_left() == 0.0
    before = outputs_of(child, x)
    child.finish_fading_()
    assert torch.equal(outputs_of(child, x), before)
    assert child.spec.is_fading is False
    assert child.actor.head.spec.fading == child.critic.head.spec.fading == ()


def test_a_new_policy_is_near_uniform_unless_configured_otherwise():
    x = states(256, torch.float32)
    for vanish, low, high in ((True, 0.0, 0.05), (False, 0.1, 10.0)):
        network = builder(dtype=torch.float32)(NetworkSpec.from_net_config({"head_config": {"output_vanish": vanish}}))
        network.reset_(stream())
        assert low <= float(network.actor(x).detach().std()) <= high


@pytest.mark.parametrize("share", [False, True])
def test_stacked_actor_critics_compute_what_each_computes_alone(share):
    build = builder(BOX, share=share)
    networks = []
    for seed in range(3):
        network = random_parent(build, NetworkSpec()).network
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(0.1 * seed)
        networks.append(network)
    x = states(3 * 16).view(3, 16, 4)
    alone = torch.stack([outputs_of(network, x[i]) for i, network in enumerate(networks)])
    torch.testing.assert_close(outputs_of(ParamStack.of(networks).module, x), alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("space", "normalised"),
    [
        (gymnasium.spaces.Box(0, 255, (3,), np.uint8), True),
        (gymnasium.spaces.Discrete(5, start=1), False),
        (gymnasium.spaces.MultiBinary(4), False),
    ],
)
def test_vectors_are_normalized_and_one_hots_are_not(space, normalised):
    switches = {"share_encoders": False, "normalize_value": False}
    network = ActorCritic(NetworkSpec(), ObservationEncoder(space), BOX, normalize_observation=True, **switches)
    assert isinstance(network.observation_norm, NoNorm) != normalised
    assert isinstance(network.value_norm, NoNorm)
    off = ActorCritic(NetworkSpec(), ObservationEncoder(space), BOX, normalize_observation=False, **switches)
    assert isinstance(off.observation_norm, NoNorm)


def test_defaults_are_defined_in_one_place():
    assert NetworkSpec().encoder == MLPSpec(output_activation=MLPSpec.activation)
    assert NetworkSpec().head == MLPSpec()


@given(seed=st.integers(0, 2**31))
@settings(max_examples=15)
def test_a_mutated_network_is_rebuilt_from_json_and_a_state_dict(seed):
    rng, config = np.random.default_rng(seed), {"hidden_size": [16], "activation": "Tanh", "layer_norm": True}
    build = builder(BOX)
    parent = random_parent(build, NetworkSpec.from_net_config({"encoder_config": config, "head_config": config}))
    for _ in range(4):
        spec = parent.network.spec
        legal = [name for kind in ("layer", "node", "activation") for name in spec.operators(kind)]
        if not legal:
            break
        operator = str(rng.choice(legal))
        _, drawn = spec.mutate(operator, rng, activations=("ReLU", "GELU"))
        child = mutate_network(parent, operator, drawn, stream(seed))
        child.network.advance_fades_(0.3)
        parent = replace(parent, network=child.network, moments=child.moments)
    twin = build(NetworkSpec.from_net_config(json.loads(json.dumps(parent.network.spec.to_config()))))
    twin.load_state_dict(parent.network.state_dict())
    x = states(16, seed=3)
    assert torch.equal(outputs_of(twin, x), outputs_of(parent.network, x))
    assert twin.spec == parent.network.spec


def facts(network):
    """Everything that describes a network except parameter values."""

    def said_of(one):
        plain = {key: value for key, value in vars(one).items() if isinstance(value, bool | int | float | str | Spec)}
        return {key: value for key, value in plain.items() if value != getattr(type(one), key, None)}

    modules = [(name, type(one), said_of(one)) for name, one in network.named_modules(remove_duplicate=False)]
    tensors = [(name, x.shape, x.dtype) for name, x in network.state_dict(keep_vars=True).items()]
    learned = [(name, x.requires_grad) for name, x in network.named_parameters()]
    return modules, tensors, learned


@given(recurrent=st.booleans(), share=st.booleans(), normed=st.booleans(), seed=st.integers(0, 2**31))
@settings(max_examples=15)
def test_a_rebuilt_network_equals_a_newly_built_one(recurrent, share, normed, seed):
    rng = np.random.default_rng(seed)
    part = {"hidden_size": [16], "activation": "Tanh", "layer_norm": normed, "output_activation": "Tanh"}
    config = {"encoder_config": part, "head_config": part, "latent_dim": 8}
    build = builder(BOX, share=share)
    network = build(NetworkSpec.from_net_config(config, recurrent=recurrent)).train(bool(rng.integers(2)))
    for _ in range(6):
        spec = network.spec.without_fading()
        legal = [name for kind in ("layer", "node", "activation") for name in spec.operators(kind)]
        spec, _ = spec.mutate(str(rng.choice(legal)), rng, activations=("ReLU", "Tanh", "GELU"))
        network.finish_fading_()
        before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
        rebuild = network.rebuild(spec)
        assert facts(rebuild) == facts(build(spec).train(network.training))
        buffers = {id(buffer) for buffer in network.buffers()}
        assert not any(id(module) in set(map(id, network.modules())) for module in rebuild.modules())
        assert not any(id(buffer) in buffers for buffer in rebuild.buffers())
        assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
        network = rebuild
