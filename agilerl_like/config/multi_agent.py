"""The configuration of a run that trains teams: what its sections have besides, or otherwise.

Who is in a team is known when its env is there, and not before. So what depends on the size of groups, that a minibatch
is no larger than a rollout, is left for then.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar, Literal, get_args

import pydantic.dataclasses
from pydantic import Field, model_validator

from agilerl_like.algorithms.ippo import IPPO
from agilerl_like.algorithms.ppo import PPO
from agilerl_like.config.run_config import PLACEHOLDER_SPACE, Config
from agilerl_like.config.schema import STRICT, AlgorithmConfig, EnvironmentConfig, NetworkConfig
from agilerl_like.envs.factory import VecEnvConfig
from agilerl_like.envs.multi_agent.group_env import Rewards
from agilerl_like.envs.multi_agent.pettingzoo import MultiAgentBackend, multi_agent_env_config
from agilerl_like.networks.architecture import PARTS, inherits_encoder_config
from agilerl_like.registry import register
from agilerl_like.training.env_setup import EnvSetup
from agilerl_like.training.multi_agent_env_setup import MultiAgentEnvSetup
from agilerl_like.training.training_arguments import Fitness

DEFAULTS = {name: known.default for name, known in inspect.signature(IPPO).parameters.items()}
MAX_GROUP_SIZE = 100
"""More agents than any group has."""


@pydantic.dataclasses.dataclass(frozen=True, config=STRICT)
class MultiAgentAlgorithmConfig(AlgorithmConfig):
    """What is trained, and its settings; those in `hyperparameters` evolve from here. All are common to a team."""

    name: Literal["IPPO"] = "IPPO"  # pyright: ignore[reportIncompatibleVariableOverride]  # frozen
    """The algorithm."""
    groups: dict[str, str] = field(default_factory=dict)
    """agent -> group, where names do not tell: agents of a group share a policy, speaker_0 and speaker_1 anyway."""
    rewards: Rewards = DEFAULTS["rewards"]
    """What each agent learns from: what it earned itself, or what all agents earned together, or on average."""
    agent_id_one_hot: bool = DEFAULTS["agent_id_one_hot"]
    """Let agents of a group observe who they are, so that one policy can tell them apart."""


class MultiAgentEnvironmentConfig(EnvironmentConfig):
    """Where teams train and are tested. Env steps are steps of the world, in each of which every agent acts."""

    id: str
    """A module of PettingZoo's kind ("mpe2.simple_spread_v3"), an import path of a factory ("package.module:factory"),
    or an id of PettingZoo's registry ("butterfly/pistonball-v6")."""
    backend: MultiAgentBackend = "auto"  # pyright: ignore[reportIncompatibleVariableOverride]  # frozen
    """Who steps them: one process (sync), or many envs in each of a few (workers); auto: the quicker."""
    wrappers: tuple[str | dict[str, Any], ...] = ()
    """Around each env: import paths, or {name: ..., its arguments}."""
    training_wrappers: tuple[str | dict[str, Any], ...] = ()
    """Around those in training alone: fitness, target and eval go by the environment's own rewards. They keep the
    spaces."""

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
            with_state=False,
            env_kwargs=self.kwargs,
        )

    @staticmethod
    def _is_import(field: str, text: str) -> bool:
        return field != "id" or "/" not in text  # which is in an id of PettingZoo's registry


class MultiAgentNetworkConfig(NetworkConfig):
    """The first architecture of every group's actor and critic."""

    groups: dict[str, NetworkConfig] = Field(default_factory=dict)
    """group -> what is otherwise in its networks: settings of its own, also inside encoder_config and the like."""

    def net_config(self, *, without_env: bool = False) -> dict[str, Any]:
        common = super().net_config(without_env=without_env)
        del common["groups"]
        return common | {group: own.net_config(without_env=without_env) for group, own in self.groups.items()}

    @model_validator(mode="before")
    @classmethod
    def _inherit(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or not isinstance(given.get("groups"), Mapping):
            return given
        common = {key: value for key, value in given.items() if key != "groups"}
        own = {
            group: _merged(common, its) if isinstance(its, Mapping) else its for group, its in given["groups"].items()
        }
        return {**common, "groups": own}


def _merged(common: Mapping[str, Any], its: Mapping[str, Any]) -> dict[str, Any]:
    """The network of all groups with what differs for one; an encoder of another kind has nothing in common."""
    if not inherits_encoder_config(common, its):
        common = {key: value for key, value in common.items() if key != "encoder_config"}
    changed = {**common, **its}
    for key in (f"{part}_config" for part in PARTS):
        if isinstance(common.get(key), Mapping) and isinstance(its.get(key), Mapping):
            changed[key] = {**common[key], **its[key]}
    return changed


@register("config", IPPO.algo)
class MultiAgentConfig(Config):
    """Everything about a run of teams. A file need only say what differs from the defaults."""

    algorithm_class: ClassVar[type[PPO] | type[IPPO]] = IPPO
    env_setup_class: ClassVar[type[EnvSetup]] = MultiAgentEnvSetup
    fitness_kinds: ClassVar[tuple[str, ...]] = get_args(Fitness)

    environment: MultiAgentEnvironmentConfig  # pyright: ignore[reportIncompatibleVariableOverride]  # frozen
    algorithm: MultiAgentAlgorithmConfig = MultiAgentAlgorithmConfig()  # pyright: ignore[reportIncompatibleVariableOverride]  # frozen
    network: MultiAgentNetworkConfig = MultiAgentNetworkConfig()  # pyright: ignore[reportIncompatibleVariableOverride]  # frozen

    def _agent_without_env(self) -> IPPO:
        named = {*self.algorithm.groups.values(), *self.network.groups} or {"agent"}
        needed = -(-self.algorithm.batch_size // self.algorithm.learn_step)  # for a minibatch in a rollout
        groups = {f"{group}_{number}": group for group in named for number in range(min(needed, MAX_GROUP_SIZE))}
        spaces = dict.fromkeys(groups, PLACEHOLDER_SPACE)
        return IPPO(spaces, spaces, **{**self.agent_arguments(without_env=True), "groups": groups})
