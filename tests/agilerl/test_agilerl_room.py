"""`agilerl_like.agilerl` adapts rollouts, step counts, hidden states and ranges; its errors name what is absent."""

import copy
import importlib
import pickle

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tiny_team import Meeting
from torch import nn

import agilerl_like
from agilerl_like import ConfigurationError, HyperparameterConfig, PopulationDivergedError, RLParameter, RolloutBuilder
from agilerl_like.agilerl.algorithms import DQN, IPPO, PPO
from agilerl_like.agilerl.components.data import Transition, observation_of
from agilerl_like.agilerl.components.replay_buffer import ReplayBuffer
from agilerl_like.agilerl.components.rollout_buffer import RolloutBuffer
from agilerl_like.agilerl.hpo.mutation import Mutations
from agilerl_like.agilerl.hpo.tournament import TournamentSelection
from agilerl_like.agilerl.modules import EvolvableCNN, EvolvableMLP
from agilerl_like.agilerl.networks import EvolvableNetwork, ValueNetwork
from agilerl_like.agilerl.networks.actors import StochasticActor
from agilerl_like.agilerl.rollouts.on_policy import collect_rollouts
from agilerl_like.agilerl.training.train_multi_agent_on_policy import train_multi_agent_on_policy
from agilerl_like.agilerl.training.train_off_policy import train_off_policy
from agilerl_like.agilerl.training.train_on_policy import train_on_policy
from agilerl_like.agilerl.typing import BPTTSequenceType
from agilerl_like.agilerl.utils.utils import (
    create_population,
    print_hyperparams,
    run_selection_and_mutation,
    save_population_checkpoint,
)
from agilerl_like.agilerl.wrappers.agent import AgentWrapper, AsyncAgentsWrapper, RSNorm
from agilerl_like.agilerl.wrappers.make_evolvable import MakeEvolvable
from agilerl_like.algorithms.evolvable_algorithm import UnsavedState
from agilerl_like.hpo import Choice
from agilerl_like.reporting import Callback
from agilerl_like.training.sharding import SerializedAgent, deserialize

BOX, DISCRETE = gymnasium.spaces.Box(-1.0, 1.0, (3,)), gymnasium.spaces.Discrete(2)
SMALL = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}}


class Limited(gymnasium.Env):
    """Pays 1 a step and observes zeros; a time limit cuts every episode after two steps."""

    observation_space, action_space = BOX, DISCRETE

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(3, np.float32), 1.0, False, self.steps == 2, {}


def agent_of(**settings):
    return PPO(BOX, DISCRETE, **{"seed": 0, "net_config": SMALL, "learn_step": 16, "batch_size": 8, **settings})


def vector_of(mode, count=2, kind=Limited):
    return SyncVectorEnv([kind] * count, autoreset_mode=mode)


class Offset(Limited):
    """Observes 100 plus noise, so that observations without normalisation have other values; pays up to 1."""

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def reset(self, *, seed=None, options=None):
        return self.seen(), super().reset(seed=seed)[1]

    def step(self, action):
        _, _, *ends = super().step(action)
        return self.seen(), self.rng.random(), *ends

    def seen(self):
        return self.rng.normal(100.0, 1.0, 3).astype(np.float32)


def built_rollout(agent, env, steps):
    """The steps that `collect_rollouts` takes in a new env."""
    builder, (obs, _) = RolloutBuilder(agent, env), env.reset()
    for _ in range(steps):
        action, log_prob, _, value = agent.get_action(obs)
        reached, reward, terminated, truncated, infos = env.step(action)
        builder.add(obs, action, reward, terminated, truncated, reached, infos, log_prob=log_prob, value=value)
        obs = reached
    return builder


@pytest.mark.filterwarnings("ignore:bootstrap_truncated=False")
@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"normalize_observation": False},
        {"reward_clip": 0.5},
        {"normalize_reward": True},
        {"reward_transform": {"scale": 0.1}},
        {"bootstrap_truncated": False},
    ],
    ids=str,
)
def test_a_time_limit_is_bootstrapped_as_by_a_rollout_builder(settings, mode):
    """Also in the first rollout, whose own statistics normalise all of its observations."""
    collected, built = (agent_of(num_envs=2, **settings) for _ in range(2))
    for _ in range(2):
        collect_rollouts(collected, vector_of(mode, kind=Offset), n_steps=8)
        collected.learn()
        agilerl_like.PPO.learn(built, built_rollout(built, vector_of(mode, kind=Offset), 8))
        torch.testing.assert_close(collected.learner.cohort.stacked.flat, built.learner.cohort.stacked.flat)


def test_a_rollout_has_the_rewards_of_the_environment():
    agent = agent_of()
    scores, *_ = collect_rollouts(agent, vector_of(AutoresetMode.SAME_STEP, kind=Offset), n_steps=4)
    assert sum(scores) == pytest.approx(agent.rollout_buffer.get()["rewards"].sum())


@pytest.mark.parametrize("missing", [{}, {"pop": None}, {"pop": []}], ids=str)
def test_a_missing_population_is_named(missing):
    with pytest.raises(ConfigurationError, match=r"pop=.*; allowed is a list of agents, such as PPO.population"):
        train_on_policy(vector_of(AutoresetMode.SAME_STEP), "own", **missing)


@pytest.mark.parametrize(
    ("train", "before"),
    [(train_on_policy, ()), (train_multi_agent_on_policy, (True,)), (train_off_policy, (None,))],
    ids=["on-policy", "teams", "off-policy"],
)
def test_arguments_of_training_in_the_order_of_older_releases_are_refused_by_name(train, before):
    with pytest.raises(ConfigurationError, match=r"max_steps=False; .* swap_channels .* pass arguments by name"):
        train(vector_of(AutoresetMode.SAME_STEP), "own", "PPO", [agent_of()], *before, {}, {}, False, 200, 100)


class StopAfterOne(Callback):
    def on_generation(self, run, record):
        if run.generation == 1:
            run.stop()


def test_a_resumed_run_returns_agents_of_the_same_class(tmp_path):
    def agents():
        return PPO.population(2, BOX, DISCRETE, seed=0, num_envs=2, net_config=SMALL, learn_step=8, batch_size=8)

    env, run = vector_of(AutoresetMode.SAME_STEP), {"max_steps": 16, "evo_steps": 8, "verbose": False, "checkpoint": 8}
    train_on_policy(env, pop=agents(), run_dir=tmp_path / "run", callbacks=[StopAfterOne()], **run)
    trained, _ = train_on_policy(env, pop=agents(), resume=tmp_path / "run", **run)
    assert [type(agent) for agent in trained] == [PPO, PPO]
    assert trained[0].steps == 16


@pytest.mark.parametrize("name", ["selection_strategy", "tournament"])
def test_selection_without_mutation_has_no_effect_and_is_a_warning(name):
    pop = PPO.population(3, BOX, DISCRETE, seed=0, num_envs=2, net_config=SMALL, learn_step=8, batch_size=8)
    run = {"max_steps": 16, "evo_steps": 8, "verbose": False, name: TournamentSelection(3, True, 3)}
    with pytest.warns(UserWarning, match=f"{name} has no effect without mutation"):
        trained, _ = train_on_policy(vector_of(AutoresetMode.SAME_STEP), pop=pop, **run)
    assert [agent.index for agent in trained] == [0, 1, 2]


def test_an_agent_from_another_process_is_of_the_same_class():
    agent = agent_of()
    received = deserialize(SerializedAgent(*agent.to_documents()), agent.device, UnsavedState.of(agent))
    assert type(received) is PPO


def test_saved_agents_have_the_names_that_agilerl_gives_them(tmp_path):
    agents = [agent_of(index=7), agent_of(index=9)]
    for lr in ("0.001", "0.002"):
        save_population_checkpoint(agents, str(tmp_path / f"lr{lr}"), overwrite_checkpoints=True)
    save_population_checkpoint(agents[:1], str(tmp_path / "steps"), overwrite_checkpoints=False)
    names = ["lr0.001_0.pt", "lr0.001_1.pt", "lr0.002_0.pt", "lr0.002_1.pt", "steps_0_0.pt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert PPO.load(tmp_path / "lr0.002_1.pt").index == 9


@pytest.mark.parametrize("name", ["elite", "elite.pt"])
def test_the_elite_is_saved_under_its_name(tmp_path, name):
    agents = PPO.population(2, BOX, DISCRETE, seed=0, net_config=SMALL, learn_step=16, batch_size=8)
    agents[1].fitness, agents[0].fitness = [2.0], [1.0]
    tournament, mutations, path = TournamentSelection(2, True, 2), Mutations(1, 0, 0, 0, 0, 0), str(tmp_path / name)
    run_selection_and_mutation(tournament, agents, mutations, "x", elite_path=path, save_elite=True)
    assert PPO.load(tmp_path / "elite.pt").fitness == [2.0]
    assert run_selection_and_mutation(None, agents, mutations, "x") is agents
    agents[0].fitness = [3.0]
    assert run_selection_and_mutation(None, agents, mutations, "x", elite_path=path, save_elite=True) is agents
    assert PPO.load(tmp_path / "elite.pt").fitness == [3.0]


def test_an_actor_has_the_noise_and_the_squashing_of_the_agent():
    actor = StochasticActor(BOX, BOX, action_std_init=-1.5, squash_output=True)
    agent = PPO(BOX, BOX, actor_network=actor, seed=0)
    assert (agent.action_std_init, agent.squash_output) == (-1.5, True)


def test_what_a_stochastic_actor_would_discard_is_refused():
    actor = StochasticActor(BOX, BOX)
    with pytest.raises(ConfigurationError, match=r"critic_network=Linear has no effect .* None and a ValueNet"):
        PPO(BOX, BOX, actor_network=actor, critic_network=nn.Linear(3, 1))
    with pytest.raises(ConfigurationError, match=r"net_config=\{.* has no effect beside a StochasticActor; allowed"):
        PPO(BOX, BOX, actor_network=actor, net_config=SMALL)


class OwnNetwork(EvolvableNetwork):
    """A network as AgileRL's users write them."""

    def __init__(self, observation_space):
        super().__init__(observation_space, latent_dim=32)
        self.head_net = self.create_mlp(num_inputs=32, num_outputs=2, name="q", net_config={})


def test_what_a_description_of_a_network_lacks_is_refused_with_what_is_used_instead():
    with pytest.raises(AttributeError, match=r"OwnNetwork\.create_mlp is not available: .* given as actor_network"):
        OwnNetwork(BOX)
    actor = StochasticActor(BOX, DISCRETE)
    with pytest.raises(TypeError, match=r"StochasticActor cannot be called: .* given as actor_network"):
        actor(torch.zeros(1, 3))
    with pytest.raises(AttributeError, match=r"ValueNetwork\.parameters is not available: .* actor_network"):
        ValueNetwork(BOX).parameters()
    assert copy.deepcopy(actor).net_config == pickle.loads(pickle.dumps(actor)).net_config == actor.net_config


def test_a_kernel_that_no_layer_may_have_is_refused():
    with pytest.raises(ConfigurationError, match=r"kernel_size=4 with hidden_layer=None is not .* of \[\(0, 5\)"):
        EvolvableCNN((3, 16, 16), 5, [32], [3], [2]).change_kernel(kernel_size=4)


def test_arguments_of_test_have_the_order_of_agilerl():
    agent, env = DQN(BOX, DISCRETE, seed=0, net_config=SMALL), vector_of(AutoresetMode.SAME_STEP)
    lengths = []
    assert agent.test(env, 1, 3, True, lambda score, info: lengths.append(info["episode_length"])) == 1.0
    assert lengths == [1, 1, 1]
    agent.test(env, callback=lambda score, info: lengths.append(info["episode_length"]))
    assert lengths == [1, 1, 1, 2]  # one episode by default


class Renamed(gymnasium.Wrapper):
    """A wrapper whose arguments gymnasium does not record."""


class Uncopyable(Limited):
    """Refuses copy.deepcopy, as environments with code in C do."""

    def __deepcopy__(self, memo):
        raise TypeError("no copies")


@pytest.mark.parametrize("make", [Limited, lambda: Renamed(gymnasium.make("CartPole-v1"))])
def test_a_single_environment_trains_a_population(make):
    env = make()
    pop = PPO.population(
        2, env.observation_space, env.action_space, seed=0, net_config=SMALL, learn_step=8, batch_size=8
    )
    trained, fitness = train_on_policy(env, "own", "PPO", pop, max_steps=16, evo_steps=8, verbose=False)
    assert (len(trained), len(fitness)) == (2, 2)
    assert all(agent.steps >= 16 for agent in trained)


def test_a_single_environment_that_cannot_be_copied_is_named():
    with pytest.raises(ConfigurationError, match=r"env=<Uncopyable.* cannot be copied: no copies; allowed are"):
        train_on_policy(Uncopyable(), "own", "PPO", [agent_of()], max_steps=16, evo_steps=8, verbose=False)


def test_a_single_team_environment_trains_a_population():
    env = Meeting()
    ids = env.possible_agents
    spaces = [env.observation_space(each) for each in ids], [env.action_space(each) for each in ids]
    pop = IPPO.population(2, *spaces, agent_ids=ids, seed=0, net_config=SMALL, learn_step=8, batch_size=8)
    trained, _ = train_multi_agent_on_policy(env, "own", "IPPO", pop, max_steps=16, evo_steps=8, verbose=False)
    assert len(trained) == 2


def test_rows_of_autoreset_are_not_learned_from():
    agent = agent_of()
    collect_rollouts(agent, vector_of(AutoresetMode.NEXT_STEP), n_steps=6)
    content = agent.rollout_buffer.content()
    assert [row.tolist() for row in content.acting] == [[True] * 2, [True] * 2, [False] * 2] * 2


def test_a_rollout_is_continued_where_it_ended():
    agent, env = agent_of(), vector_of(AutoresetMode.SAME_STEP)
    first = collect_rollouts(agent, env, n_steps=1)
    assert first.completed_episode_scores == []
    second = collect_rollouts(agent, env, None, *first[1:])
    assert second.completed_episode_scores[:2] == [2.0, 2.0]
    agent.learn()
    with pytest.raises(ConfigurationError, match=r"the rollout buffer is empty: call collect_rollouts"):
        agent.learn()


def add_steps(agent, rewards):
    """Add a step for each reward, which the first env is paid; the second is paid 1, and no episode ends."""
    for reward in rewards:
        obs = np.full((2, 3), 0.1 * reward, np.float32)
        action, log_prob, _, value = agent.get_action(obs)[:4]
        agent.rollout_buffer.add(obs, action, [reward, 1.0], 0.0, value, log_prob, next_obs=obs)


def test_an_undone_update_of_a_rollout_can_be_repeated():
    agents = [agent_of(num_envs=2, normalize_reward=True) for _ in range(2)]
    for agent in agents:
        add_steps(agent, range(8))
    gamma, lr = agents[0].gamma, agents[0].lr
    agents[0].gamma = 2.0
    with pytest.raises(ConfigurationError, match=r"gamma=2\.0"):
        agents[0].learn()
    agents[0].gamma, agents[0].lr = gamma, 1e38
    with pytest.raises(PopulationDivergedError):
        agents[0].learn()
    agents[0].lr = lr
    assert agents[0].learn() == agents[1].learn()
    assert torch.equal(*(agent.learner.cohort.stacked.flat for agent in agents))
    assert torch.equal(*(agent.learner.return_statistics.returns for agent in agents))


@pytest.mark.parametrize("way", ["undone", "reset", "collected"])
def test_a_rollout_does_not_continue_the_returns_before_discarded_steps(way):
    agent, env = agent_of(num_envs=2, normalize_reward=True), vector_of(AutoresetMode.SAME_STEP)
    add_steps(agent, range(8))
    agent.learn()
    add_steps(agent, range(8))
    if way == "undone":
        lr, agent.lr = agent.lr, 1e38
        with pytest.raises(PopulationDivergedError):
            agent.learn()
        agent.lr = lr
    elif way == "reset":
        agent.rollout_buffer.reset()
    else:
        collect_rollouts(agent, env, n_steps=8)
        agent.rollout_buffer.reset()
    add_steps(agent, [1.0])
    assert agent.rollout_buffer.pos == 1
    agent.batch_size = 2
    agent.learn()
    assert agent.learner.return_statistics.returns.tolist() == [1.0, 1.0]


def test_a_rollout_that_begins_within_an_episode_has_its_hidden_state():
    """The first env's episode continues when the second rollout begins, the second env's has ended."""
    agent = agent_of(recurrent=True, num_envs=2)
    observation, state = np.zeros((2, 3), np.float32), agent.get_initial_hidden_state(2)
    for done in (0.0, 1.0):
        action, log_prob, _, value, after = agent.get_action(observation, None, state)
        agent.rollout_buffer.add(
            observation, action, 1.0, [0.0, done], value, log_prob, next_obs=observation, hidden_state=state
        )
        state = after
    first = agent.rollout_buffer.content()
    agent.rollout_buffer.reset()
    agent.rollout_buffer.add(observation, action, 1.0, 0.0, value, log_prob, next_obs=observation, hidden_state=state)
    starts = [content.experiences[4][0].tolist() for content in (first, agent.rollout_buffer.content())]
    assert starts == [[1.0, 1.0], [0.0, 1.0]]


def test_the_buffer_keeps_the_hidden_state_that_a_loop_overwrites():
    agent = agent_of(recurrent=True, num_envs=2)
    observation, state = np.ones((2, 3), np.float32), agent.get_initial_hidden_state(2)
    action, log_prob, _, value, after = agent.get_action(observation, None, state)
    agent.rollout_buffer.add(observation, action, 1.0, 0.0, value, log_prob, observation, hidden_state=state)
    for name, values in after.items():
        state[name].copy_(values)
    kept = agent.rollout_buffer.content().hidden_state
    assert [*kept] == [*state]
    assert not any(its.any() for its in kept.values())


def test_the_buffer_keeps_last_observations_that_a_loop_overwrites():
    buffer, reached = RolloutBuffer(1, BOX, DISCRETE, 2), np.ones((2, 3), np.float32)
    numbers = np.zeros(2)
    buffer.add(reached, numbers, numbers, [0, 1], numbers, numbers, reached, truncated=[False, True])
    reached[:] = 5.0
    content = buffer.content()
    (rows, last), after = content.last_observations[0], content.experiences[6]
    assert (rows.tolist(), last.tolist(), after.tolist()) == ([1], [[1.0] * 3], [[1.0] * 3] * 2)
    with pytest.raises(ConfigurationError, match="truncated is True and next_obs=None; allowed are the last"):
        buffer.add(reached, numbers, numbers, [0, 1], numbers, numbers, truncated=[False, True])


def test_a_buffer_of_one_environment_takes_observations_without_its_axis():
    """As those of `gymnasium.make`."""
    agent, observation = agent_of(num_envs=1), np.ones(3, np.float32)
    for _ in range(16):
        action, log_prob, _, value = agent.get_action(observation)[:4]
        agent.rollout_buffer.add(observation, action, 1.0, 0.0, value, log_prob, next_obs=observation)
    assert agent.rollout_buffer.get(8)["observations"].shape == (8, 3)
    assert agent.rollout_buffer.get()["actions"].shape == (16,)
    assert np.isfinite(agent.learn())


def test_a_copy_of_an_agent_has_the_steps_of_its_buffer_and_not_their_environment():
    agent = agent_of(num_envs=1)
    collect_rollouts(agent, Uncopyable(), n_steps=16)
    twin = copy.deepcopy(agent)
    assert twin.learn() == agent.learn()


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda steps: pickle.loads(pickle.dumps(steps))])
def test_copied_steps_have_counts_of_their_own(way):
    agent = agent_of()
    agent.steps += 5
    agent.steps.append(9)
    steps = way(agent.steps)
    assert (type(steps), steps, steps[0]) == (type(agent.steps), 9, 5)
    steps.append(12)
    assert (steps[-1], agent.steps[-1]) == (12, 9)


class Below(AgentWrapper):
    """Lets an agent observe no more than `limit`."""

    def __init__(self, agent, limit):
        super().__init__(agent)
        self.limit = limit

    def get_action(self, obs, *args, **kwargs):
        return self.agent.get_action(np.minimum(obs, self.limit), *args, **kwargs)


def test_a_wrapper_that_sets_an_attribute_acts_after_a_selection_and_a_mutation():
    pop = [Below(agent_of(index=index), 0.5) for index in range(2)]
    for agent in pop:
        agent.fitness.append(1.0)
    _, pop, *_ = TournamentSelection(2, True, 2).select(pop)
    pop = Mutations(1, 0, 0.5, 0, 0, 0).mutation(pop)
    for agent in pop:
        assert isinstance(agent, Below)
        assert len(agent.get_action(np.ones((1, 3), np.float32))[0]) == 1


def test_clean_up_frees_the_observations_that_only_mutations_need():
    agent = agent_of(num_envs=2)
    collect_rollouts(agent, vector_of(AutoresetMode.SAME_STEP), n_steps=8)
    agent.learn()
    assert agent.learner.recent_observations.numel() > 0
    agent.clean_up()
    assert agent.learner.recent_observations.numel() == 0


def test_the_rollout_buffer_has_the_settings_that_a_mutation_made():
    ranges = HyperparameterConfig(gamma=RLParameter(0.5, 0.99), learn_step=RLParameter(8, 64, dtype=int))
    agent = agent_of(num_envs=2, hp_config=ranges)
    changed = set()
    for seed in range(8):
        before = agent.rollout_buffer
        Mutations(0, 0, 0, 0, 0, 1, rand_seed=seed).mutation([agent])
        after = agent.rollout_buffer
        assert (after.gamma, after.capacity) == (agent.gamma, agent.rollout_steps)
        changed |= {name for name in ("gamma", "capacity") if getattr(after, name) != getattr(before, name)}
    assert changed == {"gamma", "capacity"}


def test_steps_are_a_number_and_the_list_of_older_releases(tmp_path):
    agent = agent_of()
    agent.steps += 5
    assert agent.steps == 5
    agent.steps[-1] += 2
    agent.steps.append(agent.steps[-1])
    agent.steps = agent.steps + 1
    assert (agent.steps, agent.steps[0], agent.clone(index=1).steps) == (8, 7, 8)
    path = agent.save_checkpoint(tmp_path / "agent")
    assert PPO.load(path).steps == 8
    assert agilerl_like.PPO.load(path).steps == [7, 8]


@pytest.mark.parametrize(
    ("memory", "vectors"),
    [({}, "hc"), ({"cell": "LSTM", "num_layers": 2}, "hc"), ({"cell": "GRU", "num_layers": 2}, "h")],
    ids=str,
)
def test_hidden_states_have_other_names_and_the_same_numbers(memory, vectors):
    settings = {
        "seed": 0,
        "recurrent": True,
        "learn_step": 16,
        "batch_size": 8,
        "net_config": {"memory_config": memory},
    }
    ours = agilerl_like.PPO(BOX, DISCRETE, share_encoders=True, **settings)
    theirs = PPO(BOX, DISCRETE, **settings)
    obs = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    mine, its = ours.get_initial_hidden_state(4), theirs.get_initial_hidden_state(4)
    for _ in range(3):
        *_, value, mine = ours.get_action(obs, hidden_state=mine)
        *_, its_value, its = theirs.get_action(obs, hidden_state=its)
        np.testing.assert_array_equal(value, its_value)
    assert [*its] == [f"shared_encoder_{name}" for name in vectors]
    for layer in range(memory.get("num_layers", 1)):
        for i, name in enumerate(vectors):
            assert torch.equal(its[f"shared_encoder_{name}"][layer], mine["shared"][:, layer * len(vectors) + i])
    with pytest.raises(ConfigurationError, match=r"hidden_state has \['x'\]; wanted are \['shared_encoder_h'"):
        theirs.get_action(obs, hidden_state={"x": torch.zeros(1, 4, 64)})


def test_get_action_names_an_unknown_argument():
    """A misspelt `hidden_state` would begin each step from zeros."""
    agent = agent_of(recurrent=True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'hidden_states'"):
        agent.get_action(np.zeros((4, 3), np.float32), hidden_states=agent.get_initial_hidden_state(4))


@pytest.mark.parametrize("form", ["tensors", "arrays"])
def test_predict_takes_the_hidden_states_that_get_action_takes(form):
    agent = agent_of(recurrent=True)
    agent.set_training_mode(False)
    observations = np.random.default_rng(0).normal(size=(3, 4, 3)).astype(np.float32)
    state = its = agent.get_initial_hidden_state(4)
    for seen in observations:
        if form == "arrays":
            state, its = ({name: x.numpy() for name, x in one.items()} for one in (state, its))
        predicted, state = agent.predict(seen, state, deterministic=True)
        action, *_, its = agent.get_action(seen, hidden_state=its)
        np.testing.assert_array_equal(predicted, action)
        assert [*state] == [*its]
        assert all(torch.equal(state[name], x) for name, x in its.items())
    with pytest.raises(ConfigurationError, match=r"^state has \['x'\]; wanted are \['shared_encoder_h'"):
        agent.predict(seen, {"x": torch.zeros(1, 4, 64)})
    with pytest.raises(ConfigurationError, match="state is a Tensor; allowed is a mapping"):
        agent.predict(seen, torch.zeros(1, 4, 64))


def test_a_transformers_memory_has_one_entry():
    agent = PPO(
        BOX, DISCRETE, seed=0, recurrent=True, learn_step=16, net_config={"memory_config": {"cell": "transformer"}}
    )
    assert [*agent.get_initial_hidden_state(2)] == ["shared_encoder_h"]


def test_settings_of_sequences_are_accepted_without_a_memory():
    agent = PPO(BOX, DISCRETE, max_seq_len=8, bptt_sequence_type=BPTTSequenceType.MAXIMUM, net_config=SMALL)
    assert not agent.recurrent
    assert agent.max_seq_len is None


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"batch_size": np.int64(64)},
        {"learn_step": np.int32(4096)},
        {"lr": np.float64(1e-4), "batch_size": np.uint8(64)},
    ],
    ids=str,
)
def test_default_ranges_are_those_of_agilerl(given):
    """As AgileRL 2.58.0 prints them for its defaults lr=1e-4, batch_size=64 and learn_step=4096."""
    agent = PPO(BOX, DISCRETE, net_config=SMALL, **given)
    ranges = {name: (each.min, each.max) for name, each in agent.hp_config.items()}
    assert ranges["lr"] == pytest.approx((1e-5, 1e-3))
    assert (ranges["batch_size"], ranges["learn_step"]) == ((16, 256), (1024, 16384))


def test_a_fraction_is_no_size_of_a_minibatch():
    with pytest.raises(ConfigurationError, match=r"batch_size=.*64\.5.*: input should be a valid integer"):
        PPO(BOX, DISCRETE, net_config=SMALL, batch_size=np.float64(64.5))


def test_default_ranges_of_whole_numbers_have_the_factors_of_agilerl():
    each = PPO(BOX, DISCRETE, net_config=SMALL).hp_config["learn_step"]
    assert (each.shrink_factor, each.grow_factor, each.dtype) == (0.75, 1.5, int)


def test_a_population_has_the_rollout_of_agilerl_and_no_unknown_settings():
    (agent,) = create_population("PPO", SMALL, {"TOURN_SIZE": 2, "ENV_NAME": "CartPole-v1"}, BOX, DISCRETE)
    assert agent.learn_step == 2048
    with pytest.raises(ConfigurationError, match="setting='bacth_size' is unknown; did you mean 'batch_size'"):
        create_population("PPO", SMALL, {"BACTH_SIZE": 8}, BOX, DISCRETE)


def test_none_as_text_is_none_as_in_converted_files():
    def made(none):
        config = {"encoder_config": {"hidden_size": [16], "output_activation": none}, "head_config": none}
        return create_population("PPO", config, {"TARGET_KL": none}, BOX, DISCRETE)[0]

    assert made("None").target_kl is None
    assert made("None").architecture == made(None).architecture


@pytest.mark.parametrize(
    ("arguments", "named", "message"),
    [
        ((BOX, DISCRETE, SMALL, {}), {}, r"net_config=Box.*; allowed are None and a mapping: .* pass them by name"),
        ((gymnasium.spaces.Dict(a=BOX), DISCRETE), {}, r"INIT_HP=Discrete.* pass them by name"),
        ((), {"state_dim": (4,)}, "argument='state_dim' is unknown; allowed are: .*observation_space"),
    ],
    ids=["spaces first", "dictionaries first", "release 1"],
)
def test_arguments_of_create_population_from_older_releases_are_refused_by_name(arguments, named, message):
    with pytest.raises(ConfigurationError, match=message):
        create_population("PPO", *arguments, **named)


def test_selection_returns_the_values_of_its_release():
    agents = PPO.population(3, BOX, DISCRETE, seed=0, net_config=SMALL, learn_step=16, batch_size=8)
    for number, agent in enumerate(agents):
        agent.fitness = [float(number)]
    elite, population, indices = TournamentSelection(2, True, 3).select(agents)
    assert (elite.index, population[0].index, len(population), indices) == (2, 2, 3, None)
    assert len(TournamentSelection(2, True, 3, 1).select(agents)) == 2
    with pytest.raises(ConfigurationError, match="eval_loop=3; allowed is 1"):
        TournamentSelection(2, True, 3, 3)


def test_the_elite_is_mutated_by_hand_unless_that_is_turned_off():
    agents = PPO.population(2, BOX, DISCRETE, seed=0, net_config=SMALL, learn_step=16, batch_size=8)
    before = [agent.hyperparameters for agent in agents]
    mutations = Mutations(0, 0, 0, 0, 0, 1, mutate_elite=False, rand_seed=0)
    mutations.mutation(agents)
    assert agents[1].hyperparameters != before[1]
    mutations.mutation(agents, pre_training_mut=True)
    assert agents[0].hyperparameters == before[0]
    Mutations(0, 0, 0, 0, 0, 1, rand_seed=0).mutation(agents, indices=[0])
    assert agents[0].hyperparameters != before[0]


def test_agents_to_mutate_are_named_by_their_index():
    agents = [agent_of(index=index) for index in (5, 1, 0)]
    before = [agent.hyperparameters for agent in agents]
    mutations = Mutations(0, 0, 0, 0, 0, 1, mutate_elite=False, rand_seed=0)
    mutations.mutation(agents, indices=[5])
    assert [agent.hyperparameters == old for agent, old in zip(agents, before, strict=True)] == [False, True, True]
    with pytest.raises(ConfigurationError, match=r"indices=\[2\] has 2; allowed are \[5, 1, 0\]"):
        mutations.mutation(agents, indices=[2])


def test_settings_of_other_algorithms_in_a_script_are_left_out():
    """As in AgileRL's tutorial of DQN with a curriculum."""
    unread = {"ALPHA": 0.6, "BETA": 0.4, "PRIOR_EPS": 1e-6, "NUM_ATOMS": 51, "V_MIN": 0.0, "V_MAX": 200.0}
    (agent,) = create_population("DQN", SMALL, {"TAU": 0.01, "TORCH_COMPILER": None, **unread}, BOX, DISCRETE)
    assert agent.tau == 0.01


def test_a_normalising_wrapper_makes_dqn_normalise():
    (agent,) = create_population("DQN", SMALL, {}, BOX, DISCRETE, agent_wrapper=RSNorm)
    assert isinstance(agent, RSNorm)
    assert agent.normalize_observation is True


def test_scores_are_those_of_the_episodes():
    agent = agent_of(num_envs=2)
    collect_rollouts(agent, vector_of(AutoresetMode.SAME_STEP), n_steps=4)
    assert agent.scores == [2.0] * 4
    agent.add_scores([10.0, [20.0, 1.0]])
    assert agent.scores[4:] == [10.0, 21.0]


def test_rows_of_a_minibatch_are_drawn():
    def filled():
        buffer = agent_of(num_envs=1).rollout_buffer
        for step in range(16):
            buffer.add(np.full((1, 3), step), [0], [float(step)], [0.0], [0.0], [0.0], np.zeros((1, 3)))
        return buffer

    buffer = filled()
    rewards = [buffer.get(8)["rewards"].tolist() for _ in range(2)]
    assert rewards[0] != rewards[1]
    assert len({*rewards[0]}) == 8
    assert filled().get(8)["rewards"].tolist() == rewards[0]  # it follows from the agent's seed
    with pytest.raises(ConfigurationError, match="batch_size=17; allowed are 1 to 16"):
        buffer.get_tensor_batch(17)


def test_an_activation_is_changed_by_its_name():
    network = EvolvableMLP(3, 2, [16], random_seed=0)
    assert network.change_activation("ReLU") == {}
    assert network.change_activation("ELU", output=False) == {"activation": "ELU"}
    assert network.activation == "ELU"
    with pytest.raises(ConfigurationError, match="output=True is not available"):
        network.change_activation("Tanh", output=True)


def test_a_clone_of_a_module_is_independent_of_it():
    network, x = EvolvableMLP(3, 2, [16], random_seed=0), torch.ones(1, 3)
    clone, before = network.clone(), network(x)
    clone.add_node(hidden_layer=0, numb_new_nodes=16)
    with torch.no_grad():
        clone.get_output_dense().bias.add_(1.0)
    assert (type(clone), network.hidden_size, clone.hidden_size) == (EvolvableMLP, [16], [32])
    assert torch.equal(network(x), before)


def test_mutations_of_a_module_are_drawn_by_their_kind_among_the_legal_ones():
    network = EvolvableMLP(3, 2, [16, 16], min_mlp_nodes=16)
    assert network.mutation_methods == ["add_layer", "remove_layer", "add_node", "remove_node"]
    draws = [
        {network.sample_mutation_method(prob, np.random.default_rng(seed)) for seed in range(20)} for prob in (0, 1)
    ]
    assert draws == [{"add_node"}, {"add_layer", "remove_layer"}]  # no layer can lose nodes
    network.change_activation("Tanh")
    assert network.sample_mutation_method(0.0) == "add_node"
    with pytest.raises(ConfigurationError, match="new_layer_prob=2; allowed are 0 to 1"):
        network.sample_mutation_method(2)
    assert EvolvableMLP(3, 2, [16], max_hidden_layers=1).sample_mutation_method(1.0) == "add_node"
    fixed = EvolvableMLP(3, 2, [16], max_hidden_layers=1, min_mlp_nodes=16, max_mlp_nodes=16)
    with pytest.raises(ConfigurationError, match=r"no mutation is legal for MLPSpec.*; allowed are wider limits"):
        fixed.sample_mutation_method(0.2)


def test_a_network_that_is_made_evolvable_computes_the_same():
    network = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 2), nn.Sigmoid())
    x = torch.randn(7, 4, generator=torch.Generator().manual_seed(0))
    evolvable = MakeEvolvable(network, x)
    torch.testing.assert_close(evolvable(x), network(x))
    assert evolvable.spec.hidden_size == (64, 32)
    with pytest.raises(
        ConfigurationError, match=r"network has layers \['Linear', 'Linear'\]; allowed are linear layers"
    ):
        MakeEvolvable(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), x)


def test_what_cannot_be_is_refused_by_name():
    spaces = {"a_0": BOX}, {"a_0": DISCRETE}
    with pytest.raises(ConfigurationError, match=r"(?s)actor_networks=.*allowed is a mapping"):
        IPPO(*spaces, actor_networks=[nn.Linear(3, 2)])
    with pytest.raises(ConfigurationError, match=r"collect_rollouts_fn=.*; allowed are None and collect_rollouts"):
        train_on_policy(Limited(), pop=[agent_of()], collect_rollouts_fn=print)
    with pytest.raises(ConfigurationError, match="normalize_observation=False; allowed is True"):
        RSNorm(agent_of(normalize_observation=False))
    with pytest.raises(ConfigurationError, match="experiences is a dict; allowed is None"):
        agent_of().learn({})


def test_absent_modules_are_named_and_others_are_left_to_python():
    for name, reason in {
        "algorithms.td3": "off-policy",
        "algorithms.grpo": "language models",
        "training.train_bandits": "bandits",
        "hpo.multi_frequency": "agilerl_like.hpo.MultiFrequencySelection",
        "algorithms.core.wrappers": "own_algorithm.py",
        "components.replay_data": "priorities",
        "networks.evolvable_mlp": r"agilerl_like\.agilerl\.modules has EvolvableMLP",
        "protocols": "annotations",
        "training.train_multi_agent": "train_multi_agent_on_policy",
        "utils.evolvable_networks": "net_config",
        "utils.probe_envs": r"`agilerl-like probe` .* agilerl_like\.envs\.probe_envs",
        "nothing": "no such name is in AgileRL",
    }.items():
        with pytest.raises(ImportError, match=rf"agilerl_like\.agilerl\.{name} is not available: .*{reason}"):
            importlib.import_module(f"agilerl_like.agilerl.{name}")
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'agilerl_like\.nothing'"):
        importlib.import_module("agilerl_like.nothing")


@pytest.mark.parametrize(
    ("module", "name", "reason"),
    [
        ("algorithms.core", "OptimizerWrapper", "own_algorithm.py"),
        ("algorithms.core", "wrappers", "own_algorithm.py"),
        ("algorithms.core.base", "RLAlgorithm", "own_algorithm.py"),
        ("algorithms.core.registry", "NetworkGroup", "own_algorithm.py"),
        ("utils.utils", "initialPopulation", "create_population"),
        ("algorithms", "CQN", "agilerl_like has other algorithms"),
    ],
)
def test_absent_names_are_refused_with_what_is_used_instead(module, name, reason):
    with pytest.raises(ImportError, match=rf"{module}\.{name} is not available: .*{reason}"):
        exec(f"from agilerl_like.agilerl.{module} import {name}")


def test_a_package_has_the_name_of_an_absent_module_elsewhere():
    exec("from agilerl_like.agilerl import wrappers")


def test_absent_algorithms_are_refused_as_their_imports_are():
    for algo, reason in {
        "TD3": "agilerl_like has TD3 and DDPG with",
        "Rainbow DQN": "only DQN",
        "CQN": "offline",
    }.items():
        with pytest.raises(ConfigurationError, match=rf"algo='{algo}' is not available: .*{reason}"):
            create_population(algo, observation_space=BOX, action_space=DISCRETE)
    with pytest.raises(ConfigurationError, match="algo='ppo' is unknown; did you mean 'PPO'"):
        create_population("ppo", observation_space=BOX, action_space=DISCRETE)


def test_agents_without_an_observation_neither_act_nor_learn():
    ids = ["a_0", "b_0"]
    team = AsyncAgentsWrapper(IPPO(dict.fromkeys(ids, BOX), dict.fromkeys(ids, DISCRETE), seed=0, net_config=SMALL))
    seen = np.zeros((2, 3), np.float32)
    half = np.stack([np.full(3, np.nan), np.zeros(3)]).astype(np.float32)
    inactive, active = team.extract_inactive_agents({"a_0": half, "b_0": np.full((2, 3), np.nan)})
    assert {agent: rows.tolist() for agent, rows in inactive.items()} == {"a_0": [0], "b_0": [0, 1]}
    assert list(active) == ["a_0"]
    assert list(team.get_action({"a_0": half, "b_0": np.full((2, 3), np.nan)})[0]) == ["a_0"]
    assert list(team.get_action({"a_0": seen, "b_0": seen})[0]) == ids


def test_other_names_are_unknown_as_python_has_it():
    """`hasattr` and pickle ask modules for names of other packages."""
    assert not hasattr(agilerl_like.agilerl, "expit")
    with pytest.raises(ImportError, match="cannot import name 'expit'"):
        exec("from agilerl_like.agilerl.utils.utils import expit")


def test_empty_ranges_are_not_replaced_by_default_ones():
    assert len(agent_of(hp_config=HyperparameterConfig()).hp_config) == 0


def test_a_network_without_hidden_layers():
    assert EvolvableMLP(4, 2, [])(torch.zeros(1, 4)).shape == (1, 2)


def test_choices_are_printed(capsys):
    ranges = HyperparameterConfig(lr=RLParameter(1e-4, 1e-2), lr_schedule=Choice(["linear", "cosine"]))
    print_hyperparams([agent_of(lr=3e-4, lr_schedule="linear", hp_config=ranges)])
    assert "lr=0.0003, lr_schedule=linear; mutation" in capsys.readouterr().out


def test_unknown_arguments_of_make_evolvable_are_named():
    network, x = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2)), torch.zeros(1, 4)
    MakeEvolvable(network, x, output_vanish=True)
    with pytest.raises(ConfigurationError, match="argument='max_mlp_node' is unknown; did you mean 'max_mlp_nodes'"):
        MakeEvolvable(network, x, max_mlp_node=128)


def test_an_empty_rollout_buffer_is_named():
    buffer = RolloutBuffer(2, BOX, DISCRETE)
    for call in (buffer.get, buffer.content, lambda: buffer.compute_returns_and_advantages(0.0, 0.0)):
        with pytest.raises(ConfigurationError, match="the rollout buffer is empty"):
            call()


def test_returns_are_there_once_they_are_computed():
    buffer, zeros = RolloutBuffer(3, BOX, DISCRETE, gamma=0.5), np.zeros((1, 3), np.float32)
    for _ in range(2):
        buffer.add(zeros, [0], [1.0], [0.0], [0.0], [0.0], zeros)
    assert not {"returns", "advantages"} & buffer.get().keys()
    buffer.compute_returns_and_advantages([0.0], [0.0])
    assert len(buffer.get()["returns"]) == 2
    buffer.add(zeros, [0], [1.0], [0.0], [0.0], [0.0], zeros)
    assert "returns" not in buffer.get()


def test_a_replay_holds_the_last_of_more_rows_than_places():
    memory = ReplayBuffer(3)
    memory.add({"obs": torch.arange(2.0)})
    memory.add({"obs": torch.arange(2.0, 10.0)})
    assert memory.storage["obs"].flatten().tolist() == [9.0, 7.0, 8.0]
    assert (len(memory), memory.counter) == (3, 10)
    memory.add({"obs": torch.tensor([10.0])})  # in the place of the oldest row
    assert memory.storage["obs"].flatten().tolist() == [9.0, 10.0, 8.0]


def test_a_replay_that_exceeds_the_memory_is_refused():
    memory = ReplayBuffer(10**12)
    row = {"obs": torch.zeros(1, 3), "reward": torch.zeros(1)}
    with pytest.raises(ConfigurationError, match=r"max_size=1000000000000 needs at least 16 TB .* transitions"):
        memory.add(row)
    assert not memory.initialized


@pytest.mark.parametrize(
    ("space", "obs"),
    [
        (gymnasium.spaces.Discrete(5), np.array([3, 0])),
        (gymnasium.spaces.MultiDiscrete([5, 2]), np.array([[3, 1], [0, 0]])),
        (gymnasium.spaces.Dict({"card": gymnasium.spaces.Discrete(5)}), {"card": np.array([3, 0])}),
        (gymnasium.spaces.Tuple([BOX, gymnasium.spaces.Discrete(5)]), (np.ones((2, 3), np.float32), np.array([3, 0]))),
        (
            gymnasium.spaces.Dict(hand=gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(5)] * 3)),
            {"hand": (np.array([3, 0]), np.array([1, 4]), np.array([2, 2]))},
        ),
    ],
    ids=["Discrete", "MultiDiscrete", "Dict", "Tuple", "Tuple in a Dict"],
)
def test_dqn_learns_from_whole_numbers_in_a_replay(space, obs):
    agent, memory = DQN(space, gymnasium.spaces.Discrete(2), seed=0), ReplayBuffer(8)
    action, reward, done = agent.get_action(obs), np.ones(2), np.zeros(2)
    memory.add(Transition(obs, action, obs, reward, done).to_tensordict())
    assert np.isfinite(agent.learn(memory.sample(2)))


def test_parts_of_a_tuple_are_stored_by_the_names_of_agilerl():
    space = gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(40)] * 11)
    obs, zeros = tuple(np.arange(place, place + 2) for place in range(11)), np.zeros(2)
    rows = Transition(obs, zeros, obs, zeros, zeros).to_tensordict()
    assert [*rows["obs"].keys()] == [f"tuple_obs_{place}" for place in range(11)]
    restored = observation_of(space, rows["obs"])
    assert [part.tolist() for part in restored] == [part.tolist() for part in obs]


def test_dictionaries_with_such_names_stay_dictionaries():
    named = {"tuple_obs_0": np.zeros(2)}
    assert observation_of(gymnasium.spaces.Dict(tuple_obs_0=gymnasium.spaces.Discrete(2)), named) == named


def test_the_dimensions_of_a_state_are_those_of_all_its_parts():
    image, gear = gymnasium.spaces.Box(0, 255, (16, 16, 3), np.uint8), gymnasium.spaces.Discrete(4)
    assert PPO.get_state_dim(BOX) == (3,)
    assert PPO.get_state_dim(gymnasium.spaces.Dict(camera=image, gear=gear)) == {"camera": (3, 16, 16), "gear": (4,)}
    nested = gymnasium.spaces.Tuple([BOX, gymnasium.spaces.Dict(gear=gear)])
    assert PPO.get_state_dim(nested) == ((3,), {"gear": (4,)})


def test_dqn_has_no_double_estimates_by_default_as_in_agilerl():
    assert DQN(BOX, DISCRETE, net_config=SMALL).double is False
    (agent,) = create_population("DQN", SMALL, {"DOUBLE": True}, BOX, DISCRETE)
    assert agent.double is True


def test_learning_begins_where_the_agents_say_unless_the_call_does():
    env = gymnasium.make("CartPole-v1")
    spaces = env.observation_space, env.action_space
    assert [DQN(*spaces, **more).learning_starts for more in ({}, {"learning_starts": 30})] == [0, 30]
    run = {"max_steps": 64, "evo_steps": 64, "verbose": False}
    for delay, expected in ((None, 30), (20, 20)):
        agents = DQN.population(2, *spaces, net_config=SMALL, seed=0, learning_starts=30)
        trained, _ = train_off_policy(env, pop=agents, learning_delay=delay, **run)
        assert [agent.learning_starts for agent in trained] == [expected] * 2


def test_every_step_may_begin_an_episode():
    buffer, zeros = RolloutBuffer(3, BOX, DISCRETE), np.zeros((1, 3), np.float32)
    for start in (None, 1.0, None):
        buffer.add(zeros, [0], [1.0], [0.0], [0.0], [0.0], zeros, episode_start=start)
    starts = buffer.content().experiences[4]
    assert [float(start[0]) for start in starts] == [1.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"batch_size": 128}, 128),
        ({"batch_size": 512}, 192),
        ({"batch_size": 512, "num_envs": 48}, 288),  # two steps of each env
        ({"batch_size": 128, "groups": {"agent_2": "other"}}, 64),
    ],
)
def test_a_minibatch_of_a_team_is_at_most_the_rollout_of_its_smallest_group(given, expected):
    ids = ["agent_0", "agent_1", "agent_2"]
    spaces = dict.fromkeys(ids, BOX), dict.fromkeys(ids, DISCRETE)
    team = IPPO(*spaces, learn_step=64, net_config=SMALL, **given)
    assert team.batch_size == expected
    assert team.hp_config["batch_size"].max == 4 * expected


def test_agents_with_equal_ids_up_to_the_last_underscore_are_a_group_as_in_agilerl():
    ids = ["drone_left", "drone_right"]
    spaces = dict.fromkeys(ids, BOX), dict.fromkeys(ids, DISCRETE)
    team = IPPO(*spaces, net_config={"drone_left": SMALL})
    assert team.shared_agent_ids == ["drone"]
    assert team.has_grouped_agents()
    assert team.learners["drone"].architecture.encoder.hidden_size == (16,)
    apart = IPPO(*spaces, net_config=SMALL, groups={"drone_right": "rear"})
    assert apart.grouped_agents == {"drone": ["drone_left"], "rear": ["drone_right"]}
    assert agilerl_like.IPPO(*spaces).shared_agent_ids == ids


def test_a_learning_rate_by_group_has_default_ranges():
    spaces = dict.fromkeys(("a_0", "b_0"), BOX), dict.fromkeys(("a_0", "b_0"), DISCRETE)
    team = IPPO(*spaces, lr={"a": 1e-3, "b": 2e-3}, net_config=SMALL)
    assert [team.lr * team.group_factors["lr"].get(group, 1.0) for group in "ab"] == pytest.approx([1e-3, 2e-3])
    assert team.hp_config["lr"].min < team.lr < team.hp_config["lr"].max
    with pytest.raises(ConfigurationError, match="lr group='c' is unknown"):
        IPPO(*spaces, lr={"c": 1e-3}, net_config=SMALL)
