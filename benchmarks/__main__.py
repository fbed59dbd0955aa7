"""Run every speed benchmark and write each result into its section of benchmarks/README.md.

Returns at the end of training take hours: without names they are measured with `--quick` alone. `benchmarks.evolution`,
`.mutation_effect`, `.search`, `.halving`, `.auto_parts`, `.one_update` and `.agilerl_differences` are run by their own
commands.

    python -m benchmarks
    python -m benchmarks --quick                  # tiny sizes, to the terminal: does everything still run?
    python -m benchmarks learner_returns time_to_target
    python -m benchmarks scaling unequal_members --threads 1
"""

import argparse
import sys
import time
import traceback

from benchmarks import (
    evolution_cost,
    games,
    gpu,
    jax_program,
    learner_returns,
    memory,
    memory_speed,
    memory_tasks,
    multi_agent_rating,
    multi_agent_returns,
    multi_agent_speed,
    mutation_cost,
    network_returns,
    network_speed,
    off_policy_speed,
    processes,
    roofline,
    scaling,
    shared_memory,
    tensor_envs,
    throughput,
    time_to_target,
    unequal_members,
)

SPEED = {
    "throughput": throughput.main,
    "scaling": scaling.main,
    "unequal_members": unequal_members.main,
    "roofline": roofline.main,
    "evolution_cost": evolution_cost.main,
    "memory": memory.main,
    "processes": processes.main,
    "network_speed": network_speed.main,
    "memory_speed": memory_speed.main,
    "off_policy_speed": off_policy_speed.main,
    "mutation_cost": mutation_cost.main,
    "multi_agent_speed": multi_agent_speed.main,
    "tensor_envs": tensor_envs.main,
    "gpu": gpu.main,
    "jax_program": jax_program.main,
}
RETURNS = {
    "games": games.main,
    "learner_returns": learner_returns.main,
    "memory_tasks": memory_tasks.main,
    "multi_agent_rating": multi_agent_rating.main,
    "multi_agent_returns": multi_agent_returns.main,
    "network_returns": network_returns.main,
    "shared_memory": shared_memory.main,
    "time_to_target": time_to_target.main,
}

SHARED = ("threads", "repetitions", "seed", "patience", "output", "rows")
"""Options that every script has."""


def main() -> int:
    """Run the named benchmarks; the others run even if one fails."""
    scripts = {**SPEED, **RETURNS}
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(scripts)} (default: speed)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to the terminal")
    for name in SHARED:
        parser.add_argument(f"--{name}", help="for every script; default: each script's own")
    options = parser.parse_args()
    unknown = set(options.names) - scripts.keys()
    if unknown:
        parser.error(f"unknown {', '.join(sorted(unknown))}; there are {', '.join(scripts)}")
    shared = ["--quick"] if options.quick else []
    for name in SHARED:
        if getattr(options, name) is not None:
            shared += [f"--{name}", getattr(options, name)]
    start, failed = time.monotonic(), []
    for name in options.names or (scripts if options.quick else SPEED):
        print(f"{(time.monotonic() - start) / 60:.1f} min: {name}", file=sys.stderr, flush=True)
        try:
            scripts[name](shared)
        except Exception:
            traceback.print_exc()
            failed.append(name)
    print(f"{(time.monotonic() - start) / 60:.1f} min: done", file=sys.stderr)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
