"""The history of a run: the weights of all members, evenly over its budget, for good."""

import contextlib
import shutil
from itertools import pairwise

import pytest
import torch
from duel_envs import Duel
from gymnasium.spaces import Box, Discrete
from test_run_settings import SMALL

from agilerl_like import (
    CMAES,
    DQN,
    IPPO,
    PPO,
    CheckpointError,
    ConfigurationError,
    HyperparameterConfig,
    MultiAgentPopulation,
    Mutations,
    Population,
    RLParameter,
    Run,
    TournamentSelection,
    load_history,
    make_multi_agent_vect_envs,
    make_vect_envs,
    train_multi_agent_on_policy,
    train_off_policy,
    train_on_policy,
)
from agilerl_like.algorithms.serialization import without_learning_state
from agilerl_like.learning.rewards import ReturnStatistics
from agilerl_like.reporting import Callback
from agilerl_like.training.training_arguments import TrainingArguments

SETTINGS = {"learn_step": 32, "batch_size": 16, "net_config": SMALL, "num_envs": 2, "seed": 0}
RANGES = HyperparameterConfig(lr=RLParameter(1e-4, 1e-2))


class Killed(BaseException):
    """Ends a run without saving it."""


class KillIn(Callback):
    """Ends a run as a kill does, in the midst of a generation."""

    def __init__(self, generation):
        self.generation = generation

    def on_update(self, run, metrics):
        if run.generation == self.generation:
            raise Killed


def population(env):
    spaces = env.single_observation_space, env.single_action_space
    return PPO.population(3, *spaces, hp_config=RANGES, sample_hyperparameters=True, **SETTINGS)


def train(run_dir, *, max_steps=640, evo_steps=64, resumes=False, **options):
    """Train three members for ten generations; return the initial members' weights."""
    with contextlib.closing(make_vect_envs("CartPole-v1", num_envs=2)) as env:
        pop = population(env)
        initial = [weights(agent) for agent in pop]
        options = {"resume" if resumes else "run_dir": run_dir, "checkpoint": 192, **options}
        evolution = {"selection_strategy": TournamentSelection(2), "mutation": Mutations(architecture=0.4)}
        limits = {"max_steps": max_steps, "evo_steps": evo_steps, "eval_loop": 1, "eval_steps": 20}
        train_on_policy(env, pop=pop, verbose=False, **evolution, **limits, **options)
    return initial


def weights(agent):
    return {name: x.clone() for name, x in agent.network.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(x, other[name]) for name, x in one.items())


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of ten generations, and its initial members' weights."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return folder, train(folder)


def test_eleven_entries_from_0_to_100_percent(whole):
    entries = Run.open(whole[0]).history()
    assert [entry.share for entry in entries] == [tenth / 10 for tenth in range(11)]
    assert [entry.env_steps for entry in entries] == [64 * tenth for tenth in range(11)]
    assert [entry.generation for entry in entries] == [*range(11)]


def test_first_entry_equals_the_initial_members_bit_for_bit(whole):
    folder, initial = whole
    first = next(load_history(folder))
    assert all(map(same, initial, map(weights, first)))
    assert [agent.index for agent in first] == [0, 1, 2]


def test_last_entry_equals_the_last_members_without_the_state_of_learning(whole):
    run = Run.open(whole[0])
    saved, last = run.history()[-1].population(), run.population()
    assert all(map(same, map(weights, saved), map(weights, last)))
    assert [agent.fitness[-1] for agent in saved] == [agent.fitness[-1] for agent in last]
    assert saved.fitness == last.fitness
    assert [agent.hyperparameters for agent in saved] == [agent.hyperparameters for agent in last]
    assert not any(float(agent.optimizer.exp_avg.abs().sum()) for agent in saved)
    assert all(float(agent.optimizer.exp_avg.abs().sum()) > 0 for agent in last)
    stored = sum(path.stat().st_size for path in (whole[0] / "history" / "steps-000000000640").iterdir())
    assert stored < 0.7 * sum(path.stat().st_size for path in (whole[0] / "population").iterdir())


def test_entries_are_loaded_when_they_are_reached(whole, tmp_path, monkeypatch):
    loaded = []
    plain = Population.load.__func__
    monkeypatch.setattr(Population, "load", classmethod(lambda cls, path: loaded.append(path) or plain(cls, path)))
    populations = load_history(Run.open(whole[0]))
    assert loaded == []
    next(populations)
    assert [path.name for path in loaded] == ["steps-000000000000"]
    assert len(list(populations)) == 10


@pytest.mark.slow
def test_a_killed_and_resumed_run_leaves_the_same_files(whole, tmp_path):
    with pytest.raises(Killed):
        train(tmp_path / "run", callbacks=[KillIn(8)])  # the last checkpoint is of generation 6
    before = files(tmp_path / "run" / "history")
    assert before.items() < files(whole[0] / "history").items()
    train(tmp_path / "run", resumes=True)
    assert files(tmp_path / "run" / "history") == files(whole[0] / "history")


def test_entries_of_a_continuation_that_was_left_are_removed(tmp_path):
    with contextlib.suppress(Killed):
        train(tmp_path / "run", callbacks=[KillIn(9)])
    generations = [entry.generation for entry in Run.open(tmp_path / "run").history()]
    assert generations == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    foreign = tmp_path / "run/history/steps-000000009999"
    foreign.mkdir()
    (foreign / "notes.txt").write_text("mine")
    train(tmp_path / "run", resumes=True, target=-1.0)  # which is reached after the first generation from gen-000006
    run = Run.open(tmp_path / "run")
    assert run.generations() == 7
    assert [path.name for path in sorted((tmp_path / "run/history").iterdir())][-2:] == [
        "steps-000000000448", "steps-000000009999",
    ]  # fmt: skip


def test_a_run_of_few_generations_has_one_for_each_and_one_of_many_has_ten():
    args = TrainingArguments(max_steps=1000, evo_steps=400)
    ends = [0, 200, 400, 500]  # vector steps of 2 envs
    assert [args.is_weights_entry_due(*pair, 2) for pair in pairwise(ends)] == [True] * 3
    args = TrainingArguments(max_steps=1000, evo_steps=14)
    ends = [*range(0, 500, 7), 500]
    due = [now for before, now in pairwise(ends) if args.is_weights_entry_due(before, now, 2)]
    assert due == [56, 105, 154, 203, 252, 301, 350, 406, 455, 500]  # the first multiple of 7 from each of 50, 100, …


def test_a_limit_other_than_the_budget_saves_the_last_generation(tmp_path):
    train(tmp_path / "run", max_steps=64_000, target=1.0)
    run = Run.open(tmp_path / "run")
    assert [entry.generation for entry in run.history()] == [0, 1]
    train(tmp_path / "updates", max_steps=64_000, max_updates=4)
    run = Run.open(tmp_path / "updates")
    assert [entry.generation for entry in run.history()] == [0, run.generations()]


def test_without_history(tmp_path):
    train(tmp_path / "run", max_steps=64, history=0)
    assert not (tmp_path / "run" / "history").exists()
    with pytest.raises(ConfigurationError, match=r"has no history: an older version wrote it, or training.history is"):
        Run.open(tmp_path / "run").history()
    with pytest.raises(ConfigurationError, match="has no history"):
        load_history(tmp_path / "run")
    with pytest.raises(ConfigurationError, match="history=-1 must be an integer from 0 to 10000"):
        TrainingArguments(history=-1)
    with pytest.raises(ConfigurationError, match="history=True must be an integer"):
        TrainingArguments(history=True)


def test_another_run_in_the_folder_removes_it(tmp_path):
    train(tmp_path / "run", max_steps=128)
    (tmp_path / "run" / "history" / "notes").mkdir()
    train(tmp_path / "run", max_steps=64, overwrite=True)
    names = sorted(path.name for path in (tmp_path / "run" / "history").iterdir())
    assert names == ["notes", "steps-000000000000", "steps-000000000064"]


def test_a_damaged_entry_is_named(whole, tmp_path):
    run_dir = shutil.copytree(whole[0], tmp_path / "run")
    (run_dir / "history" / "steps-000000000128" / "history.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"steps-000000000128/history.json' has 2 bytes"):
        Run.open(run_dir).history()


def test_weights_alone_are_no_checkpoint(whole):
    """The flag that moments are missing counts only where it was written."""
    entry = Run.open(whole[0]).history()[0]
    agent = entry.population()[0]
    document, tensors = agent.to_documents()
    assert not document.get("weights_only", False)
    few = {name: x for name, x in tensors.items() if name.startswith("network.")}
    with pytest.raises(CheckpointError, match=r"tensors \['adam.exp_avg', 'adam.exp_avg_sq', 'adam.steps'"):
        PPO.from_documents(document, few, device="cpu", where="here")


@pytest.mark.parametrize(
    ("kind", "settings"), [(PPO, {"lr_schedule": "kl", "normalize_reward": True}), (CMAES, {"num_envs": 4})]
)
def test_an_entry_can_be_read_whatever_the_algorithm_stores(kind, settings):
    agent = kind(Box(-1.0, 1.0, (2,)), Discrete(2), seed=1, **settings)
    agent.learner.moments.lr_scale[0] = 0.5
    agent.learner.return_statistics = ReturnStatistics(torch.ones(3).double(), torch.ones(1).double())
    document, tensors = without_learning_state(*agent.to_documents())
    assert all(name.startswith("network.") for name in tensors)
    whole = agent.to_documents()[1]  # earlier versions stored more than `tensors`
    for stored in (tensors, whole):
        loaded = kind.from_documents(document, stored, device="cpu", where="here")
        for one, its in zip(loaded.network.parameters(), agent.network.parameters(), strict=True):
            assert torch.equal(one, its)
        assert loaded.learner.moments.lr_scale.item() == 1.0


def test_teams_have_a_history(tmp_path):
    with contextlib.closing(make_multi_agent_vect_envs(Duel, num_envs=2)) as env:
        settings = {"learn_step": 16, "batch_size": 16, "net_config": SMALL, "num_envs": 2, "seed": 0}
        pop = IPPO.population(2, env.single_observation_spaces, env.single_action_spaces, **settings)
        limits = {"max_steps": 64, "evo_steps": 32, "eval_loop": 1, "eval_steps": 10}
        train_multi_agent_on_policy(env, pop=pop, run_dir=tmp_path / "run", verbose=False, **limits)
    first, *_, last = load_history(tmp_path / "run")
    assert isinstance(last, MultiAgentPopulation)
    assert [*last[0].groups] == [*pop[0].groups]
    assert len(first) == 2


def test_members_of_another_algorithm_have_a_history(tmp_path):
    with contextlib.closing(make_vect_envs("CartPole-v1", num_envs=2)) as env:
        spaces = env.single_observation_space, env.single_action_space
        pop = DQN.population(2, *spaces, net_config=SMALL, num_envs=2, seed=0, learning_starts=64, batch_size=16)
        limits = {"max_steps": 512, "evo_steps": 256, "eval_loop": 1, "eval_steps": 20}
        train_off_policy(env, pop=pop, run_dir=tmp_path / "run", verbose=False, log_every="update", **limits)
    *_, last = load_history(tmp_path / "run")
    assert all(map(same, map(weights, last), map(weights, pop)))
    assert type(last[0]) is DQN
    assert {row["slot"] for row in Run.open(tmp_path / "run").updates()} == {0, 1}
