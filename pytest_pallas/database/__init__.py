"""Databases of failing examples: the places of ``--pallas-database``, and their opening."""

from __future__ import annotations

from pytest_pallas.database.places import FORMS, DatabasePlace, parse_places

__all__ = ["FORMS", "DatabasePlace", "parse_places"]
