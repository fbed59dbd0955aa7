"""Independent PPO: a PPO learner for each group of agents (de Witt et al. 2020, arXiv:2011.09533).

The agents of a group share a policy and count as further rows of each env, so everything is computed as in PPO. A
learner of A agents reads A rows in each step of each env, so its `rollout_rows` are A times the algorithm's
`learn_step`, and all groups are due for an update at once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from agilerl_like.algorithms.agent_groups import (
    NO_FACTORS,
    Spaces,
    agent_ids_of,
    assign_groups,
    check_by_agent,
    check_factors,
    check_names,
    names_of,
    net_config_by_group,
    own_networks_by_group,
    spaces_by_agent,
    split_by_group,
)
from agilerl_like.algorithms.architectures import encoder_of, initial_architecture
from agilerl_like.algorithms.episode_summary import tested_fitness
from agilerl_like.algorithms.evaluation import EpisodeCallback
from agilerl_like.algorithms.evolvable_algorithm import refuse_settings
from agilerl_like.algorithms.learner_base import GroupSettings
from agilerl_like.algorithms.multi_agent_experiences import (
    ByAgent,
    MultiAgentExperiences,
    experiences_of_group,
    get_action_by_agent,
)
from agilerl_like.algorithms.on_policy_algorithm import OnPolicyAlgorithm
from agilerl_like.algorithms.population import BasePopulation, make_members
from agilerl_like.algorithms.ppo_config import PPOConfig
from agilerl_like.algorithms.ppo_learner import PPOLearner, undone_on_error
from agilerl_like.algorithms.presets import reads_presets
from agilerl_like.algorithms.serialization import (
    check_space_sizes,
    read_agent,
    read_count,
    read_multi_agent_spec,
    read_population,
    read_space,
    to_builtin,
)
from agilerl_like.algorithms.settings import setting_names, settings_to_json, unknown_setting, validated
from agilerl_like.algorithms.team_settings import TeamSettings
from agilerl_like.envs.array_backend import device_from
from agilerl_like.envs.critic_observation import POLICY
from agilerl_like.envs.multi_agent.central_critic import CRITIC, make_central_critics
from agilerl_like.envs.multi_agent.group_env import Death, Rewards, check_agents
from agilerl_like.envs.multi_agent.pettingzoo import MultiAgentVectorEnv, ParallelEnv, single_env_vector
from agilerl_like.envs.multi_agent.vec_adapter import MultiAgentVecEnvAdapter
from agilerl_like.errors import CheckpointError, ConfigurationError, check_argument_names, tuple_of, unknown_name
from agilerl_like.hpo import HyperparameterConfig, Mutation
from agilerl_like.learning.optimizer import Adam, OptimizerName
from agilerl_like.networks.architecture import NetworkSpec, sequence_length, with_critic_config
from agilerl_like.networks.custom import CustomSpec
from agilerl_like.networks.multi_agent_spec import MultiAgentSpec, split_operator
from agilerl_like.storage.safe_folder import with_prefix

NO_HISTORY = {"mut": "None", "fitness": [], "scores": [], "steps": [0]}
"""Empty history in a learner's document, because only the whole algorithm has a history."""
NO_COUNTERS = {"updates": 0, "draws": 0, "variations": 0}
"""Zero counters in the algorithm's document, because only its learners count."""


class IPPO(OnPolicyAlgorithm):
    """A team of agents with an independent PPO learner for each group of them.

    Args:
        observation_spaces: by agent; or a list in the order of `agent_ids`.
        action_spaces: likewise.
        agent_ids: every agent that may appear; None: the keys of the spaces.
        index: identity of the team in its population.
        hp_config: which settings may evolve, and in which ranges; all groups share them.
        net_config: of `PPO`, for all groups, or by group.
        critic_config: of `PPO`, for all groups; for one group it is a key of the group's `net_config`.
        groups: the group of each agent; None: `group_of` infers it from the name. Agents of a group share a policy and
            need equal spaces.
        rewards: the reward that each agent learns from: its own ("individual"), the sum of all agents' rewards ("sum"),
            or that sum divided by the number of agents that acted in the step ("mean"). It is for runs: hand-written
            loops pass `learn` the rewards to learn from.
        death: of shared rewards, whether an agent that has terminated is credited with what its team earns afterwards
            ("continue", within a rollout), or not ("end"); in runs, as `rewards`. One that is truncated has the value
            of its last observation instead.
        frozen_groups: groups that act, but neither learn nor mutate, and take no random steps in a run.
        group_factors: of `lr`, `ent_coef`, `vf_coef` and `clip_coef`, the factor of each group named, such as
            {"lr": {"speaker": 3.0}}; they stay as the values evolve. `lr={"speaker": 3e-4}` means the same: other
            groups have the default, or the nearest value in the range of `hp_config`.
        agent_id_one_hot: append a one-hot agent id to the observations of a group with several agents.
        state_space: the space of `env.state()`, for `critic_observation="state"`.
        num_envs: envs that this team acts in at once.
        device: device of all tensors; `accelerator` overrides it.
        seed: names all random streams; None: drawn from the operating system.
        mut: label of the last mutation.
        actor_networks, critic_networks: the user's own networks (see `PPO`), by group or agent; groups that are not
            named have those of `net_config`.
        action_batch_size, torch_compiler, wrap: AgileRL's; ignored.
        settings: those of `PPO`. `learn_step` counts env steps, in which every agent acts once. Entries of
            `critic_observation` are "policy", "state" and "joint", all agents' observations.

    Raises:
        ConfigurationError: a value is out of range, a key unknown, an agent has no space, or spaces differ inside a
            group.
    """

    algo: ClassVar[str] = "IPPO"

    @check_argument_names
    @reads_presets
    def __init__(
        self,
        observation_spaces: Spaces,
        action_spaces: Spaces,
        agent_ids: Sequence[str] | None = None,
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        net_config: Mapping[str, Any] | None = None,
        *,
        groups: Mapping[str, str] | None = None,
        rewards: Rewards = "individual",
        death: Death = "continue",
        frozen_groups: Sequence[str] = (),
        group_factors: Mapping[str, Mapping[str, float]] = NO_FACTORS,
        agent_id_one_hot: bool = False,
        state_space: gymnasium.Space | None = None,
        num_envs: int = 1,
        device: str | torch.device = "cpu",
        accelerator: Any = None,
        critic_config: Mapping[str, Any] | None = None,
        seed: int | None = None,
        mut: str | None = None,
        actor_networks: Mapping[str, nn.Module] | None = None,
        critic_networks: Mapping[str, nn.Module] | None = None,
        action_batch_size: int | None = None,
        torch_compiler: str | None = None,
        wrap: bool = True,
        **settings: Any,
    ) -> None:
        known = {*locals(), *setting_names(PPOConfig)} - {"self", "settings"}
        for name in settings:
            if name not in known:
                raise unknown_setting("setting", name, known)
        given = agent_ids_of(observation_spaces) if agent_ids is None else agent_ids
        ids = tuple_of("agent_ids", given, "a list of names")
        check_names("agent_ids", ids)
        observed, acted = (
            spaces_by_agent(name, spaces, ids)
            for name, spaces in (("observation_spaces", observation_spaces), ("action_spaces", action_spaces))
        )
        by_group = assign_groups(ids, groups, observed, acted)
        settings, factors = split_by_group(settings, group_factors, by_group, hp_config)
        config = validated(PPOConfig, settings)
        team = TeamSettings(
            observed,
            acted,
            by_group,
            rewards,
            death,
            agent_id_one_hot,
            names_of("frozen_groups", frozen_groups),
            factors,
            state_space,
        )
        self._init_team(
            team,
            settings=config,
            index=index,
            hp_config=hp_config,
            num_envs=num_envs,
            device=device_from(device, accelerator),
            seed=seed,
        )
        own = own_networks_by_group(actor_networks, critic_networks, self.groups)
        net_configs = net_config_by_group(with_critic_config(net_config, critic_config), self.groups, own)
        self.learners = {
            group: self._make_learner(group, config, its_net_config, own.get(group))
            for group, its_net_config in net_configs.items()
        }
        self._finish_init(mut)

    def _make_learner(
        self, group: str, config: PPOConfig, net_config: Mapping[str, Any] | None, networks: CustomSpec | None
    ) -> PPOLearner:
        """Make the learner of a group from its `net_config`, or from the user's own networks."""
        encoding = encoder_of(self._learner_space(group), config, self._critic_entries)
        if networks is None:
            architecture = initial_architecture(net_config, encoding, recurrent=config.recurrent)
        else:
            architecture = NetworkSpec.custom(networks)
        return PPOLearner(
            self,
            encoding,
            self.agent_groups[group].single_action_space,
            architecture,
            self._group_settings(group),
            max_seq_len=sequence_length(net_config) if config.recurrent else None,
        )

    def _init_team(self, team: TeamSettings, **arguments: Any) -> None:
        """Set everything but the learners; `arguments` are those of `_init_settings`."""
        self._init_settings(
            gymnasium.spaces.Dict(dict(team.observation_spaces)),
            gymnasium.spaces.Dict(dict(team.action_spaces)),
            **arguments,
        )
        self.learners = {}
        self.agent_ids = tuple(team.observation_spaces)
        self._groups = dict(team.groups)
        self.rewards: Rewards = team.rewards
        self.death: Death = team.death
        self.agent_id_one_hot = team.agent_id_one_hot
        self.frozen_groups = team.frozen_groups
        self.group_factors = team.group_factors
        self.state_space = team.state_space
        """The space of `env.state()`, if critics observe it."""
        self.agent_groups = team.agent_groups()
        """Converts between each group's agents and its learner's rows."""
        self.central_critics = make_central_critics(self.agent_groups, self.critic_observation, team.state_space)
        """The observations of each group's critic, for critics that do not observe the same as the policy."""

    def _learner_space(self, group: str) -> gymnasium.Space:
        """Return the space of the observations of a group's policy and critic."""
        central = self.central_critics.get(group)
        return self.agent_groups[group].single_observation_space if central is None else central.space

    @property
    def _critic_entries(self) -> str:
        return CRITIC if self.central_critics else POLICY

    def _group_settings(self, group: str) -> GroupSettings:
        return GroupSettings(
            num_agents=len(self.groups[group]),
            number=[*self.groups].index(group),
            layout=self.agent_groups[group],
            factors={name: its[group] for name, its in self.group_factors.items() if group in its},
        )

    def check(self) -> None:
        super().check()
        TeamSettings.of(self)

    def _check_spaces(self) -> None:
        super()._check_spaces()
        firsts = [ids[0] for ids in self.groups.values()]  # a file has the spaces of each group
        spaces = [space[agent] for space in (self.observation_space, self.action_space) for agent in firsts]
        check_space_sizes("observation_spaces and action_spaces", spaces)
        if self.state_space is not None:
            check_space_sizes("state_space", [self.state_space])

    @property
    def groups(self) -> Mapping[str, tuple[str, ...]]:
        """The agents of each group."""
        return MappingProxyType(self._groups)

    @property
    def group_factors(self) -> Mapping[str, Mapping[str, float]]:
        """Factors by group of the hyperparameters named; setting them raises ConfigurationError for illegal ones."""
        return self._group_factors

    @group_factors.setter
    def group_factors(self, factors: Mapping[str, Mapping[str, float]]) -> None:
        check_factors(factors, self.groups)
        self._group_factors = {name: dict(its) for name, its in factors.items()}
        for group, learner in self.learners.items():
            learner.group = self._group_settings(group)

    def get_group_id(self, agent_id: str) -> str:
        """Return the name of an agent's group.

        Raises:
            ConfigurationError: there is no such agent.
        """
        for group, ids in self.groups.items():
            if agent_id in ids:
                return group
        raise unknown_name("agent_id", agent_id, self.agent_ids)

    def learner_of(self, agent_id: str) -> PPOLearner:
        """Return the learner of an agent's group; ConfigurationError if there is no such agent."""
        return self.learners[self.get_group_id(agent_id)]

    @classmethod
    @check_argument_names
    @reads_presets
    def population(
        cls,
        size: int,
        observation_spaces: Spaces | None = None,
        action_spaces: Spaces | None = None,
        *,
        sample_hyperparameters: bool = False,
        observation_space: Spaces | None = None,
        action_space: Spaces | None = None,
        **kwargs: Any,
    ) -> MultiAgentPopulation:
        """Make a population of `size` teams of one run seed, each with weights and random streams of its own.

        `observation_space` and `action_space` are AgileRL's names of the spaces by agent.

        With `sample_hyperparameters` every team but the first starts from a draw of `hp_config`'s ranges. All other
        arguments are the constructor's.

        Raises:
            ConfigurationError: `size` is below 1, spaces are missing or given twice, or as the constructor.
        """
        observed = _one_of(observation_spaces=observation_spaces, observation_space=observation_space)
        acted = _one_of(action_spaces=action_spaces, action_space=action_space)
        return MultiAgentPopulation(
            make_members(cls, size, observed, acted, sample=sample_hyperparameters, settings=kwargs)
        )

    # -- genome and mutation

    @property
    def architecture(self) -> MultiAgentSpec:
        specs = {group: learner.architecture for group, learner in self.learners.items()}
        return MultiAgentSpec.by_group(specs, self.frozen_groups)

    def _read_architecture(self, config: Mapping[str, Any]) -> MultiAgentSpec:
        specs = {group: learner.read_architecture(config[group]) for group, learner in self.learners.items()}
        return MultiAgentSpec.by_group(specs, self.frozen_groups)

    @property
    def trained_learners(self) -> Mapping[str, PPOLearner]:
        return {group: its for group, its in self.learners.items() if group not in self.frozen_groups}

    def _mutate_learner(self, change: Mutation) -> Mutation:
        if change.kind == "parameters":
            done = {group: learner.mutate(change) for group, learner in self.trained_learners.items()}
            details = {f"{group}.{name}": x for group, one in done.items() for name, x in one.details.items()}
            return Mutation(change.kind, change.operator, details)
        if change.kind not in ("architecture", "activation"):
            return change
        group, operator = split_operator(change.operator)
        one = self.learners[group].mutate(Mutation(change.kind, operator, change.details))
        return Mutation(one.kind, change.operator, one.details)

    # -- hand-written loops

    def get_action(self, obs: Mapping[str, Any], infos: Mapping[str, Any] | None = None) -> ByAgent:
        """Act on observations by agent `[N, *shape]`: `(action, log_prob, entropy, value)`, each by agent `[N, …]`.

        As `PPO.get_action`; a single observation is a batch of one, and agents without an observation do not act.
        `infos[agent]` may have an `action_mask` `[N, choices]`, and `env_defined_actions` `[N, …]`, which replace the
        agent's actions where they are not NaN. It is for learning, without a hidden state: actions of a Box are not
        clipped, and are sampled until `set_training_mode(False)`; a trained team acts by `predict`.

        Raises:
            ConfigurationError: an unknown agent, or an observation or mask that does not fit.
        """
        self._check_hand_written("get_action")
        check_by_agent("obs", obs)
        check_by_agent("infos", {} if infos is None else infos)
        for agent in obs:
            self.get_group_id(agent)  # raises for an unknown agent
        return get_action_by_agent(self.agent_groups, self.learners, obs, infos or {})

    def predict(
        self,
        obs: Mapping[str, Any],
        state: Mapping[str, Any] | None = None,
        episode_start: Any = None,
        deterministic: bool = False,
        action_masks: Mapping[str, np.ndarray] | None = None,
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Act on observations by agent, `[N, *shape]` or single ones: `(actions, states)`, each by agent.

        As `PPO.predict` for each agent: actions are those of the environment, clipped to its bounds, and single where
        the observation is. The states of recurrent groups are passed to the next call; `episode_start` `[N]` is 1 where
        an episode begins. In training and evaluation an agent's state is zero until its first action of an episode, and
        an agent that waits for its turn after that sees its last observation in each env step: pass it here, too. An
        observation may have its mask under `action_mask`, as PettingZoo's environments give it; `action_masks` replace
        it.

        Raises:
            ConfigurationError: an unknown agent, a mask of an agent without an observation, or an observation, mask or
                state that does not fit.
        """
        state, masks = ({} if given is None else given for given in (state, action_masks))
        for name, given in (("obs", obs), ("state", state), ("action_masks", masks)):
            check_by_agent(name, given)
            for agent in given:
                if agent not in self.agent_ids:
                    raise unknown_name(f"{name} agent", agent, self.agent_ids)
        if unused := masks.keys() - obs.keys():
            raise ConfigurationError(
                f"action_masks has masks of {sorted(unused)}; allowed are those of agents in obs, {[*obs]}"
            )
        actions: dict[str, np.ndarray] = {}
        states: dict[str, Any] = {}
        for agent, observation in obs.items():
            group = self.get_group_id(agent)
            layout = self.agent_groups[group]
            observation, mask = layout.without_mask(observation)
            batch = layout.as_batch(agent, observation)
            _, is_single = layout.encoding.as_batch(observation)
            try:
                action, states[agent] = self.learners[group].predict(
                    layout.rows_of_agent(agent, batch),
                    state.get(agent),
                    episode_start,
                    deterministic,
                    mask if masks.get(agent) is None else masks[agent],
                )
            except ConfigurationError as error:
                raise ConfigurationError(f"agent {agent!r}: {error}") from error
            actions[agent] = action[0] if is_single else action
        return actions, states

    def learn(
        self,
        experiences: MultiAgentExperiences | None = None,
        action_masks: Mapping[str, Sequence[Any]] | None = None,
        acting: Mapping[str, Sequence[Any]] | None = None,
    ) -> dict[str, float]:
        """Do one PPO update of every group of which an agent acted, and return their mean losses.

        `experiences` are those of `PPO.learn`, each by agent, and so are `action_masks` and `acting`: flags `[N]` of
        the agents that were present, as `infos[agent]["acting"]` had them before the step. Without `acting` an agent is
        absent where its reward is NaN (AgileRL's placeholder), and acts everywhere else, even after its end;
        `train_multi_agent_on_policy` takes the flags from the env. The rewards are learned from as they are given: the
        settings `rewards` and `death` have no effect here, so add up a team's rewards in the loop.

        Raises:
            ConfigurationError: nothing to learn from, an agent that is missing, shapes that do not fit, or a group that
                is recurrent, whose hidden state has no place here.
            PopulationDivergedError: a group's update gave weights that are not finite; all groups were restored.
        """
        self._check_hand_written("learn")
        self.check_settings()  # attributes may have been set since the last update
        learners = self.trained_learners
        for group, learner in learners.items():
            if learner.recurrent:
                raise ConfigurationError(
                    f"group {group!r} is recurrent, and learn of a team has no hidden state; call "
                    f"team.learners[{group!r}].learn(experiences, hidden_state=…), or train with "
                    "train_multi_agent_on_policy"
                )
        parts = {
            group: experiences_of_group(self.agent_groups[group], experiences, action_masks, acting)
            for group in learners
        }
        with undone_on_error([*learners.values()]):
            losses = {group: learners[group].learn(**part._asdict()) for group, part in parts.items() if part.has_acted}
        if parts and not losses:
            raise ConfigurationError("experiences: acting is False everywhere; at least one step must have been taken")
        for group in parts.keys() - losses.keys():
            learners[group].skip_rollout(parts[group].rows)
        return losses

    def _check_hand_written(self, method: str) -> None:
        """Raise ConfigurationError if critics have observations that the arguments of hand-written loops lack."""
        if self.central_critics:
            raise ConfigurationError(
                f"{method} has no input for critic_observation={self.critic_observation!r}; allowed are "
                "train_multi_agent_on_policy, and team.predict"
            )

    def test(
        self,
        env: MultiAgentVectorEnv | ParallelEnv,
        swap_channels: bool = False,
        max_steps: int | None = None,
        loop: int = 3,
        sum_scores: bool = True,
        callback: EpisodeCallback | None = None,
    ) -> float | np.ndarray:
        """Return the mean return of the team in exactly `loop` episodes, on the same seeds at every call.

        It is the sum of all agents' returns (0 in zero-sum environments), and is appended to `fitness`; without
        `sum_scores` an array of each group's is returned, in the order of `groups`. Of an env with instances these are
        `loop` episodes on each, and the team's result is the `aggregate` of their means. The policy does not explore
        and nothing is learned. All groups act, frozen ones too; `play_games` plays with functions in the place of
        groups, as in training with `opponents`, and against other players. `max_steps` truncates longer episodes.
        `callback(score, info)` is called for each episode with the team's return and the infos of its last step, by
        agent, to which `episode_length` is added, in steps.

        Raises:
            ConfigurationError: `loop` is below 1, `swap_channels` is not the team's, or the env has other agents.
        """
        if self.swap_channels is not None and swap_channels != self.swap_channels:
            raise ConfigurationError(f"swap_channels={swap_channels!r}; this team was made with {self.swap_channels!r}")
        adapter = MultiAgentVecEnvAdapter(env if isinstance(env, MultiAgentVectorEnv) else single_env_vector(env))
        episodes = self._run_test(adapter, loop, max_steps, callback)
        self.fitness.append(tested_fitness(episodes, adapter.env))
        if sum_scores:
            return self.fitness[-1]
        by_agent = episodes.returns_by_agent  # without those that were lost, as in `mean`
        means = {agent: episodes._replace(returns=returns).mean[0] for agent, returns in by_agent.items()}
        return np.array([sum(means[agent] for agent in ids) for ids in self.groups.values()])

    def _check_env(self, env: MultiAgentVecEnvAdapter) -> None:
        check_agents(env, self.agent_groups.values())

    # -- copies and files

    def _check_equal_spaces(self, other: Any, where: str) -> None:
        super()._check_equal_spaces(other, where)
        found, wanted = (
            {
                "groups": dict(one.groups),
                "agent_id_one_hot": one.agent_id_one_hot,
                "critic_observation": one.critic_observation,
                "state_space": one.state_space,
            }
            for one in (other, self)
        )
        for name, value in found.items():  # these decide on the spaces of the groups' learners
            if value != wanted[name]:
                raise CheckpointError(f"path={where!r} was saved with {name}={value!r}; this team has {wanted[name]!r}")

    def _init_copy(self, other: IPPO, index: int, seed: int | None = None) -> None:
        seed = other.seed if seed is None else seed
        self._init_team(TeamSettings.of(other), **other._arguments(), index=index, seed=seed)
        self.learners = {group: learner.copy_for(self) for group, learner in other.learners.items()}

    def to_documents(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        document = {
            **self._metadata(),
            **NO_COUNTERS,
            **TeamSettings.of(self).to_document(),
            "learners": {group: {**NO_HISTORY, **learner.document()} for group, learner in self.learners.items()},
        }
        tensors = {
            f"{group}/{name}": x for group, learner in self.learners.items() for name, x in learner.tensors().items()
        }
        return document, tensors

    def _sections(self, document: Any, tensors: Any) -> dict[str, tuple[Any, Any]]:
        if {name.partition("/")[0] for name in tensors} != {*self.groups}:
            raise ValueError(f"the tensors are not those of groups {[*self.groups]!s:.200}")
        learners = document["learners"]
        return {group: (learners[group], with_prefix(tensors, f"{group}/")) for group in self.groups}

    @property
    def _custom_networks(self) -> Any:
        """The user's own networks by group, if there are any, whose code is not saved."""
        own = {group: learner.custom_networks for group, learner in self.learners.items()}
        return {group: spec for group, spec in own.items() if spec is not None} or None

    @classmethod
    def load(  # pyright: ignore[reportIncompatibleMethodOverride]  # more keywords
        cls,
        path: str | os.PathLike[str],
        device: str | torch.device = "cpu",
        accelerator: Any = None,
        *,
        actor_networks: Mapping[str, nn.Module] | None = None,
        critic_networks: Mapping[str, nn.Module] | None = None,
        **settings: Any,
    ) -> IPPO:
        """Load a team that `save_checkpoint` wrote, or the best one of a run or of a checkpoint of it.

        The user's own networks must be given again, of the same classes, whatever their weights and architecture.

        Raises:
            CheckpointError: the folder is missing, damaged or foreign, or was written with networks of your own.
            ConfigurationError: a setting is given; those of a loaded agent are attributes.
        """
        refuse_settings(settings, cls.algo)
        document, tensors = read_agent(path)
        own: Any = _own_networks(document, actor_networks, critic_networks, str(path))
        device = device_from(device, accelerator)
        return cls.from_documents(document, tensors, device=device, where=str(path), networks=own)

    @classmethod
    def _from_document(cls, document: Mapping[str, Any], device: str | torch.device, networks: Any) -> IPPO:
        team = cls.__new__(cls)
        team._init_team(
            TeamSettings.from_document(document),
            settings=validated(PPOConfig, document["settings"]),
            index=read_count(document, "index"),
            hp_config=HyperparameterConfig.from_json(document["hp_config"]),
            num_envs=read_count(document, "num_envs"),
            device=device,
            seed=read_count(document, "seed"),
        )
        for group, its in team.agent_groups.items():
            its_document = document["learners"][group]
            team.learners[group] = PPOLearner.from_document(
                team,
                team._learner_space(group),
                its.single_action_space,
                its_document,
                (networks or {}).get(group),
                team._group_settings(group),
                critic_entries=team._critic_entries,
            )
            team._check_learner(group, its_document)
        team.check()
        return team

    def _check_learner(self, group: str, document: Mapping[str, Any]) -> None:
        """Raise ValueError unless a learner's document is complete and agrees with its team's."""
        if document["algorithm"] != PPOLearner.algo or not NO_HISTORY.keys() <= document.keys():
            raise ValueError(f"learners: {group} is not a whole document of PPO")
        learner = self.learners[group]
        found = {
            **document["settings"],
            "index": document["index"],
            "num_envs": document["num_envs"],
            "hp_config": HyperparameterConfig.from_json(document["hp_config"]),
            **{name: read_space(document[name]) for name in ("observation_space", "action_space")},
        }
        names = found.keys() - document["settings"].keys()
        wanted = {name: learner.rows_per_step if name == "num_envs" else getattr(learner, name) for name in names}
        for name, value in {**to_builtin(settings_to_json(learner.settings())), **wanted}.items():
            if name in found and found[name] != value:
                raise ValueError(f"learners: {group}.{name}={found[name]!s:.100}; its team has {value!s:.100}")

    # -- AgileRL's other names

    @property
    def shared_agent_ids(self) -> list[str]:
        """The names of the groups."""
        return list(self.groups)

    @property
    def grouped_agents(self) -> dict[str, list[str]]:
        """The agents of each group."""
        return {group: list(ids) for group, ids in self.groups.items()}

    def has_grouped_agents(self) -> bool:
        """Whether agents share a policy."""
        return len(self.groups) < len(self.agent_ids)

    @property
    def possible_observation_spaces(self) -> dict[str, gymnasium.Space]:
        """The observation space of each agent."""
        return dict(self.observation_space.spaces)

    @property
    def possible_action_spaces(self) -> dict[str, gymnasium.Space]:
        """The action space of each agent."""
        return dict(self.action_space.spaces)

    @property
    def optimizer(self) -> dict[str, Adam]:
        """The optimizer's moments of each group; its name is assigned to change the setting."""
        return {group: learner.optimizer for group, learner in self.learners.items()}

    @optimizer.setter
    def optimizer(self, name: OptimizerName) -> None:
        self.optimizer_name = name

    @property
    def actors(self) -> dict[str, nn.Module]:
        """The policy network of each group."""
        return {group: learner.actor for group, learner in self.learners.items()}

    @property
    def critics(self) -> dict[str, nn.Module]:
        """The value network of each group."""
        return {group: learner.critic for group, learner in self.learners.items()}

    def get_policy(self) -> dict[str, nn.Module]:
        """The policy network of each group."""
        return self.actors

    def evolvable_attributes(self, networks_only: bool = False) -> dict[str, Any]:
        """Return what may evolve, by name: the networks, and the hyperparameters unless `networks_only`."""
        networks: dict[str, Any] = {"actors": self.actors, "critics": self.critics}
        return networks if networks_only else {**networks, **self.hyperparameters}


def _own_networks(
    document: Any, actors: Mapping[str, nn.Module] | None, critics: Mapping[str, nn.Module] | None, where: str
) -> dict[str, CustomSpec] | None:
    """Return the user's own networks by group of the team in a document, for `from_documents`; None without any.

    Raises:
        ConfigurationError: as `own_networks_by_group`.
        CheckpointError: the document, which is from `where`, is not that of a team.
    """
    if not actors and not critics:
        return None
    try:
        groups = read_multi_agent_spec(document).groups
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(f"path={where!r} does not fit together: {error!r:.500}") from error
    return own_networks_by_group(actors, critics, groups)


def _one_of(**spaces: Spaces | None) -> Spaces:
    """Return the spaces that are given under one of two names."""
    found = [given for given in spaces.values() if given is not None]
    if len(found) != 1:
        raise ConfigurationError(f"{' or '.join(spaces)} must be given, and only one of them; found are {len(found)}")
    return found[0]


class MultiAgentPopulation(BasePopulation[IPPO]):
    """P teams of the same agents, groups and run seed."""

    kind = IPPO

    @classmethod
    def load(  # pyright: ignore[reportIncompatibleMethodOverride]  # more keywords
        cls,
        path: str | os.PathLike[str],
        device: str | torch.device = "cpu",
        *,
        actor_networks: Mapping[str, nn.Module] | None = None,
        critic_networks: Mapping[str, nn.Module] | None = None,
    ) -> MultiAgentPopulation:
        """Load teams that `save_checkpoint` wrote, or those of a checkpoint, or the last ones of a run.

        The user's own networks must be given again, as to `IPPO.load`.

        Raises:
            CheckpointError: the folder is missing, damaged or foreign, or was written with networks of your own.
        """
        documents, tensors = read_population(path)
        own: Any = _own_networks(documents.get("member-000"), actor_networks, critic_networks, str(path))
        return cls.from_documents(documents, tensors, device=device, where=str(path), networks=own)

    def check_settings(self) -> None:
        super().check_settings()
        equal = "groups", "rewards", "death", "frozen_groups", "group_factors", "agent_id_one_hot", "state_space"
        for name in equal:
            for team in self.agents:
                if getattr(team, name) != getattr(self.agents[0], name):
                    raise ConfigurationError(
                        f"{name}={getattr(team, name)} must be equal for all teams of a population; another one has "
                        f"{getattr(self.agents[0], name)}"
                    )

    def team_settings(self) -> dict[str, Any]:
        first = self.agents[0]
        return {
            "groups": {agent: group for group, agents in first.groups.items() for agent in agents},
            "rewards": first.rewards,
            "death": first.death,
            "agent_id_one_hot": first.agent_id_one_hot,
            **({"frozen_groups": list(first.frozen_groups)} if first.frozen_groups else {}),
            **({"group_factors": first.group_factors} if first.group_factors else {}),
        }


Teams = MultiAgentPopulation
"""The former name of `MultiAgentPopulation`."""
