"""A MariaDB server."""

from __future__ import annotations

from tidegate.sandbox.mysql_family import MySQLFamily
from tidegate.sandbox.process import Command
from tidegate.sandbox.programs import find_program

_PACKAGE = "mariadb-server"


class MariaDB(MySQLFamily):
    """MariaDB with its default durability and with LOAD DATA LOCAL allowed.

    ``user`` has all privileges and may grant them. ``settings`` are system variables, such as
    ``{"innodb_lock_wait_timeout": 5}``.
    """

    title = "MariaDB"
    section = "mariadbd"

    def _check(self) -> None:
        find_program("mariadbd", package=_PACKAGE)
        find_program("mariadb-install-db", package=_PACKAGE)

    def _initialise(self) -> None:
        self._space.fresh_folder("data")
        config = self._write_config()  # the first start fixes some settings, such as the page size
        install = find_program("mariadb-install-db", package=_PACKAGE)
        self._run(Command([install, f"--defaults-file={config}", "--skip-test-db"]))
        # The grant tables are not in force yet. FLUSH PRIVILEGES loads them, and CREATE USER works from then on.
        setup = self._write_setup("FLUSH PRIVILEGES;\n")
        try:
            program = find_program("mariadbd", package=_PACKAGE)
            self._run(Command([program, f"--defaults-file={config}", "--bootstrap"], input=setup))
        finally:
            setup.unlink()

    def _command(self) -> Command:
        return Command([find_program("mariadbd", package=_PACKAGE), f"--defaults-file={self._write_config()}"])
