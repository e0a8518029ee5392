"""The folder of ``--pallas-golden-dir``: a manifest a golden, and the arrays by their content.

    goldens/<name>.json             what is known of one answer (``entry``)
    tensors/<sha256>.safetensors    arrays, which several goldens may share

Every file is written beside its place and renamed, arrays before the manifest that names them: who
writes at the same time, or dies in the middle, leaves whole files. Names of files are digests, so
nothing that a manifest says leads out of the folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_pallas.decoding import DataError, parse
from pytest_pallas.errors import GoldenError
from pytest_pallas.goldens.entry import Golden, from_json, to_json
from pytest_pallas.goldens.tensors import Array, dump, load

_NAME = re.compile(r"[0-9a-f]{64}\.json")

#: What a manifest may have; one is a few KiB.
_MOST = 16 * 2**20


@dataclass(frozen=True)
class Store:
    """Goldens in a folder.

    Attributes:
      folder: made at the first write.
    """

    folder: Path

    def goldens(self) -> Iterator[Golden]:
        """All goldens, by name.

        Raises:
          GoldenError: a file is damaged or foreign; the message says which.
        """
        folder = self.folder / "goldens"
        if not folder.is_dir():
            return
        for path in sorted(folder.iterdir()):
            if path.name.startswith("."):
                continue  # of somebody who is writing, or was
            if not _NAME.fullmatch(path.name):
                raise GoldenError(f"{path}: this is no golden of pytest-pallas; move it elsewhere")
            golden = self._read(path)
            if golden.name != path.stem:
                raise GoldenError(f"{path}: its content was changed: {_AGAIN}")
            yield golden

    def get(self, name: str) -> Golden | None:
        """The golden of this name, if there is one.

        Raises:
          GoldenError: its file is damaged.
        """
        path = self.folder / "goldens" / f"{name}.json"
        return self._read(path) if path.is_file() else None

    def put(self, golden: Golden, arrays: Mapping[str, Array]) -> Golden:
        """Write a golden and its arrays, under the name of their content.

        Raises:
          OSError: the folder cannot be written to.
        """
        content = dump(arrays)
        golden = dataclasses.replace(golden, tensors=hashlib.sha256(content).hexdigest())
        path = self.folder / "tensors" / f"{golden.tensors}.safetensors"
        if not path.is_file():
            _write(path, content)
        text = json.dumps(to_json(golden), indent=1, sort_keys=True) + "\n"
        _write(self.folder / "goldens" / f"{golden.name}.json", text.encode())
        return golden

    def outputs(self, golden: Golden) -> dict[str, Array]:
        """The arrays of an answer by path; of a sampled one, its sample.

        Raises:
          GoldenError: the file is missing or damaged.
        """
        kinds = {
            f"out{number}": (each.dtype, (each.sample,) if each.sample else each.shape)
            for number, each in enumerate(golden.outputs)
        }
        arrays = self._arrays(golden, kinds)
        return {each.path: arrays[f"out{number}"] for number, each in enumerate(golden.outputs)}

    def inputs(self, golden: Golden) -> list[Array]:
        """The arrays of the call.

        Raises:
          GoldenError: the file is missing or damaged.
        """
        kinds = {f"in{number}": kind for number, kind in enumerate(golden.call.kinds)}
        return list(self._arrays(golden, kinds).values())

    def _arrays(
        self, golden: Golden, kinds: Mapping[str, tuple[str, tuple[int, ...]]]
    ) -> dict[str, Array]:
        path = self.folder / "tensors" / f"{golden.tensors}.safetensors"
        if not path.exists():
            raise GoldenError(f"{path}: the arrays of {golden} are missing: {_AGAIN}")
        _require_file(path)
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != golden.tensors:
            raise GoldenError(f"{path}: its content was changed, or is not all there: {_AGAIN}")
        try:
            return load(content, kinds)
        except GoldenError as error:
            raise GoldenError(f"{path}: {error}") from None

    def _read(self, path: Path) -> Golden:
        _require_file(path)
        try:
            if path.stat().st_size > _MOST:
                raise DataError("is too large for a manifest")
            return from_json(parse(path.read_bytes()))
        except DataError as error:
            raise GoldenError(f"{path}: this {error}; {_AGAIN}") from None
        except GoldenError as error:
            raise GoldenError(f"{path}: {error}") from None


_AGAIN = "delete it, and record again"


def _require_file(path: Path) -> None:
    """Refuse links, which lead out of the folder, and devices, which have no end."""
    if path.is_symlink() or not path.is_file():
        raise GoldenError(f"{path}: this is no file of its own; remove it")


def _write(path: Path, content: bytes) -> None:
    """Write a file in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
