"""The choice of processes and threads: the decision as a function of rates, what forbids it, and equal results."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agilerl_like import PPO, PQN, OpenAIES, Population, QLearning, TournamentSelection, make_vect_envs, train_on_policy
from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo.auto import AutoSelection
from agilerl_like.reporting import Reporter
from agilerl_like.storage.checkpoint_folder import Checkpoint
from agilerl_like.training import process_choice
from agilerl_like.training.checkpoint_manager import Progress
from agilerl_like.training.env_setup import SingleAgentEnvSetup
from agilerl_like.training.process_choice import Layout, candidates, choose, choose_layout, slowdown, start_seconds
from agilerl_like.training.run_plan import NO_MUTATION, RunPlan
from agilerl_like.training.training_arguments import TrainingArguments

ONE, WIDE, TWO = Layout(1, 1), Layout(1, 2), Layout(2, 1)


class TestDecision:
    def test_several_processes_where_the_run_repays_their_start(self):
        # 1e6 steps: 100 s in one process, 4 s + 60 s in two
        assert choose({ONE: 1e4, WIDE: 1.05e4, TWO: 1e6 / 60}, 1_000_000, cores=2).layout == TWO

    def test_one_process_for_a_short_run(self):
        # 50,000 steps: 5 s in one process, 4 s + 3 s in two
        assert choose({ONE: 1e4, TWO: 1e6 / 60}, 50_000, cores=2).layout == ONE

    @pytest.mark.parametrize(("rate", "expected"), [(10_500, ONE), (12_000, WIDE)])
    def test_more_threads_must_gain_more_than_noise(self, rate, expected):
        assert choose({ONE: 1e4, WIDE: rate}, 1_000_000, cores=2).layout == expected

    def test_the_line_has_every_rate_and_the_start(self):
        line = choose({ONE: 20_000, TWO: 10_000}, 1_000_000, cores=2).line
        assert line == (
            "1 process with 1 thread: measured 20,000 steps/s, 10,000 in 2 processes with 1 thread; "
            "to start 2 processes takes about 4 s"
        )

    @given(
        rates=st.lists(st.floats(1, 1e6), min_size=3, max_size=3),
        steps=st.integers(1, 10**9),
        load=st.floats(0, 4),
    )
    def test_no_other_layout_ends_the_run_clearly_sooner(self, rates, steps, load):
        named = dict(zip((ONE, WIDE, TWO), rates, strict=True))
        seconds = {its: start_seconds(its, 2, load) + steps / rate for its, rate in named.items()}
        chosen = choose(named, steps, 2, load).layout
        assert seconds[chosen] * process_choice.MARGIN**2 <= min(seconds.values()) * 1.000001
        assert seconds[chosen] <= seconds[ONE]


@pytest.mark.parametrize(
    ("members", "cores", "threads", "expected"),
    [
        (8, 2, [1, 2], [ONE, WIDE, TWO]),
        (1, 4, [1, 4], [ONE, Layout(1, 4)]),
        (6, 4, [1, 4], [ONE, Layout(1, 4), Layout(3, 1)]),  # a fourth process would have no less than two members
        (3, 16, [1, 4], [ONE, Layout(1, 4), Layout(3, 1), Layout(3, 4)]),
        (8, 2, [2], [WIDE]),  # two processes with two threads each need four cores
    ],
)
def test_candidates_suit_members_and_cores(members, cores, threads, expected):
    assert candidates(members, cores, threads) == expected


def test_processes_slow_each_other_down_on_a_busy_machine():
    assert slowdown(TWO, cores=2, load=0) == 1
    assert slowdown(TWO, cores=2, load=2) == pytest.approx(4 / 3)  # 2/3 of a core alone, 2/4 together
    assert slowdown(Layout(4, 1), cores=2, load=0) == 2


# -- what forbids several processes


def setup(members=4, num_envs=2, env=None, **arguments):
    env = env or make_vect_envs("CartPole-v1", num_envs=num_envs)
    spaces = env.single_observation_space, env.single_action_space
    population = PPO.population(
        members, *spaces, num_envs=env.num_envs, learn_step=16, batch_size=8, seed=1, **arguments
    )
    return SingleAgentEnvSetup(env), population


def long_plan():
    return RunPlan(TrainingArguments(max_steps=10**9), None, NO_MUTATION)


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr(process_choice, "available_cores", lambda: 2)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)  # pytest-xdist's has none


@pytest.fixture
def layouts(monkeypatch, two_cores):
    """The layouts that would be measured; the last of them is twice as fast."""
    seen = []

    def measure(env_setup, population, given):
        seen.extend(given)
        return {layout: 1000.0 * (1 + (layout == given[-1])) for layout in given}, 0.0

    monkeypatch.setattr(process_choice, "measure", measure)
    return seen


def test_a_number_is_kept(layouts):
    env_setup, population = setup()
    assert choose_layout(env_setup, population, long_plan(), processes=3).layout.processes == 3
    assert choose_layout(env_setup, population, long_plan(), threads=1).layout == TWO
    assert layouts == [ONE, TWO]


def test_several_processes_refuse_a_population_on_one_of_several_gpus(monkeypatch):
    env_setup, population = setup()
    monkeypatch.setattr(type(population), "device", torch.device("cuda:1"))
    with pytest.raises(ConfigurationError, match="device='cuda:1' is a single GPU; allowed for several processes"):
        choose_layout(env_setup, population, long_plan(), processes=2)
    assert choose_layout(env_setup, population, long_plan(), processes=1).layout.processes == 1


def test_members_of_a_checkpoint_are_loaded_on_the_device_of_the_run(layouts, monkeypatch, tmp_path):
    identity = {"environment": {}, "changeable": {"device": "meta"}}
    run = {"progress": Progress(next_uid=4).to_json()}
    checkpoint = Checkpoint(tmp_path, 1, {"identity": identity, "run": run}, {})
    monkeypatch.setattr(process_choice, "newest_checkpoint", lambda paths: checkpoint)
    monkeypatch.setattr(Population, "from_documents", lambda *_, device, **__: SimpleNamespace(device=device))
    choice = choose_layout(setup()[0], None, long_plan(), resume=tmp_path)
    assert (choice.layout.processes, choice.reason) == (1, "networks are on meta")


@pytest.mark.parametrize(
    ("vector_steps", "layout", "reason"),
    [(8000, ONE, "a run of 8,000 steps is short"), (4000, Layout(4, 1), "measured 2,000 steps/s")],
)
def test_the_choice_for_a_resumed_run_counts_the_members_and_steps_that_it_has_left(
    layouts, monkeypatch, tmp_path, vector_steps, layout, reason
):
    monkeypatch.setattr(process_choice, "available_cores", lambda: 8)
    env_setup, initial = setup(8, per_member=True)
    halved = setup(4, per_member=True)[1]
    monkeypatch.setattr(Population, "from_documents", lambda *_, **__: halved)
    # 8 members began with 5000 vector steps each; 4 of them were removed after 1000
    progress = Progress(next_uid=8, ticks=vector_steps, removed=4, ticks_of_removed=4000)
    checkpoint = Checkpoint(tmp_path, 1, {"run": {"progress": progress.to_json()}}, {})
    monkeypatch.setattr(process_choice, "newest_checkpoint", lambda paths: checkpoint)
    plan = RunPlan(TrainingArguments(max_steps=10_000), AutoSelection(), NO_MUTATION)
    monkeypatch.setattr(process_choice, "START_SECONDS", 0.0)
    choice = choose_layout(env_setup, initial, plan, resume=tmp_path)
    assert choice.layout == layout
    assert choice.reason.startswith(reason)


def test_a_long_run_has_two_processes(layouts):
    assert choose_layout(*setup(), long_plan()).layout == TWO
    assert layouts == [ONE, WIDE, TWO]


def test_no_more_processes_than_members_that_evolution_keeps(layouts, monkeypatch):
    monkeypatch.setattr(process_choice, "available_cores", lambda: 8)
    plan = RunPlan(TrainingArguments(max_steps=10**9), AutoSelection(), NO_MUTATION)
    assert choose_layout(*setup(8, per_member=True), plan).layout == Layout(4, 1)  # four of eight are removed
    assert choose_layout(*setup(8, per_member=True), long_plan()).layout == Layout(8, 1)
    limited = replace(plan, training_args=TrainingArguments(max_steps=10**9, max_updates=10))
    assert choose_layout(*setup(8, per_member=True), limited).layout == Layout(8, 1)
    assert [AutoSelection(halve_at=(0.2, 0.4)).least_left(size) for size in (1, 2, 3, 8, 9)] == [1, 2, 2, 2, 3]


def test_results_with_per_member_depend_on_threads_so_these_stay(layouts):
    choose_layout(*setup(per_member=True), long_plan())
    assert layouts == [ONE, TWO]


def test_nothing_is_measured_for_a_short_run(layouts):
    choice = choose_layout(*setup(), RunPlan(TrainingArguments(max_steps=5000), None, NO_MUTATION))
    assert (choice.layout, choice.line, layouts) == (ONE, "", [])
    assert "short" in choice.reason


def test_nothing_is_measured_on_one_core(layouts, monkeypatch):
    monkeypatch.setattr(process_choice, "available_cores", lambda: 1)
    assert choose_layout(*setup(), long_plan()).layout == ONE
    assert layouts == []


def test_a_launcher_has_chosen_already(layouts):
    class Launched:
        size = 2

    assert choose_layout(*setup(), long_plan(), process_group=Launched()).layout == ONE
    assert layouts == []


class TestOneProcessWhere:
    def test_the_env_cannot_be_sent(self, layouts):
        import gymnasium

        env = make_vect_envs(make_env=lambda: gymnasium.make("CartPole-v1"), num_envs=2, backend="sync")
        choice = choose_layout(*setup(env=env), long_plan())
        assert choice.layout.processes == 1
        assert layouts == [ONE, WIDE]
        assert "one process, because" in choice.line
        assert "cannot be sent" in choice.line

    def test_the_main_module_has_no_file(self, layouts, monkeypatch):
        class Notebook:
            pass

        monkeypatch.setitem(sys.modules, "__main__", Notebook())
        assert "notebook" in choose_layout(*setup(), long_plan()).line
        assert layouts == [ONE, WIDE]

    def test_there_is_one_member(self, layouts):
        assert choose_layout(*setup(members=1), long_plan()).layout == WIDE

    def test_the_env_cannot_be_made_again(self, two_cores):
        import gymnasium

        env = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 8)
        wrapped = gymnasium.wrappers.vector.RecordEpisodeStatistics(env)
        choice = choose_layout(*setup(env=wrapped), long_plan())
        assert choice.layout == ONE
        assert choice.line == ""
        assert "could be measured" in choice.reason


# -- measuring


def test_measuring_gives_a_rate_for_each_layout_and_changes_nothing(two_cores):
    env_setup, population = setup()
    before, threads = population.to_documents(), torch.get_num_threads()
    rates, load = process_choice.measure(env_setup, population, [ONE, TWO])
    assert rates.keys() == {ONE, TWO}
    assert min(rates.values()) > 0
    assert load >= 0
    after = population.to_documents()
    assert after[0] == before[0]
    assert all(torch.equal(its, after[1][name][key]) for name, of in before[1].items() for key, its in of.items())
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    ("algorithm", "env"), [(PQN, "CartPole-v1"), (OpenAIES, "CartPole-v1"), (QLearning, "FrozenLake-v1")]
)
def test_further_algorithms_are_measured(algorithm, env, two_cores, monkeypatch):
    monkeypatch.setattr(process_choice, "SAMPLE_SECONDS", 0.0)
    envs = make_vect_envs(env, num_envs=2, backend="sync")
    population = algorithm.population(2, envs.single_observation_space, envs.single_action_space, num_envs=2, seed=1)
    choice = choose_layout(SingleAgentEnvSetup(envs), population, long_plan())
    assert choice.rates.keys() == {ONE, WIDE, TWO}, choice.reason
    assert choice.line


def test_slow_environments_are_measured_with_one_member(two_cores, monkeypatch):
    monkeypatch.setattr(process_choice, "BUILD_SECONDS", 0.0)
    made = []
    env_setup, population = setup()
    original = env_setup.make_training_env
    monkeypatch.setattr(env_setup, "make_training_env", lambda *sizes: made.append(sizes) or original(*sizes))
    rates, _ = process_choice.measure(env_setup, population, [ONE, TWO])
    assert rates.keys() == {ONE, TWO}
    assert made == []


# -- the same results


class Generations(Reporter):
    def __init__(self):
        self.processes, self.layout, self.records = 0, "", []

    def on_run_begin(self, run):
        self.processes, self.layout = run.record.processes, run.record.layout

    def on_generation(self, run, generation):
        self.records.append([(member.uid, member.fitness, member.hyperparameters) for member in generation.members])


def trained(processes):
    env_setup, population = setup()
    seen = Generations()
    train_on_policy(
        env_setup,
        pop=population,
        max_steps=96,
        evo_steps=32,
        eval_loop=2,
        selection_strategy=TournamentSelection(2),
        processes=processes,
        callbacks=[seen],
        verbose=False,
    )
    return seen, env_setup


@pytest.mark.slow
def test_results_do_not_depend_on_the_choice(layouts, monkeypatch):
    monkeypatch.setattr(process_choice, "SHORT_RUN", 0)
    monkeypatch.setattr(process_choice, "START_SECONDS", 0.0)
    by_choice, _ = trained("auto")
    alone, _ = trained(1)
    assert by_choice.processes == 2
    assert by_choice.layout.startswith("2 processes with 1 thread: measured 2,000 steps/s")
    assert (alone.processes, alone.layout) == (1, "")
    assert by_choice.records == alone.records
    assert len(alone.records) == 3


@pytest.mark.parametrize("processes", ["two", 0])
def test_other_values_are_refused(processes):
    with pytest.raises(ConfigurationError, match="processes="):
        trained(processes)
