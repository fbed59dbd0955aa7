"""The known answers of multi-agent probes are correct: checked against the envs, not by training."""

import warnings
from collections import defaultdict

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from agilerl_like.envs.multi_agent.pettingzoo import make_multi_agent_vect_envs
from agilerl_like.envs.multi_agent.probe_envs import MULTI_AGENT_PROBES
from agilerl_like.envs.multi_agent.vec_adapter import MultiAgentVecEnvAdapter
from agilerl_like.envs.probe_envs import ExpectedAction, ExpectedValue, as_observation
from agilerl_like.envs.spaces import check_action_space, check_observation_space, tree_map
from agilerl_like.envs.vec_adapter import Transition, check_finite

with warnings.catch_warnings():  # its own imports of envs are deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test
    from pettingzoo.utils.conversions import parallel_to_aec

NUM_ENVS = 16


def key(observation):
    """An observation, so that equal ones are equal."""
    found = []
    tree_map(lambda leaf: found.append(np.asarray(leaf).tobytes()), observation)
    return tuple(found)


def candidates(space):
    """All actions, or a grid of them."""
    if isinstance(space, Discrete):
        return [np.int64(action) for action in range(int(space.start), int(space.start + space.n))]
    if isinstance(space, Box):
        sides = [np.linspace(low, high, 9, dtype=np.float32) for low, high in zip(space.low, space.high, strict=True)]
        return list(np.stack(np.meshgrid(*sides), -1).reshape(-1, len(sides)))
    counts = space.nvec if isinstance(space, MultiDiscrete) else [2] * int(space.n)
    return [np.array(action, space.dtype) for action in np.ndindex(*counts)]


def for_agent(step, agent):
    """One agent's transition."""
    return Transition(*(getattr(step, field)[agent] for field in Transition._fields if field != "last_mask"))


def walk(probe, actions=None, steps=24):
    """Yield (agent, observation, action, mask, transition) of every step in which an agent acted."""
    env = MultiAgentVecEnvAdapter(make_multi_agent_vect_envs(probe.make, NUM_ENVS, backend="sync"))
    now = env.reset(list(range(NUM_ENVS)))
    for tick in range(steps):
        masks = env.action_mask
        given = {agent: among(choices, tick, NUM_ENVS) for agent, choices in (actions or mask_slices(env)).items()}
        step = env.step(given)
        check_finite(step)
        for agent in env.agent_ids:
            for row in np.flatnonzero(step.valid[agent]):
                mask = None if masks[agent] is None else tuple(masks[agent][row].tolist())
                yield agent, at(row, now[agent]), given[agent][row], mask, at(row, for_agent(step, agent))
        now = step.obs


def mask_slices(env):
    return {agent: candidates(space) for agent, space in env.single_action_spaces.items()}


def among(choices, tick, count):
    return np.stack([choices[(tick * count + row) % len(choices)] for row in range(count)])


def at(row, transition):
    return tree_map(
        lambda leaf: leaf[row],
        {name: part for name, part in transition._asdict().items() if name not in ("action_mask", "last_mask")}
        if hasattr(transition, "_asdict")
        else transition,
    )


def known_by_observation(probe, kind):
    return {
        agent: {key(as_observation(known.obs)): known for known in answers if isinstance(known, kind)}
        for agent, answers in probe.expectations.items()
    }


VALUES = [
    name for name, probe in MULTI_AGENT_PROBES.items() if isinstance(probe.expectations["speaker_0"][0], ExpectedValue)
]
ACTIONS = [name for name in MULTI_AGENT_PROBES if name not in VALUES]


@pytest.mark.parametrize("name", VALUES)
def test_known_values_satisfy_the_bellman_equation_in_every_step(name):
    """V(obs) = reward + gamma (1 - terminated) V(next_obs), and no value depends on absences."""
    probe = MULTI_AGENT_PROBES[name]
    known, asked = known_by_observation(probe, ExpectedValue), set()
    for agent, saw, _, _, came in walk(probe):
        worth = {one: answer.value for one, answer in known[agent].items()}
        after = 0.0 if came["terminated"] else worth[key(came["next_obs"])]
        assert worth[key(saw)] == pytest.approx(float(came["reward"]) + probe.gamma * after, abs=1e-6)
        asked.add((agent, key(saw)))
    assert asked == {(agent, one) for agent, answers in known.items() for one in answers}


@pytest.mark.parametrize("name", ACTIONS)
def test_known_actions_have_the_highest_reward_of_the_allowed_ones(name):
    """Episodes of these envs last one step, so the best action has the highest reward."""
    probe = MULTI_AGENT_PROBES[name]
    known = known_by_observation(probe, ExpectedAction)
    pays = defaultdict(dict)
    for agent, saw, did, mask, came in walk(probe, steps=60):
        assert came["terminated"]
        answer = known[agent][key(saw)]
        assert mask == (answer.mask or None)
        if not answer.mask or answer.mask[int(did)]:
            pays[agent, key(saw)][tuple(np.atleast_1d(did).tolist())] = float(came["reward"])
    assert set(pays) == {(agent, one) for agent, answers in known.items() for one in answers}
    for (agent, saw), paid in pays.items():
        assert len(paid) > 1
        ranked = sorted(paid, key=lambda action, paid=paid: paid[action])
        np.testing.assert_allclose(ranked[-1], np.atleast_1d(known[agent][saw].action), atol=1e-6)
        assert paid[ranked[-2]] < paid[ranked[-1]]


def test_the_masked_action_would_have_the_highest_reward():
    probe = MULTI_AGENT_PROBES["ActionMask"]
    best = defaultdict(lambda: (-np.inf, None))
    for agent, saw, did, mask, came in walk(probe):
        best[agent, key(saw)] = max(best[agent, key(saw)], (float(came["reward"]), mask[int(did)]))
    assert set(best.values()) == {(10.0, False)}


@pytest.mark.filterwarnings("ignore::UserWarning:pettingzoo.test")  # observations are single numbers
@pytest.mark.parametrize("name", MULTI_AGENT_PROBES)
def test_probes_pass_pettingzoos_tests_and_suit_the_algorithms(name, capsys):
    probe = MULTI_AGENT_PROBES[name]
    if not any(role.absent_steps and 0 not in role.absent_steps for role in probe.roles.values()):
        # PettingZoo's test rejects agents that leave and return
        parallel_api_test(probe.make(), num_cycles=30)
        api_test(parallel_to_aec(probe.make()), num_cycles=30)
    parallel_seed_test(probe.make, num_cycles=30)
    env = make_multi_agent_vect_envs(probe.make, 1, backend="sync")
    for agent, answers in probe.expectations.items():
        check_observation_space(env.single_observation_space(agent))
        check_action_space(env.single_action_space(agent))
        for known in answers:
            assert env.single_observation_space(agent).contains(as_observation(known.obs))
    listeners = [(env.single_observation_space(a), env.single_action_space(a)) for a in ("listener_0", "listener_1")]
    assert listeners[0] == listeners[1]


@pytest.mark.parametrize("name", MULTI_AGENT_PROBES)
def test_agents_of_a_group_have_equal_answers_for_equal_observations(name):
    answers = MULTI_AGENT_PROBES[name].expectations
    expected = {key(as_observation(known.obs)): known for known in answers["listener_0"]}
    for known in answers["listener_1"]:
        other = expected.get(key(as_observation(known.obs)), known)
        assert (known[1], known.name) == (other[1], other.name)


def test_state_has_the_step_count_and_presence_flags():
    probe = MULTI_AGENT_PROBES["EarlyDeath"]
    env = MultiAgentVecEnvAdapter(make_multi_agent_vect_envs(probe.make, 1, backend="sync", with_state=True))
    env.reset(0)
    still = {agent: np.zeros(1, int) for agent in env.agent_ids}
    assert env.state.tolist() == [[0, 1, 1, 1]]
    steps = [env.step(still) for _ in range(5)]
    assert [step.next_state[0].tolist() for step in steps] == [
        [1, 0, 1, 1],
        [2, 0, 1, 0],
        [3, 0, 1, 0],
        [4, 0, 1, 0],
        [5, 0, 0, 0],
    ]
    assert steps[-1].state.tolist() == [[0, 1, 1, 1]]
