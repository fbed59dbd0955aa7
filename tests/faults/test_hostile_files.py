"""R5: nothing in a file is executed, and what does not fit is one clear error that costs neither memory nor time.

Every case forges a folder that was well written once, mostly so that the manifest admits it (its sizes and digests are
right), and is loaded as an agent, as a population and as a checkpoint.
"""

import base64
import json
import marshal
import math
import os
import pickle
import re
import shutil
import socket
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import safetensors.torch
import torch
from forgery import Carrier, assert_refused, nested, sparse

from agilerl_like import PPO, HyperparameterConfig, RLParameter
from agilerl_like.algorithms.population import Population
from agilerl_like.errors import CheckpointError
from agilerl_like.storage.checkpoint_folder import Checkpoints, read_checkpoint

CASES: dict[str, Callable] = {}


def load_checkpoint(folder):
    checkpoint = read_checkpoint(folder)
    return Population.from_documents(checkpoint.documents, checkpoint.tensors, device="cpu", where=str(folder))


def make_population():
    return PPO.population(
        size=2,
        observation_space=gymnasium.spaces.Box(-1, 1, (5,)),
        action_space=gymnasium.spaces.Discrete(3),
        hp_config=HyperparameterConfig(lr=RLParameter(1e-5, 1e-2)),
        net_config={"encoder_config": {"hidden_size": [32, 16]}},
        seed=1,
    )


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("originals")
    population = make_population()
    population.fitness = [1.0, 2.0]
    return {
        "agent": Carrier(population[0].save_checkpoint(folder / "agent"), "agent", PPO.load),
        "population": Carrier(population.save_checkpoint(folder / "population"), "member-000", Population.load),
        "checkpoint": Carrier(
            Checkpoints(folder).write(1, *population.to_documents(), score=1.0), "member-000", load_checkpoint
        ),
    }


@pytest.fixture(params=["agent", "population", "checkpoint"])
def carrier(request, originals, tmp_path):
    original = originals[request.param]
    return original._replace(folder=shutil.copytree(original.folder, tmp_path / "forged"))


def case(function):
    CASES[function.__name__] = function
    return function


def cases(**table):
    CASES.update(table)


@pytest.fixture
def canary(tmp_path, monkeypatch):
    """A folder that is made if anything is executed."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "canary"


class Bait:
    def __reduce__(self):
        return os.mkdir, ("canary",)


class Exec:
    def __reduce__(self):
        return exec, ("import os; os.mkdir('canary')",)


def test_the_canary_fires_if_code_runs(canary):
    for bait in (Bait(), Exec()):
        pickle.loads(pickle.dumps(bait))
        canary.rmdir()


def test_unchanged_files_are_loaded(carrier):
    carrier.load(carrier.folder)
    carrier.say()
    carrier.fill()
    carrier.head(lambda header: None)
    carrier.load(carrier.folder)


# -- what would be executed by others

PICKLE = pickle.dumps(Bait())
cases(
    manifest_is_a_pickle=lambda c: c.manifest.write_bytes(PICKLE),
    document_is_a_pickle=lambda c: c.put(c.document, PICKLE),
    weights_are_a_pickle=lambda c: c.put(c.weights, PICKLE),
    weights_are_a_pickle_that_execs=lambda c: c.put(c.weights, pickle.dumps(Exec(), protocol=0)),
    weights_are_a_packed_pickle_as_joblib_has_it=lambda c: c.put(c.weights, zlib.compress(PICKLE)),
    document_is_marshalled_code=lambda c: c.put(
        c.document, marshal.dumps(compile("__import__('os').mkdir('canary')", "x", "exec"))
    ),
    document_is_yaml_with_an_object=lambda c: c.put(c.document, b"!!python/object/apply:os.mkdir ['canary']\n"),
    document_is_python=lambda c: c.put(c.document, b"__import__('os').mkdir('canary')"),
    document_names_a_class_as_jsonpickle_has_it=lambda c: c.put(
        c.document, b'{"py/object": "os.mkdir", "py/reduce": [{"py/function": "os.mkdir"}, ["canary"]]}'
    ),
    encoder_is_code=lambda c: c.set("architecture", encoder="__import__('os').mkdir('canary')"),
    activation_is_code=lambda c: c.build(activation="__import__('os').mkdir('canary')"),
    dtype_is_code=lambda c: c.say(
        hp_config={"lr": {"min": 1e-5, "max": 1e-2, "dtype": "__import__('os').mkdir('canary')"}}
    ),
    space_is_code=lambda c: c.say(action_space={"type": "__import__('os').mkdir('canary')"}),
    metadata_is_a_pickle=lambda c: c.head(
        lambda header: header.update(__metadata__={"pickle": base64.b64encode(PICKLE).decode()})
    ),
)


@case
def weights_are_a_torch_zip(c):
    torch.save({"w": torch.zeros(2), "bait": Bait()}, c.weights)
    c.admit(c.weights)


@case
def weights_are_numpy_objects(c):
    with c.weights.open("wb") as file:
        np.save(file, np.array([Bait()], dtype=object), allow_pickle=True)
    c.admit(c.weights)


@case
def manifest_lists_a_pickle(c):
    c.put(c.folder / "weights.pkl", PICKLE)


@case
def folder_is_a_zip_that_leads_out_of_itself(c):
    shutil.rmtree(c.folder)
    with zipfile.ZipFile(c.folder, "w") as archive:
        archive.writestr("../canary/x", "x")
        archive.writestr("manifest.json", "{}")


# -- names and what lies behind them


def listed(name):
    def forge(c):
        outside = c.folder.parent / "outside.json"
        outside.write_text("{}")
        c.admit(outside)
        manifest = json.loads(c.manifest.read_text())
        manifest["files"][name] = manifest["files"].pop("outside.json")
        c.manifest.write_text(json.dumps(manifest))

    return forge


for what in ("../outside.json", "/etc/outside.json", "a/../../outside.json", "..\\outside.json", "C:outside.json"):
    CASES[f"name_{what}"] = listed(what)
for what in (".json", "..json", "outside.json\0", "outside.json\n", "x" * 300 + ".json", "", "outside", "~.json"):
    CASES[f"name_{what[:20]!r}"] = listed(what)


def instead(place, make):
    """Something else where a file should be."""

    def forge(c):
        file = getattr(c, place)
        file.rename(c.folder / "moved")
        make(file, c.folder / "moved")

    return forge


def make_socket(file, _):
    here = Path.cwd()
    os.chdir(file.parent)  # a socket's path may not be long
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(file.name)
    os.chdir(here)


for place in ("manifest", "document", "weights"):
    CASES[f"{place}_is_missing"] = instead(place, lambda file, moved: None)
    CASES[f"{place}_is_a_folder"] = instead(place, lambda file, moved: file.mkdir())
    CASES[f"{place}_is_a_pipe"] = instead(place, lambda file, moved: os.mkfifo(file))
    CASES[f"{place}_is_a_socket"] = instead(place, make_socket)
    CASES[f"{place}_is_a_link"] = instead(place, lambda file, moved: file.symlink_to(moved))
    CASES[f"{place}_is_a_link_to_itself"] = instead(place, lambda file, moved: file.symlink_to(file))
    CASES[f"{place}_is_endless"] = instead(place, lambda file, moved: file.symlink_to("/dev/zero"))
    CASES[f"{place}_is_empty"] = instead(place, lambda file, moved: file.touch())

# -- manifests


def manifest(**changes):
    return lambda c: c.manifest.write_text(json.dumps(json.loads(c.manifest.read_text()) | changes))


def described(**changes):
    def forge(c):
        manifest = json.loads(c.manifest.read_text())
        manifest["files"][c.document.name] |= changes
        c.manifest.write_text(json.dumps(manifest))

    return forge


cases(
    schema_of_the_future=manifest(schema="agilerl-like/2"),
    schema_of_nobody=manifest(schema=None),
    schema_without_end=manifest(schema="x" * 10**6),
    kind_of_something_else=manifest(kind="virus"),
    kind_is_a_list=manifest(kind=["agent"]),
    files_is_a_list=manifest(files=["agent.json"]),
    files_is_empty=manifest(files={}),
    files_say_nothing=manifest(files={"agent.json": None, "member-000.json": None}),
    manifest_is_a_list=lambda c: c.manifest.write_text("[]"),
    manifest_is_deep=lambda c: c.manifest.write_text("[" * 10**6),
    manifest_is_deep_and_hides_it=lambda c: c.manifest.write_text('["' + "]" * 5000 + '",' + "[" * 5000),
    manifest_is_binary=lambda c: c.manifest.write_bytes(bytes(range(256)) * 100),
    manifest_is_utf16=lambda c: c.manifest.write_bytes(c.manifest.read_text().encode("utf-16")),
    manifest_says_a_key_twice=lambda c: c.manifest.write_text('{"schema": 1, ' + c.manifest.read_text()[1:]),
    manifest_is_10_gb=sparse("manifest", 10**10),
    size_is_nan=described(bytes=math.nan),
    size_is_infinite=described(bytes=math.inf),
    size_is_negative=described(bytes=-1),
    size_is_text=described(bytes="100"),
    size_is_huge=described(bytes=10**4000),
    size_has_too_many_digits=lambda c: c.manifest.write_text(
        re.sub(r'"bytes": \d+', lambda match: '"bytes": 1' + "0" * 10**5, c.manifest.read_text())
    ),
    digest_is_wrong=described(sha256="0" * 64),
    digest_is_null=described(sha256=None),
    digest_is_a_list=described(sha256=[]),
)

# -- documents


def space(**changes):
    return lambda c: c.set("observation_space", **changes)


BOX = {"type": "Box", "dtype": "float32", "shape": [1], "low": 0.0, "high": 1.0}
cases(
    document_is_10_gb=sparse("document", 10**10),
    document_is_9_mb_of_text=lambda c: c.say(mut="x" * 9 * 2**20),
    document_is_wide=lambda c: c.put(c.document, b"[" + b"0," * 10**6 + b"0]"),
    document_is_many_lists=lambda c: c.put(c.document, b"[" + b"[]," * 2 * 10**5 + b"0]"),
    document_is_deep=lambda c: c.put(c.document, b'{"a":' * 10**5),
    document_is_a_list=lambda c: c.put(c.document, b"[]"),
    document_is_null=lambda c: c.put(c.document, b"null"),
    document_is_cut=lambda c: c.put(c.document, c.document.read_bytes()[:-2]),
    document_says_a_key_twice=lambda c: c.put(c.document, b'{"seed": 0, ' + c.document.read_bytes()[1:]),
    document_is_not_utf8=lambda c: c.put(c.document, b'{"mut": "\xff"}'),
    document_is_empty_table=lambda c: c.put(c.document, b"{}"),
    document_has_a_number_without_end=lambda c: c.put(c.document, b"1" * 10**5),
    algorithm_is_unknown=lambda c: c.say(algorithm="SAC"),
    algorithm_is_a_list=lambda c: c.say(algorithm=["PPO"]),
    index_is_negative=lambda c: c.say(index=-1),
    index_is_text=lambda c: c.say(index="0"),
    index_is_a_fraction=lambda c: c.say(index=0.5),
    index_is_huge=lambda c: c.say(index=10**400),
    seed_is_negative=lambda c: c.say(seed=-1),
    seed_is_nan=lambda c: c.say(seed=math.nan),
    seed_is_true=lambda c: c.say(seed=True),
    updates_are_negative=lambda c: c.say(updates=-1),
    draws_are_negative=lambda c: c.say(draws=-1),
    draws_are_null=lambda c: c.say(draws=None),
    num_envs_is_zero=lambda c: c.say(num_envs=0),
    num_envs_is_a_list=lambda c: c.say(num_envs=[1]),
    steps_are_negative=lambda c: c.say(steps=[0, -100]),
    steps_are_texts=lambda c: c.say(steps=["0"]),
    steps_are_a_number=lambda c: c.say(steps=0),
    fitness_is_text=lambda c: c.say(fitness="123"),
    fitness_is_texts=lambda c: c.say(fitness=["nan"]),
    fitness_is_lists_of_lists=lambda c: c.say(fitness=[[[1.0]]]),
    fitness_is_huge=lambda c: c.say(fitness=[10**4000]),
    scores_are_null=lambda c: c.say(scores=None),
    mut_is_a_list=lambda c: c.say(mut=["x"]),
    lr_is_negative=lambda c: c.set("settings", lr=-1.0),
    lr_is_nan=lambda c: c.set("settings", lr=math.nan),
    lr_is_infinite=lambda c: c.set("settings", lr=math.inf),
    lr_is_beyond_its_range=lambda c: c.set("settings", lr=0.5),
    gamma_is_two=lambda c: c.set("settings", gamma=2.0),
    batch_size_is_zero=lambda c: c.set("settings", batch_size=0),
    batch_size_is_beyond_the_rollout=lambda c: c.set("settings", batch_size=10**9),
    update_epochs_is_a_list=lambda c: c.set("settings", update_epochs=[4]),
    settings_have_another=lambda c: c.set("settings", backdoor=1),
    settings_are_a_list=lambda c: c.say(settings=[]),
    hp_config_is_a_list=lambda c: c.say(hp_config=[1]),
    hp_config_is_reversed=lambda c: c.say(hp_config={"lr": {"min": 1e-2, "max": 1e-5}}),
    hp_config_is_infinite=lambda c: c.say(hp_config={"lr": {"min": 0, "max": math.inf}}),
    hp_config_is_huge=lambda c: c.say(hp_config={"lr": {"min": 0, "max": 10**400}}),
    hp_config_has_a_factor_of_nan=lambda c: c.say(hp_config={"lr": {"min": 0, "max": 1, "grow_factor": math.nan}}),
    hp_config_has_another=lambda c: c.say(hp_config={"__class__": {"min": 0, "max": 1}}),
    architecture_is_null=lambda c: c.say(architecture=None),
    encoder_is_unknown=lambda c: c.set("architecture", encoder="transformer"),
    encoder_is_the_users_own=lambda c: c.set("architecture", encoder="custom"),
    encoder_is_for_images=lambda c: c.set("architecture", encoder="cnn", encoder_config={}),
    layer_is_gigantic=lambda c: c.build(hidden_size=[10**6, 10**6], max_mlp_nodes=10**6),
    layer_is_beyond_counting=lambda c: c.build(hidden_size=[10**15, 10**15], max_mlp_nodes=10**15),
    layer_is_beyond_its_range=lambda c: c.build(hidden_size=[10**6]),
    layer_is_negative=lambda c: c.build(hidden_size=[-32, 16]),
    layer_is_a_fraction=lambda c: c.build(hidden_size=[32.5, 16]),
    layers_without_end=lambda c: c.build(hidden_size=[16] * 10**5, max_hidden_layers=10**5),
    blocks_without_end=lambda c: c.set(
        "architecture",
        encoder="simba",
        encoder_config={"hidden_size": 16, "num_blocks": 10**9, "max_blocks": 10**9},
    ),
    latent_is_gigantic=lambda c: c.set("architecture", latent_dim=10**9, max_latent_dim=10**9),
    another_architecture=lambda c: c.build(hidden_size=[16, 32]),
    another_head=lambda c: c.set("architecture", head_config={"hidden_size": [128]}),
    space_is_null=lambda c: c.say(observation_space=None),
    space_is_unknown=space(type="Graph"),
    space_is_a_terabyte=space(shape=[10**6, 10**6]),
    space_is_a_gigabyte=space(shape=[10**9]),
    space_multiplies_texts=space(shape=[10**9, "ab"]),
    space_is_negative=space(shape=[-5]),
    space_is_nothing=space(shape=[0]),
    space_has_bounds_of_nan=space(low=math.nan),
    space_has_bounds_of_lists=space(low=[[[1]]]),
    space_has_another_shape=space(shape=[6]),
    space_has_cells_of_a_gigabyte=space(dtype="S1000000000"),
    space_has_objects=space(dtype="O"),
    space_is_deep=lambda c: c.say(observation_space=nested(25)),
    space_is_deep_without_end=lambda c: c.say(observation_space=nested(400)),
    space_has_parts_without_end=lambda c: c.say(observation_space={"type": "Tuple", "spaces": [BOX] * 20_000}),
    space_has_a_trillion_choices=lambda c: c.say(
        observation_space={"type": "Discrete", "dtype": "int64", "n": 10**12, "start": 0}
    ),
    space_has_a_trillion_bits=lambda c: c.say(observation_space={"type": "MultiBinary", "n": 10**12}),
    space_has_choices_that_overflow=lambda c: c.say(
        observation_space={"type": "MultiDiscrete", "dtype": "int64", "nvec": [2**62] * 4, "start": [0] * 4}
    ),
    actions_are_a_gigabyte=lambda c: c.say(action_space=BOX | {"shape": [10**9]}),
    actions_are_a_million=lambda c: c.say(action_space={"type": "Discrete", "dtype": "int64", "n": 10**6, "start": 0}),
    actions_are_fewer=lambda c: c.say(action_space={"type": "Discrete", "dtype": "int64", "n": 2, "start": 0}),
)

# -- tensors


def header_of(size):
    """A header that claims so many bytes, in a file of 1 kB."""
    return lambda c: c.put(c.weights, size.to_bytes(8, "little") + b"{" * 1000)


def entry(**changes):
    def change(header):
        header[next(iter(header))] |= changes

    return lambda c: c.head(change)


def swapped(header):
    first, second = [name for name, entry in header.items() if entry["shape"] == [16]][:2]
    header[first]["data_offsets"] = header[second]["data_offsets"]


def shifted(header):
    for entry in header.values():
        entry["data_offsets"] = [place + 4 for place in entry["data_offsets"]]


@case
def header_of_100_mb(c):
    c.weights.write_bytes((10**8).to_bytes(8, "little") + b'{"x":{}')
    os.truncate(c.weights, 10**8 + 8)
    c.admit(c.weights)


@case
def weights_are_10_gb(c):
    numbers = 10**10 // 4
    header = json.dumps({"network.x": {"dtype": "F32", "shape": [numbers], "data_offsets": [0, 4 * numbers]}}).encode()
    c.weights.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(c.weights, 8 + len(header) + 4 * numbers)
    c.admit(c.weights, sha256="0" * 64)


@case
def recent_observations_are_4_gb(c):
    def change(header):
        start = header["recent_observations"]["data_offsets"][0]
        (last,) = [entry for entry in header.values() if entry["data_offsets"] == [start, start]]
        last |= {"shape": [2 * 10**8, 5], "data_offsets": [end, end + 4 * 10**9]}

    data = c.weights.read_bytes()
    size = int.from_bytes(data[:8], "little")
    end = len(data) - 8 - size
    c.head(change)
    os.truncate(c.weights, c.weights.stat().st_size + 4 * 10**9)
    c.admit(c.weights, sha256="0" * 64)


ROWS = torch.zeros(8, 5)
cases(
    weights_are_cut=lambda c: c.put(c.weights, c.weights.read_bytes()[:-1]),
    weights_are_cut_in_the_header=lambda c: c.put(c.weights, c.weights.read_bytes()[:100]),
    weights_are_7_bytes=lambda c: c.put(c.weights, b"1234567"),
    weights_have_more_behind=lambda c: c.put(c.weights, c.weights.read_bytes() + b"\0" * 8),
    weights_were_changed=lambda c: c.weights.write_bytes(c.weights.read_bytes()[:-1] + b"\1"),
    header_is_beyond_the_file=header_of(10**4),
    header_is_beyond_the_world=header_of(2**64 - 1),
    header_is_negative=header_of(2**63),
    header_is_no_json=lambda c: c.head(lambda header: b"not json"),
    header_is_a_list=lambda c: c.head(lambda header: b"[]"),
    header_is_deep=lambda c: c.head(lambda header: b"[" * 5000),
    header_says_a_name_twice=lambda c: c.head(lambda header: b'{"adam.steps": {}, ' + json.dumps(header).encode()[1:]),
    header_of_many_tensors=lambda c: c.head(
        lambda header: header.update(
            {f"x{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(30_000)}
        )
    ),
    header_is_nothing=lambda c: c.put(c.weights, (2).to_bytes(8, "little") + b"{}"),
    entry_is_null=lambda c: c.head(lambda header: header.update({"adam.steps": None})),
    entry_has_no_shape=lambda c: c.head(lambda header: header["adam.steps"].pop("shape") and None),
    offsets_overlap=lambda c: c.head(swapped),
    offsets_leave_a_gap=lambda c: c.head(shifted),
    offsets_are_reversed=entry(data_offsets=[100, 0]),
    offsets_are_negative=entry(data_offsets=[-100, 0]),
    offsets_are_huge=entry(data_offsets=[0, 2**64]),
    offsets_are_beyond_all=entry(data_offsets=[0, 10**4000]),
    offsets_are_text=entry(data_offsets=["0", "4"]),
    offsets_are_three=entry(data_offsets=[0, 4, 8]),
    shape_is_huge=entry(shape=[2**62, 2**62]),
    shape_overflows=entry(shape=[2**32, 2**32]),
    shape_is_negative=entry(shape=[-1]),
    shape_is_a_fraction=entry(shape=[1.0]),
    shape_is_true=entry(shape=[True]),
    shape_is_nan=entry(shape=[math.nan]),
    shape_has_axes_without_end=entry(shape=[1] * 10**4),
    shape_is_digits_without_end=entry(shape=[10**4000] * 100),
    dtype_is_unknown=entry(dtype="OBJECT"),
    dtype_is_a_list=entry(dtype=["F32"]),
    dtype_is_complex=lambda c: c.fill(**{"adam.steps": torch.zeros(1, dtype=torch.complex64)}),
    tensor_is_missing=lambda c: c.fill(**{"adam.exp_avg": None}),
    tensor_too_many=lambda c: c.fill(backdoor=torch.zeros(1)),
    tensor_of_another_shape=lambda c: c.fill(**{"adam.steps": torch.zeros(2)}),
    tensor_of_another_dtype=lambda c: c.fill(**{"adam.steps": torch.zeros(1, dtype=torch.float64)}),
    tensor_that_would_spread=lambda c: c.fill(**{"adam.exp_avg": torch.zeros(1, 1)}),
    weight_on_its_side=lambda c: c.fill(**{"network.actor.encoder.linears.0.weight": torch.zeros(5, 32)}),
    steps_of_adam_are_negative=lambda c: c.fill(**{"adam.steps": torch.tensor([-1.0])}),
    squares_are_negative=lambda c: c.fill(
        **{"adam.exp_avg_sq": -torch.ones_like(safetensors.torch.load_file(c.weights)["adam.exp_avg_sq"])}
    ),
    recent_observations_are_too_wide=lambda c: c.fill(recent_observations=torch.zeros(8, 6)),
    recent_observations_are_too_many=lambda c: c.fill(recent_observations=torch.zeros(1025, 5)),
    recent_observations_are_bytes=lambda c: c.fill(recent_observations=ROWS.byte()),
    recent_observations_are_one=lambda c: c.fill(recent_observations=ROWS[0]),
)


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_file_is_refused_without_executing_code(name, carrier, canary):
    CASES[name](carrier)
    assert_refused(carrier)
    assert not canary.exists()


def test_there_are_enough_of_them():
    assert len(CASES) >= 40


@pytest.mark.parametrize(
    "facts",
    [
        None,
        [],
        {"algorithm": "PPO", "size": 3, "fitness": []},
        {"algorithm": "PPO", "size": 10**400, "fitness": []},
        {"algorithm": ["PPO"], "size": 2, "fitness": []},
        {"algorithm": "SAC", "size": 2, "fitness": []},
        {"algorithm": "PPO", "size": 2},
        {"algorithm": "PPO", "size": 2, "fitness": "12"},
        {"algorithm": "PPO", "size": 2, "fitness": [1.0, "nan"]},
        {"algorithm": "PPO", "size": 2, "fitness": [10**400, 0]},
    ],
)
def test_an_invalid_population_is_refused(originals, tmp_path, facts):
    original = originals["population"]
    carrier = original._replace(folder=shutil.copytree(original.folder, tmp_path / "forged"))
    carrier.put(carrier.folder / "population.json", json.dumps(facts).encode())
    with pytest.raises(CheckpointError):
        carrier.load(carrier.folder)


def test_members_that_do_not_form_a_population_are_refused(originals, tmp_path):
    original = originals["population"]
    carrier = original._replace(folder=shutil.copytree(original.folder, tmp_path / "forged"))
    carrier.say(index=1)  # the other one has it
    with pytest.raises(CheckpointError, match="must be different for every agent"):
        carrier.load(carrier.folder)
