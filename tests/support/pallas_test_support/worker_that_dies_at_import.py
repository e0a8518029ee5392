"""A module for workers that ends the process that imports it, and counts how often."""

import os

print("importing")  # noqa: T201
if "COUNT_STARTS" in os.environ:
    with open(os.environ["COUNT_STARTS"], "a", encoding="utf-8") as file:
        file.write("started\n")
os._exit(7)
