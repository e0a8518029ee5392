"""Run mutants: which of them the checks of a project kill, and which survive."""
