"""The same work by others, where they are installed: cuBLAS, torch's SDPA, FlashInfer. Absent, one line says so."""

from __future__ import annotations

import ctypes
import importlib
import statistics
from itertools import pairwise

from case_runner import wheel_folders
from shapes import BLOCK_SIZE, DECODE, GROUPS, HEAD_DIM, KV_HEADS, PREFILL, PREFILL_GROUP

WORKSPACE_BYTES = 256 << 20
REPEATS = 30


class NotHere(Exception):
    """Why something cannot be measured beside us."""


class BlasLibrary:
    """cuBLAS of the system, or of NVIDIA's wheels, without a header: one product is all we ask of it."""

    BF16, FLOAT, COMPUTE_FLOAT, DEFAULT, TRANSPOSED, PLAIN = 14, 0, 68, -1, 1, 0

    def __init__(self, device):
        if device.emulated:
            raise NotHere("needs a device")
        self._device = device
        self._library = self._open()
        self._handle = ctypes.c_void_p()
        self._check(self._library.cublasCreate_v2(ctypes.byref(self._handle)))
        self._check(self._library.cublasSetStream_v2(self._handle, ctypes.c_void_p(device.module.stream)))

    @staticmethod
    def _open():
        for major in (13, 12):
            for folder in ["", *(f"{folder}/" for folder in wheel_folders())]:
                try:
                    ctypes.CDLL(f"{folder}libcublasLt.so.{major}", mode=ctypes.RTLD_GLOBAL)
                    return ctypes.CDLL(f"{folder}libcublas.so.{major}")
                except OSError:
                    continue
        raise NotHere("libcublas is not installed")

    @staticmethod
    def _check(status):
        if status != 0:
            raise NotHere(f"cuBLAS answers {status}")

    def multiply(self, a, b, out, shape):
        """out[m, n] = a[m, k] b[n, k]^T in bf16 with float sums; shape: (m, n, k)."""
        m, n, k = shape
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        left, right, to = (ctypes.c_void_p(self._device.module.address(each)) for each in (b, a, out))
        self._check(
            self._library.cublasGemmEx(
                self._handle, self.TRANSPOSED, self.PLAIN, n, m, k, ctypes.byref(one), left, self.BF16, k, right,
                self.BF16, k, ctypes.byref(zero), to, self.BF16, n, self.COMPUTE_FLOAT, self.DEFAULT,
            )
        )  # fmt: skip


def anchors(job):
    """Decode and prefill attention at the shapes of the tables."""
    if job.device.emulated:
        job.not_run("torch SDPA, FlashInfer", "need a device")
        return
    try:
        torch = importlib.import_module("torch")
        usable = torch.cuda.is_available()
    except ImportError:
        usable = False
    if not usable:
        job.not_run("torch SDPA, FlashInfer", "torch with CUDA is not installed")
        return
    peers = [Sdpa(torch)]
    try:
        peers.append(FlashInfer(torch, importlib.import_module("flashinfer")))
    except Exception as error:  # noqa: BLE001 - an installation that is half there fails in many ways
        job.not_run("FlashInfer", f"not installed ({type(error).__name__}: {error})")
    for peer in peers:
        measure(job, torch, peer)


def measure(job, torch, peer):
    for group in GROUPS:
        for batch, length in DECODE:
            what = f"{peer.name}: {batch} x {length}, GQA {group}:1, bf16"
            nbytes = 4 * batch * length * KV_HEADS * HEAD_DIM
            seconds = timed(job, torch, what, lambda b=batch, n=length, g=group: peer.decode(b, n, g))
            if seconds is not None:
                gb = nbytes / seconds / 1e9
                beside, share = job.share(gb, "gb_per_s")
                job.row(
                    what, f"{seconds * 1e6:9.1f} us {gb:6.0f} GB/s", beside, peer=peer.name, batch=batch, length=length,
                    group=group, us=seconds * 1e6, gb_per_s=gb, share=share,
                )  # fmt: skip
    for length in PREFILL:
        what = f"{peer.name}: {length} tokens, {PREFILL_GROUP * KV_HEADS} heads, bf16"
        seconds = timed(job, torch, what, lambda n=length: peer.prefill(n))
        if seconds is not None:
            tflop = 4e-12 * HEAD_DIM * PREFILL_GROUP * KV_HEADS * length * (length + 1) / 2 / seconds
            beside, share = job.share(tflop, "tflop_per_s")
            job.row(
                what, f"{seconds * 1e3:9.2f} ms {tflop:6.0f} TFLOP/s", beside, peer=peer.name, length=length,
                us=seconds * 1e6, tflop_per_s=tflop, share=share,
            )  # fmt: skip


def timed(job, torch, what, prepare):
    """The median time of what `prepare` returns, as a captured graph; None, with a line, when it cannot be had."""
    if not job.has(3, what):
        return None
    try:
        run = prepare()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            run()
            run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(REPEATS + 1)]
        graph.replay()
        events[0].record()
        for event in events[1:]:
            graph.replay()
            event.record()
        torch.cuda.synchronize()
        times = [earlier.elapsed_time(later) for earlier, later in pairwise(events)]
    except Exception as error:  # noqa: BLE001 - another's code on an unknown machine: its failure is a line
        job.not_run(what, f"{type(error).__name__}: {str(error)[:200]}")
        return None
    return statistics.median(times) / 1e3


class Sdpa:
    """torch's own attention: keys and values without gaps, no pages."""

    name = "torch SDPA"

    def __init__(self, torch):
        self.torch = torch

    def _random(self, *shape):
        return self.torch.randn(shape, device="cuda", dtype=self.torch.bfloat16)

    def decode(self, batch, length, group):
        query = self._random(batch, KV_HEADS * group, 1, HEAD_DIM)
        keys, values = (self._random(batch, KV_HEADS, length, HEAD_DIM) for _ in range(2))
        attend = self.torch.nn.functional.scaled_dot_product_attention
        return lambda: attend(query, keys, values, enable_gqa=True)

    def prefill(self, length):
        query = self._random(1, PREFILL_GROUP * KV_HEADS, length, HEAD_DIM)
        keys, values = (self._random(1, KV_HEADS, length, HEAD_DIM) for _ in range(2))
        attend = self.torch.nn.functional.scaled_dot_product_attention
        return lambda: attend(query, keys, values, is_causal=True, enable_gqa=True)


class FlashInfer:
    """FlashInfer on pages of our size and layout."""

    name = "FlashInfer"

    def __init__(self, torch, flashinfer):
        self.torch, self.flashinfer = torch, flashinfer
        self.workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")

    def decode(self, batch, length, group):
        torch, pages = self.torch, -(-length // BLOCK_SIZE)
        heads = KV_HEADS * group
        query = torch.randn(batch, heads, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
        shape = (batch * pages, 2, KV_HEADS, BLOCK_SIZE, HEAD_DIM)
        cache = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        wrapper = self.flashinfer.BatchDecodeWithPagedKVCacheWrapper(self.workspace, "HND", use_tensor_cores=True)
        first = torch.arange(batch + 1, dtype=torch.int32, device="cuda") * pages
        ids = torch.randperm(batch * pages, device="cuda").to(torch.int32)
        last = torch.full((batch,), (length - 1) % BLOCK_SIZE + 1, dtype=torch.int32, device="cuda")
        wrapper.plan(
            first, ids, last, heads, KV_HEADS, HEAD_DIM, BLOCK_SIZE, q_data_type=torch.bfloat16,
            kv_data_type=torch.bfloat16,
        )  # fmt: skip
        return lambda: wrapper.run(query, cache)

    def prefill(self, length):
        query = self.torch.randn(length, PREFILL_GROUP * KV_HEADS, HEAD_DIM, device="cuda", dtype=self.torch.bfloat16)
        shape = (length, KV_HEADS, HEAD_DIM)
        keys, values = (self.torch.randn(shape, device="cuda", dtype=self.torch.bfloat16) for _ in range(2))
        return lambda: self.flashinfer.single_prefill_with_kv_cache(query, keys, values, causal=True)
