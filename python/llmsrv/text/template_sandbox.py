"""Runs one Jinja template within limits. Imports Jinja: import this module only when there is a template.

Jinja's sandbox keeps a template from the interpreter, but not from endless loops or endless text. Here each pass of a
loop, each call, each filter and each test is a step; steps, the processor time that they take and output are limited,
and so are the operators that make much out of little. Not limited is the memory of a text that doubles again and again,
so templates of clients stay off unless they are trusted.
"""

import functools
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.sandbox
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.runtime import Context

STEPS_MAX = 100_000  # of the costliest kind, calls of macros, some 6 us each
PROCESSOR_S_MAX = 1.0  # for steps that work on much: a filter may get a long text
_LOOK_STEPS = 16  # between two looks at the clock, which cost a microsecond or two each; filters always look
_OUTPUT_CHARACTERS_MAX = 64 << 20
_REPEATED_ITEMS_MAX = 1 << 20  # of a text or list made by `*`
_NUMBER_BITS_MAX = 4096  # of a number made by `*` or `**`
_STEPS_FILTER = "counted_items"


class SandboxedTemplate:
    """A compiled template. Any thread may render."""

    def __init__(self, source: str) -> None:
        """Raises ValueError if `source` is not a valid template."""
        _ENVIRONMENT.begin_steps()  # the compiler works out what is constant
        try:
            self._template = _ENVIRONMENT.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"chat template, line {error.lineno}: {error.message}") from error
        except Exception as error:  # the compiler is exposed to whatever the source holds
            raise ValueError(f"chat template: {_words_of(error)}") from error

    def render(self, variables: Mapping[str, object]) -> str:
        """The text. Raises ValueError with the template's message if it raises, fails or passes a limit."""
        _ENVIRONMENT.begin_steps()
        pieces: list[str] = []
        length = 0
        try:
            for piece in self._template.generate(variables):
                length += len(piece)
                if length > _OUTPUT_CHARACTERS_MAX:
                    raise ValueError(f"the text is longer than {_OUTPUT_CHARACTERS_MAX} characters")
                pieces.append(piece)
        except Exception as error:  # a template can raise whatever the operations in it raise
            raise ValueError(f"chat template: {_words_of(error)}") from error
        return "".join(pieces)


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks, for training, what the assistant wrote. It renders as its body."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _LimitedEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The variables and filters that chat templates expect, in a sandbox that counts steps."""

    intercepted_binops = frozenset(["*", "**"])

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, "jinja2.ext.loopcontrols"])
        self.filters["tojson"] = _to_json
        self.filters = {name: self._stepping(each) for name, each in self.filters.items()}
        self.tests = {name: self._stepping(each) for name, each in self.tests.items()}
        self.filters[_STEPS_FILTER] = self._counted
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _now
        self._steps = threading.local()  # .left, .until_s: what the work in progress on this thread may still do

    def begin_steps(self) -> None:
        """Gives what starts on this thread its steps."""
        self._steps.left = STEPS_MAX
        self._steps.until_s = time.thread_time() + PROCESSOR_S_MAX

    # Called by compiled templates for each call, and for each operator named above.
    def call(self, context: Context, function: object, /, *args: object, **kwargs: object) -> object:
        self._take_step()
        return super().call(context, function, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        if operator == "**":
            _check_power(left, right)
        else:
            _check_product(left, right)
            _check_product(right, left)
        return super().call_binop(context, operator, left, right)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        for loop in template.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, _STEPS_FILTER, [], [], None, None, lineno=loop.lineno)
        return template

    def _counted(self, items: Iterable[object]) -> "_CountedItems":
        return _CountedItems(items, self._take_step)

    def _stepping(self, function: Any) -> Callable[..., object]:  # noqa: ANN401
        @functools.wraps(function)  # its attributes, too: they say what Jinja hands it
        def counted(*args: object, **kwargs: object) -> object:
            self._take_step()
            self._check_time()
            return function(*args, **kwargs)

        return counted

    def _take_step(self) -> None:
        self._steps.left -= 1
        if self._steps.left < 0:
            raise RuntimeError(f"more than {STEPS_MAX} steps")
        if self._steps.left % _LOOK_STEPS == 0:
            self._check_time()

    def _check_time(self) -> None:
        if time.thread_time() > self._steps.until_s:
            raise RuntimeError(f"more than {PROCESSOR_S_MAX:g} s of processor time")


class _CountedItems:
    """What a loop runs over, each item a step. Has a length exactly if the items have one, for `loop.length`."""

    def __init__(self, items: Iterable[object], take_step: Callable[[], None]) -> None:
        self._items = items
        self._take_step = take_step

    def __iter__(self) -> Iterator[object]:
        for item in self._items:
            self._take_step()
            yield item

    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type]  # TypeError tells Jinja that there is no length


def _check_power(base: object, exponent: object) -> None:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > _NUMBER_BITS_MAX:
        raise OverflowError("the result of ** is too large")


def _check_product(value: object, times: object) -> None:
    if not isinstance(times, int):
        return
    if isinstance(value, int):
        too_large = value.bit_length() + times.bit_length() > _NUMBER_BITS_MAX
    else:
        too_large = isinstance(value, Sized) and len(value) * times > _REPEATED_ITEMS_MAX
    if too_large:
        raise OverflowError("the result of * is too large")


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models were trained on it: not escaped for HTML, unlike Jinja's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(time_format: str) -> str:
    return datetime.now().strftime(time_format)


def _words_of(error: Exception) -> str:
    return str(error) or type(error).__name__


_ENVIRONMENT = _LimitedEnvironment()
