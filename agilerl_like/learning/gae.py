"""Generalised advantage estimation (Schulman et al. 2016) for terminated, truncated and invalid steps.

A terminated step has no next state, so it is not bootstrapped. An ended step, terminated or truncated, has no later
step in its episode, so the recursion stops there. Flags describe the step itself: `terminated[t]` means that step t
ended its episode, not that step t begins one.
"""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    *,
    terminated: Tensor,
    ended: Tensor,
    valid: Tensor,
    gamma: Tensor,
    gae_lambda: Tensor,
    n_step: Tensor | None = None,
    waited: Tensor | None = None,
) -> Tensor:
    """Return advantages `[T, …]`.

    `next_values[t]` is the value of the true next state of step t: at a time limit the final observation of that
    episode, never the first of the next. `ended` is terminated or truncated. A step that is not `valid` has no action
    and contributes nothing. Flags are 0 or 1 in the dtype of `rewards`; `gamma` and `gae_lambda` broadcast.

    A_t = delta_t + gamma lambda (1 - ended_t) A_{t+1},  delta_t = r_t + gamma (1 - terminated_t) V(s'_t) - V(s_t),
    or delta_t = 0 where step t is not valid. Where an agent `waited`, A_t = A_{t+1}, because such a step takes none of
    its own time. With lambda 1 the advantage is the discounted sum of rewards to the episode's end minus V(s_t).
    `n_step`, which broadcasts, limits the sum to so many of the agent's own steps: with lambda 1 that gives the n-step
    return, and steps in which it waited get 0.
    """
    delta = (rewards + gamma * (1 - terminated) * next_values - values) * valid
    decay = gamma * gae_lambda * (1 - ended)
    decay = decay if waited is None else torch.where(waited > 0, 1 - ended, decay)
    if n_step is None:
        return discounted_suffix_sum_(delta, decay)
    if waited is None:
        return windowed_suffix_sum_(delta, decay, n_step)
    order = torch.argsort(waited, dim=0, stable=True)  # own steps first, as the window must not count the others
    sums = windowed_suffix_sum_(delta.gather(0, order), decay.gather(0, order), n_step)
    return torch.zeros_like(sums).scatter_(0, order, sums)


def discounted_suffix_sum_(terms: Tensor, decay: Tensor) -> Tensor:
    """Return `s` with `s[t] = terms[t] + decay[t] * s[t + 1]`; overwrites both arguments.

    It takes log2(T) rounds instead of T: each round doubles the number of steps that `terms[t]` is the sum of, and
    `decay[t]` the product (Hillis and Steele 1986).
    """
    stretch = 1
    while stretch < terms.shape[0]:
        terms[:-stretch] += decay[:-stretch] * terms[stretch:]
        decay[:-stretch] = decay[:-stretch] * decay[stretch:]
        stretch *= 2
    return terms


def windowed_suffix_sum_(terms: Tensor, decay: Tensor, window: Tensor) -> Tensor:
    """Return the sums of `discounted_suffix_sum_` over `window` terms each; overwrites the first two arguments.

    `terms[t]` becomes the sum over 1, 2, 4, ... terms; the sums that the binary digits of `window` select, which
    broadcasts, are added up.
    """
    result, steps = torch.zeros_like(terms), len(terms)
    window, stretch = window.clamp(max=steps).long(), 1
    while stretch <= steps:
        joined = terms.clone()
        joined[:-stretch] += decay[:-stretch] * result[stretch:]
        result = torch.where(window & stretch > 0, joined, result)
        terms[:-stretch] += decay[:-stretch] * terms[stretch:]
        decay[:-stretch] = decay[:-stretch] * decay[stretch:]
        stretch *= 2
    return result


def next_of(values: Tensor, last_values: Tensor) -> Tensor:
    """Return values `[T, …]` shifted by one step; the last row is `last_values` `[…]`."""
    return torch.cat([values[1:], last_values.unsqueeze(0)])
