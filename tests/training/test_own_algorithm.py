"""An algorithm of a script's own: settings, learner, experience buffer and update on the protocols."""

from contextlib import nullcontext
from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from typing import Any

import gymnasium
import pytest
import torch
from pydantic.dataclasses import dataclass
from scripts import own_registrations
from small_runs import SMALL
from tensordict import TensorDict
from torch import Tensor

from agilerl_like import IPPO, PPO, make_vect_envs, train_on_policy
from agilerl_like.agilerl.algorithms import ppo as agilerl_ppo
from agilerl_like.agilerl.algorithms.recurrent_ppo import RecurrentPPO
from agilerl_like.algorithms.evolvable_algorithm import load_agent
from agilerl_like.algorithms.learner import Learner
from agilerl_like.algorithms.learner_group import LearnerGroup
from agilerl_like.algorithms.population import Population, make_members
from agilerl_like.algorithms.presets import preset_values
from agilerl_like.algorithms.rl_algorithm import RLAlgorithm
from agilerl_like.algorithms.settings import STRICT, Count, Positive, Schedules, validated
from agilerl_like.config.loader import Draft
from agilerl_like.envs.vec_adapter import VecEnvAdapter
from agilerl_like.errors import CheckpointError, ConfigurationError
from agilerl_like.hpo import HyperparameterConfig, Mutations, RLParameter
from agilerl_like.hpo.frozen_mapping import FrozenMapping
from agilerl_like.learning.gradient_sync import GradientSync
from agilerl_like.training.collector import Collector, PhaseTimer

RANGES = HyperparameterConfig(lr=RLParameter(0.1, 1.0))
SPACES = gymnasium.spaces.Box(-1.0, 1.0, (3,)), gymnasium.spaces.Discrete(3)


@dataclass(frozen=True, config=STRICT)
class DriftConfig:
    """Settings of an algorithm that adds `lr` to every weight."""

    lr: Positive = 0.5
    """What is added."""
    learn_step: Count = 8
    """Env steps between updates."""


class StepLog:
    """Actions and rewards of all steps, in a list."""

    def __init__(self):
        self.actions, self.rewards = [], []

    def begin(self):
        self.actions.append(None)
        self.rewards.append(None)
        return len(self.actions) - 1

    def part(self, columns):
        return self

    def put_actions(self, place, observations, actions, mask):
        self.actions[place] = actions.clone()

    def put_outcome(self, place, transition):
        self.rewards[place] = transition.reward.copy()

    def reader(self, next_observations, state):
        return self


@plain_dataclass(frozen=True)
class Drift:
    """The update: weights plus `by` `[P]`."""

    by: Tensor

    def of_members(self, members):
        return replace(self, by=self.by[members])

    def alone(self, member, state_shape):
        return replace(self, by=self.by[member : member + 1])

    def run(self, stacked, execution, gradient_sync):
        stacked.flat += self.by.unsqueeze(1)
        return TensorDict({"drift": self.by, "healthy": torch.ones_like(self.by)}, batch_size=[len(self.by)])


class DriftLearner(Learner):
    algo = "Drift"


class DriftGroup(LearnerGroup[DriftLearner]):
    learner_class, metrics, placeholder_action = DriftLearner, ("drift",), SPACES[1]
    log: Any = None

    def make_buffer(self, env, envs, describe_row):
        self.log = self.log or StepLog()
        return self.log

    def learn(self, places, experience):
        assert experience is self.log
        learners = [self[place] for place in places]
        metrics = self.cohort.learn(places, Drift(torch.tensor([learner.algorithm.lr for learner in learners])))
        for learner in learners:
            learner.after_update(torch.zeros(1, 1, 3))
        return {place: metrics[i : i + 1] for i, place in enumerate(places)}


class DriftAlgorithm(RLAlgorithm[DriftLearner]):
    algo, config, group_class = "Drift", DriftConfig, DriftGroup

    def __init__(
        self,
        observation_space,
        action_space,
        net_config=None,
        index=0,
        hp_config=None,
        num_envs=1,
        seed=None,
        **settings,
    ):
        self._init_given({**vars(validated(DriftConfig, settings)), **locals()}, net_config)


def population(size=2, **settings):
    return Population(make_members(DriftAlgorithm, size, *SPACES, sample=False, settings=settings))


def flat(agent):
    return torch.cat([parameter.detach().flatten() for parameter in agent.network.parameters()])


class Walk(gymnasium.Env):
    """Five steps; the reward is the action."""

    observation_space, action_space = SPACES

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observation_space.low, {}

    def step(self, action):
        self.steps += 1
        return self.observation_space.low, float(action), self.steps == 5, False, {}


def test_a_run_steps_stores_learns_reports_and_saves(tmp_path):
    pop = population(net_config=SMALL, seed=3, num_envs=2)
    before = flat(pop[0])
    env = make_vect_envs(Walk, num_envs=2, backend="sync")
    run = {"max_steps": 32, "evo_steps": 16, "eval_loop": 1, "verbose": False, "run_dir": tmp_path / "run"}
    trained, _ = train_on_policy(env, pop=pop, **run)
    # 32 steps in rollouts of 8 are 4 updates of 0.5 each
    torch.testing.assert_close(flat(pop[0]), before + 4 * 0.5)
    log = pop.learners.log
    assert len(log.actions) == 16  # of 2 members with 2 envs each, 32 steps of each member
    for actions, rewards in zip(log.actions, log.rewards, strict=True):
        assert actions.shape == (2, 2, 1)
        assert rewards.tolist() in (actions.flatten().tolist(), [0.0] * 4)  # 0 where an episode is reset
    lines = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    names, *rows = (line.split(",") for line in lines)
    assert {row[names.index("train/drift")] for row in rows} == {"0.5"}
    best = DriftAlgorithm.load(tmp_path / "run" / "best")
    assert torch.equal(flat(best), flat(trained.best))


def test_a_subclass_without_a_name_of_its_own_is_what_files_name_and_loading_builds(tmp_path):
    with own_registrations():

        class Renewed(PPO):
            pass

        class Named(Renewed, same_algorithm=True):
            pass

        assert (Renewed.algo, Named.algo, agilerl_ppo.PPO.algo, RecurrentPPO.algo) == (
            "Renewed",
            "Renewed",
            "PPO",
            "PPO",
        )
        env = make_vect_envs(Walk, num_envs=2, backend="sync")
        run = {"max_steps": 32, "evo_steps": 16, "eval_loop": 1, "verbose": False}
        pop = Renewed.population(2, *SPACES, num_envs=2, learn_step=16, batch_size=16, net_config=SMALL, seed=3)
        train_on_policy(env, pop=pop, run_dir=tmp_path / "run", checkpoint=16, **run)
        assert {type(agent) for agent in Population.load(tmp_path / "run" / "population")} == {Renewed}
        assert type(load_agent(tmp_path / "run" / "best")) is Renewed
        resumed, _ = train_on_policy(env, resume=tmp_path / "run", **{**run, "max_steps": 48})
        assert {type(agent) for agent in (*resumed, resumed.best)} == {Renewed}
    with pytest.raises(CheckpointError, match=r"holds algorithm='Renewed'; known are .*PPO"):
        Population.load(tmp_path / "run" / "population")


@pytest.mark.parametrize("base", [PPO, IPPO])
def test_a_preset_has_the_same_values_for_a_subclass_of_an_algorithm(base):
    with own_registrations():
        renewed = type("Renewed", (base,), {})
        for preset in ("cleanrl", "agilerl", "sb3"):
            given = {"learn_step": 16}
            values = preset_values(preset, given, algorithm=base.algo)
            assert preset_values(preset, given, algorithm=renewed.algo) == values


class OnRewardGroup(DriftGroup):
    """A member learns after a step in which its first env paid 2."""

    def steps_until_update(self, since):
        return [1] * len(self)

    def due(self, since):
        assert all(steps > 0 for steps in since)
        return [place for place in range(len(self)) if self.log.rewards[-1][2 * place] == 2]


class OnReward(DriftAlgorithm):
    algo, group_class = "OnReward", OnRewardGroup


def test_a_learner_group_decides_when_it_learns():
    settings = {"net_config": SMALL, "num_envs": 2, "seed": 4}
    pop = Population(make_members(OnReward, 2, *SPACES, sample=False, settings=settings))
    env = make_vect_envs(Walk, num_envs=2, backend="sync")
    train_on_policy(env, pop=pop, max_steps=40, evo_steps=40, eval_loop=1, verbose=False)
    paid = [sum(reward[2 * place] == 2 for reward in pop.learners.log.rewards) for place in range(2)]
    assert [agent.learner.updates for agent in pop] == paid
    assert min(paid) > 0


def test_members_mutate_and_keep_their_settings():
    pop = population(size=3, net_config=SMALL, seed=3, num_envs=2, hp_config=RANGES)
    pop.mutate(Mutations(rl_hp=1.0, architecture=0.0, no_mutation=0.0, rand_seed=0, mutate_elite=True))
    assert len({agent.lr for agent in pop}) > 1
    pop.learn([2, 0], pop.learners.make_buffer(None, 2, None))
    assert [agent.learner.updates for agent in pop] == [1, 0, 1]


def test_one_call_per_member_gives_the_same():
    shared, separate = (population(net_config=SMALL, seed=3, num_envs=2) for _ in range(2))
    separate[0].per_member = separate[1].per_member = True
    for pop in (shared, separate):
        pop.learn([0, 1], pop.learners.make_buffer(None, 2, None))
    assert all(map(torch.equal, map(flat, shared), map(flat, separate)))


@dataclass(frozen=True, config=STRICT)
class ScheduledConfig(DriftConfig):
    """Drift with schedules."""

    schedules: Schedules = FrozenMapping()
    """Factors on lr."""


class ScheduledDrift(DriftAlgorithm):
    algo, config = "ScheduledDrift", ScheduledConfig

    def __init__(self, observation_space, action_space, net_config=None, lr=0.5, learn_step=8, schedules=None):
        self._init_given(locals(), net_config)  # what it does not take has its default


def test_a_report_without_a_scheduled_value_is_an_error_that_names_it():
    pop = Population([ScheduledDrift(*SPACES, net_config=SMALL, schedules={"lr": "linear"})])
    pop[0].progress = 0.25
    assert pop[0].learner.scheduled == ("lr",)
    assert pop[0].learner.schedule_factor("lr") == 0.75
    assert pop[0].learner.schedule_factor("learn_step") == 1.0
    env = make_vect_envs(Walk, num_envs=1, backend="sync")
    with pytest.raises(ConfigurationError, match=r"DriftGroup\.learn: the report lacks 'lr', which is scheduled"):
        train_on_policy(env, pop=pop, max_steps=16, evo_steps=16, verbose=False)


@pytest.mark.parametrize(("shares", "refused"), [(False, True), (True, False)])
def test_processes_share_envs_only_where_the_group_allows_it(monkeypatch, shares, refused):
    monkeypatch.setattr(DriftGroup, "shares_envs", shares)
    pop = population(size=1, net_config=SMALL, num_envs=4)
    pop.gradient_sync = type("TwoRanks", (GradientSync,), {"num_ranks": 2})()
    env = VecEnvAdapter(make_vect_envs(Walk, num_envs=2, backend="sync"))
    message = "share the envs of a member, which Drift does not support"
    with pytest.raises(ConfigurationError, match=message) if refused else nullcontext():
        Collector(pop, env, PhaseTimer(("env", "act", "learn")))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ({"algorithm": {"name": "Drift", "lr": 0.25}, "hyperparameters": {"lr": {"min": 0.1, "max": 1}}}, None),
        ({"algorithm": {"name": "Drift", "gamma": 0.9}}, "gamma"),
        ({"algorithm": {"name": "Drift"}, "hyperparameters": {"gamma": {"min": 0.1, "max": 1}}}, "gamma"),
    ],
)
def test_configurations_take_its_settings(text, found):
    draft = Draft({"environment": {"id": "CartPole-v1"}, **text}, {}, {})
    if found:
        with pytest.raises(ConfigurationError, match=found):
            draft.validate()
        return
    config = draft.validate()
    assert config.algorithm_class is DriftAlgorithm
    assert config.algorithm.settings() == {"lr": 0.25, "learn_step": 8}
    assert config.to_json()["hyperparameters"]["lr"]["dtype"] == "float"
