"""Lets ``python -m tidegate.cli`` run the ``tidegate`` command."""

from tidegate.cli import main

if __name__ == "__main__":
    main()
