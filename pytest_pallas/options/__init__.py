"""Options: ``table`` declares them, and ``values`` has what a session was given."""
