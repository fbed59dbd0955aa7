"""Law 11: a seed means the same bits in another process, with another hash seed and in another folder."""

import os
import subprocess
import sys

RUN = """
import hashlib, sys, torch
from agilerl_like import *

torch.set_num_threads(1)
env = make_vect_envs("CartPole-v1", num_envs=4, backend=sys.argv[2])
pop = PPO.population(
    3, env.single_observation_space, env.single_action_space, seed=int(sys.argv[1]), num_envs=4, learn_step=64,
    batch_size=32, lr=1e-3, hp_config=HyperparameterConfig(lr=RLParameter(1e-4, 1e-2), batch_size=RLParameter(16, 64)),
)
pop, fitness = train_on_policy(
    env, pop=pop, max_steps=800, evo_steps=200, eval_loop=2, verbose="loud" in sys.argv,
    selection_strategy=TournamentSelection(2), mutation=Mutations(no_mutation=0.1, rl_hp=0.4, activation=0.3),
)
state = hashlib.sha256()
for agent in pop:
    document, tensors = agent.to_documents()
    state.update(repr(sorted(document.items())).encode())
    for name in sorted(tensors):
        state.update(name.encode() + tensors[name].detach().contiguous().numpy().tobytes())
print("digest", state.hexdigest())
"""


def digest(cwd, *arguments, hash_seed="0"):
    done = subprocess.run(
        [sys.executable, "-c", RUN, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


def test_results_do_not_depend_on_process_folder_hash_seed_or_backend(tmp_path):
    """More ways to run the same, and other seeds, are in tests/faults/test_same_bits.py."""
    (tmp_path / "elsewhere").mkdir()
    first = digest(tmp_path, "1", "sync")
    assert digest(tmp_path / "elsewhere", "1", "async", "loud", hash_seed="77") == first
