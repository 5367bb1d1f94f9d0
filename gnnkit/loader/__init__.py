"""The machinery of ``GraphLoader``: options, opening, epochs, inference, advice."""

"""The machinery of ``GraphLoader``: options, opening, epochs, inference, advice."""
