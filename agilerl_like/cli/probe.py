"""`agilerl-like probe`: train in tiny environments with known values and actions."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.live import Live
from rich.table import Column, Table
from tyro.conf import FlagCreatePairsOff, Positional

from agilerl_like.cli.output import PipedConsole, checked_seed
from agilerl_like.envs.multi_agent.probe_envs import MULTI_AGENT_PROBES, MultiAgentProbe
from agilerl_like.envs.probe_envs import PROBES, Probe
from agilerl_like.errors import ConfigurationError, ExitCode, unknown_name
from agilerl_like.registry import registered
from agilerl_like.reporting.console import is_terminal
from agilerl_like.training.probe import Answer, ProbeRecord, solve, suits

NARROW, QUESTION = 80, 26
"""Width of a narrow console, and of its first column, which gets half of any further width."""


def probe(
    names: Positional[tuple[str, ...]] = (),
    /,
    seed: int = 0,
    teams: FlagCreatePairsOff[bool] = False,
    algorithm: str = "PPO",
) -> int:
    """Train an algorithm in tiny environments with known answers; exit code 1 if one is not solved.

    Args:
        names: Environments; all of them that the algorithm supports if left out.
        seed: Seed of all random streams.
        teams: Train IPPO in multi-agent environments.
        algorithm: PPO, PQN, DQN, TD3, DDPG, SAC, OpenAIES, CMAES or QLearning; or IPPO, which is --teams.
    """
    algorithms = registered("algorithm")
    if algorithm not in algorithms:
        raise unknown_name("algorithm", algorithm, algorithms)
    if teams and algorithm not in ("PPO", "IPPO"):  # PPO: it was not given
        raise ConfigurationError(f"algorithm={algorithm!r} does not train teams; allowed with --teams is IPPO")
    teams = teams or algorithm == "IPPO"
    probes: Mapping[str, Probe | MultiAgentProbe] = MULTI_AGENT_PROBES if teams else PROBES
    seed = checked_seed(seed)
    for name in names:
        if name not in probes:
            raise unknown_name("probe", name, probes)
        if not teams and not suits(PROBES[name], algorithm):
            raise ConfigurationError(f"probe={name!r} has actions, or needs memory, that {algorithm} does not support")
    console = _console()
    table = _table(probes, console.width)
    records: list[ProbeRecord] = []
    with Live(table, console=console, auto_refresh=False) as live:
        for name in names or [name for name in probes if teams or suits(PROBES[name], algorithm)]:
            record = solve(probes[name], seed=seed) if teams else solve(probes[name], seed=seed, algorithm=algorithm)
            records.append(record)
            for row in _rows(record):
                table.add_row(*row)
            live.refresh()
    return ExitCode.DONE if all(record.solved for record in records) else ExitCode.PROBE_FAILED


def _console() -> Console:
    """A console that rich takes for a terminal only if stdout is one, whatever `FORCE_COLOR` is."""
    return PipedConsole() if is_terminal(sys.stdout) else PipedConsole(force_terminal=False, force_jupyter=False)


def _table(names: Iterable[str], width: int) -> Table:
    """An empty table for a console of this width; a narrow one folds questions and answers."""
    probe = Column("probe", width=max(*map(len, names), (width - NARROW) // 2 + QUESTION), overflow="fold")
    answers = Column("known", overflow="fold"), Column("found", overflow="fold")
    return Table(probe, *answers, Column("solved", width=6), Column("seconds", width=7))


def _rows(record: ProbeRecord) -> Iterable[tuple[str, ...]]:
    """One row for each answer, so that folded expected and found values stay side by side."""
    solved = "[green]yes" if record.solved else "[red]no"
    for number, answer in enumerate(record.answers):
        if number:
            yield "", _expected(answer), _found(answer), "", ""
        else:
            yield f"[bold]{record.probe.name}", _expected(answer), _found(answer), solved, f"{record.seconds:.1f}"
    yield record.probe.question, "", "", "", ""


def _expected(answer: Answer) -> str:
    agent, what = answer.agent and f"{answer.agent}: ", "V" if answer.what == "value" else "a"
    return f"{agent}{what}({answer.question}) = {_list(answer.expected)}"


def _found(answer: Answer) -> str:
    text = _list(answer.found)
    return text if answer.is_correct else f"[red]{text}"


def _list(values: Iterable[float]) -> str:
    return ", ".join(f"{number:.3g}" for number in values)
