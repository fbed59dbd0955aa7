"""Playing counted episodes with teams: the multi-agent sibling of `evaluation`.

What each agent earned is kept by agent, for who judges a team may be one of its opponents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from agilerl_like.algorithms.episode_guard import EpisodeGuard, never
from agilerl_like.algorithms.evaluation import Episodes, LastInfos, NoInfos, Played, in_rounds
from agilerl_like.algorithms.ppo import PPO
from agilerl_like.envs.multi_agent.group_env import AgentGroup, check_agents
from agilerl_like.envs.multi_agent.vec_adapter import MultiAgentVecEnvAdapter

Policy = Callable[[Tensor, Tensor | None, Tensor], tuple[Any, Tensor]]
"""Encoded observations `[N, D]`, masks `[N, choices]` and memory `[N, M, K, H]` of a group's agents -> actions, and
what is remembered then."""


class MultiAgentEpisodes(NamedTuple):
    """What the agents of P teams earned in K episodes each."""

    returns: Mapping[str, np.ndarray]  # by agent, [P, K] float64
    lengths: np.ndarray  # [P, K] int64
    lost: np.ndarray  # [P, K] bool: nobody knows how the episode went on
    infos: np.ndarray  # [P, K] object: the info of each episode's last step, None unless asked for

    @property
    def team_return(self) -> Episodes:
        """The same with what all agents of a team earned together."""
        return Episodes(np.sum([*self.returns.values()], axis=0), self.lengths, self.lost, self.infos)


class GroupPolicy(NamedTuple):
    """What a group's agents think with."""

    policy: Policy
    learner: PPO
    """Any member's: all encode alike."""
    initial_hidden_state: Tensor
    """What is remembered when an episode begins, `[M, K, H]`."""
    rows: AgentGroup
    """Its agents, as the learner sees them."""


class Player(Protocol):
    """A team or several."""

    @property
    def training(self) -> bool: ...
    def set_training_mode(self, training: bool) -> None: ...


@contextmanager
def eval_mode(player: Player) -> Iterator[None]:
    """Let somebody act as well as it can for a while."""
    was = player.training
    player.set_training_mode(False)
    try:
        yield
    finally:
        player.set_training_mode(was)


def evaluate_multi_agent(
    group_policies: Mapping[str, GroupPolicy],
    env: MultiAgentVecEnvAdapter,
    seeds: Sequence[int],
    *,
    members: int,
    max_steps: int | None = None,
    with_infos: bool = False,
    should_stop: Callable[[], bool] = never,
) -> MultiAgentEpisodes:
    """Play one episode for each of `seeds` and each of `members`, whose envs are equal blocks of the env's.

    `group_policies` are those of each group. In an env of counted episodes a copy stands still after its end; what any other
    does then is ignored. `with_infos` keeps the info of each episode's last step. `should_stop` is asked at every
    step.

    Raises:
        EnvStepError: an observation or a reward is not finite.
        EvaluationStopped: the evaluation was asked to stop.
    """
    check_agents(env, (brain.rows for brain in group_policies.values()))
    envs = env.num_envs // members
    table = {group: GroupActor(brain) for group, brain in group_policies.items()}

    def play(some: Sequence[int]) -> Played:
        guard = EpisodeGuard(env, members, is_cut=max_steps is not None, should_stop=should_stop)
        return _round(table, env, some, members, max_steps, LastInfos(env) if with_infos else NoInfos(), guard)

    returns, lengths, lost, infos = in_rounds(play, seeds, envs)
    return MultiAgentEpisodes(dict(zip(env.agent_ids, returns, strict=True)), lengths, lost, infos)


class GroupActor:
    """One group's agents in all envs: what they see, may do and remember."""

    def __init__(self, brain: GroupPolicy) -> None:
        self._brain, self._rows, self._state = brain, brain.rows, brain.initial_hidden_state

    def begin(self, envs: int, observations: Mapping[str, Any], masks: Mapping[str, Any]) -> None:
        """See the first observations, and remember nothing."""
        self._state = self._brain.initial_hidden_state.repeat(envs * len(self._rows.agent_ids), 1, 1, 1)
        self.observe(observations, masks)

    def observe(self, observations: Mapping[str, Any], masks: Mapping[str, Any]) -> None:
        """See what is there now."""
        self._seen, self._masks = self._rows.observation_rows(observations), self._rows.mask_rows(masks)

    def act(self) -> dict[str, np.ndarray]:
        """What each agent does, `[N, …]`."""
        learner = self._brain.learner
        encoded = torch.from_numpy(learner.encoding.encode(self._seen)).to(learner.device)
        mask = None if self._masks is None else torch.from_numpy(self._masks).to(learner.device)
        actions, self._state = self._brain.policy(encoded, mask, self._state)
        return self._rows.split_by_agent(actions if isinstance(actions, np.ndarray) else actions.cpu().numpy())


def _round(
    table: Mapping[str, GroupActor],
    env: MultiAgentVecEnvAdapter,
    seeds: Sequence[int],
    members: int,
    max_steps: int | None,
    infos: NoInfos,
    guard: EpisodeGuard,
) -> Played:
    envs = env.num_envs // members
    observations = env.reset([seeds[i % len(seeds)] for i in range(envs)] * members)
    guard.check(observation=observations)
    for seats in table.values():
        seats.begin(env.num_envs, observations, env.action_mask)
    playing = np.tile(np.arange(envs) < len(seeds), members)
    returns = np.zeros((len(env.agent_ids), env.num_envs))
    lengths, lost = np.zeros(env.num_envs, np.int64), np.zeros(env.num_envs, np.bool_)
    while playing.any():
        guard.step(lambda playing=playing: int(playing.sum()))
        actions: dict[str, np.ndarray] = {}
        for seats in table.values():
            actions |= seats.act()
        step = env.step(actions)
        guard.check(reward=step.reward, observation=step.obs)
        acted = np.any(list(step.valid.values()), axis=0)
        returns += np.where(playing, [step.reward[agent] for agent in env.agent_ids], 0.0)
        lengths += playing & acted
        lost |= playing & step.lost
        before, playing = playing, playing & ~step.ended
        if max_steps is not None:
            playing &= lengths < max_steps
        infos.note(before & ~playing, step.ended)
        for seats in table.values():
            seats.observe(step.obs, step.action_mask)
    found = returns, lengths, lost, infos.of(env.num_envs)
    return tuple(x.reshape(*x.shape[:-1], members, envs)[..., : len(seeds)] for x in found)
