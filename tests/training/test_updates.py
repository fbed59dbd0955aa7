"""`log_every="update"`: updates.csv has a row for each member and update, and the run itself stays the same."""

import contextlib
import csv
from typing import ClassVar

import numpy as np
import pytest
import torch
from duel_envs import Duel
from gymnasium.spaces import Box, Discrete
from pettingzoo.utils import BaseParallelWrapper
from small_runs import Records
from test_run_settings import SMALL
from test_weights_history import SETTINGS, Killed, KillIn, population, same, weights

from agilerl_like import (
    IPPO,
    PPO,
    ConfigurationError,
    Mutations,
    Run,
    TournamentSelection,
    make_multi_agent_vect_envs,
    make_vect_envs,
    train_multi_agent_on_policy,
    train_on_policy,
)
from agilerl_like.algorithms import PPOConfig
from agilerl_like.learning.ppo_update import DEFAULT_MODES, DETAILS, METRICS, PPOUpdate
from agilerl_like.learning.rollout_buffer import FinalObservations, Rollout
from agilerl_like.reporting import Reporter, read_updates
from agilerl_like.training.loop_state import _means

FIRST = ["generation", "slot", "uid", "update", "env_steps", "rollout/ep_rew_mean"]


def train(run_dir, *, resumes=False, log_every="update", **options):
    """Train three members for four generations of two updates each; return the population."""
    with contextlib.closing(make_vect_envs("CartPole-v1", num_envs=2)) as env:
        options = {"resume" if resumes else "run_dir": run_dir, "checkpoint": 64, "log_every": log_every, **options}
        evolution = {"selection_strategy": TournamentSelection(2), "mutation": Mutations(architecture=0.4)}
        limits = {"max_steps": 256, "evo_steps": 64, "eval_loop": 1, "eval_steps": 20, "history": 0}
        return train_on_policy(env, pop=population(env), verbose=False, **evolution, **{**limits, **options})[0]


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """A run that logs its updates, and its population."""
    folder = tmp_path_factory.mktemp("logged") / "run"
    return folder, train(folder)


def test_a_row_for_each_member_and_update(logged):
    rows = read_updates(logged[0])
    found = [(row["generation"], row["env_steps"], row["slot"]) for row in rows]
    # learn_step 32 in 2 envs: an update of each member every 32 of its env steps, two in a generation of 64
    assert found == [(1 + update // 2, 32 * (1 + update), slot) for update in range(8) for slot in range(3)]
    with (logged[0] / "updates.csv").open() as file:
        columns = next(csv.reader(file))
    names = [name for name in METRICS if name != "healthy"]
    assert columns == FIRST + [f"train/{name}" for name in (*names, *DETAILS)]
    assert [*map(str, Run.open(logged[0]).updates())] == [*map(str, rows)]  # some returns are nan


def test_numbers_agree_with_metrics_csv(logged):
    """A generation's mean in metrics.csv is the mean of its updates."""
    rows, updates = Run.open(logged[0]).metrics(), read_updates(logged[0])
    for row in rows:
        own = [one for one in updates if (one["generation"], one["uid"]) == (row["generation"], row["uid"])]
        assert len(own) == 2
        for name in ("train/approx_kl", "train/entropy_loss", "train/grad_norm"):
            assert row[name] == pytest.approx(np.mean([one[name] for one in own]), rel=1e-6)


def test_norms_before_and_after_the_clip_and_gradient_steps(logged):
    for row in read_updates(logged[0]):
        total = row["train/actor_grad_norm"] + row["train/critic_grad_norm"]
        assert total == pytest.approx(row["train/grad_norm"], rel=1e-5)
        for half in ("actor", "critic"):
            before, after = row[f"train/{half}_grad_norm"], row[f"train/{half}_grad_norm_clipped"]
            assert 0 < after <= min(before, PPOConfig.max_grad_norm) * (1 + 1e-6)
        # 32 samples in minibatches of 16, in so many epochs
        assert row["train/gradient_steps"] == 2 * row["train/epochs"]


def test_the_clip_by_hand():
    """Norms 3 and 0.2 of two steps with a bound of 0.5: the mean after the clip is (0.5 + 0.2) / 2."""
    update = object.__new__(PPOUpdate)
    update.modes = DEFAULT_MODES
    update.hyperparams = type("Hyperparams", (), {"max_grad_norm": torch.tensor([0.5])})
    norms = torch.tensor([[[3.0], [0.1]], [[0.2], [0.3]]])  # [steps, halves, members]
    found = {name: float(x) for name, x in update.gradient_norms(norms, 2).items()}
    assert found == {
        "actor_grad_norm": pytest.approx(1.6),
        "critic_grad_norm": pytest.approx(0.2),
        "actor_grad_norm_clipped": pytest.approx(0.35, rel=1e-5),
        "critic_grad_norm_clipped": pytest.approx(0.2, rel=1e-5),
    }


def test_returns_of_updates_add_up_to_those_of_generations(tmp_path):
    """Episodes of 7 steps end in different updates; a member's return of a generation is their mean."""

    class Returns(Reporter):
        def generation(self, record):
            records.append(record)

    records = []
    with contextlib.closing(
        make_vect_envs("CartPole-v1", num_envs=2, wrappers=[{"name": "TimeLimit", "max_episode_steps": 7}])
    ) as env:
        limits = {"max_steps": 128, "evo_steps": 64, "eval_loop": 1, "eval_steps": 20}
        train_on_policy(env, pop=population(env), verbose=False, log_every="update", reporters=[Returns()], **limits)
    assert [len(record.updates) for record in records] == [6, 6]
    for record in records:
        assert {one.train_return for one in record.updates} == {7.0}
        assert {member.train_return for member in record.members} == {7.0}


def test_the_return_of_an_update_has_episodes_that_ended_in_the_generation_before():
    """Updates come after 24, 48, 72 and 96 steps, generations end after 32, 64 and 96, episodes after 28, 56 and 84."""
    records, wrappers = Records(), [{"name": "TimeLimit", "max_episode_steps": 28}]
    with contextlib.closing(make_vect_envs("Pendulum-v1", num_envs=2, wrappers=wrappers)) as env:
        spaces, settings = (env.single_observation_space, env.single_action_space), {**SETTINGS, "learn_step": 48}
        limits = {"max_steps": 192, "evo_steps": 64, "eval_loop": 1, "eval_steps": 20}
        pop = PPO.population(2, *spaces, **settings)
        train_on_policy(env, pop=pop, verbose=False, log_every="update", reporters=[records], **limits)
    for slot in range(2):
        updates = [one for record in records.generations for one in record.updates if one.slot == slot]
        first, *others = [one.train_return for one in updates]
        assert np.isnan(first)
        assert others == pytest.approx([record.members[slot].train_return for record in records.generations])


def test_logging_changes_nothing_else(logged, tmp_path):
    plain = train(tmp_path / "run", log_every="generation")
    assert not (tmp_path / "run" / "updates.csv").exists()
    assert all(map(same, map(weights, plain), map(weights, logged[1])))
    assert (tmp_path / "run" / "lineage.jsonl").read_bytes() == (logged[0] / "lineage.jsonl").read_bytes()
    assert [*Run.open(tmp_path / "run").metrics()[0]] == [*Run.open(logged[0]).metrics()[0]]
    with pytest.raises(ConfigurationError, match=r"updates.csv does not exist: only a run with run.log_every: update"):
        Run.open(tmp_path / "run").updates()


def test_details_are_not_computed_without_logging(tmp_path, monkeypatch):
    def fail(*_):
        raise AssertionError("computed")

    monkeypatch.setattr(PPOUpdate, "gradient_norms", fail)
    train(tmp_path / "run", log_every="generation", max_steps=64)


def test_a_killed_and_resumed_run_writes_the_same_file(logged, tmp_path):
    with pytest.raises(Killed):
        train(tmp_path / "run", callbacks=[KillIn(3)])
    assert len(read_updates(tmp_path / "run")) == 12
    train(tmp_path / "run", resumes=True)
    assert (tmp_path / "run" / "updates.csv").read_bytes() == (logged[0] / "updates.csv").read_bytes()


def test_means_of_a_generation_leave_out_updates_without_a_number():
    """An actor's loss is nan where only the critics took steps; an infinite loss is seen."""
    updates = [{"loss": 1.0, "actor_loss": np.nan}, {"loss": np.inf, "actor_loss": 2.0}]
    assert _means(updates, ("loss", "actor_loss")) == {"loss": np.inf, "actor_loss": 2.0}
    assert np.isnan(_means(updates[:1], ("actor_loss",))["actor_loss"])
    assert np.isnan(_means([], ("loss",))["loss"])
    begun = [{"loss": 1.0}, {"loss": 3.0, "lr": 1e-3}]  # a callback has begun a schedule in between
    assert _means(begun, ("loss", "lr")) == {"loss": 2.0, "lr": 1e-3}


def test_members_without_a_sample_are_not_reported():
    """The first of two members acts in the second of two steps and waits after it, so the outcome is unknown."""
    population = PPO.population(2, Box(-1, 1, (3,)), Discrete(2), num_envs=1, learn_step=2, batch_size=2, seed=0)
    group, flags = population.by_group[""], torch.zeros(2, 2, 1)
    valid, waiting = torch.ones(2, 2, 1), torch.zeros(2, 2, 2, 1)
    valid[0, 0], waiting[1, 1, 0] = 0, 1  # [T, P, E] and [2, T, P, E]
    observations, actions = torch.zeros(2, 2, 1, 3), torch.zeros(2, 2, 1, 1, dtype=group[0].distribution.raw_dtype)
    final, state = FinalObservations.none(observations, 2), torch.zeros(2, 1, 0, 0, 0)
    steps = observations, actions, flags, flags, flags, valid, observations[0], final, None, state, waiting
    assert [*group.learn([0, 1], lambda places, count: Rollout.from_steps(*steps))] == [1]
    assert [learner.updates for learner in group] == [1, 1]


@pytest.mark.parametrize("frozen", [[], ["red"]], ids=["all learn", "the first is frozen"])
def test_updates_of_teams_are_means_of_their_groups(tmp_path, frozen):
    with contextlib.closing(make_multi_agent_vect_envs(Duel, num_envs=2)) as env:
        settings = {"learn_step": 16, "batch_size": 16, "net_config": SMALL, "num_envs": 2, "frozen_groups": frozen}
        pop = IPPO.population(2, env.single_observation_spaces, env.single_action_spaces, seed=0, **settings)
        limits = {"max_steps": 32, "evo_steps": 32, "eval_loop": 1, "eval_steps": 10}
        train_multi_agent_on_policy(
            env, pop=pop, run_dir=tmp_path / "run", verbose=False, log_every="update", history=0, **limits
        )
    rows = read_updates(tmp_path / "run")
    found = [(row["update"], row["env_steps"], row["slot"]) for row in rows]
    assert found == [(1, 16, 0), (1, 16, 1), (2, 32, 0), (2, 32, 1)]
    assert all(row["train/actor_grad_norm"] > 0 for row in rows)


class Seeds(BaseParallelWrapper):
    """Keeps the seeds of resets in training."""

    kept: ClassVar[list[int]] = []

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.kept.append(seed)
        return super().reset(seed, options)


def test_groups_that_are_trained_in_turns_have_updates_and_episodes_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(Seeds, "kept", [])
    records = Records()
    numbers = []
    with contextlib.closing(
        make_multi_agent_vect_envs(Duel, num_envs=2, training_wrappers=Seeds, backend="sync")
    ) as env:
        settings = {"learn_step": 16, "batch_size": 16, "net_config": SMALL, "num_envs": 2}
        pop = IPPO.population(1, env.single_observation_spaces, env.single_action_spaces, seed=0, **settings)
        limits = {"max_steps": 128, "evo_steps": 32, "max_updates": 4, "eval_loop": 1, "eval_steps": 10, "history": 0}
        for run, frozen in enumerate(["blue", "red", "blue"]):
            pop[0].frozen_groups = (frozen,)
            pop, _ = train_multi_agent_on_policy(
                env,
                pop=pop,
                run_dir=tmp_path / f"{run}",
                verbose=False,
                log_every="update",
                reporters=[records],
                **limits,
            )
            numbers.append([row["update"] for row in read_updates(tmp_path / f"{run}")])
    assert numbers == [[1, 2, 3, 4], [1, 2, 3, 4], [5, 6, 7, 8]]
    assert pop.outcome == "max_updates reached"
    assert [record.most_updates for record in records.generations] == [2, 4] * 3
    assert records.run.max_updates == 4
    assert not [text for text in records.warnings if "no member has learned" in text]
    assert len(set(Seeds.kept)) == len(Seeds.kept) == 3 * 2


def test_refuses_other_values():
    with pytest.raises(ConfigurationError, match="log_every='step' is unknown"):
        train(None, log_every="step")
