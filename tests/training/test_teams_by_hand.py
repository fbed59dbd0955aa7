"""IPPO in custom loops: get_action, learn, test, shared rewards and agent ids."""

import numpy as np
import pytest
import torch
from duel_envs import CHOICES, Duel, Roles
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from pettingzoo import ParallelEnv
from small_runs import SMALL

from agilerl_like import IPPO, ConfigurationError, MultiAgentPopulation, make_multi_agent_vect_envs
from agilerl_like.envs.multi_agent.group_env import AgentGroup, MultiAgentStepSync
from agilerl_like.envs.multi_agent.probe_envs import MULTI_AGENT_PROBES
from agilerl_like.envs.multi_agent.vec_adapter import MultiAgentVecEnvAdapter
from agilerl_like.evaluation.policies import SeededEpisodes, play_side_by_side
from agilerl_like.networks.sampling import Sampling
from agilerl_like.training.collector import PhaseTimer
from agilerl_like.training.multi_agent_env_setup import MultiAgentCollector

PARTS = ("states", "actions", "log_probs", "rewards", "dones", "values")


def team_of(env, **more):
    given = {"seed": 0, "num_envs": env.num_envs, "net_config": SMALL, "batch_size": 32, "learn_step": 128, **more}
    return IPPO(env.single_observation_spaces, env.single_action_spaces, **given)


def collected(team, env, steps, seed=None):
    """Return the experiences that AgileRL's loop passes to learn."""
    parts = {name: {agent: [] for agent in team.agent_ids} for name in PARTS}
    obs, infos = env.reset(seed=seed)
    done = {agent: np.zeros(env.num_envs) for agent in team.agent_ids}
    for _ in range(steps):
        action, log_prob, _, value = team.get_action(obs, infos)
        next_obs, reward, terminated, truncated, infos = env.step(action)
        for name, part in zip(PARTS, (obs, action, log_prob, reward, done, value), strict=True):
            for agent in team.agent_ids:
                parts[name][agent].append(part[agent])
        obs, done = next_obs, {agent: terminated[agent] | truncated[agent] for agent in team.agent_ids}
    return (*parts.values(), obs, done)


@pytest.mark.slow
def test_a_custom_loop_learns():
    env = make_multi_agent_vect_envs(Duel, 8, backend="sync")
    team = team_of(env, lr=1e-2, gamma=0.5)
    before = [team.test(env, loop=20, sum_scores=False), team.fitness[-1]]
    for _ in range(60):
        losses = team.learn(collected(team, env, 16, seed=1))
        assert set(losses) == {"red", "blue"}
    team.set_training_mode(False)
    seen = np.eye(CHOICES, dtype=np.float32)
    action, *_ = team.get_action({"red_0": seen, "blue_0": seen})
    assert [action[agent].tolist() for agent in team.agent_ids] == [[0, 1, 2], [0, 1, 2]]
    assert not team.training
    assert before[1] == 0.0  # what one side wins the other loses
    assert before[0].sum() == 0
    assert before[0].any()
    assert team.test(env, loop=20, sum_scores=False).tolist() == [0.0, 0.0]  # both sides are right
    assert team.fitness == [0.0, 0.0]


def test_agilerls_attribute_names_exist():
    env = make_multi_agent_vect_envs(MULTI_AGENT_PROBES["OwnObservation"].make, 4, backend="sync")
    team = team_of(env)
    assert team.shared_agent_ids == list(team.groups)
    assert team.grouped_agents == {"speaker": ["speaker_0"], "listener": ["listener_0", "listener_1"]}
    assert team.has_grouped_agents()
    assert not IPPO(*({"solo_0": one, "duo_0": one} for one in (Box(-1, 1, (2,)), Discrete(2)))).has_grouped_agents()
    assert team.possible_action_spaces == dict(env.single_action_spaces)
    assert team.possible_observation_spaces == dict(env.single_observation_spaces)
    for agent in team.agent_ids:
        group = team.get_group_id(agent)
        assert team.actors[group] is team.learner_of(agent).actor is team.get_policy()[group]
        assert team.critics[group] is team.learner_of(agent).critic
        assert not team.actors[group].squash_output
    with pytest.raises(ConfigurationError, match="agent_id='bob' is unknown"):
        team.get_group_id("bob")
    assert set(team.evolvable_attributes()) == {"actors", "critics"}


def test_learn_updates_each_groups_learner():
    env = make_multi_agent_vect_envs(MULTI_AGENT_PROBES["OwnObservation"].make, 4, backend="sync")
    team, twin = team_of(env), team_of(env)
    experiences = collected(team, env, 8, seed=3)
    for learner in (team, twin):
        learner.set_training_mode(True)
    team.learn(experiences)
    for group, ids in twin.groups.items():
        rows = [
            [
                np.stack([part[agent][t] for agent in ids], 1).reshape(4 * len(ids), *part[ids[0]][t].shape[1:])
                for t in range(8)
            ]
            for part in experiences[:6]
        ]
        last = [
            np.stack([part[agent] for agent in ids], 1).reshape(4 * len(ids), *part[ids[0]].shape[1:])
            for part in experiences[6:]
        ]
        twin.learners[group].learn((*rows, *last))
        mine, its = team.learners[group].network.state_dict(), twin.learners[group].network.state_dict()
        assert all(torch.equal(mine[name], tensor) for name, tensor in its.items())


def test_a_recurrent_group_learns_by_its_learner_which_takes_the_hidden_state():
    env = make_multi_agent_vect_envs(Duel, 4, backend="sync")
    team, experiences = team_of(env, recurrent=True), collected(team_of(env), env, 8, seed=1)
    with pytest.raises(
        ConfigurationError, match=r"group 'red' is recurrent.*learners\['red'\]\.learn\(.*hidden_state=…"
    ):
        team.learn(experiences)
    its, twin = tuple(part["red_0"] for part in experiences), team.clone()
    zeros = team.learners["red"].get_initial_hidden_state(4)
    *_, state = team.learners["red"].get_action(its[0][0], hidden_state=zeros)
    losses = [one.learners["red"].learn(its, hidden_state=given) for one, given in ((team, state), (twin, zeros))]
    assert np.isfinite(losses).all()
    assert losses[0] != losses[1]  # the rollout begins within an episode
    env.close()


def test_only_agents_with_observations_act_and_env_defined_actions_override():
    spaces = {"a_0": Box(-1, 1, (3,)), "a_1": Box(-1, 1, (3,)), "b_0": Dict({"x": Box(-1, 1, (2,)), "n": Discrete(3)})}
    team = IPPO(spaces, dict.fromkeys(spaces, Discrete(4)), seed=0, agent_id_one_hot=True, net_config=None)
    obs = {"a_1": np.zeros(3, np.float32), "b_0": {"x": np.zeros((1, 2), np.float32), "n": np.array([1])}}
    mask = np.array([False, False, True, False])
    action, log_prob, entropy, value = team.get_action(obs, {"a_1": {"action_mask": mask}})
    assert list(action) == ["a_1", "b_0"]
    assert action["a_1"].tolist() == [2]
    assert np.allclose(log_prob["a_1"], 0.0, atol=1e-6)
    assert np.allclose(entropy["a_1"], 0.0, atol=1e-5)
    assert value["b_0"].shape == (1,)
    defined = {"b_0": {"env_defined_actions": np.array([3.0])}, "a_1": {"env_defined_actions": np.array([np.nan])}}
    team.set_training_mode(False)
    free, *_ = team.get_action(obs)
    actions, *_ = team.get_action(obs, defined)
    assert actions == {"a_1": free["a_1"], "b_0": np.array([3])}


def test_the_log_probability_is_that_of_the_action_that_the_env_defined():
    spaces = {f"a_{i}": Box(-1, 1, (3,)) for i in range(2)}
    team = IPPO(spaces, dict.fromkeys(spaces, Discrete(3)), seed=0)
    with torch.no_grad():
        team.learners["a"].network.actor.head.get_parameter("linears.1.bias").copy_(torch.tensor([-3.0, 0.0, 3.0]))
    obs = {agent: np.zeros((4, 3), np.float32) for agent in spaces}
    given = {"a_0": {"env_defined_actions": np.array([0, 1, 2, np.nan]), "action_mask": np.ones((4, 3), np.bool_)}}
    action, log_prob, *_ = team.get_action(obs, given)
    assert action["a_0"][:3].tolist() == [0, 1, 2]
    for agent in spaces:
        found = team.learner_of(agent).evaluate_actions(obs[agent], action[agent])[0]
        np.testing.assert_allclose(log_prob[agent], found.detach().numpy(), rtol=1e-5, atol=1e-6)
    assert log_prob["a_0"][0] < -5


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        ({"stranger_0": np.zeros(3)}, "stranger_0.*red_0"),
        ({"red_0": np.zeros((2, 4), np.float32)}, "agent 'red_0'.*shape"),
        ({"red_0": {"x": 1}}, "agent 'red_0'"),
    ],
)
def test_invalid_observations_are_named(obs, message):
    team = team_of(make_multi_agent_vect_envs(Duel, 1, backend="sync"))
    with pytest.raises(ConfigurationError, match=message):
        team.get_action(obs)


def test_invalid_experiences_are_named():
    env = make_multi_agent_vect_envs(Duel, 2, backend="sync")
    team = team_of(env)
    whole = collected(team, env, 4, seed=1)
    for place, change, message in (
        (3, {"red_0": whole[3]["red_0"]}, "rewards has nothing of agent.*'blue_0'"),
        (1, {**whole[1], "red_0": whole[1]["red_0"][:2]}, r"actions\['red_0'\] has 2 steps; states has 4"),
        (3, {**whole[3], "red_0": [np.array([np.inf, 0.0])] * 4}, "rewards holds inf"),  # nan: the agent did not act
        (4, {**whole[4], "red_0": [np.array([7.0, 0.0])] * 4}, "dones or next_done holds 7; allowed are 0 and 1"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            team.learn((*whole[:place], change, *whole[place + 1 :]))
    with pytest.raises(ConfigurationError, match="experiences must be"):
        team.learn(None)


def test_masks_apply_in_learn():
    """With a single legal action the policy has no gradient: it must not change."""
    env = make_multi_agent_vect_envs(Duel, 4, backend="sync")
    team = team_of(env, ent_coef=0.0, lr=1e-2)
    only = np.tile([True, False, False], (4, 1))
    masked = {agent: {"action_mask": only} for agent in team.agent_ids}
    experiences = collected(team, _Telling(env, masked), 8, seed=1)
    before = {group: learner.network.actor.state_dict() for group, learner in team.learners.items()}
    before = {group: {name: x.clone() for name, x in its.items()} for group, its in before.items()}
    team.learn(experiences, {agent: [only] * 8 for agent in team.agent_ids})
    for group, learner in team.learners.items():
        after = learner.network.actor.state_dict()
        assert all(torch.equal(after[name], x) for name, x in before[group].items() if "norm" not in name)
    with pytest.raises(ConfigurationError, match="action_masks"):
        team.learn(experiences, {agent: [only[:, 0]] * 8 for agent in team.agent_ids})


@pytest.mark.parametrize(
    ("space", "choices"), [(Box(-1, 1, (2,)), 0), (MultiDiscrete([2, 3]), 5), (Discrete(3), 3)], ids=repr
)
def test_a_loop_over_one_env_may_leave_out_the_axis_of_envs(space, choices):
    ids, steps, rng = ("a_0", "a_1"), 8, np.random.default_rng(0)
    space.seed(0)

    def by_agent(draw):
        return {agent: [draw() for _ in range(steps)] for agent in ids}

    def seen():
        return rng.uniform(-1, 1, 3).astype(np.float32)

    log_probs, rewards, values = (by_agent(rng.random) for _ in range(3))
    over_time = by_agent(seen), by_agent(space.sample), log_probs, rewards, by_agent(lambda: 0.0), values
    last = {agent: seen() for agent in ids}, dict.fromkeys(ids, 1.0)
    masks = by_agent(lambda: np.ones(choices, np.bool_)) if choices else None

    def with_axis(parts):
        return {agent: [np.asarray(step)[None] for step in its] for agent, its in parts.items()}

    observed = dict.fromkeys(ids, Box(-1, 1, (3,)))
    bare, wide = (
        IPPO(observed, dict.fromkeys(ids, space), seed=0, num_envs=1, learn_step=8, batch_size=8, net_config=SMALL)
        for _ in range(2)
    )
    bare.learn((*over_time, *last), masks)
    last = ({agent: np.asarray(part)[None] for agent, part in parts.items()} for parts in last)
    wide.learn((*map(with_axis, over_time), *last), masks and with_axis(masks))
    states = (team.learners["a"].network.state_dict() for team in (bare, wide))
    assert all(map(torch.equal, *(its.values() for its in states)))


class _Telling:
    """An env whose observations include action masks."""

    def __init__(self, env, infos):
        self.env, self.infos, self.num_envs = env, infos, env.num_envs

    def reset(self, seed=None):
        return self.env.reset(seed=seed)[0], self.infos

    def step(self, actions):
        return (*self.env.step(actions)[:4], self.infos)


def test_test_accepts_a_parallel_env_and_plays_exactly_loop_episodes():
    team = team_of(make_multi_agent_vect_envs(MULTI_AGENT_PROBES["EarlyDeath"].make, 1, backend="sync"))
    world = MULTI_AGENT_PROBES["EarlyDeath"].make()
    assert np.isclose(team.test(world, loop=3), 2.4)
    assert np.isclose(team.test(world, loop=1, sum_scores=False), [1.0, 1.4]).all()
    for wrong, message in ((MULTI_AGENT_PROBES["EarlyDeath"].make, "parallel envs"), (5, "parallel envs")):
        with pytest.raises(ConfigurationError, match=message):
            team.test(wrong)
    with pytest.raises(ConfigurationError, match="loop=0"):
        team.test(world, loop=0)


@pytest.mark.parametrize(("rewards", "given"), [("individual", [1, 2]), ("sum", [3, 3]), ("mean", [1.5, 1.5])])
def test_rewards_are_individual_summed_or_averaged(rewards, given):
    class Paid(Roles):
        def step(self, actions):
            observations, _, *rest = super().step(actions)
            return observations, {"twin_0": 1.0, "twin_1": 2.0}, *rest

    env = MultiAgentVecEnvAdapter(make_multi_agent_vect_envs(Paid, 2, backend="sync"))
    space = env.single_observation_spaces["twin_0"], env.single_action_spaces["twin_0"]
    step_sync = MultiAgentStepSync(
        env, {"twin": AgentGroup(["twin_0", "twin_1"], *space, agent_id_one_hot=False)}, rewards
    )
    (group,) = step_sync.groups.values()
    group.set_num_members(1)
    group.reset([1, 2])
    group.step_async(0, np.zeros(4, np.int64))
    assert group.step_wait(0).reward.tolist() == given * 2
    episodes = step_sync.episodes[0].take()
    assert (episodes.returns.tolist(), episodes.counts.tolist()) == ([3.0, 3.0], [1, 1])


def test_absent_agents_get_no_shared_reward_and_do_not_count_in_the_mean():
    env = MultiAgentVecEnvAdapter(make_multi_agent_vect_envs(MULTI_AGENT_PROBES["EarlyDeath"].make, 1, backend="sync"))
    rows = {
        agent: AgentGroup(
            [agent], env.single_observation_spaces[agent], env.single_action_spaces[agent], agent_id_one_hot=True
        )
        for agent in env.agent_ids
    }
    means, sums = [], []
    for rewards, found in (("mean", means), ("sum", sums)):
        step_sync = MultiAgentStepSync(env, rows, rewards)
        env.set_num_members(1)
        step_sync.reset([1])
        for _ in range(2):
            for agent in env.agent_ids:
                step_sync.step_async(0, {agent: np.zeros(1, np.int64)})
            steps = [step_sync.step_wait(0) for _ in env.agent_ids]
            found.append(
                [(float(steps[0].reward[agent][0]), bool(steps[0].valid[agent][0])) for agent in env.agent_ids]
            )
    for mean, total in zip(means, sums, strict=True):
        living = sum(there for _, there in mean)
        assert all((share, there) == (0.0, False) for share, there in (*mean, *total) if not there)
        assert {round(share * living, 5) for share, there in mean if there} == {
            round(share, 5) for share, there in total if there
        }
    assert [sum(there for _, there in step) for step in means] == [3, 2]


@pytest.mark.parametrize("named", [True, False])
def test_agents_with_equal_observations_differ_only_with_agent_ids(named):
    env = make_multi_agent_vect_envs(Roles, 8, backend="sync")
    team = team_of(env, agent_id_one_hot=named, lr=1e-2, learn_step=64)
    collector = MultiAgentCollector(
        MultiAgentPopulation([team]), MultiAgentVecEnvAdapter(env), PhaseTimer(("env", "act", "learn"))
    )
    collector.reset([0])
    for _ in range(200):
        collector.collect(1)
        collector.learn()
    score = team.test(env, loop=5)
    assert score == (2.0 if named else 1.0)
    copy = IPPO.from_documents(*team.to_documents(), device="cpu", where="memory")
    assert copy.agent_id_one_hot is named
    assert copy.test(env, loop=5) == score


def test_agent_ids_are_appended_to_vectors_and_added_to_other_observations():
    vector, image = Box(-2, 2, (2,)), Box(0, 255, (4, 4, 3), np.uint8)
    rows = AgentGroup(["a_0", "a_1"], vector, Discrete(2), agent_id_one_hot=True)
    assert rows.single_observation_space == Box(np.float32([-2, -2, 0, 0]), np.float32([2, 2, 1, 1]))
    seen = {"a_0": np.float32([[1, 2]]), "a_1": np.float32([[-1, 0]])}
    assert rows.observation_rows(seen).tolist() == [[1, 2, 1, 0], [-1, 0, 0, 1]]
    rows = AgentGroup(["a_0", "a_1"], image, Discrete(2), agent_id_one_hot=True)
    looked = rows.observation_rows(
        {agent: np.full((3, 4, 4, 3), i, np.uint8) for i, agent in enumerate(rows.agent_ids)}
    )
    assert looked["agent_id"].tolist() == [[1, 0], [0, 1]] * 3
    assert looked["observation"][:, 0, 0, 0].tolist() == [0, 1] * 3
    with pytest.raises(ConfigurationError, match="agent_id"):
        AgentGroup(["a_0", "a_1"], Dict({"agent_id": vector}), Discrete(2), agent_id_one_hot=True)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"rewards": "shared"}, "rewards.*'shared'.*individual"), ({"agent_id_one_hot": 1}, "agent_id_one_hot=1")],
)
def test_multi_agent_settings_are_validated(wrong, message):
    with pytest.raises(ConfigurationError, match=message):
        team_of(make_multi_agent_vect_envs(Duel, 1, backend="sync"), **wrong)


class Turns(ParallelEnv):
    """Two players in turns, of which the second begins a step later; returns show which actions were taken."""

    def __init__(self):
        self.metadata, self.possible_agents, self.render_mode = {"name": "turns"}, ["p_0", "p_1"], None

    def observation_space(self, agent):
        return Box(-1, 1, (3,))

    def action_space(self, agent):
        return Discrete(3)

    def _observe(self):
        return self.rng.uniform(-1, 1, 3).astype(np.float32)

    def reset(self, seed=None, options=None):
        self.rng, self.count, self.agents = np.random.default_rng(seed), 0, ["p_0"]
        return {"p_0": self._observe()}, {"p_0": {}}

    def step(self, actions):
        ((agent, action),) = actions.items()
        self.count += 1
        after, over = f"p_{self.count % 2}", self.count == 8
        rewards = {its: 3.0**self.count * int(action) if its == agent else 0.0 for its in self.possible_agents}
        self.agents = [] if over else [after]
        observations = {agent: self._observe(), after: self._observe()}
        ends = dict.fromkeys(self.possible_agents, over)
        return observations, rewards, ends, dict.fromkeys(ends, False), {its: {} for its in ends}


def returns_by_predict(team, seed):
    """Play a game of Turns with `predict`: states are zero until an agent's first action, and change in each step."""
    env = Turns()
    latest, _ = env.reset(seed)
    states, total = {}, 0.0
    while env.agents:
        (agent,) = env.agents
        begun = {its: latest[its] for its in env.possible_agents if its in states or its == agent}
        actions, states = team.predict(begun, states, deterministic=True)
        observations, rewards, *_ = env.step({agent: actions[agent]})
        latest |= observations
        total += sum(rewards.values())
    return total


def test_a_recurrent_team_is_evaluated_with_the_hidden_states_that_it_is_trained_with():
    env = make_multi_agent_vect_envs(Turns, 2, backend="sync")
    for seed in range(6):
        team = team_of(env, recurrent=True, seed=seed)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in team.learners["p"].network.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.5)
        adapter = MultiAgentVecEnvAdapter(env)
        played = team.run_episodes(adapter, [1, 2, 3]).returns[0]
        assert played.tolist() == [returns_by_predict(team, game) for game in (1, 2, 3)]
        alone = play_side_by_side([team, team], SeededEpisodes(adapter), 2, Sampling())
        assert alone.returns.tolist() == [[played[1]]] * 2
