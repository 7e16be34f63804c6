"""How the effects of states are named among deliveries: in their order, and apart from every consumer."""

from __future__ import annotations

from penstock.graphs.model import ACTIONS_MAX

__all__ = ["EFFECTS", "EFFECT_ATTEMPTS_MAX", "NAME_AT", "effect_consumer", "effect_name", "is_effect"]

EFFECT_ATTEMPTS_MAX = 10
EFFECTS = ("effect:", "effect;")
"""Their names lie between these two."""

_PREFIX, _END = EFFECTS
_DIGITS = len(str(2 * ACTIONS_MAX))
NAME_AT = len(_PREFIX) + _DIGITS + 1


def effect_consumer(place: int, name: str) -> str:
    """The consumer of an effect: `effect:002:send_mail` is the third after its move."""
    return f"{_PREFIX}{place:0{_DIGITS}}:{name}"


def effect_name(consumer: str) -> str:
    """The effect of such a consumer."""
    return consumer[NAME_AT:]


def is_effect(consumer: str) -> bool:
    """Whether this is the consumer of an effect."""
    return consumer.startswith(_PREFIX)
