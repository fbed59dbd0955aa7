"""`predict` takes action masks, as MaskablePPO does, and an agent that learned with them warns where it gets none."""

import warnings

import gymnasium
import numpy as np
import pytest
import torch
from game_envs import Nim
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

from agilerl_like import (
    DQN,
    IPPO,
    PPO,
    PQN,
    ConfigurationError,
    OpenAIES,
    QLearning,
    make_multi_agent_vect_envs,
    make_vect_envs,
    train_on_policy,
)
from agilerl_like.algorithms.serialization import read_flag

STEPS = 5
LEGAL = np.array([True, True, False])


class Trapped(gymnasium.Env):
    """Pays 1 for a legal action and -10 for action 2, which its mask forbids; an episode has 5 steps."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = STEPS
        return np.zeros(2, np.float32), {"action_mask": LEGAL}

    def step(self, action):
        self.left -= 1
        return np.zeros(2, np.float32), 1.0 if LEGAL[action] else -10.0, self.left == 0, False, {"action_mask": LEGAL}


def lured_agent(**kwargs):
    """An agent whose policy prefers the illegal action, as a masked one may: nothing ever taught it otherwise."""
    agent = PPO(
        Trapped.observation_space, Trapped.action_space, seed=0, num_envs=2, learn_step=8, batch_size=8, **kwargs
    )
    with torch.no_grad():
        bias = [parameter for parameter in agent.actor.parameters() if parameter.shape == (3,)][-1]
        bias.copy_(torch.tensor([0.0, 0.0, 20.0]))
    return agent


def learn_a_rollout(agent, masks):
    states = [np.zeros((2, 2), np.float32)] * 4
    acted = [agent.get_action(state, action_mask=masks) for state in states]
    actions, log_probs, _, values = (list(column) for column in zip(*(result[:4] for result in acted), strict=True))
    flags = [np.ones(2), *[np.zeros(2)] * 3]
    action_masks = None if masks is None else [masks] * 4
    agent.learn(
        (states, actions, log_probs, [np.ones(2)] * 4, flags, values, states[0], np.zeros(2)), action_masks=action_masks
    )


def score(agent, **given):
    """The return of an episode played by `predict`."""
    env = Trapped()
    obs, _ = env.reset()
    total, ended = 0.0, False
    while not ended:
        action, _ = agent.predict(obs, deterministic=True, **given)
        obs, reward, ended, _, _ = env.step(int(action))
        total += reward
    return total


def test_a_masked_agent_scores_the_same_by_predict_as_by_its_own_test():
    agent = lured_agent()
    assert agent.test(Trapped(), loop=1) == STEPS
    assert score(agent, action_masks=LEGAL) == STEPS
    assert score(agent) == -10 * STEPS  # no warning: it has not learned with masks
    batch = np.tile(LEGAL, (50, 1))
    sampled, _ = agent.predict(np.zeros((50, 2)), action_masks=batch)
    assert set(sampled.tolist()) == {0, 1}


def test_a_mask_of_another_size_is_named():
    with pytest.raises(ConfigurationError, match=r"action_mask has shape \(1, 2\); allowed is \(1, 3\)"):
        lured_agent().predict(np.zeros(2), action_masks=LEGAL[:2])


@pytest.mark.parametrize(("method", "argument"), [("predict", "action_masks"), ("get_action", "action_mask")])
def test_an_agent_that_learned_with_masks_warns_once_without_them(tmp_path, method, argument):
    agent = lured_agent()
    learn_a_rollout(agent, None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        getattr(agent, method)(np.zeros(2))  # it never saw a mask
    learn_a_rollout(agent, np.tile(LEGAL, (2, 1)))
    for one in (agent, agent.clone(index=1), PPO.load(agent.save_checkpoint(tmp_path / "agent"))):
        act = getattr(one, method)
        with pytest.warns(UserWarning, match=f"agent [01] learned with action masks, and {method} was called") as found:
            act(np.zeros(2))
        assert found[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            act(np.zeros(2))
            act(np.zeros(2), **{argument: LEGAL})


@pytest.mark.parametrize("algorithm", [DQN, PQN, OpenAIES, QLearning])
def test_further_agents_warn_of_missing_masks(algorithm):
    observed = Discrete(4) if algorithm is QLearning else Trapped.observation_space
    agent = algorithm(observed, Trapped.action_space, seed=0)
    agent.learner.learned_with_masks = True
    seen = np.array([observed.sample()])
    with pytest.warns(UserWarning, match="get_action was called without them: it may choose illegal") as found:
        agent.get_action(seen)
    assert found[0].filename == __file__


def test_a_team_warns_of_missing_masks_in_get_action():
    team = IPPO({"a_0": Trapped.observation_space}, {"a_0": Trapped.action_space}, seed=0)
    team.learner_of("a_0").learned_with_masks = True
    seen = {"a_0": np.zeros((1, 2), np.float32)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        team.get_action(seen, {"a_0": {"action_mask": LEGAL}})
    with pytest.warns(UserWarning, match="get_action was called without them: it may choose illegal actions") as found:
        team.get_action(seen)
    assert found[0].filename == __file__


def test_files_from_before_the_flag_are_read():
    agent = lured_agent()
    document, tensors = agent.to_documents()
    assert document.pop("learned_with_masks") is False
    assert PPO.from_documents(document, tensors, device="cpu", where="older").learner.learned_with_masks is False
    with pytest.raises(ValueError, match="learned_with_masks=1 must be true or false"):
        read_flag({"learned_with_masks": 1}, "learned_with_masks")


def test_members_of_a_run_learn_with_masks():
    env = make_vect_envs(Trapped, num_envs=2, backend="sync")
    pop = PPO.population(2, env.single_observation_space, env.single_action_space, seed=0, learn_step=8, batch_size=8)
    pop, _ = train_on_policy(env, pop=pop, max_steps=16, evo_steps=16, eval_loop=1, verbose=False)
    assert [agent.learner.learned_with_masks for agent in pop] == [True, True]


def test_a_recurrent_agent_predicts_with_masks():
    agent = lured_agent(recurrent=True)
    action, state = agent.predict(np.zeros(2), deterministic=True, action_masks=LEGAL)
    assert action in (0, 1)
    assert set(state) == {"actor", "critic"}


def test_learners_of_a_team_take_masks():
    space = {"a_0": Trapped.observation_space}
    team = IPPO(space, {"a_0": Trapped.action_space}, seed=0, num_envs=2, learn_step=8, batch_size=8)
    actions, _ = team.learner_of("a_0").predict(np.zeros((40, 2)), action_masks=np.tile(LEGAL, (40, 1)))
    assert set(actions.tolist()) == {0, 1}


class ObservesMask(Nim):
    """Nim whose observation has the mask, as PettingZoo's board games have it."""

    def observation_space(self, agent):
        return Dict({"observation": self.observation_spaces[agent], "action_mask": Box(0, 1, (3,), np.int8)})

    def observe(self, agent):
        return {"observation": super().observe(agent), "action_mask": self.tell(agent)["action_mask"]}


def test_a_team_plays_an_aec_game_by_what_last_returns():
    vector = make_multi_agent_vect_envs(ObservesMask, num_envs=2)
    team = IPPO(vector.single_observation_spaces, vector.single_action_spaces, num_envs=2, seed=0)
    env = ObservesMask()
    for seed in range(5):
        env.reset(seed=seed)
        for agent in env.agent_iter():
            observation, _, terminated, truncated, _ = env.last()
            actions = {agent: None}
            if not terminated and not truncated:
                actions, _ = team.predict({agent: observation})  # an illegal one is an error of the game
            env.step(actions[agent])


def test_action_masks_replace_that_of_the_observation():
    spaces = {"a": Dict(observation=Box(-1, 1, (2,)), speed=Box(-1, 1, (1,)))}
    team = IPPO(spaces, {"a": MultiDiscrete([2, 3])}, seed=0)
    seen = {"observation": np.zeros((4, 2)), "speed": np.zeros((4, 1))}
    masks = np.array([[True, False, False, True, False]] * 4)
    assert team.predict({"a": {**seen, "action_mask": masks}})[0]["a"].tolist() == [[0, 1]] * 4
    other = np.array([[False, True, False, False, True]] * 4)
    assert (
        team.predict({"a": {**seen, "action_mask": masks}}, action_masks={"a": other})[0]["a"].tolist() == [[1, 2]] * 4
    )
    single = {name: part[0] for name, part in seen.items()}
    parts = np.array([True, False]), np.array([False, False, True])
    assert team.predict({"a": {**single, "action_mask": parts}})[0]["a"].tolist() == [0, 2]


def test_a_mask_that_is_part_of_the_observation_space_is_observed():
    space = Dict(action_mask=Box(0, 1, (3,), np.int8))
    team = IPPO({"a": space}, {"a": Discrete(3)}, seed=0)
    seen = {"action_mask": np.zeros(3, np.int8)}  # as a mask it would allow nothing
    assert team.predict({"a": seen})[0]["a"] in range(3)
