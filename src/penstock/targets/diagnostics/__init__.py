"""Why a batch failed, as far as its data and the remote's words tell."""

from penstock.targets.diagnostics.analysis import Diagnostic, analyze_batch_failure
from penstock.targets.diagnostics.causes import SUGGESTIONS, Cause, cause_of

__all__ = ["SUGGESTIONS", "Cause", "Diagnostic", "analyze_batch_failure", "cause_of"]
