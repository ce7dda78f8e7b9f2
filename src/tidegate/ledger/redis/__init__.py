"""The ledger in Redis: positions and data move in one script."""

from tidegate.core.errors import ConfigurationError

try:
    import redis as _redis  # noqa: F401 - an extra: say so here, before the modules below need it
except ImportError as error:
    raise ConfigurationError("a ledger in Redis needs the package redis; run: pip install 'tidegate[redis]'") from error

from tidegate.ledger.redis.ledger import RedisLedger
from tidegate.ledger.redis.transaction import RedisCommands, RedisTransaction

__all__ = ["RedisCommands", "RedisLedger", "RedisTransaction"]
