"""Independent PPO: a team of PPO learners, one for each group of agents, that lives and evolves as one individual.

Agents of a group share a policy; to their learner they are more envs of one row. So everything that is computed is
PPO's, and here is only the book that says whose rows are whose. See de Witt et al. 2020, arXiv:2011.09533.

The subtlety is the count of steps: a learner of A agents sees A rows in each step of each env, so its `learn_step` is A
times the team's, and all learners of a team are due at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar, cast

import gymnasium
import torch
from torch import Tensor

from agilerl_like.algorithms.agent import read_architecture
from agilerl_like.algorithms.evaluation import Episodes
from agilerl_like.algorithms.groups import Spaces, by_agent, by_group, grouped, keys_of
from agilerl_like.algorithms.individual import Individual
from agilerl_like.algorithms.individuals import Individuals, siblings
from agilerl_like.algorithms.population import Population
from agilerl_like.algorithms.ppo import PPO, repaired, typed
from agilerl_like.algorithms.settings import PPOSettings, validated
from agilerl_like.algorithms.stored import count_in, whole
from agilerl_like.algorithms.team_evaluation import Brain, Policy, evaluate_teams
from agilerl_like.envs.spaces import space_from_json
from agilerl_like.envs.team_transitions import TeamTransitionEnv
from agilerl_like.errors import unknown_name
from agilerl_like.hpo import Genome, HyperparameterConfig, Mutation
from agilerl_like.learning.team import Team
from agilerl_like.networks.custom import CustomSpec
from agilerl_like.networks.team import TeamSpec, split
from agilerl_like.seeding import Purpose, integer

SETTINGS = tuple(PPOSettings.__dataclass_fields__)


class IPPO(Individual):
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
        num_envs: envs that this team acts in at once.
        device: where its tensors live.
        seed: names all its random streams; drawn from the operating system if left out.
        settings: those of `PPO`. `learn_step` counts env steps, in each of which every agent acts.

    Raises:
        ConfigurationError: a value is out of range, a key unknown, an agent without a space, or spaces that differ
            inside a group.
    """

    algo: ClassVar[str] = "IPPO"

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
        num_envs: int = 1,
        device: str | torch.device = "cpu",
        accelerator: Any = None,
        seed: int | None = None,
        **settings: Any,
    ) -> None:
        ids = tuple(agent_ids if agent_ids is not None else keys_of(observation_spaces))
        observed, acted = (
            by_agent(name, spaces, ids)
            for name, spaces in (("observation_spaces", observation_spaces), ("action_spaces", action_spaces))
        )
        self._start(
            observed,
            acted,
            settings=validated(PPOSettings, settings),
            groups=grouped(ids, groups, observed, acted),
            index=index,
            hp_config=hp_config,
            num_envs=num_envs,
            device=device if accelerator is None else accelerator.device,
            seed=seed,
        )
        configs = by_group(net_config, self.groups)
        for number, (group, members) in enumerate(self.groups.items()):
            self.learners[group] = PPO(
                observed[members[0]],
                acted[members[0]],
                index=index,
                hp_config=self._scaled_ranges(group),
                net_config=configs[group],
                num_envs=num_envs * len(members),
                device=self.device,
                seed=integer(self.seed, Purpose.GROUP, number),
                **{name: self._scaled(name, getattr(self, name), group) for name in SETTINGS},
            )

    def _start(
        self,
        observation_spaces: Mapping[str, gymnasium.Space],
        action_spaces: Mapping[str, gymnasium.Space],
        *,
        settings: PPOSettings,
        groups: Mapping[str, tuple[str, ...]],
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
            hp_config=typed(hp_config),
            device=device,
            seed=seed,
        )
        self.agent_ids = tuple(observation_spaces)
        self.groups = MappingProxyType(dict(groups))
        """The agents of each group."""
        self.num_envs = num_envs
        for name in SETTINGS:
            setattr(self, name, getattr(settings, name))

    def __setattr__(self, name: str, value: Any) -> None:
        """Numbers may be set at any time, and count for every learner."""
        super().__setattr__(name, value)
        if name in SETTINGS or name == "num_envs":
            for group, learner in self.learners.items():
                setattr(learner, name, self._scaled(name, value, group))

    def _scaled(self, name: str, value: Any, group: str) -> Any:
        """A setting as a group's learner has it: what counts rows counts all of its agents'."""
        return value * len(self.groups[group]) if name in ("learn_step", "num_envs") else value

    def _scaled_ranges(self, group: str) -> HyperparameterConfig:
        scale = len(self.groups[group])
        return HyperparameterConfig(
            **{
                name: replace(r, min=r.min * scale, max=r.max * scale) if name == "learn_step" else r
                for name, r in self.hp_config.items()
            }
        )

    def learner_of(self, agent_id: str) -> PPO:
        """Who decides for an agent.

        Raises:
            ConfigurationError: there is no such agent.
        """
        for group, ids in self.groups.items():
            if agent_id in ids:
                return self.learners[group]
        raise unknown_name("agent_id", agent_id, self.agent_ids)

    @classmethod
    def population(
        cls,
        size: int,
        observation_spaces: Spaces,
        action_spaces: Spaces,
        *,
        sample_hyperparameters: bool = False,
        **kwargs: Any,
    ) -> Teams:
        """Make a population of `size` teams of one run seed, each with weights and random streams of its own.

        With `sample_hyperparameters` each team starts from a draw of `hp_config`'s ranges instead of the values given.
        All other arguments are the constructor's.

        Raises:
            ConfigurationError: `size` is below 1, or as the constructor.
        """
        return Teams(
            siblings(cls, size, observation_spaces, action_spaces, sample=sample_hyperparameters, settings=kwargs)
        )

    # -- the team as one

    @property
    def architecture(self) -> TeamSpec:  # pyright: ignore[reportIncompatibleVariableOverride]  # derived, not set
        """What its networks are."""
        return TeamSpec.by_group({group: learner.architecture for group, learner in self.learners.items()})

    @property
    def parameter_count(self) -> int:
        return sum(learner.parameter_count for learner in self.learners.values())

    @property
    def is_finite(self) -> bool:
        return all(learner.is_finite for learner in self.learners.values())

    @property
    def networks_of_its_own(self) -> CustomSpec | None:
        return None

    def settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in SETTINGS}

    def repair(self, hyperparameters: dict[str, int | float]) -> dict[str, int | float]:
        return repaired(hyperparameters, self.hp_config, self.num_envs)

    def check(self) -> None:
        for learner in self.learners.values():
            learner.check()

    def begin_anew(self) -> None:
        for learner in self.learners.values():
            learner.begin_anew()

    def set_training_mode(self, training: bool) -> None:
        self.training = training
        for learner in self.learners.values():
            learner.set_training_mode(training)

    def settle(self) -> None:
        for learner in self.learners.values():
            learner.settle()

    def genome_to_json(self, genome: Genome) -> dict[str, Any]:
        return {"hyperparameters": dict(genome.hyperparameters), "architecture": genome.architecture.to_config()}  # pyright: ignore[reportAttributeAccessIssue]  # a TeamSpec

    def genome_from_json(self, data: Mapping[str, Any]) -> Genome:
        specs = {
            group: read_architecture(
                data["architecture"][group], learner.encoding, recurrent=learner.recurrent, networks=None
            )
            for group, learner in self.learners.items()
        }
        return Genome(data["hyperparameters"], TeamSpec.by_group(specs))

    def _carry_out(self, change: Mutation) -> Mutation:
        if change.kind == "parameters":
            done = {group: learner._carry_out(change) for group, learner in self.learners.items()}
            details = {f"{group}.{name}": x for group, one in done.items() for name, x in one.details.items()}
            return Mutation(change.kind, change.operator, details)
        if change.kind not in ("architecture", "activation"):
            return change
        group, operator = split(change.operator)
        done_there = self.learners[group]._carry_out(Mutation(change.kind, operator, change.details))
        return Mutation(done_there.kind, change.operator, done_there.details)

    # -- testing

    def play(self, env: TeamTransitionEnv, seeds: list[int], max_steps: int | None = None) -> Episodes:
        training = self.training
        self.set_training_mode(False)
        try:
            brains = {
                group: Brain(learner.best_actions, learner, learner.nothing) for group, learner in self.learners.items()
            }
            return evaluate_teams(brains, self.groups, env, seeds, members=1, max_steps=max_steps)
        finally:
            self.set_training_mode(training)

    # -- copies

    def _blank(self, index: int) -> IPPO:
        copy = type(self).__new__(type(self))
        copy._start(
            *(
                {agent: space[agent] for agent in self.agent_ids}
                for space in (self.observation_space, self.action_space)
            ),
            settings=PPOSettings(**self.settings()),
            groups=self.groups,
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
            "learners": {group: its_document for group, (its_document, _) in saved.items()},
        }
        return document, {f"{group}/{name}": x for group, (_, tensors) in saved.items() for name, x in tensors.items()}

    @classmethod
    def _from_document(
        cls, document: Mapping[str, Any], device: str | torch.device, networks: CustomSpec | None
    ) -> IPPO:
        learners = document["learners"]
        groups = {group: tuple(map(str, ids)) for group, ids in document["groups"]}
        if set(groups) != set(learners):
            raise ValueError(f"groups {sorted(groups)} are not those of learners {sorted(learners)}")
        home = {agent: group for group, ids in groups.items() for agent in ids}
        spaces = [
            {agent: space_from_json(learners[home[agent]][kind]) for agent in document["agent_ids"]}
            for kind in ("observation_space", "action_space")
        ]
        team = cls.__new__(cls)
        team._start(
            *spaces,
            settings=validated(PPOSettings, document["settings"]),
            groups=groups,
            index=whole("index", document["index"]),
            hp_config=HyperparameterConfig.from_json(document["hp_config"]),
            num_envs=count_in(document, "num_envs"),
            device=device,
            seed=whole("seed", document["seed"]),
        )
        return team

    def _fill(self, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self.recall(document)
        self.learners = {
            group: PPO.from_documents(
                document["learners"][group], Named(tensors, f"{group}/"), device=self.device, where=f"learner {group}"
            )
            for group in self.groups
        }


class Teams(Individuals[IPPO]):
    """P teams of the same agents, groups and run seed."""

    kind = IPPO

    def __init__(self, agents: Iterable[IPPO]) -> None:
        super().__init__(agents)
        self.by_group = {
            group: Population([team.learners[group] for team in self.agents]) for group in self.agents[0].groups
        }
        """The learners of each group, in the order of their teams."""

    def __repr__(self) -> str:
        return f"Teams({len(self)} x {self.agents[0].algo} of {', '.join(self.by_group)})"

    def join(self, team: Team) -> None:
        super().join(team)
        for learners in self.by_group.values():
            learners.join(team)

    def set_training_mode(self, training: bool) -> None:
        for team in self.agents:
            team.training = training
        for learners in self.by_group.values():
            learners.set_training_mode(training)

    def forget_noise(self) -> None:
        for learners in self.by_group.values():
            learners.forget_noise()

    def take_over(self, heirs: list[IPPO]) -> None:
        self.agents = heirs
        for group, learners in self.by_group.items():
            learners.take_over([team.learners[group] for team in heirs])

    def play(self, env: TeamTransitionEnv, seeds: Sequence[int], max_steps: int | None = None) -> Episodes:
        training = self.agents[0].training
        self.set_training_mode(False)
        try:
            brains = {
                group: Brain(self._policy(learners), cast(PPO, learners[0]), learners.nothing)
                for group, learners in self.by_group.items()
            }
            return evaluate_teams(brains, self.agents[0].groups, env, seeds, members=len(self), max_steps=max_steps)
        finally:
            self.set_training_mode(training)

    def _policy(self, learners: Population) -> Policy:
        shape = len(self), -1

        def policy(encoded: Tensor, mask: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
            its_mask = None if mask is None else mask.unflatten(0, shape)
            actions, after = learners.act(encoded.unflatten(0, shape), state.unflatten(0, shape), its_mask)
            return learners.to_env(actions), after.flatten(0, 1)

        return policy


class Named(Mapping[str, Tensor]):
    """The tensors of one learner among those of a team."""

    def __init__(self, tensors: Mapping[str, Tensor], prefix: str) -> None:
        self._tensors, self._prefix = tensors, prefix

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[self._prefix + name]

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix(self._prefix) for name in self._tensors if name.startswith(self._prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)
