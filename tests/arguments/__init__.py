"""Arguments: each is converted or refused where it is given."""
