"""Constants that choose how rows are read; ``python asv_bench/tuning.py`` measures those for local files."""

from __future__ import annotations

#: bytes of the columns needed, stored or decoded, of a block of partitions, which a thread, or a task of dask
#: and Spark, reads at once
BLOCK_BYTES = 32 << 20
#: how many such blocks are one of datasets with conditions, of which few rows are left: 1 % of 300 columns
#: takes 0.09 s, with 4 such blocks 0.11, with one 0.2
FILTERED_BLOCKS = 16
#: bytes from which a task outweighs the cost of scheduling it
MIN_TASK_BYTES = 1 << 20
#: blocks read at once from a store that is not local: 0.54 s where two, as many as cores, take 0.73
REMOTE_BLOCKS = 4
#: files of a dataset whose sizes are taken for those of all
SAMPLE = 16
#: files whose footers are read to find the types of a dataset that records none
MAX_FOOTERS = 64
#: requests at once to a store that is not local: their latency is the limit, not the cores
REMOTE_REQUESTS = 64
#: cells of restricted datasets, per block, that are looked up in the scans of the others
MAX_RESTRICTING_CELLS = 1 << 18
#: possible codes per row up to which a table of all codes replaces sorting and hashing
TABLE_CODES_PER_ROW = 4
#: rows of a frame up to which several are converted at once: each conversion takes longer than copying them
SMALL_FRAME_ROWS = 1_000
