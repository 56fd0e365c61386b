"""JSON as hostile or careless clients write it: values that are JSON, values that are none, and those on which the
standard leaves the answer to the parser. All are made here; the classes are those of the public collections.
"""

_UTF8_BROKEN = {
    "a continuation alone": b"\x80",
    "two continuations": b"\xbf\x80",
    "a start alone": b"\xc3",
    "a start before a letter": b"\xe4a",
    "three bytes cut short": b"\xe4\xb8",
    "four bytes cut short": b"\xf0\x9f\xa6",
    "overlong, two bytes": b"\xc0\xaf",
    "overlong, three bytes": b"\xe0\x80\xaf",
    "overlong, four bytes": b"\xf0\x80\x80\xaf",
    "overlong NUL": b"\xc0\x80",
    "beyond the last character": b"\xf4\x90\x80\x80",
    "five bytes": b"\xf8\x88\x80\x80\x80",
    "six bytes": b"\xfc\x84\x80\x80\x80\x80",
    "a high surrogate": b"\xed\xa0\x80",
    "a low surrogate": b"\xed\xb0\x80",
    "a surrogate pair": b"\xed\xa0\xbe\xed\xb6\x99",
    "Latin-1": b"\xe9",
    "FE": b"\xfe",
    "FF": b"\xff",
}

_BAD_NUMBERS = (
    *("+1", "-", "--1", "-01", "01", "00", "-012", "1.", ".5", "-.5", "-.", "1.e3", "0.e1", "1e", "1e+", "1E-", "1ee2"),
    *("1e1.5", "0e", "0e+", "1e 5", "- 1", "1 000", "1_000", "0x1F", "0b1", "0o7", "1f", "1L", "1+1", "1/2", "1.2.3"),
    *("NaN", "-NaN", "nan", "Infinity", "-Infinity", "+Infinity", "inf", "-Inf", "Inf", "1#INF", "\u0663", "\uff11"),
    *("1\u0663", "-\uff11", "1e\uff11", "1\u00a0", "\u221e", "\u00bd", "1a", "-a", "1-", "9.3.", "1..5", "0.3e", "+-1"),
)
_BAD_STRINGS = (
    *('"', '"abc', 'abc"', "'abc'", "`abc`", '"""abc"""', "abc", "\u201cabc\u201d", '"a" "b"', '"a"b', 'a"b"', '"\\"'),
    *('"\\a"', '"\\x41"', '"\\0"', '"\\\'"', '"\\ "', '"\\u"', '"\\u1"', '"\\u12"', '"\\u123"', '"\\u12G4"'),
    *('"\\U00000041"', '"\\u{41}"', '"\\u 041"', '"\\u-041"', '"\\\u00e4"', '"\\ud83e\\u"', '"\\ud83e\\ud"', '"\\v"'),
    *('"a\nb"', '"a\tb"', '"a\rb"', '"a\x00b"', '"a\x1fb"', '"\x01"', '"a\\\nb"', 'r"a"', 'b"a"', 'f"a"', '"a"+"b"'),
)
_BAD_LITERALS = (
    *("True", "False", "None", "TRUE", "NULL", "Null", "nul", "nulll", "tru", "truee", "fals", "t", "n", "undefined"),
    *(
        "null null",
        "true false",
        "nil",
        "yes",
        "no",
        "on",
        "n\u00fcll",
        "*",
        "&a",
        "<a>",
        "@",
        "$",
        "#",
        "?",
        "\\",
        "\\n",
    ),
    *("(1)", "1;", "1 // one", "1 /* one */", "/* one */ 1", "// one\n1", "# one\n1", "1 -- one", "<!-- --> 1", "!!1"),
)
_BAD_LISTS = (
    *("[", "]", "[1", "1]", "[1,]", "[,1]", "[,]", "[1,,2]", "[1 2]", "[1;2]", "[1:2]", "[1}", "[1]]", "[[1]", "[a]"),
    *("[1,\n", "[\n1", '["a"', '["a', "[1, 2", "[1,]]", "[\x0b]", "[\x0c1]", "[\u00a01]", "[1,\u20282]", "[\ufeff1]"),
    *("[\u200b]", "(1, 2)", "[1...3]", "[*]", "[-]", "[--]", "[''", '["",]', "[}", "[{]", "[{}", "[[]", "[[[]]"),
)
_BAD_OBJECTS = (
    *("{", "}", '{"b"', '{"b"}', '{"b":', '{"b":}', '{"b":1', '{"b":1,', '{"b":1,}', '{,"b":1}', "{:1}", '{"b" 1}'),
    *('{"b",1}', '{"b"=1}', '{"b":1 "c":2}', '{"b":1;"c":2}', '{"b":1,,"c":2}', '{"b"::1}', '{"b":1:2}', "{b:1}"),
    *("{1:1}", "{null:1}", "{true:1}", "{[]:1}", "{{}:1}", "{'b':1}", '{"b":1]', '{"b":1}}', '{"b":1}{', "{{}}"),
    *(
        '{"b":a}',
        "{\"b\":'c'}",
        '{"b\n":1}',
        '{"\\x":1}',
        '{"b":1}#',
        '{"b":1}//',
        '{"b":1}/**/',
        '{"b": ...}',
        "{...}",
    ),
    *("{*}", '{"b":1,"c"}', '{"b":1,"c":}', '{"b":[}', '{"b":[1}', '{"b":{}', '{"b":1}"c"', "{;}", "{-}", "{,}", "{]"),
    *('{"b":1,"b":1}', '{"b":1,"c":2,"b":3}', '{"b":{"c":1,"c":1}}', '{"\\u0062":1,"b":2}', '{"":1,"":2}'),
)

# What stands where a value should: no parser may take it.
NO_VALUES = (
    *(text.encode() for text in (*_BAD_NUMBERS, *_BAD_STRINGS, *_BAD_LITERALS, *_BAD_LISTS, *_BAD_OBJECTS)),
    *(b'"' + raw + b'"' for raw in _UTF8_BROKEN.values()),
    *(b'{"' + raw + b'": 1}' for raw in _UTF8_BROKEN.values()),
    *_UTF8_BROKEN.values(),
    b"",
    b" ",
    b"\n",
    b",",
    b":",
)

# Whole bodies that are no JSON object.
NO_OBJECTS = (
    *(b"", b" ", b"\n\n", b"\x00", b"\xff", b"{", b"}", b"{}}", b"{}{}", b"{},", b"{};", b"{}\x00", b"{} {}", b"{}a"),
    *(b"{}\x0b", b"\x0b{}", b"\x0c{}", b"{}//", b"{}#", b"/**/{}", b"\xc2\xa0{}", b"\xe2\x80\xa8{}", b"({})", b"[{}"),
    *(b"\xef\xbb\xbf{}", b"\xef\xbb{}", b"\xfe\xff{}", b"null", b"1", b'"{}"', b"[]", b"[{}]", b"true", b"undefined"),
    *('{"a": 1}'.encode(name) for name in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")),
    *("{\u0000}".encode(name) for name in ("utf-16-le", "utf-32-be")),
    *(b"[" * depth for depth in (100, 1_000, 100_000)),
    *(b'{"a":' * depth for depth in (100, 1_000, 100_000)),
    *(b'[{"a":' * depth for depth in (1_000, 100_000)),
    *(b"[" * depth + b"]" * depth for depth in (100_000,)),
    b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    b"]" * 100_000,
    b'{"a": "' + b"\\" * 99_999 + b'"}',
    b'{"a": ' + b"-" * 100_000 + b"1}",
    b'{"a": 1' + b"0" * 100_000 + b"}",
    b'{"a": 1e' + b"9" * 10_000 + b"}",
    b"<html></html>",
    b"a=1&b=2",
    b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--x--',
)

# JSON, every one: what is refused is the field, not the text.
VALUES = (
    *(b"0", b"-0", b"1", b"-1", b"10", b"1.5", b"-0.0", b"0e0", b"1E5", b"1e+5", b"1E-5", b"1.5e3", b"-1.5E+3"),
    *(b"1e-400", b"1e308", b"9223372036854775808", b"-9223372036854775809", b"1" + b"0" * 300, b"0." + b"1" * 5000),
    *(b"true", b"false", b"null", b"[]", b"{}", b"[[]]", b"[{}]", b'{"":0}', b'{"\\u0000":0}', b'[null,1,"",true]'),
    *(b'""', b'" "', b'"\\u0000"', b'"\x7f"', b'"\\"\\\\\\/\\b\\f\\n\\r\\t"', b'"\\u00e4"', b'"\\uD83E\\uDD99"'),
    *(b'"\\ud83e\\udd99"', b'"\\uffff"', b'"\\ufffe\\ufdd0"', b'"\\u2028\\u2029"', b'"\\u200b\\ufeff"', b'"\\\\u0041"'),
    *(text.encode() for text in ('"\u00e4"', '"\u4e2d"', '"\U0001f999"', '"\u2028"', '"\uffff"', '"\U0010ffff"')),
    *(b'"// no comment"', b'"/* none */"', b'"[1,]"', b'"\\"\\""', b'{"a":{"a":{"a":1}}}', b'{"a":1,"A":2}'),
    *(b" 1", b"1 ", b"\t1", b"\n1\n", b"\r\n1", b"[ 1 , 2 ]", b"[\t1\n,\r2 ]", b'{ "b" : 1 }', b'{\n"b"\t:\r1}'),
    *(b"[" * depth + b"1" + b"]" * depth for depth in (10, 100)),
    *(b'{"b":' * depth + b"1" + b"}" * depth for depth in (10, 100)),
    b"[" + b",".join([b"1"] * 1000) + b"]",
    b'"' + b"x" * 20_000 + b'"',
)

# JSON or not, says the standard, is up to the parser.
EITHER = (
    *(b"1e400", b"-1e400", b"1e" + b"9" * 100, b"1" * 5000, b"-" + b"1" * 5000, b"1" + b"0" * 400 + b".0"),
    *(b'"\\ud800"', b'"\\udc00"', b'"\\ud800a"', b'"\\ud800\\ud800"', b'"\\udc00\\ud800"', b'"\\ud83e\\\\udd99"'),
    *(b'{"\\ud800":1}', b'{"\\udc00":1}', b'"\\uDBFF"', b'"\\uDFFF\\u0041"', b'"\\ud83ex\\udd99"'),
    *(b"[" * depth + b"]" * depth for depth in (500, 1_000, 5_000)),
    *(b'{"b":' * depth + b"1" + b"}" * depth for depth in (500, 1_000, 5_000)),
)

_MB = 1_000_000


def _filled(head, piece, tail, size):
    return head + piece * ((size - len(head) - len(tail)) // len(piece)) + tail


# Bodies of a size, each hard on another part of a parser.
LARGE = {
    "lists that open": lambda size: _filled(b'{"a":', b"[", b"", size),
    "objects that open": lambda size: _filled(b"", b'{"a":', b"", size),
    "a string": lambda size: _filled(b'{"a":"', b"x", b'"}', size),
    "escapes": lambda size: _filled(b'{"a":"', b"\\u0041", b'"}', size),
    "halves of surrogate pairs": lambda size: _filled(b'{"a":"', b"\\ud800", b'"}', size),
    "digits": lambda size: _filled(b'{"a":', b"9", b"}", size),
    "numbers": lambda size: _filled(b'{"a":[1', b",1", b"]}", size),
    "fractions": lambda size: _filled(b'{"a":[1', b",0.1", b"]}", size),
    "empty objects": lambda size: _filled(b'{"a":[1', b",{}", b"]}", size),
    "one key": lambda size: _filled(b"{", b'"a":1,', b'"b":1}', size),
    "spaces": lambda size: _filled(b'{"a":', b" ", b"1}", size),
    "bytes that are no UTF-8": lambda size: _filled(b'{"a":"', b"\xff", b'"}', size),
    "zeros": lambda size: _filled(b"", b"\x00", b"", size),
}
