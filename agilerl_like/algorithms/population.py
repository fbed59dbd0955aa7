"""A population: a sequence of agents that act, learn, are tested and evolve as one.

Its members are computed together by one cohort. `act` takes and gives `[P, E, …]` in the order of the members.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import gymnasium
import torch
from torch import Tensor, nn

from agilerl_like.algorithms.agent import Agent, custom_spec, values_of
from agilerl_like.algorithms.evaluation import GroupPolicy
from agilerl_like.algorithms.individuals import BasePopulation
from agilerl_like.algorithms.serialization import read_population
from agilerl_like.learning.apart import Apart
from agilerl_like.learning.cohort import Cohort
from agilerl_like.learning.rollout import Rollout
from agilerl_like.learning.sequences import Cut
from agilerl_like.learning.team import Team
from agilerl_like.learning.update import Report

NOISE_TICKS = 128
"""Steps for which action noise is drawn at once."""


class Population(BasePopulation[Agent]):
    """P agents with one actor and one critic each."""

    kind = Agent

    def __init__(self, agents: Iterable[Agent]) -> None:
        super().__init__(agents)
        self._cohort: Cohort | Apart | None = None
        self._noise: tuple[Tensor, int] | None = None
        self._newcomers: set[int] = set()
        """Places of those who have yet to bring noise of their own into what was drawn for the others."""

    def __getstate__(self) -> dict[str, Any]:
        """What `copy` and `pickle` take of it: the copies of its members have a cohort yet to come."""
        return {**vars(self), "_cohort": None}

    @property
    def by_group(self) -> dict[str, Population]:
        """This population: the only group, without a name."""
        return {"": self}

    # -- the cohort

    @property
    def cohort(self) -> Cohort | Apart:
        """What computes the members, together or apart; made again where one has changed its structure or network."""
        homes = [] if self._cohort is None else self._cohort.homes
        if len(homes) != len(self) or not all(map(Agent.is_attached, self.agents, homes)):
            self._cohort = self._settle()
        return cast(Cohort, self._cohort)

    def _settle(self) -> Cohort | Apart:
        return Apart([_home([agent], self.team) for agent in self]) if self._is_apart else _home(self, self.team)

    @property
    def _is_apart(self) -> bool:
        return self.agents[0].execution.per_member

    def set_training_mode(self, training: bool) -> None:
        """Switch every member between exploring and acting as well as it can."""
        self.cohort.train(training)
        for agent in self.agents:
            agent.set_training_mode(training)

    # -- acting

    def act(
        self, observations: Tensor, state: Tensor, mask: Tensor | None = None, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Raw actions `[P, E, A]` for encoded observations `[P, E, D]` and masks `[P, E, choices]`.

        `state` `[P, E, M, K, H]` is what is remembered of the episode so far; what is remembered then comes back with
        the actions. Without noise `[P, E, …]` they are the most likely ones.
        """
        return self.cohort.act(observations, state, noise, mask)

    @property
    def initial_hidden_state(self) -> Tensor:
        """What is remembered when an episode begins: zeros `[M, K, H]`, with room for what any member remembers."""
        return torch.zeros(self.cohort.state_shape, dtype=self.agents[0].network.dtype, device=self.device)

    def next_noise(self, envs: int) -> Tensor:
        """The action noise `[P, E, …]` of the next step, from each member's own stream."""
        block, used = self._noise or (None, 0)
        if block is not None and block.shape[2] != envs:
            block = None
        if block is None or used == len(block):
            last: list[Tensor | None] = [None] * len(self) if block is None else [*block[-1]]
            for place in self._newcomers:
                last[place] = None
            blocks = [_noise_block(agent, envs, before) for agent, before in zip(self.agents, last, strict=True)]
            block, used = torch.stack(blocks, 1), 0
        else:
            for place in self._newcomers:
                block[:, place] = _noise_block(self.agents[place], envs, None)
        self._noise, self._newcomers = (block, used + 1), set()
        return block[used]

    def reset_noise(self) -> None:
        self._noise = None

    def to_env(self, raw: Tensor) -> Tensor:
        """The env's actions `[P E, …]` for raw actions `[P, E, A]`, on the device."""
        in_env = self.agents[0].distribution.in_env
        if self._is_apart:  # even what is done number by number may be done otherwise at another place
            return torch.cat([in_env(its.clone()) for its in raw])
        return in_env(raw.reshape(-1, raw.shape[-1]))

    # -- learning

    def learn(self, places: Sequence[int], window: Callable[[list[int], int], Rollout]) -> dict[int, Report]:
        """Let some members learn; `window(places, steps)` gives their rollouts.

        Members with rollouts and minibatches of equal size learn together. Returns a report `[1]` for each place.
        """
        reports: dict[int, Report] = {}
        due: dict[tuple[int, int, Cut, bool], list[int]] = {}
        for place in places:
            agent = self.agents[place]
            alike = (agent.rollout_steps, agent.batch_size, agent.cut, agent.network.is_recurrent)
            due.setdefault(alike, []).append(place)
        for (steps, batch_size, cut, _), together in due.items():
            agents = [self.agents[place] for place in together]
            rollout = self.team.whole(window(together, steps))

            def shuffle(epoch: int, count: int, agents: list[Agent] = agents) -> Tensor:
                return torch.stack([agent.shuffle(epoch, count) for agent in agents]).to(self.device)

            report = self.cohort.learn(
                together, rollout, values_of(agents), batch_size=batch_size, cut=cut, shuffle=shuffle
            )
            numbers = torch.stack(report).cpu()  # one exchange with the host for all members
            for i, (place, agent) in enumerate(zip(together, agents, strict=True)):
                agent.after_update(rollout.of_members(torch.tensor([i], device=self.device)))
                reports[place] = Report(*numbers[:, i : i + 1])
        return reports

    # -- testing

    @property
    def group_policies(self) -> dict[str, GroupPolicy]:
        def policy(encoded: Tensor, mask: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
            shape = len(self), -1
            its_mask = None if mask is None else mask.unflatten(0, shape)
            actions, after = self.act(encoded.unflatten(0, shape), state.unflatten(0, shape), its_mask)
            return self.to_env(actions), after.flatten(0, 1)

        return {"": GroupPolicy(policy, self.agents[0].encoding, self.initial_hidden_state)}

    def test(self, env: gymnasium.vector.VectorEnv, **kwargs: Any) -> list[float]:
        """Test every member as `Agent.test` does, and return the mean scores."""
        self.fitness = [agent.test(env, **kwargs) for agent in self.agents]
        return self.fitness

    def set_members(self, heirs: list[Agent]) -> None:
        before, self.agents = self.agents, heirs
        self._newcomers |= {place for place, (new, old) in enumerate(zip(heirs, before, strict=True)) if new is not old}

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        device: str | torch.device = "cpu",
        *,
        actor_network: nn.Module | None = None,
        critic_network: nn.Module | None = None,
    ) -> Population:
        """Load a population that `save_checkpoint` wrote, or that of a checkpoint, or the last one of a run.

        Networks of your own must be given again.

        Raises:
            CheckpointError: the folder is missing, damaged or foreign, or was written with networks of your own.
        """
        networks = custom_spec(actor_network, critic_network)
        return cls.from_documents(*read_population(path), device=device, where=str(path), networks=networks)


def _home(agents: Sequence[Agent], team: Team) -> Cohort:
    """Let agents live in a cohort of their own."""
    first = agents[0]
    cohort = Cohort(
        [agent.network for agent in agents],
        [agent.moments for agent in agents],
        build=lambda place, spec: agents[place].build(spec),
        execution=first.execution,
        batch_size=sum(agent.batch_size for agent in agents) / len(agents),
        team=team,
    )
    cohort.train(first.training)
    for row, agent in enumerate(agents):
        agent.join(cohort, row)
    return cohort


def _noise_block(agent: Agent, envs: int, before: Tensor | None) -> Tensor:
    """The agent's noise `[ticks, E, …]` of the next steps, after the step `before` `[E, …]` if there was one."""
    return agent.correlated(agent.noise((NOISE_TICKS, envs)), before)
