"""`train_off_policy` with DQN: runs, exact resume with a saved memory, refilling without, arguments, configurations."""

import math
import pickle
import warnings
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from small_runs import SMALL, Records, StopAfter

from agilerl_like import (
    DDPG,
    DQN,
    PPO,
    SAC,
    TD3,
    HyperparameterConfig,
    Mutations,
    OpenAIES,
    Population,
    RLParameter,
    TournamentSelection,
    make_vect_envs,
    train_off_policy,
    train_on_policy,
)
from agilerl_like.config import load
from agilerl_like.errors import ConfigurationError
from agilerl_like.reporting.callback import Callback
from agilerl_like.saved_runs import Run
from agilerl_like.training.collector import PhaseTimer
from agilerl_like.training.env_setup import SingleAgentEnvSetup

SETTINGS = {
    "net_config": SMALL,
    "num_envs": 4,
    "seed": 2,
    "batch_size": 16,
    "learn_step": 4,
    "learning_starts": 40,
    "lr": 1e-3,
    "memory_size": 200,
}
RUN = {"max_steps": 320, "evo_steps": 80, "eval_loop": 1, "eval_steps": 30, "verbose": False, "checkpoint": 160}


pytestmark = pytest.mark.usefixtures("empty_folder")


class Countdown(gymnasium.Env):
    """Ends after at most eight steps; the reward is the action."""

    observation_space, action_space = gymnasium.spaces.Box(0.0, 1.0, (2,)), gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(3, 9))
        return self._seen(), {}

    def step(self, action):
        self.left -= 1
        ended, is_late = self.left == 0, bool(self.np_random.integers(2))
        return self._seen(), float(action), ended and not is_late, ended and is_late, {}

    def _seen(self):
        return self.np_random.random(2).astype("float32")


def make(mode="NEXT_STEP", envs=4):
    return gymnasium.vector.SyncVectorEnv(
        [Countdown] * envs, autoreset_mode=getattr(gymnasium.vector.AutoresetMode, mode), copy=False
    )


def population(size=2, **settings):
    return DQN.population(size, Countdown.observation_space, Countdown.action_space, **{**SETTINGS, **settings})


def evolution():
    return {
        "selection_strategy": TournamentSelection(tournament_size=2, elitism=True),
        "mutation": Mutations(no_mutation=0.3, architecture=0.4, parameters=0.2, activation=0.1, rl_hp=0.0),
    }


def tensors_of(pop):
    return [member.to_documents()[1] for member in pop]


def assert_equal(one, other):
    for left, right in zip(tensors_of(one), tensors_of(other), strict=True):
        assert left.keys() == right.keys()
        assert all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize(("memory", "stop"), [("own", 3), ("shared", 2)])  # after a checkpoint, and at one
def test_a_resumed_run_with_its_memory_is_the_uninterrupted_one(tmp_path, memory, stop):
    settings = {"save_memory": True, "memory": memory}
    if memory == "shared":
        settings |= {"normalize_observation": True, "learn_step": 12}  # three vector steps; checkpoints follow each 40
    whole, _ = train_off_policy(make(), pop=population(**settings), run_dir=tmp_path / "whole", **RUN, **evolution())
    part = {**RUN, **evolution(), "run_dir": tmp_path / "part"}
    train_off_policy(make(), pop=population(**settings), callbacks=[StopAfter(stop)], **part)
    newest = sorted((tmp_path / "part" / "checkpoints").iterdir())
    kept = newest[0] if stop == 3 else newest[-1]
    for folder in newest:  # as if the process had been killed: the last save of a stopped run is its end
        if folder != kept:
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()
    del part["run_dir"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resumed, _ = train_off_policy(make(), pop=population(**settings), resume=tmp_path / "part", **part)
    assert_equal(whole, resumed)
    assert whole.fitness == resumed.fitness


def test_without_its_memory_a_resumed_run_refills_it_and_warns(tmp_path, capsys):
    part = {**RUN, "run_dir": tmp_path / "run"}
    train_off_policy(make(), pop=population(), callbacks=[StopAfter(3)], **part)
    assert not [*tmp_path.glob("run/checkpoints/*/memory-*")]
    del part["run_dir"]
    resumed, _ = train_off_policy(make(), pop=population(), resume=tmp_path / "run", **{**part, "verbose": True})
    assert "members refill theirs before they learn" in "".join(capsys.readouterr())
    # a gradient step in each of 320 / 4 vector steps, but for the first 9 of the run and those after the restart
    assert [member.learner.updates for member in resumed] == [80 - 2 * 9] * 2


def test_members_take_the_envs_that_are_given(capsys):
    pop, _ = train_off_policy(make(envs=3), pop=population(num_envs=1), **{**RUN, "max_steps": 90, "verbose": True})
    assert "2 members with 3 envs each" in capsys.readouterr().out.replace("\n", " ")
    assert pop[0].num_envs == 3


class ReplaySteps(Callback):
    """Reads the steps in the replay at the end of a run."""

    def on_run_end(self, run, summary):
        self.steps = run.population.learners.replay.steps


def test_the_replay_outlives_checkpoints_and_not_the_run():
    pop, replay = population(1), ReplaySteps()
    train_off_policy(make(), pop=pop, callbacks=[replay], **RUN)
    assert replay.steps == 200 // 4  # full, although the envs were reset every 160 steps
    assert pop.learners.replay is None
    pickle.dumps(pop)  # without the envs
    # a gradient step for each vector step of 4 envs, once 40 env steps are stored
    assert pop[0].learner.updates == (320 - 40) // 4 + 1


def stored_of(run):
    """Return copies of what the replay of a run holds, place by place."""
    states = map(run.population.learners.replay.state_of, range(len(run.population)))
    return [{name: tensor.clone() for name, tensor in state.items()} for state in states]


class ReplaysOfReplaced(Callback):
    """Collects what the replay holds of each replaced member, before and after an offspring takes its place."""

    def __init__(self):
        self.found = []

    def on_generation(self, run, record):
        self.before = stored_of(run)

    def on_offspring(self, run, offspring):
        slots = [one.slot for one in offspring if one.generation and not one.survives]
        self.found += [(self.before[slot], stored_of(run)[slot]) for slot in slots]


def test_an_offspring_takes_over_the_replay_of_the_member_that_it_replaces():
    replays = ReplaysOfReplaced()
    train_off_policy(make(), pop=population(2), callbacks=[replays], **RUN, **evolution())
    assert len(replays.found) == 3  # the worse member after each generation but the last
    for before, after in replays.found:
        assert before["valid"].any()
        torch.testing.assert_close(after, before, rtol=0, atol=0)


def test_each_run_begins_with_an_empty_replay():
    brief = {**RUN, "max_steps": 80}
    pop, _ = train_off_policy(make(), pop=population(1), **brief)
    copies = [member.clone() for member in pop]  # without the replay of the run
    again, fitness = train_off_policy(make(), pop=pop, **brief)
    others, its_fitness = train_off_policy(make(), pop=copies, **brief)
    assert_equal(again, others)
    assert fitness == its_fitness


class Warnings(Callback):
    """Collects the warnings of a run."""

    def __init__(self):
        self.found = []

    def on_warning(self, text):
        self.found.append(text)


@pytest.mark.parametrize("kind", [DQN, TD3, DDPG, SAC])
def test_a_second_run_of_trained_members_warns_that_the_replay_begins_empty(kind):
    env = make() if kind is DQN else make_vect_envs("Pendulum-v1", num_envs=4)
    pop = kind.population(2, env.single_observation_space, env.single_action_space, **SETTINGS)
    expected = [[], [f"member {pop[0].index} has learned before, and its replay begins empty"]]
    for texts in expected:
        warned = Warnings()
        train_off_policy(env, pop=pop, callbacks=[warned], **{**RUN, "max_steps": 80})
        found = [text for text in warned.found if "learned before" in text]
        assert [text.partition(":")[0] for text in found if "eps_start" not in text] == texts
        assert len(found) == len(texts) * (2 if kind is DQN else 1)  # its exploration begins again, too


def test_a_run_warns_of_trained_members_that_are_on_another_process_and_records_their_steps():
    env, brief, records = make_vect_envs(Countdown, num_envs=4, backend="sync"), {**RUN, "max_steps": 80}, Records()
    pop = population()
    (trained,), _ = train_off_policy(env, pop=pop[1], **brief)
    train_off_policy(env, pop=[pop[0], trained], processes=2, reporters=[records], **brief)
    found = [text.partition(":")[0] for text in records.warnings if "learned before" in text]
    assert found == [
        "member 1 has learned before, and its replay begins empty",
        "member 1 has learned before, and the share of random actions begins again at eps_start=1; with "
        "agent.eps_start = agent.eps_end it stays 0.05",
    ]
    assert records.run.steps_before == 80


def collected(members, slots, mode):
    """Return members after 30 vector steps and as many gradient steps in the envs of their slots."""
    pop = Population(members)
    setup = SingleAgentEnvSetup(make(mode, 4 * len(members)))
    collector = setup.make_collector(pop, setup.adapt(setup.env), PhaseTimer(("env", "act", "learn")))
    collector.reset(slots)
    for step in range(40):
        for member in pop:
            member.progress = step / 40
        collector.collect(1)
        collector.learn()
    return pop


def unlike_members(**settings):
    """Return five members: the first two differ in gamma alone, the others in settings that a computation has once."""
    members = list(population(5, n_step=2, **settings))
    members[1].gamma, members[2].batch_size, members[3].double, members[4].n_step = 0.5, 8, False, 1
    members[3].lr = 1e-2  # so that network and target soon choose other actions
    return members


@pytest.mark.parametrize("per_member", [False, True])
@pytest.mark.parametrize(("mode", "norm"), [("SAME_STEP", False), ("NEXT_STEP", "running")])
def test_members_collect_and_learn_together_as_alone(mode, norm, per_member):
    settings = {"per_member": per_member, "normalize_observation": norm}
    tolerance = {"rtol": 0, "atol": 0} if per_member else {"rtol": 1e-4, "atol": 1e-5}
    together = collected(unlike_members(**settings), range(5), mode)
    for member, other in zip(together, unlike_members(**settings), strict=True):
        (alone,) = collected([other], [other.index], mode)
        assert alone.learner.updates == member.learner.updates == 31
        torch.testing.assert_close(member.network.target_pairs(), alone.network.target_pairs(), **tolerance)


def test_observations_are_normalised_by_the_statistics_of_the_members_own():
    pop = collected(list(population(2, normalize_observation=True)), range(2), "NEXT_STEP")
    replay = pop.learners.replay
    assert replay.steps == 40
    assert not replay.valid[:, :40].all()  # the steps in which envs were reset do not count
    for place, member in enumerate(pop):
        seen = replay.observations[place, :40][replay.valid[place, :40]]
        norm = member.network.observation_norm
        assert norm.count.item() == len(seen)
        torch.testing.assert_close(norm.mean, seen.mean(0))
        torch.testing.assert_close(norm.var, seen.var(0, correction=0))
        x = member.learner.normalize(seen[:5].numpy())
        torch.testing.assert_close(x, (seen[:5] - norm.mean) / norm.var.sqrt())
        clone = member.clone()
        assert torch.equal(clone.network.observation_norm.mean, norm.mean)


class ValidRows(Callback):
    """Counts the rows with an action in the replay at the end of a run."""

    def on_run_end(self, run, summary):
        self.found = int(run.population.learners.replay.valid.sum())


def test_statistics_count_the_observations_of_refilled_replays_and_interrupted_rollouts():
    pop, rows = population(1, normalize_observation=True, learn_step=12, memory_size=500), ValidRows()
    for _ in range(2):
        before = pop[0].network.observation_norm.count.item()
        # rollouts of three vector steps, which the checkpoints at steps 40 and 80 interrupt: the last one ends at 101
        train_off_policy(make(), pop=pop, callbacks=[rows], **{**RUN, "max_steps": 404})
        assert pop[0].steps[-1] % 404 == 0
        assert pop[0].network.observation_norm.count.item() - before == rows.found


class Rates(Callback):
    """Collects the learning rates of all updates that are reported."""

    def __init__(self):
        self.found = []

    def on_update(self, context, metrics):
        self.found += [its["lr"] for its in metrics.values()]


def test_a_schedule_is_a_factor_on_the_members_own_rate():
    pop, rates = population(1, schedules={"lr": "linear"}), Rates()
    train_off_policy(make(), pop=pop, callbacks=[rates], **{**RUN, "max_steps": 400})
    # gradient step 64 follows vector step 73 (the first 9 are without), whose rollout began at step 72 of 100
    assert rates.found == pytest.approx([1e-3 * (1 - 72 / 100)])


class WithoutProgress(Callback):
    """Takes the progress of all members after a generation, as in agents that come from another process."""

    def __init__(self):
        self.found = []

    def on_generation(self, context, record):
        for member in context.population:
            member.progress = 0.0

    def on_step(self, context):
        self.found.append({member.progress for member in context.population})


def test_exploration_does_not_depend_on_where_a_member_comes_from():
    callback = WithoutProgress()
    train_off_policy(make(), pop=population(2), callbacks=[callback], **{**RUN, "max_steps": 160})
    # learning follows each of 40 vector steps, from what began one step before; the 21st is of another generation
    assert callback.found == [{max(0, step - 1) * 4 / 160} for step in range(40)]


class ExplorationOfTheLast(Callback):
    """Records the epsilon of the last member at every step."""

    def __init__(self):
        self.found = []

    def on_step(self, context):
        self.found.append(context.population[-1].epsilon)


def test_exploration_does_not_depend_on_the_other_members_of_the_process():
    found = []
    for learn_steps in ([16], [4, 16]):
        pop, callback = population(len(learn_steps), eps_share=1.0), ExplorationOfTheLast()
        for member, learn_step in zip(pop, learn_steps, strict=True):
            member.learn_step = learn_step
        train_off_policy(make(), pop=pop, callbacks=[callback], **{**RUN, "evo_steps": 72})
        found.append(callback.found)
    alone, beside_another = found
    assert alone == beside_another
    assert len({*alone}) > 10


def test_agilerls_arguments_set_the_members_settings():
    pop = population(2)
    with pytest.raises(
        ConfigurationError, match="learning_starts=500 is more than 320, the env steps at the last update of"
    ):
        train_off_policy(
            make(),
            "Countdown",
            "DQN",
            pop,
            SimpleNamespace(max_size=np.int64(3000)),
            learning_delay=500,
            eps_start=0.8,
            eps_end=0.2,
            eps_decay=0.99,
            n_step_memory=SimpleNamespace(n_step=3),
            **RUN,
        )
    member = pop[1]
    assert (member.memory, member.memory_size, member.learning_starts, member.n_step) == ("shared", 1500, 500, 3)
    # 0.8 * 0.99**138 = 0.2, and 138 steps of 4 envs are more than the run
    assert (member.eps_start, member.eps_end, member.eps_share) == (0.8, 0.2, 1.0)


def space_limited():
    return make_vect_envs("CartPole-v1", num_envs=4)


class FixedEnvs(gymnasium.vector.VectorWrapper):
    """Envs that cannot be made again."""


class Filled(SimpleNamespace):
    """A replay of another system, with transitions."""

    def __len__(self):
        return 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"memory": "theirs"}, "memory='theirs'"),
        ({"memory": 0}, "memory=0; allowed are None, 'own', 'shared'"),
        ({"memory": True}, "memory=True; allowed are None, 'own', 'shared'"),
        ({"memory": Filled(max_size=100)}, "memory=Filled holds 7 transitions, which a run does not read"),
        ({"n_step_memory": "foo"}, "n_step_memory='foo'; allowed are None and an object with an n_step"),
        ({"eps_decay": 1.0}, "eps_decay=1.0; allowed are numbers between 0 and 1"),
        ({"eps_decay": "0.99"}, "eps_decay='0.99'; allowed are numbers between 0 and 1"),
        ({"learning_delay": 10**6}, "learning_starts=1000000 is more than memory_size=200"),
        ({"eps_decay": 0.9, "max_steps": 0}, "max_steps=0 must be a positive integer"),
        ({"pop": 5}, "pop=5; allowed are a population, an agent, and a list of agents"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        train_off_policy(make(), **{"pop": population(), **RUN, **arguments})


def test_settings_that_are_given_as_text_are_numbers_in_the_run():
    pop, _ = train_off_policy(make(), pop=population(1), learning_delay="60", eps_start="0.9", eps_decay=0.99, **RUN)
    assert (pop[0].learning_starts, pop[0].eps_start) == (60, 0.9)


def test_settings_are_checked_for_the_envs_of_the_run():
    """Agents that are made without num_envs have another one until then."""
    env = make_vect_envs("CartPole-v1", num_envs=8, backend="sync")
    spaces = env.single_observation_space, env.single_action_space
    pop = DQN.population(1, *spaces, seed=0, net_config=SMALL, n_step=10, memory_size=40, learning_starts=8)
    with pytest.raises(ConfigurationError, match="n_step=10 is more than the 5 steps of each of 8 envs"):
        train_off_policy(env, pop=pop, max_steps=400, evo_steps=200, verbose=False)
    strategies = OpenAIES.population(2, *spaces, seed=0, net_config=SMALL)
    train_on_policy(env, pop=strategies, max_steps=600, evo_steps=200, eval_steps=5, verbose=False)
    with pytest.raises(ConfigurationError, match="max_steps=60 is less than 64, the 8 steps of num_envs=8"):
        train_on_policy(env, pop=strategies, max_steps=60, evo_steps=30, verbose=False)


@pytest.mark.parametrize(
    "refused", [{"memory": 100, "learning_delay": 150}, {"eps_decay": 2.0}, {"eps_decay": "0.9"}, {"n_step_memory": 5}]
)
def test_arguments_that_are_refused_leave_the_members_settings(refused):
    pop = population()
    before = [member.settings() for member in pop]
    with pytest.raises(ConfigurationError):
        train_off_policy(make(), pop=pop, **{**RUN, "eps_end": 0.2, **refused})
    assert [member.settings() for member in pop] == before


def test_every_update_is_logged(tmp_path):
    run = {**RUN, "max_steps": 80, "run_dir": tmp_path / "run"}
    pop, _ = train_off_policy(make(), pop=population(), log_every="update", **run)
    found = [(row["slot"], row["update"], row["env_steps"]) for row in Run.open(tmp_path / "run").updates()]
    assert found == [(slot, update, 36 + 4 * update) for update in range(1, 12) for slot in (0, 1)]
    assert [member.learner.updates for member in pop] == [11, 11]
    assert all(len(member.learner.recent_observations) == 0 for member in pop)  # as without the log


def test_an_algorithm_without_epsilon_refuses_its_decay():
    actions = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    pop = TD3.population(1, Countdown.observation_space, actions, net_config=SMALL, num_envs=4)
    with pytest.raises(ConfigurationError, match=r"eps_decay=0\.995 is no setting of TD3; leave it out"):
        train_off_policy(make(), pop=pop, eps_decay=0.995, **RUN)


def test_epsilon_falls_by_the_envs_of_each_member():
    """The rows of an env that cannot be made again are divided among the members."""
    shares = []
    for env, size in ((make(), 2), (FixedEnvs(make()), 1), (FixedEnvs(make()), 2)):
        pop = population(size, num_envs=env.num_envs)
        options = {"eval_env": make(), "eps_start": 1.0, "eps_end": 0.5, "eps_decay": 0.9}
        train_off_policy(env, pop=pop, **{**RUN, "max_steps": 80, "checkpoint": None}, **options)
        shares.append(pop[0].eps_share)
    decay = math.log(0.5) / math.log(0.9)
    assert shares == pytest.approx([decay * 4 / 80, decay * 4 / 80, decay * 2 / 80])


def test_a_run_with_decay_continues_with_a_larger_budget(tmp_path):
    options = {"eps_start": 1.0, "eps_end": 0.5, "eps_decay": 0.9}
    train_off_policy(make(), run_dir=tmp_path / "run", **{**RUN, **options, "pop": population(), "max_steps": 160})
    resumed = {**RUN, **options, "pop": population(), "max_steps": 240}
    pop, _ = train_off_policy(make(), resume=tmp_path / "run", **resumed)
    assert pop[0].steps[-1] == 240
    assert pop[0].eps_share == pytest.approx(math.log(0.5) / math.log(0.9) * 4 / 160)


@pytest.mark.parametrize(
    "argument",
    [{"memory": "shared"}, {"learning_delay": 5}, {"eps_end": 0.5}, {"eps_decay": 0.9}],
    ids=lambda argument: next(iter(argument)),
)
def test_settings_of_members_need_members(tmp_path, argument):
    message = f"{next(iter(argument))}=.* is a setting of members, and pop is missing"
    with pytest.raises(ConfigurationError, match=message):
        train_off_policy(make(), resume=tmp_path, **RUN, **argument)


def test_members_may_come_from_an_iterator():
    agents = [DQN(Countdown.observation_space, Countdown.action_space, index=index, **SETTINGS) for index in range(2)]
    trained, _ = train_off_policy(make(), pop=iter(agents), learning_delay=60, **{**RUN, "max_steps": 80})
    assert [agent.learning_starts for agent in trained] == [60, 60]


def test_on_policy_members_are_refused():
    pop = PPO.population(1, Countdown.observation_space, Countdown.action_space, net_config=SMALL)
    with pytest.raises(ConfigurationError, match="PPO, which does not learn from a replay; train_on_policy trains it"):
        train_off_policy(make(), pop=pop, **RUN)


def test_returns_longer_than_an_episode_are_refused():
    env = space_limited()
    pop = DQN.population(
        1, env.single_observation_space, env.single_action_space, n_step=501, memory_size=600, learning_starts=10
    )
    with pytest.raises(ConfigurationError, match="n_step=501 is longer than an episode, which has at most 500 steps"):
        train_off_policy(env, pop=pop, **RUN)


@pytest.mark.parametrize(
    ("name", "most", "message"),
    [
        ("n_step", 5, "n_step=5 is longer than an episode"),
        ("learning_starts", 321, "learning_starts=321 is more than 320"),
    ],
)
def test_what_evolves_beyond_the_run_or_its_episodes_is_refused_before_it_begins(name, most, message):
    ranges = HyperparameterConfig(**{name: RLParameter(1, most)})
    with pytest.raises(ConfigurationError, match=message):  # else a run whose member has drawn it is not resumed
        population(1, hp_config=ranges, memory_size=400)[0].learner.check_run(320, 4, 1)


def test_a_run_whose_last_update_precedes_learning_starts_is_refused():
    (member,) = population(1, num_envs=16, learn_step=5, learning_starts=1000, memory_size=2000)
    for max_steps in (1005, 1007):
        with pytest.raises(ConfigurationError, match=r"learning_starts=1000 is more than 992, .* at most 992"):
            member.learner.check_run(max_steps, None, 1)
    member.learner.check_run(1008, None, 1)
    ranges = HyperparameterConfig(learn_step=RLParameter(1, 48))
    (member,) = population(1, num_envs=16, learning_starts=1000, memory_size=2000, hp_config=ranges)
    with pytest.raises(ConfigurationError, match=r"more than 960, .* num_envs=16 and learn_step=48"):
        member.learner.check_run(1007, None, 1)


@pytest.mark.parametrize(("name", "value"), [("memory", "shared"), ("save_memory", True)])
def test_several_processes_keep_their_memories(name, value):
    with pytest.raises(ConfigurationError, match=f"{name}={value!r} is for one process; processes=2 allows"):
        population(**{name: value})[0].learner.check_run(320, None, 2)


def write(path, text):
    path.write_text(text)
    return str(path)


CONFIG = """
environment: {id: CartPole-v1, num_envs: 4}
algorithm: {name: DQN, learning_starts: 40, n_step: 3, memory: shared}
population: {size: 2}
hyperparameters: {lr: {min: 1.0e-4, max: 1.0e-2}}
training: {max_steps: 400, evo_steps: 200}
"""


def test_configurations_name_the_algorithm(tmp_path):
    config = load(write(tmp_path / "dqn.yaml", CONFIG))
    assert config.algorithm_class is DQN
    assert (config.algorithm.n_step, config.algorithm.memory, config.algorithm.double) == (3, "shared", True)
    late = CONFIG.replace("learning_starts: 40", "learning_starts: 401")
    with pytest.raises(ConfigurationError, match=r"learning_starts=401 is more than 400, .* of max_steps=400"):
        load(write(tmp_path / "late.yaml", late))
    with pytest.raises(ConfigurationError, match="clip_coef"):
        load(write(tmp_path / "ppo.yaml", CONFIG.replace("n_step: 3", "clip_coef: 0.2")))


@pytest.mark.parametrize(
    "path", sorted(Path(__file__).parents[2].glob("configs/[dts]*/*.yaml")), ids=lambda path: path.stem
)
def test_bundled_configurations_are_valid(path):
    assert load(str(path)).algorithm_class.algo == path.parent.name.upper()
