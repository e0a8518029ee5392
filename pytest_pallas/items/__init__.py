"""The pytest items of specs: checks of drawn examples, recorded calls, mutants of a kernel."""
