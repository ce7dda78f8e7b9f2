"""``tidegate doctor``: whether what is set up here can work, and what to do where it cannot."""

from tidegate.cli.doctor.command import doctor

__all__ = ["doctor"]
