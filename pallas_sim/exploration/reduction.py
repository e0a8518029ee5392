"""``Search``: which runs were made of a call, and which order comes next.

Races between the steps of a run are tried the other way round, one after the other: see ``search``.
A look that does nothing is tried once for all that are like it: those of devices that are alike
(``symmetry``), and those that see less, if loops wait for more (``polling``).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass, field, replace

from pallas_sim.exploration.orders import Look, Node, ReducedOrder
from pallas_sim.exploration.past import Actor, ExploredStep, Past, conflict


@dataclass(eq=False)
class Search:
    """The runs of a search: those that were made, and the next one.

    Attributes:
      nodes: the states of the next run, up to the one in which it takes another way.
      count: how many were made.
      left: whether there is a next one.
      vain: the counts at which looks were a whole round of a loop and let it go on as if it were
        none, by what decided that besides: see ``_before_look``.
      falls: whether such a look at less does nothing either: see ``polling``.
      lookers: who looks at the count of a semaphore.
      left_out: the semaphores for which orders were left out because only one looks at them.
      impatient: whether threads wait in the runs that would see the same again: see
        ``explorer.Explorer``. If any did, the search begins anew without that once it is through.
      waited: whether any did.
      anew: how often the search began anew, for this reason or because a second one looks.
    """

    nodes: list[Node] = field(default_factory=list[Node])
    count: int = 0
    left: bool = True
    vain: dict[Hashable, set[int]] = field(default_factory=dict[Hashable, set[int]])
    falls: bool = False
    lookers: dict[Hashable, set[Actor]] = field(default_factory=dict[Hashable, set[Actor]])
    left_out: set[Hashable] = field(default_factory=set[Hashable])
    impatient: bool = True
    waited: bool = False
    anew: int = 0
    _known_races: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])

    @property
    def known(self) -> int:
        """How many classes of orders are known to be left."""
        return sum(len(self._untried(node)) for node in self.nodes)

    def learn(self, explorer: ReducedOrder) -> None:
        """Take note of a run that was made, and find the next one."""
        self.count += 1
        self.waited |= explorer.waited
        self.falls = explorer.waits_for_more
        nodes, past = self.nodes, explorer.past
        del nodes[len(explorer.steps) :]
        past.order()
        step = explorer.steps[-1] if explorer.steps else None
        if explorer.spun and step is not None and len(step.seen) == 1:
            ((name, count),) = step.seen.items()
            before = _before_look(explorer, len(past.steps) - 1, name)
            self.vain.setdefault(before, set()).add(count)
        if not self._note_lookers(past):
            self._begin_anew()
            return
        for earlier, later in past.races:
            known = (earlier, later) in self._known_races
            if earlier < len(nodes) and not known:
                looks = _looks_without(explorer, earlier, later)
                if not looks or not all(map(self._is_vain, looks)):
                    _want_reversal(nodes[earlier], past, earlier, later, looks)
        if explorer.spun and step is not None and not self._waits_for_sleepers(nodes[-1], step):
            _want_others(nodes[-1])
        while nodes and not self._untried(nodes[-1]):
            nodes.pop()
        if not nodes and self.waited and self.impatient:
            self.impatient = False
            self._begin_anew()
            return
        self.left = bool(nodes)
        self._known_races = {race for race in past.races if race[1] < len(nodes) - 1}
        if nodes:
            nodes[-1].chosen = self._untried(nodes[-1])[0]

    def _untried(self, node: Node) -> list[Actor]:
        """Return who is wanted and was not tried; in the order in which they were enabled."""
        acted = any(step is not None and not step.seen for step in node.tried.values())
        return [
            actor
            for actor in node.enabled
            if actor in node.wanted
            and actor not in node.tried
            and actor not in node.asleep
            and not (acted and actor in node.looks and all(map(self._is_vain, node.looks[actor])))
        ]

    def _is_vain(self, look: Look) -> bool:
        """Return whether a look is known to be a round of a loop that does nothing."""
        before, count = look
        known = self.vain.get(before, ())
        return count in known or (self.falls and any(more > count for more in known))

    def _note_lookers(self, past: Past) -> bool:
        """Note who looks at which count; return False if that contradicts what was left out."""
        for step in past.steps:
            for kind, name in step.operations:
                if kind == "look":
                    self.lookers.setdefault(name, set()).add(step.actor)
        return all(len(self.lookers[name]) == 1 for name in self.left_out)

    def _begin_anew(self) -> None:
        """Forget all runs but for who looks at which count."""
        self.nodes.clear()
        self.vain.clear()
        self.left_out.clear()
        self._known_races.clear()
        self.anew += 1

    def _waits_for_sleepers(self, node: Node, step: ExploredStep) -> bool:
        """Return whether all that follows a look in vain is where a sleeping addition comes first.

        It is so until such a look is more than nothing, if nobody else looks at the count: the
        addition commutes with all else. Somebody may look in a later run only: then the search
        begins anew.
        """
        for other in node.asleep.values():
            names = {name for kind, name in other.operations if kind == "add"}
            only_adds = len(names) == len(other.operations) and not other.accesses
            alone = all(len(self.lookers.get(name, ())) == 1 for name in names)
            if only_adds and alone and conflict(step, other):
                self.left_out.update(names)
                return True
        return False


def _looks_without(explorer: ReducedOrder, earlier: int, later: int) -> Collection[Look]:
    """Return the looks that a step may be without an earlier addition, and without others.

    A run in which a look does nothing ends there, and is of use only for those in which it comes
    before more additions. So all of these must do nothing before the first one can be left out.

    Returns:
      The looks; none if the step is no look, or it is not known what it may see.
    """
    past = explorer.past
    operations = past.steps[later].operations
    name = next((name for kind, name in operations if kind == "look"), None)
    if name is None or len(operations) > 1:
        return ()
    before = _before_look(explorer, later, name)
    return [(before, count) for count in past.counts(name, earlier, later)]


def _before_look(explorer: ReducedOrder, position: int, name: Hashable) -> Hashable:
    """Return what decides, with the count, whether the look in a step does nothing.

    That is what its thread knew, and the semaphore. Where devices are alike, it is what the thread
    had done, whichever device it is on: see ``symmetry``.
    """
    past = explorer.past
    if explorer.alike:
        actor = past.steps[position].actor
        return replace(explorer.owner_of(actor), device=0), past.done_by(actor, position)
    return past.knowledge(position), name


def _want_others(node: Node) -> None:
    """Want somebody else tried in a state, as a step there ended a round that was none."""
    # Each of those that only look, one after the other: if all do, the last one waits forever.
    known = [node.tried.get(actor) for actor in node.wanted]
    if all(other is not None and other.seen for other in known):
        awake = (actor for actor in node.enabled if actor not in node.asleep)
        node.wanted.update([actor for actor in awake if actor not in node.wanted][:1])


def _want_reversal(
    node: Node, past: Past, earlier: int, later: int, looks: Collection[Look]
) -> None:
    """Want somebody tried in a state, so that a race of its step goes the other way round.

    Args:
      node: the state.
      past: of the run.
      earlier: the step there.
      later: the step that is to come first.
      looks: see ``Node.looks``; empty if the later step is none.
    """
    without = past.without(earlier, later)
    initial: set[Actor] = set()  # of those who go on without the earlier step: who need no others
    begun: set[Actor] = set()
    before = 0
    for position in without:
        actor = past.steps[position].actor
        if actor not in begun and not past.past[position] & before:
            initial.add(actor)
        begun.add(actor)
        before |= 1 << position
    # Who sleeps has been first in all orders of the same steps, unless its run ended there.
    asleep = {actor for actor, step in node.asleep.items() if not step.seen}
    if not initial.isdisjoint(asleep | (node.wanted - node.looks.keys())):
        return
    if not initial.isdisjoint(node.wanted):
        _want(node, next(actor for actor in node.enabled if actor in initial & node.wanted), looks)
        return
    # The shortest way to the later step: all else need not have happened before.
    way = [past.steps[at].actor for at in without if past.precedes(at, later)]
    if way[0] in node.enabled:
        _want(node, way[0], looks)
        node.ways[way[0]] = way[1:]
        return
    possible = [actor for actor in node.enabled if actor in initial]
    for actor in possible[:1] or node.enabled:
        _want(node, actor, ())


def _want(node: Node, actor: Actor, looks: Collection[Look]) -> None:
    """Want an actor tried in a state: for some looks only, or in any case."""
    if not looks:
        node.looks.pop(actor, None)
    elif actor not in node.wanted or actor in node.looks:
        node.looks.setdefault(actor, set()).update(looks)
    node.wanted.add(actor)
