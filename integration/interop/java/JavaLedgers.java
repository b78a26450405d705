package dlog;

import com.fasterxml.jackson.databind.JsonNode;
import io.netty.buffer.Unpooled;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.api.CreateBuilder;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.Handle;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteAdvHandle;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.meta.LedgerMetadataSerDe;
import org.apache.bookkeeper.net.BookieId;

/**
 * The stock client, told line by line what to do: `java_ledgers.py` says what each question means.
 *
 * <p>Handles have numbers and live until they are closed; clients have names, each with settings of
 * its own. Nothing is added to what BookKeeper does, and nothing is retried.
 */
public final class JavaLedgers implements Conversation.Subject {
    private static final HexFormat HEX = HexFormat.of();

    private final String metadataUri;
    private final Map<String, BookKeeper> clients = new ConcurrentHashMap<>();
    private final Map<String, BookKeeperAdmin> admins = new ConcurrentHashMap<>();
    private final Map<Long, Handle> handles = new ConcurrentHashMap<>();
    private final AtomicLong numbers = new AtomicLong();

    private JavaLedgers(String metadataUri) {
        this.metadataUri = metadataUri;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = Conversation.takeOutput();
        Conversation.hold(answers, new JavaLedgers(arguments[0]));
    }

    @Override
    public Object answer(String what, JsonNode asked) throws Exception {
        return switch (what) {
            case "client" -> client(asked);
            case "create" -> create(asked);
            case "open" -> open(asked);
            case "add" -> add(asked);
            case "force" -> {
                writer(asked).force().get();
                yield state(asked);
            }
            case "read" -> read(asked);
            case "last_confirmed" -> Map.of("last", lastConfirmed(asked));
            case "tail" -> tail(asked);
            case "state" -> state(asked);
            case "close" -> close(asked);
            case "forget" -> handles.remove(asked.get("handle").asLong()) != null;
            case "delete" -> {
                clientOf(asked).newDeleteLedgerOp().withLedgerId(ledger(asked)).execute().get();
                yield true;
            }
            case "parse" -> parse(asked);
            case "replace_bookie" -> replaceBookie(asked);
            default -> throw new IllegalArgumentException("nothing is called " + what);
        };
    }

    private Object client(JsonNode asked) throws Exception {
        ClientConfiguration settings = new ClientConfiguration();
        settings.setMetadataServiceUri(metadataUri);
        asked.get("settings").fields().forEachRemaining(
                each -> settings.setProperty(each.getKey(), each.getValue().asText()));
        BookKeeper client = new BookKeeper(settings);
        clients.put(asked.get("client").asText(), client);
        admins.put(asked.get("client").asText(), new BookKeeperAdmin(client, settings));
        return true;
    }

    private Object create(JsonNode asked) throws Exception {
        Map<String, byte[]> custom = new HashMap<>();
        asked.get("custom").fields().forEachRemaining(
                each -> custom.put(each.getKey(), HEX.parseHex(each.getValue().asText())));
        CreateBuilder builder = clientOf(asked).newCreateLedgerOp()
                .withEnsembleSize(asked.get("ensemble").asInt())
                .withWriteQuorumSize(asked.get("write_quorum").asInt())
                .withAckQuorumSize(asked.get("ack_quorum").asInt())
                .withDigestType(DigestType.valueOf(asked.get("digest").asText()))
                .withPassword(hex(asked, "password"))
                .withCustomMetadata(custom);
        Handle made = asked.hasNonNull("ledger")
                ? builder.makeAdv().withLedgerId(ledger(asked)).execute().get()
                : builder.execute().get();
        return kept(made);
    }

    private Object open(JsonNode asked) throws Exception {
        if (asked.get("admin").asBoolean()) { // as replicators do it: password from the metadata
            BookKeeperAdmin admin = admins.get(asked.get("client").asText());
            return kept(asked.get("recovery").asBoolean()
                    ? admin.openLedger(ledger(asked))
                    : admin.openLedgerNoRecovery(ledger(asked)));
        }
        return kept(clientOf(asked).newOpenLedgerOp()
                .withLedgerId(ledger(asked))
                .withRecovery(asked.get("recovery").asBoolean())
                .withDigestType(DigestType.valueOf(asked.get("digest").asText()))
                .withPassword(hex(asked, "password"))
                .execute().get());
    }

    /** All at once; the answer tells how far they were acknowledged and what went wrong then. */
    private Object add(JsonNode asked) throws Exception {
        List<CompletableFuture<Long>> sent = new ArrayList<>();
        long next = asked.get("first").asLong();
        for (JsonNode payload : asked.get("payloads")) {
            byte[] bytes = payload.isTextual()
                    ? HEX.parseHex(payload.asText())
                    : Payload.bytes(payload.get(0).asText(), payload.get(1).asInt());
            sent.add(append(asked, next++, bytes));
        }
        long acked = -1;
        for (CompletableFuture<Long> each : sent) {
            try {
                acked = each.get();
            } catch (Exception failure) {
                Map<String, Object> told = new HashMap<>();
                told.put("acked", acked);
                told.put("error", Conversation.Failure.of(failure));
                return told;
            }
        }
        return Map.of("acked", acked);
    }

    private CompletableFuture<Long> append(JsonNode asked, long entry, byte[] bytes) {
        Handle handle = handle(asked);
        if (handle instanceof WriteAdvHandle chosen) {
            return chosen.writeAsync(entry, Unpooled.wrappedBuffer(bytes));
        }
        return ((WriteHandle) handle).appendAsync(Unpooled.wrappedBuffer(bytes));
    }

    private Object read(JsonNode asked) throws Exception {
        ReadHandle handle = (ReadHandle) handle(asked);
        long first = asked.get("first").asLong();
        long last = asked.get("last").asLong();
        CompletableFuture<LedgerEntries> future = switch (asked.get("how").asText()) {
            case "confirmed" -> handle.readAsync(first, last);
            case "unconfirmed" -> handle.readUnconfirmedAsync(first, last);
            case "batch" -> handle.batchReadAsync(
                    first, (int) (last - first + 1), asked.get("bytes_max").asLong());
            default -> throw new IllegalArgumentException("no way to read");
        };
        try (LedgerEntries entries = future.get()) {
            List<Object> told = new ArrayList<>();
            for (LedgerEntry each : entries) {
                told.add(entry(each));
            }
            return told;
        }
    }

    private static Object entry(LedgerEntry each) throws Exception {
        byte[] bytes = each.getEntryBytes();
        return List.of(each.getEntryId(), bytes.length, Payload.digest(bytes), each.getLength());
    }

    private long lastConfirmed(JsonNode asked) throws Exception {
        ReadHandle handle = (ReadHandle) handle(asked);
        return (asked.get("any").asBoolean()
                ? handle.tryReadLastAddConfirmedAsync()
                : handle.readLastAddConfirmedAsync()).get();
    }

    private Object tail(JsonNode asked) throws Exception {
        try (LastConfirmedAndEntry found = ((ReadHandle) handle(asked))
                .readLastAddConfirmedAndEntryAsync(
                        asked.get("entry").asLong(), asked.get("timeout_ms").asLong(), true)
                .get()) {
            Map<String, Object> told = new HashMap<>();
            told.put("last", found.getLastAddConfirmed());
            told.put("entry", found.hasEntry() ? entry(found.getEntry()) : null);
            return told;
        }
    }

    private Object state(JsonNode asked) throws Exception {
        Handle handle = handle(asked);
        Map<String, Object> told = new TreeMap<>(told(handle.getLedgerMetadata()));
        if (handle instanceof ReadHandle readable) {
            told.put("handle_last", readable.getLastAddConfirmed());
            told.put("handle_length", readable.getLength());
        }
        return told;
    }

    private Object close(JsonNode asked) throws Exception {
        Handle handle = handle(asked);
        handle.closeAsync().get();
        Object told = state(asked);
        handles.remove(asked.get("handle").asLong());
        return told;
    }

    /** What Java makes of bytes that we stored, and what it would write for the same. */
    private Object parse(JsonNode asked) throws Exception {
        LedgerMetadataSerDe format = new LedgerMetadataSerDe();
        LedgerMetadata metadata =
                format.parseConfig(hex(asked, "raw"), ledger(asked), Optional.empty());
        Map<String, Object> told = new TreeMap<>(told(metadata));
        told.put("raw", HEX.formatHex(format.serialize(metadata)));
        return told;
    }

    /** Copies what a lost bookie held of a ledger to another, as auto-recovery does. */
    private Object replaceBookie(JsonNode asked) throws Exception {
        admins.get(asked.get("client").asText()).recoverBookieData(
                ledger(asked), Set.of(BookieId.parse(asked.get("bookie").asText())), false, false);
        return true;
    }

    private static Map<String, Object> told(LedgerMetadata metadata) {
        Map<String, Object> told = new TreeMap<>();
        told.put("ensemble", metadata.getEnsembleSize());
        told.put("write_quorum", metadata.getWriteQuorumSize());
        told.put("ack_quorum", metadata.getAckQuorumSize());
        told.put("state", metadata.getState().name());
        told.put("last_entry", metadata.getLastEntryId());
        told.put("bytes", metadata.getLength());
        told.put("digest", metadata.getDigestType().name());
        told.put("password", HEX.formatHex(metadata.getPassword()));
        told.put("format", metadata.getMetadataFormatVersion());
        Map<String, String> custom = new TreeMap<>();
        metadata.getCustomMetadata().forEach((key, value) -> custom.put(key, HEX.formatHex(value)));
        told.put("custom", custom);
        Map<Long, List<String>> fragments = new TreeMap<>();
        metadata.getAllEnsembles().forEach((first, bookies) ->
                fragments.put(first, bookies.stream().map(BookieId::getId).toList()));
        told.put("fragments", fragments);
        return told;
    }

    private Object kept(Handle handle) {
        long number = numbers.incrementAndGet();
        handles.put(number, handle);
        Map<String, Object> told = new HashMap<>();
        told.put("handle", number);
        told.put("ledger", handle.getId());
        if (handle instanceof ReadHandle readable) {
            told.put("last", readable.getLastAddConfirmed());
            told.put("bytes", readable.getLength());
            told.put("closed", readable.isClosed());
        }
        return told;
    }

    private BookKeeper clientOf(JsonNode asked) {
        BookKeeper client = clients.get(asked.get("client").asText());
        if (client == null) {
            throw new IllegalArgumentException("no such client");
        }
        return client;
    }

    private Handle handle(JsonNode asked) {
        Handle handle = handles.get(asked.get("handle").asLong());
        if (handle == null) {
            throw new IllegalArgumentException("no such handle");
        }
        return handle;
    }

    private WriteHandle writer(JsonNode asked) {
        return (WriteHandle) handle(asked);
    }

    private static long ledger(JsonNode asked) {
        return asked.get("ledger").asLong();
    }

    private static byte[] hex(JsonNode asked, String name) {
        return HEX.parseHex(asked.get(name).asText());
    }
}
