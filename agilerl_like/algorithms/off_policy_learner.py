"""Learners of off-policy algorithms: target networks, a replay, and gradient steps on minibatches from it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar, cast

import torch
from tensordict import TensorDict
from torch import Tensor

from agilerl_like.algorithms.learner import Learner
from agilerl_like.algorithms.learner_base import RECENT, WEIGHT_BYTES, torch_generator
from agilerl_like.algorithms.learner_group import LearnerGroup
from agilerl_like.algorithms.off_policy_config import check_members_learn
from agilerl_like.algorithms.settings import largest
from agilerl_like.envs.spaces import mask_size
from agilerl_like.envs.vec_adapter import VecEnvAdapterProtocol
from agilerl_like.errors import ConfigurationError
from agilerl_like.learning.off_policy_update import OffPolicyUpdate
from agilerl_like.learning.replay_buffer import TRIES, ReplayBuffer, replay_row_bytes
from agilerl_like.modules.layers import RunningNorm
from agilerl_like.networks.network_mutation import MutatedNetwork, MutationSource
from agilerl_like.networks.target_networks import OffPolicyNetwork, follow_mutation
from agilerl_like.seeding import Purpose

REPORT_EVERY = 64
"""Gradient steps between two reports of a member's metrics, at least; reading them takes as long as a small step."""

LEARNING_RATES = ("lr", "lr_actor")
"""The settings that a schedule of lr scales."""

OffPolicyLearnerT = TypeVar("OffPolicyLearnerT", bound="OffPolicyLearner")


class OffPolicyLearner(Learner):
    """The networks of one group of agents with their targets."""

    network: OffPolicyNetwork  # pyright: ignore[reportIncompatibleVariableOverride]  # only `build` makes one
    hyperparam_names: ClassVar[tuple[str, ...]] = ("lr", "gamma", "tau", "max_grad_norm")
    """The settings that enter the computation of an update."""

    def hyperparams(self) -> tuple[float, ...]:
        """Return the values that enter the computation of an update, in the order of `hyperparam_names`."""
        values = {name: self.hyperparam(name, getattr(self.host, name)) for name in self.hyperparam_names}
        share = self.schedule_factor("lr")  # `check_replay` allows lr alone
        values |= {rate: values[rate] * share for rate in LEARNING_RATES if rate in values}
        return tuple(values.values())

    def hyperparam(self, name: str, value: Any) -> float:
        """Return the number that a setting stands for."""
        return float(value)

    @property
    def footprint(self) -> int:
        rows = self.host.memory_size * replay_row_bytes(self.encoding, self.distribution.size)
        return (WEIGHT_BYTES + WEIGHT_BYTES // 4) * self.parameter_count + rows

    def check_run(self, max_steps: int, longest_episode: int | None, processes: int) -> None:
        host = self.host
        settings, rows = host.settings(), -(-host.memory_size // host.num_envs)
        check_members_learn(settings, host.hp_config, host.num_envs, max_steps, longest_episode)
        if (most := largest(settings, host.hp_config, "n_step")) > rows:
            raise ConfigurationError(
                f"n_step={most} is more than the {rows} steps of each of {host.num_envs} envs that "
                f"memory_size={host.memory_size} holds; allowed are at most {rows}"
            )
        for name, value in (("memory", host.memory == "shared"), ("save_memory", host.save_memory)):
            if value and processes > 1:
                raise ConfigurationError(
                    f"{name}={getattr(host, name)!r} is for one process; processes={processes} allows "
                    f"{'own' if name == 'memory' else False!r}"
                )

    @property
    def steps_at_once(self) -> int:
        """Gradient steps in a call of learn."""
        given = self.host.gradient_steps
        return given or max(1, round(self.rollout_steps * self.rows_per_step / self.rollout_rows))

    def new_steps(self, replay: Any, place: int) -> int:
        """Return how many vector steps in a place of a replay are not yet in the running statistics of observations."""
        if not isinstance(self.network.observation_norm, RunningNorm):
            return 0
        has_statistics = float(self.network.observation_norm.count) > 0  # a member with new weights has none
        return min(replay.steps, int(replay.new_steps[place])) if has_statistics else replay.steps

    def sample_draws(self, steps: int) -> Tensor:
        """Return the numbers that choose the samples of the next gradient steps, `[steps, B, TRIES]`."""
        stream = torch_generator("cpu", self.seed, Purpose.MINIBATCHES, self.index, self.updates)
        return torch.rand(steps, self.batch_size, TRIES, generator=stream, dtype=torch.float64)

    def mix_initial_weights(self, own: float, initial: float) -> None:
        super().mix_initial_weights(own, initial)
        self.network.sync_target_()

    def after_mutation(self, source: MutationSource, operator: str, result: MutatedNetwork) -> None:
        keys = self.index, self.updates, self.variations
        stream = torch_generator("cpu", self.seed, Purpose.WEIGHT_TRANSFER, *keys)  # the one of the mutation
        child = cast(OffPolicyNetwork, result.network)
        is_removal = bool(source.network.unit_change(operator, result.arguments).consumers)
        states = source.refit_observations if is_removal else None
        parent = cast(OffPolicyNetwork, source.network)
        follow_mutation(parent, child, operator, result.arguments, result.maps, states, stream)


class OffPolicyLearnerGroup(LearnerGroup[OffPolicyLearnerT]):
    """P learners of one group, which act together and learn from a replay that outlives resets of the envs."""

    keeps_experience = True
    takes_critic_config = False
    one_process_reason = "members learn from a replay, which is in one process unless `processes` is a number"

    def __init__(self, population: Any, group: str) -> None:
        super().__init__(population, group)
        self.replay: ReplayBuffer | None = None
        self._stored: list[Mapping[str, Tensor]] | None = None  # of a checkpoint, for the next buffer

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "replay": None, "_stored": None}

    def make_buffer(
        self, env: VecEnvAdapterProtocol, envs: int, describe_row: Callable[[int, int], str]
    ) -> ReplayBuffer:
        first = self[0]
        size = first.host.memory_size
        if self.replay is not None and self.replay.fits(size, len(self), envs, self.device):
            self.replay.describe_row = describe_row
        else:
            self.replay = ReplayBuffer(
                size,
                len(self),
                envs,
                encoding=first.encoding,
                action_size=first.distribution.size,
                action_dtype=first.distribution.raw_dtype,
                mask_size=mask_size(env.single_action_space),
                device=self.device,
                arrays=env.array_backend,
                describe_row=describe_row,
            )
        if self._stored is not None:
            self.replay.load_state(self._stored)
            self._stored = None
        self.replay.interrupt()
        return self.replay

    def experience_state(self) -> list[dict[str, Tensor]]:
        if self.replay is None or not self[0].host.save_memory:
            return []
        return [self.replay.state_of(place) for place in range(len(self))]

    def load_experience(self, stored: Sequence[Mapping[str, Tensor]]) -> None:
        self._stored = list(stored)

    def discard_experience(self) -> None:
        self.replay = self._stored = None

    def learn(self, places: Sequence[int], experience: ReplayBuffer) -> dict[int, TensorDict]:
        """Update some members from the replay.

        Members with as many gradient steps and minibatches of equal size learn together, or each by itself with
        `per_member`. A member is reported about every `REPORT_EVERY` gradient steps, after each call if `detailed`, and
        at once if it has diverged, because its next actions would not be finite.
        """
        reports: dict[int, TensorDict] = {}
        due: dict[tuple[Any, ...], list[int]] = {}
        stored = experience.steps * experience.envs
        for place in places:
            learner = self[place]
            if stored < max(1, learner.host.learning_starts):
                continue
            alone = place if self.is_per_member else None
            new = learner.new_steps(experience, place)
            key = (learner.steps_at_once, learner.batch_size, learner.host.n_step, new, *self.kind_of(learner), alone)
            due.setdefault(key, []).append(place)
        for (steps, *_), together in due.items():
            learners = [self[place] for place in together]
            update = self.make_update(learners, together, experience, steps)
            metrics = self.cohort.learn(together, update)
            healthy = metrics.get("healthy").tolist()
            for name in {name for learner in learners for name in learner.scheduled}:
                metrics.set(name, update.hyperparams[name])  # as scheduled
            for i, (place, learner) in enumerate(zip(together, learners, strict=True)):
                before = learner.updates
                learner.count_updates(steps)
                experience.new_steps[place] = 0
                learner.learned_with_masks |= experience.masks is not None
                is_due = not healthy[i] or before // REPORT_EVERY != learner.updates // REPORT_EVERY
                if is_due or self.detailed:
                    reports[place] = metrics[i : i + 1].cpu()
                if is_due:
                    learner.recent_observations = experience.latest(place, RECENT)[-RECENT:].cpu().clone()
        return reports

    def kind_of(self, learner: OffPolicyLearnerT) -> tuple[Any, ...]:
        """Return the further settings that must be equal for members to learn together."""
        return ()

    @classmethod
    @abstractmethod
    def make_update(
        cls, learners: Sequence[OffPolicyLearnerT], places: Sequence[int], replay: Any, steps: int
    ) -> OffPolicyUpdate:
        """Return the update of some learners, in places `places` of the replay."""


def update_arguments(
    learners: Sequence[OffPolicyLearner], places: Sequence[int], replay: Any, steps: int
) -> dict[str, Any]:
    """Return the arguments of `OffPolicyUpdate`."""
    first = learners[0].host
    device = learners[0].device
    columns = zip(*(learner.hyperparams() for learner in learners), strict=True)
    hyperparams = {
        name: torch.tensor(column, device=device)
        for name, column in zip(learners[0].hyperparam_names, columns, strict=True)
    }
    return {
        "replay": replay,
        "members": torch.tensor(places, device=device),
        "draws": torch.stack([learner.sample_draws(steps) for learner in learners]).to(device),
        "hyperparams": hyperparams,
        "updates": [learner.updates for learner in learners],
        "target_interval": [learner.host.target_update_interval for learner in learners],
        "n_step": first.n_step,
        "kind": first.memory,
        "new_steps": learners[0].new_steps(replay, places[0]),
    }
