"""An independent trainer: every update again, from the published weights and the archived trajectories alone.

    weights/v ─┐
    trained/v ─┴▶ one trajectory a forward pass, plain PyTorch ─▶ loss, gradient, AdamW ─▶ metrics.jsonl, weights/v+1?

Its optimizer runs through all updates; its weights begin each one as the product published them.
"""

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from pipeline.config import Config
from pipeline.trajectory import Trajectory
from tests.recipes import formulas

CLOSE = 2e-5  # of a loss, and of an advantage's center: float32 sums in another order
DIRECTION = 0.02  # of a step: AdamW scales what is rounding in a gradient to a step of full size


class Replay:
    """`weights`: of each version, a Hugging Face folder."""

    def __init__(self, config: Config, weights: dict[int, str]):
        self.config, self.weights = config, weights
        torch.set_num_threads(1)
        self.model = AutoModelForCausalLM.from_pretrained(weights[0], dtype=torch.float32).eval()
        o = config.optimizer
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=o.lr, betas=o.betas, eps=o.eps, weight_decay=o.weight_decay
        )
        self.previous: dict[str, Trajectory] = {}
        self.credits: list[
            list[tuple[str, float, float]]
        ] = []  # of each update: prompt, ρ, outcome, in the batch's order

    def update(self, version: int, trajectories: list[Trajectory], line: dict) -> list[str]:
        """Update `version`; what of it differs from the product's `line` of metrics.jsonl and its next weights."""
        self._load(version)
        start = [p.detach().clone() for p in self.model.parameters()]
        proximal = [self._logprobs(t).detach() for t in trajectories]
        rollout = [torch.from_numpy(t.rollout_logprobs[actions(t)]) for t in trajectories]
        lengths = [len(actions(t)) for t in trajectories]
        weights = self._advantages(trajectories, lengths)
        seen = self._seen_before(trajectories)
        reference = self._initial_logprobs(trajectories) if self.config.loss.kl else proximal
        steps = self.config.trainer.minibatches
        losses, norms = [], []
        for k in range(steps):
            own = [i for i in range(len(trajectories))[k::steps] if lengths[i]]
            self.optimizer.zero_grad()
            prox = rollout if self.config.loss.proximal == "rollout" else proximal
            parts = [
                formulas.trajectory_loss(
                    self._logprobs(trajectories[i]), prox[i], rollout[i], reference[i], weights[i], self.config.loss
                )
                for i in own
            ]
            longest = self.config.rollout.context_length
            loss = formulas.averaged(parts, steps, sum(lengths), np.count_nonzero(lengths), longest, self.config.loss)
            loss.backward()
            norms.append(
                float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.optimizer.max_grad_norm))
            )
            self.optimizer.step()
            losses.append(float(loss.detach()))
        wrong = differing("loss", line["loss"], np.mean(losses), CLOSE)
        wrong += differing("grad_norm", line["grad_norm"], np.mean(norms), 1e-3 * max(1.0, np.mean(norms)))
        center = np.dot(weights, lengths) / max(sum(lengths), 1)
        wrong += differing("advantage_center", line["advantage_center"], center, CLOSE)
        wrong += self._step_differs(version, start)
        self._credit(trajectories, seen)
        return [f"update {version}: {text}" for text in wrong]

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

    def _initial_logprobs(self, trajectories: list[Trajectory]) -> list[torch.Tensor]:
        now = {name: value.clone() for name, value in self.model.state_dict().items()}
        self._load(0)
        found = [self._logprobs(t).detach() for t in trajectories]
        self.model.load_state_dict(now)
        return found

    # -- evidence of SPO

    def _seen_before(self, trajectories: list[Trajectory]) -> list[tuple[Trajectory, torch.Tensor] | None]:
        """Of each: the one before it of its prompt, in this batch or earlier, and its log-probs as they are now."""
        found = []
        for t in trajectories:
            before = self.previous.get(t.prompt_id)
            found.append(before and (before, self._logprobs(before).detach()))
            self.previous[t.prompt_id] = t
        return found

    def _credit(self, trajectories: list[Trajectory], seen: list[tuple[Trajectory, torch.Tensor] | None]) -> None:
        drifts = [pair and float((self._logprobs(pair[0]).detach() - pair[1]).abs().mean()) for pair in seen]
        self.credits.append(
            [(t.prompt_id, formulas.retention(d), t.outcome) for t, d in zip(trajectories, drifts, strict=True)]
        )

    def _load(self, version: int) -> None:
        fresh = AutoModelForCausalLM.from_pretrained(self.weights[version], dtype=torch.float32)
        self.model.load_state_dict(fresh.state_dict())

    def _logprobs(self, t: Trajectory) -> torch.Tensor:
        """[L] float32 nats of its action tokens."""
        tokens = torch.from_numpy(t.tokens.astype(np.int64))[None]
        places = torch.from_numpy(actions(t))
        logits = self.model(input_ids=tokens, use_cache=False).logits[0, places - 1].float()
        logprobs = torch.log_softmax(logits / self.config.rollout.temperature, -1)
        return logprobs.gather(-1, tokens[0, places, None]).squeeze(-1)


def actions(t: Trajectory) -> np.ndarray:
    return np.array([i for i in range(1, len(t.tokens)) if t.loss_mask[i]], dtype=np.int64)


def differing(name: str, said: float, found: float, tolerance: float) -> list[str]:
    return [] if abs(said - found) <= tolerance else [f"{name} is {said:.8g} in metrics.jsonl, replayed {found:.8g}"]
