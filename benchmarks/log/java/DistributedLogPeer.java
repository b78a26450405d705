package dlog;

import com.fasterxml.jackson.databind.JsonNode;
import com.sun.management.OperatingSystemMXBean;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.net.URI;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.apache.distributedlog.DLSN;
import org.apache.distributedlog.DistributedLogConfiguration;
import org.apache.distributedlog.LogRecord;
import org.apache.distributedlog.LogRecordWithDLSN;
import org.apache.distributedlog.api.AsyncLogReader;
import org.apache.distributedlog.api.AsyncLogWriter;
import org.apache.distributedlog.api.DistributedLogManager;
import org.apache.distributedlog.api.LogReader;
import org.apache.distributedlog.api.LogWriter;
import org.apache.distributedlog.api.namespace.Namespace;
import org.apache.distributedlog.api.namespace.NamespaceBuilder;
import org.apache.distributedlog.exceptions.ZKException;
import org.apache.distributedlog.impl.metadata.BKDLConfig;
import org.apache.distributedlog.metadata.DLMetadata;
import org.apache.zookeeper.KeeperException;

/**
 * What DistributedLog reaches: each question is one run, measured in here. It may write and read in
 * any of the ways that it offers; which one counts is decided by who asks. `ours.py` is dlog's half.
 */
public final class DistributedLogPeer implements Conversation.Subject {
    private static final int DISTINCT_BYTES = 16 << 20;
    private static final int BULK = 1_000;

    private final OperatingSystemMXBean system =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    private final Namespace namespace;

    private DistributedLogPeer(URI uri, String ledgersRoot) throws Exception {
        String hosts = uri.getAuthority();
        try {
            new DLMetadata("BKDL", new BKDLConfig(hosts, ledgersRoot)).create(uri);
        } catch (ZKException refused) {
            if (refused.getKeeperExceptionCode() != KeeperException.Code.NODEEXISTS) {
                throw refused;
            }
        }
        DistributedLogConfiguration settings = new DistributedLogConfiguration()
                .setOutputBufferSize(256 << 10)
                .setPeriodicFlushFrequencyMilliSeconds(10)
                .setImmediateFlushEnabled(false)
                .setEnsembleSize(3)
                .setWriteQuorumSize(3)
                .setAckQuorumSize(2)
                .setReadAheadMaxRecords(100_000)
                .setReadAheadBatchSize(10);
        settings.setProperty("bkc.throttle", "0"); // its default is a hard limit
        namespace = NamespaceBuilder.newBuilder()
                .conf(settings)
                .uri(uri)
                .build();
    }

    /** The URI of the namespace, which is made if it is missing, and BookKeeper's root. */
    public static void main(String[] arguments) throws Exception {
        PrintStream answers = Conversation.takeOutput();
        Conversation.hold(answers, new DistributedLogPeer(new URI(arguments[0]), arguments[1]));
    }

    @Override
    public Object answer(String what, JsonNode asked) throws Exception {
        return switch (what) {
            case "sequential" -> sequential(asked);
            case "write" -> write(asked);
            case "read" -> read(asked);
            case "tail_create" -> tailCreate(asked);
            case "tail_write" -> tailWrite(asked);
            case "tail_read" -> tailRead(asked);
            default -> throw new IllegalArgumentException("nothing is called " + what);
        };
    }

    /** One record at a time, each waits for its acknowledgement. */
    private Object sequential(JsonNode asked) throws Exception {
        byte[][] payloads = payloads(asked);
        double[] taken = new double[asked.get("count").asInt()];
        try (DistributedLogManager log = open(asked)) {
            AsyncLogWriter writer = log.openAsyncLogWriter().get();
            writer.write(new LogRecord(1, payloads[0])).get();
            for (int at = 0; at < taken.length; at++) {
                long began = System.nanoTime();
                writer.write(new LogRecord(at + 2, payloads[at % payloads.length])).get();
                taken[at] = (System.nanoTime() - began) / 1e9;
            }
            writer.asyncClose().get();
        }
        return Map.of("each_s", taken);
    }

    /** From the first record to the acknowledgement of the last. */
    private Object write(JsonNode asked) throws Exception {
        try (DistributedLogManager log = open(asked)) {
            return "sync".equals(asked.get("way").asText())
                    ? writeSync(log, asked)
                    : writeAsync(log, asked);
        }
    }

    /** Records without an acknowledgement each, then one for all. */
    private Object writeSync(DistributedLogManager log, JsonNode asked) throws Exception {
        byte[][] payloads = payloads(asked);
        int count = asked.get("count").asInt();
        LogWriter writer = log.openLogWriter();
        writer.write(new LogRecord(1, payloads[0]));
        writer.commit();
        long cpu = system.getProcessCpuTime();
        long began = System.nanoTime();
        for (int at = 1; at < count; at++) {
            writer.write(new LogRecord(at + 1, payloads[at % payloads.length]));
        }
        writer.flush();
        writer.commit();
        Object told = told(began, cpu, count - 1);
        writer.close();
        return told;
    }

    /** A future for each record, so many bytes outstanding; one call for each, or for a thousand. */
    private Object writeAsync(DistributedLogManager log, JsonNode asked) throws Exception {
        byte[][] payloads = payloads(asked);
        int count = asked.get("count").asInt();
        boolean bulk = "bulk".equals(asked.get("way").asText());
        int outstanding = asked.get("outstanding_bytes").asInt() / payloads[0].length;
        Semaphore room = new Semaphore(outstanding);
        AtomicReference<Throwable> failed = new AtomicReference<>();
        AsyncLogWriter writer = log.openAsyncLogWriter().get();
        writer.write(new LogRecord(1, payloads[0])).get();
        long cpu = system.getProcessCpuTime();
        long began = System.nanoTime();
        List<LogRecord> together = new ArrayList<>(BULK);
        for (int at = 1; at < count; at++) {
            LogRecord record = new LogRecord(at + 1, payloads[at % payloads.length]);
            room.acquire();
            if (!bulk) {
                release(writer.write(record), room, failed);
                continue;
            }
            together.add(record);
            if (together.size() == BULK || at == count - 1) {
                writer.writeBulk(together).whenComplete((each, failure) -> {
                    if (failure != null) {
                        failed.compareAndSet(null, failure);
                    } else {
                        each.forEach(one -> release(one, room, failed));
                    }
                });
                together = new ArrayList<>(BULK);
            }
        }
        room.acquire(outstanding);
        Object told = told(began, cpu, count - 1);
        if (failed.get() != null) {
            throw new IllegalStateException(failed.get());
        }
        writer.asyncClose().get();
        return told;
    }

    private static void release(
            CompletableFuture<DLSN> written, Semaphore room, AtomicReference<Throwable> failed) {
        written.whenComplete((place, failure) -> {
            if (failure != null) {
                failed.compareAndSet(null, failure);
            }
            room.release();
        });
    }

    /** All records of a log that is closed, from the opening of the reader to the last one. */
    private Object read(JsonNode asked) throws Exception {
        int count = asked.get("count").asInt();
        try (DistributedLogManager log = open(asked)) {
            long cpu = system.getProcessCpuTime();
            long began = System.nanoTime();
            long seen = switch (asked.get("way").asText()) {
                case "next" -> readNext(log, count);
                case "bulk" -> readBulk(log, count);
                default -> readAsync(log, count);
            };
            Object told = told(began, cpu, count);
            if (seen != (long) count * asked.get("size").asInt()) {
                throw new IllegalStateException(seen + " bytes were read");
            }
            return told;
        }
    }

    private static long readNext(DistributedLogManager log, int count) throws Exception {
        long seen = 0;
        try (LogReader reader = log.getInputStream(DLSN.InitialDLSN)) {
            for (int at = 0; at < count; ) {
                LogRecordWithDLSN record = reader.readNext(false);
                if (record != null) {
                    seen += record.getPayloadBuf().readableBytes();
                    at++;
                }
            }
        }
        return seen;
    }

    private static long readBulk(DistributedLogManager log, int count) throws Exception {
        long seen = 0;
        try (LogReader reader = log.getInputStream(DLSN.InitialDLSN)) {
            for (int at = 0; at < count; ) {
                for (LogRecordWithDLSN record : reader.readBulk(false, BULK)) {
                    seen += record.getPayloadBuf().readableBytes();
                    at++;
                }
            }
        }
        return seen;
    }

    private static long readAsync(DistributedLogManager log, int count) throws Exception {
        long seen = 0;
        AsyncLogReader reader = log.getAsyncLogReader(DLSN.InitialDLSN);
        for (int at = 0; at < count; ) {
            for (LogRecordWithDLSN record : reader.readBulk(BULK).get()) {
                seen += record.getPayloadBuf().readableBytes();
                at++;
            }
        }
        reader.asyncClose().get();
        return seen;
    }

    /** A log of one record, closed. */
    private Object tailCreate(JsonNode asked) throws Exception {
        try (DistributedLogManager log = open(asked)) {
            AsyncLogWriter writer = log.openAsyncLogWriter().get();
            writer.write(new LogRecord(1, payloads(asked)[0])).get();
            writer.asyncClose().get();
        }
        return true;
    }

    /** At an even pace; when each acknowledgement came, on the monotonic clock. */
    private Object tailWrite(JsonNode asked) throws Exception {
        byte[][] payloads = payloads(asked);
        int count = asked.get("count").asInt();
        long pace = asked.get("pace_us").asLong() * 1_000;
        long[] stamps = new long[count];
        try (DistributedLogManager log = open(asked)) {
            AsyncLogWriter writer = log.openAsyncLogWriter().get();
            List<CompletableFuture<Void>> all = new ArrayList<>(count);
            long next = System.nanoTime();
            for (int at = 0; at < count; at++) {
                next += pace;
                LockSupport.parkNanos(next - System.nanoTime());
                int number = at;
                all.add(writer.write(new LogRecord(at + 2, payloads[at % payloads.length]))
                        .thenAccept(place -> stamps[number] = System.nanoTime()));
            }
            for (CompletableFuture<Void> each : all) {
                each.get();
            }
            Thread.sleep(1_000); // closing at once would tell readers in another way
            writer.asyncClose().get();
        }
        return Map.of("stamps", stamps);
    }

    /** When each record behind the first could be read. */
    private Object tailRead(JsonNode asked) throws Exception {
        int count = asked.get("count").asInt();
        long[] stamps = new long[count];
        try (DistributedLogManager log = open(asked)) {
            AsyncLogReader reader = log.getAsyncLogReader(DLSN.InitialDLSN);
            reader.readNext().get();
            for (int at = 0; at < count; at++) {
                reader.readNext().get();
                stamps[at] = System.nanoTime();
            }
            reader.asyncClose().get();
        }
        return Map.of("stamps", stamps);
    }

    private DistributedLogManager open(JsonNode asked) throws Exception {
        return namespace.openLog(asked.get("log").asText());
    }

    private Object told(long began, long cpu, int count) {
        return Map.of(
                "seconds", (System.nanoTime() - began) / 1e9,
                "cpu_s", (system.getProcessCpuTime() - cpu) / 1e9,
                "messages", count);
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
}
