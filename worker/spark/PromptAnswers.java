// Compiled by Janino, as Shared.java is.

import java.net.SocketException;
import py4j.DefaultGatewayServerListener;
import py4j.GatewayServer;
import py4j.Py4JPythonClient;
import py4j.Py4JPythonClientPerThread;
import py4j.Py4JServerConnection;

/**
 * py4j's answers, without Nagle's algorithm. It writes them 8 KiB at a time, so the rest of a longer one, such as the
 * metadata of a table with ten snapshots, would wait until Python's system says that it has the first part: 40 ms.
 */
public class PromptAnswers extends DefaultGatewayServerListener {
    /** On the connections of the calling thread and of those that are to come, each of which makes its own: by default,
     * threads of PySpark share none. */
    public void begin(GatewayServer server) {
        server.addListener(this);
        Py4JPythonClient client = server.getCallbackClient();
        if (client instanceof Py4JPythonClientPerThread) {
            Py4JServerConnection own = ((Py4JPythonClientPerThread) client).getPerThreadConnection();
            if (own != null) {
                connectionStarted(own);
            }
        }
    }

    public void connectionStarted(Py4JServerConnection connection) {
        try {
            connection.getSocket().setTcpNoDelay(true);
        } catch (SocketException closed) {
            // Whoever reads from it is told.
        }
    }
}
