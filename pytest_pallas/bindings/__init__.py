"""Checks bound to what they are asked of: a spec and a backend, or one call; and the contexts they get."""
