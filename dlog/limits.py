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

# Producers whose last number a log remembers, the most recently used ones: 40 bytes of each are
# written at the beginning and at the end of a segment, and so often between that a takeover reads
# little to know them.
PRODUCERS_MAX = 8_192
PRODUCERS_EVERY_BYTES = 16 * MIB
PRODUCERS_EVERY_ENTRIES = 10_000
# The ids of those that it forgot, as ranges: 16 bytes each in that table, and fewer in the metadata
# of a copy. Past this the closest ranges are joined, and new producers between them are refused.
FORGOTTEN_RANGES_MAX = 4_096
FORGOTTEN_RANGES_OF_COPY = 64

META_NODE_BYTES_MAX = 256 * KIB  # ZooKeeper's own limit is 1 MiB; Pulsar met it
# Sealed segments, or refs to pages, that move to one immutable page; up to twice as many of each
# level stand in the node itself, which a rotation writes each time.
META_PAGE_ITEMS = 64
# Ledgers, and pages of them, that may wait in the node for their deletion. Beyond it a truncation
# still holds, and what it covers stays in the list until the collector made room.
META_DELETING_MAX = 1_024
META_DELETING_PAGES_MAX = 256
META_HOLDS_MAX = 256  # of one log: each truncation reads them all
DELETION_GRACE_S_DEFAULT = 3600  # readers that are behind have so long to come to an end
COLLECT_AT_ONCE = 64  # ledgers that are deleted, and then forgotten by one compare-and-set
# A log's metadata as one document: of a million segments, and some.
META_DOCUMENT_BYTES_MAX = 512 * MIB
# Segments that one publication lists, all in one compare-and-set: with what may stand in the node
# beside them they stay below its bound. And queries whose last batch a log remembers.
PUBLISHED_SEGMENTS_MAX = 400
PUBLISHED_QUERIES_MAX = 64
PUBLISHED_ONE_OFF_MAX = 8  # beside them, of jobs that publish under a name drawn for it
PUBLISHED_QUERY_BYTES_MAX = 128
FORGOTTEN_NAMES_BYTES = 8 * KIB  # of a filter of the other queries: 13 bits for each of 5,000
PUBLISHED_LOOKS_AT_ONCE = 16  # ledgers
META_ATTEMPTS_MAX = 100  # of one compare-and-set loop, with jittered back-off between them

# Planning ranges (`admin.plan_ranges`): what one task reads, large beside what a task costs (63 ms
# of Spark), small beside a segment; how finely a ledger is looked at to find where to cut it, and
# how many of its entries are asked for at once.
RANGE_BYTES_DEFAULT = 64 * MIB
RANGE_BYTES_MIN = KIB
RANGE_LOOKS_PER_TARGET = 4
RANGE_LOOKS_AT_ONCE = 16
RANGE_PLANS_MAX = 5  # while ledgers that are planned with are deleted
RANGES_MAX = 100_000  # of one plan; a plan of more is a mistake in `target_bytes`

# A stream is one node: of its shards (each some 130 bytes) and of the keys that are pinned.
SHARDS_MAX = 1_600
STREAM_PINS_MAX = 256
STREAM_PIN_BYTES_MAX = 256
INHERITED_ROWS_MAX = 4_500  # last numbers of producers that a shard has from those before it
INHERITED_RANGES_MAX = 1_200  # of the ids of producers that those forgot
TRIMMED_SHARDS_KEPT = 2_000  # of which a stream remembers how they ended: some 40 bytes each
STREAM_LOOKS_AT_ONCE = 16
STREAM_KEYS_KNOWN = 1 << 16  # keys whose shard a writer remembers, so that it need not hash again
STREAM_WINDOW_BYTES_MIN = 4 * MIB  # of one shard, where many share the window of a writer
STREAM_PATIENCE_MS_DEFAULT = 1_000  # so long an idle shard is waited for when reading by time

META_TIMEOUT_MS_DEFAULT = 10_000
SESSION_TIMEOUT_MS_DEFAULT = 10_000
# What a bookie takes in one frame, length prefix included, unless it is configured otherwise. What
# it sends is larger by the fields around an entry of the largest size, so we take a little more.
BOOKIE_FRAME_BYTES_MAX = 5 * MIB
BOOKIE_REPLY_BYTES_MAX = BOOKIE_FRAME_BYTES_MAX + KIB  # without the prefix
BOOKIE_AUTH_BYTES_MAX = 64 * KIB  # a peer that has not proved itself gets no more
SECRET_BYTES_MAX = 64 * KIB  # passwords and tokens; a file that is longer is another file
LEDGER_METADATA_BYTES_MAX = MIB  # of one ledger's node, ZooKeeper's own limit
ENSEMBLE_BOOKIES_MAX = 1 << 10
ZOOKEEPER_ACL_MAX = 32  # entries; each node carries them

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
# A writer that is closed has all acknowledged by then; what is left undone is cheap to make up for,
# by the next opener. Longer than a metadata store is usually away.
SEAL_TIMEOUT_S = 30.0
STALL_AFTER_MS_DEFAULT = 10_000  # longer than a session, or a bookie's replacement, usually takes

# Groups of workers. A worker's node names what it has, so shards of one group are bounded; what a
# program keeps with a checkpoint is small beside a node's bound.
GROUP_SHARDS_MAX = 4_096
GROUP_WORKERS_MAX = 1_024
GROUP_APP_BYTES_MAX = 4 * KIB
GROUP_LEASE_BYTES_MAX = 64 * KIB
GROUP_TIMEOUT_MS_DEFAULT = 20_000  # a worker that is silent for so long is dead
GROUP_FLUSH_MS_DEFAULT = 5_000  # checkpoints kept in memory are written as often
GROUP_MOVES_AT_ONCE = 16  # of one worker: what it claims, announces and releases beside each other
GROUP_NEIGHBOURS = 3  # whose counters a worker watches while nothing is wrong
GROUP_THREADS_DEFAULT = 32  # of one worker, for processors that are plain functions
GROUP_READ_AHEAD_BYTES_DEFAULT = 4 * MIB  # of each shard
GROUP_WEIGH_MS_DEFAULT = 30_000  # where shards are weighed, they are as often
GROUP_LEASE_LOG_EVERY = 256  # messages of a lease's log behind which it is truncated
GROUP_LETTERS_KNOWN = 100_000  # of one worker: dead letters of its group that it has seen

# Looking a place over (`dlog doctor`): what each server may take, and of how many nodes we look who
# may read and change them. A few tell how all were made.
EXAMINE_TIMEOUT_MS = 5_000
EXAMINE_LOGS_MAX = 8
EXAMINE_LEDGERS_PER_LOG_MAX = 2
EXAMINE_BOOKIES_AT_ONCE = 16
EXAMINE_BOOKIES_TIMEOUT_MS = 20_000

# Looking after logs (`dlog fsck`).
FSCK_SAMPLE_DEFAULT = 8  # entries of each segment between its first and its last
FSCK_SAMPLE_MAX = 10_000
FSCK_PARALLEL_DEFAULT = 4  # segments at once; each copy of a deep look is read beside the others
FSCK_PARALLEL_MAX = 64
FSCK_WINDOW_ENTRIES = 256  # of each copy, compared together; at most one frame of them in memory
FSCK_RUN_BYTES = 4 * MIB  # of one read that goes through all entries
FSCK_FINDINGS_MAX = 10_000  # told one by one; the rest is counted
FSCK_GRACE_S_DEFAULT = 3600  # so old is what a living writer or standby has removed long ago
FSCK_TRIES = 5  # of what changes under us while it is looked at

# Routing keys to servers: a ring of 6,000 of weight 1 takes some 100 MiB and 2 s to make.
RING_POINTS_MAX = 1_000_000
ROUTER_PINS_MAX = 1_000_000
# Documents that change while programs run: one node, which every follower reads at each change, and
# the older versions below it.
CONFIG_BYTES_MAX = 64 * KIB
CONFIG_PARTS_MAX = 64
CONFIG_DEPTH_MAX = 64  # of JSON
CONFIG_PATTERNS_MAX = 64  # of one part: each handle is held against all of them
CONFIG_NOTE_CHARACTERS_MAX = 500
CONFIG_HISTORY_MAX = 32
CONFIG_HISTORY_BYTES_MAX = MIB
CONFIG_HISTORY_LIST_BYTES_MAX = 32 * KIB  # of the node: who made them, when, and their notes
CONFIG_POLL_MS_DEFAULT = 10_000  # a change without its watch is noticed that late
CONFIG_AWAY_S_MAX = 1.5  # between two questions to a metadata store that gives no answer
FLIGHT_MESSAGES_MAX = 10_000  # of one client, to all endpoints
FLIGHT_BYTES_MAX = 64 * MIB
ARRIVALS_CLIENTS_MAX = 8_192  # whose last numbers are known, as a log knows them of producers
RECEIVER_KEYS_MAX = 256  # each with a writer of its own
HEALTH_PINGS_AT_ONCE = 64  # of one client; more of them wait for a place

assert LEDGER_ENTRY_BYTES_MAX > 4 * MIB
assert LEDGER_ENTRY_BYTES_MAX + KIB < BOOKIE_FRAME_BYTES_MAX  # head, key and v3 fields beside it
assert ENTRY_BYTES_DEFAULT < LEDGER_ENTRY_BYTES_MAX < WINDOW_BYTES_DEFAULT
