"""A daemon in a process of its own, for the benchmarks that need their own flags, and what the system tells of it."""

import argparse
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import grpc

from llmsrv.v1 import admin_pb2, admin_pb2_grpc

MIB = 1 << 20


def parser_of(description, *, input_tokens, output_tokens, flags_of="the daemon, for example -- --max-num-seqs 32"):
    """The options that every benchmark with a daemon of its own has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--input-tokens", type=int, default=input_tokens)
    parser.add_argument("--output-tokens", type=int, default=output_tokens)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", help="append one JSON line per result to this file")
    parser.add_argument("flags", nargs="*", help=f"after --: more flags of {flags_of}")
    return parser


class Daemon:
    """Serves from the construction to stop(). Use it as a context."""

    def __init__(self, *flags):
        command = [sys.executable, "-m", "llmsrv.serve.daemon", "--port", "0", "--exit-with-parent", *flags]
        self.flags = list(flags)
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.http_target = None
        self.target = self._read_target()
        # Nobody reads on: what the daemon logs fits into the pipe or is dropped, and holds up nothing.
        self._channel = grpc.insecure_channel(self.target)
        self._admin = admin_pb2_grpc.AdminServiceStub(self._channel)

    def _read_target(self):
        lines = []
        for line in self._process.stderr:
            lines.append(line)
            http = re.match(r"listening on http://(\S+)", line)
            if http:
                self.http_target = http[1]
            serving = re.match(r"serving \S+ on (\S+),", line)
            if serving:
                return serving[1]
        raise RuntimeError("the daemon did not start:\n" + "".join(lines))

    def stats(self):
        return self._admin.GetStats(admin_pb2.GetStatsRequest()).stats

    @property
    def pid(self):
        return self._process.pid

    def rss_mib(self):
        """Resident memory now."""
        fields = Path(f"/proc/{self._process.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / MIB

    def cpu_s(self):
        """Processor time of all its threads since its start."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        self._channel.close()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.stop()


def own_cpu_s():
    """Processor time of this process, the client."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
