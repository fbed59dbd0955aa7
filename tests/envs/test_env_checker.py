"""The env checker finds and names injected defects, and has no findings for correct environments."""

import math
import os
import re
from functools import partial

import gymnasium as gym
import multi_agent_envs
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiDiscrete

from agilerl_like.envs.env_checker import BRIEF_REPLAYED, BRIEF_STEPS, check_env, check_envs
from agilerl_like.envs.multi_agent.pettingzoo import make_packed_env
from agilerl_like.envs.multi_agent.probe_envs import MULTI_AGENT_PROBES
from agilerl_like.envs.probe_envs import PROBES


class Sound(gym.Env):
    """Six steps from a random start; the envs below override the part that is wrong."""

    observation_space, action_space = Box(-1, 10, (2,)), Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.start = 0, self.np_random.random()
        return self.see(), self.tell()

    def step(self, action):
        self.time += 1
        return self.see(), self.pay(), self.over(), False, self.tell()

    def see(self):
        return np.array([self.time, self.start], np.float32)

    def pay(self):
        return 1.0

    def over(self):
        return self.time >= 6

    def tell(self):
        return {}


def sound_but(**overrides):
    """A class of envs that differ from the correct one in these attributes."""
    return type("Wrong", (Sound,), overrides)


def masked(mask, **more):
    return sound_but(tell=lambda self: {"action_mask": mask(self)}, **more)


class Unbounded(Sound):
    """Takes any number, pays less for large ones, and states the largest float32 as its bounds."""

    action_space = Box(-np.finfo(np.float32).max, np.finfo(np.float32).max, (1,))

    def step(self, action):
        assert self.action_space.contains(action)
        seen, _, *others = super().step(action)
        return seen, -float(action[0] ** 2), *others


class Keyed(Sound):
    observation_space = Dict({"time": Box(0, 10, ()), "left": Discrete(7)})

    def see(self):
        return {"time": np.float32(self.time)}


class OldApi(Sound):
    def step(self, action):
        return self.see(), 1.0, False, {}


class OldReset(Sound):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0]


class Seedless(Sound):
    def reset(self, **kwargs):
        if "seed" in kwargs:
            raise TypeError("reset() got an unexpected keyword argument 'seed'")
        return super().reset()


class Forgetful(Sound):
    """Does not reset its step count."""

    total = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.see(), {}

    def see(self):
        self.total += 1
        return np.array([self.total % 10, self.start], np.float32)


class Swollen(Sound):
    def step(self, action):
        self.observation_space = Box(-1, 11, (2,))
        return super().step(action)


class Overwriting(Sound):
    action_space = Box(-1, 1, (2,))

    def step(self, action):
        action *= 2
        return super().step(action)


class Wandering(Sound):
    def reset(self, *, seed=None, options=None):
        os.chdir("/")
        return super().reset(seed=seed)


class Failing(Sound):
    def step(self, action):
        if action == 2:
            raise IndexError("list index out of range")
        return super().step(action)


class LateMask(Sound):
    def step(self, action):
        *step, _ = super().step(action)
        return *step, {"action_mask": np.ones(3, np.int8)}


class Duck:
    observation_space, action_space = Sound.observation_space, Sound.action_space

    def reset(self, seed=None, options=None):
        return np.zeros(2, np.float32), {}


DEFECTS = {
    "shape of observations": (sound_but(see=lambda self: np.zeros(3, np.float32)), r"error: .*shape \(3,\)"),
    "floats for whole numbers": (sound_but(observation_space=Box(0, 255, (2,), np.uint8)), "error: .*dtype float32"),
    "texts": (sound_but(see=lambda self: "up"), "error: .*'up'"),
    "nan": (sound_but(see=lambda self: np.array([np.nan, 0], np.float32)), "error: .*nan"),
    "late infinity": (
        sound_but(see=lambda self: np.array([np.inf if self.time == 5 else 0, 0], np.float32)),
        "error: .*inf",
    ),
    "category outside": (
        sound_but(observation_space=Discrete(3), see=lambda self: self.time),
        "error: .*observation=3 is outside 0 to 2; enlarge the space, or set start= if",
    ),
    "bounds": (
        sound_but(observation_space=Box(-1, 3, (2,))),
        r"warning: .*observation\[0\]=4.0 is outside -1.0 to 3.0; scale the values into the bounds, or widen",
    ),
    "bounds in resets and steps": (
        sound_but(observation_space=Box(-1, 1, (2,)), see=lambda self: np.array([self.time - 20, 0], np.float32)),
        r"warning: reset\(seed=\d+\) returned .*observation\[0\]=-20.0 is outside -1.0 to 1.0; scale",
    ),
    "missing key": (Keyed, r"error: .*\['time'\] and not a dict of \['left', 'time'\]"),
    "below a box that is open above": (
        sound_but(
            observation_space=Box(0, np.inf, (2,)), see=lambda self: np.array([-5 * (self.time == 6), 0], np.float32)
        ),
        r"warning: .*\[0\]=-5.0 is outside 0.0 to inf; scale",
    ),
    "above a box that is open below": (
        sound_but(observation_space=Box(-np.inf, 5, (2,))),
        r"warning: .*\[0\]=6.0 is outside -inf to 5.0; scale",
    ),
    "space of another kind": (
        sound_but(observation_space=Graph(Discrete(2), None)),
        "error: observation_space=.* is a Graph; allowed",
    ),
    "ambiguous channels": (
        sound_but(observation_space=Box(0, 255, (5, 5, 5), np.uint8), see=lambda self: np.zeros((5, 5, 5), np.uint8)),
        r"warning: the image .* shape \(5, 5, 5\).* set algorithm.swap_channels",
    ),
    "no space": (sound_but(action_space=None), "error: action_space is None"),
    "reward array": (sound_but(pay=lambda self: np.ones(1)), r"error: .*reward array\(\[1.\]\); return one float"),
    "complex reward": (sound_but(pay=lambda self: 1j), "error: .*reward 1j"),
    "no reward": (sound_but(pay=lambda self: None), "error: .*reward None"),
    "nan reward": (sound_but(pay=lambda self: float("nan")), "error: .*reward nan"),
    "flag is none": (sound_but(over=lambda self: None), "error: .*terminated=None"),
    "flag is a number": (sound_but(over=lambda self: int(self.time >= 6)), "warning: .*terminated=0"),
    "four values": (OldApi, "error: .*a tuple of 4; return"),
    "bare reset": (OldReset, "error: reset.* returned array"),
    "no seed": (Seedless, "error: .*declare reset.self, ., seed=None"),
    "global randomness": (
        sound_but(see=lambda self: np.array([self.time, os.urandom(1)[0] / 256], np.float32)),
        "warning: the same seed and actions lead to different episodes",
    ),
    "state left over": (Forgetful, r"warning: reset\(seed=.*leads to another episode after others"),
    "running statistics of rewards": (
        lambda: gym.wrappers.NormalizeReward(Sound()),
        "warning: NormalizeReward divides rewards by running .* best agent is not meaningful; in training_wrappers",
    ),
    "running statistics of observations": (
        lambda: gym.wrappers.TimeLimit(gym.wrappers.NormalizeObservation(Sound(), epsilon=1e-6), 50),
        "warning: NormalizeObservation keeps statistics of each env, .*; normalize_observation of the algorithm",
    ),
    "endless": (sound_but(over=lambda self: False, see=lambda self: np.zeros(2, np.float32)), "warning: no episode"),
    "info": (sound_but(tell=lambda self: None), "error: .*info .* None"),
    "huge info": (sound_but(tell=lambda self: {"frame": np.zeros(2_000_000, np.uint8)}), "warning: .* 2 MB"),
    "mask of another size": (masked(lambda self: np.ones(4, np.int8)), r"error: .*shape \(4,\)"),
    "mask that allows nothing": (masked(lambda self: np.zeros(3, np.int8)), "error: .*allows no action"),
    "mask of numbers": (masked(lambda self: np.full(3, 0.5)), "error: .*float64"),
    "one choice without": (
        masked(lambda self: np.array([1, 1, 0, 0], np.int8), action_space=MultiDiscrete([2, 2])),
        "error: .*allows no action",
    ),
    "mask without a meaning": (masked(lambda self: np.ones(2), action_space=Box(-1, 1, (2,))), "error: .*leave it out"),
    "first mask missing": (LateMask, r"warning: .* not by reset\(\)"),
    "mask in the observation": (
        sound_but(
            observation_space=Dict({"x": Box(0, 9, ()), "action_mask": Box(0, 1, (3,), np.int8)}),
            see=lambda self: {"x": np.float32(self.time), "action_mask": np.ones(3, np.int8)},
        ),
        "warning: .*key 'action_mask'",
    ),
    "legal action refused": (
        Failing,
        r"error: step\(.*2.*\) raised IndexError: list index .*test_env_checker.py\", line",
    ),
    "image without channels": (
        sound_but(observation_space=Box(0, 255, (16, 8), np.uint8), see=lambda self: np.zeros((16, 8), np.uint8)),
        r"warning: observation is a uint8 Box of 2 .* read as a vector; an image has 3: \(16, 8, 1\)",
    ),
    "one of two images without channels": (
        sound_but(
            observation_space=Dict(image=Box(0, 255, (16, 16), np.uint8), board=Box(0, 255, (3, 3), np.uint8)),
            see=lambda self: {"image": np.zeros((16, 16), np.uint8), "board": np.zeros((3, 3), np.uint8)},
        ),
        r"warning: observation\['image'\] is .* \(16, 16, 1\)",
    ),
    "last episode endless": (
        sound_but(
            over=lambda self: self.time >= 6 and self.start < 0.9,
            see=lambda self: np.array([min(self.time, 9), self.start], np.float32),
        ),
        r"warning: an episode had not ended after \d+ random steps \(others took 6\), and no time limit is known",
    ),
    "changing spaces": (Swollen, "error: the spaces of the env change"),
    "writes into actions": (Overwriting, "warning: .* writes into the action"),
    "changes the folder": (Wandering, "warning: .*current folder"),
    "resets itself": (lambda: gym.wrappers.Autoreset(Sound()), "warning: .*Autoreset"),
    "no step": (Duck, "error: .* has no step; derive it from gymnasium.Env"),
    "constructor": (partial(Sound, 3), "error: the env cannot be made: TypeError"),
}


@pytest.mark.parametrize(("make", "message"), DEFECTS.values(), ids=DEFECTS)
def test_a_defect_is_found_and_named(make, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    findings = [str(finding) for finding in check_env(make).findings]
    assert len(findings) == 1
    assert re.search(message, findings[0]), findings[0]
    assert os.getcwd() == str(tmp_path)


class Team(multi_agent_envs.Scripted):
    """Two agents for four steps; `change` may alter what a step returns."""

    def __init__(self, change=lambda team, result: result, life="ooooT"):
        super().__init__(a=life, b=life)
        self.action_spaces = {"a": Discrete(2), "b": Discrete(2)}
        self.change = change

    def reset(self, seed=None, options=None):
        observations, infos = super().reset(0 if seed is None else seed)
        self.episode = 0
        return observations, infos

    def step(self, actions):
        return self.change(self, super().step(actions))


class TeamWithoutInfos(Team):
    def reset(self, seed=None, options=None):
        return super().reset(seed)[0]


class TeamWithGuest(Team):
    def reset(self, seed=None, options=None):
        observations, infos = super().reset(seed)
        return {**observations, 7: 1}, {**infos, "map": 2}


class TeamWithReturn(Team):
    """One agent ends after two steps and stays."""

    def step(self, actions):
        observations, rewards, terminations, *rest = super().step(dict.fromkeys(self.agents, 0))
        terminations["a"] |= self.tick == 2
        return observations, rewards, terminations, *rest


class TeamWithState(Team):
    state_space = Box(-1, 1, (2,))

    def __init__(self, state):
        super().__init__()
        self.state = state


class TeamOfImages(Team):
    def __init__(self):
        super().__init__()
        self.observation_spaces["b"] = Box(0, 255, (16, 16), np.uint8)

    def see(self, agent):
        return super().see(agent) if agent == "a" else np.zeros((16, 16), np.uint8)


class TakesTurns(Team):
    """The mask of one agent allows nothing, so that it waits for the other's action."""

    def reset(self, seed=None, options=None):
        return super().reset(seed)[0], self.masks()

    def step(self, actions):
        return *super().step(actions)[:4], self.masks()

    def masks(self):
        return {agent: {"action_mask": np.full(2, self.tick % 2 == self.number(agent))} for agent in self.lives}


def team_but(change):
    """A function that makes teams of which `change(team, *parts)` alters a step in place, or returns another."""

    def changed(team, result):
        found = change(team, *result)
        return result if found is None else found

    return partial(Team, changed)


TEAM_DEFECTS = {
    "four values": (
        team_but(lambda team, o, r, te, tr, i: (o, r, te, i)),
        r"error: scripted: step\(\) returned a tuple of 4; allowed is \(observations, rewards, .*, infos\)$",
    ),
    "no infos of reset": (
        TeamWithoutInfos,
        r"error: scripted: reset\(\) returned {'a': .*; allowed is \(obs.*, infos\)$",
    ),
    "infos are none": (
        team_but(lambda team, *parts: (*parts[:4], None)),
        r"error: scripted: step\(\) returned infos=None; allowed is a dict by agent$",
    ),
    "rewards are a list": (
        team_but(lambda team, o, r, *rest: (o, [*r.values()], *rest)),
        r"error: scripted: step\(\) returned rewards=\[.*\]; allowed is a dict",
    ),
    "an info is a list": (
        team_but(lambda team, *parts: parts[4].update(b=[1])),
        r"error: scripted: the info of agent 'b' is \[1\]; allowed is a dict$",
    ),
    "no list of agents": (
        team_but(lambda team, *parts: setattr(team, "agents", None)),
        "error: scripted has agents=None; allowed is a list of those that act next$",
    ),
    "no reward": (
        team_but(lambda team, o, r, *rest: r.pop("a") and None),
        "error: scripted gave no reward to agent 'a', which acted; fix the env$",
    ),
    "nan": (
        team_but(lambda team, o, *rest: o["b"].put(1, np.nan if team.tick == 3 else 0)),
        r"error: step\(\) returned an observation .*: observation\['b'\] has nan in it; return finite numbers",
    ),
    "outside the space": (
        team_but(lambda team, o, *rest: o.update(b=np.full(3, 2e6 if "b" in team.agents else 0))),
        r"warning: step\(\) returned an observation .*: observation\['b'\]\[0\]=2000000.0 is outside .*; scale",
    ),
    "masks that allow nothing": (
        team_but(lambda team, *parts: parts[4].update(b={"action_mask": np.zeros(2, np.int8)})),
        r"error: the action_mask of agent 'b' after step\(\) allows no action; allow at least one",
    ),
    "first mask missing": (
        team_but(lambda team, *parts: parts[4].update(b={"action_mask": np.ones(2, np.int8)})),
        r"warning: the action_mask of agent 'b' is given by step\(\) and not by reset\(\)",
    ),
    "a state that does not fit its space": (
        partial(TeamWithState, lambda: np.zeros(3)),
        r"warning: state\(\) has shape \(3,\), and its space \(2,\); make them equal: critic_observation='state' needs",
    ),
    "a state that cannot be computed": (
        partial(TeamWithState, lambda: 1 / 0),
        r"warning: state\(\) raised ZeroDivisionError: .*; critic_observation='state' needs it",
    ),
    "an image without channels": (
        TeamOfImages,
        r"warning: observation\['b'\] is a uint8 Box of 2 dimensions.*; an image has 3: \(16, 16, 1\)",
    ),
    "a reward of an unknown agent": (
        team_but(lambda team, o, r, *rest: r.update(bb=1.0)),
        r"warning: step\(\) returned rewards with 'bb', which is ignored; did you mean 'b'\?",
    ),
    "a flag of all agents": (
        team_but(lambda team, o, r, te, *rest: te.update(__all__=False)),
        r"warning: step\(\) returned terminations with '__all__', which is ignored; allowed are: a, b",
    ),
    "no truncations": (
        team_but(lambda team, o, r, te, tr, i: (o, r, te, {}, i)),
        r"warning: step\(\) returned truncations without agent 'a', which acted; return False for an agent",
    ),
    "an observation of an unknown agent": (
        TeamWithGuest,
        r"warning: reset\(\) returned observations with 7, which is ignored; allowed are: a, b",
    ),
    "an agent that returns": (
        TeamWithReturn,
        r"warning: agents has 'a', which has ended in this episode; it does not act again .*; leave it out of agents",
    ),
    "endless": (
        partial(Team, life="o" * 10_000),
        "warning: no episode ended in 300 .*; if episodes may never end, set training.eval_steps, or truncate all",
    ),
    "global randomness": (
        team_but(lambda team, o, *rest: o["b"].put(1, os.urandom(1)[0])),
        r"warning: the same seed .*; draw all random numbers from a generator of its own, which reset\(seed=…\) seeds:",
    ),
    "an exception": (
        team_but(lambda team, *parts: [][team.tick]),
        r"error: step\({'a': \d, 'b': \d}\) raised IndexError: .*test_env_checker.py\", line .*; fix it there$",
    ),
}


@pytest.mark.parametrize(("make", "message"), TEAM_DEFECTS.values(), ids=TEAM_DEFECTS)
def test_a_defect_of_a_team_is_found_and_named(make, message):
    assert check_env(partial(make_packed_env, Team)).findings == ()
    findings = [str(finding) for finding in check_env(partial(make_packed_env, make)).findings]
    assert len(findings) == 1, findings
    assert re.search(message, findings[0]), findings[0]


def test_a_state_that_the_critic_reads_is_an_error_where_it_is_not_finite():
    make = partial(make_packed_env, partial(TeamWithState, lambda: np.full(2, np.nan)), with_state=True)
    assert [str(finding) for finding in check_env(make).findings] == [
        "error: reset(seed=2024) returned an observation that its space does not hold: state() has nan in it; return "
        "finite numbers"
    ]


@pytest.mark.parametrize(("pay", "zero_sum"), [((1.5, -1.5), True), ((1.0, -0.5), False), ((0.0, 0.0), False)])
def test_a_game_whose_returns_sum_to_zero_is_zero_sum(pay, zero_sum):
    make = team_but(lambda team, o, r, *rest: r.update(zip("ab", pay, strict=True)))
    assert check_env(partial(make_packed_env, make)).zero_sum == zero_sum
    assert not check_env(sound_but(pay=lambda self: 0.0)).zero_sum


def test_a_team_with_masks_is_masked_and_agents_that_wait_for_their_turn_are_no_finding():
    inspection = check_env(partial(make_packed_env, TakesTurns))
    assert (inspection.findings, inspection.masked, inspection.longest) == ((), True, 4)
    assert not check_env(partial(make_packed_env, Team)).masked


STOCK = (
    "CartPole-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Pendulum-v1",
    "Blackjack-v1",
    "FrozenLake-v1",
    "Taxi-v4",
    "LunarLander-v3",
    "LunarLanderContinuous-v3",
    "BipedalWalker-v3",
)


def test_an_env_of_unbounded_actions_gets_no_huge_ones():
    assert check_env(Unbounded).findings == ()


@pytest.mark.parametrize("env_id", STOCK)
def test_stock_environments_have_no_findings(env_id):
    inspection = check_env(partial(gym.make, env_id, disable_env_checker=True), steps=150, replayed=50)
    assert inspection.findings == ()
    assert inspection.masked == (env_id == "Taxi-v4")


@pytest.mark.parametrize("name", ["mpe2.simple_spread_v3", "mpe2.simple_speaker_listener_v4", "classic/rps-v2"])
def test_stock_multi_agent_environments_have_no_findings(name):
    pytest.importorskip("mpe2")
    assert check_env(partial(make_packed_env, name), steps=60, replayed=30).findings == ()


@pytest.mark.parametrize(("limit", "endless"), [(2_000, False), (None, True)])
def test_a_teams_env_with_max_cycles_is_not_endless(limit, endless):
    def make():
        env = multi_agent_envs.Scripted(a="o" * 10_000)
        env.max_cycles, env.action_spaces = limit, {"a": Discrete(2)}
        return env

    inspection = check_env(partial(make_packed_env, make))
    assert inspection.endless == endless
    assert [finding.problem[:25] for finding in inspection.findings] == ["no episode ended in 300 r"] * endless


@pytest.mark.parametrize("probe", [*PROBES.values(), *MULTI_AGENT_PROBES.values()], ids=lambda probe: probe.name)
def test_probes_have_no_findings(probe):
    make = probe.make if probe in PROBES.values() else partial(make_packed_env, probe.make)
    assert check_env(make, steps=40, replayed=20).findings == ()


def test_a_finding_names_the_instances_that_have_it():
    crash, pay_nan = (sound_but(see=lambda self: 1 / 0), sound_but(pay=lambda self: np.nan))
    sound, endless = sound_but(), sound_but(over=lambda self: False, see=lambda self: np.zeros(2, np.float32))
    assert check_envs([sound, sound]).findings == ()
    assert [finding.problem[:12] for finding in check_envs([endless, endless]).findings] == ["no episode e"]
    inspection = check_envs([pay_nan, sound, crash, endless, pay_nan])
    assert inspection.endless
    assert math.isnan(inspection.steps_per_second)  # of an env that cannot be stepped
    assert [str(finding)[:40] for finding in inspection.findings] == [
        "error: instances 0, 4: step() returned t",
        "error: instance 2: reset(seed=2024) rais",
        "warning: instance 3: no episode ended in",
    ]


def test_the_brief_check_takes_few_steps_and_does_not_report_endless_episodes():
    inspection = check_env(sound_but(over=lambda self: False), steps=9, replayed=9)
    assert inspection.findings == ()
    assert BRIEF_STEPS + BRIEF_REPLAYED <= 100


@pytest.mark.parametrize(("ends_at", "taken"), [(30, 40), (200, 200), (10**9, 300)])
def test_a_brief_check_until_the_end_takes_further_steps_as_long_as_no_episode_ends(ends_at, taken):
    steps = []
    see = lambda self: steps.append(self.time) or np.zeros(2, np.float32)  # noqa: E731
    make = sound_but(over=lambda self: self.time >= ends_at, see=see)
    findings = check_env(make, steps=40, replayed=0, until_end=True).findings
    assert len([time for time in steps if time]) == taken
    assert [finding.problem[:16] for finding in findings] == ["no episode ended"] * (taken == 300)
