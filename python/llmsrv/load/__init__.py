"""Load on a server, as its clients make it: `llmsrv bench`, and what the benchmarks of bench/serve/ share."""
