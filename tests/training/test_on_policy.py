import contextlib
import csv
import json
import math
import os
import re
import signal
from itertools import pairwise
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.spaces import Box, Dict
from gymnasium.vector import SyncVectorEnv
from small_runs import SMALL, Records
from torch import nn

from agilerl_like import (
    PPO,
    Choice,
    ConfigurationError,
    EnvStepError,
    HyperparameterConfig,
    Mutations,
    OpenAIES,
    Population,
    PopulationDivergedError,
    RLParameter,
    TournamentSelection,
    evaluate,
    make_vect_envs,
    train_on_policy,
)
from agilerl_like.distributed.signals import StopRequests
from agilerl_like.envs.vec_adapter import VecEnvAdapter
from agilerl_like.hpo import Selection, SlotPlan
from agilerl_like.reporting import Patience, Reporter
from agilerl_like.reporting.summary import summary_facts
from agilerl_like.seeding import Purpose, integers
from agilerl_like.training.env_setup import SingleAgentEnvSetup
from agilerl_like.training.loop import TrainingLoop
from agilerl_like.training.training_arguments import TrainingArguments

RANGES = HyperparameterConfig(
    lr=RLParameter(1e-4, 1e-2), ent_coef=RLParameter(1e-4, 1e-1), learn_step=RLParameter(32, 128)
)


def population_of(env, size=3, **kwargs):
    settings = {
        "seed": 0,
        "net_config": SMALL,
        "num_envs": env.num_envs,
        "learn_step": 64,
        "batch_size": 32,
        "lr": 1e-3,
        "hp_config": RANGES,
    }
    return PPO.population(size, env.single_observation_space, env.single_action_space, **{**settings, **kwargs})


def flat(agent):
    return torch.cat([p.detach().reshape(-1) for p in agent.network.parameters()])


def run(env_id="CartPole-v1", size=3, seed=0, population=None, **kwargs):
    memory = Records()
    env = make_vect_envs(env_id, num_envs=4, backend="sync")
    population = population or population_of(env, size, seed=seed)
    settings = {
        "max_steps": 600,
        "evo_steps": 200,
        "eval_loop": 2,
        "verbose": False,
        "reporters": [memory],
        "selection_strategy": TournamentSelection(2),
        "mutation": Mutations(no_mutation=0.1, rl_hp=0.5, activation=0.2),
    }
    population, fitness = train_on_policy(env, pop=population, **{**settings, **kwargs})
    env.close()
    return population, fitness, memory


def digest(population):
    return [
        (a.index, a.mut, a.hyperparameters, a.architecture, flat(a).tolist(), a.optimizer.exp_avg.tolist(), a.fitness)
        for a in population
    ]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run_and_another_one_does_not():
    first, second, other = (run(seed=seed)[0] for seed in (0, 0, 1))
    assert digest(first) == digest(second)
    assert digest(first) != digest(other)


def test_members_take_equal_steps_for_any_learn_step():
    env = make_vect_envs("CartPole-v1", num_envs=4)
    population = population_of(env)
    population[1].learn_step = 128
    population, _, memory = run(population=population, selection_strategy=None)
    assert [agent.steps[-1] for agent in population] == [600, 600, 600]
    # 150 ticks of 4 envs: rollouts of 16, 32 and 16 ticks
    assert [agent.learner.updates for agent in population] == [9, 4, 9]
    assert [g.env_steps for g in memory.generations] == [600, 1200, 1800]


@pytest.mark.slow
def test_steps_count_all_runs_of_an_agent_and_records_those_of_one_run(tmp_path):
    population, _, _ = run()
    population, _, memory = run(population=population, run_dir=tmp_path / "run")
    for agent in [*population, *Population.load(tmp_path / "run" / "population")]:
        assert agent.steps == [0, 200, 400, 600, 800, 1000, 1200]
    assert [g.env_steps for g in memory.generations] == [600, 1200, 1800]
    assert [m.env_steps for m in memory.generations[-1].members] == [600, 600, 600]


def test_fitness_belongs_to_exactly_the_agents_that_are_returned():
    population, fitness, memory = run()
    assert fitness == [agent.fitness[-1] for agent in population]
    assert fitness == [m.fitness for m in memory.generations[-1].members]
    assert [a.index for a in population] == [m.uid for m in memory.generations[-1].members]
    # replaying the last evaluation on the same seeds finds the same returns
    env = VecEnvAdapter(make_vect_envs("CartPole-v1", num_envs=6, backend="sync"))
    again = population.run_episodes(env, integers(2, population.seed, Purpose.EVALUATION_ENVS, len(memory.generations)))
    assert again.returns.mean(1).tolist() == fitness
    assert population.fittest.fitness[-1] == max(fitness)


@pytest.mark.slow
class AllSurvive(Selection):
    def plan(self, view, rng):
        return [SlotPlan(slot, slot, explore=False) for slot in range(len(view))]


@pytest.mark.parametrize(
    ("mutation", "ranges", "left"),
    [
        ({"parameters": 1}, RANGES, 0),
        ({"architecture": 1}, RANGES, 0),
        ({"activation": 1}, RANGES, 0),
        ({"rl_hp": 1}, HyperparameterConfig(action_std_init=RLParameter(-1.0, 1.0, resample=1.0)), 0),
        ({"rl_hp": 1}, HyperparameterConfig(lr=RLParameter(1e-4, 1e-2)), 4),
        ({"no_mutation": 1}, RANGES, 4),
    ],
)
def test_a_survivor_does_not_learn_from_steps_that_its_changed_policy_did_not_take(monkeypatch, mutation, ranges, left):
    open_steps, evolve = [], TrainingLoop._evolve

    def recorded(loop):
        group = loop.collector.groups[""]
        before = group.steps_since_update.tolist()
        evolve(loop)
        open_steps.append((before, group.steps_since_update.tolist()))

    monkeypatch.setattr(TrainingLoop, "_evolve", recorded)
    kinds = dict.fromkeys(("no_mutation", "architecture", "parameters", "activation", "rl_hp"), 0)
    env = make_vect_envs("Pendulum-v1", num_envs=4, backend="sync")
    run(
        "Pendulum-v1",
        population=population_of(env, 2, hp_config=ranges),
        max_steps=160,
        evo_steps=80,  # 20 steps of each env, of which a rollout has 16
        eval_steps=1,
        selection_strategy=AllSurvive(),
        mutation=Mutations(**{**kinds, **mutation}, mutate_elite=True, mutate_survivors=True),
    )
    assert open_steps == [([4, 4], [left, left])]


def test_births_form_a_lineage_without_gaps():
    population, _, memory = run(size=4, max_steps=1000)
    known = set()
    for birth in memory.births:
        assert birth.parent_uid == -1 or birth.parent_uid in known
        known.add(birth.uid)
    assert {agent.index for agent in population} <= known
    by_generation = {g: [b for b in memory.births if b.generation == g] for g in range(len(memory.generations))}
    assert all(sorted(b.slot for b in births) == [0, 1, 2, 3] for births in by_generation.values())
    for generation, births in by_generation.items():
        if generation == 0:
            continue
        members = memory.generations[generation - 1].members
        elite = min(members, key=lambda m: (-m.fitness, m.uid))
        (own,) = [b for b in births if b.uid == elite.uid]
        assert own.survives
        assert own.mutations == ()
        assert own.parent_fitness == elite.fitness
    chain = memory.summary.ancestry
    assert chain[0].parent_uid == -1
    assert chain[-1].uid == memory.summary.best.uid
    assert all(b.parent_uid == a.uid for a, b in pairwise(chain))


@pytest.mark.slow
def test_the_target_stops_a_run_once_it_holds_on_fresh_episodes():
    _, _, memory = run(target=5.0, max_steps=10_000)  # no CartPole episode is shorter than 8 steps
    assert len(memory.generations) == 1
    assert memory.summary.reason == "target reached"
    assert memory.summary.confirmed_fitness > 5
    population, _, memory = run(target=501.0)
    assert memory.summary.reason == population.outcome == "budget spent"


@pytest.mark.slow
def test_files_of_a_run_folder(tmp_path):
    population, _, memory = run(
        run_dir=tmp_path / "run",
        save_elite=True,
        elite_path=tmp_path / "elite",
        checkpoint=200,
        checkpoint_path=tmp_path / "all",
    )
    rows = list(csv.DictReader((tmp_path / "run" / "metrics.csv").read_text().splitlines()))
    assert len(rows) == 3 * len(memory.generations)
    lineage = [json.loads(line) for line in (tmp_path / "run" / "lineage.jsonl").read_text().splitlines()]
    assert len(lineage) == len(memory.births)
    loaded = Population.load(tmp_path / "run" / "population")
    assert [a.index for a in loaded] == [a.index for a in population]
    assert all(torch.equal(flat(a), flat(b)) for a, b in zip(loaded, population, strict=True))
    best = PPO.load(tmp_path / "run" / "best")
    assert best.fitness[-1] == memory.generations[-1].best.fitness
    assert torch.equal(flat(PPO.load(tmp_path / "elite")), flat(best))
    assert sorted(p.name for p in tmp_path.glob("all-*")) == ["all-200", "all-400", "all-600"]


@pytest.mark.slow
def test_phase_times_are_part_of_the_run_time_and_in_the_metrics(tmp_path):
    _, _, memory = run(run_dir=tmp_path / "run")
    summary = memory.summary
    assert set(summary.seconds_by_part) == {"env", "act", "learn", "evaluate", "evolve", "report"}
    assert 0 < sum(summary.seconds_by_part.values()) <= summary.seconds  # the rest opens files and imports
    rows = list(csv.DictReader((tmp_path / "run" / "metrics.csv").read_text().splitlines()))
    for part in ("env", "act", "learn", "evaluate"):  # seconds since the start
        by_generation = [float(row[f"time/{part}"]) for row in rows[::3]]
        assert by_generation == [g.seconds_by_part[part] for g in memory.generations]
        assert 0 < by_generation[0] < by_generation[-1] <= summary.seconds_by_part[part]
    shares = {
        name: f"{part / sum(summary.seconds_by_part.values()):.0%}" for name, part in summary.seconds_by_part.items()
    }
    assert f"learn {shares['learn']}" in summary_facts(summary)["time"][0]


@pytest.mark.slow
def test_a_full_disk_costs_a_warning(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    population, fitness, memory = run(checkpoint_path=tmp_path / "all")
    assert len(fitness) == len(population) == 3
    assert any("No space left on device" in text for text in memory.warnings)


class Broken(gymnasium.Env):
    """Pays `after` steps of 1, then a number that is none."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, where="reward", after=45):
        self.where, self.after = where, after

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        bad = self.t == self.after
        obs = np.full(2, np.nan if bad and self.where == "observation" else 0.5, np.float32)
        return obs, float("nan") if bad and self.where == "reward" else 1.0, False, self.t >= 60, {}


@pytest.mark.parametrize("where", ["reward", "observation"])
def test_an_env_that_returns_nan_is_named(where):
    env = make_vect_envs(make_env=lambda: Broken(where), num_envs=4, backend="sync")
    with pytest.raises(EnvStepError, match=f"{where}=nan is not finite: member 0, env 0 of its own"):
        train_on_policy(env, pop=population_of(env), max_steps=400, evo_steps=200, eval_steps=60, verbose=False)


def test_a_diverged_member_is_replaced_logged_and_never_selected():
    env = make_vect_envs("CartPole-v1", num_envs=4)
    population = population_of(env)
    with torch.no_grad():
        next(population[1].network.parameters()).fill_(torch.nan)
    population, fitness, memory = run(population=population)
    replaced = [b for b in memory.births if b.reason]
    assert [(b.slot, b.uid >= 3, b.parent_uid in (0, 2)) for b in replaced] == [(1, True, True)]
    assert 1 not in {agent.index for agent in population}
    assert all(math.isfinite(f) for f in fitness)
    assert all(torch.isfinite(flat(agent)).all() for agent in population)
    assert not any(b.parent_uid == 1 for b in memory.births)


def test_divergence_of_all_members_is_one_error():
    env = make_vect_envs("CartPole-v1", num_envs=4)
    population = population_of(env, 2)
    for agent in population:
        with torch.no_grad():
            next(agent.network.parameters()).fill_(torch.nan)
    with pytest.raises(PopulationDivergedError, match="every member's loss or weights"):
        run(population=population)


class Presses(Reporter):
    """Presses Ctrl-C in the middle of the second generation."""

    def __init__(self, number):
        self.number, self.heard = number, 0

    def progress(self, env_steps):
        self.heard += env_steps > 800
        if self.heard == 1:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_saves_the_run(tmp_path, number):
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    memory = Records()
    population, fitness, _ = run(max_steps=100_000, run_dir=tmp_path / "run", reporters=[memory, Presses(number)])
    assert memory.summary.reason == population.outcome == "interrupted"
    assert len(memory.generations) == 2
    assert fitness == [agent.fitness[-1] for agent in population]
    loaded = Population.load(tmp_path / "run" / "population")
    assert all(torch.equal(flat(a), flat(b)) for a, b in zip(loaded, population, strict=True))
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers


def test_the_last_line_of_an_interrupted_run_is_that_the_script_continues(capsys):
    run(max_steps=100_000, reporters=[Presses(signal.SIGINT)], verbose=True)
    assert capsys.readouterr().out.splitlines()[-1].startswith("the script continues with what was trained; outcome of")


def test_resume_without_a_checkpoint_warns(tmp_path):
    first, again = Records(), Records()
    run(max_steps=100_000, run_dir=tmp_path / "run", reporters=[first, Presses(signal.SIGINT)])
    (warning,) = first.warnings
    assert "before its first checkpoint, which is due after 10000 env steps of each member: resume starts it" in warning
    folder = str(tmp_path / "run")
    assert first.summary.resume.startswith(
        f"no checkpoint yet; train_on_policy(env, pop=POPULATION, …, resume={folder!r})"
    )
    assert f"pop=Population.load({folder + '/population'!r})" in first.summary.resume
    run(max_steps=400, resume=tmp_path / "run", reporters=[again])
    assert again.warnings == [f"{tmp_path / 'run'} has no checkpoint yet: the run starts again"]
    assert again.generations[0].generation == 1


def test_a_run_of_trained_members_records_their_steps_and_resume_needs_them_as_they_were(tmp_path):
    population, _, _ = run(max_steps=400, run_dir=tmp_path / "first")
    first = Records()
    settings = {"max_steps": 100_000, "run_dir": tmp_path / "second"}
    run(population=population, reporters=[first, Presses(signal.SIGINT)], **settings)
    steps = [json.loads((tmp_path / name / "run.json").read_text()).get("steps_before") for name in ("first", "second")]
    assert steps == [None, 400]
    (warning,) = first.warnings
    assert "resume starts it from the beginning, for which it needs the members as they were before it" in warning


class Breaking(CartPoleEnv):
    """Raises an error in its steps while `broken` is True."""

    broken = False

    def step(self, action):
        if Breaking.broken:
            raise OSError("serial port lost")
        return super().step(action)


class BreakAfterTwo(Reporter):
    def on_generation(self, run, record):
        Breaking.broken = record.generation == 2


@pytest.mark.parametrize(
    ("checkpoint", "repeated"),
    [(400, "generation 3, from the checkpoint of generation 2"), (None, "generations 1 to 3")],
)
def test_an_error_of_the_env_leaves_the_best_agent_and_names_what_is_repeated(tmp_path, checkpoint, repeated):
    records = Records()
    env = SyncVectorEnv([Breaking] * 4)
    settings = {"max_steps": 800, "evo_steps": 200, "eval_loop": 1, "verbose": False, "checkpoint": checkpoint}
    with pytest.raises(EnvStepError, match="serial port lost"):
        train_on_policy(
            env, pop=population_of(env), run_dir=tmp_path / "run", reporters=[records, BreakAfterTwo()], **settings
        )
    assert max(record.best.fitness for record in records.generations) == PPO.load(tmp_path / "run/best").fitness[-1]
    assert f"A resumed run repeats {repeated}" in records.warnings[-1]
    Breaking.broken = False


def test_resume_with_another_num_envs_is_refused(tmp_path):
    """Env steps are counted in steps of so many envs; the run would take what it has done for more or for less."""
    run(max_steps=400, run_dir=tmp_path / "run")
    before = (tmp_path / "run" / "metrics.csv").read_bytes()
    for num_envs in (2, 8):
        env = make_vect_envs("CartPole-v1", num_envs=num_envs, backend="sync")
        with (
            contextlib.closing(env),
            pytest.raises(ConfigurationError, match=f"num_envs={num_envs} of each member .*; allowed are 4"),
        ):
            train_on_policy(env, max_steps=800, evo_steps=200, resume=tmp_path / "run", verbose=False)
    assert (tmp_path / "run" / "metrics.csv").read_bytes() == before


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_the_first_signal_is_announced_at_once_by_the_main_process_alone(capfd, number, name):
    for announces, count in ((True, 1), (False, 0)):
        with StopRequests(announces=announces) as requests:
            os.kill(os.getpid(), number)
            assert requests.stop_signal == number
            lines = capfd.readouterr().err.splitlines()
        assert len(lines) == count
        assert all(line.startswith(f"{name}: training ends after the current step") for line in lines)


def test_a_handler_that_python_cannot_restore_stays(monkeypatch):
    replaced = []
    monkeypatch.setattr(signal, "getsignal", lambda number: None)  # as where Python is embedded
    monkeypatch.setattr(signal, "signal", lambda number, handler: replaced.append(number))
    with StopRequests():
        pass
    assert replaced == []


def test_a_second_ctrl_c_stops_at_once():
    def stubborn():
        with StopRequests():
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            pytest.fail("the run continues")

    with pytest.raises(KeyboardInterrupt):
        stubborn()


def test_rows_of_a_custom_vector_env_are_divided_among_members():
    class Mine(gymnasium.vector.SyncVectorEnv):
        """It is unknown how the env was made."""

    mine = Mine([lambda: gymnasium.make("CartPole-v1")] * 6, autoreset_mode=gymnasium.vector.AutoresetMode.NEXT_STEP)
    tests = make_vect_envs("CartPole-v1", num_envs=6, backend="sync")
    population = population_of(mine, num_envs=2)
    population, fitness = train_on_policy(
        mine, pop=population, eval_env=tests, max_steps=200, evo_steps=100, eval_loop=2, verbose=False
    )
    assert [agent.num_envs for agent in population] == [2, 2, 2]
    assert len(fitness) == 3
    with pytest.raises(ConfigurationError, match="cannot be made again"):
        train_on_policy(mine, pop=population_of(mine, 4, num_envs=2), max_steps=200, verbose=False)


@pytest.mark.parametrize("backend", ["vector", "sync"])
def test_members_are_evaluated_on_the_same_seeds_for_any_number_of_rows(backend):
    env, found = make_vect_envs("CartPole-v1", 4), []
    for rows in (None, 1, 5):
        population = population_of(env, num_envs=4)
        trials = None if rows is None else make_vect_envs("CartPole-v1", rows, backend=backend)
        _, fitness = train_on_policy(
            env, pop=population, eval_env=trials, max_steps=100, evo_steps=100, eval_loop=2, verbose=False
        )
        found.append(fitness)
    assert found[0] == found[1] == found[2]


class Seeded(CartPoleEnv):
    """Records the seeds with which it is reset."""

    def __init__(self):
        super().__init__()
        self.seeds = []

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.seeds.append(seed)
        return super().reset(seed=seed, options=options)


def test_a_second_run_of_a_population_trains_in_other_episodes():
    env = make_vect_envs(Seeded, 2, backend="sync")
    pop, brief = population_of(env, 1), {"max_steps": 200, "evo_steps": 100, "eval_loop": 1, "verbose": False}
    for _ in range(2):
        train_on_policy(env, pop=pop, **brief)
    seeds = [seed for each in env.unwrapped.envs for seed in each.unwrapped.seeds]
    assert len(seeds) >= 4
    assert len({*seeds}) == len(seeds)


def test_rows_of_a_given_eval_env_must_be_divisible():
    class Mine(gymnasium.vector.SyncVectorEnv):
        """It is unknown how the env was made."""

    mine, env = Mine([lambda: gymnasium.make("CartPole-v1")] * 4), make_vect_envs("CartPole-v1", 2)
    with pytest.raises(ConfigurationError, match=r"eval_env=.*num_envs=4, which cannot be divided among 3 members"):
        train_on_policy(env, pop=population_of(env, num_envs=2), eval_env=mine, max_steps=200, verbose=False)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (Box(-9.0, 9.0, (4,)), None),
        (Box(-1.0, 1.0, (3,)), r"eval_env has Box.*\(3,\).* and Discrete\(2\); allowed are Box.*\(4,\)"),
        (Box(-9.0, 9.0, (4,), np.float64), r"eval_env has Box.*float64\).* allowed are Box.*float32\)"),
        (Dict(a=Box(-1.0, 1.0, (4,))), "eval_env has Dict.* allowed are Box"),
    ],
)
def test_an_eval_env_of_other_spaces_is_named_before_training(space, message):
    env = make_vect_envs("CartPole-v1", 2, backend="sync")
    trials = make_vect_envs("CartPole-v1", 2, backend="sync")
    trials.single_observation_space = space
    setup, eval_setup = SingleAgentEnvSetup(env), SingleAgentEnvSetup(trials)
    if message is None:
        setup.check_eval_env(eval_setup)
        return
    pop = population_of(env, 1)
    with pytest.raises(ConfigurationError, match=message):
        train_on_policy(env, pop=pop, eval_env=trials, max_steps=64, evo_steps=64, verbose=False)
    assert pop[0].steps == [0]


def test_an_eval_env_of_other_action_bounds_is_named_before_training():
    env, trials = (make_vect_envs("Pendulum-v1", 2, backend="sync") for _ in range(2))
    trials.single_action_space = Box(-1.0, 1.0, (1,))
    with pytest.raises(ConfigurationError, match=r"eval_env has .* Box\(-1.0, 1.0, .* allowed are .* Box\(-2.0, 2.0"):
        SingleAgentEnvSetup(env).check_eval_env(SingleAgentEnvSetup(trials))


@pytest.mark.parametrize("make", [lambda one: SyncVectorEnv([lambda: one]), lambda one: make_vect_envs(lambda: one, 1)])
def test_no_evaluation_is_played_in_the_env_that_trains(make):
    env = make(CartPoleEnv())
    agent, budget = population_of(env, 1), {"max_steps": 64, "evo_steps": 64, "eval_loop": 1, "verbose": False}
    with pytest.raises(ConfigurationError, match=r"in which members train .*; allowed is also eval_env=env"):
        train_on_policy(env, pop=agent, **budget)
    train_on_policy(env, pop=agent, eval_env=env, **budget)  # itself, whose training episodes are then reset
    train_on_policy(env, pop=agent, eval_env=make(CartPoleEnv()), **budget)


WRONG = {
    "no population": ({"pop": None}, "pop is missing"),
    "both": ({"tournament": TournamentSelection()}, "mean the same"),
    "tournament": (
        {"selection_strategy": TournamentSelection(4)},
        "tournament_size=4 must not be greater than the population's 3",
    ),
    "name of a mutation": ({"mutation": "pb2"}, r"mutation='pb2'; allowed are None and .* Explorer, such as PB2\(\)$"),
    "name of a selection": (
        {"selection_strategy": "truncation"},
        r"selection_strategy='truncation'; .*, such as TruncationSelection\(\)$",
    ),
    "name of a search": ({"evolution": "pbt"}, r"evolution='pbt'; allowed are 'auto' and None, .* FactorSteps\(\)"),
    "name of Ray": ({"time_budget_s": 5}, "'time_budget_s' is unknown; did you mean 'max_seconds'"),
    "max_steps": ({"max_steps": 0}, "max_steps=0 must be a positive integer"),
    "no_max_steps": ({"max_steps": None}, "max_steps=None must be a positive integer"),
    "no_evo_steps": ({"evo_steps": None}, "evo_steps=None must be a positive integer"),
    "no_eval_loop": ({"eval_loop": None}, "eval_loop=None must be a positive integer"),
    "eval_loop": ({"eval_loop": 1.5}, r"eval_loop=1\.5 must be a positive integer"),
    "max_updates": ({"max_updates": 2.5}, r"max_updates=2\.5 must be a positive integer"),
    "max_seconds": ({"max_seconds": True}, "max_seconds=True must be positive and finite"),
    "target": ({"target": math.nan}, "target=nan must be a finite number"),
    "target as flag": ({"target": True}, "target=True must be a finite number"),
    "share as flag": ({"eval_share": True}, "eval_share=True must be finite and not negative"),
    "target as text": ({"target": "200"}, "target='200' must be a finite number"),
    "eval_share": ({"eval_share": None}, "eval_share=None must be finite and not negative"),
    "callback class": ({"callbacks": [Patience]}, r"callbacks=\[<class.*Patience'>\]; allowed is a list of instances"),
    "one callback": ({"callbacks": Patience(2)}, "callbacks=.*Patience.*; allowed is a list of instances of Callback"),
    "reporter class": ({"reporters": [Records]}, "reporters=.*Records.*; allowed is a list of instances of Callback"),
    "selection class": ({"selection_strategy": TournamentSelection}, "selection_strategy=.*an instance of Selection"),
    "tournament class": ({"tournament": TournamentSelection}, "tournament=.*an instance of Selection"),
    "mutation class": ({"mutation": Mutations}, "mutation=.*allowed are None and an instance of Explorer"),
    "flag": ({"save_elite": "no"}, "save_elite='no'; allowed are True and False"),
    "path": ({"run_dir": 3}, "run_dir=3; allowed are a path and None"),
    "empty run_dir": ({"run_dir": ""}, "run_dir='' is no path; allowed are a path"),
    "empty checkpoint_path": ({"checkpoint_path": ""}, "checkpoint_path='' is no path"),
    "empty elite_path": ({"elite_path": ""}, "elite_path='' is no path"),
    "dictionary": ({"init_hp": 3}, "init_hp=3; allowed are a mapping and None"),
    "processes": ({"processes": 0}, "processes=0; allowed are whole numbers from 1, and 'auto'"),
    "tracker": ({"trackers": "mlflow"}, "trackers='mlflow' is a single tracker; allowed is a list of them"),
}


@pytest.mark.parametrize(("kwargs", "message"), WRONG.values(), ids=WRONG.keys())
def test_wrong_arguments_are_named_before_anything_is_trained(kwargs, message):
    env = make_vect_envs("CartPole-v1", num_envs=4)
    population = population_of(env)
    before = flat(population[0]).clone()
    settings = {"pop": population, "selection_strategy": TournamentSelection(2), "verbose": False, "max_steps": 100}
    with pytest.raises(ConfigurationError, match=message):
        train_on_policy(env, **{**settings, **kwargs})
    assert torch.equal(before, flat(population[0]))


@pytest.mark.parametrize(
    ("argument", "flag"), [({"tensorboard_log_dir": "logs"}, "tensorboard"), ({"wandb_kwargs": {"project": "x"}}, "wb")]
)
def test_options_of_a_tracker_that_is_off_give_a_warning(argument, flag):
    env = make_vect_envs("CartPole-v1", num_envs=4)
    wrong = {"pop": population_of(env), "max_steps": 0}  # the run ends before it begins
    with (
        pytest.warns(UserWarning, match=f"{next(iter(argument))}=.* has no effect without {flag}=True"),
        pytest.raises(ConfigurationError, match="max_steps=0"),
    ):
        train_on_policy(env, **wrong, **argument)


def test_a_batch_larger_than_the_rollout_is_refused_when_the_envs_are_known():
    env = make_vect_envs("Acrobot-v1", num_envs=4)
    with pytest.raises(ConfigurationError, match="the population was made for"):
        train_on_policy(env, pop=population_of(make_vect_envs("CartPole-v1", num_envs=4)), max_steps=100, verbose=False)


def cartpoles_with(space):
    """Four CartPoles with another declared observation space."""
    return SyncVectorEnv([lambda: gymnasium.wrappers.TransformObservation(CartPoleEnv(), lambda seen: seen, space)] * 4)


def test_wider_bounds_that_no_network_reads_are_a_warning():
    known, wide = CartPoleEnv().observation_space, Box(-np.inf, np.inf, (4,))
    population = population_of(cartpoles_with(known))
    with pytest.warns(UserWarning, match=r"has other bounds than the \w+ was made for.*: observation=Box\("):
        train_on_policy(cartpoles_with(wide), pop=population, max_steps=100, verbose=False, eval_loop=1)
    with pytest.warns(UserWarning, match=r"^env=.* has other bounds than the agent was made for"):
        evaluate(population[0], cartpoles_with(wide), 1)
    with pytest.raises(ConfigurationError, match=r"env has observation=Box\(.*float64\); the population was made for"):
        train_on_policy(cartpoles_with(Box(-9, 9, (4,), np.float64)), pop=population, max_steps=100, verbose=False)


def test_other_bounds_are_refused_where_they_scale_what_networks_read():
    narrow, wide = Box(-9, 9, (4,)), Box(-99, 99, (4,))
    population = population_of(cartpoles_with(narrow), normalize_observation="bounds")
    with pytest.raises(ConfigurationError, match=r"observation=Box\(-99.* whose bounds scale the values"):
        train_on_policy(cartpoles_with(wide), pop=population, max_steps=100, verbose=False)


def test_an_env_that_is_no_vector_env_is_refused_with_the_call_that_makes_one():
    population = population_of(make_vect_envs("CartPole-v1", num_envs=4))
    call = r"is not a vector env; make_vect_envs\('CartPole-v1', num_envs=…\) makes one"
    with pytest.raises(ConfigurationError, match=f"TimeLimit.*{call}"):
        train_on_policy(gymnasium.make("CartPole-v1"), pop=population)
    with pytest.raises(ConfigurationError, match=f"env='CartPole-v1' {call}"):
        train_on_policy("CartPole-v1", pop=population)
    env = make_vect_envs("CartPole-v1", num_envs=4)
    with pytest.raises(ConfigurationError, match="eval_env=3 is not a vector env"):
        train_on_policy(env, pop=population, eval_env=3)
    with pytest.raises(ConfigurationError, match="env_name=3 must be text"):
        train_on_policy(env, 3, pop=population)


@pytest.mark.slow
def test_a_generation_shorter_than_a_rollout_warns_once():
    env = make_vect_envs("CartPole-v1", num_envs=4)
    population = population_of(env, hp_config=None)
    population[1].learn_step = 256
    _, _, memory = run(population=population, evo_steps=252)  # 63 ticks of 4 envs; a rollout has 64
    assert [text.partition(":")[0] for text in memory.warnings] == [
        "evo_steps=252 is less than learn_step=256 of member 1"
    ]
    options = {"max_steps": 100, "evo_steps": 200, "selection_strategy": None, "mutation": None}
    _, _, memory = run(population=population_of(env, learn_step=128, hp_config=None), **options)
    assert ["is more than the 100 env steps after which the run ends" in text for text in memory.warnings] == [True]
    _, _, memory = run(population=population_of(env, learn_step=199, hp_config=None))  # both are 50 ticks
    assert memory.warnings == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"evo_steps": 252}, r"evo_steps=252 is less than num_steps=64 \(256 env steps\) of member 0: .* an update"),
        (
            {"max_steps": 100, "evo_steps": 100},
            r"num_steps=64 \(256 env steps\) of member 0 is more than the 100 .* max_steps, or a smaller num_steps",
        ),
    ],
)
def test_a_warning_of_a_long_rollout_names_the_setting_of_its_length(options, expected):
    env = make_vect_envs("CartPole-v1", num_envs=4)
    spaces = env.single_observation_space, env.single_action_space
    population = PPO.population(1, *spaces, num_envs=4, num_steps=64, batch_size=32, net_config=SMALL, seed=0)
    _, _, memory = run(population=population, **{"selection_strategy": None, "mutation": None, **options})
    assert [re.fullmatch(expected, text) is not None for text in memory.warnings] == [True]


@pytest.mark.parametrize(
    ("explorer", "end"),
    [
        (Mutations(), "without an update"),
        (Mutations(mutate_survivors=True), ", and with mutate_survivors a mutation of its policy discards what it has"),
    ],
)
def test_a_warning_of_a_long_rollout_names_the_member_of_another_process(explorer, end):
    warned, learner = [], SimpleNamespace(rollout_setting="learn_step=40")
    own = SimpleNamespace(rollout_steps=10, learners={"": learner}, index=0)
    group = SimpleNamespace(all_gather=lambda ours: [ours, [[64, "learn_step=256", 7]]])
    loop = SimpleNamespace(
        training_args=TrainingArguments(max_steps=4096, evo_steps=252),
        members=SimpleNamespace(first=SimpleNamespace(num_envs=4), process_group=group),
        population=[own],
        callbacks=SimpleNamespace(on_warning=warned.append),
        checkpoint_every=1260,
        explorer=explorer,
        _evaluates_in_training_env=False,
    )
    TrainingLoop._warn_if_no_update(loop)
    assert [text.partition(":")[0] for text in warned] == ["evo_steps=252 is less than learn_step=256 of member 7"]
    assert end in warned[0]


class EnvOfAScript(gymnasium.vector.SyncVectorEnv):
    """A vector env that cannot be made again, because it is unknown how it was made."""


@pytest.mark.parametrize(
    ("options", "shares_env", "expected"),
    [
        ({"checkpoint": 32, "checkpoint_path": "pop"}, False, "32 env steps after which checkpoint=32 resets the envs"),
        ({}, True, "32 env steps after which the evaluation resets the env, which it shares .* is an eval_env"),
        (
            {"max_steps": 63, "evo_steps": 63},
            False,
            "60 env steps after which the run ends .max_steps=63, num_envs=4.:",
        ),
    ],
)
def test_a_member_that_can_never_learn_is_a_warning(options, shares_env, expected, empty_folder):
    env = EnvOfAScript([lambda: gymnasium.make("CartPole-v1")] * 4)
    eval_env = env if shares_env else make_vect_envs("CartPole-v1", num_envs=4, backend="sync")
    memory = Records()
    population = population_of(env, 1, hp_config=None)
    settings = {"max_steps": 64, "evo_steps": 32, "eval_loop": 1, "eval_steps": 4, "verbose": False}
    train_on_policy(env, pop=population, eval_env=eval_env, reporters=[memory], **{**settings, **options})
    assert population[0].learner.updates == 0
    (warning,) = [text for text in memory.warnings if "never learn" in text]
    assert re.search(f"learn_step=64 of member 0 is more than the {expected}", warning)


def test_the_default_checkpoint_is_not_due_within_a_rollout(tmp_path):
    """By default it is due after max(256 / 10, 5 * 8) = 40 env steps, and a rollout has 64."""
    env = make_vect_envs("CartPole-v1", num_envs=4)
    population = population_of(env, 1, hp_config=None)
    memory, settings = Records(), {"max_steps": 256, "evo_steps": 8, "eval_loop": 1, "eval_steps": 4, "verbose": False}
    train_on_policy(env, pop=population, reporters=[memory], run_dir=tmp_path / "run", **settings)
    assert population[0].learner.updates == 4
    assert [text for text in memory.warnings if "never learn" in text] == []


def test_an_evolution_strategy_whose_episodes_never_end_before_a_checkpoint_is_a_warning(empty_folder):
    memory = Records()
    env = make_vect_envs("Pendulum-v1", num_envs=2, backend="sync")
    population = OpenAIES.population(1, env.single_observation_space, env.single_action_space, num_envs=2, seed=1)
    options = {"checkpoint": 32, "checkpoint_path": "pop", "verbose": False, "reporters": [memory]}
    train_on_policy(env, pop=population, max_steps=96, evo_steps=32, eval_loop=1, eval_steps=2, **options)
    (warning,) = [text for text in memory.warnings if "learn" in text]
    assert warning == (
        "no member has learned in 32 env steps, after which checkpoint=32 resets the envs: what members have collected "
        "is discarded each time, so none will ever learn; allowed is a larger checkpoint, or shorter episodes"
    )


def test_mutation_without_a_selection_warns_that_it_has_no_effect():
    _, _, memory = run(size=2, max_steps=400, selection_strategy=None)
    (warning,) = memory.warnings
    assert "mutation has no effect without selection_strategy (or tournament)" in warning
    _, _, memory = run(size=2, max_steps=400, selection_strategy=None, mutation=None)
    assert memory.warnings == []


@pytest.mark.parametrize("evo_steps", [64, 32])
def test_a_selection_in_a_run_of_one_generation_warns_that_it_has_no_effect(evo_steps):
    env = make_vect_envs("CartPole-v1", num_envs=4)
    _, _, memory = run(population=population_of(env, 2, hp_config=None), max_steps=64, evo_steps=evo_steps)
    wanted = "evo_steps=64 with max_steps=64 gives one generation, and members are selected between two"
    assert [text.startswith(wanted) for text in memory.warnings if "generation," in text] == [True] * (evo_steps == 64)


@pytest.mark.parametrize(
    ("ranges", "warning"),
    [
        ({"batch_size": RLParameter(16, 256)}, "is 16 to 256, and the longest rollout has 64 .* so 16 to 64 remain"),
        (
            {"batch_size": Choice([32, 48, 128])},
            "is 32 to 128, and the longest rollout has 64 samples: .* so 32 to 48 remain",
        ),
        ({"batch_size": RLParameter(16, 64)}, None),
        ({"batch_size": RLParameter(16, 128), "learn_step": RLParameter(64, 128)}, None),
    ],
)
def test_batch_sizes_that_no_rollout_holds_are_one_warning(ranges, warning):
    env = make_vect_envs("CartPole-v1", num_envs=4)
    population = population_of(env, 2, hp_config=HyperparameterConfig(**ranges))
    _, _, memory = run(population=population, max_steps=64, evo_steps=32)
    found = [text for text in memory.warnings if text.startswith("hp_config.batch_size")]
    assert len(found) == (warning is not None)
    assert all(re.search(warning, text) for text in found)


def test_elite_path_implies_save_elite(tmp_path):
    population, _, _ = run(max_steps=200, elite_path=tmp_path / "elite")
    assert torch.equal(flat(PPO.load(tmp_path / "elite")), flat(population.best))


def test_one_agent_is_a_population_of_one():
    env = make_vect_envs("CartPole-v1", num_envs=4, backend="sync")
    agent = population_of(env, 1)[0]
    population, fitness = train_on_policy(env, pop=agent, max_steps=128, evo_steps=128, eval_loop=1, verbose=False)
    assert [*population] == [agent]
    assert agent.fitness == fitness


def test_agents_in_evaluation_mode_are_trained_as_those_in_training_mode():
    weights = []
    for training in (True, False):
        env = make_vect_envs("CartPole-v1", num_envs=2)
        torch.manual_seed(0)
        networks = [nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, outputs)) for outputs in (2, 1)]
        actor, critic = networks
        pop = population_of(env, 1, num_envs=2, net_config=None, actor_network=actor, critic_network=critic)
        pop.set_training_mode(training)
        pop, _ = train_on_policy(env, pop=pop, max_steps=64, evo_steps=64, eval_loop=1, verbose=False)
        assert pop.training
        weights.append(torch.cat([weight.flatten() for weight in pop[0].actor.parameters()]))
    assert torch.equal(*weights)


def test_older_argument_names_of_agilerl():
    class Settings(Records):
        def start(self, run):
            self.settings = dict(run.settings)

    env, reporter = make_vect_envs("CartPole-v1", num_envs=4, backend="sync"), Settings()
    settings = {"pop": population_of(env, 1), "max_steps": 64, "evo_steps": 64, "eval_loop": 1, "verbose": False}
    train_on_policy(
        env, INIT_HP={"LR": 1}, MUT_P={"NO_MUT": 1}, wandb_api_key="secret", reporters=[reporter], **settings
    )
    assert (reporter.settings["init_hp"], reporter.settings["mut_p"]) == ({"LR": 1}, {"NO_MUT": 1})
    assert reporter.settings["algorithm"]["lr"] == settings["pop"][0].lr  # trackers have the settings of config.yaml
    assert reporter.settings["training"]["max_steps"] == 64
    with pytest.raises(ConfigurationError, match=r"wandb_api_key is not taken: .*WANDB_API_KEY") as found:
        train_on_policy(env, wb=True, wandb_api_key="secret", **settings)
    assert "secret" not in str(found.value)


def test_agilerls_call():
    env = make_vect_envs("CartPole-v1", num_envs=2)
    agents = list(population_of(env, 2))
    population, fitness = train_on_policy(
        env,
        "CartPole-v1",
        "PPO",
        agents,
        init_hp={"LR": 1e-3},
        mut_p={"NO_MUT": 0.4},
        max_steps=256,
        evo_steps=128,
        eval_steps=None,
        eval_loop=1,
        target=None,
        tournament=TournamentSelection(2, True, 2, seed=1),
        mutation=Mutations(
            no_mutation=0.4,
            architecture=0.2,
            new_layer_prob=0.2,
            parameters=0.2,
            activation=0,
            rl_hp=0.2,
            mutation_sd=0.1,
            rand_seed=1,
            device="cpu",
        ),
        checkpoint=None,
        checkpoint_path=None,
        overwrite_checkpoints=False,
        save_elite=False,
        elite_path=None,
        wb=False,
        tensorboard=False,
        tensorboard_log_dir=None,
        verbose=False,
        accelerator=None,
        wandb_kwargs=None,
    )
    assert len(population) == len(fitness) == 2


@pytest.mark.parametrize("where", ["reward", "observation"])
def test_an_env_that_breaks_its_contract_is_refused_before_training(where):
    env = make_vect_envs(make_env=lambda: Broken(where, after=3), num_envs=4, backend="sync")
    with pytest.raises(ConfigurationError, match=f"^env .* cannot be trained in: step.. returned .*{where}.* nan.*"):
        train_on_policy(env, pop=population_of(env), max_steps=400, evo_steps=200, verbose=False)


def test_the_check_before_training_warns_and_does_not_change_the_run():
    class Loose(gymnasium.Wrapper):
        """Returns its flags as numbers."""

        def step(self, action):
            observation, reward, terminated, truncated, info = self.env.step(action)
            return observation, reward, int(terminated), truncated, info

    warned = Records()
    env = make_vect_envs("CartPole-v1", 4, backend="sync", wrappers=[Loose, ("ClipReward", {"max_reward": 0.5})])
    train_on_policy(env, pop=population_of(env), max_steps=64, evo_steps=64, verbose=False, reporters=[warned])
    assert len(warned.warnings) == 2
    assert "terminated=0; return a bool" in warned.warnings[0]
    assert "ClipReward" in warned.warnings[1]
    assert "in training_wrappers it changes the reward of training only" in warned.warnings[1]


@pytest.mark.slow
def test_wrappers_with_running_statistics_are_one_warning_each_with_any_backend_and_none_in_training_wrappers():
    wrappers = [("NormalizeObservation", {"epsilon": 1e-6}), {"name": "NormalizeReward"}]
    settings = [{"wrappers": wrappers}, {"wrappers": wrappers, "backend": "workers"}, {}]
    for given in settings:
        warned = Records()
        env = make_vect_envs("CartPole-v1", 4, training_wrappers=["NormalizeReward"], **given)
        train_on_policy(env, pop=population_of(env), max_steps=64, evo_steps=64, verbose=False, reporters=[warned])
        env.close()
        named = [warning.split()[2] for warning in warned.warnings]
        assert sorted(named) == (["NormalizeObservation", "NormalizeReward"] if given else [])
