"""Schedules in agents and runs: factors follow the run's progress, resume, and evolve with the value they scale."""

import shutil

import numpy as np
import pytest
import torch
import yaml
from duel_envs import Duel
from small_runs import SMALL

from agilerl_like import (
    IPPO,
    PPO,
    ConfigurationError,
    HyperparameterConfig,
    MultiAgentPopulation,
    Mutations,
    RLParameter,
    TournamentSelection,
    make_multi_agent_vect_envs,
    make_vect_envs,
    train_on_policy,
)
from agilerl_like.cli import main
from agilerl_like.envs.multi_agent.probe_envs import MULTI_AGENT_PROBES
from agilerl_like.envs.multi_agent.vec_adapter import MultiAgentVecEnvAdapter
from agilerl_like.hpo import Genome, Offspring
from agilerl_like.hpo.schedules import CHECKED_AT
from agilerl_like.learning.ppo_update import HYPERPARAM_NAMES
from agilerl_like.reporting import Callback, formatting
from agilerl_like.reporting.files import read_metrics, read_updates
from agilerl_like.training.collector import PhaseTimer
from agilerl_like.training.multi_agent_env_setup import MultiAgentCollector

ENVS = 2


def cartpole():
    return make_vect_envs("CartPole-v1", num_envs=ENVS, backend="sync")


def population_of(env, size=1, **settings):
    settings = {"seed": 1, "num_envs": ENVS, "learn_step": 32, "batch_size": 16, "lr": 1e-3} | settings
    return PPO.population(size, env.single_observation_space, env.single_action_space, **settings)


def train(env, population, max_steps=128, **options):
    return train_on_policy(
        env, pop=population, max_steps=max_steps, evo_steps=64, eval_loop=1, verbose=False, **options
    )[0]


def weights(agent):
    return torch.cat([parameter.detach().reshape(-1) for parameter in agent.network.parameters()])


def learning_rates(agent):
    """The rates of the next update, one for each learner."""
    return [learner.hyperparams()[HYPERPARAM_NAMES.index("lr")] for learner in agent.learners.values()]


def recorded(progress):
    """A schedule that records the progress at which it is evaluated."""

    def schedule(at):
        progress.append(at)
        return 1.0

    return schedule


def without_checks(progress):
    """The recorded values without those at which a function is tried whenever settings are checked."""
    found, checks = list(progress), list(CHECKED_AT)
    for start in reversed(range(len(found))):
        if found[start : start + len(checks)] == checks:
            del found[start : start + len(checks)]
    return found


def test_a_linear_learning_rate_evolves_with_its_scale():
    env = cartpole()
    agent = population_of(env, schedules={"lr": "linear", "ent_coef": "cosine"}, ent_coef=0.01)[0]
    effective = []
    for agent.progress in (0.0, 0.25, 0.5, 0.75):
        effective += learning_rates(agent)
    assert effective == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4])
    agent.progress = 0.5
    genome = Genome({**agent.genome.hyperparameters, "lr": 1.2e-3}, agent.architecture)
    child, _ = agent.make_offspring(Offspring(1, 0, 7, agent.index, 0, genome))
    assert learning_rates(child) == pytest.approx([6e-4])
    assert child.lr == 1.2e-3  # the member's own value has no factor
    assert learning_rates(agent.clone()) == learning_rates(agent) == pytest.approx([5e-4])


def test_progress_is_that_of_each_rollouts_start():
    env = cartpole()
    short, long = [], []
    # of 128 env steps, 32 are a rollout of the first member and 64 one of the second
    population = population_of(env, 2)
    population[0].schedules = {"lr": recorded(short)}
    population[1].schedules, population[1].learn_step = {"lr": recorded(long)}, 64
    train(env, population)
    assert without_checks(short) == [0, 0.25, 0.5, 0.75]
    assert without_checks(long) == [0, 0.5]


def test_a_factor_scales_the_learning_rate_itself():
    env = cartpole()
    plain, scaled, still = (
        train(env, population_of(env, **settings))[0]
        for settings in (
            {"lr": 1e-3},
            {"lr": 2e-3, "schedules": {"lr": [[0, 0.5]]}},
            {"lr": 1e-3, "schedules": {"lr": [[0, 0]]}},
        )
    )
    assert torch.equal(weights(plain), weights(scaled))
    assert torch.equal(weights(still), weights(population_of(env)[0]))
    assert not torch.equal(weights(plain), weights(still))


def test_a_run_reports_the_members_value_and_the_scheduled_one(tmp_path):
    env = cartpole()
    population = population_of(env, 2, hp_config=HyperparameterConfig(lr=RLParameter(1e-4, 1e-2)))
    population[0].schedules = {"lr": "linear"}
    train(env, population, run_dir=tmp_path)
    rows = read_metrics(tmp_path)
    assert [row["hp/lr"] for row in rows] == [1e-3] * 4
    # the factors of the updates at 0 and 1/4, then at 1/2 and 3/4 of the run, on average
    scheduled = [row["train/lr"] for row in rows]
    assert scheduled[::2] == pytest.approx([0.875e-3, 0.375e-3])
    assert np.isnan(scheduled[1::2]).all()  # the second member has no schedule


def test_a_schedule_that_a_callback_begins_is_reported_from_then_on(tmp_path):
    class Begins(Callback):
        def on_update(self, run, metrics):
            run.population[0].schedules = {"lr": [[0, 0.5]]}

    train(cartpole(), population_of(cartpole()), callbacks=[Begins()], run_dir=tmp_path, log_every="update")
    assert [row["train/lr"] for row in read_metrics(tmp_path)] == pytest.approx([5e-4] * 2)
    updates = [row["train/lr"] for row in read_updates(tmp_path)]
    assert np.isnan(updates[0])
    assert updates[1:] == pytest.approx([5e-4] * 3)


def test_the_rate_that_is_reported_is_the_one_with_which_the_update_began():
    rates, callback = [], Callback()
    callback.on_update = lambda run, metrics: rates.append(metrics[0]["lr"])
    adaptive = population_of(cartpole(), lr_schedule="kl", kl_threshold=1e-9, update_epochs=1)
    (agent,) = train(cartpole(), adaptive, callbacks=[callback])
    assert rates == pytest.approx([1e-3, 1e-3 / 1.5, 1e-3 / 1.5**2, 1e-3 / 1.5**3])
    assert agent.learner.adapted_lr == pytest.approx(1e-3 / 1.5**4)


def test_the_help_page_names_schedules(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert "--algorithm.schedules.lr linear" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["ent_coef", "clip_coef", "vf_coef"])
def test_other_coefficients_are_scaled_alike(name):
    env = cartpole()
    plain = train(env, population_of(env, **{name: 0.25}))[0]
    scaled = train(env, population_of(env, **{name: 0.5}, schedules={name: lambda progress: 0.5}))[0]
    assert torch.equal(weights(plain), weights(scaled))


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path):
    env = cartpole()

    population = population_of(
        env,
        3,
        schedules={"lr": "linear", "ent_coef": [[0, 1], [0.5, 0.2]]},
        hp_config=HyperparameterConfig(lr=RLParameter(1e-4, 1e-2)),
    )
    strategies = {"selection_strategy": TournamentSelection(2), "mutation": Mutations(rl_hp=1), "checkpoint": 64}
    whole = train(env, population, 256, run_dir=tmp_path / "whole", **strategies)
    shutil.copytree(tmp_path / "whole", tmp_path / "half")
    checkpoints = sorted((tmp_path / "half" / "checkpoints").glob("gen-*"))
    assert [path.name for path in checkpoints] == ["gen-000001", "gen-000002", "gen-000003", "gen-000004"]
    for later in checkpoints[2:]:
        shutil.rmtree(later)
    resumed = train(env, None, 256, resume=tmp_path / "half", **strategies)
    for one, other in zip(whole, resumed, strict=True):
        assert one.lr == other.lr
        assert one.schedules == other.schedules
        assert torch.equal(weights(one), weights(other))


def test_the_name_of_a_function_that_is_not_registered_is_refused_before_a_run(tmp_path):
    with pytest.raises(ConfigurationError, match=r"schedules\.lr='own:halved' is unknown; allowed are constant"):
        population_of(cartpole(), schedules={"lr": "own:halved"})


def test_a_function_is_taken_from_the_population_that_resumes(tmp_path):
    env = cartpole()
    schedules = {"lr": lambda progress: 1 - progress / 2}
    train(env, population_of(env, schedules=schedules), 128, run_dir=tmp_path / "run")
    with pytest.raises(
        ConfigurationError, match=r"schedules\.lr='.*<lambda>' is a function, which a file cannot store"
    ):
        train(env, None, 256, resume=tmp_path / "run")
    resumed = train(env, population_of(env, schedules=schedules), 256, resume=tmp_path / "run")
    assert resumed[0].schedules == schedules
    assert PPO.load(tmp_path / "run" / "best").schedules["lr"].endswith("<lambda>")  # it may still be evaluated


def test_schedules_of_a_team_are_those_of_its_learners():
    env = make_multi_agent_vect_envs(MULTI_AGENT_PROBES["EarlyDeath"].make, 2, backend="sync")
    team = IPPO(env.single_observation_spaces, env.single_action_spaces, schedules={"lr": "linear"}, lr=1e-3)
    team.progress = 0.75
    assert learning_rates(team) == [2.5e-4] * len(team.learners)
    assert learning_rates(team.clone()) == [2.5e-4] * len(team.learners)


@pytest.mark.parametrize(("name", "factor"), [("lr", 10.0), ("vf_coef", 0.0)])
def test_a_team_reports_scheduled_values_without_the_factors_of_its_groups(name, factor):
    team, report = report_of_duel(schedules={name: [[0, 0.5]]}, group_factors={name: {"red": factor}})
    own = getattr(team, name)
    assert float(report[name]) == pytest.approx(own / 2)
    assert formatting.scheduled({name: own}, {name: float(report[name])}).endswith(" (factor 0.5)")


def test_a_team_reports_adapted_rates_without_the_factors_of_its_groups():
    team, report = report_of_duel(lr_schedule="kl", group_factors={"lr": {"red": 10.0}})
    assert float(report["lr"]) == pytest.approx(team.lr)  # of the first epoch; with the factor it were 5.5 times that


def report_of_duel(**settings):
    """Return a team with two groups, and the report of its first update."""
    env = make_multi_agent_vect_envs(Duel, ENVS, backend="sync")
    spaces = env.single_observation_spaces, env.single_action_spaces
    team = IPPO(*spaces, seed=1, num_envs=ENVS, learn_step=8, batch_size=8, lr=1e-4, net_config=SMALL, **settings)
    teams, timer = MultiAgentPopulation([team]), PhaseTimer(("env", "act", "learn"))
    collector = MultiAgentCollector(teams, MultiAgentVecEnvAdapter(env), timer)
    collector.reset([0])
    collector.collect(8 // ENVS)
    return team, collector.learn()[0]


def test_an_agent_without_schedules_is_saved_as_before():
    env = cartpole()
    assert "schedules" not in population_of(env)[0].to_documents()[0]["settings"]
    document = population_of(env, schedules={"lr": "linear"})[0].to_documents()[0]
    assert document["settings"]["schedules"] == {"lr": "linear"}


def test_an_invalid_schedule_is_one_configuration_error():
    env = cartpole()
    with pytest.raises(ConfigurationError, match=r"^schedules\.lr='linaer' is unknown; did you mean 'linear'"):
        population_of(env, schedules={"lr": "linaer"})
    agent = population_of(env, schedules={"lr": lambda progress: 1.0})[0]
    agent.schedules = {"lr": [[0, -1]]}
    with pytest.raises(ConfigurationError, match=r"schedules\.lr: factor=-1 in point \[0, -1\]; allowed are finite"):
        agent.check()


def test_a_configuration_names_schedules(tmp_path, capsys):
    file = tmp_path / "run.yaml"
    settings = {
        "environment": {"id": "CartPole-v1", "num_envs": ENVS, "backend": "sync"},
        "algorithm": {"learn_step": 32, "batch_size": 16, "schedules": {"lr": "linear"}},
        "population": {"size": 2},
        "training": {"max_steps": 64, "evo_steps": 64, "eval_loop": 1},
        "run": {"dir": str(tmp_path), "name": "run", "plot": False},
    }
    file.write_text(yaml.safe_dump(settings))
    points = "[[0, 1], [1, 0.1]]"
    assert main(["train", str(file), "--algorithm.schedules.clip_coef", points]) == 0
    written = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert written["algorithm"]["schedules"] == {"clip_coef": [[0.0, 1.0], [1.0, 0.1]], "lr": "linear"}
    assert PPO.load(tmp_path / "run").schedules == {"clip_coef": ((0.0, 1.0), (1.0, 0.1)), "lr": "linear"}
    capsys.readouterr()
    assert main(["train", str(file), "--algorithm.schedules.lr", "linaer"]) == 2
    assert "algorithm.schedules.lr='linaer' is unknown; did you mean 'linear'" in capsys.readouterr().err
    assert main(["train", str(file), "--algorithm.schedules.gamma", "linear"]) == 2
    assert "algorithm.schedules='gamma' is unknown; allowed are: clip_coef" in capsys.readouterr().err
