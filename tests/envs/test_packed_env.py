"""Packed multi-agent envs and MultiAgentTransitions, with agents that end, leave and appear late."""

import pickle
import re
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple, flatdim
from hypothesis import given, settings
from hypothesis import strategies as st
from multi_agent_envs import KILLS, Manifold, Scripted

from agilerl_like.envs.multi_agent.packed_env import PackedMultiAgentEnv, PackedSpace
from agilerl_like.envs.multi_agent.pettingzoo import make_multi_agent_vect_envs
from agilerl_like.envs.multi_agent.vec_adapter import MultiAgentVecEnvAdapter
from agilerl_like.envs.pytree import tree_map
from agilerl_like.envs.spaces import mask_size
from agilerl_like.envs.vec_adapter import Transition, check_finite
from agilerl_like.errors import ConfigurationError, EnvStepError


def team_of(factory, num_envs=1, **kwargs):
    return MultiAgentVecEnvAdapter(make_multi_agent_vect_envs(factory, num_envs, **{"backend": "sync", **kwargs}))


def still(env, action=0):
    return {agent: np.full(env.num_envs, action) for agent in env.agent_ids}


def row(tree, index=0):
    return {agent: array[index].tolist() for agent, array in tree.items()}


# ---- lives


def test_an_agents_termination_ends_only_its_own_episode_and_the_last_one_ends_the_env():
    env = team_of(partial(Scripted, a="ooT", b="oooX"))
    assert row(env.reset([5])) == {"a": [500, 0, 0], "b": [500, 0, 1]}
    assert row(env.acting) == {"a": True, "b": True}

    first = env.step({"a": np.array([3]), "b": np.array([4])})
    assert row(first.reward) == pytest.approx({"a": 0.03, "b": 10.04})
    assert row(first.obs) == {"a": [500, 1, 0], "b": [500, 1, 1]}
    assert first.next_obs is first.obs
    assert row(first.valid) == {"a": True, "b": True}
    assert not any((*row(first.terminated).values(), *row(first.truncated).values(), *first.ended))

    death = env.step(still(env))
    assert row(death.terminated) == {"a": True, "b": False}
    assert row(death.truncated) == {"a": False, "b": False}
    assert row(death.next_obs)["a"] == [500, 2, 0]
    assert (row(death.valid), row(death.acting)) == ({"a": True, "b": True}, {"a": False, "b": True})
    assert not death.ended.any()

    end = env.step(still(env))
    assert (row(end.valid), row(end.reward)) == ({"a": False, "b": True}, {"a": 0.0, "b": 12.0})
    assert row(end.terminated) == {"a": False, "b": False}  # what ended before does not end again
    assert row(end.truncated) == {"a": False, "b": True}
    assert row(end.next_obs)["b"] == [500, 3, 1]
    assert row(end.obs) == {"a": [501, 0, 0], "b": [501, 0, 1]}
    assert (end.ended.tolist(), row(end.acting)) == ([True], {"a": True, "b": True})
    assert row(env.step(still(env)).valid) == {"a": True, "b": True}


@pytest.mark.parametrize(("silent", "last"), [(False, [0, 2, 0]), (True, [0, 1, 0])])
def test_an_absent_agent_waits_and_its_row_keeps_its_last_observation(silent, last):
    env = team_of(partial(Scripted, silent=silent, a="oo..oT", b="oooooT"))
    env.reset([0])
    steps = [env.step(still(env)) for _ in range(5)]
    assert [step.valid["a"].item() for step in steps] == [True, True, False, False, True]
    assert [step.acting["a"].item() for step in steps] == [True, False, False, True, True]
    assert [step.waits["a"].item() for step in steps] == [False, True, True, False, False]
    assert [step.waited["a"].item() for step in steps] == [False, False, True, True, False]
    assert [step.truncated["a"].item() for step in steps] == [False] * 5
    assert [step.terminated["a"].item() for step in steps] == [False, False, False, False, True]
    assert [step.reward["a"].item() for step in steps] == [0.0, 1.0, 0.0, 0.0, 4.0]
    assert steps[2].obs["a"][0].tolist() == last
    assert steps[3].obs["a"][0].tolist() == [0, 4, 0]
    assert not any(step.truncated["b"].any() for step in steps)


def test_before_an_agent_appears_its_observation_is_blank_and_inside_its_space():
    env = team_of(Manifold)
    wide = env.reset([0])["alpha"]["wide"]
    assert not env.acting["alpha"].any()
    np.testing.assert_array_equal(wide, [[1.0, 1.0]])  # 0 lies below the bounds
    assert not np.isnan(wide).any()


def lives():
    """Presence of up to 6 ticks, with absences and an end of either kind, or none."""
    return st.from_regex(re.compile(r"[o.]{1,5}[TX]?"), fullmatch=True)


@settings(max_examples=60)
@given(st.tuples(lives(), lives(), st.from_regex(r"o[o.]{0,4}[TX]?", fullmatch=True)))
def test_any_sequence_of_presence_and_ends_gives_the_expected_flags(written):
    """The reference reads the letters: an agent acts at "o", and the next letter is the outcome."""
    agents = dict(zip("abc", written, strict=True))
    env = team_of(partial(Scripted, **agents), 2)
    env.reset([1, 2])

    def letter(agent, tick):
        return agents[agent][tick] if tick < len(agents[agent]) else "."

    tick = episode = 0
    for _ in range(12):
        step = env.step(still(env))
        after = {agent: letter(agent, tick + 1) for agent in agents}
        ended = "o" not in after.values()
        for number, agent in enumerate(agents):
            its = Transition(*(getattr(step, name)[agent] for name in Transition._fields if name != "last_mask"))
            acted = letter(agent, tick) == "o"
            assert its.valid.tolist() == [acted] * 2
            assert its.reward.tolist() == [10.0 * number + tick if acted else 0.0] * 2
            assert its.terminated.tolist() == [acted and after[agent] == "T"] * 2
            started = "o" in agents[agent][: tick + 1]
            dead = any(letter(agent, t) == "o" and letter(agent, t + 1) in "TX" for t in range(tick))
            stops = after[agent] == "X" if acted and after[agent] in "TX" else started and not dead and ended
            assert its.truncated.tolist() == [stops] * 2
            assert its.waited.tolist() == [started and not acted and not dead] * 2
            away = started and not dead and not ended and after[agent] != "o" and not (acted and after[agent] in "TX")
            assert its.waits.tolist() == [away] * 2
            if acted:
                assert its.next_obs.tolist() == [[100 * seed + episode, tick + 1, number] for seed in (1, 2)]
            acts = letter(agent, 0) == "o" if ended else after[agent] == "o"
            assert step.acting[agent].tolist() == [acts] * 2
            if acts:
                now = [episode + 1, 0] if ended else [episode, tick + 1]
                assert its.obs.tolist() == [[100 * seed + now[0], now[1], number] for seed in (1, 2)]
        assert step.ended.tolist() == [ended] * 2
        assert (step.next_obs is step.obs) == (not ended)
        tick, episode = (0, episode + 1) if ended else (tick + 1, episode)


class Undying(Scripted):
    """Keeps ended agents in `agents` until all have ended."""

    def step(self, actions):
        living, self.agents = self.agents, list(actions)
        result = super().step(actions)
        self.agents = living
        return result


def test_an_env_that_keeps_ended_agents_ends_when_all_have_ended():
    env = team_of(partial(Undying, a="ooT", b="oooT"))
    env.reset([0])
    steps = [env.step(still(env)) for _ in range(3)]
    assert [step.ended.item() for step in steps] == [False, False, True]
    assert [step.valid["a"].item() for step in steps] == [True, True, False]


def test_evaluation_envs_idle_after_their_episode():
    env = MultiAgentVecEnvAdapter(team_of(partial(Scripted, a="oT", b="ooT"), 2).env.eval_env(2))
    env.reset([3, 4])
    steps = [env.step(still(env)) for _ in range(4)]
    assert [step.ended.tolist() for step in steps] == [[False] * 2, [True] * 2, [False] * 2, [False] * 2]
    assert steps[1].terminated["b"].tolist() == [True, True]
    for step in steps[2:]:
        assert not any(array.any() for part in (step.valid, step.reward, step.terminated) for array in part.values())
        assert step.obs["b"].tolist() == [[300, 2, 1], [400, 2, 1]]
    assert env.reset([3, 4])["b"].tolist() == [[300, 0, 1], [400, 0, 1]]


# ---- masks


def test_masks_come_from_observations_and_infos_and_are_all_true_for_absent_agents():
    env = team_of(Manifold, 4)
    observations = env.reset([0, 1, 2, 3])
    assert set(env.single_observation_spaces) == {"zeta", "alpha", "mu"}
    assert env.single_observation_spaces["zeta"] == Tuple((Discrete(4, start=3), MultiBinary(2)))
    assert isinstance(observations["zeta"], tuple)
    seen = 0
    for _ in range(40):
        step = env.step(legal(env))
        assert step.action_mask["alpha"] is None
        zeta = step.action_mask["zeta"]
        assert zeta[:, 0].all()
        assert zeta[~step.acting["zeta"]].all()
        mu = step.action_mask["mu"]
        if mu is not None:
            assert mu[~step.acting["mu"]].all()
            result = ~mu.all(1)
            seen += result.sum()
            assert (mu[result][:, [0, 2, 3, 4]] == [True, False, True, True]).all()
    assert seen > 10


def legal(env):
    zeta = env.action_mask["zeta"].argmax(1) - 2
    return {"zeta": zeta, "alpha": np.zeros((4, 2, 2), np.float32), "mu": np.tile([0, 1], (4, 1))}


class Stuck(Scripted):
    """Masks all actions of all agents at tick 2."""

    def step(self, actions):
        result = super().step(actions)
        for info in result[-1].values():
            info["action_mask"] = np.full(8, self.tick != 2)
        return result


def test_a_mask_without_any_action_is_an_error_only_for_present_agents():
    env = team_of(partial(Stuck, a="ooT", b="ooX"))
    env.reset([0])
    assert env.step(still(env)).action_mask["a"].all()
    assert env.step(still(env)).ended.all()
    env = team_of(partial(Stuck, a="ooT", b="ooo"), 2)
    env.reset([0, 0])
    env.step(still(env))
    with pytest.raises(EnvStepError, match=r"agent 'b', env 0: action_mask=.* allows no action"):
        env.step(still(env))


def test_masks_have_the_size_of_single_agent_masks():
    for space in (Discrete(5, start=-2), MultiDiscrete([2, 3]), MultiBinary(4)):
        assert flatdim(space) == mask_size(space)


@pytest.mark.parametrize("space", [Tuple((Discrete(3), Box(-1, 1, (2,)))), Dict({"move": Discrete(3)})])
def test_actions_of_tuples_and_dicts_reach_the_env_as_such(space):
    given = []

    class Composed(Scripted):
        def action_space(self, agent):
            return space

        def step(self, actions):
            given.append(actions)
            return super().step(dict.fromkeys(actions, 0))

    env = make_multi_agent_vect_envs(lambda: Composed(a="oT"), 1, backend="sync")
    env.reset(seed=[0])
    space.seed(1)
    action = space.sample()
    env.step({"a": tree_map(lambda its: np.asarray(its)[None], action)})
    assert space.contains(given[0]["a"])
    assert str(given[0]["a"]) == str(action)


# ---- rows


SPACES = Dict(
    {
        "pair": Tuple((Discrete(5, start=2), Dict({"image": Box(0, 255, (2, 2, 3), np.uint8)}))),
        "bits": MultiBinary([2, 3]),
        "choices": MultiDiscrete([3, 4]),
        "wide": Box(-1, 1, (), np.float64),
        "flags": Box(0, 1, (3,), bool),
    }
)


def test_packed_samples_are_read_back_equal():
    packed = PackedSpace(SPACES.spaces.items())
    SPACES.seed(0)
    samples = [SPACES.sample() for _ in range(3)]
    stacked = {
        "pair": (
            np.array([s["pair"][0] for s in samples]),
            {"image": np.stack([s["pair"][1]["image"] for s in samples])},
        ),
        **{key: np.stack([s[key] for s in samples]) for key in ("bits", "choices", "wide", "flags")},
    }
    read = packed.read(packed.pack(stacked, 3))
    np.testing.assert_array_equal(read["pair"][0], stacked["pair"][0])
    np.testing.assert_array_equal(read["pair"][1]["image"], stacked["pair"][1]["image"])
    for key in ("bits", "choices", "wide", "flags"):
        np.testing.assert_array_equal(read[key], stacked[key])
        assert read[key].dtype == SPACES[key].dtype


def test_packed_spaces_compare_by_their_spaces_and_can_be_pickled():
    one = PackedSpace([("a", Discrete(3)), ("b", Discrete(4))])
    assert pickle.loads(pickle.dumps(one)) == one
    assert one != PackedSpace([("a", Discrete(4)), ("b", Discrete(3))])
    assert one != Box(0, 255, one.shape, np.uint8)
    assert one != PackedSpace([("b", Discrete(4)), ("a", Discrete(3))])  # the same, but elsewhere
    one.seed(0)
    samples = {tuple(int(x) for x in one.read(one.sample()).values()) for _ in range(200)}
    assert samples == {(a, b) for a in range(3) for b in range(4)}


def test_worker_processes_of_multi_agent_envs_do_not_import_torch():
    package = "agilerl_like.envs.multi_agent"
    code = f"import sys, {package}.pettingzoo, {package}.probe_envs; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": None}, r"actions\['a'\] has shape \(\); allowed is \(2,\)"),
        ({"a": np.zeros(3, int)}, r"actions\['a'\] has shape \(3,\); allowed is \(2,\)"),
        ({"a": np.zeros(2)}, r"actions\['a'\] has dtype float64; allowed is int64"),
        ({"a": np.array([1, 8])}, r"actions\['a'\] has 8; allowed are values of Discrete\(8\)"),
        ({"c": np.zeros(2, int)}, "actions='c' is unknown"),
    ],
)
def test_invalid_actions_are_named(change, message):
    env = team_of(partial(Scripted, a="ooT", b="ooX"), 2)
    env.reset(0)
    with pytest.raises(ConfigurationError, match=message):
        env.step({**still(env), **change})
    with pytest.raises(ConfigurationError, match="actions has nothing for agent 'b'"):
        env.step({"a": np.zeros(2, int)})


# ---- envs that violate the contract


class Broken(Scripted):
    """Violates the contract at tick 1."""

    def __init__(self, wrong):
        super().__init__(a="oooT", b="oooT")
        self.wrong = wrong

    def step(self, actions):
        observations, rewards, *rest, infos = super().step(actions)
        if self.wrong == "reward":
            del rewards["b"]
        elif self.wrong in ("array", "none"):
            rewards["b"] = np.ones(1) if self.wrong == "array" else None
        elif self.wrong == "stranger":
            self.agents = [*self.agents, "c"]
        elif self.wrong == "unseen":
            del observations["b"]
        elif self.wrong == "shape":
            observations["b"] = observations["b"][:1]
        elif self.wrong == "dtype":
            observations["b"] = observations["b"].astype(complex)
        elif self.wrong == "nan":
            observations["b"][1] = np.nan
        elif self.wrong == "infinite":
            rewards["a"] = np.inf
        elif self.wrong == "mask":
            infos["b"]["action_mask"] = np.ones(3)
        return observations, rewards, *rest, infos


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("reward", "gave no reward to agent 'b', which acted"),
        ("array", r"the reward of agent 'b'=array\(\[1.\]\) of shape \(1,\); allowed is one real number"),
        ("infinite", r"scripted.*, step 1 of the episode: the reward of agent 'a'=inf is not finite"),
        ("none", r"scripted.*, step 1 of the episode: the reward of agent 'b'=None; allowed is one real number"),
        ("stranger", r"has agents \['c'\] outside \['a', 'b'\]"),
        ("unseen", "gave no observation to agent 'b', which is to act"),
        ("shape", r"observation of agent 'b' has shape \(1,\); allowed is \(3,\)"),
        ("dtype", "observation of agent 'b' has dtype complex128; allowed is float32"),
        ("mask", r"action_mask of agent 'b' has shape \(3,\); allowed is \(8,\)"),
    ],
)
def test_a_contract_violation_is_one_error_that_names_the_agent(wrong, message):
    env = team_of(partial(Broken, wrong))
    env.reset([0])
    with pytest.raises(EnvStepError, match=message):
        env.step(still(env))


class Unmasked(Manifold):
    """Its space promises masks in zeta's observations, which lack them."""

    def see(self, agent):
        seen = super().see(agent)
        return seen["observation"] if agent == "zeta" else seen


def test_a_mask_that_is_in_the_space_must_be_in_the_observation():
    with pytest.raises(EnvStepError, match="the observation of agent 'zeta' has no action_mask"):
        team_of(Unmasked).reset([0])


class Gossip(Scripted):
    """Gives an info that belongs to no agent."""

    def reset(self, seed=None, options=None):
        observations, infos = super().reset(seed, options)
        return observations, {**infos, "map": np.eye(2), "common": {"level": 3}, "a": {"action_mask": np.ones(8)}}


def test_infos_other_than_masks_are_passed_on():
    _, infos = make_multi_agent_vect_envs(partial(Gossip, a="oT"), 2, backend="sync").reset(seed=0)
    np.testing.assert_array_equal(infos["map"], [np.eye(2)] * 2)
    assert infos["common"]["level"].tolist() == [3, 3]
    assert set(infos["a"]) == {"acting", "action_mask"}


class WithoutInfos(Scripted):
    """Gives None as the info of each agent."""

    def reset(self, seed=None, options=None):
        observations, infos = super().reset(seed, options)
        return observations, dict.fromkeys(infos)

    def step(self, actions):
        *result, infos = super().step(actions)
        return *result, dict.fromkeys(infos)


def test_infos_of_agents_may_be_none():
    env = make_multi_agent_vect_envs(partial(WithoutInfos, a="ooT", b="ooT"), 2, backend="sync")
    _, infos = env.reset(seed=0)
    for _ in range(2):
        assert {agent: [*infos[agent]] for agent in ("a", "b")} == {"a": ["acting"], "b": ["acting"]}
        *_, infos = env.step({agent: np.zeros(2, int) for agent in ("a", "b")})


def test_observations_that_are_not_finite_are_named():
    env = team_of(partial(Broken, "nan"))
    env.reset([0])
    step = env.step(still(env))
    with pytest.raises(EnvStepError, match=r"env 0: observation\['b'\]\[1\]=nan is not finite"):
        check_finite(step)


class Echo(Scripted):
    """Pays the last observation of agent b, which is NaN after tick 2."""

    def see(self, agent):
        return super().see(agent) * (np.nan if agent == "b" and self.tick == 2 else 1)

    def step(self, actions):
        pay = float(self.see("b")[0])
        observations, rewards, *rest = super().step(actions)
        return observations, dict.fromkeys(rewards, pay), *rest


def test_an_observation_that_leads_to_rewards_that_are_not_finite_is_named_in_their_place():
    env = team_of(partial(Echo, a="ooooT", b="ooooT"))
    env.reset([0])
    for _ in range(2):
        env.step(still(env))
    with pytest.raises(
        EnvStepError, match="scripted, step 2 of the episode: the observation of agent 'b' is not finite"
    ):
        env.step(still(env))


def test_an_episode_without_agents_is_an_error():
    env = team_of(partial(Scripted, a=".oT"))
    with pytest.raises(EnvStepError, match="started an episode without agents"):
        env.reset([0])


class Nameless(Scripted):
    def __init__(self, names):
        super().__init__(a="oT")
        self.possible_agents = names


@pytest.mark.parametrize("names", [[], [0, 1], ["a", "a"], [""], None])
def test_agents_need_names(names):
    with pytest.raises(ConfigurationError, match=r"possible_agents=.*allowed is a list of distinct names"):
        PackedMultiAgentEnv(Nameless(names))


# ---- workers


def test_a_lost_worker_truncates_all_agents_and_its_step_is_invalid():
    env = team_of(partial(Scripted, a="ooT", b="ooooT"), 2, backend="workers", num_workers=2)
    env.reset([1, 2])
    for _ in range(2):
        before = env.step(still(env))
    with pytest.warns(RuntimeWarning, match="SIGKILL"):
        lost = env.step({"a": np.zeros(2, int), "b": np.array([KILLS, 0])})  # in env 0, where a is dead already
    env.close()
    assert lost.ended.tolist() == lost.lost.tolist() == [True, False]
    assert lost.valid["a"].tolist() == [False, False]
    assert lost.valid["b"].tolist() == [False, True]
    assert lost.truncated["a"].tolist() == [False, False]
    assert lost.truncated["b"].tolist() == [True, False]
    assert lost.reward["b"].tolist() == [0.0, 12.0]
    assert not lost.terminated["b"].any()
    assert lost.next_obs["b"][0].tolist() == before.obs["b"][0].tolist()
    assert lost.obs["b"][0, 1] == 0
    assert lost.acting["a"].tolist() == [True, False]
