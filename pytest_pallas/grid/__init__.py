"""What can be read off a traced kernel and its grid without running it."""
