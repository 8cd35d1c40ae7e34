"""Whole updates as nobody would run them: a Hugging Face model in float64, one trajectory a forward, loops for sums."""

import copy

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from advantage import estimate
from pipeline.config import Config
from pipeline.trajectory import Trajectory
from tests.trainer.oracle import Sample, loss_of, reject


def forward(model, t: Trajectory):
    """([T - 1] log-probs, [T - 1] entropies) of the tokens after the first, whoever wrote them."""
    tokens = torch.from_numpy(t.tokens.astype(np.int64))[None]
    everything = torch.log_softmax(model(input_ids=tokens).logits[0, :-1], -1)
    return everything.gather(1, tokens[0, 1:, None])[:, 0], -(everything.exp() * everything).sum(-1)


def sample(model, reference, t: Trajectory, proximal=None, mask=None, advantage=0.0) -> Sample:
    logprobs, entropy = forward(model, t)
    with torch.no_grad():
        held = forward(reference, t)[0]
    rollout = torch.tensor(t.rollout_logprobs[1:], dtype=torch.float64)
    proximal = logprobs.detach() if proximal is None else proximal
    mask = t.loss_mask[1:].tolist() if mask is None else mask
    return Sample(logprobs, proximal, rollout, held, entropy, mask, advantage)


def updates(config: Config, trajectories: list[Trajectory], count: int):
    """(loss of the last step, its gradient, the weights after it, action tokens that counted, the reference)."""
    model = AutoModelForCausalLM.from_pretrained(config.model.path).double()
    reference = copy.deepcopy(model)
    settings, steps = config.optimizer, config.trainer.minibatches
    optimizer = torch.optim.AdamW(
        model.parameters(), settings.lr, settings.betas, settings.eps, settings.weight_decay, foreach=False
    )
    for _ in range(count):
        with torch.no_grad():
            start = [sample(model, reference, t) for t in trajectories]
        if config.loss.proximal == "rollout":
            for s in start:
                s.proximal = s.rollout
        start = reject(start, config.loss) if config.loss.rejection != "none" else start
        lengths = [len(s.actions) for s in start]
        advantages = estimate(
            config.advantage.algorithm,
            [t.reward for t in trajectories],
            values=[t.value for t in trajectories],
            groups=[t.entry for t in trajectories],
            action_tokens=lengths,
        )
        for k in range(steps):
            own = [
                sample(model, reference, trajectories[i], start[i].proximal, start[i].mask, float(advantages[i]))
                for i in range(k, len(trajectories), steps)
            ]
            loss = loss_of(own, config.loss, config.rollout.context_length, whole=start, steps=steps)
            optimizer.zero_grad()
            loss.backward()
            gradient = {name: p.grad.float() for name, p in model.named_parameters()}
            optimizer.step()
        if config.loss.reference == "ewma":
            kept = config.loss.reference_decay
            with torch.no_grad():
                for mine, its in zip(reference.parameters(), model.parameters(), strict=True):
                    mine.copy_(kept * mine + (1 - kept) * its)
    weights = {name: p.detach().float() for name, p in model.named_parameters()}
    held = {name: p.detach().float() for name, p in reference.named_parameters()}
    return loss.item(), gradient, weights, sum(lengths), held
