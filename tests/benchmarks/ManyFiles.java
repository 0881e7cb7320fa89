// Copies of a data file, in one commit.

import java.util.Iterator;
import java.util.List;
import org.apache.iceberg.AppendFiles;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DataFiles;
import org.apache.iceberg.Table;

public class ManyFiles {
    private final Table table;
    private final DataFile file;

    public ManyFiles(Table table, DataFile file) {
        this.table = table;
        this.file = file;
    }

    public void append(List places) {
        AppendFiles append = this.table.newFastAppend();
        for (Iterator each = places.iterator(); each.hasNext(); ) {
            append.appendFile(DataFiles.builder(this.table.spec()).copy(this.file).withPath((String) each.next()).build());
        }
        append.commit();
    }
}
