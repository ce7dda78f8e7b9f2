"""Who logs in to Kafka and how the line is encrypted: librdkafka's settings in, those of the Java client out.

Certificates and keys are sent along as text: executors share no file system with the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tidegate.core.errors import ConfigurationError

__all__ = ["security_options"]

_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_LOGIN = {"sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"}
_ENCRYPTION = {
    *("ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location", "ssl.certificate.pem"),
    *("ssl.key.location", "ssl.key.pem", "ssl.key.password", "ssl.endpoint.identification.algorithm"),
    *("ssl.keystore.location", "ssl.keystore.password", "enable.ssl.certificate.verification"),
}
_LOGIN_PREFIXES = ("sasl.", "enable.sasl.", "oauth")
_PREFIXES = (*_LOGIN_PREFIXES, "ssl.", "security.", "enable.ssl.")


def security_options(kafka: Mapping[str, Any], *, own_login: bool = False) -> dict[str, str]:
    """What the Java client is told of security; a setting that it cannot be told is an error that names it.

    ``own_login``: the user tells it how to log in, and only the mechanism is taken from here.
    """
    known = _LOGIN | _ENCRYPTION | {"security.protocol"}
    mechanism = str(kafka.get("sasl.mechanism") or kafka.get("sasl.mechanisms") or "GSSAPI").strip().upper()
    protocol = str(kafka.get("security.protocol", "plaintext")).strip().upper()
    for key in kafka:
        if key.startswith(_PREFIXES) and key not in known and not (own_login and key.startswith(_LOGIN_PREFIXES)):
            raise ConfigurationError(
                f"the client setting {key!r} has no counterpart in the Java client, which reads for Spark; leave it "
                "out, or write the counterpart that you know of as 'java.…'"
            )
    if protocol not in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"):
        raise ConfigurationError(f"'security.protocol' is {protocol.lower()!r}, which Kafka does not know")
    java = {"security.protocol": protocol} if "security.protocol" in kafka else {}
    if protocol.startswith("SASL"):
        java |= {"sasl.mechanism": mechanism} if own_login else _login(kafka, mechanism)
    if protocol.endswith("SSL"):
        java |= _encryption(kafka)
    return java


def _login(kafka: Mapping[str, Any], mechanism: str) -> dict[str, str]:
    module = _MODULES.get(mechanism)
    if module is None:
        raise ConfigurationError(
            f"'sasl.mechanism' is {mechanism}, which is not translated for Spark: only {', '.join(_MODULES)} are. Give "
            "the connector its own settings: 'java.sasl.mechanism', 'java.sasl.jaas.config' and what else it needs"
        )
    for key in ("sasl.username", "sasl.password"):
        if key not in kafka:
            raise ConfigurationError(f"'sasl.mechanism' is {mechanism}, and {key!r} is missing")
    user, password = _quoted(str(kafka["sasl.username"])), _quoted(str(kafka["sasl.password"]))
    return {
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"{module} required username={user} password={password};",
    }


def _quoted(text: str) -> str:
    """A string of a JAAS configuration."""
    for plain, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r")):
        text = text.replace(plain, escaped)
    return f'"{text}"'


def _encryption(kafka: Mapping[str, Any]) -> dict[str, str]:
    java: dict[str, str] = {}
    if str(kafka.get("enable.ssl.certificate.verification", True)).strip().lower() == "false":
        raise ConfigurationError(
            "'enable.ssl.certificate.verification' is off, and the Java client, which reads for Spark, always "
            "verifies; let 'ssl.ca.location' name the authority that signed the brokers' certificates"
        )
    if (check := kafka.get("ssl.endpoint.identification.algorithm")) is not None:
        java["ssl.endpoint.identification.algorithm"] = "" if str(check).lower() == "none" else str(check)
    if authorities := _pem(kafka, "ssl.ca", _authorities):
        java |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": authorities}
    certificate, key = _pem(kafka, "ssl.certificate"), _pem(kafka, "ssl.key")
    if bool(certificate) != bool(key):
        raise ConfigurationError("of 'ssl.certificate.…' and 'ssl.key.…' one is given without the other")
    if certificate and key:
        java |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": certificate,
            "ssl.keystore.key": _pkcs8(key),
        }
        if password := kafka.get("ssl.key.password"):
            java["ssl.key.password"] = str(password)
    elif store := kafka.get("ssl.keystore.location"):
        java |= {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": str(store)}
        if password := kafka.get("ssl.keystore.password"):
            java["ssl.keystore.password"] = str(password)
    return java


def _pem(kafka: Mapping[str, Any], stem: str, read: Callable[[str, Path], str] | None = None) -> str | None:
    if text := kafka.get(f"{stem}.pem"):
        return str(text)
    location = str(kafka.get(f"{stem}.location") or "")
    # "probe" is librdkafka's word for the authorities of the system, which Java trusts by default.
    if not location or location == "probe":
        return None
    return (read or _file)(f"{stem}.location", Path(location))


def _authorities(key: str, place: Path) -> str:
    """A file, or all files of a folder, as librdkafka takes either."""
    files = sorted(path for path in place.iterdir() if path.is_file()) if place.is_dir() else [place]
    texts = [text for file in files if "BEGIN CERTIFICATE" in (text := _file(key, file))]
    if not texts:
        raise ConfigurationError(f"the client setting {key!r}: there is no certificate in {place}")
    return "\n".join(texts)


def _file(key: str, path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError as error:
        raise ConfigurationError(f"the client setting {key!r}: {path} cannot be read: {error.strerror}") from error


def _pkcs8(key: str) -> str:
    if "BEGIN PRIVATE KEY" in key or "BEGIN ENCRYPTED PRIVATE KEY" in key:
        return key
    raise ConfigurationError(
        "the private key in 'ssl.key.…' is not in PKCS #8 form, the only one that the Java client reads; convert it: "
        "openssl pkcs8 -topk8 -in old.key -out new.key"
    )
