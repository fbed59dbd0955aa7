"""Critics with an architecture of their own, which evolves with the actor's or apart from it."""

import json
from itertools import pairwise

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networks.network_examples import BOX, blank, builder, first_of, random_parent, shift_of, states, stream

from agilerl_like import IPPO, PPO
from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo import Mutation
from agilerl_like.learning.optimizer import Adam
from agilerl_like.learning.population_learner import PopulationLearner
from agilerl_like.modules.param_stack import layout
from agilerl_like.networks.architecture import NetworkSpec
from agilerl_like.networks.network_mutation import mutate_network

SPACE = gymnasium.spaces.Box(-1.0, 1.0, (5,))
LARGE = {"encoder_config": {"hidden_size": [256, 256]}, "head_config": {"hidden_size": [64]}, "latent_dim": 128}
SMALL = {"encoder_config": {"hidden_size": [32]}, "head_config": {"hidden_size": [32]}, "latent_dim": 16}
ACTIVATIONS = ("ReLU", "GELU", "Tanh")
APART = {**LARGE, "evolves": "apart"}


def spec_of(critic_config, **net_config):
    return NetworkSpec.from_net_config({**SMALL, **net_config, "critic_config": critic_config})


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def mlp_size(*widths):
    return sum(before * after + after for before, after in pairwise(widths))


@pytest.mark.parametrize("evolves", ["alike", "apart"])
def test_actor_and_critic_have_their_own_sizes(evolves):
    agent = PPO(
        SPACE, gymnasium.spaces.Discrete(3), net_config=SMALL, critic_config={**LARGE, "evolves": evolves}, seed=0
    )
    assert count(agent.actor) == mlp_size(5, 32, 16) + mlp_size(16, 32, 3)
    assert count(agent.critic) == mlp_size(5, 256, 256, 128) + mlp_size(128, 64, 1)
    assert agent.architecture.describe().count("/") >= 1


def test_keys_that_are_not_given_are_those_of_the_actor():
    spec = spec_of({"head_config": {"hidden_size": [128]}}, encoder="simba", encoder_config={"hidden_size": 64})
    assert (spec.critic.encoder, spec.critic.latent_dim) == (spec.encoder, 16)
    assert spec.critic.head.hidden_size == (128,)
    other = spec_of({"encoder": "mlp"}, encoder="simba", encoder_config={"hidden_size": 64})
    assert other.critic.encoder == NetworkSpec().encoder


def test_the_key_simba_beside_another_encoder_is_refused():
    with pytest.raises(ConfigurationError, match=r"^encoder='mlp' contradicts simba=True; allowed is one of them"):
        NetworkSpec.from_net_config({"simba": True, "encoder": "mlp"})
    named = NetworkSpec.from_net_config({"encoder": "simba"})
    assert NetworkSpec.from_net_config({"simba": True, "encoder": "simba"}) == named
    own = NetworkSpec.from_net_config({"simba": True, "critic_config": {"encoder": "mlp"}})
    assert (own.encoder, own.critic.encoder) == (named.encoder, NetworkSpec().encoder)


def test_a_group_names_its_encoder_by_either_key():
    spaces = {"speaker_0": SPACE, "listener_0": SPACE}
    acts = dict.fromkeys(spaces, gymnasium.spaces.Discrete(3))
    kinds = {"MLPSpec": {"encoder": "mlp"}, "SimBaSpec": {"simba": True}}
    for common, own in (kinds.keys(), reversed(kinds.keys())):
        team = IPPO(spaces, acts, net_config={**kinds[common], "speaker": kinds[own]})
        found = [type(team.architecture.of(group).encoder).__name__ for group in ("listener", "speaker")]
        assert found == [common, own]


def test_an_equal_critic_that_evolves_alike_is_the_shared_architecture():
    assert spec_of({"latent_dim": 16}) == NetworkSpec.from_net_config(SMALL)
    assert spec_of({"evolves": "apart"}).critic is not None


def test_a_critic_that_mutations_made_equal_is_loaded_as_a_critic_of_its_own(tmp_path):
    agent = PPO(SPACE, gymnasium.spaces.Discrete(3), net_config=SMALL, critic_config={"latent_dim": 24}, seed=0)
    spec = agent.architecture
    equal = spec.evolve(critic=spec.critic.evolve(latent_dim=16))
    assert equal.critic == NetworkSpec.from_net_config(SMALL)
    assert agent.learner.read_architecture(json.loads(json.dumps(equal.to_config()))) == equal


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"latent": 3}, "critic_config key='latent' is unknown; did you mean 'latent_dim'"),
        ({"evolves": "never"}, "evolves='never'; allowed are alike and apart"),
        ({"memory_config": {"cell": "GRU"}}, "critic_config key='memory_config' is unknown"),
        ({"latent_dim": 9999}, "critic_config: latent_dim=9999"),
        (3, "critic_config=3 must be a mapping"),
        ({"simba": True, "encoder": "mlp"}, "critic_config: encoder='mlp' contradicts simba=True; allowed is one"),
    ],
)
def test_errors_name_the_critic(config, message):
    with pytest.raises(ConfigurationError, match=message):
        spec_of(config)


def test_a_critic_of_its_own_does_not_share_the_encoder():
    with pytest.raises(ConfigurationError, match="share_encoders=True cannot go with a critic_config"):
        PPO(SPACE, gymnasium.spaces.Discrete(3), share_encoders=True, critic_config=LARGE)
    with pytest.raises(ConfigurationError, match="critic_config is given, and net_config has"):
        PPO(SPACE, gymnasium.spaces.Discrete(3), net_config={"critic_config": LARGE}, critic_config=LARGE)


def tensors_of(one, branch):
    weights = {name: tensor for name, tensor in one.network.named_parameters() if name.startswith(branch)}
    moments = {f"moment {name}": tensor for name, tensor in first_of(one).items() if name.startswith(branch)}
    return {**weights, **moments}


def legal(spec):
    return [name for kind in ("layer", "node", "activation") for name in spec.operators(kind)]


@given(seed=st.integers(0, 2**31), recurrent=st.booleans())
@settings(max_examples=25)
def test_apart_a_mutation_of_one_leaves_the_other_equal_to_the_bit(seed, recurrent):
    rng = np.random.default_rng(seed)
    config = {**SMALL, "critic_config": {**SMALL, "latent_dim": 32, "evolves": "apart"}}
    parent = random_parent(builder(BOX), NetworkSpec.from_net_config(config, recurrent=recurrent))
    operators = [name for name in legal(parent.network.spec) if not name.startswith("memory")]
    operator = str(rng.choice(operators))
    _, drawn = parent.network.spec.mutate(operator, rng, activations=ACTIVATIONS)
    child = mutate_network(parent, operator, drawn, stream(seed))
    other, own = ("actor", "critic") if operator.startswith("critic.") else ("critic", "actor")
    before, after = tensors_of(parent, other), tensors_of(child, other)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    if "refused" not in child.arguments:
        its = child.network.spec.critic if own == "critic" else child.network.spec
        assert its != (parent.network.spec.critic if own == "critic" else parent.network.spec)
    if "remove" not in operator and "activation" not in operator:
        kl, error = shift_of(parent, child.network)
        assert kl < 1e-12
        assert error < 1e-6


@given(seed=st.integers(0, 2**31))
@settings(max_examples=15)
def test_alike_a_mutation_changes_both_by_the_same(seed):
    rng = np.random.default_rng(seed)
    parent = random_parent(builder(BOX), spec_of({**SMALL, "encoder_config": {"hidden_size": [64, 64]}}))
    spec = parent.network.spec
    operator = str(rng.choice(legal(spec)))
    after, drawn = spec.mutate(operator, rng, activations=ACTIVATIONS)
    child = mutate_network(parent, operator, drawn, stream(seed))
    if "refused" not in child.arguments and operator.startswith("add"):
        assert child.network.spec.critic.latent_dim - spec.critic.latent_dim == after.latent_dim - spec.latent_dim
    if operator.endswith("add_node"):
        part = operator.partition(".")[0]
        grown = [
            sum(getattr(new, part).hidden_size) - sum(getattr(old, part).hidden_size)
            for new, old in ((after, spec), (after.critic, spec.critic))
        ]
        assert grown == [drawn["nodes"]] * 2
    if "remove" not in operator and "activation" not in operator:
        kl, error = shift_of(parent, child.network)
        assert kl < 1e-12
        assert error < 1e-6


def test_alike_the_legal_mutations_are_those_that_both_allow():
    config = {**SMALL, "critic_config": {"encoder_config": {"hidden_size": [32], "max_mlp_nodes": 40}}}
    spec = NetworkSpec.from_net_config(config)
    assert {choice["nodes"] for choice in spec.choices("encoder.add_node")} == {8} & {
        choice["nodes"] for choice in spec.evolve(critic=None).choices("encoder.add_node")
    }


@pytest.mark.parametrize("evolves", ["alike", "apart"])
def test_an_architecture_survives_json(evolves):
    rng = np.random.default_rng(1)
    spec = spec_of({**LARGE, "encoder": "simba", "encoder_config": {}, "evolves": evolves})
    for _ in range(5):
        operators = legal(spec.without_fading())
        spec, _ = spec.without_fading().mutate(str(rng.choice(operators)), rng, activations=ACTIVATIONS)
    config = json.loads(json.dumps(spec.to_config()))
    assert NetworkSpec.from_net_config(config) == spec


def test_members_with_unlike_critics_compute_as_alone():
    configs = [{**SMALL, "critic_config": {**SMALL, "latent_dim": width, "evolves": "apart"}} for width in (8, 32, 16)]
    configs[1]["critic_config"]["encoder_config"] = {"hidden_size": [48, 24]}
    networks = [blank(NetworkSpec.from_net_config(config), BOX) for config in configs]
    for seed, network in enumerate(networks):
        network.reset_(stream(seed))
    x = torch.stack([states(7, torch.float32, seed=seed) for seed in range(3)])
    alone = [network.evaluate(rows) for network, rows in zip(networks, x, strict=True)]
    moments = [Adam.fresh(torch.zeros(1, layout(network)[-1].stop)) for network in networks]
    learner = PopulationLearner(networks, moments, build=lambda _, spec: blank(spec, BOX), batch_size=1.0)
    order = torch.tensor([place for places in learner.stacks for place in places])
    outputs, values = learner.stacked.over(lambda network, rows: network.evaluate(rows), x[order])
    for row, place in enumerate(order.tolist()):
        torch.testing.assert_close(outputs[row], alone[place][0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(values[row], alone[place][1], rtol=1e-5, atol=1e-6)


def test_saved_cloned_and_loaded_agents_are_equal(tmp_path):
    agent = PPO(SPACE, gymnasium.spaces.Discrete(3), net_config=SMALL, critic_config=APART, seed=0)
    rng = np.random.default_rng(0)
    for operator in ("critic.encoder.add_node", "head.add_node", "critic.add_latent_node", "critic.change_activation"):
        if agent.architecture.choices(operator):
            _, drawn = agent.architecture.mutate(operator, rng, activations=ACTIVATIONS)
            agent.learner.mutate(Mutation("architecture", operator, drawn))
    agent.set_training_mode(False)
    agent.save_checkpoint(tmp_path / "agent")
    x = np.random.default_rng(1).normal(size=(9, 5))
    for other in (PPO.load(tmp_path / "agent"), agent.clone()):
        assert other.architecture == agent.architecture
        other.set_training_mode(False)
        for own, its in zip(agent.get_action(x)[1:], other.get_action(x)[1:], strict=True):
            assert np.array_equal(own, its)


def test_groups_have_critics_of_their_own():
    spaces = {"speaker_0": SPACE, "listener_0": SPACE}
    acts = dict.fromkeys(spaces, gymnasium.spaces.Discrete(3))
    team = IPPO(spaces, acts, net_config={**SMALL, "speaker": {"critic_config": LARGE}})
    assert count(team.critics["speaker"]) == mlp_size(5, 256, 256, 128) + mlp_size(128, 64, 1)
    assert count(team.critics["listener"]) == mlp_size(5, 32, 16) + mlp_size(16, 32, 1)
    everywhere = IPPO(spaces, acts, net_config=SMALL, critic_config=LARGE)
    assert {count(critic) for critic in everywhere.critics.values()} == {count(team.critics["speaker"])}
