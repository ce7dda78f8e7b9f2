"""The house rules, as tests: they read the repository and need no servers."""
