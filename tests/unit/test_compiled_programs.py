"""Programs of XLA are kept from run to run, and are there completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
from jax._src import compilation_cache, monitoring
from pallas_test_support.compiled_programs import DAYS, Programs, keep_programs


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for the programs of one test; those of the session are elsewhere."""
    names = [name for name in jax.config.values if "compilation_cache" in name or "persist" in name]
    before = {name: jax.config.values[name] for name in names}
    for name in ("_cache", "_cache_initialized"):
        monkeypatch.setattr(compilation_cache, name, getattr(compilation_cache, name))
    keep_programs(tmp_path)
    yield tmp_path
    for name, value in before.items():
        jax.config.update(name, value)


def test_what_was_compiled_once_is_not_compiled_again(kept: Path) -> None:
    events: list[str] = []

    def listen(event: str, **_: object) -> None:
        events.append(event)

    monitoring.register_event_listener(listen)
    x = np.arange(11, dtype=np.float32)
    try:
        for _ in range(2):
            found = np.asarray(jax.jit(lambda x: x * 3 + 11)(x))
            np.testing.assert_array_equal(found, x * 3 + 11)
    finally:
        monitoring.unregister_event_listener(listen)
    assert events.count("/jax/compilation_cache/cache_hits") == 1
    assert len(list(kept.iterdir())) == 1


def test_a_file_appears_when_it_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = Programs(tmp_path)

    def dies(self: Path, content: bytes) -> None:
        self.touch()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", dies)
        with pytest.raises(KeyboardInterrupt):
            programs.put("key", b"content")
    assert programs.get("key") is None
    programs.put("key", b"content")
    programs.put("key", b"content of another process")
    assert programs.get("key") == b"content of another process"


def test_what_no_run_uses_is_deleted(tmp_path: Path) -> None:
    programs = Programs(tmp_path)
    for key in ("used", "unused"):
        programs.put(key, b"")
        os.utime(tmp_path / key, (0, 0))
    assert programs.get("used") == b""
    programs.delete_unused()
    assert [file.name for file in tmp_path.iterdir()] == ["used"]
    assert DAYS > 7
