import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;

/** Asks rls once whether a request may pass, as a web service does before its work. */
public final class Check {
  private final HttpClient client = HttpClient.newHttpClient();
  private final URI address;
  private final Duration timeout;

  Check(String url, Duration timeout) {
    address = URI.create(url + "/v1/check");
    this.timeout = timeout;
  }

  /** An answer: whether the request may pass, and the seconds to wait if not (-1: it can never pass). */
  public record Answer(boolean passes, long retryAfter) {}

  Answer ask(String domain, String descriptor) throws InterruptedException {
    JsonArray entries = new JsonArray();
    for (String part : descriptor.split(",")) {
      String[] keyAndValue = part.split("=", 2);
      JsonObject entry = new JsonObject();
      entry.addProperty("key", keyAndValue[0]);
      entry.addProperty("value", keyAndValue[1]);
      entries.add(entry);
    }
    JsonObject check = new JsonObject();
    check.add("descriptor", entries);
    JsonArray checks = new JsonArray();
    checks.add(check);
    JsonObject body = new JsonObject();
    body.addProperty("domain", domain);
    body.add("checks", checks);
    try {
      HttpRequest request = HttpRequest.newBuilder(address).timeout(timeout)
          .POST(HttpRequest.BodyPublishers.ofString(body.toString())).build();
      String text = client.send(request, HttpResponse.BodyHandlers.ofString()).body();
      JsonObject answer = JsonParser.parseString(text).getAsJsonObject().getAsJsonArray("answers").get(0).getAsJsonObject();
      if (answer.get("code").getAsString().equals("ERROR")) {
        throw new java.io.IOException(answer.getAsJsonObject("error").get("message").getAsString());
      }
      boolean canPass = answer.has("reset_seconds") && !answer.has("never");
      long retryAfter = canPass ? (long) Math.ceil(answer.get("reset_seconds").getAsDouble()) : -1; // whole seconds
      return new Answer(!answer.get("code").getAsString().equals("OVER_LIMIT"), retryAfter);
    } catch (java.io.IOException | RuntimeException e) {
      System.err.println("rls does not decide, so the request passes: " + e);
      return new Answer(true, 0);
    }
  }

  public static void main(String[] args) throws InterruptedException {
    Duration timeout = Duration.ofMillis(args.length > 3 ? (long) (1000 * Double.parseDouble(args[3])) : 100);
    Answer answer = new Check(args[0], timeout).ask(args[1], args[2]);
    System.out.println(answer.passes() ? "200" : "429 Retry-After: " + answer.retryAfter());
  }
}
