// A catalog that makes a commit, and says that it failed for some reason.

import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableOperations;

public class Denying extends DelegatingOperations {
    private final RuntimeException reason;

    public Denying(TableOperations operations, RuntimeException reason) {
        super(operations);
        this.reason = reason;
    }

    public void commit(TableMetadata base, TableMetadata metadata) {
        this.operations.commit(base, metadata);
        throw this.reason;
    }
}
