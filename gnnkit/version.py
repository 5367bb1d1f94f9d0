"""The version of gnnkit."""

__version__ = "0.2.0"
