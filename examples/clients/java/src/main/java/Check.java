import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

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

  /** entries has pairs in the order of the rules, such as user and "Smith, Anna". Values may have any characters. */
  Answer ask(String domain, List<Map.Entry<String, String>> entries) throws InterruptedException {
    JsonArray descriptor = new JsonArray();
    for (Map.Entry<String, String> pair : entries) {
      JsonObject entry = new JsonObject();
      entry.addProperty("key", pair.getKey());
      entry.addProperty("value", pair.getValue());
      descriptor.add(entry);
    }
    JsonObject check = new JsonObject();
    check.add("descriptor", descriptor);
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
    List<Map.Entry<String, String>> entries = new ArrayList<>();
    for (String part : args[2].split(",")) { // this command can't send values with a comma
      String[] keyAndValue = part.split("=", 2);
      entries.add(Map.entry(keyAndValue[0], keyAndValue[1]));
    }
    Answer answer = new Check(args[0], timeout).ask(args[1], entries);
    System.out.println(answer.passes() ? "200" : "429 Retry-After: " + answer.retryAfter());
  }
}
