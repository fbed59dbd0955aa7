"""After a power cut, a checkpoint that has its name comes with all files that it needs."""

import contextlib
import os
from pathlib import Path

import pytest
from test_run_settings import SMALL

from agilerl_like import PPO, make_vect_envs, train_on_policy
from agilerl_like.reporting import read_lineage, read_metrics


class Disk:
    """What is sure to be on the disk: contents of files that were synced, under names of folders that were synced."""

    def __init__(self, monkeypatch):
        self.contents, self.names, self.cuts = {}, {}, []
        self._fsync, self._replace = os.fsync, os.replace
        monkeypatch.setattr(os, "fsync", self.fsync)
        monkeypatch.setattr(os, "replace", self.replace)

    def fsync(self, handle):
        self._fsync(handle)
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if path.is_dir():
            self.names[path] = {entry.name: entry.stat().st_ino for entry in os.scandir(path)}
        else:
            self.contents[path.stat().st_ino] = path.read_bytes()

    def replace(self, source, target):
        if Path(target).name.startswith("gen-"):
            self.cuts.append((Path(target), dict(self.contents), {path: dict(its) for path, its in self.names.items()}))
        self._replace(source, target)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="there is no /proc to tell what is synced")
def test_records_and_configuration_are_synced_before_a_checkpoint_is_renamed(tmp_path, monkeypatch):
    run = tmp_path / "runs" / "mine"
    with contextlib.closing(make_vect_envs("CartPole-v1", num_envs=2)) as env:
        settings = {"learn_step": 32, "batch_size": 16, "net_config": SMALL, "num_envs": 2, "seed": 0}
        pop = PPO.population(2, env.single_observation_space, env.single_action_space, **settings)
        disk = Disk(monkeypatch)
        training_args = {"max_steps": 96, "evo_steps": 32, "checkpoint": 32, "eval_loop": 1, "eval_steps": 20}
        train_on_policy(env, pop=pop, run_dir=run, verbose=False, **training_args)
    assert [path.name for path, _, _ in disk.cuts] == ["gen-000001", "gen-000002", "gen-000003"]
    for generation, (path, contents, names) in enumerate(disk.cuts, 1):
        assert "runs" in names[tmp_path]
        assert "mine" in names[tmp_path / "runs"]
        assert "checkpoints" in names[run]
        assert path.name not in names.get(path.parent, {})
        survived = tmp_path / str(generation)
        survived.mkdir()
        for name in ("config.yaml", "metrics.csv", "lineage.jsonl"):
            (survived / name).write_bytes(contents[names[run][name]])
        assert [row["generation"] for row in read_metrics(survived)] == sorted([*range(1, generation + 1)] * 2)
        assert [birth.uid for birth in read_lineage(survived)] == [0, 1]  # initial members, without selection
        assert (survived / "config.yaml").read_bytes() == (run / "config.yaml").read_bytes()
