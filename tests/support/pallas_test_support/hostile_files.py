"""Files that are damaged on purpose, and what reads them: results, journals, goldens, examples.

``Damage`` makes them of right ones: by changes of the values of their JSON, and by changes of their
bytes. ``Readers`` reads one as the commands do that take such a file. A reader may refuse a file by
an error of the package, in one line that a terminal can show; whatever else it raises is a mistake.
So is what ``watched`` sees: something executed or imported, or a file written elsewhere.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import dataclasses
import json
import os
import pickle
import random
import sys
import zlib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pallas_sim.errors import PallasError
from pallas_test_support.report_samples import samples
from pytest_pallas.checks.forward import forward
from pytest_pallas.checks.oracle_strength import Attempt, Evidence, oracle_strength
from pytest_pallas.compile import costs
from pytest_pallas.decoding import DataError, shown
from pytest_pallas.distribute import merge as merging
from pytest_pallas.distribute.messages import TestResult
from pytest_pallas.distribute.parts import result_of
from pytest_pallas.distribute.resume import records_by_test, reports_of, require_readable
from pytest_pallas.draw.arguments import Arguments
from pytest_pallas.isolate.messages import PlainWarning, from_plain, to_plain, warning_of
from pytest_pallas.judge.tolerance import Tolerance
from pytest_pallas.mutate.item import credit_first_kills, merge_mutants
from pytest_pallas.mutate.runner import read_earlier
from pytest_pallas.pytest_session import done_of
from pytest_pallas.record import MutantVerdict, to_json
from pytest_pallas.replay.goldens import (
    Example,
    Golden,
    GoldenCall,
    Origin,
    Output,
    Store,
    content_of,
    load_example,
)
from pytest_pallas.replay.values import digest, read, write
from pytest_pallas.report.files import document
from pytest_pallas.report.html import page
from pytest_pallas.report.summary import summary
from pytest_pallas.report.terminal import count_distinct
from pytest_pallas.results import (
    FailedPhase,
    FinishedTest,
    RunJournal,
    partial_path,
    plain_test,
    read_results,
)
from pytest_pallas.run.result import Result
from pytest_pallas.run.rounds import ExampleOutcome, RoundOutcome, rounds_from_json, rounds_to_json

#: A module beside the files: whoever imports it has executed something of a file.
EVIL = "evil_module_of_a_file"

KINDS = ("results", "journal", "golden", "example", "costs")

FAMILIES = ("tpu-sim", "interpret")


class _Evil:
    """Executes something when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch executed",)


def _evil_values() -> list[Any]:
    pickled = base64.b64encode(pickle.dumps(_Evil())).decode()
    return [
        None, True, 0, -1, 1, 2**53 + 1, -(2**64), 2**400, 0.5, 1e300, float("inf"),
        float("nan"), "", "x", "inf", "\x00", "\ud800", "a\nb", "::error::x", "\n::error file=a::x",
        "##[error]x", "\x1b[2J\x1b]0;x\x07", "\u202ex", "é" * 3000, "../../evil.py",
        "/etc/passwd", "goldens/../..", "/dev/zero:1", "nofile:" + "9" * 5000, EVIL,
        f"{EVIL}:main", "os", "os.system", "O", "object", "S1000000000", "f4,f4", "(2,3)f4",
        "finfo", "float32", "int4", pickled, [pickled], [], {}, [[]], [None] * 9, {"": None},
        {"tuple": 1}, {"table": [[[], 1]]}, {"table": [[{"table": []}, 1]]}, {"message":
        "TestResult", "fields": []}, {"message": EVIL, "fields": []}, {"bytes": "?"}, {"array":
        -1}, {"array": 10**9}, {"array": "x"}, {"float": []}, {"key": "x", "array": 0}, {"dict":
        []}, {"opaque": ["\x1b[2J"]}, {"dtype": "O"}, [2**31, 2**31], [0, 2**53, 2**53], [1] *
        100, [["a", 1]], {"a": {"a": 1}}, ["..", EVIL],
    ]  # fmt: skip


def _finished(name: str, **rest: Any) -> FinishedTest:
    return FinishedTest(test=name, location=("a.py", 3, name), seconds=0.5, **rest)


def _verdict(status: Any) -> MutantVerdict:
    return MutantVerdict(
        key=f"k|{status}", operator="guard", change="always", kernel="body", part="grid axis 1",
        where="a.py:3", source="x = 1", status=status, callers=("a()",), by="forward", on="tpu-sim",
    )  # fmt: skip


def _part_results() -> Iterator[dict[str, Any]]:
    made = Result(kernel="softmax", check="forward", backend="tpu-sim")
    made.begin(Arguments((np.ones((8, 4), np.float32),)))
    made.error, made.baseline, made.multiple = 1.0, 2.0, 0.5
    made.evidence = [Evidence((Attempt("zeros", "output", True, "1"),), Tolerance(rtol=0.1))]
    rounds = [RoundOutcome(0, [ExampleOutcome("d", made, True)])]
    changes = [("save", "YQ==", "Yg==")]
    plain = rounds_to_json(rounds, oracle_strength)
    yield {"kind": "rounds", "first": 0, "last": 0, **plain, "fail": None, "database": changes}
    yield {
        "kind": "mutants", "first": 0, "last": 1, "total": 2, "whole": True,
        "equivalents": [{"operator": "guard", "source": "x", "reason": "same"}],
        "verdicts": [to_json_verdict(_verdict(each)) for each in ("killed", "survived")],
        "notes": {"k": [{"text": "a note", "kind": "mutants"}]},
    }  # fmt: skip


def to_json_verdict(verdict: MutantVerdict) -> dict[str, Any]:
    """A verdict as plain values."""
    return json.loads(json.dumps(dataclasses.asdict(verdict)))


def _messages() -> list[dict[str, Any]]:
    """What workers of a fleet have found of tests that have not ended."""
    found: list[dict[str, Any]] = []
    for result in _part_results():
        trace = {
            "reprcrash": {"path": "a.py", "lineno": 3, "message": "m"},
            "reprtraceback": {
                "reprentries": [{"type": "ReprEntryNative", "data": {"lines": ["a\n"]}}],
                "extraline": None, "style": "native",
            },
            "sections": [["title", "text", "-"]], "chain": None,
        }  # fmt: skip
        report = {
            "$report_type": "TestReport", "nodeid": "left", "location": ("a.py", 3, "left"),
            "keywords": {"left": 1}, "outcome": "failed", "longrepr": trace, "when": "call",
            "sections": [("Captured", "text")], "user_properties": [("a", 1)], "duration": 0.1,
            "start": 1.0, "stop": 1.1, "pallas_part": result,
            "pallas_records": [to_json(samples()[0])], "pallas_raised": ("p", "c", "i", False),
        }  # fmt: skip
        warning = PlainWarning(
            text="look", module="builtins", category="UserWarning", filename="a.py", lineno=3,
            when="runtest", nodeid="left", location=None,
        )  # fmt: skip
        found.append(
            to_plain(
                TestResult(
                    nodeid="left",
                    reports=[report],
                    warnings=[warning],
                    changes=[("save", "YQ==", "Yg==")],
                    files={"/tmp/pallas-failures/a.py": b"# test: left\n"},
                    goldens={f"goldens/{'0' * 64}.json": b"{}"},
                )
            )
        )
    return json.loads(json.dumps(found))


def _tests() -> list[FinishedTest]:
    failure = FailedPhase("call", "a\nb", "a", (("Captured stdout", "text"),))
    part = list(_part_results())[1]
    own = [
        _finished("a.py::failed", outcome="failed", failures=(failure,)),
        _finished("a.py::skipped", outcome="skipped", reason="why", place=("a.py", 3)),
        _finished("a.py::expected", outcome="xfailed", reason="why"),
        _finished("a.py::mutants", outcome="passed", part=part, properties=(("a", 1),)),
        _finished("a.py::raised", outcome="error", raised=("p", "c", "i", True), status="not run"),
    ]
    return [*own, *(_finished(each.test, outcome="passed") for each in samples())]


def _about() -> dict[str, Any]:
    return {
        "schema": 2,
        "environment": {"jax": "0.12.0.1", "pytest_pallas": "0.1.0"},
        "options": {"seed": 0, "backends": ["tpu-sim"], "shard": [1, 2], "checks": ["all"]},
        "suite": {"kernels": "ab"},
        "files": {"a.py": "ab"},
        "not_applicable": [
            {"test": "n", "kernel": "k", "family": "f", "check": "c", "backend": "b",
             "mesh": {"x": 2}, "requirement": "none", "found": "run"},
        ],
    }  # fmt: skip


def write_right(folder: Path) -> dict[str, Path]:
    """Write one right file of each kind; by kind."""
    records = samples()
    records[0] = dataclasses.replace(
        records[0], mutants=tuple(map(to_json_verdict, map(_verdict, ("killed", "survived"))))
    )
    plain = list(map(to_json, records))
    tests: list[dict[str, Any]] = [plain_test(each) for each in _tests()]
    left = {"test": "left", "outcome": "not run", "parts": _messages()}
    results = folder / "results.json"
    whole = {**_about(), "records": plain, "tests": [*tests, left]}
    results.write_text(json.dumps(whole, default=list))
    journal = partial_path(folder / "journal.json")
    head = {"journal": 1, **_about(), "collected": [*(t["test"] for t in tests), "left", "runs"]}
    ended = [
        {"ended": test, "records": [each for each in plain if each["test"] == test["test"]]}
        for test in tests
    ]
    parts = [{"part_of": "left", "result": each} for each in _messages()]
    started = {"started": "runs"}
    lines = json.loads(json.dumps([head, *parts, *ended, started], default=list))
    RunJournal(journal, lines).close(remove=False)
    store, arrays = Store(folder / "store"), {"in0": np.ones((2, 3), np.float32)}
    arrays["out0"] = arrays["in0"] * 2
    values = (arrays["in0"], 2.5, "text", [np.dtype("int8")])
    call = write((values, {"axis": -1}, {"block": 64}))
    golden = store.put(
        Golden(
            test="t", kernel="k", check="forward", mesh={"x": 2},
            origin=Origin(backend="tpu-sim", device="TPU", versions={"jax": "0.12"}, source="ab"),
            call=GoldenCall(digest=call.digest, plain=call.plain, kinds=(("float32", (2, 3)),),
                      complete=True, seed=0, examples=8, drawn="x"),
            outputs=(Output(path="", dtype="float32", shape=(2, 3),
                            digest=digest(arrays["out0"])),),
        ),
        arrays,
    )  # fmt: skip
    example = Example(
        test="", suite=(EVIL,), kernel="k", check="forward", mesh={"x": 2}, plain=call.plain,
        kinds=(("float32", (2, 3)),), backend="tpu-sim", message="wrong", versions={"jax": "0.12"},
    )  # fmt: skip
    file = folder / "example.safetensors"
    file.write_bytes(content_of(example, [arrays["in0"]]))
    recorded = folder / "costs.json"
    cost = costs.RecordedCost(
        kernel="k", check="forward", target="v6e", signature="float32[2]", compiler="libtpu",
        cost={"bundles": 10},
    )  # fmt: skip
    costs.save(recorded, [cost])
    golden_file = store.folder / "goldens" / f"{golden.name}.json"
    paths = (results, journal, golden_file, file, recorded)
    return dict(zip(KINDS, paths, strict=True))


class Damage:
    """Damages right files: by a seed and a number, the same each time."""

    def __init__(self, right: dict[str, Path]) -> None:
        """Damages copies of ``right``, by kind."""
        self.right = {kind: path.read_bytes() for kind, path in right.items()}
        parsed = {kind: _parsed(kind, content) for kind, content in self.right.items()}
        # Copied in a tenth of the time that ``deepcopy`` takes.
        self.pickled = {kind: pickle.dumps(plain) for kind, plain in parsed.items()}

    def damaged(self, kind: str, number: int) -> bytes:
        """The content of a damaged file."""
        rng = random.Random(f"{kind} {number}")
        if rng.random() < 0.25:
            return _bytes_changed(self.right[kind], rng)
        plain = pickle.loads(self.pickled[kind])
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            plain = _value_changed(plain, rng)
        return _written(kind, self.right[kind], plain, rng)


def _parsed(kind: str, content: bytes) -> Any:
    if kind == "journal":
        return [json.loads(each) for each in content.splitlines()]
    if kind == "example":
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        header["__metadata__"] = {k: json.loads(v) for k, v in header["__metadata__"].items()}
        return header
    return json.loads(content)


#: What JSON has and Python's writer does not make, in place of a text that it makes.
_RAW = {
    "DEEP": "[" * 200_000 + "]" * 200_000,
    "DEEPER": '{"a":' * 1500 + "1" + "}" * 1500,
    "HUGE": "1e400",
    "LONG": "9" * 5000,
    "HALF": r'"\ud800"',
}


def _written(kind: str, right: bytes, plain: Any, rng: random.Random) -> bytes:
    if kind == "journal" and isinstance(plain, list):
        text = "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in plain)
    elif kind == "example" and isinstance(plain, dict):
        about = plain.get("__metadata__")
        if isinstance(about, dict):
            plain["__metadata__"] = {k: json.dumps(v) for k, v in about.items()}
        text = json.dumps(plain)
    else:
        text = json.dumps(plain)
    if rng.random() < 0.15:
        name = rng.choice([*_RAW])
        text = text.replace(": 1", f": {_RAW[name]}", 1).replace(":1,", f":{_RAW[name]},", 1)
    content = text.encode("utf-8", "surrogatepass")
    if kind != "example":
        return content
    length = len(content) if rng.random() < 0.9 else rng.choice((0, 2**63, len(content) // 2))
    rest = right[8 + int.from_bytes(right[:8], "little") :]
    return length.to_bytes(8, "little") + content + rest


def _bytes_changed(content: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(content))
    match rng.randrange(6):
        case 0:
            return content[:place]
        case 1:
            return content[:place] + bytes([rng.randrange(256)]) + content[place + 1 :]
        case 2:
            return content[:place] + rng.randbytes(rng.randrange(1, 40)) + content[place:]
        case 3:
            other = rng.randrange(len(content))
            return content[:place] + content[other:]
        case 4:
            return b"[" * 200_000 + content
        case _:
            return rng.randbytes(rng.randrange(200))


def _value_changed(plain: Any, rng: random.Random) -> Any:
    """The value with a change somewhere inside."""
    parent, key, here = None, None, plain
    while isinstance(here, (dict, list)) and here and (parent is None or rng.random() < 0.85):
        parent = here
        key = rng.choice([*here]) if isinstance(here, dict) else rng.randrange(len(here))
        here = here[key]
    if parent is None:
        return rng.choice(_evil_values())
    match rng.randrange(5):
        case 0:
            del parent[key]
        case 1 if isinstance(parent, dict):
            parent[str(rng.choice(("", "x", "__class__", "\x1b[2J", "toterminal")))] = here
        case 1:
            parent.insert(key, copy.deepcopy(here))
        case 2:
            parent[key] = [here]
        case _:
            parent[key] = rng.choice(_evil_values())
    return plain


class MistakeError(AssertionError):
    """A reader did what it must not."""


class Readers:
    """Reads damaged files as the commands of the package do."""

    def __init__(self, folder: Path, right: dict[str, Path]) -> None:
        """Reads in ``folder``, which has the right files."""
        self.folder, self.right = folder, right
        self.whole = right["results"].read_bytes()

    def read(self, kind: str, content: bytes) -> bool:
        """Read a file; whether it was accepted.

        Raises:
          MistakeError: it was refused otherwise than in one line, or something was done.
        """
        path = self.folder / self.right[kind].name if kind != "golden" else self.right["golden"]
        path.write_bytes(content)
        readers: dict[str, Callable[[Path], object]] = {
            "results": self._results, "journal": self._results, "golden": self._golden,
            "example": load_example, "costs": lambda path: costs.load(path, 5.0),
        }  # fmt: skip
        try:
            with watched(self.folder):
                readers[kind](path)
        except (PallasError, pytest.UsageError) as error:
            text = str(error)
            if "\n" in text or shown(text) != text or len(text) > 2000:
                raise MistakeError(f"not one line that a terminal shows: {text!r:.300}") from error
            return False
        except MistakeError:
            raise
        except BaseException as error:
            raise MistakeError(f"{type(error).__name__}: {error!s:.300}") from error
        return True

    def _results(self, path: Path) -> None:
        found = read_results(path)
        merged = merging.merge([found])
        "".join(document(merged.whole))
        read_earlier(path)
        done_of(found)
        with contextlib.suppress(DataError):
            require_readable(found)
            parts = {test.test: test.part for test in found.tests if test.part}
            credit_first_kills(found.records, parts, {})
        "".join(
            page(merged.whole.records, environment=found.environment, options=found.options,
                 families=list(FAMILIES))
        )  # fmt: skip
        lines = [
            summary(merged.whole.records, families=list(FAMILIES), width=100, color=False),
            str(count_distinct(merged.whole.records)),
            *merged.problems,
            *(failed.failures[0].message for failed in merged.other_failures),
        ]
        for test in found.tests:
            for report in reports_of(test, records_by_test(found)[test.test]):
                lines += [report.nodeid, report.longreprtext]
        for text in lines:
            if shown(text, lines=True) != text:
                raise MistakeError(f"a terminal would obey {text!r:.300}")
            text.encode()
        for messages in found.parts.values():
            for message in messages:
                self._part(message)

    def _part(self, message: Any) -> None:
        try:
            result = from_plain(TestResult, message)
            for warning in result.warnings:
                warning_of(warning)
            part = result_of(result.reports)
            if part is not None and part["kind"] == "rounds":
                like = Result(kernel="k", check="forward", backend="tpu-sim")
                for check in (forward, oracle_strength):
                    with contextlib.suppress(ValueError):
                        rounds_from_json(part, like, check)
            elif part is not None:
                like = Result(kernel="k", check="mutants", backend="all")
                merge_mutants(like, [part], name="k", killed={})
        except ValueError as error:  # a ``DataError``, of which callers make errors of their own
            text = str(error)
            if "\n" in text or shown(text) != text:
                raise MistakeError(f"not one line that a terminal shows: {text!r:.300}") from error

    def _golden(self, path: Path) -> None:
        del path
        store = Store(self.folder / "store")
        for golden in store.goldens():
            store.outputs(golden)
            read(golden.call.plain, store.inputs(golden))


#: What an audit hook has seen while something was watched; None while nothing is.
_SEEN: list[str] | None = None
_FOLDER = ""


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _SEEN is None:
        return
    if event in ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork",
                 "pickle.find_class"):  # fmt: skip
        _SEEN.append(f"{event} {arguments!r:.100}")
    elif event == "import" and arguments[0] == EVIL:
        _SEEN.append(f"import {arguments[0]}")
    elif event in ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.symlink", "os.link"):
        paths = [os.path.abspath(os.fsdecode(a)) for a in arguments if isinstance(a, (str, bytes))]
        _SEEN.extend(f"{event} {path}" for path in paths if not path.startswith(_FOLDER))
    elif event == "open" and isinstance(arguments[0], (str, bytes)):
        path, flags = os.path.abspath(os.fsdecode(arguments[0])), arguments[2] or 0
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and not path.startswith(_FOLDER):
            _SEEN.append(f"open {path}")


@contextlib.contextmanager
def watched(folder: Path) -> Generator[None]:
    """Watch that nothing is executed, and nothing written outside of a folder.

    Raises:
      MistakeError: something was.
    """
    global _SEEN, _FOLDER
    _install()
    _SEEN, _FOLDER = seen, _ = [], str(folder)
    try:
        yield
    finally:
        _SEEN = None
    if seen:
        raise MistakeError(f"it did {seen[0]}")


_INSTALLED: list[bool] = []


def _install() -> None:
    if not _INSTALLED:
        _INSTALLED.append(True)
        sys.addaudithook(_hook)


def run(folder: Path, count: int) -> dict[str, tuple[int, int]]:
    """Read so many damaged files; accepted and refused files by kind.

    Raises:
      MistakeError: a reader made one; the message has the kind and the number of the file.
    """
    (folder / f"{EVIL}.py").write_text("open('executed', 'w')\n")
    right = write_right(folder)
    damage, readers = Damage(right), Readers(folder, right)
    for kind in KINDS:
        if not readers.read(kind, damage.right[kind]):
            raise MistakeError(f"the right file of {kind} was refused")
    found: dict[str, tuple[int, int]] = {}
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        try:
            accepted = readers.read(kind, damage.damaged(kind, number))
        except MistakeError as mistake:
            raise MistakeError(f"{kind} {number}: {mistake}") from mistake.__cause__
        yes, no = found.get(kind, (0, 0))
        found[kind] = (yes + accepted, no + (not accepted))
    return found


def bomb(megabytes: int) -> str:
    """A blob for ``--pallas-replay`` that unpacks to so much."""
    packed = zlib.compress(bytes(megabytes * 10**6), 9)
    return base64.b64encode(b"\1" + packed).decode()
