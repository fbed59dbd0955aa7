"""Law 9, and more: a run on one process and on several is one run."""

import math
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import pytest
import torch
from forked_ranks import run_forked
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.envs.registration import EnvSpec
from small_runs import SMALL, Records

from agilerl_like import PPO, HyperparameterConfig, Mutations, RLParameter, TournamentSelection, make_vect_envs
from agilerl_like.cli import main
from agilerl_like.distributed import process_group
from agilerl_like.distributed.heartbeat import HeartbeatMonitor, NullMonitor
from agilerl_like.distributed.launcher import is_sendable
from agilerl_like.distributed.process_group import (
    COLLECTIVE_TIMEOUT,
    MultiProcess,
    ReplicaGroup,
    Shard,
    SingleProcess,
    Transfer,
    device_of_rank,
    plan_transfers,
    shard_members,
)
from agilerl_like.envs.env_ids import register_missing, registered_specs
from agilerl_like.errors import ConfigurationError
from agilerl_like.learning.rollout_buffer import FinalObservations, Rollout
from agilerl_like.reporting import Reporter
from agilerl_like.training import train_on_policy
from agilerl_like.training.checkpoint_manager import RunFinished
from agilerl_like.training.session import ProcessRun, check_processes

LIVELY = Mutations(no_mutation=0.1, architecture=0.4, parameters=0.2, activation=0.1, rl_hp=0.2)


pytestmark = pytest.mark.usefixtures("empty_folder")


class Births(Reporter):
    """Keeps what evolution decided."""

    def __init__(self):
        self.found = []

    def offspring(self, births):
        self.found += [birth.to_json() for birth in births]


def lived(processes, *, size=4, generations=4, run_dir=None, resume=None, hook=None, env_options=None, **settings):
    """A run's members as documents and tensors, its fitness, and its births."""
    env = make_vect_envs("CartPole-v1", num_envs=4, **(env_options or {}))
    ranges = HyperparameterConfig(lr=RLParameter(1e-4, 1e-2), batch_size=RLParameter(16, 128, dtype=int))
    defaults = {"learn_step": 64, "batch_size": 32, "update_epochs": 2, "lr": 1e-3, "seed": 5, "net_config": SMALL}
    population = PPO.population(
        size, env.single_observation_space, env.single_action_space, hp_config=ranges, **{**defaults, **settings}
    )
    for agent in population if hook is not None else ():
        agent.register_mutation_hook(hook)
    births = Births()
    population, fitness = train_on_policy(
        env,
        pop=population,
        max_steps=256 * generations,
        evo_steps=256,
        eval_loop=2,
        checkpoint=512,
        selection_strategy=TournamentSelection(2) if size > 1 else None,
        mutation=LIVELY,
        processes=processes,
        verbose=False,
        reporters=[births],
        run_dir=run_dir,
        resume=resume,
    )
    env.close()
    return population.to_documents(), fitness, births.found


def test_members_are_sharded_evenly_by_architecture():
    wide, deep = {"hidden_size": [64]}, {"hidden_size": [8, 8]}
    shards = shard_members([wide, deep, wide, deep, wide], 2)
    assert [len(shard.slots) for shard in shards] == [2, 3]
    assert sorted(slot for shard in shards for slot in shard.slots) == [0, 1, 2, 3, 4]
    assert shards[0].slots == (0, 2)  # alike; the ones that are left must share a process with the fifth
    assert all(shard.parts == 1 for shard in shards)


def test_more_processes_than_members_make_replicas():
    assert shard_members([None] * 2, 5) == (
        Shard((0,), 0, 3),
        Shard((0,), 1, 3),
        Shard((0,), 2, 3),
        Shard((1,), 0, 2),
        Shard((1,), 1, 2),
    )


def test_members_are_transferred_once_and_only_where_missing():
    shards = (Shard((0, 1)), Shard((2, 3)))
    assert plan_transfers([(0, 0), (0, 1), (0, 1), (3, 1), (2, 0)], shards) == [Transfer(0, 0, 1), Transfer(2, 1, 0)]


class ReplicaOf(SingleProcess):
    """One of several processes, of which the others' documents are known."""

    def __init__(self, rank, documents):
        super().__init__()
        self.rank, self.size, self.documents = rank, len(documents), documents

    def all_gather(self, document):
        assert document == self.documents[self.rank]
        return self.documents


def test_replicas_decide_by_the_value_of_the_first():
    """An env that ignores its seeds gives each replica other returns; each deciding by its own would end the run."""
    documents = [{"0": "1.5"}, {"0": "2.5"}, {"1": "4.0"}, {"1": "3.0"}]
    for rank in range(4):
        own = {int(slot): float(value) for slot, value in documents[rank].items()}
        gathered = ReplicaOf(rank, documents).all_gather_dict(own, encode=str, decode=float)
        assert list(gathered.items()) == [(0, 1.5), (1, 4.0)]


class Exchange:
    """The collectives of two processes that are threads; a group is a rank."""

    def __init__(self):
        self._given, self._barrier = [None, None], threading.Barrier(2, timeout=10)

    def both(self, x, rank):
        self._given[rank] = x.clone()
        self._barrier.wait()
        given = list(self._given)
        self._barrier.wait()
        assert given[0].shape == given[1].shape
        return given

    def all_reduce(self, x, group):
        x.copy_(sum(self.both(x, group)))

    def all_gather(self, parts, x, group):
        for part, given in zip(parts, self.both(x, group), strict=True):
            part.copy_(given)


@pytest.mark.parametrize("masked", [(True, False), (False, True), (False, False)])
def test_replicas_learn_together_if_only_one_of_them_has_had_action_masks(monkeypatch, masked):
    exchange, shape = Exchange(), (4, 1, 2)
    monkeypatch.setattr(process_group.dist, "all_reduce", exchange.all_reduce)
    monkeypatch.setattr(process_group.dist, "all_gather", exchange.all_gather)

    def gathered(rank):
        flags, observations = torch.zeros(shape), torch.full((*shape, 5), float(rank))
        rollout = Rollout.from_steps(
            observations,
            torch.zeros(*shape, 1, dtype=torch.int64),
            *(flags, flags, flags, flags + 1),
            observations[-1],
            FinalObservations.none(observations, 1),
            torch.zeros(*shape, 3, dtype=torch.bool) if masked[rank] else None,
            torch.zeros(1, 2, 0, 0, 0),
        )
        return ReplicaGroup(rank, Shard((0,), rank, 2), torch.device("cpu"), nullcontext).all_gather(rollout)

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(gathered, range(2))
    assert one.next_observations[0, :, 0].tolist() == other.next_observations[0, :, 0].tolist() == [0, 0, 1, 1]
    if not any(masked):
        assert one.masks is None
        assert other.masks is None
        return
    assert torch.equal(one.masks, other.masks)
    assert one.masks.shape == (1, 4, 4, 3)
    assert one.masks[0, 0, :, 0].tolist() == [not masked[0]] * 2 + [not masked[1]] * 2


class Joined:
    """An Accelerator's process."""

    process_index, num_processes, local_process_index, device = 0, 2, 0, torch.device("cpu")


@pytest.fixture
def backend(monkeypatch):
    """A process group whose processes cannot be reached."""

    def fail(*_, group):
        raise RuntimeError("connection closed")

    monkeypatch.setattr(process_group, "open_store", lambda *_: SimpleNamespace(port=1))
    monkeypatch.setattr(process_group.dist, "get_backend", lambda: "gloo")
    monkeypatch.setattr(process_group.dist, "new_group", lambda timeout: None)
    monkeypatch.setattr(process_group.dist, "all_gather", fail)
    return monkeypatch


def test_a_connection_that_breaks_at_the_start_is_the_error(backend):
    with pytest.raises(RuntimeError, match="connection closed"):
        MultiProcess(Joined())


def test_processes_and_replicas_wait_for_each_other_for_hours(backend):
    """The group of a script's own Accelerator has torch's timeout of ten or thirty minutes."""
    made = []
    backend.setattr(process_group.dist, "new_group", lambda ranks=None, timeout=None: made.append((ranks, timeout)))
    backend.setattr(MultiProcess, "_make_monitor", lambda self, describe_exit: self.monitor)
    MultiProcess(Joined()).gradient_sync(shard_members([None], 2))
    assert made == [(None, COLLECTIVE_TIMEOUT), ([0, 1], COLLECTIVE_TIMEOUT)]


def test_the_end_of_a_run_that_is_resumed_is_no_failure_of_a_process(monkeypatch):
    """A slower process, which still closes its trackers, would report it as one and exit with 75."""
    errors = []

    class Watched(NullMonitor):
        def leave(self, error=""):
            errors.append(error)

    def finished(run, *, resume):
        raise RunFinished("run has ended: budget spent", None, ["max_steps"])

    monkeypatch.setattr(ProcessRun, "_run_once", finished)
    group = SingleProcess()
    group.monitor = Watched()
    with pytest.raises(RunFinished, match="budget spent"):
        ProcessRun(group, None, None, None, None).run(resume=True)
    assert errors == [""]


def noted(agent):
    """A mutation hook that any process can import; it leaves a trace that is saved with the member."""
    agent.mut = f"{agent.mut}, noted"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of one process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("whole"))
        return lived(1, per_member=True)


def test_two_processes_give_the_same_bits_as_one_and_both_call_hooks(whole):
    (documents, tensors), fitness, births = whole
    (others, their_tensors), their_fitness, their_births = lived(2, per_member=True, hook=noted)
    born = {birth["uid"] for birth in births if birth["mutations"] and not birth["survives"]}
    members = {name: its for name, its in others.items() if name.startswith("member-")}
    newcomers = [member for member in members.values() if member["index"] in born]
    assert newcomers
    for member in newcomers:
        assert member["mut"].endswith(", noted")
    for its in others.values():  # the members and the best one of the run
        if "mut" in its:
            its["mut"] = its["mut"].replace(", noted", "")
    assert any(not birth["survives"] for birth in births[4:])  # there were offspring, so members may have moved
    assert their_births == births
    assert their_fitness == fitness
    assert others == documents
    for name, named in tensors.items():
        for key, tensor in named.items():
            assert torch.equal(their_tensors[name][key], tensor), (name, key)


@pytest.mark.slow
def test_two_replicas_learn_what_one_process_would():
    limit = {"name": "TimeLimit", "max_episode_steps": 14}  # some episodes end before, so processes cut unequal numbers
    options = {"wrappers": [limit], "backend": "sync"}
    (documents, tensors), fitness, _ = lived(1, size=1, generations=2, env_options=options)
    (others, their_tensors), their_fitness, _ = lived(2, size=1, generations=2, env_options=options)
    assert their_fitness == fitness
    assert {**others["member-000"], "scores": []} == {**documents["member-000"], "scores": []}
    assert their_tensors["member-000"].keys() == tensors["member-000"].keys()
    for key, tensor in tensors["member-000"].items():
        torch.testing.assert_close(their_tensors["member-000"][key], tensor, rtol=1e-4, atol=1e-5)
    theirs, ours = others["member-000"]["scores"], documents["member-000"]["scores"]
    assert theirs == pytest.approx(ours, nan_ok=True)
    assert not any(math.isnan(score) for score in ours)


def trained_by_two(env, population, **more):
    return train_on_policy(env, pop=population, max_steps=256, evo_steps=128, processes=2, verbose=False, **more)


def two_members(env, **settings):
    settings = {"num_envs": 2, "learn_step": 64, "seed": 1, "net_config": SMALL, **settings}
    return PPO.population(2, env.single_observation_space, env.single_action_space, **settings)


class SlowToMake(CartPoleEnv):
    """Its constructor takes a moment in rank 1, once; a file shows that it has ended."""

    def __init__(self, file):
        super().__init__()
        if os.environ.get("RANK") == "1" and not Path(file).exists():
            time.sleep(0.5)
            Path(file).touch()


def test_heartbeats_of_other_processes_are_expected_when_they_have_made_their_envs(tmp_path, monkeypatch):
    """The making of envs may take longer than a rank may be silent."""
    file, made, enter = tmp_path / "made", [], HeartbeatMonitor.__enter__
    monkeypatch.setattr(HeartbeatMonitor, "__enter__", lambda monitor: made.append(file.exists()) or enter(monitor))
    env = make_vect_envs(SlowToMake, num_envs=2, backend="sync", file=str(file))
    trained_by_two(env, two_members(env))
    assert made == [True]


def test_ids_that_the_script_alone_has_registered_are_made_by_all_processes(monkeypatch):
    """As those below a main guard: the env's, those of its instances, and the eval_env's."""
    for name in ("Guarded", "GuardedLow", "GuardedHigh", "GuardedTrial"):
        spec = EnvSpec(f"{name}-v0", entry_point=CartPoleEnv, max_episode_steps=9)
        monkeypatch.setitem(gymnasium.registry, spec.id, spec)
    instances = [{"id": "GuardedLow-v0"}, {"id": "GuardedHigh"}]
    env = make_vect_envs("Guarded-v0", num_envs=2, backend="sync", instances=instances)
    trials = make_vect_envs("GuardedTrial-v0", backend="sync")
    population, _ = trained_by_two(env, two_members(env), eval_env=trials)
    assert population.outcome == "budget spent"


def test_an_id_whose_entry_point_cannot_be_sent_is_left_to_the_other_process(monkeypatch):
    for name, entry_point in (("Sendable", CartPoleEnv), ("Inline", lambda: CartPoleEnv())):
        monkeypatch.setitem(gymnasium.registry, f"{name}-v0", EnvSpec(f"{name}-v0", entry_point=entry_point))
    specs = registered_specs(["Sendable-v0", "Inline-v0", "gymnasium:CartPole-v0", CartPoleEnv])
    assert [(spec.id, is_sendable(spec)) for spec in specs] == [("Sendable-v0", True), ("Inline-v0", False)]
    assert registered_specs(["Sendable"]) == specs[:1]
    own = EnvSpec("Sendable-v0", entry_point=SlowToMake)
    monkeypatch.setitem(gymnasium.registry, "Sendable-v0", own)
    register_missing(specs)
    assert gymnasium.registry["Sendable-v0"] is own
    del gymnasium.registry["Sendable-v0"]
    register_missing(specs)
    assert gymnasium.registry["Sendable-v0"] is specs[0]


@pytest.mark.parametrize("member", range(2))
def test_a_setting_that_is_illegal_for_a_member_of_any_process_is_the_error(member):
    env = make_vect_envs("CartPole-v1", num_envs=2)
    population = two_members(env)
    population[member].learning_starts = 100_000  # illegal with the steps of the run
    with pytest.raises(ConfigurationError, match="learning_starts=100000 is more than"):
        trained_by_two(env, population)


@pytest.mark.parametrize("largest", [64, 512])
def test_unused_ranges_are_reported_if_the_members_of_all_processes_have_them(largest):
    env, records = make_vect_envs("CartPole-v1", num_envs=2), Records()
    population = two_members(env, hp_config=HyperparameterConfig(batch_size=RLParameter(16, 512, dtype=int)))
    population[1].hp_config = HyperparameterConfig(batch_size=RLParameter(16, largest, dtype=int))
    trained_by_two(env, population, reporters=[records])
    assert sum("hp_config.batch_size is 16 to 512" in text for text in records.warnings) == (largest == 512)


@pytest.mark.parametrize("processes", [0, 1.5, "two"])
def test_an_invalid_number_of_processes_is_refused(processes):
    with pytest.raises(ConfigurationError, match="processes="):
        lived(processes)


def test_envs_that_cannot_be_divided_among_processes_are_refused():
    env = make_vect_envs("CartPole-v1", num_envs=3)
    population = PPO.population(1, env.single_observation_space, env.single_action_space)
    with pytest.raises(ConfigurationError, match=r"num_envs=3 of each of 1 member cannot be divided among"):
        train_on_policy(env, pop=population, max_steps=300, evo_steps=300, processes=2, verbose=False)


def test_every_member_has_as_many_processes_as_divide_its_envs():
    """40 processes of 6 members are 6 or 7 for each, of which neither divides 16 envs; 3 of 2 members are 2 and 1."""
    allowed = "allowed are 1 to 6, or 6 times a divisor of num_envs: 12, 24, 48, 96"
    with pytest.raises(ConfigurationError, match=f"processes=40: the num_envs=16 of each of 6 members .*{allowed}"):
        check_processes(40, 6, 16)
    with pytest.raises(ConfigurationError, match="processes=40"):
        check_processes(40, 6, 14)  # 7 divides 14, and 6 does not
    for processes, members, envs in ((48, 6, 16), (3, 2, 4), (6, 6, 1), (8, 8, 3)):
        check_processes(processes, members, envs)


def test_members_of_all_processes_have_equally_many_envs(monkeypatch):
    """As on two ranks with one and two members, which divide the rows of an env that cannot be made again."""

    def all_gather(self, document):
        return [document, [document[0], 2 * document[1]]] if isinstance(document, list) else [document]

    monkeypatch.setattr(SingleProcess, "all_gather", all_gather)
    env = make_vect_envs("CartPole-v1", num_envs=2)
    population = PPO.population(1, env.single_observation_space, env.single_action_space, num_envs=2)
    with pytest.raises(ConfigurationError, match=r"num_envs=2 gives each member \[2, 4\] envs on the 2 processes"):
        train_on_policy(env, pop=population, max_steps=100, evo_steps=100, verbose=False)


@pytest.mark.slow
def test_a_finished_run_is_returned_and_continues_with_a_larger_budget(whole, tmp_path):
    half = lived(1, per_member=True, generations=2, run_dir=tmp_path / "run")
    again = lived(1, per_member=True, generations=2, resume=tmp_path / "run")
    assert again[0][0] == half[0][0]
    assert again[1] == half[1]
    assert again[2] == []
    resumed = lived(1, per_member=True, resume=tmp_path / "run")
    assert resumed[0][0] == whole[0][0]
    assert resumed[1] == whole[1]
    assert resumed[2] == [birth for birth in whole[2] if birth["generation"] >= 2]
    for name, named in whole[0][1].items():
        assert all(torch.equal(resumed[0][1][name][key], tensor) for key, tensor in named.items())


def test_a_hook_that_cannot_be_sent_is_named_before_anything_starts():
    with pytest.raises(ConfigurationError, match="lambda"):
        lived(2, hook=lambda agent: None)


@pytest.mark.parametrize("rank", range(4))
def test_each_local_rank_has_its_own_gpu(rank):
    assert device_of_rank(torch.device("cuda"), rank, gpus=4) == torch.device("cuda", rank)
    assert device_of_rank(torch.device("cpu"), rank, gpus=4) == torch.device("cpu")


def test_more_processes_than_gpus_are_refused():
    with pytest.raises(ConfigurationError, match="process 2 of this machine, which has 2 GPUs; allowed are"):
        device_of_rank(torch.device("cuda"), 2, gpus=2)
    with pytest.raises(ConfigurationError, match="'cuda:1' is a single GPU"):
        device_of_rank(torch.device("cuda:1"), 0, gpus=2)


def test_a_port_that_is_in_use_is_one_error(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        group = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ended = run_forked(main, ["train", "cartpole"], folder=tmp_path, ACCELERATE_USE_CPU="true", **group)
    assert ended.returncode == 2
    assert f"MASTER_PORT='{port}': the processes cannot connect there (it is in use); allowed is a free" in ended.stderr
    assert "Traceback" not in ended.stderr
