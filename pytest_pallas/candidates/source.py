"""The source of a candidate: text that this process reads and never runs.

A candidate may import files beside it. Which ones is read from its syntax, and these are copied to
the sandbox; no others are.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pallas_sim.errors import OptionError
from pytest_pallas.candidates.sandbox import MOST_SOURCE, Failed

#: Most files of a candidate.
MOST_FILES = 64

#: Modules that no file beside a candidate can stand for: the sandbox has imported them.
_PROTECTED = sys.stdlib_module_names | {
    *("jax", "jaxlib", "numpy", "ml_dtypes"),
    *("pallas_sim", "pytest_pallas", "reference_kernels"),
}


@dataclass(frozen=True, kw_only=True)
class CandidateSource:
    """The source of a kernel.

    Attributes:
      name: for reports.
      files: text of each file, by its path below ``folder``.
      module: the file that is imported.
      function: the name of the kernel in it.
      package: the package that relative imports of the module start from; "" without one.
      folder: where the files are, for lines in reports.
      problem: why it cannot be judged at all, or None.
    """

    name: str
    files: Mapping[str, str]
    module: str
    function: str
    package: str = ""
    folder: str = ""
    problem: Failed | None = None

    @property
    def digests(self) -> dict[str, str]:
        """SHA-256 of each file."""
        return {
            name: hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()
            for name, text in self.files.items()
        }


def divided(text: str) -> tuple[Path, str]:
    """Return the file and the function that ``FILE.py:FUNCTION`` names.

    Raises:
      OptionError: it names none.
    """
    file, colon, function = text.rpartition(":")
    if not colon or not function.isidentifier():
        raise OptionError(f"{text!r}: give the file and the function as FILE.py:FUNCTION")
    return Path(file), function


def candidate_of(kernel: Any) -> CandidateSource:
    """Return the candidate that a caller means.

    Args:
      kernel: ``"FILE.py:FUNCTION"``, a function of a module, or a candidate.

    Raises:
      OptionError: it is none of these, or there is no such file.
    """
    if isinstance(kernel, CandidateSource):
        return kernel
    if isinstance(kernel, str):
        path, function = divided(kernel)
    else:
        try:
            inner = inspect.unwrap(kernel)  # of jit, for example
            path, function = Path(inspect.getsourcefile(inner) or ""), str(kernel.__qualname__)
        except (TypeError, AttributeError):
            raise OptionError(
                f"{kernel!r} has no source file: give a function of a module, or FILE.py:FUNCTION"
            ) from None
        if "<" in function:
            raise OptionError(
                f"{function} is defined inside of a function: move it to its module, so that it "
                "can be imported in another process"
            )
    if not path.is_file():
        raise OptionError(f"there is no file {path}")
    path = path.parent.resolve() / path.name
    root, package, installed = _package_of(path)
    files, problem = _read([path], root)
    if problem is None and not installed:
        siblings, problem = _siblings(path, root)
        if problem is None:
            files, problem = _read([path, *siblings], root)
    own = path.relative_to(root).as_posix()
    named = path.suffix == ".py" and path.stem.isidentifier()
    module = own if named else "candidate.py"
    return CandidateSource(
        name=f"{path.name}:{function}",
        files={module if name == own else name: text for name, text in files.items()},
        module=module,
        function=function,
        package=package,
        folder=str(root) if named else "",
        problem=problem,
    )


def _failed(name: str, sentence: str) -> Failed:
    return Failed(stage="imports", name=name, sentence=sentence)


def _read(paths: Sequence[Path], root: Path) -> tuple[dict[str, str], Failed | None]:
    """Return the texts of files by their paths below a folder, or why they are too large."""
    size = sum(path.stat().st_size for path in paths)
    if size > MOST_SOURCE:
        what = paths[0].name if len(paths) == 1 else f"{paths[0].name} with what it imports"
        return {}, _failed(
            "too large", f"{what} has {size / (1 << 20):.3g} MiB; the limit is 1 MiB"
        )
    texts = (path.read_text(encoding="utf-8", errors="surrogateescape") for path in paths)
    names = (path.relative_to(root).as_posix() for path in paths)
    return dict(zip(names, texts, strict=True)), None


def _package_of(path: Path) -> tuple[Path, str, bool]:
    """Return the folder that a module is imported from, its package, and whether Python has both.

    A file that imports nothing of its package is a module of its own folder.
    """
    imports = _imports(path)
    relative = max((level for level, _, _ in imports), default=0)
    packages = list[str]()
    folder = path.parent
    while folder.name.isidentifier() and (
        len(packages) < relative or (folder / "__init__.py").is_file()
    ):
        packages.insert(0, folder.name)
        folder = folder.parent
    tops = {dotted.partition(".")[0] for level, dotted, _ in imports if not level}
    if not relative and not (packages and packages[0] in tops):
        return path.parent, "", False
    places = {Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib", "stdlib")}
    places.add(Path(__file__).resolve().parents[2])
    return folder, ".".join(packages), folder in places


#: An import: the number of its dots, the dotted name, and the names that are taken from it.
_Import = tuple[int, str, tuple[str, ...]]


def _imports(path: Path) -> list[_Import]:
    """Return the imports of a file, wherever they are in it; none of what is no Python."""
    try:
        tree = ast.parse(path.read_bytes()) if path.stat().st_size <= MOST_SOURCE else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        tree = None
    imports: list[_Import] = []
    for node in () if tree is None else ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += [(0, alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = tuple(alias.name for alias in node.names)
            imports.append((node.level, node.module or "", names))
    return imports


def _siblings(path: Path, root: Path) -> tuple[list[Path], Failed | None]:
    """Return the files below a folder that a module imports, and those that these import."""
    siblings: dict[Path, None] = {}
    waiting = [path, *_inits(path.parent, root)]
    while waiting:
        module = waiting.pop()
        if module != path:
            siblings[module] = None
        for one in _imports(module):
            for file in _files_of(one, module, root, path.parent):
                where = file.relative_to(root)
                if file == path:
                    continue
                if Path(where.parts[0]).stem in _PROTECTED:
                    sentence = f"{where} has the name of a module that Python has: rename it"
                    return [], _failed("shadows", sentence)
                if not file.resolve().is_relative_to(root):
                    return [], _failed("outside", f"{where} is a link out of {root}")
                if file not in siblings and file not in waiting:
                    waiting.append(file)
        if len(siblings) + len(waiting) >= MOST_FILES:
            sentence = f"{path.name} imports more than {MOST_FILES} files beside it"
            return [], _failed("too large", sentence)
    return list(siblings), None


def _inits(folder: Path, root: Path) -> Iterator[Path]:
    """Yield the files that make packages of a folder and those above it, up to a root."""
    while folder != root:
        if (folder / "__init__.py").is_file():
            yield folder / "__init__.py"
        folder = folder.parent


def _files_of(one: _Import, module: Path, root: Path, folder: Path) -> list[Path]:
    """Return the files below a root that an import stands for.

    Args:
      one: the import.
      module: the file that has it.
      root: the folder that packages are in.
      folder: that of the candidate, where its imports are looked for, too.
    """
    level, dotted, names = one
    bases = [root, folder]
    if level:
        bases = [*module.parents][level - 1 : level]
        bases = [base for base in bases if base.is_relative_to(root)]
    parts = dotted.split(".") if dotted else []
    for base in bases:
        targets = [base.joinpath(*parts[:count]) for count in range(1, len(parts) + 1)]
        targets += [base.joinpath(*parts, name) for name in names if name != "*"]
        files = [
            file
            for target in targets
            for file in (target / "__init__.py", target.with_suffix(".py"))
        ]
        existing = [file for file in files if file.is_file()]
        if existing:
            return existing
    return []
