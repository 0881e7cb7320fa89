package icestream.conformance;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.time.LocalDate;
import java.time.LocalTime;
import java.util.HexFormat;
import java.util.StringJoiner;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.RestOptions;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.util.CloseableIterator;
import org.apache.iceberg.Table;
import org.apache.iceberg.flink.FlinkSchemaUtil;
import org.apache.iceberg.flink.TableLoader;
import org.apache.iceberg.flink.source.IcebergSource;
import org.apache.iceberg.flink.source.assigner.SimpleSplitAssignerFactory;

/**
 * Answers each line of standard input, a JSON object with "metadata" and "snapshot", by a line with the rows that a
 * bounded job of Flink reads there, or with its refusal.
 */
public final class ReadTables {
  private static final Pattern METADATA = Pattern.compile("\"metadata\": \"([^\"\\\\]*)\"");
  private static final Pattern SNAPSHOT = Pattern.compile("\"snapshot\": \"(\\d+)\"");

  public static void main(String[] args) throws Exception {
    PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    System.setOut(System.err);
    // One cluster for all jobs: each local environment would start one of its own.
    MiniCluster cluster =
        new MiniCluster(
            new MiniClusterConfiguration.Builder()
                .setConfiguration(new Configuration().set(RestOptions.BIND_PORT, "0"))
                .build());
    cluster.start();
    URI address = cluster.getRestAddress().get();
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      String answer;
      try {
        long snapshot = Long.parseLong(found(SNAPSHOT, line));
        answer = "{\"rows\": [" + rows(address, found(METADATA, line), snapshot) + "]}";
      } catch (Exception | LinkageError error) {
        answer = "{\"refused\": " + quoted(cause(error).toString()) + "}";
      }
      out.println(answer);
    }
    System.exit(0);
  }

  private static String rows(URI cluster, String metadata, long snapshot) throws Exception {
    TableLoader loader = TableLoader.fromHadoopTable(metadata);
    loader.open();
    Table table = loader.loadTable();
    RowType type = FlinkSchemaUtil.convert(table.schema());
    StreamExecutionEnvironment env =
        StreamExecutionEnvironment.createRemoteEnvironment(cluster.getHost(), cluster.getPort());
    env.setParallelism(1);
    IcebergSource.Builder<RowData> reading =
        IcebergSource.forRowData()
            .tableLoader(loader)
            .assignerFactory(new SimpleSplitAssignerFactory())
            .streaming(false);
    if (table.currentSnapshot().snapshotId() != snapshot) {
      reading.useSnapshotId(snapshot);
    }
    IcebergSource<RowData> source = reading.build();
    TypeInformation<RowData> rowType = InternalTypeInfo.of(type);
    StringJoiner rows = new StringJoiner(", ");
    try (CloseableIterator<RowData> read =
        env.fromSource(source, WatermarkStrategy.noWatermarks(), "table", rowType).executeAndCollect()) {
      while (read.hasNext()) {
        rows.add(struct(read.next(), type));
      }
    } finally {
      loader.close();
    }
    return rows.toString();
  }

  private static String struct(RowData row, RowType type) {
    StringJoiner values = new StringJoiner(", ", "{", "}");
    for (int at = 0; at < type.getFieldCount(); at++) {
      Object value = RowData.createFieldGetter(type.getTypeAt(at), at).getFieldOrNull(row);
      values.add(quoted(type.getFieldNames().get(at)) + ": " + json(value, type.getTypeAt(at)));
    }
    return values.toString();
  }

  private static String json(Object value, LogicalType type) {
    if (value == null) {
      return "null";
    }
    return switch (type.getTypeRoot()) {
      case ROW -> struct((RowData) value, (RowType) type);
      case BOOLEAN, INTEGER, BIGINT -> value.toString();
      case DATE -> quoted(LocalDate.ofEpochDay((Integer) value).toString());
      case TIME_WITHOUT_TIME_ZONE -> quoted(LocalTime.ofNanoOfDay((Integer) value * 1_000_000L).toString());
      case TIMESTAMP_WITH_LOCAL_TIME_ZONE -> quoted(value + "Z");
      case BINARY, VARBINARY -> quoted(HexFormat.of().formatHex((byte[]) value));
      default -> quoted(value.toString());
    };
  }

  private static Throwable cause(Throwable error) {
    return error.getCause() == null ? error : cause(error.getCause());
  }

  private static String found(Pattern pattern, String line) {
    Matcher matcher = pattern.matcher(line);
    if (!matcher.find()) {
      throw new IllegalArgumentException("no question: " + line);
    }
    return matcher.group(1);
  }

  private static String quoted(String text) {
    StringBuilder json = new StringBuilder("\"");
    for (char one : text.toCharArray()) {
      if (one < ' ' || one == '"' || one == '\\' || one > '~') {
        json.append(String.format("\\u%04x", (int) one));
      } else {
        json.append(one);
      }
    }
    return json.append('"').toString();
  }
}
