package dlog;

import com.fasterxml.jackson.databind.JsonNode;
import com.sun.management.OperatingSystemMXBean;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.net.BookieId;

/**
 * What the stock client reaches: each question is one run, measured in here, with the processor time
 * of this whole process. Callbacks instead of futures where the client offers them: they cost it
 * less. `ours.py` answers the same questions for dlog.
 */
public final class Peer implements Conversation.Subject {
    private static final int ENSEMBLE = 3;
    private static final int WRITE_QUORUM = 3;
    private static final int ACK_QUORUM = 2;
    private static final byte[] PASSWORD = new byte[0];
    private static final int DISTINCT_BYTES = 16 << 20;
    private static final int POLL_MS = 1_000;

    private final OperatingSystemMXBean system =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    private final String metadataUri;
    private final Map<String, BookKeeper> clients = new ConcurrentHashMap<>();
    private final Map<Long, LedgerHandle> tailed = new ConcurrentHashMap<>();

    private Peer(String metadataUri) {
        this.metadataUri = metadataUri;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = Conversation.takeOutput();
        Conversation.hold(answers, new Peer(arguments[0]));
    }

    @Override
    public Object answer(String what, JsonNode asked) throws Exception {
        return switch (what) {
            case "client" -> client(asked);
            case "create" -> create(asked);
            case "sequential" -> sequential(asked);
            case "pipelined" -> pipelined(asked);
            case "read" -> read(asked);
            case "recover" -> recover(asked);
            case "tail_create" -> tailCreate(asked);
            case "tail_write" -> tailWrite(asked);
            case "tail_read" -> tailRead(asked);
            default -> throw new IllegalArgumentException("nothing is called " + what);
        };
    }

    private Object client(JsonNode asked) throws Exception {
        ClientConfiguration settings = new ClientConfiguration();
        settings.setMetadataServiceUri(metadataUri);
        asked.get("settings").fields().forEachRemaining(
                each -> settings.setProperty(each.getKey(), each.getValue().asText()));
        clients.put(asked.get("client").asText(), new BookKeeper(settings));
        return true;
    }

    /** A ledger that somebody else fills. */
    private Object create(JsonNode asked) throws Exception {
        LedgerHandle made = newLedger(asked);
        return Map.of(
                "ledger", made.getId(),
                "bookies", made.getLedgerMetadata().getEnsembleAt(0).stream()
                        .map(BookieId::getId).toList());
    }

    private Object sequential(JsonNode asked) throws Exception {
        byte[][] payloads = payloads(asked);
        int count = asked.get("count").asInt();
        double[] taken = new double[count];
        LedgerHandle ledger = newLedger(asked);
        long cpu = system.getProcessCpuTime();
        for (int at = 0; at < count; at++) {
            long began = System.nanoTime();
            ledger.append(payloads[at % payloads.length]);
            taken[at] = (System.nanoTime() - began) / 1e9;
        }
        double cpuSeconds = (system.getProcessCpuTime() - cpu) / 1e9;
        ledger.close();
        return Map.of("each_s", taken, "cpu_s", cpuSeconds, "ledger", ledger.getId());
    }

    private Object pipelined(JsonNode asked) throws Exception {
        byte[][] payloads = payloads(asked);
        int count = asked.get("count").asInt();
        int outstanding = asked.get("outstanding").asInt();
        Semaphore room = new Semaphore(outstanding);
        AtomicInteger failure = new AtomicInteger(BKException.Code.OK);
        LedgerHandle ledger = newLedger(asked);
        long cpu = system.getProcessCpuTime();
        long began = System.nanoTime();
        for (int at = 0; at < count; at++) {
            room.acquire();
            ledger.asyncAddEntry(payloads[at % payloads.length], (code, handle, entry, context) -> {
                if (code != BKException.Code.OK) {
                    failure.compareAndSet(BKException.Code.OK, code);
                }
                room.release();
            }, null);
        }
        room.acquire(outstanding);
        double seconds = (System.nanoTime() - began) / 1e9;
        double cpuSeconds = (system.getProcessCpuTime() - cpu) / 1e9;
        check(failure.get());
        ledger.close();
        return Map.of("seconds", seconds, "cpu_s", cpuSeconds, "ledger", ledger.getId());
    }

    /** Ranges in order, several in flight; every byte is looked at by the digest, as always. */
    private Object read(JsonNode asked) throws Exception {
        int count = asked.get("count").asInt();
        int step = asked.get("step").asInt();
        boolean batches = asked.get("batches").asBoolean();
        long bytesMax = asked.get("bytes_max").asLong();
        Semaphore room = new Semaphore(asked.get("in_flight").asInt());
        AtomicInteger failed = new AtomicInteger();
        AtomicInteger seen = new AtomicInteger();
        try (ReadHandle ledger = clientOf(asked).newOpenLedgerOp()
                .withLedgerId(asked.get("ledger").asLong())
                .withPassword(PASSWORD)
                .withDigestType(org.apache.bookkeeper.client.api.DigestType.CRC32C)
                .execute().get()) {
            long cpu = system.getProcessCpuTime();
            long began = System.nanoTime();
            for (int first = 0; first < count; first += step) {
                room.acquire();
                int wanted = Math.min(step, count - first);
                (batches
                        ? ledger.batchReadAsync(first, wanted, bytesMax)
                        : ledger.readAsync(first, first + wanted - 1))
                        .whenComplete((entries, failure) -> {
                            if (failure != null) {
                                failed.incrementAndGet();
                            } else {
                                seen.addAndGet(drained(entries));
                            }
                            room.release();
                        });
            }
            room.acquire(asked.get("in_flight").asInt());
            double seconds = (System.nanoTime() - began) / 1e9;
            double cpuSeconds = (system.getProcessCpuTime() - cpu) / 1e9;
            if (failed.get() != 0) {
                throw new IllegalStateException(failed.get() + " reads failed");
            }
            return Map.of("seconds", seconds, "cpu_s", cpuSeconds, "entries", seen.get());
        }
    }

    private static int drained(LedgerEntries entries) {
        int seen = 0;
        try (entries) {
            for (LedgerEntry each : entries) {
                seen += each.getEntryBuffer().isReadable() ? 1 : 0;
            }
        }
        return seen;
    }

    private Object recover(JsonNode asked) throws Exception {
        long ledgerId = asked.get("ledger").asLong();
        long cpu = system.getProcessCpuTime();
        long began = System.nanoTime();
        LedgerHandle ledger =
                clientOf(asked).openLedger(ledgerId, DigestType.CRC32C, PASSWORD);
        double seconds = (System.nanoTime() - began) / 1e9;
        double cpuSeconds = (system.getProcessCpuTime() - cpu) / 1e9;
        long last = ledger.getLastAddConfirmed();
        ledger.close();
        return Map.of("seconds", seconds, "cpu_s", cpuSeconds, "last", last);
    }

    /** An open ledger of one entry, to be written on by `tail_write`. */
    private Object tailCreate(JsonNode asked) throws Exception {
        LedgerHandle ledger = newLedger(asked);
        ledger.append(new byte[asked.get("size").asInt()]);
        tailed.put(ledger.getId(), ledger);
        return Map.of("ledger", ledger.getId());
    }

    /**
     * One entry at a time, at an even pace; when each acknowledgement came is told on the monotonic
     * clock. The client's own timer sends the explicit LAC.
     */
    private Object tailWrite(JsonNode asked) throws Exception {
        byte[][] payloads = payloads(asked);
        int count = asked.get("count").asInt();
        long pace = asked.get("pace_us").asLong() * 1_000;
        long[] stamps = new long[count];
        LedgerHandle ledger = tailed.remove(asked.get("ledger").asLong());
        long next = System.nanoTime();
        for (int at = 0; at < count; at++) {
            next += pace;
            LockSupport.parkNanos(next - System.nanoTime());
            ledger.append(payloads[at % payloads.length]);
            stamps[at] = System.nanoTime();
        }
        while (ledger.readExplicitLastConfirmed() < count) {
            Thread.sleep(1); // closing at once would tell readers in another way
        }
        ledger.close();
        return Map.of("stamps", stamps);
    }

    /** When each entry behind the first could be read. */
    private Object tailRead(JsonNode asked) throws Exception {
        int count = asked.get("count").asInt();
        long[] stamps = new long[count];
        try (ReadHandle ledger = clientOf(asked).newOpenLedgerOp()
                .withLedgerId(asked.get("ledger").asLong())
                .withPassword(PASSWORD)
                .withDigestType(org.apache.bookkeeper.client.api.DigestType.CRC32C)
                .execute().get()) {
            int at = 0;
            while (at < count) {
                try (LastConfirmedAndEntry found =
                        ledger.readLastAddConfirmedAndEntry(at + 1, POLL_MS, true)) {
                    long now = System.nanoTime();
                    while (at + 1 <= found.getLastAddConfirmed() && at < count) {
                        stamps[at++] = now;
                    }
                }
            }
        }
        return Map.of("stamps", stamps);
    }

    private LedgerHandle newLedger(JsonNode asked) throws Exception {
        return clientOf(asked).createLedger(
                ENSEMBLE, WRITE_QUORUM, ACK_QUORUM, DigestType.CRC32C, PASSWORD);
    }

    private BookKeeper clientOf(JsonNode asked) {
        return clients.get(asked.get("client").asText());
    }

    private static byte[][] payloads(JsonNode asked) {
        int size = asked.get("size").asInt();
        int count = Math.max(1, Math.min(asked.get("count").asInt(), DISTINCT_BYTES / size));
        Random random = new Random(1);
        byte[][] made = new byte[count][size];
        for (byte[] each : made) {
            random.nextBytes(each);
        }
        return made;
    }

    private static void check(int code) throws BKException {
        if (code != BKException.Code.OK) {
            throw BKException.create(code);
        }
    }
}
