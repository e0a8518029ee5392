"""The source of a candidate: text that this process reads and never runs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pallas_sim.errors import OptionError
from pytest_pallas.candidates.sandbox import MOST_SOURCE, Failed


@dataclass(frozen=True, kw_only=True)
class CandidateSource:
    """The source of a kernel.

    Attributes:
      name: for reports.
      files: text of each file, by its name.
      module: the file that is imported.
      function: the name of the kernel in it.
      folder: where the files are, for lines in reports.
      problem: why it cannot be judged at all, or None.
    """

    name: str
    files: Mapping[str, str]
    module: str
    function: str
    folder: str = ""
    problem: Failed | None = None


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
            path, function = Path(inspect.getsourcefile(kernel) or ""), str(kernel.__qualname__)
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
    name, problem, text = f"{path.name}:{function}", None, ""
    if path.stat().st_size > MOST_SOURCE:
        sentence = f"{path.name} has {path.stat().st_size >> 20} MiB; the limit is 1 MiB"
        problem = Failed(stage="imports", name="too large", sentence=sentence)
    else:
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
    module = path.name if path.suffix == ".py" else f"{path.name}.py"
    module = module if module.removesuffix(".py").isidentifier() else "candidate.py"
    return CandidateSource(
        name=name,
        files={module: text},
        module=module,
        function=function,
        folder=str(path.parent.resolve()) if module == path.name else "",
        problem=problem,
    )
