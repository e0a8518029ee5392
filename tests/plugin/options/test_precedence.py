"""Mark > command line > ini > default, for every option."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from pytest_pallas.database import DatabasePlace
from pytest_pallas.distribute.gang.hosts import free_port
from pytest_pallas.options import TABLE, read_options
from pytest_pallas.replay.goldens import Example, content_of

#: Option: default, and values for ini, command line and mark with what they are read as.
#: Places of the only host, as ``--pallas-distributed`` has them.
ALONE, OTHER = (f"0/1@127.0.0.1:{free_port()}" for _ in range(2))

CASES = {
    "backend": (["auto"], ("interpret", ["interpret"]), ("gpu-interpret", ["gpu-interpret"]), None),
    "suite": ([], ("specs", ["specs"]), ("more", ["more"]), None),
    "devices": (8, ("3", 3), ("4", 4), None),
    "profile": ("ci", ("quick", "quick"), ("thorough", "thorough"), None),
    "max_examples": (8, ("3", 3), ("4", 4), ("max_examples=5", 5)),
    "growth": (100_000, ("3", 3), ("4", 4), ("growth=5", 5)),
    "max_bytes": (2**26, ("3KiB", 3072), ("1MiB", 2**20), None),
    "fuzz_time": (0.0, ("3", 3.0), ("4.5", 4.5), None),
    "fuzz_rounds": (0, ("3", 3), ("4", 4), None),
    "seed": (0, ("3", 3), ("4", 4), ("seed=5", 5)),
    "checks": (
        ["all"],
        ("forward", ["forward"]),
        ("gradient,vmap", ["gradient", "vmap"]),
        ("checks=['forward', 'vmap']", ["forward", "vmap"]),
    ),
    "sanitize": (["all"], ("none", ["none"]), ("races", ["races"]), ("sanitize='none'", ["none"])),
    "arithmetic": (
        "",
        ("chip", "chip"),
        ("float32", "float32"),
        ("arithmetic='chip'", "chip"),
    ),
    "read_fences": ("", ("all", "all"), ("none", "none"), ("read_fences='kernel'", "kernel")),
    "schedules": (20, ("3", 3), ("4", 4), ("schedules=5", 5)),
    "witness": (
        "",
        ("1-v6e-3fa29c1d", "1-v6e-3fa29c1d"),
        ("1-v5p-3fa29c1d-12.1", "1-v5p-3fa29c1d-12.1"),
        ("witness='1-v6e-3fa29c1d-0.2'", "1-v6e-3fa29c1d-0.2"),
    ),
    "timeout": (60.0, ("3", 3.0), ("4.5", 4.5), ("timeout=5", 5.0)),
    "isolate": ("auto", ("never", "never"), ("always", "always"), ("isolate='never'", "never")),
    "shrink_time": (0.0, ("20", 20.0), ("30", 30.0), ("shrink_time=40", 40.0)),
    "missing": ("skip", ("error", "error"), ("skip", "skip"), ("missing='error'", "error")),
    "results": (None, ("a.json", "a.json"), ("b.json", "b.json"), None),
    "resume": (None, ("a.json", "a.json"), ("b.json", "b.json"), None),
    "failures": (None, ("a.json", "a.json"), ("b.json", "b.json"), None),
    "html": (None, ("a.html", "a.html"), ("b.html", "b.html"), None),
    "coverage": (None, ("a.info", "a.info"), ("b.info", "b.info"), None),
    "coverage_min": (0.0, ("3", 3.0), ("99.5", 99.5), None),
    "trace": (None, ("a.json", "a.json"), ("b.json", "b.json"), None),
    "dump": (None, ("a", "a"), ("b", "b"), None),
    "cost": ("off", ("record", "record"), ("off", "off"), None),
    "cost_file": ("pallas_costs.json", ("a.json", "a.json"), ("b.json", "b.json"), None),
    "cost_limit": (5.0, ("3", 3.0), ("4.5", 4.5), None),
    "golden": ("off", ("record", "record"), ("update", "update"), None),
    "golden_dir": ("pallas_goldens", ("of_ini", "of_ini"), ("of_line", "of_line"), None),
    "replay": ("", ("a.st", "a.st"), ("b.st", "b.st"), None),
    "shard": (None, ("1/2", "1/2"), ("1/1", "1/1"), None),
    "shard_by": (None, ("a.json", "a.json"), ("b.json", "b.json"), None),
    "processes": (0, ("2", 2), ("1", 1), None),
    "distributed": (None, (ALONE, ALONE), (OTHER, OTHER), None),
    "join_timeout": (120.0, ("30", 30.0), ("45.5", 45.5), None),
    "fleet": (None, ("local:1", "local:1"), ("127.0.0.1:8786", "tcp://127.0.0.1:8786"), None),
    "worker_memory": (8.0, ("3", 3.0), ("4.5", 4.5), None),
    "mutate": (None, ("all", 0), ("3", 3), None),
    "mutate_time": (0.0, ("3", 3.0), ("4.5", 4.5), None),
    "mutate_min": (0.0, ("3", 3.0), ("99.5", 99.5), None),
    "mutate_operators": (["all"], ("mask", ["mask"]), ("mask,guard", ["mask", "guard"]), None),
    "mutate_after": (None, ("a.json", "a.json"), ("b.json", "b.json"), None),
    "database": (
        [],
        ("none", [str(DatabasePlace(kind="none", address="", shown="none"))]),
        ("a", [str(DatabasePlace(kind="folder", address="a", shown="a"))]),
        None,
    ),
}

TEST = """
    import json
    import pathlib

    import pytest

    from pytest_pallas.fixtures import current

    {mark}
    def test_say(request):
        options = current(request.config).options_for(request.node)
        values = {{name: getattr(options, name) for name in {names!r}}}
        pathlib.Path("said.json").write_text(json.dumps(values, default=str))
"""


#: What ``--pallas-replay`` must be given.
EXAMPLE = Example(
    test="test_say.py::test_say",
    kernel="add",
    check="forward",
    plain={"tuple": [{"tuple": []}, {"dict": {}}, {"dict": {}}]},
    kinds=(),
)


def plain(project, name, value):
    """An option's value as text, where it is one; a path from the project's folder."""
    value = json.loads(json.dumps(value, default=str))
    files = ("results", "failures", "html", "coverage", "trace", "dump", "cost_file")
    if name in files and value is not None and Path(value).is_absolute():
        return str(Path(value).relative_to(project.path))  # made absolute, by where pytest started
    return value


def read(project, name, *args):
    """What pytest reads of an option, without a run."""
    config = project.pytester.parseconfig(*project.options(args), *args)
    return plain(project, name, getattr(read_options(config), name))


def said(project, *names, args=(), mark=""):
    """What a test sees of options."""
    project.write(test_say=TEST.format(names=names, mark=mark and f"@pytest.mark.pallas({mark})"))
    # JAX has started in this process, with its devices.
    run = project.spawn if names == ("devices",) else project.run
    result = run("test_say.py", "-k", "test_say", *args)
    assert result.parseoutcomes()["passed"] == 1
    values = json.loads((project.path / "said.json").read_text())
    return {name: plain(project, name, value) for name, value in values.items()}


def test_every_option_is_in_the_table():
    assert list(CASES) == [option.name for option in TABLE]
    assert {name for name, case in CASES.items() if case[3]} == {o.name for o in TABLE if o.marked}


#: A run that is taken up does not run the test that says what it sees; workers of a fleet do not
#: have the option (tests/unit/distribute/fleet/test_address.py reads its values).
LOCAL = [option for option in TABLE if option.name not in ("resume", "fleet")]


@pytest.mark.parametrize("option", LOCAL, ids=lambda option: option.name)
def test_mark_beats_command_line_beats_ini_beats_default(project, option):
    default, (ini, from_ini), (line, from_line), mark = CASES[option.name]
    if option.name == "isolate":
        project = dataclasses.replace(project, isolate=None)
    for name in ("specs", "more"):
        project.specs('name="add", kernel=add', name=name)
    if option.name == "replay":
        pytest.importorskip("safetensors")
        for name in (ini, line):
            (project.path / name).write_bytes(content_of(EXAMPLE, ()))
    flag = f"{option.flag}={line}"
    assert read(project, option.name) == default
    project.ini(**{option.ini: ini})
    assert read(project, option.name) == from_ini
    assert said(project, option.name, args=[flag]) == {option.name: from_line}
    if mark:
        text, marked = mark
        assert said(project, option.name, args=[flag], mark=text) == {option.name: marked}


def test_what_a_test_sees_is_what_was_read(project):
    """Of the defaults, and of the values of an ini file that runs a test in this process."""
    project = dataclasses.replace(project, isolate=None)
    names = [option.name for option in TABLE]
    assert said(project, *names) == {name: CASES[name][0] for name in names}
    project.specs('name="add", kernel=add')
    here = ("backend", "suite", "profile", "max_examples", "max_bytes", "seed", "checks")
    here += ("sanitize", "arithmetic", "read_fences", "timeout", "isolate", "missing")
    here += ("cost_limit",)
    here += ("join_timeout", "worker_memory", "mutate_min", "database")
    project.ini(**{option.ini: CASES[option.name][1][0] for option in TABLE if option.name in here})
    assert said(project, *here) == {name: CASES[name][1][1] for name in here}


def test_precedence_of_backends(project):
    """The mark is ``backends=``; what counts is where the test runs."""
    places = {"": "interpret", "mark": "gpu-interpret"}
    project.ini(pallas_backend="interpret")
    for mark, place in places.items():
        marked = "@pytest.mark.pallas(backends='gpu-interpret')" if mark else ""
        project.write(
            test_where=f"""
            import pytest

            {marked}
            def test_where(pallas_backend):
                assert pallas_backend.name == {place!r}
            """
        )
        project.run().assert_outcomes(passed=1)
    result = project.run("--pallas-backend=tpu-interpret", "-v")
    result.stdout.fnmatch_lines(["*::test_where[[]gpu-interpret[]] PASSED*"])


def test_the_closest_mark_wins(project):
    project.write(
        test_say="""
        import pytest

        from pytest_pallas.fixtures import current

        pytestmark = pytest.mark.pallas(seed=1, max_examples=2)

        @pytest.mark.pallas(seed=3)
        def test_say(request):
            options = current(request.config).options_for(request.node)
            assert (options.seed, options.max_examples) == (3, 2)
        """
    )
    project.run().assert_outcomes(passed=1)
