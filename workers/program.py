"""What the programs of this room share: a readable log, and errors that end as one message and an exit code."""

import logging
import sys
from collections.abc import Callable

from pipeline.errors import ConfigError, HeadraceError, OtherSettings


def run(main: Callable[[], None]) -> None:
    """Call main; exit 1 for what failed, 2 for settings that cannot be used, with one message on stderr."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        main()
    except (ConfigError, OtherSettings) as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except HeadraceError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
