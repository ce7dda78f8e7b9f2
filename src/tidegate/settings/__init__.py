"""Settings: one model for ``tidegate.toml`` and the environment's ``TIDEGATE_*``."""

from tidegate.settings.masking import masked
from tidegate.settings.on_error import OnError
from tidegate.settings.pipelines import PipelineFormat, PipelineSettings, RunSettings, SparkSettings
from tidegate.settings.refusals import refuse_unsafe
from tidegate.settings.settings import (
    KafkaSettings,
    LedgerSettings,
    LimitSettings,
    ListenerSettings,
    Settings,
    settings_file,
)
from tidegate.settings.sinks import IntoSettings, SinkFormat, SinkSettings, TableMode

__all__ = [
    "IntoSettings",
    "KafkaSettings",
    "LedgerSettings",
    "LimitSettings",
    "ListenerSettings",
    "OnError",
    "PipelineFormat",
    "PipelineSettings",
    "RunSettings",
    "Settings",
    "SinkFormat",
    "SinkSettings",
    "SparkSettings",
    "TableMode",
    "masked",
    "refuse_unsafe",
    "settings_file",
]
