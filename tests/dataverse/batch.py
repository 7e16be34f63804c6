"""`$batch`: many requests in one, run in order, with change sets that succeed or fail as one."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace

from . import problems
from .faults import MissingParts
from .multipart import Part, boundary_of, format_answers, parse_parts
from .problems import Refused
from .wire import API, Answer, Request
from .writing import Work

__all__ = ["parts_of", "run_batch"]

PARTS_MAX = 1000
Operate = Callable[[Work], Answer]
Answered = tuple[Answer | list[tuple[Answer, str | None]], str | None]


def parts_of(request: Request) -> list[Part]:
    """The parts of a batch."""
    return parse_parts(request.body, boundary_of(request.headers.get("content-type", "")), request.base)


def run_batch(work: Work, operate: Operate) -> Answer:
    """Run the parts in order; stop at the first failure unless the client wants to go on.

    A stopped batch answers with the failure's status; its body holds what was run until then.
    """
    parts = parts_of(work.request)
    if sum(part.size for part in parts) > PARTS_MAX:
        raise Refused(problems.bad_request(f"A batch takes at most {PARTS_MAX} requests.", "0x80044352"))
    goes_on = "odata.continue-on-error" in work.request.preferences
    answers: list[Answered] = []
    status = 200
    for part in parts:
        answer = _run_change_set(work, part.change_set, operate) if part.change_set else _run(work, part, operate)
        answers.append((answer, part.content_id))
        if isinstance(answer, Answer) and answer.status >= 400 and not goes_on:
            status = answer.status
            break
    return _formatted(work, answers, status)


def _formatted(work: Work, answers: Sequence[Answered], status: int) -> Answer:
    mark = f"batchresponse_{uuid.uuid4()}"
    lacking = sum(event.count for event in work.struck.whole(MissingParts))
    body = format_answers(answers[: max(0, len(answers) - lacking)], mark)
    return Answer(status, {"Content-Type": f"multipart/mixed; boundary={mark}", "OData-Version": "4.0"}, body)


def _run(work: Work, part: Part, operate: Operate) -> Answer:
    if part.request is None or part.request.path.startswith("$batch"):
        return _refusal(work, problems.bad_request("A batch cannot hold another batch."))
    return operate(work.of(part.request))


def _run_change_set(work: Work, parts: Sequence[Part], operate: Operate) -> Answer | list[tuple[Answer, str | None]]:
    made: dict[str, str] = {}
    answers: list[tuple[Answer, str | None]] = []
    try:
        with work.store.unit():
            for part in parts:
                answers.append((_run_one_of_set(work, part, operate, made), part.content_id))
    except _Failed as failed:
        return failed.answer
    return answers


def _run_one_of_set(work: Work, part: Part, operate: Operate, made: dict[str, str]) -> Answer:
    assert part.request is not None
    if part.request.method == "GET":
        raise _Failed(_refusal(work, problems.bad_request("A change set cannot hold GET requests.")))
    answer = operate(work.of(_referring(part.request, made)))
    if answer.status >= 400:
        raise _Failed(answer)
    if part.content_id and "OData-EntityId" in answer.headers:
        made[part.content_id] = answer.headers["OData-EntityId"].partition(API)[2]
    return answer


def _referring(request: Request, made: dict[str, str]) -> Request:
    """The request with `$1` and the like replaced by the records they stand for."""

    def found(match: re.Match[str]) -> str:
        return made.get(match[1], match[0])

    target = re.sub(r"^(?:.*/)?\$(\d+)(?=/|$)", found, request.target)
    body = re.sub(r'(?<=")\$(\d+)(?=")', lambda match: "/" + made.get(match[1], match[0]), request.body.decode())
    return replace(request, target=target, body=body.encode())


def _refusal(work: Work, problem: problems.Problem) -> Answer:
    return problems.answer_of(work.request, problem)


class _Failed(Exception):
    """Ends a change set with the answer of the request that failed."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer
