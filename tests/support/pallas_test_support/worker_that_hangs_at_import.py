"""A module for workers that is never imported to its end."""

import time

time.sleep(60)
