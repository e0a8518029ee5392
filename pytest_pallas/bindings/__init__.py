"""Checks bound to what they are asked of, a spec on a backend or one call, and their contexts."""
