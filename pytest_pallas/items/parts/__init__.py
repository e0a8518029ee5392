"""Parts of an item that any process can run: rounds of fuzzing, and mutants of a kernel.

A controller that hands out parts does four things:

1. ``divisible(item)`` is a ``Division``, or None for an item that runs as a whole: without
   ``--pallas-fuzz-rounds`` and ``--pallas-fuzz-time``, on compiling backends, with an expected
   failure, in replays, with goldens, and for tests of your own.
2. It sends ``WorkerRequest(..., part=part)`` for each of ``remaining(division, results)``, in any
   order, to any process, as often as it likes. A part of mutants has a ``journal`` of its own, as
   a whole item has. Rounds need no ``seconds``: a part has few of them, and a controller with a
   time limit stops handing out parts. With ``seconds``, a part starts no round after them.
   Parts of mutants get the ``seconds`` that are left of a time limit, 0 if none are: they have to
   be run, since only a process with the kernel can name its mutants. They get no ``killed``.
3. ``result_of(reply.reports)`` is the result of a part as plain JSON values; None if the part ended
   before it began to run, such as by a wrong mark or a kernel that cannot be traced: that ends the
   item, too. ``remaining`` with the results so far is what is left: the number of mutants is known
   after the first part, and rounds after a failure or after the last new example are not needed. If
   ``endless(division)``, only the time ends the item: what was run up to the first gap counts.
4. ``report.parts.merged_reports(item, replies, killed)`` makes one set-up, call and teardown report
   of the reports of the parts, in any order, some perhaps twice. They have what one process finds,
   except for times. ``killed`` is the ``PytestSession.killed`` of the controller, which merges the
   items of mutants in the order of collection. With ``--pallas-mutate``, tests of your own, which
   run as a whole, are settled in the same order by ``report.parts.settle_kills(item, reports,
   killed)``, in which their request had no ``killed``, either.
   ``keep_examples(session, results)`` saves the failing examples.

The result of a part depends on the item, its numbers and the options, not on other parts. A process
that runs parts does not know that the kernel raised in an earlier item (``PytestSession.raised``):
a controller merges ``forward`` first, and runs the other items of the kernel only if
``items.item.skip_if_raised`` lets them.
"""

from pytest_pallas.items.parts.division import (
    Division,
    checked_result,
    divisible,
    endless,
    keep_examples,
    part,
    remaining,
    result_of,
    rounds_needed,
)

__all__ = [
    "Division",
    "checked_result",
    "divisible",
    "endless",
    "keep_examples",
    "part",
    "remaining",
    "result_of",
    "rounds_needed",
]
