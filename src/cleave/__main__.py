"""``python -m cleave`` is the ``cleave`` command."""

from cleave.cli.main import main

if __name__ == "__main__":
    main()
