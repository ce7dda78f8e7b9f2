"""Pictures of the dashboard for the documentation: `python -m tools.screenshots`."""
