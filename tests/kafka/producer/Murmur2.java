import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.utils.Utils;

/** For each line of a file, a key in hexadecimal: its hash, and its partition of each count that is given. */
public class Murmur2 {
    public static void main(String[] arguments) throws Exception {
        StringBuilder answer = new StringBuilder();
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            byte[] key = HexFormat.of().parseHex(line);
            answer.append(Integer.toUnsignedString(Utils.murmur2(key)));
            for (int at = 1; at < arguments.length; at++) {
                int partitions = Integer.parseInt(arguments[at]);
                answer.append(' ').append(BuiltInPartitioner.partitionForKey(key, partitions));
            }
            answer.append('\n');
        }
        System.out.print(answer);
    }
}
