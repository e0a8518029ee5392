"""Pictures of a failure as small plain values: ``Record.pictures``.

``report.drawings`` draws them, from records only. It draws races and deadlocks from the record's
findings.
"""

from pytest_pallas.report.pictures.gather import pictures_of

__all__ = ["pictures_of"]
