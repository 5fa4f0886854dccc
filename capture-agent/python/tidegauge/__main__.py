"""The program ``tidegauge``."""

import sys

from ._agent import command_line


def main() -> int:
    return command_line(sys.argv)


if __name__ == "__main__":
    sys.exit(main())
