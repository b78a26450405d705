package dlog;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.meta.LedgerMetadataSerDe;

/**
 * The decoders of the stock client, given many inputs at once: for each the values it reads, or the
 * name of the exception. `test_decoders.py` compares.
 *
 * <p>The classes that releases generate from the description of the protocol differ, and their
 * getters do not: so they are found by name.
 */
public final class JavaDecoders implements Conversation.Subject {
    private static final HexFormat HEX = HexFormat.of();
    private static final Map<String, List<String>> BODIES = Map.of(
            "ReadResponse", List.of("LedgerId", "EntryId", "Status", "Body", "MaxLAC", "LacUpdateTimestamp"),
            "AddResponse", List.of("LedgerId", "EntryId", "Status"),
            "AuthResponse", List.of("AuthPluginName", "Payload"),
            "WriteLacResponse", List.of("LedgerId", "Status"),
            "ReadLacResponse", List.of("LedgerId", "Status", "LacBody", "LastEntryBody"),
            "GetBookieInfoResponse", List.of("Status", "TotalDiskCapacity", "FreeDiskSpace"),
            "StartTLSResponse", List.of(),
            "ForceLedgerResponse", List.of("LedgerId", "Status"));

    private final LedgerMetadataSerDe metadata = new LedgerMetadataSerDe();

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = Conversation.takeOutput();
        Conversation.hold(answers, new JavaDecoders());
    }

    @Override
    public Object answer(String what, JsonNode asked) {
        List<Object> told = new ArrayList<>();
        for (JsonNode input : asked.get("inputs")) {
            byte[] raw = HEX.parseHex(input.asText());
            try {
                told.add(what.equals("metadata") ? metadata(raw) : reply(raw));
            } catch (Throwable refused) { // also an error: of a stack or a heap that is too small
                Throwable cause = refused instanceof InvocationTargetException ? refused.getCause() : refused;
                told.add(cause.getClass().getSimpleName());
            }
        }
        return told;
    }

    private Object metadata(byte[] raw) throws Exception {
        LedgerMetadata read = metadata.parseConfig(raw, 7, Optional.empty());
        Map<String, Object> told = new TreeMap<>();
        told.put("format", read.getMetadataFormatVersion());
        told.put("quorums", List.of(read.getEnsembleSize(), read.getWriteQuorumSize(), read.getAckQuorumSize()));
        told.put("state", read.getState().name());
        told.put("end", List.of(read.getLastEntryId(), read.getLength()));
        told.put("digest", String.valueOf(read.getDigestType()));
        told.put("password", read.hasPassword() ? HEX.formatHex(read.getPassword()) : "");
        Map<String, String> custom = new TreeMap<>();
        read.getCustomMetadata().forEach((key, value) -> custom.put(key, HEX.formatHex(value)));
        told.put("custom", custom);
        List<Object> fragments = new ArrayList<>();
        read.getAllEnsembles().forEach((first, bookies) ->
                fragments.add(List.of(first, bookies.stream().map(Object::toString).toList())));
        told.put("fragments", fragments);
        return told;
    }

    private Object reply(byte[] raw) throws Exception {
        Object read;
        try {
            Class<?> generated = Class.forName("org.apache.bookkeeper.proto.Response");
            read = generated.getConstructor().newInstance();
            generated.getMethod("parseFrom", byte[].class).invoke(read, (Object) raw);
        } catch (ClassNotFoundException older) {
            read = Class.forName("org.apache.bookkeeper.proto.BookkeeperProtocol$Response")
                    .getMethod("parseFrom", byte[].class).invoke(null, (Object) raw);
        }
        Object header = value(read, "Header");
        Map<String, Object> told = new TreeMap<>();
        told.put("version", String.valueOf(value(header, "Version")));
        told.put("operation", String.valueOf(value(header, "Operation")));
        told.put("txn", value(header, "TxnId"));
        told.put("status", String.valueOf(value(read, "Status")));
        for (Map.Entry<String, List<String>> each : BODIES.entrySet()) {
            if (!has(read, each.getKey())) {
                continue;
            }
            Object body = value(read, each.getKey());
            Map<String, Object> fields = new TreeMap<>();
            for (String field : each.getValue()) {
                fields.put(field, has(body, field) ? plain(value(body, field)) : null);
            }
            told.put(each.getKey(), fields);
        }
        return told;
    }

    private static boolean has(Object message, String field) throws Exception {
        return (Boolean) message.getClass().getMethod("has" + field).invoke(message);
    }

    private static Object value(Object message, String field) throws Exception {
        return message.getClass().getMethod("get" + field).invoke(message);
    }

    private static Object plain(Object value) throws Exception {
        if (value instanceof Number || value instanceof String) {
            return value;
        }
        if (value instanceof byte[] bytes) {
            return HEX.formatHex(bytes);
        }
        if (value instanceof Enum<?>) {
            return value.toString();
        }
        return HEX.formatHex((byte[]) value.getClass().getMethod("toByteArray").invoke(value));
    }
}
