"""PPO's options together: in resumed, sharded and compiled runs, in teams, and beside members that have others."""

import contextlib
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pettingzoo import ParallelEnv
from small_runs import SMALL, CopyFolder

from agilerl_like import (
    IPPO,
    PPO,
    HyperparameterConfig,
    Mutations,
    Population,
    RLParameter,
    Run,
    TournamentSelection,
    make_multi_agent_vect_envs,
    make_vect_envs,
    train_multi_agent_on_policy,
    train_on_policy,
)
from agilerl_like.cli import main
from agilerl_like.learning import execution

pytestmark = pytest.mark.filterwarnings("ignore:bootstrap_truncated=False")

STEPS = 5
TINY = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": []}, "latent_dim": 8}
SETTINGS = {"num_envs": 2, "learn_step": 40, "batch_size": 20, "lr": 3e-3, "net_config": SMALL}
RANGES = HyperparameterConfig(lr=RLParameter(1e-4, 1e-2), gamma=RLParameter(0.9, 0.99))


class Aim(gymnasium.Env):
    """Pays `pay` x (1 - the distance from a goal that is shown); the critic also sees the sum of the rewards so far."""

    observation_space = Dict(goal=Box(-1, 1, (2,)), total=Box(-9, 9, (1,)))
    action_space = Box(-1, 1, (1,))

    def __init__(self, pay=1.0):
        self.pay = pay

    def _observe(self):
        return {"goal": self.np_random.uniform(-1, 1, 2).astype(np.float32), "total": np.float32([self.total])}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count, self.total = 0, 0.0
        self.seen = self._observe()
        return self.seen, {}

    def step(self, action):
        reward = self.pay * (1.0 - abs(float(action[0]) - float(self.seen["goal"][0])))
        self.count += 1
        self.total += reward
        self.seen = self._observe()
        info = {"near": float(reward > 0), "count": self.count}
        return self.seen, reward, False, self.count == STEPS, info


class Pair(ParallelEnv):
    """Two agents; each is paid `pay` x its action."""

    metadata = {"name": "pair"}  # noqa: RUF012
    possible_agents = ["one_0", "one_1"]  # noqa: RUF012

    def __init__(self, pay=1.0):
        self.pay = pay

    def observation_space(self, agent):
        return Box(-1, 1, (2,))

    def action_space(self, agent):
        return Box(-1, 1, (1,))

    def _observe(self):
        return {agent: self.rng.uniform(-1, 1, 2).astype(np.float32) for agent in self.agents}

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents, self.count = [*self.possible_agents], 0
        return self._observe(), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.count += 1
        seen = self._observe()
        rewards = {agent: self.pay * float(actions[agent][0]) for agent in self.agents}
        ends = dict.fromkeys(self.agents, self.count == STEPS)
        infos = {agent: {"count": self.count} for agent in self.agents}
        if self.count == STEPS:
            self.agents = []
        return seen, rewards, dict.fromkeys(rewards, False), ends, infos


def state(agent):
    """All numbers of an agent by name: weights, normalisers, moments, and the statistics of rewards."""
    learner = agent.learner
    found = dict(agent.network.state_dict())
    found |= {f"moments.{name}": x for name, x in vars(learner.moments).items() if isinstance(x, torch.Tensor)}
    found |= {f"returns.{i}": x for i, x in enumerate(learner.return_statistics or ())}
    return {name: x.clone() for name, x in found.items()}


def check_equal(ours, theirs):
    """Agents are equal to the bit."""
    assert ours.architecture == theirs.architecture
    assert ours.hyperparameters == theirs.hyperparameters
    assert ours.settings() == theirs.settings()
    one, other = state(ours), state(theirs)
    assert one.keys() == other.keys()
    for name, x in one.items():
        assert torch.equal(x, other[name]), name


def population_of(env, size=2, **options):
    spaces = env.single_observation_space, env.single_action_space
    settings_ = {name: value for name, value in {**SETTINGS, **options}.items() if value is not None}
    return PPO.population(size, *spaces, seed=0, hp_config=RANGES, **settings_)


def train(options, *, source=Aim, run_dir=None, resume=None, envs=None, **more):
    """Train members with a selection after every 80 steps; `envs` are arguments of the environments."""
    with contextlib.closing(make_vect_envs(source, num_envs=2, backend="sync", **(envs or {}))) as env:
        found, _ = train_on_policy(
            env,
            pop=population_of(env, **options) if resume is None else None,
            max_steps=240,
            evo_steps=80,
            eval_loop=1,
            verbose=False,
            checkpoint=None if run_dir is resume is None else 80,  # without a folder it is the working directory
            run_dir=run_dir,
            resume=resume,
            selection_strategy=TournamentSelection(2),
            mutation=Mutations(no_mutation=0.2, architecture=0.4, rl_hp=0.4),
            **more,
        )
    return found


def twice(train_run, folder):
    """Return the members of a whole run, and of one that is resumed as after a kill."""
    whole = train_run(run_dir=folder / "whole", callbacks=[CopyFolder(folder / "whole", folder / "parts")])
    assert [path.name for path in (folder / "parts" / "checkpoints").iterdir()] == ["gen-000001"]  # of three
    return whole, train_run(resume=folder / "parts")


# -- resumed

PAYS = [{"pay": 1.0}, {"pay": 2.0}]
OPTIONS = {
    "adaptive rate": {
        "lr_schedule": "kl", "lr_critic": 5e-3, "optimizer": "adamw", "weight_decay": 0.01, "target_kl": 0.05,
        "kl_stop": "minibatch", "clip_grads": "together",
    },
    "normalisers": {
        "normalize_reward": True, "reward_clip": 5.0, "observation_clip": 3.0, "reward_transform": {"scale": 0.5},
        "normalize_value": True,
    },
    "bounds and rmsprop": {
        "normalize_observation": "bounds", "optimizer": "rmsprop", "normalize_value": False, "betas": (0.5, 0.99),
    },
    "standard deviation of the state": {
        "state_dependent_std": True, "action_std_init": -1.0, "action_std_min": 0.1, "action_std_max": 0.9,
    },
    "standard deviation": {"action_std_init": -1.0, "action_noise_correlation": 0.5, "random_steps": 60},
    "critic apart": {
        "critic_observation": ["policy", "total"], "normalize_value": True,
        "critic_config": {"encoder_config": {}, "latent_dim": 32, "evolves": "apart"}, "net_config": {"latent_dim": 16},
    },
    "n-step": {"advantage": "n_step", "n_step": 3, "normalize_advantage": "minibatch", "learning_starts": 60},
    "Monte Carlo": {"advantage": "mc", "bootstrap_truncated": False, "schedules": {"ent_coef": "linear"}},
    "preset": {"preset": "skrl", "num_steps": 20, "net_config": TINY, "learn_step": None, "batch_size": None},
}  # fmt: skip


class Goal(gymnasium.ObservationWrapper):
    """The goal alone."""

    observation_space = Aim.observation_space["goal"]

    def observation(self, observation):
        return observation["goal"]


def plain_aim(pay=1.0):
    return Goal(Aim(pay))


@pytest.mark.parametrize("case", OPTIONS)
def test_resumed_runs_equal_uninterrupted_ones(case, tmp_path):
    options = OPTIONS[case]
    source = Aim if "critic_observation" in options else plain_aim
    for ours, theirs in zip(*twice(partial(train, options, source=source), tmp_path), strict=True):
        check_equal(ours, theirs)
        check_equal(ours, ours.clone())


def test_runs_with_instances_infos_and_limits_resume(tmp_path):
    envs = {"instances": PAYS, "info_keys": {"near": "near"}, "aggregate": "min"}
    options = {"critic_observation": "total", "net_config": {"latent_dim": 16}}
    for ours, theirs in zip(*twice(partial(train, options, envs=envs, fitness="info.near"), tmp_path), strict=True):
        check_equal(ours, theirs)
    assert all(float(row["eval/fitness_by_instance/1"]) > 0 for row in Run.open(tmp_path / "parts").metrics())


# -- in several processes


def results(run):
    """The measures of a run, without times, and its members."""
    found, kinds = Run.open(run), ("eval/", "hp/", "train/")
    rows = [{name: value for name, value in row.items() if name.startswith(kinds)} for row in found.metrics()]
    return rows, found.population()


@pytest.mark.slow
def test_two_processes_train_the_same_members_from_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = {
        "environment.num-envs": 2,
        "environment.instances": "[{pay: 1.0}, {pay: 2.0}]",
        "environment.info-keys": "{near: near, count: env.count}",
        "environment.backend": "sync",
        "algorithm.critic-observation": "total",
        "algorithm.learn-step": 40,
        "algorithm.batch-size": 20,
        "algorithm.lr-schedule": "kl",
        "algorithm.normalize-reward": "true",
        "algorithm.per-member": "true",
        "network.critic-config": "{latent_dim: 32, evolves: apart}",
        "hyperparameters.gamma": "{min: 0.9, max: 0.99}",
        "population.size": 2,
        "training.max-steps": 160,
        "training.evo-steps": 80,
        "training.fitness": "info.near",
        "seed": 3,
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    for name, processes in (("one", 1), ("two", 2)):
        train_own = ["train", "training.test_options_together:Aim", "--run.name", name, "--run.processes"]
        assert main([*train_own, str(processes), *words]) == 0
    (numbers, members), (others, their_members) = results("runs/one"), results("runs/two")
    assert numbers == others
    assert len(numbers) == 4  # of two members in two generations
    assert {"eval/fitness_by_instance/0", "eval/fitness_by_instance/1", "eval/info/near"} <= numbers[0].keys()
    assert {float(row["eval/info/count"]) for row in numbers} == {STEPS}
    for ours, theirs in zip(members, their_members, strict=True):
        check_equal(ours, theirs)


# -- teams


TEAM_OPTIONS = {
    "critic_observation": "joint",
    "critic_config": {"latent_dim": 32, "evolves": "apart"},
    "lr_schedule": "kl",
    "normalize_reward": True,
    "normalize_observation": "bounds",
    "optimizer": "adamw",
}


def train_team(*, run_dir=None, resume=None, processes=1, **more):
    envs = {"instances": PAYS, "info_keys": {"count": "one_0.count"}, "backend": "sync"}
    with contextlib.closing(make_multi_agent_vect_envs(Pair, 2, **envs)) as env:
        spaces = env.single_observation_spaces, env.single_action_spaces
        options = {**SETTINGS, "per_member": True, **TEAM_OPTIONS}
        found, _ = train_multi_agent_on_policy(
            env,
            pop=IPPO.population(2, *spaces, seed=0, hp_config=RANGES, **options) if resume is None else None,
            max_steps=240,
            evo_steps=80,
            eval_loop=1,
            verbose=False,
            checkpoint=80,
            run_dir=run_dir,
            resume=resume,
            processes=processes,
            selection_strategy=TournamentSelection(2),
            mutation=Mutations(no_mutation=0.2, architecture=0.4, rl_hp=0.4),
            **more,
        )
    return found


def team_state(team):
    found = {}
    for group, learner in team.learners.items():
        found |= {f"{group}.{name}": x.clone() for name, x in learner.network.state_dict().items()}
        found |= {f"{group}.{i}": x.clone() for i, x in enumerate(learner.return_statistics)}
        found[f"{group}.scale"] = learner.moments.lr_scale.clone()
    return found


@pytest.mark.slow
def test_teams_on_instances_resume_and_train_in_two_processes_to_the_bit(tmp_path):
    whole, parts = twice(train_team, tmp_path)
    shared = train_team(run_dir=tmp_path / "shared", processes=2)
    for members in zip(whole, parts, shared, strict=True):
        one, *others = map(team_state, members)
        others.append(team_state(members[0].clone()))
        for kind, other in zip(("resumed", "shared", "cloned"), others, strict=True):
            assert [name for name, x in one.items() if not torch.equal(x, other[name])] == [], kind
    assert results(tmp_path / "shared")[0] == results(tmp_path / "whole")[0]
    assert Run.open(tmp_path / "shared").lineage() == Run.open(tmp_path / "whole").lineage()
    rows = Run.open(tmp_path / "whole").metrics()
    assert {"eval/fitness_by_instance/1", "eval/info/count"} <= rows[0].keys()
    assert {float(row["eval/info/count"]) for row in rows} == {STEPS}


# -- compiled


@pytest.mark.slow
@pytest.mark.parametrize("case", ["adaptive rate", "bounds and rmsprop", "standard deviation of the state"])
def test_compiled_updates_are_those_of_plain_runs(case, monkeypatch):
    monkeypatch.setattr(
        execution,
        "_compiled",
        lambda function, device: torch.compile(function, backend="eager", fullgraph=True, dynamic=False),
    )
    torch.compiler.reset()  # what was compiled before counts towards a limit
    execution.trace_autograd()
    options = {**OPTIONS[case], "share_encoders": False, "critic_config": {"latent_dim": 32}}
    plain, compiled = (train({**options, "compile": it}, source=plain_aim) for it in (False, True))
    for ours, theirs in zip(plain, compiled, strict=True):
        assert ours.architecture == theirs.architecture
        for name, x in state(ours).items():
            torch.testing.assert_close(state(theirs)[name], x, rtol=2e-3, atol=2e-4, msg=name)


# -- together as alone

MODES = st.fixed_dictionaries(
    {
        "share_encoders": st.booleans(),
        "normalize_observation": st.sampled_from([True, False, "bounds"]),
        "normalize_value": st.booleans(),
        "optimizer": st.sampled_from(["adam", "adamw", "rmsprop", "sgd"]),
        "clip_grads": st.sampled_from(["apart", "together"]),
        "normalize_advantage": st.sampled_from(["rollout", "minibatch", "none"]),
        "advantage": st.sampled_from(["gae", "n_step", "mc"]),
        "bootstrap_truncated": st.booleans(),
        "value_clip_mode": st.sampled_from(["max", "clipped"]),
        "clip_coef_vf": st.just(0.2),
        "state_dependent_std": st.booleans(),
        "normalize_reward": st.booleans(),
        "lr_schedule": st.sampled_from([None, "linear", "cosine", "kl"]),
        "kl_stop": st.sampled_from(["epoch", "minibatch", "update"]),
        "target_kl": st.just(0.5),
        "lr_critic": st.sampled_from([None, 1e-3]),
        "net_config": st.sampled_from([SMALL, TINY]),
        "critic_config": st.sampled_from([None, {"latent_dim": 32}, {"latent_dim": 32, "evolves": "apart"}]),
    }
)
NUMBERS = st.fixed_dictionaries(
    {
        "lr": st.sampled_from([1e-4, 1e-3, 5e-3]),
        "gamma": st.floats(0.5, 1.0),
        "clip_coef": st.floats(0.05, 0.4),
        "ent_coef": st.floats(0.0, 0.1),
        "max_grad_norm": st.sampled_from([0.1, 0.5]),
        "update_epochs": st.integers(1, 4),
        "action_std_init": st.floats(-1.0, 0.5),
        "random_steps": st.sampled_from([0, 30]),
    }
)


def alone_and_together(modes, numbers, per_member):
    """Return the first of three members that trained beside the others, and one that trained alone."""
    with contextlib.closing(make_vect_envs(plain_aim, num_envs=2, backend="sync")) as env:
        spaces = env.single_observation_space, env.single_action_space
        for count in (1, 3):
            members = [
                PPO(*spaces, index=i, seed=0, per_member=per_member, **{**SETTINGS, **modes, **its})
                for i, its in enumerate(numbers[:count])
            ]
            found, _ = train_on_policy(
                env, pop=Population(members), max_steps=120, evo_steps=60, eval_loop=1, verbose=False
            )
            yield found[0]


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(MODES, st.lists(NUMBERS, min_size=3, max_size=3), st.booleans())
def test_a_member_with_any_options_learns_beside_others_what_it_learns_alone(modes, numbers, per_member):
    if modes["critic_config"] is not None:
        modes["share_encoders"] = False
    alone, together = alone_and_together(modes, numbers, per_member)
    assert alone.learner.updates == together.learner.updates > 0
    one, other = state(alone), state(together)
    for name, x in one.items():
        if per_member:
            assert torch.equal(x, other[name]), name
        else:
            torch.testing.assert_close(other[name], x, rtol=2e-3, atol=2e-4, msg=name)
