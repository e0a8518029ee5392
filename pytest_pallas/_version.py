"""The version of the package, read by the build and by the records."""

__version__ = "0.1.0"
