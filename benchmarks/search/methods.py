"""The methods that are compared: how each starts its members, selects and explores.

Methods of other systems are in `rules.py` and `trials.py`; those of this package are called by their registered names,
so that what is measured is what users get. A name that is not registered (yet) is unavailable and skipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from agilerl_like.algorithms.population import founder_draws
from agilerl_like.hpo import AUTO, Explorer, HyperparameterConfig, Selection
from agilerl_like.hpo.auto import LEAST_GENERATIONS, AutoSelection
from agilerl_like.hpo.hyperparameters import Number
from agilerl_like.registry import registered
from agilerl_like.seeding import Purpose, generator
from benchmarks import venvs
from benchmarks.search import protocol
from benchmarks.search.protocol import ENVS, Case
from benchmarks.search.rules import AgileRLMutations, AgileRLTournament, RayExplore, RayPBT
from benchmarks.search.trials import AshaTrials, AskTellProcess, RandomTrials, TrialExplorer, TrialSelection


@dataclass
class Search:
    """What a method brings to a run."""

    members: int
    generations: int
    founders: list[dict[str, Number]]
    """Hyperparameters of the initial members."""
    ranges: HyperparameterConfig
    selection: Selection | None = None
    explorer: Explorer | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of `train_on_policy`."""
    evaluated: float = 1.0
    """Mean share of the members that a generation evaluates, for which the budget of evaluation is laid out."""
    close: Callable[[], None] = lambda: None

    @property
    def strategy(self) -> Selection | None:
        """The selection strategy, also where `options` name it."""
        return AutoSelection() if self.options.get("evolution") == AUTO else self.selection


@dataclass(frozen=True)
class Method:
    """A method by its name."""

    what: str
    make: Callable[[Case], Search]
    needs: tuple[tuple[str, str], ...] = ()
    """Registered entries, (kind, name), without which it is unavailable."""
    needs_venv: bool = False
    version: int = 3
    """Raised when the method changes, or the training loop for all methods, so that earlier rows are run again."""
    also_counts: Mapping[int, str] = field(default_factory=dict)
    """Earlier versions whose rows count until they are run again, and in which runs they differ from this one."""

    def missing(self) -> str:
        """Return why the method cannot run, "" if it can."""
        absent = [f"{kind} {name!r}" for kind, name in self.needs if name not in registered(kind)]
        if absent:
            return f"{' and '.join(absent)} not registered in this version"
        if self.needs_venv and not venvs.is_ready("search"):
            return "benchmarks/.venv-search is not made (python -m benchmarks.venvs search)"
        return ""


def _population(case: Case) -> Search:
    """Return a population at the case's start, without evolution."""
    env = ENVS[case.env]
    rngs = [generator(case.seed, Purpose.INITIAL_HYPERPARAMETERS, member) for member in range(case.members)]
    founders = [protocol.start_values(case.start, env, rng) for rng in rngs]
    return Search(case.members, case.generations, founders, protocol.hp_config(case.start))


def _no_evolution(case: Case) -> Search:
    return _population(case)


def _tuned(case: Case) -> Search:
    return _population(replace(case, start="S3"))


def _ray_pbt(case: Case) -> Search:
    search = _population(case)
    search.selection, search.explorer = RayPBT(), RayExplore()
    return search


def _agilerl(case: Case) -> Search:
    """Return AgileRL's search; its integers are not powers of two, else its factors could never move them."""
    search = _population(case)
    search.ranges = protocol.hp_config(case.start, powers_of_two=False)
    search.selection, search.explorer = AgileRLTournament(), AgileRLMutations()
    return search


def _registered(
    selection: str, explorer: str, chosen: Mapping[str, Any] | None = None, explored: Mapping[str, Any] | None = None
) -> Callable[[Case], Search]:
    """Return a maker of a search by names of the registry, with settings of its selection and explorer."""

    def make(case: Case) -> Search:
        search = _population(case)
        search.selection = registered("selection")[selection](**(chosen or {}))
        search.explorer = registered("explorer")[explorer](**(explored or {}))
        if isinstance(search.selection, AutoSelection):
            search.evaluated = _evaluated(search.selection, case)
        return search

    return make


def _trials(case: Case, make_scheduler: Callable[..., Any], slots: int, length: int) -> Search:
    """Return a search by single trials; the start is the first trial, all others are the method's own.

    A drawn start is no start: all trials are the method's own.
    """
    population = _population(case)
    first = population.founders[:1] if case.start != "S2" else []
    selection = TrialSelection(scheduler=make_scheduler(population.ranges, length, first))
    return Search(
        slots,
        case.members * case.generations // slots,
        selection.begin(range(slots)),
        population.ranges,
        selection,
        TrialExplorer(selection),
        close=selection.scheduler.close,
    )


def _quarters(case: Case) -> Search:
    def scheduler(ranges: HyperparameterConfig, length: int, first: list[dict[str, Number]]) -> RandomTrials:
        return RandomTrials(ranges, _trial_rng(case), length, first)

    return _trials(case, scheduler, case.members, max(1, case.generations // 4))


def _asha(case: Case) -> Search:
    def scheduler(ranges: HyperparameterConfig, length: int, first: list[dict[str, Number]]) -> AshaTrials:
        return AshaTrials(ranges, _trial_rng(case), length, first)

    return _trials(case, scheduler, _slots(case), case.generations)


def _library(kind: str) -> Callable[[Case], Search]:
    def make(case: Case) -> Search:
        def scheduler(ranges: HyperparameterConfig, length: int, first: list[dict[str, Number]]) -> AskTellProcess:
            most = case.members * case.generations
            return AskTellProcess(venvs.interpreter("search"), kind, ranges, case.seed, length, first, most)

        return _trials(case, scheduler, _slots(case), case.generations)

    return make


def _slots(case: Case) -> int:
    return min(case.members, protocol.TRIAL_SLOTS)


def _trial_rng(case: Case) -> np.random.Generator:
    return generator(case.seed, Purpose.INITIAL_HYPERPARAMETERS, 1_000)


def _auto(case: Case) -> Search:
    """Return what users get by evolution="auto"; where members are drawn, by this package's own draws."""
    search = _sobol(_population(case), case)
    search.options = {"evolution": AUTO}
    search.evaluated = _evaluated(AutoSelection(), case)
    return search


def _evaluated(selection: AutoSelection, case: Case) -> float:
    """Return the mean share of the members in a generation of a selection that halves the population."""
    if case.generations < LEAST_GENERATIONS:
        return 1.0
    halvings = [sum(n / case.generations >= share for share in selection.halve_at) for n in range(case.generations)]
    return float(np.mean([max(2, math.ceil(case.members / 2**count)) for count in halvings])) / case.members


def _sobol(search: Search, case: Case) -> Search:
    if case.start == "S2":
        search.founders = founder_draws(search.ranges, case.members, case.seed)
    return search


def _ours(
    what: str,
    chosen: Mapping[str, Any] | None = None,
    explored: Mapping[str, Any] | None = None,
    *,
    selection: str = AUTO,
    explorer: str = AUTO,
) -> Method:
    """Return the default search with a part of it changed or switched off."""
    make = _registered(selection, explorer, chosen, explored)
    needs = (("selection", selection), ("explorer", explorer))
    return Method(what, lambda case: _sobol(make(case), case), needs, version=21)


FOREIGN_EPISODES = "the training return of a member that took a slot contained the episodes that had begun there"
"""How `ours` before version 20 and `ipbt` before version 6 differ, for `also_counts`."""
MISSING_EPISODES = (
    "the training return of a member that took a slot lacked the first episode in envs whose episode had just ended"
)
"""How version 20 of `ours` and version 6 of `ipbt` differ, for `also_counts`."""
SHRUNK_DEVIATION = "the logarithm of the action deviation shrank with the weights of restarted members"
"""How `ipbt` before version 8 differs, for `also_counts`."""

METHODS = {
    "ours": Method(
        'evolution="auto"', _auto, (("selection", AUTO), ("explorer", AUTO)), version=21, also_counts={
            16: "no fresh members came in generations in which a clone of the best agent had just returned, although "
            f"no member earned more than a constant policy, and {FOREIGN_EPISODES}",
            17: "no constant policies were played in simple_spread, so that no fresh members could come there, a "
            "fresh member could replace a clone of the best agent in the generation of its return, where no member "
            f"earned more than a constant policy, and {FOREIGN_EPISODES}",
            20: MISSING_EPISODES,
        },
    ),
    "ours_no_halving": _ours("ours: all members stay to the end", {"halve_at": ()}),
    "ours_no_warm_up": _ours("ours: selection from the first generation on", {"warm_up": 0.0}),
    "ours_late_clones": _ours("ours: clones from two thirds of the budget on", {"warm_up": 2 / 3}),
    "ours_no_gate": _ours("ours: every difference counts", {"gate": 0.0}),
    "ours_no_restart": _ours("ours: no fresh members where the search stalls", {"restart_stalled": False}),
    "ours_no_second_draw": _ours("ours: no fresh members during the warm-up", {"restart_worse": 0.0}),
    "ours_no_return": _ours("ours: the best agent does not return", {"return_best": False}),
    "ours_no_spread": _ours("ours: equal members stay equal", {"spread_equals": False}),
    "ours_no_blend": _ours("ours: fitness of the evaluation alone", {"blend_training": False}),
    "ours_quarter": _ours("ours: at most a quarter is replaced", {"share": 0.25}),
    "ours_gentle": _ours("ours: at most a quarter is replaced in the last third", {"final_share": 0.25}),
    "ours_no_annealing": _ours("ours: lr stays", {"anneal_from": 1.0}),
    "ours_halved_twice": _ours("ours: half of the members removed twice", {"halve_at": (1 / 4, 1 / 2)}),
    "ours_no_redraw": _ours("ours: normal steps, no new draws", {}, {"redraw": 0.0}),
    "ours_no_architecture": _ours("ours: architectures stay", {}, {"architecture": 0.0}),
    "ours_process": _ours("ours: PB2 in place of normal steps", explorer="pb2"),
    "ours_bandit": _ours("ours: a bandit over kinds of mutation in place of normal steps", explorer="bandit"),
    "ours_factors": _ours("ours: PBT's factors in place of normal steps", explorer="factors"),
    "ours_truncation": _ours("ours: truncation in place of the gate", selection="truncation"),
    "ours_drawn": Method(
        "ours: initial members drawn independently, not by Sobol", _registered(AUTO, AUTO),
        (("selection", AUTO), ("explorer", AUTO)), version=21,
    ),
    "pb2": Method(
        "a variant of PB2: truncation, this package's process without its rule for noise; a quarter of the clones take "
        "normal steps, and architectures change",
        _registered("truncation", "pb2", {}, {"always": True}),
        (("selection", "truncation"), ("explorer", "pb2")),
    ),
    "mf_pbt": Method(
        "a variant of MF-PBT: factors 0.8 and 1.2 and new draws, where the original has 0.8 and 1.25; 20 acts",
        _registered("mf_pbt", "factors"),
        (("selection", "mf_pbt"), ("explorer", "factors")),
    ),
    "ipbt": Method(
        "a variant of IPBT: restarts with doubled generations, gated selection, and PB2 on all rounds",
        _registered("ipbt", "pb2"),
        (("selection", "ipbt"), ("explorer", "pb2")), version=8, also_counts={
            4: "members in doubt played further episodes in generations without a selection, too, "
            f"{FOREIGN_EPISODES}, and {SHRUNK_DEVIATION}",
            6: f"{MISSING_EPISODES}, and {SHRUNK_DEVIATION}",
            7: SHRUNK_DEVIATION,
        },
    ),
    "hyperband_tpe": Method(
        "this package's Hyperband with TPE, eight jobs at a time", _registered("hyperband", "tpe"),
        (("selection", "hyperband"), ("explorer", "tpe")),
    ),
    "no_evolution": Method("population without evolution: random search of full runs from S2", _no_evolution),
    "random_quarters": Method(
        "random search, four times as many runs, of five generations each; in the last generation, the 21st, new runs "
        "train for one",
        _quarters,
    ),
    "tpe_median": Method(
        "Optuna: TPE, median pruner, from the fifth trial on: it compares with trials that have ended, and the first "
        "four run side by side for half of the budget",
        _library("tpe_median"), needs_venv=True, version=4,
    ),
    "tpe_hyperband": Method(
        "Optuna: TPE, Hyperband pruner", _library("tpe_hyperband"), needs_venv=True, version=4,
    ),
    "asha": Method("Ray's rules of ASHA on random trials", _asha),
    "smac_hyperband": Method(
        "SMAC: Hyperband, random forest; a promoted trial starts again", _library("smac_hyperband"), needs_venv=True,
        version=4,
    ),
    "ray_pbt": Method("Ray's rules of PBT", _ray_pbt),
    "agilerl_rules": Method(
        "AgileRL's rules and probabilities; its factors apply to gamma and gae_lambda themselves, as there: from 0.84 "
        "on growth leads to the upper end of their range, and shrinking gamma to its lower end, where the other "
        "methods that multiply move 1 - gamma and 1 - gae_lambda",
        _agilerl,
    ),
    "tuned": Method("population without evolution at rl-zoo's values, whatever the start", _tuned),
}  # fmt: skip
