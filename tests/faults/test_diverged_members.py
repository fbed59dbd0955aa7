"""R3: a diverged member is found in the same learn call and replaced, without effect on others."""

import contextlib
import math
import weakref
from functools import cache, partial
from time import perf_counter
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from tiny_runs import (
    ENVS,
    MEMBERS,
    SETTINGS,
    SMALL,
    Memory,
    digest,
    is_finite,
    lineage,
    member_digest,
    metrics,
    population_for,
    tiny_run,
)

from agilerl_like import (
    IPPO,
    EnvStepError,
    Mutations,
    PopulationDivergedError,
    TournamentSelection,
    TruncationSelection,
    make_multi_agent_vect_envs,
    make_vect_envs,
    train_multi_agent_on_policy,
)
from agilerl_like.algorithms.ppo_learner import hyperparams_of
from agilerl_like.envs.multi_agent.probe_envs import AgentRole, MultiAgentProbeEnv
from agilerl_like.envs.vec_adapter import VecEnvAdapter
from agilerl_like.hpo import Genome, History, PopulationView, next_generation
from agilerl_like.learning.execution import Execution
from agilerl_like.learning.ppo_update import PPOUpdate
from agilerl_like.learning.rollout_buffer import _check_finite
from agilerl_like.networks.architecture import NetworkSpec
from agilerl_like.reporting import Callback, Reporter
from agilerl_like.seeding import Purpose, integers
from agilerl_like.training.checkpoint_manager import newest_checkpoint
from agilerl_like.training.collector import Collector, PhaseTimer
from agilerl_like.training.loop import TrainingLoop
from agilerl_like.training.training_arguments import OutputPaths


def nan_weight(agent):
    with torch.no_grad():
        next(agent.network.parameters()).view(-1)[3] = math.nan


def infinite_weight(agent):
    with torch.no_grad():
        list(agent.network.parameters())[-1].view(-1)[0] = math.inf


def nan_loss(agent):
    agent.ent_coef = math.nan


def far_too_fast(agent):
    agent.lr = 1e38


HARM = [nan_weight, infinite_weight, nan_loss, far_too_fast]
STEPS = 512
"""Of each member in a generation: two updates or more."""


class Saboteur(Reporter):
    """Harms the members at some places once, in the middle of a generation, and notes who they are."""

    def __init__(self, population, places, harm, generation):
        self.population, self.places, self.harm = population, places, harm
        self.at = ((generation - 1) * STEPS + STEPS // 4) * len(population)
        self.victims = []

    def progress(self, env_steps):
        if env_steps >= self.at and not self.victims:
            self.victims = [self.population[place].index for place in self.places]
            for place in self.places:
                self.harm(self.population[place])


def sabotaged(places, harm, *, generation=2, generations=3, **settings):
    """Run the tiny run with some of its members poisoned; return it, its records, and the saboteur."""
    env = make_vect_envs("CartPole-v1", num_envs=ENVS, backend="sync")
    population, memory = population_for(env, **settings), Memory()
    saboteur = Saboteur(population, places, harm, generation)
    tiny_run(population, env=env, generations=generations, generation=STEPS, reporters=[memory, saboteur])
    return population, memory, saboteur


@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize("places", [(2,), (0, 1, 3)], ids=["one", "all but one"])
def test_diverged_members_are_replaced_and_have_no_offspring(harm, places):
    population, memory, saboteur = sabotaged(places, harm)
    replaced = [birth for birth in memory.all_births if "not finite" in birth.reason]
    assert [(birth.generation, birth.slot) for birth in replaced] == [(2, place) for place in places]
    (healthy,) = {birth.parent_uid for birth in replaced}
    assert healthy not in saboteur.victims
    since = memory.all_births[memory.all_births.index(replaced[0]) :]
    assert not {birth.parent_uid for birth in since} & set(saboteur.victims)
    # no diverged member was ever evaluated, and the current ones are finite
    assert not {member.uid for member in memory.generations[1].members} & set(saboteur.victims)
    assert all(math.isfinite(member.fitness) for record in memory.generations for member in record.members)
    assert all(is_finite(agent) for agent in population)


def test_episodes_of_a_diverged_member_do_not_count_for_its_replacement():
    with contextlib.closing(make_vect_envs("CartPole-v1", num_envs=2 * ENVS, backend="sync")) as env:
        collector = Collector(population_for(env, 2), VecEnvAdapter(env), PhaseTimer(("env", "act", "learn")))
        collector.reset([0, 1])
        collector.collect(collector.vector_steps_until_update)
        before = collector.returns_since([0, 1])
        assert np.isfinite(before).all()
        collector.reset_member(0)
        assert np.isnan(collector.returns_since([0, 1])).all()
        assert math.isnan(collector.scores()[0])
        assert collector.pop_scores()[1] == before[1]


def test_the_trial_of_a_replaced_member_starts_from_the_fitness_of_its_parent(tmp_path):
    env = make_vect_envs("CartPole-v1", num_envs=ENVS, backend="sync")
    population = population_for(env, 2, lr=1e-2, learn_step=64, update_epochs=4, hp_config=None)
    saboteur = Saboteur(population, [1], nan_weight, 3)
    without = {"selection_strategy": None, "mutation": None, "reporters": [saboteur], "run_dir": tmp_path}
    tiny_run(population, env=env, generations=3, generation=STEPS, eval_loop=5, **without)
    checkpoint = newest_checkpoint(OutputPaths(run_dir=tmp_path), pytest.fail)
    *_, parent, diverged, _, clone = History.from_json(checkpoint.documents["run"]["history"]).trials
    assert (clone.generation, clone.parent_uid) == (3, parent.uid)
    assert clone.fitness_before == parent.fitness != diverged.fitness


@cache
def unharmed(generations, per_member):
    """The members after as many generations without poison."""
    population = sabotaged((), nan_weight, generations=generations, per_member=per_member)[0]
    return [member_digest(agent) for agent in population]


@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize(("generation", "per_member"), [(1, False), (3, True)])
def test_diverged_members_do_not_change_the_others(harm, generation, per_member):
    """To the bit, as long as they learn by themselves; together too, while all have one shape and so one stack."""
    control = unharmed(generation, per_member)
    population = sabotaged((1, 2), harm, generation=generation, generations=generation, per_member=per_member)[0]
    sick = [member_digest(agent) for agent in population]
    assert [sick[place] for place in (0, 3)] == [control[place] for place in (0, 3)]
    assert not {sick[1], sick[2]} & set(control)


def test_divergence_of_all_members_is_one_error_with_advice():
    with pytest.raises(
        PopulationDivergedError, match=r"every member's loss or weights .*: lower lr, or look at the rewards"
    ):
        sabotaged(range(MEMBERS), nan_weight)


def test_diverged_members_are_never_selected():
    """Ten thousand selections among members, any number of them diverged."""
    rng = np.random.default_rng(0)
    strategies = [TournamentSelection(1), TournamentSelection(3), TournamentSelection(2, elitism=False)]
    strategies += [TruncationSelection(0.25), TruncationSelection(0.5)]
    genome, nothing = Genome({"lr": 1e-3}, NetworkSpec()), Mutations(1, 0, 0, 0, 0, 0)
    hopeless = 0
    for seed in range(10_000):
        size = int(rng.integers(3, 17))
        fitness = rng.choice([math.nan, math.inf, -math.inf, 0.0, -1e300, 1e300, *rng.normal(size=6)], size)
        view = PopulationView(fitness, range(size), [genome] * size, generation=1)
        try:
            births = next_generation(
                view,
                [{}] * size,
                selection=strategies[seed % len(strategies)],
                explorer=nothing,
                seed=seed,
                next_uid=size,
            )
        except PopulationDivergedError:
            assert not np.isfinite(fitness).any()
            hopeless += 1
            continue
        assert np.isfinite(fitness[[birth.parent_slot for birth in births]]).all()
    assert 0 < hopeless < 1000


# -- envs that return numbers that are none


class Sick(gymnasium.Env):
    """Every episode is cut after 25 steps; in the envs with certain seeds, one number is none at one step."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def __init__(self, what, value, seeds, at=330):
        self.what, self.value, self.seeds, self.at = what, value, seeds, at

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.is_sick, self.steps = seed in self.seeds, 0
        self.time = 0
        return self.np_random.random(2, dtype=np.float32), {}

    def step(self, action):
        self.steps, self.time = self.steps + 1, self.time + 1
        numbers = {"observation": self.np_random.random(2, dtype=np.float32), "reward": float(action)}
        if self.is_sick and self.steps == self.at:  # of 330 in the middle of an episode, and of the sixth rollout
            numbers[self.what] = numbers[self.what] * 0 + self.value
        return numbers["observation"], numbers["reward"], False, self.time == 25, {}


@pytest.mark.parametrize("what", ["observation", "reward"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_nan_of_an_env_is_named_before_the_update(what, value):
    sick = set(integers(ENVS, 0, Purpose.TRAINING_ENVS, 2)[1:])  # envs 1 to 3 of member 2
    env = make_vect_envs(make_env=lambda: Sick(what, value, sick), num_envs=ENVS, backend="sync")
    population = population_for(env)
    step = 329 % 64 + (what == "observation")  # what a step shows is seen at the next
    with pytest.raises(
        EnvStepError, match=f"{what}={value} is not finite: member 2, env 1 of its own, step {step} of the rollout"
    ):
        tiny_run(population, env=env, selection_strategy=None)
    assert [agent.learner.updates for agent in population] == [330 // 64] * MEMBERS
    assert all(is_finite(agent) for agent in population)


def test_final_observations_are_checked():
    sick = set(integers(ENVS, 0, Purpose.TRAINING_ENVS, 2)[1:2])
    env = make_vect_envs(make_env=lambda: Sick("observation", math.nan, sick, at=325), num_envs=ENVS, backend="sync")
    population = population_for(env)
    where = f"member 2, env 1 of its own, step {324 % 64} of the rollout"
    with pytest.raises(EnvStepError, match=f"last observation=nan is not finite: {where}"):
        tiny_run(population, env=env, selection_strategy=None)
    assert all(is_finite(agent) for agent in population)


@pytest.mark.parametrize("what", ["observation", "reward"])
def test_a_nan_of_a_multi_agent_env_names_the_agent(what):
    its_env = integers(ENVS, 0, Purpose.TRAINING_ENVS, 2)[1]  # env 1 of team 2
    sick = {int(np.random.SeedSequence(its_env).generate_state(3)[2])}  # and there, the third agent
    roles = {
        agent: AgentRole(partial(Sick, what, math.nan, sick, at=210))
        for agent in ("speaker_0", "listener_0", "listener_1")
    }
    env = make_multi_agent_vect_envs(lambda: MultiAgentProbeEnv(roles), num_envs=ENVS, backend="sync")
    spaces = env.single_observation_spaces, env.single_action_spaces
    teams = IPPO.population(MEMBERS, *spaces, num_envs=ENVS, seed=0, net_config=SMALL, **SETTINGS)
    if what == "observation":
        fault = (
            f"observation=nan is not finite: member 2, env 1 of its own, agent 'listener_1', step {209 % 64 + 1} of the"
        )
    else:
        fault = f"step {210 % 25} of the episode: the reward of agent 'listener_1'=nan is not finite"
    with pytest.raises(EnvStepError, match=fault):
        train_multi_agent_on_policy(env, pop=teams, max_steps=10_000, evo_steps=10_000, verbose=False)
    assert [team.learners["listener"].updates for team in teams] == [210 // 64] * MEMBERS
    assert all(learner.is_finite for learner in teams.all_learners())


class Glaring(Sick):
    """One observation is finite, but its square is not."""

    def step(self, action):
        observation, *rest = super().step(action)
        return (observation * np.float32(1e30) if self.is_sick and self.steps == 60 else observation), *rest


def test_a_member_with_a_nan_normalizer_is_replaced():
    sick = set(integers(ENVS, 0, Purpose.TRAINING_ENVS, 2)[1:2])
    env = make_vect_envs(make_env=lambda: Glaring("reward", 0.0, sick, at=-1), num_envs=ENVS, backend="sync")
    memory = Memory()
    population = tiny_run(population_for(env), env=env, reporters=[memory], generations=1)
    replaced = [birth for birth in memory.all_births if birth.reason]
    assert [birth.slot for birth in replaced] == [2]
    assert all(is_finite(agent) for agent in population)


class StopAfterThree(Callback):
    def on_generation(self, run, record):
        if record.generation == 3:
            run.stop("three are enough")


def plagued(*keys, generations=4, **more):
    """The tiny run with a checkpoint at each generation, in which everybody is blinded in the lives that keys name."""
    lives = [integers(ENVS, 0, Purpose.TRAINING_ENVS, slot, *key)[1] for key in keys for slot in range(MEMBERS)]
    env = make_vect_envs(make_env=partial(Glaring, "reward", 0.0, lives, at=-1), num_envs=ENVS, backend="sync")
    settings = {"generations": generations, "generation": STEPS, "checkpoint": STEPS, "env": env, **more}
    return tiny_run(population_for(env), **settings)


def test_divergence_of_all_members_restarts_from_the_checkpoint_once(tmp_path, monkeypatch):
    memory, loops, run = Memory(), [], TrainingLoop.run

    def watched(loop, stop_requests):
        assert [one() for one in loops] == [None] * len(loops)  # the first attempt is not in memory any more
        loops.append(weakref.ref(loop))
        return run(loop, stop_requests)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingLoop, "run", watched)
        population = plagued((2,), run_dir=tmp_path / "whole", reporters=[memory])  # what follows generation 2
    assert len(loops) == 2
    (warning,) = memory.warnings
    assert warning.startswith("every member's loss or weights are not finite: ")
    assert "The run restarts, once, from its checkpoint of generation 2" in warning
    assert [record.generation for record in memory.generations] == [1, 2, 3, 4]
    assert all(is_finite(agent) for agent in population)
    assert [int(row["generation"]) for row in metrics(tmp_path / "whole")] == sorted([1, 2, 3, 4] * MEMBERS)
    births = [(birth["generation"], birth["slot"]) for birth in lineage(tmp_path / "whole")]
    assert len(births) == len(set(births))
    # and what comes after it can be resumed like any other run
    plagued((2,), run_dir=tmp_path / "parts", callbacks=[StopAfterThree()])
    resumed = plagued((2,), resume=tmp_path / "parts")
    assert digest(resumed) == digest(population)


def test_a_second_divergence_of_all_members_is_one_error(tmp_path):
    memory = Memory()
    with pytest.raises(PopulationDivergedError, match=r"every member's loss or weights .*: lower lr"):
        plagued((2,), (2, 1), run_dir=tmp_path / "run", reporters=[memory])
    assert len(memory.warnings) == 1


def test_a_member_alone_on_its_process_is_replaced_without_a_selection_strategy():
    env = make_vect_envs("CartPole-v1", num_envs=ENVS, backend="sync")
    population, memory = population_for(env, 2, learn_step=128, max_grad_norm=1e30, hp_config=None), Memory()
    far_too_fast(population[1])
    limits = {"generations": 2, "generation": 128, "eval_loop": 1, "eval_steps": 20}
    without = {"selection_strategy": None, "mutation": None}
    population = tiny_run(population, env=env, processes=2, reporters=[memory], **limits, **without)
    (replaced,) = [birth for birth in memory.all_births if birth.reason]
    assert (replaced.generation, replaced.slot, replaced.parent_uid) == (1, 1, 0)
    assert population[1].index == replaced.uid
    assert population[1].lr == population[0].lr
    assert all(math.isfinite(member.fitness) for member in memory.generations[1].members)


@pytest.mark.slow
def test_a_member_that_diverged_in_the_last_generation_is_replaced_where_the_run_is_resumed(tmp_path):
    """It is alone on its process, and there is no selection strategy."""
    settings = {"selection_strategy": None, "mutation": None, "eval_loop": 1, "eval_steps": 20, "generation": 128}

    def train(**more):
        env = make_vect_envs("CartPole-v1", num_envs=ENVS, backend="sync")
        population = population_for(env, 2, learn_step=128, max_grad_norm=1e30, hp_config=None)
        far_too_fast(population[1])
        return tiny_run(population, env=env, processes=2, **settings, **more)

    memory = Memory()
    train(generations=1, run_dir=tmp_path / "run")
    resumed = train(generations=2, resume=tmp_path / "run", reporters=[memory])
    (replaced,) = [birth for birth in memory.all_births if birth.reason]
    assert (replaced.generation, replaced.slot, replaced.parent_uid) == (1, 1, 0)
    assert [agent.index for agent in resumed] == [0, replaced.uid]


def test_divergence_of_all_members_each_alone_on_its_process_is_one_error():
    def all_gather(own):
        return [own, {"replacements": [], "unreplaced": [1]}]

    members = SimpleNamespace(size=2, process_group=SimpleNamespace(all_gather=all_gather))
    loop = SimpleNamespace(members=members, replacements=[], unreplaced={0})
    with pytest.raises(PopulationDivergedError, match=r"every member's loss or weights .*: lower lr"):
        TrainingLoop._sync(loop)


# -- what it costs


def fastest(function, times):
    def seconds():
        start = perf_counter()
        function()
        return perf_counter() - start

    return min(seconds() for _ in range(times))


def test_the_check_for_divergence_is_cheap():
    """Of updates of the usual size: a tiny one takes little longer than the calls of any function do."""
    envs, steps = 16, 128
    env = make_vect_envs("CartPole-v1", num_envs=envs * MEMBERS, backend="sync")
    size = {"num_envs": envs, "learn_step": envs * steps, "batch_size": 128, "update_epochs": 4}
    population = population_for(env, **size, hp_config=None)
    collector = Collector(population, VecEnvAdapter(env), PhaseTimer(("env", "act", "learn")))
    collector.reset(range(MEMBERS))
    collector.collect(steps)
    env.close()
    everybody = list(range(MEMBERS))
    rollout = collector.groups[""].experience(everybody, steps)
    update = PPOUpdate(population.cohort.stacked, hyperparams_of(population.learners), Execution())
    means = {name: torch.ones(MEMBERS) for name in "abcdefg"}
    health = fastest(lambda: update.healthy(means, torch.ones(MEMBERS, dtype=torch.bool)), 20)
    numbers = fastest(
        lambda: _check_finite(rollout, population[0].learner.encoding, collector.groups[""]._describe_row), 20
    )
    learning = fastest(lambda: population.learn(everybody, collector.groups[""].experience), 3)
    assert health + numbers <= 0.01 * learning, f"{1e6 * (health + numbers):.0f} us of {1e6 * learning:.0f}"
