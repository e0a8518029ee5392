"""What places become: folders, several at once, and what happens to those that go away."""

import sys
import warnings
import zipfile
from datetime import UTC, datetime

import hypothesis
import pytest
from hypothesis import strategies
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.database import InMemoryExampleDatabase, choices_to_bytes
from pallas_test_support.redis_server import free_port

from pallas_sim.errors import OptionError
from pytest_pallas.compat.fuzzing import hypothesis_profile
from pytest_pallas.database import parse_places
from pytest_pallas.draw import database as opening
from pytest_pallas.draw.database import Guarded, Owned


@pytest.fixture
def told():
    return {}


@pytest.fixture
def opened(tmp_path, told):
    def opened(text):
        places = parse_places(text)
        opening.validate(places, tmp_path)
        return opening.open_places(places, tmp_path, told.setdefault)

    return opened


@pytest.fixture(autouse=True)
def home(tmp_path):
    set_hypothesis_home_dir(tmp_path / "home")
    yield tmp_path / "home"
    set_hypothesis_home_dir(None)


@pytest.fixture
def profile():
    """Hypothesis' own default, whatever the machine."""
    before = hypothesis_profile()
    default = hypothesis.settings.get_profile("default")
    hypothesis.settings.register_profile("unit", default, derandomize=False)
    hypothesis.settings.load_profile("unit")
    yield
    hypothesis.settings.load_profile(before)


def refuse(*args, **rest):
    raise ConnectionError("gone")


def test_none_opens_no_database(opened):
    assert opened("none") is None


def test_a_folder_is_made_and_shared(opened):
    opened("a/b").save(b"key", b"value")
    assert list(opened("file:a/b").fetch(b"key")) == [b"value"]
    assert list(opened("other").fetch(b"key")) == []


def test_a_read_only_database_is_not_changed(opened):
    opened("a").save(b"key", b"value")
    database = opened("readonly+a")
    database.save(b"key", b"more")
    database.move(b"key", b"other", b"value")
    database.delete(b"key", b"value")
    assert list(database.fetch(b"key")) == [b"value"]


def test_several_databases_read_all_and_write_the_writable_ones(opened):
    opened("a").save(b"key", b"of a")
    opened("b").save(b"key", b"of b")
    database = opened("a,b,readonly+a")
    database.save(b"key", b"new")
    assert sorted(database.fetch(b"key")) == [b"new", b"of a", b"of b"]
    assert sorted(opened("b").fetch(b"key")) == [b"new", b"of b"]
    opened("readonly+a,b").save(b"key", b"newest")
    assert sorted(opened("a").fetch(b"key")) == [b"new", b"of a"]


def test_a_folder_that_cannot_be_written(opened, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match=r"file/a: cannot write to it: .*; valid: DIR,"):
        opened("file/a")
    with pytest.raises(OptionError, match=r"readonly\+b: there is no folder"):
        opened("readonly+b")


def test_a_missing_package(opened, monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.setattr(opening.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(OptionError, match=r"pip install 'pytest-pallas\[redis\]'") as caught:
        opened("redis://:pw@host")
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize("query", ["socket_timeout=pw", "pw=1", "db=pw"])
def test_a_query_that_redis_refuses(opened, query):
    pytest.importorskip("redis")
    with pytest.raises(OptionError, match=r"redis://host: the package redis rejects") as caught:
        opened(f"redis://host?{query}")
    assert "pw" not in str(caught.value)


@pytest.mark.usefixtures("profile")
def test_a_server_that_is_not_there(opened, told, home):
    pytest.importorskip("redis")
    url = f"redis://:pw@127.0.0.1:{free_port()}"
    database = opened(url)
    assert told == {}
    database.save(b"key", b"value")
    assert list(database.fetch(b"key")) == [b"value"]
    ((shown, text),) = told.items()
    assert shown == url.replace(":pw", "***")
    assert text.startswith("cannot be reached (")
    assert "Connection refused" in text
    assert text.endswith("examples instead")
    assert "pw" not in text
    assert len(list((home / "examples").iterdir())) == 2  # the key, and the list of keys


def test_a_server_that_is_not_there_beside_a_folder(opened, told, home):
    pytest.importorskip("redis")
    database = opened(f"redis://127.0.0.1:{free_port()},a")
    database.save(b"key", b"value")
    assert list(opened("a").fetch(b"key")) == [b"value"]
    assert "the run goes on without it" in next(iter(told.values()))
    assert not (home / "examples").exists()


def test_an_error_that_repeats_the_password(tmp_path, told, monkeypatch):
    redis = pytest.importorskip("redis")
    from hypothesis.extra.redis import RedisExampleDatabase

    def fetch(self, key):
        raise redis.RedisError("no p/w and no p%2Fw and no other")

    monkeypatch.setattr(RedisExampleDatabase, "fetch", fetch)
    places = parse_places("redis://:p%2Fw@host?password=other")
    list(opening.open_places(places, tmp_path, told.setdefault).fetch(b"key"))
    assert "(no *** and no *** and no ***)" in told["redis://***@host"]


@pytest.mark.parametrize("method", ["fetch", "save", "delete", "move"])
def test_every_question_is_guarded(method, monkeypatch):
    broken, spare, errors = InMemoryExampleDatabase(), InMemoryExampleDatabase(), []
    monkeypatch.setattr(broken, method, refuse)
    guarded = Guarded(broken, errors=(OSError,), lost=lambda e: errors.append(str(e)) or spare)
    words = {"fetch": (b"k",), "move": (b"k", b"l", b"v")}.get(method, (b"k", b"v"))
    getattr(guarded, method)(*words)
    guarded.save(b"k", b"v")
    getattr(guarded, method)(*words)
    assert errors == ["gone"]
    assert broken.data == {}
    assert set(spare.data) >= {b"k"}


def test_without_anything_to_fall_back_on(monkeypatch):
    broken = InMemoryExampleDatabase()
    monkeypatch.setattr(broken, "fetch", refuse)
    guarded = Guarded(broken, errors=(OSError,), lost=lambda error: None)
    assert guarded.fetch(b"k") == []
    guarded.save(b"k", b"v")
    assert broken.data == {}


def test_a_mistake_is_no_outage(monkeypatch):
    broken = InMemoryExampleDatabase()

    def mistaken(key):
        raise TypeError(key)

    monkeypatch.setattr(broken, "fetch", mistaken)
    with pytest.raises(TypeError):
        Guarded(broken, errors=(OSError,), lost=lambda error: None).fetch(b"k")


def test_an_artifact_of_github(opened, told, home, tmp_path):
    """One that was downloaded today: GitHub is not asked."""
    opened("a").save(b"key", b"value")
    cache = home / "github-artifacts/hypothesis-example-db"
    cache.mkdir(parents=True)
    stamp = datetime.now(UTC).isoformat().replace(":", "_")
    with zipfile.ZipFile(cache / f"{stamp}.zip", "w") as file:
        for path in sorted((tmp_path / "a").rglob("*")):
            file.write(path, path.relative_to(tmp_path / "a"))
    database = opened("github:owner/repo,b")
    database.save(b"key", b"more")
    assert sorted(database.fetch(b"key")) == [b"more", b"value"]
    assert told == {}


@pytest.mark.usefixtures("profile")
def test_github_does_not_answer(opened, told, monkeypatch):
    """Of which hypothesis warns; and a warning may be an error."""
    from hypothesis.database import GitHubArtifactDatabase
    from hypothesis.errors import HypothesisWarning

    def get_bytes(self, url):
        warnings.warn("Could not connect to GitHub.", HypothesisWarning, stacklevel=1)

    monkeypatch.setattr(GitHubArtifactDatabase, "_get_bytes", get_bytes)
    database = opened("github:owner/repo")
    assert list(database.fetch(b"key")) == []
    database.save(b"key", b"value")
    assert list(database.fetch(b"key")) == [b"value"]
    assert "(Could not connect to GitHub)" in told["github:owner/repo"]


def views(shared, name):
    """What a test sees of its own, and of others."""
    return Owned(shared, name), Owned(shared, name, others=True)


def test_each_sees_and_forgets_its_own():
    shared = InMemoryExampleDatabase()
    (one, of_others), (two, of_one) = views(shared, "test[one]"), views(shared, "test[two]")
    value = choices_to_bytes((1, 2.0, True, "text", b"bytes"))
    one.save(b"key", value)
    assert (one.fetch(b"key"), of_others.fetch(b"key")) == ([value], [])
    assert (two.fetch(b"key"), of_one.fetch(b"key")) == ([], [value])
    of_one.delete(b"key", value)  # it passes there
    assert of_one.fetch(b"key") == [value]
    of_one.save(b"key", value)  # it fails there
    assert (two.fetch(b"key"), of_one.fetch(b"key")) == ([value], [])
    one.delete(b"key", value)
    assert (one.fetch(b"key"), of_others.fetch(b"key")) == ([], [value])
    two.delete(b"key", value)
    assert (of_others.fetch(b"key"), two.fetch(b"key")) == ([], [])


def test_a_value_that_nobody_owns():
    shared = InMemoryExampleDatabase()
    shared.save(b"key", b"older")
    shared.save(b"key", b"pallas:damaged")
    one = Owned(shared, "one")
    assert sorted(one.fetch(b"key")) == [b"older", b"pallas:damaged"]
    for value in one.fetch(b"key"):
        one.delete(b"key", value)
    assert one.fetch(b"key") == []


def test_what_came_before_simplifying_is_ones_own():
    """As hypothesis names it, with a failing test that it shrinks."""

    @hypothesis.seed(0)
    @hypothesis.given(n=strategies.integers(0, 10**6))
    def fails(n):
        assert n < 1234

    shared = InMemoryExampleDatabase()
    one, two = Owned(shared, "one"), Owned(shared, "two", others=True)
    with pytest.raises(AssertionError):
        hypothesis.settings(database=one, derandomize=False)(fails)()
    assert len(shared.data) > 1
    simplest = min(shared.data, key=len)
    for key in shared.data:
        assert len(list(one.fetch(key))) == len(shared.data[key])
        assert len(list(two.fetch(key))) == (len(shared.data[key]) if key == simplest else 0)


def test_a_moved_value_keeps_its_owner():
    shared = InMemoryExampleDatabase()
    one, two = Owned(shared, "one"), Owned(shared, "two", others=True)
    one.save(b"key", b"value")
    one.move(b"key", b"other", b"value")
    assert one.fetch(b"key") == []
    assert two.fetch(b"other") == [b"value"]
