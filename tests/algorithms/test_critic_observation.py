"""Critics that observe what the policy does not."""

from dataclasses import replace
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from training.tensor_envs import Beads

from agilerl_like import (
    PPO,
    ConfigurationError,
    Population,
    evaluate,
    export_trajectories,
    make_vect_envs,
    train_on_policy,
)
from agilerl_like.config import Config, build
from agilerl_like.envs import PROBES, VecEnvAdapter
from agilerl_like.envs.array_backend import NumpyBackend, TorchBackend
from agilerl_like.envs.critic_observation import AsymmetricEncoder
from agilerl_like.envs.probe_envs import ExpectedValue
from agilerl_like.hpo import Mutation, Mutations, TournamentSelection
from agilerl_like.training.collector import Collector, PhaseTimer
from agilerl_like.training.probe import solve

IMAGE = Box(0, 255, (1, 8, 8), np.uint8)
SPACE = Dict(
    camera=IMAGE, depth=Box(0.0, 1.0, (1,)), gear=Discrete(3), position=Box(-2.0, 2.0, (3,)), state=Box(-1.0, 1.0, (2,))
)
QUIET = {
    "verbose": False,
    "selection_strategy": TournamentSelection(),
    "mutation": Mutations(architecture=1.0, parameters=1.0),
    "evo_steps": 64,
}
SMALL = {"head_config": {"hidden_size": [16]}, "latent_dim": 16}


def agent_of(space=SPACE, critic="state", **kwargs):
    settings = {"seed": 0, "net_config": SMALL, "num_envs": 2, "learn_step": 16, "batch_size": 8, **kwargs}
    return PPO(space, Discrete(3), critic_observation=critic, **settings)


def sample(space, count, seed=0):
    space.seed(seed)
    return gymnasium.vector.utils.concatenate(
        space,
        [space.sample() for _ in range(count)],
        gymnasium.vector.utils.create_empty_array(space, count),
    )


# -- encoding


@pytest.mark.parametrize(
    ("names", "of_policy", "of_critic"),
    [
        (("state",), ["camera", "depth", "gear", "position"], [""]),
        (
            ("policy", "state"),
            ["camera", "depth", "gear", "position"],
            ["camera", "depth", "gear", "position", "state"],
        ),
        (("camera", "depth", "gear", "state"), [""], ["camera", "depth", "gear", "state"]),
        (("depth", "gear", "position", "state"), [""], ["depth", "gear", "position", "state"]),
    ],
)
@pytest.mark.parametrize("backend", [NumpyBackend(), TorchBackend(torch.device("cpu"))], ids=["numpy", "torch"])
def test_a_row_has_the_part_of_the_policy_and_that_of_the_critic(names, of_policy, of_critic, backend):
    encoding = AsymmetricEncoder(SPACE, names)
    seen = sample(SPACE, 5)
    assert [leaf.name for leaf in encoding.policy.leaves] == of_policy
    assert [leaf.name for leaf in encoding.critic.leaves] == of_critic
    given = seen if isinstance(backend, NumpyBackend) else {key: torch.from_numpy(x) for key, x in seen.items()}
    rows = backend.make_encode_fn(encoding)(given)
    assert rows.shape == (5, encoding.size)
    assert rows.dtype is encoding.dtype
    for part, its_rows in zip(encoding.parts, (encoding.policy_rows(rows), encoding.critic_rows(rows)), strict=True):
        own = torch.from_numpy(part.encode(seen))
        assert torch.equal(its_rows, own)
        assert torch.equal(backend.make_encode_fn(part)(given), own)
        assert torch.equal(part.float_columns(its_rows), part.float_columns(own))
    own = torch.from_numpy(encoding.policy.encode(seen))
    assert encoding.policy_rows(own) is own
    assert len(encoding.random_rows(7, torch.Generator())) == 7


def test_a_single_entry_is_read_with_and_without_its_key():
    encoding = AsymmetricEncoder(Dict(policy=Box(-1, 1, (2,)), critic=Box(-1, 1, (3,))), ("critic",))
    x = np.float32([[0.5, 0.25]])
    for given in (x, {"policy": x}, {"policy": x, "critic": np.zeros((1, 3))}):
        assert np.array_equal(encoding.policy.encode(given), x)


@pytest.mark.parametrize("keys", [("policy",), ("critic", "policy"), ("left", "right")])
def test_a_dict_with_the_keys_of_the_whole_observation_is_read_with_and_without_its_key(keys):
    own = {key: np.float32([[number]]) for number, key in enumerate(keys)}
    space = Dict({key: Box(-1, 1, (1,)) for key in keys})
    encoding = AsymmetricEncoder(Dict(policy=space, critic=Box(-1, 1, (3,))), ("critic",))
    for given in (own, {"policy": own}, {"policy": own, "critic": np.zeros((1, 3), np.float32)}):
        assert encoding.policy.encode(given).tolist() == [[*range(len(keys))]]


@pytest.mark.parametrize(
    ("space", "names", "message"),
    [
        (
            Box(-1, 1, (2,)),
            "state",
            "critic_observation='state' needs observations with such a key.*allowed is 'policy'",
        ),
        (SPACE, "stat", "critic_observation='stat' is unknown; did you mean 'state'"),
        (SPACE, ["state", "state"], "distinct names"),
        (SPACE, [], "at least one"),
        (Dict(state=Box(-1, 1, (2,))), "state", "leaves no observation for the policy"),
    ],
)
def test_errors(space, names, message):
    with pytest.raises(ConfigurationError, match=message):
        agent_of(space, names, net_config=None)


def test_shared_encoders_are_refused():
    with pytest.raises(ConfigurationError, match="share_encoders=True and critic_observation='state'"):
        agent_of(share_encoders=True)


# -- learning


def test_the_probe_is_solved_with_the_state_and_not_without():
    probe = PROBES["AsymmetricValue"]
    record = solve(probe)
    assert record.solved
    assert [answer.found[0] for answer in record.answers] == pytest.approx([-1, 1], abs=0.1)
    blind = replace(probe, make=partial(without_state, probe.make), values=(), critic_observation="policy")
    record = solve(replace(blind, values=(ExpectedValue((0.0,), 0.0),)))
    assert abs(record.answers[0].found[0]) < 0.4  # the mean of both rewards


def without_state(make):
    env = make()
    own = env.observation_space["policy"]
    return gymnasium.wrappers.TransformObservation(env, lambda observation: observation["policy"], own)


def test_a_non_finite_entry_is_named():
    agent, observation = agent_of(), sample(SPACE, 4)
    observation["position"][2, 1] = np.nan
    with pytest.raises(ConfigurationError, match=r"^observation\.position=\[[-0-9.]+, nan, [-0-9.]+\] is not finite"):
        agent.predict(observation)
    whole = agent.learner.rollout_encoding
    assert whole.float_titles() == [
        *["observation.depth"], *["observation.gear"] * 3, *["observation.position"] * 3, *["observation.state"] * 2
    ]  # fmt: skip


def test_the_policy_does_not_depend_on_the_state():
    agent = agent_of(net_config=None)
    rows = agent.preprocess_observation(sample(SPACE, 4)).clone()
    encoding = agent.learner.rollout_encoding
    own, state = encoding.policy_rows(rows).clone(), encoding.critic_rows(rows)
    joined = encoding.join([own, state], torch)
    changed = encoding.join([own, state + 5], torch)
    (outputs, values), (others, moved) = agent.network.evaluate(joined), agent.network.evaluate(changed)
    assert torch.equal(outputs, others)
    assert not torch.equal(values, moved)


def test_the_policys_gradient_by_the_state_is_zero_and_the_values_is_not():
    agent = agent_of(Dict(policy=Box(-1, 1, (2,)), critic=Box(-1, 1, (3,))), "critic", net_config=None)
    rows = torch.randn(4, 5, requires_grad=True)
    outputs, values = agent.network.evaluate(rows)
    of_policy, of_value = (torch.autograd.grad(x.sum(), rows, retain_graph=True)[0] for x in (outputs, values))
    assert torch.equal(of_policy[:, 2:], torch.zeros(4, 3))
    assert torch.equal(of_value[:, :2], torch.zeros(4, 2))
    assert of_policy[:, :2].abs().min() > 0
    assert of_value[:, 2:].abs().min() > 0


def weights(agent):
    return torch.cat([tensor.flatten().double() for tensor in agent.network.state_dict().values()])


class Hidden(gymnasium.Env):
    """Shows a random number to the policy, and the sum of the rewards to come to the critic."""

    observation_space = Dict(policy=Box(-1, 1, (2,)), critic=Box(-9, 9, (1,)))
    action_space = Discrete(2)

    def _observe(self):
        return {
            "policy": self.np_random.uniform(-1, 1, 2).astype(np.float32),
            "critic": np.float32([self.goal * (5 - self.count)]),
        }

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count, self.goal = 0, self.np_random.choice([-1.0, 1.0])
        return self._observe(), {}

    def step(self, action):
        self.count += 1
        return self._observe(), float(self.goal), False, self.count == 5, {}


def trained(members=2, steps=256, tmp=None, **kwargs):
    env = make_vect_envs(Hidden, num_envs=2)
    population = PPO.population(
        members,
        env.single_observation_space,
        env.single_action_space,
        **{"seed": 0, "num_envs": 2, "learn_step": 32, "batch_size": 16, "critic_observation": "critic", **kwargs},
    )
    arguments = {} if tmp is None else {"run_dir": tmp, "checkpoint": 64}
    found, _ = train_on_policy(env, "Hidden", "PPO", population, max_steps=steps, **QUIET, **arguments)
    return found


@pytest.mark.parametrize("kind", [{}, {"recurrent": True}, {"critic_config": {"evolves": "apart", "latent_dim": 32}}])
def test_saved_loaded_and_cloned_agents_act_without_the_critics_observation(kind, tmp_path):
    agent = trained(**kind)[0]
    assert agent.critic_observation == "critic"
    own = np.random.default_rng(0).uniform(-1, 1, (6, 2)).astype(np.float32)
    wanted = agent.predict(own, deterministic=True)[0]
    whole = {"policy": own, "critic": np.full((6, 1), 7, np.float32)}
    assert np.array_equal(agent.predict(whole, deterministic=True)[0], wanted)
    agent.save_checkpoint(tmp_path / "agent")
    for other in (PPO.load(tmp_path / "agent"), agent.clone()):
        assert torch.equal(weights(other), weights(agent))
        assert other.architecture == agent.architecture
        assert np.array_equal(other.predict(own, deterministic=True)[0], wanted)
        value = [one.learner.value(whole, None).detach() for one in (agent, other)]
        assert torch.equal(*value)


def test_both_normalisers_have_statistics_of_their_own():
    norm = trained()[0].network.observation_norm
    assert norm.policy.count.item() == norm.critic.count.item() > 0
    assert norm.policy.var.max() < 0.6  # uniform in [-1, 1]: 1/3
    assert norm.critic.var.item() > 2  # the mean of the squares of 5, 4, 3, 2 and 1 is 11


@pytest.mark.slow
def test_members_learn_as_alone():
    together = trained(members=3, per_member=False)
    alone = trained(members=3, per_member=True)
    for one, other in zip(together, alone, strict=True):
        assert one.architecture == other.architecture
        torch.testing.assert_close(weights(one), weights(other), rtol=1e-3, atol=1e-4)


def test_a_mutation_is_measured_on_rows_of_both():
    agent = trained()[0]
    for operator in ("encoder.add_node", "encoder.remove_node", "head.add_layer"):
        choices = agent.architecture.choices(operator)
        if choices:
            agent.learner.mutate(Mutation("architecture", operator, dict(choices[0])))
    agent.learner.mutate(Mutation("parameters", "", {}))
    assert agent.learner.is_finite


@pytest.mark.slow
def test_the_exported_policy_has_no_input_for_the_critic(tmp_path):
    from agilerl_like.export.numpy_policy import load_numpy_policy

    agent = trained()[0]
    path = agent.export(tmp_path / "policy.py")[0]
    own = np.random.default_rng(0).uniform(-1, 1, (6, 2)).astype(np.float32)
    assert np.array_equal(load_numpy_policy(path)(own), agent.predict(own, deterministic=True)[0])


def test_members_of_a_population_have_one_critic_observation():
    agents = [agent_of(critic=name, index=index, net_config=None) for index, name in enumerate(["state", "depth"])]
    with pytest.raises(ConfigurationError, match="critic_observation"):
        Population(agents)


@pytest.mark.parametrize("xp", [np, torch], ids=["numpy", "torch"])
@pytest.mark.parametrize("kind", [{}, {"recurrent": True}], ids=["feedforward", "recurrent"])
def test_a_critic_that_observes_the_same_learns_the_same(xp, kind):
    space = Box(-2, 2, (2,))
    kind = {**kind, "seed": 0, "num_envs": 4, "learn_step": 64, "batch_size": 32}
    found = []
    for both in (False, True):
        whole = Dict(policy=space, critic=space) if both else space
        agent = PPO(whole, Discrete(2), critic_observation="critic" if both else "policy", **kind)
        env = Beads(4, xp, policy_key=both)
        timer = PhaseTimer(("env", "act", "learn"))
        collector = Collector(Population([agent]), VecEnvAdapter(env), timer)
        collector.reset([0])
        for _ in range(40):
            collector.collect(1)
            collector.learn()
        assert agent.learner.updates == 2
        found.append({name.replace("norm.policy.", "norm."): x for name, x in agent.network.state_dict().items()})
    plain, asymmetric = found
    assert all(torch.equal(tensor, asymmetric[name]) for name, tensor in plain.items())
    its = {name.replace("norm.critic.", "norm."): x for name, x in asymmetric.items() if "norm.critic." in name}
    assert its
    assert all(torch.equal(tensor, plain[name]) for name, tensor in its.items())


@pytest.mark.parametrize("critic", ["critic", "policy"])
def test_an_env_of_tensors_with_an_entry_for_the_critic_serves_training_and_evaluation(critic, tmp_path):
    env = Beads(8, torch, policy_key=True)
    whole = env.single_observation_space
    population = PPO.population(
        2,
        whole if critic == "critic" else whole["policy"],
        env.single_action_space,
        seed=0,
        num_envs=4,
        learn_step=32,
        batch_size=16,
        critic_observation=critic,
    )
    found, fitness = train_on_policy(env, pop=population, eval_env=env, max_steps=128, **QUIET)
    assert np.isfinite(fitness).all()
    for sampling in ("greedy", "sample"):
        assert np.isfinite(evaluate(found.best, env, 2, 1, sampling).returns).all()
    assert np.isfinite(found.best.test(env, loop=2))
    assert export_trajectories(found.best, env, tmp_path / "t.npz", steps=20).is_file()


@pytest.mark.slow
def test_a_resumed_run_equals_the_uninterrupted_one(tmp_path):
    kind = {"critic_config": {"evolves": "apart", "latent_dim": 32}, "net_config": SMALL}
    whole = trained(steps=256, tmp=tmp_path / "whole", **kind)
    trained(steps=128, tmp=tmp_path / "half", **kind)
    env = make_vect_envs(Hidden, num_envs=2)
    resumed, _ = train_on_policy(env, "Hidden", "PPO", max_steps=256, resume=tmp_path / "half", checkpoint=64, **QUIET)
    for one, other in zip(whole, resumed, strict=True):
        assert one.architecture == other.architecture
        assert torch.equal(weights(one), weights(other))


def test_a_wrong_key_in_a_file_is_an_error_before_any_step(tmp_path, monkeypatch):
    monkeypatch.setattr(Hidden, "step", lambda *_: pytest.fail("stepped"))
    config = Config.model_validate(
        {
            "environment": {"id": "algorithms.test_critic_observation:Hidden", "num_envs": 2, "backend": "sync"},
            "algorithm": {"critic_observation": ["policy", "hidden"]},
        }
    )
    with pytest.raises(ConfigurationError, match="critic_observation='hidden' is unknown"):
        build(config)
    with pytest.raises(ConfigurationError, match=r"critic_observation.*=3: input should be a valid string"):
        agent_of(critic=3)
