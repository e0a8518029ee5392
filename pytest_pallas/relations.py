"""Metamorphic relations: what must hold between two answers of a kernel, whatever is right.

They need no reference. A kernel and its reference that share a mistake agree with each other, and
may still break a relation: Chen, Cheung and Yiu, "Metamorphic testing: a new approach for
generating next test cases", 1998 (arXiv:2002.12543).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_pallas.errors import SpecError

if TYPE_CHECKING:
    import numpy as np

    from pytest_pallas.strategies.arguments import Arguments

#: Whether a relation holds for a drawn call; it may depend on its options.
When = Callable[["Arguments"], bool]


def always(arguments: Arguments) -> bool:
    """Whatever was drawn."""
    del arguments
    return True


@dataclass(frozen=True)
class Linear:
    """The kernel is linear in an argument, or in several together, while the others are fixed.

    ``f(c x) = c f(x)`` for a power of two, negative where the dtype allows it: bit for bit, since
    such a factor commutes with rounding, except that 0.0 equals -0.0, and except for what is near
    the least numbers of the dtype or overflows. Where the reference computes with numbers that
    small, as a softmax does, losing one may decide how an exact tie is rounded, so that the rule of
    judgement holds. And ``f(x) = f(a) + f(b)`` where ``a + b = x``.

    ``Linear(0)`` and ``Linear(1)`` hold for ``x @ y``, ``Linear((0, 1))`` for ``x + y``.

    Attributes:
      argument: position of the argument, or positions of those that are scaled and added
        together. All leaves of a pytree are; bools are left alone.
      exact: False judges scaling by the rule of judgement: for a kernel that computes in a format
        in which a power of two does not commute with rounding, such as fixed point.
      when: for which drawn calls it holds.

    Raises:
      SpecError: ``argument`` is no position.
    """

    argument: int | Sequence[int]
    exact: bool = True
    when: When = always

    def __post_init__(self) -> None:
        if not self.positions or not all(_is_position(position) for position in self.positions):
            raise SpecError(
                f"Linear: argument must be the position of a positional argument, from 0, or "
                f"several of them, not {self.argument!r}"
            )

    @property
    def positions(self) -> tuple[int, ...]:
        """The positions of the arguments."""
        return (self.argument,) if isinstance(self.argument, int) else tuple(self.argument)

    def __str__(self) -> str:
        return f"linear in {_arguments(self.positions)}"


@dataclass(frozen=True)
class Permuted:
    """Permuting some arguments together leaves the output as it is, or permutes it likewise.

    ``Permuted({1: 0, 2: 0})`` holds for the keys and values of attention without a causal mask,
    ``Permuted({0: 0}, output=0)`` for the rows of a softmax.

    Attributes:
      args: the axis of each argument that is permuted, by its position; the arguments have the
        same size there. It holds for every leaf of a pytree.
      output: the axis of the output along which it is permuted too; None leaves it as it is. A
        sequence says it for each leaf of a pytree.
      exact: whether the answer must be the same to the bit, because nothing is summed over the
        axis. Not for kernels with ``exp`` and the like: their vectorised form may differ from the
        one for what is left over at the end.
      when: for which drawn calls it holds.

    Raises:
      SpecError: ``args`` is empty or has a key that is no position or a value that is no axis.
    """

    args: Mapping[int, int]
    output: int | Sequence[int | None] | None = None
    exact: bool = False
    when: When = always

    def __post_init__(self) -> None:
        axes: list[Any] = [*self.args.values(), *self.axes(1)]
        if (
            not self.args
            or not all(_is_position(position) for position in self.args)
            or not all(_is_int(axis) for axis in axes if axis is not None)
        ):
            raise SpecError(
                "Permuted: args must map the position of an argument to an axis, and output be an "
                f"axis or None, or one of them for each leaf, not {dict(self.args)} and "
                f"{self.output!r}"
            )

    @property
    def positions(self) -> tuple[int, ...]:
        """The positions of the arguments."""
        return tuple(self.args)

    def axes(self, leaves: int) -> tuple[int | None, ...]:
        """The axis of each of so many leaves of the output."""
        if self.output is None or isinstance(self.output, int):
            return (self.output,) * leaves
        return tuple(self.output)

    def __str__(self) -> str:
        words = ", ".join(f"axis {axis} of argument {n}" for n, axis in self.args.items())
        return f"permuted along {words}"


@dataclass(frozen=True)
class Relation:
    """A relation that a project defines: ``f(change(x))`` must be ``expect(f(x))``.

    Example: attention does not change where every key and value is there twice::

        def twice(arguments, rng):
            q, k, v = arguments.args
            args = (q, np.concatenate([k, k]), np.concatenate([v, v]))
            return dataclasses.replace(arguments, args=args)

        Relation("keys twice", twice)

    Attributes:
      name: for messages.
      change: from the drawn call and a generator, seeded with the call, to the other call.
      expect: from the kernel's outputs for the drawn call, a pytree of numpy arrays, and the
        *changed* call to what the kernel must give for that. Whatever ``change`` drew may be put
        into ``recipe`` of the changed call, or into its options. By default the same outputs.
        It is applied to the reference's outputs as well, which are float64, to see how errors
        spread.
      exact: whether the answer must be that to the bit.
      when: for which drawn calls it holds.

    Raises:
      SpecError: ``change`` or ``expect`` is no function.
    """

    name: str
    change: Callable[[Arguments, np.random.Generator], Arguments]
    expect: Callable[[Any, Arguments], Any] = lambda outputs, _: outputs
    exact: bool = False
    when: When = always

    def __post_init__(self) -> None:
        if not callable(self.change) or not callable(self.expect):
            raise SpecError(f"Relation {self.name!r}: change and expect must be functions")

    @property
    def positions(self) -> tuple[int, ...]:
        """None that need checking."""
        return ()

    def __str__(self) -> str:
        return self.name


#: Everything that ``KernelSpec.relations`` may hold.
AnyRelation = Linear | Permuted | Relation


def problem_with(relations: Sequence[AnyRelation], count: int) -> str | None:
    """What is wrong with relations of a kernel of ``count`` positional arguments, or None."""
    for relation in relations:
        beyond = [position for position in relation.positions if position >= count]
        if beyond:
            return (
                f"relations: {type(relation).__name__} names argument {beyond[0]}, but its inputs "
                f"draw {count} positional arguments"
            )
    return None


def _arguments(positions: Sequence[int]) -> str:
    return f"argument{'s' if positions[1:] else ''} {', '.join(map(str, positions))}"


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_position(value: Any) -> bool:
    return _is_int(value) and value >= 0
