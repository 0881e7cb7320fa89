import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.ExpireSnapshots;
import org.apache.iceberg.IcebergBuild;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.catalog.TableIdentifier;

/**
 * Lets snapshots of a table expire by the Iceberg of its class path, and prints the version of that. Arguments: a
 * JDBC catalog's name, database and warehouse, the table, and ids of snapshots; without any, all but the last go.
 */
public class Expire {
  public static void main(String[] arguments) {
    Map<String, String> properties =
        Map.of(
            "catalog-impl", "org.apache.iceberg.jdbc.JdbcCatalog",
            "uri", arguments[1],
            "warehouse", arguments[2],
            "jdbc.schema-version", "V1");
    Catalog catalog = CatalogUtil.buildIcebergCatalog(arguments[0], properties, new Configuration());
    ExpireSnapshots expiry = catalog.loadTable(TableIdentifier.parse(arguments[3])).expireSnapshots();
    if (arguments.length == 4) {
      expiry.expireOlderThan(System.currentTimeMillis() + 60_000).retainLast(1);
    }
    for (int at = 4; at < arguments.length; at++) {
      expiry.expireSnapshotId(Long.parseLong(arguments[at]));
    }
    expiry.commit();
    System.out.println(IcebergBuild.version());
  }
}
