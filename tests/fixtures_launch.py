"""An interpreter that seems to have SGLang and whose server never comes up: `sglang_stand_in`, for what must be refused
or stopped before any real engine could start.

STAND_IN_ENGINE=waits: it starts for ever; =stubborn: it also ignores SIGTERM; not set: it dies at once.
"""

import pytest

SCRIPT = """\
#!/bin/sh
case "$*" in *find_spec*) exit 0 ;; esac
if [ "$STAND_IN_ENGINE" = waits ]; then
    echo "waits $$"
    exec sleep 60
fi
if [ "$STAND_IN_ENGINE" = stubborn ]; then
    trap '' TERM
    echo "waits $$"
    sleep 60
fi
echo "the stand-in engine does not start"
exit 3
"""


@pytest.fixture
def sglang_stand_in(tmp_path_factory, monkeypatch):
    path = tmp_path_factory.mktemp("stand-in") / "python"
    path.write_text(SCRIPT)
    path.chmod(0o755)
    monkeypatch.setenv("HEADRACE_SGLANG_PYTHON", str(path))
    return path
