"""``python -m gnnkit`` is the command ``gnnkit``."""

from gnnkit.cli import main

if __name__ == "__main__":
    main()
