package icestream;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.apache.paimon.KeyValueFileStore;
import org.apache.paimon.catalog.Catalog;
import org.apache.paimon.catalog.CatalogContext;
import org.apache.paimon.catalog.CatalogFactory;
import org.apache.paimon.catalog.Identifier;
import org.apache.paimon.data.InternalRow;
import org.apache.paimon.data.serializer.InternalRowSerializer;
import org.apache.paimon.fs.Path;
import org.apache.paimon.io.DataFileMeta;
import org.apache.paimon.mergetree.Levels;
import org.apache.paimon.predicate.Predicate;
import org.apache.paimon.predicate.PredicateBuilder;
import org.apache.paimon.reader.RecordReader;
import org.apache.paimon.table.FileStoreTable;
import org.apache.paimon.table.source.DataSplit;
import org.apache.paimon.table.source.ReadBuilder;
import org.apache.paimon.table.source.Split;
import org.apache.paimon.types.RowType;
import org.apache.paimon.utils.JsonSerdeUtil;

/**
 * Answers every line "WAREHOUSE DATABASE TABLE" by one line of JSON: what Paimon's own reader makes of the table. Every
 * STEP-th row (the only argument) is read once more by a filter on its values; "not_found" are those that it misses.
 */
public final class DumpTables {
  public static void main(String[] args) throws Exception {
    int step = Integer.parseInt(args[0]);
    BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    for (String line; (line = requests.readLine()) != null; ) {
      answers.println(JsonSerdeUtil.toFlatJson(answer(line.split(" "), step)));
    }
  }

  private static Map<String, Object> answer(String[] request, int step) {
    try (Catalog catalog = CatalogFactory.createCatalog(CatalogContext.create(new Path(request[0])))) {
      return dump((FileStoreTable) catalog.getTable(Identifier.create(request[1], request[2])), step);
    } catch (Exception | Error error) {
      StringWriter trace = new StringWriter();
      error.printStackTrace(new PrintWriter(trace));
      return Map.of("error", trace.toString());
    }
  }

  private static Map<String, Object> dump(FileStoreTable table, int step) throws Exception {
    List<DataFileMeta> files = checkFiles(table);
    RowType type = table.rowType();
    List<InternalRow> rows = read(table, null);
    List<List<Object>> notFound = new ArrayList<>();
    for (int i = 0; i < rows.size(); i += step) {
      List<InternalRow> found = read(table, equalTo(rows.get(i), type));
      if (found.size() != 1 || !found.get(0).equals(rows.get(i))) {
        notFound.add(values(rows.get(i), type));
      }
    }
    return Map.of(
        "columns", type.getFields().stream().map(field -> List.of(field.name(), field.type().toString())).toList(),
        "primary_key", table.primaryKeys(),
        "levels", files.stream().map(DataFileMeta::level).toList(),
        "rows", rows.stream().map(row -> values(row, type)).toList(),
        "not_found", notFound);
  }

  /**
   * What merging relies on and reading does not check: each file is sorted and lies between the keys that the manifest
   * names, and files of one level above 0 do not overlap (Levels throws). Returns the live files.
   */
  private static List<DataFileMeta> checkFiles(FileStoreTable table) throws Exception {
    KeyValueFileStore store = (KeyValueFileStore) table.store();
    // It looks at the leading columns of a row, which are the primary key in our tables.
    Comparator<InternalRow> byKey = store.newKeyComparator();
    ReadBuilder builder = table.newReadBuilder();
    List<DataFileMeta> files = new ArrayList<>();
    for (Split split : builder.newScan().plan().splits()) {
      for (DataFileMeta file : ((DataSplit) split).dataFiles()) {
        Split alone = ((DataSplit) split).filterDataFile(file::equals).orElseThrow();
        List<InternalRow> rows = copies(builder.newRead().createReader(alone), table.rowType());
        boolean sorted =
            byKey.compare(file.minKey(), rows.get(0)) == 0
                && byKey.compare(file.maxKey(), rows.get(rows.size() - 1)) == 0
                && IntStream.range(1, rows.size()).allMatch(i -> byKey.compare(rows.get(i - 1), rows.get(i)) < 0);
        if (!sorted || rows.size() != file.rowCount()) {
          throw new IllegalStateException("The rows are not those that the manifest says, or not sorted: " + file);
        }
        files.add(file);
      }
    }
    new Levels(byKey, files, store.options().numLevels());
    return files;
  }

  private static Predicate equalTo(InternalRow row, RowType type) {
    PredicateBuilder builder = new PredicateBuilder(type);
    return PredicateBuilder.and(
        IntStream.range(0, type.getFieldCount())
            .mapToObj(i -> builder.equal(i, value(row, type, i)))
            .toList());
  }

  private static List<InternalRow> read(FileStoreTable table, Predicate filter) throws Exception {
    ReadBuilder builder = table.newReadBuilder().withFilter(filter);
    return copies(builder.newRead().executeFilter().createReader(builder.newScan().plan()), table.rowType());
  }

  private static List<InternalRow> copies(RecordReader<InternalRow> reader, RowType type) throws Exception {
    InternalRowSerializer serializer = new InternalRowSerializer(type);
    List<InternalRow> rows = new ArrayList<>();
    reader.forEachRemaining(row -> rows.add(serializer.toBinaryRow(row).copy()));
    return rows;
  }

  private static Object value(InternalRow row, RowType type, int column) {
    return InternalRow.createFieldGetter(type.getTypeAt(column), column).getFieldOrNull(row);
  }

  private static List<Object> values(InternalRow row, RowType type) {
    return IntStream.range(0, type.getFieldCount()).mapToObj(i -> plain(value(row, type, i))).toList();
  }

  private static Object plain(Object value) {
    if (value instanceof byte[] bytes) {
      return HexFormat.of().formatHex(bytes);
    }
    return value instanceof Number || value instanceof Boolean ? value : value.toString();
  }
}
