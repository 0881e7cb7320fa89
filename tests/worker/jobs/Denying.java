// A catalog that makes a commit, and says that it failed for some reason.

import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.encryption.EncryptionManager;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.LocationProvider;

public class Denying implements TableOperations {
    private final TableOperations operations;
    private final RuntimeException reason;

    public Denying(TableOperations operations, RuntimeException reason) {
        this.operations = operations;
        this.reason = reason;
    }

    public void commit(TableMetadata base, TableMetadata metadata) {
        this.operations.commit(base, metadata);
        throw this.reason;
    }

    public TableMetadata current() {
        return this.operations.current();
    }

    public TableMetadata refresh() {
        return this.operations.refresh();
    }

    public FileIO io() {
        return this.operations.io();
    }

    public EncryptionManager encryption() {
        return this.operations.encryption();
    }

    public String metadataFileLocation(String fileName) {
        return this.operations.metadataFileLocation(fileName);
    }

    public LocationProvider locationProvider() {
        return this.operations.locationProvider();
    }

    public TableOperations temp(TableMetadata uncommitted) {
        return this.operations.temp(uncommitted);
    }

    public long newSnapshotId() {
        return this.operations.newSnapshotId();
    }

    public boolean requireStrictCleanup() {
        return this.operations.requireStrictCleanup();
    }
}
