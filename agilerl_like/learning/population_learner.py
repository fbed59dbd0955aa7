"""Members that are computed together: one loss, one clip and one Adam for all, in as few forward passes as is fastest.

A cohort owns the stacked weights and moments; its members hold views of their rows, so their weights are always
current. If only some members are due to learn, their rows are copied, trained and written back. Which members share a
forward pass is decided by `stack_planner`; the layers above see one population.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from tensordict import TensorDict
from torch import Tensor

from agilerl_like.learning.execution import Execution
from agilerl_like.learning.experience import Update
from agilerl_like.learning.gradient_sync import NO_SYNC, GradientSync
from agilerl_like.learning.optimizer import Adam
from agilerl_like.learning.stack_planner import PlannedMember, plan_stacks
from agilerl_like.learning.stacked_networks import StackedNetworks
from agilerl_like.modules.layers import skip_init
from agilerl_like.networks.actor_critic import ActorCritic
from agilerl_like.networks.architecture import NetworkSpec
from agilerl_like.networks.recurrent_state import resize_hidden


class PopulationLearner:
    """P members that are computed together, in the stacks that are fastest.

    Members of unequal shape share a stack where that is faster (see `stack_planner`); `build(place, spec)` makes the
    padded network. Without `build` only equal members share a stack.
    """

    def __init__(
        self,
        networks: Sequence[ActorCritic],
        optimizers: Sequence[Adam],
        *,
        build: Callable[[int, NetworkSpec], ActorCritic] | None = None,
        batch_size: float = 1.0,
        execution: Execution | None = None,
        gradient_sync: GradientSync = NO_SYNC,
    ) -> None:
        self.execution, self.gradient_sync = execution or Execution(), gradient_sync
        self.batch_size = batch_size
        """The mean size of the members' minibatches, for which the stacks were planned."""
        self.networks = list(networks)
        self._parameters = [list(network.parameters()) for network in networks]
        for network in networks:
            network.check_learned()
        self._flags = [[parameter.requires_grad for parameter in its] for its in self._parameters]
        actor, members = networks[0].actor, [PlannedMember(network.stack_key(), network.spec) for network in networks]
        sizes = actor.encoder.inputs, actor.distribution.num_outputs
        device = next(networks[0].parameters()).device
        self.stacks = plan_stacks(
            members,
            *sizes,
            batch_size=batch_size,
            device=device.type,
            unequal=build is not None,
            critic_inputs=networks[0].critic.encoder.inputs,
        )
        """The members of each stack."""
        stacked = [([networks[i] for i in places], self._padded_network(places, build)) for places in self.stacks]
        self.stacked = StackedNetworks.of(stacked, optimizers[0].epsilon)
        order = [place for places in self.stacks for place in places]
        self._row = {place: row for row, place in enumerate(order)}
        in_order = order == sorted(order)
        self._order = None if in_order else torch.tensor(order, device=device)
        self._back = None if in_order else torch.argsort(torch.tensor(order, device=device))
        for place, optimizer in enumerate(optimizers):
            self._store_moments(place, optimizer)

    def _padded_network(
        self, places: Sequence[int], build: Callable[[int, NetworkSpec], ActorCritic] | None
    ) -> ActorCritic:
        """Return a network into which all members of a stack fit: one of them, if they are equal."""
        specs = [self.networks[place].spec for place in places]
        if build is None or len(set(specs)) == 1:
            return self.networks[places[0]]
        with skip_init():
            return build(places[0], NetworkSpec.padded_union(specs))

    def __len__(self) -> int:
        return len(self.networks)

    @property
    def population_learners(self) -> list[PopulationLearner]:
        """The population learner that computes each member, by place: this one."""
        return [self] * len(self)

    def train(self, training: bool) -> None:
        """Set all networks to training or evaluation mode."""
        self.stacked.train(training)

    def row_of(self, place: int) -> int:
        """Return a member's row in the stacked weights."""
        return self._row[place]

    def by_row(self, x: Tensor) -> Tensor:
        """Return the members' values `[P, …]` in the order of the stacked weights."""
        return _arranged(x, self._order)

    def by_place(self, x: Tensor) -> Tensor:
        """Return values `[P, …]` of the stacked weights in the order of the members."""
        return _arranged(x, self._back)

    def _columns(self, place: int) -> Tensor:
        """Return the columns of a member's own values in its row of weights or moments."""
        row = self._row[place]
        for here, stack in self.stacked.parts:
            if row < here.stop:
                return stack.param_indices(row - here.start)
        raise IndexError(place)

    def moments(self, place: int) -> Adam:
        """Return one member's moments `[1, N]`, without padding; read-only, because they may be views."""
        adam, row, its = self.stacked.optimizer, self._row[place], self._columns(place)
        here, fills_it = slice(row, row + 1), len(its) == adam.exp_avg.shape[1]
        first, second = (
            rows[here] if fills_it else rows[here].index_select(1, its) for rows in (adam.exp_avg, adam.exp_avg_sq)
        )
        return Adam(first, second, adam.steps[here], adam.lr_scale[here], epsilon=adam.epsilon)

    def _store_moments(self, place: int, optimizer: Adam) -> None:
        """Copy a member's moments `[1, N]` into its row."""
        adam, row, its = self.stacked.optimizer, self._row[place], self._columns(place)
        for rows, own in ((adam.exp_avg, optimizer.exp_avg), (adam.exp_avg_sq, optimizer.exp_avg_sq)):
            rows[row].index_copy_(0, its, own[0])
        adam.steps[row], adam.lr_scale[row] = optimizer.steps[0], optimizer.lr_scale[0]

    def snapshot(self, place: int) -> StackedNetworks:
        """Return a copy of one member's weights, buffers and moments, for `restore`."""
        return self.stacked.take(torch.tensor([self._row[place]], device=self.stacked.flat.device))

    def restore(self, place: int, snapshot: StackedNetworks) -> None:
        """Restore a member from its `snapshot`."""
        self.stacked.put(torch.tensor([self._row[place]], device=self.stacked.flat.device), snapshot)

    @property
    def state_shape(self) -> tuple[int, int, int]:
        """Shape `(M, K, H)` that holds the hidden state of any member."""
        memories, vectors, units = map(max, zip(*(network.state_shape for network in self.networks), strict=True))
        return memories, vectors, units

    @torch.no_grad()
    def act(
        self, observations: Tensor, state: Tensor, noise: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return raw actions `[P, E, A]` for encoded observations `[P, E, D]`, and the next hidden state.

        `state` `[P, E, M, K, H]` is the current hidden state. Without noise the actions are the modes.
        """
        observations, state = _arranged(observations, self._order), _arranged(state, self._order)
        noise, mask = (x if x is None else _arranged(x, self._order) for x in (noise, mask))
        with self.execution.autocast(observations.device):
            actions, state = self.stacked.over(_act, observations, state, noise, mask)
        return _arranged(actions, self._back), _arranged(state, self._back)

    @torch.no_grad()
    def learn(self, places: Sequence[int], update: Update) -> TensorDict:
        """Carry out an update of some members, given in the same order; return its metrics.

        Raises:
            ConfigurationError: `requires_grad` was changed in one of their networks.
        """
        for place in places:
            if [parameter.requires_grad for parameter in self._parameters[place]] != self._flags[place]:
                self.networks[place].check_learned()
        rows = [self._row[place] for place in places]
        order = sorted(range(len(rows)), key=rows.__getitem__)
        in_order = order == list(range(len(rows)))
        at, index = torch.tensor([order, sorted(rows)], device=self.stacked.flat.device)
        update = update if in_order else update.of_members(at)
        part = self.stacked if len(rows) == len(self) else self.stacked.take(index)
        metrics = update.run(part, self.execution, self.gradient_sync)
        if part is not self.stacked:
            self.stacked.put(index, part)
        return metrics if in_order else metrics[torch.argsort(at)]


def _arranged(x: Tensor, order: Tensor | None) -> Tensor:
    """Return the members' rows in another order, if one is given and the tensor is not empty."""
    return x.index_select(0, order) if order is not None and x.numel() else x


def _act(
    network: ActorCritic, observations: Tensor, state: Tensor, noise: Tensor | None, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    distribution = network.actor.distribution
    outputs, after = network.step(network.observation_norm(observations), resize_hidden(state, network.state_shape))
    actions = distribution.mode(outputs, mask) if noise is None else distribution.sample(outputs, noise, mask)
    return actions, resize_hidden(after, state.shape[-3:])
