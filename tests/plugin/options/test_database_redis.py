"""``--pallas-database=redis://...`` against a real server."""

from __future__ import annotations

import socket
import time

import pytest
from pallas_test_support import redis_server

from .test_database import FIND, LOOK, OWN, example_of, files_of, picky, seen

redis = pytest.importorskip("redis")

pytestmark = pytest.mark.skipif(redis_server.PROGRAM is None, reason=redis_server.MISSING)

__all__ = ["picky"]

#: Fails, and then the server is gone.
KILLED = """
    import os, signal
    import pytest
    from hypothesis import given, settings, strategies as st

    @pytest.mark.parametrize("number", [1, 2, 3])
    @given(n=st.integers(0, 100))
    @settings(max_examples=20)
    def test_own(pallas_backend, number, n):
        if number == 2 and n == 0:
            try:
                os.kill(PID, signal.SIGKILL)
            except ProcessLookupError:
                pass
        assert n < 10
"""

#: Hypothesis' profile for CI has no database to fall back on.
PROFILE = """
    from hypothesis import settings

    settings.register_profile("here", settings.get_profile("default"))
    settings.load_profile("here")
"""


@pytest.fixture
def server(tmp_path_factory):
    with redis_server.serving(tmp_path_factory.mktemp("redis"), password="secret") as server:
        yield server


def keys(server) -> list[bytes]:
    with redis.Redis.from_url(server.url) as client:
        return client.keys()


def test_two_runs_share_what_one_finds(picky, server):
    url = f"--pallas-database={server.url}"
    found = picky.run(*FIND, url)
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines([f"pallas: examples in redis://[*][*][*]@127.0.0.1:{server.port}/0"])
    assert set(seen(picky)) > {"128", "384"}
    again = picky.spawn(*LOOK, "--pallas-backend=tpu-interpret", url)
    again.assert_outcomes(failed=1)
    assert seen(picky)[-1] == "384"  # after what that backend draws itself
    assert example_of(again) == example_of(found)
    for result in (found, again):
        assert "secret" not in result.stdout.str() + result.stderr.str()
        assert "warning" not in result.stdout.str()
    assert keys(server)
    with redis.Redis.from_url(server.url) as client:
        for key in keys(server):
            assert key.startswith(b"pytest-pallas:")
            assert 0 < client.ttl(key) <= 8 * 24 * 3600
    assert not (picky.path / ".hypothesis/examples").exists()


def test_a_socket_and_read_only(picky, server):
    address = f"unix://{server.socket}?password=secret"
    picky.run(*FIND, f"--pallas-database={address}").assert_outcomes(failed=1)
    before = sorted(keys(server))
    assert before
    seen(picky)
    (picky.path / "wrong_on").write_text("")
    args = ("--pallas-backend=interpret", f"--pallas-database=readonly+{address},kept")
    picky.run(*LOOK, *args).assert_outcomes(passed=1)
    assert "384" in seen(picky)
    assert sorted(keys(server)) == before
    (picky.path / "wrong_on").write_text("interpret")
    picky.run(*LOOK, *args).assert_outcomes(failed=1)
    assert sorted(keys(server)) == before
    assert files_of(picky.path / "kept")


def test_a_server_that_dies_in_the_middle(project, server):
    project.write(test_own=KILLED.replace("PID", str(server.process.pid)), conftest=PROFILE)
    result = project.spawn(
        "--pallas-backend=interpret", f"--pallas-database={server.url}", "--color=yes", "-rN"
    )
    result.assert_outcomes(failed=3)
    lines = [line for line in result.outlines if "cannot be reached" in line]
    assert len(lines) == 1
    assert "\x1b[33m" in lines[0]  # yellow
    assert f"database redis://***@127.0.0.1:{server.port}/0 cannot be reached (" in lines[0]
    assert ".hypothesis/examples instead" in lines[0]
    assert "secret" not in result.stdout.str()
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()
    assert files_of(project.path / ".hypothesis/examples")


def test_a_server_that_is_not_there(project):
    project.write(test_own=OWN.replace("MAX", "100"), conftest=PROFILE)
    url = f"redis://127.0.0.1:{redis_server.free_port()}"
    args = ("--pallas-backend=interpret", f"--pallas-database={url}")
    result = project.spawn(*args)
    result.assert_outcomes(failed=1)
    lines = [line for line in result.outlines if "cannot be reached" in line]
    assert len(lines) == 1
    assert result.outlines.index(lines[0]) < 12  # in the header
    assert lines[0].startswith(f"pallas: warning: database {url} cannot be reached (")
    seen(project, "numbers.txt")
    project.spawn(*args).assert_outcomes(failed=1)
    assert seen(project, "numbers.txt")[0] == "1234"


def test_a_wrong_password(project, server):
    project.write(test_own=OWN.replace("MAX", "1"))
    url = server.url.replace("secret", "sesame")
    result = project.run("--pallas-backend=interpret", f"--pallas-database={url}")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["pallas: warning: database * cannot be reached (*password*); *"])
    assert "sesame" not in result.stdout.str()


def test_a_server_that_never_answers(project):
    project.write(test_own=OWN.replace("MAX", "1"))
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"redis://127.0.0.1:{mute.getsockname()[1]}?socket_timeout=0.3"
        start = time.monotonic()
        result = project.run("--pallas-backend=interpret", f"--pallas-database={url}")
    result.assert_outcomes(passed=1)
    assert time.monotonic() - start < 30
    result.stdout.fnmatch_lines(["*cannot be reached (Timeout*"])


def test_what_is_no_set_of_examples(picky, server):
    """Somebody else's key: any answer that is an error is an outage, and no crash."""
    url = f"--pallas-database={server.url}"
    picky.run(*FIND, url).assert_outcomes(failed=1)
    with redis.Redis.from_url(server.url) as client:
        for key in keys(server):
            client.delete(key)
            client.set(key, "something else")
    result = picky.run(*FIND, url)
    result.assert_outcomes(failed=1)
    assert "picky: forward on interpret is wrong" in result.stdout.str()
    result.stdout.fnmatch_lines(["pallas: warning: *cannot be reached (*wrong kind of value*"])
