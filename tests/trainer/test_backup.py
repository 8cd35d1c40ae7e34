"""A run as one file, and again a run: it goes on as if nothing had happened, wherever it is restored."""

import json
import os
import shutil
import subprocess
import tarfile
import threading

import pytest

from pipeline import backup_file, checkpoint_folder, events, keys, ledger_copy, ports, weights
from pipeline import restore as restoring
from pipeline.audit import audit
from pipeline.backup import backup
from pipeline.checkpoint_folder import DamagedCheckpoint
from pipeline.cli import cli
from pipeline.config_file import load
from pipeline.errors import ConfigError, HeadraceError, LedgerError, OtherSchema
from pipeline.fork import fork
from pipeline.ledger_copy import Moved
from pipeline.redis_client import connect
from pipeline.redis_server import RedisServer, find_binary
from pipeline.restore import restore
from tests.fixtures_users import DOCKER, password, server_of_users
from tests.trainer.ledger import Producer, make_run
from tests.trainer.runs import Killed, comparable, last_weights, recorded, train
from tests.waiting import wait_for
from trainer.loop import Trainer


class KilledWhileItWaits(Trainer):
    """Checkpoint 2 is durable; update 2 is made and published."""

    def _next_batch(self):
        if self.version == 3:
            raise Killed
        return super()._next_batch()


@pytest.fixture(scope="module")
def kept(redis_url, tmp_path_factory):
    """The backup of a run of which three updates of four are made, and batch 3 is as full as the ledger has it."""
    folder = tmp_path_factory.mktemp("kept")
    with connect(redis_url) as client:
        config = make_run(folder / "here", f"kept-{os.getpid()}")
        with Producer(client, config), pytest.raises(Killed):
            train(config, client, kind=KilledWhileItWaits)
        backup(str(config.folder), folder / "kept.tar", redis_url)
        forget(client, config)
    return folder / "kept.tar"


@pytest.fixture
def killed(kept, client, redis_url, tmp_path):
    """That run, as if it had been killed here."""
    config = load(f"{restore(kept, tmp_path / 'here', redis_url)['folder']}/run.toml")
    yield config
    ledger_copy.forget(client, config.run.name)


def forget(client, config):
    ledger_copy.forget(client, config.run.name)
    shutil.rmtree(config.folder)


@pytest.mark.parametrize("embedded", [False, True])
def test_a_restored_run_equals_the_uninterrupted_one_bit_for_bit(
    client, redis_url, killed, tmp_path, uninterrupted, embedded
):
    file = tmp_path / "one.tar"
    told = backup(str(killed.folder), file, redis_url)
    assert (told["version"], told["checkpoint"]) == (3, 2)
    forget(client, killed)
    told = restore(file, tmp_path / "there", None if embedded else redis_url)
    config = load(f"{told['folder']}/run.toml")
    assert config.folder == tmp_path / "there" / killed.run.name and config.digest == killed.digest
    server = RedisServer.start(config.folder / "redis") if embedded else None
    url = server.url if embedded else redis_url
    with connect(url) as ours:
        with Producer(ours, config) as producer:
            assert producer.ledger.status()["consumed"] == 3 * config.buffers.batch_size
            train(config, ours)
        assert (comparable(recorded(config)), last_weights(config)) == uninterrupted
        events.archive(ours, config.run.name, config.folder / "events.jsonl")
        findings = audit(config, url)
    assert findings.clean, findings
    if server:
        server.stop()


def test_a_backup_of_a_run_that_goes_on_is_one_moment_of_it(client, redis_url, run, tmp_path, uninterrupted):
    config = make_run(tmp_path / "here", run, checkpoint_every=1)
    files, over = [], threading.Event()

    class Patient(Trainer):
        """Leaves a moment for others between its updates."""

        def _next_batch(self):
            taken = len(files)
            wait_for(lambda: len(files) > taken or not keeper.is_alive())
            return super()._next_batch()

    def keep():
        while not over.is_set():
            backup(str(config.folder), file := tmp_path / f"{len(files)}.tar", redis_url)
            files.append(file)

    keeper = threading.Thread(target=keep)
    with Producer(client, config):
        keeper.start()
        try:
            train(config, client, kind=Patient)
        finally:
            over.set()
            keeper.join()
    moments = {backup_file.about(file)["version"]: file for file in files}
    assert len(moments) >= 3
    assert (comparable(recorded(config)), last_weights(config)) == uninterrupted, "nothing disturbed it"
    for version, file in moments.items():
        restored = load(f"{restore(file, tmp_path / file.stem)['folder']}/run.toml")
        server = RedisServer.start(restored.folder / "redis")
        with connect(server.url) as ours:
            if version in (min(moments), sorted(moments)[1]):
                with Producer(ours, restored):
                    train(restored, ours)
                assert (comparable(recorded(restored)), last_weights(restored)) == uninterrupted, version
            events.archive(ours, run, restored.folder / "events.jsonl")
            findings = audit(restored, server.url)
        server.stop()
        assert findings.clean and "payload" in findings.checked, findings


def test_what_a_checkpoint_covers_meanwhile_is_read_anew(client, redis_url, killed, tmp_path, monkeypatch):
    """The second reading of the folder has the newest checkpoint; the first one's batches are gone."""
    newest, asked = checkpoint_folder.newest, []

    def of_before(folder):
        asked.append(folder)
        return None if len(asked) == 1 else newest(folder)

    client.hset(keys.run(killed.run.name), "oldest", 1)
    monkeypatch.setattr(checkpoint_folder, "newest", of_before)
    told = backup(str(killed.folder), tmp_path / "one.tar", redis_url)
    assert told["checkpoint"] == 2 and len(asked) == 2
    monkeypatch.setattr(checkpoint_folder, "newest", lambda folder: None)
    with pytest.raises(HeadraceError, match=r"gone on faster than it could be read, 5 times.*headrace down"):
        backup(str(killed.folder), tmp_path / "two.tar", redis_url)
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".tar"] == ["here"]
    assert not (tmp_path / "two.tar").exists()


def test_payloads_that_go_while_they_are_read_are_noticed(client, killed):
    cut = ledger_copy.cut(client, killed.run.name)
    (stream,) = (stream for stream in cut.streams if b":trajectories:" in stream.key)
    first, *_ = client.xrange(stream.key, count=1)
    client.xdel(stream.key, first[0])
    with pytest.raises(Moved, match="1 trajectories were deleted"):
        list(ledger_copy.entries(client, stream, whole=True))


def names_in(file):
    with tarfile.open(file) as tar:
        return {name.partition("/")[2] for name in tar.getnames()}


def test_the_file_is_a_tar_with_what_a_resume_needs_and_no_secret(client, redis_url, killed, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_API_KEY", "the-key-of-the-servers")
    (killed.folder / "logs").mkdir()
    (killed.folder / "logs" / "engine-0.log").write_text("--api-key the-key-of-the-servers")
    (killed.folder / ".run.toml-1").write_text("a draft")
    client.execute_command("ACL", "SETUSER", "keeper", "on", ">a-password", "~*", "+@all")
    address = redis_url.replace("//", "//keeper:a-password@")
    file = tmp_path / "one.tar"
    backup(str(killed.folder), file, address)
    client.execute_command("ACL", "DELUSER", "keeper")
    raw = file.read_bytes()
    assert b"the-key-of-the-servers" not in raw and b"a-password" not in raw
    names = names_in(file)
    assert {"backup.json", "SHA256SUMS", "run.toml", "metrics.jsonl", "checkpoints/2/state.json"} <= names
    assert {name.split("/")[1] for name in names if name.startswith("weights/")} >= {"0"}
    newest = next(p.name for p in weights.published(killed.folder / "weights") if p.name.startswith("3-"))
    assert f"weights/{newest}/manifest.json" in names
    assert not [name for name in names if name.startswith(("logs", "redis", ".", "up.lock"))]
    subprocess.run(["tar", "xf", file, "-C", tmp_path], check=True)
    checked = subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=tmp_path / killed.run.name)
    assert checked.returncode == 0
    assert not [key for key in client.scan_iter(f"{keys.run(killed.run.name)}:process*") if key.decode() in str(raw)]


def test_nothing_that_is_there_is_written_over(client, redis_url, killed, tmp_path):
    file = tmp_path / "one.tar"
    backup(str(killed.folder), file, redis_url)
    with pytest.raises(ConfigError, match="exists, and would have to be overwritten; name another file"):
        backup(str(killed.folder), file, redis_url)
    with pytest.raises(ConfigError, match="exists, and would have to be overwritten; give another --folder"):
        restore(file, killed.run.folder, redis_url)
    before = client.hgetall(keys.run(killed.run.name))
    with pytest.raises(LedgerError, match=r"has a run 'kept-.*name another with --redis, or end and delete that run"):
        restore(file, tmp_path / "there", redis_url)
    assert client.hgetall(keys.run(killed.run.name)) == before
    assert not list((tmp_path / "there").iterdir())


def test_a_restore_that_fails_leaves_nothing_behind(client, redis_url, killed, tmp_path, monkeypatch):
    file = tmp_path / "one.tar"
    backup(str(killed.folder), file, redis_url)
    forget(client, killed)
    monkeypatch.setattr(ledger_copy, "SENT_BYTES", 1000)
    with connect(redis_url) as admin:
        admin.execute_command("ACL", "SETUSER", "half", "on", ">half", "~*", "+@all", "-zadd")
    with pytest.raises(HeadraceError, match="Redis refuses this to the user that this process is"):
        restore(file, tmp_path / "there", redis_url.replace("//", "//half:half@"))
    client.execute_command("ACL", "DELUSER", "half")
    assert not list(client.scan_iter(f"{keys.run(killed.run.name)}*")) and not list((tmp_path / "there").iterdir())
    client.hset(f"{keys.run(killed.run.name)}:entry:left", "state", "of a restore that was killed")
    (tmp_path / "there" / f".{killed.run.name}.new" / "weights").mkdir(parents=True)
    restore(file, tmp_path / "there", redis_url)
    assert not client.exists(f"{keys.run(killed.run.name)}:entry:left")


@pytest.mark.parametrize("at", ["the keys", "the folder"])
def test_a_restore_that_is_interrupted_leaves_nothing_behind(client, redis_url, killed, tmp_path, monkeypatch, at):
    file = tmp_path / "one.tar"
    backup(str(killed.folder), file, redis_url)
    forget(client, killed)
    send, sent = ledger_copy._send, []

    def interrupted(*arguments):
        if sent or at == "the folder":
            raise KeyboardInterrupt
        sent.append(send(*arguments))

    monkeypatch.setattr(ledger_copy, "SENT_BYTES", 1000)
    monkeypatch.setattr(*((ledger_copy, "_send") if at == "the keys" else (restoring, "_place")), interrupted)
    with pytest.raises(KeyboardInterrupt):
        restore(file, tmp_path / "there", redis_url)
    assert not list(client.scan_iter(f"{keys.run(killed.run.name)}*")) and not list((tmp_path / "there").iterdir())


def test_the_redis_of_the_stack_is_restored_before_its_users_are_there_and_backed_up_by_its_coordinator(
    client, redis_url, killed, tmp_path, monkeypatch
):
    file, name = tmp_path / "one.tar", killed.run.name
    backup(str(killed.folder), file, redis_url)
    expected = client.hgetall(keys.run(name))
    forget(client, killed)
    (data := tmp_path / "data").mkdir()
    (data / "redis.conf").write_text((DOCKER / "redis.conf").read_text().replace("dir /data", f"dir {data}"))
    port = ports.free()[0]
    process = subprocess.Popen([find_binary(), data / "redis.conf", "--port", str(port), "--protected-mode", "no"])
    try:
        monkeypatch.setenv("REDIS_PASSWORD_FILE", "")
        told = restore(file, tmp_path / "there", f"redis://127.0.0.1:{port}/0")
    finally:
        process.terminate()
        process.wait(30)
    with server_of_users(find_binary(), data) as server:
        url = f"redis://coordinator@127.0.0.1:{server.port}/0"
        monkeypatch.setenv("REDIS_PASSWORD", password("coordinator"))
        with connect(url) as ours:
            assert ours.hgetall(keys.run(name)) == expected
        again = backup(told["folder"], tmp_path / "two.tar", url)
        assert (again["version"], again["checkpoint"]) == (3, 2)
        with connect(f"redis://admin:{password('admin')}@127.0.0.1:{server.port}/0") as admin:
            admin.flushall()
        with pytest.raises(HeadraceError, match="Redis refuses this to the user that this process is"):
            restore(tmp_path / "two.tar", tmp_path / "elsewhere", url)


def test_a_redis_that_is_too_small_is_told_so_and_left_as_it_was(client, redis_url, killed, tmp_path):
    for i in range(300):
        client.xadd(keys.trajectories(killed.run.name, "worker-1"), {"payload": bytes(10_000)}, f"{i + 1}-0")
    file = tmp_path / "one.tar"
    backup(str(killed.folder), file, redis_url)
    server = RedisServer.start(tmp_path / "small")
    with connect(server.url) as small:
        small.config_set("maxmemory", small.info("memory")["used_memory"] + 2_000_000)
        with pytest.raises(HeadraceError, match=r"has no room for the run 'kept-.*: raise its maxmemory"):
            restore(file, tmp_path / "there", server.url)
        assert not small.dbsize() and not list((tmp_path / "there").iterdir())
        small.config_set("maxmemory", 0)
        restore(file, tmp_path / "there", server.url)
        assert small.xlen(keys.trajectories(killed.run.name, "worker-1")) == 300
    server.stop()


def test_a_damaged_checkpoint_is_no_backup(client, redis_url, killed, tmp_path):
    shard = next((killed.folder / "checkpoints" / "2").glob("*.distcp"))
    raw = bytearray(shard.read_bytes())
    raw[len(raw) // 2] ^= 1
    shard.write_bytes(raw)
    with pytest.raises(DamagedCheckpoint, match=rf"2/{shard.name} is not what was written.*then back up again"):
        backup(str(killed.folder), tmp_path / "one.tar", redis_url)
    assert not (tmp_path / "one.tar").exists() and not (tmp_path / ".one.tar.new").exists()


def test_another_headrace_neither_backs_up_nor_restores_it(client, redis_url, killed, tmp_path, monkeypatch):
    file = tmp_path / "one.tar"
    backup(str(killed.folder), file, redis_url)
    forget(client, killed)
    monkeypatch.setattr(keys, "SCHEMA", keys.SCHEMA + 1)
    with pytest.raises(OtherSchema, match=r"keeps a run in schema \d, this one in \d: restore it with that headrace"):
        restore(file, tmp_path / "there", redis_url)
    assert not (tmp_path / "there").exists()


def test_a_fork_finds_its_model_where_it_is_restored(client, redis_url, killed, tmp_path):
    child = load(fork(str(killed.folder), 2, ["run.total_steps=3"])["next"].split()[-1])
    Producer(client, child)
    told = backup(str(child.folder), tmp_path / "child.tar", redis_url)
    assert told["checkpoint"] == 0
    forget(client, child)
    restored = load(f"{restore(tmp_path / 'child.tar', tmp_path / 'there', redis_url)['folder']}/run.toml")
    assert restored.model.path == tmp_path / "there" / child.run.name / "weights" / "0"
    assert weights.verify_files(restored.model.path).version == 0
    with Producer(client, restored):
        train(restored, client)
    assert len(recorded(restored)) == 3


def test_by_the_command_line(client, redis_url, killed, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REDIS_URL", redis_url)
    cli.main(["backup", str(killed.folder), "--json"], standalone_mode=False)
    told = json.loads(capsys.readouterr().out)
    assert told["file"] == f"{killed.run.name}-3.tar" and told["next"] == f"headrace restore {told['file']}"
    forget(client, killed)
    cli.main(["restore", told["file"]], standalone_mode=False)
    assert f"headrace up runs/{killed.run.name}/run.toml" in capsys.readouterr().out
    cli.main(["status", killed.run.name], standalone_mode=False)
    assert "down: nothing runs, 3 of 4 updates are made" in capsys.readouterr().out
