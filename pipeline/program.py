"""What the programs of a run share: errors that end as one message and an exit code.

    0  done, or stopped as asked
    1  failed                                   HeadraceError, Redis gone, a disk that cannot be written
    2  settings that cannot be used             ConfigError, OtherSettings

Anything else is a mistake of ours and keeps its traceback.
"""

import errno
import logging
import os
import sys
from collections.abc import Callable
from typing import NoReturn

import redis

from pipeline.errors import ConfigError, HeadraceError, OtherSettings
from pipeline.log import is_set_up
from pipeline.redis_client import trouble
from pipeline.secrets import masked

log = logging.getLogger(__name__)

CANNOT_WRITE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES}


def run(main: Callable[[], None]) -> NoReturn:
    """Call main and exit; of a program that runs as several ranks, the first one speaks for all."""
    try:
        main()
    except (ConfigError, OtherSettings) as error:
        _end(2, str(error))
    except HeadraceError as error:
        _end(1, str(error))
    except redis.RedisError as error:
        _end(1, trouble(error))
    except OSError as error:
        if error.errno not in CANNOT_WRITE:
            raise
        _end(1, f"cannot write: {error}; free space or give permission, then start this program again")
    sys.exit(0)


def _end(code: int, message: str) -> NoReturn:
    if os.environ.get("RANK", "0") == "0":
        if is_set_up():
            log.critical("%s", message)
        else:
            print(masked(message), file=sys.stderr)
    sys.exit(code)
