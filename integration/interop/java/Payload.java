package dlog;

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.HexFormat;

/** Bytes that both sides can make from a seed, so that megabytes need not be told. */
final class Payload {
    private static final int BLOCK_BYTES = 32;

    private Payload() {}

    /** Block after block the SHA-256 of `seed:number`. */
    static byte[] bytes(String seed, int size) throws Exception {
        MessageDigest sha = MessageDigest.getInstance("SHA-256");
        byte[] made = new byte[size];
        for (int at = 0; at < size; at += BLOCK_BYTES) {
            String block = seed + ":" + at / BLOCK_BYTES;
            byte[] digest = sha.digest(block.getBytes(StandardCharsets.US_ASCII));
            System.arraycopy(digest, 0, made, at, Math.min(BLOCK_BYTES, size - at));
        }
        return made;
    }

    static String digest(byte[] bytes) throws Exception {
        return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(bytes));
    }
}
