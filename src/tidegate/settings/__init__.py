"""Settings: one model for ``tidegate.toml`` and the environment's ``TIDEGATE_*``."""

from tidegate.settings.masking import masked
from tidegate.settings.on_error import OnError
from tidegate.settings.refusals import refuse_unsafe
from tidegate.settings.settings import (
    KafkaSettings,
    LedgerSettings,
    LimitSettings,
    ListenerSettings,
    Settings,
)
from tidegate.settings.sinks import IntoSettings, SinkFormat, SinkSettings, TableMode

__all__ = [
    "IntoSettings",
    "KafkaSettings",
    "LedgerSettings",
    "LimitSettings",
    "ListenerSettings",
    "OnError",
    "Settings",
    "SinkFormat",
    "SinkSettings",
    "TableMode",
    "masked",
    "refuse_unsafe",
]
