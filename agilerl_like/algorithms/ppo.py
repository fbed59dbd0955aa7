"""Proximal policy optimisation (Schulman et al. 2017) as an agent that a user holds.

The maths is in `learning`; here are the names that users know. An agent alone learns by exactly the code by which a
population does.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, overload

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from agilerl_like.algorithms.agent import (
    RECENT,
    SAMPLE_STEPS,
    Agent,
    read_architecture,
    torch_generator,
    values_of,
)
from agilerl_like.algorithms.agilerl_experiences import Experiences, as_rollout
from agilerl_like.algorithms.individuals import make_members
from agilerl_like.algorithms.population import Population
from agilerl_like.algorithms.ppo_config import NUMERIC, PPOConfig, validated
from agilerl_like.algorithms.serialization import read_count, read_space, to_builtin
from agilerl_like.envs.action_masks import mask_slices
from agilerl_like.envs.spaces import ObservationEncoder, mask_size
from agilerl_like.errors import ConfigurationError, PopulationDivergedError, check_argument_names, unknown_name
from agilerl_like.hpo import HyperparameterConfig
from agilerl_like.hpo.schedules import Schedule, factor
from agilerl_like.learning.execution import Execution, Precision
from agilerl_like.learning.optimizer import Adam
from agilerl_like.learning.rollout import Rollout, row_bytes
from agilerl_like.learning.sequences import SINGLE, BPTTSequenceType, Cut
from agilerl_like.learning.update import Report, Values
from agilerl_like.modules.layers import NoisyLinear
from agilerl_like.modules.lstm import EvolvableLSTM
from agilerl_like.networks.actor_critic import ActorCritic
from agilerl_like.networks.architecture import NetworkSpec, sequence_length
from agilerl_like.networks.custom import CustomSpec, EvolvableCustom
from agilerl_like.networks.distributions import make_distribution
from agilerl_like.networks.memory import TIMELESS, Course
from agilerl_like.resources import check_memory
from agilerl_like.seeding import Purpose


class Dimension:
    """A number of an agent, read as an attribute; read from the class it is a function of a space instead."""

    def __init__(self, of_agent: Callable[[PPO], int], of_space: Callable[[gymnasium.Space], int]) -> None:
        self._of_agent, self._of_space = of_agent, of_space

    @overload
    def __get__(self, agent: None, kind: type[PPO]) -> Callable[[gymnasium.Space], int]: ...
    @overload
    def __get__(self, agent: PPO, kind: type[PPO]) -> int: ...
    def __get__(self, agent: PPO | None, kind: type[PPO]) -> int | Callable[[gymnasium.Space], int]:
        return self._of_space if agent is None else self._of_agent(agent)


class PPO(Agent):
    """A PPO agent whose architecture and hyperparameters can evolve.

    The arguments are AgileRL's; `PPOConfig` has the meaning, default and range of each number. Numbers may be set
    as attributes at any time and count from the next update on.

    Args:
        observation_space: Box (a vector, or an image of three or four dimensions), Discrete, MultiDiscrete,
            MultiBinary, and Dict and Tuple of these.
        action_space: Discrete, MultiDiscrete, MultiBinary or Box.
        index: identity of the agent in its population.
        hp_config: which numbers evolution may change, and in which range.
        net_config: `encoder_config`, `memory_config`, `head_config`, `latent_dim`, `min_latent_dim`, `max_latent_dim`,
            and `encoder`, if not the kind that suits the observations (see `NetworkSpec.from_net_config`).
        actor_network, critic_network: whole networks of your own, both or none, in place of `net_config`. They read
            what the space says, normalised (see `networks.custom.EvolvableCustom`), and give `get_action_dim` numbers
            and one value. An `EvolvableModule` has its architecture evolved too.
        mut: label of the last mutation.
        num_envs: envs that this agent acts in at once.
        device: where its tensors live; `accelerator` overrides it.
        seed: names all its random streams; drawn from the operating system if left out.
        use_rollout_buffer: accepted, as AgileRL has it; rollouts are always buffered.
        wrap: accepted for AgileRL's sake.

    Raises:
        ConfigurationError: a value is out of range, a key unknown, or a space not supported.
    """

    algo: ClassVar[str] = "PPO"

    batch_size: int
    lr: float
    learn_step: int
    gamma: float
    gae_lambda: float
    action_std_init: float
    action_std_min: float
    action_std_max: float
    action_noise_correlation: float
    clip_coef: float
    clip_coef_vf: float | None
    ent_coef: float
    vf_coef: float
    max_grad_norm: float
    target_kl: float | None
    update_epochs: int
    share_encoders: bool
    normalize_observation: bool
    normalize_value: bool
    normalize_images: bool
    swap_channels: bool | None
    recurrent: bool
    max_seq_len: int | None
    bptt_sequence_type: BPTTSequenceType
    squash_output: bool
    compile: bool
    precision: Precision
    per_member: bool
    schedules: Mapping[str, Schedule]

    @check_argument_names
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
        max_grad_norm: float = PPOConfig.max_grad_norm,
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
        normalize_observation: bool = PPOConfig.normalize_observation,
        normalize_value: bool = PPOConfig.normalize_value,
        squash_output: bool = PPOConfig.squash_output,
        compile: bool = PPOConfig.compile,
        precision: Precision = PPOConfig.precision,
        per_member: bool = PPOConfig.per_member,
        schedules: Mapping[str, Schedule] = PPOConfig.schedules,
        seed: int | None = None,
        **unknown: Any,
    ) -> None:
        given = locals()
        for name in unknown:
            raise unknown_name("setting", name, given.keys() - {"self", "unknown", "__class__"})
        own = actor_network is not None or critic_network is not None
        self._outline(
            observation_space,
            action_space,
            settings={name: given[name] for name in PPOConfig.__dataclass_fields__},
            index=index,
            hp_config=hp_config,
            net_config=net_config,
            networks=CustomSpec.of(actor_network, critic_network) if own else None,
            num_envs=num_envs,
            device=device if accelerator is None else accelerator.device,
            seed=seed,
        )
        self.mut = mut or "None"
        self._make_network()

    @classmethod
    def unbuilt(cls, observation_space: gymnasium.Space, action_space: gymnasium.Space, **arguments: Any) -> PPO:
        """Return an agent without networks, whose size is checked; `_make_network` allocates them."""
        agent = cls.__new__(cls)
        agent._outline(observation_space, action_space, networks=None, **arguments)
        return agent

    def _outline(
        self,
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
        *,
        settings: dict[str, Any],
        net_config: Mapping[str, Any] | None,
        networks: CustomSpec | None,
        **arguments: Any,
    ) -> None:
        """Take over and check all that does not need a network."""
        if settings["recurrent"] and settings["max_seq_len"] is None:
            settings = settings | {"max_seq_len": sequence_length(net_config)}
        known = validated(PPOConfig, settings)
        encoding = _encoding(observation_space, known)
        known = replace(known, swap_channels=encoding.swap_channels)  # a saved agent keeps its layout
        if networks is None:
            architecture = NetworkSpec.from_net_config(net_config, encoding.leaves, recurrent=known.recurrent)
        else:
            architecture = NetworkSpec.custom(networks)
        self._start(
            observation_space, action_space, settings=known, architecture=architecture, encoding=encoding, **arguments
        )
        self.check_size()

    def _make_network(self) -> None:
        network = self.initial_network()
        for module in network.modules():
            if isinstance(module, EvolvableCustom):
                module.check()
        self._own(network)

    def _start(
        self,
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
        *,
        settings: PPOConfig,
        index: int,
        hp_config: HyperparameterConfig | None,
        architecture: NetworkSpec,
        encoding: ObservationEncoder,
        num_envs: int,
        device: str | torch.device,
        seed: int | None,
    ) -> None:
        super().__init__(
            observation_space,
            action_space,
            index=index,
            hp_config=with_int_dtype(hp_config),
            architecture=architecture,
            encoding=encoding,
            device=device,
            seed=seed,
        )
        for name in PPOConfig.__dataclass_fields__:
            setattr(self, name, getattr(settings, name))
        self.num_envs = to_builtin(num_envs)
        self.check()

    def _own(self, network: ActorCritic) -> None:
        self.set_network(
            network, Adam.fresh(torch.zeros(1, sum(p.numel() for p in network.parameters()), device=self.device))
        )

    @classmethod
    @check_argument_names
    def population(
        cls,
        size: int,
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
        *,
        sample_hyperparameters: bool = False,
        **kwargs: Any,
    ) -> Population:
        """Make a population of `size` agents of one run seed, each with weights and random streams of its own.

        With `sample_hyperparameters` every member but the first starts from a draw of `hp_config`'s ranges; the first
        keeps the values given, moved into their ranges. All other arguments are the constructor's.

        Raises:
            ConfigurationError: `size` is below 1, or as the constructor.
        """
        return Population(
            make_members(cls, size, observation_space, action_space, sample=sample_hyperparameters, settings=kwargs)
        )

    # -- settings

    def settings(self) -> dict[str, Any]:
        """The settings as they are now, by the constructor's names."""
        return {name: getattr(self, name) for name in PPOConfig.__dataclass_fields__}

    def check(self) -> None:
        """Raise ConfigurationError unless the settings as they are now are legal together."""
        validated(PPOConfig, self.settings())
        for name in ("recurrent", "share_encoders"):
            if getattr(self, name) and isinstance(self.architecture.encoder, CustomSpec):
                raise ConfigurationError(
                    f"{name}=True cannot go with actor_network and critic_network; allowed is False"
                )
        for name in self.hp_config:
            if name not in NUMERIC:
                raise ConfigurationError(
                    f"hp_config {name!r} is not a number of PPO that can evolve; allowed are {', '.join(NUMERIC)}"
                )
            for bound in ("min", "max"):
                changed = {**self.settings(), name: getattr(self.hp_config[name], bound)}
                validated(PPOConfig, changed, named=f"hp_config.{name}.{bound}")
        self.hp_config.check(self.hyperparameters)
        self._check_std_bounds()
        check_rollout(self)

    def _check_std_bounds(self) -> None:
        """Raise ConfigurationError unless the bounds of the actions' deviation are in order, and stay so."""
        low, high = self.action_std_min, self.action_std_max
        low = self.hp_config["action_std_min"].max if "action_std_min" in self.hp_config else low
        high = self.hp_config["action_std_max"].min if "action_std_max" in self.hp_config else high
        if low > high:
            raise ConfigurationError(f"action_std_min={low} must not be greater than action_std_max={high}")

    def check_size(self) -> None:
        row = row_bytes(self.encoding)
        check_memory(f"num_envs={self.num_envs}", self.num_envs, 2 * row, "envs")
        check_memory(f"learn_step={self.learn_step}", self.learn_step, row, "env steps")
        if "learn_step" in self.hp_config:
            longest = int(self.hp_config["learn_step"].max)
            check_memory(f"hp_config.learn_step.max={longest}", longest, row, "env steps")
        super().check_size()

    @property
    def rollout_steps(self) -> int:
        """Steps of each env between updates."""
        return math.ceil(self.learn_step / self.num_envs)

    def repair(self, hyperparameters: dict[str, int | float]) -> dict[str, int | float]:
        """Keep a minibatch no larger than the rollout: shrink it if it may change, else lengthen the rollout."""
        return fit_batch_to_rollout(hyperparameters, self.hp_config, self.num_envs)

    def assign(self, hyperparameters: Mapping[str, int | float]) -> None:
        """Set hyperparameters; what `action_std_init` changes by, the learned standard deviation changes by, too."""
        before = self.action_std_init, self.action_std_min, self.action_std_max
        super().assign(hyperparameters)
        if (self.action_std_init, self.action_std_min, self.action_std_max) != before:
            self._move_out()
            self.distribution.bound_std_(self.action_std_init - before[0], self.action_std_min, self.action_std_max)

    @property
    def execution(self) -> Execution:
        """How this agent's arithmetic is run."""
        return Execution(self.compile, self.precision, self.per_member)

    def build(self, architecture: NetworkSpec) -> ActorCritic:
        """Build a network of an architecture for this agent's spaces, with the weights as they come."""
        return ActorCritic(
            architecture,
            self.encoding,
            self.action_space,
            share_encoders=self.share_encoders,
            normalize_observation=self.normalize_observation,
            normalize_value=self.normalize_value,
            log_std=min(max(self.action_std_init, self.action_std_min), self.action_std_max),
            squash=self.squash_output,
        )

    # -- acting

    @property
    def cut(self) -> Cut:
        return (
            Cut.of_kind(self.bptt_sequence_type, self.max_seq_len or self.rollout_steps) if self.recurrent else SINGLE
        )

    def get_action(
        self, obs: Any, action_mask: np.ndarray | None = None, hidden_state: Mapping[str, Tensor] | None = None
    ) -> tuple[Any, ...]:
        """Act on observations `[B, *shape]`: `(action [B, …], log_prob [B], entropy [B], value [B])`.

        In training mode actions are drawn, otherwise they are the most likely ones. Continuous actions are in the
        env's units and not yet clipped to its bounds, for their log-probability is that of the unclipped ones. A
        recurrent agent takes `hidden_state` as `get_initial_hidden_state` and this method give it (left out: an episode
        begins), and returns the next one as a fifth.
        """
        with torch.no_grad():
            x = self.preprocess_observation(obs)
            course = self._now(hidden_state, len(x))
            mask = self._mask(action_mask, len(x))
            outputs, _ = self.network.evaluate(x, course)
            raw = (
                self.distribution.sample(outputs, self.next_noise(len(x)), mask)
                if self.training
                else self.distribution.mode(outputs, mask)
            )
            log_prob, entropy = self.distribution.evaluate(outputs, raw, mask)
            value = self.network.value(x, course)
            numbers = log_prob.cpu().numpy(), entropy.cpu().numpy(), value.cpu().numpy()
            found = self.distribution.unbounded(raw), *numbers
            return (*found, self._named(self.network.step(x, course.state)[1])) if self.recurrent else found

    def correlated(self, noise: Tensor, before: Tensor | None) -> Tensor:
        return self.distribution.correlated(noise, before, self.action_noise_correlation)

    def predict(
        self,
        obs: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, Any]:
        """Return `(action, state)` for a batch or a single observation, as SB3 and SB3-contrib's MaskablePPO do.

        The actions are those that the env takes. `state` is what `predict` returned before, None at first;
        `episode_start` `[B]` is True where an episode begins, so that the hidden state is reset there. `action_masks`
        `[B, choices]` (or `[choices]`) is True where an action is legal. An agent that learned with masks and is asked
        without them warns once: its unmasked policy was never trained.

        Raises:
            ConfigurationError: an observation, mask or `episode_start` does not fit.
        """
        if action_masks is None and self.learned_with_masks:
            self._warn_of_missing_masks()
        with torch.no_grad():
            encoded, single = self._rows(obs)
            x = self.network.observation_norm(encoded)
            before = self._now(state if self.recurrent else None, len(x)).state
            if self.recurrent and episode_start is not None:
                starts = torch.as_tensor(np.atleast_1d(episode_start), device=self.device).to(before.dtype)
                if starts.shape != (len(x),):
                    raise ConfigurationError(
                        f"episode_start has shape {tuple(starts.shape)}; allowed is {(len(x),)}, one for each episode"
                    )
                before = before * (1 - starts).view(-1, 1, 1, 1)
            outputs, after = self.network.step(x, before)
            mask = self._mask(action_masks, len(x))
            raw = (
                self.distribution.mode(outputs, mask)
                if deterministic
                else self.distribution.sample(outputs, self.noise((len(x),)), mask)
            )
            action = self.distribution.to_env(raw)
        return (action[0] if single else action), self._named(after) if self.recurrent else state

    def _warn_of_missing_masks(self) -> None:
        if not self._warned_of_masks:
            self._warned_of_masks = True
            warnings.warn(
                f"agent {self.index} learned with action masks, and predict was called without action_masks: it may "
                "choose illegal actions; pass the environment's masks (info['action_mask'])",
                stacklevel=3,
            )

    @torch.no_grad()
    def best_actions(self, encoded: Tensor, mask: Tensor | None, state: Tensor) -> tuple[np.ndarray, Tensor]:
        if self.per_member and len(encoded) > 1:  # how many rows an env has depends on who shares the process
            rows = [slice(row, row + 1) for row in range(len(encoded))]
            masks = [None if mask is None else mask[row].clone() for row in rows]
            alone = [
                self.best_actions(encoded[row].clone(), its_mask, state[row].clone())
                for row, its_mask in zip(rows, masks, strict=True)
            ]
            actions, states = zip(*alone, strict=True)
            return np.concatenate(actions), torch.cat(states)
        outputs, after = self.network.step(self.network.observation_norm(encoded), state)
        return self.distribution.to_env(self.distribution.mode(outputs, mask)), after

    # -- what is remembered

    def get_initial_hidden_state(self, num_envs: int = 1) -> dict[str, Tensor]:
        """What is remembered at the start of an episode: zeros `[num_envs, K, H]` for each memory, by its network.

        An agent that is not recurrent has none.
        """
        return self._named(self.initial_hidden_state.repeat(num_envs, 1, 1, 1)) if self.recurrent else {}

    @property
    def _memories(self) -> tuple[str, ...]:
        return ("shared",) if self.share_encoders else ("actor", "critic")

    def _named(self, state: Tensor) -> dict[str, Tensor]:
        return dict(zip(self._memories, state.unbind(1), strict=True))

    def _now(self, hidden_state: Mapping[str, Tensor] | None, batch: int) -> Course:
        """One step of each of a batch's episodes."""
        given = {} if hidden_state is None else hidden_state
        if not isinstance(given, Mapping):
            raise ConfigurationError(
                f"hidden_state is a {type(given).__name__}; allowed is a mapping as get_initial_hidden_state gives it"
            )
        if given and not self.recurrent:
            raise ConfigurationError("hidden_state is given, but this agent is not recurrent; allowed is None")
        if not self.recurrent:
            return TIMELESS._replace(state=self.initial_hidden_state)
        shape = (batch, *self.network.state_shape[1:])
        named = {
            name: torch.as_tensor(state) for name, state in (given or self.get_initial_hidden_state(batch)).items()
        }
        found = {name: tuple(named[name].shape) if name in named else None for name in self._memories}
        if set(found.values()) != {shape}:
            raise ConfigurationError(f"hidden_state has shapes {found}; allowed is {shape} for each")
        state = torch.stack([named[name] for name in self._memories], 1).to(self.device, self.network.dtype)
        return Course(state.new_zeros(batch, 1), state)

    def evaluate_actions(
        self, obs: Any, actions: np.ndarray, hidden_state: Any = None, action_mask: np.ndarray | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probability, entropy and value `[B]` of given actions under the policy as it is now, with gradients."""
        x = self.preprocess_observation(obs)
        course = self._now(hidden_state, len(x))
        outputs, _ = self.network.evaluate(x, course)
        raw = self.distribution.from_env(np.asarray(actions)).to(self.device)
        log_prob, entropy = self.distribution.evaluate(outputs, raw, self._mask(action_mask, len(x)))
        return log_prob, entropy, self.network.value(x, course)

    def _mask(self, action_mask: Any, batch: int) -> Tensor | None:
        if action_mask is None:
            return None
        mask = np.asarray(action_mask, dtype=bool)
        size = mask_size(self.action_space)
        mask = mask[None] if mask.ndim == 1 else mask
        if mask.shape != (batch, size):
            raise ConfigurationError(f"action_mask has shape {mask.shape}; allowed is {(batch, size)}")
        for choice in mask_slices(self.action_space):
            stuck = ~mask[:, choice].any(1)
            if stuck.any():
                raise ConfigurationError(f"action_mask={mask[stuck][0].astype(int).tolist()} allows no action")
        return torch.from_numpy(mask).to(self.device)

    # -- learning

    def values(self) -> tuple[float, ...]:
        """The numbers that enter the maths, in the order of `Values`."""
        infinite = {
            name: math.inf if getattr(self, name) is None else getattr(self, name)
            for name in ("clip_coef_vf", "target_kl")
        }
        return tuple(self._scheduled(name, float(infinite.get(name, getattr(self, name)))) for name in Values._fields)

    def _scheduled(self, name: str, value: float) -> float:
        """Return a hyperparameter's value times its schedule's factor, if it has one."""
        schedule = self.schedules.get(name)
        return value if schedule is None else value * factor(name, schedule, self.progress)

    def learn(
        self,
        experiences: Experiences | None = None,
        action_masks: Sequence[Any] | None = None,
        hidden_state: Mapping[str, Tensor] | None = None,
        acting: Sequence[Any] | None = None,
    ) -> float:
        """Do one PPO update and return the mean loss.

        `experiences` is `(states, actions, log_probs, rewards, dones, values, next_state, next_done)`, the first six
        lists over time of arrays `[E, …]`. `dones[t]` says that step t *begins* an episode (the flag is taken before
        the step), and `next_done` the same of the step that would follow. Hand-written loops that keep one done flag
        cannot tell a time limit from an end; `train_on_policy` can. `action_masks` are those that `get_action` was
        given, a list over time of arrays `[E, choices]`. `acting`, a list over time of flags `[E]`, is False where no
        action was taken: such rows are excluded from the update and may hold NaN.

        A recurrent agent takes `hidden_state`, what `get_action` was given at the first of these steps; where this
        begins an episode nothing was remembered, whatever it says. Left out, nothing was remembered anywhere, which is
        wrong of a loop that goes on with its episodes, and with what it remembers, after an update.

        Raises:
            ConfigurationError: nothing to learn from, shapes that do not fit, or a setting that is none any more.
            PopulationDivergedError: the update left weights that are not finite; the agent was put back to what it was.
        """
        validated(PPOConfig, self.settings())  # any of them may have been set since the last update
        rollout, measured = as_rollout(
            experiences,
            self.encode,
            self.distribution,
            remembered=lambda begins: self._before(hidden_state, begins),
            action_masks=action_masks,
            acting=acting,
        )
        kept = self.cohort.keep(self.row)
        report = self.cohort.learn(
            [self.row],
            rollout,
            values_of([self]),
            batch_size=self.batch_size,
            cut=self.cut,
            shuffle=lambda epoch, count: self.shuffle(epoch, count).unsqueeze(0).to(self.device),
            measured=measured,
        )
        if not bool(report.healthy[0]):
            self.cohort.put_back(self.row, kept)
            raise PopulationDivergedError(
                f"agent {self.index}: {_broken(report)} is not finite; its weights were put back"
            )
        self.after_update(rollout)
        return float(report.loss[0])

    def _before(self, hidden_state: Mapping[str, Tensor] | None, begins: Tensor) -> Tensor:
        """What was remembered before a rollout's first step `[E, M, K, H]`; `begins` `[E]` is 1 where nothing was."""
        if self.recurrent and hidden_state is None and not bool(begins.all()):
            warnings.warn(
                "this rollout begins in the midst of an episode (dones[0] is 0), and hidden_state is missing: pass "
                "what get_action was given at its first step, or get_initial_hidden_state(…) if that was nothing",
                stacklevel=5,
            )
        state = self._now(hidden_state, len(begins)).state.detach()
        if not bool(torch.isfinite(state).all()):
            raise ConfigurationError("hidden_state holds numbers that are not finite; allowed is what get_action gave")
        return state.expand(len(begins), *state.shape[-3:]) * (1 - begins).to(state.dtype).view(-1, 1, 1, 1)

    def after_update(self, rollout: Rollout) -> None:
        self.updates += 1
        self.distribution.bound_std_(0.0, self.action_std_min, self.action_std_max)
        self.learned_with_masks |= rollout.masks is not None
        recent = rollout.observations[:, 0]  # [T, E, D]
        if self.recurrent:
            length = min(SAMPLE_STEPS, len(recent))
            recent = recent[: len(recent) // length * length].unflatten(0, (-1, length)).transpose(1, 2)  # [C, E, L, D]
            unbroken = rollout.starts[: recent.shape[0] * length, 0].unflatten(0, (-1, length))[:, 1:].sum(1) == 0
            recent = recent[unbroken] if bool(unbroken.any()) else recent.flatten(0, 1)
            kept = max(1, RECENT // length)
        else:
            recent, kept = recent.flatten(0, 1), RECENT
        self.recent_observations = recent[:: max(1, len(recent) // kept)][:kept].detach().cpu().clone()
        noisy = [layer for layer in self.network.modules() if isinstance(layer, NoisyLinear | EvolvableLSTM)]
        if noisy:
            generator = torch_generator(self.device, self.seed, Purpose.WEIGHT_NOISE, self.index, self.updates)
            for layer in noisy:
                layer.resample_(generator)

    # -- files

    @classmethod
    def _from_document(
        cls, document: Mapping[str, Any], device: str | torch.device, networks: CustomSpec | None
    ) -> PPO:
        agent = cls.__new__(cls)
        space, settings = read_space(document["observation_space"]), validated(PPOConfig, document["settings"])
        encoding = _encoding(space, settings)
        architecture = read_architecture(
            document["architecture"], encoding, recurrent=settings.recurrent, networks=networks
        )
        agent._start(
            space,
            read_space(document["action_space"]),
            settings=settings,
            index=read_count(document, "index"),
            hp_config=HyperparameterConfig.from_json(document["hp_config"]),
            architecture=architecture,
            encoding=encoding,
            num_envs=read_count(document, "num_envs"),
            device=device,
            seed=read_count(document, "seed"),
        )
        return agent

    # -- AgileRL's other names

    get_action_dim = Dimension(
        lambda agent: agent.distribution.num_outputs, lambda action_space: make_distribution(action_space).num_outputs
    )
    """Outputs of the actor for one observation; `PPO.get_action_dim(action_space)` gives those of a space."""
    get_state_dim = Dimension(lambda agent: agent.encoding.size, lambda space: ObservationEncoder(space).size)
    """Inputs of the networks for one observation; `PPO.get_state_dim(observation_space)` gives those of a space."""


def _encoding(space: gymnasium.Space, settings: PPOConfig) -> ObservationEncoder:
    return ObservationEncoder(space, swap_channels=settings.swap_channels, normalize_images=settings.normalize_images)


def _broken(report: Report) -> str:
    """What is not finite after an update."""
    numbers = {name: float(getattr(report, name)[0]) for name in ("loss", "value_loss", "approx_kl", "grad_norm")}
    return next((f"{name}={value}" for name, value in numbers.items() if not math.isfinite(value)), "a weight")


def check_rollout(one: Any, agents: int = 1, named: str = "") -> None:
    """Raise ConfigurationError unless a minibatch is no larger than a rollout, and can stay so.

    In each env there are so many `agents`; `named` says in a message who they are.
    """
    if not isinstance(one.num_envs, int) or one.num_envs < 1:
        raise ConfigurationError(f"num_envs={one.num_envs!r} must be a positive integer")
    steps = math.ceil(one.learn_step / one.num_envs)
    most = steps * one.num_envs * agents
    if one.batch_size > most:
        raise ConfigurationError(
            f"batch_size={one.batch_size} is larger than the rollout of learn_step={one.learn_step} "
            f"({steps} steps of num_envs={one.num_envs}{named}): allowed are at most {most}"
        )
    smallest = one.hp_config["batch_size"].min if "batch_size" in one.hp_config else one.batch_size
    longest = one.hp_config["learn_step"].max if "learn_step" in one.hp_config else one.learn_step
    if smallest > math.ceil(longest / one.num_envs) * one.num_envs * agents:
        raise ConfigurationError(f"batch_size={smallest} never fits into learn_step={longest}{named}")


def fit_batch_to_rollout(
    hyperparameters: dict[str, int | float], hp_config: HyperparameterConfig, num_envs: int, agents: int = 1
) -> dict[str, int | float]:
    """Hyperparameters of which a minibatch is no larger than the rollout of so many envs, with so many agents in each.

    Only what has a range is changed, and it stays in it; that there is a way `check_rollout` has made sure.
    """
    values = dict(hyperparameters)
    rollout = math.ceil(values["learn_step"] / num_envs) * num_envs * agents
    if values["batch_size"] <= rollout:
        return values
    sizes, lengths = hp_config.get("batch_size"), hp_config.get("learn_step")
    if sizes is not None:
        largest = 2 ** (rollout.bit_length() - 1) if sizes.scale == "power_of_two" else rollout
        values["batch_size"] = sizes.clip(largest)
    if lengths is not None and values["batch_size"] > rollout:
        needed = math.ceil(values["batch_size"] / agents)
        if lengths.scale == "power_of_two":
            needed = 2 ** (needed - 1).bit_length()
        values["learn_step"] = lengths.clip(needed)  # the longest is long enough, for it is a whole step of every env
    return values


def with_int_dtype(hp_config: HyperparameterConfig | None) -> HyperparameterConfig | None:
    """Whole numbers evolve as whole numbers, whether or not the range says so."""
    if hp_config is None:
        return None
    counts = [name for name in hp_config if name in NUMERIC and isinstance(getattr(PPOConfig, name), int)]
    return HyperparameterConfig(
        **{name: replace(range_, dtype=int) if name in counts else range_ for name, range_ in hp_config.items()}
    )
