"""What can be drawn of a failure, as small plain values: ``Record.pictures``.

Drawn by ``report.drawings``, from records only. Races and deadlocks are drawn of the record's
findings.
"""

from pytest_pallas.report.pictures.gather import pictures_of

__all__ = ["pictures_of"]
