"""A run is resumed with the settings that it was begun with, or not at all; runs of a script have a config.yaml."""

import contextlib
import json
import shutil
from dataclasses import dataclass, fields, replace
from importlib.metadata import EntryPoint
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from duel_envs import Duel
from gymnasium.vector import AutoresetMode

from agilerl_like import (
    IPPO,
    PPO,
    PQN,
    ConfigurationError,
    HyperparameterConfig,
    Mutations,
    Population,
    QLearning,
    RLParameter,
    TournamentSelection,
    make_multi_agent_vect_envs,
    make_vect_envs,
    train_multi_agent_on_policy,
    train_off_policy,
    train_on_policy,
)
from agilerl_like.agilerl.hpo.mutation import Mutations as AgileRLMutations
from agilerl_like.agilerl.hpo.tournament import TournamentSelection as AgileRLTournament
from agilerl_like.algorithms.ippo import MultiAgentPopulation
from agilerl_like.cli import main
from agilerl_like.config import build, load
from agilerl_like.config.multi_agent import MultiAgentEnvironmentConfig
from agilerl_like.config.schema import NOT_SETTINGS
from agilerl_like.hpo import Explorer, with_hyperparameters
from agilerl_like.hpo.auto import AutoExplorer, AutoSelection
from agilerl_like.registry import register, registered
from agilerl_like.reporting.callback import Callback
from agilerl_like.training import on_policy
from agilerl_like.training.env_setup import SingleAgentEnvSetup
from agilerl_like.training.multi_agent_env_setup import MultiAgentEnvSetup
from agilerl_like.training.process_choice import Choice, Layout
from agilerl_like.training.run_settings import (
    _environment_of,
    _strategy_of,
    check_identity,
    environment_section,
    run_identity,
)
from agilerl_like.training.training_arguments import TrainingArguments
from agilerl_like.yaml_writer import to_yaml

SMALL = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}, "latent_dim": 8}
RANGES = HyperparameterConfig(lr=RLParameter(1e-4, 1e-2))
SCHEDULE = {"max_steps": 64, "evo_steps": 32, "checkpoint": 32, "eval_loop": 1, "eval_steps": 20}
EVOLUTION = {"selection_strategy": TournamentSelection(2), "mutation": Mutations(no_mutation=0.5, rl_hp=0.5)}


def short_pole(**kwargs):
    return gymnasium.make("CartPole-v1", max_episode_steps=9, **kwargs)


def script(run_dir=None, *, env="CartPole-v1", num_envs=2, size=2, make=None, options=None, **settings):
    """A script that trains a population; `settings` are the agents', `options` those of `train_on_policy`."""
    make = make or (lambda: make_vect_envs(env, num_envs=num_envs, backend="sync"))
    with contextlib.closing(make()) as envs:
        defaults = {"learn_step": 32, "batch_size": 16, "net_config": SMALL, "seed": 0, "hp_config": RANGES}
        pop = PPO.population(
            size,
            envs.single_observation_space,
            envs.single_action_space,
            **{**defaults, **settings},  # num_envs is left out: training sets it
        )
        return train_on_policy(
            envs, pop=pop, verbose=False, **{"run_dir": run_dir, **SCHEDULE, **EVOLUTION, **(options or {})}
        )[0]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "mine"
    script(folder)
    return folder


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "mine")


def again(run, *, options=None, **settings):
    return script(options={"resume": run, "run_dir": None, "max_steps": 96, **(options or {})}, **settings)


def test_the_same_script_resumes_its_run(run):
    assert again(run)[0].steps[-1] == 96


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"env": "Acrobot-v1"}, "environment.id='Acrobot-v1' is 'CartPole-v1' in this run"),
        ({"options": {"eval_steps": 30}}, "training.eval_steps=30 is 20 in this run"),
        ({"seed": 1}, "seed=1 is 0 in this run"),
        ({"size": 3}, "population.size=3 is 2 in this run"),
        ({"lr": 5e-4}, "algorithm.lr=0.0005 is 0.0001 in this run"),
        ({"hp_config": HyperparameterConfig(lr=RLParameter(1e-4, 1e-3))}, "hyperparameters.lr.max=0.001 is 0.01"),
        ({"hp_config": None}, r"hyperparameters=\{\} is left out in this run"),
        ({"net_config": {**SMALL, "latent_dim": 16}}, "network.latent_dim=16 is 8 in this run"),
        ({"recurrent": True}, "algorithm.recurrent=True is False in this run"),
    ],
)
def test_changed_settings_are_refused_with_both_values(run, change, message):
    before = (run / "metrics.csv").read_bytes()
    with pytest.raises(ConfigurationError, match=f"mine: .*{message}.*allowed are those that it was started with"):
        again(run, **change)
    assert (run / "metrics.csv").read_bytes() == before


def test_env_arguments_and_wrappers_are_compared(tmp_path):
    def made(**kwargs):
        return lambda: make_vect_envs("CartPole-v1", num_envs=2, backend="sync", **kwargs)

    script(tmp_path / "run")
    for change, message in (
        ({"env_kwargs": {"sutton_barto_reward": True}}, "environment.kwargs.sutton_barto_reward=True is left out"),
        ({"seeds": [1, 2]}, r"environment.seeds=\[1, 2\] is None in this run"),
        (
            {"instances": [{}, {"sutton_barto_reward": True}]},
            r"environment.instances=\[\{\}, \{.*\}\] is \[\] in this run",
        ),
        ({"wrappers": ["NormalizeReward"]}, r"environment.wrappers=\['NormalizeReward'\] is \[\]"),
        ({"training_wrappers": ["NormalizeReward"]}, r"environment.training_wrappers=\['NormalizeReward'\] is \[\]"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            again(tmp_path / "run", make=made(**change))


def test_a_drawn_seed_is_not_compared(tmp_path):
    script(tmp_path / "run", seed=None)
    for settings in ({"seed": None}, {"seed": None, "lr": 1e-4}):
        again(tmp_path / "run", **settings)
    with pytest.raises(ConfigurationError, match=r"seed=5 is \d+ in this run"):
        again(tmp_path / "run", seed=5)
    with pytest.raises(ConfigurationError, match=r"algorithm.lr=0.0005 is 0.0001 in this run"):
        again(tmp_path / "run", seed=None, lr=5e-4)


def test_settings_of_a_trained_population_are_not_compared(run):
    population = Population.load(run)
    assert population[0].steps[-1] == 64
    with contextlib.closing(make_vect_envs("CartPole-v1", num_envs=2, backend="sync")) as envs:
        train_on_policy(envs, pop=population, resume=run, verbose=False, **{**SCHEDULE, "max_steps": 96}, **EVOLUTION)


# -- runs of a script as folders


@pytest.mark.filterwarnings("ignore:.*obs.*:UserWarning")
@pytest.mark.parametrize(
    ("space", "settings"),
    [
        (gymnasium.spaces.Box(-1, 1, (3,)), {}),
        (gymnasium.spaces.Box(0, 255, (3, 8, 8), np.uint8), {"net_config": None}),
        (gymnasium.spaces.Box(-1, 1, (3,)), {"recurrent": True, "max_seq_len": 8}),
        (
            gymnasium.spaces.Dict(a=gymnasium.spaces.Discrete(3), b=gymnasium.spaces.Box(0, 1, (2,))),
            {"net_config": None},
        ),
    ],
)
def test_a_script_leaves_a_configuration_that_describes_its_members(space, settings, tmp_path):
    described = []
    for number in range(2):
        folder = tmp_path / str(number)
        if number:
            config = load(tmp_path / "0" / "config.yaml")
            settings = {**config.agent_arguments(), "hp_config": RANGES}
            assert config.population.size == 2
            assert config.training.eval_steps == 20
            assert config.mutation.explorer == EVOLUTION["mutation"]
            assert config.selection.strategy == EVOLUTION["selection_strategy"]
        settings = {key: value for key, value in settings.items() if key != "num_envs"}
        population = script(folder, make=lambda: make_vect_envs(lambda: Blind(space), num_envs=2), **settings)
        described.append([(agent.settings(), agent.architecture) for agent in population])
        text = (folder / "config.yaml").read_text()
        assert "# not in this file: environment: " in text
        (folder / "config.yaml").write_text(f"environment: {{id: CartPole-v1, num_envs: 2}}\n{text}")
    assert described[0] == described[1]


class Blind(gymnasium.Env):
    """Shows the lowest observation of a space, for five steps."""

    def __init__(self, space):
        self.observation_space, self.action_space = space, gymnasium.spaces.Discrete(2)
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        self.observation_space.seed(0)
        return self.observation_space.sample(), {}

    def step(self, action):
        self.steps += 1
        return self.observation_space.sample(), 1.0, self.steps == 5, False, {}


@pytest.mark.slow
def test_the_run_of_a_script_opens_with_the_commands(run, capsys):
    config = load(run / "config.yaml")
    assert (config.environment.id, config.environment.num_envs, config.environment.backend) == (
        "CartPole-v1",
        2,
        "sync",
    )
    assert main(["eval", str(run), "--episodes", "2"]) == 0
    assert main(["plot", str(run)]) == 0
    assert main(["resume", str(run), "--training.max-steps", "96"]) == 0
    assert Population.load(run)[0].steps[-1] == 96
    head = [line for line in (run / "config.yaml").read_text().splitlines() if line.startswith("#")]
    assert [line.split()[1] for line in head if " UTC by: " in line] == ["begun", "changed"]
    assert main(["resume", str(run), "--training.eval-steps", "30"]) == 2
    assert "training.eval_steps=30 is 20 in this run" in capsys.readouterr().err


def test_sampled_hyperparameters_are_described_as_sampled(tmp_path):
    def founders(folder):
        return [json.loads(line)["hyperparameters"] for line in (folder / "lineage.jsonl").read_text().splitlines()[:3]]

    with contextlib.closing(make_vect_envs("CartPole-v1", num_envs=2)) as envs:
        spaces = envs.single_observation_space, envs.single_action_space
        settings = {"learn_step": 32, "batch_size": 16, "net_config": SMALL, "num_envs": 2, "seed": 7}
        pop = PPO.population(3, *spaces, hp_config=RANGES, sample_hyperparameters=True, **settings)
        train_on_policy(envs, pop=pop, run_dir=tmp_path / "mine", verbose=False, **SCHEDULE)
    file = str(tmp_path / "mine" / "config.yaml")
    assert main(["train", file, "--run.dir", str(tmp_path), "--run.name", "again", "--run.plot", "false"]) == 0
    assert len({founder["lr"] for founder in founders(tmp_path / "mine")}) == 3
    assert founders(tmp_path / "again") == founders(tmp_path / "mine")


def test_what_a_file_does_not_repeat_is_a_note(tmp_path):
    """Values chosen by hand are no draws, although there are ranges; and weights that were trained are in no file."""
    with contextlib.closing(make_vect_envs("CartPole-v1", num_envs=2, backend="sync")) as envs:
        spaces = envs.single_observation_space, envs.single_action_space
        settings = {"learn_step": 32, "batch_size": 16, "net_config": SMALL, "num_envs": 2, "seed": 7}
        pop = PPO.population(2, *spaces, hp_config=RANGES, **settings)
        pop[1].lr = 5e-3
        for name in ("first", "second"):
            train_on_policy(envs, pop=pop, run_dir=tmp_path / name, verbose=False, **SCHEDULE)
    first, second = ((tmp_path / name / "config.yaml").read_text() for name in ("first", "second"))
    assert "# not in this file: algorithm: members begin with different values of lr" in first
    assert "sample_hyperparameters: false" in first
    assert "trained" not in first
    assert "# not in this file: members: they had been trained for 64 env steps before; this file makes new" in second


def test_settings_of_a_search_are_described(tmp_path):
    for name, selection in (("plain", AutoSelection()), ("own", AutoSelection(halve_at=(), warm_up=0.0))):
        script(tmp_path / name, options={"selection_strategy": selection, "mutation": AutoExplorer()})
        assert load(tmp_path / name / "config.yaml").strategy == selection
    assert "evolution: auto" in (tmp_path / "plain" / "config.yaml").read_text()


def of_env(make, train, population, **options):
    """A script with its own kind of envs and members."""

    def run(folder):
        with contextlib.closing(make()) as envs:
            train(envs, pop=population(envs), verbose=False, run_dir=folder, **{**SCHEDULE, **options})

    return run


def ppo(env, make_env=make_vect_envs, evolution=EVOLUTION, options=None, backend="sync", **settings):
    def members(envs):
        defaults = {"learn_step": 32, "batch_size": 16, "net_config": SMALL, "seed": 0, "hp_config": RANGES}
        spaces = envs.single_observation_space, envs.single_action_space
        return PPO.population(2, *spaces, num_envs=2, **{**defaults, **settings})

    return of_env(lambda: make_env(env, 2, backend=backend), train_on_policy, members, **evolution, **(options or {}))


def tables(envs):
    spaces = envs.single_observation_space, envs.single_action_space
    return QLearning.population(2, *spaces, num_envs=2, seed=0, hp_config=HyperparameterConfig(lr=RLParameter(0.1, 1)))


def action_values(envs):
    settings = {"learn_step": 32, "batch_size": 16, "net_config": SMALL, "num_envs": 2, "seed": 0}
    return PQN.population(2, envs.single_observation_space, envs.single_action_space, hp_config=RANGES, **settings)


def teams(envs):
    spaces = envs.single_observation_spaces, envs.single_action_spaces
    settings = {"learn_step": 32, "batch_size": 16, "net_config": SMALL, "num_envs": 2, "seed": 0, "hp_config": RANGES}
    return IPPO.population(2, *spaces, frozen_groups=["speaker"], critic_observation=["policy"], **settings)


ROOM = {
    "selection_strategy": AgileRLTournament(2, True, 2, eval_loop=1),
    "mutation": AgileRLMutations(0.4, 0.2, 0.2, 0.2, 0.0, 0.2),
}
SPEAKER = "mpe2.simple_speaker_listener_v4"
LISTS = {"betas": (0.9, 0.99), "lr_schedule": [[0, 1], [1, 0.1]]}
SCRIPTS = {
    "continuous actions": ppo("Pendulum-v1", evolution={"evolution": "auto"}),
    "settings that are lists": ppo("CartPole-v1", **LISTS),
    "tensors": ppo("CartPole-v1", backend="torch"),
    "action values of rollouts": of_env(
        lambda: make_vect_envs("CartPole-v1", 2), train_on_policy, action_values, **EVOLUTION
    ),
    "tables": of_env(lambda: make_vect_envs("FrozenLake-v1", 2), train_off_policy, tables, **EVOLUTION),
    "teams": of_env(lambda: make_multi_agent_vect_envs(SPEAKER, 2), train_multi_agent_on_policy, teams, **EVOLUTION),
    "AgileRL's names": ppo("CartPole-v1", evolution=ROOM),
}


class Begun(Exception):
    """Ends a script where its run begins."""


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_configuration_of_a_script_is_that_of_its_run(name, tmp_path, monkeypatch):
    def begin(env_setup, population, plan, **_):
        (tmp_path / "config.yaml").write_text(to_yaml(plan.settings))
        with contextlib.closing((found := build(load(tmp_path / "config.yaml"))).env):
            run = run_identity(env_setup, population, plan)
            again = run_identity(found.env_setup, found.population, found.plan())
        check_identity(run, again, "run", seed_is_drawn=False)
        for mine, its in ((plan.selection, found.selection), (plan.explorer, found.explorer)):
            names = {one.name for one in fields(its)} - NOT_SETTINGS
            assert all(getattr(mine, name) == getattr(its, name) for name in names)
        assert [agent.settings() for agent in population] == [agent.settings() for agent in found.population]
        raise Begun

    monkeypatch.setattr(on_policy, "train_population", begin)
    with pytest.raises(Begun):
        SCRIPTS[name](None)


def written_algorithm(monkeypatch, folder, run):
    """The algorithm's settings in config.yaml of a script, and in the identity of its checkpoints."""
    found = []

    def begin(env_setup, population, plan, **_):
        (folder / "config.yaml").write_text(to_yaml(plan.settings))
        found.append(run_identity(env_setup, population, plan)["algorithm"])
        raise Begun

    monkeypatch.setattr(on_policy, "train_population", begin)
    with pytest.raises(Begun):
        run(None)
    return load(folder / "config.yaml").algorithm, *found


@pytest.mark.parametrize(
    ("name", "value"), [("lr", np.float64(2e-4)), ("lr", np.float32(2e-4)), ("batch_size", np.int64(8))]
)
def test_attributes_of_numpy_are_written_as_numbers(name, value, tmp_path, monkeypatch):
    def members(envs):
        spaces = envs.single_observation_space, envs.single_action_space
        pop = PPO.population(1, *spaces, learn_step=32, batch_size=16, net_config=SMALL, num_envs=2, seed=0)
        setattr(pop[0], name, value)
        return pop

    run = of_env(lambda: make_vect_envs("CartPole-v1", 2, backend="sync"), train_on_policy, members)
    written, identity = written_algorithm(monkeypatch, tmp_path, run)
    assert getattr(written, name) == identity[name] == value.item()
    assert type(identity[name]) is type(value.item())


@pytest.mark.parametrize(
    "settings",
    [{"lr": {"speaker": np.float64(5e-3)}}, {"group_factors": {"lr": {"speaker": np.float64(5.0)}}}],
    ids=str,
)
def test_values_of_groups_of_numpy_are_written_as_numbers(settings, tmp_path, monkeypatch):
    def members(envs):
        spaces = envs.single_observation_spaces, envs.single_action_spaces
        return IPPO.population(1, *spaces, learn_step=32, batch_size=16, net_config=SMALL, num_envs=2, **settings)

    run = of_env(lambda: make_multi_agent_vect_envs(SPEAKER, 2), train_multi_agent_on_policy, members)
    written, identity = written_algorithm(monkeypatch, tmp_path, run)
    assert written.group_factors == identity["group_factors"]
    assert type(identity["group_factors"]["lr"]["speaker"]) is float


def test_the_configuration_of_a_script_has_its_options_and_notes_on_others(tmp_path, monkeypatch):
    folder, seen = tmp_path / "run", {}

    def written(run_dir, described):
        seen.update(settings=described.settings, notes=described.notes)
        raise Begun

    monkeypatch.setattr(on_policy, "_config_reporter", written)
    options = {
        "log_every": "update",
        "tensorboard": True,
        "wb": True,
        "wandb_kwargs": {"project": "poles", "name": "first"},
        "trackers": ["mlflow", {"name": "trackio", "own": object()}],
        "callbacks": [Callback()],
        "eval_env": make_vect_envs("CartPole-v1", 2),
    }

    def make():
        stepped = {"num_workers": 1, "step_timeout": 9.0, "autoreset": "NextStep"}
        return make_vect_envs("CartPole-v1", 2, backend="workers", **stepped)

    with pytest.raises(Begun):
        script(folder, make=make, options=options)
    (tmp_path / "config.yaml").write_text(to_yaml(seen["settings"]))
    found = load(tmp_path / "config.yaml")
    assert (found.environment.num_workers, found.environment.step_timeout) == (1, 9.0)
    assert found.environment.env_config.autoreset is AutoresetMode.NEXT_STEP
    assert (found.run.log_every, found.run.device) == ("update", "cpu")
    assert (found.run.tensorboard, found.run.wandb) == (True, False)
    assert found.run.trackers == ({"name": "wandb", "project": "poles"}, "mlflow")
    assert seen["notes"] == (
        "trackers: trackio, whose options cannot be written",
        "callbacks: 1 of the script's own",
        "environment: an eval_env of the script's own",
        "trackers: the name of the W&B run",
    )
    options["eval_env"].close()


def test_the_configuration_of_a_script_has_the_processes_and_threads_that_were_chosen(tmp_path, monkeypatch):
    chosen = Choice(Layout(1, 2), "measured", {Layout(1, 2): 9.0})
    monkeypatch.setattr(on_policy, "choose_layout", lambda *_, **__: chosen)
    script(tmp_path / "run", options={"processes": "auto"})
    config = load(tmp_path / "run" / "config.yaml")
    assert (config.run.processes, config.run.threads) == (1, 2)
    assert main(["resume", str(tmp_path / "run"), "--training.max-steps", "96", "--run.threads", "1", "--quiet"]) == 0
    assert load(tmp_path / "run" / "config.yaml").run.threads == 1


@pytest.mark.parametrize(
    ("own", "written"), [({}, {"device": "cpu"}), ({"device": "meta"}, {}), ({"device": "meta:0"}, {})]
)
def test_the_device_of_tensor_envs_is_written_where_it_is_not_that_of_the_run(own, written):
    with contextlib.closing(make_vect_envs("CartPole-v1", 2, backend="torch")) as env:
        env.env_config = replace(env.env_config, env_kwargs=own)
        section, notes = _environment_of(SingleAgentEnvSetup(env), torch.device("meta"))
    assert (section["kwargs"], notes) == (written, [])


def test_a_run_of_an_earlier_release_with_a_device_of_its_envs_is_resumed():
    old = {"environment": {"id": "CartPole-v1", "kwargs": {"device": "cuda"}}}
    new = {"environment": {"id": "CartPole-v1", "kwargs": {}}}
    check_identity(old, new, "run", seed_is_drawn=False)
    check_identity(new, old, "run", seed_is_drawn=False)


def test_a_setting_that_an_earlier_release_lacked_has_its_default():
    def identity(**settings):
        return {"environment": {}, "algorithm": {"name": "PPO", "lr": 1e-4, **settings}}

    for one, other in ((identity(), identity(reward_clip=None)), (identity(reward_clip=None), identity())):
        check_identity(one, other, "run", seed_is_drawn=False)
    with pytest.raises(ConfigurationError, match=r"algorithm.reward_clip=2.0 is None in this run"):
        check_identity(identity(), identity(reward_clip=2.0), "run", seed_is_drawn=False)
    with pytest.raises(ConfigurationError, match=r"algorithm.groups.a_0=.* is left out in this run"):
        check_identity(identity(), identity(groups={"a_0": "a"}), "run", seed_is_drawn=False)


@pytest.mark.parametrize(("rewards", "death", "other"), [("individual", "continue", "end"), ("sum", "end", "continue")])
def test_a_team_that_an_earlier_release_wrote_without_death_has_that_of_its_rewards(rewards, death, other):
    def identity(**settings):
        return {"environment": {}, "algorithm": {"name": "IPPO", "rewards": rewards, **settings}}

    for one, two in ((identity(), identity(death=death)), (identity(death=death), identity())):
        check_identity(one, two, "run", seed_is_drawn=False)
    with pytest.raises(ConfigurationError, match=rf"algorithm.death='{other}' is '{death}' in this run"):
        check_identity(identity(), identity(death=other), "run", seed_is_drawn=False)


def test_settings_that_are_lists_are_compared_where_the_seed_is_drawn():
    def identity(**settings):
        return {"environment": {}, "algorithm": settings, "hyperparameters": {"lr": {}}}

    run = identity(lr=[0.1, 0.2], betas=[0.9, 0.99])
    check_identity(run, identity(lr=[0.3, 0.4], betas=[0.9, 0.99]), "run", seed_is_drawn=True)
    with pytest.raises(ConfigurationError, match=r"algorithm.betas=\[0.9, 0.999\] is \[0.9, 0.99\] in this run"):
        check_identity(run, identity(lr=[0.3, 0.4], betas=[0.9, 0.999]), "run", seed_is_drawn=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_command_continues_the_run_of_a_script_with_births(name, tmp_path):
    SCRIPTS[name](tmp_path / "run")
    assert "not in this file" not in (tmp_path / "run" / "config.yaml").read_text()
    options = ("--training.max-steps", "96", "--run.plot", "false", "--run.report", "false", "--quiet")
    assert main(["resume", str(tmp_path / "run"), *options]) == 0
    lines = (tmp_path / "run" / "lineage.jsonl").read_text().splitlines()
    assert [json.loads(line)["generation"] for line in lines] == [0, 0, 1, 1, 2, 2]


def test_an_env_that_cannot_be_described_is_left_out(tmp_path, capsys):
    script(tmp_path / "run", make=lambda: make_vect_envs(lambda: gymnasium.make("CartPole-v1"), num_envs=2))
    assert main(["eval", str(tmp_path / "run")]) == 2
    assert "env is missing: " in (message := capsys.readouterr().err)
    assert "allowed is --env ID" in message
    assert main(["eval", str(tmp_path / "run"), "--env", "CartPole-v1", "--episodes", "2"]) == 0
    again(tmp_path / "run", make=lambda: make_vect_envs(lambda: gymnasium.make("CartPole-v1"), num_envs=2))


def test_a_function_with_an_import_path_is_written_as_one(tmp_path):
    script(tmp_path / "run", env=short_pole)
    assert load(tmp_path / "run" / "config.yaml").environment.id == "test_run_settings:short_pole"
    with pytest.raises(ConfigurationError, match=r"environment.id='CartPole-v1' is 'test_run_settings:short_pole'"):
        again(tmp_path / "run")


def same(some, other):
    return all(torch.equal(a, b) for a, b in zip(some.parameters(), other.parameters(), strict=True))


def test_checkpoints_and_run_folders_load_as_populations_and_agents(run):
    best, last = PPO.load(run / "best"), Population.load(run / "population")
    newest = max((run / "checkpoints").iterdir())
    assert same(PPO.load(run).network, best.network)
    assert same(PPO.load(newest).network, best.network)
    for population in (Population.load(newest), Population.load(run)):
        assert all(same(one.network, other.network) for one, other in zip(population, last, strict=True))
    last[0].load_checkpoint(newest)
    assert same(last[0].network, best.network)


def test_the_configuration_of_a_multi_agent_run(tmp_path):
    from_file = tmp_path / "run"
    with contextlib.closing(make_multi_agent_vect_envs("mpe2.simple_speaker_listener_v4", num_envs=2)) as env:
        spaces = env.single_observation_spaces, env.single_action_spaces
        teams = IPPO.population(2, *spaces, net_config=SMALL, learn_step=32, batch_size=16, num_envs=2, seed=0)
        train_multi_agent_on_policy(env, pop=teams, verbose=False, run_dir=from_file, **SCHEDULE, **EVOLUTION)
        config = load(from_file / "config.yaml")
        assert config.environment.id == "mpe2.simple_speaker_listener_v4"
        again = IPPO.population(2, *spaces, **config.agent_arguments())
        assert [team.architecture for team in again] == [teams[0].architecture] * 2
        assert again[0].groups == teams[0].groups
        other = IPPO.population(2, *spaces, **{**config.agent_arguments(), "rewards": "mean"})
        with pytest.raises(ConfigurationError, match=r"algorithm\.rewards='mean' is 'individual' in this run"):
            train_multi_agent_on_policy(env, pop=other, verbose=False, resume=from_file, **SCHEDULE)
    assert main(["eval", str(from_file), "--episodes", "2"]) == 0
    assert len(MultiAgentPopulation.load(max((from_file / "checkpoints").iterdir()))) == 2


def test_the_envs_of_teams_are_described_as_they_were_given():
    wrapper, instances = "pettingzoo.utils.wrappers:BaseParallelWrapper", [{"steps": 3}, {"id": "duel_envs:Duel"}]
    with contextlib.closing(
        make_multi_agent_vect_envs(
            "duel_envs:Duel", 2, backend="sync", steps=5, training_wrappers=wrapper, instances=instances
        )
    ) as env:
        section = environment_section(MultiAgentEnvSetup(env))
        assert section["instances"] == instances
        assert section["training_wrappers"] == [wrapper]
        del section["name"]
        again = MultiAgentEnvironmentConfig(**section, num_envs=2, backend="sync").env_config
        assert (again.instances, again.training_wrappers) == (
            env.env_config.instances,
            env.env_config.training_wrappers,
        )


def duel_on(grid, steps):
    """Make an env whose arguments cannot be compared by `!=`."""
    return Duel(steps=steps)


def test_instances_of_teams_may_have_arrays_as_common_arguments():
    with contextlib.closing(
        make_multi_agent_vect_envs(duel_on, 2, backend="sync", grid=np.zeros(2), steps=5, instances=[{"steps": 3}])
    ) as env:
        assert environment_section(MultiAgentEnvSetup(env))["instances"] == [{"steps": 3}]


# -- an edited config.yaml


@pytest.mark.parametrize(
    ("line", "edited", "message"),
    [
        ("  id: CartPole-v1", "  id: Acrobot-v1", "environment.id='Acrobot-v1' is 'CartPole-v1' in this run"),
        ("  eval_steps: 20", "  eval_steps: 30", "training.eval_steps=30 is 20 in this run"),
        ("seed: 0", "seed: 1", "seed=1 is 0 in this run"),
        ("  size: 2", "  size: 3", "population.size=3 is 2 in this run"),
        ("  lr: 0.0001", "  lr: 0.0005", "algorithm.lr=0.0005 is 0.0001 in this run"),
        ("    max: 0.01", "    max: 0.02", "hyperparameters.lr.max=0.02 is 0.01 in this run"),
    ],
)
def test_an_edited_configuration_is_refused(run, capsys, line, edited, message):
    text = (run / "config.yaml").read_text()
    assert f"\n{line}\n" in text
    (run / "config.yaml").write_text(text.replace(f"\n{line}\n", f"\n{edited}\n"))
    assert main(["resume", str(run), "--training.max-steps", "96"]) == 2
    assert message in capsys.readouterr().err


class OwnTournament(TournamentSelection):
    """A selection strategy that only a script can name."""


@pytest.mark.slow
def test_resume_with_another_selection_warns(tmp_path, capsys):
    own = {"selection_strategy": OwnTournament(2)}
    script(tmp_path / "mine", options=own)
    again(tmp_path / "mine", options=own)
    assert "selection=" not in capsys.readouterr().out
    assert main(["resume", str(tmp_path / "mine"), "--training.max-steps", "128"]) == 0
    assert "selection=TournamentSelection: this run was started with OwnTournament; it" in capsys.readouterr().out


@dataclass(frozen=True)
class OwnSteps(Explorer):
    """An explorer that only a script can name, unless a package declares it."""

    width: Any = 0.3

    def propose(self, genome, history, rng, *, hp_config, repair, **_):
        changed, record = with_hyperparameters(genome, {"lr": 1e-3}, repair)
        return changed, (record,)


def test_a_run_with_an_explorer_of_its_own_keeps_its_selection_when_a_command_resumes_it(tmp_path, capsys):
    folder = tmp_path / "mine"
    script(folder, options={"mutation": OwnSteps(), "selection_strategy": TournamentSelection(1)})
    config = load(folder / "config.yaml")
    assert config.strategy == TournamentSelection(1)
    assert config.explorer == Mutations()
    assert main(["resume", str(folder), "--training.max-steps", "96"]) == 0
    out, err = capsys.readouterr()
    assert (
        "could not hold: mutation: by OwnSteps, which is a class of the script's own; the file has the default" in err
    )
    assert "selection=" not in out
    head = (folder / "config.yaml").read_text().splitlines()
    assert head[0].endswith("as far as a file can describe it")
    assert any("not in this file: mutation: by OwnSteps" in line for line in head)


def test_a_strategy_that_a_package_declares_is_written_with_its_settings(monkeypatch):
    assert _strategy_of("explorer", OwnSteps()) is None
    register("explorer", "own-steps", OwnSteps)  # by a script, so that other processes do not have the name
    try:
        assert _strategy_of("explorer", OwnSteps()) is None
        point = EntryPoint("own-steps", f"{__name__}:OwnSteps", "agilerl_like.explorers")
        monkeypatch.setitem(vars(registered("explorer")), "_entry_points", {"own-steps": point})
        assert _strategy_of("explorer", OwnSteps()) == {"name": "own-steps", "width": 0.3}
        assert _strategy_of("explorer", OwnSteps(width=object())) is None
    finally:
        registered("explorer")._entries.pop("own-steps")


def test_resume_with_other_limits_or_without_a_run_warns(tmp_path, capsys):
    script(tmp_path / "mine")
    again(tmp_path / "mine")  # with another max_steps, which is given
    assert "the run continues with" not in capsys.readouterr().out
    again(tmp_path / "mine", options={"max_steps": 128, "eval_loop": TrainingArguments.eval_loop, "mutation": None})
    found = capsys.readouterr().out
    assert (
        f"the run continues with eval_loop=5 (before: {SCHEDULE['eval_loop']}), mutation=None (before: Mutat" in found
    )
    again(tmp_path / "limited", options={"max_steps": 64, "target": 1e9, "max_seconds": 600.0, "history": 5})
    capsys.readouterr()
    again(tmp_path / "limited", options={"max_steps": 128})
    limits = "history=10 (before: 5), target=None (before: 1000000000.0), max_seconds=None (before: 600.0)"
    assert f"the run continues with {limits}: pass what" in capsys.readouterr().out
    again(tmp_path / "misspelt", options={"max_steps": 64})
    assert "misspelt has no run to resume: a new one starts" in capsys.readouterr().out


def test_resume_without_the_mutation_hooks_of_the_run_warns(tmp_path, capsys, monkeypatch):
    make_population = PPO.population

    def with_hook(*spaces, **settings):
        pop = make_population(*spaces, **settings)
        for agent in pop:
            agent.register_mutation_hook(repr)
        return pop

    with monkeypatch.context() as patch:
        patch.setattr(PPO, "population", with_hook)
        script(tmp_path / "mine")
        again(tmp_path / "mine")
        assert "mutation_hooks" not in capsys.readouterr().out
    again(tmp_path / "mine", options={"max_steps": 128})
    assert "the run continues with mutation_hooks=0 (before: 1): pass what" in capsys.readouterr().out


def test_checkpoint_without_a_path_saves_as_agilerl_does(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert [name.rpartition("-")[2] for name in names] == ["32", "64"]
    assert all(name.startswith("CartPole-v1-EvoHPO-PPO-2") for name in names)
    assert len(Population.load(names[-1])) == 2


def test_numbers_of_numpy_are_numbers():
    given = {"max_steps": np.int64(64), "target": np.float32(150.0), "max_seconds": np.float64(5.0)}
    arguments = TrainingArguments(**given)
    assert {name: type(getattr(arguments, name)) for name in given} == {
        "max_steps": int,
        "target": float,
        "max_seconds": float,
    }
