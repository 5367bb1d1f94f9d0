"""Tables as a graph: files, data frames and streams, with keys of their own, read once and in bounded memory."""

from __future__ import annotations

from gnnkit.datasets.tables.source import TableSource, tables

__all__ = ["TableSource", "tables"]
