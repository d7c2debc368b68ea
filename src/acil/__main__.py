"""Make ``python -m acil`` the same as the `acil` command."""

from acil.cli import main

if __name__ == "__main__":
    main()
