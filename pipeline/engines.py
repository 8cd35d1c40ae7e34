"""Administration of one SGLang server over its HTTP API: is it alive, what does it serve, load weights, prove them.

    Engine(url) .check_health()      generates one token: /health can say 200 while the scheduler is dead
                .label()             what the server says it serves; it says whatever it was told
                .load(folder, label) /update_weights_from_disk between requests, the cache flushed
                .verify(manifest, …) the log-probs of the manifest's probe tokens are the trainer's
                .bring(folder, …)    all of it: afterwards the engine serves these weights, proven

Every call has a time limit. Whatever goes wrong is one EngineFailed whose code says which promise was broken.
"""

from pathlib import Path
from typing import Any

import httpx

from pipeline.errors import HeadraceError
from pipeline.weights import Label, Manifest, read_manifest

TOLERANCE = {"float32": 1e-3, "bfloat16": 0.2}  # nats, engine against trainer; kernels round differently
HEALTH_TIMEOUT_S = 30.0
REQUEST_TIMEOUT_S = 30.0


class EngineFailed(HeadraceError, RuntimeError):
    """code: UNREACHABLE (no answer in time), REFUSED (an error answered), REPLY (not understood), LABEL (serves other
    weights than asked for), PROBE (computes with other weights than its label says)."""

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code


class Engine:
    """One server. Not for rollouts: workers have an asynchronous client of their own."""

    def __init__(self, url: str):
        self.url = url.rstrip("/")
        self._http = httpx.Client(base_url=self.url, timeout=REQUEST_TIMEOUT_S)

    def close(self) -> None:
        self._http.close()

    def check_health(self, timeout_s: float = HEALTH_TIMEOUT_S) -> None:
        """Raises EngineFailed unless a token is generated within `timeout_s`."""
        self._generate([0], {"max_new_tokens": 1}, timeout_s)

    def label(self) -> str:
        """The label of the weights it serves, as it says."""
        return _text(self._call("GET", "/model_info"), "weight_version")

    def bring(self, folder: Path, run: str, timeout_s: float, tolerance: float | None = None) -> Manifest:
        """Make the engine serve the published weights in `folder`, and prove it; what it serves already is only proven.

        Raises BadWeights, or EngineFailed: then nothing may be routed to the engine.
        """
        manifest = read_manifest(folder)
        if self.label() == str(manifest.label(run)):
            try:
                return self.verify(manifest, run, tolerance)
            except EngineFailed as error:
                if error.code not in ("LABEL", "PROBE"):
                    raise
        self.load(folder, manifest.label(run), timeout_s)
        return self.verify(manifest, run, tolerance)

    def load(self, folder: Path, label: Label, timeout_s: float) -> None:
        """Serve the weights in `folder` as `label`. Running requests finish first; later ones wait for the new weights.

        The path is read by the server: on another host it must be the same shared file system.
        """
        request = {"model_path": str(folder.resolve()), "weight_version": str(label), "flush_cache": True}
        reply = self._call("POST", "/update_weights_from_disk", request, timeout_s)
        if reply.get("success") is not True:
            raise EngineFailed("REFUSED", f"{self.url} did not load {folder}: {reply.get('message', reply)!s:.500}")

    def verify(self, manifest: Manifest, run: str, tolerance: float | None = None) -> Manifest:
        """`manifest`. Raises EngineFailed unless the engine serves exactly the weights of `manifest`: label and probe.

        tolerance  nats, largest difference of a log-prob; None: 1e-3 for float32 weights, 0.2 for bfloat16
        """
        tolerance = TOLERANCE[manifest.dtype] if tolerance is None else tolerance
        meta = self._generate(list(manifest.probe_tokens), {"max_new_tokens": 0}, REQUEST_TIMEOUT_S, probe=True)
        expected, found = str(manifest.label(run)), _text(meta, "weight_version")
        if found != expected:
            raise EngineFailed("LABEL", f"{self.url} serves {found!r}, expected {expected!r}")
        try:
            rows = meta["input_token_logprobs"]
            tokens, logprobs = [int(row[1]) for row in rows], [float(row[0]) for row in rows[1:]]
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise EngineFailed("REPLY", f"{self.url}: expected the probe's log-probs, found {error!r}") from None
        if tokens != list(manifest.probe_tokens):
            raise EngineFailed("REPLY", f"{self.url}: log-probs of other tokens than the probe's came back")
        worst = max(abs(a - b) for a, b in zip(logprobs, manifest.probe_logprobs, strict=True))
        if not worst <= tolerance:  # NaN must fail too
            raise EngineFailed(
                "PROBE",
                f"{self.url} says it serves {expected}, but its log-probs of the probe tokens are {worst:.3g} nats "
                f"from the trainer's, expected at most {tolerance:g}: it computes with other weights, or "
                "engines.probe_tolerance is too tight for its kernels",
            )
        return manifest

    def _generate(self, tokens: list[int], sampling: dict, timeout_s: float, probe: bool = False) -> dict[str, Any]:
        request = {"input_ids": tokens, "sampling_params": sampling | {"temperature": 0}}
        if probe:
            request |= {"return_logprob": True, "logprob_start_len": 0}
        meta = self._call("POST", "/generate", request, timeout_s).get("meta_info")
        if not isinstance(meta, dict):
            raise EngineFailed("REPLY", f"{self.url}/generate: expected meta_info in the reply, found none")
        if (meta.get("finish_reason") or {}).get("type") == "abort":
            raise EngineFailed("REFUSED", f"{self.url}/generate: the request was aborted: {meta['finish_reason']}")
        return meta

    def _call(
        self, method: str, path: str, request: dict | None = None, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> dict[str, Any]:
        try:
            response = self._http.request(method, path, json=request, timeout=timeout_s)
        except httpx.TimeoutException:
            raise EngineFailed("UNREACHABLE", f"{self.url}{path}: no answer within {timeout_s:g} s") from None
        except httpx.HTTPError as error:
            raise EngineFailed("UNREACHABLE", f"{self.url}{path}: {error or type(error).__name__}") from None
        if response.status_code != 200:
            raise EngineFailed("REFUSED", f"{self.url}{path} answered {response.status_code}: {response.text:.500}")
        try:
            reply = response.json()
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            raise EngineFailed("REPLY", f"{self.url}{path}: expected a JSON object, found {response.text:.200}")
        return reply


def _text(reply: dict[str, Any], name: str) -> str:
    value = reply.get(name)
    if not isinstance(value, str):
        raise EngineFailed("REPLY", f"expected {name} in the server's reply, found {value!r:.80}: is it SGLang?")
    return value
