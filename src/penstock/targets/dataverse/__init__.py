"""Microsoft Dataverse through its Web API."""

from penstock.targets.dataverse.entities import Lookup
from penstock.targets.dataverse.options import CustomLogicBypass, DataverseOptions
from penstock.targets.dataverse.target import DataverseTarget

__all__ = ["CustomLogicBypass", "DataverseOptions", "DataverseTarget", "Lookup"]
