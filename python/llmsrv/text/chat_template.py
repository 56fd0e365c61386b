"""Chat messages to prompt text, by the model's own Jinja template.

Renders what Hugging Face's `apply_chat_template` renders. A template is a program from an untrusted file, or from a
client where the server allows that: it runs in a sandbox (template_sandbox.py) with a limit on steps and output.
Jinja is imported with the first template, since it costs start-up time.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass

# Put where the final message ends, to find that place in the rendered text. The space at its end shows whether the
# template trims messages: then the prompt must not keep the spaces in front of the mark either.
_END_MARK = "=END-OF-THE-FINAL-MESSAGE= "


class ChatTemplate:
    """A compiled template. Any thread may render."""

    def __init__(self, source: str, bos_token: str, eos_token: str) -> None:
        """Raises ValueError if `source` is not a valid template."""
        from llmsrv.text.template_sandbox import SandboxedTemplate

        self._template: SandboxedTemplate = SandboxedTemplate(source)
        self._special_tokens = {"bos_token": bos_token, "eos_token": eos_token}

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        /,  # a variable may have any name, `self` too
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, object]] | None = None,
        **kwargs: object,
    ) -> str:
        """The prompt for `messages`, special tokens included: encode it without adding any.

        `continue_final_message` ends the prompt inside the last message, for the model to go on with it. `kwargs` are
        further variables of the template, such as `enable_thinking` or `documents`. Raises ValueError with the
        template's own words if it refuses the messages or fails.
        """
        if continue_final_message and add_generation_prompt:
            raise ValueError("continue_final_message and add_generation_prompt exclude each other")
        if not messages:
            raise ValueError("messages: must not be empty")
        if continue_final_message:
            messages = _with_end_mark(messages)
        variables = {
            "documents": None,
            **self._special_tokens,
            **kwargs,
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        text = self._template.render(variables)
        return _until_end_mark(text) if continue_final_message else text


def _with_end_mark(messages: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]]:
    """The messages with the mark at the end of the last text of the last one. Leaves the caller's objects alone."""
    final = copy.deepcopy(dict(messages[-1]))
    content = final.get("content")
    if isinstance(content, str):
        final["content"] = content + _END_MARK
        return [*messages[:-1], final]
    for part in reversed(content) if isinstance(content, list) else ():
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            part["text"] += _END_MARK
            return [*messages[:-1], final]
    raise ValueError("continue_final_message: the final message has no text to continue")


def _until_end_mark(text: str) -> str:
    mark = _END_MARK.rstrip()
    begin = text.rfind(mark)
    if begin < 0:
        raise ValueError("continue_final_message: the chat template does not show the final message")
    trimmed = not text.startswith(_END_MARK, begin)
    return text[:begin].rstrip() if trimmed else text[:begin]
