"""Every bound in one place, each with its reason. A bound that is also a user's choice is a default
in `options`."""

from __future__ import annotations

KIB = 1 << 10
MIB = 1 << 20

# A bookie refuses frames over 5 MiB; an entry of exactly the largest accepted payload cannot be
# read back over two of its read calls, so we stay a margin below. The same on every backend, so
# that a log can move between them.
LEDGER_ENTRY_BYTES_MAX = 5_242_344 - 4 * KIB

# Room for our entry header and column paddings, so that "does it fit" is answered before encoding.
ENTRY_OVERHEAD_BYTES = 256
MESSAGE_OVERHEAD_BYTES = 64  # offsets, time stamps and validity of one message, rounded up
HEADER_OVERHEAD_BYTES = 8  # the two offsets of one header pair

ENTRY_MESSAGES_MAX = 1 << 16  # bounds a decode; batches of 256 KiB stop long before
HEADERS_PER_MESSAGE_MAX = 1 << 10
ENTRY_BYTES_DEFAULT = 256 * KIB  # where batching stops; measured knee of bytes per write
DECOMPRESS_RATIO_MAX = 1 << 10  # zstd of zeros reaches 10^4; honest data stays far below this

WINDOW_BYTES_DEFAULT = 32 * MIB
WINDOW_ENTRIES_DEFAULT = 2_000
WINDOW_BYTES_MAX = 1 << 30

SEGMENT_BYTES_DEFAULT = 512 * MIB
SEGMENT_AGE_S_DEFAULT = 4 * 3600
SEGMENT_ENTRIES_MAX = 1 << 30  # relative seqs and sparse tables stay small
SEGMENT_HARD_FACTOR = 2  # past this a segment takes no more appends and the writer waits
ROTATE_AHEAD = 0.8  # of a limit: the next ledger is made ready from here on

READ_RUN_BYTES_DEFAULT = 4 * MIB  # one read call of a reader
READ_AHEAD_BYTES_DEFAULT = 16 * MIB  # decoded and not yet taken

META_NODE_BYTES_MAX = 256 * KIB  # ZooKeeper's own limit is 1 MiB; Pulsar met it
# Sealed segments that move to one immutable page; up to twice as many stand in the node itself.
META_PAGE_SEGMENTS = 128
META_ATTEMPTS_MAX = 100  # of one compare-and-set loop, with jittered back-off between them

META_TIMEOUT_MS_DEFAULT = 10_000
# What a bookie takes in one frame, length prefix included, unless it is configured otherwise. What
# it sends is larger by the fields around an entry of the largest size, so we take a little more.
BOOKIE_FRAME_BYTES_MAX = 5 * MIB
BOOKIE_REPLY_BYTES_MAX = BOOKIE_FRAME_BYTES_MAX + KIB  # without the prefix
BOOKIE_AUTH_BYTES_MAX = 64 * KIB  # a peer that has not proved itself gets no more
LEDGER_METADATA_BYTES_MAX = MIB  # of one ledger's node, ZooKeeper's own limit
ENSEMBLE_BOOKIES_MAX = 1 << 10

# In flight to one bookie, over all ledgers: a bookie refuses adds from 10,000 waiting ones on.
LINK_ENTRIES_MAX = 8_000
LINK_BYTES_MAX = 64 * MIB
LINK_UNSENT_BYTES_MAX = 4 * MIB  # asyncio's send buffer gets slow with tens of MiB in it
LINK_REQUESTS_MAX = 4_096  # reads and questions that one connection waits for
# A read that ran out of time blocks its entry on that connection until the late answer comes. Where
# none comes in so long, the connection is given up.
LINK_OWED_MS_MAX = 30_000

ADD_TIMEOUT_MS_DEFAULT = 5_000
READ_TIMEOUT_MS_DEFAULT = 5_000
CONNECT_TIMEOUT_MS_DEFAULT = 5_000
# A bookie that alone holds back a window, a birth or a close is replaced after so long a silence.
LAGGARD_MS_DEFAULT = 500
# An appender gives up and names who is missing when nothing it sent was confirmed for so long. A
# restart of a bookie takes 5 to 8 s, and two of them may come one after the other.
ADD_STALL_MS_DEFAULT = 30_000
# What goes to a bookie in one piece. The copy is shared by all bookies that stand at the same
# place, and 1 MiB is where larger ones stop being cheaper.
ADD_RUN_ENTRIES_MAX = 512
ADD_RUN_BYTES_MAX = MIB

# What a recovery has read and not yet written back, and what one bookie has to answer of it.
RECOVERY_WINDOW_ENTRIES = 4_000
RECOVERY_WINDOW_BYTES = 16 * MIB
RECOVERY_TIMEOUT_MS_DEFAULT = 30_000

OPEN_TIMEOUT_MS_DEFAULT = 30_000

assert LEDGER_ENTRY_BYTES_MAX > 4 * MIB
assert LEDGER_ENTRY_BYTES_MAX + KIB < BOOKIE_FRAME_BYTES_MAX  # head, key and v3 fields beside it
assert ENTRY_BYTES_DEFAULT < LEDGER_ENTRY_BYTES_MAX < WINDOW_BYTES_DEFAULT
