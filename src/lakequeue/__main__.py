"""``python -m lakequeue`` runs the command ``lakequeue``."""

from lakequeue_command import main

if __name__ == "__main__":
    main()
