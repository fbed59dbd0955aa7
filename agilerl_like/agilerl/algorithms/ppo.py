"""PPO with AgileRL 2.58's signature and defaults, and the rollout buffer that `collect_rollouts` fills."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from agilerl_like.agilerl.absent import absent_from
from agilerl_like.agilerl.algorithms.core.base import (
    EvolvableAlgorithm,
    default_ranges,
    fitting_batch,
    settings_from,
    wrapped,
)
from agilerl_like.agilerl.components.rollout_buffer import RolloutBuffer
from agilerl_like.agilerl.networks.base import StochasticActor, ValueNetwork
from agilerl_like.algorithms import ppo
from agilerl_like.algorithms.agilerl_experiences import NAMES
from agilerl_like.algorithms.evaluation import EpisodeCallback
from agilerl_like.algorithms.ppo_learner import undone_on_error
from agilerl_like.envs.spaces import ObservationEncoder
from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo import Genome, HyperparameterConfig, Mutation
from agilerl_like.learning.sequences import BPTTSequenceType
from agilerl_like.networks.distributions import make_distribution
from agilerl_like.seeding import Purpose, generator

__getattr__ = absent_from(__name__)

HIDDEN = ("h", "c")
"""Ends of the names of a memory's states."""


class PPO(EvolvableAlgorithm, ppo.PPO, same_algorithm=True):
    """This package's PPO, called as AgileRL's.

    `rollout_buffer_config`, `wrap` and `accelerator`'s wrapping are accepted and have nothing to do. A `batch_size`
    beyond the rollout becomes the rollout. Outputs of the policy for a Box, and `action_std_init`, are in half-widths
    of the action space, around its centre; AgileRL's are in units of the space. `more` are keywords of
    `agilerl_like.PPO`, such as `seed`.
    """

    def __init__(
        self,
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        net_config: Mapping[str, Any] | None = None,
        batch_size: int = 64,
        lr: float = 1e-4,
        learn_step: int = 4096,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        mut: str | None = None,
        action_std_init: float = 0.6,
        clip_coef: float = 0.2,
        ent_coef: float = 0.01,
        vf_coef: float = 0.5,
        max_grad_norm: float = 0.5,
        target_kl: float | None = None,
        normalize_images: bool = True,
        update_epochs: int = 4,
        actor_network: nn.Module | StochasticActor | None = None,
        critic_network: nn.Module | ValueNetwork | None = None,
        share_encoders: bool = True,
        num_envs: int | None = None,
        rollout_buffer_config: Mapping[str, Any] | None = None,
        recurrent: bool = False,
        device: str | torch.device = "cpu",
        accelerator: Any = None,
        wrap: bool = True,
        bptt_sequence_type: str | BPTTSequenceType | None = None,
        max_seq_len: int | None = None,
        *,
        use_rollout_buffer: bool = True,
        **more: Any,
    ) -> None:
        if isinstance(actor_network, StochasticActor):
            if not isinstance(critic_network, ValueNetwork | None):
                raise ConfigurationError(
                    f"critic_network={type(critic_network).__name__} has no effect beside a StochasticActor, which "
                    "describes both networks; allowed are None and a ValueNetwork"
                )
            if net_config is not None:
                raise ConfigurationError(
                    f"net_config={net_config!r:.200} has no effect beside a StochasticActor; allowed is None"
                )
            net_config, recurrent = actor_network.net_config, recurrent or actor_network.recurrent
            action_std_init = actor_network.action_std_init
            more = {"squash_output": actor_network.squash_output, **more}
            actor_network = critic_network = None
        num_envs = num_envs or 1
        batch_size = fitting_batch(batch_size, learn_step, num_envs)
        hp_config = default_ranges(hp_config, lr, batch_size, learn_step)
        share_encoders = share_encoders and actor_network is None
        if not recurrent:  # AgileRL accepts the settings of sequences without effect
            bptt_sequence_type = max_seq_len = None
        bptt_sequence_type = BPTTSequenceType(bptt_sequence_type or BPTTSequenceType.CHUNKED)
        super().__init__(**settings_from(locals(), without=("rollout_buffer_config", "wrap", "use_rollout_buffer")))

    @classmethod
    def population(  # pyright: ignore[reportIncompatibleMethodOverride]  # AgileRL's is a list
        cls,
        size: int,
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
        device: str | torch.device = "cpu",
        wrapper_cls: Callable[..., Any] | None = None,
        wrapper_kwargs: Mapping[str, Any] | None = None,
        resume_from_checkpoint: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> list[Any]:
        """A list of `size` agents of one run seed, each in `wrapper_cls` if it is given.

        With `resume_from_checkpoint` each of them begins as the agent that was saved there.
        """
        agents = list(super().population(size, observation_space, action_space, device=device, **kwargs))
        for agent in agents if resume_from_checkpoint is not None else ():
            agent.load_checkpoint(resume_from_checkpoint or "")
        return wrapped(agents, wrapper_cls, wrapper_kwargs)

    def _init_settings(self, *args: Any, **kwargs: Any) -> None:
        super()._init_settings(*args, **kwargs)
        self._buffer: RolloutBuffer | None = None

    # -- the rollout buffer

    def _take_genome(self, genome: Genome, changes: tuple[Mutation, ...]) -> tuple[Mutation, ...]:
        """Begin with an empty buffer, as AgileRL does after a mutation: it has the length of a rollout, and gamma."""
        self._buffer = None
        return super()._take_genome(genome, changes)

    @property
    def rollout_buffer(self) -> RolloutBuffer:
        """What `collect_rollouts` fills and a bare `learn()` learns from."""
        if self._buffer is None:
            self.create_rollout_buffer()
        return self._buffer  # pyright: ignore[reportReturnType]  # just made

    def create_rollout_buffer(self) -> None:
        """Begin with an empty rollout buffer."""
        self._buffer = RolloutBuffer(
            self.rollout_steps,
            self.observation_space,
            self.action_space,
            self.num_envs,
            str(self.device),
            self.gae_lambda,
            self.gamma,
            self.recurrent,
        )
        self._buffer.rng = generator(self.seed, Purpose.MANUAL, Purpose.MINIBATCHES, self.index)

    def learn(
        self,
        experiences: Any = None,
        action_masks: Sequence[Any] | None = None,
        hidden_state: Mapping[str, Tensor] | None = None,
        acting: Sequence[Any] | None = None,
    ) -> float:
        """Do one update from the rollout buffer, or from the tuple of AgileRL's older loops; return the mean loss.

        If an error undoes the update, the buffer keeps its steps until the next one is added, so that `learn` can
        repeat it.

        Raises:
            ConfigurationError: the buffer is empty, `experiences` is not such a tuple, or a setting is illegal.
            PopulationDivergedError: the update gave weights that are not finite; they were restored.
        """
        if experiences is not None:
            if not isinstance(experiences, list | tuple):
                raise ConfigurationError(
                    f"experiences is a {type(experiences).__name__}; allowed is None, for what collect_rollouts put "
                    f"into the rollout buffer, or the tuple ({', '.join(NAMES)})"
                )
            return super().learn(tuple(experiences), action_masks, self._unnamed(hidden_state), acting)  # pyright: ignore[reportArgumentType]  # its length is checked there
        buffer, learner = self.rollout_buffer, self.learner
        content = buffer.content()
        try:
            self.check_settings()
            first = self._unnamed(content.hidden_state)
            if self.recurrent and first is None:
                first = super().get_initial_hidden_state(self.num_envs)
            with undone_on_error([learner]):
                if buffer.follows_discarded:  # what those steps paid is missing
                    learner.return_statistics = learner.return_statistics.of_new_episodes()
                loss = learner.learn(
                    content.experiences, content.action_masks, first, content.acting, content.last_observations
                )
        except BaseException:
            buffer.clear_at_next_step()
            raise
        buffer.empty()
        return loss

    # -- hidden states, by AgileRL's names

    def get_action(
        self, obs: Any, action_mask: Any = None, hidden_state: Mapping[str, Tensor] | None = None
    ) -> tuple[Any, ...]:
        """As `agilerl_like.PPO.get_action`; hidden states are `[layers, envs, units]` by AgileRL's names."""
        found = super().get_action(obs, action_mask, self._unnamed(hidden_state))
        return (*found[:-1], self._renamed(found[-1])) if self.recurrent else found

    def predict(
        self,
        obs: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, Any]:
        """As `agilerl_like.PPO.predict`; hidden states are `[layers, envs, units]` by AgileRL's names."""
        action, after = super().predict(obs, self._unnamed(state, "state"), episode_start, deterministic, action_masks)
        return action, self._renamed(after) if self.recurrent else after

    def evaluate_actions(
        self, obs: Any, actions: Any, hidden_state: Any = None, action_mask: Any = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probability, entropy and value of given actions, with gradients."""
        return super().evaluate_actions(obs, actions, self._unnamed(hidden_state), action_mask)

    def get_initial_hidden_state(self, num_envs: int = 1) -> dict[str, Tensor]:
        """Zeros `[layers, num_envs, units]`, by name; none for an agent that is not recurrent."""
        return self._renamed(super().get_initial_hidden_state(num_envs))

    def get_hidden_state_architecture(self) -> dict[str, tuple[int, ...]]:
        """The shape of each hidden state."""
        return {name: tuple(state.shape) for name, state in self.get_initial_hidden_state(self.num_envs).items()}

    @property
    def _ends(self) -> tuple[str, ...]:
        return HIDDEN if getattr(self.architecture.memory, "cell", "") == "LSTM" else HIDDEN[:1]

    def _renamed(self, states: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {
            f"{name}_encoder_{end}": state[:, i :: len(self._ends)].transpose(0, 1)  # each layer's h and c in turn
            for name, state in states.items()
            for i, end in enumerate(self._ends)
        }

    def _unnamed(self, states: Any, argument: str = "hidden_state") -> Mapping[str, Tensor] | None:
        if not isinstance(states, Mapping) or not states or not self.recurrent:
            return states
        try:
            by_end = {
                name: [torch.as_tensor(states[f"{name}_encoder_{end}"]).transpose(0, 1) for end in self._ends]
                for name in self.learner.hidden_state_names
            }
        except KeyError as missing:
            raise ConfigurationError(
                f"{argument} has {[*states]}; wanted are {[*self.get_initial_hidden_state()]}"
            ) from missing
        return {name: torch.stack(parts, 2).flatten(1, 2) for name, parts in by_end.items()}

    # -- AgileRL's other names

    @staticmethod
    def get_state_dim(observation_space: gymnasium.Space) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]  # static there
        """The shape that networks see of a space: of a Dict those of its entries by name, of a Tuple those in it."""
        if isinstance(observation_space, gymnasium.spaces.Dict):
            return {name: PPO.get_state_dim(part) for name, part in observation_space.spaces.items()}
        if isinstance(observation_space, gymnasium.spaces.Tuple):
            return tuple(map(PPO.get_state_dim, observation_space.spaces))
        return ObservationEncoder(observation_space).leaves[0].shape

    @staticmethod
    def get_action_dim(action_space: gymnasium.Space) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]  # static there
        """Outputs of an actor for a space."""
        return make_distribution(action_space).num_outputs

    def share_encoder_parameters(self) -> None:
        """Do nothing: with `share_encoders` actor and critic have one encoder."""

    def test(  # pyright: ignore[reportIncompatibleMethodOverride]  # AgileRL's order
        self,
        env: gymnasium.vector.VectorEnv | gymnasium.Env,
        max_steps: int | None = None,
        loop: int = 3,
        vectorized: bool = True,
        callback: EpisodeCallback | None = None,
        *,
        swap_channels: bool = False,
    ) -> float:
        """As `agilerl_like.PPO.test`, in AgileRL's order."""
        return super().test(env, swap_channels, max_steps, loop, vectorized, callback)
