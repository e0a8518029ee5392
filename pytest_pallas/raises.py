"""``Raises``: a call that a kernel must reject, and the error with which it must reject it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_pallas.errors import SpecError

if TYPE_CHECKING:
    from pytest_pallas.strategies.arguments import Arguments


@dataclass(frozen=True, eq=False)  # comparing arrays gives arrays
class Raises:
    """A call that the kernel must reject with an error, as ``error_inputs`` of PyTorch's OpInfo.

    Examples::

        Raises((jax.ShapeDtypeStruct((8, 100), "float32"),), ValueError, match="multiple of 128")
        Raises(lambda call: (call.args[0], call.args[1][1:]), ValueError, match="rows")

    Attributes:
      args: the positional arguments: arrays, pytrees of them, anything else. A
        ``jax.ShapeDtypeStruct`` stands for an array of zeros. Or one ``strategies.Arguments``, as
        ``strategies.shaped`` makes it. Or a function from a drawn call, which the kernel accepts,
        to one that it must reject: ``Arguments``, or a tuple that replaces the drawn ``args``.
      error: the type of the error, or a tuple of types; a subclass will do.
      match: a regular expression that the message must contain (``re.search``); empty for any.
      options: keyword arguments of the kernel, tuning among them. They replace those of the call.
      name: for messages; by default the position in ``raises``.

    Raises:
      SpecError: a field is wrong, or ``error`` is so general that a typing error would pass.
    """

    args: tuple[Any, ...] | Arguments | Callable[[Arguments], Arguments | tuple[Any, ...]]
    error: type[Exception] | tuple[type[Exception], ...]
    match: str = ""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    name: str = ""

    def __post_init__(self) -> None:
        problem = _problem(self)
        if problem is not None:
            raise SpecError(f"Raises{f' {self.name!r}' if self.name else ''}: {problem}")

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """The types of the error."""
        return self.error if isinstance(self.error, tuple) else (self.error,)

    @property
    def wanted(self) -> str:
        """The error in words, such as ``ValueError matching 'rows'``."""
        types = " or ".join(each.__name__ for each in self.errors)
        return f"{types} matching {self.match!r}" if self.match else types

    def accepts(self, error: Exception) -> bool:
        """Whether an error has the type and the message."""
        return isinstance(error, self.errors) and self.matches(error)

    def matches(self, error: Exception) -> bool:
        """Whether an error has the message."""
        return re.search(self.match, str(error)) is not None


def _problem(given: Raises) -> str | None:
    """What is wrong with the fields, or None."""
    args: Any = given.args
    if not callable(args) and not isinstance(args, tuple) and not hasattr(args, "recipe"):
        return (
            "args must be a tuple of positional arguments, strategies.Arguments, or a function of "
            f"a drawn call, not {type(args).__name__}; one array is (array,)"
        )
    errors: tuple[Any, ...] = given.errors
    if not errors or not all(isinstance(e, type) and issubclass(e, Exception) for e in errors):
        return f"error must be a type of exception, or a tuple of them, not {given.error!r}"
    if Exception in errors:
        return (
            "error must be more specific than Exception, which a mistake in the spec raises, too; "
            "give the type that the kernel raises, such as ValueError"
        )
    try:
        re.compile(given.match)
    except (re.error, TypeError) as error:
        return f"match must be a regular expression, and {given.match!r} is none: {error}"
    return None
