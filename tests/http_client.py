"""A plain HTTP client for tests: bytes in, bytes out, nothing tidied up on the way."""

import http.client
import json

JSON = {"Content-Type": "application/json"}


class Answer:
    def __init__(self, response):
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json["error"]


def call(port, method, path, body=None, headers=JSON):
    """`body`: bytes as they are, or anything else as JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, data, headers)
        return Answer(connection.getresponse())
    finally:
        connection.close()


def post(port, path, body, headers=JSON):
    return call(port, "POST", path, body, headers)


def get(port, path):
    return call(port, "GET", path, headers={})


def events_of(body):
    """The data of a stream's events; the last one is "[DONE]" where the stream ended well."""
    parts = body.decode().split("\n\n")
    assert parts.pop() == ""
    assert all(part.startswith("data: ") for part in parts), parts
    data = [part.removeprefix("data: ") for part in parts]
    return [each if each == "[DONE]" else json.loads(each) for each in data]
