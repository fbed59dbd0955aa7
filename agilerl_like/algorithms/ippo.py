"""Independent PPO: a team of PPO learners, one for each group of agents, that lives and evolves as one individual.

Agents of a group share a policy; to their learner they are more envs of one row. So everything that is computed is
PPO's, and here is only the book that says whose rows are whose. See de Witt et al. 2020, arXiv:2011.09533.

The subtlety is the count of steps: a learner of A agents sees A rows in each step of each env, so its `learn_step` is A
times the team's, and all learners of a team are due at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar, get_args

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from agilerl_like.algorithms.agent import WEIGHT, read_architecture
from agilerl_like.algorithms.agent_groups import (
    Spaces,
    agent_ids_of,
    assign_groups,
    check_names,
    net_config_by_group,
    spaces_by_agent,
)
from agilerl_like.algorithms.evaluation import EpisodeCallback, GroupPolicy, report_episodes
from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm
from agilerl_like.algorithms.individuals import BasePopulation, make_members
from agilerl_like.algorithms.multi_agent_experiences import (
    ByAgent,
    MultiAgentExperiences,
    experiences_of_group,
    get_action_by_agent,
)
from agilerl_like.algorithms.population import Population
from agilerl_like.algorithms.ppo import PPO, check_rollout, fit_batch_to_rollout, with_int_dtype
from agilerl_like.algorithms.ppo_config import PPOConfig, validated
from agilerl_like.algorithms.serialization import read_count, read_multi_agent_spec, to_builtin, whole
from agilerl_like.envs.multi_agent.group_env import AgentGroup, Rewards, check_agents
from agilerl_like.envs.multi_agent.pettingzoo import MultiAgentVectorEnv, ParallelEnv, single_env_vector
from agilerl_like.envs.multi_agent.vec_adapter import MultiAgentVecEnvAdapter
from agilerl_like.envs.spaces import space_to_json
from agilerl_like.errors import ConfigurationError, check_argument_names, unknown_name
from agilerl_like.hpo import Genome, HyperparameterConfig, Mutation
from agilerl_like.learning.rollout import row_bytes
from agilerl_like.learning.team import Team
from agilerl_like.networks.custom import CustomSpec
from agilerl_like.networks.multi_agent_spec import MultiAgentSpec, split_operator
from agilerl_like.resources import check_memory
from agilerl_like.seeding import Purpose, integer, integers
from agilerl_like.storage.safe_folder import with_prefix

SETTINGS = tuple(PPOConfig.__dataclass_fields__)


class IPPO(EvolvableAlgorithm):
    """A team of independent PPO learners.

    Args:
        observation_spaces: by agent; or a list in the order of `agent_ids`.
        action_spaces: likewise.
        agent_ids: every agent that may appear; left out, the keys of the spaces.
        index: identity of the team in its population.
        hp_config: which numbers evolution may change, and in which range; they are common to the team.
        net_config: of `PPO`, for all groups, or by group.
        groups: the group of each agent; left out, what `group_of` says. Agents of a group need equal spaces and share
            a policy.
        rewards: what each agent learns from: what it earned itself ("individual"), or what all agents earned together
            ("sum") or on average ("mean").
        agent_id_one_hot: whether agents of a group observe who they are, so that one policy can tell them apart.
        num_envs: envs that this team acts in at once.
        device: where its tensors live.
        seed: names all its random streams; drawn from the operating system if left out.
        settings: those of `PPO`. `learn_step` counts env steps, in each of which every agent acts.

    Raises:
        ConfigurationError: a value is out of range, a key unknown, an agent without a space, or spaces that differ
            inside a group.
    """

    algo: ClassVar[str] = "IPPO"

    learn_step: int
    lr: float

    @check_argument_names
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
        agent_id_one_hot: bool = False,
        num_envs: int = 1,
        device: str | torch.device = "cpu",
        accelerator: Any = None,
        seed: int | None = None,
        **settings: Any,
    ) -> None:
        ids = tuple(agent_ids if agent_ids is not None else agent_ids_of(observation_spaces))
        check_names("agent_ids", ids)
        observed, acted = (
            spaces_by_agent(name, spaces, ids)
            for name, spaces in (("observation_spaces", observation_spaces), ("action_spaces", action_spaces))
        )
        self._start(
            observed,
            acted,
            settings=validated(PPOConfig, settings),
            groups=assign_groups(ids, groups, observed, acted),
            rewards=rewards,
            agent_id_one_hot=agent_id_one_hot,
            index=index,
            hp_config=hp_config,
            num_envs=num_envs,
            device=device if accelerator is None else accelerator.device,
            seed=seed,
        )
        row = sum(len(ids) * row_bytes(self.agent_groups[group].encoding) for group, ids in self.groups.items())
        check_memory(f"learn_step={self.learn_step}", self.learn_step, row, "env steps")
        configs = net_config_by_group(net_config, self.groups)
        self._check_rollouts()
        for number, (group, members) in enumerate(self.groups.items()):
            self.learners[group] = PPO.unbuilt(
                self.agent_groups[group].single_observation_space,
                self.agent_groups[group].single_action_space,
                index=index,
                hp_config=self._scaled_ranges(group),
                net_config=configs[group],
                num_envs=num_envs * len(members),
                device=self.device,
                seed=self._seed_of(number),
                settings={name: self._scaled(name, getattr(self, name), group) for name in SETTINGS},
            )
        self._check_size()
        for learner in self.learners.values():
            learner._make_network()

    def _check_size(self) -> None:
        """Raise ConfigurationError unless there is memory for the networks of all groups together."""
        weights = {group: learner.planned_weights() for group, learner in self.learners.items()}
        sizes = ", ".join(f"{group}: {count}" for group, count in weights.items())
        check_memory(
            f"net_config: the networks of all groups have weights ({sizes}) and",
            sum(weights.values()),
            WEIGHT,
            "weights",
        )

    def _start(
        self,
        observation_spaces: Mapping[str, gymnasium.Space],
        action_spaces: Mapping[str, gymnasium.Space],
        *,
        settings: PPOConfig,
        groups: Mapping[str, tuple[str, ...]],
        rewards: Rewards,
        agent_id_one_hot: bool,
        index: int,
        hp_config: HyperparameterConfig | None,
        num_envs: int,
        device: str | torch.device,
        seed: int | None,
    ) -> None:
        self.learners: dict[str, PPO] = {}
        """The learner of each group."""
        super().__init__(
            gymnasium.spaces.Dict(dict(observation_spaces)),
            gymnasium.spaces.Dict(dict(action_spaces)),
            index=index,
            hp_config=with_int_dtype(hp_config),
            device=device,
            seed=seed,
        )
        self.agent_ids = tuple(observation_spaces)
        self.groups = MappingProxyType(dict(groups))
        """The agents of each group."""
        if rewards not in get_args(Rewards):
            raise unknown_name("rewards", rewards, get_args(Rewards))
        if not isinstance(agent_id_one_hot, bool):
            raise ConfigurationError(f"agent_id_one_hot={agent_id_one_hot!r} must be True or False")
        self.rewards: Rewards = rewards
        self.agent_id_one_hot = agent_id_one_hot
        self.agent_groups = {
            group: AgentGroup(ids, observation_spaces[ids[0]], action_spaces[ids[0]], agent_id_one_hot=agent_id_one_hot)
            for group, ids in self.groups.items()
        }
        """What the learner of each group sees of its agents."""
        self.num_envs = to_builtin(num_envs)
        for name in SETTINGS:
            setattr(self, name, getattr(settings, name))

    def __setattr__(self, name: str, value: Any) -> None:
        """Numbers may be set at any time, and count for every learner."""
        super().__setattr__(name, value)
        if name in SETTINGS or name in ("num_envs", "progress"):
            for group, learner in self.learners.items():
                setattr(learner, name, self._scaled(name, value, group))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "groups": dict(self.groups)}  # a proxy can be neither copied nor pickled

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, groups=MappingProxyType(state["groups"]))

    def _seed_of(self, number: int) -> int:
        """The run seed of a group's learner."""
        return integer(self.seed, Purpose.GROUP, number)

    def _scaled(self, name: str, value: Any, group: str) -> Any:
        """A setting as a group's learner has it: what counts rows counts all of its agents'."""
        return value * len(self.groups[group]) if name in ("learn_step", "num_envs") else value

    def _scaled_ranges(self, group: str) -> HyperparameterConfig:
        scale = len(self.groups[group])
        return HyperparameterConfig(
            **{
                name: replace(r, min=r.min * scale, max=r.max * scale, scale="linear") if name == "learn_step" else r
                for name, r in self.hp_config.items()
            }
        )

    def get_group_id(self, agent_id: str) -> str:
        """Whose policy an agent has: the name of its group.

        Raises:
            ConfigurationError: there is no such agent.
        """
        for group, ids in self.groups.items():
            if agent_id in ids:
                return group
        raise unknown_name("agent_id", agent_id, self.agent_ids)

    def learner_of(self, agent_id: str) -> PPO:
        """Who decides for an agent; ConfigurationError if there is no such agent."""
        return self.learners[self.get_group_id(agent_id)]

    @classmethod
    @check_argument_names
    def population(
        cls,
        size: int,
        observation_spaces: Spaces,
        action_spaces: Spaces,
        *,
        sample_hyperparameters: bool = False,
        **kwargs: Any,
    ) -> MultiAgentPopulation:
        """Make a population of `size` teams of one run seed, each with weights and random streams of its own.

        With `sample_hyperparameters` every team but the first starts from a draw of `hp_config`'s ranges.
        All other arguments are the constructor's.

        Raises:
            ConfigurationError: `size` is below 1, or as the constructor.
        """
        return MultiAgentPopulation(
            make_members(cls, size, observation_spaces, action_spaces, sample=sample_hyperparameters, settings=kwargs)
        )

    # -- the team as one

    @property
    def architecture(self) -> MultiAgentSpec:  # pyright: ignore[reportIncompatibleVariableOverride]  # derived, not set
        """What its networks are."""
        return MultiAgentSpec.by_group({group: learner.architecture for group, learner in self.learners.items()})

    @property
    def parameter_count(self) -> int:
        return sum(learner.parameter_count for learner in self.learners.values())

    @property
    def footprint(self) -> int:
        return sum(learner.footprint for learner in self.learners.values())

    @property
    def is_finite(self) -> bool:
        return all(learner.is_finite for learner in self.learners.values())

    @property
    def custom_networks(self) -> CustomSpec | None:
        return None

    def settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in SETTINGS}

    def team_settings(self) -> dict[str, Any]:
        homes = {agent: group for group, agents in self.groups.items() for agent in agents}
        return {"groups": homes, "rewards": self.rewards, "agent_id_one_hot": self.agent_id_one_hot}

    def repair(self, hyperparameters: dict[str, int | float]) -> dict[str, int | float]:
        """As `PPO.repair`; the smallest group has the shortest rollout."""
        return fit_batch_to_rollout(hyperparameters, self.hp_config, self.num_envs, min(map(len, self.groups.values())))

    def _check_rollouts(self) -> None:
        """In the team's own numbers: its learners count every agent's steps."""
        for group, members in self.groups.items():
            check_rollout(self, len(members), f", agents of {group!r} in each: {len(members)}")

    def check(self) -> None:
        self._check_rollouts()
        for learner in self.learners.values():
            learner.check()

    def reinitialize(self) -> None:
        for learner in self.learners.values():
            learner.reinitialize()

    def set_training_mode(self, training: bool) -> None:
        self.training = training
        for learner in self.learners.values():
            learner.set_training_mode(training)

    def advance_rng(self) -> None:
        super().advance_rng()
        for learner in self.learners.values():
            learner.advance_rng()

    def finish_blend(self) -> None:
        for learner in self.learners.values():
            learner.finish_blend()

    def genome_to_json(self, genome: Genome) -> dict[str, Any]:
        return {"hyperparameters": dict(genome.hyperparameters), "architecture": genome.architecture.to_config()}  # pyright: ignore[reportAttributeAccessIssue]  # a MultiAgentSpec

    def genome_from_json(self, data: Mapping[str, Any]) -> Genome:
        specs = {
            group: read_architecture(
                data["architecture"][group], learner.encoding, recurrent=learner.recurrent, networks=None
            )
            for group, learner in self.learners.items()
        }
        return Genome(data["hyperparameters"], MultiAgentSpec.by_group(specs))

    def assign(self, hyperparameters: Mapping[str, int | float]) -> None:
        for group, learner in self.learners.items():
            learner.assign({name: self._scaled(name, value, group) for name, value in hyperparameters.items()})
        super().assign(hyperparameters)

    def _carry_out(self, change: Mutation) -> Mutation:
        if change.kind == "parameters":
            done = {group: learner._carry_out(change) for group, learner in self.learners.items()}
            details = {f"{group}.{name}": x for group, one in done.items() for name, x in one.details.items()}
            return Mutation(change.kind, change.operator, details)
        if change.kind not in ("architecture", "activation"):
            return change
        group, operator = split_operator(change.operator)
        done_there = self.learners[group]._carry_out(Mutation(change.kind, operator, change.details))
        return Mutation(done_there.kind, change.operator, done_there.details)

    # -- acting, learning and testing by hand

    def get_action(self, obs: Mapping[str, Any], infos: Mapping[str, Any] | None = None) -> ByAgent:
        """Act on observations by agent `[N, *shape]`: `(action, log_prob, entropy, value)`, each by agent `[N, …]`.

        As `PPO.get_action`; a single observation is a batch of one, and agents that observe nothing are not asked.
        `infos[agent]` may have an `action_mask` `[N, choices]`, and `env_defined_actions` `[N, …]`, which are what the
        agent does wherever they are not nan. Of what was seen before nothing is remembered.

        Raises:
            ConfigurationError: an unknown agent, or an observation or mask that does not fit.
        """
        for agent in obs:
            self.get_group_id(agent)  # raises for an unknown agent
        return get_action_by_agent(self.agent_groups, self.learners, obs, infos or {})

    def learn(
        self,
        experiences: MultiAgentExperiences | None = None,
        action_masks: Mapping[str, Sequence[Any]] | None = None,
        acting: Mapping[str, Sequence[Any]] | None = None,
    ) -> dict[str, float]:
        """Do one PPO update of every group and return their mean losses.

        `experiences` are those of `PPO.learn`, each by agent, and so are `action_masks` and `acting`: flags `[N]` of
        the agents that were there to act, as `infos[agent]["acting"]` had them before the step. Without it an agent is
        absent where its reward is NaN (AgileRL's placeholder), and counts as acting everywhere else, dead or not.
        `train_multi_agent_on_policy` finds out by itself.

        Raises:
            ConfigurationError: nothing to learn from, an agent that is missing, or shapes that do not fit.
            PopulationDivergedError: the update of a group left weights that are not finite; they were put back.
        """
        return {
            group: learner.learn(
                **experiences_of_group(self.agent_groups[group], experiences, action_masks, acting)._asdict()
            )
            for group, learner in self.learners.items()
        }

    def test(
        self,
        env: MultiAgentVectorEnv | ParallelEnv,
        swap_channels: bool = False,
        max_steps: int | None = None,
        loop: int = 3,
        sum_scores: bool = True,
        callback: EpisodeCallback | None = None,
    ) -> float | np.ndarray:
        """Return what the team earned on average in exactly `loop` episodes, on the same seeds at every call.

        That is the sum of all agents, and is appended to `fitness`; without `sum_scores` it is returned group by group.
        The policy does not explore and nothing is learned. `max_steps` cuts longer episodes. `callback(score, info)` is
        called for each episode with what the team earned and the infos that the env gave in its last step, by agent, to
        which `episode_length` is added, in steps.
        """
        if loop < 1:
            raise ConfigurationError(f"loop={loop!r} must be at least 1")
        made_with = self.settings()["swap_channels"]
        if made_with is not None and swap_channels != made_with:
            raise ConfigurationError(f"swap_channels={swap_channels!r}; this team was made with {made_with!r}")
        adapter = MultiAgentVecEnvAdapter(env if isinstance(env, MultiAgentVectorEnv) else single_env_vector(env))
        seeds = integers(loop, self.seed, Purpose.EVALUATION_ENVS)
        episodes = self.run_episodes(adapter, seeds, max_steps, with_infos=callback is not None)
        report_episodes(episodes, callback)
        self.fitness.append(float(episodes.means[0]))
        if sum_scores:
            return self.fitness[-1]
        by_agent = episodes.returns_by_agent
        return np.array([sum(by_agent[agent].mean() for agent in ids) for ids in self.groups.values()])

    # -- testing

    @property
    def group_policies(self) -> dict[str, GroupPolicy]:
        return {
            group: learner.group_policies[""]._replace(layout=self.agent_groups[group])
            for group, learner in self.learners.items()
        }

    def check_env(self, env: MultiAgentVecEnvAdapter) -> None:
        check_agents(env, self.agent_groups.values())

    # -- copies

    def _blank(self, index: int) -> IPPO:
        copy = type(self).__new__(type(self))
        copy._start(
            *(
                {agent: space[agent] for agent in self.agent_ids}
                for space in (self.observation_space, self.action_space)
            ),
            settings=PPOConfig(**self.settings()),
            groups=self.groups,
            rewards=self.rewards,
            agent_id_one_hot=self.agent_id_one_hot,
            index=index,
            hp_config=self.hp_config,
            num_envs=self.num_envs,
            device=self.device,
            seed=self.seed,
        )
        return copy

    def _inherit(self, other: IPPO) -> None:
        super()._inherit(other)
        self.learners = {group: other.learners[group]._heir(self.index) for group in self.groups}

    def _move_out(self) -> None:
        for learner in self.learners.values():
            learner._move_out()

    # -- saving

    def to_documents(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Everything about this team: its own facts, and each learner's documents and tensors by its group."""
        saved = {group: learner.to_documents() for group, learner in self.learners.items()}
        document = {
            **self.facts(),
            "agent_ids": list(self.agent_ids),
            "groups": [[group, list(ids)] for group, ids in self.groups.items()],  # a mapping's order would be lost
            "spaces": {
                group: [space_to_json(space[ids[0]]) for space in (self.observation_space, self.action_space)]
                for group, ids in self.groups.items()
            },
            "rewards": self.rewards,
            "agent_id_one_hot": self.agent_id_one_hot,
            "learners": {group: its_document for group, (its_document, _) in saved.items()},
        }
        return document, {f"{group}/{name}": x for group, (_, tensors) in saved.items() for name, x in tensors.items()}

    def _take_after(self, other: IPPO) -> None:
        """Its learners stay too: a population may hold them."""
        learners = {group: self.learners.get(group, learner) for group, learner in other.learners.items()}
        super()._take_after(other)
        self.learners = learners
        for number, (group, learner) in enumerate(learners.items()):
            learner.index, learner.seed = self.index, self._seed_of(number)
            learner._take_after(other.learners[group])

    @classmethod
    def _from_document(
        cls, document: Mapping[str, Any], device: str | torch.device, networks: CustomSpec | None
    ) -> IPPO:
        book = read_multi_agent_spec(document)
        team = cls.__new__(cls)
        team._start(
            book.observation_spaces,
            book.action_spaces,
            settings=validated(PPOConfig, document["settings"]),
            groups=book.groups,
            rewards=document["rewards"],
            agent_id_one_hot=document["agent_id_one_hot"],
            index=whole("index", document["index"]),
            hp_config=HyperparameterConfig.from_json(document["hp_config"]),
            num_envs=read_count(document, "num_envs"),
            device=device,
            seed=whole("seed", document["seed"]),
        )
        return team

    def _compare(self, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self.hp_config.check(self.hyperparameters)
        if {name.partition("/")[0] for name in tensors} != {*self.groups}:
            raise ValueError(f"the tensors are not those of groups {[*self.groups]!s:.200}")
        for group in self.groups:
            its_document = document["learners"][group]
            self.learners[group] = PPO.without_weights(its_document, self.device)
            self._check_learner(group)
            self.learners[group]._compare(its_document, with_prefix(tensors, f"{group}/"))

    def _check_learner(self, group: str) -> None:
        """Raise ValueError unless a learner is one of this team's."""
        wanted = {
            "index": self.index,
            "hp_config": self._scaled_ranges(group),
            "observation_space": self.agent_groups[group].single_observation_space,
            "action_space": self.agent_groups[group].single_action_space,
            **{name: self._scaled(name, getattr(self, name), group) for name in ("num_envs", "learn_step")},
        }
        for name, value in wanted.items():
            found = getattr(self.learners[group], name)
            if found != value:
                raise ValueError(f"learners: {group}.{name}={found!s:.100}; that of its team is {value!s:.100}")

    def _fill(self, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self.load_metadata(document)
        for group, learner in self.learners.items():
            learner._fill(document["learners"][group], with_prefix(tensors, f"{group}/"))

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
        """What each agent may observe."""
        return dict(self.observation_space.spaces)

    @property
    def possible_action_spaces(self) -> dict[str, gymnasium.Space]:
        """What each agent may do."""
        return dict(self.action_space.spaces)

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
        """What evolution may change, by name: the networks, and the hyperparameters unless `networks_only`."""
        networks: dict[str, Any] = {"actors": self.actors, "critics": self.critics}
        return networks if networks_only else {**networks, **self.hyperparameters}


class MultiAgentPopulation(BasePopulation[IPPO]):
    """P teams of the same agents, groups and run seed."""

    kind = IPPO

    def __init__(self, agents: Iterable[IPPO]) -> None:
        super().__init__(agents)
        for name in ("groups", "rewards", "agent_id_one_hot"):
            for team in self.agents:
                if getattr(team, name) != getattr(self.agents[0], name):
                    raise ConfigurationError(
                        f"{name}={getattr(team, name)} must be that of every team of a population; another one has "
                        f"{getattr(self.agents[0], name)}"
                    )
        self._by_group = {
            group: Population([team.learners[group] for team in self.agents]) for group in self.agents[0].groups
        }

    @property
    def by_group(self) -> dict[str, Population]:
        """The learners of each group, in the order of their teams."""
        return self._by_group

    def join(self, team: Team) -> None:
        super().join(team)
        for learners in self.by_group.values():
            learners.join(team)

    def set_training_mode(self, training: bool) -> None:
        for team in self.agents:
            team.training = training
        for learners in self.by_group.values():
            learners.set_training_mode(training)

    def reset_noise(self) -> None:
        for learners in self.by_group.values():
            learners.reset_noise()

    def set_members(self, heirs: list[IPPO]) -> None:
        self.agents = heirs
        for group, learners in self.by_group.items():
            learners.set_members([team.learners[group] for team in heirs])

    @property
    def group_policies(self) -> dict[str, GroupPolicy]:
        return {
            group: learners.group_policies[""]._replace(layout=self.agents[0].agent_groups[group])
            for group, learners in self.by_group.items()
        }


Teams = MultiAgentPopulation
"""The former name of `MultiAgentPopulation`."""
