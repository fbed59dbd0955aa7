"""`agilerl-like tune`: the ranges that it searches, the budget, and the configuration that it writes."""

import csv
import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import pytest
import torch
import yaml
from small_runs import CopyFolder

from agilerl_like import DQN, PPO, PQN, OpenAIES, QLearning
from agilerl_like.cli import found, main, tune
from agilerl_like.cli.train import train_config
from agilerl_like.config import Draft, load
from agilerl_like.config.bundled import find_config
from agilerl_like.config.search_space import search_space
from agilerl_like.errors import ConfigurationError
from agilerl_like.saved_runs import Run
from agilerl_like.training.loop import TrainingLoop
from agilerl_like.training.process_choice import Choice, Layout

MINE = """
environment: {id: CartPole-v1, num_envs: 16}
algorithm: {clip_coef_vf: 0.3}
selection: {name: truncation}
training: {eval_steps: 20, target: 475}
run: {plot: false, report: false}
"""
DISCRETE, CONTINUOUS = gymnasium.spaces.Discrete(2), gymnasium.spaces.Box(-1.0, 1.0, (1,))


def space(action_space, given=None, evo_steps=8192, algorithm=PPO):
    return search_space(algorithm, action_space, given or {}, evo_steps=evo_steps, num_envs=16)


def test_only_continuous_actions_have_ranges_of_their_noise():
    noise = {"action_std_init", "action_noise_correlation"}
    assert not noise & space(DISCRETE)[0].keys()
    for actions in (CONTINUOUS, gymnasium.spaces.Dict(a=DISCRETE, b=CONTINUOUS)):
        ranges, _ = space(actions)
        assert noise <= ranges.keys()
        assert ranges["ent_coef"]["max"] < space(DISCRETE)[0]["ent_coef"]["max"]


def test_rollouts_leave_four_updates_to_a_generation():
    assert space(DISCRETE, evo_steps=8192)[0]["learn_step"]["max"] == 2048
    ranges, start = space(DISCRETE, {"learn_step": 2048, "batch_size": 256}, evo_steps=1000)
    assert ranges["learn_step"]["max"] == ranges["batch_size"]["max"] == 128  # the power of two below 250
    assert start == {"learn_step": 128, "batch_size": 128}


def test_given_values_are_in_their_ranges():
    ranges, start = space(DISCRETE, {"lr": 0.02, "gamma": 0.5, "gae_lambda": 1.0, "ent_coef": 0.0, "update_epochs": 40})
    assert (ranges["lr"]["max"], ranges["gamma"]["min"], ranges["update_epochs"]["max"]) == (0.02, 0.5, 40)
    assert start["ent_coef"] == ranges["ent_coef"]["min"] == 1e-5  # zero has no logarithm
    assert start["gae_lambda"] == ranges["gae_lambda"]["max"] == 0.995  # nor has 1 - 1


def test_only_rollouts_limit_a_minibatch_and_have_a_length_to_search():
    ranges, start = space(DISCRETE, {"learn_step": 8, "batch_size": 2048}, evo_steps=256, algorithm=DQN)
    assert ranges["batch_size"] == {"min": 32, "max": 2048, "scale": "power_of_two"}
    assert (start, "learn_step" in ranges) == ({"batch_size": 2048}, False)  # of the replay, whose rows are many more
    assert "learn_step" not in space(DISCRETE, {"learn_step": 16_000}, algorithm=OpenAIES)[0]


@pytest.mark.parametrize("off", [None, 0])
def test_a_setting_that_is_switched_off_has_no_range(off):
    ranges, start = space(DISCRETE, {"max_grad_norm": off, "lr": 1e-3})
    assert "max_grad_norm" not in ranges
    assert start == {"lr": 1e-3}


def test_settings_without_an_effect_have_no_range_and_an_adaptive_rate_keeps_its_limits():
    assert "gae_lambda" not in space(DISCRETE, {"advantage": "mc"})[0]
    assert space(DISCRETE, {"lr_schedule": "kl", "lr_max": 5e-3})[0]["lr"] == {"min": 1e-5, "max": 5e-3, "scale": "log"}


def test_an_algorithm_may_define_ranges_of_its_own():
    assert space(DISCRETE, {"lr": 0.5}, algorithm=QLearning)[0]["lr"] == {"min": 0.05, "max": 1.0}
    assert space(DISCRETE)[0]["lr"]["max"] == 0.01


def test_rollouts_of_pqn_have_ranges_as_those_of_ppo():
    ranges, start = space(DISCRETE, {"learn_step": 512, "q_lambda": 0.65}, algorithm=PQN)
    assert {"learn_step", "batch_size", "q_lambda", "lr", "gamma", "update_epochs"} <= ranges.keys()
    assert {"ent_coef", "gae_lambda", "clip_coef"} & ranges.keys() == set()
    assert start == {"learn_step": 512, "q_lambda": 0.65}
    assert "batch_size" not in space(DISCRETE, {"num_minibatches": 4}, algorithm=PQN)[0]


@pytest.mark.parametrize(
    ("steps", "longest", "episodes", "wanted"),
    [
        (250_000, 200, 10, (30, 10)),  # evaluation of all episodes takes 60,000 steps
        (250_000, None, 10, (30, 10)),
        (250_000, 500, 15, (20, 8)),  # 80,000 instead of 225,000
        (250_000, 100_000, 15, (13, 6)),  # few games last as long as they may
        (50_000, 1000, 15, (12, 3)),
        (1_000_000, 1000, 1, (30, 1)),  # no more episodes than the configuration has
    ],
)
def test_generations_and_episodes_follow_from_the_budget_and_the_longest_episode(steps, longest, episodes, wanted):
    assert tune.generations_and_episodes(steps, longest, episodes) == wanted


def generations_and_episodes(config):
    training = config.training
    return training.generations(config.environment.num_envs), training.eval_loop


def test_the_time_limit_is_known_however_the_env_is_made():
    known = {"CartPole-v1": (12, 4), "Acrobot-v1": (12, 4), "Pendulum-v1": (13, 6), "mpe2.simple_spread_v3": (30, 16)}
    for env_id, wanted in known.items():
        config = tune.search_config(find_config(env_id), steps=2e5, population=4, seed=1)
        assert generations_and_episodes(config) == wanted


def test_a_limit_of_evaluation_episodes_counts_as_the_longest_episode(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("environment: {id: Acrobot-v1}\ntraining: {eval_steps: 50, eval_loop: 15}\n")
    config = tune.search_config(find_config(str(file)), steps=2e5, population=4, seed=1)
    assert generations_and_episodes(config) == (27, 12)


def test_evaluation_episodes_are_counted_on_each_instance(tmp_path):
    file = tmp_path / "mine.yaml"
    instances = ", ".join(f"{{g: {5 + number}}}" for number in range(9))
    file.write_text(f"environment: {{id: Pendulum-v1, num_envs: 9, instances: [{instances}]}}\n")
    config = tune.search_config(find_config(str(file)), steps=2e6, population=8, seed=1)
    assert generations_and_episodes(config) == (12, 4)


def test_a_budget_is_divided_into_thirty_generations_of_all_members():
    config = tune.search_config(find_config("Pendulum-v1"), steps=2e6, population=8, seed=1)
    assert (config.training.max_steps, config.training.evo_steps, config.population.size) == (250_000, 8334, 8)
    assert config.evolution == "auto"
    assert "action_std_init" in config.hyperparameters
    short = tune.search_config(find_config("CartPole-v1"), steps=8192, population=8, seed=1)
    assert (short.training.max_steps, short.training.evo_steps, short.training.eval_loop) == (1024, 256, 3)


@pytest.mark.parametrize("envs", [1, 4, 16])
def test_no_steps_are_left_for_one_generation_more(envs):
    draft = find_config("Pendulum-v1").override(["--environment.num-envs", str(envs)])
    assert generations_and_episodes(tune.search_config(draft, steps=2e6, population=8, seed=1))[0] == 30


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--budget", "8191"], "budget=8191 gives 1023 env steps to each of 8 members; allowed are at least 8192"),
        (["--budget", "-1"], "budget=-1.0 must be finite and greater than 0"),
        (["--minutes", "nan"], "minutes=nan must be finite and greater than 0"),
        (["--budget", "1e6", "--minutes", "3"], "minutes=3.0 and budget=1000000.0 exclude one another"),
        (["--population", "1"], "population=1 is too small for tune"),
        (["--device", "gpu"], "device='gpu'; allowed are 'cpu', 'cuda', "),
        (["--seed", "-1"], "seed=-1 must be at least 0"),
        (["--out", "README.md"], "out='README.md' exists; allowed is a new file"),
    ],
)
def test_wrong_options_are_one_error(options, message, capsys):
    assert main(["tune", "CartPole-v1", *options]) == 2
    assert message in capsys.readouterr().err


def test_a_wrong_seed_in_a_file_is_one_error(tmp_path, capsys):
    (tmp_path / "wrong.yaml").write_text("seed: one\nenvironment: {id: CartPole-v1}\n")
    assert main(["tune", str(tmp_path / "wrong.yaml"), "--budget", "8192"]) == 2
    assert "seed='one'" in capsys.readouterr().err


def test_an_unknown_environment_is_one_error(capsys):
    assert main(["tune", "CartPol-v1x"]) == 2
    assert "is no file, no configuration" in capsys.readouterr().err


def test_what_was_found_can_be_trained(tmp_path, capsys):
    out, file = tmp_path / "new" / "found.yaml", tmp_path / "mine.yaml"
    file.write_text(MINE)  # its settings are kept, except those that are searched
    options = ["--budget", "2048", "--population", "2", "--seed", "1", "--dir", str(tmp_path), "--out", str(out)]
    assert main(["tune", str(file), *options]) == 0
    printed = capsys.readouterr().out
    assert f"found    {out}" in printed
    assert f"agilerl-like train {out}" in printed
    (folder,) = tmp_path.glob("tune-CartPole-v1-*")
    run = Run.open(folder)
    written, best = load(out), run.best()
    assert (written.algorithm.clip_coef_vf, written.training.eval_steps) == (0.3, 20)
    for name, value in best.hyperparameters.items():
        assert getattr(written.algorithm, name) == pytest.approx(value)
    assert written.network.net_config()["latent_dim"] == best.architecture.latent_dim
    assert (written.mutation, written.population.size, written.training.max_steps) == (
        None,
        4,
        1024,
    )
    assert yaml.safe_load(out.read_text())["environment"] == {"id": "CartPole-v1", "num_envs": 16}
    assert out.read_text().startswith("# Found by `agilerl-like tune`: member ")


def small_run(folder):
    """Return a run of three generations in a folder, and its configuration."""
    sections = {
        "environment": {"id": "CartPole-v1", "num_envs": 8},
        "algorithm": {"name": "DQN", "learn_step": 8, "learning_starts": 40},
        "population": {"size": 2},
        "training": {"max_steps": 48, "evo_steps": 16, "eval_loop": 1, "eval_steps": 20},
        "run": {"dir": str(folder), "name": "run", "processes": 1, "plot": False, "report": False},
        "seed": 1,
    }
    config = Draft(sections).validate()
    assert train_config(config, quiet=True) == 0
    return Run.open(folder / "run"), config


def test_what_a_search_that_broke_off_has_found_is_described_by_its_checkpoint(tmp_path):
    """Here a generation was recorded after it, with another best agent."""
    run, config = small_run(tmp_path)
    before = found.found_yaml(run, config)
    document = json.loads((run.folder / "run.json").read_text())
    (run.folder / "run.json").write_text(json.dumps({**document, "outcome": "broken off"}))
    rows = list(csv.DictReader((run.folder / "metrics.csv").read_text().splitlines()))
    best = {"ever": 1234.5, "ever_standard_error": "nan", "ever_uid": 99, "ever_generation": 4}
    later = {**rows[-1], "generation": 4, "uid": 99, **{f"population/best_{name}": its for name, its in best.items()}}
    with (run.folder / "metrics.csv").open("a") as file:
        csv.DictWriter(file, rows[0], lineterminator="\n").writerow(later)
    broken_off = Run.open(run.folder)
    assert broken_off.records.rows[broken_off.records.best_row]["uid"] == 99
    assert found.found_yaml(broken_off, config) == before


def test_what_was_found_before_anything_was_learned_is_trained_until_it_can_learn(tmp_path, capsys, monkeypatch):
    run, config = small_run(tmp_path)
    file = tmp_path / "found.yaml"
    file.write_text(found.found_yaml(run, config))
    assert (run.best().steps[-1], load(file).training.max_steps) == (16, 48)
    assert "# population: 4 seeds, of which the best is kept; mutation: null" in file.read_text()
    assert f"last values. `agilerl-like replay {tmp_path / 'run'}` trains" in file.read_text()
    rated = config.model_copy(update={"training": replace(config.training, fitness="rating")})
    found.write_found(run, rated, file)
    assert "replay" not in file.read_text() + capsys.readouterr().out  # which is not possible with ratings
    monkeypatch.setattr(type(run.records), "is_birth", lambda self, row: False)
    found.write_found(run, config, file)
    members = len({row["uid"] for row in run.records.rows})  # fresh members, too
    expected = f"3 generations, no births: this compared {members} random settings; a longer budget"
    assert expected in capsys.readouterr().out


@pytest.mark.slow
def test_what_was_found_is_trained_for_the_fitness_of_the_search(tmp_path, capsys):
    file = tmp_path / "infos.yaml"
    file.write_text(
        "environment: {id: CartPole-v1, num_envs: 8, info_keys: {length: episode.l}, "
        "wrappers: [RecordEpisodeStatistics]}\n"
        "algorithm: {learn_step: 128, batch_size: 64}\n"
        "training: {fitness: info.length, eval_loop: 20}\nseed: 1\n"
    )
    assert main(["tune", str(file), "--budget", "2048", "--population", "2", "--dir", str(tmp_path)]) == 0
    assert "training.eval_loop is 3 instead of 20" in capsys.readouterr().err
    (out,) = tmp_path.glob("tune-*/found.yaml")
    assert load(out).training.fitness == "info.length"
    assert ": fitness " not in out.read_text()
    assert ", fitness " in out.read_text()


@pytest.mark.slow
def test_ranges_seed_and_folder_of_a_file_are_kept_and_a_killed_search_writes_its_find_when_resumed(
    tmp_path, capsys, monkeypatch
):
    killed, out = tmp_path / "killed", tmp_path / "out.yaml"

    def copied(config, callbacks, quiet):
        copy = CopyFolder(config.run.dir / config.run.name, killed, generation=3)
        return train_config(config, callbacks=[*callbacks, copy], quiet=quiet)

    monkeypatch.setattr(tune, "train_config", copied)
    file = tmp_path / "own.yaml"
    ranges = "{lr: {min: 1e-3, max: 4e-3}, advantage: [gae, n_step], n_step: {min: 2, max: 8}}"
    own = "preset: sb3, update_epochs: 1, normalize_advantage: rollout, gae_lambda: 0.9, learn_step: 128, clip"
    mine = MINE.replace("run: {", f"run: {{dir: {tmp_path / 'own'}, ").replace("clip", own)
    file.write_text(f"{mine}seed: 7\nhyperparameters: {ranges}\n")
    assert main(["tune", str(file), "--budget", "2048", "--population", "2", "--out", str(out)]) == 0
    note = "tune replaces selection, training.target of the file; `agilerl-like train` keeps them"
    assert note in capsys.readouterr().err
    (folder,) = (tmp_path / "own").glob("tune-CartPole-v1-*")
    config = load(folder / "config.yaml")
    assert (config.seed, [*config.hyperparameters]) == (7, ["lr", "advantage", "n_step"])
    assert {row["hp/advantage"] for row in Run.open(folder).metrics()} <= {"gae", "n_step"}
    written, best = load(out).algorithm, Run.open(folder).best().hyperparameters
    assert (written.normalize_advantage, written.advantage, written.lr) == ("rollout", best["advantage"], best["lr"])
    unused = ("gae_lambda", 0.95) if best["advantage"] == "n_step" else ("n_step", 10)  # it has its default
    assert getattr(written, unused[0]) == unused[1]
    assert load(folder / "found.yaml") == load(out)  # which is written again if the search is resumed
    assert main(["train", str(killed / "found.yaml")]) == 2  # nothing was found yet
    assert main(["resume", str(killed)]) == 0
    assert load(killed / "found.yaml") == load(out)
    assert f"found    {killed / 'found.yaml'}" in capsys.readouterr().out


def test_what_the_search_replaces_is_noted(capsys):
    limited = {"training": {"max_seconds": 60}, "run": {"name": "mine"}}
    tune._note_replaced(Draft(limited), has_minutes=True)
    assert "tune replaces training.max_seconds, run.name of the file; " in capsys.readouterr().err
    tune._note_replaced(Draft({**limited, "mutation": None, "evolution": "auto"}), has_minutes=False)
    assert "tune replaces evolution, mutation, run.name of the file; " in capsys.readouterr().err


def test_the_printed_command_trusts_what_the_search_imported():
    config = Draft({"environment": {"id": "own:make"}}).validate()
    assert found._replay(SimpleNamespace(display_path=Path("a b")), config) == "agilerl-like replay 'a b' --trust"


def test_a_search_that_fails_before_training_leaves_no_folder(tmp_path, capsys):
    file = tmp_path / "gpu.yaml"
    file.write_text("environment: {id: CartPole-v1, num_envs: 16}\nrun: {device: 'cuda:99'}\n")
    assert main(["tune", str(file), "--budget", "20480", "--population", "2", "--dir", str(tmp_path / "runs")]) == 2
    assert "run.device='cuda:99'" in capsys.readouterr().err
    assert [*(tmp_path / "runs").iterdir()] == []


def test_a_search_that_an_error_ends_before_its_first_checkpoint_has_one_error(tmp_path, capsys):
    file = tmp_path / "infos.yaml"
    file.write_text(
        "environment: {id: CartPole-v1, num_envs: 8, info_keys: {speed: velocity}}\nseed: 1\n"
        "training: {fitness: info.speed, eval_steps: 20}\n"
    )
    assert main(["tune", str(file), "--budget", "2048", "--population", "2", "--dir", str(tmp_path)]) != 0
    error = capsys.readouterr().err
    assert "info['velocity'], which is the fitness, is missing" in error
    assert "does not exist" not in error


def test_a_generation_holds_a_rollout_of_a_file_with_ranges(tmp_path, capsys):
    file = tmp_path / "long.yaml"
    file.write_text(
        "environment: {id: CartPole-v1, num_envs: 8}\nalgorithm: {learn_step: 1000}\n"
        "hyperparameters: {lr: {min: 1e-4, max: 1e-2}}\n"
    )
    training = tune.search_config(find_config(str(file)), steps=40_000, population=4, seed=1, has_ranges=True).training
    assert (training.evo_steps, training.max_steps) == (1000, 10_000)
    assert main(["tune", str(file), "--budget", "15000", "--population", "4"]) == 2
    assert "allowed are at least 16000: 4 generations of 1000 steps" in capsys.readouterr().err


def test_a_generation_holds_the_longest_rollout_of_a_choice_and_whole_vector_steps(tmp_path):
    file = tmp_path / "choice.yaml"
    file.write_text(
        "environment: {id: CartPole-v1, num_envs: 8}\nhyperparameters: {learn_step: {choices: [512, 8192]}}\n"
    )
    training = tune.search_config(find_config(str(file)), steps=2e5, population=4, seed=1, has_ranges=True).training
    assert training.evo_steps == 8192


@pytest.mark.parametrize(
    ("name", "envs", "shortest"), [("CartPole-v1", 256, 1024), ("CartPole-v1", 10, 280), ("cartpole_dqn", 512, 512)]
)
def test_the_shortest_generation_has_four_rollouts_in_whole_vector_steps(name, envs, shortest):
    draft = find_config(name).override(["--environment.num-envs", str(envs)])
    least = 4 * 8 * shortest
    with pytest.raises(ConfigurationError, match=f"at least {least}: 4 generations of {shortest} steps"):
        tune.search_config(draft, steps=least - 1, population=8, seed=1)


def test_too_few_minutes_are_one_error_that_names_them(monkeypatch, capsys):
    monkeypatch.setattr(tune, "steps_per_second", lambda config, seconds: 1000.0)
    assert main(["tune", "CartPole-v1", "--minutes", "0.1"]) == 2
    assert "minutes=0.1 are 6,000 env steps at 1,000 steps/s; allowed are at least 8,192" in capsys.readouterr().err


def test_minutes_of_a_file_with_long_rollouts_are_measured(tmp_path, monkeypatch, capsys):
    file = tmp_path / "long.yaml"
    file.write_text(
        "environment: {id: CartPole-v1, num_envs: 1024}\nalgorithm: {num_steps: 128}\n"
        "hyperparameters: {lr: {min: 1e-4, max: 1e-2}}\n"
    )
    probes = []
    monkeypatch.setattr(tune, "steps_per_second", lambda config, seconds: probes.append(config) or 1000.0)
    assert main(["tune", str(file), "--minutes", "1"]) == 2
    assert probes[0].training.evo_steps == 1024 * 128
    assert "minutes=1 are 60,000 env steps" in capsys.readouterr().err


def test_the_speed_counts_an_evaluation_in_each_generation_and_no_wait_for_the_stop_of_other_processes():
    watch = tune.Stopwatch(1.0)
    run = SimpleNamespace(record=SimpleNamespace(generation_env_steps=1000))
    for generation, (steps, lasted, evaluation) in enumerate([(1000, 10.0, 4.0), (1500, 19.0, 6.0)], start=1):
        watch.until_last_step = lasted
        parts = {"evaluate": evaluation, "env": 4.0}
        watch.on_generation(
            run, SimpleNamespace(generation=generation, env_steps=steps, seconds=lasted + 4, seconds_by_part=parts)
        )
    assert watch.rate == pytest.approx(1000 / (10 + 3))  # 15 s for 1,500 steps, 3 s for an evaluation


@pytest.fixture
def probe(monkeypatch, tmp_path):
    """Return what `steps_per_second` trains with the settings of a file, without training it."""
    probes = []

    def train(env_setup, population, plan, *, processes, **_):
        probes.append(SimpleNamespace(population=population, processes=processes, threads=torch.get_num_threads()))
        return SimpleNamespace(raise_if_interrupted=lambda: None)

    def probed(settings):
        (tmp_path / "probed.yaml").write_text(f"environment: {{id: CartPole-v1, num_envs: 4}}\n{settings}\n")
        draft, has_ranges = find_config(str(tmp_path / "probed.yaml")), "hyperparameters" in settings
        config = tune.search_config(draft, steps=1e5, population=2, seed=1, has_ranges=has_ranges)
        with monkeypatch.context() as patched:
            patched.setattr(tune, "train_population", train)
            tune.steps_per_second(config, seconds=1.0)
        return probes[-1]

    return probed


@pytest.mark.parametrize(
    "settings",
    [
        "algorithm: {name: DQN, learning_starts: 2000}",
        "algorithm: {name: DQN}\nhyperparameters: {learning_starts: {min: 1000, max: 3000}}",
        "algorithm: {name: DQN}\nhyperparameters: {learning_starts: {choices: [1000, 3000]}, "
        "lr: {min: 1e-4, max: 1e-2, when: {learning_starts: 1000}}}",
        "algorithm: {name: PPO, learning_starts: 2000}\nrun: {processes: 1}",
    ],
)
def test_the_speed_is_that_of_members_that_learn_from_the_first_steps_on(probe, settings):
    """Members that wait for `learning_starts` would be faster than those of most of the search."""
    for agent in probe(settings).population:
        agent.check()
        assert agent.learning_starts == 0


def test_the_speed_is_measured_with_the_processes_and_threads_of_the_file(probe):
    threads = torch.get_num_threads()
    assert probe("run: {processes: 2}").processes == 2
    found = probe("run: {processes: 1, threads: 3}")
    assert (found.processes, found.threads) == (1, 3)
    assert torch.get_num_threads() == threads


def test_the_speed_is_measured_with_the_processes_and_threads_that_are_chosen(probe, monkeypatch):
    rates = {Layout(1, 1): 100.0, Layout(2, 3): 180.0}
    monkeypatch.setattr(tune, "choose_layout", lambda *_, **__: Choice(Layout(2, 3), "measured", rates))
    found = probe("algorithm: {learn_step: 64}")
    assert (found.processes, found.threads) == (2, 3)


@pytest.mark.slow
def test_the_speed_of_two_processes_is_measured():
    """The second process receives its member without the range of `learning_starts`."""
    sections = {
        "environment": {"id": "CartPole-v1", "num_envs": 4},
        "algorithm": {"name": "DQN", "learn_step": 4},
        "hyperparameters": {"learning_starts": {"min": 1000, "max": 3000}},
        "run": {"processes": 2},
    }
    config = tune.search_config(Draft(sections), steps=1e5, population=2, seed=1, has_ranges=True)
    assert 10 < tune.steps_per_second(config, seconds=0.5) < 1e6


@pytest.mark.parametrize("method", ["_evaluate", "_finish"])
def test_ctrl_c_after_the_speed_was_measured_ends_the_command_without_a_search(monkeypatch, method):
    """A callback ended training; the signal comes in the evaluation that follows, or in what follows that."""
    original = getattr(TrainingLoop, method)

    def interrupted(self, *arguments):
        os.kill(os.getpid(), signal.SIGINT)
        return original(self, *arguments)

    monkeypatch.setattr(TrainingLoop, method, interrupted)
    config = tune.search_config(find_config("CartPole-v1"), steps=8192, population=2, seed=1)
    monkeypatch.setattr(tune, "choose_layout", lambda *_, **__: Choice(Layout(1, 1), "chosen", {}))
    with pytest.raises(KeyboardInterrupt):
        tune.steps_per_second(config, seconds=0.0)


def test_a_launcher_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(tune, "is_launched", lambda: True)
    assert main(["tune", "CartPole-v1"]) == 2
    assert "tune starts its own processes" in capsys.readouterr().err


def test_what_was_found_has_the_schedules_of_its_selection_where_the_file_has_none() -> None:
    config = tune.search_config(find_config("CartPole-v1"), steps=2e5, population=2, seed=1)
    assert found._schedules(config) == {"lr": [[0.5, 1.0], [1.0, 0.05]]}
    own = tune.search_config(find_config("CartPole-v1", []).override(["--algorithm.lr-schedule", "linear"]), steps=2e5,
                             population=2, seed=1)  # fmt: skip
    assert found._schedules(own) == {}
    dqn = tune.search_config(find_config("cartpole_dqn"), steps=2e5, population=2, seed=1)
    assert found._schedules(dqn) == {"lr": "linear"}  # the file's own
    td3 = tune.search_config(find_config("pendulum_td3"), steps=2e5, population=2, seed=1)
    assert found._schedules(td3) == {}  # members with a replay had a constant rate
    entropy = find_config("CartPole-v1", []).override(["--algorithm.schedules.ent-coef", "linear"])
    config = tune.search_config(entropy, steps=2e5, population=2, seed=1)
    assert found._schedules(config) == {"ent_coef": "linear", "lr": [[0.5, 1.0], [1.0, 0.05]]}
    of_best = found._schedules(config, {"lr_schedule": "linear"})  # a choice that has evolved
    assert of_best == {"ent_coef": "linear"}


def test_minutes_are_converted_by_the_measured_speed_and_written_as_the_limit_of_the_run(monkeypatch, tmp_path, capsys):
    configs = []
    monkeypatch.setattr(tune, "steps_per_second", lambda config, seconds: 1000.0)
    monkeypatch.setattr(tune, "train_config", lambda config, callbacks, quiet: configs.append((config, quiet)) or 0)
    options = ["--minutes", "2", "--population", "4", "--dir", str(tmp_path)]
    assert main(["tune", "CartPole-v1", *options, "--device", "auto", "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    ((config, quiet),) = configs
    assert quiet
    assert config.run.device == "auto"
    assert (config.training.max_steps, config.training.max_seconds) == (30_000, 120.0)


def test_the_speed_is_measured_again_with_the_settings_of_a_short_search(monkeypatch, tmp_path):
    probes, searches = [], []
    monkeypatch.setattr(tune, "steps_per_second", lambda config, seconds: probes.append(config) or 2000.0 / len(probes))
    monkeypatch.setattr(tune, "train_config", lambda config, callbacks, quiet: searches.append(config) or 0)
    assert main(["tune", "CartPole-v1", "--minutes", "2", "--population", "4", "--dir", str(tmp_path)]) == 0
    assert [config.training.max_steps for config in probes] == [500_000, 60_000]  # of each of four members
    assert searches[0].training.max_steps == 30_000


def test_the_speed_is_that_of_a_short_run():
    config = tune.search_config(find_config("CartPole-v1"), steps=2048, population=2, seed=1)
    assert 10 < tune.steps_per_second(config, seconds=0.01) < 1e6


def test_a_file_may_give_the_rollout_by_its_other_names(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("environment: {id: CartPole-v1, num_envs: 16}\nalgorithm: {num_steps: 32, num_minibatches: 4}\n")
    config = tune.search_config(find_config(str(file)), steps=1e5, population=4, seed=1)
    assert (config.algorithm.num_steps, config.algorithm.num_minibatches) == (None, None)
    assert (config.algorithm.learn_step, config.algorithm.batch_size) == (512, 128)
    assert "learn_step" in config.hyperparameters


@pytest.mark.parametrize(
    ("name", "batch_size", "learn_step"),
    [("cartpole_dqn", 64, 16), ("pendulum_sac", 64, 8), ("pendulum_td3", 64, 8), ("cartpole_openaies", None, None)],
)
def test_other_algorithms_are_searched_from_their_own_settings(name, batch_size, learn_step):
    config = tune.search_config(find_config(name), steps=1e5, population=4, seed=1)
    assert (getattr(config.algorithm, "batch_size", None), config.algorithm.learn_step) == (batch_size, learn_step)
    assert config.algorithm.lr == find_config(name).validate().algorithm.lr


@pytest.mark.parametrize(
    ("system", "settings"),
    [
        ("sb3", "n_steps: 32, batch_size: 64, learning_rate: 0.002, n_envs: 4"),
        ("skrl", "rollouts: 32, mini_batches: 4, time_limit_bootstrap: true, learning_rate: 0.002, num_envs: 4"),
    ],
)
def test_settings_of_another_system_are_searched_from_their_values_here(tmp_path, system, settings):
    file = tmp_path / "mine.yaml"
    file.write_text(f"environment: {{id: CartPole-v1}}\nalgorithm: {{like: {system}, {settings}}}\n")
    base = find_config(str(file)).validate()
    config = tune.search_config(find_config(str(file)), steps=1e5, population=4, seed=1)
    assert (config.algorithm.lr, config.environment.num_envs) == (0.002, 4)
    assert config.algorithm.clip_grads == base.algorithm.clip_grads != PPO.config.clip_grads
    assert config.algorithm.preset == "agilerl_like"  # so found.yaml has all of its values


def test_teams_are_searched_too():
    config = tune.search_config(find_config("mpe2.simple_spread_v3"), steps=1e5, population=4, seed=1)
    assert config.algorithm.name == "IPPO"
    assert {"lr", "gamma", "learn_step"} <= config.hyperparameters.keys()
    with pytest.raises(ConfigurationError, match="budget"):
        tune.search_config(find_config("mpe2.simple_spread_v3"), steps=1e3, population=4, seed=1)
