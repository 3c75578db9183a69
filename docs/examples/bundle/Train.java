import ai.onnxruntime.OnnxJavaType;
import ai.onnxruntime.OnnxTensor;
import ai.onnxruntime.OrtEnvironment;
import ai.onnxruntime.OrtException;
import ai.onnxruntime.OrtLoggingLevel;
import ai.onnxruntime.OrtSession;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.LongBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Trains a bundle of ortpipe on a CSV file, and prints the loss of each step.
 *
 * <p>java -cp onnxruntime.jar:jackson.jar Train.java BUNDLE ROWS.csv LABEL EPOCHS
 */
public class Train {
  static final Map<String, OnnxJavaType> TYPES =
      Map.of(
          "float32", OnnxJavaType.FLOAT,
          "float64", OnnxJavaType.DOUBLE,
          "int64", OnnxJavaType.INT64,
          "bool", OnnxJavaType.BOOL);

  static final Map<String, String> FORMS =
      Map.of(
          "truth", "|true|false",
          "date", "|\\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\\d|3[01])([T ]([01]\\d|2[0-3]):[0-5]\\d.*)?");

  final OrtEnvironment environment = OrtEnvironment.getEnvironment();
  final OrtSession session;
  final JsonNode bundle;
  final byte[] raw;
  final Map<String, JsonNode> places = new HashMap<>(); // of the arrays in state.bin
  final Map<String, JsonNode> inputs = new HashMap<>();
  final Map<String, List<String>> table; // column: values
  final String label;
  Map<String, OnnxTensor> state = new HashMap<>();
  int done = 0;

  Train(Path folder, Path rows, String label) throws IOException, OrtException {
    bundle = new ObjectMapper().readTree(folder.resolve("bundle.json").toFile());
    raw = Files.readAllBytes(folder.resolve("state.bin"));
    bundle.at("/state/tensors").forEach(place -> places.put(place.get("name").asText(), place));
    bundle.at("/graphs/train/inputs").forEach(input -> inputs.put(input.get("name").asText(), input));
    table = read(rows);
    this.label = label;
    var options = new OrtSession.SessionOptions();
    options.setIntraOpNumThreads(1);
    options.setMemoryPatternOptimization(false); // in 1.17 and 1.18, it can change values
    options.setSessionLogLevel(OrtLoggingLevel.ORT_LOGGING_LEVEL_ERROR);
    session = environment.createSession(folder.resolve("train.onnx").toString(), options);
    for (JsonNode name : bundle.get("carried")) {
      JsonNode place = places.get(name.asText());
      long[] shape = longs(place.get("shape"));
      OnnxJavaType type = TYPES.get(place.get("dtype").asText());
      if (type == null) throw new IllegalArgumentException("Export the bundle without --float16: it has " + place);
      int size = type.size;
      for (long length : shape) size *= (int) length;
      var bytes = ByteBuffer.allocateDirect(size).order(ByteOrder.nativeOrder());
      bytes.put(raw, place.get("offset").asInt(), size).rewind();
      state.put(name.asText(), OnnxTensor.createTensor(environment, bytes, shape, type));
    }
  }

  /** Runs steps on batches of rows, from row `first` on, and prints their losses. */
  void train(int first, int steps, int size) throws OrtException {
    var feeds = new HashMap<>(state);
    for (JsonNode name : bundle.get("rows")) feeds.put(name.asText(), batches(name.asText(), first, steps, size));
    for (JsonNode name : bundle.get("scalars")) {
      JsonNode place = places.get("scalars/" + name.asText());
      FloatBuffer numbers =
          ByteBuffer.wrap(raw).order(ByteOrder.LITTLE_ENDIAN).position(place.get("offset").asInt()).slice()
              .order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer();
      float[] chosen = new float[steps];
      for (int step = 0; step < steps; step++)
        chosen[step] = numbers.get(Math.min(done + step, place.at("/shape/0").asInt() - 1));
      feeds.put(name.asText(), OnnxTensor.createTensor(environment, chosen));
    }
    OrtSession.Result results = session.run(feeds); // stays open: its tensors are the next state
    feeds.values().forEach(OnnxTensor::close);
    JsonNode outputs = bundle.at("/graphs/train/outputs"); // in the order of `carried`
    for (int i = 0; i < bundle.get("carried").size(); i++)
      state.put(bundle.at("/carried/" + i).asText(), (OnnxTensor) results.get(outputs.get(i).get("name").asText()).get());
    for (float loss : (float[]) results.get("losses").get().getValue()) System.out.printf("%.9g%n", loss);
    done += steps;
  }

  OnnxTensor batches(String name, int first, int count, int size) throws OrtException {
    JsonNode head = bundle.at("/predictions/0"), input = inputs.get(name);
    boolean isLabel = name.equals(head.get("label").asText());
    var columns = new ArrayList<String>();
    bundle.get("columns").path(name).forEach(column -> columns.add(column.asText()));
    if (columns.isEmpty()) columns.add(isLabel ? label : name);
    var cells = new ArrayList<String>();
    for (int row = first; row < first + count * size; row++)
      for (String column : columns) cells.add(column(column).get(row));
    long[] shape = input.get("shape").size() == 2 ? new long[] {count, size} : new long[] {count, size, columns.size()};
    if (input.get("dtype").asText().equals("string")) {
      String form = FORMS.getOrDefault(bundle.get("table").path(name).path("kind").asText(), "(?s).*");
      for (String cell : cells)
        if (!cell.matches(form))
          throw new IllegalArgumentException("Write true or false, and dates as 2026-01-31: " + cell);
      return OnnxTensor.createTensor(environment, cells.toArray(String[]::new), shape);
    }
    if (input.get("dtype").asText().equals("int64")) {
      var classes = new ArrayList<String>();
      if (isLabel) head.get("classes").forEach(one -> classes.add(one.asText()));
      long[] numbers = cells.stream().mapToLong(c -> classes.isEmpty() ? Long.parseLong(c) : placeOf(c, classes)).toArray();
      return OnnxTensor.createTensor(environment, LongBuffer.wrap(numbers), shape);
    }
    float[] numbers = new float[cells.size()];
    for (int i = 0; i < numbers.length; i++)
      numbers[i] = cells.get(i).isEmpty() ? Float.NaN : Float.parseFloat(cells.get(i));
    return OnnxTensor.createTensor(environment, FloatBuffer.wrap(numbers), shape);
  }

  List<String> column(String name) {
    if (!table.containsKey(name)) throw new IllegalArgumentException("The file has no column " + name);
    return table.get(name);
  }

  static int placeOf(String cell, List<String> classes) {
    if (!classes.contains(cell)) throw new IllegalArgumentException("A label must be a class: " + cell);
    return classes.indexOf(cell);
  }

  static Map<String, List<String>> read(Path path) throws IOException {
    List<String> lines = Files.readAllLines(path);
    String[] names = lines.get(0).split(",", -1);
    var table = new HashMap<String, List<String>>();
    for (String name : names) table.put(name, new ArrayList<>());
    for (String line : lines.subList(1, lines.size())) {
      String[] cells = line.split(",", -1);
      if (cells.length != names.length)
        throw new IllegalArgumentException("Each row must have a value for each column: " + line);
      for (int i = 0; i < names.length; i++) table.get(names[i]).add(cells[i]);
    }
    return table;
  }

  static long[] longs(JsonNode sizes) {
    long[] shape = new long[sizes.size()];
    for (int i = 0; i < shape.length; i++) shape[i] = sizes.get(i).asLong();
    return shape;
  }

  public static void main(String[] arguments) throws Exception {
    if (arguments.length != 4) throw new IllegalArgumentException("Usage: Train BUNDLE ROWS.csv LABEL EPOCHS");
    var trainer = new Train(Path.of(arguments[0]), Path.of(arguments[1]), arguments[2]);
    int rows = trainer.column(trainer.label).size(), size = trainer.bundle.get("batch_size").asInt();
    for (int epoch = 0; epoch < Integer.parseInt(arguments[3]); epoch++) {
      if (rows >= size) trainer.train(0, rows / size, size);
      if (rows % size > 0) trainer.train(rows - rows % size, 1, rows % size);
    }
  }
}
