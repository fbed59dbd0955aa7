"""PQN: normalised layers, exploration, hand-written loops, runs that resume, processes, mutations and files."""

import contextlib
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from small_runs import SMALL, StopAfter

from agilerl_like import (
    PQN,
    ConfigurationError,
    HyperparameterConfig,
    Mutations,
    PopulationDivergedError,
    RLParameter,
    RolloutBuilder,
    TournamentSelection,
    make_vect_envs,
    train_on_policy,
)
from agilerl_like.algorithms.pqn import PQNUpdate
from agilerl_like.config import load
from agilerl_like.hpo import Mutation

OBS, ACTIONS = Box(-1.0, 1.0, (4,)), Discrete(3)
IMAGE = Box(0, 255, (2, 12, 12), np.uint8)
MIXED = Dict({"camera": IMAGE, "speed": OBS})
SETTINGS = {"net_config": SMALL, "num_envs": 2, "seed": 3, "learn_step": 16, "batch_size": 8, "update_epochs": 2}
CONFIGS = sorted(Path(__file__).parents[2].glob("configs/pqn/*.yaml"))


class Walk(gymnasium.Env):
    """Walks on a line of 5 cells; action 2 is illegal at the left end, and 0 at the right one; ends by a limit of 7."""

    observation_space, action_space = Box(0, 1, (5,)), Discrete(3)

    def seen(self):
        mask = np.ones(3, np.int8)
        mask[2] -= self.cell == 0
        mask[0] -= self.cell == 4
        return np.eye(5, dtype=np.float32)[self.cell], {"action_mask": mask}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cell, self.time = int(self.np_random.integers(5)), 0
        return self.seen()

    def step(self, action):
        _, info = self.seen()
        assert info["action_mask"][action] or self.is_over, f"illegal action {action}"
        self.cell, self.time = int(np.clip(self.cell + action - 1, 0, 4)), self.time + 1
        obs, info = self.seen()
        return obs, float(self.cell == 3), False, self.is_over, info

    @property
    def is_over(self):
        return self.time >= 7


def make(mode="SAME_STEP", envs=2):
    return SyncVectorEnv([Walk] * envs, autoreset_mode=AutoresetMode[mode])


def population(size=2, **settings):
    return PQN.population(size, Walk.observation_space, Walk.action_space, **{**SETTINGS, **settings})


def agent(obs=OBS, **settings):
    return PQN(obs, ACTIONS, **{**SETTINGS, **settings})


def play(member, env, steps=8, seed=0, builder=None):
    """A rollout of a hand-written loop with random legal actions; returns its builder."""
    stream = np.random.default_rng(seed)
    builder = builder or RolloutBuilder(member, env)
    obs, infos = env.reset(seed=seed)
    for _ in range(steps):
        mask = infos["action_mask"].astype(bool)
        action = np.array([stream.choice(np.flatnonzero(row)) for row in mask])
        next_obs, reward, terminated, truncated, infos = env.step(action)
        builder.add(obs, action, reward, terminated, truncated, next_obs, infos, action_mask=mask)
        obs = next_obs
    return builder


def tensors_of(pop):
    return [member.to_documents()[1] for member in pop]


def assert_equal(one, other):
    for left, right in zip(tensors_of(one), tensors_of(other), strict=True):
        assert left.keys() == right.keys()
        assert [name for name in left if not torch.equal(left[name], right[name])] == []


# -- networks


def test_layers_are_normalised_unless_a_net_config_has_none():
    spec = agent().architecture
    assert (spec.encoder.layer_norm, spec.encoder.output_layernorm, spec.head.layer_norm) == (True, True, True)
    off = {"layer_norm": False, "output_layernorm": False}
    spec = agent(net_config={"encoder_config": off, "head_config": {"layer_norm": False}}).architecture
    assert (spec.encoder.layer_norm, spec.encoder.output_layernorm, spec.head.layer_norm) == (False, False, False)


def test_convolutions_and_the_extractors_of_a_dictionary_are_normalised():
    assert agent(IMAGE, net_config=None).architecture.encoder.layer_norm
    assert agent(MIXED, net_config=None).architecture.encoder.parts["camera"].layer_norm
    vectors = {"encoder_config": {"vector_space_mlp": True, "cnn_config": {"layer_norm": False}}}
    parts = agent(MIXED, net_config=vectors).architecture.encoder.parts
    assert (parts["camera"].layer_norm, parts["speed"].layer_norm) == (False, True)
    assert agent(net_config={"encoder": "simba"}).architecture.head.layer_norm


def test_there_is_no_target_network_and_there_are_no_buffers_of_one():
    names = [name for name, _ in agent(dueling=True).network.named_buffers()]
    assert [name for name in names if "target" in name] == []
    assert [*agent(dueling=True).evolvable_attributes(networks_only=True)] == ["actor", "critic"]


@pytest.mark.parametrize(
    "space", [OBS, IMAGE, MIXED, Tuple((OBS, Discrete(3)))], ids=["vector", "image", "dict", "tuple"]
)
def test_every_kind_of_observation_is_learned_from_and_mutates(space):
    member = agent(space, net_config={"latent_dim": 16}, normalize_observation=True)
    space.seed(1)
    builder = RolloutBuilder(member, autoreset="Disabled")
    batch = gymnasium.vector.utils.batch_space(space, 2)
    batch.seed(2)
    zeros = np.zeros(2, bool)
    for _ in range(4):
        builder.add(batch.sample(), np.array([0, 2]), np.ones(2), zeros, zeros, batch.sample())
    assert np.isfinite(member.learn(builder))
    for operator in ("add_latent_node", "head.add_node", "change_activation"):
        choice = dict(member.architecture.choices(operator)[0])
        kind = "activation" if "activation" in operator else "architecture"
        x = member.learner.normalize(batch.sample())
        before = member.network.q_values(x).detach()
        (change,) = member.apply_genome(member.genome, (Mutation(kind, operator, choice),))
        assert change.kind == kind
        torch.testing.assert_close(member.network.q_values(x).detach(), before, atol=2e-5, rtol=1e-4)


# -- acting


def test_epsilon_falls_by_share_of_the_budget_and_members_explore_each_with_its_own():
    pop = population(2, num_envs=50)
    pop[0].eps_share, pop[0].progress = 0.4, 0.2
    assert pop[0].epsilon == pytest.approx(0.525)  # 0.05 + 0.95 / 2
    pop[0].eps_end, pop[1].eps_start, pop[1].eps_end = 1.0, 0.0, 0.0
    obs, counts = torch.zeros(2, 50, 5), np.zeros((2, 3))
    for _ in range(20):
        raw, _ = pop.act(obs, pop.initial_hidden_state.repeat(2, 50, 1, 1, 1), noise=pop.learners.next_noise(50))
        counts += [np.bincount(actions.flatten(), minlength=3) for actions in raw.numpy()]
    assert counts[0].min() > 250
    assert sorted(counts[1]) == [0, 0, 1000]


def test_actions_and_values_are_those_of_the_legal_actions():
    member, mask = agent(), np.array([[True, False, True]] * 5)
    obs = np.random.default_rng(0).uniform(-1, 1, (5, 4)).astype(np.float32)
    with torch.no_grad():
        q = member.network.q_values(torch.from_numpy(obs)).numpy()
    legal = np.where(mask, q, -np.inf)
    np.testing.assert_allclose(member.value(obs), q.max(1), rtol=1e-6)
    np.testing.assert_allclose(member.value(obs, mask), legal.max(1), rtol=1e-6)
    np.testing.assert_array_equal(member.predict(obs, action_masks=mask)[0], legal.argmax(1))
    np.testing.assert_array_equal(member.get_action(obs, action_mask=mask), legal.argmax(1))
    assert set(member.get_action(np.repeat(obs, 20, 0), 1.0, np.repeat(mask, 20, 0))) == {0, 2}


# -- hand-written loops


@pytest.fixture
def rollouts(monkeypatch):
    """The rollouts of every update from now on."""
    found, run = [], PQNUpdate.run
    monkeypatch.setattr(PQNUpdate, "run", lambda self, *args: found.append(self.rollout) or run(self, *args))
    return found


@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP"])
def test_the_rollout_of_a_loop_is_that_of_a_run(mode, rollouts):
    """Its first steps, with the actions of the run: rollouts have equal rows, flags and masks."""
    with contextlib.closing(make(mode)) as env:
        train_on_policy(env, pop=population(1, eps_end=1.0), max_steps=32, evo_steps=32, verbose=False)
    first, _ = rollouts
    q_learner, env = agent(Walk.observation_space), make(mode)
    builder = RolloutBuilder(q_learner, env)
    env.reset()
    for one, cell in zip(env.envs, first.observations[0, 0].argmax(-1).tolist(), strict=True):
        one.unwrapped.cell = cell
    obs = first.observations[0, 0].numpy()
    for step in range(2):  # no episode has ended yet, so no new start is drawn
        mask, action = first.masks[0, step].numpy(), first.actions[0, step, :, 0].numpy()
        next_obs, reward, terminated, truncated, infos = env.step(action)
        builder.add(obs, action, reward, terminated, truncated, next_obs, infos, action_mask=mask)
        obs = next_obs
    q_learner.learn(builder)
    own = rollouts[-1]
    for name in ("observations", "actions", "rewards", "terminated", "ended", "valid", "masks", "next_masks"):
        assert torch.equal(getattr(own, name)[0], getattr(first, name)[0, :2].to(getattr(own, name))), name


@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP", "DISABLED"])
def test_the_masks_of_a_run_are_those_of_the_true_next_states(mode, rollouts):
    """A mask follows from the cell: that of the next row, or of the last observation where an episode ended."""
    env = make_vect_envs(Walk, 2, backend="sync", autoreset=AutoresetMode[mode].value)
    with contextlib.closing(env):
        train_on_policy(env, pop=population(1, learn_step=64), max_steps=64, evo_steps=64, verbose=False)
    (rollout,) = rollouts
    cells = torch.cat([rollout.observations[0], rollout.next_observations], 0)[1:].argmax(-1)  # [T, E]
    _, place, time, where = rollout.final_observations.places
    cells[time, where] = rollout.final_observations.observations[0, place].argmax(-1)
    counted = rollout.valid[0] > 0
    legal = torch.ones(*cells.shape, 3, dtype=torch.bool)
    legal[..., 2], legal[..., 0] = cells != 0, cells != 4
    assert (rollout.ended > rollout.terminated).sum() >= 4
    assert torch.equal(rollout.next_masks[0][counted], legal[counted])


def test_a_loop_without_the_masks_of_next_observations_is_refused():
    member, env = agent(Walk.observation_space), make()
    obs, infos = env.reset(seed=0)
    mask = infos["action_mask"].astype(bool)
    action = mask.argmax(1)
    after, reward, terminated, truncated, _ = env.step(action)
    with pytest.raises(ConfigurationError, match=r"infos=None has no action_mask, but the action had one; allowed are"):
        RolloutBuilder(member, env).add(obs, action, reward, terminated, truncated, after, action_mask=mask)
    with pytest.raises(ConfigurationError, match=r"experiences=\[1\]; allowed is a RolloutBuilder"):
        member.learn([1])


def test_an_update_that_diverges_is_undone_and_can_be_repeated():
    member, env = agent(Walk.observation_space), make()
    builder, before = play(member, env), [weight.clone() for weight in member.network.parameters()]
    member.lr = 1e38
    with pytest.raises(PopulationDivergedError, match="agent 0: a number is not finite; its weights were restored"):
        member.learn(builder)
    assert all(map(torch.equal, before, member.network.parameters()))
    member.lr = 1e-3
    assert np.isfinite(member.learn(builder))
    assert (len(builder), member.learner.updates, member.learner.env_steps) == (0, 1, 16)
    assert member.learner.learned_with_masks


def test_clones_and_loaded_agents_have_the_same_next_loss(tmp_path):
    member, env = agent(Walk.observation_space, dueling=True, normalize_observation=True), make()
    member.learn(play(member, env))
    others = member.clone(), PQN.load(member.save_checkpoint(tmp_path / "agent"))
    expected = member.learn(play(member, env, seed=1))
    for other in others:
        assert other.settings() == member.settings()
        assert other.learn(play(other, env, seed=1)) == expected
        assert_equal([other], [member])


# -- runs


RUN = {"max_steps": 192, "evo_steps": 48, "eval_loop": 1, "eval_steps": 8, "verbose": False, "checkpoint": 96}
EVOLUTION = {
    "selection_strategy": TournamentSelection(tournament_size=2, elitism=True),
    "mutation": Mutations(no_mutation=0.1, architecture=0.4, parameters=0.2, activation=0.2, rl_hp=0.1),
}
RANGES = HyperparameterConfig(
    lr=RLParameter(1e-4, 1e-2), learn_step=RLParameter(8, 32), batch_size=RLParameter(4, 32), q_lambda=RLParameter(0, 1)
)


@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP"])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path, mode):
    settings = {"hp_config": RANGES, "normalize_observation": True, "schedules": {"lr": "linear"}}
    settings |= {"sample_hyperparameters": True}
    options = {**RUN, **EVOLUTION}
    whole, _ = train_on_policy(make(mode), pop=population(3, **settings), run_dir=tmp_path / "whole", **options)
    part = tmp_path / "part"
    train_on_policy(make(mode), pop=population(3, **settings), run_dir=part, callbacks=[StopAfter(2)], **options)
    resumed, _ = train_on_policy(make(mode), pop=population(3, **settings), resume=part, **options)
    assert_equal(whole, resumed)
    assert whole.fitness == resumed.fitness
    assert len({member.learn_step for member in population(3, **settings)}) == 3
    assert max(member.index for member in whole) >= 3  # offspring


def test_two_processes_train_the_members_of_one(tmp_path):
    def run(processes):
        env = make_vect_envs(Walk, 2, backend="sync")
        with contextlib.closing(env):
            return train_on_policy(
                env,
                pop=population(2, per_member=True, hp_config=RANGES),
                run_dir=tmp_path / str(processes),
                processes=processes,
                **RUN,
                **EVOLUTION,
            )[0]

    assert_equal(run(1), run(2))


def test_processes_do_not_share_the_envs_of_a_member(tmp_path):
    env = make_vect_envs("CartPole-v1", 2)
    member = PQN(env.single_observation_space, env.single_action_space, **SETTINGS)
    with pytest.raises(ConfigurationError, match="processes share the envs of a member, which PQN does not support"):
        train_on_policy(env, pop=member, processes=2, run_dir=tmp_path / "run", **RUN)


def test_a_run_reports_loss_values_gradient_and_epsilon(tmp_path):
    train_on_policy(make(), pop=population(1), run_dir=tmp_path / "run", log_every="update", **RUN)
    header = (tmp_path / "run" / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"train/loss", "train/q_value", "train/grad_norm", "train/epsilon"} <= set(header)


@pytest.mark.parametrize("path", CONFIGS, ids=[path.stem for path in CONFIGS])
def test_bundled_configurations_are_valid(path):
    config = load(str(path))
    assert (config.algorithm.name, config.algorithm_class) == ("PQN", PQN)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"q_lambda": 1.5}, "q_lambda=1.5: .*less than or equal to 1"),
        ({"batch_size": 17}, r"batch_size=17 is larger than the rollout of learn_step=16 .*: allowed are at most 16"),
        (
            {"num_steps": 8, "learn_step": 32},
            "learn_step=32: has no meaning with num_steps=8; needed is num_steps=None",
        ),
        ({"optimizer": "sgd", "adam_eps": 1e-3}, "adam_eps=0.001: has no meaning with optimizer='sgd'"),
        ({"optimizer": "radam"}, "optimizer='radam'.*'adam', 'adamw', 'rmsprop' or 'sgd'"),
        ({"recurrent": True}, "setting='recurrent' is unknown here; it is a setting of PPO"),
        ({"tau": 0.1}, "setting='tau' is unknown here; it is a setting of DQN"),
        ({"net_config": [64]}, r"net_config=\[64\]"),
        ({"net_config": {"encoder": ["mlp"]}}, r"encoder.*\['mlp'\]"),
        ({"net_config": {"encoder_config": {"hiden_size": [8]}}}, "did you mean 'hidden_size'"),
        ({"net_config": {"memory_config": {"cell": "GRU"}}}, "memory_config=.* has no meaning without recurrent=True"),
        (
            {"net_config": {"head_config": {"output_activation": "Tanh"}}},
            "output_activation='Tanh' has no effect in PQN",
        ),
        ({"hp_config": HyperparameterConfig(optimizer=RLParameter(0, 1))}, "'optimizer' is not a number of PQN"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        agent(**settings)


def test_other_action_spaces_are_refused():
    with pytest.raises(ConfigurationError, match="is not for PQN; allowed is Discrete"):
        PQN(OBS, Box(-1.0, 1.0, (2,)))
