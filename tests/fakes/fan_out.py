"""A fan-out that only says what it was asked."""

from __future__ import annotations

import asyncio

from lb.proxy.fan_out.question import Question, Reply


class RecordedFanOut:
    """Answers every question with `reply`, once `may_answer` is set."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.questions: list[Question] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def ask(self, question: Question) -> Reply:
        """See `lb.proxy.fan_out.question.FanOut`."""
        self.questions.append(question)
        await self.may_answer.wait()
        return self.reply
