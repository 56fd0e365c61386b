"""Reads /metrics as strictly as the text format is defined: what a lenient parser lets pass is an error here."""

import math
import re
from collections import Counter

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"'
_SAMPLE = re.compile(rf"({_NAME})(?:\{{((?:{_LABEL})(?:,{_LABEL})*)\}})? (\S+)")
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?(?:e[+-]?\d+)?|Inf|NaN)")
KINDS = {"gauge", "counter", "histogram"}


def read(text):
    """{family: (kind, {(name, labels): value})}. Every family has HELP and TYPE, then its samples, and comes once."""
    assert text.endswith("\n")
    families, name, kind = {}, "", ""
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("# HELP "):
            name, _, what = line.removeprefix("# HELP ").partition(" ")
            assert re.fullmatch(_NAME, name), line
            assert what, line
            assert name not in families, line
            kind = next(lines).removeprefix(f"# TYPE {name} ")
            assert kind in KINDS, line
            assert (kind == "counter") == name.endswith("_total"), line
            families[name] = (kind, {})
            continue
        sample = _SAMPLE.fullmatch(line)
        assert sample, line
        labels = tuple(sorted(each for each in re.findall(_LABEL, sample[2] or "")))
        assert _NUMBER.fullmatch(sample[7]), line
        suffixes = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        assert sample[1] in [name + each for each in suffixes], line
        samples = families[name][1]  # an earlier line named it
        assert (sample[1], labels) not in samples, line
        assert len({key for key, _ in labels}) == len(labels), line
        samples[sample[1], labels] = float(sample[7])
    for name, (kind, samples) in families.items():
        if kind == "histogram":
            _check_histogram(name, samples)
        elif kind == "counter":
            assert all(value >= 0 and math.isfinite(value) for value in samples.values()), name
    return families


def _check_histogram(name, samples):
    """In each series bounds rise, counts do not fall, and the last bucket has everything."""
    series = {}
    for (sample, labels), value in samples.items():
        if sample == f"{name}_bucket":
            (bound,) = [each for key, each in labels if key == "le"]
            series.setdefault(tuple(each for each in labels if each[0] != "le"), []).append((float(bound), value))
    assert series, name
    for labels, buckets in series.items():
        assert buckets == sorted(buckets), name
        assert len({bound for bound, _ in buckets}) == len(buckets), name
        counts = [count for _, count in buckets]
        assert counts == sorted(counts), name
        assert buckets[-1] == (math.inf, samples[f"{name}_count", labels]), name
        assert f"{name}_sum" in {each for each, _ in samples}, name


def counted(text, family, label):
    """A counter's values by one of its labels, those that are not 0."""
    found = Counter()
    for (_, labels), value in read(text)[family][1].items():
        found[dict(labels)[label]] += int(value)
    return +found


def bounds_of(text, family):
    """The finite bounds of a histogram."""
    bounds = {float(dict(labels)["le"]) for _, labels in read(text)[family][1] if "le" in dict(labels)}
    return sorted(bounds - {math.inf})
