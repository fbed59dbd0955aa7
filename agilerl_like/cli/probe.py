"""`agilerl-like probe`: train in tiny environments whose values and actions are known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.live import Live
from rich.table import Column, Table
from tyro.conf import FlagCreatePairsOff, Positional

from agilerl_like.cli.output import checked_seed
from agilerl_like.envs.probes import PROBES, Probe
from agilerl_like.envs.team_probes import TEAM_PROBES, TeamProbe
from agilerl_like.errors import ExitCode, unknown_name
from agilerl_like.training.probe import Answer, ProbeRecord, solve
from agilerl_like.training.team_probe import solve_team


def probe(names: Positional[tuple[str, ...]] = (), /, seed: int = 0, teams: FlagCreatePairsOff[bool] = False) -> int:
    """Train PPO in tiny environments with known answers; exit code 1 if one is not solved.

    Args:
        names: Which environments; all of them if left out.
        seed: Names all random streams.
        teams: Train IPPO in environments for teams.
    """
    worlds: Mapping[str, Probe | TeamProbe] = TEAM_PROBES if teams else PROBES
    seed = checked_seed(seed)
    for name in names:
        if name not in worlds:
            raise unknown_name("probe", name, worlds)
    answers = Column("known", no_wrap=True), Column("found", no_wrap=True)
    table = Table(Column("probe", min_width=max(map(len, worlds))), *answers, "solved", "seconds")
    records: list[ProbeRecord] = []
    with Live(table, console=Console(), auto_refresh=False) as live:
        for name in names or worlds:
            world = worlds[name]
            record = solve(world, seed=seed) if isinstance(world, Probe) else solve_team(world, seed=seed)
            records.append(record)
            table.add_row(*_row(record))
            live.refresh()
    return ExitCode.DONE if all(record.solved for record in records) else ExitCode.UNSOLVED


def _row(record: ProbeRecord) -> Iterable[str]:
    yield f"[bold]{record.probe.name}[/]\n{record.probe.question}"
    yield "\n".join(map(_known, record.answers))
    yield "\n".join(map(_found, record.answers))
    yield "[green]yes" if record.solved else "[red]no"
    yield f"{record.seconds:.1f}"


def _known(answer: Answer) -> str:
    who, what = answer.who and f"{answer.who}: ", "V" if answer.what == "value" else "a"
    return f"{who}{what}({answer.asked}) = {_list(answer.known)}"


def _found(answer: Answer) -> str:
    text = _list(answer.found)
    return text if answer.right else f"[red]{text}"


def _list(numbers: Iterable[float]) -> str:
    return ", ".join(f"{number:.3g}" for number in numbers)
