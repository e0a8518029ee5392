"""Loops in the machine code of a TPU kernel, as ranges of VLIW bundles.

Formats as libtpu 0.0.51 writes them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

_BUNDLE = re.compile(r" *(?P<address>0x[0-9a-f]+|0) +(?P<marks>[A-Z: ]*): *>* *\{")
_STARTS = re.compile(r"Start(?:/End empty)? region (\d+)")
_ENDS = re.compile(r"End (?:empty )?region (\d+)")
_BRANCH = re.compile(r"%(?P<name>\d+) = sbr\.rel [^=]*target = \$region(?P<target>\d+)")
_REGION_OR_BRANCH = re.compile(r"\$region(?P<region>\d+):|%(?P<branch>\d+) = sbr\.rel ")


def split_bundles(text: str) -> list[str]:
    """The bundles in a ``final_bundles`` dump, in the order of their addresses.

    A bundle can take several lines: comments in it hold line breaks.
    """
    bundles: list[list[str]] = []
    for line in text.splitlines():
        found = _BUNDLE.match(line)
        if found and int(found["address"], 16) == len(bundles):
            bundles.append([line])
        elif bundles:
            bundles[-1].append(line)
    return ["\n".join(lines) for lines in bundles]


def find_loops(bundles: Sequence[str], code: str) -> list[range]:
    """All loops of a kernel, nested ones too.

    A loop is a branch back to the first bundle of a region. It runs from there to the last delay
    slot of that branch: 1 bundle after the branch on v4, 4 on v5e, v5p and v6e, 6 on tpu7x. The
    dump tells, for there ends the region that the branch is in. Bundles of the loop can belong to
    what surrounds it: the compiler fills slots with instructions of other regions, under a
    predicate.

    Args:
      bundles: the kernel's bundles.
      code: the kernel's code in the same order (``post-delay-converter``), which names the region
        of each branch.

    Returns:
      Ranges of indices of ``bundles``, in the order of their starts.

    Raises:
      ValueError: the end of a loop is not known.
    """
    starts = _first_places(_STARTS, bundles)
    branches = [
        (place, found["name"], found["target"])
        for place, bundle in enumerate(bundles)
        for found in _BRANCH.finditer(bundle)
    ]
    delay = _delay_slots(bundles, code, branches)
    stops: dict[int, int] = {}
    for place, _, target in branches:
        start = starts.get(target, len(bundles))
        if start <= place:
            if delay is None:
                raise ValueError(f"no end of the loop at bundle {start:#x} in the dump")
            stops[start] = min(place + delay + 1, len(bundles))
    return [range(start, stop) for start, stop in sorted(stops.items())]


def main_loop(loops: Sequence[range], computing: Collection[int]) -> range | None:
    """The loop in which most is computed that is in no loop inside of it; the first of equals.

    Of a pipeline whose body is a loop, that is the body; of one whose body is straight code, with
    small loops that are taken once in a while, the pipeline's round.

    Args:
      loops: all loops of a kernel.
      computing: places of the bundles that compute on vectors.

    Returns:
      One of the loops; None without any.
    """

    def own(loop: range) -> tuple[int, int]:
        inside = [other for other in loops if other != loop and _contains(loop, other)]
        left = set(loop).difference(*inside)
        return len(left.intersection(computing)), len(left)

    return max(loops, key=own, default=None)


def _delay_slots(
    bundles: Sequence[str], code: str, branches: Sequence[tuple[int, str, str]]
) -> int | None:
    """Bundles after a branch that are executed before it is taken.

    The same for all branches of a chip; on tpu7x the ends of some are not in the dump, where
    something else starts before.
    """
    ends = _first_places(_ENDS, bundles)
    homes = _regions_of_branches(code)
    seen = [
        end - place
        for place, name, _ in branches
        if (end := ends.get(homes.get(name, ""))) is not None
    ]
    return max(seen, default=None)


def _first_places(pattern: re.Pattern[str], bundles: Sequence[str]) -> dict[str, int]:
    places: dict[str, int] = {}
    for place, bundle in enumerate(bundles):
        for region in pattern.findall(bundle):
            places.setdefault(region, place)
    return places


def _regions_of_branches(code: str) -> dict[str, str]:
    """The region that each branch is in, both by number."""
    homes: dict[str, str] = {}
    region = ""
    for found in _REGION_OR_BRANCH.finditer(code):
        if found["region"]:
            region = found["region"]
        else:
            homes[found["branch"]] = region
    return homes


def _contains(outer: range, inner: range) -> bool:
    return outer.start <= inner.start and inner.stop <= outer.stop
