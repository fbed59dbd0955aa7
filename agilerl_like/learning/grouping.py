"""Which members are computed together: as few cohorts as pay.

Every cohort costs a fixed amount of time a step, however small its members are; a member in a larger one's company
costs the arithmetic of the zeros that fill it up. Starting from groups of equal members, the two whose union saves most
are joined until no union saves anything. The result depends on the members alone, so a run that is resumed is grouped
as it was.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import combinations
from typing import NamedTuple

from agilerl_like.networks.actor_critic import NetworkSpec

FIXED_WORK = {"cpu": 5e6, "cuda": 5e9}
"""What a cohort's minibatch step costs beside arithmetic, in multiplications of an actor that take as long.

On a CPU measured: a step of 1.1 ms for one member of 64-64-64 nets and 0.2 ms for each more, with 128 samples and 8,600
multiplications a sample; a step of acting adds a quarter. On a GPU, where a step of small nets waits for kernels to be
launched, an estimate.
"""


class Member(NamedTuple):
    """What grouping needs to know of a member."""

    structure: Hashable
    """Members of different structure are never computed together."""
    spec: NetworkSpec
    batch_size: int


class _Union(NamedTuple):
    places: tuple[int, ...]
    structure: Hashable
    cover: NetworkSpec
    work: float


def arrange(members: Sequence[Member], num_inputs: int, num_outputs: int, *, device: str) -> list[list[int]]:
    """Places of the members of each cohort; in a cohort, members of equal activations are neighbours."""
    fixed = FIXED_WORK.get(device, FIXED_WORK["cuda"])
    samples = sum(member.batch_size for member in members) / len(members)

    def union(places: tuple[int, ...], structure: Hashable, specs: Sequence[NetworkSpec]) -> _Union:
        cover = specs[0] if len(set(specs)) == 1 else NetworkSpec.covering(specs)
        work = fixed + len(places) * samples * cover.multiply_adds(num_inputs, num_outputs)
        return _Union(places, structure, cover, work)

    def joined(one: _Union, other: _Union) -> _Union:
        return union(one.places + other.places, one.structure, (one.cover, other.cover))

    equal: dict[tuple[Hashable, NetworkSpec], list[int]] = {}
    for place, member in enumerate(members):
        equal.setdefault((member.structure, member.spec), []).append(place)
    unions = {i: union(tuple(places), key[0], [key[1]]) for i, (key, places) in enumerate(equal.items())}
    pairs = {
        (i, j): joined(unions[i], unions[j])
        for i, j in combinations(unions, 2)
        if unions[i].structure == unions[j].structure
    }
    while pairs:
        i, j = max(pairs, key=lambda pair: unions[pair[0]].work + unions[pair[1]].work - pairs[pair].work)
        best = pairs[i, j]
        if best.work >= unions[i].work + unions[j].work:
            break
        del unions[i], unions[j]
        pairs = {pair: both for pair, both in pairs.items() if not {i, j} & set(pair)}
        new = max((i, j, *unions)) + 1
        pairs |= {(k, new): joined(unions[k], best) for k in unions if unions[k].structure == best.structure}
        unions[new] = best
    cohorts = [
        sorted(one.places, key=lambda place: (members[place].spec.activations, place)) for one in unions.values()
    ]
    return sorted(cohorts, key=min)
