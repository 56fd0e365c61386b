"""The shapes of the tables, which others are measured at too."""

BLOCK_SIZE, HEAD_DIM, KV_HEADS = 16, 128, 8
DECODE = [(1, 32768), (8, 8192), (64, 4096), (256, 1024)]  # (batch, length)
GROUPS = [8, 4]  # query heads per key head
PREFILL = [2048, 8192, 32768]
PREFILL_GROUP = 4
LINEAR = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}  # outputs, columns
LINEAR_TOKENS = [1, 8, 64]
FP8_TOKENS = [1, 8, 64, 512]
