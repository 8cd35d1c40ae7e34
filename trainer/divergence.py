"""Estimators of KL(q ‖ p) from samples of q, one number a token: Schulman, "Approximating KL Divergence" (2020).

x = log p - log q        k1 = -x   unbiased, either sign
                         k2 = x² / 2   biased, low variance
                         k3 = exp(x) - 1 - x   unbiased, never negative
"""

import torch

MAX_LOG_RATIO = 20.0  # nats; exp beyond it would overflow or vanish


def exp(log_ratio: torch.Tensor) -> torch.Tensor:
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def k1(log_ratio: torch.Tensor) -> torch.Tensor:
    return -log_ratio


def k2(log_ratio: torch.Tensor) -> torch.Tensor:
    return log_ratio.square() / 2


def k3(log_ratio: torch.Tensor) -> torch.Tensor:
    return exp(log_ratio) - 1 - log_ratio


KL_ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}
