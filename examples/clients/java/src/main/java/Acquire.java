import io.envoyproxy.envoy.extensions.common.ratelimit.v3.RateLimitDescriptor;
import io.envoyproxy.envoy.service.ratelimit.v3.RateLimitRequest;
import io.envoyproxy.envoy.service.ratelimit.v3.RateLimitResponse;
import io.envoyproxy.envoy.service.ratelimit.v3.RateLimitServiceGrpc;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.Metadata;
import io.grpc.stub.MetadataUtils;
import java.time.Duration;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicReference;

/** Acquires permits from rls and prints when each permit came. */
public final class Acquire {
  private static final Metadata.Key<String> ACQUIRE = Metadata.Key.of("rls-acquire", Metadata.ASCII_STRING_MARSHALLER);
  private static final Metadata.Key<String> RETRY_AFTER = Metadata.Key.of("rls-retry-after", Metadata.ASCII_STRING_MARSHALLER);

  private final RateLimitServiceGrpc.RateLimitServiceBlockingStub stub;

  Acquire(ManagedChannel channel) {
    Metadata metadata = new Metadata();
    metadata.put(ACQUIRE, "true"); // a denied call charges nothing
    stub = RateLimitServiceGrpc.newBlockingStub(channel)
        .withInterceptors(MetadataUtils.newAttachHeadersInterceptor(metadata));
  }

  /** Returns a request for one descriptor, such as "tenant=acme,path=/orders". */
  static RateLimitRequest newRequest(String domain, String text, int permits) {
    RateLimitDescriptor.Builder descriptor = RateLimitDescriptor.newBuilder();
    for (String part : text.split(",")) {
      String[] entry = part.split("=", 2);
      descriptor.addEntries(RateLimitDescriptor.Entry.newBuilder().setKey(entry[0]).setValue(entry[1]));
    }
    return RateLimitRequest.newBuilder().setDomain(domain).addDescriptors(descriptor).setHitsAddend(permits).build();
  }

  /** Waits until the permits of the request come, for at most the timeout. */
  void acquire(RateLimitRequest request, Duration timeout) throws InterruptedException, TimeoutException {
    long deadline = System.nanoTime() + timeout.toNanos();
    while (true) {
      AtomicReference<Metadata> header = new AtomicReference<>();
      RateLimitResponse response = stub
          .withInterceptors(MetadataUtils.newCaptureMetadataInterceptor(header, new AtomicReference<>()))
          .withDeadlineAfter(5, TimeUnit.SECONDS)
          .shouldRateLimit(request);
      if (response.getOverallCode() != RateLimitResponse.Code.OVER_LIMIT) {
        return;
      }
      String wait = header.get().get(RETRY_AFTER);
      if (wait.equals("never")) {
        throw new IllegalArgumentException(request.getHitsAddend() + " permits can never pass");
      }
      double seconds = Double.parseDouble(wait);
      seconds += ThreadLocalRandom.current().nextDouble(0.001 + seconds / 20); // others wait for the same reset
      if (System.nanoTime() + (long) (seconds * 1e9) > deadline) {
        throw new TimeoutException("permits come in " + seconds + " s at the earliest");
      }
      TimeUnit.NANOSECONDS.sleep((long) (seconds * 1e9));
    }
  }

  public static void main(String[] args) throws Exception {
    if (args.length != 4) {
      System.err.println("usage: Acquire ADDRESS DOMAIN KEY=VALUE[,KEY=VALUE...] PERMITS");
      System.exit(1);
    }
    ManagedChannel channel = ManagedChannelBuilder.forTarget(args[0]).usePlaintext().build();
    try {
      Acquire caller = new Acquire(channel);
      RateLimitRequest request = newRequest(args[1], args[2], 1);
      long start = System.nanoTime();
      for (int number = 1; number <= Integer.parseInt(args[3]); number++) {
        caller.acquire(request, Duration.ofMinutes(1));
        System.out.printf("permit %d after %.3f s%n", number, (System.nanoTime() - start) / 1e9);
      }
    } finally {
      channel.shutdownNow().awaitTermination(5, TimeUnit.SECONDS);
    }
  }
}
