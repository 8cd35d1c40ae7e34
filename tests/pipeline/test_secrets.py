"""Passwords and keys: where they come from, and that no text has them."""

import json
from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from pipeline.secrets import (
    API_KEY,
    REDIS_PASSWORD,
    masked,
    password_in_query,
    secret,
    without_password,
    without_user,
)


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


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("redis://u:p@ss@h:1/0", "redis://u:***@h:1/0"),
        ("redis://u:p@s?s/w@h", "redis://u:***@s?s/w@h"),  # as every reader of addresses has it, the host is s
        ("redis://u:p/w@h", "redis://u:***@h"),
        ("redis://u:p?w#x@h", "redis://u:***@h"),
        ("redis://u@v:pw@h", "redis://u@v:***@h"),
        ('redis://u:p"w\\@h/0?x=/a@b', "redis://u:***@h/0?x=/a@b"),
        ("redis://h:6379/0?ssl_ca_certs=/home/a@b/ca.pem", "redis://h:6379/0?ssl_ca_certs=/home/a@b/ca.pem"),
        ("http://a:b@c,http://d:e@f", "http://a:***@c,http://d:***@f"),
    ],
)
def test_a_password_goes_to_the_last_at_sign(address, shown):
    assert masked(f"no answer from {address} at a@b") == f"no answer from {shown} at a@b"
    assert masked(address) == shown


def test_what_stands_in_a_query_is_found():
    assert password_in_query("redis://h:1/0?db=2&password=hunter2") == "password"
    assert password_in_query("rediss://h:1/0?ssl_passw%6Frd=x") == "ssl_password"
    assert password_in_query("redis://u:password@h:1/0?db=2") is None


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


def test_texts_are_masked_wherever_they_are_and_however_they_are_quoted(monkeypatch):
    monkeypatch.setenv(REDIS_PASSWORD, 'pa"ss\\word')
    found = masked(
        {"why": ['AUTH pa"ss\\word', ("x://u:pw@h",)], "n": 1.5, "ok": True, "none": None, "path": Path("/a")}
    )
    assert found == {"why": ["AUTH ***", ["x://u:***@h"]], "n": 1.5, "ok": True, "none": None, "path": "/a"}
    for quoted in (repr('pa"ss\\word'), json.dumps('pa"ss\\word')):
        assert masked(f"key={quoted}") == f"key={quoted[0]}***{quoted[0]}"


def test_an_address_without_a_user_is_as_anybody_could_write_it():
    for url, told in {
        "redis://worker:pw@redis:6379/0": "redis://redis:6379/0",
        "redis://worker@redis:6379/0?username=worker&password=pw": "redis://redis:6379/0",
        "rediss://w:p@ss@h/0?ssl_ca_certs=/a@b/ca.pem&username=w": "rediss://h/0?ssl_ca_certs=/a@b/ca.pem",
        "unix://worker:pw@/run/redis.sock?db=1": "unix:///run/redis.sock?db=1",
    }.items():
        assert without_user(url) == told


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
