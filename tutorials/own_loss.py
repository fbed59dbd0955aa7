"""PPO with a loss of your own: simple policy optimization (Xie et al. 2024), which bounds the ratio by a penalty."""

from agilerl_like import PPO, HyperparameterConfig, Mutations, RLParameter, TournamentSelection
from agilerl_like import make_vect_envs, train_on_policy


class SPO(PPO):
    """The gradient of a sample vanishes where its ratio is 1 + `clip_coef` (for a negative advantage 1 - `clip_coef`).

    PPO's clip ends the gradient there too, but leads no ratio back that is beyond.
    """

    algo = "SPO"  # its name in files and reports

    @staticmethod
    def loss(evaluation, targets, coefs):  # tensors [P, B] of P members and B samples; `agilerl_like.learning.ppo_loss`
        advantages = targets.advantages
        ratio = (evaluation.log_probs - targets.log_probs).exp()
        penalty = advantages.abs() / (2 * coefs.clip_coef) * (ratio - 1).square()
        error = 0.5 * (evaluation.values - targets.returns).square()
        cost = penalty - ratio * advantages + coefs.vf_coef * error - coefs.ent_coef * evaluation.entropy
        return (cost * targets.share).sum(-1)  # [P]; `share` weights the samples, with 0 where no agent acted


if __name__ == "__main__":
    env = make_vect_envs("CartPole-v1", num_envs=16)
    spaces = env.single_observation_space, env.single_action_space
    ranges = HyperparameterConfig(clip_coef=RLParameter(0.05, 0.4), lr=RLParameter(1e-4, 1e-2))
    pop = SPO.population(4, *spaces, num_envs=16, hp_config=ranges, learn_step=512, lr=1e-3, seed=1)
    search = {"selection_strategy": TournamentSelection(), "mutation": Mutations(rl_hp=1.0)}
    pop, _ = train_on_policy(env, pop=pop, max_steps=24_576, evo_steps=4_096, **search)
    pop.best.save_checkpoint("spo")
    print(SPO.load("spo"))
