// Rows become data files by Iceberg's own writer. Compiled by Janino, as CommitGuards.java is, so without type
// arguments.

import java.io.Closeable;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.iceberg.FileFormat;
import org.apache.iceberg.PartitionKey;
import org.apache.iceberg.SortOrderComparators;
import org.apache.iceberg.StructLike;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableProperties;
import org.apache.iceberg.data.GenericFileWriterFactory;
import org.apache.iceberg.data.InternalRecordWrapper;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.formats.FormatModelRegistry;
import org.apache.iceberg.inmemory.InMemoryInputFile;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.io.DataWriter;
import org.apache.iceberg.types.Type;
import org.apache.iceberg.types.Types;
import org.apache.iceberg.util.UUIDUtil;

/**
 * Rows of a table by partition, each in the table's sort order. They come as a Parquet file, which is read by field
 * id, and are written as the table says: partition spec, format, compression, metrics.
 */
public class NewDataFiles {
    private final Table table;
    private final FileFormat format;
    private final Map byPartition = new LinkedHashMap();

    public NewDataFiles(Table table, byte[] parquet) throws Exception {
        this.table = table;
        String named = (String) table.properties().get(TableProperties.DEFAULT_FILE_FORMAT);
        this.format = FileFormat.fromString(named == null ? TableProperties.DEFAULT_FILE_FORMAT_DEFAULT : named);
        PartitionKey key = new PartitionKey(table.spec(), table.schema());
        CloseableIterable rows = FormatModelRegistry
                .readBuilder(FileFormat.PARQUET, Record.class, new InMemoryInputFile(parquet))
                .project(table.schema())
                .build();
        try {
            for (Iterator each = rows.iterator(); each.hasNext();) {
                Record row = withUuids((Record) each.next());
                key.partition(wrapped(row));
                List known = (List) this.byPartition.get(key);
                if (known == null) {
                    known = new ArrayList();
                    this.byPartition.put(key.copy(), known);
                }
                known.add(row);
            }
        } finally {
            ((Closeable) rows).close();
        }
    }

    /** Arrow's Parquet files do not say that 16 bytes are a UUID. */
    private Record withUuids(Record row) {
        List fields = this.table.schema().columns();
        for (int at = 0; at < fields.size(); at++) {
            Object value = row.get(at);
            if (((Types.NestedField) fields.get(at)).type().typeId() == Type.TypeID.UUID && value instanceof byte[]) {
                row.set(at, UUIDUtil.convert((byte[]) value));
            }
        }
        return row;
    }

    private StructLike wrapped(Record row) {
        return new InternalRecordWrapper(this.table.schema().asStruct()).wrap((StructLike) row);
    }

    public int files() {
        return this.byPartition.size();
    }

    public String fileExtension() {
        return this.format.name().toLowerCase();
    }

    /** One data file for each partition, at the places given. */
    public List write(List locations) throws Exception {
        final Comparator order = this.table.sortOrder().isSorted()
                ? SortOrderComparators.forSchema(this.table.schema(), this.table.sortOrder())
                : null;
        GenericFileWriterFactory writers = new GenericFileWriterFactory.Builder(this.table)
                .dataFileFormat(this.format)
                .dataSchema(this.table.schema())
                .dataSortOrder(this.table.sortOrder())
                .build();
        List written = new ArrayList();
        Iterator places = locations.iterator();
        for (Iterator each = this.byPartition.entrySet().iterator(); each.hasNext();) {
            Map.Entry partition = (Map.Entry) each.next();
            List rows = (List) partition.getValue();
            if (order != null) {
                Collections.sort(rows, new Comparator() {
                    public int compare(Object one, Object other) {
                        return order.compare(wrapped((Record) one), wrapped((Record) other));
                    }
                });
            }
            DataWriter writer = writers.newDataWriter(
                    this.table.encryption().encrypt(this.table.io().newOutputFile((String) places.next())),
                    this.table.spec(),
                    (StructLike) partition.getKey());
            try {
                for (Iterator row = rows.iterator(); row.hasNext();) {
                    writer.write(row.next());
                }
            } finally {
                writer.close();
            }
            written.add(writer.toDataFile());
        }
        return written;
    }
}
