"""Hunting mutants: which of them the checks of a project catch, and what is left."""
