"""A learner: one actor and critic with their optimizer, random streams and updates.

An algorithm has one learner for each group of agents that share a policy: PPO has one, IPPO has one for each of its
groups. The agents of a group are further rows of the batch, so a learner of A agents counts A times its algorithm's
`num_envs` and `learn_step`. Settings are read from the algorithm, so they may be changed there at any time.

A learner computes through a `PopulationLearner`, which it shares with the same group's learners of the other members
of a population. Every random stream is named by run seed, member index and a counter, so no other member influences it.
"""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from agilerl_like.algorithms.evaluation import RowLayout, SingleAgentRows
from agilerl_like.algorithms.serialization import (
    WEIGHTS_ONLY,
    MetaBuild,
    check_finite,
    read_count,
    read_flag,
    to_builtin,
)
from agilerl_like.algorithms.settings import number_range, setting_names, stored_settings, validated
from agilerl_like.envs.action_masks import mask_slices
from agilerl_like.envs.critic_observation import POLICY, AsymmetricEncoder, make_observation_encoder
from agilerl_like.envs.spaces import ObservationEncoder, check_action_space, mask_size, space_to_json
from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo import HyperparameterConfig, Mutation, Mutations
from agilerl_like.hpo.frozen_mapping import FrozenMapping
from agilerl_like.hpo.schedules import ADAPTIVE, Schedule, with_function, with_functions
from agilerl_like.learning.execution import Execution, Precision
from agilerl_like.learning.optimizer import Adam, OptimizerName
from agilerl_like.learning.population_learner import PopulationLearner
from agilerl_like.learning.rewards import ReturnStatistics, with_reward_function
from agilerl_like.learning.rollout_buffer import row_bytes
from agilerl_like.modules.evolvable_module import UnitMaps
from agilerl_like.modules.layers import NoisyLinear, skip_init
from agilerl_like.modules.memory_module import MemoryModule
from agilerl_like.modules.param_stack import (
    clone_module,
    detached_clone,
    flatten_parameters_,
    layout,
    update_count_flags,
)
from agilerl_like.networks.actor_critic import ActorCritic
from agilerl_like.networks.architecture import NetworkSpec
from agilerl_like.networks.custom import CustomSpec, EvolvableCustom
from agilerl_like.networks.distributions import LOG_STD_RANGE, ActionDistribution
from agilerl_like.networks.network_mutation import (
    MutatedNetwork,
    MutationSource,
    add_parameter_noise_,
    mutate_network,
)
from agilerl_like.networks.observation_norm import OBSERVATION_CLIP, OBSERVATION_EPS, ObservationNormKind
from agilerl_like.networks.recurrent_state import NO_SEQUENCE, SequenceInfo
from agilerl_like.seeding import Purpose, integer
from agilerl_like.storage import safe_folder

LearnerT = TypeVar("LearnerT", bound="Learner")

SAMPLE_STATES = 512
"""Random observations on which a mutation is measured before the first rollout."""
SAMPLE_STEPS = 32
"""Length of the sequences of observations on which a recurrent network's mutation is measured."""
RECENT = 1024
"""Observations of the last rollout that are stored to measure mutations on."""
WEIGHT_BYTES = 4 * 4
"""Bytes of a weight, its gradient and its two moments."""
MAX_TENSORS = 1000
"""Upper bound of the tensors of a network, for `MetaBuild`."""
NOISE = {"sd": Mutations.mutation_sd, "kl": Mutations.mutation_kl}
"""Bound and target of parameter noise where a mutation does not give them."""
SINGLE_AGENT = SingleAgentRows()
"""The layout of an algorithm of one agent."""
ATTRIBUTES: Mapping[str, str] = {"optimizer": "optimizer_name"}
"""Settings whose attribute has another name."""
RNG_STRIDE = 2**32
"""More draws than any run makes between two checkpoints."""


def torch_generator(device: torch.device | str, seed: int, purpose: Purpose, *keys: int) -> torch.Generator:
    """Return a torch generator for one named stream."""
    return torch.Generator(device).manual_seed(integer(seed, purpose, *keys))


class SettingFunctions(NamedTuple):
    """The settings of an algorithm that may be functions, which are sent and stored by name."""

    schedules: Mapping[str, Schedule]
    lr_schedule: Schedule | None
    reward_transform: Any


class LearnerHost:
    """What a learner reads from its algorithm; the defaults hold for algorithms without such a setting."""

    config: ClassVar[type[Any]]
    """The dataclass of the settings; a value that is set as an attribute counts from the next update."""
    learners: dict[str, Any]
    """The learner of each group of agents that share a policy, by the group's name."""
    index: int
    seed: int
    device: torch.device
    training: bool
    progress: float
    num_envs: int
    hp_config: HyperparameterConfig

    lr: float
    learn_step: int
    batch_size: int = 1
    share_encoders: bool = False
    critic_observation: str | tuple[str, ...] = POLICY
    normalize_observation: ObservationNormKind = False
    observation_clip: float = OBSERVATION_CLIP
    observation_eps: float = OBSERVATION_EPS
    normalize_value: bool = False
    normalize_images: bool = True
    swap_channels: bool | None = None
    recurrent: bool = False
    max_seq_len: int | None = None
    action_std_init: float = 0.0
    action_std_min: float = LOG_STD_RANGE[0]
    action_std_max: float = LOG_STD_RANGE[1]
    action_noise_correlation: float = 0.0
    squash_output: bool = False
    compile: bool = False
    precision: Precision = "float32"
    per_member: bool = False
    schedules: Mapping[str, Schedule] = FrozenMapping()
    lr_schedule: Schedule | None = None
    num_steps: int | None = None
    num_minibatches: int | None = None
    random_steps: int = 0
    learning_starts: int = 0
    normalize_reward: bool = False
    reward_clip: float | None = None
    reward_transform: Any = None
    state_dependent_std: bool = False
    optimizer_name: OptimizerName = "adam"
    """The setting `optimizer`; the attribute of that name has the moments."""
    max_steps: int | None = None
    """Those of the run; None in hand-written loops."""

    @property
    def group_factors(self) -> Mapping[str, Mapping[int, float]]:
        """Factors of hyperparameters by the number of a learner's group."""
        return {}

    @property
    def rollout_length(self) -> int:
        """Env steps between updates, before they are rounded up to whole steps of every env."""
        return self.learn_step if self.num_steps is None else self.num_steps * self.num_envs

    @property
    def scheduled(self) -> tuple[str, ...]:
        """The settings whose value in an update differs from the member's own."""
        return tuple(dict.fromkeys((*self.schedules, *([] if self.lr_schedule is None else ["lr"]))))

    @property
    def functions(self) -> SettingFunctions:
        """The settings that may be functions."""
        return SettingFunctions(self.schedules, self.lr_schedule, self.reward_transform)

    def set_functions(self, given: SettingFunctions) -> None:
        """Set functions of which this agent's file could hold the names alone; `given` are those of another agent."""
        self.schedules = with_functions(self.schedules, given.schedules)
        self.lr_schedule = with_function(self.lr_schedule, given.lr_schedule)
        self.reward_transform = with_reward_function(self.reward_transform, given.reward_transform)

    @property
    def critic_entries(self) -> str | Sequence[str]:
        """The entries of a learner's observations that its critic reads (see `envs.critic_observation`)."""
        return self.critic_observation

    def settings(self) -> dict[str, Any]:
        """Return the current settings by the constructor's names."""
        return {name: getattr(self, ATTRIBUTES.get(name, name)) for name in setting_names(self.config)}

    def check(self) -> None:
        """Raise ConfigurationError unless the current settings are legal together."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Attach the learners that `copy.deepcopy` and `pickle` made."""
        vars(self).update(state)
        for learner in self.learners.values():
            learner.set_algorithm(self)


class Learner:
    """The networks of one group of agents with their moments, random streams, mutations and files.

    A subclass adds what its algorithm computes. There is no network until `reinitialize`, `load_state` or `copy_for`
    sets one.
    """

    algo: ClassVar[str]
    """Name of the algorithm in its document."""
    network: ActorCritic

    def __init__(
        self,
        algorithm: LearnerHost,
        encoding: ObservationEncoder | AsymmetricEncoder,
        action_space: gymnasium.Space,
        architecture: NetworkSpec,
        *,
        num_agents: int = 1,
        group_number: int | None = None,
        max_seq_len: int | None = None,
        layout: RowLayout = SINGLE_AGENT,
    ) -> None:
        check_action_space(action_space)
        self._algorithm: weakref.ref[LearnerHost] | None = weakref.ref(algorithm)
        self.encoding: ObservationEncoder = encoding.policy
        """The encoder of what the policy observes."""
        self.rollout_encoding, self.action_space = encoding, action_space
        """The encoder of a rollout's observations, and the space of actions."""
        self.architecture = architecture
        self.num_agents = num_agents
        """Agents that share this policy; each is a further row of every env."""
        self.group_number = group_number
        """Position of the group in its algorithm, which names its random streams; None for an algorithm of one."""
        self.layout = layout
        """Converts between the group's agents and the rows that this learner reads."""
        self._max_seq_len = max_seq_len  # where the algorithm leaves it open
        self.updates = 0
        self.draws = 0
        self.variations = 0
        self.env_steps = 0
        """Env steps of the rollouts so far, those included that were not learned from."""
        self._random_steps_taken = 0  # in a hand-written loop, since its last rollout
        self.return_statistics = ReturnStatistics.new()
        """The scale by which rewards are divided with `normalize_reward`."""
        self.recent_observations = torch.zeros(0, 0)
        """Encoded observations of the last rollout, on which mutations are measured."""
        self.learned_with_masks = False
        """Whether any rollout that it learned from had action masks."""
        self._warned_of_masks = False
        self._last_noise: Tensor | None = None  # of the previous step of a hand-written loop
        self._memory_changes: list[tuple[NetworkSpec, UnitMaps]] = []  # since the last `transfer_state`
        self._cohort: PopulationLearner | None = None
        self.row = 0
        self._optimizer: Adam | None = None
        self._shares_network = False

    # -- settings

    @property
    def algorithm(self) -> LearnerHost:
        """The algorithm that this learner belongs to.

        The reference is weak: a cycle would keep the networks of replaced members until garbage is collected.

        Raises:
            ReferenceError: the algorithm was deleted; a learner cannot be used without it.
        """
        algorithm = None if self._algorithm is None else self._algorithm()
        if algorithm is None:
            raise ReferenceError("the algorithm of this learner was deleted: keep the agent as long as its learner")
        return algorithm

    def set_algorithm(self, algorithm: LearnerHost) -> None:
        """Set the algorithm of a learner that was copied or unpickled without one."""
        if self._algorithm is None:
            self._algorithm = weakref.ref(algorithm)

    @property
    def index(self) -> int:
        """The member's index."""
        return self.algorithm.index

    @property
    def device(self) -> torch.device:
        """The device of all tensors."""
        return self.algorithm.device

    @property
    def seed(self) -> int:
        """The seed of this learner's random streams."""
        seed = self.algorithm.seed
        return seed if self.group_number is None else integer(seed, Purpose.GROUP, self.group_number)

    @property
    def num_envs(self) -> int:
        """Rows of a step: the algorithm's envs times the agents of this group."""
        return self.algorithm.num_envs * self.num_agents

    @property
    def learn_step(self) -> int:
        """Rows of a rollout, before it is rounded up to whole steps."""
        return self.algorithm.rollout_length * self.num_agents

    @property
    def batch_size(self) -> int:
        """Samples of a minibatch."""
        count = self.algorithm.num_minibatches
        return self.algorithm.batch_size if count is None else max(1, self.rollout_steps * self.num_envs // count)

    @property
    def recurrent(self) -> bool:
        """Whether the network has a hidden state."""
        return self.algorithm.recurrent

    @property
    def observation_space(self) -> gymnasium.Space:
        """The space of one agent's observations."""
        return self.rollout_encoding.space

    @property
    def hp_config(self) -> HyperparameterConfig:
        """The algorithm's ranges, in this learner's rows."""
        ranges = self.algorithm.hp_config
        steps = number_range(ranges, "learn_step")
        if self.group_number is None or steps is None:
            return ranges
        return HyperparameterConfig(**{**ranges, "learn_step": steps.times(self.num_agents)})

    def settings(self) -> dict[str, Any]:
        """Return the algorithm's settings, with rows counted for this group and open values resolved."""
        max_seq_len = self._max_seq_len if self.algorithm.max_seq_len is None else self.algorithm.max_seq_len
        its_own = {"learn_step": self.learn_step, "swap_channels": self.rollout_encoding.swap_channels}
        return {**self.algorithm.settings(), **its_own, "max_seq_len": max_seq_len}

    @property
    def execution(self) -> Execution:
        """Compilation and precision; a population uses those of its first member."""
        return Execution(self.algorithm.compile, self.algorithm.precision, self.algorithm.per_member)

    @property
    def rollout_steps(self) -> int:
        """Steps of each env between updates."""
        return math.ceil(self.learn_step / self.num_envs)

    # -- network

    @property
    def actor(self) -> nn.Module:
        """The policy network."""
        return self.network.actor

    @property
    def critic(self) -> nn.Module:
        """The value network."""
        return self.network.critic

    @property
    def distribution(self) -> ActionDistribution:
        """The action distribution that the actor's outputs parametrize."""
        return self.network.actor.distribution

    @property
    def custom_networks(self) -> CustomSpec | None:
        """The user's own networks, if any: their code is in no file."""
        encoder = self.architecture.encoder
        return encoder if isinstance(encoder, CustomSpec) else None

    @property
    def parameter_count(self) -> int:
        """Number of weights."""
        return layout(self.network)[-1].stop

    @property
    def footprint(self) -> int:
        """Bytes that learning needs at least: weights, gradients, moments and the rollout."""
        return WEIGHT_BYTES * self.parameter_count + self.rollout_steps * self.num_envs * row_bytes(
            self.rollout_encoding
        )

    @property
    def is_finite(self) -> bool:
        """Whether all weights and statistics are finite."""
        tensors = (*self.network.parameters(), *self.network.buffers())
        return bool(torch.isfinite(torch.cat([x.detach().reshape(-1) for x in tensors])).all())

    def build(self, architecture: NetworkSpec) -> ActorCritic:
        """Build a network of an architecture for these spaces, with torch's initial weights."""
        host = self.algorithm
        return ActorCritic(
            architecture,
            self.rollout_encoding,
            self.action_space,
            share_encoders=host.share_encoders,
            normalize_observation=host.normalize_observation,
            normalize_value=host.normalize_value,
            observation_clip=host.observation_clip,
            observation_eps=host.observation_eps,
            log_std=min(max(host.action_std_init, host.action_std_min), host.action_std_max),
            squash=host.squash_output,
            std_range=(host.action_std_min, host.action_std_max) if host.state_dependent_std else None,
        )

    def planned_weights(self) -> int:
        """Count the weights of the architecture without allocating them.

        Raises:
            ConfigurationError: the architecture cannot be built.
        """
        try:
            with torch.device("meta"), MetaBuild(MAX_TENSORS):
                return sum(parameter.numel() for parameter in self.build(self.architecture).parameters())
        except ConfigurationError:
            raise
        except (ValueError, RuntimeError) as error:
            what = f"net_config: {self.architecture.describe():.200}"
            raise ConfigurationError(f"{what} cannot be built: {error!s:.200}") from error

    def reinitialize(self) -> None:
        """Draw initial weights from the member's own stream and clear the moments."""
        network = self.build(self.architecture)
        # drawn on the CPU, so that a seed gives the same weights on every device
        network.reset_(torch_generator("cpu", self.seed, Purpose.INITIAL_WEIGHTS, self.index))
        network.to(self.device)
        for module in network.modules():
            if isinstance(module, EvolvableCustom):
                module.check()
        self.set_network(network, Adam.fresh(torch.zeros(1, layout(network)[-1].stop, device=self.device)))
        self.env_steps, self.return_statistics = 0, ReturnStatistics.new()

    def mix_initial_weights(self, own: float, initial: float) -> None:
        """Set the weights to `own` * the present ones + `initial` * initial ones, and clear the moments.

        Normalizer statistics stay, unless `own` is 0 (Ash and Adams 2020: shrink and perturb).
        """
        before = self.network
        self.reinitialize()
        if own:
            with torch.no_grad():
                for new, old in zip(self.network.parameters(), before.parameters(), strict=True):
                    new.mul_(initial).add_(old, alpha=own)
                for new, old in zip(self.network.buffers(), before.buffers(), strict=True):
                    new.copy_(old)

    def _unfilled(self, architecture: NetworkSpec) -> ActorCritic:
        """Build a network whose weights will be overwritten; a user's module is initialized by its own code."""
        with nullcontext() if self.custom_networks else skip_init():
            network = self.build(architecture)
        return network if self.device.type == "cpu" else network.to(self.device)

    def set_network(self, network: ActorCritic, optimizer: Adam) -> None:
        """Use a network and its moments `[1, N]`, and leave the cohort."""
        flatten_parameters_(network)
        self._use(network, optimizer)

    def _use(self, network: ActorCritic, optimizer: Adam) -> None:
        if network.training != self.algorithm.training:  # visiting all modules takes as long as copying their weights
            network.train(self.algorithm.training)
        self.network, self._optimizer, self.architecture = network, optimizer, network.spec
        self._cohort, self.row, self._shares_network = None, 0, False

    def set_training_mode(self, training: bool) -> None:
        """Switch the network, and the cohort that computes it, between exploration and evaluation."""
        self.network.train(training)
        if self._cohort is not None:
            self._cohort.train(training)

    def set_image_layout(self, space: gymnasium.Space, *, swap_channels: bool) -> None:
        """Read observations of another space that gives the networks the same input: images with channels last.

        Raises:
            ConfigurationError: the networks' input would differ.
        """
        names = self.rollout_encoding.names if isinstance(self.rollout_encoding, AsymmetricEncoder) else POLICY
        encoding = make_observation_encoder(
            space, names, swap_channels=swap_channels, normalize_images=self.algorithm.normalize_images
        )
        parts = [(one.policy, one.critic) for one in (encoding, self.rollout_encoding)]
        shapes = [[leaf.shape for part in both for leaf in part.leaves] for both in parts]
        if shapes[0] != shapes[1]:
            raise ConfigurationError(
                f"swap_channels={swap_channels!r}: {space} is not {self.observation_space} with its channels behind"
            )
        self.rollout_encoding, self.encoding = encoding, encoding.policy
        optimizer, network = self.optimizer, self.build(self.architecture).to(self.device)
        network.load_state_dict(self.network.state_dict())
        self.set_network(network, optimizer)

    # -- cohort

    def attach(self, cohort: PopulationLearner, row: int) -> None:
        """Join a cohort as its member number `row`; the moments are stored there from now on."""
        self._cohort, self.row, self._optimizer = cohort, row, None

    def is_attached(self, cohort: PopulationLearner) -> bool:
        """Return whether a cohort holds this learner's current network."""
        return self._cohort is cohort and cohort.networks[self.row] is self.network

    @property
    def cohort(self) -> PopulationLearner:
        """The cohort that computes this learner: a population's, else one of its own."""
        if self._cohort is None:
            self.attach(PopulationLearner([self.network], [self.moments], execution=self.execution), 0)
        return cast(PopulationLearner, self._cohort)

    @property
    def moments(self) -> Adam:
        """Adam's moments `[1, N]`, read-only: in a cohort they may be views of its storage."""
        return cast(Adam, self._optimizer) if self._cohort is None else self._cohort.moments(self.row)

    @property
    def optimizer(self) -> Adam:
        """Adam's moments `[1, N]`; in a cohort a copy."""
        return self.moments if self._cohort is None else self.moments.copy()

    # -- random streams

    def noise(self, shape: tuple[int, ...]) -> Tensor:
        """Draw action noise `[*shape, …]`; every call uses a stream of its own."""
        self.draws += 1
        stream = torch_generator(self.device, self.seed, Purpose.ACTION_NOISE, self.index, self.draws)
        return self.distribution.noise(shape, stream)

    def correlate(self, noise: Tensor, before: Tensor | None) -> Tensor:
        """Correlate the noise of neighbouring steps `[T, …]` by `action_noise_correlation`."""
        return self.distribution.correlated(noise, before, self.algorithm.action_noise_correlation)

    def next_noise(self, envs: int) -> Tensor:
        """Return action noise `[envs, …]` for the next step of a hand-written loop, correlated with the last step's."""
        before = self._last_noise
        continues = before is not None and len(before) == envs
        self._last_noise = self.correlate(self.noise((1, envs)), before if continues else None)[0]
        return self._last_noise

    def advance_rng(self) -> None:
        """Skip ahead in the action noise, so that a continued run differs from what followed the checkpoint before."""
        self.draws += RNG_STRIDE

    # -- acting

    def encode(self, observation: Any) -> Tensor:
        """Encode observations as a rollout's rows `[B, D]` on the device; a single one becomes a batch of one."""
        return self._rows(observation, self.rollout_encoding)[0]

    def normalize(self, observation: Any) -> Tensor:
        """Encode and normalize observations `[B, *shape]` or a single one: `[B, D]` on the device."""
        return self.network.observation_norm(self.encode(observation))

    def _rows(self, observation: Any, encoding: ObservationEncoder | AsymmetricEncoder) -> tuple[Tensor, bool]:
        """Return encoded observations, and whether a single one was given."""
        batch, single = encoding.as_batch(observation)
        found = encoding.encode(batch)
        # torch rejects some strides that an empty array may have
        rows = torch.from_numpy(found) if found.size else torch.empty(found.shape, dtype=encoding.dtype)
        columns = encoding.float_columns(rows)
        finite = torch.isfinite(columns).all(-1)
        if not bool(finite.all()):
            raise ConfigurationError(f"observation={columns[~finite][0].tolist()} is not finite")
        return rows.to(self.device), single

    def predict(
        self,
        obs: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, Any]:
        """Act as `PPO.predict` describes."""
        if action_masks is None and self.learned_with_masks and not self._warned_of_masks:
            self._warned_of_masks = True
            warnings.warn(
                f"agent {self.index} learned with action masks, and predict was called without action_masks: it may "
                "choose illegal actions; pass the environment's masks (info['action_mask'])",
                stacklevel=3,
            )
        with torch.no_grad():
            encoded, single = self._rows(obs, self.encoding)
            x = self.network.observation_norm(encoded)
            before = self._one_step(state if self.recurrent else None, len(x)).state
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

    @torch.no_grad()
    def best_actions(self, encoded: Tensor, mask: Tensor | None, state: Tensor) -> tuple[np.ndarray, Tensor]:
        """Return the env's actions for encoded observations `[N, D]` without exploration, and the next hidden state.

        `state` is the hidden state `[N, M, K, H]`.
        """
        if self.algorithm.per_member and len(encoded) > 1:  # the number of rows of a product may change its last bits
            rows = [slice(row, row + 1) for row in range(len(encoded))]
            masks = [None if mask is None else mask[row].clone() for row in rows]
            one_by_one = [
                self.best_actions(encoded[row].clone(), its_mask, state[row].clone())
                for row, its_mask in zip(rows, masks, strict=True)
            ]
            actions, states = zip(*one_by_one, strict=True)
            return np.concatenate(actions), torch.cat(states)
        outputs, after = self.network.step(self.network.observation_norm(encoded), state)
        return self.distribution.to_env(self.distribution.mode(outputs, mask)), after

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

    # -- hidden state

    @property
    def initial_hidden_state(self) -> Tensor:
        """The hidden state at the start of an episode: zeros `[M, K, H]`."""
        return torch.zeros(self.network.state_shape, dtype=self.network.dtype, device=self.device)

    def get_initial_hidden_state(self, num_envs: int = 1) -> dict[str, Tensor]:
        """Return zeros `[num_envs, K, H]` for each recurrent network, by name; none if not recurrent."""
        return self._named(self.initial_hidden_state.repeat(num_envs, 1, 1, 1)) if self.recurrent else {}

    @property
    def hidden_state_names(self) -> tuple[str, ...]:
        """The names of the recurrent networks."""
        return ("shared",) if self.algorithm.share_encoders else ("actor", "critic")

    def _named(self, state: Tensor) -> dict[str, Tensor]:
        return dict(zip(self.hidden_state_names, state.unbind(1), strict=True))

    def _one_step(self, hidden_state: Mapping[str, Tensor] | None, batch: int) -> SequenceInfo:
        """One step of each episode of a batch, with the hidden state before it."""
        given = {} if hidden_state is None else hidden_state
        if not isinstance(given, Mapping):
            raise ConfigurationError(
                f"hidden_state is a {type(given).__name__}; allowed is a mapping as get_initial_hidden_state gives it"
            )
        if given and not self.recurrent:
            raise ConfigurationError("hidden_state is given, but this agent is not recurrent; allowed is None")
        if not self.recurrent:
            return NO_SEQUENCE._replace(state=self.initial_hidden_state)
        shape = (batch, *self.network.state_shape[1:])
        named = {
            name: torch.as_tensor(state) for name, state in (given or self.get_initial_hidden_state(batch)).items()
        }
        shapes = {name: tuple(named[name].shape) if name in named else None for name in self.hidden_state_names}
        if set(shapes.values()) != {shape}:
            raise ConfigurationError(f"hidden_state has shapes {shapes}; allowed is {shape} for each")
        state = torch.stack([named[name] for name in self.hidden_state_names], 1).to(self.device, self.network.dtype)
        return SequenceInfo(state.new_zeros(batch, 1), state)

    def transfer_state(self, state: Tensor) -> Tensor:
        """Convert the hidden state `[…, M, K, H]` of running episodes to the units after the last mutations.

        New units start at zero. To be called once after a mutation.
        """
        changes, self._memory_changes = self._memory_changes, []
        specs = [*(before.memory for before, _ in changes), self.architecture.memory]
        for (old, new), (_, maps) in zip(pairwise(specs), changes, strict=True):
            state = self.network.transfer_state(state, old, new, maps)
        return state

    # -- learning

    def after_update(self, observations: Tensor, starts: Tensor | None = None) -> None:
        """Count an update, and store some of its observations `[T, E, D]`, on which mutations are measured.

        `starts` `[T, E]` is 1 where the hidden state of a recurrent network was reset.
        """
        self.updates += 1
        recent = observations
        if starts is not None:
            length = min(SAMPLE_STEPS, len(recent))
            recent = recent[: len(recent) // length * length].unflatten(0, (-1, length)).transpose(1, 2)  # [C, E, L, D]
            unbroken = starts[: recent.shape[0] * length].unflatten(0, (-1, length))[:, 1:].sum(1) == 0
            recent = recent[unbroken] if bool(unbroken.any()) else recent.flatten(0, 1)
            count = max(1, RECENT // length)
        else:
            recent, count = recent.flatten(0, 1), RECENT
        self.recent_observations = recent[:: max(1, len(recent) // count)][:count].detach().cpu().clone()
        noisy = [layer for layer in self.network.modules() if isinstance(layer, NoisyLinear | MemoryModule)]
        if noisy:
            stream = torch_generator(self.device, self.seed, Purpose.WEIGHT_NOISE, self.index, self.updates)
            for layer in noisy:
                layer.resample_(stream)

    # -- mutation

    def mutate(self, change: Mutation) -> Mutation:
        """Apply a mutation to weights and moments; return what was done, which may be less."""
        if change.kind not in ("architecture", "activation", "parameters"):
            return change
        self.variations += 1  # two mutations without an update between them must not draw the same numbers
        keys = self.index, self.updates, self.variations
        stream = torch_generator("cpu", self.seed, Purpose.WEIGHT_TRANSFER, *keys)
        if change.kind == "parameters":
            self.own_network()
            sd, target_kl = (float(change.details.get(name, default)) for name, default in NOISE.items())
            details = add_parameter_noise_(self.network, self._sample_states(stream), sd, stream, target_kl=target_kl)
            return Mutation(change.kind, change.operator, details)
        adam = self.moments
        source = MutationSource(
            self.network, (adam.exp_avg[0], adam.exp_avg_sq[0]), partial(self._sample_states, stream)
        )
        result = mutate_network(source, change.operator, dict(change.details), stream)
        if "refused" in result.arguments:
            return Mutation("none", change.operator, {"wanted": change.kind, **result.arguments})
        if change.operator.startswith("memory."):
            self._memory_changes.append((self.architecture, result.maps))
        first, second = (moment.unsqueeze(0) for moment in result.moments)
        moments = Adam(first, second, adam.steps.clone(), adam.lr_scale.clone(), epsilon=adam.epsilon)
        self._use(result.network, moments)
        self.after_mutation(source, change.operator, result)
        return Mutation(change.kind, change.operator, result.arguments)

    def after_mutation(self, source: MutationSource, operator: str, result: MutatedNetwork) -> None:
        """Change what follows a network besides, such as its target; a hook for algorithms that have such."""

    def _sample_states(self, stream: torch.Generator) -> Tensor:
        """Normalized states on which a mutation is measured: of the last rollout, random ones before the first."""
        if len(self.recent_observations):
            recent = self.network.some_of(self.recent_observations)
            return self.network.observation_norm(recent.to(self.device))
        rows = self.rollout_encoding.random_rows(SAMPLE_STATES, stream).to(self.device)
        return rows.unflatten(0, (-1, SAMPLE_STEPS)) if self.network.is_recurrent else rows

    def finish_blend(self) -> None:
        """Remove the activations that a finished mutation blended out."""
        if self.architecture.is_fading and self.network.fade_left() <= 0:
            slots, optimizer = layout(self.network), self.optimizer
            self.network.finish_fading_()
            if slots != layout(self.network):
                raise RuntimeError("finishing a blend moved a parameter")
            self.set_network(self.network, optimizer)

    def bound_std_(self, shift: float) -> None:
        """Shift the log of the learned standard deviation, and clamp it to the algorithm's bounds."""
        self.own_network()
        self.distribution.bound_std_(shift, self.algorithm.action_std_min, self.algorithm.action_std_max)

    # -- copies

    def copy_for(self: LearnerT, algorithm: LearnerHost) -> LearnerT:
        """Return another algorithm's learner with the same state, which still uses this network.

        Its weights must not be changed before `own_network`; a mutation that builds a new network spares that copy.
        """
        copy = type(self)(
            algorithm,
            self.rollout_encoding,
            self.action_space,
            self.architecture,
            num_agents=self.num_agents,
            group_number=self.group_number,
            max_seq_len=self._max_seq_len,
            layout=self.layout,
        )
        copy.network, copy._optimizer, copy._shares_network = self.network, self.moments, True
        copy.updates, copy.draws, copy.variations = self.updates, self.draws, self.variations
        copy.recent_observations, copy.learned_with_masks = self.recent_observations, self.learned_with_masks
        copy.env_steps, copy.return_statistics = self.env_steps, self.return_statistics
        copy._last_noise = self._last_noise if copy.index == self.index else None
        return copy

    def own_network(self) -> None:
        """Copy network and moments if they are shared with the parent."""
        if self._shares_network:
            self._use(clone_module(self.network), self.moments.copy())

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for `copy.deepcopy` and `pickle`: a network of its own, without algorithm and cohort."""
        alone = {
            "_algorithm": None,
            "_optimizer": self.moments.copy(),
            "_cohort": None,
            "row": 0,
            "_shares_network": False,
        }
        return {**vars(self), "network": detached_clone(self.network), **alone}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        flatten_parameters_(self.network)

    # -- files

    def document(self) -> dict[str, Any]:
        """Return everything but tensors as JSON data."""
        document = {
            "algorithm": self.algo,
            "index": self.index,
            "seed": self.seed,
            "settings": stored_settings(self.algorithm.config, self.settings()),
            "hp_config": self.hp_config.to_json(),
            "architecture": self.architecture.to_config(),
            "updates": self.updates,
            "draws": self.draws,
            "variations": self.variations,
            "num_envs": self.num_envs,
            "observation_space": space_to_json(self.observation_space),
            "action_space": space_to_json(self.action_space),
            "learned_with_masks": self.learned_with_masks,
        }
        if self.env_steps and (self.algorithm.random_steps or self.algorithm.learning_starts):
            document["env_steps"] = self.env_steps
        return to_builtin(document)

    def tensors(self) -> dict[str, Tensor]:
        """Return network, moments and recent observations by name."""
        optimizer = self.optimizer
        moments = {f"adam.{name}": getattr(optimizer, name) for name in self._moment_names}
        rewards = self.return_statistics._asdict() if self.algorithm.normalize_reward else {}
        return {
            **_tensors_of(self.network),
            **moments,
            **{f"reward_norm.{name}": numbers for name, numbers in rewards.items()},
            "recent_observations": self.recent_observations,
        }

    @property
    def _moment_names(self) -> tuple[str, ...]:
        adapts = self.algorithm.lr_schedule == ADAPTIVE
        return ("exp_avg", "exp_avg_sq", "steps", *(["lr_scale"] if adapts else []))

    @classmethod
    def from_document(
        cls: type[LearnerT],
        algorithm: LearnerHost,
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
        document: Mapping[str, Any],
        networks: CustomSpec | None = None,
        **group: Any,
    ) -> LearnerT:
        """Build the learner that `document` describes, without a network."""
        settings = validated(algorithm.config, document["settings"])
        encoding = encoder_of(observation_space, settings, algorithm.critic_entries)
        recurrent = getattr(settings, "recurrent", False)
        architecture = read_architecture(document["architecture"], encoding, recurrent=recurrent, networks=networks)
        max_seq_len = getattr(settings, "max_seq_len", None)
        return cls(algorithm, encoding, action_space, architecture, max_seq_len=max_seq_len, **group)

    def read_architecture(self, config: Mapping[str, Any]) -> NetworkSpec:
        """Read an architecture of this learner's kind from its `to_config`."""
        return read_architecture(config, self.rollout_encoding, recurrent=self.recurrent, networks=self.custom_networks)

    def check_tensors(self, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Raise ValueError unless stored tensors fit the architecture; none of them is read.

        Tensors in memory are compared when they are copied, and a user's own network may not be buildable without data.
        """
        if isinstance(tensors, safe_folder.LazyTensors) and self.custom_networks is None:
            with torch.device("meta"), MetaBuild(len(tensors)):
                network, flag = self.build(self.architecture), read_flag(document, WEIGHTS_ONLY, older=False)
                self._check_facts(tensors.infos, network, weights_only=flag)

    def load_state(self, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Read counters, weights and moments; ValueError if they do not fit."""
        self.updates, self.draws = read_count(document, "updates"), read_count(document, "draws")
        self.variations = read_count(document, "variations") if "variations" in document else 0  # absent in older files
        self.learned_with_masks = read_flag(document, "learned_with_masks", older=False)
        weights_only = read_flag(document, WEIGHTS_ONLY, older=False)
        self.env_steps = read_count(document, "env_steps") if "env_steps" in document else 0
        network = self._unfilled(self.architecture)
        self._check_facts(safe_folder.tensor_infos(tensors), network, weights_only=weights_only)
        check_finite(tensors)
        if weights_only:
            self.set_network(network, Adam.fresh(torch.zeros(1, layout(network)[-1].stop, device=self.device)))
        else:
            moments = [tensors[f"adam.{name}"].to(self.device, copy=True) for name in self._moment_names]
            if any(bool((moment < 0).any()) for moment in moments[1:]):
                raise ValueError("adam.exp_avg_sq, adam.steps and adam.lr_scale must not be negative")
            self.set_network(network, Adam(*moments))
            self.recent_observations = tensors["recent_observations"]
            if self.algorithm.normalize_reward:
                statistics = (tensors[f"reward_norm.{name}"] for name in ReturnStatistics._fields)
                self.return_statistics = ReturnStatistics(*statistics)
        with torch.no_grad():
            for name, tensor in _tensors_of(self.network).items():
                tensor.copy_(tensors[name])
        update_count_flags(self.network)

    def _check_facts(
        self, found: Mapping[str, safe_folder.TensorInfo], network: ActorCritic, *, weights_only: bool
    ) -> None:
        """Raise ValueError unless stored tensors have a network's names, shapes and dtypes."""
        info = safe_folder.TensorInfo
        wanted = safe_folder.tensor_infos(_tensors_of(network))
        size = layout(network)[-1].stop
        if not weights_only:
            wanted |= {f"adam.{name}": info((1, size), network.dtype) for name in ("exp_avg", "exp_avg_sq")}
            wanted |= {f"adam.{name}": info((1,), network.dtype) for name in self._moment_names[2:]}
            if self.algorithm.normalize_reward:
                shape, _ = found.get("reward_norm.returns", info((0,), torch.float64))
                wanted |= {"reward_norm.moments": info((3,), torch.float64)}
                wanted |= {"reward_norm.returns": info((min(math.prod(shape), self.num_envs),), torch.float64)}
        odd = sorted(found.keys() ^ wanted.keys() ^ (set() if weights_only else {"recent_observations"}))
        if odd:
            raise ValueError(f"tensors {odd} are missing or too many")
        for name, facts in wanted.items():
            if found[name] != facts:
                raise ValueError(f"{name} is {found[name]}; wanted is {facts}")
        if weights_only:
            return
        shape, dtype = found["recent_observations"]
        encoding = self.rollout_encoding
        rows_fit = shape[-1:] == (encoding.size,) and dtype == encoding.dtype and len(shape) in (2, 3)
        if math.prod(shape) and not (rows_fit and math.prod(shape[:-1]) <= RECENT):
            raise ValueError(
                f"recent_observations is {found['recent_observations']}; wanted are at most {RECENT} rows of "
                f"{encoding.size} numbers of {encoding.dtype}"
            )


def encoder_of(
    space: gymnasium.Space, settings: Any, critic_entries: str | Sequence[str] | None = None
) -> ObservationEncoder | AsymmetricEncoder:
    """Return the encoder of a space, with images and critic's observations read as an algorithm's settings define.

    Raises:
        ConfigurationError: the space lacks what the critic is to observe.
    """
    named = {
        name: getattr(settings, name, getattr(LearnerHost, name)) for name in ("swap_channels", "normalize_images")
    }
    names = critic_entries or getattr(settings, "critic_observation", LearnerHost.critic_observation)
    return make_observation_encoder(space, names, **named)


def initial_architecture(
    net_config: Mapping[str, Any] | None, encoding: ObservationEncoder | AsymmetricEncoder, *, recurrent: bool
) -> NetworkSpec:
    """Return the architecture of a `net_config` for what policy and critic observe."""
    of_critic = encoding.critic.leaves if encoding.is_asymmetric else None
    return NetworkSpec.from_net_config(net_config, encoding.policy.leaves, recurrent=recurrent, critic_leaves=of_critic)


def custom_spec(actor_network: nn.Module | None, critic_network: nn.Module | None) -> CustomSpec | None:
    """Return the spec of the user's own networks, if there are any."""
    if actor_network is None and critic_network is None:
        return None
    return CustomSpec.of(actor_network, critic_network)


def read_architecture(
    config: Mapping[str, Any],
    encoding: ObservationEncoder | AsymmetricEncoder,
    *,
    recurrent: bool,
    networks: CustomSpec | None,
) -> NetworkSpec:
    """Read an architecture's `to_config`; `networks` are the user's own, if it has such.

    Raises:
        ConfigurationError: the user's networks are missing; or a value is illegal.
    """
    if config["encoder"] != "custom":
        of_critic = encoding.critic.leaves if config.get("critic_config") else None
        return NetworkSpec.from_net_config(config, encoding.policy.leaves, recurrent=recurrent, critic_leaves=of_critic)
    if networks is None:
        raise ConfigurationError("it has networks of its own; give them as actor_network and critic_network")
    return NetworkSpec.custom(networks.with_architectures(config["encoder_config"]))


def _tensors_of(network: nn.Module) -> dict[str, Tensor]:
    return {f"network.{name}": tensor for name, tensor in (*network.named_parameters(), *network.named_buffers())}
