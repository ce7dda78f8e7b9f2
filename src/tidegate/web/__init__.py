"""The dashboard: a web page that shows the groups of a ledger, and lets operators change them."""
