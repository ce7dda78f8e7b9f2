from __future__ import annotations

from tests.app.member.conftest import stage, stages

__all__ = ["stage", "stages"]
