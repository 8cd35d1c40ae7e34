"""The README's pictures are made by a script; here of a small ledger instead of a long run."""

import redis

from pipeline.config_file import load
from pipeline.coordinator import Coordinator
from pipeline.run_folder import open_folder
from tests import pictures
from tests.browser import chromium


def test_the_pictures_are_drawn_and_small_enough_for_a_readme(headrace, redis_url, run, tmp_path, monkeypatch):
    headrace("init", run, "--recipe", "demo")
    config = load(f"{run}.toml")
    open_folder(config)
    monkeypatch.setenv("REDIS_URL", redis_url)
    with redis.Redis.from_url(redis_url) as client:
        Coordinator.create(client, run, config.ledger_settings)
        pictures.main(run, tmp_path)
        client.flushdb()
    svg = (tmp_path / "top.svg").read_text()
    assert svg.startswith("<svg") and "buffers" in svg and len(svg) < 200_000
    png = tmp_path / "web.png"
    assert png.exists() == (chromium() is not None)
    assert not png.exists() or png.stat().st_size < 200_000
