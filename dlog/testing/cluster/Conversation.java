package dlog;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.bookkeeper.client.BKException;

/**
 * The Java half of a conversation over standard input and output; `conversation.py` holds the other.
 *
 * <p>Each line asked is a JSON object with a number and what to do; each is answered, in any order,
 * by one line with the same number, since one question may have to wait for what another one does.
 * A failure is an answer, too: BookKeeper's code and the name of the exception. The end of the input
 * is the end of the program.
 */
public final class Conversation {
    /** What the conversation is about. */
    public interface Subject {
        Object answer(String what, JsonNode asked) throws Exception;
    }

    private static final ObjectMapper JSON = new ObjectMapper();

    private final PrintStream answers;
    private final Subject subject;

    private Conversation(PrintStream answers, Subject subject) {
        this.answers = answers;
        this.subject = subject;
    }

    /** Call it first of all: logs that go to standard output would break into the answers. */
    public static PrintStream takeOutput() {
        PrintStream answers = System.out;
        System.setOut(System.err);
        return answers;
    }

    /** Until nobody asks any more; never returns. */
    public static void hold(PrintStream answers, Subject subject) throws Exception {
        Conversation held = new Conversation(answers, subject);
        ExecutorService threads = Executors.newCachedThreadPool();
        BufferedReader questions =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        held.say(JSON.createObjectNode().put("ready", true));
        for (String line = questions.readLine(); line != null; line = questions.readLine()) {
            JsonNode asked = JSON.readTree(line);
            threads.execute(() -> held.answer(asked));
        }
        Runtime.getRuntime().halt(0); // clients in the middle of something would hold us back
    }

    private void answer(JsonNode asked) {
        ObjectNode told = JSON.createObjectNode().put("number", asked.get("number").asLong());
        try {
            told.set("answer", JSON.valueToTree(subject.answer(asked.get("what").asText(), asked)));
        } catch (Throwable failure) {
            told.set("error", JSON.valueToTree(Failure.of(failure)));
        }
        say(told);
    }

    private synchronized void say(ObjectNode told) {
        answers.println(told);
        answers.flush();
    }

    /** As it is told: BookKeeper's code, or null for a failure of another kind. */
    public record Failure(Integer code, String name, String message) {
        public static Failure of(Throwable failure) {
            Throwable cause = failure;
            while ((cause instanceof CompletionException || cause instanceof ExecutionException)
                    && cause.getCause() != null) {
                cause = cause.getCause();
            }
            Integer code = cause instanceof BKException known ? known.getCode() : null;
            return new Failure(code, cause.getClass().getSimpleName(), String.valueOf(cause));
        }
    }
}
