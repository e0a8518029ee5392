"""Results on disk survive, and nothing that is wrong with a file does harm."""

import pytest

from pytest_pallas.compile.service import Cache, digest

KEY = digest(["module", "v6e"])


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "deep" / "cache")


def test_what_was_put_is_there_for_the_next_process(cache):
    assert cache.get(KEY) is None
    cache.put(KEY, {"status": "compiled", "bundles": 7})
    assert Cache(cache.folder).get(KEY) == {"status": "compiled", "bundles": 7}


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff\xfe", b'{"status": "compiled"}', b'{"key": "another"}']
)
def test_a_damaged_file_is_as_good_as_none_and_is_rewritten(cache, content):
    cache.put(KEY, {"bundles": 7})
    [path] = cache.folder.rglob("*.json")
    path.write_bytes(content)
    assert cache.get(KEY) is None
    cache.put(KEY, {"bundles": 8})
    assert cache.get(KEY) == {"bundles": 8}


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    cache = Cache(tmp_path / "file")
    cache.put(KEY, {"bundles": 7})
    assert cache.get(KEY) is None


def test_parts_of_a_key_are_told_apart():
    assert digest(["ab", "c"]) != digest(["a", "bc"])
    assert digest(["ab"]) != digest(["ab", ""])
    assert digest([b"ab"]) == digest(["ab"])
