"""CMA-ES (Hansen 2016) as an agent that a user holds, for small networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from torch import Tensor

from agilerl_like.algorithms.evolution_config import CMAESConfig
from agilerl_like.algorithms.evolution_strategy import (
    EvolutionStrategy,
    EvolutionStrategyGroup,
    EvolutionStrategyLearner,
)
from agilerl_like.algorithms.serialization import SEARCH
from agilerl_like.errors import ConfigurationError, check_argument_names
from agilerl_like.hpo import HyperparameterConfig, Mutation
from agilerl_like.learning.covariance_search import (
    METRICS,
    MOST_WEIGHTS,
    CovarianceSearch,
    CovarianceUpdate,
    new_search,
)
from agilerl_like.learning.execution import Precision
from agilerl_like.learning.perturbations import ReturnsUpdate
from agilerl_like.networks.observation_norm import ObservationNormKind
from agilerl_like.resources import check_memory
from agilerl_like.storage import safe_folder

_PART = {"hidden_size": [8], "min_mlp_nodes": 4}
SMALL = {"latent_dim": 8, "encoder": "mlp", "encoder_config": _PART, "head_config": _PART}
"""The default `net_config`."""


class CMAESLearner(EvolutionStrategyLearner):
    """The policy of one agent, which is the mean of a search."""

    algo, own_prefix = "CMAES", SEARCH

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._search: CovarianceSearch | None = None

    @property
    def search(self) -> CovarianceSearch:
        """The search around the present weights.

        It begins again, with unit covariance, after a mutation of the weights or of `sigma`.
        """
        its, given = self._search, self.host.sigma
        weights = torch.cat([parameter.detach().reshape(-1) for parameter in self.network.parameters()]).cpu().numpy()
        fits = its is not None and (its.rows, its.given_sigma) == (self.algorithm.num_envs, given)
        if its is not None and fits and np.array_equal(its.weights, weights):
            return its
        step = given if its is None or its.given_sigma != given else its.sigma
        self._search = CovarianceSearch(weights, step, self.algorithm.num_envs, given_sigma=given)
        return self._search

    @property
    def sigma(self) -> float:
        return self.search.sigma

    def offsets(self, sigma: float, instances: int = 1) -> Tensor:
        return torch.from_numpy(self.search.offsets(self.perturbation_seed)).float()

    def mutate(self, change: Mutation) -> Mutation:
        """Mutate as `Learner.mutate` does, unless the network would have more weights than a search can have."""
        before = dict(vars(self))
        done = super().mutate(change)
        if self.parameter_count <= MOST_WEIGHTS:
            return done
        refused = f"{self.parameter_count} weights"
        vars(self).update(before)
        return Mutation("none", change.operator, {"wanted": change.kind, "refused": refused})

    # -- copies and files

    def reinitialize(self) -> None:
        super().reinitialize()
        self._search = None

    def own_state(self) -> dict[str, Tensor]:
        return self.search.tensors()

    def load_own_state(self, state: Mapping[str, Tensor]) -> None:
        found, size = safe_folder.tensor_infos(state), self.parameter_count
        shapes = CovarianceSearch.shapes(size)
        wanted = {name: safe_folder.TensorInfo(shape, torch.float64) for name, shape in shapes.items()}
        if found != wanted:
            odd = sorted(f"{SEARCH}{name}" for name in {*found, *wanted} if found.get(name) != wanted.get(name))
            raise ValueError(f"tensors {odd} are missing, too many, or of another shape than {size} weights need")
        self._search = CovarianceSearch.from_tensors(state, self.algorithm.num_envs)


class CMAESGroup(EvolutionStrategyGroup[CMAESLearner]):
    """P searches, whose samples act at once."""

    learner_class, metrics = CMAESLearner, METRICS

    def make_update(
        self, learners: Sequence[CMAESLearner], data: ReturnsUpdate, sigmas: Sequence[float]
    ) -> CovarianceUpdate:
        return CovarianceUpdate(
            data.returns,
            data.observations,
            data.counts,
            data.instances,
            searches=[learner.search for learner in learners],
            seeds=[learner.perturbation_seed for learner in learners],
            sigmas=sigmas,
        )


class CMAES(EvolutionStrategy[CMAESLearner]):
    """A search for a small policy that adapts the covariance of its samples. Needs the extra `cmaes`.

    A member's `num_envs` envs are played by as many samples. When each has finished `episodes` episodes, the package
    `cmaes` moves mean, covariance and step size by their ranks. A mutation of the architecture, of the weights or of
    `sigma` begins the covariance again. `CMAESConfig` has the meaning, default and range of each setting.

    Args:
        observation_space: Box (a vector, or an image of three or four dimensions), Discrete, MultiDiscrete,
            MultiBinary, and Dict and Tuple of these.
        action_space: Discrete, MultiDiscrete, MultiBinary, or a Box of finite bounds.
        index: identity of the agent in its population.
        hp_config: which settings may evolve, and in which ranges.
        net_config: as PPO's, of at most 2,000 weights; there is no critic. By default every layer has 8 units.
        mut: label of the last mutation.
        num_envs: envs that this agent acts in at once; `num_agents` is another name for it.
        device: device of all tensors; `accelerator` overrides it.
        seed: names all random streams; drawn from the operating system if left out.
        wrap: accepted for AgileRL's sake.

    Raises:
        ConfigurationError: a value is out of range, a key unknown, a space not supported, or the network too large.
    """

    algo: ClassVar[str] = "CMAES"
    config = CMAESConfig
    group_class = CMAESGroup
    default_net_config: ClassVar[Mapping[str, Any]] = SMALL
    fewest_envs: ClassVar[int] = 4  # of which the mean of at least two has a covariance

    @check_argument_names
    def __init__(
        self,
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        net_config: Mapping[str, Any] | None = None,
        *,
        sigma: float = CMAESConfig.sigma,
        episodes: int = CMAESConfig.episodes,
        learn_step: int | None = CMAESConfig.learn_step,
        normalize_observation: ObservationNormKind = CMAESConfig.normalize_observation,
        normalize_images: bool = CMAESConfig.normalize_images,
        swap_channels: bool | None = CMAESConfig.swap_channels,
        precision: Precision = CMAESConfig.precision,
        per_member: bool = CMAESConfig.per_member,
        num_envs: int = 32,
        num_agents: int | None = None,
        mut: str | None = None,
        device: str | torch.device = "cpu",
        accelerator: Any = None,
        wrap: bool = True,
        seed: int | None = None,
        **unknown: Any,
    ) -> None:
        new_search(np.zeros(2), 1.0, self.fewest_envs)  # which fails if the package is missing
        self._init_strategy(locals())

    def _check_memory(self) -> None:
        super()._check_memory()
        weights = sum(learner.planned_weights() for learner in self.learners.values())
        if weights > MOST_WEIGHTS:
            raise ConfigurationError(
                f"net_config: {self.architecture.describe():.200} has weights={weights}; CMAES allows at most "
                f"{MOST_WEIGHTS}, whose covariance it adapts"
            )
        check_memory(f"num_envs={self.num_envs}", self.num_envs, 8 * weights**2, "samples")
