"""What the lines of progress and the header say of a fleet."""

from __future__ import annotations

from types import SimpleNamespace

from pytest_pallas.pytest_session import SESSION, FleetFacts
from pytest_pallas.report.reporter import Progress
from pytest_pallas.report.terminal import on_fleet


def test_progress_counts_tasks_and_workers():
    lines = []
    terminal = SimpleNamespace(
        isatty=True, ensure_newline=lambda: None, write_line=lambda text: lines.append(text)
    )
    facts = FleetFacts(place="local:4", tasks=9, done=3, threads=2, refused={"a": "b"})
    config = SimpleNamespace(
        stash={SESSION: SimpleNamespace(fleet=facts)},
        pluginmanager=SimpleNamespace(get_plugin=lambda name: terminal),
        get_verbosity=lambda: 0,
    )
    progress = Progress(config, 0.0)
    progress.tick()
    assert lines == []
    progress.kernels.add("add")
    progress.every, progress.tests, progress.last = 40, 12, progress.last - 60
    progress.tick()
    line = "12 of 40 tests, 3 of 9 tasks, 2 running at a time, 1 worker refused, no failures"
    assert lines[0].endswith(line)


def test_headers():
    local = on_fleet(FleetFacts(place="local:2", processes=2))
    assert local.startswith("runs in 2 worker processes of this machine; their Dask scheduler exec")
    remote = on_fleet(FleetFacts(place="tcp://a:1"))
    assert remote.startswith("runs on the workers of the Dask scheduler tcp://a:1, which executes")
    assert "or use TLS" in remote
    assert "sent by those with a certificate" in on_fleet(FleetFacts(place="tls://a:1"))
