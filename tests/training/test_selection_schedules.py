"""Schedules that a selection strategy gives to members without one of their own."""

import copy
import pickle
from dataclasses import dataclass
from typing import Any

import pytest
from small_runs import SMALL

from agilerl_like import DQN, PPO, HyperparameterConfig, RLParameter, make_vect_envs, train_on_policy
from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo import Selection, SlotPlan
from agilerl_like.hpo.auto import AutoSelection
from agilerl_like.reporting.callback import Callback
from agilerl_like.training.off_policy import train_off_policy

ENVS, STEPS, MAX_STEPS = 2, 40, 400
PPO_SETTINGS = {"learn_step": 20, "batch_size": 10}


class Rates(Callback):
    """Collects where each update's rollout began, and the share of the member's learning rate that it used."""

    def __init__(self):
        self.progress, self.shares, self.schedules, self.agents = [], [], [], {}

    def on_update(self, run, metrics):
        for slot, reported in metrics.items():
            agent = self.agents[slot] = run.population[slot]
            self.progress.append(agent.progress)
            self.schedules.append(agent.active_schedules)
            self.shares.append(reported.get("lr", agent.lr) / agent.lr)


def trained(kind=PPO, train=train_on_policy, selection=None, run_dir=None, rates=None, **settings):
    """Train two members; return what `Rates` collected, and the population."""
    env = make_vect_envs("CartPole-v1", num_envs=ENVS, backend="vector")
    settings |= {"net_config": SMALL, "hp_config": HyperparameterConfig(lr=RLParameter(1e-4, 1e-2))}
    pop = kind.population(2, env.single_observation_space, env.single_action_space, num_envs=ENVS, seed=1, **settings)
    rates, search = rates or Rates(), {"evolution": "auto"} if selection is None else {"selection_strategy": selection}
    sizes = {"max_steps": MAX_STEPS, "evo_steps": STEPS, "eval_loop": 1}
    files = {"checkpoint": None if run_dir is None else STEPS, "run_dir": run_dir}
    pop, _ = train(env, pop=pop, verbose=False, callbacks=[rates], **sizes, **search, **files)
    env.close()
    return rates, pop


def test_the_learning_rate_falls_in_the_second_half_of_the_budget_and_the_hyperparameter_stays():
    rates, pop = trained(**PPO_SETTINGS)
    expected = [1 - 0.95 * max(0.0, (progress - 0.5) / 0.5) for progress in rates.progress]
    assert rates.shares == pytest.approx(expected)
    assert max(rates.progress) == 0.95  # where the last rollout begins
    assert all(its == {"lr": ((0.5, 1.0), (1.0, 0.05))} for its in rates.schedules)
    assert all(agent.active_schedules == {} for agent in (*pop, pop.best))  # for further training
    assert all(1e-4 <= agent.lr <= 1e-2 for agent in pop)


@pytest.mark.slow
def test_it_stays_with_anneal_from_1_and_falls_from_the_beginning_with_0():
    assert trained(selection=AutoSelection(anneal_from=1), **PPO_SETTINGS)[0].shares == pytest.approx([1.0] * 40)
    rates, _ = trained(selection=AutoSelection(anneal_from=0), **PPO_SETTINGS)
    assert rates.shares == pytest.approx([1 - 0.95 * progress for progress in rates.progress])


@pytest.mark.parametrize("own", [{"schedules": {"lr": "linear"}}, {"lr_schedule": "linear"}, {"lr_schedule": "kl"}])
def test_a_schedule_of_the_members_own_stays(own):
    rates, pop = trained(**PPO_SETTINGS, **own)
    given = {name: getattr(pop[0], name) for name in ("schedules", "lr_schedule")}
    assert given == {"schedules": {}, "lr_schedule": None} | own
    assert all(its == pop[0].active_schedules for its in rates.schedules)


def test_another_schedule_of_the_members_own_stays_beside_it():
    rates, pop = trained(**PPO_SETTINGS, schedules={"ent_coef": "linear"})
    assert all(its == {"ent_coef": "linear", "lr": ((0.5, 1.0), (1.0, 0.05))} for its in rates.schedules)
    assert all(agent.active_schedules == {"ent_coef": "linear"} for agent in (*pop, pop.best))


def test_a_schedule_of_the_members_own_that_equals_that_of_the_selection_stays_after_the_run():
    given = {"lr": ((0.5, 1.0), (1.0, 0.05))}
    _, pop = trained(**PPO_SETTINGS, schedules=given)
    assert all(agent.schedules == given for agent in (*pop, pop.best))


def test_agents_in_the_folder_of_a_run_have_no_schedule_of_its_selection(tmp_path):
    trained(**PPO_SETTINGS, run_dir=tmp_path / "run")
    for folder in (tmp_path / "run", tmp_path / "run" / "best"):
        assert PPO.load(folder).schedules == {}


def test_off_policy_members_keep_their_learning_rate():
    rates, _ = trained(DQN, train_off_policy, batch_size=8, learning_starts=8)
    assert rates.schedules
    assert all(its == {} for its in rates.schedules)


@dataclass(frozen=True)
class Scheduled(Selection):
    """All members stay, and get these schedules."""

    given: Any = None

    def schedules(self):
        return self.given

    def plan(self, view, rng):
        return [SlotPlan(slot, slot, explore=False) for slot in range(len(view))]


def test_a_selection_of_a_users_own_gives_schedules_by_name():
    rates, pop = trained(selection=Scheduled({"lr": "linear", "ent_coef": "cosine"}), **PPO_SETTINGS)
    assert all(its == {"lr": "linear", "ent_coef": "cosine"} for its in rates.schedules)
    assert all(agent.active_schedules == {} for agent in pop)


@dataclass(frozen=True)
class Replacing(Scheduled):
    """Clones of the first member replace the second one."""

    def plan(self, view, rng):
        return [SlotPlan(0, 0, explore=False) for _ in view.uids]


def test_copies_of_a_run_and_replaced_members_have_neither_its_schedules_nor_its_length():
    """Further training of them would else begin at the low learning rate of the end of the run."""
    taken, members = [], {}

    class Copies(Callback):
        def on_update(self, run, metrics):
            members.update((agent.index, agent) for agent in run.population)

        def on_generation(self, run, record):
            agent = run.population[0]
            assert agent.learner.hyperparams()[0] < agent.lr
            assert agent.learner.max_steps == MAX_STEPS
            taken.extend((agent.clone(), copy.deepcopy(agent), pickle.loads(pickle.dumps(agent))))

    trained(selection=Replacing({"lr": "linear"}), rates=Copies(), **PPO_SETTINGS)
    assert len(members) > 2
    for agent in (*taken, *members.values()):
        assert agent.learner.hyperparams()[0] == agent.lr
        assert agent.learner.max_steps is None


def test_no_schedule_of_the_selection_stays_after_an_error():
    class Broken(Scheduled):
        def plan(self, view, rng):
            raise RuntimeError("broken")

    rates = Rates()
    with pytest.raises(RuntimeError, match="broken"):
        trained(selection=Broken({"lr": "linear"}), rates=rates, **PPO_SETTINGS)
    assert all(its == {"lr": "linear"} for its in rates.schedules)
    assert [agent.active_schedules for agent in rates.agents.values()] == [{}, {}]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("linear", "schedules='linear'; allowed is a mapping"),
        ({"lr": "fast"}, "lr='fast'"),
        ({"gamma": "linear"}, "gamma"),
    ],
)
def test_schedules_that_no_member_can_have_are_errors(given, message):
    with pytest.raises(ConfigurationError, match=message):
        trained(selection=Scheduled(given), **PPO_SETTINGS)


@pytest.mark.parametrize("share", [-0.1, 1.1, True])
def test_anneal_from_is_a_share_of_the_budget(share):
    with pytest.raises(ConfigurationError, match=f"anneal_from={share}"):
        AutoSelection(anneal_from=share)
