"""The public keys of an OpenID provider, as its key set (RFC 7517) lists them.

What the set may hold that we do not use is left out when it is read: secrets, keys for encryption,
key types and curves that no allowed signature has, RSA keys of less than 2,048 bits. A key is found by
its id and by the signature it is asked for together, so it can never check another kind of one.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cryptography.exceptions import UnsupportedAlgorithm
from joserfc.errors import JoseError, SecurityWarning
from joserfc.jwk import ECKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

MAX_KEYS: Final = 100
_MIN_RSA_BITS: Final = 2_048
_Public = RSAKey | ECKey | OKPKey
_TYPES: Final[Mapping[str, type[_Public]]] = {"RSA": RSAKey, "EC": ECKey, "OKP": OKPKey}
# The other curves of OKP are for key agreement.
_CURVES_OF_SIGNATURES: Final = frozenset({None, "P-256", "P-384", "P-521", "Ed25519", "Ed448"})


@dataclass(frozen=True, slots=True)
class VerifyingKey:
    """A key with the one kind of signature that it may check."""

    algorithm: str
    key: _Public = field(repr=False)

    def verifies(self, signed: bytes, signature: bytes) -> bool:
        algorithm = JWSRegistry.algorithms[self.algorithm]
        try:
            algorithm.check_key(self.key)
            return algorithm.verify(signed, signature, self.key)
        except (JoseError, ValueError):
            return False


@dataclass(frozen=True, slots=True)
class KeyRing:
    """Keys by signature and key id."""

    keys: Mapping[tuple[str, str], VerifyingKey]

    def find(self, algorithm: str, key_id: str | None) -> VerifyingKey | None:
        """Return the key for a signature; without *key_id* only one that cannot be mistaken."""
        if key_id is not None:
            return self.keys.get((algorithm, key_id))
        fitting = [key for key in self.keys.values() if key.algorithm == algorithm]
        return fitting[0] if len(fitting) == 1 else None


def read_key_set(document: object, algorithms: frozenset[str]) -> KeyRing:
    """Return the keys of *document* that can check one of *algorithms*.

    Raises:
        ValueError: it is no key set, or one beyond reason.
    """
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list) or len(entries) > MAX_KEYS:
        raise ValueError(f"it has no list of {MAX_KEYS} keys at most")
    found: dict[tuple[str, str], VerifyingKey] = {}
    for number, entry in enumerate(entries):
        if isinstance(entry, dict):
            key_id = entry.get("kid")
            name = key_id if isinstance(key_id, str) else f"#{number}"
            for key in _usable(entry, algorithms):
                found.setdefault((key.algorithm, name), key)
    return KeyRing(found)


def _usable(entry: Mapping[str, Any], algorithms: frozenset[str]) -> Iterator[VerifyingKey]:
    key = _public_key(entry)
    if key is None:
        return
    for name in sorted(algorithms):
        if entry.get("alg", name) == name:
            try:
                JWSRegistry.algorithms[name].check_key(key)
            except JoseError:
                continue
            yield VerifyingKey(name, key)


def _public_key(entry: Mapping[str, Any]) -> _Public | None:
    """Return the key of *entry*, or None when it is none that checks signatures.

    Only its numbers are read: what else it says (certificates, addresses) is nothing to go by.
    """
    numbers = {name: entry[name] for name in ("kty", "n", "e", "crv", "x", "y") if name in entry}
    try:
        kind = _TYPES[entry["kty"]]
        operations = entry.get("key_ops", ["verify"])
        if entry.get("use", "sig") != "sig" or "verify" not in operations:
            return None
        if entry.get("crv") not in _CURVES_OF_SIGNATURES:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SecurityWarning)  # refused just below
            key = kind.import_key(numbers)
        # Also brings to light a point that is not on its curve.
        size = getattr(key.public_key, "key_size", _MIN_RSA_BITS)
    except (JoseError, UnsupportedAlgorithm, ValueError, TypeError, KeyError):
        return None
    return None if isinstance(key, RSAKey) and size < _MIN_RSA_BITS else key
