"""An independent trainer: every update again, from the published weights and the archived trajectories alone.

    weights/v ─┐
    trained/v ─┴▶ float64, one trajectory a forward pass ─▶ loss, gradient, AdamW ─▶ metrics.jsonl, weights/v+1?

Its optimizer runs through all updates; its weights begin each one as the product published them.
"""

import copy

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from pipeline.config import Config
from pipeline.trajectory import Trajectory
from tests.recipes import formulas
from tests.trainer.oracle import loss_of
from tests.trainer.plain import sample

CLOSE = 2e-5  # of a loss, and of an advantage's center: the product sums in float32
DIRECTION = 0.02  # of a step: AdamW scales what is rounding in a gradient to a step of full size


class Replay:
    """`weights`: of each version, a Hugging Face folder."""

    def __init__(self, config: Config, weights: dict[int, str]):
        self.config, self.weights = config, weights
        torch.set_num_threads(1)
        self.model = AutoModelForCausalLM.from_pretrained(weights[0], dtype=torch.float64).eval()
        self.initial = copy.deepcopy(self.model)
        o = config.optimizer
        self.optimizer = torch.optim.AdamW(self.model.parameters(), o.lr, o.betas, o.eps, o.weight_decay)
        self.previous: dict[str, Trajectory] = {}
        self.credits: list[list[tuple[str, float, float]]] = []  # of each update: prompt, ρ, outcome, in batch's order

    def update(self, version: int, trajectories: list[Trajectory], line: dict) -> list[str]:
        """Update `version`; what of it differs from the product's `line` of metrics.jsonl and its next weights."""
        self._load(version)
        begun = [p.detach().clone() for p in self.model.parameters()]
        with torch.no_grad():
            start = [sample(self.model, self.initial, t) for t in trajectories]
        lengths = [len(s.actions) for s in start]
        advantages = self._advantages(trajectories, lengths)
        seen = self._seen_before(trajectories)
        losses, norms = [], []
        steps = self.config.trainer.minibatches
        for k in range(steps):
            own = [
                sample(self.model, self.initial, t, self._proximal(s), None, advantage)
                for t, s, advantage in list(zip(trajectories, start, advantages, strict=True))[k::steps]
            ]
            loss = loss_of(own, self.config.loss, self.config.rollout.context_length, start, steps)
            self.optimizer.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.optimizer.max_grad_norm)
            self.optimizer.step()
            losses.append(loss.item())
            norms.append(norm.item())
        wrong = differing("loss", line["loss"], np.mean(losses), CLOSE)
        wrong += differing("grad_norm", line["grad_norm"], np.mean(norms), 1e-3 * max(1.0, np.mean(norms)))
        center = np.dot(advantages, lengths) / max(sum(lengths), 1)
        wrong += differing("advantage_center", line["advantage_center"], center, CLOSE)
        wrong += self._step_differs(version, begun)
        self._credit(trajectories, seen)
        return [f"update {version}: {text}" for text in wrong]

    def _proximal(self, s):
        return s.rollout if self.config.loss.proximal == "rollout" else s.logprobs

    def _advantages(self, trajectories: list[Trajectory], lengths: list[int]) -> list[float]:
        a, longest = self.config.advantage, self.config.rollout.context_length
        rewards = [
            t.reward + formulas.overlong(len(t.tokens), longest, a.overlong_buffer, a.overlong_penalty)
            for t in trajectories
        ]
        values, groups = [t.value for t in trajectories], [t.entry for t in trajectories]
        return formulas.advantages(a.algorithm, a.normalization, rewards, values, lengths, groups)

    def _step_differs(self, version: int, start: list[torch.Tensor]) -> list[str]:
        """Our step from `start` against the product's, whose weights the model has afterwards."""
        if version + 1 not in self.weights:
            return [f"weights of version {version + 1} were never seen"]
        ours = torch.cat([(p.detach() - q).flatten() for p, q in zip(self.model.parameters(), start, strict=True)])
        self._load(version + 1)
        theirs = torch.cat([(p.detach() - q).flatten() for p, q in zip(self.model.parameters(), start, strict=True)])
        if not theirs.norm():
            return [] if not ours.norm() else ["the product's weights did not move"]
        away = float((ours - theirs).norm() / theirs.norm())
        return [] if away <= DIRECTION else [f"the step differs by {away:.3g} of its length"]

    # -- evidence of SPO

    def _seen_before(self, trajectories: list[Trajectory]) -> list[tuple[Trajectory, torch.Tensor] | None]:
        """Of each: the one before it of its prompt, in this batch or earlier, and its log-probs as they are now."""
        found = []
        for t in trajectories:
            before = self.previous.get(t.prompt_id)
            found.append(before and (before, self._logprobs(before)))
            self.previous[t.prompt_id] = t
        return found

    def _credit(self, trajectories: list[Trajectory], seen: list[tuple[Trajectory, torch.Tensor] | None]) -> None:
        drifts = [pair and float((self._logprobs(pair[0]) - pair[1]).abs().mean()) for pair in seen]
        self.credits.append(
            [(t.prompt_id, formulas.retention(d), t.outcome) for t, d in zip(trajectories, drifts, strict=True)]
        )

    def _load(self, version: int) -> None:
        fresh = AutoModelForCausalLM.from_pretrained(self.weights[version], dtype=torch.float64)
        self.model.load_state_dict(fresh.state_dict())

    @torch.no_grad()
    def _logprobs(self, t: Trajectory) -> torch.Tensor:
        """[L] float64 nats of its action tokens."""
        s = sample(self.model, self.initial, t)
        return s.logprobs[s.actions]


def differing(name: str, said: float, found: float, tolerance: float) -> list[str]:
    return [] if abs(said - found) <= tolerance else [f"{name} is {said:.8g} in metrics.jsonl, replayed {found:.8g}"]
