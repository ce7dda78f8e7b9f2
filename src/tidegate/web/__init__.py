"""The dashboard: a page over the ledger, for people who look after groups."""
