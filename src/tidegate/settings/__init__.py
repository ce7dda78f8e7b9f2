"""Settings: one model for ``tidegate.toml`` and the environment's ``TIDEGATE_*``."""

from tidegate.settings.masking import masked
from tidegate.settings.refusals import refuse_unsafe
from tidegate.settings.settings import (
    KafkaSettings,
    LedgerSettings,
    LimitSettings,
    ListenerSettings,
    OnError,
    Settings,
)

__all__ = [
    "KafkaSettings",
    "LedgerSettings",
    "LimitSettings",
    "ListenerSettings",
    "OnError",
    "Settings",
    "masked",
    "refuse_unsafe",
]
