"""Networks supplied by the user: any module, and one that evolves."""

import contextlib
import copy

import gymnasium
import numpy as np
import pytest
import torch
from modules.module_checks import check_stack
from torch import nn

from agilerl_like import (
    PPO,
    HyperparameterConfig,
    Mutations,
    RLParameter,
    TournamentSelection,
    make_vect_envs,
    train_on_policy,
)
from agilerl_like.algorithms import Population
from agilerl_like.errors import CheckpointError, ConfigurationError
from agilerl_like.hpo import Mutation, Offspring, WeightMix
from agilerl_like.modules import EvolvableMLP, MLPSpec
from agilerl_like.networks.custom import CustomSpec
from agilerl_like.networks.network_mutation import NOISE_TOLERANCE

SPACE = gymnasium.spaces.Box(-1.0, 1.0, (4,))
ACTIONS = gymnasium.spaces.Discrete(3)


class Squashed(EvolvableMLP):
    """A user's evolvable network: an MLP that applies tanh to its input."""

    def forward(self, x):
        return super().forward(torch.tanh(x))

    def layer_input(self, name, x):
        return super().layer_input(name, torch.tanh(x))


def sequential(outputs, inputs=4):
    torch_stream = torch.Generator().manual_seed(5)
    net = nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch_stream) * 0.5)
    return net


class WithFactor(EvolvableMLP):
    """A user's evolvable network whose constructor has a further argument."""

    def __init__(self, spec, inputs, num_outputs, scale=1.0):
        super().__init__(spec, inputs, num_outputs)
        self.scale = scale

    def forward(self, x):
        return super().forward(self.scale * x)

    def layer_input(self, name, x):
        return super().layer_input(name, self.scale * x)


class Rebuilt(WithFactor):
    """Passes the further argument on."""

    def rebuild(self, spec):
        return Rebuilt(spec, self.inputs, self.num_outputs, self.scale)


class WithoutSizes(EvolvableMLP):
    """Has its sizes from elsewhere."""

    def __init__(self, hidden_size=(16,)):
        super().__init__(MLPSpec(hidden_size), 4, 3)


def squashed(outputs):
    net = Squashed(MLPSpec((16,)), 4, outputs)
    net.reset_(torch.Generator().manual_seed(0), output_gain=1.0)
    return net


FADES = [{"activation": "Tanh"}, {"layer_norm": True}]
"""Settings with which a new layer fades in."""


def mlp(outputs, **settings):
    net = EvolvableMLP(MLPSpec((16,), **settings), 4, outputs)
    net.reset_(torch.Generator().manual_seed(0), output_gain=1.0)
    return net


def mutated(make, operator, **arguments):
    agent = agent_of(make)
    changed = agent.genome.replace(architecture=agent.architecture.apply(operator, **arguments))
    agent.apply_genome(changed, (Mutation("architecture", operator, arguments),))
    return agent


def agent_of(make=sequential, **kwargs):
    kwargs = {"seed": 1, "num_envs": 2, "learn_step": 16, "batch_size": 8, **kwargs}
    return PPO(SPACE, ACTIONS, actor_network=make(3), critic_network=make(1), **kwargs)


def observations(count=6):
    return np.random.default_rng(0).uniform(-1, 1, (count, 4)).astype(np.float32)


def experiences(agent, steps=8):
    obs = observations(steps * 2).reshape(steps, 2, 4)
    actions, log_probs, _, values = zip(*(agent.get_action(row) for row in obs), strict=True)
    rewards = np.random.default_rng(1).normal(size=(steps, 2))
    dones = np.zeros((steps, 2))
    return list(obs), actions, log_probs, list(rewards), list(dones), values, obs[-1], dones[0]


def test_outputs_are_those_of_the_users_network_for_normalized_observations():
    agent, net = agent_of(normalize_observation=False), sequential(3)
    outputs = net(torch.from_numpy(observations()))
    _, log_prob, _, value = agent.get_action(observations())
    agent.set_training_mode(False)
    action, *_ = agent.get_action(observations())
    assert action.tolist() == outputs.argmax(1).tolist()
    assert log_prob.max() < 0
    np.testing.assert_allclose(value, sequential(1)(torch.from_numpy(observations()))[:, 0].detach(), rtol=1e-5)


def test_stacked_members_learn_as_they_learn_alone():
    population = PPO.population(
        3,
        SPACE,
        ACTIONS,
        actor_network=sequential(3),
        critic_network=sequential(1),
        seed=1,
        num_envs=2,
        learn_step=16,
        batch_size=8,
    )
    assert len(population.cohort.stacks) == 1
    twins = [agent.clone() for agent in population]
    for agent, twin in zip(population, twins, strict=True):
        stuff = experiences(twin.clone())
        agent.learn(stuff)
        twin.learn(stuff)
        for mine, its in zip(agent.network.parameters(), twin.network.parameters(), strict=True):
            torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-6)
    assert not torch.equal(population[0].actor.encoder.net[0].weight, sequential(3)[0].weight)


@pytest.mark.parametrize("make", [sequential, squashed])
def test_a_user_network_is_cloned_saved_and_loaded(make, tmp_path):
    agent = agent_of(make)
    agent.learn(experiences(agent))
    clone = agent.clone()
    agent.save_checkpoint(tmp_path / "agent")
    with pytest.raises(CheckpointError, match="it has networks of the user's own; pass them as actor_network"):
        PPO.load(tmp_path / "agent")
    loaded = PPO.load(tmp_path / "agent", actor_network=make(3), critic_network=make(1))
    other = agent_of(make)
    other.load_checkpoint(tmp_path / "agent")
    for twin in (clone, loaded, other):
        np.testing.assert_array_equal(twin.get_action(observations())[3], agent.get_action(observations())[3])
    stuff = experiences(agent.clone())
    assert agent.learn(stuff) == loaded.learn(stuff)


def test_a_population_is_saved_and_loaded(tmp_path):
    networks = {"actor_network": squashed(3), "critic_network": squashed(1)}
    population = PPO.population(2, SPACE, ACTIONS, seed=1, **networks)
    population.save_checkpoint(tmp_path / "population")
    loaded = Population.load(tmp_path / "population", **networks)
    assert [agent.index for agent in loaded] == [0, 1]


@pytest.mark.parametrize("operator", ["encoder.actor.add_node", "encoder.critic.add_node", "encoder.actor.add_layer"])
def test_growing_an_evolvable_user_network_keeps_its_outputs(operator):
    agent = agent_of(squashed)
    agent.learn(experiences(agent))
    obs = observations()
    agent.set_training_mode(False)
    action, log_prob, _, value = agent.get_action(obs)
    spec, details = agent.architecture.mutate(operator, np.random.default_rng(0))
    done = agent.apply_genome(agent.genome.replace(architecture=spec), (Mutation("architecture", operator, details),))
    assert [change.operator for change in done] == [operator]
    assert agent.architecture == spec
    assert agent.parameter_count > 4 * 16 + 16
    found = agent.get_action(obs)
    np.testing.assert_array_equal(found[0], action)
    np.testing.assert_allclose(found[1], log_prob, atol=1e-5)
    np.testing.assert_allclose(found[3], value, atol=1e-5)


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("settings", FADES)
def test_a_layer_of_a_user_network_fades_in_stacked_as_alone(settings, members):
    agent = mutated(lambda outputs: mlp(outputs, **settings), "encoder.actor.add_layer", layer=0)
    assert agent.architecture.is_fading
    agent.network.advance_fades_(0.25)
    seen = [*observations(4), observations(4)[0]]
    means = agent.network.actor(torch.from_numpy(np.stack(seen))).argmax(-1)
    agent.set_training_mode(False)
    assert agent.get_action(np.stack(seen))[0].tolist() == means.tolist()
    networks = [copy.deepcopy(agent.actor.encoder).double() for _ in range(members)]
    with torch.no_grad():
        for number, network in enumerate(networks):
            for parameter in network.parameters():
                parameter.add_(0.1 * number)
    x = torch.randn(members, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    check_stack(networks, copy.deepcopy(networks[0]), x)


def test_user_networks_learn_while_layers_fade_in():
    env = make_vect_envs("CartPole-v1", num_envs=4)
    population = PPO.population(
        2,
        env.single_observation_space,
        env.single_action_space,
        actor_network=mlp(2, activation="Tanh"),
        critic_network=mlp(1, layer_norm=True),
        num_envs=4,
        seed=1,
        learn_step=32,
        batch_size=16,
        update_epochs=1,
    )
    mutations = Mutations(architecture=1.0, rl_hp=0.0, new_layer_prob=1.0)
    with contextlib.closing(env):
        trained, _ = train_on_policy(
            env, pop=population, max_steps=128, evo_steps=64, eval_loop=1, eval_steps=8,
            selection_strategy=TournamentSelection(), mutation=mutations, verbose=False,
        )  # fmt: skip
    assert any(agent.architecture.is_fading for agent in trained)


def test_a_copy_of_a_grown_user_network_normalises_as_it_does():
    agent = mutated(lambda outputs: mlp(outputs, layer_norm=True), "encoder.actor.add_node", layer=0, nodes=16)
    seen = torch.from_numpy(observations())
    for copied in (agent.clone().actor, copy.deepcopy(agent.actor)):
        torch.testing.assert_close(copied(seen), agent.actor(seen))


def test_an_evolved_user_network_is_loaded_with_its_architecture(tmp_path):
    agent = agent_of(squashed)
    operator = "encoder.actor.add_node"
    spec, details = agent.architecture.mutate(operator, np.random.default_rng(0))
    agent.apply_genome(agent.genome.replace(architecture=spec), (Mutation("architecture", operator, details),))
    agent.save_checkpoint(tmp_path / "agent")
    loaded = PPO.load(tmp_path / "agent", actor_network=squashed(3), critic_network=squashed(1))
    assert loaded.architecture.to_config() == agent.architecture.to_config()
    np.testing.assert_array_equal(loaded.get_action(observations())[3], agent.get_action(observations())[3])


def rebuilt(outputs):
    net = Rebuilt(MLPSpec((16,)), 4, outputs, scale=5.0)
    net.reset_(torch.Generator().manual_seed(0), output_gain=1.0)
    return net


def test_a_rebuild_of_the_class_passes_further_arguments_on(tmp_path):
    seen = torch.from_numpy(observations())
    before = agent_of(rebuilt).network.actor(seen)
    agent = mutated(rebuilt, "encoder.actor.add_node", layer=0, nodes=16)
    torch.testing.assert_close(agent.network.actor(seen), before)
    agent.save_checkpoint(tmp_path / "agent")
    loaded = PPO.load(tmp_path / "agent", actor_network=rebuilt(3), critic_network=rebuilt(1))
    for other in (agent, agent.clone(), loaded):
        assert other.actor.encoder.net.scale == 5.0
        assert torch.equal(other.network.actor(seen), agent.network.actor(seen))


def test_a_constructor_that_a_mutation_cannot_call_is_refused():
    message = (
        r"actor_network=WithFactor evolves, and .* spec, inputs, num_outputs, scale=1\.0, but .* rebuild\(self, spec\)"
    )
    with pytest.raises(ConfigurationError, match=message):
        agent_of(lambda outputs: WithFactor(MLPSpec((16,)), 4, outputs, scale=5.0))
    for module in (WithFactor(MLPSpec((16,)), 4, 3), WithoutSizes()):
        with pytest.raises(ConfigurationError, match=f"module={type(module).__name__} evolves, and its constructor"):
            module.add_node()


def test_fresh_members_of_an_evolved_user_network_keep_the_supplied_weights_and_draw_the_others():
    agent = agent_of(squashed)
    architecture = agent.architecture.apply("encoder.actor.add_node", layer=0, nodes=16)
    change = Mutation("architecture", "encoder.actor.add_node", {"layer": 0, "nodes": 16})
    genome = agent.genome.replace(architecture=architecture)
    parent, _ = agent.make_offspring(Offspring(1, 0, 1, 0, 0, genome, (change,)))
    supplied = agent.actor.encoder.net.linears[0].weight
    fresh = [
        parent.make_offspring(Offspring(2, 0, uid, -1, 0, parent.genome, (), WeightMix()))[0].actor.encoder.net
        for uid in (8, 9, 9)
    ]
    first, second, again = (net.linears[0].weight for net in fresh)
    assert len(first) == len(supplied) + 16
    assert torch.equal(first[:-16], supplied)
    assert torch.equal(second, again)
    assert not torch.equal(first[-16:], second[-16:])


def test_a_removal_from_a_user_network_is_refitted_or_refused():
    agent = agent_of(lambda outputs: squashed(outputs).double().float())
    agent.learn(experiences(agent))
    grow, shrink = "encoder.actor.add_node", "encoder.actor.remove_node"
    genome = agent.genome
    spec = genome.architecture.apply(grow, layer=0, nodes=16)
    agent.apply_genome(genome.replace(architecture=spec), (Mutation("architecture", grow, {"layer": 0, "nodes": 16}),))
    back = spec.apply(shrink, layer=0, nodes=16)
    (done,) = agent.apply_genome(
        agent.genome.replace(architecture=back), (Mutation("architecture", shrink, {"layer": 0, "nodes": 16}),)
    )
    assert done.details["kl"] < 1e-3  # the new units had no effect on the outputs
    assert agent.architecture == back


def test_a_fixed_user_network_gets_noise_and_hyperparameter_mutations():
    ranges = HyperparameterConfig(lr=RLParameter(min=1e-5, max=1e-2))
    agent = agent_of(hp_config=ranges)
    agent.learn(experiences(agent))
    assert agent.architecture.operators("layer") == agent.architecture.operators("node") == ()
    before = agent.actor.encoder.net[0].weight.clone()
    only = {"no_mutation": 0, "architecture": 0, "activation": 0, "rl_hp": 0}
    agent.mutate(Mutations(**{**only, "parameters": 1}), np.random.default_rng(0))
    assert not torch.equal(agent.actor.encoder.net[0].weight, before)
    lr = agent.lr
    agent.mutate(Mutations(**{**only, "parameters": 0, "rl_hp": 1}), np.random.default_rng(0))
    assert agent.lr != lr


def test_user_matrices_get_noise_whatever_their_names():
    class Kernel(nn.Module):
        def __init__(self, outputs):
            super().__init__()
            self.kernel = nn.Parameter(sequential(8)[0].weight[:outputs].T.contiguous())
            self.shift = nn.Parameter(torch.ones(outputs))

        def forward(self, x):
            return x @ self.kernel + self.shift

    agent = agent_of(Kernel)
    noise = Mutation("parameters", "noise", {"sd": 0.5, "kl": 0.01})
    (done,) = agent.apply_genome(agent.genome, (noise,))
    assert done.details["kl"] == pytest.approx(0.01, rel=NOISE_TOLERANCE)
    assert not torch.equal(agent.actor.encoder.net.kernel, Kernel(3).kernel)
    assert torch.equal(agent.actor.encoder.net.shift, Kernel(3).shift)


def test_running_statistics_are_separate_for_each_member():
    def normed(outputs):
        return nn.Sequential(nn.BatchNorm1d(4), *sequential(outputs))

    population = PPO.population(
        2, SPACE, ACTIONS, actor_network=normed(3), critic_network=normed(1), seed=1, learn_step=16, batch_size=8
    )
    population[0].num_envs = population[1].num_envs = 2
    population[0].learn(experiences(population[0].clone()))
    counts = [agent.actor.encoder.net[0].num_batches_tracked.item() for agent in population]
    assert counts[0] > 0
    assert counts[1] == 0


class Again(nn.Module):
    """Uses one of its modules twice under one name."""

    def __init__(self, net):
        super().__init__()
        self.first, self.between, self.second, _, self.last = net

    def forward(self, x):
        return self.last(self.between(self.second(self.between(self.first(x)))))


@pytest.mark.parametrize("between", [nn.PReLU, lambda: nn.LayerNorm(8), lambda: nn.BatchNorm1d(8)])
def test_a_module_may_be_registered_twice(between):
    """Training does not depend on the names under which it is registered."""

    def under_two_names(outputs):
        first, _, last = sequential(outputs)
        shared, second = between(), nn.Linear(8, 8)
        with torch.no_grad():
            second.weight.copy_(torch.eye(8))
            second.bias.zero_()
        return nn.Sequential(first, shared, second, shared, last)

    agents = [agent_of(make) for make in (under_two_names, lambda outputs: Again(under_two_names(outputs)))]
    given = [parameter.detach().clone() for parameter in agents[0].actor.parameters()]
    for agent in agents:
        agent.learn(experiences(agent))
    found, other = ([*agent.actor.parameters()] for agent in agents)
    assert not any(torch.equal(now, before) for now, before in zip(found, given, strict=True))
    assert all(torch.equal(one, another) for one, another in zip(found, other, strict=True))


def test_networks_of_a_user_are_checked_with_observations_on_their_device():
    devices = []

    class Recording(nn.Module):
        def __init__(self, outputs):
            super().__init__()
            self.outputs, self.weight = outputs, nn.Parameter(torch.zeros(4))

        def forward(self, x):
            devices.append((x.device.type, self.weight.device.type))
            return torch.zeros(len(x), self.outputs)

    agent_of(Recording, device="meta")
    assert {*devices} == {("meta", "meta")}


def test_networks_of_a_user_are_moved_to_the_device_on_which_they_are_loaded(tmp_path):
    class Moved(nn.Linear):
        moves = 0

        def _apply(self, fn, recurse=True):
            self.moves += 1
            return super()._apply(fn, recurse)

    agent_of().save_checkpoint(tmp_path / "agent")
    networks = {"actor_network": sequential(3), "critic_network": sequential(1)}
    for net in networks.values():
        net[0].__class__ = Moved
    loaded = PPO.load(tmp_path / "agent", **networks)
    assert [net.encoder.net[0].moves for net in (loaded.actor, loaded.critic)] == [1, 1]


class Scaled(nn.Module):
    """A user's network with a parameter without axes."""

    def __init__(self, outputs):
        super().__init__()
        self.scale, self.net = nn.Parameter(torch.tensor(0.5)), sequential(outputs)

    def forward(self, x):
        return self.scale * self.net(x)


def test_a_parameter_may_be_a_single_number(tmp_path):
    networks = {"actor_network": Scaled(3), "critic_network": Scaled(1)}
    population = PPO.population(2, SPACE, ACTIONS, **networks, seed=1, num_envs=2, learn_step=16, batch_size=8)
    agent, twin = population[0], population[0].clone()
    stuff = experiences(twin.clone())
    agent.learn(stuff)
    twin.learn(stuff)
    net = agent.actor.encoder.net
    assert net.scale.shape == ()
    assert net.scale != 0.5
    torch.testing.assert_close(net.scale, twin.actor.encoder.net.scale)
    agent.save_checkpoint(tmp_path / "agent")
    assert torch.equal(PPO.load(tmp_path / "agent", **networks).actor.encoder.net.scale, net.scale)


def test_two_modules_may_share_a_weight():
    class Tied(nn.Module):
        def __init__(self, outputs):
            super().__init__()
            (self.first, _, self.last), self.second = sequential(outputs), nn.Linear(8, 4)
            self.third = nn.Linear(4, 8, bias=False)
            self.third.weight = self.first.weight

        def forward(self, x):
            return self.last(self.third(torch.tanh(self.second(torch.tanh(self.first(x))))))

    agent = agent_of(Tied)
    agent.learn(experiences(agent))
    net = agent.actor.encoder.net
    assert net.third.weight is net.first.weight
    learner = agent.learner.cohort.stacked.parts[0].stack.module.actor.encoder
    x = torch.from_numpy(observations())
    torch.testing.assert_close(learner(x.unsqueeze(0))[0], net(x))
    assert not torch.equal(net.first.weight, sequential(3)[0].weight)


def frozen(outputs):
    net = sequential(outputs)
    net[0].requires_grad_(False)
    return net


@pytest.mark.parametrize(
    "settings",
    [{}, {"weight_decay": 0.1}, {"weight_decay": 0.1, "optimizer": "adamw"}, {"weight_decay": 0.1, "target_kl": 1e-6}],
    ids=str,
)
def test_parameters_with_requires_grad_false_never_change(settings):
    agent = agent_of(frozen, **settings)
    networks = {"actor_network": frozen(3), "critic_network": frozen(1)}
    population = PPO.population(2, SPACE, ACTIONS, **networks, seed=1, **settings)
    for one in (agent, agent.clone(), agent.clone(index=1), *population):
        one.learn(experiences(one))
        one.mutate(Mutations(no_mutation=0, architecture=0, parameters=1, rl_hp=0), np.random.default_rng(0))
        one.learn(experiences(one))
        one.learner.mix_initial_weights(0.5, 0.2)
        for branch, outputs in ((one.actor, 3), (one.critic, 1)):
            now, given = branch.encoder.net.state_dict(), sequential(outputs).state_dict()
            assert {name for name, tensor in now.items() if not torch.equal(tensor, given[name])} == {
                "2.weight",
                "2.bias",
            }
    judged = agent_of(lambda outputs: sequential(outputs).requires_grad_(outputs > 1))  # by a critic that never learns
    judged.learn(experiences(judged))
    assert not torch.equal(judged.actor.encoder.net[0].weight, sequential(3)[0].weight)


@pytest.mark.parametrize("share_encoders", [False, True])
def test_frozen_parameters_in_an_evolvable_network_are_refused_at_construction(share_encoders):
    def flat(agent):
        return torch.cat([parameter.detach().flatten() for parameter in agent.network.parameters()])

    settings = {"seed": 1, "num_envs": 2, "learn_step": 16, "batch_size": 8, "share_encoders": share_encoders}
    population = PPO.population(2, SPACE, ACTIONS, **settings)
    agent = population[1]
    agent.actor.encoder.requires_grad_(False)
    before = flat(agent)
    for one in (agent, agent.clone()):
        with pytest.raises(ConfigurationError, match=r"requires_grad=False was set for actor\.encoder\..* allowed is"):
            one.learn(experiences(one))
    assert torch.equal(flat(agent), before)
    population[0].learn(experiences(population[0]))
    agent.actor.encoder.requires_grad_(True)
    agent.learn(experiences(agent))
    assert not torch.equal(flat(agent), before)


def test_unfreezing_a_parameter_later_is_refused():
    agent = agent_of(frozen)
    agent.actor.requires_grad_(True)
    with pytest.raises(ConfigurationError, match=r"requires_grad=True was set for actor\.encoder\.net\.0\.bias, actor"):
        agent.learn(experiences(agent))


WRONG = {
    "frozen": (
        {"actor_network": squashed(3), "critic_network": squashed(1).requires_grad_(False)},
        r"critic_network=Squashed evolves, .* requires_grad=False is set for linears.0.bias, linears.0.weight, .*"
        r"; allowed is that in modules that do not evolve",
    ),
    "one alone": ({"actor_network": sequential(3)}, "critic_network=None must be an nn.Module"),
    "no module": ({"actor_network": 3, "critic_network": sequential(1)}, "actor_network=3 must be an nn.Module"),
    "inputs": (
        {"actor_network": sequential(3, inputs=5), "critic_network": sequential(1)},
        "actor_network=Sequential cannot read Box",
    ),
    "outputs": (
        {"actor_network": sequential(2), "critic_network": sequential(1)},
        r"actor_network=Sequential gives \(2, 2\) for 2 observations; allowed is a tensor of shape \(2, 3\)",
    ),
    "values": (
        {"actor_network": sequential(3), "critic_network": sequential(2)},
        r"critic_network=Sequential gives \(2, 2\) .* allowed is a tensor of shape \(2, 1\)",
    ),
    "memory": (
        {"actor_network": sequential(3), "critic_network": sequential(1), "recurrent": True},
        "recurrent=True cannot go with actor_network .* allowed is False; a memory goes behind an encoder of your own",
    ),
    "shared": (
        {"actor_network": sequential(3), "critic_network": sequential(1), "share_encoders": True},
        "share_encoders=True cannot go with actor_network",
    ),
    "common layers": (
        {"actor_network": (common := sequential(1)), "critic_network": nn.Sequential(common)},
        r"critic_network=Sequential has parameters of actor_network \(0\.0\.weight, .*; allowed are modules",
    ),
    "net_config": (
        {"actor_network": sequential(3), "critic_network": sequential(1), "net_config": {"typo": 3}},
        r"net_config={'typo': 3} has no effect beside actor_network and critic_network; leave it out",
    ),
    "critic_config": (
        {"actor_network": sequential(3), "critic_network": sequential(1), "critic_config": {"latent_dim": 8}},
        r"net_config={'critic_config': .* has no effect beside actor_network and critic_network; leave it out",
    ),
}


@pytest.mark.parametrize(("arguments", "message"), WRONG.values(), ids=WRONG)
def test_user_networks_that_do_not_fit_are_refused_at_construction(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        PPO(SPACE, ACTIONS, seed=1, **arguments)


def test_dict_observations_reach_the_network_as_a_dict():
    space = gymnasium.spaces.Dict(
        {"image": gymnasium.spaces.Box(0, 255, (1, 4, 4), np.uint8), "place": gymnasium.spaces.Box(-1, 1, (2,))}
    )

    class Both(nn.Module):
        def __init__(self, outputs):
            super().__init__()
            self.linear = nn.Linear(18, outputs)
            nn.init.constant_(self.linear.weight, 0.1)

        def forward(self, seen):
            return self.linear(torch.cat([seen["image"].flatten(1), seen["place"]], 1))

    agent = PPO(space, ACTIONS, actor_network=Both(3), critic_network=Both(1), seed=1, normalize_observation=False)
    obs = {"image": np.full((5, 1, 4, 4), 51, np.uint8), "place": np.full((5, 2), 0.5, np.float32)}
    value = agent.get_action(obs)[3]
    linear = agent.critic.encoder.net.linear
    expected = linear(torch.tensor([0.2] * 16 + [0.5] * 2)).item()  # 51 / 255
    np.testing.assert_allclose(value, [expected] * 5, rtol=1e-5)


def test_custom_specs_are_equal_only_for_the_same_modules():
    one, other = (CustomSpec.of(sequential(3), sequential(1)) for _ in range(2))
    assert one == one.evolve() != other


class Counting(nn.Module):
    """Stores the graph of its last forward pass, which cannot be copied."""

    def __init__(self, outputs):
        super().__init__()
        self.net, self.last = sequential(outputs), None

    def forward(self, x):
        self.last = self.net(x)
        return self.last


def test_a_clone_has_current_weights_and_the_supplied_other_state():
    agent = agent_of(Counting)
    agent.learn(experiences(agent))
    agent.evaluate_actions(observations(), np.zeros(6, dtype=np.int64))
    assert agent.actor.encoder.net.last.grad_fn is not None
    child = agent.clone(index=5)
    assert child.actor.encoder.net.last is None
    for mine, its in zip(agent.network.parameters(), child.network.parameters(), strict=True):
        assert torch.equal(mine, its)
        assert mine.data_ptr() != its.data_ptr()


def test_the_policy_and_a_deep_copy_have_tensors_of_their_own():
    agent = agent_of()
    before = [(parameter.requires_grad, parameter.data_ptr()) for parameter in agent.network.parameters()]
    policy, copied = agent.policy, copy.deepcopy(agent.actor)
    own = {id(parameter) for parameter in agent.network.parameters()}
    assert own.isdisjoint(id(parameter) for net in (policy, copied) for parameter in net.parameters())
    assert [(parameter.requires_grad, parameter.data_ptr()) for parameter in agent.network.parameters()] == before
    agent.learn(experiences(agent))
    kept = dict(copied.named_parameters())
    for name, parameter in agent.actor.named_parameters():
        assert not torch.equal(parameter, kept[name])


class OneSequence(nn.Module):
    """Reads the rows of a batch as the steps of one sequence, as torch reads `[B, D]`."""

    def __init__(self, outputs):
        super().__init__()
        self.memory, self.head = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, outputs)

    def forward(self, x):
        return self.head(self.memory(x)[0])


class OneStep(OneSequence):
    """Reads each row as a sequence of one step."""

    def forward(self, x):
        return self.head(self.memory(x[:, None])[0][:, 0])


class Noisy(nn.Linear):
    """Has other outputs in each call."""

    def forward(self, x):
        return super().forward(x + torch.randn_like(x))


def test_networks_that_mix_the_rows_of_a_batch_are_refused():
    message = "actor_network=OneSequence mixes the rows of a batch: .* memory is recurrent=True with net_config="
    with pytest.raises(ConfigurationError, match=message):
        PPO(SPACE, ACTIONS, actor_network=OneSequence(3), critic_network=sequential(1))
    with pytest.raises(ConfigurationError, match="critic_network=OneSequence mixes the rows of a batch"):
        PPO(SPACE, ACTIONS, actor_network=sequential(3), critic_network=OneSequence(1))


def test_networks_whose_rows_are_computed_alone_or_whose_outputs_are_random_are_accepted():
    normed = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    for actor in (OneStep(3), normed, Noisy(4, 3), nn.Sequential(nn.Linear(4, 3), nn.Threshold(1e9, 0.0))):
        PPO(SPACE, ACTIONS, actor_network=actor, critic_network=sequential(1))
