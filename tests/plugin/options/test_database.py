"""``--pallas-database``: failing examples kept in a folder, and what of them another run sees."""

from __future__ import annotations

import pickle
import re
import shutil
import textwrap
from pathlib import Path

import pytest
from hypothesis.database import DirectoryBasedExampleDatabase, choices_from_bytes, choices_to_bytes
from pallas_test_support.redis_server import free_port

from .test_validation import refusal

#: A kernel that is wrong for one width on the backends of the file "wrong_on", and says to a file
#: what it was asked. It stands at a path of its own on every machine.
PICKY = """
from pathlib import Path

def picky(x, y):
    with open("widths.txt", "a") as file:
        file.write(f"{x.shape[1]}\\n")
    here = Path("now").read_text() in Path("wrong_on").read_text().split()
    return (add_off if here and x.shape[1] == 384 else add)(x, y)

INPUTS = pst.arrays(
    "m n, m n", dtype="float32", dims={"m": [8], "n": [128, 256, 384, 512]}
)
"""

#: Tells the kernel where it runs.
CONFTEST = """
    from pathlib import Path

    def pytest_runtest_setup(item):
        Path("now").write_text(item.backend.name)
"""

OWN = """
    from hypothesis import given, settings, strategies as st

    def note(n):
        with open("numbers.txt", "a") as file:
            file.write(f"{n}\\n")

    @settings(max_examples=MAX)
    @given(n=st.integers(0, 100_000))
    def test_own(pallas_backend, n):
        note(n)
        assert n < 1234
"""

SPEC = ("--pallas-suite=specs",)
FIND = (*SPEC, "--pallas-backend=interpret", "--pallas-max-examples=30")
#: Too little to find anything.
LOOK = (*SPEC, "--pallas-max-examples=1", "--pallas-seed=5")


@pytest.fixture
def picky(project):
    """A project with that kernel, wrong everywhere."""
    project.specs('name="picky", kernel=picky, checks=("forward",)')
    text = (project.path / "specs.py").read_text()
    (project.path / "specs.py").write_text(text.replace("SPEC_0", f"{PICKY}\nSPEC_0"))
    project.write(conftest=CONFTEST)
    wrong_on(project, "interpret tpu-interpret")
    return project


def wrong_on(project, backends: str) -> None:
    (project.path / "wrong_on").write_text(backends)


def seen(project, name: str = "widths.txt") -> list[str]:
    """What was asked since the last time, in order."""
    path = project.path / name
    lines = path.read_text().split() if path.exists() else []
    path.unlink(missing_ok=True)
    return lines


def example_of(result: pytest.RunResult) -> str:
    """The failing example, as a failure shows it."""
    found = re.search(r"^ *inputs +(.*)$", result.stdout.str(), re.MULTILINE)
    assert found, result.stdout.str()
    return found.group(1)


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_another_process_begins_with_it_and_another_backend_ends_with_it(picky, tmp_path):
    shared = f"--pallas-database={tmp_path / 'shared'}"
    found = picky.run(*FIND, shared)
    found.assert_outcomes(failed=1)
    assert set(seen(picky)) > {"128", "384"}
    # Another run, which would find nothing by itself.
    look = (*LOOK, "--pallas-backend=tpu-interpret")
    picky.run(*look, "--pallas-database=none").assert_outcomes(passed=1)
    assert "384" not in seen(picky)
    again = picky.spawn(*look, shared)
    again.assert_outcomes(failed=1)
    *drawn, last = seen(picky)
    assert (set(drawn) - {last}, last) == ({"128"}, "384")
    assert example_of(again) == example_of(found)
    # Both begin with it now.
    for backend in ("interpret", "tpu-interpret"):
        picky.spawn(*LOOK, f"--pallas-backend={backend}", shared).assert_outcomes(failed=1)
        first, *rest = seen(picky)
        assert (first, set(rest) - {"384"}) == ("384", {"128"})  # another cause may be there
    # Mended on both, and forgotten.
    wrong_on(picky, "")
    both = (*LOOK, "--pallas-backend=interpret,tpu-interpret", shared)
    picky.run(*both).assert_outcomes(passed=2)
    assert "384" in seen(picky)
    picky.run(*both).assert_outcomes(passed=2)
    assert "384" not in seen(picky)
    assert not (picky.path / ".hypothesis/examples").exists()


def test_passing_elsewhere_does_not_forget_it(picky, tmp_path):
    shared = f"--pallas-database={tmp_path / 'shared'}"
    wrong_on(picky, "tpu-interpret")
    args = (*SPEC, "--pallas-max-examples=30", shared)
    picky.run(*args, "--pallas-backend=tpu-interpret").assert_outcomes(failed=1)
    for _ in range(2):
        seen(picky)
        picky.run(*LOOK, "--pallas-backend=interpret", shared).assert_outcomes(passed=1)
        assert "384" in seen(picky)
    picky.run(*LOOK, "--pallas-backend=tpu-interpret", shared).assert_outcomes(failed=1)


def test_damaged_entries_of_the_database_are_ignored(picky, tmp_path):
    shared = tmp_path / "shared"
    args = f"--pallas-database={shared}"
    picky.run(*FIND, args).assert_outcomes(failed=1)
    whole = {path: path.read_bytes() for path in files_of(shared)}
    junk = [
        b"",
        b"\xff",
        b"\x3f",
        b"pallas:",
        b"pallas:x\0\xff\xff",
        pickle.dumps({1}),
        b"\x29" * 9,
    ]
    junk += [text[:-1] for text in whole.values()] + [choices_to_bytes(("a", b"b", 1e300, -1))]
    for folder in {path.parent for path in whole}:
        for number, text in enumerate(junk):
            (folder / f"junk{number}").write_bytes(text)
        (folder / "a folder").mkdir()
    result = picky.run(*LOOK, "--pallas-backend=interpret", args)
    result.assert_outcomes(failed=1)
    assert "picky: forward on interpret is wrong" in result.stdout.str()
    for path in whole:
        path.unlink(missing_ok=True)
    wrong_on(picky, "")
    picky.run(*LOOK, "--pallas-backend=interpret", args).assert_outcomes(passed=1)


def test_values_are_hypothesis_choices_and_no_pickles(picky, tmp_path):
    picky.run(*FIND, f"--pallas-database={tmp_path / 'shared'}").assert_outcomes(failed=1)
    database = DirectoryBasedExampleDatabase(tmp_path / "shared")
    keys = list(database.fetch(b".hypothesis-keys"))
    values = [value for key in keys for value in database.fetch(key)]
    assert values
    for value in values:
        owner, _, choices = value.partition(b"\0")
        assert owner == b"pallas:picky-forward[interpret]"
        assert choices_from_bytes(choices)
        with pytest.raises(Exception):  # noqa: B017 - of many kinds
            pickle.loads(choices)


def test_none_writes_no_examples(picky):
    picky.run(*FIND, "--pallas-database=none").assert_outcomes(failed=1)
    assert not (picky.path / ".hypothesis/examples").exists()


def test_tests_of_ones_own(project, tmp_path):
    project.write(test_own=OWN.replace("MAX", "100"))
    args = ("--pallas-backend=interpret", f"--pallas-database={tmp_path / 'shared'}")
    project.run(*args).assert_outcomes(failed=1)
    assert len(seen(project, "numbers.txt")) > 5
    project.write(test_own=OWN.replace("MAX", "1"))
    shutil.rmtree(project.path / ".hypothesis", ignore_errors=True)
    project.run(*args).assert_outcomes(failed=1)
    assert seen(project, "numbers.txt")[0] == "1234"


def test_a_test_that_sets_everything_itself_keeps_its_failures(project):
    """Seeding a test takes its database away, and the plugin seeds it."""
    rest = "1, deadline=5000, phases=[Phase.reuse, Phase.generate]"
    more = OWN.replace("import given", "import Phase, given").replace("n < 1234", "n < 0")
    project.write(test_own=more.replace("MAX", rest))
    args = ("--pallas-backend=interpret", "--pallas-database=kept")
    project.run(*args).assert_outcomes(failed=1)
    assert files_of(project.path / "kept")


def test_a_database_of_the_test_itself_is_left_alone(project, tmp_path):
    own = OWN.replace("MAX", "100, database=None")
    project.write(test_own=own)
    args = ("--pallas-backend=interpret", f"--pallas-database={tmp_path / 'shared'}")
    project.run(*args).assert_outcomes(failed=1)
    assert files_of(tmp_path / "shared") == []


def test_a_relative_folder_is_seen_from_the_root(project):
    project.ini(pallas_database="kept")
    project.write(test_plain="def test_plain(): pass")
    result = project.run()
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["pallas: examples in kept"])
    assert (project.path / "kept").is_dir()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("mysql://me:secret@host", "unknown scheme mysql:"),
        ("redis://me:secret@host/name", "must be a host and at most a number"),
        ("kernels.py", "kernels.py: cannot write to it"),
        ("kernels.py/deeper", "kernels.py/deeper: cannot write to it"),
        ("readonly+nowhere", "readonly+nowhere: there is no folder"),
        ("kept,none", "none must stand alone"),
    ],
)
def test_a_wrong_one(project, value, message):
    line = refusal(project.run(f"--pallas-database={value}"))
    assert line.startswith("ERROR: --pallas-database: ")
    assert message in line
    assert "secret" not in line
    project.ini(pallas_database=value)
    assert "ini value pallas_database: " in refusal(project.run())


def test_github_without_hypothesis_being_imported_at_start(project):
    """Only what is used is opened: collecting asks no server."""
    project.write(test_plain="def test_plain(): pass")
    result = project.run("-q", "--pallas-database=github:owner/repo")
    result.assert_outcomes(passed=1)
    assert "warning" not in result.stdout.str()


def test_a_server_that_is_missing_is_said_once_by_many_workers(project):
    pytest.importorskip("redis")
    project.write(
        test_own="""
        import pytest
        from hypothesis import given, strategies as st

        @pytest.mark.parametrize("number", range(2))
        @given(n=st.booleans())
        def test_own(pallas_backend, number, n):
            pass
        """
    )
    url = f"redis://me:secret@127.0.0.1:{free_port()}/0"
    args = ("--pallas-backend=tpu-sim,interpret", f"--pallas-database={url}")
    for words in (("-q", "-n2"), ("-v", "-n1")):
        result = project.run(*args, *words)
        assert result.ret == 0
        text = result.stdout.str() + result.stderr.str()
        assert "secret" not in text
        found = [line for line in result.outlines if "cannot be reached" in line]
        assert len(found) == 1
        assert "pallas: warning: database redis://***@127.0.0.1" in found[0]


#: What fails on the simulator fails on an interpreter, too, which has other failures besides.
OF_TWO = """
    def seldom(x, y):
        return add(x, y) + (x.shape[1] == 640)

    def always(x, y):
        return add(x, y) + 1
"""


def test_an_example_of_one_backend_hides_nothing_of_another(project, tmp_path):
    """What a backend draws itself comes first, so that it finds what it finds alone."""
    project.specs(
        'name="two", kernel={"gpu": always, "tpu": seldom}, checks=("forward",), '
        'inputs=pst.arrays("8 n, 8 n", dtype="float32", dims={"n": [128, 256, 384, 512, 640]})'
    )
    path = project.path / "specs.py"
    path.write_text(path.read_text().replace("SPEC_0", f"{textwrap.dedent(OF_TWO)}\nSPEC_0", 1))

    def shapes(backends, folder):
        records = project.records(
            "--pallas-suite=specs", "--pallas-max-examples=30", f"--pallas-backend={backends}",
            f"--pallas-database={tmp_path / folder}",
        )  # fmt: skip
        lines = [line for r in records for line in r["message"].splitlines()]
        return [line.split()[-2:] for line in lines if line.startswith("  inputs")]

    [alone] = shapes("interpret", "alone")
    [of_simulator] = shapes("tpu-sim", "together")
    assert of_simulator[-1] == "640]" != alone[-1]
    assert shapes("interpret", "together") == [alone]
    assert shapes("interpret", "together") == [alone]  # its own, which comes first now


def test_specs_of_one_name_in_two_files_share_no_examples(picky):
    """An example that fails in one suite does not run in another, which may draw other shapes."""
    other = (picky.path / "specs.py").read_text().replace("widths.txt", "others.txt")
    (picky.path / "more").mkdir()
    (picky.path / "more" / "__init__.py").touch()
    (picky.path / "more" / "specs.py").write_text(other)
    picky.run(*FIND).assert_outcomes(failed=1)
    words = (*LOOK[1:], "--pallas-backend=interpret")
    picky.run("--pallas-suite=more.specs", *words).assert_outcomes(passed=1)
    assert "384" not in (picky.path / "others.txt").read_text().split()
    picky.run("--pallas-suite=specs", *words).assert_outcomes(failed=1)
