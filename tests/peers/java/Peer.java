import io.grpc.CallOptions;
import io.grpc.ClientCall;
import io.grpc.ManagedChannel;
import io.grpc.MethodDescriptor;
import io.grpc.MethodDescriptor.MethodType;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.GrpcSslContexts;
import io.grpc.netty.NettyChannelBuilder;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.StreamObserver;
import com.google.common.util.concurrent.ListenableFuture;
import java.io.ByteArrayInputStream;
import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;

/** gRPC for Java with the most eager keep-alive that it allows: HOST PORT [CA_FILE]. */
public final class Peer {
  private static final String SERVICE = "inference.GRPCInferenceService";

  private static final MethodDescriptor.Marshaller<byte[]> BYTES =
      new MethodDescriptor.Marshaller<byte[]>() {
        @Override
        public InputStream stream(byte[] value) {
          return new ByteArrayInputStream(value);
        }

        @Override
        public byte[] parse(InputStream stream) {
          try {
            return stream.readAllBytes();
          } catch (IOException error) {
            throw new UncheckedIOException(error);
          }
        }
      };

  private final ManagedChannel channel;

  private Peer(ManagedChannel channel) {
    this.channel = channel;
  }

  private ClientCall<byte[], byte[]> call(MethodType type, String name, CallOptions options) {
    MethodDescriptor<byte[], byte[]> method =
        MethodDescriptor.newBuilder(BYTES, BYTES)
            .setType(type)
            .setFullMethodName(SERVICE + "/" + name)
            .build();
    return channel.newCall(method, options);
  }

  private ListenableFuture<byte[]> begin(String name, String payload, CallOptions options) {
    return ClientCalls.futureUnaryCall(call(MethodType.UNARY, name, options), payload.getBytes());
  }

  private void calls() throws Exception {
    Random chance = new Random(7);
    for (int round = 0; round < 40; round++) {
      List<ListenableFuture<byte[]>> good = new ArrayList<>();
      List<ListenableFuture<byte[]>> given = new ArrayList<>();
      for (int n = 0; n < 25; n++) {
        boolean hangs = n % 3 == 0;
        (hangs ? given : good).add(begin(hangs ? "Hang" : "ModelInfer", "x", CallOptions.DEFAULT));
      }
      Thread.sleep(chance.nextInt(50));
      for (ListenableFuture<byte[]> each : given) {
        each.cancel(true);
      }
      for (ListenableFuture<byte[]> each : good) {
        check(Arrays.equals(each.get(20, TimeUnit.SECONDS), "x".getBytes()), "another answer");
      }
    }
  }

  private void deadlines() throws Exception {
    List<ListenableFuture<byte[]>> all = new ArrayList<>();
    for (int n = 0; n < 500; n++) {
      CallOptions soon = CallOptions.DEFAULT.withDeadlineAfter(500, TimeUnit.MILLISECONDS);
      all.add(begin("Hang", "x", soon));
    }
    for (ListenableFuture<byte[]> each : all) {
      try {
        each.get(20, TimeUnit.SECONDS);
        check(false, "an answer");
      } catch (ExecutionException error) {
        Status.Code code = ((StatusRuntimeException) error.getCause()).getStatus().getCode();
        check(code == Status.Code.DEADLINE_EXCEEDED, code.toString());
      }
    }
  }

  private void stream() throws Exception {
    CountDownLatch over = new CountDownLatch(1);
    AtomicReference<Throwable> failure = new AtomicReference<>();
    AtomicReference<StreamObserver<byte[]>> sender = new AtomicReference<>();
    StreamObserver<byte[]> receiver =
        new StreamObserver<byte[]>() {
          private int seen;

          @Override
          public void onNext(byte[] value) {
            if (++seen < 300) {
              sender.get().onNext(value);
            } else {
              sender.get().onCompleted();
            }
          }

          @Override
          public void onError(Throwable error) {
            failure.set(error);
            over.countDown();
          }

          @Override
          public void onCompleted() {
            over.countDown();
          }
        };
    sender.set(
        ClientCalls.asyncBidiStreamingCall(
            call(MethodType.BIDI_STREAMING, "ModelStreamInfer", CallOptions.DEFAULT), receiver));
    sender.get().onNext(new byte[1000]);
    check(over.await(20, TimeUnit.SECONDS), "the stream hangs");
    check(failure.get() == null, String.valueOf(failure.get()));
  }

  private static void check(boolean holds, String otherwise) {
    if (!holds) {
      throw new IllegalStateException(otherwise);
    }
  }

  public static void main(String[] arguments) throws Exception {
    NettyChannelBuilder builder =
        NettyChannelBuilder.forAddress(arguments[0], Integer.parseInt(arguments[1]))
            .keepAliveTime(10, TimeUnit.SECONDS)
            .keepAliveTimeout(5, TimeUnit.SECONDS)
            .keepAliveWithoutCalls(true)
            .maxInboundMessageSize(1 << 25);
    if (arguments.length > 2) {
      File ca = new File(arguments[2]);
      builder.sslContext(GrpcSslContexts.forClient().trustManager(ca).build());
    } else {
      builder.usePlaintext();
    }
    ManagedChannel channel = builder.build();
    Peer peer = new Peer(channel);
    peer.calls();
    peer.deadlines();
    peer.stream();
    byte[] blob = peer.begin("Blob", "16000000", CallOptions.DEFAULT).get(20, TimeUnit.SECONDS);
    check(blob.length == 16000000, "another size");
    Thread.sleep(11_000); // only keep-alive: Java allows one in ten seconds
    peer.begin("ModelInfer", "after", CallOptions.DEFAULT).get(20, TimeUnit.SECONDS);
    channel.shutdown().awaitTermination(20, TimeUnit.SECONDS);
    System.out.println("all well");
  }
}
