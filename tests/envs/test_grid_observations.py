"""MiniGrid's observations as planes of bits, directions and word numbers."""

import gymnasium as gym
import numpy as np
import pytest

from agilerl_like import PPO, make_vect_envs
from agilerl_like.errors import ConfigurationError

pytest.importorskip("minigrid", reason="the extra minigrid is not installed")
import minigrid  # noqa: F401  # registers the environments, and may be absent
from minigrid.core.grid import Grid
from minigrid.core.mission import MissionSpace
from minigrid.minigrid_env import MiniGridEnv

from agilerl_like.envs import grid_observations  # needs minigrid
from agilerl_like.envs.grid_observations import GridObservation, sample_missions  # needs minigrid
from agilerl_like.envs.spaces import ObservationEncoder

DOOR_KEY, GO_TO_DOOR = "MiniGrid-DoorKey-6x6-v0", "MiniGrid-GoToDoor-5x5-v0"


def test_planes_name_kind_color_and_state_of_every_cell():
    env = gym.make(DOOR_KEY)
    plain, _ = env.reset(seed=3)
    planes = GridObservation(env).reset(seed=3)[0]["image"]
    assert planes.shape == (21, 7, 7)
    for x in range(7):
        for y in range(7):
            kind, color, state = plain["image"][x, y]
            assert np.flatnonzero(planes[:, y, x]).tolist() == [kind, 11 + color, 17 + state]


def test_the_full_view_has_the_agent_at_its_place():
    env = GridObservation(gym.make(DOOR_KEY), view="full")
    observation, _ = env.reset(seed=3)
    for action in (0, 2, 2, 1):
        x, y = env.unwrapped.agent_pos
        assert np.argwhere(observation["image"][10]).tolist() == [[y, x]]
        assert observation["image"][17 + env.unwrapped.agent_dir, y, x]
        assert observation["direction"] == env.unwrapped.agent_dir
        assert env.observation_space.contains(observation)
        observation = env.step(action)[0]


class Corridor(MiniGridEnv):
    def __init__(self, width, height):
        super().__init__(mission_space=MissionSpace(lambda: "go"), width=width, height=height, max_steps=20)

    def _gen_grid(self, width, height):
        self.grid = Grid(width, height)
        self.grid.wall_rect(0, 0, width, height)
        self.agent_pos, self.agent_dir, self.mission = (1, 1), 0, "go"


@pytest.mark.parametrize(("width", "height"), [(4, 9), (3, 9), (25, 21), (9, 4), (8, 6)])
def test_the_planes_of_any_grid_are_read_as_channels(width, height):
    env = GridObservation(Corridor(width, height), view="full")
    observation, _ = env.reset(seed=3)
    assert env.observation_space.contains(observation)
    (image,) = [leaf for leaf in ObservationEncoder(env.observation_space).leaves if leaf.kind == "image"]
    assert image.shape[0] == 21
    planes = observation["image"]
    assert planes[2, :height, :width].sum() == 2 * (width + height) - 4  # walls
    assert np.argwhere(planes[10]).tolist() == [[1, 1]]
    assert planes[0, height:].all()
    assert planes[0, :, width:].all()


def test_a_mission_that_varies_is_observed_as_word_numbers():
    assert "mission" not in GridObservation(gym.make(DOOR_KEY)).observation_space.spaces
    env = GridObservation(gym.make(GO_TO_DOOR))
    missions = set()
    for seed in range(20):
        observation, _ = env.reset(seed=seed)
        assert env.observation_space.contains(observation)
        assert observation["mission"].min() >= 2  # "go to the red door" has as many words as any other
        missions.add(tuple(observation["mission"]))
    assert 3 < len(missions) <= 6  # one for each colour
    assert len({mission[3] for mission in missions}) == len(missions)
    assert len({(*mission[:3], mission[4]) for mission in missions}) == 1


def test_words_outside_the_vocabulary_are_counted_and_warned_of_once(monkeypatch):
    monkeypatch.setattr(grid_observations, "_WARNED", set())
    env, copy = (
        GridObservation(gym.make(GO_TO_DOOR), words=["go", "to", "the", "door"], max_words=6) for _ in range(2)
    )
    with pytest.warns(UserWarning, match=r"the mission 'go to the red door' has a word outside .*: 'red'"):
        assert env.encode("go to the red door").tolist() == [2, 3, 4, 1, 5, 0]
    assert env.encode("Go to the BIG, blue door at once!").tolist() == [2, 3, 4, 1, 1, 5]  # warnings are errors here
    assert copy.encode("go to the blue door").tolist() == [2, 3, 4, 1, 5, 0]
    assert (env.unknown_words, copy.unknown_words) == (3, 1)


def test_every_word_of_a_space_is_known():
    for name in (GO_TO_DOOR, "MiniGrid-PutNear-6x6-N2-v0", "BabyAI-GoToLocal-v0"):
        env = GridObservation(gym.make(name))
        for seed in range(30):
            env.reset(seed=seed)
        assert env.unknown_words == 0


@pytest.mark.parametrize(
    ("name", "words"),
    [("GoToLocal", 21), ("SynthLoc", 21), ("GoToSeqS5R2", 24), ("MiniBossLevel", 72)],
)
def test_no_mission_of_babyai_is_cut(name, words):
    """Those of generated levels are as long as "put A next to B and put A next to B after you …" with places."""
    env = GridObservation(gym.make(f"BabyAI-{name}-v0"))
    assert env.observation_space["mission"].shape == (words,)
    level = env.unwrapped
    for seed in range(5):
        assert len(grid_observations.words_of(level.reset(seed=seed)[0]["mission"])) <= words


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"view": "half"}, "view='half'; allowed are 'partial' and 'full'"),
        ({"max_words": 0}, "max_words=0 must be an integer of at least 1"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        GridObservation(gym.make(DOOR_KEY), **options)
    with pytest.raises(ConfigurationError, match="is not MiniGrid's; allowed is Dict"):
        GridObservation(gym.make("CartPole-v1"))
    with pytest.raises(ConfigurationError, match="is not MiniGrid's MissionSpace"):
        sample_missions(gym.spaces.Discrete(2))


@pytest.mark.parametrize("encoder", [{}, {"extractors": {"mission": {"encoder": "words"}}}], ids=["plain", "words"])
def test_an_agent_reads_them(encoder):
    env = make_vect_envs(
        "minigrid:" + GO_TO_DOOR, num_envs=2, wrappers=["agilerl_like.envs.grid_observations:GridObservation"]
    )
    agent = PPO(
        env.single_observation_space,
        env.single_action_space,
        num_envs=2,
        recurrent=True,
        max_seq_len=8,
        seed=1,
        net_config={"encoder_config": encoder},
    )
    actions, *_ = agent.get_action(env.reset(seed=1)[0])
    assert actions.shape == (2,)
    env.close()
