"""Options: ``table`` declares them, and ``values`` has the values of a session."""
