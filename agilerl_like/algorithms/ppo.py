"""Proximal policy optimization (Schulman et al. 2017) as an agent that a user holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from agilerl_like.algorithms.agilerl_experiences import Experiences
from agilerl_like.algorithms.on_policy_algorithm import OnPolicyAlgorithm
from agilerl_like.algorithms.population import PopulationConstructor
from agilerl_like.algorithms.ppo_config import PPOConfig
from agilerl_like.algorithms.ppo_learner import PPOLearner, undone_on_error
from agilerl_like.algorithms.presets import reads_presets
from agilerl_like.algorithms.rl_algorithm import RLAlgorithm
from agilerl_like.algorithms.rollout_builder import RolloutBuilder
from agilerl_like.errors import check_argument_names
from agilerl_like.hpo import HyperparameterConfig
from agilerl_like.hpo.schedules import Schedule
from agilerl_like.learning.execution import Precision
from agilerl_like.learning.optimizer import OptimizerName
from agilerl_like.learning.rewards import RewardFunction
from agilerl_like.learning.sequences import BPTTSequenceType
from agilerl_like.networks.architecture import sequence_length, with_critic_config
from agilerl_like.networks.observation_norm import ObservationNormKind


class PPO(OnPolicyAlgorithm, PopulationConstructor, RLAlgorithm[PPOLearner]):
    """A PPO agent whose architecture and hyperparameters can evolve.

    The arguments are AgileRL's; `PPOConfig` has the meaning, default and range of each setting. Settings may be set as
    attributes at any time, with effect from the next update, except for those that networks are built from and
    `action_std_init`, which are an error. A single agent is computed by the same code as a population.

    Args:
        observation_space: Box (a vector, or an image of three or four dimensions), Discrete, MultiDiscrete,
            MultiBinary, and Dict and Tuple of these.
        action_space: Discrete, MultiDiscrete, MultiBinary or Box.
        index: identity of the agent in its population.
        hp_config: which settings may evolve, and in which ranges.
        net_config: `encoder_config`, `memory_config`, `head_config`, `latent_dim`, `min_latent_dim`, `max_latent_dim`,
            and `encoder`, if not the default for the observations (see `NetworkSpec.from_net_config`).
        critic_config: keys of `net_config` that differ for the critic, and `evolves`: "alike" (a mutation changes actor
            and critic in the same way, where both allow it) or "apart" (it changes one of them).
        actor_network, critic_network: the user's own networks, both or none, in place of `net_config`. They receive
            normalized observations (see `networks.custom.EvolvableCustom`) and return `get_action_dim` values and one
            value. The architecture of an `EvolvableModule` evolves.
        mut: label of the last mutation.
        num_envs: envs that this agent acts in at once.
        device: device of all tensors; `accelerator` overrides it.
        seed: names all random streams; None: drawn from the operating system.
        use_rollout_buffer, wrap: AgileRL's; ignored, since rollouts are always buffered.

    Raises:
        ConfigurationError: a value is out of range, a key unknown, or a space not supported.
    """

    algo: ClassVar[str] = "PPO"

    @check_argument_names
    @reads_presets
    def __init__(
        self,
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        net_config: Mapping[str, Any] | None = None,
        batch_size: int = PPOConfig.batch_size,
        lr: float = PPOConfig.lr,
        learn_step: int = PPOConfig.learn_step,
        gamma: float = PPOConfig.gamma,
        gae_lambda: float = PPOConfig.gae_lambda,
        mut: str | None = None,
        action_std_init: float = PPOConfig.action_std_init,
        clip_coef: float = PPOConfig.clip_coef,
        ent_coef: float = PPOConfig.ent_coef,
        vf_coef: float = PPOConfig.vf_coef,
        max_grad_norm: float | None = PPOConfig.max_grad_norm,
        target_kl: float | None = PPOConfig.target_kl,
        normalize_images: bool = PPOConfig.normalize_images,
        update_epochs: int = PPOConfig.update_epochs,
        actor_network: nn.Module | None = None,
        critic_network: nn.Module | None = None,
        share_encoders: bool = PPOConfig.share_encoders,
        num_envs: int = 1,
        use_rollout_buffer: bool = False,
        recurrent: bool = PPOConfig.recurrent,
        device: str | torch.device = "cpu",
        accelerator: Any = None,
        wrap: bool = True,
        bptt_sequence_type: BPTTSequenceType = PPOConfig.bptt_sequence_type,
        max_seq_len: int | None = PPOConfig.max_seq_len,
        *,
        action_std_min: float = PPOConfig.action_std_min,
        action_std_max: float = PPOConfig.action_std_max,
        action_noise_correlation: float = PPOConfig.action_noise_correlation,
        swap_channels: bool | None = PPOConfig.swap_channels,
        clip_coef_vf: float | None = PPOConfig.clip_coef_vf,
        critic_observation: str | Sequence[str] = PPOConfig.critic_observation,
        normalize_observation: ObservationNormKind = PPOConfig.normalize_observation,
        observation_clip: float = PPOConfig.observation_clip,
        observation_eps: float = PPOConfig.observation_eps,
        normalize_value: bool = PPOConfig.normalize_value,
        squash_output: bool = PPOConfig.squash_output,
        compile: bool = PPOConfig.compile,
        precision: Precision = PPOConfig.precision,
        per_member: bool = PPOConfig.per_member,
        schedules: Mapping[str, Schedule] = PPOConfig.schedules,
        critic_config: Mapping[str, Any] | None = None,
        clip_grads: Literal["apart", "together"] = PPOConfig.clip_grads,
        kl_stop: Literal["epoch", "minibatch", "update"] = PPOConfig.kl_stop,
        value_clip_mode: Literal["max", "clipped"] = PPOConfig.value_clip_mode,
        normalize_advantage: Literal["rollout", "minibatch", "none"] = PPOConfig.normalize_advantage,
        advantage_ddof: Literal[0, 1] = PPOConfig.advantage_ddof,
        advantage: Literal["gae", "n_step", "mc"] = PPOConfig.advantage,
        n_step: int = PPOConfig.n_step,
        bootstrap_truncated: bool = PPOConfig.bootstrap_truncated,
        optimizer: OptimizerName = PPOConfig.optimizer,
        adam_eps: float = PPOConfig.adam_eps,
        betas: tuple[float, float] | None = PPOConfig.betas,
        weight_decay: float = PPOConfig.weight_decay,
        lr_critic: float | None = PPOConfig.lr_critic,
        lr_schedule: Schedule | None = PPOConfig.lr_schedule,
        lr_end: float = PPOConfig.lr_end,
        kl_threshold: float = PPOConfig.kl_threshold,
        kl_factor: float = PPOConfig.kl_factor,
        lr_factor: float = PPOConfig.lr_factor,
        lr_min: float = PPOConfig.lr_min,
        lr_max: float = PPOConfig.lr_max,
        num_steps: int | None = PPOConfig.num_steps,
        num_minibatches: int | None = PPOConfig.num_minibatches,
        random_steps: int = PPOConfig.random_steps,
        learning_starts: int = PPOConfig.learning_starts,
        normalize_reward: bool = PPOConfig.normalize_reward,
        reward_clip: float | None = PPOConfig.reward_clip,
        reward_transform: Mapping[str, float | None] | RewardFunction | str | None = PPOConfig.reward_transform,
        state_dependent_std: bool = PPOConfig.state_dependent_std,
        preset: str = PPOConfig.preset,
        seed: int | None = None,
        **unknown: Any,
    ) -> None:
        given = {**locals()}
        if recurrent and max_seq_len is None:
            given["max_seq_len"] = sequence_length(net_config)
        self._init_given(given, with_critic_config(net_config, critic_config))

    # -- acting

    def get_action(
        self, obs: Any, action_mask: np.ndarray | None = None, hidden_state: Mapping[str, Tensor] | None = None
    ) -> tuple[Any, ...]:
        """Act on observations `[B, *shape]`: `(action [B, …], log_prob [B], entropy [B], value [B])`.

        In training mode actions are sampled, otherwise they are the most likely ones. Continuous actions are in the
        env's units and not clipped to its bounds, since their log-probability is that of the unclipped ones. A
        recurrent agent takes `hidden_state` as `get_initial_hidden_state` and this method return it (None: an episode
        starts), and returns the next one as a fifth value.
        """
        return self.learner.get_action(obs, action_mask, hidden_state)

    def evaluate_actions(
        self, obs: Any, actions: np.ndarray, hidden_state: Any = None, action_mask: np.ndarray | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probability, entropy and value `[B]` of given actions under the current policy, with gradients."""
        return self.learner.evaluate_actions(obs, actions, hidden_state, action_mask)

    def get_initial_hidden_state(self, num_envs: int = 1) -> dict[str, Tensor]:
        """Return the hidden state at the start of an episode: zeros `[num_envs, K, H]` for each recurrent network.

        It is empty if the agent is not recurrent.
        """
        return self.learner.get_initial_hidden_state(num_envs)

    # -- learning

    def learn(
        self,
        experiences: Experiences | RolloutBuilder | None = None,
        action_masks: Sequence[Any] | None = None,
        hidden_state: Mapping[str, Tensor] | None = None,
        acting: Sequence[Any] | None = None,
    ) -> float:
        """Do one PPO update and return the mean loss.

        `experiences` is `(states, actions, log_probs, rewards, dones, values, next_state, next_done)`, the first six
        lists over time of arrays `[E, …]`. `dones[t]` is 1 if step t *starts* an episode (the flag is taken before
        the step), and `next_done` is the same flag of the step that would follow. One flag does not distinguish time
        limits from terminations; a `RolloutBuilder` in place of the tuple does; the other arguments then belong in
        its `add`, and are an error here.
        `action_masks` are those that `get_action` was given, a list over time of arrays `[E, choices]`. `acting`, a
        list over time of flags `[E]`, is False where no action was taken: such rows are excluded from the update and
        may hold NaN. With running statistics of observations, `log_probs` and `values` of the first update are computed
        again, because the agent acted before there were any.

        A recurrent agent takes `hidden_state`, the state that `get_action` was given at the first of these steps; it is
        reset where that step starts an episode. None means zero everywhere, which is wrong for a loop whose episodes,
        and their hidden state, continue after an update.

        Raises:
            ConfigurationError: nothing to learn from, shapes that do not fit, or an illegal setting.
            PopulationDivergedError: the update gave weights that are not finite; they were restored.
        """
        self.check_settings()  # attributes may have been set since the last update
        try:
            with undone_on_error([self.learner]):
                loss = self.learner.learn(experiences, action_masks, hidden_state, acting)
        except BaseException:
            if isinstance(experiences, RolloutBuilder):
                experiences.clear_at_next_step()
            raise
        if isinstance(experiences, RolloutBuilder):
            experiences.empty()
        return loss
