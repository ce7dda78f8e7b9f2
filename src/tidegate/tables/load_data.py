"""LOAD DATA LOCAL through PyMySQL, fed from memory.

The server answers the statement by asking for a file by name. PyMySQL would open whatever it asks for; here the answer
is the rows, whatever it asks for. A connection only has to have announced that it can answer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import Connection

from tidegate.tables.writer import driver_errors

__all__ = ["Loaded", "can_load", "load"]

_LOCAL_FILES = 128  # the capability, as the protocol numbers it
_QUERY = 3  # the command, likewise
_PACKET = 1 << 18


class Loaded(NamedTuple):
    """What the server says of a load: rows that it stored, and warnings: each may be a value that it changed."""

    rows: int
    warnings: int


def can_load(conn: Connection) -> bool:
    """Whether this connection can send rows that way."""
    driver = conn.connection.dbapi_connection
    return type(driver).__module__.partition(".")[0] == "pymysql" and bool(
        getattr(driver, "client_flag", 0) & _LOCAL_FILES
    )


def load(conn: Connection, statement: str, lines: memoryview) -> Loaded:
    """Run the statement, which names no file of ours, and send it the lines."""
    from pymysql.protocol import OKPacketWrapper  # noqa: PLC0415 - pymysql is an extra

    driver: Any = conn.connection.dbapi_connection
    with driver_errors(conn, statement):
        driver._execute_command(_QUERY, statement)
        request = driver._read_packet()
        if not request.is_load_local_packet():
            raise driver.InternalError("the server did not ask for the rows of LOAD DATA LOCAL")
        try:
            for start in range(0, len(lines), _PACKET):
                driver.write_packet(bytes(lines[start : start + _PACKET]))
            driver.write_packet(b"")
            packet = driver._read_packet()
        except driver.Error:
            raise
        except BaseException:  # an interrupt leaves the connection in the middle of a sentence
            driver._force_close()
            raise
        answer = OKPacketWrapper(packet)
    return Loaded(answer.affected_rows, answer.warning_count)
