"""Which members of a cohort are computed in one stack: as few stacks as pay.

Every stack costs a fixed amount of time a step, however small its members are; a member in a larger one's company
costs the arithmetic of the zeros that fill it up. Starting from groups of equal members, the two whose union saves most
are joined until no union saves anything. The result depends on the members alone, so a run that is resumed is grouped
as it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from agilerl_like.networks.architecture import NetworkSpec

FIXED_WORK = {"cpu": 1e7, "cuda": 5e9}
"""What a stack costs in a minibatch step however small its members are, in multiplications of an actor's forward.

On a CPU fitted to ten populations (1 to 16 members, widths 32 to 128, minibatches of 32 to 512): a step takes 0.86 ms
and 0.077 ms more for a million multiplications with two threads, which is as much as 1.1e7 of them, and 3.5e6 with one
thread; and for each minibatch there are some steps of the envs to act in, which cost half as much again. On a GPU,
where a step of small nets waits for kernels to be launched, an estimate.
"""

STORED_WORK = 30
"""What a parameter costs in a minibatch step however few samples there are, zeros included, in the same unit.

By the same fit: it is read and written by the optimizer, and takes a place in the cache.
"""


class PlannedMember(NamedTuple):
    """What grouping needs to know of a member."""

    stack_key: Hashable
    """Members of different structure are never in one stack."""
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
) -> list[list[int]]:
    """Places of the members of each stack, in the order of its rows; only equal ones share one unless `unequal`.

    Neighbours in a stack are alike: functions and missing layers come in runs.
    """
    fixed = FIXED_WORK.get(device, FIXED_WORK["cuda"])

    def union(places: tuple[int, ...]) -> _Union:
        specs = Counter(members[place].spec for place in places)
        padded = NetworkSpec.padded_union([*specs]) if len(specs) > 1 else members[places[0]].spec
        work = sum(count * spec.multiply_adds(padded, inputs, num_outputs) for spec, count in specs.items())
        stored = len(places) * padded.multiply_adds(padded, inputs, num_outputs)
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
        alike = [k for k in unions if stack_key(unions[k]) == stack_key(best)]
        pairs |= {(k, new): union(unions[k].places + best.places) for k in alike}
        unions[new] = best
    stacks = [
        sorted(one.places, key=lambda place: (*members[place].spec.stack_sort_key, place)) for one in unions.values()
    ]
    return sorted(stacks, key=min)
