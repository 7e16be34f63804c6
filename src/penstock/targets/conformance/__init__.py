"""What every target must keep to, as checks that a target's author runs against the real thing.

    @pytest.mark.parametrize("check", CHECKS, ids=str)
    async def test_my_target_keeps_the_contract(check: Check, subject: Subject):
        await check(subject)

`subject` is a fixture that gives a `Subject` with an empty table. A check that does not apply passes.
"""

from penstock.targets.conformance import checks  # noqa: F401 - it registers them
from penstock.targets.conformance.subject import CHECKS, Check, Nonconformity, Subject

__all__ = ["CHECKS", "Check", "Nonconformity", "Subject"]
