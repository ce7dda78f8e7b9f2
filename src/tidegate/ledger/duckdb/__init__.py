"""The ledger in DuckDB, in a file that one process at a time can open."""

from tidegate.errors import ConfigurationError

try:
    import duckdb as _duckdb  # noqa: F401 - an optional extra: check here, before the modules below import it
except ImportError as error:
    raise ConfigurationError(
        "a ledger in DuckDB needs the package duckdb; run: pip install 'tidegate[duckdb]'"
    ) from error

from tidegate.ledger.duckdb.ledger import DuckdbLedger
from tidegate.ledger.duckdb.transaction import DuckdbTransaction

__all__ = ["DuckdbLedger", "DuckdbTransaction"]
