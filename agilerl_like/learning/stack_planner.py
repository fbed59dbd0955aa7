"""Planning which members of a cohort share a stack.

Each stack takes a fixed time per minibatch step; each smaller member of a stack takes the arithmetic of its zero
padding. Starting from groups of equal members, the two groups whose union saves most are merged until no union saves
time. The plan depends on the members and their batch sizes alone, and is updated where the envs start, so a resumed run
has the same stacks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from agilerl_like.networks.architecture import NetworkSpec

FIXED_WORK = {"cpu": 1e7, "cuda": 5e9}
"""Fixed cost of a stack per minibatch step, in multiplications of an actor's forward pass.

The CPU value was fitted to ten populations (1 to 16 members, widths 32 to 128, minibatches of 32 to 512): with two
threads a step takes 0.86 ms plus 0.077 ms per million multiplications, so the fixed part equals 1.1e7 of them (3.5e6
with one thread), and acting between minibatches adds half of that. The GPU value is an estimate, because the time of
small networks there is that of kernel launches.
"""

STORED_WORK = 30
"""Fixed cost of a parameter per minibatch step, padding included, in the same unit and by the same fit.

It is the time in which the optimizer reads and writes the parameter, which also occupies cache.
"""


class PlannedMember(NamedTuple):
    """The properties of a member that determine its stack."""

    stack_key: Hashable
    """Members with different keys never share a stack."""
    spec: NetworkSpec


class _Union(NamedTuple):
    places: tuple[int, ...]
    work: float


def plan_stacks(
    members: Sequence[PlannedMember],
    inputs: Any,
    num_outputs: int,
    *,
    batch_size: float,
    device: str,
    unequal: bool = True,
    critic_inputs: Any = None,
) -> list[list[int]]:
    """Return the places of the members of each stack, in the order of its rows.

    Only equal members share a stack unless `unequal` is set. Rows are sorted so that members with the same activations
    and the same missing layers are contiguous.
    """
    fixed = FIXED_WORK.get(device, FIXED_WORK["cuda"])

    def union(places: tuple[int, ...]) -> _Union:
        specs = Counter(members[place].spec for place in places)
        padded = NetworkSpec.padded_union([*specs]) if len(specs) > 1 else members[places[0]].spec
        work = sum(
            count * spec.multiply_adds(padded, inputs, num_outputs, critic_inputs) for spec, count in specs.items()
        )
        stored = len(places) * padded.multiply_adds(padded, inputs, num_outputs, critic_inputs)
        return _Union(places, fixed + batch_size * work + STORED_WORK * stored)

    def stack_key(one: _Union) -> Hashable:
        return members[one.places[0]].stack_key

    equal: dict[tuple[Hashable, NetworkSpec], list[int]] = {}
    for place, member in enumerate(members):
        equal.setdefault((member.stack_key, member.spec), []).append(place)
    unions = {number: union(tuple(places)) for number, places in enumerate(equal.values())}
    pairs = {
        (i, j): union(unions[i].places + unions[j].places)
        for i, j in combinations(unions, 2)
        if unequal and stack_key(unions[i]) == stack_key(unions[j])
    }
    while pairs:
        i, j = max(pairs, key=lambda pair: unions[pair[0]].work + unions[pair[1]].work - pairs[pair].work)
        best = pairs[i, j]
        if best.work >= unions[i].work + unions[j].work:
            break
        del unions[i], unions[j]
        pairs = {pair: both for pair, both in pairs.items() if not {i, j} & set(pair)}
        new = max((i, j, *unions)) + 1
        mergeable = [k for k in unions if stack_key(unions[k]) == stack_key(best)]
        pairs |= {(k, new): union(unions[k].places + best.places) for k in mergeable}
        unions[new] = best
    stacks = [
        sorted(one.places, key=lambda place: (*members[place].spec.stack_sort_key, place)) for one in unions.values()
    ]
    return sorted(stacks, key=min)
