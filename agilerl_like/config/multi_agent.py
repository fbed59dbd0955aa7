"""Configuration of multi-agent runs: the settings that differ from single-agent ones.

The agents of a team are known once its env exists. So the algorithm checks what depends on the size of groups: that a
minibatch is no larger than a rollout.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any, ClassVar, Literal, get_args

import pydantic.dataclasses
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from agilerl_like.algorithms.ippo import IPPO
from agilerl_like.algorithms.ppo_config import check_rollout
from agilerl_like.config.run_config import PLACEHOLDER_SPACE, Config
from agilerl_like.config.schema import STRICT, AlgorithmConfig, EnvironmentConfig, NetworkConfig
from agilerl_like.envs.critic_observation import observation_names
from agilerl_like.envs.factory import VecEnvConfig
from agilerl_like.envs.multi_agent.central_critic import STATE
from agilerl_like.envs.multi_agent.group_env import Death, Rewards
from agilerl_like.envs.multi_agent.pettingzoo import MultiAgentBackend, multi_agent_env_config, refuse_attributes
from agilerl_like.errors import ConfigurationError
from agilerl_like.networks.architecture import PARTS, inherited_by, inherits_encoder_config
from agilerl_like.registry import register
from agilerl_like.training.env_setup import EnvSetup
from agilerl_like.training.multi_agent_env_setup import MultiAgentEnvSetup
from agilerl_like.training.training_arguments import Fitness

DEFAULTS = {name: known.default for name, known in inspect.signature(IPPO).parameters.items()}
MAX_GROUP_SIZE = 100
"""Upper bound of the agents in a group, before the env exists."""


@pydantic.dataclasses.dataclass(frozen=True, config=STRICT)
class MultiAgentAlgorithmConfig(AlgorithmConfig):
    """The algorithm and its settings, shared by all agents; settings in `hyperparameters` evolve from these values."""

    name: Literal["IPPO"] = "IPPO"  # pyright: ignore[reportIncompatibleVariableOverride]  # differs by design
    """The algorithm."""
    groups: dict[str, str] = field(default_factory=dict)
    """agent -> group. Agents of a group share a policy; by default the group of speaker_0 and speaker_1 is speaker."""
    rewards: Rewards = DEFAULTS["rewards"]
    """What each agent learns from: its own reward (individual), the sum of all agents' rewards, or that sum divided by
    the number of agents that acted in the step (mean); where agents take turns, sum and mean are equal."""
    death: Death = DEFAULTS["death"]
    """Whether shared rewards (sum, mean) that a team earns after an agent's end are credited to it, within a rollout
    (continue), or not (end)."""
    group_factors: dict[str, dict[str, float]] = field(default_factory=dict)
    """Factors of groups on lr, ent_coef, vf_coef and clip_coef, such as {lr: {speaker: 3.0}}."""
    frozen_groups: tuple[str, ...] = DEFAULTS["frozen_groups"]
    """Groups that act, but neither learn nor mutate."""
    agent_id_one_hot: bool = DEFAULTS["agent_id_one_hot"]
    """Append a one-hot agent id to observations, so that a shared policy can distinguish the agents of a group."""


class MultiAgentEnvironmentConfig(EnvironmentConfig, frozen=True):
    """The environment for training and evaluation.

    In each env step all agents act, or the selected one in turn-based environments.
    """

    id: str
    """A module like PettingZoo's ("mpe2.simple_spread_v3"), an import path of a factory ("package.module:factory"), or
    an id of PettingZoo's registry ("butterfly/pistonball-v6", "classic/connect_four-v3")."""
    backend: MultiAgentBackend = "auto"
    """How they are stepped: in this process (sync), or in a few processes with many envs each (workers); auto: the
    faster."""
    autoreset: Literal["SameStep"] = "SameStep"
    """For single agents; teams allow SameStep."""
    wrappers: tuple[str | dict[str, Any], ...] = ()
    """Wrappers of each env: import paths, or {name: ..., its arguments}."""
    training_wrappers: tuple[str | dict[str, Any], ...] = ()
    """Further wrappers for training only, which keep the spaces: fitness, target and eval use the environment's own
    rewards."""
    info_keys: dict[str, str] = Field(default_factory=dict)
    """Name -> key of the info of an episode's last step, reported as eval/info/NAME. training.fitness: info.NAME
    selects by it. Attributes (env.KEY) are for single agents."""
    max_total_reward: float | None = None
    """For single agents; teams allow none."""

    @property
    def env_config(self) -> VecEnvConfig:
        return multi_agent_env_config(
            self.id,
            self.num_envs,
            backend=self.backend,
            extra_wrappers=self.wrappers,
            training_wrappers=self.training_wrappers,
            num_workers=self.num_workers,
            step_timeout=self.step_timeout,
            env_kwargs=self.kwargs,
            **self._differences,
        )

    @model_validator(mode="after")
    def _check_wrappers(self) -> MultiAgentEnvironmentConfig:
        if self.max_total_reward is not None:
            raise ConfigurationError(f"max_total_reward={self.max_total_reward}; it is for single agents")
        refuse_attributes(self.info_keys)
        return self

    @staticmethod
    def _is_import(field: str, text: str) -> bool:
        return not field.endswith("id") or "/" not in text  # an id of PettingZoo's registry has a slash


class MultiAgentNetworkConfig(NetworkConfig, frozen=True):
    """The initial architecture of every group's actor and critic."""

    groups: dict[str, NetworkConfig] = Field(default_factory=dict)
    """group -> settings that differ from the common ones, also inside encoder_config and the like."""

    def net_config(self, *, without_env: bool = False) -> dict[str, Any]:
        common = super().net_config(without_env=without_env)
        del common["groups"]
        return common | {group: own.net_config(without_env=without_env) for group, own in self.groups.items()}

    @model_serializer(mode="wrap")
    def _without_inherited(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return of each group what differs, so that options for the common settings reach the groups of a file."""
        data = handler(self)
        common = {key: value for key, value in data.items() if key != "groups"}
        for group, whole in data.get("groups", {}).items():
            own = _difference(common, whole)
            if _merged(common, own) == whole:  # not of an encoder of another kind, which inherits nothing
                data["groups"][group] = own
        return data

    @model_validator(mode="before")
    @classmethod
    def _inherit(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or not isinstance(given.get("groups"), Mapping):
            return given
        common = {key: value for key, value in given.items() if key != "groups"}
        groups = {
            group: _merged(common, own) if isinstance(own, Mapping) else own for group, own in given["groups"].items()
        }
        return {**common, "groups": groups}


def _merged(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the common network settings, overridden by a group's own; an encoder of another kind inherits nothing."""
    if not inherits_encoder_config(common, own):
        common = {key: value for key, value in common.items() if key != "encoder_config"}
    merged = {**inherited_by(own, common), **own}
    for key in (*(f"{part}_config" for part in PARTS), "critic_config"):
        if isinstance(common.get(key), Mapping) and isinstance(own.get(key), Mapping):
            merged[key] = {**common[key], **own[key]}
    return merged


def _difference(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return a group's settings that differ from the common ones."""
    found = {key: value for key, value in own.items() if key not in common or value != common[key]}
    for key, value in found.items():
        if isinstance(value, Mapping) and isinstance(common.get(key), Mapping):
            found[key] = {
                name: its for name, its in value.items() if name not in common[key] or its != common[key][name]
            }
    return found


@register("config", IPPO.algo)
class MultiAgentConfig(Config, frozen=True):
    """The settings of a multi-agent run; a file needs only those that differ from the defaults."""

    algorithm_class: ClassVar[type[Any]] = IPPO
    env_setup_class: ClassVar[type[EnvSetup]] = MultiAgentEnvSetup
    fitness_kinds: ClassVar[tuple[str, ...]] = get_args(Fitness)
    opponent_kinds: ClassVar[tuple[str, ...]] = ("self", "past", "population")

    environment: MultiAgentEnvironmentConfig
    algorithm: MultiAgentAlgorithmConfig = MultiAgentAlgorithmConfig()
    network: MultiAgentNetworkConfig = MultiAgentNetworkConfig()

    @property
    def env_config(self) -> VecEnvConfig:
        """The environment's config, with what the algorithm needs of it."""
        env_config = super().env_config
        if STATE not in observation_names(self.algorithm.critic_observation):
            return env_config
        return replace(env_config, env_kwargs={**env_config.env_kwargs, "with_state": True})

    def _agent_without_env(self) -> IPPO:
        with_factors = {group for factors in self.algorithm.group_factors.values() for group in factors}
        named = {*self.algorithm.groups.values(), *self.network.groups, *with_factors}
        named = {*self.algorithm.frozen_groups, *(named - {*self.algorithm.frozen_groups} or {"agent"})}
        arguments = self._first_arguments()
        size = _fewest_agents(arguments, self.environment.num_envs)
        groups = {f"{group}_{number}": group for group in named for number in range(size)}
        spaces = dict.fromkeys(groups, PLACEHOLDER_SPACE)
        return self.algorithm_class(spaces, spaces, **{**arguments, "groups": groups})


def _fewest_agents(arguments: Mapping[str, Any], num_envs: int) -> int:
    """Return the fewest agents of a group with which a minibatch fits into a rollout, at most `MAX_GROUP_SIZE`."""
    for agents in range(1, MAX_GROUP_SIZE):
        with contextlib.suppress(ConfigurationError):
            check_rollout({**arguments}, arguments["hp_config"], num_envs, agents)
            return agents
    return MAX_GROUP_SIZE
