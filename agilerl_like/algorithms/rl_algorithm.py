"""The base of algorithms with one policy: construction, testing, copies and files of a single agent."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar, overload

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from agilerl_like.algorithms.architectures import custom_spec, encoder_of, initial_architecture
from agilerl_like.algorithms.episode_summary import tested_fitness
from agilerl_like.algorithms.evaluation import EpisodeCallback
from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm, refuse_settings
from agilerl_like.algorithms.learner import LearnerT
from agilerl_like.algorithms.serialization import read_agent, read_count, read_space
from agilerl_like.algorithms.settings import unknown_setting, validated
from agilerl_like.envs.array_backend import device_from
from agilerl_like.envs.env_errors import env_name_of
from agilerl_like.envs.space_match import check_spaces_match
from agilerl_like.envs.spaces import ObservationEncoder
from agilerl_like.envs.vec_adapter import VecEnvAdapter
from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo import HyperparameterConfig, Mutation
from agilerl_like.learning.optimizer import Adam, OptimizerName
from agilerl_like.networks.actor_critic import ActorCritic
from agilerl_like.networks.architecture import NetworkSpec
from agilerl_like.networks.branched_network import BranchedNetwork
from agilerl_like.networks.custom import CustomSpec
from agilerl_like.networks.distributions import make_distribution

ONLY = ""
"""Name of a single agent's one group."""

RLAlgorithmT = TypeVar("RLAlgorithmT", bound="RLAlgorithm[Any]")


class Dimension:
    """An attribute that is a number for an agent, and a function of a space for the class."""

    def __init__(
        self,
        of_agent: Callable[[RLAlgorithm[Any]], int],
        of_space: Callable[[type[RLAlgorithm[Any]], gymnasium.Space], int],
    ) -> None:
        self._of_agent, self._of_space = of_agent, of_space

    @overload
    def __get__(self, agent: None, kind: type[RLAlgorithm[Any]]) -> Callable[[gymnasium.Space], int]: ...
    @overload
    def __get__(self, agent: RLAlgorithm[Any], kind: type[RLAlgorithm[Any]]) -> int: ...
    def __get__(
        self, agent: RLAlgorithm[Any] | None, kind: type[RLAlgorithm[Any]]
    ) -> int | Callable[[gymnasium.Space], int]:
        return partial(self._of_space, kind) if agent is None else self._of_agent(agent)


class RLAlgorithm(EvolvableAlgorithm, Generic[LearnerT]):
    """An algorithm with one learner: one actor and one critic."""

    learners: dict[str, LearnerT]
    allowed_actions: ClassVar[str] = "Discrete, MultiDiscrete, MultiBinary or Box"
    """The action spaces in which `supports` is true, for messages."""

    @classmethod
    def supports(cls, action_space: gymnasium.Space) -> bool:
        """Return whether agents can act in a space; `allowed_actions` describes those that they can act in."""
        return True

    def _init_given(self, given: Mapping[str, Any], net_config: Mapping[str, Any] | None) -> None:
        """Make the agent from its constructor's `locals()`; `net_config` replaces the one given.

        These are `observation_space`, `action_space` and every setting of `config`; `index`, `hp_config`, `num_envs`,
        `mut`, `device`, `accelerator`, `seed`, `actor_network`, `critic_network` and `unknown` (`**unknown`, settings
        that are refused) where the constructor has them.

        Raises:
            ConfigurationError: a setting is unknown, or the agent cannot act in the action space.
        """
        action_space = given["action_space"]
        if not self.supports(action_space):
            raise ConfigurationError(
                f"action_space={action_space} is not for {self.algo}; allowed is {self.allowed_actions}"
            )
        for name in given.get("unknown", ()):
            raise unknown_setting("setting", name, given.keys() - {"self", "unknown", "__class__"})
        settings: Any = validated(self.config, {name: given[name] for name in self.config.__dataclass_fields__})
        device = device_from(given.get("device", "cpu"), given.get("accelerator"))
        encoding = encoder_of(given["observation_space"], settings)
        networks = custom_spec(given.get("actor_network"), given.get("critic_network"))
        if networks is None:
            architecture = self._initial_architecture(net_config, encoding, action_space, settings)
        elif net_config:
            raise ConfigurationError(
                f"net_config={dict(net_config)!r:.200} has no effect beside actor_network and critic_network; "
                "leave it out"
            )
        else:
            architecture = NetworkSpec.custom(networks)
        if hasattr(settings, "swap_channels"):
            settings = replace(settings, swap_channels=encoding.swap_channels)  # a saved agent keeps its layout
        self._init_settings(
            given["observation_space"],
            action_space,
            settings,
            index=given.get("index", 0),
            hp_config=given.get("hp_config"),
            num_envs=given.get("num_envs", 1),
            device=device,
            seed=given.get("seed"),
        )
        learner: Any = self.group_class.learner_class(self, encoding, action_space, architecture)
        self.learners = {ONLY: learner}
        self._finish_init(given.get("mut"))

    def _initial_architecture(
        self, net_config: Mapping[str, Any] | None, encoding: Any, action_space: gymnasium.Space, settings: Any
    ) -> Any:
        """Return the architecture of a `net_config`."""
        return initial_architecture(net_config, encoding, recurrent=getattr(settings, "recurrent", False))

    # -- networks

    @property
    def learner(self) -> LearnerT:
        """Networks, optimizer and random streams."""
        return self.learners[ONLY]

    @property
    def architecture(self) -> NetworkSpec:
        return self.learner.architecture

    @property
    def network(self) -> ActorCritic:
        """Actor and critic."""
        return self.learner.network

    @property
    def actor(self) -> nn.Module:
        """The policy network."""
        return self.network.actor

    @property
    def critic(self) -> nn.Module:
        """The value network."""
        return self.network.critic

    def get_policy(self) -> nn.Module:
        """Return the policy network."""
        return self.network.actor

    @property
    def optimizer(self) -> Adam:
        """The optimizer's moments `[1, N]`, in a population a copy; its name is assigned to change the setting."""
        return self.learner.optimizer

    @optimizer.setter
    def optimizer(self, name: OptimizerName) -> None:
        self.optimizer_name = name

    def evolvable_attributes(self, networks_only: bool = False) -> dict[str, Any]:
        """Return what may evolve, by name: the networks, and the hyperparameters unless `networks_only`."""
        networks: dict[str, Any] = {"actor": self.actor, "critic": self.critic}
        if isinstance(self.network, BranchedNetwork):  # of one network, or of three
            networks = dict(self.network.branches)
        return networks if networks_only else {**networks, **self.hyperparameters}

    def preprocess_observation(self, observation: np.ndarray) -> Tensor:
        """Encode and normalize observations `[B, *shape]` or a single one: `[B, D]` on the device."""
        return self.learner.normalize(observation)

    # -- acting

    def predict(
        self,
        obs: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, Any]:
        """Return `(action, state)` for a batch or a single observation, as SB3 and SB3-contrib's MaskablePPO do.

        The actions are those that the env takes; DQN returns the best one, `deterministic` or not. `state` is what
        `predict` returned before, None at first; `episode_start` `[B]` is True where an episode starts, so that the
        hidden state is reset there. `action_masks` `[B, choices]` (or `[choices]`) is True where an action is legal. An
        agent that learned with masks warns once if it acts without them, because its unmasked policy was never trained.

        Raises:
            ConfigurationError: an observation, mask, `state` or `episode_start` does not fit.
        """
        return self.learner.predict(obs, state, episode_start, deterministic, action_masks)

    # -- testing

    def test(
        self,
        env: gymnasium.vector.VectorEnv | gymnasium.Env,
        swap_channels: bool = False,
        max_steps: int | None = None,
        loop: int = 3,
        vectorized: bool = True,
        callback: EpisodeCallback | None = None,
    ) -> float:
        """Return the mean return of exactly `loop` episodes, on the same seeds at every call.

        It is appended to `fitness`. Of an env with instances these are `loop` episodes on each, and the result is the
        `aggregate` of their means. If the rows of a vector env differ, `loop` is rounded up to whole sets of them. The
        policy does not explore and nothing is learned. The env is reset, and again at the end of each episode.
        `max_steps` truncates longer episodes. `callback(score, info)` is called for each episode with its return and
        the info of its last step, to which `episode_length` is added, in steps. `swap_channels` is True if the env's
        images have their channels last although the agent was made for channels first. `vectorized` is AgileRL's and
        ignored.

        Raises:
            ConfigurationError: `loop` is below 1, `env` is no env, or the agent was made for other spaces.
            EnvStepError: an observation or a reward is not finite.
        """
        has_methods = all(callable(getattr(env, name, None)) for name in ("reset", "step"))
        has_space = hasattr(env, "observation_space") or hasattr(env, "single_observation_space")
        if isinstance(env, type) or not has_methods or not has_space:
            raise ConfigurationError(
                f"env={env!r:.100}; allowed is an environment, such as gymnasium.make('CartPole-v1')"
            )
        player = self
        if swap_channels and not self.swap_channels:
            player = self.clone()
            player.set_image_layout(getattr(env, "single_observation_space", env.observation_space), swap_channels=True)
        if isinstance(env, gymnasium.vector.VectorEnv):
            vector = env
        else:
            vector = gymnasium.vector.SyncVectorEnv(
                [lambda: env], copy=False, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP
            )
        episodes = player._run_test(VecEnvAdapter(vector), loop, max_steps, callback)
        self.fitness.append(tested_fitness(episodes, vector))
        return self.fitness[-1]

    def _check_env(self, env: Any) -> None:
        if self.learner.rollout_encoding.is_asymmetric:
            env.keep_critic_observation()
        spaces = env.single_observation_space, env.single_action_space
        check_spaces_match(
            f"env={env_name_of(env.env)!r}",
            spaces,
            "the agent",
            (self.observation_space, self.action_space),
            reads_bounds=self.learner.reads_bounds,
        )

    def set_image_layout(self, space: gymnasium.Space, *, swap_channels: bool) -> None:
        """Read observations of another space that encodes to the same rows, such as images with channels last.

        Raises:
            ConfigurationError: the rows would differ.
        """
        self.learner.set_image_layout(space, swap_channels=swap_channels)
        self.observation_space, self.swap_channels = space, swap_channels
        if "swap_channels" in self._fixed:
            self._fixed["swap_channels"] = swap_channels

    # -- mutation

    def _read_architecture(self, config: Mapping[str, Any]) -> NetworkSpec:
        return self.learner.read_architecture(config)

    def _mutate_learner(self, change: Mutation) -> Mutation:
        return self.learner.mutate(change)

    # -- copies and files

    def _init_copy(self, other: RLAlgorithm[LearnerT], index: int, seed: int | None = None) -> None:
        seed = other.seed if seed is None else seed
        self._init_settings(other.observation_space, other.action_space, **other._arguments(), index=index, seed=seed)
        self.learners = {ONLY: other.learner.copy_for(self)}

    @classmethod
    def _from_document(
        cls: type[RLAlgorithmT], document: Mapping[str, Any], device: str | torch.device, networks: CustomSpec | None
    ) -> RLAlgorithmT:
        agent = cls.__new__(cls)
        spaces = read_space(document["observation_space"]), read_space(document["action_space"])
        agent._init_settings(
            *spaces,
            validated(cls.config, document["settings"]),
            index=read_count(document, "index"),
            hp_config=HyperparameterConfig.from_json(document["hp_config"]),
            num_envs=read_count(document, "num_envs"),
            device=device,
            seed=read_count(document, "seed"),
        )
        agent.learners = {ONLY: cls.group_class.learner_class.from_document(agent, *spaces, document, networks)}
        agent.check()
        return agent

    def to_documents(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {**self.learner.document(), **self._metadata()}, self.learner.tensors()

    def _sections(self, document: Any, tensors: Any) -> dict[str, tuple[Any, Any]]:
        return {ONLY: (document, tensors)}

    @classmethod
    def load(  # pyright: ignore[reportIncompatibleMethodOverride]  # more keywords
        cls: type[RLAlgorithmT],
        path: str | os.PathLike[str],
        device: str | torch.device = "cpu",
        accelerator: Any = None,
        *,
        actor_network: nn.Module | None = None,
        critic_network: nn.Module | None = None,
        **settings: Any,
    ) -> RLAlgorithmT:
        """Load an agent that `save_checkpoint` wrote, or the best one of a run or of a checkpoint of it.

        The code of a user's own networks is not saved: such an agent needs modules of the same classes, with any
        weights and architecture.

        Raises:
            CheckpointError: the folder is missing, damaged or foreign, or was written with networks of your own.
            ConfigurationError: a setting is given; those of a loaded agent are attributes.
        """
        refuse_settings(settings, cls.algo)
        document, tensors = read_agent(path)
        device = device_from(device, accelerator)
        networks = custom_spec(actor_network, critic_network)
        return cls.from_documents(document, tensors, device=device, where=str(path), networks=networks)

    # -- AgileRL's other names

    @classmethod
    def _action_dim(cls, action_space: gymnasium.Space) -> int:
        """Return the outputs of an actor with default settings for an action space."""
        return make_distribution(action_space).num_outputs

    get_action_dim = Dimension(
        lambda agent: agent.learner.distribution.num_outputs, lambda kind, space: kind._action_dim(space)
    )
    """Outputs of the actor for one observation; `PPO.get_action_dim(action_space)` gives those of a space, with default
    settings."""
    get_state_dim = Dimension(
        lambda agent: _inputs(agent.learner.encoding),
        lambda kind, space: _inputs(ObservationEncoder(space, one_hot=getattr(kind.config, "one_hot", True))),
    )
    """Inputs of the networks for one observation; `PPO.get_state_dim(observation_space)` gives those of a space."""


def _inputs(encoding: ObservationEncoder) -> int:
    return sum(leaf.size for leaf in encoding.leaves)
