"""Passwords and keys: where they come from, and that no text has them."""

import pytest

from pipeline.errors import ConfigError
from pipeline.secrets import API_KEY, REDIS_PASSWORD, masked, secret, without_password


@pytest.fixture(autouse=True)
def nothing_given(monkeypatch):
    for name in (REDIS_PASSWORD, API_KEY):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(f"{name}_FILE", raising=False)


def test_a_secret_is_a_variable_or_what_is_in_a_file_without_the_end_of_its_line(tmp_path, monkeypatch):
    assert secret(API_KEY) is None
    (tmp_path / "key").write_text("from a file\n")
    monkeypatch.setenv(f"{API_KEY}_FILE", str(tmp_path / "key"))
    assert secret(API_KEY) == "from a file"
    monkeypatch.setenv(API_KEY, "said")
    assert secret(API_KEY) == "said"


@pytest.mark.parametrize(("content", "said"), [(None, "cannot be read"), ("\n", "is empty")])
def test_a_file_without_a_secret_is_refused_with_its_name(tmp_path, monkeypatch, content, said):
    path = tmp_path / "key"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv(f"{REDIS_PASSWORD}_FILE", str(path))
    with pytest.raises(ConfigError, match=f"REDIS_PASSWORD_FILE.*{path}.*{said}"):
        secret(REDIS_PASSWORD)


def test_the_password_of_an_address_is_masked_wherever_it_stands():
    said = masked("no Redis at rediss://worker:s3cr:et@redis:6379/0?ssl_ca_certs=/ca.pem, nor at redis://:pw@[::1]:1")
    assert said == "no Redis at rediss://worker:***@redis:6379/0?ssl_ca_certs=/ca.pem, nor at redis://:***@[::1]:1"


def test_an_address_without_a_password_stays_as_it_is():
    for text in ("redis://127.0.0.1:6379/0", "redis://worker@redis:6379/0", "http://10.0.0.7:30000/generate at a@b"):
        assert masked(text) == text


def test_every_secret_of_this_process_is_masked(tmp_path, monkeypatch):
    (tmp_path / "password").write_text("hunter2hunter2\n")
    monkeypatch.setenv(f"{REDIS_PASSWORD}_FILE", str(tmp_path / "password"))
    monkeypatch.setenv(API_KEY, "sk-0123456789")
    assert masked("server_args api_key='sk-0123456789', AUTH worker hunter2hunter2") == (
        "server_args api_key='***', AUTH worker ***"
    )


def test_an_address_is_told_with_its_user_and_without_its_password():
    for url, told in {
        "redis://worker:pw@redis:6379/0": "redis://worker@redis:6379/0",
        "rediss://:pw@redis:6379/0?ssl_ca_certs=/ca.pem": "rediss://redis:6379/0?ssl_ca_certs=/ca.pem",
        "redis://redis:6379/0": "redis://redis:6379/0",
        "unix://worker:pw@/run/redis.sock": "unix://worker@/run/redis.sock",
    }.items():
        assert without_password(url) == told


def test_a_secret_that_cannot_be_read_does_not_keep_its_error_from_being_shown(monkeypatch, tmp_path):
    monkeypatch.setenv("REDIS_PASSWORD_FILE", str(tmp_path / "none"))
    monkeypatch.delenv("REDIS_PASSWORD", raising=False)
    assert masked("REDIS_PASSWORD_FILE cannot be read") == "REDIS_PASSWORD_FILE cannot be read"
