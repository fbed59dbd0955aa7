"""Short runs for the golden record: `digest_of` returns the digest of one.

A digest covers every file that a run leaves: weights, optimizer moments and normalizers of the last population and of
the best agent, their JSON documents, lineage.jsonl and metrics.csv without its times. The runs are configured by YAML
keys alone and the files are read without the package, so that the record does not depend on names in the code.
"""

import copy
import csv
import hashlib
import json

import torch
import yaml
from golden_envs import ContinuousTarget
from safetensors.numpy import load_file
from torch import nn

GENERATION = 256
BASE = {
    "seed": 3,
    "environment": {"id": "golden_envs:Target", "num_envs": 4, "backend": "sync"},
    "algorithm": {"learn_step": 64, "batch_size": 64, "update_epochs": 2, "lr": 1e-3},
    "population": {"size": 4},
    "hyperparameters": {
        "lr": {"min": 1e-4, "max": 1e-2},
        "ent_coef": {"min": 1e-4, "max": 1e-1},
        "learn_step": {"min": 32, "max": 128},
        "batch_size": {"min": 32, "max": 128, "scale": "power_of_two"},
    },
    "network": {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}, "latent_dim": 16},
    "mutation": {
        "no_mutation": 0.1,
        "architecture": 0.4,
        "new_layer_prob": 0.4,
        "parameters": 0.2,
        "activation": 0.2,
        "rl_hp": 0.2,
    },
    "training": {"max_steps": 4 * GENERATION, "evo_steps": GENERATION, "eval_loop": 2, "checkpoint": GENERATION},
    "run": {"plot": False},
}
IMAGE = {"channel_size": [4, 4], "kernel_size": [3, 3], "stride_size": [2, 2]}


def changed(base, **sections):
    """A copy of a configuration with some keys of its sections changed."""
    settings = copy.deepcopy(base)
    for name, section in sections.items():
        if isinstance(section, dict):
            settings.setdefault(name, {}).update(section)
        else:
            settings[name] = section
    return settings


RECURRENT = changed(
    BASE,
    environment={"id": "golden_envs:HiddenTarget"},
    algorithm={"recurrent": True, "max_seq_len": 8},
    network={"encoder_config": {"hidden_state_size": 16}},
)
TEAM = changed(BASE, environment={"id": "golden_envs:TeamTarget"}, algorithm={"name": "IPPO"})
TEAM["hyperparameters"].pop("learn_step")
RUNS = {
    "mlp discrete": BASE,
    "mlp box": changed(BASE, environment={"id": "golden_envs:ContinuousTarget"}),
    "mlp shared encoder": changed(BASE, algorithm={"share_encoders": True}),
    "mlp per member": changed(BASE, algorithm={"per_member": True}),
    "cnn": changed(BASE, environment={"id": "golden_envs:ImageTarget"}, network={"encoder_config": IMAGE}),
    "resnet": changed(
        BASE,
        environment={"id": "golden_envs:ImageTarget"},
        network={
            "encoder": "resnet",
            "encoder_config": {"channel_size": 4, "kernel_size": 3, "stride_size": 2, "num_blocks": 1},
        },
    ),
    "simba": changed(BASE, network={"encoder": "simba", "encoder_config": {"hidden_size": 16, "num_blocks": 1}}),
    "dict": changed(
        BASE, environment={"id": "golden_envs:DictTarget"}, network={"encoder_config": {"cnn_config": IMAGE}}
    ),
    "lstm apart": RECURRENT,
    "lstm shared": changed(RECURRENT, algorithm={"share_encoders": True}),
    "gru": changed(RECURRENT, network={"encoder_config": {"hidden_state_size": 16, "cell": "GRU"}}),
    "team": TEAM,
    "team recurrent": changed(
        TEAM, algorithm={"recurrent": True, "max_seq_len": 8}, network={"encoder_config": {"hidden_state_size": 16}}
    ),
}
"""Configurations that are trained by `agilerl-like train`."""
VARIANTS = ("mlp discrete, resumed", "mlp per member, two processes")
"""Runs that are stopped after half of their steps and resumed, or trained by two processes: their digests must be those
of the plain runs."""
NAMES = (*RUNS, *VARIANTS, "custom networks")


def digest(folder):
    """A digest of everything that a run's folder holds, without times."""
    found = hashlib.sha256()
    for name in ("population", "best"):
        for path in sorted((folder / name).rglob("*.safetensors")):
            for key, array in sorted(load_file(path).items()):
                found.update(f"{path.name} {key} {array.dtype} {array.shape}".encode() + array.tobytes())
        for path in sorted((folder / name).rglob("*.json")):
            if path.name != "manifest.json":
                found.update(json.dumps(without_versions(json.loads(path.read_text())), sort_keys=True).encode())
    found.update((folder / "lineage.jsonl").read_bytes())
    with (folder / "metrics.csv").open(newline="") as table:
        for row in csv.DictReader(table):
            found.update(json.dumps({k: v for k, v in sorted(row.items()) if not k.startswith("time/")}).encode())
    return found.hexdigest()[:16]


RECORDED_SETTINGS = [
    "action_noise_correlation",
    "action_std_init",
    "action_std_max",
    "action_std_min",
    "batch_size",
    "bptt_sequence_type",
    "clip_coef",
    "clip_coef_vf",
    "compile",
    "ent_coef",
    "gae_lambda",
    "gamma",
    "learn_step",
    "lr",
    "max_grad_norm",
    "max_seq_len",
    "normalize_images",
    "normalize_observation",
    "normalize_value",
    "per_member",
    "precision",
    "recurrent",
    "schedules",
    "share_encoders",
    "squash_output",
    "swap_channels",
    "target_kl",
    "update_epochs",
    "vf_coef",
]
"""The settings that there were when the record was made; documents without later ones at their defaults are equal."""


def without_versions(document):
    """A document without what depends on the machine and the installed versions, and without later settings."""
    kept = {key: value for key, value in document.items() if key not in ("versions", "version", "device")}
    return without_later_settings(kept)


def without_later_settings(value):
    """A value of a document without what was added later: settings at their defaults, `env_steps` and `progress`."""
    if not isinstance(value, dict):
        return value
    found = {key: without_later_settings(part) for key, part in value.items() if key not in ("env_steps", "progress")}
    if isinstance(found.get("settings"), dict):
        found["settings"] = {key: part for key, part in found["settings"].items() if not is_later_default(key, part)}
    return found


def is_later_default(name, value):
    """Whether a setting was added after the record, and has its default."""
    from agilerl_like.algorithms.ppo_config import PPOConfig
    from agilerl_like.algorithms.settings import validated

    return name not in RECORDED_SETTINGS and value == getattr(validated(PPOConfig, {}), name)


def train(folder, settings, *options):
    """Run the command in this process; return the folder of the run."""
    from agilerl_like.cli import main

    folder.mkdir(parents=True)
    (folder / "run.yaml").write_text(yaml.safe_dump(changed(settings, run={"name": "run", "dir": str(folder)})))
    code = main(["train", str(folder / "run.yaml"), *options])
    if code:
        raise SystemExit(f"{folder.name}: exit code {code}")
    return folder / "run"


def resumed(folder, settings):
    """Train half of the steps, then resume to all of them."""
    from agilerl_like.cli import main

    run = train(folder, changed(settings, training={"max_steps": 2 * GENERATION}))
    code = main(["resume", str(run), "--trust", "--training.max_steps", str(4 * GENERATION)])
    if code:
        raise SystemExit(f"{folder.name}: exit code {code}")
    return run


def custom(folder):
    """A population with networks of the user's own, by the Python interface."""
    from agilerl_like import PPO, Mutations, TournamentSelection, make_vect_envs, train_on_policy

    torch.manual_seed(0)
    env = make_vect_envs(ContinuousTarget, num_envs=4, backend="sync")
    networks = {
        f"{name}_network": nn.Sequential(nn.Linear(2, 12), nn.Tanh(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 1))
        for name in ("actor", "critic")
    }
    pop = PPO.population(
        4, env.single_observation_space, env.single_action_space, seed=3, learn_step=64, batch_size=64, **networks
    )
    train_on_policy(
        env,
        pop=pop,
        max_steps=3 * GENERATION,
        evo_steps=GENERATION,
        eval_loop=2,
        selection_strategy=TournamentSelection(2),
        mutation=Mutations(no_mutation=0.2, architecture=0.4, parameters=0.4),
        run_dir=folder,
        verbose=False,
    )
    env.close()
    return folder


def digest_of(name, folder):
    """Run what a name of `NAMES` stands for in an empty folder, with one thread; return its digest."""
    plain, _, variant = name.partition(", ")
    if variant == "resumed":
        return digest(resumed(folder / "run", RUNS[plain]))
    if variant == "two processes":
        return digest(train(folder / "run", changed(RUNS[plain], run={"processes": 2})))
    return digest(custom(folder / "run") if name == "custom networks" else train(folder / "run", RUNS[name]))
