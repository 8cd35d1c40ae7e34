"""`headrace web`: the live picture as a page, read-only, from one small server and one file, web.html.

    Onlooker (a thread) ──▶ Sight ──picture()──▶ GET /state.json     what the page asks for every second
                                                 GET /               web.html: no build step, nothing from elsewhere

GET alone, on 127.0.0.1 unless asked. It tells names, numbers and what is waited for; no prompt, no trajectory, no
password of a URL. Bound to loopback it answers only who asked for a loopback name: a page of the world that makes a
browser believe its own name were 127.0.0.1 learns nothing.
"""

import base64
import hashlib
import ipaddress
import json
import math
import re
import socket
from collections import Counter
from dataclasses import asdict, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from pipeline.alarms import alarms
from pipeline.config import Config
from pipeline.doing import doing, happened
from pipeline.errors import HeadraceError
from pipeline.events import Event
from pipeline.onlooker import Onlooker, Sight
from pipeline.secrets import masked
from pipeline.snapshot import Snapshot

LOOK_S = 1.0
IDLE_S = 20  # a connection on which nothing is asked ends
POINTS = 240  # of a curve
CURVES = ("reward", "mean_length", "mismatch_kl", "brier", "entropy")


class Server(ThreadingHTTPServer):
    """Serves until `shutdown`; port 0 takes a free one. Raises HeadraceError for an address that it cannot have."""

    daemon_threads = True

    def __init__(self, config: Config, onlooker: Onlooker, host: str = "127.0.0.1", port: int = 0):
        self.config, self.onlooker = config, onlooker
        self.page = (files("pipeline") / "web.html").read_bytes()
        self.policy = policy(self.page.decode())
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            raise HeadraceError(
                f"no page at {host}:{port}: {error.strerror}; choose another --port (0: a free one)"
            ) from None
        self.loopback = is_loopback(host)

    @property
    def url(self) -> str:
        host = self.server_address[0]
        return f"http://{f'[{host}]' if ':' in host else host}:{self.server_port}/"

    def service_actions(self) -> None:
        """Every half second: a thread that reads nothing any more ends the page with its error."""
        _ = self.onlooker.sight


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE_S
    server: Server

    def do_GET(self) -> None:
        if self.server.loopback and not is_loopback(self._asked_for()):
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, b"this page is for 127.0.0.1 and localhost\n", "text/plain")
        elif self.path == "/":
            self._answer(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")
        elif self.path == "/state.json":
            found = masked(picture(self.server.onlooker.sight, self.server.config))
            self._answer(HTTPStatus.OK, json.dumps(found, allow_nan=False).encode(), "application/json")
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"there are / and /state.json\n", "text/plain")

    def _asked_for(self) -> str:
        try:
            return urlsplit(f"//{self.headers.get('host', '')}").hostname or ""
        except ValueError:  # such as "["
            return ""

    def refuse(self) -> None:
        self.close_connection = True  # whatever it sent as a body is not read
        self._answer(HTTPStatus.METHOD_NOT_ALLOWED, b"this page is read-only: GET\n", "text/plain")

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = refuse
    do_HEAD = do_GET

    def _answer(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", self.server.policy)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *arguments) -> None:
        """A page that asks every second fills no terminal."""


def picture(sight: Sight, config: Config) -> dict[str, Any]:
    """What the page draws: numbers that JSON has, and text."""
    found = {
        "run": config.run.name,
        "state": sight.state,
        "said": outline(sight.said),
        "total_steps": config.run.total_steps,
    }
    return found if sight.snapshot is None else finite(found | _snapshot(sight.snapshot))


def _snapshot(s: Snapshot) -> dict[str, Any]:
    held_out = ("version", "state", "success", "stderr", "error")
    return {
        "version": s.version,
        "elapsed_s": round(s.elapsed_s),
        "waiting": outline(s.status["waiting"]),
        "alarms": alarms(s.last),
        "reward": s.mean_reward(),
        "generated": s.tokens_per_second,
        "trained": s.last.get("tokens_per_second"),
        "staleness": s.last.get("staleness", {}),
        "time": s.shares,
        "counts": {name: s.status[name] for name in ("reserved", "placed", "consumed", "surplus", "filtered")},
        "released": s.status["released"],
        "prompts": s.status["prompts"],
        "buffers": [asdict(view) for view in s.buffers if view.state != "CONSUMED"],
        "engines": [engine | {"load": s.load.get(engine["name"], 0)} for engine in s.status["engines"]],
        "processes": [
            {"name": p["name"], "host": p.get("host", ""), "does": doing(p), "waits": bool(p.get("waiting"))}
            for p in s.processes
        ],
        "evaluations": [{name: getattr(e, name) for name in held_out} for e in s.evaluations],
        "updates": thinned(s.metrics),
        "events": [{"ms": int(e.id.split("-")[0]), "kind": e.kind, "text": _told(e)} for e in reversed(s.events)],
    }


def thinned(metrics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most POINTS points of the curves: each the mean of as many updates, its staleness their sum."""
    step = max(1, math.ceil(len(metrics) / POINTS))
    points = []
    for start in range(0, len(metrics), step):
        group = metrics[start : start + step]
        point = {"version": group[-1]["version"], "staleness": dict(sum((_ages(line) for line in group), Counter()))}
        for name in CURVES:
            values = [line[name] for line in group if isinstance(line.get(name), int | float)]
            point[name] = sum(values) / len(values) if values else None
        points.append(point)
    return points


def _ages(line: dict[str, Any]) -> Counter:
    return Counter(line.get("staleness", {}))


def finite(value: Any) -> Any:
    """JSON has no NaN: null."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _told(event: Event) -> str:
    fields = {name: outline(value) for name, value in event.fields.items() if name != "why"}
    return happened(replace(event, fields=masked(fields)))  # masked before it is cut, which may take an address in two


def outline(text: str) -> str:
    """What an episode failed of may hold what the model replied: that is for `headrace events`."""
    return re.sub(r"; the last one: .*?(?=; mend the cause|$)", "", text, flags=re.DOTALL)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def policy(page: str) -> str:
    """Of content: this page's own style and script, and its own server; nothing else is loaded or run."""
    rules = ["default-src 'none'", "connect-src 'self'", "img-src data:", "base-uri 'none'", "form-action 'none'"]
    for kind, tag in (("style-src", "style"), ("script-src", "script")):
        inline = re.search(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)[1].encode()
        rules.append(f"{kind} 'sha256-{base64.b64encode(hashlib.sha256(inline).digest()).decode()}'")
    return "; ".join([*rules, "frame-ancestors 'none'"])
