"""The version of gnnkit."""

__version__ = "0.1.0"
