"""Signatures of deliveries, as Standard Webhooks 1.0.0 defines them.

The signed text is ``id.timestamp.body``; the signature is HMAC-SHA256 in base64 after ``v1,``. A secret
is ``whsec_`` and 24 to 64 bytes in base64.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
from typing import Final

from mdm_gitops.errors import SettingsError

PREFIX: Final = "whsec_"
_BYTES: Final = range(24, 65)


def generate_secret() -> str:
    return PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def read_secret(text: str) -> bytes:
    """Return the key of a secret.

    Raises:
        SettingsError: it is none; the message does not hold it.
    """
    try:
        key = base64.b64decode(text.strip().removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not text.strip().startswith(PREFIX) or len(key) not in _BYTES:
        raise SettingsError(
            "the secret of a webhook is not one",
            hint=f"write {PREFIX} and 24 to 64 bytes in base64",
        )
    return key


def signature_headers(
    key: bytes, *, message_id: str, timestamp_s: int, body: bytes
) -> dict[str, str]:
    """Return the three headers of one attempt; *message_id* is the same for each retry."""
    signed = b".".join((message_id.encode(), str(timestamp_s).encode(), body))
    digest = base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": f"v1,{digest}",
    }
