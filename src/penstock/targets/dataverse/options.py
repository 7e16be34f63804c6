"""What a bulk call can ask of Dataverse beyond what every target takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Flag

from penstock.errors import SettingsInvalid
from penstock.targets.model import BulkOptions, Mode

__all__ = ["BYPASS_PRIVILEGE", "CustomLogicBypass", "DataverseOptions", "behaviour", "platform_options"]

BYPASS_PRIVILEGE = "prvBypassCustomBusinessLogic"


class CustomLogicBypass(Flag):
    """Which plug-ins and workflows of the platform are skipped; needs the privilege prvBypassCustomBusinessLogic."""

    NONE = 0
    SYNCHRONOUS = 1
    ASYNCHRONOUS = 2
    ALL = SYNCHRONOUS | ASYNCHRONOUS


BYPASS_WORDS = {CustomLogicBypass.SYNCHRONOUS: "CustomSync", CustomLogicBypass.ASYNCHRONOUS: "CustomAsync"}


@dataclass(frozen=True, kw_only=True)
class DataverseOptions(BulkOptions):
    """How a bulk call on Dataverse behaves; every default is the platform's ordinary behaviour."""

    elastic_table: bool | None = None
    """Whether the table is elastic; None asks the environment."""
    bypass_custom_logic: CustomLogicBypass = CustomLogicBypass.NONE
    bypass_power_automate_flows: bool = False
    suppress_duplicate_detection: bool = False
    """False applies the table's duplicate detection rules; the Web API alone would not."""
    tag: str | None = None
    """Handed to plug-ins as the shared variable `tag`."""
    tell_created: bool = False
    """Read before each batch of an upsert which of its keys exist, to tell created from updated records."""
    exact_counts: bool = False
    """Upsert record by record inside `$batch`, so that the platform itself says created or updated; slower."""
    alternate_key: Sequence[str] | None = None
    """The columns that identify a record of an upsert; of a create too, which makes a lost answer traceable.

    A create with it promises that no record of these keys was there before.
    """
    client_made_ids: bool = False
    """Create records under ids of our making (or the record's own), so that a lost answer can be traced."""

    def __post_init__(self) -> None:
        if isinstance(self.alternate_key, str) or (self.alternate_key is not None and not self.alternate_key):
            raise SettingsInvalid(f"alternate_key is a list of columns, as ['code'], not {self.alternate_key!r}")
        if not isinstance(self.bypass_custom_logic, CustomLogicBypass):
            raise SettingsInvalid(f"bypass_custom_logic is a CustomLogicBypass, not {self.bypass_custom_logic!r}")
        if self.tag is not None and not self.tag:
            raise SettingsInvalid("tag is a text of at least one character, or None")


def platform_options(options: BulkOptions) -> DataverseOptions:
    """The options with the platform's defaults added where only the general ones were given."""
    if isinstance(options, DataverseOptions):
        return options
    return DataverseOptions(**{field.name: getattr(options, field.name) for field in fields(BulkOptions)})


def behaviour(options: DataverseOptions, mode: Mode) -> Mapping[str, str]:
    """The request headers that switch the platform's optional behaviour; in `$batch` they belong on every part."""
    headers = {}
    if options.bypass_custom_logic:
        words = [word for flag, word in BYPASS_WORDS.items() if flag in options.bypass_custom_logic]
        headers["MSCRM.BypassBusinessLogicExecution"] = ",".join(words)
    if options.bypass_power_automate_flows:
        headers["MSCRM.SuppressCallbackRegistrationExpanderJob"] = "true"
    if mode is not Mode.DELETE:
        # Absent means suppressed, unlike the option's default, so the header always says which.
        headers["MSCRM.SuppressDuplicateDetection"] = str(options.suppress_duplicate_detection).lower()
    return headers
