"""One update of SB3, CleanRL and skrl beside ours with their presets, from the same weights and the same rollout.

    python -m benchmarks.one_update             # the largest difference of weights and of Adam's moments
    python -m benchmarks.one_update --record    # write what they computed to tests/data/one_update.npz

Stable-Baselines3 and skrl run in environments of their own (`benchmarks.venvs`). CleanRL is a script and no package:
its update is computed here from the meaning of its arguments. All sides use the samples in the same order.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor
from torch.distributions import Normal

from agilerl_like import PPO
from agilerl_like.algorithms.presets import as_arguments
from agilerl_like.foreign_settings import Conversion
from agilerl_like.foreign_settings.rules import activation, hidden_layers
from benchmarks import one_update_problem as problems
from benchmarks import venvs
from benchmarks.tables import ROOT

TOLERANCE = 1e-5
RECORDED = ROOT / "tests" / "data" / "one_update.npz"
MOMENTS = ("exp_avg", "exp_avg_sq")
Arrays = dict[str, np.ndarray]


def peer_update(system: str, problem: Arrays, settings: Mapping[str, Any]) -> Arrays:
    """Return what a system makes of a problem: parameters, moments, and the order of the samples in each epoch."""
    if system == "cleanrl":
        return cleanrl_update(problem, settings)
    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder, "problem.npz"), Path(folder, "out.npz")
        np.savez(given, allow_pickle=False, **problem)
        script = ROOT / "benchmarks" / "peers" / f"one_update_{system}.py"
        command = [str(venvs.interpreter(system)), str(script), str(given), json.dumps(settings), str(out)]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL)
        return dict(np.load(out))


CLEANRL = {
    "learning_rate": 2.5e-4,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "update_epochs": 4,
    "norm_adv": True,
    "clip_coef": 0.2,
    "clip_vloss": True,
    "ent_coef": 0.01,
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
}
"""Defaults of the arguments of CleanRL's ppo.py; the first update has the whole learning rate."""


def cleanrl_update(problem: Arrays, settings: Mapping[str, Any]) -> Arrays:
    """Return CleanRL's update of a problem."""
    options = {**CLEANRL, **settings}
    given = problems.tensors(problem)
    networks = {"actor": problems.network(problems.ACTIONS), "critic": problems.network(1)}
    log_std = torch.nn.Parameter(torch.zeros(problems.ACTIONS))
    named = {**problems.parameters(networks), "log_std": log_std}
    problems.load_weights(named, problem)
    optimizer = torch.optim.Adam(named.values(), lr=options["learning_rate"], eps=1e-5)
    advantages = _episode_advantages(given, networks["critic"], options["gamma"], options["gae_lambda"])
    columns = [given["observations"][:-1], given["actions"], given["log_probs"], given["values"], advantages]
    columns = [column.flatten(0, 1) for column in (*columns, advantages + given["values"])]
    generator, orders = torch.Generator().manual_seed(0), []
    for _ in range(options["update_epochs"]):
        orders.append(torch.randperm(len(columns[0]), generator=generator))
        for places in orders[-1].chunk(options["num_minibatches"]):
            loss = _cleanrl_loss(networks, log_std, [column[places] for column in columns], options)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(named.values(), options["max_grad_norm"])
            optimizer.step()
    return problems.outcome(named, optimizer, [order.numpy() for order in orders])


@torch.no_grad()
def _episode_advantages(given: dict[str, Tensor], critic: torch.nn.Module, gamma: float, gae_lambda: float) -> Tensor:
    """Return generalised advantages; nothing is added from behind the end of an episode."""
    values = torch.cat([given["values"], critic(given["observations"][-1:]).squeeze(-1)])
    continues = 1 - given["starts"][1:]
    errors = given["rewards"] + gamma * continues * values[1:] - values[:-1]
    found = torch.zeros_like(errors)
    for t in range(len(errors)):
        weight = torch.ones_like(errors[0])
        for later in range(t, len(errors)):
            found[t] += weight * errors[later]
            weight = weight * gamma * gae_lambda * continues[later]
    return found


def _cleanrl_loss(networks: Any, log_std: Tensor, batch: Sequence[Tensor], options: Mapping[str, Any]) -> Tensor:
    observations, actions, old_log_probs, old_values, advantages, returns = batch
    policy = Normal(networks["actor"](observations), log_std.exp())
    ratio = (policy.log_prob(actions).sum(-1) - old_log_probs).exp()
    if options["norm_adv"]:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    clip = options["clip_coef"]
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    values = networks["critic"](observations).squeeze(-1)
    errors = (values - returns) ** 2
    if options["clip_vloss"]:
        near = old_values + (values - old_values).clamp(-clip, clip)
        errors = torch.maximum(errors, (near - returns) ** 2)
    entropy = policy.entropy().sum(-1)
    return -surrogate.mean() + options["vf_coef"] * 0.5 * errors.mean() - options["ent_coef"] * entropy.mean()


def our_update(system: str, problem: Arrays, settings: Mapping[str, Any], orders: np.ndarray) -> Arrays:
    """Return our update of a problem with the preset of a system and settings by its names."""
    networks = hidden_layers(problems.HIDDEN) | activation("Tanh")
    agent = PPO(
        gymnasium.spaces.Box(-np.inf, np.inf, (problems.OBSERVATIONS,)),
        gymnasium.spaces.Box(-1.0, 1.0, (problems.ACTIONS,)),
        num_envs=problems.ENVS,
        seed=0,
        like=system,
        **as_arguments(Conversion(networks), "PPO"),
        **settings,
    )
    own = dict(agent.network.named_parameters())
    names = [_name(name) for name in own]
    problems.load_weights(dict(zip(names, own.values(), strict=True)), problem)
    agent.learner.shuffle = lambda epoch, samples: torch.from_numpy(orders[epoch])
    agent.learn(
        (
            list(problem["observations"][:-1]),
            list(problem["actions"]),
            list(problem["log_probs"]),
            list(problem["rewards"]),
            list(problem["starts"][:-1]),
            list(problem["values"]),
            problem["observations"][-1],
            problem["starts"][-1],
        )
    )
    found = {name: parameter.detach().numpy() for name, parameter in zip(names, own.values(), strict=True)}
    sizes = [parameter.numel() for parameter in own.values()]
    for moment in MOMENTS:
        rows = getattr(agent.optimizer, moment)[0].split(sizes)
        found |= {
            f"{moment}.{name}": row.numpy().reshape(found[name].shape) for name, row in zip(names, rows, strict=True)
        }
    return found


def _name(name: str) -> str:
    """Return the name in a problem of one of our parameters, such as actor.head.linears.1.bias."""
    if name.endswith("log_std"):
        return "log_std"
    part, half, _, number, kind = name.split(".")
    return f"{part}.{int(number) + (min(len(problems.HIDDEN), 2) if half == 'head' else 0)}.{kind}"


def differences(ours: Arrays, theirs: Arrays) -> dict[str, float]:
    """Return the largest difference of the actor's and the critic's weights, the log-std, and Adam's moments."""
    groups = {"actor": "actor.", "critic": "critic.", "log_std": "log_std", **{name: f"{name}." for name in MOMENTS}}
    return {
        group: max(float(np.abs(ours[name] - theirs[name]).max()) for name in ours if name.startswith(prefix))
        for group, prefix in groups.items()
    }


def write_record(problem: Arrays, cases: Mapping[str, Arrays]) -> None:
    """Write a problem and what each case computed, whose arrays are joined in the order of their names."""
    record = {f"problem/{name}": x for name, x in problem.items()}
    for case, found in cases.items():
        names = sorted(found.keys() - {"orders"})
        record[f"{case}/orders"] = found["orders"].astype(np.uint8)
        record[f"{case}/arrays"] = np.concatenate([found[name].ravel() for name in names])
    np.savez_compressed(RECORDED, allow_pickle=False, **record)


def read_record() -> tuple[Arrays, dict[str, Arrays]]:
    """Return the problem and the cases that `write_record` wrote."""
    record = dict(np.load(RECORDED))
    problem = {name.removeprefix("problem/"): x for name, x in record.items() if name.startswith("problem/")}
    shapes = {name: x.shape for name, x in problem.items() if name == "log_std" or name.startswith(problems.PARTS)}
    shapes |= {f"{moment}.{name}": shape for moment in MOMENTS for name, shape in shapes.items()}
    ends = np.cumsum([np.prod(shapes[name]) for name in sorted(shapes)])
    cases = {}
    for case in {name.rpartition("/")[0] for name in record} - {"problem"}:
        parts = np.split(record[f"{case}/arrays"], ends[:-1])
        cases[case] = {name: part.reshape(shapes[name]) for name, part in zip(sorted(shapes), parts, strict=True)}
        cases[case]["orders"] = record[f"{case}/orders"].astype(np.int64)
    return problem, cases


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("systems", nargs="*", metavar="SYSTEM", help=f"of {', '.join(problems.CASES)} (default: all)")
    parser.add_argument("--record", action="store_true", help=f"write {RECORDED.relative_to(ROOT)}")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    problem, recorded, failed = problems.make_problem(), {}, False
    for system in options.systems or problems.CASES:
        for number, settings in enumerate(problems.CASES[system]):
            theirs = peer_update(system, problem, settings)
            recorded[f"{system}/{number}"] = theirs
            found = differences(our_update(system, problem, settings, theirs["orders"]), theirs)
            moved = max(
                float(np.abs(theirs[name] - problem[name]).max()) for name in problem if name in found or "." in name
            )
            failed |= max(found.values()) > TOLERANCE
            shown = ", ".join(f"{name} {value:.1e}" for name, value in found.items())
            print(f"{system} {number}: weights moved by up to {moved:.1e}; differences: {shown}")
    if options.record:
        write_record(problem, recorded)
    print("FAILED" if failed else f"equal to {TOLERANCE:g}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
