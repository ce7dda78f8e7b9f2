"""The ledger in Redis, where one script writes the data and moves the positions."""

from tidegate.errors import ConfigurationError

try:
    import redis as _redis  # noqa: F401 - an optional extra: check here, before the modules below import it
except ImportError as error:
    raise ConfigurationError("a ledger in Redis needs the package redis; run: pip install 'tidegate[redis]'") from error

from tidegate.ledger.redis.ledger import RedisLedger
from tidegate.ledger.redis.transaction import RedisCommands, RedisTransaction

__all__ = ["RedisCommands", "RedisLedger", "RedisTransaction"]
