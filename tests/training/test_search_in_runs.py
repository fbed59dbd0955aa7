"""What a run gives to a selection strategy, and fresh and shrunk members: alone, resumed, and in two processes."""

from __future__ import annotations

import contextlib
import csv
import json
import multiprocessing
import os
import signal
from dataclasses import dataclass
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
import torch
import yaml
from gymnasium.spaces import Box, Discrete
from small_runs import SMALL

from agilerl_like import PPO, HyperparameterConfig, NumberArray, RLParameter, make_vect_envs, train_on_policy
from agilerl_like.cli import main
from agilerl_like.distributed.process_group import SingleProcess
from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo import GatedSelection, GaussianSteps, Selection, SlotPlan, WeightMix, ranking
from agilerl_like.reporting import read_lineage
from agilerl_like.reporting.callback import Callback
from agilerl_like.training.checkpoint_manager import SearchState
from agilerl_like.training.env_setup import SingleAgentEnvSetup
from agilerl_like.training.evaluator import seed_effects
from agilerl_like.training.loop_state import LoopState


@dataclass(frozen=True)
class Restarting(Selection):
    """The worst member starts afresh, the second worst is a shrunk clone of the best; `state` counts generations."""

    def plan(self, view, rng):
        view.state["seen"] = [*view.state.get("seen", []), view.returns.tolist(), view.generations]
        by_rank = ranking(view.fitness, view.uids)
        rows = [SlotPlan(slot, slot, explore=False) for slot in range(len(view))]
        rows[by_rank[-1]] = SlotPlan(by_rank[-1], by_rank[-1], explore=True, start=WeightMix())
        rows[by_rank[-2]] = SlotPlan(by_rank[0], by_rank[0], explore=True, start=WeightMix(0.2, 0.1))
        return rows


def run(folder, max_steps, selection=None, *, resume=False, **options):
    env = make_vect_envs("CartPole-v1", num_envs=2, backend="sync")
    pop = PPO.population(
        4,
        env.single_observation_space,
        env.single_action_space,
        seed=1,
        num_envs=2,
        learn_step=32,
        batch_size=32,
        per_member=True,
        hp_config=HyperparameterConfig(lr=RLParameter(1e-5, 1e-1)),
        sample_hyperparameters=True,
    )
    pop, fitness = train_on_policy(
        env,
        pop=None if resume else pop,
        max_steps=max_steps,
        evo_steps=64,
        checkpoint=64,
        eval_loop=3,
        selection_strategy=selection or Restarting(),
        mutation=GaussianSteps(architecture=0.0),
        verbose=False,
        **({"resume": folder} if resume else {"run_dir": folder}),
        **options,
    )
    env.close()
    return pop, fitness


def weights(pop):
    return [torch.cat([p.flatten() for p in agent.learner.network.parameters()]) for agent in pop]


def search_state(folder):
    newest = max((folder / "checkpoints").glob("*/run.json"), key=lambda path: path.parent.name)
    return json.loads(newest.read_text())["search"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("search") / "whole"
    return folder, *run(folder, 256)


def test_returns_are_paired_and_their_mean_is_the_fitness(whole):
    folder, _, fitness = whole
    state = search_state(folder)
    assert state["selection"] == "Restarting"
    returns = np.array(state["returns"])
    assert returns.shape == (4, 3)
    assert np.allclose(returns.mean(axis=1), fitness)
    assert len(state["state"]["seen"]) == 2 * 3  # three selections in four generations
    assert set(state["state"]["seen"][1::2]) == {4}


def test_a_resumed_run_has_the_state_and_the_members_of_an_uninterrupted_one(whole, tmp_path):
    folder, pop, fitness = whole
    run(tmp_path / "half", 128)
    resumed, resumed_fitness = run(tmp_path / "half", 256, resume=True)
    # the budget is part of what the strategy sees; two generations first, four when resumed
    seen = search_state(tmp_path / "half")["state"]["seen"]
    assert (seen[::2], seen[1::2]) == (search_state(folder)["state"]["seen"][::2], [2, 4, 4])
    assert np.array_equal(resumed_fitness, fitness)
    assert all(map(torch.equal, weights(resumed), weights(pop)))


def test_two_processes_make_the_same_members(whole, tmp_path):
    folder, pop, fitness = whole
    shared, shared_fitness = run(tmp_path / "shared", 256, processes=2)
    assert np.array_equal(shared_fitness, fitness)
    assert search_state(tmp_path / "shared") == search_state(folder)
    assert all(map(torch.equal, weights(shared), weights(pop)))


def test_hyperparameters_of_members_on_other_processes_are_read_as_own_ones(monkeypatch):
    """A list is a tuple in the history, wherever its member is: strategies compare such values."""
    seen = []

    @dataclass(frozen=True)
    class Watching(Selection):
        def plan(self, view, rng):
            seen.extend(trial.hyperparameters["betas"] for trial in view.history.trials)
            return [SlotPlan(slot, slot, explore=False) for slot in range(len(view))]

    def gather_from_others(group, own, *, encode, decode):
        return {slot: decode(json.loads(json.dumps(encode(value)))) for slot, value in own.items()}

    monkeypatch.setattr(SingleProcess, "all_gather_dict", gather_from_others)
    env = make_vect_envs("CartPole-v1", num_envs=2, backend="sync")
    spaces = env.single_observation_space, env.single_action_space
    ranges = HyperparameterConfig(betas=NumberArray([RLParameter(0.8, 0.95), RLParameter(0.9, 0.9999)]))
    pop = PPO.population(
        2, *spaces, seed=1, num_envs=2, learn_step=32, batch_size=32, betas=(0.9, 0.999), hp_config=ranges
    )
    sizes = {"max_steps": 64, "evo_steps": 32, "eval_loop": 1, "eval_steps": 5}
    train_on_policy(env, pop=pop, **sizes, selection_strategy=Watching(), verbose=False)
    env.close()
    assert seen == [(0.9, 0.999)] * 2


def test_a_fresh_member_starts_with_initial_weights_and_no_parent(whole):
    folder, _, _ = whole
    born = [one for one in read_lineage(folder) if one.generation > 0 and not one.survives]
    fresh = [one for one in born if one.parent_uid == -1]
    assert len(fresh) == len(born) - len(fresh) == 3
    assert all(np.isnan(one.parent_fitness) and one.parent_hyperparameters == {} for one in fresh)
    assert [change["operator"] for one in fresh for change in one.mutations] == ["draw"] * 3


def test_shrunk_weights_are_those_of_the_parent_and_initial_ones():
    env = make_vect_envs("CartPole-v1", num_envs=2, backend="sync")
    agent = PPO(env.single_observation_space, env.single_action_space, seed=3, num_envs=2)
    env.close()
    other = agent.clone(index=7)
    with torch.no_grad():
        for parameter in other.learner.network.parameters():
            parameter.fill_(1.0)
    other.learner.mix_initial_weights(0.2, 0.1)
    initial = agent.clone(index=7)
    initial.learner.reinitialize()
    assert torch.allclose(weights([other])[0], 0.2 + 0.1 * weights([initial])[0])


def test_shrunk_members_keep_their_counters_and_fresh_ones_begin_at_zero():
    agent = PPO(gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(2), seed=0, learning_starts=8)
    learner = agent.learner
    statistics = learner.return_statistics.updated(torch.rand(3, 2), torch.ones(3, 2), torch.ones(3, 2), 0.9)
    learner.env_steps, learner.return_statistics = 8, statistics
    learner.mix_initial_weights(0.2, 0.1)
    assert (learner.env_steps, learner.learns) == (8, True)
    assert learner.return_statistics is statistics
    learner.mix_initial_weights(0.0, 1.0)
    assert (learner.env_steps, learner.learns, learner.return_statistics.scale) == (0, False, 1.0)


@pytest.mark.slow
def test_another_strategy_does_not_receive_the_state(whole, tmp_path):
    run(tmp_path / "run", 128)
    run(tmp_path / "run", 192, GatedSelection(), resume=True)
    state = search_state(tmp_path / "run")
    assert state["selection"] == "GatedSelection"
    assert state["state"].keys() == {"best", "stalled", "restarted"}


def test_a_budget_of_one_generation_is_refused():
    with pytest.raises(
        ConfigurationError, match="max_steps=64 with evo_steps=64 gives 1 generation: selection 'gated'"
    ):
        run(None, 64, GatedSelection())


def test_a_configuration_names_gate_and_steps(tmp_path, capsys):
    file = tmp_path / "run.yaml"
    file.write_text(
        """
environment: {id: CartPole-v1, num_envs: 2, backend: sync}
algorithm: {learn_step: 32, batch_size: 32}
hyperparameters: {lr: {min: 1e-5, max: 1e-1}, gamma: {min: 0.9, max: 0.999, scale: log_complement}}
selection: {name: gated, gate: 0}
mutation: {name: gaussian, sd: 0.3}
training: {max_steps: 192, evo_steps: 64, eval_loop: 2}
"""
    )
    options = ["--run.dir", str(tmp_path), "--run.name", "run", "--run.plot", "false"]
    assert main(["train", str(file), *options]) == 0
    changes = [change for one in read_lineage(tmp_path / "run") for change in one.mutations]
    assert {change["operator"] for change in changes} & {"gaussian"}
    capsys.readouterr()
    assert main(["train", str(file), *options, "--population.size", "1"]) == 2
    assert "population_size=1 is too small for selection 'gated'" in capsys.readouterr().err
    assert main(["train", str(file), *options, "--training.max-steps", "64"]) == 2
    error = capsys.readouterr().err
    assert "max_steps=64 with evo_steps=64 gives 1 generation: selection 'gated' needs a budget of at least 2" in error


AUTO_RUN = """
environment: {id: CartPole-v1, num_envs: 2, backend: sync}
algorithm: {learn_step: 32, batch_size: 32}
hyperparameters: {lr: {min: 1e-5, max: 1e-1}}
evolution: auto
training: {max_steps: 256, evo_steps: 64, eval_loop: 2}
seed: 2
"""


@pytest.mark.slow
def test_evolution_auto_in_a_configuration(tmp_path, capsys):
    file = tmp_path / "run.yaml"
    file.write_text(AUTO_RUN)
    options = ["--run.dir", str(tmp_path), "--run.name", "run", "--run.plot", "false"]
    assert main(["train", str(file), *options]) == 0
    changes = [change for one in read_lineage(tmp_path / "run") for change in one.mutations]
    assert {change["operator"] for change in changes if change["kind"] == "rl_hp"} == {"gaussian"}
    assert search_state(tmp_path / "run")["selection"] == "AutoSelection"
    assert main(["resume", str(tmp_path / "run"), "--training.max-steps", "320"]) == 0
    capsys.readouterr()
    assert main(["train", str(file), *options, "--selection.tournament-size", "3"]) == 2
    assert "selection.tournament_size=3 has no meaning with evolution='auto'" in capsys.readouterr().err
    assert main(["train", str(file), *options, "--evolution", "best"]) == 2
    assert "evolution='best'" in capsys.readouterr().err
    assert main(["train", str(file), *options, "--run.name", "one", "--population.size", "1"]) == 0


def test_evolution_auto_in_a_script(tmp_path):
    env = make_vect_envs("CartPole-v1", num_envs=2, backend="sync")
    ranges = HyperparameterConfig(lr=RLParameter(1e-5, 1e-1))
    spaces = env.single_observation_space, env.single_action_space
    pop = PPO.population(3, *spaces, seed=1, num_envs=2, learn_step=32, batch_size=32, hp_config=ranges)
    options = {"max_steps": 128, "evo_steps": 64, "eval_loop": 2, "verbose": False}
    train_on_policy(env, pop=pop, evolution="auto", run_dir=tmp_path / "run", **options)
    assert "evolution: auto" in (tmp_path / "run" / "config.yaml").read_text()
    assert search_state(tmp_path / "run")["selection"] == "AutoSelection"
    with pytest.raises(ConfigurationError, match="evolution='auto' chooses selection and mutation; pass either"):
        train_on_policy(env, pop=pop, evolution="auto", mutation=GaussianSteps(), **options)
    with pytest.raises(ConfigurationError, match="evolution='best'; allowed are 'auto' and None"):
        train_on_policy(env, pop=pop, evolution="best", **options)
    train_on_policy(
        env,
        pop=pop,
        selection_strategy=GatedSelection(gate=2.0),
        mutation=GaussianSteps(),
        run_dir=tmp_path / "b",
        **options,
    )
    written = yaml.safe_load((tmp_path / "b" / "config.yaml").read_text())
    assert (written["selection"]["name"], written["selection"]["gate"]) == ("gated", 2.0)
    assert written["mutation"]["name"] == "gaussian"
    env.close()


@dataclass(frozen=True)
class Doubting(GatedSelection):
    """Members of slots 0 and 2 are always in doubt."""

    def in_doubt(self, view):
        return [0, 2]


@dataclass(frozen=True)
class DoubtingTheTrained(Doubting):
    """All members have training returns, because no signal cuts their generation."""

    def in_doubt(self, view):
        assert np.isfinite(view.train_returns).all()
        return super().in_doubt(view)


def returns_of(folder):
    found = SearchState.from_json(search_state(folder)).paired_returns()
    assert found is not None
    return found


def counts(folder):
    return np.isfinite(returns_of(folder)).sum(axis=1).tolist()


@pytest.mark.parametrize("evolution", [{"evolution": "auto"}, {"selection_strategy": GatedSelection()}])
def test_a_second_run_of_the_same_members_does_not_start_them_again(tmp_path, evolution):
    with contextlib.closing(make_vect_envs("CartPole-v1", num_envs=2, backend="sync")) as env:
        pop = PPO.population(
            4, env.single_observation_space, env.single_action_space, seed=1, num_envs=2, learn_step=32, batch_size=32,
            net_config=SMALL, hp_config=HyperparameterConfig(lr=RLParameter(1e-5, 1e-1)),
        )  # fmt: skip
        more = {"evo_steps": 64, "eval_loop": 1, "eval_steps": 5, "verbose": False}
        pop, _ = train_on_policy(env, pop=pop, max_steps=64, **more)
        train_on_policy(env, pop=pop, max_steps=64 * 5, run_dir=tmp_path / "run", **evolution, **more)
    fresh = [one for one in read_lineage(tmp_path / "run") if one.generation > 0 and one.parent_uid < 0]
    assert fresh == []


@dataclass(frozen=True)
class OfNumpy(Selection):
    """Returns arrays, and notes numbers of numpy."""

    def in_doubt(self, view):
        assert len(view.genomes) == len(view.hp_configs) == len(view)
        return np.array([0, 2])

    def removed(self, view):
        return ranking(view.fitness, view.uids)[3:]

    def plan(self, view, rng):
        view.state.update(best=np.argmax(view.fitness), fitness=view.fitness)
        return [SlotPlan(slot, slot, explore=False) for slot in range(len(view))]


def test_a_selection_may_return_and_note_values_of_numpy(tmp_path):
    run(tmp_path / "run", 192, OfNumpy(), eval_share=100.0)
    state = search_state(tmp_path / "run")["state"]
    assert (type(state["best"]), len(state["fitness"])) == (int, 3)


@dataclass(frozen=True)
class Looking(Selection):
    """Writes a dictionary and an array, and records in which order and as which type the next generation has them."""

    def plan(self, view, rng):
        state = view.state
        seen = [[*state["uses"]], type(state["total"]).__name__] if "uses" in state else []
        state["seen"] = [*state.get("seen", []), seen]
        state["uses"] = {str(uid): 0 for uid in reversed(view.uids)}
        state["total"] = np.array(view.fitness)
        return [SlotPlan(slot, slot, explore=False) for slot in range(len(view))]


def test_a_selection_has_the_same_form_of_its_state_in_a_run_that_was_not_interrupted(tmp_path):
    run(tmp_path / "whole", 256, Looking())
    run(tmp_path / "half", 128, Looking())
    run(tmp_path / "half", 256, Looking(), resume=True)
    seen, of_resumed = (search_state(tmp_path / name)["state"]["seen"] for name in ("whole", "half"))
    assert seen == of_resumed == [[], [["0", "1", "2", "3"], "list"], [["0", "1", "2", "3"], "list"]]


@pytest.mark.slow
def test_members_in_doubt_play_more_episodes_on_common_seeds_within_the_share(tmp_path):
    run(tmp_path / "more", 128, DoubtingTheTrained(), eval_share=100.0)
    assert counts(tmp_path / "more") == [24, 3, 24, 3]  # 3, then 3, 6 and 12 more
    run(tmp_path / "none", 128, Doubting(), eval_share=0.0)
    assert counts(tmp_path / "none") == [3] * 4
    with (tmp_path / "more" / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["generation"] == "2"]
    returns = returns_of(tmp_path / "more")
    difference = (returns[0] - returns[2]).mean()  # both played all seeds
    fitness = [float(row["eval/mean_reward"]) for row in rows]
    assert fitness[0] - fitness[2] == pytest.approx(difference)
    assert [fitness[slot] for slot in (1, 3)] == pytest.approx(returns[[1, 3], :3].mean(axis=1).tolist())


class Drawn(gymnasium.Env):
    """One step, whose reward the seed decides."""

    observation_space, action_space = Box(0, 1, (1,)), Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 100 * self.np_random.random(), True, False, {}


@dataclass(frozen=True)
class DoubtingLate(GatedSelection):
    """Member 0 and 1 are in doubt in the first round, 1 and 2 in the others."""

    def in_doubt(self, view):
        return [0, 1] if view.returns.shape[1] == 3 else [1, 2]


def test_members_that_played_easier_seeds_have_no_higher_fitness():
    """Returns depend on the seed alone, so all members have the same fitness, whatever seeds they played."""
    env = make_vect_envs(Drawn, num_envs=2, backend="sync")
    pop = PPO.population(4, env.single_observation_space, env.single_action_space, seed=1, num_envs=2)
    options = {"max_steps": 128, "evo_steps": 64, "eval_loop": 3, "eval_share": 100.0, "verbose": False}
    selection = DoubtingLate()
    _, fitness = train_on_policy(env, pop=pop, selection_strategy=selection, mutation=GaussianSteps(), **options)
    assert np.ptp(fitness) < 1e-9
    env.close()


@pytest.mark.slow
def test_further_episodes_do_not_depend_on_the_number_of_processes(tmp_path):
    run(tmp_path / "one", 128, Doubting(), eval_share=100.0)
    run(tmp_path / "two", 128, Doubting(), eval_share=100.0, processes=2)
    assert search_state(tmp_path / "two")["returns"] == search_state(tmp_path / "one")["returns"]


@pytest.mark.parametrize("found", [None, [4], [-1], 2])
def test_slots_in_doubt_that_do_not_exist_are_refused(found, tmp_path):
    @dataclass(frozen=True)
    class Wrong(GatedSelection):
        def in_doubt(self, view):
            return found

    with pytest.raises(
        ConfigurationError, match=r"Wrong\.in_doubt returned .*; allowed is a list of slots from 0 to 3"
    ):
        run(tmp_path / "run", 128, Wrong(), eval_share=100.0)


class StopsSecondProcess(Drawn):
    """The 40th step of its four envs in a process sends SIGINT to it, unless it is the main process."""

    steps: ClassVar[int] = 0

    def step(self, action):
        StopsSecondProcess.steps += 1
        if StopsSecondProcess.steps == 40 and multiprocessing.parent_process() is not None:
            os.kill(os.getpid(), signal.SIGINT)
        return super().step(action)


def test_processes_that_a_signal_stops_at_different_steps_choose_the_same_members_in_doubt(tmp_path):
    """Further episodes of 6 steps are within the share of 64 env steps, which one process took, and not of 20."""
    summaries = []

    class Summary(Callback):
        def on_run_end(self, run, summary):
            summaries.append(summary)

    with contextlib.closing(make_vect_envs(StopsSecondProcess, num_envs=2, backend="sync")) as env:
        spaces = env.single_observation_space, env.single_action_space
        pop = PPO.population(4, *spaces, seed=1, num_envs=2, learn_step=32, batch_size=32)
        train_on_policy(
            env, pop=pop, max_steps=256, evo_steps=64, eval_loop=3, eval_share=0.15, processes=2, verbose=False,
            selection_strategy=Doubting(), mutation=GaussianSteps(), run_dir=tmp_path / "run", callbacks=[Summary()],
        )  # fmt: skip
    (summary,) = summaries
    assert summary.reason.startswith("interrupted")
    assert summary.best.generation == 1


@dataclass(frozen=True)
class Watching(Selection):
    """All members stay; the expected number of generations is noted."""

    def plan(self, view, rng):
        view.state["expected"] = [*view.state.get("expected", []), view.generations]
        return [SlotPlan(slot, slot, explore=False) for slot in range(len(view))]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_the_expected_generations_are_those_until_the_first_limit(tmp_path, processes):
    """A generation of 64 steps has two updates of 32, so ten updates end the run after five generations."""
    run(tmp_path / "run", 10**6, Watching(), max_updates=10, processes=processes, eval_steps=5)
    assert search_state(tmp_path / "run")["state"]["expected"] == [5, 5, 5, 5]
    limits = {"max_updates": 10**6, "max_seconds": 10**6}
    run(tmp_path / "run", 256, Watching(), **limits, processes=processes, eval_steps=5, overwrite=True)
    assert search_state(tmp_path / "run")["state"]["expected"] == [4, 4, 4]


@pytest.mark.slow
def test_a_time_limit_predicts_the_generations(monkeypatch, tmp_path):
    """Each generation lasts a tenth of `max_seconds` by this clock."""
    monkeypatch.setattr(LoopState, "_seconds", lambda self: 5.0 * self.progress.generation)
    run(tmp_path / "run", 10**6, Watching(), max_seconds=50, eval_steps=5)
    assert search_state(tmp_path / "run")["state"]["expected"] == [10] * 9


def test_a_negative_share_is_refused():
    with pytest.raises(ConfigurationError, match="eval_share=-1 must be finite and not negative"):
        run(None, 128, eval_share=-1)


def test_further_episodes_of_a_member_do_not_depend_on_the_others_in_its_process():
    """On several processes, each has a part of the members and as large a part of the evaluation's envs."""
    found = []
    with contextlib.closing(make_vect_envs("Pendulum-v1", num_envs=2, backend="sync")) as env:
        spaces, setup = (env.single_observation_space, env.single_action_space), SingleAgentEnvSetup(env)
        for members in (4, 1):
            pop = PPO.population(members, *spaces, seed=1, num_envs=2, per_member=True)
            with contextlib.closing(setup.make_eval_env(3 * members)) as eval_env:
                evaluator = setup.make_evaluator("return", setup.adapt(eval_env), 40)
                found.append(evaluator.evaluate_some(pop, [0], range(12), 1).returns)
    assert found[0] == found[1]


def test_some_members_are_evaluated_as_all_are():
    env = make_vect_envs("CartPole-v1", num_envs=2, backend="sync")
    spaces = env.single_observation_space, env.single_action_space
    pop = PPO.population(4, *spaces, seed=1, num_envs=2, per_member=True)
    setup = SingleAgentEnvSetup(env)
    evaluator = setup.make_evaluator(
        "return", setup.adapt(setup.make_eval_env(8)), None
    )  # 8 rows cannot be divided by 3
    everyone = evaluator.evaluate(pop, [5, 6, 7], 1)
    assert evaluator.evaluate_some(pop, [0, 2, 3], [5, 6, 7], 1) == everyone.of([0, 2, 3])
    assert evaluator.evaluate_some(pop, [], [5], 1) is None
    twice = everyone.extended([2], everyone.of([2]), 3)
    assert twice.returns[2] == everyone.returns[2] * 2
    assert np.isnan(twice.returns[0][3:]).all()
    same = twice.on_equal_terms(seed_effects(np.array(twice.returns)))
    assert same.fitness == pytest.approx(everyone.fitness)
    assert twice.steps[2] == 2 * everyone.steps[2]
    assert twice.steps[0] == everyone.steps[0]
    evaluator.env.env.close()
    env.close()


class Start(Callback):
    def on_run_begin(self, run):
        self.values = dict(run.record.equal_start)

    def on_step(self, run):
        run.stop()


@pytest.mark.parametrize(
    ("of_members", "mutation", "processes", "expected"),
    [
        ({}, GaussianSteps(), 1, {"lr": 1e-4}),
        ({}, GaussianSteps(), 2, {"lr": 1e-4}),
        ({"sample_hyperparameters": True}, GaussianSteps(), 1, {}),
        ({"hp_config": None}, GaussianSteps(), 1, {}),
        ({}, None, 1, {}),
    ],
)
def test_a_run_has_the_hyperparameters_that_all_members_begin_with(of_members, mutation, processes, expected):
    start, ranges = Start(), HyperparameterConfig(lr=RLParameter(1e-5, 1e-1))
    with contextlib.closing(make_vect_envs("CartPole-v1", num_envs=2, backend="sync")) as env:
        spaces = env.single_observation_space, env.single_action_space
        pop = PPO.population(2, *spaces, **{"num_envs": 2, "hp_config": ranges, **of_members})
        search = {"selection_strategy": GatedSelection(), "mutation": mutation, "processes": processes}
        train_on_policy(env, pop=pop, max_steps=200, evo_steps=100, callbacks=[start], verbose=False, **search)
    assert start.values == expected
