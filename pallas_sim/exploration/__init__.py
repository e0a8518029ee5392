"""Every order of what the threads and copies of a call do."""
