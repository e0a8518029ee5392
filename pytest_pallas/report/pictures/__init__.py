"""What can be drawn of a failure, as small plain values: ``Record.pictures``.

Drawn by ``report.drawings``, from records only.
"""

from pytest_pallas.report.pictures.gather import pictures_of

__all__ = ["pictures_of"]
