"""What every agent with one actor and one critic is: a network, its optimizer's moments, and streams of its own.

An agent alone is a population of one: it acts and learns through a cohort, which it shares with others when it lives
in a population. Every random stream that it uses is named by the run's seed, its index and a counter, so nothing about
the others changes what it does.
"""

from __future__ import annotations

import math
import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar, cast

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from agilerl_like.algorithms.evaluation import EpisodeCallback, GroupPolicy, report_episodes
from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm
from agilerl_like.algorithms.serialization import MetaBuild, check_finite, read_agent, read_flag
from agilerl_like.envs.spaces import (
    ObservationEncoder,
    check_action_space,
    space_to_json,
)
from agilerl_like.envs.vec_adapter import VecEnvAdapter
from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo import Genome, HyperparameterConfig, Mutation, Mutations
from agilerl_like.learning.cohort import Cohort
from agilerl_like.learning.execution import Execution
from agilerl_like.learning.optimizer import Adam
from agilerl_like.learning.rollout import Rollout, row_bytes
from agilerl_like.learning.sequences import Cut
from agilerl_like.learning.update import Values
from agilerl_like.modules.evolvable_module import UnitMaps
from agilerl_like.modules.layers import skip_init
from agilerl_like.modules.param_stack import (
    clone_module,
    detached_clone,
    flatten_parameters_,
    layout,
    update_count_flags,
)
from agilerl_like.networks.actor_critic import ActorCritic
from agilerl_like.networks.architecture import NetworkSpec
from agilerl_like.networks.custom import CustomSpec
from agilerl_like.networks.distributions import ActionDistribution
from agilerl_like.networks.network_mutation import MutationSource, add_parameter_noise_, mutate_network
from agilerl_like.resources import check_memory
from agilerl_like.seeding import Purpose, integer, integers
from agilerl_like.storage import safe_folder

AgentT = TypeVar("AgentT", bound="Agent")

SAMPLE_STATES = 512
"""States that stand for observations where a mutation is asked for before any rollout."""
SAMPLE_STEPS = 32
"""How many of them follow each other, for a network that remembers."""
WEIGHT = 4 * 4
"""Bytes of a weight, its gradient and its two moments."""
MAX_TENSORS = 1000
"""About as many as a network can have."""
NOISE = {"sd": Mutations.mutation_sd, "kl": Mutations.mutation_kl}
"""Bound and target of parameter noise where a mutation does not give them."""
RECENT = 1024
"""States of the last rollout that are kept to measure mutations on."""


def torch_generator(device: torch.device, seed: int, purpose: Purpose, *keys: int) -> torch.Generator:
    """Return a torch generator for one named stream."""
    return torch.Generator(device).manual_seed(integer(seed, purpose, *keys))


class Agent(EvolvableAlgorithm):
    """One member with one actor and one critic."""

    architecture: NetworkSpec
    batch_size: int
    share_encoders: bool
    squash_output: bool
    normalize_images: bool
    swap_channels: bool | None
    normalize_observation: bool
    normalize_value: bool
    network: ActorCritic
    row: int
    _borrows: bool
    _cohort: Cohort | None
    _optimizer: Adam | None

    def __init__(
        self,
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
        *,
        index: int,
        hp_config: HyperparameterConfig | None,
        architecture: NetworkSpec,
        encoding: ObservationEncoder,
        device: str | torch.device,
        seed: int | None,
    ) -> None:
        check_action_space(action_space)
        super().__init__(observation_space, action_space, index=index, hp_config=hp_config, device=device, seed=seed)
        self.architecture, self.encoding = architecture, encoding
        self.recent_observations = torch.zeros(0, 0)  # encoded states of the last rollout, see `networks.variation`
        self._noise_before: Tensor | None = None  # of the last step of a loop by hand
        self._pasts: list[tuple[NetworkSpec, UnitMaps]] = []  # memories it had, and what became of their units
        self.learned_with_masks = False
        """Whether a rollout that it learned from had action masks."""
        self._warned_of_masks = False

    # -- what differs between algorithms

    @abstractmethod
    def build(self, architecture: NetworkSpec) -> ActorCritic:
        """Build a network of an architecture for this agent's spaces, with the weights as they come."""

    @property
    @abstractmethod
    def execution(self) -> Execution:
        """How its arithmetic is run; that of a population's first member counts for all."""

    @property
    @abstractmethod
    def rollout_steps(self) -> int:
        """Steps of each env between updates."""

    @abstractmethod
    def values(self) -> tuple[float, ...]:
        """The numbers that enter the maths, in the order of `Values`."""

    @property
    @abstractmethod
    def cut(self) -> Cut:
        """The sequences that its rollouts are cut into."""

    @abstractmethod
    def correlated(self, noise: Tensor, before: Tensor | None) -> Tensor:
        """Its action noise of neighbouring steps `[T, …]`, correlated as its settings say; see the distributions."""

    @abstractmethod
    def after_update(self, rollout: Rollout) -> None:
        """Note that an update was done from a rollout of this agent alone."""

    # -- networks

    @property
    def distribution(self) -> ActionDistribution:
        """What the actor's outputs mean."""
        return self.network.actor.distribution

    @property
    def parameter_count(self) -> int:
        """How many weights there are."""
        return layout(self.network)[-1].stop

    @property
    def footprint(self) -> int:
        return WEIGHT * self.parameter_count + self.rollout_steps * self.num_envs * row_bytes(self.encoding)

    @property
    def is_finite(self) -> bool:
        """Whether all of its weights and statistics are."""
        numbers = (*self.network.parameters(), *self.network.buffers())
        return bool(torch.isfinite(torch.cat([x.detach().reshape(-1) for x in numbers])).all())

    @property
    def actor(self) -> nn.Module:
        """The policy network."""
        return self.network.actor

    @property
    def critic(self) -> nn.Module:
        """The value network."""
        return self.network.critic

    def get_policy(self) -> nn.Module:
        """The policy network."""
        return self.network.actor

    def set_network(self, network: ActorCritic, optimizer: Adam) -> None:
        """Make a network and its moments `[1, N]` this agent's own; it leaves the cohort that it lived in."""
        flatten_parameters_(network)
        self._move_into(network, optimizer)

    def _move_into(self, network: ActorCritic, optimizer: Adam) -> None:
        if network.training != self.training:  # to walk through all modules takes as long as to copy their weights
            network.train(self.training)
        self.network, self._optimizer = network, optimizer
        self.architecture = network.spec
        self._cohort, self.row, self._borrows = None, 0, False

    def join(self, cohort: Cohort, row: int) -> None:
        """Live in a cohort, as its member number `row`."""
        self._cohort, self.row, self._optimizer = cohort, row, None  # which has them now

    @property
    def moments(self) -> Adam:
        """Adam's moments `[1, N]` as they are now: to be read, for in a cohort they may be views of everybody's."""
        return cast(Adam, self._optimizer) if self._cohort is None else self._cohort.moments(self.row)

    @property
    def optimizer(self) -> Adam:
        """Adam's moments `[1, N]` as they are now; in a cohort a copy of them."""
        return self.moments if self._cohort is None else self.moments.copy()

    def is_attached(self, cohort: Cohort) -> bool:
        """Whether a cohort computes this agent as it is now."""
        return self._cohort is cohort and cohort.networks[self.row] is self.network

    @property
    def cohort(self) -> Cohort:
        """What this agent learns through: shared with others in a population, otherwise one of its own."""
        if self._cohort is None:
            self.join(Cohort([self.network], [self.moments], execution=self.execution), 0)
        return cast(Cohort, self._cohort)

    def initial_network(self) -> ActorCritic:
        """A network with the initial weights of this agent's own stream."""
        network = self.build(self.architecture)
        # drawn on the CPU, so that a seed means the same weights on every device
        network.reset_(torch_generator(torch.device("cpu"), self.seed, Purpose.INITIAL_WEIGHTS, self.index))
        return network.to(self.device)

    def check_size(self) -> None:
        """Raise ConfigurationError unless there is room for it to learn; it takes next to no memory to find out."""
        if self.custom_networks is None:  # else they are there
            weights = self.planned_weights()
            what = f"net_config: {self.architecture.describe():.200} has weights={weights} and"
            check_memory(what, weights, WEIGHT, "weights")

    def planned_weights(self) -> int:
        """Count the weights of this agent's architecture without allocating them.

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
        """Get initial weights of its own stream, and moments of nothing: what it had learned is lost."""
        network = self.initial_network()
        self.set_network(network, Adam.fresh(torch.zeros(1, layout(network)[-1].stop, device=self.device)))

    def _unfilled(self, architecture: NetworkSpec) -> ActorCritic:
        """A network that is about to get its weights; a module of the user's may count on those it is built with."""
        with nullcontext() if self.custom_networks else skip_init():
            network = self.build(architecture)
        return network if self.device.type == "cpu" else network.to(self.device)

    def set_training_mode(self, training: bool) -> None:
        """Switch between exploring (True) and acting as well as it can (False)."""
        self.training = training
        self.network.train(training)
        if self._cohort is not None:  # which learns in the mode that it was told last
            self._cohort.train(training)

    # -- random streams

    def noise(self, shape: tuple[int, ...]) -> Tensor:
        """Draw this agent's next action noise `[*shape, …]`; every call has a stream of its own."""
        self.draws += 1
        return self.distribution.noise(
            shape, torch_generator(self.device, self.seed, Purpose.ACTION_NOISE, self.index, self.draws)
        )

    def next_noise(self, envs: int) -> Tensor:
        """Action noise `[envs, …]` of the next step of a loop by hand, which follows on that of the step before."""
        before = self._noise_before
        follows = before is not None and len(before) == envs
        self._noise_before = self.correlated(self.noise((1, envs)), before if follows else None)[0]
        return self._noise_before

    def shuffle(self, epoch: int, samples: int) -> Tensor:
        """The order `[samples]` in which an epoch of this agent's next update goes through its samples, on the host."""
        generator = torch_generator(
            torch.device("cpu"), self.seed, Purpose.MINIBATCHES, self.index, self.updates, epoch
        )
        return torch.randperm(samples, generator=generator)

    # -- observations

    def preprocess_observation(self, observation: np.ndarray) -> Tensor:
        """Encode and normalise observations `[B, *shape]` or a single one: `[B, D]` on the device."""
        return self.network.observation_norm(self.encode(observation))

    def encode(self, observation: Any) -> Tensor:
        """Encode observations as rows `[B, D]` on the device; a single observation becomes a batch of one."""
        return self._rows(observation)[0]

    def set_image_layout(self, space: gymnasium.Space, *, swap_channels: bool) -> None:
        """Observe another space from now on, that is the same to the networks: images with their channels behind.

        Raises:
            ConfigurationError: the networks would see something else.
        """
        encoding = ObservationEncoder(space, swap_channels=swap_channels, normalize_images=self.normalize_images)
        if [leaf.shape for leaf in encoding.leaves] != [leaf.shape for leaf in self.encoding.leaves]:
            raise ConfigurationError(
                f"swap_channels={swap_channels!r}: {space} is not {self.observation_space} with its channels behind"
            )
        self.observation_space, self.encoding, self.swap_channels = space, encoding, swap_channels
        optimizer, network = self.optimizer, self.build(self.architecture).to(self.device)
        network.load_state_dict(self.network.state_dict())
        self.set_network(network, optimizer)

    def _rows(self, observation: Any) -> tuple[Tensor, bool]:
        """Encoded observations, and whether it was a single one."""
        batch, single = self.encoding.as_batch(observation)
        found = self.encoding.encode(batch)
        # an array without rows may have any strides, and bytes with such are no numbers to torch
        rows = torch.from_numpy(found) if found.size else torch.empty(found.shape, dtype=self.encoding.dtype)
        finite = torch.isfinite(self.encoding.float_columns(rows)).all(-1)
        if not bool(finite.all()):
            raise ConfigurationError(
                f"observation={self.encoding.float_columns(rows)[~finite][0].tolist()} is not finite"
            )
        return rows.to(self.device), single

    # -- genome and mutation

    def genome_to_json(self, genome: Genome) -> dict[str, Any]:
        """Return a genome as plain data, for `genome_from_json` of any agent of the same kind and spaces."""
        return {
            "hyperparameters": dict(genome.hyperparameters),
            "architecture": cast(NetworkSpec, genome.architecture).to_config(),
        }

    def genome_from_json(self, data: Mapping[str, Any]) -> Genome:
        """Read what `genome_to_json` wrote."""
        architecture = read_architecture(
            data["architecture"],
            self.encoding,
            recurrent=self.network.is_recurrent,
            networks=self.custom_networks,
        )
        return Genome(data["hyperparameters"], architecture)

    @property
    def custom_networks(self) -> CustomSpec | None:
        """The networks that the user gave, if any: their code is in no file."""
        encoder = self.architecture.encoder
        return encoder if isinstance(encoder, CustomSpec) else None

    def evolvable_attributes(self, networks_only: bool = False) -> dict[str, Any]:
        """What evolution may change, by name: the networks, and the hyperparameters unless `networks_only`."""
        networks: dict[str, Any] = {"actor": self.actor, "critic": self.critic}
        return networks if networks_only else {**networks, **self.hyperparameters}

    def _carry_out(self, change: Mutation) -> Mutation:
        if change.kind not in ("architecture", "activation", "parameters"):
            return change
        self.variations += 1  # for of two without an update between, one must not draw what the other did
        keys = self.index, self.updates, self.variations
        generator = torch_generator(torch.device("cpu"), self.seed, Purpose.WEIGHT_TRANSFER, *keys)
        if change.kind == "parameters":
            self._move_out()
            sd, target_kl = (float(change.details.get(name, default)) for name, default in NOISE.items())
            details = add_parameter_noise_(self.network, self._states(generator), sd, generator, target_kl=target_kl)
            return Mutation(change.kind, change.operator, details)

        adam = self.moments
        moments = adam.exp_avg[0], adam.exp_avg_sq[0]
        parent = MutationSource(self.network, moments, partial(self._states, generator))
        result = mutate_network(parent, change.operator, dict(change.details), generator)
        if "refused" in result.arguments:
            return Mutation("none", change.operator, {"wanted": change.kind, **result.arguments})
        if change.operator.startswith("memory."):
            self._pasts.append((self.architecture, result.maps))
        first, second = (moment.unsqueeze(0) for moment in result.moments)
        self._move_into(result.network, Adam(first, second, adam.steps.clone(), epsilon=adam.epsilon))
        return Mutation(change.kind, change.operator, result.arguments)

    def _states(self, generator: torch.Generator) -> Tensor:
        """Normalised states to measure a mutation on: of the last rollout, or as they would be if there was none."""
        if len(self.recent_observations):
            recent = self.network.some_of(self.recent_observations)
            return self.network.observation_norm(recent.to(self.device))
        rows = self.encoding.random_rows(SAMPLE_STATES, generator).to(self.device)
        return rows.unflatten(0, (-1, SAMPLE_STEPS)) if self.network.is_recurrent else rows

    def transfer_state(self, state: Tensor) -> Tensor:
        """What it remembered of running episodes `[…, M, K, H]` before its last mutations, as it would remember it now.

        To be asked once after a mutation; newborn units remember nothing.
        """
        steps, self._pasts = self._pasts, []
        memories = [*(before.memory for before, _ in steps), self.architecture.memory]
        for (old, new), (_, maps) in zip(pairwise(memories), steps, strict=True):
            state = self.network.transfer_state(state, old, new, maps)
        return state

    def finish_blend(self) -> None:
        """Let go of what a finished mutation faded from."""
        if self.architecture.is_fading and self.network.fade_left() <= 0:
            slots, optimizer = layout(self.network), self.optimizer
            self.network.finish_fading_()
            if slots != layout(self.network):
                raise RuntimeError("settling moved a parameter")
            self.set_network(self.network, optimizer)

    # -- copies

    def _move_out(self) -> None:
        """Get a network and moments of its own, if it uses its parent's."""
        if self._borrows:
            self._move_into(clone_module(self.network), self.moments.copy())

    def __getstate__(self) -> dict[str, Any]:
        """What `copy` and `pickle` take of it: a twin, that lives in no cohort and has weights of its own."""
        optimizer = self.moments.copy()
        network = detached_clone(self.network)
        return {**vars(self), "network": network, "_optimizer": optimizer, "_cohort": None, "row": 0, "_borrows": False}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        flatten_parameters_(self.network)

    def _blank(self: AgentT, index: int) -> AgentT:
        copy = type(self).__new__(type(self))
        vars(copy).update(vars(self))
        copy._noise_before = self._noise_before if index == self.index else None
        copy.index, copy._pasts = index, []
        return copy

    def _inherit(self, other: Agent) -> None:
        super()._inherit(other)
        self.network, self._borrows, self._cohort, self.row = other.network, True, None, 0
        self._optimizer = other.moments
        self.recent_observations = other.recent_observations
        self.learned_with_masks, self._warned_of_masks = other.learned_with_masks, False

    # -- testing

    @abstractmethod
    def best_actions(self, encoded: Tensor, mask: Tensor | None, state: Tensor) -> tuple[np.ndarray, Tensor]:
        """The env's actions for encoded observations `[N, D]`, without exploration, and what is remembered then.

        `state` `[N, M, K, H]` is what is remembered of the episode so far.
        """

    @property
    def initial_hidden_state(self) -> Tensor:
        """What is remembered when an episode begins: zeros `[M, K, H]`."""
        return torch.zeros(self.network.state_shape, dtype=self.network.dtype, device=self.device)

    @property
    def group_policies(self) -> dict[str, GroupPolicy]:
        return {"": GroupPolicy(self.best_actions, self.encoding, self.initial_hidden_state)}

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

        If the rows of a vector env are unlike, `loop` is rounded up to whole sets of them.

        It is appended to `fitness`. The policy does not explore and nothing is learned. The env is reset, and again
        at the end of each episode. `max_steps` cuts longer episodes. `callback(score, info)` is called for each episode
        with its return and the info that the env gave in its last step, to which `episode_length` is added, in steps.
        `swap_channels` says that the env's images have their channels behind, though the agent was made for them in
        front. `vectorized` is accepted for AgileRL's sake: what kind of env it is can be seen.
        """
        if loop < 1:
            raise ConfigurationError(f"loop={loop!r} must be at least 1")
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
        seeds = integers(loop, self.seed, Purpose.EVALUATION_ENVS)
        episodes = player.run_episodes(VecEnvAdapter(vector), seeds, max_steps, with_infos=callback is not None)
        report_episodes(episodes, callback)
        mean = float(episodes.means[0])
        self.fitness.append(mean)
        return mean

    # -- saving

    def to_documents(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Everything about this agent, as JSON data and as tensors."""
        spaces = {
            "observation_space": space_to_json(self.observation_space),
            "action_space": space_to_json(self.action_space),
        }
        optimizer, tensors = self.optimizer, _tensors_of(self.network)
        tensors |= {
            "adam.exp_avg": optimizer.exp_avg,
            "adam.exp_avg_sq": optimizer.exp_avg_sq,
            "adam.steps": optimizer.steps,
        }
        document = {**self.facts(), **spaces, "learned_with_masks": self.learned_with_masks}
        return document, {**tensors, "recent_observations": self.recent_observations}

    @classmethod
    def load(
        cls: type[AgentT],
        path: str | os.PathLike[str],
        device: str | torch.device = "cpu",
        accelerator: Any = None,
        *,
        actor_network: nn.Module | None = None,
        critic_network: nn.Module | None = None,
    ) -> AgentT:
        """Load an agent that `save_checkpoint` wrote, or the best one of a run or of a checkpoint of it.

        Nothing else is needed, but where it has networks of your own: their code is not in the file, so modules of the
        same kind must be given again, whatever their weights and architecture are now.

        Raises:
            CheckpointError: the folder is missing, damaged or foreign, or was written with networks of your own.
        """
        document, tensors = read_agent(path)
        device = device if accelerator is None else accelerator.device
        networks = custom_spec(actor_network, critic_network)
        return cls.from_documents(document, tensors, device=device, where=str(path), networks=networks)

    def _compare(self, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        # what a user's own networks do with mere shapes, nobody knows; and what lies in memory has cost it already
        if isinstance(tensors, safe_folder.LazyTensors) and self.custom_networks is None:
            with torch.device("meta"), MetaBuild(len(tensors)):
                self._check_stored(tensors.infos, self.build(self.architecture))

    def _fill(self, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self.load_metadata(document)
        self.learned_with_masks = read_flag(document, "learned_with_masks", older=False)
        network = self._unfilled(self.architecture)
        self._check_stored(safe_folder.tensor_infos(tensors), network)
        check_finite(tensors)
        moments = [tensors[f"adam.{name}"].to(self.device, copy=True) for name in ("exp_avg", "exp_avg_sq", "steps")]
        if any(bool((moment < 0).any()) for moment in moments[1:]):
            raise ValueError("adam.exp_avg_sq and adam.steps must not be negative")
        self.set_network(network, Adam(*moments))
        with torch.no_grad():
            for name, tensor in _tensors_of(self.network).items():
                tensor.copy_(tensors[name])
        self.recent_observations = tensors["recent_observations"]
        update_count_flags(self.network)

    def _check_stored(self, found: Mapping[str, safe_folder.TensorInfo], network: ActorCritic) -> None:
        """Raise ValueError unless stored tensors are those of a network, by their names, shapes and dtypes."""
        wanted = safe_folder.tensor_infos(_tensors_of(network))
        size = layout(network)[-1].stop
        wanted |= {
            f"adam.{name}": safe_folder.TensorInfo((1, size), network.dtype) for name in ("exp_avg", "exp_avg_sq")
        }
        wanted |= {"adam.steps": safe_folder.TensorInfo((1,), network.dtype)}
        odd = sorted(found.keys() ^ {*wanted, "recent_observations"})
        if odd:
            raise ValueError(f"tensors {odd} are missing or too many")
        for name, facts in wanted.items():
            if found[name] != facts:
                raise ValueError(f"{name} is {found[name]}; wanted is {facts}")
        shape, dtype = found["recent_observations"]
        rows_fit = shape[-1:] == (self.encoding.size,) and dtype == self.encoding.dtype and len(shape) in (2, 3)
        if math.prod(shape) and not (rows_fit and math.prod(shape[:-1]) <= RECENT):
            raise ValueError(
                f"recent_observations is {found['recent_observations']}; wanted are at most {RECENT} rows of "
                f"{self.encoding.size} numbers of {self.encoding.dtype}"
            )

    # -- AgileRL's other names

    def clean_up(self) -> None:
        """Let go of the state that a finished agent no longer needs."""
        self.recent_observations = torch.zeros(0, 0)


def _tensors_of(network: nn.Module) -> dict[str, Tensor]:
    """All that is saved of a network."""
    return {f"network.{name}": tensor for name, tensor in (*network.named_parameters(), *network.named_buffers())}


def custom_spec(actor_network: nn.Module | None, critic_network: nn.Module | None) -> CustomSpec | None:
    """The user's own networks, if there are any."""
    if actor_network is None and critic_network is None:
        return None
    return CustomSpec.of(actor_network, critic_network)


def read_architecture(
    config: Mapping[str, Any], encoding: ObservationEncoder, *, recurrent: bool, networks: CustomSpec | None
) -> NetworkSpec:
    """Read an architecture's `to_config`; `networks` are the user's own, if it has such.

    Raises:
        ConfigurationError: it has, and they are missing; or a value is illegal.
    """
    if config["encoder"] != "custom":
        return NetworkSpec.from_net_config(config, encoding.leaves, recurrent=recurrent)
    if networks is None:
        raise ConfigurationError("it has networks of its own; give them as actor_network and critic_network")
    return NetworkSpec.custom(networks.with_architectures(config["encoder_config"]))


def values_of(agents: Sequence[Agent]) -> Values:
    """The agents' numbers as tensors `[P]`."""
    columns = zip(*(agent.values() for agent in agents), strict=True)
    return Values(*(torch.tensor(column, device=agents[0].device) for column in columns))
