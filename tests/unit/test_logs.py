"""The log's lines, and that writing them holds up nobody."""

import json
import logging
import os
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmsrv.serve.logs import JsonLines, LineWriter, TextLines, logging_to, report

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=40)


def drop_line(count):
    return f"{count} lost"


def read_all(descriptor):
    os.set_blocking(descriptor, True)
    with open(descriptor, "rb") as pipe:
        return pipe.read().decode().splitlines()


@pytest.fixture
def pipe():
    reading, writing = os.pipe()
    yield reading, writing
    for descriptor in (reading, writing):
        try:
            os.close(descriptor)
        except OSError:
            continue  # the test has closed it


def logged(pipe, form, log, level="info"):
    """The lines of a log in which `log()` is all that happens."""
    reading, writing = pipe
    with logging_to(writing, form=form, level=level):
        log()
    os.close(writing)
    return read_all(reading)


def record(message, fields):
    made = logging.LogRecord("llmsrv.requests", logging.INFO, "", 0, "%s", (message,), None)
    made.fields = fields
    return made


def test_the_operators_lines_stand_alone_and_are_there_at_every_level(pipe):
    def log():
        report("serving smol on 127.0.0.1:1, ready after 0.5 s")
        logging.getLogger("llmsrv").warning("too quiet")

    assert logged(pipe, "text", log, level="error") == ["serving smol on 127.0.0.1:1, ready after 0.5 s"]


def test_without_a_log_the_operators_lines_are_printed(capsys, monkeypatch):
    monkeypatch.setattr(logging.getLogger("llmsrv.operator"), "propagate", False)
    report("listening on 127.0.0.1:1")
    assert capsys.readouterr().err == "listening on 127.0.0.1:1\n"


def test_a_line_for_people(pipe):
    def log():
        extra = {"fields": {"outcome": "length", "tenant": "a b", "total_s": 1.25}}
        logging.getLogger("llmsrv.requests").info("request", extra=extra)
        logging.getLogger("llmsrv.requests").debug("nobody asked for this")

    (line,) = logged(pipe, "text", log)
    assert line.endswith(' INFO request outcome=length tenant="a b" total_s=1.25')


def test_lines_of_json_are_all_that_there_is(pipe):
    def log():
        report("two\nlines")
        print("weights: done", file=sys.stderr)
        try:
            raise KeyError("x")
        except KeyError:
            logging.getLogger("llmsrv").exception("failed")

    lines = [json.loads(line) for line in logged(pipe, "json", log)]
    assert [line["message"] for line in lines] == ["two\nlines", "weights: done", "failed"]
    assert [line["level"] for line in lines] == ["info", "info", "error"]
    assert "KeyError" in lines[2]["exception"]
    assert abs(time.time() - time.mktime(time.strptime(lines[0]["time"][:19], "%Y-%m-%dT%H:%M:%S"))) < 86400


@given(message=ANY_TEXT, key=ANY_TEXT)
def test_a_clients_text_is_one_line_in_both_forms(message, key):
    text = TextLines().format(record(message, {"request_id": key}))
    assert len(text.encode("utf-8", "backslashreplace").decode().splitlines()) == 1
    line = JsonLines().format(record(message, {"request_id": key}))
    assert len(line.splitlines()) == 1
    made = json.loads(line)
    assert (made["message"], made["request_id"]) == (message, key)


def test_a_reader_that_stops_costs_lines_and_no_time_and_is_told(pipe):
    """The pipe is full after 64 KiB: 1,000 lines of 1,000 bytes are written while nobody reads."""
    reading, writing = pipe
    writer = LineWriter(writing, drop_line, lines_max=100)
    for i in range(1000):
        writer.write(f"{i:04} " + "x" * 995)
    assert writer.dropped > 0
    got = b""
    while b"lost" not in got:
        got += os.read(reading, 1 << 16)
    writer.write("the end")
    writer.close(20)
    os.close(writing)
    lines = (got + b"".join(each.encode() + b"\n" for each in read_all(reading))).decode().splitlines()
    told = sum(int(line.split()[0]) for line in lines if line.endswith("lost"))
    assert told == writer.dropped
    written = [line for line in lines if not line.endswith("lost")]
    assert len(written) + told == 1001
    assert written == [*sorted(written[:-1]), "the end"]


def test_bytes_are_bounded_too(pipe):
    _, writing = pipe
    writer = LineWriter(writing, drop_line, bytes_max=100)
    writer.write("x" * 101)
    assert writer.dropped == 1


def test_the_end_does_not_wait_for_a_reader_that_stopped(pipe):
    reading, writing = pipe
    writer = LineWriter(writing, drop_line)
    for _ in range(100):
        writer.write("x" * 10_000)
    writer.close(0.05)
    writer.write("after the end")
    os.close(reading)  # lets the thread go
    writer.close(20)


def test_a_descriptor_that_does_not_block_loses_nothing(pipe):
    reading, writing = pipe
    os.set_blocking(writing, False)
    writer = LineWriter(writing, drop_line)
    lines = [f"{i:04} " + "x" * 995 for i in range(300)]
    for line in lines:
        writer.write(line)
    got = b""
    while got.count(b"\n") < 300:
        got += os.read(reading, 1 << 16)
    writer.close(20)
    assert got.decode().splitlines() == lines


def test_a_reader_that_is_gone_ends_nothing(pipe):
    reading, writing = pipe
    os.close(reading)
    writer = LineWriter(writing, drop_line)
    writer.write("nobody reads this")
    writer.close(20)
