"""Ledgers: where positions live, in the database that the data goes to."""
