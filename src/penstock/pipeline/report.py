"""The faults of one declaration, collected so that its author sees all of them at once."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.errors import DeclarationError, Fault

__all__ = ["Report"]


@dataclass
class Report:
    """What is wrong with the declaration of the operation of this name."""

    name: str
    faults: list[Fault] = field(default_factory=list)

    def add(self, message: str, place: str | None = None) -> None:
        """Note a fault, and the step or option it is about."""
        self.faults.append(Fault(message, place))

    def raise_any(self) -> None:
        """Raise one error for all faults there are."""
        if self.faults:
            listed = "; ".join(map(str, self.faults))
            raise DeclarationError(f"operation {self.name!r} is declared wrongly: {listed}", self.faults)
