"""Exported policies return the agent's actions, for every kind of network and action space."""

import copy
import errno
import inspect
import re
import resource
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from slow_cases import with_slow
from torch import nn

from agilerl_like import IPPO, PPO
from agilerl_like.cli import main
from agilerl_like.errors import ConfigurationError
from agilerl_like.export import exporter
from agilerl_like.export.numpy_policy import TITLE, load_numpy_policy
from agilerl_like.hpo import Mutation

VECTOR = Box(-3.0, 3.0, (4,))
IMAGE = Box(0, 255, (3, 16, 16), np.uint8)
LARGEST = float(np.finfo(np.float32).max)
CASES = {
    "mlp": (VECTOR, Discrete(3, start=1), {}),
    "layer norm, ELU, GELU": (
        VECTOR,
        Discrete(3),
        {
            "net_config": {
                "encoder_config": {"activation": "ELU", "layer_norm": True},
                "head_config": {"activation": "GELU"},
            }
        },
    ),
    "Mish, Softplus, no bounds": (
        Box(-np.inf, np.inf, (4,)),
        Box(-np.inf, np.inf, (2,)),
        {"net_config": {"encoder_config": {"activation": "Mish"}, "head_config": {"activation": "Softplus"}}},
    ),
    "largest float32": (Box(-LARGEST, LARGEST, (4,)), Box(-LARGEST, LARGEST, (2,)), {}),
    "squashed": (VECTOR, Box(-2.0, 5.0, (2,)), {"squash_output": True}),
    "clipped": (VECTOR, Box(-0.01, 0.01, (2, 2), np.float64), {}),
    "categories": (MultiDiscrete([3, 4]), MultiDiscrete([3, 2]), {}),
    "bits": (Discrete(5, start=2), MultiBinary(3), {}),
    "cnn": (IMAGE, Discrete(4), {}),
    "channels last, layer norm": (
        Box(0, 255, (16, 16, 3), np.uint8),
        Discrete(4),
        {"net_config": {"encoder_config": {"layer_norm": True}}},
    ),
    "resnet": (IMAGE, Discrete(4), {"net_config": {"encoder": "resnet"}}),
    "simba": (VECTOR, Discrete(3), {"net_config": {"encoder": "simba"}}),
    "dict": (Dict(camera=IMAGE, speed=Box(-1.0, 1.0, (3,)), gear=Discrete(4)), Discrete(3), {}),
    "bounds": (VECTOR, Discrete(3), {"normalize_observation": "bounds", "observation_clip": 0.5}),
    "dict, bounds": (
        Dict(camera=IMAGE, speed=Box(-1.0, 3.0, (3,)), gear=Discrete(4), depth=Box(0.0, 99.0, (1, 8, 8))),
        Discrete(3),
        {"normalize_observation": "bounds"},
    ),
    "lstm": (VECTOR, Discrete(3), {"recurrent": True}),
    "gru": (
        VECTOR,
        Box(-1.0, 1.0, (1,)),
        {"recurrent": True, "share_encoders": True, "net_config": {"memory_config": {"cell": "GRU", "num_layers": 2}}},
    ),
}

TRANSFORMER = {"cell": "transformer", "d_model": 16, "context": 4}
ALL_CASES = {
    **CASES,
    "transformer": (VECTOR, Discrete(3), {"recurrent": True, "net_config": {"memory_config": TRANSFORMER}}),
}
"""With those that are not written with numpy."""


@pytest.fixture
def few_observations(monkeypatch):
    """Exported files are compared with the agent on 200 observations: numpy's, of every kind, are on 1,000."""
    monkeypatch.setattr(exporter, "OBSERVATIONS", 4 * exporter.BATCH)


def trained(observation_space, action_space, **settings):
    """Return an agent whose normaliser and weights are not those of a new one."""
    agent = PPO(observation_space, action_space, seed=1, **settings)
    network = agent.learner.network
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
        for name, buffer in network.observation_norm.named_buffers():
            if name in ("shift", "scale"):
                buffer.copy_(torch.rand(buffer.shape, generator=generator) + 0.5)
    return agent


def test_a_policy_whose_activation_fades_is_exported(tmp_path):
    agent = trained(VECTOR, Discrete(3), net_config={"head_config": {"hidden_size": []}})
    agent.learner.mutate(Mutation("activation", "change_activation", {"activation": "Tanh"}))
    assert agent.architecture.is_fading
    agent.export(tmp_path / "policy.py")  # compares observations of a batch of another size than it traces


def has_masks(agent):
    return agent.learner.distribution.mask_size > 0


@pytest.mark.parametrize("case", with_slow(CASES, "resnet", "dict, bounds", "channels last, layer norm"))
def test_numpy_files_return_the_actions_of_the_agent(case, tmp_path):
    observation_space, action_space, settings = CASES[case]
    agent = trained(observation_space, action_space, **settings)
    (path,) = agent.export(tmp_path / "policy.py", masks=has_masks(agent))  # compares 1,000 observations
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.slow
@pytest.mark.usefixtures("few_observations")
@pytest.mark.parametrize("case", ["squashed", "cnn", "dict", "lstm", "transformer"])
def test_torch_files_return_the_actions_of_the_agent(case, tmp_path):
    observation_space, action_space, settings = ALL_CASES[case]
    agent = trained(observation_space, action_space, **settings)
    (path,) = agent.export(tmp_path / "policy.pt2", masks=has_masks(agent))
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.slow
@pytest.mark.usefixtures("few_observations")
@pytest.mark.parametrize("case", ["squashed", "cnn", "dict", "lstm", "transformer"])
def test_onnx_files_return_the_actions_of_the_agent(case, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra export is not installed")
    observation_space, action_space, settings = ALL_CASES[case]
    agent = trained(observation_space, action_space, **settings)
    (path,) = agent.export(tmp_path / "policy.onnx", masks=has_masks(agent))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert {given.shape[0] for given in session.get_inputs()} == {"batch"}  # of any size


@pytest.mark.parametrize("kind", ["noise", "dropout", "own"])
def test_deterministic_actions_and_files_have_no_noise(kind, tmp_path):
    own = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    settings = {
        "noise": {"net_config": {"head_config": {"noisy": True}}},
        "dropout": {"recurrent": True, "net_config": {"memory_config": {"dropout": 0.5}}},
        "own": {"actor_network": own, "critic_network": copy.deepcopy(own)},
    }[kind]
    agent = trained(VECTOR, Box(-1.0, 1.0, (1,)), **settings)
    agent.learner.after_update(torch.zeros(1, 1, 4))  # draws the noise of the next rollout
    observations = np.random.default_rng(0).uniform(-3, 3, (50, 4)).astype(np.float32)
    found, _ = agent.predict(observations, deterministic=True)
    assert agent.training
    assert agent.network.training
    agent.export(tmp_path / "policy.py")  # compares the file with the agent
    agent.set_training_mode(False)
    np.testing.assert_array_equal(agent.predict(observations, deterministic=True)[0], found)


def test_a_module_of_the_users_own_is_not_replaced(tmp_path, monkeypatch):
    path = tmp_path / "own.py"
    path.write_text("import gymnasium\n")
    agent = trained(VECTOR, Discrete(2))
    with pytest.raises(ConfigurationError, match=r"own\.py' exists and is no exported policy; allowed is a new file"):
        agent.export(path)
    assert path.read_text() == "import gymnasium\n"
    path.write_text(f"{TITLE}\n")  # an earlier export, which is replaced
    monkeypatch.setattr(exporter, "_traced", lambda module: pytest.fail("not refused"))
    with pytest.raises(pytest.fail.Exception, match="not refused"):
        agent.export(path)


def test_a_numpy_file_equals_predict_without_torch(tmp_path):
    agent = trained(VECTOR, Box(-2.0, 2.0, (2,)), squash_output=True)
    (path,) = agent.export(tmp_path / "policy.py")
    observations = np.random.default_rng(3).uniform(-3, 3, (7, 4)).astype(np.float32)
    found = load_numpy_policy(path)(observations)
    np.testing.assert_allclose(found, agent.predict(observations, deterministic=True)[0], rtol=1e-5, atol=1e-5)
    code = (
        f"import sys, numpy as np; sys.path.insert(0, {str(tmp_path)!r}); import policy; "
        "print(policy.policy(np.zeros((5, 4), np.float32)).shape, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "(5, 2) False"


HOSTILE_KEY = 'z"""=exec("raise SystemExit")'


@pytest.mark.parametrize("key", ["joint pos", "eef-pos", "größe", HOSTILE_KEY, "class", "a\nb", "\\N"])
def test_keys_of_observations_are_data_in_the_file(key, tmp_path):
    """Dict keys may be any text; the file names its arguments after them, and must not run them."""
    space = Dict({key: Box(-1.0, 1.0, (2,)), "a": Dict(b=Box(-1.0, 1.0, (1,))), "a_b": Box(-1.0, 1.0, (3,))})
    (path,) = PPO(space, Discrete(2), seed=1).export(
        tmp_path / "policy.py"
    )  # compared with the agent before it is returned
    policy = load_numpy_policy(path)
    names = inspect.signature(policy).parameters
    assert len(names) == 3
    assert all(name.isidentifier() for name in names)
    assert "observation_a_b_2" in names


def test_keys_of_observations_may_differ_in_case_alone(tmp_path):
    """The graph has names in lower case, so the name of one input may be that of another one's argument."""
    space = Dict(A=Box(-1.0, 1.0, (2,)), a=Box(-1.0, 1.0, (3,)))
    agent = PPO(space, Discrete(4), seed=1)
    (path,) = agent.export(tmp_path / "policy.py")
    policy = load_numpy_policy(path)
    one, other = np.ones((5, 2), np.float32), np.zeros((5, 3), np.float32)
    expected = agent.predict({"A": one, "a": other}, deterministic=True)[0]
    np.testing.assert_array_equal(policy(observation_A=one, observation_a=other), expected)
    with pytest.raises(ValueError, match=re.escape("{'observation_A': 5, 'observation_a': 4}; allowed is one size")):
        policy(observation_A=one, observation_a=other[:4])


def test_a_recurrent_file_equals_predict_over_an_episode(tmp_path):
    agent = trained(VECTOR, Discrete(3), recurrent=True)
    (path,) = agent.export(tmp_path / "policy.py")
    policy, rng, state = load_numpy_policy(path), np.random.default_rng(4), None
    hidden = np.zeros((6, *agent.learner.network.state_shape[1:]), np.float32)
    for _ in range(10):
        observations = rng.uniform(-3, 3, (6, 4)).astype(np.float32)
        found, hidden = policy(observations, hidden)
        expected, state = agent.predict(observations, state, deterministic=True)
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(hidden, state["actor"].numpy(), atol=1e-5)


def test_a_recurrent_file_describes_its_memory_and_names_wrong_shapes(tmp_path):
    (path,) = trained(VECTOR, Discrete(3), recurrent=True).export(tmp_path / "policy.py")
    assert "An episode begins with zeros as `hidden_state`" in path.read_text()
    policy = load_numpy_policy(path)
    observation, state = np.zeros(VECTOR.shape, np.float32), np.zeros((1, 2, 64), np.float32)
    with pytest.raises(ValueError, match=re.escape(f"observation has shape {VECTOR.shape}; allowed is ('batch', ")):
        policy(observation, state)
    with pytest.raises(ValueError, match=r"hidden_state has shape \(2, 64\); allowed is \('batch', 2, 64\)"):
        policy(observation[None], state[0])
    assert policy(observation[None], state)[1].shape == state.shape


ROBOT = Dict(mode=Discrete(3, start=1), camera=IMAGE, state=Box(-1.0, 1.0, (2,)), flags=MultiBinary(2))


def of_robot(batch=1, **changed):
    """The inputs of the policy that observes ROBOT, in an order of its own."""
    inputs = {
        "hidden_state": np.zeros((batch, 2, 64), np.float32),
        "observation_state": np.zeros((batch, 2), np.float32),
        "observation_mode": np.ones(batch, np.int64),
        "observation_flags": np.zeros((batch, 2), np.int8),
        "observation_camera": np.zeros((batch, *IMAGE.shape), np.uint8),
    }
    return inputs | changed


@pytest.fixture(scope="module")
def robot_agent():
    return PPO(ROBOT, Discrete(5), seed=1, recurrent=True)


@pytest.fixture(scope="module")
def robot_module(robot_agent, tmp_path_factory):
    (path,) = robot_agent.export(tmp_path_factory.mktemp("robot") / "policy.py")
    return runpy.run_path(str(path))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"observation_camera": np.full((1, *IMAGE.shape), 0.5)},
            r"observation_camera has 0\.5 among numbers of float64; allowed are whole numbers from 0 to 255$",
        ),
        ({"observation_camera": np.full((1, *IMAGE.shape), 256)}, "observation_camera has 256 .* from 0 to 255$"),
        ({"observation_mode": np.array([0])}, r"observation_mode has 0 .*; allowed are whole numbers from 1 to 3$"),
        (
            {"observation_mode": np.array([np.inf])},
            "observation_mode has inf .*; allowed are whole numbers from 1 to 3",
        ),
        ({"observation_mode": np.array(["1"])}, "observation_mode has dtype <U1; allowed is int64"),
        (
            {"observation_flags": np.array([[0, 2]])},
            "observation_flags has 2 .*; allowed are whole numbers from 0 to 1",
        ),
        (
            {"observation_state": np.array([[0, np.nan]], np.float32)},
            "observation_state has nan among numbers of float32; allowed are finite numbers of float32$",
        ),
        (
            {"observation_state": np.array([[0, 1e39]])},
            r"observation_state has 1e\+39 among numbers of float64; allowed are finite numbers of float32$",
        ),
        ({"hidden_state": np.full((1, 2, 64), np.nan)}, "hidden_state has nan .*; allowed are finite numbers"),
        (
            {"hidden_state": np.zeros((2, 2, 64))},
            r"batches of {.*'observation_mode': 1, .*'hidden_state': 2}; allowed is",
        ),
    ],
)
def test_a_numpy_file_names_an_input_that_is_not_allowed(robot_module, changed, message):
    with pytest.raises(ValueError, match=message):
        robot_module["policy"](**of_robot(**changed))


def test_a_numpy_file_checks_each_number_of_a_multi_discrete(tmp_path):
    (path,) = PPO(MultiDiscrete([3, 5], start=[0, 2]), Discrete(2), seed=1).export(tmp_path / "policy.py")
    policy = load_numpy_policy(path)
    assert policy(np.array([[2, 6]])).shape == (1,)
    with pytest.raises(
        ValueError, match="observation has 7 among numbers of int64; allowed are whole numbers from 2 to 6"
    ):
        policy(np.array([[2, 6], [2, 7]]))


@pytest.mark.parametrize(
    ("dtype", "wrong", "message"),
    [
        (np.int8, [300, 0], "observation has 300 .*; allowed are whole numbers from -128 to 127"),
        (np.uint16, [-1, 0], "observation has -1 .*; allowed are whole numbers from 0 to 65535"),
        (np.int64, [0, 2.0**80], "observation has 1.* among numbers of float64; allowed are whole numbers from -922.*"),
    ],
)
def test_a_numpy_file_refuses_integers_that_the_dtype_of_a_box_does_not_hold(tmp_path, dtype, wrong, message):
    (path,) = PPO(Box(0, 100, (2,), dtype), Discrete(2), seed=1).export(tmp_path / "policy.py")
    policy = load_numpy_policy(path)
    assert policy(np.array([[100, 2.0]])).shape == (1,)
    with pytest.raises(ValueError, match=message):
        policy(np.array([wrong]))


def test_a_numpy_file_takes_several_entries_by_name_and_has_the_first_hidden_state(robot_module):
    zeros = robot_module["initial_hidden_state"](3)
    action, after = robot_module["policy"](**of_robot(3, hidden_state=zeros))
    assert action.shape == (3,)
    assert after.shape == zeros.shape
    with pytest.raises(TypeError, match="positional"):
        robot_module["policy"](*of_robot().values())


def test_a_torch_file_takes_several_entries_by_name(robot_agent, robot_module, tmp_path):
    (path,) = robot_agent.export(tmp_path / "policy.pt2")
    policy, inputs = torch.export.load(path).module(), of_robot(3, observation_mode=np.array([1, 2, 3]))
    action, after = policy(**{name: torch.from_numpy(array) for name, array in inputs.items()})
    of_numpy, expected = robot_module["policy"](**inputs)
    np.testing.assert_array_equal(action, of_numpy)
    np.testing.assert_allclose(after, expected, atol=1e-5)
    with pytest.raises(ValueError, match="keyword"):
        policy(*map(torch.from_numpy, inputs.values()))


@pytest.mark.parametrize(("space", "name"), [(Box(-1.0, 1.0, (2,)), "units"), (Discrete(3, start=1), "shift")])
def test_the_policy_has_its_constants_on_the_cpu_after_actions_on_another_device(space, name):
    agent = PPO(VECTOR, space, seed=1)
    distribution = agent.network.actor.distribution
    setattr(distribution, name, getattr(distribution, name).to("meta"))
    assert getattr(agent.policy.actor.distribution, name).device.type == "cpu"


@pytest.mark.parametrize("value", [0.1, 1.0, 100.0])
def test_float16_actions_of_an_export_may_be_the_next_float16(value):
    expected = np.full((50, 6), value, np.float16)
    exporter._compare("actions", np.nextafter(expected, np.float16(np.inf)), expected, Path("policy.py"))


@pytest.mark.parametrize(("dtype", "difference"), [(np.float16, 2.0**-9), (np.float32, 2.0**-10)])
def test_actions_of_an_export_that_differ_by_more_than_rounding_are_refused(dtype, difference):
    expected = np.ones((50, 6), dtype)
    with pytest.raises(ConfigurationError, match=r"policy\.py: the actions differ from the agent's by .*; allowed is"):
        exporter._compare("actions", expected + dtype(difference), expected, Path("policy.py"))


def test_an_export_does_not_seed_the_space_of_the_agent(tmp_path):
    spaces = [Box(-1.0, 1.0, (3,), seed=5) for _ in range(2)]
    PPO(spaces[0], Discrete(2), seed=1).export(tmp_path / "policy.py")
    assert np.array_equal(*(space.sample() for space in spaces))


@pytest.mark.parametrize("case", ["mlp", "squashed", "cnn", "dict"])
def test_policy_is_a_module_from_raw_observations_to_actions(case):
    observation_space, action_space, settings = CASES[case]
    agent = trained(observation_space, action_space, **settings)
    observation_space.seed(5)
    batch = gymnasium.vector.utils.batch_space(observation_space, 7).sample()
    names = [its.name.partition(".")[2] for its in agent.policy.inputs]  # of a dictionary; "" of an array
    (found,) = agent.policy(*(torch.as_tensor(batch[name] if name else batch) for name in names))
    np.testing.assert_allclose(found.numpy(), agent.predict(batch, deterministic=True)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_exporting_the_policy_by_torch_alone_gives_the_actions_of_predict(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra export is not installed")
    agent = trained(VECTOR, Box(-2.0, 2.0, (2,)), squash_output=True)
    observations = np.random.default_rng(3).uniform(-3, 3, (7, 4)).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about its exporter
        torch.onnx.export(agent.policy, (torch.from_numpy(observations),), tmp_path / "plain.onnx", dynamo=True)
    session = onnxruntime.InferenceSession(str(tmp_path / "plain.onnx"), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: observations})
    np.testing.assert_allclose(found, agent.predict(observations, deterministic=True)[0], rtol=1e-5, atol=1e-5)


def test_masked_actions_are_never_returned(tmp_path):
    agent = trained(VECTOR, Discrete(3, start=1))
    (path,) = agent.export(tmp_path / "policy.py", masks=True)
    masks = np.eye(3, dtype=bool)
    actions = load_numpy_policy(path)(np.zeros((3, 4), np.float32), masks)
    np.testing.assert_array_equal(actions, [1, 2, 3])


def test_a_team_has_a_file_for_each_group(tmp_path):
    spaces = {f"{name}_{i}": VECTOR for name in ("walker", "seer") for i in range(2)}
    actions = dict.fromkeys(spaces, Discrete(3))
    paths = IPPO(spaces, actions, seed=1).export(tmp_path / "policy.pt2")
    assert sorted(path.name for path in paths) == ["policy-seer.pt2", "policy-walker.pt2"]
    assert set(IPPO(spaces, actions, seed=1).policy) == {"seer", "walker"}


def test_a_team_with_a_group_without_masks_writes_no_file_with_masks(tmp_path):
    observations = {"a_0": VECTOR, "b_0": VECTOR}
    team = IPPO(observations, {"a_0": Discrete(3), "b_0": Box(-1.0, 1.0, (2,))}, seed=1)
    with pytest.raises(ConfigurationError, match=r"masks=True: action_space=Box.* has no action masks"):
        team.export(tmp_path / "team.py", masks=True)
    assert [*tmp_path.iterdir()] == []


def test_groups_of_a_team_may_have_the_names_of_methods(tmp_path):
    team = IPPO([VECTOR] * 3, [Discrete(2)] * 3, agent_ids=["train_0", "keys_0", "items_0"], seed=1)
    policy = team.policy
    assert set(policy) == {*team.groups}
    assert policy["train"](torch.zeros(2, 4))[0].shape == (2,)


def test_outputs_of_an_exported_archive_need_no_gradient(tmp_path):
    agent = trained(VECTOR, Box(-1.0, 1.0, (2,)), recurrent=True)
    (path,) = agent.export(tmp_path / "policy.pt2")
    outputs = torch.export.load(path).module()(torch.zeros(1, 4), torch.zeros(1, *agent.network.state_shape[1:]))
    assert [output.requires_grad for output in outputs] == [False, False]


@pytest.mark.parametrize("suffix", [".py", ".pt2"])
def test_a_folder_is_made_and_a_full_disk_is_one_error_that_names_the_file(suffix, tmp_path):
    path, soft, hard = tmp_path / "new" / f"policy{suffix}", *resource.getrlimit(resource.RLIMIT_FSIZE)
    agent = PPO(VECTOR, Discrete(2), seed=0)
    assert agent.export(path) == [path]
    path.unlink()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, hard))
    try:
        with pytest.raises(OSError, match=rf"policy\{suffix}' could not be written: File too large"):
            agent.export(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [*path.parent.iterdir()] == []


def test_a_path_through_a_file_is_one_error_and_long_names_are_written(tmp_path):
    agent = PPO(VECTOR, Discrete(2), seed=0)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError, match=r"policy\.py' could not be written: (Not a directory|File exists)"):
        agent.export(tmp_path / "file" / "policy.py")
    path = tmp_path / f"{'x' * 246}.py"
    assert agent.export(path) == [path]
    assert sorted(its.name for its in tmp_path.iterdir()) == sorted(["file", path.name])


def test_a_full_disk_is_no_operation_that_onnx_lacks(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime", reason="the extra export is not installed")

    def full(*_, **__):
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as error:
            raise RuntimeError("Failed to save the model") from error

    monkeypatch.setattr(torch.onnx, "export", full)
    with pytest.raises(OSError, match=r"policy\.onnx' could not be written: No space left on device"):
        PPO(VECTOR, Discrete(2), seed=0).export(tmp_path / "policy.onnx")


def test_a_package_that_torchs_exporter_cannot_import_is_no_operation_that_onnx_lacks(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime", reason="the extra export is not installed")

    def outdated(*_, **__):
        try:
            raise ModuleNotFoundError("No module named 'onnxscript._framework_apis.torch_2_11'")
        except ModuleNotFoundError as error:
            raise RuntimeError("Failed to convert the exported program to an ONNX model") from error

    monkeypatch.setattr(torch.onnx, "export", outdated)
    with pytest.raises(ConfigurationError, match=r"newer onnxscript .*torch_2_11.*: pip install -U onnxscript"):
        PPO(VECTOR, Discrete(2), seed=0).export(tmp_path / "policy.onnx")


def test_a_file_that_differs_is_refused_and_removed(tmp_path, monkeypatch):
    agent = trained(VECTOR, Box(-2.0, 2.0, (2,)))

    def off_by_one(module, program, path):
        run = exporter._write_pt2(module, program, path)
        return lambda arrays: [np.minimum(action + 0.1, 2) for action in run(arrays)]

    monkeypatch.setitem(exporter.FORMATS, ".pt2", off_by_one)
    with pytest.raises(ConfigurationError, match=r"policy\.pt2: the actions differ from the agent's by 0\.1"):
        agent.export(tmp_path / "policy.pt2")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("space", "wrong"),
    [
        (Discrete(60, start=3), lambda action: (action - 2) % 60 + 3),
        (MultiDiscrete([40, 40]), lambda action: np.add(action, [0, 1]) % 40),
        (MultiBinary(40), lambda action: 1 - action),
    ],
)
def test_a_file_with_other_choices_is_refused_however_alike_some_outputs_are(tmp_path, monkeypatch, space, wrong):
    agent = PPO(VECTOR, space, seed=1)

    def other(module, program, path):
        run = exporter._write_numpy(module, program, path)
        return lambda arrays: [wrong(action).astype(action.dtype) for action in run(arrays)]

    agent.export(tmp_path / "right.py")
    monkeypatch.setitem(exporter.FORMATS, ".py", other)
    with pytest.raises(ConfigurationError, match="actions differ from the agent's"):
        agent.export(tmp_path / "policy.py")


def test_illegal_arguments(tmp_path):
    agent = trained(VECTOR, Box(-2.0, 2.0, (2,)))
    with pytest.raises(ConfigurationError, match=r"ends in '\.tflite'; allowed are \.onnx, \.pt2, \.py"):
        agent.export(tmp_path / "policy.tflite")
    with pytest.raises(ConfigurationError, match=r"masks=True: .* has no action masks"):
        agent.export(tmp_path / "policy.py", masks=True)


class DataDependent(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.linear = nn.Linear(4, outputs)

    def forward(self, x):
        return self.linear(x) if float(x.sum()) > -1e9 else -self.linear(x)


class Fourier(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.linear = nn.Linear(4, outputs)

    def forward(self, x):
        return self.linear(torch.sin(x))


class RunningMaximum(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.linear = nn.Linear(4, outputs)

    def forward(self, x):
        return self.linear(torch.cummax(x, -1).values)


def test_an_operation_that_onnx_lacks_is_named(tmp_path):
    pytest.importorskip("onnxruntime", reason="the extra export is not installed")
    agent = PPO(VECTOR, Discrete(2), actor_network=RunningMaximum(2), critic_network=RunningMaximum(1))
    with pytest.raises(ConfigurationError, match=r"operation that ONNX lacks \(.*aten\.cummax.* allowed are \.pt2"):
        agent.export(tmp_path / "policy.onnx")
    assert [*tmp_path.iterdir()] == []


def test_networks_that_cannot_be_exported_are_named_with_the_operation(tmp_path):
    agent = PPO(VECTOR, Discrete(2), actor_network=DataDependent(2), critic_network=DataDependent(1))
    with pytest.raises(ConfigurationError, match=r"torch\.export cannot trace its network: .*(item|guard|unbacked)"):
        agent.export(tmp_path / "policy.pt2")
    agent = PPO(VECTOR, Discrete(2), actor_network=Fourier(2), critic_network=Fourier(1))
    with pytest.raises(
        ConfigurationError, match=r"torch's operation aten\.sin\.default.* allowed are \.onnx and \.pt2"
    ):
        agent.export(tmp_path / "policy.py")
    assert agent.export(tmp_path / "policy.pt2")


@pytest.mark.parametrize(
    ("layer", "operation"),
    [
        (nn.Conv2d(3, 3, 3, groups=3), "grouped and dilated convolutions"),
        (nn.MaxPool2d(2, dilation=2), "aten_max_pool2d_with_indices"),
        (nn.AvgPool2d(3, ceil_mode=True), "aten_avg_pool2d"),
    ],
)
def test_arguments_of_operations_that_numpy_files_lack_are_named(tmp_path, layer, operation):
    def network(outputs):
        features = nn.Sequential(copy.deepcopy(layer), nn.Flatten())
        return nn.Sequential(features, nn.Linear(features(torch.zeros(1, 3, 8, 8)).shape[1], outputs))

    image = Box(0, 255, (3, 8, 8), np.uint8)
    agent = PPO(image, Discrete(2), actor_network=network(2), critic_network=network(1), seed=1)
    with pytest.raises(ConfigurationError, match=rf"{operation}.*; allowed are \.onnx and \.pt2$"):
        agent.export(tmp_path / "policy.py")
    assert [*tmp_path.iterdir()] == []


def test_command(tmp_path, capsys):
    trained(VECTOR, Discrete(2)).save_checkpoint(tmp_path / "agent")
    assert main(["export", str(tmp_path / "agent"), str(tmp_path / "policy.py")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "policy.py")
    assert main(["export", str(tmp_path / "agent"), str(tmp_path / "policy.txt")]) == 2
    assert "allowed are .onnx" in capsys.readouterr().err


class ReadsBoth(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.image, self.speed, self.out = nn.Linear(192, 8), nn.Linear(3, 8), nn.Linear(16, outputs)

    def forward(self, x):
        return self.out(torch.cat([self.image(x["image"].flatten(1)).tanh(), self.speed(x["speed"]).tanh()], -1))


def test_own_networks_of_images_and_numbers_are_exported(tmp_path):
    mixed = Dict(image=Box(0, 255, (3, 8, 8), np.uint8), speed=Box(-1.0, 1.0, (3,)))
    agent = PPO(mixed, Discrete(4), seed=0, actor_network=ReadsBoth(4), critic_network=ReadsBoth(1))
    agent.export(tmp_path / "policy.pt2")  # compares the file with the agent
    policy, batch = agent.policy, [torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.zeros(2, 3)]
    assert torch.equal(copy.deepcopy(policy)(*batch)[0], policy(*batch)[0])
