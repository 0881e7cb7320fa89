// Compiled by Janino, as CommitGuards.java is, so without type arguments.

import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.catalog.TableIdentifierParser;
import org.apache.iceberg.exceptions.NotFoundException;

/**
 * Which file a catalog that has none lacks to load a table: where the table's metadata lies. Each exception that gets
 * to Python costs ten milliseconds, since PySpark asks of what class it is.
 */
public class MissingFile {
    private static final String SAID = "No in-memory file found for location: ";
    private final Catalog catalog;

    public MissingFile(Catalog catalog) {
        this.catalog = catalog;
    }

    public String of(String identifier) {
        try {
            this.catalog.loadTable(TableIdentifierParser.fromJson(identifier));
            return null;
        } catch (NotFoundException error) {
            if (!error.getMessage().startsWith(SAID)) {
                throw error;
            }
            return error.getMessage().substring(SAID.length());
        }
    }
}
