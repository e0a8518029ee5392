"""Checks bound to a spec on a backend, or to one call, and their contexts."""
