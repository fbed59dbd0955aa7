"""Arguments of CleanRL's PPO scripts, and of DecisionTransformerInterpretability, whose names follow them."""

from __future__ import annotations

from agilerl_like.foreign_settings.rules import (
    CLIPS_BOTH,
    COMPUTED,
    FALLS,
    MINIBATCH_OR_NONE,
    NOT_LEARNING,
    RUN,
    TOTAL_STEPS,
    Rule,
    Rules,
    activation,
    annealing,
    clip_also_of_values,
    clips_values,
    each,
    hidden_layers,
    kept,
    refused,
    renamed,
    same,
    unused,
)

_SHARED: Rules = {
    **RUN,
    **kept("algorithm", "num_steps num_minibatches update_epochs gamma gae_lambda ent_coef vf_coef max_grad_norm"),
    **renamed("algorithm", learning_rate="lr"),
    "total_timesteps": TOTAL_STEPS,
    "cuda": Rule("run.device", "is auto for true and cpu for false", RUN["device"].convert),
    "track": same("run.wandb"),
    **each("batch_size minibatch_size", unused(COMPUTED)),
    **each("exp_name wandb_project_name wandb_entity capture_video", unused(NOT_LEARNING)),
}

CLEANRL: Rules = {
    **_SHARED,
    "gym_id": same("environment.id"),
    "target_kl": same("algorithm.target_kl"),
    "gae": refused("returns without GAE are advantage: mc", True),
    "anneal_lr": Rule("algorithm.lr_schedule", FALLS, annealing),
    "norm_adv": MINIBATCH_OR_NONE,
    "clip_coef": Rule("algorithm.clip_coef", CLIPS_BOTH, clip_also_of_values("clip_vloss")),
    "clip_vloss": Rule("algorithm.clip_coef_vf", "is clip_coef for true and none for false", clips_values),
    **each("num_iterations num_updates", unused(COMPUTED)),
    **each("save_model upload_model hf_entity", unused(NOT_LEARNING)),
    "torch_deterministic": unused("runs with a seed are reproducible on a CPU"),
}

_WRAPPER = "give its wrapper in environment.wrappers"
DTI: Rules = {
    **_SHARED,
    **kept("algorithm", "lr clip_coef"),
    "decay_lr": Rule("algorithm.lr_schedule", FALLS, annealing),
    "hidden_size": Rule(
        "network.encoder_config",
        "holds it as hidden_size, besides latent_dim and head_config",
        lambda value, given: hidden_layers([value] * 2) | activation("Tanh"),
    ),
    "use_trajectory_model": refused(
        "the agent of trajectories is absent here; recurrent: true with cell: transformer in memory_config gives a "
        "transformer as memory",
        False,
    ),
    "prob_go_from_end": refused("it is for windows of trajectories, which the transformer agent reads", 0, 0.0),
    "max_steps": Rule(
        "environment.kwargs", "has max_steps", lambda value, given: {"environment.kwargs.max_steps": value}
    ),
    "view_size": refused(_WRAPPER, 7),
    **each("one_hot_obs img_obs fully_observed", refused(_WRAPPER, False)),
    "num_checkpoints": unused("ten checkpoints are written in a run; training.checkpoint sets the steps between them"),
    **each("trajectory_path video_dir video_frequency render_mode", unused(NOT_LEARNING)),
    **each("action_space observation_space", unused(COMPUTED)),
}
