"""The file of a backup is what was written, or it is refused by what is wrong with it; it writes nowhere else."""

import io
import json
import os
import tarfile

import pytest

from pipeline.backup_file import BadBackup, Writer, about, read_keys, unpack

COMMANDS = [[b"HSET", b"hr:{demo}", b"version", b"3"], [b"ZADD", b"hr:{demo}:prompts", b"0.1", b"p0"]]


@pytest.fixture
def file(tmp_path):
    folder = tmp_path / "demo"
    (folder / "weights" / "3").mkdir(parents=True)
    (folder / "weights" / "3" / "model.safetensors").write_bytes(os.urandom(300_000))
    (folder / "weights" / "4").mkdir()
    os.link(folder / "weights" / "3" / "model.safetensors", folder / "weights" / "4" / "model.safetensors")
    (folder / "run.toml").write_text("[run]\n")
    path = tmp_path / "demo.tar"
    with path.open("wb") as target:
        writer = Writer(target, "demo", {"run": "demo"})
        writer.add_keys(COMMANDS)
        for name in ("run.toml", "weights/3/model.safetensors", "weights/4/model.safetensors"):
            with (folder / name).open("rb") as source:
                writer.add_file(name, source)
        writer.finish()
    return path


def unpacked(file, tmp_path):
    (tmp_path / "out").mkdir(exist_ok=True)
    unpack(file, tmp_path / "out")
    return tmp_path / "out"


def test_what_was_written_comes_out_and_links_stay_links(file, tmp_path):
    assert about(file) == {"form": 1, "run": "demo"}
    out = unpacked(file, tmp_path)
    assert list(read_keys(out)) == COMMANDS
    first, second = (out / "weights" / version / "model.safetensors" for version in "34")
    assert first.read_bytes() == (tmp_path / "demo" / "weights" / "3" / "model.safetensors").read_bytes()
    assert first.samefile(second) and file.stat().st_size < 400_000


def test_many_keys_are_many_parts(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.backup_file.PART_BYTES", 100)
    commands = [[b"XADD", b"hr:{demo}:events", b"%d-0" % i, b"payload", bytes(60)] for i in range(1, 21)]
    with (path := tmp_path / "demo.tar").open("wb") as target:
        writer = Writer(target, "demo", {"run": "demo"})
        writer.add_keys(commands)
        writer.finish()
    out = unpacked(path, tmp_path)
    assert len(list((out / "keys").iterdir())) > 5
    assert list(read_keys(out)) == commands


def test_a_file_that_grows_while_it_is_read_is_what_it_was(tmp_path):
    (log := tmp_path / "metrics.jsonl").write_text('{"version": 0}\n')
    with (path := tmp_path / "demo.tar").open("wb") as target, log.open("rb") as source:

        class Grows:
            name, fileno = str(log), source.fileno

            def read(self, size):
                with log.open("a") as file:
                    file.write('{"version": 1}\n')
                return source.read(size)

        writer = Writer(target, "demo", {"run": "demo"})
        writer.add_file("metrics.jsonl", Grows())
        writer.finish()
    assert (unpacked(path, tmp_path) / "metrics.jsonl").read_text() == '{"version": 0}\n'


@pytest.mark.parametrize("left", [100, 2000, 20_000, 150_000, -11_000])
def test_a_file_that_was_cut_short_is_refused(file, tmp_path, left):
    file.write_bytes(file.read_bytes()[:left])
    with pytest.raises(BadBackup, match="take another copy of it"):
        about(file)
        unpacked(file, tmp_path)


def test_a_bit_that_fell_over_is_found_by_name(file, tmp_path):
    raw = bytearray(file.read_bytes())
    raw[100_000] ^= 1
    file.write_bytes(raw)
    with pytest.raises(BadBackup, match=r"weights/3/model\.safetensors is not what was written; take another copy"):
        unpacked(file, tmp_path)


def forged(tmp_path, *entries):
    path = tmp_path / "forged.tar"
    with tarfile.open(path, "w") as tar:
        for entry, data in entries:
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return path


@pytest.mark.parametrize(
    "name", ["demo/../../there", "/etc/there", "there", "demo/weights/../../../there"], ids=lambda name: name
)
def test_a_forged_file_writes_nowhere_else(tmp_path, name):
    path = forged(tmp_path, (tarfile.TarInfo(name), b"x"))
    with pytest.raises(BadBackup, match="was not made by headrace"):
        unpacked(path, tmp_path)
    assert not list(tmp_path.rglob("there"))


@pytest.mark.parametrize("name", ["../there", "a/b", "", "..", None])
def test_a_forged_name_of_a_run_is_none(tmp_path, name):
    said = json.dumps({"form": 1, "run": name}).encode()
    with pytest.raises(BadBackup, match="is no name of a run"):
        about(forged(tmp_path, (tarfile.TarInfo("demo/backup.json"), said)))


def test_a_link_leads_to_nothing_but_what_is_in_the_file(tmp_path):
    (tmp_path / "secret").write_text("s")
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
        entry = tarfile.TarInfo("demo/run.toml")
        entry.type, entry.linkname = kind, "demo/secret"
        with pytest.raises(BadBackup, match=r"which is not in it|no file, or there twice"):
            unpacked(forged(tmp_path, (entry, b"")), tmp_path)


def test_what_is_no_backup_is_told_so(tmp_path):
    (text := tmp_path / "text").write_text("no tar " * 1000)
    with pytest.raises(BadBackup, match="is no whole backup"):
        about(text)
    with pytest.raises(BadBackup, match=r"expected backup\.json as its first entry"):
        about(forged(tmp_path, (tarfile.TarInfo("demo/other"), b"x")))
    with pytest.raises(BadBackup, match="is of form None"):
        about(forged(tmp_path, (tarfile.TarInfo("demo/backup.json"), b"[1]")))
    with pytest.raises(BadBackup, match="is of form 7, this headrace reads 1: restore it with its own"):
        about(forged(tmp_path, (tarfile.TarInfo("demo/backup.json"), b'{"form": 7}')))
