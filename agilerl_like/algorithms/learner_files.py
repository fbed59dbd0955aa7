"""A learner as a JSON document and named tensors, and the checks of both when they are read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import gymnasium
import torch
from torch import Tensor, nn

from agilerl_like.algorithms.architectures import encoder_of, read_architecture
from agilerl_like.algorithms.learner_base import MAX_TENSORS, RECENT, SINGLE_AGENT, GroupSettings, LearnerBase
from agilerl_like.algorithms.learner_host import LearnerHost
from agilerl_like.algorithms.serialization import (
    ADAM,
    LEARNING_STATE,
    OWN,
    RECENT_OBSERVATIONS,
    REWARD_NORM,
    WEIGHTS_ONLY,
    MetaBuild,
    check_finite,
    read_count,
    read_flag,
    to_builtin,
)
from agilerl_like.algorithms.settings import stored_settings, validated
from agilerl_like.envs.spaces import space_to_json
from agilerl_like.errors import ConfigurationError
from agilerl_like.learning.optimizer import Adam
from agilerl_like.learning.rewards import ReturnStatistics
from agilerl_like.modules.param_stack import layout, update_count_flags
from agilerl_like.networks.actor_critic import ActorCritic
from agilerl_like.networks.architecture import NetworkSpec
from agilerl_like.networks.custom import CustomSpec
from agilerl_like.storage import safe_folder

StoredLearnerT = TypeVar("StoredLearnerT", bound="StoredLearner")

MOMENTS, LR_SCALE = ("exp_avg", "exp_avg_sq", "steps"), f"{ADAM}lr_scale"
OWN_MAX_SEQ_LEN = "own_max_seq_len"
"""The `max_seq_len` of the learner's `net_config`, which the settings lack where the algorithm has one; optional."""
STATISTICS = {f"{REWARD_NORM}{part}": part for part in ReturnStatistics._fields}
"""The part of a learner's `return_statistics` that each tensor holds."""


class StoredLearner(LearnerBase):
    """A learner's document and tensors."""

    own_prefix: ClassVar[str] = OWN
    """Beginning of the names of `own_state` in `tensors`; one of `LEARNING_STATE`."""

    def document(self) -> dict[str, Any]:
        """Return everything but tensors as JSON data.

        State at its initial value is left out, here and in `tensors`. All other state is stored, because a setting that
        is off may need it later.
        """
        document = {
            "algorithm": self.algo,
            "index": self.index,
            "seed": self.seed,
            "settings": stored_settings(self.algorithm.config, self.settings()),
            "hp_config": self.hp_config.to_json(),
            "architecture": self.architecture.to_config(),
            "updates": self.updates,
            "draws": self.draws,
            "variations": self.variations,
            "num_envs": self.rows_per_step,
            "observation_space": space_to_json(self.observation_space),
            "action_space": space_to_json(self.action_space),
            "learned_with_masks": self.learned_with_masks,
        }
        for name, count in (
            ("env_steps", self.env_steps),
            ("updates_without_learning", self.updates_without_learning),
            ("updates_before", self.updates_before),
            ("random_steps_taken", self._random_steps_taken),
            (OWN_MAX_SEQ_LEN, self._max_seq_len),
        ):
            if count:
                document[name] = count
        return to_builtin(document)

    def tensors(self) -> dict[str, Tensor]:
        """Return network, moments and recent observations by name."""
        optimizer, rewards = self.optimizer, self.return_statistics
        has_rewards = len(rewards.returns) > 0 or bool(rewards.moments.any())  # reset envs have no running returns
        moments = {f"{ADAM}{name}": getattr(optimizer, name) for name in MOMENTS}
        if optimizer.lr_scale.item() != 1.0:
            moments[LR_SCALE] = optimizer.lr_scale
        return {
            **_tensors_of(self.network),
            **moments,
            **({name: getattr(rewards, part) for name, part in STATISTICS.items()} if has_rewards else {}),
            RECENT_OBSERVATIONS: self.recent_observations,
            **{f"{self.own_prefix}{name}": tensor for name, tensor in self.own_state().items()},
        }

    @classmethod
    def from_document(
        cls: type[StoredLearnerT],
        algorithm: LearnerHost,
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
        document: Mapping[str, Any],
        networks: CustomSpec | None = None,
        group: GroupSettings = SINGLE_AGENT,
        *,
        critic_entries: str | None = None,
    ) -> StoredLearnerT:
        """Build the learner that `document` describes, without a network.

        `critic_entries` names the critic's observations, if they are not those of `critic_observation`.
        """
        settings = validated(algorithm.config, document["settings"])
        encoding = encoder_of(observation_space, settings, critic_entries)
        recurrent = getattr(settings, "recurrent", False)
        architecture = read_architecture(document["architecture"], encoding, recurrent=recurrent, networks=networks)
        if algorithm.max_seq_len is None:
            max_seq_len = getattr(settings, "max_seq_len", None)
        else:
            max_seq_len = read_count(document, OWN_MAX_SEQ_LEN) if OWN_MAX_SEQ_LEN in document else None
        return cls(algorithm, encoding, action_space, architecture, group, max_seq_len=max_seq_len)

    def read_architecture(self, config: Mapping[str, Any]) -> NetworkSpec:
        """Read an architecture of this learner's kind from its `to_config`."""
        return read_architecture(config, self.rollout_encoding, recurrent=self.recurrent, networks=self.custom_networks)

    def check_tensors(self, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Raise ValueError unless tensors in a file fit the architecture, without reading their data.

        Tensors in memory are compared when they are copied, and a user's own network cannot be built without data.
        """
        if isinstance(tensors, safe_folder.LazyTensors) and self.custom_networks is None:
            with torch.device("meta"), MetaBuild(len(tensors)):
                network, flag = self.build(self.architecture), read_flag(document, WEIGHTS_ONLY)
                self._check_facts(tensors.infos, network, weights_only=flag)

    def check_network(self) -> None:
        """Raise ConfigurationError unless the network has the tensors of its architecture, as a file of it must.

        A user's own network is not compared, because it cannot be built without data.
        """
        if self.custom_networks is not None:
            return
        with torch.device("meta"), MetaBuild(MAX_TENSORS):
            wanted = safe_folder.tensor_infos(_tensors_of(self.build(self.architecture)))
        found = safe_folder.tensor_infos(_tensors_of(self.network))
        if found != wanted:
            name = next(name for name in {**wanted, **found} if found.get(name) != wanted.get(name))
            now, expected = (str(infos[name].shape) if name in infos else "none" for infos in (found, wanted))
            raise ConfigurationError(
                f"{name} is {now} where the architecture has {expected}: it was changed by hand; allowed is "
                "agent.mutate(...), or a module passed as actor_network and critic_network (of teams, actor_networks "
                "and critic_networks)"
            )

    def load_state(self, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Read counters, weights and moments; ValueError if they do not fit."""
        self.updates, self.draws = read_count(document, "updates"), read_count(document, "draws")
        self.variations = read_count(document, "variations") if "variations" in document else 0  # absent in older files
        self.learned_with_masks = read_flag(document, "learned_with_masks")
        weights_only = read_flag(document, WEIGHTS_ONLY)
        self.env_steps, self.updates_without_learning, self.updates_before, self._random_steps_taken = (
            read_count(document, name) if name in document else 0
            for name in ("env_steps", "updates_without_learning", "updates_before", "random_steps_taken")
        )
        network = self._unfilled(self.architecture)
        self._check_facts(safe_folder.tensor_infos(tensors), network, weights_only=weights_only)
        check_finite(tensors)
        if weights_only:
            self.set_network(network, Adam.fresh(torch.zeros(1, layout(network)[-1].stop, device=self.device)))
        else:
            names = [*(f"{ADAM}{name}" for name in MOMENTS), *([LR_SCALE] if LR_SCALE in tensors else [])]
            moments = [tensors[name].to(self.device, copy=True) for name in names]
            if any(bool((moment < 0).any()) for moment in moments[1:]):
                raise ValueError("adam.exp_avg_sq, adam.steps and adam.lr_scale must not be negative")
            self.set_network(network, Adam(*moments))
            self.recent_observations = tensors[RECENT_OBSERVATIONS]
            if STATISTICS.keys() & tensors.keys():
                self.return_statistics = ReturnStatistics(*(tensors[name] for name in STATISTICS))
        with torch.no_grad():
            for name, tensor in _tensors_of(self.network).items():
                tensor.copy_(tensors[name])
        update_count_flags(self.network)
        if not weights_only:
            own = [name for name in tensors if name.startswith(self.own_prefix)]
            self.load_own_state({name.removeprefix(self.own_prefix): tensors[name].clone() for name in own})

    def _check_facts(
        self, found: Mapping[str, safe_folder.TensorInfo], network: ActorCritic, *, weights_only: bool
    ) -> None:
        """Raise ValueError unless stored tensors have a network's names, shapes and dtypes.

        With `weights_only` the state of learning is not read; earlier versions stored some of it. `load_own_state`
        checks its own part.
        """
        info = safe_folder.TensorInfo
        found = {name: facts for name, facts in found.items() if not name.startswith(self.own_prefix)}
        if weights_only:
            found = {name: facts for name, facts in found.items() if not name.startswith(LEARNING_STATE)}
        wanted = safe_folder.tensor_infos(_tensors_of(network))
        size = layout(network)[-1].stop
        if not weights_only:
            wanted |= {f"{ADAM}{name}": info((1, size), network.dtype) for name in ("exp_avg", "exp_avg_sq")}
            scales = {f"{ADAM}steps", *({LR_SCALE} & found.keys())}
            wanted |= {name: info((1,), network.dtype) for name in scales}
            if STATISTICS.keys() & found.keys():
                shape, _ = found.get(f"{REWARD_NORM}returns", info((0,), torch.float64))
                wanted |= {f"{REWARD_NORM}moments": info((3,), torch.float64)}
                wanted |= {f"{REWARD_NORM}returns": info((math.prod(shape),), torch.float64)}  # envs may be fewer now
        odd = sorted(found.keys() ^ wanted.keys() ^ (set() if weights_only else {RECENT_OBSERVATIONS}))
        if odd:
            raise ValueError(f"tensors {odd} are missing or too many")
        for name, facts in wanted.items():
            if found[name] != facts:
                raise ValueError(f"{name} is {found[name]}; expected is {facts}")
        if weights_only:
            return
        shape, dtype = found[RECENT_OBSERVATIONS]
        encoding = self.rollout_encoding
        rows_fit = shape[-1:] == (encoding.size,) and dtype == encoding.dtype and len(shape) in (2, 3)
        if math.prod(shape) and not (rows_fit and math.prod(shape[:-1]) <= RECENT):
            raise ValueError(
                f"{RECENT_OBSERVATIONS} is {found[RECENT_OBSERVATIONS]}; expected are at most {RECENT} rows of "
                f"{encoding.size} numbers of {encoding.dtype}"
            )


def _tensors_of(network: nn.Module) -> dict[str, Tensor]:
    return {f"network.{name}": tensor for name, tensor in (*network.named_parameters(), *network.named_buffers())}
