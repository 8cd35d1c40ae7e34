"""The process that begins games: it imports alfworld once, translates each game once, and forks a process a game.

    worker ──control socket: {"path", "seed"} + one end of a new socket──▶ server ──fork──▶ child: that game alone
      └───────────────── the other end: "go to toilet 1" ─▶ ◀─ {"text", "won", "advice"} ────────────┘

    python -m workers.environments.alfworld.server FD        of the control socket; started by games.py

A child ends when its socket does, the server when the control socket does, and so nothing outlives the worker. It has
one thread and runs no game itself: what a game does to its process ends with it.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import tempfile

LONGEST = 4096  # bytes of one request
PREPARE_S = 120  # CPU-bound, for the largest room on a machine that is busy; whoever waits is told of the end


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    os.environ["ALFWORLD_DATA"] = tempfile.gettempdir()  # where alfworld, when it is imported, would make a folder
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children that have ended are nobody's to wait for
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker's, which ends its games itself
    from workers.environments.alfworld import game, remembered

    remembered.remember()
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, LONGEST, 1)
        if not request:
            return
        with socket.socket(fileno=descriptors[0]) as player:
            _begin(control, player, game, **json.loads(request))


def _begin(control: socket.socket, player: socket.socket, game, path: str, seed: int) -> None:
    signal.alarm(PREPARE_S)  # no translation may hold up the others for ever
    try:
        game.prepare(path)
    except Exception as error:
        _say(player, {"error": f"{type(error).__name__}: {error}"})
        return
    finally:
        signal.alarm(0)
    if os.fork():
        return
    control.close()
    try:
        _play(player, game.Game(path, seed))
    except Exception as error:
        _say(player, {"error": f"{type(error).__name__}: {error}"})
    finally:
        os._exit(0)


def _play(player: socket.socket, game) -> None:
    _say(player, game.begin()._asdict() | {"pid": os.getpid()})
    with player.makefile() as commands:
        for command in commands:
            _say(player, game.step(json.loads(command))._asdict())


def _say(player: socket.socket, answer: dict) -> None:
    with contextlib.suppress(OSError):  # whoever asked is gone
        player.sendall(json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main()
