"""`headrace top`: the live picture of any run that can be reached, on a terminal; one picture of it elsewhere.

    Onlooker (a thread) ──▶ Sight ──screen()──▶ the picture · or why there is none · q, Ctrl-C: the end

Resizing the terminal redraws; a Redis that goes away leaves the last picture, with a red line that says so.
"""

import contextlib
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from pipeline.config import Config
from pipeline.onlooker import Onlooker, Sight
from pipeline.picture import render

LOOK_S = 0.5  # of the onlooker
KEY_S = 0.25  # a key, or a new size of the terminal, is noticed within


def top(config: Config, redis_url: str | None = None) -> None:
    """Until q or Ctrl-C; where standard output is no terminal, one picture."""
    console, onlooker = Console(), Onlooker(config, redis_url)
    if not console.is_terminal:
        onlooker.look()
        console.print(screen(onlooker.sight, config.run.name, *console.size))
        return
    with (
        contextlib.suppress(KeyboardInterrupt),
        onlooker.watching(LOOK_S),
        keyboard() as key,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while key() not in ("q", "Q"):
            live.update(screen(onlooker.sight, config.run.name, *console.size), refresh=True)


def screen(sight: Sight, run: str, width: int, height: int) -> RenderableType:
    """What is seen, at this size."""
    if sight.snapshot is not None:
        return render(sight.snapshot, height, width, sight.said, alarm=sight.state in ("away", "stopped"))
    return Text.assemble((f" headrace · {run} ", "reverse bold"), "\n\n", (sight.said, "yellow"))


@contextlib.contextmanager
def keyboard() -> Iterator[Callable[[], str]]:
    """A function that waits KEY_S for a key: "" if none came, or there is no keyboard."""
    if not sys.stdin.isatty():
        yield lambda: "".join(select.select([], [], [], KEY_S)[0])
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield lambda: sys.stdin.read(1) if select.select([sys.stdin], [], [], KEY_S)[0] else ""
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
