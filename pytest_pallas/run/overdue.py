"""Let a kernel that does not end cost its time limit once in a ``@given`` test.

Hypothesis runs a test that failed again and again, with smaller examples, and each of these calls
could take as long. After a call that did not end in time, the test runs that call no more, which
fails as it did. It rejects examples with calls of the kernel that it has not run before.
"""

from __future__ import annotations

from collections.abc import Callable

import hypothesis

from pallas_sim.errors import PallasError
from pytest_pallas.draw.arguments import Arguments
from pytest_pallas.draw.examples import draw_name
from pytest_pallas.session import CallsOfTest, Session


def once_in_a_test[T](
    session: Session, kernel: str, arguments: Arguments, run: Callable[[], T]
) -> T:
    """Run a call of a kernel, unless one of the running test did not end in time.

    Args:
      session: of the run.
      kernel: name of the kernel.
      arguments: the call.
      run: runs it.

    Returns:
      What ``run`` returns.

    Raises:
      PallasError: this call did not end in time when it ran.
      hypothesis.errors.UnsatisfiedAssumption: another call did not, and this one has not run.
    """
    __tracebackhide__ = True
    if session.item is None or not hypothesis.currently_in_test_context():
        return run()
    calls = session.calls.setdefault((session.item.nodeid, kernel), CallsOfTest())
    call = draw_name(arguments)
    if call in calls.overdue:
        error, traceback = calls.overdue[call]
        raise error.with_traceback(traceback)
    if calls.overdue and call not in calls.ended:
        hypothesis.reject()
    try:
        values = run()
    except Exception as error:
        if isinstance(error, PallasError) and error.timed_out:
            calls.overdue[call] = error, error.__traceback__
        else:
            calls.ended.add(call)
        raise
    calls.ended.add(call)
    return values
