"""The program ``tidegauge``."""

import os
import sys

from ._agent import command_line


def main() -> int:
    # What `tidegauge doctor` looks at unless told otherwise.
    os.environ.setdefault("TIDEGAUGE_PYTHON", sys.executable)
    return command_line(sys.argv)


if __name__ == "__main__":
    sys.exit(main())
