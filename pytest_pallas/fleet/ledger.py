"""Which tests of a run are to be sent, which are with a worker, and how often each was lost.

The tests of a kernel are a group: they share draws and traces, and a test may depend on earlier
ones, because a kernel that raised is not tried again. So each group is with one worker at a time.
If that worker is lost, the rest of the group is sent test by test, which shows the guilty one.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_pallas.fleet.messages import Change

#: How often a test is sent to a worker that is lost.
TRIES = 3


@dataclass(eq=False)
class Group:
    """The tests of one kernel.

    Attributes:
      name: see ``collection.selecting.scope_of``.
      todo: node ids of the tests without a result, in order.
      single: whether they are sent one by one.
      keys: the tasks that are with workers; several if one of the workers is silent.
      raised: the kernels that raised so far.
      changes: changes of the database of failing examples so far.
      losses: why workers of a test were lost, by node id.
    """

    name: str
    todo: deque[str]
    single: bool = False
    keys: set[str] = field(default_factory=set[str])
    raised: Mapping[str, Any] = field(default_factory=dict[str, Any])
    changes: Sequence[Change] = ()
    losses: dict[str, list[str]] = field(default_factory=dict[str, list[str]])


@dataclass(frozen=True, kw_only=True)
class Sent:
    """A task that is with a worker: some tests of a group."""

    group: Group
    nodeids: Sequence[str]


class Ledger:
    """The groups of a run.

    Attributes:
      groups: all groups.
      sent: the tasks that are with workers, by key.
      lost: number of tasks whose worker was lost.
    """

    def __init__(self, groups: Mapping[str, Sequence[str]], run: str) -> None:
        """Create for tests by group. ``run`` begins the keys of tasks."""
        self.groups = [Group(name, deque(nodeids)) for name, nodeids in groups.items()]
        self.sent: dict[str, Sent] = {}
        self.lost = 0
        self._waiting = deque(self.groups)
        self._keys = (f"pallas-{run}-{number}" for number in itertools.count(1))

    @property
    def unfinished(self) -> bool:
        """Whether a test has no result."""
        return any(group.todo for group in self.groups)

    @property
    def finished(self) -> int:
        """The number of groups whose tests have results."""
        return sum(not group.todo for group in self.groups)

    def next(self) -> tuple[str, Sent] | None:
        """The next task to send, with its key; None if all are with workers."""
        while self._waiting:
            group = self._waiting.popleft()
            if not group.todo:
                continue
            nodeids = [group.todo[0]] if group.single else list(group.todo)
            key, sent = next(self._keys), Sent(group=group, nodeids=nodeids)
            self.sent[key] = sent
            group.keys.add(key)
            return key, sent
        return None

    def take(self, key: str) -> Sent | None:
        """A task has ended; None if it is unknown."""
        sent = self.sent.pop(key, None)
        if sent is not None:
            sent.group.keys.discard(key)
        return sent

    def done(self, group: Group, nodeid: str) -> bool:
        """A test has a result; False if it has one already."""
        if nodeid not in group.todo:
            return False
        group.todo.remove(nodeid)
        return True

    def again(self, group: Group) -> None:
        """Send the rest of a group, unless it is with a worker."""
        if group.todo and not group.keys and group not in self._waiting:
            self._waiting.appendleft(group)

    def was_lost(self, sent: Sent, reason: str) -> Iterator[str]:
        """The worker of a task was lost; yields the tests for which it was the last try."""
        self.lost += 1
        group = sent.group
        group.single = True
        for nodeid in sent.nodeids:
            if nodeid in group.todo:
                group.losses.setdefault(nodeid, []).append(reason)
        for nodeid in list(group.todo):
            if len(group.losses.get(nodeid, ())) >= TRIES:
                yield nodeid

    def resend(self, key: str) -> None:
        """Send the rest of a task to another worker, too; the first result counts."""
        sent = self.sent.get(key)
        if sent is not None:
            sent.group.keys.discard(key)
            self.again(sent.group)
