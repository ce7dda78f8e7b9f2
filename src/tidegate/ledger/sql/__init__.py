"""The ledger on SQLite, MySQL/MariaDB and PostgreSQL."""
