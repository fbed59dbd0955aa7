"""The state of a learner: network and moments, the cohort that computes them, counters, settings, and copies."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

import gymnasium
import torch
from torch import Tensor, nn

from agilerl_like.algorithms.evaluation import RowLayout, SingleAgentRows
from agilerl_like.algorithms.learner_host import LearnerHost
from agilerl_like.algorithms.serialization import MetaBuild
from agilerl_like.algorithms.settings import number_range
from agilerl_like.envs.critic_observation import POLICY, AsymmetricEncoder, make_observation_encoder
from agilerl_like.envs.spaces import ObservationEncoder, Path, check_action_space
from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo import HyperparameterConfig
from agilerl_like.hpo.frozen_mapping import FrozenMapping
from agilerl_like.hpo.schedules import factor
from agilerl_like.learning.execution import Execution
from agilerl_like.learning.optimizer import Adam
from agilerl_like.learning.population_learner import PopulationLearner
from agilerl_like.learning.rewards import ReturnStatistics
from agilerl_like.learning.rollout_buffer import row_bytes
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
from agilerl_like.networks.custom import CustomSpec, EvolvableCustom, check_layers
from agilerl_like.networks.distributions import ActionDistribution
from agilerl_like.seeding import Purpose, integer

LearnerBaseT = TypeVar("LearnerBaseT", bound="LearnerBase")

RECENT = 1024
"""Observations of the last rollout that are stored to measure mutations on."""
WEIGHT_BYTES = 4 * 4
"""Bytes of a weight, its gradient and its two moments."""
MAX_TENSORS = 1000
"""Upper bound of the tensors of a network, for `MetaBuild`."""
LOGARITHMS = ("log_std", "log_alpha")
"""Parameters that are logarithms, of the deviation of actions and of SAC's temperature, and so have no neutral 0."""


class GroupSettings(NamedTuple):
    """The settings in which the learners of an algorithm's groups differ; the defaults are those of a single agent."""

    num_agents: int = 1
    """Agents that share the policy; each is a further row of every env."""
    number: int | None = None
    """Position of the group in its team, which names its random streams; None of an agent without a team."""
    layout: RowLayout = SingleAgentRows()
    """Converts between the group's agents and the rows that its learner reads."""
    factors: Mapping[str, float] = FrozenMapping()
    """Factors of hyperparameters for this group of agents."""


SINGLE_AGENT = GroupSettings()


def torch_generator(device: torch.device | str, seed: int, purpose: Purpose, *keys: int) -> torch.Generator:
    """Return a torch generator for one named stream."""
    return torch.Generator(device).manual_seed(integer(seed, purpose, *keys))


class LearnerBase:
    """A network with its moments and counters, and the algorithm's settings as they apply to one group of agents."""

    algo: ClassVar[str]
    """Name of the algorithm in its document."""
    is_deterministic: ClassVar[bool] = False
    """Whether an observation has one action, and outputs of the network have no probabilities."""
    network: ActorCritic

    def __init__(
        self,
        algorithm: LearnerHost,
        encoding: ObservationEncoder | AsymmetricEncoder,
        action_space: gymnasium.Space,
        architecture: NetworkSpec,
        group: GroupSettings = SINGLE_AGENT,
        *,
        max_seq_len: int | None = None,
    ) -> None:
        check_action_space(action_space)
        self._algorithm: weakref.ref[LearnerHost] | None = weakref.ref(algorithm)
        self.encoding: ObservationEncoder = encoding.policy
        """The encoder of what the policy observes."""
        self.rollout_encoding, self.action_space = encoding, action_space
        """The encoder of a rollout's observations, and the space of actions."""
        self.architecture, self.group = architecture, group
        self.num_agents = group.num_agents
        """Agents that share this policy; each is a further row of every env."""
        self.max_steps: int | None = None
        """Env steps of each member in the run, which sets them before each update; None in hand-written loops."""
        self._max_seq_len = max_seq_len  # if the algorithm's setting is None
        self.updates = 0
        self.draws = 0
        self.variations = 0
        self.env_steps = 0
        """Env steps of all rollouts so far, including those that were not learned from."""
        self.updates_without_learning = 0
        """Rollouts that count in `updates`, of which random streams are named, but were not learned from."""
        self.updates_before = 0
        """Updates before the run; a clone has those of its parent."""
        self._random_steps_taken = 0  # in a hand-written loop, since its last rollout
        self._undone_random_steps = 0  # in the rollout of the last update, if that was undone
        self.return_statistics = ReturnStatistics.new()
        """The scale by which rewards are divided with `normalize_reward`."""
        self.recent_observations = torch.zeros(0, 0)
        """Encoded observations of the last rollout, on which mutations are measured."""
        self.learned_with_masks = False
        """Whether any rollout had action masks."""
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

        The reference is weak, because a cycle would keep the networks of replaced members until garbage collection.

        Raises:
            ReferenceError: the algorithm was deleted; a learner cannot be used without it.
        """
        algorithm = None if self._algorithm is None else self._algorithm()
        if algorithm is None:
            raise ReferenceError("the algorithm of this learner was deleted: keep the agent as long as its learner")
        return algorithm

    @property
    def host(self) -> Any:
        """The algorithm, with the settings that are its own."""
        return self.algorithm

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
        return seed if self.group.number is None else integer(seed, Purpose.GROUP, self.group.number)

    @property
    def rows_per_step(self) -> int:
        """Rows of a step: the algorithm's `num_envs` times the agents of this group."""
        return self.algorithm.num_envs * self.num_agents

    @property
    def rollout_length(self) -> int:
        """Env steps between updates, before they are rounded up to whole steps of every env."""
        host = self.algorithm
        return host.learn_step if host.num_steps is None else host.num_steps * host.num_envs

    @property
    def rollout_setting(self) -> str:
        """The setting that determines `rollout_length`, and its value, for warnings."""
        length, steps = self.rollout_length, self.algorithm.num_steps
        return f"learn_step={length}" if steps is None else f"num_steps={steps} ({length} env steps)"

    @property
    def rollout_rows(self) -> int:
        """Rows of a rollout: `rollout_length` times the agents of this group, not yet rounded up to whole steps."""
        return self.rollout_length * self.num_agents

    @property
    def updates_of_run(self) -> int:
        """Updates since the run began; rollouts that were not learned from do not count."""
        return self.updates - self.updates_without_learning - self.updates_before

    @property
    def scheduled(self) -> tuple[str, ...]:
        """Names of the settings that a schedule changes during the run."""
        host = self.algorithm
        return tuple(dict.fromkeys((*host.active_schedules, *([] if host.lr_schedule is None else ["lr"]))))

    def schedule_factor(self, name: str) -> float:
        """Return the factor that the schedule of a hyperparameter has in the next update; 1 without a schedule.

        `lr_schedule` is not among them: it replaces the value itself.
        """
        host, schedules = self.algorithm, self.algorithm.active_schedules
        return factor(name, schedules[name], host.progress) if name in schedules else 1.0

    def check_run(self, max_steps: int, longest_episode: int | None, processes: int) -> None:
        """Raise ConfigurationError if a run of `max_steps` env steps of each member is illegal with the settings.

        `longest_episode` is None if it is unknown.
        """

    @property
    def batch_size(self) -> int:
        """Samples of a minibatch."""
        count = self.algorithm.num_minibatches
        return self.algorithm.batch_size if count is None else max(1, self.rollout_steps * self.rows_per_step // count)

    @property
    def recurrent(self) -> bool:
        """Whether the network has a hidden state."""
        return self.algorithm.recurrent

    def reads_bounds(self, path: Path) -> bool:
        """Whether the networks read an entry of the observation scaled by the bounds of its space."""
        leaf = next(leaf for leaf in self.rollout_encoding.whole.leaves if leaf.path == path)
        return not leaf.is_identity or (self.algorithm.normalize_observation == "bounds" and leaf.kind == "vector")

    @property
    def observation_space(self) -> gymnasium.Space:
        """The space of one agent's observations."""
        return self.rollout_encoding.space

    @property
    def hp_config(self) -> HyperparameterConfig:
        """The algorithm's ranges, with `learn_step` counted in this learner's rows."""
        ranges = self.algorithm.hp_config
        if self.group.number is None or number_range(ranges, "learn_step") is None:
            return ranges
        return ranges.times("learn_step", self.num_agents)

    def settings(self) -> dict[str, Any]:
        """Return the algorithm's settings, with rows counted for this group and inferred values filled in."""
        max_seq_len = self._max_seq_len if self.algorithm.max_seq_len is None else self.algorithm.max_seq_len
        its_own = {"learn_step": self.rollout_rows, "swap_channels": self.rollout_encoding.swap_channels}
        return {**self.algorithm.settings(), **its_own, "max_seq_len": max_seq_len}

    @property
    def execution(self) -> Execution:
        """Compilation and precision; a population uses those of its first member."""
        return Execution(self.algorithm.compile, self.algorithm.precision, self.algorithm.per_member)

    @property
    def rollout_steps(self) -> int:
        """Steps of each env between updates."""
        return math.ceil(self.rollout_rows / self.rows_per_step)

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
        """The user's own networks, if any, whose code is not saved."""
        encoder = self.architecture.encoder
        return encoder if isinstance(encoder, CustomSpec) else None

    @property
    def parameter_count(self) -> int:
        """Number of weights."""
        return layout(self.network)[-1].stop

    @property
    def footprint(self) -> int:
        """A lower bound of the bytes that learning needs: weights, gradients, moments and the rollout."""
        return WEIGHT_BYTES * self.parameter_count + self.rollout_steps * self.rows_per_step * row_bytes(
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
        except (ValueError, RuntimeError, TypeError) as error:  # TypeError: a size that is no 64 bit integer
            what = f"net_config: {self.architecture.describe():.200}"
            raise ConfigurationError(f"{what} cannot be built: {str(error).splitlines()[0]:.200}") from error

    def reinitialize(self) -> None:
        """Draw initial weights from the member's own stream and clear the moments."""
        network = self.build(self.architecture)
        check_layers(network)
        # drawn on the CPU, so that a seed gives the same weights on every device
        network.reset_(torch_generator("cpu", self.seed, Purpose.INITIAL_WEIGHTS, self.index))
        network.to(self.device)
        for module in network.modules():
            if isinstance(module, EvolvableCustom):
                module.check(self.device)
        self.set_network(network, Adam.fresh(torch.zeros(1, layout(network)[-1].stop, device=self.device)))
        self.env_steps, self.return_statistics = 0, ReturnStatistics.new()

    def mix_initial_weights(self, own: float, initial: float) -> None:
        """Set the weights to `own` * the present ones + `initial` * initial ones, and clear the moments.

        Unless `own` is 0, the statistics of normalizers and the count of env steps stay (Ash and Adams 2020: shrink and
        perturb), and so do `LOGARITHMS` and parameters with `requires_grad=False`.
        """
        before, env_steps, return_statistics = self.network, self.env_steps, self.return_statistics
        self.reinitialize()
        if own:
            self.env_steps, self.return_statistics = env_steps, return_statistics
            with torch.no_grad():
                for (name, new), old in zip(self.network.named_parameters(), before.parameters(), strict=True):
                    if old.requires_grad and name.rpartition(".")[2] not in LOGARITHMS:
                        new.mul_(initial).add_(old, alpha=own)
                    else:
                        new.copy_(old)
                for new, old in zip(self.network.buffers(), before.buffers(), strict=True):
                    new.copy_(old)
            update_count_flags(self.network)

    def _unfilled(self, architecture: NetworkSpec) -> ActorCritic:
        """Build a network whose weights will be overwritten; a user's module is initialized by its own code."""
        with nullcontext() if self.custom_networks else skip_init():
            network = self.build(architecture)
        return network.to(self.device)  # a user's module may be on another device

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
        """Read observations of another space that encodes to the same rows, such as images with channels last.

        Raises:
            ConfigurationError: the rows would differ.
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
        """The cohort that computes this learner: a population's, else one of its own.

        One of its own replaces a cohort with other execution options, because these may be set at any time.
        """
        if self._cohort is None or self._cohort.execution != self.execution:
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

    # -- copies

    def own_state(self) -> dict[str, Tensor]:
        """Return by name the tensors of learning that a subclass has beside those of this class.

        Clones and files contain them, except files of weights alone. `reinitialize` sets them to their initial values.
        """
        return {}

    def load_own_state(self, state: Mapping[str, Tensor]) -> None:
        """Set the tensors that `own_state` returned, without gradients; those of a file are on the CPU.

        Raises:
            ValueError: they do not fit.
        """
        if state:
            raise ValueError(f"tensors {sorted(state)} of own_state are too many: {type(self).__name__} has none")

    def forget_random_steps(self) -> None:
        """Count none of the random steps since the last rollout, because it was learned from or discarded."""
        self._random_steps_taken = self._undone_random_steps = 0

    def copy_for(self: LearnerBaseT, algorithm: LearnerHost) -> LearnerBaseT:
        """Return a learner of another algorithm with the same state, which shares this learner's network.

        Its weights must not be changed before `own_network`, which copies them; a mutation that builds a new network
        makes that copy unnecessary.
        """
        copy = type(self)(
            algorithm,
            self.rollout_encoding,
            self.action_space,
            self.architecture,
            self.group,
            max_seq_len=self._max_seq_len,
        )
        copy.network, copy._optimizer, copy._shares_network = self.network, self.moments, True
        copy.updates, copy.draws, copy.variations = self.updates, self.draws, self.variations
        copy.recent_observations, copy.learned_with_masks = self.recent_observations, self.learned_with_masks
        copy.env_steps, copy.return_statistics = self.env_steps, self.return_statistics
        copy.load_own_state({name: tensor.detach().clone() for name, tensor in self.own_state().items()})
        copy.updates_without_learning, copy.updates_before = self.updates_without_learning, self.updates_before
        if copy.index == self.index:  # it continues the steps of a hand-written loop
            copy._last_noise, copy._random_steps_taken = self._last_noise, self._random_steps_taken
            copy._undone_random_steps = self._undone_random_steps
        return copy

    def own_network(self) -> None:
        """Copy network and moments if they are shared with the parent."""
        if self._shares_network:
            self._use(clone_module(self.network), self.moments.copy())

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for `copy.deepcopy` and `pickle`: a network of its own, without algorithm, cohort or run."""
        alone = {
            "_algorithm": None,
            "max_steps": None,
            "_optimizer": self.moments.copy(),
            "_cohort": None,
            "row": 0,
            "_shares_network": False,
        }
        return {**vars(self), "network": detached_clone(self.network), **alone}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        flatten_parameters_(self.network)
