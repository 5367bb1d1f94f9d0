"""Programs for those who work on gnnkit; no part of the package."""
