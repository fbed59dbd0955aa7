"""An algorithm of your own, A2C (Mnih et al. 2016), named in YAML: `python own_algorithm.py [--section.name VALUE …]`.

In Python: `train_on_policy(env, pop=A2C.population(4, observation_space, action_space, num_envs=16, hp_config=…), …)`.
In tensors, P are members, T steps, E envs of a member and B = T E samples.
"""

import sys
from dataclasses import dataclass as record
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass
from tensordict import TensorDict

from agilerl_like.algorithms.learner import Learner
from agilerl_like.algorithms.learner_group import LearnerGroup
from agilerl_like.algorithms.population import PopulationConstructor
from agilerl_like.algorithms.rl_algorithm import RLAlgorithm
from agilerl_like.algorithms.settings import STRICT, Count, NonNegative, Positive, Share
from agilerl_like.cli import main
from agilerl_like.envs.spaces import mask_size
from agilerl_like.learning.advantages import AdvantageEstimator, compute_advantages
from agilerl_like.learning.off_policy_update import weighted_mean
from agilerl_like.learning.optimizer import clip_, copy_gradients_
from agilerl_like.learning.ppo_update import FADE_UPDATES
from agilerl_like.learning.rollout_buffer import Rollout, RolloutBuffer
from agilerl_like.learning.sequences import SINGLE_STEP

CONFIG = """
environment: {id: CartPole-v1, num_envs: 16}
algorithm: {name: A2C, ent_coef: 1e-3}  # its fields are settings
hyperparameters: {lr: {min: 1e-4, max: 1e-2}, learn_step: {min: 64, max: 512}}
population: {size: 4}
training: {max_steps: 24_576, evo_steps: 4_096}
run: {name: a2c}
"""


@dataclass(frozen=True, config=STRICT)
class A2CConfig:
    """The settings: the type has the range, the text below a field is its help, and numbers can evolve."""

    lr: Positive = 2e-3
    """Adam's learning rate."""
    learn_step: Count = 128
    """Env steps of a member between updates, over all its envs."""
    gamma: Share = 0.99
    """Discount factor."""
    gae_lambda: Share = 1.0
    """Decay of generalized advantage estimation; 1: the return minus the value."""
    ent_coef: NonNegative = 0.0
    """Weight of the entropy bonus."""
    vf_coef: NonNegative = 0.5
    """Weight of the value loss."""
    max_grad_norm: Positive = 0.5
    """Largest norm of the gradient."""


HYPERPARAMETERS = ("lr", "gamma", "gae_lambda", "ent_coef", "vf_coef", "max_grad_norm")
METRICS = ("loss", "policy_loss", "value_loss", "entropy", "grad_norm")


@record(frozen=True)
class A2CUpdate:
    """One gradient step of P members, each on its own rollout."""

    rollout: Rollout  # [P], with fields [P, T, E, …]
    hp: TensorDict  # [P], the HYPERPARAMETERS

    def of_members(self, members):
        return replace(self, rollout=self.rollout[members], hp=self.hp[members])

    def alone(self, member, state_shape):
        return self.of_members(torch.tensor([member], device=self.rollout.rewards.device))

    def run(self, stacked, execution, gradient_sync):
        hp = self.hp
        (batch,) = stacked.over(_samples, self.rollout, hp["gamma"], hp["gae_lambda"])
        observations, actions, masks, weight, advantages, returns = (
            None if its is None else its.squeeze(2)  # [P, B, 1, …]: without recurrence each step is a sequence
            for its in (batch.observations, batch.actions, batch.masks, batch.weight, batch.advantages, batch.returns)
        )
        gradient = torch.zeros_like(stacked.flat)
        pairs = [pair for pair in stacked.with_gradients(gradient) if pair[0].requires_grad]
        with torch.enable_grad():
            log_probs, entropies, values = stacked.over(_evaluate, observations, actions, masks)  # [P, B] each
            policy_loss = -weighted_mean(log_probs * advantages, weight)
            value_loss = 0.5 * weighted_mean((values - returns).square(), weight)
            entropy = weighted_mean(entropies, weight)
            loss = policy_loss + hp["vf_coef"] * value_loss - hp["ent_coef"] * entropy
            found = torch.autograd.grad(loss.sum(), [parameter for parameter, _ in pairs], allow_unused=True)
        copy_gradients_([place for _, place in pairs], found)
        (norm,) = clip_([gradient], hp["max_grad_norm"])
        (step,) = stacked.optimizer.prepare_steps(hp["lr"], 1)
        stacked.optimizer.step_(stacked.flat, gradient, step)
        for _, stack in stacked.parts:
            stack.module.advance_fades_(1 / FADE_UPDATES)  # layers and activations that a mutation blends in
        values = [each.detach() for each in (loss, policy_loss, value_loss, entropy, norm)]
        healthy = torch.isfinite(torch.stack(values)).all(0) & stacked.is_finite
        return TensorDict(dict(zip(METRICS, values, strict=True), healthy=healthy.float()), [len(loss)])


def _samples(network, rollout, gamma, gae_lambda):
    """Return the rollouts as samples with advantages and value targets; normalisers are updated."""
    estimator = AdvantageEstimator(gamma, gae_lambda, standardise=False)
    return (compute_advantages(network, rollout, estimator, cut=SINGLE_STEP)[0],)


def _evaluate(network, observations, actions, masks):
    """Return log-probabilities, entropies and values of samples."""
    outputs, values = network.evaluate(observations)
    return *network.actor.distribution.evaluate(outputs, actions, masks), values


class A2CLearner(Learner):
    """Actor, critic and optimizer of one member."""

    algo = "A2C"


class A2CGroup(LearnerGroup[A2CLearner]):
    """The learners of all members, which act and learn together."""

    learner_class, metrics = A2CLearner, METRICS

    def make_buffer(self, env, envs, describe_row):
        first = self[0]
        return RolloutBuffer(
            max(2, self.longest_rollout),
            len(self),
            envs,
            encoding=first.rollout_encoding,
            action_size=first.distribution.size,
            action_dtype=first.distribution.raw_dtype,
            mask_size=mask_size(env.single_action_space),
            device=self.device,
            arrays=env.array_backend,
            describe_row=describe_row,
        )

    def enlarge_buffer(self, buffer):  # learn_step evolves
        if self.longest_rollout <= buffer.length:
            return False
        buffer.enlarge(self.longest_rollout)
        return True

    @property
    def longest_rollout(self):
        return max(learner.rollout_steps for learner in self)

    def learn(self, places, experience):
        reports, by_steps = {}, {}
        for place in places:  # rollouts of unequal length cannot be stacked
            by_steps.setdefault(self[place].rollout_steps, []).append(place)
        for steps, together in by_steps.items():
            agents = [self[place].algorithm for place in together]
            rollout = experience(together, steps)
            columns = {name: torch.tensor([float(getattr(a, name)) for a in agents]) for name in HYPERPARAMETERS}
            hp = TensorDict(columns, [len(agents)], device=self.device)
            metrics = self.cohort.learn(together, A2CUpdate(rollout, hp)).cpu()
            for row, place in enumerate(together):
                learner = self[place]
                learner.env_steps += steps * learner.algorithm.num_envs
                learner.after_update(rollout.observations[row])
                reports[place] = metrics[row : row + 1]
        return reports


class A2C(PopulationConstructor, RLAlgorithm[A2CLearner]):
    """An A2C agent; the class is registered under the name `algo`."""

    algo: ClassVar[str] = "A2C"
    config, group_class = A2CConfig, A2CGroup

    def __init__(
        self,
        observation_space,
        action_space,
        index=0,
        hp_config=None,
        net_config=None,
        *,
        lr=A2CConfig.lr,
        learn_step=A2CConfig.learn_step,
        gamma=A2CConfig.gamma,
        gae_lambda=A2CConfig.gae_lambda,
        ent_coef=A2CConfig.ent_coef,
        vf_coef=A2CConfig.vf_coef,
        max_grad_norm=A2CConfig.max_grad_norm,
        num_envs=1,
        device="cpu",
        seed=None,
        **unknown,
    ):
        self._init_given(locals(), net_config)


if __name__ == "__main__":
    Path("a2c.yaml").write_text(CONFIG)
    sys.exit(main(["train", "a2c.yaml", *sys.argv[1:]]))
