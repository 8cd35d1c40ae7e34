"""The README's pictures, made of a real run while it is up:  python -m tests.pictures RUN [FOLDER]

    headrace up demo.toml ──▶ Onlooker ──▶ top.svg    what `headrace top` shows on a terminal of 120×34
                                       └─▶ web.png    what `headrace web` shows in Chromium, 1280 pixels wide

Run it where the run's name is known, in the middle of the run; FOLDER is the repository's top by default. A picture
without Chromium is one picture fewer, and says so.
"""

import asyncio
import io
import sys
import threading
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.terminal_theme import MONOKAI

from pipeline.onlooker import Onlooker
from pipeline.run_folder import find_run
from pipeline.top import screen
from pipeline.web import Server
from tests.browser import MISSING, browser, chromium

WIDTH, HEIGHT = 120, 34
PAGE = (1280, 800)
TOP = Path(__file__).parent.parent


def main(run: str, folder: Path = TOP) -> None:
    onlooker = Onlooker(find_run(run))
    onlooker.look()
    terminal(onlooker, run, folder / "top.svg")
    if chromium() is None:
        print(MISSING)
    else:
        page(onlooker, run, folder / "web.png")


def terminal(onlooker: Onlooker, run: str, path: Path) -> None:
    console = Console(width=WIDTH, height=HEIGHT, record=True, file=io.StringIO(), force_terminal=True)
    console.print(screen(onlooker.sight, run, WIDTH, HEIGHT))
    path.write_text(console.export_svg(title=f"headrace top {run}", theme=MONOKAI))
    print(f"{path}: {path.stat().st_size // 1024} KiB")


def page(onlooker: Onlooker, run: str, path: Path) -> None:
    async def shoot() -> None:
        async with browser() as open_page:
            opened = await open_page(server.url, *PAGE)
            await opened.until("!document.getElementById('picture').hidden")
            await opened.screenshot(path)
            end = await opened.evaluate("document.getElementById('events').getBoundingClientRect().top - 50")
        image = Image.open(path)  # without the events at its end, and in a few colours: a README loads it
        image.crop((0, 0, PAGE[0], round(end))).quantize(256).save(path, optimize=True)

    with Server(find_run(run), onlooker) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        asyncio.run(shoot())
        server.shutdown()
        thread.join()
    print(f"{path}: {path.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main(sys.argv[1], *map(Path, sys.argv[2:3]))
