"""Run mutants, and report which of them the checks of a project kill."""
