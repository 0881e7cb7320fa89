package icestream;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Scanner;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.stream.StreamSupport;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.source.util.ratelimit.RateLimiter;
import org.apache.flink.api.connector.source.util.ratelimit.RateLimiterStrategy;
import org.apache.flink.api.java.functions.KeySelector;
import org.apache.flink.configuration.RestartStrategyOptions;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.connector.datagen.source.GeneratorFunction;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.StringData;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.types.RowKind;
import org.apache.flink.util.Collector;
import org.apache.flink.util.ParameterTool;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.Table;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.flink.CatalogLoader;
import org.apache.iceberg.flink.FlinkSchemaUtil;
import org.apache.iceberg.flink.TableLoader;
import org.apache.iceberg.flink.sink.FlinkSink;
import org.apache.iceberg.jdbc.JdbcCatalog;

/**
 * Streams upserts and deletes into an existing table (id bigint, tenant string, amount bigint).
 *
 * <p>Record n is a function of the seed and n alone, so the table's last state is known without reading it: see
 * expected_rows in upsert_stream.py, which must stay its equal. Prints "committed CHECKPOINT SNAPSHOT" for every
 * commit of its own, and "finished" at the end. The records come in parts: each but the first waits for a line of
 * standard input. The line "stop" ends the job with a savepoint.
 */
public final class UpsertStream {
  private static final int TENANTS = 4;

  /** Done for each part that may come. */
  private static final List<CompletableFuture<Void>> BEGUN = new ArrayList<>();

  public static void main(String[] args) throws Exception {
    ParameterTool options = ParameterTool.fromArgs(args);
    long records = options.getLong("records");
    List<String> key = List.of(options.get("key").split(","));
    boolean upsert = options.get("mode").equals("upsert");
    for (int part = 0; part < options.getInt("parts"); part++) {
      BEGUN.add(new CompletableFuture<>());
    }
    BEGUN.get(0).complete(null);

    CatalogLoader catalog =
        CatalogLoader.custom(
            options.get("catalog"),
            Map.of(
                "uri", options.get("uri"),
                "warehouse", options.get("warehouse"),
                "jdbc.schema-version", "V1"),
            new Configuration(),
            JdbcCatalog.class.getName());
    TableIdentifier identifier = TableIdentifier.parse(options.get("table"));
    Table table = catalog.loadCatalog().loadTable(identifier);
    TypeInformation<RowData> rowType = InternalTypeInfo.of(FlinkSchemaUtil.convert(table.schema()));

    StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(settings(options));
    env.setParallelism(options.getInt("parallelism", 2));
    env.enableCheckpointing(options.getLong("checkpoint-milliseconds"));
    DataStream<RowData> changes =
        env.fromSource(
                new DataGeneratorSource<>(
                    new Changes(options.getLong("seed"), options.getLong("keys")),
                    records,
                    new InParts(
                        -Math.floorDiv(-records, options.getInt("parts")), options.getInt("records-per-checkpoint")),
                    rowType),
                WatermarkStrategy.noWatermarks(),
                "changes")
            // One reader, so that the records of a key stay in order.
            .setParallelism(1);
    if (!upsert) {
      changes = changes.keyBy(new Key(key.contains("tenant"))).process(new Retract(rowType)).returns(rowType);
    }
    FlinkSink.forRowData(changes)
        .tableLoader(TableLoader.fromCatalog(catalog, identifier))
        .equalityFieldColumns(key)
        .upsert(upsert)
        .toBranch(options.get("branch"))
        .append();
    JobClient job = env.executeAsync("upserts");
    listen(job, options.get("checkpoints"));
    follow(job, table);
  }

  private static org.apache.flink.configuration.Configuration settings(ParameterTool options) {
    var settings = new org.apache.flink.configuration.Configuration();
    // Fail at once, and say why: by default a job with checkpoints starts again for ever.
    settings.set(RestartStrategyOptions.RESTART_STRATEGY, "none");
    if (options.has("checkpoints")) {
      settings.setString("execution.checkpointing.storage", "filesystem");
      settings.setString("execution.checkpointing.dir", options.get("checkpoints"));
      settings.setString("execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION");
    }
    if (options.has("restore")) {
      settings.setString("execution.state-recovery.path", options.get("restore"));
    }
    return settings;
  }

  private static void listen(JobClient job, String savepoints) {
    Thread lines =
        new Thread(
            () -> {
              Scanner input = new Scanner(System.in);
              for (int part = 1; input.hasNextLine(); ) {
                if (input.nextLine().equals("stop")) {
                  job.stopWithSavepoint(false, savepoints, SavepointFormatType.CANONICAL);
                } else {
                  BEGUN.get(part++).complete(null);
                }
              }
            });
    lines.setDaemon(true);
    lines.start();
  }

  private static void follow(JobClient job, Table table) throws Exception {
    Set<Long> seen = new HashSet<>();
    table.snapshots().forEach(snapshot -> seen.add(snapshot.snapshotId()));
    var result = job.getJobExecutionResult();
    boolean running = true;
    while (running) {
      // Once more after the end, for the last commits.
      running = !result.isDone();
      table.refresh();
      StreamSupport.stream(table.snapshots().spliterator(), false)
          .filter(snapshot -> seen.add(snapshot.snapshotId()))
          .filter(snapshot -> snapshot.summary().containsKey("flink.max-committed-checkpoint-id"))
          .forEach(UpsertStream::report);
      Thread.sleep(100);
    }
    result.get();
    System.out.println("finished");
  }

  private static void report(Snapshot snapshot) {
    System.out.printf(
        "committed %s %d%n",
        snapshot.summary().get("flink.max-committed-checkpoint-id"), snapshot.snapshotId());
  }

  /** Makes record n: one in eight deletes its key, the others write it. */
  private record Changes(long seed, long keys) implements GeneratorFunction<Long, RowData> {
    @Override
    public RowData map(Long n) {
      long tenant = random(n, 1, TENANTS);
      RowKind kind = random(n, 2, 8) == 0 ? RowKind.DELETE : RowKind.INSERT;
      return GenericRowData.ofKind(
          kind, random(n, 0, keys), tenant == 0 ? null : StringData.fromString("t" + tenant), n);
    }

    private long random(long n, long column, long bound) {
      return Long.remainderUnsigned(mix(mix(seed + column) + n), bound);
    }

    /** One step of SplitMix64 from the given state. */
    private static long mix(long state) {
      long z = state + 0x9E3779B97F4A7C15L;
      z = (z ^ (z >>> 30)) * 0xBF58476D1CE4E5B9L;
      z = (z ^ (z >>> 27)) * 0x94D049BB133111EBL;
      return z ^ (z >>> 31);
    }
  }

  /** So many records with each checkpoint; checkpoints go on while a part has not begun. */
  private record InParts(long recordsPerPart, int recordsPerCheckpoint) implements RateLimiterStrategy {
    @Override
    public RateLimiter createRateLimiter(int parallelism) {
      RateLimiter perCheckpoint =
          RateLimiterStrategy.perCheckpoint(recordsPerCheckpoint).createRateLimiter(parallelism);
      return new RateLimiter() {
        private long passed;

        @Override
        public CompletionStage<Void> acquire() {
          int part = (int) Math.min(passed++ / recordsPerPart, BEGUN.size() - 1);
          return perCheckpoint.acquire().thenCombine(BEGUN.get(part), (free, begun) -> null);
        }

        @Override
        public void notifyCheckpointComplete(long checkpointId) {
          perCheckpoint.notifyCheckpointComplete(checkpointId);
        }
      };
    }
  }

  private record Key(boolean withTenant) implements KeySelector<RowData, String> {
    @Override
    public String getKey(RowData row) {
      // A row in binary form returns an empty string for a null one.
      String tenant = withTenant && !row.isNullAt(1) ? " " + row.getString(1) : "";
      return row.getLong(0) + tenant;
    }
  }

  /** Turns writes and deletes of keys into a changelog that takes the old row back before it gives the new one. */
  private static final class Retract extends KeyedProcessFunction<String, RowData, RowData> {
    private final TypeInformation<RowData> rowType;
    private transient ValueState<RowData> current;

    private Retract(TypeInformation<RowData> rowType) {
      this.rowType = rowType;
    }

    @Override
    public void open(OpenContext context) {
      current = getRuntimeContext().getState(new ValueStateDescriptor<>("current", rowType));
    }

    @Override
    public void processElement(RowData row, Context context, Collector<RowData> out) throws Exception {
      RowData old = current.value();
      boolean deletes = row.getRowKind() == RowKind.DELETE;
      if (old != null) {
        old.setRowKind(deletes ? RowKind.DELETE : RowKind.UPDATE_BEFORE);
        out.collect(old);
      }
      if (deletes) {
        current.clear();
      } else {
        current.update(row);
        row.setRowKind(old == null ? RowKind.INSERT : RowKind.UPDATE_AFTER);
        out.collect(row);
      }
    }
  }
}
