"""Questions that servers ask in the middle of a call: they are put to a person, for whom the run waits."""

from datetime import timedelta

from temporalio import workflow

from ...conversation.contracts.decisions import PendingDecision
from ...conversation.contracts.plan import AgentPlan
from ...conversation.contracts.questions import Question, QuestionsPlan
from ...conversation.contracts.replies import CheckReplyRequest
from ...conversation.errors import InvalidInput, ReplyOverdue
from ...conversation.messages.message import Message
from ...conversation.messages.person_decision import PersonDecision
from ...conversation.messages.turn import Thread
from ..calls import people
from ..state.decisions import accept
from ..state.errors import ActivityFailed
from ..state.run_state import RunState
from .member_turn import MemberTurn


class ServerQuestions:
    """Puts what a server asks of ``speaker``, an agent or a tool (an id), to a person.

    Where it ``continues``, a long run may continue as new while the question waits.
    """

    def __init__(self, plan: QuestionsPlan, run: RunState, thread: Thread, speaker: str, *, continues: bool) -> None:
        self._plan, self._run, self._thread, self._speaker = plan, run, thread, speaker
        self._continues = continues

    def pending(self, question: Question) -> PendingDecision:
        """What the run waits for; the same as before it has continued as new."""
        now, limit = workflow.now(), self._plan.timeout
        other = {"asked_by": self._plan.server, "reply_schema": question.reply_schema, "record": question.record}
        return self._run.decisions.known(question.id) or PendingDecision(
            id=question.id,
            kind="question",
            run=workflow.info().workflow_id,
            speaker=self._speaker.rpartition("/")[2],
            since=now,
            until=now + timedelta(seconds=limit) if limit else None,
            question=question.text,
        ).model_copy(update={key: each for key, each in other.items() if each is not None})

    async def answer(self, asked: PendingDecision) -> PersonDecision:
        """What becomes of it. Raises ActivityFailed without an answer in time, and whatever ``Decisions.wait`` does."""

        async def check(reply: PersonDecision) -> None:
            request = CheckReplyRequest(thread=self._thread, text=reply.text or "", asked=asked.reply_schema)
            if wrong := (await people.check_reply(self._run, request)).wrong:
                raise ActivityFailed.of(InvalidInput(f"the reply {wrong}"))

        checks = accept if asked.reply_schema is None else check
        decision = await self._run.decisions.wait(asked, checks, continues=self._continues)
        if decision.how == "timeout" and not self._plan.skips:
            late = f"nobody has answered what {self._plan.server} asks within {self._plan.timeout:g} s"
            raise ActivityFailed.of(ReplyOverdue(late))
        return decision

    async def message(self, question: Question) -> Message:
        """The answer as a message of the conversation."""
        decision = await self.answer(self.pending(question))
        said = Message(role="user", content=_words(decision), decision=decision.to_remember())
        return said.model_copy(update={"name": decision.by}) if decision.by else said


def _words(decision: PersonDecision) -> str:
    """The answer as an agent reads it."""
    if decision.how == "timeout":
        return "Nobody has answered in time. Go on without an answer."
    text = decision.text or ""
    return text if decision.approved else f"I decline to answer: {text}".removesuffix(": ")


async def answer_of(agent: AgentPlan, run: RunState, turn: MemberTurn, question: Question | None) -> Message | None:
    """What a person answers to the question of an agent in its turn; None if there is none, or it may not ask."""
    if question is None or agent.questions is None:
        return None
    alone = turn.index is not None
    return await ServerQuestions(agent.questions, run, turn.thread, agent.speaker, continues=alone).message(question)
