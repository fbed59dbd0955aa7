"""Images and dictionaries through a whole agent: bytes in, channels in front or behind, the encoder that suits."""

from importlib.util import find_spec
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
import torch

from agilerl_like import PPO, Mutations, make_vect_envs, train_on_policy
from agilerl_like.errors import ConfigurationError
from agilerl_like.modules import EvolvableCNN, EvolvableMLP, EvolvableMultiInput, EvolvableResNet, EvolvableSimBa

FRONT = gymnasium.spaces.Box(0, 255, (3, 6, 5), np.uint8)
BEHIND = gymnasium.spaces.Box(0, 255, (6, 5, 3), np.uint8)
VECTOR = gymnasium.spaces.Box(-1.0, 1.0, (4,))
BOTH = gymnasium.spaces.Dict({"image": FRONT, "place": VECTOR})
ACTIONS = gymnasium.spaces.Discrete(3)
CNN = {"encoder_config": {"channel_size": [16], "kernel_size": [3], "stride_size": [1]}, "latent_dim": 16}


class Pictures(gymnasium.Env):
    """Random pictures of one's own seed, worth how bright they are; one observation for each of four steps."""

    metadata: ClassVar = {"render_modes": []}

    def __init__(self, space=FRONT):
        self.observation_space, self.action_space = space, ACTIONS

    def _see(self):
        image = self.np_random.integers(0, 256, FRONT.shape, np.uint8)
        return image if self.observation_space == FRONT else np.moveaxis(image, 0, -1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left, self.seen = 4, self._see()
        return self.seen, {}

    def step(self, action):
        reward, self.left, self.seen = float(self.seen.mean() * (action == 1)), self.left - 1, self._see()
        return self.seen, reward, self.left == 0, False, {}


def agent_of(space, **kwargs):
    return PPO(space, ACTIONS, seed=1, num_envs=2, learn_step=16, batch_size=8, **kwargs)


def pictures(count=5):
    return np.random.default_rng(0).integers(0, 256, (count, *FRONT.shape), np.uint8)


def test_default_and_named_encoders_by_observation_space():
    kinds = {
        EvolvableMLP: agent_of(VECTOR),
        EvolvableSimBa: agent_of(VECTOR, net_config={"encoder": "simba"}),
        EvolvableCNN: agent_of(FRONT, net_config=CNN),
        EvolvableResNet: agent_of(FRONT, net_config={"encoder": "resnet"}),
        EvolvableMultiInput: agent_of(BOTH),
    }
    for kind, agent in kinds.items():
        assert type(agent.actor.encoder) is kind
        assert type(agent.critic.encoder) is kind
    assert type(agent_of(VECTOR, net_config={"simba": True}).actor.encoder) is EvolvableSimBa  # AgileRL's name


@pytest.mark.parametrize(
    ("space", "encoder", "allowed"),
    [(VECTOR, "cnn", "mlp, simba"), (BOTH, "cnn", "mlp, simba, multi_input"), (FRONT, "multi_input", "mlp, .*resnet")],
)
def test_encoders_that_cannot_read_the_observations_are_refused(space, encoder, allowed):
    with pytest.raises(ConfigurationError, match=f"encoder='{encoder}' cannot read .*; allowed are {allowed}$"):
        agent_of(space, net_config={"encoder": encoder})


@pytest.mark.parametrize("shape", [(3, 3, 2), (6, 7, 2), (7, 7, 3), (2, 3, 3)])
@pytest.mark.parametrize("swap_channels", [False, True])
def test_small_boards_have_a_default_network(shape, swap_channels):
    agent = agent_of(gymnasium.spaces.Box(0, 1, shape, np.uint8), swap_channels=swap_channels)
    assert agent.get_action(np.ones((2, *shape), np.uint8))[0].shape == (2,)
    assert agent.actor.encoder.image.shape == ((shape[2], *shape[:2]) if swap_channels else shape)


@pytest.mark.parametrize(("encoder", "first"), [("mlp", "linears.0"), ("simba", "stem")])
def test_vector_encoders_read_flattened_images(encoder, first):
    agent = agent_of(FRONT, net_config={"encoder": encoder})
    scaled = torch.from_numpy(pictures()).float().flatten(1) / 255  # between 0 and 1, as an image's bounds have it
    rows = agent.learner.encode(pictures())
    torch.testing.assert_close(agent.actor.encoder.layer_input(first, rows), scaled)
    inner = super(type(agent.actor.encoder).__mro__[1], agent.actor.encoder)
    torch.testing.assert_close(agent.actor.encoder(rows), inner.forward(scaled))
    both = agent_of(BOTH, net_config={"encoder": encoder})
    place = np.arange(20, dtype=np.float32).reshape(5, 4)
    read = both.actor.encoder.layer_input(first, both.learner.encode({"image": pictures(), "place": place}))
    torch.testing.assert_close(read[:, :90], scaled)
    torch.testing.assert_close(read[:, 90:], torch.from_numpy(place))


def test_image_parts_of_a_dict_may_be_flattened():
    config = {"encoder_config": {"extractors": {"image": {"encoder": "mlp"}}}}
    agent = agent_of(BOTH, net_config=config)
    rows = agent.learner.encode({"image": pictures(), "place": np.zeros((5, 4), np.float32)})
    scaled = torch.from_numpy(pictures()).float().flatten(1) / 255
    torch.testing.assert_close(agent.actor.encoder.layer_input("extractors.0.linears.0", rows), scaled)


@pytest.mark.parametrize("encoder", ["mlp", "simba", None])
def test_members_that_read_images_learn_and_evolve_together(encoder):
    env = gymnasium.vector.SyncVectorEnv([Pictures] * 4)
    population = PPO.population(
        2, FRONT, ACTIONS, seed=1, num_envs=2, learn_step=16, batch_size=8, net_config={"encoder": encoder}
    )
    before = [agent.actor.encoder(agent.learner.encode(pictures())).detach().clone() for agent in population]
    train_on_policy(
        env,
        pop=population,
        max_steps=64,
        evo_steps=32,
        mutation=Mutations(no_mutation=0.0, architecture=1.0, parameters=0.0, activation=0.0, rl_hp=0.0),
        verbose=False,
    )
    after = [agent.actor.encoder(agent.learner.encode(pictures())) for agent in population]
    assert not any(old.shape == new.shape and torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_a_kernel_larger_than_its_input_is_refused():
    with pytest.raises(ConfigurationError, match="kernel"):
        agent_of(FRONT, net_config={"encoder_config": {"channel_size": [16], "kernel_size": [8], "stride_size": [1]}})


def test_a_board_that_is_read_with_the_wrong_layout_names_swap_channels():
    """A board of 6 x 7 with two planes, read with its channels first, is one of 7 x 2."""
    board = gymnasium.spaces.Box(0, 1, (6, 7, 2), np.int8)
    net_config = {"encoder": "cnn", "encoder_config": {"channel_size": [16], "kernel_size": [3], "stride_size": [1]}}
    assert agent_of(board, net_config=net_config).swap_channels is True
    with pytest.raises(ConfigurationError, match=r"its input, which is 7x2 .*; swap_channels=True reads images"):
        agent_of(board, net_config=net_config, swap_channels=False)


@pytest.mark.parametrize("shape", [(6, 7, 2), (3, 3), (2, 3, 4, 5), ()])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.float32])
def test_an_mlp_reads_any_box(shape, dtype):
    agent = agent_of(gymnasium.spaces.Box(0, 1, shape, dtype), net_config={"encoder": "mlp"})
    assert agent.get_action(np.ones((2, *shape), dtype))[0].shape == (2,)


def test_rollouts_of_images_are_stored_as_bytes():
    agent = agent_of(FRONT, net_config=CNN)
    assert agent.learner.encode(pictures()).dtype == torch.uint8
    np.testing.assert_array_equal(
        agent.learner.encode(pictures())[:, : FRONT.low.size].numpy(), pictures().reshape(5, -1)
    )


def test_channels_last_images_give_the_same_network_input():
    front, behind = agent_of(FRONT, net_config=CNN), agent_of(BEHIND, net_config=CNN, swap_channels=True)
    given = np.moveaxis(pictures(), 1, -1)
    np.testing.assert_allclose(front.get_action(pictures())[3], behind.get_action(given)[3], rtol=1e-5)
    by_hand = front.actor.encoder(front.learner.encode(pictures()))
    scaled = torch.from_numpy(pictures()).float() / 255
    plain = agent_of(FRONT, net_config=CNN, normalize_images=False)
    torch.testing.assert_close(by_hand, front.actor.encoder(front.learner.encode(pictures())))
    first = front.actor.encoder.convs[0]
    expected = torch.nn.functional.conv2d(scaled, first.weight, first.bias)
    raw = torch.nn.functional.conv2d(255 * scaled, first.weight, first.bias)
    torch.testing.assert_close(
        front.actor.encoder.layer_input("output", front.learner.encode(pictures())), expected.relu().flatten(1)
    )
    torch.testing.assert_close(
        plain.actor.encoder.layer_input("output", plain.learner.encode(pictures())),
        raw.relu().flatten(1),
        rtol=1e-4,
        atol=1e-3,
    )


def test_swap_channels_of_test_reads_channels_last(tmp_path):
    agent = agent_of(FRONT, net_config=CNN)
    front = gymnasium.vector.SyncVectorEnv([Pictures] * 2)
    behind = gymnasium.vector.SyncVectorEnv([lambda: Pictures(BEHIND)] * 2)
    score = agent.test(front, loop=3)
    assert agent.test(behind, swap_channels=True, loop=3) == score
    assert agent.observation_space == FRONT  # it is what it was
    agent.set_image_layout(BEHIND, swap_channels=True)
    agent.save_checkpoint(tmp_path / "agent")
    for one in (agent, agent.clone(), PPO.load(tmp_path / "agent")):
        assert one.test(behind, loop=3) == score
    with pytest.raises(ConfigurationError, match=r"is not Box.* with its channels behind"):
        agent.set_image_layout(FRONT, swap_channels=True)


def test_images_of_another_size_are_refused():
    with pytest.raises(ConfigurationError, match=r"observation has shape \(5, 3, 6, 6\); allowed are \(3, 6, 5\)"):
        agent_of(FRONT, net_config=CNN).get_action(np.zeros((5, 3, 6, 6), np.uint8))


@pytest.mark.parametrize("space", [FRONT, BOTH], ids=["image", "dict"])
def test_an_agent_of_images_is_saved_and_loaded(space, tmp_path):
    agent = agent_of(space, net_config=CNN if space is FRONT else None, recurrent=True, max_seq_len=4)
    agent.save_checkpoint(tmp_path / "agent")
    loaded = PPO.load(tmp_path / "agent")
    obs = pictures(2) if space is FRONT else {"image": pictures(2), "place": np.zeros((2, 4), np.float32)}
    for found, kept in zip(loaded.get_action(obs)[:4], agent.get_action(obs)[:4], strict=True):
        np.testing.assert_array_equal(found, kept)


def test_only_vectors_have_running_normalization():
    agent = agent_of(BOTH)
    norm = agent.network.observation_norm
    rows = agent.learner.encode({"image": pictures(4), "place": np.arange(16, dtype=np.float32).reshape(4, 4)})
    norm.update_(rows, torch.ones(4))
    place = agent.learner.encoding.float_columns(norm(rows))
    torch.testing.assert_close(place.mean(0), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(place.std(0, unbiased=False), torch.ones(4))
    image = slice(16, 16 + FRONT.low.size)  # behind four numbers of four bytes
    assert torch.equal(norm(rows)[:, image], rows[:, image])


def shapes(results):
    """Bytes of the arrays that exist, including those of hidden states."""
    each = [part for one in results for part in (one.values() if isinstance(one, dict) else [one])]
    return [tuple(part.shape) for part in each if part is not None]


@pytest.mark.parametrize(
    ("space", "settings"),
    [
        (VECTOR, {}),
        (VECTOR, {"recurrent": True}),
        (VECTOR, {"recurrent": True, "net_config": {"memory_config": {"cell": "GRU"}}}),
        (VECTOR, {"net_config": {"encoder": "simba"}}),
        (FRONT, {"net_config": CNN}),
        (FRONT, {"net_config": CNN, "recurrent": True}),
        (FRONT, {"net_config": {"encoder": "resnet"}}),
        (BEHIND, {"net_config": CNN, "swap_channels": True}),
        (BOTH, {"net_config": {"encoder_config": {"cnn_config": CNN["encoder_config"]}}}),
    ],
)
def test_running_normalization_ignores_empty_batches(space, settings):
    """A batch without rows, as of envs of which none is left, is answered by arrays without rows."""
    agent = agent_of(space, **settings)
    one, none = (gymnasium.vector.utils.create_empty_array(space, n=count, fn=np.zeros) for count in (1, 0))
    for act in (agent.get_action, agent.predict):
        assert shapes(act(none)) == [(0, *shape[1:]) for shape in shapes(act(one))]
    assert shapes(agent.evaluate_actions(none, np.zeros(0, np.int64))) == [(0,)] * 3


def test_channels_last_is_inferred_and_saved(tmp_path):
    found, said = agent_of(BEHIND, net_config=CNN), agent_of(BEHIND, net_config=CNN, swap_channels=True)
    images = np.moveaxis(pictures(), 1, -1)
    assert np.array_equal(found.predict(images)[0], said.predict(images)[0])
    assert found.swap_channels is True
    assert agent_of(FRONT, net_config=CNN).swap_channels is False
    found.save_checkpoint(tmp_path / "agent")
    assert PPO.load(tmp_path / "agent").settings()["swap_channels"] is True


def test_channels_last_grids_are_inferred():
    grid = gymnasium.spaces.Box(0, 255, (7, 7, 3), np.uint8)  # MiniGrid's ImgObsWrapper
    assert agent_of(grid).learner.encoding.leaves[0].shape == (3, 7, 7)


ATARI = (
    {"name": "gymnasium.wrappers:AtariPreprocessing", "noop_max": 0},
    {"name": "gymnasium.wrappers:FrameStackObservation", "stack_size": 4},
)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ale_py") is None or find_spec("minigrid") is None, reason="the extras are not installed")
@pytest.mark.parametrize(
    ("env_id", "kwargs", "wrappers"),
    [
        ("ALE/Pong-v5", {"frameskip": 1}, ATARI),
        ("minigrid:MiniGrid-Empty-5x5-v0", {}, "minigrid.wrappers:ImgObsWrapper"),
    ],
    ids=["atari", "minigrid"],
)
def test_known_image_envs_need_no_net_config(env_id, kwargs, wrappers):
    env = make_vect_envs(env_id, num_envs=1, backend="sync", wrappers=wrappers, **kwargs)
    spaces = env.single_observation_space, env.single_action_space
    population = PPO.population(2, *spaces, seed=1, num_envs=1, learn_step=8, batch_size=4)
    assert sum(parameter.numel() for parameter in population[0].network.parameters()) <= 2_000_000
    before = {agent.index: agent.network.critic.head.linears[0].weight.detach().clone() for agent in population}
    population, _ = train_on_policy(
        env,
        pop=population,
        max_steps=16,
        evo_steps=8,
        eval_steps=4,
        eval_loop=1,  # each episode of Atari's loads the game for 0.1 s
        mutation=Mutations(no_mutation=0.0, architecture=1.0, parameters=0.0, activation=0.0, rl_hp=0.0),
        verbose=False,
    )
    env.close()
    assert all(agent.learner.is_finite for agent in population)
    assert not any(
        torch.equal(old, agent.network.critic.head.linears[0].weight) for agent in population for old in before.values()
    )
