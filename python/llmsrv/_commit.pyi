# Written at build time by python/bindings/commit.cmake.

COMMIT: str
