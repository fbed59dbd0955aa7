"""`push_to_hub` and `from_hub`: a local folder, and a Hub whose calls copy folders, without a network."""

import csv
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from gymnasium import spaces
from test_saved_runs import TINY

from agilerl_like import IPPO, PPO, CheckpointError, ConfigurationError, Run, from_hub, push_to_hub
from agilerl_like.cli import main
from agilerl_like.cli.players import best_generation
from agilerl_like.reporting import formatting

OBSERVATIONS = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub")
    (folder / "tiny.yaml").write_text(TINY)
    options = ["--run.dir", str(folder), "--run.name", "run", "--run.plot", "false", "--quiet"]
    assert main(["train", str(folder / "tiny.yaml"), "--seed", "3", *options]) == 0
    return Run.open(folder / "run")


def acts_alike(one, other):
    actions = [agent.predict(OBSERVATIONS, deterministic=True)[0] for agent in (one, other)]
    return np.array_equal(*actions)


def metadata_of(card):
    return yaml.safe_load(card.read_text(encoding="utf-8").split("---\n")[1])


def test_a_local_folder(run, tmp_path):
    folder = tmp_path / "shared"
    assert push_to_hub(run, folder) == str(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "best", "config.yaml"]
    agent = from_hub(folder)
    assert isinstance(agent, PPO)
    assert acts_alike(agent, run.best())
    assert agent.hyperparameters == run.best().hyperparameters
    push_to_hub(run.folder, folder)  # again, by path
    assert acts_alike(from_hub(folder), run.best())


def test_the_folder_of_a_run_and_a_foreign_configuration_are_left_as_they_are(run, tmp_path):
    folder = shutil.copytree(run.folder, tmp_path / "run")
    before = (folder / "config.yaml").read_bytes()
    with pytest.raises(ConfigurationError, match=r"has metrics\.csv, so it is the folder of a run"):
        push_to_hub(Run.open(folder), folder)
    assert (folder / "config.yaml").read_bytes() == before
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "config.yaml").write_text("mine")
    with pytest.raises(ConfigurationError, match="allowed is another folder"):
        push_to_hub(run, tmp_path / "own")


@pytest.mark.parametrize("name", ["config.yaml", "metrics.csv", "lineage.jsonl"])
def test_a_link_in_the_folder_of_a_run_is_not_read(run, tmp_path, capsys, name):
    folder = shutil.copytree(run.folder, tmp_path / "run")
    (tmp_path / "private").write_text("token: secret\n")
    (folder / name).unlink()
    (folder / name).symlink_to(tmp_path / "private")
    with pytest.raises((ConfigurationError, CheckpointError), match="is a symbolic link"):
        push_to_hub(folder, tmp_path / "shared")
    assert not (tmp_path / "shared").exists()
    for command in (["compare", str(folder), str(run.folder)], ["eval", str(folder), "--episodes", "1"]):
        main(command)
    for more in ([], ["--help"]):
        assert main(["resume", str(folder), *more]) == 2
    assert f"{name} is a link" in (written := capsys.readouterr()).err
    assert "secret" not in written.out + written.err


def test_an_unknown_section_of_the_settings_is_not_uploaded(run, tmp_path):
    folder = shutil.copytree(run.folder, tmp_path / "run")
    with (folder / "config.yaml").open("a") as file:
        file.write("token: secret\n")
    push_to_hub(folder, tmp_path / "shared")
    assert "secret" not in (tmp_path / "shared" / "config.yaml").read_text()
    assert "algorithm" in yaml.safe_load((tmp_path / "shared" / "config.yaml").read_text())


def test_a_killed_run_is_described_as_of_the_checkpoint_that_its_best_agent_is_from(run, tmp_path):
    """Here a generation was recorded after it, with another best agent."""
    folder = shutil.copytree(run.folder, tmp_path / "run")
    document = json.loads((folder / "run.json").read_text())
    del document["outcome"]
    (folder / "run.json").write_text(json.dumps(document))
    rows = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    number = int(rows[-1]["generation"]) + 1
    later = {"generation": number, "population/best_ever": 1234.5, "population/best_ever_generation": number}
    with (folder / "metrics.csv").open("a") as file:
        csv.DictWriter(file, rows[0], lineterminator="\n").writerow({**rows[-1], **later})
    killed = Run.open(folder)
    assert killed.records.outcome == "killed"
    assert best_generation(folder) == best_generation(run.folder) < number
    pushed = (tmp_path / "a", tmp_path / "b")
    for one, place in zip((run, killed), pushed, strict=True):
        push_to_hub(one, place)
    cards = [(place / "README.md").read_text(encoding="utf-8") for place in pushed]
    for part in ("fitness", "generation "):
        lines = [[line for line in card.splitlines() if part in line] for card in cards]
        assert lines[0] == lines[1] != []
    assert not any("1234" in card for card in cards)


def test_the_card(run, tmp_path):
    push_to_hub(run, tmp_path / "shared")
    card = tmp_path / "shared" / "README.md"
    metadata, text = metadata_of(card), card.read_text(encoding="utf-8")
    assert metadata["library_name"] == "agilerl-like"
    assert {"reinforcement-learning", "CartPole-v1", "PPO"} <= set(metadata["tags"])
    (model,) = metadata["model-index"]
    (result,) = model["results"]
    best, error = (run.metrics()[-1][f"population/best_ever{suffix}"] for suffix in ("", "_standard_error"))
    assert result["dataset"]["name"] == "CartPole-v1"
    assert result["metrics"][0]["value"] == formatting.with_named_error(best, error)
    assert run.best().architecture.describe().replace("|", "\\|") in text
    assert f"generation 0: member {run.ancestry()[0].uid}\n" in text
    assert len(re.findall("^- generation", text, re.MULTILINE)) == len(run.ancestry())
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    assert "from_hub(Path('.'))" in code


def test_the_card_names_fresh_episodes_only_where_they_were_played(run, tmp_path):
    push_to_hub(run, tmp_path / "run")
    assert "| fitness on fresh episodes | " in (tmp_path / "run" / "README.md").read_text()
    agent = PPO(spaces.Box(-1, 1, (4,)), spaces.Discrete(2), seed=0)
    agent.fitness.append(12.5)
    push_to_hub(agent, tmp_path / "one", env="CartPole-v1")
    assert "| fitness | 12.5 |" in (tmp_path / "one" / "README.md").read_text()
    agent.fitness.append(0.0042)
    push_to_hub(agent, tmp_path / "one", env="CartPole-v1")
    assert "| fitness | 0.0042 |" in (tmp_path / "one" / "README.md").read_text()


@pytest.mark.parametrize(
    ("section", "setting", "metric"),
    [("training", {"fitness": "return"}, "mean_reward"), ("training", {"fitness": "rating"}, "fitness"),
     ("environment", {"aggregate": "min"}, "fitness")],
)  # fmt: skip
def test_only_a_mean_return_is_a_mean_reward(run, tmp_path, section, setting, metric):
    copy = shutil.copytree(run.folder, tmp_path / "run")
    settings = yaml.safe_load((copy / "config.yaml").read_text())
    settings[section] |= setting
    (copy / "config.yaml").write_text(yaml.safe_dump(settings))
    push_to_hub(copy, tmp_path / "shared")
    (result,) = metadata_of(tmp_path / "shared" / "README.md")["model-index"][0]["results"]
    assert (result["metrics"][0]["type"], result["metrics"][0]["name"]) == (metric, metric)


def test_the_code_of_a_card_runs(run, tmp_path, monkeypatch):
    push_to_hub(run, tmp_path / "shared")
    monkeypatch.chdir(tmp_path / "shared")
    code = re.search(r"```python\n(.*?)```", Path("README.md").read_text(), re.DOTALL)[1]
    namespace = {"observation": OBSERVATIONS}
    exec(compile(code, "card", "exec"), namespace)
    assert namespace["action"].shape == (50,)


def test_nothing_of_the_machine_is_uploaded(run, tmp_path):
    push_to_hub(run, tmp_path / "shared")
    settings = yaml.safe_load((tmp_path / "shared" / "config.yaml").read_text())
    assert "run" not in settings
    assert settings["environment"]["id"] == "CartPole-v1"
    everything = b"".join(path.read_bytes() for path in (tmp_path / "shared").rglob("*") if path.is_file())
    assert str(run.folder.parent).encode() not in everything
    assert run.provenance["platform"].encode() not in everything
    assert b"run.dir" not in everything


def test_the_command_evaluates_it(run, tmp_path, capsys):
    push_to_hub(run, tmp_path / "shared")
    assert main(["eval", str(tmp_path / "shared"), "--episodes", "3", "--seed", "1"]) == 0
    uploaded = capsys.readouterr().out
    assert main(["eval", str(run.folder), "--episodes", "3", "--seed", "1"]) == 0
    assert capsys.readouterr().out == uploaded


def test_agents_without_a_run_and_teams(tmp_path):
    space = spaces.Box(-1, 1, (4,)), spaces.Discrete(2)
    agent = PPO(*space, seed=0)
    push_to_hub(agent, tmp_path / "one", env="CartPole-v1")
    assert acts_alike(from_hub(tmp_path / "one"), agent)
    assert "model-index" not in metadata_of(tmp_path / "one" / "README.md")  # it was not tested
    agent.fitness.append(12.5)
    push_to_hub(agent, tmp_path / "one", env="CartPole-v1")
    assert metadata_of(tmp_path / "one" / "README.md")["model-index"][0]["results"][0]["metrics"][0]["value"] == "12.5"
    push_to_hub(agent, tmp_path / "one", env="<img src=x>\n# forged | [link](x)")
    text = (tmp_path / "one" / "README.md").read_text().rpartition("---\n")[2]
    assert r"on &lt;img src=x&gt; # forged \| \[link\](x)" in text
    assert "<img" not in text
    team = IPPO({"a_0": space[0]}, {"a_0": space[1]}, seed=0)
    push_to_hub(team, tmp_path / "team")
    assert isinstance(from_hub(tmp_path / "team"), IPPO)


class Hub:
    """The calls of huggingface_hub that are used, on folders."""

    def __init__(self, folder):
        self.folder, self.calls = folder, []

    def create_repo(self, repository, *, private, exist_ok):
        assert exist_ok
        self.calls.append(("create", repository, private))
        return f"https://hub/{repository}"

    def upload_folder(self, *, repo_id, folder_path, commit_message, delete_patterns):
        self.calls.append(("upload", repo_id, commit_message))
        for pattern in delete_patterns or ():
            for path in (self.folder / repo_id).glob(pattern):
                path.unlink()
        shutil.copytree(folder_path, self.folder / repo_id, dirs_exist_ok=True)

    def snapshot_download(self, repository, *, revision, token, local_dir, allow_patterns, library_name):
        self.calls.append(("download", repository, revision))
        for path in (self.folder / repository).rglob("*"):
            name = path.relative_to(self.folder / repository)
            if path.is_file() and any(name.match(pattern) for pattern in allow_patterns):
                (local_dir / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, local_dir / name)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    huggingface_hub = pytest.importorskip("huggingface_hub")
    hub = Hub(tmp_path / "hub")
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda token, library_name: hub)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
    return hub


def test_the_hub(run, hub, tmp_path):
    (tmp_path / "film.mp4").write_bytes(b"film")
    address = push_to_hub(run, "me/pole", video=tmp_path / "film.mp4", private=True, message="second")
    assert address == "https://hub/me/pole"
    assert sorted(path.name for path in (hub.folder / "me" / "pole").iterdir()) == [
        "README.md",
        "best",
        "config.yaml",
        "replay.mp4",
    ]
    assert "from_hub('me/pole')" in (hub.folder / "me" / "pole" / "README.md").read_text()
    assert acts_alike(from_hub("me/pole", revision="main"), run.best())
    assert hub.calls == [("create", "me/pole", True), ("upload", "me/pole", "second"), ("download", "me/pole", "main")]
    from_hub("me/pole", folder=tmp_path / "kept")
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["README.md", "best", "config.yaml"]


def small_agent(seed):
    return PPO(spaces.Box(-1, 1, (4,)), spaces.Discrete(2), seed=seed)


def test_the_agent_that_was_pushed_is_loaded_and_none_that_was_saved_to_the_same_folder(hub, tmp_path):
    new, folder = small_agent(1), small_agent(0).save_checkpoint(tmp_path / "pole")
    push_to_hub(new, "me/pole")
    refused = r"='.*pole' has manifest\.json, so it is the folder of a run or of a saved agent; allowed is another"
    with pytest.raises(ConfigurationError, match=f"repository{refused}"):
        push_to_hub(new, folder)
    with pytest.raises(ConfigurationError, match=f"folder{refused}"):
        from_hub("me/pole", folder=folder)
    assert not (folder / "best").exists()
    new.save_checkpoint(folder / "best")
    assert from_hub(folder).seed == 1


def test_a_download_replaces_an_earlier_one_and_a_failed_one_does_not(hub, tmp_path):
    for seed, repository in enumerate(("me/a", "me/b")):
        push_to_hub(small_agent(seed), repository, env=repository)
        assert from_hub(repository, folder=tmp_path / "kept").seed == from_hub(tmp_path / "kept").seed == seed
        assert repository in (tmp_path / "kept" / "README.md").read_text()
    shutil.rmtree(hub.folder / "me" / "a" / "best")
    with pytest.raises(CheckpointError, match="best' does not exist"):
        from_hub("me/a", folder=tmp_path / "kept")
    assert from_hub(tmp_path / "kept").seed == 1
    assert "me/b" in (tmp_path / "kept" / "README.md").read_text()


def test_a_push_without_a_video_removes_that_of_the_push_before(run, hub, tmp_path):
    (tmp_path / "film.mp4").write_bytes(b"film")
    for repository, folder in ((tmp_path / "local", tmp_path / "local"), ("me/pole", hub.folder / "me" / "pole")):
        for video in (tmp_path / "film.mp4", None):
            push_to_hub(run, repository, video=video)
            assert (folder / "replay.mp4").exists() == (video is not None)


def test_a_video_in_the_folder_itself_stays_and_a_missing_one_is_refused_before_anything_is_written(tmp_path):
    folder = tmp_path / "out"
    for missing in (tmp_path / "film.mp4", tmp_path):
        with pytest.raises(ConfigurationError, match=r"video='.*' is no file; allowed is a film"):
            push_to_hub(small_agent(0), folder, video=missing)
    assert not folder.exists()
    folder.mkdir()
    (folder / "replay.mp4").write_bytes(b"film")
    for _ in range(2):
        push_to_hub(small_agent(0), folder, video=folder / "replay.mp4")
        assert (folder / "replay.mp4").read_bytes() == b"film"


def test_a_video_that_no_push_has_written_is_neither_removed_nor_replaced(tmp_path):
    folder, film = tmp_path / "out", tmp_path / "film.mp4"
    folder.mkdir()
    (folder / "replay.mp4").write_bytes(b"mine")
    film.write_bytes(b"film")
    for video in (None, film):
        with pytest.raises(ConfigurationError, match=r"out' has a replay\.mp4 of its own, which would be replaced or"):
            push_to_hub(small_agent(0), folder, video=video)
    assert [path.name for path in folder.iterdir()] == ["replay.mp4"]
    assert (folder / "replay.mp4").read_bytes() == b"mine"


def test_a_folder_whose_best_is_not_that_of_a_push_stays_as_it_is(tmp_path):
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "mine.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="best'"):
        push_to_hub(small_agent(0), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["best"]


def test_refuses(run, hub, tmp_path, monkeypatch):
    for function in (lambda name: push_to_hub(run, name), from_hub):
        with pytest.raises(
            ConfigurationError, match=r"repository='pole'; allowed are 'user/name' on the Hub, and a pa"
        ):
            function("pole")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "README.md").write_text("mine")
    with pytest.raises(ConfigurationError, match=r"has a README.md that is not a card of this package"):
        push_to_hub(run, tmp_path / "own")
    assert (tmp_path / "own" / "README.md").read_text() == "mine"
    with pytest.raises(CheckpointError, match="does not exist"):
        from_hub(tmp_path / "nowhere")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'agilerl-like\[hub\]'"):
        from_hub("me/pole")
    assert hub.calls == []
